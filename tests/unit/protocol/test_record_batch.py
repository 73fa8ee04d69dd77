"""Record batches: the test vectors, every rule of validation, walking, building, patching."""

import random
import struct
from collections.abc import Callable

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CODEC_MASK, DELETE_HORIZON, HEADER_BYTES
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.record_batch import Record, build, read_header, records
from barnabas.protocol.transaction_marker import CONTROL_COMMIT, EndTransactionMarker, build_marker, marker_of

VECTOR = bytes.fromhex(
    "000000000000000000000046ffffffff0270e7865100000000000100000000000003e800000000000003e9ffffffffffffffffffffffffffff"
    "0000000210000000026b027600160002020102770202680278"
)
MARKER = bytes.fromhex(
    "00000000000000070000004200000002021493b0ba00300000000000000000000003e800000000000003e8000000000000000900"
    "03ffffffff000000012000000008000000010c00000000000500"
)
OLD = {
    0: bytes.fromhex("0000000000000005000000101fecd70a0000000000016b0000000176"),
    1: bytes.fromhex("000000000000000500000018e4e321bc010000000000000003e8000000016b0000000176"),
}
TWO = [
    Record(timestamp=1000, key=b"k", value=b"v"),
    Record(timestamp=1001, value=b"w", headers=[("h", b"x")]),
]
INVALID = ErrorCode.INVALID_RECORD


def resum(batch: bytearray) -> bytearray:
    """Set the length to what is there, and the CRC."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, record_batch.crc32c(memoryview(batch)[21:]))
    return batch


def with_payload(payload: bytes, codec: Compression = Compression.NONE, batch: bytes = VECTOR) -> bytearray:
    copy = bytearray(batch[:HEADER_BYTES])
    struct.pack_into(">h", copy, 21, int(codec))
    return resum(copy + compress(codec, payload))


def offsets(count: int, start: int = 0) -> list[Record]:
    return [
        Record(start + index, 1_700_000_000_000 + index * 1000 * (-1) ** index, b"key %d" % index, b"v" * index)
        for index in range(count)
    ]


def test_vectors() -> None:
    assert build(TWO) == VECTOR
    assert list(records(VECTOR)) == [
        Record(0, 1000, b"k", b"v"),
        Record(1, 1001, None, b"w", [("h", b"x")]),
    ]
    marker = build_marker(
        CONTROL_COMMIT,
        base_offset=7,
        partition_leader_epoch=2,
        producer_id=9,
        producer_epoch=3,
        coordinator_epoch=5,
        timestamp=1000,
    )
    assert marker == MARKER


def test_header() -> None:
    header = read_header(b"xx" + MARKER, 2)
    assert header.pack() == MARKER[:HEADER_BYTES]
    assert (header.base_offset, header.last_offset, header.next_offset) == (7, 7, 8)
    assert (header.size_bytes, header.partition_leader_epoch) == (len(MARKER), 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    assert header.is_control
    assert header.is_transactional
    assert not header.is_log_append_time
    assert header.attributes & CODEC_MASK == Compression.NONE
    assert record_batch.crc_is_valid(MARKER)
    assert "base_offset=7" in repr(header)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("count", [1, 2, 64, 65, 300])
def test_round_trip(codec: Compression, count: int) -> None:
    content = offsets(count, start=50)
    content[-1].headers = [("a", None), ("b", b""), ("a", b"again"), ("é" * 100, b"x" * 500)]
    content[0].key, content[0].value = None, None
    batch = build(content, base_offset=50, compression=codec, partition_leader_epoch=4)
    header = read_header(batch)
    assert list(records(batch)) == content
    assert header.record_count == count
    assert record_batch.crc_is_valid(batch)
    assert (header.attributes & CODEC_MASK, header.last_offset, header.partition_leader_epoch) == (codec, 49 + count, 4)
    assert header.base_timestamp == content[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in content)
    found = record_batch.check_records(batch, header)
    assert found.first_keyless_index == 0
    assert found.max_timestamp == header.max_timestamp
    assert content[found.max_timestamp_offset_delta].timestamp == header.max_timestamp
    assert found.min_timestamp == min(record.timestamp for record in content)


def test_keyless_records_are_found() -> None:
    content = offsets(5)
    batch = build(content)
    assert record_batch.check_records(batch, read_header(batch)).first_keyless_index is None
    content[3].key = None
    batch = build(content)
    assert record_batch.check_records(batch, read_header(batch)).first_keyless_index == 3


def test_log_append_time() -> None:
    batch = build(TWO, log_append_time_ms=5000)
    assert read_header(batch).is_log_append_time
    assert [record.timestamp for record in records(batch)] == [5000, 5000]
    patched = bytearray(b"before" + VECTOR)
    record_batch.patch_log_append_time(patched, 6, 5000)
    assert record_batch.crc_is_valid(patched[6:])
    assert [record.timestamp for record in records(patched[6:])] == [5000, 5000]
    assert read_header(patched, 6).max_timestamp == 5000


def test_patches() -> None:
    patched = bytearray(b"before" + VECTOR)
    record_batch.patch(memoryview(patched), 6, 2**40, 77)
    header = read_header(patched, 6)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 77)
    assert record_batch.crc_is_valid(memoryview(patched)[6:])
    record_batch.patch_max_timestamp(patched, 6, 1234)
    assert read_header(patched, 6).max_timestamp == 1234
    assert record_batch.crc_is_valid(memoryview(patched)[6:])
    patched[-1] ^= 1
    assert not record_batch.crc_is_valid(memoryview(patched)[6:])


def test_several_batches() -> None:
    data = VECTOR + MARKER
    found = list(record_batch.batches(data))
    assert [bytes(batch) for _, batch in found] == [VECTOR, MARKER]
    assert list(record_batch.batches(b"")) == []
    with pytest.raises(CorruptBatchError, match="cut off"):
        list(record_batch.batches(data[:-1]))


@pytest.mark.parametrize("number", [0, 1])
def test_old_messages_are_recognised_and_refused(number: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"format {number}") as raised:
        read_header(OLD[number])
    assert raised.value.error == INVALID


def check(batch: bytes) -> None:
    record_batch.check_records(batch, read_header(batch))


@pytest.mark.parametrize("codec", list(Compression))
def test_records_that_are_not_as_they_should_be(codec: Compression) -> None:
    payload = VECTOR[HEADER_BYTES:]
    check(with_payload(payload, codec))
    for broken in (payload + b"x", payload[:-1], payload[:3] + b"\x04" + payload[4:], b"\x12" + payload[1:], b""):
        with pytest.raises(CorruptBatchError) as raised:
            check(with_payload(broken, codec))
        assert raised.value.error == INVALID


@pytest.mark.parametrize("function", [lambda batch: list(records(batch)), check])
def test_changed_bytes_never_raise_anything_else(function: Callable[[bytes], object]) -> None:
    rng = random.Random(4)
    content = offsets(10)
    content[5].headers = [("a", b"b"), ("c", None)]
    batch = build(content)
    refused = 0
    for _ in range(2000):
        copy = bytearray(batch)
        for _ in range(rng.randrange(1, 3)):
            copy[rng.randrange(HEADER_BYTES, len(copy))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        del copy[rng.randrange(HEADER_BYTES, len(copy) + 1) :]
        try:
            function(resum(copy))
        except CorruptBatchError:
            refused += 1
    assert refused > 500


def test_unpacking_has_a_limit() -> None:
    batch = build([Record(timestamp=1, value=bytes(1_000_000))], compression=Compression.GZIP)
    assert len(batch) < 5000
    unpacked = len(build([Record(timestamp=1, value=bytes(1_000_000))])) - HEADER_BYTES
    for limit in (unpacked, unpacked + 1):
        assert len(list(records(batch, max_bytes=limit))) == 1
    with pytest.raises(CorruptBatchError) as raised:
        list(records(batch, max_bytes=unpacked - 1))
    assert raised.value.error == ErrorCode.MESSAGE_TOO_LARGE


def horizon_of(batch: bytearray) -> int | None:
    header = read_header(batch)
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_rebuild_keeps_offsets(codec: Compression) -> None:
    batch = build(offsets(10), base_offset=100, compression=codec, producer_id=3, producer_epoch=1, base_sequence=20)
    header = read_header(batch)
    kept = [record for record in records(batch) if record.offset in (102, 107)]
    smaller = record_batch.rebuild(header, kept)
    assert record_batch.crc_is_valid(smaller)
    new = read_header(smaller)
    assert list(records(smaller)) == kept
    assert (new.base_offset, new.last_offset, new.record_count, new.attributes & CODEC_MASK) == (100, 109, 2, codec)
    assert (new.producer_id, new.producer_epoch, new.base_sequence) == (3, 1, 20)
    horizon = record_batch.rebuild(new, kept, delete_horizon_ms=1_800_000_000_000)
    assert list(records(horizon)) == kept
    assert horizon_of(horizon) == 1_800_000_000_000
    again = record_batch.rebuild(read_header(horizon), kept[:1])
    assert horizon_of(again) == 1_800_000_000_000
    assert list(records(again)) == kept[:1]
    empty = record_batch.rebuild(header, [])
    assert len(empty) == HEADER_BYTES
    assert (read_header(empty).last_offset, read_header(empty).record_count) == (109, 0)
    assert read_header(empty).attributes & CODEC_MASK == Compression.NONE
    assert list(records(empty)) == []


def test_rebuild_with_everything_is_the_same_batch() -> None:
    assert record_batch.rebuild(read_header(VECTOR), records(VECTOR)) == VECTOR


def test_header_keys_that_are_not_utf8_survive() -> None:
    batch = with_payload(VECTOR[HEADER_BYTES:].replace(b"h\x02x", b"\xff\x02x"))
    assert record_batch.rebuild(read_header(batch), records(batch)) == batch


def test_transaction_markers() -> None:
    assert marker_of(MARKER) == EndTransactionMarker(commit=True, coordinator_epoch=5)
    key, value = b"\0\0\0\1", b"\0\0\0\0\0\6"
    for more in (b"", b" of a newer version"):
        marker = build([Record(key=key, value=value + more)], transactional=True, control=True)
        assert marker_of(marker) == EndTransactionMarker(commit=True, coordinator_epoch=6)
    for other in (
        Record(key=None, value=value),
        Record(key=b"\0\0\0", value=value),
        Record(key=b"\0\0\0\4", value=value),
    ):
        assert marker_of(build([other], control=True)) is None
    for wrong in (None, b"", value[:-1]):
        assert marker_of(build([Record(key=key, value=wrong)], control=True)) is None


def test_a_new_batch_needs_a_record() -> None:
    with pytest.raises(ValueError, match="needs a record"):
        build([])
