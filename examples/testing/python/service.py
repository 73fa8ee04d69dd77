"""What is tested: a service that reads orders and writes invoices, with three clients of Kafka to choose from.

A client here is a small class, so that each test can be run with each of them. Your service has one, and no such class.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import aiokafka
import confluent_kafka
import kafka
from aiokafka.errors import KafkaError as AioKafkaError
from kafka.errors import KafkaError as PythonKafkaError

T = TypeVar("T")
Record = tuple[int, int, bytes]  # partition, offset, value
GIVES_UP_AFTER_S = 30.0


class Client(Protocol):
    """What the service needs of a client. Each call connects, and closes what it has opened."""

    def produce(self, topic: str, values: Sequence[bytes], *, key: bytes | None = None, **settings: Any) -> None:
        """Write values, and return when all are acknowledged."""

    def read(self, topic: str, count: int, *, group: str | None = None, commits: bool = False) -> list[Record]:
        """So many records: from the beginning, or from where the group was. With `commits`, that is noted."""

    def move(self, source: str, target: str, count: int, *, group: str, ends: bool = True) -> list[bytes]:
        """Read orders, write an invoice for each, and the new offsets, in a transaction; abort it if not `ends`."""


class NotInTimeError(Exception):
    """Records did not come."""


def _polls(found: list[Record], count: int) -> Iterator[None]:
    """A turn for each poll, until so many records were found."""
    give_up = time.monotonic() + GIVES_UP_AFTER_S
    while len(found) < count:
        if time.monotonic() > give_up:
            raise NotInTimeError(f"{len(found)} of {count} records have come")
        yield


# A leader that learns of a topic's partitions too late joins again. If a poll ends before kafka-python (3.0.12) has its
# assignment then, it never looks for it: it sends no heartbeat, and refuses to commit. So polls are long.
POLL_MS = 5_000


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.name = name

    def produce(self, topic: str, values: Sequence[bytes], *, key: bytes | None = None, **settings: Any) -> None:
        """Write values."""
        if "compression" in settings:
            settings["compression_type"] = settings.pop("compression")
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap, client_id=self.name, retry_backoff_ms=20, **settings
        )
        try:
            sent = [producer.send(topic, value, key=key) for value in values]
            for each in sent:
                each.get(GIVES_UP_AFTER_S)
        finally:
            producer.close()

    def _consumer(self, topic: str, group: str | None) -> Any:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            client_id=self.name,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
            retry_backoff_ms=20,
        )
        consumer.partitions_for_topic(topic)  # a member that joins before it knows the topic may be assigned nothing
        consumer.subscribe([topic])
        return consumer

    def read(self, topic: str, count: int, *, group: str | None = None, commits: bool = False) -> list[Record]:
        """So many records."""
        consumer = self._consumer(topic, group)
        try:
            found = _polled(consumer, count)
            if commits:
                offsets = _positions(consumer)
                _in_time(lambda: consumer.commit(offsets), PythonKafkaError, lambda: consumer.poll(POLL_MS))
            return found
        finally:
            consumer.close(autocommit=False)

    def move(self, source: str, target: str, count: int, *, group: str, ends: bool = True) -> list[bytes]:
        """Read orders, write invoices."""
        consumer = self._consumer(source, group)
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap, transactional_id=f"{group}-writer", retry_backoff_ms=20
        )
        try:
            producer.init_transactions()
            values = [value for _, _, value in _polled(consumer, count)]
            producer.begin_transaction()
            for value in values:
                producer.send(target, b"invoice for " + value)
            producer.send_offsets_to_transaction(_positions(consumer), consumer.group_metadata())
            producer.commit_transaction() if ends else producer.abort_transaction()
            return values
        finally:
            producer.close()
            consumer.close(autocommit=False)


def _positions(consumer: Any) -> dict[Any, Any]:
    """What is to be committed."""
    partitions = consumer.assignment()
    return {partition: kafka.OffsetAndMetadata(consumer.position(partition), "", -1) for partition in partitions}


def _polled(consumer: Any, count: int) -> list[Record]:
    found: list[Record] = []
    for _ in _polls(found, count):
        for partition, records in consumer.poll(POLL_MS, max_records=count - len(found)).items():
            found += [(partition.partition, record.offset, record.value) for record in records]
    return found


def _in_time(work: Callable[[], T], errors: type[Exception], between: Callable[[], Any] = lambda: None) -> T:
    """Do it again while a broker says that it cannot be done now. A member that must join again does so `between`."""
    give_up = time.monotonic() + GIVES_UP_AFTER_S
    while True:
        try:
            return work()
        except errors:
            if time.monotonic() > give_up:
                raise
            between()
            time.sleep(0.05)


class Confluent:
    """confluent-kafka, which is librdkafka."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.settings = {"bootstrap.servers": bootstrap, "client.id": name, "retry.backoff.ms": 20}
        self.settings |= {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}

    def produce(self, topic: str, values: Sequence[bytes], *, key: bytes | None = None, **settings: Any) -> None:
        """Write values."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        if "compression" in named:
            named["compression.type"] = named.pop("compression")
        producer = confluent_kafka.Producer({**self.settings, "linger.ms": 1, **named})
        failed: list[Any] = []
        for value in values:
            producer.produce(topic, value, key, on_delivery=lambda error, _: error and failed.append(error))
        if producer.flush(GIVES_UP_AFTER_S):
            raise NotInTimeError("not all was acknowledged")
        if failed:
            raise confluent_kafka.KafkaException(failed[0])

    def _consumer(self, group: str | None) -> Any:
        return confluent_kafka.Consumer(
            {
                **self.settings,
                "group.id": group or "nobody",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )

    def read(self, topic: str, count: int, *, group: str | None = None, commits: bool = False) -> list[Record]:
        """So many records."""
        consumer = self._consumer(group)
        try:
            if group is None:
                partitions = consumer.list_topics(topic, timeout=GIVES_UP_AFTER_S).topics[topic].partitions
                first = confluent_kafka.OFFSET_BEGINNING
                consumer.assign([confluent_kafka.TopicPartition(topic, each, first) for each in partitions])
            else:
                consumer.subscribe([topic])
            found = self._polled(consumer, count)
            if commits:
                _in_time(lambda: consumer.commit(asynchronous=False), confluent_kafka.KafkaException)
            return found
        finally:
            consumer.close()

    @staticmethod
    def _polled(consumer: Any, count: int) -> list[Record]:
        found: list[Record] = []
        for _ in _polls(found, count):
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                found.append((message.partition(), message.offset(), message.value()))
        return found

    def move(self, source: str, target: str, count: int, *, group: str, ends: bool = True) -> list[bytes]:
        """Read orders, write invoices."""
        consumer = self._consumer(group)
        producer = confluent_kafka.Producer({**self.settings, "transactional.id": f"{group}-writer"})
        try:
            consumer.subscribe([source])
            producer.init_transactions(GIVES_UP_AFTER_S)
            values = [value for _, _, value in self._polled(consumer, count)]
            producer.begin_transaction()
            for value in values:
                producer.produce(target, b"invoice for " + value)
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), GIVES_UP_AFTER_S)
            if ends:
                producer.commit_transaction(GIVES_UP_AFTER_S)
            else:
                producer.abort_transaction(GIVES_UP_AFTER_S)
            return values
        finally:
            consumer.close()


class AioKafka:
    """aiokafka."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.settings = {"bootstrap_servers": bootstrap, "client_id": name, "retry_backoff_ms": 20}

    @staticmethod
    def _run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(asyncio.wait_for(work, 2 * GIVES_UP_AFTER_S))

    def produce(self, topic: str, values: Sequence[bytes], *, key: bytes | None = None, **settings: Any) -> None:
        """Write values."""
        if "compression" in settings:
            settings["compression_type"] = settings.pop("compression")

        async def produce() -> None:
            async with aiokafka.AIOKafkaProducer(**self.settings, **settings) as producer:
                sent = [await producer.send(topic, value, key=key) for value in values]
                await asyncio.gather(*sent)

        self._run(produce())

    def _consumer(self, topic: str, group: str | None) -> Any:
        return aiokafka.AIOKafkaConsumer(
            topic,
            **self.settings,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
        )

    @staticmethod
    async def _polled(consumer: Any, count: int) -> list[Record]:
        found: list[Record] = []
        for _ in _polls(found, count):
            for partition, records in (await consumer.getmany(timeout_ms=200, max_records=count - len(found))).items():
                found += [(partition.partition, record.offset, record.value) for record in records]
        return found

    def read(self, topic: str, count: int, *, group: str | None = None, commits: bool = False) -> list[Record]:
        """So many records."""

        async def read() -> list[Record]:
            async with self._consumer(topic, group) as consumer:
                found = await self._polled(consumer, count)
                give_up = time.monotonic() + GIVES_UP_AFTER_S
                while commits:
                    try:
                        await consumer.commit()
                        break
                    except AioKafkaError:
                        if time.monotonic() > give_up:
                            raise
                        await asyncio.sleep(0.05)
                return found

        return self._run(read())

    def move(self, source: str, target: str, count: int, *, group: str, ends: bool = True) -> list[bytes]:
        """Read orders, write invoices."""

        async def move() -> list[bytes]:
            writer = aiokafka.AIOKafkaProducer(**self.settings, transactional_id=f"{group}-writer")
            async with self._consumer(source, group) as consumer, writer as producer:
                values = [value for _, _, value in await self._polled(consumer, count)]
                await producer.begin_transaction()
                for value in values:
                    await producer.send(target, b"invoice for " + value)
                positions = {each: await consumer.position(each) for each in consumer.assignment()}
                await producer.send_offsets_to_transaction(positions, group)
                await (producer.commit_transaction() if ends else producer.abort_transaction())
                return values

        return self._run(move())


CLIENTS: dict[str, Callable[[str, str], Client]] = {
    "kafka-python": KafkaPython,
    "confluent-kafka": Confluent,
    "aiokafka": AioKafka,
}
