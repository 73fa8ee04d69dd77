"""Batches that take long to check or to pack anew: this happens beside the loop, and their order stays."""

from typing import Any

import pytest
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, batches, build, records
from barnabas.storage.validation import CONVERTED_AT_ONCE_BYTES_MAX, OPENED_AT_ONCE_MAX

World = Any  # of conftest.py
LARGE = CONVERTED_AT_ONCE_BYTES_MAX + 1


def request(topic: str, *contents: bytes, acks: int = -1) -> messages.ProduceRequest:
    produce = messages.ProduceRequest
    rows = [produce.PartitionProduceData(index=index, records=content) for index, content in enumerate(contents)]
    topics = [produce.TopicProduceData(name=topic, partition_data=rows)]
    return produce(acks=acks, timeout_ms=1000, topic_data=topics)


def batch(*values: bytes, **fields: Any) -> bytes:
    return bytes(build([Record(value=value) for value in values], **fields))


def in_log(world: World, topic: str, index: int = 0) -> list[tuple[int, int, list[bytes | None]]]:
    """Base offset, codec and values of each batch."""
    log = world.broker.log_manager.get(topic, index)
    data = log.read(0, 1 << 24, upper_bound=log.log_end_offset, at_least_one=True).records
    return [
        (header.base_offset, header.attributes & 7, [record.value for record in records(found, max_bytes=1 << 24)])
        for header, found in batches(data)
    ]


@pytest.fixture
def threads(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done in a thread."""
    asked: list[Any] = []
    clock_type = type(world.env.clock)
    in_thread = clock_type.in_thread

    def counted(clock: Any, work: Any, thread: str = "work") -> Any:
        asked.append(work)
        return in_thread(clock, work, thread)

    monkeypatch.setattr(clock_type, "in_thread", counted)
    return asked


@pytest.mark.parametrize(("size", "is_in_thread"), [(1000, False), (LARGE, True)])
def test_large_batches_are_packed_anew_in_a_thread(
    world: World, threads: list[Any], size: int, is_in_thread: bool
) -> None:
    topic = f"gzip-{size}"
    world.create_topic(topic, 2, compression_type="gzip")
    value = bytes(size)
    answer = world.ask(ApiKey.PRODUCE, 9, request(topic, batch(value), batch(value, compression=Compression.GZIP)))
    assert [(row.error_code, row.base_offset) for row in answer.responses[0].partition_responses] == [(0, 0)] * 2
    assert in_log(world, topic, 0) == in_log(world, topic, 1) == [(0, Compression.GZIP, [value])]
    assert len(threads) == is_in_thread, "the one that is in the topic's codec need not be"


@pytest.mark.parametrize(("count", "is_in_thread"), [(OPENED_AT_ONCE_MAX, False), (OPENED_AT_ONCE_MAX + 1, True)])
def test_a_compressed_batch_of_many_records_is_opened_in_a_thread(
    world: World, threads: list[Any], count: int, is_in_thread: bool
) -> None:
    topic = f"many-{count}"
    world.create_topic(topic)
    content = batch(*[b""] * count, compression=Compression.ZSTD)
    assert len(content) < LARGE
    answer = world.ask(ApiKey.PRODUCE, 9, request(topic, content))
    assert [(row.error_code, row.base_offset) for row in answer.responses[0].partition_responses] == [(0, 0)]
    ((base_offset, codec, values),) = in_log(world, topic)
    assert (base_offset, codec, len(values)) == (0, Compression.ZSTD, count)
    assert len(threads) == is_in_thread


@pytest.mark.parametrize("acks", [-1, 0])
def test_what_a_producer_sends_behind_it_stays_behind_it(world: World, threads: list[Any], acks: int) -> None:
    topic = f"order-{acks}"
    world.create_topic(topic, compression_type="lz4")

    async def run() -> None:
        client, other = await world.connect(), await world.connect()
        for number in range(3):
            large = request(topic, batch(b"%d" % number, bytes(LARGE)), acks=acks)
            small = request(topic, batch(b"%d, small" % number), acks=acks)
            for message in (large, small):
                client.transport.write(frames.encode_request(ApiKey.PRODUCE, 9, 1, "test", message))
        await other.ask(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
        other.transport.close()
        await world.env.clock.sleep(1000)
        client.transport.close()

    world.env.run(run())
    assert len(threads) == 3
    values = [values[0] for _, _, values in in_log(world, topic)]
    assert values == [b"0", b"0, small", b"1", b"1, small", b"2", b"2, small"]


def test_a_client_that_goes_away_has_produced_all_the_same(world: World, threads: list[Any]) -> None:
    world.create_topic("gone", compression_type="zstd")

    async def run() -> None:
        client = await world.connect()
        client.send(ApiKey.PRODUCE, 9, request("gone", batch(bytes(LARGE))))
        while not threads:
            await world.env.clock.sleep(0)
        client.transport.abort()
        await world.env.clock.sleep(1000)

    world.env.run(run())
    assert in_log(world, "gone") == [(0, Compression.ZSTD, [bytes(LARGE)])]


@pytest.mark.parametrize(
    ("position", "error"),
    [(-1, ErrorCode.CORRUPT_MESSAGE), (57, ErrorCode.INVALID_RECORD)],
    ids=["a record", "the number of records"],
)
def test_what_is_wrong_with_a_batch_is_not_mended_on_the_way(
    world: World, threads: list[Any], position: int, error: ErrorCode
) -> None:
    topic = f"wrong-{position}"
    world.create_topic(topic, compression_type="gzip")
    damaged = bytearray(batch(bytes(LARGE)))
    damaged[position] ^= 0xFF
    answer = world.ask(ApiKey.PRODUCE, 9, request(topic, bytes(damaged)))
    assert len(threads) == 1
    assert answer.responses[0].partition_responses[0].error_code == error
    assert in_log(world, topic) == []
