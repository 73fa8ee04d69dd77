"""`barnabas pipeline`: offsets, lag and health of groups over time, as Parquet tables, by Spark.

Spark is imported when a job runs. The jobs themselves are in `barnabas.pipeline`.
"""

import errno
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer
from barnabas.cli.shared.exits import ExitCode, Failure, fail, key_values, say
from barnabas.cli.shared.target import addresses_of
from barnabas.cli.shared.terminal import AsJson, new_app, print_json, print_table
from barnabas.cli.shared.words import shown as one_line
from barnabas.cluster.topic_names import topic_name_problem

app = new_app("""Offsets, lag and health of groups over time, as Parquet tables, by Spark.

    \b
    pip install 'barnabas\\[spark]'                                       and Java 17 or newer
    barnabas pipeline offsets --source 127.0.0.1:9092 --out ./tables     every commit, by day
    barnabas pipeline lag --source ./data --out ./tables                 how far behind, minute by minute
    barnabas pipeline health --source ./data --out ./tables              when each group was not well
    barnabas pipeline report --source ./data --out report.html           all of it as one page to look at

    Each job reads brokers, or data directories (also while their brokers run), and ends with a short table.
    """)

HOUR_S = 3600
TIMES = ["%Y-%m-%d", *(f"%Y-%m-%d{between}%H:%M{more}" for between in "T " for more in ("", ":%S", "%z", ":%S%z"))]
CELL_MAX = 60
OF_GROUPS = ("offsets", "lag", "audit", "health")

Every = Annotated[int, typer.Option("--every", min=1, max=86_400, metavar="SECONDS", help="A look every so many.")]
Trigger = Annotated[
    int, typer.Option("--trigger", min=0, metavar="SECONDS", help="With --follow: take what is new every so many.")
]
FreeBytes = Annotated[
    int | None, typer.Option("--free", min=0, metavar="BYTES", help="Free bytes of all disks: when will they be full?")
]


@dataclass(frozen=True, kw_only=True)
class Spark:
    """How Spark runs on this machine."""

    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Memory of Spark on this machine, such as 4g.")
    ] = "2g"
    setting: Annotated[
        list[str] | None,
        typer.Option("--spark", metavar="KEY=VALUE", help="A setting of Spark; repeat it for several."),
    ] = None

    def settings(self) -> dict[str, str]:
        """What ends the command is said at its end, without the stacks of Java."""
        own = {"spark.driver.memory": self.memory, "spark.log.level": "FATAL"}
        return own | key_values(self.setting or (), "--spark")


@dataclass(frozen=True, kw_only=True)
class Job(Spark):
    """What every job reads and writes."""

    source: Annotated[
        str,
        typer.Option(
            "--source", "-s", metavar="HOST:PORT|DIR", help="Brokers or data directories; several with commas."
        ),
    ]
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="Where the tables go: DIR/NAME of the job.")]
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What the tables are."""

    format: Annotated[
        str,
        typer.Option(
            "--format", metavar="NAME", help="parquet, or another one that the session has, like delta, iceberg."
        ),
    ] = "parquet"
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="Write to this table of a catalog, e.g. of Iceberg.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Additions(Tables):
    """Of jobs that add what is new."""

    on_loss: Annotated[
        str,
        typer.Option(
            "--on-loss",
            metavar="stop|continue",
            help="Records that are gone before they were read (retention, a deleted topic): end there with exit code "
            "7, or go on behind them, say what was lost, and end with 8.",
        ),
    ] = "stop"
    tell_nothing_new: Annotated[
        bool, typer.Option("--tell-nothing-new", help="End with exit code 9 if nothing was new.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """Of jobs that a streaming query can do."""

    stream: Annotated[
        bool,
        typer.Option("--stream", help="Add to DIR/live what is new since the last such run, by a streaming query."),
    ] = False
    follow: Annotated[bool, typer.Option("--follow", help="The same as the logs grow, until Ctrl-C.")] = False
    trigger_s: Trigger = 10
    delay_s: Annotated[
        int, typer.Option("--delay", min=0, metavar="SECONDS", help="So long a streaming query waits for what is late.")
    ] = 30


@app.command()
def offsets(
    additions: Additions,
    job: Job,
    at: Annotated[
        datetime | None,
        typer.Option(
            formats=TIMES, metavar="TIME", help="Show what was committed then, not in the end; UTC if it has no zone."
        ),
    ] = None,
    delete_retention: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="HOURS", help="delete.retention.ms of the brokers. Else they are asked; files: 24."
        ),
    ] = None,
) -> None:
    """Add every commit that is not there yet to DIR/offsets, by day.

    Running it again adds only what is new. It shows what was committed in the end, or at some time.

    \b
    barnabas pipeline offsets --source 127.0.0.1:9092 --out ./tables
    barnabas pipeline offsets --source ./data --out ./tables --at 2026-11-21T12:00:00
    """
    when = None if at is None else at.replace(tzinfo=at.tzinfo or UTC)
    _run("offsets", job, at=when, delete_retention_ms=_milliseconds(delete_retention), **vars(additions))


@app.command()
def lag(streaming: Streaming, additions: Additions, job: Job, every: Every = 60) -> None:
    """How far behind each group was, in records and seconds, at the end of every minute.

    \b
    barnabas pipeline lag --source ./data --out ./tables
    barnabas pipeline lag --source ./data --out ./tables --every 600
    barnabas pipeline lag --source 127.0.0.1:9092 --out ./tables --follow
    """
    _run("lag", job, every_s=every, **vars(streaming), **vars(additions))


@app.command()
def audit(
    tables: Tables,
    job: Job,
    clocks_differ: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="By how much clocks of producers may be behind or ahead.")
    ] = 60,
) -> None:
    """Records that a group read twice or never, commits that it should not have made, and who moved what from where.

    Who it was (client, host, principal, member, and why) says the offset journal, if the brokers write one
    (offsets.journal.enable). With it, offsets that were deleted or have expired are named, too.

    \b
    barnabas pipeline audit --source ./data --out ./tables
    """
    _run("audit", job, clocks_differ_s=clocks_differ, **vars(tables))


@app.command()
def health(
    streaming: Streaming,
    additions: Additions,
    job: Job,
    every: Every = 60,
    retention: Annotated[
        float, typer.Option(min=0, metavar="HOURS", help="offsets.retention.minutes of the brokers, in hours.")
    ] = 168,
    soon: Annotated[float, typer.Option(min=0, metavar="HOURS", help="Offsets that expire within this time.")] = 24,
    behind: Annotated[
        float, typer.Option(min=0, metavar="HOURS", help="Groups whose first unread record is older are BEHIND.")
    ] = 1,
    produce: Annotated[
        str | None,
        typer.Option(
            "--produce",
            metavar="HOST:PORT,…",
            help="With --stream or --follow: also produce each change to the topic barnabas.health of these brokers.",
        ),
    ] = None,
) -> None:
    """When each group stopped, stalled, rewound or fell behind, rebalanced all the time, or was about to lose offsets.

    \b
    barnabas pipeline health --source ./data --out ./tables
    barnabas pipeline health --source 127.0.0.1:9092 --out ./tables --follow
    barnabas pipeline health --source 127.0.0.1:9092 --out ./tables --follow --produce 127.0.0.1:9092
    """
    if produce is not None and not (streaming.stream or streaming.follow):
        fail("--produce needs --stream or --follow.", ExitCode.NOT_VALID)
    if produce is not None and (additions.table is not None or additions.format != "parquet"):
        fail("--produce reads what comes to DIR/live/health: not with --table or --format.", ExitCode.NOT_VALID)
    brokers = [one.strip() for one in (produce or "").split(",") if one.strip()]
    seconds = {name: int(hours * HOUR_S) for name, hours in (("retention_s", retention), ("soon_s", soon))}
    words: dict[str, Any] = {"every_s": every, **seconds, "behind_s": int(behind * HOUR_S), "produce_to": brokers}
    _run("health", job, **words, **vars(streaming), **vars(additions))


@app.command()
def capacity(
    job: Job,
    retention: Annotated[
        float | None, typer.Option(min=0, metavar="HOURS", help="What would a retention of so many hours remove?")
    ] = None,
    free: FreeBytes = None,
    replicas: Annotated[int, typer.Option(min=1, metavar="N", help="Replicas of the topics.")] = 1,
    keys: Annotated[bool, typer.Option(help="Also find the keys with the most records (reads all records).")] = False,
) -> None:
    """How topics and groups grow, what retention takes, when disks are full, and where the load is uneven.

    \b
    barnabas pipeline capacity --source ./data --out ./tables --free 50000000000 --replicas 3
    """
    _run("capacity", job, retention_ms=_milliseconds(retention), free_bytes=free, replicas=replicas, keys=keys)


@app.command()
def verify(
    job: Job,
    compacted: Annotated[
        str,
        typer.Option(
            metavar="TOPIC,…",
            help="Topics that are compacted, so offsets may be missing; also those that a broker has cleaned.",
        ),
    ] = "__consumer_offsets,__transaction_state",
) -> None:
    """Whether the logs in data directories are whole: batches, offsets, indexes, replicas. Exit code 1 if they are not.

    Stop the brokers first.

    \b
    barnabas pipeline verify --source ./data --out ./tables
    """
    _run("verify", job, compacted=tuple(name.strip() for name in compacted.split(",") if name.strip()))


@app.command()
def export(
    additions: Additions,
    job: Job,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic.")],
    json_schema: Annotated[
        str | None,
        typer.Option("--json-schema", metavar="COLUMNS", help="Read the values as JSON objects with these columns."),
    ] = None,
    avro_schema: Annotated[
        str | None,
        typer.Option("--avro-schema", metavar="FILE", help="Read the values as Avro with the schema in this file."),
    ] = None,
    avro_skip: Annotated[
        int,
        typer.Option("--avro-skip", min=0, metavar="BYTES", help="Bytes before each value; a schema registry needs 5."),
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the topic grows, until Ctrl-C.")] = False,
    trigger: Trigger = 10,
) -> None:
    """Add the records of a topic that are not there yet to DIR/export/TOPIC, by day.

    With a schema, records whose value cannot be read are put aside in outcome=bad, with the reason.

    \b
    barnabas pipeline export --source ./data --out ./tables --topic orders
    barnabas pipeline export --source ./data --out ./tables --topic orders --json-schema 'id bigint, amount double'
    """
    if json_schema and avro_schema:
        fail("--json-schema and --avro-schema: one of the two.", ExitCode.NOT_VALID)
    problem = None if "*" in topic else topic_name_problem(topic)
    if problem:
        fail(f"--topic: {problem}.", ExitCode.NOT_VALID)
    words: dict[str, Any] = {"topic": topic, "json_schema": json_schema, "avro_skip_bytes": avro_skip}
    words |= {"avro_schema_file": avro_schema, "follow": follow, "trigger_s": trigger}
    _run("export", job, **words, **vars(additions))


@app.command()
def report(
    spark: Spark,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The page, such as report.html.")],
    source: Annotated[
        str, typer.Option("--source", "-s", metavar="HOST:PORT|DIR", help="Run the jobs on this, as they say.")
    ] = "",
    tables: Annotated[
        str, typer.Option(metavar="DIR", help="Where the tables go. Without --source: show those that are there.")
    ] = "",
    png: Annotated[str, typer.Option(metavar="DIR", help="Also write each picture as a PNG file to this folder.")] = "",
    top: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="How many groups and topics are shown.")] = 12,
    every: Every = 60,
    free: FreeBytes = None,
    as_json: AsJson = False,
) -> None:
    """Draw lag, health, audit, verify and capacity as one page, which needs nothing but a browser.

    \b
    barnabas pipeline report --source ./data --out report.html                 run all jobs, and draw what they say
    barnabas pipeline report --tables ./tables --out report.html               draw what jobs have written before
    barnabas pipeline report --source ./data --out report.html --png ./png     and the pictures as files
    """
    from barnabas.pipeline.local_files import folder_or_temporary

    if not source and not tables:
        fail("say --source (run the jobs), or --tables (show what they have written).", ExitCode.NOT_VALID)
    with folder_or_temporary(tables) as folder:
        job = Job(source=source, out=folder, as_json=as_json, **vars(spark))
        _run("report", job, page=out, pictures=png, top=top, every_s=every, free_bytes=free)


@app.command()
def prepare(spark: Spark) -> None:
    """Let small runs start in half of the time: keep Spark's classes as Java has them, in the user's cache.

    Once for each version of Java and Spark; it takes half a minute, and about 200 MB in ~/.cache/barnabas.
    """
    from barnabas.pipeline.java_classes import make_archive
    from barnabas.pipeline.session import what_is_missing
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    missing = what_is_missing()
    if missing:
        fail(f"{missing}.")
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        fail("under spark-submit Java has started already: prepare where the command runs by itself.")
    try:
        path = make_archive(spark.settings())
    except (OSError, PySparkException, Py4JError) as error:
        fail(_sentence(str(error)))
    print(f"{path} has {path.stat().st_size:,} bytes. Runs take Spark's classes from there.")


def _milliseconds(hours: float | None) -> int | None:
    return None if hours is None else int(hours * HOUR_S * 1000)


def no_commits(*, is_stream: bool) -> str:
    """Why a job about groups may have found nothing. A streaming query closes a window by what comes after it."""
    lately = "in the last window, or nothing came after its window" if is_stream else "a few seconds ago"
    return (
        f": no group has committed anything that is there, unless it was {lately}. "
        "Of a cluster, name all data directories or a broker"
    )


def _run(name: str, job: Job, *, tell_nothing_new: bool = False, **words: Any) -> None:
    """Run a job, show its progress and its table, and end with its exit code."""
    from barnabas.pipeline.local_files import BusyError, OutError, check_file, only_run_in

    if words.get("on_loss", "stop") not in ("stop", "continue"):
        fail(f"--on-loss {words['on_loss']}: it can be stop or continue.", ExitCode.NOT_VALID)
    if tell_nothing_new and not (words.get("stream", True) or words["follow"]):
        fail(
            f"--tell-nothing-new needs --stream or --follow: without them {name} writes its last day anew each time.",
            ExitCode.NOT_VALID,
        )
    if not job.out.strip():  # as of a variable that is not set
        fail("--out is empty: name a folder.", ExitCode.NOT_VALID)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # schedulers say so what people say by Ctrl-C
    spark_settings = job.settings()
    where = _source_of(job.source, name)
    try:
        if name == "report":
            check_file(words["page"])
        with only_run_in(job.out):
            out = job.out.rstrip("/") or "/"
            summary = _summary(name, where, out, spark_settings, words, is_plain=not job.setting)
    except BusyError as error:
        fail(f"{error}.", ExitCode.TRY_AGAIN)
    except OutError as error:
        fail(f"{error}.")
    _show(summary, job.as_json)
    if summary.has_failed:
        raise typer.Exit(ExitCode.FAILED)
    if summary.has_lost:
        raise typer.Exit(ExitCode.WENT_ON)
    if summary.is_empty:
        of_groups = no_commits(is_stream=words.get("stream", False)) if job.source and name in OF_GROUPS else ""
        what = "Nothing new was there" if name == "export" else "Nothing was there"  # its table may have been emptied
        if name == "export" and _lacks(where, words["topic"]):
            what = f"There is no topic {words['topic']}"
        say(f"{what} to read in {job.source or job.out}{of_groups}.")
        raise typer.Exit(ExitCode.NOTHING_THERE)
    if tell_nothing_new and summary.added == 0:
        raise typer.Exit(ExitCode.NOTHING_NEW)


def _lacks(source: Any, topic: str) -> bool:
    """Whether a source has no topic of this name, or of this pattern. False, too, if it does not say."""
    from barnabas.pipeline.wire import UnreachableError

    with suppress(OSError, UnreachableError):
        return not any(fnmatchcase(each, topic) for each in source.partition_counts())
    return False


def _source_of(text: str, job: str) -> Any:
    """What `--source` says. Ends the command if it cannot be read, or Spark cannot run here."""
    from barnabas.pipeline.session import what_is_missing
    from barnabas.pipeline.source import Source as Origin
    from barnabas.pipeline.source import source_of

    try:
        source = Origin() if job == "report" and not text else source_of(text)
    except ValueError as error:
        fail(f"--source {error}.", ExitCode.NOT_VALID)
    except OSError as error:
        fail(f"--source {text} cannot be read: {(error.strerror or str(error)).lower()}.")
    missing = what_is_missing("matplotlib" if job == "report" else "pyspark")
    if missing:
        fail(f"{missing}.")
    refused = source.refused()
    if refused:
        _tell_what_is_there(source.brokers)
        fail(f"no broker of --source can be reached: {refused}.", ExitCode.TRY_AGAIN)
    return source


def _show(summary: Any, as_json: bool) -> None:
    """The sentence, and the table to which its end leads."""
    if as_json:
        names = [column.removeprefix("#").replace(" ", "_") for column in summary.columns]
        print_json({"summary": summary.sentence, "rows": [dict(zip(names, row)) for row in summary.rows]})
        return
    print(summary.sentence if summary.rows or not summary.sentence.endswith(":") else f"{summary.sentence} nothing.")
    if summary.rows:
        print()
        print_table(summary.columns, [[_cell(value) for value in row] for row in summary.rows])


def _tell_what_is_there(brokers: Sequence[str]) -> None:
    """End the command if what is at the addresses will never be a broker."""
    from barnabas.cli.shared.probe import Outcome, look

    try:
        found = look(addresses_of(",".join(brokers)))
    except Failure:  # what cannot be an address, beside others that can
        return
    if found.outcome is Outcome.FOREIGN:
        fail(f"--source: {found.words}.", ExitCode.NOT_VALID)


def _summary(
    job: str, source: Any, out: str, spark_settings: dict[str, str], words: dict[str, Any], *, is_plain: bool
) -> Any:
    """What a job says in the end. `is_plain`: nobody has said how Spark is to be."""
    import logging

    from barnabas.pipeline.errors import LostRecordsError
    from barnabas.pipeline.progress import shown
    from barnabas.pipeline.run import Run
    from barnabas.pipeline.runs import run_job, size_of
    from barnabas.pipeline.session import forgets_tables, start_session
    from barnabas.pipeline.wire import UnreachableError
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    logging.getLogger().addHandler(logging.NullHandler())  # py4j logs what it also raises, such as Ctrl-C
    spark = None
    try:
        summary = _without_spark(job, source, out, words) if is_plain else None
        if summary is not None:
            return summary
        try:
            spark = start_session(f"barnabas {job}", spark_settings, size_of(job, source, out, words))
        except (PySparkException, Py4JError) as error:
            what = _sentence(str(error))
            fail(f"Spark does not start: {what} What Java says is above. Look at --spark and --memory.")
        table = words.get("table")
        if table and forgets_tables(spark, table):
            raise ValueError(
                f"--table {table}: this catalog forgets its tables when the run ends. Name one that keeps them "
                "(--spark spark.sql.catalog.NAME=…), or say --spark spark.sql.catalogImplementation=hive"
            )
        with shown(spark, job):
            return run_job(job, Run(spark, source, out, words))
    except ValueError as error:
        fail(f"{error}.", ExitCode.NOT_VALID)
    except UnreachableError as error:
        fail(f"{error}.", ExitCode.TRY_AGAIN)
    except LostRecordsError as error:
        fail(f"{error}.", ExitCode.STOPPED_AT_LOSS)
    except OSError as error:
        if error.errno == errno.ENOSPC and not error.filename:
            fail(f"--out {out} cannot be written: no space left on device.")
        fail(f"{error}.")
    except (PySparkException, Py4JError) as error:
        fail(_sentence(str(error)), _code(str(error)))
    finally:
        if spark is not None:
            spark.stop()


def _without_spark(job: str, source: Any, out: str, words: dict[str, Any]) -> Any:
    """What a job says that needs no Spark; None: it does."""
    from barnabas.pipeline.small_export import small_export
    from barnabas.pipeline.small_lag import small_lag

    if job == "lag":
        return small_lag(source, out, words)
    return small_export(source, out, words) if job == "export" else None


def _cell(value: Any) -> Any:
    """A value that takes one line and no more than its share of it: clients may call their groups anything."""
    if not isinstance(value, str):
        return value
    line = one_line(value)
    return line if len(line) <= CELL_MAX else f"{line[: CELL_MAX - 1]}…"


def _code(error: str) -> ExitCode:
    """What a scheduler can do about an error of Spark."""
    if "LostRecordsError: " in error:
        return ExitCode.STOPPED_AT_LOSS
    return ExitCode.TRY_AGAIN if "UnreachableError: " in error else ExitCode.FAILED


def _sentence(error: str) -> str:
    """What was wrong, of an error of Spark: its innermost cause, in Java or in Python; else its first line."""
    # py4j puts ": " before the error of Java; Java puts "Caused by: " before the ones inside it.
    lines = [line.strip().removeprefix("Caused by: ").removeprefix(": ") for line in error.splitlines() if line.strip()]
    raised = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception")) and ": " in line]
    if not raised:
        return lines[0]
    # "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device": the names say nothing to a person.
    words = re.sub(r"^((\w+\.)+[\w$]+: )+", "", raised[-1])
    return f"{words.removesuffix('.')}."
