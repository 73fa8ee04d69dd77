"""Data directories that are whole, and all that can be wrong with them; written by the broker's own storage."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline import log_files
from barnabas.pipeline.jobs import verify
from barnabas.pipeline.source import Source
from barnabas.pipeline.sources import register
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, DataDirectory
from histories import rows
from pyspark.sql import SparkSession

TOPIC, COMPACTED = "orders", "__consumer_offsets"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replicas of an ordinary and a compacted log, with several segments and indexes."""
    folder = tmp_path_factory.mktemp("whole")
    directory = DataDirectory(folder / "a")
    log = directory.log(TOPIC, segment_bytes=4_000, index_interval_bytes=300)
    for number in range(60):
        records = [Record(-1, NOW_MS + number, b"k", b"v" * 100) for _ in range(number % 3 + 1)]
        directory.append(log, *records)
    offsets = directory.log(COMPACTED)
    for number in range(20):
        directory.append(offsets, Record(-1, NOW_MS, b"key-%d" % (number % 5), b"%d" % number))
    directory.append(offsets, Record(-1, NOW_MS, b"gone", b"1"))
    directory.append(offsets, Record(-1, NOW_MS, b"gone", None))
    shutil.copytree(directory.close(), folder / "b")
    return folder


def findings(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    register(spark)
    source = Source(directories=(str(folder / "a"), str(folder / "b")))
    batches = source.table(spark, "batches", topics="*", replicas="all", until="log-end")
    records = source.table(spark, "records", topics=COMPACTED, replicas="all")
    logs, entries = log_files.tables(spark, source.directories)
    assert entries.count() > 20
    return rows(verify.verify(batches, logs, entries).unionByName(verify.keys(records, logs)))


def test_a_whole_log_has_no_findings(spark: SparkSession, whole: Path) -> None:
    assert len(list((whole / "a" / f"{TOPIC}-0").glob("*.log"))) > 1
    assert findings(spark, whole) == []


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def segment(folder: Path, number: int = 0, topic: str = TOPIC, extension: str = "log") -> Path:
    return sorted((folder / "b" / f"{topic}-0").glob(f"*.{extension}"))[number]


def test_a_changed_byte(spark: SparkSession, folder: Path) -> None:
    path = segment(folder)
    content = bytearray(path.read_bytes())
    content[100] ^= 1  # in the first batch
    path.write_bytes(content)
    found = findings(spark, folder)
    corrupt = [one for one in found if one["finding"] == "corrupt batch"]
    assert [(one["segment"], one["position"], one["offset"]) for one in corrupt] == [(path.name, 0, 0)]
    assert corrupt[0]["directory"] == str(folder / "b")
    assert [one["offset"] for one in found if one["finding"] == "replicas differ"] == [0]


def test_a_missing_segment(spark: SparkSession, folder: Path) -> None:
    for extension in ("log", "index", "timeindex"):
        segment(folder, 1, extension=extension).unlink()
    found = findings(spark, folder)
    assert {one["finding"] for one in found} == {"offsets are missing", "replicas differ"}
    (gap,) = [one for one in found if one["finding"] == "offsets are missing"]
    assert gap["position"] == 0
    assert {one["directory"] for one in found if one["finding"] == "replicas differ"} == {str(folder / "b")}


def test_a_batch_that_is_there_twice(spark: SparkSession, folder: Path) -> None:
    path = segment(folder, -1)
    content = path.read_bytes()
    size = int.from_bytes(content[8:12], "big") + 12
    path.write_bytes(content + content[:size])
    (found,) = findings(spark, folder)
    assert (found["finding"], found["segment"], found["position"]) == ("corrupt batch", path.name, len(content))
    assert "comes behind" in found["detail"]


@pytest.mark.parametrize(("extension", "byte"), [("index", 7), ("timeindex", 7)])
def test_a_wrong_index(spark: SparkSession, folder: Path, extension: str, byte: int) -> None:
    path = segment(folder, 1, extension=extension)  # the first one has no entries
    content = bytearray(path.read_bytes())
    content[byte] ^= 2
    path.write_bytes(content)
    (found,) = findings(spark, folder)
    assert found["finding"] == "wrong index"
    assert found["segment"] == path.with_suffix(".log").name


def test_a_replica_that_lost_the_newest_record_of_a_key(spark: SparkSession, folder: Path) -> None:
    path = segment(folder, topic=COMPACTED)
    content = path.read_bytes()
    position, kept = 0, []
    while position < len(content):
        size = int.from_bytes(content[position + 8 : position + 12], "big") + 12
        offset = int.from_bytes(content[position : position + 8], "big")
        if offset not in (17, 21):  # the newest record of key-2; a tombstone, which may go
            kept.append(content[position : position + size])
        position += size
    path.write_bytes(b"".join(kept))
    found = [one for one in findings(spark, folder) if one["finding"] != "wrong index"]
    assert [(one["finding"], one["offset"], one["directory"]) for one in found] == [
        ("key was lost", 17, str(folder / "b"))
    ]
