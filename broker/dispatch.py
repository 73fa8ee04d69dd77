"""The table of APIs: one row per key, filled by the decorator `api`; everything else follows from it.

    @api(ApiKey.HEARTBEAT, versions=(0, 4))
    def heartbeat(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> Reply: ...

A handler is a plain function that runs to completion and returns a `Reply` (context.py). ApiVersions announces what
the table holds, so an API that is not registered is not offered, and what is offered has a handler.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.broker.context import Reply, RequestContext
from barnabas.protocol import codec, frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker

Handler = Callable[["Broker", Any, RequestContext], Reply]
# The response that says UNKNOWN_SERVER_ERROR for everything that was asked, when a handler raised.
Failure = Callable[[Any, ErrorCode], Any]

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


class Api:
    """One row: a key, the versions served, the versions announced, and who answers."""

    __slots__ = ("_decoders", "announced", "failure", "first_version", "handler", "is_wide", "key", "last_version")

    def __init__(
        self,
        key: ApiKey,
        versions: tuple[int, int],
        announced: tuple[int, int],
        handler: Handler,
        failure: Failure | None,
        is_wide: bool = False,
    ) -> None:
        self.key = key
        self.first_version, self.last_version = versions
        self.announced = announced
        self.handler = handler
        self.failure = failure
        self.is_wide = is_wide
        self._decoders: list[Callable[[memoryview, int], tuple[Any, int]] | None] = [None] * (versions[1] + 1)

    def serves(self, version: int) -> bool:
        """Whether a request in this version is answered; other versions close the connection."""
        return self.first_version <= version <= self.last_version

    def decode(self, version: int, frame: memoryview, position: int) -> Any:
        """The request's body. ProtocolError when the bytes cannot be read."""
        decoder = self._decoders[version]
        if decoder is None:
            decoder = self._decoders[version] = codec.decoder(frames.request_class(self.key), version)
        return decoder(frame, position)[0]

    def failure_response(self, request: Any, error: ErrorCode) -> Any | None:
        """The response that says `error` for all that was asked; None where this API has no place for it."""
        if self.failure is not None:
            return self.failure(request, error)
        response = frames.response_class(self.key)()
        if not hasattr(response, "error_code"):
            return None
        response.error_code = error
        return response


TABLE: dict[int, Api] = {}


def api(
    key: ApiKey,
    *,
    versions: tuple[int, int],
    announced: tuple[int, int] | None = None,
    failure: Failure | None = None,
    is_wide: bool = False,
) -> Callable[[HandlerT], HandlerT]:
    """Register the decorated function as the handler of `key` in the versions first to last, both included.

    `announced`: what ApiVersions tells, where that is not what is served. Versions that Kafka 4.1 does not announce are
    not told of either, because clients see from them which Kafka they talk to.
    `failure(request, error)`: builds the response when the handler raises; by default the response class with its
    top-level `error_code` set, or a closed connection when it has none.
    `is_wide`: an answer may speak of very many topics, partitions or groups, so it is encoded in pieces.
    """

    def register(handler: HandlerT) -> HandlerT:
        assert key not in TABLE, f"two handlers for {key.name}"
        TABLE[key] = Api(key, versions, announced or versions, handler, failure, is_wide)
        return handler

    return register


def announced() -> list[tuple[int, int, int]]:
    """(api key, lowest, highest version) of all that is offered, by key."""
    return [(row.key, *row.announced) for _, row in sorted(TABLE.items())]
