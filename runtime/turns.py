"""Long work in pieces: one scheduler decides how much work is done in each pass of the loop.

Work that may take long is a generator. It yields often, for example after each partition, group or record; it does not
count, and it does not look at a clock. Each pass of the loop has one budget of time, which all tasks share. Tasks take
turns, so that long tasks do not delay a short one for long. A work that must wait for a Pending yields it, and is sent
its value: `error = yield pending`.

    turns.run(work)       for a request: returns the answer if it is ready quickly, else a Pending of it
    turns.begin(pieces)   for upkeep: no caller waits for a result
    turns.pace()          for a coroutine that also awaits other things: `await pace.rest()` between two items
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.runtime.ports import Clock

BUDGET_MS = 1.0  # of all tasks together, in one pass of the loop
FIRST_MS = 0.5  # how long a request may work before it becomes pending, and a coroutine before it rests

T = TypeVar("T")
R = TypeVar("R")

# Yields None (other tasks may run first), or a Pending, and is then sent its value.
Pieces: TypeAlias = Generator[Any, Any, T]


def at_once(pieces: Generator[object, None, T]) -> T:
    """Do all pieces of a work without a pause; returns its result."""
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
    """Wait for a Pending in a task; returns its value."""
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

    __slots__ = ("done", "failed", "is_cancelled", "pieces", "value", "waits_for")

    def __init__(
        self, pieces: Pieces[Any], done: Callable[[Any], None], failed: Callable[[Exception], None] | None
    ) -> None:
        self.pieces = pieces
        self.done = done
        self.failed = failed
        self.is_cancelled = False
        self.waits_for: Pending[Any] | None = None
        self.value: Any = None  # of the Pending that it waited for

    def cancel(self) -> None:
        """Do no further piece, and call neither `done` nor `failed`. What it waits for is cancelled, too."""
        self.is_cancelled = True
        if self.waits_for is not None:
            self.waits_for.cancel()


class Turns:
    """The tasks of one loop."""

    __slots__ = ("_clock", "_is_scheduled", "_spent_ms", "_works")

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._works: deque[Work] = deque()
        self._is_scheduled = False
        self._spent_ms = 0.0  # how much of this pass's budget was used outside `_give`

    def begin(
        self,
        pieces: Pieces[Any],
        done: Callable[[Any], None] = lambda value: None,
        failed: Callable[[Exception], None] | None = None,
    ) -> Work:
        """Do the pieces from the next pass of the loop on, then call `done` with the result of the generator.

        An exception ends only this work. It goes to `failed`, or without that to the exception handler of the loop.
        """
        work = Work(pieces, done, failed)
        self._wait(work)
        return work

    def run(self, pieces: Pieces[T], *, to_the_end: bool = False) -> T | Pending[T]:
        """The result of `pieces` if it is ready quickly, else a Pending of it.

        To cancel the Pending ends the work, unless it is done `to_the_end`. While the generator is suspended, the state
        that it reads may change.
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
                value, waits_for = waits_for.take(), None
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
        """The pace of a coroutine that has much to do, and that also awaits other things."""
        return Pace(self, self._clock)

    async def take(self) -> None:
        """Return when it is the caller's turn. The turn ends at the next `await` of the caller."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give() -> Pieces[None]:
            if not turn.done():  # done: its task was cancelled
                turn.set_result(None)
                self._spent_ms += FIRST_MS  # the task may use as much in the next pass
            yield from ()

        self.begin(give())
        await turn

    def _wait(self, work: Work) -> None:
        assert work.waits_for is None, "a work that waits cannot take a turn"
        self._works.append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._spent_ms = 0.0
            self._clock.call_soon(self._give)

    def _wait_for(self, pending: Pending[Any], work: Work) -> None:
        assert work.waits_for is None, "a work waits for one Pending at a time"
        work.waits_for = pending

        def go_on(value: Any) -> None:
            work.value, work.waits_for = value, None
            if not work.is_cancelled:
                self._wait(work)

        def give_up(error: Exception) -> None:
            work.waits_for = None
            if work.failed is None:
                raise error
            if not work.is_cancelled:
                work.failed(error)

        pending.on_failure = give_up
        pending.then(go_on)

    def _give(self) -> None:
        """Give the tasks the rest of the budget, in equal shares. At least one piece of one work is done."""
        works = self._works
        assert works, "a turn without works"
        now = self._clock.work_ms()
        left_ms = max(BUDGET_MS - self._spent_ms, 0.0)
        ends = now + left_ms
        share_ms = left_ms / len(works)
        self._spent_ms = 0.0
        try:
            while works:
                now = self._advance(works.popleft(), min(now + share_ms, ends))
                if now + self._spent_ms >= ends:
                    break
        finally:
            self._is_scheduled = bool(works)
            if works:
                self._clock.call_soon(self._give)
            else:
                self._spent_ms = 0.0

    def _advance(self, work: Work, ends: float) -> float:
        """Do pieces of a work until the time `ends`, at least one piece. Returns the time when it stopped."""
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
                    value = waits_for.take()
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
    """Measures how long a coroutine has worked since its last turn."""

    __slots__ = ("_clock", "_ends_ms", "_turns")

    def __init__(self, turns: Turns, clock: "Clock") -> None:
        self._turns = turns
        self._clock = clock
        self._ends_ms = clock.work_ms() + FIRST_MS

    async def rest(self) -> None:
        """Wait for the next turn, if this coroutine has worked for `FIRST_MS` since its last one."""
        if self._clock.work_ms() >= self._ends_ms:
            await self._turns.take()
            self._ends_ms = self._clock.work_ms() + FIRST_MS
