"""`HandOver`: one queue from threads to the loop. What threads put in is called by the loop, in that order."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class HandOver:
    """Made on the loop that will do the calls. `put` may be called by any thread.

    The loop is woken once for all calls that are waiting. After the end of the loop, calls are dropped.
    """

    __slots__ = ("_calls", "_is_woken", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def put(self, call: Callable[[], object]) -> None:
        """Have `call` called by the loop."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._call_all)

    def _call_all(self) -> None:
        self._is_woken = False  # first, so that a call which is put in from now on wakes the loop again
        for _ in range(len(self._calls)):
            call = self._calls.popleft()
            try:
                call()
            except Exception as error:  # the others are called all the same
                self._loop.call_exception_handler({"message": f"{call} failed", "exception": error})
        if self._calls and not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._call_all)
