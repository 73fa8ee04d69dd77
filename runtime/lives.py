"""The lives of a broker in one process: a snapshot or a restore ends one, and the next begins on the same ports.

A life hands nothing to the next but its data directories. So a restore is whole by itself: it is what a broker finds
that starts there. `cli/start.py` begins the lives, and does between two of them what a command (`broker/http/lives.py`)
wants done. The sockets that listen stay open meanwhile: who connects waits, and is not refused. Faults and the record
of requests go on from life to life.

The brokers of a cluster whose tree is a file on this machine end their lives together, and begin the next ones together
(`meeting.py`): none decides anything while others end, one of them copies the data of all, and none is elected before
all have registered. So the leaders and the replicas in sync are those that the data says.
"""

import asyncio
import errno
import gc
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime import directory_copies, restoring, temporary
from barnabas.runtime.clock import MovableClock
from barnabas.runtime.meeting import Meeting, MeetingError
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Disk
from barnabas.runtime.tasks import one_is_set
from barnabas.runtime.turns import ended
from barnabas.runtime.watcher import Watcher

LIFE_BYTES_MIN = 1 << 20  # less room than that may be too little for a start
REFUSES_FOR_S = 1.0  # until the others have come, which were told the same
LIVES_PER_COLLECTION = 16  # an ended life is a cycle of objects, half a megabyte

logger = logging.getLogger("barnabas.broker")
_ALL_LOGGERS = logging.getLogger("barnabas")


class SnapshotError(Exception):
    """A snapshot cannot be made or restored. The message says why; the data of the broker is unchanged."""


class OthersFailedError(Exception):
    """Another broker of the cluster cannot start with what was put back."""


class SharedTree(NamedTuple):
    """The tree of a cluster on this machine, and the brokers that are told to do the same."""

    path: str
    node_id: int  # of this broker
    node_ids: tuple[int, ...]  # of all of them


class _Outcome(NamedTuple):
    """What came of a command. It goes from broker to broker as JSON."""

    is_done: bool
    folder: str
    error: str = ""
    is_half: bool = False  # the data are neither what they were, nor what was to be put back


class _Command(NamedTuple):
    """What is to be done between two lives."""

    directories: list[str]
    act: Callable[[Sequence[str]], _Outcome]  # with the data directories of all brokers that take part
    clock: tuple[int, int | None] | None = None  # how far it is ahead then, and where it stands; None: as it is
    plan_in: str = ""  # the directory with the plan of a restore; empty: it is no restore
    goes_back: bool = False  # no broker can start with what a restore has put back


class _SoundTrees:
    """The trees of snapshots that were looked through. While one looks the same, nobody need look through it again."""

    def __init__(self) -> None:
        self._looks: dict[str, restoring.Look] = {}

    def check(self, folder: Path, names: Sequence[str]) -> None:
        """OSError if one of these trees is missing in a folder, or damaged."""
        for name in names:
            path = f"{folder}/{name}"
            look = restoring.look_of(path)
            if look is not None and self._looks.get(path) == look:
                continue
            now_ns = time.time_ns()
            directory_copies.check_trees(folder, [name])
            if look is not None and look[1] < now_ns - restoring.TICK_NS:  # else it may change, and look the same
                self._looks[path] = look


class _Quiet:
    """Between two lives a log of INFO says nothing of how brokers end and start, ten lines for each test.

    What is wrong is said, and with DEBUG everything.
    """

    def __init__(self) -> None:
        self._level_before: int | None = None  # None: it is not quiet

    def begin(self) -> None:
        """Say only what is wrong."""
        if self._level_before is None and _ALL_LOGGERS.getEffectiveLevel() == logging.INFO:
            self._level_before = _ALL_LOGGERS.level
            _ALL_LOGGERS.setLevel(logging.WARNING)

    def end(self) -> None:
        """Say everything again."""
        if self._level_before is not None:
            _ALL_LOGGERS.setLevel(self._level_before)
            self._level_before = None


class _Replaced(NamedTuple):
    """How things were before a restore."""

    command: _Command
    clock: tuple[int, int | None]


def _exists(path: Path) -> bool:
    """Whether there is something. SnapshotError for a path that cannot be one."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{str(path)[:100]!r} cannot be a folder ({error})") from None
    return True


def _is_in(path: Path, directories: Sequence[str]) -> bool:
    """Whether a path leads into one of these directories, perhaps by a link."""
    place = os.path.join(os.path.realpath(path), "")
    return any(place.startswith(os.path.join(os.path.realpath(directory), "")) for directory in directories)


def _forget(directory: str) -> None:
    try:
        restoring.forget(directory)
    except FileNotFoundError:  # another broker of the cluster, which has just started, has done it
        pass
    except Exception as error:  # whatever it is, the broker goes on, and a later restore removes them
        logger.warning("could not remove the data from before the restore: %s", error)


class Lives:
    """Which life this is, and what is to be done before the next one."""

    def __init__(self, clock: MovableClock, disk: Disk, own_folder: str) -> None:
        self.number = 0
        self._clock = clock
        self._disk = disk
        self._own_folder = own_folder  # for snapshots whose folder nobody chose; made with the first one
        self._held: tuple[int, Watcher] | None = None  # the lock of that folder, and who removes it
        self._snapshots = 0
        self._quiet = _Quiet()
        self._same = restoring.Same()
        self._sound = _SoundTrees()
        self.gate: object = None  # that of the life before: the next one takes from it what goes on
        self._command: _Command | None = None
        self._meeting: Meeting | None = None  # with the other brokers of a cluster, which got the same command
        self._refusing: asyncio.Task[None] | None = None  # tells those others that this one takes no part
        self._answer: Pending[Path | SnapshotError] | None = None
        self._outcome = _Outcome(False, "")
        self._done = ""  # what was done with its folder, for the log
        self._is_wanted = asyncio.Event()
        self._replaced: _Replaced | None = None  # until it is known that a broker can start with what took its place
        self._replaced_in = ""  # where data from before the last restore is, which is to be removed
        self._forgetting: Pending[None] | None = None  # until it is
        self.keeps_data = True  # whether the next life goes on with the data of this one
        self._numbers: list[Any] = []

    @property
    def is_ending(self) -> bool:
        """Whether this life ends, and another one follows."""
        return self._is_wanted.is_set()

    @property
    def failure(self) -> str:
        """Why what was commanded between the last two lives was not done; empty if it was."""
        return self._outcome.error

    # ------------------------------------------------------------------ the process's side

    def begin(self) -> None:
        """A life is about to start. When it is registered, it calls `are_registered`; then `serves`, or `goes_back`."""
        self.number += 1

    async def are_registered(self) -> None:
        """This broker is registered, and could take part in elections. Of a cluster, wait until all are that far.

        OthersFailedError: another one has failed to start with what was put back.
        """
        if self._meeting is None:
            return
        reached = await self._together("", self._keep_if_all_start)
        if reached is None:
            self._keep()  # the host may not have come to it
        else:
            failed = [f"broker {number}: {why}" for number, why in reached[0].items() if why]
            if failed:
                raise OthersFailedError("; ".join(failed))
        self._replaced = None

    async def serves(self) -> None:
        """This life serves: answer the command that began it, and remove what was there before a restore."""
        done = self._outcome
        if self._meeting is not None:
            await self._together()
            self._meeting.close()
            self._meeting = None
        self._keep()
        self._replaced = None
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.complete(SnapshotError(done.error) if done.error else Path(done.folder))
            await asyncio.sleep(0)  # the answer leaves first: uvloop sends it when this pass of the loop has ended
        self._quiet.end()
        logger.info("life %d of this broker serves: %s", self.number, done.error or f"{self._done} {done.folder}")
        gc.enable()
        if self._replaced_in:
            self._forgetting = self._clock.in_thread(partial(_forget, self._replaced_in), "restored")
            self._replaced_in = ""
        if self.number % LIVES_PER_COLLECTION == 0:
            gc.collect()

    def _keep_if_all_start(self, failures: dict[int, str]) -> None:
        if not any(failures.values()):
            self._keep()

    def _keep(self) -> None:
        """Keep what a restore has put there. A thread is to remove what was there before: nobody waits for that."""
        if self._replaced is None:
            return
        directory = self._replaced.command.plan_in
        try:
            restoring.keep(directory)
        except FileNotFoundError:  # another broker of the cluster has done it
            return
        except OSError as error:
            logger.warning("could not note that the restore is complete: %s", error)
        self._replaced_in = directory

    async def end(self, stop: asyncio.Event) -> bool:
        """Wait until this life is to end; True: another one follows, call `are_quiet`."""
        while True:
            await one_is_set(stop, self._is_wanted)
            if stop.is_set():
                return False
            if self._meeting is not None:
                refused = await self._refused(self._meeting)
                if refused:
                    self._meeting.close()
                    self._go_on(SnapshotError(refused))
                    continue
            self._quiet.begin()
            gc.disable()  # an end and a start leave little garbage, and a collection would look at all of the next life
            return True

    @staticmethod
    async def _refused(meeting: Meeting) -> str:
        """Why the brokers of a cluster do not end their lives; empty: all have come to do it."""
        try:
            said, _ = await meeting.reach()
        except MeetingError as error:
            return f"the brokers of the cluster do not come together: {error}"
        return "; ".join(f"broker {node_id} refuses: {why}" for node_id, why in sorted(said.items()) if why)

    @property
    def has_others(self) -> bool:
        """Whether this broker is one of a cluster, in which all do what this one does."""
        return self._meeting is not None

    async def are_quiet(self, numbers: Any) -> None:
        """This broker decides nothing about others any more. Of a cluster, wait until all are that far.

        `numbers` are those of this broker that are to go on after a restore, as JSON can have them: see `take_numbers`.
        """
        reached = None if self._meeting is None else await self._together(numbers)
        self._numbers = [numbers] if reached is None else list(reached[0].values())

    def take_numbers(self) -> list[Any]:
        """Those of all brokers, after a restore."""
        told, self._numbers = self._numbers, []
        return told if self._replaced is not None else []

    def _go_on(self, error: SnapshotError) -> None:
        """A command is not carried out, and this life goes on."""
        self._is_wanted.clear()
        self._command = self._meeting = None
        self.keeps_data = True
        answer, self._answer = self._answer, None
        assert answer is not None, "nobody has commanded"
        answer.complete(error)

    async def _together(
        self, said: Any = None, act: Callable[[dict[int, Any]], Any] | None = None
    ) -> tuple[dict[int, Any], Any] | None:
        """Come that far with the other brokers. None: one has gone, so that each goes on for itself."""
        assert self._meeting is not None, "this broker is alone"
        try:
            return await self._meeting.reach(said, act)
        except MeetingError as error:
            logger.warning("the brokers of the cluster do not end and begin together any more: %s", error)
            return None

    async def between(self) -> None:
        """No broker uses the data: do what was commanded. OSError: it is half done, so no broker can go on."""
        command, self._command = self._command, None
        assert command is not None, "a life has ended without a command"
        self._done = "restored" if command.plan_in else "made the snapshot"
        self._is_wanted.clear()
        self.keeps_data = True
        if self._forgetting is not None:
            await ended(self._forgetting)
            self._forgetting = None
        if self._meeting is None:
            self._outcome = self._carried_out(command, command.directories)
        else:
            self._outcome = await self._carried_out_together(command)
        if self._outcome.is_half:
            what = "A restore is half done; the next start ends it or undoes it"
            raise OSError(errno.EIO, f"{self._outcome.error}. {what}", command.plan_in)
        if not self._outcome.is_done:
            return
        if command.plan_in and not command.goes_back:
            self._replaced = _Replaced(command, (self._clock.moved_ms, self._clock.stands_at_ms))
        if command.clock is not None:
            self._clock.put_back(*command.clock)

    def _carried_out(self, command: _Command, directories: Sequence[str]) -> _Outcome:
        try:
            return command.act(directories)
        except SnapshotError as error:
            why = str(error)
        except OSError as error:
            why = directory_copies.why(error)
        except Exception as error:  # whatever was commanded, the broker goes on
            logger.exception("could not make or restore a snapshot")
            why = f"{type(error).__name__}: {error}"
        return _Outcome(False, "", why, bool(command.plan_in) and restoring.is_half_done(command.plan_in))

    async def _carried_out_together(self, command: _Command) -> _Outcome:
        def act(directories_of: dict[int, list[str]]) -> _Outcome:
            in_order = [each for _, directories in sorted(directories_of.items()) for each in directories]
            return self._carried_out(command, in_order)

        reached = await self._together(command.directories, act)
        if reached is not None:
            return _Outcome(*reached[1])
        if command.plan_in:  # the broker that did it may have been killed in the middle
            goes_back = command.goes_back
            await restoring.finish_if_begun(command.plan_in, command.directories, self._disk, goes_back=goes_back)
        return _Outcome(
            False, "", "a broker of the cluster has gone meanwhile: all data is as it was, or all is put back"
        )

    async def goes_back(self, error: Exception) -> bool:
        """This life cannot start: whether the next one finds what was there before a restore."""
        if self._replaced is None:
            return False
        is_told = self._meeting is None or isinstance(error, OthersFailedError)
        if not is_told and await self._together(str(error), self._keep_if_all_start) is None:
            return False
        (command, clock), self._replaced = self._replaced, None

        def go_back(_: Sequence[str]) -> _Outcome:
            restoring.go_back(command.plan_in, self._disk)
            folder = self._outcome.folder
            return _Outcome(True, folder, f"no broker can start with {folder}, so all is as it was: {error}")

        self._command = _Command(command.directories, go_back, clock, command.plan_in, goes_back=True)
        return True

    def close(self) -> None:
        """The process ends: its own snapshots are removed."""
        if self._held is not None:
            lock, watcher = self._held
            temporary.remove(self._own_folder)
            temporary.unlock(lock)
            watcher.end()
            self._held = None

    # ------------------------------------------------------------------ the side of commands

    def snapshot(
        self, directories: list[str], folder: str | None, shared: SharedTree | None = None
    ) -> Pending[Path | SnapshotError]:
        """Note what is in these data directories, in a new folder. SnapshotError if that cannot be."""
        self._check(directories, shared)
        if shared is not None and folder is None:
            raise SnapshotError("name a folder: the brokers of a cluster want the same one")
        target = Path(folder) if folder is not None else self._own()
        if not target.is_absolute():
            raise SnapshotError(f"the folder {folder!r} has no absolute path")
        if _exists(target):
            raise SnapshotError(f"{target} is there already: name a folder that is not")
        if _is_in(target, directories):
            raise SnapshotError(f"{target} is in a data directory: name a folder that is not")
        clock = self._clock.moved_ms, self._clock.stands_at_ms

        def note(directories: Sequence[str]) -> _Outcome:
            import shutil  # late: it imports the compression modules

            with restoring.held(directories, self._disk):
                tree = [] if shared is None else _files_of_tree(shared.path, directories)
                try:
                    for number, directory in enumerate(directories):
                        # A follower may cut off full segments, too, so those of a cluster are not linked.
                        left_out, is_alone = restoring.NOT_DATA, shared is None
                        directory_copies.copy(directory, target / str(number), left_out=left_out, with_links=is_alone)
                        self._same.note_all(Path(directory), target / str(number), time.time_ns())
                    for path in tree:
                        shutil.copy(path, target / os.path.basename(path))
                    directory_copies.write_note(target, *clock, len(directories), map(os.path.basename, tree))
                except OSError:
                    temporary.remove(str(target))
                    raise
            return _Outcome(True, str(target))

        return self._change(_Command(directories, note), self._meeting_for("snapshot", str(target), shared))

    def restore(
        self, directories: list[str], folder: str, shared: SharedTree | None = None
    ) -> Pending[Path | SnapshotError]:
        """Put back what a snapshot has: all data, and the time. SnapshotError if that cannot be."""
        self._check(directories, shared)
        source = Path(folder)
        if not source.is_absolute():
            raise SnapshotError(f"the folder {folder!r} has no absolute path")
        noted = _noted(source, None if shared is None else os.path.basename(shared.path), self._sound)
        if _is_in(source, directories):
            raise SnapshotError(f"{folder} is in a data directory, which is replaced")
        if shared is None:
            _check_owners(source, noted, directories, self._sound)

        def put_back(directories: Sequence[str]) -> _Outcome:
            cluster = None
            if shared is not None:
                _check_owners(source, noted, directories, self._sound)
                _files_of_tree(shared.path, directories)
                cluster = restoring.Cluster(shared.path, noted.tree)
            restoring.replace(directories, source, noted.files, self._same, self._disk, cluster)
            return _Outcome(True, folder)

        clock = noted.clock_moved_ms, noted.clock_stands_at_ms
        plan_in = directories[0] if shared is None else os.path.dirname(shared.path)
        meeting = self._meeting_for("restore", folder, shared)
        self.keeps_data = False
        return self._change(_Command(directories, put_back, clock, plan_in), meeting)

    def _check(self, directories: Sequence[str], shared: SharedTree | None) -> None:
        """SnapshotError unless this life may end, because the next one can start."""
        if self._answer is not None:
            raise SnapshotError("another snapshot is being made or restored: try again")
        try:
            self._look_at(directories if shared is None else [os.path.dirname(shared.path), *directories], directories)
        except OSError as error:  # somebody has removed it, for instance
            raise SnapshotError(directory_copies.why(error)) from None

    @staticmethod
    def _look_at(folders: Sequence[str], directories: Sequence[str]) -> None:
        """SnapshotError if one of the folders has no room, or a data directory has links. OSError."""
        for folder in folders:
            status = os.statvfs(folder)  # and not what a fault says: with faults, a broker starts
            if status.f_blocks and status.f_bavail * status.f_frsize < LIFE_BYTES_MIN:
                raise SnapshotError(
                    f"{folder} has less than 1 MiB of room left, so this broker might not start again. Make room there"
                )
        for directory in directories:
            for entry in os.scandir(directory):
                if entry.is_symlink() and entry.is_dir():
                    raise SnapshotError(
                        f"{entry.path} is a link to a folder, and of those there are no snapshots. Put the folder "
                        "itself there, or let log.dirs name a data directory on that disk"
                    )

    def refuse(self, what: str, folder: str | None, shared: SharedTree | None, why: str) -> None:
        """Tell the brokers that were told the same that this one takes no part, so that they do not wait for it."""
        if shared is None or self._meeting is not None:  # those of that meeting refuse by themselves
            return
        with suppress(SnapshotError):
            meeting = self._meeting_for(what, str(folder), shared)
            assert meeting is not None, "there are others"
            self._end_refusing()
            self._refusing = asyncio.create_task(self._say_no(meeting, why))

    @staticmethod
    async def _say_no(meeting: Meeting, why: str) -> None:
        try:
            async with asyncio.timeout(REFUSES_FOR_S):
                await meeting.reach(why)
        except (MeetingError, TimeoutError):
            pass  # they were not told the same, or come later
        finally:
            meeting.close()

    def _end_refusing(self) -> None:
        refusing, self._refusing = self._refusing, None
        if refusing is not None:
            refusing.cancel()

    @staticmethod
    def _meeting_for(what: str, folder: str, shared: SharedTree | None) -> Meeting | None:
        if shared is None:
            return None
        try:
            return Meeting(f"{shared.path}.meeting", f"{what} {folder}", shared.node_id, shared.node_ids)
        except MeetingError as error:
            raise SnapshotError(str(error)) from None

    def _change(self, command: _Command, meeting: Meeting | None) -> Pending[Path | SnapshotError]:
        assert self._command is None, "a life ends for one command only"
        self._end_refusing()
        self._command, self._meeting = command, meeting
        self._answer = Pending()
        self._is_wanted.set()
        return self._answer

    def _own(self) -> Path:
        if self._held is None:
            temporary.make(self._own_folder)
            self._held = temporary.lock(self._own_folder), Watcher(self._own_folder)
        self._snapshots += 1
        return Path(self._own_folder, str(self._snapshots))


def _files_of_tree(tree: str, directories: Sequence[str]) -> list[str]:
    """The files of a tree that brokers share. SnapshotError: it is in the data directory of one of them."""
    folder = os.path.dirname(tree)
    if folder in directories:
        raise SnapshotError(f"the tree {tree} is in a data directory of another broker")
    return [os.path.join(folder, name) for name in directory_copies.files_of_tree(tree)]


def _noted(source: Path, tree: str | None, sound: _SoundTrees) -> directory_copies.Note:
    """What a snapshot has. SnapshotError: it is not whole, or not one of brokers that share a tree of this name.

    `tree` is None for a broker that has its own, in a data directory.
    """
    try:
        noted = directory_copies.read_note(source)
        if tree is not None and noted.tree:
            if tree not in noted.tree:
                raise ValueError(f"the tree {tree} is missing")
            sound.check(source, [tree])
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{source} is not the folder of a whole snapshot ({error})") from None
    if bool(noted.tree) != (tree is not None):
        whose = "a cluster" if noted.tree else "a broker that shares no tree"
        raise SnapshotError(f"{source} is of {whose}")
    return noted


def _check_owners(source: Path, noted: directory_copies.Note, directories: Sequence[str], sound: _SoundTrees) -> None:
    """SnapshotError unless the snapshot is whole, and one of these data directories, in this order."""
    count = len(noted.files)
    if count != len(directories):
        raise SnapshotError(f"{source} has {count} data directories, and here are {len(directories)}")
    try:
        owners = [directory_copies.owner(f"{source}/{number}") for number in range(count)]
        for number, directory in enumerate(directories):
            trees = [name for name in os.listdir(directory) if name.endswith(".sqlite")]
            if not noted.files[number].keys() >= {"meta.properties", *trees}:
                raise ValueError("meta.properties or the tree is missing")
            sound.check(source / str(number), trees)
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{source} is not the folder of a whole snapshot ({error})") from None
    if owners != list(map(directory_copies.owner, directories)):
        raise SnapshotError(f"{source} is of another broker: `barnabas start --from` serves a copy of its data")
