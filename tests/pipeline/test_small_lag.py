"""Small runs of `lag` without Spark: they write what Spark writes, and each goes on behind the other."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.pipeline import session, small_lag
from barnabas.pipeline.day_table import DAY, DayTable, Made
from barnabas.pipeline.files import LocalFiles
from barnabas.pipeline.jobs import kept, lag_in_arrow
from barnabas.pipeline.jobs.lag import COLUMNS, lag
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.source import Identity, Source
from barnabas.pipeline.table_folder import NoTableError
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, OFFSETS, DataDirectory, pipeline
from histories import MINUTE_MS, START_MS, History, Tables, random_histories
from pyarrow.dataset import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

pytestmark = pytest.mark.timeout(420)
Lag = Callable[..., Summary]
SETTINGS: dict[str, Any] = {"every_s": 60, "delay_s": 30, "table": None, "format": "parquet", "on_loss": "stop"}
YEAR_58000_MS = START_MS * 1000
DAY_MS = 86_400_000


def of_columns(tables: Tables, every_s: int) -> pa.Table:
    """Made from the same files."""
    commits, batches = (pq.read_table(table.inputFiles()[0][7:]) for table in (tables.commits, tables.batches))
    return in_order(lag_in_arrow.lag(commits, batches, every_s, time.time_ns() // 1000))


def of_spark(rows: DataFrame) -> pa.Table:
    return in_order(rows.toArrow().cast(lag_in_arrow.arrow_schema(COLUMNS)))


def in_order(rows: pa.Table) -> pa.Table:
    names = COLUMNS.names
    return rows.select(names).sort_by([(name, "ascending") for name in names[1:4] + names[:1]])


def odd_history() -> History:
    """No time, a time of the future, no base, no log, tombstones, offsets beyond the end."""
    history = History()
    for topic in ("orders", "clicks"):
        history.produce(START_MS, topic, 0, 0, 10)
    history.batches[0]["base_timestamp"] = None
    for number, wrong_ms in enumerate((YEAR_58000_MS, None, 0)):
        history.produce(START_MS, "orders", 0, 10 + 20 * number, 20)
        history.batches[-1].update(base_timestamp=wrong_ms, max_timestamp=wrong_ms)
    history.produce(START_MS + MINUTE_MS, "orders", 0, 70, 5)
    history.batches[-1]["base_offset"] = None
    history.produce(START_MS + MINUTE_MS, "orders", 0, 75, 5, 1000)
    history.batches[-1]["base_timestamp"] = YEAR_58000_MS
    history.produce(START_MS + 2 * MINUTE_MS, "orders", 0, 900, 5)
    history.batches[-1]["error"] = "the checksum is wrong"
    history.produce(START_MS - 80 * 365 * DAY_MS, "ancient", 0, 0, 10, 1)  # before 1970
    for group, offsets in {"a": (0, 4, 15, 35), "b": (72, 80, None, 90), "c": (None, 3, 5000, -1)}.items():
        for number, offset in enumerate(offsets):
            for topic in ("orders", "clicks", "unknown"):
                history.commit(START_MS + (number * 70 - 30) * 1000, group, topic, 0, offset)
    history.commit(START_MS, "late", "orders", 0, 5, log_offset=900)
    history.commit(START_MS + 3 * MINUTE_MS, "late", "orders", 0, 6, log_offset=899)
    for at_ms in (4_000_000_000_000, 4_000_000_100_000, START_MS + MINUTE_MS):
        history.commit(at_ms, "ahead", "orders", 0, at_ms // 1_000_000_000)
    history.commit(START_MS, "no time", "orders", 0, 5)
    history.commits[-1]["log_timestamp"] = None
    history.commit(START_MS, "ancient", "ancient", -7, 5)
    history.commit(START_MS, "ancient", "ancient", 0, 5)
    return history


def test_columns_say_what_spark_says(spark: SparkSession, small: Tables, tmp_path: Path) -> None:
    future, nothing = History(), History()
    for number in range(3):
        future.commit(YEAR_58000_MS + number * 5 * MINUTE_MS, "a", "orders", 0, number)
        future.produce(YEAR_58000_MS, "orders", 0, number)
    nothing.produce(START_MS, "orders", 0, 0)
    counts = []
    for name, history in {"odd": odd_history(), "future": future, "nothing": nothing, "empty": History()}.items():
        (tmp_path / name).mkdir()
        tables = Tables(spark, tmp_path / name, history)
        found = of_columns(tables, 60)
        assert found.equals(of_spark(lag(tables.commits, tables.batches, 60))), name
        counts.append(len(found))
    assert counts[0] > 50
    assert counts[1:] == [10, 0, 0], "no window ends where all times are of the future"
    for every_s in (77, 86_400):  # of 7 seconds there are 200,000 rows
        found = of_columns(small, every_s)
        assert found.equals(of_spark(lag(small.commits, small.batches, every_s)))
        assert len(found)


@pytest.mark.takes_turns("every_s")
@pytest.mark.parametrize("every_s", [300, 7200])
def test_columns_go_on_as_spark_does(spark: SparkSession, tmp_path: Path, every_s: int) -> None:
    """Runs before midnight and behind it, each of a log that has lost its commits of before the last run."""
    history = random_histories(range(2), late=False)
    for row in (*history.commits, *history.batches):
        row |= {name: row[name] - 100 * MINUTE_MS for name in row if name.endswith("_timestamp") and row[name]}
    tables = Tables(spark, tmp_path, history)
    table, made = DayTable(spark, str(tmp_path), "lag"), Made("here", Identity("one"))
    old: pa.Table | None = None
    for begin, end in ((-1000, -30), (-60, 7), (-50, 100), (200, 1000)):
        low, high = (F.timestamp_millis(F.lit(START_MS + minute * MINUTE_MS)) for minute in (begin, end))
        commits = tables.commits.where((F.col("log_timestamp") >= low) & (F.col("log_timestamp") < high))
        batches = tables.batches.where(F.col("max_timestamp") < high)
        expected = lag(commits, batches, every_s).localCheckpoint()  # a merge looks at it several times
        expected = table.update(expected, partial(kept.lag, every_s=every_s), made)
        now = lag_in_arrow.lag(commits.toArrow(), batches.toArrow(), every_s, time.time_ns() // 1000)
        if old is None:
            old = now
        else:
            days = [one.date() for one in old["at"].to_pylist()]
            changed = lag_in_arrow.merged(old, now, every_s)
            first = min(one.date() for one in changed["at"].to_pylist())
            old = pa.concat_tables([old.filter(pa.array([day < first for day in days])), changed])
        assert in_order(old).equals(of_spark(expected.drop(DAY)))


# ------------------------------------------------------------ whole runs


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data", {OFFSETS: {"message.timestamp.after.max.ms": str(2**63 - 1)}})
    (directory.path / "meta.properties").touch()
    grow(directory, 0)
    return directory


def grow(data: DataDirectory, minute: int) -> None:
    """A record, and commits of two groups, one of which ends."""
    data.append(data.log("orders"), Record(-1, NOW_MS, None, bytes(50)))
    commit(data, "reader", minute, minute)
    commit(data, "gone", minute, minute if minute < 2 else None)
    data.manager.checkpoint()


def commit(data: DataDirectory, group: str, minute: int, offset: int | None, **fields: Any) -> None:
    value = None if offset is None else encode_value(CommittedOffset(offset))
    record = Record(-1, NOW_MS + minute * MINUTE_MS, encode_key(group, "orders", 0), value)
    data.append(data.log(OFFSETS), record, **fields)


@pytest.fixture
def without_spark(tmp_path: Path) -> Lag:
    def run(out: str = "out", **settings: Any) -> Summary:
        summary = small_lag.small_lag(source(tmp_path), str(tmp_path / out), SETTINGS | settings)
        assert summary is not None
        return summary

    return run


@pytest.fixture
def with_spark(spark: SparkSession, tmp_path: Path) -> Lag:
    def run(out: str = "out", **settings: Any) -> Summary:
        return run_job("lag", Run(spark, source(tmp_path), str(tmp_path / out), SETTINGS | settings))

    return run


def source(tmp_path: Path) -> Source:
    return Source(directories=(str(tmp_path / "data"),))


def rows_in(folder: Path) -> list[Any]:
    """What another engine finds."""
    table = dataset(folder / "lag", format="parquet", partitioning="hive").to_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_runs_with_spark_and_without_it_follow_one_another(
    spark: SparkSession, data: DataDirectory, without_spark: Lag, with_spark: Lag, tmp_path: Path
) -> None:
    """In one folder they change; in the other one all are Spark's."""
    for number, run in enumerate((without_spark, with_spark, without_spark, without_spark)):
        found, expected = run("changing"), with_spark("spark")
        assert found.sentence.replace("/changing/", "/spark/") == expected.sentence
        assert [tuple(row) for row in found.rows] == [tuple(row) for row in expected.rows]
        assert rows_in(tmp_path / "changing") == rows_in(tmp_path / "spark")
        if number < 3:
            grow(data, number + 1 + 1440 * (number == 2))
    before = without_spark("changing").sentence
    assert without_spark("changing").sentence == before, "nothing is new"
    about = [json.loads((tmp_path / out / "lag" / "_about.json").read_text()) for out in ("changing", "spark")]
    columns = [StructType.fromJson(json.loads(one["columns"])).simpleString() for one in about]
    assert columns[0] == columns[1]
    assert not (tmp_path / "changing" / "_making").exists()
    tables = [spark.read.parquet(str(tmp_path / out / "lag")) for out in ("changing", "spark")]
    assert tables[0].dtypes == tables[1].dtypes
    assert len({frozenset(map(tuple, table.collect())) for table in tables}) == 1


def test_a_run_that_is_killed_anywhere(
    data: DataDirectory,
    without_spark: Lag,
    with_spark: Lag,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each step of the first run, and of one that adds. The next one, with Spark or without it, repeats it."""
    steps = -1

    def killed(name: str) -> Callable[..., Any]:
        do = getattr(LocalFiles, name)

        def step(self: LocalFiles, *words: str) -> Any:
            nonlocal steps
            steps -= 1
            found = do(self, *words)
            if not steps:
                raise KeyboardInterrupt
            return found

        return step

    kills = 0
    for minute in (0, 1441):
        for at in range(1, 30):
            out = tmp_path / f"out-{minute}-{at}"
            if minute:
                copytree(tmp_path / "out-0-1", out)
            steps = at
            with monkeypatch.context() as patch:
                for name in ("move", "write", "remove"):
                    patch.setattr(LocalFiles, name, killed(name))
                try:
                    without_spark(out.name)
                    break
                except KeyboardInterrupt:
                    kills += 1
            (with_spark if at == (7 if minute else 3) else without_spark)(out.name)
            assert rows_in(out) == rows_in(tmp_path / f"out-{minute}-1")
            assert not (out / "_making").exists()
        grow(data, 1441)
    assert kills > 16


def test_what_is_held_back_and_put_aside(
    data: DataDirectory, without_spark: Lag, with_spark: Lag, tmp_path: Path
) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    commit(data, "reader", 1, 77, **fields)
    data.manager.checkpoint()
    found = without_spark()
    assert "1 commit is in an open transaction (of group reader) and does not count yet." in found.sentence
    assert [row[2] for row in found.rows] == [1, 1]
    path = next((tmp_path / "data" / f"{OFFSETS}-0").glob("*.log"))
    content = bytearray(path.read_bytes())
    content[70] ^= 1  # in the first batch
    path.write_bytes(content)
    assert "1 corrupt batch is in " in without_spark("second").sentence
    assert without_spark("second").sentence.replace("second", "third") == with_spark("third").sentence


@pytest.mark.parametrize("left", [0, 3, 0.5])
def test_a_file_that_was_copied_in_part_is_named(
    data: DataDirectory, without_spark: Lag, tmp_path: Path, left: float
) -> None:
    without_spark()
    (file, *_) = (tmp_path / "out" / "lag").rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(left * len(whole)) if left < 1 else int(left)])
    with pytest.raises(OutError, match=r"lag/day=.*\.parquet is cut or damaged .*Put it back"):
        without_spark()
    file.write_bytes(whole)
    without_spark()


def test_what_needs_spark(data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(out: str = str(tmp_path / "out"), **settings: Any) -> Summary | None:
        return small_lag.small_lag(source(tmp_path), out, SETTINGS | settings)

    for settings in ({"stream": True}, {"follow": True}, {"table": "t"}, {"format": "delta"}):
        assert run(**settings) is None
    assert run("hdfs://there/out") is None
    commit(data, "reader", -60 * 24 * 365 * 10, 1)
    data.manager.checkpoint()
    assert run() is None, "ten years of minutes"
    month_s = 30 * 86_400
    assert run(every_s=month_s) is not None
    monkeypatch.setattr(small_lag, "ROWS_MAX", 100)
    assert run(every_s=month_s) is None, "so many rows are there"
    (tmp_path / "old" / "lag").mkdir(parents=True)
    for name in ("_about.json", "part-0.parquet"):
        (tmp_path / "old" / "lag" / name).write_text('{"source": "", "made_at": "", "columns": ""}')
    assert run(str(tmp_path / "old")) is None, "an earlier version kept nothing"


def test_rows_that_do_not_fit_are_refused(data: DataDirectory, without_spark: Lag, tmp_path: Path) -> None:
    without_spark()
    with pytest.raises(OutError, match="every_s 60, and this is 600"):
        without_spark(every_s=600)
    (tmp_path / "data" / "meta.properties").write_text("cluster.id=another\n")
    without_spark()
    (tmp_path / "data" / "meta.properties").write_text("cluster.id=a third one\n")
    with pytest.raises(OutError, match="cluster another"):
        without_spark()
    (tmp_path / "out" / "lag" / "_about.json").write_text("{")
    with pytest.raises(NoTableError, match=r"_about\.json cannot be read"):
        without_spark()
    (tmp_path / "foreign" / "lag").mkdir(parents=True)
    (tmp_path / "foreign" / "lag" / "letter").touch()
    with pytest.raises(OutError, match="no run has written"):
        without_spark("foreign")


def test_the_command_starts_no_spark(
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
    for setting in ((), (), ("--spark", "spark.sql.session.timeZone=UTC")):
        words = ("lag", "--source", str(data.path), "--out", str(tmp_path / "out"), *setting)
        assert pipeline(*words) == 0
        said.append(capsys.readouterr().out)
    end = datetime.fromtimestamp(NOW_MS // MINUTE_MS * 60, UTC) + timedelta(minutes=1)
    assert said[0].startswith(f"2 rows in {tmp_path / 'out' / 'lag'}. At the end ({end:%Y-%m-%d %H:%M:%S}):")
    assert said[0] == said[1] == said[2]
    assert starts == 1, "with settings of a person's own it is not known what Spark would do"
