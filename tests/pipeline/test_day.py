"""The generated day in real brokers, of which one was killed: what the jobs say of it, and what brokers answer."""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs import offsets
from barnabas.pipeline.report.making import make_report
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.runs import HEALTH_TOPIC, RUNS, run_job
from barnabas.pipeline.source import source_of
from barnabas.pipeline.sources import register
from barnabas.runtime.disk import RealDisk
from barnabas.storage import checkpoints
from broker_process import Process
from histories import rows
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError
from pyspark.sql import SparkSession
from test_report_page import Reader

from examples.__main__ import Brokers
from examples.day import GROUPS, POISON, plan_day

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
RECORDS = 3_000
COMMITS_EVERY = 3
STATUS_OF = {"search": "STOP", "fraud": "STALL", "reporting": "REWIND", "push": "STORM", "lurker": "NEVER"}
ROW_OF_TIMELINES = r'<tr role="row"><td[^>]*><div><bdi>([a-z]+)</bdi></div></td>(<td[^>]*data-label="Not well".*?)</tr>'


@dataclass
class Filled:
    """Three data directories in a folder, and the truth."""

    folder: Path
    truth: dict[str, Any]

    @property
    def committed(self) -> dict[tuple[str, str, int], int]:
        return {
            (group, topic, int(partition)): offset
            for group, of_topics in self.truth["committed"].items()
            for topic, of_partitions in of_topics.items()
            for partition, offset in of_partitions.items()
        }


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    register(spark)
    folder = tmp_path_factory.mktemp("brokers") / "day"
    words = ["--records", str(RECORDS), "--commits-every", str(COMMITS_EVERY), "--seed", "3"]
    command = [sys.executable, "-m", "examples", "--data", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "broker 1 is killed" in done.stdout
    found = Filled(folder, json.loads((folder / "truth.json").read_text()))
    # Brokers that are stopped have written how far their logs are committed; what the tables read ends there.
    disk = RealDisk()
    written = [checkpoints.read_offsets(disk, str(folder / name / checkpoints.HIGH_WATERMARKS)) for name in "012"]
    for topic, ends in found.truth["log_ends"].items():
        reached = [max(one.get((topic, partition), 0) for one in written) for partition in range(len(ends))]
        assert reached == ends, (topic, written, folder.with_suffix(".log").read_text())
    return found


@pytest.fixture(scope="module")
def brokers(filled: Filled) -> Iterator[Brokers]:
    """They run again, so their coordinators have loaded what is in the log."""
    started = Brokers(filled.folder)
    yield started
    started.stop()


def run(spark: SparkSession, name: str, source: str, out: Path, **settings: Any) -> Summary:
    return run_job(name, Run(spark, source_of(source), str(out), settings))


def test_the_day_is_the_same_whenever_it_is_made(filled: Filled) -> None:
    again = plan_day(3, filled.truth["start_ms"], RECORDS, COMMITS_EVERY)
    assert json.loads(json.dumps(again.truth)).items() <= filled.truth.items()
    assert plan_day(4, filled.truth["start_ms"], RECORDS, COMMITS_EVERY).events != again.events


def test_the_history_has_every_commit(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    summary = run(spark, "offsets", str(filled.folder), tmp_path)
    total = sum(filled.truth["commits"].values()) + sum(filled.truth["removals"].values())
    assert summary.sentence.startswith(f"{total:,} commits added")
    assert run(spark, "offsets", str(filled.folder), tmp_path).sentence.startswith("0 commits added")
    history = spark.read.parquet(str(tmp_path / "offsets"))
    found = rows(offsets.newest(history).where("not is_tombstone"))
    assert {(row["group_id"], row["topic"], row["partition"]): row["offset"] for row in found} == filled.committed
    assert Counter(row.group_id for row in history.where("not is_tombstone").collect()) == filled.truth["commits"]
    assert Counter(row.group_id for row in history.where("is_tombstone").collect()) == filled.truth["removals"]
    assert history.where("log_leader_epoch > 0").count() > 0, "a broker was killed, so others led"


def test_the_records_are_those_that_were_produced(spark: SparkSession, filled: Filled) -> None:
    records = source_of(str(filled.folder)).table(spark, "records")
    ends = {(row.topic, row.partition): row["count"] for row in records.groupBy("topic", "partition").count().collect()}
    expected = filled.truth["log_ends"]
    assert ends == {(topic, number): end for topic, all_ends in expected.items() for number, end in enumerate(all_ends)}
    poison = next(one for one in filled.truth["incidents"] if one["kind"] == "poisoned record")
    (row,) = records.where(f"topic = 'payments' and partition = 2 and offset = {poison['offset']}").collect()
    assert bytes(row.value) == POISON


def offsets_of(brokers: Brokers, group: str) -> dict[Any, Any]:
    """What the group's coordinator answers when it has loaded the log."""
    deadline = time.monotonic() + 200
    while True:
        admin = KafkaAdminClient(bootstrap_servers=brokers.bootstrap)  # one anew, which asks for the coordinator again
        try:
            return admin.list_group_offsets(group)[group]
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        finally:
            admin.close()


def test_brokers_answer_what_the_tables_say(spark: SparkSession, filled: Filled, brokers: Brokers) -> None:
    answered = {}
    for group in GROUPS:
        for place, committed in offsets_of(brokers, group.name).items():
            answered[group.name, place.topic, place.partition] = committed.offset
    assert answered == filled.committed
    over_the_wire = source_of(brokers.bootstrap).table(spark, "commits")
    found = rows(offsets.newest(offsets.history(over_the_wire)).where("not is_tombstone"))
    assert {(row["group_id"], row["topic"], row["partition"]): row["offset"] for row in found} == filled.committed


@dataclass
class Reported:
    """The report from nothing but the source, and what each of the jobs that it ran has said."""

    folder: Path
    summary: Summary
    of_jobs: dict[str, Summary]


@pytest.fixture(scope="module")
def reported(spark: SparkSession, filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    folder = tmp_path_factory.mktemp("reported")
    of_jobs: dict[str, Summary] = {}

    def recorded(name: str, job: Callable[[Run], Summary]) -> Callable[[Run], Summary]:
        def record(one: Run) -> Summary:
            if name == "capacity":
                one.settings |= {"replicas": 3, "keys": True}
            of_jobs[name] = job(replace(one, is_silent=False))
            return of_jobs[name]

        return record

    settings = {"page": str(folder / "report.html"), "pictures": str(folder / "png"), "top": 12, "every_s": 600}
    one = Run(spark, source_of(str(filled.folder)), str(folder / "tables"), settings | {"free_bytes": 1 << 30})
    summary = make_report(one, {name: recorded(name, job) for name, job in RUNS.items()})
    return Reported(folder, summary, of_jobs)


def test_each_job_ends_with_a_table(reported: Reported) -> None:
    found = reported.of_jobs
    for name in ("lag", "audit", "health", "capacity"):
        assert str(reported.folder / "tables" / name) in found[name].sentence
        assert not found[name].is_empty
        assert all(len(row) == len(found[name].columns) for row in found[name].rows)
    assert {(row[0], row[1]): row[-1] for row in found["audit"].rows} == {
        ("archive", "skipped"): "reset by offset-tool at /127.0.0.1",
        ("newsletter", "removed"): "expiry",
        ("reporting", "jumped back"): "reset by offset-tool at /127.0.0.1",
        ("reporting", "read twice"): "commit by reporting at /127.0.0.1",
    }
    topics = {"clicks", "orders", "payments", "__consumer_offsets", "__offset_journal"}  # disks fill with internal ones
    assert {row[0] for row in found["capacity"].rows} == topics
    assert next(row for row in found["lag"].rows if row[0] == "search")[2] > 0


def test_the_logs_are_whole(reported: Reported) -> None:
    """Though a broker was killed, and the followers copied on from others."""
    summary = reported.of_jobs["verify"]
    assert not summary.has_failed, summary
    assert "nothing is wrong" in summary.sentence


def test_the_report_says_what_happened(filled: Filled, reported: Reported) -> None:
    assert "Missing" not in reported.summary.sentence
    assert {(row[0], row[3]) for row in reported.summary.rows} >= {("search", "STOP"), ("lurker", "NEVER")}
    pictures = {path.name for path in (reported.folder / "png").iterdir()}
    assert pictures == {"lag.png", "timelines.png", "movers.png", "topics.png"}
    content = (reported.folder / "report.html").read_text()
    rows = dict(re.findall(ROW_OF_TIMELINES, content))
    for group, status in STATUS_OF.items():
        assert f">{status}<" in rows[group], group
    assert rows.keys() == {group.name for group in GROUPS}
    assert "always OK" in rows["billing"]
    jumps = [one for one in filled.truth["incidents"] if one["kind"] == "jump"]
    assert f"forward by {sum(one['to_offset'] - one['from_offset'] for one in jumps):,} at " in rows["archive"]
    for group, count in filled.truth["generations"].items():
        assert f"<div>{count:,}</div>" in rows[group]
    text = Reader(content).text
    alarm = text[text.index("Unread records were skipped") : text.index("groups not well")]
    for words in ("archive", "offset-tool", "barnabas offsets restore --at"):
        assert words in alarm
    killed = datetime.fromtimestamp(filled.truth["broker_killed_at_ms"] / 1000, UTC)
    found = re.search(rf"{killed:%Y-%m-%d %H}:0\d(\d+) partitions got another leader", text)
    assert found, "others led from noon on"
    assert int(found[1]) > 3, "a third of the partitions that were written to"
    behind = text[text.index("Furthest behind now") : text.index("Unread records were skipped")]
    assert re.search(r"^Furthest behind now\w+ is \d+ h.* behind on ", behind)
    assert "barnabas groups lag --watch search" in behind, "it has stopped at three"
    for words in (
        "Who moved offsets",
        "offset-tool",
        "nothing is wrong with batches",
        str(filled.folder),
        "the free 1,073,741,824 bytes are full on 20",
    ):
        assert words in content


def test_a_topic_is_exported_once(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    count = sum(filled.truth["log_ends"]["payments"])
    schema = "payment bigint, amount bigint"
    for added in (count, 0):
        summary = run(spark, "export", str(filled.folder), tmp_path, topic="payments", json_schema=schema)
        assert summary.sentence.startswith(f"{added:,} records added")
        assert [row[1:4] for row in summary.rows] == [("good", None, count - 1), ("bad", "not JSON", 1)]


def test_health_goes_to_a_topic(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    """Every change once, with its group as key; a consumer sees each status follow the one before it."""
    broker = Process(tmp_path / "broker")
    words = {"stream": True, "delay_s": 30, "every_s": 600, "produce_to": [f"127.0.0.1:{broker.port}"]}
    run(spark, "health", str(filled.folder), tmp_path, **words)
    in_table = rows(spark.read.parquet(str(tmp_path / "live/health")).drop("day"))
    settings = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 60_000}
    consumer = KafkaConsumer(HEALTH_TOPIC, bootstrap_servers=words["produce_to"], **settings)
    partitions = [TopicPartition(HEALTH_TOPIC, index) for index in consumer.partitions_for_topic(HEALTH_TOPIC) or ()]
    there = sum(consumer.end_offsets(partitions).values())
    produced = [(record.key.decode(), json.loads(record.value)) for record in islice(consumer, there)]
    consumer.close()
    for _, value in produced:
        value["at"] = round(datetime.fromisoformat(value["at"]).timestamp() * 1000)
    assert len(produced) > 100
    assert sorted((value for _, value in produced), key=str) == sorted(in_table, key=str)
    assert all(key == value["group_id"] for key, value in produced)
    status: dict[Any, Any] = {}
    for _, value in produced:
        of = tuple(value[name] for name in ("group_id", "topic", "partition", "check"))
        assert value["before"] == status.get(of)
        status[of] = value["status"]
    bad = {(of[0], now) for of, now in status.items()}
    assert {("search", "STOP"), ("newsletter", "REMOVED"), ("lurker", "NEVER")} <= bad
    broker.end()
