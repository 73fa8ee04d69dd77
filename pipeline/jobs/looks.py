"""What the streaming jobs share: what happens to partitions and groups, looked at when the end of a window has passed.

Every commit goes to two places: to its partition, which also hears of the log's growth, and to its group, which also
hears of generations. Each place takes events over when the watermark has passed the end of their window. Then it looks.
So the result depends neither on how events are cut into micro-batches nor on restarts.

Before events are shuffled, each task leaves out those that cannot change any result (`Looks.decisive`), and packs the
others: one row for each bucket (see `events.py`). Spark does not know places: each call of its state costs more than
thousands of events, and so does a timer. It knows buckets. What is new is only put beside the bucket; it is read with
all places of the bucket once in a window.

The watermark is the time of the newest event, less `delay_s`; an event that is even later is not lost: the next look
takes it over. The sources of a query are read side by side. If one may be ahead of another, because it has a limit such
as `maxRowsPerTrigger`, then by less than `delay_s`.
"""

import pickle
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from barnabas.pipeline.as_of import CLOCKS_DIFFER_S
from barnabas.pipeline.batches import Array
from barnabas.pipeline.jobs.events import NONE, Event, Events, PlaceKey
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELAY_S = 30
PACKED = "bucket int, first_ms bigint, clock_ms bigint, events binary"
_PACKED_AT_ONCE = 1 << 19


@dataclass
class Place:
    """What a partition or a group remembers."""

    next_look_ms: int | None = None
    looked_until_ms: int = 0

    def expect(self, events: Events) -> None:
        """Hear of these at once; `take_over` has them, too, as soon as their time has come."""

    def take_over(self, events: list[Event]) -> None:
        """Remember what these events say. They come in the order of their times."""
        raise NotImplementedError

    def say(self, at_ms: int) -> Iterator[Sequence[Any]]:
        """Rows of the result."""
        raise NotImplementedError


@dataclass
class Bucket:
    """Places, and the events that they have not taken over yet."""

    places: dict[PlaceKey, Place] = field(default_factory=dict)
    waiting: bytes | None = None

    def look(self, new: list[Events], watermark_ms: int, looks: "Looks") -> Iterator[Sequence[Any]]:
        """Everything that is due until then."""
        old = [] if self.waiting is None else [Events.of_bytes(self.waiting)]
        events = Events.joined([*old, *new])
        mask = looks.decisive(events)
        old_count = int(mask[: sum(map(len, old))].sum())
        events = events.only(mask)
        due = events.of("at_ms") < watermark_ms // looks.every_ms * looks.every_ms
        numbers = np.cumsum(due) - 1
        rows = events.only(due).rows()
        of_place: dict[PlaceKey, tuple[list[Event], Array]] = {}
        for key, indexes in events.by_place():
            place = self.places.get(key)
            if place is None:
                place = self.places[key] = looks.new_place(is_group=key[2] is not None)
            first_ms = int(events.of("at_ms")[indexes[0]])
            look_ms = max(first_ms // looks.every_ms * looks.every_ms, place.looked_until_ms) + looks.every_ms
            place.next_look_ms = min(look_ms, place.next_look_ms or look_ms)
            place.expect(events.only(indexes[indexes >= old_count]))
            indexes = indexes[due[indexes]]
            of_place[key] = [rows[number] for number in numbers[indexes].tolist()], indexes
        taken = np.zeros(len(events), bool)
        nothing: tuple[list[Event], Array] = ([], np.zeros(0, np.int64))
        for key, place in self.places.items():
            own, indexes = of_place.get(key, nothing)
            begin = 0
            while (at_ms := place.next_look_ms) is not None and at_ms <= watermark_ms:
                assert at_ms > place.looked_until_ms, f"{key} looked at {place.looked_until_ms} already"
                end = bisect_left(own, at_ms, begin, key=attrgetter("at_ms"))
                place.take_over(own[begin:end])
                yield from place.say(at_ms)
                begin, place.looked_until_ms, place.next_look_ms = end, at_ms, at_ms + looks.every_ms
            taken[indexes[:begin]] = True
        rest = events.only(~taken)
        self.waiting = rest.to_bytes() if len(rest) else None

    def next_look_ms(self) -> int:
        """When the next place looks."""
        return min(place.next_look_ms for place in self.places.values() if place.next_look_ms is not None)


class Looks(StatefulProcessor):
    """Spark's side: keeps the buckets, and wakes them when the watermark has passed the end of a window."""

    has_groups = False
    result: ClassVar[str]  # the columns of its rows, of which `at` is a time; places say it in milliseconds

    def __init__(self, every_ms: int) -> None:
        self.every_ms = every_ms
        self._row = Row(*(column.split()[0] for column in self.result.split(", ")))

    def new_place(self, *, is_group: bool) -> Place:
        """A place that has heard of nothing yet."""
        raise NotImplementedError

    def decisive(self, events: Events) -> Array:
        """A mask: those without which the result may be another one, of all that are taken over by the same look."""
        raise NotImplementedError

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._times = handle.getValueState("times", "next_look_ms bigint, looked_until_ms bigint")
        self._new = handle.getListState("new", "events binary")
        self._bucket = handle.getValueState("bucket", "bucket binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """New events of a bucket."""
        some = [(row.first_ms, bytes(row.events)) for row in rows]
        self._new.appendValue((pickle.dumps([events for _, events in some]),))
        next_look_ms, looked_until_ms = self._times.get() if self._times.exists() else (None, 0)
        first_ms = min(first_ms for first_ms, _ in some)
        look_ms = max(first_ms // self.every_ms * self.every_ms, looked_until_ms) + self.every_ms
        if next_look_ms is None or look_ms < next_look_ms:
            self._plan(look_ms, looked_until_ms)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Look at the end of every window that the watermark has passed."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        look_ms, _ = self._times.get()
        if look_ms > watermark_ms:  # another timer of this bucket has done it
            return iter(())
        bucket = pickle.loads(self._bucket.get()[0]) if self._bucket.exists() else Bucket()
        new = [Events.of_bytes(events) for (some,) in self._new.get() for events in pickle.loads(some)]
        self._new.clear()
        found = [self._row(*row) for row in bucket.look(new, watermark_ms, self)]
        self._bucket.update((pickle.dumps(bucket),))
        self._plan(bucket.next_look_ms(), watermark_ms // self.every_ms * self.every_ms)
        return iter(found)

    def close(self) -> None:
        """Nothing to close."""

    def _plan(self, look_ms: int, looked_until_ms: int) -> None:
        assert look_ms > looked_until_ms, f"a look at {look_ms}, and one at {looked_until_ms} was before"
        self._times.update((look_ms, looked_until_ms))
        self._handle.registerTimer(look_ms)


def looked_at(events: "DataFrame", looks: Looks, delay_s: int) -> "DataFrame":
    """What the places say."""
    # Each row is there twice. The one with a time moves the watermark, and the other one is taken: Spark drops rows
    # whose time the watermark has passed, and those without a time it does not.
    clock = F.timestamp_millis("clock_ms")
    twice = F.explode(F.array_distinct(F.array(clock, F.lit(None).cast("timestamp"))))
    taken = packed(events, looks).withColumn("at", twice).withWatermark("at", f"{delay_s} seconds").where("at is null")
    rows = taken.groupBy("bucket").transformWithState(
        looks, looks.result.replace("at timestamp", "at bigint"), outputMode="append", timeMode="eventTime"
    )
    return rows.withColumn("at", F.timestamp_millis("at"))


def packed(events: "DataFrame", looks: Looks) -> "DataFrame":
    """The decisive events, packed by bucket."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        some: list[pa.RecordBatch] = []
        for batch in batches:
            some.append(batch)
            if sum(map(len, some)) >= _PACKED_AT_ONCE:
                yield pack_batches(some, looks, time.time_ns() // 1_000_000)
                some = []
        if any(map(len, some)):
            yield pack_batches(some, looks, time.time_ns() // 1_000_000)

    return events.mapInArrow(pack, PACKED)


def pack_batches(batches: Sequence[pa.RecordBatch], looks: Looks, now_ms: int) -> pa.RecordBatch:
    """One row for each bucket. `clock_ms` is the newest time that can be right."""
    events = Events.of_batches(batches)
    # Spark's current_timestamp() is part of the code that it compiles, anew for each micro-batch.
    at_ms, base_ms = events.of("at_ms"), events.of("base_ms")
    is_right = (at_ms != NONE) & (at_ms <= now_ms + CLOCKS_DIFFER_S * 1000)
    clock_ms = max(at_ms[is_right].tolist(), default=None)
    at_ms[~is_right] = now_ms if clock_ms is None else clock_ms  # there is no time, or it is in the future
    base_ms[:] = np.minimum(base_ms, at_ms)
    is_of_group = events.of("members") != NONE
    parts = [events.only(~is_of_group)]
    if looks.has_groups:
        parts.append(events.only(is_of_group | events.is_commit).of_groups())
    decisive = Events.joined(part.only(looks.decisive(part)) for part in parts)
    rows = [(bucket, int(own.of("at_ms").min()), clock_ms, own.to_bytes()) for bucket, own in decisive.by_bucket()]
    kinds = (pa.int32(), pa.int64(), pa.int64(), pa.binary())
    names = [field.split()[0] for field in PACKED.split(", ")]
    return pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in zip(zip(*rows), kinds)], names)
