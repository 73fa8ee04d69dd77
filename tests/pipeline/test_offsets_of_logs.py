"""The job `offsets` on data directories: what is held back, what cannot be read, and what is gone from the log."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.pipeline.held_back import HeldBack
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.source import source_of
from barnabas.pipeline.sources import register
from barnabas.protocol.record_batch import Record
from barnabas.storage.log import Log
from data_directories import NOW_MS, OFFSETS, DataDirectory
from pyspark.sql import SparkSession


def commit(directory: DataDirectory, log: Log, group: str, offset: int | None, **fields: Any) -> None:
    """A commit of a group, or its removal."""
    value = None if offset is None else encode_value(CommittedOffset(offset, -1, "", NOW_MS, -1))
    directory.append(log, Record(-1, NOW_MS, encode_key(group, "orders", 0), value), **fields)


def in_transaction(producer_id: int) -> dict[str, Any]:
    return {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


def closed(directory: DataDirectory) -> Path:
    path = Path(directory.close())
    (path / "meta.properties").touch()
    return path


def opened(path: Path) -> DataDirectory:
    (path / "meta.properties").unlink()
    return DataDirectory(path)


def run(spark: SparkSession, source: Path, out: Path, **settings: Any) -> Summary:
    register(spark)
    return run_job("offsets", Run(spark, source_of(str(source)), str(out), settings))


def committed(summary: Summary) -> dict[str, int]:
    return {row[0]: row[3] for row in summary.rows}


def test_an_open_transaction_freezes_nobody_else(spark: SparkSession, tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    log = directory.log(OFFSETS)
    commit(directory, log, "billing", 10)
    commit(directory, log, "copier", 7, **in_transaction(1))
    commit(directory, log, "given up", 7, **in_transaction(2))
    commit(directory, log, "billing", 90)
    commit(directory, log, "shipping", 5)
    source = closed(directory)
    before = run(spark, source, tmp_path / "out")
    assert committed(before) == {"billing": 90, "shipping": 5}
    assert "3 commits added, 3 in" in before.sentence
    assert "2 commits are in open transactions (of group copier, of group given up)" in before.sentence
    again = run(spark, source, tmp_path / "out")
    assert "0 commits added" in again.sentence
    assert "2 commits are in open transactions" in again.sentence
    directory = opened(source)
    log = directory.log(OFFSETS)
    for producer_id, is_committed in ((1, True), (2, False)):
        directory.end_transaction(log, producer_id, commit=is_committed)
    closed(directory)
    after = run(spark, source, tmp_path / "out")
    assert committed(after) == {"billing": 90, "copier": 7, "shipping": 5}
    assert "1 commit added, 4 in" in after.sentence
    assert "transactions" not in after.sentence


def test_a_place_that_could_not_be_read_is_filled_when_it_can(spark: SparkSession, tmp_path: Path) -> None:
    """As from another replica, or a better copy."""
    directory = DataDirectory(tmp_path / "data")
    log = directory.log(OFFSETS)
    for number in range(40):
        commit(directory, log, f"group-{number:02d}", number)
    source = closed(directory)
    shutil.copytree(source, tmp_path / "whole")
    (file,) = source.glob(f"{OFFSETS}-0/*.log")
    content = bytearray(file.read_bytes())
    size = len(content) // 40
    content[5 * size + 80] ^= 1
    file.write_bytes(content[:-size])
    damaged = run(spark, source, tmp_path / "out")
    assert "38 commits added, 38 in" in damaged.sentence
    assert f"{OFFSETS}-0 from 5 to before 6 (the checksum is wrong)" in damaged.sentence
    assert "from 39 to before 40 (the log ends at 39, below its high watermark of 40)" in damaged.sentence
    again = run(spark, source, tmp_path / "out")
    assert "0 commits added, 38 in" in again.sentence
    assert "from 5 to before 6" in again.sentence
    filled = run(spark, tmp_path / "whole", tmp_path / "out")
    assert "2 commits added, 40 in" in filled.sentence
    assert "before 6" not in filled.sentence
    rows = spark.read.parquet(str(tmp_path / "out/offsets")).select("log_offset").collect()
    assert sorted(row[0] for row in rows) == list(range(40))


def test_a_commit_and_its_tombstone_were_compacted_between_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "first")
    log = first.log(OFFSETS)
    for group in ("old", "billing"):
        commit(first, log, group, 3)
    run(spark, closed(first), tmp_path / "out")
    later = DataDirectory(tmp_path / "later")
    log = later.log(OFFSETS)
    for offset in (1, 2):  # in the places of what compaction has taken
        commit(later, log, "billing", offset)
    for group in ("billing", "new", "open"):
        commit(later, log, group, 4, **(in_transaction(1) if group == "open" else {}))
    source = closed(later)
    shutil.rmtree(source.parent / "first")
    soon = run(spark, source, tmp_path / "soon", delete_retention_ms=0)
    assert "tombstones" not in soon.sentence, "a first run has nothing to compare"
    found = run(spark, source, tmp_path / "out", delete_retention_ms=0)
    assert committed(found) == {"billing": 4, "new": 4}
    assert found.sentence.startswith("3 commits added, 5 in"), found.sentence
    assert "of them 1 tombstone for what the log does not have any more" in found.sentence
    assert run(spark, source, tmp_path / "out", delete_retention_ms=0).sentence.startswith("0 commits added, 5 in")
    shutil.copytree(source, tmp_path / "backup")
    directory = opened(source)
    commit(directory, directory.log(OFFSETS), "old", 8)
    back = run(spark, closed(directory), tmp_path / "out", delete_retention_ms=0)
    assert committed(back)["old"] == 8
    with pytest.raises(OutError, match=f"commits of {OFFSETS}-0 up to 6, .* ends at 5: it was cut .*another --out"):
        run(spark, tmp_path / "backup", tmp_path / "out")  # what follows there is at offsets that are here already


def test_a_day_that_was_removed_by_hand_does_not_count(spark: SparkSession, tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    commit(directory, directory.log(OFFSETS), "billing", 10)
    source = closed(directory)
    assert committed(run(spark, source, tmp_path / "out")) == {"billing": 10}
    for day in (tmp_path / "out" / "offsets").glob("day=*"):
        shutil.rmtree(day)
    empty = run(spark, source, tmp_path / "out")
    assert empty.is_empty
    assert empty.sentence.startswith("0 commits added, 0 in")


def test_who_follows_is_told_what_open_transactions_hold_back(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    log = directory.log(OFFSETS)
    commit(directory, log, "billing", 10)
    commit(directory, log, "copier", 7, **in_transaction(1))
    source = closed(directory)
    said: list[str] = []
    held = HeldBack(source_of(str(source)), say=said.append)
    held.look()
    assert said == [], "it may be over soon"
    held.look()
    held.look()
    assert said == ["1 commit is in an open transaction (of group copier) and does not count yet"]
    directory = opened(source)
    directory.end_transaction(directory.log(OFFSETS), 1, commit=True)
    closed(directory)
    held.look()
    held.look()
    assert said[1:] == ["What open transactions held back counts now"]


STREAMING = {"stream": True, "delay_s": 0}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "lag": ("lag", {}),
    "audit": ("audit", {}),
    "health": ("health", {}),
    "stream of lag": ("lag", STREAMING),
    "stream of health": ("health", STREAMING),
    "offsets": ("offsets", {"table": "held_offsets"}),
}


@pytest.mark.takes_turns("name")
@pytest.mark.parametrize("name", JOBS)
def test_each_job_says_what_open_transactions_hold_back(spark: SparkSession, tmp_path: Path, name: str) -> None:
    directory = DataDirectory(tmp_path / "data")
    log = directory.log(OFFSETS)
    commit(directory, log, "billing", 10)
    commit(directory, log, "copier", 7, **in_transaction(1))
    source = closed(directory)
    register(spark)
    job, more = JOBS[name]
    settings = {"every_s": 60, "clocks_differ_s": 60, **more}

    def summary() -> str:
        return run_job(job, Run(spark, source_of(str(source)), str(tmp_path / "out"), settings)).sentence

    assert "1 commit is in an open transaction (of group copier) and does not count yet." in summary()
    directory = opened(source)
    directory.end_transaction(directory.log(OFFSETS), 1, commit=True)
    closed(directory)
    assert "open transaction" not in summary()
    spark.sql("DROP TABLE IF EXISTS held_offsets")
