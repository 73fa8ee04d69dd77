"""No room on the disk, or no free descriptor: nothing is acknowledged that is not there, and the log goes on later."""

import errno
import logging
from functools import partial

import pytest
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build
from barnabas.storage import truncation
from barnabas.storage.directory_contents import DataDirectoryError
from barnabas.storage.open_files import share_out
from barnabas.storage.refused_batches import REFUSED_BATCHES_MAX, REMEMBERED_MS

SETTINGS = {"segment_bytes": 1_000, "index_interval_bytes": 150}
FAILURES_IN_A_ROW = 4


class Shortage:
    """Some of the operations in which there may be no room fail: from one of them on, a few in a row."""

    def __init__(self, disk, begin, code):
        self.left = range(begin, begin + FAILURES_IN_A_ROW)
        self.count = 0
        self.code = code
        self.kinds = ("write", "create", "make_directory") if code == errno.ENOSPC else ("open",)
        disk.on_change = self.meet
        opened = disk.open

        def open_counted(path, **options):
            self.meet("open", path)
            return opened(path, **options)

        disk.open = open_counted
        synced = disk.sync_directory

        def sync_directory(path):
            self.meet("open", path)
            synced(path)

        disk.sync_directory = sync_directory

    def meet(self, operation, path):
        if operation in self.kinds:
            self.count += 1
            if self.count - 1 in self.left:
                raise OSError(self.code, "simulated shortage", path)


def work(world, log, steps=25):
    """Append as an idempotent producer that asks again; the values that were acknowledged."""
    acknowledged = []
    attempts = 0
    while len(acknowledged) < steps:
        attempts += 1
        assert attempts < 10 * steps
        value = b"%d %s" % (len(acknowledged), b"." * (attempts * 37 % 150))  # a smaller one may still fit
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": len(acknowledged)}
        result = world.append(log, (b"k", value), **fields)
        if result.error == 0:
            assert result.base_offset == len(acknowledged)
            acknowledged.append(value)
        else:
            assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
        if attempts % 3 == 0:
            log.flush() if attempts > 15 else log.durability.flush_in_background()
        world.clock.advance(300)
    return acknowledged


def started_again(world, log, ending):
    """The log manager of the next start: after a clean stop, or after all was flushed and the process was killed."""
    if ending == "restart":
        return world.restart()
    log.flush()
    return world.crash("kept" if ending == "crash" else "lost")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("ending", ["restart", "crash", "power cut"])
def test_wherever_there_is_no_room_the_log_goes_on_when_there_is(make_world, read, monkeypatch, code, ending):
    monkeypatch.setattr("barnabas.storage.index._WRITE_BLOCK_ENTRIES", 2)
    begin, met = 0, True
    while met:
        world = make_world()
        log = world.log(**SETTINGS)
        shortage = Shortage(world.disk, begin, code)
        acknowledged = work(world, log)
        assert log.failed is None
        assert log.write_blocked is None
        assert [value for _, _, value in read(log)] == acknowledged
        met = shortage.count > begin
        shortage.left = ()
        world.clock.advance(3_000)
        assert log.durability.recovery_point >= log.segments.active.base_offset  # every sync was made up for
        manager = started_again(world, log, ending)
        log = manager.get("t", 0)
        assert [value for _, _, value in read(log)] == acknowledged
        assert log.producers.get(7).last_sequence == len(acknowledged) - 1
        begin += FAILURES_IN_A_ROW - 1
    assert begin > 20


def test_a_write_that_fits_in_part_leaves_nothing_behind(world, read, caplog):
    log = world.log()
    world.fill(log, 3)
    size = world.disk.file_size(log.segments.active.path)
    total, free = world.disk.total_and_free_bytes("/data")
    world.disk.capacity_bytes = total - free + 100
    with caplog.at_level(logging.INFO):
        refused = [world.append(log, (b"k", bytes(500))) for _ in range(3)]
    assert {result.error for result in refused} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert "no space left" in refused[0].error_message
    assert world.disk.file_size(log.segments.active.path) == size == log.segments.active.size
    assert [offset for offset, _, _ in read(log)] == [0, 1, 2]
    assert [record.message for record in caplog.records] == [
        "/data refuses writes, which are not acknowledged, and tries again with each request (1 partition): "
        "[Errno 28] simulated: no space left: '/data/t-0/00000000000000000000.log'. Make room there"
    ]
    world.disk.capacity_bytes = 1 << 40
    caplog.clear()
    with caplog.at_level(logging.INFO):
        world.fill(log, 1)
        world.clock.advance(10_000)
    assert [record.message for record in caplog.records] == ["/data can be written again (1 partition)"]
    assert [offset for offset, _, _ in read(world.crash("kept").get("t", 0))] == [0, 1, 2, 3]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_sync_is_final_whatever_its_reason(world, code):
    log = world.log()
    world.fill(log, 3)
    world.disk.fail("sync", "t-0", OSError(code, "simulated"))
    log.flush()
    assert log.failed is not None
    assert world.append(log, (b"k", b"v")).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.durability.recovery_point == 0


def test_what_cannot_be_cut_back_is_final(world):
    log = world.log()
    world.fill(log, 3)
    total, free = world.disk.total_and_free_bytes("/data")
    world.disk.capacity_bytes = total - free + 10  # a part of the batch
    world.disk.fail("truncate", ".log", OSError(errno.ENOSPC, "simulated"))
    assert world.append(log, (b"k", b"v")).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert "could not be cut back" in str(log.failed)


def test_flush_messages_acknowledges_nothing_that_it_could_not_sync(world):
    log = world.log(flush_messages=1)
    world.fill(log, 1)
    world.disk.fail("create", "leader-epoch", OSError(errno.ENOSPC, "simulated"))
    assert world.append(log, (b"k", b"v"), epoch=5).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.durability.recovery_point == 1
    assert world.append(log, (b"k", b"v"), epoch=5).error == 0
    assert log.durability.recovery_point == 3  # the batch that was refused is there all the same, as any may be


def test_many_logs_on_a_broken_disk_are_told_in_one_line(world, caplog):
    world.open()
    logs = [world.manager.get_or_create("many", index, None) for index in range(30)]
    world.disk.fail("write", "many", times=len(logs))
    with caplog.at_level(logging.INFO):
        for log in logs:
            assert world.append(log, (b"k", b"v")).error is ErrorCode.KAFKA_STORAGE_ERROR
        world.clock.advance(2_000)
    first, others = [record.message for record in caplog.records if "many" in record.message]
    assert first.startswith("many-0: offline until the next start: [Errno 5]")
    assert others.startswith("29 more logs (many-1, many-2, many-3, many-4, many-5, …): offline")


def test_a_full_disk_is_told_once_for_all_its_logs_and_once_when_it_is_over(world, caplog):
    world.open()
    logs = [world.manager.get_or_create("many", index, None) for index in range(37)]
    total, free = world.disk.total_and_free_bytes("/data")
    world.disk.capacity_bytes = total - free
    with caplog.at_level(logging.INFO):
        for log in logs:
            assert world.append(log, (b"k", b"v")).error is ErrorCode.KAFKA_STORAGE_ERROR
            world.clock.advance(1_000)
        world.disk.capacity_bytes = 1 << 40
        world.clock.advance(10_000)
    told = [record.message for record in caplog.records if record.message.startswith("/data ")]
    assert [text.partition(": ")[0] for text in told] == [
        "/data refuses writes, which are not acknowledged, and tries again with each request (37 partitions)",
        "/data can be written again (37 partitions)",
    ]


def test_checkpoints_that_find_no_room_are_told_once(world, caplog):
    log = world.log()
    world.disk.fail("write", "replication-offset-checkpoint", OSError(errno.ENOSPC, "simulated"), times=3)
    with caplog.at_level(logging.INFO):
        for _ in range(6):
            world.fill(log, 1)
            world.clock.advance(5_000)
    told = [record.message for record in caplog.records if "replication-offset-checkpoint" in record.message]
    assert [text.partition(": ")[0] for text in told] == [
        "could not write /data/replication-offset-checkpoint, a recovery will check more",
        "/data/replication-offset-checkpoint is written again",
    ]


def test_compaction_waits_for_room(world, read):
    world.broker.log_cleaner_backoff_ms = 100
    log = world.log(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01, **SETTINGS)
    world.disk.fail("create", ".cleaned", OSError(errno.ENOSPC, "simulated"), times=3)
    for _ in range(30):
        world.append(log, (b"same", bytes(100)))
    log.set_high_watermark(30)
    world.clock.advance(10_000)
    assert log.failed is None
    assert len(read(log)) < 15


def test_a_topic_goes_although_the_disk_is_full(world):
    log = world.log()
    world.manager.directories[0].cleaner_offsets["t", 0] = 5
    world.disk.fail("create", "cleaner-offset-checkpoint", OSError(errno.ENOSPC, "simulated"))
    world.manager.delete("t", 0)
    assert world.manager.get("t", 0) is None
    assert not world.disk.exists("/data/t-0")
    assert log.closed


@pytest.mark.parametrize(
    ("shortage", "advice"),
    [({"capacity_bytes": 0}, "Free some space"), ({"read_only": True}, "it may be mounted read-only")],
)
def test_a_start_that_cannot_write_says_what_to_do(world, shortage, advice):
    log = world.log(**SETTINGS)
    world.fill(log, 20)
    world.disk.crash("kept")
    for name, value in shortage.items():
        setattr(world.disk, name, value)
    with pytest.raises(DataDirectoryError, match=advice):
        world.open()
    world.disk.capacity_bytes, world.disk.read_only = 1 << 40, False
    assert world.open().get("t", 0).log_end_offset == 20


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 1 << 20])
def test_descriptors_are_shared_so_that_some_are_left_for_what_is_opened_shortly(limit):
    shares = share_out(limit)
    assert shares.segments + shares.connections + shares.reserve <= limit
    assert shares.reserve >= 32
    assert min(shares.segments, shares.connections) >= limit // 7


NEEDS_ROOM = ("create", "write", "make_directory")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("settings", [{"retention_ms": 10_000}, {"retention_bytes": 0}])
@pytest.mark.parametrize("flushed", [True, False])
def test_retention_without_room_blocks_writes_to_the_log_and_frees_room(world, read, code, settings, flushed):
    """Whatever of a roll finds no room, and however often: nothing fails, and deletion needs none."""
    log = world.log(**SETTINGS, file_delete_delay_ms=1_000)
    world.fill(log, 30)
    world.set(log, **settings)
    if flushed:
        log.flush()
    segments = len(log.segments)
    met = [0]

    def full(operation, path):
        if operation in NEEDS_ROOM and ("/t-0/" in path or path.endswith("/.room")):
            met[0] += 1
            raise OSError(code, "simulated shortage", path)

    world.disk.on_change = full
    world.clock.advance(700_000)
    assert met[0] > 0
    assert log.failed is None
    assert log.write_blocked is not None
    assert len(log.segments) == 1 < segments, "all but the one that is written to"
    assert world.append(log, (b"k", b"v")).error is ErrorCode.KAFKA_STORAGE_ERROR
    world.disk.on_change = None
    world.clock.advance(700_000)
    assert (log.log_start_offset, log.log_end_offset, log.failed) == (30, 30, None)
    world.fill(log, 3)
    assert log.write_blocked is None
    log = world.crash("kept").get("t", 0)
    assert [offset for offset, _, _ in read(log)] == [30, 31, 32]


def test_an_expired_log_needs_no_room_but_for_an_empty_segment(world, read):
    log = world.log(retention_ms=10_000, file_delete_delay_ms=1_000, segment_bytes=1 << 20, index_interval_bytes=150)
    world.fill(log, 30, producer_id=-1)
    world.append(log, (b"k", b"v"), producer_id=7, producer_epoch=0, base_sequence=0)
    log.set_high_watermark(31)
    total, free = world.disk.total_and_free_bytes("/data")
    world.disk.capacity_bytes = total - free  # not one byte more
    assert world.append(log, (b"k", b"v")).error is ErrorCode.KAFKA_STORAGE_ERROR
    world.clock.advance(700_000)
    assert log.failed is None
    assert log.log_start_offset == 31
    assert len(log.segments) == 1
    world.fill(log, 3)
    assert [offset for offset, _, _ in read(log)] == [31, 32, 33]


def test_a_disk_that_is_nearly_full_is_told_once_and_once_when_it_is_over(world, caplog):
    log = world.log()
    world.fill(log, 3)
    with caplog.at_level(logging.INFO):
        for number in range(200):  # every other write finds room
            if number % 2:
                world.disk.fail("write", ".log", OSError(errno.ENOSPC, "simulated"))
            world.append(log, (b"k", b"v"))
            world.clock.advance(100)
        world.append(log, (b"k", b"v"))
        world.clock.advance(20_000)
        told = [record.message[:20] for record in caplog.records if record.message.startswith("/data ")]
        assert told == ["/data refuses writes", "/data can be written"]


def test_a_swap_that_finds_no_free_descriptor_is_ended_when_there_is_one(world, read, monkeypatch):
    log = world.log(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01, **SETTINGS)
    for number in range(40):
        world.append(log, (b"k%d" % (number % 3), bytes(50)))
    log.set_high_watermark(40)
    original, met = world.disk.sync_directory, [0]

    def sync_directory(path):
        if log.finish_swap is not None and met[0] < 5:
            met[0] += 1
            raise OSError(errno.EMFILE, "simulated shortage", path)
        original(path)

    monkeypatch.setattr(world.disk, "sync_directory", sync_directory)
    world.clock.advance(60_000)
    assert met[0] == 5
    assert (log.failed, log.finish_swap) == (None, None)
    assert len(read(log)) < 15


@pytest.mark.parametrize("ending", ["restart", "crash"])
def test_an_aborted_transaction_whose_index_found_no_room_stays_aborted(world, ending):
    log = world.log()
    ids = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    world.append(log, (b"a", b"aborted"), base_sequence=0, **ids)
    world.disk.fail("create", ".txnindex", OSError(errno.ENOSPC, "simulated"))
    assert world.marker(log, 5, commit=False).error == 0
    assert log.failed is None
    assert log.segments.aborted_transactions(0, 2) == [(5, 0)]
    log.set_high_watermark(2)
    world.fill(log, 1)
    if ending == "restart":
        log = world.restart().get("t", 0)
    else:
        log.roll()
        world.fill(log, 1)
        log.flush()
        log = world.crash("lost").get("t", 0)
    assert log.segments.aborted_transactions(0, 2) == [(5, 0)]


def test_a_log_that_nobody_writes_is_not_write_blocked_any_more_when_there_is_room(world, read, caplog):
    caplog.set_level(logging.INFO)
    log, other = world.log("t"), world.log("u")
    world.fill(log, 1)
    world.fill(other, 1)
    total, free = world.disk.total_and_free_bytes("/data")
    world.disk.capacity_bytes = total - free + 200_000  # less than it looks for
    assert world.append(log, (b"k", bytes(300_000))).error is ErrorCode.KAFKA_STORAGE_ERROR
    world.clock.advance(60_000)
    assert log.write_blocked is not None
    assert other.write_blocked is None
    assert world.manager.write_blocks.is_write_blocked(other), "it would be refused next"
    changes = []
    world.manager.write_blocks.on_change.append(
        lambda: changes.append(world.manager.write_blocks.is_write_blocked(log))
    )
    world.disk.capacity_bytes = 1 << 40
    world.clock.advance(10_000)
    assert log.write_blocked is None
    assert changes == [False]
    assert not world.manager.write_blocks.is_write_blocked(log)
    assert [record.message for record in caplog.records][-1] == "/data can be written again (2 partitions)"
    assert ".room" not in world.disk.list_directory("/data")


def test_a_full_disk_is_noticed_before_a_write_finds_no_room(world):
    log = world.log()
    total, free = world.disk.total_and_free_bytes("/data")
    world.disk.capacity_bytes = total - free + 100_000
    world.clock.advance(6_000)
    assert world.manager.write_blocks.is_write_blocked(log)
    assert world.append(log, (b"k", b"v")).error == 0, "what fits is written all the same"
    world.disk.capacity_bytes = total - free + 500_000
    world.clock.advance(60_000)
    assert world.manager.write_blocks.is_write_blocked(log), "it would be full again at once"
    world.disk.capacity_bytes = 1 << 40
    world.clock.advance(6_000)
    assert not world.manager.write_blocks.is_write_blocked(log)


@pytest.mark.parametrize("what", ["open", "write"])
def test_a_log_stays_write_blocked_while_no_file_can_be_made_or_written(world, what):
    log = world.log()
    world.fill(log, 1)
    log.health.block_writes(OSError(errno.EMFILE, "simulated"))
    world.disk.fail(what, "/.room", OSError(errno.EMFILE, "simulated"), times=100)
    world.clock.advance(60_000)
    assert log.write_blocked is not None
    world.disk.repair()
    world.clock.advance(6_000)
    assert log.write_blocked is None
    assert ".room" not in world.disk.list_directory("/data")


def test_a_batch_in_flight_does_not_overtake_one_that_found_no_room(world):
    log = world.log(segment_bytes=1_000)
    world.fill(log, 4)
    world.disk.fail("create", ".snapshot", OSError(errno.ENOSPC, "simulated"))

    def produce(sequence, value, epoch=0):
        return world.append(log, (b"k", value), producer_id=7, producer_epoch=epoch, base_sequence=sequence)

    refused = produce(0, bytes(900))  # it needs a new segment, and the next one does not
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    behind = produce(1, b"short")
    assert behind.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert behind.error_message == "the producer's batch of sequence 0 was refused, and comes first"
    assert produce(0, b"another", epoch=1).error is ErrorCode.NONE, "the producer has given up, and begun anew"
    other = world.append(log, (b"k", b"v"), producer_id=8, producer_epoch=0, base_sequence=5)
    assert other.error is ErrorCode.NONE, "as in Kafka, a producer that is not known may begin anywhere"


def test_sent_again_in_order_they_are_taken(world):
    log = world.log(segment_bytes=1_000)
    world.fill(log, 4)
    world.disk.fail("create", ".snapshot", OSError(errno.ENOSPC, "simulated"))
    batches = [(0, bytes(900)), (1, b"short"), (2, b"short")]

    def send():
        return [
            world.append(log, (b"k", value), producer_id=7, producer_epoch=0, base_sequence=sequence).error
            for sequence, value in batches
        ]

    assert send() == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert send() == [ErrorCode.NONE] * 3


def test_who_goes_on_without_the_refused_batch_waits_as_long_as_clients_send_it_again(world):
    log = world.log(segment_bytes=1_000)
    world.fill(log, 4)
    world.disk.fail("create", ".snapshot", OSError(errno.ENOSPC, "simulated"))
    append = partial(world.append, log, producer_id=7, producer_epoch=0)
    assert append((b"k", bytes(900)), base_sequence=0).error is ErrorCode.KAFKA_STORAGE_ERROR
    world.clock.advance(REMEMBERED_MS - 1)
    assert append((b"k", b"v"), base_sequence=1).error is ErrorCode.KAFKA_STORAGE_ERROR
    world.clock.advance(1)
    assert append((b"k", b"v"), base_sequence=1).error is ErrorCode.NONE


def test_the_refused_batches_of_many_producers_take_no_more_memory(world):
    log = world.log()
    for producer_id in range(REFUSED_BATCHES_MAX + 10):
        batch = build([Record(value=b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=3)
        log.producers.note_refused(batch, ErrorCode.NOT_ENOUGH_REPLICAS, 0)
        log.producers.note_refused(batch[:40], ErrorCode.NOT_ENOUGH_REPLICAS, 0)  # damaged: nothing is known of it
    assert list(log.producers._refused._batches) == list(range(10, REFUSED_BATCHES_MAX + 10))


@pytest.mark.parametrize("ending", ["restart", "restart without room", "crash", "power cut"])
@pytest.mark.parametrize("cut", [0, 1, 20, 59, 60, 61, 62])
def test_wherever_there_is_no_room_it_ends_when_there_is(make_world, read, cut, ending):
    """Until 2026-11 a follower that cut its log on a full disk was offline until the next start."""
    begin_at, met = 0, True
    while met:
        world = make_world()
        log = world.log(**SETTINGS)
        world.fill(log, 60)
        log.flush()
        world.manager.checkpoint()
        log.leader_epochs.assign(1, log.log_end_offset)
        world.fill(log, 3, epoch=1)
        shortage = Shortage(world.disk, begin_at, errno.ENOSPC)
        for _ in range(20):
            if log.log_end_offset != cut:
                work = truncation.begin_truncation(log, cut)
                if work is not None:
                    world.env.turns.begin(work.in_turns())
                world.clock.advance(1_000)
        assert (log.failed, log.write_blocked, log.log_end_offset) == (None, None, cut)
        met = shortage.count > begin_at
        if ending == "restart without room":
            shortage.left = range(shortage.count, 1 << 30)
            world.manager.shutdown()
            shortage.left = ()
            manager = world.open()
        else:
            shortage.left = ()
            world.fill(log, 7, epoch=2)
            manager = started_again(world, log, ending)
        log = manager.get("t", 0)
        count = cut if ending == "restart without room" else cut + 7
        assert [offset for offset, _, _ in read(log)] == list(range(count))
        assert log.log_end_offset == count
        assert all(start <= cut for _, start in log.leader_epochs.entries)
        begin_at += 1
    assert begin_at > 2
