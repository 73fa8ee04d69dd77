"""The client from broker to broker: order, loss, time-outs, answers that cannot be read, and answers without a copy."""

import asyncio
import os
import struct
from collections.abc import Callable
from typing import Any

import pytest
from barnabas.cluster.broker_client import ANSWER_BYTES_MAX, START_BYTES, BrokerClient, BrokerClients
from barnabas.cluster.metadata_cache import Endpoint, MetadataCache
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    UpdateMetadataRequest,
)
from barnabas.runtime.env import real
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import ended
from other_broker import OtherBroker
from simulator.env import SimEnv, sim_env

ENDPOINT = Endpoint("PLAINTEXT", "b2", 9092)
FETCH_VERSION = 12


class World:
    """A client and the broker it speaks to, on the simulated network."""

    def __init__(self) -> None:
        self.env: SimEnv = sim_env(3)
        self.connections: list[OtherBroker] = []
        self.client = BrokerClient(self.env, ENDPOINT, "broker-1-test", 30_000)
        self.listener = self.env.run(self.listening())
        self.answers: dict[str, Any] = {}

    async def listening(self) -> Any:
        listener = await self.env.network.listen("b2", 9092, lambda: OtherBroker(self.connections), 10)
        await listener.accept()
        return listener

    def ask(self, name: str) -> Pending[Any]:
        """Send a request; its answer, or None, will be in `answers`."""

        async def send() -> Pending[Any]:
            return self.client.send(HeartbeatRequest(group_id=name), 4)

        pending = self.env.run(send())
        pending.then(lambda answer: self.answers.__setitem__(name, answer))
        return pending

    def advance(self, ms: float = 1) -> None:
        self.env.clock.loop.advance(ms / 1000)


@pytest.fixture
def world() -> World:
    return World()


def heartbeat(throttle_time_ms: int) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time_ms=throttle_time_ms)


def test_requests_are_pipelined_and_answered_in_order(world: World) -> None:
    world.ask("a")
    world.ask("b")
    world.advance()
    (broker,) = world.connections
    assert [request.group_id for _, request in broker.requests] == ["a", "b"]
    assert {header.client_id for header, _ in broker.requests} == {"broker-1-test"}
    broker.answer(0, heartbeat(1))
    broker.answer(1, heartbeat(2))
    world.advance()
    assert world.answers == {"a": heartbeat(1), "b": heartbeat(2)}


@pytest.mark.parametrize("size", [1, 3, 100])
def test_answers_may_come_in_pieces(world: World, size: int) -> None:
    world.env.network.fragment = lambda data: [data[at : at + size] for at in range(0, len(data), size)]
    for name in "abc":
        world.ask(name)
    world.advance()
    for position in range(3):
        world.connections[0].answer(position, heartbeat(position))
    world.advance()
    assert world.answers == {"a": heartbeat(0), "b": heartbeat(1), "c": heartbeat(2)}


def test_a_broker_that_is_not_known_as_one_says_so_and_what_to_do(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """super.users of the other one lacks it: nothing would be replicated, and nobody would hear of it."""
    world.client = BrokerClient(world.env, ENDPOINT, "broker-1-fetcher", 30_000, BrokerConfig.of({}))
    for name in "abc":
        world.ask(name)
    world.advance()
    for position in range(3):
        answer = HeartbeatResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        world.connections[0].answer(position, answer)
    world.advance()
    assert [answer.error_code for answer in world.answers.values()] == [31, 31, 31]
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("b2:9092 (broker-1-fetcher) refuses Heartbeat (CLUSTER_AUTHORIZATION_FAILED): ")
    assert "super.users" in line


def test_nothing_is_connected_before_the_first_request(world: World) -> None:
    world.advance()
    assert world.connections == []


def test_a_lost_connection_answers_none_to_all_and_the_next_request_connects_again(world: World) -> None:
    world.ask("a")
    world.ask("b")
    world.advance()
    world.connections[0].transport.abort()
    world.advance()
    assert world.answers == {"a": None, "b": None}
    world.ask("c")
    world.advance()
    assert len(world.connections) == 2
    world.connections[1].answer(0, heartbeat(0))
    world.advance()
    assert world.answers["c"] == heartbeat(0)


def test_a_refused_connection_answers_none(world: World) -> None:
    world.listener.close()
    world.ask("a")
    world.advance()
    assert world.answers == {"a": None}
    world.env.run(world.listening())
    world.ask("b")
    world.advance()
    world.connections[0].answer(0, heartbeat(0))
    world.advance()
    assert world.answers["b"] == heartbeat(0)


def test_who_gets_none_may_send_again_at_once(world: World) -> None:
    async def send() -> Pending[Any]:
        return world.client.send(HeartbeatRequest(group_id="first"), 4)

    again: list[Pending[Any]] = []
    world.env.run(send()).then(lambda answer: again.append(world.client.send(HeartbeatRequest(group_id="second"), 4)))
    world.advance()
    world.connections[0].transport.abort()
    world.advance()
    assert [request.group_id for _, request in world.connections[1].requests] == ["second"]
    assert not again[0].done


def test_no_answer_in_time_closes_the_connection(world: World) -> None:
    world.ask("a")
    world.advance(20_000)
    world.ask("b")
    world.advance(9_000)
    assert world.answers == {}
    world.advance(2_000)
    assert world.answers == {"a": None, "b": None}
    assert world.connections[0].is_lost


def test_the_time_of_a_request_counts_from_its_own_sending(world: World) -> None:
    world.ask("a")
    world.advance(20_000)
    world.ask("b")
    world.advance()
    world.connections[0].answer(0, heartbeat(0))
    world.advance(29_000)
    assert world.answers == {"a": heartbeat(0)}
    world.advance(2_000)
    assert world.answers["b"] is None


def test_time_that_passes_without_requests_does_not_count(world: World) -> None:
    world.ask("a")
    world.advance()
    world.connections[0].answer(0, heartbeat(0))
    world.advance(100_000)
    world.ask("b")
    world.advance(29_000)
    world.connections[0].answer(1, heartbeat(1))
    world.advance()
    assert world.answers["b"] == heartbeat(1)
    assert len(world.connections) == 1


def test_a_cut_network_answers_none_in_time(world: World) -> None:
    world.env.network.cut()
    world.client.request_timeout_ms = 1_000
    world.ask("a")
    world.advance(1_001)
    assert world.answers == {"a": None}
    world.env.network.heal()
    world.ask("b")
    world.advance()
    assert [request.group_id for _, request in world.connections[0].requests] == ["b"]


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">ii", 4, 77),  # of another request
        struct.pack(">ii", -5, 0),
        struct.pack(">i", ANSWER_BYTES_MAX + 1),
        struct.pack(">ihb", 3, 0, 0),  # too short for a correlation id
        struct.pack(">iib", 5, 0, 0),  # no body
    ],
)
def test_an_answer_that_cannot_be_read_closes_the_connection(world: World, answer: bytes) -> None:
    world.ask("a")
    world.advance()
    world.connections[0].transport.write(answer)
    world.advance()
    assert world.answers == {"a": None}
    assert world.connections[0].is_lost


def test_an_answer_that_nobody_asked_for_closes_the_connection(world: World) -> None:
    world.ask("a")
    world.advance()
    world.connections[0].answer(0, heartbeat(0))
    world.connections[0].answer(0, heartbeat(0))
    world.advance()
    assert world.answers == {"a": heartbeat(0)}
    assert world.connections[0].is_lost


def test_close_answers_none_now_and_later(world: World) -> None:
    world.ask("a")
    world.advance()
    world.client.close()
    world.ask("b")
    world.advance()
    assert world.answers == {"a": None, "b": None}
    assert world.connections[0].is_lost
    assert len(world.connections) == 1


def test_close_while_it_connects(world: World) -> None:
    world.env.network.latency_ms = 5
    world.ask("a")
    world.advance()
    world.client.close()
    world.advance(50)
    assert world.answers == {"a": None}
    assert all(connection.is_lost for connection in world.connections)


def test_a_long_request_is_encoded_in_turns_and_keeps_its_place(world: World) -> None:
    topic = UpdateMetadataRequest.UpdateMetadataTopicState(
        topic_name="t",
        partition_states=[
            UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=index) for index in range(2_000)
        ],
    )
    long = UpdateMetadataRequest(topic_states=[topic])
    passes = 0

    def count() -> None:
        nonlocal passes
        passes += 1

    async def send() -> None:
        world.client.send(HeartbeatRequest(group_id="first"), 4)
        world.client.send(long, 8)
        world.client.send(HeartbeatRequest(group_id="last"), 4)

    world.env.clock.loop.after_pass = count
    world.env.run(send())
    world.advance()
    broker = world.connections[0]
    assert [header.api_key for header, _ in broker.requests] == [12, 6, 12]
    assert broker.requests[1][1] == long
    assert passes > 10  # 2,000 pieces were not encoded in one pass


def fetch_answer(records: bytes) -> FetchResponse:
    data = FetchResponse.PartitionData(partition_index=0, records=records)
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])])


@pytest.mark.parametrize("size", [10, START_BYTES, 3_000_000])
def test_records_of_an_answer_are_a_view_of_one_buffer(world: World, size: int) -> None:
    records = os.urandom(size)
    world.env.network.fragment = lambda data: [data[at : at + 50_001] for at in range(0, len(data), 50_001)]

    async def send() -> Pending[Any]:
        return world.client.send(FetchRequest(), FETCH_VERSION)

    pending = world.env.run(send())
    world.advance()
    world.connections[0].answer(0, fetch_answer(records))
    world.advance()
    found = pending.take().responses[0].partitions[0].records
    assert isinstance(found, memoryview)
    assert found == records


# ---------------------------------------------------------------------- the pool


def update(brokers: dict[int, tuple[str, int]]) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        live_brokers=[
            UpdateMetadataRequest.UpdateMetadataBroker(
                id=broker_id,
                endpoints=[
                    UpdateMetadataRequest.UpdateMetadataEndpoint(host="outside", port=1, listener="OUTSIDE"),
                    UpdateMetadataRequest.UpdateMetadataEndpoint(host=host, port=port, listener="INSIDE"),
                ],
            )
            for broker_id, (host, port) in brokers.items()
        ]
    )


def test_the_pool_keeps_one_client_for_each_purpose_until_the_address_changes(world: World) -> None:
    config = BrokerConfig.of(
        {
            "node.id": "1",
            "listeners": "OUTSIDE://:9092,INSIDE://:9093",
            "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
            "inter.broker.listener.name": "inside",
        }
    )
    cache = MetadataCache(world.env.clock)
    clients = BrokerClients(world.env, config, cache)
    assert clients.to(2, "fetcher") is None
    cache.update(update({2: ("b2", 9092)}))
    fetcher = clients.to(2, "fetcher", 7_000)
    assert fetcher is not None
    assert (fetcher.endpoint.host, fetcher.client_id) == ("b2", "broker-1-fetcher")
    assert fetcher.request_timeout_ms == 7_000
    assert clients.to(2, "fetcher") is fetcher
    assert clients.to(2, "offsets") is not fetcher
    cache.update(update({2: ("b2", 9095)}))
    renewed = clients.to(2, "fetcher")
    assert renewed is not None
    assert renewed is not fetcher
    assert renewed.endpoint.port == 9095
    assert fetcher.send(HeartbeatRequest(), 4).take() is None  # closed
    cache.update(update({3: ("b3", 1)}))
    assert clients.to(2, "fetcher") is None
    assert renewed.send(HeartbeatRequest(), 4).take() is None  # who waits for a broker that is gone waits no longer
    cache.update(update({2: ("b2", 9095)}))
    clients.close()
    assert clients.to(2, "fetcher") is None


# ---------------------------------------------------------------------- real sockets

uvloop = pytest.importorskip("uvloop")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_on_real_sockets(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    records = os.urandom(5_000_000)

    async def scene(env: Env) -> None:
        connections: list[OtherBroker] = []
        listener = await env.network.listen("127.0.0.1", 0, lambda: OtherBroker(connections), 10)
        await listener.accept()
        client = BrokerClient(env, Endpoint("PLAINTEXT", "127.0.0.1", listener.port), "me", 10_000)
        first = client.send(FetchRequest(), FETCH_VERSION)
        second = client.send(HeartbeatRequest(), 4)
        while not connections or len(connections[0].requests) < 2:
            await asyncio.sleep(0.001)
        connections[0].answer(0, fetch_answer(records))
        connections[0].answer(1, heartbeat(5))
        assert (await ended(first)).responses[0].partitions[0].records == records
        assert await ended(second) == heartbeat(5)
        third = client.send(HeartbeatRequest(), 4)
        while len(connections[0].requests) < 3:
            await asyncio.sleep(0.001)
        connections[0].transport.abort()
        assert await ended(third) is None
        listener.close()
        assert await ended(client.send(HeartbeatRequest(), 4)) is None

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene(real()))
