"""The coordination tree in one SQLite file, shared by the broker processes of one machine.

SQLite opens its file itself: this is the one place that writes to disk past the Disk port. `:memory:` keeps the tree in
memory and is for one broker only. Calls into SQLite block; each takes some tens of microseconds, a writing one also
the time of one sync.

Durability. The file is in write-ahead mode with `synchronous=FULL`: a commit returns after its pages are in the log and
the log is synced, so what was answered survives a kill and a power cut, for one sync per change (a rollback journal
needs two or three). SQLite syncs the folder itself when it makes the log file.

Sessions. Each holds an operating system lock on a file of its own beside the tree (`<path>.session-<id>`), which dies
with its process. Whoever can take the lock of another session ends that session: its ephemeral nodes go. So a killed
broker is noticed within `LIVENESS_MS` (or at the next start), and a stopped one (SIGSTOP) counts as alive.

Watches on changes made by other processes. `PRAGMA data_version` says cheaply that somebody else wrote; then watches on
nodes touched since the last look are compared with the zxid at which they were left, as ZooKeeper does for a client
that reconnects. Several changes between two looks bring one event; what was made and deleted again in between brings
none. A read may show such a change up to `POLL_MS` before its event comes.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from barnabas.coordination.port import (
    ANY_VERSION,
    BadVersionError,
    Check,
    ConnectionLossError,
    CoordinationError,
    Create,
    Delete,
    EventType,
    MultiError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    OperationResult,
    SessionExpiredError,
    Set,
    Stat,
    Watch,
    WatchEvent,
)
from barnabas.runtime.ports import DirectoryLock, Env, Timer

logger = logging.getLogger("barnabas.coordination")

POLL_MS = 50.0  # how soon a change by another process is noticed
POLL_ALONE_MS = 200.0  # while no other process is registered: how soon the first one is
LIVENESS_MS = 200.0  # how soon the death of another process is noticed
BUSY_MS = 5000  # how long a write waits for another process's write

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,
    czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL,
    pzxid INTEGER NOT NULL,      -- last change of the list of children
    ctime_ms INTEGER NOT NULL, mtime_ms INTEGER NOT NULL, version INTEGER NOT NULL,
    creations INTEGER NOT NULL,  -- children ever made: the next sequence number
    num_children INTEGER NOT NULL, owner INTEGER NOT NULL,
    UNIQUE (parent, name)
);
CREATE INDEX IF NOT EXISTS ephemeral ON node (owner) WHERE owner != 0;
CREATE INDEX IF NOT EXISTS changed ON node (max(mzxid, pzxid));
CREATE TABLE IF NOT EXISTS session (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS counter (zxid INTEGER NOT NULL, session INTEGER NOT NULL);
"""
_FORMAT = 1  # PRAGMA user_version
_COLUMNS = "czxid, mzxid, ctime_ms, mtime_ms, version, creations, owner, num_children"


class _Node(NamedTuple):
    data: bytes
    stat: Stat
    creations: int


class _Watched(NamedTuple):
    watch: Watch
    zxid: int  # of the tree when it was left
    existed: bool


class EmbeddedCoordination:
    """One session with the tree at `path`. Implements the Coordination port."""

    def __init__(self, env: Env, path: str) -> None:
        self.session_id = 0
        self._env = env
        self._path = path
        self._shared = path != ":memory:"
        self._connection: sqlite3.Connection | None = None
        self._lock: DirectoryLock | None = None
        self._timer: Timer | None = None
        self._next_liveness_ms = 0.0
        self._data_version = 0
        self._compared_zxid = 0  # changes up to here have been compared with the watches
        self._others = 0  # sessions of other processes
        self._data_watches: dict[str, list[_Watched]] = {}
        self._child_watches: dict[str, list[_Watched]] = {}
        self._changes: list[WatchEvent] = []  # of the operation being done; told when it is committed
        self._on_expired: list[Callable[[], None]] = []

    # Session

    async def start(self) -> None:
        """Open the file, end sessions whose processes are gone, begin one."""
        if self._connection is not None:
            return
        new = self._shared and not self._env.disk.exists(self._path)
        if new:
            self._make_folder()
        try:
            self._connection = _open(self._path)
        except sqlite3.Error as error:
            raise ConnectionLossError("", f"cannot use {self._path}: {error}") from error
        try:
            self._begin_session()
        except BaseException:
            self._release_lock()
            self._connection.close()
            self._connection = None
            raise
        if new:
            self._env.disk.sync_directory(_parent(self._path))
        logger.info("coordination session %d on %s", self.session_id, self._path)
        self._schedule()

    def _make_folder(self) -> None:
        """The folder of the tree, durable like what will be in it."""
        folder = _parent(self._path)
        if not self._env.disk.is_directory(folder):
            self._env.disk.make_directory(folder)
            self._env.disk.sync_directory(_parent(folder))

    async def close(self) -> None:
        """End the session and close the file."""
        if self._connection is None:
            return
        self._forget_session()
        try:
            with self._write():
                self._end_session(self.session_id)
        except CoordinationError as error:  # gone already, or locked: the lock's release says the same
            logger.info("coordination session %d left behind: %s", self.session_id, error)
        self._release_lock()
        self._connection.close()
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()

    def on_session_expired(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after this session was ended by another process and a new one begun."""
        self._on_expired.append(callback)

    def _begin_session(self) -> None:
        with self._write(any_session=True) as connection:
            session_id: int
            (session_id,) = connection.execute("UPDATE counter SET session = session + 1 RETURNING session").fetchone()
            if self._shared:  # locked before others can read of it, so that nobody takes it for dead
                self._lock = self._env.disk.lock(self._lock_path(session_id))
            connection.execute("INSERT INTO session VALUES (?)", (session_id,))
            self.session_id = session_id
            self._end_dead_sessions(connection)
            self._compared_zxid = self._read_zxid(connection)
        self._data_version = self._read_data_version()

    def _end_dead_sessions(self, connection: sqlite3.Connection) -> None:
        others = connection.execute("SELECT id FROM session WHERE id != ? ORDER BY id", (self.session_id,)).fetchall()
        self._others = len(others)
        for (session_id,) in others:
            path = self._lock_path(session_id)
            try:
                lock = self._env.disk.lock(path) if self._shared else None
            except BlockingIOError:
                continue
            logger.info("coordination session %d is dead", session_id)
            self._end_session(session_id)
            self._others -= 1
            if lock is not None:
                lock.release()
                self._remove_lock_file(session_id)

    def _end_session(self, session_id: int) -> None:
        connection = self._connected()
        rows = connection.execute("SELECT parent, name FROM node WHERE owner = ? ORDER BY czxid", (session_id,))
        zxid = self._next_zxid(connection)
        for parent, name in rows.fetchall():
            self._delete_node(connection, f"{parent.rstrip('/')}/{name}", ANY_VERSION, zxid)
        connection.execute("DELETE FROM session WHERE id = ?", (session_id,))

    def _expired(self) -> None:
        """Another process ended this session: begin a new one and say so."""
        logger.warning("coordination session %d was ended by another process", self.session_id)
        self._forget_session()
        self._release_lock()
        self._begin_session()
        for callback in self._on_expired:
            self._env.clock.call_soon(callback)

    def _forget_session(self) -> None:
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
        except OSError as error:  # an empty file more is no harm
            logger.info("lock file of coordination session %d stays: %s", session_id, error)

    # Reading

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and Stat of a node."""
        node = self._require(self._connected(), path)
        if watch is not None:
            self._leave(self._data_watches, path, watch, existed=True)
        return node.data, node.stat

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """Data and Stat of many nodes."""
        connection = self._connected()
        nodes = [self._read(connection, path) for path in paths]
        return [None if node is None else (node.data, node.stat) for node in nodes]

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Stat of a node that may not be there."""
        node = self._read(self._connected(), path)
        if watch is not None:
            self._leave(self._data_watches, path, watch, existed=node is not None)
        return None if node is None else node.stat

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of a node's children, sorted."""
        connection = self._connected()
        self._require(connection, path)
        names = [
            name for (name,) in connection.execute("SELECT name FROM node WHERE parent = ? ORDER BY name", (path,))
        ]
        if path == "/":
            names.remove("")  # the root's own row
        if watch is not None:
            self._leave(self._child_watches, path, watch, existed=True)
        return names

    def _read(self, connection: sqlite3.Connection, path: str) -> _Node | None:
        row = connection.execute(
            f"SELECT data, creations, {_COLUMNS} FROM node WHERE parent = ? AND name = ?", _split(path)
        ).fetchone()
        if row is None:
            return None
        return _Node(row[0], _stat(row[2:]), row[1])

    def _require(self, connection: sqlite3.Connection, path: str) -> _Node:
        node = self._read(connection, path)
        if node is None:
            raise NoNodeError(path)
        return node

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
        with self._write() as connection:
            zxid = self._next_zxid(connection)
            if make_parents:
                self._make_parents(connection, path, zxid)
            made = self._create_node(connection, Create(path, data, ephemeral, sequential), zxid)
            return made, self._require(connection, made).stat

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace a node's data."""
        with self._write() as connection:
            return self._set_node(connection, path, data, version, self._next_zxid(connection))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node."""
        with self._write() as connection:
            self._delete_node(connection, path, version, self._next_zxid(connection))

    async def delete_recursive(self, path: str) -> None:
        """Remove a node and all below it, as one change."""
        with self._write() as connection:
            self._require(connection, path)
            below = f"{path.rstrip('/')}/"
            rows = connection.execute(
                "SELECT parent, name FROM node WHERE parent = ? OR substr(parent, 1, ?) = ?", (path, len(below), below)
            ).fetchall()
            paths = sorted({f"{parent.rstrip('/')}/{name}" for parent, name in rows if name}, reverse=True)
            zxid = self._next_zxid(connection)
            for deeper in paths:  # in reverse order children come before their parents
                self._delete_node(connection, deeper, ANY_VERSION, zxid)
            self._delete_node(connection, path, ANY_VERSION, zxid)

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Do all as one change, or none."""
        with self._write() as connection:
            zxid = self._next_zxid(connection)
            results: list[OperationResult] = []
            for index, operation in enumerate(operations):
                try:
                    results.append(self._do(connection, operation, zxid))
                except CoordinationError as error:
                    raise MultiError(index, error) from error
            return results

    def _do(self, connection: sqlite3.Connection, operation: Operation, zxid: int) -> OperationResult:
        match operation:
            case Create():
                return self._create_node(connection, operation, zxid)
            case Set(path, data, version):
                return self._set_node(connection, path, data, version, zxid)
            case Delete(path, version):
                self._delete_node(connection, path, version, zxid)
            case Check(path, version):
                _check_version(path, self._require(connection, path), version)
        return None

    def _make_parents(self, connection: sqlite3.Connection, path: str, zxid: int) -> None:
        parent, _ = _split(path)
        if parent != "/" and self._read(connection, parent) is None:
            self._make_parents(connection, parent, zxid)
            self._create_node(connection, Create(parent), zxid)

    def _create_node(self, connection: sqlite3.Connection, operation: Create, zxid: int) -> str:
        parent, name = _split(operation.path, sequential=operation.sequential)
        above = self._require(connection, parent)
        if above.stat.ephemeral_owner:
            raise NoChildrenForEphemeralsError(operation.path)
        if operation.sequential:
            name = f"{name}{above.creations:010}"
        path = f"{parent.rstrip('/')}/{name}"
        now_ms = self._env.clock.now_ms()
        owner = self.session_id if operation.ephemeral else 0
        row = (parent, name, operation.data, zxid, zxid, zxid, now_ms, now_ms, owner)
        try:
            connection.execute("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?)", row)
        except sqlite3.IntegrityError:
            raise NodeExistsError(path) from None
        connection.execute(
            "UPDATE node SET creations = creations + 1, num_children = num_children + 1, pzxid = ? "
            "WHERE parent = ? AND name = ?",
            (zxid, *_split(parent)),
        )
        self._changes += [WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN, parent)]
        return path

    def _set_node(self, connection: sqlite3.Connection, path: str, data: bytes, version: int, zxid: int) -> Stat:
        _check_version(path, self._require(connection, path), version)
        row = connection.execute(
            "UPDATE node SET data = ?, mzxid = ?, mtime_ms = ?, version = version + 1 "
            f"WHERE parent = ? AND name = ? RETURNING {_COLUMNS}",
            (data, zxid, self._env.clock.now_ms(), *_split(path)),
        ).fetchone()
        self._changes.append(WatchEvent(EventType.DATA, path))
        return _stat(row)

    def _delete_node(self, connection: sqlite3.Connection, path: str, version: int, zxid: int) -> None:
        node = self._require(connection, path)
        _check_version(path, node, version)
        if node.stat.num_children:
            raise NotEmptyError(path)
        parent, name = _split(path)
        if not name:
            raise ValueError("the root cannot be deleted")
        connection.execute("DELETE FROM node WHERE parent = ? AND name = ?", (parent, name))
        connection.execute(
            "UPDATE node SET num_children = num_children - 1, pzxid = ? WHERE parent = ? AND name = ?",
            (zxid, *_split(parent)),
        )
        self._changes += [WatchEvent(EventType.DELETED, path), WatchEvent(EventType.CHILDREN, parent)]

    @contextmanager
    def _write(self, *, any_session: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction: all that happens inside is one change, synced at the end, then told to the watches."""
        connection = self._connected()
        assert not self._changes, "a write inside a write"
        try:
            connection.execute("BEGIN IMMEDIATE")
            if not any_session and not self._session_lives(connection):
                raise SessionExpiredError("", f"session {self.session_id} was ended by another process")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(connection)
            raise ConnectionLossError("", f"{self._path}: {error}") from error
        except BaseException:
            self._roll_back(connection)
            raise
        changes, self._changes = self._changes, []
        for change in changes:
            self._tell(change)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self._changes.clear()
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _next_zxid(self, connection: sqlite3.Connection) -> int:
        zxid: int
        (zxid,) = connection.execute("UPDATE counter SET zxid = zxid + 1 RETURNING zxid").fetchone()
        return zxid

    def _session_lives(self, connection: sqlite3.Connection) -> bool:
        return connection.execute("SELECT 1 FROM session WHERE id = ?", (self.session_id,)).fetchone() is not None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise SessionExpiredError("", "the session is closed")
        return self._connection

    # Watches

    def _read_zxid(self, connection: sqlite3.Connection) -> int:
        zxid: int
        (zxid,) = connection.execute("SELECT zxid FROM counter").fetchone()
        return zxid

    def _leave(self, watches: dict[str, list[_Watched]], path: str, watch: Watch, *, existed: bool) -> None:
        zxid = self._read_zxid(self._connected())
        watches.setdefault(path, []).append(_Watched(watch, zxid, existed))

    def _tell(self, event: WatchEvent) -> None:
        """Fire the watches that wait for this event. They are called from the loop, in the order of the changes."""
        if event.type is not EventType.CHILDREN:
            self._fire(self._data_watches.pop(event.path, ()), event)
        if event.type in (EventType.CHILDREN, EventType.DELETED):
            self._fire(self._child_watches.pop(event.path, ()), event)

    def _fire(self, watched: Sequence[_Watched], event: WatchEvent) -> None:
        session_id = self.session_id

        def deliver(watch: Watch) -> None:
            if self._connection is not None and self.session_id == session_id:
                watch(event)

        for one in watched:
            self._env.clock.call_soon(lambda watch=one.watch: deliver(watch))  # type: ignore[misc]

    # Other processes

    def _schedule(self) -> None:
        if self._shared:
            delay_ms = POLL_MS if self._others else POLL_ALONE_MS
            self._timer = self._env.clock.call_later(delay_ms, self._poll)

    def _poll(self) -> None:
        """Look for changes made by other processes, and for processes that are gone."""
        if self._connection is None:
            return
        try:
            self._look(self._connection)
        except (sqlite3.Error, CoordinationError, OSError) as error:  # locked for long: try again next time
            logger.warning("coordination tree cannot be read now: %s", error)
        self._schedule()

    def _look(self, connection: sqlite3.Connection) -> None:
        data_version = self._read_data_version()
        if data_version != self._data_version:
            if not self._session_lives(connection):
                self._expired()
                return
            self._data_version = data_version
            (sessions,) = connection.execute("SELECT count(*) FROM session").fetchone()
            self._others = sessions - 1
            self._compare_watches(connection)
        now_ms = self._env.clock.monotonic_ms()
        if self._others and now_ms >= self._next_liveness_ms:
            self._next_liveness_ms = now_ms + LIVENESS_MS
            if self._somebody_is_dead(connection):
                with self._write():
                    self._end_dead_sessions(connection)

    def _somebody_is_dead(self, connection: sqlite3.Connection) -> bool:
        """Whether another session's lock can be taken; asked first, because ending a session is a write."""
        for (session_id,) in connection.execute("SELECT id FROM session WHERE id != ?", (self.session_id,)).fetchall():
            try:
                self._env.disk.lock(self._lock_path(session_id)).release()
            except BlockingIOError:
                continue
            return True
        return False

    def _read_data_version(self) -> int:
        version: int
        (version,) = self._connected().execute("PRAGMA data_version").fetchone()
        return version

    def _compare_watches(self, connection: sqlite3.Connection) -> None:
        """Fire the watches whose nodes have changed since they were left, in the order of the changes."""
        since, self._compared_zxid = self._compared_zxid, self._read_zxid(connection)
        rows = connection.execute("SELECT parent, name FROM node WHERE max(mzxid, pzxid) > ?", (since,))
        touched = {f"{parent.rstrip('/')}/{name}" for parent, name in rows}
        due: list[tuple[int, WatchEvent, _Watched]] = []
        for watches, children in ((self._data_watches, False), (self._child_watches, True)):
            # a node that is gone shows in its parent; one that went with its parent, in that parent's parent, …
            for path in [path for path in watches if path in touched or not touched.isdisjoint(_above(path))]:
                for one in watches[path]:
                    change = _change_since(connection, path, one, children=children)
                    if change is not None:
                        due.append((*change, one))
                        watches[path] = [other for other in watches[path] if other is not one]
                if not watches[path]:
                    del watches[path]
        for _, event, one in sorted(due, key=lambda change: change[0]):
            self._fire((one,), event)


def _change_since(
    connection: sqlite3.Connection, path: str, watched: _Watched, *, children: bool
) -> tuple[int, WatchEvent] | None:
    """What happened to a node since a watch was left on it, and when."""
    row = connection.execute(
        "SELECT czxid, mzxid, pzxid FROM node WHERE parent = ? AND name = ?", _split(path)
    ).fetchone()
    if row is None:
        if not watched.existed:
            return None
        above, name = _split(_split(path)[0])
        row = connection.execute("SELECT pzxid FROM node WHERE parent = ? AND name = ?", (above, name)).fetchone()
        return (0 if row is None else row[0]), WatchEvent(EventType.DELETED, path)
    czxid, mzxid, pzxid = row
    if not watched.existed:
        return czxid, WatchEvent(EventType.CREATED, path)
    changed_at, event_type = (pzxid, EventType.CHILDREN) if children else (mzxid, EventType.DATA)
    return (changed_at, WatchEvent(event_type, path)) if changed_at > watched.zxid else None


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: down to the disk itself; elsewhere without effect
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == _FORMAT:
        return connection
    if version != 0:
        connection.close()
        raise ConnectionLossError("", f"{path} has format {version}; this program knows {_FORMAT}")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    if connection.execute("SELECT count(*) FROM counter").fetchone() == (0,):
        connection.execute("INSERT INTO counter VALUES (0, 0)")
        connection.execute("INSERT INTO node VALUES ('/', '', x'', 0, 0, 0, 0, 0, 0, 0, 0, 0)")
    connection.execute(f"PRAGMA user_version = {_FORMAT}")
    connection.execute("COMMIT")
    return connection


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _above(path: str) -> Iterator[str]:
    """The nodes above a node, up to the root."""
    while path != "/":
        path = _parent(path)
        yield path


def _split(path: str, *, sequential: bool = False) -> tuple[str, str]:
    """Parent and name; the root is ("/", ""). ValueError for what is no path."""
    if path == "/" and not sequential:
        return "/", ""
    parent, slash, name = path.rpartition("/")
    bad = not slash or (not name and not sequential) or name in (".", "..") or "//" in path or not path.startswith("/")
    if bad or "\0" in path:
        raise ValueError(f"not a path: {path!r}")
    return parent or "/", name


def _check_version(path: str, node: _Node, version: int) -> None:
    if version not in (ANY_VERSION, node.stat.version):
        raise BadVersionError(path, f"{path} has version {node.stat.version}, not {version}")


def _stat(row: Sequence[int]) -> Stat:
    czxid, mzxid, ctime_ms, mtime_ms, version, creations, owner, num_children = row
    # every creation and every deletion of a child counts
    return Stat(czxid, mzxid, ctime_ms, mtime_ms, version, 2 * creations - num_children, owner, num_children)
