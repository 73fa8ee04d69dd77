"""Random members of the consumer protocol: nobody owns what another owns, calm brings everybody what it should have,
and the state after a run is that of a replay of its records."""

import random

import pytest
from barnabas.protocol.errors import ErrorCode
from consumer_members import Party, image
from group_world import GroupWorld

FAILURES = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("seed", range(25))
def test_run_equals_replay(seed: int) -> None:
    chance = random.Random(seed)
    world = GroupWorld(seed)
    party = Party(world, chance, ["g", "h"])
    for _ in range(250):
        party.step()
    before = {group_id: image(group) for group_id, group in world.coordinator.shards[0].consumer.by_id.items()}
    assert len(world.logs[0].batches) > 20
    world.restart()
    after = {group_id: image(group) for group_id, group in world.coordinator.shards[0].consumer.by_id.items()}
    assert after == before
    party.calm()


@pytest.mark.parametrize("seed", range(25))
def test_the_log_fails_stalls_and_moves(seed: int) -> None:
    chance = random.Random(seed)
    world = GroupWorld(seed, offsets_commit_timeout_ms=2_000)
    party = Party(world, chance, ["g"])
    for _ in range(300):
        what = chance.random()
        if what < 0.08:
            world.logs[0].failures.append(
                chance.choice(
                    [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.MESSAGE_TOO_LARGE]
                )
            )
        elif what < 0.12:
            world.logs[0].held = not world.logs[0].held
            if not world.logs[0].held:
                world.logs[0].release()
                world.settle()
        elif what < 0.14 and not world.logs[0].held:
            world.restart()
        party.step()
    world.logs[0].failures.clear()
    world.logs[0].held = False
    world.logs[0].release()
    world.clock.advance(60_000)
    before = {group_id: image(group) for group_id, group in world.coordinator.shards[0].consumer.by_id.items()}
    world.restart()
    after = {group_id: image(group) for group_id, group in world.coordinator.shards[0].consumer.by_id.items()}
    assert after == before
    party.calm()
