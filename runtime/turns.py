"""Long work in pieces: one scheduler decides how much of it is done before the loop goes round.

Whatever may take long is a generator that yields often, wherever others may come first: after a partition, a group, a
record. It need not count or look at a clock. A pass of the loop has one budget for all works together, however many
they are. Works take part in it by rotation, so a short one is never held up by long ones. A work that must wait yields
what is pending, and gets its value: `error = yield pending`.

    turns.run(work)       a request: its answer at once if that is quick, else pending
    turns.begin(pieces)   upkeep: nobody waits for a result
    turns.pace()          a coroutine that awaits other things, too: `await pace.rest()` between two items
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.runtime.ports import Clock

BUDGET_MS = 3.0  # of all works, between two chances for everything else
FIRST_MS = 1.0  # of one request at once, and of a coroutine until it rests

T = TypeVar("T")
R = TypeVar("R")

# Yields None (others may come first) or a Pending, of which it is sent the value.
Pieces: TypeAlias = Generator[Any, Any, T]


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


async def ended(pending: Pending[T]) -> T:
    """The value of something pending, for a task."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    pending.on_failure = lambda error: None if future.done() else future.set_exception(error)
    pending.then(lambda value: None if future.done() else future.set_result(value))
    try:
        return await future
    except asyncio.CancelledError:
        pending.cancel()
        raise


class Work:
    """A work that has not ended."""

    __slots__ = ("done", "failed", "is_cancelled", "pieces", "value")

    def __init__(
        self, pieces: Pieces[Any], done: Callable[[Any], None], failed: Callable[[Exception], None] | None
    ) -> None:
        self.pieces = pieces
        self.done = done
        self.failed = failed
        self.is_cancelled = False
        self.value: Any = None  # of what it waited for

    def cancel(self) -> None:
        """Do no further piece, and tell nobody."""
        self.is_cancelled = True


class Turns:
    """The works of one loop."""

    __slots__ = ("_clock", "_is_scheduled", "_spent_ms", "_works")

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._works: deque[Work] = deque()
        self._is_scheduled = False
        self._spent_ms = 0.0  # outside of `_give`, of the budget of this pass

    def begin(
        self,
        pieces: Pieces[Any],
        done: Callable[[Any], None] = lambda value: None,
        failed: Callable[[Exception], None] | None = None,
    ) -> Work:
        """Do the pieces from the next pass of the loop on, then call `done` with what the generator returned.

        An exception ends this work only: it is given to `failed`, or else to the loop's exception handler.
        """
        work = Work(pieces, done, failed)
        self._wait(work)
        return work

    def run(self, pieces: Pieces[T], *, to_the_end: bool = False) -> T | Pending[T]:
        """What `pieces` returns: at once if that is quick, else pending. It ends with its client, or `to_the_end`.

        What the generator looks at may have changed when it goes on.
        """
        work_ms = self._clock.work_ms
        now = began = work_ms()
        ends = began + min(FIRST_MS, BUDGET_MS - self._spent_ms)
        waits_for: Pending[Any] | None = None
        value = None
        while now < ends:
            try:
                waits_for = pieces.send(value)
            except StopIteration as end:
                if self._is_scheduled:
                    self._spent_ms += work_ms() - began
                result: T = end.value
                return result
            now = work_ms()
            value = None
            if waits_for is not None:
                if not waits_for.done:
                    break
                value, waits_for = waits_for.taken(), None
        pending: Pending[T] = Pending()
        work = Work(pieces, pending.complete, pending.fail)
        if not to_the_end:
            pending.on_cancel = work.cancel
        work.value = value
        if waits_for is None:
            self._wait(work)
        else:
            self._wait_for(waits_for, work)
        if self._is_scheduled:
            self._spent_ms += now - began
        return pending

    def pace(self) -> "Pace":
        """For a coroutine that does much, and awaits other things as well."""
        return Pace(self, self._clock)

    async def take(self) -> None:
        """Return when it is one's turn, which is over with the next `await`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give() -> Pieces[None]:
            if not turn.done():  # else its task was cancelled
                turn.set_result(None)
                self._spent_ms += FIRST_MS  # what it may use, in the pass that now comes
            yield from ()

        self.begin(give())
        await turn

    def _wait(self, work: Work) -> None:
        self._works.append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._spent_ms = 0.0
            self._clock.call_soon(self._give)

    def _wait_for(self, pending: Pending[Any], work: Work) -> None:
        def go_on(value: Any) -> None:
            work.value = value
            if not work.is_cancelled:
                self._wait(work)

        pending.then(go_on)

    def _give(self) -> None:
        """What is left of the budget, in equal shares; but one piece of one work in any case."""
        works = self._works
        now = self._clock.work_ms()
        left_ms = max(BUDGET_MS - self._spent_ms, 0.0)
        ends = now + left_ms
        share_ms = left_ms / len(works)
        self._spent_ms = 0.0
        try:
            while works:
                now = self._advance(works.popleft(), min(now + share_ms, ends))
                if now >= ends:
                    break
        finally:
            self._is_scheduled = bool(works)
            if works:
                self._clock.call_soon(self._give)
            else:
                self._spent_ms = 0.0

    def _advance(self, work: Work, ends: float) -> float:
        """Do pieces of a work until an instant, at least one; when that was."""
        work_ms, pieces = self._clock.work_ms, work.pieces
        value, work.value = work.value, None
        try:
            while not work.is_cancelled:
                waits_for = pieces.send(value)
                now = work_ms()
                value = None
                if waits_for is not None:
                    if not waits_for.done:
                        self._wait_for(waits_for, work)
                        return now
                    value = waits_for.taken()
                if now >= ends:
                    work.value = value
                    self._works.append(work)
                    return now
        except StopIteration as end:
            value = end.value
        except Exception as error:
            if work.failed is None:
                raise
            work.failed(error)
            return work_ms()
        else:
            return work_ms()  # cancelled
        work.done(value)
        return work_ms()


class Pace:
    """How long a coroutine has worked since it last let others come first."""

    __slots__ = ("_clock", "_ends_ms", "_turns")

    def __init__(self, turns: Turns, clock: "Clock") -> None:
        self._turns = turns
        self._clock = clock
        self._ends_ms = clock.work_ms() + FIRST_MS

    async def rest(self) -> None:
        """Let others come first, if this coroutine has worked for long."""
        if self._clock.work_ms() >= self._ends_ms:
            await self._turns.take()
            self._ends_ms = self._clock.work_ms() + FIRST_MS
