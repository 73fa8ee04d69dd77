"""The log lines that say which requests of clients were refused, and why.

The first refusal of a kind from a client in a minute is logged at INFO, and all others at DEBUG. Every handler that
refuses something calls `Refusals.note`.
"""

import logging
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.ports import TOO_MANY_OPEN, Clock

logger = logging.getLogger("barnabas.broker.refusals")

TOLD_EVERY_MS = 60_000
KINDS_MAX = 1_000  # in a minute; for any more, client ids are not told apart
CHARACTERS_MAX = 100  # of a text that a client chose

K = TypeVar("K", bound=Hashable)

# A client, by host, id and principal; the API; the error.
Kind = tuple[str, str | None, str, int, ErrorCode]
NO_API = -1  # of a request of the HTTP API that stands for none of Kafka's; and of those beyond KINDS_MAX

# What is not built yet, with the keys of its APIs. docs/differences.md has this table.
NOT_BUILT = {
    "share groups": (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
    "streams groups": (88, 89, 93),
    "reassignment of partitions": (45, 46),
    "moves of replicas between directories": (34,),
    "client telemetry": (71, 72),
    "KRaft": (52, 53, 54, 55, 58, 59, 62, 63, 64, 70, 73, 80, 81, 82, 94),
}
_FEATURE_OF = {key: feature for feature, keys in NOT_BUILT.items() for key in keys}


def not_built(api_key: int) -> str:
    """The reason why this API is not offered, for the log."""
    return f"not built yet: {_FEATURE_OF.get(api_key, 'this API')}"


class Asking(Protocol):
    """A request, as far as a log line names it."""

    api_key: int
    client_id: str | None
    client_host: str
    principal: str


class OnceAMinute(Generic[K]):
    """Remembers for a minute which kinds of events were told, and how many followed the first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._minute_ends_ms = 0.0
        self._told: dict[K, int] = {}  # in this minute: how many followed the first
        self._told_before: dict[K, int] = {}  # the same of the minute before

    def is_first(self, kind: K) -> bool:
        """Count an event; whether it is the first of its kind in this minute. False, too, for one kind too many."""
        if not self.has_room(kind):
            return False
        if kind in self._told:
            self._told[kind] += 1
            return False
        self._told[kind] = 0
        return True

    def has_room(self, kind: K) -> bool:
        """Whether events of this kind are counted in this minute: there are not too many other kinds."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._minute_ends_ms:
            lately = now_ms < self._minute_ends_ms + TOLD_EVERY_MS
            self._told_before, self._told = (self._told if lately else {}), {}
            self._minute_ends_ms = now_ms + TOLD_EVERY_MS
        return kind in self._told or len(self._told) < KINDS_MAX

    def take_before(self, kind: K) -> int:
        """How many of the minute before were not told. They are forgotten."""
        return self._told_before.pop(kind, 0)


class Refusals:
    """Logs refusals: the first of a kind in a minute."""

    def __init__(self, clock: Clock) -> None:
        self.counts: dict[tuple[int, ErrorCode], int] = {}  # so far, by API key (or NO_API) and error
        self._once: OnceAMinute[Kind] = OnceAMinute(clock)
        self._once_for_all: OnceAMinute[Kind] = OnceAMinute(clock)  # client ids, of who comes under too many of them

    def note(self, context: Asking, error: ErrorCode, what: str, *values: object) -> None:
        """Log that a request, or a part of it, is refused with this error. `what % values` says what was refused."""
        counted = context.api_key, error
        if len(self.counts) >= KINDS_MAX and counted not in self.counts:  # a client may send any number as the key
            counted = NO_API, error
        self.counts[counted] = self.counts.get(counted, 0) + 1
        if not logger.isEnabledFor(logging.INFO):
            return
        client_id = context.client_id and context.client_id[:CHARACTERS_MAX]
        kind: Kind = (context.client_host, client_id, context.principal, context.api_key, error)
        once = self._once
        if not once.has_room(kind):  # nobody can keep out of the log what others do, or what it does itself
            kind, once = (context.client_host, None, context.principal, context.api_key, error), self._once_for_all
        level = logging.INFO if once.is_first(kind) else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(level, "%s", self._text(kind, client_id, what, values, once.take_before(kind)))

    @staticmethod
    def _text(kind: Kind, client_id: str | None, what: str, values: tuple[object, ...], more_before: int) -> str:
        host, _, _, api_key, error = kind
        cut = tuple(value[:CHARACTERS_MAX] if isinstance(value, str) else value for value in values)
        text = f"{api_name(api_key)} of client {client_id!r} at {host[1:]}: {error.name}: {what % cut}"
        return f"{text} ({more_before:,} more of this kind in the minute before)" if more_before else text


def api_name(api_key: int) -> str:
    """Kafka's name of an API, or its number."""
    if api_key == NO_API:
        return "another request"
    try:
        return ApiKey(api_key).kafka_name
    except ValueError:
        return f"API key {api_key}"


def no_descriptor(error: BaseException | None) -> str | None:
    """What to say if a request met the limit of open files; None: it did not."""
    if not isinstance(error, OSError) or error.errno not in TOO_MANY_OPEN:
        return None
    return f"no file descriptor is free ({error}): raise the limit (ulimit -n), or see what has them open"
