"""The program that `watcher.py` starts, without Barnabas and without `site`.

It imports hardly anything: it starts beside a broker, which is to have the processor.
"""

import os
import select
import sys

PARENT_LOOKED_AT_S = 0.2
TRIES = 20


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
            try:  # noqa: SIM105 (contextlib takes as long to import as all else)
                begun.append(os.pidfd_open(int(line)) if HAS_DESCRIPTORS else int(line))
            except OSError:  # it has ended already
                pass
    _end(begun)
    _remove(folder)


def _end(begun: list[int]) -> None:
    import signal  # late, as all that follows: hardly any process is killed
    from contextlib import suppress

    for each in begun:
        with suppress(OSError):
            if HAS_DESCRIPTORS:
                signal.pidfd_send_signal(each, signal.SIGKILL)
            else:
                os.kill(each, signal.SIGKILL)


def _remove(folder: str) -> None:
    import shutil
    import time

    for _ in range(TRIES):  # a broker may be writing its last file
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            break
        time.sleep(PARENT_LOOKED_AT_S)


HAS_DESCRIPTORS = hasattr(os, "pidfd_open")

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
