"""Loading: what is answered meanwhile, in slices, until the high watermark is there, and the epoch guard."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators import loading as coordinator_loading
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.groups import loading
from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.protocol import messages, record_batch
from barnabas.protocol.errors import ErrorCode
from group_world import GroupWorld, MemoryLog, answer_of, pending_commit
from simulator.clock import PIECES_PER_PASS


def led(epoch: int, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(topic=OFFSETS_TOPIC, index=index, leader_epoch=epoch)


def begin_load(world: GroupWorld) -> None:
    """The broker comes back, and its load has been asked for but has not run."""
    world.coordinator.shutdown()
    world.settle()
    world.logs[0].leader_epoch += 1
    world.coordinator = world.make_coordinator()
    world.coordinator.start()
    world.coordinator.on_leadership([led(world.logs[0].leader_epoch)], [])


def gate_errors(world: GroupWorld) -> dict[str, int]:
    make = messages
    context = SimpleNamespace(api_version=5, client_id="c", client_host="/h", principal="User:alice", is_long=False)
    coordinator = world.coordinator
    commit = make.OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t",
        partitions=[
            make.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=1, committed_metadata=""
            )
        ],
    )
    join = make.JoinGroupRequest(group_id="g", session_timeout_ms=10000, member_id="", protocol_type="consumer")
    sync = make.SyncGroupRequest(group_id="g", member_id="m", protocol_type="consumer", protocol_name="range")
    committed = coordinator.commits.offset_commit(make.OffsetCommitRequest(group_id="g", topics=[commit]), context)
    in_transaction = answer_of(
        coordinator.transactional_commits.txn_offset_commit(
            pending_commit("g", 7, {("t", 0): 1}), context, lambda _: ErrorCode.NONE
        )
    )
    deleted = answer_of(coordinator.removals.delete_groups(make.DeleteGroupsRequest(groups_names=["g"]), context))
    forget = make.OffsetDeleteRequest(
        group_id="g",
        topics=[
            make.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name="t", partitions=[make.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)]
            )
        ],
    )
    return {
        "join": coordinator.join_group(join, context).error_code,
        "sync": coordinator.sync_group(sync, context).error_code,
        "heartbeat": coordinator.heartbeat(make.HeartbeatRequest(group_id="g", member_id="m"), context).error_code,
        "leave": coordinator.leave_group(make.LeaveGroupRequest(group_id="g"), context).error_code,
        "commit": committed.topics[0].partitions[0].error_code,
        "commit in a transaction": in_transaction.topics[0].partitions[0].error_code,
        "fetch": coordinator.offset_fetches.offset_fetch(
            make.OffsetFetchRequest(group_id="g", topics=None), context
        ).error_code,
        "describe": coordinator.describe_groups(make.DescribeGroupsRequest(groups=["g"]), context).groups[0].error_code,
        "delete": deleted.results[0].error_code,
        "forget": coordinator.removals.offset_delete(forget, context).error_code,
        "list": coordinator.list_groups(make.ListGroupsRequest(), context).error_code,
    }


def test_what_is_answered_while_loading() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1})
    begin_load(world)
    errors = gate_errors(world)
    loading_error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert errors.pop("sync") == ErrorCode.REBALANCE_IN_PROGRESS
    assert errors.pop("heartbeat") == ErrorCode.NONE
    assert set(errors.values()) == {loading_error}
    world.settle()
    assert world.fetch("g") == {("t", 0): 1}


def test_what_is_answered_by_a_broker_that_does_not_lead_the_partition() -> None:
    world = GroupWorld()
    world.coordinator.unload(0)
    errors = gate_errors(world)
    assert errors.pop("list") == ErrorCode.NONE
    assert set(errors.values()) == {ErrorCode.NOT_COORDINATOR}


def test_what_is_answered_before_start_and_after_shutdown() -> None:
    world = GroupWorld()
    world.coordinator.shutdown()
    assert set(gate_errors(world).values()) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_a_new_leader_goes_on_loading_until_its_high_watermark_is_there() -> None:
    world = GroupWorld()
    log = world.logs[0]
    world.commit("g", {("t", 0): 1})
    world.commit("g", {("t", 0): 2})
    log.high_watermark = 1  # the new leader has all, but does not know yet that it is committed
    begin_load(world)
    world.settle()
    assert gate_errors(world)["fetch"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    log.release()
    world.settle()
    assert world.fetch("g") == {("t", 0): 2}


@pytest.mark.parametrize("metadata", ["", "m" * 130])
@pytest.mark.parametrize("partitions", [1, 50])
def test_all_loads_together_have_the_budget_of_one_pass(
    monkeypatch: pytest.MonkeyPatch, partitions: int, metadata: str
) -> None:
    """Fifty partitions are not allowed fifty times as much as one. A batch of runs is one piece."""
    world = GroupWorld(count=partitions)
    count = 6 * PIECES_PER_PASS
    for log in world.logs:
        for number in range(0, count // partitions, 12):
            offsets = [CommittedOffset(number + index, -1, metadata, 1) for index in range(12)]
            pairs = [(encode_key(f"g{number}", "t", i), encode_value(offset)) for i, offset in enumerate(offsets)]
            log.append(record_batch.build([record_batch.Record(i, 0, *pair, []) for i, pair in enumerate(pairs)]))
    monkeypatch.setattr(coordinator_loading, "SLICE_BYTES", 2000)
    replayed = 0
    work = "_replay_record" if metadata else "_store"
    original = getattr(loading.Loader, work)

    def counted(*arguments: Any) -> Any:
        nonlocal replayed
        replayed += 1
        return original(*arguments)

    monkeypatch.setattr(loading.Loader, work, counted)
    for log in world.logs:
        log.leader_epoch += 1
    world.coordinator.on_leadership([led(log.leader_epoch, index) for index, log in enumerate(world.logs)], [])
    of_passes = []

    def look() -> None:
        of_passes.append(replayed)
        if any(shard.loading for shard in world.coordinator.shards.values()):
            world.clock.call_soon(look)

    look()
    world.settle()
    records = sum(log.log_end_offset for log in world.logs)
    assert replayed == (records if metadata else records // 12)
    assert records > 4 * PIECES_PER_PASS
    assert max(after - before for before, after in pairwise(of_passes)) <= PIECES_PER_PASS
    assert partitions > 1 or world.logs[0].reads > 5
    assert not any(shard.loading for shard in world.coordinator.shards.values())


def test_leadership_lost_while_loading() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1})
    begin_load(world)
    world.coordinator.on_leadership([], [led(world.logs[0].leader_epoch + 1)])
    world.settle()
    assert gate_errors(world)["fetch"] == ErrorCode.NOT_COORDINATOR


def test_an_older_epoch_comes_too_late() -> None:
    world = GroupWorld()
    world.coordinator.on_leadership([led(7)], [])
    world.settle()
    shard = world.coordinator.shards[0]
    world.coordinator.on_leadership([led(6)], [])
    world.coordinator.on_leadership([led(7)], [])
    world.coordinator.on_leadership([], [led(6)])
    assert world.coordinator.shards[0] is shard
    world.coordinator.on_leadership([], [led(8)])
    assert world.coordinator.shards == {}
    world.coordinator.on_leadership([led(0)], [])  # the topic was made again
    assert 0 in world.coordinator.shards


def test_a_new_epoch_of_the_same_leader_loads_again() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1})
    world.coordinator.on_leadership([led(3)], [])
    world.settle()
    assert world.coordinator.shards[0].leader_epoch == 3
    assert world.fetch("g") == {("t", 0): 1}


def test_other_topics_do_not_concern_it() -> None:
    world = GroupWorld()
    world.coordinator.on_leadership([], [SimpleNamespace(topic="t", index=0, leader_epoch=99)])
    assert 0 in world.coordinator.shards


def test_records_that_cannot_be_read_are_passed_over() -> None:
    world = GroupWorld()
    key, value = encode_key("g", "t", 0), encode_value(CommittedOffset(4, commit_timestamp=1))
    pairs = [
        (b"\x00\x01\x00", b"x"),
        (None, b"x"),
        (b"\x00\x02\x00\x01g", b"\x00\x03\x00"),
        (b"\x00\x02\x00\x01g", b"\x00\x63\x00"),  # of a version that is not known
        (b"\x00\x63abc", b"x"),
        (key, b"\x00\x09"),
        (key, value),
    ]
    records = [record_batch.Record(index, 0, *pair, []) for index, pair in enumerate(pairs)]
    world.logs[0].append(record_batch.build(records))
    world.restart()
    assert world.fetch("g") == {("t", 0): 4}


def test_a_batch_that_cannot_be_read_is_not_passed_over() -> None:
    """Otherwise offsets committed in it or behind it would be missing without a notice."""
    world = GroupWorld()
    world.commit("g", {("t", 0): 1})
    world.commit("g", {("t", 0): 2})
    base, batch = world.logs[0].batches[1]
    world.logs[0].batches[1] = (base, batch[:16] + b"\x07" + batch[17:])  # another magic
    begin_load(world)
    world.clock.advance(60_000)
    assert gate_errors(world)["fetch"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.logs[0].batches[1] = (base, batch)
    world.clock.advance(10_000)
    assert world.fetch("g") == {("t", 0): 2}


def test_transactional_batches_wait_for_their_marker() -> None:
    world = GroupWorld()
    key, value = encode_key("g", "t", 0), encode_value(CommittedOffset(4, commit_timestamp=1))
    batch = record_batch.build(
        [record_batch.Record(0, 0, key, value, [])],
        producer_id=5,
        producer_epoch=0,
        transactional=True,
    )
    world.logs[0].append(batch)
    world.restart()
    assert world.fetch("g") == {}
    request = messages.OffsetFetchRequest(
        group_id="g",
        topics=[messages.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])],
        require_stable=True,
    )
    response = world.ask("offset_fetch", request, 7)
    assert [partition.error_code for partition in response.topics[0].partitions] == [
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.NONE,
    ]
    assert world.end(5) is ErrorCode.NONE
    assert world.fetch("g") == {("t", 0): 4}


def test_a_marker_comes_again_when_the_partition_is_loaded() -> None:
    world = GroupWorld()
    world.pend("g", 7, {("t", 0): 5})
    begin_load(world)
    end_offset = world.logs[0].log_end_offset
    assert answer_of(world.send_marker(7)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.logs[0].log_end_offset == end_offset, "nothing is appended that nobody would look at"
    world.settle()
    assert world.unstable("g") == [0]
    assert world.end(7) is ErrorCode.NONE
    assert world.fetch("g") == {("t", 0): 5}


def test_a_broker_that_may_not_lead_any_more_takes_no_marker() -> None:
    world = GroupWorld()
    world.pend("g", 7, {("t", 0): 5})
    world.lease.holds = False
    assert world.end(7) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.lease.holds = True
    assert world.unstable("g") == [0]


@pytest.mark.parametrize("slice_bytes", [1, 200, 10_000])
def test_open_transactions_are_loaded_in_slices_of_any_size(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    monkeypatch.setattr(coordinator_loading, "SLICE_BYTES", slice_bytes)
    world = GroupWorld()
    for number in range(12):
        world.pend("g", number % 3, {("t", number % 4): number, ("events", 0): number})
        world.commit("h", {("t", 0): number})
        if number % 3 == 2:
            world.end(number % 2, is_commit=bool(number % 4))
    before = world.fetch("g"), world.unstable("g"), world.unstable("g", "events"), world.fetch("h")
    world.restart()
    assert (world.fetch("g"), world.unstable("g"), world.unstable("g", "events"), world.fetch("h")) == before
    assert before[1]
    assert before[0]


def test_groups_go_to_the_partition_of_their_hash() -> None:
    world = GroupWorld(count=7)
    for name in ("a", "b", "test", "my-group"):
        world.commit(name, {("t", 0): 1})
        assert name in world.coordinator.shards[partition_for(name, 7)].groups


def test_an_offsets_topic_that_was_deleted_and_made_again_begins_with_epoch_0() -> None:
    world = GroupWorld()
    world.coordinator.on_leadership([led(7)], [])
    world.settle()
    world.coordinator.on_partitions_deleted([(OFFSETS_TOPIC, 0)])  # UpdateMetadata comes first, StopReplica after it
    world.coordinator.on_leadership([], [led(7)])
    assert world.coordinator.shards == {}
    world.logs[0] = MemoryLog(world.clock.call_soon)
    world.coordinator.on_leadership([led(0)], [])
    world.settle()
    assert world.commit("g", {("t", 0): 1}) == [ErrorCode.NONE]


def test_what_cannot_be_read_is_waited_for_and_never_answered_with_half_of_the_offsets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_loading, "SLICE_BYTES", 1)
    world = GroupWorld()
    for offset in (1, 2):
        world.commit("g", {("t", 0): offset})
    read = world.logs[0].read
    broken = True

    def read_some(offset: int, max_bytes: int) -> bytes:
        if broken and offset == 1:
            raise OSError(24, "simulated")
        return read(offset, max_bytes)

    monkeypatch.setattr(world.logs[0], "read", read_some)
    begin_load(world)
    world.clock.advance(60_000)
    assert gate_errors(world)["fetch"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [record.message for record in caplog.records if "cannot be loaded" in record.message] == [
        "offsets partition 0 cannot be loaded behind offset 1: [Errno 24] simulated. "
        "Its groups are told to wait until it can."
    ]
    broken = False
    world.clock.advance(10_000)
    assert world.fetch("g") == {("t", 0): 2}


@pytest.mark.parametrize("metadata", ["", "m" * 130], ids=["as it is in the log", "record by record"])
def test_one_damaged_bit_is_noticed_and_never_served(metadata: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its records can still be decoded: the group would be somewhere else."""
    world = GroupWorld()
    offsets = [CommittedOffset(number, -1, metadata, 1) for number in (1, 2)]
    for offset in offsets:
        world.logs[0].append(
            record_batch.build([record_batch.Record(0, 0, encode_key("g", "t", 0), encode_value(offset), [])])
        )
    base, good = world.logs[0].batches[1]
    value_at = good.index(encode_value(offsets[1]))
    damaged = bytearray(good)
    damaged[value_at + 7] ^= 0x40
    world.logs[0].batches[1] = base, bytes(damaged)
    begin_load(world)
    world.clock.advance(60_000)
    assert gate_errors(world)["fetch"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    (line,) = [record.message for record in caplog.records if "cannot be loaded" in record.message]
    assert "offset 1: the batch there is damaged, its checksum is wrong" in line
    assert "barnabas offsets restore GROUP --at TIME" in line, "there may be no other copy"
    world.logs[0].batches[1] = base, good
    world.clock.advance(10_000)
    assert world.fetch("g") == {("t", 0): 2}


def test_a_log_that_ends_before_its_end_offset_is_loaded() -> None:
    """Compaction may take every record between a position and the end: there is nothing to wait for."""
    world = GroupWorld()
    world.commit("g", {("t", 0): 1})
    world.logs[0].log_end_offset += 10
    world.logs[0].release()
    begin_load(world)
    world.settle()
    assert world.fetch("g") == {("t", 0): 1}


def test_very_many_groups_are_made_again_in_pieces() -> None:
    world = GroupWorld()
    count = 3 * PIECES_PER_PASS
    for number in range(count):
        world.commit(f"g{number}", {("t", 0): number})
    begin_load(world)
    seen = []

    def look() -> None:
        shard = world.coordinator.shards[0]
        seen.append(len(shard.groups))
        if shard.loading:
            world.clock.call_soon(look)

    look()
    world.settle()
    assert seen[-1] == count
    assert max(after - before for before, after in pairwise(seen)) <= PIECES_PER_PASS
    assert world.fetch(f"g{count - 1}") == {("t", 0): count - 1}


def test_offsets_of_deleted_topics_go_from_very_many_groups_in_pieces() -> None:
    world = GroupWorld()
    count = 2 * PIECES_PER_PASS + 1
    for number in range(count):
        world.commit(f"g{number}", {("t", 0): 1, ("events", 1): 2})
    left = []

    def look() -> None:
        table = world.coordinator.shards[0].offsets
        left.append(sum("t" in table.of_group(f"g{number}") for number in range(count)))
        if left[-1]:
            world.clock.call_soon(look)

    world.coordinator.on_partitions_deleted([("t", index) for index in range(4)])
    look()
    world.settle()
    assert (left[0], left[-1]) == (count, 0)
    assert max(before - after for before, after in pairwise(left)) <= PIECES_PER_PASS
    assert world.fetch(f"g{count - 1}") == {("events", 1): 2}


def test_what_was_committed_for_a_new_topic_of_that_name_stays() -> None:
    """The topic is deleted and made again while its offsets are being forgotten, a group at a time."""
    world = GroupWorld()
    count = 2 * PIECES_PER_PASS
    for number in range(count):
        world.commit(f"g{number}", {("t", 0): 1, ("t", 1): 1})
    world.coordinator.on_partitions_deleted([("t", index) for index in range(4)])
    last = f"g{count - 1}"
    world.commit(last, {("t", 0): 7})
    world.settle()
    assert world.fetch("g0") == {}
    assert world.fetch(last) == {("t", 0): 7}


def test_a_group_that_cannot_be_forgotten_now_holds_up_no_other_partition() -> None:
    world = GroupWorld(count=2)
    groups: dict[int, str] = {}
    for number in range(20):
        groups.setdefault(partition_for(f"g{number}", 2), f"g{number}")
    for group in groups.values():
        world.commit(group, {("t", 0): 1, ("events", 0): 2})
    world.logs[0].held = True
    world.coordinator.on_partitions_deleted([("t", 0)])
    world.settle()
    assert world.fetch(groups[1]) == {("events", 0): 2}
    world.logs[0].held = False
    world.logs[0].release()
    world.settle()
    assert world.fetch(groups[0]) == {("events", 0): 2}


def test_how_far_a_load_is_can_be_asked_and_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(coordinator_loading, "SLICE_BYTES", 1)
    world = GroupWorld()
    for offset in range(4):
        world.commit("g", {("t", offset): offset})
    read = world.logs[0].read
    fails = False

    def read_some(offset: int, max_bytes: int) -> bytes:
        if fails and offset == 2:
            raise OSError(24, "simulated")
        return read(offset, max_bytes)

    monkeypatch.setattr(world.logs[0], "read", read_some)
    fails = True
    begin_load(world)
    assert world.coordinator.loading() == [(0, 0, 0, 4, "")]
    world.clock.advance(coordinator_loading.RETRY_MS + 1)
    assert world.coordinator.loading() == [(0, 0, 2, 4, "[Errno 24] simulated")]
    assert "loading, " not in caplog.text, "it does not get further, which another line has said"
    fails = False
    monkeypatch.setattr(coordinator_loading, "TELL_MS", 0.0)
    world.clock.advance(coordinator_loading.RETRY_MS)
    assert world.coordinator.loading() == []
    assert "offsets partition 0: loading, 75% (offset 3 of 4, 3 records, 1 group so far)" in caplog.text
    assert world.fetch("g") == {("t", offset): offset for offset in range(4)}


@pytest.mark.parametrize("how", ["deleted", "missing"])
def test_a_topic_that_goes_while_offsets_are_loaded_takes_them_with_it(how: str) -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1, ("events", 0): 2})
    begin_load(world)
    assert world.coordinator.shards[0].loading
    getattr(world.coordinator, f"on_partitions_{how}")([("t", 0)])
    world.settle()
    assert world.fetch("g") == {("events", 0): 2}
    world.restart()
    assert world.fetch("g") == {("events", 0): 2}


def test_topics_that_are_found_missing_take_offsets_with_them_but_no_partition_of_offsets() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1, ("events", 0): 2})
    world.coordinator.on_partitions_missing([("t", 0), (OFFSETS_TOPIC, 0)])
    world.settle()
    assert world.fetch("g") == {("events", 0): 2}
