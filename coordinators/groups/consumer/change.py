"""`Change`: the records of one decision about a consumer group. Each is applied at once, and all can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.records import ConsumerRecords, Kind, Record
from barnabas.coordinators.groups.records import GroupRecord
from barnabas.offsets.records import OffsetCommits
from barnabas.protocol.errors import ErrorCode


class Change:
    """A decision in the making. `failed`: it, or one before it, could not be written.

    `restore` is called when it is taken back, for what is changed beside the group.
    """

    __slots__ = ("_opposite", "failed", "group", "records", "restore")

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.records = ConsumerRecords(group.group_id, [])
        self.failed = ErrorCode.NONE
        self.restore: Callable[[], object] | None = None
        self._opposite: list[Record] = []

    def add(self, kind: Kind, name: str, value: Any) -> None:
        """Change one part of the group; None removes it."""
        record = Record(kind, name, value)
        self._opposite += self.group.apply((record,))
        self.records.records.append(record)
        self.records.count += 1

    def set_offsets(self, commits: OffsetCommits) -> None:
        """Write committed offsets with the others."""
        self.records.commits = commits
        self.records.count += commits.count

    def begin_with(self, record: GroupRecord) -> None:
        """Write the record of a classic group before the others."""
        self.records.before = record
        self.records.count += 1

    def end_with(self, record: GroupRecord) -> None:
        """Write the record of a classic group after the others."""
        self.records.after = record
        self.records.count += 1

    def take_back(self) -> None:
        """The log did not take the records. Later changes must be taken back before this one."""
        self.group.apply(reversed(self._opposite))
        self._opposite = []
        if self.restore is not None:
            self.restore()
