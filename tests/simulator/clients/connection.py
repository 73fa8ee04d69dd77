"""A client's connection in the simulated world: requests written and answers read with `protocol.frames`."""

import asyncio
import struct
from collections import deque
from typing import Any

from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey

from simulator.clock import SimClock
from simulator.network import LOCALHOST, SimNetwork
from simulator.violation import Violation

Asked = tuple[int, ApiKey, int, "asyncio.Future[Any]", float]  # correlation id, ..., when
ADDRESS = (LOCALHOST, 9092)


class LostError(Exception):
    """The connection is gone, or was closed because no answer came. The requests may have been handled or not."""


class UnansweredError(LostError):
    """No answer came within the time that the broker may take."""


class Connection(asyncio.Protocol):
    """One connection. Any number of requests may be in flight; answers must come in the order of the requests."""

    def __init__(self, clock: SimClock, client_id: str) -> None:
        self.client_id = client_id
        self.closed = False
        self.waiting: deque[Asked] = deque()  # requests not answered yet
        self._clock = clock
        self._data = bytearray()
        self._next_correlation_id = 0
        self.transport: asyncio.Transport

    @staticmethod
    async def open(
        clock: SimClock,
        network: SimNetwork,
        client_id: str,
        address: tuple[str, int] = ADDRESS,
        source: str = LOCALHOST,
    ) -> "Connection":
        """Connect from a machine. LostError."""
        try:
            _, connection = await network.connect(*address, lambda: Connection(clock, client_id), source)
        except OSError as error:
            raise LostError(str(error)) from error
        assert isinstance(connection, Connection)
        return connection

    def send(self, api: ApiKey, version: int, message: Any, limit_ms: float) -> "asyncio.Future[Any]":
        """Send a request; the future holds the answer's body, LostError, or UnansweredError after `limit_ms`."""
        future: asyncio.Future[Any] = self._clock.loop.create_future()
        if self.closed:
            future.set_exception(LostError("closed"))
            return future
        self._next_correlation_id += 1
        asked = (self._next_correlation_id, api, version, future, self._clock.monotonic_ms())
        self.waiting.append(asked)
        self.transport.write(frames.encode_request(api, version, asked[0], self.client_id, message))
        timer = self._clock.call_later(limit_ms, lambda: self._unanswered(asked))

        def done(_: object) -> None:
            timer.cancel()
            if not future.cancelled():
                future.exception()  # so that it is no news: who sends several may give up at the first refusal

        future.add_done_callback(done)
        return future

    def send_unanswered(self, api: ApiKey, version: int, message: Any) -> None:
        """Send a request that gets no answer (acks=0)."""
        if not self.closed:
            self._next_correlation_id += 1
            frame = frames.encode_request(api, version, self._next_correlation_id, self.client_id, message)
            self.transport.write(frame)

    async def ask(self, api: ApiKey, version: int, message: Any, limit_ms: float = 30_000) -> Any:
        """The answer's body. LostError, UnansweredError."""
        return await self.send(api, version, message, limit_ms)

    def _unanswered(self, asked: Asked) -> None:
        if not asked[3].done():
            asked[3].set_exception(UnansweredError(f"{asked[1].name} version {asked[2]}"))
            self.abort()

    def abort(self) -> None:
        """Close the connection at once; requests in flight are lost."""
        if not self.closed:
            self.transport.abort()
            self._lost()

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4:
            (size,) = struct.unpack_from(">i", self._data)
            if len(self._data) < 4 + size:
                break
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            if not self.waiting:
                raise Violation("only requests are answered", f"{self.client_id} has not asked anything")
            correlation_id, api, version, future, _ = self.waiting.popleft()
            got, message = frames.decode_response(api, version, frame)
            if got != correlation_id:
                raise Violation("answers come in order", f"{self.client_id}: {got} where {correlation_id} was next")
            if not future.done():
                future.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def _lost(self) -> None:
        self.closed = True
        waiting, self.waiting = self.waiting, deque()
        for _, _, _, future, _ in waiting:
            if not future.done():
                future.set_exception(LostError("connection lost"))
                future.exception()  # taken, because nobody may wait for this future any more
