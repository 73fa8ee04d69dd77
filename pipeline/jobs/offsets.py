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
    values = [name for name in history.columns if name not in (*GROUP_PARTITION, "day")]
    newest = F.max_by(F.struct(*values), "log_offset").alias("newest")
    return (
        history.groupBy(*GROUP_PARTITION)
        .agg(newest)
        .where(~F.col("newest.is_tombstone"))
        .select(*GROUP_PARTITION, "newest.*")
    )
