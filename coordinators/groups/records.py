"""Group records of `__consumer_offsets`: key version 2. Reads values of versions 0-4, writes 3 (as Kafka 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from barnabas.offsets.records import OffsetCommits
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.message import Message
from barnabas.protocol.record_batch import PlainRecords

if TYPE_CHECKING:
    from barnabas.protocol.records import ConsumerProtocolAssignment, ConsumerProtocolSubscription, GroupMetadataValue

M = TypeVar("M", bound=Message)

GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3
TAGGED_GROUP_VALUE_VERSION = 4  # the first with tagged fields; other brokers skip those that they do not know (KIP-915)
EMPTY_ASSIGNMENT = bytes(2 + 4) + b"\xff\xff\xff\xff"  # of the consumer protocol: version 0, no topic, no user data
LIVE_RESET_TAG = 10_000  # int32: the generation that the last live reset has ended (live_reset.py)


class GroupRecord:
    """A stored group: generation, members and assignments. `metadata` None: the group is removed."""

    __slots__ = ("group_id", "metadata")
    count = 1

    def __init__(self, group_id: str, metadata: GroupMetadataValue | None) -> None:
        self.group_id = group_id
        self.metadata = metadata

    def __repr__(self) -> str:
        return f"GroupRecord({self.group_id!r}, {self.metadata!r})"

    def key(self) -> bytes:
        return stored.encode_versioned(stored.GroupMetadataKey(group=self.group_id), GROUP_KEY_VERSION)

    def value(self) -> bytes | None:
        """The record's value; None is a tombstone."""
        if self.metadata is None:
            return None
        tagged = self.metadata.unknown_tagged_fields
        return stored.encode_versioned(self.metadata, TAGGED_GROUP_VALUE_VERSION if tagged else GROUP_VALUE_VERSION)

    def append_to(self, records: PlainRecords) -> None:
        records.add(self.key(), self.value())


class ResetRecords:
    """What a live reset writes, in one batch: offsets, and the group without members (None: it had no state).

    A batch is in the log as a whole or not at all, so a restart finds both or neither.
    """

    __slots__ = ("commits", "count", "group", "group_id")

    def __init__(self, commits: OffsetCommits, group: GroupRecord | None) -> None:
        self.group_id = commits.group_id
        self.commits = commits
        self.group = group
        self.count = commits.count + (group is not None)

    def __repr__(self) -> str:
        return f"ResetRecords({self.commits!r}, {self.group!r})"

    def append_to(self, records: PlainRecords) -> None:
        """Append the records to a batch: the offsets first."""
        self.commits.append_to(records)
        if self.group is not None:
            self.group.append_to(records)


def live_reset_of(metadata: GroupMetadataValue) -> int:
    """The generation that the last live reset has ended; -1: there is no mark of one."""
    return live_reset_in(metadata.unknown_tagged_fields)


def live_reset_in(tagged_fields: dict[int, bytes] | None) -> int:
    """The generation or epoch that a live reset has ended, by the tagged fields of the group's record; -1: no mark."""
    data = (tagged_fields or {}).get(LIVE_RESET_TAG)
    return -1 if data is None else int.from_bytes(data, "big", signed=True)


def live_reset_tag(generation: int) -> dict[int, bytes] | None:
    """The mark of a live reset, for `unknown_tagged_fields`."""
    return {LIVE_RESET_TAG: generation.to_bytes(4, "big", signed=True)} if generation >= 0 else None


def decode_group(key: bytes, value: bytes | None) -> GroupRecord:
    """Read a record whose key version is 2. ProtocolError when the bytes cannot be read."""
    group_id = stored.decode_versioned(stored.GroupMetadataKey, key)[1].group
    if value is None:
        return GroupRecord(group_id, None)
    try:
        return GroupRecord(group_id, stored.decode_versioned(stored.GroupMetadataValue, value)[1])
    except UnsupportedVersionError as error:
        raise ProtocolError(str(error)) from error


def subscribed_topics(subscription: bytes) -> list[str] | None:
    """The topics of an embedded consumer subscription (all versions begin with them); None: it is something else."""
    try:
        position = 6
        count = int.from_bytes(subscription[2:6], "big", signed=True)
        topics = []
        for _ in range(count):
            length = int.from_bytes(subscription[position : position + 2], "big", signed=True)
            end = position + 2 + length
            if length < 0 or end > len(subscription):
                return None
            topics.append(subscription[position + 2 : end].decode())
            position = end
    except UnicodeDecodeError:
        return None
    return topics if len(subscription) >= 6 and count >= 0 else None


def topics_end(subscription: bytes) -> int:
    """Where the topics of a subscription end, whose `subscribed_topics` can be read."""
    position = 6
    for _ in range(int.from_bytes(subscription[2:6], "big")):
        position += 2 + int.from_bytes(subscription[position : position + 2], "big")
    return position


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """An embedded consumer subscription; None: it is something else."""
    return _read(stored.ConsumerProtocolSubscription, metadata)


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment | None:
    """An embedded consumer assignment; None: it is something else."""
    return _read(stored.ConsumerProtocolAssignment, assignment)


def _read(kind: type[M], data: bytes) -> M | None:
    try:
        return stored.decode_versioned(kind, data, newer_as_latest=True)[1]
    except (ProtocolError, UnsupportedVersionError):
        return None


def claims_partitions(subscription: bytes) -> bool:
    """Whether an embedded consumer subscription names partitions that the member keeps over the rebalance (KIP-429)."""
    found = read_subscription(subscription)
    return found is not None and any(topic.partitions for topic in found.owned_partitions)
