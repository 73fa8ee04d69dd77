"""Clients that ask for everything in one request: they are answered in pieces, and others are served in between."""

from collections.abc import Iterator
from typing import Any

import pytest
from barnabas.broker.api.produce import COMPRESSED_PER_PIECE
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build, records
from simulator import clock
from simulator.clock import PIECES_PER_PASS

World = Any  # of conftest.py
COUNT = 6 * PIECES_PER_PASS
ASKED = range(COUNT)


@pytest.fixture(scope="module")
def wide(world: World) -> World:
    """A broker with a topic of many partitions."""
    world.create_topic("wide", COUNT)
    return world


@pytest.fixture(autouse=True)
def _a_piece_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every piece of a long work took a millisecond."""
    monkeypatch.setattr(clock, "WORK_STEP_MS", 1.0)


@pytest.fixture(autouse=True)
def _nothing_fails(world: World) -> Iterator[None]:
    yield
    assert world.broker.request_gate.handler_failures == 0


def batch(text: str) -> bytes:
    return bytes(build([Record(value=text.encode())], base_offset=0))


def produce_request(acks: int = -1) -> messages.ProduceRequest:
    rows = [messages.ProduceRequest.PartitionProduceData(index=i, records=batch(f"value-{i}")) for i in ASKED]
    topic = messages.ProduceRequest.TopicProduceData(name="wide", partition_data=rows)
    return messages.ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def list_offsets_request() -> messages.ListOffsetsRequest:
    rows = [messages.ListOffsetsRequest.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in ASKED]
    topic = messages.ListOffsetsRequest.ListOffsetsTopic(name="wide", partitions=rows)
    return messages.ListOffsetsRequest(replica_id=-1, topics=[topic])


def delete_records_request() -> messages.DeleteRecordsRequest:
    rows = [messages.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=i, offset=0) for i in ASKED]
    topic = messages.DeleteRecordsRequest.DeleteRecordsTopic(name="wide", partitions=rows)
    return messages.DeleteRecordsRequest(topics=[topic], timeout_ms=1000)


def leader_epoch_request() -> messages.OffsetForLeaderEpochRequest:
    rows = [messages.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in ASKED]
    topic = messages.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="wide", partitions=rows)
    return messages.OffsetForLeaderEpochRequest(replica_id=-2, topics=[topic])


def describe_producers_request() -> messages.DescribeProducersRequest:
    topic = messages.DescribeProducersRequest.TopicRequest(name="wide", partition_indexes=list(ASKED))
    return messages.DescribeProducersRequest(topics=[topic])


REQUESTS: dict[str, tuple[ApiKey, int, Any]] = {
    "metadata": (ApiKey.METADATA, 9, messages.MetadataRequest(topics=None)),
    "produce": (ApiKey.PRODUCE, 9, produce_request()),
    "list-offsets": (ApiKey.LIST_OFFSETS, 7, list_offsets_request()),
    "delete-records": (ApiKey.DELETE_RECORDS, 2, delete_records_request()),
    "leader-epochs": (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, leader_epoch_request()),
    "describe-producers": (ApiKey.DESCRIBE_PRODUCERS, 0, describe_producers_request()),
    "describe-log-dirs": (ApiKey.DESCRIBE_LOG_DIRS, 4, messages.DescribeLogDirsRequest(topics=None)),
}


def partitions_in(answer: Any) -> int:
    """How many partitions an answer speaks of, whatever they are called in it."""
    count = 0
    for field in ("topics", "results", "responses"):
        for row in getattr(answer, field, ()):
            inner = ("partitions", "partition_responses", "topics")
            rows = next(getattr(row, name) for name in inner if hasattr(row, name))
            count += partitions_in(row) if hasattr(row, "topics") else len(rows)
    return count


@pytest.mark.parametrize("name", REQUESTS)
def test_who_asks_for_little_is_answered_first(wide: World, name: str) -> None:
    key, version, request = REQUESTS[name]
    order = []

    async def ask_much(number: int) -> Any:
        client = await wide.connect()
        answer = await client.ask(key, version, request)
        order.append(number)
        client.transport.close()
        return answer

    async def run() -> list[Any]:
        many = [wide.env.clock.loop.create_task(ask_much(number)) for number in range(3)]
        little = await wide.connect()
        await wide.env.clock.sleep(0)
        await little.ask(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
        order.append("little")
        little.transport.close()
        return [await task for task in many]

    answers = wide.env.run(run())
    assert order[0] == "little"
    assert [partitions_in(answer) >= COUNT for answer in answers] == [True] * 3


def test_few_partitions_are_many_where_records_must_be_unpacked(wide: World) -> None:
    """Kilobytes can unpack to 64 MiB, in each of them."""
    packed = bytes(build([Record(value=bytes(1000))], compression=Compression.GZIP))
    produce = messages.ProduceRequest
    rows = [produce.PartitionProduceData(index=i, records=packed) for i in range(2 * COMPRESSED_PER_PIECE)]
    request = produce(acks=-1, timeout_ms=1000, topic_data=[produce.TopicProduceData(name="wide", partition_data=rows)])
    order = []

    async def ask(name: str, key: ApiKey, version: int, message: Any) -> Any:
        client = await wide.connect()
        answer = await client.ask(key, version, message)
        order.append(name)
        client.transport.close()
        return answer

    async def run() -> Any:
        much = wide.env.clock.loop.create_task(ask("much", ApiKey.PRODUCE, 9, request))
        little = wide.env.clock.loop.create_task(ask("little", ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest()))
        await little
        return await much

    answer = wide.env.run(run())
    assert order == ["little", "much"]
    assert [row.error_code for row in answer.responses[0].partition_responses] == [ErrorCode.NONE] * len(rows)


@pytest.mark.parametrize("acks", [-1, 0])
def test_records_of_a_frame_whose_memory_is_used_again(wide: World, acks: int) -> None:
    """The frame lies in the memory that all connections are read into, and is not done when its handler returns."""
    before = {i: wide.broker.replica_manager.partitions["wide", i].log_end_offset for i in ASKED}

    async def run() -> None:
        producer, other = await wide.connect(), await wide.connect()
        frame = frames.encode_request(ApiKey.PRODUCE, 9, 1, "test", produce_request(acks))
        assert len(frame) < 256 * 1024
        producer.transport.write(frame)
        other.transport.write(b"\0\0\1\0" + b"\xff" * 100_000)
        if acks == 0:
            await wide.env.clock.sleep(1)
            producer.transport.close()  # what was sent counts
            await wide.env.clock.sleep(100)
        else:
            answer = await producer.answer()
            _, response = frames.decode_response(ApiKey.PRODUCE, 9, memoryview(answer))
            rows = response.responses[0].partition_responses
            assert [row.error_code for row in rows] == [ErrorCode.NONE] * COUNT
            assert [row.base_offset for row in rows] == list(before.values())

    wide.env.run(run())
    for index, offset in before.items():
        log = wide.broker.replica_manager.partitions["wide", index].log
        data = log.read(offset, 1000, upper_bound=offset + 1, at_least_one=True).records
        assert [record.value for record in records(data)] == [b"value-%d" % index]


def test_a_client_that_goes_away_is_not_worked_for(wide: World) -> None:
    looked = []
    manager = wide.broker.replica_manager
    original = manager.list_offset

    def counted(*args: Any, **options: Any) -> Any:
        looked.append(1)
        return original(*args, **options)

    manager.list_offset = counted

    async def run() -> None:
        client = await wide.connect()
        client.send(ApiKey.LIST_OFFSETS, 7, list_offsets_request())
        while not looked:
            await wide.env.clock.sleep(0)
        client.transport.abort()
        await wide.env.clock.sleep(100)

    try:
        wide.env.run(run())
    finally:
        del manager.list_offset
    assert 0 < len(looked) < COUNT
