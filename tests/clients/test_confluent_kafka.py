"""confluent-kafka (librdkafka) as it is, against a broker process."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)


@pytest.fixture
def admin(broker: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def producer(broker: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def consumer(broker: Any) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers that are closed at the end."""
    opened: list[Consumer] = []

    def make(group: str, **options: Any) -> Consumer:
        config = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 300,
            "heartbeat.interval.ms": 200,
        }
        opened.append(Consumer(config | {key.replace("_", "."): value for key, value in options.items()}))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def read(consumer: Consumer, count: int, timeout_s: float = 60) -> list[Any]:
    """At least `count` records; errors of the client raise."""
    messages: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records came"
        for message in consumer.consume(500, 0.2):
            if message.error():
                raise KafkaException(message.error())
            messages.append(message)
    return messages


def create(admin: AdminClient, *topics: NewTopic) -> None:
    for future in admin.create_topics(list(topics)).values():
        future.result(200)


def settle(consumers: list[Consumer], partitions: int, timeout_s: float = 30) -> list[set[int]]:
    """Poll until the consumers own all partitions, each at least one; returns their assignments."""
    deadline = time.monotonic() + timeout_s
    while True:
        for consumer in consumers:
            consumer.poll(0.05)
        owned = [{partition.partition for partition in consumer.assignment()} for consumer in consumers]
        if all(owned) and sum(map(len, owned)) == partitions == len(set().union(*owned)):
            return owned
        assert time.monotonic() < deadline, owned


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_sent(broker: Any, consumer: Any, name: str, compression: str) -> None:
    config = {"bootstrap.servers": broker.bootstrap, "compression.type": compression, "enable.idempotence": True}
    producer = Producer(config | {"linger.ms": 20})
    reports: list[Any] = []
    now_ms = int(time.time() * 1000)
    for number in range(50):
        producer.produce(
            name,
            b"value %d " % number * 10,
            b"key %d" % number,
            timestamp=now_ms + number,
            headers=[("trace", b"%d" % number), ("none", None)],
            on_delivery=lambda error, message: reports.append((error, message.offset())),
        )
    assert producer.flush(200) == 0
    assert reports == [(None, number) for number in range(50)]
    reader = consumer(name)
    reader.subscribe([name])
    messages = read(reader, 50)
    assert [message.value() for message in messages] == [b"value %d " % number * 10 for number in range(50)]
    assert [message.key() for message in messages] == [b"key %d" % number for number in range(50)]
    times = [(TIMESTAMP_CREATE_TIME, now_ms + number) for number in range(50)]
    assert [message.timestamp() for message in messages] == times
    assert messages[7].headers() == [("trace", b"7"), ("none", None)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(broker: Any, admin: Any, consumer: Any, name: str, acks: str) -> None:
    create(admin, NewTopic(name, 1, 1))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": acks})
    for number in range(20):
        producer.produce(name, b"%d" % number)
    assert producer.flush(200) == 0
    reader = consumer(name)
    reader.subscribe([name])
    assert [message.value() for message in read(reader, 20)] == [b"%d" % number for number in range(20)]


def test_an_idempotent_producer_writes_everything_once_in_order(
    broker: Any, admin: Any, consumer: Any, name: str
) -> None:
    create(admin, NewTopic(name, 3, 1))
    config = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "batch.num.messages": 7}
    producer = Producer(config)
    for number in range(3000):
        producer.produce(name, b"%d" % number, partition=number % 3)
        producer.poll(0)
    assert producer.flush(200) == 0
    reader = consumer(name)
    reader.subscribe([name])
    messages = read(reader, 3000)
    for partition in range(3):
        values = [int(message.value()) for message in messages if message.partition() == partition]
        assert values == list(range(partition, 3000, 3))


def test_seek_times_and_pause(admin: Any, producer: Any, consumer: Any, name: str) -> None:
    create(admin, NewTopic(name, 1, 1))
    start_ms = int(time.time() * 1000) - 1_000_000
    for number in range(10):
        producer.produce(name, b"%d" % number, timestamp=start_ms + number * 1000)
    assert producer.flush(200) == 0
    reader = consumer(name)
    partition = TopicPartition(name, 0, 6)
    reader.assign([partition])
    assert read(reader, 1)[0].offset() == 6
    assert reader.get_watermark_offsets(TopicPartition(name, 0), timeout=200) == (0, 10)
    found = reader.offsets_for_times([TopicPartition(name, 0, start_ms + 3500)], timeout=200)
    assert found[0].offset == 4
    (late,) = reader.offsets_for_times([TopicPartition(name, 0, start_ms + 9_001)], timeout=200)
    assert (late.offset, late.error) == (OFFSET_END, None)
    reader.seek(TopicPartition(name, 0, 2))
    assert read(reader, 1)[0].offset() == 2
    reader.pause([partition])
    producer.produce(name, b"while paused")
    assert producer.flush(200) == 0
    assert [message for message in reader.consume(10, 0.5) if not message.error()] == []
    reader.resume([partition])
    assert read(reader, 1)[-1].value() == b"while paused"


def test_log_append_time_is_the_brokers(admin: Any, producer: Any, consumer: Any, name: str) -> None:
    create(admin, NewTopic(name, 1, 1, config={"message.timestamp.type": "LogAppendTime"}))
    before_ms = int(time.time() * 1000)
    producer.produce(name, b"x", timestamp=1_000)
    assert producer.flush(200) == 0
    reader = consumer(name)
    reader.subscribe([name])
    kind, timestamp = read(reader, 1)[0].timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms - 1_000 <= timestamp <= int(time.time() * 1000) + 1_000


def test_a_transactional_producer_begins_and_aborts(broker: Any, name: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.abort_transaction(20)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_group_shares_partitions_on_join_and_leave(admin: Any, consumer: Any, name: str, strategy: str) -> None:
    create(admin, NewTopic(name, 4, 1))
    first = consumer(name, partition_assignment_strategy=strategy)
    first.subscribe([name])
    settle([first], 4)
    second = consumer(name, partition_assignment_strategy=strategy)
    second.subscribe([name])
    assert [len(owned) for owned in settle([first, second], 4)] == [2, 2]
    description = admin.describe_consumer_groups([name])[name].result(200)
    assert description.state.name == "STABLE"
    assert description.partition_assignor == strategy
    assert len(description.members) == 2
    second.close()
    assert len(settle([first], 4)[0]) == 4


CRASHING = """
import sys
from confluent_kafka import Consumer
bootstrap, topic, session_timeout_ms = sys.argv[1:]
options = {"session.timeout.ms": int(session_timeout_ms), "heartbeat.interval.ms": 200}
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic} | options)
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(0.1)
print("owns", flush=True)
while True:
    consumer.poll(0.1)
"""


def test_group_takes_over_from_a_crashed_member(
    crashing_member: Any, session_timeout_ms: int, admin: Any, consumer: Any, name: str
) -> None:
    create(admin, NewTopic(name, 2, 1))
    member = crashing_member(CRASHING)
    survivor = consumer(name, session_timeout_ms=session_timeout_ms)
    survivor.subscribe([name])
    assert len(settle([survivor], 1)[0]) == 1
    member.kill()
    assert len(settle([survivor], 2)[0]) == 2


def test_a_cooperative_group_keeps_what_it_can(admin: Any, consumer: Any, name: str) -> None:
    create(admin, NewTopic(name, 4, 1))
    assigned: list[int] = []
    revoked: list[int] = []
    first = consumer(name, partition_assignment_strategy="cooperative-sticky")
    first.subscribe(
        [name],
        on_assign=lambda _consumer, partitions: assigned.extend(partition.partition for partition in partitions),
        on_revoke=lambda _consumer, partitions: revoked.extend(partition.partition for partition in partitions),
    )
    settle([first], 4)
    second = consumer(name, partition_assignment_strategy="cooperative-sticky")
    second.subscribe([name])
    kept, given = settle([first, second], 4)
    # A partition that a member keeps is never revoked, and one that it has is not assigned again.
    assert set(revoked) == given
    assert sorted(assigned) == [0, 1, 2, 3]
    assert len(kept) == 2


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(admin: Any, consumer: Any, name: str) -> None:
    create(admin, NewTopic(name, 4, 1))
    assignments: list[Any] = []
    first = consumer(name, group_instance_id="one")
    first.subscribe([name], on_assign=lambda _consumer, partitions: assignments.append(partitions))
    second = consumer(name, group_instance_id="two")
    second.subscribe([name])
    _, before = settle([first, second], 4)
    rebalances = len(assignments)
    second.close()
    again = consumer(name, group_instance_id="two")
    again.subscribe([name])
    assert settle([first, again], 4)[1] == before
    assert len(assignments) == rebalances


def test_commits_are_where_the_group_goes_on(
    admin: Any, producer: Any, consumer: Any, name: str, wait_until: Any
) -> None:
    create(admin, NewTopic(name, 1, 1))
    for number in range(10):
        producer.produce(name, b"%d" % number)
    assert producer.flush(200) == 0
    first = consumer(name, enable_auto_commit=False)
    first.subscribe([name])
    read(first, 10)
    (committed,) = first.commit(offsets=[TopicPartition(name, 0, 4, "four")], asynchronous=False)
    assert committed.error is None
    first.close()
    second = consumer(name, auto_commit_interval_ms=100)
    second.subscribe([name])
    assert [message.value() for message in read(second, 6)] == [b"%d" % number for number in range(4, 10)]
    wait_until(lambda: second.poll(0.05) or second.committed([TopicPartition(name, 0)], 10)[0].offset == 10)


def test_a_pattern_finds_topics_that_come_later(admin: Any, producer: Any, consumer: Any, name: str) -> None:
    create(admin, NewTopic(f"{name}.a", 1, 1))
    producer.produce(f"{name}.a", b"a")
    assert producer.flush(200) == 0
    reader = consumer(name)
    reader.subscribe([rf"^{name}\..*"])
    assert read(reader, 1)[0].topic() == f"{name}.a"
    create(admin, NewTopic(f"{name}.b", 1, 1))
    producer.produce(f"{name}.b", b"b")
    assert producer.flush(200) == 0
    assert read(reader, 1)[0].topic() == f"{name}.b"


def test_topic_administration(broker: Any, admin: Any, producer: Any, name: str, wait_until: Any) -> None:
    create(admin, NewTopic(name, 2, 1, config={"retention.ms": "1234567"}))
    with pytest.raises(KafkaException, match="already exists"):
        create(admin, NewTopic(name, 2, 1))
    for future in admin.create_partitions([NewPartitions(name, 3)]).values():
        future.result(200)
    wait_until(lambda: len(admin.list_topics(name, 10).topics[name].partitions) == 3)
    producer.produce(name, b"x", partition=1)
    assert producer.flush(200) == 0
    latest = admin.list_offsets({TopicPartition(name, 1): OffsetSpec.latest()})
    assert [future.result(200).offset for future in latest.values()] == [1]
    deleted = admin.delete_records([TopicPartition(name, 1, 1)])
    assert [future.result(200).low_watermark for future in deleted.values()] == [1]
    cluster = admin.describe_cluster().result(200)
    assert [(node.host, node.port) for node in cluster.nodes] == [("127.0.0.1", broker.port)]
    for future in admin.delete_topics([name]).values():
        future.result(200)
    wait_until(lambda: name not in admin.list_topics(timeout=200).topics)


def test_config_administration(admin: Any, name: str, wait_until: Any) -> None:
    create(admin, NewTopic(name, 1, 1))
    change = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[ConfigEntry("retention.ms", "5000000", incremental_operation=AlterConfigOpType.SET)],
    )
    for future in admin.incremental_alter_configs([change]).values():
        future.result(200)

    def value() -> str:
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
        return str(future.result(200)["retention.ms"].value)

    wait_until(lambda: value() == "5000000")


def test_group_administration(admin: Any, producer: Any, consumer: Any, name: str) -> None:
    create(admin, NewTopic(name, 1, 1))
    for number in range(10):
        producer.produce(name, b"%d" % number)
    assert producer.flush(200) == 0
    reader = consumer(name, enable_auto_commit=False)
    reader.subscribe([name])
    read(reader, 10)
    reader.commit(asynchronous=False)
    listed = {group.group_id: group.state.name for group in admin.list_consumer_groups().result(200).valid}
    assert listed[name] == "STABLE"
    with pytest.raises(KafkaException):
        admin.delete_consumer_groups([name])[name].result(200)
    reader.close()
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]).values()
    assert [partition.offset for partition in future.result(200).topic_partitions] == [10]
    wanted = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 3)])
    (future,) = admin.alter_consumer_group_offsets([wanted]).values()
    future.result(200)
    again = consumer(name)
    again.subscribe([name])
    assert read(again, 1)[0].offset() == 3
    again.close()
    admin.delete_consumer_groups([name])[name].result(200)
    assert name not in [group.group_id for group in admin.list_consumer_groups().result(200).valid]
