"""A request finds the controller: nowhere, in another broker, here."""

from typing import Any

from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.controller_client import ControllerClient
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    UpdateMetadataRequest,
)
from barnabas.runtime.pending import Pending
from other_broker import OtherBroker
from simulator.env import sim_env


class World:
    def __init__(self) -> None:
        self.env = sim_env(3)
        config = BrokerConfig.of({"node.id": "1"})
        self.cache = MetadataCache(self.env.clock)
        self.asked_here: list[tuple[Any, int]] = []
        self.here: Pending[Any] = Pending()
        clients = BrokerClients(self.env, config, self.cache)
        self.client = ControllerClient(self.env.clock, 1, self.cache, clients, self.ask_here)
        self.connections: list[OtherBroker] = []
        self.env.run(self.listen())

    async def listen(self) -> None:
        listener = await self.env.network.listen("b2", 9092, lambda: OtherBroker(self.connections), 10)
        await listener.accept()

    def ask_here(self, request: Any, version: int) -> Pending[Any]:
        self.asked_here.append((request, version))
        return self.here

    def controller_is(self, controller_id: int) -> None:
        endpoint = UpdateMetadataRequest.UpdateMetadataEndpoint(host="b2", port=9092, listener="PLAINTEXT")
        brokers = [UpdateMetadataRequest.UpdateMetadataBroker(id=number, endpoints=[endpoint]) for number in (2, 4)]
        self.cache.update(UpdateMetadataRequest(controller_id=controller_id, live_brokers=brokers))

    def send(self) -> list[Any]:
        answers: list[Any] = []

        async def run() -> None:
            self.client.send(AllocateProducerIdsRequest(broker_id=1), 0).then(answers.append)
            assert self.asked_here == []  # later, not inside

        self.env.run(run())
        self.env.clock.advance(1)
        return answers


ANSWER = AllocateProducerIdsResponse(producer_id_start=5000)


def test_nobody_is_controller() -> None:
    world = World()
    assert world.send() == [None]
    world.controller_is(3)  # which does not live
    assert world.send() == [None]


def test_another_broker_is_controller() -> None:
    world = World()
    world.controller_is(2)
    answers = world.send()
    assert answers == []
    header, _ = world.connections[0].requests[0]
    assert (header.api_key, header.api_version, header.client_id) == (67, 0, "broker-1-to-controller")
    world.connections[0].answer(0, ANSWER)
    world.env.clock.advance(1)
    assert answers == [ANSWER]


def test_this_broker_is_controller() -> None:
    world = World()
    world.controller_is(1)
    answers = world.send()
    assert world.asked_here == [(AllocateProducerIdsRequest(broker_id=1), 0)]
    assert answers == []
    world.here.complete(ANSWER)
    assert answers == [ANSWER]


def test_a_bug_here_is_no_answer() -> None:
    world = World()
    world.controller_is(1)
    answers = world.send()
    world.here.fail(ValueError("a bug"))
    assert answers == [None]


def test_what_a_former_controller_does_not_answer_is_given_up() -> None:
    world = World()
    world.controller_is(2)
    answers = world.send()
    world.controller_is(4)
    world.env.clock.advance(1)
    assert answers == [None]
    again = world.send()
    world.connections[1].answer(0, ANSWER)
    world.env.clock.advance(1)
    assert again == [ANSWER]
