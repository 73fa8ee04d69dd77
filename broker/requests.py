"""The way of a request to its handler: the table of APIs, what a handler gets and returns, and the gate.

The table has one row for each API key. The decorator `api` fills it:

    @api(ApiKey.HEARTBEAT, versions=(0, 4))
    def heartbeat(services: Services, request: HeartbeatRequest, context: RequestContext) -> Reply: ...

With `returns_method`, the function only names the method of a coordinator that answers. The gate asks it once.

ApiVersions announces the rows of this table, so an API without a handler is not announced. A broker of Kafka 3.9 sends
LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown to other brokers without asking for versions, so these
are not announced: Kafka 4.3 does not announce them either, and clients must take this broker for a 4.3. AlterPartition
and AllocateProducerIds are announced to everybody, because that broker asks its controller for the versions first. No
client library looks at them, and Kafka 3.9 announces them to its clients, too.

Every request passes the gate, whoever sends it: a client, another broker, the HTTP API, or this broker itself. A
handler that raises costs its own request only: the failure is counted and logged, and answered with an error. If there
is an authorizer, the gate gives the request to the row's `access` first, which asks for the rights that it needs.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from enum import Enum
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from barnabas.broker.refusals import CHARACTERS_MAX, NO_API, Refusals, no_descriptor
from barnabas.cluster.security.acls import (
    ANONYMOUS,
    ANY_NAME,
    CLUSTER_NAME,
    THIS_BROKER,
    AclOperation,
    ResourceType,
    words,
)
from barnabas.cluster.tree.port import CoordinationError
from barnabas.protocol import codec, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.frames import EncodedFrame, encode_response
from barnabas.protocol.message import Message
from barnabas.runtime.counted import counted
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer, Clock
from barnabas.runtime.tasks import Tasks
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.broker.http.routes import HttpAnswer, HttpRequest, Route
    from barnabas.broker.services import Services
    from barnabas.broker.throttles import Used
    from barnabas.cluster.security.authorizer import Authorizer, Rights

logger = logging.getLogger("barnabas.broker")

TRACEBACKS_PER_API, TRACEBACK_EVERY = 10, 1000
TROUBLE_TOLD_EVERY_MS: Final = 60_000.0  # how often the log says that the tree, or a file, cannot be read or written
AUTHORIZATION_ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
NOT_YET: Final = (CoroutineType, asyncio.Future)  # concrete classes: isinstance() of the abstract Awaitable is slow


class Close(Enum):
    """Returned instead of a response: close the connection (a Produce with acks=0 that failed)."""

    CLOSE = "close"


CLOSE: Final = Close.CLOSE

# What a handler returns:
# - the response message;
# - a Pending of it, for a request that waits; it needs no task;
# - a coroutine of it, for a request that changes something in several steps. It runs to its end even if the client is
#   gone;
# - a future of it, for a request that only reads. It is cancelled when the client is gone;
# - None, for no response at all;
# - CLOSE.
Reply: TypeAlias = Any | Pending[Any] | Coroutine[Any, Any, Any] | asyncio.Future[Any] | Close | None


class RequestContext:
    """One request's header, and the connection that it came by.

    `client_host` is the client's address as Kafka writes it, with a slash ("/127.0.0.1"). `dialled_host` and
    `dialled_port` are the local end of the connection: the address at which this client reached the broker. The request
    `is_long` if its frame is: it may name very many partitions, and is handled in pieces.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "client_host",
        "client_id",
        "correlation_id",
        "dialled_host",
        "dialled_port",
        "frame_is_lent",
        "is_long",
        "listener_name",
        "principal",
        "rights",
        "used",
    )

    rights: "Rights | None"  # of the principal; None: there is no authorizer
    used: "Used | None"  # set only while there are quotas (throttles.py)

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str = "/127.0.0.1",
        listener_name: str = "PLAINTEXT",
        dialled_host: str = "127.0.0.1",
        dialled_port: int = 9092,
        frame_is_lent: bool = False,
        is_long: bool = False,
        principal: str = ANONYMOUS,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.listener_name = listener_name
        self.dialled_host = dialled_host
        self.dialled_port = dialled_port
        self.frame_is_lent = frame_is_lent
        self.is_long = is_long
        self.principal = principal
        self.rights = None

    def keep_frame(self) -> None:
        """The frame's memory is not used again while the request is handled."""
        self.frame_is_lent = False

    def kept(self, records: Buffer) -> Buffer:
        """A `records` field of the request, copied if need be, that may be used after the handler has returned.

        The frame may be in the shared buffer, which the next read of any connection overwrites.
        """
        return bytearray(records) if self.frame_is_lent else records


# Called with the `Services` of the broker, a request of the class that belongs to the key, and its context. Or, where
# the row says `returns_method`, with the services alone, once for each broker: it returns the method that answers.
Handler = Callable[..., Any]
# A handler of one broker: called with the request and its context.
Method = Callable[[Any, RequestContext], Reply]
# Builds the response with this error for everything that was asked. It is sent when a handler has raised.
Failure = Callable[[Any, ErrorCode], Any]
# Whether a broker has sent this request.
OfBroker = Callable[[Any], bool]
# Whether an answer holds so much that it is encoded in pieces.
IsWide = Callable[[Any], bool]
# Asks for what the request needs, has what is allowed handled, and refuses the rest: see `broker/access/`.
Access = Callable[["Asked"], Reply]

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


class Api:
    """One row: a key, the versions served, the versions announced, and the handler."""

    __slots__ = (
        "_decoders",
        "_in_pieces",
        "access",
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
        "one_right",
        "returns_method",
    )

    def __init__(
        self,
        key: ApiKey,
        versions: tuple[int, int],
        announced: tuple[int, int],
        handler: Handler,
        failure: Failure | None,
        is_wide: bool | IsWide = False,
        is_announced: bool = True,
        is_of_brokers: bool | OfBroker = False,
        comes_in_crowds: bool = False,
        access: Access | None = None,
        returns_method: bool = False,
    ) -> None:
        self.key = key
        self.access = access or _nobody
        self.one_right = access if isinstance(access, OneRight) else None
        self.first_version, self.last_version = versions
        self.announced = announced
        self.handler = handler
        self.failure = failure
        self.is_wide = is_wide
        self.is_announced = is_announced
        self.is_of_brokers = is_of_brokers
        self.comes_in_crowds = comes_in_crowds
        self.returns_method = returns_method
        self._decoders: list[Callable[[memoryview, int], tuple[Any, int]] | None] = [None] * (versions[1] + 1)
        self._in_pieces: Api | None = self if is_wide else None

    @property
    def in_pieces(self) -> "Api":
        """The row for a long request: its answer is long, too."""
        if self._in_pieces is None:
            versions = (self.first_version, self.last_version)
            self._in_pieces = Api(
                *(self.key, versions, self.announced, self.handler, self.failure, True, self.is_announced),
                *(self.is_of_brokers, self.comes_in_crowds, self.access, self.returns_method),
            )
        return self._in_pieces

    def serves(self, version: int) -> bool:
        """Whether a request in this version is answered; other versions close the connection."""
        return self.first_version <= version <= self.last_version

    def is_of_broker(self, request: Any) -> bool:
        """Whether a broker has sent this request."""
        of_brokers = self.is_of_brokers
        return of_brokers if isinstance(of_brokers, bool) else of_brokers(request)

    def encodes_in_pieces(self, answer: Any) -> bool:
        """Whether an answer is encoded in pieces."""
        is_wide = self.is_wide
        return is_wide if isinstance(is_wide, bool) else is_wide(answer)

    def decode(self, version: int, frame: memoryview, position: int) -> Any:
        """The request's body. ProtocolError when the bytes cannot be read."""
        decoder = self._decoders[version]
        if decoder is None:
            decoder = self._decoders[version] = codec.decoder(messages.request_class(self.key), version)
        return decoder(frame, position)[0]

    def decode_in_pieces(self, version: int, frame: memoryview, position: int) -> Pieces[Any]:
        """The same for a long request."""
        request, _ = yield from codec.decoder_in_pieces(messages.request_class(self.key), version)(frame, position)
        return request

    def failure_response(self, request: Any, error: ErrorCode) -> Any | None:
        """The response with `error` for all that was asked; None if this API's response has no field for an error."""
        if self.failure is not None:
            return self.failure(request, error)
        response = messages.response_class(self.key)()
        if not hasattr(response, "error_code"):
            return None
        response.error_code = error
        return response


TABLE: dict[int, Api] = {}


def api(
    key: ApiKey,
    *,
    versions: tuple[int, int],
    access: Access,
    announced: tuple[int, int] | None = None,
    failure: Failure | None = None,
    is_wide: bool | IsWide = False,
    is_announced: bool = True,
    is_of_brokers: bool | OfBroker = False,
    comes_in_crowds: bool = False,
    returns_method: bool = False,
) -> Callable[[HandlerT], HandlerT]:
    """Register the decorated function as the handler of `key` in the versions first to last, both included.

    `access`: which rights it asks for (`broker/access/`).
    `announced`: the versions that ApiVersions announces, if they are not those served. A version that Kafka 4.3 does
    not announce is not announced here either, because clients tell from them which Kafka they talk to.
    `failure(request, error)`: builds the response when the handler raises. By default it is the response with its
    top-level `error_code` set; if there is no such field, the connection is closed.
    `is_wide`: an answer may hold very many topics, partitions or groups, so it is encoded in pieces. If most hold few:
    a function that says whether this one holds many.
    `is_announced`: whether ApiVersions announces it at all.
    `is_of_brokers`: whether brokers send it to each other, so that it is handled as soon as this broker is registered,
    before clients are served, and beyond max.connections. If clients send it, too: a function that says whether a
    broker has sent this request.
    `comes_in_crowds`: very many clients may send it at the same time, and wait for each other (crowds.py).
    `returns_method`: the function takes the services alone, and returns the method of a coordinator that answers.
    """

    def register(handler: HandlerT) -> HandlerT:
        assert key not in TABLE, f"two handlers for {key.kafka_name}"
        announces = announced or versions
        TABLE[key] = Api(
            *(key, versions, announces, handler, failure, is_wide, is_announced),
            *(is_of_brokers, comes_in_crowds, access, returns_method),
        )
        return handler

    return register


def announced() -> list[tuple[int, int, int]]:
    """(api key, lowest version, highest version) of all APIs that ApiVersions announces, ordered by key."""
    return [(row.key, *row.announced) for _, row in sorted(TABLE.items()) if row.is_announced]


class OneRight:
    """The access of a row that asks for one right for the whole request: on the cluster, or on what a field of the
    request names."""

    __slots__ = ("_field", "_operation", "_refuse", "_type")

    def __init__(self, operation: AclOperation, type: ResourceType, field: str | None, refuse: Access) -> None:
        """`refuse`: the answer to who lacks it."""
        self._operation = operation
        self._type = type
        self._field = field
        self._refuse = refuse

    def name(self, request: Any) -> str:
        """What the right is asked on."""
        return CLUSTER_NAME if self._field is None else str(getattr(request, self._field))

    def is_given(self, rights: "Rights", request: Any) -> bool:
        """Whether the sender has it."""
        if rights.is_super:
            return True
        field = self._field
        return rights[self._operation, self._type, CLUSTER_NAME if field is None else getattr(request, field)]

    def __call__(self, asked: "Asked") -> Reply:
        if asked.may(self._operation, self._type, self.name(asked.request)):
            return asked.handle()
        return self._refuse(asked)


class Asked:
    """A request at the gate, whose sender is asked for rights."""

    __slots__ = ("_gate", "api", "context", "request", "rights", "services")

    def __init__(
        self,
        gate: "RequestGate",
        services: "Services",
        api: Api,
        request: Any,
        context: RequestContext,
        rights: "Rights",
    ) -> None:
        self.services = services
        self.api = api
        self.request = request
        self.context = context
        self.rights = rights
        self._gate = gate

    def may(self, operation: AclOperation, type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the sender has this right. If not, the log says so: one line a minute for a client and an API."""
        return self.rights.may(operation, type, name) or note_no_right(
            self._gate.refusals, self.context, self.rights, operation, type, name
        )

    def handle(self, request: Any = None) -> Any:
        """The reply to the request, or to the part of it that is given: an answer, a Pending of it, None or CLOSE."""
        request = self.request if request is None else request
        gate = self._gate
        reply = (gate.methods.get(self.api.key) or gate.method_of(self.api))(request, self.context)
        return gate.outcome(self.api, self.context, request, reply) if isinstance(reply, NOT_YET) else reply

    def refuse(self, error: ErrorCode, request: Any = None) -> Any:
        """The answer with this error for everything that was asked, or for the part that is given."""
        answer = self.api.failure_response(self.request if request is None else request, error)
        return CLOSE if answer is None else answer


class NoRight:
    """Says that somebody lacks a right, and by which rule. Only a line that is really logged looks for the rule."""

    __slots__ = ("_name", "_operation", "_rights", "_type")

    def __init__(self, rights: "Rights", operation: AclOperation, type: ResourceType, name: str) -> None:
        self._rights = rights
        self._operation = operation
        self._type = type
        self._name = name

    def __str__(self) -> str:
        rights, operation, type = self._rights, self._operation, self._type
        why = rights.decision(operation, type, self._name)
        principal, name = rights.principal[:CHARACTERS_MAX], self._name[:CHARACTERS_MAX]
        told = f"{principal} has no right to {words(operation)} {words(type)} {name!r}: {why}"
        return f"{told} (super.users names brokers)" if operation is AclOperation.CLUSTER_ACTION else told


def note_no_right(
    refusals: Refusals,
    context: RequestContext,
    rights: "Rights",
    operation: AclOperation,
    type: ResourceType,
    name: str,
) -> bool:
    """Log that somebody lacks a right. Returns False."""
    refusals.note(context, AUTHORIZATION_ERRORS[type], "%s", NoRight(rights, operation, type, name))
    return False


def _nobody(asked: Asked) -> Reply:
    """The access of a row that says nothing: nobody may ask it."""
    return CLOSE


class Sender(Protocol):
    """Who has sent a request: a connection, or the context of the request."""

    client_host: str
    principal: str


class RequestGate:
    """Hands requests to the handlers of a broker."""

    authorizer: "Authorizer | None" = None  # None: everybody may do everything

    def __init__(self, clock: Clock, services: "Services", refusals: Refusals) -> None:
        self._clock = clock
        self._services = services
        self.refusals = refusals
        self.tasks = Tasks(clock)
        self.handler_failures = 0
        self.methods: dict[int, Method] = {}  # of this broker, by API key; those that were asked for
        self._failures_of: dict[int, int] = {}  # by API key
        self._tells_trouble = NowAndThen(clock, TROUBLE_TOLD_EVERY_MS)

    def handle(self, api: Api, request: Any, context: RequestContext) -> Any:
        """What the handler of a request of Kafka's protocol returns. If it is `NOT_YET`, see `outcome`."""
        try:
            if self.authorizer is not None:
                rights = context.rights = self.authorizer.rights[context.principal, context.client_host]
                one = api.one_right
                if one is None or not one.is_given(rights, request):
                    return api.access(Asked(self, self._services, api, request, context, rights))
            return (self.methods.get(api.key) or self.method_of(api))(request, context)
        except Exception:
            return self.answer_failure(api, context, request)

    def is_of_broker(self, api: Api, request: Any, sender: Sender) -> bool:
        """Whether a broker has sent a request, and not somebody who only claims to be one."""
        if not api.is_of_broker(request):
            return False
        if self.authorizer is None:
            return True
        rights = self.authorizer.rights_of(sender.principal, sender.client_host)
        return rights.may(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)

    def method_of(self, api: Api) -> Method:
        """The handler of a row, for this broker."""
        method = self.methods.get(api.key)
        if method is None:
            method = api.handler(self._services) if api.returns_method else partial(api.handler, self._services)
            self.methods[api.key] = method
        return method

    def outcome(
        self, api: Api, context: RequestContext, request: Any, work: Coroutine[Any, Any, Any] | asyncio.Future[Any]
    ) -> Pending[Any]:
        """The answer to a request whose handler has returned a coroutine or a future."""
        return self.tasks.outcome(work, lambda error: self.answer_failure(api, context, request, error))

    def ask(self, request: Message, version: int) -> Pending[Any]:
        """The answer to a request that this broker sends to itself, without a connection."""
        node_id = self._services.node_id
        context = RequestContext(request.API_KEY, version, 0, f"broker-{node_id}", principal=THIS_BROKER)
        api = TABLE[request.API_KEY]
        reply = self.handle(api, request, context)
        if isinstance(reply, NOT_YET):
            reply = self.outcome(api, context, request, reply)
        return reply if isinstance(reply, Pending) else Pending.of(reply)

    def handle_http(
        self, route: "Route", request: "HttpRequest", failed: Callable[[BaseException], "HttpAnswer"]
    ) -> Any:
        """What the handler of a path of the HTTP API returns; `failed` makes an answer of what its task raises."""
        if self.authorizer is not None:
            request.rights = rights = self.authorizer.rights_of(request.principal, request.client_host)
            if not route.is_open and not rights.is_super:
                self._check_http(route, request, rights)
        reply = route.handler(self._services, request)
        return self.tasks.outcome(reply, failed) if isinstance(reply, Coroutine) else reply

    def _check_http(self, route: "Route", request: "HttpRequest", rights: "Rights") -> None:
        """HttpError unless the sender has the rights that the path asks for."""
        from barnabas.broker.http.routes import HttpError

        access = route.access
        api_key = NO_API if access is None else access.api_key
        context = RequestContext(api_key, 0, 0, request.client_id, request.client_host, principal=request.principal)
        if access is None:
            message = f"{request.principal} is none of super.users, and {route.method} {route.path} is for these only."
            self.refusals.note(context, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "%s", message)
            raise HttpError(403, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name, message)
        for operation, type, on in access.rights(request):
            name = ANY_NAME if on is None else on
            if not (rights.may_on_all(operation, type) if on is None else rights.may(operation, type, on)):
                note_no_right(self.refusals, context, rights, operation, type, name)
                what = words(type) if type is ResourceType.CLUSTER else f"{words(type)} {name}"
                message = f"{request.principal} has no right to {words(operation)} {what}. Somebody may give it: "
                message += f"barnabas acls add {request.principal} {words(operation)} {what}"
                raise HttpError(403, AUTHORIZATION_ERRORS[type].name, message)

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
        if not self._tells_trouble.is_due():
            return False
        logger.warning("%s: %s", what, why)
        return True

    def encoded_failure(self, api: Api, context: RequestContext, request: Any) -> Any:
        """What the client gets instead of an answer that cannot be encoded. Called in the handler of the exception."""
        failure = self.answer_failure(api, context, request)
        if failure is CLOSE:
            return CLOSE
        return EncodedFrame(encode_response(api.key, context.api_version, context.correlation_id, failure))

    def answer_failure(
        self, api: Api, context: RequestContext, request: Any, error: BaseException | None = None
    ) -> Any:
        """Log and count that a handler raised, and return what the client gets instead of an answer.

        It is a bug, unless the tree cannot be read or written (a full disk, a lost session), or no descriptor is free.
        """
        error = error or sys.exception()
        why = no_descriptor(error) or (str(error) if isinstance(error, CoordinationError) else None)
        if why is not None:
            if not self.tell_now_and_then(f"{api.key.kafka_name} of client {context.client_id!r}", why):
                self.refusals.note(context, ErrorCode.KAFKA_STORAGE_ERROR, "%s", why)
            response = api.failure_response(request, ErrorCode.KAFKA_STORAGE_ERROR)
            return CLOSE if response is None else response
        self.handler_failures += 1
        failures = self._failures_of[api.key] = self._failures_of.get(api.key, 0) + 1
        # Not for every failure: a client that repeats its request must not fill the disk.
        if failures <= TRACEBACKS_PER_API or failures % TRACEBACK_EVERY == 0:
            logger.error(
                "%s version %d of client %r failed (%s so far)",
                api.key.kafka_name,
                context.api_version,
                context.client_id,
                counted(failures, "time"),
                exc_info=error,
            )
        try:
            response = api.failure_response(request, ErrorCode.UNKNOWN_SERVER_ERROR)
        except Exception:
            logger.exception("failed to build the error response of %s: closing the connection", api.key.kafka_name)
            response = None
        return CLOSE if response is None else response
