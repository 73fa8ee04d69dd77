"""Files that tasks write, against those that Spark writes: the same rows in the same folders, of any log."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.pipeline import parquet_files
from barnabas.pipeline.history_folder import HistoryFolder
from barnabas.pipeline.history_state import HistoryState
from barnabas.pipeline.parquet_files import FileWriting
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.schemas import RECORDS
from barnabas.pipeline.source import source_of
from barnabas.pipeline.sources import register
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import Record
from barnabas.storage.log import Log
from data_directories import NOW_MS, OFFSETS, DataDirectory
from pyspark.sql import SparkSession
from test_commit_rows import some_record

DAY_MS = 86_400_000
TIMES_MS = (
    *(-1, 0, -1_000, NOW_MS, NOW_MS, NOW_MS, NOW_MS + DAY_MS - NOW_MS % DAY_MS, -63_000_000_000_000),
    *(253_402_300_799_999, 253_402_300_800_000, NOW_MS * 1_000, 1 << 62),
)


def some_log(rng: random.Random, directory: DataDirectory, log: Log, *, is_of_offsets: bool) -> None:
    """Batches of all kinds: in transactions that are committed, aborted or open, with keys and values of any version,
    tombstones, wrong bytes, times of any day, and every codec."""
    for number in range(30):
        records = []
        for _ in range(rng.randrange(1, 6)):
            if is_of_offsets:
                key, value = some_record(rng) if not log.partition else good_commit(rng, log.partition)
                if rng.random() < 0.1:
                    key = rng.choice((b"\x00\x02group", b"\x01\xffnew", b""))
                records.append(Record(-1, rng.choice(TIMES_MS), key, value))
            else:
                key, value = (rng.choice((None, b"", rng.randbytes(20))) for _ in range(2))
                headers = [("name", rng.choice((None, b"", b"value")))] * rng.randrange(3)
                records.append(Record(-1, rng.choice(TIMES_MS), key, value, headers))
        ending = rng.choice(("commit", "abort", "open"))
        fields: dict[str, Any] = {}
        if rng.random() < 0.4:
            fields = {"producer_id": number + 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        directory.append(log, *records, codec=rng.choice([*Compression]), **fields)
        if fields and (ending != "open" or number < 25):  # an open one holds back all records behind it
            directory.end_transaction(log, number + 1, commit=ending == "commit")


def good_commit(rng: random.Random, number: int) -> tuple[bytes, bytes | None]:
    """Of a group whose commits are all in one partition of the log."""
    value = encode_value(CommittedOffset(rng.randrange(1 << 40), -1, rng.choice(("", "note")), NOW_MS, -1))
    key = encode_key(f"group-{number}-{rng.randrange(5)}", "orders", rng.randrange(3))
    return key, None if rng.random() < 0.1 else value


def a_source(tmp_path: Path, seed: int, topic: str) -> Path:
    rng = random.Random(seed)
    directory = DataDirectory(tmp_path / "data", {topic: {"message.timestamp.after.max.ms": str(2**63 - 1)}})
    for partition in range(3):
        some_log(rng, directory, directory.log(topic, partition), is_of_offsets=topic == OFFSETS)
    path = Path(directory.close())
    (path / "meta.properties").touch()
    if topic == OFFSETS:
        for file in path.glob(f"{topic}-0/*.log"):
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
    return path


def both_ways(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: str, source: Path, **settings: Any
) -> list[Summary]:
    register(spark)
    found = []
    for name in ("tasks", "spark"):
        if name == "spark":
            monkeypatch.setattr(Run, "files", lambda *_words: None)
        found.append(run_job(job, Run(spark, source_of(str(source)), str(tmp_path / name / "out"), dict(settings))))
    return found


def content(folder: Path) -> list[str]:
    """The rows of the files below a folder, each with the folder it is in."""
    rows = []
    for file in folder.rglob("*.parquet"):
        if not any(part.startswith("_") for part in file.relative_to(folder).parts):
            place = str(file.parent.relative_to(folder))
            rows += [f"{place} {row}" for row in in_numbers(pq.ParquetFile(file).read()).to_pylist()]
    return sorted(rows)


def in_numbers(table: pa.Table) -> pa.Table:
    """With times as numbers, because Python has no year 55840."""
    for number, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(number, column.name, table[number].cast(pa.int64()))
    return table


def types(spark: SparkSession, folder: Path) -> list[tuple[str, str]]:
    """The columns of one of the files, and their types."""
    return spark.read.parquet(str(next(folder.glob("[!_]*/*/*.parquet")))).dtypes


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", range(3))
def test_the_history_of_any_log(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    source = a_source(tmp_path, seed, OFFSETS)
    ours, sparks = both_ways(spark, monkeypatch, tmp_path, "offsets", source)
    assert ours.sentence.replace("/tasks/", "/spark/") == sparks.sentence
    assert "the checksum is wrong" in ours.sentence
    assert (ours.rows, ours.added) == (sparks.rows, sparks.added)
    rows = content(tmp_path / "tasks/out/offsets")
    assert rows == content(tmp_path / "spark/out/offsets")
    assert len(rows) == ours.added > 20
    state = [HistoryFolder(spark, str(tmp_path / name / "out/offsets")).state for name in ("tasks", "spark")]
    assert without_times(state[0]) == without_times(state[1])
    assert types(spark, tmp_path / "tasks/out/offsets") == types(spark, tmp_path / "spark/out/offsets")


def without_times(state: HistoryState) -> HistoryState:
    return replace(state, logs={number: replace(log, read_at_ms=0) for number, log in state.logs.items()})


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", range(2))
def test_the_export_of_any_log(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int) -> None:
    source = a_source(tmp_path, seed, "orders")
    ours, sparks = both_ways(spark, monkeypatch, tmp_path, "export", source, topic="orders")
    assert ours.sentence.replace("/tasks/", "/spark/") == sparks.sentence
    assert (ours.rows, ours.added) == (sparks.rows, sparks.added)
    rows = content(tmp_path / "tasks/out/export/orders")
    assert rows == content(tmp_path / "spark/out/export/orders")
    assert len(rows) == ours.added > 50
    assert types(spark, tmp_path / "tasks/out/export/orders") == types(spark, tmp_path / "spark/out/export/orders")
    assert not (tmp_path / "tasks/out/export/_checkpoints/orders/making").exists()


def test_an_export_that_spark_began(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An earlier version has written the first rows."""
    register(spark)
    directory = DataDirectory(tmp_path / "data")
    directory.append(directory.log("orders"), Record(-1, NOW_MS, None, b"1"))
    (Path(directory.close()) / "meta.properties").touch()
    run = Run(spark, source_of(str(tmp_path / "data")), str(tmp_path / "out"), {"topic": "orders"})
    with monkeypatch.context() as patch:
        patch.setattr(Run, "files", lambda *_words: None)
        assert run_job("export", run).added == 1
    (tmp_path / "data/meta.properties").unlink()
    directory = DataDirectory(tmp_path / "data")
    directory.append(directory.log("orders"), Record(-1, NOW_MS, None, b"2"))
    (Path(directory.close()) / "meta.properties").touch()
    assert run_job("export", run).added == 1
    rows = spark.read.parquet(str(tmp_path / "out/export/orders")).collect()
    assert sorted(bytes(row.value) for row in rows) == [b"1", b"2"]


def test_a_task_with_rows_of_more_days_than_it_may_have_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "WRITERS_MAX", 2)
    monkeypatch.setattr(parquet_files, "ROW_GROUP_BYTES", 200)
    names = ("offset", "timestamp", "value")
    schema = pa.schema([RECORDS.arrow.field(name) for name in names])
    start = datetime(2026, 11, 21, tzinfo=UTC)
    batches = [
        pa.RecordBatch.from_pylist(
            [
                {"offset": 10 * number + day, "timestamp": start.replace(day=21 + day), "value": b"x" * 20}
                for day in range(number % 5)
            ],
            schema,
        )
        for number in range(20)
    ]
    (found,) = FileWriting(RECORDS.name, str(tmp_path), "zstd:1").written(batches)
    files = {row["file"]: row["row_count"] for row in found.to_pylist()}
    assert files == {
        str(path.relative_to(tmp_path)): pq.ParquetFile(path).metadata.num_rows for path in tmp_path.rglob("*.parquet")
    }
    rows = [row for name in files for row in pq.ParquetFile(tmp_path / name).read().to_pylist()]
    assert sorted(row["offset"] for row in rows) == sorted(row["offset"] for one in batches for row in one.to_pylist())
    for name in files:
        days = {f"{row['timestamp']:%Y-%m-%d}" for row in pq.ParquetFile(tmp_path / name).read().to_pylist()}
        assert name.startswith(f"outcome=good/day={days.pop()}/")
        assert not days
