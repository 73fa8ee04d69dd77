"""The streaming jobs say what the batch jobs say, however their input is cut. `test_killed_streams.py` kills them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from barnabas.pipeline.jobs.events import Event, Events
from barnabas.pipeline.jobs.health import health
from barnabas.pipeline.jobs.health_stream import health_stream
from barnabas.pipeline.jobs.lag import lag
from barnabas.pipeline.jobs.lag_stream import Partition, lag_stream
from barnabas.pipeline.jobs.log_spans import SPANS_MAX
from barnabas.pipeline.schemas import BATCHES, COMMITS, GROUPS
from histories import MINUTE_MS, START_MS, History, Row, Tables, random_histories, rows, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.usefixtures("two_partitions")

RULES = {"retention_s": 2400, "soon_s": 900, "behind_s": 300}
TIMES = {"commits": "log_timestamp", "groups": "log_timestamp", "batches": "max_timestamp"}
SOURCES = {"commits": COMMITS, "groups": GROUPS, "batches": BATCHES}


class Cut:
    """A history as files that come one after the other."""

    def __init__(self, spark: SparkSession, folder: Path, parts: Sequence[History]) -> None:
        self.spark = spark
        self.folder = folder
        for name, of in SOURCES.items():
            (folder / name).mkdir(parents=True)
            for number, part in enumerate(parts):
                table(spark, folder / name, of, getattr(part, name), f"{number}")
                os.utime(folder / name / f"{number}.parquet", (1_000 + number, 1_000 + number))

    def stream(self, name: str) -> DataFrame:
        reader = self.spark.readStream.schema(SOURCES[name].spark).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / name))

    def start(self, name: str, said: DataFrame) -> StreamingQuery:
        """Start a query that ends when it has read everything."""
        writer = said.writeStream.option("checkpointLocation", str(self.folder / f"{name}.checkpoint"))
        return writer.format("parquet").trigger(availableNow=True).start(str(self.folder / name))

    def said(self, query: StreamingQuery, name: str) -> list[Row]:
        """What the query said."""
        assert query.awaitTermination(300)
        return rows(self.spark.read.parquet(str(self.folder / name)))


def parts_of(history: History, times_ms: Sequence[int]) -> list[History]:
    """The history, cut at these times."""
    return [
        History(
            **{
                name: [row for row in getattr(history, name) if begin <= row[time] < end]
                for name, time in TIMES.items()
            }
        )
        for begin, end in zip((0, *times_ms), (*times_ms, 1 << 60))
    ]


def events_batch(events: Sequence[Event]) -> pa.RecordBatch:
    """As Spark gives them to the tasks."""
    kinds = dict.fromkeys(Event._fields, pa.int64()) | dict.fromkeys(("group_id", "topic"), pa.string())
    schema = pa.schema([*kinds.items()])
    return pa.RecordBatch.from_pylist([one._asdict() for one in events], schema)


def comparable(found: list[Row], until_ms: int) -> list[Any]:
    return sorted((tuple(row.values()) for row in found if row["at"] <= until_ms), key=str)


def test_the_streams_say_what_the_batches_say(spark: SparkSession, tmp_path: Path) -> None:
    history = random_histories(range(6), late=False)
    times = sorted(row["log_timestamp"] for row in history.commits)
    end_ms = times[-1]
    history.produce(end_ms + 60 * MINUTE_MS, "clock", 0, 0)  # lets the watermark pass everything else
    small = Tables(spark, tmp_path, history)
    cut = Cut(spark, tmp_path, parts_of(history, [times[len(times) // 3], times[2 * len(times) // 3]]))
    commits, groups, batches = cut.stream("commits"), cut.stream("groups"), cut.stream("batches")
    of_health = cut.start("health", health_stream(commits, groups, batches, **RULES))
    of_lag = cut.start("lag", lag_stream(commits, batches, every_s=600))

    expected = comparable(rows(health(small.commits, small.groups, small.batches, **RULES)), end_ms)
    assert len(expected) > 100
    assert comparable(cut.said(of_health, "health"), end_ms) == expected
    expected = comparable(rows(lag(small.commits, small.batches, every_s=600)), end_ms)
    assert len(expected) > 100
    assert comparable(cut.said(of_lag, "lag"), end_ms) == expected


def test_groups_of_the_new_protocol(spark: SparkSession, tmp_path: Path) -> None:
    """Their members are in records of their own: `active` has one all the time, `left` until the fifth minute; `busy`
    begins an epoch every few seconds; `lurker` never commits. `plain` is an old group without the time of its state.
    """
    history = History()
    for group in ("active", "left", "busy", "lurker"):
        history.member(START_MS, group, "a")
        history.epoch(START_MS, group, 1)
    history.generation(START_MS, "plain", 1, {})
    history.groups[-1]["state_timestamp"] = None
    for group in ("active", "left", "busy", "plain"):
        history.commit(START_MS + 1_000, group, "orders", 0, 10)
    history.member(START_MS + 5 * MINUTE_MS, "left", "a", is_there=False)
    history.epoch(START_MS + 5 * MINUTE_MS, "left", 2)
    history.member(START_MS + 6 * MINUTE_MS, "active", "b")
    history.epoch(START_MS + 6 * MINUTE_MS, "active", 2)
    history.member(START_MS + 7 * MINUTE_MS, "active", "b")  # its subscription is another one
    history.member(START_MS + 8 * MINUTE_MS, "active", "a", is_there=False)
    for number in range(20):
        history.epoch(START_MS + 20 * MINUTE_MS + number * 5_000, "busy", 2 + number)
    history.produce(START_MS + 60 * MINUTE_MS, "orders", 0, 0, 10)
    tables = Tables(spark, tmp_path, history)
    found = rows(health(tables.commits, tables.groups, tables.batches, **RULES))  # 40 minutes, and 15 before
    changes = {(row["group_id"], row["check"], row["status"], (row["at"] - START_MS) // MINUTE_MS) for row in found}
    assert {one for one in changes if one[2] != "OK"} == {
        ("left", "expiry", "EXPIRES_SOON", 26),
        ("plain", "expiry", "EXPIRES_SOON", 26),
        ("busy", "rebalances", "STORM", 21),
        ("lurker", "commits", "NEVER", 11),
    }
    assert ("busy", "rebalances", "OK", 32) in changes

    end_ms = START_MS + 60 * MINUTE_MS
    history.produce(end_ms + 60 * MINUTE_MS, "clock", 0, 0)
    cut = Cut(spark, tmp_path / "cut", parts_of(history, [START_MS + 7 * MINUTE_MS, START_MS + 20 * MINUTE_MS]))
    query = cut.start(
        "health", health_stream(cut.stream("commits"), cut.stream("groups"), cut.stream("batches"), **RULES)
    )
    assert comparable(cut.said(query, "health"), end_ms) == comparable(found, end_ms)


def test_what_comes_too_late_is_taken_over_by_the_next_look(spark: SparkSession, tmp_path: Path) -> None:
    first, second, third = History(), History(), History()
    first.produce(START_MS, "orders", 0, 0, 100)
    first.commit(START_MS, "billing", "orders", 0, 10)
    first.produce(START_MS + 10 * MINUTE_MS, "orders", 0, 100)
    first.produce(4_000_000_000_000, "clicks", 0, 0)  # in the year 2096, and everything else is not late because of it
    second.produce(START_MS + 11 * MINUTE_MS, "orders", 0, 101)
    third.commit(START_MS + MINUTE_MS, "billing", "orders", 0, 60, log_offset=1)  # ten minutes late
    third.produce(START_MS + 20 * MINUTE_MS, "orders", 0, 102)
    cut = Cut(spark, tmp_path, [first, second, third])
    query = cut.start("lag", lag_stream(cut.stream("commits"), cut.stream("batches")))
    committed = {(row["at"] - START_MS) // MINUTE_MS: row["committed_offset"] for row in cut.said(query, "lag")}
    assert committed == {minute: 10 if minute < 10 else 60 for minute in range(1, 20)}


def test_many_spans_become_fewer() -> None:
    """The memory is bounded; and where the spans are even, nothing is lost."""
    partition = Partition(every_ms=MINUTE_MS)
    records = 10 * SPANS_MAX
    grown = [Event(offset * 100, *[None] * 9, offset + 1, offset, offset * 100) for offset in range(records)]
    for begin in range(0, records, 600):
        some = grown[begin : begin + 600]
        partition.expect(Events.of_batches([events_batch(some)]))
        partition.take_over(some)
    assert len(partition.spans) <= SPANS_MAX
    assert (partition.spans[1:, 1] == partition.spans[:-1, 0] + 1).all()
    for offset in range(0, records, 37):
        assert partition.seconds_behind(offset, records * 100) == pytest.approx((records - offset) / 10, abs=0.1)


def grown(at_ms: int, offset: int, count: int = 1) -> Event:
    """A batch of a log."""
    return Event(at_ms, *[None] * 9, offset + count, offset, at_ms)


def test_a_topic_that_was_made_again_is_another_log() -> None:
    """Also where its time has not come yet, a batch comes twice, and the old log had something more to say."""
    partition = Partition(every_ms=1000)
    commit = Event(900, "billing", "orders", 0, 1, 290, *[None] * 7)
    old, again = [grown(100, 0, 100), commit, grown(900, 100, 200)], [grown(900, 100, 200)]
    new = [grown(1500, 300, 5), grown(2500, 0, 10)]
    for some in (old, again, new):
        partition.expect(Events.of_batches([events_batch(some)]))
    said = []
    for at_ms, some in (
        (1000, old),
        (2000, [*again, *new[:1]]),
        (3000, [new[1], commit._replace(log_offset=2, offset=4)]),
    ):
        partition.take_over(some)
        said += partition.say(at_ms)
    ends, lags, ages, rates = zip(*((row[5], row[6], row[7], row[9]) for row in said))
    assert (ends, lags) == ((300, 305, 10), (10, 15, 6))
    assert (ages[0], ages[2]) == pytest.approx((0.1, 0.5))
    assert rates == (None, 5.0, None)
    more = [grown(3500, 10, 2)]
    partition.expect(Events.of_batches([events_batch(more)]))
    partition.take_over(more)
    assert [row[5:7] for row in partition.say(4000)] == [(12, 8)]
