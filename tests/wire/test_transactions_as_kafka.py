"""Sequences of requests to which a random comparison with Apache Kafka 4.1 found other answers here; Kafka's are right.

Each is as short as it could be made. The literal values are what Kafka answered.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import (
    DescribeTransactionsRequest,
    FetchRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from barnabas.protocol.record_batch import Record

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import add, describe, end, init, sleep

World = Any  # of conftest.py
Producer = tuple[int, int]
NONE, NEW = (-1, -1), (-1, -1)


@pytest.fixture
def world(world_of_transactions: World) -> World:
    return world_of_transactions


def produce(world: World, *batches: tuple[Producer, int, int], version: int = 11, name: str = "a") -> list[Any]:
    """Batches of (producer, partition, sequence) in one request."""
    data = []
    for (producer_id, epoch), index, sequence in batches:
        records = record_batch.build(
            [Record(timestamp=1_700_000_000_000, value=b"v")],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data.append(ProduceRequest.PartitionProduceData(index=index, records=records))
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=data)]
    request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=5000, topic_data=topics)
    found: list[Any] = world.ask(ApiKey.PRODUCE, version, request).responses[0].partition_responses
    return found


def produced(world: World, producer: Producer, index: int, sequence: int = 0, **how: Any) -> int:
    (row,) = produce(world, (producer, index, sequence), **how)
    return int(row.error_code)


def mark(world: World, producer: Producer, *indexes: int, coordinator_epoch: int = 0) -> list[int]:
    request = WriteTxnMarkersRequest
    topics = [request.WritableTxnMarkerTopic(name="t", partition_indexes=list(indexes))]
    marker = request.WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=False,
        topics=topics,
        coordinator_epoch=coordinator_epoch,
    )
    answer = world.ask(ApiKey.WRITE_TXN_MARKERS, 1, request(markers=[marker]))
    return [row.error_code for row in answer.markers[0].topics[0].partitions]


def began(world: World, name: str = "a") -> Producer:
    error, producer_id, epoch = init(world, name)
    assert error == 0
    return producer_id, epoch


def test_an_id_that_is_asked_for_twice_is_described_twice(world: World) -> None:
    request = DescribeTransactionsRequest(transactional_ids=["a", "a"])
    states = world.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states
    assert [(state.transactional_id, state.error_code) for state in states] == [("a", 105)] * 2


def test_aborted_transactions_are_told_in_the_order_of_their_ends(world: World) -> None:
    first, second = began(world, "a"), began(world, "b")
    for name, producer in (("a", first), ("b", second)):
        assert add(world, name, producer, [("t", 0)]) == [0]
        assert produced(world, producer, 0, name=name) == 0
    for name, producer in (("b", second), ("a", first)):
        assert end(world, name, producer, False)[0] == 0
        sleep(world, 50)
    wanted = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[wanted])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=1, topics=topics)
    answer = world.ask(ApiKey.FETCH, 12, request).responses[0].partitions[0]
    found = [(row.producer_id, row.first_offset) for row in answer.aborted_transactions]
    assert found == [(second[0], 1), (first[0], 0)]


def test_a_marker_without_an_epoch_is_an_error(world: World) -> None:
    assert mark(world, (began(world)[0], -1), 0, 1, 7) == [-1, -1, 3]


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_partition_that_has_seen_a_later_epoch_asks_nobody(world: World, version: int) -> None:
    """Not even when the coordinator would name another error: the other partition is not in a transaction."""
    producer = began(world)
    assert mark(world, (producer[0], producer[1] + 2), 0) == [0]
    not_added = {10: 48, 11: 120, 12: 0}[version]
    found = produce(world, (producer, 0, 0), (producer, 1, 0), version=version)
    assert {row.index: row.error_code for row in found} == {0: 47, 1: not_added}
    assert produced(world, producer, 0, version=version, name="b") == 47


def test_a_batch_of_an_epoch_that_nobody_has_does_not_stop_the_producer(world: World) -> None:
    producer = began(world)
    assert produced(world, (producer[0], producer[1] + 2), 0, version=9) == 47
    assert add(world, "a", producer, [("t", 0)]) == [0]
    assert produced(world, producer, 0) == 0


@pytest.mark.parametrize("version", [10, 12])
def test_a_batch_without_an_epoch_is_verified(world: World, version: int) -> None:
    assert produced(world, (began(world)[0], -1), 0, version=version) == 47


def test_batches_of_several_producers_are_refused_with_a_reason(world: World) -> None:
    first, second = began(world, "a"), began(world, "b")
    found = produce(world, (first, 0, 0), (second, 1, 0))
    assert [row.error_code for row in found] == [49, 49]
    assert all(row.error_message for row in found)


def test_a_batch_for_a_partition_that_is_not_there_is_of_no_producer(world: World) -> None:
    """So the other one's is taken, as by Kafka 4.3.1."""
    first, second = began(world, "a"), began(world, "b")
    assert add(world, "a", first, [("t", 0)]) == [0]
    found = produce(world, (first, 0, 0), (second, 7, 0))
    assert {row.index: row.error_code for row in found} == {0: 0, 7: 3}
    (alone,) = produce(world, (first, 7, 0))
    assert alone.error_code == 3


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_in_version_5_after_one_of_an_older_version(world: World, committed: bool) -> None:
    """The epoch before the current one is taken for that of a repeat, although this end has raised none."""
    old = began(world)
    producer = began(world)
    assert add(world, "a", producer, [("t", 0)]) == [0]
    assert end(world, "a", producer, committed, version=3) == (0, -1, -1)
    sleep(world, 50)
    assert end(world, "a", old, not committed, version=5) == (48, -1, -1)
    assert end(world, "a", old, committed, version=5) == (0, *producer)


@pytest.mark.parametrize("version", [4, 5])
def test_while_a_transaction_is_ended_every_change_is_told_to_wait(world: World, version: int) -> None:
    """Whatever else is wrong with it. Only EndTxn of older versions looks at the producer first.

    Here the end takes for ever, because a partition has heard of a later coordinator.
    """
    producer = (producer_id, epoch) = began(world)
    stale, foreign = (producer_id, epoch + 5), (producer_id + 77, 0)
    assert mark(world, producer, 0, coordinator_epoch=9) == [0]
    assert add(world, "a", producer, [("t", 0), ("t", 1)]) == [0, 0]
    assert end(world, "a", producer, True, version=version)[0] == 0
    sleep(world, 50)
    state = describe(world, "a")
    assert (state.transaction_state, state.topics[0].partitions) == ("PrepareCommit", [0]), "the other has its marker"
    now = (producer_id, state.producer_epoch)
    for expected in (NEW, now, stale, foreign):
        assert init(world, "a", expected=expected)[0] == 51
    for some in (now, stale, foreign):
        for add_version in (3, 5):
            assert add(world, "a", some, [("t", 1)], version=add_version) == [51]
        for committed in (True, False):
            assert end(world, "a", some, committed, version=5)[0] == 51
    for committed in (True, False):
        assert end(world, "a", now, committed, version=4)[0] == 51
        assert end(world, "a", stale, committed, version=4)[0] == 90
        assert end(world, "a", foreign, committed, version=4)[0] == 49
