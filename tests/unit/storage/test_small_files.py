import sys

import pytest
from barnabas.protocol.errors import CorruptBatchError
from barnabas.runtime.disk import RealDisk
from barnabas.storage import checkpoints
from barnabas.storage.directory_contents import read_contents
from barnabas.storage.index import AbortedTransaction, AbortedTransactions, OffsetIndex, TimeIndex, TransactionIndex
from barnabas.storage.leader_epochs import LeaderEpochCache
from barnabas.storage.retention import SegmentFacts, expired_segments
from simulator.disk import PowerLoss
from simulator.env import sim_env


@pytest.fixture
def disk():
    return sim_env().disk


def write(disk, path, data):
    disk.open(path, create=True).write(0, data)


def content(disk, path):
    return disk.open(path).read(0, 10**6)


def test_offset_checkpoints_have_kafkas_form(disk):
    checkpoints.write_offsets(disk, "/c", {("orders", 0): 100, ("a-b", 12): 7})
    assert content(disk, "/c") == b"0\n2\norders 0 100\na-b 12 7\n"
    assert checkpoints.read_offsets(disk, "/c") == {("orders", 0): 100, ("a-b", 12): 7}
    assert checkpoints.read_offsets(disk, "/none") == {}
    write(disk, "/empty", b"")
    assert checkpoints.read_offsets(disk, "/empty") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"1\n0\n",
        b"0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 1\nb 0 1\n",
        b"0\n1\na x 1\n",
        b"0\n1\na -1 1\n",
        b"0\n1\na 0 -5\n",
        b"0\nx\n",
        "0\n²\na 0 1\nb 0 1\n".encode(),
        b"0\n1\na 0 99999999999999999999\n",
        b"0\n1\na 0 9223372036854775808\n",
        b"0\n1\na 0 1_000\n",
        b"\xff\xfe",
    ],
)
def test_checkpoints_that_cannot_be_right_are_errors(disk, text):
    write(disk, "/c", text)
    with pytest.raises(checkpoints.CheckpointError, match="/c"):
        checkpoints.read_offsets(disk, "/c")


def test_replacing_a_checkpoint_leaves_the_old_or_the_new_one_at_any_crash(disk):
    checkpoints.write_text(disk, "/c", "old")
    start = disk.operations
    checkpoints.write_text(disk, "/c", "new")
    steps = disk.operations - start
    for unsynced in ("lost", "torn"):
        for step in range(steps):
            other = sim_env(step).disk
            checkpoints.write_text(other, "/c", "old")
            other.lose_power_at(other.operations + step)
            with pytest.raises(PowerLoss):
                checkpoints.write_text(other, "/c", "new")
            other.crash(unsynced)
            assert content(other, "/c") in (b"old", b"new")


def test_partition_metadata(disk):
    checkpoints.write_partition_metadata(disk, "/p", bytes(range(16)))
    assert content(disk, "/p") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoints.read_partition_metadata(disk, "/p") == bytes(range(16))
    write(disk, "/q", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw")
    with pytest.raises(checkpoints.CheckpointError):
        checkpoints.read_partition_metadata(disk, "/q")
    write(disk, "/r", b"version: 0\ntopic_id: short")
    with pytest.raises(checkpoints.CheckpointError):
        checkpoints.read_partition_metadata(disk, "/r")


def test_offset_index_entries_are_relative_offsets_and_positions(disk):
    index = OffsetIndex(disk, "/i", 1000)
    index.reset()
    index.append(1005, 300)
    index.append(1011, 4500)
    index.write()
    assert content(disk, "/i").hex() == "000000050000012c0000000b00001194"
    again = OffsetIndex(disk, "/i", 1000)
    assert again.load(10_000)
    assert [again.position_for(offset) for offset in (1000, 1004, 1005, 1010, 1011, 5000)] == [
        0,
        0,
        300,
        300,
        4500,
        4500,
    ]
    assert again.last_below(4500, 2000) == (300, 1005)
    assert again.last_below(4501, 1011) == (300, 1005)
    assert again.last_below(4501, 1012) == (4500, 1011)
    assert again.last_below(300, 2000) == (-1, -1)
    again.truncate(1011)
    again.write()
    assert content(disk, "/i").hex() == "000000050000012c"
    assert not OffsetIndex(disk, "/i", 1000).load(300)
    assert not OffsetIndex(disk, "/none", 1000).load(300)


def test_time_index_entries_rise(disk):
    index = TimeIndex(disk, "/t", 1000)
    index.reset()
    for timestamp, offset in ((50, 1003), (50, 1004), (40, 1005), (60, 1006), (-1, 1007)):
        index.append(timestamp, offset)
    index.write()
    assert content(disk, "/t").hex() == "000000000000003200000003000000000000003c00000006"
    again = TimeIndex(disk, "/t", 1000)
    assert again.load(10_000)
    assert [again.offset_for(time) for time in (0, 50, 51, 60, 61)] == [1000, 1000, 1003, 1003, 1006]
    assert again.last() == (60, 1006)


def test_entries_reach_the_file_in_blocks(disk):
    index = OffsetIndex(disk, "/i", 0)
    index.reset()
    for number in range(511):
        index.append(number + 1, number + 1)
    assert not disk.exists("/i")
    index.append(600, 600)
    assert disk.file_size("/i") == 512 * 8
    assert not index.dirty


def test_transaction_index(disk):
    index = TransactionIndex(disk, "/x", on_disk=False)
    index.append(AbortedTransaction(2, 4, 6, 7))
    index.append(AbortedTransaction(2, 11, 13, 14))
    expected = "00000000000000000002000000000000000400000000000000060000000000000007"
    assert content(disk, "/x").hex()[:68] == expected
    again = TransactionIndex(disk, "/x", on_disk=True)
    assert [entry.first_offset for entry in again.entries] == [4, 11]
    again.truncate(13)
    assert disk.file_size("/x") == 34
    again.reset()
    assert not disk.exists("/x")
    write(disk, "/bad", b"x" * 35)
    with pytest.raises(CorruptBatchError, match="34"):
        _ = TransactionIndex(disk, "/bad", on_disk=True).entries


def test_aborted_transactions_are_numbers_side_by_side():
    rows = [AbortedTransaction(number, 10 * number, 10 * number + 5, 10 * number + 1) for number in range(100)]
    found = AbortedTransactions()
    for row in rows:
        found.append(row)
    assert list(found) == rows == [found[slot] for slot in range(100)]
    assert (found[-1], found[-100], len(found)) == (rows[-1], rows[0], 100)
    for slot in (100, -101):
        with pytest.raises(IndexError):
            found[slot]
    for offset in (0, 5, 6, 14, 15, 16, 995, 996, 2000):
        later = [row for row in rows if row.last_offset >= offset]
        assert list(found.from_slot(found.slot_of(offset))) == later
    same = AbortedTransactions()
    for row in rows[:50]:
        same.append(row)
    assert same != found
    found.truncate(rows[50].last_offset)
    assert same == found
    assert list(found) == rows[:50]
    assert sys.getsizeof(found._numbers) < 50 * 60


def cache(disk, *entries):
    epochs = LeaderEpochCache(disk, "/leader-epoch-checkpoint")
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


@pytest.mark.parametrize(
    ("epoch", "start", "entries"),
    [
        (5, 40, [(1, 0), (3, 10), (5, 30)]),
        (5, 20, [(1, 0), (3, 10), (5, 20)]),
        (6, 40, [(1, 0), (3, 10), (5, 30), (6, 40)]),
        (6, 30, [(1, 0), (3, 10), (6, 30)]),
        (2, 20, [(1, 0), (2, 20)]),
        (2, 5, [(1, 0), (2, 5)]),
        (9, 0, [(9, 0)]),
    ],
)
def test_assigning_an_epoch_drops_what_contradicts_it(disk, epoch, start, entries):
    epochs = cache(disk, (1, 0), (3, 10), (5, 30))
    epochs.assign(epoch, start)
    assert epochs.entries == entries


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(-1, (-1, -1)), (0, (0, 5)), (1, (1, 10)), (2, (1, 10)), (3, (3, 30)), (4, (3, 30)), (5, (5, 99)), (6, (-1, -1))],
)
def test_the_end_of_an_epoch(disk, epoch, answer):
    assert cache(disk, (1, 5), (3, 10), (5, 30)).end_offset_for(epoch, 99) == answer
    assert LeaderEpochCache(disk, "/none").end_offset_for(epoch, 99) == (-1, -1)


def test_epochs_are_cut_at_both_ends_and_written(disk):
    epochs = cache(disk, (1, 5), (3, 10), (5, 30))
    assert [epochs.epoch_for_offset(offset) for offset in (4, 5, 9, 10, 29, 30, 99)] == [-1, 1, 1, 3, 3, 5, 5]
    epochs.truncate_from_start(20)
    assert epochs.entries == [(3, 20), (5, 30)]
    epochs.truncate_from_end(30)
    assert epochs.entries == [(3, 20)]
    epochs.flush(100)
    assert content(disk, "/leader-epoch-checkpoint") == b"0\n1\n3 20\n"
    assert cache(disk).entries == [(3, 20)]
    before = disk.operations
    epochs.flush(100)
    assert disk.operations == before
    write(disk, "/leader-epoch-checkpoint", b"0\n2\n3 20\n3 30\n")
    with pytest.raises(checkpoints.CheckpointError, match="rise"):
        cache(disk)


def facts(*ages, size=100):
    return [SegmentFacts(n * 10 + 10, size) for n, _ in enumerate(ages)], lambda slot: 1000 - ages[slot]


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 0),
        ({"retention_ms": 49}, 2),
        ({"retention_ms": 50}, 1),
        ({"retention_ms": 0}, 3),
        ({"retention_ms": 0, "high_watermark": 19}, 1),
        ({"retention_ms": 0, "high_watermark": 20}, 2),
        ({"retention_bytes": 300}, 0),
        ({"retention_bytes": 201}, 0),
        ({"retention_bytes": 200}, 1),
        ({"retention_bytes": 0}, 3),
        ({"log_start_offset": 19}, 1),
        ({"log_start_offset": 20}, 2),
        ({"log_start_offset": 30}, 2),
        ({"retention_ms": 0, "delete": False}, 0),
        ({"log_start_offset": 20, "delete": False}, 2),
    ],
)
def test_which_segments_may_go(settings, count):
    values = {
        "now_ms": 1000,
        "retention_ms": -1,
        "retention_bytes": -1,
        "log_start_offset": 0,
        "high_watermark": 30,
        "delete": True,
        **settings,
    }
    assert expired_segments(*facts(60, 50, 10), **values) == count


def test_an_empty_last_segment_stays():
    segments, timestamps = facts(60)
    segments.append(SegmentFacts(10, 0))
    values = {"now_ms": 1000, "retention_bytes": -1, "log_start_offset": 0, "high_watermark": 10, "delete": True}
    assert expired_segments(segments, timestamps, retention_ms=0, **values) == 1


@pytest.mark.parametrize("name", [checkpoints.BOOT_ID, checkpoints.CLOCK_DOUBT])
@pytest.mark.parametrize("kind", ["a folder", "a loop of links", "not text"])
def test_a_boot_id_or_a_doubt_that_cannot_be_read_counts_as_lost(tmp_path, kind, name):
    path = tmp_path / name
    if kind == "a folder":
        path.mkdir()
    elif kind == "a loop of links":
        path.symlink_to(path)
    else:
        path.write_bytes(b"\xff")
    found = read_contents(RealDisk(), str(tmp_path))
    assert (found.boot_id, found.clock_doubt_ms) == ("", 0)


@pytest.mark.parametrize(
    ("text", "left_ms"), [("12                 \n", 12), ("0\n", 0), ("-3\n", 0), ("", 0), ("1x", 0)]
)
def test_a_doubt_about_the_clock_is_read_as_far_as_it_can_be(tmp_path, text, left_ms):
    (tmp_path / checkpoints.CLOCK_DOUBT).write_text(text)
    assert read_contents(RealDisk(), str(tmp_path)).clock_doubt_ms == left_ms
