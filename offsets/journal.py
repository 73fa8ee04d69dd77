"""The records of `__offset_journal`: every change of a committed offset, by whom, from where, and why.

A change is in the partition with the number that its group has in `__consumer_offsets`. A record holds what one request
(or one expiry, …) has changed in one group. Its key is the group's name. Strings are an unsigned length and UTF-8;
numbers are big-endian. The value of version 0:

    int8 version (0), int8 kind: 1 changes, 2 a gap

    changes:
        int16 number of topics
        int64 position: the offset of the first change in `__consumer_offsets`; the others follow it one by one. (In a
              transaction all have that of its control record. -1: not known.)
        int64 time of the change, in milliseconds
        int8 cause (`Cause`), int32 generation (-1: none)
        string16 client id, string16 host, string16 principal, string16 member id
        for each topic: string16 name, 16 bytes topic id (zeros: not known), int32 number of partitions, and then of all
              its partitions first int32 partition, then int64 old offset and int32 old leader epoch, then int64 new
              offset and int32 new leader epoch. (So a writer copies what is old from the record before.)
        int32 number of texts, and the texts: int32 which partition (counted over all topics, from 0), int8 0 old or
              1 new metadata, string32

    a gap (its key is empty): changes that are not in the journal. A time of the first of 0: it is not known
        int64 position of the first, int64 position after the last (-1: not known)
        int64 time of the first, int64 time of the last, int64 how many (-1: not known), string16 why

An offset of -1 means that there is none: the partition had no offset before, or has none since. -2 (only as an old
offset): it is not known. Records of the same position in one partition repeat each other: a lost answer can have the
journal written twice, and a reader takes the first of them (`without_repetitions`).

From version N to N + 1: readers keep what reads N, and raise `UnknownVersionError` for a later one; writers write N + 1
only when every broker of the cluster reads it. A field is never given another meaning within a version.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from struct import error as _struct_error
from typing import Final

from barnabas.cluster.security.acls import ANONYMOUS
from barnabas.offsets.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    GroupOffsets,
    TopicPartition,
    encode_positions,
    int32s,
    native_packing,
    positions_layout,
)
from barnabas.protocol.named_tuple import NamedTuple

VERSION: Final = 0
CHANGES: Final = 1  # the kinds
GAP: Final = 2
NO_OFFSET: Final = -1
NOT_KNOWN: Final = -2
NO_POSITION: Final = -1
ROWS_MAX: Final = 2_000  # of one record; a larger commit has several
_KEPT_LENGTH_MAX: Final = 512  # characters of a client's names: hostile ones have up to 32 KiB, and new ones each time
TEXT_BYTES_MAX: Final = 200_000  # metadata in one record, unless one row has more

_START: Final = Struct(">bb")
_HEAD: Final = Struct(">bbhqq")
_ORIGIN: Final = Struct(">bi")
_LENGTH: Final = Struct(">H")
_COUNT: Final = Struct(">i")
_ONE_ROW: Final = Struct(">i iqiqi i")  # number of partitions, the partition, no texts
_PARTITION_BYTES: Final = 4
_ROW_BYTES: Final = 28  # a partition, and two positions
_TEXT: Final = Struct(">ibi")
_GAP: Final = Struct(">bbqqqqq")
_TOPIC_ID_BYTES: Final = 16
_NO_TEXTS: Final = _COUNT.pack(0)


class Cause(IntEnum):
    """Why an offset changed."""

    COMMIT = 0  # by a member, or by a client that assigns its partitions itself
    RESET = 1  # by an admin, in a group without members
    LIVE_RESET = 2  # by an admin, in a group with members
    EXPIRY = 3
    DELETION = 4  # OffsetDelete or DeleteGroups
    TOPIC_GONE = 5
    TRANSACTION = 6  # its control record
    RECOVERED = 7  # found in `__consumer_offsets` after a crash or a change of leader; who did it is not known

    @property
    def words(self) -> str:
        """As people write it."""
        return self.name.lower().replace("_", " ")


class UnknownVersionError(ValueError):
    """A record of a later version than this code reads."""


class Row(NamedTuple):
    """What happened to one partition. Offset -1: there was, or is, none; old offset -2: not known."""

    topic: str
    topic_id: bytes
    partition: int
    old_offset: int
    old_leader_epoch: int
    old_metadata: str
    new_offset: int
    new_leader_epoch: int
    new_metadata: str


class Changes(NamedTuple):
    """One record: what one request has changed in one group."""

    group_id: str
    position: int
    time_ms: int
    cause: Cause
    generation: int
    client_id: str
    host: str
    principal: str
    member_id: str
    rows: list[Row]

    @property
    def end_position(self) -> int:
        """The offset in `__consumer_offsets` after the last change."""
        return self.position + (1 if self.cause is Cause.TRANSACTION else len(self.rows))


class Gap(NamedTuple):
    """Changes that the journal does not have. Positions and count are -1 where they are not known."""

    position: int
    end_position: int
    first_ms: int
    last_ms: int
    change_count: int
    why: str


# ---- writing ----


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(data)) + data


def encode_origin(
    cause: Cause,
    generation: int = -1,
    client_id: str | None = "",
    host: str = "",
    principal: str = ANONYMOUS,
    member_id: str = "",
) -> bytes:
    """Who changes offsets, and why, as the records hold it. A client commits often, so its bytes are kept."""
    name = client_id or ""
    encode = _kept_origin if len(name) + len(principal) + len(member_id) <= _KEPT_LENGTH_MAX else _origin
    return encode(cause, generation, name, host, principal, member_id)


def _origin(cause: Cause, generation: int, *texts: str) -> bytes:
    return _ORIGIN.pack(cause, generation) + b"".join(map(_string, texts))


_kept_origin: Final = lru_cache(maxsize=4096)(_origin)


UNNAMED: Final = encode_origin(Cause.COMMIT)


@lru_cache(maxsize=4096)
def _start_of_topic(topic: str, topic_id: bytes) -> bytes:
    return _string(topic) + topic_id


def one_change(
    origin: bytes,
    position: int,
    time_ms: int,
    topic: str,
    topic_id: bytes,
    partition: int,
    old_offset: int,
    old_leader_epoch: int,
    new_offset: int,
    new_leader_epoch: int,
    /,
) -> bytes:
    """The value of a record with one row without metadata, as most commits have it. Its twin in C: native/packing.c."""
    head = _HEAD.pack(VERSION, CHANGES, 1, position, time_ms)
    row = _ONE_ROW.pack(1, partition, old_offset, old_leader_epoch, new_offset, new_leader_epoch, 0)
    return b"".join((head, origin, _start_of_topic(topic, topic_id), row))


encode_one: Final = one_change if native_packing is None else native_packing.one_change


def encode_plain(
    origin: bytes, position: int, time_ms: int, topics: Iterable[tuple[str, bytes, bytes, bytes, bytes]]
) -> bytes:
    """The value of a record without metadata. Of each topic: name, id, and as the record holds them the partitions, the
    old positions and the new ones.
    """
    parts = [b"", origin]
    count = 0
    for topic, topic_id, partitions, old, new in topics:
        rows = _COUNT.pack(len(partitions) // _PARTITION_BYTES)
        parts += (_start_of_topic(topic, topic_id), rows, partitions, old, new)
        count += 1
    parts[0] = _HEAD.pack(VERSION, CHANGES, count, position, time_ms)
    parts.append(_NO_TEXTS)
    return b"".join(parts)


def encode_rows(
    origin: bytes, position: int, time_ms: int, rows: Sequence[Row], *, are_consecutive: bool = True
) -> Iterator[tuple[bytes, int]]:
    """The values of as many records as the rows need, and how many rows each has.

    `are_consecutive`: each row has a record of its own in `__consumer_offsets`, one after the other.
    """
    start = 0
    while start < len(rows):
        text_bytes = 0
        end = start
        while end < len(rows) and end - start < ROWS_MAX and text_bytes < TEXT_BYTES_MAX:
            text_bytes += len(rows[end].old_metadata) + len(rows[end].new_metadata)
            end += 1
        yield _encode_rows(origin, position + (start if are_consecutive else 0), time_ms, rows[start:end]), end - start
        start = end


def _encode_rows(origin: bytes, position: int, time_ms: int, rows: Sequence[Row]) -> bytes:
    parts = [b"", origin]
    texts: list[bytes] = []
    text_count = topics = index = 0
    while index < len(rows):
        topic, topic_id = rows[index][:2]
        partitions: list[int] = []
        old: list[int] = []
        new: list[int] = []
        while index < len(rows) and rows[index][:2] == (topic, topic_id):
            row = rows[index]
            partitions.append(row.partition)
            old += (row.old_offset, row.old_leader_epoch)
            new += (row.new_offset, row.new_leader_epoch)
            for side, text in enumerate((row.old_metadata, row.new_metadata)):
                if text:
                    data = text.encode()
                    texts += (_TEXT.pack(index, side, len(data)), data)
                    text_count += 1
            index += 1
        count = len(partitions)
        parts += (_start_of_topic(topic, topic_id), _COUNT.pack(count), int32s(count).pack(*partitions))
        parts += (encode_positions(old), encode_positions(new))
        topics += 1
    parts[0] = _HEAD.pack(VERSION, CHANGES, topics, position, time_ms)
    return b"".join((*parts, _COUNT.pack(text_count), *texts))


def encode_gap(gap: Gap) -> bytes:
    return _GAP.pack(VERSION, GAP, *gap[:5]) + _string(gap.why)


def key_of(group_id: str) -> bytes:
    return group_id.encode("utf-8", "surrogatepass")


# ---- reading ----


def decode(key: bytes | None, value: bytes | None) -> Changes | Gap:
    """Read a record. UnknownVersionError for one of a later version, ValueError for one that is damaged."""
    if value is None or len(value) < _START.size:
        raise ValueError("a record of the offset journal without a value")
    version, kind = _START.unpack_from(value)
    if version != VERSION:
        raise UnknownVersionError(f"version {version} of a record of the offset journal is not known")
    try:
        if kind == CHANGES:
            return _decode_changes(key or b"", value)
        if kind == GAP:
            _, _, position, end_position, first_ms, last_ms, count = _GAP.unpack_from(value)
            why, end = _text_at(value, _GAP.size)
            _at_the_end(value, end)
            return Gap(position, end_position, first_ms, last_ms, count, why)
    except (_struct_error, UnicodeDecodeError) as error:
        raise ValueError(f"a damaged record of the offset journal: {error}") from error
    raise ValueError(f"a record of the offset journal of kind {kind}")


def _decode_changes(key: bytes, value: bytes) -> Changes:
    _, _, topics, position, time_ms = _HEAD.unpack_from(value)
    at = _HEAD.size
    cause, generation = _ORIGIN.unpack_from(value, at)
    at += _ORIGIN.size
    client_id, at = _text_at(value, at)
    host, at = _text_at(value, at)
    principal, at = _text_at(value, at)
    member_id, at = _text_at(value, at)
    rows: list[Row] = []
    for _ in range(topics):
        topic, at = _text_at(value, at)
        topic_id = value[at : at + _TOPIC_ID_BYTES]
        at += _TOPIC_ID_BYTES
        count, at = _count_at(value, at)
        if count * _ROW_BYTES > len(value) - at:
            raise ValueError("a damaged record of the offset journal: more partitions than bytes")
        positions = positions_layout(count)
        partitions = int32s(count).unpack_from(value, at)
        old = positions.unpack_from(value, at + count * _PARTITION_BYTES)
        new = positions.unpack_from(value, at + count * _PARTITION_BYTES + positions.size)
        at += count * _ROW_BYTES
        of_each = zip(partitions, old[::2], old[1::2], new[::2], new[1::2], strict=True)
        rows += [
            Row(topic, topic_id, partition, old_offset, old_epoch, "", new_offset, new_epoch, "")
            for partition, old_offset, old_epoch, new_offset, new_epoch in of_each
        ]
    count, at = _count_at(value, at)
    for _ in range(count):
        index, side, length = _TEXT.unpack_from(value, at)
        at += _TEXT.size
        if not 0 <= index < len(rows) or not 0 <= length <= len(value) - at or side not in (0, 1):
            raise ValueError("a damaged record of the offset journal: a text of no row")
        text = value[at : at + length].decode()
        at += length
        row = rows[index]
        rows[index] = row._replace(new_metadata=text) if side else row._replace(old_metadata=text)
    _at_the_end(value, at)
    try:
        why = Cause(cause)
    except ValueError:
        raise ValueError(f"a damaged record of the offset journal: cause {cause}") from None
    group_id = key.decode("utf-8", "surrogatepass")
    return Changes(group_id, position, time_ms, why, generation, client_id, host, principal, member_id, rows)


def _count_at(value: bytes, at: int) -> tuple[int, int]:
    (count,) = _COUNT.unpack_from(value, at)
    if count < 0:
        raise ValueError("a damaged record of the offset journal: a negative number")
    return count, at + _COUNT.size


def _text_at(value: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(value, at)
    end = at + _LENGTH.size + length
    if end > len(value):
        raise ValueError("a damaged record of the offset journal: it ends too early")
    return value[at + _LENGTH.size : end].decode("utf-8", "surrogatepass"), end


def _at_the_end(value: bytes, at: int) -> None:
    if at != len(value):
        raise ValueError("a damaged record of the offset journal: bytes are left over")


def without_repetitions(records: Iterable[Changes | Gap]) -> Iterator[Changes | Gap]:
    """The records of one partition, without those that were written twice."""
    end_position = NO_POSITION
    for record in records:
        if isinstance(record, Changes) and record.position != NO_POSITION:
            if record.end_position <= end_position and record.cause is not Cause.TRANSACTION:
                continue
            end_position = max(end_position, record.end_position)
        elif isinstance(record, Gap) and record.end_position != NO_POSITION:
            end_position = record.end_position  # also back, where `__consumer_offsets` has lost its end
        yield record


# ---- what a change of the table looks like ----


def rows_of_commit(
    known: GroupOffsets,
    offsets: GroupOffsets,
    topic_id_of: Callable[[str], bytes],
    *,
    are_known: bool = True,
) -> list[Row]:
    """The rows of a commit in a group that has committed what is `known`.

    `are_known` False: where that has no offset, the old one is not known.
    """
    none = CommittedOffset(NO_OFFSET if are_known else NOT_KNOWN)
    rows = []
    for topic, partitions in offsets.items():
        before = known.get(topic, {})
        for partition, new in partitions.items():
            old = before.get(partition, none)
            topic_id = new.topic_id if new.topic_id != NO_TOPIC_ID else topic_id_of(topic)
            rows.append(
                Row(
                    topic,
                    topic_id,
                    partition,
                    *(old.offset, old.leader_epoch, old.metadata),
                    *(new.offset, new.leader_epoch, new.metadata),
                )
            )
    return rows


def rows_of_removal(
    known: GroupOffsets,
    partitions: Iterable[TopicPartition],
    topic_id_of: Callable[[str], bytes],
    *,
    are_known: bool = True,
) -> list[Row]:
    """The rows of offsets that are removed."""
    none = CommittedOffset(NO_OFFSET if are_known else NOT_KNOWN)
    rows = []
    for topic, partition in partitions:
        old = known.get(topic, {}).get(partition, none)
        topic_id = old.topic_id if old.topic_id != NO_TOPIC_ID else topic_id_of(topic)
        rows.append(Row(topic, topic_id, partition, old.offset, old.leader_epoch, old.metadata, NO_OFFSET, -1, ""))
    return rows
