"""The nodes of the tree as rows of one SQLite file: what is there, and what one change makes of it.

A session is a number here, which owns nodes. `embedded.py` decides who may change what and when, and who hears of it.
A read or write that SQLite cannot do raises ConnectionLossError.

SQLite opens its file itself (`tree_opening.py`), without the Disk port. Calls into SQLite block: a read
takes some microseconds, a transaction that writes takes one sync besides. No call waits for another process: where
SQLite would wait, BusyError is raised at once.

Durability. The file is in write-ahead mode with `synchronous=FULL`: a commit returns after its pages are in the log
and the log is synced. So an answered change survives a kill and a power cut, and costs one sync (with a rollback
journal it would cost two or three). SQLite syncs the folder itself when it makes the log file. On a disk that does not
sync (`Disk.syncs`), it survives a kill only.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.operations import check_version, make_above, split
from barnabas.cluster.tree.payloads import RestoredTree
from barnabas.cluster.tree.port import (
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
from barnabas.cluster.tree.tree_opening import WRITE_AHEAD_BYTES, lost, open_as_it_is, open_tree
from barnabas.protocol.named_tuple import NamedTuple

_COLUMNS = "czxid, mzxid, ctime_ms, mtime_ms, version, creations, owner, num_children"
_FIND_AT = f"SELECT zxid, name, data, creations, {_COLUMNS} FROM counter LEFT JOIN node ON parent = ? AND name = ?"
_FIND_MANY_AT = f"""SELECT zxid, name, data, creations, {_COLUMNS}, wanted.key FROM counter JOIN json_each(?) AS wanted
    LEFT JOIN node ON node.parent = json_extract(wanted.value, '$[0]') AND name = json_extract(wanted.value, '$[1]')"""


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

    It may be used by one thread after the other, and by one at a time. Without `syncs`, changes do not survive a power
    cut.

    `as_it_is`: copy the file into memory for reading, and do not change it. `is_in_use`: a process has it open, so that
    it can be read in SQLite's usual way. `left`: which files SQLite left beside it, by the ends of their names.
    """

    def __init__(
        self,
        path: str,
        now_ms: Callable[[], int],
        *,
        syncs: bool = True,
        as_it_is: bool = False,
        is_in_use: bool = False,
        left: Sequence[str] = (),
    ) -> None:
        self.changes: list[WatchEvent] = []
        self._path = path
        self._now_ms = now_ms
        try:
            if as_it_is:
                self._connection = open_as_it_is(path, is_in_use=is_in_use, left=left)
            else:
                self._connection = open_tree(path, syncs=syncs)
        except sqlite3.Error as error:
            raise lost(path, error) from error
        except OSError as error:
            raise ConnectionLossError("", f"cannot read {path}: {error}") from error

    def close(self) -> None:
        self._connection.close()

    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise lost(self._path, error) from error

    def _row(self, statement: str, *parameters: Any) -> Any:
        rows = self._rows(statement, *parameters)
        return rows[0] if rows else None

    def _number(self, statement: str) -> int:
        return self._counted(self._row(statement))

    def _counted(self, row: Any) -> int:
        """The number that a row with the counter begins with."""
        if row is None or not isinstance(row[0], int):
            raise lost(self._path, sqlite3.DatabaseError("the counter holds no number"))
        return row[0]

    # Reading

    def find(self, path: str) -> Node | None:
        """A node, or None."""
        return self.find_at(path)[1]

    def find_at(self, path: str) -> tuple[int, Node | None]:
        """The number of the last change, and a node as it is then, or None."""
        row = self._row(_FIND_AT, *split(path))
        return self._counted(row), _node(row)

    def find_many_at(self, paths: Sequence[str]) -> tuple[int, list[Node | None]]:
        """The number of the last change, and nodes as they are then, or None for each that is not there."""
        rows = self._rows(_FIND_MANY_AT, json.dumps([split(path) for path in paths]))
        found: list[Node | None] = [None] * len(paths)
        for row in rows:
            found[row[-1]] = _node(row)
        return self._counted(rows[0] if rows else None), found

    def require(self, path: str) -> Node:
        """A node. NoNodeError."""
        node = self.find(path)
        if node is None:
            raise NoNodeError(path)
        return node

    def children(self, path: str) -> list[str]:
        """Names of a node's children, sorted. NoNodeError."""
        return self.children_at(path)[1]

    def children_at(self, path: str) -> tuple[int, list[str]]:
        """The number of the last change, and the names of a node's children then, sorted. NoNodeError."""
        rows = self._rows(
            "SELECT zxid, node.name, child.name FROM counter LEFT JOIN node ON node.parent = ? AND node.name = ? "
            "LEFT JOIN node AS child ON child.parent = ?",
            *split(path),
            path,
        )
        zxid = self._counted(rows[0] if rows else None)
        if rows[0][1] is None:
            raise NoNodeError(path)
        return zxid, sorted(name for _, _, name in rows if name)  # the root is in a row of its own, without a name

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

    def zxid_in_session(self, session_id: int) -> int | None:
        """Number of the last change; None if the session has ended."""
        row = self._row("SELECT zxid, EXISTS (SELECT 1 FROM session WHERE id = ?) FROM counter", session_id)
        zxid = self._counted(row)
        return zxid if row[1] else None

    def data_version(self) -> int:
        """Another number than before when another process has written since."""
        return self._number("PRAGMA data_version")

    def serialized(self) -> bytes:
        """The bytes of a file that holds this tree, of a copy in memory.

        The file needs nothing beside it, and says so: it is not in write-ahead mode until it is opened as a tree.
        """
        content = bytearray(self._connection.serialize())
        content[WRITE_AHEAD_BYTES] = b"\1\1"
        return bytes(content)

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

    def end_sessions(self, session_ids: Sequence[int]) -> None:
        """Let sessions end: their ephemeral nodes go, as one change."""
        if not session_ids:
            return
        zxid = self.take_zxid()
        for session_id in session_ids:
            for path in self.owned_by(session_id):
                self.delete(path, ANY_VERSION, zxid)
            self._rows("DELETE FROM session WHERE id = ?", session_id)

    def has(self, path: str) -> bool:
        return self.find(path) is not None

    def check(self, path: str, version: int) -> None:
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

    def bring_log_in(self) -> bool:
        """Write what is in the -wal into the file, as far as nobody reads there. False: something was left over."""
        row = self._row("PRAGMA wal_checkpoint(PASSIVE)")
        return row is None or (row[0] == 0 and row[1] == row[2])

    def mark_restored(self, copied_ms: int, newest_zxid: int = 0) -> None:
        """Note in the tree that it may be older than the logs (`paths.RESTORED`), and begin another history.

        All changes from now on have larger numbers than those that were made after this copy was taken, and than
        `newest_zxid`. ZooKeeper does the same when it has another leader: the upper half of the number is one higher.
        """
        zxid, data = self.take_zxid(), RestoredTree(copied_ms).encode()
        if self.has(paths.RESTORED):
            self.set(paths.RESTORED, data, ANY_VERSION, zxid)
        else:
            make_above(self, paths.RESTORED, zxid)
            self.create(Create(paths.RESTORED, data), zxid, 0)
        self._rows("UPDATE counter SET zxid = ((max(zxid, ?) >> 32) + 1) << 32", newest_zxid)

    def take_zxid(self) -> int:
        """Take the number of a new change."""
        return self._number("UPDATE counter SET zxid = zxid + 1 RETURNING zxid")

    def create(self, operation: Create, zxid: int, session_id: int) -> str:
        parent, name = split(operation.path, sequential=operation.sequential)
        above = self._row(
            "UPDATE node SET creations = creations + 1, num_children = num_children + 1, pzxid = ? "
            "WHERE parent = ? AND name = ? RETURNING owner, creations",
            zxid,
            *split(parent),
        )
        if above is None:
            raise NoNodeError(parent)
        owner_above, creations = above
        if owner_above:
            raise NoChildrenForEphemeralsError(operation.path)
        if operation.sequential:
            name = f"{name}{creations - 1:010}"
        path = _join(parent, name)
        now_ms = self._now_ms()
        owner = session_id if operation.ephemeral else 0
        row = (parent, name, operation.data, zxid, zxid, zxid, now_ms, now_ms, owner)
        insert = "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?)"
        if not self._rows(f"{insert} ON CONFLICT (parent, name) DO NOTHING RETURNING 1", *row):
            raise NodeExistsError(path)
        self.changes += [WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN, parent)]
        return path

    def set(self, path: str, data: bytes, version: int, zxid: int) -> Stat:
        row = self._row(
            "UPDATE node SET data = ?, mzxid = ?, mtime_ms = ?, version = version + 1 "
            f"WHERE parent = ? AND name = ? AND version = ifnull(?, version) RETURNING {_COLUMNS}",
            data,
            zxid,
            self._now_ms(),
            *split(path),
            None if version == ANY_VERSION else version,
        )
        if row is None:
            self.check(path, version)  # raises what is wrong
        assert row is not None, f"{path} could be set, but was not"
        self.changes.append(WatchEvent(EventType.DATA, path))
        return _stat(row)

    def delete(self, path: str, version: int, zxid: int) -> None:
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


def _join(parent: str, name: str) -> str:
    return f"{parent.rstrip('/')}/{name}"


def _node(row: Sequence[Any]) -> Node | None:
    return None if row[1] is None else Node(row[2], _stat(row[4:12]), row[3])


def _stat(row: Sequence[int]) -> Stat:
    czxid, mzxid, ctime_ms, mtime_ms, version, creations, owner, num_children = row
    # every creation and every deletion of a child counts
    return Stat(czxid, mzxid, ctime_ms, mtime_ms, version, 2 * creations - num_children, owner, num_children)
