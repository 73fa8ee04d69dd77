"""`offsets`: every commit that ever was, by day, and what was committed at any time.

`history` has the columns of `barnabas.commits` and:

| column | type | meaning |
| --- | --- | --- |
| `day` | date | the day of `log_timestamp`, in UTC |

`committed` has of each group, topic and partition the newest of these rows, if that is no tombstone. An offset whose
expiry time has passed counts until its tombstone is written, as in the broker.
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


def committed(history: "DataFrame", at: datetime | None = None) -> "DataFrame":
    """What was committed at that time (None: in the end).

    All commits of a group lie in one partition of `__consumer_offsets`, so of two the one with the higher log offset is
    newer, whatever their timestamps say.
    """
    if at is not None:
        history = history.where((F.col("log_timestamp") <= at) & (F.col("day") <= F.to_date(F.lit(at))))
    # Only numbers are aggregated, so Spark keeps them in hash tables, and need not sort all commits.
    newest = history.groupBy(*GROUP_PARTITION).agg(
        F.max_by("log_partition", "log_offset").alias("log_partition"), F.max("log_offset").alias("log_offset")
    )
    rows = history.join(newest.select("log_partition", "log_offset"), ["log_partition", "log_offset"], "left_semi")
    return rows.where(~F.col("is_tombstone")).drop("day")
