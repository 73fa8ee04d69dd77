"""Questions to transaction coordinators: who is asked what, in how many requests, and what is made of the answers."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.transactions.verification import TransactionVerification
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, UpdateMetadataRequest
from barnabas.protocol.transaction_marker import EndTransactionMarker
from barnabas.replication.partition import Partition
from barnabas.runtime.pending import Pending
from barnabas.storage.log_manager import LogManager
from simulator.env import SimEnv, sim_env

PARTITIONS = 4
NONE = ErrorCode.NONE
Errors = dict[tuple[str, int], ErrorCode]


class LedPartition:
    """A partition whose log nobody writes to: its producers are told of appends."""

    def __init__(self) -> None:
        logs = LogManager(sim_env(1), "/data", BrokerConfig.of({}), lambda topic: {})
        logs.start()
        log = logs.get_or_create("t", 0, None)
        self.producers = log.producers
        self.replica = Partition("t", 0, None, log, cast(Any, None))

    def append(self, producer_id: int, producer_epoch: int) -> None:
        self.producers.update_data(producer_id, producer_epoch, 0, 0, 0, 0, True)

    def mark(self, producer_id: int, producer_epoch: int) -> None:
        self.producers.update_marker(producer_id, producer_epoch, EndTransactionMarker(True, 0), 1, 0)


class World:
    """The questions of broker 1. Each partition of the coordinators' topic is led by the broker of `led_by`."""

    def __init__(self) -> None:
        self.env: SimEnv = sim_env(1)
        self.cache = MetadataCache(self.env.clock)
        self.config = SimpleNamespace(
            add_partitions_to_txn_retry_backoff_max_ms=100,
            add_partitions_to_txn_retry_backoff_ms=20,
            request_timeout_ms=30_000,
            transaction_partition_verification_enable=True,
        )
        self.led: dict[tuple[str, int], LedPartition] = {}
        self.requests: list[tuple[int, AddPartitionsToTxnRequest, Pending[Any]]] = []
        self.verification = TransactionVerification(
            self.env.clock, self.config, self.cache, self.leader_partition, self.ask_broker
        )
        self.lead(dict.fromkeys(range(PARTITIONS), 1))

    def lead(self, led_by: dict[int, int]) -> None:
        states = [
            UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=index, leader=broker)
            for index, broker in led_by.items()
        ]
        topic = UpdateMetadataRequest.UpdateMetadataTopicState(
            topic_name=TRANSACTIONS_TOPIC, topic_id=bytes(15) + b"1", partition_states=states
        )
        brokers = [UpdateMetadataRequest.UpdateMetadataBroker(id=broker) for broker in (1, 2)]
        self.cache.update(UpdateMetadataRequest(topic_states=[topic], live_brokers=brokers))

    def leader_partition(self, topic: str, index: int) -> Partition | ErrorCode:
        led = self.led.get((topic, index))
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if led is None else led.replica

    def ask_broker(self, broker_id: int, request: Any, version: int) -> Pending[Any]:
        assert version == 5
        self.requests.append((broker_id, request, Pending()))
        return self.requests[-1][2]

    def ask(
        self,
        transactional_id: str,
        *partitions: tuple[str, int],
        producer: tuple[int, int] = (7, 0),
        adds: bool = True,
    ) -> list[Errors]:
        """The place where the answer will be."""
        found: list[Errors] = []
        self.verification.ask(transactional_id, *producer, partitions, adds).then(found.append)
        return found

    def verify(self, *places: tuple[str, int], producer: tuple[int, int] = (7, 0), adds: bool = True) -> list[Errors]:
        found: list[Errors] = []
        answer = self.verification.verify("a", *producer, dict.fromkeys(places, 0), adds)
        if isinstance(answer, Pending):
            answer.then(found.append)
        else:
            found.append(answer)
        return found

    def advance(self, ms: float = 0.5) -> None:
        self.env.clock.loop.advance(ms / 1000)

    def answer(self, error: ErrorCode = NONE, *, position: int = -1, whole: ErrorCode = NONE) -> None:
        """Answer a request: every partition with this error."""
        _, request, pending = self.requests[position]
        response = AddPartitionsToTxnResponse
        pending.complete(
            response(
                error_code=whole,
                results_by_transaction=[
                    response.AddPartitionsToTxnResult(
                        transactional_id=transaction.transactional_id,
                        topic_results=[
                            response.AddPartitionsToTxnTopicResult(
                                name=topic.name,
                                results_by_partition=[
                                    response.AddPartitionsToTxnPartitionResult(
                                        partition_index=index, partition_error_code=error
                                    )
                                    for index in topic.partitions
                                ],
                            )
                            for topic in transaction.topics
                        ],
                    )
                    for transaction in (() if whole else request.transactions)
                ],
            )
        )

    def asked(self) -> list[tuple[int, list[str]]]:
        """Of each request: the broker, and the transactional ids."""
        return [
            (broker, [each.transactional_id for each in request.transactions]) for broker, request, _ in self.requests
        ]


@pytest.fixture
def world() -> World:
    return World()


def ids_of(wanted: Callable[[int], bool]) -> Iterable[str]:
    return (f"id-{n}" for n in range(1000) if wanted(partition_for(f"id-{n}", PARTITIONS)))


def test_questions_of_one_pass_travel_together_and_one_request_is_in_flight_to_each_coordinator(world: World) -> None:
    world.lead({0: 1, 1: 2, 2: 1, 3: 2})
    ours, others = iter(ids_of(lambda index: index in (0, 2))), iter(ids_of(lambda index: index in (1, 3)))
    first, second, third, fourth = next(ours), next(ours), next(ours), next(others)
    for transactional_id in (first, second, fourth):
        world.ask(transactional_id, ("t", 0))
    assert world.requests == [], "they are sent in the next pass of the loop"
    world.advance()
    assert world.asked() == [(1, [first, second]), (2, [fourth])]
    world.ask(third, ("t", 0))
    world.ask(second, ("t", 1))
    world.advance()
    assert len(world.requests) == 2, "broker 1 has not answered"
    world.answer(position=0)
    world.advance()
    assert world.asked()[2:] == [(1, [third, second])]


def test_questions_about_the_same_transaction_become_one(world: World) -> None:
    found = [world.ask("a", ("t", 0), ("t", 1)), world.ask("a", ("u", 0), ("t", 0))]
    world.advance()
    ((transaction,),) = [request.transactions for _, request, _ in world.requests]
    assert {topic.name: topic.partitions for topic in transaction.topics} == {"t": [0, 1], "u": [0]}
    assert (transaction.producer_id, transaction.producer_epoch, transaction.verify_only) == (7, 0, False)
    world.answer()
    assert found == [[{("t", 0): NONE, ("t", 1): NONE}], [{("u", 0): NONE, ("t", 0): NONE}]]


@pytest.mark.parametrize(
    ("second", "of_first", "of_second"),
    [
        ((7, 1), ErrorCode.INVALID_PRODUCER_EPOCH, NONE),  # the first one is fenced
        ((7, -1), NONE, ErrorCode.INVALID_PRODUCER_EPOCH),
        ((8, 0), ErrorCode.NETWORK_EXCEPTION, NONE),
    ],
)
def test_of_two_producers_of_one_id_the_newer_is_asked_for(
    world: World, second: tuple[int, int], of_first: ErrorCode, of_second: ErrorCode
) -> None:
    found = [world.ask("a", ("t", 0)), world.ask("a", ("t", 0), producer=second)]
    world.advance()
    assert world.asked() == [(1, ["a"])]
    world.answer()
    assert found == [[{("t", 0): of_first}], [{("t", 0): of_second}]]


def test_a_question_that_only_verifies_does_not_add(world: World) -> None:
    found = world.ask("a", ("t", 0), adds=False)
    world.advance()
    assert world.requests[0][1].transactions[0].verify_only
    world.answer(ErrorCode.TRANSACTION_ABORTABLE)
    assert found == [{("t", 0): ErrorCode.TRANSACTION_ABORTABLE}]


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_errors_of_partitions(world: World, told: ErrorCode, heard: ErrorCode) -> None:
    found = world.ask("a", ("t", 0))
    world.advance()
    world.answer(told)
    assert found == [{("t", 0): heard}]


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_an_error_for_the_whole_request_counts_for_every_partition(
    world: World, told: ErrorCode, heard: ErrorCode
) -> None:
    found = world.ask("a", ("t", 0), ("t", 1))
    world.advance()
    world.answer(whole=told)
    assert found == [{("t", 0): heard, ("t", 1): heard}]


def test_a_coordinator_that_is_lost_has_not_answered_and_the_next_one_is_asked(world: World) -> None:
    lost, waiting = world.ask("a", ("t", 0)), None
    world.advance()
    waiting = world.ask("a", ("t", 1))
    world.lead(dict.fromkeys(range(PARTITIONS), 2))
    moved = world.ask("a", ("t", 2))
    world.advance()
    assert world.asked() == [(1, ["a"]), (2, ["a"])], "the new coordinator is not kept waiting by the old one"
    world.requests[0][2].complete(None)
    assert lost == [{("t", 0): ErrorCode.NETWORK_EXCEPTION}]
    world.answer(position=1)
    assert moved == [{("t", 2): NONE}]
    world.advance()
    world.answer(ErrorCode.NOT_COORDINATOR)
    assert waiting == [{("t", 1): ErrorCode.NOT_COORDINATOR}]


def test_without_a_coordinator_nobody_is_asked(world: World) -> None:
    world.lead(dict.fromkeys(range(PARTITIONS), -1))
    assert world.ask("a", ("t", 0)) == [{("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    world.cache.update(UpdateMetadataRequest(type=2))
    assert world.ask("a", ("t", 0)) == [{("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    world.advance()
    assert world.requests == []


def test_who_waits_at_the_stop_is_told(world: World) -> None:
    partition = world.led["t", 0] = LedPartition()
    sent, pausing = world.ask("b", ("u", 0)), world.verify(("t", 0))
    world.advance()
    unsent = world.ask("a", ("u", 0))
    world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert sent == [{("u", 0): ErrorCode.CONCURRENT_TRANSACTIONS}]
    assert pausing == []
    world.verification.stop()
    assert unsent == [{("u", 0): ErrorCode.NETWORK_EXCEPTION}]
    assert pausing == [{("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert world.verify(("t", 0)) == [{("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    world.advance(1_000)
    assert len(world.requests) == 1
    assert not partition.producers.is_in_transaction(7, 0)


# ---- requests that write ----


def test_a_partition_in_the_transaction_is_not_asked_for_again(world: World) -> None:
    partition = world.led["t", 0] = LedPartition()
    assert world.verify(("elsewhere", 0)) == [{}], "the append says who leads it"
    found = world.verify(("t", 0))
    world.advance()
    world.answer()
    assert found == [{}]
    assert world.verify(("t", 0)) == [{}], "it is confirmed"
    partition.append(7, 0)
    assert world.verify(("t", 0)) == [{}], "its transaction is open"
    world.advance()
    assert len(world.requests) == 1
    partition.mark(7, 1)
    assert world.verify(("t", 0), producer=(7, 1)) == []
    world.advance()
    assert len(world.requests) == 2


def test_partitions_that_are_refused_keep_no_others_back(world: World) -> None:
    world.led = {("t", index): LedPartition() for index in range(2)}
    found = world.verify(("t", 0), ("t", 1), adds=False)
    world.advance()
    ((_, request, pending),) = world.requests
    world.answer(ErrorCode.TRANSACTION_ABORTABLE)
    assert found == [dict.fromkeys(world.led, ErrorCode.TRANSACTION_ABORTABLE)]
    assert pending.done
    assert not request.transactions[0].topics[1:]


def test_the_end_of_the_transaction_before_is_waited_for(world: World) -> None:
    """The marker of that end takes the first question away, so it is begun anew each time."""
    partition = world.led["t", 0] = LedPartition()
    found = world.verify(("t", 0), producer=(7, 1))
    for count, pause_ms in enumerate((1, 2, 4, 8, 16, 20), 1):
        world.advance()
        assert len(world.requests) == count
        world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        world.advance(pause_ms - 0.4)
        assert len(world.requests) == count, "it pauses"
        partition.mark(7, 1)
    world.advance()
    world.answer()
    assert found == [{}]
    assert partition.producers.confirmed_verification(7, 1) is not None


def test_it_is_waited_for_no_longer_than_the_setting_says(world: World) -> None:
    world.led["t", 0] = LedPartition()
    found = world.verify(("t", 0))
    for _ in range(20):
        world.advance(20.5)
        if not world.requests[-1][2].done:
            world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert found == [{("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS}]
    assert 5 <= len(world.requests) <= 8
    world.config.add_partitions_to_txn_retry_backoff_max_ms = 0
    found = world.verify(("t", 0))
    world.advance()
    world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert found == [{("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS}]


def test_it_is_not_waited_for_when_the_client_adds_partitions_itself(world: World) -> None:
    world.led["t", 0] = LedPartition()
    found = world.verify(("t", 0), adds=False)
    world.advance()
    world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert found == [{("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS}]


@pytest.mark.parametrize("answered_after_ms", [0.5, 5_000.0])  # a coordinator that moves takes long
@pytest.mark.parametrize("adds", [True, False])
def test_an_answer_from_before_a_marker_does_not_count(world: World, adds: bool, answered_after_ms: float) -> None:
    partition = world.led["t", 0] = LedPartition()
    found = world.verify(("t", 0), producer=(7, 1), adds=adds)
    world.advance(answered_after_ms)
    partition.mark(7, 1)
    world.answer()
    assert partition.producers.confirmed_verification(7, 1) is None
    assert found == []
    world.advance(0.1)
    assert len(world.requests) == 2, "it is asked for anew, at once"
    world.answer(ErrorCode.TRANSACTION_ABORTABLE)
    assert found == [{("t", 0): ErrorCode.TRANSACTION_ABORTABLE}]


def test_a_partition_that_is_led_elsewhere_meanwhile_is_left_to_the_append(world: World) -> None:
    partition = world.led["t", 0] = LedPartition()
    found = world.verify(("t", 0))
    world.advance()
    world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    del world.led["t", 0]
    world.advance(2)
    assert found == [{}]
    assert partition.producers.confirmed_verification(7, 0) is None


def test_producers_may_be_trusted_but_not_with_adding(world: World) -> None:
    partition = world.led["t", 0] = LedPartition()
    world.config.transaction_partition_verification_enable = False
    assert world.verify(("t", 0), adds=False) == [{}]
    assert partition.producers.confirmed_verification(7, 0) is not None
    assert world.verify(("t", 0), producer=(7, 1)) == []
    world.advance()
    assert world.asked() == [(1, ["a"])]
