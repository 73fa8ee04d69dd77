"""How the lag of the groups of this broker goes: a look at all of them every half minute, by offsets alone.

Where no record was written and no offset committed since the last look, a group is passed over. The looks fill the
history of lag (`offsets/lag_history.py`), and tell in the log when records went, or will soon go, that a group has not
read.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.standstill import Standstills, Unread
from barnabas.offsets.lag_history import LagHistories, Point
from barnabas.offsets.table import Positions
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.counted import counted
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import Pieces
from barnabas.runtime.upkeep import Task, Work

logger = logging.getLogger("barnabas.groups")

SAMPLE_MS = 30_000
_GROUPS_PER_PIECE = 10
_LINES_MAX = 10  # of each kind in the log, for one look


class LogRange(NamedTuple):
    """Where a partition's log begins and ends for a consumer.

    Below `goes_below`, retention takes it before long, from the time `goes_ms` on.
    """

    start: int
    end: int
    goes_below: int = -1
    goes_ms: int = -1


class LogRanges(Protocol):
    """What a broker knows of the logs that groups read."""

    def of_topic(self, topic: str) -> Pieces[Mapping[int, LogRange]]:
        """By partition. One that is not known is missing."""

    def refresh(self) -> Work:
        """Ask the leaders of the partitions elsewhere that `of_topic` was asked for."""


class Threat(NamedTuple):
    """So many records of a group go before long, the first at `goes_ms`, of `topic`."""

    records: int
    goes_ms: int
    topic: str


class _Ends(NamedTuple):
    log_end_offset: int
    high_watermark: int
    has_moved: bool


class _Topic:
    __slots__ = ("has_changed", "ranges", "round")

    def __init__(self) -> None:
        self.ranges: Mapping[int, LogRange] = {}
        self.round = -1
        self.has_changed = True


class LagSampling:
    """The row of the upkeep, and what it has found."""

    def __init__(
        self, env: Env, shards: Callable[[], list[Shard]], ranges: LogRanges, interval_ms: Callable[[], float]
    ) -> None:
        self._env = env
        self._interval_ms = interval_ms
        self._shards = shards
        self._ranges = ranges
        self.histories = LagHistories()
        self.standstills = Standstills()
        self.past_end: dict[str, int] = {}  # group -> partitions where more is committed than there is
        self.lost: dict[str, int] = {}  # group -> records that went before it read them
        self.threatened: dict[str, Threat] = {}
        self.since_ms: int | None = None  # when the first look was over
        self._topics: dict[str, _Topic] = {}
        self._round = 0
        self._last_ms = 0
        self._ends: dict[Shard, _Ends] = {}  # of the offsets partitions, at the last look
        self._lines: dict[str, int] = {}
        self._task: Task[Shard | None] | None = None

    def start(self) -> None:
        self._task = self._env.upkeep.every("lag", self._interval_ms, self._items, self._look)

    def stop(self) -> None:
        if self._task is not None:
            self._task.stop()
            self._task = None

    def _items(self) -> Iterator[Shard | None]:
        """First the logs elsewhere, then the groups, shard by shard."""
        shards = self._shards()
        if not any(shard.offsets.has_offsets for shard in shards):
            self._forget(set())
            self._look_is_over()
            return
        yield None
        self._round += 1
        self._lines.clear()
        yield from shards
        for text, more in self._lines.items():
            if more > _LINES_MAX:
                logger.warning("%s: %s", counted(more - _LINES_MAX, "more group"), text)
        shards = self._shards()
        if len(self.histories) > sum(shard.offsets.group_count for shard in shards):
            self._forget({group_id for shard in shards for group_id in shard.offsets.group_ids()})
        self._ends = {shard: self._ends[shard] for shard in shards if shard in self._ends}
        self._topics = {name: topic for name, topic in self._topics.items() if topic.round == self._round}
        self._look_is_over()

    def _look_is_over(self) -> None:
        self._last_ms = self._env.clock.now_ms()
        if self.since_ms is None:
            self.since_ms = self._last_ms

    def _forget(self, group_ids: set[str]) -> None:
        self.histories.keep_only(group_ids)
        self.standstills.keep_only(group_ids)
        for known in (self.lost, self.threatened, self.past_end):
            for group_id in known.keys() - group_ids:
                del known[group_id]

    def _look(self, shard: Shard | None) -> Work:
        if shard is None:
            yield from self._ranges.refresh()
            return
        has_commits = self._has_commits(shard)
        for number, group_id in enumerate(shard.offsets.group_ids()):
            if number % _GROUPS_PER_PIECE == 0:
                yield None
                if shard.closed:
                    return
            is_due = has_commits or group_id not in self.histories
            for name in shard.offsets.topics(group_id):
                topic = self._topics.get(name)
                if topic is None or topic.round != self._round:
                    topic = yield from self._look_at_topic(name)
                is_due = is_due or topic.has_changed
            if is_due:
                positions = shard.offsets.positions(group_id)
                if positions:  # they may have gone since the last yield
                    self._sample(group_id, positions)

    def _has_commits(self, shard: Shard) -> bool:
        """Whether offsets may have changed since the last look. What the log has may reach the table a bit later."""
        log, known = shard.log, self._ends.get(shard)
        is_same = known is not None and known[:2] == (log.log_end_offset, log.high_watermark)
        self._ends[shard] = _Ends(log.log_end_offset, log.high_watermark, not is_same)
        return known is None or not is_same or known.has_moved

    def _look_at_topic(self, name: str) -> Pieces[_Topic]:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic()
        ranges = yield from self._ranges.of_topic(name)
        topic.has_changed = ranges != topic.ranges
        topic.ranges, topic.round = ranges, self._round
        return topic

    def _sample(self, group_id: str, offsets: Positions) -> None:
        records = position = partitions = lost = threatened = goes_ms = past_end = 0
        going = ""
        unread: list[Unread] = []
        for topic, committed in offsets:
            known = self._topics.get(topic)
            ranges = {} if known is None else known.ranges
            for index, at, _ in committed:
                found = ranges.get(index)
                if found is None:
                    continue
                start, end, goes_below, begin_ms = found
                offset = max(at, start)
                lost += offset - at
                if offset < goes_below:
                    threatened += goes_below - offset
                    if not going or begin_ms < goes_ms:
                        goes_ms, going = begin_ms, topic
                partitions += 1
                position += at
                if offset < end:
                    records += end - offset
                    unread.append((topic, index, at))
                elif offset > end:
                    past_end += 1
        now_ms = self._env.clock.now_ms()
        self.standstills.seen(group_id, unread, now_ms)
        _keep(self.past_end, group_id, past_end)
        last = self.histories.last(group_id)
        point = Point(now_ms, records, position, partitions, lost)
        if last is None or last[1:] != point[1:]:
            interval_ms = max(now_ms - self._last_ms, 1) if self._last_ms else SAMPLE_MS
            self.histories.add(group_id, point, interval_ms)
        if lost or threatened or group_id in self.lost or group_id in self.threatened:
            self._tell(group_id, lost, Threat(threatened, goes_ms, going), now_ms, is_new=last is None)

    def _tell(self, group_id: str, lost: int, threat: Threat, now_ms: int, *, is_new: bool) -> None:
        """Say what was lost since the last look, and what will be. What was lost before the first look is no news."""
        known = self.lost.get(group_id, 0)
        if lost > known and not is_new:
            self._warn("records were deleted that the group had not read", group_id, f"{lost - known} at most")
        if threat.records and group_id not in self.threatened:
            text = "retention will delete records that the group has not read"
            minutes = max(threat.goes_ms - now_ms, 0) // 60_000
            self._warn(text, group_id, f"{threat.records} at most, the first in {minutes} minutes")
        _keep(self.lost, group_id, lost)
        if threat.records:
            self.threatened[group_id] = threat
        else:
            self.threatened.pop(group_id, None)

    def _warn(self, text: str, group_id: str, how_many: str) -> None:
        lines = self._lines[text] = self._lines.get(text, 0) + 1
        if lines <= _LINES_MAX:
            logger.warning("group %s: %s, %s (barnabas groups lag %s)", group_id, text, how_many, group_id)


def _keep(counts: dict[str, int], group_id: str, count: int) -> None:
    """Keep a number that is not 0."""
    if count:
        counts[group_id] = count
    else:
        counts.pop(group_id, None)
