"""Groups that go from the classic to the consumer protocol and back, while members and the coordinator come and go."""

from functools import cache

import pytest
from simulator import consumer_groups
from simulator.simulation import Verdict

SEEDS = range(1, 16)
pytestmark = pytest.mark.usefixtures("quiet")


@cache
def run(seed: int) -> tuple[consumer_groups.ConsumerGroups, Verdict]:
    """A world that has ended, and what became of it."""
    world = consumer_groups.ConsumerGroups(seed)
    return world, world.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_has_one_owner_and_calm_brings_everybody_what_it_should_have(seed: int) -> None:
    world, verdict = run(seed)
    assert verdict.violation is None, str(verdict)
    assert world.commits > 100
    assert world.life > 2


def test_what_was_read_before_a_live_reset_is_not_committed_behind_it() -> None:
    worlds = [consumer_groups.ConsumerGroups(seed, with_resets=True) for seed in range(1, 7)]
    for world in worlds:
        verdict = world.run()
        assert verdict.violation is None, str(verdict)
    assert sum(world.resets for world in worlds) > 15


def test_what_comes_late_from_a_member_in_its_epoch_may_be_committed() -> None:
    """As in Kafka: it has given the partition up since, and gives up more before it goes on to the next epoch."""
    verdict = consumer_groups.ConsumerGroups(92, minutes=2.0).run()
    assert verdict.violation is None, str(verdict)


@pytest.mark.parametrize("seed", [5223, 5241])
def test_who_was_thrown_out_and_joins_again_under_its_id_has_nothing_until_it_is_told(seed: int) -> None:
    verdict = consumer_groups.ConsumerGroups(seed, minutes=2.0).run()
    assert verdict.violation is None, str(verdict)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(125, id="a classic member takes the place of the last other one, which was static"),
        pytest.param(249130, id="the static leader of a classic group is away"),
    ],
)
def test_somebody_looks_for_new_partitions(seed: int) -> None:
    verdict = consumer_groups.ConsumerGroups(seed, minutes=2.0).run()
    assert verdict.violation is None, str(verdict)


def test_groups_migrate_in_these_runs() -> None:
    worlds = [run(seed)[0] for seed in SEEDS]
    assert sum(world.conversions for world in worlds) > 15
    assert sum(world.moves for world in worlds) > 5
    assert {world.phase for world in worlds} == {"up", "down", "mixed", "consumer"}
    assert sum(world.works for world in worlds) > 50


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = run(3)[1], consumer_groups.run(3)
    assert first.event_count > 15
    assert first.digest == second.digest
