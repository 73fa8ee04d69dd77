"""Processes of this machine: what tells one from another that gets its number later, and how to signal the right one.

The number of a process that has ended is given out again. On Linux the time of its start and its executable tell
processes apart (`identify`), and a handle (pidfd) stays with one process, whatever becomes of its number.
"""

import os
import signal
from contextlib import suppress

from barnabas.protocol.named_tuple import NamedTuple


class ProcessIdentity(NamedTuple):
    """A process."""

    process: int
    started: int  # ticks of the kernel's clock since the machine has started
    executable: str

    def __str__(self) -> str:
        return f"process {self.process} ({self.executable})"


def identify(process: int) -> ProcessIdentity | None:
    """Which process has this number; None: there is none, or the system does not tell."""
    try:
        with open(f"/proc/{process}/stat") as file:
            words = file.read().rpartition(")")[2].split()  # the name before it may hold anything
        return ProcessIdentity(process, int(words[19]), os.readlink(f"/proc/{process}/exe"))
    except (OSError, IndexError, ValueError):
        return None


class ProcessHandle:
    """Stays with one process. Where the system has no such handle, it is only the process's number."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._descriptor = -1
        with suppress(AttributeError, OSError):  # not Linux, an old Linux, or it has ended
            self._descriptor = os.pidfd_open(process)

    @property
    def is_certain(self) -> bool:
        """Whether a signal can reach no other process."""
        return self._descriptor >= 0

    def send(self, number: int) -> bool:
        """Send a signal. False: the process has ended, or is another user's."""
        try:
            if self.is_certain:
                signal.pidfd_send_signal(self._descriptor, number)
            else:
                os.kill(self._process, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """Close the handle. The process goes on."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
