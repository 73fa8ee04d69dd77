"""Upkeep: what a broker does again and again without being asked, as one table of tasks with one supervisor.

A task goes round over its items (logs, groups, connections, …). An item that raises is said once, counted, set aside
and tried again later, each time after twice as long; the others have their turn all the same. A `Follower` is the other
kind: a coroutine that handles events in the order in which they come.

The supervisor looks at all of them. One that has not been heard of in time (a timer that was lost, a completion that
never came, a task of the loop that ended) is said, counted and started again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Turns

if TYPE_CHECKING:
    from barnabas.runtime.ports import Clock, Timer

logger = logging.getLogger("barnabas.upkeep")

LOOK_MS = 5_000.0  # how often the supervisor looks
LATE_MS = 30_000.0  # how much later than expected a task may be heard of
WAIT_MAX_MS = 300_000.0  # for a completion: a sync on a slow disk may take minutes
SET_ASIDE_MS = 1_000.0  # after the first time
SET_ASIDE_INTERVALS = 40  # at the most, of the task
SET_ASIDE_AT_MOST_MS = (10_000.0, 3_600_000.0)  # however short or long the interval is

Item = TypeVar("Item", bound=Hashable)

# What a piece of work ends with: None (go on when it is its turn), milliseconds to wait, or what to wait for.
# The work is sent the value of that.
Pause = float | Pending[Any] | None
Work = Iterator[Pause]


class _SetAside:
    """An item that raised."""

    __slots__ = ("backoff_ms", "retry_ms")

    def __init__(self, backoff_ms: float, retry_ms: float) -> None:
        self.backoff_ms = backoff_ms
        self.retry_ms = retry_ms


class Task(Generic[Item]):
    """One row of the table: every `interval_ms` it does `act` with each of its `items`.

    `items` may be a generator, which is asked for the next item when the one before is done. `act` may return an
    iterator of pieces.
    """

    def __init__(
        self,
        upkeep: "Upkeep",
        name: str,
        interval_ms: Callable[[], float],
        items: Callable[[], Iterable[Item]],
        act: Callable[[Item], Work | None],
    ) -> None:
        self.name = name
        self.items = items
        self.act = act
        self.interval_ms = interval_ms
        self.rounds = 0  # that have ended
        self.failures = 0  # exceptions, of all items
        self.restarts = 0  # by the supervisor
        self.timer: Timer | None = None
        self._upkeep = upkeep
        self._clock = upkeep.clock
        self._last_interval_ms = LATE_MS
        self._set_aside: dict[Hashable, _SetAside] = {}
        self._work: Generator[Pause, Any, None] | None = None
        self._turn = object()  # a call that belongs to an older one comes too late
        self._expected_ms = 0.0  # when it is heard of at the latest
        self._is_stopped = False

    # -- its life

    def start(self) -> None:
        """Go round for the first time when the interval has passed."""
        self._call_later(self._interval_ms(), self._begin)

    def stop(self) -> None:
        """End where it is."""
        self._is_stopped = True
        self._turn = object()
        self._drop()
        self._upkeep.forget(self)

    def run_soon(self) -> None:
        """Begin a round in the next pass of the loop, unless one is under way."""
        if self._work is None and not self._is_stopped:
            self._call_later(0.0, self._begin)

    def is_overdue(self, now_ms: float) -> bool:
        """Whether it should have been heard of."""
        return now_ms > self._expected_ms

    def restart(self) -> None:
        """The supervisor has found it overdue."""
        self.restarts += 1
        self._drop()
        self.run_soon()

    def _drop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        work, self._work = self._work, None
        if work is not None:
            try:
                work.close()
            except ValueError:  # it runs just now: a piece of it stops its own task
                pass
            except Exception as error:
                self.set_aside(None, error)

    # -- a round

    def _begin(self) -> None:
        self._upkeep.look_if_overdue()
        self._work = self._round()
        self._go_on(None)

    def _round(self) -> Generator[Pause, Any, None]:
        for item in self.items():
            yield None
            if self.is_set_aside(item):
                continue
            try:
                pieces = self.act(item)
                if pieces is not None:
                    yield from pieces
            except Exception as error:
                self.set_aside(item, error)
            else:
                if self._set_aside and self._set_aside.pop(item, None) is not None:
                    logger.warning("%s: %s: it works again", self.name, _named(item))

    def _go_on(self, value: object) -> None:
        turn = self._expect(0.0)
        self._upkeep.turns.begin(
            self._until_pause(turn, value), lambda pause: self._pause(pause) if self._turn is turn else None
        )

    def _until_pause(self, turn: object, value: object) -> Generator[None, None, Pause]:
        """Pieces of work; what there is to wait for then. It has ended when there is no work any more."""
        while self._turn is turn and self._work is not None:
            self._expected_ms = self._clock.monotonic_ms() + LATE_MS
            try:
                pause = self._work.send(value)
            except StopIteration:
                self._work = None
            except Exception as error:  # it cannot even say what its items are
                self._work = None
                self.set_aside(None, error)
            else:
                if pause is not None:
                    return pause
                value = None
                yield
        return None

    def _pause(self, pause: Pause) -> None:
        if self._work is None:
            self._end()
        elif isinstance(pause, Pending):
            turn = self._expect(WAIT_MAX_MS)
            pause.then(lambda value: self._go_on(value) if self._turn is turn else None)
        else:
            assert pause is not None
            self._call_later(pause, lambda: self._go_on(None))

    def _end(self) -> None:
        self.rounds += 1
        if self._set_aside:
            self._forget_old()
        if not self._is_stopped:
            self.start()

    def _call_later(self, delay_ms: float, call: Callable[[], None]) -> None:
        if self.timer is not None:
            self.timer.cancel()
        turn = self._expect(delay_ms)
        self.timer = self._clock.call_later(delay_ms, lambda: call() if self._turn is turn else None)

    def _expect(self, delay_ms: float) -> object:
        self._expected_ms = self._clock.monotonic_ms() + delay_ms + LATE_MS
        self._turn = object()
        return self._turn

    def _interval_ms(self) -> float:
        try:
            self._last_interval_ms = max(self.interval_ms(), 1.0)
        except Exception as error:
            self.set_aside(None, error)
        return self._last_interval_ms

    # -- items that raised

    def is_set_aside(self, item: Hashable) -> bool:
        """Whether the item raised, and it is too early to try it again."""
        if not self._set_aside:
            return False
        known = self._set_aside.get(item)
        return known is not None and self._clock.monotonic_ms() < known.retry_ms

    def set_aside(self, item: Item | None, error: Exception) -> None:
        """Leave the item out for a while; None: the round itself could not go on."""
        self.failures += 1
        known = self._set_aside.get(item)
        least_ms, most_ms = SET_ASIDE_AT_MOST_MS
        limit_ms = min(max(self._last_interval_ms * SET_ASIDE_INTERVALS, least_ms), most_ms)
        backoff_ms = SET_ASIDE_MS if known is None else min(known.backoff_ms * 2, limit_ms)
        self._set_aside[item] = _SetAside(backoff_ms, self._clock.monotonic_ms() + backoff_ms)
        if known is None:
            expected = isinstance(error, OSError)
            logger.error(
                "%s: %s: %s: it is set aside and tried again later",
                self.name,
                _named(item),
                error if expected else repr(error),
                exc_info=None if expected else error,
            )

    def _forget_old(self) -> None:
        """Those that nobody has tried again, though there was time: they are not items any more."""
        now_ms = self._clock.monotonic_ms()
        kept_ms = 2 * self._interval_ms()
        self._set_aside = {
            item: known
            for item, known in self._set_aside.items()
            if now_ms <= known.retry_ms + known.backoff_ms + kept_ms
        }


class Follower:
    """A coroutine that handles events for as long as the broker lives: `run` ends only when it is cancelled.

    `is_behind` says whether there is anything that it should be doing; `came_round` is called by it after each event.
    It is overdue when it was behind for `late_ms` and has not come round.
    """

    def __init__(
        self,
        upkeep: "Upkeep",
        name: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        is_behind: Callable[[], bool],
        recover: Callable[[], None] = lambda: None,
        late_ms: float = LATE_MS,
    ) -> None:
        self.name = name
        self.late_ms = late_ms
        self.run = run
        self.is_behind = is_behind
        self.recover = recover
        self.rounds = 0
        self.failures = 0
        self.restarts = 0
        self.task: asyncio.Task[None] | None = None
        self._upkeep = upkeep
        self._clock = upkeep.clock
        self._is_stopped = False
        self._heard_ms = 0.0
        self._rounds_seen = 0

    def start(self) -> None:
        """Begin, in the next pass of the loop."""
        self._heard_ms = self._clock.monotonic_ms()
        self._clock.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._is_stopped and (self.task is None or self.task.done()):
            self.task = asyncio.get_running_loop().create_task(self._live())

    def came_round(self) -> None:
        """An event was handled."""
        self.rounds += 1

    async def stop(self) -> None:
        """Cancel it, and wait until it is gone."""
        task = self.cancel()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def cancel(self) -> "asyncio.Task[None] | None":
        """Have it end soon; what ends."""
        self._is_stopped = True
        self._upkeep.forget(self)
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
        return task

    def is_overdue(self, now_ms: float) -> bool:
        """Whether it has had something to do for long and did nothing, or has ended."""
        if self.rounds != self._rounds_seen or not self.is_behind():
            self._rounds_seen = self.rounds
            self._heard_ms = now_ms
        return now_ms - self._heard_ms > self.late_ms or (self.task is not None and self.task.done())

    def restart(self) -> None:
        """The supervisor has found it overdue."""
        self.restarts += 1
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
        self.recover()
        self.start()

    async def _live(self) -> None:
        backoff_ms = SET_ASIDE_MS
        while True:
            rounds = self.rounds
            try:
                await self.run()
            except Exception as error:
                self.failures += 1
                if self.rounds != rounds or backoff_ms == SET_ASIDE_MS:
                    backoff_ms = SET_ASIDE_MS
                    logger.error("%s: %r: it is tried again", self.name, error, exc_info=error)
                await self._clock.sleep(backoff_ms)
                backoff_ms = min(backoff_ms * 2, LATE_MS / 2)
                self.recover()
            else:
                return


class Upkeep:
    """The table, and the supervisor of all that is in it."""

    def __init__(self, clock: "Clock", turns: Turns) -> None:
        self.clock = clock
        self.turns = turns
        self.tasks: list[Task[Any] | Follower] = []
        self.timer: Timer | None = None
        self._next_look_ms = 0.0

    def every(
        self,
        name: str,
        interval_ms: Callable[[], float],
        items: Callable[[], Iterable[Item]],
        act: Callable[[Item], Work | None],
    ) -> Task[Item]:
        """Add a task and start it."""
        task = Task(self, name, interval_ms, items, act)
        self._add(task)
        task.start()
        return task

    def follow(
        self,
        name: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        is_behind: Callable[[], bool],
        recover: Callable[[], None] = lambda: None,
        late_ms: float = LATE_MS,
    ) -> Follower:
        """Add a follower and start it. `recover` is called before it is started again."""
        follower = Follower(self, name, run, is_behind, recover, late_ms)
        self._add(follower)
        follower.start()
        return follower

    def _add(self, task: Task[Any] | Follower) -> None:
        self.tasks.append(task)
        if self.timer is None:
            self._look_later()

    def forget(self, task: Task[Any] | Follower) -> None:
        """It has stopped."""
        if task in self.tasks:
            self.tasks.remove(task)
        if not self.tasks and self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # -- the supervisor

    def look_if_overdue(self) -> None:
        """Called by every task that begins a round: the supervisor's own timer may have been lost, too."""
        if self.tasks and self.clock.monotonic_ms() > self._next_look_ms + LATE_MS:
            logger.error("the supervisor of the upkeep was not called in time")
            self._look_later()

    def _look_later(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._next_look_ms = self.clock.monotonic_ms() + LOOK_MS
        self.timer = self.clock.call_later(LOOK_MS, self._look)

    def _look(self) -> None:
        now_ms = self.clock.monotonic_ms()
        stood_still = now_ms > self._next_look_ms + LOOK_MS  # the whole process: everybody's timers come only now
        self._look_later()
        if stood_still:
            return
        for task in list(self.tasks):
            if task.is_overdue(now_ms):
                logger.error("%s has not come round in time: it is started again", task.name)
                task.restart()


def _named(item: object) -> str:
    """How a line of the log calls an item."""
    return "the round" if item is None else str(getattr(item, "name", None) or item)
