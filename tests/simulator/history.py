"""Checks what the clients of a run saw, in the manner of Jepsen's Kafka workload: pure functions over a history.

They know nothing of brokers and leaders. The order of the events is the order in which they happened. So an operation
that ended before another one was invoked must not come after it in any log. What is not known (INFO, or no end) may
have happened at any time since it was invoked, or may happen later.

A read may show less than was acknowledged: the new leader of a partition raises its high watermark only when its
followers have fetched, as in Kafka. So reads must be up to date only from `settled_ms` on, when all is calm. Committed
offsets are never stale: a coordinator first loads all that its log has.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from barnabas.runtime.grouped import grouped

from simulator.observations import (
    DELETE_GROUP,
    EXPIRE_OFFSETS,
    REMOVE_GROUP,
    Administer,
    Assigned,
    Commit,
    Event,
    Fetch,
    FetchOffsets,
    Operation,
    Outcome,
    Produce,
    TopicPartition,
)

ALL_IN_SYNC = -1
OFFSETS_TOPIC = "__consumer_offsets"
DELETE_TOPIC = "delete topic"
NO_OFFSET = -1


class Anomaly(NamedTuple):
    """What must not be in a history."""

    name: str
    detail: str


class Done(NamedTuple):
    """An operation with its beginning and its end, as places in the history. One that did not end has the end inf."""

    client: str
    began: int
    ended: float
    began_ms: float
    outcome: Outcome
    operation: Operation


class _Sent(NamedTuple):
    """Where a value belongs in its producer's order."""

    producer_id: int
    sequence: int
    outcome: Outcome


class _Write(NamedTuple):
    """A committed offset. `effective_by`: the place in the history at which it was in force for sure."""

    value: int
    began: int
    effective_by: float
    outcome: Outcome


def check(
    events: Sequence[Event],
    *,
    compacted: Collection[str] = (),
    excused: Collection[TopicPartition] = (),
    settled_ms: float = inf,
    commits_are_weak: bool = False,
) -> Iterator[Anomaly]:
    """All anomalies of a history.

    `compacted` topics may have gaps. `excused` partitions may have lost acknowledged records; if the offsets topic has
    such a partition, groups may have lost what they committed. Topics that somebody asked to delete are left out.

    `commits_are_weak`: commits do not wait for replicas, so a leader change may take those before it. Offsets that were
    committed after `settled_ms` stay, and nobody is ever told an offset that nobody has committed.
    """
    done = operations(events)
    deleted = {
        each.operation.topic
        for each in done
        if isinstance(each.operation, Administer) and each.operation.request == DELETE_TOPIC
    }
    produced: dict[TopicPartition, list[Done]] = {}
    fetched: dict[TopicPartition, list[Done]] = {}
    for each in done:
        operation = each.operation
        if isinstance(operation, Produce):
            produced.setdefault(operation.partition, []).append(each)
        elif isinstance(operation, Fetch) and each.outcome is Outcome.OK:
            fetched.setdefault(operation.partition, []).append(each)
    for partition in sorted({**produced, **fetched}):
        if partition[0] not in deleted:
            sends, reads = produced.get(partition, []), fetched.get(partition, [])
            yield from _aborted_reads(partition, sends, reads)
            if partition not in excused:
                yield from _inconsistent_offsets(partition, sends, reads)
                yield from _duplicates(partition, sends, reads)
                yield from _reorders(partition, sends, reads)
                yield from _lost(partition, sends, reads)
                yield from _stale_reads(partition, sends, reads, settled_ms)
                if partition[0] not in compacted:
                    yield from _gaps(partition, reads)
    if not any(topic == OFFSETS_TOPIC for topic, _ in excused):
        settled_at = bisect_left(events, settled_ms, key=lambda event: event.at_ms) if commits_are_weak else -1
        yield from _committed_offsets(done, deleted, settled_at)
        if not commits_are_weak:
            yield from _owners(done)


def operations(events: Iterable[Event]) -> list[Done]:
    """Each operation once, in the order of the invocations. ValueError for a history that contradicts itself."""
    done: dict[int, Done] = {}
    for place, event in enumerate(events):
        known = done.get(event.number)
        if event.outcome is Outcome.INVOKE:
            if known is not None:
                raise ValueError(f"operation {event.number} is invoked twice")
            done[event.number] = Done(event.client, place, inf, event.at_ms, Outcome.INFO, event.operation)
        elif known is None:
            if not isinstance(event.operation, Assigned):
                raise ValueError(f"operation {event.number} ends and was not invoked")
            done[event.number] = Done(event.client, place, place, event.at_ms, event.outcome, event.operation)
        elif known.ended < inf:
            raise ValueError(f"operation {event.number} ends twice")
        else:
            ended = inf if event.outcome is Outcome.INFO else place
            done[event.number] = known._replace(ended=ended, outcome=event.outcome, operation=event.operation)
    return list(done.values())


# -- records


def _acknowledged(sends: Iterable[Done]) -> Iterator[tuple[Done, Produce]]:
    for done in sends:
        operation = done.operation
        assert isinstance(operation, Produce)
        if done.outcome is Outcome.OK and operation.acks == ALL_IN_SYNC:
            yield done, operation


def _reads(reads: Iterable[Done]) -> Iterator[tuple[Done, Fetch]]:
    for done in reads:
        assert isinstance(done.operation, Fetch)
        yield done, done.operation


def _sent(sends: Iterable[Done]) -> dict[str, list[_Sent]]:
    """Each value, with every time that it was sent."""
    sent: dict[str, list[_Sent]] = {}
    for done in sends:
        operation = done.operation
        assert isinstance(operation, Produce)
        for slot, value in enumerate(operation.values):
            sent.setdefault(value, []).append(
                _Sent(operation.producer_id, operation.base_sequence + slot, done.outcome)
            )
    return sent


def _aborted_reads(partition: TopicPartition, sends: list[Done], reads: list[Done]) -> Iterator[Anomaly]:
    """A read shows a record that nobody has sent, or whose sending has failed for good."""
    sent = _sent(sends)
    for _, fetch in _reads(reads):
        for offset, value in fetch.records:
            times = sent.get(value)
            if times is None:
                yield Anomaly("invented read", f"{partition} {offset}: {value}")
            elif all(each.outcome is Outcome.FAIL for each in times):
                yield Anomaly("aborted read", f"{partition} {offset}: {value}")


def _inconsistent_offsets(partition: TopicPartition, sends: list[Done], reads: list[Done]) -> Iterator[Anomaly]:
    """An offset has two values."""
    known: dict[int, str] = {}
    for offset, value in _observed(sends, reads):
        if known.setdefault(offset, value) != value:
            yield Anomaly("inconsistent offsets", f"{partition} {offset}: {known[offset]} and {value}")


def _observed(sends: list[Done], reads: list[Done]) -> Iterator[tuple[int, str]]:
    """Offsets and values that were acknowledged or read."""
    for _, produce in _acknowledged(sends):
        yield from enumerate(produce.values, produce.base_offset)
    for _, fetch in _reads(reads):
        yield from fetch.records


def _duplicates(partition: TopicPartition, sends: list[Done], reads: list[Done]) -> Iterator[Anomaly]:
    """A value is there twice; without idempotence: more often than it was sent."""
    sent = _sent(sends)
    offsets: dict[str, dict[int, None]] = {}
    for offset, value in _observed(sends, reads):
        offsets.setdefault(value, {})[offset] = None
    for value, found in offsets.items():
        times = sent.get(value, [])
        allowed = 1 if any(each.producer_id >= 0 for each in times) else max(len(times), 1)
        if len(found) > allowed:
            yield Anomaly("duplicate", f"{partition}: {value} at {sorted(found)}")


def _reorders(partition: TopicPartition, sends: list[Done], reads: list[Done]) -> Iterator[Anomaly]:
    """Records of one producer are not in its order; or a record lies before one that was acknowledged first."""
    sent = _sent(sends)
    observed = dict(_observed(sends, reads))
    last: dict[int, tuple[int, str]] = {}
    for offset in sorted(observed):
        value = observed[offset]
        for producer_id, sequence, _ in sent.get(value, []):
            if producer_id >= 0:
                before = last.get(producer_id)
                if before is not None and before[0] > sequence:
                    yield Anomaly("reordered", f"{partition} {offset}: {value} behind {before[1]}")
                last[producer_id] = (sequence, value)
    floors = _Floors((done.ended, produce.base_offset) for done, produce in _acknowledged(sends))
    for done, produce in _acknowledged(sends):
        floor = floors.at(done.began)
        if produce.base_offset < floor:
            detail = (
                f"{partition} {produce.base_offset}: {produce.values[0]}, {floor} was acknowledged before it was sent"
            )
            yield Anomaly("reordered", detail)


class _Floors:
    """The largest offset of all that ended before a place in the history."""

    def __init__(self, ended: Iterable[tuple[float, int]]) -> None:
        self._ends: list[float] = []
        self._offsets: list[int] = []
        for end, offset in sorted(ended):
            self._ends.append(end)
            self._offsets.append(max(offset, self._offsets[-1]) if self._offsets else offset)

    def at(self, began: float) -> int:
        """-1: nothing."""
        slot = bisect_left(self._ends, began)
        return self._offsets[slot - 1] if slot else -1


def _lost(partition: TopicPartition, sends: list[Done], reads: list[Done]) -> Iterator[Anomaly]:
    """The log ends before a record that was acknowledged or read earlier, and so it stays."""
    if not reads:
        return
    last, fetch = max(_reads(reads), key=lambda read: read[0].began)
    for done, produce in _acknowledged(sends):
        if done.ended < last.began and produce.base_offset + len(produce.values) > fetch.high_watermark:
            detail = f"{partition} {produce.base_offset}: {produce.values[0]}, the log ends at {fetch.high_watermark}"
            yield Anomaly("lost write", detail)
    for done, earlier in _reads(reads):
        if done.ended < last.began and earlier.records and earlier.records[-1][0] >= fetch.high_watermark:
            offset, value = earlier.records[-1]
            detail = f"{partition} {offset}: {value} was read, the log ends at {fetch.high_watermark}"
            yield Anomaly("lost read", detail)


def _stale_reads(
    partition: TopicPartition, sends: list[Done], reads: list[Done], settled_ms: float
) -> Iterator[Anomaly]:
    """A read in calm shows less than was acknowledged, or read by anybody, before it began."""
    seen = [(done.ended, produce.base_offset + len(produce.values) - 1) for done, produce in _acknowledged(sends)]
    seen += [(done.ended, fetch.records[-1][0]) for done, fetch in _reads(reads) if fetch.records]
    floors = _Floors(seen)
    for done, fetch in _reads(reads):
        if done.began_ms >= settled_ms and fetch.high_watermark <= floors.at(done.began):
            detail = f"{partition}: {done.client} is told {fetch.high_watermark}, {floors.at(done.began)} was known"
            yield Anomaly("stale read", detail)


def _gaps(partition: TopicPartition, reads: list[Done]) -> Iterator[Anomaly]:
    """A read leaves records out."""
    for _, fetch in _reads(reads):
        expected = fetch.position
        for offset, value in fetch.records:
            if offset < fetch.position:
                continue  # a batch begins below the position
            if offset != expected:
                yield Anomaly("gap", f"{partition}: {offset} ({value}) where {expected} was next")
                break
            expected = offset + 1


# -- groups


def _committed_offsets(done: list[Done], deleted: Collection[str], lasting_from: int) -> Iterator[Anomaly]:
    """A group is told an offset that is older than one that was committed before it asked. Offsets last that were
    committed from the place `lasting_from` of the history on.

    At first it has none. To delete the group is to write that there is none, for each partition. So is expiry.
    """
    writes: dict[tuple[str, TopicPartition], list[_Write]] = {}
    deletions: dict[str, list[_Write]] = {}
    reads: dict[tuple[str, TopicPartition], list[tuple[Done, int]]] = {}
    for each in done:
        operation = each.operation
        effective_by = each.ended if each.outcome is Outcome.OK else inf
        if isinstance(operation, Commit):
            for partition, offset in operation.offsets:
                write = _Write(offset, each.began, effective_by, each.outcome)
                writes.setdefault((operation.group_id, partition), []).append(write)
        elif isinstance(operation, Administer) and operation.request in (DELETE_GROUP, EXPIRE_OFFSETS):
            write = _Write(NO_OFFSET, each.began, effective_by, each.outcome)
            deletions.setdefault(operation.topic, []).append(write)
        elif isinstance(operation, FetchOffsets) and each.outcome is Outcome.OK:
            for partition, offset in operation.offsets:
                reads.setdefault((operation.group_id, partition), []).append((each, offset))
    first = _Write(NO_OFFSET, -1, -1, Outcome.OK)
    for key in sorted(reads):
        if key[1][0] not in deleted:
            all_writes = [first, *deletions.get(key[0], []), *writes.get(key, [])]
            yield from _offsets_of_one(f"{key[0]} {key[1]}", all_writes, reads[key], lasting_from)


def _offsets_of_one(
    where: str, writes: list[_Write], reads: list[tuple[Done, int]], lasting_from: int
) -> Iterator[Anomaly]:
    by_value = grouped((write.value, write) for write in writes)
    for done, value in reads:  # what was read is in force, also if its client was never told
        found = by_value.get(value, [])
        if len(found) == 1 and found[0].effective_by > done.ended:
            by_value[value] = [found[0]._replace(effective_by=done.ended)]
    known = sorted((write for found in by_value.values() for write in found), key=lambda write: write.effective_by)
    ends = [write.effective_by for write in known]
    newest: list[_Write] = []  # of all that are in force by then, the one that was invoked last
    for write in known:
        newest.append(max(write, newest[-1], key=lambda each: each.began) if newest else write)
    for done, value in reads:
        found = [write for write in by_value.get(value, []) if write.began < done.ended]
        in_force = newest[bisect_left(ends, done.began) - 1]
        if not found:
            yield Anomaly("invented offset", f"{where}: {value}")
        elif all(write.outcome is Outcome.FAIL for write in found):
            yield Anomaly("aborted commit", f"{where}: {value}")
        elif in_force.began >= lasting_from and all(
            write.effective_by < in_force.began for write in found if write.outcome is not Outcome.FAIL
        ):
            detail = f"{where}: {done.client} is told {value} after {in_force.value}"
            yield Anomaly("committed offset lost" if value < 0 else "committed offset goes back", detail)


def _owners(done: list[Done]) -> Iterator[Anomaly]:
    """A partition has two owners in one generation of a group. A group that was removed begins anew."""
    owners: dict[tuple[str, int, int, TopicPartition], str] = {}
    removals: dict[str, int] = {}
    for each in done:
        operation = each.operation
        if isinstance(operation, Administer) and operation.request == REMOVE_GROUP:
            removals[operation.topic] = removals.get(operation.topic, 0) + 1
        elif isinstance(operation, Assigned):
            group_id = operation.group_id
            for partition in operation.partitions:
                place = (group_id, removals.get(group_id, 0), operation.generation, partition)
                owner = owners.setdefault(place, operation.member_id)
                if owner != operation.member_id:
                    yield Anomaly("two owners", f"{place}: {owner} and {operation.member_id}")
