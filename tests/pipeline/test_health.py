"""When groups were well; the truth is a fold in plain Python, tick by tick."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs.health import RESULT, health
from histories import MINUTE_MS, START_MS, History, Row, Tables, rows
from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("two_partitions")

RETENTION_MS, SOON_MS, BEHIND_MS = 40 * MINUTE_MS, 15 * MINUTE_MS, 5 * MINUTE_MS
TEN_MINUTES_MS = 10 * MINUTE_MS

ALL = {"OK", "STOP", "REWIND", "STALL", "WARN", "BEHIND", "REMOVED", "EXPIRES_SOON", "STORM", "NEVER"}

Change = tuple[Any, ...]  # group, topic, partition, check, time, status


def by_key(found: list[Row], *names: str) -> dict[Any, list[Row]]:
    result = defaultdict(list)
    for row in found:
        result[tuple(row[name] for name in names)].append(row)
    return dict(result)


def end_of(log: list[Row], at_ms: int) -> int | None:
    return max((row["last_offset"] + 1 for row in log if row["max_timestamp"] <= at_ms), default=None)


def reading(window: list[Row], log: list[Row], at_ms: int) -> str:
    """Burrow's rules for the commits of a partition up to the newest one."""
    if window[-1]["is_tombstone"]:
        return "REMOVED"
    window = window[max((number + 1 for number, row in enumerate(window) if row["is_tombstone"]), default=0) :][-10:]
    end = end_of(log, at_ms - 1)
    if end is None or end <= window[-1]["offset"]:
        return "OK"
    lags = [max(0, (end_of(log, row["log_timestamp"]) or 0) - row["offset"]) for row in window]
    offsets = [row["offset"] for row in window]
    times = [row["log_timestamp"] for row in window]
    if at_ms - times[-1] > (times[-1] - times[0] if len(window) > 1 else TEN_MINUTES_MS):
        return "STOP"
    if any(after < before for before, after in pairwise(offsets)):
        return "REWIND"
    always_behind = 0 not in lags and len(window) > 1
    if always_behind and len(set(offsets)) == 1:
        return "STALL"
    if always_behind and not any(after < before for before, after in pairwise(lags)):
        return "WARN"
    return "BEHIND" if at_ms - produced_ms(log, offsets[-1]) > BEHIND_MS else "OK"


def produced_ms(log: list[Row], offset: int) -> float:
    """The time of a record; those of a batch are taken as even."""
    batch = min((row for row in log if row["last_offset"] >= offset), key=lambda row: row["last_offset"])
    last_ms, base_ms = batch["max_timestamp"], batch["base_timestamp"]
    base_ms = last_ms if base_ms is None else base_ms
    into = max(0, offset - batch["base_offset"]) / max(1, batch["last_offset"] - batch["base_offset"])
    return base_ms + (last_ms - base_ms) * into


def expiry(newest: Row, generation: Row | None, at_ms: int) -> str:
    if newest["is_tombstone"] or (generation and generation["members"]):
        return "OK"
    begun = generation["state_timestamp"] if generation else newest["commit_timestamp"]
    expires = newest["expire_timestamp"] if newest["expire_timestamp"] is not None else begun + RETENTION_MS
    return "EXPIRES_SOON" if expires <= at_ms + SOON_MS else "OK"


def is_begun(own: list[Row], row: Row) -> bool:
    """Whether a group's record begins a generation; a new group's has number 0, and some are written again."""
    before = own[own.index(row) - 1]["generation"] if row is not own[0] else 0
    return bool(row["generation"] != before)


def folded(history: History, every_ms: int = MINUTE_MS) -> list[Change]:
    """Every status at every minute, of which only the changes are kept."""
    times = [row["log_timestamp"] for row in history.commits] + [row["max_timestamp"] for row in history.batches]
    last = max(times) // every_ms * every_ms + every_ms
    logs = by_key(history.batches, "topic", "partition")
    generations = by_key(history.groups, "group_id")
    commits_of = by_key(history.commits, "group_id")
    found: list[Change] = []

    def walk(key: tuple[Any, ...], first_ms: int, status_at: Any) -> None:
        before = None
        for at_ms in range(first_ms // every_ms * every_ms + every_ms, last + 1, every_ms):
            status = status_at(at_ms)
            if status is not None and status != before:
                found.append((*key, at_ms, status))
            before = status or before

    for (group, topic, partition), own in by_key(history.commits, "group_id", "topic", "partition").items():

        def window(at_ms: int, own: list[Row] = own) -> list[Row]:
            newest = max(row["log_offset"] for row in own if row["log_timestamp"] < at_ms)
            return [row for row in own if row["log_offset"] <= newest]

        def generation(at_ms: int, group: str = group) -> Row | None:
            before = [row for row in generations.get((group,), ()) if row["log_timestamp"] < at_ms]
            return before[-1] if before else None

        first = min(row["log_timestamp"] for row in own)
        key = (group, topic, partition)
        log = logs.get((topic, partition), [])
        walk((*key, "reading"), first, lambda at, log=log, window=window: reading(window(at), log, at))
        walk((*key, "expiry"), first, lambda at, window=window, of=generation: expiry(window(at)[-1], of(at), at))
    for (group,), own in generations.items():

        def rebalances(at_ms: int, own: list[Row] = own) -> str | None:
            if own[0]["log_timestamp"] >= at_ms:
                return None
            recent = [row for row in own if at_ms - TEN_MINUTES_MS <= row["log_timestamp"] < at_ms]
            begun = sum(is_begun(own, row) for row in recent)
            return "STORM" if begun > 2 * max((1, *(len(row["members"]) for row in recent))) else "OK"

        def commits(at_ms: int, group: str = group, own: list[Row] = own) -> str | None:
            begun = min((row["log_timestamp"] for row in own if row["members"]), default=None)
            first = min((row["log_timestamp"] for row in commits_of.get((group,), ())), default=None)
            if begun is None or (first is not None and first <= begun + TEN_MINUTES_MS):
                return None
            if first is not None and first < at_ms:
                return "OK"
            return "NEVER" if begun + TEN_MINUTES_MS < at_ms else None

        walk((group, None, None, "rebalances"), own[0]["log_timestamp"], rebalances)
        walk((group, None, None, "commits"), own[0]["log_timestamp"], commits)
    return sorted(found, key=str)


def as_changes(found: list[Row]) -> list[Change]:
    names = ("group_id", "topic", "partition", "check", "at", "status")
    return sorted((tuple(row[name] for name in names) for row in found), key=str)


@pytest.mark.takes_turns("every_s")
@pytest.mark.parametrize("every_s", [60, 420, 3600])
def test_the_health_of_random_histories(small: Tables, small_history: History, every_s: int) -> None:
    """What was before is the status of the row before."""
    rules = {"every_s": every_s, "retention_s": RETENTION_MS // 1000, "soon_s": SOON_MS // 1000}
    rules["behind_s"] = BEHIND_MS // 1000
    table = health(small.commits, small.groups, small.batches, **rules)
    assert [field.name for field in table.schema] == [column.split()[0] for column in RESULT.split(", ")]
    found = rows(table)
    expected = folded(small_history, every_s * 1000)
    assert as_changes(found) == expected
    statuses = {change[-1] for change in expected if every_s == 60} or ALL
    assert statuses == ALL
    for own in by_key(found, "group_id", "topic", "partition", "check").values():
        own.sort(key=lambda row: row["at"])
        assert [row["before"] for row in own] == [None, *(row["status"] for row in own[:-1])]


def test_a_reader_that_comes_once_and_goes(spark: SparkSession, tmp_path: Path) -> None:
    """As Kafka writes it: the new group, its only generation, and the group without members. It committed once."""
    history = History()
    history.produce(START_MS, "orders", 0, 0, 100)
    for number, members in enumerate(({}, {"reader": [("orders", 0)]}, {})):
        history.generation(START_MS + number * 1_000, "billing", number, members)
    history.commit(START_MS + 1_500, "billing", "orders", 0, 50)
    history.produce(START_MS + 5 * MINUTE_MS, "orders", 0, 100)
    tables = Tables(spark, tmp_path, history)
    found = rows(health(tables.commits, tables.groups, tables.batches))
    assert {(row["check"], row["status"]) for row in found} == {
        ("reading", "OK"),
        ("expiry", "OK"),
        ("rebalances", "OK"),
    }


def test_the_health_of_the_day(day: Tables) -> None:
    found = rows(health(day.commits, day.groups, day.batches, every_s=120, soon_s=3600))
    bad = defaultdict(list)
    for row in found:
        if row["status"] != "OK":
            hour = (row["at"] - START_MS) / MINUTE_MS / 60
            bad[row["group_id"], row["status"]].append((row["partition"], round(hour, 1)))
    assert ("billing", "STOP") not in bad
    assert ("shipping", "WARN") not in bad
    assert {partition for partition, _ in bad["fraud", "STALL"]} == {2}
    assert 10 <= min(hour for _, hour in bad["fraud", "STALL"]) <= 13
    assert {partition for partition, _ in bad["search", "STOP"]} == set(range(6))
    assert all(15 <= hour < 16 for _, hour in bad["search", "STOP"])
    assert {partition for partition, _ in bad["reporting", "REWIND"]} == {0, 1, 2}
    assert all(16 <= hour < 16.2 for _, hour in bad["reporting", "REWIND"])
    assert bad["push", "STORM"] == [(None, pytest.approx(18.1, abs=0.1))]
    assert bad["lurker", "NEVER"] == [(None, pytest.approx(0.2, abs=0.1))]
    assert {partition for partition, _ in bad["newsletter", "REMOVED"]} == {0, 1, 2}
    assert all(hour == 18 for _, hour in bad["newsletter", "REMOVED"])
    assert sorted(bad["newsletter", "EXPIRES_SOON"]) == [(partition, 17) for partition in range(3)]
    assert bad["analytics", "WARN"], "too slow for its hottest partition"


def test_a_group_that_reads_steadily_but_hours_late_is_behind(spark: SparkSession, tmp_path: Path) -> None:
    """Burrow finds nothing: the lag shrinks now and then. Its first unread record is ten hours old all the time."""
    history, hour_ms = History(), 60 * MINUTE_MS
    for minute in range(14 * 60):
        history.produce(START_MS + minute * MINUTE_MS, "orders", 0, minute)
        if minute >= 10 * 60:
            history.commit(START_MS + minute * MINUTE_MS + 1, "late", "orders", 0, (minute - 10 * 60) // 2 * 2)
    tables = Tables(spark, tmp_path, history)
    found = [row for row in rows(health(tables.commits, tables.groups, tables.batches)) if row["check"] == "reading"]
    assert {row["status"] for row in found if row["at"] >= START_MS + 11 * hour_ms} <= {"BEHIND"}
    assert found[-1]["status"] == "BEHIND"
