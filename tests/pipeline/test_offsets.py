"""The history of commits, and what was committed at any time; the truth is a fold in plain Python."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.history_folder import SCHEMA, HistoryFolder, _in_ranges
from barnabas.pipeline.history_state import LogEnds
from barnabas.pipeline.jobs import offsets
from barnabas.pipeline.schemas import COMMITS
from histories import START_MS, History, Row, Tables, rows
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

pytestmark = pytest.mark.usefixtures("two_partitions")

HOUR_MS = 3_600_000


def folded(commits: list[Row], at_ms: float = float("inf")) -> dict[tuple[str, str, int], int]:
    """What a coordinator has in memory when it has read the commits until that time."""
    table = {}
    for row in sorted(commits, key=lambda row: (row["log_partition"], row["log_offset"])):
        if row["log_timestamp"] <= at_ms:
            key = (row["group_id"], row["topic"], row["partition"])
            table.pop(key, None)
            if not row["is_tombstone"]:
                table[key] = row["offset"]
    return table


def as_dictionary(found: list[Row]) -> dict[tuple[str, str, int], int]:
    table = {(row["group_id"], row["topic"], row["partition"]): row["offset"] for row in found}
    assert len(table) == len(found)
    return table


@pytest.mark.parametrize("after_ms", [0, 700_000, 3 * HOUR_MS, None])
def test_committed_is_what_a_coordinator_would_know(
    small: Tables, small_history: History, after_ms: int | None
) -> None:
    history = offsets.history(small.commits)
    if after_ms is None:
        assert as_dictionary(rows(offsets.newest(history).where("not is_tombstone"))) == folded(small_history.commits)
        return
    at = datetime.fromtimestamp((START_MS + after_ms) / 1000, UTC)
    expected = folded(small_history.commits, START_MS + after_ms)
    assert as_dictionary(rows(offsets.newest(history, at).where("not is_tombstone"))) == expected
    assert expected or not after_ms


def test_committed_of_the_day(day: Tables, day_history: History) -> None:
    found = as_dictionary(rows(offsets.newest(offsets.history(day.commits)).where("not is_tombstone")))
    assert found == folded(day_history.commits)
    assert len(found) == 6 * 4 + 3 * 2 + 4 * 2  # newsletter's have expired, lurker never committed


def everything(folder: HistoryFolder) -> list[tuple[int, int]]:
    return sorted((row["log_partition"], row["log_offset"]) for row in folder.read().collect())


def add(folder: HistoryFolder, commits: DataFrame, below: int | None = None) -> int:
    """What a run adds that finds these commits, of each log those below an offset."""
    ends = {
        row["log_partition"]: LogEnds(0, *2 * [row["end"] if below is None else min(below, row["end"])])
        for row in commits.groupBy("log_partition").agg((F.max("log_offset") + 1).alias("end")).collect()
    }
    plan = folder.plan(ends, START_MS)
    return folder.append(commits.where(_in_ranges(plan.ranges)), plan, ends, START_MS).count if plan.ranges else 0


def test_a_history_grows_and_says_everything_once(
    spark: SparkSession, small: Tables, small_history: History, tmp_path: Path
) -> None:
    folder = HistoryFolder(spark, str(tmp_path))
    places = sorted((row["log_partition"], row["log_offset"]) for row in small_history.commits)
    count = add(folder, small.commits, 100)
    assert 0 < count == small.commits.where("log_offset < 100").count() < len(places)
    folder = HistoryFolder(spark, str(tmp_path))
    assert add(folder, small.commits, 100) == 0
    assert add(folder, small.commits) == len(places) - count
    assert folder.state.count == len(places)
    assert everything(folder) == places
    assert add(HistoryFolder(spark, str(tmp_path)), small.commits) == 0
    days = {path.name for path in tmp_path.glob("day=*")}
    assert days == {f"day={row.day}" for row in folder.read().select("day").distinct().collect()}
    columns = COMMITS.spark.names
    assert folder.read().select(columns).exceptAll(small.commits.select(columns)).isEmpty(), "the values are the same"


@pytest.mark.parametrize("is_old", [False, True])
def test_what_a_killed_run_has_left_is_not_added_again(
    spark: SparkSession, small: Tables, tmp_path: Path, is_old: bool
) -> None:
    """Nor what an earlier version has added; and what that has passed is added now."""
    folder = HistoryFolder(spark, str(tmp_path))
    if is_old:
        (tmp_path / "_complete" / "part-0.json").write_text('{"log_partition":0,"log_offset":160}')
    else:
        add(folder, small.commits, 100)
        (tmp_path / "_complete" / "writing").touch()
    left = offsets.history(small.commits).where("log_offset between 120 and 160")  # some, and not the first
    left.select(SCHEMA.names).write.partitionBy("day", "log_partition").mode("append").parquet(str(tmp_path))
    before = folder.read().count()
    folder = HistoryFolder(spark, str(tmp_path))
    assert add(folder, small.commits) == small.commits.count() - before
    assert len(everything(folder)) == len(set(everything(folder))) == small.commits.count() == folder.state.count
    assert [path.name for path in (tmp_path / "_complete").glob("[!.]*")] == [f"{folder._number}.json"]


def test_late_commits_go_to_their_own_day(spark: SparkSession, small: Tables, tmp_path: Path) -> None:
    folder = HistoryFolder(spark, str(tmp_path))
    add(folder, small.commits, 100)
    earlier = F.expr("log_timestamp - interval 3 days")
    is_late = F.col("log_offset") >= 100
    add(folder, small.commits.withColumn("log_timestamp", F.when(is_late, earlier).otherwise(F.col("log_timestamp"))))
    found = folder.read().where(is_late)
    assert found.where(F.col("day") != F.to_date("log_timestamp")).count() == 0
    assert found.count() == small.commits.where(is_late).count()


def files(path: Path) -> int:
    return len(list(path.glob("day=*/*/*.parquet")))


def test_small_files_become_one(spark: SparkSession, small: Tables, tmp_path: Path) -> None:
    folder = HistoryFolder(spark, str(tmp_path))
    for number in range(3):
        add(folder, small.commits, 100 * (number + 1))
    before, many = everything(folder), files(tmp_path)
    assert folder.compact(small_files_max=1) > 0
    assert files(tmp_path) == len(list(tmp_path.glob("day=*/*"))) < many
    assert everything(folder) == before
    assert folder.compact(small_files_max=1) == 0
    assert sorted(path.name for path in tmp_path.glob("_*")) == ["_SUCCESS", "_complete"]


def test_large_files_stay_as_they_are(spark: SparkSession, small: Tables, tmp_path: Path) -> None:
    folder = HistoryFolder(spark, str(tmp_path))
    for number in range(3):
        add(folder, small.commits, 100 * (number + 1))
    sizes = sorted(path.stat().st_size for path in tmp_path.glob("day=*/*/*.parquet"))
    before = set(tmp_path.glob("day=*/*/*.parquet"))
    assert folder.compact(small_files_max=1, small_bytes=sizes[0]) == 0
    assert set(tmp_path.glob("day=*/*/*.parquet")) == before
    assert folder.compact(small_files_max=1, small_bytes=sizes[-1] + 1) > 0


@pytest.mark.takes_turns("moves")
@pytest.mark.parametrize("moves", range(3))
def test_a_compaction_that_is_killed_is_finished_by_the_next_run(
    spark: SparkSession, small: Tables, tmp_path: Path, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = HistoryFolder(spark, str(tmp_path))
    for number in range(2):
        add(folder, small.commits.where("log_partition < 2"), 100 * (number + 1))
    before = everything(folder)
    move, left = folder._files.move, moves

    def killed(old: str, new: str) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        move(old, new)

    monkeypatch.setattr(folder._files, "move", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.compact(small_files_max=1)
    again = HistoryFolder(spark, str(tmp_path))
    add(again, small.commits.where("log_partition < 2"), 200)
    assert everything(again) == before
    assert not list(tmp_path.glob("_compacted")) + list(tmp_path.glob("_replaced"))
