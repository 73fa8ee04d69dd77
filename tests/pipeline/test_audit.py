"""What commits say that should not be; the truth is a fold in plain Python."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs.audit import audit
from histories import START_MS, History, Row, Tables, rows
from pyspark.sql import SparkSession

Finding = tuple[Any, ...]


def log_order(row: Row) -> tuple[int, int]:
    return row["log_partition"], row["log_offset"]


def folded(history: History, clocks_differ_ms: int) -> Counter[Finding]:
    """Read `__consumer_offsets` record by record."""
    found: Counter[Finding] = Counter()
    owners: dict[str, set[tuple[str, int]]] = {}
    ever_owned: set[Any] = set()
    members: dict[str, int] = {}
    last: dict[Any, int] = {}  # by group and partition: the newest offset
    furthest: dict[Any, int] = {}
    removed: set[Any] = set()
    again: dict[Any, list[Any]] = {}  # what is read again since the last jump back: from, to, place

    def close(key: Any) -> None:
        if key in again:
            begin, end, place = again.pop(key)
            found["read twice", *key, begin, end, place] += 1

    for row in sorted(history.commits + history.groups, key=log_order):
        group = row["group_id"]
        if "generation" in row:
            members[group] = len(row["members"])
            owners[group] = {
                (one["topic"], partition)
                for member in row["members"]
                for one in member["assigned"]
                for partition in one["partitions"]
            }
            ever_owned |= {(group, *place) for place in owners[group]}
            continue
        key, offset, place = (group, row["topic"], row["partition"]), row["offset"], log_order(row)
        if row["is_tombstone"]:
            removed.add(key)
            continue
        before = last.get(key)
        if before is not None and offset < before:
            close(key)
            found["jumped back", *key, before, offset, place] += 1
        if before is not None and offset > before:
            if key in removed or members.get(group) == 0:
                found["skipped", *key, before, offset, place] += 1
            if before < furthest[key]:
                end = min(offset, furthest[key])
                again[key] = [again[key][0] if key in again else before, end, place]
        if members.get(group, 0) > 0 and key[1:] not in owners[group]:
            finding = "old generation" if key in ever_owned else "not assigned"
            found[finding, *key, before, offset, place] += 1
        end = max(
            (
                batch["last_offset"] + 1
                for batch in history.batches
                if (batch["topic"], batch["partition"]) == key[1:]
                and batch["base_timestamp"] <= row["log_timestamp"] + clocks_differ_ms
            ),
            default=None,
        )
        if end is not None and offset > end:
            found["past the end", *key, end, offset, place] += 1
        last[key], furthest[key] = offset, max(offset, furthest.get(key, 0))
        removed.discard(key)
    for key in list(again):
        close(key)
    return found


def as_counter(found: list[Row]) -> Counter[Finding]:
    for row in found:
        if row["from_offset"] is not None:
            assert row["records"] == abs(row["to_offset"] - row["from_offset"])
    names = ("finding", "group_id", "topic", "partition", "from_offset", "to_offset")
    return Counter((*(row[name] for name in names), log_order(row)) for row in found)


def test_the_findings_in_random_histories(small: Tables, small_history: History) -> None:
    expected = folded(small_history, 2_000)
    found = as_counter(rows(audit(small.commits, small.groups, small.batches, clocks_differ_s=2)))
    assert found == expected
    kinds = Counter(finding[0] for finding in expected.elements())
    names = {"jumped back", "read twice", "skipped", "past the end", "old generation", "not assigned"}
    assert kinds.keys() == names
    assert min(kinds.values()) >= 5, "each kind is there often enough to prove something"


def test_the_findings_of_the_day(day: Tables, day_history: History) -> None:
    """Two operators set offsets on this day, and nothing else was wrong."""
    found = rows(audit(day.commits, day.groups, day.batches))
    names = {"rewind": "jumped back", "jump": "skipped"}
    expected = {
        (names[one["kind"]], one["group"], one["topic"], one["partition"], one["from_offset"], one["to_offset"])
        for one in day_history.truth["incidents"]
        if one["kind"] in names
    }
    read_again = {("read twice", *key, low, high) for finding, *key, high, low in expected if finding == "jumped back"}
    assert read_again
    columns = ("finding", "group_id", "topic", "partition", "from_offset", "to_offset")
    assert {tuple(row[name] for name in columns) for row in found} == expected | read_again
    assert len(found) == len(expected | read_again)


def test_owners_that_no_record_says(spark: SparkSession, tmp_path: Path) -> None:
    """An assignment may be in a client's own format, and groups of KIP-848 say it elsewhere. A member may get none."""
    history = History()
    history.generation(START_MS, "strange", 1, {"a": [("orders", 0)], "b": []})
    history.groups[-1]["members"][0] |= {"assigned": None, "assignment": b"\xff\xff"}
    history.generation(START_MS, "idle", 1, {"a": [("orders", 0)], "b": []})
    history.groups[-1]["members"][1] |= {"assigned": None, "assignment": b""}
    history.member(START_MS, "new", "a")
    history.epoch(START_MS, "new", 1)
    for group in ("strange", "idle", "new"):
        history.commit(START_MS + 1, group, "orders", 0, 1)
        history.commit(START_MS + 2, group, "orders", 1, 1)
    tables = Tables(spark, tmp_path, history)
    found = rows(audit(tables.commits, tables.groups, tables.batches))
    assert [(row["group_id"], row["partition"], row["finding"]) for row in found] == [("idle", 1, "not assigned")]


def test_a_group_that_changes_to_the_new_protocol_has_members(spark: SparkSession, tmp_path: Path) -> None:
    history = History()
    history.generation(START_MS, "billing", 1, {"a": [("orders", 0)]})
    history.commit(START_MS, "billing", "orders", 0, 1)
    history.generation(START_MS + 1, "billing", 1, {})
    history.groups[-1] |= {"is_tombstone": True, "members": None, "generation": None, "state_timestamp": None}
    history.member(START_MS + 1, "billing", "a")
    history.epoch(START_MS + 1, "billing", 2)
    history.commit(START_MS + 2, "billing", "orders", 0, 5)
    history.member(START_MS + 3, "billing", "a", is_there=False)
    history.epoch(START_MS + 3, "billing", 3)
    history.commit(START_MS + 4, "billing", "orders", 0, 9)
    tables = Tables(spark, tmp_path, history)
    found = rows(audit(tables.commits, tables.groups, tables.batches))
    assert [(row["finding"], row["from_offset"], row["to_offset"]) for row in found] == [("skipped", 5, 9)]
