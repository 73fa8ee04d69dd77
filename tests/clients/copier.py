"""Copies records from one topic to another, exactly once: consume, produce, send the offsets, commit.

`python copier.py CLIENT HOST:PORT NAME TRANSACTIONAL_ID SESSION_TIMEOUT_MS TRANSACTION_TIMEOUT_MS PAUSE`: from the
topic NAME-in to the same partition of NAME-out, as a member of the group NAME. Every third transaction is aborted, and
its records are read again. PAUSE is a step of the second transaction, `produced` or `offsets`: when this is done, it
prints `paused` and waits for a line on its input. `-`: no pause. It prints what became of each transaction:
`committed`, `aborted`, `lost` (the group has given the partitions to others) or `fenced`, which ends it.
"""

import asyncio
import sys
from typing import Any, NamedTuple

RECORDS_MAX = 20  # in a transaction
ABORTED_EVERY = 3
PAUSED_TRANSACTION = 2
HEARTBEAT_MS = 200


class Options(NamedTuple):
    """The words of the command line."""

    bootstrap: str
    name: str
    transactional_id: str
    session_timeout_ms: int
    transaction_timeout_ms: int
    pause: str

    @property
    def source(self) -> str:
        """The topic to read."""
        return f"{self.name}-in"

    @property
    def sink(self) -> str:
        """The topic to write."""
        return f"{self.name}-out"

    def reached(self, step: str, number: int) -> bool:
        """Whether to pause now."""
        return step == self.pause and number == PAUSED_TRANSACTION


def tell(word: str) -> None:
    """Print it at once."""
    print(word, flush=True)


def pause() -> None:
    """Wait for a line."""
    tell("paused")
    sys.stdin.readline()


def kafka_python(options: Options) -> None:
    """kafka-python."""
    from barnabas.cli.shared.kafka_python import take_up_every_assignment
    from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
    from kafka.errors import (
        CommitFailedError,
        IllegalGenerationError,
        InvalidProducerEpochError,
        KafkaError,
        ProducerFencedError,
        RebalanceInProgressError,
        UnknownMemberIdError,
    )

    take_up_every_assignment()
    consumer = KafkaConsumer(
        options.source,
        bootstrap_servers=options.bootstrap,
        group_id=options.name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=options.session_timeout_ms,
        max_poll_interval_ms=options.session_timeout_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=RECORDS_MAX,
    )
    producer = KafkaProducer(
        bootstrap_servers=options.bootstrap,
        transactional_id=options.transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
    )
    producer.init_transactions()

    def rewind() -> None:
        for partition in consumer.assignment():
            consumer.seek(partition, consumer.committed(partition) or 0)

    number = 0
    while True:
        polled = consumer.poll(timeout_ms=100)
        if not polled:
            continue
        membership = consumer.group_metadata()  # that of these records: later it may have left the group
        number += 1
        try:
            producer.begin_transaction()
            futures = [
                producer.send(options.sink, b"copy of " + record.value, partition=record.partition)
                for records in polled.values()
                for record in records
            ]
            for future in futures:
                future.get(200)
            if options.reached("produced", number):
                pause()
            ends = {
                partition: OffsetAndMetadata(records[-1].offset + 1, "", -1) for partition, records in polled.items()
            }
            producer.send_offsets_to_transaction(ends, membership)
            if options.reached("offsets", number):
                pause()
            if number % ABORTED_EVERY:
                producer.commit_transaction()
                tell("committed")
            else:
                producer.abort_transaction()
                rewind()
                tell("aborted")
        except (ProducerFencedError, InvalidProducerEpochError) as error:
            print(repr(error), file=sys.stderr)
            tell("fenced")
            return
        except (CommitFailedError, IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError) as error:
            print(repr(error), file=sys.stderr)
            producer.abort_transaction()
            tell("lost")
            rewind()
        except KafkaError as error:
            print(repr(error), file=sys.stderr)
            raise


def confluent_kafka(options: Options) -> None:
    """confluent-kafka."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

    fenced = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    lost = (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
    )
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": options.session_timeout_ms,
            "max.poll.interval.ms": options.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    )
    consumer.subscribe([options.source])
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "transactional.id": options.transactional_id,
            "transaction.timeout.ms": options.transaction_timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)

    def rewind() -> None:
        for place in consumer.committed(consumer.assignment(), 10):
            consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))

    number = 0
    while True:
        polled = [message for message in consumer.consume(RECORDS_MAX, 0.1) if not message.error()]
        if not polled:
            continue
        membership = consumer.consumer_group_metadata()
        number += 1
        try:
            producer.begin_transaction()
            for message in polled:
                producer.produce(options.sink, b"copy of " + message.value(), partition=message.partition())
            producer.flush(200)
            if options.reached("produced", number):
                pause()
            ends = {message.partition(): message.offset() + 1 for message in polled}
            places = [TopicPartition(options.source, partition, offset) for partition, offset in ends.items()]
            producer.send_offsets_to_transaction(places, membership, 30)
            if options.reached("offsets", number):
                pause()
            if number % ABORTED_EVERY:
                producer.commit_transaction(30)
                tell("committed")
            else:
                producer.abort_transaction(30)
                rewind()
                tell("aborted")
        except KafkaException as exception:
            error = exception.args[0]
            print(repr(error), file=sys.stderr)
            if error.code() in fenced:
                tell("fenced")
                return
            if error.code() not in lost or not error.txn_requires_abort():
                raise
            producer.abort_transaction(30)
            tell("lost")
            rewind()


async def _aiokafka(options: Options) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

    consumer = AIOKafkaConsumer(
        options.source,
        bootstrap_servers=options.bootstrap,
        group_id=options.name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=options.session_timeout_ms,
        max_poll_interval_ms=options.session_timeout_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=options.bootstrap,
        transactional_id=options.transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
    )
    await producer.start()
    await consumer.start()
    number = 0
    while True:
        polled = await consumer.getmany(timeout_ms=100, max_records=RECORDS_MAX)
        if not polled:
            continue
        number += 1
        try:
            await producer.begin_transaction()
            futures = [
                await producer.send(options.sink, b"copy of " + record.value, partition=record.partition)
                for records in polled.values()
                for record in records
            ]
            await asyncio.gather(*futures)
            if options.reached("produced", number):
                await asyncio.to_thread(pause)
            ends = {partition: records[-1].offset + 1 for partition, records in polled.items()}
            await producer.send_offsets_to_transaction(ends, options.name)
            if options.reached("offsets", number):
                await asyncio.to_thread(pause)
            if number % ABORTED_EVERY:
                await producer.commit_transaction()
                tell("committed")
            else:
                await producer.abort_transaction()
                for partition in consumer.assignment():
                    consumer.seek(partition, await consumer.committed(partition) or 0)
                tell("aborted")
        except (InvalidProducerEpoch, ProducerFenced) as error:
            print(repr(error), file=sys.stderr)
            tell("fenced")
            return


def aiokafka(options: Options) -> None:
    """aiokafka, which tells the coordinator nothing of its generation (KIP-447)."""
    asyncio.run(_aiokafka(options))


if __name__ == "__main__":
    client, bootstrap, name, transactional_id, session, timeout, pause_at = sys.argv[1:]
    copiers: dict[str, Any] = {"kafka-python": kafka_python, "confluent-kafka": confluent_kafka, "aiokafka": aiokafka}
    copiers[client](Options(bootstrap, name, transactional_id, int(session), int(timeout), pause_at))
