"""A raw client on asyncio. Frames are made beforehand and answers compared as bytes, so it costs little itself."""

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from struct import Struct
from typing import cast

from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Message

INT32 = Struct(">i")
CLIENT_ID = "bench"
READ_BYTES = 1 << 20


class LoadError(Exception):
    """The broker did not answer as it should, so a figure would mean nothing."""


class Connection(asyncio.BufferedProtocol):
    """One connection. `on_frame` is called with every answer, without its size; the view is valid in the call only."""

    def __init__(self) -> None:
        self.on_frame: Callable[[memoryview], None] = lambda frame: None
        self._buffer = bytearray(64 * 1024)
        self._filled = 0
        self.transport: asyncio.Transport
        self.lost = False
        self._answer: asyncio.Future[bytes] | None = None  # what `exchange` waits for

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the broker closed the connection"))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer):
            self._buffer = bytearray(self._buffer) + bytearray(3 * len(self._buffer))
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        end = self._filled + nbytes
        view = memoryview(self._buffer)
        position = 0
        while end - position >= 4:
            (size,) = INT32.unpack_from(view, position)
            if position + 4 + size > end:
                break
            self.on_frame(view[position + 4 : position + 4 + size])
            position += 4 + size
        if position:
            self._buffer[: end - position] = self._buffer[position:end]
        self._filled = end - position

    async def ask(self, api_key: ApiKey, version: int, request: Message) -> Message:
        """Send one request; returns its decoded answer."""
        frame = await self.exchange(frames.encode_request(api_key, version, 1, CLIENT_ID, request))
        return frames.decode_response(api_key, version, frame)[1]

    async def exchange(self, frame: bytes) -> bytes:
        """Send one frame; returns its answer. ConnectionResetError."""
        if self.lost:
            raise ConnectionResetError("the broker closed the connection")
        answer = self._answer = asyncio.get_running_loop().create_future()
        self.on_frame = lambda received: answer.set_result(bytes(received))
        self.transport.write(frame)
        return await asyncio.wait_for(answer, 60)


async def connect(address: str) -> Connection:
    """A connection to host:port."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    return connection


async def connect_many(address: str, count: int) -> list[Connection]:
    """`count` connections, a hundred at a time."""
    connections: list[Connection] = []
    while len(connections) < count:
        batch = min(100, count - len(connections))
        connections += await asyncio.gather(*(connect(address) for _ in range(batch)))
    return connections


async def until(what: str, attempt: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    """Repeat `attempt` until it returns True. `what` names it in the error when the time is over."""
    deadline = time.monotonic() + seconds
    while not await attempt():
        if time.monotonic() > deadline:
            raise LoadError(f"not within {seconds} s: {what}")
        await asyncio.sleep(0.05)


async def create_topics(connection: Connection, names: Sequence[str], partitions: int = 1) -> None:
    """Create the topics that are missing, and wait until each partition has a leader."""
    make = messages.CreateTopicsRequest.CreatableTopic
    topics = [make(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    await connection.ask(ApiKey.CREATE_TOPICS, 4, messages.CreateTopicsRequest(topics=topics, timeout_ms=60_000))
    await until(f"leaders of {len(names)} topics", lambda: _led(connection, names, partitions))


async def _led(connection: Connection, names: Sequence[str], partitions: int) -> bool:
    topics = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = messages.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    answer = await connection.ask(ApiKey.METADATA, 4, request)
    if not all(topic.error_code == 0 and len(topic.partitions) >= partitions for topic in answer.topics):  # type: ignore[attr-defined]
        return False
    make = messages.ListOffsetsRequest.ListOffsetsTopic
    one = messages.ListOffsetsRequest.ListOffsetsPartition
    asked = [
        make(name=name, partitions=[one(partition_index=i, timestamp=-1) for i in range(partitions)]) for name in names
    ]
    # Metadata may name a leader before that broker has opened the log.
    found = await connection.ask(ApiKey.LIST_OFFSETS, 2, messages.ListOffsetsRequest(topics=asked))
    return not any(row.error_code for topic in found.topics for row in topic.partitions)  # type: ignore[attr-defined]


class Latencies:
    """Spans in seconds, in the order in which they were measured."""

    def __init__(self) -> None:
        self.spans = array("d")

    def percentile_ms(self, share: float) -> float:
        """The span that `share` of all do not exceed, in milliseconds."""
        ordered = sorted(self.spans)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else float("nan")


async def closed_loop(
    connections: Sequence[Connection], requests: Sequence[Sequence[bytes]], seconds: float, *, compare: bool = True
) -> tuple[float, Latencies]:
    """Send each connection's frames in turn, one in flight per connection, for some seconds: requests/s and spans.

    With `compare`, all answers to a frame must be equal to the first one (the correlation ids do not change).
    """
    loop = asyncio.get_running_loop()
    latencies = Latencies()
    spans = latencies.spans
    clock = time.perf_counter
    ended: asyncio.Future[None] = loop.create_future()
    running = len(connections)
    stop_at = 0.0

    def drive(connection: Connection, row: Sequence[bytes]) -> None:
        expected: list[memoryview | None] = [None] * len(row)
        write = connection.transport.write
        turn = 0
        sent = clock()

        def answered(frame: memoryview) -> None:
            nonlocal turn, sent, running
            now = clock()
            spans.append(now - sent)
            if compare and frame != expected[turn]:
                if expected[turn] is not None:
                    if not ended.done():
                        ended.set_exception(LoadError(f"another answer than before: {bytes(frame).hex()}"))
                    return
                expected[turn] = memoryview(bytes(frame))
            if now >= stop_at:
                running -= 1
                if not running and not ended.done():
                    ended.set_result(None)
                return
            turn = (turn + 1) % len(row)
            sent = clock()
            write(row[turn])

        connection.on_frame = answered
        write(row[0])

    started = clock()
    stop_at = started + seconds
    for connection, row in zip(connections, requests, strict=True):
        drive(connection, row)
    await asyncio.wait_for(ended, seconds + 60)
    return len(spans) / (clock() - started), latencies


def close(connections: Sequence[Connection]) -> None:
    """Close all connections."""
    for connection in connections:
        connection.transport.abort()
