"""The sink `barnabas.records`: what it writes is read again by kafka-python and by the source, also after failures."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from barnabas.pipeline import once, producer, wire
from barnabas.pipeline.errors import RefusedRecordsError, WrittenDifferentlyError
from barnabas.pipeline.once import Attempt
from barnabas.pipeline.options import write_options
from barnabas.pipeline.producer import Partitioner, Producer
from barnabas.pipeline.sink import RecordSink, check_columns, sink_of
from barnabas.pipeline.sources import register
from barnabas.pipeline.wire import UnreachableError
from barnabas.protocol import messages, record_batch
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.murmur2 import partition_of_key
from barnabas.protocol.record_batch import Record
from broker_process import Client, Process
from kafka import KafkaConsumer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cluster import Cluster

pytestmark = pytest.mark.usefixtures("spark")  # StructType.fromDDL asks the session

SCHEMA = "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp, topic string, partition int"  # noqa: E501


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("broker") / "data", settings={"auto.create.topics.enable": "false"})
    client = Client(process.port)
    for topic, partitions in (("orders", 3), ("payments", 1), ("batch-once", 3), ("task-once", 2)):
        assert client.create_topic(topic, partitions) == 0
    assert client.create_topic("small", 1, max_message_bytes="1000") == 0
    client.close()
    yield process
    process.end()


def address(broker: Process) -> str:
    return f"127.0.0.1:{broker.port}"


def values_of(brokers: str, topic: str) -> list[tuple[int, bytes | None]]:
    """Partition and value of every record, as kafka-python reads it."""
    return [(record.partition, record.value) for record in records_of(brokers, topic)]


def records_of(brokers: str, topic: str) -> list[Any]:
    consumer = KafkaConsumer(bootstrap_servers=brokers, isolation_level="read_committed")
    partitions = [TopicPartition(topic, index) for index in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    found = []
    while any(consumer.position(one) < ends[one] for one in partitions):
        for some in consumer.poll(1000).values():
            found += some
    consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def rows_of(*values: bytes | None, **columns: list[Any]) -> pa.RecordBatch:
    arrays = {"value": pa.array(values, pa.binary()), **{name: pa.array(some) for name, some in columns.items()}}
    return pa.RecordBatch.from_pydict(arrays)


def sink(brokers: str, schema: str = "value binary", **options: str) -> RecordSink:
    return sink_of(StructType.fromDDL(schema), write_options({"brokers": brokers, **options}))


# ------------------------------------------------------------ what is written


def test_what_is_written_is_read_again(spark: "SparkSession", broker: Process) -> None:
    register(spark)
    at = datetime(2026, 11, 21, 9, 30, 0, 123_000, UTC)
    rows = [
        (b"k1", b"v1", [("h", b"1"), ("h", None)], at, "orders", 2),
        (b"k2", None, [], at, "orders", None),
        (None, b"v3", None, None, "orders", 0),
        (None, b"v4", None, at, "payments", None),
    ]
    some = spark.createDataFrame(rows, SCHEMA)
    some.write.format("barnabas.records").mode("append").option("brokers", address(broker)).save()
    many = spark.range(500).selectExpr("cast(id as string) key", "cast(id as string) value")
    writer = many.write.format("barnabas.records").mode("append").option("compression", "zstd")
    writer.option("brokers", address(broker)).option("topic", "orders").option("batchBytes", "2000").save()

    found = [record for record in records_of(address(broker), "orders") if record.key in (b"k1", b"k2", None)]
    by_value = {record.value: record for record in found}
    first, second = by_value[b"v1"], by_value[None]
    assert (first.partition, first.key, first.timestamp) == (2, b"k1", int(at.timestamp() * 1000))
    assert [tuple(header) for header in first.headers] == [("h", b"1"), ("h", None)]
    assert second.partition == partition_of_key(b"k2", 3)
    assert by_value[b"v3"].partition == 0
    assert by_value[b"v3"].timestamp > first.timestamp
    assert values_of(address(broker), "payments") == [(0, b"v4")]

    load = spark.read.format("barnabas.records").options(brokers=address(broker), topics="orders,payments").load()
    again = {(row.topic, row.partition, row.value) for row in load.collect()}
    expected = {(name, *one) for name in ("orders", "payments") for one in values_of(address(broker), name)}
    assert again == expected
    numbers = load.where("topic = 'orders' and key = value").selectExpr("cast(value as string) value").collect()
    assert sorted(int(row.value) for row in numbers) == list(range(500))
    assert load.where("producer_id is null").count() == 0  # all of them idempotent


def test_records_without_a_key_are_shared_out(broker: Process) -> None:
    rows = [rows_of(*(b"%03d" % number for number in range(begin, begin + 50))) for begin in range(0, 200, 50)]
    before = Counter(values_of(address(broker), "orders"))
    assert sink(address(broker), topic="orders", batchBytes="500").write(iter(rows), None, 1).records == 200
    new = Counter(values_of(address(broker), "orders")) - before
    assert sorted(value or b"" for _, value in new) == [b"%03d" % number for number in range(200)]
    assert {partition for partition, _ in new} == {0, 1, 2}


# ------------------------------------------------------------ what is said of what cannot be written


def test_errors_say_what_to_do(broker: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "TOPIC_RETRY_TIMEOUT_S", 0.2)
    with pytest.raises(RefusedRecordsError, match=r"no topic 'ordes': create it .*topics create ordes"):
        sink(address(broker), topic="ordes")
    by_column = sink(address(broker), "value binary, topic string")
    with pytest.raises(RefusedRecordsError, match="no topic 'ordes': create it"):
        by_column.write(iter([rows_of(b"x", topic=["ordes"])]), None, 0)
    with pytest.raises(RefusedRecordsError, match="names no topic: fill its column"):
        by_column.write(iter([rows_of(b"x", topic=[None])]), None, 0)
    with pytest.raises(RefusedRecordsError, match=r"no partition 7: it has 3 \(0 to 2\)"):
        by_column.write(iter([rows_of(b"x", topic=["orders"], partition=[7])]), None, 0)
    with pytest.raises(RefusedRecordsError, match=r"about 2\d\d\d bytes is too large.*max\.message\.bytes"):
        sink(address(broker), topic="small").write(iter([rows_of(b"x" * 2000)]), None, 0)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    header = pa.array([[{"key": "a", "value": b"1"}, None]], kind)
    null_header = pa.record_batch({"value": pa.array([b"x"]), "headers": header})
    with pytest.raises(RefusedRecordsError, match="a header is null: leave it out"):
        sink(address(broker), topic="orders").write(iter([null_header]), None, 0)
    with pytest.raises(ValueError, match="no column offset: select those that it has"):
        check_columns(StructType.fromDDL("value binary, offset bigint"), "orders")
    with pytest.raises(ValueError, match="value must be binary or string, and is int: cast it"):
        check_columns(StructType.fromDDL("value int"), "orders")
    with pytest.raises(ValueError, match="no topic is named"):
        check_columns(StructType.fromDDL("value binary"), None)
    for more, said in (
        ({"brokers": ""}, "say `brokers`"),
        ({"once": "true"}, "needs the option `topic`"),
        ({"codec": "zstd"}, "unknown option codec"),
        ({"compression": "rar"}, "none or gzip"),
    ):
        with pytest.raises(ValueError, match=said):
            write_options({"brokers": "a:1", **more})


def test_spark_says_it_too(spark: "SparkSession", broker: Process) -> None:
    register(spark)
    writer = spark.range(3).selectExpr("cast(id as string) value").write.format("barnabas.records")
    writer.option("brokers", address(broker)).option("topic", "ordes")
    with pytest.raises(PySparkException, match="no topic 'ordes': create it"):
        writer.mode("append").save()
    with pytest.raises(PySparkException, match='say mode\\("append"\\)'):
        writer.mode("overwrite").save()


def test_batches_that_are_too_large_are_halved(broker: Process) -> None:
    """The topic takes 1000 bytes. The order stays."""
    rows = rows_of(*(b"%02d" % number * 100 for number in range(20)))
    sink(address(broker), topic="small").write(iter([rows]), None, 0)
    assert [value[:2] for _, value in values_of(address(broker), "small") if value] == [b"%02d" % n for n in range(20)]


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RETRY_TIMEOUT_S", 0.2)
    with pytest.raises(UnreachableError, match="no broker answers"):
        sink("127.0.0.1:1", topic="orders")


# ------------------------------------------------------------ the producer


class Log:
    """One partition, as a leader keeps it: idempotent. `answers` says what the leader does with each request."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.values: list[bytes] = []
        self.next_sequence = 0
        self.refreshed = 0
        self.waits = 0

    def refresh(self, topics: Any) -> None:
        self.refreshed += 1

    def ask_any(self, *_: Any) -> Any:
        return messages.InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=0)

    def leader_of(self, *_: Any) -> int | None:
        if self.answers[:1] == ["none"]:
            self.answers.pop(0)
            return None
        return 0

    def wait(self, deadline: float, why: str, topics: Any = None) -> None:
        self.waits += 1
        if self.waits > 10:
            raise UnreachableError(why)

    def send(self, broker_id: int, api_key: Any, request: Any) -> Any:
        answer = self.answers.pop(0) if self.answers else "written"
        (batch,) = record_batch.batches(request.topic_data[0].partition_data[0].records)
        header, content = batch
        error = ErrorCode.NONE
        if answer == "not leader":
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif answer == "too large" or header.base_sequence > self.next_sequence:
            error = ErrorCode.MESSAGE_TOO_LARGE if answer == "too large" else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif header.base_sequence < self.next_sequence:
            error = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        else:
            self.values += [one.value or b"" for one in record_batch.records(bytes(content))]
            self.next_sequence += header.record_count

        def receive() -> Any:
            if answer == "lost":
                raise wire.LostConnectionError("gone")
            produce = messages.ProduceResponse
            one = produce.PartitionProduceResponse(index=0, error_code=int(error), base_offset=0)
            return produce(responses=[produce.TopicProduceResponse(name="t", partition_responses=[one])])

        return SimpleNamespace(receive=receive)


@pytest.mark.parametrize(
    "answers",
    [
        (),
        ("lost",),  # it was written, and the answer is lost
        ("not leader", "written", "lost", "lost"),
        ("none", "none", "written"),
        ("too large", "too large", "lost", "too large"),
        ("lost", "not leader", "none", "too large", "written"),
    ],
)
def test_whatever_a_leader_answers_records_come_once_and_in_order(answers: tuple[str, ...]) -> None:
    log: Any = Log(*answers)
    values = [b"%03d" % number for number in range(100)]
    with Producer(log, Compression.NONE, 300) as writes:
        for value in values:
            writes.add("t", 0, Record(-1, 1, None, value))
    assert log.values == values
    assert bool(log.refreshed) == any(answer in ("lost", "not leader", "none") for answer in answers)


def test_no_leader() -> None:
    log: Any = Log(*["none"] * 100)
    with (
        pytest.raises(UnreachableError, match="t-0: it has no leader"),
        Producer(log, Compression.NONE, 300) as writes,
    ):
        writes.add("t", 0, Record(-1, 1, None, b"x"))


def test_a_broker_that_has_forgotten_the_producer() -> None:
    log: Any = Log()
    log.next_sequence = -5
    with pytest.raises(RefusedRecordsError, match="run the task again"), Producer(log, Compression.NONE, 300) as writes:
        writes.add("t", 0, Record(-1, 1, None, b"x"))


def test_partitions_without_a_key_change_with_each_batch() -> None:
    chosen = Partitioner(4)
    assert chosen.partition("t", None, 3) == chosen.partition("t", None, 3) == 1
    chosen.batch_is_full("t")
    assert chosen.partition("t", None, 3) == 2


# ------------------------------------------------------------ once


class Failure(Exception):
    pass


def failing(rows: pa.RecordBatch, count: int) -> Iterator[pa.RecordBatch]:
    """The first rows, and then an error of the query."""
    yield from (rows.slice(at, 1) for at in range(count))
    raise Failure


def test_a_task_that_fails_half_way(broker: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "REQUEST_BYTES", 1)  # every full batch is sent at once
    values = [b"%03d" % (number // 2) for number in range(60)]  # each value twice
    rows = rows_of(*values, partition=[number % 2 if number % 3 else None for number in range(60)])

    def written() -> list[bytes | None]:
        return [value for _, value in values_of(address(broker), "task-once")]

    def attempt(epoch: int = 0, query: str = "query") -> Attempt:
        return Attempt(query, epoch, 0)

    schema = "value binary, partition int"
    one = sink(address(broker), schema, topic="task-once", batchBytes="200", once="true")
    for count in (20, 10, 40):
        with pytest.raises(Failure):
            one.write(failing(rows, count), attempt(), 0)
    before = written()
    assert 20 < len(before) < 60
    in_other_order = rows.take(pa.array([*range(30, 60), *range(30)]))
    done = one.write(iter([in_other_order]), attempt(), 0)
    assert (done.left_out, done.records) == (len(before), 60 - len(before))
    assert sorted(written()) == sorted(values)

    restarted = sink(address(broker), schema, topic="task-once", once="true")
    assert restarted.write(iter([rows]), attempt(), 0).left_out == 60  # the query was killed and started again
    assert restarted.write(iter([rows]), attempt(query="other"), 0).records == 60
    following = sink(address(broker), schema, topic="task-once", once="true")
    assert following.write(iter([rows]), attempt(epoch=1), 0).records == 60
    assert sorted(written()) == sorted(values * 3)
    with pytest.raises(WrittenDifferentlyError, match=r"holds 60 records .* of epoch 1 .* once=false"):
        sink(address(broker), schema, topic="task-once", once="true").write(iter([]), attempt(epoch=1), 0)


def test_nothing_is_read_back_if_nothing_has_failed(broker: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(once, "_digests", lambda *words: asked.append(words) or iter(()))
    one = sink(address(broker), topic="task-once", once="true")
    for epoch in range(3):
        for task in range(2):
            one.write(iter([rows_of(b"x")]), Attempt("quiet", epoch, task), task)
    assert not asked
    one.write(iter([rows_of(b"x")]), Attempt("quiet", 2, 0), 0)
    assert len(asked) > 0


def test_a_batch_query_that_is_run_again(spark: "SparkSession", broker: Process) -> None:
    register(spark)
    rows = spark.range(0, 300, 1, 4).selectExpr("cast(id as string) key", "cast(id % 7 as string) value")
    writer = rows.write.format("barnabas.records").mode("append").option("brokers", address(broker))
    writer = writer.option("topic", "batch-once").option("once", "day-2026-11-22")
    for _ in range(2):
        writer.save()
    keys = [int(record.key) for record in records_of(address(broker), "batch-once")]
    assert sorted(keys) == list(range(300))
    writer.option("once", "another").save()
    assert len(records_of(address(broker), "batch-once")) == 600


# ------------------------------------------------------------ three brokers


def test_leaders_are_killed_meanwhile(make_cluster: Callable[[], "Cluster"], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is there once and in order. Without enough replicas the task says so."""
    monkeypatch.setattr(producer, "REQUEST_BYTES", 1)
    cluster = make_cluster()
    cluster.create_topic("orders", 3)
    brokers = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(120):
            if number in (40, 80):
                leader = cluster.leader("orders", number % 3)
                cluster.end_one(leader, signal.SIGKILL)
                if number == 40:
                    cluster.start(leader)
            yield rows_of(*(b"%04d" % (number * 3 + index) * 20 for index in range(3)), partition=[0, 1, 2])

    schema = "value binary, partition int"
    sink(brokers, schema, topic="orders", batchBytes="300").write(rows(), None, 0)
    for index in range(3):
        values = cluster.values("orders", index)
        assert [int((value or b"")[:4]) for value in values] == [number * 3 + index for number in range(120)]

    cluster.end_one(cluster.any_broker(), signal.SIGKILL)  # one of three is left
    monkeypatch.setattr(producer, "RETRY_TIMEOUT_S", 0.5)
    with pytest.raises(UnreachableError, match=r"orders-\d: .*(NOT_ENOUGH_REPLICAS|it has no leader)"):
        sink(brokers, topic="orders").write(iter([rows_of(b"x")]), None, 0)
