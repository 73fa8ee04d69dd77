"""`capacity`: how topics and groups grow, what retention will take, when disks are full, and where the load is uneven.

`growth`, one row for each day and each topic or group:

| column | type | meaning |
| --- | --- | --- |
| `day` | date | the day of the records, in UTC; null: their time is in the future, or there is none |
| `kind`, `name` | string | `topic` and its name, or `group` and its id |
| `records`, `bytes` | bigint | what was written that day and is still there (of a group: its commits; bytes are null) |

`topics`, one row for each topic:

| column | type | meaning |
| --- | --- | --- |
| `topic`, `partitions` | string, int | the topic, and how many partitions it has, also without records |
| `records`, `bytes` | bigint | what is there, of one replica |
| `bytes_per_day` | double | growth, from its first record to the newest one of all topics; null if that is no time |
| `largest_share` | double | the share of the largest partition, as a multiple of an even one: 1 is even |
| `retention_takes_bytes` | bigint | what `retention_ms` removes, if nothing else is written; null: it removes nothing |
| `retention_keeps_bytes` | double | how large it will be when it grows no more, at this growth; null: it always grows |

Internal topics are there, too, because disks fill with them. They are compacted, so retention removes nothing of them.

`keys`, the keys with the most records of each partition:

| column | type | meaning |
| --- | --- | --- |
| `topic`, `partition`, `key` | string, int, binary | the key |
| `records`, `share` | bigint, double | how many records have it, and which share of the partition's that is |
"""

from datetime import datetime
from typing import TYPE_CHECKING

from barnabas.pipeline.as_of import is_no_future
from barnabas.pipeline.jobs.lag import TOPIC_PARTITION
from barnabas.pipeline.jobs.verify import COMPACTED
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DAY_S = 24 * 3600
THOUSAND_YEARS_DAYS = 365_250
KEYS = 5  # of each partition


def growth(batches: "DataFrame", commits: "DataFrame") -> "DataFrame":
    """What was written on each day."""
    topics = readable(batches).groupBy(
        F.to_date(right("max_timestamp")).alias("day"), F.lit("topic").alias("kind"), F.col("topic").alias("name")
    )
    groups = commits.groupBy(
        F.to_date(right("log_timestamp")).alias("day"), F.lit("group").alias("kind"), F.col("group_id").alias("name")
    )
    return topics.agg(F.sum("record_count").alias("records"), F.sum("size_bytes").alias("bytes")).unionByName(
        groups.agg(F.count("*").alias("records"), F.lit(None).cast("bigint").alias("bytes"))
    )


def topics(
    batches: "DataFrame", now: datetime, retention_ms: int | None = None, counts: "DataFrame | None" = None
) -> "DataFrame":
    """The size of each topic, how it grows, and what retention does to it.

    `counts`: how many `partitions` each `topic` has. Without it only those up to the last one with records are known.
    """
    rows = readable(batches)
    newest = rows.agg(F.unix_millis(F.max(right("max_timestamp"))).alias("newest"))
    rows = rows.crossJoin(F.broadcast(newest))
    by_partition = rows.groupBy(*TOPIC_PARTITION).agg(F.sum("size_bytes").alias("bytes"))
    largest = by_partition.groupBy("topic").agg(
        *(F.max("bytes").alias("most"), F.sum("bytes").alias("all"), (F.max("partition") + 1).alias("known"))
    )
    if counts is None:
        largest = largest.withColumn("partitions", F.lit(None).cast("int"))
    else:
        largest = largest.join(F.broadcast(counts), "topic", "left")
    largest = largest.withColumn("partitions", F.greatest("known", "partitions"))
    largest = largest.withColumn("largest_share", F.col("most") * F.col("partitions") / F.col("all"))
    first = F.least(right("base_timestamp"), right("max_timestamp"))
    span_days = (F.max("newest") - F.unix_millis(F.min(first))) / (1000 * DAY_S)
    kept_since_ms = now.timestamp() * 1000 - (retention_ms or 0)
    sizes = rows.groupBy("topic").agg(
        F.sum("record_count").alias("records"),
        F.sum("size_bytes").alias("bytes"),
        (F.sum("size_bytes") / F.nullif(span_days, F.lit(0.0))).alias("bytes_per_day"),
        F.sum(F.when(F.unix_millis("max_timestamp") < kept_since_ms, F.col("size_bytes")).otherwise(0)).alias("old"),
    )
    keeps = F.col("bytes_per_day") * ((retention_ms or 0) / (1000 * DAY_S))
    has_retention = F.lit(retention_ms is not None) & ~F.col("topic").isin(*COMPACTED)
    return sizes.join(largest, "topic").select(
        *("topic", "partitions", "records", "bytes", "bytes_per_day", "largest_share"),
        F.when(has_retention, F.col("old")).alias("retention_takes_bytes"),
        F.when(has_retention, keeps).alias("retention_keeps_bytes"),
    )


def full_at(topics: "DataFrame", free_bytes: int, replicas: int, now: datetime) -> "DataFrame":
    """One row: when disks with so many free bytes in all are full, if everything goes on like this; null: never, or not
    within a thousand years.

    Columns: `free_bytes` bigint, `bytes_per_day` double (of all replicas), `full_at` timestamp.
    """
    grows = F.coalesce(F.sum("bytes_per_day"), F.lit(0.0)) * replicas
    days = free_bytes / F.nullif(grows, F.lit(0.0))
    full_at = F.timestamp_millis((now.timestamp() * 1000 + days * (1000 * DAY_S)).cast("bigint"))
    return topics.agg(
        F.lit(free_bytes).cast("bigint").alias("free_bytes"),
        grows.alias("bytes_per_day"),
        F.when(days < THOUSAND_YEARS_DAYS, full_at).alias("full_at"),
    )


def keys(records: "DataFrame", most: int = KEYS) -> "DataFrame":
    """The keys with the most records, and their share of all records, also of those without a key."""
    counted = records.groupBy(*TOPIC_PARTITION, "key").agg(F.count("*").alias("records"))
    partition = Window.partitionBy(*TOPIC_PARTITION)
    counted = counted.withColumn("share", F.col("records") / F.sum("records").over(partition))
    rank = F.row_number().over(partition.orderBy(F.col("records").desc(), "key"))
    return counted.where("key is not null").withColumn("rank", rank).where(F.col("rank") <= most).drop("rank")


def right(time: str) -> "Column":
    """The time, if it can be right."""
    return F.when(is_no_future(time), F.col(time))


def readable(batches: "DataFrame") -> "DataFrame":
    """The batches that hold records of producers."""
    return batches.where(F.col("error").isNull() & ~F.coalesce("is_control", F.lit(False)))
