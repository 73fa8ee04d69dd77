"""What the offset journal (`barnabas.journal`) adds to the commits: who made each of them, and those that are gone.

`__consumer_offsets` is compacted, so it forgets all but the newest commit of a partition. The journal keeps them for a
month, with the client behind each.
"""

from typing import TYPE_CHECKING

from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE = ("log_partition", "log_offset")
WHO = {
    "cause": "string",
    "client_id": "string",
    "host": "string",
    "principal": "string",
    "member_id": "string",
    "generation": "int",
}


def changes_of(journal: "DataFrame") -> "DataFrame":
    """The changes that are in `__consumer_offsets`, or were before compaction.

    The journal may have noted what `__consumer_offsets` has lost again, because a leader was elected that lacked it. It
    says that as a gap which ends before these changes.
    """
    # From the end: of a frame that ends at the last row Spark computes each row from all that follow.
    from_end = Window.partitionBy("log_partition").orderBy(F.col("log_offset").desc())
    later = from_end.rangeBetween(Window.unboundedPreceding, -1)
    lost_from = F.min(F.when(F.col("is_gap"), F.col("end_offset"))).over(later)
    stands = F.coalesce(F.col("change_offset") < F.col("lost_from"), F.lit(True))
    return journal.withColumn("lost_from", lost_from).where(~F.col("is_gap") & stands).drop("lost_from")


def who() -> "Column":
    """The last columns in words: `reset by barnabas-cli at /127.0.0.1`; null: nothing is known."""
    client = F.concat(F.lit("by "), "client_id")
    words = F.concat_ws(" ", "cause", client, F.concat(F.lit("at "), "host"))
    return F.when(F.col("cause").isNotNull(), words)


def with_changes(commits: "DataFrame", journal: "DataFrame | None") -> "DataFrame":
    """The commits with who made them, and `old_offset`: what was committed before, if the journal knows it.

    Those that compaction has taken are there, too. What the journal does not have keeps nulls. It says of a transaction
    only where its end is, so commits in transactions keep them as well.
    """
    columns = ("offset", "is_tombstone", "log_timestamp")
    keys = (*GROUP_PARTITION, *PLACE)
    if journal is None:
        nothing = {name: F.lit(None).cast(kind) for name, kind in {**WHO, "old_offset": "bigint"}.items()}
        return commits.select(*keys, *columns).withColumns(nothing)
    # The journal may say something twice, because an answer was lost: what names somebody counts, and then the first.
    is_first = F.struct(F.col("cause") != "recovered", -F.col("log_offset"))
    noted = (
        changes_of(journal)
        .where("change_offset is not null and cause != 'transaction'")
        .select(
            *GROUP_PARTITION,
            "log_partition",
            F.col("change_offset").alias("log_offset"),
            F.struct(F.lit(False), "new_offset", F.col("new_offset").isNull(), "at").alias("commit"),
            F.struct(is_first, "new_offset", "old_offset", *WHO).alias("change"),
        )
    )
    of_log = commits.select(
        *keys,
        F.struct(F.lit(True).alias("is_in_log"), *columns).alias("commit"),
        F.lit(None).cast(noted.schema["change"].dataType).alias("change"),
    )
    found = of_log.union(noted).groupBy(*keys).agg(F.max("commit").alias("commit"), F.max("change").alias("change"))
    is_same = F.col("change.new_offset").eqNullSafe(F.col("commit.offset"))
    change = F.when(is_same, F.col("change"))
    return found.select(
        *keys,
        *(f"commit.{name}" for name in columns),
        *(change[name].alias(name) for name in ("old_offset", *WHO)),
    )
