"""The listeners of the HTTP API (setting `http.listeners`), and the limits of their connections.

The HTTP library is imported, in a thread, when the first connection comes (in a broker for tests: soon), and each
family of routes when one of its paths is asked for, so that a start and an idle broker do not pay for them.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from barnabas.broker.addresses import LOOPBACK, WILDCARD_HOSTS
from barnabas.config.listeners import HTTPS, Endpoint, is_loopback
from barnabas.runtime.counted import counted
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.ports import Listener
from barnabas.runtime.upkeep import Task

if TYPE_CHECKING:
    from barnabas.broker.http.connection import HttpConnection
    from barnabas.broker.requests import RequestGate
    from barnabas.broker.server import Server
    from barnabas.broker.services import Services

logger = logging.getLogger("barnabas.http")

CONNECTIONS_MAX = 128
BACKLOG = 128
SWEEP_INTERVAL_MS = 1_000.0
SETTLE_POLL_MS = 5.0
LOADED_AFTER_MS = 250.0  # whoever has started this broker has its clients to make first
REFUSALS_TOLD_EVERY_MS = 10_000
TRACEBACKS_MAX, TRACEBACK_EVERY = 10, 1000


class HttpAddressError(OSError):
    """An address of http.listeners cannot be used."""

    def __init__(self, error: OSError, endpoint: Endpoint) -> None:
        super().__init__(error.errno, f"cannot listen at {endpoint}: {error.strerror or error}")
        self.endpoint = endpoint


class HttpServer:
    """Opens the listeners; counts, limits and closes connections."""

    def __init__(self, services: "Services", gate: "RequestGate", server: "Server") -> None:
        self.env = services.env
        self.config = services.config
        self.services = services
        self.gate = gate
        self.server = server
        self.connections: dict[HttpConnection | _Opening, None] = {}
        self.scrapes: WeakSet[Any] = WeakSet()  # answers of /metrics that are made or sent
        self.requests = 0
        self.handler_failures = 0
        self.refused_connections = 0
        self.is_closing = False
        self._listeners: list[tuple[Endpoint, Listener]] = []
        self.connection_class: type[HttpConnection] | None = None  # None: it is not imported
        self._waiting: list[_Opening] = []  # for the import
        self._sweep: Task[HttpConnection | _Opening] | None = None
        self._tells_refusals = NowAndThen(self.env.clock, REFUSALS_TOLD_EVERY_MS)
        # That of the broker's newest life in this process. It is asked for, because a first life is never collected
        # (gc.freeze): if each had the next, all would stay.
        self.newest: Callable[[], HttpServer] = lambda: self

    async def reserve(self) -> None:
        """Bind the addresses; no client can connect yet. HttpAddressError when one cannot be bound."""
        for endpoint in self.config.http_endpoints:
            try:
                listener = await self.env.network.listen(endpoint.host, endpoint.port, self._factory(endpoint), BACKLOG)
            except OSError as error:
                if "http.listeners" not in self.config.file:  # nobody has asked for it: that refuses no start
                    logger.warning("there is no HTTP API: %s", HttpAddressError(error, endpoint))
                    continue
                raise HttpAddressError(error, endpoint) from error
            self._listeners.append((endpoint, listener))

    def _factory(self, endpoint: Endpoint) -> Callable[[], asyncio.BaseProtocol]:
        if endpoint.name != HTTPS:
            return self._accepted
        from barnabas.runtime.tls import TlsSide, TlsTransport  # late: most brokers have none

        failed = partial(self.server.note_failed_handshake, HTTPS)
        side = TlsSide(self.env.clock, self.env.turns, self.server.tls[HTTPS].server_context, on_failure=failed)
        return lambda: TlsTransport(side, self._accepted())

    async def listen(self) -> None:
        """Accept connections. From now on DescribeConfigs tells where."""
        for endpoint, listener in self._listeners:
            try:
                await listener.accept()
            except OSError as error:
                raise HttpAddressError(error, endpoint) from error
        if not self._listeners:
            return
        endpoint, listener = self._listeners[0]
        host = endpoint.host
        if host in WILDCARD_HOSTS:  # then it is where Kafka's clients are told to go, or find this broker
            host = (self.config.advertised_endpoints or self.config.endpoints)[0].host
        if host in WILDCARD_HOSTS:
            host = await self.env.network.host_name() or LOOPBACK
        address = f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
        self.config.take_http_address(f"https://{address}" if endpoint.name == HTTPS else address)
        if self.config.http_token is None and not all(is_loopback(each.host) for each, _ in self._listeners):
            logger.warning("requests to %s from other hosts are refused until http.token is set", self.address)

    @property
    def address(self) -> str | None:
        """host:port of the first listener, as others are told it, with https:// if it has TLS; None: no HTTP API."""
        return self.config.http_address

    def hosts(self) -> set[str]:
        """The host names at which this broker listens, and the one that others are told."""
        told = (self.address or "").removeprefix("https://").rpartition(":")[0].strip("[]")
        return {told, *(endpoint.host for endpoint, _ in self._listeners)} - {""}

    def stop_accepting(self) -> None:
        """Close the listeners; the connections stay open until their requests are answered."""
        for _, listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self.is_closing = True
        for connection in list(self.connections):
            connection.close_if_idle()

    async def settle(self, within_ms: float) -> None:
        """Wait for the answers that are being sent, at most so long."""
        last_ms = self.env.clock.monotonic_ms() + within_ms
        while any(connection.is_sending for connection in self.connections):
            if self.env.clock.monotonic_ms() >= last_ms:
                return
            await self.env.clock.sleep(SETTLE_POLL_MS)

    def close(self) -> None:
        """Close the listeners and all connections. Requests that are not answered yet are told why."""
        self.stop_accepting()
        for connection in list(self.connections):
            if not connection.outlives_broker:
                connection.close()

    # ------------------------------------------------------------------ connections

    def _accepted(self) -> "_Opening | HttpConnection":
        made = self.connection_class
        return _Opening(self) if made is None else made(self)

    def admit(self, connection: "HttpConnection | _Opening", host: str) -> bool:
        """Count a connection; False: there are too many."""
        server = self.server
        why = None
        if self.is_closing:
            return False
        if len(self.connections) >= CONNECTIONS_MAX and not self._make_room():
            why = f"{CONNECTIONS_MAX} are open, and there may be no more"
        elif server.has_no_descriptor_left():
            why = "more connections would take the files of the logs: raise the limit (ulimit -n)"
        if why is not None:
            self.refused_connections += 1
            if self._tells_refusals.is_due():
                logger.warning(
                    "refused an HTTP connection from %s: %s (%d so far)", host, why, self.refused_connections
                )
            return False
        self.connections[connection] = None
        server.connections_elsewhere += 1
        if self._sweep is None:  # only while there are connections
            self._sweep = self.env.upkeep.every(
                "HTTP connections",
                lambda: SWEEP_INTERVAL_MS,
                lambda: list(self.connections),
                lambda each: each.end_if_late(),
            )
        return True

    def _make_room(self) -> bool:
        """End the connection that waits for a request and has the least time left; False: all are asking.

        So clients that say nothing do not keep others out.
        """
        waiting = [connection for connection in self.connections if connection.is_waiting]
        if not waiting:
            return False
        silent = min(waiting, key=lambda connection: connection.deadline_ms)
        silent.close()
        self.forget(silent)
        return True

    def handed_on(self, connection: "HttpConnection", host: str) -> "HttpServer":
        """Whose a connection is when a later life answers its request: that life's, if it may have another one."""
        later = self.newest()
        if later is self or not later.admit(connection, host):
            return self
        self.forget(connection)
        return later

    def forget(self, connection: "HttpConnection | _Opening") -> None:
        """A connection is gone. Does nothing for one that was not admitted."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self.server.connections_elsewhere -= 1
        if not self.connections and self._sweep is not None:
            self._sweep.stop()
            self._sweep = None

    def hand_over(self, opening: "_Opening", connection: "HttpConnection") -> None:
        """A connection has got its protocol."""
        if opening in self.connections:
            del self.connections[opening]
            self.connections[connection] = None

    def load_soon(self) -> None:
        """Import what a connection needs before one comes, because one will."""
        self.env.clock.call_later(LOADED_AFTER_MS, self._load)

    def load(self, opening: "_Opening") -> None:
        """Import what a connection needs, in a thread; then `opening.begin`."""
        self._waiting.append(opening)
        if len(self._waiting) == 1:
            self._load()

    def _load(self) -> None:
        loading = self.env.clock.in_thread(_import)
        loading.on_failure = self._not_loaded
        loading.then(self._loaded)

    def _loaded(self, connection_class: "type[HttpConnection]") -> None:
        self.connection_class = connection_class
        waiting, self._waiting = self._waiting, []
        for opening in waiting:
            opening.begin(connection_class)

    def _not_loaded(self, error: Exception) -> None:
        logger.error("the HTTP API cannot be loaded: %s. Install Barnabas with its dependencies.", error)
        waiting, self._waiting = self._waiting, []
        for opening in waiting:
            opening.close()

    def note_failure(self, what: str, error: BaseException) -> None:
        """Count and log that a handler raised: a bug. Not each time, because a client may repeat its request."""
        self.handler_failures += 1
        if self.handler_failures <= TRACEBACKS_MAX or self.handler_failures % TRACEBACK_EVERY == 0:
            logger.error("%s failed (%s so far)", what, counted(self.handler_failures, "failure"), exc_info=error)


def _import() -> "type[HttpConnection]":
    from barnabas.broker.http.connection import HttpConnection  # late: it needs h11

    return HttpConnection


class _Opening(asyncio.Protocol):
    """A connection that waits until its protocol is imported. What comes meanwhile is kept."""

    is_sending = False
    is_waiting = False
    outlives_broker = False
    deadline_ms = float("inf")

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received: list[bytes] = []
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or refuse it."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not self._server.admit(self, str(peer[0]) if peer else ""):
            self._transport.abort()
            return
        self._server.load(self)

    def data_received(self, data: bytes) -> None:
        """Keep it, and read no more."""
        self._received.append(data)
        if self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more, but may wait for an answer."""
        self._has_ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.forget(self)

    def begin(self, connection_class: "Callable[[HttpServer], HttpConnection]") -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        connection = connection_class(self._server)
        self._server.hand_over(self, connection)
        transport.set_protocol(connection)
        connection.take_over(transport)
        if self._received:
            transport.resume_reading()
            connection.data_received(b"".join(self._received))
        if self._has_ended:
            connection.eof_received()

    def end_if_late(self) -> None:
        """The import ends it, or begins its requests."""

    def close_if_idle(self) -> None:
        """The broker stops: no request was read yet."""
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
