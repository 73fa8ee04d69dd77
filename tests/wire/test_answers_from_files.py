"""Large fetch answers are sent from the log's files as the client takes them, whatever happens to both meanwhile."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from barnabas.broker.answer_writer import PIECE_BYTES, WRITE_BUFFER_HIGH
from barnabas.protocol import frames, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import ApiVersionsRequest, FetchRequest, ProduceRequest
from barnabas.protocol.record_batch import Record
from barnabas.storage import truncation
from simulator.network import SimTransport

World = Any  # of conftest.py
MakeWorld = Any
Client = Any

BATCHES = 12
IN_MEMORY_MAX = WRITE_BUFFER_HIGH + PIECE_BYTES


def fetch(topic: str, offset: int = 0, max_bytes: int = 50 << 20, partitions: int = 1) -> FetchRequest:
    make = FetchRequest.FetchPartition
    rows = [make(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes) for index in range(partitions)]
    return FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[FetchRequest.FetchTopic(topic=topic, partitions=rows)]
    )


def fill(world: World, topic: str, partition: int = 0, count: int = BATCHES, size: int = 300_000) -> None:
    for number in range(count):
        records = record_batch.build([Record(timestamp=1, key=None, value=bytes([partition, number]) * (size // 2))])
        data = ProduceRequest.PartitionProduceData(index=partition, records=records)
        topic_data = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
        response = world.ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topic_data))
        assert response.responses[0].partition_responses[0].error_code == 0


def log_of(world: World, topic: str) -> Any:
    return world.broker.log_manager.get(topic, 0)


def content(world: World, topic: str) -> bytes:
    """Of its first segment."""
    segment = log_of(world, topic).segments[0]
    return bytes(world.env.disk.open(segment.path).read(0, segment.size))


def referenced(world: World) -> int:
    """Files that answers refer to."""
    return len(world.broker.log_manager._files._referenced)


def far_end(world: World, client: Client) -> SimTransport:
    """The broker's end of a client's connection."""
    transport = client.transport.peer
    assert isinstance(transport, SimTransport)
    return transport


def records_of(answer: bytes, partition: int = 0) -> bytes:
    response = frames.decode_response(ApiKey.FETCH, 12, memoryview(answer))[1]
    return bytes(response.responses[0].partitions[partition].records)  # type: ignore[attr-defined]


class Slow:
    """A client that stops reading after each piece."""

    def __init__(self, world: World, client: Client) -> None:
        self.world = world
        self.client = client
        client.transport.pause_reading()

    async def take_a_piece(self) -> None:
        """Read for one pass of the loop, and look at what the broker holds for it."""
        self.client.transport.resume_reading()
        await self.world.env.clock.sleep(0)
        self.client.transport.pause_reading()
        await self.world.env.clock.sleep(1)
        if self.client.transport.peer is not None:
            assert far_end(self.world, self.client).get_write_buffer_size() <= IN_MEMORY_MAX


@pytest.fixture
def new_world(make_world: MakeWorld) -> Iterator[Callable[..., Any]]:
    """Makes a world for one test."""
    made: list[Any] = []

    def make(**settings: str) -> Any:
        made.append(make_world(**settings))
        return made[-1]

    yield make
    for world in made:
        world.env.run(world.broker.stop())
        assert world.broker.request_gate.handler_failures == 0


def test_a_client_that_never_reads_costs_one_piece(new_world: MakeWorld) -> None:
    world = new_world()
    world.create_topic("big")
    fill(world, "big")

    async def run() -> None:
        clients = [await world.connect() for _ in range(20)]
        for client in clients:
            client.transport.pause_reading()
            client.send(ApiKey.FETCH, 12, fetch("big"))
        await world.env.clock.sleep(10)
        for client in clients:
            assert 0 < far_end(world, client).get_write_buffer_size() <= IN_MEMORY_MAX
        assert referenced(world) == 1
        neighbour = await world.connect()
        assert (await neighbour.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())).error_code == 0
        for client in clients:
            client.transport.abort()
        await world.env.clock.sleep(10)
        assert referenced(world) == 0

    world.env.run(run())


def test_a_slow_reader_gets_what_retention_deletes_meanwhile(new_world: MakeWorld) -> None:
    world = new_world(log_retention_check_interval_ms="10000")
    world.create_topic("short", retention_ms="60000", segment_bytes=str(2 << 20))
    fill(world, "short")
    expected = content(world, "short")

    async def run() -> None:
        client = await world.connect()
        slow = Slow(world, client)
        client.send(ApiKey.FETCH, 12, fetch("short"))
        await slow.take_a_piece()
        log = log_of(world, "short")
        path = log.segments[0].path
        await world.env.clock.sleep(200_000)  # retention, and the delay of the removal behind it
        assert log.log_start_offset > 0
        assert not any(world.env.disk.exists(name) for name in (path, path + ".deleted"))
        assert referenced(world) == 1
        while len(client.data) < len(expected):
            before = len(client.data)
            await slow.take_a_piece()
            assert len(client.data) > before
        client.transport.resume_reading()
        assert records_of(await client.answer()) == expected
        assert referenced(world) == 0

    world.env.run(run())


def test_answers_stay_in_order(new_world: MakeWorld) -> None:
    world = new_world()
    world.create_topic("big", 2)
    fill(world, "big")
    fill(world, "big", partition=1, count=2)

    async def run() -> None:
        client = await world.connect()
        requests = [
            (ApiKey.API_VERSIONS, 0, ApiVersionsRequest()),
            (ApiKey.FETCH, 12, fetch("big", partitions=2)),
            (ApiKey.API_VERSIONS, 0, ApiVersionsRequest()),
            (ApiKey.FETCH, 12, fetch("big", offset=BATCHES - 1)),  # of more than is copied, too
            (ApiKey.FETCH, 12, fetch("big", offset=3, max_bytes=1)),
            (ApiKey.API_VERSIONS, 0, ApiVersionsRequest()),
        ]
        frame = b"".join(
            frames.encode_request(api, version, number, "test", request)
            for number, (api, version, request) in enumerate(requests)
        )
        client.transport.write(frame)
        for number, (api, version, _) in enumerate(requests):
            answer = await client.answer()
            assert struct.unpack_from(">i", answer)[0] == number
            response = frames.decode_response(api, version, memoryview(answer))[1]
            if number == 1:
                for index, count in ((0, BATCHES), (1, 2)):
                    found = response.responses[0].partitions[index].records  # type: ignore[attr-defined]
                    offsets = [header.base_offset for header, _ in record_batch.batches(found)]
                    assert offsets == list(range(count))

    world.env.run(run())


def test_a_truncated_range_closes_the_connection(new_world: MakeWorld) -> None:
    world = new_world()
    world.create_topic("cut")
    fill(world, "cut")

    async def run() -> None:
        client = await world.connect()
        slow = Slow(world, client)
        client.send(ApiKey.FETCH, 12, fetch("cut"))
        await slow.take_a_piece()
        expected = content(world, "cut")
        truncation.truncate_to(log_of(world, "cut"), BATCHES - 1)
        client.transport.resume_reading()
        await world.env.clock.sleep(100)
        assert client.closed
        (size,) = struct.unpack_from(">i", client.data)
        assert len(client.data) < 4 + size, "half an answer, and not a byte of it wrong"
        start = client.data.index(expected[:100])
        assert expected.startswith(client.data[start:])
        assert referenced(world) == 0
        healthy = await world.connect()
        response = await healthy.ask(ApiKey.FETCH, 12, fetch("cut"))
        assert response.responses[0].partitions[0].high_watermark == BATCHES - 1

    world.env.run(run())


def test_a_disk_that_fails_in_the_middle_closes_the_connection_and_the_log(new_world: MakeWorld) -> None:
    world = new_world()
    world.create_topic("broken")
    fill(world, "broken")

    async def run() -> None:
        client = await world.connect()
        slow = Slow(world, client)
        client.send(ApiKey.FETCH, 12, fetch("broken"))
        await slow.take_a_piece()
        world.env.disk.fail("read", "broken-0")
        client.transport.resume_reading()
        await world.env.clock.sleep(100)
        assert client.closed
        assert referenced(world) == 0
        again = await world.connect()
        response = await again.ask(ApiKey.FETCH, 12, fetch("broken"))
        assert response.responses[0].partitions[0].error_code == 56  # KAFKA_STORAGE_ERROR

    world.env.run(run())


def test_a_client_that_has_said_all_still_gets_its_answer(new_world: MakeWorld) -> None:
    world = new_world()
    world.create_topic("half-closed")
    fill(world, "half-closed")

    async def run() -> None:
        client = await world.connect()
        client.send(ApiKey.FETCH, 12, fetch("half-closed"))
        await world.env.clock.sleep(0)
        client.transport.write_eof()
        answer = await client.answer()
        assert records_of(answer) == content(world, "half-closed")
        assert await client.answer() is None, "then the connection ends"

    world.env.run(run())


def test_a_broker_that_stops_finishes_the_answer(make_world: MakeWorld) -> None:
    world = make_world()
    world.create_topic("big")
    fill(world, "big")
    expected = content(world, "big")

    async def run() -> None:
        client = await world.connect()
        client.transport.pause_reading()
        client.send(ApiKey.FETCH, 12, fetch("big"))
        await world.env.clock.sleep(10)
        await world.broker.stop()
        client.transport.resume_reading()
        assert records_of(await client.answer()) == expected
        assert await client.answer() is None
        assert referenced(world) == 0

    world.env.run(run())


def test_a_client_that_reads_slowly_is_not_idle(new_world: MakeWorld) -> None:
    world = new_world(connections_max_idle_ms="1000")
    world.create_topic("big")
    fill(world, "big")

    async def run() -> None:
        slow, never = Slow(world, await world.connect()), Slow(world, await world.connect())
        for reader in (slow, never):
            reader.client.send(ApiKey.FETCH, 12, fetch("big"))
        while len(slow.client.data) < BATCHES * 300_000:
            await slow.take_a_piece()
            await world.env.clock.sleep(500)
        assert not slow.client.closed
        assert referenced(world) == 0
        never.client.transport.resume_reading()
        await world.env.clock.sleep(10)
        assert never.client.closed

    world.env.run(run())


@pytest.mark.parametrize("size", [1000, 60_000])
def test_what_is_copied_for_one_answer_is_bounded(new_world: MakeWorld, size: int) -> None:
    world = new_world()
    count = 200 if size == 1000 else 8
    world.create_topic("many", count)
    for partition in range(count):
        fill(world, "many", partition=partition, count=1, size=size)
    response = world.ask(ApiKey.FETCH, 12, fetch("many", partitions=count))
    sizes = [len(row.records) for row in response.responses[0].partitions]
    answered = sum(1 for found in sizes if found)
    assert sizes == sorted(sizes, reverse=True), "the first ones, all of theirs"
    assert 128 * 1024 <= sum(sizes) < 128 * 1024 + 2 * size
    assert 0 < answered < count


def test_what_is_copied_does_not_stop_a_client_that_asks_for_more(new_world: MakeWorld) -> None:
    """`fetch.min.bytes` beyond the bound, many partitions with few bytes each: together enough, so it does not wait."""
    world = new_world()
    world.create_topic("wide", partitions=40)
    for partition in range(40):
        fill(world, "wide", partition, count=1, size=10_000)
    request = fetch("wide", partitions=40)
    request.min_bytes = 300_000

    async def run() -> None:
        client = await world.connect()
        began_ms = world.env.clock.monotonic_ms()
        response = await client.ask(ApiKey.FETCH, 12, request)
        assert world.env.clock.monotonic_ms() - began_ms < request.max_wait_ms
        partitions = response.responses[0].partitions
        assert 300_000 <= sum(len(partition.records) for partition in partitions) < 320_000
        for partition in partitions:
            for batch_header, batch in record_batch.batches(partition.records):
                assert batch_header.record_count == 1
                assert record_batch.crc_is_valid(batch)

    world.env.run(run())
