"""The last requests with their answers, decoded, as tests look at them. It is bounded by number and by bytes."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from barnabas.broker.control.facts import Facts
from barnabas.broker.requests import RequestContext
from barnabas.protocol import uuids
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Message, Struct

EXCHANGES_MAX = 5_000
TEXT_BYTES_MAX = 200  # of bytes that are shown as text
ITEMS_MAX = 1_000  # of a list that is shown
UUID_BYTES = 16


class Exchange:
    """A request and, when it has come, its answer."""

    __slots__ = ("answer", "answered_ms", "came_ms", "context", "facts", "fate", "number", "request", "rule")

    def __init__(self, number: int, came_ms: int, context: RequestContext, facts: Facts, request: Any) -> None:
        self.number = number
        self.came_ms = came_ms
        self.context = context
        self.facts = facts
        self.request = as_json(request)  # at once: its bytes lie in a frame that is overwritten
        self.answer: Any = None
        self.answered_ms: int | None = None
        self.fate = "waits"
        self.rule: int | None = None  # the rule that fired for it

    def end(self, fate: str, now_ms: int, answer: Any = None) -> None:
        """It was answered, or has got no answer."""
        self.fate, self.answered_ms = fate, now_ms
        if isinstance(answer, Message):
            self.answer = as_json(answer)

    def row(self) -> dict[str, Any]:
        """As the HTTP API shows it."""
        return {
            "number": self.number,
            "time_ms": self.came_ms,
            "api": ApiKey(self.facts.api_key).name,
            "version": self.facts.version,
            "client_id": self.facts.client_id,
            "client_host": self.context.client_host.removeprefix("/"),
            "correlation_id": self.context.correlation_id,
            "groups": sorted(self.facts.groups),
            "topics": sorted(self.facts.topics),
            "transactional_ids": sorted(self.facts.transactional_ids),
            "fate": self.fate,
            "answered_ms": self.answered_ms,
            "rule": self.rule,
            "request": self.request,
            "answer": self.answer,
        }


class Recorder:
    """Keeps the last exchanges."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=EXCHANGES_MAX)
        self.next_number = 1

    def begin(self, now_ms: int, context: RequestContext, facts: Facts, request: Any) -> Exchange:
        """A request has come."""
        exchange = Exchange(self.next_number, now_ms, context, facts, request)
        self.next_number += 1
        self._exchanges.append(exchange)
        return exchange

    def since(self, number: int) -> Iterator[Exchange]:
        """Those from this number on, in the order in which they came."""
        return (each for each in list(self._exchanges) if each.number >= number)


def as_json(value: Any) -> Any:
    """A structure of the protocol as values of JSON. Records are a length, other bytes a text if they are one."""
    if isinstance(value, Struct):
        return {name: _field(name, getattr(value, name)) for name in value._FIELDS}
    return _field("", value)


def _field(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_field(name, each) for each in value[:ITEMS_MAX]]
    if isinstance(value, Struct):
        return as_json(value)
    if isinstance(value, bytes | bytearray | memoryview):
        if name.endswith("_id") and len(value) == UUID_BYTES:
            return uuids.to_text(bytes(value))
        if name == "records":
            return {"bytes": len(value)}
        return bytes(value[:TEXT_BYTES_MAX]).decode(errors="replace")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return {"bytes": len(value)}  # records that are read from a file while they are sent
