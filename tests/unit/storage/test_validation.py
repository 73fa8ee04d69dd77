"""Refusals with Kafka's codes and texts; the expectations are those of tests/golden/wire (Produce, cases `error*`)."""

import tracemalloc

import pytest
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build
from barnabas.storage.validation import AppendOrigin
from simulator.storage_transactions import take_part

DAY = 86_400_000


def batch_of(world, *values, key=b"k", timestamp=None, **fields):
    timestamp = world.now() if timestamp is None else timestamp
    return build([Record(timestamp=timestamp, key=key, value=value) for value in values or (b"v",)], **fields)


def changed(batch, position, data):
    """With other bytes at a place, and the checksum that fits them."""
    batch[position : position + len(data)] = data
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


def send(world, log, batch, origin=AppendOrigin.CLIENT):
    return log.append_as_leader(batch, leader_epoch=0, origin=origin, now_ms=world.now())


def bad_crc(world):
    batch = batch_of(world)
    batch[-1] ^= 1
    return batch


CASES = {
    "crc": (bad_crc, ErrorCode.CORRUPT_MESSAGE, -1),
    "cut off": (lambda world: batch_of(world)[:-1], ErrorCode.CORRUPT_MESSAGE, -1),
    "shorter than a header": (lambda world: batch_of(world)[:60], ErrorCode.CORRUPT_MESSAGE, -1),
    "nothing": (lambda world: b"", ErrorCode.INVALID_RECORD, 0),
    "short old format": (lambda world: batch_of(world)[:16] + bytes(20), ErrorCode.INVALID_RECORD, 0),
    "base offset": (lambda world: batch_of(world, base_offset=1234), ErrorCode.INVALID_RECORD, 0),
    "old format": (lambda world: changed(batch_of(world), 16, b"\x01"), ErrorCode.INVALID_RECORD, 0),
    "future format": (lambda world: changed(batch_of(world), 16, b"\x03"), ErrorCode.CORRUPT_MESSAGE, -1),
    "no records": (lambda world: changed(batch_of(world), 57, bytes(4)), ErrorCode.INVALID_RECORD, 0),
    "delta": (lambda world: changed(batch_of(world), 23, b"\0\0\0\5"), ErrorCode.INVALID_RECORD, 0),
    "control": (lambda world: batch_of(world, control=True), ErrorCode.INVALID_RECORD, 0),
    "no sequence": (lambda world: batch_of(world, producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD, 0),
    "codec": (lambda world: changed(batch_of(world), 21, b"\0\5"), ErrorCode.INVALID_RECORD, 0),
    "not zstd": (lambda world: changed(batch_of(world), 21, b"\0\4"), ErrorCode.UNKNOWN_SERVER_ERROR, 0),
    "append time": (lambda world: changed(batch_of(world), 21, b"\0\x08"), ErrorCode.INVALID_TIMESTAMP, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals_of_client_batches(world, case):
    make, error, log_start_offset = CASES[case]
    log = world.log()
    result = send(world, log, make(world))
    assert (result.error, result.log_start_offset, result.base_offset) == (error, log_start_offset, -1)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("difference", [-1, 0, 1])
def test_max_message_bytes_at_its_limit(world, difference):
    batch = batch_of(world, b"v" * 100)
    log = world.log(max_message_bytes=len(batch) - difference)
    result = send(world, log, batch)
    assert result.error == (ErrorCode.MESSAGE_TOO_LARGE if difference > 0 else 0)


@pytest.mark.parametrize("difference", [-1, 0, 1])
def test_an_append_must_fit_a_segment(world, difference):
    batch = batch_of(world, b"v" * 100)
    log = world.log(segment_bytes=len(batch) - difference)
    assert send(world, log, batch).error == (ErrorCode.RECORD_LIST_TOO_LARGE if difference > 0 else 0)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_compacted_topic_wants_keys(world, codec):
    log = world.log("produce-compact", cleanup_policy=frozenset(("compact",)))
    assert send(world, log, batch_of(world, compression=codec)).error == 0
    batch = build([Record(timestamp=1, key=key, value=b"v") for key in (None, b"k", None)], compression=codec)
    result = send(world, log, batch)
    text = "Compacted topic cannot accept message without key in topic partition produce-compact-0"
    assert result.error == ErrorCode.INVALID_RECORD
    assert result.record_errors == [(0, text), (2, text)]
    assert result.error_message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing the first three "
        f"errors at most: [RecordError(batchIndex=0, message='{text}'), RecordError(batchIndex=2, message='{text}')]"
    )
    assert result.log_start_offset == 0


@pytest.mark.parametrize(("ahead_ms", "error"), [(3_599_999, 0), (3_600_000, 0), (3_600_001, 32)])
def test_timestamps_ahead_of_the_clock(world, ahead_ms, error):
    log = world.log()
    timestamp = world.now() + ahead_ms
    result = send(world, log, batch_of(world, timestamp=timestamp))
    assert result.error == error
    if error:
        low = world.now() - (2**63 - 1)
        assert result.error_message == "One or more records have been rejected due to invalid timestamp"
        assert result.record_errors == [
            (
                0,
                f"Timestamp {timestamp} of message with offset 0 is out of range. "
                f"The timestamp should be within [{low}, {world.now() + 3_600_000}]",
            )
        ]


@pytest.mark.parametrize(("behind_ms", "error"), [(DAY - 1, 0), (DAY, 0), (DAY + 1, 32)])
def test_timestamps_behind_the_clock(world, behind_ms, error):
    log = world.log(message_timestamp_before_max_ms=DAY)
    records = [Record(timestamp=world.now(), value=b"v"), Record(timestamp=world.now() - behind_ms, value=b"v")]
    result = send(world, log, build(records))
    assert (result.error, [index for index, _ in result.record_errors]) == (error, [1] if error else [])
    assert send(world, log, batch_of(world, timestamp=-1)).error == 0


def test_timestamps_do_not_matter_with_log_append_time(world):
    log = world.log(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1)
    assert send(world, log, batch_of(world, timestamp=world.now() + 100 * DAY)).error == 0
    assert send(world, log, batch_of(world, timestamp=5)).error == 0


def test_coordinators_may_write_control_batches_and_need_no_sequence(world):
    log = world.log()
    take_part(log, 3, 0)
    batch = batch_of(world, producer_id=3, producer_epoch=0, transactional=True)
    assert send(world, log, batch, AppendOrigin.COORDINATOR).error == 0
    assert world.marker(log, 3).error == 0
    assert log.log_end_offset == 2


def test_records_that_do_not_hold_what_the_header_says_are_refused_when_they_are_opened(world):
    log = world.log(cleanup_policy=frozenset(("compact",)))
    batch = batch_of(world, b"v", b"w")
    changed(batch, len(batch) - 3, b"\x7f")
    assert send(world, log, batch).error in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]


def with_payload(world, codec, payload, record_count=2):
    """A batch of `record_count` records whose compressed part is `payload`, with a checksum that fits."""
    header = batch_of(world, *[b"v"] * record_count, compression=codec)[:61]
    packed = compress(codec, payload)
    batch = bytearray(header) + packed
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    return changed(batch, 57, record_count.to_bytes(4, "big"))


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_client_compressed_is_opened_and_must_be_records(world, codec):
    log = world.log()
    whole = bytes(batch_of(world, b"v", b"w")[61:])
    swapped = bytearray(whole)
    swapped[3] = 6  # the first record says offset delta 3
    assert send(world, log, with_payload(world, codec, bytes(100_000))).error == ErrorCode.INVALID_RECORD
    assert send(world, log, with_payload(world, codec, swapped)).error == ErrorCode.INVALID_RECORD
    assert send(world, log, with_payload(world, codec, whole[:-1])).error == ErrorCode.INVALID_RECORD
    assert send(world, log, with_payload(world, codec, whole, record_count=3)).error == ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0
    assert send(world, log, with_payload(world, codec, whole)).error == ErrorCode.NONE
    assert log.log_end_offset == 2


@pytest.mark.parametrize("codec", CODECS)
def test_a_broken_compressed_part_is_refused_as_kafka_refuses_it(world, codec):
    log = world.log()
    batch = batch_of(world, b"v" * 1000, compression=codec)
    broken = changed(batch, 70, bytes(byte ^ 0xFF for byte in batch[70:90]))
    assert send(world, log, broken).error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert log.log_end_offset == 0


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_unpacks_beyond_the_limit_is_too_large(world, more):
    plain = batch_of(world, bytes(5000))
    log = world.log(max_message_bytes=1000, max_message_unpacked_bytes=len(plain) - 61 - more)
    error = ErrorCode.MESSAGE_TOO_LARGE if more > 0 else ErrorCode.NONE
    assert send(world, log, batch_of(world, bytes(5000), compression=Compression.ZSTD)).error == error


def test_records_that_do_not_lie_one_behind_the_other_are_refused_in_any_batch(world):
    log = world.log()
    whole = bytes(batch_of(world, b"v", b"w" * 100, b"x" * 9000)[61:])
    payloads = {"garbage": bytes(range(1, 200)), "too short": whole[:-1], "more": whole + b"\0", "nothing": b""}
    for name, payload in payloads.items():
        assert send(world, log, with_payload(world, Compression.NONE, payload, 3)).error == 87, name
    for count in (2, 4, 2**31 - 1):  # what the header says
        batch = with_payload(world, Compression.NONE, whole, 3)
        changed(batch, 23, (count - 1).to_bytes(4, "big"))
        assert send(world, log, changed(batch, 57, count.to_bytes(4, "big"))).error == 87, count
    assert log.log_end_offset == 0
    assert send(world, log, with_payload(world, Compression.NONE, whole, 3)).error == 0


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_what_is_compressed_anew_was_looked_into(world, codec):
    log = world.log(compression_type=codec)
    batch = batch_of(world, b"v", compression=Compression.GZIP if codec == "uncompressed" else Compression.NONE)
    assert send(world, log, bytearray(batch)).error == 0
    longer = with_payload(world, batch[22] & 7, batch_of(world, b"v")[61:].replace(b"v", b"v\0"), 1)
    assert send(world, log, longer).error == ErrorCode.INVALID_RECORD
    changed(batch, 27, (2**63 - 1).to_bytes(8, "big") * 2)
    assert send(world, log, batch).error in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)


def test_timestamps_beyond_64_bits_are_refused_where_records_are_looked_into(world):
    log = world.log(message_timestamp_type="LogAppendTime")
    records = [Record(timestamp=time, value=b"v") for time in (0, 1)]
    for base, error in ((2**63 - 2, 0), (2**63 - 1, ErrorCode.INVALID_RECORD)):
        batch = changed(build(records, compression=Compression.GZIP), 27, base.to_bytes(8, "big"))
        assert send(world, log, batch).error == error


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_records_in_one_batch_are_limited_where_they_are_looked_into(world, more):
    batch = batch_of(world, *[b"v"] * (10 + more), compression=Compression.LZ4)
    assert send(world, world.log(max_message_records=10), batch).error == (
        ErrorCode.MESSAGE_TOO_LARGE if more > 0 else ErrorCode.NONE
    )


def test_the_newest_timestamp_is_what_the_records_say(world):
    log = world.log()
    batch = batch_of(world, compression=Compression.SNAPPY)
    send(world, log, changed(batch, 35, bytes(8)))
    log.set_high_watermark(1)
    assert log.offset_for_timestamp(world.now(), 1).offset == 0


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_bomb_of_full_size_is_refused_within_the_limit(world, codec):
    packed = compress(codec, bytes(80 << 20))  # snappy cannot reach the limit in a batch of a megabyte
    batch = with_payload(world, Compression.NONE, b"")
    changed(batch, 21, codec.to_bytes(2, "big"))
    batch += packed
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    assert len(batch) < 1_048_588
    log = world.log(max_message_unpacked_bytes=64 << 20)
    tracemalloc.start()
    try:
        assert send(world, log, changed(batch, 57, bytes((0, 0, 0, 2)))).error == ErrorCode.MESSAGE_TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] < 1.3 * (64 << 20)
    finally:
        tracemalloc.stop()
