"""Temporary data, and brokers of a test, that do not outlive a process that is killed.

A small process beside it removes the data. It ends the brokers before: they end by themselves when the process that has
started them is gone, but not those that stand still.
"""

import os
import subprocess
import sys
from contextlib import suppress

PROGRAM = os.path.join(os.path.dirname(__file__), "watching.py")


class Watcher:
    """Watches over a folder, given by its absolute path, and over the brokers that it is told of."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, "-I", "-S", PROGRAM, folder, str(os.getpid())]
        nowhere = subprocess.DEVNULL  # who reads the output of a process that was killed reads its end at once
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # too many processes, or files: then a later start removes the folder
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
            )

    def tell(self, pid: int) -> None:
        """This process, a child of the one that runs, has begun."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it was killed
                self._process.stdin.write(b"%d\n" % pid)
                self._process.stdin.flush()

    def end(self) -> None:
        """There is nothing left to watch over."""
        if self._process is not None and self._process.stdin is not None:
            self._process.kill()
            with suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
