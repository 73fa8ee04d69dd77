"""`offsets`: every commit that ever was, by day, and what was committed at any time.

`history` has the columns of `barnabas.commits` and:

| column | type | meaning |
| --- | --- | --- |
| `day` | date | the day of `log_timestamp`, in UTC |

`newest` has of each group, topic and partition the newest of these rows: what is committed, if that is no tombstone.
An offset whose expiry time has passed counts until its tombstone is written, as in the broker.

A commit counts when its transaction is committed. If a run comes so late that a commit and its tombstone may both have
been compacted away (`delete.retention.ms`), it compares what the history says with the log. What the log does not have
any more gets a tombstone of the run's own: its `log_timestamp` is the time of the run, its `log_offset` the last one
that was read, and it has neither a producer nor an epoch.
"""

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP_PARTITION = ("group_id", "topic", "partition")


def history(commits: "DataFrame") -> "DataFrame":
    """Every commit, with its day."""
    return commits.withColumn("day", F.to_date("log_timestamp"))


def newest(history: "DataFrame", at: datetime | None = None) -> "DataFrame":
    """The newest row of each group for a partition at that time (None: in the end).

    All commits of a group lie in one partition of `__consumer_offsets`, so of two the one with the higher log offset is
    newer, whatever their timestamps say. Only numbers are aggregated, so Spark keeps them in hash tables, and need not
    sort all commits.
    """
    if at is not None:
        history = history.where((F.col("log_timestamp") <= at) & (F.col("day") <= F.to_date(F.lit(at))))
    numbers = ("log_partition", "offset", "log_timestamp", "is_tombstone")
    found = (F.max_by(name, "log_offset").alias(name) for name in numbers)
    return history.groupBy(*GROUP_PARTITION).agg(F.max("log_offset").alias("log_offset"), *found)
