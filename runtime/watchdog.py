<<<<<<< HEAD
"""`Watchdog`: a thread that notices that the loop stands still, while other threads of the process go on."""
=======
"""A thread that acts when the loop has stood still for too long.

A library may keep a session alive by a thread of its own (kazoo does). While the loop stands still, such a session
would outlive what the broker can do, and no other broker could take over. So somebody else must end it.
"""
>>>>>>> b9042d6 (A watchdog thread ends the ZooKeeper session of a loop that stands still)

import threading
import time
from collections.abc import Callable


class Watchdog:
<<<<<<< HEAD
    """Calls `act` in its thread, once for each time that nobody has called `tick` for `after_ms`."""

    def __init__(self, after_ms: Callable[[], float], act: Callable[[], None]) -> None:
        self._after_ms = after_ms
        self._act = act
        self._ticked = time.monotonic()
        self._stopped = threading.Event()
=======
    """Calls `act` once, in a thread, each time that `tick` was not called for `limit_ms`."""

    def __init__(self, limit_ms: float, act: Callable[[], None]) -> None:
        self._limit_s = limit_ms / 1000.0
        self._act = act
        self._ticked_s = time.monotonic()
        self._is_stopped = threading.Event()

    def start(self) -> None:
        """Watch from now on."""
        self.tick()
>>>>>>> b9042d6 (A watchdog thread ends the ZooKeeper session of a loop that stands still)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def tick(self) -> None:
        """The loop goes round."""
<<<<<<< HEAD
        self._ticked = time.monotonic()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _watch(self) -> None:
        acted_for = 0.0  # the tick behind which it has acted already
        while not self._stopped.wait(self._after_ms() / 4000):
            ticked = self._ticked
            if ticked != acted_for and (time.monotonic() - ticked) * 1000 > self._after_ms():
                acted_for = ticked
                self._act()
=======
        self._ticked_s = time.monotonic()

    def stop(self) -> None:
        """Watch no more. If the thread is acting, it ends soon."""
        self._is_stopped.set()

    def _watch(self) -> None:
        acted_for = 0.0  # the tick after which it has acted
        while not self._is_stopped.wait(self._left_s()):
            ticked_s = self._ticked_s
            if time.monotonic() - ticked_s >= self._limit_s and ticked_s != acted_for:
                acted_for = ticked_s
                self._act()

    def _left_s(self) -> float:
        """How long to wait: to the end of the limit, or after that for a tick."""
        return max(self._ticked_s + self._limit_s - time.monotonic(), self._limit_s / 20)
>>>>>>> b9042d6 (A watchdog thread ends the ZooKeeper session of a loop that stands still)
