"""Data directories become what a snapshot has: all of them, or none, also if the process is killed meanwhile.

Each file that differs is first copied beside the one whose place it takes. Then they change places; what was there is
kept in a folder until a broker serves what is there now (`keep`, `forget`), or cannot (`go_back`). A plan in the first
directory says how far this is. If the process is killed, the next start does the rest (`finish`). Directories are named
from the first one, so that they may be moved together.

Only copying needs room on the disk: whatever comes later is then renamed or removed, so that a full disk cannot stop it
half-way.

Of a cluster, the first one is the folder of its tree, of which only the files of the tree are replaced: all brokers
know where it is, so each finds the plan.
"""

import asyncio
import errno
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.directory_copies import TREE_ENDS, files_in, full_segments, link
from barnabas.runtime.ports import RESTORE_PLAN, RESTORED_PLAN, Disk
from barnabas.runtime.temporary import LOCK_NAME

STAGED_SUFFIX = ".restored"
REPLACED = ".replaced"  # the folder in a data directory for what was there
REWRITTEN_IN_PLACE = (".sqlite", ".sqlite-wal", ".sqlite-shm")  # all other files grow, or are replaced by another
FINISHED_WITHIN_S, FINISHED_TRIED_EVERY_S = 10.0, 0.02
TICK_NS = 20_000_000  # a file system may write down the time of a change this roughly

# What a broker puts into its data directory. What else is there stays.
OF_BROKERS = re.compile(
    r"\.boot_id|\.clock_doubt|\.tree_mark|\.kafka_cleanshutdown|meta\.properties|.+-checkpoint|.+\.(sqlite.*|tmp|restored)"
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
            look = look_of(f"{folder}/{path}")
            # A file that was changed in this tick may change again and look the same.
            if look is not None and look[1] < now_ns - TICK_NS:
                self.note(f"{folder}/{path}", f"{source}/{path}")

    def note(self, live: str, source: str) -> None:
        """This file has become a copy of that one."""
        look, look_of_source = look_of(live), look_of(source)
        if look is not None and look_of_source is not None:
            self._known[live] = source, look, look_of_source

    def holds(self, live: str, source: str) -> bool:
        """Whether the files are known to be the same."""
        if live.endswith(REWRITTEN_IN_PLACE):
            return False
        known = self._known.get(live)
        return known is not None and known == (source, look_of(live), look_of(source))


def look_of(path: str) -> Look | None:
    """What a file looks like now; None: it is not there."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


Step = Literal["copying", "changing", "clearing", "going back"]


class _Plan(NamedTuple):
    """By directory, as it is named from the first one: files that change, those of them that are new, and all files."""

    step: Step
    changed: dict[str, list[str]]
    new: dict[str, list[str]]
    wanted: dict[str, list[str]]
    tree: str = ""  # the name of the tree, if the first directory is not one of data, but its folder

    def is_of_brokers(self, directory: str, name: str) -> bool:
        """Whether a broker has put this file into the directory."""
        if self.tree and directory == os.curdir:
            return name in (f"{self.tree}{end}" for end in TREE_ENDS)
        return bool(OF_BROKERS.fullmatch(name))

    def data(self, first: Path) -> list[str]:
        """The data directories."""
        return [str(first / name) for name in self.wanted if not (self.tree and name == os.curdir)]


# The steps that come after copying. What the plan says then is written before, in files of these names.
_LATER: Mapping[Step, str] = {
    "changing": ".restore-changing.json",
    "clearing": ".restore-clearing.json",
    "going back": ".restore-back.json",
}

# What is of a restore, or of a process, and of no snapshot.
NOT_DATA = (LOCK_NAME, REPLACED, RESTORE_PLAN, RESTORED_PLAN, *_LATER.values())


class Cluster(NamedTuple):
    """The tree of several brokers, and the files of it that a snapshot has."""

    tree: str
    files: Iterable[str]


def replace(
    directories: Sequence[str],
    source: Path,
    files: Sequence[Iterable[str]],
    same: Same,
    disk: Disk,
    cluster: Cluster | None = None,
) -> None:
    """Make data directories copies of those of a snapshot, which have these files. OSError: they are as they were.

    What is the same is left as it is. What no broker has put there stays. Call `forget` or `go_back` then. `cluster`:
    its tree is replaced, too, and `forget` and `go_back` want its folder.
    """
    assert len(files) == len(directories), "the snapshot has another number of data directories"
    with held(directories, disk):
        sources = [source / str(number) for number in range(len(directories))]
        if cluster is not None:
            directories = [os.path.dirname(cluster.tree), *directories]
            sources, files = [source, *sources], [cluster.files, *files]
        first = _real(directories[0])
        places = {os.path.relpath(_real(directory), first): Path(directory) for directory in directories}
        assert len(places) == len(directories), "the tree is in a data directory"
        sources_of = dict(zip(places, sources))
        wanted = {name: sorted(files[number]) for number, name in enumerate(places)}
        tree = "" if cluster is None else os.path.basename(cluster.tree)
        changed = {
            name: [
                path
                for path in wanted[name]
                if (tree and name == os.curdir) or not same.holds(f"{place}/{path}", f"{sources_of[name]}/{path}")
            ]
            for name, place in places.items()
        }
        new = {
            name: [path for path in changed[name] if not os.path.exists(f"{place}/{path}")]
            for name, place in places.items()
        }
        plan = _Plan("copying", changed, new, wanted, tree)
        for place in places.values():
            _remove_replaced(place)  # of a restore that could not be forgotten
        with suppress(FileNotFoundError):
            os.unlink(first / RESTORED_PLAN)
        try:
            _write(first, plan)
            for step, name in _LATER.items():
                _write(first, plan._replace(step=step), name)
            _stage(plan, places, sources_of)
            plan = _go_on(first, plan, "changing")
        except OSError:
            _undo(first, plan)
            raise
        try:
            _carry_out(first, plan)
        except OSError:
            _undo(first, _go_on(first, plan, "going back"))
            raise
        for name, paths in changed.items():
            for path in paths:
                same.note(f"{places[name]}/{path}", f"{sources_of[name]}/{path}")


def _stage(plan: _Plan, places: Mapping[str, Path], sources: Mapping[str, Path]) -> None:
    """Copy what changes beside the files whose place it takes, and make the folders for those."""
    for name, paths in plan.changed.items():
        # A follower may cut off full segments, too, so those of a cluster are not linked.
        full = () if plan.tree else full_segments(plan.wanted[name])
        place, source = str(places[name]), str(sources[name])
        for folder in {os.path.dirname(path) for path in paths}:
            os.makedirs(os.path.join(place, folder), exist_ok=True)
        for path in paths:
            _copy_with_time(f"{source}/{path}", f"{place}/{path}{STAGED_SUFFIX}", may_link=path in full)
        there = set(paths).difference(plan.new[name])
        for folder in {os.path.dirname(path) for path in (*there, *_unwanted(place, name, plan))}:
            os.makedirs(os.path.join(place, REPLACED, folder), exist_ok=True)


def keep(directory: str) -> None:
    """What `replace` has put there serves, and changes: it cannot go back, nor is it done again. Then call `forget`.

    OSError.
    """
    os.rename(Path(directory, RESTORE_PLAN), Path(directory, RESTORED_PLAN))


def forget(directory: str) -> None:
    """Remove what was in the directories before `replace`, and `keep`. OSError."""
    first = _real(directory)
    _end(first, _read(first, RESTORED_PLAN))


def go_back(directory: str, disk: Disk) -> None:
    """Make the directories what they were before `replace`. OSError."""
    first = _real(directory)
    plan = _read(first)
    with held(plan.data(first), disk):
        _clear_and_go_back(first, _go_on(first, plan, "clearing"))


def is_half_done(directory: str) -> bool:
    """Whether the directories are neither what they were before `replace`, nor what it makes of them. OSError."""
    try:
        return _read(_real(directory)).step != "copying"
    except FileNotFoundError:
        return False


def finish(directory: str, disk: Disk, *, goes_back: bool = False) -> None:
    """Complete what a killed process has begun in this directory, or roll it back if it had not got far.

    `goes_back`: roll it back in any case, as no broker can start with what was put back.
    OSError: it cannot be. The message says why.
    """
    first = _real(directory)
    directories = _read(first).data(first)
    for each in directories:
        if not os.path.isdir(each):
            message = f"a restore of it was interrupted, and {each} is missing: put that directory back"
            raise OSError(errno.ENOENT, message, directory)
    with held(directories, disk):
        plan = _read(first)  # another broker of the cluster may have done it, or a part of it, meanwhile
        if plan.step == "changing" and goes_back:
            plan = _go_on(first, plan, "clearing")
        if plan.step == "changing":
            _carry_out(first, plan)
            _end(first, plan)
        elif plan.step == "clearing":
            _clear_and_go_back(first, plan)
        else:
            _undo(first, plan)
    what = "completed" if plan.step == "changing" else "rolled back"
    logger.info("%s: %s an interrupted restore", directory, what)


async def finish_if_begun(directory: str, own: Sequence[str], disk: Disk, *, goes_back: bool = False) -> None:
    """`finish`, if there is something to be completed; then nobody holds this broker's own data directories for that.

    Other brokers of a cluster may do it at the same time. OSError: it cannot be, or a broker that uses the data keeps
    others from it.
    """
    tries = FINISHED_WITHIN_S / FINISHED_TRIED_EVERY_S
    while True:
        try:
            if os.path.exists(os.path.join(directory, RESTORE_PLAN)):
                finish(directory, disk, goes_back=goes_back)
            held(own, disk).close()
            return
        except OSError as error:
            tries -= 1
            if error.errno not in (errno.EBUSY, errno.ENOENT) or tries < 0:
                raise
        await asyncio.sleep(FINISHED_TRIED_EVERY_S)


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


def _real(directory: str) -> Path:
    """From a link, the path to another directory would lead elsewhere."""
    return Path(os.path.realpath(directory))


def _write(first: Path, plan: _Plan, name: str = RESTORE_PLAN) -> None:
    begun = f"{first}/{RESTORE_PLAN}.tmp"
    with open(begun, "w") as file:
        file.write(json.dumps(plan._asdict()))
    os.replace(begun, f"{first}/{name}")


def _go_on(first: Path, plan: _Plan, step: Step) -> _Plan:
    """The next step is to be done, whatever happens. OSError: it is not."""
    os.rename(first / _LATER[step], first / RESTORE_PLAN)
    return plan._replace(step=step)


def _read(first: Path, name: str = RESTORE_PLAN) -> _Plan:
    try:
        plan = _Plan(**json.loads((first / name).read_text()))
        if not all(isinstance(part, dict) for part in plan[1:4]) or not isinstance(plan.tree, str):
            raise ValueError("a part is missing")
    except (ValueError, TypeError):
        message = "the plan of an interrupted restore is damaged. Remove it to use the directory as it is"
        raise OSError(errno.EINVAL, message, str(first / name)) from None
    return plan


def _carry_out(first: Path, plan: _Plan) -> None:
    """Put aside what was there, and let the copies take their places. May be done again."""
    assert plan.step == "changing", "not all copies are there"
    staged = [
        (os.path.join(first, name), path)
        for name, paths in plan.changed.items()
        for path in paths
        if os.path.exists(f"{first}/{name}/{path}{STAGED_SUFFIX}")
    ]
    if not staged and any(plan.changed.values()):
        return  # it was done before, and what is there now may be of a broker that has begun with it
    for name in plan.changed:
        directory = os.path.join(first, name)
        for path in _unwanted(directory, name, plan):
            _move(f"{directory}/{path}", f"{directory}/{REPLACED}/{path}")
    for directory, path in staged:
        there = f"{directory}/{path}"
        if os.path.exists(there):
            _move(there, f"{directory}/{REPLACED}/{path}")
        os.rename(f"{there}{STAGED_SUFFIX}", there)


def _unwanted(directory: str, name: str, plan: _Plan) -> Iterator[str]:
    """The files and the whole folders in a directory that brokers have put there, and the snapshot does not have."""
    wanted = set(plan.wanted[name])
    kept = wanted.union([f"{path}{STAGED_SUFFIX}" for path in plan.changed[name]], [f"{RESTORE_PLAN}.tmp"])
    folders = {os.path.dirname(path) for path in wanted}
    for entry in list(os.scandir(directory)):
        if not entry.is_dir(follow_symlinks=False):
            if entry.name not in kept and plan.is_of_brokers(name, entry.name):
                yield entry.name
        elif plan.tree and name == os.curdir:
            continue  # the folder of a tree has none of its own
        elif entry.name in folders:
            yield from set(files_in(directory, entry.name)) - kept
        elif FOLDER_OF_LOG.fullmatch(entry.name):
            yield entry.name


def _clear(first: Path, plan: _Plan) -> None:
    """Remove what brokers have made that could not start with the copies. May be done again.

    The end of a tree (`-wal`) that stays beside the one from before would make that one unreadable.
    """
    for name in plan.wanted:
        directory = os.path.join(first, name)
        for path in _unwanted(directory, name, plan):
            whole = f"{directory}/{path}"
            if os.path.isdir(whole) and not os.path.islink(whole):
                _remove(whole)
            else:
                os.unlink(whole)


def _clear_and_go_back(first: Path, plan: _Plan) -> None:
    assert plan.step == "clearing", "what is from before would be removed"
    _clear(first, plan)
    _undo(first, _go_on(first, plan, "going back"))


def _undo(first: Path, plan: _Plan) -> None:
    """Everything goes back to its place, and what was copied goes. May be done again."""
    for name, paths in plan.changed.items():
        directory = first / name
        replaced = directory / REPLACED
        if plan.step == "going back":
            for path in plan.new[name]:
                with suppress(FileNotFoundError):
                    os.unlink(directory / path)
            with suppress(FileNotFoundError):
                _move_all(str(replaced), str(directory))
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(directory / (path + STAGED_SUFFIX))
        for folder in {os.path.dirname(path) for path in paths} - {""}:
            with suppress(OSError):  # one that is not empty was there before
                os.rmdir(directory / folder)
    _end(first, plan)


def _remove_replaced(directory: Path) -> None:
    with suppress(OSError):  # what is left then goes with the next restore
        _remove(f"{directory}/{REPLACED}")


def _remove(folder: str) -> None:
    """In half the time of `shutil.rmtree`, which guards against links that somebody makes meanwhile."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            _remove(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(folder)


def _end(first: Path, plan: _Plan) -> None:
    for name in plan.wanted:
        _remove_replaced(first / name)
    for left in (f"{RESTORE_PLAN}.tmp", *_LATER.values(), RESTORE_PLAN, RESTORED_PLAN):
        with suppress(FileNotFoundError):
            os.unlink(first / left)


def _move(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(source, target)


def _move_all(source: str, target: str) -> None:
    """Move what is in a folder into another. May be done again. FileNotFoundError: there is no such folder."""
    for entry in list(os.scandir(source)):
        if entry.is_dir(follow_symlinks=False) and os.path.isdir(f"{target}/{entry.name}"):
            _move_all(entry.path, f"{target}/{entry.name}")
        else:
            os.rename(entry.path, f"{target}/{entry.name}")


def _copy_with_time(source: str, target: str, *, may_link: bool) -> None:
    """Copy a file, with its mode: others may not read the tree. Its time is not now, so that later changes show."""
    with suppress(FileNotFoundError):  # of a restore whose plan was lost
        os.unlink(target)
    if may_link and link(source, target):
        return
    import shutil  # late: it imports the compression modules

    shutil.copy2(source, target)
