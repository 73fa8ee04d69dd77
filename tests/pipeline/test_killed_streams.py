"""A process that runs the streaming jobs is killed at its start or at work, while the logs grow. In the end its tables
are what the batch jobs say of the whole logs, and the records that were written: each row once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.parquet as parquet
import stream_process
from barnabas.coordinators.coordinator import partition_for
from barnabas.pipeline.jobs.health import health
from barnabas.pipeline.jobs.lag import lag
from barnabas.pipeline.run import Run
from barnabas.pipeline.source import Source
from barnabas.pipeline.sources import register
from barnabas.protocol.record_batch import Record as Stored
from data_directories import NOW_MS, OFFSETS, DataDirectory
from histories import MINUTE_MS, OFFSETS_PARTITIONS, Row, rows
from pyarrow.dataset import dataset
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from examples.day import POISON, Commit, Day, Generation, Record, plan_day
from examples.fill import group_record, offset_record

pytestmark = pytest.mark.timeout(900)
DAY_MS = 24 * 60 * MINUTE_MS
START_MS = (NOW_MS // DAY_MS - 2) * DAY_MS
PART_MS = 2 * 60 * MINUTE_MS  # a source may be ahead of another by one part, which is less than the delay
PARTS_BEFORE = 4  # are written before the process starts
FILES_UNTIL_KILLED = 29
SEED = 11


class Feed:
    """The day in a data directory, part by part."""

    def __init__(self, path: Path, day: Day) -> None:
        self.directory = DataDirectory(path)
        self.records: list[Row] = []
        self.parts: dict[int, dict[Any, list[Stored]]] = defaultdict(lambda: defaultdict(list))
        for event in day.events:
            if isinstance(event, Record):
                where, key, value = (event.topic, event.partition), event.key, event.value
                self.records.append({"topic": event.topic, "partition": event.partition, "value": value})
            elif isinstance(event, Commit | Generation):
                where = OFFSETS, partition_for(event.group, OFFSETS_PARTITIONS)
                key, value = offset_record(event) if isinstance(event, Commit) else group_record(event)
            else:
                continue
            minute = (event.at_ms - START_MS) // MINUTE_MS
            self.parts[(event.at_ms - START_MS) // PART_MS][minute, *where].append(Stored(-1, event.at_ms, key, value))

    def write(self, part: int) -> None:
        """One batch for each minute and log."""
        for (_, topic, partition), records in self.parts[part].items():
            self.directory.append(self.directory.log(topic, partition), *records)
        self.directory.manager.checkpoint()

    def end(self) -> None:
        """A day later something happens, so all that was before is over."""
        self.directory.append(self.directory.log("clock"), Stored(-1, START_MS + 2 * DAY_MS, None, b""))
        self.directory.close()


def files(folder: Path) -> int:
    """How many files the process has written until now."""
    return sum(len(names) for _, _, names in os.walk(folder))


def start(data: Path, out: Path) -> "subprocess.Popen[bytes]":
    out.mkdir(exist_ok=True)
    log = (out.parent / "process.log").open("ab")
    command = [sys.executable, str(Path(stream_process.__file__)), str(data), str(out), *stream_process.JOBS]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def wait_for_all(process: "subprocess.Popen[bytes]", out: Path) -> None:
    """Wait until each job has done a micro-batch.

    On a machine that has too much to do Spark may give up waiting for a Python process; that is an end like another.
    """
    deadline = time.monotonic() + 400
    while process.poll() is None and not all(
        any(out.glob(f"_checkpoints/{name}/commits/[0-9]*")) for name in stream_process.JOBS
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill_after(process: "subprocess.Popen[bytes]", out: Path, more: int) -> None:
    """Kill the driver, Spark's Java process and the Python workers in one moment: when there are so many more files, or
    when there is nothing to do any more."""
    wanted = files(out) + more
    newest, newest_at = files(out), time.monotonic()
    while process.poll() is None and newest < wanted and time.monotonic() - newest_at < 20:
        time.sleep(0.01)
        if files(out) > newest:
            newest, newest_at = files(out), time.monotonic()
    kill(process)


def finish(spark: SparkSession, data: Path, out: Path) -> None:
    """Read what is left, here: Spark runs already."""
    for is_last in (False, False, True):
        try:
            for query in stream_process.start_jobs(spark, str(data), str(out), follow=False):
                assert query.awaitTermination(400)
            return
        except StreamingQueryException:
            if is_last:
                raise
        finally:
            for query in spark.streams.active:
                query.stop()


def kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_by_others(table: Path, *, is_moved: bool) -> list[Row]:
    """What a reader of Parquet finds that is not Spark: only whole files, each with rows; also in another place."""
    if is_moved:
        table = table.rename(table.with_name(f"{table.name}-moved"))
    assert not (table / "_spark_metadata").exists()
    for file in table.rglob("[!._]*.parquet"):
        assert parquet.ParquetFile(file).metadata.num_rows
    return [] if not table.exists() else dataset(table, format="parquet", partitioning="hive").to_table().to_pylist()


def comparable(found: list[Row], until_ms: int) -> list[str]:
    return sorted(json.dumps(row) for row in found if row["at"] <= until_ms)


@pytest.mark.takes_turns("when")
@pytest.mark.parametrize("when", ["reads", "starts"])
def test_killed_while_it(spark: SparkSession, tmp_path: Path, when: str) -> None:
    register(spark)
    feed = Feed(tmp_path / "data", plan_day(SEED, START_MS, records=2_000, commits_every=3))
    out = tmp_path / "out"
    parts = iter(range(DAY_MS // PART_MS))
    for part in islice(parts, PARTS_BEFORE):
        feed.write(part)
    process = start(tmp_path / "data", out)
    try:
        if when == "reads":
            wait_for_all(process, out)
            feed.write(next(parts))
    finally:
        kill_after(process, out, FILES_UNTIL_KILLED)
    seen = [(row["partition"], row["offset"]) for row in read_by_others(out / "export", is_moved=False)]
    assert len(seen) == len(set(seen))
    for part in parts:
        feed.write(part)
    feed.end()
    finish(spark, tmp_path / "data", out)

    run = Run(spark, Source(directories=(str(tmp_path / "data"),)), str(tmp_path))
    commits, groups, batches = run.commits(), run.groups(), run.batches()
    until_ms = START_MS + DAY_MS
    for name, expected in (
        ("lag", lag(commits, batches, stream_process.EVERY_S)),
        ("health", health(commits, groups, batches, stream_process.EVERY_S)),
    ):
        table = spark.read.parquet(str(out / name)).select(expected.columns)
        assert comparable(rows(table), until_ms) == comparable(rows(expected), until_ms), name

    exported = read_by_others(out / "export", is_moved=True)
    assert len(exported) == len({(row["partition"], row["offset"]) for row in exported})
    found = defaultdict(list)
    for row in sorted(exported, key=lambda row: row["offset"]):
        found[row["partition"]].append(row["raw"] if row["outcome"] == "bad" else row["value"])
    truth = defaultdict(list)
    for one in feed.records:
        if one["topic"] == "payments":
            truth[one["partition"]].append(one["value"] if one["value"] == POISON else json.loads(one["value"]))
    assert found == truth
