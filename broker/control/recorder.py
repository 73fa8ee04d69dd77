"""The last requests with their answers, decoded, as tests look at them. It is bounded by number and by bytes, and has
no secrets."""

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

from barnabas.broker.control.facts import Facts
from barnabas.broker.control.secrets import without_secrets
from barnabas.broker.requests import RequestContext
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.as_json import as_json
from barnabas.protocol.message import Message

EXCHANGES_MAX = 5_000
VALUES_MAX = 500_000  # of all exchanges that are kept: some hundred megabytes at most
FRAME_VALUES_MAX = 10_000  # of a request whose frame is kept: more would take milliseconds to encode
FRAME_BYTES_MAX = 64 * 1024 * 1024  # of all frames that are kept


class Exchange:
    """A request and, when it has come, its answer.

    Both are kept as text: thousands of them as values are a hundred thousand objects, which each full collection of
    garbage would look at.
    """

    __slots__ = (
        *("_answer", "_request", "answered_before", "answered_ms", "came_ms", "context", "facts", "fate", "frame"),
        *("number", "rule", "values"),
    )

    def __init__(self, number: int, came_ms: int, context: RequestContext, facts: Facts, request: Any) -> None:
        self.number = number
        self.came_ms = came_ms
        self.context = context
        self.facts = facts
        told = as_json(request)  # at once: its bytes lie in a frame that is overwritten
        self._request = json.dumps(told)
        self._answer = "null"
        self.answered_ms: int | None = None
        self.answered_before: int | None = None  # the number of the first request that came after the answer
        self.frame: bytes | None = None  # the request as it was sent; None: it is not kept
        self.fate = "waits"
        self.rule: int | None = None  # the rule that fired for it
        self.values = _count(told)

    @property
    def request(self) -> Any:
        """The request, as values of JSON."""
        return json.loads(self._request)

    @property
    def answer(self) -> Any:
        """The answer, as values of JSON; None: there is none."""
        return json.loads(self._answer)

    def was_answered(self, answer: Any) -> int:
        """Keep the answer; returns how many values it has."""
        told = as_json(answer)
        self._answer = json.dumps(told)
        more = _count(told)
        self.values += more
        return more

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
            "answered_before": self.answered_before,
            "rule": self.rule,
            "request": self.request,
            "answer": self.answer,
        }


class Recorder:
    """Keeps the last exchanges."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque()
        self._values = 0  # of those that are kept
        self._whole: deque[Exchange] = deque()  # those with frames
        self._frame_bytes = 0
        self.next_number = 1

    def begin(self, now_ms: int, context: RequestContext, facts: Facts, request: Any) -> Exchange:
        """A request has come."""
        request = without_secrets(context.api_key, request)
        exchange = Exchange(self.next_number, now_ms, context, facts, request)
        self.next_number += 1
        self._exchanges.append(exchange)
        self._grow(exchange.values)
        if exchange.values <= FRAME_VALUES_MAX:
            self._keep_frame(exchange, request)
        return exchange

    def _keep_frame(self, exchange: Exchange, request: Any) -> None:
        """Keep what a replay sends: encoded anew, because the frame that came is overwritten."""
        context = exchange.context
        exchange.frame = frames.encode_request(
            context.api_key, context.api_version, context.correlation_id, context.client_id, request
        )
        self._whole.append(exchange)
        self._frame_bytes += len(exchange.frame)
        while self._frame_bytes > FRAME_BYTES_MAX:
            self._forget_frame()

    def _forget_frame(self) -> None:
        """Of the oldest exchange that has one."""
        oldest = self._whole.popleft()
        assert oldest.frame is not None, "only those with frames are listed"
        self._frame_bytes -= len(oldest.frame)
        oldest.frame = None

    def end(self, exchange: Exchange, fate: str, now_ms: int, answer: Any = None) -> None:
        """A request was answered, or gets no answer."""
        exchange.fate, exchange.answered_ms, exchange.answered_before = fate, now_ms, self.next_number
        if isinstance(answer, Message) and exchange.number >= self.first_number:
            self._grow(exchange.was_answered(without_secrets(exchange.context.api_key, answer)))

    def _grow(self, values: int) -> None:
        """Count what is kept, and forget the oldest while it is too much."""
        self._values += values
        while len(self._exchanges) > EXCHANGES_MAX or (self._values > VALUES_MAX and len(self._exchanges) > 1):
            oldest = self._exchanges.popleft()
            self._values -= oldest.values
            if oldest.frame is not None:
                self._forget_frame()

    @property
    def first_number(self) -> int:
        """The number of the oldest that is kept, or of the next one if none is."""
        return self._exchanges[0].number if self._exchanges else self.next_number

    def since(self, number: int) -> Iterator[Exchange]:
        """Those from this number on, in the order in which they came."""
        return (each for each in list(self._exchanges) if each.number >= number)


def _count(value: Any) -> int:
    """How many values there are in a value of JSON."""
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1
