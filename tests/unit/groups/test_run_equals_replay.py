"""State after a run equals state after replaying its records into a fresh coordinator: random conversations."""

import random
from typing import Any

import pytest
from barnabas.coordinators.groups.classic import ClassicGroup
from barnabas.coordinators.groups.states import State
from barnabas.offsets.table import OffsetTable
from conversations import converse
from group_world import GroupWorld


def stored(group: ClassicGroup) -> Any:
    """The part of a group that must be the same after a restart.

    The time when it became Empty, and that it has no members, are those of its last record. A group between two
    generations comes back as it was before.
    """
    return group.rebalance.record().metadata


def opened(table: OffsetTable) -> Any:
    """What open transactions have, by producer and group."""
    return {producer_id: groups for producer_id, groups in table.pending.items() if groups}


@pytest.mark.parametrize("seed", range(25))
def test_run_equals_replay(seed: int) -> None:
    chance = random.Random(seed)
    world = GroupWorld(
        seed,
        group_initial_rebalance_delay_ms=200,
        offsets_retention_minutes=1,
        offsets_retention_check_interval_ms=20_000,
    )
    converse(world, chance, 400)
    world.logs[0].held = False
    world.logs[0].release()
    world.settle()
    shard = world.coordinator.shards[0]
    offsets = shard.offsets.committed  # the shard drops it when it closes
    table = shard.offsets
    groups = dict(shard.groups)
    assert len(world.logs[0].batches) > 20
    world.restart()
    loaded = world.coordinator.shards[0]
    assert loaded.offsets.committed == offsets
    assert opened(loaded.offsets) == opened(table)
    assert loaded.offsets.pending_counts == table.pending_counts
    assert loaded.groups.keys() <= groups.keys()
    for group_id, group in groups.items():
        again = loaded.groups.get(group_id)
        if group.state is State.STABLE:
            assert again is not None
            assert again.state is State.STABLE
            ours, theirs = stored(group), stored(again)
            ours.current_state_timestamp = theirs.current_state_timestamp = -1  # stored before it became Stable
            if {member.member_id for member in ours.members} == {member.member_id for member in theirs.members}:
                assert ours == theirs
            else:
                pytest.fail(f"{group_id}: members differ")
        elif group.state is State.EMPTY and group.generation > 0:
            assert again is not None
            assert stored(group) == stored(again)
        elif again is not None:
            assert again.generation <= group.generation


@pytest.mark.parametrize("seed", range(25, 35))
def test_every_request_is_answered(seed: int) -> None:
    world = GroupWorld(seed, group_initial_rebalance_delay_ms=200)
    converse(world, random.Random(seed), 400)
    world.logs[0].held = False
    world.logs[0].release()
    for _ in range(12):  # the joins that nobody followed up, the expiries, the commits that timed out
        world.clock.advance(60_000)
    assert len(world.parked) > 50
    assert all(reply.done for reply in world.parked)
