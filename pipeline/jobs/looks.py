"""What the streaming jobs share: what happens to partitions and groups, looked at when the end of a window has passed.

Every commit goes to two places: to its partition, which also hears of the log's growth, and to its group, which also
hears of generations. Each place keeps its events until the watermark has passed the end of their window. Then it takes
them over, and looks. So the result depends neither on how events are cut into micro-batches nor on restarts.

The watermark is the time of the newest event, less `delay_s`; an event that is even later is not lost: the next look
takes it over. The sources of a query are read side by side. If one may be ahead of another, because it has a limit such
as `maxRowsPerTrigger`, then by less than `delay_s`.
"""

import pickle
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.pipeline.as_of import is_no_future
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELAY_S = 30
KEY = ("place_topic", "place_partition", "place_group")  # of a place: a partition without a group, or a group alone


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
    base_offset: int | None
    base_ms: int | None


# ------------------------------------------------------------ events


def events_of(commits: "DataFrame", batches: "DataFrame", groups: "DataFrame | None" = None) -> "DataFrame":
    """Everything that happens to partitions, and with `groups` also what happens to groups."""
    no_topic, no_partition, no_group = (F.lit(None).cast(kind) for kind in ("string", "int", "string"))
    partition = _place("topic", "partition", no_group)
    group = _place(no_topic, no_partition, "group_id")
    place = partition if groups is None else F.explode(F.array(partition, group))
    events = commits.withColumn("place", place).select(
        *("place", "log_timestamp", "group_id", "topic", "partition", "log_offset", "offset", "is_tombstone"),
        F.unix_millis("commit_timestamp").alias("since_ms"),
        F.unix_millis("expire_timestamp").alias("expire_ms"),
    )
    grown = batches.where("error is null").select(
        partition.alias("place"),
        F.col("max_timestamp").alias("log_timestamp"),
        (F.col("last_offset") + 1).alias("log_end"),
        "base_offset",
        F.unix_millis("base_timestamp").alias("base_ms"),
    )
    events = events.unionByName(grown, allowMissingColumns=True)
    if groups is None:
        events = events.withColumn("members", F.lit(None).cast("int"))
    else:
        begun = groups.where("record_type = 'GroupMetadata'").select(
            *(group.alias("place"), "log_timestamp", "group_id", "log_offset", "is_tombstone"),
            F.unix_millis("state_timestamp").alias("since_ms"),
            F.coalesce(F.size("members"), F.lit(0)).alias("members"),
        )
        events = events.unionByName(begun, allowMissingColumns=True)
    events = events.withColumns({"at": F.col("log_timestamp"), "at_ms": F.unix_millis("log_timestamp")})
    return events.select("place.*", "at", *Event._fields).where("at is not null")  # a client may write no time


def _place(topic: "Column | str", partition: "Column | str", group: "Column | str") -> "Column":
    parts = (topic, partition, group)
    return F.struct(*((F.col(part) if isinstance(part, str) else part).alias(name) for part, name in zip(parts, KEY)))


# ------------------------------------------------------------ places


@dataclass
class Place:
    """What a partition or a group remembers, and the events that it has not taken over yet."""

    waiting: list[Event] = field(default_factory=list)  # by time

    def expect(self, events: Iterable[Event]) -> None:
        """Keep these for the looks after their times."""
        self.waiting += events
        self.waiting.sort(key=attrgetter("at_ms"))

    def look(self, at_ms: int) -> Iterator[Sequence[Any]]:
        """Take over what has happened before this time, and say what there is to say."""
        count = bisect_left(self.waiting, at_ms, key=attrgetter("at_ms"))
        due = self.waiting[:count]
        del self.waiting[:count]
        self.take_over(due)
        return self.say(at_ms)

    def take_over(self, events: list[Event]) -> None:
        """Remember what these events say. They come in the order of their times."""
        raise NotImplementedError

    def say(self, at_ms: int) -> Iterator[Sequence[Any]]:
        """Rows of the result."""
        raise NotImplementedError


class Looks(StatefulProcessor):
    """Spark's side: keeps the places, and wakes them when the watermark has passed the end of a window.

    New events are only put beside a place; they are read with the place at its next look, once in a window.
    """

    def __init__(self, every_ms: int, names: Sequence[str]) -> None:
        self._every_ms = every_ms
        self._names = names

    def new_place(self, *, is_group: bool) -> Place:
        """A place that has heard of nothing yet."""
        raise NotImplementedError

    def init(self, handle: Any) -> None:
        """Called once in each task."""
        self._handle = handle
        self._times = handle.getValueState("times", "next_look_ms bigint, looked_until_ms bigint")
        self._new = handle.getListState("new", "events binary")
        self._memory = handle.getValueState("place", "place binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """New events of a place."""
        events = [Event(*row[-len(Event._fields) :]) for row in rows]
        self._new.appendValue((pickle.dumps(events),))
        next_look_ms, looked_until_ms = self._times.get() if self._times.exists() else (None, 0)
        first_ms = min(event.at_ms for event in events)
        look_ms = max(first_ms // self._every_ms * self._every_ms, looked_until_ms) + self._every_ms
        if next_look_ms is None or look_ms < next_look_ms:
            self._plan(look_ms, looked_until_ms)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Look at the end of every window that the watermark has passed."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        look_ms, _ = self._times.get()
        if look_ms > watermark_ms:  # another timer of this place has done it
            return iter(())
        _, _, group = key
        exists = self._memory.exists()
        place = pickle.loads(self._memory.get()[0]) if exists else self.new_place(is_group=group is not None)
        place.expect(event for (events,) in self._new.get() for event in pickle.loads(events))
        self._new.clear()
        found: list[Row] = []
        while look_ms <= watermark_ms:
            found += [Row(**dict(zip(self._names, row))) for row in place.look(look_ms)]
            look_ms += self._every_ms
        self._memory.update((pickle.dumps(place),))
        self._plan(look_ms, look_ms - self._every_ms)
        return iter(found)

    def close(self) -> None:
        """Nothing to close."""

    def _plan(self, look_ms: int, looked_until_ms: int) -> None:
        self._times.update((look_ms, looked_until_ms))
        self._handle.registerTimer(look_ms)


def looked_at(events: "DataFrame", looks: Looks, result: str, delay_s: int) -> "DataFrame":
    """What the places say. `result`: its columns, of which `at` is a time; places say it in milliseconds."""
    # Each event is there twice. The one with a time moves the watermark, and the other one is taken: Spark drops rows
    # whose time the watermark has passed, and those without a time it does not. A time in the future, which a producer
    # with a wrong clock has written, moves nothing.
    clock = F.when(is_no_future("at"), F.col("at"))
    twice = F.explode(F.array_distinct(F.array(clock, F.lit(None).cast("timestamp"))))
    taken = events.withColumn("at", twice).withWatermark("at", f"{delay_s} seconds").where("at is null")
    rows = taken.groupBy(*KEY).transformWithState(
        looks, result.replace("at timestamp", "at bigint"), outputMode="append", timeMode="eventTime"
    )
    return rows.withColumn("at", F.timestamp_millis("at"))
