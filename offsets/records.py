"""Offset records of `__consumer_offsets`: key versions 0 and 1, value versions 0-4, in Kafka's binary format.

Key: int16 version, group, topic, int32 partition. Value: int16 version, then
0: offset, metadata, timestamp; 1: offset, metadata, commit timestamp, expire timestamp; 2: offset, metadata, commit
timestamp; 3: offset, leader epoch, metadata, commit timestamp; 4: as 3 in flexible encoding with tag 0 = topic id.
A null value is a tombstone. Written: key 1 and value 4, or value 1 where the client gave a retention time.
Each commit writes these records, so they are packed by hand; tests compare them with the generated codec.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as _struct_error
from sys import intern
from typing import Final, NamedTuple

from barnabas.protocol.record_batch import NO_HEADERS, SHORT_SIGNED, PlainRecords, start_of_record
from barnabas.protocol.varint import encode_unsigned

try:
    from barnabas.offsets import native_packing as native_packing
except ImportError:
    native_packing = None  # type: ignore[assignment]  # the pure build

NO_TOPIC_ID: Final = bytes(16)
OFFSET_KEY_VERSIONS: Final = (0, 1)
PACKED_MAX: Final = 2_000  # a table decodes so many offsets at once
EXPLICIT_RETENTION_VALUE_VERSION: Final = 1
VALUE_VERSION: Final = 4

_INT16: Final = Struct(">h")
_LENGTH: Final = Struct(">H")  # length of a string; unsigned, so that a negative length is too long for the value
_INT32: Final = Struct(">i")
_OFFSET_AND_EPOCH: Final = Struct(">hqi")
_OFFSET: Final = Struct(">hq")
_TIMESTAMP: Final = Struct(">q")
_TIMESTAMPS: Final = Struct(">qq")
_VALUE_BYTES_MIN: Final = _OFFSET_AND_EPOCH.size + 1 + _TIMESTAMP.size  # a value of version 4 without metadata and tags
_KEY_VERSION_1: Final = _INT16.pack(1)
_MALFORMED: Final = "truncated offset record"


_OFFSET_FIELDS: Final = (
    "commit_timestamp",
    "expire_timestamp",
    "leader_epoch",
    "metadata",
    "offset",
    "record_offset",
    "topic_id",
)


class CommittedOffset:
    """A committed offset of one partition.

    `expire_timestamp` -1: the retention decides. `record_offset`: the offset of its record in `__consumer_offsets`; of
    two commits the one with the higher record offset is newer. `topic_id`: zeros if the commit named none.
    """

    __slots__ = _OFFSET_FIELDS

    def __init__(
        self,
        offset: int,
        leader_epoch: int = -1,
        metadata: str = "",
        commit_timestamp: int = -1,
        expire_timestamp: int = -1,
        topic_id: bytes = NO_TOPIC_ID,
        record_offset: int = -1,
    ) -> None:
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.commit_timestamp = commit_timestamp
        self.expire_timestamp = expire_timestamp
        self.topic_id = topic_id
        self.record_offset = record_offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CommittedOffset):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _OFFSET_FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "CommittedOffset(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in _OFFSET_FIELDS) + ")"


TopicPartition = tuple[str, int]
GroupOffsets = dict[str, dict[int, CommittedOffset]]  # topic -> partition -> offset; no topic is empty


class TopicColumns(NamedTuple):
    """Partitions of a topic (int32), and their offsets and leader epochs (int64, int32), in the order of the commit."""

    topic: str
    topic_id: bytes
    partitions: bytes
    positions: bytes


# A topic of a commit: its name, its id, how many bytes of a record's key are before the partition, and the records of
# its partitions, each from the length of its key on.
PackedTopic = tuple[str, bytes, int, bytes]


class OffsetCommits:
    """The offsets of one commit: a record for each partition. `origin`: who commits, as journal.py encodes it.

    `packed`: the records once more, as the table and the journal take them (stored.py). None for one offset, for more
    than `PACKED_MAX`, and where one has metadata or an expiry time. `columns`: what the journal takes of them, if it is
    at hand.
    """

    __slots__ = ("columns", "count", "group_id", "offsets", "origin", "packed")

    def __init__(self, group_id: str, offsets: GroupOffsets, origin: bytes = b"") -> None:
        self.group_id = group_id
        self.offsets = offsets
        self.origin = origin
        self.count = 0
        for partitions in offsets.values():
            self.count += len(partitions)
        self.packed: list[PackedTopic] | None = None
        self.columns: list[TopicColumns] | None = None

    def __repr__(self) -> str:
        return f"OffsetCommits({self.group_id!r}, {self.offsets!r})"

    def set_record_offset(self, record_offset: int) -> None:
        """Give all offsets this one: they have no records in the log."""
        for offsets in self.offsets.values():
            for committed in offsets.values():
                committed.record_offset = record_offset

    def append_to(self, records: PlainRecords) -> None:
        """Append the records.

        The bytes that all records of a topic share are made once, and one `pack` writes everything behind the offset
        delta of a record. An offset with metadata or an expiry time takes the general path.
        """
        if native_packing is not None and self._append_natively(records):
            return
        parts = records.parts
        packed: list[PackedTopic] | None = [] if 1 < self.count <= PACKED_MAX else None
        for topic, offsets in self.offsets.items():
            begin = len(parts)
            topic_id = next(iter(offsets.values())).topic_id
            tags = _tags(topic_id)
            value_length = 2 * (_VALUE_BYTES_MIN + len(tags))  # as a varint, which has one byte here
            key_start = _key_start(self.group_id, topic)
            key_length = SHORT_SIGNED[len(key_start) + _INT32.size]
            key_start = key_length + key_start
            layout = _layout(len(key_start), len(tags))
            pack = layout.pack
            start, delta_bytes = b"", 0
            count = records.count
            for partition, committed in offsets.items():
                if committed.metadata or committed.expire_timestamp >= 0 or committed.topic_id is not topic_id:
                    records.count = count
                    records.add(encode_key(self.group_id, topic, partition), encode_value(committed))
                    count = records.count
                    continue
                offset_delta = SHORT_SIGNED[count]
                count += 1
                if len(offset_delta) != delta_bytes:
                    delta_bytes = len(offset_delta)
                    start = start_of_record(delta_bytes + layout.size)
                parts += (
                    start,
                    offset_delta,
                    pack(
                        key_start,
                        partition,
                        value_length,
                        VALUE_VERSION,
                        committed.offset,
                        committed.leader_epoch,
                        1,  # the length of no metadata
                        committed.commit_timestamp,
                        tags,
                        NO_HEADERS,
                    ),
                )
            records.count = count
            if packed is not None:
                if len(parts) - begin == 3 * len(offsets):
                    data = b"".join(parts[begin + 2 :: 3])
                    packed.append((topic, topic_id, len(key_start) - len(key_length), data))
                else:
                    packed = None  # one has taken the general path
        self.packed = packed

    def _append_natively(self, records: PlainRecords) -> bool:
        """Append the records as C packs them; False: one of them takes the general path."""
        parts: list[bytes] = []
        packed: list[PackedTopic] = []
        columns: list[TopicColumns] = []
        count = records.count
        for topic, offsets in self.offsets.items():
            topic_id = NO_TOPIC_ID
            numbers: list[int] = []
            for partition, committed in offsets.items():
                if not numbers:
                    topic_id = committed.topic_id
                if committed.metadata or committed.expire_timestamp >= 0 or committed.topic_id is not topic_id:
                    return False
                numbers.append(partition)
                numbers.append(committed.offset)
                numbers.append(committed.leader_epoch)
                numbers.append(committed.commit_timestamp)
            part, data, key_start_bytes, partitions, positions = native_packing.offset_records(
                count, self.group_id, topic, topic_id, numbers
            )
            parts.append(part)
            packed.append((topic, topic_id, key_start_bytes, data))
            columns.append(TopicColumns(topic, topic_id, partitions, positions))
            count += len(offsets)
        records.parts += parts
        records.count = count
        if 1 < self.count <= PACKED_MAX:
            self.packed, self.columns = packed, columns
        return True


class PendingCommits:
    """The offsets of one commit in a producer's transaction: they count when the transaction is committed."""

    __slots__ = ("commits", "producer_id")

    def __init__(self, commits: OffsetCommits, producer_id: int) -> None:
        self.commits = commits
        self.producer_id = producer_id

    @property
    def count(self) -> int:
        """The number of records."""
        return self.commits.count

    def append_to(self, records: PlainRecords) -> None:
        """Append the records."""
        self.commits.append_to(records)


class TransactionEnd:
    """What a marker in the offsets topic says: the offsets that a producer's transaction has committed count, or not.

    The marker itself comes from the transaction coordinator, as a batch.
    """

    __slots__ = ("is_commit", "producer_id")
    count = 1

    def __init__(self, producer_id: int, is_commit: bool) -> None:
        self.producer_id = producer_id
        self.is_commit = is_commit

    def append_to(self, records: PlainRecords) -> None:
        """It is never appended so."""
        raise AssertionError("a marker is a batch of its own")


class OffsetRemovals:
    """The partitions whose offsets are removed: a tombstone for each. `origin`: who removes them, as for a commit."""

    __slots__ = ("group_id", "origin", "partitions")

    def __init__(self, group_id: str, partitions: Sequence[TopicPartition], origin: bytes = b"") -> None:
        self.group_id = group_id
        self.partitions = partitions
        self.origin = origin

    def __repr__(self) -> str:
        return f"OffsetRemovals({self.group_id!r}, {self.partitions!r})"

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.partitions)

    def append_to(self, records: PlainRecords) -> None:
        """Append the tombstones."""
        for topic, partition in self.partitions:
            records.add(encode_key(self.group_id, topic, partition), None)


def encode_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of the record of an offset."""
    return _key_start(group_id, topic) + _INT32.pack(partition)


def _key_start(group_id: str, topic: str) -> bytes:
    group = group_id.encode()
    name = topic.encode()
    return b"".join((_KEY_VERSION_1, _INT16.pack(len(group)), group, _INT16.pack(len(name)), name))


@lru_cache(maxsize=256)
def _layout(key_start_bytes: int, tags_bytes: int) -> Struct:
    """The layout of a record behind its offset delta: key length, key up to the partition, partition, value length, the
    value (version, offset, leader epoch, metadata length, timestamp, tags), number of headers.
    """
    return Struct(f">{key_start_bytes}s i B hqiBq{tags_bytes}s s")


def encode_value(committed: CommittedOffset) -> bytes:
    """A value of version 4, or 1 if the client set an expiry time (OffsetCommit v2-v4)."""
    metadata = committed.metadata.encode()
    if committed.expire_timestamp >= 0:
        return b"".join(
            (
                _OFFSET.pack(EXPLICIT_RETENTION_VALUE_VERSION, committed.offset),
                _INT16.pack(len(metadata)),
                metadata,
                _TIMESTAMPS.pack(committed.commit_timestamp, committed.expire_timestamp),
            )
        )
    return b"".join(
        (
            _OFFSET_AND_EPOCH.pack(VALUE_VERSION, committed.offset, committed.leader_epoch),
            encode_unsigned(len(metadata) + 1),
            metadata,
            _TIMESTAMP.pack(committed.commit_timestamp),
            _tags(committed.topic_id),
        )
    )


def _tags(topic_id: bytes) -> bytes:
    return b"\0" if topic_id == NO_TOPIC_ID else b"\x01\x00\x10" + topic_id


def key_version(key: bytes) -> int:
    """The int16 at the start of every key of `__consumer_offsets`. ValueError for a shorter key."""
    if len(key) < 2:
        raise ValueError("a key of __consumer_offsets without its version")
    return int(_INT16.unpack_from(key)[0])


def decode_key(key: bytes) -> tuple[str, str, int]:
    """Group, topic and partition of a key of version 0 or 1. ValueError when the key is too short."""
    try:
        (group_bytes,) = _LENGTH.unpack_from(key, 2)
        topic_at = 4 + group_bytes + 2
        (topic_bytes,) = _LENGTH.unpack_from(key, topic_at - 2)
        end = topic_at + topic_bytes
        (partition,) = _INT32.unpack_from(key, end)
    except _struct_error as error:
        raise ValueError(_MALFORMED) from error
    return key[4 : 4 + group_bytes].decode(), key[topic_at:end].decode(), partition


def decode_change(key: bytes, value: bytes | None) -> OffsetCommits | OffsetRemovals:
    """What a record of such a key changes. ValueError when it cannot be decoded."""
    group_id, topic, partition = decode_key(key)
    if value is None:
        return OffsetRemovals(group_id, ((topic, partition),))
    return OffsetCommits(group_id, {intern(topic): {partition: decode_value(value)}})


def decode_value(value: bytes) -> CommittedOffset:
    """Decode a value of version 0-4. ValueError for another version, or when the value is too short."""
    try:
        (version,) = _INT16.unpack_from(value)
        if version == 4:
            _, offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(value)
            length, position = value[14], 15
            if length > 127:
                length, position = _unsigned_varint(value, 14)
            end = position + length - 1
            metadata = value[position:end].decode()
            (timestamp,) = _TIMESTAMP.unpack_from(value, end)
            topic_id = _topic_id_tag(value, end + 8) if value[end + 8] else NO_TOPIC_ID
            return CommittedOffset(offset, leader_epoch, metadata, timestamp, -1, topic_id)
        if version == 3:
            _, offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(value)
            metadata, position = _string(value, 14)
        elif 0 <= version <= 2:
            _, offset = _OFFSET.unpack_from(value)
            leader_epoch = -1
            metadata, position = _string(value, 10)
        else:
            raise ValueError(f"version {version} of an offset value is not known")
        (timestamp,) = _TIMESTAMP.unpack_from(value, position)
        expires = int(_TIMESTAMP.unpack_from(value, position + 8)[0]) if version == 1 else -1
    except (IndexError, _struct_error) as error:
        raise ValueError(_MALFORMED) from error
    return CommittedOffset(offset, leader_epoch, metadata, timestamp, expires)


def _string(data: bytes, position: int) -> tuple[str, int]:
    if len(data) < position + 2:
        raise ValueError(_MALFORMED)
    (length,) = _INT16.unpack_from(data, position)
    end = position + 2 + length
    if length < 0 or len(data) < end:
        raise ValueError(_MALFORMED)
    return data[position + 2 : end].decode(), end


def _unsigned_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _topic_id_tag(value: bytes, position: int) -> bytes:
    count, position = _unsigned_varint(value, position)
    for _ in range(count):
        tag, position = _unsigned_varint(value, position)
        size, position = _unsigned_varint(value, position)
        if tag == 0 and size == 16 and len(value) >= position + 16:
            return value[position : position + 16]
        position += size
    return NO_TOPIC_ID
