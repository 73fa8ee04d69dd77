"""The operating system's clocks and the running asyncio loop."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Timer

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")
_time_ns: Final = time.time_ns
_monotonic: Final = time.monotonic
_WITH_SLEEP: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: the second one counts sleep, too
CLOCK_MS_MAX = 1 << 47  # how far tests move it, some thousand years: with more, dates could not be told


def roundest(due_ms: int, slack_ms: int) -> int:
    """Of the times from `due_ms` to `slack_ms` later the one that most powers of two divide.

    Calls that are due about the same time get the same one, and who repeats one stays with it, as do timers of Linux.
    """
    latest_ms = due_ms + slack_ms
    bits = ((due_ms - 1) ^ latest_ms).bit_length() - 1
    return latest_ms >> bits << bits


class RealClock:
    """The clock of this machine, and the running asyncio loop. Implements the Clock port."""

    __slots__ = ("_workers",)
    moved_ms = 0

    def __init__(self) -> None:
        self._workers: dict[str, ThreadPoolExecutor] = {}

    def now_ms(self) -> int:
        return _time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return _monotonic() * 1000.0

    def elapsed_ms(self) -> float:
        return time.clock_gettime(_WITH_SLEEP) * 1000.0

    def work_ms(self) -> float:
        """The same as `monotonic_ms`, because a call that blocks delays everything else as well."""
        return _monotonic() * 1000.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def in_thread(self, work: Callable[[], T], thread: str = "work") -> Pending[T]:
        """Do the work in a thread: one work after the other, so that all take the memory of one."""
        pending: Pending[T] = Pending()

        def ended(future: "asyncio.Future[T]") -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, Exception):
                pending.fail(error)
            elif not future.cancelled():
                pending.complete(future.result())

        if thread not in self._workers:
            from concurrent.futures import ThreadPoolExecutor  # late, because few brokers need it

            self._workers[thread] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=thread)
        asyncio.get_running_loop().run_in_executor(self._workers[thread], work).add_done_callback(ended)
        return pending

    def call_later(self, delay_ms: float, callback: Callable[[], None], slack_ms: float = 0.0) -> Timer:
        if slack_ms:
            now_ms = _monotonic() * 1000.0
            delay_ms = roundest(math.ceil(now_ms + delay_ms), int(slack_ms)) - now_ms
        return asyncio.get_running_loop().call_later(delay_ms / 1000.0, callback)

    async def sleep(self, delay_ms: float) -> None:
        await asyncio.sleep(delay_ms / 1000.0)


class MovableClock(RealClock):
    """The clock of this machine, whose wall clock tests move. Delays and monotonic time go on as they do."""

    __slots__ = ("moved_ms", "stands_at_ms")

    def __init__(self, moved_ms: int = 0) -> None:
        super().__init__()
        self.moved_ms = moved_ms
        self.stands_at_ms: int | None = None  # None: it goes on

    @property
    def stands(self) -> bool:
        return self.stands_at_ms is not None

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970, as far as tests have moved it."""
        return super().now_ms() + self.moved_ms if self.stands_at_ms is None else self.stands_at_ms

    def move(self, delta_ms: int) -> None:
        assert delta_ms >= 0, "the wall clock goes back"
        self.moved_ms += delta_ms
        if self.stands_at_ms is not None:
            self.stands_at_ms += delta_ms

    def put_back(self, moved_ms: int, stands_at_ms: int | None) -> None:
        """Be as a clock that was moved so far, and stands there."""
        self.moved_ms = moved_ms
        self.stands_at_ms = stands_at_ms

    def stand(self) -> None:
        """The wall clock stands still from now on."""
        assert self.stands_at_ms is None, "the wall clock stands already"
        self.stands_at_ms = self.now_ms()

    def go_on(self) -> None:
        """The wall clock goes on from where it stands."""
        assert self.stands_at_ms is not None, "the wall clock goes on already"
        self.moved_ms = self.stands_at_ms - super().now_ms()
        self.stands_at_ms = None
