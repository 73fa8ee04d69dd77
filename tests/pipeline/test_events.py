"""What a task leaves out changes nothing, however the events are cut, and whatever the watermark has passed."""

from collections import Counter
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import numpy as np
import pyarrow as pa
from barnabas.pipeline.batches import Array
from barnabas.pipeline.jobs.events import Event, Events, newest
from barnabas.pipeline.jobs.health_stream import Health
from barnabas.pipeline.jobs.lag_stream import Lag
from barnabas.pipeline.jobs.looks import Bucket, Looks, pack_batches

MINUTE_MS = 60_000
START_MS = 1_763_769_600_000
MINUTES = 12


class WholeLag(Lag):
    """Without a rule."""

    def decisive(self, events: Events) -> Array:
        return np.ones(len(events), bool)


class WholeHealth(Health):
    """Without a rule."""

    def decisive(self, events: Events) -> Array:
        return np.ones(len(events), bool)


REMEMBERED = ("first_commit_ms", "windows", "commits", "committed", "log_end")
HEALTH = (MINUTE_MS, 20 * MINUTE_MS, 12 * MINUTE_MS, 300)


def events_batch(events: list[Event]) -> pa.RecordBatch:
    """As Spark gives them to the tasks."""
    kinds = dict.fromkeys(Event._fields, pa.int64()) | dict.fromkeys(("group_id", "topic"), pa.string())
    schema = pa.schema([*kinds.items()])
    return pa.RecordBatch.from_pylist([one._asdict() for one in events], schema)


def busy_minutes(random: Random) -> list[Event]:
    """Many commits in each minute, tombstones and jumps back, times that are late, generations, and logs that grow."""
    events, ends = [], Counter[int]()
    nothing = dict.fromkeys(Event._fields)
    for log_offset in range(2_500):
        at_ms = START_MS + log_offset * MINUTES * MINUTE_MS // 2_500
        partition, group = random.randrange(2), random.choice(("billing", "shipping", None))
        what = random.random()
        if what < 0.1:
            count = random.randrange(1, 5)
            ends[partition] += count
            more: dict[str, Any] = {"log_end": ends[partition], "base_offset": ends[partition] - count}
            more |= {"base_ms": at_ms - 10, "topic": "orders", "partition": partition}
        elif what < 0.11 and group:
            more = {"group_id": group, "log_offset": log_offset, "members": random.randrange(3), "is_tombstone": 0}
            more["since_ms"] = at_ms
        elif group:
            offset = random.choice((ends[partition], max(0, ends[partition] - random.randrange(9)), None))
            offset = offset if random.random() < 0.98 else None
            more = {"group_id": group, "topic": "orders", "partition": partition, "log_offset": log_offset}
            more |= {"offset": offset, "is_tombstone": int(offset is None), "since_ms": at_ms}
            at_ms -= random.choice((0, 0, 0, 1, 40_000))
        else:
            continue
        events.append(Event(**nothing | {"at_ms": at_ms} | more))
    return events


def in_order(value: Any) -> Any:
    """A dictionary in the order of its keys."""
    return sorted(value.items(), key=str) if isinstance(value, dict) else value


def said(looks: Looks, events: list[Event], cuts: Random, watermarks: list[int]) -> tuple[int, list[str]]:
    """How many events were kept, and what the places of all buckets say."""
    buckets: dict[int, Bucket] = {}
    new: dict[int, list[bytes]] = {}
    found, kept, begin = [], 0, 0
    for watermark_ms in watermarks:
        due = [event for event in events[begin:] if event.at_ms < watermark_ms + 30_000]
        begin += len(due)
        while due:
            count = cuts.randrange(1, 400)
            some, due = due[:count], due[count:]
            half = cuts.randrange(len(some) + 1)
            parts = [events_batch(part) for part in (some[:half], some[half:])]
            for row in pack_batches(parts, looks, watermark_ms).to_pylist():
                assert row["clock_ms"] == max(event.at_ms for event in some)
                assert row["first_ms"] == Events.of_bytes(row["events"]).of("at_ms").min()
                kept += len(Events.of_bytes(row["events"]))
                new.setdefault(row["bucket"], []).append(row["events"])
        for number, packed in new.items():
            bucket = buckets.setdefault(number, Bucket())
            found += bucket.look([Events.of_bytes(one) for one in packed], watermark_ms, looks)
        new = {number: [] for number in buckets}
        places = [place for bucket in buckets.values() for place in bucket.places.items()]
        remembered = [
            [(key, name, in_order(getattr(place, name, None))) for name in REMEMBERED] for key, place in places
        ]
        found += sorted(map(str, remembered))
    return kept, sorted(map(str, found))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("looks", "whole"),
    [
        (Lag(MINUTE_MS), WholeLag(MINUTE_MS)),
        (Health(*HEALTH), WholeHealth(*HEALTH)),
    ],
    ids=["lag", "health"],
)
def test_what_is_left_out_decides_nothing(looks: Looks, whole: Looks, seed: int) -> None:
    random = Random(seed)
    events = sorted(busy_minutes(random), key=lambda one: one.at_ms if one.log_end else one.at_ms + 20_000)
    watermarks = [START_MS + minute * MINUTE_MS for minute in range(1, MINUTES + 2) if random.random() < 0.8]
    watermarks.append(START_MS + (MINUTES + 3) * MINUTE_MS)
    kept, rows = said(looks, events, Random(seed + 100), watermarks)
    of_all, expected = said(whole, events, Random(seed + 200), watermarks)
    assert rows == expected
    assert len(rows) > 30
    assert kept < 0.8 * of_all


def test_the_newest_of_each_key() -> None:
    order, key = np.array([5, 1, 4, 2, 3, 9]), np.array([0, 0, 0, 1, 1, 2])
    assert newest(order, 2, key).tolist() == [True, False, True, True, True, True]
    assert newest(order[:0], 2, key[:0]).tolist() == []


def test_events_are_kept_as_they_are() -> None:
    events = busy_minutes(Random(1))
    columns = Events.of_batches([events_batch(events[:700]), events_batch(events[700:])])
    assert columns.rows() == events
    assert Events.of_bytes(columns.to_bytes()).rows() == events
    parts = [columns.only(np.arange(begin, min(begin + 300, len(events)))) for begin in range(0, len(events), 300)]
    assert Events.joined(Events.of_bytes(part.to_bytes()) for part in parts).rows() == events


def test_a_time_in_the_future_is_no_clock() -> None:
    events = [event for event in busy_minutes(Random(1)) if event.log_end]
    batch = events_batch([*events, events[0]._replace(at_ms=START_MS + 10**12)])
    (clock_ms,) = set(pack_batches([batch], Lag(MINUTE_MS), START_MS).column("clock_ms").to_pylist())
    assert clock_ms == max(event.at_ms for event in events)
    assert pack_batches([batch], Lag(MINUTE_MS), 0).column("clock_ms").null_count > 0
