"""How the lag of each group went during the last day, in bounded memory.

A point is what a group had before it, what it had behind it, in how many partitions, and what went unread. The older
points are, the fewer are kept: their distance grows with their age. Nothing is added while nothing changes, so a point
holds until the next one.
"""

from array import array
from collections.abc import Iterator

from barnabas.protocol.named_tuple import NamedTuple

SPAN_MS = 86_400_000
BYTES_MAX = 16 << 20  # of all groups together
POINTS_MAX = 240
POINTS_MIN = 24
RATE_WINDOW_MS = 300_000
_FIELDS = 5
_POINT_BYTES = _FIELDS * 8
_GROUP_BYTES = 300  # what the objects of a group take without its points
_FINEST_MS = 30_000


class Point(NamedTuple):
    """At `time_ms`, `records` were not read; `position` is the sum of the offsets of all `partitions` that counted.

    `lost` offsets are between these and the starts of the logs: records that went before the group read them.
    """

    time_ms: int
    records: int
    position: int
    partitions: int
    lost: int = 0

    @property
    def end(self) -> int:
        """The sum of the ends of the logs."""
        return self.position + self.lost + self.records


class Rates(NamedTuple):
    """Records a second, and how long it takes until nothing is left to read. None: not known, or never at this rate."""

    consumed: float | None
    produced: float | None
    catch_up_seconds: float | None


NO_RATES = Rates(None, None, None)


class LagHistories:
    """The history of every group."""

    __slots__ = ("_bytes_max", "_groups", "memory_bytes")

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.memory_bytes = 0  # about; of all points
        self._groups: dict[str, array[int]] = {}  # the group that changed last at the end

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def points_max(self) -> int:
        """How many points each group may have. It falls with the number of groups."""
        each = self._bytes_max // max(len(self._groups), 1) - _GROUP_BYTES
        return min(max(each // _POINT_BYTES, POINTS_MIN), POINTS_MAX)

    def add(self, group_id: str, point: Point, interval_ms: int) -> None:
        """Add a point that was taken `interval_ms` after the last look. Nothing changed up to that last look."""
        points = self._take(group_id)
        if points is None or points[-_FIELDS] >= point.time_ms:  # or the clock was set back
            points = array("q")
        else:
            still_ms = point.time_ms - interval_ms
            if still_ms - points[-_FIELDS] >= interval_ms:
                points.extend((still_ms, *points[-_FIELDS + 1 :]))
        points.extend(point)
        most = self.points_max
        if len(points) > most * _FIELDS:
            points = _thinned(points, most)
        self._groups[group_id] = points
        self.memory_bytes += _bytes_of(points)
        while self.memory_bytes > self._bytes_max:  # the group that has not changed for the longest time
            self._take(next(iter(self._groups)))

    def _take(self, group_id: str) -> "array[int] | None":
        points = self._groups.pop(group_id, None)
        if points is not None:
            self.memory_bytes -= _bytes_of(points)
        return points

    def keep_only(self, group_ids: set[str]) -> None:
        """Forget all other groups."""
        for group_id in self._groups.keys() - group_ids:
            self._take(group_id)

    def last(self, group_id: str) -> Point | None:
        """The newest point of a group."""
        points = self._groups.get(group_id)
        return None if points is None else Point(*points[-_FIELDS:])

    def of_group(self, group_id: str) -> list[Point]:
        """The points of a group, oldest first."""
        points = self._groups.get(group_id, ())
        return [Point(*points[at : at + _FIELDS]) for at in range(0, len(points), _FIELDS)]


def _bytes_of(points: "array[int]") -> int:
    return len(points) * points.itemsize + _GROUP_BYTES


def _thinned(points: "array[int]", points_max: int) -> "array[int]":
    """Half of `points_max` points, whose distance grows with their age, and nothing older than a day."""
    share = 1 - (_FINEST_MS / SPAN_MS) ** (2 / points_max)
    now_ms = kept_ms = points[-_FIELDS]
    kept = [len(points) - _FIELDS]
    for at in range(len(points) - 2 * _FIELDS, -1, -_FIELDS):
        time_ms = points[at]
        if now_ms - time_ms > SPAN_MS:
            break
        if kept_ms - time_ms >= share * (now_ms - time_ms):
            kept.append(at)
            kept_ms = time_ms
    thinned = array("q")
    for at in reversed(kept[: points_max - 1]):
        thinned.extend(points[at : at + _FIELDS])
    return thinned


def rates(points: list[Point], now_ms: int, window_ms: int = RATE_WINDOW_MS) -> Rates:
    """How fast the group reads and others write, over the last minutes.

    Only points since the last reset of offsets, and since the group has had offsets in other partitions, say that.
    """
    if not points:
        return NO_RATES
    newest = points[-1]
    oldest = newest
    passed_over = 0  # offsets of records that were lost, where the group went on at the start of a log
    for point in _same_course(points):
        if oldest.time_ms <= now_ms - window_ms:
            break
        passed_over += max(point.lost - oldest.lost, 0)
        oldest = point
    span = (max(now_ms, newest.time_ms) - max(oldest.time_ms, now_ms - window_ms)) / 1000
    if span <= 0 or (oldest is newest and newest.time_ms > now_ms - window_ms):
        return NO_RATES
    part = 1.0
    if oldest.time_ms < now_ms - window_ms and newest.time_ms > oldest.time_ms:  # the window begins between two points
        part = max(newest.time_ms - (now_ms - window_ms), 0) / (newest.time_ms - oldest.time_ms)
    consumed = max(newest.position - oldest.position - passed_over, 0) * part / span
    produced = (newest.end - oldest.end) * part / span
    if not newest.records:
        return Rates(consumed, produced, 0.0)
    faster = consumed - produced
    return Rates(consumed, produced, newest.records / faster if faster > 0 else None)


def _same_course(points: list[Point]) -> Iterator[Point]:
    """From the newest point back to where offsets went backwards, or partitions came or went."""
    later = points[-1]
    for point in reversed(points):
        if point.partitions != later.partitions or point.position > later.position:
            return
        yield point
        later = point
