"""What commits say that should not be; the truth is a fold in plain Python."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs.audit import audit
from barnabas.pipeline.jobs.changes import WHO
from barnabas.pipeline.schemas import COMMITS, JOURNAL
from histories import START_MS, History, Row, Tables, rows, table
from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("two_partitions")

Finding = tuple[Any, ...]
RESETS = ("reset", "live reset")


def log_order(row: Row) -> tuple[int, int]:
    return row["log_partition"], row["log_offset"]


def folded(history: History, clocks_differ_ms: int, journal: "Journal | None" = None) -> Counter[Finding]:
    """Read `__consumer_offsets` record by record, and look up in the journal who wrote each."""
    found: Counter[Finding] = Counter()
    owners: dict[str, dict[tuple[str, int], str]] = {}
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
                (one["topic"], partition): member["member_id"]
                for member in row["members"]
                for one in member["assigned"]
                for partition in one["partitions"]
            }
            ever_owned |= {(group, *place) for place in owners[group]}
            continue
        key, offset, place = (group, row["topic"], row["partition"]), row["offset"], log_order(row)
        who = None if journal is None else journal.who.get(place)
        cause, member_id = (None, None) if who is None else (who["cause"], who["member_id"])
        before = last.get(key)
        if row["is_tombstone"]:
            removed.add(key)
            if cause is not None:
                found["removed", *key, before, None, place] += 1
            continue
        is_reset = cause in ("reset", "live reset")
        if before is None and is_reset:
            found["set", *key, None, offset, place] += 1
        if before is not None and offset < before:
            close(key)
            found["jumped back", *key, before, offset, place] += 1
        if before is not None and offset > before:
            if key in removed or is_reset or (members.get(group) == 0 and cause != "commit"):
                found["skipped", *key, before, offset, place] += 1
            if before < furthest[key] and not is_reset:
                end = min(offset, furthest[key])
                again[key] = [again[key][0] if key in again else before, end, place]
        if members.get(group, 0) > 0 and not is_reset:
            owner = owners[group].get(key[1:])
            if owner is None or (member_id is not None and member_id != owner):
                finding = "old generation" if key in ever_owned and owner is None else "not assigned"
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
        if row["from_offset"] is not None and row["to_offset"] is not None:
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


@dataclass
class Journal:
    """A journal of a history, and who it says has written what is at a place of `__consumer_offsets`."""

    rows: list[Row]
    who: dict[tuple[int, int], Row]

    @classmethod
    def of(cls, history: History, seed: int) -> "Journal":
        """It begins late, has gaps, says some changes twice, and some that the log has lost again."""
        rng, made = Random(seed), cls([], {})
        ends: Counter[int] = Counter()  # of the journal's partitions
        committed: dict[Any, int | None] = {}
        written = sorted(history.commits, key=log_order)

        def add(log_partition: int, **row: Any) -> None:
            made.rows.append(
                {"is_gap": False, "log_partition": log_partition, "log_offset": ends[log_partition], **row}
            )
            ends[log_partition] += 1

        for row in written:
            (partition, offset), key = log_order(row), (row["group_id"], row["topic"], row["partition"])
            before, committed[key] = committed.get(key), row["offset"]
            if offset < 40 or rng.random() < 0.03:
                add(partition, is_gap=True, change_offset=offset, end_offset=offset + 1, gap_reason="because")
                continue
            change = {
                **dict(zip(("group_id", "topic", "partition"), key)),
                "at": row["log_timestamp"],
                "old_offset": before,
                "new_offset": row["offset"],
                "change_offset": offset,
                "end_offset": offset + 1,
            }
            if rng.random() < 0.05:  # it was noted, and then lost in the log, where something else is now
                add(partition, **change | {"cause": "reset", "new_offset": 10**6})
                add(partition, **change | {"cause": "reset", "topic": "lost", "new_offset": 7, "change_offset": offset})
                add(partition, is_gap=True, change_offset=offset, end_offset=offset)
            who = dict.fromkeys(WHO)
            causes = ("expiry", "deletion", "topic gone") if row["is_tombstone"] else ("commit",) * 6 + RESETS
            who["cause"] = rng.choice(causes)
            if who["cause"] in ("commit", *RESETS, "deletion"):
                who |= {"client_id": "app", "host": f"/10.0.0.{rng.randrange(9)}", "principal": "User:ann"}
            if who["cause"] == "commit" and rng.random() < 0.8:
                who |= {"member_id": f"{key[0]}-{rng.randrange(2)}", "generation": rng.randrange(5)}
            made.who[partition, offset] = who
            for _ in range(rng.choice((1, 1, 1, 2))):
                add(partition, **change, **who)
        return made


def test_who_moved_an_offset(spark: SparkSession, small: Tables, small_history: History, tmp_path: Path) -> None:
    """The journal names who made each commit, and knows those that compaction has taken."""
    journal = Journal.of(small_history, 1)
    newest = {(row["group_id"], row["topic"], row["partition"]): log_order(row) for row in small_history.commits}
    rng = Random(2)
    left = [
        row
        for row in small_history.commits
        if log_order(row) in newest.values() or log_order(row) not in journal.who or rng.random() < 0.5
    ]
    assert len(left) < 0.8 * len(small_history.commits)
    tables = [table(spark, tmp_path, COMMITS, left), table(spark, tmp_path, JOURNAL, journal.rows)]
    found = rows(audit(tables[0], small.groups, small.batches, 2, tables[1]))
    expected = folded(small_history, 2_000, journal)
    assert as_counter(found) == expected
    kinds = Counter(finding[0] for finding in expected.elements())
    assert min(kinds[name] for name in ("jumped back", "skipped", "set", "removed", "not assigned")) >= 5
    for row in found:
        who = journal.who.get(log_order(row), dict.fromkeys(WHO))
        assert {name: row[name] for name in WHO} == who
    assert {row["cause"] for row in found} == {None, "commit", *RESETS, "expiry", "deletion", "topic gone"}


def test_what_the_journal_knows_of_before(spark: SparkSession, tmp_path: Path) -> None:
    """Its first change says what was committed before it. Of two records of a change the one that names who counts."""
    history = History()
    history.commit(START_MS + 3, "billing", "orders", 0, 90, log_offset=3)
    change = {"is_gap": False, "at": START_MS, "group_id": "billing", "topic": "orders", "partition": 0}
    place = history.commits[0]["log_partition"]
    steps = [(100, 40, 2, "recovered", None), (100, 40, 2, "reset", "cli"), (40, 90, 3, "commit", "app")]
    journal = [
        change
        | {"old_offset": old, "new_offset": new, "change_offset": at, "end_offset": at + 1, "cause": cause}
        | {"client_id": client, "log_partition": place, "log_offset": number}
        for number, (old, new, at, cause, client) in enumerate(steps)
    ]
    tables = Tables(spark, tmp_path, history)
    found = rows(audit(tables.commits, tables.groups, tables.batches, 2, table(spark, tmp_path, JOURNAL, journal)))
    assert sorted((row["finding"], row["from_offset"], row["to_offset"], row["client_id"]) for row in found) == [
        ("jumped back", 100, 40, "cli"),
        ("read twice", 40, 90, "app"),
    ]


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
