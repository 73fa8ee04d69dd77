"""The last requests with their answers, as tests look at them: bounded by number and by bytes, and without secrets.

Both are kept as frames, and decoded when somebody looks: nearly all are forgotten before. As values, thousands of them
would be a hundred thousand objects, which each full collection of garbage would look at. What is very long, and would
take milliseconds to encode, is kept as text, in which long lists are cut.
"""

import json
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any

from barnabas.broker.control.facts import Facts
from barnabas.broker.control.secrets import without_secrets
from barnabas.broker.requests import RequestContext
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.as_json import as_json
from barnabas.protocol.message import Message, Part, Struct
from barnabas.protocol.schema import Structure

EXCHANGES_MAX = 5_000
BYTES_MAX = 64 * 1024 * 1024  # of all answers that are kept, and of requests as text
ENCODED_ITEMS_MAX = 2_000  # in the lists of what is kept as a frame
FRAME_BYTES_MAX = 64 * 1024 * 1024  # of all frames of requests that are kept
SIZE_BYTES = 4
NOTHING = "null"

Kept = str | tuple[bytes | int, ...]  # text, or the parts of a frame; of records, only how many bytes they have


class Exchange:
    """A request and, when it has come, its answer."""

    __slots__ = (
        *("_answer", "_text", "answered_before", "answered_ms", "came_ms", "context", "facts", "fate", "frame"),
        *("number", "rule", "size_bytes"),
    )

    def __init__(self, number: int, came_ms: int, context: RequestContext, facts: Facts, request: Any) -> None:
        self.number = number
        self.came_ms = came_ms
        self.context = context
        self.facts = facts
        self.frame: bytes | None = None  # the request as it was sent; None: it is not kept
        if _is_short(request):  # encoded anew, because the frame that came is overwritten
            self.frame = frames.encode_request(
                context.api_key, context.api_version, context.correlation_id, context.client_id, request
            )
        self._text = "" if self.frame is not None else json.dumps(as_json(request))
        self._answer: Kept = NOTHING
        self.answered_ms: int | None = None
        self.answered_before: int | None = None  # the number of the first request that came after the answer
        self.fate = "waits"
        self.rule: int | None = None  # the rule that fired for it
        self.size_bytes = len(self._text)  # without the frame

    @property
    def request(self) -> Any:
        """The request, as values of JSON."""
        if self.frame is None:
            return json.loads(self._text)
        return as_json(frames.decode_request(memoryview(self.frame)[SIZE_BYTES:])[1])

    def forget_frame(self) -> int:
        """Keep the request as text; returns how many bytes that takes."""
        self._text, self.frame = json.dumps(self.request), None
        self.size_bytes += len(self._text)
        return len(self._text)

    @property
    def answer(self) -> Any:
        """The answer, as values of JSON; None: there is none."""
        kept = self._answer
        if isinstance(kept, str):
            return json.loads(kept)
        whole = b"".join(bytes(part) if isinstance(part, int) else part for part in kept)  # zeros for records
        answer = memoryview(whole)[SIZE_BYTES:]
        return as_json(frames.decode_response(self.context.api_key, self.context.api_version, answer)[1])

    def was_answered(self, answer: Message) -> tuple[int, list[Part] | None]:
        """Keep the answer; returns how many bytes that takes, and its frame if it was encoded."""
        context = self.context
        parts = None
        if _is_short(answer):
            parts = frames.encode_response(context.api_key, context.api_version, context.correlation_id, answer)
        self._answer = json.dumps(as_json(answer)) if parts is None else _without_records(parts)
        more_bytes = sum(len(part) for part in self._answer if not isinstance(part, int))
        self.size_bytes += more_bytes
        return more_bytes, parts

    def row(self) -> dict[str, Any]:
        """As the HTTP API shows it."""
        return {
            "number": self.number,
            "time_ms": self.came_ms,
            "api": ApiKey(self.facts.api_key).kafka_name,
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


def _without_records(parts: list[Any]) -> tuple[bytes | int, ...]:
    """What is encoded stays; large records, which are parts of their own, may be views of what is overwritten."""
    return tuple(bytes(part) if isinstance(part, bytearray) else len(part) for part in parts)


def _is_short(message: Message) -> bool:
    """Whether there are few items in its lists."""
    return _left(message, message.SCHEMA.root, ENCODED_ITEMS_MAX) >= 0


def _left(value: Struct, structure: Structure, items: int) -> int:
    """So many items less those in the lists of a structure; negative: it has more."""
    for name, inner in _lists(structure):
        listed = getattr(value, name)
        if listed:
            items -= len(listed)
            if inner is not None:
                for each in listed:
                    if items < 0:
                        break
                    items = _left(each, inner, items)
    return items


@cache
def _lists(structure: Structure) -> list[tuple[str, Structure | None]]:
    """The lists of a structure by their names, each with the structure of its items if these have lists, too."""
    return [
        (field.name, field.structure if field.structure is not None and _lists(field.structure) else None)
        for field in structure.fields
        if field.array
    ]


class Recorder:
    """Keeps the last exchanges."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque()
        self._bytes = 0  # of those that are kept, without frames
        self._whole: deque[Exchange] = deque()  # those with frames
        self._frame_bytes = 0
        self.next_number = 1

    def begin(self, now_ms: int, context: RequestContext, facts: Facts, request: Any) -> Exchange:
        exchange = Exchange(self.next_number, now_ms, context, facts, without_secrets(context.api_key, request))
        self.next_number += 1
        self._exchanges.append(exchange)
        self._grow(exchange.size_bytes)
        if exchange.frame is not None:
            self._whole.append(exchange)
            self._frame_bytes += len(exchange.frame)
            while self._frame_bytes > FRAME_BYTES_MAX:
                self._grow(self._first_with_frame().forget_frame())
        return exchange

    def _first_with_frame(self) -> Exchange:
        """The oldest that has one, which it is about to lose."""
        oldest = self._whole.popleft()
        assert oldest.frame is not None, "only those with frames are listed"
        self._frame_bytes -= len(oldest.frame)
        return oldest

    def end(self, exchange: Exchange, fate: str, now_ms: int, answer: Any = None) -> list[Part] | None:
        """A request was answered, or gets no answer. Returns the frame of the answer, if it was encoded as it is."""
        exchange.fate, exchange.answered_ms, exchange.answered_before = fate, now_ms, self.next_number
        if not isinstance(answer, Message) or exchange.number < self.first_number:
            return None
        kept = without_secrets(exchange.context.api_key, answer)
        more_bytes, frame = exchange.was_answered(kept)
        self._grow(more_bytes)
        return frame if kept is answer else None

    def _grow(self, more_bytes: int) -> None:
        """Count what is kept, and forget the oldest while it is too much."""
        self._bytes += more_bytes
        while len(self._exchanges) > EXCHANGES_MAX or (self._bytes > BYTES_MAX and len(self._exchanges) > 1):
            oldest = self._exchanges.popleft()
            self._bytes -= oldest.size_bytes
            if oldest.frame is not None:
                self._first_with_frame()

    @property
    def first_number(self) -> int:
        """The number of the oldest that is kept, or of the next one if none is."""
        return self._exchanges[0].number if self._exchanges else self.next_number

    def since(self, number: int) -> Iterator[Exchange]:
        """Those from this number on, in the order in which they came."""
        return (each for each in list(self._exchanges) if each.number >= number)
