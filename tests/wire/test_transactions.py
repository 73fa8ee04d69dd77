"""The log side of transactions over the wire: batches, markers, what each isolation level is given.

The producers here are trusted (`transaction.partition.verification.enable=false`), and the test is their coordinator.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.coordinator import partition_for
from barnabas.offsets.records import CommittedOffset, OffsetCommits
from barnabas.protocol import frames, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    ApiVersionsRequest,
    DeleteRecordsRequest,
    DescribeProducersRequest,
    FetchRequest,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from barnabas.protocol.record_batch import Record

World = Any  # of conftest.py
READ_COMMITTED = 1


@pytest.fixture(scope="module")
def world(make_world: type[World]) -> Iterator[World]:
    world = make_world(**{"transaction.partition.verification.enable": "false"})
    yield world
    world.end()


def batch(producer_id: int, sequence: int, *, epoch: int = 0, transactional: bool = True, count: int = 1) -> bytearray:
    records = [Record(offset=n, timestamp=1_700_000_000_000 + n, key=b"k", value=b"v") for n in range(count)]
    return record_batch.build(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )


def request_of(
    topic: str, *batches: tuple[int, bytearray], transactional_id: str | None = "t", acks: int = -1
) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=index, records=records) for index, records in batches]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=5000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
    )


def produce(world: World, topic: str, records: bytearray, *, version: int = 11, **fields: Any) -> Any:
    request = request_of(topic, (0, records), **fields)
    (answer,) = world.ask(ApiKey.PRODUCE, version, request).responses[0].partition_responses
    return answer


def marker_of(
    producer_id: int,
    topics: dict[str, list[int]],
    *,
    commit: bool = True,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> WriteTxnMarkersRequest.WritableTxnMarker:
    request = WriteTxnMarkersRequest
    return request.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[
            request.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()
        ],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )


def write_markers(
    world: World, *markers: WriteTxnMarkersRequest.WritableTxnMarker, version: int = 1
) -> dict[tuple[int, str, int], ErrorCode]:
    answer = world.ask(ApiKey.WRITE_TXN_MARKERS, version, WriteTxnMarkersRequest(markers=list(markers)))
    return {
        (marker.producer_id, topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for partition in topic.partitions
    }


def end(world: World, topic: str, producer_id: int, **fields: Any) -> ErrorCode:
    ((_, error),) = write_markers(world, marker_of(producer_id, {topic: [0]}, **fields), version=2).items()
    return error


def fetch_of(topic: str, offset: int, isolation: int, max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchRequest.FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[wanted])]
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation, topics=topics
    )


def fetch(world: World, topic: str, offset: int = 0, isolation: int = READ_COMMITTED, max_wait_ms: int = 0) -> Any:
    answer = world.ask(ApiKey.FETCH, 12, fetch_of(topic, offset, isolation, max_wait_ms))
    return answer.responses[0].partitions[0]


def aborted(answer: Any) -> list[tuple[int, int]]:
    return [(row.producer_id, row.first_offset) for row in answer.aborted_transactions]


def offsets(answer: Any) -> list[int]:
    return [
        record.offset
        for _, found in record_batch.batches(answer.records)
        for record in record_batch.records(found, max_bytes=1 << 20)
    ]


def latest(world: World, topic: str, isolation: int, timestamp: int = -1) -> int:
    wanted = ListOffsetsRequest.ListOffsetsPartition(timestamp=timestamp)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
    offset: int = world.ask(ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0].offset
    return offset


def test_a_transaction_is_seen_when_it_has_ended(world: World) -> None:
    world.create_topic("ends")
    assert produce(world, "ends", batch(1, 0, count=2)).base_offset == 0
    assert produce(world, "ends", batch(2, 0)).base_offset == 2
    found = fetch(world, "ends")
    assert (found.high_watermark, found.last_stable_offset, offsets(found), aborted(found)) == (3, 0, [], [])
    assert offsets(fetch(world, "ends", isolation=0)) == [0, 1, 2]
    assert fetch(world, "ends", isolation=0).aborted_transactions is None
    assert (latest(world, "ends", 0), latest(world, "ends", READ_COMMITTED)) == (3, 0)
    assert latest(world, "ends", READ_COMMITTED, timestamp=5) == -1, "no record may be seen yet"
    assert latest(world, "ends", 0, timestamp=5) == 0
    assert end(world, "ends", 1) == ErrorCode.NONE
    found = fetch(world, "ends")
    assert (found.high_watermark, found.last_stable_offset, offsets(found)) == (4, 2, [0, 1])
    assert end(world, "ends", 2, commit=False) == ErrorCode.NONE
    found = fetch(world, "ends")
    assert (found.high_watermark, found.last_stable_offset, aborted(found)) == (5, 5, [(2, 2)])
    assert offsets(found) == [0, 1, 2, 3, 4], "clients leave out what is aborted"
    assert latest(world, "ends", READ_COMMITTED) == 5


def test_a_fetch_waits_for_the_marker(world: World) -> None:
    world.create_topic("waits")
    produce(world, "waits", batch(1, 0))

    async def run() -> Any:
        reading, writing = await world.connect(), await world.connect()
        reading.send(ApiKey.FETCH, 12, fetch_of("waits", 0, READ_COMMITTED, 30_000))
        await writing.ask(ApiKey.PRODUCE, 11, request_of("waits", (0, batch(3, 0, transactional=False))))
        await world.env.clock.sleep(500)
        assert reading.data == b"", "the transaction is open"
        request = WriteTxnMarkersRequest(markers=[marker_of(1, {"waits": [0]}, commit=False)])
        await writing.ask(ApiKey.WRITE_TXN_MARKERS, 1, request)
        answer = await reading.answer()
        assert answer is not None

        return frames.decode_response(ApiKey.FETCH, 12, memoryview(answer))[1]

    found = world.env.run(run()).responses[0].partitions[0]
    assert (offsets(found), aborted(found), found.last_stable_offset) == ([0, 1, 2], [(1, 0)], 3)


def test_a_marker_answers_for_each_partition_on_its_own(world: World) -> None:
    world.create_topic("several", 3)
    world.create_topic("others")
    for index in (0, 2):
        world.ask(ApiKey.PRODUCE, 11, request_of("several", (index, batch(1, 0, epoch=3))))
    world.ask(ApiKey.PRODUCE, 11, request_of("several", (1, batch(2, 0))))
    found = write_markers(
        world,
        marker_of(1, {"several": [0, 2, 7], "absent": [0], "others": [0]}, epoch=3),
        marker_of(2, {"several": [1]}, commit=False, coordinator_epoch=4),
        marker_of(-5, {"several": [1]}),
    )
    assert found == {
        (1, "several", 0): ErrorCode.NONE,
        (1, "several", 2): ErrorCode.NONE,
        (1, "several", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (1, "absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (1, "others", 0): ErrorCode.NONE,  # without a transaction it is written all the same
        (2, "several", 1): ErrorCode.NONE,
        (-5, "several", 1): ErrorCode.UNKNOWN_SERVER_ERROR,
    }
    assert end(world, "others", 1, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert write_markers(world, marker_of(2, {"several": [1]}, coordinator_epoch=3)) == {
        (2, "several", 1): ErrorCode.TRANSACTION_COORDINATOR_FENCED
    }
    assert write_markers(world) == {}


def test_a_late_marker_does_not_end_the_next_transaction(world: World) -> None:
    """In transaction version 2 each end has a higher epoch than what it ends."""
    world.create_topic("late")
    produce(world, "late", batch(1, 0, epoch=0))
    assert end(world, "late", 1, epoch=1, transaction_version=2) == ErrorCode.NONE
    assert end(world, "late", 1, epoch=1, transaction_version=2) == ErrorCode.NONE, "a repeat does no harm"
    produce(world, "late", batch(1, 0, epoch=1))
    assert end(world, "late", 1, epoch=1, transaction_version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(world, "late", 1, epoch=1, transaction_version=1) == ErrorCode.NONE, "before, they were equal"
    assert latest(world, "late", READ_COMMITTED) == latest(world, "late", 0) == 5


def test_what_a_transactional_produce_may_not_do(world: World) -> None:
    world.create_topic("refuses", 2)
    produce(world, "refuses", batch(1, 0))
    assert produce(world, "refuses", batch(1, 1, transactional=False)).error_code == ErrorCode.INVALID_TXN_STATE
    assert produce(world, "refuses", batch(1, 2)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    end(world, "refuses", 1, epoch=1)
    assert produce(world, "refuses", batch(1, 1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    without_id = produce(world, "refuses", batch(1, 0, epoch=1), transactional_id=None)
    assert without_id.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    of_two = request_of("refuses", (0, batch(1, 0, epoch=1)), (1, batch(2, 0)))
    answers = world.ask(ApiKey.PRODUCE, 11, of_two).responses[0].partition_responses
    assert [each.error_code for each in answers] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    of_version_2 = produce(world, "refuses", batch(1, 0, epoch=1), version=12)
    assert of_version_2.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "only a coordinator can add the partition"
    assert of_version_2.log_start_offset == -1
    assert latest(world, "refuses", 0) == latest(world, "refuses", READ_COMMITTED) == 2


def test_without_a_coordinator_no_partition_takes_a_transaction(make_world: type[World]) -> None:
    world = make_world()
    world.create_topic("verified")
    assert produce(world, "verified", batch(1, 0)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(world, "verified", batch(1, 0, transactional=False)).error_code == ErrorCode.NONE
    assert latest(world, "verified", 0) == 1
    world.env.run(world.broker.stop())


def test_records_are_deleted_below_and_inside_an_open_transaction(world: World) -> None:
    world.create_topic("deleted")
    produce(world, "deleted", batch(1, 0))
    for sequence in range(3):
        produce(world, "deleted", batch(2, sequence, transactional=False))
    request = DeleteRecordsRequest
    partition = request.DeleteRecordsPartition(offset=2)
    topics = [request.DeleteRecordsTopic(name="deleted", partitions=[partition])]
    world.ask(ApiKey.DELETE_RECORDS, 2, request(topics=topics, timeout_ms=1000))
    found = fetch(world, "deleted", 2)
    assert (found.log_start_offset, found.last_stable_offset, offsets(found)) == (2, 2, [])
    end(world, "deleted", 1, commit=False)
    found = fetch(world, "deleted", 2)
    assert (found.last_stable_offset, offsets(found), aborted(found)) == (5, [2, 3, 4], [(1, 0)])


def test_an_open_transaction_is_described(world: World) -> None:
    world.create_topic("described")
    produce(world, "described", batch(2, 0, transactional=False))
    produce(world, "described", batch(1, 0, epoch=2, count=3))
    end(world, "described", 1, epoch=2, coordinator_epoch=6)
    produce(world, "described", batch(1, 3, epoch=2))
    topics = [DescribeProducersRequest.TopicRequest(name="described", partition_indexes=[0])]
    answer = world.ask(ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=topics))
    described = {
        each.producer_id: (
            each.producer_epoch,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in answer.topics[0].partitions[0].active_producers
    }
    assert described == {1: (2, 3, 6, 5), 2: (0, 0, -1, -1)}


def test_markers_are_announced_as_kafka_announces_them(world: World) -> None:
    keys = {
        row.api_key: (row.min_version, row.max_version)
        for row in world.ask(ApiKey.API_VERSIONS, 2, ApiVersionsRequest()).api_keys
    }
    assert keys[ApiKey.WRITE_TXN_MARKERS] == (1, 2)


def test_markers_for_very_many_partitions_are_written_in_pieces(world: World) -> None:
    world.create_topic("many", 120)
    for index in range(120):
        world.ask(ApiKey.PRODUCE, 11, request_of("many", (index, batch(1, 0))))
    found = write_markers(world, marker_of(1, {"many": list(range(120))}))
    assert set(found.values()) == {ErrorCode.NONE}
    assert len(found) == 120
    assert all(world.broker.log_manager.get("many", index).last_stable_offset == 2 for index in range(120))


def test_a_marker_decides_the_offsets_of_its_transaction_before_it_is_answered(world: World) -> None:
    create_offsets_topic(world)
    coordinator = world.broker.group_coordinator
    index = partition_for("copier", 3)
    shard = coordinator.shards[index]
    for producer_id, offset in ((41, 7), (42, 8)):
        pending = {"t": {0: CommittedOffset(offset, -1, "", 0)}}
        shard.offsets.replay(OffsetCommits("copier", pending), shard.log.log_end_offset, producer_id)
    assert committed(world, "copier") == -1
    commit = marker_of(41, {OFFSETS_TOPIC: [index]})
    shard.loading = True
    assert write_markers(world, commit) == {(41, OFFSETS_TOPIC, index): ErrorCode.NOT_LEADER_OR_FOLLOWER}
    end_offset = shard.log.log_end_offset
    shard.loading = False
    assert write_markers(world, commit) == {(41, OFFSETS_TOPIC, index): ErrorCode.NONE}
    assert shard.log.log_end_offset == end_offset + 1
    assert committed(world, "copier") == 7
    write_markers(world, marker_of(42, {OFFSETS_TOPIC: [index]}, commit=False))
    assert committed(world, "copier") == 7
    assert shard.offsets.pending == {}


def create_offsets_topic(world: World) -> None:
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="copier"))


def committed(world: World, group: str) -> int:
    topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    answer = world.ask(ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest(group_id=group, topics=topics))
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset
