"""Jobs as streaming queries: a table that grows, and what its next run must know to go on.

    live/lag/                    the table
    live/_checkpoints/lag/       what was read, and what the query remembers

A run goes on behind the one before it, also if that was killed at any moment, and every row is in the table once. Read
it with Spark: `_spark_metadata` in it says which files count, and a killed run may leave others.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.pipeline.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIGGER_S = 10
_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class LiveTable:
    """A table that a streaming query writes."""

    spark: "SparkSession"
    path: str
    format: str = "parquet"
    partitioned_by: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> str:
        """The folder with the query's progress."""
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/_checkpoints/{name}"

    def read(self, rows: "DataFrame") -> "DataFrame":
        """What is in the table, which has the columns of `rows`."""
        files = Files(self.spark, self.path)
        if not files.exists(self.path):
            return self.spark.createDataFrame([], rows.schema)
        reader = self.spark.read.format(self.format)
        return (reader.schema(rows.schema) if self.format == "parquet" else reader).load(self.path)

    def add(self, rows: "DataFrame", *, follow: bool, trigger_s: int = TRIGGER_S) -> int:
        """Run the query until it has read what is there now, or with `follow` until Ctrl-C; how many rows came."""
        before = self.read(rows).count()
        # Spark's default is for clusters: each partition keeps files of its own for what the query remembers.
        if self.spark.sparkContext.master.startswith("local") and self.spark.conf.get(_PARTITIONS) == "200":
            self.spark.conf.set(_PARTITIONS, str(self.spark.sparkContext.defaultParallelism))
        writer = rows.writeStream.format(self.format).partitionBy(*self.partitioned_by).outputMode("append")
        writer = writer.option("path", self.path).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(processingTime=f"{trigger_s} seconds") if follow else writer.trigger(availableNow=True)
        running = query.start()
        try:
            while not running.awaitTermination(1):
                pass
        except KeyboardInterrupt:
            running.stop()
        return self.read(rows).count() - before
