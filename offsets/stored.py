"""Committed offsets as they stand in the log, which are decoded when somebody asks for them.

A coordinator loads millions of offsets, and nobody asks for most of them. What coordinators write has one form: the
offsets of one commit for one topic are records of one size, which differ only in the offset delta, the partition and
the numbers of the value. Such a run is checked as a whole, byte by byte (`run_end`). After that decoding cannot fail,
so it can wait. Anything else (expiry times, tombstones, groups, delete horizons) is no run, and is decoded at once,
record by record.

What is committed while the broker runs is kept in the same form, because it takes a third of the memory: the records of
a commit without what is before their key (`run_of`). They follow one another, so no offset delta is needed.

Runs have key version 1, and value version 4 (with or without a topic id) or 3 (of Kafka). Metadata is short, and the
same in all records.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from sys import intern
from typing import Final, TypeAlias

from barnabas.offsets.records import (
    NO_TOPIC_ID,
    PARTITION_BYTES,
    POSITION_BYTES,
    CommittedOffset,
    PackedTopic,
    TopicColumns,
    int32s,
    native_packing,
)
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.rows import split
from barnabas.protocol.varint import encode_signed

_KEY_BYTES_MIN: Final = 2 + 2 + 2 + 4  # version, group, topic, partition, without names
_SMALLEST_VALUE_BYTES: Final = (
    24  # version, offset, leader epoch, time; length of metadata and tags, or only a longer length
)
_TOPIC_ID_BYTES: Final = 3 - 1 + 16  # more than no tags: number of tags, tag, size, id
_NO_POSITION: Final = b"\xff" * POSITION_BYTES
_METADATA_BYTES_MAX: Final = 126  # its length is a varint of one byte


class _Kind(NamedTuple):
    """Which bits of a byte are the same in all records of a layout, and which in those of a run."""

    in_layout: int
    in_run: int


_FIXED: Final = _Kind(0xFF, 0xFF)
_SHARED: Final = _Kind(0, 0xFF)
_FREE: Final = _Kind(0, 0)
_DELTA: Final = _Kind(0x80, 0x80)  # whether the varint goes on
_Parts: TypeAlias = list[tuple[bytes, _Kind]]


class _Form(NamedTuple):
    """A kind of values. `metadata_bytes` of all values of a run are the same, and so is the topic id."""

    version: int
    metadata_bytes: int
    has_topic_id: bool

    @property
    def size_bytes(self) -> int:
        """The size of such a value."""
        return _SMALLEST_VALUE_BYTES + self.metadata_bytes + (_TOPIC_ID_BYTES if self.has_topic_id else 0)

    def parts(self) -> _Parts:
        """Such a value."""
        tags: _Parts = []
        if self.has_topic_id:
            tags = [(b"\1\0\x10", _FIXED), (bytes(16), _SHARED)]
        elif self.version == 4:
            tags = [(b"\0", _FIXED)]
        length = self.metadata_bytes.to_bytes(2, "big") if self.version == 3 else bytes([self.metadata_bytes + 1])
        metadata = [(length, _FIXED), (bytes(self.metadata_bytes), _SHARED)]
        return [(bytes([0, self.version]), _FIXED), (bytes(POSITION_BYTES), _FREE), *metadata, (bytes(8), _FREE), *tags]

    @property
    def numbers(self) -> str:
        """Where offset, leader epoch and commit time are, as a struct."""
        if self.version == 3:
            return f"2x q i {2 + self.metadata_bytes}x q"
        tags = _TOPIC_ID_BYTES + 1 if self.has_topic_id else 1
        return f"2x q i {1 + self.metadata_bytes}x q {tags}x"


class Layout:
    """The layout of the records of a run. `numbers` reads offset delta, partition, offset, leader epoch, commit time;
    `positions` reads partition, offset, commit time. `delta_bytes` 0: the records begin with the length of their key,
    so `numbers` reads no delta.
    """

    def __init__(self, delta_bytes: int, key_start_bytes: int, form: _Form) -> None:
        key_length = encode_signed(key_start_bytes + 4)
        value_length = encode_signed(form.size_bytes)
        behind_delta = len(key_length) + key_start_bytes + 4 + len(value_length) + form.size_bytes + 1
        length = encode_signed(2 + delta_bytes + behind_delta)
        self.delta_bytes = delta_bytes
        self.parts: _Parts = []
        start = 0
        if delta_bytes:
            start = len(length) + 2
            self.parts += [(length + b"\0\0", _FIXED)]  # attributes, timestamp delta
            self.parts += [(b"\x80\0"[-delta_bytes:], _DELTA), (key_length, _FIXED), (bytes(key_start_bytes), _SHARED)]
            self.parts += [(bytes(PARTITION_BYTES), _FREE), (value_length, _FIXED), *form.parts(), (b"\0", _FIXED)]
        self.template = b"".join(part for part, _ in self.parts)
        self.in_layout = b"".join(bytes([kind.in_layout]) * len(part) for part, kind in self.parts)
        self.in_run = b"".join(bytes([kind.in_run]) * len(part) for part, kind in self.parts)
        to_partition = len(key_length) + key_start_bytes
        delta = ("", "B", "H")[delta_bytes]
        behind = f"{len(value_length)}x"
        self.numbers = Struct(f">{start}x {delta} {to_partition}x i {behind} {form.numbers} x")
        positions = form.numbers.replace(" i ", " 4x ")
        self.positions = Struct(f">{start + delta_bytes + to_partition}x i {behind} {positions} x")
        self.key_at = start + delta_bytes + len(key_length)
        self.partition_at = self.key_at + key_start_bytes
        self.offset_at = self.partition_at + 4 + len(value_length) + 2
        self.metadata_at = self.offset_at + POSITION_BYTES + (2 if form.version == 3 else 1)
        self.metadata_end = self.metadata_at + form.metadata_bytes
        self.topic_id_at = self.metadata_end + 8 + 3 if form.has_topic_id else -1
        self.size_bytes = start + delta_bytes + behind_delta
        assert self.numbers.size == self.positions.size == self.size_bytes


_layout = lru_cache(maxsize=1024)(Layout)


@lru_cache(maxsize=1024)
def _pattern(layout: Layout) -> re.Pattern[bytes]:
    first = others = b""
    for number, (part, kind) in enumerate(layout.parts):
        if kind is _SHARED:
            first += rb"(?P<p%d>.{%d})" % (number, len(part))
            others += rb"(?P=p%d)" % number
            continue
        if kind is _FIXED:
            same = re.escape(part)
        elif kind is _FREE:
            same = rb".{%d}" % len(part)
        else:
            same = b"".join(rb"[\x80-\xff]" if byte else rb"[\x00-\x7f]" for byte in part)
        first, others = first + same, others + same
    return re.compile(first + rb"(?:" + others + rb")*+", re.DOTALL)


def run_end(layout: Layout, data: bytes, position: int) -> int:
    """Where the run of records ends that begins at `position`: there, if no record of this layout does. Its twin in C:
    native/packing.c.
    """
    match = _pattern(layout).match(data, position)
    return position if match is None else match.end()


@lru_cache(maxsize=256)
def _cut(size: int, partition_at: int, offset_at: int, count: int) -> Struct:
    """Takes from `count` records one after the other the partition, and the offset with the leader epoch."""
    between = offset_at - partition_at - PARTITION_BYTES
    behind = size - offset_at - POSITION_BYTES
    return Struct(">" + f"{partition_at}x {PARTITION_BYTES}s {between}x {POSITION_BYTES}s {behind}x" * count)


def found_rows(
    data: bytes, size: int, partition_at: int, offset_at: int, partitions: Sequence[int], end: bytes, /
) -> bytes:
    """A row for each of these partitions: it, its position in `data` (or -1, -1), and `end`. `data`: records of this
    size, with the partition and the position at these places. Its twin in C: native/packing.c.
    """
    found = _cut(size, partition_at, offset_at, len(data) // size).unpack(data)
    known = dict(zip(found[::2], found[1::2], strict=True))
    asked = split(int32s(len(partitions)).pack(*partitions), PARTITION_BYTES)
    rows = [b"", b"", end] * len(asked)
    rows[0::3] = asked
    rows[1::3] = map(known.get, asked, repeat(_NO_POSITION))
    return b"".join(rows)


@lru_cache(maxsize=256)
def _differ(column: bytes) -> bool:
    """Whether all bytes differ: the last ones of the partitions. Most groups have the same partitions as others."""
    return len(set(column)) == len(column)


class StoredRun:
    """Offsets of one group for one topic, each partition once."""

    __slots__ = ("_base_offset", "_data", "_layout", "_metadata", "_oldest_ms", "_topic_id", "topic")

    def __init__(
        self, layout: Layout, base_offset: int, data: bytes, topic: str, topic_id: bytes, metadata: str
    ) -> None:
        self._layout = layout
        self._base_offset = base_offset
        self._data = data
        self._topic_id = topic_id
        self._metadata = metadata
        self._oldest_ms: int | None = None
        self.topic = topic

    def __len__(self) -> int:
        return len(self._data) // self._layout.size_bytes

    def positions(self) -> list[tuple[int, int, int]]:
        """Each partition, its committed offset, and when it was committed."""
        return list(self._layout.positions.iter_unpack(self._data))

    def offsets(self) -> dict[int, CommittedOffset]:
        """The offsets by partition."""
        base_offset, topic_id, metadata = self._base_offset, self._topic_id, self._metadata
        offsets: dict[int, CommittedOffset] = {}
        time = -1  # offsets of one commit share one number
        if not self._layout.delta_bytes:
            for partition, offset, leader_epoch, commit_timestamp in self._layout.numbers.iter_unpack(self._data):
                if commit_timestamp != time:
                    time = commit_timestamp
                offsets[partition] = CommittedOffset(
                    offset, leader_epoch, metadata, time, -1, topic_id, base_offset + len(offsets)
                )
            return offsets
        is_short = self._layout.delta_bytes == 1
        for delta, partition, offset, leader_epoch, commit_timestamp in self._layout.numbers.iter_unpack(self._data):
            if not is_short:
                delta = delta >> 8 & 0x7F | (delta & 0xFF) << 7
            record_offset = base_offset + (delta >> 1 ^ -(delta & 1))
            if commit_timestamp != time:
                time = commit_timestamp
            offsets[partition] = CommittedOffset(offset, leader_epoch, metadata, time, -1, topic_id, record_offset)
        return offsets

    def rows(self, partitions: Sequence[int], topic_id: bytes, end: bytes) -> bytes | None:
        """The rows of these partitions in an answer: each with offset and leader epoch, or -1, and with the same end.

        None: they cannot be made so, because there is metadata, or it is another topic.
        """
        if self._metadata or (topic_id != NO_TOPIC_ID and self._topic_id not in (NO_TOPIC_ID, topic_id)):
            return None
        layout = self._layout
        of_run = found_rows if native_packing is None else native_packing.found_rows
        return of_run(self._data, layout.size_bytes, layout.partition_at, layout.offset_at, partitions, end)

    def columns(self) -> TopicColumns | None:
        """What the journal needs; None: the offsets have metadata."""
        if self._metadata:
            return None
        layout = self._layout
        found = _cut(layout.size_bytes, layout.partition_at, layout.offset_at, len(self)).unpack(self._data)
        return TopicColumns(self.topic, self._topic_id, b"".join(found[::2]), b"".join(found[1::2]))

    @property
    def oldest_ms(self) -> int:
        """When the oldest of the offsets was committed. None of them has an expiry time of its own."""
        if self._oldest_ms is None:
            self._oldest_ms = min(row[2] for row in self.positions())
        return self._oldest_ms

    @property
    def is_distinct(self) -> bool:
        """Whether each partition is there once."""
        layout = self._layout
        count = len(self)
        if _differ(self._data[layout.partition_at + 3 :: layout.size_bytes]):
            return True
        return len({partition for partition, _, _ in self.positions()}) == count

    def replaces(self, older: "StoredRun") -> bool:
        """Whether this run of the same topic has the same partitions, in the same order."""
        mine, other = self._layout, older._layout
        if len(self) != len(older):
            return False
        data, size, at = self._data, mine.size_bytes, mine.partition_at
        other_data, other_size, other_at = older._data, other.size_bytes, other.partition_at
        return (  # byte by byte, the last one first
            data[at + 3 :: size] == other_data[other_at + 3 :: other_size]
            and data[at + 2 :: size] == other_data[other_at + 2 :: other_size]
            and data[at + 1 :: size] == other_data[other_at + 1 :: other_size]
            and data[at::size] == other_data[other_at::other_size]
        )

    def is_disjoint(self, other: "StoredRun") -> bool:
        """Whether no partition of another run of the same topic is in this one."""
        return {row[0] for row in self.positions()}.isdisjoint(row[0] for row in other.positions())


def run_of(packed: PackedTopic, record_offset: int) -> StoredRun:
    """The offsets of a commit for one topic, whose first record has this offset in the log."""
    topic, topic_id, key_start_bytes, data = packed
    return StoredRun(_packed_layout(key_start_bytes, topic_id == NO_TOPIC_ID), record_offset, data, topic, topic_id, "")


@lru_cache(maxsize=1024)
def _packed_layout(key_start_bytes: int, is_without_id: bool) -> Layout:
    return _layout(0, key_start_bytes, _Form(4, 0, has_topic_id=not is_without_id))


class Splitter:
    """Splits batches into runs. It tries the layout of the run before first, because it is usually the same."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Layout | None = None

    def runs(self, data: bytes, base_offset: int, record_count: int) -> list[tuple[str, StoredRun]] | None:
        """The runs of a batch's unpacked records, each with its group; None: the records are not all in runs."""
        found: list[tuple[str, StoredRun]] = []
        position, end = 0, len(data)
        while position < end:
            layout = self._last
            stop = position if layout is None else _run_end(layout, data, position)
            if layout is None or stop == position:
                layout = self._last = _layout_at(data, position)
                stop = position if layout is None else _run_end(layout, data, position)
                if layout is None or stop == position:
                    return None
            records = data[position:stop]
            key_start = records[layout.key_at : layout.partition_at]
            topic_at = 4 + int.from_bytes(key_start[2:4], "big") + 2
            topic_bytes = int.from_bytes(key_start[topic_at - 2 : topic_at], "big")
            if key_start[:2] != b"\0\1" or topic_at + topic_bytes != len(key_start):
                self._last = None
                return None
            id_at = layout.topic_id_at
            topic_id = NO_TOPIC_ID if id_at < 0 else records[id_at : id_at + len(NO_TOPIC_ID)]
            try:
                group_id, topic = key_start[4 : topic_at - 2].decode(), intern(key_start[topic_at:].decode())
                metadata = records[layout.metadata_at : layout.metadata_end].decode()
            except UnicodeDecodeError:
                return None
            run = StoredRun(layout, base_offset, records, topic, topic_id, metadata)
            if not run.is_distinct:
                return None
            record_count -= len(run)
            found.append((group_id, run))
            position = stop
        return found if not record_count else None


def _run_end(layout: Layout, data: bytes, position: int) -> int:
    if native_packing is None:
        return run_end(layout, data, position)
    return native_packing.run_end(data, position, layout.template, layout.in_layout, layout.in_run)


def _layout_at(data: bytes, position: int) -> Layout | None:
    """The layout that the record at `position` may have: its match is checked. None: it has none."""
    try:
        _, at = _length(data, position)
        at += 2
        delta_bytes = 1 if data[at] < 128 else 2
        key_bytes, at = _length(data, at + delta_bytes)
        value_bytes, at = _length(data, at + key_bytes)
        version = data[at + 1]
        if version == 4:
            metadata_bytes = data[at + 14] - 1
            has_topic_id = data[at + 15 + metadata_bytes + 8] > 0
        else:
            metadata_bytes = int.from_bytes(data[at + 14 : at + 16], "big")
            has_topic_id = False
    except IndexError:
        return None
    form = _Form(version, metadata_bytes, has_topic_id)
    if version not in (3, 4) or not 0 <= metadata_bytes <= _METADATA_BYTES_MAX or form.size_bytes != value_bytes:
        return None
    return None if key_bytes < _KEY_BYTES_MIN else _layout(delta_bytes, key_bytes - 4, form)


def _length(data: bytes, position: int) -> tuple[int, int]:
    """A length of up to two bytes, and where it ends. A longer one makes a layout that does not match."""
    length = data[position]
    if length < 128:
        return length >> 1, position + 1
    return (length & 127 | data[position + 1] << 7) >> 1, position + 2
