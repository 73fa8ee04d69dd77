import asyncio
import random

import pytest
from barnabas.protocol.record_batch import Record, batches, build
from barnabas.runtime.ports import Env
from barnabas.storage import producer_state, truncation
from barnabas.storage.checkpoints import CheckpointError, read_offsets
from barnabas.storage.directory_contents import DataDirectoryError
from barnabas.storage.log_manager import LogManager
from barnabas.storage.producer_snapshot import read_snapshot
from barnabas.storage.producer_state import REPLAYED_AFTER_CRASH_BYTES
from simulator.disk import PowerLoss
from simulator.env import SimEnv
from simulator.storage import check_log
from simulator.storage_transactions import visible


def damage(world, path, position, data=b"\xee"):
    world.disk.open(path).write(position, data)


def test_an_unclean_start_cuts_at_the_first_bad_batch_and_drops_later_segments(world, read):
    log = world.log(segment_bytes=2000, index_interval_bytes=200)
    world.fill(log, 50)
    bases = [segment.base_offset for segment in log.segments]
    third = log.segments[2]
    batch = third.find(bases[2] + 4)
    damage(world, third.path, batch.position + 70)
    log = world.crash("kept").get("t", 0)
    assert not world.manager.was_clean
    assert log.log_end_offset == bases[2] + 4
    assert [segment.base_offset for segment in log.segments] == bases[:3]
    assert [offset for offset, _, _ in read(log)] == list(range(bases[2] + 4))
    names = world.disk.list_directory("/data/t-0")
    assert f"{bases[3]:020d}.log" not in names
    assert len([name for name in names if name.endswith("-cut")]) == len(bases) - 3
    world.fill(log, 5)
    assert [offset for offset, _, _ in read(log)] == list(range(bases[2] + 9))


def test_aborted_transactions_are_known_after_a_crash_that_took_several_segments(world):
    """All indexes from the recovery point on are made again, though a newer snapshot would do for the producers."""
    log = world.log(segment_bytes=3 << 20)
    ids = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    world.append(log, (b"k", b"aborted"), base_sequence=0, **ids)
    world.marker(log, 5, commit=False)
    log.roll()
    while len(log.segments) < 4:
        world.append(log, (b"k", bytes(500_000)))
    assert log.durability.recovery_point == 0
    assert log.producers.snapshots[0] == 2
    assert sum(segment.size for segment in log.segments[1:]) > REPLAYED_AFTER_CRASH_BYTES
    log = world.crash("kept").get("t", 0)
    assert log.segments.aborted_transactions(0, 2) == [(5, 0)]


@pytest.mark.parametrize("where", ["before", "behind", "nowhere"])
def test_batches_are_replayed_after_a_crash_only_where_there_are_producers(world, monkeypatch, where):
    """`before`: below the recovery point, where nothing is checked, and no snapshot is newer."""
    log = world.log(segment_bytes=2_000)
    ids = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    if where == "before":
        world.append(log, (b"k", b"v"), **ids)
    world.fill(log, 40)
    log.flush()
    world.manager.checkpoint()
    world.fill(log, 40)
    if where == "behind":
        world.append(log, (b"k", b"v"), **ids)
    for offset in list(log.producers.snapshots):
        log.producers.remove_snapshot(offset)
    ends = []
    replay = producer_state.ProducerStateManager.replay

    def noted(self, segments, start, end=None):
        ends.append(segments.end_offset if end is None else end)
        return replay(self, segments, start, end)

    monkeypatch.setattr(producer_state.ProducerStateManager, "replay", noted)
    log = world.crash("kept").get("t", 0)
    assert (log.producers.get(5) is not None) == (where != "nowhere")
    assert log.producers.map_end_offset == log.log_end_offset
    assert (ends[-1] == log.log_end_offset) == (where == "behind")


def test_what_is_cut_off_in_whole_segments_is_kept_beside_the_log_and_goes_with_the_topic(world, read, caplog):
    log = world.log(segment_bytes=2000, index_interval_bytes=200)
    for round_ in range(2):  # a later cut at the same place does not replace what an earlier one has kept
        world.set(log, segment_bytes=2000)
        world.fill(log, 50 - log.log_end_offset)
        second, third = log.segments[1:3]
        content = world.disk.open(third.path).read(0, 10**6)
        damage(world, second.path, 70)  # its first batch: the whole segment is cut off
        caplog.clear()
        log = world.crash("kept").get("t", 0)
        assert log.log_end_offset == second.base_offset
        assert [offset for offset, _, _ in read(log)] == list(range(second.base_offset))
        kept = [name for name in world.disk.list_directory("/data/t-0") if name.startswith(f"{third.base_offset:020d}")]
        assert len(kept) == round_ + 1
        assert kept[0].endswith("-cut")
        assert world.disk.open(f"/data/t-0/{kept[-1]}").read(0, 10**6) == content
        line = next(record.getMessage() for record in caplog.records if "kept as" in record.getMessage())
        assert f"offsets from {second.base_offset} on" in line
    assert world.restart().get("t", 0).log_end_offset == second.base_offset
    assert set(kept) <= set(world.disk.list_directory("/data/t-0"))
    world.manager.delete("t", 0)
    world.clock.advance(70_000)
    assert [name for name in world.disk.list_directory("/data") if name.startswith("t-0")] == []


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("unsynced", ["kept", "lost"])
def test_gaps_that_compaction_left_are_no_damage_whatever_the_policy_is_now(world, read, policy, unsynced):
    """The recovery point in the checkpoint is older than the compaction, or there is none: of Kafka, or it was lost."""
    log = world.log(segment_bytes=500, cleanup_policy=frozenset(("compact",)), file_delete_delay_ms=10)
    for number in range(60):  # the same keys again and again, so that whole segments go
        world.append(log, (b"k%d" % (number % 3), b"%d" % number))
    log.set_high_watermark(60)
    log.flush()
    world.manager.cleaner.run(log)
    world.clock.advance(20)
    ends = [segment.next_offset() for segment in log.segments]
    assert any(end < segment.base_offset for end, segment in zip(ends, log.segments[1:])), "a gap between segments"
    before = read(log)
    assert not world.disk.exists("/data/recovery-point-offset-checkpoint")
    world.topics["t"] = world.topics.get("t", {}) | {"cleanup.policy": policy}
    log = world.crash(unsynced).get("t", 0)
    assert not world.manager.was_clean
    assert log.log_end_offset == 60
    assert read(log) == before


def test_a_segment_is_marked_until_it_is_durable_up_to_the_next(world):
    def marks():
        return [name for name in world.disk.list_directory("/data/t-0") if name.endswith(".unsynced")]

    log = world.log(segment_bytes=500)
    world.fill(log, 1)
    assert marks() == []
    world.fill(log, 10)
    bases = [segment.base_offset for segment in log.segments]
    assert marks() == [f"{base:020d}.unsynced" for base in bases]
    world.clock.advance(100)  # their syncs end
    assert log.durability.recovery_point == bases[-1]
    assert marks() == [f"{bases[-1]:020d}.unsynced"]
    log.flush()
    world.fill(log, 10)
    truncation.truncate_to(log, bases[-1] - 1)
    assert len(marks()) <= 1
    world.manager.shutdown()
    assert marks() == []
    log = world.open().get("t", 0)
    world.set(log, segment_bytes=500, flush_messages=1)
    world.fill(log, 20)
    assert marks() == [], "all is durable before each roll"


def test_batches_below_the_recovery_point_are_trusted(world):
    log = world.log(segment_bytes=2000)
    world.fill(log, 30)
    log.flush()
    world.manager.checkpoint()
    damage(world, log.segments[0].path, 70)
    log = world.crash("kept").get("t", 0)
    assert log.log_end_offset == 30


def test_a_clean_start_trusts_and_does_not_scan(world):
    log = world.log(segment_bytes=2000)
    world.fill(log, 30)
    damage(world, log.segments.active.path, 70)
    log = world.restart().get("t", 0)
    assert world.manager.was_clean
    assert log.log_end_offset == 30


def test_recovery_leaves_indexes_alone_that_are_right_already(world, read):
    log = world.log(index_interval_bytes=200)
    world.fill(log, 30)
    log.segments.active.write_indexes()
    world.disk.journal = []
    log = world.crash("kept").get("t", 0)
    assert not world.manager.was_clean
    assert [
        change for change in world.disk.journal if change[0] in ("truncate", "write") and "index" in change[1]
    ] == []
    assert [offset for offset, _, _ in read(log, 25)] == list(range(25, 30))


def test_a_start_that_is_ended_on_the_way_leaves_everything_as_a_crash_would(world, read):
    log = world.log()
    world.fill(log, 60, size=100_000)
    world.disk.crash("kept")
    manager = LogManager(world.env, "/data", world.broker, lambda topic: {})
    total = sum(1 for _ in manager._start())
    manager.shutdown()
    assert total > 6, "one log is opened in pieces"
    world.disk.remove("/data/.kafka_cleanshutdown")
    for count in range(1, total):
        manager = LogManager(world.env, "/data", world.broker, lambda topic: {})
        pieces = manager._start()
        for _ in range(count):
            next(pieces)
        pieces.close()
        manager.shutdown()
        assert not world.disk.exists("/data/.kafka_cleanshutdown")
    log = world.open().get("t", 0)
    assert not world.manager.was_clean
    assert [offset for offset, _, _ in read(log)] == list(range(60))


def test_a_long_start_lets_the_loop_run_and_says_how_far_it_is(world, caplog):
    log = world.log()
    world.fill(log, 60, size=100_000)
    world.disk.crash("kept")
    manager = LogManager(world.env, "/data", world.broker, lambda topic: {})
    passes = []

    async def main():
        loading = asyncio.ensure_future(manager.load())
        while not loading.done():
            passes.append(1)
            await asyncio.sleep(0)
        loading.result()

    class SlowClock:
        """Each look at it shows that a second has gone by."""

        def __init__(self, clock):
            self._clock = clock
            self._passed_ms = 0

        def __getattr__(self, name):
            return getattr(self._clock, name)

        def monotonic_ms(self):
            self._passed_ms += 1_000
            return self._passed_ms

        async def sleep(self, delay_ms):
            await asyncio.sleep(0)

    manager._env = Env(SlowClock(world.clock), world.env.disk, world.env.network, world.env.rng)
    with caplog.at_level("INFO"):
        asyncio.run(main())
    assert len(passes) > 6
    lines = [record.getMessage() for record in caplog.records if "opening the logs" in record.getMessage()]
    assert lines[0] == "opening the logs: 0 of 1 are open, t-0: 1 of 5 MiB"
    assert manager.get("t", 0).log_end_offset == 60


def test_a_torn_last_batch_is_cut(world, read):
    log = world.log()
    world.fill(log, 3)
    size = log.size_bytes
    world.disk.open(log.segments.active.path).write(
        size, bytes(build([Record(timestamp=1, value=b"x" * 99)], base_offset=3))[:80]
    )
    log = world.crash("kept").get("t", 0)
    assert (log.log_end_offset, log.size_bytes) == (3, size)
    assert world.disk.file_size(log.segments.active.path) == size


@pytest.mark.parametrize("extension", ["index", "timeindex"])
@pytest.mark.parametrize("how", ["missing", "odd size", "beyond the log", "zeros behind"])
def test_indexes_that_cannot_be_right_are_made_again(world, read, extension, how):
    log = world.log(segment_bytes=5000, index_interval_bytes=200)
    start = world.now()
    for number in range(80):
        world.fill(log, 1, timestamp=start + number)
    world.manager.shutdown()
    path = f"/data/t-0/00000000000000000000.{extension}"
    good = world.disk.open(path).read(0, 10**6)
    assert len(good) > 100
    if how == "missing":
        world.disk.remove(path)
    elif how == "odd size":
        world.disk.open(path).truncate(len(good) - 3)
    elif how == "zeros behind":
        world.disk.open(path).truncate(len(good) + 2400)
    else:
        world.disk.open(path).write(len(good), b"\x7f\xff\xff\xfe" * 6)
    log = world.open().get("t", 0)
    for offset in range(0, 80, 7):
        assert log.read(offset, 1, upper_bound=80, at_least_one=True).first_offset == offset
    assert [offset for offset, _, _ in read(log)] == list(range(80))
    assert log.offset_for_timestamp(start + 33, 80).offset == 33
    if how != "zeros behind":
        assert world.disk.open(path).read(0, 10**6) == good


def test_the_recovery_point_on_disk_is_that_of_the_recovered_log(world):
    log = world.log()
    world.fill(log, 20)
    log.flush()
    world.fill(log, 10)
    world.manager.checkpoint()
    assert read_offsets(world.disk, "/data/recovery-point-offset-checkpoint") == {("t", 0): 20}
    world.crash("kept")
    assert not world.manager.was_clean
    assert read_offsets(world.disk, "/data/recovery-point-offset-checkpoint") == {("t", 0): 30}


@pytest.mark.parametrize("merged_count", [1, 2, 3])
def test_a_finished_swap_takes_the_place_of_just_the_segments_it_was_made_of(world, read, merged_count):
    log = world.log(index_interval_bytes=150)
    for count in (10, 5, 1, 10, 5):
        world.fill(log, count)
        log.roll()
    bases = [segment.base_offset for segment in log.segments]
    assert bases == [0, 10, 15, 16, 26, 31]
    world.manager.shutdown()
    disk, folder = world.disk, "/data/t-0"
    sources = bases[1 : 1 + merged_count]
    merged = b"".join(disk.open(f"{folder}/{base:020d}.log").read(0, 10**6) for base in sources)
    first, second = (batch for _, batch in list(batches(merged))[:2])
    compacted = merged[: len(first)] + merged[len(first) + len(second) :]  # so that the old indexes do not fit
    disk.open(f"{folder}/{bases[1]:020d}.log.swap", create=True).write(0, compacted)
    log = world.open().get("t", 0)
    assert [segment.base_offset for segment in log.segments] == [*bases[:2], *bases[1 + merged_count :]]
    assert [offset for offset, _, _ in read(log)] == [offset for offset in range(31) if offset != 11]
    check_log(log)


def test_leftovers_are_removed_and_finished_swaps_completed(world, read):
    log = world.log(segment_bytes=2000)
    world.fill(log, 40)
    bases = [segment.base_offset for segment in log.segments]
    world.manager.shutdown()
    disk, folder = world.disk, "/data/t-0"
    merged = b"".join(disk.open(f"{folder}/{base:020d}.log").read(0, 10**6) for base in bases[:2])
    file = disk.open(f"{folder}/{bases[0]:020d}.log.swap", create=True)
    file.write(0, merged)
    for name in (
        "00000000000000000007.log.cleaned",
        "00000000000000000007.index.deleted",
        "leader-epoch-checkpoint.tmp",
        "letter.tmp",
    ):
        disk.open(f"{folder}/{name}", create=True)
    disk.open(f"{folder}/00000000000000000999.index", create=True)
    log = world.open().get("t", 0)
    assert [segment.base_offset for segment in log.segments] == [bases[0], *bases[2:]]
    assert [offset for offset, _, _ in read(log)] == list(range(40))
    left = disk.list_directory(folder)
    assert [name for name in left if name.endswith((".swap", ".cleaned", ".deleted", ".tmp"))] == ["letter.tmp"]
    assert "00000000000000000999.index" not in left


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("edited", ["900 0", "900 2", "1 0\n7 1", "0 0"])
def test_an_edited_file_of_epochs_is_made_again_from_the_batches(world, caplog, stop, edited):
    """Until 2026-11-30 an epoch that no batch has was believed: clients were told that their records were cut off."""
    log = world.log()
    for epoch in (1, 1, 5, 5):
        world.append(log, (b"k", b"v"), epoch=epoch)
    log.flush()
    world.manager.shutdown() if stop == "clean" else world.manager.abandon()
    text = f"0\n{edited.count(chr(10)) + 1}\n{edited}\n".encode()
    file = world.disk.open("/data/t-0/leader-epoch-checkpoint")
    file.truncate(0)
    file.write(0, text)
    log = world.open().get("t", 0)
    assert log.leader_epochs.entries == [(1, 0), (5, 2)]
    said = caplog.text.count("/data/t-0/leader-epoch-checkpoint does not fit the batches of the log")
    assert said == (edited != "0 0" or stop == "clean"), "a crash may lose epochs"
    world.restart()
    assert world.manager.get("t", 0).leader_epochs.entries == [(1, 0), (5, 2)]
    assert caplog.text.count("does not fit") == said


def test_epochs_lost_in_a_crash_are_found_in_the_batches(world):
    log = world.log()
    for epoch in (1, 1, 5, 7):
        world.append(log, (b"k", b"v"), epoch=epoch)
    assert not world.disk.exists("/data/t-0/leader-epoch-checkpoint")
    log = world.crash("kept").get("t", 0)
    assert log.leader_epochs.entries == [(1, 0), (5, 2), (7, 3)]


def test_message_sets_of_old_formats_are_not_cut_off_as_damage(world):
    world.open()
    world.disk.make_directory("/data/old-0")
    file = world.disk.open("/data/old-0/00000000000000000000.log", create=True)
    file.write(0, bytes.fromhex("0000000000000005000000101fecd70a0000000000016b0000000176" * 3))
    size = file.size()
    world.disk.crash("kept")
    with pytest.raises(DataDirectoryError, match="old format"):
        world.open()
    assert world.disk.file_size("/data/old-0/00000000000000000000.log") == size


def test_a_checkpoint_that_cannot_be_read_stops_the_start_with_advice(world):
    log = world.log()
    world.fill(log, 1)
    world.manager.shutdown()
    world.disk.open("/data/t-0/leader-epoch-checkpoint").write(0, b"7")
    with pytest.raises(DataDirectoryError, match=r"leader-epoch-checkpoint.*line 1.*Restore"):
        world.open()
    assert isinstance(CheckpointError("x"), ValueError)
    world.disk.open("/data/t-0/leader-epoch-checkpoint").write(0, b"0")
    world.open()  # the lock was given back


def workload(world):
    """Appends, flushes, rolls, compaction, truncation and retention on small segments; yields what is durable."""
    rng = random.Random(5)
    log = world.log(
        "t",
        segment_bytes=900,
        index_interval_bytes=100,
        cleanup_policy=frozenset(("compact",)),
        file_delete_delay_ms=10,
    )
    for number in range(30):
        key = b"k%d" % rng.randrange(4)
        world.append(
            log, (key, b"v%d" % number), epoch=number // 10, producer_id=3, producer_epoch=0, base_sequence=number
        )
        log.set_high_watermark(log.log_end_offset)
        if number % 7 == 6:
            log.flush()
            world.manager.checkpoint()
            world.durable = log.log_end_offset
        if number % 5 == 4:
            world.clock.advance(20)
        if number == 24:
            world.manager.cleaner.run(log)
    world.clock.advance(20)
    log.flush()
    world.durable = log.log_end_offset


@pytest.mark.parametrize("unsynced", ["lost", "torn", "kept"])
def test_a_crash_at_any_change_of_the_disk_keeps_a_prefix_and_all_that_was_synced(make_world, read, unsynced):
    reference = make_world()
    workload(reference)
    total = reference.disk.operations
    last_value = {}
    values = {}
    for number, rng in zip(range(30), [random.Random(5)] * 30):
        values[number] = (b"k%d" % rng.randrange(4), b"v%d" % number)
    assert total > 150
    for operation in range(0, total, 1 if unsynced == "lost" else 3):
        world = make_world(seed=operation)
        world.durable = 0
        world.disk.lose_power_at(operation)
        with pytest.raises(PowerLoss):
            workload(world)
        world.crash(unsynced)
        log = world.manager.get("t", 0)
        if log is None:
            assert world.durable == 0
            continue
        world.set(log, segment_bytes=900, cleanup_policy=frozenset(("compact",)))
        end = log.log_end_offset
        assert end >= world.durable, operation
        found = read(log)
        assert all((key, value) == values[offset] for offset, key, value in found)
        last_value = {values[offset][0]: offset for offset in range(end)}
        latest_found = {key: offset for offset, key, _ in found}
        assert latest_found == last_value, operation  # compaction or not: of each key the last record is there
        entry = log.producers.get(3)
        assert (entry.last_sequence if entry else -1) == end - 1
        assert [epoch for epoch, start in log.leader_epochs.entries if start < end] == sorted(
            {number // 10 for number in range(end)}
        )
        result = world.append(log, (b"new", b"x"), producer_id=3, producer_epoch=0, base_sequence=end, epoch=9)
        assert (result.error, result.base_offset) == (0, end)
        log = world.restart().get("t", 0)
        assert log.log_end_offset == end + 1
        assert read_snapshot(world.disk, f"/data/t-0/{end + 1:020d}.snapshot")[0].batches[-1].last_sequence == end


def young_workload(world):
    """Topics made, a first record in one of them, a new epoch without records, a topic made again under its name."""
    manager = world.open()
    for topic in ("first", "second"):
        manager.get_or_create(topic, 0, topic.encode().ljust(16))
    log = manager.get("first", 0)
    log.leader_epochs.assign(0, 0)
    world.append(log, (b"k", b"old"), epoch=0)
    world.clock.advance(1)
    manager.delete("first", 0)
    world.deleted = True
    log = manager.get_or_create("first", 0, b"first again".ljust(16))
    log.leader_epochs.assign(0, 0)
    world.append(log, (b"k", b"new"), epoch=0)
    log.leader_epochs.assign(1, 1)  # leads again; no record comes
    log.leader_epochs.assign(2, 1)
    world.append(log, (b"k", b"new"), epoch=2)
    log.durability.flush_in_background()
    world.clock.advance(1)
    world.durable = log.durability.recovery_point
    log.leader_epochs.assign(5, 2)
    manager.shutdown()


@pytest.mark.parametrize("unsynced", ["lost", "torn", "kept"])
def test_a_crash_after_a_topic_was_made_or_an_epoch_began_loses_nothing_that_matters(make_world, read, unsynced):
    reference = make_world()
    young_workload(reference)
    assert reference.durable == 2, "the background flush lifts the recovery point"
    for operation in range(reference.disk.operations):
        for seed in range(3 if unsynced == "torn" else 1):
            world = make_world(seed=seed * 1000 + operation)
            world.durable, world.deleted = 0, False
            world.disk.lose_power_at(operation)
            with pytest.raises(PowerLoss):
                young_workload(world)
            manager = world.crash(unsynced)  # it starts, whatever was torn
            for topic in ("first", "second"):  # and the controller says again what the tree says
                topic_id = b"first again".ljust(16) if topic == "first" and world.deleted else topic.encode().ljust(16)
                before = manager.get(topic, 0)
                known_id = before.topic_id if before is not None else None
                if known_id is not None and known_id != topic_id:
                    # The first one came back from the dead: its id tells, and nothing of the new one was durable.
                    assert (known_id, world.durable) == (b"first".ljust(16), 0)
                    continue
                log = manager.get_or_create(topic, 0, topic_id)
                assert log.topic_id == topic_id
                values = [value for _, _, value in read(log)]
                assert len(values) >= (world.durable if topic == "first" else 0)
                assert set(values) <= ({b"new"} if world.deleted else {b"old"}), (operation, seed)
                epochs = dict(log.leader_epochs.entries)
                assert all(epochs[epoch] == start for epoch, start in ((0, 0), (2, 1)) if start < len(values))
                if len(values) == 2:  # an epoch without records that is lost: its end is told by the one before it
                    assert log.leader_epochs.end_offset_for(1, log.log_end_offset)[1] == 1
            manager.shutdown()
            assert world.open().was_clean


def cutting_workload(world):
    """Appends, a truncation inside what was synced, other appends in its place, retention, a clean stop."""
    log = world.log("t", segment_bytes=500, index_interval_bytes=100, file_delete_delay_ms=10)
    for number in range(12):
        world.append(log, (b"old", b"%d" % number), epoch=1)
    log.set_high_watermark(4)
    log.flush()
    world.manager.checkpoint()
    world.truncating = True
    truncation.truncate_to(log, 5)
    for number in range(5, 16):
        world.append(log, (b"new", b"%d" % number), epoch=2)
    log.flush()
    world.rewritten = True
    log.set_high_watermark(16)
    world.manager.checkpoint()
    world.set(log, retention_bytes=600)
    world.manager.apply_retention()
    world.retained_from = log.log_start_offset
    world.clock.advance(20)
    world.manager.shutdown()


@pytest.mark.parametrize("unsynced", ["lost", "torn", "kept"])
def test_a_crash_around_a_truncation_never_mixes_the_two_histories_wrongly(make_world, read, unsynced):
    reference = make_world()
    cutting_workload(reference)
    total = reference.disk.operations
    assert total > 100
    for operation in range(total):
        world = make_world(seed=operation)
        world.truncating = world.rewritten = False
        world.retained_from = 0
        world.disk.lose_power_at(operation)
        with pytest.raises(PowerLoss):
            cutting_workload(world)
        world.crash(unsynced)
        log = world.manager.get("t", 0)
        if log is None:
            assert not world.truncating
            continue
        found = read(log)
        assert [o for o, _, _ in found] == list(range(log.log_start_offset, log.log_end_offset)), operation
        assert all(value == b"%d" % offset for offset, _, value in found)
        keys = [key for _, key, _ in found]
        assert keys == sorted(keys, reverse=True), operation  # old ones, then new ones
        if b"new" in keys and log.log_start_offset < 5:
            assert keys.count(b"old") == 5 - log.log_start_offset, operation
        if world.rewritten:
            assert log.log_end_offset == 16, operation
        elif world.truncating:
            assert log.log_end_offset >= 5, operation
        for epoch, start in log.leader_epochs.entries:
            begin = {1: 0, 2: 5}[epoch]
            # A crash can bring segments back that retention had removed, when the epochs were cut there already.
            assert start in {max(begin, log.log_start_offset), max(begin, world.retained_from)}, operation


@pytest.mark.parametrize("checkpoints", [1, 2])
def test_a_crash_behind_retention_leaves_no_hole_in_the_log(make_world, read, checkpoints):
    """Each removed file's new name may be lost on its own: what comes back lies below the log start."""
    for seed in range(30):
        world = make_world(seed=seed)
        log = world.log("t", segment_bytes=500, file_delete_delay_ms=60_000)
        world.fill(log, 60)
        log.flush()
        world.manager.checkpoint()
        world.set(log, retention_bytes=1000)
        world.manager.apply_retention()
        assert len(log.segments) < 5
        start = log.log_start_offset
        for _ in range(checkpoints - 1):
            world.manager.checkpoint()
        log = world.crash("torn").get("t", 0)
        assert log.log_start_offset == start
        assert [offset for offset, _, _ in read(log)] == list(range(start, 60))
        world.manager.apply_retention()
        assert log.segments[0].base_offset == start


def test_indexes_of_a_segment_that_was_cut_empty_are_stable_after_a_clean_stop(make_world):
    for seed in range(20):
        world = make_world(seed=seed)
        log = world.log("t", index_interval_bytes=10)
        world.append(log, *[(b"k", b"v")] * 3)
        world.append(log, *[(b"k", b"v")] * 3)
        log.roll()
        truncation.truncate_to(log, 1)  # inside the first batch
        world.manager.shutdown()
        log = world.crash("scattered").get("t", 0)
        assert log.log_end_offset == 0
        log.segments[0].load()
        assert (log.segments[0].max_timestamp, len(log.segments[0].offset_index)) == (-1, 0)


def test_a_log_that_lost_all_above_its_start_goes_on_where_it_began(make_world, read):
    """Retention took everything and began a segment anew, whose name a crash lost: old offsets are not given again."""
    for seed in range(30):
        world = make_world(seed=seed)
        log = world.log("t", segment_bytes=500, retention_ms=10_000, file_delete_delay_ms=60_000)
        world.fill(log, 40)
        log.flush()
        world.clock.advance(20_000)
        world.manager.apply_retention()
        assert log.log_start_offset == 40
        log = world.crash("torn").get("t", 0)
        assert (log.log_start_offset, log.log_end_offset) == (40, 40)
        world.fill(log, 2)
        log.flush()
        log = world.crash("torn").get("t", 0)
        assert [offset for offset, _, _ in read(log)] == [40, 41]


def test_after_a_cut_inside_a_batch_what_takes_its_place_is_checked(make_world, read):
    """The recovery point on disk must not lie behind the begin of the batch that went."""
    for seed in range(30):
        world = make_world(seed=seed)
        log = world.log("t", segment_bytes=200)
        world.append(log, (b"k", b"0"))
        world.append(log, *[(b"k", b"x")] * 3)
        log.flush()
        world.manager.checkpoint()
        truncation.truncate_to(log, 2)  # inside the second batch: the log ends at 1
        assert log.log_end_offset == 1
        world.append(log, (b"k", b"1"))  # offset 1, in the place of the batch
        log.roll()
        world.append(log, (b"k", b"2"))
        log = world.crash("torn").get("t", 0)
        found = read(log)
        assert [offset for offset, _, _ in found] == list(range(log.log_end_offset))
        assert [value for _, _, value in found] == [b"%d" % offset for offset, _, _ in found]


def compacted_with_an_aborted_transaction(world):
    """A compacted log; its cleaned segment holds an aborted transaction, because one before it is open."""
    log = world.log(cleanup_policy=frozenset(("compact",)), segment_bytes=10_000, min_cleanable_dirty_ratio=0.01)
    ids = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    world.append(log, (b"a", b"old"), producer_id=4, **ids)
    world.marker(log, 4, commit=False)
    world.append(log, (b"a", b"new"))
    world.append(log, (b"b", b"open"), producer_id=5, **ids)
    world.append(log, (b"c", b"aborted"), producer_id=6, **ids)
    world.marker(log, 6, commit=False)
    log.roll()
    world.append(log, (b"z", b"1"))
    log.set_high_watermark(log.log_end_offset)
    log.flush()
    world.manager.checkpoint()
    return log


@pytest.mark.parametrize("fate", ["lost", "torn", "scattered", "kept"])
def test_a_crash_at_any_change_of_a_compaction_keeps_the_index_of_aborted_transactions(
    world, make_world, fate, monkeypatch
):
    monkeypatch.setattr(producer_state, "REPLAYED_AFTER_CRASH_BYTES", 0)  # else all of it would be made again
    disks = []
    log = compacted_with_an_aborted_transaction(world)
    assert log.segments.aborted_transactions(0, 99) == [(4, 0), (6, 4)]
    world.disk.on_change = lambda operation, path: disks.append(world.disk.copy())
    world.manager.cleaner.run(log)
    world.disk.on_change = None
    world.marker(log, 5)
    log.set_high_watermark(log.log_end_offset)
    assert sorted(visible(log).values()) == [b"a", b"b", b"z"]
    assert len(disks) > 20
    for number, disk in enumerate(disks):
        for seed in range(8 if fate in ("torn", "scattered") else 1):
            other = make_world()
            other.disk = disk.copy(other.clock, random.Random(f"{seed} {number}"))
            other.disk.crash(fate)
            other.env = SimEnv(other.env.clock, other.disk, other.env.network, other.env.rng)
            log = other.open().get("t", 0)
            other.marker(log, 5)
            log.set_high_watermark(log.log_end_offset)
            keys = sorted(visible(log).values())
            assert keys == [b"a", b"b", b"z"], f"before change {number}, seed {seed}"


@pytest.mark.parametrize("seed", range(12))
def test_a_clean_stop_keeps_the_name_of_an_index_that_is_new(make_world, seed):
    world = make_world(seed)
    log = world.log()
    world.fill(log, 1)
    log.flush()
    world.append(log, (b"k", b"aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    world.marker(log, 5, commit=False)
    world.manager.shutdown()
    log = world.crash("torn").get("t", 0)  # the power fails after the stop
    assert world.manager.was_clean
    assert log.log_end_offset == 3
    assert log.segments.aborted_transactions(0, 3) == [(5, 1)]


def test_a_segment_that_was_renamed_before_a_start_after_a_crash_is_kept_and_can_be_had_back(world, caplog):
    """Until 2026-11-30 it was called damaged, and nobody said how it comes back."""
    world.fill(world.log(), 5)
    world.manager.abandon()
    names = [f"/data/t-0/{base:020d}.log" for base in (0, 1)]
    world.disk.rename(*names)
    assert world.open().get("t", 0).log_end_offset == 1
    assert f"{names[1]} begins with offset 0, so somebody has renamed or exchanged it" in caplog.text
    assert "name it 00000000000000000000.log in place of all segments from that offset on" in caplog.text
    world.manager.shutdown()
    (kept,) = [name for name in world.disk.list_directory("/data/t-0") if name.endswith("-cut")]
    world.disk.remove(names[1])
    world.disk.rename(f"/data/t-0/{kept}", names[0])
    world.disk.open("/data/log-start-offset-checkpoint").write(0, b"0\n1\nt 0 0\n")
    log = world.open().get("t", 0)
    assert (log.log_start_offset, log.log_end_offset) == (0, 5)
