"""Rights on topics: Metadata, DescribeTopicPartitions, CreateTopics, CreatePartitions, DeleteTopics.

Whether a topic exists is told only to those who may describe it.
"""

from typing import Any

from barnabas.broker.access.rules import (
    CLUSTER,
    MESSAGES,
    NOT_ASKED,
    ROWS_PER_PIECE,
    TOPIC,
    divided,
    each,
    handled,
    in_turns,
    parted,
    then,
    with_rows,
)
from barnabas.broker.requests import Asked, Reply
from barnabas.cluster.metadata_cache import NO_TOPIC_ID
from barnabas.cluster.security.acls import CLUSTER_NAME, AclOperation
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DeleteTopicsResponse, MetadataRequest, MetadataResponse
from barnabas.runtime.turns import Pieces, chunks

FIRST_VERSION_WITH_IDS = 12  # of Metadata; 10 and 11 have the field, too
NOT_AUTHORISED = MESSAGES[ErrorCode.TOPIC_AUTHORIZATION_FAILED]

_create_partitions = each(AclOperation.ALTER, TOPIC, "topics")
_describe = each(AclOperation.DESCRIBE, TOPIC, "topics")


def metadata(asked: Asked) -> Reply:
    """To describe each topic, and to create those that are to be made; a list of all has those that may be described.

    Who may not create a topic gets TOPIC_AUTHORIZATION_FAILED for it.
    """
    request, version = asked.request, asked.context.api_version
    asks_for_all = request.topics is None or (version == 0 and not request.topics)
    if asks_for_all:
        return in_turns(asked, asked.handle(), lambda answer: _told(asked, answer, leaves_out=True))
    return asked.services.env.turns.run(_of_named(asked))


def _of_named(asked: Asked) -> Pieces[Any]:
    """The answer to a request that names topics."""
    request = asked.request
    creates = request.allow_auto_topic_creation and asked.services.config.auto_create_topics_enable

    def is_allowed(row: MetadataRequest.MetadataRequestTopic) -> bool:
        name = _name(asked, row)
        return name is None or (
            asked.may(AclOperation.DESCRIBE, TOPIC, name) and (not creates or _may_create(asked, row, name))
        )

    allowed: list[Any] = []
    refused: list[Any] = []
    for some in chunks(request.topics, ROWS_PER_PIECE):
        yield
        if asked.context.api_version < FIRST_VERSION_WITH_IDS and any(map(has_id, some)):
            return (yield from handled(asked, None))  # the handler refuses all of it, and says nothing of topics
        fine, not_allowed = parted(some, is_allowed)
        allowed += fine
        refused += map(_refused_topic, not_allowed)
    answer = yield from handled(asked, with_rows(request, "topics", allowed) if refused else None)
    if not isinstance(answer, MetadataResponse):  # its handler failed
        return answer
    if asked.context.api_version == 0 and not allowed:
        answer.topics = []  # no topics in the request means all of them
    yield from _told(asked, answer, leaves_out=False)
    answer.topics += refused
    return answer


def has_id(row: MetadataRequest.MetadataRequestTopic) -> bool:
    """Whether a topic is meant by its id."""
    return row.name is None or row.topic_id != NO_TOPIC_ID


def _name(asked: Asked, row: Any) -> str | None:
    """The name of a topic that is named by its name or id; None: no topic has this id."""
    if row.name is not None and row.topic_id == NO_TOPIC_ID:
        name: str = row.name
        return name
    return asked.services.metadata_cache.topic_name(row.topic_id)


def _may_create(asked: Asked, row: MetadataRequest.MetadataRequestTopic, name: str) -> bool:
    """Whether the topic is there, or may be created."""
    if row.name is None or asked.services.metadata_cache.contains(name):
        return True
    return asked.rights.may(AclOperation.CREATE, CLUSTER, CLUSTER_NAME) or asked.may(AclOperation.CREATE, TOPIC, name)


def _refused_topic(row: MetadataRequest.MetadataRequestTopic) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        name=row.name, topic_id=row.topic_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )


def _told(asked: Asked, answer: Any, *, leaves_out: bool) -> Pieces[Any]:
    """The answer with what this principal may know and do. `leaves_out`: topics that it may not describe, too."""
    rights = asked.rights
    if leaves_out:
        kept = []
        for topic in answer.topics:
            yield
            if rights.may(AclOperation.DESCRIBE, TOPIC, topic.name):
                kept.append(topic)
        answer.topics = kept
    for topic in answer.topics if asked.request.include_topic_authorized_operations else ():
        yield
        if topic.name:
            topic.topic_authorized_operations = rights.operations(TOPIC, topic.name)
    if answer.cluster_authorized_operations != NOT_ASKED:
        answer.cluster_authorized_operations = cluster_operations(asked)
    return answer


def cluster_operations(asked: Asked) -> int:
    """What the principal may do with the cluster; nothing is told to those who may not describe it."""
    if not asked.rights.may(AclOperation.DESCRIBE, CLUSTER, CLUSTER_NAME):
        return 0
    return asked.rights.operations(CLUSTER, CLUSTER_NAME)


def describe_topic_partitions(asked: Asked) -> Reply:
    """To describe each topic that is named. If none is, the handler leaves out those that may not be described.

    The next page of named topics begins at the cursor, also for those that are refused.
    """
    request, cursor = asked.request, asked.request.cursor
    if cursor is not None and request.topics:
        if cursor.partition_index < 0 or all(topic.name != cursor.topic_name for topic in request.topics):
            return asked.handle()  # which refuses all of it
        asked.request = with_rows(request, "topics", (t for t in request.topics if t.name >= cursor.topic_name))
        if not asked.rights.may(AclOperation.DESCRIBE, TOPIC, cursor.topic_name):
            asked.request.cursor = None

    def told(answer: Any) -> Pieces[Any]:
        for topic in answer.topics:
            yield
            if topic.topic_authorized_operations != NOT_ASKED:
                topic.topic_authorized_operations = asked.rights.operations(TOPIC, topic.name)
        return answer

    return in_turns(asked, _describe(asked), told)


def create_topics(asked: Asked) -> Reply:
    """To create topics in the cluster, or each one. The settings of a new topic are told to those who may see them."""

    def told(answer: Any) -> Any:
        for result in answer.topics:
            may_see = asked.rights.may(AclOperation.DESCRIBE_CONFIGS, TOPIC, result.name)
            if result.error_code == ErrorCode.NONE and not may_see:
                result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                result.num_partitions = result.replication_factor = -1
                result.configs = []
        return answer

    if asked.rights.may(AclOperation.CREATE, CLUSTER, CLUSTER_NAME):
        return then(asked.handle(), told)
    divide = each(AclOperation.CREATE, TOPIC, "topics", message="Authorization failed.")
    return _in_no_time(asked, "topics", then(divide(asked), told))


def create_partitions(asked: Asked) -> Reply:
    """To alter each topic."""
    return _in_no_time(asked, "results", _create_partitions(asked))


def _in_no_time(asked: Asked, field: str, reply: Any) -> Any:
    """If the request leaves no time, and a row is allowed, all rows of the answer say so, as in Kafka."""

    def told(answer: Any) -> Any:
        late = ErrorCode.REQUEST_TIMED_OUT
        return asked.refuse(late) if any(row.error_code == late for row in getattr(answer, field)) else answer

    return reply if asked.request.timeout_ms > 0 else then(reply, told)


def delete_topics(asked: Asked) -> Reply:
    """To delete in the cluster, or each topic. Who may not describe it does not hear whether a name is there, or which
    name an id belongs to."""
    request, rights = asked.request, asked.rights
    # A request that leaves no time is refused by its handler, whatever it names.
    if request.timeout_ms <= 0 or rights.may(AclOperation.DELETE, CLUSTER, CLUSTER_NAME):
        return asked.handle()
    cache = asked.services.metadata_cache

    def is_allowed(row: Any) -> bool:
        if isinstance(row, str):
            return asked.may(AclOperation.DELETE, TOPIC, row)
        if row.name is not None and row.topic_id != NO_TOPIC_ID:
            return True  # both are too much: the handler refuses it, whatever they name
        name = _name(asked, row)
        return name is None or asked.may(AclOperation.DELETE, TOPIC, name)

    def told(answer: Any) -> Any:
        for result in answer.responses:
            if result.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                continue
            if result.name is None:
                _name_if_known(asked, result)
            elif not cache.contains(result.name) and rights.may(AclOperation.DESCRIBE, TOPIC, result.name):
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.error_message = "There is no such topic."
        return answer

    field = "topic_names" if request.topic_names else "topics"
    return then(divided(asked, field, is_allowed, TOPIC, NOT_AUTHORISED), told)


def _name_if_known(asked: Asked, result: DeleteTopicsResponse.DeletableTopicResult) -> None:
    name = asked.services.metadata_cache.topic_name(result.topic_id)
    if name is not None and asked.rights.may(AclOperation.DESCRIBE, TOPIC, name):
        result.name = name
