"""Signal now, serve afterwards: an object with news is marked at once and served once, in the same loop pass."""

from typing import Protocol

from barnabas.runtime.ports import Clock


class Wakeable(Protocol):
    """Something with waiters. `marked` belongs to Wakes."""

    marked: bool

    def wake(self) -> None:
        """Serve the waiters whose time has come."""


class Wakes:
    """Collects the objects that were marked, and wakes each once per pass of the loop.

    A transition marks an object and goes on; no waiter runs inside the transition. An object that a waiter marks is
    served in the next pass, so that chains of effects cannot starve the loop.
    """

    __slots__ = ("_clock", "_marked", "_scheduled")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marked: list[Wakeable] = []
        self._scheduled = False

    def mark(self, wakeable: Wakeable) -> None:
        """Have `wakeable.wake` called once, after the current event."""
        if wakeable.marked:
            return
        wakeable.marked = True
        self._marked.append(wakeable)
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self.flush)

    def flush(self) -> None:
        """Wake all objects that were marked before this call, in the order of marking."""
        self._scheduled = False
        marked, self._marked = self._marked, []
        for position, wakeable in enumerate(marked):
            wakeable.marked = False
            try:
                wakeable.wake()
            except BaseException:  # a bug of one waiter: the loop reports it, and the others are still woken
                for other in marked[position:]:
                    other.marked = False
                    self.mark(other)
                raise
