"""Which leader epoch began at which offset (KIP-101): what followers truncate by after a leader change."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from barnabas.runtime.ports import Disk
from barnabas.storage import checkpoints

UNDEFINED: Final = -1


class LeaderEpochCache:
    """(epoch, start offset) pairs, both strictly rising.

    A change is durable before the log's recovery point passes it, and not sooner, so that a leader begins a new epoch
    without a sync. What a crash loses does not matter. An epoch with records is found again in the batches behind the
    recovery point. An epoch without records began where the next one begins: a follower that asks for its end gets the
    same offset from the epoch before it. So a change that only adds such an epoch is not written.
    """

    __slots__ = ("_dirty", "_disk", "_entries", "_on_disk", "_path", "_unnamed", "latest", "written")

    def __init__(self, disk: Disk, path: str, entries: Sequence[tuple[int, int]] | None = None) -> None:
        """`entries` are what the file says, if the caller has read it already."""
        self._disk = disk
        self._path = path
        self._entries = checkpoints.read_epochs(disk, path) if entries is None else list(entries)
        self._on_disk = list(self._entries)
        self._dirty = False
        self.written = 0  # how often: a sync in the background must see whether the file was written again meanwhile
        self._unnamed = False
        self._note_latest()

    def _note_latest(self) -> None:
        self.latest = self._entries[-1][0] if self._entries else UNDEFINED  # the newest epoch, -1 if there is none

    @property
    def entries(self) -> list[tuple[int, int]]:
        """All (epoch, start offset), a copy."""
        return list(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Epoch `epoch` begins at `start_offset`. Entries that contradict this go; if it is known, nothing changes."""
        assert epoch >= 0
        assert start_offset >= 0
        entries = self._entries
        if entries and epoch == entries[-1][0] and start_offset >= entries[-1][1]:
            return
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((epoch, start_offset))
        self.latest = epoch
        self._dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch ≤ `epoch`, and where it ended. (-1, -1) if there is none."""
        entries = self._entries
        if epoch == UNDEFINED or not entries or epoch > entries[-1][0]:
            return UNDEFINED, UNDEFINED
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        slot = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if slot == 0:
            return epoch, entries[0][1]
        return entries[slot - 1][0], entries[slot][1]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written, -1 when unknown."""
        slot = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[slot - 1][0] if slot else UNDEFINED

    def truncate_from_end(self, offset: int) -> None:
        """Forget epochs that began at or after `offset`."""
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()
            self._dirty = True
        self._note_latest()

    def truncate_from_start(self, offset: int) -> None:
        """Forget epochs that ended at or before `offset`. The epoch of that offset begins there now."""
        slot = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        if slot and self._entries[slot - 1][1] != offset:
            self._entries[slot - 1] = (self._entries[slot - 1][0], offset)
            self._dirty = True
        if slot > 1:
            del self._entries[: slot - 1]
            self._dirty = True

    def clear(self) -> None:
        self._dirty = self._dirty or bool(self._entries)
        self._entries.clear()
        self._note_latest()

    def is_unsynced(self, log_end_offset: int) -> bool:
        """Whether the file lacks anything that matters to a log that ends there, or says anything that is not true."""
        if self._dirty and not self._unnamed:
            known = len(self._on_disk)
            return self._entries[:known] != self._on_disk or any(
                start_offset < log_end_offset for _, start_offset in self._entries[known:]
            )
        return self._unnamed

    def write(self, log_end_offset: int) -> str | None:
        """Write the changes to a file beside it; the path to sync before `rename`. None if the file is up to date."""
        if not self.is_unsynced(log_end_offset):
            return None
        temporary = self._path + ".tmp"
        checkpoints.write_unsynced(self._disk, temporary, checkpoints.epochs_text(self._entries).encode())
        self._dirty = False
        self._on_disk = list(self._entries)
        self._unnamed = True
        self.written += 1
        return temporary

    def rename(self) -> bool:
        """What was written has been synced: it takes the file's place. False if nothing was written."""
        if not self._unnamed:
            return False
        self._disk.rename(self._path + ".tmp", self._path)
        self._unnamed = False
        return True

    def flush(self, log_end_offset: int) -> None:
        """Make the file durable, if it lacks anything."""
        temporary = self.write(log_end_offset)
        if temporary is not None:
            failures = self._disk.sync_all([temporary])
            for error in failures.values():
                raise error
            self.rename()
            self._disk.sync_directory(self._path.rpartition("/")[0] or "/")
