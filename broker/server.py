"""The listeners of a broker, and the connections that they accepted."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from barnabas.broker.arrivals import Arrivals
from barnabas.broker.connection import Connection
from barnabas.broker.crowds import Crowds
from barnabas.broker.logins import ListenerLogins
from barnabas.broker.read_buffers import ReadBuffer
from barnabas.broker.refusals import OnceAMinute
from barnabas.broker.requests import Api, RequestGate
from barnabas.broker.senders import Senders
from barnabas.config.addresses import as_java
from barnabas.config.broker import BrokerConfig
from barnabas.config.listeners import HTTPS, Endpoint, url_of
from barnabas.config.sasl import protocol_of
from barnabas.config.settings import address_limits
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.runtime.counted import counted
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.ports import Env, Listener
from barnabas.runtime.upkeep import Task
from barnabas.storage.open_files import share_out

if TYPE_CHECKING:
    from barnabas.broker.throttles import Throttles
    from barnabas.cluster.security.tls import ListenerTls
    from barnabas.runtime.tls import HandshakeError, TlsTransport

logger = logging.getLogger("barnabas.broker")

REFUSALS_TOLD_EVERY_MS = 1_000
API_KEYS_MAX = 128
SUBJECT_CHARACTERS_MAX = 200  # of a certificate, in the log
SWEEP_INTERVAL_MAX_MS = 60_000.0
IDLE_SWEEPS_PER_SPAN = 10  # so an idle connection lives at most a tenth longer than connections.max.idle.ms


class Server:
    """Opens listeners; counts and limits connections; closes idle ones; counts requests."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        gate: RequestGate,
        logins: Mapping[str, ListenerLogins] = MappingProxyType({}),
        tls: "Mapping[str, ListenerTls]" = MappingProxyType({}),
        rate_of: Callable[[str], float | None] = lambda address: None,
    ) -> None:
        """`rate_of`: how many connections may come from an address in a second (None: any number)."""
        self.env = env
        self.config = config
        self.gate = gate
        self.arrivals = Arrivals(env.clock, config, rate_of)
        self.throttles: Throttles | None = None  # None: no client has a quota
        self.logins = logins  # of the listeners whose clients log in
        self.tls = tls  # of the listeners that have it
        for each in logins.values():
            each.on_failure = self.note_failed_login
            each.on_end = self.note_ended_login
        self.read_buffer = ReadBuffer()
        self.senders = Senders(env.clock)
        self.crowds = Crowds(env.clock, env.turns)
        self._unreadable: OnceAMinute[tuple[str, str]] = OnceAMinute(env.clock)
        self.frame_bytes_max = config.socket_request_max_bytes
        self.connections: dict[Connection, None] = {}
        self._waiting: dict[Connection, None] = {}  # beyond max.connections; no client of them is served
        self.ports: dict[str, int] = {}  # listener name -> the port in use
        self.is_reading = False  # until then connections are accepted, but no request is handled
        self.serving = False  # until then only requests of brokers are handled
        self.accepted = 0  # connections so far
        self.requests_of = [0] * API_KEYS_MAX  # by API key
        self.protocol_errors = 0
        self.refused_connections = 0
        self.failed_logins = 0
        self.ended_logins = 0  # of clients that have not logged in again
        self.last_told = -1, 0  # the latest controller epoch, and the number of its newest connection
        self._listeners: list[Listener] = []
        self._connections_of: dict[str, int] = {}  # client host -> connections
        self._sweep: Task[Connection] | None = None
        config.on_change.append(self._settings_changed)
        self.connections_elsewhere = 0  # of the HTTP API; they take descriptors, too
        self._descriptors = share_out(env.disk.open_files_max()).connections
        self._tells_refusals = NowAndThen(env.clock, REFUSALS_TOLD_EVERY_MS)

    @property
    def requests(self) -> int:
        """Requests so far, of all APIs."""
        return sum(self.requests_of)

    async def reserve(self, endpoints: Sequence[Endpoint]) -> None:
        """Bind the addresses; no client can connect yet. OSError when an address cannot be bound."""
        backlog = self.config.socket_listen_backlog_size
        for endpoint in endpoints:
            factory = self._factory(endpoint.name)
            listener = await self.env.network.listen(endpoint.host, endpoint.port, factory, backlog)
            self._listeners.append(listener)
            self.ports[endpoint.name] = listener.port

    def _factory(self, name: str) -> Callable[[], asyncio.BaseProtocol]:
        """Makes the protocol of each connection of a listener."""
        tls = self.tls.get(name)
        if tls is None:
            return partial(Connection, self, name)
        from barnabas.runtime.tls import TlsSide, TlsTransport  # late: most brokers have none

        known, failed = partial(self._take_certificate, tls), partial(self.note_failed_handshake, name)
        side = TlsSide(self.env.clock, self.env.turns, tls.server_context, known, failed)
        return lambda: TlsTransport(side, Connection(self, name))

    async def listen(self) -> None:
        """Accept connections at the addresses that are bound. Requests wait for `read` and `serve`."""
        for listener in self._listeners:
            await listener.accept()
        self._sweep = self.env.upkeep.every(
            "idle connections", self._sweep_interval_ms, lambda: list(self.connections), self._abort_if_idle
        )

    def note_unreadable(self, client_host: str, kind: str, what: str) -> None:
        """A connection is closed because of bytes that are no request. The log has the first of a kind in a minute."""
        self.protocol_errors += 1
        self._say_once((client_host, kind), "closing the connection of %s: %s%s", client_host, what)

    def note_failed_login(self, client_host: str, why: str) -> None:
        """A client has failed to log in. The log has the first of a kind in a minute."""
        self.failed_logins += 1
        self._say_once((client_host, why), "a login from %s has failed: %s%s", client_host, why)

    def note_ended_login(self, client_host: str, who: str) -> None:
        """A client whose login had ended has asked for something else than a new one: many libraries know of none."""
        self.ended_logins += 1
        line = "closing the connection of %s: %s has not logged in again in time; the client connects anew%s"
        self._say_once((client_host, who), line, client_host, who, logging.INFO)

    def note_failed_handshake(self, listener: str, transport: "TlsTransport", error: "HandshakeError") -> None:
        """A client has failed to speak TLS. The log has the first of a kind in a minute."""
        peer = transport.get_extra_info("peername")
        client_host = as_java(str(peer[0])) if peer else ""
        if error.plain:
            spoken = frames.foreign_protocol(error.plain[:4]) or "Kafka's protocol or another one"
            wanted = f"set security.protocol={protocol_of(self.config, listener)} in the client"
            if listener == HTTPS:
                wanted = f"ask {url_of(self.config.http_address or '')}"
            what = f"it speaks {spoken} without TLS, and this port has TLS: {wanted}"
            self.note_unreadable(client_host, f"{spoken} without TLS", what)
        else:
            self.failed_logins += 1
            line = f"a TLS handshake with %s (listener {listener}) has failed: %s%s"
            self._say_once((client_host, str(error)), line, client_host, str(error))

    def _take_certificate(self, tls: "ListenerTls", transport: "TlsTransport") -> None:
        """The client of a connection has shown who it is, unless it logs in later, or wants to be nobody."""
        connection = cast(Connection, transport.above)
        certificate = transport.peer_certificate()
        if certificate is None or tls.listener in self.logins:
            return
        user = tls.user_of(certificate)
        if user is None:
            subject = tls.subject_of(certificate)[:SUBJECT_CHARACTERS_MAX]
            why = f"no rule of ssl.principal.mapping.rules applies to the subject of its certificate, {subject!r}"
            self.note_failed_login(connection.client_host, why)
            connection.close()
        else:
            connection.logged_in(f"User:{user}", for_good=True)

    def _say_once(
        self, key: tuple[str, str], line: str, client_host: str, what: str, level: int = logging.WARNING
    ) -> None:
        level = level if self._unreadable.is_first(key) else logging.DEBUG
        if logger.isEnabledFor(level):
            more = self._unreadable.take_before(key)
            text = f" ({more:,} more of this kind in the minute before)" if more else ""
            logger.log(level, line, client_host.removeprefix("/"), what, text)

    def words_for_foreign(self, protocol: str) -> str:
        """What is said of a client that speaks another protocol than Kafka's."""
        if protocol == "TLS":
            ports = [str(port) for name, port in self.ports.items() if name in self.tls]
            there = f", or ask port {' or '.join(ports)}" if ports else ""
            return (
                "it speaks TLS, and this port has Kafka's protocol without it: set security.protocol to PLAINTEXT or "
                "SASL_PLAINTEXT in the client" + there
            )
        address = self.config.http_address
        there = f"the HTTP API is at {url_of(address)}" if address else "there is no HTTP API (http.listeners=none)"
        return f"it speaks {protocol}, and this port has Kafka's protocol; {there}"

    def read(self) -> None:
        """Handle the requests of other brokers from now on."""
        self.is_reading = True
        for connection in [*self.connections, *self._waiting]:
            connection.begin()

    def serve(self) -> None:
        """Handle all requests from now on."""
        self.serving = True
        if not self.is_reading:
            self.read()
        for connection in list(self.connections):
            connection.open_gate()

    def stop_accepting(self) -> None:
        """Close the listeners; the connections stay open."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        self.stop_accepting()
        if self._sweep is not None:
            self._sweep.stop()
            self._sweep = None
        waiting, self._waiting = self._waiting, {}
        for connection in [*waiting, *self.connections]:
            connection.close()
        self.arrivals.close()

    # ------------------------------------------------------------------ connections

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection, or let it wait for a place. Returns why it is refused, or None.

        Beyond max.connections Kafka stops accepting, and new connections wait in the listener. Here they are accepted,
        but no request of a client is handled until another one goes; socket.listen.backlog.size of them may wait.
        Connections beyond the limit of one address are refused at once. If brokers have a listener of their own, it is
        not limited, as in Kafka.
        """
        if self.has_no_descriptor_left():
            return f"{self._descriptors} are open, more would take the files of the logs: raise the limit (ulimit -n)"
        if self.arrivals.is_full(connection.listener_name):
            return "they come too fast (max.connection.creation.rate), and as many wait as may"
        if self.arrivals.come(connection, partial(self._admit_late, connection)):
            return self._place(connection)
        return None

    def _admit_late(self, connection: Connection) -> None:
        """A connection has come too fast, and has waited."""
        refusal = self._place(connection)
        if refusal is not None:
            self.note_refused_connection(connection.client_host, refusal)
            connection.close()
            return
        connection.is_gated = not self.is_served(connection)
        connection.last_active_ms = self.env.clock.monotonic_ms()
        if self.is_reading:
            connection.begin()

    def _place(self, connection: Connection) -> str | None:
        """Give a connection a place, or let it wait for one. Returns why it is refused, or None."""
        is_protected = self.arrivals.is_protected(connection.listener_name)
        if len(self.connections) >= self.config.max_connections and not is_protected:
            if len(self._waiting) >= self.config.socket_listen_backlog_size:
                return f"max.connections={self.config.max_connections} are open, and as many wait as may"
            self._waiting[connection] = None
            return None
        host = connection.client_host
        limit = self._limit_of(host)
        if self._connections_of.get(host, 0) >= limit:
            return f"{counted(limit, 'connection')} of its address are open"
        self._give_place(connection)
        return None

    def has_no_descriptor_left(self) -> bool:
        """Whether another connection would take a descriptor that is for the logs."""
        waiting = len(self._waiting) + len(self.arrivals.waiting)
        return len(self.connections) + waiting + self.connections_elsewhere >= self._descriptors

    def is_served(self, connection: Connection) -> bool:
        """Whether the connection has a place, and the broker serves."""
        return self.serving and connection in self.connections

    def may_pass(self, connection: Connection, api: Api, request: Any) -> bool:
        """Whether the request of a connection at the gate is handled now. Gives a broker's connection a place."""
        if self.gate.is_of_broker(api, request, connection):
            if connection in self._waiting:
                del self._waiting[connection]
                self._give_place(connection)
                connection.is_gated = not self.serving
            return True
        # A broker of Kafka asks for the versions first. Clients may ask, too; but not while they wait for a place.
        return api.key == ApiKey.API_VERSIONS and connection in self.connections

    def is_late(self, connection: Connection, api: Api, request: Any) -> bool:
        """Whether a controller's request comes by a connection older than one that the controller has used since.

        It has given that connection up, and has sent the request again by the newer one. Meanwhile a topic may have
        been deleted and made again under its name, and a StopReplica does not say which of the two it means.
        """
        if not isinstance(request, LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest):
            return False
        if not self.gate.is_of_broker(api, request, connection):
            return False  # the gate refuses it; and who may not say anything must not make the controller late
        epoch, number = self.last_told
        if request.controller_epoch == epoch and connection.number < number:
            logger.info("ignored a late request of the controller: it has used a newer connection since")
            return True
        if request.controller_epoch >= epoch:
            self.last_told = request.controller_epoch, connection.number
        return False

    def _give_place(self, connection: Connection) -> None:
        host = connection.client_host
        self._connections_of[host] = self._connections_of.get(host, 0) + 1
        self.connections[connection] = None

    def _admit_waiting(self) -> None:
        while self._waiting and len(self.connections) < self.config.max_connections:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            refusal = self._place(connection)
            if refusal is not None:
                self.note_refused_connection(connection.client_host, refusal)
                connection.close()
            else:
                connection.last_active_ms = self.env.clock.monotonic_ms()
                if self.serving:
                    connection.open_gate()

    def _settings_changed(self, names: frozenset[str]) -> None:
        if "max.connections" in names:
            self._admit_waiting()

    def note_refused_connection(self, host: str, why: str) -> None:
        """Count a refused connection. Log it once a second at most, because a client that is refused comes again."""
        self.refused_connections += 1
        if self._tells_refusals.is_due():
            logger.warning("refused a connection from %s: %s (%d so far)", host, why, self.refused_connections)

    def _limit_of(self, host: str) -> int:
        limits = address_limits(self.config.max_connections_per_ip_overrides)
        return limits.get(host[1:], self.config.max_connections_per_ip)

    def forget(self, connection: Connection) -> None:
        """A connection is gone: its place is free. Does nothing for one that was refused."""
        self._waiting.pop(connection, None)
        self.arrivals.forget(connection)
        if connection not in self.connections:
            return
        del self.connections[connection]
        left = self._connections_of[connection.client_host] - 1
        if left:
            self._connections_of[connection.client_host] = left
        else:
            del self._connections_of[connection.client_host]
        self._admit_waiting()

    def _sweep_interval_ms(self) -> float:
        span_ms = self.config.connections_max_idle_ms
        return SWEEP_INTERVAL_MAX_MS if span_ms < 0 else min(span_ms / IDLE_SWEEPS_PER_SPAN, SWEEP_INTERVAL_MAX_MS)

    def _abort_if_idle(self, connection: Connection) -> None:
        """Close a connection from which nothing has come for connections.max.idle.ms."""
        span_ms = self.config.connections_max_idle_ms
        idle_ms = self.env.clock.monotonic_ms() - connection.last_active_ms
        if 0 <= span_ms <= idle_ms:
            connection.end_idleness()
