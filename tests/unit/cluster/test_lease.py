"""The lease of a broker over its session with the tree."""

from collections.abc import Iterator

import pytest
from barnabas.cluster.lease import Lease
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from simulator.coordination import Fate, SimCoordination, SimTree
from simulator.env import SimEnv, sim_env

TIMEOUT_MS = 6_000.0


class World:
    """A lease on a tree that can be cut off."""

    def __init__(self) -> None:
        self.env: SimEnv = sim_env(5)
        self.tree = SimTree(self.env.clock, TIMEOUT_MS)
        self.coordination = SimCoordination(self.env.clock, self.tree)
        self.lease = Lease(self.env, self.coordination)
        self.told: list[tuple[str, bool]] = []
        for name in ("on_lapsed", "on_regained", "on_lost"):
            getattr(self.lease, name).append(lambda name=name: self.told.append((name, self.lease.holds)))
        self.env.run(self.coordination.start())
        self.lease.start()

    def cut(self, fate: Fate) -> None:
        self.tree.trouble = lambda name: fate


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.lease.stop()
    world.env.clock.advance(0)


def test_it_holds_while_the_tree_answers(world: World) -> None:
    for _ in range(100):
        world.env.clock.advance(TIMEOUT_MS / 4)
        assert world.lease.holds
    assert world.told == []


def test_it_ends_before_the_session_may_end_and_comes_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = world.env.clock
    clock.advance(10_000)
    world.cut(Fate.LOST_AFTER)
    confirmed_ms = world.coordination.last_confirmed_ms
    clock.advance(confirmed_ms + TIMEOUT_MS * 0.9 - clock.monotonic_ms() - 1)
    assert world.lease.holds
    clock.advance(1)
    assert not world.lease.holds, "before another broker can be elected"
    clock.advance(TIMEOUT_MS * 10)
    assert caplog.text.count("has not confirmed the session within 5400 ms") == 1
    assert world.told == [("on_lapsed", False)]
    world.cut(Fate.DONE)
    clock.advance(TIMEOUT_MS / 6)
    assert world.lease.holds
    assert world.told[1:] == [("on_regained", True)]
    assert caplog.text.count("answers again") == 1


def test_the_time_counts_at_which_a_round_trip_was_sent(world: World) -> None:
    clock = world.env.clock
    world.tree.latency_ms = 500.0
    clock.advance(20_000)
    assert clock.monotonic_ms() - world.coordination.last_confirmed_ms >= 500
    assert world.lease.holds
    world.tree.latency_ms = TIMEOUT_MS
    clock.advance(20_000)
    assert not world.lease.holds, "an answer that old proves nothing"


def test_the_loss_of_a_session_is_told_before_the_lease_holds_in_the_new_one(world: World) -> None:
    world.env.clock.advance(10_000)
    first = world.coordination.session_id
    world.tree.expire(first)
    assert world.coordination.session_id != first
    assert not world.lease.holds, "the replicas do not know of it yet"
    world.env.clock.advance(0)
    assert world.told == [("on_lost", False)]
    assert world.lease.holds


def test_a_process_that_stood_still_asks_a_tree_of_its_own_first() -> None:
    env = sim_env(5)
    coordination = EmbeddedCoordination(env, ":memory:")
    lease = Lease(env, coordination)
    env.run(coordination.start())
    lease.start()
    env.clock.loop.now += 3_600  # a laptop sleeps, and wakes up with a request
    assert coordination.last_confirmed_ms + coordination.session_timeout_ms < env.clock.monotonic_ms()
    assert lease.holds
    env.run(coordination.close())
    assert not lease.holds
    lease.stop()


def test_a_round_trip_that_never_ends_does_not_stop_the_looks(world: World) -> None:
    async def hang() -> None:
        await world.env.clock.sleep(1e12)

    world.coordination.confirm = hang  # type: ignore[method-assign]
    world.env.clock.advance(TIMEOUT_MS * 3)
    assert world.told == [("on_lapsed", False)]
