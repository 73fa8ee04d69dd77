"""`build_plain`, which coordinators use, writes what `build` writes."""

import random
from typing import Any

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import HEADER_BYTES
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.record_batch import PlainRecords, Record
from native import build


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module in C, built of this source."""
    return build("native_codec", "protocol/native/*.c", tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("seed", range(20))
def test_the_same_bytes(seed: int, compression: Compression) -> None:
    rng = random.Random(seed)

    def content() -> bytes:
        return rng.choice((b"", rng.randbytes(rng.randrange(1, 70)), rng.randbytes(rng.choice((63, 64, 9000)))))

    rows = [(content(), rng.choice((None, content()))) for _ in range(rng.choice((1, 2, 70)))]
    records = [Record(timestamp=1_000_000, key=key, value=value) for key, value in rows]
    expected = record_batch.build(records, compression=compression, base_sequence=0)
    plain = PlainRecords()
    for key, value in rows:
        plain.add(key, value)
    batch = record_batch.build_plain(plain, 1_000_000, codec=compression, base_sequence=0)
    assert batch.data == expected
    header = record_batch.read_header(batch.data)
    header.crc = 0
    assert repr(batch.header) == repr(header)


def test_no_records() -> None:
    with pytest.raises(ValueError, match="needs a record"):
        record_batch.build_plain(PlainRecords(), 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_twin_in_c(native: Any, seed: int) -> None:
    rng = random.Random(seed)
    plain = PlainRecords()
    plain.count = rng.choice((0, 63, 64, 10_000))
    key = rng.randbytes(rng.choice((0, 1, 63, 64, 9000)))
    value = rng.choice((None, b"", rng.randbytes(rng.choice((1, 63, 64, 9000)))))
    record = native.plain_record(plain.count, key, value)
    plain.add(key, value)
    assert record == b"".join(plain.parts)
    for numbers in ((1, 1_000, 0, -1, -1, 0), (plain.count, 2**62, 16, 2**40, 7, -1)):
        batch = record_batch.assemble_plain(plain.parts, *numbers)
        assert native.assemble_plain(plain.parts, *numbers) == batch
        assert record_batch.crc_is_valid(batch)


def test_the_place_in_the_log(native: Any) -> None:
    plain = PlainRecords()
    plain.add(b"k", b"v")
    batch = bytes(3) + record_batch.build_plain(plain, 5).data
    for base_offset, leader_epoch in ((0, -1), (2**40, 77), (2**63 - 1, 2**31 - 1)):
        expected, found = bytearray(batch), bytearray(batch)
        record_batch.patch(expected, 3, base_offset, leader_epoch)
        native.patch(memoryview(found), 3, base_offset, leader_epoch)
        assert found == expected
    for arguments in ((batch, 3, 0, 0), (found, -1, 0, 0), (found, len(found) - 15, 0, 0), (found, 0, 0, 2**31)):
        with pytest.raises((ValueError, BufferError)):
            native.patch(*arguments)


@pytest.mark.parametrize("seed", range(50))
def test_how_many_records_fill_a_batch(native: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.randbytes(rng.choice((0, 1, 49, 50, 60, 9000, 9000))) for _ in range(rng.choice((1, 2, 30)))]
    right = record_batch.build([Record(timestamp=0, value=value) for value in values])
    for _ in range(40):
        batch = bytearray(right)
        for _ in range(rng.choice((0, 1))):
            batch[rng.randrange(HEADER_BYTES, min(len(batch), HEADER_BYTES + 300))] ^= 1 << rng.randrange(8)
        header = record_batch.read_header(batch)
        header.record_count = rng.choice((len(values), len(values), len(values) + 1, 0, -1))
        header.batch_length -= rng.choice((0, 0, 0, 1))
        told = []
        for count in (None, native.count_records):
            monkeypatch.setattr(record_batch, "_count_records", count)
            try:
                record_batch.check_lengths(batch, header)
            except CorruptBatchError as error:
                told.append(str(error))
            else:
                told.append("right")
        assert told[0] == told[1]
        if batch == right and header.record_count == len(values) and header.size_bytes == len(batch):
            assert told == ["right", "right"]
            assert native.count_records(batch, HEADER_BYTES) == len(values)
    for data, position in ((b"", 0), (b"\0", 1), (b"\0", 2), (b"\0", -1), (b"\x80", 0), (b"\x02", 0), (b"\x01", 0)):
        assert native.count_records(data, position) == -1
