"""Rights on groups, and on the topics whose offsets they commit."""

from collections.abc import Callable
from typing import Any

from barnabas.broker.access.rules import (
    CLUSTER,
    GROUP,
    MESSAGES,
    NOT_ASKED,
    TOPIC,
    TRANSACTIONAL_ID,
    divided,
    each,
    in_turns,
    itself,
    joined,
    only_with,
    parted,
    say,
    then,
    whole,
    with_rows,
)
from barnabas.broker.requests import AUTHORIZATION_ERRORS, Asked, Reply
from barnabas.cluster.security.acls import CLUSTER_NAME, AclOperation
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import JoinGroupResponse, OffsetDeleteResponse, OffsetFetchResponse
from barnabas.runtime.turns import Pieces

HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."
KEY_TYPES = {0: GROUP, 1: TRANSACTIONAL_ID}  # of FindCoordinator
SHARE, FIRST_VERSION_WITH_SHARE = 2, 6  # the key type that only brokers may ask for
FIRST_VERSION_WITH_ERROR = 2  # of OffsetFetch: at the top of the answer, and not in each row
FIRST_VERSION_WITH_KEYS = 4  # of FindCoordinator

member = whole(AclOperation.READ, GROUP, "group_id")  # SyncGroup, Heartbeat, LeaveGroup
FIRST_JOIN_WITHOUT_PROTOCOL = 7  # its answer may have none
delete_groups = each(AclOperation.DELETE, GROUP, "groups_names", itself)
_list = only_with(AclOperation.DESCRIBE, GROUP, "groups", lambda row: row.group_id)
_describe = each(AclOperation.DESCRIBE, GROUP, "groups", itself)


def join_group(asked: Asked) -> Reply:
    """To read the group."""
    answer = member(asked)
    if isinstance(answer, JoinGroupResponse) and answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        answer.protocol_name = None if asked.context.api_version >= FIRST_JOIN_WITHOUT_PROTOCOL else ""
    return answer


def list_groups(asked: Asked) -> Reply:
    """To describe the cluster; else the answer has the groups that may be described."""
    if asked.rights.may(AclOperation.DESCRIBE, CLUSTER, CLUSTER_NAME):
        return asked.handle()
    return _list(asked)


def describe_groups(asked: Asked) -> Reply:
    """To describe each group."""

    def told(answer: Any) -> Any:
        for group in answer.groups:
            if group.authorized_operations != NOT_ASKED:
                group.authorized_operations = asked.rights.operations(GROUP, group.group_id)
        return answer

    return then(_describe(asked), told)


def find_coordinator(asked: Asked) -> Reply:
    """To describe each group or transactional id. Coordinators of share groups are for brokers."""
    request = asked.request
    type = KEY_TYPES.get(request.key_type)
    if request.key_type == SHARE and asked.context.api_version >= FIRST_VERSION_WITH_SHARE:
        message = MESSAGES[ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        is_broker = asked.may(AclOperation.CLUSTER_ACTION, CLUSTER)
        return divided(asked, "coordinator_keys", lambda key: is_broker, CLUSTER, message)
    if type is None:
        return asked.handle()
    if asked.context.api_version >= FIRST_VERSION_WITH_KEYS:
        return divided(
            asked, "coordinator_keys", lambda key: asked.may(AclOperation.DESCRIBE, type, key), type, message=""
        )
    if asked.may(AclOperation.DESCRIBE, type, request.key):
        return asked.handle()
    error = AUTHORIZATION_ERRORS[type]
    answer = asked.refuse(error)
    say(answer, MESSAGES[error])
    return answer


def offset_commit(asked: Asked) -> Reply:
    """To read the group, and each topic."""
    if not asked.may(AclOperation.READ, GROUP, asked.request.group_id):
        return asked.refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return committed_topics(asked)


def committed_topics(asked: Asked) -> Reply:
    """To read each topic of a commit."""
    may = asked.rights.may
    for topic in asked.request.topics:
        if not topic.name or not may(AclOperation.READ, TOPIC, topic.name):
            break
    else:  # nearly always
        return asked.handle()

    def is_allowed(topic: Any) -> bool:
        name = topic.name or asked.services.metadata_cache.topic_name(topic.topic_id)
        return name is None or asked.may(AclOperation.READ, TOPIC, name)

    return divided(asked, "topics", is_allowed, TOPIC)


def offset_delete(asked: Asked) -> Reply:
    """To delete the group, and to read each topic."""
    request = asked.request
    if not asked.may(AclOperation.DELETE, GROUP, request.group_id):
        return asked.refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    allowed, refused = parted(request.topics, lambda topic: asked.may(AclOperation.READ, TOPIC, topic.name))
    answer = OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=row.partition_index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    )
                    for row in topic.partitions
                ],
            )
            for topic in refused
        ]
    )
    # As in Kafka, an error of the group is all that is said.
    return then(
        asked.handle(with_rows(request, "topics", allowed)),
        lambda there: there if there.error_code else joined(there, answer),
    )


# ------------------------------------------------------------------ OffsetFetch


def offset_fetch(asked: Asked) -> Reply:
    """To describe each group, and each topic. If all topics are asked for, those that are not allowed are left out."""
    return _fetch_of_groups(asked) if asked.request.groups else _fetch_of_one(asked)


def _fetch_of_one(asked: Asked) -> Reply:
    request = asked.request
    if not asked.may(AclOperation.DESCRIBE, GROUP, request.group_id):
        answer = asked.refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if asked.context.api_version >= FIRST_VERSION_WITH_ERROR:
            answer.topics = []
        return answer
    if request.topics is None:
        return _fetch_all(asked)
    allowed, refused = parted(request.topics, lambda topic: asked.may(AclOperation.DESCRIBE, TOPIC, topic.name))
    kept = with_rows(request, "topics", allowed)
    make = OffsetFetchResponse
    rows = [
        make.OffsetFetchResponseTopic(
            name=topic.name, partitions=_refused_rows(make.OffsetFetchResponsePartition, topic)
        )
        for topic in refused
    ]
    return then(asked.handle(kept), lambda there: joined(there, make(topics=rows)))


_fetch_all = only_with(AclOperation.DESCRIBE, TOPIC, "topics", lambda row: row.name)


def _fetch_of_groups(asked: Asked) -> Reply:
    answer = OffsetFetchResponse
    refused: list[OffsetFetchResponse.OffsetFetchResponseGroup] = []
    refused_topics: dict[str, list[OffsetFetchResponse.OffsetFetchResponseTopics]] = {}
    all_of: set[str] = set()
    kept = []
    for group in asked.request.groups:
        if not asked.may(AclOperation.DESCRIBE, GROUP, group.group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
            refused.append(answer.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error))
            continue
        if group.topics is None:
            all_of.add(group.group_id)
            kept.append(group)
            continue
        allowed = []
        for topic in group.topics:
            name = topic.name or asked.services.metadata_cache.topic_name(topic.topic_id)
            if name is None or asked.may(AclOperation.DESCRIBE, TOPIC, name):
                allowed.append(topic)
            else:
                refused_topics.setdefault(group.group_id, []).append(_refused_topic(topic))
        kept.append(with_rows(group, "topics", allowed))

    def told(there: Any) -> Pieces[Any]:
        for group in there.groups:
            if group.group_id in all_of:
                topics = []
                for topic in group.topics:
                    yield
                    name = topic.name or asked.services.metadata_cache.topic_name(topic.topic_id)
                    if name is not None and asked.rights.may(AclOperation.DESCRIBE, TOPIC, name):
                        topics.append(topic)
                group.topics = topics
            if not group.error_code:
                group.topics += refused_topics.pop(group.group_id, [])  # once, if a group is asked for twice
        there.groups += refused
        return there

    if not kept:
        return answer(groups=refused)
    return in_turns(asked, asked.handle(with_rows(asked.request, "groups", kept)), told)


def _refused_topic(topic: Any) -> OffsetFetchResponse.OffsetFetchResponseTopics:
    answer = OffsetFetchResponse
    return answer.OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=_refused_rows(answer.OffsetFetchResponsePartitions, topic),
    )


def _refused_rows(make_row: Callable[..., Any], topic: Any) -> list[Any]:
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    indexes = topic.partition_indexes
    return [make_row(partition_index=index, committed_offset=-1, metadata="", error_code=error) for index in indexes]


# ------------------------------------------------------------------ the consumer protocol (KIP-848)


def consumer_group_heartbeat(asked: Asked) -> Reply:
    """To read the group, and to describe each topic that the member subscribes to."""
    request = asked.request
    if not asked.may(AclOperation.READ, GROUP, request.group_id):
        return asked.refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not all(asked.may(AclOperation.DESCRIBE, TOPIC, name) for name in request.subscribed_topic_names or ()):
        return asked.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return asked.handle()


_describe_consumers = each(AclOperation.DESCRIBE, GROUP, "group_ids", itself)


def consumer_group_describe(asked: Asked) -> Reply:
    """To describe each group, and each topic that its members read or have."""

    def told(answer: Any) -> Pieces[Any]:
        for number, group in enumerate(answer.groups):
            topics = set()
            for member in group.members:
                yield
                topics.update(member.subscribed_topic_names)
                topics.update(row.topic_name for row in member.assignment.topic_partitions)
                topics.update(row.topic_name for row in member.target_assignment.topic_partitions)
            if not all(asked.rights.may(AclOperation.DESCRIBE, TOPIC, name) for name in topics):
                answer.groups[number] = type(group)(
                    group_id=group.group_id,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message=HIDDEN_TOPICS,
                )
            elif group.authorized_operations != NOT_ASKED:
                group.authorized_operations = asked.rights.operations(GROUP, group.group_id)
        return answer

    return in_turns(asked, _describe_consumers(asked), told)
