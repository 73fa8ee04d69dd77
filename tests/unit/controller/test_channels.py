"""What the channels to brokers promise: order, one in flight, tries until answered, and no answer that is too late."""

from typing import Any

import pytest
from barnabas.cluster.metadata_cache import Endpoint
from barnabas.cluster.registration import LiveBroker
from barnabas.config.broker import BrokerConfig
from barnabas.controller.channels import BrokerChannels, _Channel
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from barnabas.runtime.pending import Pending
from other_broker import OtherBroker
from simulator.env import SimEnv, sim_env

YES = LeaderAndIsrResponse()


class Here:
    """The replica manager of this process."""

    node_id = 1

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def take(self, request: Any) -> Any:
        self.requests.append(request)
        return YES

    leader_and_isr = update_metadata = stop_replica = take


class Broken:
    """A replica manager that has a bug."""

    node_id = 1

    def fail(self, request: object) -> Any:
        raise ValueError("a bug")

    leader_and_isr = update_metadata = stop_replica = fail


class World:
    """A controller on broker 1, and broker 2."""

    def __init__(self, receiver: Any = None) -> None:
        self.env: SimEnv = sim_env(5)
        self.config = BrokerConfig.of({"node.id": "1"})
        self.receiver = receiver or Here()
        self.channels = BrokerChannels(self.env, self.config, self.receiver)
        self.connections: list[OtherBroker] = []
        self.answers: list[tuple[int, Any]] = []  # controller epoch of the request, answer
        self.listener = self.env.run(self.listening())
        self.live(epoch=7)

    async def listening(self, port: int = 9092) -> Any:
        listener = await self.env.network.listen("b2", port, lambda: OtherBroker(self.connections), 10)
        await listener.accept()
        return listener

    def live(self, epoch: int, port: int = 9092) -> None:
        """Broker 1 lives, and broker 2 with that epoch (0: it does not)."""
        brokers = {1: LiveBroker(1, 3, (Endpoint("PLAINTEXT", "b1", 9092),))}
        if epoch:
            brokers[2] = LiveBroker(2, epoch, (Endpoint("PLAINTEXT", "b2", port),))
        self.inside(lambda: self.channels.set_live_brokers(brokers))

    def inside(self, call: Any) -> None:
        async def run() -> None:
            call()

        self.env.run(run())

    def send(self, number: int, broker_id: int = 2, request: Any = None) -> None:
        request = request or LeaderAndIsrRequest(controller_epoch=number)
        self.inside(
            lambda: self.channels.send(broker_id, request, lambda answer: self.answers.append((number, answer)))
        )

    def advance(self, ms: float = 1) -> None:
        self.env.clock.loop.advance(ms / 1000)

    def told(self, connection: int = 0) -> list[int]:
        return [request.controller_epoch for _, request in self.connections[connection].requests]


@pytest.fixture
def world() -> World:
    return World()


def test_requests_go_one_by_one_in_order_in_the_versions_of_kafka_3_9(world: World) -> None:
    world.send(1)
    world.send(2, request=UpdateMetadataRequest(controller_epoch=2))
    world.send(3, request=StopReplicaRequest(controller_epoch=3))
    world.advance(1_000)
    (broker,) = world.connections
    assert world.told() == [1]
    broker.answer(0, YES)
    world.advance()
    assert world.told() == [1, 2]
    broker.answer(1, UpdateMetadataResponse())
    world.advance()
    broker.answer(2, StopReplicaResponse())
    world.advance()
    assert [(header.api_key, header.api_version) for header, _ in broker.requests] == [(4, 7), (6, 8), (5, 4)]
    assert world.answers == [(1, YES), (2, UpdateMetadataResponse()), (3, StopReplicaResponse())]


def test_a_request_is_sent_again_until_it_is_answered(world: World) -> None:
    world.listener.close()
    world.send(1)
    world.advance(5_000)
    world.env.run(world.listening())
    world.advance(101)
    world.connections[0].transport.abort()
    world.advance(101)
    assert world.told(1) == [1]
    assert world.answers == []
    world.connections[1].answer(0, YES)
    world.advance(1_000)
    assert world.answers == [(1, YES)]
    assert len(world.connections) == 2


def test_what_waits_for_a_broker_that_goes_is_given_up(world: World) -> None:
    world.send(1)
    world.send(2)
    world.advance()

    def go() -> None:
        world.channels.set_live_brokers({})
        assert world.answers == []  # told later, not inside

    world.inside(go)
    world.advance()
    assert world.answers == [(1, None), (2, None)]
    assert world.connections[0].is_lost
    world.send(3)
    world.advance()
    assert world.answers[-1] == (3, None)


def test_an_answer_of_a_former_life_is_dropped(world: World) -> None:
    world.env.network.latency_ms = 5
    world.send(1)
    world.advance(50)
    world.connections[0].answer(0, YES)
    world.live(epoch=8)
    world.send(2)
    world.advance(50)
    assert world.answers == [(1, None)]
    assert world.told(1) == [2]


def test_an_answer_of_a_former_term_is_dropped(world: World) -> None:
    world.env.network.latency_ms = 5
    world.send(1)

    def end() -> None:
        world.channels.send(1, LeaderAndIsrRequest(), lambda answer: world.answers.append((2, answer)))
        world.channels.set_live_brokers({})  # gives both up, in the next pass
        world.channels.end_term()

    world.inside(end)
    world.advance(50)
    assert world.answers == []
    world.live(epoch=7)
    world.send(3)
    world.advance(50)
    world.connections[0].answer(0, YES)
    world.inside(world.channels.end_term)
    world.live(epoch=7)
    world.send(4)
    world.advance(50)
    assert world.answers == []
    assert world.told(1) == [4]
    world.connections[1].answer(0, YES)
    world.advance(50)
    assert world.answers == [(4, YES)]


@pytest.mark.parametrize("late", [YES, None])
def test_a_channel_that_has_ended_drops_what_comes_late(world: World, late: Any) -> None:
    answer: Pending[Any] = Pending()

    class ByHand(_Channel):
        def _reach(self, request: Any) -> Pending[Any]:
            sent.append(request)
            return answer

    sent: list[Any] = []
    answers: list[Any] = []
    channel = ByHand(world.env.clock, LiveBroker(2, 7, ()))
    world.inside(lambda: channel.send(LeaderAndIsrRequest(), answers.append))
    world.advance()
    assert len(sent) == 1
    assert channel.end() == [answers.append]
    world.inside(lambda: answer.complete(late))  # neither counted nor sent again
    assert channel._retry is None
    world.advance(1_000)
    assert (len(sent), answers) == (1, [])


def test_other_addresses_of_the_same_life_keep_what_waits(world: World) -> None:
    world.send(1)
    world.send(2)
    world.advance()
    world.env.run(world.listening(9095))
    world.live(epoch=7, port=9095)
    world.advance(101)
    assert world.connections[0].is_lost
    assert world.told(1) == [1]
    world.connections[1].answer(0, YES)
    world.advance()
    assert world.told(1) == [1, 2]


def test_the_broker_of_this_process_is_told_without_a_socket(world: World) -> None:
    world.send(1, broker_id=1)
    world.send(2, broker_id=1)
    world.advance()
    assert [request.controller_epoch for request in world.receiver.requests] == [1, 2]
    assert world.answers == [(1, YES), (2, YES)]
    assert world.connections == []


def test_a_bug_here_is_answered_with_an_error_and_the_next_request_handled(caplog: pytest.LogCaptureFixture) -> None:
    world = World(Broken())
    for number, request in enumerate((LeaderAndIsrRequest(), UpdateMetadataRequest(), StopReplicaRequest())):
        world.send(number, 1, request)
    world.advance()
    assert [answer.error_code for _, answer in world.answers] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 3
    assert caplog.text.count("of this broker's own controller failed") == 3


def test_a_broker_without_the_listener_of_brokers_holds_up_nobody(world: World) -> None:
    world.inside(lambda: world.channels.set_live_brokers({2: LiveBroker(2, 7, (Endpoint("OUTSIDE", "b2", 9092),))}))
    world.send(1)
    world.advance(1_000)
    assert world.answers == []
    world.live(epoch=0)
    world.advance()
    assert world.answers == [(1, None)]
