"""The tables as Spark data sources: `register(spark)`, then `spark.read.format("barnabas.commits").load(FOLDER)`.

`barnabas.records` is a sink, too (`sink.py`): `df.write.format("barnabas.records").mode("append").options(…).save()`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC
from barnabas.pipeline.broker_origin import BrokerOrigin
from barnabas.pipeline.condition_text import read_conditions
from barnabas.pipeline.directory_origin import DirectoryOrigin
from barnabas.pipeline.filters import Conditions, accept
from barnabas.pipeline.options import ReadOptions, read_options, write_options
from barnabas.pipeline.origin import Origin, Wanted
from barnabas.pipeline.parquet_files import FILES, FileWriting
from barnabas.pipeline.schemas import BATCHES, COMMITS, GROUPS, JOURNAL, RECORDS, Table, arrow_schema
from barnabas.pipeline.sink import RecordStreamWriter, RecordWriter, sink_of
from barnabas.pipeline.streaming import LogStreamReader
from barnabas.pipeline.table_reading import TableReading
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

# The tables of internal topics.
_TOPICS = {COMMITS.name: OFFSETS_TOPIC, GROUPS.name: OFFSETS_TOPIC, JOURNAL.name: JOURNAL_TOPIC}

# Which columns of a table are the partition, the first and the last offset, and the time of what is in the log.
_OF_INTERNAL = ("log_partition", "log_offset", "log_offset", "log_timestamp")
_LOG_COLUMNS = dict.fromkeys(_TOPICS, _OF_INTERNAL) | {
    RECORDS.name: ("partition", "offset", "offset", "timestamp"),
    BATCHES.name: ("partition", "base_offset", "last_offset", "max_timestamp"),
}


def register(spark: SparkSession) -> None:
    """Make the sources known to a session."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # for the option `pushFilters`
    with _variables_for_many_threads():
        for source in SOURCES.values():
            spark.dataSource.register(source)


@contextmanager
def _variables_for_many_threads() -> Iterator[None]:
    """Sources that are registered here have their variables of the environment in a map that threads can share.

    Spark (4.3) has one map for all queries of a source. Each streaming query puts variables into it at its start, in a
    thread of its own, while others do the same or write tasks. Two that start at once can leave a plain map of Java
    with another size than it has entries, and then no task of the session can be read (OptionalDataException in
    ResultTask).
    """
    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        yield
        return
    before = context.environment
    context.environment = context._jvm.java.util.concurrent.ConcurrentHashMap(before)
    try:
        yield
    finally:
        context.environment = before


class LogSource(DataSource):
    """What the sources share."""

    table: ClassVar[Table]

    @classmethod
    def name(cls) -> str:
        return cls.table.name

    def schema(self) -> StructType:
        options = read_options(self.options)
        return FILES if options.files else columns_of(self.table, options.columns)

    def reader(self, schema: StructType) -> "LogReader":
        options = read_options(self.options)
        return (FilteringLogReader if options.push_filters else LogReader)(self.table, schema, options)

    def streamReader(self, schema: StructType) -> LogStreamReader:
        options = read_options(self.options)
        if options.brokers and options.max_files_per_trigger is not None:
            raise ValueError("maxFilesPerTrigger is for `directories`: over the wire say maxRowsPerTrigger")
        reading = replace(reading_of(self.table, schema, options), is_stable=True)
        return LogStreamReader(origin_of(self.table, options), reading, options)


class CommitSource(LogSource):
    table = COMMITS


class GroupSource(LogSource):
    table = GROUPS


class JournalSource(LogSource):
    table = JOURNAL


class RecordSource(LogSource):
    table = RECORDS

    def writer(self, schema: StructType, overwrite: bool) -> RecordWriter:
        if overwrite:
            raise ValueError('records are added to a topic: say mode("append")')
        return RecordWriter(sink_of(schema, write_options(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> RecordStreamWriter:
        if overwrite:
            raise ValueError('records are added to a topic: say outputMode("append") or outputMode("update")')
        return RecordStreamWriter(sink_of(schema, write_options(self.options)))


class BatchSource(LogSource):
    table = BATCHES


SOURCES: dict[str, type[LogSource]] = {
    source.name(): source for source in (CommitSource, GroupSource, JournalSource, RecordSource, BatchSource)
}


def origin_of(table: Table, options: ReadOptions) -> Origin:
    """Where the options say that logs are read."""
    topics = (_TOPICS[table.name],) if table.name in _TOPICS else options.topics
    make = BrokerOrigin if options.brokers else DirectoryOrigin
    return make(options, topics, with_internal=table is BATCHES, decides=table.name in _TOPICS)


def columns_of(table: Table, names: Sequence[str]) -> StructType:
    """These columns of a table; no names: all. ValueError: it does not have one of them."""
    unknown = [name for name in names if name not in table.spark.names]
    if unknown:
        raise ValueError(f"{table.name} has no column {', '.join(unknown)}")
    return StructType([table.spark[name] for name in names]) if names else table.spark


def reading_of(table: Table, schema: StructType, options: ReadOptions) -> TableReading:
    """What the tasks of a query do with batches. ValueError: a column that the table does not have."""
    arrow = arrow_schema(columns_of(table, options.columns) if options.files else schema)
    for field in arrow:
        index = table.arrow.get_field_index(field.name)
        if index < 0 or table.arrow.field(index).type != field.type:
            raise ValueError(f"{table.name} has no column {field.name} of the type {field.type}")
    files = None if options.files is None else FileWriting(table.name, options.files, options.codec)
    if files is not None and table is RECORDS:  # a writer of files takes keys and values where they lie
        arrow = pa.schema([one.with_type(pa.binary_view()) if pa.types.is_binary(one.type) else one for one in arrow])
    conditions = read_conditions(options.where, table.arrow)
    return TableReading(table.name, arrow, conditions, options.aside, options.is_read_committed, options.holes, files)


class LogReader(DataSourceReader):
    """Reads a table once."""

    def __init__(self, table: Table, schema: StructType, options: ReadOptions) -> None:
        self.table = table
        self.ranges = options.ranges
        self.origin = origin_of(table, options)
        self.reading = reading_of(table, schema, options)

    def partitions(self) -> Sequence[InputPartition]:
        conditions = self.reading.conditions
        is_of_groups = self.table.name in _TOPICS
        partition, first, last, time = _LOG_COLUMNS[self.table.name]
        wanted = Wanted(
            topics=None if is_of_groups else conditions.values("topic"),
            partitions=conditions.values(partition),
            low=conditions.bounds(last)[0],
            high=conditions.bounds(first)[1],
            newer_than_ms=conditions.newer_than_ms(time),
            groups=conditions.values("group_id") if is_of_groups else None,
            ranges=self.ranges,
        )
        return self.origin.tasks(wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.reading.of_task(self.origin.read(partition))


class FilteringLogReader(LogReader):
    """The same, and takes over conditions of its query.

    Spark (4.3) plans a Python source once for each `load()`, with the conditions of the query that it planned last. Any
    other query of the same DataFrame, or another branch of the same query, then gets only those rows, too. So this is
    only for those who ask for it (the option `pushFilters`).
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over the conditions that a source can apply."""
        pushed, rest = accept(filters, self.table.arrow)
        conditions = Conditions((*self.reading.conditions.filters, *pushed.filters))
        self.reading = replace(self.reading, conditions=conditions)
        return rest
