"""Connections that send much do it one after the other, and the others are served in between."""

from collections import deque
from typing import Protocol

from barnabas.runtime.ports import Clock

BYTES_PER_TURN = 1024 * 1024  # of one connection; as many of all together end a pass of the loop


class Sender(Protocol):
    """Who has much to send."""

    def send_some(self, bytes_max: int) -> int:
        """Send about so much, now; how much it was. To go on, ask for another turn."""


class Senders:
    """Who waits for a turn, in the order of asking."""

    __slots__ = ("_clock", "_scheduled", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Sender] = deque()
        self._scheduled = False

    def ask(self, sender: Sender) -> None:
        """Have `sender.send_some` called once, after the current event."""
        self._waiting.append(sender)
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self._give)

    def _give(self) -> None:
        waiting = self._waiting
        sent = 0
        try:
            while waiting and sent < BYTES_PER_TURN:  # so less than twice that: a few hundred microseconds
                sent += waiting.popleft().send_some(BYTES_PER_TURN)
        finally:
            self._scheduled = bool(waiting)
            if waiting:
                self._clock.call_soon(self._give)
