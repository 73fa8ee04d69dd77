"""The broker stops, or is killed, while clients run: everything that it acknowledged is served afterwards."""

import asyncio
import itertools
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

TOPIC, GROUP = "restarts", "restart-readers"
ENDINGS = [signal.SIGTERM, signal.SIGKILL]


def create(broker: Any, partitions: int = 3) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({TOPIC: {"num_partitions": partitions}}, wait_for_metadata=True)
    admin.close()


def restart(broker: Any, ending: signal.Signals) -> None:
    code = broker.end(ending)
    if ending is signal.SIGTERM:
        assert code in (0, 143)  # 143: what a JVM answers to SIGTERM
    broker.start()


def everything(broker: Any) -> dict[int, list[bytes]]:
    """Values of all records by partition, read from the beginning."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    partitions = [TopicPartition(TOPIC, index) for index in sorted(consumer.partitions_for_topic(TOPIC) or ())]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    values: dict[int, list[bytes]] = {partition.partition: [] for partition in partitions}
    deadline = time.monotonic() + 200
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        assert time.monotonic() < deadline
        for partition, records in consumer.poll(200).items():
            values[partition.partition] += [record.value for record in records]
    consumer.close()
    return values


class Load:
    """A thread that produces without a pause; `acknowledged` holds what the broker confirmed, by partition."""

    def __init__(self, bootstrap: str, **configs: Any) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap, linger_ms=2, reconnect_backoff_max_ms=200, max_block_ms=60_000, **configs
        )
        self.acknowledged: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        self.failures: list[BaseException] = []
        self.count = 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            value = b"%08d" % number
            try:
                future = self.producer.send(TOPIC, value, partition=number % 3)
            except KafkaError as error:
                self.failures.append(error)
                return
            future.add_callback(self._acknowledge, value)
            future.add_errback(self.failures.append)
            number += 1
            time.sleep(0.0005)

    def _acknowledge(self, value: bytes, metadata: Any) -> None:
        self.acknowledged[metadata.partition].append(value)
        self.count += 1

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(200)
        self.producer.flush(200)
        self.producer.close(10)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_producer_goes_on_after_a_restart(own_broker: Any, wait_until: Any, ending: signal.Signals) -> None:
    create(own_broker)
    load = Load(own_broker.bootstrap)
    try:
        wait_until(lambda: load.count > 300)
        restart(own_broker, ending)
        before = load.count
        wait_until(lambda: load.count > before + 300)
    finally:
        load.stop()
    assert load.failures == []
    # Idempotent: every record once, in order, although requests were repeated.
    assert everything(own_broker) == {partition: sorted(values) for partition, values in load.acknowledged.items()}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_consumer_in_a_group_goes_on_after_a_restart(own_broker: Any, ending: signal.Signals) -> None:
    create(own_broker)
    consumer = KafkaConsumer(
        bootstrap_servers=own_broker.bootstrap,
        group_id=GROUP,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=100,
        reconnect_backoff_max_ms=200,
        heartbeat_interval_ms=300,
    )
    consumer.partitions_for_topic(TOPIC)
    consumer.subscribe([TOPIC])
    seen: list[bytes] = []

    def send_and_read(values: list[bytes]) -> None:
        producer = KafkaProducer(bootstrap_servers=own_broker.bootstrap)
        futures = [producer.send(TOPIC, value, partition=index % 3) for index, value in enumerate(values)]
        for future in futures:
            future.get(200)
        producer.close()
        deadline = time.monotonic() + 200
        while not set(values) <= set(seen):
            assert time.monotonic() < deadline, (len(seen), consumer.assignment())
            for batch in consumer.poll(200).values():
                seen.extend(record.value for record in batch)

    send_and_read([b"before %d" % number for number in range(30)])
    consumer.commit()
    restart(own_broker, ending)
    send_and_read([b"after %d" % number for number in range(30)])
    consumer.close()
    assert len(seen) == len(set(seen)) == 60


@pytest.mark.parametrize("ending", ENDINGS)
def test_librdkafka_goes_on_after_a_restart(own_broker: Any, wait_until: Any, ending: signal.Signals) -> None:
    create(own_broker)
    servers = {"bootstrap.servers": own_broker.bootstrap, "reconnect.backoff.max.ms": 200}
    consumer = Consumer(servers | {"group.id": GROUP, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 300})
    consumer.subscribe([TOPIC])
    producer = Producer(servers | {"enable.idempotence": True})
    acknowledged: list[bytes] = []
    errors: list[Any] = []
    seen: list[bytes] = []
    number = itertools.count()

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(error)
        else:
            acknowledged.append(message.value())

    def exchange(until: int) -> bool:
        for _ in range(10):
            producer.produce(TOPIC, b"%d" % next(number), on_delivery=delivered)
        producer.poll(0)
        seen.extend(message.value() for message in consumer.consume(100, 0.01) if not message.error())
        return len(seen) >= until and len(acknowledged) >= until

    wait_until(lambda: exchange(200))
    restart(own_broker, ending)
    already = len(seen)
    wait_until(lambda: exchange(already + 200))
    assert producer.flush(200) == 0
    target = set(acknowledged)
    wait_until(lambda: exchange(0) and target <= set(seen))
    consumer.close()
    assert errors == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_aiokafka_goes_on_after_a_restart(own_broker: Any, ending: signal.Signals) -> None:
    create(own_broker)
    acknowledged: list[bytes] = []
    seen: list[bytes] = []

    async def produce(producer: AIOKafkaProducer) -> None:
        for number in itertools.count():
            value = b"%08d" % number
            await producer.send_and_wait(TOPIC, value, partition=number % 3)
            acknowledged.append(value)

    async def consume(consumer: AIOKafkaConsumer) -> None:
        while True:
            seen.append((await consumer.getone()).value)

    async def story() -> None:
        servers = {"bootstrap_servers": own_broker.bootstrap, "retry_backoff_ms": 50}
        options = {"group_id": GROUP, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 300}
        async with (
            AIOKafkaProducer(**servers, enable_idempotence=True) as producer,
            AIOKafkaConsumer(TOPIC, **servers, **options) as consumer,
        ):
            tasks = [asyncio.create_task(produce(producer)), asyncio.create_task(consume(consumer))]

            async def until(condition: Callable[[], bool]) -> None:
                async with asyncio.timeout(60):
                    while not condition():
                        for task in tasks:
                            if task.done() and not task.cancelled():
                                await task  # raises what ended it
                        await asyncio.sleep(0.02)

            await until(lambda: len(seen) > 100)
            await asyncio.to_thread(restart, own_broker, ending)
            already = len(acknowledged), len(seen)
            await until(lambda: len(acknowledged) > already[0] + 100 and len(seen) > already[1] + 100)
            tasks[0].cancel()
            await until(lambda: set(acknowledged) <= set(seen))
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(story())
    served = [value for values in everything(own_broker).values() for value in values]
    # Idempotent: once each. The send that was cancelled may have arrived.
    assert len(served) == len(set(served))
    assert set(acknowledged) <= set(served)


@pytest.mark.parametrize("ending", ENDINGS)
def test_automatic_commits_survive_a_restart(own_broker: Any, wait_until: Any, ending: signal.Signals) -> None:
    create(own_broker, partitions=1)
    producer = KafkaProducer(bootstrap_servers=own_broker.bootstrap, reconnect_backoff_max_ms=200)
    options = {
        "bootstrap_servers": own_broker.bootstrap,
        "group_id": GROUP,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 100,
        "reconnect_backoff_max_ms": 200,
    }
    consumer = KafkaConsumer(**options)
    consumer.partitions_for_topic(TOPIC)
    consumer.subscribe([TOPIC])
    partition = TopicPartition(TOPIC, 0)
    seen: list[bytes] = []

    def read_all(reader: KafkaConsumer, count: int) -> bool:
        seen.extend(record.value for records in reader.poll(100).values() for record in records)
        return len(seen) >= count

    for number in range(20):
        producer.send(TOPIC, b"%d" % number).get(200)
    wait_until(lambda: read_all(consumer, 20) and consumer.committed(partition) == 20)
    restart(own_broker, ending)
    producer.send(TOPIC, b"after").get(200)
    # A new member joins, and the old one sends nothing more, as if its process were gone.
    other = KafkaConsumer(**options)
    assert other.committed(partition) == 20
    other.assign([partition])
    wait_until(lambda: read_all(other, 21))
    assert seen[20:] == [b"after"]
    for client in (other, consumer, producer):
        client.close()


def test_what_was_acknowledged_before_sigkill_is_served(own_broker: Any, wait_until: Any) -> None:
    """Records of all acknowledgements and the committed offsets, twice in a row."""
    create(own_broker)
    committed: dict[Any, int] = {}
    load = Load(own_broker.bootstrap)
    committer = KafkaConsumer(
        bootstrap_servers=own_broker.bootstrap, group_id=GROUP, enable_auto_commit=False, reconnect_backoff_max_ms=200
    )
    partitions = [TopicPartition(TOPIC, index) for index in range(3)]
    committer.assign(partitions)
    try:
        for _ in range(2):
            target = load.count + 500

            def committing() -> bool:
                offsets = {partition: len(load.acknowledged[partition.partition]) for partition in partitions}
                committer.commit({partition: OffsetAndMetadata(o, "", -1) for partition, o in offsets.items()})
                committed.update(offsets)
                return load.count > target  # noqa: B023

            wait_until(committing, longest_pause_s=0.005)
            own_broker.kill()
            acknowledged = {partition: list(values) for partition, values in load.acknowledged.items()}
            own_broker.start()
            served = everything(own_broker)
            for partition, values in acknowledged.items():
                assert set(values) <= set(served[partition])
            assert {partition: committer.committed(partition) for partition in partitions} == committed
    finally:
        load.stop()
        committer.close()
    assert load.failures == []
    assert everything(own_broker) == {partition: sorted(values) for partition, values in load.acknowledged.items()}
