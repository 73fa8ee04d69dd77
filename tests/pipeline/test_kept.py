"""Tables that keep what the log has lost: what several runs write together is what one run says of the whole log."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.day_table import DayTable, Made, Merge
from barnabas.pipeline.files import Files
from barnabas.pipeline.jobs import kept
from barnabas.pipeline.jobs.audit import audit
from barnabas.pipeline.jobs.health import generations, health
from barnabas.pipeline.jobs.lag import lag
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.session import forgets_tables
from barnabas.pipeline.source import Identity
from barnabas.pipeline.table_folder import read_table, write_table
from histories import MINUTE_MS, START_MS, Row, Tables, random_histories, rows
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

pytestmark = pytest.mark.timeout(420)
EVERY_S = 300
MADE = Made("here", Identity("one"), {"every_s": EVERY_S})
BEFORE_MIDNIGHT_MS = 100 * MINUTE_MS
CUTS = (-30, 7)  # minutes from midnight
END = 1000
Facts = tuple[DataFrame, DataFrame, DataFrame]
JOBS: dict[str, tuple[Callable[[Facts], DataFrame], Merge]] = {
    "lag": (lambda facts: lag(facts[0], facts[2], EVERY_S), partial(kept.lag, every_s=EVERY_S)),
    "health": (lambda facts: health(*facts, EVERY_S), kept.health),
    "audit": (lambda facts: audit(*facts), kept.audit),
    "generations": (lambda facts: generations(facts[1]), kept.generations),
}


@pytest.fixture(scope="module")
def night(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Random histories that begin before midnight, and end behind it."""
    history = random_histories(range(2), late=False)
    for row in (*history.commits, *history.groups, *history.batches):
        row |= {name: row[name] - BEFORE_MIDNIGHT_MS for name in row if name.endswith("_timestamp") and row[name]}
    return Tables(spark, tmp_path_factory.mktemp("night"), history)


def facts_until(tables: Tables, minute: int, compacted_below: int | None = None) -> Facts:
    """What the log has at a time. What is older than another one, compaction has taken but the newest of each key."""
    end = F.timestamp_millis(F.lit(START_MS + minute * MINUTE_MS))
    commits = tables.commits.where(F.col("log_timestamp") < end)
    if compacted_below is not None:
        border = F.timestamp_millis(F.lit(START_MS + compacted_below * MINUTE_MS))
        is_old = F.col("log_timestamp") < border
        newest = Window.partitionBy(*GROUP_PARTITION, is_old).orderBy(F.col("log_offset").desc())
        commits = commits.withColumn("number", F.row_number().over(newest)).where(~is_old | (F.col("number") == 1))
        commits = commits.drop("number")
    groups, batches = tables.groups.where(F.col("log_timestamp") < end), tables.batches
    return commits, groups, batches.where(F.col("max_timestamp") < end)


def ordered(table: DataFrame, *but: str) -> list[Row]:
    return sorted(rows(table.drop("day", *but)), key=str)


@pytest.mark.takes_turns("name")
@pytest.mark.parametrize("name", JOBS)
def test_several_runs_say_what_one_says(spark: SparkSession, night: Tables, tmp_path: Path, name: str) -> None:
    """The runs cut the time anywhere: in a window, before midnight and behind it."""
    job, merge = JOBS[name]
    table = DayTable(spark, str(tmp_path), name)
    for minute in (*CUTS, END):
        now = job(facts_until(night, minute)).localCheckpoint()  # a merge looks at it several times
        found = table.update(now, merge, MADE)
    assert ordered(found) == ordered(now)
    days = {path.name for path in (tmp_path / name).iterdir() if path.name.startswith("day=")}
    assert days == {"day=2025-11-21", "day=2025-11-22"}
    assert not (tmp_path / "_making").exists()
    by_others = parquet.read_table(tmp_path / name)  # any engine reads it
    assert by_others.num_rows == found.count()
    assert found.drop("day").columns == read_table(spark, str(tmp_path), name)[0].drop("day").columns


@pytest.mark.takes_turns("name")
@pytest.mark.parametrize("name", ["lag", "health", "audit"])
def test_what_compaction_has_taken_stays(spark: SparkSession, night: Tables, tmp_path: Path, name: str) -> None:
    job, merge = JOBS[name]
    table = DayTable(spark, str(tmp_path), name)
    table.update(job(facts_until(night, 0)).localCheckpoint(), merge, MADE)
    before = ordered(spark.read.parquet(str(tmp_path / name)).where(F.col("at") < F.timestamp_millis(F.lit(START_MS))))
    now = job(facts_until(night, END, compacted_below=0)).localCheckpoint()
    found = table.update(now, merge, MADE)
    old = ordered(found.where(F.col("at") < F.timestamp_millis(F.lit(START_MS))))
    assert [row for row in before if row not in old] == []
    assert len(before) > len(ordered(now.where(F.col("at") < F.timestamp_millis(F.lit(START_MS)))))
    if name == "lag":
        assert ordered(found) == ordered(job(facts_until(night, END)))


def test_a_run_that_was_killed_between_two_renames(
    spark: SparkSession, night: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of them. The next run finishes what was whole, and begins anew what was not."""
    job, merge = JOBS["lag"]
    table = DayTable(spark, str(tmp_path), "lag")
    table.update(job(facts_until(night, CUTS[0])).localCheckpoint(), merge, MADE)
    move, left = Files.move, 0

    def killed(self: Files, old: str, new: str) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        move(self, old, new)

    now = job(facts_until(night, END)).localCheckpoint()
    expected = ordered(now)
    monkeypatch.setattr(Files, "move", killed)
    for moves in range(4):
        left = moves
        try:
            found = table.update(now, merge, MADE)
        except KeyboardInterrupt:
            continue
        break
    monkeypatch.undo()
    found = table.update(now, merge, MADE)
    assert ordered(found) == expected


def test_rows_that_do_not_fit_are_refused(spark: SparkSession, night: Tables, tmp_path: Path) -> None:
    job, merge = JOBS["lag"]
    now = job(facts_until(night, 0)).localCheckpoint()
    table = DayTable(spark, str(tmp_path), "lag")
    table.update(now, merge, MADE)
    with pytest.raises(OutError, match="every_s 300, and this is 60"):
        table.update(now, merge, Made("here", Identity("one"), {"every_s": 60}))
    with pytest.raises(OutError, match="cluster one"):
        table.update(now, merge, Made("here", Identity("two"), {"every_s": EVERY_S}))
    write_table(now, str(tmp_path), "old", "an earlier version, which kept nothing")
    assert ordered(DayTable(spark, str(tmp_path), "old").update(now, merge, MADE)) == ordered(now)


def test_in_a_table_of_a_catalog(spark: SparkSession, night: Tables, tmp_path: Path) -> None:
    """Parquet comes with Spark; Delta and Iceberg take the same statements."""
    job, merge = JOBS["lag"]
    table = DayTable(spark, str(tmp_path), "lag", "kept_lag")
    try:
        runs = [job(facts_until(night, minute, compacted_below=-30)).localCheckpoint() for minute in (0, END)]
        for now in runs:
            found = table.update(now, merge, MADE)
        assert found.where("at < '2025-11-21 23:00'").count()
        expected = DayTable(spark, str(tmp_path), "lag")
        for now in runs:
            rows_of_folder = expected.update(now, merge, MADE)
        assert ordered(spark.table("kept_lag")) == ordered(rows_of_folder)
        with pytest.raises(OutError, match="every_s"):
            table.update(found.drop("day"), merge, Made("here", Identity("one"), {"every_s": 60}))
        assert forgets_tables(spark, "kept_lag"), "the command refuses what this session alone knows"
        spark.sql("create table foreign_lag (at timestamp) using parquet")
        with pytest.raises(OutError, match="no run has written the table foreign_lag"):
            DayTable(spark, str(tmp_path), "lag", "foreign_lag").update(found.drop("day"), merge, MADE)
    finally:
        spark.sql("drop table if exists kept_lag")
        spark.sql("drop table if exists foreign_lag")
