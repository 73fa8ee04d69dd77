import random

import pytest
from barnabas.protocol.batch_layout import DELETE_HORIZON
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.record_batch import batches, records
from barnabas.storage import truncation

COMPACT = frozenset(("compact",))


def compacted(world, topic="t", **settings):
    return world.log(topic, cleanup_policy=COMPACT, segment_bytes=settings.pop("segment_bytes", 1000), **settings)


def clean(world, log):
    log.set_high_watermark(log.log_end_offset)
    world.manager.cleaner.run(log)


def expected(history, below):
    """What must be left of a log of (offset, key, value): the last of each key below, everything from there on."""
    last = {key: offset for offset, key, _ in history if offset < below}
    return [row for row in history if row[0] >= below or last[row[1]] == row[0]]


@pytest.mark.parametrize("codec", list(Compression))
def test_of_each_key_the_last_record_stays_at_its_offset(world, read, codec):
    log = compacted(world)
    rng = random.Random(1)
    for number in range(60):
        pairs = [(b"key %02d" % rng.randrange(12) * 3, b"value %d" % number) for _ in range(3)]
        world.append(log, *pairs, codec=codec)
    history = read(log)
    size = log.size_bytes
    clean(world, log)
    active = log.segments.active.base_offset
    left = read(log)
    assert [row for row in left if row[0] >= active] == [row for row in history if row[0] >= active]
    assert {row[0] for row in left} <= {row[0] for row in history}
    assert left == expected(history, active)
    assert log.size_bytes < size / 2
    log = world.restart().get("t", 0)
    assert read(log) == left
    log = world.crash("lost").get("t", 0)
    assert read(log) == left
    for offset in range(log.log_end_offset):  # also offsets that are gone find what follows them
        data = log.read(offset, 1, upper_bound=log.log_end_offset, at_least_one=True)
        assert len(data.records) > 0


def test_small_neighbours_are_merged_within_the_segment_size(world, read):
    log = compacted(world)
    for number in range(60):
        world.append(log, (b"k%d" % (number % 3), b"v" * 50))
    segments = len(log.segments)
    clean(world, log)
    for number in range(20):
        world.append(log, (b"k%d" % (number % 3), b"v" * 50))
    clean(world, log)
    assert len(log.segments) <= segments / 2
    assert all(segment.size <= 1000 for segment in log.segments)
    assert [key for _, key, _ in read(log)][-3:] == [b"k2", b"k0", b"k1"]
    world.clock.advance(60_000)
    names = world.disk.list_directory("/data/t-0")
    assert sum(name.endswith(".log") for name in names) == len(log.segments)
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".swap"))]


def test_tombstones_stay_until_their_delete_horizon(world, read):
    log = compacted(world, delete_retention_ms=1000)
    world.append(log, (b"a", b"1"), (b"b", b"2"))
    world.append(log, (b"a", None))
    log.roll()
    world.append(log, (b"c", b"3"))
    clean(world, log)
    assert [(key, value) for _, key, value in read(log)] == [(b"b", b"2"), (b"a", None), (b"c", b"3")]
    horizons = [
        header.base_timestamp if header.attributes & DELETE_HORIZON else None
        for header, _ in batches(log.read(0, 9999, upper_bound=4, at_least_one=True).records)
    ]
    assert horizons == [None, world.now() + 1000]
    for ahead_ms, left in ((999, True), (1, False)):
        world.clock.advance(ahead_ms)
        log.roll()
        world.append(log, (b"d", b"%d" % ahead_ms))
        clean(world, log)
        assert (b"a" in [key for _, key, _ in read(log)]) is left
    times = [record.timestamp for record in world_records(log)]
    assert all(abs(time - world.now()) < 5000 for time in times)


def world_records(log):
    data = log.read(log.log_start_offset, 10**6, upper_bound=log.log_end_offset, at_least_one=True).records
    return [record for _, batch in batches(data) for record in records(batch)]


def test_nothing_young_nothing_active_and_nothing_unstable_is_compacted(world, read):
    log = compacted(world, min_compaction_lag_ms=1000)
    for _ in range(20):
        world.append(log, (b"k", b"v" * 50))
    clean(world, log)
    assert len(read(log)) == 20
    world.clock.advance(1001)
    log.set_high_watermark(5)
    world.manager.cleaner.run(log)
    assert [offset for offset, _, _ in read(log)][:2] == [4, 5]
    clean(world, log)
    active = log.segments.active.base_offset
    assert [offset for offset, _, _ in read(log)] == [active - 1, *range(active, 20)]


def test_an_open_transaction_holds_compaction_up_and_aborted_records_do_not_count(world, read):
    log = compacted(world, segment_bytes=10_000)
    ids = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    world.append(log, (b"a", b"committed"))
    world.append(log, (b"a", b"aborted"), base_sequence=0, **ids)
    log.roll()
    world.append(log, (b"b", b"1"))
    clean(world, log)
    assert len(read(log)) == 3
    world.marker(log, 5, commit=False)
    world.append(log, (b"a", b"in a transaction"), base_sequence=1, **ids)
    world.marker(log, 5, commit=True)
    log.roll()
    world.append(log, (b"c", b"1"))
    clean(world, log)
    values = [value for _, key, value in read(log) if key in (b"a", b"b", b"c")]
    assert values == [b"1", b"in a transaction", b"1"]


def test_markers_go_after_their_records_and_their_horizon(world):
    log = compacted(world, segment_bytes=10_000, delete_retention_ms=1000)
    ids = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    world.append(log, (b"a", b"1"), base_sequence=0, **ids)
    world.marker(log, 5)
    world.append(log, (b"a", b"2"), base_sequence=1, **ids)
    world.marker(log, 5)

    def controls(log):
        data = log.read(0, 10**6, upper_bound=log.log_end_offset, at_least_one=True).records
        return [header.base_offset for header, _ in batches(data) if header.is_control]

    seen = []
    for _ in range(4):
        log.roll()
        world.append(log, (b"x", b"1"))
        clean(world, log)
        seen.append(controls(log))
        world.clock.advance(1001)
    assert seen[0] == [1, 3]
    assert seen[-1] == [3]  # the data of the second transaction is still there


def test_an_aborted_transaction_behind_an_open_one_stays_aborted(world, read):
    log = compacted(world, segment_bytes=10_000)
    world.append(log, (b"a", b"old"))
    world.append(log, (b"a", b"new"))
    ids = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    world.append(log, (b"b", b"open"), producer_id=5, **ids)
    world.append(log, (b"c", b"aborted"), producer_id=6, **ids)
    world.marker(log, 6, commit=False)
    log.roll()
    world.append(log, (b"z", b"1"))
    clean(world, log)
    kept = {value for _, _, value in read(log)}
    assert b"old" not in kept
    assert {b"open", b"aborted"} <= kept  # the compaction ends before the open transaction
    assert log.segments.aborted_transactions(0, log.log_end_offset) == [(6, 3)]
    world.marker(log, 5)
    log.roll()
    world.append(log, (b"z", b"2"))
    clean(world, log)
    kept = {value for _, _, value in read(log)}
    assert b"open" in kept
    assert b"aborted" not in kept
    assert world.restart().get("t", 0).segments.aborted_transactions(0, log.log_end_offset) == [(6, 3)]


def test_the_last_batch_of_an_active_producer_stays_empty(world, read):
    log = compacted(world)
    for number in range(3):
        world.append(log, (b"k", b"v%d" % number), producer_id=5, producer_epoch=0, base_sequence=number)
    for _ in range(20):
        world.append(log, (b"k", b"w" * 60))
    clean(world, log)
    data = log.read(0, 10**6, upper_bound=log.log_end_offset, at_least_one=True).records
    first = next(batches(data))[0]
    assert (first.base_offset, first.record_count, first.producer_id, first.base_sequence) == (2, 0, 5, 2)
    for name in [name for name in world.disk.list_directory("/data/t-0") if name.endswith(".snapshot")]:
        world.disk.remove(f"/data/t-0/{name}")
    log = world.crash("kept").get("t", 0)
    result = world.append(log, (b"k", b"x"), producer_id=5, producer_epoch=0, base_sequence=2)
    assert (result.duplicate, result.base_offset) == (True, 2)


def test_records_without_a_key_go(world, read):
    log = world.log(segment_bytes=1000)
    world.append(log, (None, b"v"), (b"k", b"v"))
    log.config.cleanup_policy = COMPACT
    log.roll()
    world.append(log, (b"z", b"v"))
    clean(world, log)
    assert [key for _, key, _ in read(log)] == [b"k", b"z"]


def test_a_full_map_compacts_a_part_and_goes_on_next_time(make_world, read):
    world = make_world()
    world.broker.log_cleaner_dedupe_buffer_size = 2300  # ten keys
    log = compacted(world)
    for round_number in range(3):
        for number in range(25):
            world.append(log, (b"k%d" % number, b"v%d" % round_number))
    log.roll()
    world.append(log, (b"end", b""))
    history = read(log)
    for _ in range(12):
        clean(world, log)
        last = {key: (offset, value) for offset, key, value in history}
        left = read(log)
        assert {key: (offset, value) for offset, key, value in left} == last
    assert left == expected(history, log.segments.active.base_offset)


@pytest.mark.parametrize("lag", [False, True])
def test_a_full_map_holds_nothing_up_though_no_other_segment_closes(make_world, read, lag):
    world = make_world()
    world.broker.log_cleaner_dedupe_buffer_size = 2300  # ten keys
    world.broker.log_cleaner_backoff_ms = 1_000
    settings = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 5_000} if lag else {}
    log = compacted(world, segment_bytes=1 << 20, **settings)
    for round_number in range(3):
        for number in range(100):
            world.append(log, (b"k%d" % number, b"v%d" % round_number))
    log.roll()
    world.append(log, (b"end", b""))
    log.set_high_watermark(log.log_end_offset)
    history = read(log)
    runs = [0]
    original = world.manager.cleaner._compact

    def compact(log):
        runs[0] += 1
        return original(log)

    world.manager.cleaner._compact = compact
    world.clock.advance(120_000)
    assert read(log) == expected(history, log.segments.active.base_offset)
    assert runs[0] == 30, "ten keys each time"
    world.clock.advance(120_000)
    assert runs[0] == 30, "and then there is nothing to do"


def test_a_compaction_that_an_open_transaction_ended_is_not_done_again_for_each_record(world):
    log = compacted(world, segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.9)
    for number in range(50):
        world.append(log, (b"k%d" % (number % 3), b"v" * 50))
    log.roll()
    world.append(log, (b"end", b""))
    log.set_high_watermark(20)  # in the middle of the segment, as an open transaction holds it
    world.manager.cleaner.run(log)
    key, directory = (log.topic, log.partition), world.manager.directories[0]
    assert directory.cleaner_offsets[key] == 20
    assert world.manager.cleaner.dirtiest() is None
    log.set_high_watermark(21)
    assert world.manager.cleaner.dirtiest() is None
    log.set_high_watermark(log.log_end_offset)
    assert world.manager.cleaner.dirtiest() is log


def test_the_cleaner_picks_the_dirtiest_log_by_itself_and_remembers_how_far_it_came(world, read):
    world.open()
    clean_log, dirty = compacted(world, "clean"), compacted(world, "dirty")
    world.set(dirty, min_cleanable_dirty_ratio=0.5)
    for log, keys in ((clean_log, 1000), (dirty, 2)):
        for number in range(30):
            world.append(log, (b"k%d" % (number % keys), b"v" * 50))
        log.set_high_watermark(30)
    plain = world.log("plain")
    plain.config = type(plain.config).of({}, world.broker)
    world.clock.advance(15_000 * 4)
    assert len(read(dirty)) < 10
    text = world.disk.open("/data/cleaner-offset-checkpoint").read(0, 999).decode()
    assert f"dirty 0 {dirty.segments.active.base_offset}" in text
    world.disk.journal = []
    world.clock.advance(15_000 * 3)
    assert not [log for log in (clean_log, dirty) if world.manager.cleaner.dirtiest() is log]
    assert not [path for _, path in world.disk.journal if path.endswith(".cleaned")]


def test_max_compaction_lag_forces_a_compaction_and_a_roll(world, read):
    log = compacted(world, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000, segment_bytes=10**6)
    world.append(log, (b"k", b"1"), (b"k", b"2"))
    world.clock.advance(1001)
    world.append(log, (b"k", b"3"))
    assert len(log.segments) == 2
    log.set_high_watermark(3)
    assert world.manager.cleaner.dirtiest() is log
    world.manager.rests = lambda topic: topic == "t"  # its settings are old, see `broker/old_settings.py`
    assert world.manager.cleaner.dirtiest() is None


def stages(world, log):
    """Pieces of work that a compaction of the log has, each with what is durable when it ends."""
    cleaner = world.manager.cleaner
    cleaner._begin(log)
    error = None
    while cleaner._work is not None:
        cleaner._slice(error)
        yield
        error = cleaner._do_now()


def filled(world):
    world.topics["t"] = {"cleanup.policy": "compact"}
    log = compacted(world, segment_bytes=300_000)
    for number in range(40):
        world.append(log, (b"k%d" % (number % 3), b"v" * 50_000))
    log.set_high_watermark(40)
    return log


def test_a_truncation_stops_a_compaction_wherever_it_is(make_world, read):
    world = make_world()
    count = len(list(stages(world, filled(world))))
    swaps = 0
    for stage in range(count):
        world = make_world()
        log = filled(world)
        for number, _ in enumerate(stages(world, log)):
            if number == stage:
                swaps += log.finish_swap is not None
                truncation.truncate_to(log, 39)
                assert not log.cleaning
        assert world.manager.cleaner._work is None
        assert (log.log_end_offset, log.finish_swap) == (39, None)
        left = read(log)
        assert [offset for offset, _, _ in left][-2:] == [37, 38]
        names = world.disk.list_directory("/data/t-0")
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        log.flush()
        log = world.crash("lost").get("t", 0)
        assert (log.log_end_offset, read(log)) == (39, left)
    assert swaps >= 6, "two groups or more, three waits in each swap"


def test_a_stop_in_a_swap_ends_it(make_world, read):
    world = make_world()
    count = len(list(stages(world, filled(world))))
    for stage in range(count):
        world = make_world()
        log = filled(world)
        history = read(log)
        for number, _ in enumerate(stages(world, log)):
            if number == stage:
                world.manager.cleaner.stop()
        active = log.segments.active.base_offset
        left = read(world.restart().get("t", 0))
        assert [row for row in left if row[0] >= active] == [row for row in history if row[0] >= active]
        assert {row[1]: row for row in left} == {row[1]: row for row in history}
        names = world.disk.list_directory("/data/t-0")
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]


def test_a_compaction_waits_for_its_syncs_off_the_loop(world, read, monkeypatch):
    """What it does by its timers never syncs itself, and what others do meanwhile is fine."""
    log = filled(world)
    history = read(log)
    journal = world.disk.journal = []
    inside = []
    monkeypatch.setattr(world.disk, "sync_all", lambda *_: inside.append("sync_all"))
    original = world.disk.sync_in_background
    asked = []
    monkeypatch.setattr(
        world.disk, "sync_in_background", lambda *given, **more: (asked.append(given), original(*given, **more))[1]
    )
    world.manager.cleaner.begin(log)
    world.clock.advance(1)
    turns = 0
    while world.manager.cleaner._work is not None:
        world.clock.advance(1)
        world.append(log, (b"new", b"%d" % turns))
        turns += 1
        assert turns < 1000
    assert not inside
    assert len(asked) >= 8
    assert [kind for kind, _ in journal].count("sync_directory") >= 8
    left = [row for row in read(log) if row[1] != b"new"]
    assert {row[1]: row for row in left} == {row[1]: row for row in history}
    assert len(left) < len(history) / 2


def test_clients_are_served_between_the_slices(world, read):
    log = compacted(world, segment_bytes=300_000)
    for number in range(40):
        world.append(log, (b"k%d" % (number % 3), b"v" * 50_000))
    log.set_high_watermark(40)
    slices = 0
    for _ in stages(world, log):
        slices += 1
        world.append(log, (b"new", b"%d" % slices))
    assert slices > 5
    assert [value for _, key, value in read(log) if key == b"new"][:slices] == [b"%d" % n for n in range(1, slices + 1)]
    assert [key for _, key, _ in read(log) if key != b"new"].count(b"k0") <= 3


def test_follower_batches_with_holes_go_through_a_compacted_leader(world, read):
    leader = compacted(world, "leader")
    for number in range(60):
        world.append(leader, (b"k%d" % (number % 3), b"v" * 50))
    clean(world, leader)
    follower = world.log("follower")
    offset = 0
    while offset < leader.log_end_offset:
        data = leader.read(offset, 500, upper_bound=leader.log_end_offset, at_least_one=True)
        assert follower.append_as_follower(data.records).error == 0
        offset = follower.log_end_offset
    assert read(follower) == read(leader)


def test_offsets_without_records_at_the_end_of_a_segment_do_not_keep_it_dirty(world, read):
    log = compacted(world, segment_bytes=1 << 20)
    for number in range(50):
        world.append(log, (b"k%d" % (number % 3), b"v"))
    world.set(log, cleanup_policy=frozenset())
    world.append(log, (None, b"goes"))
    world.set(log, cleanup_policy=COMPACT)
    log.roll()
    world.append(log, (b"end", b""))
    clean(world, log)
    left = read(log)
    assert [offset for offset, _, _ in left] == [47, 48, 49, 51]
    checkpoint = world.manager.directories[0].cleaner_offsets
    assert checkpoint.pop(("t", 0)) == 51  # a loss of power may take it
    clean(world, log)
    assert world.manager.cleaner.dirtiest() is None
    assert checkpoint[("t", 0)] == 51
    assert read(log) == left


def test_a_log_that_cannot_be_compacted_now_does_not_keep_others_waiting(world, read):
    world.open()
    write_blocked, other = compacted(world, "write_blocked"), compacted(world, "other")
    for log, keys in ((write_blocked, 2), (other, 5)):
        for number in range(30):
            world.append(log, (b"k%d" % (number % keys), b"v" * 50))
        log.set_high_watermark(30)
    tried = []
    original = world.manager.cleaner._compact

    def compact(log):
        tried.append(log.topic)
        if log is not write_blocked:
            yield from original(log)

    world.manager.cleaner._compact = compact
    world.clock.advance(15_000 * 4)
    assert len(read(other)) < 15
    assert 1 <= tried.count("write_blocked") <= 4, "once a round"


@pytest.mark.parametrize("was_compacted", [False, True])
def test_a_damaged_batch_is_not_given_a_right_checksum(world, read, was_compacted):
    log = compacted(world)
    for number in range(30):
        world.append(log, (b"k%d" % (number % 3), b"v" * 50))
    if was_compacted:
        clean(world, log)
        for number in range(30):
            world.append(log, (b"k%d" % (number % 3), b"w" * 50))
    history = read(log)
    segment, batch = next(log.segments.batches_from(0))
    last = batch.position + batch.size - 10
    whole = segment.batch_bytes(batch)
    world.disk.open(segment.path).write(last, bytes([whole[-10] ^ 1]))
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match=f"offset {batch.base_offset} is wrong"):
            clean(world, log)
    assert not log.cleaning
    assert [row[0] for row in read(log)] == [row[0] for row in history], "nothing is lost"
    assert [name for name in world.disk.list_directory("/data/t-0") if "clean" in name or "swap" in name] == []
    world.disk.open(segment.path).write(last, whole[-10:-9])
    clean(world, log)
    assert len(read(log)) < len(history)


def test_a_crash_cannot_take_the_marker_that_made_a_record_give_way(world, read):
    """The marker is in the active segment, which is not compacted, and nobody has synced it yet."""
    log = compacted(world)
    ids = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    world.append(log, (b"k", b"before"))
    world.append(log, (b"k", b"in a transaction"), **ids, base_sequence=0)
    log.roll()
    log.flush()
    world.marker(log, 7, commit=True)
    clean(world, log)
    assert [row[2] for row in read(log)][:1] == [b"in a transaction"]
    log = world.crash("lost").get("t", 0)
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 3
