"""The log lines that say which requests of clients were refused, and why.

The first refusal of a kind from a client in a minute is logged at INFO, and all others at DEBUG. Every handler that
refuses something calls `Refusals.note`.
"""

import logging

from barnabas.broker.context import RequestContext
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.ports import Clock

logger = logging.getLogger("barnabas.broker.refusals")

TOLD_EVERY_MS = 60_000
KINDS_MAX = 1_000  # in a minute; any more are logged at DEBUG only
CHARACTERS_MAX = 100  # of a text that a client chose

# A client, by host and id; the API; the error.
Kind = tuple[str, str | None, int, ErrorCode]

# By API key.
_NOT_BUILT = {
    "the consumer group protocol (group.protocol=consumer) is": (68, 69),
    "share groups are": (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
    "streams groups are": (88, 89),
    "SASL is": (17, 36, 50, 51),
    "authorization is": (29, 30, 31),
    "delegation tokens are": (38, 39, 40, 41),
    "quotas are": (48, 49),
    "reassignments and elections on request are": (34, 43, 45, 46),
}
_FEATURE_OF = {key: feature for feature, keys in _NOT_BUILT.items() for key in keys}


def not_built(api_key: int) -> str:
    """The reason why this API is not offered, for the log."""
    return f"{_FEATURE_OF.get(api_key, 'this API is')} not built yet"


class Refusals:
    """Logs refusals, and remembers for a minute which kinds it has logged."""

    def __init__(self, clock: Clock) -> None:
        self.counts: dict[tuple[int, ErrorCode], int] = {}  # so far, by API key (-1: beyond KINDS_MAX) and error
        self._clock = clock
        self._minute_ends_ms = 0.0
        self._told: dict[Kind, int] = {}  # in this minute: how many followed the first
        self._told_before: dict[Kind, int] = {}  # the same of the minute before

    def note(self, context: RequestContext, error: ErrorCode, what: str, *values: object) -> None:
        """Log that a request, or a part of it, is refused with this error. `what % values` says what was refused."""
        counted = context.api_key, error
        if len(self.counts) >= KINDS_MAX and counted not in self.counts:  # a client may send any number as the key
            counted = -1, error
        self.counts[counted] = self.counts.get(counted, 0) + 1
        if not logger.isEnabledFor(logging.INFO):
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._minute_ends_ms:
            lately = now_ms < self._minute_ends_ms + TOLD_EVERY_MS
            self._told_before, self._told = (self._told if lately else {}), {}
            self._minute_ends_ms = now_ms + TOLD_EVERY_MS
        client_id = context.client_id and context.client_id[:CHARACTERS_MAX]
        kind = (context.client_host, client_id, context.api_key, error)
        level = logging.DEBUG
        if kind in self._told:
            self._told[kind] += 1
        elif len(self._told) < KINDS_MAX:
            self._told[kind] = 0
            level = logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, "%s", self._text(kind, what, values, self._told_before.pop(kind, 0)))

    @staticmethod
    def _text(kind: Kind, what: str, values: tuple[object, ...], more_before: int) -> str:
        host, client_id, api_key, error = kind
        cut = tuple(value[:CHARACTERS_MAX] if isinstance(value, str) else value for value in values)
        text = f"{api_name(api_key)} of client {client_id!r} at {host[1:]}: {error.name}: {what % cut}"
        return f"{text} ({more_before:,} more of this kind in the minute before)" if more_before else text


def api_name(api_key: int) -> str:
    """Kafka's name of an API, or its number."""
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"API key {api_key}"
