"""Produce in a transaction: the partition's leader asks the transaction coordinator first (KIP-890)."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol import frames, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FindCoordinatorRequest, ProduceRequest
from barnabas.protocol.record_batch import Record
from barnabas.runtime.pending import Pending

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import add, describe, end, init, sleep

World = Any  # of conftest.py
NONE, ADDS = ErrorCode.NONE, 12


@pytest.fixture
def world(world_of_transactions: World) -> World:
    return world_of_transactions


def batch(producer: tuple[int, int], sequence: int, *, transactional: bool = True) -> bytearray:
    return record_batch.build(
        [Record(timestamp=1_700_000_000_000, value=b"v%d" % sequence)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=transactional,
    )


def request_of(
    *batches: tuple[int, bytearray], acks: int = -1, transactional_id: str = "a", topic: str = "t"
) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=index, records=records) for index, records in batches]
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=5000, topic_data=topics)


def produce(world: World, *batches: tuple[int, bytearray], version: int = ADDS, **fields: Any) -> list[int]:
    answers = world.ask(ApiKey.PRODUCE, version, request_of(*batches, **fields)).responses[0].partition_responses
    return [answer.error_code for answer in answers]


def values(world: World, index: int) -> list[bytes]:
    log = world.broker.log_manager.get("t", index)
    read = log.read(0, 1 << 20, upper_bound=log.log_end_offset, at_least_one=True).records
    return [
        record.value
        for header, data in record_batch.batches(read)
        if not header.is_control
        for record in record_batch.records(data)
    ]


class Coordinator:
    """Holds back what the broker asks itself, until the test lets it through or answers in its place."""

    def __init__(self, world: World) -> None:
        self.held: list[tuple[Callable[[], Pending[Any]], Pending[Any]]] = []
        self._verification = world.broker.transactions.verification
        self._ask = self._verification._ask_broker
        self._verification._ask_broker = self.hold

    def hold(self, broker_id: int, request: Any, version: int) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        self.held.append((lambda: self._ask(broker_id, request, version), answer))
        return answer

    def let_through(self) -> None:
        (ask, answer) = self.held.pop(0)
        ask().then(answer.complete)

    def is_lost(self) -> None:
        self.held.pop(0)[1].complete(None)


def test_a_produce_of_version_two_begins_the_transaction(world: World) -> None:
    producer = init(world, "a")[1:]
    assert produce(world, (0, batch(producer, 0)), (1, batch(producer, 0))) == [NONE, NONE]
    described = describe(world, "a")
    assert described.transaction_state == "Ongoing"
    assert [topic.partitions for topic in described.topics] == [[0, 1]]
    assert produce(world, (0, batch(producer, 1))) == [NONE]
    error, *after = end(world, "a", producer, True, version=5)
    assert (error, after) == (NONE, [producer[0], producer[1] + 1])


def test_the_next_transaction_may_begin_at_once(world: World) -> None:
    """The markers of the one before are still on their way: the broker waits for them, not the client."""
    producer = init(world, "a")[1:]

    async def run() -> list[int]:
        client = await world.connect()
        errors, epoch = [], producer[1]
        for sequence in range(50):
            records = batch((producer[0], epoch), 0)
            produced = await client.ask(ApiKey.PRODUCE, ADDS, request_of((sequence % 2, records)))
            errors.append(produced.responses[0].partition_responses[0].error_code)
            ended = await client.ask(ApiKey.END_TXN, 5, end_request((producer[0], epoch)))
            errors.append(ended.error_code)
            epoch = ended.producer_epoch
        client.transport.close()
        return errors

    assert world.env.run(run()) == [NONE] * 100
    sleep(world, 50)
    assert describe(world, "a").transaction_state == "CompleteCommit"


def end_request(producer: tuple[int, int]) -> Any:
    from barnabas.protocol.messages import EndTxnRequest

    return EndTxnRequest(transactional_id="a", producer_id=producer[0], producer_epoch=producer[1], committed=True)


@pytest.mark.parametrize(
    ("version", "error"), [(3, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_older_clients_must_have_added_the_partition(world: World, version: int, error: ErrorCode) -> None:
    producer = init(world, "a")[1:]
    assert produce(world, (0, batch(producer, 0)), version=version) == [error]
    assert add(world, "a", producer, [("t", 0)]) == [NONE]
    both = [(0, batch(producer, 0)), (1, batch(producer, 0))]
    assert produce(world, *both, version=version) == [NONE, error]
    assert (values(world, 0), values(world, 1)) == ([b"v0"], [])


@pytest.mark.parametrize(
    ("version", "error"),
    [(11, ErrorCode.NOT_ENOUGH_REPLICAS), (ADDS, ErrorCode.CONCURRENT_TRANSACTIONS)],
)
def test_a_transaction_that_is_being_ended_for_long(world: World, version: int, error: ErrorCode) -> None:
    producer = init(world, "a")[1:]
    assert add(world, "a", producer, [("t", 1)]) == [NONE]
    markers = world.broker.transactions.coordinator.markers
    markers._send_to = lambda broker_id, sendings: None  # no marker arrives
    assert end(world, "a", producer, True)[0] == NONE
    began_ms = world.env.clock.monotonic_ms()
    assert produce(world, (0, batch(producer, 0)), version=version) == [error]
    waited_ms = world.env.clock.monotonic_ms() - began_ms
    assert (waited_ms >= 100) == (version == ADDS)


@pytest.mark.parametrize("version", [11, ADDS])
def test_who_is_refused_by_the_coordinator(world: World, version: int) -> None:
    producer = init(world, "a")[1:]
    zombie, producer = producer, init(world, "a")[1:]
    assert produce(world, (0, batch(zombie, 0)), version=version) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    stranger = (producer[0] + 1, 0)
    assert produce(world, (0, batch(stranger, 0)), version=version) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    unknown = produce(world, (0, batch(stranger, 0)), version=version, transactional_id="b")
    assert unknown == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert values(world, 0) == []


def test_a_lost_coordinator_and_a_lost_answer(world: World) -> None:
    producer = init(world, "a")[1:]
    coordinator = Coordinator(world)
    for version in (11, ADDS):

        async def run(version: int = version) -> Any:
            client = await world.connect()
            client.send(
                ApiKey.PRODUCE,
                version,
                request_of((0, batch(producer, 0)), (1, batch((-1, -1), -1, transactional=False))),
            )
            await world.env.clock.sleep(5)
            coordinator.is_lost()
            answer = frames.decode_response(ApiKey.PRODUCE, version, memoryview(await client.answer()))[1]
            client.transport.close()
            return answer.responses[0].partition_responses

        refused, taken = world.env.run(run())
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (refused.base_offset, refused.log_append_time_ms, refused.log_start_offset) == (-1, -1, -1)
        assert "NETWORK_EXCEPTION" in refused.error_message
        assert taken.error_code == NONE, "what is of no transaction is written all the same"
    assert (values(world, 0), len(values(world, 1))) == ([], 2)


def test_batches_behind_one_that_is_asked_for_keep_their_order(world: World) -> None:
    producer = init(world, "a")[1:]
    coordinator = Coordinator(world)

    async def run() -> list[int]:
        client = await world.connect()
        for sequence in range(4):
            client.send(ApiKey.PRODUCE, ADDS, request_of((0, batch(producer, sequence))))
        await world.env.clock.sleep(5)
        assert len(coordinator.held) == 1
        assert values(world, 0) == []
        coordinator.let_through()
        errors = []
        for _ in range(4):
            answer = frames.decode_response(ApiKey.PRODUCE, ADDS, memoryview(await client.answer()))[1]
            errors.append(answer.responses[0].partition_responses[0].error_code)
        client.transport.close()
        return errors

    assert world.env.run(run()) == [NONE] * 4
    assert values(world, 0) == [b"v%d" % sequence for sequence in range(4)]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_requests_whose_sender_has_gone_are_handled(world: World, acks: int) -> None:
    producer = init(world, "a")[1:]
    coordinator = Coordinator(world)

    async def run() -> None:
        client = await world.connect()
        for sequence in range(3):
            client.send(ApiKey.PRODUCE, ADDS, request_of((0, batch(producer, sequence)), acks=acks))
        await world.env.clock.sleep(5)
        client.transport.abort()
        await world.env.clock.sleep(5)
        other = await world.connect()  # the memory that requests are read into is used again
        await other.ask(ApiKey.PRODUCE, 11, request_of((1, batch((-1, -1), -1, transactional=False))))
        other.transport.close()
        coordinator.let_through()
        await world.env.clock.sleep(5)

    world.env.run(run())
    assert values(world, 0) == [b"v0", b"v1", b"v2"]
    assert not world.broker.server.connections


def test_without_an_answer_to_give_a_refusal_closes_the_connection(world: World) -> None:
    producer = init(world, "a")[1:]

    async def run(version: int) -> bytes | None:
        client = await world.connect()
        client.send(ApiKey.PRODUCE, version, request_of((0, batch(producer, 0)), acks=0))
        client.send(ApiKey.PRODUCE, version, request_of((0, batch(producer, 1)), acks=1))
        answer = await client.answer()
        client.transport.close()
        return answer

    assert world.env.run(run(11)) is None
    assert world.env.run(run(ADDS)) is not None
    assert values(world, 0) == [b"v0", b"v1"]


def test_the_broker_stops_while_a_question_is_out(make_world: type[World]) -> None:
    world = make_world()
    world.create_topic("t", 2)
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))
    producer = init(world, "a")[1:]
    coordinator = Coordinator(world)

    async def run() -> bytes | None:
        first, second = await world.connect(), await world.connect()
        first.send(ApiKey.PRODUCE, ADDS, request_of((0, batch(producer, 0))))
        await world.env.clock.sleep(5)
        second.send(ApiKey.PRODUCE, ADDS, request_of((1, batch(producer, 0))))
        await world.env.clock.sleep(5)
        assert len(coordinator.held) == 1
        await world.broker.stop()
        return await second.answer()

    answer = world.env.run(run())
    assert answer is not None
    response = frames.decode_response(ApiKey.PRODUCE, ADDS, memoryview(answer))[1]
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.broker.request_gate.handler_failures == 0
    assert world.escaped == []


def test_a_leader_that_moves_meanwhile_appends_nothing(world: World) -> None:
    producer = init(world, "a")[1:]
    coordinator = Coordinator(world)
    partition = world.broker.replica_manager.leader_partition("t", 0)

    async def run() -> Any:
        client = await world.connect()
        client.send(ApiKey.PRODUCE, ADDS, request_of((0, batch(producer, 0))))
        await world.env.clock.sleep(5)
        partition.make_follower(leader_id=-1, leader_epoch=5, partition_epoch=5, controller_epoch=1, replicas=[0])
        coordinator.let_through()
        answer = frames.decode_response(ApiKey.PRODUCE, ADDS, memoryview(await client.answer()))[1]
        client.transport.close()
        return answer.responses[0].partition_responses[0].error_code

    assert world.env.run(run()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert values(world, 0) == []
    assert describe(world, "a").transaction_state == "Ongoing", "the coordinator will write a marker there"


def test_many_transactions_are_added_in_one_request_and_written_together(world: World) -> None:
    ids = [f"id-{n}" for n in range(20)]
    producers = {each: init(world, each)[1:] for each in ids}
    coordinator = Coordinator(world)

    async def run() -> list[int]:
        clients = [await world.connect() for _ in ids]
        await world.env.clock.sleep(5)
        for each, client in zip(ids, clients, strict=True):
            client.send(ApiKey.PRODUCE, ADDS, request_of((0, batch(producers[each], 0)), transactional_id=each))
        await world.env.clock.sleep(5)
        while coordinator.held:
            coordinator.let_through()
            await world.env.clock.sleep(5)
        answers = [
            frames.decode_response(ApiKey.PRODUCE, ADDS, memoryview(await client.answer()))[1] for client in clients
        ]
        for client in clients:
            client.transport.close()
        return [answer.responses[0].partition_responses[0].error_code for answer in answers]

    assert world.env.run(run()) == [NONE] * 20
    assert all(describe(world, each).transaction_state == "Ongoing" for each in ids)
