"""Tasks of the broker: a request began them, and they are done to their end even if its client is gone.

And the wait of a process for one of several events.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock

T = TypeVar("T")


class Tasks:
    """The tasks that requests began. The broker owns them, so the end of a connection does not end them."""

    __slots__ = ("_clock", "_has_ended", "_tasks")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Future[Any], None] = {}
        self._has_ended = False

    def __len__(self) -> int:
        return len(self._tasks)

    def outcome(
        self, work: Coroutine[Any, Any, T] | asyncio.Future[T], failed: Callable[[BaseException], T]
    ) -> Pending[T]:
        """A Pending of the result of the work, or of `failed(exception)` if it raises.

        A coroutine runs to its end, in a task. A future has another owner; to cancel the Pending cancels the future.
        If the broker stops before a work has ended, its Pending is never completed.
        """
        outcome: Pending[T] = Pending()
        if isinstance(work, asyncio.Future):
            outcome.on_cancel = work.cancel
            work.add_done_callback(partial(self._done, outcome, failed))
        elif self._has_ended:
            work.close()
        else:
            task = asyncio.ensure_future(work)
            self._tasks[task] = None
            task.add_done_callback(partial(self._done, outcome, failed))
        return outcome

    def _done(self, outcome: Pending[T], failed: Callable[[BaseException], T], work: "asyncio.Future[T]") -> None:
        self._tasks.pop(work, None)
        if not work.cancelled():
            error = work.exception()
            outcome.complete(work.result() if error is None else failed(error))

    async def settle(self, within_ms: float) -> None:
        """Wait for the tasks that have begun, at most `within_ms`. Other tasks may begin meanwhile."""
        settled = asyncio.Event()
        timer = self._clock.call_later(within_ms, settled.set)
        asyncio.gather(*self._tasks, return_exceptions=True).add_done_callback(lambda _: settled.set())
        await settled.wait()
        timer.cancel()

    async def end(self, within_ms: float) -> None:
        """The broker stops. Wait for all tasks, also those begun meanwhile; after `within_ms` cancel the rest."""
        timer = self._clock.call_later(within_ms, self._cut_off)
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        timer.cancel()
        self._has_ended = True

    def _cut_off(self) -> None:
        self._has_ended = True
        for task in self._tasks:
            task.cancel()


async def one_is_set(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
