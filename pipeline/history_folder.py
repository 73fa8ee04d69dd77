"""The folder in which `offsets` keeps the history of commits: Parquet files by day and partition of the offsets topic.

    day=2026-11-21/log_partition=7/part-….parquet     the commits, each once
    _complete/part-….json                             by log partition: up to this log offset, all commits are here
    _source.json                                      which cluster they are of
    _compacted/, _replaced/                           a compaction that is under way

Files are only added. A run adds what lies above `_complete`. If the run before it was killed, a part of that may be
here already, which is not added again. Late commits go to the folder of their own day.

Where many runs have left small files of one day and log partition, its files are put together: the new folder is made
beside the history, and takes the place of the old one by renames. If a run is killed between them, the next one
finishes them. Large files stay as they are, because putting them together costs more than reading them.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from barnabas.pipeline.files import Files
from barnabas.pipeline.jobs import offsets
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.schemas import COMMITS
from barnabas.pipeline.source import Identity
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType([*COMMITS.spark, StructField("day", DateType())])
PLACE = ("day", "log_partition")
SOURCE = "_source.json"
CODEC = "zstd"  # of commits it makes half of what snappy makes, in the same time
SMALL_BYTES = 1 << 20
SMALL_FILES_MAX = 8  # if there are more small files of one day and log partition, its files become one


class HistoryFolder:
    """The history in one folder. OutError: something else is in it, or the history of another cluster."""

    def __init__(self, spark: "SparkSession", path: str, identity: Identity | None = None) -> None:
        self._spark = spark
        self._path = path.rstrip("/")
        self._files = Files(spark, path)
        self._files.check_ours(self._path, "the place of the history", "_complete")
        self._files.make_folder(f"{self._path}/_complete")
        self._be_of(identity or Identity())

    def _be_of(self, identity: Identity) -> None:
        """Log offsets say what is here already, so they must be those of one log."""
        path = f"{self._path}/{SOURCE}"
        text = self._files.read(path)
        try:
            before = Identity() if text is None else Identity(**json.loads(text))
        except (ValueError, TypeError):  # a run was killed while it wrote this, or the disk was full
            before = Identity()
        if before.differs(identity):
            raise OutError(f"{self._path} has the commits of {before}, and --source is {identity}: name another --out")
        both = before.with_more(identity)
        if both != before:
            self._files.write(path, json.dumps(asdict(both)))

    def read(self) -> "DataFrame":
        """All commits of the history."""
        return self._spark.read.schema(SCHEMA).parquet(self._path)

    def append(self, commits: "DataFrame") -> int:
        """Add the commits that are not here yet; their number."""
        self._finish_compaction()
        complete = F.broadcast(self._complete().persist())
        new = _above(complete, offsets.history(commits))
        here = _above(complete, self.read())  # what a killed run has left: nothing, as a rule
        count_before = here.count()
        if count_before:
            new = new.join(here, ["log_partition", "log_offset"], "left_anti")
        new.select(SCHEMA.names).write.partitionBy(*PLACE).mode("append").parquet(self._path, compression=CODEC)

        here = _above(complete, self.read())
        added = here.groupBy("log_partition").agg(F.max("log_offset").alias("log_offset"), F.count("*").alias("count"))
        rows = added.collect()
        if rows:
            reached = self._spark.createDataFrame(rows, added.schema).drop("count")
            reached.coalesce(1).write.mode("append").json(f"{self._path}/_complete")
        return sum(row["count"] for row in rows) - count_before

    def compact(self, small_files_max: int = SMALL_FILES_MAX, small_bytes: int = SMALL_BYTES) -> int:
        """Make one file of each day and log partition that has more than so many small ones; how many had."""
        self._finish_compaction()
        folders = [
            f"{self._path}/{day}/{partition}"
            for day in self._files.names(self._path)
            if day.startswith("day=")
            for partition in self._files.names(f"{self._path}/{day}")
        ]
        many = [folder for folder in folders if self._small_files(folder, small_bytes) > small_files_max]
        if many:
            rows = self._spark.read.option("basePath", self._path).schema(SCHEMA).parquet(*many)
            rows = rows.repartition(*PLACE).sortWithinPartitions(*PLACE, "log_offset")
            rows.write.partitionBy(*PLACE).parquet(f"{self._path}/_compacted", compression=CODEC)
            self._finish_compaction()
        return len(many)

    def _small_files(self, folder: str, small_bytes: int) -> int:
        sizes = self._files.sizes(folder)
        return sum(size < small_bytes for name, size in sizes.items() if name.endswith(".parquet"))

    def _complete(self) -> "DataFrame":
        """By log partition: the log offset up to which all commits are here."""
        path = f"{self._path}/_complete"
        reached = self._spark.read.schema("log_partition int, log_offset bigint").json(path)
        return reached.groupBy("log_partition").agg(F.max("log_offset").alias("complete_offset"))

    def _finish_compaction(self) -> None:
        """Put the compacted folders in place. Without `_SUCCESS` they are not whole, and none is in place yet."""
        compacted, replaced = f"{self._path}/_compacted", f"{self._path}/_replaced"
        if self._files.exists(f"{compacted}/_SUCCESS"):
            for day in self._files.names(compacted):
                for partition in self._files.names(f"{compacted}/{day}") if day.startswith("day=") else ():
                    place = f"{day}/{partition}"
                    if not self._files.exists(f"{replaced}/{place}"):
                        self._files.move(f"{self._path}/{place}", f"{replaced}/{place}")
                    self._files.move(f"{compacted}/{place}", f"{self._path}/{place}")
        self._files.remove(compacted)
        self._files.remove(replaced)


def _above(complete: "DataFrame", rows: "DataFrame") -> "DataFrame":
    """The rows above what is complete."""
    joined = rows.join(complete, "log_partition", "left")
    return joined.where(F.col("log_offset") > F.coalesce("complete_offset", F.lit(-1))).drop("complete_offset")
