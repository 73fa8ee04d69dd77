"""Growth, retention, full disks and uneven load of the generated day, against sums in plain Python."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs import capacity
from histories import START_MS, History, Tables, rows
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

MIDNIGHT = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=1)
DAY_MS = 24 * 3_600_000


def test_what_was_written_on_each_day(day: Tables, day_history: History) -> None:
    found = {(row["kind"], row["name"]): row for row in rows(capacity.growth(day.batches, day.commits))}
    expected = Counter(("topic", row["topic"]) for row in day_history.batches)
    expected += Counter(("group", row["group_id"]) for row in day_history.commits)
    assert {key: row["records"] for key, row in found.items()} == expected
    assert {row["day"] for row in found.values()} == {(MIDNIGHT - timedelta(days=1)).date()}
    sizes = Counter[str]()
    for row in day_history.batches:
        sizes[row["topic"]] += row["size_bytes"]
    assert {name: row["bytes"] for (kind, name), row in found.items() if kind == "topic"} == sizes


def test_how_topics_grow_and_what_retention_takes(day: Tables, day_history: History) -> None:
    six_hours_ms = DAY_MS // 4
    found = {row["topic"]: row for row in rows(capacity.topics(day.batches, MIDNIGHT, six_hours_ms))}
    newest_ms = max(one["max_timestamp"] for one in day_history.batches)
    for topic, row in found.items():
        own = [one for one in day_history.batches if one["topic"] == topic]
        old = [one for one in own if one["max_timestamp"] < START_MS + DAY_MS - six_hours_ms]
        partitions = Counter[int]()
        for one in own:
            partitions[one["partition"]] += one["size_bytes"]
        span_ms = newest_ms - min(one["base_timestamp"] for one in own)
        assert row["records"] == len(own)
        assert row["bytes"] == sum(partitions.values())
        assert row["partitions"] == len(partitions)
        assert row["retention_takes_bytes"] == sum(one["size_bytes"] for one in old)
        assert row["bytes_per_day"] == pytest.approx(row["bytes"] * DAY_MS / span_ms)
        assert row["retention_keeps_bytes"] == pytest.approx(row["bytes_per_day"] / 4)
        even = row["bytes"] / len(partitions)
        assert row["largest_share"] == pytest.approx(max(partitions.values()) / even)
    assert found["clicks"]["largest_share"] > 1.5 > found["orders"]["largest_share"], "clicks has a hot partition"
    assert {row["retention_takes_bytes"] for row in rows(capacity.topics(day.batches, MIDNIGHT))} == {None}


def test_retention_removes_nothing_of_a_compacted_topic(day: Tables) -> None:
    internal = day.batches.withColumn("topic", F.lit("__consumer_offsets"))
    (row,) = rows(capacity.topics(internal, MIDNIGHT + timedelta(days=9), DAY_MS))
    assert row["bytes"] > 0
    assert (row["retention_takes_bytes"], row["retention_keeps_bytes"]) == (None, None)


def test_a_topic_whose_records_are_all_in_one_of_its_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """And in a second of last month: it grows no more, so the disks are not full tomorrow because of it."""
    history = History()
    history.produce(START_MS, "skewed", 3, 0, 1_000, span_ms=1_000)
    history.produce(START_MS + 10 * DAY_MS, "orders", 0, 0)
    history.produce(START_MS * 1000, "orders", 0, 1)  # microseconds, of a producer that should say milliseconds
    batches = Tables(spark, tmp_path, history).batches
    counts = spark.createDataFrame([("skewed", 6), ("orders", 1)], "topic string, partitions int")
    for known, partitions in ((None, 4), (counts, 6)):
        row = next(one for one in rows(capacity.topics(batches, MIDNIGHT, None, known)) if one["topic"] == "skewed")
        assert (row["partitions"], row["largest_share"]) == (partitions, partitions)
        assert row["bytes_per_day"] == pytest.approx(row["bytes"] / 10)
    days = {
        (row["name"], row["day"] and (row["day"] - MIDNIGHT.date()).days)
        for row in rows(capacity.growth(batches, Tables(spark, tmp_path, history).commits))
    }
    assert days == {("skewed", -1), ("orders", 9), ("orders", None)}


def test_disks_that_are_full_in_a_million_years(day: Tables) -> None:
    (row,) = rows(capacity.full_at(capacity.topics(day.batches, MIDNIGHT), 10**18, 1, MIDNIGHT))
    assert row["full_at"] is None


def test_records_without_a_key_count(spark: SparkSession, tmp_path: Path) -> None:
    history = History()
    for offset, key in enumerate((b"a", None, None, None)):
        place = {"topic": "orders", "partition": 0, "offset": offset, "timestamp_type": "CreateTime"}
        history.records.append({**place, "timestamp": START_MS, "key": key, "headers": []})
    (row,) = rows(capacity.keys(Tables(spark, tmp_path, history).records))
    assert (bytes(row["key"]), row["records"], row["share"]) == (b"a", 1, 0.25)


def test_when_disks_are_full(day: Tables) -> None:
    sizes = capacity.topics(day.batches, MIDNIGHT)
    growth = sum(row["bytes_per_day"] for row in rows(sizes))
    (row,) = rows(capacity.full_at(sizes, 10_000_000, 3, MIDNIGHT))
    assert row["bytes_per_day"] == pytest.approx(3 * growth)
    assert row["full_at"] == pytest.approx(START_MS + DAY_MS + 10_000_000 / (3 * growth) * DAY_MS, abs=2)
    (row,) = rows(capacity.full_at(sizes.where("false"), 10, 3, MIDNIGHT))
    assert row["full_at"] is None


def test_the_keys_with_the_most_records(day: Tables, day_history: History) -> None:
    found = rows(capacity.keys(day.records, most=1))
    hot = next(row for row in found if (row["topic"], row["partition"]) == ("clicks", 0))
    own = [row["key"] for row in day_history.records if (row["topic"], row["partition"]) == ("clicks", 0)]
    assert bytes(hot["key"]) == b"hot"
    assert hot["records"] == own.count(b"hot")
    assert hot["share"] == pytest.approx(own.count(b"hot") / len(own))
    assert len(found) == 6 + 3 + 4
