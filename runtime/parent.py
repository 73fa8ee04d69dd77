"""The process that started this one: whether it still lives.

Nothing tells a process that its parent is gone in a way that works everywhere (what Linux offers speaks of the thread
that started it, which may end long before its process). But a process that has lost its parent gets another one.
"""

import os
import threading
import time
from collections.abc import Callable

LOOK_EVERY_S = 0.2


def call_when_parent_is_gone(parent: int, then: Callable[[], None]) -> None:
    """Call from a thread, once, when the process `parent` (`os.getppid()` of an early moment) has ended."""
    threading.Thread(target=_watch, args=(parent, then), name="parent", daemon=True).start()


def _watch(parent: int, then: Callable[[], None]) -> None:
    if not _is_adopted(parent):
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY_S)
    then()


def _is_adopted(parent: int) -> bool:
    """Whether the parent died before this process asked for it, so that `parent` is the one that took over.

    A child is in its parent's session, unless it has begun one of its own. Where the two cannot be told apart (a new
    session, or a container with one session for all), the parent counts as the one that started this process.
    """
    own = os.getsid(0)
    if own == os.getpid() or parent <= 0:  # 0: outside of this container
        return False
    try:
        return os.getsid(parent) != own
    except OSError:  # it has gone since (then getppid tells), or may not be asked for
        return False
