"""`leaders`, a table of `health`: when partitions got another leader. One row for each change of a leader epoch.

| column | type | meaning |
| --- | --- | --- |
| `at` | timestamp | the time of the first batch of the new leader: it led since then, or for a while already |
| `topic`, `partition` | string, int | of which partition |
| `leader_epoch`, `before` | int | the epoch of that batch, and the one before it |
| `base_offset` | bigint | where the batch begins |

Many partitions at one time: a broker died or was stopped. A batch does not say which broker wrote it. With the first
epoch that a log has, nothing changes.
"""

from typing import TYPE_CHECKING

from barnabas.pipeline.as_of import is_no_future
from barnabas.pipeline.jobs.lag import TOPIC_PARTITION
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def leaders(batches: "DataFrame") -> "DataFrame":
    """Every change of a leader epoch whose time can be right."""
    begun = F.coalesce("base_timestamp", "max_timestamp")
    of_epoch = (
        batches.where("error is null and leader_epoch is not null")
        .groupBy(*TOPIC_PARTITION, "leader_epoch")
        .agg(F.min(F.struct("base_offset", begun.alias("at"))).alias("first"))
    )
    before = F.lag("leader_epoch").over(Window.partitionBy(*TOPIC_PARTITION).orderBy("leader_epoch"))
    changes = of_epoch.withColumn("before", before).where("before is not null")
    rows = changes.select("first.at", *TOPIC_PARTITION, "leader_epoch", "before", "first.base_offset")
    return rows.where(is_no_future("at"))
