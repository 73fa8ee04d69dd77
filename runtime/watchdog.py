"""`Watchdog`: a thread that notices that the loop stands still, while other threads of the process go on."""

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls `act` in its thread, once for each time that nobody has called `tick` for `after_ms`."""

    def __init__(self, after_ms: Callable[[], float], act: Callable[[], None]) -> None:
        self._after_ms = after_ms
        self._act = act
        self._ticked = time.monotonic()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def tick(self) -> None:
        """The loop goes round."""
        self._ticked = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        acted_for = 0.0  # the tick behind which it has acted already
        while not self._stopped.wait(self._after_ms() / 4000):
            ticked = self._ticked
            if ticked != acted_for and (time.monotonic() - ticked) * 1000 > self._after_ms():
                acted_for = ticked
                self._act()
