"""Group records of `__consumer_offsets`: key version 2. Reads values of versions 0-4, writes 3 (as Kafka 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.offsets.records import COORDINATOR_ERRORS
from barnabas.protocol import records as stored
from barnabas.protocol.batch_records import PlainRecords
from barnabas.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.protocol.records import GroupMetadataValue

GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3


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
        """The record's key."""
        return stored.encode_versioned(stored.GroupMetadataKey(group=self.group_id), GROUP_KEY_VERSION)

    def value(self) -> bytes | None:
        """The record's value; None is a tombstone."""
        return None if self.metadata is None else stored.encode_versioned(self.metadata, GROUP_VALUE_VERSION)

    def append_to(self, records: PlainRecords) -> None:
        """Append the record to a batch."""
        records.add(self.key(), self.value())


def decode_group(key: bytes, value: bytes | None) -> GroupRecord:
    """Read a record whose key version is 2. ProtocolError when the bytes cannot be read."""
    group_id = stored.decode_versioned(stored.GroupMetadataKey, key)[1].group
    return GroupRecord(
        group_id, None if value is None else stored.decode_versioned(stored.GroupMetadataValue, value)[1]
    )


def store_error(append_error: ErrorCode) -> ErrorCode:
    """The error for members when the record of their group could not be appended."""
    return _STORE_ERRORS.get(append_error, append_error)


_STORE_ERRORS = {
    **COORDINATOR_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


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
