"""Reads the file of the embedded tree as it is, before there is a session, and changes nothing."""

from barnabas.coordination.port import ConnectionLossError
from barnabas.coordination.session_files import SessionFiles
from barnabas.coordination.tree_file import HEADER_BYTES, TreeFile, damaged, is_header
from barnabas.runtime.ports import Disk, Env

IN_MEMORY = ":memory:"


def copy_as_it_is(env: Env, path: str, sessions: SessionFiles) -> TreeFile | None:
    """A copy of the tree; an empty one if there is no file yet. None when another process wrote during the copy.

    ConnectionLossError if the tree is damaged or may not be written, because the start could not go on then.
    """
    disk = env.disk
    before = _changed_at(disk, path)
    if not before:
        return TreeFile(IN_MEMORY, env.clock.now_ms)
    _check_files(disk, path)
    is_in_use = bool(sessions.alive())
    seen = TreeFile(path, env.clock.now_ms, as_it_is=True, is_in_use=is_in_use, has_log=len(before) > 1)
    if is_in_use or _changed_at(disk, path) == before:
        return seen
    seen.close()
    return None


def _changed_at(disk: Disk, path: str) -> list[tuple[int, int]]:
    """The modification times and sizes of the tree and its log; empty: there is no tree."""
    if path == IN_MEMORY or not disk.exists(path):
        return []
    files = (path, f"{path}-wal")
    return [(disk.modified_ms(each), disk.file_size(each)) for each in files if disk.exists(each)]


def _check_files(disk: Disk, path: str) -> None:
    """Raise ConnectionLossError if the tree is damaged or may not be written, before SQLite opens it.

    SQLite would treat a truncated file as a new one. Beside a tree that may not be written, it would make files with
    the rights of the tree, and the next start would fail because of them.
    """
    try:
        for beside in (f"{path}-wal", f"{path}-shm"):
            if disk.exists(beside):
                disk.open(beside).close()
        file = disk.open(path)  # open for writing, to see whether that is allowed
        try:
            header, size = file.read(0, HEADER_BYTES), file.size()
        finally:
            file.close()
    except OSError as error:
        why = f"cannot read and write {error.filename or path}: {error.strerror}"
        raise ConnectionLossError("", f"{why}. Let this user read and write it, and the files beside it.") from error
    if size and not is_header(header, size):
        raise damaged(path, "its header does not say what it holds")
