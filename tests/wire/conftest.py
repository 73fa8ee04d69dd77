"""A server without a socket: connections are fed bytes and what they write is looked at."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import barnabas.broker.api.api_versions  # noqa: F401
import pytest
from barnabas.broker import dispatch
from barnabas.broker.connection import Connection
from barnabas.broker.context import RequestContext
from barnabas.broker.dispatch import Api
from barnabas.broker.server import Server
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.sim.env import SimEnv, sim_env

Handler = Callable[[Any, Any, RequestContext], Any]


class Wire(asyncio.Transport):
    """The transport of a connection under test, and the client at its other end."""

    def __init__(self, server: Server, peer: str = "192.0.2.7", read_size: int = 1 << 30) -> None:
        super().__init__({"peername": (peer, 50_000), "sockname": ("198.51.100.1", 9092)})
        self.written: list[bytes] = []
        self.reading = True
        self.closed = False
        self.unread = b""
        self.read_size = read_size
        self.connection = Connection(server, "PLAINTEXT")
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


class Harness:
    """A server whose broker is whatever the handlers of the test want."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self.env: SimEnv = sim_env(1)
        self.config = BrokerConfig.of(settings or {})
        self.server = Server(self.env, self.config, SimpleNamespace())  # type: ignore[arg-type]
        self.server.serving = True

    def connect(self, peer: str = "192.0.2.7", read_size: int = 1 << 30) -> Wire:
        """A new client."""
        return Wire(self.server, peer, read_size)

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
        monkeypatch.setitem(dispatch.TABLE, key, Api(key, versions, versions[0], handler, failure))

    yield put  # noqa: PT022  (undone by monkeypatch)
