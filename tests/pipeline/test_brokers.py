"""Tables over the wire, compared with the same tables from the brokers' data directories."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline import broker_origin
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.options import read_options
from barnabas.pipeline.schemas import TABLES
from barnabas.pipeline.sources import FilteringLogReader, register
from barnabas.pipeline.wire import Cluster as Brokers
from barnabas.pipeline.wire import UnreachableError
from barnabas.protocol import messages, uuids
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record, build, read_header
from broker_process import Client, Process, batch
from data_directories import NOW_MS, DataDirectory, topic_id_of
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In
from test_directories import Row, in_order, read, records_of, some_commits, time_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cluster import Cluster

ONLY_OF_FILES = ("directory", "segment", "position")


def without_files(rows: list[Row]) -> list[Row]:
    """Rows without what only a data directory knows, in the order of the logs."""
    kept = [{name: value for name, value in row.items() if name not in ONLY_OF_FILES} for row in rows]
    return sorted(kept, key=lambda row: (row["topic"], row["partition"], row.get("offset", row.get("base_offset"))))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str]]:
    """A broker on a data directory that was written before, and a copy of it."""
    folder = tmp_path_factory.mktemp("broker")
    for name in ("copy", "data"):
        directory = DataDirectory(folder / name)
        some_commits(directory, 1, 150)
        records_of(directory)
        log = directory.log("payments")
        for number in range(20):
            for producer_id in (1, 2):
                fields = {
                    "producer_id": producer_id,
                    "producer_epoch": 0,
                    "base_sequence": number,
                    "transactional": True,
                }
                directory.append(log, Record(-1, NOW_MS + number, None, b"%d" % producer_id), **fields)
            directory.end_transaction(log, 2, commit=False)
            directory.append(log, Record(-1, NOW_MS + number, None, b"plain"))
            directory.end_transaction(log, 1, commit=True)
        directory.close()
    process = Process(
        folder / "data",
        settings={"log.cleaner.enable": "false", "offsets.retention.check.interval.ms": "100000000"},
        words=["--adopt"],
    )
    yield process, str(folder / "copy")
    process.end()


def options_of(broker: tuple[Process, str]) -> tuple[dict[str, str], dict[str, str]]:
    return {"brokers": f"127.0.0.1:{broker[0].port}"}, {"path": broker[1]}


@pytest.mark.parametrize("table", ["barnabas.records", "barnabas.batches"])
def test_a_broker_says_the_same_as_its_files(broker: tuple[Process, str], table: str) -> None:
    wire, files = options_of(broker)
    for topics in ("orders,payments", "__consumer_offsets"):
        expected = without_files(read(table, **files, topics=topics))
        assert len(expected) > 100
        assert without_files(read(table, **wire, topics=topics)) == expected


def test_commits_of_a_broker(broker: tuple[Process, str], monkeypatch: pytest.MonkeyPatch) -> None:
    wire, files = options_of(broker)
    monkeypatch.setattr(broker_origin, "_TASK_OFFSETS_MIN", 1)
    monkeypatch.setattr(broker_origin, "FETCH_BYTES", 500)
    expected = in_order([{**row, "directory": None} for row in read("barnabas.commits", **files)])
    assert in_order(read("barnabas.commits", **wire)) == expected
    chosen = [row for row in expected if row["log_partition"] == 3 and row["log_offset"] >= 100]
    conditions = (EqualTo(("log_partition",), 3), GreaterThanOrEqual(("log_offset",), 100))
    assert in_order(read("barnabas.commits", *conditions, **wire)) == chosen


def test_committed_records_of_a_broker(broker: tuple[Process, str]) -> None:
    wire, _ = options_of(broker)
    rows = read("barnabas.records", **wire, topics="payments")
    assert {(row["value"], row["transaction"]) for row in rows} == {
        (b"1", "committed"),
        (b"2", "aborted"),
        (b"plain", None),
    }
    committed = read("barnabas.records", **wire, topics="payments", isolation="read_committed")
    assert committed == [row for row in rows if row["value"] != b"2"]


def test_a_condition_on_time_is_asked_of_the_broker(broker: tuple[Process, str]) -> None:
    wire, _ = options_of(broker)
    since = time_of(NOW_MS + 12)
    asked = FilteringLogReader(
        TABLES["barnabas.records"], TABLES["barnabas.records"].spark, read_options({**wire, "topics": "payments"})
    )
    list(asked.pushFilters([GreaterThanOrEqual(("timestamp",), since)]))
    (task,) = asked.partitions()
    assert isinstance(task, broker_origin.BrokerTask)
    assert task.ranges[0].low > 50
    everything = read("barnabas.records", **wire, topics="payments")
    chosen = read("barnabas.records", GreaterThanOrEqual(("timestamp",), since), **wire, topics="payments")
    assert chosen == [row for row in everything if row["timestamp"] >= since]


def test_a_group_is_read_from_its_partition_only(broker: tuple[Process, str]) -> None:
    wire, _ = options_of(broker)
    asked = FilteringLogReader(TABLES["barnabas.commits"], TABLES["barnabas.commits"].spark, read_options(wire))
    list(asked.pushFilters([In(("group_id",), ("billing",))]))
    ranges = [one for task in asked.partitions() for one in task.ranges]  # type: ignore[attr-defined]
    assert len({one.key.partition for one in ranges}) <= 1


def test_spark_reads_from_a_broker(spark: "SparkSession", broker: tuple[Process, str]) -> None:
    register(spark)
    wire, files = options_of(broker)
    counts = [
        spark.read.format("barnabas.records").options(**one).load().count()
        for one in (wire, {"directories": files["path"]})
    ]
    assert counts[0] == counts[1] > 200


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.pipeline.wire.RETRY_TIMEOUT_S", 0.2)
    with pytest.raises(UnreachableError, match="no broker answers"):
        read("barnabas.commits", brokers="127.0.0.1:1")
    with pytest.raises(ValueError, match="HOST:PORT"):
        read("barnabas.commits", brokers="localhost")


def test_records_that_are_deleted_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_origin, "FETCH_BYTES", 300)
    process = Process(tmp_path / "data")
    client = Client(process.port)
    assert client.create_topic("orders", 1) == 0
    for number in range(40):
        assert client.produce("orders", 0, batch([b"%d" % number])).error_code == 0
    for fails in (True, False):
        options = {"brokers": f"127.0.0.1:{process.port}", "failOnDataLoss": str(fails)}
        reader = FilteringLogReader(TABLES["barnabas.records"], TABLES["barnabas.records"].spark, read_options(options))
        (task,) = reader.partitions()
        rows = (row["offset"] for some in reader.read(task) for row in some.to_pylist())
        seen = [next(rows)]
        delete = messages.DeleteRecordsRequest
        before = 20 if fails else 30
        entry = delete.DeleteRecordsPartition(partition_index=0, offset=before)
        request = delete(topics=[delete.DeleteRecordsTopic(name="orders", partitions=[entry])], timeout_ms=5000)
        assert client.ask(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0].error_code == 0
        if fails:
            with pytest.raises(LostRecordsError, match=r"orders-0: the offsets from .* to below 20 are gone"):
                seen += rows
        else:
            seen += rows
            assert seen[0] == 20
            assert seen[-10:] == list(range(30, 40))
            assert len(seen) < 20
    client.close()
    process.end()


def test_open_transactions_are_read_behind_the_last_stable_offset() -> None:
    """A broker gives records of open transactions only to those who do not ask for committed ones."""
    fields: dict[str, Any] = {"producer_epoch": 0, "base_sequence": 0}
    log = [
        build([Record(-1, 1, None, b"plain")], base_offset=0),
        build([Record(-1, 1, None, b"open")], base_offset=1, producer_id=7, transactional=True, **fields),
        build([Record(-1, 1, None, b"above")], base_offset=2),
    ]

    class Stub:
        def leader_of(self, topic: str, partition: int) -> int:
            return 0

        def send(self, broker_id: int, api_key: ApiKey, request: Any) -> Any:
            row = request.topics[0].partitions[0]
            end = 1 if request.isolation_level else 3
            data = b"".join(one for one in log if row.fetch_offset <= read_header(one).base_offset < end)
            part = messages.FetchResponse.PartitionData(
                partition_index=0, high_watermark=3, last_stable_offset=1, aborted_transactions=[], records=data
            )
            topic = messages.FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])
            return SimpleNamespace(receive=lambda: messages.FetchResponse(responses=[topic]))

    def states(isolation: str, high: int) -> list[tuple[int, str | None]]:
        options = read_options({"brokers": "a:1", "isolation": isolation})
        reader = FilteringLogReader(TABLES["barnabas.records"], TABLES["barnabas.records"].spark, options)
        key = broker_origin.LogKey("t", 0)
        stub: Any = Stub()
        fetching = broker_origin.Fetching(stub, broker_origin.OffsetRange(key, 0, high), options)
        rows = [row for one in fetching.batches() for some in reader.reading.rows(one) for row in some.to_pylist()]
        return [(row["offset"], row["transaction"]) for row in rows]

    assert states("read_uncommitted", 3) == [(0, None), (1, "open"), (2, None)]
    assert states("read_committed", 1) == [(0, None)]


def test_commits_behind_an_open_transaction(broker: tuple[Process, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a coordinator counts them: an open transaction holds only its own back, whichever task reads which part."""
    from kafka import KafkaProducer
    from kafka.structs import OffsetAndMetadata, TopicPartition

    address = f"127.0.0.1:{broker[0].port}"
    group = "held-back"

    def commit(offset: int, name: str | None = None) -> KafkaProducer:
        settings = {"bootstrap_servers": address, "transactional_id": name, "transaction_timeout_ms": 600_000}
        producer = KafkaProducer(**settings)
        producer.init_transactions()
        producer.begin_transaction()
        of = TopicPartition("orders", offset % 2)
        producer.send_offsets_to_transaction({of: OffsetAndMetadata(offset, "", -1)}, group)
        return producer

    opened, given_up, done = commit(10, "open"), commit(20, "given-up"), commit(30, "done")
    given_up.abort_transaction()
    done.commit_transaction()
    for split in ("1", "1000000"):
        monkeypatch.setattr(broker_origin, "_TASK_OFFSETS_MIN", int(split))
        options = {"brokers": address, "where": f"group_id = '{group}'", "splitOffsets": split}
        every = {row["offset"]: row["transaction"] for row in read("barnabas.commits", **options)}
        assert every == {10: "open", 20: "aborted", 30: "committed"}
        found = read("barnabas.commits", **options, isolation="read_committed")
        assert [row["offset"] for row in found] == [30]
    opened.commit_transaction()
    found = read("barnabas.commits", **options, isolation="read_committed")
    assert [row["offset"] for row in found] == [10, 30]
    for producer in (opened, given_up, done):
        producer.close()


def test_leaders_move_and_die_while_a_table_is_read(
    make_cluster: Callable[[], "Cluster"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record is read once, although the leader of the partition is killed twice meanwhile."""
    monkeypatch.setattr(broker_origin, "FETCH_BYTES", 2000)
    cluster = make_cluster()
    cluster.create_topic("orders", 2)
    count = 60
    for index in (0, 1):
        producer = cluster.producer("orders", index)
        for number in range(0, count, 10):
            cluster.produce(producer, [b"%d" % (number + one) for one in range(10)])
    options = {"brokers": ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values()), "topics": "orders"}
    reader = FilteringLogReader(TABLES["barnabas.records"], TABLES["barnabas.records"].spark, read_options(options))
    rows = (row for task in reader.partitions() for some in reader.read(task) for row in some.to_pylist())
    seen = []
    for row in rows:
        seen.append((row["partition"], row["value"]))
        if len(seen) in (1, count + 1):
            leader = cluster.leader("orders", row["partition"])
            cluster.end_one(leader, signal.SIGKILL)
            cluster.start(leader)
    assert seen == [(index, b"%d" % number) for index in (0, 1) for number in range(count)]


def test_metadata_names_partitions_and_ids(broker: tuple[Process, str]) -> None:
    with Brokers([f"127.0.0.1:{broker[0].port}"]) as brokers:
        brokers.refresh(["orders"])
        assert brokers.partitions["orders", 1].topic_id == uuids.to_text(topic_id_of("orders"))
        sizes = brokers.log_bytes([("orders", 0)])
        assert sizes["orders", 0] > 1000
