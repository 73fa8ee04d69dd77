import random
import struct
from array import array

import pytest
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.record_batch import Record, build
from barnabas.protocol.transaction_marker import (
    CONTROL_COMMIT,
    EndTransactionMarker,
    _marker_in,
    build_marker,
    marker_of,
)
from barnabas.storage import truncation
from barnabas.storage.checkpoints import CheckpointError
from barnabas.storage.index import AbortedTransaction, AbortedTransactions
from barnabas.storage.producer_entry import SEQUENCE_MAX, last_sequence_of
from barnabas.storage.producer_snapshot import read_snapshot
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.validation import AppendOrigin
from simulator.env import sim_env
from simulator.storage_transactions import take_part

P = {"producer_id": 9, "producer_epoch": 1}


def produce(world, log, sequence, count=2, epoch=1, producer_id=9, transactional=False):
    pairs = [(b"k", b"v")] * count
    return world.append(
        log, *pairs, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )


def test_a_duplicate_is_answered_with_its_stored_offset_and_timestamp(world):
    log = world.log()
    for sequence in (0, 2):
        assert produce(world, log, sequence).duplicate is False
    first_time = world.now()
    world.clock.advance(5)
    again = produce(world, log, 0)
    assert (again.error, again.duplicate, again.base_offset, again.last_offset) == (0, True, 0, 1)
    assert again.log_append_time_ms == first_time
    assert log.log_end_offset == 4


def test_the_window_remembers_five_batches(world):
    log = world.log()
    for number in range(6):
        assert produce(world, log, number * 2).error == 0
    assert produce(world, log, 2).duplicate
    assert produce(world, log, 0).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("epoch", "sequence", "error"),
    [
        (1, 2, 0),
        (1, 3, 45),
        (1, 1, 45),
        (0, 2, 47),
        (2, 0, 0),
        (2, 2, 45),
    ],
)
def test_sequences_and_epochs_after_two_records(world, epoch, sequence, error):
    log = world.log()
    produce(world, log, 0)
    assert produce(world, log, sequence, epoch=epoch).error == error


def test_an_unknown_producer_may_start_anywhere(world):
    assert produce(world, world.log(), 77).error == 0


def test_sequences_wrap(world):
    log = world.log()
    assert produce(world, log, SEQUENCE_MAX - 1, count=1).error == 0
    assert produce(world, log, SEQUENCE_MAX, count=3).error == 0
    assert last_sequence_of(SEQUENCE_MAX, 2) == 1
    assert produce(world, log, 2).error == 0
    assert produce(world, log, SEQUENCE_MAX, count=3).duplicate
    other = world.log("other")
    assert produce(world, other, SEQUENCE_MAX, count=1).error == 0
    assert produce(world, other, 0).error == 0


def test_the_state_is_the_same_after_replaying_the_log(world):
    log = world.log(segment_bytes=700)
    for number in range(10):
        produce(world, log, number * 2)
        produce(world, log, number * 2, producer_id=8, transactional=True)
    world.marker(log, 8, epoch=1, commit=False)
    produce(world, log, 0, producer_id=7, transactional=True)

    def facts(log):
        return {
            key: (
                e.producer_epoch,
                e.coordinator_epoch,
                e.last_timestamp,
                e.current_transaction_first_offset,
                e.batches[-1:],
            )
            for key, e in log.producers.entries.items()
        }

    before, unstable = facts(log), log.producers.first_unstable_offset
    aborted = log.segments.aborted_transactions(0, log.log_end_offset)
    log.flush()
    for crashed in (True, False):
        log = (world.crash("kept") if crashed else world.restart()).get("t", 0)
        log.set_high_watermark(log.log_end_offset)
        assert facts(log) == before
        assert log.segments.aborted_transactions(0, log.log_end_offset) == aborted == [(8, 2)]
        if not crashed:
            assert log.producers.first_unstable_offset == unstable or log.last_stable_offset == 41


def test_a_crash_behind_a_roll_forgets_no_batch_that_may_be_sent_again(world):
    log = world.log()
    for number in range(5):
        assert produce(world, log, number * 2).error == 0
        log.roll()
    log.flush()
    log = world.crash("kept").get("t", 0)
    for number in range(5):
        again = produce(world, log, number * 2)
        assert (again.error, again.duplicate, again.base_offset) == (0, True, number * 2)
    assert produce(world, log, 10).base_offset == 10


def test_a_clean_restart_forgets_no_batch_that_may_be_sent_again(world):
    """A stop can take the answers of all requests in flight. Then the producer begins with the first of them."""
    log = world.log()
    for number in range(6):
        assert produce(world, log, number * 2).error == 0
    log = world.restart().get("t", 0)
    assert produce(world, log, 0).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # the sixth from the end
    for number in range(1, 6):
        again = produce(world, log, number * 2)
        assert (again.error, again.duplicate, again.base_offset) == (0, True, number * 2)
    assert produce(world, log, 12).base_offset == 12
    log = world.restart().get("t", 0)  # what was read of one snapshot is in the next one
    assert [batch.last_sequence for batch in log.producers.get(9).batches] == [5, 7, 9, 11, 13]


def test_a_restart_reads_only_what_is_behind_the_snapshot(world):
    log = world.log()
    for number in range(20):
        produce(world, log, number * 2)
    world.manager.shutdown()
    reads = []
    original = world.disk.raise_planned_failure
    world.disk.raise_planned_failure = lambda operation, path: (
        reads.append(path) if operation == "read" else None,
        original(operation, path),
    )[1]
    log = world.open().get("t", 0)
    assert log.producers.get(9).last_sequence == 39
    logs_read = [path for path in reads if path.endswith(".log")]
    assert len(logs_read) == 2, "the first bytes, which say where it begins, and the tail, to find the log end"
    assert "/data/t-0/00000000000000000040.snapshot" in reads


def test_a_damaged_snapshot_gives_way_to_an_older_one(world):
    log = world.log()
    produce(world, log, 0)
    log.roll()
    produce(world, log, 2)
    world.manager.shutdown()
    path = "/data/t-0/00000000000000000004.snapshot"
    world.disk.open(path).write(8, b"\xff")
    with pytest.raises(CheckpointError, match="checksum"):
        read_snapshot(world.disk, path)
    log = world.open().get("t", 0)
    assert log.producers.get(9).last_sequence == 3
    assert not world.disk.exists(path)


def test_truncation_rebuilds_the_state(world):
    log = world.log()
    for number in range(4):
        produce(world, log, number * 2)
    truncation.truncate_to(log, 4)
    assert log.producers.get(9).last_sequence == 3
    assert produce(world, log, 4).error == 0


def test_producers_expire_unless_a_transaction_is_open(world):
    log = world.log()
    produce(world, log, 0)
    produce(world, log, 0, producer_id=8, transactional=True)
    assert len(log.producers.entries) == 2
    world.clock.advance(86_400_000 + 600_000)
    assert list(log.producers.entries) == [8]


def test_the_last_stable_offset_waits_for_transactions_and_their_replicated_markers(world):
    log = world.log()
    world.append(log, (b"k", b"v"))
    produce(world, log, 0, transactional=True)
    produce(world, log, 0, producer_id=8, transactional=True)
    log.set_high_watermark(5)
    assert log.last_stable_offset == 1
    world.marker(log, 9, epoch=1)
    assert log.last_stable_offset == 1  # the marker at 5 is not below the high watermark yet
    log.set_high_watermark(6)
    assert log.last_stable_offset == 3
    world.marker(log, 8, epoch=1, commit=False)
    log.set_high_watermark(7)
    assert log.last_stable_offset == 7


def test_the_last_stable_offset_is_never_below_the_log_start(world):
    log = world.log()
    produce(world, log, 0, transactional=True)
    world.fill(log, 5)
    assert log.last_stable_offset == 0
    log.delete_records_before(3)
    assert log.last_stable_offset == 3
    assert world.restart().get("t", 0).last_stable_offset == 3
    log = world.manager.get("t", 0)
    world.marker(log, 9, epoch=1, commit=False)
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 8
    assert log.segments.aborted_transactions(3, 8) == [(9, 0)]


def test_aborted_transactions_that_overlap_a_range(world):
    log = world.log(segment_bytes=400)
    for _ in range(3):
        last = log.producers.get(9)
        produce(world, log, 0 if last is None else last.last_sequence + 1, transactional=True)
        world.append(log, (b"k", b"v"))
        world.marker(log, 9, epoch=1, commit=False)
    log.set_high_watermark(log.log_end_offset)
    assert len(log.segments) > 1
    assert log.segments.aborted_transactions(0, 12) == [(9, 0), (9, 4), (9, 8)]
    assert log.segments.aborted_transactions(4, 8) == [(9, 4)]
    assert log.segments.aborted_transactions(3, 5) == [(9, 0), (9, 4)]
    assert log.segments.aborted_transactions(11, 12) == [(9, 8)]


def test_a_marker_is_read_as_its_records_say():
    rng = random.Random(5)
    for number in range(2_000):
        batch = build_marker(
            rng.choice((0, 1)),
            base_offset=0,
            partition_leader_epoch=-1,
            producer_id=rng.randrange(2**62),
            producer_epoch=rng.randrange(2**15),
            coordinator_epoch=rng.randrange(-1, 2**31),
            timestamp=rng.randrange(2**41),
        )
        if number % 2:
            batch[rng.choice((22, 60, *range(61, len(batch))))] = rng.choice((0, 1, 2, 8, 12, 16, 32, 255))
        try:
            wanted = _marker_in(batch)
        except CorruptBatchError:
            continue
        assert marker_of(batch) == wanted
        assert number % 2 or wanted is not None
    other = build([Record(timestamp=7, key=b"\0\0\0\1", value=bytes(6), headers=[("h", b"")])], control=True)
    assert marker_of(other) == _marker_in(other) == EndTransactionMarker(True, 0)


def test_a_fetch_looks_only_at_aborted_transactions_that_it_may_meet(world):
    """A segment of small transactions has millions of them."""
    looked = 0

    class Counting(array):
        def __getitem__(self, place):
            nonlocal looked
            looked += 1
            return super().__getitem__(place)

    log = world.log()
    entries = []
    open_from = {}
    offset, rng = 0, random.Random(1)
    while len(entries) < 3_000:
        producer_id = rng.randrange(8)
        if producer_id in open_from:
            first = open_from.pop(producer_id)
            entries.append(AbortedTransaction(producer_id, first, offset, min([first, *open_from.values()])))
        else:
            open_from[producer_id] = offset
        offset += 1
    log.segments.active.transaction_index._entries = index = AbortedTransactions()
    index._numbers = Counting("q")
    for entry in entries:
        index.append(entry)
    for _ in range(200):
        start = rng.randrange(offset)
        end = start + rng.randrange(1, 50)
        looked = 0
        found = log.segments.aborted_transactions(start, end)
        assert found == [
            (entry.producer_id, entry.first_offset)
            for entry in entries
            if entry.last_offset >= start and entry.first_offset < end
        ]
        assert looked < 20 + 4 * 3 * 50
        assert found == [(entry.producer_id, entry.first_offset) for entry in log.segments.aborted_between(start, end)]


def test_data_outside_a_transaction_is_refused_while_one_is_open(world):
    log = world.log()
    produce(world, log, 0, transactional=True)
    assert produce(world, log, 2).error == ErrorCode.INVALID_TXN_STATE


def test_markers_are_fenced_by_epochs(world):
    log = world.log()
    produce(world, log, 0, transactional=True)
    assert world.marker(log, 9, epoch=0).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.marker(log, 9, epoch=1, coordinator_epoch=5).error == 0
    assert world.marker(log, 9, epoch=1, coordinator_epoch=4).error == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_coordinator_writes_without_sequences(world):
    log = world.log()
    batch = build([Record(timestamp=1, key=b"k")], producer_id=9, producer_epoch=1, transactional=True)
    assert (
        log.append_as_leader(bytes(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=1).error
        == ErrorCode.INVALID_TXN_STATE
    )
    take_part(log, 9, 1)
    for _ in range(2):
        result = log.append_as_leader(bytes(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=1)
        assert result.error == 0
    assert log.producers.first_unstable_offset == 0


def test_snapshot_files_have_kafkas_layout():
    disk = sim_env().disk
    disk.make_directory("/p")
    state = ProducerStateManager(disk, "/p")
    state.update_data(2, 0, 8, 11, 12, 1760000000018, True)
    state.update_marker(2, 0, EndTransactionMarker(False, 0), 13, 1795253260871)
    state.map_end_offset = 14
    path = state.take_snapshot()
    data = disk.open(path).read(0, 999)
    assert path == "/p/00000000000000000014.snapshot"
    assert len(data) == 2 + 4 + 4 + 46
    producer, sequence, offset, delta = "0000000000000002" + "0000", "00000009", "000000000000000c", "00000001"
    times_and_epochs = f"{1795253260871:016x}" + "00000000" + "ffffffffffffffff"
    assert data[10:].hex() == producer + sequence + offset + delta + times_and_epochs
    assert state.take_snapshot() is None


def test_a_snapshot_has_a_row_for_each_remembered_batch_and_the_last_row_is_what_kafka_takes():
    disk = sim_env().disk
    disk.make_directory("/p")
    state = ProducerStateManager(disk, "/p")
    for number in range(6):
        state.update_data(2, 0, number, number, number, 1000 + number, number >= 3)
    state.update_marker(3, 7, EndTransactionMarker(True, 4), 6, 1010)  # has no batch
    state.update_data(1, 1, SEQUENCE_MAX, 7, 8, 1020, False)
    state.map_end_offset = 9
    path = state.take_snapshot()
    rows = list(struct.iter_unpack(">qhiqiqiq", disk.open(path).read(10, 999)))
    assert disk.open(path).read(6, 4) == len(rows).to_bytes(4, "big")
    assert [row[:4] for row in rows if row[0] == 2] == [(2, 0, number, number) for number in range(1, 6)]
    assert [row[5:] for row in rows if row[0] == 2] == [(1005, -1, -1)] * 4 + [(1005, -1, 3)]
    assert [row for row in rows if row[0] == 3] == [(3, 7, -1, -1, 0, 1010, 4, -1)]
    again = ProducerStateManager(disk, "/p", [9])
    assert again.load_snapshot(0, 9) == 9
    for producer_id, entry in state.entries.items():
        found = again.entries[producer_id]
        assert [batch[:3] for batch in found.batches] == [batch[:3] for batch in entry.batches]
        assert (found.producer_epoch, found.coordinator_epoch) == (entry.producer_epoch, entry.coordinator_epoch)
        assert (found.last_timestamp, found.last_offset) == (entry.last_timestamp, entry.last_offset)
    assert again.first_unstable_offset == 3
    assert again.get(1).duplicate_of(1, SEQUENCE_MAX, 0).first_offset == 7
    again.update_data(2, 0, 6, 9, 9, 1030, True)
    assert [batch.last_offset for batch in again.get(2).batches] == [2, 3, 4, 5, 9]


def begin(log, epoch=1, sequence=0, *, raises_epochs=False, producer_id=9):
    return log.producers.begin_verification(producer_id, epoch, sequence, 0, raises_epochs=raises_epochs)


def send(world, log, sequence, epoch=1, transactional=True):
    batch = build(
        [Record(timestamp=world.now(), key=b"k", value=b"v")],
        producer_id=9,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return log.append_as_leader(batch, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=world.now()).error


def test_a_transaction_begins_when_its_coordinator_has_confirmed_it(world):
    log = world.log()
    assert send(world, log, 0) == ErrorCode.INVALID_TXN_STATE
    asked = begin(log)
    assert send(world, log, 0) == ErrorCode.INVALID_TXN_STATE
    assert log.producers.confirm(asked, 1)
    assert [send(world, log, sequence) for sequence in (0, 1)] == [0, 0]
    assert log.producers.is_in_transaction(9, 1)
    assert begin(log) is None
    world.marker(log, 9, epoch=1)
    assert not log.producers.is_in_transaction(9, 1)
    assert send(world, log, 2) == ErrorCode.INVALID_TXN_STATE, "it may be of the transaction that has ended"
    assert send(world, log, 1) == 0, "a duplicate is no write"


def test_an_answer_that_a_marker_has_overtaken_does_not_count(world):
    log = world.log()
    asked = begin(log)
    world.marker(log, 9, epoch=1, commit=False)
    assert not log.producers.confirm(asked, 1)
    assert send(world, log, 0) == ErrorCode.INVALID_TXN_STATE
    again = begin(log)
    assert again is not asked
    assert not log.producers.confirm(asked, 1)
    assert log.producers.confirm(again, 1)
    assert send(world, log, 0) == 0


def mark(world, log, epoch, origin=AppendOrigin.COORDINATOR_OF_VERSION_2):
    marker = build_marker(
        CONTROL_COMMIT,
        base_offset=0,
        partition_leader_epoch=-1,
        producer_id=9,
        producer_epoch=epoch,
        coordinator_epoch=0,
        timestamp=world.now(),
    )
    assert log.append_as_leader(marker, leader_epoch=0, origin=origin, now_ms=world.now()).error == 0


def test_in_version_2_the_marker_of_the_transaction_before_takes_no_question_away(world):
    """It has the epoch that the end has raised. The marker of the transaction in question has a higher one."""
    log = world.log()
    assert log.producers.confirm(begin(log, epoch=0, raises_epochs=True), 0)
    assert send(world, log, 0, epoch=0) == 0
    asked = begin(log, epoch=1, raises_epochs=True)
    mark(world, log, epoch=1)
    assert log.producers.confirm(asked, 1)
    mark(world, log, epoch=1)  # sent twice
    assert send(world, log, 0, epoch=1) == 0
    asked = begin(log, epoch=2, raises_epochs=True)
    mark(world, log, epoch=3)
    assert not log.producers.confirm(asked, 2), "its own transaction has ended"
    old = begin(log, epoch=3, raises_epochs=False)
    mark(world, log, epoch=3)
    assert not log.producers.confirm(old, 3), "such a client's transaction ends in its own epoch"
    asked = begin(log, epoch=3, raises_epochs=True)
    mark(world, log, epoch=3, origin=AppendOrigin.COORDINATOR)
    assert not log.producers.confirm(asked, 3), "so does one that its coordinator ends by the old rules"


def test_of_several_batches_in_flight_the_first_one_begins_the_transaction(world):
    log = world.log()
    assert begin(log, sequence=5) is begin(log, sequence=6)
    assert log.producers.confirm(begin(log, sequence=7), 1)
    assert send(world, log, 6) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(world, log, 5) == 0
    assert send(world, log, 6) == 0


def test_a_question_about_a_later_transaction_bounds_the_sequences_of_the_one_before(world):
    """As Kafka 4.1 answers after a batch of a future epoch (its coordinator has said no)."""
    log = world.log()
    assert log.producers.confirm(begin(log, sequence=0), 1)
    assert send(world, log, 0) == 0
    begin(log, epoch=2, sequence=0)
    for transactional in (True, False):
        assert send(world, log, 1, transactional=transactional) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    world.marker(log, 9, epoch=1)
    assert send(world, log, 1, transactional=False) == 0


@pytest.mark.parametrize(("raises_epochs", "error"), [(False, 0), (True, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)])
def test_an_unknown_producer_begins_with_0_in_transaction_version_2(world, raises_epochs, error):
    log = world.log()
    assert log.producers.confirm(begin(log, sequence=3, raises_epochs=raises_epochs), 1)
    assert send(world, log, 3) == error


def test_a_higher_epoch_that_is_asked_for_fences_nobody(world):
    """One that is confirmed does."""
    log = world.log()
    asked = begin(log, epoch=1)
    assert begin(log, epoch=2) is asked
    assert log.producers.confirm(asked, 1)
    assert log.producers.confirmed_verification(9, 1) is asked
    assert send(world, log, 0, epoch=2) == ErrorCode.INVALID_TXN_STATE
    assert log.producers.confirm(asked, 2)
    assert not log.producers.confirm(asked, 1)
    assert send(world, log, 0, epoch=1) == ErrorCode.INVALID_TXN_STATE
    assert send(world, log, 0, epoch=2) == 0
    assert begin(log, epoch=2) is None


def test_a_batch_of_a_higher_epoch_in_an_open_transaction_leaves_no_question_behind(world):
    """Only a producer that nobody verifies sends one. What it asked for says nothing about later batches."""
    log = world.log()
    for epoch in (0, 2):
        assert log.producers.confirm(begin(log, epoch=epoch), epoch)
        assert send(world, log, 0, epoch=epoch) == 0
    assert not log.producers.verifications
    assert log.producers.confirm(begin(log, epoch=0), 0)
    assert send(world, log, 0, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_truncation_forgets_what_was_confirmed(world):
    log = world.log()
    world.fill(log, 3)
    assert log.producers.confirm(begin(log), 1)
    truncation.truncate_to(log, 2)
    assert send(world, log, 0) == ErrorCode.INVALID_TXN_STATE


def test_questions_that_nobody_answers_expire(world):
    log = world.log()
    asked = begin(log)
    log.producers.expire(999, 1000)
    assert begin(log) is asked
    log.producers.expire(1000, 1000)
    assert begin(log) is not asked
