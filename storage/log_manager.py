"""All logs of one data directory: its lock and identity, starting and stopping, checkpoints, periodic upkeep."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from barnabas.config.broker import BrokerConfig
from barnabas.config.topic import TopicConfig
from barnabas.protocol import uuids
from barnabas.protocol.errors import CorruptBatchError
from barnabas.runtime.ports import DirectoryLock, Disk, Env, Timer
from barnabas.storage import checkpoints
from barnabas.storage.cleaner import Cleaner
from barnabas.storage.durable_log import close_together, flush_together
from barnabas.storage.log import Log
from barnabas.storage.open_files import OpenFiles
from barnabas.storage.recovery import OldFormatError, open_log

logger = logging.getLogger("barnabas.storage")

_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)\Z")
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete\Z")
_NAME_LENGTH_MAX = 255
_NEVER_MS = 2**63 - 1
_OPEN_FILES_MIN = 64
_NAMES_SYNC_DELAY_MS = 1_000
_FLUSHES_PER_TICK = 64  # each holds some files open until it is done
_NO_PARTITION_DIRECTORIES = frozenset(("__cluster_metadata-0",))


class DataDirectoryError(Exception):
    """The data directory cannot be used; the text says what to do."""


@dataclass(slots=True)
class Meta:
    """Whose directory this is; None where it was not said yet."""

    node_id: int | None = None
    cluster_id: str | None = None
    directory_id: str | None = None


def read_meta(disk: Disk, data_directory: str) -> Meta:
    """What meta.properties says: version 0 is of Kafka with ZooKeeper, 1 of KRaft and of Barnabas. CheckpointError."""
    path = f"{data_directory}/{checkpoints.META_PROPERTIES}"
    properties = checkpoints.read_properties(disk, path)
    if properties is None:
        return Meta()
    version = properties.get("version")
    if version not in ("0", "1"):
        raise checkpoints.CheckpointError(f"{path}: version {version!r} is not known")
    node_id = properties.get("node.id" if version == "1" else "broker.id")
    if node_id is not None and not node_id.lstrip("-").isdigit():
        raise checkpoints.CheckpointError(f"{path}: {node_id!r} is not a node id")
    return Meta(None if node_id is None else int(node_id), properties.get("cluster.id"), properties.get("directory.id"))


def number_of_directory(disk: Disk, data_directory: str) -> int | None:
    """The node id of a data directory; None where it says none or cannot be read, which `LogManager.start` tells."""
    try:
        return read_meta(disk, data_directory.rstrip("/")).node_id
    except (OSError, checkpoints.CheckpointError):
        return None


class LogManager:
    """Owns every Log of `data_directory`. `start`, then `get_or_create` and the rest, `shutdown` at the end."""

    def __init__(
        self,
        env: Env,
        data_directory: str,
        config: BrokerConfig,
        topic_overrides: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._env = env
        self.data_directory = data_directory.rstrip("/") or "/"
        self.config = config
        self._topic_overrides = topic_overrides
        self._files = OpenFiles(env.disk, max(_OPEN_FILES_MIN, env.disk.open_files_max() // 2))  # the rest for clients
        self._logs: dict[tuple[str, int], Log] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._default_config: TopicConfig | None = None
        self._lock: DirectoryLock | None = None
        self._timers: dict[str, Timer] = {}
        self._written: dict[str, dict[tuple[str, int], int]] = {}  # by checkpoint file
        self._writing: dict[str, object] = {}
        self._recovery_points: dict[tuple[str, int], int] = {}
        self._names_changed = False
        self._unsynced_deletions: set[tuple[str, int]] = set()
        self.meta = Meta()
        self.was_clean = True  # whether the last stop was; a replica that may have lost records must know
        self.on_failed: list[Callable[[Log], None]] = []
        self.cleaner = Cleaner(env, self._files, self)

    # -- start and stop

    def start(self) -> None:
        """Lock and load. DataDirectoryError when the directory is in use, another's, or cannot be read."""
        disk = self._env.disk
        try:
            self._make_directory(self.data_directory)
            self._take_lock()
            self.meta = read_meta(disk, self.data_directory)
            self._load_logs()
        except checkpoints.CheckpointError as error:
            self._release_lock()
            message = f"{error}. Restore that file from a backup, or move it away if its content does not matter."
            raise DataDirectoryError(message) from error
        except OldFormatError as error:
            self._release_lock()
            raise DataDirectoryError(str(error)) from error
        except OSError as error:
            self._release_lock()
            message = (
                f"The data directory {self.data_directory} cannot be read: {error}. "
                "Check that it is a folder on a healthy disk that this user may write to."
            )
            raise DataDirectoryError(message) from error
        except DataDirectoryError:
            self._release_lock()
            raise
        self.config.on_change.append(self._broker_config_changed)
        self._begin_upkeep()

    def _make_directory(self, path: str) -> None:
        """Make the folder and what is missing above it, each durable: a name is only as durable as those above it."""
        disk = self._env.disk
        if disk.is_directory(path):
            return
        parent = path.rpartition("/")[0] or "/"
        self._make_directory(parent)
        disk.make_directory(path)
        disk.sync_directory(parent)

    def _take_lock(self) -> None:
        path = f"{self.data_directory}/{checkpoints.LOCK}"
        try:
            self._lock = self._env.disk.lock(path)
        except BlockingIOError as error:
            message = (
                f"Another broker uses the data directory {self.data_directory} (it holds {path}). "
                "Stop that one, or give this one a directory of its own."
            )
            raise DataDirectoryError(message) from error

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, name: str) -> str:
        return f"{self.data_directory}/{name}"

    def initialise(self, node_id: int, cluster_id: str) -> None:
        """Check that the directory is this node's, and write whose it is where that was missing.

        DataDirectoryError when it belongs to another node or cluster.
        """
        meta = self.meta
        path = self._path(checkpoints.META_PROPERTIES)
        if meta.node_id is not None and meta.node_id != node_id:
            raise DataDirectoryError(
                f"The data directory {self.data_directory} belongs to node {meta.node_id}, this is node {node_id} "
                f"({path}). Start with node id {meta.node_id}, or with another directory."
            )
        if meta.cluster_id is not None and meta.cluster_id != cluster_id:
            raise DataDirectoryError(
                f"The data directory {self.data_directory} belongs to cluster {meta.cluster_id}, this broker to "
                f"cluster {cluster_id} ({path}). Use that cluster's coordination, or another directory."
            )
        if meta.node_id is not None and meta.cluster_id is not None and meta.directory_id is not None:
            return
        directory_id = meta.directory_id or uuids.to_text(self._env.random_uuid())
        self.meta = Meta(node_id, cluster_id, directory_id)
        checkpoints.write_properties(
            self._env.disk,
            path,
            {"version": "1", "node.id": str(node_id), "cluster.id": cluster_id, "directory.id": directory_id},
        )

    def _load_logs(self) -> None:
        disk = self._env.disk
        marker = self._path(checkpoints.CLEAN_SHUTDOWN)
        names = disk.list_directory(self.data_directory)
        self.was_clean = checkpoints.CLEAN_SHUTDOWN in names
        self._recovery_points = checkpoints.read_offsets(disk, self._path(checkpoints.RECOVERY_POINTS))
        log_starts = checkpoints.read_offsets(disk, self._path(checkpoints.LOG_START_OFFSETS))
        high_watermarks = checkpoints.read_offsets(disk, self._path(checkpoints.HIGH_WATERMARKS))
        self._written = {
            checkpoints.RECOVERY_POINTS: dict(self._recovery_points),
            checkpoints.LOG_START_OFFSETS: log_starts,
            checkpoints.HIGH_WATERMARKS: high_watermarks,
        }
        strays = [name for name in names if name.endswith("-stray")]
        if strays:
            logger.info("%d folders are left from topics that are gone, the first is %s", len(strays), strays[0])
        for name in names:
            if _DELETED.match(name):
                disk.remove_tree(self._path(name))
                continue
            match = _DIRECTORY.match(name)
            if match is None or name in _NO_PARTITION_DIRECTORIES or not disk.is_directory(self._path(name)):
                continue
            key = (match["topic"], int(match["partition"]))
            log = self._open(key, self._path(name), log_starts.get(key, 0), clean=self.was_clean)
            log.set_high_watermark(high_watermarks.get(key, log.log_start_offset))
        if self.was_clean:  # from here on a stop is clean only if `shutdown` says so
            disk.remove(marker)
            disk.sync_directory(self.data_directory)
        elif self._logs:
            flush_together(disk, self._logs.values())
            self._write_now(checkpoints.RECOVERY_POINTS, self._collect_recovery_points())
            logger.info("Recovered %d logs after an unclean stop", len(self._logs))

    def _open(self, key: tuple[str, int], directory: str, log_start_offset: int, *, clean: bool) -> Log:
        try:
            log = open_log(
                self._env,
                self._files,
                directory,
                *key,
                self.topic_config(key[0]),
                recovery_point=self._recovery_points.get(key, 0),
                log_start_offset=log_start_offset,
                clean=clean,
            )
        except CorruptBatchError as error:
            raise DataDirectoryError(
                f"{directory} holds damaged records though the last stop was clean: {error}. Remove "
                f"{self._path(checkpoints.CLEAN_SHUTDOWN)} and start again to cut the log there, or restore the folder."
            ) from error
        log.on_failed = lambda: self._log_failed(log)
        log.on_recovery_point_lowered = lambda: self._recovery_point_lowered(log)
        self._logs[key] = log
        return log

    def shutdown(self) -> None:
        """Stop cleanly: logs closed, checkpoints, marker, lock. Without the marker when any log failed."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.cleaner.stop()
        if self._broker_config_changed in self.config.on_change:
            self.config.on_change.remove(self._broker_config_changed)
        close_together(self._env.disk, self._logs.values())
        if self._lock is None:
            return
        self.checkpoint()
        if all(log.failed is None for log in self._logs.values()):
            checkpoints.write_text(
                self._env.disk, self._path(checkpoints.CLEAN_SHUTDOWN), '{"version":0,"brokerEpoch":-1}'
            )
        self._files.close_all()
        self._release_lock()

    # -- logs

    def get(self, topic: str, partition: int) -> Log | None:
        """The log, or None."""
        return self._logs.get((topic, partition))

    def all(self) -> list[Log]:
        """Every log, by topic and partition as loaded or made."""
        return list(self._logs.values())

    def get_or_create(self, topic: str, partition: int, topic_id: bytes | None) -> Log:
        """The log, made when missing. OSError when it cannot be made."""
        try:
            return self._get_or_create(topic, partition, topic_id)
        except OSError as error:
            if not self._files.make_room(error):
                raise
            return self._get_or_create(topic, partition, topic_id)

    def _get_or_create(self, topic: str, partition: int, topic_id: bytes | None) -> Log:
        log = self._logs.get((topic, partition))
        if log is None:
            key = (topic, partition)
            if key in self._unsynced_deletions:  # a crash must not bring the deleted one back under this name
                self._env.disk.sync_directory(self.data_directory)
                self._unsynced_deletions.clear()
            self._recovery_points.pop(key, None)
            log = self._open(key, self._path(f"{topic}-{partition}"), 0, clean=False)
            self._forget_older_namesake(key)
            self._sync_names_soon()
            logger.debug("Made the log %s", log.name)
        if topic_id is not None and log.topic_id is None and topic_id != uuids.ZERO:
            log.write_topic_id(topic_id)
        return log

    def _forget_older_namesake(self, key: tuple[str, int]) -> None:
        """A deleted log of that name may be in the checkpoints still: after a crash they would speak of the new one."""
        stale = False
        for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS):
            self._writing.pop(name, None)
            stale = stale or self._written.get(name, {}).get(key, 0) > 0
        if stale:
            self.checkpoint()

    def delete(self, topic: str, partition: int) -> None:
        """Take the log away; its folder is renamed now and removed after file.delete.delay.ms."""
        log = self._logs.get((topic, partition))
        path = self._rename_away(topic, partition, "delete")
        if log is None or path is None:
            return
        logger.debug("Deleting the log %s", log.name)

        def remove() -> None:
            try:
                self._files.close_folder(path)
                self._env.disk.remove_tree(path)
            except OSError as error:
                logger.warning("%s could not be removed: %s", path, error)

        self._env.clock.call_later(log.config.file_delete_delay_ms, remove)

    def set_aside(self, topic: str, partition: int) -> None:
        """The log has no topic: its folder is renamed to `….-stray` and stays."""
        self._rename_away(topic, partition, "stray")

    def _rename_away(self, topic: str, partition: int, why: str) -> str | None:
        """Take a log out of use under another name; its new path, None when that failed."""
        log = self._logs.pop((topic, partition), None)
        if log is None:
            return None
        self.cleaner.forget(log)
        end = f"-{partition}.{self._env.random_uuid().hex()}-{why}"
        path = self._path(topic[: _NAME_LENGTH_MAX - len(end)] + end)
        try:
            log.delete_directory_to(path)
        except OSError as error:
            logger.error("%s could not be renamed to %s: %s", log.name, path, error)
            return None
        self._unsynced_deletions.add((topic, partition))
        self._sync_names_soon()
        if not any(other == topic for other, _ in self._logs):
            self._configs.pop(topic, None)
        return path

    def _sync_names_soon(self) -> None:
        """Make the names of folders durable, in the background, a while later and once for many.

        Nobody waits for it: a folder that a crash loses is made again from the tree, one that it brings back has no
        topic there any more and is set aside at the next start.
        """

        def sync() -> None:
            self._names_changed = False
            if self._lock is not None:
                deletions = set(self._unsynced_deletions)
                self._env.disk.sync_in_background([], partial(synced, deletions), (self.data_directory,))

        def synced(deletions: set[tuple[str, int]], error: OSError | None) -> None:
            if error is None:
                self._unsynced_deletions -= deletions
            else:
                logger.error("%s could not be synced: %s", self.data_directory, error)

        if not self._names_changed:
            self._names_changed = True
            self._timers["names"] = self._env.clock.call_later(_NAMES_SYNC_DELAY_MS, sync)

    def _log_failed(self, log: Log) -> None:
        for callback in self.on_failed:
            callback(log)

    # -- configs

    def topic_config(self, topic: str) -> TopicConfig:
        """The config of a topic, one object for all its partitions."""
        config = self._configs.get(topic)
        if config is None:
            overrides = self._topic_overrides(topic)
            if overrides:
                config = TopicConfig.of(overrides, self.config)
            else:
                if self._default_config is None:
                    self._default_config = TopicConfig.of({}, self.config)
                config = self._default_config
            self._configs[topic] = config
        return config

    def update_topic_config(self, topic: str) -> None:
        """The topic's settings changed: its logs take them up."""
        self._configs.pop(topic, None)
        for (name, _), log in self._logs.items():
            if name == topic:
                log.config = self.topic_config(topic)

    def _broker_config_changed(self, names: frozenset[str]) -> None:
        self._configs.clear()
        self._default_config = None
        for (topic, _), log in self._logs.items():
            log.config = self.topic_config(topic)

    # -- checkpoints

    def checkpoint(self) -> None:
        """Write all offset checkpoints; they are durable when this returns."""
        self._write_now(checkpoints.RECOVERY_POINTS, self._collect_recovery_points())
        self._write_now(checkpoints.LOG_START_OFFSETS, self._collect_log_starts())
        self._write_now(checkpoints.HIGH_WATERMARKS, self._collect_high_watermarks())

    def _collect_recovery_points(self) -> dict[tuple[str, int], int]:
        self._recovery_points = {key: log.recovery_point for key, log in self._logs.items()}
        return self._recovery_points

    def _collect_log_starts(self) -> dict[tuple[str, int], int]:
        logs = self._logs.items()
        return {key: log.log_start_offset for key, log in logs if log.log_start_offset > log.segments[0].base_offset}

    def _collect_high_watermarks(self) -> dict[tuple[str, int], int]:
        return {key: log.high_watermark for key, log in self._logs.items()}

    def _recovery_point_lowered(self, log: Log) -> None:
        key = (log.topic, log.partition)
        if self._recovery_points.get(key, 0) > log.recovery_point and self._logs.get(key) is log:
            self._write_now(checkpoints.RECOVERY_POINTS, self._collect_recovery_points())

    def _write_now(self, name: str, offsets: dict[tuple[str, int], int]) -> None:
        self._written[name] = offsets
        self._writing.pop(name, None)
        try:
            checkpoints.write_offsets(self._env.disk, self._path(name), offsets)
        except OSError as error:
            logger.error("%s could not be written: %s", name, error)

    def _write_later(self, name: str, offsets: dict[tuple[str, int], int]) -> None:
        """Write, if anything changed, and give the file its name when a thread has synced it."""
        if self._written.get(name) == offsets:
            return
        disk, path = self._env.disk, self._path(name)
        temporary = path + ".tmp"
        token = self._writing[name] = object()

        def synced(error: OSError | None) -> None:
            if self._writing.get(name) is not token:  # a newer one is on its way, or was written at once
                return
            del self._writing[name]
            try:
                if error is not None:
                    raise error
                disk.rename(temporary, path)
                self._written[name] = offsets
            except OSError as failure:
                logger.error("%s could not be written: %s", name, failure)

        try:
            file = disk.open(temporary, create=True)
            try:
                file.truncate(0)
                file.write(0, checkpoints.offsets_text(offsets).encode())
                disk.sync_in_background([file], synced)
            finally:
                file.close()
        except OSError as error:
            logger.error("%s could not be written: %s", name, error)

    # -- upkeep

    def _begin_upkeep(self) -> None:
        config = self.config
        self._every("retention", lambda: config.log_retention_check_interval_ms, self.apply_retention)
        periodic = (
            (
                checkpoints.RECOVERY_POINTS,
                lambda: config.log_flush_offset_checkpoint_interval_ms,
                self._collect_recovery_points,
            ),
            (
                checkpoints.LOG_START_OFFSETS,
                lambda: config.log_flush_start_offset_checkpoint_interval_ms,
                self._collect_log_starts,
            ),
            (
                checkpoints.HIGH_WATERMARKS,
                lambda: config.replica_high_watermark_checkpoint_interval_ms,
                self._collect_high_watermarks,
            ),
        )
        for name, interval_ms, collect in periodic:
            self._every(name, interval_ms, partial(self._collect_and_write, name, collect))
        self._every("flush", self._flush_interval_ms, self._flush_due)
        self._every("producers", lambda: config.producer_id_expiration_check_interval_ms, self._expire_producers)
        self.cleaner.start()

    def _collect_and_write(self, name: str, collect: Callable[[], dict[tuple[str, int], int]]) -> None:
        self._write_later(name, collect())

    def _every(self, name: str, interval_ms: Callable[[], int], task: Callable[[], None]) -> None:
        def run() -> None:
            task()
            again()

        def again() -> None:
            self._timers[name] = self._env.clock.call_later(max(interval_ms(), 1), run)

        again()

    def _flush_interval_ms(self) -> int:
        """As often as the most impatient flush.ms wants, within reason."""
        return min(max(self._shortest_flush_ms(), 10), 1000, self.config.log_flush_scheduler_interval_ms)

    def _shortest_flush_ms(self) -> int:
        return min((config.flush_ms for config in self._configs.values()), default=_NEVER_MS)

    def _flush_due(self) -> None:
        if self._shortest_flush_ms() < _NEVER_MS:
            due = (log for log in self._logs.values() if log.is_flush_due)
            for log in islice(due, _FLUSHES_PER_TICK):
                log.flush_in_background()

    def apply_retention(self) -> None:
        """Delete what is too old or too much, and give back the memory of indexes that nobody reads."""
        now_ms = self._env.clock.now_ms()
        for log in list(self._logs.values()):
            log.delete_old_segments(now_ms)
            for segment in log.segments[:-1]:
                if segment.touched:
                    segment.touched = False
                else:
                    segment.unload()

    def _expire_producers(self) -> None:
        now_ms = self._env.clock.now_ms()
        for log in self._logs.values():
            log.producers.expire(now_ms, self.config.producer_id_expiration_ms)
