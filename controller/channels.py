"""Channels from the controller to brokers: an ordered one to each life of each broker.

What they promise. Requests reach a broker in the order in which they were sent, one at a time. A request is sent again
every 100 ms until it is answered, the broker is gone, or the controllership ends. So a broker may get a request twice,
and the epochs in it make the second one harmless. An answer counts only for the controllership and for the life of the
broker (its broker epoch) to which the request was sent; a later one is dropped.

The broker of this process gets its requests without a socket.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from barnabas.cluster.broker_client import BrokerClient
from barnabas.cluster.registration import LiveBroker
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Env, Timer

if TYPE_CHECKING:
    from ssl import SSLContext

    from barnabas.cluster.security.tls import ListenerTls

logger = logging.getLogger("barnabas.controller")

RETRY_BACKOFF_MS = 100

ControlRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
ControlResponse = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse
Done = Callable[[ControlResponse | None], None]

# The versions of Kafka 3.9.
_VERSIONS: dict[type[ControlRequest], int] = {LeaderAndIsrRequest: 7, UpdateMetadataRequest: 8, StopReplicaRequest: 4}
_FAILURES: dict[type[ControlRequest], type[ControlResponse]] = {
    LeaderAndIsrRequest: LeaderAndIsrResponse,
    UpdateMetadataRequest: UpdateMetadataResponse,
    StopReplicaRequest: StopReplicaResponse,
}


class Receiver(Protocol):
    """The broker that does what the controller says: its replica manager."""

    @property
    def node_id(self) -> int:
        """The id of the broker."""

    def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Lead or follow partitions."""

    def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Know the cluster."""

    def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop, and perhaps delete, replicas."""


class _Channel:
    """The requests to one life of a broker. One is in flight; the loop goes round between two of them."""

    def __init__(self, clock: Clock, broker: LiveBroker) -> None:
        self.broker = broker
        self._clock = clock
        self._waiting: deque[tuple[ControlRequest, Done]] = deque()  # the first of them is in flight
        self._retry: Timer | None = None
        self._has_ended = False

    def send(self, request: ControlRequest, done: Done) -> None:
        self._waiting.append((request, done))
        if len(self._waiting) == 1:
            self._clock.call_soon(self._send_first)

    def _send_first(self) -> None:
        self._retry = None
        if not self._has_ended:
            self._reach(self._waiting[0][0]).then(self._answered)

    def _reach(self, request: ControlRequest) -> Pending[ControlResponse | None]:
        raise NotImplementedError

    def _answered(self, response: ControlResponse | None) -> None:
        if self._has_ended:
            return
        if response is None:
            self._retry = self._clock.call_later(RETRY_BACKOFF_MS, self._send_first)
            return
        _, done = self._waiting.popleft()
        if self._waiting:
            self._clock.call_soon(self._send_first)
        done(response)

    def end(self) -> list[Done]:
        """Send nothing more. Returns what was to be called with the answers."""
        self._has_ended = True
        if self._retry is not None:
            self._retry.cancel()
        unanswered = [done for _, done in self._waiting]
        self._waiting.clear()
        return unanswered

    def renew(self, broker: LiveBroker) -> None:
        """The same life of the broker has other addresses."""
        self.broker = broker


class _LocalChannel(_Channel):
    """To the broker of this process, which handles one request in a pass of the loop, so that clients are served."""

    def __init__(self, clock: Clock, broker: LiveBroker, receiver: Receiver) -> None:
        super().__init__(clock, broker)
        self._receiver = receiver

    def _reach(self, request: ControlRequest) -> Pending[ControlResponse | None]:
        try:
            return Pending.of(self._handle(request))
        except Exception:  # a bug: without an answer the controller would wait for ever
            logger.exception("%s of this broker's own controller failed", type(request).__name__)
            return Pending.of(_FAILURES[type(request)](error_code=ErrorCode.UNKNOWN_SERVER_ERROR))

    def _handle(self, request: ControlRequest) -> ControlResponse:
        if isinstance(request, LeaderAndIsrRequest):
            return self._receiver.leader_and_isr(request)
        if isinstance(request, UpdateMetadataRequest):
            return self._receiver.update_metadata(request)
        return self._receiver.stop_replica(request)


class _RemoteChannel(_Channel):
    """To another broker, by a connection of its own."""

    def __init__(
        self, env: Env, config: BrokerConfig, broker: LiveBroker, tls: "Callable[[], SSLContext] | None"
    ) -> None:
        super().__init__(env.clock, broker)
        self._env = env
        self._config = config
        self._tls = tls
        self._client = self._connect()

    def _connect(self) -> BrokerClient | None:
        listener = self._config.inter_broker_listener
        for endpoint in self.broker.endpoints:
            if endpoint.listener == listener:
                client_id = f"broker-{self._config.node_id}-controller"
                timeout_ms = self._config.controller_socket_timeout_ms
                return BrokerClient(self._env, endpoint, client_id, timeout_ms, self._config, self._tls)
        logger.error("cannot reach broker %d: it has no listener %s", self.broker.broker_id, listener)
        return None

    def _reach(self, request: ControlRequest) -> Pending[ControlResponse | None]:
        return Pending.of(None) if self._client is None else self._client.send(request, _VERSIONS[type(request)])

    def renew(self, broker: LiveBroker) -> None:
        super().renew(broker)
        former, self._client = self._client, self._connect()
        if former is not None:
            former.close()

    def end(self) -> list[Done]:
        unanswered = super().end()
        if self._client is not None:
            self._client.close()
        return unanswered


class BrokerChannels:
    """Carries the controller's requests to all live brokers; `receiver` is the one of this process."""

    def __init__(self, env: Env, config: BrokerConfig, receiver: Receiver, tls: "ListenerTls | None" = None) -> None:
        self._env = env
        self._config = config
        self._tls = None if tls is None else tls.client_context
        self._receiver = receiver
        self._channels: dict[int, _Channel] = {}
        self._term = 0  # counts the controllerships of this broker

    def set_live_brokers(self, brokers: Mapping[int, LiveBroker]) -> None:
        """Say which brokers live. To be called with each change, before the first request to a new life is sent.

        What waits for a broker that is gone, or that lives a new life (another epoch), is not sent any more: its `done`
        is called with None. The channel to a broker that has other addresses connects anew.
        """
        for broker_id, channel in list(self._channels.items()):
            broker = brokers.get(broker_id)
            if broker is None or broker.epoch != channel.broker.epoch:
                del self._channels[broker_id]
                for done in channel.end():
                    self._give_up(done)
            elif broker.endpoints != channel.broker.endpoints:
                channel.renew(broker)
        for broker_id, broker in brokers.items():
            if broker_id not in self._channels:
                self._channels[broker_id] = self._channel(broker)

    def _channel(self, broker: LiveBroker) -> _Channel:
        if broker.broker_id == self._receiver.node_id:
            return _LocalChannel(self._env.clock, broker, self._receiver)
        return _RemoteChannel(self._env, self._config, broker, self._tls)

    def send(self, broker_id: int, request: ControlRequest, done: Done) -> None:
        """Send; `done` is called later with the answer, or with None when the broker went away first."""
        channel = self._channels.get(broker_id)
        if channel is None:
            self._give_up(done)
        else:
            channel.send(request, done)

    def _give_up(self, done: Done) -> None:
        self._env.clock.call_soon(partial(self._tell_gone, self._term, done))

    def _tell_gone(self, term: int, done: Done) -> None:
        if term == self._term:
            done(None)

    def end_term(self) -> None:
        """The controllership is over: forget the brokers and what waits. No `done` of this term is called any more."""
        self._term += 1
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.end()
