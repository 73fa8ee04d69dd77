"""Upkeep: the work that a broker repeats without a request, as one table of tasks with one supervisor.

In each round a task goes through its items (logs, groups, connections, …). What it does with an item is a function, a
generator of pieces, or a coroutine, which is awaited before the next item is taken. An item that raises is logged once,
counted and set aside. It is tried again later, each time after twice as long; the other items are not affected.

A task that handles events has them as its items, and begins a round when one comes (`run_soon`); its interval only
finds what was forgotten.

Rounds may begin a little late, together with those of other tasks, so that an idle machine wakes up seldom.

The supervisor looks at all tasks. A task is overdue when its timer was lost, or when a completion never came. The
supervisor logs and counts an overdue task, and starts it again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Turns

if TYPE_CHECKING:
    from barnabas.runtime.ports import Clock, Timer

logger = logging.getLogger("barnabas.upkeep")

LOOK_MS = 5_000.0  # how often the supervisor looks
LATE_MS = 30_000.0  # how much later than expected a task may show that it runs
WAIT_MAX_MS = 300_000.0  # how long a completion may take: a sync on a slow disk may take minutes
SLACK = 0.28  # of an interval: how much later a round may begin. So 100 ms may be 128, and 1,000 may be 1,024
SLACK_MAX_MS = 250.0
SLACK_FROM_MS = 100.0  # shorter intervals are those that somebody waits for
SET_ASIDE_MS = 1_000.0  # after the first failure
SET_ASIDE_INTERVALS = 40  # the longest time, in intervals of the task
SET_ASIDE_AT_MOST_MS = (10_000.0, 3_600_000.0)  # the bounds of that longest time

Item = TypeVar("Item", bound=Hashable)

# A piece of work ends with None (continue at the next turn), with milliseconds to wait, or with a Pending to wait for.
# The work is sent the value of the Pending.
Pause = float | Pending[Any] | None
Work = Iterator[Pause]
Act = Work | Coroutine[Any, Any, None] | None


class _SetAside(NamedTuple):
    """An item that raised."""

    backoff_ms: float
    retry_ms: float


class Task(Generic[Item]):
    """One row of the table: every `interval_ms` it calls `act` with each of its `items`.

    `items` may return a generator, whose next item is taken when the one before is done. `act` may return an iterator
    of pieces, or a coroutine. `recover` is called before each restart by the supervisor.
    """

    def __init__(
        self,
        upkeep: "Upkeep",
        name: str,
        interval_ms: Callable[[], float],
        items: Callable[[], Iterable[Item]],
        act: Callable[[Item], Act],
        recover: Callable[[], None],
        wait_max_ms: float,
    ) -> None:
        self.name = name
        self.items = items
        self.act = act
        self.interval_ms = interval_ms
        self.recover = recover
        self.wait_max_ms = wait_max_ms
        self.rounds = 0  # rounds that have ended
        self.failures = 0  # exceptions, of all items
        self.restarts = 0  # restarts by the supervisor
        self.timer: Timer | None = None
        self._upkeep = upkeep
        self._clock = upkeep.clock
        self._last_interval_ms = LATE_MS
        self._set_aside: dict[Hashable, _SetAside] = {}
        self._work: Generator[Pause, Any, None] | None = None
        self._turn = object()  # new for each wait; a call that belongs to an older one comes too late
        self._expected_ms = 0.0  # when it must have run again, at the latest
        self._is_stopped = False

    # -- its life

    def start(self) -> None:
        """Begin the next round when the interval has passed, or a little later, together with other tasks."""
        interval_ms = self._interval_ms()
        slack_ms = min(interval_ms * SLACK, SLACK_MAX_MS) if interval_ms >= SLACK_FROM_MS else 0.0
        self._call_later(interval_ms, self._begin, slack_ms)

    def stop(self) -> None:
        """Stop, even in the middle of a round."""
        self._is_stopped = True
        self._turn = object()
        self._drop()
        self._upkeep.forget(self)

    @property
    def is_running(self) -> bool:
        """Whether it is in the middle of a round."""
        return self._work is not None

    def run_soon(self) -> None:
        """Begin a round in the next pass of the loop, unless one is running."""
        if self._work is None and not self._is_stopped:
            self._call_later(0.0, self._begin)

    def look(self, now_ms: float) -> bool:
        """True: the task should have run by now."""
        return now_ms > self._expected_ms

    def restart(self) -> None:
        """Drop the current round and begin a new one. The supervisor calls this for an overdue task."""
        self.restarts += 1
        self._drop()
        self.recover()
        self.run_soon()

    def _drop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        work, self._work = self._work, None
        if work is not None:
            try:
                work.close()
            except ValueError:  # the work is running: one of its pieces stops its own task
                pass
            except Exception as error:
                self.set_aside(None, error)

    # -- a round

    def _begin(self) -> None:
        assert self._work is None, "a round begins while another one is running"
        self._upkeep.recover_supervisor()
        self._work = self._round()
        self._resume(None)

    def _round(self) -> Generator[Pause, Any, None]:
        for item in self.items():
            yield None
            if self.is_set_aside(item):
                continue
            try:
                pieces = self.act(item)
                if pieces is not None:
                    yield from _awaited(pieces) if isinstance(pieces, Coroutine) else pieces
            except Exception as error:
                self.set_aside(item, error)
            else:
                if self._set_aside and self._set_aside.pop(item, None) is not None:
                    logger.info("%s: %s: recovered", self.name, _named(item))

    def _resume(self, value: object) -> None:
        turn = self._expect(0.0)
        self._upkeep.turns.begin(
            self._until_pause(turn, value), lambda pause: self._pause(pause) if self._turn is turn else None
        )

    def _until_pause(self, turn: object, value: object) -> Generator[None, None, Pause]:
        """Do pieces of the round until it must wait, and return that pause. At the end of the round `_work` is None."""
        while self._turn is turn and self._work is not None:
            self._expected_ms = self._clock.monotonic_ms() + LATE_MS
            try:
                pause = self._work.send(value)
            except StopIteration:
                self._work = None
            except Exception as error:  # `items` itself failed
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
            turn = self._expect(self.wait_max_ms)
            pause.then(lambda value: self._resume(value) if self._turn is turn else None)
        else:
            assert pause is not None
            self._call_later(pause, lambda: self._resume(None))

    def _end(self) -> None:
        self.rounds += 1
        if self._set_aside:
            self._forget_old()
        if not self._is_stopped:
            self.start()

    def _call_later(self, delay_ms: float, call: Callable[[], None], slack_ms: float = 0.0) -> None:
        if self.timer is not None:
            self.timer.cancel()
        turn = self._expect(delay_ms)
        self.timer = self._clock.call_later(delay_ms, lambda: call() if self._turn is turn else None, slack_ms)

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
        """Whether the item raised, and its time to be tried again has not come."""
        if not self._set_aside:
            return False
        known = self._set_aside.get(item)
        return known is not None and self._clock.monotonic_ms() < known.retry_ms

    def set_aside(self, item: Item | None, error: Exception) -> None:
        """Leave the item out for a while, because it raised. None: the round itself raised."""
        self.failures += 1
        known = self._set_aside.get(item)
        least_ms, most_ms = SET_ASIDE_AT_MOST_MS
        limit_ms = min(max(self._last_interval_ms * SET_ASIDE_INTERVALS, least_ms), most_ms)
        backoff_ms = SET_ASIDE_MS if known is None else min(known.backoff_ms * 2, limit_ms)
        self._set_aside[item] = _SetAside(backoff_ms, self._clock.monotonic_ms() + backoff_ms)
        if known is None:
            expected = isinstance(error, OSError)
            logger.error(
                "%s: %s failed, it is retried later: %s",
                self.name,
                _named(item),
                error if expected else repr(error),
                exc_info=None if expected else error,
            )

    def _forget_old(self) -> None:
        """Forget set-aside items that were not tried again in time: they are not among the items any more."""
        now_ms = self._clock.monotonic_ms()
        kept_ms = 2 * self._interval_ms()
        self._set_aside = {
            item: known
            for item, known in self._set_aside.items()
            if now_ms <= known.retry_ms + known.backoff_ms + kept_ms
        }


class Upkeep:
    """The table of tasks, and their supervisor."""

    def __init__(self, clock: "Clock", turns: Turns) -> None:
        self.clock = clock
        self.turns = turns
        self.tasks: list[Task[Any]] = []
        self.timer: Timer | None = None
        self._next_look_ms = 0.0

    def every(
        self,
        name: str,
        interval_ms: Callable[[], float],
        items: Callable[[], Iterable[Item]],
        act: Callable[[Item], Act],
        recover: Callable[[], None] = lambda: None,
        wait_max_ms: float = WAIT_MAX_MS,
    ) -> Task[Item]:
        """Add a task and start it. `wait_max_ms`: how long one coroutine or Pending of it may take."""
        task = Task(self, name, interval_ms, items, act, recover, wait_max_ms)
        self.tasks.append(task)
        if self.timer is None:
            self._look_later()
        task.start()
        return task

    def forget(self, task: Task[Any]) -> None:
        """Remove a task that has stopped."""
        if task in self.tasks:
            self.tasks.remove(task)
        if not self.tasks and self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # -- the supervisor

    def recover_supervisor(self) -> None:
        """Start the supervisor's timer again if it was lost. Every task calls this when it begins a round."""
        if self.tasks and self.clock.monotonic_ms() > self._next_look_ms + LATE_MS:
            logger.error("the supervisor of the upkeep did not run in time, restarted it")
            self._look_later()

    def _look_later(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._next_look_ms = self.clock.monotonic_ms() + LOOK_MS
        self.timer = self.clock.call_later(LOOK_MS, self._look)

    def _look(self) -> None:
        now_ms = self.clock.monotonic_ms()
        stood_still = now_ms > self._next_look_ms + LOOK_MS  # the whole process stood still, so all timers are late
        self._look_later()
        if stood_still:
            return
        for task in list(self.tasks):
            if task.look(now_ms):
                logger.error("%s did not run in time, restarted it", task.name)
                task.restart()


def _awaited(coroutine: Coroutine[Any, Any, None]) -> Work:
    """Wait until a coroutine has ended, and raise what it raised. To close this cancels the coroutine."""
    task = asyncio.get_running_loop().create_task(coroutine)
    ended: Pending[None] = Pending()
    task.add_done_callback(lambda _: ended.complete(None))
    try:
        yield ended
    finally:
        task.cancel()
    if not task.cancelled():
        task.result()


def _named(item: object) -> str:
    """The name of an item in the log."""
    return "the round" if item is None else str(getattr(item, "name", None) or item)
