"""`build_plain`, which coordinators use, writes what `build` writes."""

import random
from typing import Any

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.compression import Compression
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
