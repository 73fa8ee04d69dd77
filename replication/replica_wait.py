"""A request that waits in several partitions until the replicas of each have followed: a Produce, or DeleteRecords."""

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from barnabas.protocol.errors import ErrorCode
from barnabas.replication.parked import Ticket
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Timer

R = TypeVar("R")


class ReplicaWait(Generic[R]):
    """One request that is parked in several partitions until the replicas of each have followed. Answered once.

    `ended(result, error)` makes the final result of a partition from its first result and the outcome of the wait.
    """

    __slots__ = ("_ended", "_results", "_tickets", "_timer", "on_end", "pending")

    def __init__(self, results: list[R], ended: Callable[[R, ErrorCode], R]) -> None:
        self._results = results
        self._ended = ended
        self._tickets: dict[int, Ticket[ErrorCode]] = {}
        self._timer: Timer | None = None
        self.on_end: Callable[[ReplicaWait[R]], object] | None = None  # called when nothing is waited for any more
        self.pending: Pending[list[R]] = Pending()
        self.pending.on_cancel = self._leave

    def park(self, position: int, park: Callable[[Callable[[ErrorCode], None]], Ticket[ErrorCode]]) -> None:
        """Wait in one partition for the outcome of `results[position]`."""
        self._tickets[position] = park(partial(self._decided, position))

    def begin(self, clock: Clock, timeout_ms: int) -> None:
        """All are parked: start the one timer."""
        self._timer = clock.call_later(max(timeout_ms, 0), self._expire)

    def _decided(self, position: int, error: ErrorCode) -> None:
        if self._tickets.pop(position, None) is None:
            return  # it was answered, or given up, after its partition had let go of it and before this call
        self._results[position] = self._ended(self._results[position], error)
        if not self._tickets:
            self._end()
            self.pending.complete(self._results)

    def _expire(self) -> None:
        self.fail(ErrorCode.REQUEST_TIMED_OUT)

    def fail(self, error: ErrorCode) -> None:
        """Answer now, with this error for the partitions that are still waited for."""
        for position, ticket in self._tickets.items():
            ticket.cancel()
            self._results[position] = self._ended(self._results[position], error)
        self._tickets.clear()
        self._end()
        self.pending.complete(self._results)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.on_end is not None:
            self.on_end(self)

    def _leave(self) -> None:
        self._end()
        for ticket in self._tickets.values():
            ticket.cancel()
        self._tickets.clear()
