"""`NowAndThen`: when the log says again what happens all the time."""

import math

from barnabas.runtime.ports import Clock


class NowAndThen:
    """It is due at the first time, and then after `every_ms` at the earliest."""

    __slots__ = ("_clock", "_every_ms", "_next_ms")

    def __init__(self, clock: Clock, every_ms: float) -> None:
        self._clock = clock
        self._every_ms = every_ms
        self._next_ms = -math.inf

    def is_due(self) -> bool:
        """Whether to say it now. If so, it is not due again for a while."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + self._every_ms
        return True
