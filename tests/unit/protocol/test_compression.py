"""Codecs: framings, broken data, and the limit on what comes out."""

import random
import tracemalloc

import pytest
from barnabas.protocol.compression import Compression, compress, decompress
from barnabas.protocol.errors import CorruptBatchError, ErrorCode

CODECS = list(Compression)
PACKING = [codec for codec in CODECS if codec]
CONTENTS = [b"", b"a", b"hello, world " * 10_000, random.Random(1).randbytes(100_000), bytes(300_000)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("content", CONTENTS, ids=["empty", "short", "text", "random", "zeros"])
def test_round_trip_and_limit(codec: Compression, content: bytes) -> None:
    packed = compress(codec, content)
    assert decompress(codec, packed, len(content)) == content
    assert decompress(codec, memoryview(packed), len(content) + 1) == content
    if content:
        with pytest.raises(CorruptBatchError) as raised:
            decompress(codec, packed, len(content) - 1)
        assert raised.value.error == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", PACKING)
def test_broken_data(codec: Compression) -> None:
    rng = random.Random(2)
    content = b"".join(b"record %d" % number for number in range(300))
    packed = compress(codec, content)
    refused = 0
    for _ in range(500):
        broken = bytearray(packed[: rng.randrange(len(packed))] if rng.random() < 0.3 else packed)
        for _ in range(rng.randrange(1, 4)):
            if broken:
                broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            decompress(codec, broken, 10_000)
        except CorruptBatchError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_bomb_takes_no_memory(codec: Compression) -> None:
    bomb = compress(codec, bytes(50_000_000))
    assert len(bomb) < 500_000
    decompress(codec, compress(codec, b"warm"), 10)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError, match="more than 100000 bytes"):
            decompress(codec, bomb, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", PACKING)
def test_what_is_unpacked_is_held_once(codec: Compression) -> None:
    size = 32 << 20
    packed = compress(codec, bytes(size))
    decompress(codec, compress(codec, b"warm"), 10)
    tracemalloc.start()
    try:
        assert len(decompress(codec, packed, size)) == size
        assert tracemalloc.get_traced_memory()[1] < 1.3 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("codec", "level"), [(Compression.GZIP, 1), (Compression.GZIP, 9), (Compression.LZ4, 1), (Compression.LZ4, 17),
                         (Compression.ZSTD, -5), (Compression.ZSTD, 19)]
)  # fmt: skip
def test_levels(codec: Compression, level: int) -> None:
    content = bytes(random.Random(3).choices(b"abcdef", k=20_000))
    packed = compress(codec, content, level)
    assert decompress(codec, packed, len(content)) == content


def test_levels_differ() -> None:
    content = b"".join(b"{id: %d, user: %d}" % (number, number * number % 777) for number in range(3000))
    for codec, low, high in ((Compression.GZIP, 1, 9), (Compression.LZ4, 1, 12), (Compression.ZSTD, -20, 19)):
        assert len(compress(codec, content, high)) < len(compress(codec, content, low))


def test_gzip_members_may_follow_each_other() -> None:
    packed = compress(Compression.GZIP, b"one ") + compress(Compression.GZIP, b"two")
    assert decompress(Compression.GZIP, packed, 7) == b"one two"
    with pytest.raises(CorruptBatchError):
        decompress(Compression.GZIP, packed, 6)


def test_snappy_framings() -> None:
    stream = compress(Compression.SNAPPY, b"content")
    assert stream[:16] == bytes.fromhex("82534e415050590000000001 00000001".replace(" ", ""))
    assert int.from_bytes(stream[16:20], "big") == len(stream) - 20
    assert decompress(Compression.SNAPPY, stream[20:], 7) == b"content"  # a bare block
    assert decompress(Compression.SNAPPY, stream + stream, 14) == b"contentcontent"
    assert decompress(Compression.SNAPPY, stream[:16], 0) == b""
    with pytest.raises(CorruptBatchError):
        decompress(Compression.SNAPPY, stream + stream, 13)
    with pytest.raises(CorruptBatchError):
        decompress(Compression.SNAPPY, stream[:-1], 100)
    with pytest.raises(CorruptBatchError):
        decompress(Compression.SNAPPY, stream[:18], 100)


def test_lz4_frames() -> None:
    packed = compress(Compression.LZ4, b"content")
    assert packed[:7] == bytes.fromhex("04224d18604082")
    assert packed[-4:] == bytes(4)
    stored = bytes.fromhex("07000080") + b"content" + bytes(4)
    assert packed[7:] == stored  # too short to gain anything
    for descriptor in ("6440a7", "607073"):  # with a content checksum; blocks of 4 MiB
        tail = bytes(4) if descriptor.startswith("64") else b""
        assert decompress(Compression.LZ4, bytes.fromhex("04224d18" + descriptor) + stored + tail, 7) == b"content"
    with pytest.raises(CorruptBatchError, match="too early"):  # half of the content's checksum
        decompress(Compression.LZ4, bytes.fromhex("04224d186440a7") + stored + bytes(2), 7)
    checksums = bytes.fromhex("04224d187040ad")
    frame = checksums + stored[:-4] + bytes.fromhex("896a80a1") + bytes(4)
    assert decompress(Compression.LZ4, frame, 7) == b"content"
    with pytest.raises(CorruptBatchError, match="broken LZ4"):  # the checksum of a block is checked, as in Kafka
        decompress(Compression.LZ4, checksums + stored[:-4] + b"sums" + bytes(4), 7)
    with pytest.raises(CorruptBatchError, match="descriptor"):
        decompress(Compression.LZ4, frame[:6] + bytes([frame[6] ^ 1]) + frame[7:], 7)
    for wrong in ("04224d1840", "04224d1820", "04224d18614082", "04224d18601082", "04224d19604082", ""):
        with pytest.raises(CorruptBatchError):
            decompress(Compression.LZ4, bytes.fromhex(wrong) + stored, 100)


def test_zstd_without_a_content_size() -> None:
    """As Java's streams write it: the size is found by trying, never beyond the limit."""
    raw_block = (10 << 3 | 1).to_bytes(3, "little") + b"0123456789"
    frame = bytes.fromhex("28b52ffd0058") + raw_block
    assert decompress(Compression.ZSTD, frame, 10) == b"0123456789"
    with pytest.raises(CorruptBatchError) as raised:
        decompress(Compression.ZSTD, frame, 9)
    assert raised.value.error == ErrorCode.MESSAGE_TOO_LARGE
    run = ((100_000 << 3) | 0b011).to_bytes(3, "little") + b"x"  # one byte, repeated
    assert decompress(Compression.ZSTD, bytes.fromhex("28b52ffd0058") + run, 200_000) == b"x" * 100_000
    huge_window = bytes.fromhex("28b52ffd00f8") + raw_block
    with pytest.raises(CorruptBatchError, match="window"):
        decompress(Compression.ZSTD, huge_window, 100)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(CorruptBatchError, match="no compression codec") as raised:
        decompress(codec, b"", 10)
    assert raised.value.error == ErrorCode.INVALID_RECORD
