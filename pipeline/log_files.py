"""What `verify` reads beside the batches: the logs of data directories and the entries of their indexes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from barnabas.pipeline.directories import INDEX_ENTRY, TIME_ENTRY, entries_of, logs_of
from barnabas.pipeline.schemas import INT, LONG, STRING, arrow_schema, struct
from barnabas.pipeline.small_tables import as_small
from barnabas.runtime.disk import RealDisk
from barnabas.storage import checkpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ABORTED = np.dtype(">i2, >i8, >i8, >i8, >i8")  # version, producer id, first and last offset, last stable offset
_LOG = {"directory": STRING, "topic": STRING, "partition": INT}
# `last_segment_offset`: where the last segment begins.
LOGS = struct(**_LOG, start_offset=LONG, high_watermark=LONG, last_segment_offset=LONG)
SEGMENTS = struct(**_LOG, segment=STRING, path=STRING)
ENTRIES = struct(
    **_LOG,
    segment=STRING,
    number=LONG,
    timestamp_ms=LONG,  # of the time index
    entry_offset=LONG,
    position=LONG,  # of the offset index
    producer_id=LONG,  # of the transaction index; the offset is that of the marker
)


def tables(
    spark: "SparkSession", directories: tuple[str, ...], small_tables: Path | None = None
) -> "tuple[DataFrame, DataFrame]":
    """The logs, and the entries of all their indexes. `small_tables`: folder for them, if they are small."""
    logs = [
        log
        for directory in directories
        for log in logs_of(directory, (), with_internal=True, until_high_watermark=True, with_empty=True)
    ]
    places = [
        (
            *(log.directory, log.topic, log.partition, log.first_offset, log.end_offset),
            log.segments[-1].base_offset if log.segments else log.start_offset,
        )
        for log in logs
    ]
    segments = [
        (log.directory, log.topic, log.partition, segment.path.rpartition("/")[2], segment.path)
        for log in logs
        for segment in log.segments
    ]
    if small_tables is not None:
        logs_table, files = (
            pa.Table.from_pylist([dict(zip(schema.names, row)) for row in rows], arrow_schema(schema))
            for schema, rows in ((LOGS, places), (SEGMENTS, segments))
        )
        return (
            as_small(spark, small_tables, LOGS, logs_table.to_batches()),
            as_small(spark, small_tables, ENTRIES, _entries(iter(files.to_batches()))),
        )
    parts = max(1, min(len(segments) // 100, 1000))
    files = spark.createDataFrame(segments, SEGMENTS).repartition(parts)
    return spark.createDataFrame(places, LOGS), files.mapInArrow(_entries, ENTRIES)


def cleaned_topics(directories: tuple[str, ...]) -> set[str]:
    """The topics that a broker has compacted, as its cleaner says."""
    disk = RealDisk()
    return {
        topic
        for directory in directories
        for topic, _ in checkpoints.read_offsets(disk, f"{directory}/{checkpoints.CLEANER_OFFSETS}")
    }


def _entries(segments: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The entries of the indexes of these segments."""
    schema = arrow_schema(ENTRIES)
    for batch in segments:
        for segment in batch.to_pylist():
            found = list(_of_segment(segment.pop("path"), segment))
            yield pa.RecordBatch.from_pylist(found, schema)


def _of_segment(path: str, segment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    base_offset = int(segment["segment"].partition(".")[0])
    stem, _, swap = path.rpartition(".log")
    for number, (offset, position) in enumerate(entries_of(f"{stem}.index{swap}", INDEX_ENTRY).tolist()):
        yield segment | {"number": number, "entry_offset": base_offset + offset, "position": position}
    for number, (timestamp_ms, offset) in enumerate(entries_of(f"{stem}.timeindex{swap}", TIME_ENTRY).tolist()):
        yield segment | {"number": number, "entry_offset": base_offset + offset, "timestamp_ms": timestamp_ms}
    for number, (_, producer_id, _, marker, _) in enumerate(entries_of(f"{stem}.txnindex{swap}", ABORTED).tolist()):
        yield segment | {"number": number, "entry_offset": marker, "producer_id": producer_id}
