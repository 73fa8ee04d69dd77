"""A TCP proxy between a client and a server that cuts, delays and loses.

It knows how frames of ZooKeeper begin (four bytes of length, then the request's number), so that it can lose exactly
one request, before the server sees it, or its answer, after the server has done it.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

CONNECTION_FRAMES = 1  # the first frame of a connection, each way, is the handshake
PING, WATCH, AUTH = -2, -1, -4  # numbers that are no request's


class Proxy:
    """Listens on a port of its own. `start` first; everything runs on the loop that called it."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.delay_seconds = 0.0  # of every frame, each way
        self.accepts = True  # False: new connections are closed at once
        self.silent = 0  # so many new connections more are taken and never answered
        self.lose_requests = 0  # so many requests more are lost, and their connection is cut
        self.lose_answers = 0  # so many answers more are lost, and their connection is cut
        self.held: asyncio.Event | None = None  # answers wait for it
        self.connections = 0  # accepted so far
        self._target = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and cut all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Close all connections. New ones are accepted, unless `accepts` is False."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepts:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        other_writer: asyncio.StreamWriter | None = None
        try:
            if self.silent:
                self.silent -= 1
                await asyncio.Event().wait()
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, other_writer, self._may_request))
                both.create_task(self._forward(other_reader, writer, self._may_answer))
        except (asyncio.CancelledError, OSError, ExceptionGroup):
            pass
        finally:
            self._tasks.discard(task)
            for one in (writer, other_writer):
                if one is not None:
                    with suppress(OSError):
                        one.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may: Callable[[int], Awaitable[bool]]
    ) -> None:
        frames = 0
        while True:
            try:
                head = await reader.readexactly(4)
                body = await reader.readexactly(struct.unpack(">i", head)[0])
            except asyncio.IncompleteReadError:
                raise ConnectionError from None
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            number = struct.unpack(">i", body[:4])[0]
            if frames >= CONNECTION_FRAMES and number not in (PING, WATCH, AUTH) and not await may(number):
                raise ConnectionError
            frames += 1
            writer.write(head + body)
            await writer.drain()

    async def _may_request(self, number: int) -> bool:
        if self.lose_requests:
            self.lose_requests -= 1
            return False
        return True

    async def _may_answer(self, number: int) -> bool:
        if self.lose_answers:
            self.lose_answers -= 1
            return False
        if self.held is not None:
            await self.held.wait()
        return True
