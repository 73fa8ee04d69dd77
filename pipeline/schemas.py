"""The tables that the sources give out, column by column: what Spark and Arrow know of them is made here.

Rules that hold in all tables:

- A time is a TIMESTAMP in UTC, exact to the millisecond, as Kafka's are. Where Kafka writes −1 for "none", the column
  is null; so is a time that does not fit into Spark's microseconds (beyond the year 294000, which only a broken
  client sends).
- The same for other numbers that Kafka writes as −1: leader epoch, producer id, producer epoch, sequence.
- Ids of topics are Kafka's 22 characters; null where a record names no id.
- `log_partition`, `log_offset` are the place of a record in `__consumer_offsets`. Together they name one record, and
  within one partition a higher offset is newer. In `barnabas.journal` they are its place in `__offset_journal`, whose
  partitions have the same numbers: a change and its commit have the same `log_partition`, and the commit's `log_offset`
  is the `change_offset`.
- `transaction`: null for a record outside of transactions, else `committed`, `aborted`, or `open` (undecided in what
  was read; of topics that are read over the wire so is everything in transactions above the last stable offset, but
  not of `__consumer_offsets`). With the option `isolation` = `read_committed` only null and `committed` appear.
- `directory` is the data directory that was read, null over the wire.
"""

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

STRING, BINARY, BOOLEAN, INT, LONG, DOUBLE, TIME, DATE = (
    StringType(),
    BinaryType(),
    BooleanType(),
    IntegerType(),
    LongType(),
    DoubleType(),
    TimestampType(),
    DateType(),
)


def struct(**fields: DataType) -> StructType:
    """A struct of nullable fields."""
    return StructType([StructField(name, of) for name, of in fields.items()])


@dataclass(frozen=True)
class Column:
    """A column, and what it means (with its unit)."""

    name: str
    type: DataType
    meaning: str
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """What one source gives out."""

    name: str
    columns: tuple[Column, ...]

    @cached_property
    def spark(self) -> StructType:
        """The schema for Spark; each field's comment is its meaning."""
        return StructType(
            [StructField(one.name, one.type, one.nullable, {"comment": one.meaning}) for one in self.columns]
        )

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of the Arrow batches, exactly as Spark expects them."""
        return arrow_schema(self.spark)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark wants from a source that gives out `schema`."""
    return to_arrow_schema(schema, timezone="UTC")


_ASSIGNED = ArrayType(struct(topic=STRING, topic_id=STRING, partitions=ArrayType(INT)))

_TRANSACTION = (
    Column("producer_id", LONG, "id of the producer of the record's batch; null: neither idempotent nor transactional"),
    Column("producer_epoch", INT, "its epoch"),
    Column("transaction", STRING, "null, `committed`, `aborted` or `open` (see above)"),
)

_LOG_POSITION = (
    Column("log_partition", INT, "partition of `__consumer_offsets` that holds the record", nullable=False),
    Column("log_offset", LONG, "offset of the record in it", nullable=False),
    Column("log_timestamp", TIME, "the record's own timestamp"),
    Column("log_leader_epoch", INT, "leader epoch of the record's batch"),
    Column("directory", STRING, "the data directory that was read; null over the wire"),
)

COMMITS = Table(
    "barnabas.commits",
    (
        Column("group_id", STRING, "the group that committed", nullable=False),
        Column("topic", STRING, "topic of the committed offset", nullable=False),
        Column("topic_id", STRING, "id of the topic, if the commit names it (value version 4)"),
        Column("partition", INT, "partition of the committed offset", nullable=False),
        Column("offset", LONG, "the committed offset: the next record to read; null in a tombstone"),
        Column("leader_epoch", INT, "leader epoch of the last record that was read, if the client gave it"),
        Column("metadata", STRING, "what the client wrote beside the offset; null in a tombstone"),
        Column("commit_timestamp", TIME, "time of the commit by the coordinator's clock; null in a tombstone"),
        Column("expire_timestamp", TIME, "time from which the offset may go, if the client gave a retention (v2-v4)"),
        Column("is_tombstone", BOOLEAN, "whether the record removes the offset (deleted or expired)", nullable=False),
        *_TRANSACTION,
        *_LOG_POSITION,
    ),
)

MEMBERS = ArrayType(
    struct(
        member_id=STRING,
        group_instance_id=STRING,
        client_id=STRING,
        client_host=STRING,
        rebalance_timeout_ms=INT,
        session_timeout_ms=INT,
        subscribed_topics=ArrayType(STRING),
        owned=_ASSIGNED,
        assigned=_ASSIGNED,
        subscription=BINARY,
        assignment=BINARY,
    )
)

GROUPS = Table(
    "barnabas.groups",
    (
        Column("group_id", STRING, "the group", nullable=False),
        Column(
            "record_type",
            STRING,
            "`GroupMetadata` (a classic group, whole), or the name of a record of the new protocols (KIP-848), "
            "each of which says one thing",
            nullable=False,
        ),
        Column("is_tombstone", BOOLEAN, "whether the record removes what it is about", nullable=False),
        Column("protocol_type", STRING, "`consumer`, `connect`, …"),
        Column("generation", INT, "generation of a classic group; epoch of the others (group, member or assignment)"),
        Column("protocol", STRING, "assignor that all members have, e.g. `range`; null: none chosen"),
        Column("leader", STRING, "member id of the leader"),
        Column("state_timestamp", TIME, "since when the group is in its state, e.g. empty"),
        Column(
            "members",
            MEMBERS,
            "the members; of a record about one member this one. `subscription` and `assignment` are raw, "
            "`subscribed_topics`, `owned`, `assigned` decoded (null if they are not a consumer's)",
        ),
        *_LOG_POSITION,
    ),
)

RECORDS = Table(
    "barnabas.records",
    (
        Column("topic", STRING, "the topic", nullable=False),
        Column("partition", INT, "the partition", nullable=False),
        Column("offset", LONG, "the record's offset", nullable=False),
        Column("timestamp", TIME, "the record's timestamp"),
        Column("timestamp_type", STRING, "`CreateTime` or `LogAppendTime`", nullable=False),
        Column("key", BINARY, "raw bytes; null: no key"),
        Column("value", BINARY, "raw bytes; null: no value (a tombstone in a compacted topic)"),
        Column("headers", ArrayType(struct(key=STRING, value=BINARY)), "the headers in their order, perhaps none"),
        Column("leader_epoch", INT, "leader epoch of the record's batch"),
        Column("sequence", INT, "the record's sequence number"),
        *_TRANSACTION,
        Column("directory", STRING, "the data directory that was read; null over the wire"),
    ),
)

JOURNAL = Table(
    "barnabas.journal",
    (
        Column("is_gap", BOOLEAN, "whether the row says that changes are missing in the journal here", nullable=False),
        Column("at", TIME, "when the offset was changed; of a gap the time of its first change, null: not known"),
        Column("group_id", STRING, "the group; null in a gap, which concerns all groups of its partition"),
        Column(
            "cause",
            STRING,
            "`commit`, `reset` (an admin's, in a group without members), `live reset` (in one with members), `expiry`, "
            "`deletion`, `topic gone`, `transaction`, or `recovered` (found in `__consumer_offsets` after a crash or a "
            "change of leader: nothing says who did it); null in a gap",
        ),
        Column("topic", STRING, "topic of the offset; null in a gap"),
        Column("topic_id", STRING, "id of the topic at that time, if it was known"),
        Column("partition", INT, "partition of the offset; null in a gap"),
        Column("old_offset", LONG, "the offset before; null: there was none, or `is_old_known` is false"),
        Column("old_leader_epoch", INT, "its leader epoch, if the client gave it"),
        Column("old_metadata", STRING, "what a client wrote beside it"),
        Column("is_old_known", BOOLEAN, "whether it is known what was before; null in a gap"),
        Column("new_offset", LONG, "the offset since then; null: none"),
        Column("new_leader_epoch", INT, "its leader epoch, if the client gave it"),
        Column("new_metadata", STRING, "what the client wrote beside it"),
        Column("generation", INT, "generation of the member that committed; null: no member did"),
        Column("client_id", STRING, "client id of who did it; null: the broker itself, or it is not known"),
        Column("host", STRING, "host of who did it, such as `/10.0.0.7`; null: the same"),
        Column("principal", STRING, "principal of who did it; null: the same"),
        Column("member_id", STRING, "the member that committed; null: no member did"),
        Column(
            "change_offset",
            LONG,
            "where in the same partition of `__consumer_offsets` the change is (in a transaction: about its control "
            "record); of a gap its first one. Null: not known",
        ),
        Column("end_offset", LONG, "the offset there behind the last change of the same record, or gap"),
        Column("gap_until", TIME, "time of the last change that is missing"),
        Column("gap_changes", LONG, "how many are missing; null: not known"),
        Column("gap_reason", STRING, "why"),
        Column("log_partition", INT, "partition of `__offset_journal` that holds the record", nullable=False),
        Column("log_offset", LONG, "offset of the record in it; one record can have several rows", nullable=False),
        Column("log_timestamp", TIME, "when the record was written"),
        *_LOG_POSITION[3:],
    ),
)

BATCHES = Table(
    "barnabas.batches",
    (
        Column("topic", STRING, "the topic", nullable=False),
        Column("partition", INT, "the partition", nullable=False),
        Column("base_offset", LONG, "offset of the first record; null where no header could be read"),
        Column("last_offset", LONG, "offset of the last record that the batch ever had"),
        Column("leader_epoch", INT, "leader epoch"),
        Column("magic", INT, "format of the batch: 2; 0 and 1 are old message sets, which are not read"),
        Column(
            "size_bytes", LONG, "the whole batch as it is stored; of a corrupt range, how long it is", nullable=False
        ),
        Column("codec", STRING, "`none`, `gzip`, `snappy`, `lz4` or `zstd`"),
        Column("is_control", BOOLEAN, "whether brokers wrote it for brokers"),
        Column("control_type", STRING, "`commit` or `abort` of a transaction marker"),
        Column("is_transactional", BOOLEAN, "whether it is part of a transaction, or ends one"),
        Column("timestamp_type", STRING, "`CreateTime` or `LogAppendTime`"),
        Column(
            "base_timestamp",
            TIME,
            "the time of the first record; with `LogAppendTime` that of all records; null if the cleaner has written "
            "the delete horizon in its place",
        ),
        Column("max_timestamp", TIME, "the largest time of a record"),
        Column("delete_horizon", TIME, "time from which its tombstones may go, if the cleaner has set it"),
        Column("base_sequence", INT, "sequence number of the first record"),
        Column("record_count", INT, "how many records it holds (compaction removes some)"),
        *_TRANSACTION,
        Column("crc", LONG, "the CRC-32C in the header"),
        Column("crc_holds", BOOLEAN, "whether the CRC-32C is right"),
        Column("error", STRING, "why the batch cannot be used; null: its frame and CRC are right"),
        Column("directory", STRING, "the data directory that was read; null over the wire"),
        Column("segment", STRING, "the segment's file name; null over the wire"),
        Column("position", LONG, "where in the segment the batch begins, bytes; null over the wire"),
    ),
)

UNREADABLE = "unreadable"
"""What `transaction` is in a row of `barnabas.commits` that says which offsets cannot be read."""

TABLES = {table.name: table for table in (COMMITS, GROUPS, JOURNAL, RECORDS, BATCHES)}
