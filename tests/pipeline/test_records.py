"""Batches and records in columns, compared with the broker's own decoder."""

import random

import pytest

np = pytest.importorskip("numpy", reason="the extra `spark` is not installed")

from barnabas.pipeline.batches import PADDING_BYTES, Batches, walk
from barnabas.pipeline.columns import binaries, views
from barnabas.pipeline.records import Records, headers_of, take_apart
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CRC_AT, UINT32
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.record_batch import Record


def some_bytes(rng: random.Random) -> bytes | None:
    size = rng.choice((0, 1, 5, 63, 64, 200))
    return None if rng.random() < 0.1 else rng.randbytes(size)


def some_record(rng: random.Random, timestamp: int) -> Record:
    headers = [(rng.choice(("a", "trace-id", "ü" * 40)), some_bytes(rng)) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
    return Record(-1, timestamp + rng.choice((0, 1, -70, 1 << 40)), some_bytes(rng), some_bytes(rng), headers)


def some_log(rng: random.Random, count: int) -> list[bytearray]:
    """Batches as they follow one another in a log."""
    offset, batches = rng.choice((0, 1 << 33)), []
    for _ in range(count):
        records = [some_record(rng, 1_700_000_000_000) for _ in range(rng.choice((1, 1, 2, 7, 100)))]
        batch = record_batch.build(
            records,
            base_offset=offset,
            partition_leader_epoch=rng.randrange(3),
            compression=rng.choice(list(Compression)),
            log_append_time_ms=rng.choice((None, None, 1_800_000_000_000)),
            producer_id=rng.choice((-1, 4711)),
            control=rng.random() < 0.05,
        )
        if rng.random() < 0.2:  # as compaction leaves them
            kept = [record for record in record_batch.records(bytes(batch)) if rng.random() < 0.5]
            batch = record_batch.rebuild(record_batch.read_header(batch), kept)
        batches.append(batch)
        offset += len(records) + rng.choice((0, 0, 5))
    return batches


Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def expected(batches: list[bytearray]) -> list[Row]:
    return [
        (one.offset, one.timestamp, one.key, one.value, one.headers)
        for batch in batches
        if not record_batch.read_header(batch).is_control
        for one in record_batch.records(bytes(batch))
    ]


def rows(parts: list[Records]) -> list[Row]:
    result: list[Row] = []
    for part in parts:
        data = part.data.tobytes()

        def content(at: int, size: int, data: bytes = data) -> bytes | None:
            return None if size < 0 else data[at : at + size]

        headers: list[list[tuple[str, bytes | None]]] = [[] for _ in range(len(part))]
        for indexes, key_at, key_bytes, value_at, value_bytes in headers_of(part):
            for index, *where in zip(indexes, key_at, key_bytes, value_at, value_bytes):
                key = content(where[0], where[1]) or b""
                headers[index].append((key.decode("utf-8", "surrogateescape"), content(where[2], where[3])))
        result += [
            (
                int(part.offset[i]),
                int(part.timestamp_ms[i]),
                content(part.key_at[i], part.key_bytes[i]),
                content(part.value_at[i], part.value_bytes[i]),
                headers[i],
            )
            for i in range(len(part))
        ]
    return result


def walked(batches: list[bytearray]) -> Batches:
    return walk(b"".join(batches))


@pytest.mark.parametrize("seed", range(40))
def test_all_records_of_a_log(seed: int) -> None:
    rng = random.Random(seed)
    log = some_log(rng, rng.choice((1, 5, 60, 200)))
    batches = walked(log)
    assert len(batches) == len(log)
    parts, corrupt = take_apart(batches)
    assert (batches.corrupt, corrupt) == ([], [])
    assert rows(parts) == expected(log)


def test_many_unpacked_bytes_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.pipeline.records.UNPACKED_AT_ONCE_BYTES", 1000)
    log = some_log(random.Random(7), 100)
    parts, _ = take_apart(walked(log))
    assert len(parts) > 5
    assert rows(parts) == expected(log)


@pytest.mark.parametrize("seed", range(10))
def test_columns_of_bytes_with_a_copy_and_without(seed: int) -> None:
    """Empty and null ones, some that fit into a view, in the order of the buffer or in any."""
    rng = random.Random(seed)
    expected, places, content = [], [], b""
    for size in rng.choices((-1, 0, 1, 4, 11, 12, 13, 300), k=rng.choice((0, 1, 50))):
        content += rng.randbytes(rng.choice((0, 5)))
        expected.append(None if size < 0 else rng.randbytes(size))
        places.append((len(content), size))
        content += expected[-1] or b""
    if seed % 2:
        order = rng.sample(range(len(places)), len(places))
        expected, places = ([rows[index] for index in order] for rows in (expected, places))
    data = np.frombuffer(content + bytes(PADDING_BYTES), np.uint8)
    at, sizes = np.array(places, np.int64).reshape(-1, 2).T
    for make in (binaries, views):
        column = make(data, at, sizes)
        column.validate(full=True)
        assert column.to_pylist() == expected


def with_right_checksum(batch: bytearray) -> bytearray:
    UINT32.pack_into(batch, CRC_AT, record_batch.checksum(memoryview(batch), 0, len(batch)))
    return batch


@pytest.mark.parametrize("seed", range(20))
def test_broken_records_in_a_right_batch_are_found_as_the_broker_finds_them(seed: int) -> None:
    rng = random.Random(seed)
    log = some_log(rng, 150)
    good: list[bytearray] = []
    broken = 0
    for index, batch in enumerate(log):
        if rng.random() < 0.3 and len(batch) > 61 and not record_batch.read_header(batch).is_control:
            for _ in range(rng.choice((1, 1, 3))):
                batch[rng.randrange(61, len(batch))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            log[index] = with_right_checksum(batch)
        try:
            if not record_batch.read_header(batch).is_control:
                list(record_batch.records(bytes(batch)))
            good.append(batch)
        except CorruptBatchError:
            broken += 1
    batches = walked(log)
    assert batches.corrupt == []
    parts, corrupt = take_apart(batches)
    assert broken > 3
    assert len(corrupt) == broken
    assert rows(parts) == expected(good)


@pytest.mark.parametrize("seed", range(30))
def test_every_damaged_byte_is_in_a_corrupt_place_and_the_rest_is_read(seed: int) -> None:
    """Any damage at all: what is read is a part of what was written, and what is missing has a place."""
    rng = random.Random(seed)
    log = some_log(rng, 60)
    data = bytearray(b"".join(log))
    for _ in range(rng.choice((1, 2, 5))):
        at, size = rng.randrange(len(data)), rng.choice((1, 1, 30, 3000))
        data[at : at + size] = rng.choice((bytes(size), rng.randbytes(size)))[: len(data) - at]
    batches = walk(data, offsets_from=record_batch.read_header(log[0]).base_offset)
    position, untouched = 0, {}
    for batch in log:
        if data[position : position + len(batch)] == batch:
            untouched[position] = batch
        position += len(batch)
    found = dict(zip(batches.starts.tolist(), batches.sizes.tolist()))
    missing = untouched.keys() - found.keys()
    assert not missing
    pieces = list(found.items()) + [(one.position, one.size_bytes) for one in batches.corrupt]
    end = 0
    for start, size in sorted(pieces):
        assert start == end
        end += size
    assert end == len(data)


def test_a_wrong_offset_is_seen_although_no_checksum_covers_it() -> None:
    log = [record_batch.build([Record(-1, 5, None, b"x")], base_offset=offset) for offset in range(100)]
    log[40][0:8] = (1 << 40).to_bytes(8, "big")
    log[70][0:8] = (3).to_bytes(8, "big")
    batches = walk(b"".join(log), offsets_below=100)
    assert [one.offset for one in batches.corrupt] == [1 << 40, 3]
    assert len(batches) == 98


def test_the_walk_stops_at_the_end_that_is_asked_for() -> None:
    log = [record_batch.build([Record(-1, 5, None, b"x")], base_offset=offset) for offset in range(10)]
    data = b"".join(log) + b"half written"
    batches = walk(data, offsets_to=7)
    assert batches.last_offsets.tolist() == list(range(7))
    assert batches.corrupt == []
    assert batches.consumed == sum(map(len, log[:7]))
    assert len(walk(data, offsets_to=10).corrupt) == 0
    assert len(walk(data, offsets_to=11).corrupt) == 1


@pytest.mark.parametrize("piece_bytes", [100, 1000, 5000])
def test_buffers_that_cut_batches_give_the_same_as_one(piece_bytes: int) -> None:
    rng = random.Random(3)
    log = some_log(rng, 80)
    data = bytearray(b"".join(log))
    data[3000:3100] = bytes(100)
    whole = walk(data)
    starts, corrupt, position, size = [], 0, 0, piece_bytes
    while position < len(data):
        piece = data[position : position + size]
        part = walk(piece, following_bytes=len(data) - position - len(piece))
        if not part.consumed:
            size *= 2
            continue
        starts += (part.starts + position).tolist()
        corrupt += sum(one.size_bytes for one in part.corrupt)
        position += part.consumed
        size = piece_bytes
    assert starts == whole.starts.tolist()
    assert corrupt == sum(one.size_bytes for one in whole.corrupt)
