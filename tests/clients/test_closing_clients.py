"""Clients that close right after their requests: the broker handles all of them. Apache Kafka passes these tests."""

import contextlib
import socket
import struct
import threading
from typing import Any

import pytest
from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

Broker = Any  # BrokerProcess of conftest.py

PATIENCE_S = 200
SESSION_TIMEOUT_MS = 45_000  # far longer than a test waits, so a member that stayed behind would be noticed


def frame(api: ApiKey, version: int, message: Any) -> bytes:
    """A request as it is sent."""
    return frames.encode_request(api, version, 1, "closing", message)


def send_and_close(broker: Broker, *requests: bytes) -> None:
    """Send requests and close at once, as a client that does not wait for answers."""
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.sendall(b"".join(requests))


def create(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()


def count_of(broker: Broker, topic: str) -> int:
    """How many records the topic's first partition has."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "counts"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1]
    finally:
        consumer.close()


def test_unacknowledged_records_of_a_client_that_closes(broker: Broker, name: str) -> None:
    create(broker, name)
    records = bytes(record_batch.build([Record(offset=0, timestamp=1, key=None, value=b"v", headers=[])]))
    request = messages.ProduceRequest
    data = request.TopicProduceData(name=name, partition_data=[request.PartitionProduceData(index=0, records=records)])
    send_and_close(broker, *[frame(ApiKey.PRODUCE, 7, request(acks=0, timeout_ms=1_000, topic_data=[data]))] * 500)
    until(lambda: count_of(broker, name) == 500)


def test_a_librdkafka_that_flushes_and_goes(broker: Broker, name: str) -> None:
    create(broker, name)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": 0, "batch.num.messages": 1, "linger.ms": 0})
    for number in range(3_000):
        producer.produce(name, str(number))
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    del producer
    until(lambda: count_of(broker, name) == 3_000)


def test_an_admin_that_does_not_wait(broker: Broker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def there() -> int:
        return sum(topic.startswith(name) for topic in admin.list_topics(timeout=200).topics)

    names = [f"{name}-{number}" for number in range(60)]
    request = messages.CreateTopicsRequest
    wanted = [request.CreatableTopic(name=each, num_partitions=1, replication_factor=1) for each in names]
    send_and_close(broker, frame(ApiKey.CREATE_TOPICS, 5, request(topics=wanted, timeout_ms=30_000)))
    until(lambda: there() == 60)
    delete = messages.DeleteTopicsRequest(topic_names=names, timeout_ms=30_000)
    send_and_close(broker, frame(ApiKey.DELETE_TOPICS, 5, delete))
    until(lambda: there() == 0)


def test_half_a_close_still_gets_the_long_poll(broker: Broker, name: str) -> None:
    create(broker, name)
    request = messages.FetchRequest
    partition = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    topic = request.FetchTopic(topic=name, partitions=[partition])
    asked = request(max_wait_ms=300, min_bytes=1, max_bytes=1_000, topics=[topic], session_epoch=-1)

    def answered() -> bool:
        with socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S) as client:
            client.sendall(frame(ApiKey.FETCH, 11, asked))
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := client.recv(65_536):
                answer += piece
        assert struct.unpack_from(">i", answer)[0] == len(answer) - 4, "no answer, or half of one"
        _, response = frames.decode_response(ApiKey.FETCH, 11, memoryview(answer)[4:])
        return response.responses[0].partitions[0].error_code == 0

    until(answered)  # a moment after its creation the topic may not be known


@pytest.mark.parametrize("kind", ["librdkafka", "kafka-python"])
def test_a_consumer_that_closes_while_it_joins_is_no_ghost(broker: Broker, name: str, kind: str) -> None:
    create(broker, name)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": name,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": 300,
    }
    stays = Consumer(settings | {"client.id": "stays"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def group() -> tuple[str, list[str]]:
        described = admin.describe_consumer_groups([name])[name].result()
        return described.state.name, [member.client_id for member in described.members]

    def polled(wanted: tuple[str, list[str]]) -> bool:
        stays.poll(0.05)
        return group() == wanted

    try:
        stays.subscribe([name])
        until(lambda: polled(("STABLE", ["stays"])))
        if kind == "librdkafka":  # `stays` does not poll, so the other one's JoinGroup is parked
            goes = Consumer(settings | {"client.id": "goes"})
            goes.subscribe([name])
            until(lambda: goes.poll(0.05) is None and len(group()[1]) == 2)
            closing = threading.Thread(target=goes.close)
        else:
            from kafka import KafkaConsumer

            other = KafkaConsumer(
                name,
                bootstrap_servers=broker.bootstrap,
                group_id=name,
                client_id="goes",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                heartbeat_interval_ms=300,
            )
            until(lambda: other.poll(50) == {} and len(group()[1]) == 2)
            closing = threading.Thread(target=other.close)
        closing.start()
        until(lambda: polled(("STABLE", ["stays"])))
        closing.join(PATIENCE_S)
    finally:
        with contextlib.suppress(RuntimeError):
            stays.close()
