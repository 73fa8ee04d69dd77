"""Opens the file of the tree: as a tree in use, or as it is, to look at it before anything is changed.

A -wal beside the file that nobody has open was left by processes that were killed, and belongs to the tree. Or it was
left there when another file was put in the tree's place. SQLite cannot tell, and would make one damaged tree of both.
What the tree says of itself tells: its changes have numbers, which never go back, and none of them is missing.

Like `tree_file.py` this module uses the disk without the Disk port, because SQLite opens its files itself.
"""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import quote

from barnabas.cluster.tree.port import ConnectionLossError
from barnabas.protocol.named_tuple import NamedTuple

HEADER_BYTES = 100
WRITE_AHEAD_BYTES = slice(18, 20)  # of the header: 2, 2 says that a -wal may belong to the file, 1, 1 that none does
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
LOG, INDEX, JOURNAL = "-wal", "-shm", "-journal"  # what SQLite keeps beside the file, by the ends of the names
_FORMAT = 1  # PRAGMA user_version
_ADVICE = {  # by the kind of SQLite's error
    sqlite3.SQLITE_FULL: ". Make room there (`df`, `df -i`)",
    sqlite3.SQLITE_IOERR: ". Look after its disk: it may be full (`df`, `df -i`), or broken",
    sqlite3.SQLITE_READONLY: ". Let this user write the file and its folder",
    sqlite3.SQLITE_CANTOPEN: ". Let this user write the file and its folder",
}


class BusyError(ConnectionLossError):
    """Another process has the file to itself just now. Nothing was done, and the same call may work soon."""


class Counters(NamedTuple):
    """How many changes and sessions there were. A change adds one to either, or one to each."""

    zxid: int
    session: int


def beside(path: str, end: str) -> str:
    """The name of what SQLite keeps beside the tree at `path`. If that is a link, SQLite follows it."""
    return f"{os.path.realpath(path) if os.path.islink(path) else path}{end}"


def open_tree(path: str, *, syncs: bool = True) -> sqlite3.Connection:
    """Open the tree for use, and make a new one if there is none. Without `syncs` it does not survive a power cut.

    A new tree is in the file before its first -wal is made. So a file that holds something, but no tree, is not one
    whose making was cut off.
    """
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA synchronous = {'FULL' if syncs else 'OFF'}")
        _make_tree(connection, path)
    except BaseException:
        connection.close()  # a COMMIT that found another process reading keeps its locks, for everybody, until then
        raise
    return connection


def _make_tree(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("PRAGMA fullfsync = ON")  # macOS: down to the disk itself; elsewhere without effect
    if _read_format(connection, path) != _FORMAT:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        if connection.execute("SELECT count(*) FROM counter").fetchone() == (0,):
            connection.execute("INSERT INTO counter VALUES (0, 0)")
            connection.execute("INSERT INTO node VALUES ('/', '', x'', 0, 0, 0, 0, 0, 0, 0, 0, 0)")
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")


def open_as_it_is(path: str, *, is_in_use: bool, left: Sequence[str]) -> sqlite3.Connection:
    """A copy of the tree in memory. No file is made or changed, and if nobody uses the tree, no lock is taken.

    `left`: the ends of the names of the files that SQLite has left beside it.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    if is_in_use:
        pages = _copy(f"file:{quote(path)}?mode=ro", connection)
    elif not left:
        pages = _copy(_without_log(path), connection)
    else:  # SQLite cannot read its log without making a file beside it, so it reads a copy
        import shutil  # late: both are only needed at a start after a kill
        import tempfile

        with tempfile.TemporaryDirectory(prefix="barnabas-") as folder:
            for end in ("", *left):
                shutil.copyfile(beside(path, end), f"{folder}/tree{end}")
            if LOG in left:
                _check_that_log_belongs(path, folder)
            pages = _copy(f"file:{quote(folder)}/tree", connection)
    if _read_format(connection, path) == _FORMAT:
        _check_all_pages(connection)
        return connection
    connection.close()
    if pages:
        raise damaged(path, "it holds no tree. A copy by `cp` of a tree that is in use lacks what is in its -wal")
    return open_tree(":memory:")


def counters_on_disk(path: str) -> Counters | None:
    """What the file itself says, without its log; None: nothing that can be read, perhaps because it is written now."""
    return _counters(_without_log(path))


def _without_log(path: str) -> str:
    return f"file:{quote(path)}?mode=ro&immutable=1"


def _counters(source_uri: str) -> Counters | None:
    try:
        with closing(sqlite3.connect(source_uri, uri=True, timeout=0)) as source:
            row = source.execute("SELECT zxid, session FROM counter").fetchone()
    except sqlite3.Error:
        return None
    return Counters(*row) if row is not None and all(isinstance(number, int) for number in row) else None


def _check_that_log_belongs(path: str, folder: str) -> None:
    """Raise ConnectionLossError unless the -wal continues the file beside it. `folder` has copies of both."""
    import shutil

    tree, log = f"{folder}/tree", f"{folder}/tree{LOG}"
    end = _end_of_first_change(log)
    if end is None:
        return
    with open(tree, "rb") as file:
        header = file.read(HEADER_BYTES)
    if header[WRITE_AHEAD_BYTES] == b"\1\1":
        raise _foreign_log(path, "the file was put there whole, as a backup is")
    held = counters_on_disk(tree)
    if held is None:
        return  # whether both together are a tree is seen later
    for name, size in (("first", end), ("all", os.path.getsize(log))):
        shutil.copyfile(tree, f"{folder}/{name}")
        shutil.copyfile(log, f"{folder}/{name}{LOG}")
        os.truncate(f"{folder}/{name}{LOG}", size)
    first = _counters(f"file:{quote(folder)}/first")
    last = _counters(f"file:{quote(folder)}/all")
    if last is not None and last.zxid < held.zxid:
        raise _foreign_log(path, f"it ends with change {last.zxid}, and the file has change {held.zxid}")
    if first is None:
        return
    is_new_history = first.zxid & 0xFFFFFFFF == 0  # see TreeFile.mark_restored
    if (first.zxid > held.zxid + 1 and not is_new_history) or first.session > held.session + 1:
        raise _foreign_log(path, f"it begins with change {first.zxid}, and the file ends with change {held.zxid}")


def _end_of_first_change(log: str) -> int | None:
    """How many bytes of a log its first change needs; None: there is no whole one (SQLite: "WAL File Format")."""
    with open(log, "rb") as file:
        header = file.read(32)
        if len(header) < 32:
            return None
        page_bytes, salts = int.from_bytes(header[8:12], "big"), header[16:24]
        while True:
            frame = file.read(24)
            if len(frame) < 24 or frame[8:16] != salts:
                return None
            file.seek(page_bytes, os.SEEK_CUR)
            if frame[4:8] != bytes(4):  # a change ends with the number of pages that the tree has then
                return file.tell()


def _foreign_log(path: str, why: str) -> ConnectionLossError:
    return ConnectionLossError(
        "",
        f"{beside(path, LOG)} does not belong to {path}: {why}. If {path} is the right one (a backup that was put "
        f"back), move {beside(path, LOG)} and {beside(path, INDEX)} away; otherwise put the file back to which they "
        "belong.",
    )


def _check_all_pages(connection: sqlite3.Connection) -> None:
    """Raise DatabaseError if any page is damaged. So damage is found before the start changes anything."""
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict.strip().replace("\n", " "))


def _copy(source_uri: str, target: sqlite3.Connection) -> int:
    """Copy everything; returns how many pages there are. (The copy of a file without any has one.)"""
    with closing(sqlite3.connect(source_uri, uri=True, timeout=0)) as source:
        (pages,) = source.execute("PRAGMA page_count").fetchone()
        source.backup(target)
        return int(pages)


def is_header(header: bytes, size: int) -> bool:
    """Whether these bytes begin an SQLite file of this size (SQLite: "Database File Format", 1.3)."""
    if len(header) < HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        return False
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 1 << 16 if page_bytes == 1 else page_bytes
    schema_format = int.from_bytes(header[44:48], "big")
    return page_bytes >= 512 and size >= page_bytes and max(header[18:20]) <= 2 and schema_format <= 4


def _read_format(connection: sqlite3.Connection, path: str) -> int:
    """The format of the tree, 0 for a file without one. ConnectionLossError for an unknown format."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, _FORMAT):
        raise ConnectionLossError("", f"{path} has format {version}; this program knows {_FORMAT}")
    return int(version)


def lost(path: str, error: sqlite3.Error) -> ConnectionLossError:
    """The error for a read or a change that SQLite could not do."""
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF  # SQLITE_PROTOCOL: it gave up a race with another process
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL):
        return BusyError("", f"cannot use {path}: {error}")
    if isinstance(error, sqlite3.OperationalError):  # the file is locked, or cannot be read, or the disk is full
        return ConnectionLossError("", f"cannot use {path}: {error}{_ADVICE.get(kind, '')}")
    return damaged(path, str(error))


def damaged(path: str, why: str) -> ConnectionLossError:
    """The error for a damaged tree. It tells the user what to do."""
    advice = (
        "Restore it from a backup, or move it and its -wal and -shm away: topics, records and offsets are then "
        "found in the logs, settings are not"
    )
    return ConnectionLossError("", f"{path} is damaged: {why}. {advice}.")
