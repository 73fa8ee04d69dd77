"""Random members of the consumer protocol: nobody owns what another owns, calm brings everybody what it should have,
and the state after a run is that of a replay of its records."""

import random
from typing import Any

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from consumer_members import ConsumerMember, Party, image
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


def test_a_compacted_log_says_the_same() -> None:
    """The newest record of each key is left, so that what a member says of itself may come after its assignment."""
    world = GroupWorld()
    one, other = (ConsumerMember(world, "g", name, ["t"]) for name in ("one", "other"))
    for member in (one, other, one, one, other):
        member.send()
    one.send(rack_id="r2")
    before = image(world.coordinator.shards[0].consumer.by_id["g"])
    log = world.logs[0]
    newest: dict[Any, tuple[int, Any]] = {}
    for base, data in log.batches:
        for number, record in enumerate(record_batch.records(memoryview(data))):
            newest.pop(record.key, None)
            newest[record.key] = base + number, record.value
    log.batches = []
    for key, (offset, value) in newest.items():
        records = record_batch.PlainRecords()
        records.add(key, value)
        batch = record_batch.build_plain(records, 0).data
        record_batch.patch(batch, 0, offset, 0)
        log.batches.append((offset, bytes(batch)))
    world.restart()
    assert image(world.coordinator.shards[0].consumer.by_id["g"]) == before
    assert one.owned
    one.send()
    assert not one.answer.error_code
