"""What somebody does by hand to the file of three brokers' tree."""

from functools import cache

import pytest
from simulator import tree_accidents
from simulator.simulation import Verdict

SEEDS = (3, 4)
pytestmark = pytest.mark.usefixtures("quiet")


@cache
def run(seed: int) -> tuple[tree_accidents.TreeAccidents, Verdict]:
    """A world that has ended, and what became of it."""
    world = tree_accidents.TreeAccidents(seed)
    return world, world.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    world, verdict = run(seed)
    assert verdict.violation is None, str(verdict)
    assert sum(map(len, world.written)) > 100
    assert world.committed > 30
    assert world.refused > 0


def test_every_accident_happens() -> None:
    done = {name: sum(run(seed)[0].done[name] for seed in SEEDS) for name in run(SEEDS[0])[0].done}
    assert min(done.values()) > 0, done


def test_the_same_seed_gives_the_same_trace() -> None:
    assert tree_accidents.run(3, 0.5).digest == tree_accidents.run(3, 0.5).digest
