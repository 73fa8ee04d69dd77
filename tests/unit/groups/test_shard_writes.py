"""How an offsets partition appends records: in order, a few batches in a pass, and each caller is told once."""

from typing import Any

import pytest
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.shard import BATCH_RECORDS_MAX
from barnabas.offsets.records import CommittedOffset, OffsetCommits
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import read_header
from group_world import GroupWorld, answer_of, join_request


def shard_of(world: GroupWorld) -> Shard:
    return world.coordinator.shards[0]


def commit(number: int, count: int = 1) -> OffsetCommits:
    return OffsetCommits(f"g{number}", {"t": {index: CommittedOffset(number) for index in range(count)}})


def test_very_many_records_of_one_pass_are_appended_over_several() -> None:
    world = GroupWorld()
    shard, log = shard_of(world), world.logs[0]
    told: list[int] = []
    count = 5 * BATCH_RECORDS_MAX
    batches: list[int] = []

    def write_all() -> None:
        for number in range(count):
            shard.write(f"g{number}", commit(number), lambda error, number=number: told.append(number))

    def look() -> None:
        batches.append(len(log.batches))
        if len(told) < count:
            world.clock.call_soon(look)

    world.clock.call_soon(write_all)
    world.clock.call_soon(look)
    world.settle()
    assert told == list(range(count))
    assert [read_header(batch).record_count for _, batch in log.batches] == [BATCH_RECORDS_MAX] * 5
    assert len(set(batches)) > 1, "not all in one pass"
    assert [shard.offsets.of_group(f"g{number}")["t"][0].offset for number in range(count)] == list(range(count))


def test_what_is_written_while_many_wait_comes_after_them() -> None:
    world = GroupWorld()
    shard = shard_of(world)
    told: list[int] = []

    def write(number: int) -> None:
        shard.write("g", commit(number), lambda error: told.append(error if error else number))

    def first_told(error: ErrorCode) -> None:
        told.append(-1)
        write(10_000)

    def write_all() -> None:
        shard.write("h", commit(0), first_told)
        for number in range(3 * BATCH_RECORDS_MAX):
            write(number)

    world.clock.call_soon(write_all)
    world.settle()
    assert told == [-1, *range(3 * BATCH_RECORDS_MAX), 10_000]
    assert shard.offsets.of_group("g10000")["t"][0].offset == 10_000
    assert shard.is_quiet("g")


def test_an_append_that_costs_the_leadership_leaves_nobody_waiting() -> None:
    """The disk fails in the append: the partition is given up before the append returns."""
    world = GroupWorld()
    shard, log = shard_of(world), world.logs[0]
    told: list[tuple[int, ErrorCode]] = []
    append = log.append

    def failing(batch: Any, **how: Any) -> Any:
        world.coordinator.unload(0)
        return append(batch, **how)

    log.append = failing  # type: ignore[method-assign]

    def write_all() -> None:
        for number in range(2 * BATCH_RECORDS_MAX):
            shard.write(f"g{number}", commit(number), lambda error, number=number: told.append((number, error)))

    world.clock.call_soon(write_all)
    world.settle()
    assert sorted(number for number, _ in told) == list(range(2 * BATCH_RECORDS_MAX))
    assert {error for _, error in told} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_group_whose_creation_is_under_way_when_its_coordinator_stops_ends_once() -> None:
    world = GroupWorld()
    world.logs[0].held = True
    reply = world.call("join_group", join_request(), 2)
    world.settle()
    world.coordinator.shutdown()
    assert answer_of(reply).error_code == ErrorCode.NOT_COORDINATOR


def test_with_acks_1_the_local_append_is_enough() -> None:
    world = GroupWorld(offsets_commit_required_acks=1)
    log = world.logs[0]
    log.held = True  # no other replica has anything
    assert world.commit("g", {("t", 0): 5}) == [ErrorCode.NONE]
    assert world.fetch("g") == {("t", 0): 5}
    assert log.high_watermark == 0
    assert log.required_acks == [1]
    world.restart()
    assert world.fetch("g") == {("t", 0): 5}, "it is loaded without a wait for replicas"
    log.failures = [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert world.commit("g", {("t", 0): 6}) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert world.fetch("g") == {("t", 0): 5}


def test_with_acks_0_a_commit_stands_also_if_the_log_does_not_take_it(caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld(offsets_commit_required_acks=0)
    log = world.logs[0]
    log.held = True
    assert world.commit("g", {("t", 0): 5}) == [ErrorCode.NONE]
    log.failures = [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert world.commit("g", {("t", 0): 6, ("t", 1): 7}) == [ErrorCode.NONE] * 2
    assert world.fetch("g") == {("t", 0): 6, ("t", 1): 7}
    assert "2 records are in memory only" in caplog.text
    table = shard_of(world).offsets.of_group("g")["t"]
    assert {committed.record_offset for committed in table.values()} == {0}
    log.failures = [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert world.commit("new", {("t", 0): 6, ("t", 1): 7}) == [ErrorCode.NONE] * 2
    table = shard_of(world).offsets.of_group("new")["t"]
    assert {committed.record_offset for committed in table.values()} == {0}
    world.restart()
    assert world.fetch("g") == {("t", 0): 5}, "the log decides what is loaded"


def test_with_acks_0_a_deletion_that_the_log_does_not_take_is_refused() -> None:
    world = GroupWorld(offsets_commit_required_acks=0)
    world.commit("g", {("t", 0): 5})
    world.logs[0].failures = [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    answer = world.ask("delete_groups", messages.DeleteGroupsRequest(groups_names=["g"]), 2)
    assert answer.results[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.fetch("g") == {("t", 0): 5}


@pytest.mark.parametrize("acks", [0, 1])
def test_a_commit_that_is_too_large_is_refused_with_any_acks(acks: int) -> None:
    world = GroupWorld(offsets_commit_required_acks=acks)
    world.logs[0].failures = [ErrorCode.MESSAGE_TOO_LARGE]
    assert world.commit("g", {("t", 0): 5}) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
    assert world.fetch("g") == {}
