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
VALUES_MAX = 500_000  # of all exchanges that are kept: some hundred megabytes at most
TEXT_BYTES_MAX = 200  # of bytes that are shown as text
ITEMS_MAX = 1_000  # of a list that is shown
UUID_BYTES = 16


class Exchange:
    """A request and, when it has come, its answer."""

    __slots__ = ("answer", "answered_ms", "came_ms", "context", "facts", "fate", "number", "request", "rule", "values")

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
        self.values = _count(self.request)

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
        self._exchanges: deque[Exchange] = deque()
        self._values = 0  # of those that are kept
        self.next_number = 1

    def begin(self, now_ms: int, context: RequestContext, facts: Facts, request: Any) -> Exchange:
        """A request has come."""
        exchange = Exchange(self.next_number, now_ms, context, facts, request)
        self.next_number += 1
        self._exchanges.append(exchange)
        self._grow(exchange.values)
        return exchange

    def end(self, exchange: Exchange, fate: str, now_ms: int, answer: Any = None) -> None:
        """A request was answered, or gets no answer."""
        exchange.fate, exchange.answered_ms = fate, now_ms
        first = self._exchanges[0].number if self._exchanges else self.next_number
        if isinstance(answer, Message) and exchange.number >= first:
            exchange.answer = as_json(answer)
            more = _count(exchange.answer)
            exchange.values += more
            self._grow(more)

    def _grow(self, values: int) -> None:
        """Count what is kept, and forget the oldest while it is too much."""
        self._values += values
        while len(self._exchanges) > EXCHANGES_MAX or (self._values > VALUES_MAX and len(self._exchanges) > 1):
            self._values -= self._exchanges.popleft().values

    def since(self, number: int) -> Iterator[Exchange]:
        """Those from this number on, in the order in which they came."""
        return (each for each in list(self._exchanges) if each.number >= number)


def _count(value: Any) -> int:
    """How many values there are in a value of JSON."""
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


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
