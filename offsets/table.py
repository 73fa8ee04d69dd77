"""The committed offsets of one partition of `__consumer_offsets`, as the log up to its high watermark tells them.

Only `replay*` change the table, at commit or while loading, so what it holds is committed by construction. Offsets
committed in a transaction wait in `pending` by producer until its control record decides (reference section 16).
"""

from collections.abc import Collection, Iterator, Mapping

from barnabas.offsets.records import CommittedOffset, GroupOffsets, OffsetCommits, OffsetRemovals, TopicPartition


class OffsetTable:
    """Committed offsets by group, and those of open transactions by producer id and group."""

    __slots__ = ("committed", "pending", "pending_counts")

    def __init__(self) -> None:
        self.committed: dict[str, GroupOffsets] = {}
        self.pending: dict[int, dict[str, GroupOffsets]] = {}
        self.pending_counts: dict[str, int] = {}  # open transactions by group, so that the usual answer is one look-up

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset, if any."""
        return self.committed.get(group_id, {}).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> GroupOffsets:
        """All committed offsets of a group, in the order of their first commit. Not to be changed."""
        return self.committed.get(group_id, {})

    def pending_of_group(self, group_id: str) -> set[TopicPartition]:
        """Partitions of a group for which an open transaction has an offset."""
        if group_id not in self.pending_counts:
            return set()
        return {key for groups in self.pending.values() for key in partitions_of(groups.get(group_id, {}))}

    def replay(self, records: OffsetCommits | OffsetRemovals, record_offset: int, producer_id: int = -1) -> None:
        """Apply records that stand in the log from `record_offset` on, and belong to the table from now on.
        `producer_id` is that of a transactional batch, else -1."""
        group_id = records.group_id
        if type(records) is OffsetRemovals:
            for topic, partition in records.partitions:
                self._remove(group_id, topic, partition)
            return
        assert type(records) is OffsetCommits
        held = self._offsets_of(group_id, producer_id)
        for topic, offsets in records.offsets.items():
            for committed in offsets.values():
                committed.record_offset = record_offset
                record_offset += 1
            partitions = held.get(topic)
            if partitions is None:
                held[topic] = offsets
            else:
                partitions.update(offsets)

    def _offsets_of(self, group_id: str, producer_id: int) -> GroupOffsets:
        """Where the offsets of a group are put."""
        if producer_id < 0:
            held = self.committed.get(group_id)
            if held is None:
                held = self.committed[group_id] = {}
            return held
        groups = self.pending.setdefault(producer_id, {})
        if group_id not in groups:
            groups[group_id] = {}
            self.pending_counts[group_id] = self.pending_counts.get(group_id, 0) + 1
        return groups[group_id]

    def replay_end_transaction(self, producer_id: int, committed: bool) -> list[str]:
        """Apply a control record: the producer's pending offsets move into the table where they are newer, or are
        dropped. Returns the groups that got offsets."""
        groups = self.pending.pop(producer_id, {})
        changed = []
        for group_id, offsets in groups.items():
            self._uncount(group_id)
            if not committed:
                continue
            changed.append(group_id)
            held = self.committed.setdefault(group_id, {})
            for topic, partitions in offsets.items():
                held_partitions = held.setdefault(topic, {})
                for partition, value in partitions.items():
                    known = held_partitions.get(partition)
                    if known is None or known.record_offset < value.record_offset:
                        held_partitions[partition] = value
        return changed

    def groups(self) -> list[str]:
        """Groups that have offsets, committed or pending."""
        return list(dict.fromkeys([*self.committed, *self.pending_counts]))

    def held_of(
        self, group_id: str, partitions: Mapping[str, Collection[int]], before_offset: int
    ) -> list[TopicPartition]:
        """Those of the partitions (by topic) for which the group has an offset, committed or pending, whose record
        stands before `before_offset`."""
        sources = [self.of_group(group_id)]
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
        _take_out(self.committed, group_id, topic, partition)
        if group_id not in self.pending_counts:
            return
        for groups in self.pending.values():  # a deletion also ends what a transaction still holds for the partition
            if _take_out(groups, group_id, topic, partition):
                self._uncount(group_id)

    def _uncount(self, group_id: str) -> None:
        left = self.pending_counts[group_id] - 1
        if left:
            self.pending_counts[group_id] = left
        else:
            del self.pending_counts[group_id]


def _take_out(groups: dict[str, GroupOffsets], group_id: str, topic: str, partition: int) -> bool:
    """Forget an offset, if it is there, and what is empty then. True when the group has none any more because of it."""
    offsets = groups.get(group_id, {})
    partitions = offsets.get(topic, {})
    if partitions.pop(partition, None) is None:
        return False
    if not partitions:
        del offsets[topic]
    if not offsets:
        del groups[group_id]
    return not offsets


def partitions_of(offsets: GroupOffsets) -> Iterator[TopicPartition]:
    """The keys of a group's offsets."""
    return ((topic, partition) for topic, partitions in offsets.items() for partition in partitions)
