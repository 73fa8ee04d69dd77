"""Live resets of the coordinator: what the journal says of them, and what is refused. The rest: scenarios and sim."""

from types import SimpleNamespace
from typing import Any

from barnabas.coordinators.groups.live_reset import LiveReset
from barnabas.coordinators.groups.records import (
    GroupRecord,
    claims_partitions,
    decode_group,
    live_reset_of,
    live_reset_tag,
)
from barnabas.offsets.journal import Cause, Changes
from barnabas.offsets.records import CommittedOffset
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from group_world import GroupWorld, answer_of

ASKER = SimpleNamespace(client_id="barnabas-cli", client_host="/10.0.0.9", principal="User:alice")


def reset(world: GroupWorld, offsets: dict[int, int], group: str = "g") -> Any:
    async def on_the_loop() -> Any:
        rows = {index: CommittedOffset(offset) for index, offset in offsets.items()}
        return world.coordinator.live_resets.begin(group, {"t": rows} if rows else {}, ASKER)

    reply = world.env.run(on_the_loop())
    world.clock.advance(50)
    return answer_of(reply) if isinstance(reply, Pending) else reply


def test_the_journal_says_who_has_moved_the_group() -> None:
    world = GroupWorld(with_journal=True)
    world.commit("g", {("t", 0): 50, ("t", 1): 60})
    assert reset(world, {0: 3, 1: 4}) == LiveReset(ErrorCode.NONE, 0, ())
    world.clock.advance(1_000)
    changes = [one for one in world.journal.changes() if isinstance(one, Changes)]
    assert [(one.cause, one.client_id, one.host) for one in changes][1:] == [
        (Cause.LIVE_RESET, "barnabas-cli", "/10.0.0.9")
    ]
    assert [(row.partition, row.old_offset, row.new_offset) for row in changes[1].rows] == [(0, 50, 3), (1, 60, 4)]


def test_what_is_refused() -> None:
    world = GroupWorld()
    assert reset(world, {}) is ErrorCode.INVALID_REQUEST
    assert reset(world, {0: 1}, group="") is ErrorCode.INVALID_REQUEST
    world.lease.holds = False
    assert reset(world, {0: 1}) is ErrorCode.NOT_COORDINATOR
    world.coordinator.shutdown()
    assert reset(world, {0: 1}) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_offsets_in_the_tree_have_no_live_reset() -> None:
    assert reset(GroupWorld(offsets_storage="zookeeper"), {0: 1}) is ErrorCode.INVALID_CONFIG


def test_the_mark_of_a_live_reset_is_a_tagged_field() -> None:
    plain, marked = (
        GroupRecord("g", stored.GroupMetadataValue(generation=7, unknown_tagged_fields=live_reset_tag(generation)))
        for generation in (-1, 6)
    )
    values = [record.value() or b"" for record in (plain, marked)]
    assert [int.from_bytes(value[:2], "big") for value in values] == [3, 4]
    found = [decode_group(plain.key(), value).metadata for value in values]
    assert [live_reset_of(metadata) for metadata in found if metadata is not None] == [-1, 6]


def test_claims_of_a_subscription() -> None:
    subscription = stored.ConsumerProtocolSubscription
    owned = subscription.TopicPartition
    for claims, rows in ((True, [owned(topic="t", partitions=[1])]), (False, [owned(topic="t", partitions=[])])):
        for version in (1, 2, 3):
            data = stored.encode_versioned(subscription(topics=["t"], owned_partitions=rows), version)
            assert claims_partitions(data) is claims
    assert not claims_partitions(stored.encode_versioned(subscription(topics=["t"]), 0))
    assert not claims_partitions(b"not a subscription")
    assert not claims_partitions(b"")
