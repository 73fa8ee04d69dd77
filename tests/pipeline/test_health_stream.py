"""The streaming query says what the batch job says, however its input is cut, and also if it is stopped and goes on."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs.health import RESULT, health
from barnabas.pipeline.jobs.health_stream import health_stream
from barnabas.pipeline.schemas import BATCHES, COMMITS, GROUPS
from histories import MINUTE_MS, History, Row, Tables, random_histories, rows, table
from pyspark.sql import DataFrame, SparkSession

RULES = {"retention_s": 2400, "soon_s": 900}
TIMES = {"commits": "log_timestamp", "groups": "log_timestamp", "batches": "max_timestamp"}
SOURCES = {"commits": COMMITS, "groups": GROUPS, "batches": BATCHES}


class Cut:
    """A history as files that come one after the other, cut at these times."""

    def __init__(self, spark: SparkSession, folder: Path, history: History, times_ms: Sequence[int]) -> None:
        self.spark = spark
        self.folder = folder
        for name, of in SOURCES.items():
            (folder / name).mkdir(parents=True)
            for number, (begin, end) in enumerate(zip((0, *times_ms), (*times_ms, 1 << 60))):
                part = [row for row in getattr(history, name) if begin <= row[TIMES[name]] < end]
                table(spark, folder / name, of, part, f"{number}")
                os.utime(folder / name / f"{number}.parquet", (1_000 + number, 1_000 + number))

    def stream(self, name: str) -> DataFrame:
        reader = self.spark.readStream.schema(SOURCES[name].spark).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / name))

    def run(self, out: str, batches: int | None = None) -> list[Row]:
        """Run the query to its end, or stop it after so many micro-batches; what it has said until then."""
        changes = health_stream(self.stream("commits"), self.stream("groups"), self.stream("batches"), **RULES)
        path, checkpoint = str(self.folder / out), str(self.folder / f"{out}.checkpoint")
        writer = changes.writeStream.option("checkpointLocation", checkpoint).option("path", path).format("parquet")
        if batches is None:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        else:
            query = writer.start()
            while (query.lastProgress or {"batchId": -1})["batchId"] < batches and query.isActive:
                query.awaitTermination(0.05)
            query.stop()
        return rows(self.spark.read.schema(RESULT).parquet(path))


def comparable(found: list[Row], until_ms: int) -> list[Any]:
    return sorted((tuple(row.values()) for row in found if row["at"] <= until_ms), key=str)


def test_the_stream_says_what_the_batch_says(spark: SparkSession, tmp_path: Path) -> None:
    history = random_histories(range(6), late=False)
    times = sorted(row["log_timestamp"] for row in history.commits)
    end_ms = times[-1]
    history.produce(end_ms + 60 * MINUTE_MS, "clock", 0, 0)  # lets the watermark pass everything else
    small = Tables(spark, tmp_path, history)
    expected = comparable(rows(health(small.commits, small.groups, small.batches, **RULES)), end_ms)
    assert len(expected) > 100

    cut = Cut(spark, tmp_path, history, [times[len(times) // 3], times[2 * len(times) // 3]])
    assert comparable(cut.run("whole"), end_ms) == expected
    cut.run("stopped", batches=1)
    assert comparable(cut.run("stopped"), end_ms) == expected
