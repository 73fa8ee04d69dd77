"""The loads. Each drives one broker for some seconds and returns figures by name; LOADS says which figure counts."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_layout import HEADER, PREFIX_BYTES
from barnabas.protocol.batch_records import Record

from bench import apache_kafka
from bench.targets import Target
from bench.wire import (
    CLIENT_ID,
    Connection,
    Latencies,
    LoadError,
    close,
    closed_loop,
    connect,
    connect_many,
    create_topics,
    until,
)

Figures = dict[str, float]
Load = Callable[[Target, float], Awaitable[Figures]]

COMMIT_VERSION = 8
OFFSET_FETCH_VERSION = 7
PRODUCE_VERSION = 9
FETCH_VERSION = 12
HEARTBEAT_VERSION = 4
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
T = TypeVar("T")


async def in_turn(
    load: Callable[[T, float], Awaitable[Figures]], targets: Sequence[T], rounds: int, seconds: float, *, warm_up: bool
) -> list[list[Figures]]:
    """The figures of each target. `warm_up`: there is one more round first, which is not counted."""
    measured: list[list[Figures]] = [[] for _ in targets]
    gc.disable()  # a collection in the load's process would look like a pause of the broker
    if warm_up:
        for target in targets:
            await load(target, seconds)
    for turn in range(rounds):
        order = list(enumerate(targets))
        for index, target in order if turn % 2 == 0 else reversed(order):
            measured[index].append(await load(target, seconds))
            await asyncio.sleep(0.3)
    return measured


def topic_of(what: str) -> str:
    """The name of a topic that no earlier run has used."""
    return f"bench-{what}-{time.time_ns()}"


@asynccontextmanager
async def own_topic(target: Target, what: str, partitions: int = 1) -> AsyncIterator[tuple[Connection, str]]:
    """A connection, and a topic that is deleted afterwards, so that its files are removed."""
    topic = topic_of(what)
    connection = await connect(target.address)
    await create_topics(connection, [topic], partitions)
    yield connection, topic
    request = messages.DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000)
    await connection.ask(ApiKey.DELETE_TOPICS, 3, request)
    close([connection])


def batch(values: Sequence[bytes]) -> bytes:
    """One record batch."""
    now_ms = time.time_ns() // 1_000_000
    records = [Record(offset=index, timestamp=now_ms, value=value) for index, value in enumerate(values)]
    return bytes(record_batch.build(records))


def produce_frame(topic: str, partition: int, records: bytes) -> bytes:
    """A Produce request with acks=all for one partition."""
    request = messages.ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            messages.ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[messages.ProduceRequest.PartitionProduceData(index=partition, records=records)],
            )
        ],
    )
    return frames.encode_request(ApiKey.PRODUCE, PRODUCE_VERSION, 1, CLIENT_ID, request)


def fetch_frame(
    topic: str,
    partition: int,
    offset: int,
    *,
    max_wait_ms: int,
    max_bytes: int = 1 << 20,
    isolation: int = READ_UNCOMMITTED,
) -> bytes:
    """A Fetch request without a session for one partition."""
    request = messages.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        isolation_level=isolation,
        topics=[
            messages.FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    messages.FetchRequest.FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
                    )
                ],
            )
        ],
    )
    return frames.encode_request(ApiKey.FETCH, FETCH_VERSION, 1, CLIENT_ID, request)


def commit_frame(group: str, topic: str, partitions: Sequence[int], offset: int) -> bytes:
    """An OffsetCommit of a group that only commits."""
    make = messages.OffsetCommitRequest.OffsetCommitRequestPartition
    rows = [make(partition_index=index, committed_offset=offset, committed_metadata="") for index in partitions]
    request = messages.OffsetCommitRequest(
        group_id=group,
        topics=[messages.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=rows)],
    )
    return frames.encode_request(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, 1, CLIENT_ID, request)


def offset_fetch_frame(group: str, topic: str, partitions: Sequence[int]) -> bytes:
    """An OffsetFetch of one group."""
    asked = messages.OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))
    request = messages.OffsetFetchRequest(group_id=group, topics=[asked])
    return frames.encode_request(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, 1, CLIENT_ID, request)


async def find_coordinator(connection: Connection, group: str) -> None:
    """Return when `__consumer_offsets` exists and the group's partition of it is loaded."""

    async def found() -> bool:
        request = messages.FindCoordinatorRequest(key=group)
        answer = await connection.ask(ApiKey.FIND_COORDINATOR, 3, request)
        if answer.error_code:  # type: ignore[attr-defined]
            return False
        fetch = await connection.ask(
            ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, messages.OffsetFetchRequest(group_id=group, topics=[])
        )
        return not fetch.error_code  # type: ignore[attr-defined]

    await until(f"a coordinator for {group}", found)


# ---- the Java clients ----


def _java_produce(record_bytes: int, records_per_second: int) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        count = int(records_per_second * seconds)
        async with own_topic(target, "produce") as (_, topic):
            found = await asyncio.to_thread(apache_kafka.produce, target.address, topic, count, record_bytes)
        return {"records/s": found["records/sec"], "p99 ms": found["ms 99th"]}

    return load


async def java_consume(target: Target, seconds: float) -> Figures:
    """Read one partition from its start: records of 1 KB in batches of 16 KiB, as the Java producer makes them."""
    count = int(300_000 * seconds)
    async with own_topic(target, "consume") as (_, topic):
        await fill(target, topic, count)
        cpu = target.cpu_seconds()
        found = await asyncio.to_thread(apache_kafka.consume, target.address, topic, count)
        cpu = target.cpu_seconds() - cpu
    return {"MB/s": found["MB/s"], "cpu µs per MiB": cpu / (count / 1024) * 1e6}


async def fill(target: Target, topic: str, records: int, record_bytes: int = 1024, partitions: int = 1) -> None:
    """Fill a topic quickly: batches of 16 KiB for each partition in turn, five requests in flight."""
    per_batch = max(1, 16_300 // (record_bytes + 8))
    content = batch([bytes(record_bytes)] * per_batch)
    rows = [produce_frame(topic, index, content) for index in range(partitions)]
    connection = await connect(target.address)
    left = (records + per_batch - 1) // per_batch
    in_flight = 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send() -> None:
        nonlocal left, in_flight
        while left and in_flight < 5:
            left -= 1
            in_flight += 1
            connection.transport.write(rows[left % partitions])
        if not left and not in_flight and not done.done():
            done.set_result(None)

    def answered(answer: memoryview) -> None:
        nonlocal in_flight
        in_flight -= 1
        send()

    connection.on_frame = answered
    send()
    await done
    close([connection])


async def raw_produce(target: Target, seconds: float) -> Figures:
    """Requests of 16 KiB (15 records of 1 KB), five in flight, as the Java producer sends them."""
    count = int(6_000 * seconds)
    async with own_topic(target, "produce") as (_, topic):
        cpu = target.cpu_seconds()
        started = time.perf_counter()
        await fill(target, topic, 15 * count)
        span = time.perf_counter() - started
        cpu = target.cpu_seconds() - cpu
    return {"records/s": 15 * count / span, "cpu µs": cpu / count * 1e6}


async def raw_fetch(target: Target, seconds: float) -> Figures:
    """One reader of one partition, 1 MiB at a time. It decodes nothing of the answers but the last offset."""
    count = int(150_000 * seconds)
    async with own_topic(target, "fetch") as (connection, topic):
        await fill(target, topic, count)
        cpu = target.cpu_seconds()
        started = time.perf_counter()
        received, answers, _ = await read_all(connection, topic, count)
        span = time.perf_counter() - started
        cpu = target.cpu_seconds() - cpu
    return {"MB/s": received / span / 1e6, "cpu µs": cpu / answers * 1e6}


async def read_all(
    connection: Connection, topic: str, end: int, isolation: int = READ_UNCOMMITTED
) -> tuple[int, int, int]:
    """Read one partition from its start to offset `end`: how many bytes came, answers, and aborted transactions."""
    offset = received = answers = aborted = 0
    while offset < end:
        frame = await connection.exchange(fetch_frame(topic, 0, offset, max_wait_ms=500, isolation=isolation))
        answer: Any = frames.decode_response(ApiKey.FETCH, FETCH_VERSION, frame)[1]
        row = answer.responses[0].partitions[0]
        if row.error_code:
            raise LoadError(f"error {row.error_code}")
        offset = _next_offset(row.records, offset)
        received += len(row.records)
        answers += 1
        aborted += len(row.aborted_transactions or ())
    return received, answers, aborted


def _next_offset(records: bytes, offset: int) -> int:
    """Behind the last batch that came whole."""
    position = 0
    while position + HEADER.size <= len(records):
        fields = HEADER.unpack_from(records, position)
        if position + PREFIX_BYTES + fields[1] > len(records):
            break
        offset = fields[0] + fields[6] + 1  # base offset and last offset delta
        position += PREFIX_BYTES + fields[1]
    return int(offset)


async def java_paced(target: Target, seconds: float) -> Figures:
    """The Java producer at 5,000 records/s of 1 KB."""
    count = int(5_000 * seconds)
    async with own_topic(target, "paced") as (_, topic):
        found = await asyncio.to_thread(apache_kafka.produce, target.address, topic, count, 1024, throughput=5_000)
    return {"p99 ms": found["ms 99th"], "p50 ms": found["ms 50th"], "p99.9 ms": found["ms 99.9th"]}


# ---- commits ----


def _commits(connections: int, partitions: int) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        topic = topic_of("commit")
        opened = await connect_many(target.address, connections)
        await create_topics(opened[0], [topic], max(partitions, 1))
        rows = []
        for index, connection in enumerate(opened):
            group = f"{topic}-{index}"
            await find_coordinator(connection, group)
            row = [commit_frame(group, topic, range(partitions), offset) for offset in range(10)]
            rows.append(row)
            await check_commit(connection, row[0])
        return await driven(target, opened, rows, seconds, "offsets/s" if partitions > 1 else "commits/s", partitions)

    return load


async def driven(
    target: Target,
    connections: Sequence[Connection],
    rows: Sequence[Sequence[bytes]],
    seconds: float,
    name: str,
    each: int = 1,
) -> Figures:
    """Send the frames of each connection in turn, and close all: the rate of what a request has `each` of."""
    cpu = target.cpu_seconds()
    rate, latencies = await closed_loop(connections, rows, seconds)
    cpu = target.cpu_seconds() - cpu
    close(connections)
    return {
        name: rate * each,
        "p50 ms": latencies.percentile_ms(0.5),
        "p99 ms": latencies.percentile_ms(0.99),
        "cpu µs": cpu / len(latencies.spans) * 1e6,
    }


async def check_commit(connection: Connection, frame: bytes) -> None:
    """Send a commit until it is accepted."""

    async def accepted() -> bool:
        answer: Any = frames.decode_response(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, await connection.exchange(frame))[1]
        return all(not row.error_code for topic in answer.topics for row in topic.partitions)

    await until("a commit", accepted)


# ---- raw produce and long polls ----


async def raw_paced(target: Target, seconds: float) -> Figures:
    """5,000 requests/s of one 1 KB record, acks=all, on one connection. They are sent on time, answered or not."""
    topic = topic_of("paced")
    connection = await connect(target.address)
    await create_topics(connection, [topic])
    frame = produce_frame(topic, 0, batch([bytes(1024)]))
    sent: list[float] = []
    latencies = Latencies()
    clock = time.perf_counter

    def answered(answer: memoryview) -> None:
        latencies.spans.append(clock() - sent[len(latencies.spans)])

    connection.on_frame = answered
    cpu = target.cpu_seconds()
    started = clock()
    count = int(5_000 * seconds)
    while len(sent) < count:
        due = min(count, int((clock() - started) * 5_000))
        while len(sent) < due:
            sent.append(started + len(sent) / 5_000)  # when it was due, even if it is sent late
            connection.transport.write(frame)
        await asyncio.sleep(0.0005)
    async with asyncio.timeout(60):
        while len(latencies.spans) < count:
            await asyncio.sleep(0.05)
    cpu = target.cpu_seconds() - cpu
    close([connection])
    return {
        "p99 ms": latencies.percentile_ms(0.99),
        "p50 ms": latencies.percentile_ms(0.5),
        "p99.9 ms": latencies.percentile_ms(0.999),
        "cpu µs": cpu / count * 1e6,
    }


def _long_polls(consumers: int, partitions: int) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        """Each consumer waits on one partition. Each partition gets a record a second, not all at the same time."""
        topic = topic_of("poll")
        opened = await connect_many(target.address, consumers)
        producer = await connect(target.address)
        await create_topics(producer, [topic], partitions)
        clock = time.perf_counter
        loop = asyncio.get_running_loop()
        produced_at = [0.0] * partitions
        offsets = [0] * consumers
        frames_of = [(-1, b"")] * partitions
        latencies = Latencies()
        records = batch([bytes(100)])
        produce = [produce_frame(topic, partition, records) for partition in range(partitions)]
        empty = 0
        answer_without: list[bytes] = []

        def poll(index: int) -> None:
            if opened[index].lost or opened[index].transport.is_closing():
                return
            partition = index % partitions
            if frames_of[partition][0] != offsets[index]:  # one frame for all that wait for the same offset
                frame = fetch_frame(topic, partition, offsets[index], max_wait_ms=5_000, max_bytes=65536)
                frames_of[partition] = offsets[index], frame
            opened[index].transport.write(frames_of[partition][1])

        def consumer(index: int) -> Callable[[memoryview], None]:
            def answered(answer: memoryview) -> None:
                nonlocal empty
                if opened[index].lost:
                    return
                if len(answer) > len(records):
                    latencies.spans.append(clock() - produced_at[index % partitions])
                    offsets[index] += 1
                    poll(index)
                else:  # the wait has timed out, or the partition is not served yet
                    empty += 1
                    answer_without[:] = [bytes(answer)]
                    loop.call_later(0.1, poll, index)

            return answered

        for index, connection in enumerate(opened):
            connection.on_frame = consumer(index)
            poll(index)
        producer.on_frame = lambda answer: None
        await asyncio.sleep(1.0)
        cpu = target.cpu_seconds()
        started = clock()
        sent = 0
        while clock() < started + seconds:
            due = int((clock() - started) * partitions)
            while sent < due:
                produced_at[sent % partitions] = clock()
                producer.transport.write(produce[sent % partitions])
                sent += 1
            await asyncio.sleep(0.0005)
        await asyncio.sleep(0.5)
        cpu = target.cpu_seconds() - cpu
        expected = sent * consumers // partitions
        close([*opened, producer])
        if abs(len(latencies.spans) - expected) > consumers:
            last = frames.decode_response(ApiKey.FETCH, FETCH_VERSION, answer_without[0])[1] if answer_without else None
            raise LoadError(f"{len(latencies.spans)} wake-ups, {expected} expected, {empty} without: {last}")
        return {
            "p99 ms": latencies.percentile_ms(0.99),
            "p50 ms": latencies.percentile_ms(0.5),
            "max ms": latencies.percentile_ms(1.0),
            "cpu µs": cpu / max(1, len(latencies.spans)) * 1e6,
        }

    return load


async def end_to_end(target: Target, seconds: float) -> Figures:
    """One record at a time through one partition: from the producer's send to the waiting consumer's receipt."""
    topic = topic_of("end-to-end")
    producer, consumer = await connect_many(target.address, 2)
    await create_topics(producer, [topic])
    frame = produce_frame(topic, 0, batch([bytes(100)]))
    latencies = Latencies()
    clock = time.perf_counter
    producer.on_frame = lambda answer: None
    arrived = asyncio.Event()
    consumer.on_frame = lambda answer: arrived.set()
    offset = 0
    deadline = clock() + seconds
    while clock() < deadline:
        arrived.clear()
        consumer.transport.write(fetch_frame(topic, 0, offset, max_wait_ms=5_000))
        await asyncio.sleep(0.002)
        sent = clock()
        producer.transport.write(frame)
        await arrived.wait()
        latencies.spans.append(clock() - sent)
        offset += 1
    close([producer, consumer])
    return {"p50 ms": latencies.percentile_ms(0.5), "p99 ms": latencies.percentile_ms(0.99)}


class Row:
    """One load, the figure that counts, whether more is better, and the aim as text."""

    def __init__(self, load: Load, figure: str, more_is_better: bool, work: str) -> None:
        self.load = load
        self.figure = figure
        self.more_is_better = more_is_better
        self.work = work


LOADS = {
    "produce-1k": Row(_java_produce(1024, 60_000), "records/s", True, "Java producer, 1 KB, acks=all, one partition"),
    "produce-100": Row(_java_produce(100, 300_000), "records/s", True, "the same, 100-byte records"),
    "produce-raw": Row(raw_produce, "records/s", True, "a raw client, 16 KiB requests, five in flight"),
    "fetch-raw": Row(raw_fetch, "MB/s", True, "a raw client, 1 MiB at a time"),
    "consume": Row(java_consume, "MB/s", True, "Java consumer from the start"),
    "commit-8": Row(_commits(8, 1), "commits/s", True, "commits of one offset, 8 connections"),
    "commit-1": Row(_commits(1, 1), "commits/s", True, "the same, one connection"),
    "commit-50": Row(_commits(8, 50), "offsets/s", True, "commits of 50 partitions, 8 connections"),
    "paced": Row(java_paced, "p99 ms", False, "Java producer at 5,000 records/s, acks=all"),
    "paced-raw": Row(raw_paced, "p99 ms", False, "5,000 requests/s of one record, acks=all"),
    "poll": Row(_long_polls(1000, 1000), "p99 ms", False, "1,000 waiting consumers, one record each per second"),
    "poll-shared": Row(_long_polls(1000, 1), "p99 ms", False, "1,000 waiting on one partition, a record per second"),
    "end-to-end": Row(end_to_end, "p50 ms", False, "one record from producer to waiting consumer"),
}
