"""The offset journal in bad weather: folded, it is the table of offsets, and each of its records says why."""

import pytest
from simulator import cluster_world, world


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_the_journal_of_a_broker(seed: int) -> None:
    verdict = world.run(seed, minutes=0.5, with_journal=True)
    assert verdict.violation is None, str(verdict)
    assert verdict.journal_records > 50
    assert verdict.journal_comparisons > 20


@pytest.mark.parametrize("seed", [1])
def test_the_journal_of_a_cluster(seed: int) -> None:
    verdict = cluster_world.run(seed, minutes=0.3, with_journal=True)
    assert verdict.violation is None, str(verdict)
    assert verdict.journal_records > 20
