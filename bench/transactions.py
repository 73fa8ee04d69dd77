"""Loads of transactions. Each drives one broker for some seconds with the raw client of `transactional.py`.

"Version 2" is a client that leaves it to Produce and TxnOffsetCommit to add a partition to the transaction (KIP-890);
"version 1" adds it with a request of its own, as clients before Kafka 4.0 do.
"""

import asyncio
import time

from bench import apache_kafka
from bench.loads import (
    READ_COMMITTED,
    Figures,
    Load,
    Row,
    fetch_frame,
    find_coordinator,
    own_topic,
    read_all,
    topic_of,
)
from bench.targets import Target
from bench.transactional import LARGE_PARTITIONS, LARGE_RECORDS, Connected, Template, Versions, large_requests
from bench.wire import Connection, Latencies, LoadError, close, connect, connect_many, create_topics

WRITERS = 8
PRODUCERS = 16
COPIED_RECORDS = 100


async def _producer(target: Target, name: str, version: int) -> Connected:
    producer = Connected(await connect(target.address), name, Versions(version))
    await producer.begin()
    return producer


class _Cost:
    """Processor time of the broker, and the spans of transactions."""

    def __init__(self, target: Target, seconds: float) -> None:
        self._target = target
        self._cpu = target.cpu_seconds()
        self._began = time.perf_counter()
        self._stop_at = self._began + seconds
        self.latencies = Latencies()

    def goes_on(self) -> bool:
        """Whether another transaction begins."""
        return time.perf_counter() < self._stop_at

    def figures(self, name: str, each: int, producer: Connected) -> Figures:
        """The rate of something of which each transaction has `each`; latencies; processor time of a transaction."""
        count = len(self.latencies.spans)
        return {
            name: each * count / (time.perf_counter() - self._began),
            "p50 ms": self.latencies.percentile_ms(0.5),
            "p99 ms": self.latencies.percentile_ms(0.99),
            "cpu µs": (self._target.cpu_seconds() - self._cpu) / count * 1e6,
            "asked again": producer.again / count,
        }


def _of_one_record(version: int) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        """Transactions of one record of 100 bytes, one request in flight."""
        topic = topic_of("transactions")
        producer = await _producer(target, topic, version)
        await create_topics(producer.connection, [topic])
        requests: list[Template] = [] if producer.versions.adds_by_itself else [producer.adding([(topic, 0)])]
        requests.append(producer.batches(topic, {0: [bytes(100)]}))
        for _ in range(20):
            await _transact(producer, requests)
        producer.again = 0
        cost = _Cost(target, seconds)
        while cost.goes_on():
            began = time.perf_counter()
            await _transact(producer, requests)
            cost.latencies.spans.append(time.perf_counter() - began)
        figures = cost.figures("transactions/s", 1, producer)
        close([producer.connection])
        return figures

    return load


async def _many(target: Target, seconds: float) -> Figures:
    """Transactions of one record of 16 producers at a time, each to a partition of its own."""
    topic = topic_of("transactions")
    producers = [await _producer(target, f"{topic}-{number}", 2) for number in range(PRODUCERS)]
    await create_topics(producers[0].connection, [topic], PRODUCERS)
    requests: list[list[Template]] = [
        [producer.batches(topic, {number: [bytes(100)]})] for number, producer in enumerate(producers)
    ]
    for producer, request in zip(producers, requests, strict=True):
        await _transact(producer, request)
    cost = _Cost(target, seconds)

    async def run(producer: Connected, request: list[Template]) -> None:
        while cost.goes_on():
            began = time.perf_counter()
            await _transact(producer, request)
            cost.latencies.spans.append(time.perf_counter() - began)

    await asyncio.gather(*(run(producer, request) for producer, request in zip(producers, requests, strict=True)))
    figures = cost.figures("transactions/s", 1, producers[0])
    close([producer.connection for producer in producers])
    return figures


async def _transact(producer: Connected, requests: list[Template], *, is_commit: bool = True) -> None:
    for request in requests:
        await producer.ask(request)
    await producer.end(is_commit)


def _of_many_records(transactional: bool) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        """1,000 records of 1 KB over 4 partitions, five requests in flight; then the end of the transaction."""
        async with own_topic(target, "transactions", LARGE_PARTITIONS) as (connection, topic):
            producer = Connected(connection, topic if transactional else None, Versions(2))
            await producer.begin()
            requests = large_requests(producer, topic)
            cost = _Cost(target, seconds)
            while cost.goes_on():
                began = time.perf_counter()
                if transactional:
                    await producer.ask_all(requests)
                    await producer.end()
                else:  # without a pause between two thousands
                    await producer.ask_all(requests * 10)
                cost.latencies.spans.append(time.perf_counter() - began)
            figures = cost.figures("records/s", LARGE_RECORDS * (1 if transactional else 10), producer)
        if not transactional:
            figures["cpu µs"] /= 10
        return figures

    return load


def _java(transaction_ms: int) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        """The Java producer, 1 KB, 4 partitions. It makes about 1,000 records in 16 ms."""
        count = int(60_000 * seconds)
        async with own_topic(target, "transactions", LARGE_PARTITIONS) as (_, topic):
            found = await asyncio.to_thread(
                apache_kafka.produce, target.address, topic, count, 1024, transaction_ms=transaction_ms
            )
        return {"records/s": found["records/sec"], "p99 ms": found["ms 99th"]}

    return load


# ---- reading what is committed ----


async def fill(target: Target, topic: str, transactions: int, values: list[bytes]) -> None:
    """Write transactions into one partition, eight at a time. Every other one is aborted."""
    connections = await connect_many(target.address, WRITERS)

    async def write(number: int, connection: Connection) -> None:
        producer = Connected(connection, f"{topic}-{number}", Versions(2))
        await producer.begin()
        requests: list[Template] = [producer.batches(topic, {0: values})]
        for turn in range(transactions // WRITERS):
            await _transact(producer, requests, is_commit=(turn + number) % 2 == 0)

    await asyncio.gather(*(write(number, connection) for number, connection in enumerate(connections)))
    close(connections)


def _read_committed(transactions_per_second: int, records: int, record_bytes: int) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        """A raw reader, 1 MiB at a time, again and again: it takes the aborted transactions and the offsets."""
        count = int(transactions_per_second * seconds) // WRITERS * WRITERS
        async with own_topic(target, "committed") as (connection, topic):
            await fill(target, topic, count, [bytes(record_bytes)] * records)
            await asyncio.sleep(0.5)
            cpu = target.cpu_seconds()
            began = time.perf_counter()
            received = aborted = reads = 0
            while time.perf_counter() < began + seconds:
                found = await read_all(connection, topic, count * (records + 1), READ_COMMITTED)
                received, aborted, reads = received + found[0], aborted + found[2], reads + 1
            span = time.perf_counter() - began
            cpu = target.cpu_seconds() - cpu
        if aborted < reads * count // 2:
            raise LoadError(f"{aborted} aborted transactions were named of {reads} times {count // 2}")
        return {"MB/s": received / span / 1e6, "cpu µs per MiB": cpu / (received / (1 << 20)) * 1e6}

    return load


async def java_read_committed(target: Target, seconds: float) -> Figures:
    """The Java consumer, read_committed: transactions of 100 records of 1 KB, half of them aborted."""
    count = int(1_000 * seconds) // WRITERS * WRITERS
    async with own_topic(target, "committed") as (_, topic):
        await fill(target, topic, count, [bytes(1024)] * 100)
        cpu = target.cpu_seconds()
        found = await asyncio.to_thread(
            apache_kafka.consume, target.address, topic, count * 50, ["isolation.level=read_committed"]
        )
        cpu = target.cpu_seconds() - cpu
    return {"MB/s": found["MB/s"], "cpu µs per MiB": cpu / (count * 100 / 1024) * 1e6}


# ---- a copier ----


def _copier(version: int) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        """Fetch 100 records, produce 100 others, commit the offset in the transaction, end it; one in flight."""
        source, copy = topic_of("source"), topic_of("copy")
        consumer = await connect(target.address)
        producer = await _producer(target, copy, version)
        await create_topics(consumer, [source, copy])
        await find_coordinator(consumer, copy)
        values = [bytes(100)] * COPIED_RECORDS
        writer = Connected(consumer, None, Versions(version))
        await writer.begin()
        await writer.ask(writer.batches(source, {0: values}))
        batches, commit = producer.batches(copy, {0: values}), producer.committing(copy, source, 7)
        requests: list[Template] = [batches, commit]
        if not producer.versions.adds_by_itself:
            requests = [producer.adding([(copy, 0)]), batches, producer.adding_offsets(copy), commit]
        fetch = fetch_frame(source, 0, 0, max_wait_ms=500, isolation=READ_COMMITTED)
        cost = _Cost(target, seconds)
        while cost.goes_on():
            began = time.perf_counter()
            await consumer.exchange(fetch)
            await _transact(producer, requests)
            cost.latencies.spans.append(time.perf_counter() - began)
        figures = cost.figures("records/s", COPIED_RECORDS, producer)
        close([consumer, producer.connection])
        return figures

    return load


LOADS = {
    "txn-1": Row(_of_one_record(2), "transactions/s", True, "transactions of one record, one in flight, version 2"),
    "txn-1-v1": Row(_of_one_record(1), "transactions/s", True, "the same, version 1"),
    "txn-16": Row(_many, "transactions/s", True, "16 producers at a time, version 2"),
    "txn-1000": Row(_of_many_records(True), "records/s", True, "transactions of 1,000 records of 1 KB, 4 partitions"),
    "txn-none": Row(_of_many_records(False), "records/s", True, "the same requests without transactions"),
    "txn-java": Row(_java(16), "records/s", True, "Java producer, 1 KB, 4 partitions, it commits every 16 ms"),
    "txn-java-none": Row(_java(0), "records/s", True, "the same without transactions"),
    "txn-read": Row(
        _read_committed(600, 100, 1024), "MB/s", True, "read_committed, half aborted, 100 records a transaction"
    ),
    "txn-read-1": Row(_read_committed(2_000, 1, 100), "MB/s", True, "the same, one record of 100 bytes"),
    "txn-consume": Row(java_read_committed, "MB/s", True, "Java consumer, read_committed, half aborted"),
    "txn-copy": Row(_copier(2), "records/s", True, "copier, 100 records a transaction, version 2"),
    "txn-copy-v1": Row(_copier(1), "records/s", True, "the same, version 1"),
}
