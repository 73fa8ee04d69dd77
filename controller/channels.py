"""Channels from the controller to brokers, one ordered channel to each. The local one calls the replica manager."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from barnabas.runtime.ports import Clock

logger = logging.getLogger("barnabas.controller")

ControlRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
ControlResponse = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse

_FAILURES: dict[type[ControlRequest], type[ControlResponse]] = {
    LeaderAndIsrRequest: LeaderAndIsrResponse,
    UpdateMetadataRequest: UpdateMetadataResponse,
    StopReplicaRequest: StopReplicaResponse,
}


class BrokerChannel(Protocol):
    """Carries the controller's requests, to each broker in the order they were sent."""

    def send(self, broker_id: int, request: ControlRequest, done: Callable[[ControlResponse | None], None]) -> None:
        """Send; `done` is called later with the answer, or None when the broker went away first."""


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


class LocalChannel:
    """The channel to the broker of this process: requests go through the loop, not through a socket.

    The loop handles one request per pass, so that clients are served between two of them.
    """

    def __init__(self, clock: Clock, receiver: Receiver) -> None:
        self._clock = clock
        self._receiver = receiver
        self._waiting: deque[Callable[[], None]] = deque()

    def send(self, broker_id: int, request: ControlRequest, done: Callable[[ControlResponse | None], None]) -> None:
        """Have the replica manager handle the request after the current event."""
        assert broker_id == self._receiver.node_id

        def deliver() -> None:
            try:
                response = self._handle(request)
            except Exception:  # a bug: without an answer the controller would wait for ever
                logger.exception("%s could not be handled", type(request).__name__)
                response = _FAILURES[type(request)](error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            done(response)

        self._waiting.append(deliver)
        if len(self._waiting) == 1:
            self._clock.call_soon(self._deliver_next)

    def _handle(self, request: ControlRequest) -> ControlResponse:
        if isinstance(request, LeaderAndIsrRequest):
            return self._receiver.leader_and_isr(request)
        if isinstance(request, UpdateMetadataRequest):
            return self._receiver.update_metadata(request)
        return self._receiver.stop_replica(request)

    def _deliver_next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._clock.call_soon(self._deliver_next)
