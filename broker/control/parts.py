"""A fault for one topic or partition of a request that names others, too: these are answered as ever. Pure.

A request that writes is split: what the fault is for never reaches the handler. One that reads is handled whole,
because it has no effect, and a fetch session must not lose partitions; then the rows in its answer are replaced.
"""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from barnabas.broker.control.errors import OF_REQUEST
from barnabas.broker.control.facts import INDEX_FIELDS, topic_of
from barnabas.broker.control.rules import Rule, When
from barnabas.broker.fetch_sessions import FetchSession
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Struct
from barnabas.protocol.messages import FetchRequest, OffsetFetchResponse
from barnabas.protocol.rows import Rows
from barnabas.protocol.uuids import ZERO

# Their answers have an error for each topic or partition.
WRITES = frozenset(
    (
        *(ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS),
        *(ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_RECORDS),
    )
)
READS = frozenset((ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH))
ROW_KEYS = ("group_id", "topic_id", *INDEX_FIELDS)
TopicName = Callable[[bytes], str | None]


def split(request: Any, named: Any, rule: Rule, topic_name: TopicName) -> tuple[Any, Any] | None:
    """What the rule is for, and what is to be handled: copies that share their rows with the request.

    `named`: the request with all that it is about. None: the fault is for all of it.
    """
    if rule.topic is None or rule.error in OF_REQUEST or request.API_KEY not in WRITES | READS:
        return None
    hit, has_hit = _part(named, rule, topic_name, "", is_hit=True)
    rest, has_rest = _part(named, rule, topic_name, "", is_hit=False)
    if not has_hit or not has_rest:
        return None
    if request.API_KEY == ApiKey.FETCH:
        rest = copy(request)
        rest.max_wait_ms = 0  # an error is not waited for
    elif rule.when is When.AFTER or request.API_KEY in READS:
        rest = request
    return hit, rest


def failure_of(hit: Any, error: ErrorCode, whole: Any) -> Any:
    """The rows of the failure, from the answer in which all of `hit` fails."""
    if hit.API_KEY == ApiKey.FETCH and error not in OF_REQUEST and whole.responses:
        whole.error_code = ErrorCode.NONE  # that one is for errors of sessions
    if hit.API_KEY != ApiKey.OFFSET_FETCH or whole is None:
        return whole
    answer = OffsetFetchResponse
    for group, asked in zip(whole.groups, hit.groups):  # the group itself has no error
        group.error_code = ErrorCode.NONE
        group.topics = [
            answer.OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    answer.OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=error)
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics or ()
        ]
    return whole


def with_session(request: Any, session: FetchSession | None) -> Any:
    """A Fetch that names all partitions of its session, of which the client has named those that have changed."""
    if session is None:
        return request
    indexes: dict[tuple[str, bytes], dict[int, None]] = {}
    for partition in session.partitions.values():
        named_by = (partition.topic or "", partition.topic_id)
        indexes.setdefault(named_by, {})[partition.index] = None
    for topic in request.topics:
        known = (each for each in indexes if topic.topic in (each[0], "") and topic.topic_id in (each[1], ZERO))
        named_by = next(known, (topic.topic, topic.topic_id))
        indexes.setdefault(named_by, {}).update((each.partition, None) for each in topic.partitions)
    make = FetchRequest.FetchPartition
    named = copy(request)
    named.topics = [
        FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=[make(partition=index) for index in each])
        for (name, topic_id), each in indexes.items()
    ]
    return named


def _part(value: Any, rule: Rule, topic_name: TopicName, topic: str, *, is_hit: bool) -> tuple[Any, bool]:
    """A copy with only what is hit, or only what is not; and whether it has any row."""
    part, has_any = copy(value), False
    for name in value._FIELDS:
        field = getattr(value, name)
        if isinstance(field, list | Rows) and name != "forgotten_topics_data":
            kept = [row for item in field for row in _kept(item, name, rule, topic_name, topic, is_hit=is_hit)]
            setattr(part, name, kept)
            has_any = has_any or bool(kept)
    return part, has_any


def _kept(item: Any, field: str, rule: Rule, topic_name: TopicName, topic: str, *, is_hit: bool) -> Iterator[Any]:
    """The item of a list, or what is left of it, if any is."""
    if isinstance(item, Struct):
        own = topic_of(item, topic_name)
        is_unknown = not own and any(getattr(item, "topic_id", b""))
        if is_unknown or (rule.group is not None and getattr(item, "group_id", rule.group) != rule.group):
            if not is_hit:
                yield item
            return
        index = next((getattr(item, each) for each in INDEX_FIELDS if each in item._FIELDS), None)
        if (own and (own != rule.topic or rule.partition is None)) or (topic and index is not None):
            if _is_hit(rule, own or topic, index) == is_hit:
                yield item
            return
        row, has_any = _part(item, rule, topic_name, own or topic, is_hit=is_hit)
        if has_any:
            yield row
    elif isinstance(item, str):  # the name of a topic
        if _is_hit(rule, item, None) == is_hit:
            yield item
    elif _is_hit(rule, topic, item) == is_hit:  # the number of a partition
        yield item


def _is_hit(rule: Rule, topic: str, index: int | None) -> bool:
    return topic == rule.topic and (rule.partition is None or index is None or index == rule.partition)


def _has_rows(value: Any) -> bool:
    return any(isinstance(getattr(value, name), list | Rows) and getattr(value, name) for name in value._FIELDS)


def merge(answer: Any, failure: Any, topic_name: TopicName) -> None:
    """Put the rows of a failure into an answer, in the place of rows about the same."""

    def key(row: Any) -> Any:
        own = topic_of(row, topic_name)
        return own or next((getattr(row, each) for each in ROW_KEYS if each in row._FIELDS), None)

    for name in failure._FIELDS:
        rows = getattr(failure, name)
        if not isinstance(rows, list | Rows):
            continue
        there = list(getattr(answer, name))  # a row of `Rows` cannot be replaced
        setattr(answer, name, there)
        places = {key(row): place for place, row in enumerate(there)}
        for row in rows:
            place = places.get(key(row))
            if place is None:
                there.append(row)
            elif _has_rows(row):
                merge(there[place], row, topic_name)
            else:
                there[place] = row
