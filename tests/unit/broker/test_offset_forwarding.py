"""OffsetFetch by any broker: asked on from the coordinators, once, and put together in the order of the request."""

from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker.api.groups import offset_fetch
from barnabas.broker.requests import RequestContext
from barnabas.coordinators.coordinator import partition_for
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import OffsetFetchRequest, OffsetFetchResponse
from barnabas.runtime.pending import Pending
from simulator.env import sim_env

COUNT = 3
HERE, THERE, NOBODY = 0, 1, 2  # partition 0 is led here, 1 by broker 1, 2 by nobody who is known


def named(partition: int) -> str:
    return next(f"g{i}" for i in range(1_000) if partition_for(f"g{i}", COUNT) == partition)


def found(request: OffsetFetchRequest, leader_epoch: int) -> OffsetFetchResponse:
    """An answer that shows who gave it."""
    topic = OffsetFetchResponse.OffsetFetchResponseTopics
    row = OffsetFetchResponse.OffsetFetchResponsePartitions
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=[topic(name="t", partitions=[row(committed_leader_epoch=leader_epoch)])],
            )
            for group in request.groups
        ]
    )


class World:
    def __init__(self, *, forwards: bool = True) -> None:
        env = sim_env(1)
        self.sent: list[tuple[Any, int, Pending[Any]]] = []
        self.shards: dict[int, object] = {HERE: object()}
        coordinator = SimpleNamespace(
            shard_of=lambda group: self.shards.get(partition_for(group, COUNT), ErrorCode.NOT_COORDINATOR),
            offset_fetches=SimpleNamespace(offset_fetch=lambda request, context: found(request, 0)),
        )
        cache = SimpleNamespace(
            leader=lambda topic, index: None if index == NOBODY else SimpleNamespace(broker_id=index),
            partition_count=lambda topic: COUNT,
        )
        self.clients: dict[int, Any] = {THERE: SimpleNamespace(send=self.send)}
        self.broker: Any = SimpleNamespace(
            node_id=0,
            config=SimpleNamespace(offsets_fetch_forward=forwards),
            group_coordinator=coordinator,
            metadata_cache=cache,
            broker_clients=SimpleNamespace(to=lambda broker_id, purpose: self.clients.get(broker_id)),
            env=env,
        )
        self.env = env

    def send(self, request: Any, version: int) -> Pending[Any]:
        self.sent.append((request, version, Pending()))
        return self.sent[-1][2]

    def ask(self, *group_ids: str, client_id: str = "client", version: int = 8) -> Any:
        request = (
            OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name) for name in group_ids])
            if version >= 8
            else OffsetFetchRequest(group_id=group_ids[0])
        )
        return offset_fetch(self.broker, request, RequestContext(9, version, 1, client_id))


def told(response: OffsetFetchResponse) -> list[tuple[str, int]]:
    """Each group with the error, or with the broker that has answered for it."""
    return [
        (group.group_id, group.topics[0].partitions[0].committed_leader_epoch if group.topics else group.error_code)
        for group in response.groups
    ]


def test_the_coordinators_are_asked_and_their_answers_put_together() -> None:
    world = World()
    here, there, nobody = named(HERE), named(THERE), named(NOBODY)
    outcome = world.ask(nobody, there, here)
    (request, version, pending) = world.sent[0]
    assert ([group.group_id for group in request.groups], version) == ([there], 8)
    answers: list[Any] = []
    outcome.then(answers.append)
    pending.complete(found(request, THERE))
    world.env.clock.advance(10)
    assert told(answers[0]) == [(nobody, ErrorCode.COORDINATOR_NOT_AVAILABLE), (there, THERE), (here, HERE)]


def test_a_group_that_is_asked_for_twice_is_answered_twice() -> None:
    """With other topics, or as another member: here the epoch that the answer shows is that of the member."""
    world = World()
    make = OffsetFetchRequest.OffsetFetchRequestGroup
    request = OffsetFetchRequest(
        groups=[
            make(group_id=named(where), member_id="m", member_epoch=epoch)
            for where, epoch in ((THERE, 1), (HERE, 2), (THERE, 3), (HERE, 4))
        ]
    )

    def echo(request: Any) -> OffsetFetchResponse:
        response = found(request, 0)
        for asked, group in zip(request.groups, response.groups, strict=True):
            group.topics[0].partitions[0].committed_leader_epoch = asked.member_epoch
        return response

    world.broker.group_coordinator.offset_fetches.offset_fetch = lambda request, context: echo(request)
    outcome = offset_fetch(world.broker, request, RequestContext(9, 9, 1, "client"))
    answers: list[Any] = []
    outcome.then(answers.append)
    ((part, _, pending),) = world.sent
    pending.complete(echo(part))
    world.env.clock.advance(10)
    assert told(answers[0]) == [(named(THERE), 1), (named(HERE), 2), (named(THERE), 3), (named(HERE), 4)]


@pytest.mark.parametrize("answer", [None, OffsetFetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)])
def test_a_coordinator_that_does_not_answer_is_asked_again_by_the_client(answer: Any) -> None:
    world = World()
    there, here = named(THERE), named(HERE)
    outcome = world.ask(there, here)
    answers: list[Any] = []
    outcome.then(answers.append)
    world.sent[0][2].complete(answer)
    world.env.clock.advance(10)
    assert told(answers[0]) == [(there, ErrorCode.COORDINATOR_NOT_AVAILABLE), (here, HERE)]


def test_one_group_of_the_older_versions() -> None:
    world = World()
    outcome = world.ask(named(THERE), version=5)
    answers: list[Any] = []
    outcome.then(answers.append)
    whole = OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR)
    world.sent[0][2].complete(whole)
    world.env.clock.advance(10)
    assert answers == [whole], "what the coordinator says"
    assert world.ask(named(NOBODY), version=5).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_what_was_forwarded_already_is_not_forwarded_again() -> None:
    world = World()
    assert told(world.ask(named(THERE), client_id="broker-1-offset-fetch")) == [(named(THERE), HERE)]
    assert world.sent == []


def test_a_group_that_is_loading_here_is_not_asked_for_elsewhere() -> None:
    world = World()
    world.shards[THERE] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert told(world.ask(named(THERE))) == [(named(THERE), HERE)]
    assert world.sent == []


def test_without_the_setting_nothing_is_forwarded() -> None:
    world = World(forwards=False)
    assert told(world.ask(named(THERE))) == [(named(THERE), HERE)]
    assert world.sent == []
