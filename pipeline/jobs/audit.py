"""`audit`: what a group's commits say that should not be: records read twice, or never, or by the wrong member.

| column | type | meaning |
| --- | --- | --- |
| `at` | timestamp | when it was committed |
| `group_id`, `topic`, `partition` | string, string, int | by whom, of what |
| `finding` | string | see below |
| `from_offset`, `to_offset` | bigint | from where to where the offset went, or the range that was read twice |
| `records` | bigint | how many records lie between the two |
| `log_partition`, `log_offset` | int, bigint | the commit's place in `__consumer_offsets` |
| `cause` | string | why: `commit`, `reset`, `live reset`, `expiry`, … as in `barnabas.journal` |
| `client_id`, `host`, `principal` | string | who did it; null: the broker itself |
| `member_id`, `generation` | string, int | the member that committed; null: no member did |

The last six are what the offset journal says (`offsets.journal.enable`). They are null without it, and of what is older
than it, in one of its gaps, or in a transaction. With it, commits that compaction has taken are looked at, too.

The findings:

- `jumped back`: the offset is smaller than before.
- `read twice`: after a jump back, the group went over the same records again. One row for each jump, at the last commit
  before the next one.
- `skipped`: the offset went forward without reading: it was set while the group had no members, or it had been removed
  (deleted, expired), and the group began further ahead. By the journal also: an admin set it while there were members.
- `set`: an admin set an offset where there was none before. Only by the journal.
- `removed`: the offset was deleted, has expired, or went with its topic. Only by the journal.
- `past the end`: the offset is larger than the log's end was. A batch counts from the time of its first record, which a
  producer's clock says, so the log's end is taken `clocks_differ_s` later than the commit.
- `old generation`: the group had members, and its newest generation gave the partition to none of them, but an older
  one did. So the commit came from a member of an older generation, or from a client outside of the group. (A commit
  does not say who made it. Without the journal, one of an old member for a partition that has another owner now is not
  told apart.)
- `not assigned`: the same, and no generation before gave the partition to a member. By the journal also: the newest
  generation gave it to another member than the one that committed.

Where nothing says who owned a partition, these two find nothing: members have assignments that cannot be read, or the
group is one of KIP-848.
"""

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from barnabas.pipeline.as_of import is_no_future, join_latest
from barnabas.pipeline.jobs.changes import PLACE, WHO, with_changes
from barnabas.pipeline.jobs.lag import TOPIC_PARTITION, log_ends
from barnabas.pipeline.jobs.members import memberships
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CLOCKS_DIFFER_S = 60
IS_RESET = "coalesce(cause in ('reset', 'live reset'), false)"


def audit(
    commits: "DataFrame",
    groups: "DataFrame",
    batches: "DataFrame",
    clocks_differ_s: float = CLOCKS_DIFFER_S,
    journal: "DataFrame | None" = None,
    keep: "Callable[[DataFrame], DataFrame]" = lambda rows: rows,
) -> "DataFrame":
    """Everything that was found. `journal`: the table `barnabas.journal`, if there is one.

    `keep`: how to keep rows of which each finding is a look; else each of them is computed from all commits again.
    """
    history = keep(steps_of(with_changes(commits, journal)))
    steps = keep(with_generation(history.where("not is_tombstone"), groups))
    had_no_members = (F.col("members") == 0) & ~F.col("cause").eqNullSafe("commit")
    went_on_without_reading = F.col("was_removed") | F.expr(IS_RESET) | had_no_members
    findings = [
        found(steps.where("offset < previous"), "jumped back"),
        found(read_twice(steps), "read twice"),
        found(steps.where((F.col("offset") > F.col("previous")) & went_on_without_reading), "skipped"),
        found(past_the_end(steps, batches, clocks_differ_s), "past the end"),
        *not_assigned(steps, groups),
    ]
    if journal is not None:
        findings += [
            found(steps.where(f"previous is null and {IS_RESET}"), "set"),
            found(history.where("is_tombstone and cause is not null"), "removed"),
        ]
    return reduce(lambda one, other: one.unionByName(other), findings)


def found(rows: "DataFrame", finding: str) -> "DataFrame":
    """The rows in the columns of the result."""
    return rows.select(
        F.col("log_timestamp").alias("at"),
        *GROUP_PARTITION,
        F.lit(finding).alias("finding"),
        F.col("previous").alias("from_offset"),
        F.col("offset").alias("to_offset"),
        F.abs(F.col("offset") - F.col("previous")).alias("records"),
        *PLACE,
        *WHO,
    )


def steps_of(commits: "DataFrame") -> "DataFrame":
    """Each commit and each removal with the commit before it.

    `previous`: its offset. `furthest`: the largest offset ever before. `was_removed`: a tombstone lies between.
    `jumps`: how many jumps back there were, with this one.
    """
    in_order = Window.partitionBy(*GROUP_PARTITION).orderBy("log_offset")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    return (
        commits.withColumn("was_removed", F.coalesce(F.lag("is_tombstone").over(in_order), F.lit(False)))
        .withColumn("previous", F.coalesce("old_offset", F.last("offset", ignorenulls=True).over(before)))
        .withColumn("furthest", F.greatest(F.max("previous").over(in_order), F.max("offset").over(before)))
        .withColumn("jumps", F.sum((F.col("offset") < F.col("previous")).cast("int")).over(in_order))
    )


def with_generation(steps: "DataFrame", groups: "DataFrame") -> "DataFrame":
    """Add how many members the group had, and which record says so; nulls if there was no record of the group."""
    generations = memberships(groups).select(
        "group_id", "log_offset", F.col("log_offset").alias("generation_offset"), "members", "are_owners_known"
    )
    return join_latest(steps, generations, ["group_id"], "log_offset")


def read_twice(steps: "DataFrame") -> "DataFrame":
    """One row for each jump back that was followed by reading: the range that was read again."""
    again = (F.col("previous") < F.least("offset", "furthest")) & ~F.expr(IS_RESET)
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
    """The commits of partitions that belonged to no member, or to another one than the one that committed."""
    keys = ["group_id", "generation_offset", *TOPIC_PARTITION]
    assigned = (
        groups.where("record_type = 'GroupMetadata'")
        .select("group_id", F.col("log_offset").alias("generation_offset"), F.explode("members").alias("member"))
        .select("group_id", "generation_offset", "member.member_id", F.explode("member.assigned").alias("of"))
        .select("group_id", "generation_offset", "member_id", "of.topic", F.explode("of.partitions").alias("partition"))
        .groupBy(*keys)
        .agg(F.collect_set("member_id").alias("owners"))
    )
    since = assigned.groupBy(*GROUP_PARTITION).agg(F.min("generation_offset").alias("since"))
    is_of_another = F.col("owners").isNotNull()
    is_stray = ~is_of_another | ~F.array_contains("owners", F.col("member_id"))
    strays = (
        steps.where(f"members > 0 and are_owners_known and not {IS_RESET}")
        .join(assigned, keys, "left")
        .where(is_stray)
        .join(since, [*GROUP_PARTITION], "left")
    )
    was_assigned = ~is_of_another & F.coalesce(F.col("since") < F.col("log_offset"), F.lit(False))
    return [found(strays.where(was_assigned), "old generation"), found(strays.where(~was_assigned), "not assigned")]
