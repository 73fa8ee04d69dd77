"""ElectLeaders on a single broker: what Kafka 4.1 answered, and what a broker says that is not the controller."""

from collections.abc import Iterator
from typing import Any

import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ElectLeadersRequest

World = Any  # of conftest.py
Topic = ElectLeadersRequest.TopicPartitions


@pytest.fixture
def world(make_world: type[World]) -> Iterator[World]:
    """A broker with one topic."""
    world = make_world()
    world.create_topic("elections", 2)
    yield world
    world.env.run(world.broker.stop())


def results(response: Any) -> list[tuple[str, int, int, str | None]]:
    return [
        (topic.topic, row.partition_id, row.error_code, row.error_message)
        for topic in response.replica_election_results
        for row in topic.partition_result
    ]


def elect(
    world: World, version: int, *topics: tuple[str, list[int]], election_type: int = 0, timeout_ms: int = 10_000
) -> Any:
    named = [Topic(topic=topic, partitions=partitions) for topic, partitions in topics] or None
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=named, timeout_ms=timeout_ms)
    return world.ask(ApiKey.ELECT_LEADERS, version, request)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_not_needed_and_unknown(world: World, version: int) -> None:
    response = elect(world, version, ("elections", [1, 9]), ("elections-absent", [0]))
    assert response.error_code == ErrorCode.NONE
    assert results(response) == [
        ("elections", 1, 84, "Leader election not needed for topic partition."),
        ("elections", 9, 3, "No such partition as elections-9"),
        ("elections-absent", 0, 3, "No such topic as elections-absent"),
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_all_partitions(world: World, version: int) -> None:
    response = elect(world, version)
    assert results(response) == []
    assert [topic.topic for topic in response.replica_election_results] == ["elections"]


def test_an_unclean_election_where_there_is_a_leader(world: World) -> None:
    response = elect(world, 1, ("elections", [0]), election_type=1)
    assert results(response) == [("elections", 0, 84, "Leader election not needed for topic partition.")]


def test_an_unknown_type(world: World) -> None:
    response = elect(world, 1, ("elections", [0]), election_type=7)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert results(response) == [("elections", 0, 42, "Unknown election type 7")]


@pytest.mark.parametrize("election_type", [0, 7])
def test_without_time_nobody_is_elected(world: World, election_type: int) -> None:
    """Whatever else is wrong, as in Kafka 4.3.1."""
    response = elect(world, 1, ("elections", [0, 9]), election_type=election_type, timeout_ms=0)
    assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert results(response) == [("elections", index, ErrorCode.REQUEST_TIMED_OUT, None) for index in (0, 9)]


@pytest.mark.parametrize("version", [0, 1])
def test_another_broker_is_controller(world: World, version: int) -> None:
    world.broker.controller._resign()
    response = elect(world, version, ("elections", [0]))
    assert results(response) == [("elections", 0, ErrorCode.NOT_CONTROLLER, None)]
    assert response.error_code == ErrorCode.NONE, "as in Kafka 3.9: each partition says so"
