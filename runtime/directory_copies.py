"""Copies of data directories that no broker uses: quick ones, because what no broker changes any more can be linked.

`shutil` is imported where it is used, because it imports the compression modules, and most brokers copy nothing.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from barnabas.runtime.temporary import LOCK_NAME

COPIED_BYTES = 4 << 20  # at once
NOTE = "snapshot.json"  # in the folder of a snapshot, beside a folder for each data directory
LOG_SUFFIX = ".log"
STAGED_SUFFIX = ".restored"  # a file that takes the place of the one without it, when all are there
REWRITTEN_IN_PLACE = (".sqlite", ".sqlite-wal", ".sqlite-shm")  # all other files grow, or are replaced by another
TICK_NS = 20_000_000  # a file system may write down the time of a change this roughly

# What a file looked like when it was the same as a file of a snapshot: size, time of its last change, inode.
Look = tuple[int, int, int]


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
    full = {entry.name for entry in [each for each in entries if each.name.endswith(LOG_SUFFIX)][:-1]}
    for entry in entries:
        to = target / entry.name
        if entry.name in left_out:
            continue
        if entry.is_dir(follow_symlinks=False):
            copy(entry.path, to, left_out=(), with_links=with_links)
        elif not (with_links and entry.name in full and _linked(entry.path, to)):
            shutil.copyfile(entry.path, to)


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
    import fcntl

    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(folder)):
        raise OSError(errno.EINVAL, "the copy would be in it: set TMPDIR to a folder outside")

    names = os.listdir(folder)
    if "meta.properties" not in names:
        raise OSError(errno.EINVAL, "it has no meta.properties, so it is not the data directory of a broker")
    if LOCK_NAME not in names:
        return
    descriptor = os.open(os.path.join(folder, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "a running broker uses it: stop that one, or copy a snapshot of it") from None
    finally:
        os.close(descriptor)


def _linked(source: str, target: Path) -> bool:
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


def write_note(folder: Path, clock_moved_ms: int, clock_stands_at_ms: int | None, directories: int) -> None:
    """Write down what a snapshot has beside data. Without it, a folder is not that of a whole snapshot."""
    clock = {"clock_moved_ms": clock_moved_ms, "clock_stands_at_ms": clock_stands_at_ms}
    (folder / NOTE).write_text(json.dumps({**clock, "directories": directories}))


def owner(folder: Path) -> dict[str, str]:
    """Whose data directory it is: the cluster and the broker, as meta.properties says. OSError: it does not say."""
    lines = (folder / "meta.properties").read_text().splitlines()
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
            connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
            try:
                (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise OSError(errno.EINVAL, f"the tree cannot be read: {error}", str(path)) from None
        if said != "ok":
            raise OSError(errno.EINVAL, f"the tree is damaged: {said}", str(path))


class Same:
    """Which files of a data directory are still the same as those of a snapshot, because nobody has changed them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Look]] = {}  # by path: a file of a snapshot, and how this one looked then

    def note_all(self, folder: Path, source: Path, now_ns: int) -> None:
        """All files of a folder are as in this snapshot, which was made just now."""
        for path in _files(source):
            live = folder / path
            look = _look(live)
            # A file that was changed in this tick may change again and look the same.
            if look is not None and look[1] < now_ns - TICK_NS:
                self._known[str(live)] = str(source / path), look

    def note(self, live: Path, source: Path) -> None:
        """This file has become a copy of that one."""
        look = _look(live)
        if look is not None:
            self._known[str(live)] = str(source), look

    def holds(self, live: Path, source: Path) -> bool:
        """Whether the file is known to be the same."""
        if live.name.endswith(REWRITTEN_IN_PLACE):
            return False
        look = _look(live)
        return look is not None and self._known.get(str(live)) == (str(source), look)


def _look(path: Path) -> Look | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def _files(folder: Path, below: str = "") -> Iterator[str]:
    """The paths of all files in a folder, from there."""
    for entry in os.scandir(folder / below):
        path = os.path.join(below, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder, path)
        else:
            yield path


def replace(folder: Path, source: Path, same: Same) -> None:
    """Make a data directory a copy of a snapshot's. OSError: it is as it was. What is the same is left as it is."""
    wanted = set(_files(source))
    changed = [path for path in wanted if not same.holds(folder / path, source / path)]
    staged: list[str] = []
    try:
        for path in changed:
            target = folder / (path + STAGED_SUFFIX)
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.append(path)
            _copy_with_time(source / path, target)
    except OSError:
        for path in staged:
            with suppress(FileNotFoundError):
                os.unlink(folder / (path + STAGED_SUFFIX))
        raise
    for path in changed:
        os.rename(folder / (path + STAGED_SUFFIX), folder / path)
        same.note(folder / path, source / path)
    for path in set(_files(folder)) - wanted - {LOCK_NAME}:
        os.unlink(folder / path)
    _remove_other_folders(folder, {os.path.dirname(path) for path in wanted})


def _copy_with_time(source: Path, target: Path) -> None:
    """Copy a file. Its time is not now, so that every later change shows."""
    if source.name.endswith(LOG_SUFFIX) and os.stat(source).st_nlink > 1 and _linked(str(source), target):
        return
    import shutil

    shutil.copyfile(source, target)
    status = os.stat(source)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _remove_other_folders(folder: Path, kept: set[str]) -> None:
    import shutil

    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False) and entry.name not in kept:
            shutil.rmtree(entry.path)
