"""Making a log durable: at once, in the background, or many logs together.

Three steps, always in this order: the files that were written are synced, new files get their names, the folders are
synced. Only then the recovery point rises. Nothing is synced when a log is made or an epoch begins. Kafka acknowledges
a record when it is written, and what a crash loses of a new log's files is known from the tree.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Protocol

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Disk, File, Timer, may_pass
from barnabas.storage.health import Health
from barnabas.storage.leader_epochs import LeaderEpochCache
from barnabas.storage.segment import Segment
from barnabas.storage.segments import Segments

_SYNC_AGAIN_MS: Final = 1_000  # after a sync that could not even begin
_SYNC_LOST_MS: Final = 300_000.0


class RecoveryPointCheckpoint(Protocol):
    """The file that says a log's recovery point after a crash."""

    def says_too_much(self) -> bool:
        """Whether it says, or soon may say, a higher point than the log has now."""

    def write(self) -> OSError | None:
        """Make it say the point that the log has now. It is durable when this returns."""

    def write_later(self) -> Pending[OSError | None]:
        """As `write`, without blocking."""


class _Sync:
    """A sync in the background. When it is done, everything below `offset` is durable."""

    __slots__ = ("begun_ms", "is_done", "offset")

    def __init__(self, offset: int, begun_ms: float) -> None:
        self.offset = offset
        self.begun_ms = begun_ms
        self.is_done = False


class Durability:
    """What of a log is durable: everything below `recovery_point`. What is not, and which syncs are under way."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        health: Health,
        directory: str,
        segments: Segments,
        leader_epochs: LeaderEpochCache,
        *,
        recovery_point: int,
        unsynced_folders: Sequence[str] = (),
    ) -> None:
        assert recovery_point <= segments.end_offset, "what is not there cannot be durable"
        self.health = health
        self.recovery_point = recovery_point
        self.last_flush_ms = clock.monotonic_ms()  # when the last flush began
        self.checkpoint: RecoveryPointCheckpoint | None = None
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._segments = segments
        self._leader_epochs = leader_epochs
        self._syncing: list[_Sync] = []  # oldest first
        self._unsynced_files: list[str] = []  # small files beside the segments
        # Each folder has an object that stands for its last change: a sync covers only what was changed before it.
        self._unsynced_folders: dict[str, object] = {folder: object() for folder in unsynced_folders}
        self._sync_again_timer: Timer | None = None

    @property
    def end_offset(self) -> int:
        """Where the log ends: a flush that begins now makes everything below durable."""
        return self._segments.end_offset

    @property
    def unflushed_messages(self) -> int:
        """Offsets behind the recovery point."""
        return self._segments.end_offset - self.recovery_point

    @property
    def is_syncing(self) -> bool:
        """Whether a sync in the background is under way. A sync that takes very long counts as lost."""
        syncing = self._syncing
        return bool(syncing) and self._clock.monotonic_ms() - syncing[-1].begun_ms < _SYNC_LOST_MS

    # -- the three steps

    def flush(self) -> None:
        """Make everything durable. The recovery point is the log end then. Blocks until the sync is done."""
        flush_together(self._disk, [self])

    def begin_flush(self) -> list[str] | None:
        """Write what only memory has; the files to sync before `files_synced`.

        None if everything is durable, and if the log has failed or is write-blocked. Then the recovery point stays.
        """
        if not self.health.is_writable:
            return None
        self.last_flush_ms = self._clock.monotonic_ms()
        segments, leader_epochs = self._segments, self._leader_epochs
        has_unsynced_records = self.recovery_point < segments.end_offset
        if not has_unsynced_records and not (
            leader_epochs.is_unsynced(segments.end_offset) or self._unsynced_files or self._syncing
        ):
            return None
        try:
            files = [*self._unsynced_files]
            for segment in segments[segments.slot_of(self.recovery_point) :] if has_unsynced_records else ():
                files.append(segment.path)
                if segment is not segments.active:  # indexes below the recovery point are trusted
                    segment.close_time_index()
                    segment.write_indexes()
                    files += segment.index_paths()
            epochs = leader_epochs.write(segments.end_offset)
        except OSError as error:
            self.health.block_writes(error)
            return None
        return files if epochs is None else [*files, epochs]

    def files_synced(self) -> list[str]:
        """New files get their names; the folders to sync before `flushed`."""
        try:
            if self._leader_epochs.rename():
                self._names_changed()
        except OSError as error:
            self.health.fail(error)
            return []
        return list(self._unsynced_folders) or ([self._directory] if self._syncing else [])

    def flushed(self, offset: int) -> None:
        """All that `begin_flush` began is durable: everything below `offset`."""
        self._unsynced_files.clear()
        self._unsynced_folders.clear()
        self._syncing.clear()
        self.raise_recovery_point(offset)
        self.health.end_write_block()

    # -- what is to be synced

    def sync_with_next_flush(self, paths: Iterable[str], *, with_names: bool = False) -> None:
        """These small files have changed. `with_names`: they may be new, or others have taken their names."""
        self._unsynced_files += paths
        if with_names:
            self._names_changed()

    def _names_changed(self) -> None:
        """The folder must be synced before the recovery point rises, and before another segment begins."""
        self._unsynced_folders[self._directory] = object()

    def mark_unsynced(self, segment: Segment) -> None:
        """Another segment will follow this one, which is not synced yet: mark it for recovery.

        A crash must not keep the name of the next segment and lose older ones.
        """
        if not segment.is_marked_unsynced:
            segment.mark_unsynced()
            self._names_changed()
        if self._directory in self._unsynced_folders:
            self._disk.sync_directory(self._directory)

    def sync_rolled(self, paths: list[str], base_offset: int) -> None:
        """A segment has begun at `base_offset`; make the one before it durable in the background."""
        self._names_changed()
        self._sync_in_background(paths, base_offset)

    # -- the recovery point

    def raise_recovery_point(self, offset: int) -> None:
        """Everything below the offset is durable: no segment there can lose its end any more."""
        if offset < self.recovery_point:
            return
        assert offset <= self._segments.end_offset, "what is not there cannot be durable"
        first = max(self._segments.slot_of(self.recovery_point) - 1, 0)
        self.recovery_point = offset
        try:
            for segment, following in pairwise(self._segments[first:]):
                if following.base_offset <= offset:
                    segment.remove_mark()
        except OSError as error:
            self.health.block_writes(error)

    def lower_recovery_point(self, offset: int) -> RecoveryPointCheckpoint | None:
        """Before anything is cut: what is durable ends there. The checkpoint to write first, if it says more."""
        self._syncing.clear()
        self.recovery_point = min(self.recovery_point, offset)
        checkpoint = self.checkpoint
        return checkpoint if checkpoint is not None and checkpoint.says_too_much() else None

    def end_was_cut(self) -> None:
        """The log ends earlier than it did."""
        self._syncing.clear()
        self.recovery_point = min(self.recovery_point, self._segments.end_offset)

    # -- in the background

    def flush_in_background(self) -> None:
        """As `flush`, without blocking: the recovery point rises when it is done."""
        offset = self._segments.end_offset
        paths = self.begin_flush()
        if paths is not None:
            self._sync_in_background(paths, offset, self._take_unsynced_files())

    def _take_unsynced_files(self) -> list[str]:
        taken, self._unsynced_files = self._unsynced_files, []
        return taken

    def _sync_in_background(self, paths: list[str], offset: int, small: Sequence[str] = ()) -> None:
        """`small` are those of the paths that the next flush would not find by itself, if this sync does not begin."""
        disk = self._disk
        now_ms = self._clock.monotonic_ms()
        if self._syncing and now_ms - self._syncing[0].begun_ms >= _SYNC_LOST_MS:
            self._sync_again_later()  # the oldest is lost: everything that it was to sync is synced again
        state = _Sync(offset, now_ms)
        self._syncing.append(state)
        epochs_written = self._leader_epochs.written
        names: dict[str, object] = {}

        def settle(error: OSError | None) -> bool:
            """Act on a failure. Whether the sync is of use: not when all was flushed or truncated meanwhile."""
            is_open = not self.health.closed
            if error is not None and is_open:
                if not may_pass(error):
                    self.health.fail(error)
                    return False
                # The sync has not begun. What it was to sync stays unsynced, and later syncs wait for it.
                self._unsynced_files += small
                self._sync_again_later()
            return error is None and is_open and any(state is other for other in self._syncing)

        def files_synced(error: OSError | None) -> None:
            if not settle(error):
                return
            if self._leader_epochs.written != epochs_written:  # a later sync will name them and lift the point further
                self._syncing = [other for other in self._syncing if other is not state]
                return
            folders = list(dict.fromkeys([self._directory, *self.files_synced()]))
            if self.health.failed is None:
                names.update(self._unsynced_folders)
                disk.sync_in_background([], folders_synced, folders)

        def folders_synced(error: OSError | None) -> None:
            if not settle(error):
                return
            for folder, change in names.items():
                if self._unsynced_folders.get(folder) is change:
                    del self._unsynced_folders[folder]
            state.is_done = True
            while self._syncing and self._syncing[0].is_done:
                self.raise_recovery_point(self._syncing.pop(0).offset)

        sync_later(disk, paths).then(files_synced)

    def _sync_again_later(self) -> None:
        def sync() -> None:
            self._sync_again_timer = None
            if not self.health.is_writable or not self._syncing:
                return
            offset = self._segments.end_offset
            paths = self.begin_flush()
            if paths is None:
                self._sync_again_later()
                return
            self._syncing.clear()  # this one covers them
            self._sync_in_background(paths, offset, self._take_unsynced_files())

        if self._sync_again_timer is None and not self.health.closed:
            self._sync_again_timer = self._clock.call_later(_SYNC_AGAIN_MS, sync)


def sync_later(disk: Disk, paths: Iterable[str], folders: Sequence[str] = ()) -> Pending[OSError | None]:
    """Sync files, then folders, without blocking; the first error, or None."""
    ended: Pending[OSError | None] = Pending()
    files: list[File] = []
    try:
        files.extend(disk.open(path) for path in paths)
        disk.sync_in_background(files, ended.complete, folders)
    except OSError as error:
        ended.complete(error)
    finally:
        for file in files:
            file.close()
    return ended


def flush_together(disk: Disk, logs: Iterable[Durability]) -> None:
    """Flush logs: first all contents, then all names. Each step syncs many files at a time. Blocks.

    Those that fail or are write-blocked keep their recovery points.
    """
    begun = []
    for log in logs:
        offset, files = log.end_offset, log.begin_flush()
        if files is not None:
            begun.append((log, offset, files))
    failures = disk.sync_all([path for _, _, files in begun for path in files])
    folders: dict[str, None] = {}
    waiting = []
    for log, offset, files in begun:
        if not _stop_by_failures(log.health, files, failures):
            own = log.files_synced()
            folders.update(dict.fromkeys(own))
            waiting.append((log, offset, own))
    failures = disk.sync_all([], list(folders))
    for log, offset, own in waiting:
        if not _stop_by_failures(log.health, own, failures):
            log.flushed(offset)


def _stop_by_failures(health: Health, paths: list[str], failures: dict[str, OSError]) -> bool:
    """Tell a log which of its files could not be synced. Whether its flush ends here."""
    own = [failures[path] for path in paths if path in failures] if failures else []
    for error in own:
        health.block_writes(error)
    return bool(own) or health.failed is not None
