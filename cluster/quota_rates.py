"""How much a client has used lately, and how long it has to wait, as Kafka computes both (KIP-13, 124, 219, 599).

Pure values: time comes in as an argument, in milliseconds. `tests/unit/cluster/test_quota_rates.py` compares them with
figures of Apache Kafka.

A rate is counted in windows. A window begins with the first value after the one before it has ended, and counts until
its newest value is `windows` windows old. The rate is the sum of all that count, divided by the time since the oldest
of them began; but never by less than `windows - 1` windows, so that a client may begin with a burst.

Mutations of the controller use a token bucket instead: it holds `windows` windows of tokens and fills at the rate that
is allowed. What is asked while it is not below zero is taken as a whole, and may empty it far below zero.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from barnabas.protocol.named_tuple import NamedTuple

MS = 1000.0
WAIT_MAX_MS = 2**31 - 1  # what an answer can say
USED_MAX = 10_000  # of what is remembered of one kind: clients can name themselves anew with each request
FORGOTTEN_AT_ONCE = 2  # so that forgetting keeps up with what is new, and costs little


class Windows(NamedTuple):
    """quota.window.num and quota.window.size.seconds, or those of the controller."""

    number: int
    size_seconds: int

    @property
    def size_ms(self) -> int:
        """Of one window."""
        return self.size_seconds * 1000

    @property
    def all_ms(self) -> int:
        """How long a value counts."""
        return self.number * self.size_ms

    def most(self, bound: float) -> float:
        """What may be used at once by somebody who has used nothing lately."""
        return bound * (self.number - 1) * self.size_seconds


def rounded(value: float) -> int:
    """As Java's Math.round does it."""
    return math.floor(value + 0.5)


def waiting_ms(value: float) -> int:
    """A time to wait as an answer can say it. With a very small bound it may be infinite."""
    return rounded(min(value, WAIT_MAX_MS))


class Rate:
    """What was used in the windows that count."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: list[list[float]] = []  # oldest first: when it began, when its newest value came, the sum

    def add(self, windows: Windows, value: float, now_ms: float) -> None:
        if not self._windows or now_ms - self._windows[-1][0] >= windows.size_ms:
            self._windows.append([now_ms, now_ms, value])
        else:
            newest = self._windows[-1]
            newest[1] = now_ms
            newest[2] += value

    def per_second(self, windows: Windows, now_ms: float) -> float:
        self._drop_old(windows, now_ms)
        return sum(window[2] for window in self._windows) / self._span_ms(windows, now_ms) * MS

    def is_as_new(self, windows: Windows, now_ms: float) -> bool:
        """Whether nothing counts any more."""
        self._drop_old(windows, now_ms)
        return not self._windows

    def throttle_ms(self, windows: Windows, bound: float, now_ms: float) -> int:
        """How long nothing may be used, so that the rate falls to `bound`; 0: it is not above it."""
        rate = self.per_second(windows, now_ms)
        if rate <= bound:
            return 0
        if bound <= 0:
            return windows.all_ms  # Kafka divides by zero, and waits for as long as a number can say
        return waiting_ms((rate - bound) / bound * self._span_ms(windows, now_ms))

    def _drop_old(self, windows: Windows, now_ms: float) -> None:
        while self._windows and now_ms - self._windows[0][1] >= windows.all_ms:
            del self._windows[0]

    def _span_ms(self, windows: Windows, now_ms: float) -> float:
        elapsed_ms = now_ms - self._windows[0][0] if self._windows else 0.0
        missing = windows.number - 1 - int(elapsed_ms / windows.size_ms)
        return max(elapsed_ms + max(missing, 0) * windows.size_ms, 1.0)


class TokenBucket:
    """What may still be asked for."""

    __slots__ = ("_last_ms", "_tokens", "bound")

    def __init__(self, bound: float) -> None:
        self.bound = bound  # how many come in a second; it may change
        self._tokens = math.inf  # it begins full
        self._last_ms = 0.0

    def tokens(self, windows: Windows, now_ms: float) -> float:
        """How many there are now. Below zero, nothing may be taken."""
        self._tokens = min(self._most(windows), self._tokens + self.bound * (now_ms - self._last_ms) / MS)
        self._last_ms = now_ms
        return self._tokens

    def _most(self, windows: Windows) -> float:
        return windows.number * windows.size_seconds * self.bound

    def is_as_new(self, windows: Windows, now_ms: float) -> bool:
        """Whether it is full."""
        return self.tokens(windows, now_ms) >= self._most(windows)

    def take(self, windows: Windows, count: float, now_ms: float) -> None:
        """Take so many, also if there are less."""
        self._tokens = self.tokens(windows, now_ms) - count

    def throttle_ms(self, windows: Windows, now_ms: float) -> int:
        """How long it takes until it is not below zero."""
        tokens = self.tokens(windows, now_ms)
        if tokens >= 0:
            return 0
        return waiting_ms(-tokens / self.bound * MS) if self.bound > 0 else windows.all_ms


class Forgettable(Protocol):
    """What somebody has used."""

    def is_as_new(self, windows: Windows, now_ms: float) -> bool:
        """Whether it says nothing any more."""


WhoT = TypeVar("WhoT", bound=Hashable)
UsedT = TypeVar("UsedT", bound=Forgettable)


class UsedBy(Generic[WhoT, UsedT]):
    """What each has used. What says nothing any more is forgotten; beyond `USED_MAX`, what was used longest ago."""

    def __init__(self) -> None:
        self._used: OrderedDict[WhoT, UsedT] = OrderedDict()  # used longest ago first

    def of(self, who: WhoT, make: Callable[[], UsedT], windows: Windows, now_ms: float) -> UsedT:
        """What somebody has used. Somebody new has used nothing."""
        used = self._used
        for _ in range(min(FORGOTTEN_AT_ONCE, len(used))):
            oldest = next(iter(used))
            if not used[oldest].is_as_new(windows, now_ms):
                break
            del used[oldest]
        found = used.get(who)
        if found is None:
            found = used[who] = make()
            if len(used) > USED_MAX:
                used.popitem(last=False)
        else:
            used.move_to_end(who)
        return found

    def newest(self) -> Iterable[tuple[WhoT, UsedT]]:
        """Everything that is remembered, what was used last first."""
        return reversed(self._used.items())
