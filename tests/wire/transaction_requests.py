"""Requests to the transaction coordinator, and the parts of the answers that tests look at."""

from typing import Any

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from barnabas.runtime.grouped import grouped
from simulator.coordination import SimCoordination, SimTree
from simulator.env import sim_env

World = Any  # of conftest.py


def sleep(world: World, ms: float) -> None:
    world.env.run(world.env.clock.sleep(ms))


def init(
    world: World,
    transactional_id: str,
    version: int = 5,
    expected: tuple[int, int] = (-1, -1),
    timeout_ms: int = 60_000,
) -> tuple[int, int, int]:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=expected[0],
        producer_epoch=expected[1],
    )
    answer = world.ask(ApiKey.INIT_PRODUCER_ID, version, request)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def add(
    world: World,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: list[tuple[str, int]],
    version: int = 3,
    verify_only: bool = False,
) -> list[int]:
    request = AddPartitionsToTxnRequest
    by_topic = grouped(partitions)
    topics = [request.AddPartitionsToTxnTopic(name=topic, partitions=rows) for topic, rows in by_topic.items()]
    if version < 4:
        asked = request(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=topics,
        )
        results = world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, asked).results_by_topic_v3_and_below
    else:
        transaction = request.AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            verify_only=verify_only,
            topics=topics,
        )
        answer = world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request(transactions=[transaction]))
        results = answer.results_by_transaction[0].topic_results
    return [row.partition_error_code for topic in results for row in topic.results_by_partition]


def end(
    world: World, transactional_id: str, producer: tuple[int, int], committed: bool, version: int = 4
) -> tuple[int, int, int]:
    request = EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )
    answer = world.ask(ApiKey.END_TXN, version, request)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def describe(world: World, transactional_id: str) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return world.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states[0]


def listed(world: World, **filters: Any) -> list[str]:
    answer = world.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(**filters))
    assert answer.error_code == ErrorCode.NONE
    return sorted(row.transactional_id for row in answer.transaction_states)


class Lasting:
    """A broker whose tree outlives it."""

    def __init__(self, make_world: type[Any]) -> None:
        self._make_world = make_world
        self._settings = {
            "transaction.state.log.num.partitions": "2",
            "transactional.id.expiration.ms": "120000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "60000",
            "transaction.max.timeout.ms": "600000",
        }
        self._env = sim_env(7)
        self._tree = SimTree(self._env.clock)
        self.world = self._start()
        self.world.create_topic("t", 2)
        self.world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))

    def restart(self) -> World:
        """The same disk and the same tree, another process."""
        self.world.env.run(self.world.broker.stop())
        self.world = self._start()
        sleep(self.world, 100)
        return self.world

    def _start(self) -> World:
        return self._make_world(self._env, SimCoordination(self._env.clock, self._tree), **self._settings)
