"""What the report says, as values: each function makes a few rows of a large table of a job.

All times are milliseconds since 1970, in UTC. How much comes out does not depend on how much goes in: the groups that
matter most are shown, and `Top.left_out` says how many others there are. Times are put into a few hundred buckets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barnabas.pipeline.jobs.changes import WHO
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from barnabas.pipeline.report.statuses import RANKS
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Row = TypeVar("Row")
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
BUCKETS_MAX = 240
BUCKETS_MS = [
    *(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)),
    *(days * DAY_MS for days in (1, 2, 7, 28, 91, 364, 3640, 36400)),
]
RESETS = ("jumped back", "skipped")  # of the findings of `audit`
MOVES = (*RESETS, "set", "removed")


@dataclass(frozen=True)
class Top(Generic[Row]):
    """The rows that matter most."""

    rows: list[Row]
    left_out: int = 0


@dataclass(frozen=True)
class Span:
    """From when to when there is something to say, and how it is put into buckets."""

    first_ms: int
    last_ms: int

    @property
    def bucket_ms(self) -> int:
        fits = (size for size in BUCKETS_MS if (self.last_ms - self.first_ms) / size <= BUCKETS_MAX)
        return next(fits, BUCKETS_MS[-1])

    def buckets(self) -> list[int]:
        size = self.bucket_ms
        return list(range(self.first_ms // size * size, self.last_ms + 1, size))


@dataclass(frozen=True)
class GroupLag:
    """The lag of a group, of all its partitions together, by bucket: the largest one in it."""

    group: str
    records_at: dict[int, int]
    seconds_max: float | None
    records_end: int | None = None  # in the last window; None: it has no committed offset any more

    @property
    def records_max(self) -> int:
        return max(self.records_at.values(), default=0)


@dataclass(frozen=True)
class Behind:
    """How far a group is behind in the last window; `before`: an hour earlier, None if it read nothing then."""

    group: str
    topic: str
    records: int
    seconds: float | None
    at_ms: int
    records_before: int | None
    seconds_before: float | None


@dataclass(frozen=True)
class Mover:
    """The largest change of a lag from the end of an hour to the end of a later one, as a rule the next."""

    group: str
    topic: str
    at_ms: int
    before: int
    after: int


@dataclass(frozen=True)
class Stretch:
    """How long a group was not well, and why."""

    status: str
    from_ms: int
    until_ms: int


@dataclass(frozen=True)
class Reset:
    """Offsets that were set back or forward, in a bucket."""

    finding: str
    at_ms: int
    records: int


@dataclass(frozen=True)
class Timeline:
    """What happened to a group."""

    group: str
    stretches: list[Stretch] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    rebalances_at: dict[int, int] = field(default_factory=dict)
    seconds_max: float | None = None  # that it was behind at most


@dataclass(frozen=True)
class Unwell:
    """A check of a group that is not OK at the end."""

    group: str
    topic: str | None
    check: str
    status: str
    partitions: int
    since_ms: int
    lag_records: int | None = None  # of these partitions, or of the whole group, in the last window
    lag_seconds: float | None = None


@dataclass(frozen=True)
class LeaderChange:
    """Partitions got other leaders, one soon after the other."""

    from_ms: int
    until_ms: int
    partitions: int


@dataclass(frozen=True)
class Finding:
    """What `audit` says of a group."""

    group: str
    finding: str
    times: int
    records: int
    last_ms: int


@dataclass(frozen=True)
class Move:
    """Who has set or removed offsets of a group's topic at one time. `partition`: the only one, or the first."""

    group: str
    topic: str
    partitions: int
    partition: int
    at_ms: int
    from_offset: int | None  # of the first partition
    to_offset: int | None
    records: int
    cause: str | None  # None: nothing says why
    client: str | None
    host: str | None
    principal: str | None
    member: str | None
    finding: str | None = None  # of `audit`, if it is the same one for all partitions


@dataclass(frozen=True)
class Damage:
    """What `verify` says of a log."""

    finding: str
    topic: str
    partition: int
    directory: str
    places: int
    first_offset: int | None
    detail: str | None


@dataclass(frozen=True)
class Topic:
    """What `capacity` says of a topic."""

    topic: str
    partitions: int
    records: int
    size_bytes: int
    bytes_per_day: float | None
    largest_share: float
    retention_takes_bytes: int | None


@dataclass(frozen=True)
class Growth:
    """The bytes of a topic by day; `others` has no name."""

    topic: str | None
    bytes_on: dict[int, int]


def span_of(*tables: "DataFrame") -> Span | None:
    """The time that the column `at` of these tables covers; None: they are all empty."""
    if not tables:
        return None
    times = reduce(lambda one, other: one.union(other), [table.select("at") for table in tables])
    first, last = times.agg(F.unix_millis(F.min("at")), F.unix_millis(F.max("at"))).first()
    return None if first is None else Span(first, last)


def by_topic(lag: "DataFrame") -> "DataFrame":
    """The lag of each group and topic: all that the figures but `unwell` need of the large table."""
    sums = {"lag_records": F.sum("lag_records"), "lag_seconds": F.max("lag_seconds")}
    return lag.groupBy("group_id", "topic", "at").agg(*(value.alias(name) for name, value in sums.items()))


def lag_over_time(lag: "DataFrame", span: Span, most: int) -> Top[GroupLag]:
    """The groups that were the furthest behind; those that never were are left out."""
    totals = lag.groupBy("group_id", "at").agg(
        F.coalesce(F.sum("lag_records"), F.lit(0)).alias("records"), F.max("lag_seconds").alias("seconds")
    )
    peaks = totals.groupBy("group_id").agg(
        *(F.max(name).alias(name) for name in ("records", "seconds")),
        F.unix_millis(F.max("at")).alias("last_ms"),
        F.max_by("records", "at").alias("records_last"),
    )
    peaks = peaks.withColumn("end_ms", F.max("last_ms").over(Window.partitionBy()))
    rows, others = _largest(peaks, most, F.col("records").desc(), F.col("group_id"))
    top = [row for row in rows if row.records > 0]
    shown = _of_groups(totals, [row.group_id for row in top])
    at_bucket = shown.groupBy("group_id", _bucket("at", span).alias("bucket")).agg(F.max("records").alias("records"))
    points: dict[str, dict[int, int]] = {row.group_id: {} for row in top}
    for row in sorted(at_bucket.collect() if top else (), key=lambda row: row.bucket):
        points[row.group_id][row.bucket] = row.records
    found = [
        GroupLag(
            row.group_id, points[row.group_id], row.seconds, row.records_last if row.last_ms == row.end_ms else None
        )
        for row in top
    ]
    return Top(found, others + len(rows) - len(top))


def furthest_behind(lag: "DataFrame", most: int) -> Top[Behind]:
    """Who has records to read in the last window, the oldest of them first; and how that was an hour earlier.

    `lag` is that of each topic, as `by_topic` has it; so it is in `movers`.
    """
    at_end = F.col("at") == F.col("end")
    is_earlier = F.col("at") <= F.col("end") - F.make_dt_interval(hours=F.lit(1))
    is_not_long_ago = F.col("at") > F.col("end") - F.make_dt_interval(hours=F.lit(2))
    state = F.struct(F.unix_millis("at").alias("at_ms"), "lag_records", "lag_seconds")
    both = (
        _with_end(lag)
        .where(at_end | (is_earlier & is_not_long_ago))
        .groupBy("group_id", "topic")
        .agg(F.max(F.when(at_end, state)).alias("now"), F.max(F.when(~at_end, state)).alias("before"))
        .where("now.lag_records > 0")
    )
    rows, others = _largest(both, most, F.col("now.lag_seconds").desc_nulls_last(), F.col("group_id"), F.col("topic"))
    return Top(
        [
            Behind(
                *(row.group_id, row.topic, row.now.lag_records, row.now.lag_seconds, row.now.at_ms),
                *((None, None) if row.before is None else (row.before.lag_records, row.before.lag_seconds)),
            )
            for row in rows
        ],
        others,
    )


def movers(lag: "DataFrame", most: int) -> Top[Mover]:
    """The lags that changed the most within an hour, each group and topic once."""
    hour = F.ceil(F.unix_millis("at") / HOUR_MS)  # what is so at 15:00 belongs to the hour that ends then
    by_hour = lag.groupBy("group_id", "topic", hour.alias("hour")).agg(
        F.max_by(F.coalesce("lag_records", F.lit(0)), "at").alias("after"), F.unix_millis(F.max("at")).alias("at_ms")
    )
    before = F.lag("after").over(Window.partitionBy("group_id", "topic").orderBy("hour"))
    change = F.abs(F.col("after") - F.col("before"))
    largest = (
        by_hour.withColumn("before", before)
        .where("after != before")
        .groupBy("group_id", "topic")
        .agg(F.max(F.struct(change.alias("change"), (-F.col("at_ms")).alias("earliest"), "before", "after")).alias("m"))
    )
    rows, others = _largest(largest, most, F.col("m.change").desc(), F.col("group_id"), F.col("topic"))
    return Top([Mover(row.group_id, row.topic, -row.m.earliest, row.m.before, row.m.after) for row in rows], others)


def timelines(
    health: "DataFrame",
    audit: "DataFrame | None",
    rebalances: "DataFrame | None",
    span: Span,
    most: int,
    lag: "DataFrame | None" = None,
) -> Top[Timeline]:
    """The groups to which the worst happened, for the longest time."""
    states = _states(health, span)
    resets = None if audit is None else audit.where(F.col("finding").isin(*RESETS))
    badness = states.groupBy("group_id").agg(
        F.max("rank").alias("worst"),
        F.sum(F.when(F.col("rank") > 0, F.col("until_ms") - F.col("from_ms")).otherwise(0)).alias("unwell_ms"),
    )
    order = [F.col("worst").desc(), F.col("unwell_ms").desc(), F.col("group_id")]
    if resets is not None:
        badness = badness.join(resets.groupBy("group_id").agg(F.count("*").alias("resets")), "group_id", "left")
        order.insert(2, F.col("resets").desc_nulls_last())
    top, others = _largest(badness, most, *order)
    groups = [row.group_id for row in top]
    found = {group: Timeline(group) for group in groups}
    if not groups:
        return Top([])

    parts = [_part("status", _worst(_of_groups(states, groups), span))]
    if resets is not None:
        for finding in RESETS:
            own = _of_groups(resets, groups).where(F.col("finding") == finding)
            in_bucket = own.groupBy("group_id", _bucket("at", span).alias("bucket"))
            parts.append(_part(finding, in_bucket.agg(F.sum("records").alias("number"))))
    if rebalances is not None:
        in_bucket = _of_groups(rebalances, groups).groupBy("group_id", _bucket("at", span).alias("bucket"))
        parts.append(_part("rebalances", in_bucket.agg(F.count("*").alias("number"))))
    if lag is not None:
        own = _of_groups(lag, groups).groupBy("group_id").agg(F.max("lag_seconds").cast("bigint").alias("number"))
        parts.append(_part("seconds", own.withColumn("bucket", F.lit(0))))
    rows = reduce(lambda one, other: one.union(other), parts).collect()
    for row in sorted(rows, key=lambda row: (row.bucket, row.kind)):
        one = found[row.group_id]
        if row.kind == "status":
            _extend(one.stretches, RANKS[row.number], row.bucket, span)
        elif row.kind == "rebalances":
            one.rebalances_at[row.bucket] = row.number
        elif row.kind == "seconds":
            found[row.group_id] = replace(one, seconds_max=row.number)
        else:
            one.resets.append(Reset(row.kind, row.bucket, row.number))
    return Top(list(found.values()), others)


def _states(health: "DataFrame", span: Span) -> "DataFrame":
    """How bad each status was, and from when until when."""
    after = F.lead("at").over(Window.partitionBy(*GROUP_PARTITION, "check").orderBy("at"))
    ranks = F.create_map(*[F.lit(value) for rank, status in enumerate(RANKS) for value in (status, rank)])
    return health.select(
        "group_id",
        F.coalesce(ranks[F.col("status")], F.lit(len(RANKS) - 1)).alias("rank"),
        F.unix_millis("at").alias("from_ms"),
        F.coalesce(F.unix_millis(after), F.lit(span.last_ms)).alias("until_ms"),
        after.isNull().alias("is_last"),
    )


def _worst(states: "DataFrame", span: Span) -> "DataFrame":
    """The rank of the worst status of each group in each bucket; nothing where all was OK."""
    size = F.lit(span.bucket_ms)
    # What begins in the last window has no length yet, and is there.
    first, last = F.floor(F.col("from_ms") / size), F.floor((F.greatest("until_ms", F.col("from_ms") + 1) - 1) / size)
    bad = states.where("rank > 0 and (until_ms > from_ms or is_last)")
    by_bucket = bad.withColumn("bucket", F.explode(F.sequence(first, last))).groupBy("group_id", "bucket")
    return by_bucket.agg(F.max("rank").cast("bigint").alias("number")).withColumn("bucket", F.col("bucket") * size)


def _part(kind: str, rows: "DataFrame") -> "DataFrame":
    return rows.select(F.lit(kind).alias("kind"), "group_id", F.col("bucket").cast("bigint").alias("bucket"), "number")


def _extend(stretches: list[Stretch], status: str, bucket_ms: int, span: Span) -> None:
    """Add a bucket: to the last stretch if it goes on, else as a new one."""
    until_ms = min(bucket_ms + span.bucket_ms, max(span.last_ms, bucket_ms + 1))
    if stretches and stretches[-1].status == status and stretches[-1].until_ms == bucket_ms:
        bucket_ms = stretches.pop().from_ms
    stretches.append(Stretch(status, bucket_ms, until_ms))


def unwell(health: "DataFrame", lag: "DataFrame | None", most: int) -> Top[Unwell]:
    """What is not OK at the end, the worst first."""
    last = _newest(health).where("status != 'OK'").drop("lag_records")
    if lag is None:
        last = last.withColumns({"lag_records": F.lit(None).cast("bigint"), "lag_seconds": F.lit(None).cast("double")})
    else:
        # A check of a whole group has no partition: it gets the lag of all of them.
        place = F.struct("topic", "partition")
        at_end = _with_end(lag).where("at = end").withColumn("place", place).rollup("group_id", "place")
        of_both = at_end.agg(F.sum("lag_records").alias("lag_records"), F.max("lag_seconds").alias("lag_seconds"))
        of_both = of_both.select(F.col("group_id").alias("of_group"), "place", "lag_records", "lag_seconds")
        own_place = F.when(F.col("partition").isNotNull(), place)
        on = (F.col("group_id") == F.col("of_group")) & own_place.eqNullSafe(F.col("place"))
        last = last.join(of_both, on, "left")
    by_status = last.groupBy("group_id", "topic", "check", "status").agg(
        F.count("partition").alias("partitions"),
        F.unix_millis(F.min("at")).alias("since_ms"),
        F.sum("lag_records").alias("lag_records"),
        F.max("lag_seconds").alias("lag_seconds"),
    )
    rank = F.array_position(F.array(*map(F.lit, RANKS)), F.col("status"))
    order = (rank.desc(), *map(F.col, ("since_ms", "group_id", "topic", "check")))
    rows, others = _largest(by_status, most, *order)
    return Top([Unwell(*row) for row in rows], others)


def groups_not_ok(health: "DataFrame") -> tuple[int, int]:
    """How many groups are not OK at the end, and how many there are."""
    by_group = _newest(health).groupBy("group_id").agg(F.max((F.col("status") != "OK").cast("int")).alias("bad"))
    bad, all_groups = by_group.agg(F.coalesce(F.sum("bad"), F.lit(0)), F.count("*")).first()
    return bad, all_groups


def leader_changes(leaders: "DataFrame", most: int) -> Top[LeaderChange]:
    """When partitions got other leaders, the most partitions first. What is not five minutes apart is one change."""
    together = leaders.where("at is not null").groupBy(F.session_window("at", "5 minutes"))
    changes = together.agg(
        *(F.unix_millis(edge("at")).alias(name) for name, edge in (("from_ms", F.min), ("until_ms", F.max))),
        F.count_distinct("topic", "partition").alias("partitions"),
    ).select("from_ms", "until_ms", "partitions")
    rows, others = _largest(changes, most, F.col("partitions").desc(), F.col("from_ms").desc())
    return Top([LeaderChange(*row) for row in rows], others)


def findings(audit: "DataFrame", most: int) -> Top[Finding]:
    """What the audit has found, by group."""
    records = F.coalesce(F.sum("records"), F.lit(0))  # an offset that was removed went nowhere
    by_group = audit.groupBy("group_id", "finding").agg(
        F.count("*").alias("times"), records.alias("records"), F.unix_millis(F.max("at")).alias("last_ms")
    )
    rows, others = _largest(by_group, most, F.col("records").desc(), F.col("group_id"), F.col("finding"))
    return Top([Finding(*row) for row in rows], others)


def moves(audit: "DataFrame", most: int) -> Top[Move]:
    """Where offsets were set or removed, by whom, the newest first; none without the offset journal."""
    if "cause" not in audit.columns:  # a table of an earlier version
        return Top([])
    by_operation = _operations(audit.where(F.col("finding").isin(*MOVES) & (F.col("cause") != "commit")))
    return _moves(by_operation, most, F.col("at").desc())


def jumps(audit: "DataFrame", most: int) -> Top[Move]:
    """Where groups passed over records or went back, by whom if that is known: first what was never read."""
    happened = audit.where(F.col("finding").isin(*RESETS))
    if "cause" not in audit.columns:
        happened = happened.withColumns({name: F.lit(None).cast(kind) for name, kind in WHO.items()})
    is_skip = F.col("finding") == "skipped"
    order = (is_skip.desc(), F.col("records").desc_nulls_last(), F.col("at").desc())
    return _moves(_operations(happened, "finding"), most, *order)


def _operations(audit: "DataFrame", *more: str) -> "DataFrame":
    """One row for what was done at once to several partitions of a topic."""
    of_one = ("group_id", "topic", "at", *(name for name in WHO if name != "generation"), *more)
    first = F.min(F.struct("partition", "from_offset", "to_offset"))
    sums = {"partitions": F.count_distinct("partition"), "first": first, "records": F.sum("records")}
    return audit.groupBy(*of_one).agg(*(value.alias(name) for name, value in sums.items()))


def _moves(operations: "DataFrame", most: int, *order: "Column") -> Top[Move]:
    operations = operations.withColumn("at_ms", F.unix_millis("at"))
    rows, others = _largest(operations, most, *order, F.col("group_id"), F.col("topic"))
    found = [
        Move(
            *(row.group_id, row.topic, row.partitions, row.first.partition, row.at_ms),
            *(row.first.from_offset, row.first.to_offset, row.records or 0),
            *(row.cause, row.client_id, row.host, row.principal, row.member_id),
            finding=getattr(row, "finding", None),
        )
        for row in rows
    ]
    return Top(found, others)


def damage(verify: "DataFrame", most: int) -> Top[Damage]:
    """What is wrong with logs."""
    by_log = verify.groupBy("finding", "topic", "partition", "directory").agg(
        F.count("*").alias("places"),
        F.min("offset").alias("first_offset"),
        F.min_by("detail", F.coalesce("offset", F.lit(0))).alias("detail"),
    )
    order = map(F.col, ("finding", "topic", "partition", "directory"))
    rows, others = _largest(by_log, most, F.col("places").desc(), *order)
    return Top([Damage(*row) for row in rows], others)


def largest_topics(topics: "DataFrame", most: int) -> Top[Topic]:
    """The topics that take the most place."""
    names = ("topic", "partitions", "records", "bytes", "bytes_per_day", "largest_share", "retention_takes_bytes")
    rows, others = _largest(topics.select(*names), most, F.col("bytes").desc(), F.col("topic"))
    return Top([Topic(*row) for row in rows], others)


def growth_by_day(growth: "DataFrame", most: int) -> list[Growth]:
    """What was written on each day: the largest topics, and all others together. At most 240 days: the last ones."""
    of_topics = growth.where("kind = 'topic' and day is not null")
    last = of_topics.agg(F.max("day").alias("last_day"))
    of_topics = of_topics.crossJoin(F.broadcast(last)).where(F.date_diff("last_day", "day") < BUCKETS_MAX)
    largest = of_topics.groupBy("name").agg(F.sum("bytes").alias("bytes")).orderBy(F.col("bytes").desc(), "name")
    names = [row.name for row in largest.take(most)]
    if not names:
        return []
    shown = F.when(F.col("name").isin(*names), F.col("name"))
    by_day = of_topics.groupBy(shown.alias("shown"), F.unix_date("day").alias("day")).agg(F.sum("bytes").alias("bytes"))
    found: dict[str | None, Growth] = {name: Growth(name, {}) for name in names}
    for row in by_day.orderBy("day").collect():
        found.setdefault(row.shown, Growth(row.shown, {})).bytes_on[row.day * DAY_MS] = row.bytes
    return list(found.values())


def _largest(rows: "DataFrame", most: int, *order: "Column") -> tuple[list[Any], int]:
    """The first rows in an order, and how many others there are: one plan for both."""
    counted = rows.select("*", F.count("*").over(Window.partitionBy()).alias("all_rows")).orderBy(*order)
    columns = [name for name in rows.columns if name != "at"]  # of a year beyond 9999 Python knows no time
    found = counted.select(F.struct(*columns).alias("row"), "all_rows").take(most)
    return [one.row for one in found], (found[0].all_rows - len(found) if found else 0)


def _newest(health: "DataFrame") -> "DataFrame":
    """What each check says at the end."""
    of_check = Window.partitionBy(*GROUP_PARTITION, "check").orderBy(F.col("at").desc())
    return health.withColumn("number", F.row_number().over(of_check)).where("number = 1")


def _with_end(lag: "DataFrame") -> "DataFrame":
    """The rows with the time of the last window. Who has none in it is behind no more: its offsets are gone."""
    return lag.crossJoin(F.broadcast(lag.agg(F.max("at").alias("end"))))


def _bucket(time: str, span: Span) -> "Column":
    """When the bucket of a time begins."""
    size = span.bucket_ms
    return F.floor(F.unix_millis(time) / size) * size


def _of_groups(rows: "DataFrame", groups: Sequence[str]) -> "DataFrame":
    return rows.where(F.col("group_id").isin(*groups)) if groups else rows.limit(0)
