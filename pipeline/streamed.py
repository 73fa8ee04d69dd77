"""Jobs as streaming queries: a table that grows, and what its next run must know to go on.

    live/lag/                    the table
    live/_checkpoints/lag/       what was read, and what the query remembers
    live/_checkpoints/health-topic/      the same of the query that copies the table to a topic

A run goes on behind the one before it, also if that was killed at any moment, and every row is in the table once
(`file_sink.py`; a table of a format like Delta, or of a catalog, sees to that itself).

A micro-batch has a number, and one that the table has already is left out. So a table and a checkpoint must be those of
the same runs: if one of them was deleted, or put back from a backup, a run says so and does nothing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any

from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.file_sink import FORMATS, STAGED, WRITTEN, FileSink, newest
from barnabas.pipeline.files import AnyFiles, Files
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.source import SOURCE, Identity, Source, note_whose
from barnabas.pipeline.wire import Cluster
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

TRIGGER_S = 10
OLD_SINK_LOG = "_spark_metadata"
STARTS_MAX = 4  # of a query that goes on behind what was lost
_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class LiveTable:
    """A table that a streaming query writes."""

    spark: "SparkSession"
    path: str
    format: str = "parquet"
    partitioned_by: tuple[str, ...] = ()
    name: str | None = None  # of a table in a catalog, which is made if it is not there; else the files are in `path`
    by_file: tuple[str, ...] = ()  # rows of a micro-batch with the same values come together, and in one file
    source: Source | None = None  # whose rows they are

    @property
    def checkpoint(self) -> str:
        """The folder with the query's progress."""
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/_checkpoints/{name}"

    @property
    def where(self) -> str:
        """Where it is, for people."""
        return self.name or self.path

    def read(self, rows: "DataFrame") -> "DataFrame":
        """What is in the table, which has the columns of `rows`."""
        if self.name is not None:
            exists = self.spark.catalog.tableExists(self.name)
            return self.spark.table(self.name) if exists else self.spark.createDataFrame([], rows.schema)
        if not self._files.exists(f"{self.path}/{WRITTEN}" if self._has_files else self.path):
            return self.spark.createDataFrame([], rows.schema)
        reader = self.spark.read.format(self.format)
        return (reader.schema(rows.schema) if self.format == "parquet" else reader).load(self.path)

    @property
    def has_parquet_files(self) -> bool:
        """Whether it is a folder of Parquet files."""
        return self._has_files and self.format == "parquet"

    @property
    def staged(self) -> str:
        """The folder for files that the tasks of a source write."""
        return f"{self.checkpoint}/{STAGED}"

    @property
    def _files(self) -> Files:
        return Files(self.spark, self.path)

    @property
    def _has_files(self) -> bool:
        return self.name is None and self.format in FORMATS

    @cached_property
    def _sink(self) -> FileSink:
        return FileSink(self.path, self.checkpoint, self.format, self.partitioned_by, self.by_file)

    def check(self, rows: "DataFrame") -> None:
        """OutError if the table and the checkpoint cannot be those of earlier runs of the same query and cluster."""
        if self._has_files:
            check_place(self._files, self.path, self.checkpoint)
            if self.format == "parquet":
                self._check_columns(rows)
        if self.source is not None:
            note_whose(self._files, f"{self.checkpoint}/{SOURCE}", self.where, Identity(self.source.cluster_id()))

    def _check_columns(self, rows: "DataFrame") -> None:
        if self.read(rows).isEmpty():
            return
        there = self.spark.read.parquet(self.path).schema
        names = set(there.names) & set(rows.schema.names)
        for name in sorted(names - set(self.partitioned_by)):
            then, now = there[name].dataType.simpleString(), rows.schema[name].dataType.simpleString()
            if then != now:
                raise OutError(
                    f"{self.path} has other columns: {name} is {then} there, and {now} now. Name another --out"
                )

    def add(
        self,
        rows: "DataFrame",
        *,
        follow: bool,
        trigger_s: int = TRIGGER_S,
        to_topic: "ToTopic | None" = None,
        starts_max: int = 1,
        files: "DataFrame | None" = None,
        look: Callable[[], None] | None = None,
    ) -> int:
        """Run the query until it has read what is there now, or with `follow` until Ctrl-C; how many rows came.

        `files`: the same rows as files that the tasks of a source write into the folder `staged`.
        `starts_max`: so often it is started if records are gone that it was to read: then it is planned again.
        `look`: what is done every `trigger_s` or ten seconds, whichever is longer, while a query follows.
        """
        self.check(rows)
        before = 0 if self._has_files else self.read(rows).count()
        added_before = self._sink.added
        for starts in range(1, starts_max + 1):
            try:
                self._run(rows if files is None else files, follow, trigger_s, to_topic, look)
                break
            except StreamingQueryException as error:
                if LostRecordsError.__name__ not in str(error) or starts == starts_max:
                    raise
        return self._sink.added - added_before if self._has_files else self.read(rows).count() - before

    def _run(
        self,
        rows: "DataFrame",
        follow: bool,
        trigger_s: int,
        to_topic: "ToTopic | None",
        look: Callable[[], None] | None,
    ) -> None:
        running = [self.start(rows, follow=follow, trigger_s=trigger_s)]
        try:
            if to_topic is not None:
                if not follow:
                    running[0].awaitTermination()
                running.append(to_topic.start(self, rows, trigger(follow=follow, every_s=trigger_s)))
            looked_at_s = monotonic()
            while not all(query.awaitTermination(1) for query in running):
                if follow and look is not None and monotonic() - looked_at_s >= max(trigger_s, TRIGGER_S):
                    look()
                    looked_at_s = monotonic()
        except KeyboardInterrupt:
            pass
        finally:
            for query in running:
                query.stop()

    def start(self, rows: "DataFrame", *, follow: bool, trigger_s: int) -> "StreamingQuery":
        """Start the query, and return at once."""
        # Spark's default is for clusters: each partition keeps files of its own for what the query remembers.
        if self.spark.sparkContext.master.startswith("local") and self.spark.conf.get(_PARTITIONS) == "200":
            self.spark.conf.set(_PARTITIONS, str(self.spark.sparkContext.defaultParallelism))
        writer = rows.writeStream.option("checkpointLocation", self.checkpoint)
        writer = writer.trigger(**trigger(follow=follow, every_s=trigger_s))
        if self._has_files:
            return writer.foreachBatch(self._sink.add).start()
        writer = writer.format(self.format).partitionBy(*self.partitioned_by).outputMode("append")
        writer = writer.option("fanout-enabled", "true")  # of Iceberg
        return writer.start(self.path) if self.name is None else writer.toTable(self.name)


def check_place(files: AnyFiles, path: str, checkpoint: str) -> None:
    """OutError if a table and its checkpoint cannot be those of earlier runs of the same query."""
    if files.exists(f"{path}/{OLD_SINK_LOG}"):
        raise OutError(f"{path} is of an earlier version, and only Spark can read it: name another --out")
    written = newest(files.names(f"{path}/{WRITTEN}"))
    planned, done = newest(files.names(f"{checkpoint}/offsets")), newest(files.names(f"{checkpoint}/commits"))
    if written < 0 and planned < 0 and done < 0:
        files.check_ours(path, "the place of a table")
    elif planned < 0:
        there = f"{path} has rows" if written >= 0 else f"{checkpoint} says that micro-batches were written"
        raise OutError(
            f"{there}, and {checkpoint}/offsets, which says what was read, is gone. Put it back; or remove {path} and "
            f"{checkpoint}, so that a run reads everything again"
        )
    elif written < 0 <= done:
        raise OutError(
            f"{path} was deleted, and {checkpoint} says that its rows were written. Put it back; or remove "
            f"{checkpoint}, too, so that a run reads everything again"
        )
    elif not all(_is_whole(files, f"{checkpoint}/{name}") for name in (f"offsets/{planned}", f"commits/{done}")):
        raise OutError(
            f"{checkpoint} has files that are cut or damaged, so what was read is not known. Put it back; or remove "
            f"{path} and {checkpoint}, so that a run reads everything again"
        )
    elif not done <= written <= planned:
        raise OutError(
            f"{path} ends with micro-batch {written}, and its checkpoint {checkpoint} with {done}: they are "
            "not of the same runs. Put the right ones back; or remove both, so that a run reads everything again"
        )


def _is_whole(files: AnyFiles, path: str) -> bool:
    """Whether a file of a checkpoint, if it is there, ends with JSON, or `-` of a source that has said nothing."""
    text = files.read(path)
    if text is None:
        return True
    *before, last = text.split("\n")
    try:
        return bool(before) and (last == "-" or json.loads(last) is not None)
    except ValueError:
        return False


def trigger(*, follow: bool, every_s: int) -> dict[str, Any]:
    """When a query takes its next micro-batch; 0: as soon as there is something."""
    return {"processingTime": f"{every_s} seconds"} if follow else {"availableNow": True}


@dataclass(frozen=True)
class ToTopic:
    """A copy of a table in a topic: each row once, as JSON with all columns, in the order of a column."""

    brokers: tuple[str, ...]
    topic: str
    key: str
    order: str

    def start(self, table: LiveTable, rows: "DataFrame", trigger: dict[str, Any]) -> "StreamingQuery":
        """Start a query that reads what comes into the table. The topic is made if it is not there."""
        with Cluster(self.brokers) as cluster:
            cluster.create_topic(self.topic)
        Files(table.spark, table.path).make_folder(table.path)
        added = table.spark.readStream.schema(rows.schema).format(table.format).load(table.path)
        of_row = [name for name in rows.columns if name not in table.partitioned_by]
        value = F.to_json(F.struct(*of_row), {"ignoreNullFields": "false"})

        def write(some: "DataFrame", _: int) -> None:
            # One task: its rows have one order, so those with the same key are in the topic as they were in time.
            records = some.coalesce(1).sortWithinPartitions(self.order, self.key)
            records = records.select(F.col(self.key).alias("key"), value.alias("value"))
            writer = records.write.format("barnabas.records").mode("append").option("once", "true")
            writer.option("brokers", ",".join(self.brokers)).option("topic", self.topic).save()

        checkpoint = f"{table.checkpoint}-topic"
        writer = added.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        return writer.trigger(**trigger).start()
