"""All logs of a broker, in one data directory or several: starting and stopping, placement, periodic upkeep."""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from barnabas.config.broker import BrokerConfig
from barnabas.protocol import uuids
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import at_once
from barnabas.runtime.upkeep import Task, Work
from barnabas.storage import checkpoints, retention
from barnabas.storage.cleaner import Cleaner
from barnabas.storage.directory_contents import (
    TREE_FILE,
    DataDirectoryError,
    DirectoryContents,
    Meta,
    advice_for,
    paths_of,
    remove_deleted_folder,
)
from barnabas.storage.directory_plan import (
    NO_CHOICE,
    DirectoryPlan,
    StartChoice,
    Stray,
    check_cluster,
    check_node,
    old_copies,
    plan_directories,
)
from barnabas.storage.disk_space import LOOK_MS as SPACE_LOOK_MS
from barnabas.storage.disk_space import FreeSpace
from barnabas.storage.flushes import Flushes
from barnabas.storage.log import Log, close_together
from barnabas.storage.log_directory import LogDirectory
from barnabas.storage.open_files import MORE_FILES_MS, OpenFiles, share_out
from barnabas.storage.recovery import OldFormatError, Pieces, Progress
from barnabas.storage.topic_configs import TopicConfigs
from barnabas.storage.troubles import SPAN_MS as TROUBLES_SPAN_MS
from barnabas.storage.troubles import Troubles
from barnabas.storage.write_blocks import WriteBlocks

MARKS_IN_FLIGHT = 3  # more than a kill leaves

logger = logging.getLogger("barnabas.storage")

_FILES_CHECK_MS = 1_000
_PIECES_MS = 10  # how long a start works before the loop goes round
_PROGRESS_INTERVAL_MS = 3_000


class LogManager:
    """Owns every Log. `start`, then `get_or_create` and the rest, `shutdown` at the end.

    `data_directories` is one path or several (log.dirs). A directory that does not work when the broker starts is
    `failed` and has no logs; the others serve.
    """

    def __init__(
        self,
        env: Env,
        data_directories: str | Sequence[str],
        config: BrokerConfig,
        topic_overrides: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._env = env
        self.config = config
        self.configs = TopicConfigs(config, topic_overrides)
        shares = share_out(env.disk.open_files_max())
        self._files = OpenFiles(env.disk, shares.segments)
        self._flushes = Flushes(self.all, self.configs, shares.reserve, lambda: config.log_flush_scheduler_interval_ms)
        self.troubles = Troubles()
        self.write_blocks = WriteBlocks(env.clock, self.directory_of, self.room_check_ms)
        self.broker_epoch = -1  # the last one that is known of the broker whose logs these are
        self.old_copies: list[LogDirectory] = []
        self._topics_with_fewer_logs: set[str] = set()
        self._tasks: list[Task[Any]] = []
        self._shortened: list[Log] = []  # by the current round of retention
        self.directories = [self._directory(path) for path in paths_of(data_directories)]
        self._plan: DirectoryPlan | None = None
        self.on_failed: list[Callable[[Log], None]] = []
        self.free_space: dict[str, FreeSpace] = {}  # by the path of the directory
        self.cleaner = Cleaner(env, self._files, self)
        self.hold_of: Callable[[Log], Pieces[retention.Hold | None]] = retention.no_hold  # what groups have not read
        self.rests: Callable[[str], bool] = lambda topic: False  # whether nothing of a topic is to be deleted now
        self.waits = retention.Waits(lambda log: self.hold_of(log), self._has_room_for)
        self._retention: Task[Any] | None = None

    def _directory(self, path: str) -> LogDirectory:
        folder, _, name = (self.config.coordination_path or "").rpartition("/")
        tree_name = name if folder == path else TREE_FILE
        return LogDirectory(
            self._env, self._files, path, self.configs.of, self._log_failed, self._log_write_blocked, tree_name
        )

    # -- start and stop

    def open(self, node_id: int | None = None, choice: StartChoice = NO_CHOICE) -> None:
        """See what is in the directories and decide which are used. DataDirectoryError is raised before any change."""
        if self._plan is not None:
            return  # the broker has opened it before
        with self._giving_up():
            at_once(self._in_each(LogDirectory.read))
            plan = plan_directories(self.contents, node_id, choice)
            self._take_offline(plan)
        self._plan = plan

    def take(self) -> None:
        """Begin to use the directories: make the missing ones, lock all.

        DataDirectoryError if another broker uses one.
        """
        self.open()
        if not self.open_directories:
            with self._giving_up():
                at_once(self._in_each(LogDirectory.take))

    def leave_out(self, strays: Iterable[Stray]) -> None:
        """Before `load`: do not open these logs."""
        at = {directory.path: directory for directory in self.directories}
        for path, topic, partition in strays:
            at[path].folders.pop((topic, partition), None)

    def set_aside(self, strays: Iterable[Stray]) -> None:
        """Rename the folders of logs that are left out to `….-stray`. They are not deleted."""
        at = {directory.path: directory for directory in self.open_directories}
        for path, topic, partition in strays:
            if path in at:
                at[path].set_aside((topic, partition))

    async def load(self) -> None:
        """As `start`, in pieces between which the loop runs.

        If it is cancelled, the directories are as after a crash.
        """
        clock = self._env.clock
        pieces = self._start()
        pause_ms = clock.monotonic_ms() + _PIECES_MS
        say_ms = clock.monotonic_ms() + _PROGRESS_INTERVAL_MS
        try:
            for progress in pieces:
                now_ms = clock.monotonic_ms()
                if now_ms >= say_ms:
                    self._say_progress(progress)
                    say_ms = now_ms + _PROGRESS_INTERVAL_MS
                if now_ms >= pause_ms:
                    await clock.sleep(0)
                    pause_ms = clock.monotonic_ms() + _PIECES_MS
        finally:
            pieces.close()

    def _say_progress(self, progress: Progress | None) -> None:
        opened = sum(len(directory.logs) for directory in self.open_directories)
        found = sum(len(directory.folders) for directory in self.open_directories)
        now = ""
        if progress is not None and progress.of_bytes:
            now = f", {progress.log}: {progress.checked_bytes >> 20} of {progress.of_bytes >> 20} MiB"
        logger.info("opening the logs: %d of %d are open%s", opened, found, now)

    def start(self) -> None:
        """Load the logs, and begin the upkeep.

        DataDirectoryError if a directory is in use, belongs to another broker or says anything that cannot be true, and
        if none can be used.
        """
        at_once(self._start())

    def _start(self) -> Pieces[None]:
        self.take()
        with self._giving_up():
            yield from self._in_each(LogDirectory.load)
            yield from self._in_each(LogDirectory.begin)
        self.config.on_change.append(self._broker_config_changed)
        self._begin_upkeep()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Give all directories up if a step of the start raises."""
        try:
            yield
        except BaseException:
            for directory in self.directories:
                directory.give_up(directory.failed)
            raise

    def _in_each(self, step: Callable[[LogDirectory], Pieces[None] | None]) -> Pieces[None]:
        """Take a step of the start in every directory that works. If a disk does not work, leave its directory out."""
        problems = []
        for directory in self.directories:
            if directory.failed is not None:
                continue
            try:
                yield from step(directory) or ()
            except OSError as error:
                directory.give_up(error)
                problems.append(f"The data directory {directory.path} cannot be used: {error}. {advice_for(error)}")
            except OldFormatError as error:
                raise DataDirectoryError(str(error)) from error
            except checkpoints.CheckpointError as error:
                message = f"{error}. Restore that file from a backup, or move it away if its content does not matter."
                raise DataDirectoryError(message) from error
        if all(directory.failed is not None for directory in self.directories):
            raise DataDirectoryError(" ".join(problems))
        for problem in problems:
            logger.error("%s Until the next start its partitions are offline.", problem)

    def _take_offline(self, plan: DirectoryPlan) -> None:
        for directory in self.directories:
            why = plan.offline.get(directory.path)
            if why is not None:
                directory.give_up(OSError(errno.ENODEV, why))
                logger.error("the data directory %s is offline: %s", directory.path, why)
        for directory_id, path in plan.given_up.items():
            text = "the data directory %s (%s) is given up: the partitions that were in it begin empty"
            logger.warning(text, path, directory_id)
        for name in plan.not_missed:
            logger.warning("there is nothing to give up: no data directory %s is missing", name)
        for directory_id, path in plan.missing.items():
            logger.error(
                "the data directory %s (%s) is one of this broker's, and log.dirs does not name it: its partitions are "
                "offline; name it again, or if it is lost, start once with --give-up %s: they begin empty then",
                path,
                directory_id,
                directory_id,
            )
            lost = self._directory(path)
            lost.give_up(OSError(errno.ENODEV, "log.dirs does not name it"))
            self.directories.append(lost)
        if all(directory.failed is not None for directory in self.directories):
            reasons = [f"The data directory {place.path} cannot be used: {place.failed}." for place in self.directories]
            raise DataDirectoryError(" ".join(reasons))

    @property
    def contents(self) -> list[DirectoryContents]:
        """What was found in each directory."""
        return [directory.contents for directory in self.directories]

    def initialise(self, node_id: int, cluster_id: str, tree_path: str | None = None) -> None:
        """Write into each directory whose it is, which the others are, and where the tree is if not in one of them."""
        check_node(self.contents, node_id)  # once more, because another broker may have made the tree meanwhile
        check_cluster(self.contents, cluster_id)
        paths: dict[str, str] = {}
        for directory in self.open_directories:
            meta = directory.contents.meta
            meta.tree_path = tree_path
            meta.directory_id = meta.directory_id or uuids.to_text(self._env.random_uuid())
            paths[meta.directory_id] = directory.path
        if self._plan is not None:
            paths = self._plan.remembered | paths
        for directory in self.open_directories:
            others = {key: path for key, path in paths.items() if key != directory.contents.meta.directory_id}
            directory.write_meta(node_id, cluster_id, others)

    def shutdown(self) -> None:
        """Stop cleanly: close the logs; then each directory writes checkpoints and marker, and gives its lock back."""
        self._end_tasks()
        close_together(self._env.disk, self.all())
        self._end_files()
        for directory in self.directories:
            try:
                directory.close(self.broker_epoch)
            except OSError as error:
                logger.error("could not close the data directory %s: %s", directory.path, error)
                directory.give_up(error)

    def abandon(self) -> None:
        """Leave everything as it is, as SIGKILL does: what is here is not needed any more."""
        self._end_tasks()
        for log in self.all():
            log.abandon()
        self._end_files()
        for directory in self.directories:
            directory.abandon()

    def _end_tasks(self) -> None:
        for task in self._tasks:
            task.stop()
        self._tasks.clear()
        self.cleaner.stop()
        if self._broker_config_changed in self.config.on_change:
            self.config.on_change.remove(self._broker_config_changed)

    def _end_files(self) -> None:
        self._files.close_all()
        self.troubles.span_ends()
        self._plan = None

    # -- directories

    @property
    def open_directories(self) -> list[LogDirectory]:
        """The directories in use: those that have not failed, between `start` and `shutdown`."""
        return [directory for directory in self.directories if directory.is_open]

    @property
    def failed_directories(self) -> list[LogDirectory]:
        """The directories that did not work when the broker started."""
        return [directory for directory in self.directories if directory.failed is not None]

    @property
    def missing(self) -> list[tuple[str, int]]:
        """Partitions that had records at the last checkpoint and have no log: deleted since, or lost."""
        found = chain.from_iterable(directory.missing for directory in self.open_directories)
        return [key for key in found if self.get(*key) is None]

    @property
    def meta(self) -> Meta:
        """Whose directories these are, by the first one that says it."""
        return next((contents.meta for contents in self.contents if contents.is_formatted), Meta())

    @property
    def was_clean(self) -> bool:
        """Whether the last stop was clean. If not, a replica may have lost records."""
        return all(directory.was_clean for directory in self.open_directories)

    def take_epoch(self, registered: int) -> None:
        """The broker registered last in this epoch, says the tree. A directory that was not in use then is a copy."""
        self.broker_epoch = min((directory.contents.clean_epoch for directory in self.open_directories), default=-1)
        copies = old_copies([directory.contents for directory in self.open_directories], registered)
        self._note_old_copies([directory for directory in self.open_directories if directory.path in copies])

    def take_mark(self, in_tree: int, durable: int) -> None:
        """The tree has this mark of the broker. A directory with a smaller one is a copy that was made before.

        The mark comes to the tree first, so a kill leaves it a little smaller; and the end of the power more than that,
        but not smaller than what was `durable`.
        """

        def is_behind(directory: LogDirectory) -> bool:
            killed = 0 if directory.may_lack_ends else in_tree - MARKS_IN_FLIGHT
            return 0 < directory.contents.tree_knowledge.mark < max(durable, killed)

        self._note_old_copies([each for each in self.open_directories if each.folders and is_behind(each)])

    def _note_old_copies(self, found: Sequence[LogDirectory]) -> None:
        new = [directory for directory in found if directory not in self.old_copies]
        self.old_copies += new
        if new:
            logger.warning(
                "%s: an old copy of this broker's data directory, its logs may lack records that the broker had since",
                ", ".join(directory.path for directory in new),
            )

    @property
    def gives_up(self) -> bool:
        """Whether a directory is given up. Nothing else may tell what was in it."""
        return self._plan is not None and bool(self._plan.given_up)

    @property
    def may_lack_records(self) -> bool:
        """Whether some log may lack records that it had when this broker ran last."""
        known = (
            self.gives_up or self.old_copies or self.missing or any(log.missing_from is not None for log in self.all())
        )
        return not self.was_clean or bool(known)

    def has_lost(self, topic: str, partition: int) -> bool:
        """Whether the log is gone, only here as an old copy, or lacks records. One that is offline is not lost."""
        log = self.get(topic, partition)
        if log is None:
            return not self.failed_directories
        return log.missing_from is not None or self.directory_of(log) in self.old_copies

    def may_lack_end(self, topic: str, partition: int) -> bool:
        """Whether the end of the log may be lost, because the machine lost its power."""
        log = self.get(topic, partition)
        directory = None if log is None else self.directory_of(log)
        return directory is not None and directory.may_lack_ends

    def write_boot_ids(self) -> None:
        """This broker serves what its logs have: what they may have lack does not matter to a later start."""
        for directory in self.open_directories:
            directory.write_boot_id()

    def directory_of(self, log: Log) -> LogDirectory | None:
        """The directory of a log; None if the log was taken away."""
        key = (log.topic, log.partition)
        return next((directory for directory in self.directories if directory.logs.get(key) is log), None)

    def _place(self, topic: str, partition: int, *, is_new: bool) -> LogDirectory:
        """In which directory a log is made.

        If an attempt that failed has left its folder, there, because a log must not be in two directories. A foreign
        folder does not count. Else in the directory with the fewest logs, if possible one that can be written.
        OSError if it may be in one that is offline.
        """
        places = self.open_directories
        if len(self.directories) > 1:
            name = f"{topic}-{partition}"
            begun = [place for place in places if self._has_begun(place, name)]
            if self.failed_directories and not is_new and not begun:
                paths = ", ".join(directory.path for directory in self.failed_directories)
                raise OSError(errno.EIO, f"it may be in a data directory that is offline: {paths}")
            places = begun or sorted(places, key=lambda place: (self.write_blocks.refuses(place), len(place.logs)))
        return places[0]

    def _has_begun(self, place: LogDirectory, name: str) -> bool:
        """Whether a directory has a folder of a log, which may be empty still."""
        disk, path = self._env.disk, place.path_of(name)
        return disk.is_directory(path) and (name not in place.contents.foreign or not disk.list_directory(path))

    # -- logs

    def get(self, topic: str, partition: int) -> Log | None:
        for directory in self.directories:
            log = directory.logs.get((topic, partition))
            if log is not None:
                return log
        return None

    def all(self) -> list[Log]:
        """Every log, by directory, topic and partition as loaded or made."""
        return list(chain.from_iterable(directory.logs.values() for directory in self.directories))

    def get_or_create(self, topic: str, partition: int, topic_id: bytes | None, *, is_new: bool = False) -> Log:
        """The log, which is made if it is missing. OSError if it cannot be made.

        It is not made while a directory is failed, because it may be in that one. But a partition that `is_new` is.
        """
        try:
            return self._get_or_create(topic, partition, topic_id, is_new)
        except OSError as error:
            if not self._files.make_room(error):
                raise
            return self._get_or_create(topic, partition, topic_id, is_new)

    def _get_or_create(self, topic: str, partition: int, topic_id: bytes | None, is_new: bool) -> Log:
        log = self.get(topic, partition)
        if log is None:
            for directory in self.open_directories:
                directory.settle_deletion(topic, partition)
            log = self._place(topic, partition, is_new=is_new).create(topic, partition)
        if topic_id is not None and log.topic_id is None and topic_id != uuids.ZERO:
            log.write_topic_id(topic_id)
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Take the log away. Its folder is renamed now, and removed after file.delete.delay.ms.

        OSError: it could not be renamed, and the log stays.
        """
        log = self.get(topic, partition)
        directory = None if log is None else self.directory_of(log)
        if log is None or directory is None:
            return
        path = directory.take_away(log)
        self.cleaner.forget(log)
        self.waits.forget(log)
        if path is None:
            return
        if not self._topics_with_fewer_logs:
            self._env.clock.call_soon(self._forget_configs)
        self._topics_with_fewer_logs.add(topic)
        logger.debug("deleting the log %s", log.name)

        def remove() -> Pieces[None]:
            remove_deleted_folder(self._env.disk, path)
            yield None

        def begin() -> None:  # if many topics were deleted together, all folders are due together
            self._env.turns.begin(remove())

        self._env.clock.call_later(log.config.file_delete_delay_ms, begin)

    def _forget_configs(self) -> None:
        """Forget the config of topics that have no log here any more, once for many logs that went together."""
        gone, self._topics_with_fewer_logs = self._topics_with_fewer_logs, set()
        self.configs.forget(gone.difference(topic for place in self.directories for topic, _ in place.logs))

    def room_check_ms(self) -> int:
        """How often it is looked whether a disk can be written again."""
        return self.config.log_dir_room_check_interval_ms

    def _log_write_blocked(self, log: Log) -> None:
        self.write_blocks.note(log)
        if log.write_blocked is not None and self.waits and self._retention is not None:
            self._retention.run_soon()  # what is held back for groups may make room

    def _note_space(self, directory: LogDirectory) -> None:
        """Remember what is free, so that it can be said when the disk will be full."""
        _, free = self._env.disk.total_and_free_bytes(directory.path)
        self.free_space.setdefault(directory.path, FreeSpace()).add(self._env.clock.now_ms(), free)

    def _log_failed(self, log: Log) -> None:
        self.troubles.tell("offline", log.name, f"offline until the next start: {log.failed}")
        for callback in self.on_failed:
            callback(log)

    def update_topic_config(self, topic: str) -> None:
        """The topic's settings changed: its logs take them up."""
        self.configs.forget([topic])
        for log in self.all():
            if log.topic == topic:
                log.config = self.configs.of(topic)

    def _broker_config_changed(self, names: frozenset[str]) -> None:
        self.configs.forget_all()
        for log in self.all():
            log.config = self.configs.of(log.topic)

    # -- upkeep

    def _begin_upkeep(self) -> None:
        assert not self._tasks, "the upkeep has begun already"
        config, every = self.config, self._env.upkeep.every
        checkpoint_intervals_ms: dict[str, Callable[[], float]] = {
            checkpoints.RECOVERY_POINTS: lambda: config.log_flush_offset_checkpoint_interval_ms,
            checkpoints.LOG_START_OFFSETS: lambda: config.log_flush_start_offset_checkpoint_interval_ms,
            checkpoints.HIGH_WATERMARKS: lambda: config.replica_high_watermark_checkpoint_interval_ms,
            checkpoints.CLEANER_OFFSETS: lambda: config.log_flush_offset_checkpoint_interval_ms,
        }
        self.cleaner.task = every(
            "cleaner", lambda: config.log_cleaner_backoff_ms, self.cleaner.choose, self.cleaner.compact
        )
        self._retention = every(
            "retention", lambda: config.log_retention_check_interval_ms, self._to_retain, self._retain
        )
        self._tasks = [
            self._retention,
            every("indexes", lambda: config.log_retention_check_interval_ms, self.all, Log.give_back_indexes),
            *(
                every(name, interval_ms, lambda: self.open_directories, partial(_write_later, name))
                for name, interval_ms in checkpoint_intervals_ms.items()
            ),
            every("flush", self._flushes.interval_ms, self._flushes.due, Flushes.flush),
            every("files", lambda: _FILES_CHECK_MS, self.all, Log.check_file),
            every("room", self.room_check_ms, lambda: self.open_directories, self.write_blocks.look),
            every("open files", lambda: MORE_FILES_MS, lambda: [self._files], OpenFiles.keep_more),
            every("disk space", lambda: SPACE_LOOK_MS, lambda: self.open_directories, self._note_space),
            every(
                "producers", lambda: config.producer_id_expiration_check_interval_ms, self.all, self._expire_producers
            ),
            every("troubles", lambda: TROUBLES_SPAN_MS, lambda: [self.troubles], Troubles.span_ends),
            self.cleaner.task,
        ]

    def checkpoint(self) -> None:
        """Write all offset checkpoints; they are durable when this returns."""
        for directory in self.open_directories:
            directory.checkpoint()

    def apply_retention(self) -> None:
        """Delete what is too old or too much, and give back the memory of indexes that nobody reads."""
        for item in self._to_retain():
            if isinstance(item, LogDirectory):
                item.write_log_starts()
                continue
            for _ in self._retain(item):
                pass
        for log in self.all():
            log.give_back_indexes()

    def _to_retain(self) -> Iterator["Log | LogDirectory | _Shortened"]:
        """For each directory: its logs, to raise their starts; itself, to write them down; logs with segments below."""
        for directory in self.open_directories:
            self._shortened = []
            yield from [log for log in directory.logs.values() if not self.rests(log.topic)]
            shortened, self._shortened = self._shortened, []
            if shortened:
                yield directory
                yield from map(_Shortened, shortened)

    def _retain(self, item: "Log | LogDirectory | _Shortened") -> Work:
        if isinstance(item, LogDirectory):
            yield item.write_log_starts_later()
        elif isinstance(item, _Shortened):
            while retention.remove_segments_below_start(item.log):
                yield None
        else:
            if (yield from retention.raise_log_start(item, self._env.clock.now_ms(), self.waits)):
                self._shortened.append(item)

    def _has_room_for(self, log: Log) -> bool:
        """Whether every log of the same directory could be written."""
        directory = self.directory_of(log)
        return directory is None or not self.write_blocks.of(directory)

    def _expire_producers(self, log: Log) -> None:
        log.producers.expire(self._env.clock.now_ms(), self.config.producer_id_expiration_ms)


class _Shortened(NamedTuple):
    """A log whose start retention has raised: its segments below that can go."""

    log: Log


def _write_later(name: str, directory: LogDirectory) -> None:
    directory.write_later(name)
