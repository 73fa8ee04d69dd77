"""The one way of a request to its handler, whoever asks: a client, another broker, the HTTP API, or this broker itself.

A handler that raises costs its own request only: the failure is counted and logged, and answered with an error. A
handler may return its answer later. Whether the one who asks may do it is asked here, when there are permissions.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from barnabas.broker.context import CLOSE, RequestContext
from barnabas.broker.dispatch import TABLE, Api
from barnabas.broker.refusals import Refusals, no_descriptor
from barnabas.cluster.tree.port import CoordinationError
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock
from barnabas.runtime.tasks import Tasks

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker
    from barnabas.broker.http.routes import HttpAnswer, HttpRequest, Route

logger = logging.getLogger("barnabas.broker")

TRACEBACKS_PER_API, TRACEBACK_EVERY = 10, 1000
TROUBLE_TOLD_EVERY_MS = 60_000.0  # how often the log says that the tree, or a file, cannot be read or written
NOT_YET = (CoroutineType, asyncio.Future)  # concrete classes: isinstance() of the abstract Awaitable is slow


class RequestGate:
    """Hands requests to the handlers of a broker."""

    def __init__(self, clock: Clock, broker: "Broker", refusals: Refusals) -> None:
        self._clock = clock
        self._broker = broker
        self.refusals = refusals
        self.tasks = Tasks(clock)
        self.handler_failures = 0
        self._failures_of: dict[int, int] = {}  # by API key
        self._next_trouble_told_ms = 0.0

    def handle(self, api: Api, request: Any, context: RequestContext) -> Any:
        """What the handler of a request of Kafka's protocol returns (context.py). If it is `NOT_YET`, see `outcome`."""
        try:
            return api.handler(self._broker, request, context)
        except Exception:
            return self.answer_failure(api, context, request)

    def outcome(
        self, api: Api, context: RequestContext, request: Any, work: Coroutine[Any, Any, Any] | asyncio.Future[Any]
    ) -> Pending[Any]:
        """The answer to a request whose handler has returned a coroutine or a future."""
        return self.tasks.outcome(work, lambda error: self.answer_failure(api, context, request, error))

    def ask(self, request: Message, version: int) -> Pending[Any]:
        """The answer to a request that this broker sends to itself, without a connection."""
        context = RequestContext(request.API_KEY, version, 0, f"broker-{self._broker.node_id}")
        api = TABLE[request.API_KEY]
        reply = self.handle(api, request, context)
        if isinstance(reply, NOT_YET):
            reply = self.outcome(api, context, request, reply)
        if isinstance(reply, Pending):
            return reply
        answer: Pending[Any] = Pending()
        answer.complete(reply)
        return answer

    def handle_http(
        self, route: "Route", request: "HttpRequest", failed: Callable[[BaseException], "HttpAnswer"]
    ) -> Any:
        """What the handler of a path of the HTTP API returns; `failed` makes an answer of what its task raises."""
        reply = route.handler(self._broker, request)
        return self.tasks.outcome(reply, failed) if isinstance(reply, Coroutine) else reply

    def note_decoding_failure(self, client_host: str, error: Exception) -> None:
        """A request could not be decoded for another reason than its bytes, and its connection is closed."""
        why = no_descriptor(error)
        if why is not None:
            self.tell_now_and_then(f"a request of {client_host}, whose connection is closed", why)
            return
        # It is a bug of the broker, not of the client.
        logger.error("a request of %s cannot be decoded; closing its connection", client_host, exc_info=error)
        self.handler_failures += 1

    def tell_now_and_then(self, what: str, why: str) -> bool:
        """Log that the system refuses something; False: not again now. Clients that try again must not fill the log."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_trouble_told_ms:
            return False
        self._next_trouble_told_ms = now_ms + TROUBLE_TOLD_EVERY_MS
        logger.warning("%s: %s", what, why)
        return True

    def answer_failure(
        self, api: Api, context: RequestContext, request: Any, error: BaseException | None = None
    ) -> Any:
        """Log and count that a handler raised, and return what the client gets instead of an answer.

        It is a bug, unless the tree cannot be read or written (a full disk, a lost session), or no descriptor is free.
        """
        error = error or sys.exception()
        why = no_descriptor(error) or (str(error) if isinstance(error, CoordinationError) else None)
        if why is not None:
            if not self.tell_now_and_then(f"{api.key.name} of client {context.client_id!r}", why):
                self.refusals.note(context, ErrorCode.KAFKA_STORAGE_ERROR, "%s", why)
            response = api.failure_response(request, ErrorCode.KAFKA_STORAGE_ERROR)
            return CLOSE if response is None else response
        self.handler_failures += 1
        failures = self._failures_of[api.key] = self._failures_of.get(api.key, 0) + 1
        # Not for every failure: a client that repeats its request must not fill the disk.
        if failures <= TRACEBACKS_PER_API or failures % TRACEBACK_EVERY == 0:
            logger.error(
                "%s version %d of client %r failed (%s so far)",
                api.key.name,
                context.api_version,
                context.client_id,
                counted(failures, "time"),
                exc_info=error,
            )
        try:
            response = api.failure_response(request, ErrorCode.UNKNOWN_SERVER_ERROR)
        except Exception:
            logger.exception("%s: its error response cannot be built", api.key.name)
            response = None
        return CLOSE if response is None else response
