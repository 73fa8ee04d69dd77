"""The lives of a broker in one process: a snapshot or a restore ends one, and the next begins on the same ports.

A life hands nothing to the next but its data directories. So a restore is whole by itself: it is what a broker finds
that starts there. `cli/start.py` begins the lives, and does between two of them what a command (`broker/http/lives.py`)
wants done. The sockets that listen stay open meanwhile: who connects waits, and is not refused. Faults and the record
of requests go on from life to life.
"""

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from barnabas.runtime import directory_copies, restoring, temporary
from barnabas.runtime.clock import MovableClock
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Disk

LIVES_PER_COLLECTION = 32  # an ended life is a large cycle of objects

logger = logging.getLogger("barnabas.broker")


class SnapshotError(Exception):
    """A snapshot cannot be made or restored. The message says why; the data of the broker is unchanged."""


def _exists(path: Path) -> bool:
    """Whether there is something. SnapshotError for a path that cannot be one."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{str(path)[:100]!r} cannot be a folder ({error})") from None
    return True


def _forget(directory: str) -> None:
    try:
        restoring.forget(directory)
    except OSError as error:
        logger.warning("could not remove the data from before the restore: %s", error)


class Lives:
    """Which life this is, and what is to be done before the next one."""

    def __init__(self, clock: MovableClock, disk: Disk, own_folder: str) -> None:
        self.number = 0
        self._clock = clock
        self._disk = disk
        self._own_folder = own_folder  # for snapshots whose folder nobody chose; made with the first one
        self._lock: int | None = None
        self._snapshots = 0
        self._same = restoring.Same()
        self.gate: object = None  # that of the life before: the next one takes from it what goes on
        self._between: Callable[[], Path | SnapshotError] | None = None
        self._answer: Pending[Path | SnapshotError] | None = None
        self._outcome: Path | SnapshotError | None = None
        self._is_wanted = asyncio.Event()
        self._replaced: tuple[str, int, int | None] | None = None  # the first directory, and the time before a restore
        self._forgetting: threading.Thread | None = None  # removes what was there before the last restore
        self.keeps_data = True  # whether the next life goes on with the data of this one

    @property
    def is_ending(self) -> bool:
        """Whether this life ends, and another one follows."""
        return self._is_wanted.is_set()

    # ------------------------------------------------------------------ the process's side

    def begin(self) -> None:
        """A life is about to start."""
        self.number += 1

    def serves(self) -> None:
        """This life serves: answer the command that began it, and remove what was there before a restore."""
        replaced, self._replaced = self._replaced, None
        if replaced is not None:
            self._keep(replaced[0])
        answer, self._answer = self._answer, None
        if answer is not None:
            assert self._outcome is not None, "a command was not carried out between two lives"
            answer.complete(self._outcome)
        if self.number % LIVES_PER_COLLECTION == 0:
            gc.collect()

    def _keep(self, directory: str) -> None:
        """Keep what a restore has put there, and remove what was there before in a thread: nobody waits for that."""
        try:
            restoring.keep(directory)
        except OSError as error:
            logger.warning("could not note that the restore is complete: %s", error)
        self._forgetting = threading.Thread(target=_forget, args=(directory,), name="restored")
        self._forgetting.start()

    async def end(self, stop: asyncio.Event) -> bool:
        """Wait until this life is to end; True: another one follows."""
        told = [asyncio.ensure_future(event.wait()) for event in (stop, self._is_wanted)]
        await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
        for each in told:
            each.cancel()
        return not stop.is_set()

    def between(self) -> None:
        """No broker uses the data: do what was commanded."""
        between, self._between = self._between, None
        assert between is not None, "a life has ended without a command"
        self._is_wanted.clear()
        self.keeps_data = True
        if self._forgetting is not None:
            self._forgetting.join()
        try:
            self._outcome = between()
        except OSError as error:
            self._outcome = SnapshotError(
                f"{error.filename or ''}: {error.strerror}. Make room, or name another folder"
            )
        except Exception as error:  # whatever was commanded, the broker goes on
            logger.exception("could not make or restore a snapshot")
            self._outcome = SnapshotError(f"{type(error).__name__}: {error}")

    def goes_back(self, error: Exception) -> bool:
        """This life cannot start: whether the next one finds what was there before a restore."""
        if self._replaced is None:
            return False
        (directory, moved_ms, stands_at_ms), self._replaced = self._replaced, None

        def go_back() -> SnapshotError:
            restoring.go_back(directory, self._disk)
            self._clock.put_back(moved_ms, stands_at_ms)
            return SnapshotError(f"no broker can start with {self._outcome}, so all is as it was: {error}")

        self._between = go_back
        return True

    def close(self) -> None:
        """The process ends: its own snapshots are removed."""
        if self._lock is not None:
            temporary.remove(self._own_folder)
            temporary.unlock(self._lock)
            self._lock = None

    # ------------------------------------------------------------------ the side of commands

    def snapshot(self, directories: Sequence[str], folder: str | None) -> Pending[Path | SnapshotError]:
        """Note what is in these data directories, in a new folder. SnapshotError if that cannot be."""
        self._check()
        target = Path(folder) if folder is not None else self._own()
        if not target.is_absolute():
            raise SnapshotError(f"the folder {folder!r} has no absolute path")
        if any(target.is_relative_to(directory) for directory in directories):
            raise SnapshotError(f"{target} is in a data directory: name a folder that is not")
        if _exists(target):
            raise SnapshotError(f"{target} is there already: name a folder that is not")
        moved_ms, stands_at_ms = self._clock.moved_ms, self._clock.stands_at_ms

        def note() -> Path:
            with restoring.held(directories, self._disk):
                try:
                    for number, directory in enumerate(directories):
                        directory_copies.copy(Path(directory), target / str(number), with_links=True)
                        self._same.note_all(Path(directory), target / str(number), time.time_ns())
                    directory_copies.write_note(target, moved_ms, stands_at_ms, len(directories))
                except OSError:
                    temporary.remove(str(target))
                    raise
            return target

        return self._change(note)

    def restore(self, directories: Sequence[str], folder: str) -> Pending[Path | SnapshotError]:
        """Put back what a snapshot has: all data, and the time. SnapshotError if that cannot be."""
        self._check()
        source = Path(folder)
        if not source.is_absolute():
            raise SnapshotError(f"the folder {folder!r} has no absolute path")
        try:
            noted = directory_copies.read_note(source)
        except (OSError, ValueError) as error:
            raise SnapshotError(f"{folder} is not the folder of a whole snapshot ({error})") from None
        count = len(noted.files)
        if count != len(directories):
            raise SnapshotError(f"{folder} has {count} data directories, and this broker {len(directories)}")
        if any(source.is_relative_to(directory) for directory in directories):
            raise SnapshotError(f"{folder} is in a data directory, which is replaced")
        try:
            owners = [directory_copies.owner(source / str(number)) for number in range(count)]
            for number, directory in enumerate(directories):
                trees = [path.name for path in Path(directory).glob("*.sqlite")]
                if not noted.files[number].keys() >= {"meta.properties", *trees}:
                    raise ValueError("meta.properties or the tree is missing")
                directory_copies.check_trees(source / str(number), trees)
        except (OSError, ValueError) as error:
            raise SnapshotError(f"{folder} is not the folder of a whole snapshot ({error})") from None
        if owners != [directory_copies.owner(Path(directory)) for directory in directories]:
            raise SnapshotError(f"{folder} is of another broker: `barnabas start --from` serves a copy of its data")

        def put_back() -> Path:
            restoring.replace(directories, source, noted.files, self._same, self._disk)
            self._replaced = directories[0], self._clock.moved_ms, self._clock.stands_at_ms
            self._clock.put_back(noted.clock_moved_ms, noted.clock_stands_at_ms)
            return source

        self.keeps_data = False
        return self._change(put_back)

    def _check(self) -> None:
        if self._answer is not None:
            raise SnapshotError("another snapshot is being made or restored: try again")

    def _change(self, between: Callable[[], Path]) -> Pending[Path | SnapshotError]:
        assert self._between is None, "a life ends for one command only"
        self._between = between
        self._answer = Pending()
        self._is_wanted.set()
        return self._answer

    def _own(self) -> Path:
        if self._lock is None:
            temporary.make(self._own_folder)
            self._lock = temporary.lock(self._own_folder)
        self._snapshots += 1
        return Path(self._own_folder, str(self._snapshots))
