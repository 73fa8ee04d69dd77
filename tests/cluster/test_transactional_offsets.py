"""Offsets in transactions on three broker processes: either coordinator dies between any two steps of a transaction."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)

from cluster import NotYetError

MakeCluster = Callable[..., Any]
SETTINGS = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
}
GROUP, TRANSACTION = 0, 1
OLD, NEW = 3, 5  # versions of TxnOffsetCommit


def coordinator(cluster: Any, key: str, kind: int) -> int:
    def find() -> int:
        with cluster.client(cluster.any_broker()) as client:
            answer = client.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=key, key_type=kind))
        if answer.error_code:
            raise NotYetError(str(answer))
        return int(answer.node_id)

    return int(cluster.until(find))


def ask(cluster: Any, kind: int, api: ApiKey, version: int, request: Any, error_of: Callable[[Any], int]) -> Any:
    """The answer of the coordinator, when it is no error."""
    key = "g" if kind == GROUP else "a"

    def attempt() -> Any:
        with cluster.client(coordinator(cluster, key, kind)) as client:
            answer = client.ask(api, version, request)
        if error_of(answer):
            raise NotYetError(str(answer))
        return answer

    return cluster.until(attempt)


def error_of(answer: Any) -> int:
    return int(answer.error_code)


def init(cluster: Any) -> tuple[int, int]:
    request = InitProducerIdRequest(
        transactional_id="a", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    given = ask(cluster, TRANSACTION, ApiKey.INIT_PRODUCER_ID, 4, request, error_of)
    return given.producer_id, given.producer_epoch


def commit(cluster: Any, producer: tuple[int, int], offset: int, version: int) -> None:
    if version == OLD:
        added = AddOffsetsToTxnRequest(
            transactional_id="a", producer_id=producer[0], producer_epoch=producer[1], group_id="g"
        )
        ask(cluster, TRANSACTION, ApiKey.ADD_OFFSETS_TO_TXN, 3, added, error_of)
    make = TxnOffsetCommitRequest
    rows = [
        make.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index in range(2)
    ]
    request = make(
        transactional_id="a",
        group_id="g",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[make.TxnOffsetCommitRequestTopic(name="t", partitions=rows)],
    )
    ask(cluster, GROUP, ApiKey.TXN_OFFSET_COMMIT, version, request, lambda answer: worst(answer.topics))


def worst(topics: Any) -> int:
    return max(row.error_code for topic in topics for row in topic.partitions)


def end(cluster: Any, producer: tuple[int, int], committed: bool, version: int) -> tuple[int, int]:
    request = EndTxnRequest(
        transactional_id="a", producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )
    answer = ask(cluster, TRANSACTION, ApiKey.END_TXN, 5 if version == NEW else 4, request, error_of)
    return (answer.producer_id, answer.producer_epoch) if version == NEW else producer


def fetched(cluster: Any, wanted: int) -> None:
    """The coordinator has this stable offset of both partitions; or this error for them."""
    make = OffsetFetchRequest
    topics = [make.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    request = make(group_id="g", topics=topics, require_stable=True)

    def differs(answer: Any) -> int:
        if answer.error_code:
            return int(answer.error_code)
        rows = [row.error_code or row.committed_offset for topic in answer.topics for row in topic.partitions]
        return int(rows != [wanted, wanted])

    ask(cluster, GROUP, ApiKey.OFFSET_FETCH, 7, request, differs)


@pytest.mark.takes_turns("make_cluster", "kind", "version")
@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("kind", [GROUP, TRANSACTION], ids=["group", "transaction"])
def test_a_coordinator_dies_between_the_steps(make_cluster: MakeCluster, kind: int, version: int) -> None:
    cluster = make_cluster(**SETTINGS)
    cluster.create_topic("t", 2)
    producer = init(cluster)
    coordinator(cluster, "g", GROUP)

    def kill() -> int:
        victim = coordinator(cluster, "g" if kind == GROUP else "a", kind)
        cluster.end_one(victim, signal.SIGKILL)
        return victim

    def heal(victim: int) -> None:
        cluster.start(victim)
        for topic in ("__consumer_offsets", "__transaction_state"):
            for index in range(3):
                cluster.in_sync(topic, index, set(cluster.ports))

    commit(cluster, producer, 1, version)
    victim = kill()  # between the offsets and the end
    fetched(cluster, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    producer = end(cluster, producer, True, version)
    fetched(cluster, 1)
    heal(victim)
    commit(cluster, producer, 2, version)
    producer = end(cluster, producer, True, version)
    victim = kill()  # while the markers are on their way
    fetched(cluster, 2)
    heal(victim)
    commit(cluster, producer, 3, version)
    producer = end(cluster, producer, False, version)
    victim = kill()
    fetched(cluster, 2)
    commit(cluster, producer, 4, version)  # after the death, with two brokers
    fetched(cluster, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    end(cluster, producer, True, version)
    fetched(cluster, 4)
