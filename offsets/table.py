"""The committed offsets of one partition of `__consumer_offsets`: its log up to the high watermark, as a table.

Only the `replay` methods and `store` change the table, at commit or while loading, so it holds only committed records.
Offsets of an open transaction wait in `pending`, by producer, until the control record of the transaction decides.

What was loaded, and what a commit of several offsets has written, stays as it is in the log (stored.py) while the
group commits the same partitions again. A group whose offsets change otherwise is decoded for good. A group is in
`decoded` or in `stored`, never in both; each partition of a group in `stored` is there once. Of the groups in `stored`
that somebody has asked for, the last ones are also at hand decoded.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from barnabas.offsets.records import (
    CommittedOffset,
    GroupOffsets,
    OffsetCommits,
    OffsetRemovals,
    TopicColumns,
    TopicPartition,
)
from barnabas.offsets.stored import StoredRun, run_of

Positions = list[tuple[str, list[tuple[int, int, int]]]]

RUNS_MAX: Final = 8  # of a group; one that has more is decoded
COPIES_MAX: Final = 8  # groups in `stored` that are at hand decoded
_NOTHING: GroupOffsets = {}


class OffsetTable:
    """Committed offsets by group, and those of open transactions by producer id and group."""

    __slots__ = ("_copies", "_pending_from", "decoded", "longest_transaction", "pending", "pending_counts", "stored")

    def __init__(self) -> None:
        self.decoded: dict[str, GroupOffsets] = {}
        self.stored: dict[str, list[StoredRun]] = {}
        self.pending: dict[int, dict[str, GroupOffsets]] = {}
        self.pending_counts: dict[str, int] = {}  # open transactions by group; usually none, found by one look-up
        self._pending_from: dict[int, int] = {}  # producer id -> offset of the first record of its open transaction
        self.longest_transaction = 0  # records from the first of a transaction to its marker, of all that were replayed
        self._copies: dict[str, GroupOffsets] = {}  # of groups in `stored`, for those who ask again

    @property
    def committed(self) -> dict[str, GroupOffsets]:
        """All committed offsets, by group. Costs as much as decoding all that is stored."""
        return self.decoded | {group_id: _decode(runs) for group_id, runs in self.stored.items()}

    @property
    def has_offsets(self) -> bool:
        """Whether anything is committed."""
        return bool(self.decoded or self.stored)

    @property
    def group_count(self) -> int:
        """How many groups have committed offsets."""
        return len(self.decoded) + len(self.stored)

    def group_ids(self) -> list[str]:
        """The groups that have committed offsets."""
        return [*self.decoded, *self.stored]

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset; None: there is none."""
        return self.asked_for(group_id).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> GroupOffsets:
        """All committed offsets of a group, in the order of their first commit. The caller must not change them.

        They may be a copy, so the caller must not keep them either.
        """
        found = self.decoded.get(group_id)
        if found is not None:
            return found
        found = self._copies.get(group_id)
        if found is not None:
            return found
        runs = self.stored.get(group_id)
        return _NOTHING if runs is None else _decode(runs)

    def asked_for(self, group_id: str) -> GroupOffsets:
        """As `of_group`, for those who may soon ask again: what had to be decoded is kept for a while."""
        found = self.decoded.get(group_id)
        if found is not None:
            return found
        found = self.of_group(group_id)
        copies = self._copies
        if found and group_id not in copies:
            if len(copies) >= COPIES_MAX:
                del copies[next(iter(copies))]
            copies[group_id] = found
        return found

    def to_change(self, group_id: str) -> GroupOffsets:
        """All committed offsets of a group that is about to change: decoded for good."""
        return self._open(group_id) or _NOTHING

    def count(self, group_id: str) -> int:
        """How many committed offsets a group has."""
        found = self.decoded.get(group_id)
        return sum(map(len, self.stored.get(group_id, ()) if found is None else found.values()))

    def oldest_ms(self, group_id: str) -> int | None:
        """When the oldest of a group's offsets was committed; None: it is not known without looking at all of them."""
        runs = self.stored.get(group_id)
        return None if runs is None else min(run.oldest_ms for run in runs)

    def topics(self, group_id: str) -> list[str]:
        """The topics of which a group has committed offsets."""
        found = self.decoded.get(group_id)
        if found is None:
            return list(dict.fromkeys([run.topic for run in self.stored.get(group_id, ())]))
        return list(found)

    def positions(self, group_id: str) -> Positions:
        """The partitions of a group with offset and commit time, by topic. A topic may be there more than once."""
        found = self.decoded.get(group_id)
        if found is None:
            return [(run.topic, run.positions()) for run in self.stored.get(group_id, ())]
        return [
            (topic, [(index, each.offset, each.commit_timestamp) for index, each in offsets.items()])
            for topic, offsets in found.items()
        ]

    def only_run(self, group_id: str, topic: str) -> StoredRun | None:
        """All offsets of a group for a topic, if they are one run."""
        found = [run for run in self.stored.get(group_id, ()) if run.topic == topic]
        return found[0] if len(found) == 1 else None

    def columns(self, group_id: str, topic: str, partitions: bytes) -> TopicColumns | None:
        """The offsets of these partitions as the journal writes them; None: they are not at hand so."""
        for run in self.stored.get(group_id, ()):
            if run.topic == topic and 4 * len(run) == len(partitions):
                found = run.columns()
                if found is not None and found.partitions == partitions:
                    return found
        return None

    def store(self, group_id: str, run: StoredRun) -> None:
        """Apply a run of the log, in which each partition is once."""
        runs = self.stored.get(group_id)
        if runs is None:
            if group_id not in self.decoded:
                self.stored[group_id] = [run]
                return
        elif _put(runs, run):
            self._copies.pop(group_id, None)
            return
        group = self._open(group_id)
        assert group is not None
        group.setdefault(run.topic, {}).update(run.offsets())

    def _open(self, group_id: str) -> GroupOffsets | None:
        """The group's offsets in `decoded`, from now on; None: it has none."""
        runs = self.stored.pop(group_id, None)
        if runs is not None:
            self.decoded[group_id] = self._copies.pop(group_id, _NOTHING) or _decode(runs)
        return self.decoded.get(group_id)

    def pending_of_group(self, group_id: str) -> set[TopicPartition]:
        """The partitions of a group for which an open transaction has an offset."""
        if group_id not in self.pending_counts:
            return set()
        return {key for groups in self.pending.values() for key in partitions_of(groups.get(group_id, {}))}

    def replay(self, records: OffsetCommits | OffsetRemovals, record_offset: int, producer_id: int = -1) -> None:
        """Apply records of the log, the first of them at `record_offset`. The table takes over their objects.

        `producer_id`: of a transactional batch, else -1.
        """
        group_id = records.group_id
        if type(records) is OffsetRemovals:
            for topic, partition in records.partitions:
                self._remove(group_id, topic, partition)
            return
        assert type(records) is OffsetCommits
        if records.packed is not None and producer_id < 0 and group_id not in self.decoded:
            for packed in records.packed:
                run = run_of(packed, record_offset)
                self.store(group_id, run)
                record_offset += len(run)
            return
        group = self.decoded.get(group_id) if producer_id < 0 else None
        if group is None:
            group = self._make_group(group_id, producer_id)
        if producer_id >= 0:
            self._pending_from.setdefault(producer_id, record_offset)
        for topic, offsets in records.offsets.items():
            for committed in offsets.values():
                committed.record_offset = record_offset
                record_offset += 1
            partitions = group.get(topic)
            if partitions is None:
                group[topic] = offsets
            else:
                partitions.update(offsets)

    def _make_group(self, group_id: str, producer_id: int) -> GroupOffsets:
        """The group's offsets in `decoded`, or in `pending` for a transaction; made empty when there are none."""
        if producer_id < 0:
            group = self.decoded.get(group_id)
            if group is None:
                group = self._open(group_id)
                if group is None:
                    group = self.decoded[group_id] = {}
            return group
        groups = self.pending.setdefault(producer_id, {})
        if group_id not in groups:
            groups[group_id] = {}
            self.pending_counts[group_id] = self.pending_counts.get(group_id, 0) + 1
        return groups[group_id]

    def replay_end_transaction(self, producer_id: int, committed: bool, record_offset: int = -1) -> list[str]:
        """Apply a control record. The producer's pending offsets are dropped, or committed where they are newer.

        Returns the groups whose offsets were committed.
        """
        begin = self._pending_from.pop(producer_id, record_offset)
        self.longest_transaction = max(self.longest_transaction, record_offset - begin)
        groups = self.pending.pop(producer_id, {})
        changed = []
        for group_id, offsets in groups.items():
            self._uncount(group_id)
            if not committed:
                continue
            changed.append(group_id)
            newer = self.newer_than_committed(group_id, offsets)
            group = self._make_group(group_id, -1)
            for topic, partitions in newer.items():
                group.setdefault(topic, {}).update(partitions)
        return changed

    def newer_than_committed(self, group_id: str, offsets: GroupOffsets) -> GroupOffsets:
        """Those of a transaction's offsets that replace committed ones if it is committed: the newer ones."""
        committed = self.of_group(group_id)
        newer: GroupOffsets = {}
        for topic, partitions in offsets.items():
            known_partitions = committed.get(topic, {})
            for partition, value in partitions.items():
                known = known_partitions.get(partition)
                if known is None or known.record_offset < value.record_offset:
                    newer.setdefault(topic, {})[partition] = value
        return newer

    def groups(self) -> list[str]:
        """The groups that have offsets, committed or pending."""
        return list(dict.fromkeys([*self.decoded, *self.stored, *self.pending_counts]))

    def partitions_before(
        self, group_id: str, partitions: Mapping[str, Collection[int]], before_offset: int
    ) -> list[TopicPartition]:
        """The partitions among these whose offset of the group, committed or pending, has a record before
        `before_offset`. Sorted.
        """
        sources = []
        if any(topic in partitions for topic in self.topics(group_id)):
            sources.append(self.of_group(group_id))
        if group_id in self.pending_counts:
            sources += [groups[group_id] for groups in self.pending.values() if group_id in groups]
        found = {
            (topic, index)
            for offsets in sources
            for topic in partitions.keys() & offsets.keys()
            for index, committed in offsets[topic].items()
            if index in partitions[topic] and committed.record_offset < before_offset
        }
        return sorted(found)

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        self._open(group_id)
        _take_out(self.decoded, group_id, topic, partition)
        if group_id not in self.pending_counts:
            return
        for groups in self.pending.values():  # a tombstone also removes the pending offset of a transaction
            if _take_out(groups, group_id, topic, partition):
                self._uncount(group_id)

    def _uncount(self, group_id: str) -> None:
        left = self.pending_counts[group_id] - 1
        if left:
            self.pending_counts[group_id] = left
        else:
            del self.pending_counts[group_id]


def _take_out(groups: dict[str, GroupOffsets], group_id: str, topic: str, partition: int) -> bool:
    """Remove an offset, and its topic and group if they are then empty. True: this removed the group."""
    offsets = groups.get(group_id, {})
    partitions = offsets.get(topic, {})
    if partitions.pop(partition, None) is None:
        return False
    if not partitions:
        del offsets[topic]
    if not offsets:
        del groups[group_id]
    return not offsets


def _decode(runs: list[StoredRun]) -> GroupOffsets:
    offsets: GroupOffsets = {}
    for run in runs:
        known = offsets.get(run.topic)
        if known is None:
            offsets[run.topic] = run.offsets()
        else:
            known.update(run.offsets())
    return offsets


def _put(runs: list[StoredRun], run: StoredRun) -> bool:
    """Put a run to others of its group; False: it has some partitions of another, or there are too many."""
    for position, older in enumerate(runs):
        if older.topic == run.topic:
            if run.replaces(older):
                runs[position] = run
                return True
            if not run.is_disjoint(older):
                return False
    if len(runs) >= RUNS_MAX:
        return False
    runs.append(run)
    return True


def partitions_of(offsets: GroupOffsets) -> Iterator[TopicPartition]:
    """The keys of a group's offsets."""
    return ((topic, partition) for topic, partitions in offsets.items() for partition in partitions)
