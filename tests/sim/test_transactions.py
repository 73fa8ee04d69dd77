"""Transactional clients under one seed: exactly once, or not at all, in all partitions, whatever happens."""

import pytest
from simulator import world
from simulator.clients.transactional import STEPS
from simulator.cluster_world import ClusterWorld
from simulator.simulation import Simulation
from simulator.transaction_book import Fate
from simulator.world import World

SEEDS = range(1, 4)


def make(kind: type[Simulation], seed: int) -> World | ClusterWorld:
    if kind is World:
        return World(seed, minutes=0.5, with_transactions=True)
    return ClusterWorld(seed, minutes=0.3, with_transactions=True)


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [World, ClusterWorld])
def test_transactions_in_bad_weather_are_whole_or_nothing(kind: type[Simulation], seed: int) -> None:
    made = make(kind, seed)
    assert made.run().violation is None, str(made.verdict())
    assert made.transactions is not None
    fates = [attempt.fate for attempt in made.transactions.book.attempts]
    assert fates.count(Fate.COMMITTED) > 30
    assert fates.count(Fate.ABORTED) > 5
    assert made.transactions.inspector.reloads > 0


def test_these_runs_have_all_that_matters() -> None:
    parts = [make(World, seed).transactions for seed in SEEDS]
    assert len({part.version for part in parts if part is not None}) > 1
    assert {part.clocks_step for part in parts if part is not None} == {False, True}


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", [1, 2])
def test_the_broker_dies_between_every_two_steps(seed: int) -> None:
    made = World(seed, minutes=0.1, with_transactions=True, kinds=("at each step",))
    assert made.run().violation is None, str(made.verdict())
    assert made.transactions is not None
    assert [step for step, times in made.transactions.struck.items() if not times] == []
    assert made.host.lives > len(STEPS)


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", [3, 4])
def test_a_coordinator_of_three_brokers_dies_between_every_two_steps(seed: int) -> None:
    made = ClusterWorld(seed, minutes=0.1, with_transactions=True, kinds=("kill at each step",))
    assert made.run().violation is None, str(made.verdict())
    assert made.transactions is not None
    assert [step for step, times in made.transactions.struck.items() if not times] == []
    assert made.lives_begun > len(STEPS)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert world.run(1, 0.1, with_transactions=True).digest == world.run(1, 0.1, with_transactions=True).digest
