"""`verify`: whether the logs in data directories are whole. One row for each place where something is wrong.

| column | type | meaning |
| --- | --- | --- |
| `finding` | string | see below |
| `topic`, `partition` | string, int | of which log |
| `directory`, `segment`, `position` | string, string, bigint | where; null: not of one place of one file |
| `offset` | bigint | of which offset; null: it cannot be read |
| `detail` | string | what is wrong |

The findings:

- `corrupt batch`: its CRC is wrong, it is no batch, or its offsets cannot be at this place.
- `offsets are missing`: a batch does not begin where the one before it ends, and the topic is not compacted.
- `offset falls`: a batch begins below the end of the one before it.
- `records are missing at the end`: the log ends below its own high watermark, as the directory's checkpoint has it.
- `leader epoch falls`: a batch has a lower leader epoch than the one before it. Each leader writes with a higher epoch
  than all before it, so an old one went on writing.
- `wrong index`: an entry of an offset index whose position is not that of the batch with this offset; an entry of a
  time index whose time is not that of the batch with this offset; entries that do not rise; an entry of a transaction
  index without the marker of that abort, or such a marker without an entry (not of compacted topics).
- `replicas differ`: below the high watermark of all, a replica has not the batch that another has (compacted topics are
  cleaned at different times, so see the next one).
- `key was lost`: in a compacted topic, a replica has not the newest record of a key that another has. A key whose
  newest record is a tombstone may be missing.

- `transaction is not whole`: a producer went on, outside of transactions or in another epoch, while its transaction was
  open; its epoch fell; or `__transaction_state` says that the transaction has ended, and this partition has no marker.

A transaction that is open there, too, is no damage. Brokers should be stopped, because a batch that is being written is
not whole yet.
"""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.pipeline.as_of import join_next
from barnabas.pipeline.batches import OFFSETS_END
from barnabas.pipeline.jobs.lag import TOPIC_PARTITION
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOG = ("directory", "topic", "partition")
COMPACTED = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
ENDED = (4, 5)  # CompleteCommit, CompleteAbort


def verify(
    batches: "DataFrame",
    logs: "DataFrame",
    entries: "DataFrame",
    states: "DataFrame",
    compacted: Sequence[str] = COMPACTED,
) -> "DataFrame":
    """Everything that is wrong with batches (of all replicas, to the end of their logs) and with indexes.

    `logs` and `entries` are those of `log_files.py`; `states` are the records of `__transaction_state`.
    """
    is_compacted = F.col("topic").isin(*compacted)
    good = batches.where(F.col("error").isNull())
    findings = [
        found(batches.where(F.col("error").isNotNull()), "corrupt batch", F.col("error")),
        *offsets(good, is_compacted),
        missing_ends(good, logs),
        leader_epochs(good),
        *indexes(good, entries),
        *transaction_indexes(good.where(~is_compacted), entries.where(~is_compacted)),
        *transactions(good, states),
        replicas(good.where(~is_compacted), logs),
    ]
    return reduce(lambda one, other: one.unionByName(other), findings)


def found(rows: "DataFrame", finding: str, detail: "Column", offset: str = "base_offset") -> "DataFrame":
    """The rows in the columns of the result."""
    place = [F.col(name) if name in rows.columns else F.lit(None).alias(name) for name in ("segment", "position")]
    return rows.select(
        F.lit(finding).alias("finding"),
        *TOPIC_PARTITION,
        "directory",
        place[0].cast("string").alias("segment"),
        place[1].cast("bigint").alias("position"),
        F.col(offset).alias("offset"),
        detail.alias("detail"),
    )


def offsets(good: "DataFrame", is_compacted: "Column") -> "list[DataFrame]":
    """Each batch begins where the one before it ends; in a compacted topic above its end."""
    rows = good.withColumn("end", before("last_offset"))
    detail = F.format_string("the batch before it ends at offset %d", "end")
    is_missing = ~is_compacted & (F.col("base_offset") > F.col("end") + 1)
    return [
        found(rows.where(is_missing), "offsets are missing", detail),
        found(rows.where(F.col("base_offset") <= F.col("end")), "offset falls", detail),
    ]


def missing_ends(good: "DataFrame", logs: "DataFrame") -> "DataFrame":
    """The logs that end below their own high watermark."""
    known = logs.where(F.col("high_watermark") < OFFSETS_END)
    ends = good.groupBy(*LOG).agg((F.max("last_offset") + 1).alias("end"))
    rows = known.join(ends, [*LOG], "left").withColumn("end", F.greatest("end", "last_segment_offset"))
    detail = F.format_string("the log ends here, and its high watermark is %d", "high_watermark")
    return found(rows.where("end < high_watermark"), "records are missing at the end", detail, "end")


def leader_epochs(good: "DataFrame") -> "DataFrame":
    """Where a batch has a lower leader epoch than the one before it."""
    rows = good.withColumn("epoch", before("leader_epoch")).where(F.col("leader_epoch") < F.col("epoch"))
    return found(rows, "leader epoch falls", F.format_string("from %d to %d", "epoch", "leader_epoch"))


def before(name: str) -> "Column":
    """What the batch before it in the same log has."""
    return F.lag(name).over(Window.partitionBy(*LOG).orderBy("segment", "position"))


def indexes(good: "DataFrame", entries: "DataFrame") -> "list[DataFrame]":
    """Each entry leads to the batch that has its offset."""
    file = (*LOG, "segment")
    of_positions = entries.where("position is not null")
    at_position = good.select(*file, "position", "base_offset", "last_offset")
    led = of_positions.join(at_position, [*file, "position"], "left")
    leads_there = F.coalesce(F.col("entry_offset").between(F.col("base_offset"), F.col("last_offset")), F.lit(False))

    of_times = entries.where("timestamp_ms is not null").withColumnRenamed("entry_offset", "last_offset")
    spans = good.select(*file, "last_offset", "base_offset", F.unix_millis("max_timestamp").alias("batch_ms"))
    timed = join_next(of_times, spans, file, "last_offset").withColumnRenamed("last_offset", "entry_offset")
    has_time = F.coalesce(
        (F.col("batch_ms") == F.col("timestamp_ms")) & (F.col("base_offset") <= F.col("entry_offset")), F.lit(False)
    )

    kind = (F.col("position").isNull(), F.col("timestamp_ms").isNull())
    entry_before = F.lag("entry_offset").over(Window.partitionBy(*file, *kind).orderBy("number"))
    falls = entries.withColumn("before", entry_before).where("entry_offset <= before")
    return [
        found(led.where(~leads_there), "wrong index", _says(F.col("position"), "position"), "entry_offset"),
        found(timed.where(~has_time), "wrong index", _says(F.col("timestamp_ms"), "time"), "entry_offset"),
        found(falls, "wrong index", F.lit("the entry before it has a higher offset"), "entry_offset"),
    ]


def _says(value: "Column", what: str) -> "Column":
    return F.format_string(f"the index says {what} %d", value)


def in_steps(good: "DataFrame") -> "DataFrame":
    """The batches of producers, each with what the producer did before: is a transaction open, and in which epoch?"""
    of_producer = Window.partitionBy(*LOG, "producer_id").orderBy("base_offset")
    opens = F.col("is_transactional") & ~F.col("is_control")
    all_before = of_producer.rowsBetween(Window.unboundedPreceding, -1)
    return good.where(F.col("producer_id").isNotNull()).withColumns(
        {
            "was_open": F.coalesce(F.lag(opens).over(of_producer), F.lit(False)),
            "epoch_before": F.max("producer_epoch").over(all_before),
            "is_last": F.lead("base_offset").over(of_producer).isNull(),
        }
    )


def transaction_indexes(good: "DataFrame", entries: "DataFrame") -> "list[DataFrame]":
    """The aborted transactions are in the transaction index, and nothing else is."""
    at = (*LOG, "segment", "producer_id", "base_offset")
    aborts = in_steps(good).where("control_type = 'abort'")
    indexed = entries.where("producer_id is not null").withColumnRenamed("entry_offset", "base_offset")
    without_entry = aborts.where("was_open").join(indexed.select(*at), [*at], "left_anti")
    without_marker = indexed.join(aborts.select(*at), [*at], "left_anti")
    names = F.format_string("the index says that producer %d aborted here", "producer_id")
    return [
        found(without_entry, "wrong index", F.lit("this abort is not in the transaction index")),
        found(without_marker, "wrong index", names),
    ]


def transactions(good: "DataFrame", states: "DataFrame") -> "list[DataFrame]":
    """No producer goes on before its transaction has ended, and each one that has ended has its marker."""
    steps = in_steps(good)
    is_marker = F.coalesce("is_control", F.lit(False))
    falls = F.col("producer_epoch") < F.col("epoch_before")
    left = (
        F.col("was_open")
        & ~is_marker
        & (~F.col("is_transactional") | (F.col("producer_epoch") != F.col("epoch_before")))
    )
    wrong = steps.withColumn(
        "detail",
        F.when(falls, F.format_string("producer %d had a higher epoch before", "producer_id")).when(
            left, F.format_string("producer %d has an open transaction", "producer_id")
        ),
    )
    # A replica that is behind may lack a marker, so the one that reaches furthest counts.
    reach = Window.partitionBy(*TOPIC_PARTITION)
    furthest = steps.withColumn("end", F.max("last_offset").over(Window.partitionBy(*LOG)))
    furthest = furthest.withColumn("reach", F.max("end").over(reach)).where("end = reach")
    still_open = furthest.where(F.col("is_last") & F.col("is_transactional") & ~is_marker)
    ended = ended_transactions(states).withColumnRenamed("producer_epoch", "ended_epoch")
    without_marker = still_open.join(ended, "producer_id").where("producer_epoch <= ended_epoch")
    lost = F.format_string("the transaction of producer %d has ended, and its marker is not here", "producer_id")
    return [
        found(wrong.where(F.col("detail").isNotNull()), "transaction is not whole", F.col("detail")),
        found(without_marker, "transaction is not whole", lost),
    ]


def ended_transactions(states: "DataFrame") -> "DataFrame":
    """Producers whose newest state in `__transaction_state` says that their transactions have ended, with all markers.

    The value begins with its version (two bytes), the producer id, its epoch, the time-out (four) and the state.
    """
    newest = states.groupBy("key").agg(F.max_by("value", "offset").alias("value"))

    def number(position: int, size: int) -> "Column":
        return F.conv(F.hex(F.substring("value", position, size)), 16, 10).cast("bigint")

    fields = newest.select(
        number(3, 8).alias("producer_id"), number(11, 2).alias("producer_epoch"), number(17, 1).alias("state")
    )
    return fields.where(F.col("state").isin(*ENDED)).drop("state")


def with_replicas(rows: "DataFrame", logs: "DataFrame") -> "DataFrame":
    """The rows of partitions in several `directories`; from `low` to before `high` all of these have the offsets."""
    common = logs.groupBy(*TOPIC_PARTITION).agg(
        F.max("start_offset").alias("low"),
        F.min("high_watermark").alias("high"),
        F.collect_set("directory").alias("directories"),
    )
    return rows.join(F.broadcast(common.where(F.size("directories") > 1)), [*TOPIC_PARTITION])


def replicas(good: "DataFrame", logs: "DataFrame") -> "DataFrame":
    """Each batch is in all replicas, and the same."""
    rows = with_replicas(good, logs).where("base_offset >= low and last_offset < high")
    content = F.struct("last_offset", "crc", "size_bytes", "leader_epoch")  # which the checksum does not cover
    by_offset = rows.groupBy(*TOPIC_PARTITION, "base_offset", "directories").agg(
        F.collect_set("directory").alias("there"), F.count_distinct(content).alias("contents")
    )
    differ = by_offset.where((F.size("there") < F.size("directories")) | (F.col("contents") > 1))
    missing = F.array_except("directories", "there")
    is_missing = F.size(missing) > 0
    return found(
        differ.withColumn("directory", F.when(is_missing, missing[0])),
        "replicas differ",
        F.when(is_missing, "the batch is not in this replica").otherwise("the batches are not the same"),
    )


def keys(records: "DataFrame", logs: "DataFrame") -> "DataFrame":
    """In all replicas of a compacted topic, each key has the same newest record below the high watermark.

    `records` are those of compacted topics, of all replicas, and committed: the cleaner of one replica may have removed
    what was aborted, and that of another not yet.
    """
    newest = (
        with_replicas(records, logs)
        .where("offset >= low and offset < high")
        .groupBy(*LOG, "key", "directories")
        .agg(F.max(F.struct("offset", F.col("value").isNull().alias("is_tombstone"))).alias("newest"))
        .groupBy(*TOPIC_PARTITION, "key", "directories")
        .agg(
            F.max("newest").alias("newest"),
            F.max_by("directory", "newest").alias("other"),
            F.collect_list(F.struct("directory", "newest.offset")).alias("replicas"),
        )
    )
    have = F.transform(
        F.filter("replicas", lambda one: one.offset == F.col("newest.offset")), lambda one: one.directory
    )
    missing = F.array_except("directories", have)
    lost = newest.where((F.size(missing) > 0) & ~F.col("newest.is_tombstone"))
    detail = F.format_string("another replica (%s) has it", F.col("other"))
    return found(
        lost.select(*TOPIC_PARTITION, missing[0].alias("directory"), "newest.offset", "other"),
        "key was lost",
        detail,
        "offset",
    )
