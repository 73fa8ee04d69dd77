"""A request leaves no cycle for the garbage collector, on both builds: else thousands a second keep it at work.

The compiled build makes a cycle of some functions inside functions: they, and what it keeps of their variables.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from barnabas.protocol.record_batch import Record, build

World = Any  # of conftest.py
REQUESTS = 20
EPOCH = 2  # of the member of the consumer protocol: the group's first assignment

_row = OffsetCommitRequest.OffsetCommitRequestPartition
_records = ProduceRequest.PartitionProduceData


def commit(group: str, partitions: int = 1) -> OffsetCommitRequest:
    rows = [_row(partition_index=index, committed_offset=7, committed_metadata="") for index in range(partitions)]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=rows)
    return OffsetCommitRequest(group_id=group, topics=[topic])


def produce(partitions: int) -> ProduceRequest:
    records = build([Record(timestamp=1_700_000_000_000, value=b"v")])
    data = [_records(index=index, records=records) for index in range(partitions)]
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics)


def fetch(offset: int) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    return FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=1 << 20, topics=[topic])


def list_offsets() -> ListOffsetsRequest:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[partition])])


def offset_fetch() -> OffsetFetchRequest:
    topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    return OffsetFetchRequest(group_id="g", topics=topics)


def beat() -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id="new", member_id="m", member_epoch=EPOCH)


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[Any]:
    """A connection, with a topic and a member of the consumer protocol."""
    world.create_topic("t", partitions=3)
    client = world.env.run(world.connect())

    async def join() -> None:
        request = beat()
        request.member_epoch, request.rebalance_timeout_ms = 0, 300_000
        request.subscribed_topic_names, request.topic_partitions = ["t"], []
        await client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="new"))
        answer = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        assert answer.member_epoch == EPOCH, answer

    world.env.run(world.env.clock.sleep(1000))
    world.env.run(join())
    yield client
    client.transport.close()


@pytest.mark.parametrize(
    ("api", "version", "make"),
    [
        (ApiKey.OFFSET_COMMIT, 8, lambda: commit("g")),
        (ApiKey.OFFSET_COMMIT, 8, lambda: commit("g", 3)),
        (ApiKey.OFFSET_FETCH, 7, offset_fetch),
        (ApiKey.PRODUCE, 9, lambda: produce(1)),
        (ApiKey.PRODUCE, 9, lambda: produce(3)),
        (ApiKey.FETCH, 12, lambda: fetch(0)),
        (ApiKey.FETCH, 12, lambda: fetch(1 << 20)),
        (ApiKey.LIST_OFFSETS, 6, list_offsets),
        (ApiKey.METADATA, 9, MetadataRequest),
        (ApiKey.FIND_COORDINATOR, 3, lambda: FindCoordinatorRequest(key="g")),
        (ApiKey.HEARTBEAT, 4, lambda: HeartbeatRequest(group_id="g", generation_id=1, member_id="m")),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat),
    ],
)
def test_no_cycle_is_left(world: World, client: Any, api: ApiKey, version: int, make: Callable[[], Any]) -> None:
    async def ask(times: int) -> None:
        for _ in range(times):
            await client.ask(api, version, make())

    world.env.run(ask(3))  # what is made once, and kept
    assert left(lambda: world.env.run(ask(REQUESTS))) == Counter()


def test_no_cycle_is_left_by_a_transaction(world: World, client: Any) -> None:
    """Of KIP-890: the first Produce adds its partition, and waits for the coordinator."""

    async def begin() -> InitProducerIdResponse:
        await client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="id", key_type=1))
        await world.env.clock.sleep(1000)
        request = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        return await client.ask(ApiKey.INIT_PRODUCER_ID, 5, request)

    async def transact(times: int) -> None:
        nonlocal producer_id, epoch
        for _ in range(times):
            records = build(
                *([Record(timestamp=1_700_000_000_000, value=b"v")],),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=True,
            )
            request = produce(1)
            request.transactional_id = "id"
            request.topic_data[0].partition_data[0].records = records
            answer = await client.ask(ApiKey.PRODUCE, 12, request)
            assert answer.responses[0].partition_responses[0].error_code == 0, answer
            who = {"transactional_id": "id", "producer_id": producer_id, "producer_epoch": epoch}
            ended = await client.ask(ApiKey.END_TXN, 5, EndTxnRequest(**who, committed=True))
            assert ended.error_code == 0, ended
            producer_id, epoch = ended.producer_id, ended.producer_epoch

    producer = world.env.run(begin())
    producer_id, epoch = producer.producer_id, producer.producer_epoch
    world.env.run(transact(3))
    assert left(lambda: world.env.run(transact(REQUESTS))) == Counter()


def left(action: Callable[[], None]) -> Counter[str]:
    """The objects of the broker that only the garbage collector can find, by class."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.disable()
    try:
        action()
        gc.collect()
        kinds = [type(each) for each in gc.garbage]
        names = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if kind.__module__.startswith("barnabas.")]
        return Counter(names)
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
