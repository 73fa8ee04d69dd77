"""Data directories become what a snapshot has: all of them, or none, also if the process is killed meanwhile.

Each file that differs is first copied beside the one whose place it takes. A plan in the first directory says which
these are. When all are there, the plan says so, too, and from then on the rest is done, by this process or by the next
start (`finish`). Directories are named from the first one, so that they may be moved together.
"""

import errno
import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from barnabas.runtime.directory_copies import files_in, is_linkable, link
from barnabas.runtime.ports import RESTORE_PLAN, Disk
from barnabas.runtime.temporary import LOCK_NAME

STAGED_SUFFIX = ".restored"
REWRITTEN_IN_PLACE = (".sqlite", ".sqlite-wal", ".sqlite-shm")  # all other files grow, or are replaced by another
TICK_NS = 20_000_000  # a file system may write down the time of a change this roughly

# What a broker puts into its data directory. What else is there stays.
OF_BROKERS = re.compile(
    r"\.boot_id|\.tree_mark|\.kafka_cleanshutdown|meta\.properties|.+-checkpoint|.+\.(sqlite.*|tmp|restored)"
)
FOLDER_OF_LOG = re.compile(r".+-\d+(\.[0-9a-f]{32}-(delete|stray|future))?")

logger = logging.getLogger("barnabas.broker")

# What a file looked like: size, time of its last change, inode.
Look = tuple[int, int, int]


class Same:
    """Which files of a data directory are still the same as those of a snapshot, because nobody has changed either."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Look, Look]] = {}  # by path: a file of a snapshot, and how both looked then

    def note_all(self, folder: Path, source: Path, now_ns: int) -> None:
        """All files of a folder are as in this snapshot, which was made just now."""
        for path in files_in(source):
            look = _look(folder / path)
            # A file that was changed in this tick may change again and look the same.
            if look is not None and look[1] < now_ns - TICK_NS:
                self.note(folder / path, source / path)

    def note(self, live: Path, source: Path) -> None:
        """This file has become a copy of that one."""
        look, look_of_source = _look(live), _look(source)
        if look is not None and look_of_source is not None:
            self._known[str(live)] = str(source), look, look_of_source

    def holds(self, live: Path, source: Path) -> bool:
        """Whether the files are known to be the same."""
        if live.name.endswith(REWRITTEN_IN_PLACE):
            return False
        look, look_of_source = _look(live), _look(source)
        return look is not None and self._known.get(str(live)) == (str(source), look, look_of_source)


def _look(path: Path) -> Look | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


class _Plan(NamedTuple):
    """By directory, as it is named from the first one: the files that change, and all that it has then."""

    changed: dict[str, list[str]]
    wanted: dict[str, list[str]]
    is_staged: bool


def replace(directories: Sequence[str], source: Path, same: Same, disk: Disk) -> None:
    """Make data directories copies of those of a snapshot. OSError: they are as they were.

    What is the same is left as it is. What no broker has put there stays.
    """
    with held(directories, disk):
        first = Path(directories[0])
        places = {os.path.relpath(directory, first): Path(directory) for directory in directories}
        sources = {name: source / str(number) for number, name in enumerate(places)}
        wanted = {name: sorted(files_in(sources[name])) for name in places}
        changed = {
            name: [path for path in wanted[name] if not same.holds(place / path, sources[name] / path)]
            for name, place in places.items()
        }
        plan = _Plan(changed, wanted, is_staged=False)
        try:
            _write(first, plan)
            for name, paths in changed.items():
                last_segments = _last_segments(wanted[name])
                for path in paths:
                    target = places[name] / (path + STAGED_SUFFIX)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _copy_with_time(sources[name] / path, target, may_link=path not in last_segments)
            plan = plan._replace(is_staged=True)
            _write(first, plan)
        except OSError:
            _undo(first, plan)
            raise
        _carry_out(first, plan)
        for name, paths in changed.items():
            for path in paths:
                same.note(places[name] / path, sources[name] / path)


def finish(directory: str, disk: Disk) -> None:
    """What a killed process has begun in this directory is done to its end, or undone if it had not got far.

    OSError: it cannot be. The message says why.
    """
    first = Path(directory)
    try:
        plan = _Plan(**json.loads((first / RESTORE_PLAN).read_text()))
        directories = [str(first / name) for name in plan.wanted]
    except (ValueError, TypeError, AttributeError):
        message = "it does not say what was being put back. Remove it, and the directory is taken as it is"
        raise OSError(errno.EINVAL, message, str(first / RESTORE_PLAN)) from None
    for each in directories:
        if not os.path.isdir(each):
            message = f"a restore of it was broken off, and {each} is missing: put that back beside it"
            raise OSError(errno.ENOENT, message, directory)
    with held(directories, disk):
        (_carry_out if plan.is_staged else _undo)(first, plan)
    done = "is done to its end" if plan.is_staged else "is undone"
    logger.warning("%s: a restore that was broken off %s", directory, done)


def held(directories: Sequence[str], disk: Disk) -> ExitStack:
    """No broker begins to use the directories meanwhile. OSError: one does already."""
    with ExitStack() as stack:
        for directory in directories:
            try:
                lock = disk.lock(os.path.join(directory, LOCK_NAME))
            except BlockingIOError:
                raise OSError(errno.EBUSY, "another broker uses it", directory) from None
            stack.callback(lock.release)
        return stack.pop_all()


def _write(first: Path, plan: _Plan) -> None:
    begun = first / f"{RESTORE_PLAN}.tmp"
    begun.write_text(json.dumps(plan._asdict()))
    os.replace(begun, first / RESTORE_PLAN)


def _undo(first: Path, plan: _Plan) -> None:
    """Remove what was copied, and the folders that were made for it."""
    for name, paths in plan.changed.items():
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(first / name / (path + STAGED_SUFFIX))
        for folder in {os.path.dirname(path) for path in paths} - {""}:
            with suppress(OSError):  # one that is not empty was there before
                os.rmdir(first / name / folder)
    for left in (RESTORE_PLAN, f"{RESTORE_PLAN}.tmp"):
        with suppress(FileNotFoundError):
            os.unlink(first / left)


def _carry_out(first: Path, plan: _Plan) -> None:
    """Let the copies take their places, and remove what the snapshot does not have. May be done again."""
    import shutil  # late: it imports the compression modules

    for name, paths in plan.changed.items():
        directory = first / name
        for path in paths:
            with suppress(FileNotFoundError):  # done before
                os.rename(directory / (path + STAGED_SUFFIX), directory / path)
        wanted = set(plan.wanted[name])
        folders = {os.path.dirname(path) for path in wanted}
        for entry in list(os.scandir(directory)):
            if not entry.is_dir(follow_symlinks=False):
                if entry.name not in wanted and OF_BROKERS.fullmatch(entry.name):
                    os.unlink(entry.path)
            elif entry.name in folders:
                for path in set(files_in(directory, entry.name)) - wanted:
                    os.unlink(directory / path)
            elif FOLDER_OF_LOG.fullmatch(entry.name):
                shutil.rmtree(entry.path)
    os.unlink(first / RESTORE_PLAN)


def _last_segments(paths: Sequence[str]) -> set[str]:
    """The segments that a broker appends to, which are copied and never linked."""
    last: dict[str, str] = {}
    for path in sorted(path for path in paths if is_linkable(path)):
        last[os.path.dirname(path)] = path
    return set(last.values())


def _copy_with_time(source: Path, target: Path, *, may_link: bool) -> None:
    """Copy a file. Its time is not now, so that every later change shows."""
    with suppress(FileNotFoundError):  # of a restore whose plan was lost
        os.unlink(target)
    if may_link and is_linkable(source.name) and link(str(source), target):
        return
    import shutil

    shutil.copyfile(source, target)
    status = os.stat(source)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
