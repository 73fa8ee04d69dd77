"""Which processes hold locks on a file, and how to end one that holds a lock and does nothing.

Linux lists all POSIX locks in /proc/locks. Elsewhere nothing is known. (To ask by `fcntl` would need another descriptor
of the file, and to close that would drop this process's own locks.)
"""

import os
import signal
from contextlib import suppress
from typing import NamedTuple

_LOCKS = "/proc/locks"


class Holder(NamedTuple):
    """A lock that a process holds on the bytes from `first` to `last` of a file; None: to its end, however long."""

    process: int
    first: int
    last: int | None
    is_exclusive: bool


def holders(path: str) -> list[Holder]:
    """The POSIX locks on a file; none when the system does not tell."""
    try:
        inode = os.stat(path).st_ino
        with open(_LOCKS) as lines:
            return [holder for line in lines if (holder := _holder(line, inode)) is not None]
    except OSError:
        return []


def _holder(line: str, inode: int) -> Holder | None:
    """The lock that a line tells of: `1: POSIX  ADVISORY  WRITE 4711 fe:00:10175569 120 120`."""
    words = line.split()
    if len(words) != 8 or words[1] != "POSIX":  # "1: -> POSIX …" is a process that waits for a lock
        return None
    _, _, _, kind, process, place, first, last = words
    # The device is not compared, because stacked file systems show another one here than in `stat`.
    if place.rpartition(":")[2] != str(inode):
        return None
    return Holder(int(process), int(first), None if last == "EOF" else int(last), kind == "WRITE")


def end_process(process: int) -> None:
    """End a process at once, also one that is stopped. No effect if it is gone or another user's."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)
