"""Copies of data directories that no broker uses: quick ones, because what no broker changes any more can be linked.

`shutil` is imported where it is used, because it imports the compression modules, and most brokers copy nothing.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.clock import CLOCK_MS_MAX
from barnabas.runtime.ports import DISK_FULL, READ_ONLY
from barnabas.runtime.temporary import LOCK_NAME

COPIED_BYTES = 4 << 20  # at once
NOTE = "snapshot.json"  # in the folder of a snapshot, beside a folder for each data directory
LOG_SUFFIX = ".log"
TREE_ENDS = ("", "-wal", "-shm", ".newest")  # of the names of the files of a coordination tree, but for its sessions


def copy(
    source: Path | str, target: Path | str, *, left_out: Collection[str] = (LOCK_NAME,), with_links: bool = False
) -> None:
    """Copy what is in a folder, but for entries of these names. OSError: what is there of the copy is not whole.

    `with_links`: segments that are full are hard links, where the file system has them. A broker only appends to the
    last segment of a log, and a follower may cut off others: so not for followers.
    """
    import shutil

    target = Path(target)
    entries = sorted(os.scandir(source), key=lambda entry: entry.name)  # first: the target may be in it
    target.mkdir(parents=True, exist_ok=True)
    full = full_segments(entry.name for entry in entries)
    for entry in entries:
        to = target / entry.name
        if entry.name in left_out:
            continue
        if entry.is_dir(follow_symlinks=False):
            copy(entry.path, to, left_out=(), with_links=with_links)
        elif not (with_links and entry.name in full and link(entry.path, to)):
            shutil.copy(entry.path, to)  # with its mode: others may not read the tree


def why(error: OSError) -> str:
    """What a copy has failed at, and what to do: two sentences, without the last stop."""
    if error.errno in DISK_FULL:
        advice = "Make room, or name another folder"
    elif error.errno in READ_ONLY:
        advice = "Let this user read and write it, or name another folder"
    else:
        advice = "Look after that file and its disk, or name another folder"
    where = error.filename2 or error.filename  # of a copy that finds no room, the second is the new file
    return f"{where}: {error.strerror}. {advice}" if where else f"{error.strerror}. {advice}"


def copy_for_itself(source: str, target: str, *, without: str, goes_on: Callable[[], bool]) -> None:
    """Copy a data directory for a broker of its own, as far as `goes_on` says.

    meta.properties of the copy does not have the line of `without`. Folders of partitions may be links. OSError: what
    is there is not whole.
    """
    Path(target).mkdir(parents=True, exist_ok=True)
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        to = os.path.join(target, entry.name)
        if entry.name == LOCK_NAME:
            continue
        if not entry.is_dir():
            _copy_while(entry.path, to, goes_on)
            continue
        os.mkdir(to)
        for name in os.listdir(entry.path):
            path = os.path.join(entry.path, name)
            if os.path.isfile(path):  # a broker has no folders there
                _copy_while(path, os.path.join(to, name), goes_on)
    meta = Path(target, "meta.properties")
    if goes_on():
        kept = [line for line in meta.read_text().splitlines(True) if not line.startswith(f"{without}=")]
        meta.write_text("".join(kept))


def _copy_while(source: str, target: str, goes_on: Callable[[], bool]) -> None:
    if not stat.S_ISREG(os.stat(source).st_mode):
        raise OSError(errno.EINVAL, "it is no file of a data directory", source)
    with open(source, "rb") as read, open(target, "wb") as written:
        while goes_on() and (piece := read.read(COPIED_BYTES)):
            written.write(piece)


def check_source(folder: str, target: str) -> None:
    """OSError if it is no data directory, or a broker uses it just now, or the copy would be in it."""
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(folder)):
        raise OSError(errno.EINVAL, "the copy would be in it: set TMPDIR to a folder outside")
    names = os.listdir(folder)
    if "meta.properties" not in names:
        raise OSError(errno.EINVAL, "it has no meta.properties, so it is not the data directory of a broker")
    if LOCK_NAME in names and _is_locked(os.path.join(folder, LOCK_NAME)):
        raise OSError(errno.EBUSY, "a running broker uses it: stop that one, or copy a snapshot of it")


def full_segments(paths: Iterable[str]) -> set[str]:
    """The segments among these files that no broker appends to: in each folder all but the last."""
    segments = sorted(path for path in paths if path.endswith(LOG_SUFFIX))
    return {path for path, later in pairwise(segments) if os.path.dirname(path) == os.path.dirname(later)}


def link(source: str, target: Path | str) -> bool:
    """Link a file; False where that cannot be."""
    with suppress(OSError):
        os.link(source, target)
        return True
    return False


def clear(folder: Path, *, left_out: Collection[str] = (LOCK_NAME,)) -> None:
    """Remove what is in a folder, but for entries of these names."""
    import shutil

    for entry in list(os.scandir(folder)):
        if entry.name in left_out:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def files_of_tree(tree: str) -> list[str]:
    """The names of the files, of those that are there, that make up a tree which no process uses.

    OSError: one does.
    """
    folder, name = os.path.split(tree)
    sessions = f"{name}.session-"
    for path in (os.path.join(folder, each) for each in os.listdir(folder) if each.startswith(sessions)):
        if _is_locked(path):
            raise OSError(errno.EBUSY, "a broker uses it that does not take part", tree)
    return [f"{name}{end}" for end in TREE_ENDS if os.path.exists(f"{tree}{end}")]


def _is_locked(path: str) -> bool:
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class Note(NamedTuple):
    """What a snapshot has: the time, and in each data directory these files with so many bytes.

    `tree`: beside the directories, the files of a tree that is in none of them.
    """

    clock_moved_ms: int
    clock_stands_at_ms: int | None
    files: list[dict[str, int]]
    tree: dict[str, int] = {}


def write_note(
    folder: Path, clock_moved_ms: int, clock_stands_at_ms: int | None, directories: int, tree: Iterable[str] = ()
) -> None:
    """Write down what a snapshot has. Without it, a folder is not that of a whole snapshot."""
    places = [folder / str(number) for number in range(directories)]
    files = [{path: os.stat(place / path).st_size for path in files_in(place)} for place in places]
    of_tree = {name: os.stat(folder / name).st_size for name in tree}
    try:
        (folder / NOTE).write_text(json.dumps(Note(clock_moved_ms, clock_stands_at_ms, files, of_tree)._asdict()))
    except OSError as error:
        error.filename = error.filename or str(folder / NOTE)  # a write that finds no room does not name its file
        raise


def read_note(folder: Path) -> Note:
    """What a snapshot has; all of it is there. OSError, ValueError: it is not that of a whole snapshot."""
    _check_file(f"{folder}/{NOTE}")
    try:
        note = Note(**json.loads((folder / NOTE).read_bytes()))
        for number in (note.clock_moved_ms, note.clock_stands_at_ms or 0):
            if type(number) is not int or abs(number) > CLOCK_MS_MAX:
                raise ValueError(f"{number!r} is no time that a snapshot has")
        files = [(f"{place}/", path, size) for place, sizes in enumerate(note.files) for path, size in sizes.items()]
        files += [("", name, size) for name, size in note.tree.items()]
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{NOTE} is damaged: {error}") from None
    for place, path, size in files:
        if path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise ValueError(f"{path!r} is no file in a data directory")
        whole = f"{folder}/{place}{path}"
        found = _check_file(whole)
        if found != size:
            raise OSError(errno.EINVAL, f"it has {found} bytes, and had {size}", whole)
    return note


def _check_file(path: str) -> int:
    """How many bytes it has. OSError if it is no file: to read a pipe would never end."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no file of a snapshot", path)
    return status.st_size


def owner(folder: Path | str) -> dict[str, str]:
    """Whose data directory it is: the cluster and the broker, as meta.properties says. OSError: it does not say."""
    with open(f"{folder}/meta.properties") as properties:
        lines = properties.read().splitlines()
    said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name: said[name] for name in ("cluster.id", "node.id", "broker.id") if name in said}


def check_trees(folder: Path, names: Iterable[str]) -> None:
    """OSError if one of these coordination trees is missing in a folder, or SQLite cannot read it."""
    import sqlite3  # late: only a restore needs it

    for name in names:
        path = folder / name
        if not path.is_file():
            raise OSError(errno.ENOENT, "the tree is missing", str(path))
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
                (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            raise OSError(errno.EINVAL, f"the tree cannot be read: {error}", str(path)) from None
        if said != "ok":
            raise OSError(errno.EINVAL, f"the tree is damaged: {said}", str(path))


def files_in(folder: Path | str, below: str = "") -> Iterator[str]:
    """The paths of all files in a folder, or in one below it, from the folder."""
    for entry in os.scandir(os.path.join(folder, below)):
        path = os.path.join(below, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from files_in(folder, path)
        else:
            yield path
