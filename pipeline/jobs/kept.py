"""What earlier runs of a job have found and the log has lost since (compaction, retention), with what a run finds now.

Each function takes the rows that are there, of all days, and those of a run, and gives the rows of the days that the
run changes. Both have the column `day`. What the earlier run has said of the time before its last window stays as it
is, because the log has only become poorer. Its last window had not ended, so that is looked at again.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from barnabas.pipeline.jobs.lag import EVERY_S, rates
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CHECK = (*GROUP_PARTITION, "check")
_FINDING = ("finding", *GROUP_PARTITION)


def lag(old: "DataFrame", now: "DataFrame", every_s: int = EVERY_S) -> "DataFrame":
    """Windows that have passed stay; from the last one on it is what the run says, and what only the old one did."""
    last = _last(old)
    since = F.col("day") >= F.to_date(last)
    step = F.make_dt_interval(secs=F.lit(every_s))
    there = old.where(since | (F.col("at") >= last - step)).withColumn("is_old", F.col("at") < last)
    rows = now.where(F.col("at") >= last).withColumn("is_old", F.lit(False))
    keys = ("at", *GROUP_PARTITION)
    rows = _without(there.where(~F.col("is_old")), rows, keys).unionByName(rows)
    rows = rows.unionByName(there.where("is_old")).unionByName(
        _without(now.where(since & (F.col("at") < last)), there, keys).withColumn("is_old", F.lit(True))
    )
    rows = rows.withColumns(
        {
            rate: F.when(F.col("is_old"), F.col(rate)).otherwise(F.coalesce(rate, with_rate))
            for rate, with_rate in rates(every_s).items()
        }
    )
    return rows.where(since).select(now.columns)


def health(old: "DataFrame", now: "DataFrame") -> "DataFrame":
    """Changes until the last window stay; then come those of the run, compared with what was so until then."""
    last = _last(old)
    unknown = _without(old.where(F.col("at") >= last), now, _CHECK)
    kept = old.where(F.col("at") < last).unionByName(unknown)
    values = [name for name in now.columns if name not in (*_CHECK, "at", "day")]
    # What the run says of the last window is not always a change in it.
    newest = F.max_by(F.struct(*values), "at").alias("newest")
    then = now.where(F.col("at") <= last).groupBy(*_CHECK).agg(newest)
    then = then.select(*_CHECK, "newest.*").withColumns({"at": last, "day": F.to_date(last)})
    rows = kept.unionByName(then).unionByName(now.where(F.col("at") > last))
    before = F.lag("status").over(Window.partitionBy(*_CHECK).orderBy("at"))
    rows = rows.withColumn("known", before)
    rows = rows.where((F.col("at") < last) | F.col("known").isNull() | (F.col("known") != F.col("status")))
    rows = rows.withColumn("before", F.when(F.col("at") < last, F.col("before")).otherwise(F.col("known")))
    return rows.where(F.col("day") >= F.to_date(last)).select(now.columns)


def audit(old: "DataFrame", now: "DataFrame") -> "DataFrame":
    """Findings stay, with what the journal said of them. A group that reads on after a jump back moves its finding."""
    reads, start = F.col("finding") == "read twice", "from_offset"
    then = now.where(reads).select(*_FINDING, start, F.col("log_offset").alias("moved_to"))
    moved = old.where(reads).join(then, [*_FINDING, start]).where("log_offset != moved_to")
    changed = now.select("day").union(moved.select("day")).distinct()
    keys = (*_FINDING, "log_partition", "log_offset")
    old = _without(old.join(F.broadcast(changed), "day", "left_semi"), moved, keys)
    return _merged(old, now, keys)


def generations(old: "DataFrame", now: "DataFrame") -> "DataFrame":
    """Each generation began once, and its members are as few as any of its records says. All days: they are small."""
    both = old.select(now.columns).unionByName(now).groupBy("group_id", "generation")
    rows = both.agg(F.min("at").alias("at"), F.min("members").alias("members"))
    return rows.withColumn("day", F.to_date("at")).select(now.columns)


def _merged(old: "DataFrame", now: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """The rows of both, each key once. What the run does not know of a row any more says the old one."""
    same = reduce(and_, (F.col(f"old.{name}").eqNullSafe(F.col(f"now.{name}")) for name in keys))
    rows = now.alias("now").join(old.alias("old"), same, "full_outer")
    return rows.select(*(F.coalesce(f"now.{name}", f"old.{name}").alias(name) for name in now.columns))


def _without(rows: "DataFrame", others: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """The rows whose keys the others do not have."""
    other = others.select(*(F.col(name).alias(f"_{name}") for name in keys)).distinct()
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"_{name}")) for name in keys))
    return rows.join(other, same, "left_anti")


def _last(old: "DataFrame") -> "Column":
    """The end of the last window that the rows tell of."""
    return F.lit(old.agg(F.max("at")).first()[0])
