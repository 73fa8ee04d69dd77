"""What consumers see of transactions: in a data directory that Apache Kafka wrote, and of those written here.

Producers here are trusted, and markers are sent by hand. test_exactly_once.py has the coordinator.
"""

import asyncio
import re
import socket
import struct
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from barnabas.protocol import frames, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import ProduceRequest, WriteTxnMarkersRequest
from barnabas.protocol.record_batch import Record
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as RdTopicPartition
from kafka import KafkaConsumer, TopicPartition

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.1.0"
Reader = Callable[[str, str, int, str], list[str]]


def read_by_kafka_python(bootstrap: str, topic: str, partition: int, isolation: str) -> list[str]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False)
    where = TopicPartition(topic, partition)
    consumer.assign([where])
    consumer.seek_to_beginning(where)
    end = consumer.end_offsets([where])[where]
    found = []
    while consumer.position(where) < end:
        for records in consumer.poll(timeout_ms=200).values():
            found += [record.value.decode() for record in records]
    consumer.close()
    return found


def read_by_confluent(bootstrap: str, topic: str, partition: int, isolation: str) -> list[str]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": isolation}
    consumer = Consumer(settings | {"enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([RdTopicPartition(topic, partition, OFFSET_BEGINNING)])
    found = []
    while True:
        message = consumer.poll(10)
        assert message is not None, "neither a record nor the end"
        if message.error():
            break
        found.append(message.value().decode())
    consumer.close()
    return found


def read_by_aiokafka(bootstrap: str, topic: str, partition: int, isolation: str) -> list[str]:
    async def run() -> list[str]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False)
        await consumer.start()
        where = AioTopicPartition(topic, partition)
        consumer.assign([where])
        await consumer.seek_to_beginning(where)
        end = (await consumer.end_offsets([where]))[where]
        found = []
        while await consumer.position(where) < end:
            for records in (await consumer.getmany(where, timeout_ms=200)).values():
                found += [record.value.decode() for record in records]
        await consumer.stop()
        return found

    return asyncio.run(run())


READERS = [read_by_kafka_python, read_by_confluent, read_by_aiokafka]


@pytest.fixture(scope="module")
def broker_of_kafka(tmp_path_factory: Any, own_broker_on: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("kafka")
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    yield from own_broker_on(folder, ())


@pytest.fixture
def trusting_broker(tmp_path: Path, own_broker_on: Any) -> Iterator[Any]:
    yield from own_broker_on(tmp_path, ["transaction.partition.verification.enable=false"])


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("read", READERS)
def test_consumers_of_kafkas_directory_see_what_was_committed(
    broker_of_kafka: Any, read: Reader, partition: int
) -> None:
    """Kafka's own dump tool has shown all records from its second segment on; before it all were committed."""
    text = (GOLDEN / "dump" / f"payments-{partition}.txt").read_text()
    dumped = re.findall(r"\| offset: .* payload: (.*)", text)
    (first_offset,) = re.findall(r"Log starting offset: (\d+)", text)
    before = [f"tx0 commit {number}" for number in range(partition, 5 + partition, 2)][: int(first_offset)]
    committed = [value for value in dumped if "commit" in value]
    assert 0 < len(committed) < len(dumped)
    assert read(broker_of_kafka.bootstrap, "payments", partition, "read_uncommitted") == [*before, *dumped]
    assert read(broker_of_kafka.bootstrap, "payments", partition, "read_committed") == [*before, *committed]


class TrustedProducer:
    """A transactional producer and its coordinator in one, on a socket."""

    def __init__(self, broker: Any, topic: str, producer_id: int) -> None:
        self.topic = topic
        self.producer_id = producer_id
        self._sequence = 0
        self._socket = socket.create_connection(("127.0.0.1", broker.port), 20)

    def _ask(self, key: ApiKey, version: int, message: Any) -> Any:
        self._socket.sendall(frames.encode_request(key, version, 1, "trusted", message))
        (size,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))
        return frames.decode_response(key, version, memoryview(self._socket.recv(size, socket.MSG_WAITALL)))[1]

    def send(self, *values: str, transactional: bool = True) -> None:
        records = [Record(timestamp=int(time.time() * 1000), value=value.encode()) for value in values]
        batch = record_batch.build(
            records,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
            transactional=transactional,
        )
        data = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topics = [ProduceRequest.TopicProduceData(name=self.topic, partition_data=[data])]
        request = ProduceRequest(transactional_id="t", acks=-1, timeout_ms=5000, topic_data=topics)
        (answer,) = self._ask(ApiKey.PRODUCE, 11, request).responses[0].partition_responses
        assert answer.error_code == 0, answer
        self._sequence += len(values)

    def end(self, *, commit: bool) -> None:
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=self.producer_id,
            transaction_result=commit,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=self.topic, partition_indexes=[0])],
        )
        answer = self._ask(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=[marker]))
        assert answer.markers[0].topics[0].partitions[0].error_code == 0

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("read", READERS)
def test_consumers_see_what_is_committed_here(trusting_broker: Any, read: Reader) -> None:
    broker = trusting_broker
    assert read_by_kafka_python(broker.bootstrap, "mixed", 0, "read_committed") == []  # this creates it
    one, two, plain = (TrustedProducer(broker, "mixed", producer_id) for producer_id in (901, 902, 903))
    expected: list[str] = []
    for round_ in range(6):
        ends = {one: bool(round_ % 2), two: bool(round_ % 3)}
        for producer, value in ((one, f"1 {round_} a"), (two, f"2 {round_}"), (one, f"1 {round_} b")):
            producer.send(value)
            if ends[producer]:
                expected.append(value)
        plain.send(f"plain {round_}", transactional=False)
        expected.append(f"plain {round_}")
        for producer in (two, one):
            producer.end(commit=ends[producer])
    two.send("open")
    plain.send("behind it", transactional=False)
    assert read(broker.bootstrap, "mixed", 0, "read_committed") == expected
    for producer in (one, two, plain):
        producer.close()
    broker.kill()
    broker.start()
    assert read(broker.bootstrap, "mixed", 0, "read_committed") == expected
    again = TrustedProducer(broker, "mixed", 902)
    again.end(commit=False)
    again.close()
    assert read(broker.bootstrap, "mixed", 0, "read_committed") == [*expected, "behind it"]
