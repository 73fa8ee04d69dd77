"""Small exports without Spark: they write what the streaming query writes, and each goes on behind the other."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.parquet as parquet
from barnabas.cli.shared.exits import ExitCode
from barnabas.pipeline import session
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.files import LocalFiles
from barnabas.pipeline.local_files import OutError, only_run_in
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.small_export import KEPT, small_export
from barnabas.pipeline.source import Source
from barnabas.pipeline.sources import register
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, DataDirectory, pipeline
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(420)
Export = Callable[..., Summary]
DAY_MS = 86_400_000
ODD = (
    Record(-1, NOW_MS, b"key", b"value", [("a", b"1"), ("a", None)]),
    Record(-1, NOW_MS + 5 * DAY_MS, None, b"\xff\xfe"),
    Record(-1, NOW_MS * 1000, b"", None),  # the year 55840
    Record(-1, 1, b"", b""),
    Record(-1, -1, b"", b""),
)


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    directory = DataDirectory(tmp_path / "data", {"orders": any_time, "others": any_time})
    (directory.path / "meta.properties").touch()
    return directory


@pytest.fixture
def small(tmp_path: Path) -> Export:
    def run(out: str = "out", **settings: Any) -> Summary:
        summary = small_export(source(tmp_path), str(tmp_path / out), {"topic": "orders", **settings})
        assert summary is not None
        return summary

    return run


@pytest.fixture
def large(spark: SparkSession, tmp_path: Path) -> Export:
    register(spark)

    def run(out: str = "out", **settings: Any) -> Summary:
        return run_job("export", Run(spark, source(tmp_path), str(tmp_path / out), {"topic": "orders", **settings}))

    return run


def source(tmp_path: Path) -> Source:
    return Source(directories=(str(tmp_path / "data"),))


def grow(data: DataDirectory, *records: Record, topic: str = "orders", partition: int = 0) -> None:
    log = data.log(topic, partition, segment_bytes=2000, index_interval_bytes=100)
    for record in records or ODD:
        data.append(log, record)
    data.manager.checkpoint()


def places(out: Path) -> list[tuple[int, int]]:
    """What another engine finds."""
    rows = dataset(out / "export" / "orders", format="parquet", partitioning="hive").to_table(["partition", "offset"])
    return sorted((row["partition"], row["offset"]) for row in rows.to_pylist())


def test_it_writes_what_spark_writes(
    spark: SparkSession, data: DataDirectory, small: Export, large: Export, tmp_path: Path
) -> None:
    grow(data)
    grow(data, partition=1)
    found, expected = small("small"), large("large")
    assert found.sentence.startswith("10 records added to ")
    assert vars(found) == vars(expected) | {"sentence": found.sentence}
    folders = [
        {path.parent.relative_to(tmp_path / out) for path in (tmp_path / out).rglob("*.parquet")}
        for out in ("small", "large")
    ]
    assert folders[0] == folders[1]
    tables = [spark.read.parquet(str(tmp_path / out / "export" / "orders")) for out in ("small", "large")]
    assert tables[0].dtypes == tables[1].dtypes
    columns = tables[0].drop("day").columns  # Python has no year 55840
    columns = [f"cast({name} as string)" if name == "timestamp" else name for name in columns]
    found = [sorted(map(tuple, table.selectExpr(*columns).collect()), key=lambda row: row[1:3]) for table in tables]
    assert found[0] == found[1]
    assert {path.name for path in folders[0]} > {"day=2023-11-14", "day=1970-01-01"}
    assert sum(path.name.startswith("day=+") for path in folders[0]) == 1


def test_runs_with_spark_and_without_it_follow_one_another(
    data: DataDirectory, small: Export, large: Export, tmp_path: Path
) -> None:
    for number, run in enumerate((large, small, small, large, small)):
        grow(data)
        assert run().added == len(ODD)
        assert run().added == 0
        assert places(tmp_path / "out") == [(0, offset) for offset in range((number + 1) * len(ODD))]
    (tmp_path / "out").rename(tmp_path / "moved")
    assert small("moved").added == large("moved").added == 0


def test_a_run_that_is_killed_anywhere(
    data: DataDirectory, small: Export, large: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after each step. A run with Spark, or without it, ends what was begun, and reads what is new."""
    steps = -1

    def killed(name: str, *, after: bool) -> Callable[..., Any]:
        do = getattr(LocalFiles, name)

        def step(self: LocalFiles, *words: str) -> Any:
            nonlocal steps
            steps -= 1
            if not steps and not after:
                raise KeyboardInterrupt
            found = do(self, *words)
            if not steps:
                raise KeyboardInterrupt
            return found

        return step

    kills, total = 0, 0
    for after in (False, True):
        at = 0
        while True:
            grow(data)
            total += len(ODD)
            at += 1
            steps = at
            with monkeypatch.context() as patch:
                for name in ("move", "write", "remove"):
                    patch.setattr(LocalFiles, name, killed(name, after=after))
                try:
                    small()
                    break
                except KeyboardInterrupt:
                    kills += 1
            if kills % 2:
                grow(data)
                total += len(ODD)
            (large if at in (2, 5, 8) else small)()
            assert places(tmp_path / "out") == [(0, offset) for offset in range(total)]
    assert kills > 10
    assert not (tmp_path / "out" / "export" / "_checkpoints" / "orders" / "making").exists()


def test_records_that_are_gone(data: DataDirectory, small: Export, tmp_path: Path) -> None:
    grow(data)
    assert small().added == len(ODD)
    grow(data, *(Record(-1, NOW_MS, None, bytes(100)) for _ in range(40)))
    *removed, last = sorted((tmp_path / "data" / "orders-0").glob("*.log"))
    for path in removed:
        path.unlink()
    for _ in range(2):
        with pytest.raises(LostRecordsError, match=r"from 5 to below \d+ are gone.*--on-loss continue"):
            small()
    done = small(on_loss="continue")
    assert (done.has_lost, done.added) == (True, 45 - int(last.stem))
    assert f"Lost: orders-0: the offsets from 5 to below {last.stem.lstrip('0')} are gone" in done.sentence
    again = small()
    assert (again.has_lost, again.added, "Lost" in again.sentence) == (False, 0, False)
    (tmp_path / "data" / "orders-0").rename(tmp_path / "gone")
    grow(data, topic="others")
    with pytest.raises(LostRecordsError, match="orders-0: the topic was deleted"):
        small()


def test_a_log_that_was_put_back(data: DataDirectory, small: Export, tmp_path: Path) -> None:
    """From a backup: what it has from its end on is new, though these offsets were read before."""
    grow(data)
    shutil.copytree(data.path, tmp_path / "backup")
    grow(data)
    assert small().added == 2 * len(ODD)
    data.close()
    shutil.rmtree(data.path)
    (tmp_path / "backup").rename(data.path)
    for _ in range(2):
        with pytest.raises(LostRecordsError, match=r"orders-0: it was read up to 10, and ends at 5 now.*--on-loss"):
            small()
    done = small(on_loss="continue")
    assert (done.has_lost, done.added) == (True, 0)
    (data.path / "meta.properties").unlink()
    grow(DataDirectory(data.path, data.topics))
    (data.path / "meta.properties").touch()
    assert small().added == len(ODD)


def test_a_checkpoint_of_a_while_ago_cuts_no_log(data: DataDirectory, small: Export, tmp_path: Path) -> None:
    """As when a running broker was asked, and its files are read the next time."""
    grow(data)
    checkpoint = data.path / "replication-offset-checkpoint"
    before = checkpoint.read_bytes()
    grow(data)
    assert small().added == 2 * len(ODD)
    checkpoint.write_bytes(before)
    assert small().added == 0


def test_what_is_removed_by_hand_is_said(data: DataDirectory, small: Export, tmp_path: Path) -> None:
    grow(data)
    small()
    for name in ("_checkpoints/orders", "orders"):
        folder, away = tmp_path / "out" / "export" / name, tmp_path / "away"
        folder.rename(away)
        with pytest.raises(OutError, match="Put it back"):
            small()
        away.rename(folder)
    assert small().added == 0


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize(
    ("cut", "says"),
    [
        ("orders/**/*.parquet", r"orders/.*\.parquet is cut or damaged .*Put it back"),
        ("_checkpoints/orders/offsets/0", "what was read is not known. Put it back"),
        ("_checkpoints/orders/commits/0", "what was read is not known. Put it back"),
    ],
)
def test_a_file_that_was_copied_in_part_is_named(
    data: DataDirectory, small: Export, tmp_path: Path, cut: str, says: str, left: int
) -> None:
    grow(data)
    small()
    (file, *_) = (tmp_path / "out" / "export").glob(cut)
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    with pytest.raises(OutError, match=says):
        small()
    file.write_bytes(whole)
    assert small().added == 0


def test_what_needs_spark(data: DataDirectory, small: Export, large: Export, tmp_path: Path) -> None:
    grow(data, Record(-1, NOW_MS, None, b'{"a": 1}'))
    out = str(tmp_path / "out")
    for settings in ({"json_schema": "a int"}, {"table": "t"}, {"follow": True}, {"format": "orc"}, {"topic": "*"}):
        assert small_export(source(tmp_path), out, {"topic": "orders", **settings}) is None
    assert small_export(source(tmp_path), "hdfs://there/out", {"topic": "orders"}) is None
    large(json_schema="a int")
    assert small_export(source(tmp_path), out, {"topic": "orders"}) is None, "it has other columns"
    with pytest.raises(OutError, match="value is struct<a:int> there, and binary now"):
        large()


def test_a_topic_that_is_not_there_and_comes(data: DataDirectory, small: Export, large: Export) -> None:
    grow(data, topic="others")
    assert small().is_empty
    assert large().is_empty
    grow(data)
    assert small().added == len(ODD)


def test_old_parts_of_the_checkpoint_go(data: DataDirectory, small: Export, large: Export, tmp_path: Path) -> None:
    for _ in range(KEPT + 3):
        grow(data, Record(-1, NOW_MS, None, b""))
        small()
    for name in ("offsets", "commits"):
        assert len(list((tmp_path / "out/export/_checkpoints/orders" / name).glob("[0-9]*"))) == KEPT
    assert large().added == 0
    assert len(places(tmp_path / "out")) == KEPT + 3


def test_the_command_starts_no_spark(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grow(data)
    monkeypatch.setattr(session, "start_session", None)
    monkeypatch.setattr(session, "what_is_missing", lambda *_: None)
    words = ("export", "--source", str(data.path), "--out", str(tmp_path / "out"), "--topic", "orders")
    assert pipeline(*words) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("5 records added to")
    files = list((tmp_path / "out" / "export" / "orders").rglob("*.parquet"))
    assert sum(parquet.read_metadata(file).num_rows for file in files) == len(ODD)


def test_a_topic_that_is_not_there_is_said(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until 2026-12-01 it was "Nothing new was there to read", as for a topic whose records are exported already."""
    monkeypatch.setattr(session, "what_is_missing", lambda *_: None)
    grow(data, topic="others")
    data.log("empty")
    words = ("export", "--source", str(data.path), "--out", str(tmp_path / "out"), "--topic")
    for topic, said in (
        ("orders", "There is no topic orders to read in"),
        ("empty", "Nothing new was there to read in"),
    ):
        assert pipeline(*words, topic) == ExitCode.NOTHING_THERE
        assert said in capsys.readouterr().err


def test_a_scheduler_can_tell_apart_how_a_run_ended(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit codes: done, nothing there, nothing new, stopped at a loss, went on behind it."""
    monkeypatch.setattr(session, "what_is_missing", lambda *_: None)

    def code(*options: str) -> int:
        words = ("export", "--source", str(data.path), "--out", str(tmp_path / "out"), "--topic", "orders", *options)
        return pipeline(*words)

    grow(data, topic="others")
    assert code() == ExitCode.NOTHING_THERE
    grow(data)
    assert code("--tell-nothing-new") == ExitCode.DONE
    assert code() == ExitCode.DONE
    assert code("--tell-nothing-new") == ExitCode.NOTHING_NEW
    assert code("--on-loss", "maybe") == ExitCode.NOT_VALID
    grow(data, *(Record(-1, NOW_MS, None, bytes(100)) for _ in range(40)))
    for path in sorted((tmp_path / "data" / "orders-0").glob("*.log"))[:-1]:
        path.unlink()
    assert code() == ExitCode.STOPPED_AT_LOSS
    assert code("--on-loss", "continue") == ExitCode.WENT_ON
    assert code() == ExitCode.DONE
    with only_run_in(str(tmp_path / "out")):
        assert code() == ExitCode.TRY_AGAIN


@pytest.mark.parametrize("job", ["lag", "health"])
def test_a_job_that_writes_its_last_day_anew_cannot_tell_that_nothing_was_new(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    """It was done each time, so what depends on it never waited."""
    monkeypatch.setattr(session, "what_is_missing", lambda *_: None)
    grow(data)
    words = (job, "--source", str(data.path), "--out", str(tmp_path / "out"), "--tell-nothing-new")
    assert pipeline(*words) == ExitCode.NOT_VALID
    assert "--tell-nothing-new needs --stream or --follow" in capsys.readouterr().err
