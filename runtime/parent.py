"""Notices when the process that started this one has ended.

No signal for this works on all systems. (Linux can signal when the starting thread ends, but that thread may end long
before its process.) But a process whose parent has ended gets another parent, so its parent's id changes.
"""

import os
import threading
import time
from collections.abc import Callable

LOOK_EVERY_S = 0.2


def call_when_parent_is_gone(parent: int, then: Callable[[], None]) -> None:
    """Call `then` once, from a thread, when the process `parent` has ended. `parent`: `os.getppid()`, asked early."""
    threading.Thread(target=_watch, args=(parent, then), name="parent", daemon=True).start()


def _watch(parent: int, then: Callable[[], None]) -> None:
    if not _is_adopted(parent):
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY_S)
    then()


def _is_adopted(parent: int) -> bool:
    """Whether the real parent ended before `os.getppid()` was called, so that `parent` is only its replacement.

    A child is in the session of its parent, unless it has begun a session of its own. If the session says nothing (a
    session of its own, or a container with one session for all), `parent` counts as the real parent.
    """
    own = os.getsid(0)
    if own == os.getpid() or parent <= 0:  # 0: the parent is outside this container
        return False
    try:
        return os.getsid(parent) != own
    except OSError:  # it ended since (getppid shows that), or asking about it is forbidden
        return False
