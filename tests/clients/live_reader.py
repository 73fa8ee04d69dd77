"""A member of a group, which prints `PARTITION OFFSET` for each record and commits what it has printed.

`python live_reader.py CLIENT HOST:PORT TOPIC MODE INSTANCE`: the group is named as the topic; MODE is eager or
cooperative, or consumer for the consumer protocol; INSTANCE is the instance id of a static member, or `-`. A refused
commit is printed on standard error.
"""

import asyncio
import sys
from typing import Any

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_MS = 200


def tell(partition: int, offset: int) -> None:
    """Print a record."""
    print(partition, offset, flush=True)


def complain(error: object) -> None:
    """Print what was refused."""
    print(f"refused: {error!r}", file=sys.stderr, flush=True)


def kafka_python(bootstrap: str, topic: str, mode: str, instance: str | None) -> None:
    """kafka-python."""
    from barnabas.cli.shared.kafka_python import take_up_every_assignment
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError

    take_up_every_assignment()
    assignor = CooperativeStickyAssignor if mode == "cooperative" else RangePartitionAssignor
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=5,
        partition_assignment_strategy=[assignor],
    )
    while True:
        for records in consumer.poll(timeout_ms=100).values():
            for record in records:
                tell(record.partition, record.offset)
        try:
            consumer.commit()
        except KafkaError as error:
            complain(error)


def confluent(bootstrap: str, topic: str, mode: str, instance: str | None) -> None:
    """confluent-kafka, which commits each record by itself."""
    from confluent_kafka import Consumer, KafkaException

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if mode == "consumer":
        settings["group.protocol"] = "consumer"
    else:
        settings |= {
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": "cooperative-sticky" if mode == "cooperative" else "range",
        }
    if instance is not None:
        settings["group.instance.id"] = instance
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(0.1)
        if message is None or message.error():
            continue
        tell(message.partition(), message.offset())
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException as error:
            complain(error)


async def _aiokafka(bootstrap: str, topic: str, instance: str | None) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.errors import KafkaError

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        enable_auto_commit=True,  # it also commits when it has lost its member id
        auto_commit_interval_ms=100,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    await consumer.start()
    while True:
        for records in (await consumer.getmany(timeout_ms=100, max_records=5)).values():
            for record in records:
                tell(record.partition, record.offset)
        try:
            await consumer.commit()
        except KafkaError as error:
            complain(error)


def aiokafka(bootstrap: str, topic: str, mode: str, instance: str | None) -> None:
    """aiokafka, which knows no cooperative protocol."""
    asyncio.run(_aiokafka(bootstrap, topic, instance))


if __name__ == "__main__":
    client, bootstrap, topic, mode, instance = sys.argv[1:]
    {"kafka-python": kafka_python, "confluent-kafka": confluent, "aiokafka": aiokafka}[client](
        bootstrap, topic, mode, None if instance == "-" else instance
    )
