"""Waiters parked on an offset: kept in offset order, released from below, failed together."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ticket(Generic[T]):
    """One parked waiter. `cancel` it when its request has been answered in another way."""

    __slots__ = ("offset", "owner", "waiter")

    def __init__(self, offset: int, waiter: Callable[[T], None], owner: "Parked[T]") -> None:
        self.offset = offset
        self.waiter: Callable[[T], None] | None = waiter
        self.owner = owner

    def cancel(self) -> None:
        """Never call the waiter. Harmless when it was released already."""
        if self.waiter is not None:
            self.waiter = None
            self.owner.forget_one()


class Parked(Generic[T]):
    """Waiters in offset order. The owner calls what it releases, after its own state has settled."""

    __slots__ = ("_tickets", "count")

    def __init__(self) -> None:
        self._tickets: deque[Ticket[T]] = deque()  # with cancelled ones
        self.count = 0  # of the waiters that are not cancelled

    def park(self, offset: int, waiter: Callable[[T], None]) -> Ticket[T]:
        """Wait until `offset` is released. Offsets mostly arrive growing; a lower one finds its place from the end."""
        ticket = Ticket(offset, waiter, self)
        tickets = self._tickets
        position = len(tickets)
        while position and tickets[position - 1].offset > offset:
            position -= 1
        tickets.insert(position, ticket)
        self.count += 1
        return ticket

    def release_first(self, offset: int) -> Callable[[T], None] | None:
        """Remove and return the first waiter for `offset` or less; None: there is none."""
        tickets = self._tickets
        while tickets and tickets[0].offset <= offset:
            ticket = tickets.popleft()
            waiter = ticket.waiter
            if waiter is not None:
                ticket.waiter = None
                self.count -= 1
                return waiter
        return None

    def take_all(self) -> list[Callable[[T], None]]:
        """Take out all waiters; the caller tells them that they wait in vain."""
        released = [ticket.waiter for ticket in self._tickets if ticket.waiter is not None]
        for ticket in self._tickets:
            ticket.waiter = None
        self._tickets.clear()
        self.count = 0
        return released

    def forget_one(self) -> None:
        """A ticket was cancelled: sweep when more than half are, so that the cost stays constant per ticket."""
        self.count -= 1
        if self.count * 2 < len(self._tickets):
            self._tickets = deque(ticket for ticket in self._tickets if ticket.waiter is not None)
