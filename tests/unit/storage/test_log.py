import errno
import struct

import pytest
from barnabas.protocol.batch_layout import CODEC_MASK
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, batches, build, read_header
from barnabas.runtime.turns import at_once
from barnabas.storage import checkpoints, retention, truncation
from barnabas.storage.validation import AppendOrigin


def test_append_gives_offsets_and_the_leader_epoch_and_reads_back(world, read):
    log = world.log()
    first = world.append(log, (b"a", b"1"), (b"b", None), epoch=3)
    second = world.append(log, (None, b"3"), epoch=4)
    assert (first.error, first.base_offset, first.last_offset, first.log_append_time_ms) == (0, 0, 1, -1)
    assert (second.base_offset, second.last_offset, second.log_start_offset) == (2, 2, 0)
    assert read(log) == [(0, b"a", b"1"), (1, b"b", None), (2, None, b"3")]
    epochs = [
        header.partition_leader_epoch
        for header, _ in batches(log.read(0, 9999, upper_bound=3, at_least_one=False).records)
    ]
    assert epochs == [3, 4]
    assert log.leader_epochs.entries == [(3, 0), (4, 2)]


def test_a_writable_buffer_is_patched_in_place_and_bytes_are_not_touched(world):
    log = world.log()
    batch = build([Record(timestamp=world.now(), value=b"x")])
    frozen = bytes(batch)
    world.append(log, (None, b"x"))
    for _ in range(2):
        log.append_as_leader(frozen, leader_epoch=5, origin=AppendOrigin.CLIENT, now_ms=world.now())
    log.append_as_leader(memoryview(batch), leader_epoch=5, origin=AppendOrigin.CLIENT, now_ms=world.now())
    assert read_header(frozen).base_offset == 0
    assert (read_header(batch).base_offset, read_header(batch).partition_leader_epoch) == (3, 5)


@pytest.mark.parametrize("max_bytes", [1, 200, 1000, 5000, 10**6])
def test_reading_in_steps_of_any_size_gives_every_record_once(world, read, max_bytes):
    log = world.log(segment_bytes=4000, index_interval_bytes=500)
    world.fill(log, 200)
    assert len(log.segments) > 5
    assert [offset for offset, _, _ in read(log, max_bytes=max_bytes)] == list(range(200))
    world.manager.shutdown()
    log = world.open().get("t", 0)
    assert [offset for offset, _, _ in read(log, max_bytes=max_bytes)] == list(range(200))


def test_every_offset_is_found_with_big_and_small_batches(world):
    log = world.log(segment_bytes=5000, index_interval_bytes=300)
    for number in range(60):
        world.append(log, *[(b"k", b"v" * (number % 7) * 50)] * (1 + number % 5))
    for reopened in (False, True):
        if reopened:
            log = world.restart().get("t", 0)
        for offset in range(log.log_end_offset):
            data = log.read(offset, 700, upper_bound=log.log_end_offset, at_least_one=True)
            header = read_header(data.records)
            assert header.base_offset == data.first_offset
            assert header.base_offset <= offset <= header.last_offset


def test_max_bytes_is_kept_except_for_one_batch_that_must_come(world):
    log = world.log()
    world.fill(log, 10, size=500)
    size = log.size_bytes // 10
    for limit, batches_read in ((size - 1, 0), (size, 1), (size + 1, 1), (2 * size - 1, 1), (2 * size, 2)):
        data = log.read(0, limit, upper_bound=10, at_least_one=False)
        assert len(data.records) // size == batches_read
    assert len(log.read(0, size - 1, upper_bound=10, at_least_one=True).records) == size
    assert len(log.read(0, 0, upper_bound=10, at_least_one=True).records) == size
    assert len(log.read(0, 0, upper_bound=10, at_least_one=False).records) == 0


def test_the_upper_bound_is_kept(world):
    log = world.log(index_interval_bytes=200, segment_bytes=3000)
    world.fill(log, 60)
    for bound in range(60):
        data = log.read(0, 10**6, upper_bound=bound, at_least_one=True)
        offsets = [header.base_offset for header, _ in batches(data.records)]
        assert all(offset < bound for offset in offsets)
        assert offsets[:1] == ([0] if bound else [])
        data = log.read(bound, 10**6, upper_bound=bound, at_least_one=True)
        assert len(data.records) == 0


def whole_batches(log, offset, max_bytes, upper_bound):
    """What a read must give: (first offset, bytes), found by going through all segments."""
    slot = max(index for index, segment in enumerate(log.segments) if segment.base_offset <= max(offset, 0))
    for segment in log.segments[slot:]:
        taken = bytearray()
        first = None
        for batch in segment.batches():
            if batch.last_offset < offset:
                continue
            if first is None:
                first = batch.base_offset
            if batch.base_offset >= upper_bound or (taken and len(taken) + batch.size > max_bytes):
                break
            taken += segment.batch_bytes(batch)
        if first is not None:
            return first, bytes(taken)
    return offset, b""


def test_a_range_of_the_file_is_what_a_read_would_give(world):
    log = world.log(segment_bytes=400_000, index_interval_bytes=4096)
    sizes = [100, 300, 20_000, 100, 5000, 70_000, 900, 900, 900, 16_000]
    while log.log_end_offset < 120:
        world.fill(log, 1, size=sizes[log.log_end_offset * 7 % 10])
    assert len(log.segments) >= 3
    for reopened in (False, True):
        if reopened:
            log = world.restart().get("t", 0)
            log.set_high_watermark(log.log_end_offset)
        for offset in range(0, 120, 3):
            for max_bytes in (0, 400, 60_000, 90_000, 150_000, 10**6):
                for bound in (offset, offset + 1, offset + 7, 120):
                    first, expected = whole_batches(log, offset, max_bytes, bound)
                    asked = {"upper_bound": bound, "at_least_one": True}
                    copied = log.read(offset, max_bytes, **asked)
                    assert copied.file_range is None
                    assert (copied.error, copied.first_offset, bytes(copied.records)) == (0, first, expected)
                    data = log.read(offset, max_bytes, by_reference_from=10_000, **asked)
                    assert (data.first_offset, data.next_offset) == (first, copied.next_offset)
                    if len(expected) < 10_000:
                        assert data.file_range is None
                        assert data.records == expected
                    else:
                        assert len(data.file_range) == len(expected)
                        assert data.file_range.read(10**7) == expected


def test_a_range_is_not_given_of_a_file_that_is_too_short(world):
    log = world.log()
    world.fill(log, 10, size=3000)
    world.disk.open(log.segments.active.path).truncate(log.size_bytes - 1)
    data = log.read(0, 10**6, upper_bound=10, at_least_one=True, by_reference_from=1000)
    assert (data.error, data.file_range) == (ErrorCode.CORRUPT_MESSAGE, None)


def test_a_range_of_a_truncated_log_gives_nothing(world):
    log = world.log()
    world.fill(log, 10, size=3000)
    whole, first = (
        log.read(0, max_bytes, upper_bound=10, at_least_one=True, by_reference_from=1000).file_range
        for max_bytes in (10**6, 20_000)
    )
    truncation.truncate_to(log, 7)
    world.fill(log, 3, size=3000)
    assert first.read(20_000) is not None, "what it refers to is still there"
    assert whole.read(10**6) is None, "but other records lie where these were"


def test_a_disk_that_fails_under_a_range_takes_the_log_offline(world):
    log = world.log()
    world.fill(log, 10, size=3000)
    data = log.read(0, 10**6, upper_bound=10, at_least_one=True, by_reference_from=1000)
    world.disk.fail("read", ".log")
    assert data.file_range.read(1000) is None
    assert log.failed is not None


def test_when_too_many_files_are_referred_to_less_is_read_instead(world):
    log = world.log()
    world.fill(log, 10, size=3000)
    world.manager._files._limit = 2
    other = world.log("other")
    world.fill(other, 10, size=3000)
    asked = {"upper_bound": 10, "at_least_one": True, "by_reference_from": 10_000}
    held = log.read(0, 10**6, **asked).file_range
    data = other.read(0, 10**6, **asked)
    assert data.file_range is None
    assert 1 <= len(list(batches(data.records))) <= 3
    held.release()
    assert len(other.read(0, 10**6, **asked).file_range) == other.size_bytes


@pytest.mark.parametrize(("offset", "error"), [(4, 1), (5, 0), (20, 0), (21, 1)])
def test_offsets_outside_the_log_are_out_of_range(world, offset, error):
    log = world.log()
    world.fill(log, 20)
    log.delete_records_before(5)
    assert log.read(offset, 1000, upper_bound=20, at_least_one=True).error == error


def test_the_high_watermark_is_never_below_the_log_start(world):
    log = world.log()
    world.fill(log, 10)
    log.high_watermark = 4  # as a checkpoint may say after a crash
    log.delete_records_before(7)
    assert (log.log_start_offset, log.high_watermark) == (7, 7)


def test_bytes_between_is_exact_at_the_end_of_the_log(world):
    log = world.log(segment_bytes=3000)
    world.fill(log, 50)
    before = log.size_bytes
    world.fill(log, 1)
    size = log.size_bytes - before
    assert log.bytes_between(50, 51) == size
    assert log.bytes_between(41, 51) >= 10 * (size - 4)
    assert log.bytes_between(51, 51) == 0
    assert log.bytes_between(0, 51) == log.size_bytes


def test_roll_by_size_at_the_limit(world):
    log = world.log()
    world.fill(log, 1)
    size = log.size_bytes
    world.set(log, segment_bytes=3 * size)
    world.fill(log, 2)
    assert len(log.segments) == 1
    world.append(log, (b"k0", b"v0 ".ljust(100, b".")))
    assert [segment.base_offset for segment in log.segments] == [0, 3]


@pytest.mark.parametrize(("age_ms", "segments"), [(999, 1), (1000, 1), (1001, 2)])
def test_roll_by_the_age_of_the_records(world, age_ms, segments):
    log = world.log(segment_ms=1000)
    start = world.now()
    world.append(log, (b"k", b"v"), timestamp=start)
    world.append(log, (b"k", b"v"), timestamp=start + age_ms)
    assert len(log.segments) == segments


def test_roll_by_age_of_the_segment_when_records_have_no_timestamps(world):
    log = world.log(segment_ms=1000)
    world.append(log, (b"k", b"v"), timestamp=-1)
    world.clock.advance(1001)
    world.append(log, (b"k", b"v"), timestamp=-1)
    assert len(log.segments) == 2


def test_jitter_rolls_earlier_but_never_later(world):
    log = world.log(segment_ms=1000, segment_jitter_ms=900)
    start = world.now()
    ages = set()
    for _ in range(20):
        log.roll()
        base = log.segments.active.base_offset
        for age in range(0, 1100, 50):
            world.append(log, (b"k", b"v"), timestamp=start + age)
            if log.segments.active.base_offset != base:
                ages.add(age)
                break
    assert max(ages) <= 1050
    assert min(ages) < 900
    assert len(ages) > 3


def test_index_files_are_made_when_there_is_something_to_index(world):
    def names():
        return [name.partition(".")[2] for name in world.disk.list_directory("/data/t-0") if name.startswith("0")]

    log = world.log()
    assert names() == ["log"]
    world.restart()
    assert names() == ["log"]
    log = world.manager.get("t", 0)
    world.fill(log, 3)
    world.restart()
    assert names() == ["log"], "the next start reads three batches, and needs no files for that"
    log = world.manager.get("t", 0)
    assert (log.log_end_offset, log.offset_for_timestamp(0, 3).offset) == (3, 0)
    world.fill(log, 60)
    world.manager.shutdown()
    assert names() == ["index", "log", "timeindex"]


def test_clean_restarts_leave_the_newest_snapshot_and_not_one_more_each_time(world):
    log = world.log()
    for number in range(4):
        world.append(log, (b"k", b"v"), producer_id=3, producer_epoch=0, base_sequence=number)
        log = world.restart().get("t", 0)
        names = [name for name in world.disk.list_directory("/data/t-0") if name.endswith(".snapshot")]
        assert names == [f"{number + 1:020d}.snapshot"]
        assert log.producers.get(3).last_sequence == number


def test_a_clean_stop_of_a_log_in_which_nothing_happened_writes_and_syncs_nothing_of_it(world):
    log = world.log(index_interval_bytes=100)
    world.append(log, (b"k", b"v"), producer_id=3, producer_epoch=0, base_sequence=0)
    world.fill(log, 20)
    world.restart()
    log = world.manager.get("t", 0)
    log.leader_epochs.assign(5, log.log_end_offset)  # leads again; no record comes
    assert log.read(0, 100, upper_bound=20, at_least_one=True).error == 0
    world.disk.journal = []
    world.manager.shutdown()
    assert [change for change in world.disk.journal if "/t-0" in change[1]] == []


def test_a_record_of_time_zero_at_the_first_offset_is_found_after_a_restart(world):
    log = world.log(index_interval_bytes=100)
    for timestamp in (0, -1, -1, -1, -1):
        world.append(log, (b"k", b"v" * 100), timestamp=timestamp)
    world.append(log, (b"k", b"v" * 50), timestamp=-1)
    log.set_high_watermark(6)
    log.roll()
    for _ in range(2):
        log = world.restart().get("t", 0)
        assert log.offset_for_timestamp(0, 6) == (0, 0, 0)
        assert log.segments.max_timestamp_offset() == (0, 0, 0)


def leave_stale_indexes(world):
    """What a crash may leave: the records are lost, their index entries are not."""
    world.log()
    world.manager.shutdown()
    for extension in ("index", "timeindex"):
        file = world.disk.open(f"/data/t-0/{0:020d}.{extension}", create=True)
        file.write(0, bytes([0, 0, 0, 9]) * (2 if extension == "index" else 3))
        file.sync()
    world.disk.sync_directory("/data/t-0")
    world.disk.remove("/data/.kafka_cleanshutdown")


def test_an_index_that_a_crash_left_to_an_empty_segment_is_emptied(world):
    leave_stale_indexes(world)
    world.open()
    log = world.manager.get("t", 0)
    world.fill(log, 3)
    assert log.segments.max_timestamp_offset()[0] == 0
    world.manager.shutdown()
    assert world.disk.file_size(f"/data/t-0/{0:020d}.index") == 0
    assert world.disk.file_size(f"/data/t-0/{0:020d}.timeindex") == 12


def test_an_emptied_index_is_durable_after_a_clean_stop(world):
    leave_stale_indexes(world)
    world.open()
    world.manager.shutdown()
    assert world.disk.exists("/data/.kafka_cleanshutdown")
    world.crash("lost")
    assert world.disk.file_size(f"/data/t-0/{0:020d}.index") == 0
    assert world.disk.file_size(f"/data/t-0/{0:020d}.timeindex") == 0


def test_retention_of_very_many_segments_goes_in_pieces(world):
    log = world.log(segment_bytes=200, retention_ms=10_000, file_delete_delay_ms=0)
    world.fill(log, 130)
    world.clock.advance(20_000)
    pieces = [piece for item in world.manager._to_retain() for piece in world.manager._retain(item)]
    assert pieces.count(None) == 3
    assert len(log.segments) == 1
    world.clock.advance(1)
    assert [name for name in world.disk.list_directory("/data/t-0") if name.endswith(".deleted")] == []


def test_no_segment_goes_before_the_log_start_is_durable(world):
    log = world.log(segment_bytes=200, retention_ms=10_000, file_delete_delay_ms=0)
    world.fill(log, 20)
    (directory,) = world.manager.open_directories
    world.clock.advance(20_000)
    assert at_once(retention.raise_log_start(log, world.now()))
    first, second = directory.write_log_starts_later(), directory.write_log_starts_later()
    assert not first.done
    world.clock.advance(1_000)
    assert first.done
    assert second.done
    path = directory.path_of(checkpoints.LOG_START_OFFSETS)
    assert checkpoints.read_offsets(world.disk, path) == {("t", 0): log.log_start_offset}
    assert len(log.segments) > 1, "they go in the next step of a round"


def test_roll_when_an_index_is_full(world):
    log = world.log(index_interval_bytes=0, segment_index_bytes=80)
    world.fill(log, 60)
    assert len(log.segments) > 5
    for segment in log.segments[:-1]:
        assert world.disk.file_size(segment.offset_index.path) <= 80
        assert world.disk.file_size(segment.time_index.path) <= 80


def test_roll_when_offsets_leave_the_32_bits_of_an_index_entry(world):
    log = world.log()
    world.append(log, (b"k", b"v"))
    bases = [0]
    # The last fits a segment from 1 on, the next needs one at the log end, the third jumps too far even for that.
    for offset, base in ((2**31, 1), (2**32 - 1, 2**31 + 1), (2**32, None), (2**34, 2**34)):
        batch = build([Record(timestamp=world.now(), key=b"k", value=b"v")], base_offset=offset)
        assert log.append_as_follower(batch).error == 0
        bases += [] if base is None else [base]
        assert [segment.base_offset for segment in log.segments] == bases


@pytest.mark.parametrize("then", ["the next leader", "a follower still", "a follower of one that has less"])
def test_a_log_without_room_behind_a_gap_of_many_offsets_ends_behind_the_gap(world, read, then):
    """Its new segment is there, and has no records yet: the leader has none before it, either."""
    log = world.log()
    world.append(log, (b"k", b"v"))

    def refuse(operation, path):
        if operation == "write" and path.endswith(f"{2**34:020d}.log"):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    world.disk.on_change = refuse
    behind = build([Record(timestamp=world.now(), key=b"k", value=b"w")], base_offset=2**34)
    assert log.append_as_follower(behind).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == 2**34
    world.disk.on_change = lambda operation, path: None
    if then == "the next leader":
        assert world.append(log, (b"k", b"w")).base_offset == 2**34
    elif then == "a follower still":
        assert log.append_as_follower(behind).error is ErrorCode.NONE
    else:
        less = build([Record(timestamp=world.now(), key=b"k", value=b"w")], base_offset=7)
        assert log.append_as_follower(less).error is ErrorCode.OFFSET_OUT_OF_RANGE
        for _ in truncation.begin_truncation(log, 7).in_turns():
            world.clock.advance(100)
        assert log.append_as_follower(less).error is ErrorCode.NONE
    world.clock.advance(3_000)
    expected = [(0, b"k", b"v"), (7 if "less" in then else 2**34, b"k", b"w")]
    assert [log.failed, *read(log)] == [None, *expected]
    assert read(world.restart().get("t", 0)) == expected


def test_offsets_for_timestamps(world):
    log = world.log(segment_bytes=1500, index_interval_bytes=200)
    start = world.now()
    for number in range(40):
        world.append(log, (b"a", b"x" * 20), (b"b", b"x" * 20), timestamp=start + number * 10)
    end = log.log_end_offset
    for reopened in (False, True):
        if reopened:
            log = world.restart().get("t", 0)
        for number in range(40):
            for delta in (-9, 0):
                found = log.offset_for_timestamp(start + number * 10 + delta, end)
                assert (found.offset, found.timestamp) == (number * 2, start + number * 10)
        assert log.offset_for_timestamp(start + 391, end) is None
        assert log.offset_for_timestamp(start + 390, end - 2) is None
        assert log.segments.max_timestamp_offset().offset == 78
    log.delete_records_before(5)
    assert log.offset_for_timestamp(0, end).offset == 5


def test_max_timestamp_finds_the_first_record_that_has_it(world):
    log = world.log(segment_bytes=400)
    start = world.now()
    for timestamp in (5, 90, 7, 90, 3):
        world.append(log, (b"k", b"v" * 50), (b"k", b"v" * 50), timestamp=start + timestamp)
    assert log.segments.max_timestamp_offset() == (2, start + 90, 0)
    assert world.log("empty").segments.max_timestamp_offset() is None


def test_records_without_timestamps_have_the_largest_at_the_first_of_them(world):
    """As Kafka 4.1 answers it, also after the first ones have been deleted."""
    log = world.log(segment_bytes=200)
    for _ in range(5):
        world.append(log, (b"k", b"v" * 50), (b"k", b"v" * 50), timestamp=-1)
    assert len(log.segments) > 1
    assert log.segments.max_timestamp_offset() == (0, -1, 0)
    log.delete_records_before(1)
    assert log.segments.max_timestamp_offset() == (0, -1, 0)
    assert world.restart().get("t", 0).segments.max_timestamp_offset() == (0, -1, 0)
    world.append(world.manager.get("t", 0), (b"k", b"v"), timestamp=5)
    assert world.manager.get("t", 0).segments.max_timestamp_offset() == (10, 5, 0)


def test_follower_takes_batches_as_they_are_with_holes_and_epochs(world, read):
    leader, follower = world.log("leader"), world.log("follower")
    for epoch in (1, 1, 4):
        world.append(leader, (b"k", b"v"), (b"l", b"w"), epoch=epoch)
    data = leader.read(0, 10**6, upper_bound=6, at_least_one=True).records
    result = follower.append_as_follower(data)
    assert (result.error, result.base_offset, result.last_offset) == (0, 0, 5)
    assert read(follower) == read(leader)
    assert follower.leader_epochs.entries == [(1, 0), (4, 4)]
    again = follower.append_as_follower(data)
    assert (again.error, again.base_offset, follower.log_end_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0, 6)
    beyond = build([Record(timestamp=1, value=b"x")], base_offset=10)
    assert follower.append_as_follower(beyond).error == 0
    assert follower.log_end_offset == 11
    damaged = bytearray(build([Record(timestamp=1, value=b"x")], base_offset=11))
    damaged[-1] ^= 1
    assert follower.append_as_follower(damaged).error == ErrorCode.CORRUPT_MESSAGE
    assert follower.append_as_follower(beyond[:-1]).error == ErrorCode.CORRUPT_MESSAGE
    assert follower.log_end_offset == 11


@pytest.mark.parametrize("cut", [0, 1, 7, 20, 21, 50, 59])
def test_truncation_drops_from_the_offset_on_and_appends_go_on(world, read, cut):
    log = world.log(segment_bytes=1500, index_interval_bytes=100)
    world.fill(log, 60)
    log.flush()
    truncation.truncate_to(log, cut)
    assert log.log_end_offset == cut
    assert log.high_watermark == cut
    assert log.durability.recovery_point <= cut
    assert [offset for offset, _, _ in read(log)] == list(range(cut))
    world.fill(log, 20)
    assert [offset for offset, _, _ in read(log)] == list(range(cut + 20))
    log = world.crash("kept").get("t", 0)
    assert [offset for offset, _, _ in read(log)] == list(range(cut + 20))


def test_truncation_inside_a_batch_drops_the_whole_batch_and_its_epoch(world):
    log = world.log()
    world.append(log, (b"k", b"v"), epoch=1)
    world.append(log, *[(b"k", b"v")] * 3, epoch=2)
    truncation.truncate_to(log, 2)
    assert log.log_end_offset == 1
    assert log.leader_epochs.entries == [(1, 0)]


def test_truncate_fully(world, read):
    log = world.log(segment_bytes=1000)
    world.fill(log, 30)
    truncation.truncate_fully_and_start_at(log, 100)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, len(log.segments)) == (100, 100, 100, 1)
    assert log.leader_epochs.latest == -1
    world.fill(log, 2)
    assert [offset for offset, _, _ in read(log)] == [100, 101]


def test_truncation_lowers_the_recovery_checkpoint_before_it_cuts(world):
    log = world.log()
    world.fill(log, 10)
    log.flush()
    world.manager.checkpoint()
    truncation.truncate_to(log, 4)
    text = world.disk.open("/data/recovery-point-offset-checkpoint").read(0, 999)
    assert b"t 0 4" in text


def test_a_failed_write_takes_the_log_offline_for_good(world):
    log = world.log()
    offline = []
    world.manager.on_failed.append(offline.append)
    world.fill(log, 2)
    world.disk.fail("write", ".log")
    assert world.append(log, (b"k", b"v")).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert offline == [log]
    assert isinstance(log.failed, OSError)
    result = world.append(log, (b"k", b"v"))
    assert (result.error, result.log_start_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert log.append_as_follower(build([Record(value=b"x")], base_offset=2)).error == ErrorCode.KAFKA_STORAGE_ERROR
    world.manager.shutdown()
    assert not world.disk.exists("/data/.kafka_cleanshutdown")


def test_after_a_failed_sync_no_write_is_accepted(world):
    log = world.log()
    world.fill(log, 2)
    world.disk.fail("sync", ".log")
    log.flush()
    assert world.append(log, (b"k", b"v")).error == ErrorCode.KAFKA_STORAGE_ERROR
    log.flush()
    assert log.durability.recovery_point == 0


def test_a_sync_that_fails_behind_a_roll_takes_the_log_offline(world):
    log = world.log()
    world.fill(log, 2)
    log.roll()
    world.disk.fail("sync", "0000.log")
    world.clock.advance(1)
    assert log.failed is not None
    assert log.durability.recovery_point == 0


def test_the_recovery_point_follows_rolled_segments(world):
    log = world.log()
    world.fill(log, 3)
    log.roll()
    world.fill(log, 2)
    assert log.durability.recovery_point == 0
    world.clock.advance(1)
    assert log.durability.recovery_point == 3


def test_flush_messages_and_flush_ms(world):
    log = world.log(flush_messages=3)
    world.fill(log, 2)
    assert log.durability.recovery_point == 0
    world.fill(log, 1)
    assert log.durability.recovery_point == 3
    world.set(log, flush_messages=10**9, flush_ms=500)
    world.fill(log, 1)
    world.clock.advance(2000)
    assert log.durability.recovery_point == 4


def test_compression_type_of_the_topic_rebuilds_batches(world, read):
    log = world.log(compression_type="zstd")
    assert world.append(log, *[(b"k", b"v" * 50)] * 3, codec=Compression.GZIP).error == 0
    assert world.append(log, (b"l", b"w"), producer_id=5, producer_epoch=0, base_sequence=0).error == 0
    headers = [header for header, _ in batches(log.read(0, 9999, upper_bound=4, at_least_one=True).records)]
    assert [header.attributes & CODEC_MASK for header in headers] == [Compression.ZSTD] * 2
    assert (headers[1].producer_id, headers[1].base_sequence, headers[1].base_offset) == (5, 0, 3)
    assert len(read(log)) == 4
    world.set(log, compression_type="uncompressed")
    world.append(log, (b"m", b"x"), codec=Compression.SNAPPY)
    header = read_header(log.read(4, 9999, upper_bound=5, at_least_one=True).records)
    assert header.attributes & CODEC_MASK == Compression.NONE


def test_log_append_time_stamps_batches(world):
    log = world.log(message_timestamp_type="LogAppendTime")
    result = world.append(log, (b"k", b"v"), timestamp=5)
    assert result.log_append_time_ms == world.now()
    header, _ = next(batches(log.read(0, 9999, upper_bound=1, at_least_one=True).records))
    assert (header.is_log_append_time, header.max_timestamp) == (True, world.now())
    assert log.offset_for_timestamp(6, 1) == (0, world.now(), 0)


def test_retention_by_time_size_and_log_start(world):
    log = world.log(segment_bytes=1500, retention_ms=10_000, file_delete_delay_ms=60_000)
    world.fill(log, 30)
    segments = len(log.segments)
    world.manager.apply_retention()
    assert len(log.segments) == segments
    world.clock.advance(9_000)
    world.fill(log, 30)
    world.clock.advance(2_000)
    world.manager.apply_retention()
    assert 0 < log.log_start_offset <= 30
    assert log.segments[0].base_offset == log.log_start_offset
    names = world.disk.list_directory("/data/t-0")
    assert "00000000000000000000.log.deleted" in names
    assert "00000000000000000000.log" not in names
    world.clock.advance(60_000)
    assert not any(name.endswith(".deleted") for name in world.disk.list_directory("/data/t-0"))

    size = log.size_bytes
    world.set(log, retention_ms=-1, retention_bytes=size - log.segments[0].size)
    world.manager.apply_retention()
    assert log.size_bytes == size - (size - log.size_bytes) < size
    second = log.segments[1].base_offset
    log.delete_records_before(second)
    world.manager.apply_retention()
    assert log.segments[0].base_offset == second


def test_retention_never_passes_the_high_watermark_and_may_empty_the_log(world):
    log = world.log(segment_bytes=1500, retention_ms=10)
    world.fill(log, 30)
    world.clock.advance(20)
    log.set_high_watermark(0)
    world.manager.apply_retention()
    assert log.log_start_offset == 0
    log.set_high_watermark(30)
    world.manager.apply_retention()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (30, 30, 0)
    world.fill(log, 1)
    assert log.log_end_offset == 31


def test_open_files_are_bounded(world):
    manager = world.open()
    manager._files._limit = 4
    logs = [manager.get_or_create(f"topic{number}", 0, None) for number in range(20)]
    for log in logs * 2:
        world.fill(log, 1)
    assert len(manager._files) <= 4
    assert all(log.log_end_offset == 2 for log in logs)


def test_a_lying_header_in_the_file_is_an_error_not_a_crash(world):
    log = world.log()
    world.fill(log, 3)
    log.segments.active._recent_offsets = log.segments.active._recent_offsets[:0]
    size = log.size_bytes // 3
    world.disk.open(log.segments.active.path).write(size + 8, struct.pack(">i", -5))
    assert log.read(2, 9999, upper_bound=3, at_least_one=True).error == ErrorCode.CORRUPT_MESSAGE


def test_a_segment_that_this_user_may_not_look_for_now_is_not_taken_for_removed(world, monkeypatch):
    """`chmod 000` of a folder: what is open can be written. Until 2026-11-30 the log was offline then."""
    log = world.log()
    world.fill(log, 1)

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "file_size", refuse)
        log.check_file()
        with pytest.raises(PermissionError, match="Permission denied"):
            world.manager.get_or_create("another", 0, None)
    assert log.health.is_writable
    world.fill(log, 1)
    world.disk.remove(log.segments.active.path)
    log.check_file()
    assert not log.health.is_writable
