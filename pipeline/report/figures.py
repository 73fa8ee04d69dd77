"""What the report says, as values: each function makes a few rows of a large table of a job.

All times are milliseconds since 1970, in UTC. How much comes out does not depend on how much goes in: the groups that
matter most are shown, and `Top.left_out` says how many others there are. Times are put into a few hundred buckets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Generic, TypeVar

from barnabas.pipeline.jobs.changes import WHO
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
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
STATUSES = ("OK", "EXPIRES_SOON", "WARN", "REWIND", "STORM", "NEVER", "REMOVED", "STALL", "STOP")  # the worst one last
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
        """How long a bucket is."""
        fits = (size for size in BUCKETS_MS if (self.last_ms - self.first_ms) / size <= BUCKETS_MAX)
        return next(fits, BUCKETS_MS[-1])

    def buckets(self) -> list[int]:
        """When each bucket begins."""
        size = self.bucket_ms
        return list(range(self.first_ms // size * size, self.last_ms + 1, size))


@dataclass(frozen=True)
class GroupLag:
    """The lag of a group, of all its partitions together, by bucket: the largest one in it."""

    group: str
    records_at: dict[int, int]
    seconds_max: float | None

    @property
    def records_max(self) -> int:
        """The largest lag."""
        return max(self.records_at.values(), default=0)

    @property
    def records_last(self) -> int:
        """The lag in the last bucket in which the group had committed offsets."""
        return self.records_at[max(self.records_at)] if self.records_at else 0


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


@dataclass(frozen=True)
class Unwell:
    """A check of a group that is not OK at the end."""

    group: str
    topic: str | None
    check: str
    status: str
    partitions: int
    since_ms: int


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
    cause: str
    client: str | None
    host: str | None
    principal: str | None
    member: str | None


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


def lag_over_time(lag: "DataFrame", span: Span, most: int) -> Top[GroupLag]:
    """The groups that were the furthest behind; those that never were are left out."""
    totals = lag.groupBy("group_id", "at").agg(
        F.coalesce(F.sum("lag_records"), F.lit(0)).alias("records"), F.max("lag_seconds").alias("seconds")
    )
    peaks = totals.groupBy("group_id").agg(F.max("records").alias("records"), F.max("seconds").alias("seconds"))
    top = peaks.where("records > 0").orderBy(F.col("records").desc(), "group_id").take(most)
    shown = _of_groups(totals, [row.group_id for row in top])
    at_bucket = shown.groupBy("group_id", _bucket("at", span).alias("bucket")).agg(F.max("records").alias("records"))
    points: dict[str, dict[int, int]] = {row.group_id: {} for row in top}
    for row in at_bucket.orderBy("bucket").collect():
        points[row.group_id][row.bucket] = row.records
    return Top([GroupLag(row.group_id, points[row.group_id], row.seconds) for row in top], peaks.count() - len(top))


def movers(lag: "DataFrame", most: int) -> Top[Mover]:
    """The lags that changed the most within an hour, each group and topic once."""
    totals = lag.groupBy("group_id", "topic", "at").agg(F.coalesce(F.sum("lag_records"), F.lit(0)).alias("records"))
    hour = F.ceil(F.unix_millis("at") / HOUR_MS)  # what is so at 15:00 belongs to the hour that ends then
    by_hour = totals.groupBy("group_id", "topic", hour.alias("hour")).agg(
        F.max_by("records", "at").alias("after"), F.unix_millis(F.max("at")).alias("at_ms")
    )
    before = F.lag("after").over(Window.partitionBy("group_id", "topic").orderBy("hour"))
    change = F.abs(F.col("after") - F.col("before"))
    largest = (
        by_hour.withColumn("before", before)
        .where("after != before")
        .groupBy("group_id", "topic")
        .agg(F.max(F.struct(change.alias("change"), (-F.col("at_ms")).alias("earliest"), "before", "after")).alias("m"))
    )
    rows = largest.orderBy(F.col("m.change").desc(), "group_id", "topic").take(most)
    found = [Mover(row.group_id, row.topic, -row.m.earliest, row.m.before, row.m.after) for row in rows]
    return Top(found, largest.count() - len(found))


def timelines(
    health: "DataFrame",
    audit: "DataFrame | None",
    rebalances: "DataFrame | None",
    span: Span,
    most: int,
) -> Top[Timeline]:
    """The groups to which the worst happened, for the longest time."""
    after = F.lead("at").over(Window.partitionBy(*GROUP_PARTITION, "check").orderBy("at"))
    until = F.coalesce(F.unix_millis(after), F.lit(span.last_ms))
    ranks = F.create_map(*[F.lit(value) for rank, status in enumerate(STATUSES) for value in (status, rank)])
    states = health.select(
        "group_id",
        F.coalesce(ranks[F.col("status")], F.lit(len(STATUSES) - 1)).alias("rank"),
        F.unix_millis("at").alias("from_ms"),
        until.alias("until_ms"),
    )
    resets = None if audit is None else audit.where(F.col("finding").isin(*RESETS))
    badness = states.groupBy("group_id").agg(
        F.max("rank").alias("worst"),
        F.sum(F.when(F.col("rank") > 0, F.col("until_ms") - F.col("from_ms")).otherwise(0)).alias("unwell_ms"),
    )
    order = [F.col("worst").desc(), F.col("unwell_ms").desc(), F.col("group_id")]
    if resets is not None:
        badness = badness.join(resets.groupBy("group_id").agg(F.count("*").alias("resets")), "group_id", "left")
        order.insert(2, F.col("resets").desc_nulls_last())
    groups = [row.group_id for row in badness.orderBy(*order).take(most)]
    found = {group: Timeline(group) for group in groups}

    bad = _of_groups(states, groups).where("rank > 0 and until_ms > from_ms")
    size = F.lit(span.bucket_ms)
    first, last = F.floor(F.col("from_ms") / size), F.floor((F.col("until_ms") - 1) / size)
    by_bucket = bad.withColumn("bucket", F.explode(F.sequence(first, last))).groupBy("group_id", "bucket")
    for row in by_bucket.agg(F.max("rank").alias("rank")).orderBy("bucket").collect():
        _extend(found[row.group_id].stretches, STATUSES[row.rank], row.bucket * span.bucket_ms, span)
    if resets is not None:
        in_bucket = _of_groups(resets, groups).groupBy("group_id", "finding", _bucket("at", span).alias("bucket"))
        for row in in_bucket.agg(F.sum("records").alias("records")).orderBy("bucket", "finding").collect():
            found[row.group_id].resets.append(Reset(row.finding, row.bucket, row.records))
    if rebalances is not None:
        in_bucket = _of_groups(rebalances, groups).groupBy("group_id", _bucket("at", span).alias("bucket"))
        for row in in_bucket.count().orderBy("bucket").collect():
            found[row.group_id].rebalances_at[row.bucket] = row["count"]
    return Top(list(found.values()), badness.count() - len(groups))


def _extend(stretches: list[Stretch], status: str, bucket_ms: int, span: Span) -> None:
    """Add a bucket: to the last stretch if it goes on, else as a new one."""
    until_ms = min(bucket_ms + span.bucket_ms, max(span.last_ms, bucket_ms + 1))
    if stretches and stretches[-1].status == status and stretches[-1].until_ms == bucket_ms:
        bucket_ms = stretches.pop().from_ms
    stretches.append(Stretch(status, bucket_ms, until_ms))


def unwell(health: "DataFrame", most: int) -> Top[Unwell]:
    """What is not OK at the end, the worst first."""
    newest = Window.partitionBy(*GROUP_PARTITION, "check").orderBy(F.col("at").desc())
    last = health.withColumn("number", F.row_number().over(newest)).where("number = 1 and status != 'OK'")
    by_status = last.groupBy("group_id", "topic", "check", "status").agg(
        F.count("partition").alias("partitions"), F.unix_millis(F.min("at")).alias("since_ms")
    )
    rank = F.array_position(F.array(*map(F.lit, STATUSES)), F.col("status"))
    rows = by_status.orderBy(rank.desc(), "since_ms", "group_id", "topic", "check").take(most)
    found = [Unwell(row[0], row[1], row[2], row[3], row[4], row[5]) for row in rows]
    return Top(found, by_status.count() - len(found))


def groups_not_ok(health: "DataFrame") -> tuple[int, int]:
    """How many groups are not OK at the end, and how many there are."""
    newest = Window.partitionBy(*GROUP_PARTITION, "check").orderBy(F.col("at").desc())
    last = health.withColumn("number", F.row_number().over(newest)).where("number = 1")
    by_group = last.groupBy("group_id").agg(F.max((F.col("status") != "OK").cast("int")).alias("bad"))
    bad, all_groups = by_group.agg(F.coalesce(F.sum("bad"), F.lit(0)), F.count("*")).first()
    return bad, all_groups


def findings(audit: "DataFrame", most: int) -> Top[Finding]:
    """What the audit has found, by group."""
    records = F.coalesce(F.sum("records"), F.lit(0))  # an offset that was removed went nowhere
    by_group = audit.groupBy("group_id", "finding").agg(
        F.count("*").alias("times"), records.alias("records"), F.unix_millis(F.max("at")).alias("last_ms")
    )
    rows = by_group.orderBy(F.col("records").desc(), "group_id", "finding").take(most)
    return Top([Finding(*row) for row in rows], by_group.count() - len(rows))


def moves(audit: "DataFrame", most: int) -> Top[Move]:
    """Where offsets were set or removed, by whom, the newest first; none without the offset journal."""
    if "cause" not in audit.columns:  # a table of an earlier version
        return Top([])
    of_one = ("group_id", "topic", "at", *(name for name in WHO if name != "generation"))
    first = F.min(F.struct("partition", "from_offset", "to_offset"))
    by_operation = (
        audit.where(F.col("finding").isin(*MOVES) & (F.col("cause") != "commit"))
        .groupBy(*of_one)
        .agg(F.count_distinct("partition").alias("partitions"), first.alias("first"), F.sum("records").alias("records"))
    )
    rows = (
        by_operation.orderBy(F.col("at").desc(), "group_id", "topic").withColumn("at", F.unix_millis("at")).take(most)
    )
    found = [
        Move(
            *(row.group_id, row.topic, row.partitions, row.first.partition, row.at),
            *(row.first.from_offset, row.first.to_offset, row.records or 0),
            *(row.cause, row.client_id, row.host, row.principal, row.member_id),
        )
        for row in rows
    ]
    return Top(found, by_operation.count() - len(found))


def damage(verify: "DataFrame", most: int) -> Top[Damage]:
    """What is wrong with logs."""
    by_log = verify.groupBy("finding", "topic", "partition", "directory").agg(
        F.count("*").alias("places"),
        F.min("offset").alias("first_offset"),
        F.min_by("detail", F.coalesce("offset", F.lit(0))).alias("detail"),
    )
    rows = by_log.orderBy(F.col("places").desc(), "finding", "topic", "partition", "directory").take(most)
    return Top([Damage(*row) for row in rows], by_log.count() - len(rows))


def largest_topics(topics: "DataFrame", most: int) -> Top[Topic]:
    """The topics that take the most place."""
    names = ("topic", "partitions", "records", "bytes", "bytes_per_day", "largest_share", "retention_takes_bytes")
    rows = topics.select(*names).orderBy(F.col("bytes").desc(), "topic").take(most)
    return Top([Topic(*row) for row in rows], topics.count() - len(rows))


def growth_by_day(growth: "DataFrame", most: int) -> list[Growth]:
    """What was written on each day: the largest topics, and all others together. At most 240 days: the last ones."""
    of_topics = growth.where("kind = 'topic' and day is not null")
    last_day = of_topics.agg(F.max("day")).first()[0]
    if last_day is None:
        return []
    of_topics = of_topics.where(F.date_diff(F.lit(last_day), "day") < BUCKETS_MAX)
    largest = of_topics.groupBy("name").agg(F.sum("bytes").alias("bytes")).orderBy(F.col("bytes").desc(), "name")
    names = [row.name for row in largest.take(most)]
    shown = F.when(F.col("name").isin(*names), F.col("name"))
    by_day = of_topics.groupBy(shown.alias("shown"), F.unix_date("day").alias("day")).agg(F.sum("bytes").alias("bytes"))
    found: dict[str | None, Growth] = {name: Growth(name, {}) for name in names}
    for row in by_day.orderBy("day").collect():
        found.setdefault(row.shown, Growth(row.shown, {})).bytes_on[row.day * DAY_MS] = row.bytes
    return list(found.values())


def _bucket(time: str, span: Span) -> "Column":
    """When the bucket of a time begins."""
    size = span.bucket_ms
    return F.floor(F.unix_millis(time) / size) * size


def _of_groups(rows: "DataFrame", groups: Sequence[str]) -> "DataFrame":
    return rows.where(F.col("group_id").isin(*groups)) if groups else rows.limit(0)
