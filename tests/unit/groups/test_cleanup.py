"""Committed offsets are removed by hand: what is refused, and that topics which are gone are no obstacle."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.offsets import kafka
from barnabas.offsets.records import CommittedOffset, OffsetCommits
from barnabas.protocol.errors import ErrorCode
from group_world import GroupWorld, answer_of, join_request

MINUTE = 60_000
ASKER = SimpleNamespace(client_id="c", client_host="/h", principal="User:alice")


def clean(world: GroupWorld, seen: dict[tuple[str, int], int], group: str = "g") -> ErrorCode:
    async def on_the_loop() -> Any:
        return world.coordinator.removals.cleanup(group, seen, ASKER)

    reply = world.env.run(on_the_loop())
    world.settle()
    error: ErrorCode = answer_of(reply)
    return error


def join(world: GroupWorld) -> None:
    world.call("join_group", join_request(), 2)
    world.settle()


def test_offsets_are_removed_also_of_a_topic_that_is_gone() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1, ("events", 1): 2, ("events", 2): 3})
    del world.topics.partitions["events"]
    assert clean(world, {("events", 1): 2}) is ErrorCode.NONE
    assert world.fetch("g") == {("t", 0): 1, ("events", 2): 3}
    assert clean(world, {("t", 0): 1, ("events", 2): 3}) is ErrorCode.NONE
    world.restart()
    assert world.fetch("g") == {}


def test_what_has_changed_meanwhile_is_not_removed() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1, ("t", 1): 2})
    for seen in ({("t", 0): 7, ("t", 1): 2}, {("t", 0): 1, ("t", 3): 2}):
        assert clean(world, seen) is ErrorCode.INVALID_REQUEST
    assert world.fetch("g") == {("t", 0): 1, ("t", 1): 2}


def test_a_group_with_members_or_without_anything_is_refused() -> None:
    world = GroupWorld()
    assert clean(world, {("t", 0): 1}) is ErrorCode.GROUP_ID_NOT_FOUND
    world.commit("g", {("t", 0): 1})
    join(world)
    assert clean(world, {("t", 0): 1}) is ErrorCode.NON_EMPTY_GROUP
    assert world.fetch("g") == {("t", 0): 1}
    world.coordinator.shards[0].foreign_groups["k"] = "consumer"
    assert clean(world, {("t", 0): 1}, "k") is ErrorCode.NON_EMPTY_GROUP
    world.coordinator.unload(0)
    assert clean(world, {("t", 0): 1}) is ErrorCode.NOT_COORDINATOR
    assert world.coordinator.shards == {}


def test_an_offset_that_an_open_transaction_commits_is_not_removed() -> None:
    """The tombstone would take it out of the transaction, too, and what that has read would be read again."""
    world = GroupWorld()
    world.commit("g", {("t", 0): 1, ("t", 1): 2})
    table = world.coordinator.shards[0].offsets
    table.replay(OffsetCommits("g", {"t": {0: CommittedOffset(5)}}), 90, producer_id=7)
    assert clean(world, {("t", 0): 1, ("t", 1): 2}) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert clean(world, {("t", 1): 2}) is ErrorCode.NONE
    table.replay_end_transaction(7, True)
    assert world.fetch("g") == {("t", 0): 5}
    assert clean(world, {("t", 0): 5}) is ErrorCode.NONE


def test_a_failed_removal_is_said_and_the_group_is_free_again() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1})
    world.logs[0].failures = [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert clean(world, {("t", 0): 1}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.commit("g", {("t", 0): 2}) == [ErrorCode.NONE]
    assert clean(world, {("t", 0): 2}) is ErrorCode.NONE


def test_the_log_warns_once_before_offsets_expire(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world = GroupWorld(offsets_retention_minutes=700, offsets_retention_check_interval_ms=10 * MINUTE)
    world.commit("g", {("t", 0): 1, ("t", 1): 2})
    world.clock.advance(599 * MINUTE)
    assert "expire soon" not in caplog.text
    world.clock.advance(90 * MINUTE)
    assert caplog.text.count("group g: 2 committed offsets expire soon (t-0 and 1 more), the first in 1.7 hours") == 1
    assert world.fetch("g") == {("t", 0): 1, ("t", 1): 2}
    world.commit("g", {("t", 0): 3, ("t", 1): 4})
    world.clock.advance(590 * MINUTE)
    assert caplog.text.count("expire soon") == 1
    world.clock.advance(60 * MINUTE)
    assert caplog.text.count("expire soon") == 2, "a new warning, because it was out of danger meanwhile"


def test_the_log_names_a_bounded_number_of_groups(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(kafka, "WARNINGS_MAX", 3)
    world = GroupWorld(offsets_retention_minutes=700, offsets_retention_check_interval_ms=10 * MINUTE)
    for number in range(8):
        world.commit(f"g{number}", {("t", 0): 1})
    world.clock.advance(650 * MINUTE)
    assert caplog.text.count("offset expires soon (t-0)") == 3
    assert caplog.text.count("offsets of 5 more groups expire soon") == 1
