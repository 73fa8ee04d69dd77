"""The upkeep of a log manager goes on, whatever happens to one log, and comes round to all logs."""

import errno

import pytest
from barnabas.runtime.upkeep import LATE_MS, LOOK_MS
from simulator.disk import SimFile

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def dirty(world, topic):
    """A log that wants to be compacted, and will be larger than one slice."""
    world.topics[topic] = COMPACTED
    log = world.log(topic, segment_bytes=100_000)
    for number in range(10):
        world.append(log, (b"k%d" % (number % 2), b"v" * 50_000))
    log.set_high_watermark(10)
    return log


def is_compacted(log, read):
    return len(read(log)) <= 5


def every_sync(world, monkeypatch, before):
    original = world.disk.sync_in_background
    monkeypatch.setattr(
        world.disk,
        "sync_in_background",
        lambda files, done, directories=(): (before(files, directories), original(files, done, directories))[1],
    )


def test_a_topic_that_is_deleted_while_its_compaction_waits_for_a_sync(world, read, monkeypatch):
    doomed = dirty(world, "doomed")

    def delete(files, directories):
        if any(".cleaned" in file.path for file in files) and not doomed.closed:
            world.manager.delete("doomed", 0)

    every_sync(world, monkeypatch, delete)
    world.clock.advance(60_000)
    assert doomed.closed
    other = dirty(world, "other")
    world.clock.advance(60_000)
    assert is_compacted(other, read)


@pytest.mark.parametrize("name", ["delete_retention_ms", "max_compaction_lag_ms", "retention_ms", "flush_ms"])
def test_the_largest_value_of_a_setting_that_is_added_to_a_time(world, read, name):
    log = dirty(world, "t")
    setattr(log.config, name, 2**63 - 1)
    world.append(log, (b"gone", b"1"), (b"gone", None))
    for number in range(3):
        world.append(log, (b"k%d" % number, b"v" * 90_000))
    log.set_high_watermark(log.log_end_offset)
    world.clock.advance(60_000)
    assert is_compacted(log, lambda log: [row for row in read(log) if row[2] is None or len(row[2]) < 90_000])
    assert (b"gone", None) in [(key, value) for _, key, value in read(log)]
    other = dirty(world, "other")
    world.clock.advance(60_000)
    assert is_compacted(other, read)
    assert log.failed is None
    assert (b"gone", None) in [(key, value) for _, key, value in read(world.restart().get("t", 0))]


def test_a_log_that_cannot_be_compacted_is_set_aside_and_tried_again(world, read, caplog):
    first, other = dirty(world, "first"), dirty(world, "other")
    world.disk.fail("read", "/first-0/", OSError(errno.EIO, "simulated"), times=4)
    size = first.size_bytes
    caplog.set_level("INFO", "barnabas.upkeep")
    world.clock.advance(16_000)
    assert (first.size_bytes, is_compacted(other, read)) == (size, True)
    world.clock.advance(200_000)
    assert is_compacted(first, read)
    told = [record.message for record in caplog.records if record.message.startswith("cleaner")]
    assert [text.partition("first-0")[2] for text in told] == [
        " failed, it is retried later: [Errno 5] simulated",
        ": recovered",
    ]


@pytest.mark.parametrize("open_files", [256, 1024])
def test_flush_ms_holds_for_every_busy_log(make_world, monkeypatch, open_files):
    world = make_world()
    world.disk.open_files_limit = open_files
    world.topics = {f"t{number}": {"flush.ms": "100"} for number in range(200)}
    logs = [world.log(topic) for topic in world.topics]
    most = 0

    def count(files, directories):
        nonlocal most
        most = max(most, world.disk.open_files)

    every_sync(world, monkeypatch, count)
    world.clock.advance(1_000)
    durable = []
    for _ in range(20):
        before = [log.log_end_offset for log in logs]
        for log in logs:
            world.append(log, (b"k", b"v"))
        world.clock.advance(1_000)
        durable.append(min(log.durability.recovery_point - end for log, end in zip(logs, before)))
    assert min(durable) == 1, "each log has lost nothing that is older than a second"
    assert most < open_files


def test_a_sync_whose_end_is_never_heard_of_holds_no_log_up_for_ever(world, monkeypatch):
    world.topics["t"] = {"flush.ms": "1000"}
    log = world.log("t")
    with monkeypatch.context() as lost:
        lost.setattr(world.disk, "sync_in_background", lambda *_, **__: None)
        world.fill(log, 1)
        world.clock.advance(3_000)
    world.fill(log, 1)
    world.clock.advance(10_000)
    assert log.durability.recovery_point == 0
    world.clock.advance(400_000)
    assert log.durability.recovery_point == 2


class Reads:
    """How often files of some kind are opened, and how many bytes of them are read."""

    def __init__(self, world, monkeypatch, suffix):
        self.bytes = self.opened = 0
        opened, read = world.disk.open, SimFile.read

        def open_counted(path, **options):
            self.opened += path.endswith(suffix)
            return opened(path, **options)

        def read_counted(file, position, length):
            data = read(file, position, length)
            self.bytes += len(data) if file.path.endswith(suffix) else 0
            return data

        monkeypatch.setattr(world.disk, "open", open_counted)
        monkeypatch.setattr(SimFile, "read", read_counted)


def many_segments(world, **settings):
    log = world.log("t", segment_bytes=10_000, index_interval_bytes=100, **settings)
    while len(log.segments) < 30:
        world.fill(log, 1)
        world.clock.advance(1)
    world.restart()
    log = world.manager.get("t", 0)
    world.set(log, **settings)
    return log


def in_memory(log):
    return [segment.base_offset for segment in log.segments[:-1] if len(segment.offset_index)]


def test_retention_by_time_reads_the_last_entries_of_the_segments_that_may_go(world, monkeypatch):
    log = many_segments(world, retention_ms=1 << 40)
    reads = Reads(world, monkeypatch, "index")
    world.manager.apply_retention()
    assert (reads.opened, reads.bytes) == (1, 24)
    world.manager.apply_retention()
    assert (reads.opened, reads.bytes) == (1, 24), "a sealed segment does not change"
    assert in_memory(log) == []
    newest = log.segments[19].largest_timestamp
    log.config.retention_ms = world.now() - newest - 1
    world.manager.apply_retention()
    assert len(log.segments) == 10
    assert reads.bytes <= 24 * 22
    assert in_memory(log) == []


def test_a_look_up_by_time_loads_the_indexes_of_one_segment(world, monkeypatch):
    log = many_segments(world, retention_ms=-1)
    wanted = log.segments[20]
    timestamp = wanted.first_timestamp
    reads = Reads(world, monkeypatch, "timeindex")
    found = log.offset_for_timestamp(timestamp, log.log_end_offset)
    assert (found.offset, found.timestamp) == (wanted.base_offset, timestamp)
    assert in_memory(log) == [wanted.base_offset]
    assert log.segments.max_timestamp_offset().offset == log.log_end_offset - 1
    assert in_memory(log) == [wanted.base_offset]
    assert reads.bytes < 24 * 30 + 2 * world.disk.file_size(wanted.time_index.path)


@pytest.mark.parametrize("damage", ["missing", "cut", "zeros", "falling"])
def test_a_time_index_whose_end_cannot_be_right_is_made_again(world, damage):
    log = many_segments(world, retention_ms=-1)
    path = log.segments[3].time_index.path
    file = world.disk.open(path)
    last = file.read(file.size() - 12, 12)
    if damage == "missing":
        world.disk.remove(path)
    elif damage == "cut":
        file.truncate(file.size() - 1)
    elif damage == "zeros":
        file.write(file.size(), bytes(120))
    else:
        file.write(file.size(), bytes(7) + b"\x09" + last[8:])
    largest = max(batch.max_timestamp for batch in log.segments[3].batches())
    assert log.segments[3].max_timestamp == largest


def test_the_memory_of_indexes_is_bounded_while_everything_is_read(world, read):
    log = many_segments(world, retention_ms=-1)
    history = read(log)
    one = max(segment.offset_index.memory_bytes + segment.time_index.memory_bytes for segment in log.segments)
    memory = world.manager._files.indexes
    assert memory.bytes_used > 10 * one
    for _ in range(2):
        world.manager.apply_retention()
    assert memory.bytes_used <= one, "only the active segment's"
    memory.bytes_max = 3 * one
    assert read(log) == history
    for segment in log.segments:
        segment.load()
        assert memory.bytes_used <= 3 * one
    assert len(in_memory(log)) <= 3


@pytest.mark.parametrize("plant", ["act", "items", "interval_ms"])
def test_every_task_survives_an_exception(make_world, caplog, plant):
    for number in range(len(names(make_world))):
        world = make_world()
        world.log("t")
        task = world.env.upkeep.tasks[number]
        if plant == "act":
            task.items, task.act = lambda: ["an item", "another"], lambda item: None
        planted = fail_at_first(task, plant)
        caplog.clear()
        world.clock.advance(3_000_000)
        assert len(planted) == 3, task.name
        assert task.failures == 3, task.name
        assert task.rounds >= 2, task.name
        told = [record for record in caplog.records if "planted" in record.message]
        assert 1 <= len(told) <= 2, (task.name, "once for each item")


def fail_at_first(task, plant):
    planted, original = [], getattr(task, plant)

    def fail(*given):
        if len(planted) < 3:
            planted.append(given)
            raise ValueError("planted")
        return original(*given)

    setattr(task, plant, fail)
    return planted


def names(make_world):
    world = make_world()
    world.open()
    return [task.name for task in world.env.upkeep.tasks]


def test_every_task_survives_a_lost_wake_up(make_world):
    tasks = names(make_world)
    assert len(tasks) > 5
    for number, name in enumerate(tasks):
        world = make_world()
        world.open()
        task = world.env.upkeep.tasks[number]
        assert task.name == name
        task.timer.cancel()
        interval_ms = task.interval_ms()
        world.clock.advance(interval_ms + LATE_MS + 2 * LOOK_MS)
        assert task.restarts == 1, name
        assert task.rounds >= 1, name
