"""Where `consume --offset` begins in each partition."""

from functools import partial
from typing import Any

from barnabas.cli.offset_targets import place_of
from barnabas.cli.shared.client import answered
from barnabas.cli.shared.exits import ExitCode, fail, say


class Last(int):
    """So many offsets before the end of the log."""


def last_or_place(where: str) -> Any:
    """`-10`, or what `place_of` takes."""
    if where.startswith("-") and where[1:].isdecimal():
        return Last(where[1:])
    return place_of(where, "--offset")


def begin_at(consumer: Any, topic: str, indexes: list[int], place: Any, from_beginning: bool) -> None:
    """Let a consumer read these partitions (none: all) from a place on. An offset outside the log is moved to its end.

    `place` None: the end of the log, or its beginning.
    """
    from kafka.structs import TopicPartition

    existing = answered(None, partial(consumer.partitions_for_topic, topic)) or set()
    if missing := sorted(set(indexes) - existing):
        fail(f"{topic} has no partition {missing[0]}; it has 0 to {max(existing)}.", ExitCode.NOTHING_THERE)
    partitions = [TopicPartition(topic, index) for index in sorted(set(indexes) or existing)]
    consumer.assign(partitions)
    starts = answered(None, partial(consumer.beginning_offsets, partitions))
    ends = answered(None, partial(consumer.end_offsets, partitions))
    wanted = _offsets(consumer, partitions, place, from_beginning, starts, ends)
    for partition in partitions:
        begin = max(starts[partition], min(ends[partition], wanted[partition]))
        if isinstance(place, int) and type(place) is int and begin != wanted[partition]:
            log = f"has the offsets {starts[partition]} to {ends[partition]}"
            say(f"{topic}-{partition.partition} {log}: it is read from {begin} on, not {wanted[partition]}.")
        consumer.seek(partition, begin)


def _offsets(
    consumer: Any, partitions: list[Any], place: Any, from_beginning: bool, starts: dict[Any, int], ends: dict[Any, int]
) -> dict[Any, int]:
    from kafka.admin import OffsetSpec, OffsetTimestamp

    if isinstance(place, OffsetTimestamp):
        asked = {partition: int(place) for partition in partitions}
        found = answered(None, partial(consumer.offsets_for_times, asked))
        return {each: ends[each] if found.get(each) is None else found[each].offset for each in partitions}
    if isinstance(place, Last):
        return {each: ends[each] - place for each in partitions}
    if place == OffsetSpec.EARLIEST or (place is None and from_beginning):
        return starts
    if place is None or place == OffsetSpec.LATEST:
        return ends
    return dict.fromkeys(partitions, int(place))
