"""Requests of which some rows are refused: every row is looked at once, however many there are."""

from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker import api as _handlers  # noqa: F401  (fills the table)
from barnabas.broker.access import groups, topics, transactions
from barnabas.broker.requests import TABLE, Access
from barnabas.cluster.security.acls import AclOperation, ResourceType
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.turns import at_once

ROWS = 200


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def names() -> list[Name]:
    """Allowed ones and refused ones in turns."""
    return [Name(f"{'open' if number % 2 else 'secret'}-{number}") for number in range(ROWS)]


def offset_delete() -> Any:
    row = messages.OffsetDeleteRequest.OffsetDeleteRequestTopic
    return messages.OffsetDeleteRequest(group_id="open", topics=[row(name=name) for name in names()])


def offset_fetch() -> Any:
    row = messages.OffsetFetchRequest.OffsetFetchRequestTopic
    return messages.OffsetFetchRequest(group_id="open", topics=[row(name=name) for name in names()])


def add_partitions() -> Any:
    row = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return messages.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="open",
        v3_and_below_topics=[row(name=name, partitions=[0]) for name in names()],
    )


def describe_topics() -> Any:
    row = messages.DescribeTopicPartitionsRequest.TopicRequest
    return messages.DescribeTopicPartitionsRequest(topics=[row(name=name) for name in names()])


def asked_of(key: ApiKey, version: int, request: Any, handled: list[Any]) -> Any:
    """Whose names begin with "open" is allowed. What is handled is noted, and answered with nothing."""

    def may(operation: AclOperation, type: ResourceType, name: str) -> bool:
        return name.startswith("open")

    def handle(part: Any) -> Any:
        handled.append(part)
        return messages.response_class(key)()

    return SimpleNamespace(
        request=request,
        may=may,
        handle=handle,
        refuse=lambda error, part: TABLE[key].failure_response(part, error),
        rights=SimpleNamespace(may=may),
        context=SimpleNamespace(api_version=version, is_long=False),
        services=SimpleNamespace(
            env=SimpleNamespace(turns=SimpleNamespace(run=at_once)),
            metadata_cache=SimpleNamespace(partition=lambda topic, index: "there"),
        ),
    )


@pytest.mark.parametrize(
    ("key", "version", "access", "request_of"),
    [
        (ApiKey.OFFSET_DELETE, 0, groups.offset_delete, offset_delete),
        (ApiKey.OFFSET_FETCH, 5, groups.offset_fetch, offset_fetch),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 3, transactions.add_partitions_to_txn, add_partitions),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics.describe_topic_partitions, describe_topics),
    ],
)
def test_no_row_is_searched_among_the_refused(key: ApiKey, version: int, access: Access, request_of: Any) -> None:
    handled: list[Any] = []
    asked = asked_of(key, version, request_of(), handled)
    Name.compared = 0
    answer = access(asked)
    assert Name.compared <= ROWS
    if key is ApiKey.ADD_PARTITIONS_TO_TXN:  # all or nothing
        rows = answer.results_by_topic_v3_and_below
        codes = {row.name: row.results_by_partition[0].partition_error_code for row in rows}
        assert handled == []
        assert set(codes) == set(map(str, names()))
        for name, code in codes.items():
            is_open = name.startswith("open")
            assert code == (ErrorCode.OPERATION_NOT_ATTEMPTED if is_open else ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return
    (part,) = handled
    assert [row.name for row in part.topics] == [name for name in names() if name.startswith("open")]
    assert [row.name for row in answer.topics] == [name for name in names() if not name.startswith("open")]


def test_a_group_that_is_asked_for_many_times_hears_of_its_refused_topics_once() -> None:
    request = messages.OffsetFetchRequest
    rows = [
        request.OffsetFetchRequestGroup(
            group_id="open", topics=[request.OffsetFetchRequestTopics(name=f"secret-{number}", partition_indexes=[0])]
        )
        for number in range(ROWS)
    ]
    asked = asked_of(ApiKey.OFFSET_FETCH, 8, request(groups=rows), [])
    response = messages.OffsetFetchResponse
    asked.handle = lambda part: response(
        groups=[response.OffsetFetchResponseGroup(group_id=each.group_id) for each in part.groups]
    )
    answer = groups.offset_fetch(asked)
    assert len(answer.groups) == ROWS
    assert sum(len(group.topics) for group in answer.groups) == ROWS
