"""What clients have used of their quotas, and how long each has to wait (KIP-13, 124, 219, 599).

Connections ask it only while there are quotas, so that a broker without them does not pay. A request is counted when it
is answered; the time in which its answer is encoded and sent comes later, and counts when the client asks next. If it
is above its quota, the answer says how long it has to wait, and goes out at once; then the connection handles nothing
for so long. A fetch above its quota is answered without records, and does not count.

What brokers ask each other is not counted, nor what this broker asks itself. But whoever may not act as a broker is
counted whatever it asks; and so is, in Kafka and here, everybody who sends one of `COUNTED_OF_BROKERS`.
"""

import hashlib
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from barnabas.broker.fetch_sessions import EPOCH_INITIAL, FetchSessionCache
from barnabas.cluster.quota_rates import Rate, TokenBucket, UsedBy, Windows
from barnabas.cluster.quota_table import FETCH, MUTATIONS, OF_CLIENTS, PRODUCE, REQUEST, Limit, QuotaTable
from barnabas.cluster.security.acls import NAME_CHARACTERS_MAX
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.frames import EncodedFrame, EncodedResponse, encode_response
from barnabas.protocol.message import Message
from barnabas.protocol.messages import FetchRequest, FetchResponse
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Clock
from barnabas.storage.open_files import FileRange

FIRST_FLEXIBLE_FETCH: Final = 12
PERCENT_OF_MS: Final = 0.1  # of a second
COUNTED_OF_BROKERS: Final = {ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN}
# Their answers say how long the client has to wait, if it changes too many partitions.
MUTATING: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}  # strict from here on


class Used(NamedTuple):
    """What a request has used of its quotas when its handler has returned."""

    frame_bytes: int
    handled_ms: float  # how long it was decoded and handled


class Asked(Protocol):
    """The context of a request, as far as quotas look at it."""

    api_key: int
    api_version: int
    client_host: str
    client_id: str | None
    correlation_id: int
    principal: str
    used: Used | None


class Row(Protocol):
    """An API."""

    key: ApiKey


class Gate(Protocol):
    """What hands requests to their handlers."""

    def handle(self, api: Any, request: Any, context: Any) -> Any:
        """What the handler returns."""

    def is_of_broker(self, api: Any, request: Any, sender: Any) -> bool:
        """Whether a broker has sent a request, and not somebody who only claims to be one."""


class Sharing(NamedTuple):
    """Who uses a quota together. None stands for everybody."""

    key: str
    user: str | None
    client_id: str | None

    @classmethod
    def of(cls, key: str, limit: Limit) -> "Sharing":
        """Those for whom a limit counts."""
        return cls(key, _short(limit.user), _short(limit.client_id))


def _short(name: str | None) -> str | None:
    """A long name by its digest."""
    if name is None or len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[:20]}… ({hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()})"


class Sending:
    """Counts the time in which an answer is encoded and sent."""

    __slots__ = ("_context", "_throttles", "began_ms", "now_ms")

    def __init__(self, throttles: "Throttles", context: Asked) -> None:
        self._throttles = throttles
        self._context = context
        self.now_ms = throttles.now_ms
        self.began_ms = self.now_ms()

    def note(self, began_ms: float) -> None:
        """Count the time since then. Nobody waits for it before the next request."""
        self._throttles.add(REQUEST, self._context, (self.now_ms() - began_ms) * PERCENT_OF_MS)


class Throttles:
    """Counts what clients use."""

    def __init__(
        self, clock: Clock, config: BrokerConfig, table: QuotaTable, fetch_sessions: FetchSessionCache
    ) -> None:
        self._clock = clock
        self._config = config
        self._table = table
        self._fetch_sessions = fetch_sessions
        self._rates: UsedBy[Sharing, Rate] = UsedBy()
        self._buckets: UsedBy[Sharing, TokenBucket] = UsedBy()
        self.throttled = dict.fromkeys(OF_CLIENTS, 0)  # requests so far whose client had to wait, by quota
        self.throttled_ms = dict.fromkeys(OF_CLIENTS, 0)  # how long, in sum

    @property
    def windows(self) -> Windows:
        """In which bytes and request time are counted."""
        return Windows(self._config.quota_window_num, self._config.quota_window_size_seconds)

    def rates(self, most: int) -> list[tuple[Sharing, float]]:
        """What is used now, a second: bytes, or percent of a processor. If there are too many: what was used last."""
        now_ms, windows = self.now_ms(), self.windows
        return [(sharing, rate.per_second(windows, now_ms)) for sharing, rate in islice(self._rates.newest(), most)]

    # ------------------------------------------------------------------ a request

    def handle(self, gate: Gate, api: Row, request: Any, context: Asked, frame_bytes: int, began_ms: float) -> Any:
        """What the handler returns. How long that took since `began_ms` is noted."""
        if api.key not in COUNTED_OF_BROKERS and gate.is_of_broker(api, request, context):
            return gate.handle(api, request, context)
        if api.key == ApiKey.FETCH:
            self._limit_bytes(request, context)
        reply = gate.handle(api, request, context)
        context.used = Used(frame_bytes, self.now_ms() - began_ms)
        return reply

    @staticmethod
    def are_asked(context: Asked) -> bool:
        """Whether the request has to be counted: there were quotas when it came, and no broker has sent it."""
        return getattr(context, "used", None) is not None

    def answer(self, api: Row, request: Any, context: Asked, reply: Any) -> tuple[Any, int, Sending]:
        """Count a request that is answered: the answer, how long its client has to wait, in milliseconds, and what
        counts the time in which it is sent."""
        reply, throttle_ms = self._counted(api, request, context, reply)
        return reply, throttle_ms, Sending(self, context)

    def _counted(self, api: Row, request: Any, context: Asked, reply: Any) -> tuple[Any, int]:
        used = context.used
        assert used is not None
        context.used = None
        request_ms = self._use(REQUEST, context, used.handled_ms * PERCENT_OF_MS, most_ms=self.windows.size_ms)
        if api.key == ApiKey.FETCH:
            return self._answer_fetch(request, context, reply, request_ms)
        throttle_ms = request_ms
        if api.key == ApiKey.PRODUCE:
            throttle_ms = max(throttle_ms, self._use(PRODUCE, context, used.frame_bytes))
        if isinstance(reply, Message) and hasattr(reply, "throttle_time_ms"):
            if api.key in MUTATING:
                throttle_ms = max(throttle_ms, reply.throttle_time_ms)
            reply.throttle_time_ms = throttle_ms
        return reply, throttle_ms

    def _limit_bytes(self, request: FetchRequest, context: Asked) -> None:
        """Nobody gets more in one answer than it may in all windows."""
        limit = self._limit(FETCH, context)
        if limit is not None:
            most = int(min(self.windows.most(limit.bound), 2**31 - 1))
            request.max_bytes = min(request.max_bytes, most)
            request.min_bytes = min(request.min_bytes, request.max_bytes)

    def _answer_fetch(self, request: FetchRequest, context: Asked, reply: Any, request_ms: int) -> tuple[Any, int]:
        """The answer; without records if the client is above a quota."""
        version, correlation_id = context.api_version, context.correlation_id
        parts: list[Any] = []
        if isinstance(reply, Message):
            parts = encode_response(ApiKey.FETCH, version, correlation_id, reply)
        elif isinstance(reply, EncodedResponse):
            parts = [reply.frame(correlation_id)]
        elif isinstance(reply, EncodedFrame):
            parts = reply.parts
        size = sum(len(part) for part in parts) - 4
        if version >= FIRST_FLEXIBLE_FETCH:
            size -= 1  # Kafka does not count the tags of the header
        fetch_ms = self._use(FETCH, context, size)
        throttle_ms = max(fetch_ms, request_ms)
        if not throttle_ms:
            return (EncodedFrame(parts) if isinstance(reply, Message) else reply), 0
        self.add(FETCH, context, -size)
        for part in parts:
            if isinstance(part, FileRange):
                part.release()
        return FetchResponse(session_id=self._unsent(request), throttle_time_ms=throttle_ms), throttle_ms

    def _unsent(self, request: FetchRequest) -> int:
        """The session of a fetch whose answer is not sent: its next answer has all that it would have told."""
        session = self._fetch_sessions.of(request.session_id)
        if session is None or request.session_epoch <= EPOCH_INITIAL:
            return 0
        for partition in session.partitions.values():
            partition.sent_high_watermark = -1
        return session.id

    # ------------------------------------------------------------------ quotas

    def _limit(self, key: str, context: Asked) -> Limit | None:
        return self._table.limit(key, context.principal.partition(":")[2], context.client_id or "")

    def _use(self, key: str, context: Asked, amount: float, most_ms: int | None = None) -> int:
        """Note that the client has used so much. How long it has to wait."""
        limit = self._limit(key, context)
        if limit is None:
            return 0
        now_ms = self.now_ms()
        windows = self.windows
        rate = self._rates.of(Sharing.of(key, limit), Rate, windows, now_ms)
        rate.add(windows, amount, now_ms)
        throttle_ms = rate.throttle_ms(windows, limit.bound, now_ms)
        if most_ms is not None:
            throttle_ms = min(throttle_ms, most_ms)
        self.note(key, throttle_ms)
        return throttle_ms

    def add(self, key: str, context: Asked, amount: float) -> None:
        """Note that the client has used so much more, or less. It does not wait for that now."""
        limit = self._limit(key, context)
        if limit is not None:
            now_ms = self.now_ms()
            self._rates.of(Sharing.of(key, limit), Rate, self.windows, now_ms).add(self.windows, amount, now_ms)

    def mutations(self, context: Asked) -> "Mutations":
        """The quota for what a request does to partitions."""
        limit = self._limit(MUTATIONS, context)
        windows = Windows(self._config.controller_quota_window_num, self._config.controller_quota_window_size_seconds)
        if limit is None:
            return Mutations(self, None, windows, is_strict=False)
        make = partial(TokenBucket, limit.bound)
        bucket = self._buckets.of(Sharing.of(MUTATIONS, limit), make, windows, self.now_ms())
        bucket.bound = limit.bound
        is_strict = context.api_version >= MUTATING.get(ApiKey(context.api_key), 0)  # or Metadata, which is not told
        return Mutations(self, bucket, windows, is_strict=is_strict)

    def now_ms(self) -> float:
        return self._clock.monotonic_ms()

    def note(self, key: str, throttle_ms: int) -> None:
        """Count that a client has to wait."""
        if throttle_ms:
            self.throttled[key] += 1
            self.throttled_ms[key] += throttle_ms


class Mutations:
    """What one request does to partitions: creates them, deletes them (KIP-599).

    A client that knows THROTTLING_QUOTA_EXCEEDED is refused while its bucket is below zero. An older one is never
    refused, and only has to wait.
    """

    __slots__ = ("_at_ms", "_bucket", "_is_strict", "_throttle_ms", "_throttles", "_windows")

    def __init__(self, throttles: Throttles, bucket: TokenBucket | None, windows: Windows, *, is_strict: bool) -> None:
        self._throttles = throttles
        self._bucket = bucket  # None: there is no quota
        self._windows = windows
        self._is_strict = is_strict
        self._throttle_ms = 0
        self._at_ms = 0.0

    def may(self, count: int) -> bool:
        """Whether so many partitions may be changed now. If so, they count."""
        bucket, windows = self._bucket, self._windows
        if bucket is None:
            return True
        self._at_ms = self._throttles.now_ms()
        if self._is_strict and bucket.tokens(windows, self._at_ms) < 0:
            self._throttle_ms = bucket.throttle_ms(windows, self._at_ms)
            return False
        bucket.take(windows, count, self._at_ms)
        if not self._is_strict:
            self._throttle_ms = bucket.throttle_ms(windows, self._at_ms)
        return True

    def throttle_ms(self) -> int:
        """How long the client has to wait from now on."""
        left_ms = max(self._throttle_ms - int(self._throttles.now_ms() - self._at_ms), 0)
        self._throttles.note(MUTATIONS, left_ms)
        return left_ms
