"""Requests that very many clients send at the same time, and whose answers wait for all of these clients.

When a large group rebalances, all its members join within a moment, and then all sync. The last of them decides when
the others are answered, so no member loses time if other clients come between. The first requests of a pass of the loop
are handled at once. The others wait here, and are handled in turns with other tasks, in the order of their arrival.
"""

from collections import deque

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock
from barnabas.runtime.turns import Pieces, Turns

AT_ONCE_MAX = 50  # requests in one pass of the loop


class Crowds:
    """The requests that wait for their turn."""

    __slots__ = ("_at_once", "_clock", "_turns", "_waiting")

    def __init__(self, clock: Clock, turns: Turns) -> None:
        self._clock = clock
        self._turns = turns
        self._at_once = 0  # how many were handled at once in this pass of the loop
        self._waiting: deque[Pending[None]] = deque()

    def enter(self) -> Pending[None] | None:
        """None: the request is handled now. Else it is handled when this Pending completes."""
        if not self._waiting and self._at_once < AT_ONCE_MAX:
            if not self._at_once:
                self._clock.call_soon(self._end_pass)  # it runs in the next pass
            self._at_once += 1
            return None
        turn: Pending[None] = Pending()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._turns.begin(self._let_in(), failed=self._go_on)
        return turn

    def _end_pass(self) -> None:
        self._at_once = 0

    def _let_in(self) -> Pieces[None]:
        waiting = self._waiting
        while waiting:
            try:
                waiting[0].complete(None)
            finally:
                waiting.popleft()  # only now: an empty queue means that no work is under way
            yield

    def _go_on(self, error: Exception) -> None:
        """The handling of one request has raised. The others must not wait for ever."""
        if self._waiting:
            self._turns.begin(self._let_in(), failed=self._go_on)
        raise error
