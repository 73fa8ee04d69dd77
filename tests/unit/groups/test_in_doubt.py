"""What is told while replicas are missing: what is committed for certain, and never an offset that could go back."""

import pytest
from barnabas.offsets.records import encode_key
from barnabas.protocol import messages, record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from group_world import GroupWorld, answer_of, join_request, pending_commit

SHORT = "in sync are [0] of [0, 1, 2], and min.insync.replicas wants 2"
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def alone(world: GroupWorld, high_watermark: int) -> None:
    """The broker leads anew, with all that is in the log, and knows that so much of it is committed. No other lives."""
    log = world.logs[0]
    log.shortage = SHORT
    log.held = True
    log.high_watermark = high_watermark
    log.leader_epoch += 1
    world.lead_all()


def come_back(world: GroupWorld) -> None:
    """A second replica is in sync, and has everything."""
    log = world.logs[0]
    log.shortage = ""
    log.held = False
    log.release()
    world.settle()


def told(
    world: GroupWorld, group: str, *indexes: int, stable: bool = False, version: int = 7, topic: str = "t"
) -> dict[int, int | ErrorCode] | ErrorCode:
    """What OffsetFetch says of partitions: the offset or the error of each, or the error of all."""
    fetch = messages.OffsetFetchRequest
    rows = [fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=list(indexes))] if indexes else None
    response = world.ask("offset_fetch", fetch(group_id=group, topics=rows, require_stable=stable), version)
    if response.error_code:
        return ErrorCode(response.error_code)
    return {
        row.partition_index: ErrorCode(row.error_code) if row.error_code else row.committed_offset
        for each in response.topics
        for row in each.partitions
    }


def tombstone(group: str, index: int) -> bytearray:
    return record_batch.build([record_batch.Record(0, 0, encode_key(group, "t", index), None, [])])


def test_what_is_committed_for_certain_is_told_and_nothing_that_may_have_changed() -> None:
    world = GroupWorld()
    world.commit("still", {("t", 0): 5})
    world.commit("moves", {("t", 0): 7, ("t", 1): 8})
    high_watermark = world.logs[0].log_end_offset
    world.commit("moves", {("t", 0): 9})  # its client was told so
    world.commit("new", {("t", 0): 1})
    alone(world, high_watermark)
    for stable in (False, True):
        assert told(world, "still", 0, 3, stable=stable) == {0: 5, 3: -1}
        assert told(world, "still", stable=stable) == {0: 5}
        assert told(world, "moves", 1, stable=stable) == {1: 8}
        assert told(world, "moves", stable=stable) == LOADING
    assert told(world, "moves", 0, 1, stable=True) == {0: UNSTABLE, 1: 8}
    assert told(world, "moves", 0, 1) == LOADING, "an error that clients know that know no unstable offsets"
    assert told(world, "moves", 0, version=1) == {0: LOADING}
    assert told(world, "new", 0) == LOADING, "not that there is none"
    come_back(world)
    assert told(world, "moves", 0, 1) == {0: 9, 1: 8}
    assert told(world, "moves") == {0: 9, 1: 8}
    assert told(world, "new", 0) == {0: 1}


@pytest.mark.parametrize("metadata", ["", "m" * 200])
def test_the_end_may_be_lost_instead(metadata: str) -> None:
    """The last broker dies, too, and those that come back had no part in the commit."""
    world = GroupWorld()
    log = world.logs[0]
    world.commit("g", {("t", 0): 5, ("t", 1): 5}, metadata=metadata)
    high_watermark, batches = log.log_end_offset, list(log.batches)
    log.held = True
    world.call("offset_commit", commit_request("g", 6), 8)
    world.settle()
    alone(world, high_watermark)
    assert told(world, "g", 0, 1, stable=True) == {0: UNSTABLE, 1: 5}
    log.batches, log.log_end_offset = batches, high_watermark
    alone(world, high_watermark)
    assert told(world, "g", 0, 1, stable=True) == {0: 5, 1: 5}


def commit_request(group: str, offset: int) -> messages.OffsetCommitRequest:
    make = messages.OffsetCommitRequest
    row = make.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return make(group_id=group, topics=[make.OffsetCommitRequestTopic(name="t", partitions=[row])])


def test_removals_and_ends_of_transactions_are_in_doubt_as_commits_are() -> None:
    world = GroupWorld()
    world.commit("removed", {("t", 0): 1, ("t", 1): 2})
    world.pend("ended", 7, {("t", 0): 3})
    world.pend("open", 8, {("t", 0): 4})
    high_watermark = world.logs[0].log_end_offset
    world.logs[0].append(tombstone("removed", 0))
    assert world.end(7) is ErrorCode.NONE
    alone(world, high_watermark)
    assert told(world, "removed", 0) == LOADING
    assert told(world, "removed", 1) == {1: 2}
    assert told(world, "ended", 0) == LOADING
    assert told(world, "open", 0) == {0: -1}
    assert told(world, "open", 0, stable=True) == {0: UNSTABLE}
    come_back(world)
    assert told(world, "removed", 0, 1) == {0: -1, 1: 2}
    assert told(world, "ended", 0) == {0: 3}


def test_groups_wait_and_members_stay_while_the_end_is_in_doubt(caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld()
    world.commit("a", {("t", 0): 1})
    world.commit("b", {("t", 0): 1})
    alone(world, 1)
    assert world.commit("a", {("t", 0): 2}) == [LOADING]
    assert answer_of(world.call("join_group", join_request("a"), 4)).error_code == LOADING
    heartbeat = messages.HeartbeatRequest(group_id="a", generation_id=1, member_id="m")
    assert world.ask("heartbeat", heartbeat, 3).error_code == ErrorCode.NONE
    assert world.coordinator.loading() == [(0, 0, 1, 2, SHORT)]
    assert SHORT not in caplog.text, "a new leader waits for its followers for a moment"
    world.clock.advance(1_001)
    assert (
        f"offsets partition 0: it is not known whether offsets 1 to 1 are committed: {SHORT}. 1 offset of 1 group "
        "cannot be read (b). The others can; joins and commits are told to wait until it is."
    ) in caplog.text
    world.clock.advance(3_600_000)
    assert caplog.text.count("it is not known whether") == 1
    come_back(world)
    assert world.commit("a", {("t", 0): 2}) == [ErrorCode.NONE]


def test_a_load_that_waits_for_replicas_can_be_given_up() -> None:
    world = GroupWorld()
    world.commit("a", {("t", 0): 1})
    alone(world, 0)
    world.coordinator.shutdown()
    world.settle()
    world.clock.advance(60_000)
    assert world.coordinator.loading() == []


def test_a_commit_in_flight_holds_up_no_fetch_of_stable_offsets_when_replicas_are_missing() -> None:
    world = GroupWorld()
    log = world.logs[0]
    world.commit("g", {("t", 0): 1, ("t", 1): 1})
    log.held = True
    commit = world.call("offset_commit", commit_request("g", 2), 8)
    world.settle()
    fetch = messages.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    request = messages.OffsetFetchRequest(group_id="g", topics=[fetch], require_stable=True)
    waiting = world.call("offset_fetch", request, 7)
    world.settle()
    assert isinstance(waiting, Pending)
    assert not waiting.done, "its replicas are there, so it takes no time"
    log.shortage = SHORT
    assert told(world, "g", 0, 1, stable=True) == {0: UNSTABLE, 1: 1}
    assert told(world, "g", stable=True) == LOADING
    assert told(world, "g", 0, 1) == {0: 1, 1: 1}, "who does not ask for stable offsets gets committed ones"
    world.clock.advance(5_001)
    assert answer_of(waiting).error_code == NOT_AVAILABLE
    assert answer_of(commit).topics[0].partitions[0].error_code == NOT_AVAILABLE
    come_back(world)
    assert told(world, "g", 0, 1, stable=True) == {0: 2, 1: 1}


def test_nobody_waits_for_ever_behind_a_commit_in_flight() -> None:
    world = GroupWorld()
    log = world.logs[0]
    world.commit("g", {("t", 0): 1})
    log.held = True
    world.call("offset_commit", commit_request("g", 2), 8)
    world.settle()
    log.shortage = SHORT
    delete = world.call("delete_groups", messages.DeleteGroupsRequest(groups_names=["g"]), 2)
    remove = world.call("offset_delete", offset_delete("g"), 0)
    join = world.call("join_group", join_request(), 4)
    commit = world.call("offset_commit", commit_request("g", 3), 8)
    pend = world.call("txn_offset_commit", pending_commit("g", 7, {("t", 0): 9}), 5)
    world.settle()
    assert not any(each.done for each in (delete, remove, join, commit, pend))
    world.clock.advance(5_001)
    assert answer_of(delete).results[0].error_code == NOT_AVAILABLE
    assert answer_of(remove).error_code == NOT_AVAILABLE
    assert answer_of(join).error_code == NOT_AVAILABLE
    assert answer_of(commit).topics[0].partitions[0].error_code == NOT_AVAILABLE
    assert answer_of(pend).topics[0].partitions[0].error_code == NOT_AVAILABLE
    come_back(world)
    assert told(world, "g", 0) == {0: 2}, "what was answered with an error before it began is not done later"
    assert "g" in world.coordinator.shards[0].groups
    assert not world.coordinator.shards[0].groups["g"].members
    assert world.commit("g", {("t", 0): 4}) == [ErrorCode.NONE]


def offset_delete(group: str) -> messages.OffsetDeleteRequest:
    make = messages.OffsetDeleteRequest
    row = make.OffsetDeleteRequestPartition(partition_index=0)
    return make(group_id=group, topics=[make.OffsetDeleteRequestTopic(name="t", partitions=[row])])


def test_one_line_says_that_nothing_can_be_written(caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld()
    for _ in range(50):
        world.logs[0].failures = [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert world.commit("g", {("t", 0): 1}) == [NOT_AVAILABLE]
        world.clock.advance(100)
    assert caplog.text.count("append failed: NOT_ENOUGH_REPLICAS") == 1
