"""Clients that commit a consumer's offsets in a producer's transaction, as they are, against a broker process."""

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

Commit = Callable[[str, str, int, bool], None]  # bootstrap, name, offset, whether to commit


def by_kafka_python(bootstrap: str, name: str, offset: int, is_commit: bool) -> None:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=name, enable_auto_commit=False)
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(name, b"copied", partition=0)
    offsets = {TopicPartition(name, 1): OffsetAndMetadata(offset, "note", -1)}
    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    (producer.commit_transaction if is_commit else producer.abort_transaction)()
    producer.close()
    consumer.close()


def by_confluent(bootstrap: str, name: str, offset: int, is_commit: bool) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": name})
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(name, b"copied", partition=0)
    offsets = [confluent_kafka.TopicPartition(name, 1, offset, "note")]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
    (producer.commit_transaction if is_commit else producer.abort_transaction)(20)
    consumer.close()


def by_aiokafka(bootstrap: str, name: str, offset: int, is_commit: bool) -> None:
    import asyncio

    from aiokafka import AIOKafkaProducer
    from aiokafka.structs import OffsetAndMetadata as Offset
    from aiokafka.structs import TopicPartition as Partition

    async def story() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(name, b"copied", partition=0)
            await producer.send_offsets_to_transaction({Partition(name, 1): Offset(offset, "note")}, name)
            await (producer.commit_transaction if is_commit else producer.abort_transaction)()

    asyncio.run(story())


def committed(bootstrap: str, name: str) -> int:
    """What a consumer of the group begins with. librdkafka asks for stable offsets only."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": name})
    (found,) = consumer.committed([confluent_kafka.TopicPartition(name, 1)], 20)
    consumer.close()
    assert not found.error
    return found.offset  # type: ignore[no-any-return]


@pytest.mark.parametrize("commit", [by_kafka_python, by_confluent, by_aiokafka])
def test_offsets_count_if_the_transaction_is_committed(broker: Any, name: str, commit: Commit) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(name, 2, 1)])[name].result(200)
    time.sleep(0.5)
    commit(broker.bootstrap, name, 5, True)
    assert committed(broker.bootstrap, name) == 5
    commit(broker.bootstrap, name, 7, False)
    assert committed(broker.bootstrap, name) == 5
    commit(broker.bootstrap, name, 9, True)
    assert committed(broker.bootstrap, name) == 9
