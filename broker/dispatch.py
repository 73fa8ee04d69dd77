"""The table of APIs: one row per key, filled by the decorator `api`.

    @api(ApiKey.HEARTBEAT, versions=(0, 4))
    def heartbeat(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> Reply: ...

A handler returns a `Reply` (context.py). ApiVersions announces the rows of this table, so an API without a handler is
not announced.
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
# Builds the response with this error for everything that was asked. It is sent when a handler has raised.
Failure = Callable[[Any, ErrorCode], Any]

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


class Api:
    """One row: a key, the versions served, the versions announced, and the handler."""

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
        """The response with `error` for all that was asked; None if this API's response has no field for an error."""
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

    `announced`: the versions that ApiVersions announces, if they are not those served. A version that Kafka 4.1 does
    not announce is not announced here either, because clients tell from them which Kafka they talk to.
    `failure(request, error)`: builds the response when the handler raises. By default it is the response with its
    top-level `error_code` set; if there is no such field, the connection is closed.
    `is_wide`: an answer may hold very many topics, partitions or groups, so it is encoded in pieces.
    """

    def register(handler: HandlerT) -> HandlerT:
        assert key not in TABLE, f"two handlers for {key.name}"
        TABLE[key] = Api(key, versions, announced or versions, handler, failure, is_wide)
        return handler

    return register


def announced() -> list[tuple[int, int, int]]:
    """(api key, lowest version, highest version) of all APIs that ApiVersions announces, ordered by key."""
    return [(row.key, *row.announced) for _, row in sorted(TABLE.items())]
