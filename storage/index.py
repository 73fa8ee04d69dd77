"""The three index files of a segment, in Kafka's formats. What was needed once is kept in memory, as flat arrays.

Entries are added in memory. They reach the files in blocks, and at a roll, a flush or a close, because after a crash
the indexes are made again from the log anyway. The files are never preallocated. Kafka does that; if it did not close a
file, the zeros at its end are ignored.
"""

import itertools
import operator
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import closing
from struct import Struct
from typing import ClassVar, Final, Protocol

from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Disk, may_pass, read_file

TRANSACTION_ENTRY_BYTES: Final = 34
_WRITE_BLOCK_ENTRIES: Final = 512
INDEX_MEMORY_BYTES: Final = 32 << 20  # enough for 6 GB of log, with an entry every 4096 bytes
_IS_LITTLE: Final = sys.byteorder == "little"
_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
_TRANSACTION_ENTRY: Final = Struct(">hqqqq")
_TRANSACTION_FIELDS, _LAST_OFFSET_AT = 4, 2  # of AbortedTransaction


def _write_entries(disk: Disk, path: str, position: int, data: bytes) -> None:
    with closing(disk.open(path, create=True)) as file:
        size = file.size()
        if size == position + len(data) and file.read(position, len(data)) == data:
            return  # mostly so when recovery has made an index again: to read is far cheaper than to truncate
        if size > position:
            file.truncate(position)
        if data:
            file.write(position, data)


class _SparseIndex:
    """What the offset index and the time index share: entries of two rising numbers, one of which is an offset.

    Call `load` first. A subclass says how an entry lies in the file, which of its numbers is the offset, and what else
    must be true of all entries together.
    """

    __slots__ = ("_base_offset", "_disk", "_seconds", "_stale", "_written", "firsts", "is_written", "loaded", "path")

    entry: ClassVar[Struct]
    typecodes: ClassVar[tuple[str, str]]

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self.path = path
        self._base_offset = base_offset
        self._forget()
        self._written = 0
        self._stale = True
        self.loaded = False
        self.is_written = False  # since it was opened; so the file may have to be synced

    @property
    def memory_bytes(self) -> int:
        """How much memory the entries take."""
        return len(self) * (self.firsts.itemsize + self._seconds.itemsize)

    def _forget(self) -> None:
        first, second = self.typecodes
        self.firsts = array(first)
        self._seconds = array(second)

    @property
    def _offsets(self) -> "array[int]":
        """The column of offsets, relative to the base offset."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.firsts)

    def load(self, segment_size: int) -> bool:
        """Read the file. False when it is missing or cannot be right: then the index is empty and must be rebuilt."""
        self.reset()
        try:
            data = read_file(self._disk, self.path)
        except FileNotFoundError:
            return False
        size = self.entry.size
        if len(data) % size:
            return False
        used = len(data.rstrip(b"\0"))  # the zeros behind are what Kafka preallocates
        used += -used % size
        if used:
            words = array("i")
            words.frombytes(memoryview(data)[:used])
            if _IS_LITTLE:
                words.byteswap()
            self.firsts, self._seconds = self._columns(words)
            if not self._is_possible(segment_size):
                self.reset()
                return False
        self._written = len(self)
        self._stale = False
        return True

    def _columns(self, words: "array[int]") -> "tuple[array[int], array[int]]":
        """The two columns of a file that was read as words of 32 bits. No loop: there may be 260,000 entries."""
        raise NotImplementedError

    def _is_possible(self, segment_size: int) -> bool:
        """Whether the entries that were read can be right."""
        raise NotImplementedError

    def _last_entries(self, count: int) -> list[tuple[int, int]] | None:
        """The last entries of the file, as it has them, by one small read. None: there are none, or not whole ones."""
        entry_bytes = self.entry.size
        try:
            with closing(self._disk.open(self.path, read_only=True)) as file:
                size = file.size()
                if not size or size % entry_bytes:
                    return None
                start = max(size - count * entry_bytes, 0)
                return list(self.entry.iter_unpack(file.read(start, size - start)))
        except FileNotFoundError:
            return None

    def reset(self) -> None:
        """Forget all entries (the file keeps them until `write`)."""
        self._forget()
        self._written = 0
        self._stale = True  # the file may be missing, or hold entries that are forgotten
        self.loaded = True

    def unload(self) -> None:
        """Give the memory back. `load` again before the next use."""
        self._forget()
        self.loaded = False

    def _add(self, first: int, second: int) -> None:
        self.firsts.append(first)
        self._seconds.append(second)
        if len(self) - self._written >= _WRITE_BLOCK_ENTRIES:
            self.write_if_possible()

    def truncate(self, offset: int) -> None:
        """Forget entries of batches that end at or after `offset`."""
        keep = bisect_left(self._offsets, offset - self._base_offset)
        del self.firsts[keep:]
        del self._seconds[keep:]
        if self._written > keep:
            self._written = keep
            self._stale = True  # the file says too much until it is written

    def write(self) -> None:
        """Bring the file up to date (not synced)."""
        assert self.loaded, "entries that are not in memory cannot be written"
        entries = zip(self.firsts[self._written :], self._seconds[self._written :])
        data = b"".join(itertools.starmap(self.entry.pack, entries))
        _write_entries(self._disk, self.path, self._written * self.entry.size, data)
        self.is_written = True
        self._written = len(self)
        self._stale = False

    def write_if_possible(self) -> None:
        """As `write`. If there is no room, the entries stay in memory, and the index stays `dirty`."""
        try:
            self.write()
        except OSError as error:
            if not may_pass(error):
                raise

    @property
    def dirty(self) -> bool:
        """Whether the file lacks entries."""
        return self.loaded and (self._stale or self._written != len(self))


class OffsetIndex(_SparseIndex):
    """Sparse map from offset to byte position in the segment."""

    __slots__ = ()

    entry = _OFFSET_ENTRY
    typecodes = ("i", "i")

    @property
    def _offsets(self) -> "array[int]":
        return self.firsts

    def _columns(self, words: "array[int]") -> "tuple[array[int], array[int]]":
        return words[0::2], words[1::2]

    def _is_possible(self, segment_size: int) -> bool:
        offsets, positions = self.firsts, self._seconds
        if offsets[0] < 0 or positions[0] < 0 or positions[-1] >= segment_size:
            return False
        return _rises(offsets) and _rises(positions)

    def append(self, offset: int, position: int) -> None:
        """The batch whose last offset is `offset` begins at `position`."""
        relative = offset - self._base_offset
        assert not self.firsts or relative > self.firsts[-1]
        self._add(relative, position)

    def position_for(self, offset: int) -> int:
        """Where to begin looking for `offset`. The batch that holds it does not begin before that position."""
        slot = bisect_right(self.firsts, offset - self._base_offset) - 1
        return self._seconds[slot] if slot >= 0 else 0

    def last_below(self, limit: int, offset: int) -> tuple[int, int]:
        """(position, last offset) of the last entry below position `limit` and `offset`; (-1, -1) for none."""
        slot = min(bisect_left(self._seconds, limit), bisect_left(self.firsts, offset - self._base_offset)) - 1
        if slot < 0:
            return -1, -1
        return self._seconds[slot], self._base_offset + self.firsts[slot]

    def last_position(self) -> int:
        """The position of the last entry, or 0."""
        return self._seconds[-1] if self._seconds else 0

    def read_last(self, segment_size: int) -> tuple[int, int] | None:
        """(offset, position) of the last entry, by one small read. None if only `load` can tell."""
        entries = self._last_entries(1)
        if entries is None:
            return None
        relative, position = entries[0]
        if relative <= 0 or not 0 < position < segment_size:  # zeros may be what Kafka preallocates
            return None
        return self._base_offset + relative, position


class TimeIndex(_SparseIndex):
    """Sparse map from the largest timestamp so far to the last offset of the batch that holds it."""

    __slots__ = ()

    entry = _TIME_ENTRY
    typecodes = ("q", "i")

    @property
    def _offsets(self) -> "array[int]":
        return self._seconds

    def _columns(self, words: "array[int]") -> "tuple[array[int], array[int]]":
        upper, lower, offsets = words[0::3], words[1::3], words[2::3]
        halves = array("i", bytes(2 * upper.itemsize * len(upper)))
        halves[0::2], halves[1::2] = (lower, upper) if _IS_LITTLE else (upper, lower)
        timestamps = array("q")
        timestamps.frombytes(halves.tobytes())
        return timestamps, offsets

    def _is_possible(self, segment_size: int) -> bool:
        timestamps, offsets = self.firsts, self._seconds
        return offsets[0] >= 0 and _rises(timestamps) and all(map(operator.le, offsets, offsets[1:]))

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if the timestamp is larger than any before."""
        relative = offset - self._base_offset
        if self.firsts and (timestamp <= self.firsts[-1] or relative < self._seconds[-1]):
            return
        if timestamp >= 0:
            self._add(timestamp, relative)

    def offset_for(self, timestamp: int) -> int:
        """An offset: no record before it that this index knows has a timestamp ≥ `timestamp`."""
        slot = bisect_left(self.firsts, timestamp) - 1
        return self._base_offset + (self._seconds[slot] if slot >= 0 else 0)

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when empty."""
        if not self.firsts:
            return -1, self._base_offset
        return self.firsts[-1], self._base_offset + self._seconds[-1]

    def read_last(self) -> tuple[int, int] | None:
        """As `last`, by one small read. None if only `load` can tell."""
        entries = self._last_entries(2)
        if entries is None:
            return None
        timestamp, relative = entries[-1]
        if timestamp <= 0 or relative < 0:  # zeros may be what Kafka preallocates
            return None
        if len(entries) == 2 and (entries[0][0] >= timestamp or not 0 <= entries[0][1] <= relative):
            return None
        return timestamp, self._base_offset + relative


def _rises(column: "array[int]") -> bool:
    return all(map(operator.lt, column, column[1:]))


class Unloadable(Protocol):
    """An object with indexes in memory."""

    offset_index: OffsetIndex
    time_index: TimeIndex

    def unload(self) -> None:
        """Give the memory of the indexes back."""


class IndexMemory:
    """Which indexes are in memory, the one that was loaded first at the front, and how much they may take together."""

    __slots__ = ("_loaded", "bytes_max", "bytes_used")

    def __init__(self) -> None:
        self.bytes_max = INDEX_MEMORY_BYTES
        self.bytes_used = 0
        self._loaded: dict[Unloadable, int] = {}

    def loaded(self, segment: Unloadable) -> None:
        """A segment has loaded its indexes. If all take too much memory together, others give theirs back.

        Indexes with entries that are not written stay, because somebody appends to them.
        """
        self.unloaded(segment)
        size = segment.offset_index.memory_bytes + segment.time_index.memory_bytes
        self._loaded[segment] = size
        self.bytes_used += size
        if self.bytes_used > self.bytes_max:
            for other in list(self._loaded):
                if other is not segment and not (other.offset_index.dirty or other.time_index.dirty):
                    other.unload()
                if self.bytes_used <= self.bytes_max:
                    break

    def unloaded(self, segment: Unloadable) -> None:
        """A segment has given its indexes back, or is gone."""
        self.bytes_used -= self._loaded.pop(segment, 0)
        assert self.bytes_used >= 0, "more memory was given back than taken"


class AbortedTransaction(NamedTuple):
    """One aborted transaction: its offsets, and the last stable offset when its marker was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """Aborted transactions by rising last offset, as numbers side by side: a log of small ones has millions."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers) // _TRANSACTION_FIELDS

    def __getitem__(self, slot: int) -> AbortedTransaction:
        start = _TRANSACTION_FIELDS * (slot if slot >= 0 else len(self) + slot)
        numbers = self._numbers[start : start + _TRANSACTION_FIELDS] if start >= 0 else ()
        if not numbers:
            raise IndexError(slot)
        return AbortedTransaction(*numbers)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return self.from_slot(0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbortedTransactions) and self._numbers == other._numbers

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable

    def from_slot(self, first: int) -> Iterator[AbortedTransaction]:
        """Those from a slot on."""
        for slot in range(first, len(self)):
            yield self[slot]

    def slot_of(self, offset: int) -> int:
        """Of the first whose last offset is at or behind this one."""
        numbers = self._numbers
        slots = range(len(self))
        return bisect_left(slots, offset, key=lambda slot: numbers[_TRANSACTION_FIELDS * slot + _LAST_OFFSET_AT])

    def collect(self, start: int, end: int, found: list[tuple[int, int]]) -> bool:
        """Add producer id and first offset of those that overlap [start, end). True if no later one can."""
        numbers = self._numbers
        for at in range(_TRANSACTION_FIELDS * self.slot_of(start), len(numbers), _TRANSACTION_FIELDS):
            if numbers[at + 1] < end:
                found.append((numbers[at], numbers[at + 1]))
            if numbers[at + 3] >= end:
                return True
        return False

    def append(self, entry: AbortedTransaction) -> None:
        self._numbers.extend(entry)

    def truncate(self, offset: int) -> None:
        """Forget those whose last offset is at or behind this one."""
        del self._numbers[_TRANSACTION_FIELDS * self.slot_of(offset) :]


class TransactionIndex:
    """Aborted transactions whose marker is in this segment. The file exists only when there are any."""

    __slots__ = ("_base_offset", "_disk", "_entries", "_written", "is_written", "path")

    def __init__(self, disk: Disk, path: str, base_offset: int = 0, *, on_disk: bool) -> None:
        self._disk = disk
        self.path = path
        self._base_offset = base_offset
        self._entries: AbortedTransactions | None = None if on_disk else AbortedTransactions()
        self._written = 0
        self.is_written = False  # since it was opened, and the file is there

    @property
    def entries(self) -> AbortedTransactions:
        """All entries, by rising last offset. CorruptBatchError when the file cannot be right."""
        if self._entries is None:
            data = read_file(self._disk, self.path)
            if len(data) % TRANSACTION_ENTRY_BYTES:
                raise CorruptBatchError(f"{self.path}: size {len(data)} is not a multiple of {TRANSACTION_ENTRY_BYTES}")
            entries = AbortedTransactions()
            next_marker = self._base_offset
            for version, *fields in _TRANSACTION_ENTRY.iter_unpack(data):
                if version != 0:
                    raise CorruptBatchError(f"{self.path}: unknown entry version {version}")
                entry = AbortedTransaction(*fields)
                if entry.last_offset < next_marker or not 0 <= entry.first_offset < entry.last_offset:
                    raise CorruptBatchError(f"{self.path}: {entry} cannot be in it, behind the offset {next_marker}")
                entries.append(entry)
                next_marker = entry.last_offset + 1
            self._entries = entries
            self._written = len(entries)
        return self._entries

    def append(self, entry: AbortedTransaction) -> None:
        """Add an aborted transaction. It is written at once, because there are few."""
        entries = self.entries
        assert not entries or entry.last_offset > entries[-1].last_offset
        entries.append(entry)
        self.write()

    def truncate(self, offset: int) -> None:
        """Forget entries whose marker is at or after `offset`."""
        entries = self.entries
        entries.truncate(offset)
        if self._written > len(entries):
            self._written = len(entries)
            self.is_written = True
            _write_entries(self._disk, self.path, self._written * TRANSACTION_ENTRY_BYTES, b"")

    def reset(self) -> None:
        """Forget all entries and remove the file."""
        if (self._entries is None or self._written) and self._disk.exists(self.path):
            self._disk.remove(self.path)
        self._entries = AbortedTransactions()
        self._written = 0
        self.is_written = False

    def write(self) -> None:
        """Bring the file up to date (not synced): there may have been no room for some entries before."""
        entries = self._entries
        if entries is not None and self._written < len(entries):
            data = b"".join([_TRANSACTION_ENTRY.pack(0, *entry) for entry in entries.from_slot(self._written)])
            _write_entries(self._disk, self.path, self._written * TRANSACTION_ENTRY_BYTES, data)
            self._written = len(entries)
            self.is_written = True

    @property
    def on_disk(self) -> bool:
        """Whether there is a file."""
        return self._entries is None or self._written > 0
