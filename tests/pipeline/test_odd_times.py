"""Times that say nothing of when a record was written: by a wrong clock, in microseconds, none at all, or set aside."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs.audit import audit
from barnabas.pipeline.jobs.events import Event, Events
from barnabas.pipeline.jobs.health import health
from barnabas.pipeline.jobs.lag import lag
from barnabas.pipeline.jobs.lag_stream import Lag
from barnabas.pipeline.jobs.looks import pack_batches
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, DataDirectory
from histories import MINUTE_MS, START_MS, History, Row, Tables, rows
from pyspark.sql import SparkSession
from test_directories import read, time_of
from test_job_streams import events_batch

YEAR_58000_MS = START_MS * 1000  # what a producer sends that says microseconds
HOUR_MS = 60 * MINUTE_MS


def test_all_records_of_a_batch_with_log_append_time_have_its_time(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data", {"orders": {"message.timestamp.type": "LogAppendTime"}})
    directory.append(directory.log("orders"), *(Record(-1, 1_000 * number, None, b"x") for number in range(3)))
    path = directory.close()
    (batch,) = read("barnabas.batches", path=path)
    assert {record["timestamp"] for record in read("barnabas.records", path=path)} == {time_of(NOW_MS)}
    assert (batch["timestamp_type"], batch["base_timestamp"]) == ("LogAppendTime", time_of(NOW_MS))


def end_of(history: History, spark: SparkSession, folder: Path) -> list[Row]:
    tables = Tables(spark, folder, history)
    found = rows(lag(tables.commits, tables.batches))
    return [row for row in found if row["at"] == max(one["at"] for one in found)]


def test_a_batch_whose_base_time_is_a_delete_horizon(spark: SparkSession, tmp_path: Path) -> None:
    """The cleaner writes the horizon in its place; the largest time is still there."""
    history = History()
    history.produce(START_MS, "orders", 0, 0, 10)
    history.batches[0]["base_timestamp"] = None
    history.commit(START_MS + 5 * MINUTE_MS, "billing", "orders", 0, 4)
    (row,) = end_of(history, spark, tmp_path)
    assert (row["lag_records"], row["lag_seconds"]) == (6, 6 * 60)


@pytest.mark.parametrize("wrong_ms", [YEAR_58000_MS, None])
def test_records_without_a_time_that_can_be_right_are_behind_in_the_end(
    spark: SparkSession, tmp_path: Path, wrong_ms: int | None
) -> None:
    history = History()
    history.produce(START_MS, "orders", 0, 0, 10)
    for topic in ("orders", "clicks"):
        history.produce(0, topic, 0, 10, 20)
        history.batches[-1].update(base_timestamp=wrong_ms, max_timestamp=wrong_ms)
    history.commit(START_MS, "billing", "orders", 0, 10)
    history.commit(START_MS, "billing", "clicks", 0, 10)
    history.commit(START_MS + 4 * MINUTE_MS, "shipping", "orders", 0, 30)
    found = {(row["group_id"], row["topic"]): row["lag_records"] for row in end_of(history, spark, tmp_path)}
    assert found == {("billing", "orders"): 20, ("billing", "clicks"): 20, ("shipping", "orders"): 0}
    tables = Tables(spark, tmp_path, history)
    assert rows(audit(tables.commits, tables.groups, tables.batches)) == [], "it may have been there long before"


def test_a_commit_by_a_broker_whose_clock_is_ahead(spark: SparkSession, tmp_path: Path) -> None:
    history = History()
    history.produce(START_MS, "orders", 0, 0, 10)
    history.commit(START_MS, "billing", "orders", 0, 4)
    history.commit(4_000_000_000_000, "billing", "orders", 0, 8)  # in the year 2096
    history.produce(START_MS + 2 * MINUTE_MS, "orders", 0, 10)
    tables = Tables(spark, tmp_path, history)
    found = {
        (row["at"] - START_MS) // MINUTE_MS: row["committed_offset"]
        for row in rows(lag(tables.commits, tables.batches))
    }
    assert found == {1: 4, 2: 4, 3: 8}
    assert {row["status"] for row in rows(health(tables.commits, tables.groups, tables.batches))} >= {"OK"}


def test_a_stream_takes_what_has_no_right_time_with_the_newest_of_the_others() -> None:
    names = dict.fromkeys(Event._fields)
    grown = {**names, "topic": "orders", "partition": 0, "base_offset": 0}
    events = [
        Event(**grown | {"at_ms": START_MS, "base_ms": START_MS, "log_end": 10}),
        Event(**grown | {"at_ms": YEAR_58000_MS, "base_ms": YEAR_58000_MS, "log_end": 20}),
        Event(**grown | {"log_end": 30}),
        Event(
            **names
            | {"at_ms": 2 * YEAR_58000_MS, "group_id": "billing", "topic": "orders", "partition": 0}
            | {"log_offset": 1, "offset": 5, "is_tombstone": 0}
        ),
    ]
    packed = pack_batches([events_batch(events)], Lag(MINUTE_MS), START_MS + HOUR_MS)
    (content,) = packed.column("events").to_pylist()
    assert Events.of_bytes(content).of("at_ms").tolist() == [START_MS] * 4
    assert packed.column("clock_ms").to_pylist() == [START_MS]
