"""What the leader says of a committed position, and what that means for the group (`offsets/lag.py`)."""

from barnabas.offsets.lag import READ_COMMITTED, READ_UNCOMMITTED, PartitionLag, Position, Status, lag_of, total
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker
from barnabas.replication.positions import look_at
from barnabas.runtime.turns import at_once
from barnabas.storage import truncation
from barnabas.storage.validation import AppendOrigin
from replication_world import TOPIC_ID
from simulator.storage_transactions import take_part

OTHER_ID = bytes(15) + b"\x09"


def lag(host, offset, *, leader_epoch=-1, topic_id=TOPIC_ID):
    found = at_once(look_at(host.manager, "t", 0, offset, leader_epoch=leader_epoch, topic_id=topic_id))
    row = lag_of(Position("t", 0, offset, leader_epoch, topic_id), 1, found, host.env.clock.now_ms())
    assert PartitionLag.from_json(row.as_json()) == row
    return row


def led(host, **settings):
    assert host.lead(**settings) == ErrorCode.NONE
    return host.manager.partitions["t", 0]


def produce(host, count=1, value=b"value", key=b"k", **fields):
    """Records with the present time, in one batch."""
    now_ms = host.env.clock.now_ms()
    records = [Record(timestamp=now_ms, key=key, value=value) for _ in range(count)]
    if fields.get("transactional"):
        take_part(host.manager.partitions["t", 0].log, fields["producer_id"], fields["producer_epoch"])
    assert not host.manager.append([("t", 0, build(records, **fields))], required_acks=1, timeout_ms=1)[0].error
    host.env.clock.advance(0)


def end_transaction(host, producer_id, *, commit):
    marker = build_marker(
        CONTROL_COMMIT if commit else CONTROL_ABORT,
        base_offset=0,
        partition_leader_epoch=-1,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=1,
        timestamp=host.env.clock.now_ms(),
    )
    partition = host.manager.partitions["t", 0]
    assert not partition.append_as_leader(marker, origin=AppendOrigin.COORDINATOR, required_acks=1).error


def test_a_stopped_consumer_falls_behind_without_a_word_of_its_own(host):
    led(host)
    produce(host, 5)
    assert lag(host, 3).read_uncommitted.records == 2
    host.env.clock.advance(10_000)
    produce(host, 7)
    host.env.clock.advance(5_000)
    row = lag(host, 3)
    assert (row.status, row.read_uncommitted.records, row.read_uncommitted.is_exact) == (Status.OK, 9, True)
    assert row.read_uncommitted.seconds == 15.0
    assert lag(host, 5).read_uncommitted.seconds == 5.0
    assert row.read_uncommitted.bytes == host.manager.partitions["t", 0].log.size_bytes


def test_in_a_quiet_topic_who_has_read_all_is_not_behind_however_long_ago(host):
    led(host)
    produce(host, 5)
    host.env.clock.advance(3_600_000)
    row = lag(host, 5)
    assert (row.read_uncommitted.records, row.read_uncommitted.bytes, row.read_uncommitted.seconds) == (0, 0, 0.0)
    assert lag(host, 4).read_uncommitted.seconds == 3_600.0, "one record is not read, and it is that old"


def test_transactions_count_as_each_isolation_level_reads_them(host):
    led(host)
    transactional = {"producer_epoch": 0, "transactional": True}
    produce(host, 3, producer_id=1, base_sequence=0, **transactional)  # 0-2, aborted
    produce(host, 2)  # 3-4
    end_transaction(host, 1, commit=False)  # 5
    produce(host, 4, producer_id=2, base_sequence=0, **transactional)  # 6-9, committed
    end_transaction(host, 2, commit=True)  # 10
    produce(host, 5, producer_id=3, base_sequence=0, **transactional)  # 11-15, open
    produce(host, 1)  # 16
    rows = {offset: lag(host, offset) for offset in (0, 1, 5, 8, 11, 17)}
    uncommitted = {offset: row.read_uncommitted.records for offset, row in rows.items()}
    committed = {offset: row.read_committed.records for offset, row in rows.items()}
    assert uncommitted == {0: 15, 1: 14, 5: 10, 8: 8, 11: 6, 17: 0}
    assert committed == {0: 6, 1: 6, 5: 4, 8: 2, 11: 0, 17: 0}
    assert all(row.read_uncommitted.is_exact and row.read_committed.is_exact for row in rows.values())


def test_in_a_compacted_topic_what_is_gone_does_not_count(host):
    led(host)
    log = host.manager.partitions["t", 0].log
    log.config.cleanup_policy = frozenset(("compact",))
    for number in range(20):
        produce(host, 1, key=b"k%d" % (number % 4))
    log.roll()
    produce(host, 1, key=b"last")
    host.log_manager.cleaner.run(log)
    row = lag(host, 0)
    assert (row.log_end_offset, row.read_uncommitted.records) == (21, 5)
    assert row.read_uncommitted.is_exact


def test_below_the_log_start_the_lost_records_are_named_and_the_rest_is_counted(host):
    partition = led(host)
    produce(host, 10)
    partition.log.delete_records_before(6)
    row = lag(host, 2)
    assert (row.status, row.lost_records_max, row.read_uncommitted.records) == (Status.BEFORE_LOG_START, 4, 4)
    assert lag(host, 6).status is Status.OK


def test_past_the_log_end_nothing_is_known(host):
    led(host)
    produce(host, 3)
    row = lag(host, 7)
    assert (row.status, row.read_uncommitted, row.read_committed) == (Status.PAST_LOG_END, None, None)
    assert lag(host, 3).status is Status.OK
    assert total([row, lag(host, 1)], READ_UNCOMMITTED).unknown == 1


def test_an_offset_of_a_topic_that_was_deleted_and_made_again_says_nothing(host):
    led(host)
    produce(host, 10)
    row = lag(host, 4, topic_id=OTHER_ID)
    assert (row.status, row.read_uncommitted) == (Status.TOPIC_MADE_AGAIN, None)
    assert lag(host, 4, topic_id=bytes(16)).status is Status.OK, "the commit named no topic id"


def test_after_an_unclean_truncation_the_group_is_where_the_log_was_cut(host):
    partition = led(host, leader_epoch=3)
    produce(host, 10)
    truncation.truncate_to(partition.log, 0)
    for _ in range(4):
        produce(host, 1)
    led(host, leader_epoch=5, partition_epoch=1)
    produce(host, 20)
    row = lag(host, 9, leader_epoch=3)
    assert (row.status, row.cut_at, row.read_uncommitted.records) == (Status.LOG_CUT, 4, 20)
    assert lag(host, 4, leader_epoch=3).status is Status.OK, "up to the end of the epoch all is as it was"
    assert lag(host, 9, leader_epoch=5).status is Status.OK
    led(host, leader_epoch=8, partition_epoch=2)
    assert lag(host, 9, leader_epoch=8).status is Status.OK, "an epoch in which nothing was written yet"


def test_an_epoch_that_the_partition_has_not_reached_is_of_a_deleted_topic_or_not_known(host):
    led(host, leader_epoch=3)
    produce(host, 10)
    row = lag(host, 4, leader_epoch=4)
    assert (row.status, row.error, row.read_uncommitted) == (Status.UNKNOWN, "UNKNOWN_LEADER_EPOCH", None)
    assert total([row], READ_UNCOMMITTED).unknown == 1
    assert lag(host, 4, leader_epoch=3).status is Status.OK


def test_past_the_end_after_an_unclean_truncation(host):
    partition = led(host, leader_epoch=3)
    for _ in range(10):
        produce(host, 1)
    truncation.truncate_to(partition.log, 4)
    assert lag(host, 9, leader_epoch=3).cut_at == 4


def test_above_the_high_watermark_nothing_is_readable_yet(host):
    host.live(1, 2)
    led(host, isr=(1, 2), replicas=(1, 2))
    produce(host, 3)
    assert lag(host, 3).read_uncommitted.records == 0
    assert lag(host, 0).read_uncommitted.records == 0
    assert lag(host, 3).status is Status.OK


def test_who_cannot_know_says_so(host):
    led(host)
    produce(host, 3)
    host.lease.holds = False
    assert lag(host, 1).status is Status.OTHER_LEADER
    host.lease.holds = True
    missing = at_once(look_at(host.manager, "nowhere", 0, 1))
    assert lag_of(Position("nowhere", 0, 1), None, missing, 0).status is Status.NO_SUCH_TOPIC
    host.live(1, 2)
    led(host, leader_epoch=1, partition_epoch=1, isr=(1, 2), replicas=(1, 2))
    host.manager.partitions["t", 0].log.high_watermark = 0  # as a new leader that has heard of none
    row = lag(host, 1)
    assert (row.status, row.error) == (Status.UNKNOWN, "OFFSET_NOT_AVAILABLE")


def test_leadership_that_goes_while_records_are_counted(host):
    partition = led(host)
    for _ in range(300):
        produce(host, 1)
    looking = look_at(host.manager, "t", 0, 0)
    next(looking)
    partition.make_follower(leader_id=2, leader_epoch=1, partition_epoch=1, controller_epoch=1, replicas=(1, 2))
    assert at_once(looking).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_when_retention_takes_the_next_record(host):
    partition = led(host)
    config = partition.log.config
    config.retention_ms, config.retention_bytes = 60_000, -1
    produce(host, 5)
    first_ms = host.env.clock.now_ms()
    partition.log.roll()
    host.env.clock.advance(30_000)
    produce(host, 5)
    assert lag(host, 2).goes_ms == first_ms + 60_000
    assert lag(host, 7).goes_ms == first_ms + 90_000
    assert lag(host, 10).goes_ms is None, "there is no next record"
    config.retention_ms, config.retention_bytes = -1, 1_000
    size = partition.log.segments[1].size
    assert (lag(host, 2).goes_ms, lag(host, 2).goes_after_bytes) == (None, 1_000 - size)
    config.cleanup_policy = frozenset(("compact",))
    assert (lag(host, 2).goes_ms, lag(host, 2).goes_after_bytes) == (None, None)


def test_damaged_data_is_no_lag(host):
    partition = led(host)
    produce(host, 5)
    produce(host, 5)
    log = partition.log
    file = host.env.disk.open(log.segments.active.path)
    file.write(record_batch.read_header(log.segments.active.bytes_at(0, 200)).size_bytes + 16, b"\x7f")
    file.close()
    row = lag(host, 0)
    assert (row.status, row.error) == (Status.UNKNOWN, "CORRUPT_MESSAGE")


def test_the_total_counts_what_is_known_and_says_what_is_not(host):
    led(host)
    for _ in range(4):
        produce(host, 1)
    host.env.clock.advance(2_000)
    rows = [lag(host, 1), lag(host, 3), lag(host, 9)]
    found = total(rows, READ_COMMITTED)
    assert (found.records, found.records_min, found.unknown, found.seconds) == (4, 4, 1, 2.0)
    assert total([], READ_COMMITTED).seconds is None
