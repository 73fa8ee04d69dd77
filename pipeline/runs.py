"""What `barnabas pipeline NAME` runs: reads the tables that a job needs, writes what it says, and sums it up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barnabas.pipeline import log_files
from barnabas.pipeline.files import Files
from barnabas.pipeline.history_folder import HistoryFolder
from barnabas.pipeline.jobs import audit, capacity, changes, export, health, lag, offsets, verify
from barnabas.pipeline.jobs.health_stream import health_stream
from barnabas.pipeline.jobs.lag_stream import lag_stream
from barnabas.pipeline.once import GROUP_PREFIX
from barnabas.pipeline.source import Source
from barnabas.pipeline.streamed import TRIGGER_S, LiveTable, ToTopic
from barnabas.pipeline.table_folder import write_table
from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_MAX = 20  # of a summary
COMMIT_COLUMNS = (
    *("group_id", "topic", "partition", "offset", "is_tombstone", "commit_timestamp", "expire_timestamp"),
    *("log_partition", "log_offset", "log_timestamp"),
)
JOURNAL_COLUMNS = (
    *("is_gap", "at", "group_id", "topic", "partition", "old_offset", "new_offset", *changes.WHO),
    *("change_offset", "end_offset", "log_partition", "log_offset"),
)
BATCH_COLUMNS = (
    *("directory", "segment", "position", "topic", "partition", "base_offset", "last_offset", "size_bytes"),
    *("base_timestamp", "max_timestamp", "record_count", "is_control", "crc", "error"),
    *("leader_epoch", "producer_id", "producer_epoch", "is_transactional", "control_type"),
)
GROWTH_COLUMNS = ("topic", "partition", "base_offset", "last_offset", "base_timestamp", "max_timestamp", "error")
HEALTH_TOPIC = "barnabas.health"
COMMITTED = "read_committed"  # what a transaction has not committed does not count


@dataclass(frozen=True)
class Summary:
    """What is said at the end: a sentence and a short table. Columns that begin with `#` hold numbers."""

    sentence: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    is_empty: bool = False  # nothing was there to work on
    has_failed: bool = False  # `verify` found damage


@dataclass
class Run:
    """One run of a job."""

    spark: "SparkSession"
    source: Source
    out: str
    settings: dict[str, Any] = field(default_factory=dict)
    kept: dict[tuple[Any, ...], "DataFrame"] = field(default_factory=dict)

    @property
    def aside(self) -> str:
        """Where corrupt batches are put."""
        return f"{self.out}/aside"

    def table(self, name: str, **options: str) -> "DataFrame":
        """A table of the source."""
        return self.source.table(self.spark, name, aside=self.aside, **options)

    def commits(self) -> "DataFrame":
        """What the jobs need of the commits."""
        return of_readers(self._kept("commits", isolation=COMMITTED, columns=",".join(COMMIT_COLUMNS)))

    def batches(self, **options: str) -> "DataFrame":
        """What the jobs need of the batches of all topics."""
        return self._kept("batches", topics="*", columns=",".join(BATCH_COLUMNS), **options)

    def journal(self) -> "DataFrame | None":
        """Who has changed which offset; None: the source has no offset journal."""
        journal = self._kept("journal", columns=",".join(JOURNAL_COLUMNS))
        return None if journal.isEmpty() else journal.where("is_gap").union(of_readers(journal))

    def groups(self) -> "DataFrame":
        """The records of groups."""
        return self._kept("groups")

    def _kept(self, name: str, **options: str) -> "DataFrame":
        """A table that is read once, and then kept on the disks of Spark, also for the next job."""
        key = (name, *sorted(options.items()))
        if key not in self.kept:
            self.kept[key] = self.table(name, **options).persist(StorageLevel.DISK_ONLY)
        return self.kept[key]

    def write(self, name: str, rows: "DataFrame") -> "DataFrame":
        """Write a table in place of what an earlier run has written there, and read it back."""
        return write_table(rows, self.out, name, str(self.source))

    def stream(self, name: str, **options: str) -> "DataFrame":
        """A table of the source as it grows."""
        return self.source.stream(self.spark, name, aside=self.aside, **options)

    def streams(self) -> "tuple[DataFrame, DataFrame, DataFrame]":
        """Commits, groups and batches as they grow."""
        commits = of_readers(self.stream("commits", isolation=COMMITTED, columns=",".join(COMMIT_COLUMNS)))
        batches = self.stream("batches", topics="*", columns=",".join(GROWTH_COLUMNS))
        return commits, self.stream("groups"), batches

    @property
    def is_streaming(self) -> bool:
        """Whether the job goes on behind what its last run has read."""
        return bool(self.settings.get("stream") or self.settings.get("follow"))

    @property
    def following(self) -> dict[str, Any]:
        """Whether a streaming query goes on until Ctrl-C, and how often it looks for what is new."""
        settings = self.settings
        return {"follow": bool(settings.get("follow")), "trigger_s": settings.get("trigger_s", TRIGGER_S)}

    def place(self, name: str) -> str:
        """Where a table goes."""
        return f"{self.out}/live/{name}" if self.is_streaming else f"{self.out}/{name}"

    def add(self, name: str, rows: "DataFrame", to_topic: ToTopic | None = None) -> "DataFrame":
        """Add to a table what the streams have now, or have until Ctrl-C, and read it back."""
        table = LiveTable(self.spark, self.place(name))
        table.add(rows, to_topic=to_topic, **self.following)
        return table.read(rows)


def of_readers(commits: "DataFrame") -> "DataFrame":
    """Without the groups by which the sink remembers where its epochs begin (`once.py`): nobody reads with them."""
    return commits.where(~F.col("group_id").startswith(GROUP_PREFIX))


def run_job(name: str, run: Run) -> Summary:
    """Run a job. ValueError: it cannot read such a source."""
    summary = RUNS[name](run)
    put_aside = sum(file.endswith(".json") for file in Files(run.spark, run.out).names(run.aside))
    if not put_aside:
        return summary
    return replace(summary, sentence=f"{summary.sentence} {put_aside} corrupt batches are in {run.aside}.")


def run_offsets(run: Run) -> Summary:
    """Add new commits to the history."""
    folder = HistoryFolder(run.spark, f"{run.out}/offsets", run.source.identity())
    added = folder.append(run.table("commits", isolation=COMMITTED))
    compacted = folder.compact()
    history = folder.read()
    at = run.settings.get("at")
    current = offsets.committed(history, at)
    rows = (
        current.groupBy("group_id", "topic")
        .agg(F.count("*").alias("partitions"), F.sum("offset").alias("offsets"), text(F.max("log_timestamp")))
        .orderBy("group_id", "topic")
    )
    when = "now" if at is None else f"at {_time(at)}"
    sentence = f"{added:,} commits added, {history.count():,} in {run.out}/offsets"
    if compacted:
        sentence += f"; the files of {compacted} folders were put together"
    return Summary(
        f"{sentence}. Committed {when}:",
        ("group", "topic", "#partitions", "#sum of offsets", "last commit"),
        [tuple(row) for row in rows.take(ROWS_MAX)],
        is_empty=not added and history.isEmpty(),
    )


def run_lag(run: Run) -> Summary:
    """The lag of every group at the end of every window."""
    every_s = run.settings["every_s"]
    if run.is_streaming:
        commits, _, batches = run.streams()
        rows = run.add("lag", lag_stream(commits, batches, every_s, run.settings["delay_s"]))
    else:
        rows = run.write("lag", lag.lag(run.commits(), run.batches(), every_s))
    last = Window.partitionBy("group_id", "topic", "partition").orderBy(F.col("at").desc())
    newest = rows.withColumn("number", F.row_number().over(last)).where("number = 1")
    totals = newest.groupBy("group_id", "topic").agg(
        F.sum("lag_records").alias("records"), F.max("lag_seconds").alias("seconds")
    )
    peaks = rows.groupBy("group_id", "topic", "at").agg(F.sum("lag_records").alias("peak"))
    peaks = peaks.groupBy("group_id", "topic").agg(F.max(F.struct("peak", "at")).alias("peak"))
    found = totals.join(peaks, ["group_id", "topic"]).orderBy(F.col("records").desc_nulls_last(), "group_id")
    return Summary(
        f"{rows.count():,} rows in {run.place('lag')}. At the end:",
        ("group", "topic", "#lag", "#seconds behind", "#largest lag", "at"),
        [
            (row.group_id, row.topic, row.records, _number(row.seconds), row.peak.peak, _time(row.peak.at))
            for row in found.take(ROWS_MAX)
        ],
        is_empty=rows.isEmpty(),
    )


def run_audit(run: Run) -> Summary:
    """What the commits say that should not be."""
    commits, groups, batches, journal = run.commits(), run.groups(), run.batches(), run.journal()
    rows = run.write("audit", audit.audit(commits, groups, batches, run.settings["clocks_differ_s"], journal))
    last = (text(F.max("at")), F.max_by(changes.who(), F.struct("at", *changes.PLACE)))
    found = (
        rows.groupBy("group_id", "finding")
        .agg(F.count("*").alias("times"), F.sum("records").alias("records"), *last[: 1 if journal is None else 2])
        .orderBy("group_id", "finding")
    )
    sentence = f"{rows.count():,} findings in {run.out}/audit."
    columns: tuple[str, ...] = ("group", "finding", "#times", "#records", "last")
    if journal is None:
        sentence += " There is no offset journal, so nothing says who it was."
    else:
        columns = (*columns, "by")
        gaps = journal.where("is_gap").count()
        sentence += f" The offset journal has {gaps:,} gaps, of which nothing says who it was." if gaps else ""
    return Summary(
        sentence, columns, [tuple(row) for row in found.take(ROWS_MAX)], is_empty=commits.isEmpty() and journal is None
    )


def run_health(run: Run) -> Summary:
    """Every change of the health of groups."""
    rules = {name: run.settings[name] for name in ("every_s", "retention_s", "soon_s") if name in run.settings}
    if run.is_streaming:
        produce_to = run.settings.get("produce_to", ())
        to_topic = ToTopic(tuple(produce_to), HEALTH_TOPIC, "group_id", "at") if produce_to else None
        rows = run.add("health", health_stream(*run.streams(), **rules, delay_s=run.settings["delay_s"]), to_topic)
    else:
        run.write("generations", health.generations(run.groups()))
        rows = run.write("health", health.health(run.commits(), run.groups(), run.batches(), **rules))
    on = ("group_id", "topic", "partition", "check")
    last = Window.partitionBy(*on).orderBy(F.col("at").desc())
    bad = rows.withColumn("number", F.row_number().over(last)).where("number = 1 and status != 'OK'")
    found = (
        bad.groupBy("group_id", "topic", "check", "status")
        .agg(F.sort_array(F.collect_list("partition")).alias("partitions"), F.min("at").alias("since"))
        .orderBy("group_id", "topic", "check")
    )
    return Summary(
        f"{rows.count():,} changes in {run.place('health')}. Not well at the end:",
        ("group", "topic", "check", "status", "partitions", "since"),
        [
            (row.group_id, row.topic, row.check, row.status, " ".join(map(str, row.partitions)), _time(row.since))
            for row in found.take(ROWS_MAX)
        ],
        is_empty=rows.isEmpty(),
    )


def run_capacity(run: Run) -> Summary:
    """Growth of topics and groups, and what will become of it."""
    commits, batches = run.commits(), run.batches()
    now, free_bytes = datetime.now(UTC), run.settings["free_bytes"]
    run.write("capacity/growth", capacity.growth(batches, commits))
    counts = run.spark.createDataFrame([*run.source.partition_counts().items()], "topic string, partitions int")
    topics = run.write("capacity/topics", capacity.topics(batches, now, run.settings["retention_ms"], counts))
    if run.settings["keys"]:
        run.write("capacity/keys", capacity.keys(run.table("records", columns="topic,partition,key")))
    sentence = f"{topics.count()} topics in {run.out}/capacity."
    if free_bytes is not None:
        full = run.write("capacity/full", capacity.full_at(topics, free_bytes, run.settings["replicas"], now)).first()
        when = "never" if full.full_at is None else f"on {_time(full.full_at)}"
        sentence += f" The free {free_bytes:,} bytes will be full {when}."
    found = topics.orderBy(F.col("bytes").desc())
    return Summary(
        sentence,
        ("topic", "#partitions", "#records", "#bytes", "#bytes a day", "#largest share"),
        [
            (row.topic, row.partitions, row.records, row.bytes, _number(row.bytes_per_day), f"{row.largest_share:.2f}")
            for row in found.take(ROWS_MAX)
        ],
        is_empty=batches.isEmpty(),
    )


def run_verify(run: Run) -> Summary:
    """What is wrong with the logs in data directories."""
    if not run.source.directories:
        raise ValueError("verify reads data directories, not brokers")
    compacted = sorted({*run.settings["compacted"], *log_files.cleaned_topics(run.source.directories)})
    batches = run.batches(replicas="all", until="log-end")
    of_records = "directory,topic,partition,offset,key,value"
    records = run.table("records", topics=",".join(compacted), replicas="all", isolation=COMMITTED, columns=of_records)
    states = run.table("records", topics=verify.TRANSACTION_STATE, columns="key,value,offset")
    logs, entries = log_files.tables(run.spark, run.source.directories)
    wrong = verify.verify(batches, logs, entries, states, compacted).unionByName(verify.keys(records, logs))
    rows = run.write("verify", wrong)
    by_finding = (
        rows.groupBy("finding", "topic", "partition", "directory")
        .agg(F.count("*").alias("places"), F.min("offset").alias("first"))
        .orderBy("finding", "topic", "partition", "directory")
    )
    found = by_finding.take(ROWS_MAX)
    checked = batches.agg(F.count("*"), F.coalesce(F.sum("size_bytes"), F.lit(0))).first()
    what = f"{checked[0]:,} batches ({checked[1]:,} bytes) of {logs.count()} logs were checked"
    result = f"{rows.count():,} findings are in {run.out}/verify" if found else "nothing is wrong"
    return Summary(
        f"{what}: {result}.",
        ("finding", "topic", "#partition", "directory", "#places", "#first offset"),
        [tuple(row) for row in found],
        is_empty=not checked[0],
        has_failed=bool(found),
    )


def run_export(run: Run) -> Summary:
    """Add the records of a topic that are not there yet."""
    topic = run.settings["topic"]
    if "*" in topic:
        raise ValueError("export is for one topic")
    file = run.settings.get("avro_schema_file")
    try:
        avro_schema = None if file is None else Path(file).read_text()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    json_schema, skip_bytes = run.settings.get("json_schema"), run.settings.get("avro_skip_bytes", 0)
    records = run.stream("records", topics=topic, isolation=COMMITTED, columns=",".join(export.COLUMNS))
    rows = export.export(records, json_schema, avro_schema, skip_bytes)
    table = LiveTable(
        run.spark,
        f"{run.out}/export/{topic}",
        run.settings.get("format", "parquet"),
        export.PARTITIONED_BY,
        run.settings.get("table"),
    )
    added = table.add(rows, **run.following)
    there = table.read(rows)
    found = (
        there.groupBy("topic", "outcome", "reason")
        .agg(F.count("*").alias("records"), text(F.min("timestamp")), text(F.max("timestamp")))
        .orderBy("topic", F.col("outcome").desc(), "reason")
    ).take(ROWS_MAX)
    return Summary(
        f"{added:,} records added to {table.name or table.path}.",
        ("topic", "outcome", "reason", "#records", "first", "last"),
        [tuple(row) for row in found],
        is_empty=not found,
    )


def run_report(run: Run) -> Summary:
    """Run the jobs, and draw what they say."""
    from barnabas.pipeline.report.making import make_report  # it loads matplotlib, which no other job needs

    return make_report(run, RUNS)


def text(at: "Column") -> "Column":
    """A time as people write it. Of a year beyond 9999, which some clients send, Python knows no time."""
    return F.date_format(at, "yyyy-MM-dd HH:mm:ss")


def _time(at: datetime | None) -> str | None:
    """A time as people write it; Spark gives out the time zone of this machine."""
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


RUNS: dict[str, Callable[[Run], Summary]] = {
    "offsets": run_offsets,
    "lag": run_lag,
    "audit": run_audit,
    "health": run_health,
    "capacity": run_capacity,
    "verify": run_verify,
    "export": run_export,
    "report": run_report,
}
