"""A server without a socket: tests feed bytes to its connections and look at the bytes that these write."""

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker import requests
from barnabas.broker.broker import Broker
from barnabas.broker.connection import Connection
from barnabas.broker.refusals import Refusals
from barnabas.broker.requests import Api, RequestContext, RequestGate
from barnabas.broker.server import Server
from barnabas.cluster.tree.port import Coordination
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import CreateTopicsRequest, FindCoordinatorRequest
from simulator.env import SimEnv, sim_env

Handler = Callable[[Any, Any, RequestContext], Any]


class Wire(asyncio.Transport):
    """The transport of a connection under test, and the client at its other end."""

    def __init__(
        self, server: Server, peer: str | None = "192.0.2.7", read_size: int = 1 << 30, listener: str = "PLAINTEXT"
    ) -> None:
        super().__init__({"peername": peer and (peer, 50_000), "sockname": ("198.51.100.1", 9092)})
        self.written: list[bytes] = []
        self.reading = True
        self.closed = False
        self.unread = b""
        self.read_size = read_size
        self.connection = Connection(server, listener)
        self.connection.connection_made(self)

    # the client's side

    def feed(self, data: bytes) -> None:
        """Send bytes; they stay with the client while the connection does not read."""
        self.unread += data
        while self.unread and self.reading and not self.closed:
            buffer = memoryview(self.connection.get_buffer(-1))
            assert len(buffer) > 0
            size = min(len(buffer), len(self.unread), self.read_size)
            buffer[:size] = self.unread[:size]
            self.unread = self.unread[size:]
            self.connection.buffer_updated(size)
            del buffer

    def request(self, api: ApiKey, version: int, message: Any, correlation_id: int = 1) -> None:
        """Send one request."""
        self.feed(frames.encode_request(api, version, correlation_id, "test", message))

    def answers(self) -> list[bytes]:
        """The frames sent so far, without their sizes; whole frames only."""
        data = b"".join(self.written)
        found = []
        while data:
            (size,) = struct.unpack_from(">i", data)
            assert len(data) >= 4 + size, "half an answer"
            found.append(data[4 : 4 + size])
            data = data[4 + size :]
        return found

    def correlation_ids(self) -> list[int]:
        """Of the answers, in order."""
        return [struct.unpack_from(">i", answer)[0] for answer in self.answers()]

    def lose(self) -> None:
        """The client goes away."""
        self.closed = True
        self.connection.connection_lost(None)

    # the transport's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "a write after close"
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        assert self.reading, "paused twice"
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.feed(b"")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Client(asyncio.Protocol):
    """One connection; answers come one by one."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False
        self.news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.news.set()

    def send(self, api: ApiKey, version: int, message: Any) -> None:
        """Send one request."""
        self.transport.write(frames.encode_request(api, version, 1, "test", message))

    async def ask(self, api: ApiKey, version: int, message: Any) -> Any:
        """The decoded answer to one request."""
        self.send(api, version, message)
        answer = await self.answer()
        assert answer is not None, "the connection was closed"
        return frames.decode_response(api, version, memoryview(answer))[1]

    async def answer(self) -> bytes | None:
        """The next frame, without its size; None when the broker closed."""
        while True:
            if len(self.data) >= 4:
                (size,) = struct.unpack_from(">i", self.data)
                if len(self.data) >= 4 + size:
                    frame, self.data = self.data[4 : 4 + size], self.data[4 + size :]
                    return frame
            if self.closed:
                return None
            self.news.clear()
            await self.news.wait()


class World:
    """A broker in virtual time, and clients of it."""

    def __init__(
        self,
        env: SimEnv | None = None,
        coordination: Coordination | None = None,
        directories: str | Sequence[str] = "/data",
        **settings: str,
    ) -> None:
        self.env = env or sim_env(7)
        config = BrokerConfig.of(
            {
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "coordination.path": ":memory:",
                "group.initial.rebalance.delay.ms": "0",
                "offsets.topic.num.partitions": "3",
            }
            | {name.replace("_", "."): value for name, value in settings.items()}
        )
        self.escaped: list[dict[str, Any]] = []  # exceptions that nobody caught
        self.env.clock.loop.set_exception_handler(lambda loop, context: self.escaped.append(context))
        self.broker = Broker(self.env, config, directories, coordination)
        self.env.run(self.broker.start())

    def end(self) -> None:
        """Stop the broker: no handler has failed, and no exception has escaped."""
        self.env.run(self.broker.stop())
        assert self.broker.request_gate.handler_failures == 0
        assert self.escaped == []

    async def connect(self, source: str = "127.0.0.1") -> Client:
        """A new connection, for tests that run in the loop (`world.env.run`)."""
        _, client = await self.env.network.connect("127.0.0.1", 9092, Client, source)
        assert isinstance(client, Client)
        return client

    def exchange(self, *requests: bytes, answers: int | None = None) -> list[bytes | None]:
        """Send whole frames (without sizes) on a connection of their own, and wait for the answers."""

        async def run() -> list[bytes | None]:
            client = await self.connect()
            for request in requests:
                client.transport.write(struct.pack(">i", len(request)) + request)
            got = [await client.answer() for _ in range(len(requests) if answers is None else answers)]
            client.transport.close()
            return got

        return self.env.run(run())

    def send_and_close(self, request: bytes) -> None:
        """Send a frame (without size), give it a while, go away."""

        async def run() -> None:
            client = await self.connect()
            client.transport.write(struct.pack(">i", len(request)) + request)
            await self.env.clock.sleep(20)
            client.transport.close()
            await self.env.clock.sleep(1)

        self.env.run(run())

    def ask(self, api: ApiKey, version: int, message: Any) -> Any:
        """The decoded answer to one request."""

        async def run() -> Any:
            client = await self.connect()
            response = await client.ask(api, version, message)
            client.transport.close()
            return response

        return self.env.run(run())

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Make a topic; returns its id."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        (result,) = self.ask(ApiKey.CREATE_TOPICS, 7, request).topics
        assert result.error_code == 0, result
        topic_id: bytes = result.topic_id
        return topic_id


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One broker for all tests of the module."""
    world = World()
    yield world
    world.end()


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    """For tests that need a broker of their own: on a disk that they prepared, stopped and started again."""
    return World


@pytest.fixture
def own_world() -> Iterator[World]:
    """A broker for each test, for modules whose tests change what the others would meet."""
    world = World()
    yield world
    world.end()


@pytest.fixture
def world_of_transactions() -> Iterator[World]:
    """A broker with a topic "t" of two partitions, and a coordinator for the transactional id "a"."""
    world = World()
    world.create_topic("t", 2)
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))
    yield world
    world.end()


class Harness:
    """A server whose broker is whatever the handlers of the test want."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self.env: SimEnv = sim_env(1)
        self.config = BrokerConfig.of(settings or {})
        gate = RequestGate(self.env.clock, SimpleNamespace(), Refusals(self.env.clock))  # type: ignore[arg-type]
        self.server = Server(self.env, self.config, gate)
        self.server.is_reading = self.server.serving = True

    def connect(self, peer: str | None = "192.0.2.7", read_size: int = 1 << 30, listener: str = "PLAINTEXT") -> Wire:
        """A new client."""
        return Wire(self.server, peer, read_size, listener)

    def run(self) -> None:
        """Let the loop do what was asked for."""
        self.env.clock.advance(0)


@pytest.fixture
def make_harness() -> type[Harness]:
    """For tests that need settings."""
    return Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Give an API key the test's own handler."""

    def put(key: ApiKey, handler: Handler, versions: tuple[int, int] = (0, 4), failure: Any = None) -> None:
        monkeypatch.setitem(requests.TABLE, key, Api(key, versions, versions, handler, failure))

    yield put  # noqa: PT022  (undone by monkeypatch)
