"""Which processes hold locks on a file, and how to end one that holds a lock and does nothing.

Linux lists all POSIX locks in /proc/locks, by inode. Two file systems may have the same inode, and stacked file systems
show another device there than in `stat`. So a process counts as the holder only if it also has the file open: device
and inode of one of its descriptors are those of the file. Elsewhere nothing is known. (To ask by `fcntl` would need
another descriptor of the file, and to close that would drop this process's own locks.)
"""

import os
import signal
from collections.abc import Callable

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.processes import ProcessHandle, ProcessIdentity, identify

_LOCKS = "/proc/locks"


class Holder(NamedTuple):
    """A lock that a process holds on the bytes from `first` to `last` of a file; None: to its end, however long."""

    process: ProcessIdentity
    first: int
    last: int | None
    is_exclusive: bool


class _Lock(NamedTuple):
    process: int
    inode: int
    first: int
    last: int | None
    is_exclusive: bool


def holders(path: str) -> list[Holder]:
    """The POSIX locks on a file; none when the system does not tell, or not surely."""
    try:
        status = os.stat(path)
        with open(_LOCKS) as lines:
            locks = [lock for line in lines if (lock := _lock(line)) is not None and lock.inode == status.st_ino]
    except OSError:
        return []
    return [
        Holder(process, lock.first, lock.last, lock.is_exclusive)
        for lock in locks
        if (process := identify(lock.process)) is not None
        and _has_open(lock.process, (status.st_dev, status.st_ino))
        and identify(lock.process) == process
    ]


def _lock(line: str) -> _Lock | None:
    """The lock that a line tells of: `1: POSIX  ADVISORY  WRITE 4711 fe:00:10175569 120 120`."""
    words = line.split()
    if len(words) != 8 or words[1] != "POSIX":  # "1: -> POSIX …" is a process that waits for a lock
        return None
    _, _, _, kind, process, place, first, last = words
    inode = int(place.rpartition(":")[2])
    return _Lock(int(process), inode, int(first), None if last == "EOF" else int(last), kind == "WRITE")


def _has_open(process: int, identity: tuple[int, int]) -> bool:
    """Whether the process has the file of this device and inode open. False also if it is another user's."""
    folder = f"/proc/{process}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            status = os.stat(f"{folder}/{descriptor}")
        except OSError:  # it was closed meanwhile
            continue
        if (status.st_dev, status.st_ino) == identity:
            return True
    return False


def end_process(process: ProcessIdentity, is_still_the_one: Callable[[], bool]) -> bool:
    """End a process at once, also one that is stopped. False: it was not ended.

    `is_still_the_one` is asked when no other process can take its place any more.
    """
    handle = ProcessHandle(process.process)
    try:
        is_certain = handle.is_certain and identify(process.process) == process and is_still_the_one()
        return is_certain and handle.send(signal.SIGKILL)
    finally:
        handle.close()
