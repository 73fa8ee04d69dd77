"""Proxies before the brokers' own listeners, so that a test can cut the network between two brokers."""

import asyncio
import struct
import threading
from collections.abc import Coroutine
from typing import Any

from ports import free_port

PIECE_BYTES = 1 << 16


class Proxies:
    """One proxy before each broker. It reads from the first request which broker connects ("broker-1-…").

    While two are cut, bytes between them stay in the proxy, and new connections wait: nobody sees a closed connection.
    """

    def __init__(self, targets: dict[int, int]) -> None:
        self.ports = {node_id: free_port() for node_id in targets}
        self._targets = targets
        self._is_open: dict[tuple[int, int], asyncio.Event] = {}  # (from, to); both ways of a pair are cut together
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for node_id in targets:
            self._do(self._listen(node_id))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(200)

    async def _listen(self, node_id: int) -> None:
        await asyncio.start_server(
            lambda reader, writer: self._connected(node_id, reader, writer), "127.0.0.1", self.ports[node_id]
        )

    def _gate(self, one: int, other: int) -> asyncio.Event:
        pair = (min(one, other), max(one, other))
        if pair not in self._is_open:
            self._is_open[pair] = asyncio.Event()
            self._is_open[pair].set()
        return self._is_open[pair]

    async def _connected(self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            start = await reader.readexactly(14)
            (length,) = struct.unpack_from(">h", start, 12)
            client_id = await reader.readexactly(length)
            gate = self._gate(int(client_id.split(b"-")[1]), node_id)
            await gate.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._targets[node_id])
            far_writer.write(start + client_id)
            await asyncio.gather(self._copy(reader, far_writer, gate), self._copy(far_reader, writer, gate))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        try:
            while data := await reader.read(PIECE_BYTES):
                await gate.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self, one: int, other: int) -> None:
        """Let nothing pass between two brokers."""

        async def close() -> None:
            self._gate(one, other).clear()

        self._do(close())

    def heal(self, one: int, other: int) -> None:
        """Let everything pass again, also what has waited."""

        async def open_again() -> None:
            self._gate(one, other).set()

        self._do(open_again())

    def end(self) -> None:
        """Close the proxies."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(200)
