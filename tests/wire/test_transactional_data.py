"""A transaction from its first request to what consumers see."""

import sys
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.api import write_txn_markers
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FetchRequest, ProduceRequest, WriteTxnMarkersRequest
from barnabas.protocol.record_batch import Record
from simulator import clock

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import add, end, init, sleep

World = Any  # of conftest.py


@pytest.fixture
def world(world_of_transactions: World) -> World:
    return world_of_transactions


def produce(world: World, producer: tuple[int, int], index: int, sequence: int, value: bytes) -> int:
    records = record_batch.build(
        [Record(timestamp=1_700_000_000_000, value=value)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=True,
    )
    data = ProduceRequest.PartitionProduceData(index=index, records=records)
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=[data])]
    request = ProduceRequest(transactional_id="a", acks=-1, timeout_ms=5000, topic_data=topics)
    code: int = world.ask(ApiKey.PRODUCE, 11, request).responses[0].partition_responses[0].error_code
    return code


def seen(world: World, index: int) -> tuple[list[int], int]:
    """The producers whose transactions a read_committed consumer leaves out, and how many records it is given."""
    partition = FetchRequest.FetchPartition(partition=index, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=1, topics=topics)
    answer = world.ask(ApiKey.FETCH, 12, request).responses[0].partitions[0]
    batches = [header for header, _ in record_batch.batches(answer.records) if not header.is_control]
    return [row.producer_id for row in answer.aborted_transactions], sum(header.record_count for header in batches)


def test_consumers_see_a_transaction_when_it_is_committed_and_skip_it_when_aborted(world: World) -> None:
    producer_id, epoch = init(world, "a")[1:]
    producer = (producer_id, epoch)
    for sequence, committed in enumerate((True, False)):
        assert add(world, "a", producer, [("t", 0), ("t", 1)]) == [0, 0]
        assert [produce(world, producer, index, sequence, b"x") for index in range(2)] == [0, 0]
        assert seen(world, 0) == seen(world, 1) == ([], sequence)
        assert end(world, "a", producer, committed)[0] == ErrorCode.NONE
        sleep(world, 50)
    assert seen(world, 0) == seen(world, 1) == ([producer_id], 2)


def test_a_late_transaction_is_aborted_and_its_producer_fenced(world: World) -> None:
    producer_id, epoch = init(world, "a", timeout_ms=1_000)[1:]
    producer = (producer_id, epoch)
    assert add(world, "a", producer, [("t", 0)]) == [0]
    assert produce(world, producer, 0, 0, b"late") == 0
    sleep(world, 12_000)
    assert seen(world, 0) == ([producer_id], 1)
    assert produce(world, producer, 0, 1, b"later") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(world, "a", producer, True)[0] == ErrorCode.PRODUCER_FENCED


def test_a_second_producer_of_the_id_ends_what_the_first_one_has_begun(world: World) -> None:
    first = init(world, "a")[1:]
    assert add(world, "a", first, [("t", 0)]) == [0]
    assert produce(world, first, 0, 0, b"first") == 0
    assert init(world, "a")[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    sleep(world, 50)
    second = init(world, "a")[1:]
    assert second == (first[0], first[1] + 2), "the epoch between them fenced the first one"
    assert produce(world, first, 0, 1, b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert add(world, "a", first, [("t", 0)]) == [ErrorCode.PRODUCER_FENCED]
    assert add(world, "a", second, [("t", 0)]) == [0]
    assert produce(world, second, 0, 0, b"second") == 0
    assert end(world, "a", second, True)[0] == ErrorCode.NONE
    sleep(world, 50)
    assert seen(world, 0) == ([first[0]], 2)


def test_markers_of_many_transactions_are_written_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "WORK_STEP_MS", 1.0)
    monkeypatch.setattr(write_txn_markers, "MARKERS_PER_PIECE", 4)
    form = WriteTxnMarkersRequest
    topics = [form.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    markers = [form.WritableTxnMarker(producer_id=producer_id, topics=topics) for producer_id in range(200)]
    log = world.broker.log_manager.get("t", 0)
    answer = world.broker.request_gate.ask(form(markers=markers), 1)
    assert 0 < log.log_end_offset < 200, "others get their turn in between"
    sleep(world, 1_000)
    results = answer.take().markers
    assert [result.producer_id for result in results] == list(range(200))
    assert {row.error_code for result in results for topic in result.topics for row in topic.partitions} == {0}
    assert log.log_end_offset == 200
