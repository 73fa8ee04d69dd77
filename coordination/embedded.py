"""The coordination tree in one SQLite file, shared by the broker processes of one machine: sessions and watches.

`tree_file.py` owns what is in the file. This module knows which sessions live, which session makes a change, and which
watches hear of it. `:memory:` keeps the tree in memory and is for one broker only.

Sessions. Each holds an operating system lock on a file of its own beside the tree (`<path>.session-<id>`). The lock
dies with its process. A process that can take the lock of another session ends that session: its ephemeral nodes go. So
a killed broker is noticed within `LIVENESS_MS` (or at the next start), and a stopped one (SIGSTOP) counts as alive.

Watches on changes made by other processes. `PRAGMA data_version` says cheaply that another process wrote. Then this
process looks at the nodes that were touched since its last look, and compares each with the zxid at which its watch was
left, as ZooKeeper does for a client that reconnects. Several changes between two looks bring one event. A node that was
made and deleted again in between brings none. A read may show a change up to `POLL_MS` before its event comes.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from barnabas.coordination.operations import do_all, make_above, parent_of
from barnabas.coordination.port import (
    ANY_VERSION,
    ConnectionLossError,
    CoordinationError,
    Create,
    EventType,
    NoNodeError,
    Operation,
    OperationResult,
    SessionExpiredError,
    Stat,
    Watch,
    WatchEvent,
)
from barnabas.coordination.tree_file import HEADER_BYTES, Node, TreeFile, damaged, is_header
from barnabas.runtime.ports import DirectoryLock, Env
from barnabas.runtime.upkeep import Task

logger = logging.getLogger("barnabas.coordination")

SESSION_TIMEOUT_MS = 6_000.0
POLL_MS = 50.0  # how soon a change by another process is noticed
POLL_ALONE_MS = 200.0  # while no other process is registered: how soon the first one is noticed
LIVENESS_MS = 200.0  # how soon the death of another process is noticed


class _Watched(NamedTuple):
    watch: Watch
    zxid: int  # of the tree when it was left
    existed: bool


class EmbeddedCoordination:
    """One session with the tree at `path`. Implements the Coordination port."""

    session_ends_with_process = True

    def __init__(self, env: Env, path: str, session_timeout_ms: float = SESSION_TIMEOUT_MS) -> None:
        self.session_id = 0
        self.session_timeout_ms = session_timeout_ms
        self.last_confirmed_ms = -math.inf
        self._env = env
        self._path = path
        self._shared = path != ":memory:"
        self._file: TreeFile | None = None
        self._seen: TreeFile | None = None  # before the session: a copy of the tree, made by `look`
        self._lock: DirectoryLock | None = None
        self._polling: Task[TreeFile] | None = None
        self._is_unreadable = False
        self._next_liveness_ms = 0.0
        self._data_version = 0
        self._compared_zxid = 0  # changes up to here have been compared with the watches
        self._others = 0  # number of sessions of other processes
        self._data_watches: dict[str, list[_Watched]] = {}
        self._child_watches: dict[str, list[_Watched]] = {}
        self._on_expired: list[Callable[[], None]] = []

    # Session

    async def look(self) -> None:
        """Read the file without changing it. If there is no file yet, the tree is empty."""
        if self._file is not None or self._seen is not None:
            return
        now_ms = self._env.clock.now_ms
        while self._seen is None:
            before = self._changed_at()
            if not before:
                self._seen = TreeFile(":memory:", now_ms)
                return
            self._check_files()
            seen = TreeFile(self._path, now_ms, as_it_is=True, has_log=len(before) > 1)
            if self._changed_at() == before:  # no process wrote during the copy
                self._seen = seen
            else:
                seen.close()

    def _check_files(self) -> None:
        """Raise ConnectionLossError if the tree is damaged or may not be written, before SQLite opens it.

        SQLite would treat a truncated file as a new one. Beside a tree that may not be written, it would make files
        with the rights of the tree, and the next start would fail because of them.
        """
        disk = self._env.disk
        try:
            for beside in (f"{self._path}-wal", f"{self._path}-shm"):
                if disk.exists(beside):
                    disk.open(beside).close()
            file = disk.open(self._path)  # open for writing, to see whether that is allowed
            try:
                header, size = file.read(0, HEADER_BYTES), file.size()
            finally:
                file.close()
        except OSError as error:
            why = f"cannot read and write {error.filename or self._path}: {error.strerror}"
            raise ConnectionLossError(
                "", f"{why}. Let this user read and write it, and the files beside it."
            ) from error
        if size and not is_header(header, size):
            raise damaged(self._path, "its header does not say what it holds")

    def _changed_at(self) -> list[tuple[int, int]]:
        """The modification times and sizes of the tree and its log; empty: there is no tree."""
        disk = self._env.disk
        if not self._shared or not disk.exists(self._path):
            return []
        files = (self._path, f"{self._path}-wal")
        return [(disk.modified_ms(path), disk.file_size(path)) for path in files if disk.exists(path)]

    async def start(self) -> None:
        """Open the file, end sessions whose processes are gone, begin one."""
        if self._file is not None:
            return
        self._forget_seen()
        new = self._shared and not self._env.disk.exists(self._path)
        if new:
            self._make_folder()
        self._file = TreeFile(self._path, self._env.clock.now_ms)
        try:
            self._begin_session()
        except BaseException:
            self._release_lock()
            self._file.close()
            self._file = None
            raise
        if new:
            self._env.disk.sync_directory(parent_of(self._path))
        logger.info("coordination session %d on %s", self.session_id, self._path)
        if self._shared:
            self._polling = self._env.upkeep.every(
                "coordination", self._poll_interval_ms, lambda: [self._file] if self._file else [], self._poll
            )

    def _make_folder(self) -> None:
        """Make the folder of the tree, as durable as the file in it will be."""
        folder = parent_of(self._path)
        if not self._env.disk.is_directory(folder):
            self._env.disk.make_directory(folder)
            self._env.disk.sync_directory(parent_of(folder))

    def _forget_seen(self) -> None:
        if self._seen is not None:
            self._seen.close()
            self._seen = None

    async def close(self) -> None:
        """End the session and close the file."""
        self._forget_seen()
        if self._file is None:
            return
        self._forget_session()
        try:
            with self._write() as file:
                file.end_session(self.session_id)
        except CoordinationError as error:  # already gone, or the file is locked: to release the lock ends it too
            logger.info("coordination session %d left behind: %s", self.session_id, error)
        self._release_lock()
        self._file.close()
        self._file = None
        if self._polling is not None:
            self._polling.stop()
            self._polling = None

    async def confirm(self) -> None:
        """Ask the file whether the session lives."""
        self._confirm()

    def confirm_at_once(self) -> bool:
        """Ask the file whether the session lives."""
        try:
            self._confirm()
        except CoordinationError:
            return False
        return True

    def _confirm(self) -> None:
        sent_ms = self._env.clock.monotonic_ms()
        if not self._opened().has_session(self.session_id):
            raise SessionExpiredError("", f"session {self.session_id} was ended by another process")
        self.last_confirmed_ms = sent_ms

    def on_session_expired(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after this session was ended by another process and a new one begun."""
        self._on_expired.append(callback)

    def _begin_session(self) -> None:
        sent_ms = self._env.clock.monotonic_ms()
        with self._write(any_session=True) as file:
            session_id = file.take_session_id()
            if self._shared:  # locked before others can see the session, so that none takes it for dead
                self._lock = self._env.disk.lock(self._lock_path(session_id))
            file.add_session(session_id)
            self.session_id = session_id
            self._end_dead_sessions(file)
            self._compared_zxid = file.zxid()
        self.last_confirmed_ms = sent_ms
        self._data_version = file.data_version()

    def _end_dead_sessions(self, file: TreeFile) -> None:
        others = self._other_sessions(file)
        self._others = len(others)
        for session_id in others:
            path = self._lock_path(session_id)
            try:
                lock = self._env.disk.lock(path) if self._shared else None
            except BlockingIOError:
                continue
            logger.info("coordination session %d is dead", session_id)
            file.end_session(session_id)
            self._others -= 1
            if lock is not None:
                lock.release()
                self._remove_lock_file(session_id)

    def _other_sessions(self, file: TreeFile) -> list[int]:
        return [session_id for session_id in file.session_ids() if session_id != self.session_id]

    def _expired(self) -> None:
        """Another process ended this session: begin a new one and say so."""
        logger.warning("coordination session %d was ended by another process", self.session_id)
        self._forget_session()
        self._release_lock()
        self._begin_session()
        for callback in self._on_expired:
            self._env.clock.call_soon(callback)

    def _forget_session(self) -> None:
        self.last_confirmed_ms = -math.inf
        self._data_watches.clear()
        self._child_watches.clear()

    def _lock_path(self, session_id: int) -> str:
        return f"{self._path}.session-{session_id}"

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
            self._remove_lock_file(self.session_id)

    def _remove_lock_file(self, session_id: int) -> None:
        try:
            self._env.disk.remove(self._lock_path(session_id))
        except OSError as error:  # an empty file that stays does no harm
            logger.info("lock file of coordination session %d stays: %s", session_id, error)

    # Reading

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and Stat of a node."""
        node = self._find(path)
        if node is None:
            raise NoNodeError(path)
        if watch is not None:
            self._leave(self._data_watches, path, watch, existed=True)
        return node.data, node.stat

    async def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[tuple[bytes, Stat] | None]:
        """Data and Stat of many nodes."""
        await self._let_others_run()
        nodes = [self._find(path) for path in paths]
        if watch is not None:
            for path, node in zip(paths, nodes):
                if node is not None:
                    self._leave(self._data_watches, path, watch, existed=True)
        return [None if node is None else (node.data, node.stat) for node in nodes]

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Stat of a node that may not be there."""
        node = self._find(path)
        if watch is not None:
            self._leave(self._data_watches, path, watch, existed=node is not None)
        return None if node is None else node.stat

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of a node's children, sorted."""
        names = self._readable().children(path)
        if watch is not None:
            self._leave(self._child_watches, path, watch, existed=True)
        return names

    def _readable(self) -> TreeFile:
        return self._opened() if self._seen is None else self._seen

    def _find(self, path: str) -> Node | None:
        node = self._readable().find(path)
        if node is not None and self._seen is not None and node.stat.ephemeral_owner:
            return node if self._is_alive(node.stat.ephemeral_owner) else None
        return node

    def _is_alive(self, session_id: int) -> bool:
        """Whether the process of another session lives. Without a lock file it does not; the file is not made again."""
        path = self._lock_path(session_id)
        if not self._env.disk.exists(path):
            return False
        try:
            self._env.disk.lock(path).release()
        except BlockingIOError:
            return True
        return False

    # Writing

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        """Make a node, with `make_parents` also the persistent nodes above it that are missing."""
        await self._let_others_run()
        with self._write() as file:
            zxid = file.take_zxid()
            if make_parents:
                make_above(file, path, zxid)
            made = file.create(Create(path, data, ephemeral, sequential), zxid, self.session_id)
            return made, file.require(made).stat

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace a node's data."""
        await self._let_others_run()
        with self._write() as file:
            return file.set(path, data, version, file.take_zxid())

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node."""
        await self._let_others_run()
        with self._write() as file:
            file.delete(path, version, file.take_zxid())

    async def delete_recursive(self, path: str) -> None:
        """Remove a node and all below it, as one change."""
        await self._let_others_run()
        with self._write() as file:
            file.require(path)
            zxid = file.take_zxid()
            for doomed in [*file.below(path), path]:
                file.delete(doomed, ANY_VERSION, zxid)

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Do all as one change, or none."""
        await self._let_others_run()
        with self._write() as file:
            return do_all(file, operations, file.take_zxid(), self.session_id)

    async def _let_others_run(self) -> None:
        """A write blocks the loop for one sync. Between many writes in a row, others must have their turn."""
        await self._env.clock.sleep(0)

    @contextmanager
    def _write(self, *, any_session: bool = False) -> Iterator[TreeFile]:
        """A transaction of this session. At its end the watches are told what has changed."""
        file = self._opened()
        with file.transaction():
            if not any_session and not file.has_session(self.session_id):
                raise SessionExpiredError("", f"session {self.session_id} was ended by another process")
            yield file
        changes, file.changes = file.changes, []
        for change in changes:
            self._tell(change)

    def _opened(self) -> TreeFile:
        if self._file is None:
            raise SessionExpiredError("", "the session is closed")
        return self._file

    # Watches

    def _leave(self, watches: dict[str, list[_Watched]], path: str, watch: Watch, *, existed: bool) -> None:
        watches.setdefault(path, []).append(_Watched(watch, self._opened().zxid(), existed))

    def _tell(self, event: WatchEvent) -> None:
        """Fire the watches that wait for this event. They are called from the loop, in the order of the changes."""
        if event.type is not EventType.CHILDREN:
            self._fire(self._data_watches.pop(event.path, ()), event)
        if event.type in (EventType.CHILDREN, EventType.DELETED):
            self._fire(self._child_watches.pop(event.path, ()), event)

    def _fire(self, watched: Sequence[_Watched], event: WatchEvent) -> None:
        session_id = self.session_id

        def deliver(watch: Watch) -> None:
            if self._file is not None and self.session_id == session_id:
                watch(event)

        for one in watched:
            self._env.clock.call_soon(lambda watch=one.watch: deliver(watch))  # type: ignore[misc]

    # Other processes

    def _poll_interval_ms(self) -> float:
        return POLL_MS if self._others else POLL_ALONE_MS

    def _poll(self, file: TreeFile) -> None:
        """Look for changes made by other processes, and for processes that are gone."""
        try:
            self._look(file)
        except (CoordinationError, OSError) as error:  # locked for long: the next poll tries again
            if not self._is_unreadable:
                logger.warning("coordination tree cannot be read now: %s", error)
            self._is_unreadable = True
        else:
            self._is_unreadable = False

    def _look(self, file: TreeFile) -> None:
        data_version = file.data_version()
        if data_version != self._data_version:
            if not file.has_session(self.session_id):
                self._expired()
                return
            self._data_version = data_version
            self._others = len(self._other_sessions(file))
            self._compare_watches(file)
        now_ms = self._env.clock.monotonic_ms()
        if self._others and now_ms >= self._next_liveness_ms:
            self._next_liveness_ms = now_ms + LIVENESS_MS
            if self._somebody_is_dead(file):
                with self._write():
                    self._end_dead_sessions(file)

    def _somebody_is_dead(self, file: TreeFile) -> bool:
        """Whether another session's lock can be taken. This is asked first, because to end a session is a write."""
        return not all(map(self._is_alive, self._other_sessions(file)))

    def _compare_watches(self, file: TreeFile) -> None:
        """Fire the watches whose nodes have changed since they were left, in the order of the changes."""
        since, self._compared_zxid = self._compared_zxid, file.zxid()
        touched = file.changed_since(since)
        due: list[tuple[int, WatchEvent, _Watched]] = []
        for watches, children in ((self._data_watches, False), (self._child_watches, True)):
            # A node that is gone shows as a change of its parent, or of the nearest node above that is there.
            for path in [path for path in watches if path in touched or not touched.isdisjoint(_above(path))]:
                for one in watches[path]:
                    change = _change_since(file, path, one, children=children)
                    if change is not None:
                        due.append((*change, one))
                        watches[path] = [other for other in watches[path] if other is not one]
                if not watches[path]:
                    del watches[path]
        for _, event, one in sorted(due, key=lambda change: change[0]):
            self._fire((one,), event)


def _change_since(file: TreeFile, path: str, watched: _Watched, *, children: bool) -> tuple[int, WatchEvent] | None:
    """What happened to a node since a watch was left on it, and when."""
    last = file.last_changes(path)
    if last is None:
        if not watched.existed:
            return None
        above = file.last_changes(parent_of(path))
        return (0 if above is None else above.pzxid), WatchEvent(EventType.DELETED, path)
    if not watched.existed:
        return last.czxid, WatchEvent(EventType.CREATED, path)
    changed_at, event_type = (last.pzxid, EventType.CHILDREN) if children else (last.mzxid, EventType.DATA)
    return (changed_at, WatchEvent(event_type, path)) if changed_at > watched.zxid else None


def _above(path: str) -> Iterator[str]:
    """The nodes above a node, up to the root."""
    while path != "/":
        path = parent_of(path)
        yield path
