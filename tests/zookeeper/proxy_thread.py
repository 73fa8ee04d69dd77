"""A cutting proxy beside a test that blocks: its loop is in a thread."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from cutting_proxy import Proxy

T = TypeVar("T")


class ProxyThread:
    """A proxy in front of a port. Its methods return when they are done."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._proxy = Proxy(port)
        asyncio.run_coroutine_threadsafe(self._proxy.start(), self._loop).result()

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._proxy.address

    def cut_off(self) -> None:
        """Cut all connections, and take no new ones."""

        def cut() -> None:
            self._proxy.accepts = False
            self._proxy.cut()

        self._call(cut)

    def cut(self) -> None:
        """Cut all connections once."""
        self._call(self._proxy.cut)

    def heal(self) -> None:
        """Take connections again."""

        def heal() -> None:
            self._proxy.accepts = True

        self._call(heal)

    def close(self) -> None:
        """End it."""
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
