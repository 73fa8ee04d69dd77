"""What a running broker with an offset journal answers, and what the tables and jobs say of the same."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import forked
import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.run import Run
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.small_lag import small_lag
from barnabas.pipeline.source import source_of
from barnabas.pipeline.sources import register
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record, build
from broker_process import Client, Process
from data_directories import NOW_MS, DataDirectory
from histories import Row, rows
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition
from ports import free_port
from pyspark.sql import SparkSession
from waiting import until

pytestmark = pytest.mark.timeout(200)
FAST_CLEANING = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_ms": "100",
    "max_compaction_lag_ms": "100",
}


@dataclass
class Live:
    """The broker."""

    process: Process
    client: Client
    http: str

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.process.port}"

    def produce(self, topic: str, *times_ms: int, keys: list[bytes] | None = None) -> None:
        """One batch of records with these times."""
        records = [
            Record(index, at_ms, keys[index] if keys else None, b"value") for index, at_ms in enumerate(times_ms)
        ]
        assert self.client.produce(topic, 0, build(records)).error_code == 0

    def commit(self, group: str, topic: str, *offsets: int) -> None:
        """Commits one after the other, by a consumer that assigns its partition itself."""
        settings = {"group_id": group, "client_id": "my-app", "enable_auto_commit": False}
        with closing(KafkaConsumer(bootstrap_servers=self.bootstrap, **settings)) as consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            for offset in offsets:
                consumer.commit({place: OffsetAndMetadata(offset, "", -1)})

    def command(self, *words: str) -> "subprocess.Popen[str]":
        command = [*forked.BARNABAS, *words, "--bootstrap", self.bootstrap]
        return forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *words: str) -> str:
        """What a command prints; it must succeed."""
        with self.command(*words) as process:
            said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, said
        return said

    def lag(self, group: str) -> tuple[Row, float, float]:
        """What the broker says of a group's only partition, and between which times it said that."""
        begin_ms = time.time() * 1000
        with urlopen(f"http://{self.http}/v1/groups/{group}/lag", timeout=200) as answer:
            (row,) = json.load(answer)["partitions"]
        return row, begin_ms, time.time() * 1000


@pytest.fixture(scope="module")
def live(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """On a data directory with a topic of transactions, which no client can make yet, and a quiet topic."""
    register(spark)
    folder = tmp_path_factory.mktemp("live")
    directory = DataDirectory(folder / "data")
    log = directory.log("transactions")
    for number in range(10):
        for producer_id in (1, 2):
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": number, "transactional": True}
            directory.append(log, Record(-1, NOW_MS + 1000 * number, None, b"x"), **fields)
        directory.end_transaction(log, 2, commit=False)
        directory.end_transaction(log, 1, commit=True)
    quiet = directory.log("quiet")
    for number in range(5):
        directory.append(quiet, Record(-1, NOW_MS + 1000 * number, None, b"x"))
    directory.close()
    http = f"127.0.0.1:{free_port()}"
    settings = {"log.cleaner.backoff.ms": "50", "http.listeners": f"http://{http}"}
    process = Process(folder / "data", settings=settings, words=["--adopt"])
    client = Client(process.port)
    yield Live(process, client, http)
    client.close()
    process.end()


def test_small_lag_is_what_spark_says(spark: SparkSession, live: Live, tmp_path: Path) -> None:
    live.commit("of-small", "quiet", 1)
    source, settings = source_of(live.bootstrap), {"every_s": 60}
    without = small_lag(source, str(tmp_path / "without"), settings)
    assert without is not None
    with_spark = run_job("lag", Run(spark, source, str(tmp_path / "with"), settings))
    found, expected = ([tuple(row)[:3] for row in one.rows] for one in (without, with_spark))
    assert found == expected != []


def test_the_lag_is_the_broker_s(spark: SparkSession, live: Live, tmp_path: Path) -> None:
    """`lag` counts offsets, the broker records. What lies between the two is known here, and in the description of the
    job: markers, records that compaction took, and those that were deleted unread."""
    now_ms = int(time.time() * 1000)
    client = live.client
    for topic in ("stopped", "deleted", "spread", "beyond"):
        assert client.create_topic(topic, 1) == 0
    assert client.create_topic("compacted", 1, **FAST_CLEANING) == 0
    live.commit("of-quiet", "quiet", 2)
    live.produce("stopped", now_ms - 50_000)
    live.commit("of-stopped", "stopped", 1)
    for number in range(6):  # its consumer does not come back
        live.produce("stopped", now_ms - 40_000 + 1000 * number)
    live.commit("of-transactions", "transactions", 3)  # a marker: 40 offsets, of which 20 are markers
    for number in range(10):
        live.produce("deleted", now_ms - 30_000 + number)
    live.commit("of-deleted", "deleted", 3)
    delete = messages.DeleteRecordsRequest
    row = delete.DeleteRecordsPartition(partition_index=0, offset=7)
    request = delete(topics=[delete.DeleteRecordsTopic(name="deleted", partitions=[row])], timeout_ms=5000)
    assert client.ask(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0].error_code == 0
    live.produce("spread", now_ms - 20_000, now_ms - 18_000, now_ms - 12_000, now_ms - 10_000)
    live.commit("of-spread", "spread", 1)
    for number in range(10):
        live.produce("compacted", now_ms - 9_000 + number, keys=[b"even" if number % 2 == 0 else b"odd"])
    time.sleep(0.12)
    live.produce("compacted", now_ms - 8_000, keys=[b"begins another segment"])
    live.commit("of-compacted", "compacted", 1)
    live.produce("beyond", now_ms)
    live.commit("of-beyond", "beyond", 5)
    until(lambda: live.lag("of-compacted")[0]["read_uncommitted"]["records"] == 3)

    run_job("lag", Run(spark, source_of(live.bootstrap), str(tmp_path), {"every_s": 60}))
    table = rows(spark.read.parquet(str(tmp_path / "lag")))
    own = [row for row in table if row["group_id"] == f"of-{row['topic']}"]  # another test commits, too
    newest = {row["topic"]: row for row in sorted(own, key=lambda row: row["at"])}
    beyond, _, _ = live.lag("of-beyond")
    assert (newest["beyond"]["lag_records"], newest["beyond"]["lag_seconds"]) == (0, 0.0)
    assert (beyond["status"], beyond["read_uncommitted"]) == ("past_log_end", None)
    # By topic: how many offsets behind the commit have no record; how many were lost; how much earlier is the time of
    # what comes first, in milliseconds.
    for topic, gone, lost, earlier_ms in (
        ("quiet", 0, 0, 0),
        ("stopped", 0, 0, 0),
        ("deleted", 0, 4, 0),
        ("compacted", 7, 0, 0),
        ("transactions", 19, 0, 1000),  # that of the marker
        ("spread", 0, 0, -4000 / 3),  # the times of a batch are taken as even
    ):
        ours, (theirs, begin_ms, end_ms) = newest[topic], live.lag(f"of-{topic}")
        counted = theirs["read_uncommitted"]
        assert counted["exact"], topic
        assert theirs["lost_records_max"] == lost
        assert ours["committed_offset"] == theirs["offset"]
        assert ours["log_end_offset"] == theirs["high_watermark"]
        assert ours["lag_records"] == counted["records"] + gone + lost, topic
        first_ms = ours["at"] - ours["lag_seconds"] * 1000 + earlier_ms
        age_ms = counted["seconds"] * 1000
        assert begin_ms - age_ms - 2 <= first_ms <= end_ms - age_ms + 2, topic


def test_the_audit_names_who_moved_an_offset(spark: SparkSession, live: Live, tmp_path: Path) -> None:
    """A member reads; an admin sets its group back; sets it forward while it reads; and removes its offset."""
    assert live.client.create_topic("orders", 1) == 0
    for _ in range(20):
        live.produce("orders", int(time.time() * 1000))
    settings = {"bootstrap_servers": live.bootstrap, "group_id": "billing", "client_id": "my-app"}
    settings |= {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    members = []
    for is_live in (False, True):
        with closing(KafkaConsumer("orders", **settings)) as consumer:
            for _ in range(10):
                next(consumer)
            place = TopicPartition("orders", 0)
            consumer.commit({place: OffsetAndMetadata(10 if is_live else 12, "", -1)})
            members.append(
                json.loads(live.run("groups", "describe", "billing", "--json"))[0]["members"][0]["member_id"]
            )
            if is_live:
                words = ("offsets", "set", "billing", "--topic", "orders", "--to", "latest", "--live", "--yes")
                with live.command(*words) as moving:
                    while moving.poll() is None:
                        consumer.poll(100)
                    assert moving.returncode == 0, moving.stdout and moving.stdout.read()
        if not is_live:
            live.run("offsets", "set", "billing", "--topic", "orders", "--to", "earliest", "--yes")
    live.run("offsets", "delete", "billing", "--topic", "orders", "--yes")

    summary = run_job("audit", Run(spark, source_of(live.bootstrap), str(tmp_path), {"clocks_differ_s": 60}))
    found = rows(spark.read.parquet(str(tmp_path / "audit")).where("group_id = 'billing'").orderBy("log_offset"))
    names = ("finding", "from_offset", "to_offset", "cause", "client_id", "member_id")
    for row in found:
        row["client_id"] = row["client_id"].rstrip("-0123456789")  # a command adds its process id
    assert [tuple(row[name] for name in names) for row in found] == [
        ("jumped back", 12, 0, "reset", "barnabas-cli", None),
        ("read twice", 0, 10, "commit", "my-app", members[1]),
        ("skipped", 10, 20, "live reset", "barnabas-cli", None),
        ("removed", 20, None, "deletion", "barnabas-cli", None),
    ]
    assert {(row["host"], row["principal"]) for row in found} == {("/127.0.0.1", "User:ANONYMOUS")}
    assert members[0] != members[1]
    shown = {row[1]: row[-1] for row in summary.rows if row[0] == "billing"}
    assert re.fullmatch(r"live reset by barnabas-cli-\d+ at /127.0.0.1", shown["skipped"])

    said = json.loads(live.run("offsets", "log", "billing", "--json"))
    journal = source_of(live.bootstrap).table(spark, "journal", where="group_id = 'billing'")
    both = ("cause", "topic", "partition", "old_offset", "new_offset", "client_id", "host", "principal")
    assert [{name: one[name] for name in both} for one in said] == [
        row.asDict() for row in journal.orderBy("log_offset").select(*both).collect()
    ]
    # The change is where the journal says that it is.
    commits = source_of(live.bootstrap).table(spark, "commits", where="group_id = 'billing'")
    places = {(row.log_partition, row.log_offset): row.offset for row in commits.collect()}
    assert {(row.log_partition, row.change_offset): row.new_offset for row in journal.collect()} == places
