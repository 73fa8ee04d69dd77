"""Making a log durable: at once, in the background, or many logs together.

Three steps, always in this order: what is written gets synced, new files get their names, the folders get synced. Only
then does the recovery point rise. Nothing is synced when a log is made or an epoch begins: Kafka acknowledges a record
when it is written, and what a crash loses of a new log's files the tree can say again.
"""

import errno
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

from barnabas.config.topic import TopicConfig
from barnabas.runtime.ports import Disk, Env, File, Timer, may_pass
from barnabas.storage import checkpoints
from barnabas.storage.leader_epochs import LeaderEpochCache
from barnabas.storage.log_reader import LogReader
from barnabas.storage.open_files import OpenFiles
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.segment import Segment

_SYNC_AGAIN_MS = 1_000  # after a sync that could not even begin
_SYNC_LOST_MS = 300_000.0


class _Sync:
    """A sync in the background; when it is done, all below `offset` is durable."""

    __slots__ = ("begun_ms", "is_done", "offset")

    def __init__(self, offset: int, begun_ms: float) -> None:
        self.offset = offset
        self.begun_ms = begun_ms
        self.is_done = False


class DurableLog(LogReader):
    """What a log knows of its durability. `Log` is the whole."""

    def __init__(
        self,
        env: Env,
        files: OpenFiles,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        segments: list[Segment],
        *,
        topic_id: bytes | None,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        producers: ProducerStateManager,
        leader_epochs: LeaderEpochCache,
        unsynced_folders: Sequence[str] = (),
    ) -> None:
        super().__init__(
            topic,
            partition,
            segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            producers=producers,
        )
        self._env = env
        self._files = files
        self.directory = directory
        self.topic_id = topic_id
        self.config = config
        self.recovery_point = recovery_point
        self.leader_epochs = leader_epochs
        self.closed = False
        self._syncing: list[_Sync] = []  # oldest first
        self._unsynced_files: list[str] = []  # small ones beside the segments
        self._unsynced_folders: dict[str, object] = {folder: object() for folder in unsynced_folders}  # and the change
        self._last_flush_ms = env.clock.monotonic_ms()
        self._sync_again_timer: Timer | None = None
        self._checked_end_offset = log_end_offset

    @property
    def unflushed_messages(self) -> int:
        """Offsets behind the recovery point."""
        return self.log_end_offset - self.recovery_point

    @property
    def is_flush_due(self) -> bool:
        """flush.ms"""
        if self.unflushed_messages <= 0 or self.failed is not None or self.closed:
            return False
        return self._env.clock.monotonic_ms() >= self.flush_due_ms and not self.is_syncing

    @property
    def flush_due_ms(self) -> float:
        """When the next flush should begin, monotonic."""
        return self._last_flush_ms + self.config.flush_ms

    @property
    def is_syncing(self) -> bool:
        """Whether a sync in the background is under way. One that takes very long counts as lost."""
        syncing = self._syncing
        return bool(syncing) and self._env.clock.monotonic_ms() - syncing[-1].begun_ms < _SYNC_LOST_MS

    def check_file(self) -> None:
        """If it was written since the last look: what is open may have lost its name."""
        if self.log_end_offset == self._checked_end_offset or self.failed is not None or self.closed:
            return
        self._checked_end_offset = self.log_end_offset
        path = self.active_segment.path
        if not self._env.disk.exists(path):
            self.fail(FileNotFoundError(errno.ENOENT, "somebody has removed it", path))

    def flush(self) -> None:
        """Make everything durable; the recovery point is the log end then. Blocks for the sync."""
        flush_together(self._env.disk, [self])

    def begin_flush(self) -> list[str] | None:
        """Write what only memory has; the files to sync before `files_synced`.

        None: all is durable, or the log failed, or is hindered: then the recovery point stays where it is.
        """
        if self.failed is not None or self.closed:
            return None
        self._last_flush_ms = self._env.clock.monotonic_ms()
        if self.recovery_point >= self.log_end_offset and not (
            self.leader_epochs.is_unsynced(self.log_end_offset) or self._unsynced_files or self._syncing
        ):
            return None
        try:
            files = [*self._unsynced_files]
            has_unsynced_records = self.recovery_point < self.log_end_offset
            for segment in self.segments[self._slot(self.recovery_point) :] if has_unsynced_records else ():
                files.append(segment.path)
                if segment is not self.active_segment:  # indexes below the recovery point are trusted
                    segment.close_time_index()
                    segment.write_indexes()
                    files += segment.index_paths()
            epochs = self.leader_epochs.write(self.log_end_offset)
        except OSError as error:
            self.hinder(error)
            return None
        return files if epochs is None else [*files, epochs]

    def files_synced(self) -> list[str]:
        """New files get their names; the folders to sync before `flushed`."""
        try:
            if self.leader_epochs.rename():
                self._names_changed()
        except OSError as error:
            self.fail(error)
            return []
        return list(self._unsynced_folders) or ([self.directory] if self._syncing else [])

    def sync_with_next_flush(self, path: str) -> None:
        """A file of this log was changed outside of its methods."""
        self._unsynced_files.append(path)
        self._names_changed()

    def _names_changed(self) -> None:
        """The folder is to be synced before the recovery point rises, and before another segment begins."""
        self._unsynced_folders[self.directory] = object()

    def flushed(self, offset: int) -> None:
        """All that `begin_flush` began is durable: everything below `offset`."""
        self._unsynced_files.clear()
        self._unsynced_folders.clear()
        self._syncing.clear()
        self._raise_recovery_point(offset)
        self.end_hindrance()

    def _raise_recovery_point(self, offset: int) -> None:
        """Everything below the offset is durable: no segment there can lose its end any more."""
        if offset < self.recovery_point:
            return
        first = max(self._slot(self.recovery_point) - 1, 0)
        self.recovery_point = offset
        try:
            for segment, following in pairwise(self.segments[first:]):
                if following.base_offset <= offset:
                    segment.remove_mark()
        except OSError as error:
            self.hinder(error)

    def flush_in_background(self) -> None:
        """As `flush`, without blocking: the recovery point rises when it is done."""
        offset = self.log_end_offset
        paths = self.begin_flush()
        if paths is not None:
            small = [*self._unsynced_files]
            self._unsynced_files.clear()
            self._sync_in_background(paths, offset, small)

    def _sync_in_background(self, paths: list[str], offset: int, small: Sequence[str] = ()) -> None:
        """`small`: those of the paths that the next flush would not find by itself, should this one not begin."""
        disk = self._env.disk
        now_ms = self._env.clock.monotonic_ms()
        if self._syncing and now_ms - self._syncing[0].begun_ms >= _SYNC_LOST_MS:
            self._sync_again_later()  # nobody hears of it any more: all that it was to sync is synced anew
        state = _Sync(offset, now_ms)
        self._syncing.append(state)
        epochs_written = self.leader_epochs.written
        names: dict[str, object] = {}

        def settle(error: OSError | None) -> bool:
            """Act on a failure. Whether the sync is of use: not when all was flushed or truncated meanwhile."""
            if error is not None and not self.closed:
                if not may_pass(error):
                    self.fail(error)
                    return False
                # It has not begun: what it was to sync stays unsynced, and holds up what comes later.
                self._unsynced_files += small
                self._sync_again_later()
            return error is None and not self.closed and any(state is other for other in self._syncing)

        def files_synced(error: OSError | None) -> None:
            if not settle(error):
                return
            if self.leader_epochs.written != epochs_written:  # a later sync will name them and lift the point further
                self._syncing = [other for other in self._syncing if other is not state]
                return
            folders = list(dict.fromkeys([self.directory, *self.files_synced()]))
            if self.failed is None:
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
                self._raise_recovery_point(self._syncing.pop(0).offset)

        files: list[File] = []
        try:
            files.extend(disk.open(path) for path in paths)
            disk.sync_in_background(files, files_synced)
        except OSError as error:
            settle(error)
        finally:
            for file in files:
                file.close()

    def _sync_again_later(self) -> None:
        def sync() -> None:
            self._sync_again_timer = None
            if self.failed is not None or self.closed or not self._syncing:
                return
            offset = self.log_end_offset
            paths = self.begin_flush()
            if paths is None:
                self._sync_again_later()
                return
            self._syncing.clear()  # this one covers them
            small = [*self._unsynced_files]
            self._unsynced_files.clear()
            self._sync_in_background(paths, offset, small)

        if self._sync_again_timer is None and not self.closed:
            self._sync_again_timer = self._env.clock.call_later(_SYNC_AGAIN_MS, sync)

    def _sync_indexes(self, segment: Segment) -> None:
        """Below the recovery point indexes are trusted: they must be as durable as the batches."""
        segment.close_time_index()
        segment.write_indexes()
        for path in segment.index_paths():
            file = self._env.disk.open(path)
            try:
                file.sync()
            finally:
                file.close()

    def close(self) -> None:
        """Stop cleanly: everything durable, indexes complete, a producer snapshot at the log end."""
        close_together(self._env.disk, [self])

    def seal(self) -> None:
        """Write the indexes and a producer snapshot, for the next flush to make durable.

        But not those that the next start makes again by one read: of thousands of small logs they take most of a stop.
        """
        if self.failed is not None or self.closed:
            return
        try:
            for segment in self.segments[self._slot(self.recovery_point) :]:
                segment.close_time_index()
                segment.write_indexes(new_files=segment.is_indexed)
            self._unsynced_files += self.active_segment.index_paths()  # also when all records are durable already
            is_small = len(self.segments) == 1 and self.active_segment.is_small
            snapshot = None if is_small and not self.producers.entries else self.producers.take_snapshot()
            if snapshot is not None:
                self._unsynced_files.append(snapshot)
            self.hindered = None  # unless the flush finds another reason
        except OSError as error:
            self.fail(error)

    def abandon(self) -> None:
        """Close without writing anything."""
        self.closed = True
        for segment in self.segments:
            self._files.close(segment.path)

    def write_topic_id(self, topic_id: bytes) -> None:
        """Remember the topic's id, in memory and on disk; durable with the next flush.

        A crash that loses it does no harm: the tree knows it, and says it again (`recovery.open_log`).
        """
        path = f"{self.directory}/{checkpoints.PARTITION_METADATA}"
        checkpoints.write_partition_metadata(self._env.disk, path, topic_id)
        self.sync_with_next_flush(path)
        self.topic_id = topic_id


def flush_together(disk: Disk, logs: Iterable[DurableLog]) -> None:
    """Flush logs: first all contents, then all names. Each step syncs many files at a time. Blocks.

    Those that fail or are hindered keep their recovery points.
    """
    begun = []
    for log in logs:
        offset, files = log.log_end_offset, log.begin_flush()
        if files is not None:
            begun.append((log, offset, files))
    failures = disk.sync_all([path for _, _, files in begun for path in files])
    folders: dict[str, None] = {}
    waiting = []
    for log, offset, files in begun:
        if not _stopped_by(log, files, failures):
            own = log.files_synced()
            folders.update(dict.fromkeys(own))
            waiting.append((log, offset, own))
    failures = disk.sync_all([], list(folders))
    for log, offset, own in waiting:
        if not _stopped_by(log, own, failures):
            log.flushed(offset)


def close_together(disk: Disk, logs: Iterable[DurableLog]) -> None:
    """Stop logs cleanly, as `Log.close` does for one."""
    logs = [log for log in logs if not log.closed]
    for log in logs:
        log.seal()
    flush_together(disk, logs)
    for log in logs:
        if log.failed is None and log.hindered is None:
            with suppress(OSError):  # a mark that stays does no harm while no other broker compacts the log
                log.active_segment.remove_mark()
        log.abandon()


def _stopped_by(log: DurableLog, paths: list[str], failures: dict[str, OSError]) -> bool:
    """Whether the log must not go on with its flush; the worst of its failures is its own."""
    own = [failures[path] for path in paths if path in failures] if failures else []
    for error in own:
        log.hinder(error)
    return bool(own) or log.failed is not None
