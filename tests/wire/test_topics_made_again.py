"""A topic that is deleted, or made again under its name, is known by its id: in fetches and in transactions."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.tree.port import CoordinationError
from barnabas.protocol import frames, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddOffsetsToTxnRequest,
    DeleteTopicsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from barnabas.protocol.record_batch import Record

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import Lasting, add, describe, end, init, sleep

World = Any  # of conftest.py


@pytest.fixture
def world(make_world: type[World]) -> Iterator[World]:
    world = make_world(**{"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"})
    yield world
    world.end()


def delete(topic: str) -> DeleteTopicsRequest:
    wish = DeleteTopicsRequest.DeleteTopicState(name=topic)
    return DeleteTopicsRequest(topics=[wish], timeout_ms=10_000)


def delete_topic(world: World, topic: str) -> None:
    (result,) = world.ask(ApiKey.DELETE_TOPICS, 6, delete(topic)).responses
    assert result.error_code == ErrorCode.NONE
    world.env.run(world.env.clock.sleep(1_000))  # its files are gone


# ---- fetches ----


def fetch(*topic_ids: bytes, session_id: int = 0, epoch: int = -1, partition: int = 0, wait_ms: int = 0) -> Any:
    asked = FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1000,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=[asked]) for topic_id in topic_ids],
    )


def errors(response: Any) -> dict[bytes, list[int]]:
    assert response.error_code == ErrorCode.NONE
    return {topic.topic_id: [row.error_code for row in topic.partitions] for topic in response.responses}


@pytest.mark.parametrize("version", [13, 18])
def test_a_fetch_without_a_session_of_a_topic_that_is_gone(world: World, version: int) -> None:
    former = world.create_topic("t", 2)
    assert errors(world.ask(ApiKey.FETCH, version, fetch(former))) == {former: [ErrorCode.NONE]}
    delete_topic(world, "t")
    assert errors(world.ask(ApiKey.FETCH, version, fetch(former))) == {former: [ErrorCode.UNKNOWN_TOPIC_ID]}
    newer = world.create_topic("t", 2)
    found = errors(world.ask(ApiKey.FETCH, version, fetch(former, newer)))
    assert found == {former: [ErrorCode.UNKNOWN_TOPIC_ID], newer: [ErrorCode.NONE]}
    no_partition = fetch(newer, partition=7)
    assert errors(world.ask(ApiKey.FETCH, version, no_partition)) == {newer: [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}


@pytest.mark.parametrize("is_asked_meanwhile", [True, False])
def test_a_session_with_a_topic_that_is_gone(world: World, is_asked_meanwhile: bool) -> None:
    former = world.create_topic("t")
    other = world.create_topic("other")
    opened = world.ask(ApiKey.FETCH, 17, fetch(former, other, epoch=0))
    assert errors(opened) == {former: [ErrorCode.NONE], other: [ErrorCode.NONE]}
    epoch = 1

    def again(*more: bytes) -> dict[bytes, list[int]]:
        nonlocal epoch
        request = fetch(*more, session_id=opened.session_id, epoch=epoch)
        epoch += 1
        return errors(world.ask(ApiKey.FETCH, 17, request))

    delete_topic(world, "t")
    if is_asked_meanwhile:
        assert again() == {former: [ErrorCode.UNKNOWN_TOPIC_ID]}
    newer = world.create_topic("t")
    assert again() == {former: [ErrorCode.UNKNOWN_TOPIC_ID]}
    assert again(newer) == {former: [ErrorCode.UNKNOWN_TOPIC_ID], newer: [ErrorCode.NONE]}


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_fetch_that_waits_while_its_topic_is_deleted(world: World, epoch: int) -> None:
    topic_id = world.create_topic("t")

    async def run() -> Any:
        waiting, other = await world.connect(), await world.connect()
        waiting.send(ApiKey.FETCH, 17, fetch(topic_id, epoch=epoch, wait_ms=60_000))
        await world.env.clock.sleep(50)
        await other.ask(ApiKey.DELETE_TOPICS, 6, delete("t"))
        began_ms = world.env.clock.monotonic_ms()
        answer = await waiting.answer()
        assert world.env.clock.monotonic_ms() - began_ms < 5_000
        return answer

    response = frames.decode_response(ApiKey.FETCH, 17, memoryview(world.env.run(run())))[1]
    assert errors(response) == {topic_id: [ErrorCode.UNKNOWN_TOPIC_ID]}


# ---- transactions ----


def produce(world: World, transactional_id: str, producer: tuple[int, int], value: bytes, sequence: int) -> int:
    """A transactional batch for t-0 of a client that adds its partitions itself; returns the error."""
    records = [Record(offset=0, timestamp=world.env.clock.now_ms(), key=None, value=value, headers=[])]
    data = ProduceRequest.PartitionProduceData(
        index=0,
        records=record_batch.build(
            records,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=True,
        ),
    )
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1_000, topic_data=[topic])
    answer = world.ask(ApiKey.PRODUCE, 11, request)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def with_transactions(world: World) -> World:
    found = world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, world.broker.node_id)
    return world


def begin(world: World, producer: tuple[int, int], *partitions: tuple[str, int]) -> None:
    assert set(add(world, "a", producer, list(partitions))) == {ErrorCode.NONE}


def offsets_of(world: World, topic: str = "t", index: int = 0) -> tuple[int, int]:
    """The last stable offset and the log end."""
    log = world.broker.log_manager.get(topic, index)
    return log.last_stable_offset, log.log_end_offset


def state(world: World) -> str:
    found: str = describe(world, "a").transaction_state
    return found


@pytest.mark.parametrize("is_made_again", [True, False])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_topic_that_is_deleted_in_a_transaction(world: World, is_committed: bool, is_made_again: bool) -> None:
    with_transactions(world)
    world.create_topic("t")
    world.create_topic("other")
    _, *who = init(world, "a")
    producer = (who[0], who[1])
    begin(world, producer, ("t", 0), ("other", 0))
    assert produce(world, "a", producer, b"first", 0) == ErrorCode.NONE
    delete_topic(world, "t")
    if is_made_again:
        world.create_topic("t")
    assert end(world, "a", producer, is_committed)[0] == ErrorCode.NONE
    sleep(world, 50)
    assert state(world) == ("CompleteCommit" if is_committed else "CompleteAbort")
    assert offsets_of(world, "other") == (1, 1), "the marker"
    if not is_made_again:
        world.create_topic("t")
    assert offsets_of(world) == (0, 0), "no marker in a topic of which the transaction did not know"
    begin(world, producer, ("t", 0))
    assert produce(world, "a", producer, b"second", 1) == ErrorCode.NONE
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    sleep(world, 50)
    assert offsets_of(world) == (2, 2)


@pytest.mark.parametrize("is_added_again", [True, False])
def test_a_transaction_that_writes_to_the_former_topic_and_to_the_new_one(world: World, is_added_again: bool) -> None:
    with_transactions(world)
    world.create_topic("t", 2)
    _, *who = init(world, "a")
    producer = (who[0], who[1])
    begin(world, producer, ("t", 0), ("t", 1))
    assert produce(world, "a", producer, b"former", 0) == ErrorCode.NONE
    delete_topic(world, "t")
    world.create_topic("t", 2)
    if is_added_again:
        begin(world, producer, ("t", 0))
    assert produce(world, "a", producer, b"newer", 1) == ErrorCode.NONE
    assert offsets_of(world) == (0, 1)
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    sleep(world, 50)
    assert state(world) == "CompleteCommit"
    assert offsets_of(world) == (2, 2)
    assert offsets_of(world, index=1) == (0, 0)


def test_a_coordinator_that_hears_late_of_the_new_topic_ends_what_was_written_there(world: World) -> None:
    """The leader knows the new topic already, and the coordinator has said yes to it for the former one."""
    with_transactions(world)
    former = world.create_topic("t")
    _, *who = init(world, "a")
    producer = (who[0], who[1])
    begin(world, producer, ("t", 0))
    delete_topic(world, "t")
    world.create_topic("t")
    assert produce(world, "a", producer, b"newer", 0) == ErrorCode.NONE
    coordinator = world.broker.transactions.coordinator
    coordinator.shard_of("a").entries["a"].topic_ids["t", 0] = former
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    sleep(world, 50)
    assert (state(world), offsets_of(world)) == ("CompleteCommit", (2, 2))


@pytest.mark.parametrize("has_written", [True, False])
def test_a_marker_that_is_under_way_while_its_topic_is_made_again_is_not_written_there(
    world: World, has_written: bool
) -> None:
    """The coordinator sends it for the former topic, because it knows no other; the leader has the new one already."""
    with_transactions(world)
    former = world.create_topic("t")
    _, *who = init(world, "a")
    producer = (who[0], who[1])
    begin(world, producer, ("t", 0))
    assert produce(world, "a", producer, b"former", 0) == ErrorCode.NONE
    delete_topic(world, "t")
    newer = world.create_topic("t")
    if has_written:
        assert produce(world, "a", producer, b"newer", 1) == ErrorCode.NONE
    markers, cache = world.broker.transactions.coordinator.markers, world.broker.metadata_cache
    world.broker.transactions.coordinator.shard_of("a").entries["a"].topic_ids["t", 0] = former
    ids = [former] * 3  # what the coordinator has heard, each time it looks
    markers._metadata_cache = Heard(cache, lambda: ids.pop() if ids else newer)
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    sleep(world, 3_000)
    assert ids == []
    assert (state(world), offsets_of(world)) == ("CompleteCommit", (2, 2) if has_written else (0, 0))


class Heard:
    """A metadata cache that has heard of an older topic `t`."""

    def __init__(self, cache: Any, topic_id: Callable[[], bytes]) -> None:
        self._cache = cache
        self._topic_id = topic_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def topic_id(self, topic: str) -> bytes:
        found: bytes = self._topic_id() if topic == "t" else self._cache.topic_id(topic)
        return found


@pytest.mark.parametrize("has_written", [True, False])
def test_after_a_restart_the_leader_says_whether_the_producer_has_written(
    make_world: type[World], has_written: bool
) -> None:
    """Records of the coordinator have no topic ids."""
    lasting = Lasting(make_world)
    world = lasting.world
    _, *who = init(world, "a")
    producer = (who[0], who[1])
    begin(world, producer, ("t", 0))
    assert produce(world, "a", producer, b"former", 0) == ErrorCode.NONE
    delete_topic(world, "t")
    world.create_topic("t")
    if has_written:
        assert produce(world, "a", producer, b"newer", 1) == ErrorCode.NONE
    world = lasting.restart()
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    sleep(world, 100)
    assert state(world) == "CompleteCommit"
    assert offsets_of(world) == ((2, 2) if has_written else (0, 0))
    world.end()


@pytest.mark.parametrize("tree_answers", [True, False])
def test_after_a_restart_the_tree_says_which_topics_are_gone(make_world: type[World], tree_answers: bool) -> None:
    lasting = Lasting(make_world)
    world = lasting.world
    world.create_topic("gone")
    _, *who = init(world, "a")
    producer = (who[0], who[1])
    begin(world, producer, ("gone", 0), ("t", 0))
    delete_topic(world, "gone")
    world = lasting.restart()
    if not tree_answers:

        async def no_answer(_: Any) -> None:
            raise CoordinationError("/brokers", "no answer")

        world.broker.coordination.get_many = no_answer
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    sleep(world, 100)
    assert state(world) == ("CompleteCommit" if tree_answers else "PrepareCommit")
    sleep(world, 11_000)
    assert state(world) == "CompleteCommit"
    # Whether the topic is the same cannot be known without the tree, and the producer has written nothing there.
    assert offsets_of(world) == ((1, 1) if tree_answers else (0, 0))
    if not tree_answers:
        del world.broker.coordination.get_many
    world.end()


@pytest.mark.parametrize("is_made_again", [True, False])
def test_offsets_of_a_deleted_topic_that_wait_for_their_transaction_never_count(
    world: World, is_made_again: bool
) -> None:
    with_transactions(world)
    world.create_topic("t")
    world.create_topic("other")
    _, *who = init(world, "a")
    producer = (who[0], who[1])
    wish = AddOffsetsToTxnRequest(transactional_id="a", producer_id=who[0], producer_epoch=who[1], group_id="g")
    assert world.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, wish).error_code == ErrorCode.NONE
    row = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topics = [
        TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=[row]) for name in ("t", "other")
    ]
    commit = TxnOffsetCommitRequest(
        transactional_id="a", group_id="g", producer_id=who[0], producer_epoch=who[1], topics=topics
    )
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="g", key_type=0))
    sleep(world, 500)
    answer = world.ask(ApiKey.TXN_OFFSET_COMMIT, 3, commit)
    assert [topic.partitions[0].error_code for topic in answer.topics] == [ErrorCode.NONE] * 2
    delete_topic(world, "t")
    if is_made_again:
        world.create_topic("t")
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    sleep(world, 50)
    found = world.ask(ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest(group_id="g", topics=None))
    assert [(topic.name, topic.partitions[0].committed_offset) for topic in found.topics] == [("other", 7)]
