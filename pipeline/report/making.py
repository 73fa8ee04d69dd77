"""`report`: runs the jobs, or takes the tables that they have written, and makes the page and the pictures of them."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barnabas.pipeline.files import Files
from barnabas.pipeline.jobs import audit, health, verify
from barnabas.pipeline.local_files import write_file
from barnabas.pipeline.report import figures
from barnabas.pipeline.report.page import Report, charts_of, page
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.table_folder import About, NoTableError, read_table
from pyspark import StorageLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AT_ONCE = 3  # jobs, or figures
TOPICS = 5  # of the growth by day
TABLES = (
    *("lag", "health", "generations", "leaders", "audit", "verify"),
    *("capacity/topics", "capacity/growth", "capacity/full"),
)
JOB_OF = {"generations": "health", "leaders": "health"} | {
    name: "capacity" for name in TABLES if name.startswith("capacity/")
}
OPTIONAL = "capacity/full"  # only with --free


def make_report(run: Run, jobs: Mapping[str, Callable[[Run], Summary]]) -> Summary:
    """Write the page, and the pictures if they are asked for."""
    refused = run_jobs(run, jobs) if run.source else {}
    report, tables = read_tables(run, refused)
    fill(report, tables, run.settings["top"])
    path = Path(run.settings["page"])
    content = page(report).encode()
    write_file(path, content)
    names = []
    for chart in charts_of(report) if run.settings["pictures"] else ():
        names.append(f"{chart.name}.png")
        write_file(Path(run.settings["pictures"]) / names[-1], chart.png())
    sentence = f"{path} has {len(content):,} bytes."
    if names:
        sentence += f" {', '.join(names)} are in {run.settings['pictures']}."
    if report.missing:
        sentence += f" Missing: {', '.join(report.missing)}."
    return Summary(
        f"{sentence} Not well at the end:",
        ("group", "topic", "check", "status", "#partitions", "since"),
        [
            (one.group, one.topic, one.check, one.status, one.partitions, _time(one.since_ms))
            for one in (report.unwell.rows if report.unwell else ())
        ],
        is_empty=report.span is None and not (report.topics and report.topics.rows),
    )


def run_jobs(run: Run, jobs: Mapping[str, Callable[[Run], Summary]]) -> dict[str, str]:
    """Run every job that the page needs; which ones cannot read such a source, and why."""
    every_s = run.settings["every_s"]
    settings: dict[str, dict[str, Any]] = {
        "lag": {"every_s": every_s},
        "health": {"every_s": every_s, "retention_s": health.RETENTION_S, "soon_s": health.SOON_S},
        "audit": {"clocks_differ_s": audit.CLOCKS_DIFFER_S},
        "capacity": {"retention_ms": None, "free_bytes": run.settings["free_bytes"], "replicas": 1, "keys": False},
        "verify": {"compacted": verify.COMPACTED},
    }
    refused = {}

    def do(name: str) -> None:
        try:
            jobs[name](replace(run, settings=settings[name], is_silent=True))
        except ValueError as error:
            refused[name] = str(error)

    # A job removes the folder in which tables are made when it is empty, and the others are still at work in it.
    files, at_work = Files(run.spark, run.out), f"{run.out}/_making/_report"
    files.write(at_work, "")
    side_by_side([partial(do, name) for name in settings])
    files.remove(at_work)
    files.remove_if_empty(f"{run.out}/_making")
    return refused


def side_by_side(works: Sequence[Callable[[], object]]) -> None:
    """Do several things that wait for Spark, which plans one while it computes another. The first error counts.

    What is at work after an error, or Ctrl-C, ends with the session.
    """
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for done in as_completed([pool.submit(work) for work in works]):
            done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def read_tables(run: Run, refused: Mapping[str, str]) -> "tuple[Report, dict[str, DataFrame]]":
    """The tables that are there, and a report that says which ones are not."""
    tables: dict[str, DataFrame] = {}
    missing: dict[str, str] = {}
    made: dict[str, About] = {}
    for name in TABLES:
        job = JOB_OF.get(name, name)
        if job in refused:
            missing[job] = refused[job]
            continue
        try:
            tables[name], about = read_table(run.spark, run.out, name)
        except NoTableError as error:
            if name != OPTIONAL:
                missing[name if job in tables else job] = f"{error}: run `barnabas pipeline {job}`"
            continue
        made.setdefault(job, about)
    report = Report(str(run.source), datetime.now(UTC), version("barnabas"), missing=missing)
    if not run.source:
        sources = list(dict.fromkeys(about.source for about in made.values()))
        report.source = " and ".join(sources) or f"the tables in {run.out}"
        times = sorted(about.when() for about in made.values())
        report.read_at = f"{times[0]} to {times[-1]}" if times else None
        if len(sources) > 1:
            report.notes = {job: f"From {about.source}, as it was at {about.when()}." for job, about in made.items()}
    return report, tables


def fill(report: Report, tables: "Mapping[str, DataFrame]", most: int) -> None:
    """Put the numbers of the tables into the report."""
    lag, health_changes, found = tables.get("lag"), tables.get("health"), tables.get("audit")
    generations = tables.get("generations")
    span = figures.span_of(*(table for table in (lag, health_changes, found, generations) if table is not None))
    report.span = span
    parts: dict[str, Callable[[], Any]] = {}  # by their names in the report
    if span is not None:
        totals = None if lag is None else figures.by_topic(lag).persist(StorageLevel.DISK_ONLY)
        if totals is not None:
            parts["lag"] = lambda: figures.lag_over_time(totals, span, most)
            parts["movers"] = lambda: figures.movers(totals, most)
            parts["behind"] = lambda: figures.furthest_behind(totals, most)
        if health_changes is not None:
            parts["groups_not_ok"] = lambda: figures.groups_not_ok(health_changes)
            parts["unwell"] = lambda: figures.unwell(health_changes, lag, most)
            parts["timelines"] = lambda: figures.timelines(health_changes, found, generations, span, most, totals)
        if found is not None:
            parts["findings"] = lambda: figures.findings(found, most)
            parts["moves"] = lambda: figures.moves(found, most)
            parts["jumps"] = lambda: figures.jumps(found, most)
    if "leaders" in tables:
        parts["leader_changes"] = partial(figures.leader_changes, tables["leaders"], most)
    if "verify" in tables:
        parts["damage"] = partial(figures.damage, tables["verify"], most)
    if "capacity/topics" in tables:
        parts["topics"] = partial(figures.largest_topics, tables["capacity/topics"], most)
    if "capacity/growth" in tables:
        parts["growth"] = partial(figures.growth_by_day, tables["capacity/growth"], TOPICS)

    def put(name: str) -> None:
        setattr(report, name, parts[name]())

    side_by_side([partial(put, name) for name in parts])
    if report.damage is not None and report.damage.rows:
        report.notes["verify"] = (
            report.notes.get("verify", "") + " A batch that a broker is writing is not whole yet: if brokers ran "
            "meanwhile, stop them and look again."
        ).strip()
    if OPTIONAL in tables:
        free_bytes, _, full_at = tables[OPTIONAL].first()
        when = "never" if full_at is None else f"on {full_at.astimezone(UTC):%Y-%m-%d %H:%M}"
        report.full = f"If everything goes on like this, the free {free_bytes:,} bytes are full {when}."


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
