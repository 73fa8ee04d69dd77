"""The table of APIs: one row per key, filled by the decorator `api`.

    @api(ApiKey.HEARTBEAT, versions=(0, 4))
    def heartbeat(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> Reply: ...

A handler returns a `Reply` (context.py). ApiVersions announces the rows of this table, so an API without a handler is
not announced.

What brokers send each other. A broker of Kafka 3.9 sends LeaderAndIsr, StopReplica, UpdateMetadata and
ControlledShutdown without asking for versions, so these are not announced: Kafka 4.1 does not announce them either,
and clients must take this broker for a 4.1. AlterPartition and AllocateProducerIds are announced to everybody,
because that broker asks its controller for the versions first. No client library looks at them, and Kafka 3.9
announces them to its clients, too.
"""

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.broker.context import Reply, RequestContext
from barnabas.protocol import codec, frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker

Handler = Callable[["Broker", Any, RequestContext], Reply]
# Builds the response with this error for everything that was asked. It is sent when a handler has raised.
Failure = Callable[[Any, ErrorCode], Any]
# Whether a broker has sent this request.
OfBroker = Callable[[Any], bool]

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


class Api:
    """One row: a key, the versions served, the versions announced, and the handler."""

    __slots__ = (
        "_decoders",
        "_in_pieces",
        "announced",
        "comes_in_crowds",
        "failure",
        "first_version",
        "handler",
        "is_announced",
        "is_of_brokers",
        "is_wide",
        "key",
        "last_version",
    )

    def __init__(
        self,
        key: ApiKey,
        versions: tuple[int, int],
        announced: tuple[int, int],
        handler: Handler,
        failure: Failure | None,
        is_wide: bool = False,
        is_announced: bool = True,
        is_of_brokers: bool | OfBroker = False,
        comes_in_crowds: bool = False,
    ) -> None:
        self.key = key
        self.first_version, self.last_version = versions
        self.announced = announced
        self.handler = handler
        self.failure = failure
        self.is_wide = is_wide
        self.is_announced = is_announced
        self.is_of_brokers = is_of_brokers
        self.comes_in_crowds = comes_in_crowds
        self._decoders: list[Callable[[memoryview, int], tuple[Any, int]] | None] = [None] * (versions[1] + 1)
        self._in_pieces: Api | None = self if is_wide else None

    @property
    def in_pieces(self) -> "Api":
        """The row for a long request: its answer is long, too."""
        if self._in_pieces is None:
            self._in_pieces = copy(self)
            self._in_pieces.is_wide = True
        return self._in_pieces

    def serves(self, version: int) -> bool:
        """Whether a request in this version is answered; other versions close the connection."""
        return self.first_version <= version <= self.last_version

    def is_of_broker(self, request: Any) -> bool:
        """Whether a broker has sent this request."""
        of_brokers = self.is_of_brokers
        return of_brokers if isinstance(of_brokers, bool) else of_brokers(request)

    def decode(self, version: int, frame: memoryview, position: int) -> Any:
        """The request's body. ProtocolError when the bytes cannot be read."""
        decoder = self._decoders[version]
        if decoder is None:
            decoder = self._decoders[version] = codec.decoder(frames.request_class(self.key), version)
        return decoder(frame, position)[0]

    def decode_in_pieces(self, version: int, frame: memoryview, position: int) -> Pieces[Any]:
        """The same for a long request."""
        request, _ = yield from codec.decoder_in_pieces(frames.request_class(self.key), version)(frame, position)
        return request

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
    is_announced: bool = True,
    is_of_brokers: bool | OfBroker = False,
    comes_in_crowds: bool = False,
) -> Callable[[HandlerT], HandlerT]:
    """Register the decorated function as the handler of `key` in the versions first to last, both included.

    `announced`: the versions that ApiVersions announces, if they are not those served. A version that Kafka 4.1 does
    not announce is not announced here either, because clients tell from them which Kafka they talk to.
    `failure(request, error)`: builds the response when the handler raises. By default it is the response with its
    top-level `error_code` set; if there is no such field, the connection is closed.
    `is_wide`: an answer may hold very many topics, partitions or groups, so it is encoded in pieces.
    `is_announced`: whether ApiVersions announces it at all.
    `is_of_brokers`: whether brokers send it to each other, so that it is handled as soon as this broker is registered,
    before clients are served, and beyond max.connections. If clients send it, too: a function that says whether a
    broker has sent this request.
    `comes_in_crowds`: very many clients may send it at the same time, and wait for each other (crowds.py).
    """

    def register(handler: HandlerT) -> HandlerT:
        assert key not in TABLE, f"two handlers for {key.name}"
        announces = announced or versions
        TABLE[key] = Api(
            key, versions, announces, handler, failure, is_wide, is_announced, is_of_brokers, comes_in_crowds
        )
        return handler

    return register


def announced() -> list[tuple[int, int, int]]:
    """(api key, lowest version, highest version) of all APIs that ApiVersions announces, ordered by key."""
    return [(row.key, *row.announced) for _, row in sorted(TABLE.items()) if row.is_announced]
