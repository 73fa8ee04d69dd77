"""`export` of a small source without Spark, whose start is most of what a small run costs.

This process does the same steps as the streaming query of `streamed.py`, in the same checkpoint. It writes down which
offsets a micro-batch takes (`offsets/7`), brings its rows to the table (`file_sink.py`), and writes down that they are
there (`commits/7`). So runs with Spark and without it follow one another in any order, and what a killed run has begun
the next one ends, whichever of the two it is.

Values that are read with a schema need Spark, and so do tables of a catalog, other formats, and runs that follow.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.export_files import READ_AGAIN, exported, whole
from barnabas.pipeline.file_sink import SUCCESS, bring, data_files, newest
from barnabas.pipeline.files import LocalFiles
from barnabas.pipeline.jobs.export import COLUMNS
from barnabas.pipeline.local_files import local_path
from barnabas.pipeline.losses import lost_in
from barnabas.pipeline.options import READ_COMMITTED
from barnabas.pipeline.parquet_files import FileWriting
from barnabas.pipeline.run import Summary
from barnabas.pipeline.runs import export_summary, is_small, with_losses
from barnabas.pipeline.schemas import RECORDS
from barnabas.pipeline.source import SOURCE, Identity, Source, note_whose
from barnabas.pipeline.sources import RecordSource
from barnabas.pipeline.streamed import STARTS_MAX, check_place
from barnabas.pipeline.streaming import LogStreamReader, StreamOffset
from pyspark.sql.streaming.datasource import ReadAllAvailable

VERSION = "v1"  # of Spark's files in a checkpoint
CODEC = "snappy"  # Spark's default
KEPT = 100  # micro-batches of which a checkpoint tells, as in Spark
NEEDS_SPARK = ("follow", "table", "json_schema", "avro_schema_file")
SCHEMA = pa.schema([*map(RECORDS.arrow.field, COLUMNS), ("reason", pa.string()), ("raw", pa.binary())])


def small_export(source: Source, out: str, settings: Mapping[str, Any]) -> Summary | None:
    """Add the records of a topic that are not there yet; None: it needs Spark. LostRecordsError, OutError."""
    folder, topic = local_path(out), settings["topic"]
    if folder is None or "*" in topic or any(settings.get(name) for name in NEEDS_SPARK):
        return None
    if settings.get("format", "parquet") != "parquet" or not is_small("export", source, out, settings):
        return None
    goes_on = settings.get("on_loss") == "continue"
    options = source.where() | {"topics": topic, "isolation": READ_COMMITTED, "columns": ",".join(COLUMNS)}
    options |= {"failOnDataLoss": str(not goes_on).lower(), "lost": lost_in(out, "export"), "aside": f"{folder}/aside"}
    records = RecordSource(options)
    try:
        export = SmallExport(source, f"{folder}/export/{topic}", f"{folder}/export/_checkpoints/{topic}")
        for starts_left in reversed(range(STARTS_MAX if goes_on else 1)):
            try:
                export.add(records.streamReader(records.schema()))
                break
            except LostRecordsError:  # while they were read
                if not starts_left:
                    raise
    except NeedsSparkError:
        return None
    summary = export_summary(export.added, f"{out}/export/{topic}", exported(export.path, topic))
    return with_losses(summary, lost_in(out, "export"), f"{folder}/aside")


class NeedsSparkError(Exception):
    """Only Spark can go on there."""


class SmallExport:
    """The table of a topic, and the checkpoint that a streaming query has there. NeedsSparkError; OutError."""

    def __init__(self, source: Source, path: str, checkpoint: str) -> None:
        self.files = LocalFiles()
        self.path, self.checkpoint = path, checkpoint
        self.added = 0  # rows
        check_place(self.files, self.path, self.checkpoint)
        for name in data_files(self.files, self.path)[:1]:
            with whole(f"{self.path}/{name}", READ_AGAIN):
                there = pq.read_schema(f"{self.path}/{name}")
            if any(there.field(one.name).type != one.type for one in SCHEMA if one.name in there.names):
                raise NeedsSparkError(name)
        note_whose(self.files, f"{self.checkpoint}/{SOURCE}", self.path, Identity(source.cluster_id()))

    def add(self, reader: LogStreamReader) -> None:
        """Add what a run has begun and not ended, and then what is new. LostRecordsError."""
        files = self.files
        reader.prepareForTriggerAvailableNow()
        done, planned = (newest(files.names(f"{self.checkpoint}/{name}")) for name in ("commits", "offsets"))
        start = self._offset(done) if done >= 0 else reader.initialOffset()
        for number in range(done + 1, planned + 1):
            end = self._offset(number)
            self._bring(reader, number, start, end)
            start = end
        end = reader.latestOffset(start, ReadAllAvailable())
        if planned < 0 or end != start:
            self._plan(planned + 1, end)
            self._bring(reader, planned + 1, start, end)

    def _offset(self, number: int) -> StreamOffset:
        """Where a micro-batch ends."""
        lines = (self.files.read(f"{self.checkpoint}/offsets/{number}") or "").split("\n")
        if lines[0] != VERSION or len(lines) != 3:
            raise NeedsSparkError(f"{self.checkpoint}/offsets/{number}")
        found: StreamOffset = json.loads(lines[2])
        return found

    def _plan(self, number: int, end: StreamOffset) -> None:
        lines = (self.files.read(f"{self.checkpoint}/offsets/{number - 1}") or "").split("\n")
        about = json.loads(lines[1]) if len(lines) == 3 else {"batchWatermarkMs": 0, "conf": {}}
        about["batchTimestampMs"] = int(time.time() * 1000)
        if not self.files.exists(f"{self.checkpoint}/metadata"):
            self.files.write(f"{self.checkpoint}/metadata", json.dumps({"id": str(uuid4())}))
        self.files.write(
            f"{self.checkpoint}/offsets/{number}", "\n".join((VERSION, json.dumps(about), json.dumps(end)))
        )

    def _bring(self, reader: LogStreamReader, number: int, start: StreamOffset, end: StreamOffset) -> None:
        """The rows between two offsets."""

        def write(staged: str) -> int:
            rows = (batch for task in reader.partitions(start, end) for batch in reader.read(task))
            written = FileWriting(RECORDS.name, staged, CODEC).written(rows)
            count = sum(sum(files["row_count"].to_pylist()) for files in written)
            self.files.write(f"{staged}/{SUCCESS}", "")
            return count

        self.added += bring(self.files, self.path, self.checkpoint, number, write, _count)
        self.files.write(f"{self.checkpoint}/commits/{number}", f'{VERSION}\n{{"nextBatchWatermarkMs":0}}')
        for folder in (f"{self.checkpoint}/offsets", f"{self.checkpoint}/commits"):
            for name in self.files.names(folder):
                if 0 <= newest([name]) <= number - KEPT:
                    self.files.remove(f"{folder}/{name}")


def _count(staged: str, names: Sequence[str]) -> int:
    return sum(pq.read_metadata(f"{staged}/{name}").num_rows for name in names)
