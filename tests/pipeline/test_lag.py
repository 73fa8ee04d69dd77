"""How far behind groups were; the truth is a fold in plain Python."""

from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs.lag import lag
from histories import START_MS, History, Row, Tables, rows
from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("two_partitions")

Key = tuple[str, str, int, int]  # group, topic, partition, time
MINUTE_MS = 60_000


def end_of_window(time_ms: int, every_ms: int) -> int:
    return time_ms // every_ms * every_ms + every_ms


def first_unread_ms(batches: list[Row], offset: int) -> float:
    """The time of the record with that offset, if its batch spread its records evenly."""
    batch = next(row for row in batches if row["last_offset"] >= offset)
    length = max(1, batch["last_offset"] - batch["base_offset"])
    share = max(0, offset - batch["base_offset"]) / length
    return batch["base_timestamp"] + (batch["max_timestamp"] - batch["base_timestamp"]) * share


def folded(history: History, every_ms: int) -> dict[Key, Row]:
    """Walk through the windows with what is known at the end of each."""
    logs = defaultdict(list)
    for row in sorted(history.batches, key=lambda row: row["base_offset"]):
        logs[row["topic"], row["partition"]].append(row)
    commits = defaultdict(list)
    for row in history.commits:
        commits[row["group_id"], row["topic"], row["partition"]].append(row)
    times = [row["log_timestamp"] for row in history.commits] + [row["max_timestamp"] for row in history.batches]
    last = end_of_window(max(times), every_ms)
    table: dict[Key, Row] = {}
    for (group, topic, partition), own in commits.items():
        batches = logs[topic, partition]
        first = end_of_window(min(row["log_timestamp"] for row in own), every_ms)
        for at_ms in range(first, last + 1, every_ms):
            newest = max((row for row in own if row["log_timestamp"] < at_ms), key=lambda row: row["log_offset"])
            if newest["is_tombstone"]:
                continue
            offset = newest["offset"]
            end = max((row["last_offset"] + 1 for row in batches if row["max_timestamp"] < at_ms), default=None)
            before = table.get((group, topic, partition, at_ms - every_ms))
            seconds = None if end is None else 0.0
            if end is not None and end > offset:
                seconds = max(0.0, (at_ms - first_unread_ms(batches, offset)) / 1000)
            table[group, topic, partition, at_ms] = {
                "committed_offset": offset,
                "log_end_offset": end,
                "lag_records": None if end is None else max(0, end - offset),
                "lag_seconds": seconds,
                "consumed_per_second": before and (offset - before["committed_offset"]) * 1000 / every_ms,
                "produced_per_second": before
                and (None if before["log_end_offset"] is None else (end - before["log_end_offset"]) * 1000 / every_ms),
            }
    return table


def as_dictionary(found: list[Row]) -> dict[Key, Row]:
    table = {}
    for row in found:
        key = (row.pop("group_id"), row.pop("topic"), row.pop("partition"), row.pop("at"))
        table[key] = {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
    assert len(table) == len(found)
    return table


@pytest.mark.takes_turns("every_s")
@pytest.mark.parametrize("every_s", [60, 600])
def test_the_lag_of_random_histories(small: Tables, small_history: History, every_s: int) -> None:
    found = as_dictionary(rows(lag(small.commits, small.batches, every_s)))
    expected = folded(small_history, every_s * 1000)
    for row in expected.values():
        row.update({name: round(value, 6) for name, value in row.items() if isinstance(value, float)})
    assert found.keys() == expected.keys()
    wrong = {key: (found[key], row) for key, row in expected.items() if found[key] != row}
    assert not wrong, f"{len(wrong)} of {len(expected)}, such as {next(iter(wrong.items()))}"


def test_the_lag_of_the_day(day: Tables) -> None:
    every_s = 900
    found = as_dictionary(rows(lag(day.commits, day.batches, every_s)))

    def at(group: str, topic: str, partition: int, hour: float) -> Row:
        return found[group, topic, partition, START_MS + int(hour * 60) * MINUTE_MS]

    assert all(
        at("billing", "orders", partition, hour)["lag_records"] == 0 for partition in range(6) for hour in (1, 24)
    )
    stopped = [at("search", "orders", 0, hour) for hour in (15, 18, 24)]
    few = 1  # read, but not committed, because groups commit every three minutes
    assert stopped[0]["lag_records"] <= few < stopped[1]["lag_records"] < stopped[2]["lag_records"]
    assert stopped[1]["lag_seconds"] == pytest.approx(3 * 3600, rel=0.02)
    assert stopped[1]["consumed_per_second"] == 0 < stopped[1]["produced_per_second"]
    stalled = [at("fraud", "payments", 2, hour) for hour in (10, 12.75, 14)]
    assert stalled[1]["lag_records"] > few >= max(stalled[0]["lag_records"], stalled[2]["lag_records"])
    assert at("analytics", "clicks", 0, 18)["lag_records"] > at("analytics", "clicks", 1, 18)["lag_records"]
    assert at("newsletter", "payments", 0, 17.75)["lag_records"] > 0
    assert ("newsletter", "payments", 0, START_MS + 19 * 60 * MINUTE_MS) not in found, "its offsets have expired"
    assert not [key for key in found if key[0] == "lurker"]


def test_a_record_of_the_future_adds_no_windows(spark: SparkSession, tmp_path: Path) -> None:
    history = History()
    history.produce(START_MS, "orders", 0, 0)
    history.commit(START_MS, "billing", "orders", 0, 1)
    history.produce(4_000_000_000_000, "orders", 0, 1)  # in the year 2096
    history.produce(START_MS + 5 * MINUTE_MS, "orders", 0, 2)
    tables = Tables(spark, tmp_path, history)
    found = {
        (row["at"] - START_MS) // MINUTE_MS: row["lag_records"] for row in rows(lag(tables.commits, tables.batches))
    }
    assert found == {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 2}
