"""Long work in turns: in each pass of the loop one piece of one work, so that who asks for little never waits long."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, TypeVar

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock

ITEMS_PER_TURN = 200  # partitions, topics, groups: two to ten milliseconds

T = TypeVar("T")
R = TypeVar("R")


def at_once(pieces: Generator[object, None, T]) -> T:
    """Do all pieces of a work without a pause; what it returns."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: T = end.value
            return result


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Consecutive pieces of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def in_passes(clock: Clock, work: Iterator[None], done: Callable[[], None] = lambda: None) -> None:
    """Do one piece now and one in each further pass of the loop, of what is no request; `done` after the last."""
    for _ in work:
        clock.call_soon(lambda: in_passes(clock, work, done))
        return
    done()


async def ended(pending: Pending[T]) -> T:
    """The value of something pending, for a task."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    pending.then(lambda value: None if future.done() else future.set_result(value))
    try:
        return await future
    except asyncio.CancelledError:
        pending.cancel()
        raise


class Turns:
    """Works that are done piece by piece, in rotation. Those that are short are not held up by those that are long."""

    __slots__ = ("_clock", "_is_scheduled", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def run(self, work: Generator[None, None, T], item_count: int) -> T | Coroutine[Any, Any, T]:
        """What `work` returns: at once where there is little to do, else an awaitable of it.

        It yields after every `ITEMS_PER_TURN` items; what it looks at may have changed when it goes on.
        """
        if item_count > ITEMS_PER_TURN:
            return self._in_turns(work)
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result

    async def _in_turns(self, work: Generator[None, None, T]) -> T:
        while True:
            await self.take()
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result

    async def collect(
        self,
        items: Sequence[T],
        act: Callable[[Sequence[T]], "list[R] | Pending[list[R]]"],
        items_per_turn: int = ITEMS_PER_TURN,
    ) -> list[R]:
        """What `act` makes of each piece of the items, in one list. Pieces that must wait do so at the same time."""
        outcomes = []
        for piece in chunks(items, items_per_turn):
            await self.take()
            outcomes.append(act(piece))
        results: list[R] = []
        for outcome in outcomes:
            if isinstance(outcome, Pending):
                outcome = await ended(outcome)
            results += outcome
        return results

    async def take(self) -> None:
        """Return when it is one's turn, which is over with the next `await`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.call_soon(self._give)

    def _give(self) -> None:
        self._is_scheduled = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled: its client went away
                turn.set_result(None)
                break
        if self._waiting:
            self._schedule()
