"""Blocks of producer ids: asked for in time, and again until the controller answers."""

from typing import Any

import pytest
from barnabas.cluster.producer_ids import ANSWER_WITHIN_MS, REFILL_BELOW, RETRY_BACKOFF_MS, ProducerIds
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.runtime.pending import Pending
from simulator.env import SimEnv, sim_env


class World:
    def __init__(self) -> None:
        self.env: SimEnv = sim_env(1)
        self.asked: list[AllocateProducerIdsRequest] = []
        self.answers: list[Pending[Any]] = []
        self.given: list[int] = []
        self.kept: Pending[None] | None = None  # when the next block is on the disks; None: at once
        self.ids = ProducerIds(self.env.clock, 7, lambda: 70, self.ask, self.keep)

    def keep(self, last: int) -> Pending[None]:
        self.given.append(last)
        return Pending.of(None) if self.kept is None else self.kept

    def ask(self, request: Any, version: int) -> Pending[Any]:
        self.asked.append(request)
        self.answers.append(Pending())
        return self.answers[-1]

    def give(self, first: int, count: int = 1_000) -> None:
        self.answers[-1].complete(AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count))


@pytest.fixture
def world() -> World:
    return World()


def test_the_next_block_is_there_before_it_is_needed(world: World) -> None:
    assert world.ids.next() is None
    assert len(world.asked) == 1, "one request in flight"
    assert (world.asked[0].broker_id, world.asked[0].broker_epoch) == (7, 70)
    world.give(5_000)
    taken = [world.ids.next() for _ in range(1_000 - REFILL_BELOW)]
    assert len(world.asked) == 1
    taken.append(world.ids.next())
    assert len(world.asked) == 2
    world.give(9_000)
    taken += [world.ids.next() for _ in range(REFILL_BELOW)]
    assert taken == [*range(5_000, 6_000), 9_000]


@pytest.mark.parametrize("answer", [None, AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)])
def test_it_asks_until_it_has_a_block(world: World, answer: AllocateProducerIdsResponse | None) -> None:
    world.ids.next()
    for asked in range(1, 5):
        assert len(world.asked) == asked
        world.answers[-1].complete(answer)
        world.env.clock.advance(RETRY_BACKOFF_MS - 1)
        assert len(world.asked) == asked
        assert world.ids.next() is None
        world.env.clock.advance(1)
    world.give(0)
    assert world.ids.next() == 0
    world.ids.stop()


def test_an_answer_that_never_comes_is_not_waited_for_for_ever(world: World) -> None:
    world.ids.next()
    world.env.clock.advance(ANSWER_WITHIN_MS)
    assert world.ids.next() is None
    assert len(world.asked) == 2
    world.give(1_000)
    world.answers[0].complete(AllocateProducerIdsResponse(producer_id_start=0, producer_id_len=1_000))
    assert world.ids.next() == 1_000, "a block that came too late is never used"


def test_after_the_stop_it_asks_no_more(world: World) -> None:
    world.ids.next()
    world.ids.stop()
    world.answers[-1].complete(None)
    world.env.clock.advance(10_000)
    assert len(world.asked) == 1


def test_who_asks_before_the_block_is_there_waits_for_it(world: World) -> None:
    world.ids.next()
    got: list[int | None] = []
    for _ in range(2):
        world.ids.next_within(100).then(got.append)
    gone = world.ids.next_within(100)
    gone.cancel()
    world.give(5, 1)
    assert got == [5, None], "the block was too small for both"
    world.ids.next_within(100).then(got.append)
    world.env.clock.advance(100)
    assert got == [5, None, None]
    assert world.ids._waiting == {}
    world.ids.stop()


def test_a_block_is_used_when_the_disks_know_of_it(world: World) -> None:
    world.kept = Pending()
    world.ids.next()
    world.give(5_000)
    assert world.given == [5_999]
    assert world.ids.next() is None
    assert len(world.asked) == 1
    world.kept.complete(None)
    assert world.ids.next() == 5_000


def test_blocks_that_others_may_have_are_given_up(world: World) -> None:
    world.ids.next()
    world.give(5_000)
    assert world.ids.next() == 5_000
    world.ids.give_up()
    assert world.ids.next() is None
    world.give(90_000)
    assert world.ids.next() == 90_000
