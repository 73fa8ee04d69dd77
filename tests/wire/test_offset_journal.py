"""The offset journal of a whole broker whose disk has trouble: commits go on, and the journal says what it lacks."""

import errno
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker.offset_journal import JournalOfBroker
from barnabas.coordinators.coordinator import partition_for
from barnabas.offsets import journal_writer
from barnabas.offsets.journal import Cause, Changes, Gap, decode, encode_gap, without_repetitions
from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FindCoordinatorRequest
from barnabas.runtime.turns import ended

sys.path.insert(0, str(Path(__file__).parent))
from http_examples import commit
from test_adoption import stop_without_losing_the_tree

World = Any  # of conftest.py
MakeWorld = type[Any]
GROUP = "billing"
JOURNAL = "__offset_journal"
NO_SPACE = OSError(errno.ENOSPC, "simulated: no space left on device")
BROKEN = OSError(errno.EIO, "simulated")


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    made = make_world()
    prepare(made)
    return made


def prepare(world: World) -> None:
    """A topic, a group with a committed offset, and a journal that has it."""
    world.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=GROUP))
    world.create_topic("orders")
    commit(world, GROUP, "orders", offset=1)
    world.env.clock.advance(2_000)
    assert moves(world) == [(Cause.COMMIT, -1, 1)]


def records(world: World) -> list[Changes | Gap]:
    """What the partition of the group has in the journal."""
    log = world.broker.replica_manager.partitions[JOURNAL, partition_for(GROUP, 3)].log
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for header, batch in record_batch.batches(
            log.read(offset, 1 << 20, upper_bound=log.log_end_offset, at_least_one=True).records
        ):
            found += [decode(record.key, record.value) for record in record_batch.records(batch)]
            offset = header.next_offset
    return list(without_repetitions(found))


def moves(world: World) -> list[tuple[Cause, int, int]]:
    return [
        (record.cause, row.old_offset, row.new_offset)
        for record in records(world)
        if isinstance(record, Changes)
        for row in record.rows
    ]


def test_a_full_disk_of_the_journal_delays_nobody(world: World) -> None:
    """What could not be written waits, and is written in order when there is room again."""
    world.env.disk.fail("write", JOURNAL, NO_SPACE, times=1_000_000)
    began = world.env.clock.now_ms()
    for offset in range(2, 6):
        commit(world, GROUP, "orders", offset=offset)
    assert world.env.clock.now_ms() - began < 100
    world.env.clock.advance(5_000)
    assert len(moves(world)) == 1
    world.env.disk.repair()
    world.env.clock.advance(60_000)
    assert moves(world) == [(Cause.COMMIT, offset - 1 or -1, offset) for offset in range(1, 6)]
    world.env.run(world.broker.stop())


def test_what_a_failed_log_did_not_take_is_found_again_at_the_next_start(world: World, make_world: MakeWorld) -> None:
    env = world.env
    env.disk.fail("write", JOURNAL, BROKEN)
    for offset in range(2, 6):
        commit(world, GROUP, "orders", offset=offset)
    env.clock.advance(60_000)
    assert len(moves(world)) == 1, "the log takes nothing until the next start"
    again = make_world(env, coordination=stop_without_losing_the_tree(world))
    commit(again, GROUP, "orders", offset=6)
    env.clock.advance(2_000)
    causes = [Cause.COMMIT, *[Cause.RECOVERED] * 4, Cause.COMMIT]
    assert [(cause, new) for cause, _, new in moves(again)] == list(zip(causes, range(1, 7), strict=True))
    env.run(again.broker.stop())


def test_what_waits_too_long_becomes_a_gap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its extent is kept. It is written down as soon as anything is."""
    monkeypatch.setattr(journal_writer, "WAITING_BYTES_MAX", 2_000)
    monkeypatch.setattr(journal_writer, "PART_BYTES", 500)
    env = world.env
    env.disk.fail("write", JOURNAL, NO_SPACE, times=1_000_000)
    for offset in range(2, 102):
        commit(world, GROUP, "orders", offset=offset)
    env.clock.advance(5_000)
    env.disk.repair()
    env.clock.advance(60_000)
    (gap,) = [record for record in records(world) if isinstance(record, Gap)]
    found = moves(world)
    assert gap.change_count + len(found) == 101
    assert gap.change_count > 50
    assert gap.why == "the journal could not be written for too long"
    commit(world, GROUP, "orders", offset=200)
    env.clock.advance(2_000)
    assert moves(world)[-1] == (Cause.COMMIT, 101, 200)
    env.run(world.broker.stop())


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_coordinator_with_another_clock_can_write_to_its_leader(make_world: MakeWorld, hours: int) -> None:
    """It writes as `__admin_client`. A topic of clients may refuse such a time, and then it would do so for ever."""
    world = make_world(log_message_timestamp_before_max_ms="60000", log_message_timestamp_after_max_ms="60000")
    prepare(world)
    batch = bytearray(records_at(world.env.clock.now_ms() + hours * 3_600_000))
    place = messages.ProduceRequest.TopicProduceData
    row = messages.ProduceRequest.PartitionProduceData(index=partition_for(GROUP, 3), records=batch)

    def errors(topic: str) -> ErrorCode:
        row.index = partition_for(GROUP, 3) if topic == JOURNAL else 0
        request = messages.ProduceRequest(
            acks=-1, timeout_ms=5_000, topic_data=[place(name=topic, partition_data=[row])]
        )
        (answer,) = world.exchange(frames.encode_request(ApiKey.PRODUCE, 9, 1, "__admin_client", request)[4:])
        response = frames.decode_response(ApiKey.PRODUCE, 9, memoryview(answer))[1]
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    assert errors("orders") is ErrorCode.INVALID_TIMESTAMP
    assert errors(JOURNAL) is ErrorCode.NONE
    world.env.run(world.broker.stop())


def records_at(time_ms: int) -> bytes:
    """A batch of one record."""
    return record_batch.build([record_batch.Record(0, time_ms, b"", encode_gap(Gap(-1, -1, 0, time_ms, -1, "x")), [])])


def test_a_batch_that_followers_lack_is_not_taken_for_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the coordinator would take a journal whose leader has just changed for empty, and begin it anew."""
    index = partition_for(GROUP, 3)
    log = world.broker.replica_manager.partitions[JOURNAL, index].log
    client = SimpleNamespace(send=world.broker.request_gate.ask)
    monkeypatch.setattr(world.broker.broker_clients, "to", lambda *asked: client)

    def last_batch() -> Any:
        place = JournalOfBroker(world.broker)
        return world.env.run(ended(place.fetch_last_batch(index, world.broker.node_id, None)))

    assert len(last_batch()) > 0
    log.high_watermark = log.log_start_offset
    assert last_batch() is None
