"""The disks of three brokers, put back from copies of different ages."""

import pytest
from simulator import old_disks

SEEDS = (2, 5)
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_and_is_in_a_copy_is_not_lost(seed: int) -> None:
    world = old_disks.OldDisks(seed)
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    assert world.done["disks put back"] > 1
    assert world.forgotten > 0
    assert sum(map(len, world.written)) > 100
    assert world.committed > 30


def test_the_same_seed_gives_the_same_trace() -> None:
    assert old_disks.run(3, 0.3).digest == old_disks.run(3, 0.3).digest
