"""Records that are gone before a streaming job has read them: the next run is not stuck, and says what was lost."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.cli.pipeline import _code
from barnabas.cli.shared.exits import ExitCode
from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.source import Source
from barnabas.pipeline.sources import register
from barnabas.pipeline.streamed import STARTS_MAX, LiveTable
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, OFFSETS, DataDirectory
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(420)
Export = Callable[..., Summary]


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path / "data")


@pytest.fixture
def export(spark: SparkSession, tmp_path: Path) -> Export:
    register(spark)

    def run(**settings: Any) -> Summary:
        source = Source(directories=(str(tmp_path / "data"),))
        return run_job("export", Run(spark, source, str(tmp_path / "out"), {"topic": "orders", **settings}))

    return run


def grow(data: DataDirectory, count: int, topic: str = "orders") -> None:
    log = data.log(topic, segment_bytes=2000, index_interval_bytes=100)
    for _ in range(count):
        data.append(log, Record(-1, NOW_MS, None, b"%d" % Random(count).randrange(99)))
    data.manager.checkpoint()


def test_retention_takes_what_was_not_exported(data: DataDirectory, export: Export, tmp_path: Path) -> None:
    grow(data, 10)
    assert export().added == 10
    grow(data, 200)
    *removed, last = sorted((tmp_path / "data" / "orders-0").glob("*.log"))
    for path in removed:
        path.unlink()
    for _ in range(2):
        with pytest.raises(
            StreamingQueryException, match=r"from 10 to below \d+ are gone.*--on-loss continue"
        ) as stopped:
            export(on_loss="stop")
        assert _code(str(stopped.value)) == ExitCode.STOPPED_AT_LOSS
    first = int(last.stem)
    done = export(on_loss="continue")
    assert (done.has_lost, done.added) == (True, 210 - first)
    assert f"Lost: orders-0: the offsets from 10 to below {first} are gone" in done.sentence
    assert f"{first - 10:,} offsets at least" in done.sentence
    again = export()
    assert (again.has_lost, again.added) == (False, 0)
    assert "Lost" not in again.sentence


def test_a_topic_that_was_deleted_and_comes_back(data: DataDirectory, export: Export, tmp_path: Path) -> None:
    grow(data, 10)
    grow(data, 3, "clicks")
    assert export().added == 10
    folder = tmp_path / "data" / "orders-0"
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StreamingQueryException, match="orders-0: the topic was deleted"):
        export()
    done = export(on_loss="continue")
    assert (done.has_lost, done.added) == (True, 0)
    assert "Lost: orders-0: the topic was deleted." in done.sentence
    (tmp_path / "elsewhere").rename(folder)
    assert export().added == 10  # as a new topic of this name, from its begin


def test_records_that_go_while_they_are_read(
    data: DataDirectory, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The micro-batch is planned again, if the run is to go on. A loss that comes again and again ends it."""
    grow(data, 10)
    run, starts = LiveTable._run, 0

    def often(times: int) -> Callable[..., None]:
        def lost(self: LiveTable, *words: Any) -> None:
            nonlocal starts
            starts += 1
            if starts <= times:
                raise StreamingQueryException("LostRecordsError: orders-0: deleted while it was read")
            run(self, *words)

        return lost

    monkeypatch.setattr(LiveTable, "_run", often(STARTS_MAX))
    with pytest.raises(StreamingQueryException):
        export(on_loss="stop")
    assert starts == 1
    assert export(on_loss="continue").added == 10
    assert starts == STARTS_MAX + 1
    starts = 0
    with pytest.raises(StreamingQueryException):
        export(on_loss="continue")
    assert starts == STARTS_MAX


def test_what_a_killed_run_has_lost_says_the_next_one(data: DataDirectory, export: Export, tmp_path: Path) -> None:
    grow(data, 1)
    (tmp_path / "out" / "lost" / "export").mkdir(parents=True)
    note = '{"log": "orders-0", "why": "gone", "from_offset": 3, "below_offset": 5}'
    (tmp_path / "out" / "lost" / "export" / "orders-0.3.json").write_text(note)
    assert "Lost: orders-0: the offsets from 3 to below 5 are gone (gone). 2 offsets at least." in export().sentence
    assert "Lost" not in export().sentence


def test_the_end_is_the_last_window(spark: SparkSession, data: DataDirectory, tmp_path: Path) -> None:
    """A group that was deleted is behind no more, whatever it was before."""
    register(spark)
    log = data.log(OFFSETS)
    grow(data, 9)
    for minute, group, offset in ((0, "deleted", 1), (0, "reader", 3), (2, "deleted", None), (4, "reader", 5)):
        value = None if offset is None else encode_value(CommittedOffset(offset))
        data.append(log, Record(-1, NOW_MS + minute * 60_000, encode_key(group, "orders", 0), value))
    data.close()
    run = Run(spark, Source(directories=(str(tmp_path / "data"),)), str(tmp_path / "out"), {"every_s": 60})
    summary = run_job("lag", run)
    assert [row[:3] for row in summary.rows] == [("reader", "orders", 4)]
    assert spark.read.parquet(str(tmp_path / "out" / "lag")).where("group_id = 'deleted'").count() == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("barnabas.pipeline.errors.LostRecordsError: orders-0: gone", ExitCode.STOPPED_AT_LOSS),
        ("barnabas.pipeline.wire.UnreachableError: no broker answers", ExitCode.TRY_AGAIN),
        ("java.io.IOException: No space left on device", ExitCode.FAILED),
    ],
)
def test_what_a_scheduler_is_told(error: str, code: ExitCode) -> None:
    assert _code(f"org.apache.spark.SparkException: Job aborted\n{error}\n\tat java.base") == code


def test_offsets_in_a_table_of_a_catalog(spark: SparkSession, data: DataDirectory, tmp_path: Path) -> None:
    """Each commit once, by day."""
    register(spark)
    log = data.log(OFFSETS)
    settings = {"table": "kept_offsets", "at": None}
    run = Run(spark, Source(directories=(str(tmp_path / "data"),)), str(tmp_path / "out"), settings)
    try:
        for offset, added in ((1, 1), (None, 0), (2, 1)):
            if offset is not None:
                data.commit(log, "g", {("orders", 0): CommittedOffset(offset)})
                data.manager.checkpoint()
            summary = run_job("offsets", run)
            assert summary.added == added
        assert summary.rows[0][:4] == ("g", "orders", 1, 2)
        found = spark.table("kept_offsets").selectExpr("offset", "cast(day as string)").collect()
        assert sorted(map(tuple, found)) == [(1, "2023-11-14"), (2, "2023-11-14")]
    finally:
        spark.sql("drop table if exists kept_offsets")
