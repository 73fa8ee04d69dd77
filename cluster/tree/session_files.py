"""Which sessions of an embedded tree live: one small file each beside the tree, held locked by the session's process.

`<tree>.session-<id>` says two things. Its lock is the operating system's and goes with the process, so a killed process
is seen at once. Its modification time is the time until which the session lives by the monotonic clock, which is one
clock for all processes of a machine. The process moves this time on again and again. So the session of a stopped
process (SIGSTOP) ends when that time has come, although its lock is held. Nothing here is ever synced: after a reboot
no lock is held, and then the time counts for nothing. The file says which process it is, and which files the process
has open as its tree (see `tree_place.py`).

Who ends a session whose process still holds its lock renames the file first (`fence`), and reads the time after that.
`prolong` needs the old name. So either the one who ends it sees the last time that was set, or the process is told
that its session is over: it can never believe in a time that nobody else has seen.
"""

import json
import math
import os
from contextlib import closing, suppress
from functools import cache

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime import lock_holders
from barnabas.runtime.ports import DirectoryLock, Disk, read_file
from barnabas.runtime.processes import ProcessIdentity, identify

NEVER = -math.inf
OWNER_BYTES_MAX = 1 << 16

Files = list[list[int]]  # device and inode of the tree, its -wal and its -shm; empty for one that is not there


class SessionOwner(NamedTuple):
    """Who has begun a session."""

    files: Files
    process: ProcessIdentity | None  # None: the system does not tell


@cache
def _own_identity(process: int) -> ProcessIdentity | None:
    """Which process this is, which has this number: that stays so."""
    return identify(process)


class SessionFiles:
    """The files beside the tree at `tree_path`."""

    def __init__(self, disk: Disk, tree_path: str) -> None:
        self._disk = disk
        self._tree_path = tree_path

    def begin(self, session_id: int, until_ms: int, files: Files) -> DirectoryLock:
        """Make and lock the file of a new session of this process, which has these files open as its tree.

        The file gets its name when it is locked: who sees a session's file that is not locked takes it for dead.
        """
        path = f"{self.path(session_id)}.new"
        # Closed before it is locked: to close any descriptor of a file drops the locks of the process.
        with closing(self._disk.open(path, create=True)) as file:
            file.truncate(0)
            file.write(0, json.dumps({"files": files, "process": _own_identity(os.getpid())}).encode())
        lock = self._disk.lock(path)
        try:
            self._disk.set_modified_ms(path, until_ms)
            self._disk.rename(path, self.path(session_id))
        except BaseException:
            lock.release()
            raise
        return lock

    def prolong(self, session_id: int, until_ms: int) -> bool:
        """Let this process's session live until then. False: another process ends it. OSError."""
        try:
            self._disk.set_modified_ms(self.path(session_id), until_ms)
        except FileNotFoundError:
            return False
        return True

    def lives_until_ms(self, session_id: int) -> float:
        """Until when a session lives if its process does not prolong it; NEVER when its process is gone."""
        for path in self._paths(session_id):
            with suppress(FileNotFoundError):
                return self._disk.modified_ms(path) if self._disk.is_locked(path) else NEVER
        return NEVER

    def fence(self, session_id: int) -> float:
        """Let its process not prolong the session any more; returns until when it lives."""
        with suppress(FileNotFoundError):  # fenced already, or its process ended it
            self._disk.rename(self.path(session_id), self._fenced_path(session_id))
        return self.lives_until_ms(session_id)

    def alive(self) -> list[int]:
        """The sessions whose processes live, and which nobody has fenced."""
        folder, _, name = self._tree_path.rpartition("/")
        start = f"{name}.session-"
        if not self._disk.is_directory(folder):
            return []
        numbers = (each.removeprefix(start) for each in self._disk.list_directory(folder) if each.startswith(start))
        return [int(number) for number in numbers if number.isdigit() and self.lives_until_ms(int(number)) != NEVER]

    def owner(self, session_id: int) -> SessionOwner | None:
        """Who has begun a session; None: it is not known."""
        for path in self._paths(session_id):
            try:
                said = json.loads(read_file(self._disk, path, OWNER_BYTES_MAX))
                return SessionOwner(said["files"], ProcessIdentity(*said["process"]) if said["process"] else None)
            except FileNotFoundError:
                continue
            except (ValueError, LookupError, TypeError):  # of an older version
                return None
        return None

    def processes(self, session_id: int) -> list[ProcessIdentity]:
        """The process that holds the session's file locked, where the system tells, if it is the one that began it."""
        owner = self.owner(session_id)
        held = {holder.process for path in self._paths(session_id) for holder in lock_holders.holders(path)}
        return [process for process in held if owner is not None and process == owner.process]

    def remove(self, session_id: int) -> list[OSError]:
        """Remove the files of a session that has ended; returns what went wrong. A file that stays does no harm."""
        errors = []
        for path in self._paths(session_id):
            try:
                with suppress(FileNotFoundError):
                    self._disk.remove(path)
            except OSError as error:
                errors.append(error)
        return errors

    def path(self, session_id: int) -> str:
        """The file of a session that nobody has fenced."""
        return f"{self._tree_path}.session-{session_id}"

    def _fenced_path(self, session_id: int) -> str:
        return f"{self.path(session_id)}.ended"

    def _paths(self, session_id: int) -> tuple[str, str]:
        """Both names that its file may have. Who looks in this order does not miss a rename."""
        return self.path(session_id), self._fenced_path(session_id)
