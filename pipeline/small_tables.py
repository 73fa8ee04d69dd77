"""Tables of small sources, which the process of the command reads itself.

For a Python source Spark starts Python processes to look it up, to make it, to plan it and to run its tasks. Of a few
megabytes these are most of what a run costs. So they are read here, as tasks would read them, into Parquet files, which
need no Python any more, and of which each query reads only the columns that it needs.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from barnabas.pipeline.schemas import arrow_schema
from barnabas.pipeline.sources import SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROW_GROUP_BYTES = 64 << 20  # what is held at a time


def rows_of(name: str, options: Mapping[str, str]) -> "tuple[StructType, Iterator[pa.RecordBatch]]":
    """The columns and the rows of a source, which this process reads."""
    source = SOURCES[name](dict(options))
    schema = source.schema()
    reader = source.reader(schema)
    return schema, (rows for task in reader.partitions() for rows in reader.read(task))


def as_small(
    spark: "SparkSession", folder: Path, schema: "StructType", batches: Iterable[pa.RecordBatch]
) -> "DataFrame":
    """A table of rows that this process has made, by way of a file in a folder."""
    path = folder / f"{uuid4()}.parquet"
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    with pq.ParquetWriter(path, arrow_schema(schema), compression="none") as file:
        for rows in batches:
            held.append(rows)
            held_bytes += rows.nbytes
            if held_bytes > ROW_GROUP_BYTES:
                file.write_table(pa.Table.from_batches(held))
                held, held_bytes = [], 0
        if held:
            file.write_table(pa.Table.from_batches(held))
    return spark.read.schema(schema).parquet(str(path), datetimeRebaseMode="CORRECTED")
