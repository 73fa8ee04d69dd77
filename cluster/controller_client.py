"""What a broker asks the controller, wherever it is: in another broker, by a connection; here, without one."""

import logging
from collections.abc import Callable
from typing import Any

from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.protocol.message import Message
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock

logger = logging.getLogger("barnabas.cluster")

PURPOSE = "to-controller"

# Asks the controller, wherever it is, with a request in a version. None: it did not answer.
AskController = Callable[[Message, int], Pending[Any]]


class ControllerClient:
    """Sends requests to the broker that is controller, as far as this broker has heard. The caller tries again.

    `here` has this broker's own handler answer.
    """

    def __init__(
        self, clock: Clock, node_id: int, metadata_cache: MetadataCache, clients: BrokerClients, here: AskController
    ) -> None:
        self._clock = clock
        self._node_id = node_id
        self._metadata_cache = metadata_cache
        self._clients = clients
        self._here = here
        self._asked = -1  # the other broker that was asked last
        metadata_cache.on_brokers.append(self._forget_former)

    def _forget_former(self) -> None:
        """Another broker is controller: the former one may never answer, because it stands still."""
        if self._asked != self._metadata_cache.controller_id:
            self._clients.drop(self._asked, PURPOSE)

    def send(self, request: Message, version: int) -> Pending[Any]:
        """The answer, which may be NOT_CONTROLLER; or None: no controller is known, or it did not answer."""
        controller_id = self._metadata_cache.controller_id
        if controller_id == self._node_id:
            return answer_here(self._clock, self._here, request, version)
        client = self._clients.to(controller_id, PURPOSE)
        if client is not None:
            self._asked = controller_id
            return client.send(request, version)
        return Pending.of(None)


def answer_here(clock: Clock, here: AskController, request: Message, version: int) -> Pending[Any]:
    """The answer of this broker's own handler; None if it has raised.

    It is asked later, not inside: the caller may be in the middle of a change.
    """
    answer: Pending[Any] = Pending()
    clock.call_soon(lambda: answer_now(here, request, version).then(answer.complete))
    return answer


def answer_now(here: AskController, request: Message, version: int) -> Pending[Any]:
    """The same, asked at once."""
    answer: Pending[Any] = Pending()

    def failed(error: Exception) -> None:
        logger.error("%s to this broker's own controller failed", type(request).__name__, exc_info=error)
        answer.complete(None)

    reply = here(request, version)
    reply.on_failure = failed
    reply.then(answer.complete)
    return answer
