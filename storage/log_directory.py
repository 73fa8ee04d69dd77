"""One data directory: its lock and identity, its logs, their checkpoints, and the marker of a clean stop."""

import errno
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

from barnabas.config.topic import TopicConfig
from barnabas.protocol.errors import CorruptBatchError
from barnabas.runtime.counted import counted, names_in_a_line
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import DirectoryLock, Env, Timer
from barnabas.runtime.turns import at_once, chunks
from barnabas.storage import checkpoints, missing_records
from barnabas.storage.directory_contents import (
    CHECKPOINT_NAMES,
    OFFSET_CHECKPOINTS,
    DataDirectoryError,
    DirectoryContents,
    LogFolder,
    deleted_folders,
    is_log,
    read_contents,
    remove_deleted_folder,
)
from barnabas.storage.durability import flush_together
from barnabas.storage.log import Log
from barnabas.storage.offset_checkpoint import OffsetCheckpoint, Offsets
from barnabas.storage.open_files import OpenFiles
from barnabas.storage.recovery import Pieces, open_log

logger = logging.getLogger("barnabas.storage")

_NAME_LENGTH_MAX = 255
_NAMES_SYNC_DELAY_MS = 1_000
_LOGS_FLUSHED_TOGETHER = 200  # in one piece of recovery
_LOGS_ASKED_AT_ONCE = 500  # for what a checkpoint says of them
_OFFSET_OF: dict[str, Callable[[Log], int]] = {  # by the name of the checkpoint that has it
    checkpoints.RECOVERY_POINTS: lambda log: log.durability.recovery_point,
    checkpoints.LOG_START_OFFSETS: lambda log: log.log_start_offset,
    checkpoints.HIGH_WATERMARKS: lambda log: log.high_watermark,
}
_ROOM_BYTES, _PROBE_BYTES = 1 << 20, 4096  # free, and written to find out
_FULL_BYTES = _ROOM_BYTES // 4  # less is free: the next larger batch will find no room
_PROBE = ".room"  # a hidden file does not count as content


class LogDirectory:
    """LogManager, which knows the other directories, calls `read`, `take`, `load` and `begin`, in this order.

    OSError from these four says that the disk does not work: then it calls `give_up`. `topic_config` gives the settings
    of a topic. `on_failed` is called for a log that refuses writes from now on, `on_write_blocked` for one that
    could not be written just now, and again when it can be written.
    """

    def __init__(
        self,
        env: Env,
        files: OpenFiles,
        path: str,
        topic_config: Callable[[str], TopicConfig],
        on_failed: Callable[[Log], None],
        on_write_blocked: Callable[[Log], None],
        tree_name: str,
    ) -> None:
        self._env = env
        self._files = files
        self._topic_config = topic_config
        self._on_failed = on_failed
        self._on_write_blocked = on_write_blocked
        self._tree_name = tree_name  # the name of the coordination tree, if it is in this directory
        self.path = path
        self.contents = DirectoryContents(path)  # as `read` found them
        self._is_of_this_boot = False  # the machine has not started since a broker last used it
        self.folders: dict[tuple[str, int], LogFolder] = {}  # of the logs that `load` opens
        self.logs: dict[tuple[str, int], Log] = {}
        self.cleaner_offsets: dict[tuple[str, int], int] = {}
        self.missing: list[tuple[str, int]] = []  # they had records at the last checkpoint, but have no log
        self.failed: OSError | None = None  # why it could not be opened
        self.is_open = False  # whether this broker uses it now
        self._is_begun = False
        self._lock: DirectoryLock | None = None
        self.recovery_points: dict[tuple[str, int], int] = {}  # that are written down, or soon will be
        self._checkpoints = {
            name: OffsetCheckpoint(env, self.path_of(name), partial(self._collect, name), lambda: self.is_open)
            for name in CHECKPOINT_NAMES
        }
        self._names_timer: Timer | None = None
        self._unsynced_deletions: set[tuple[str, int]] = set()
        self._strays_in_place: set[tuple[str, int]] = set()  # they could not be renamed

    @property
    def was_clean(self) -> bool:
        """Whether the last stop was clean."""
        return self.contents.was_clean

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    # -- start and stop

    def read(self) -> None:
        """See what is in it, and change nothing. Even a missing lock file is not made."""
        if self._env.disk.exists(self.path_of(checkpoints.LOCK)):
            self._take_lock()
        self.contents = read_contents(self._env.disk, self.path, self._tree_name)
        self._is_of_this_boot = self.contents.boot_id == self._env.disk.boot_id()
        self.folders = dict(self.contents.folders)

    def take(self) -> None:
        """Begin to use it: make it where it is missing, and lock it."""
        disk = self._env.disk
        self._make_directory(self.path)
        if self._lock is None:
            self._take_lock()
            now_there = [name for name in disk.list_directory(self.path) if name != checkpoints.LOCK]
            if now_there != self.contents.names:  # another broker has used it between the look and the lock
                raise DataDirectoryError(f"{self.path} was changed while this broker started. Start it again.")
        self.is_open = True
        if self.contents.foreign:
            names = names_in_a_line(self.contents.foreign)
            logger.warning("%s holds files that no broker has made, which are left alone: %s", self.path, names)

    def set_aside(self, key: tuple[str, int]) -> None:
        """Keep the folder of a log that is not served, under a name that ends with `-stray`."""
        self.folders.pop(key, None)
        try:
            self._rename_stray(key)
        except OSError as error:
            logger.error("could not rename the folder of a log that is not served: %s", error)
            self._strays_in_place.add(key)

    def _rename_stray(self, key: tuple[str, int]) -> None:
        path = self.path_of(self.contents.folders[key].name)
        self._env.disk.rename(path, self.path_of(self._name_taken_away(*key, "stray")))
        self._strays_in_place.discard(key)
        self._unsynced_deletions.add(key)
        self._sync_names_soon()

    def _make_directory(self, path: str) -> None:
        """Make the folder, and the missing ones above it.

        Each is synced: a name is only as durable as those above it.
        """
        disk = self._env.disk
        if disk.is_directory(path):
            return
        parent = path.rpartition("/")[0] or "/"
        self._make_directory(parent)
        disk.make_directory(path)
        disk.sync_directory(parent)

    def _take_lock(self) -> None:
        path = self.path_of(checkpoints.LOCK)
        try:
            self._lock = self._env.disk.lock(path)
        except BlockingIOError as error:
            message = (
                f"Another broker uses the data directory {self.path} (it holds {path}). "
                "Stop that one, or give this one a directory of its own."
            )
            raise DataDirectoryError(message) from error

    def load(self) -> Pieces[None]:
        """Open every log, and recover it if the last stop was not clean. Yields in long logs and after each log."""
        assert self.is_open, "a directory is locked before its logs are opened"
        disk = self._env.disk
        for name in OFFSET_CHECKPOINTS:
            self._checkpoints[name].written = dict(self.contents.offsets.get(name, {}))
        self.recovery_points = dict(self._checkpoints[checkpoints.RECOVERY_POINTS].written)
        self._read_cleaner_offsets()
        strays = [name for name in self.contents.names if name.endswith("-stray")]
        if strays:
            logger.info(
                "%s of topics that do not exist in %s: %s", counted(len(strays), "folder"), self.path, strays[0]
            )
        for name in deleted_folders(disk, self.contents):
            remove_deleted_folder(disk, self.path_of(name))
        log_starts, high_watermarks = (self._checkpoints[name].written for name in OFFSET_CHECKPOINTS[1:])
        # A log that is left out is of another topic: if the partition is to be here, what it had is gone all the same.
        self.missing = [key for key, offset in high_watermarks.items() if offset > 0 and key not in self.folders]
        if self.folders and not self.was_clean:
            text = "the last stop was not clean: recovering %s in %s from their recovery points"
            logger.info(text, counted(len(self.folders), "log"), self.path)
        for key, folder in self.folders.items():
            log = yield from self._open_log(key, folder, log_starts.get(key, 0), clean=self.was_clean)
            committed = high_watermarks.get(key, log.log_start_offset)
            missing_records.note(
                log,
                synced_to=self.recovery_points.get(key, 0),
                # The end of a machine's power may take committed records, and not the checkpoint that tells of them.
                committed_to=0 if self.may_lack_ends else committed,
                began_at=folder.leader_epochs[0][1] if self.was_clean and folder.leader_epochs else None,
                may_have_gaps=key in self.cleaner_offsets or "compact" in log.config.cleanup_policy,
            )
            log.set_high_watermark(committed)
            yield None

    def _read_cleaner_offsets(self) -> None:
        try:
            self.cleaner_offsets = checkpoints.read_offsets(self._env.disk, self.path_of(checkpoints.CLEANER_OFFSETS))
        except checkpoints.CheckpointError as error:
            logger.warning("compaction starts again at the log start of every log in %s: %s", self.path, error)
        self._checkpoints[checkpoints.CLEANER_OFFSETS].written = dict(self.cleaner_offsets)

    def begin(self) -> Pieces[None]:
        """Make durable what was recovered, piece by piece. From here on, a stop is clean only if `close` says so.

        If it is ended on the way, the directory is as after a crash.
        """
        disk = self._env.disk
        if self.was_clean:
            disk.remove(self.path_of(checkpoints.CLEAN_SHUTDOWN))
            disk.sync_directory(self.path)
        elif self.logs:
            logs = list(self.logs.values())
            for chunk in chunks(logs, _LOGS_FLUSHED_TOGETHER):
                flush_together(disk, [log.durability for log in chunk])
                yield None
            for log in logs:
                if log.write_blocked is not None:  # the part that was cut off could come back behind what is appended
                    raise log.write_blocked
            self._checkpoints[checkpoints.RECOVERY_POINTS].write_now()
            logger.info("recovered %s in %s after an unclean stop", counted(len(self.logs), "log"), self.path)
        self._is_begun = True

    @property
    def may_lack_ends(self) -> bool:
        """Whether the machine has started since the directory was used, and was not stopped cleanly before.

        Then the ends of logs may be lost that were not synced.
        """
        return bool(self.folders) and not self.was_clean and not self._is_of_this_boot

    def write_boot_id(self) -> None:
        """From here on, a process that is killed loses nothing unless the machine starts anew."""
        if self._is_of_this_boot:
            return
        try:
            checkpoints.write_boot_id(self._env.disk, self.path_of(checkpoints.BOOT_ID))
        except OSError as error:  # so the ends of logs will count as lost
            logger.warning("could not write %s: %s", self.path_of(checkpoints.BOOT_ID), error)

    def write_meta(self, node_id: int, cluster_id: str, others: Mapping[str, str]) -> None:
        """Write whose it is and which the other directories are, if the file does not say the same."""
        meta = self.contents.meta
        meta.node_id, meta.cluster_id, meta.others = node_id, cluster_id, dict(others)
        properties = meta.text_of(others)
        if properties != meta.properties:
            checkpoints.write_properties(self._env.disk, self.path_of(checkpoints.META_PROPERTIES), properties)
            meta.properties = properties

    def give_up(self, error: OSError | None = None) -> None:
        """Stop using it; `error` says why it failed."""
        self.failed = self.contents.error = error
        for log in self.logs.values():
            self._files.close_folder(log.directory)
        self.logs.clear()
        self.is_open = False
        self._release_lock()

    def is_full(self) -> bool:
        """Whether next to nothing is free on its disk."""
        try:
            return self._env.disk.total_and_free_bytes(self.path)[1] < _FULL_BYTES
        except OSError:
            return False  # its logs will say what is wrong

    def has_room(self) -> bool:
        """Whether files can be made and written: there are free bytes within all limits, and free descriptors."""
        disk, probe = self._env.disk, self.path_of(_PROBE)
        try:
            if disk.total_and_free_bytes(self.path)[1] < _ROOM_BYTES:
                return False
            try:
                with closing(disk.open(probe, create=True)) as file:
                    file.write(0, bytes(_PROBE_BYTES))
            finally:
                disk.remove(probe)
        except OSError:
            return False
        return True

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def close(self, broker_epoch: int) -> None:
        """After the logs are closed: write checkpoints and marker (if no log has failed), and give the lock back.

        `broker_epoch`: the last one of this life.
        """
        if not self._is_begun:  # the start was given up before `begin`: all is as the last stop left it
            self.abandon()
            return
        self._end_names()
        self.checkpoint()
        cleaned = self._checkpoints[checkpoints.CLEANER_OFFSETS]
        if cleaned.written != self.cleaner_offsets:
            cleaned.write_now()
        if all(log.failed is None and log.write_blocked is None for log in self.logs.values()):
            checkpoints.write_clean_epoch(self._env.disk, self.path_of(checkpoints.CLEAN_SHUTDOWN), broker_epoch)
        self._release_lock()

    def abandon(self) -> None:
        """Give the lock back, and write nothing."""
        self._end_names()
        self._release_lock()

    def _end_names(self) -> None:
        if self._names_timer is not None:
            self._names_timer.cancel()
        self.is_open = False

    # -- logs

    def _open_log(
        self, key: tuple[str, int], folder: LogFolder | None, log_start_offset: int, *, clean: bool
    ) -> Pieces[Log]:
        directory = self.path_of(f"{key[0]}-{key[1]}")
        try:
            log = yield from open_log(
                self._env,
                self._files,
                directory,
                *key,
                self._topic_config(key[0]),
                recovery_point=self.recovery_points.get(key, 0),
                log_start_offset=log_start_offset,
                clean=clean,
                found=folder,
            )
        except CorruptBatchError as error:
            raise DataDirectoryError(
                f"{directory} holds damaged records though the last stop was clean: {error}. Remove "
                f"{self.path_of(checkpoints.CLEAN_SHUTDOWN)} and start again to cut the log there, or restore the "
                "folder."
            ) from error
        log.health.on_failed = lambda: self._on_failed(log)
        log.health.on_write_blocked = lambda: self._on_write_blocked(log)
        log.durability.checkpoint = _RecoveryPoint(self, log, self._checkpoints[checkpoints.RECOVERY_POINTS])
        self.logs[key] = log
        return log

    def create(self, topic: str, partition: int) -> Log:
        """Make a log. OSError when it cannot be made."""
        key = (topic, partition)
        assert self.is_open, "no log is made in a directory that is not in use"
        assert key not in self.logs, "the log is there already"
        self._check_that_it_is_there()
        if key in self._strays_in_place:
            self._rename_stray(key)  # or it would be opened as this log
        self._check_that_place_is_free(self.path_of(f"{topic}-{partition}"))
        self.recovery_points.pop(key, None)
        log = at_once(self._open_log(key, None, 0, clean=False))
        self._forget_older_namesake(key)
        self._sync_names_soon()
        logger.debug("created the log %s", log.name)
        return log

    def _check_that_it_is_there(self) -> None:
        """It may have been moved, removed or unmounted since. What is made in its place then is not found again."""
        lock = self.path_of(checkpoints.LOCK)
        try:
            self._env.disk.file_size(lock)
        except FileNotFoundError:
            what = "the data directory was moved, removed or unmounted"
            raise FileNotFoundError(errno.ENOENT, what, lock) from None

    def _check_that_place_is_free(self, path: str) -> None:
        """A folder of that name may not be ours: it would be renamed when the topic is deleted."""
        files = self._env.disk.list_directory(path) if self._env.disk.is_directory(path) else []
        if files and not is_log(files):
            why = f"it is no log, and holds {names_in_a_line(files)}: move it away, and start again"
            raise FileExistsError(errno.EEXIST, why, path)

    def _forget_older_namesake(self, key: tuple[str, int]) -> None:
        """A deleted log of that name may still be in the checkpoints.

        After a crash, its offsets would be the new log's.
        """
        stale = False
        for name in OFFSET_CHECKPOINTS:
            self._checkpoints[name].end_writing()
            stale = stale or self._checkpoints[name].written.get(key, 0) > 0
        if stale:
            self.checkpoint()

    def take_away(self, log: Log) -> str | None:
        """Take a log out of use, and rename its folder so that it ends with `-delete`; the new path.

        OSError: the log stays as it is. None: somebody else has taken its folder away.
        """
        key = (log.topic, log.partition)
        assert self.logs.get(key) is log, "the log is not in this directory"
        path = self.path_of(self._name_taken_away(*key, "delete"))
        log.delete_directory_to(path)
        del self.logs[key]
        if self.cleaner_offsets.pop(key, None) is not None:
            self.write_later(checkpoints.CLEANER_OFFSETS)
        if not self._env.disk.is_directory(path):
            logger.error("%s: its folder was missing already when the log was deleted", log.name)
            return None
        self._unsynced_deletions.add(key)
        self._sync_names_soon()
        return path

    def _name_taken_away(self, topic: str, partition: int, why: str) -> str:
        end = f"-{partition}.{self._env.random_uuid().hex()}-{why}"
        return topic[: _NAME_LENGTH_MAX - len(end)] + end

    def settle_deletion(self, topic: str, partition: int) -> None:
        """Before a log of that name is made anywhere: sync the deletion, so that it does not come back."""
        if (topic, partition) in self._unsynced_deletions:
            self._env.disk.sync_directory(self.path)
            self._unsynced_deletions.clear()

    def _sync_names_soon(self) -> None:
        """Make the names of folders durable in the background, a while later and once for many.

        Nobody waits for it. If a crash loses a folder, the log is made again, because the tree knows it. If a crash
        brings a deleted folder back, the tree does not know its topic, and the next start sets it aside.
        """

        def sync() -> None:
            self._names_timer = None
            if self.is_open:
                deletions = set(self._unsynced_deletions)
                self._env.disk.sync_in_background([], partial(synced, deletions), (self.path,))

        def synced(deletions: set[tuple[str, int]], error: OSError | None) -> None:
            if error is None:
                self._unsynced_deletions -= deletions
            else:
                logger.error("could not sync %s: %s", self.path, error)

        if self._names_timer is None:
            self._names_timer = self._env.clock.call_later(_NAMES_SYNC_DELAY_MS, sync)

    # -- checkpoints

    def checkpoint(self) -> None:
        """Write all offset checkpoints; they are durable when this returns."""
        for name in OFFSET_CHECKPOINTS:
            self._checkpoints[name].write_now()

    def write_log_starts(self) -> None:
        """Before segments are removed: write where the logs begin.

        If the disk is too full for that, they go all the same.
        """
        self._checkpoints[checkpoints.LOG_START_OFFSETS].write_now()

    def write_log_starts_later(self) -> Pending[None]:
        """As `write_log_starts`, without blocking: a sync may take long on a busy disk."""
        durable: Pending[None] = Pending()

        def written(_: None) -> None:
            self._env.disk.sync_in_background([], lambda error: durable.complete(None), [self.path])

        self.write_later(checkpoints.LOG_START_OFFSETS).then(written)
        return durable

    def _collect(self, name: str) -> Pieces[Offsets]:
        """The offsets that an offset checkpoint has to say now."""
        if name == checkpoints.CLEANER_OFFSETS:
            return dict(self.cleaner_offsets)
        offset_of, found = _OFFSET_OF[name], Offsets()
        if name == checkpoints.RECOVERY_POINTS:
            self.recovery_points = found  # at once: a point that is lowered meanwhile is compared with what is in it
        for some in chunks(list(self.logs), _LOGS_ASKED_AT_ONCE):
            found |= ((key, offset_of(log)) for key in some if (log := self.logs.get(key)) is not None)
            yield None
        return found if name != checkpoints.LOG_START_OFFSETS else {key: found[key] for key in found if found[key] > 0}

    def write_later(self, name: str) -> Pending[None]:
        """Write a checkpoint if anything has changed. The Pending completes when that is done, or has failed."""
        return self._checkpoints[name].write_later()


class _RecoveryPoint:
    """A log's line in the checkpoint of the recovery points (`durability.RecoveryPointCheckpoint`)."""

    __slots__ = ("_directory", "_key", "_log", "_points")

    def __init__(self, directory: LogDirectory, log: Log, points: OffsetCheckpoint) -> None:
        self._directory = directory
        self._log = log
        self._key = (log.topic, log.partition)
        self._points = points

    def says_too_much(self) -> bool:
        if self._directory.logs.get(self._key) is not self._log:
            return False
        said = max(points.get(self._key, 0) for points in (self._points.written, self._directory.recovery_points))
        return said > self._log.durability.recovery_point

    def write(self) -> OSError | None:
        return self._points.write_now()

    def write_later(self) -> Pending[OSError | None]:
        durable: Pending[OSError | None] = Pending()
        points, disk = self._points, self._log.env.disk

        def written(_: None) -> None:
            if points.written.get(self._key, 0) > self._log.durability.recovery_point:
                durable.complete(points.not_writable or OSError(errno.EIO, "not written", points.path))
            else:
                disk.sync_in_background([], durable.complete, [self._directory.path])

        points.write_later().then(written)
        return durable
