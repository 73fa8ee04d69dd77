"""aiokafka as it is, against a broker process."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError
from aiokafka.structs import OffsetAndMetadata

Opened = Callable[..., Awaitable[Any]]
Story = Callable[[Opened, str], Coroutine[Any, Any, None]]


@pytest.fixture
def run(broker: Any, name: str) -> Callable[[Story], None]:
    """Runs a story with a way to start clients, which are stopped at its end, and with a name of its own."""

    async def told(story: Story) -> None:
        async with AsyncExitStack() as stack:

            async def opened(kind: type, *topics: str, **configs: Any) -> Any:
                client = kind(*topics, bootstrap_servers=broker.bootstrap, **configs)
                await client.start()
                stack.push_async_callback(client.close if kind is AIOKafkaAdminClient else client.stop)
                return client

            await story(opened, name)

    return lambda story: asyncio.run(told(story))


async def read(consumer: AIOKafkaConsumer, count: int, timeout_s: float = 60) -> list[Any]:
    return [await asyncio.wait_for(consumer.getone(), timeout_s) for _ in range(count)]


async def until(condition: Callable[[], object], timeout_s: float = 200) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def shared(consumers: list[AIOKafkaConsumer], partitions: int) -> bool:
    owned = [consumer.assignment() for consumer in consumers]
    return all(owned) and sum(map(len, owned)) == partitions == len(set().union(*owned))


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_sent(run: Any, compression: str | None) -> None:
    async def story(opened: Opened, name: str) -> None:
        producer = await opened(AIOKafkaProducer, compression_type=compression, enable_idempotence=True, linger_ms=20)
        now_ms = int(time.time() * 1000)
        sent = [
            await producer.send(
                name,
                b"value %d " % number * 10,
                key=b"key %d" % number,
                timestamp_ms=now_ms + number,
                headers=[("trace", b"%d" % number), ("none", None)],
            )
            for number in range(50)
        ]
        assert [(await future).offset for future in sent] == list(range(50))
        consumer = await opened(AIOKafkaConsumer, name, auto_offset_reset="earliest")
        records = await read(consumer, 50)
        assert [record.value for record in records] == [b"value %d " % number * 10 for number in range(50)]
        assert [record.key for record in records] == [b"key %d" % number for number in range(50)]
        assert [record.timestamp for record in records] == [now_ms + number for number in range(50)]
        assert records[7].headers == (("trace", b"7"), ("none", None))
        assert {record.timestamp_type for record in records} == {0}

    run(story)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(run: Any, acks: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        producer = await opened(AIOKafkaProducer, acks=acks)
        for number in range(20):
            await producer.send_and_wait(name, b"%d" % number)
        consumer = await opened(AIOKafkaConsumer, name, auto_offset_reset="earliest")
        assert [record.value for record in await read(consumer, 20)] == [b"%d" % number for number in range(20)]

    run(story)


def test_a_record_that_is_too_large_is_refused(run: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        producer = await opened(AIOKafkaProducer, max_request_size=5_000_000)
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(name, b"x" * 2_000_000)

    run(story)


def test_log_append_time_is_the_brokers(run: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        admin = await opened(AIOKafkaAdminClient)
        await admin.create_topics([NewTopic(name, 1, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})])
        before_ms = int(time.time() * 1000)
        producer = await opened(AIOKafkaProducer)
        metadata = await producer.send_and_wait(name, b"x", timestamp_ms=1_000)
        consumer = await opened(AIOKafkaConsumer, name, auto_offset_reset="earliest")
        (record,) = await read(consumer, 1)
        assert before_ms - 1_000 <= record.timestamp <= int(time.time() * 1000) + 1_000
        assert (record.timestamp, record.timestamp_type) == (metadata.timestamp, 1)

    run(story)


def test_a_transactional_producer_begins_and_aborts(run: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        producer = await opened(AIOKafkaProducer, transactional_id=name)
        await producer.begin_transaction()
        await producer.abort_transaction()

    run(story)


def test_seek_times_and_pause(run: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        producer = await opened(AIOKafkaProducer)
        start_ms = int(time.time() * 1000) - 1_000_000
        for number in range(10):
            await producer.send_and_wait(name, b"%d" % number, timestamp_ms=start_ms + number * 1000)
        partition = TopicPartition(name, 0)
        consumer = await opened(AIOKafkaConsumer)
        consumer.assign([partition])
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 10}
        found = await consumer.offsets_for_times({partition: start_ms + 3500})
        assert found[partition].offset == 4
        assert await consumer.offsets_for_times({partition: start_ms + 9_001}) == {partition: None}
        consumer.seek(partition, 6)
        assert (await consumer.getone()).value == b"6"
        await consumer.seek_to_beginning(partition)
        assert (await consumer.getone()).value == b"0"
        consumer.pause(partition)
        assert await consumer.getmany(timeout_ms=300) == {}
        consumer.resume(partition)
        assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"1"

    run(story)


@pytest.mark.parametrize("assignor", [None, StickyPartitionAssignor])
def test_group_shares_partitions_on_join_and_leave(run: Any, assignor: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        admin = await opened(AIOKafkaAdminClient)
        await admin.create_topics([NewTopic(name, 4, 1)])
        options = {"group_id": name, "heartbeat_interval_ms": 200, "metadata_max_age_ms": 1000}
        if assignor is not None:
            options["partition_assignment_strategy"] = (assignor,)
        first = await opened(AIOKafkaConsumer, name, **options)
        await until(lambda: shared([first], 4))
        second = await opened(AIOKafkaConsumer, name, **options)
        await until(lambda: shared([first, second], 4))
        await second.stop()
        await until(lambda: shared([first], 4))

    run(story)


CRASHING = """
import asyncio, sys
from aiokafka import AIOKafkaConsumer
bootstrap, topic, session_timeout_ms = sys.argv[1:]
options = {"session_timeout_ms": int(session_timeout_ms), "heartbeat_interval_ms": 200}
async def member():
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, **options)
    await consumer.start()
    while not consumer.assignment():
        await asyncio.sleep(0.05)
    print("owns", flush=True)
    await consumer.getone()
asyncio.run(member())
"""


def test_group_takes_over_from_a_crashed_member(run: Any, crashing_member: Any, session_timeout_ms: int) -> None:
    async def story(opened: Opened, name: str) -> None:
        admin = await opened(AIOKafkaAdminClient)
        await admin.create_topics([NewTopic(name, 2, 1)])
        member = await asyncio.to_thread(crashing_member, CRASHING)
        options = {"session_timeout_ms": session_timeout_ms, "heartbeat_interval_ms": 200}
        survivor = await opened(AIOKafkaConsumer, name, group_id=name, **options)
        await until(lambda: len(survivor.assignment()) == 1)
        member.kill()
        await until(lambda: len(survivor.assignment()) == 2)

    run(story)


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(run: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        admin = await opened(AIOKafkaAdminClient)
        await admin.create_topics([NewTopic(name, 4, 1)])
        options = {"group_id": name, "heartbeat_interval_ms": 200, "session_timeout_ms": 30_000}
        first = await opened(AIOKafkaConsumer, name, group_instance_id="one", **options)
        second = await opened(AIOKafkaConsumer, name, group_instance_id="two", **options)
        await until(lambda: shared([first, second], 4))
        before = second.assignment()
        generation = first._coordinator.generation
        await second.stop()
        again = await opened(AIOKafkaConsumer, name, group_instance_id="two", **options)
        await until(lambda: shared([first, again], 4))
        assert again.assignment() == before
        assert first._coordinator.generation == again._coordinator.generation == generation

    run(story)


def test_commits_are_where_the_group_goes_on(run: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        producer = await opened(AIOKafkaProducer)
        for number in range(10):
            await producer.send_and_wait(name, b"%d" % number)
        partition = TopicPartition(name, 0)
        options = {"group_id": name, "auto_offset_reset": "earliest"}
        consumer = await opened(AIOKafkaConsumer, name, enable_auto_commit=False, **options)
        await read(consumer, 10)
        await consumer.commit({partition: OffsetAndMetadata(4, "four")})
        assert await consumer.committed(partition) == 4
        await consumer.stop()
        automatic = await opened(AIOKafkaConsumer, name, auto_commit_interval_ms=100, **options)
        assert [record.value for record in await read(automatic, 6)] == [b"%d" % number for number in range(4, 10)]
        await automatic.stop()
        last = await opened(AIOKafkaConsumer, group_id=name)
        assert await last.committed(partition) == 10

    run(story)


def test_a_pattern_finds_topics_that_come_later(run: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        producer = await opened(AIOKafkaProducer)
        await producer.send_and_wait(f"{name}.a", b"a")
        consumer = await opened(AIOKafkaConsumer, group_id=name, auto_offset_reset="earliest", metadata_max_age_ms=300)
        consumer.subscribe(pattern=rf"^{name}\..*")
        assert (await read(consumer, 1))[0].topic == f"{name}.a"
        await producer.send_and_wait(f"{name}.b", b"b")
        assert (await read(consumer, 1))[0].topic == f"{name}.b"

    run(story)


def test_administration(run: Any) -> None:
    async def story(opened: Opened, name: str) -> None:
        admin = await opened(AIOKafkaAdminClient)
        await admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "1234567"})])
        response = await admin.create_topics([NewTopic(name, 2, 1)])
        assert response.topic_errors[0][1] == TopicAlreadyExistsError.errno
        assert name in await admin.list_topics()
        await admin.create_partitions({name: NewPartitions(3)})
        (topic,) = await admin.describe_topics([name])
        assert len(topic["partitions"]) == 3
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        (described,) = await admin.describe_configs([resource])
        values = {entry[0]: entry[1] for entry in described.resources[0][4]}
        assert values["retention.ms"] == "1234567"
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7654321"})])
        (described,) = await admin.describe_configs([resource])
        values = {entry[0]: entry[1] for entry in described.resources[0][4]}
        assert values["retention.ms"] == "7654321"
        assert (await admin.describe_cluster())["brokers"]
        producer = await opened(AIOKafkaProducer)
        await producer.send_and_wait(name, b"x", partition=0)
        consumer = await opened(AIOKafkaConsumer, name, group_id=name, auto_offset_reset="earliest")
        await read(consumer, 1)
        await consumer.commit()
        assert (name, "consumer") in [tuple(group) for group in await admin.list_consumer_groups()]
        offsets = await admin.list_consumer_group_offsets(name)
        assert offsets[TopicPartition(name, 0)].offset == 1
        (groups,) = await admin.describe_consumer_groups([name])
        assert groups.groups[0][2] == "Stable"
        await consumer.stop()
        await admin.delete_topics([name])
        assert name not in await admin.list_topics()

    run(story)
