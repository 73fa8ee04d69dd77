"""Reads the file of the embedded tree as it is, before there is a session, and changes nothing."""

from contextlib import closing, suppress

from barnabas.cluster.tree.port import ConnectionLossError
from barnabas.cluster.tree.session_files import SessionFiles
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.cluster.tree.tree_opening import HEADER_BYTES, INDEX, JOURNAL, LOG, BusyError, beside, damaged, is_header
from barnabas.runtime.ports import Disk, Env

IN_MEMORY = ":memory:"


def copy_as_it_is(env: Env, path: str, sessions: SessionFiles) -> TreeFile:
    """A copy of the tree; an empty one if there is no file yet. BusyError when another process wrote during the copy.

    ConnectionLossError if the tree is damaged or may not be written, because the start could not go on then.
    """
    disk = env.disk
    before = _changed_at(disk, path)
    if not before:
        return TreeFile(IN_MEMORY, env.clock.now_ms)
    is_in_use = bool(sessions.alive())
    try:
        _check_files(disk, path)
        left = [end for end in before if end]
        seen = TreeFile(path, env.clock.now_ms, as_it_is=True, is_in_use=is_in_use, left=left)
    except ConnectionLossError:
        if is_in_use or _changed_at(disk, path) == before:
            raise
        raise _changing(path) from None  # it was half of a change, or of a new tree
    try:
        if not is_in_use and _changed_at(disk, path) != before:
            raise _changing(path)
        check_sessions(seen, sessions, path)
    except BaseException:
        seen.close()
        raise
    return seen


def _changing(path: str) -> BusyError:
    return BusyError("", f"other processes write into {path} all the time")


def check_sessions(file: TreeFile, sessions: SessionFiles, path: str, own: int = 0) -> None:
    """Raise BusyError if processes live whose sessions this tree does not know, because they use another one.

    One that is about to begin or end its session looks like that for a moment.
    """
    strangers = [each for each in sessions.alive() if each != own and not file.has_session(each)]
    if strangers:
        who = ", ".join(sorted({str(process) for each in strangers for process in sessions.processes(each)}))
        raise BusyError(
            "",
            f"{path} does not know the sessions {strangers} of processes that run ({who or 'which is not known'}): it "
            "is not the tree that they use, or a part of it was removed. Stop them first, with SIGTERM; then put the "
            "right file there, and start all brokers",
        )


def _changed_at(disk: Disk, path: str) -> dict[str, tuple[int, int]]:
    """The modification times and sizes of the tree and what is beside it; empty: there is no tree."""
    found = {}
    for end in ("", LOG, JOURNAL) if path != IN_MEMORY else ():
        with suppress(FileNotFoundError):
            found[end] = (disk.modified_ms(beside(path, end)), disk.file_size(beside(path, end)))
    return found if "" in found else {}


def _check_files(disk: Disk, path: str) -> None:
    """Raise ConnectionLossError if the tree is damaged or may not be written, before SQLite opens it.

    SQLite would treat a truncated file as a new one. Beside a tree that may not be written, it would make files with
    the rights of the tree, and the next start would fail because of them.
    """
    try:
        for end in (LOG, INDEX):
            if disk.exists(beside(path, end)):
                disk.open(beside(path, end)).close()
        with closing(disk.open(path)) as file:  # open for writing, to see whether that is allowed
            header, size = file.read(0, HEADER_BYTES), file.size()
    except OSError as error:
        why = f"cannot read and write {error.filename or path}: {error.strerror}"
        raise ConnectionLossError("", f"{why}. Let this user read and write it, and the files beside it.") from error
    if size and not is_header(header, size):
        raise damaged(path, "its header does not say what it holds")
