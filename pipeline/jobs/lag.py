"""`lag`: how far behind each group was, at the end of every minute (or other window) since its first commit.

| column | type | meaning |
| --- | --- | --- |
| `at` | timestamp | the end of the window; what follows was so at that time |
| `group_id`, `topic`, `partition` | string, string, int | who reads what |
| `committed_offset` | bigint | the committed offset |
| `log_end_offset` | bigint | the offset of the next record; null: nothing is known of the topic's log |
| `lag_records` | bigint | the offsets between the two: so many records at most |
| `lag_seconds` | double | how old the first of them was; 0: there is none. Within a batch, times are taken as even; a record from the future is 0 seconds old |
| `consumed_per_second` | double | by how much the committed offset grew in the window, a second |
| `produced_per_second` | double | the same of the log |

A partition whose offset was removed (expired or deleted) has no rows until the next commit. In the first window after
that, and in the very first one, the rates are null. Records whose time cannot be right (it is in the future, or there is
none) count from the last window on, or from the next record with a time.

A broker counts what a consumer would be given now (`barnabas groups lag`, `/v1/groups/{group}/lag`). Both say the same of
a log whose offsets all have records. Else this job says more, because it must say the same of a time today and after the
next compaction: it also counts markers of transactions, records of aborted ones, what compaction took, and what was
deleted before it was read. `lag_seconds` may be that of a marker; and within a batch it is exact only where the broker
reads the record. Of an offset behind the end of the log this job says 0, and the broker that it is not known. Topics are
known by their names here: of one that was made again, the broker says so, and this job compares with the new one.
"""  # noqa: E501

from typing import TYPE_CHECKING

from barnabas.pipeline.as_of import at_each_end, end_of_window, is_no_future, join_latest, join_next
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from barnabas.pipeline.schemas import DOUBLE, INT, LONG, STRING, TIME, struct
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOPIC_PARTITION = ("topic", "partition")
EVERY_S = 60
COLUMNS = struct(
    at=TIME,
    group_id=STRING,
    topic=STRING,
    partition=INT,
    committed_offset=LONG,
    log_end_offset=LONG,
    lag_records=LONG,
    lag_seconds=DOUBLE,
    consumed_per_second=DOUBLE,
    produced_per_second=DOUBLE,
)
RATES = {"consumed_per_second": "committed_offset", "produced_per_second": "log_end_offset"}


def lag(commits: "DataFrame", batches: "DataFrame", every_s: int = EVERY_S) -> "DataFrame":
    """The lag at the end of every window, from the commits and the batches of the topics."""
    batches = batches.where(F.col("error").isNull())
    until = last_end(commits, batches, every_s)
    offsets = commits.select(*GROUP_PARTITION, "log_timestamp", "log_offset", F.col("offset").alias("committed_offset"))
    rows = at_each_end(offsets, GROUP_PARTITION, until, every_s).where(F.col("committed_offset").isNotNull())
    rows = join_latest(rows, log_ends(arrived(batches, until)), TOPIC_PARTITION, "at")
    rows = with_seconds_behind(rows, batches)
    unread = F.col("log_end_offset") - F.col("committed_offset")
    return rows.select(
        "at",
        *GROUP_PARTITION,
        "committed_offset",
        "log_end_offset",
        F.when(F.col("log_end_offset").isNotNull(), F.greatest(F.lit(0), unread)).alias("lag_records"),
        "lag_seconds",
        *(column.alias(rate) for rate, column in rates(every_s).items()),
    )


def rates(every_s: int) -> "dict[str, Column]":
    """The two rates, of rows in which the window before is there, too."""
    in_order = Window.partitionBy(*GROUP_PARTITION).orderBy(F.unix_seconds("at"))
    before = in_order.rangeBetween(-every_s, -every_s)
    return {rate: (F.col(name) - F.first(name).over(before)) / every_s for rate, name in RATES.items()}


def last_end(commits: "DataFrame", batches: "DataFrame", every_s: int) -> "DataFrame":
    """One row: the end of the last window in which something happened."""
    times = commits.select("log_timestamp").union(batches.select("max_timestamp")).where(is_no_future("log_timestamp"))
    return times.agg(F.max(end_of_window("log_timestamp", every_s)).alias("last_end"))


def arrived(batches: "DataFrame", until: "DataFrame") -> "DataFrame":
    """The batches with `arrived`: when they were written, as far as their times say. The others were there in the end:
    a time in the future cannot be right, and some clients write none."""
    end = F.col("last_end") - F.make_dt_interval(secs=F.lit(0.001))
    at = F.when(is_no_future("max_timestamp"), F.col("max_timestamp")).otherwise(end)
    return batches.crossJoin(F.broadcast(until)).withColumn("arrived", at).drop("last_end")


def log_ends(batches: "DataFrame") -> "DataFrame":
    """From which time on a log was how long. Records count from the moment after their time, as windows end."""
    at = F.col("arrived") + F.make_dt_interval(secs=F.lit(0.001))
    return batches.select(*TOPIC_PARTITION, at.alias("at"), (F.col("last_offset") + 1).alias("log_end_offset"))


def with_seconds_behind(rows: "DataFrame", batches: "DataFrame") -> "DataFrame":
    """Add `lag_seconds`: the age of the first record that is not consumed."""
    spans = batches.select(
        *TOPIC_PARTITION,
        F.col("last_offset").alias("committed_offset"),  # the first batch that does not end below this
        *("last_offset", "base_offset", "base_timestamp", "max_timestamp"),
    )
    last = F.unix_millis("max_timestamp")
    base = F.coalesce(F.unix_millis("base_timestamp"), last)
    into = F.greatest(F.lit(0), F.col("committed_offset") - F.col("base_offset"))
    length = F.greatest(F.lit(1), F.col("last_offset") - F.col("base_offset"))
    produced = base + (last - base) * into / length
    seconds = F.greatest(F.lit(0.0), (F.unix_millis("at") - produced) / 1000)
    is_behind = F.col("log_end_offset") > F.col("committed_offset")  # null where nothing is known of the log
    return join_next(rows, spans, TOPIC_PARTITION, "committed_offset").withColumn(
        "lag_seconds", F.when(is_behind, seconds).when(~is_behind, 0.0)
    )
