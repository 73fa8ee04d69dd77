"""Growth, retention, full disks and uneven load of the generated day, against sums in plain Python."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs import capacity
from histories import START_MS, History, Tables, rows
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
    for topic, row in found.items():
        own = [one for one in day_history.batches if one["topic"] == topic]
        old = [one for one in own if one["max_timestamp"] < START_MS + DAY_MS - six_hours_ms]
        partitions = Counter[int]()
        for one in own:
            partitions[one["partition"]] += one["size_bytes"]
        span_ms = max(one["max_timestamp"] for one in own) - min(one["base_timestamp"] for one in own)
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
