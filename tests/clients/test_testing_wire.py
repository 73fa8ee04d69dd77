"""How topics, groups and commands of `barnabas.testing` reach brokers: what is lost on the way is sent once more."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import confluent_kafka.admin
import pytest
from barnabas.testing import Barnabas, CommandError, Snapshot, Topic, WaitTimeoutError
from barnabas.testing.kept import Kept
from kafka import KafkaProducer
from kafka.errors import (
    CommitFailedError,
    InvalidReplicationFactorError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Barnabas]:
    with Barnabas() as kafka:
        yield kafka


@pytest.fixture(scope="module")
def cluster() -> Iterator[Barnabas]:
    with Barnabas(3) as cluster:
        yield cluster


def test_a_key_has_the_partition_that_clients_give_it(kafka: Barnabas) -> None:
    ours, theirs = kafka.topic("ours", partitions=5), kafka.topic("theirs", partitions=5)
    keys = [f"key-{number}" for number in range(20)]
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap)) as producer:
        for key in keys:
            ours.produce([key], key=key)
            producer.send(theirs.name, key.encode(), key.encode())
        producer.flush()
    assert [row[0] for row in ours.records()] == [row[0] for row in theirs.records()]
    assert sorted(map(str, ours.values())) == sorted(keys)


def test_records_without_keys_go_everywhere(kafka: Barnabas) -> None:
    topic = kafka.topic("orders", partitions=2)
    topic.produce(str(number) for number in range(100))
    assert {row.partition for row in topic.records()} == {0, 1}


def test_a_record_is_read_as_it_was_written(kafka: Barnabas) -> None:
    topic = kafka.topic("orders", partitions=3)
    headers = [("a", b"1"), ("a", b"2"), ("b", None)]
    topic.produce(["x", None], key="k", partition=2, timestamp_ms=1_234, headers=headers)
    first, second = topic.records()
    assert first == (2, 0, 1_234, b"k", b"x", tuple(headers))
    assert (second.offset, second.value, second.text) == (1, None, None)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(kafka: Barnabas, codec: str) -> None:
    topic = kafka.topic("orders")
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": codec})
    for number in range(100):
        producer.produce(topic.name, f"order {number}")
    assert producer.flush(200) == 0
    assert topic.values() == [f"order {number}" for number in range(100)]


def test_of_a_transaction_the_records_are_read_and_not_its_end(kafka: Barnabas) -> None:
    topic = kafka.topic("orders")
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(30)
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic.name, ends.__name__)
        producer.flush(200)
        ends(30)
    topic.produce(["after"])
    assert topic.values() == ["commit_transaction", "abort_transaction", "after"]  # as consumers that read uncommitted


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", ["cut", "half_answer"])
def test_what_is_lost_on_the_way_is_written_once(kafka: Barnabas, effect: str, when: str) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a"])
    with kafka.rule(effect=effect, api="Produce", topic=topic, when=when, times=1) as fault:
        topic.produce(["b"])
    topic.produce(["c"])
    assert fault.fired == 1
    assert topic.values() == ["a", "b", "c"]


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "OUT_OF_ORDER_SEQUENCE_NUMBER", "NOT_ENOUGH_REPLICAS"])
def test_what_is_refused_for_now_is_written_later(kafka: Barnabas, error: str) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a"])
    with kafka.fail("Produce", error=error, topic=topic, times=2) as fault:
        topic.produce(["b"])
    topic.produce(["c"])
    assert fault.fired == 2
    assert topic.values() == ["a", "b", "c"]


def test_reading_goes_on_when_a_connection_is_lost(kafka: Barnabas) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a", "b"])
    for api in ("ListOffsets", "Fetch"):
        with kafka.cut(api, topic=topic) as fault:
            assert topic.values() == ["a", "b"]
        assert fault.fired == 1


def test_records_that_are_gone_are_not_waited_for(kafka: Barnabas) -> None:
    topic = kafka.topic("short", config={"retention.ms": "1000", "segment.bytes": "1048576"})
    topic.produce(["old"], timestamp_ms=1)
    topic.wait(records_at_most=0)
    topic.produce(["new"])
    assert topic.values() == ["new"]
    assert [row.offset for row in topic.wait_records(1)] == [1]
    with pytest.raises(WaitTimeoutError, match=r"waited for 2 records: 1 came within 0\.2 s"):
        topic.wait_records(2, timeout=0.2)


def test_errors_are_those_of_kafka_python(kafka: Barnabas, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic("small", config={"max.message.bytes": "200"})
    with pytest.raises(MessageSizeTooLargeError):
        topic.produce(["x" * 500])
    topic.produce(["x"])
    with pytest.raises(TopicAlreadyExistsError, match="already exists"):
        kafka.topic(topic.name, unique=False)
    with pytest.raises(InvalidReplicationFactorError):
        kafka.topic("wide", replicas=3)
    monkeypatch.setattr("barnabas.testing.wire.GIVES_UP_AFTER_S", 0.2)
    with kafka.fail("Produce", error="NOT_ENOUGH_REPLICAS"), pytest.raises(KafkaTimeoutError, match="NOT_ENOUGH"):
        topic.produce(["y"])
    assert topic.values() == ["x"]


@pytest.mark.parametrize("brokers", ["kafka", "cluster"])
def test_what_is_not_there_is_said_at_once(brokers: str, request: pytest.FixtureRequest) -> None:
    """Until 2026-12-01 it was said after 30 s."""
    kafka: Barnabas = request.getfixturevalue(brokers)
    topic, group, nosuch = kafka.topic("orders", partitions=2), kafka.group(), Topic(kafka, "nosuch")
    begin = time.monotonic()
    for ask in (
        lambda: topic.produce(["a"], partition=2),
        lambda: topic.produce(["a"], partition=-1),
        lambda: group.commit(topic, 2, 0),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match=f"topic {topic.name} has 2 partitions, and none is -?"):
            ask()
    for ask in (
        lambda: nosuch.produce(["a"]),
        lambda: nosuch.produce(["a"], partition=0),
        lambda: group.commit("nosuch", 0, 0),
        nosuch.values,
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic nosuch"):
            ask()
    with pytest.raises(CommandError, match="there is no topic nosuch"):
        kafka.leader_of("nosuch", 0)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("brokers", ["kafka", "cluster"])
def test_what_is_new_is_there_at_once(brokers: str, request: pytest.FixtureRequest) -> None:
    """Until 2026-12-01 a broker that had not yet heard of it could be asked, and added partitions were not read."""
    kafka: Barnabas = request.getfixturevalue(brokers)
    for _ in range(5):
        topic = kafka.topic("orders", partitions=2)
        assert {kafka.leader_of(topic, partition) for partition in range(2)} <= kafka.processes.keys()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    topic.produce(["a"], partition=1)
    admin.create_partitions([confluent_kafka.admin.NewPartitions(topic.name, 4)])[topic.name].result(10)
    topic.produce(["b"], partition=3)
    assert topic.values() == ["a", "b"]
    assert topic.partitions == 4
    assert [row.text for row in topic.wait_records(2)] == ["a", "b"]


def test_a_topic_that_comes_later_is_waited_for(kafka: Barnabas) -> None:
    topic = Topic(kafka, kafka.group("results").name)  # a name that no other has
    with pytest.raises(
        WaitTimeoutError, match=r"waited for 1 record: 0 came within 0\.2 s, and there is no such topic"
    ):
        topic.wait_records(1, timeout=0.2)

    def write() -> None:
        kafka.topic(topic.name, partitions=3, unique=False).produce(["a"])

    threading.Timer(0.3, write).start()
    assert [row.text for row in topic.wait_records(1)] == ["a"]


def test_a_group_with_members_is_not_committed_for(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders"), kafka.group("billing")
    group.commit(topic, 0, 3)
    assert group.offsets == {(topic.name, 0): 3}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group.name})
    consumer.subscribe([topic.name])
    consumer.poll(0)
    group.wait_stable(members=1)
    with pytest.raises(CommitFailedError, match="has members"):
        group.commit(topic, 0, 4)
    consumer.close()
    group.commit(topic, 0, 5)
    assert group.offsets == {(topic.name, 0): 5}


def test_a_producer_begins_anew_after_a_restore(kafka: Barnabas) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a"])
    mark = kafka.snapshot()
    topic.produce(["b", "c"])
    kafka.restore(mark)
    topic.produce(["d"])
    assert topic.values() == ["a", "d"]


def test_connections_are_used_again(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders"), kafka.group("billing")

    def ports() -> list[int]:
        return [each.sock.getsockname()[1] for idle in kafka.wire._kept._idle.values() for each in idle]

    topic.produce(["a"])
    first = ports()
    group.commit(topic, 0, 1)
    assert topic.values() == ["a"]
    assert ports() == first
    assert len(first) == 1


def test_a_broker_that_was_started_again_is_reached(kafka: Barnabas) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a"])
    kafka.restart()
    topic.produce(["b"])
    with kafka.down(), pytest.raises(RuntimeError, match="no broker runs"):
        kafka.ask("GET", "/v1/groups")
    topic.produce(["c"])
    assert topic.values() == ["a", "b", "c"]


def test_a_connection_that_the_other_side_has_closed_is_not_used() -> None:
    class Connection:
        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock

        def close(self) -> None:
            self.sock.close()

    kept: Kept[Connection] = Kept()
    (ours, theirs), (others, of_others) = socket.socketpair(), socket.socketpair()
    with theirs, of_others:
        closed, alive = Connection(ours), Connection(others)
        kept.give("a", alive)
        kept.give("a", closed)
        theirs.close()
        assert kept.take("a") is alive
        assert kept.take("a") is None
        kept.give("a", alive)
        of_others.send(b"what nobody has asked for")
        assert kept.take("a") is None


def test_three_brokers_are_written_to_and_read_from(cluster: Barnabas) -> None:
    topic, group = cluster.topic("orders", partitions=6), cluster.group("billing")
    topic.wait(in_sync=3)
    assert len({cluster.leader_of(topic, each) for each in range(6)}) == 3
    topic.produce(str(number) for number in range(60))
    assert sorted(int(str(value)) for value in topic.values()) == list(range(60))
    group.commit(topic, 3, 7)
    assert group.offsets == {(topic.name, 3): 7}
    leader = cluster.leader_of(topic, 0)
    assert leader is not None
    with cluster.down(leader):
        topic.produce(["late"], partition=0)
        assert "late" in topic.values()
    topic.wait(in_sync=3)
    with pytest.raises(CommandError):
        cluster.ask("GET", "/v1/groups/nobody")


def test_the_controller_makes_topics_whoever_it_is(cluster: Barnabas) -> None:
    for node_id in cluster.processes:
        with cluster.down(node_id):
            assert cluster.topic("made", replicas=2).wait(exists=True)


def test_a_copy_whose_data_cannot_be_had_leaves_nothing(kafka: Barnabas, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Snapshot:
        raise CommandError("SNAPSHOT_FAILED", "no room")

    folders = set(kafka.folder.parent.glob("barnabas-*"))
    with monkeypatch.context() as patched:
        patched.setattr(kafka, "snapshot", fails)
        with pytest.raises(CommandError, match="no room"), kafka.fork():
            pass
    assert set(kafka.folder.parent.glob("barnabas-*")) <= folders
    topic = kafka.topic("orders")
    topic.produce(["a"])
    kafka.clock.advance(days=2)
    with kafka.fork() as copy:
        assert copy.clock.ahead_ms == kafka.clock.ahead_ms > 0
        assert copy.ask("GET", "/v1/control/clock")["moved_ms"] == kafka.clock.ahead_ms
        topic.produce(["b"])
        copied = Topic(copy, topic.name)
        assert copied.values() == ["a"]
        copied.produce(["c"])
        copy.restart()
        assert copied.values() == ["a", "c"]
    assert topic.values() == ["a", "b"]
