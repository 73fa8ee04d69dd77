"""Turns for connections that send much: they send a part each, and the loop serves the others in between."""

from collections import deque
from typing import Protocol

from barnabas.runtime.ports import Clock

BYTES_PER_TURN = 1024 * 1024  # of one connection; after as many of all together, the loop goes round


class Sender(Protocol):
    """A connection that has much to send."""

    def send_some(self, bytes_max: int) -> int:
        """Send about `bytes_max` bytes; returns how many were sent. For the rest, ask for another turn."""


class Senders:
    """The senders that wait for a turn, in the order of asking."""

    __slots__ = ("_clock", "_scheduled", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Sender] = deque()
        self._scheduled = False

    def ask(self, sender: Sender) -> None:
        """Call `sender.send_some` once, after the current event."""
        self._waiting.append(sender)
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self._give)

    def _give(self) -> None:
        waiting = self._waiting
        sent = 0
        try:
            while waiting and sent < BYTES_PER_TURN:  # less than twice BYTES_PER_TURN in all: some hundred microseconds
                sent += waiting.popleft().send_some(BYTES_PER_TURN)
        finally:
            self._scheduled = bool(waiting)
            if waiting:
                self._clock.call_soon(self._give)
