"""The records of consumer groups in `__consumer_offsets` (KIP-848): keys 3 to 8, and 16.

A `Record` is a change of one part of a group: `ConsumerGroup.apply` makes it. The bytes are Kafka's. Key 4 (what was
known of the subscribed topics) was written by releases before Kafka 4.1. It is read as nothing, and removed with the
group; since then the record of the group has a hash of the topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from barnabas.coordinators.groups.consumer.member import (
    Assigned,
    ClassicProtocols,
    CurrentAssignment,
    Partitions,
    Subscription,
)
from barnabas.coordinators.groups.consumer.states import MemberState
from barnabas.coordinators.groups.records import GroupRecord, live_reset_in, live_reset_tag
from barnabas.offsets.records import OffsetCommits
from barnabas.protocol import records as stored
from barnabas.protocol.codec import encoder
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.record_batch import PlainRecords
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.protocol.message import Message


class Kind(IntEnum):
    """What a record is about, by its key version."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET_MEMBER = 7
    CURRENT_ASSIGNMENT = 8
    REGEX = 16


CONSUMER_KEYS = frozenset(Kind)


class GroupEpoch(NamedTuple):
    """The epoch of a group, and the hash of the topics that it reads (0: none).

    `reset_epoch`: what a live reset has ended, as long as that counts (live_reset.py); -1: there was none lately.
    """

    epoch: int
    metadata_hash: int
    reset_epoch: int = -1


class TargetEpoch(NamedTuple):
    """The epoch of the group for which its target assignment was computed, and when (0: it is not known)."""

    epoch: int
    timestamp: int = 0


class ResolvedRegex(NamedTuple):
    """The topics that an expression means. `version`: of the metadata that it was resolved against, for Kafka."""

    topics: frozenset[str]
    version: int
    timestamp: int


class Record(NamedTuple):
    """A change of one part of a group. `name`: the member id or the expression. `value` None removes the part."""

    kind: Kind
    name: str
    value: GroupEpoch | TargetEpoch | Subscription | Partitions | CurrentAssignment | ResolvedRegex | None


Encoded = tuple[bytes, bytes | None]  # key and value


class ConsumerRecords:
    """Records of one group that are written in one batch: the log has all of them, or none.

    `before`, `after`: the record of a classic group of that name, which ends or begins with them. `commits`: the
    offsets of a live reset.
    """

    __slots__ = ("after", "before", "commits", "encoded", "group_id", "records")

    def __init__(self, group_id: str, records: list[Record]) -> None:
        self.group_id = group_id
        self.commits: OffsetCommits | None = None
        self.before: GroupRecord | None = None
        self.after: GroupRecord | None = None
        self.records = records
        self.encoded: dict[int, Encoded] = {}  # by their number, the records whose bytes are ready

    def __repr__(self) -> str:
        return f"ConsumerRecords({self.group_id!r}, {self.records!r})"

    @property
    def count(self) -> int:
        """How many they are, all together."""
        offsets = 0 if self.commits is None else self.commits.count
        return offsets + len(self.records) + (self.before is not None) + (self.after is not None)

    def append_to(self, records: PlainRecords) -> None:
        if self.commits is not None:
            self.commits.append_to(records)
        if self.before is not None:
            self.before.append_to(records)
        for number, record in enumerate(self.records):
            records.add(*(self.encoded.get(number) or encoded(self.group_id, record)))
        if self.after is not None:
            self.after.append_to(records)


# --- keys ---

_NAMES = {
    Kind.GROUP: "ConsumerGroupMetadata",
    Kind.PARTITION_METADATA: "ConsumerGroupPartitionMetadata",
    Kind.MEMBER: "ConsumerGroupMemberMetadata",
    Kind.TARGET_EPOCH: "ConsumerGroupTargetAssignmentMetadata",
    Kind.TARGET_MEMBER: "ConsumerGroupTargetAssignmentMember",
    Kind.CURRENT_ASSIGNMENT: "ConsumerGroupCurrentMemberAssignment",
    Kind.REGEX: "ConsumerGroupRegularExpression",
}


def _key_class(kind: Kind) -> Any:
    return getattr(stored, _NAMES[kind] + "Key")  # the class is made on first use


def encode_key(group_id: str, record: Record) -> bytes:
    key: Message
    if record.kind is Kind.REGEX:
        key = stored.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=record.name)
    elif record.kind in (Kind.GROUP, Kind.PARTITION_METADATA, Kind.TARGET_EPOCH):
        key = _key_class(record.kind)(group_id=group_id)
    else:
        key = _key_class(record.kind)(group_id=group_id, member_id=record.name)
    return stored.encode_versioned(key, record.kind)


def encoded(group_id: str, record: Record) -> Encoded:
    return encode_key(group_id, record), encode_value(record)


# --- values ---


def make_encoders() -> Pieces[None]:
    """Make the encoders of all records one by one. Else the first member of a process makes them in one callback."""
    for kind in _NAMES:
        encoder(_key_class(kind), kind)
        yield
        encoder(getattr(stored, _NAMES[kind] + "Value"), 0)
        yield


def encode_value(record: Record) -> bytes | None:
    """The value of a record; None is a tombstone."""
    value = record.value
    message: Message
    if value is None:
        return None
    if record.kind is Kind.GROUP:
        assert isinstance(value, GroupEpoch)
        message = stored.ConsumerGroupMetadataValue(
            epoch=value.epoch,
            metadata_hash=value.metadata_hash,
            unknown_tagged_fields=live_reset_tag(value.reset_epoch),
        )
    elif record.kind is Kind.MEMBER:
        assert isinstance(value, Subscription)
        message = _of_subscription(value)
    elif record.kind is Kind.TARGET_EPOCH:
        assert isinstance(value, TargetEpoch)
        message = stored.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=value.epoch, assignment_timestamp=value.timestamp
        )
    elif record.kind is Kind.CURRENT_ASSIGNMENT:
        assert isinstance(value, CurrentAssignment)
        message = _of_current(value)
    elif record.kind is Kind.REGEX:
        assert isinstance(value, ResolvedRegex)
        message = stored.ConsumerGroupRegularExpressionValue(
            topics=sorted(value.topics), version=value.version, timestamp=value.timestamp
        )
    else:
        assert isinstance(value, dict)
        row = stored.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
        message = stored.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[row(topic_id=topic_id, partitions=sorted(value[topic_id])) for topic_id in sorted(value)]
        )
    return stored.encode_versioned(message, 0)


def _of_subscription(value: Subscription) -> stored.ConsumerGroupMemberMetadataValue:
    make = stored.ConsumerGroupMemberMetadataValue
    classic = None
    if value.classic is not None:
        protocols = [make.ClassicProtocol(name=name, metadata=metadata) for name, metadata in value.classic.protocols]
        classic = make.ClassicMemberMetadata(
            session_timeout_ms=value.classic.session_timeout_ms, supported_protocols=protocols
        )
    return make(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=list(value.topic_names),
        subscribed_topic_regex=value.topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.assignor,
        classic_member_metadata=classic,
    )


def _of_current(value: CurrentAssignment) -> stored.ConsumerGroupCurrentMemberAssignmentValue:
    return stored.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=value.epoch,
        previous_member_epoch=value.previous_epoch,
        state=value.state,
        assigned_partitions=_of_assigned(value.assigned),
        partitions_pending_revocation=_of_assigned(value.revoking),
    )


def _of_assigned(assigned: Assigned) -> list[stored.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    rows = []
    for topic_id in sorted(assigned):
        partitions = sorted(assigned[topic_id])
        epochs = [assigned[topic_id][partition] for partition in partitions]
        make = stored.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
        rows.append(make(topic_id=topic_id, partitions=partitions, assignment_epochs=epochs))
    return rows


# --- reading ---


def decode(key: bytes, value: bytes | None) -> tuple[str, Record]:
    """The group id and the record, of a key whose version is in `CONSUMER_KEYS`. ProtocolError, if it is unreadable."""
    kind = Kind(stored.version_of(key))
    try:
        found: Any = stored.decode_versioned(_key_class(kind), key)[1]
        name = ""
        if kind is Kind.REGEX:
            name = found.regular_expression
        elif kind in (Kind.MEMBER, Kind.TARGET_MEMBER, Kind.CURRENT_ASSIGNMENT):
            name = found.member_id
        if value is None or kind is Kind.PARTITION_METADATA:
            return found.group_id, Record(kind, name, None)
        return found.group_id, Record(kind, name, _READ[kind](value))
    except UnsupportedVersionError as error:
        raise ProtocolError(str(error)) from error


def _read_group(value: bytes) -> GroupEpoch:
    found = stored.decode_versioned(stored.ConsumerGroupMetadataValue, value)[1]
    return GroupEpoch(found.epoch, found.metadata_hash, live_reset_in(found.unknown_tagged_fields))


def _read_target_epoch(value: bytes) -> TargetEpoch:
    found = stored.decode_versioned(stored.ConsumerGroupTargetAssignmentMetadataValue, value)[1]
    return TargetEpoch(found.assignment_epoch, found.assignment_timestamp)


def _read_regex(value: bytes) -> ResolvedRegex:
    found = stored.decode_versioned(stored.ConsumerGroupRegularExpressionValue, value)[1]
    return ResolvedRegex(frozenset(found.topics), found.version, found.timestamp)


def _read_target(value: bytes) -> Partitions:
    found = stored.decode_versioned(stored.ConsumerGroupTargetAssignmentMemberValue, value)[1]
    # After damage there may be partitions below zero: nobody can read them, and no assignor looks for such.
    return {row.topic_id: frozenset(each for each in row.partitions if each >= 0) for row in found.topic_partitions}


def _read_subscription(value: bytes) -> Subscription:
    found = stored.decode_versioned(stored.ConsumerGroupMemberMetadataValue, value)[1]
    classic = None
    if found.classic_member_metadata is not None:
        protocols = found.classic_member_metadata.supported_protocols
        classic = ClassicProtocols(
            found.classic_member_metadata.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in protocols),
        )
    return Subscription(
        found.instance_id,
        found.rack_id,
        found.client_id,
        found.client_host,
        tuple(sorted(found.subscribed_topic_names)),
        found.subscribed_topic_regex or "",
        found.rebalance_timeout_ms,
        found.server_assignor,
        classic,
    )


def _read_current(value: bytes) -> CurrentAssignment:
    found = stored.decode_versioned(stored.ConsumerGroupCurrentMemberAssignmentValue, value)[1]
    try:
        state = MemberState(found.state)
    except ValueError:
        state = MemberState.UNKNOWN
    return CurrentAssignment(
        found.member_epoch,
        found.previous_member_epoch,
        state,
        _read_assigned(found.assigned_partitions, max(found.member_epoch, found.previous_member_epoch)),
        _read_assigned(found.partitions_pending_revocation, max(found.member_epoch, found.previous_member_epoch)),
    )


def _read_assigned(
    rows: Iterable[stored.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], epoch: int
) -> Assigned:
    """Before Kafka 4.3 the epochs of single partitions were not stored; then that of the member is the safe one."""
    assigned: dict[bytes, Mapping[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [epoch] * len(row.partitions)
        pairs = zip(row.partitions, epochs, strict=True)
        assigned[row.topic_id] = {partition: since for partition, since in pairs if partition >= 0}
    return assigned


_READ: Mapping[Kind, Any] = {
    Kind.GROUP: _read_group,
    Kind.MEMBER: _read_subscription,
    Kind.TARGET_EPOCH: _read_target_epoch,
    Kind.TARGET_MEMBER: _read_target,
    Kind.CURRENT_ASSIGNMENT: _read_current,
    Kind.REGEX: _read_regex,
}
