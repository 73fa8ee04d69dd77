"""The offset journal: what each change writes into it, and that it says the same as the table of offsets."""

import random
from typing import Any

import pytest
from barnabas.offsets import journal_writer, offset_journal
from barnabas.offsets.journal import NO_OFFSET, NOT_KNOWN, Cause, Changes, Gap
from barnabas.offsets.journal_history import Position
from barnabas.protocol import messages, record_batch
from barnabas.protocol.errors import ErrorCode
from conversations import converse
from group_world import GroupWorld, answer_of, join_request
from memory_journal import ELSEWHERE, HERE, MemoryJournal
from simulator.journal_inspection import fold


def journal_of(world: GroupWorld) -> MemoryJournal:
    assert world.journal is not None
    return world.journal


def table(world: GroupWorld) -> dict[str, dict[tuple[str, int], Position]]:
    """What the coordinator has, in the form of `fold`."""
    return {
        group_id: {
            (topic, index): Position(found.offset, found.leader_epoch, found.metadata)
            for topic, partitions in offsets.items()
            for index, found in partitions.items()
        }
        for group_id, offsets in world.coordinator.shards[0].offsets.committed.items()
        if offsets
    }


def moves(world: GroupWorld) -> list[tuple[str, int, int]]:
    """Cause, old and new offset of every row."""
    return [
        (record.cause.words, row.old_offset, row.new_offset)
        for record in journal_of(world).changes()
        for row in record.rows
    ]


def pass_time(world: GroupWorld, milliseconds: float = 20) -> None:
    """Let the journal write: under load it waits a little."""
    world.clock.advance(milliseconds)


def gaps(world: GroupWorld) -> list[Gap]:
    return [record for record in journal_of(world).records() if isinstance(record, Gap)]


def join(world: GroupWorld, group: str = "g") -> Any:
    """A group with one member; its id."""
    reply = world.call("join_group", join_request(group, metadata=b"\x00\x01\x00\x00\x00\x00"), 2)
    world.clock.advance(3_500)
    member = answer_of(reply).member_id
    sync = messages.SyncGroupRequest(group_id=group, generation_id=1, member_id=member, assignments=[])
    world.ask("sync_group", sync, 3)
    return member


def delete_group(world: GroupWorld, group: str) -> None:
    world.ask("delete_groups", messages.DeleteGroupsRequest(groups_names=[group]), 2)


def delete_offset(world: GroupWorld, topic: str, index: int) -> None:
    make = messages.OffsetDeleteRequest
    rows = [make.OffsetDeleteRequestPartition(partition_index=index)]
    request = make(group_id="g", topics=[make.OffsetDeleteRequestTopic(name=topic, partitions=rows)])
    world.ask("offset_delete", request, 0, "someone")


# ---- what is written ----


def test_a_commit_is_written_in_the_same_pass() -> None:
    world = GroupWorld(with_journal=True)
    world.commit("g", {("t", 0): 7}, leader_epoch=3)
    (record,) = journal_of(world).records()
    assert isinstance(record, Changes)
    assert record[:3] == ("g", 0, world.clock.now_ms())
    assert record.cause is Cause.COMMIT
    assert (record.client_id, record.host, record.principal) == ("client", "/127.0.0.1", "User:alice")
    (row,) = record.rows
    assert (row.topic, row.topic_id, row.partition) == ("t", world.topics.topic_id("t"), 0)
    assert (row.old_offset, row.new_offset) == (NO_OFFSET, 7)


def test_the_old_offset_is_the_one_before() -> None:
    world = GroupWorld(with_journal=True)
    world.commit("g", {("t", 0): 7, ("t", 1): 8}, metadata="first")
    world.commit("g", {("t", 0): 9, ("t", 2): 1}, metadata="second")
    pass_time(world)
    first, second = journal_of(world).changes()
    assert [(row.old_offset, row.old_metadata, row.new_offset) for row in second.rows] == [
        (7, "first", 9),
        (NO_OFFSET, "", 1),
    ]
    assert (first.position, first.end_position, second.position) == (0, 2, 2)


def test_a_member_is_named_with_its_generation() -> None:
    world = GroupWorld(with_journal=True)
    member = join(world)
    world.commit("g", {("t", 0): 7}, generation=1, member_id=member)
    (record,) = journal_of(world).changes()
    assert (record.cause, record.generation, record.member_id) == (Cause.COMMIT, 1, member)


def test_a_commit_without_member_in_a_group_that_had_some_is_a_reset() -> None:
    world = GroupWorld(with_journal=True)
    member = join(world)
    world.commit("g", {("t", 0): 7}, generation=1, member_id=member)
    identity = messages.LeaveGroupRequest.MemberIdentity(member_id=member)
    world.ask("leave_group", messages.LeaveGroupRequest(group_id="g", members=[identity]), 4)
    world.commit("g", {("t", 0): 2})
    pass_time(world)
    assert moves(world) == [("commit", NO_OFFSET, 7), ("reset", 7, 2)]


@pytest.mark.parametrize(
    ("client", "cause"), [("my-app", "commit"), ("barnabas-cli", "reset"), ("adminclient-3", "reset")]
)
def test_in_a_group_that_only_commits_an_admin_is_known_by_its_name(client: str, cause: str) -> None:
    world = GroupWorld(with_journal=True)
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t",
        partitions=[messages.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=4)],
    )
    request = messages.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
    world.ask("offset_commit", request, 8, client)
    assert moves(world) == [(cause, NO_OFFSET, 4)]


def test_deletion_expiry_and_a_topic_that_is_gone() -> None:
    world = GroupWorld(with_journal=True, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
    for group in ("deleted", "expires", "one-topic"):
        world.commit(group, {("t", 0): 7})
    delete_group(world, "deleted")
    world.commit("one-topic", {("events", 1): 3})
    world.coordinator.on_partitions_deleted([("events", 1)])
    world.settle()
    pass_time(world, 200_000)
    found = [(record.group_id, record.cause) for record in journal_of(world).changes()]
    assert found == [
        *[(group, Cause.COMMIT) for group in ("deleted", "expires", "one-topic")],
        ("deleted", Cause.DELETION),
        ("one-topic", Cause.COMMIT),
        ("one-topic", Cause.TOPIC_GONE),
        ("expires", Cause.EXPIRY),
        ("one-topic", Cause.EXPIRY),
    ]
    by_cause = {record.cause: record for record in journal_of(world).changes()}
    assert by_cause[Cause.DELETION].client_id == "client"
    assert by_cause[Cause.EXPIRY].client_id == by_cause[Cause.EXPIRY].principal == ""
    assert by_cause[Cause.DELETION].rows[0][3:4] == (7,)
    assert table(world) == fold(journal_of(world).records()) == {}


def test_offset_delete_names_who_deleted() -> None:
    world = GroupWorld(with_journal=True)
    world.commit("g", {("t", 0): 7, ("t", 1): 8})
    delete_offset(world, "t", 1)
    pass_time(world)
    last = journal_of(world).changes()[-1]
    assert (last.cause, last.client_id) == (Cause.DELETION, "someone")
    assert [(row.partition, row.old_offset, row.new_offset) for row in last.rows] == [(1, 8, NO_OFFSET)]


def test_a_transaction_is_written_at_its_end() -> None:
    world = GroupWorld(with_journal=True)
    world.commit("g", {("t", 0): 1})
    other = GroupWorld()
    other.commit("g", {("t", 0): 4})
    (record,) = record_batch.records(other.logs[0].batches[0][1])
    for producer_id in (5, 6):
        batch = record_batch.build(
            [record_batch.Record(0, 0, record.key, record.value, [])],
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
        )
        world.logs[0].append(batch)
    world.restart()
    before = len(journal_of(world).everything())
    world.end(6, is_commit=False)
    world.end(5)
    pass_time(world)
    assert moves(world)[-1] == ("transaction", 1, 4)
    assert len(journal_of(world).everything()) == before + 1
    assert fold(journal_of(world).records()) == table(world)


@pytest.mark.parametrize("change", ["nothing", "one", "metadata", "deletion", "others", "a gap", "a restart"])
def test_a_commit_of_several_offsets_knows_what_was_before(change: str) -> None:
    """The writer remembers the last commit of a group, until something else happens to it."""
    world = GroupWorld(with_journal=True)
    for offset in (5, 6):
        world.commit("g", {("t", index): offset + index for index in range(4)})
    match change:
        case "one":
            world.commit("g", {("t", 2): 50})
        case "metadata":
            world.commit("g", {("t", 1): 60, ("t", 2): 61}, metadata="m")
        case "deletion":
            delete_offset(world, "t", 1)
        case "others":
            world.commit("g", {("t", 3): 70, ("t", 1): 71})
        case "a gap":
            journal_of(world).leader_id = None
        case "a restart":
            pass_time(world)
            world.restart()
    world.commit("g", {("t", index): 100 + index for index in range(4)})
    journal_of(world).leader_id = HERE
    pass_time(world, 3_000)
    chain(journal_of(world))
    assert NOT_KNOWN not in [row.old_offset for record in journal_of(world).changes() for row in record.rows]
    assert fold(journal_of(world).records()) == table(world)


def test_only_so_many_commits_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_journal, "COMMITS_KEPT_MAX", 3)
    monkeypatch.setattr(offset_journal, "OFFSETS_KEPT_MAX", 3)
    world = GroupWorld(with_journal=True)
    for offset in (5, 6, 7):
        for number, count in enumerate((2, 3, 4, 2, 3, 2)):
            world.commit(f"g{number}", {("t", index): offset for index in range(count)})
            assert world.coordinator.journal is not None
            assert len(world.coordinator.journal.last_commits) <= 3
            assert "g2" not in world.coordinator.journal.last_commits
        pass_time(world)
    chain(journal_of(world))


def test_a_large_commit_is_written_in_several_records_and_batches() -> None:
    world = GroupWorld(with_journal=True)
    world.topics.partitions["many"] = 10_000
    world.commit("g", {("many", index): index for index in range(10_000)}, metadata="x" * 40)
    assert len(journal_of(world).changes()) > 4
    assert len(journal_of(world).batches[0]) > 4
    assert fold(journal_of(world).records()) == table(world)
    positions = [record.position for record in journal_of(world).changes()]
    assert positions == sorted(set(positions))


def test_without_a_journal_nothing_is_encoded() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 7})
    assert world.coordinator.shards[0].journal is None
    assert world.coordinator.journal is None


# ---- run equals replay ----


@pytest.mark.parametrize("seed", range(25))
def test_the_journal_folded_is_the_table(seed: int) -> None:
    """In a random conversation with restarts and troubles, whenever everything has been written."""
    chance = random.Random(seed)
    world = GroupWorld(
        seed,
        with_journal=True,
        group_initial_rebalance_delay_ms=200,
        offsets_retention_minutes=1,
        offsets_retention_check_interval_ms=20_000,
    )
    place = journal_of(world)
    world.commit("g", {("t", 0): 1})
    for _ in range(12):
        match chance.randrange(6):
            case 0:
                world.restart()
            case 1:
                place.leader_id = None
            case 2:
                place.leader_id, place.leader_epoch = ELSEWHERE, place.leader_epoch + 1
            case 3:
                place.answers_are_lost = not place.answers_are_lost
            case 4:
                place.failures += [ErrorCode.KAFKA_STORAGE_ERROR] * chance.randrange(1, 4)
            case _:
                place.leader_id, place.leader_epoch = HERE, place.leader_epoch + 1
        converse(world, chance, 40)
        if chance.randrange(2):
            place.answers_are_lost = False
            place.failures.clear()
            place.leader_id = place.leader_id or HERE
            world.logs[0].held = False
            world.logs[0].release()
            pass_time(world, 3_000)
            assert fold(place.records()) == table(world)
            assert not gaps(world)
            chain(place)


def chain(place: MemoryJournal) -> None:
    """Every old offset is the new one of the change before, unless it is not known."""
    now: dict[tuple[str, str, int], int] = {}
    for record in place.changes():
        for row in record.rows:
            key = (record.group_id, row.topic, row.partition)
            assert row.old_offset in (NOT_KNOWN, now.get(key, NO_OFFSET))
            now[key] = row.new_offset


# ---- transactions ----


def test_a_transaction_names_who_sent_its_offsets() -> None:
    world = GroupWorld(with_journal=True)
    member = join(world)
    world.commit("g", {("t", 0): 1}, generation=1, member_id=member)
    world.pend("g", 5, {("t", 0): 7, ("t", 1): 8}, generation=1, member_id=member, metadata="m")
    world.pend("h", 5, {("t", 2): 9})
    pass_time(world)
    assert len(journal_of(world).changes()) == 1, "nothing before the marker"
    position = world.logs[0].log_end_offset
    world.end(5)
    pass_time(world)
    _, first, second = journal_of(world).changes()
    assert (first.group_id, first.cause, first.position) == ("g", Cause.TRANSACTION, position)
    assert (first.client_id, first.host, first.generation, first.member_id) == ("client", "/127.0.0.1", 1, member)
    assert [(row.partition, row.old_offset, row.new_offset, row.new_metadata) for row in first.rows] == [
        (0, 1, 7, "m"),
        (1, NO_OFFSET, 8, "m"),
    ]
    assert (second.group_id, second.generation, second.member_id) == ("h", -1, "")
    assert len(journal_of(world).batches[0]) == 2, "one marker, one batch"
    world.pend("g", 5, {("t", 0): 100})
    world.end(5, is_commit=False)
    pass_time(world)
    assert len(journal_of(world).changes()) == 3
    assert fold(journal_of(world).records()) == table(world)


def test_the_client_of_a_transaction_is_not_known_after_a_restart() -> None:
    world = GroupWorld(with_journal=True)
    world.pend("g", 5, {("t", 0): 7})
    world.restart()
    world.end(5)
    pass_time(world)
    (record,) = journal_of(world).changes()
    assert (record.cause, record.client_id, record.rows[0].new_offset) == (Cause.TRANSACTION, "", 7)


@pytest.mark.parametrize("leader_id", [HERE, ELSEWHERE])
def test_a_transaction_is_recovered_though_it_began_before_the_end_of_the_journal(leader_id: int) -> None:
    world = GroupWorld(with_journal=True)
    journal_of(world).leader_id = leader_id
    world.commit("g", {("t", 0): 1})
    world.pend("g", 5, {("t", 0): 7, ("t", 1): 8})
    world.pend("h", 5, {("t", 0): 9})
    world.pend("h", 6, {("t", 0): 10})
    world.commit("g", {("t", 2): 2})
    pass_time(world, 2_000)
    batches = list(journal_of(world).batches[0])
    world.end(5)
    world.end(6, is_commit=False)
    pass_time(world, 2_000)
    journal_of(world).batches[0] = batches  # as if it had been killed in between
    world.restart()
    pass_time(world, 2_000)
    assert moves(world)[2:] == [
        ("transaction", NOT_KNOWN, 7),
        ("transaction", NOT_KNOWN, 8),
        ("transaction", NOT_KNOWN, 9),
    ]
    assert fold(journal_of(world).records()) == table(world)


# ---- troubles ----


def test_a_crash_before_the_journal_is_written_is_recovered() -> None:
    world = GroupWorld(with_journal=True)
    world.commit("g", {("t", 0): 1})
    pass_time(world)
    batches = list(journal_of(world).batches[0])
    world.commit("g", {("t", 0): 2, ("t", 1): 5})
    world.commit("g", {("t", 0): 3})
    pass_time(world)
    journal_of(world).batches[0] = batches  # as if it had been killed in between
    world.restart()
    pass_time(world)
    assert moves(world) == [
        ("commit", NO_OFFSET, 1),
        ("recovered", NOT_KNOWN, 2),
        ("recovered", NOT_KNOWN, 5),
        ("recovered", 2, 3),
    ]
    assert fold(journal_of(world).records()) == table(world)
    world.commit("g", {("t", 0): 4})
    pass_time(world)
    assert moves(world)[-1] == ("commit", 3, 4)
    world.restart()
    assert len(journal_of(world).everything()) == 5


def test_only_what_is_missing_is_recovered() -> None:
    world = GroupWorld(with_journal=True)
    for offset in range(5):
        world.commit("g", {("t", 0): offset})
        pass_time(world)
    for _ in range(3):
        world.restart()
        pass_time(world, 2_000)
    assert len(journal_of(world).everything()) == 5


@pytest.mark.parametrize("leader_id", [HERE, ELSEWHERE])
def test_what_cannot_be_understood_at_the_end_of_the_journal_is_passed_over(leader_id: int) -> None:
    """A client that calls itself `__admin_client` has written there. The journal goes on behind its last record."""
    world = GroupWorld(with_journal=True)
    for offset in range(5):
        world.commit("g", {("t", 0): offset})
        pass_time(world)
    own = journal_of(world).batches[0][:]
    for value in (b"", b"not of a journal", None):
        foreign = bytearray(record_batch.build([record_batch.Record(0, 1, b"g", value, [])]))
        journal_of(world).append(0, foreign)
    journal_of(world).leader_id = leader_id
    world.restart()
    pass_time(world, 2_000)
    assert len(journal_of(world).batches[0]) == len(own) + 3
    world.commit("g", {("t", 0): 9})
    pass_time(world, 2_000)
    journal_of(world).batches[0][len(own) : len(own) + 3] = []
    assert moves(world)[-2:] == [("commit", 3, 4), ("commit", 4, 9)]
    assert not gaps(world)


@pytest.mark.parametrize("leader_id", [HERE, ELSEWHERE])
def test_how_far_the_journal_is(leader_id: int) -> None:
    world = GroupWorld(with_journal=True)
    journal_of(world).leader_id = leader_id

    def progress() -> tuple[int, int]:
        (written,) = [shard.journal.progress() for shard in world.coordinator.shards.values() if shard.journal]
        is_here = journal_of(world).leader_id == HERE
        assert written.end_offset == (len(journal_of(world).batches.get(0, ())) if is_here else -1)
        return written.noted_to, written.written_to

    world.commit("g", {("t", 0): 1})
    pass_time(world, 2_000)
    noted_to, written_to = progress()
    assert noted_to == written_to > 0
    journal_of(world).failures = [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    world.commit("g", {("t", 0): 2})
    pass_time(world)
    assert progress() == (noted_to + 1, -1 if leader_id == ELSEWHERE else written_to)
    pass_time(world, 5_000)
    assert progress() == (noted_to + 1, noted_to + 1)
    world.commit("g", {("t", 0): 3})
    journal_of(world).leader_id = None
    pass_time(world, 5_000)
    assert progress()[1] == -1


def test_a_group_that_was_there_before_its_first_commit_is_no_gap() -> None:
    world = GroupWorld(with_journal=True)
    member = join(world)
    world.restart()
    world.commit("g", {("t", 0): 7}, generation=1, member_id=member)
    pass_time(world)
    assert moves(world) == [("commit", NO_OFFSET, 7)]
    assert not gaps(world)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_journal_begins_with_the_offsets_that_were_there_before(is_there: bool) -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1, ("t", 1): 5})
    place = world.journal = MemoryJournal(world.topics.topic_id)
    place.is_there = is_there
    world.restart()
    assert place.creations == (not is_there)
    place.is_there = True
    pass_time(world, 1_100)
    assert moves(world) == [("recovered", NOT_KNOWN, 1), ("recovered", NOT_KNOWN, 5)]
    world.commit("g", {("t", 0): 2})
    pass_time(world)
    assert moves(world)[2:] == [("commit", 1, 2)]


def test_a_journal_that_was_deleted_and_made_again_begins_with_the_offsets_that_are_there() -> None:
    """The new one has the same leader, in the same epoch."""
    world = GroupWorld(with_journal=True)
    for offset in (1, 2):
        world.commit("g", {("t", 0): offset})
        pass_time(world)
    place = journal_of(world)
    place.batches.clear()
    place.own_id = b"made-again-made-"
    world.commit("g", {("t", 0): 3})
    pass_time(world)
    assert moves(world) == [("recovered", NOT_KNOWN, 1), ("recovered", 1, 2), ("commit", 2, 3)]


def test_a_journal_of_very_many_offsets_that_were_there_before_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writer, "BEGINNING_MAX", 0)
    world = GroupWorld()
    world.commit("g", {("t", 0): 1})
    world.journal = MemoryJournal(world.topics.topic_id)
    world.restart()
    world.commit("g", {("t", 0): 2})
    pass_time(world)
    begin, change = journal_of(world).records()
    assert isinstance(begin, Gap)
    assert (begin.position, begin.end_position, begin.change_count) == (0, 1, -1)
    assert "begins here" in begin.why
    assert isinstance(change, Changes)
    assert change.rows[0].old_offset == 1


def test_what_was_written_before_the_log_of_offsets_lost_its_end() -> None:
    world = GroupWorld(with_journal=True)
    for offset in range(3):
        world.commit("g", {("t", 0): offset})
        pass_time(world)
    log = world.logs[0]
    log.batches.pop()
    log.log_end_offset = log.high_watermark = 2
    world.restart()
    pass_time(world)
    (gap,) = gaps(world)
    assert (gap.position, gap.end_position) == (2, 2)
    assert gap.first_ms == gap.last_ms > journal_of(world).records()[-2].time_ms, "before, all was as it was noted"
    assert "lost its end" in gap.why
    world.commit("g", {("t", 0): 9})
    pass_time(world)
    assert moves(world)[-1] == ("commit", 1, 9)
    world.restart()
    pass_time(world)
    assert len(gaps(world)) == 1


def test_the_journal_is_made_by_the_first_change() -> None:
    world = GroupWorld(with_journal=True)
    place = journal_of(world)
    place.is_there = False
    pass_time(world, 5_000)
    assert place.creations == 0
    assert world.commit("g", {("t", 0): 1}) == [0]
    assert place.creations == 1
    assert not place.batches
    place.is_there = True
    assert world.coordinator.journal is not None
    world.coordinator.journal.leader_changed([0])
    pass_time(world)
    assert moves(world) == [("commit", NO_OFFSET, 1)]


@pytest.mark.parametrize("lost", [False, True])
def test_another_broker_leads_the_journal(lost: bool) -> None:
    world = GroupWorld(with_journal=True)
    place = journal_of(world)
    place.leader_id = ELSEWHERE
    place.answers_are_lost = lost
    for offset in range(4):
        assert world.commit("g", {("t", 0): offset}) == [0]
        pass_time(world)
    pass_time(world, 1_100)
    place.answers_are_lost = False
    pass_time(world, 1_100)
    assert [record.rows[0].new_offset for record in place.everything() if isinstance(record, Changes)] == [0, 1, 2, 3]
    place.leader_id, place.leader_epoch = HERE, 1
    world.commit("g", {("t", 0): 4})
    pass_time(world)
    assert [new for _, _, new in moves(world)] == [0, 1, 2, 3, 4]


def test_a_new_leader_of_the_journal_that_lacks_its_end_gets_it_again() -> None:
    """The journal is written without waiting for its replicas."""
    world = GroupWorld(with_journal=True)
    place = journal_of(world)
    for offset in range(4):
        world.commit("g", {("t", 0): offset})
        pass_time(world)
    del place.batches[0][2:]
    place.leader_id, place.leader_epoch = ELSEWHERE, 1
    pass_time(world, 1_100)
    assert moves(world) == [
        ("commit", NO_OFFSET, 0),
        ("commit", 0, 1),
        ("recovered", NOT_KNOWN, 2),
        ("recovered", 2, 3),
    ]


def test_what_cannot_be_written_becomes_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writer, "WAITING_BYTES_MAX", 2_000)
    monkeypatch.setattr(journal_writer, "PART_BYTES", 500)
    world = GroupWorld(with_journal=True)
    place = journal_of(world)
    place.failures = [ErrorCode.KAFKA_STORAGE_ERROR] * 10_000
    for offset in range(100):
        assert world.commit("g", {("t", 0): offset}) == [0]
    gap_ended_ms = world.clock.now_ms()
    pass_time(world, 5_000)
    assert not place.batches
    assert world.coordinator.journal is not None
    assert world.coordinator.journal.waiting_bytes < 3_000
    place.failures.clear()
    pass_time(world, 1_100)
    (gap,) = gaps(world)
    written = moves(world)
    assert len(written) + gap.change_count == 100
    assert 5 < len(written) < 30
    assert (gap.position, gap.end_position) == (len(written), 100)
    assert gap.last_ms == gap_ended_ms
    world.commit("g", {("t", 0): 100})
    pass_time(world)
    assert moves(world)[-1] == ("commit", 99, 100)
    assert world.coordinator.journal.waiting_bytes == 0
    world.restart()
    pass_time(world)
    assert len(moves(world)) == len(written) + 1


@pytest.mark.parametrize("end", ["more commits", "another leader", "unloading"])
def test_much_that_waits_is_written_in_turns_with_others(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(journal_writer, "PART_BYTES", 300)
    world = GroupWorld(with_journal=True)
    place = journal_of(world)
    world.commit("g", {("t", 0): 1})
    pass_time(world)
    place.failures = [ErrorCode.KAFKA_STORAGE_ERROR] * 10_000
    for offset in range(2, 200):
        world.commit("g", {("t", 0): offset})
    pass_time(world)
    place.failures.clear()
    before = len(place.batches[0])
    assert world.coordinator.journal is not None
    world.coordinator.journal.partitions[0].write()
    assert len(place.batches[0]) <= before + journal_writer.PARTS_AT_ONCE_MAX
    match end:
        case "more commits":
            for offset in range(200, 220):
                world.commit("g", {("t", 0): offset})
        case "another leader":
            place.leader_id, place.leader_epoch = ELSEWHERE, place.leader_epoch + 1
        case _:
            world.restart()
    pass_time(world, 3_000)
    assert fold(place.records()) == table(world)
    assert place.everything() == place.records()
    assert not gaps(world)
    chain(place)


def test_a_record_that_is_too_large_becomes_a_gap() -> None:
    world = GroupWorld(with_journal=True)
    journal_of(world).failures = [ErrorCode.MESSAGE_TOO_LARGE]
    world.commit("g", {("t", 0): 1, ("t", 1): 2})
    pass_time(world)
    (gap,) = gaps(world)
    assert (gap.change_count, gap.position, gap.end_position) == (2, 0, 2)
    assert "too large" in gap.why


def test_the_log_does_not_repeat_why_there_are_gaps(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody has set max.message.bytes of the journal so low that nothing fits: that was fifty lines a second."""
    world = GroupWorld(with_journal=True)
    journal_of(world).failures = [ErrorCode.MESSAGE_TOO_LARGE] * 1_000
    for offset in range(50):
        world.commit("g", {("t", 0): offset})
        pass_time(world, 100)
    told = [record for record in caplog.records if "has a gap" in record.message]
    assert len(told) == 1
    pass_time(world, 60_000)
    for offset in range(50, 60):
        world.commit("g", {("t", 0): offset})
        pass_time(world, 100)
    told = [record for record in caplog.records if "has a gap" in record.message]
    assert len(told) == 2


def test_a_bug_in_the_journal_does_not_fail_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = GroupWorld(with_journal=True)

    def broken(*_: Any) -> bytes:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(journal_writer.form, "encode_one", broken)
        assert world.commit("g", {("t", 0): 1}) == [0]
    assert world.fetch("g") == {("t", 0): 1}
    pass_time(world)
    (gap,) = gaps(world)
    assert gap.change_count == 1


def test_an_unloaded_partition_leaves_the_rest_to_the_next_coordinator() -> None:
    world = GroupWorld(with_journal=True)
    place = journal_of(world)
    place.leader_id = None
    world.commit("g", {("t", 0): 1})
    assert world.coordinator.journal is not None
    journal = world.coordinator.journal
    world.coordinator.unload(0)
    assert journal.waiting_bytes == 0
    assert not journal.partitions
    place.leader_id = HERE
    world.restart()
    pass_time(world)
    assert moves(world) == [("recovered", NOT_KNOWN, 1)]


def test_a_coordinator_that_stops_writes_what_it_has() -> None:
    world = GroupWorld(with_journal=True)
    for offset in range(3):
        world.commit("g", {("t", 0): offset})
    world.coordinator.shutdown()
    assert [new for _, _, new in moves(world)] == [0, 1, 2]


def test_under_load_appends_are_few() -> None:
    world = GroupWorld(with_journal=True)
    for offset in range(100):
        world.commit("g", {("t", 0): offset})
        world.clock.advance(1)
    pass_time(world)
    assert len(moves(world)) == 100
    assert journal_of(world).appends <= 12
