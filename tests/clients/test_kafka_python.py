"""kafka-python as it is, against a broker process."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def admin(broker: Any) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


@pytest.fixture
def opened(broker: Any) -> Iterator[Callable[..., Any]]:
    """Makes producers and consumers that are closed at the end."""
    with ExitStack() as stack:

        def make(kind: type, *topics: str, **configs: Any) -> Any:
            client = kind(*topics, bootstrap_servers=broker.bootstrap, **configs)
            stack.callback(client.close)
            return client

        yield make


def read(consumer: KafkaConsumer, count: int, timeout_s: float = 60) -> list[Any]:
    """At least `count` records."""
    records: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        for batch in consumer.poll(1000).values():
            records += batch
    return records


def send_all(producer: KafkaProducer, topic: str, values: list[bytes], **options: Any) -> list[Any]:
    """The metadata of every record, once acknowledged."""
    futures = [producer.send(topic, value, **options) for value in values]
    producer.flush()
    return [future.get(200) for future in futures]


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [f"{number:06}".encode() for number in range(start, start + count)]


def settle(consumers: list[KafkaConsumer], partitions: int, timeout_s: float = 30) -> list[set[Any]]:
    """Poll until the consumers own all partitions, each at least one; returns their assignments.

    They poll side by side and long, because kafka-python 3.0.12 can lose an assignment that comes between two polls.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda consumer: consumer.poll(500), consumers))
        owned = [consumer.assignment() for consumer in consumers]
        if all(owned) and sum(map(len, owned)) == partitions == len(set().union(*owned)):
            return owned
        assert time.monotonic() < deadline, owned


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_sent(opened: Any, name: str, compression: str | None) -> None:
    producer = opened(KafkaProducer, compression_type=compression, linger_ms=20)
    now_ms = int(time.time() * 1000)
    futures = [
        producer.send(
            name,
            value=b"value %d " % number * 10,
            key=b"key %d" % number,
            headers=[("trace", b"%d" % number), ("empty", b"")],
            timestamp_ms=now_ms + number,
        )
        for number in range(50)
    ]
    assert [future.get(200).offset for future in futures] == list(range(50))
    records = read(opened(KafkaConsumer, name, auto_offset_reset="earliest"), 50)
    assert [record.value for record in records] == [b"value %d " % number * 10 for number in range(50)]
    assert [record.key for record in records] == [b"key %d" % number for number in range(50)]
    assert [record.timestamp for record in records] == [now_ms + number for number in range(50)]
    assert list(records[7].headers) == [("trace", b"7"), ("empty", b"")]
    assert {record.timestamp_type for record in records} == {0}
    assert [record.offset for record in records] == list(range(50))


def test_null_values_and_empty_keys_survive(opened: Any, name: str) -> None:
    producer = opened(KafkaProducer)
    producer.send(name, value=None, key=b"gone")
    producer.send(name, value=b"", key=None)
    producer.flush()
    records = read(opened(KafkaConsumer, name, auto_offset_reset="earliest"), 2)
    assert [(record.key, record.value) for record in records] == [(b"gone", None), (None, b"")]


def test_a_header_without_a_value_is_read(broker: Any, opened: Any, name: str) -> None:
    # kafka-python's producer refuses to send such a batch, but other clients do not.
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b"x", headers=[("none", None), ("empty", b"")])
    assert producer.flush(200) == 0
    (record,) = read(opened(KafkaConsumer, name, auto_offset_reset="earliest"), 1)
    assert list(record.headers) == [("none", None), ("empty", b"")]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(opened: Any, admin: KafkaAdminClient, name: str, acks: Any) -> None:
    admin.create_topics({name: {"num_partitions": 1}}, wait_for_metadata=True)
    producer = opened(KafkaProducer, acks=acks, enable_idempotence=False)
    send_all(producer, name, numbers(20))
    records = read(opened(KafkaConsumer, name, auto_offset_reset="earliest"), 20)
    assert [record.value for record in records] == numbers(20)


def test_an_idempotent_producer_writes_everything_once_in_order(opened: Any, admin: Any, name: str) -> None:
    admin.create_topics({name: {"num_partitions": 3}}, wait_for_metadata=True)
    producer = opened(KafkaProducer, enable_idempotence=True, batch_size=200, linger_ms=0)
    for partition in range(3):
        send_all(producer, name, numbers(300), partition=partition)
    records = read(opened(KafkaConsumer, name, auto_offset_reset="earliest"), 900)
    for partition in range(3):
        assert [record.value for record in records if record.partition == partition] == numbers(300)


def test_a_record_that_is_too_large_is_refused_and_the_next_is_taken(opened: Any, name: str) -> None:
    # An idempotent producer gives up for good after this error.
    producer = opened(KafkaProducer, max_request_size=5_000_000, enable_idempotence=False)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(name, b"x" * 2_000_000).get(200)
    assert producer.send(name, b"small").get(200).offset == 0


def test_a_transactional_producer_begins_and_aborts(opened: Any, name: str) -> None:
    producer = opened(KafkaProducer, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.abort_transaction()


def test_log_append_time_is_the_brokers(opened: Any, admin: KafkaAdminClient, name: str) -> None:
    admin.create_topics({name: {"configs": {"message.timestamp.type": "LogAppendTime"}}}, wait_for_metadata=True)
    before_ms = int(time.time() * 1000)
    metadata = opened(KafkaProducer).send(name, b"x", timestamp_ms=1_000).get(200)
    (record,) = read(opened(KafkaConsumer, name, auto_offset_reset="earliest"), 1)
    assert before_ms - 1_000 <= record.timestamp <= int(time.time() * 1000) + 1_000
    assert record.timestamp == metadata.timestamp
    assert record.timestamp_type == 1


def test_seek_and_the_ends_of_the_log(opened: Any, name: str) -> None:
    send_all(opened(KafkaProducer), name, numbers(100))
    partition = TopicPartition(name, 0)
    consumer = opened(KafkaConsumer)
    consumer.assign([partition])
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 100}
    consumer.seek(partition, 60)
    assert read(consumer, 1)[0].offset == 60
    consumer.seek_to_beginning(partition)
    assert read(consumer, 1)[0].offset == 0
    consumer.seek_to_end(partition)
    assert consumer.position(partition) == 100


def test_offsets_for_times(opened: Any, name: str) -> None:
    producer = opened(KafkaProducer)
    start_ms = int(time.time() * 1000) - 1_000_000
    for number in range(10):
        producer.send(name, b"x", timestamp_ms=start_ms + number * 1000).get(200)
    partition = TopicPartition(name, 0)
    consumer = opened(KafkaConsumer)
    found = consumer.offsets_for_times({partition: start_ms + 3500})[partition]
    assert (found.offset, found.timestamp) == (4, start_ms + 4000)
    assert consumer.offsets_for_times({partition: start_ms + 9_001})[partition] is None


def test_a_paused_partition_sends_nothing(opened: Any, admin: KafkaAdminClient, name: str) -> None:
    admin.create_topics({name: {"num_partitions": 2}}, wait_for_metadata=True)
    producer = opened(KafkaProducer)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    consumer = opened(KafkaConsumer, auto_offset_reset="earliest")
    consumer.assign([first, second])
    consumer.pause(first)
    for partition in (0, 1):
        send_all(producer, name, numbers(10), partition=partition)
    assert {record.partition for record in read(consumer, 10)} == {1}
    consumer.resume(first)
    assert {record.partition for record in read(consumer, 10)} == {0}


def test_a_consumer_that_asks_below_the_log_is_reset(opened: Any, admin: KafkaAdminClient, name: str) -> None:
    send_all(opened(KafkaProducer), name, numbers(10))
    partition = TopicPartition(name, 0)
    admin.delete_records({partition: 4})
    consumer = opened(KafkaConsumer, auto_offset_reset="earliest")
    consumer.assign([partition])
    consumer.seek(partition, 0)
    assert read(consumer, 1)[0].offset == 4


def test_group_shares_partitions_on_join_and_leave(opened: Any, admin: KafkaAdminClient, name: str) -> None:
    admin.create_topics({name: {"num_partitions": 4}}, wait_for_metadata=True)
    first = opened(KafkaConsumer, name, group_id=name, heartbeat_interval_ms=200)
    assert len(settle([first], 4)[0]) == 4
    second = opened(KafkaConsumer, name, group_id=name, heartbeat_interval_ms=200)
    assert [len(owned) for owned in settle([first, second], 4)] == [2, 2]
    described = admin.describe_groups([name])[name]
    assert described["group_state"] == "Stable"
    assert len(described["members"]) == 2
    second.close()
    assert len(settle([first], 4)[0]) == 4


CRASHING = """
import sys
from kafka import KafkaConsumer
from barnabas.cli.shared.kafka_python import take_up_every_assignment
take_up_every_assignment()
bootstrap, topic, session_timeout_ms = sys.argv[1:]
options = {"session_timeout_ms": int(session_timeout_ms), "heartbeat_interval_ms": 200}
consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, **options)
told = False
while True:
    consumer.poll(1000)
    if consumer.assignment() and not told:
        told = True
        print("owns", flush=True)
"""


def test_short_polls_take_up_every_assignment(opened: Any, admin: KafkaAdminClient, name: str) -> None:
    """Without take_up_every_assignment, two of three members own nothing for ever."""
    admin.create_topics({name: {"num_partitions": 1}}, wait_for_metadata=True)
    for number in range(12):
        member = opened(KafkaConsumer, name, group_id=f"{name}-{number}", heartbeat_interval_ms=200)
        deadline = time.monotonic() + 200
        while not member.assignment():
            assert time.monotonic() < deadline, f"member {number} owns nothing"
            member.poll(2)


def test_group_takes_over_from_a_crashed_member(
    crashing_member: Any, session_timeout_ms: int, opened: Any, admin: Any, name: str
) -> None:
    admin.create_topics({name: {"num_partitions": 2}}, wait_for_metadata=True)
    member = crashing_member(CRASHING)
    options = {"session_timeout_ms": session_timeout_ms, "heartbeat_interval_ms": 200}
    survivor = opened(KafkaConsumer, name, group_id=name, **options)
    assert len(settle([survivor], 1)[0]) == 1
    member.kill()
    assert len(settle([survivor], 2)[0]) == 2


class Rebalances(ConsumerRebalanceListener):
    """The assignments and revocations of a member."""

    def __init__(self) -> None:
        self.revoked: list[Any] = []
        self.assigned: list[Any] = []

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.revoked += revoked

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned += assigned


def test_a_cooperative_group_keeps_what_it_can(opened: Any, admin: Any, name: str) -> None:
    admin.create_topics({name: {"num_partitions": 4}}, wait_for_metadata=True)
    common = {
        "group_id": name,
        "heartbeat_interval_ms": 200,
        "partition_assignment_strategy": [CooperativeStickyAssignor],
    }
    told = Rebalances()
    first = opened(KafkaConsumer, **common)
    first.partitions_for_topic(name)
    first.subscribe([name], listener=told)
    (alone,) = settle([first], 4)
    second = opened(KafkaConsumer, name, **common)
    kept, given = settle([first, second], 4)
    assert kept < alone
    # A partition that a member keeps is never revoked, and one that it has is not assigned again.
    assert set(told.revoked) == given
    assert sorted(told.assigned) == sorted(alone)
    assert admin.describe_groups([name])[name]["protocol_data"] == "cooperative-sticky"
    second.close()
    assert settle([first], 4) == [alone]


def static_member(opened: Any, topic: str, instance: str) -> KafkaConsumer:
    common = {"group_id": topic, "heartbeat_interval_ms": 200, "session_timeout_ms": 30_000}
    member: KafkaConsumer = opened(KafkaConsumer, topic, group_instance_id=instance, **common)
    return member


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(opened: Any, admin: Any, name: str) -> None:
    admin.create_topics({name: {"num_partitions": 4}}, wait_for_metadata=True)
    first = static_member(opened, name, "one")
    second = static_member(opened, name, "two")
    _, before = settle([first, second], 4)
    generation = first.group_metadata().generation_id
    second.close()
    again = static_member(opened, name, "two")
    assert settle([first, again], 4)[1] == before
    assert first.group_metadata().generation_id == generation
    members = admin.describe_groups([name])[name]["members"]
    assert {member["group_instance_id"] for member in members} == {"one", "two"}


def poll_and_commit(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    for _ in range(100):
        consumer.poll(100)
        consumer.commit({partition: OffsetAndMetadata(0, "", -1)})


def test_the_older_of_two_with_one_instance_id_is_fenced(opened: Any, admin: Any, name: str) -> None:
    admin.create_topics([name], wait_for_metadata=True)
    older = static_member(opened, name, "one")
    settle([older], 1)
    newer = static_member(opened, name, "one")
    settle([newer], 1)
    with pytest.raises(FencedInstanceIdError):
        poll_and_commit(older, TopicPartition(name, 0))


def test_auto_commit_and_going_on(opened: Any, admin: Any, name: str, wait_until: Any) -> None:
    producer = opened(KafkaProducer)
    send_all(producer, name, numbers(30))
    common = {"group_id": name, "auto_offset_reset": "earliest"}
    consumer = opened(KafkaConsumer, name, auto_commit_interval_ms=100, **common)
    assert len(read(consumer, 30)) == 30

    def committed() -> bool:
        consumer.poll(50)
        offsets = admin.list_group_offsets(name)[name]
        return bool(offsets) and offsets[TopicPartition(name, 0)].offset == 30

    wait_until(committed)
    consumer.close()
    send_all(producer, name, numbers(5, 30))
    again = opened(KafkaConsumer, name, **common)
    assert [record.value for record in read(again, 5)] == numbers(5, 30)


def test_a_commit_keeps_its_metadata(opened: Any, name: str) -> None:
    send_all(opened(KafkaProducer), name, numbers(10))
    partition = TopicPartition(name, 0)
    consumer = opened(KafkaConsumer, group_id=name, enable_auto_commit=False)
    consumer.assign([partition])
    assert consumer.committed(partition) is None
    consumer.commit({partition: OffsetAndMetadata(7, "half way", -1)})
    assert consumer.committed(partition) == 7
    other = opened(KafkaConsumer, group_id=name, enable_auto_commit=False)
    found = other.committed(partition, metadata=True)
    assert (found.offset, found.metadata) == (7, "half way")


def test_a_pattern_finds_topics_that_come_later(opened: Any, admin: Any, name: str) -> None:
    admin.create_topics([f"{name}.a"], wait_for_metadata=True)
    consumer = opened(KafkaConsumer, group_id=name, auto_offset_reset="earliest", metadata_max_age_ms=300)
    consumer.subscribe(pattern=rf"^{name}\..*")
    producer = opened(KafkaProducer)
    send_all(producer, f"{name}.a", [b"a"])
    assert [record.topic for record in read(consumer, 1)] == [f"{name}.a"]
    admin.create_topics([f"{name}.b"], wait_for_metadata=True)
    send_all(producer, f"{name}.b", [b"b"])
    assert [record.topic for record in read(consumer, 1)] == [f"{name}.b"]


def test_topic_administration(admin: KafkaAdminClient, name: str, wait_until: Any) -> None:
    admin.create_topics({name: {"num_partitions": 2, "configs": {"retention.ms": "1234567"}}}, wait_for_metadata=True)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({name: {"num_partitions": 2}})
    assert name in admin.list_topics()
    (topic,) = admin.describe_topics([name])
    assert sorted(partition["partition_index"] for partition in topic["partitions"]) == [0, 1]
    admin.create_partitions({name: 5})
    wait_until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 5)
    described = admin.describe_topic_partitions([name])["topics"][0]
    assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1, 2, 3, 4]
    admin.delete_topics([name])
    wait_until(lambda: name not in admin.list_topics())
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([name])


def test_validate_only_makes_nothing(admin: KafkaAdminClient, name: str) -> None:
    admin.create_topics({name: {"num_partitions": 2}}, validate_only=True)
    assert name not in admin.list_topics()


def test_config_administration(admin: KafkaAdminClient, name: str, wait_until: Any) -> None:
    admin.create_topics([name], wait_for_metadata=True)
    resource = ConfigResource(ConfigResourceType.TOPIC, name)

    def overrides() -> dict[str, str]:
        described = admin.describe_configs([resource], include_synonyms=True, config_filter="all")["topic"][name]
        return {k: c["value"] for k, c in described.items() if c["config_source"] == "DYNAMIC_TOPIC_CONFIG"}

    assert overrides() == {}
    change = {"retention.ms": "5000000", "cleanup.policy": "compact"}
    assert admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, change)])["topic"][name] == "OK"
    wait_until(lambda: overrides() == change)
    back = ConfigResource(ConfigResourceType.TOPIC, name, ["cleanup.policy"])
    assert admin.reset_configs([back])["topic"][name] == "OK"
    wait_until(lambda: overrides() == {"retention.ms": "5000000"})
    wrong = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "soon"})
    assert "InvalidConfiguration" in admin.alter_configs([wrong])["topic"][name]
    node_id = str(admin.describe_cluster()["brokers"][0]["broker_id"])
    broker_resource = ConfigResource(ConfigResourceType.BROKER, node_id)
    values = admin.describe_configs([broker_resource], config_filter="all")["broker"][node_id]
    assert values["num.partitions"]["value"] == "1"


def test_cluster_administration(broker: Any, admin: KafkaAdminClient, opened: Any, name: str) -> None:
    send_all(opened(KafkaProducer), name, numbers(10))
    cluster = admin.describe_cluster()
    assert [(node["host"], node["port"]) for node in cluster["brokers"]] == [("127.0.0.1", broker.port)]
    assert cluster["controller_id"] == cluster["brokers"][0]["broker_id"]
    assert len(cluster["cluster_id"]) == 22
    partition = TopicPartition(name, 0)
    offsets = {
        spec: admin.list_partition_offsets({partition: spec})[partition].offset for spec in OffsetSpec if spec > -4
    }
    assert offsets == {OffsetSpec.EARLIEST: 0, OffsetSpec.LATEST: 10, OffsetSpec.MAX_TIMESTAMP: offsets[-3]}
    assert 0 <= offsets[OffsetSpec.MAX_TIMESTAMP] <= 9
    assert str(admin.describe_log_dirs()).count(name) == 1


def test_group_administration(opened: Any, admin: KafkaAdminClient, name: str) -> None:
    send_all(opened(KafkaProducer), name, numbers(10))
    partition = TopicPartition(name, 0)
    consumer = opened(KafkaConsumer, name, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False)
    read(consumer, 10)
    consumer.commit()
    listed = {group["group_id"]: group["group_state"] for group in admin.list_groups()}
    assert listed[name] == "Stable"
    assert admin.delete_groups([name]) == {name: "NonEmptyGroupError"}
    consumer.close()
    assert name in [group["group_id"] for group in admin.list_groups(states_filter=["Empty"])]
    assert admin.alter_group_offsets(name, {partition: OffsetAndMetadata(3, "", -1)})[partition].errno == 0
    assert admin.list_group_offsets(name)[name][partition].offset == 3
    assert admin.reset_group_offsets(name, {partition: OffsetSpec.EARLIEST})[partition]["offset"] == 0
    assert admin.delete_group_offsets(name, [partition])[partition].errno == 0
    assert partition not in admin.list_group_offsets(name)[name]
    # The group is empty and its last offset is gone, so Kafka may have removed the group by now.
    assert admin.delete_groups([name])[name] in ("OK", GroupIdNotFoundError.__name__)
    assert name not in [group["group_id"] for group in admin.list_groups()]
