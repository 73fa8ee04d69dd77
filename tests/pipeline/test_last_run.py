"""A run of `lag` that finds nothing new says again what the last one has said; whatever has changed, it computes."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.cli import pipeline as cli
from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.pipeline import last_run, session
from barnabas.pipeline.directories import logs_of
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.runs import run_job, said_again
from barnabas.pipeline.source import Source
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, OFFSETS, DataDirectory
from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(420)
SETTINGS: dict[str, Any] = {"every_s": 60, "delay_s": 30, "table": None, "on_loss": "stop"}


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data", {"orders": {"message.timestamp.after.max.ms": str(2**63 - 1)}})
    (directory.path / "meta.properties").touch()
    grow(directory, NOW_MS)
    commit(directory, "reader", 1)
    return directory


def grow(data: DataDirectory, *times_ms: int) -> None:
    for at_ms in times_ms:
        data.append(data.log("orders", segment_bytes=200), Record(-1, at_ms, None, bytes(50)))
    data.manager.checkpoint()


def commit(data: DataDirectory, group: str, offset: int | None) -> None:
    value = None if offset is None else encode_value(CommittedOffset(offset))
    data.append(data.log(OFFSETS), Record(-1, NOW_MS, encode_key(group, "orders", 0), value))
    data.manager.checkpoint()


@pytest.fixture
def compute(spark: SparkSession, data: DataDirectory, tmp_path: Path) -> Callable[..., Summary]:
    def run() -> Summary:
        return run_job("lag", Run(spark, source(tmp_path), str(tmp_path / "out"), SETTINGS, is_plain=True))

    return run


def source(tmp_path: Path) -> Source:
    return Source(directories=(str(tmp_path / "data"),))


def again(tmp_path: Path, **settings: Any) -> Summary | None:
    return said_again("lag", source(tmp_path), str(tmp_path / "out"), SETTINGS | settings)


def touch_later(path: Path) -> None:
    """As if it had been written now: file systems count time in steps, so the test makes one."""
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


def test_what_has_changed_is_computed(
    data: DataDirectory, compute: Callable[..., Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but nothing."""
    assert again(tmp_path) is None, "there was no run"
    out = tmp_path / "out"
    said = compute()
    assert (said.rows, said.sentence[:5]) == ([("reader", "orders", 0, "0", 0, "2023-11-14 22:14:00")], "1 row")

    def is_same() -> bool:
        found = again(tmp_path)
        return found is not None and (found.sentence, [tuple(row) for row in found.rows]) == (said.sentence, said.rows)

    assert is_same()
    assert is_same()
    assert again(tmp_path, every_s=600) is None
    assert again(tmp_path, stream=True) is None
    assert again(tmp_path, table="t") is None
    assert said_again("lag", Source(directories=(str(tmp_path),)), str(out), SETTINGS) is None
    out.rename(tmp_path / "moved")
    assert again(tmp_path) is None
    (tmp_path / "moved").rename(out)
    assert is_same()

    (part,) = (out / "lag").rglob("*.parquet")
    for path, change in (
        (part, "gone"),
        (part, "written anew"),
        (out / "lag" / "_about.json", "gone"),
        (next((tmp_path / "data" / "orders-0").glob("*.log")), "written anew"),
        (out / "_making" / "lag.days" / "part", "of a run that was killed"),
        (out / "lag" / "_said.json", "half written"),
    ):
        content, status = (path.read_bytes(), path.stat()) if path.exists() else (None, None)
        if change == "gone":
            path.unlink()
        elif change == "half written":
            path.write_bytes(path.read_bytes()[:20])
        elif content is not None:
            touch_later(path)
        else:
            path.parent.mkdir(parents=True)
            path.touch()
        assert again(tmp_path) is None, (path, change)
        if content is None or status is None:
            path.unlink()
        else:
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert is_same(), (path, change)

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=1)

    with monkeypatch.context() as patch:
        patch.setattr(last_run, "datetime", Tomorrow)
        assert again(tmp_path) is None
        patch.undo()
        patch.setattr(last_run, "version", lambda _: "another")
        assert again(tmp_path) is None
    assert is_same()


def test_whatever_happens_to_the_logs_is_computed(
    data: DataDirectory, compute: Callable[..., Summary], tmp_path: Path
) -> None:
    grow(data, *(NOW_MS + number for number in range(9)))
    log = tmp_path / "data" / "orders-0"

    def retention() -> None:
        data.log("orders").delete_records_before(2)
        data.manager.checkpoint()

    def cut_short() -> None:
        path = sorted(log.glob("*.log"))[-1]
        os.truncate(path, path.stat().st_size // 2)

    for change in (
        lambda: commit(data, "reader", 5),
        lambda: commit(data, "other", 3),
        lambda: commit(data, "other", None),
        lambda: grow(data, NOW_MS + 120_000),
        retention,
        cut_short,
        lambda: log.rename(tmp_path / "orders-0"),
    ):
        compute()
        assert again(tmp_path) is not None
        change()
        assert again(tmp_path) is None
    said = compute()
    found = again(tmp_path)
    assert found is not None
    assert found.sentence == said.sentence


def test_a_time_in_the_future_is_looked_at_again(
    data: DataDirectory, compute: Callable[..., Summary], tmp_path: Path
) -> None:
    soon = int((datetime.now(UTC) + timedelta(hours=2)).timestamp() * 1000)
    for at_ms in (soon, NOW_MS * 1000):  # the year 55840
        grow(data, at_ms)
        compute()
        assert again(tmp_path) is None


def test_what_comes_while_it_computes_is_new(
    data: DataDirectory, compute: Callable[..., Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = last_run.last_run

    def and_then(*words: Any) -> Any:
        found = asked(*words)
        commit(data, "reader", 5)
        return found

    monkeypatch.setattr("barnabas.pipeline.runs.last_run", and_then)
    compute()
    monkeypatch.undo()
    assert again(tmp_path) is None


def test_the_command_starts_spark_once(
    spark: SparkSession,
    data: DataDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    starts = 0

    def start(*_: object) -> SparkSession:
        nonlocal starts
        starts += 1
        return spark

    monkeypatch.setattr(session, "what_is_missing", lambda *_: None)
    monkeypatch.setattr(session, "start_session", start)
    monkeypatch.setattr(spark, "stop", lambda: None)
    said = []
    for setting in (None, None, ["spark.sql.session.timeZone=UTC"]):
        cli.lag(str(data.path), str(tmp_path / "out"), setting=setting)
        said.append(capsys.readouterr().out)
    assert said[0].startswith(f"1 row in {tmp_path / 'out' / 'lag'}. At the end (2023-11-14 22:14:00):")
    assert said[0] == said[1] == said[2]
    assert starts == 2, "with settings of a person's own it is not known what Spark would do"


@pytest.mark.parametrize("job", ["offsets", "health", "export"])
def test_other_jobs_always_run(data: DataDirectory, tmp_path: Path, job: str) -> None:
    assert last_run.last_run(job, source(tmp_path), str(tmp_path / "out"), {}) is None
    assert logs_of(str(data.path), (), with_internal=True, until_high_watermark=True)
