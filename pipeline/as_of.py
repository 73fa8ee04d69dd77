"""What was true at a time: joins with the newest fact before a row, or the first one after it; and samples at the end
of each window of time.

A join is one sort by time of rows and facts together, and one pass over it. So it costs n log n, needs no memory for
the history of a key, and Spark spills what does not fit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CLOCKS_DIFFER_S = 3600


def join_latest(rows: "DataFrame", facts: "DataFrame", on: Sequence[str], by: str) -> "DataFrame":
    """Add to each row the columns of a fact with the same `on` whose `by` is not larger than the row's; else nulls.

    Of several facts it is the one whose first further column is the largest: say there what makes a fact newer.
    """
    return _join(rows, facts, on, by, descending=False)


def join_next(rows: "DataFrame", facts: "DataFrame", on: Sequence[str], by: str) -> "DataFrame":
    """The same of the facts whose `by` is not smaller than the row's. The smallest first further column wins."""
    return _join(rows, facts, on, by, descending=True)


def end_of_window(time: str, every_s: int) -> "Column":
    """The end of the window in which a time lies; the end is not part of it."""
    return F.window(time, f"{every_s} seconds").end


def is_no_future(time: str) -> "Column":
    """Whether a time can be right. Producers say when their records were made, and a clock may be wrong by years."""
    return F.col(time) <= F.current_timestamp() + F.make_dt_interval(secs=F.lit(CLOCKS_DIFFER_S))


def at_each_end(records: "DataFrame", on: Sequence[str], last_end: "DataFrame", every_s: int) -> "DataFrame":
    """The newest record of each `on` at the end (`at`) of every window, from its first one to `last_end`.

    Newest is the one with the highest `log_offset`, whatever its `log_timestamp` says.
    """
    values = [name for name in records.columns if name not in (*on, "log_timestamp", "log_offset")]
    ends = records.groupBy(*on, end_of_window("log_timestamp", every_s).alias("at")).agg(
        F.max(F.struct("log_offset", *values)).alias("newest")
    )
    in_order = Window.partitionBy(*on).orderBy("at")
    step = F.make_dt_interval(secs=F.lit(every_s))
    return (
        ends.crossJoin(F.broadcast(last_end))
        .withColumn("at", F.least("at", "last_end"))  # a broker's clock may have been ahead for a while
        .withColumn("newest", F.max("newest").over(in_order))
        .withColumn("until", F.coalesce(F.lead("at").over(in_order) - step, "last_end"))
        .where("at <= until")
        .withColumn("at", F.explode(F.sequence("at", "until", step)))
        .select(*on, "at", *(f"newest.{name}" for name in values))
    )


def _join(rows: "DataFrame", facts: "DataFrame", on: Sequence[str], by: str, descending: bool) -> "DataFrame":
    both = _packed(rows, on, by, "row").unionByName(_packed(facts, on, by, "fact"), allowMissingColumns=True)
    order = F.col(by).desc() if descending else F.col(by).asc()
    facts_first = F.col("row").isNotNull()
    so_far = Window.partitionBy(*on).orderBy(order, facts_first).rowsBetween(Window.unboundedPreceding, 0)
    best = F.min("fact") if descending else F.max("fact")
    found = both.withColumn("fact", best.over(so_far)).where(F.col("row").isNotNull())
    return found.select(*on, by, "row.*", "fact.*")


def _packed(table: "DataFrame", on: Sequence[str], by: str, name: str) -> "DataFrame":
    """The keys, and everything else in one column."""
    others = [column for column in table.columns if column not in (*on, by)]
    values = F.struct(*others) if others else F.struct(F.lit(True).alias("_"))
    return table.select(*on, by, values.alias(name))
