"""A fault for one topic or partition of a request that names others, too: these are answered as ever. Pure.

A request that writes is split: what the fault is for never reaches the handler. One that reads is handled whole,
because it has no effect, and a fetch session must not lose partitions; then the rows in its answer are replaced.
"""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from barnabas.broker.control.facts import INDEX_FIELDS, Facts, topic_of
from barnabas.broker.control.rules import Rule, When
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Struct

# Their answers have an error for each topic or partition.
WRITES = frozenset(
    (
        *(ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS),
        *(ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_RECORDS),
    )
)
READS = frozenset((ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH))
ROW_KEYS = ("group_id", *INDEX_FIELDS)

TopicName = Callable[[bytes], str | None]


def is_partial(rule: Rule, facts: Facts) -> bool:
    """Whether the request names something that the rule is not for, and has an error for each."""
    if rule.topic is None or facts.api_key not in WRITES | READS:
        return False
    others = len(facts.topics) > 1
    return others or (rule.partition is not None and any(index != rule.partition for _, index in facts.partitions))


def split(request: Any, rule: Rule, topic_name: TopicName) -> tuple[Any, Any]:
    """What the rule is for, and what is to be handled: copies that share their rows with the request."""
    hit, _ = _part(request, rule, topic_name, "", is_hit=True)
    if rule.when is When.AFTER or request.API_KEY in READS:
        return hit, request
    rest, _ = _part(request, rule, topic_name, "", is_hit=False)
    return hit, rest


def _part(value: Any, rule: Rule, topic_name: TopicName, topic: str, *, is_hit: bool) -> tuple[Any, bool]:
    """A copy with only what is hit, or only what is not; and whether it has any row."""
    part, has_any = copy(value), False
    for name in value._FIELDS:
        field = getattr(value, name)
        if isinstance(field, list):
            kept = [row for item in field for row in _kept(item, name, rule, topic_name, topic, is_hit=is_hit)]
            setattr(part, name, kept)
            has_any = has_any or bool(kept)
    return part, has_any


def _kept(item: Any, field: str, rule: Rule, topic_name: TopicName, topic: str, *, is_hit: bool) -> Iterator[Any]:
    """The item of a list, or what is left of it, if any is."""
    if isinstance(item, Struct):
        own = topic_of(item, topic_name)
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
    return any(isinstance(getattr(value, name), list) and getattr(value, name) for name in value._FIELDS)


def merge(answer: Any, failure: Any, topic_name: TopicName) -> None:
    """Put the rows of a failure into an answer, in the place of rows about the same."""

    def key(row: Any) -> Any:
        return topic_of(row, topic_name) or next((getattr(row, each) for each in ROW_KEYS if each in row._FIELDS), None)

    for name in failure._FIELDS:
        rows = getattr(failure, name)
        if not isinstance(rows, list):
            continue
        there = getattr(answer, name)
        places = {key(row): place for place, row in enumerate(there)}
        for row in rows:
            place = places.get(key(row))
            if place is None:
                there.append(row)
            elif _has_rows(row):
                merge(there[place], row, topic_name)
            else:
                there[place] = row
