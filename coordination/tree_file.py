"""The nodes of the tree as rows of one SQLite file: what is there, and what one change makes of it.

A session is a number here, which owns nodes. `embedded.py` decides who may change what and when, and who hears of it.
A read or write that SQLite cannot do raises ConnectionLossError.

SQLite opens its file itself: only this module uses the disk without the Disk port. Calls into SQLite block: a read
takes some microseconds, a transaction that writes takes one sync besides. No call waits for another process: where
SQLite would wait, BusyError is raised at once.

Durability. The file is in write-ahead mode with `synchronous=FULL`: a commit returns after its pages are in the log
and the log is synced. So an answered change survives a kill and a power cut, and costs one sync (with a rollback
journal it would cost two or three). SQLite syncs the folder itself when it makes the log file.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from barnabas.coordination.operations import check_version, split
from barnabas.coordination.port import (
    ANY_VERSION,
    ConnectionLossError,
    Create,
    EventType,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Stat,
    WatchEvent,
)

HEADER_BYTES = 100
WRITE_LOCK_BYTE = 120  # of the -shm file: who writes holds it locked (SQLite: "WAL-mode File Format", 2.3.1)
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


class BusyError(ConnectionLossError):
    """Another process has the file to itself just now. Nothing was done, and the same call may work soon."""


class Node(NamedTuple):
    """One node."""

    data: bytes
    stat: Stat
    creations: int  # children ever made


class LastChanges(NamedTuple):
    """The changes that made a node, last wrote it, and last changed the list of its children."""

    czxid: int
    mzxid: int
    pzxid: int


class TreeFile:
    """An open file. Changes happen inside `transaction`; until it ends, `changes` lists them.

    It may be used by one thread after the other, and by one at a time.

    `as_it_is`: copy the file into memory for reading, and do not change it. `is_in_use`: a process has it open, so that
    it can be read in SQLite's usual way. `has_log`: there is a -wal file beside it.
    """

    def __init__(
        self,
        path: str,
        now_ms: Callable[[], int],
        *,
        as_it_is: bool = False,
        is_in_use: bool = False,
        has_log: bool = False,
    ) -> None:
        self.changes: list[WatchEvent] = []
        self._path = path
        self._now_ms = now_ms
        try:
            if as_it_is:
                self._connection = _open_as_it_is(path, is_in_use=is_in_use, has_log=has_log)
            else:
                self._connection = _open(path)
        except sqlite3.Error as error:
            raise _lost(path, error) from error
        except OSError as error:
            raise ConnectionLossError("", f"cannot read {path}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise _lost(self._path, error) from error

    def _row(self, statement: str, *parameters: Any) -> Any:
        rows = self._rows(statement, *parameters)
        return rows[0] if rows else None

    def _number(self, statement: str) -> int:
        row = self._row(statement)
        if row is None or not isinstance(row[0], int):
            raise _lost(self._path, sqlite3.DatabaseError("the counter holds no number"))
        return row[0]

    # Reading

    def find(self, path: str) -> Node | None:
        """A node, or None."""
        row = self._row(f"SELECT data, creations, {_COLUMNS} FROM node WHERE parent = ? AND name = ?", *split(path))
        return None if row is None else Node(row[0], _stat(row[2:]), row[1])

    def require(self, path: str) -> Node:
        """A node. NoNodeError."""
        node = self.find(path)
        if node is None:
            raise NoNodeError(path)
        return node

    def children(self, path: str) -> list[str]:
        """Names of a node's children, sorted. NoNodeError."""
        self.require(path)
        names = [name for (name,) in self._rows("SELECT name FROM node WHERE parent = ? ORDER BY name", path)]
        if path == "/":
            names.remove("")  # the root's own row
        return names

    def below(self, path: str) -> list[str]:
        """All nodes below one, children before their parents."""
        start = f"{path.rstrip('/')}/"
        rows = self._rows(
            "SELECT parent, name FROM node WHERE parent = ? OR substr(parent, 1, ?) = ?", path, len(start), start
        )
        return sorted({_join(parent, name) for parent, name in rows if name}, reverse=True)

    def owned_by(self, session_id: int) -> list[str]:
        """The ephemeral nodes of a session, oldest first."""
        rows = self._rows("SELECT parent, name FROM node WHERE owner = ? ORDER BY czxid", session_id)
        return [_join(parent, name) for parent, name in rows]

    def last_changes(self, path: str) -> LastChanges | None:
        """When a node was changed; None when it is not there."""
        row = self._row("SELECT czxid, mzxid, pzxid FROM node WHERE parent = ? AND name = ?", *split(path))
        return None if row is None else LastChanges(*row)

    def changed_since(self, zxid: int) -> set[str]:
        """Nodes that were written, or whose list of children was changed, after that change."""
        rows = self._rows("SELECT parent, name FROM node WHERE max(mzxid, pzxid) > ?", zxid)
        return {_join(parent, name) for parent, name in rows}

    def zxid(self) -> int:
        """Number of the last change."""
        return self._number("SELECT zxid FROM counter")

    def data_version(self) -> int:
        """Another number than before when another process has written since."""
        return self._number("PRAGMA data_version")

    # Sessions

    def session_ids(self) -> list[int]:
        """The sessions that have not ended."""
        return [session_id for (session_id,) in self._rows("SELECT id FROM session ORDER BY id")]

    def has_session(self, session_id: int) -> bool:
        """Whether a session has not ended."""
        return self._row("SELECT 1 FROM session WHERE id = ?", session_id) is not None

    def take_session_id(self) -> int:
        """Take a number that no session had before."""
        return self._number("UPDATE counter SET session = session + 1 RETURNING session")

    def add_session(self, session_id: int) -> None:
        """Let a session begin."""
        self._rows("INSERT INTO session VALUES (?)", session_id)

    def end_session(self, session_id: int) -> None:
        """Let a session end: its ephemeral nodes go, as one change."""
        zxid = self.take_zxid()
        for path in self.owned_by(session_id):
            self.delete(path, ANY_VERSION, zxid)
        self._rows("DELETE FROM session WHERE id = ?", session_id)

    def has(self, path: str) -> bool:
        """Whether the node exists."""
        return self.find(path) is not None

    def check(self, path: str, version: int) -> None:
        """Raise NoNodeError or BadVersionError unless the node exists in that version."""
        check_version(path, self.require(path).stat.version, version)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read inside is the tree at one time."""
        self._rows("BEGIN")
        try:
            yield
        finally:
            self._rows("COMMIT")

    # Changing

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything done inside is one change, synced at the end; after an exception nothing was done."""
        assert not self.changes, "a transaction inside a transaction"
        try:
            self._rows("BEGIN IMMEDIATE")
            yield
            self._rows("COMMIT")
        except BaseException:
            self.changes.clear()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def take_zxid(self) -> int:
        """Take the number of a new change."""
        return self._number("UPDATE counter SET zxid = zxid + 1 RETURNING zxid")

    def create(self, operation: Create, zxid: int, session_id: int) -> str:
        """Make a node; returns its path. `session_id` owns an ephemeral node."""
        parent, name = split(operation.path, sequential=operation.sequential)
        above = self.require(parent)
        if above.stat.ephemeral_owner:
            raise NoChildrenForEphemeralsError(operation.path)
        if operation.sequential:
            name = f"{name}{above.creations:010}"
        path = _join(parent, name)
        now_ms = self._now_ms()
        owner = session_id if operation.ephemeral else 0
        row = (parent, name, operation.data, zxid, zxid, zxid, now_ms, now_ms, owner)
        insert = "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?)"
        if not self._rows(f"{insert} ON CONFLICT (parent, name) DO NOTHING RETURNING 1", *row):
            raise NodeExistsError(path)
        self._rows(
            "UPDATE node SET creations = creations + 1, num_children = num_children + 1, pzxid = ? "
            "WHERE parent = ? AND name = ?",
            zxid,
            *split(parent),
        )
        self.changes += [WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN, parent)]
        return path

    def set(self, path: str, data: bytes, version: int, zxid: int) -> Stat:
        """Replace a node's data."""
        self.check(path, version)
        row = self._row(
            "UPDATE node SET data = ?, mzxid = ?, mtime_ms = ?, version = version + 1 "
            f"WHERE parent = ? AND name = ? RETURNING {_COLUMNS}",
            data,
            zxid,
            self._now_ms(),
            *split(path),
        )
        self.changes.append(WatchEvent(EventType.DATA, path))
        return _stat(row)

    def delete(self, path: str, version: int, zxid: int) -> None:
        """Remove a node."""
        node = self.require(path)
        check_version(path, node.stat.version, version)
        if node.stat.num_children:
            raise NotEmptyError(path)
        parent, name = split(path)
        if not name:
            raise ValueError("the root cannot be deleted")
        self._rows("DELETE FROM node WHERE parent = ? AND name = ?", parent, name)
        self._rows(
            "UPDATE node SET num_children = num_children - 1, pzxid = ? WHERE parent = ? AND name = ?",
            zxid,
            *split(parent),
        )
        self.changes += [WatchEvent(EventType.DELETED, path), WatchEvent(EventType.CHILDREN, parent)]


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: down to the disk itself; elsewhere without effect
    if _read_format(connection, path) == _FORMAT:
        return connection
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


def _open_as_it_is(path: str, *, is_in_use: bool, has_log: bool) -> sqlite3.Connection:
    """A copy of the tree in memory. No file is made or changed, and if nobody uses the tree, no lock is taken."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    if is_in_use:
        _copy(f"file:{quote(path)}?mode=ro", connection)
    elif not has_log:
        _copy(f"file:{quote(path)}?mode=ro&immutable=1", connection)
    else:  # SQLite cannot read its log without making a file beside it, so it reads a copy
        import shutil  # late: both are only needed at a start after a kill
        import tempfile

        with tempfile.TemporaryDirectory(prefix="barnabas-") as folder:
            shutil.copyfile(path, f"{folder}/tree")
            shutil.copyfile(f"{path}-wal", f"{folder}/tree-wal")
            _copy(f"file:{quote(folder)}/tree", connection)
    if _read_format(connection, path) == _FORMAT:
        _check_all_pages(connection)
        return connection
    connection.close()
    return _open(":memory:")


def _check_all_pages(connection: sqlite3.Connection) -> None:
    """Raise DatabaseError if any page is damaged. So damage is found before the start changes anything."""
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict.strip().replace("\n", " "))


def _copy(source_uri: str, target: sqlite3.Connection) -> None:
    source = sqlite3.connect(source_uri, uri=True, timeout=0)
    try:
        source.backup(target)
    finally:
        source.close()


def is_header(header: bytes, size: int) -> bool:
    """Whether these bytes begin an SQLite file of this size (SQLite: "Database File Format", 1.3)."""
    if len(header) < HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        return False
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 1 << 16 if page_bytes == 1 else page_bytes
    schema_format = int.from_bytes(header[44:48], "big")
    return page_bytes >= 512 and size >= page_bytes and max(header[18:20]) <= 2 and schema_format <= 4


def _read_format(connection: sqlite3.Connection, path: str) -> int:
    """The format of the tree, 0 for a file without one. Closes the connection and raises for an unknown format."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, _FORMAT):
        connection.close()
        raise ConnectionLossError("", f"{path} has format {version}; this program knows {_FORMAT}")
    return int(version)


def _lost(path: str, error: sqlite3.Error) -> ConnectionLossError:
    # The low byte is the kind of the error. SQLITE_PROTOCOL: it gave up a race with another process.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL):
        return BusyError("", f"cannot use {path}: {error}")
    if isinstance(error, sqlite3.OperationalError):  # the file is locked, or cannot be read, or the disk is full
        return ConnectionLossError("", f"cannot use {path}: {error}")
    return damaged(path, str(error))


def damaged(path: str, why: str) -> ConnectionLossError:
    """The error for a damaged tree. It tells the user what to do."""
    advice = (
        "Restore it from a backup, or move it and its -wal and -shm away: topics, records and offsets are then "
        "found in the logs, settings are not"
    )
    return ConnectionLossError("", f"{path} is damaged: {why}. {advice}.")


def _join(parent: str, name: str) -> str:
    return f"{parent.rstrip('/')}/{name}"


def _stat(row: Sequence[int]) -> Stat:
    czxid, mzxid, ctime_ms, mtime_ms, version, creations, owner, num_children = row
    # every creation and every deletion of a child counts
    return Stat(czxid, mzxid, ctime_ms, mtime_ms, version, 2 * creations - num_children, owner, num_children)
