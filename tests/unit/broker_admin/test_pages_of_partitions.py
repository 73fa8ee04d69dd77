"""DescribeTopicPartitions: cursor and limit."""

from types import SimpleNamespace
from typing import Any

import barnabas.broker.api.describe_topic_partitions as handlers
import pytest
from barnabas.broker.api.describe_topic_partitions import describe_page, describe_topic_partitions
from barnabas.broker.requests import RequestContext
from barnabas.cluster.metadata_cache import BrokerMetadata, MetadataCache, PartitionMetadata
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DescribeTopicPartitionsRequest as Request
from barnabas.protocol.messages import DescribeTopicPartitionsResponse as Response
from barnabas.runtime.turns import at_once
from simulator.env import sim_env

CONTEXT = RequestContext(75, 0, 1, "test")


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Topics a (2 partitions), b (1) and c (3) on broker 1; 2 is not alive."""
    cache = MetadataCache(sim_env(1).clock)
    cache.brokers = {1: BrokerMetadata(1, ())}
    for name, count in (("c", 3), ("a", 2), ("b", 1)):
        cache.topics[name] = {index: PartitionMetadata(1, 0, [1], [1, 2], []) for index in range(count)}
    monkeypatch.setattr(handlers, "INTERNAL_TOPICS", {"c"})
    return SimpleNamespace(
        metadata_cache=cache,
        config=SimpleNamespace(max_request_partition_size_limit=4),
        env=sim_env(1),
    )


def pages(response: Response) -> list[tuple[str, list[int]]]:
    return [(topic.name or "", [p.partition_index for p in topic.partitions]) for topic in response.topics]


def cursor(response: Response) -> tuple[str, int] | None:
    return response.next_cursor and (response.next_cursor.topic_name, response.next_cursor.partition_index)


@pytest.mark.parametrize(
    ("limit", "expected", "next_page"),
    [
        (1, [("a", [0])], ("a", 1)),
        (2, [("a", [0, 1])], ("b", 0)),
        (3, [("a", [0, 1]), ("b", [0])], ("c", 0)),
        (4, [("a", [0, 1]), ("b", [0]), ("c", [0])], ("c", 1)),
        (6, [("a", [0, 1]), ("b", [0]), ("c", [0, 1, 2])], None),
    ],
)
def test_a_page_ends_at_the_limit(
    broker: Any, limit: int, expected: list[tuple[str, list[int]]], next_page: tuple[str, int] | None
) -> None:
    response = at_once(describe_page(broker, ["a", "b", "c"], cursor_topic="", cursor_partition=0, limit=limit))
    assert pages(response) == expected
    assert cursor(response) == next_page


def test_pages_together_are_everything_once(broker: Any) -> None:
    seen: list[tuple[str, int]] = []
    at: tuple[str, int] | None = ("", 0)
    while at is not None:
        response = at_once(describe_page(broker, ["a", "b", "c"], cursor_topic=at[0], cursor_partition=at[1], limit=2))
        seen += [(name, index) for name, indexes in pages(response) for index in indexes]
        at = cursor(response)
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]


def test_no_names_ask_for_all_and_the_broker_bounds_the_limit(broker: Any) -> None:
    response = describe_topic_partitions(broker, Request(response_partition_limit=100), CONTEXT)
    assert pages(response) == [("a", [0, 1]), ("b", [0]), ("c", [0])]
    assert cursor(response) == ("c", 1)
    assert [topic.is_internal for topic in response.topics] == [False, False, True]


def test_a_limit_of_nothing_is_one(broker: Any) -> None:
    request = Request(topics=[Request.TopicRequest(name="a")], response_partition_limit=0)
    assert pages(describe_topic_partitions(broker, request, CONTEXT)) == [("a", [0])]


def test_topics_that_are_not_there(broker: Any) -> None:
    request = Request(topics=[Request.TopicRequest(name=name) for name in ("x", "b", "not a name")])
    response = describe_topic_partitions(broker, request, CONTEXT)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("b", ErrorCode.NONE),
        ("not a name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize(("topic", "partition"), [("a", -1), ("b", 0)])
def test_a_cursor_must_be_of_a_topic_asked_for_and_not_negative(broker: Any, topic: str, partition: int) -> None:
    at = Request.Cursor(topic_name=topic, partition_index=partition)
    request = Request(topics=[Request.TopicRequest(name="a")], cursor=at)
    response = describe_topic_partitions(broker, request, CONTEXT)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]


def test_a_replica_that_is_not_alive_is_offline(broker: Any) -> None:
    response = at_once(describe_page(broker, ["b"], cursor_topic="", cursor_partition=0, limit=1))
    assert response.topics[0].partitions[0].offline_replicas == [2]


def test_a_cursor_in_all_topics_may_be_of_one_that_is_gone(broker: Any) -> None:
    request = Request(cursor=Request.Cursor(topic_name="aa", partition_index=3))
    assert pages(describe_topic_partitions(broker, request, CONTEXT)) == [("b", [0]), ("c", [0, 1, 2])]
