"""`health`: when each group was well, and when it was not. One row for each change.

| column | type | meaning |
| --- | --- | --- |
| `at` | timestamp | the end of the minute (or other window) from which on it was so |
| `group_id` | string | the group |
| `topic`, `partition` | string, int | of which partition; null: of the group |
| `check` | string | `reading`, `expiry`, `rebalances` or `commits` |
| `status` | string | see below |
| `before` | string | the status until then; null: this is the first one |
| `committed_offset`, `log_end_offset`, `lag_records` | bigint | at that time, of `reading` |

`reading` looks at the last ten commits of a partition. What a group does is compared with what it did. The rules are
those of Burrow, which need no threshold, and one more that does: a group that reads steadily but is hours behind is OK to
Burrow. The first one that holds counts:

| status | if |
| --- | --- |
| `REMOVED` | there is no committed offset any more |
| `OK` | nothing is unread |
| `STOP` | the last commit is longer ago than the time that these commits span (of a single commit: than ten minutes) |
| `REWIND` | an offset was smaller than the one before it (in Burrow only if something was unread at each of these commits, which is never so when a group rewinds from the end) |
| `STALL` | all these commits have the same offset, and records were unread at each of them |
| `WARN` | the offset grows, records were unread at each of these commits, and the lag never became smaller |
| `BEHIND` | the first unread record is older than `behind_s` |
| `OK` | else |

STALL and WARN compare commits, so they need at least two.

`expiry` is `EXPIRES_SOON` if the broker will remove the offset within `soon_s`: the expiry time of the commit, else
`retention_s` after the group became empty, or after the commit if there never was a member. (In groups of KIP-848,
which do not say since when they are empty, it is always the commit.) A group with members keeps its offsets, whichever
protocol they speak (see `members.py`). `rebalances` is `STORM` if the group began more generations (epochs of KIP-848)
in the last ten minutes than two for each of its members (a rolling restart makes two). Its first record, with generation 0, begins none, and nor does one that is written
again because a static member came back. `commits` is `NEVER` if it has had members for ten minutes, and never committed.

`generations`, one row for each generation of a group:

| column | type | meaning |
| --- | --- | --- |
| `at` | timestamp | when it began |
| `group_id`, `generation` | string, int | the group, and the generation's number (epoch in the protocol of KIP-848) |
| `members` | int | how many members it has; null: the record does not say (KIP-848) |

`leaders` is a third table: when partitions got other leaders (see `leaders.py`).
"""  # noqa: E501

from functools import reduce
from typing import TYPE_CHECKING

from barnabas.pipeline.as_of import at_each_end, end_of_window, join_latest
from barnabas.pipeline.jobs.lag import EVERY_S, TOPIC_PARTITION, arrived, last_end, log_ends, with_seconds_behind
from barnabas.pipeline.jobs.members import OF_GROUPS, memberships
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COMMITS = 10  # of a partition, that are looked at
MINUTES = 10  # of a group, that are looked at
BEHIND_S = 3600
RETENTION_S = 7 * 24 * 3600  # offsets.retention.minutes
SOON_S = 24 * 3600
RESULT = (
    "at timestamp, group_id string, topic string, partition int, check string, status string, before string, "
    "committed_offset bigint, log_end_offset bigint, lag_records bigint"
)


def health(
    commits: "DataFrame",
    groups: "DataFrame",
    batches: "DataFrame",
    every_s: int = EVERY_S,
    retention_s: int = RETENTION_S,
    soon_s: int = SOON_S,
    behind_s: int = BEHIND_S,
) -> "DataFrame":
    """Every change of every status."""
    batches = batches.where(F.col("error").isNull())
    groups = memberships(groups)
    until = last_end(commits, batches, every_s)
    checks = [
        reading(commits, batches, until, every_s, behind_s),
        expiry(commits, groups, until, every_s, retention_s, soon_s),
        rebalances(groups, until, every_s),
        never_commits(commits, groups, until, every_s),
    ]
    return reduce(lambda one, other: one.unionByName(other), checks)


# ------------------------------------------------------------ reading


def reading(commits: "DataFrame", batches: "DataFrame", until: "DataFrame", every_s: int, behind_s: int) -> "DataFrame":
    """Changes of how each partition is read."""
    batches = arrived(batches, until)
    rows = at_each_end(last_commits(commits, batches), GROUP_PARTITION, until, every_s)
    rows = join_latest(rows, log_ends(batches), TOPIC_PARTITION, "at")
    rows = with_seconds_behind(rows, batches)
    rows = rows.withColumn("lag_records", unread("log_end_offset", "committed_offset"))
    first, last = F.unix_millis("first_commit"), F.unix_millis("last_commit")
    span_ms = F.when(F.col("commits") == 1, MINUTES * 60_000).otherwise(last - first)
    always_behind = (F.col("smallest_lag") > 0) & (F.col("commits") > 1)
    status = (
        F.when(F.col("committed_offset").isNull(), "REMOVED")
        .when(F.coalesce("lag_records", F.lit(0)) == 0, "OK")
        .when(F.unix_millis("at") - last > span_ms, "STOP")
        .when(F.col("went_back"), "REWIND")
        .when(always_behind & F.col("is_same_offset"), "STALL")
        .when(always_behind & ~F.col("lag_shrank"), "WARN")
        .when(F.col("lag_seconds") > behind_s, "BEHIND")
        .otherwise("OK")
    )
    return changes(rows.withColumn("status", status), "reading")


def last_commits(commits: "DataFrame", batches: "DataFrame") -> "DataFrame":
    """Each commit with what its window of the last ten commits says. A tombstone begins a new window."""
    of_partition = Window.partitionBy(*GROUP_PARTITION).orderBy("log_offset")
    in_order = Window.partitionBy(*GROUP_PARTITION, "life").orderBy("log_offset")
    window = in_order.rowsBetween(1 - COMMITS, 0)
    steps = in_order.rowsBetween(2 - COMMITS, 0)  # a step is from a commit of the window to the next one
    columns = (*GROUP_PARTITION, "offset", "is_tombstone", "log_timestamp", "log_offset")
    at = F.col("log_timestamp") + F.make_dt_interval(secs=F.lit(0.001))
    rows = join_latest(
        commits.select(*columns).withColumn("at", at), log_ends(batches), TOPIC_PARTITION, "at"
    ).withColumn("lag", F.coalesce(unread("log_end_offset", "offset"), F.lit(0)))
    removals = F.sum(F.col("is_tombstone").cast("int")).over(of_partition)
    rows = rows.withColumn("life", F.when(F.col("is_tombstone"), -1).otherwise(removals))
    went_back = F.coalesce(F.col("offset") < F.lag("offset").over(in_order), F.lit(False))
    lag_shrank = F.coalesce(F.col("lag") < F.lag("lag").over(in_order), F.lit(False))
    rows = rows.withColumns({"step_back": went_back, "step_shrank": lag_shrank})
    return rows.select(
        *GROUP_PARTITION,
        "log_timestamp",
        "log_offset",
        F.col("offset").alias("committed_offset"),
        F.count("*").over(window).alias("commits"),
        F.first("log_timestamp").over(window).alias("first_commit"),
        F.col("log_timestamp").alias("last_commit"),
        F.max("step_back").over(steps).alias("went_back"),
        F.min("lag").over(window).alias("smallest_lag"),
        (F.min("offset").over(window) == F.max("offset").over(window)).alias("is_same_offset"),
        F.max("step_shrank").over(steps).alias("lag_shrank"),
    )


def unread(log_end: str, offset: str) -> "Column":
    """How many records are unread; null if one of the two is."""
    difference = F.col(log_end) - F.col(offset)
    return F.when(difference < 0, 0).otherwise(difference)


# ------------------------------------------------------------ generations


def generations(groups: "DataFrame") -> "DataFrame":
    """Every generation of every group. Kafka writes the record of one again when a static member comes back."""
    rows = groups.where(F.col("record_type").isin(*OF_GROUPS) & ~F.col("is_tombstone"))
    return rows.groupBy("group_id", "generation").agg(
        F.min("log_timestamp").alias("at"), F.min(F.size("members")).cast("int").alias("members")
    )


# ------------------------------------------------------------ the other checks


def expiry(
    commits: "DataFrame", groups: "DataFrame", until: "DataFrame", every_s: int, retention_s: int, soon_s: int
) -> "DataFrame":
    """Changes of whether an offset will soon be removed."""
    columns = (*GROUP_PARTITION, "log_timestamp", "log_offset", "is_tombstone", "expire_timestamp", "commit_timestamp")
    rows = at_each_end(commits.select(*columns), GROUP_PARTITION, until, every_s)
    states = groups.select(
        "group_id",
        (F.col("log_timestamp") + F.make_dt_interval(secs=F.lit(0.001))).alias("at"),
        F.col("log_offset").alias("generation_offset"),
        *("members", "empty_since"),
    )
    rows = join_latest(rows, states, ["group_id"], "at")
    kept_until = F.coalesce("empty_since", "commit_timestamp") + F.make_dt_interval(secs=F.lit(retention_s))
    expires = F.when(F.coalesce("members", F.lit(0)) == 0, F.coalesce("expire_timestamp", kept_until))
    soon = ~F.col("is_tombstone") & (expires <= F.col("at") + F.make_dt_interval(secs=F.lit(soon_s)))
    return changes(rows.withColumn("status", F.when(soon, "EXPIRES_SOON").otherwise("OK")), "expiry")


def rebalances(groups: "DataFrame", until: "DataFrame", every_s: int) -> "DataFrame":
    """Changes of whether a group begins generations all the time."""
    windows = -(-MINUTES * 60 // every_s)  # in all of these but the last it may count
    step = F.make_dt_interval(secs=F.lit(every_s))
    groups = groups.where(~F.col("is_of_member"))
    before = F.lag("generation").over(Window.partitionBy("group_id").orderBy("log_offset"))
    is_new = (F.col("generation") > 0) & ~F.col("generation").eqNullSafe(before)
    since = F.col("at") - F.make_dt_interval(mins=F.lit(MINUTES))
    counted = (
        groups.withColumn("is_new", is_new)
        .where(~F.col("is_tombstone"))
        .select("group_id", "log_timestamp", "is_new", "members")
        .withColumn("begun", end_of_window("log_timestamp", every_s))
        .withColumn("number", F.explode(F.sequence(F.lit(0), F.lit(windows))))
        .withColumn("at", F.col("begun") + F.col("number") * step)
        .withColumn("counts", F.col("log_timestamp") >= since)
    )
    rows = (
        counted.groupBy("group_id", "at")
        .agg(
            F.count_if(F.col("counts") & F.col("is_new")).alias("generations"),
            F.max(F.when(F.col("counts"), F.col("members"))).alias("members"),
        )
        .crossJoin(F.broadcast(until))
        .where("at <= last_end")
    )
    is_storm = F.col("generations") > 2 * F.greatest(F.lit(1), "members")
    return changes(rows.withColumn("status", F.when(is_storm, "STORM").otherwise("OK")), "rebalances")


def never_commits(commits: "DataFrame", groups: "DataFrame", until: "DataFrame", every_s: int) -> "DataFrame":
    """Changes of whether a group with members has committed at all."""
    step = F.make_dt_interval(secs=F.lit(MINUTES * 60))
    begun = groups.where("members > 0").groupBy("group_id").agg(F.min("log_timestamp").alias("begun"))
    committed = commits.groupBy("group_id").agg(F.min("log_timestamp").alias("committed"))
    groups_without = begun.join(committed, "group_id", "left").where(
        F.col("committed").isNull() | (F.col("committed") > F.col("begun") + step)
    )
    both = groups_without.select("group_id", (F.col("begun") + step).alias("time"), F.lit("NEVER").alias("status"))
    both = both.union(groups_without.where(F.col("committed").isNotNull()).select("group_id", "committed", F.lit("OK")))
    ends = both.withColumn("at", end_of_window("time", every_s)).groupBy("group_id", "at")
    rows = ends.agg(F.max("status").alias("status"))  # of both in one window, OK is what was so at its end
    return changes(rows.crossJoin(F.broadcast(until)).where("at <= last_end"), "commits")


def changes(rows: "DataFrame", check: str) -> "DataFrame":
    """The rows whose status is another one than before, in the columns of the result."""
    on = [name for name in GROUP_PARTITION if name in rows.columns]
    before = F.lag("status").over(Window.partitionBy(*on).orderBy("at"))
    known = rows.columns
    nothing = {"topic": "string", "partition": "int"} | dict.fromkeys(
        ("committed_offset", "log_end_offset", "lag_records"), "bigint"
    )
    rows = rows.withColumns({name: F.lit(None).cast(kind) for name, kind in nothing.items() if name not in known})
    rows = rows.withColumns({"before": before, "check": F.lit(check)})
    names = [field.split()[0] for field in RESULT.split(", ")]
    return rows.where(F.col("before").isNull() | (F.col("before") != F.col("status"))).select(names)
