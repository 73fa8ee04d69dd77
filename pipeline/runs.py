"""What `barnabas pipeline NAME` runs: reads the tables that a job needs, writes what it says, and sums it up."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.pipeline import log_files, losses
from barnabas.pipeline.batches import OFFSETS_END
from barnabas.pipeline.export_files import exported
from barnabas.pipeline.history_folder import CODEC, Added, HistoryFolder
from barnabas.pipeline.history_state import Plan, sentences
from barnabas.pipeline.jobs import audit, capacity, changes, export, health, kept, lag, leaders, offsets, verify
from barnabas.pipeline.jobs.health_stream import health_stream
from barnabas.pipeline.jobs.lag_stream import lag_stream
from barnabas.pipeline.local_files import folder_bytes
from barnabas.pipeline.options import READ_COMMITTED, ranges_text
from barnabas.pipeline.run import SILENT, Run, Summary, computed_once
from barnabas.pipeline.schemas import RECORDS
from barnabas.pipeline.session import SMALL_BYTES
from barnabas.pipeline.source import Source
from barnabas.pipeline.streamed import ToTopic
from barnabas.runtime.counted import counted
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_MAX = 20  # of a summary
HEALTH_TOPIC = "barnabas.health"
PARTITIONS = "spark.sql.shuffle.partitions"
ADAPTIVE = "spark.sql.adaptive.enabled"  # plans each step anew when the one before it is done


def run_job(name: str, run: Run) -> Summary:
    """Run a job. ValueError: it cannot read such a source."""
    is_small = is_small_run(name, run)
    with TemporaryDirectory(prefix="barnabas-") if is_small else nullcontext() as folder:
        run = replace(run, job=name, small_tables=None if folder is None else Path(folder))
        if is_small:
            context = run.spark.sparkContext
            for name_of, value in ((PARTITIONS, str(context.defaultParallelism)), (ADAPTIVE, "false")):
                if not context.getConf().contains(name_of):
                    run.spark.conf.set(name_of, value)
        summary = RUNS[name](run)
        held = "" if run.is_silent else run.held()
    return with_losses(summary, run.lost, run.aside, held)


def with_losses(summary: Summary, lost_folder: str, aside: str | None, held: str = "") -> Summary:
    """The same, and what was lost, put aside, or held back."""
    lost = losses.tell(lost_folder)
    more = losses.sentences(lost)
    put_aside = 0 if aside is None else len(list(Path(aside).glob("[!.]*.json")))
    if put_aside:
        more.insert(0, f"{counted(put_aside, 'corrupt batch is', 'corrupt batches are')} in {aside}.")
    if held:
        more.append(f"{held}.")
    has_lost = any(not one.is_news for one in lost)
    # The last sentence leads to the table below it.
    return replace(summary, sentence=" ".join([*more, summary.sentence]), has_lost=has_lost)


def is_small_run(name: str, run: Run) -> bool:
    """Whether there is so little to read that the fixed cost is most of the run.

    Such a run reads its source in this process, and what Spark keeps has fewer partitions than 200. A stream keeps for
    good the number that it began with, so it begins with Spark's. On a cluster only its own processes may see files.
    """
    if run.is_streaming or name == "export" or not run.spark.sparkContext.master.startswith("local"):
        return False
    return is_small(name, run.source, run.out, run.settings)


def is_small(name: str, source: Source, out: str, settings: Mapping[str, Any]) -> bool:
    """The same of a run without Spark."""
    size = size_of(name, source, out, settings)
    return size is not None and size < SMALL_BYTES


def size_of(name: str, source: Source, out: str, settings: Mapping[str, Any]) -> int | None:
    """About how many bytes a job will read; None: this is not known."""
    topics = {"offsets": (OFFSETS_TOPIC,), "export": (settings.get("topic", ""),)}.get(name, ())
    there = source.size_bytes(topics)
    kept = {"offsets": "offsets", "report": ""}.get(name)
    before = 0 if kept is None else folder_bytes(f"{out}/{kept}")
    return None if there is None or before is None else there + before


def run_offsets(run: Run) -> Summary:
    """Add new commits to the history."""
    if run.settings.get("table"):
        return _run_offsets_in_catalog(run)
    folder = HistoryFolder(run.spark, f"{run.out}/offsets", run.source.identity())
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    ends, retention_ms = run.source.commit_logs(), run.settings.get("delete_retention_ms")
    if retention_ms is None:
        retention_ms = run.source.delete_retention_ms()
    plan = folder.plan(ends, now_ms, delete_retention_ms=retention_ms)
    added, compacted = Added(0, 0), 0
    if plan.ranges:
        # What may be here already is compared with what is here, so Spark must see the rows.
        files = None if plan.again else run.files(folder.staged, CODEC)
        commits = run.table("commits", ranges=ranges_text(plan.ranges), holes="true", **(files or {}))
        added = folder.append(commits, plan, ends, now_ms, _in_logs(run, plan))
        compacted = folder.compact() if added.count else 0
    else:
        folder.save(folder.state.after(plan, (), ends, now_ms))
    at = run.settings.get("at")
    found = folder.state.said if at is None else None
    if found is None:
        found = _committed(folder.read(), at)
    count = folder.state.count if folder.state.count is not None else folder.read().count()
    if at is None:
        folder.save(replace(folder.state, said=found, count=count))
    sentence = f"{counted(added.count, 'commit')} added, {count:,} in {run.out}/offsets"
    if added.gone:
        sentence += f"; of them {counted(added.gone, 'tombstone')} for what the log does not have any more"
    if compacted:
        sentence += f"; the files of {counted(compacted, 'folder')} were put together"
    missing = sentences(folder.state.holes, plan)
    return _offsets_summary(f"{sentence}. {missing}" if missing else sentence, at, found, count, added.count)


def _run_offsets_in_catalog(run: Run) -> Summary:
    """The same by a stream, which a table of a catalog takes once."""
    commits = offsets.history(run.stream("commits", isolation=READ_COMMITTED))
    table, at = run.live("offsets"), run.settings.get("at")
    added = table.add(commits, **run.following)
    history = table.read(commits)
    count = history.count()
    sentence = f"{counted(added, 'commit')} added, {count:,} in {table.where}"
    return _offsets_summary(sentence, at, _committed(history, at), count, added)


def _offsets_summary(
    sentence: str, at: datetime | None, found: Sequence[Sequence[Any]], count: int, added: int
) -> Summary:
    return Summary(
        f"{sentence}. Committed {'now' if at is None else f'at {_time(at)}'}:",
        ("group", "topic", "#partitions", "#sum of offsets", "last commit"),
        found,
        is_empty=not count,
        added=added,
    )


def _in_logs(run: Run, plan: Plan) -> "DataFrame | None":
    """The offsets that are in the logs now, which must be asked for after what is new was read."""
    if not plan.late:
        return None
    ranges = ranges_text(dict.fromkeys(plan.late, ((0, OFFSETS_END),)))
    columns = ",".join((*offsets.GROUP_PARTITION, "log_partition", "transaction"))
    rows = run.table("commits", ranges=ranges, columns=columns)
    return rows.where(F.coalesce(F.col("transaction") != "aborted", F.lit(True)))


def _committed(history: "DataFrame", at: datetime | None) -> tuple[tuple[Any, ...], ...]:
    """What was committed at a time, by group and topic: the first rows."""
    rows = (
        offsets.newest(history, at)
        .where(~F.col("is_tombstone"))
        .groupBy("group_id", "topic")
        .agg(F.count("*").alias("partitions"), F.try_sum("offset").alias("offsets"), text(F.max("log_timestamp")))
        .orderBy("group_id", "topic")
    )
    return tuple(tuple(row) for row in rows.take(ROWS_MAX))


def run_lag(run: Run) -> Summary:
    """The lag of every group at the end of every window."""
    every_s = run.settings["every_s"]
    added, place = None, run.settings.get("table") or f"{run.out}/lag"
    if run.is_streaming:
        commits, _, batches = run.streams()
        added, rows, place = run.add("lag", lag_stream(commits, batches, every_s, run.settings["delay_s"]))
    else:
        rows = run.keep(
            "lag", lag.lag(run.commits(), run.batches(), every_s), partial(kept.lag, every_s=every_s), every_s=every_s
        )
    if run.is_silent:
        return SILENT
    # All in one query, because each costs a small run about as much as the table itself. It gives a row for each group.
    by = ("group_id", "topic")
    windows = rows.groupBy(*by, "at").agg(
        F.sum("lag_records").alias("records"), F.max("lag_seconds").alias("seconds"), F.count("*").alias("rows")
    )
    ends = windows.groupBy(*by).agg(
        F.max(F.struct("at", "records", "seconds")).alias("last"),
        F.max(F.struct("records", "at")).alias("largest"),
        F.sum("rows").alias("rows"),
    )
    groups = ends.select(
        *by,
        F.unix_seconds("last.at"),
        text(F.col("last.at")),
        *("last.records", "last.seconds", "largest.records"),
        text(F.col("largest.at")),
        "rows",
    )
    return lag_summary([GroupLag(*row) for row in groups.collect()], place, added)


class GroupLag(NamedTuple):
    """What there is of the lag of a group in a topic."""

    group_id: str
    topic: str
    end_s: int  # of the last window
    end: str
    records: int | None
    seconds: float | None
    largest_records: int | None
    largest_at: str
    rows: int


def lag_summary(groups: Sequence[GroupLag], place: str, added: int | None = None) -> Summary:
    """How far behind each group was at the end."""
    # The end is the last window: a group that was deleted before, or has expired, is behind no more.
    end_s, end = max(((group.end_s, group.end) for group in groups), default=(None, None))
    found = [group for group in groups if group.end_s == end_s]
    found.sort(key=lambda group: (group.records is None, -(group.records or 0), group.group_id, group.topic))
    count = sum(group.rows for group in groups)
    return Summary(
        f"{counted(count, 'row')} in {place}." + ("" if end is None else f" At the end ({end}):"),
        ("group", "topic", "#lag", "#seconds behind", "#largest lag", "at"),
        [
            (one.group_id, one.topic, one.records, _number(one.seconds), one.largest_records, one.largest_at)
            for one in found[:ROWS_MAX]
        ],
        is_empty=not count,
        added=added,
    )


def run_audit(run: Run) -> Summary:
    """What the commits say that should not be."""
    commits, groups, batches, journal = run.commits(), run.groups(), run.batches(), run.journal()
    now = audit.audit(commits, groups, batches, run.settings["clocks_differ_s"], journal, computed_once)
    rows = run.keep("audit", now, kept.audit)
    if run.is_silent:
        return SILENT
    last = (text(F.max("at")), F.max_by(changes.who(), F.struct("at", *changes.PLACE)))
    found = (
        rows.groupBy("group_id", "finding")
        .agg(F.count("*").alias("times"), F.sum("records").alias("records"), *last[: 1 if journal is None else 2])
        .orderBy("group_id", "finding")
    )
    sentence = f"{counted(rows.count(), 'finding')} in {run.settings.get('table') or f'{run.out}/audit'}."
    columns: tuple[str, ...] = ("group", "finding", "#times", "#records", "last")
    if journal is None:
        sentence += " There is no offset journal, so nothing says who it was."
    else:
        columns = (*columns, "by")
        gaps = journal.where("is_gap").count()
        sentence += f" The offset journal has {counted(gaps, 'gap')}, of which nothing says who it was." if gaps else ""
    return Summary(
        sentence, columns, [tuple(row) for row in found.take(ROWS_MAX)], is_empty=commits.isEmpty() and journal is None
    )


def run_health(run: Run) -> Summary:
    """Every change of the health of groups."""
    added, place = None, run.settings.get("table") or f"{run.out}/health"
    rules = {
        name: run.settings[name] for name in ("every_s", "retention_s", "soon_s", "behind_s") if name in run.settings
    }
    if run.is_streaming:
        produce_to = run.settings.get("produce_to", ())
        to_topic = ToTopic(tuple(produce_to), HEALTH_TOPIC, "group_id", "at") if produce_to else None
        now = health_stream(*run.streams(), **rules, delay_s=run.settings["delay_s"])
        added, rows, place = run.add("health", now, to_topic)
    else:
        run.keep("generations", health.generations(run.groups()), kept.generations)
        run.write("leaders", leaders.leaders(run.batches()))
        now = health.health(run.commits(), run.groups(), run.batches(), **rules)
        rows = run.keep("health", now, kept.health, every_s=rules["every_s"])
    if run.is_silent:
        return SILENT
    on = ("group_id", "topic", "partition", "check")
    last = Window.partitionBy(*on).orderBy(F.col("at").desc())
    bad = rows.withColumn("number", F.row_number().over(last)).where("number = 1 and status != 'OK'")
    found = (
        bad.groupBy("group_id", "topic", "check", "status")
        .agg(F.sort_array(F.collect_list("partition")).alias("partitions"), F.min("at").alias("since"))
        .orderBy("group_id", "topic", "check")
    )
    return Summary(
        f"{counted(rows.count(), 'change')} in {place}. Not well at the end:",
        ("group", "topic", "check", "status", "partitions", "since"),
        [
            (row.group_id, row.topic, row.check, row.status, " ".join(map(str, row.partitions)), _time(row.since))
            for row in found.take(ROWS_MAX)
        ],
        is_empty=rows.isEmpty(),
        added=added,
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
    full_at = None if free_bytes is None else capacity.full_at(topics, free_bytes, run.settings["replicas"], now)
    full_table = None if full_at is None else run.write("capacity/full", full_at)
    if run.is_silent:
        return SILENT
    sentence = f"{counted(topics.count(), 'topic')} in {run.out}/capacity."
    if full_table is not None:
        full = full_table.first()
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
    options = {"topics": ",".join(compacted), "replicas": "all", "isolation": READ_COMMITTED}
    records = run.table("records", columns="directory,topic,partition,offset,key,value", **options)
    states = run.table("records", topics=TRANSACTIONS_TOPIC, columns="key,value,offset")
    logs, entries = log_files.tables(run.spark, run.source.directories, run.small_tables)
    wrong = verify.verify(batches, logs, entries, states, compacted).unionByName(verify.keys(records, logs))
    rows = run.write("verify", wrong)
    if run.is_silent:
        return SILENT
    by_finding = (
        rows.groupBy("finding", "topic", "partition", "directory")
        .agg(F.count("*").alias("places"), F.min("offset").alias("first"))
        .orderBy("finding", "topic", "partition", "directory")
    )
    found = by_finding.take(ROWS_MAX)
    checked = batches.agg(F.count("*"), F.coalesce(F.sum("size_bytes"), F.lit(0))).first()
    what = f"{counted(checked[0], 'batch', 'batches')} ({checked[1]:,} bytes) of {counted(logs.count(), 'log')} checked"
    result = f"{counted(rows.count(), 'finding')} in {run.out}/verify" if found else "nothing is wrong"
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
    table = run.live(f"export/{topic}", export.PARTITIONED_BY, ())
    is_raw = json_schema is None and avro_schema is None and table.has_parquet_files
    codec = run.spark.conf.get("spark.sql.parquet.compression.codec", "snappy")
    as_files = run.files(table.staged, codec.lower()) if is_raw else None
    options = {"topics": topic, "isolation": READ_COMMITTED, "columns": ",".join(export.COLUMNS)}
    if as_files is None:
        files, records = None, run.stream("records", **options)
    else:  # the rows are not changed, so tasks write them
        files = run.stream("records", **options, **as_files)
        records = run.spark.createDataFrame([], StructType([RECORDS.spark[name] for name in export.COLUMNS]))
    rows = export.export(records, json_schema, avro_schema, skip_bytes)
    added = table.add(rows, files=files, **run.following)
    here = run.local(table.path) if table.has_parquet_files else None
    if here is not None:
        return export_summary(added, table.where, exported(str(here), topic))
    found = (
        table.read(rows)
        .groupBy("topic", "outcome", "reason")
        .agg(F.count("*").alias("records"), text(F.min("timestamp")), text(F.max("timestamp")))
        .orderBy("topic", F.col("outcome").desc(), "reason")
    ).take(ROWS_MAX)
    return export_summary(added, table.where, [tuple(row) for row in found])


def export_summary(added: int, place: str, found: Sequence[tuple[Any, ...]]) -> Summary:
    """What an export has added, and what is there."""
    return Summary(
        f"{counted(added, 'record')} added to {place}.",
        ("topic", "outcome", "reason", "#records", "first", "last"),
        found[:ROWS_MAX],
        is_empty=not found,
        added=added,
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
