"""Virtual time: an asyncio loop whose clock moves only when there is nothing to do, and the Clock on it."""

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Timer
from barnabas.runtime.turns import BUDGET_MS

# Far apart, so that code which mixes the two clocks up fails at once.
WALL_START_MS = 1_700_000_000_000
MONOTONIC_START_MS = 5_000_000.0
WORK_STEP_MS = 1 / 64  # each piece of a long work takes so long (a power of two, so that sums are exact)
PIECES_PER_PASS = int(BUDGET_MS / WORK_STEP_MS)  # of all long tasks together, at most
THREAD_MS = 2.0  # work in a thread takes so long
SAME_INSTANT = 1e-9  # seconds; times that differ less are the same, because sums may be rounded differently

T = TypeVar("T")


def in_a_while(clock: Clock, work: Callable[[], T]) -> Pending[T]:
    """Do what a thread would do, a little later by the clock; returns its result."""
    pending: Pending[T] = Pending()

    def end() -> None:
        try:
            value = work()
        except Exception as error:
            pending.fail(error)
        else:
            pending.complete(value)

    clock.call_later(THREAD_MS, end)
    return pending


class Process:
    """One of the processes that share the loop. All that its callbacks and tasks ask the loop to do is its own too."""

    def __init__(self) -> None:
        self.is_paused = False  # as by SIGSTOP: nothing of it runs
        self.held: list[_Call] = []  # what it would have done while it was paused


_owner: contextvars.ContextVar[Process | None] = contextvars.ContextVar("owner")  # of each task


class _Task(asyncio.Task[Any]):
    """A task that knows its process."""

    owner: Process | None = None


class _Call(asyncio.Handle):
    """A callback to run in a pass of the loop, for a process or for the world."""

    # As small as possible, because a world makes millions of these. It is not run in a context, because nothing here
    # uses context variables.
    __slots__ = ("arguments", "callback", "is_cancelled", "owner")

    def __init__(
        self, callback: Callable[..., object], arguments: tuple[Any, ...], owner: Process | None = None
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments
        self.owner = owner
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback = None  # frees what the callback refers to
        self.arguments = ()

    def cancelled(self) -> bool:
        return self.is_cancelled


class _TimedCall(_Call):
    __slots__ = ("when_seconds",)

    def __init__(
        self, when: float, callback: Callable[..., object], arguments: tuple[Any, ...], owner: Process | None
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.owner = owner
        self.is_cancelled = False
        self.when_seconds = when

    def when(self) -> float:
        return self.when_seconds


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An asyncio loop without sockets and without waiting: hours pass in the time their events take.

    A pass runs all that is ready. When nothing is, the clock moves to the next timer; timers of the same instant run
    in the order asked for. Several processes share the loop: `owner` is the one whose callback runs, None is the world.
    """

    _stopping: bool  # asyncio's; typeshed does not list it

    def __init__(self) -> None:
        super().__init__()
        self.now = MONOTONIC_START_MS / 1000.0
        self.calls = 0  # callbacks that were run
        self.owner: Process | None = None
        self.after_pass: Callable[[], None] | None = None  # called after each pass, with everything settled
        self._calls: deque[_Call] = deque()  # what is ready
        self._timers: list[tuple[float, int, _TimedCall]] = []
        self._sequence = 0

    def time(self) -> float:
        """Virtual monotonic seconds."""
        return self.now

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do at this instant, as far as is known."""
        return not self._calls

    def _run_once(self) -> None:
        calls, timers = self._calls, self._timers
        if not calls and not self._stopping:
            while timers and timers[0][2].is_cancelled:
                heapq.heappop(timers)
            if not timers:
                raise RuntimeError("deadlock: every task waits and no timer is set")
            if timers[0][0] > self.now:
                self.now = timers[0][0]
        now = self.now + SAME_INSTANT
        while timers and timers[0][0] <= now:
            calls.append(heapq.heappop(timers)[2])
        for _ in range(len(calls)):
            call = calls.popleft()
            callback, owner = call.callback, call.owner
            if callback is not None:
                if owner is not None and owner.is_paused:
                    owner.held.append(call)
                    continue
                self.owner = owner
                self.calls += 1
                try:
                    callback(*call.arguments)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"Exception in {callback!r}", "exception": error})
        self.owner = None
        if self.after_pass is not None:
            self.after_pass()

    # -- processes

    def as_process(self, owner: Process | None, callback: Callable[..., T], *args: Any) -> T:
        """Call now, as a callback of that process. If it raises, `owner` still says whose fault it is."""
        before, self.owner = self.owner, owner
        result = callback(*args)
        self.owner = before
        return result

    def hand_over(self, owner: Process | None, callback: Callable[..., object], *args: Any) -> None:
        """Call now, as a callback of that process; or as soon as it is not paused any more."""
        if owner is not None and owner.is_paused:
            owner.held.append(_Call(callback, args, owner))
        else:
            self.as_process(owner, callback, *args)

    def resume(self, owner: Process) -> None:
        """Let a paused process go on: what it missed comes first, in order."""
        owner.is_paused = False
        held, owner.held = owner.held, []
        self._calls.extend(held)

    def tasks_of(self, owner: Process) -> list["asyncio.Task[Any]"]:
        """The tasks of a process that have not ended, in the order in which they were made."""
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, _Task) and task.owner is owner]
        return sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name()))  # because a set has no order

    # -- what asyncio asks of a loop

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Any = None
    ) -> "asyncio.Task[T]":
        """A task of the process whose callback runs."""
        context = contextvars.copy_context() if context is None else context
        context.run(_owner.set, self.owner)
        task = _Task(coro, loop=self, name=name, context=context)
        task.owner = self.owner
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> _Call:  # type: ignore[override]
        """Call in the next pass, after the callbacks that were asked for before."""
        call = _Call(callback, args, self.owner if context is None else context.get(_owner, self.owner))
        self._calls.append(call)
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> _TimedCall:
        """Call when `delay` seconds have passed."""
        return self.call_at(self.now + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> _TimedCall:
        """Call at an instant of `time()`."""
        timer = _TimedCall(when, callback, args, self.owner)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Run everything that is due in the next `seconds`, in order of time, then in the order asked for."""
        until = self.now + seconds
        self.call_at(until, self.stop)
        self.run_forever()
        while self._calls or (self._timers and self._timers[0][0] <= until + SAME_INSTANT):
            self.call_soon(self.stop)
            self.run_forever()

    def __del__(self) -> None:
        """Does nothing: the loop holds no resources, so it may be dropped without close()."""


class SimClock:
    """Clock on a virtual loop. From outside call `advance`; inside a task of the loop `await sleep`.

    What it calls is the world's, also if a process asks for it: a paused process does not stop the network or the tree.
    """

    def __init__(self) -> None:
        self.loop = VirtualTimeLoop()
        self._wall_offset_ms = WALL_START_MS - MONOTONIC_START_MS
        self.moved_ms = 0
        self.asleep_ms = 0.0
        self.stands = False
        self._work_ms = 0.0
        self._read_at = -1.0  # when it was last read, in the loop's seconds
        self._read_ms = 0.0

    def now_ms(self) -> int:
        """Wall clock."""
        return int(round(self.loop.now * 1000.0, 3) + self._wall_offset_ms)

    def monotonic_ms(self) -> float:
        """Monotonic clock."""
        if self._read_at != self.loop.now:
            self._read_at = self.loop.now
            self._read_ms = round(self._read_at * 1000.0, 6)
        return self._read_ms

    def elapsed_ms(self) -> float:
        """The monotonic clock, and how long the machine was asleep."""
        return self.monotonic_ms() + self.asleep_ms

    def work_ms(self) -> float:
        """A clock of its own, which goes a step further each time it is read."""
        self._work_ms += WORK_STEP_MS
        return self._work_ms

    def step_wall_clock(self, delta_ms: int) -> None:
        """Set the wall clock, as a person would; only `now_ms` changes."""
        self._wall_offset_ms += delta_ms

    def sleep_machine(self, delta_ms: int) -> None:
        """The machine sleeps: what is due waits until it has woken up."""
        self.asleep_ms += delta_ms
        self._wall_offset_ms += delta_ms

    def move(self, delta_ms: int) -> None:
        """Set the wall clock forward, as a test commands."""
        self.step_wall_clock(delta_ms)
        self.moved_ms += delta_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call at this instant, after the callbacks that were asked for before."""
        self.loop.call_soon(callback).owner = None

    def in_thread(self, work: Callable[[], T], thread: str = "work") -> Pending[T]:
        """Do the work after THREAD_MS; returns its result."""
        return in_a_while(self, work)

    def call_later(self, delay_ms: float, callback: Callable[[], None], slack_ms: float = 0.0) -> Timer:
        """Call at a later instant, exactly."""
        timer = self.loop.call_later(delay_ms / 1000.0, callback)
        timer.owner = None
        return timer

    async def sleep(self, delay_ms: float) -> None:
        """Suspend the calling task, which must run on this clock's loop (`SimEnv.run`)."""
        future: asyncio.Future[None] = self.loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        timer = self.call_later(delay_ms, wake)
        try:
            await future
        finally:
            timer.cancel()

    def advance(self, delay_ms: float) -> None:
        """Let virtual time pass and run what falls due. Not from inside the loop."""
        self.loop.advance(delay_ms / 1000.0)
