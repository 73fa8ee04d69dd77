"""How fast the disk of a data directory fills: what is free, remembered for some hours, and when it will be full.

The rate counts only if the disk fills over the whole time and over its second half: a copy that has ended, or the
moment before retention takes segments, is no trend.
"""

from collections import deque
from collections.abc import Iterable

from barnabas.protocol.named_tuple import NamedTuple

LOOK_MS = 60_000.0
SPAN_MS = 6 * 3_600_000
ENOUGH_MS = 600_000  # what is known of less time says nothing of the next hours
_POINTS_MAX = SPAN_MS // int(LOOK_MS) * 2


class Filling(NamedTuple):
    """`bytes_per_second` None: not enough is known yet. `full_in_seconds` None: it does not fill, or is not known."""

    bytes_per_second: float | None
    full_in_seconds: float | None
    known_seconds: float


class FreeSpace:
    """The free bytes of one file system, as they were at each look."""

    __slots__ = ("points",)

    def __init__(self) -> None:
        self.points: deque[tuple[int, int]] = deque(maxlen=_POINTS_MAX)  # time and free bytes, the oldest first

    def add(self, now_ms: int, free: int) -> None:
        if self.points and self.points[-1][0] >= now_ms:  # the clock was set back
            self.points.clear()
        self.points.append((now_ms, free))


def filling(points: Iterable[tuple[int, int]], now_ms: int) -> Filling:
    """How fast the disk fills by these looks, and when it will be full if that goes on."""
    points = [point for point in points if now_ms - SPAN_MS <= point[0] <= now_ms]
    known_ms = points[-1][0] - points[0][0] if points else 0
    if known_ms < ENOUGH_MS:
        return Filling(None, None, known_ms / 1000)
    (first_ms, first), (last_ms, last) = points[0], points[-1]
    middle = next(point for point in points if point[0] >= first_ms + known_ms / 2)
    of_all = (first - last) / (known_ms / 1000)
    of_half = (middle[1] - last) / ((last_ms - middle[0]) / 1000) if last_ms > middle[0] else of_all
    rate = min(of_all, of_half)
    return Filling(rate, last / rate if rate > 0 else None, known_ms / 1000)
