"""Retention that waits for groups, while they fall behind, are set back, and their broker dies."""

import pytest
from simulator import retention_holds

SEEDS = range(1, 26)
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_group_has_not_read_stays_and_the_rest_goes(seed: int) -> None:
    world = retention_holds.RetentionHolds(seed)
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    assert world.waited > 100  # retention had something to wait for
    assert world.went > 100
    assert world.host.lives > 1


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = retention_holds.run(3), retention_holds.run(3)
    assert first.event_count > 30
    assert first.digest == second.digest
