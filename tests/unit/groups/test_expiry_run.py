"""The expiry task against a whole coordinator: tombstones, the group's end, and what must be left alone."""

import pytest
from barnabas.offsets.kafka import REMOVALS_AT_ONCE
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from group_world import GroupWorld, join_request

MINUTE = 60_000


def make_world() -> GroupWorld:
    return GroupWorld(offsets_retention_minutes=10, offsets_retention_check_interval_ms=MINUTE)


def test_offsets_of_a_simple_group_expire_and_the_group_with_them() -> None:
    world = make_world()
    world.commit("g", {("t", 0): 1})
    world.clock.advance(5 * MINUTE)
    world.commit("g", {("t", 1): 2})
    world.clock.advance(5 * MINUTE)
    assert world.fetch("g") == {("t", 1): 2}
    assert "g" in world.coordinator.shards[0].groups
    world.clock.advance(5 * MINUTE)
    assert world.fetch("g") == {}
    assert "g" not in world.coordinator.shards[0].groups
    keys = [(record.key or b"")[:2] for record in world.records() if record.value is None]
    assert keys == [b"\x00\x01", b"\x00\x01", b"\x00\x02"]
    world.restart()
    assert world.fetch("g") == {}
    assert world.coordinator.shards[0].groups == {}


def test_very_many_offsets_of_a_group_expire_in_several_batches() -> None:
    """All in one would be more than max.message.bytes; and what is committed meanwhile comes after the last of them."""
    world = make_world()
    count = 2 * REMOVALS_AT_ONCE + 500
    world.topics.partitions["t"] = count
    for start in range(0, count, 500):
        world.commit("g", {("t", index): 1 for index in range(start, start + 500)})
    assert len(world.fetch("g")) == count
    batches = len(world.logs[0].batches)
    world.clock.advance(10 * MINUTE - 1)
    world.logs[0].held = True
    world.clock.advance(1 + MINUTE)
    reply = world.call("offset_commit", commit_request("g"), 8)
    assert not reply.done
    world.logs[0].held = False
    for _ in range(5):
        world.logs[0].release()
        world.settle()
    assert reply.done
    assert world.fetch("g") == {("t", 0): 2}
    tombstones = [record for record in world.records() if record.value is None]
    assert len(tombstones) == count + 1
    assert len(world.logs[0].batches) - batches == 5, "three pieces, the group, the commit"


def test_a_retention_given_with_the_commit_counts() -> None:
    world = make_world()
    world.commit("g", {("t", 0): 1}, version=2, retention_time_ms=2 * MINUTE)
    world.commit("g", {("t", 1): 1}, version=4, retention_time_ms=-1)
    world.clock.advance(2 * MINUTE)
    assert world.fetch("g") == {("t", 1): 1}


def test_a_retention_beyond_the_end_of_time_is_for_ever() -> None:
    world = make_world()
    world.commit("g", {("t", 0): 1}, version=3, retention_time_ms=2**63 - 1)
    world.clock.advance(100 * MINUTE)
    assert world.fetch("g") == {("t", 0): 1}


def test_a_group_with_something_in_flight_is_left_for_the_next_time() -> None:
    world = make_world()
    world.commit("g", {("t", 0): 1})
    world.clock.advance(10 * MINUTE - 1000)
    world.logs[0].held = True
    reply = world.call("offset_commit", commit_request("g"), 8)
    world.clock.advance(2000)
    assert [record.value for record in world.records() if record.value is None] == []
    world.logs[0].held = False
    world.logs[0].release()
    world.settle()
    assert reply.done
    world.clock.advance(MINUTE)
    assert world.fetch("g") == {("t", 0): 2}


def test_a_group_of_a_later_protocol_is_not_touched() -> None:
    world = make_world()
    world.commit("g", {("t", 0): 1})
    world.coordinator.shards[0].groups.clear()
    world.coordinator.shards[0].foreign_groups["g"] = "consumer"
    world.clock.advance(30 * MINUTE)
    assert world.fetch("g") == {("t", 0): 1}


def test_a_group_that_somebody_is_about_to_join_is_left_alone() -> None:
    """The id that came with MEMBER_ID_REQUIRED must be known when its owner comes back with it."""
    world = GroupWorld(offsets_retention_minutes=10, offsets_retention_check_interval_ms=1000)
    request = join_request()
    told = world.call("join_group", request, 9)
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED
    world.clock.advance(2000)
    request.member_id = told.member_id
    answers: list[messages.JoinGroupResponse] = []
    world.call("join_group", request, 9).then(answers.append)
    world.clock.advance(4000)
    assert [answer.error_code for answer in answers] == [ErrorCode.NONE]
    world.clock.advance(60_000)  # nobody sends heartbeats: the member goes, and now the group may go too
    assert world.coordinator.shards[0].groups == {}


def commit_request(group: str) -> messages.OffsetCommitRequest:
    make = messages.OffsetCommitRequest
    partition = make.OffsetCommitRequestPartition(partition_index=0, committed_offset=2, committed_metadata="")
    return make(group_id=group, topics=[make.OffsetCommitRequestTopic(name="t", partitions=[partition])])


def test_a_wall_clock_that_jumps_expires_nothing_at_once(caplog: pytest.LogCaptureFixture) -> None:
    world = make_world()
    world.commit("g", {("t", 0): 1})
    world.clock.step_wall_clock(365 * 24 * 60 * MINUTE)
    world.clock.advance(MINUTE)
    world.coordinator.kafka_offsets.expiry.run_soon()
    world.clock.advance(MINUTE // 2)
    assert world.fetch("g") == {("t", 0): 1}
    assert caplog.text.count("has jumped forward by 8760.0 hours") == 1
    world.clock.step_wall_clock(-365 * 24 * 60 * MINUTE)
    world.clock.advance(5 * MINUTE)
    assert world.fetch("g") == {("t", 0): 1}
    world.clock.step_wall_clock(365 * 24 * 60 * MINUTE)
    world.clock.advance(23 * 60 * MINUTE)
    assert world.fetch("g") == {("t", 0): 1}
    world.clock.advance(61 * MINUTE)
    assert world.fetch("g") == {}, "it stays so"


def test_a_start_with_a_clock_that_may_be_wrong_expires_nothing_for_a_day() -> None:
    """Until 2026-12 all went at the first check, ten minutes after the start had said so."""
    world = make_world()
    world.commit("g", {("t", 0): 1})
    world.coordinator.kafka_offsets.doubt_the_clock()
    world.clock.advance(23 * 60 * MINUTE)
    assert world.fetch("g") == {("t", 0): 1}
    world.clock.advance(61 * MINUTE)
    assert world.fetch("g") == {}


def test_how_long_the_clock_is_still_in_doubt_is_written_down_for_the_next_start() -> None:
    """Until 2026-12 a second start within the day did not know of it, and all went at its first check."""
    world = make_world()
    offsets, hour_ms = world.coordinator.kafka_offsets, 60 * MINUTE
    kept: list[int] = []
    offsets.keep_doubt = kept.append
    world.clock.advance(2 * MINUTE)
    assert not kept
    world.clock.step_wall_clock(365 * 24 * hour_ms)
    world.clock.advance(hour_ms)
    assert kept[0] == 24 * hour_ms
    assert kept[-1] == pytest.approx(23 * hour_ms, abs=2 * MINUTE)
    world.clock.sleep_machine(8 * hour_ms)  # it passes meanwhile
    world.clock.advance(hour_ms)
    assert kept[-1] == pytest.approx(14 * hour_ms, abs=2 * MINUTE)
    world.clock.advance(15 * hour_ms)
    assert kept[-1] == 0
    count = len(kept)
    world.clock.advance(hour_ms)
    assert len(kept) == count
    world.commit("g", {("t", 0): 1})
    offsets.doubt_the_clock(2 * MINUTE)  # as a start that finds it written
    world.clock.advance(MINUTE)
    assert world.fetch("g") == {("t", 0): 1}
    world.clock.advance(12 * MINUTE)
    assert world.fetch("g") == {}


def test_a_machine_that_sleeps_each_night_has_no_wrong_clock(caplog: pytest.LogCaptureFixture) -> None:
    """Until 2026-12 each morning began a new day without expiry."""
    hour_ms = 60 * MINUTE
    world = GroupWorld(offsets_retention_minutes=40 * 60, offsets_retention_check_interval_ms=10 * MINUTE)
    world.commit("g", {("t", 0): 1})
    for _ in range(2):
        world.clock.advance(15 * hour_ms)
        assert world.fetch("g") == {("t", 0): 1}
        world.clock.sleep_machine(8 * hour_ms)
    world.clock.advance(20 * MINUTE)
    assert world.fetch("g") == {}
    assert "has jumped" not in caplog.text


def test_offsets_do_not_expire_at_once_when_a_machine_wakes_up_after_longer_than_they_are_kept() -> None:
    """Nor do they stay for ever where it sleeps so long each night."""
    hour_ms = 60 * MINUTE
    world = GroupWorld(offsets_retention_minutes=6 * 60, offsets_retention_check_interval_ms=10 * MINUTE)
    world.clock.advance(hour_ms)
    world.commit("g", {("t", 0): 1})
    world.clock.sleep_machine(8 * hour_ms)
    world.clock.advance(15 * hour_ms)
    assert world.fetch("g") == {("t", 0): 1}
    world.clock.sleep_machine(9 * hour_ms)
    world.clock.advance(20 * MINUTE)
    assert world.fetch("g") == {}


def test_a_virtual_machine_that_is_paused_each_night_comes_to_the_end_of_the_day_without_expiry() -> None:
    hour_ms = 60 * MINUTE
    world = GroupWorld(offsets_retention_minutes=10 * 60, offsets_retention_check_interval_ms=10 * MINUTE)
    world.commit("g", {("t", 0): 1})
    world.clock.advance(hour_ms)
    for _ in range(2):
        world.clock.step_wall_clock(9 * hour_ms)
        assert world.fetch("g") == {("t", 0): 1}
        world.clock.advance(15 * hour_ms)
    assert world.fetch("g") == {}


def test_offsets_that_were_loaded_expire_as_if_there_had_been_no_restart() -> None:
    world = make_world()
    world.commit("g", {("t", 0): 1, ("t", 1): 2})
    world.clock.advance(3 * MINUTE)
    world.commit("h", {("t", 0): 3})
    world.restart()
    table = world.coordinator.shards[0].offsets
    world.clock.advance(6 * MINUTE)
    assert sorted(table.stored) == ["g", "h"], "looking whether they expire does not decode them"
    world.clock.advance(2 * MINUTE)
    assert world.fetch("g") == {}
    assert world.fetch("h") == {("t", 0): 3}
    world.clock.advance(3 * MINUTE)
    assert world.fetch("h") == {}
    assert not table.has_offsets
    assert world.coordinator.shards[0].groups == {}
