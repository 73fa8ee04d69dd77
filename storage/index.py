"""The three index files of a segment, in Kafka's formats, kept in memory as flat arrays once they were needed.

Entries are appended to memory and reach the files in blocks, at a roll, a flush or a close: after a crash they are
rebuilt from the log anyway. Files are never preallocated; the zero tail of one that Kafka did not close is ignored.
"""

import itertools
import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple

from barnabas.protocol.errors import CorruptBatchError
from barnabas.runtime.ports import Disk, may_pass

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
TRANSACTION_ENTRY_BYTES = 34
_WRITE_BLOCK_ENTRIES = 512
_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_TRANSACTION_ENTRY = Struct(">hqqqq")


def _read_file(disk: Disk, path: str) -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def _write_entries(disk: Disk, path: str, position: int, data: bytes) -> None:
    file = disk.open(path, create=True)
    try:
        size = file.size()
        if size == position + len(data) and file.read(position, len(data)) == data:
            return  # so it is mostly when recovery made an index again: truncating would cost far more than reading
        if size > position:
            file.truncate(position)
        if data:
            file.write(position, data)
    finally:
        file.close()


class OffsetIndex:
    """Sparse map from offset to byte position in the segment. Call `load` first."""

    __slots__ = ("_base_offset", "_disk", "_offsets", "_positions", "_stale", "_written", "loaded", "path")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self.path = path
        self._base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")
        self._written = 0
        self._stale = True
        self.loaded = False

    def __len__(self) -> int:
        return len(self._offsets)

    def load(self, segment_size: int) -> bool:
        """Read the file. False when it is missing or cannot be right: then it is empty and wants rebuilding."""
        self.reset()
        try:
            data = _read_file(self._disk, self.path)
        except FileNotFoundError:
            return False
        if len(data) % OFFSET_ENTRY_BYTES:
            return False
        flat = array("i")
        flat.frombytes(data)
        if sys.byteorder == "little":
            flat.byteswap()
        while flat and flat[-1] == 0 and flat[-2] == 0:
            del flat[-2:]
        offsets, positions = flat[0::2], flat[1::2]
        if offsets and (offsets[0] < 0 or positions[0] < 0 or positions[-1] >= segment_size):
            return False
        if any(left >= right for left, right in itertools.pairwise(offsets)):
            return False
        if any(left >= right for left, right in itertools.pairwise(positions)):
            return False
        self._offsets, self._positions = offsets, positions
        self._written = len(offsets)
        self._stale = False
        return True

    def reset(self) -> None:
        """Forget all entries (the file keeps them until `write`)."""
        self._offsets = array("i")
        self._positions = array("i")
        self._written = 0
        self._stale = True  # the file may be missing, or hold what is forgotten
        self.loaded = True

    def unload(self) -> None:
        """Give the memory back; `load` again before the next use."""
        self._offsets = array("i")
        self._positions = array("i")
        self.loaded = False

    def append(self, offset: int, position: int) -> None:
        """The batch whose last offset is `offset` begins at `position`."""
        relative = offset - self._base_offset
        assert not self._offsets or relative > self._offsets[-1]
        self._offsets.append(relative)
        self._positions.append(position)
        if len(self._offsets) - self._written >= _WRITE_BLOCK_ENTRIES:
            self.write_if_possible()

    def position_for(self, offset: int) -> int:
        """Where to begin looking for `offset`: no batch that holds it or a later one begins before."""
        slot = bisect_right(self._offsets, offset - self._base_offset) - 1
        return self._positions[slot] if slot >= 0 else 0

    def last_below(self, limit: int, offset: int) -> tuple[int, int]:
        """(position, last offset) of the last entry below position `limit` and `offset`; (-1, -1) for none."""
        slot = min(bisect_left(self._positions, limit), bisect_left(self._offsets, offset - self._base_offset)) - 1
        if slot < 0:
            return -1, -1
        return self._positions[slot], self._base_offset + self._offsets[slot]

    def last_position(self) -> int:
        """The position of the last entry, or 0."""
        return self._positions[-1] if self._positions else 0

    def truncate(self, offset: int) -> None:
        """Forget entries of batches that end at or after `offset`."""
        keep = bisect_left(self._offsets, offset - self._base_offset)
        del self._offsets[keep:]
        del self._positions[keep:]
        self._written = min(self._written, keep)

    def write(self) -> None:
        """Bring the file up to date (not synced)."""
        flat = array("i", bytes(4 * 2 * (len(self._offsets) - self._written)))
        flat[0::2] = self._offsets[self._written :]
        flat[1::2] = self._positions[self._written :]
        if sys.byteorder == "little":
            flat.byteswap()
        _write_entries(self._disk, self.path, self._written * OFFSET_ENTRY_BYTES, flat.tobytes())
        self._written = len(self._offsets)
        self._stale = False

    def write_if_possible(self) -> None:
        """As `write`; what finds no room stays in memory, and the index `dirty`."""
        try:
            self.write()
        except OSError as error:
            if not may_pass(error):
                raise

    @property
    def dirty(self) -> bool:
        """Whether the file lacks entries."""
        return self.loaded and (self._stale or self._written != len(self._offsets))


class TimeIndex:
    """Sparse map from the largest timestamp so far to the last offset of the batch that holds it."""

    __slots__ = ("_base_offset", "_disk", "_offsets", "_stale", "_timestamps", "_written", "loaded", "path")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self.path = path
        self._base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")
        self._written = 0
        self._stale = True
        self.loaded = False

    def __len__(self) -> int:
        return len(self._offsets)

    def load(self) -> bool:
        """Read the file. False when it is missing or cannot be right: then it is empty and wants rebuilding."""
        self.reset()
        try:
            data = _read_file(self._disk, self.path)
        except FileNotFoundError:
            return False
        if len(data) % TIME_ENTRY_BYTES:
            return False
        timestamps = array("q")
        offsets = array("i")
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            if timestamp == 0 and offset == 0:  # the preallocated tail of a file that was not closed
                break
            if timestamps and (timestamp <= timestamps[-1] or offset < offsets[-1]):
                return False
            timestamps.append(timestamp)
            offsets.append(offset)
        if offsets and offsets[0] < 0:
            return False
        self._timestamps, self._offsets = timestamps, offsets
        self._written = len(offsets)
        self._stale = False
        return True

    def reset(self) -> None:
        """Forget all entries (the file keeps them until `write`)."""
        self._timestamps = array("q")
        self._offsets = array("i")
        self._written = 0
        self._stale = True  # the file may be missing, or hold what is forgotten
        self.loaded = True

    def unload(self) -> None:
        """Give the memory back; `load` again before the next use."""
        self._timestamps = array("q")
        self._offsets = array("i")
        self.loaded = False

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if the timestamp is larger than any before."""
        relative = offset - self._base_offset
        if self._timestamps and (timestamp <= self._timestamps[-1] or relative < self._offsets[-1]):
            return
        if timestamp < 0:
            return
        self._timestamps.append(timestamp)
        self._offsets.append(relative)
        if len(self._offsets) - self._written >= _WRITE_BLOCK_ENTRIES:
            self.write_if_possible()

    def offset_for(self, timestamp: int) -> int:
        """No record before this offset has a timestamp ≥ `timestamp`... of those that this index knows."""
        slot = bisect_left(self._timestamps, timestamp) - 1
        return self._base_offset + (self._offsets[slot] if slot >= 0 else 0)

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when empty."""
        if not self._timestamps:
            return -1, self._base_offset
        return self._timestamps[-1], self._base_offset + self._offsets[-1]

    def truncate(self, offset: int) -> None:
        """Forget entries whose batch ends at or after `offset`."""
        keep = bisect_left(self._offsets, offset - self._base_offset)
        del self._timestamps[keep:]
        del self._offsets[keep:]
        self._written = min(self._written, keep)

    def write(self) -> None:
        """Bring the file up to date (not synced)."""
        pack = _TIME_ENTRY.pack
        entries = zip(self._timestamps[self._written :], self._offsets[self._written :])
        data = b"".join([pack(timestamp, offset) for timestamp, offset in entries])
        _write_entries(self._disk, self.path, self._written * TIME_ENTRY_BYTES, data)
        self._written = len(self._offsets)
        self._stale = False

    def write_if_possible(self) -> None:
        """As `write`; what finds no room stays in memory, and the index `dirty`."""
        try:
            self.write()
        except OSError as error:
            if not may_pass(error):
                raise

    @property
    def dirty(self) -> bool:
        """Whether the file lacks entries."""
        return self.loaded and (self._stale or self._written != len(self._offsets))


class AbortedTransaction(NamedTuple):
    """One aborted transaction: its offsets, and the last stable offset when its marker was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Aborted transactions whose marker is in this segment. The file exists only when there are any."""

    __slots__ = ("_disk", "_entries", "_written", "path")

    def __init__(self, disk: Disk, path: str, *, on_disk: bool) -> None:
        self._disk = disk
        self.path = path
        self._entries: list[AbortedTransaction] | None = None if on_disk else []
        self._written = 0

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All entries, by rising last offset. CorruptBatchError when the file cannot be right."""
        if self._entries is None:
            data = _read_file(self._disk, self.path)
            if len(data) % TRANSACTION_ENTRY_BYTES:
                raise CorruptBatchError(f"{self.path}: size {len(data)} is not a multiple of {TRANSACTION_ENTRY_BYTES}")
            self._entries = []
            for version, *fields in _TRANSACTION_ENTRY.iter_unpack(data):
                if version != 0:
                    raise CorruptBatchError(f"{self.path}: unknown entry version {version}")
                self._entries.append(AbortedTransaction(*fields))
            self._written = len(self._entries)
        return self._entries

    def append(self, entry: AbortedTransaction) -> None:
        """Add an aborted transaction; written at once, for these are few."""
        entries = self.entries
        assert not entries or entry.last_offset > entries[-1].last_offset
        entries.append(entry)
        self.write()

    def truncate(self, offset: int) -> None:
        """Forget entries whose marker is at or after `offset`."""
        entries = self.entries
        while entries and entries[-1].last_offset >= offset:
            entries.pop()
        if self._written > len(entries):
            self._written = len(entries)
            _write_entries(self._disk, self.path, self._written * TRANSACTION_ENTRY_BYTES, b"")

    def reset(self) -> None:
        """Forget all entries and the file."""
        if (self._entries is None or self._written) and self._disk.exists(self.path):
            self._disk.remove(self.path)
        self._entries = []
        self._written = 0

    def write(self) -> None:
        """Bring the file up to date (not synced)."""
        entries = self.entries
        data = b"".join([_TRANSACTION_ENTRY.pack(0, *entry) for entry in entries[self._written :]])
        if data:
            _write_entries(self._disk, self.path, self._written * TRANSACTION_ENTRY_BYTES, data)
            self._written = len(entries)

    @property
    def on_disk(self) -> bool:
        """Whether there is a file."""
        return self._entries is None or self._written > 0
