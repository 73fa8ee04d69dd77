"""Offsets in transactions over the wire: a consumer's position that counts together with what was produced."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddOffsetsToTxnRequest,
    FindCoordinatorRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)

sys.path.insert(0, str(Path(__file__).parent))
from http_client import ask
from transaction_requests import Lasting, add, describe, end, init, sleep

World = Any  # of conftest.py
OLD, NEW = 3, 5  # versions of TxnOffsetCommit: before transaction version 2, and of it


@pytest.fixture
def world(make_world: type[World]) -> Iterator[World]:
    world = make_world(**{"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "3"})
    world.create_topic("t", 2)
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))
    yield world
    world.end()


def find_group(world: World) -> None:
    assert world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="g")).error_code == ErrorCode.NONE
    sleep(world, 100)


def add_offsets(world: World, transactional_id: str, producer: tuple[int, int], group: str = "g") -> int:
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], group_id=group
    )
    return world.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, request).error_code


def commit(
    world: World,
    transactional_id: str,
    producer: tuple[int, int],
    offsets: dict[int, int],
    version: int = OLD,
    group: str = "g",
) -> list[int]:
    make = TxnOffsetCommitRequest
    rows = [
        make.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    request = make(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[make.TxnOffsetCommitRequestTopic(name="t", partitions=rows)],
    )
    answer = world.ask(ApiKey.TXN_OFFSET_COMMIT, version, request)
    return [row.error_code for topic in answer.topics for row in topic.partitions]


def fetch(world: World, stable: bool = True, group: str = "g") -> list[int]:
    """The offsets of both partitions; the error in place of one that is not stable."""
    make = OffsetFetchRequest
    request = make(
        group_id=group,
        topics=[make.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])],
        require_stable=stable,
    )
    (topic,) = world.ask(ApiKey.OFFSET_FETCH, 7, request).topics
    return [row.error_code or row.committed_offset for row in topic.partitions]


UNSTABLE = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("committed", [True, False])
def test_the_offsets_count_with_the_marker(world: World, version: int, committed: bool) -> None:
    find_group(world)
    _, *producer = init(world, "a")
    producer = tuple(producer)
    if version == OLD:
        assert add_offsets(world, "a", producer) == ErrorCode.NONE
    assert commit(world, "a", producer, {0: 5}, version) == [ErrorCode.NONE]
    (topic,) = describe(world, "a").topics
    assert topic.topic == "__consumer_offsets"
    assert fetch(world) == [UNSTABLE, -1]
    assert fetch(world, stable=False) == [-1, -1]
    error, *following = end(world, "a", producer, committed, 5 if version == NEW else 4)
    assert error == ErrorCode.NONE
    sleep(world, 200)
    assert fetch(world) == [5 if committed else -1, -1]
    assert describe(world, "a").transaction_state == ("CompleteCommit" if committed else "CompleteAbort")
    if version == NEW:  # the next transaction begins with the offsets themselves
        assert commit(world, "a", tuple(following), {1: 6}, NEW) == [ErrorCode.NONE]
        assert describe(world, "a").transaction_state == "Ongoing"
        # One from the transaction before comes late.
        assert commit(world, "a", producer, {1: 7}, NEW) == [ErrorCode.INVALID_PRODUCER_EPOCH]


@pytest.mark.parametrize(
    ("version", "error"),
    [(0, ErrorCode.INVALID_TXN_STATE), (3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_without_its_transaction_an_offset_is_refused(world: World, version: int, error: ErrorCode) -> None:
    """As one that comes after the end of its transaction: it would begin another, which nobody ends."""
    find_group(world)
    _, *producer = init(world, "a")
    assert commit(world, "a", tuple(producer), {0: 5}, version) == [error]
    assert add(world, "a", tuple(producer), [("t", 0)]) == [ErrorCode.NONE]  # not the offsets
    assert commit(world, "a", tuple(producer), {0: 5}, version) == [error]
    assert add_offsets(world, "a", tuple(producer)) == ErrorCode.NONE
    assert commit(world, "a", tuple(producer), {0: 5}, version) == [ErrorCode.NONE]
    end(world, "a", tuple(producer), True)
    sleep(world, 200)
    assert commit(world, "a", tuple(producer), {0: 6}, version) == [error]
    assert fetch(world) == [5, -1]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_zombie_is_fenced(world: World, version: int) -> None:
    find_group(world)
    _, *zombie = init(world, "a")
    add_offsets(world, "a", tuple(zombie))
    assert commit(world, "a", tuple(zombie), {0: 5}, version) == [ErrorCode.NONE]
    while (producer := init(world, "a"))[0] == ErrorCode.CONCURRENT_TRANSACTIONS:
        sleep(world, 50)
    assert commit(world, "a", tuple(zombie), {0: 6}, version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert fetch(world) == [-1, -1]
    add_offsets(world, "a", producer[1:])
    assert commit(world, "a", producer[1:], {0: 7}, version) == [ErrorCode.NONE]
    assert commit(world, "a", (producer[1] + 100, 0), {0: 8}, version) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert commit(world, "a", (-1, -1), {0: 8}, version) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert commit(world, "", (-1, -1), {0: 8}, version) == [ErrorCode.INVALID_REQUEST], "as Kafka 4.3.1"


def test_without_verification_the_producer_answers_for_it(make_world: type[World]) -> None:
    world = make_world(**{"transaction.partition.verification.enable": "false"})
    world.create_topic("t", 2)
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))
    find_group(world)
    _, *producer = init(world, "a")
    assert commit(world, "a", tuple(producer), {0: 5}) == [ErrorCode.NONE]
    assert fetch(world) == [UNSTABLE, -1]
    assert commit(world, "a", tuple(producer), {0: 5}, NEW) == [ErrorCode.NONE]
    assert commit(world, "a", (-1, -1), {0: 5}) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    world.env.run(world.broker.stop())


def test_the_offsets_topic_is_made_by_the_first_transaction_that_needs_it(world: World) -> None:
    """A producer asks for the group's coordinator only afterwards."""
    assert not world.broker.metadata_cache.contains("__consumer_offsets")
    _, *producer = init(world, "a")
    assert add_offsets(world, "a", tuple(producer)) == ErrorCode.NONE
    (topic,) = describe(world, "a").topics
    assert topic.topic == "__consumer_offsets"
    find_group(world)
    assert commit(world, "a", tuple(producer), {1: 5}) == [ErrorCode.NONE]
    end(world, "a", tuple(producer), True)
    sleep(world, 200)
    assert fetch(world) == [-1, 5]


def test_open_transactions_survive_a_restart(make_world: type[World]) -> None:
    lasting = Lasting(make_world)
    world = lasting.world
    find_group(world)
    producers = {}
    for name, offset in (("a", 5), ("b", 6), ("c", 7)):
        _, *producers[name] = init(world, name)
        assert commit(world, name, tuple(producers[name]), {0: offset, 1: offset}, NEW) == [ErrorCode.NONE] * 2
    end(world, "a", tuple(producers["a"]), True, 5)
    world = lasting.restart()
    sleep(world, 1_000)
    assert fetch(world) == [UNSTABLE, UNSTABLE]
    assert fetch(world, stable=False) == [5, 5]
    assert end(world, "c", tuple(producers["c"]), True, 5)[0] == ErrorCode.NONE
    assert end(world, "b", tuple(producers["b"]), True, 5)[0] == ErrorCode.NONE
    sleep(world, 200)
    assert fetch(world) == [7, 7]
    world = lasting.restart()
    sleep(world, 1_000)
    assert fetch(world) == [7, 7]
    world.env.run(world.broker.stop())


def test_the_tree_keeps_no_offsets_of_transactions(make_world: type[World]) -> None:
    world = make_world(**{"offsets.storage": "zookeeper"})
    world.create_topic("t", 2)
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))
    find_group(world)
    _, *producer = init(world, "a")
    assert commit(world, "a", tuple(producer), {0: 5}, NEW) == [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT]
    world.env.run(world.broker.stop())


def test_people_see_what_is_committed(world: World) -> None:
    find_group(world)
    _, *producer = init(world, "a")
    commit(world, "a", tuple(producer), {0: 5}, NEW)
    _, *producer = end(world, "a", tuple(producer), True, 5)
    sleep(world, 200)
    commit(world, "a", tuple(producer), {0: 7, 1: 7}, NEW)

    def seen() -> list[tuple[int, int, str | None]]:
        answer = world.env.run(ask(world.env, world.broker, "GET", "/v1/groups/g"))
        assert answer.status == 200, answer.body
        return [(row["partition"], row["offset"], row["kept_by"]) for row in answer.json["offsets"]]

    assert seen() == [(0, 5, "transaction")]
    lag = world.env.run(ask(world.env, world.broker, "GET", "/v1/groups/g/lag")).json
    assert [(row["partition"], row["offset"]) for row in lag["partitions"]] == [(0, 5)]
    end(world, "a", tuple(producer), True, 5)
    sleep(world, 200)
    assert seen() == [(0, 7, None), (1, 7, None)]
