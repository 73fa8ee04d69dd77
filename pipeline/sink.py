"""The sink `barnabas.records`: what tasks do with their rows, of a table (`df.write`) or a stream (`df.writeStream`).

| column | type | meaning |
| --- | --- | --- |
| `key`, `value` | binary or string | the record's; a column that is not there is null |
| `headers` | array of (key string, value binary) | in their order |
| `timestamp` | timestamp | null: the time of writing |
| `topic` | string | where the option `topic` does not name one for all |
| `partition` | int | null: by the key as in Kafka's clients, without a key one after the other |

A task fails if a row was not written by all in-sync replicas; when it returns, all its rows are. Spark runs failed
tasks and micro-batches again, so rows come at least once. With the option `once` they come once (`once.py`).
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from barnabas.pipeline import once
from barnabas.pipeline.errors import RefusedRecordsError
from barnabas.pipeline.once import Attempt
from barnabas.pipeline.options import WriteOptions
from barnabas.pipeline.producer import Partitioner, Producer
from barnabas.pipeline.schemas import BINARY, INT, STRING, TIME
from barnabas.pipeline.wire import Cluster
from barnabas.protocol.record_batch import Record
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, DataType, StructType

_QUERY_ID, _EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"  # properties that Spark gives to tasks
_MICROSECONDS = 1000
_BYTES = (BINARY, STRING)
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "key": _BYTES,
    "value": _BYTES,
    "timestamp": (TIME,),
    "topic": (STRING,),
    "partition": (INT,),
}


@dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    records: int
    left_out: int = 0  # an earlier attempt had written them


@dataclass(frozen=True)
class RecordSink:
    """What goes to the tasks."""

    options: WriteOptions

    def write(self, rows: Iterator[pa.RecordBatch], attempt: Attempt | None, task: int) -> Written:
        with Cluster(self.options.brokers) as cluster:
            topic = self.options.topic
            cluster.refresh([] if topic is None else [topic])
            before: Counter[bytes] = Counter()
            if attempt is not None:
                assert topic is not None
                before = once.written_before(cluster, topic, attempt)
            left_out = before.total()
            records = 0
            with Producer(cluster, self.options.compression, self.options.batch_bytes) as producer:
                writing = _Writing(producer, Partitioner(task), topic, attempt, before)
                for batch in rows:
                    records += writing.write(batch)
            if attempt is not None:
                assert topic is not None
                once.check_nothing_left(before, topic, attempt)
            return Written(records, left_out)


@dataclass
class _Writing:
    """One task while it writes."""

    producer: Producer
    partitioner: Partitioner
    topic: str | None
    attempt: Attempt | None
    before: "Counter[bytes]"
    partition_counts: dict[str, int] = field(default_factory=dict)

    def write(self, batch: pa.RecordBatch) -> int:
        """Write the rows of an Arrow batch; returns how many were not there yet."""
        columns = {name: _values(name, batch.column(name)) for name in batch.schema.names}
        nothing = [None] * batch.num_rows
        keys, values, times = (columns.get(name, nothing) for name in ("key", "value", "timestamp"))
        topics, partitions, headers = (columns.get(name, nothing) for name in ("topic", "partition", "headers"))
        now_ms = time.time_ns() // 1_000_000
        count = 0
        for key, value, time_ms, topic, partition, header_rows in zip(keys, values, times, topics, partitions, headers):
            if header_rows is not None and None in header_rows:
                raise RefusedRecordsError("a header is null: leave it out of the array `headers`")
            pairs = [(one["key"] or "", one["value"]) for one in header_rows or ()]
            if self.attempt is not None:
                of = once.digest(key, value, pairs, time_ms, partition)
                if self.before[of]:
                    self.before[of] -= 1
                    continue
                pairs.append(once.header(self.attempt, of))
            self._add(
                self.topic or topic, partition, Record(-1, now_ms if time_ms is None else time_ms, key, value, pairs)
            )
            count += 1
        return count

    def _partitions(self, topic: str) -> int:
        if topic not in self.partition_counts:
            found = self.producer.partition_count(topic)
            if not found:
                raise RefusedRecordsError(no_topic(topic))
            self.partition_counts[topic] = found
        return self.partition_counts[topic]

    def _add(self, topic: str | None, partition: int | None, record: Record) -> None:
        if topic is None:
            raise RefusedRecordsError(
                "a row names no topic: fill its column `topic`, or name one by the option `topic`"
            )
        partitions = self._partitions(topic)
        if partition is None:
            partition = self.partitioner.partition(topic, record.key, partitions)
            if self.producer.add(topic, partition, record) and record.key is None:
                self.partitioner.batch_is_full(topic)
        elif 0 <= partition < partitions:
            self.producer.add(topic, partition, record)
        else:
            raise RefusedRecordsError(
                f"{topic} has no partition {partition}: it has {partitions} (0 to {partitions - 1}). "
                "Leave the column `partition` null, or add partitions to the topic"
            )


def _values(name: str, column: pa.Array) -> list[Any]:
    """The column for Python: keys and values as bytes, times as milliseconds."""
    if name in ("key", "value") and not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary())
    if pa.types.is_timestamp(column.type):
        microseconds = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
        return [None if one is None else one // _MICROSECONDS for one in microseconds.to_pylist()]
    return column.to_pylist()


def no_topic(topic: str) -> str:
    """What to do about it."""
    return f"there is no topic {topic!r}: create it (barnabas topics create {topic}), or correct the name"


def check_columns(schema: StructType, topic: str | None) -> None:
    """ValueError if the sink cannot write such rows."""
    for column in schema.fields:
        allowed = _COLUMNS.get(column.name)
        if column.name == "headers":
            if not _are_headers(column.dataType):
                raise ValueError("headers must be an array of (key string, value binary)")
        elif allowed is None:
            names = ", ".join((*_COLUMNS, "headers"))
            raise ValueError(f"the sink has no column {column.name}: select those that it has ({names})")
        elif column.dataType not in allowed:
            words = " or ".join(one.simpleString() for one in allowed)
            raise ValueError(f"{column.name} must be {words}, and is {column.dataType.simpleString()}: cast it")
    if topic is None and "topic" not in schema.names:
        raise ValueError("no topic is named: say the option `topic`, or add a column `topic`")


def _are_headers(type_: DataType) -> bool:
    if not isinstance(type_, ArrayType) or not isinstance(type_.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in type_.elementType.fields]
    return fields == [("key", STRING), ("value", BINARY)]


def sink_of(schema: StructType, options: WriteOptions) -> RecordSink:
    """The sink, on the driver, before the tasks begin. Says what is wrong before anything is written."""
    check_columns(schema, options.topic)
    if options.topic is not None:
        with Cluster(options.brokers) as cluster:
            cluster.refresh([options.topic])
            if not cluster.partition_count(options.topic):
                raise RefusedRecordsError(no_topic(options.topic))
    return RecordSink(options)


def _attempt(once_: str | None) -> Attempt | None:
    """What Spark says of this task: its query and epoch if it is of a stream, else the name that the option says."""
    context = TaskContext.get()
    assert context is not None
    if once_ is None:
        return None
    name = "" if once_.lower() == "true" else once_
    query, epoch = context.getLocalProperty(_QUERY_ID) or "", context.getLocalProperty(_EPOCH)
    if not query and not name:
        raise RefusedRecordsError("once=true is for streams: else say a name that stays when the query is run again")
    whole = "-".join(part for part in (query, name) if part)
    return Attempt(whole, int(epoch or 0), context.partitionId())


class _Writer:
    """What a task has written is there at once, and stays when Spark aborts: it runs the task again."""

    def __init__(self, sink: RecordSink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.sink.write(iterator, _attempt(self.sink.options.once), TaskContext().partitionId())


class RecordWriter(_Writer, DataSourceArrowWriter):
    """Writes a table."""


class RecordStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a stream, epoch by epoch."""
