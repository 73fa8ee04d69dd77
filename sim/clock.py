"""Virtual time: an asyncio loop whose clock moves only when there is nothing to do, and the Clock on it."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from barnabas.runtime.ports import Timer

# Far apart, so that code which mixes the two clocks up fails at once.
WALL_START_MS = 1_700_000_000_000
MONOTONIC_START_MS = 5_000_000.0


class _TimerHandle(asyncio.TimerHandle):
    """Timers of the same instant run in the order asked for (asyncio's own heap does not promise that)."""

    __slots__ = ("sequence",)
    sequence: int

    def __lt__(self, other: Any) -> bool:
        return (self.when(), self.sequence) < (other.when(), other.sequence)


class _IdleSelector:
    """Where a real loop waits for sockets, this one moves the clock to the next timer."""

    def __init__(self, loop: "VirtualTimeLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.idle(timeout)
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An asyncio loop without sockets and without waiting: hours pass in the time their events take."""

    # These are asyncio's; typeshed does not list them.
    _ready: Any
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.now = MONOTONIC_START_MS / 1000.0
        self._sequence = 0
        self.after_pass: Callable[[], None] | None = None  # called after each pass, with everything settled
        self._selector = _IdleSelector(self)

    def time(self) -> float:
        """Virtual monotonic seconds."""
        return self.now

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        if self.after_pass is not None:
            self.after_pass()

    def idle(self, timeout: float | None) -> None:
        """Nothing is ready: go to the next timer. RuntimeError when there is none, for all would wait forever."""
        if timeout is None:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        if timeout > 0:
            self.now = self._scheduled[0].when() if self._scheduled else self.now + timeout

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, with a defined order for timers of the same instant."""
        timer = _TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        timer.sequence = self._sequence
        timer._scheduled = True  # type: ignore[attr-defined]
        heapq.heappush(self._scheduled, timer)
        return timer

    def _process_events(self, event_list: list[Any]) -> None:
        """No sockets: no events."""

    def _write_to_self(self) -> None:
        """No sockets: nothing to wake up."""

    def advance(self, seconds: float) -> None:
        """Run everything that is due in the next `seconds`, in order of time, then in the order asked for."""
        until = self.now + seconds
        self.call_at(until, self.stop)
        self.run_forever()
        while self._ready or (self._scheduled and self._scheduled[0].when() <= until):
            self.call_soon(self.stop)
            self.run_forever()

    def __del__(self) -> None:
        """Holds no resources: may be dropped without close()."""


class SimClock:
    """Clock on a virtual loop. From outside call `advance`; inside a task of the loop `await sleep`."""

    def __init__(self) -> None:
        self.loop = VirtualTimeLoop()
        self._wall_offset_ms = WALL_START_MS - MONOTONIC_START_MS

    def now_ms(self) -> int:
        """Wall clock."""
        return int(round(self.loop.now * 1000.0, 3) + self._wall_offset_ms)

    def monotonic_ms(self) -> float:
        """Monotonic clock."""
        return round(self.loop.now * 1000.0, 6)

    def step_wall_clock(self, delta_ms: int) -> None:
        """Somebody set the wall clock: only `now_ms` notices."""
        self._wall_offset_ms += delta_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call at this instant, after what was asked for before."""
        self.loop.call_soon(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call at a later instant."""
        return self.loop.call_later(delay_ms / 1000.0, callback)

    async def sleep(self, delay_ms: float) -> None:
        """Suspend the calling task, which must run on this clock's loop (`SimEnv.run`)."""
        future: asyncio.Future[None] = self.loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        timer = self.loop.call_later(delay_ms / 1000.0, wake)
        try:
            await future
        finally:
            timer.cancel()

    def advance(self, delay_ms: float) -> None:
        """Let virtual time pass and run what falls due. Not from inside the loop."""
        self.loop.advance(delay_ms / 1000.0)
