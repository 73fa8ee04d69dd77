"""The committed offsets of one partition of `__consumer_offsets`, as the log up to its high watermark tells them.

Only `replay*` change the table, at commit or while loading, so what it holds is committed by construction. Offsets
committed in a transaction wait in `pending` by producer until its control record decides (reference section 16).
"""

from collections.abc import Iterator

from barnabas.offsets.records import CommittedOffset, OffsetRecord

TopicPartition = tuple[str, int]
GroupOffsets = dict[TopicPartition, CommittedOffset]


class OffsetTable:
    """Committed offsets by group, and those of open transactions by producer id and group."""

    __slots__ = ("committed", "pending", "pending_counts")

    def __init__(self) -> None:
        self.committed: dict[str, GroupOffsets] = {}
        self.pending: dict[int, dict[str, GroupOffsets]] = {}
        self.pending_counts: dict[str, int] = {}  # open transactions by group, so that the usual answer is one look-up

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset, if any."""
        offsets = self.committed.get(group_id)
        return None if offsets is None else offsets.get((topic, partition))

    def of_group(self, group_id: str) -> GroupOffsets:
        """All committed offsets of a group, in the order of their first commit. Not to be changed."""
        return self.committed.get(group_id, {})

    def pending_of_group(self, group_id: str) -> set[TopicPartition]:
        """Partitions of a group for which an open transaction has an offset."""
        if group_id not in self.pending_counts:
            return set()
        return {key for groups in self.pending.values() for key in groups.get(group_id, ())}

    def replay(self, record: OffsetRecord, producer_id: int = -1) -> None:
        """Apply one record that stands in the log. `producer_id` is that of a transactional batch, else -1."""
        key = (record.topic, record.partition)
        group_id = record.group_id
        committed = record.committed
        if committed is None:
            self._remove(group_id, key)
        elif producer_id < 0:
            offsets = self.committed.get(group_id)
            if offsets is None:
                offsets = self.committed[group_id] = {}
            offsets[key] = committed
        else:
            groups = self.pending.setdefault(producer_id, {})
            if group_id not in groups:
                groups[group_id] = {}
                self.pending_counts[group_id] = self.pending_counts.get(group_id, 0) + 1
            groups[group_id][key] = committed

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
            for key, value in offsets.items():
                known = held.get(key)
                if known is None or known.record_offset < value.record_offset:
                    held[key] = value
        return changed

    def groups_with(self, partitions: set[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
        """Groups that have offsets, committed or pending, for any of the partitions, and for which."""
        for group_id in [*self.committed, *(group for group in self.pending_counts if group not in self.committed)]:
            held = self.of_group(group_id)
            pending = self.pending_of_group(group_id)
            found = [key for key in sorted(partitions) if key in held or key in pending]
            if found:
                yield group_id, found

    def _remove(self, group_id: str, key: TopicPartition) -> None:
        offsets = self.committed.get(group_id)
        if offsets is not None and offsets.pop(key, None) is not None and not offsets:
            del self.committed[group_id]
        if group_id not in self.pending_counts:
            return
        for groups in self.pending.values():  # a deletion also ends what a transaction still holds for the partition
            pending = groups.get(group_id)
            if pending is not None and pending.pop(key, None) is not None and not pending:
                del groups[group_id]
                self._uncount(group_id)

    def _uncount(self, group_id: str) -> None:
        left = self.pending_counts[group_id] - 1
        if left:
            self.pending_counts[group_id] = left
        else:
            del self.pending_counts[group_id]
