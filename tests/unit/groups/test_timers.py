"""One timer per group, armed lazily: signs of life move a deadline and touch no timer."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.upkeep import Task
from group_world import GroupWorld, answer_of, join_request


def joined(world: GroupWorld, group: str = "g", session_timeout_ms: int = 10000) -> str:
    request = join_request(group, session_timeout_ms=session_timeout_ms, rebalance_timeout_ms=60_000)
    reply = world.call("join_group", request, 3)
    world.clock.advance(world.config.group_initial_rebalance_delay_ms)
    answers: list[Any] = []
    reply.then(answers.append)
    member_id: str = answers[0].member_id
    sync = messages.SyncGroupRequest(group_id=group, generation_id=1, member_id=member_id)
    assert world.ask("sync_group", sync, 3).error_code == 0
    return member_id


def heartbeat(world: GroupWorld, member_id: str, group: str = "g") -> int:
    request = messages.HeartbeatRequest(group_id=group, generation_id=1, member_id=member_id)
    error: int = world.ask("heartbeat", request, 3).error_code
    return error


def test_heartbeats_and_commits_arm_no_timers() -> None:
    world = GroupWorld()
    member_id = joined(world)
    for task in list(world.env.upkeep.tasks):
        assert isinstance(task, Task)
        task.stop()  # they have timers of their own
    armed: list[float] = []
    original = world.clock.call_later

    def counting(delay_ms: float, callback: Callable[[], None]) -> Any:
        armed.append(delay_ms)
        return original(delay_ms, callback)

    world.clock.call_later = counting  # type: ignore[method-assign]
    for _ in range(1000):
        assert heartbeat(world, member_id) == ErrorCode.NONE
        assert world.commit("g", {("t", 0): 1}, member_id=member_id, generation=1) == [0]
    assert armed == []
    for _ in range(100):  # twenty session timeouts' worth of life
        world.clock.advance(2000)
        assert heartbeat(world, member_id) == ErrorCode.NONE
    assert len(armed) < 30


def test_the_session_ends_when_it_should_however_the_timer_was_armed() -> None:
    world = GroupWorld()
    member_id = joined(world)
    world.clock.advance(7000)
    assert heartbeat(world, member_id) == ErrorCode.NONE
    world.clock.advance(9999)
    assert member_id in world.coordinator.shards[0].groups["g"].members.by_id
    world.clock.advance(1)
    assert heartbeat(world, member_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_wall_clock_may_jump() -> None:
    world = GroupWorld()
    member_id = joined(world)
    world.clock.step_wall_clock(10**9)
    world.clock.advance(9000)
    assert heartbeat(world, member_id) == ErrorCode.NONE
    world.clock.step_wall_clock(-(10**10))
    world.clock.advance(9999)
    assert heartbeat(world, member_id) == ErrorCode.NONE
    world.clock.advance(10001)
    assert heartbeat(world, member_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_nothing_runs_after_shutdown() -> None:
    world = GroupWorld()
    joined(world)
    appended = len(world.logs[0].batches)
    world.coordinator.shutdown()
    world.clock.advance(10**7)
    assert len(world.logs[0].batches) == appended


def test_session_timeout_limits() -> None:
    world = GroupWorld()
    limits = (world.config.group_min_session_timeout_ms, world.config.group_max_session_timeout_ms)
    for timeout, refused in ((limits[0] - 1, True), (limits[0], False), (limits[1], False), (limits[1] + 1, True)):
        request = messages.JoinGroupRequest(
            group_id="g", session_timeout_ms=timeout, member_id="nobody", protocol_type="consumer"
        )
        error = world.ask("join_group", request, 5).error_code
        assert error == (ErrorCode.INVALID_SESSION_TIMEOUT if refused else ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_static_member_whose_return_took_long_to_store_expires_all_the_same() -> None:
    world = GroupWorld(offsets_commit_timeout_ms=60_000)

    def join() -> Any:
        return world.call("join_group", join_request(group_instance_id="instance", rebalance_timeout_ms=60_000), 9)

    first = join()
    world.clock.advance(world.config.group_initial_rebalance_delay_ms)
    sync = messages.SyncGroupRequest(
        group_id="g", generation_id=1, member_id=answer_of(first).member_id, group_instance_id="instance"
    )
    assert world.ask("sync_group", sync, 3).error_code == ErrorCode.NONE
    world.logs[0].held = True
    again = join()
    world.clock.advance(11_000)  # longer than its session, but it waits for an answer
    world.logs[0].release()
    world.settle()
    assert answer_of(again).error_code == ErrorCode.NONE
    world.logs[0].held = False
    world.clock.advance(9_999)
    assert len(world.coordinator.shards[0].groups["g"].members) == 1
    world.clock.advance(1)
    assert len(world.coordinator.shards[0].groups["g"].members) == 0


def test_a_group_whose_timer_was_lost_is_noticed() -> None:
    world = GroupWorld()
    member_id = joined(world)
    group = world.coordinator.shards[0].groups["g"]
    assert group.timer is not None
    group.timer.cancel()
    world.clock.advance(30_000)
    assert heartbeat(world, member_id) == ErrorCode.UNKNOWN_MEMBER_ID
    assert not group.members


def test_a_group_that_cannot_be_stored_says_so_once_however_often_it_tries(caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld()
    caplog.set_level(logging.INFO, "barnabas.groups")
    member_id = joined(world)
    world.logs[0].failures = [ErrorCode.KAFKA_STORAGE_ERROR] * 10_000
    for attempt in range(100):
        request = join_request(member_id=member_id, metadata=b"other", rebalance_timeout_ms=60_000)
        answers: list[Any] = []
        world.call("join_group", request, 3).then(answers.append)
        world.settle()
        generation = answers[0].generation_id
        sync = messages.SyncGroupRequest(group_id="g", generation_id=generation, member_id=member_id)
        world.call("sync_group", sync, 3).then(answers.append)
        world.settle()
        assert len(answers) == 1, "some clients would join again at once, thousands of times a second"
        world.clock.advance(1_000)
        assert answers[1].error_code == ErrorCode.NOT_COORDINATOR, attempt
    told = [record for record in caplog.records if "could not be stored" in record.message]
    assert len([record for record in told if record.levelno == logging.WARNING]) == 1
    assert len([record for record in caplog.records if record.levelno >= logging.INFO]) < 12
