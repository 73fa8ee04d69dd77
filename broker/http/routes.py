"""The table of routes: one row per method and path, filled by the decorator `route`.

    @route("GET", "/v1/groups/{group}", summary="One group", answer=GROUP, of_group=True)
    def describe_group(services: Services, request: HttpRequest) -> Answered: ...

The OpenAPI document (`openapi.py`) is made from this table, and requests are checked against it before a handler is
called. To add a family of routes: a module here, with its name and paths in `FAMILIES`.

A path begins with `/v1/` (but `/metrics` and `/health`). A group in it is the parameter `group`, so that
`of_group=True` finds it: then the request is handled by the group's coordinator, and other brokers redirect there. A
handler that meets what it cannot do raises `HttpError`. A body that may be long is given as a generator of rows
(`HttpAnswer.json`), which the connection takes in turns with other tasks; it may yield None where it has worked for a
while.
"""

import importlib
import json
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

from barnabas.broker.http.schemas import Schema
from barnabas.cluster.security.acls import ANONYMOUS, CLUSTER_NAME, AclOperation, ResourceType
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.broker.access.http import HttpAccess
    from barnabas.broker.services import Services
    from barnabas.cluster.security.authorizer import Rights

# By module, how the paths of its routes begin. It is imported when the first such path is asked for: those who start a
# broker for one test want few of them, and all take as long as a tenth of its start.
FAMILIES: dict[str, tuple[str, ...]] = {
    "control": ("/v1/control/",),
    "events": ("/v1/groups/",),
    "groups": ("/v1/groups",),
    "health": ("/v1/health",),
    "journal": ("/v1/groups/",),
    "lag": ("/v1/groups/", "/v1/positions"),
    "leftovers": ("/v1/control/leftovers",),
    "live_reset": ("/v1/groups/",),
    "lives": ("/v1/control/snapshots", "/v1/control/restore"),
    "metrics": ("/metrics",),
    "offsets": ("/v1/groups/",),
    "openapi": ("/v1/openapi.json",),
    "readiness": ("/health",),
    "status": ("/v1/status",),
    "topics": ("/v1/topics",),
    "waits": tuple(f"/v1/control/{each}/" for each in ("groups", "topics", "transactions", "requests", "rules")),
}
JSON = "application/json"
V = TypeVar("V")
PIECE_BYTES = 16 * 1024  # of a body that is made in pieces
METHODS_THAT_CHANGE = ("POST", "PUT", "PATCH", "DELETE")
ANSWERED_WITHIN_MS = 60_000.0


class HttpError(Exception):
    """Ends a request: a status, a name for programs, and a sentence that says what to do."""

    def __init__(self, status: int, name: str, message: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        self.message = message
        self.headers = tuple(headers)

    @property
    def answer(self) -> "HttpAnswer":
        """What the client gets."""
        error = {"error": {"name": self.name, "message": self.message}}
        return HttpAnswer.json(error, status=self.status, headers=self.headers)


class HttpRequest:
    """A request that is as its route says. `path` has the decoded parameters of the path."""

    __slots__ = ("body", "client_host", "client_id", "method", "path", "principal", "query", "rights", "target")
    rights: "Rights | None"  # of the principal; None: there is no authorizer

    def __init__(
        self,
        method: str,
        target: str,
        path: dict[str, str],
        query: dict[str, Any],
        body: Any,
        client_host: str,
        client_id: str,
        principal: str = ANONYMOUS,
    ) -> None:
        self.method = method
        self.target = target  # as it was sent: path and query
        self.path = path
        self.query = query  # every parameter of the route; one that was not given has its default; or ()
        self.body = body
        self.client_host = client_host  # as Kafka writes it: "/127.0.0.1"
        self.client_id = client_id  # the User-Agent
        self.principal = principal
        self.rights = None

    def may(self, operation: AclOperation, type: ResourceType, name: str) -> bool:
        """Whether the sender has this right: what is listed is left out if not."""
        return self.rights is None or self.rights.may(operation, type, name)

    def may_see_group(self, group: str) -> bool:
        """Whether a group is listed, as by ListGroups."""
        describe = AclOperation.DESCRIBE
        cluster = describe, ResourceType.CLUSTER, CLUSTER_NAME
        return self.rights is None or self.may(*cluster) or self.may(describe, ResourceType.GROUP, group)

    def seen(self, of_topics: Mapping[str, V]) -> dict[str, V]:
        """The topics that the sender may describe, of these."""
        describe = AclOperation.DESCRIBE
        return {topic: value for topic, value in of_topics.items() if self.may(describe, ResourceType.TOPIC, topic)}


class HttpAnswer(NamedTuple):
    """An answer. `body` is bytes, or pieces that are made while it is sent (None: nothing yet)."""

    body: bytes | Iterator[bytes | None] = b""
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> "HttpAnswer":
        """A JSON document. Where `value` has a generator, its items become an array, row by row, in turns.

        Without a generator the document is made at once: it must be small.
        """
        is_long = isinstance(value, dict) and any(isinstance(item, GeneratorType) for item in value.values())
        body = in_pieces(value) if is_long else _dumps(value) + b"\n"
        return cls(body, status, JSON, tuple(headers))


Answered: TypeAlias = (
    HttpAnswer | Pending[HttpAnswer] | Coroutine[Any, Any, HttpAnswer] | Generator[Any, Any, HttpAnswer]
)
Handler = Callable[["Services", HttpRequest], Answered]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


def _dumps(value: Any) -> bytes:
    # A path of the disk may have bytes that are no text.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def in_pieces(document: dict[str, Any]) -> Iterator[bytes | None]:
    """A document whose generators become arrays, as pieces of some kilobytes. A row is encoded at once."""
    out = bytearray(b"{")
    for number, (name, value) in enumerate(document.items()):
        out += (b"," if number else b"") + _dumps(name) + b":"
        if not isinstance(value, GeneratorType):
            out += _dumps(value)
            continue
        separator = b"["
        for row in value:
            if row is None:
                yield None
                continue
            out += separator + _dumps(row)
            separator = b","
            if len(out) >= PIECE_BYTES:
                yield bytes(out)
                out.clear()
            else:
                yield None
        out += b"]" if separator == b"," else b"[]"
    yield bytes(out + b"}\n")


class Parameter(NamedTuple):
    """A parameter of the query. `many`: it may be repeated. `default`: its value if it is not given."""

    name: str
    schema: Schema
    many: bool = False
    default: Any = None

    def read(self, values: list[str]) -> Any:
        """Its value; HttpError for what cannot be one."""
        if not self.many and len(values) > 1:
            raise self._wrong("is given more than once; it may be given once")
        found = [self._read(each) for each in values]
        if self.many:
            return tuple(found)
        return found[0] if found else self.default

    def _read(self, value: str) -> Any:
        kind = self.schema["type"]
        if kind == "integer":
            digits = value.removeprefix("-")
            if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
                raise self._wrong(f"is a whole number, not {value!r}")
            return int(value)
        if kind == "boolean":
            if value not in ("true", "false"):
                raise self._wrong(f"is true or false, not {value!r}")
            return value == "true"
        words = self.schema.get("enum")
        if words is not None and value not in words:
            raise self._wrong(f"is one of {', '.join(words)}, not {value!r}")
        return value

    def _wrong(self, what: str) -> HttpError:
        return HttpError(400, "INVALID_QUERY", f"the parameter {self.name} {what}.")


class Route(NamedTuple):
    """One row of the table."""

    method: str
    path: str
    handler: Handler
    summary: str
    query: tuple[Parameter, ...]
    body: Schema | None
    answer: Schema | None  # None: the answer is not JSON
    content_type: str
    of_group: bool
    while_starting: bool
    is_open: bool
    within_ms: float
    ends_life: bool
    access: "HttpAccess | None"  # None: super users only
    segments: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The parameters of the path."""
        return [segment[1:-1] for segment in self.segments if segment.startswith("{")]

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        """The parameters, as they were sent, if the path is of this route."""
        if len(segments) != len(self.segments):
            return None
        found = {}
        for own, sent in zip(self.segments, segments, strict=True):
            if own.startswith("{"):
                if not sent:
                    return None
                found[own[1:-1]] = sent
            elif own != sent:
                return None
        return found


TABLE: dict[tuple[str, str], Route] = {}  # of the families that are loaded
_not_loaded = dict(FAMILIES)


def route(
    method: str,
    path: str,
    *,
    summary: str,
    answer: Schema | None = None,
    query: Iterable[Parameter] = (),
    body: Schema | None = None,
    content_type: str = JSON,
    of_group: bool = False,
    while_starting: bool = False,
    is_open: bool = False,
    within_ms: float = ANSWERED_WITHIN_MS,
    ends_life: bool = False,
    access: "HttpAccess | None" = None,
) -> Callable[[HandlerT], HandlerT]:
    """Register the decorated function as the handler of a method and path.

    `summary`: one line for the OpenAPI document; the docstring of the handler says the rest there. `of_group`: answered
    by the coordinator of the group that the path names. `while_starting`: also before the broker serves clients.
    `is_open`: for everybody, without a token, whatever the query: load balancers add one against caches.
    `within_ms`: after so long the client is told that there is no answer. `ends_life`: it is answered by the broker's
    next life in this process, so its connection stays open when the broker ends.
    `access`: which rights it asks for (`broker/access/http.py`), if there is an authorizer; None: super users only.
    """

    def register(handler: HandlerT) -> HandlerT:
        assert (method, path) not in TABLE, f"two handlers for {method} {path}"
        assert (body is None) or method in METHODS_THAT_CHANGE
        assert not of_group or "{group}" in path
        assert not (is_open and query)
        family = handler.__module__.rpartition(".")[2]
        assert path.startswith(FAMILIES.get(family, "/")), f"{path} would not be found: it is not of {family}"
        TABLE[method, path] = Route(
            method,
            path,
            handler,
            summary,
            tuple(query),
            body,
            answer,
            content_type,
            of_group,
            while_starting,
            is_open,
            within_ms,
            ends_life,
            access,
            tuple(path.split("/")[1:]),
        )
        return handler

    return register


def load(path: str | None = None) -> None:
    """Import the families that this path may be of, or all."""
    for family, beginnings in list(_not_loaded.items()):
        if path is None or path.startswith(beginnings):
            importlib.import_module(f"barnabas.broker.http.{family}")
            _not_loaded.pop(family, None)


# ------------------------------------------------------------------ from a request line to a route


def is_open(target: bytes) -> bool:
    """Whether a request is answered to everybody: what it tells is no secret, and who asks has no token."""
    path = _origin_form(target).partition("?")[0]
    load(path)
    row = TABLE.get(("GET", path))
    return row is not None and row.is_open


def find(method: str, target: bytes) -> tuple[Route, dict[str, str], dict[str, Any]]:
    """The route of a request, with the parameters of its path and of its query. HttpError if there is none."""
    path, _, query = _origin_form(target).partition("?")
    load(path)
    segments = tuple(path.split("/")[1:])
    matches = [(row, found) for row in TABLE.values() if (found := row.match(segments)) is not None]
    if not matches:
        raise HttpError(404, "UNKNOWN_PATH", "there is no such path; GET /v1/openapi.json lists what there is.")
    # A path without parameters is stronger than one with.
    least = min(len(found) for _, found in matches)
    rows = {row.method: (row, found) for row, found in matches if len(found) == least}
    chosen = rows.get("GET" if method == "HEAD" else method)
    if chosen is None:
        allowed = ", ".join(sorted(rows) + (["HEAD"] if "GET" in rows else []))
        message = f"{method} is not for this path; it has {allowed}."
        raise HttpError(405, "METHOD_NOT_ALLOWED", message, [("Allow", allowed)])
    row, found = chosen
    parameters = {name: percent_decoded(value, f"the {name} of the path") for name, value in found.items()}
    return row, parameters, {} if row.is_open else _read_query(row, query)


def _origin_form(target: bytes) -> str:
    """Path and query of a request target; those of the absolute form, too."""
    text = target.decode("latin-1")
    if text.lower().startswith(("http://", "https://")):
        text = "/" + text.partition("://")[2].partition("/")[2]
    return text.partition("#")[0]


def percent_decoded(value: str, what: str) -> str:
    """The text of a percent-encoded one. HttpError if it cannot be decoded."""
    hexadecimal = "0123456789abcdefABCDEF"
    for piece in value.split("%")[1:]:
        if len(piece) < 2 or piece[0] not in hexadecimal or piece[1] not in hexadecimal:
            message = f"{what} is not percent-encoded: after each % come two hexadecimal digits (a % itself is %25)."
            raise HttpError(400, "INVALID_ENCODING", message)
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode("utf-8")
    except UnicodeDecodeError:
        raise HttpError(400, "INVALID_ENCODING", f"{what} is not percent-encoded UTF-8.") from None


def _read_query(row: Route, query: str) -> dict[str, Any]:
    given: dict[str, list[str]] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = (percent_decoded(part.replace("+", "%20"), "the query") for part in pair.partition("="))
        given.setdefault(name, []).append(value)
    known = {parameter.name: parameter for parameter in row.query}
    for name in given:
        if name not in known:
            message = f"there is no parameter {name!r} here; there is {', '.join(known) or 'none'}."
            raise HttpError(400, "UNKNOWN_PARAMETER", message)
    return {name: parameter.read(given.get(name, [])) for name, parameter in known.items()}
