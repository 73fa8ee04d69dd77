"""`audit`: what a group's commits say that should not be: records read twice, or never, or by the wrong member.

| column | type | meaning |
| --- | --- | --- |
| `at` | timestamp | when it was committed |
| `group_id`, `topic`, `partition` | string, string, int | by whom, of what |
| `finding` | string | see below |
| `from_offset`, `to_offset` | bigint | from where to where the offset went, or the range that was read twice |
| `records` | bigint | how many records lie between the two |
| `log_partition`, `log_offset` | int, bigint | the commit's place in `__consumer_offsets` |

The findings:

- `jumped back`: the offset is smaller than before.
- `read twice`: after a jump back, the group went over the same records again. One row for each jump, at the last commit
  before the next one.
- `skipped`: the offset went forward without reading: it was set while the group had no members, or it had been removed
  (deleted, expired), and the group began further ahead.
- `past the end`: the offset is larger than the log's end was. A batch counts from the time of its first record, which a
  producer's clock says, so the log's end is taken `clocks_differ_s` later than the commit.
- `old generation`: the group had members, and its newest generation gave the partition to none of them, but an older
  one did. So the commit came from a member of an older generation, or from a client outside of the group. (A commit
  does not say who made it. One of an old member for a partition that has another owner now is not told apart.)
- `not assigned`: the same, and no generation before gave the partition to a member.

Where nothing says who owned a partition, these two find nothing: members have assignments that cannot be read, or the
group is one of KIP-848.
"""

from typing import TYPE_CHECKING

from barnabas.pipeline.as_of import is_no_future, join_latest
from barnabas.pipeline.jobs.lag import TOPIC_PARTITION, log_ends
from barnabas.pipeline.jobs.members import memberships
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CLOCKS_DIFFER_S = 60


def audit(
    commits: "DataFrame", groups: "DataFrame", batches: "DataFrame", clocks_differ_s: float = CLOCKS_DIFFER_S
) -> "DataFrame":
    """Everything that was found."""
    steps = with_generation(steps_of(commits), groups)
    went_on_without_reading = F.col("was_removed") | (F.col("members") == 0)
    findings = [
        found(steps.where("offset < previous"), "jumped back"),
        found(read_twice(steps), "read twice"),
        found(steps.where((F.col("offset") > F.col("previous")) & went_on_without_reading), "skipped"),
        found(past_the_end(steps, batches, clocks_differ_s), "past the end"),
        *not_assigned(steps, groups),
    ]
    result = findings[0]
    for more in findings[1:]:
        result = result.unionByName(more)
    return result


def found(rows: "DataFrame", finding: str) -> "DataFrame":
    """The rows in the columns of the result."""
    return rows.select(
        F.col("log_timestamp").alias("at"),
        *GROUP_PARTITION,
        F.lit(finding).alias("finding"),
        F.col("previous").alias("from_offset"),
        F.col("offset").alias("to_offset"),
        F.abs(F.col("offset") - F.col("previous")).alias("records"),
        "log_partition",
        "log_offset",
    )


def steps_of(commits: "DataFrame") -> "DataFrame":
    """Each commit with the one before it.

    `previous`: its offset. `furthest`: the largest offset ever before. `was_removed`: a tombstone lies between.
    `jumps`: how many jumps back there were, with this one.
    """
    in_order = Window.partitionBy(*GROUP_PARTITION).orderBy("log_offset")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    columns = (*GROUP_PARTITION, "offset", "is_tombstone", "log_timestamp", "log_partition", "log_offset")
    return (
        commits.select(*columns)
        .withColumn("was_removed", F.coalesce(F.lag("is_tombstone").over(in_order), F.lit(False)))
        .withColumn("previous", F.last("offset", ignorenulls=True).over(before))
        .withColumn("furthest", F.max("offset").over(before))
        .withColumn("jumps", F.sum((F.col("offset") < F.col("previous")).cast("int")).over(in_order))
        .where(~F.col("is_tombstone"))
    )


def with_generation(steps: "DataFrame", groups: "DataFrame") -> "DataFrame":
    """Add how many members the group had, and which record says so; nulls if there was no record of the group."""
    generations = memberships(groups).select(
        "group_id", "log_offset", F.col("log_offset").alias("generation_offset"), "members", "are_owners_known"
    )
    return join_latest(steps, generations, ["group_id"], "log_offset")


def read_twice(steps: "DataFrame") -> "DataFrame":
    """One row for each jump back that was followed by reading: the range that was read again."""
    again = F.col("previous") < F.least("offset", "furthest")
    newest = Window.partitionBy(*GROUP_PARTITION, "jumps").orderBy(F.col("log_offset").desc())
    whole = newest.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return (
        steps.where(again)
        .withColumn("offset", F.max(F.least("offset", "furthest")).over(whole))
        .withColumn("previous", F.min("previous").over(whole))
        .withColumn("number", F.row_number().over(newest))
        .where("number = 1")
    )


def past_the_end(steps: "DataFrame", batches: "DataFrame", clocks_differ_s: float) -> "DataFrame":
    """The commits above the log's end; `previous` is that end."""
    good = batches.where(F.col("error").isNull())
    begun = F.when(is_no_future("base_timestamp"), F.col("base_timestamp"))  # null: it may always have been there
    ends = log_ends(good.withColumn("arrived", begun))
    later = F.col("log_timestamp") + F.make_dt_interval(secs=F.lit(clocks_differ_s + 0.001))
    at_end = join_latest(steps.withColumn("at", later), ends, TOPIC_PARTITION, "at")
    return at_end.where("offset > log_end_offset").withColumn("previous", F.col("log_end_offset"))


def not_assigned(steps: "DataFrame", groups: "DataFrame") -> "list[DataFrame]":
    """The commits of partitions that belonged to no member."""
    assigned = (
        groups.where("record_type = 'GroupMetadata'")
        .select("group_id", F.col("log_offset").alias("generation_offset"), F.explode("members.assigned").alias("of"))
        .select("group_id", "generation_offset", F.explode("of").alias("of"))
        .select("group_id", "generation_offset", "of.topic", F.explode("of.partitions").alias("partition"))
    )
    keys = ["group_id", "generation_offset", *TOPIC_PARTITION]
    since = assigned.groupBy(*GROUP_PARTITION).agg(F.min("generation_offset").alias("since"))
    strays = (
        steps.where("members > 0 and are_owners_known")
        .join(assigned, keys, "left_anti")
        .join(since, [*GROUP_PARTITION], "left")
    )
    was_assigned = F.coalesce(F.col("since") < F.col("log_offset"), F.lit(False))
    return [found(strays.where(was_assigned), "old generation"), found(strays.where(~was_assigned), "not assigned")]
