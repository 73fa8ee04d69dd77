"""Live resets of a group whose members commit late, keep what they have, and whose coordinator dies meanwhile."""

from functools import cache

import pytest
from simulator import live_resets
from simulator.simulation import Verdict

SEEDS = range(1, 26)
pytestmark = pytest.mark.usefixtures("quiet")


@cache
def run(seed: int) -> tuple[live_resets.LiveResets, Verdict]:
    """A world that has ended, and what became of it."""
    world = live_resets.LiveResets(seed)
    return world, world.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_committed_over_a_live_reset_and_nothing_is_skipped(seed: int) -> None:
    world, verdict = run(seed)
    assert verdict.violation is None, str(verdict)
    assert world.done >= 3  # so many live resets were acknowledged
    assert world.life > 2  # and the coordinator has died or moved meanwhile
    assert max(world.read_up_to.values()) % live_resets.EPOCH > 10  # members have read on


@pytest.mark.parametrize("seed", [252, 318])
def test_a_live_reset_after_one_that_could_not_be_written(seed: int) -> None:
    """Once, the second one trusted that the record of the first had removed the members."""
    verdict = live_resets.run(seed)
    assert verdict.violation is None, str(verdict)


def test_the_coordinator_dies_and_moves_in_these_runs() -> None:
    worlds = [run(seed)[0] for seed in SEEDS]
    assert sum(world.moves for world in worlds) > 20
    assert sum(world.life - world.moves for world in worlds) > 100


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = run(3)[1], live_resets.run(3)
    assert first.event_count > 30
    assert first.digest == second.digest
