"""Offset records of `__consumer_offsets`: key versions 0 and 1, value versions 0-4, in Kafka's binary format.

Key: int16 version, group, topic, int32 partition. Value: int16 version, then
0: offset, metadata, timestamp; 1: offset, metadata, commit timestamp, expire timestamp; 2: offset, metadata, commit
timestamp; 3: offset, leader epoch, metadata, commit timestamp; 4: as 3 in flexible encoding with tag 0 = topic id.
A null value is a tombstone. Written: key 1 and value 4, or value 1 where the client gave a retention time.
Each commit writes these records, so they are packed by hand; tests compare them with the generated codec.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from struct import Struct
from struct import error as _struct_error
from sys import intern
from typing import Final, cast

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.record_batch import NO_HEADERS, SHORT_SIGNED, PlainRecords, start_of_record
from barnabas.protocol.rows import split
from barnabas.protocol.varint import encode_unsigned

try:
    from barnabas.offsets import native_packing as native_packing
except ImportError:
    native_packing = None  # type: ignore[assignment]  # the pure build

_native_record: Final = None if native_packing is None else native_packing.offset_record
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
_PLAIN_VALUE: Final = Struct(">hqiBq")  # of version 4 without metadata and tags; in the middle 1, the length of none
_VALUE_BYTES_MIN: Final = _PLAIN_VALUE.size
_KEY_VERSION_1: Final = _INT16.pack(1)
_VALUE_START: Final = _INT16.pack(VALUE_VERSION)
_POSITION: Final = Struct(">qi")
PARTITION_BYTES: Final = 4
POSITION_BYTES: Final = _POSITION.size
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

    @property
    def row_count(self) -> int:
        return len(self.partitions) // PARTITION_BYTES

    def numbers(self) -> tuple[int, ...]:
        """The partitions."""
        return int32s(self.row_count).unpack(self.partitions)

    def offsets(self, time_ms: int) -> dict[int, CommittedOffset]:
        """The offsets as objects."""
        positions = zip(self.numbers(), _POSITION.iter_unpack(self.positions), strict=True)
        return {
            partition: CommittedOffset(offset, leader_epoch, "", time_ms, -1, self.topic_id)
            for partition, (offset, leader_epoch) in positions
        }


# What a commit says of each topic. As columns: offsets without metadata and expiry time, of one commit time.
CommittedTopics = dict[str, TopicColumns | dict[int, CommittedOffset]]

# A topic of a commit: its name, its id, how many bytes of a record's key are before the partition, and the records of
# its partitions, each from the length of its key on.
PackedTopic = tuple[str, bytes, int, bytes]


class OffsetCommits:
    """The offsets of one commit: a record for each partition. `origin`: who commits, as journal.py encodes it.

    `time_ms`: the commit time of the topics in columns.

    `packed`: the records once more, as the table and the journal take them (stored.py), and `columns`: what the journal
    takes of them. None for one offset, for more than `PACKED_MAX`, and where one has metadata or an expiry time.
    """

    __slots__ = ("_offsets", "columns", "count", "group_id", "origin", "packed", "time_ms", "topics")

    def __init__(
        self, group_id: str, topics: CommittedTopics | GroupOffsets, origin: bytes = b"", time_ms: int = -1
    ) -> None:
        self.group_id = group_id
        self.topics = cast(CommittedTopics, topics)
        self.origin = origin
        self.time_ms = time_ms
        self.count = 0
        for offsets in self.topics.values():
            self.count += offsets.row_count if isinstance(offsets, TopicColumns) else len(offsets)
        self._offsets: GroupOffsets | None = None
        self.packed: list[PackedTopic] | None = None
        self.columns: list[TopicColumns] | None = None

    def __repr__(self) -> str:
        return f"OffsetCommits({self.group_id!r}, {self.offsets!r})"

    @property
    def offsets(self) -> GroupOffsets:
        """The offsets as objects, always the same ones."""
        found = self._offsets
        if found is None:
            found = self._offsets = {
                topic: offsets.offsets(self.time_ms) if isinstance(offsets, TopicColumns) else offsets
                for topic, offsets in self.topics.items()
            }
        return found

    def partitions(self) -> Iterator[tuple[str, Iterable[int]]]:
        for topic, offsets in self.topics.items():
            yield topic, offsets.numbers() if isinstance(offsets, TopicColumns) else offsets

    def set_record_offset(self, record_offset: int) -> None:
        """Give all offsets this one: they have no records in the log."""
        for offsets in self.offsets.values():
            for committed in offsets.values():
                committed.record_offset = record_offset

    def append_to(self, records: PlainRecords) -> None:
        """Append the records. Those of a topic in columns are packed together."""
        if self.count > PACKED_MAX:
            self._append_in_parts(records)
            return
        packed: list[PackedTopic] = []
        columns: list[TopicColumns] = []
        is_packed = self.count > 1
        for topic, offsets in self.topics.items():
            found: TopicColumns | None = None
            if isinstance(offsets, TopicColumns):
                found = offsets
            else:
                if self.count > 1:
                    found = self._columns_of(topic, offsets)
                if found is None:
                    is_packed = False
                    for partition, committed in offsets.items():
                        _append_one(records, self.group_id, topic, partition, committed)
            if found is not None:
                packed.append(_append_columns(records, self.group_id, found, self.time_ms))
                columns.append(found)
        self.packed, self.columns = (packed, columns) if is_packed else (None, None)

    def _append_in_parts(self, records: PlainRecords) -> None:
        """Append very many records: packing keeps a table for each number of offsets, which must not be large."""
        for topic, offsets in self.offsets.items():
            left = iter(offsets.items())
            while part := dict(islice(left, PACKED_MAX)):
                OffsetCommits(self.group_id, {topic: part}).append_to(records)

    def _columns_of(self, topic: str, offsets: dict[int, CommittedOffset]) -> TopicColumns | None:
        """The offsets as columns; None: one has metadata or an expiry time, or the time or id of one is another."""
        topic_id = next(iter(offsets.values())).topic_id
        if self.time_ms < 0:  # of this commit no topic has come in columns
            self.time_ms = next(iter(offsets.values())).commit_timestamp
        positions: list[int] = []
        for committed in offsets.values():
            if (
                committed.metadata
                or committed.expire_timestamp >= 0
                or committed.topic_id != topic_id
                or committed.commit_timestamp != self.time_ms
            ):
                return None
            positions.append(committed.offset)
            positions.append(committed.leader_epoch)
        if len(offsets) == 1:
            return TopicColumns(topic, topic_id, _INT32.pack(*offsets), _POSITION.pack(*positions))
        return TopicColumns(topic, topic_id, int32s(len(offsets)).pack(*offsets), encode_positions(positions))


def _append_columns(records: PlainRecords, group_id: str, columns: TopicColumns, time_ms: int) -> PackedTopic:
    topic, topic_id, partitions, positions = columns
    of_columns = pack if native_packing is None else native_packing.offset_records
    part, data, key_start_bytes = of_columns(records.count, group_id, topic, topic_id, partitions, positions, time_ms)
    records.parts.append(part)
    records.count += columns.row_count
    return topic, topic_id, key_start_bytes, data


def pack(
    first_delta: int, group_id: str, topic: str, topic_id: bytes, partitions: bytes, positions: bytes, time_ms: int, /
) -> tuple[bytes, bytes, int]:
    """The records, the same from the length of the key on, and how many bytes of a key are before the partition.

    Its twin in C: native/packing.c.
    """
    key_start = _key_start(group_id, topic)
    tags = _tags(topic_id)
    before = SHORT_SIGNED[len(key_start) + PARTITION_BYTES] + key_start
    between = SHORT_SIGNED[_VALUE_BYTES_MIN + len(tags)] + _VALUE_START
    behind = b"\1" + _TIMESTAMP.pack(time_ms) + tags + NO_HEADERS  # 1: the length of no metadata
    count = len(partitions) // PARTITION_BYTES
    if count == 1:
        data = before + partitions + between + positions + behind
        delta = SHORT_SIGNED[first_delta]
        return start_of_record(len(delta) + len(data)) + delta + data, data, len(key_start)
    size = len(before) + PARTITION_BYTES + len(between) + POSITION_BYTES + len(behind)
    pieces = [b"", before, b"", between, b"", behind] * count
    pieces[0::6] = _starts(first_delta, count, size)
    pieces[2::6] = split(partitions, PARTITION_BYTES)
    pieces[4::6] = split(positions, POSITION_BYTES)
    part = b"".join(pieces)
    del pieces[0::6]
    return part, b"".join(pieces), len(key_start)


@lru_cache(maxsize=256)
def _starts(first_delta: int, count: int, size: int) -> list[bytes]:
    """What is before the lengths of keys, in records that have so many bytes from there on."""
    deltas = [SHORT_SIGNED[delta] for delta in range(first_delta, first_delta + count)]
    return [start_of_record(len(delta) + size) + delta for delta in deltas]


def _append_one(records: PlainRecords, group_id: str, topic: str, partition: int, committed: CommittedOffset) -> None:
    if _native_record is None or committed.metadata or committed.expire_timestamp >= 0:
        records.add(encode_key(group_id, topic, partition), encode_value(committed))
        return
    records.parts.append(
        _native_record(
            records.count,
            group_id,
            topic,
            committed.topic_id,
            partition,
            committed.offset,
            committed.leader_epoch,
            committed.commit_timestamp,
        )
    )
    records.count += 1


class PendingCommits:
    """The offsets of one commit in a producer's transaction: they count when the transaction is committed."""

    __slots__ = ("commits", "producer_id")

    def __init__(self, commits: OffsetCommits, producer_id: int) -> None:
        self.commits = commits
        self.producer_id = producer_id

    @property
    def count(self) -> int:
        return self.commits.count

    def append_to(self, records: PlainRecords) -> None:
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
        return len(self.partitions)

    def append_to(self, records: PlainRecords) -> None:
        """Append the tombstones."""
        for topic, partition in self.partitions:
            records.add(encode_key(self.group_id, topic, partition), None)


@lru_cache(maxsize=256)
def int32s(count: int) -> Struct:
    """The partitions of a topic."""
    return Struct(f">{count}i")


@lru_cache(maxsize=256)
def positions_layout(count: int) -> Struct:
    """The positions of a topic."""
    return Struct(">" + "qi" * count)


def encode_positions(offsets_and_epochs: Sequence[int]) -> bytes:
    """Positions of a topic: an offset, its leader epoch, the next offset, …"""
    return positions_layout(len(offsets_and_epochs) // 2).pack(*offsets_and_epochs)


def encode_key(group_id: str, topic: str, partition: int) -> bytes:
    return _key_start(group_id, topic) + _INT32.pack(partition)


def _key_start(group_id: str, topic: str) -> bytes:
    group = group_id.encode()
    name = topic.encode()
    return b"".join((_KEY_VERSION_1, _INT16.pack(len(group)), group, _INT16.pack(len(name)), name))


def encode_value(committed: CommittedOffset) -> bytes:
    """A value of version 4, or 1 if the client set an expiry time (OffsetCommit v2-v4)."""
    if not committed.metadata and committed.expire_timestamp < 0:
        value = _PLAIN_VALUE.pack(
            VALUE_VERSION, committed.offset, committed.leader_epoch, 1, committed.commit_timestamp
        )
        return value + _tags(committed.topic_id)
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
