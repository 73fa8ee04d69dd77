"""A small process beside one that has temporary data: if that is killed, it removes the data.

For a test it ends the brokers as well. They end by themselves when the process that has started them is gone, but not
those that stand still. `Watcher` starts this file as a program, without Barnabas and without `site`.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

PARENT_LOOKED_AT_S = 0.2
TRIES = 20


class Watcher:
    """Watches over a folder, given by its absolute path, and over the brokers that it is told of."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, "-I", "-S", __file__, folder, str(os.getpid())]
        nowhere = subprocess.DEVNULL  # who reads the output of a process that was killed reads its end at once
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    def tell(self, pid: int) -> None:
        """This process, a child of the one that runs, has begun."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it was killed
            self._process.stdin.write(b"%d\n" % pid)
            self._process.stdin.flush()

    def end(self) -> None:
        """There is nothing left to watch over."""
        self._process.kill()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


def main(folder: str, parent: int) -> None:
    """Wait for the end of the process that has started this one."""
    begun: list[int] = []  # descriptors of processes, which name nobody else later, as numbers may; or numbers
    text = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], PARENT_LOOKED_AT_S)[0]:
            continue
        read = os.read(0, 4096)
        if not read:
            break
        *lines, text = (text + read).split(b"\n")
        for line in lines:
            with suppress(OSError):  # it has ended already
                begun.append(os.pidfd_open(int(line)) if HAS_DESCRIPTORS else int(line))
    for each in begun:
        with suppress(OSError):
            if HAS_DESCRIPTORS:
                signal.pidfd_send_signal(each, signal.SIGKILL)
            else:
                os.kill(each, signal.SIGKILL)
    import shutil  # late: hardly any process is killed

    for _ in range(TRIES):  # a broker may be writing its last file
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            break
        time.sleep(PARENT_LOOKED_AT_S)


HAS_DESCRIPTORS = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
