"""The client from broker to broker: one connection, made when it is needed, and made again after a loss.

Requests may be pipelined; their answers come in the order of the requests. An answer is read into one buffer of its
size, so that `records` of a Fetch answer are a view of that buffer: they go to the log without a copy.

The client decides nothing. A request gets its answer or None; what to do then, and when to try again, is the caller's.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from barnabas.cluster.broker_login import BrokerLogin, login_of
from barnabas.cluster.metadata_cache import Endpoint, MetadataCache
from barnabas.cluster.security.mechanism import AuthenticationError
from barnabas.config.broker import BrokerConfig
from barnabas.config.settings import ConfigError
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode, ProtocolError
from barnabas.protocol.frames import EncodedFrame
from barnabas.protocol.message import Message
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer, Env, Timer

if TYPE_CHECKING:
    from ssl import SSLContext

    from barnabas.cluster.security.tls import ListenerTls
    from barnabas.runtime.tls import HandshakeError, TlsTransport

logger = logging.getLogger("barnabas.cluster")

FRAME_SIZE = Struct(">i")
ANSWER_BYTES_MAX = 1 << 30  # a fetched batch may be as large as message.max.bytes of the leader allows
START_BYTES = 8192  # of an answer, read together with its size; small answers are complete in it
CORRELATION_IDS = 1 << 31
RETIRED_AFTER = 0.8  # of the time for which a login counts
TOLD_EVERY_MS = 60_000.0


class _Request(NamedTuple):
    correlation_id: int
    message: Message
    version: int
    deadline_ms: float
    pending: Pending[Any]


class _Connection(asyncio.BufferedProtocol):
    """One connection from its attempt to its loss, and the requests that were given to it."""

    def __init__(self, client: "BrokerClient") -> None:
        self.is_lost = False
        self._client = client
        self._env = client.env
        self._transport: asyncio.Transport | None = None  # None: not connected yet
        self._waiting: deque[_Request] = deque()  # for an answer, in order
        self._unwritten: deque[_Request] = deque()  # those of them that were not written yet
        self._login: BrokerLogin | None = None  # until it is complete, nothing else is written
        self._retirement: Timer | None = None  # when the login ends, later requests take another connection
        self._is_retired = False
        self._encoding: Pending[EncodedFrame] | None = None  # of a request that is encoded in turns
        self._timer: Timer | None = None  # for the oldest request
        self._start = bytearray(START_BYTES)
        self._started = 0  # bytes of the next answer in `_start`
        self._frame: bytearray | None = None  # the answer that is being received, if it is not complete in `_start`
        self._filled = 0
        self._attempt = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        endpoint = self._client.endpoint
        try:
            await self._env.network.connect(endpoint.host, endpoint.port, self._protocol)
        except (OSError, ValueError) as error:  # ValueError: the host cannot be a name
            self.lose(f"cannot connect: {error}")

    def _protocol(self) -> asyncio.BaseProtocol:
        tls = self._client.tls
        if tls is None:
            return self
        from barnabas.runtime.tls import TlsSide, TlsTransport  # late: most brokers have none

        host, failed = self._client.endpoint.host, self._handshake_failed
        side = TlsSide(self._env.clock, self._env.turns, tls, on_failure=failed, server_hostname=host)
        return TlsTransport(side, self)

    def _handshake_failed(self, transport: "TlsTransport", error: "HandshakeError") -> None:
        self._cannot_log_in(error)

    # ------------------------------------------------------------------ requests

    def send(self, request: _Request) -> None:
        """Write the request as soon as the connection is made and those before it are written."""
        self._waiting.append(request)
        self._unwritten.append(request)
        if self._timer is None:
            self._set_timer()
        self._write()

    def _write(self) -> None:
        while self._unwritten and self._transport is not None and self._encoding is None and self._login is None:
            request = self._unwritten.popleft()
            encoding = frames.encode_request_in_pieces(
                request.message.API_KEY,
                request.version,
                request.correlation_id,
                self._client.client_id,
                request.message,
            )
            try:
                encoded = self._env.turns.run(encoding)
            except Exception as error:
                self._cannot_encode(error)
                return
            if isinstance(encoded, Pending):
                self._encoding = encoded
                encoded.on_failure = self._cannot_encode
                encoded.then(self._encoded)
            else:
                self._transport.writelines(cast(list[Buffer], encoded.parts))

    def _encoded(self, encoded: EncodedFrame) -> None:
        self._encoding = None
        if self._transport is not None and not self.is_lost:
            self._transport.writelines(cast(list[Buffer], encoded.parts))
            self._write()

    def _cannot_encode(self, error: Exception) -> None:
        logger.error("a request to %s cannot be encoded", self._client.name, exc_info=error)
        self.lose("a request cannot be encoded")

    def _set_timer(self) -> None:
        delay_ms = self._waiting[0].deadline_ms - self._env.clock.monotonic_ms()
        self._timer = self._env.clock.call_later(max(delay_ms, 0.0), self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        if self._waiting[0].deadline_ms > self._env.clock.monotonic_ms():
            self._set_timer()
        else:
            self.lose(f"no answer within {self._client.request_timeout_ms} ms")

    # ------------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Log in if need be, and write what was asked for meanwhile."""
        self._transport = cast(asyncio.Transport, transport)
        if self.is_lost:
            self._transport.abort()
            return
        try:
            self._login = self._client.login()
        except ConfigError as error:
            self._cannot_log_in(error)
            return
        if self._login is not None:
            self._transport.write(self._login.first_frame())
        else:
            self._write()

    def _log_in(self, frame: bytearray) -> None:
        """Take the answer to a step of the login."""
        assert self._login is not None
        assert self._transport is not None
        try:
            following = self._login.step(frame)
        except AuthenticationError as error:
            self._cannot_log_in(error)
        except ProtocolError as error:
            self._cannot_read(error)
        else:
            if following is not None:
                self._transport.write(following)
                return
            lifetime_ms = self._login.session_lifetime_ms
            self._login = None
            if lifetime_ms:
                self._retirement = self._env.clock.call_later(lifetime_ms * RETIRED_AFTER, self._retire)
            self._write()

    def _cannot_log_in(self, error: Exception) -> None:
        self._client.tell_failed_login(error)
        self.lose(f"cannot log in: {error}")

    def _retire(self) -> None:
        """Take no more requests, because the login will not count much longer, and end with the last answer."""
        self._retirement = None
        self._is_retired = True
        self._client.forget(self)
        if not self._waiting:
            self.lose("the login ends soon")

    def get_buffer(self, sizehint: int) -> Buffer:
        """Where the next bytes go: into the answer that is being received, or where its start is looked at."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._start)[self._started :]

    def buffer_updated(self, nbytes: int) -> None:
        """Give complete answers to those who wait for them."""
        if self.is_lost:
            return
        frame = self._frame
        if frame is not None:
            self._filled += nbytes
            if self._filled == len(frame):
                self._frame = None
                self._answered(frame)
            return
        end = self._started + nbytes
        position = 0
        while end - position >= 4:
            (size,) = FRAME_SIZE.unpack_from(self._start, position)
            try:
                frames.check_frame_size(size, ANSWER_BYTES_MAX)
            except ProtocolError as error:
                self._cannot_read(error)
                return
            begin = position + 4
            if begin + size > end:
                if begin + size > START_BYTES:
                    self._begin_frame(size, begin, end)
                    return
                break
            position = begin + size
            self._answered(self._start[begin:position])
            if self.is_lost:
                return
        self._start[: end - position] = self._start[position:end]
        self._started = end - position

    def _begin_frame(self, size: int, begin: int, end: int) -> None:
        self._frame = bytearray(size)
        self._filled = end - begin
        self._frame[: self._filled] = memoryview(self._start)[begin:end]
        self._started = 0

    def _answered(self, frame: bytearray) -> None:
        if self._login is not None:
            self._log_in(frame)
            return
        if not self._waiting:
            self._cannot_read(ProtocolError("an answer that nobody has asked for"))
            return
        request = self._waiting[0]
        try:
            correlation_id, message = frames.decode_response(request.message.API_KEY, request.version, frame)
        except ProtocolError as error:
            self._cannot_read(error)
            return
        if correlation_id != request.correlation_id:
            what = f"the answer to request {correlation_id}, where {request.correlation_id} is next"
            self._cannot_read(ProtocolError(what))
            return
        self._waiting.popleft()
        if getattr(message, "error_code", 0) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._client.tell_missing_right(request.message)
        request.pending.complete(message)
        if self._is_retired and not self._waiting:
            self.lose("the login ends soon")

    def _cannot_read(self, error: ProtocolError) -> None:
        logger.warning("closing the connection to %s: %s", self._client.name, error)
        self.lose(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose("the connection is lost")

    def lose(self, why: str) -> None:
        """End it. All that wait get None, in later callbacks, so that they may send again."""
        if self.is_lost:
            return
        self.is_lost = True
        logger.debug("%s: %s", self._client.name, why)
        self._client.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._retirement is not None:
            self._retirement.cancel()
            self._retirement = None
        if self._encoding is not None:
            self._encoding.cancel()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._attempt.cancel()
        self._frame = None
        for request in self._waiting:
            self._env.clock.call_soon(partial(request.pending.complete, None))
        self._waiting.clear()
        self._unwritten.clear()


class BrokerClient:
    """Sends requests to one broker."""

    def __init__(
        self,
        env: Env,
        endpoint: Endpoint,
        client_id: str,
        request_timeout_ms: float,
        config: BrokerConfig | None = None,
        tls: "Callable[[], SSLContext] | None" = None,
    ) -> None:
        """`config` says how to log in; None: the listener wants no login. `tls` None: it has no TLS."""
        self._config = config
        self.tls = tls
        self._tells = NowAndThen(env.clock, TOLD_EVERY_MS)  # that a login has failed, or that a right is missing
        self.env = env
        self.endpoint = endpoint
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self._connection: _Connection | None = None
        self._next_correlation_id = 0
        self._is_closed = False

    @property
    def name(self) -> str:
        """What the log calls it."""
        return f"{self.endpoint.host}:{self.endpoint.port} ({self.client_id})"

    def send(self, request: Message, version: int) -> Pending[Any]:
        """The answer, or None: the connection was refused or lost, or no answer came in time.

        If no answer comes in time, the connection is closed, and all that wait on it get None. Long requests are
        encoded in turns with other tasks, so the request must not change until it is answered. Never raises.
        """
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % CORRELATION_IDS
        deadline_ms = self.env.clock.monotonic_ms() + self.request_timeout_ms
        if self._is_closed:
            return Pending.of(None)
        asked = _Request(correlation_id, request, version, deadline_ms, Pending())
        if self._connection is None:
            self._connection = _Connection(self)
        self._connection.send(asked)
        return asked.pending

    def login(self) -> BrokerLogin | None:
        """A new login; None: there is none to do. ConfigError: the settings do not say how."""
        return None if self._config is None else login_of(self.env, self._config, self.client_id)

    def tell_failed_login(self, error: Exception) -> None:
        """Log it now and then: the next request tries again."""
        if self._tells.is_due():
            logger.error("cannot log in to %s: %s", self.name, error)

    def tell_missing_right(self, request: Message) -> None:
        """Log it now and then: until somebody gives the right, this broker is none for the other one."""
        if self._config is not None and self._tells.is_due():
            logger.error(
                "%s refuses %s (CLUSTER_AUTHORIZATION_FAILED): it does not know this broker as one. Name the user of "
                "this broker in super.users of that one, whose log has the name, and start it again; or give that user "
                "the right: barnabas acls add User:NAME cluster-action cluster",
                *(self.name, ApiKey(request.API_KEY).kafka_name),
            )

    def forget(self, connection: _Connection) -> None:
        """A connection is lost: the next request makes another."""
        if self._connection is connection:
            self._connection = None

    def close(self) -> None:
        """End the connection; all that wait get None, and so do all later requests."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.lose("closed")


class BrokerClients:
    """The clients to the brokers that the metadata cache knows, by broker and purpose.

    A broker that is gone, or has another address, answers nothing any more: what waits for it gets None at once.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        metadata_cache: MetadataCache,
        tls: "ListenerTls | None" = None,
    ) -> None:
        self._env = env
        self._config = config
        self._tls = None if tls is None else tls.client_context
        self._metadata_cache = metadata_cache
        self._clients: dict[tuple[int, str], BrokerClient] = {}
        self._is_closed = False
        metadata_cache.on_brokers.append(self._close_outdated)

    def to(
        self,
        broker_id: int,
        purpose: str,
        request_timeout_ms: float | None = None,
        client_id: str | None = None,
    ) -> BrokerClient | None:
        """The client to a live broker for one purpose; None if the broker is not known.

        It is made at the first call, and made anew when the broker has another address, or was gone.
        `request_timeout_ms` counts then; without it, it is controller.socket.timeout.ms. So does `client_id`; without
        it, it says which broker asks, and for what.
        """
        endpoint = self._endpoint(broker_id)
        if endpoint is None or self._is_closed:
            return None
        key = (broker_id, purpose)
        client = self._clients.get(key)
        if client is None:
            timeout_ms = self._config.controller_socket_timeout_ms if request_timeout_ms is None else request_timeout_ms
            if client_id is None:
                client_id = f"broker-{self._config.node_id}-{purpose}"
            client = self._clients[key] = BrokerClient(
                self._env, endpoint, client_id, timeout_ms, self._config, self._tls
            )
        return client

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        broker = self._metadata_cache.brokers.get(broker_id)
        return broker.endpoint(self._config.inter_broker_listener) if broker is not None else None

    def _close_outdated(self) -> None:
        for (broker_id, purpose), client in list(self._clients.items()):
            if client.endpoint != self._endpoint(broker_id):
                self.drop(broker_id, purpose)

    def drop(self, broker_id: int, purpose: str) -> None:
        """Close a client, if there is one. The next call of `to` makes another."""
        client = self._clients.pop((broker_id, purpose), None)
        if client is not None:
            client.close()

    def close(self) -> None:
        """Close all connections. No client is given out any more."""
        self._is_closed = True
        for broker_id, purpose in list(self._clients):
            self.drop(broker_id, purpose)
