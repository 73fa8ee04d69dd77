"""Retention that waits for groups, while they fall behind, are set back, and their broker dies."""

from functools import cache

import pytest
from simulator import retention_holds
from simulator.simulation import Verdict

SEEDS = range(1, 26)
pytestmark = pytest.mark.usefixtures("quiet")


@cache
def run(seed: int) -> tuple[retention_holds.RetentionHolds, Verdict]:
    """A world that has ended, and what became of it."""
    world = retention_holds.RetentionHolds(seed)
    return world, world.run()


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_group_has_not_read_stays_and_the_rest_goes(seed: int) -> None:
    world, verdict = run(seed)
    assert verdict.violation is None, str(verdict)
    assert world.waited > 100  # retention had something to wait for
    assert world.went > 100
    assert world.host.lives > 1


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = run(3)[1], retention_holds.run(3)
    assert first.event_count > 30
    assert first.digest == second.digest
