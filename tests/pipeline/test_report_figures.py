"""What the report says: few rows of large tables; the truth is a fold in plain Python over random rows."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import astuple, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import itertools

from barnabas.pipeline.jobs.health import RESULT, generations
from barnabas.pipeline.jobs.leaders import leaders
from barnabas.pipeline.report import figures
from barnabas.pipeline.report.figures import HOUR_MS, MINUTE_MS, Span
from barnabas.pipeline.report.statuses import RANKS
from histories import START_MS, History, Tables
from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
DAY_MS = 24 * HOUR_MS
GROUPS = ["a", "b", "<c>", "d", "e"]
SPAN = Span(START_MS, START_MS + DAY_MS)
LAG = "at timestamp, group_id string, topic string, partition int, lag_records bigint, lag_seconds double"
AUDIT = "at timestamp, group_id string, finding string, records bigint"


def frame(spark: SparkSession, schema: str, rows: Sequence[Row]) -> DataFrame:
    names = [column.split()[0] for column in schema.split(", ")]
    times = {column.split()[0] for column in schema.split(", ") if column.endswith(" timestamp")}
    values = [
        tuple(datetime.fromtimestamp(row[name] / 1000, UTC) if name in times else row.get(name) for name in names)
        for row in rows
    ]
    return spark.createDataFrame(values, schema)


def lag_rows(seed: int) -> list[Row]:
    """Every minute of some hours, with gaps; all groups read two topics."""
    random = Random(seed)
    rows = []
    for group in GROUPS:
        for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
            records = 0
            for minute in range(1, 400):
                records = max(0, records + random.choice((-3, 0, 0, 1, 4, -40)))
                if group != "d" and random.random() < 0.8:
                    seconds = None if random.random() < 0.1 else records * 1.5
                    value = None if random.random() < 0.05 else records
                    place = {"group_id": group, "topic": topic, "partition": partition}
                    at = START_MS + minute * MINUTE_MS
                    rows.append(place | {"at": at, "lag_records": value, "lag_seconds": seconds})
    return rows


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize(("seed", "most"), [(1, 2), (2, 9)])
def test_the_lag_over_time(spark: SparkSession, seed: int, most: int) -> None:
    rows = lag_rows(seed)
    # The last window has fewer groups: the others were deleted, or have expired.
    end_ms = START_MS + 400 * MINUTE_MS
    last = {"at": end_ms, "topic": "t", "partition": 0, "lag_records": 7, "lag_seconds": 1.0}
    rows += [last | {"group_id": group} for group in ("a", "<c>")]
    found = figures.lag_over_time(frame(spark, LAG, rows), SPAN, most)
    assert {one.group: one.records_end for one in found.rows} == {
        one.group: 7 if one.group in ("a", "<c>") else None for one in found.rows
    }
    totals: Counter[tuple[str, int]] = Counter()
    for row in rows:
        totals[row["group_id"], row["at"]] += row["lag_records"] or 0
    buckets: dict[str, dict[int, int]] = defaultdict(dict)
    for (group, at), records in totals.items():
        bucket = at - (at - START_MS) % (10 * MINUTE_MS)  # a day in at most 240 buckets; it begins at midnight
        buckets[group][bucket] = max(records, buckets[group].get(bucket, 0))
    expected = sorted(buckets, key=lambda group: (-max(buckets[group].values()), group))
    assert SPAN.bucket_ms == 10 * MINUTE_MS
    assert [one.group for one in found.rows] == expected[:most]
    assert found.left_out == len(expected[most:])
    for one in found.rows:
        assert one.records_at == buckets[one.group]
        assert one.records_end == totals.get((one.group, max(row["at"] for row in rows)))
        assert one.seconds_max == max(row["lag_seconds"] or 0 for row in rows if row["group_id"] == one.group)


def test_groups_that_were_never_behind_are_left_out(spark: SparkSession) -> None:
    row = {"at": START_MS, "group_id": "a", "topic": "t", "partition": 0, "lag_records": 0, "lag_seconds": 0.0}
    found = figures.lag_over_time(frame(spark, LAG, [row]), SPAN, 5)
    assert (found.rows, found.left_out) == ([], 1)


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", [11, 12])
def test_who_is_furthest_behind_now(spark: SparkSession, seed: int) -> None:
    """In the last window, and an hour before; also from the sums by topic."""
    rows = lag_rows(seed)
    end = max(row["at"] for row in rows)
    states: dict[tuple[str, str], dict[int, tuple[int, float | None]]] = defaultdict(dict)
    for row in rows:
        records, seconds = states[row["group_id"], row["topic"]].get(row["at"], (0, None))
        both = [one for one in (seconds, row["lag_seconds"]) if one is not None]
        states[row["group_id"], row["topic"]][row["at"]] = records + (row["lag_records"] or 0), max(both, default=None)
    expected = []
    for (group, topic), at_time in states.items():
        earlier = max((at for at in at_time if end - 2 * HOUR_MS < at <= end - HOUR_MS), default=None)
        if end in at_time and at_time[end][0]:
            before = (None, None) if earlier is None else at_time[earlier]
            expected.append((group, topic, *at_time[end], end, *before))
    expected.sort(key=lambda row: -1 if row[3] is None else row[3], reverse=True)
    table = frame(spark, LAG, rows)
    found = figures.furthest_behind(figures.by_topic(table), 2)
    assert len(expected) > 2
    assert [astuple(one) for one in found.rows] == expected[:2]
    assert found.left_out == len(expected) - 2
    assert figures.furthest_behind(table.where("false"), 2) == figures.Top([])


def test_what_is_not_well_has_its_lag(spark: SparkSession) -> None:
    """Of its partitions; a check of the whole group has that of all. A group without a lag has none."""
    places = [("t", 0, 5, 36_000.0), ("t", 1, 7, 60.0), ("u", 0, 1, 1.0)]
    lag = [
        {"at": START_MS + minute * MINUTE_MS, "group_id": "a", "topic": topic, "partition": partition}
        | {"lag_records": records * (10 - minute), "lag_seconds": seconds}
        for minute in (0, 9)
        for topic, partition, records, seconds in places
    ]
    unwell = {"at": START_MS, "status": "BEHIND", "before": None}
    rows = [
        *(unwell | {"group_id": "a", "topic": "t", "partition": index, "check": "reading"} for index in (0, 1)),
        unwell | {"group_id": "a", "topic": None, "partition": None, "check": "rebalances", "status": "STORM"},
        unwell | {"group_id": "b", "topic": None, "partition": None, "check": "commits", "status": "NEVER"},
    ]
    found = figures.unwell(frame(spark, RESULT, rows), frame(spark, LAG, lag), 9)
    assert [(one.group, one.status, one.partitions, one.lag_records, one.lag_seconds) for one in found.rows] == [
        ("b", "NEVER", 0, None, None),
        ("a", "STORM", 0, 13, 36_000.0),
        ("a", "BEHIND", 2, 12, 36_000.0),
    ]


def test_what_begins_in_the_last_window_is_in_the_timelines(spark: SparkSession) -> None:
    """Ten hours behind from the last minute on: not always OK."""
    row = {"group_id": "a", "topic": "t", "partition": 0, "check": "reading"}
    rows = [
        row | {"at": START_MS, "status": "OK", "before": None},
        row | {"at": SPAN.last_ms, "status": "BEHIND", "before": "OK"},
    ]
    lag = [row | {"at": SPAN.last_ms, "lag_records": 9, "lag_seconds": 36_000.0}]
    found = figures.timelines(frame(spark, RESULT, rows), None, None, SPAN, 4, frame(spark, LAG, lag))
    (one,) = found.rows
    assert [stretch.status for stretch in one.stretches] == ["BEHIND"]
    assert one.seconds_max == 36_000


def test_other_leaders(spark: SparkSession) -> None:
    """Each change of an epoch with the time of its first batch; what is close together is one event."""
    columns = "topic string, partition int, leader_epoch int, base_offset bigint, base_timestamp timestamp"
    columns += ", max_timestamp timestamp, error string"
    table = frame(
        spark,
        columns,
        [
            {"topic": topic, "partition": partition, "leader_epoch": epoch, "base_offset": minute}
            | {"base_timestamp": START_MS + minute * MINUTE_MS, "max_timestamp": START_MS + minute * MINUTE_MS}
            for topic, partition, epoch, minute in (
                *(("t", 0, 0, 0), ("t", 0, 0, 1), ("t", 0, 2, 10), ("t", 0, 2, 11), ("t", 0, 3, 90)),
                *(("t", 1, 5, 0), ("t", 1, 6, 14), ("u", 0, 1, 3)),
                ("u", 1, None, 50),
            )
        ],
    )
    changes = leaders(table)
    found = {(row.topic, row.partition, row.before, row.leader_epoch, row.base_offset) for row in changes.collect()}
    assert found == {("t", 0, 0, 2, 10), ("t", 0, 2, 3, 90), ("t", 1, 5, 6, 14)}
    first = figures.LeaderChange(START_MS + 10 * MINUTE_MS, START_MS + 14 * MINUTE_MS, 2)
    later = figures.LeaderChange(START_MS + 90 * MINUTE_MS, START_MS + 90 * MINUTE_MS, 1)
    assert figures.leader_changes(changes, 5) == figures.Top([first, later])
    assert figures.leader_changes(changes, 1) == figures.Top([first], 1)


def test_movers(spark: SparkSession) -> None:
    rows = lag_rows(3)
    found = figures.movers(figures.by_topic(frame(spark, LAG, rows)), 5)
    totals: Counter[tuple[str, str, int]] = Counter()
    for row in rows:
        totals[row["group_id"], row["topic"], row["at"]] += row["lag_records"] or 0
    last: dict[tuple[str, str], dict[int, tuple[int, int]]] = defaultdict(dict)  # by hour: the last time, and its lag
    for (group, topic, at), records in sorted(totals.items()):
        last[group, topic][-(-at // HOUR_MS)] = (at, records)
    changes = []
    for (group, topic), hours in last.items():
        in_order = [hours[hour] for hour in sorted(hours)]
        steps = [(abs(new[1] - old[1]), -new[0], old[1], new[1]) for old, new in itertools.pairwise(in_order)]
        change, earliest, before, after = max(step for step in steps if step[0])
        changes.append((-change, group, topic, -earliest, before, after))
    assert [(one.group, one.topic, one.at_ms, one.before, one.after) for one in found.rows] == [
        one[1:] for one in sorted(changes)[:5]
    ]
    assert found.left_out == len(changes) - 5


def health_rows(seed: int) -> list[Row]:
    """Changes of status, as `health` writes them."""
    random = Random(seed)
    rows = []
    for group in GROUPS:
        for check, topic, partition in (("reading", "t", 0), ("reading", "t", 1), ("rebalances", None, None)):
            at, before = START_MS + random.randrange(60) * MINUTE_MS, None
            while at < SPAN.last_ms and len(rows) < 1000:
                status = random.choice([one for one in RANKS if one != before and (group != "b" or one == "OK")])
                place = {"group_id": group, "topic": topic, "partition": partition, "check": check}
                rows.append(place | {"at": at, "status": status, "before": before})
                if group == "b":
                    break
                at, before = at + random.choice((1, 3, 30, 300)) * MINUTE_MS, status
    return rows


def series(rows: Sequence[Row]) -> dict[tuple[str, str, str, int], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["at"]):
        found[row["group_id"], row["check"], row["topic"], row["partition"]].append(row)
    return found


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", [4, 5])
def test_timelines(spark: SparkSession, seed: int) -> None:
    """Bucket by bucket: which statuses did a group have in it, and which of them is the worst?"""
    rows = health_rows(seed)
    random = Random(seed)
    audit = [
        {
            "at": START_MS + random.randrange(DAY_MS),
            "group_id": random.choice(GROUPS),
            "finding": random.choice(("jumped back", "skipped", "read twice")),
            "records": random.randrange(100),
        }
        for _ in range(30)
    ]
    rebalances = [{"at": START_MS + random.randrange(DAY_MS), "group_id": random.choice(GROUPS)} for _ in range(30)]
    found = figures.timelines(
        frame(spark, RESULT, rows),
        frame(spark, AUDIT, audit),
        frame(spark, "at timestamp, group_id string", rebalances),
        SPAN,
        4,
    )
    size = SPAN.bucket_ms
    worst: dict[str, dict[int, int]] = {group: {} for group in GROUPS}
    unwell: Counter[str] = Counter()
    for (group, *_), changes in series(rows).items():
        ends = [row["at"] for row in changes[1:]] + [SPAN.last_ms]
        for row, end in zip(changes, ends):
            rank = RANKS.index(row["status"])
            unwell[group] += (end - row["at"]) * (rank > 0)
            for bucket in SPAN.buckets():
                if rank and row["at"] < bucket + size and end > bucket:
                    worst[group][bucket] = max(rank, worst[group].get(bucket, 0))
    resets: dict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
    times = Counter(row["group_id"] for row in audit if row["finding"] != "read twice")
    for row in audit:
        if row["finding"] != "read twice":
            resets[row["group_id"]][row["at"] // size * size, row["finding"]] += row["records"]
    worst_ever = {group: max(worst[group].values(), default=0) for group in GROUPS}
    expected = sorted(GROUPS, key=lambda group: (-worst_ever[group], -unwell[group], -times[group], group))
    assert [one.group for one in found.rows] == expected[:4]
    assert found.left_out == 1
    for one in found.rows:
        drawn = {
            bucket: RANKS.index(stretch.status)
            for stretch in one.stretches
            for bucket in range(stretch.from_ms, stretch.until_ms, size)
        }
        assert drawn == worst[one.group], one.group
        touching = zip(one.stretches, one.stretches[1:])
        assert all(left.until_ms < right.from_ms or left.status != right.status for left, right in touching)
        assert {(reset.at_ms, reset.finding): reset.records for reset in one.resets} == resets[one.group]
        own = Counter(row["at"] // size * size for row in rebalances if row["group_id"] == one.group)
        assert one.rebalances_at == own


def test_what_is_not_well_at_the_end(spark: SparkSession) -> None:
    rows = health_rows(6)
    health = frame(spark, RESULT, rows)
    last = [changes[-1] for changes in series(rows).values()]
    bad: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in last:
        if row["status"] != "OK":
            bad[row["group_id"], row["topic"], row["check"], row["status"]].append(row)
    expected = [
        (*key, sum(row["partition"] is not None for row in own), min(row["at"] for row in own))
        for key, own in bad.items()
    ]
    expected.sort(key=lambda row: (-RANKS.index(row[3]), row[5], row[0], row[1] or "", row[2]))
    found = figures.unwell(health, None, 3)
    fields = ("group", "topic", "check", "status", "partitions", "since_ms")
    assert [tuple(getattr(one, name) for name in fields) for one in found.rows] == expected[:3]
    assert found.left_out == len(expected) - 3
    assert figures.groups_not_ok(health) == (len({key[0] for key in bad}), len(GROUPS))


def test_findings_and_damage(spark: SparkSession) -> None:
    random = Random(7)
    places = "finding string, topic string, partition int, directory string, offset bigint, detail string, at timestamp"
    places += ", group_id string, records bigint"
    rows = [
        {
            "finding": random.choice(("x", "y")),
            "topic": random.choice(("t", "u")),
            "partition": random.randrange(2),
            "directory": "/d",
            "offset": number,
            "detail": f"number {number}",
            "at": START_MS + random.randrange(DAY_MS),
            "group_id": random.choice(GROUPS),
            "records": random.randrange(9),
        }
        for number in range(40)
    ]
    for row in rows:
        if row["finding"] == "y" and row["group_id"] in "ab":
            row["records"] = None
    table = frame(spark, places, rows)
    by_log, by_group = defaultdict(list), defaultdict(list)
    for row in rows:
        by_log[row["finding"], row["topic"], row["partition"], row["directory"]].append(row)
        by_group[row["group_id"], row["finding"]].append(row)
    damage = figures.damage(table, 3)
    expected = sorted(((-len(own), *key, own[0]["offset"]) for key, own in by_log.items()))
    assert [
        (-one.places, one.finding, one.topic, one.partition, one.directory, one.first_offset) for one in damage.rows
    ] == expected[:3]
    assert all(one.detail == f"number {one.first_offset}" for one in damage.rows)
    assert damage.left_out == len(expected) - 3
    found = figures.findings(table, 9)
    sums = [
        (-sum(row["records"] or 0 for row in own), *key, len(own), max(row["at"] for row in own))
        for key, own in by_group.items()
    ]
    assert [(-one.records, one.group, one.finding, one.times, one.last_ms) for one in found.rows] == sorted(sums)[:9]


def test_who_moved_what(spark: SparkSession) -> None:
    """One row for all partitions that were moved at once; what consumers did is left out."""
    columns = "at timestamp, group_id string, topic string, partition int, finding string, from_offset bigint, "
    columns += "to_offset bigint, records bigint, cause string, client_id string, host string, principal string, "
    columns += "member_id string, generation int"
    admin, member = ("cli", "/h", "User:ann", None, None), ("app", "/i", "User:bob", "app-1", 4)

    def row(
        at: int, finding: str, partition: int, begin: int | None, end: int | None, cause: str | None, *who: Any
    ) -> Any:
        names = ("client_id", "host", "principal", "member_id", "generation")
        records = None if begin is None or end is None else abs(end - begin)
        offsets = {"from_offset": begin, "to_offset": end, "records": records}
        place = {"at": START_MS + at, "group_id": "g", "topic": "t", "partition": partition}
        return {**place, "finding": finding, **offsets, "cause": cause, **dict(zip(names, who or (None,) * 5))}

    table = frame(
        spark,
        columns,
        [
            row(1, "jumped back", 3, 90, 40, "reset", *admin),
            row(1, "jumped back", 2, 80, 10, "reset", *admin),
            row(1, "set", 4, None, 6, "reset", *admin),
            row(2, "removed", 0, 5, None, "expiry"),
            row(3, "jumped back", 0, 9, 8, "commit", *member),
            row(4, "read twice", 0, 9, 8, "reset", *admin),
            row(5, "skipped", 0, 9, 80, None),
        ],
    )
    expiry = figures.Move("g", "t", 1, 0, START_MS + 2, 5, None, 0, "expiry", None, None, None, None)
    reset = figures.Move("g", "t", 3, 2, START_MS + 1, 80, 10, 120, "reset", "cli", "/h", "User:ann", None)
    assert figures.moves(table, 5) == figures.Top([expiry, reset])
    assert figures.moves(table, 1) == figures.Top([expiry], 1)
    assert figures.moves(table.drop("cause"), 5) == figures.Top([]), "a table of an earlier version"

    skip = figures.Move("g", "t", 1, 0, START_MS + 5, 9, 80, 71, None, None, None, None, None, "skipped")
    back = replace(reset, partitions=2, finding="jumped back")
    found = figures.jumps(table, 2)
    assert (found.rows, found.left_out) == ([skip, back], 1), "what was never read is first"
    names = ("cause", "client_id", "host", "principal", "member_id", "generation")
    assert figures.jumps(table.drop(*names), 1).rows == [skip]


def test_growth_shows_the_last_days_and_sums_up_small_topics(spark: SparkSession) -> None:
    random = Random(8)
    rows = [
        {"day": day, "kind": kind, "name": name, "bytes": random.randrange(1, 1000) * (index + 1)}
        for day in range(300)
        for kind in ("topic", "group")
        for index, name in enumerate("abcd")
        if day == 299 or random.random() < 0.5
    ]
    epoch = datetime(1970, 1, 1).toordinal()
    values = [(datetime.fromordinal(epoch + row["day"]), row["kind"], row["name"], row["bytes"]) for row in rows]
    found = figures.growth_by_day(
        spark.createDataFrame(values, "day date, kind string, name string, bytes bigint"), most=2
    )
    expected: dict[str | None, Counter[int]] = defaultdict(Counter)
    for row in rows:
        if row["kind"] == "topic" and row["day"] >= 60:
            expected[row["name"] if row["name"] in "cd" else None][row["day"] * DAY_MS] += row["bytes"]
    assert {one.topic: one.bytes_on for one in found} == expected
    assert [one.topic for one in found[:2]] == ["d", "c"]


def test_the_largest_topics(spark: SparkSession) -> None:
    schema = "topic string, partitions int, records bigint, bytes bigint, bytes_per_day double, largest_share double"
    schema += ", retention_takes_bytes bigint"
    rows = [
        {"topic": f"t{number}", "partitions": 1, "records": number, "bytes": number * 10, "largest_share": 1.0}
        for number in range(7)
    ]
    found = figures.largest_topics(frame(spark, schema, rows), 3)
    assert [(one.topic, one.size_bytes, one.bytes_per_day) for one in found.rows] == [
        ("t6", 60, None),
        ("t5", 50, None),
        ("t4", 40, None),
    ]
    assert found.left_out == 4


@pytest.mark.parametrize(
    ("length_ms", "bucket_ms"),
    [(0, MINUTE_MS), (240 * MINUTE_MS, MINUTE_MS), (240 * MINUTE_MS + 1, 2 * MINUTE_MS), (365 * DAY_MS, 2 * DAY_MS)],
)
def test_there_are_never_many_buckets(length_ms: int, bucket_ms: int) -> None:
    span = Span(START_MS + 1, START_MS + 1 + length_ms)
    assert span.bucket_ms == bucket_ms
    assert len(span.buckets()) <= figures.BUCKETS_MAX + 2
    assert span.buckets()[0] <= span.first_ms
    assert span.buckets()[-1] <= span.last_ms < span.buckets()[-1] + bucket_ms


def test_the_generations_of_the_day(day: Tables, day_history: History) -> None:
    found = Counter(row.group_id for row in generations(day.groups).collect())
    assert found == day_history.truth["generations"]
