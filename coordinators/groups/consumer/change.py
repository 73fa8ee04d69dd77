"""`Change`: the records of one decision about a consumer group. Each is applied at once, and all can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from barnabas.coordinators.groups.consumer.group import NO_TARGETS, ConsumerGroup
from barnabas.coordinators.groups.consumer.records import ConsumerRecords, Encoded, Kind, Record
from barnabas.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.coordinators.groups.consumer.member import Partitions
    from barnabas.coordinators.groups.consumer.records import TargetEpoch
    from barnabas.coordinators.groups.consumer.target import Question
    from barnabas.coordinators.groups.events import Event


class Change:
    """A decision in the making. `failed`: it, or one before it, could not be written.

    `restore` is called when it is taken back, for what is changed beside the group. `question`: what must be answered
    before members can be assigned to, if that takes long. `event`: what is noted of the group when it is committed.
    """

    __slots__ = ("_opposite", "event", "failed", "group", "question", "records", "restore")

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.records = ConsumerRecords(group.group_id, [])
        self.failed = ErrorCode.NONE
        self.question: Question | None = None
        self.event: Event | None = None
        self.restore: Callable[[], object] | None = None
        self._opposite: list[Record] = []

    def add(self, kind: Kind, name: str, value: Any) -> None:
        """Change one part of the group; None removes it."""
        record = Record(kind, name, value)
        self._opposite += self.group.apply((record,))
        self.records.records.append(record)

    def add_encoded(self, changes: Sequence[tuple[Record, Encoded]]) -> None:
        """Change parts of the group by records whose bytes are ready."""
        of = self.records
        self._opposite += reversed(self.group.apply(record for record, _ in changes))
        of.encoded.update(enumerate((encoded for _, encoded in changes), len(of.records)))
        of.records += [record for record, _ in changes]

    @property
    def assigned_before(self) -> int | None:
        """The epoch of the last target assignment, if this decision makes another one."""
        for record, before in zip(self.records.records, self._opposite, strict=True):
            if record.kind is Kind.TARGET_EPOCH and record.value is not None:
                return cast("TargetEpoch", before.value or NO_TARGETS).epoch
        return None

    def given(self) -> Iterator[tuple[str, Partitions, Partitions]]:
        """The members that shall have something else: who, what until now, and what from now on."""
        for record, before in zip(self.records.records, self._opposite, strict=True):
            if record.kind is Kind.TARGET_MEMBER:
                yield record.name, cast("Partitions", before.value or {}), cast("Partitions", record.value or {})

    def take_back(self) -> None:
        """The log did not take the records. Later changes must be taken back before this one."""
        self.group.apply(reversed(self._opposite))
        self._opposite = []
        if self.restore is not None:
            self.restore()
