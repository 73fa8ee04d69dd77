"""`health` as a streaming query: the rows that `health.py` makes of the same history, soon after they become true.

Every commit goes to two places: to its partition, which also hears of the log's growth, and to its group, which also
hears of generations. Each place keeps its events until the watermark has passed the end of their minute. Then it takes
them over in the order of the log, and looks. So the result depends neither on how events are cut into micro-batches nor
on restarts. An event that is later than `delay_s` is taken over in the next minute that is looked at.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.pipeline.jobs.health import COMMITS, MINUTES, RESULT, RETENTION_S, SOON_S
from barnabas.pipeline.jobs.lag import EVERY_S
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELAY_S = 30
TEN_MINUTES_MS = MINUTES * 60_000
NAMES = [column.split()[0] for column in RESULT.split(", ")]
KEY = ("place_topic", "place_partition", "place_group")  # of a place: a partition without a group, or a group alone

Change = tuple[str, str | None, int | None, str, str, str | None, int | None, int | None, int | None]


def health_stream(
    commits: "DataFrame",
    groups: "DataFrame",
    batches: "DataFrame",
    every_s: int = EVERY_S,
    retention_s: int = RETENTION_S,
    soon_s: int = SOON_S,
    delay_s: int = DELAY_S,
) -> "DataFrame":
    """Every change of every status; see `health.py` for the columns."""
    rules = Rules(every_s * 1000, retention_s * 1000, soon_s * 1000)
    events = events_of(commits, groups, batches).withWatermark("at", f"{delay_s} seconds")
    changes = events.groupBy(*KEY).transformWithState(
        Health(rules), RESULT.replace("at timestamp", "at bigint"), outputMode="append", timeMode="eventTime"
    )
    return changes.withColumn("at", F.timestamp_millis("at"))


def events_of(commits: "DataFrame", groups: "DataFrame", batches: "DataFrame") -> "DataFrame":
    """Everything that happens: the place, the time, and the columns of `Event`."""
    no_topic, no_partition, no_group = (F.lit(None).cast(kind) for kind in ("string", "int", "string"))
    partition = _place("topic", "partition", no_group)
    group = _place(no_topic, no_partition, "group_id")
    committed = commits.withColumn("place", F.explode(F.array(partition, group))).select(
        *("place", "log_timestamp", "group_id", "topic", "partition", "log_offset", "offset", "is_tombstone"),
        F.unix_millis("commit_timestamp").alias("since_ms"),
        F.unix_millis("expire_timestamp").alias("expire_ms"),
    )
    begun = groups.where("record_type = 'GroupMetadata'").select(
        *(group.alias("place"), "log_timestamp", "group_id", "log_offset", "is_tombstone"),
        F.unix_millis("state_timestamp").alias("since_ms"),
        F.coalesce(F.size("members"), F.lit(0)).alias("members"),
    )
    grown = batches.where("error is null").select(
        partition.alias("place"),
        F.col("max_timestamp").alias("log_timestamp"),
        (F.col("last_offset") + 1).alias("log_end"),
    )
    events = committed.unionByName(begun, allowMissingColumns=True).unionByName(grown, allowMissingColumns=True)
    events = events.withColumns({"at": F.col("log_timestamp"), "at_ms": F.unix_millis("log_timestamp")})
    return events.select("place.*", "at", *Event._fields)


def _place(topic: "Column | str", partition: "Column | str", group: "Column | str") -> "Column":
    parts = (topic, partition, group)
    return F.struct(*((F.col(part) if isinstance(part, str) else part).alias(name) for part, name in zip(parts, KEY)))


class Event(NamedTuple):
    """A commit, a generation (`members`) or the growth of a log (`log_end`)."""

    at_ms: int
    group_id: str | None
    topic: str | None
    partition: int | None
    log_offset: int | None
    offset: int | None
    is_tombstone: bool | None
    since_ms: int | None  # of a commit its time, of a generation the time of the group's state
    expire_ms: int | None
    members: int | None
    log_end: int | None


def _event(row: Any) -> Event:
    """The columns of a row that an event has; the row begins with its place."""
    return Event(*row[-len(Event._fields) :])


def _log_offset(event: Event) -> int:
    assert event.log_offset is not None
    return event.log_offset


@dataclass(frozen=True)
class Rules:
    """What a look needs to know."""

    every_ms: int
    retention_ms: int
    soon_ms: int

    def end_of_window(self, at_ms: int) -> int:
        """The end of the window in which a time lies."""
        return at_ms // self.every_ms * self.every_ms + self.every_ms


@dataclass
class Place:
    """What a partition or a group remembers: events that are not taken over yet, and the last status of each check."""

    waiting: list[Event] = field(default_factory=list)
    next_look_ms: int | None = None
    looked_until_ms: int = 0
    statuses: dict[Any, str] = field(default_factory=dict)

    def expect(self, event: Event, rules: Rules) -> None:
        """Keep an event for the look at the end of its window, or for the next one if that is over."""
        self.waiting.append(event)
        look_ms = max(rules.end_of_window(event.at_ms), self.looked_until_ms + rules.every_ms)
        self.next_look_ms = look_ms if self.next_look_ms is None else min(look_ms, self.next_look_ms)

    def look(self, rules: Rules) -> Iterator[Change]:
        """Take over what has happened until the next look, and say what has changed."""
        assert self.next_look_ms is not None
        at_ms = self.looked_until_ms = self.next_look_ms
        self.next_look_ms = at_ms + rules.every_ms
        due = [event for event in self.waiting if event.at_ms < at_ms]
        self.waiting = [event for event in self.waiting if event.at_ms >= at_ms]
        self.take_over(due)
        for group, topic, partition, check, status, *numbers in self.judge(at_ms, rules):
            before = self.statuses.get((group, topic, partition, check))
            if status != before:
                self.statuses[group, topic, partition, check] = status
                yield at_ms, group, topic, partition, check, status, before, *(numbers or (None, None, None))

    def take_over(self, events: list[Event]) -> None:
        """Remember what these events say."""
        raise NotImplementedError

    def judge(self, at_ms: int, rules: Rules) -> Iterator[Any]:
        """The status of each check, with its group, topic and partition before and its numbers behind it."""
        raise NotImplementedError


@dataclass
class Partition(Place):
    """A partition and those who read it: the check `reading`."""

    log_end: int | None = None
    place: Any = (None, None)
    windows: dict[str | None, list[Any]] = field(default_factory=dict)  # by group: the last commits; none: removed

    def take_over(self, events: list[Event]) -> None:
        """Commits get the lag that they had at their time. Then they count in the order of the log."""
        commits = []
        for event in sorted(events, key=lambda event: (event.at_ms, event.log_end is None)):
            if event.log_end is not None:
                self.log_end = max(event.log_end, self.log_end or 0)
            else:
                lag = 0 if event.offset is None or self.log_end is None else max(0, self.log_end - event.offset)
                commits.append((event.log_offset, event.group_id, event.offset, lag, event.at_ms))
                self.place = event.topic, event.partition
        for _, group, offset, lag, at_ms in sorted(commits):
            window = self.windows.get(group, [])
            self.windows[group] = [] if offset is None else [*window[1 - COMMITS :], (offset, lag, at_ms)]

    def judge(self, at_ms: int, rules: Rules) -> Iterator[Any]:
        """`reading` of each group."""
        for group, window in self.windows.items():
            offset = window[-1][0] if window else None
            lag = None if offset is None or self.log_end is None else max(0, self.log_end - offset)
            status = reading(window, lag, at_ms)
            yield group, *self.place, "reading", status, offset, self.log_end, lag


def reading(window: list[Any], lag: int | None, at_ms: int) -> str:
    """The status of a partition with these last commits (offset, lag, time)."""
    if not window:
        return "REMOVED"
    span_ms = window[-1][2] - window[0][2] if len(window) > 1 else TEN_MINUTES_MS
    steps = list(pairwise(window))
    if not lag:
        return "OK"
    if at_ms - window[-1][2] > span_ms:
        return "STOP"
    if any(after[0] < before[0] for before, after in steps):
        return "REWIND"
    if any(then == 0 for _, then, _ in window):
        return "OK"
    if all(after[0] == before[0] for before, after in steps):
        return "STALL"
    if not any(after[1] < before[1] for before, after in steps):
        return "WARN"
    return "OK"


@dataclass
class Group(Place):
    """A group: the checks `expiry`, `rebalances` and `commits`."""

    commits: dict[Any, Event] = field(default_factory=dict)  # by topic and partition: the newest
    generation: Event | None = None
    generations: list[tuple[int, int]] = field(default_factory=list)  # of the last ten minutes: time, members
    first_members_ms: int | None = None
    first_commit_ms: int | None = None
    group_id: str | None = None

    def take_over(self, events: list[Event]) -> None:
        """In the order of the log."""
        for event in sorted(events, key=_log_offset):
            self.group_id = event.group_id
            if event.members is None:
                key = event.topic, event.partition
                self.commits[key] = max(event, self.commits.get(key, event), key=_log_offset)
                self.first_commit_ms = min(event.at_ms, self.first_commit_ms or event.at_ms)
            else:
                self.generation = max(event, self.generation or event, key=_log_offset)
                if not event.is_tombstone:
                    self.generations.append((event.at_ms, event.members))
                if event.members:
                    self.first_members_ms = min(event.at_ms, self.first_members_ms or event.at_ms)

    def judge(self, at_ms: int, rules: Rules) -> Iterator[Any]:
        """The three checks."""
        for (topic, partition), commit in self.commits.items():
            is_soon = not commit.is_tombstone and self.expires_ms(commit, rules) <= at_ms + rules.soon_ms
            yield self.group_id, topic, partition, "expiry", "EXPIRES_SOON" if is_soon else "OK"
        if self.generation is not None:
            self.generations = [one for one in self.generations if at_ms - TEN_MINUTES_MS <= one[0]]
            is_storm = len(self.generations) > 2 * max([1, *(members for _, members in self.generations)])
            yield self.group_id, None, None, "rebalances", "STORM" if is_storm else "OK"
        begun, committed = self.first_members_ms, self.first_commit_ms
        if begun is not None and begun + TEN_MINUTES_MS < at_ms:
            if committed is None:
                yield self.group_id, None, None, "commits", "NEVER"
            elif committed > begun + TEN_MINUTES_MS:
                yield self.group_id, None, None, "commits", "OK"

    def expires_ms(self, commit: Event, rules: Rules) -> float:
        """When the broker removes an offset; never while the group has members."""
        if self.generation is not None and self.generation.members:
            return float("inf")
        if commit.expire_ms is not None:
            return commit.expire_ms
        since_ms = commit.since_ms
        if self.generation is not None and not self.generation.is_tombstone:
            since_ms = self.generation.since_ms
        return float("inf") if since_ms is None else since_ms + rules.retention_ms


class Health(StatefulProcessor):
    """Spark's side: keeps the places, and wakes them when the watermark has passed the end of a window."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: Any) -> None:
        """Called once in each task."""
        self._handle = handle
        self._memory = handle.getValueState("place", "bytes binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """New events of a place."""
        place = self._place(key)
        for row in rows:
            place.expect(_event(row), self._rules)
        self._keep(place)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Look at the end of every window that the watermark has passed."""
        place = self._place(key)
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        found = []
        while place.next_look_ms is not None and place.next_look_ms <= watermark_ms:
            found += [Row(**dict(zip(NAMES, change))) for change in place.look(self._rules)]
        self._keep(place)
        return iter(found)

    def close(self) -> None:
        """Nothing to close."""

    def _place(self, key: Any) -> Place:
        _, _, group = key
        if self._memory.exists():
            return pickle.loads(self._memory.get()[0])
        return Partition() if group is None else Group()

    def _keep(self, place: Place) -> None:
        self._memory.update((pickle.dumps(place),))
        assert place.next_look_ms is not None
        self._handle.registerTimer(place.next_look_ms)
