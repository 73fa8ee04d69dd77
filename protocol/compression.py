"""The codecs of record batches. Each unpacks with a limit on the size of the result.

A few bytes can unpack to gigabytes, so no codec takes more memory than the limit: gzip and LZ4 unpack step by step,
snappy data begin with their size, zstd writes into a buffer that never grows beyond the limit. All fill a `BytesIO`,
because it gives its bytes away without a copy.
`cramjam` (snappy, LZ4, zstd) and `zlib` are imported on first use.

The framings are those that Kafka's clients write: gzip members; the chunks of snappy-java (a bare snappy block is read,
too); an LZ4 frame of independent blocks without checksums; zstd frames.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from io import BytesIO

from barnabas.protocol.errors import CorruptBatchError, ErrorCode

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    """Codec ids: bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LEVELS = {Compression.GZIP: (-1, 9), Compression.LZ4: (1, 17), Compression.ZSTD: (-131072, 22)}
DEFAULT_LEVELS = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}

_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER = _SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK_BYTES = 32 * 1024
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"  # version 1, independent blocks of 64 KiB; the checksum of this descriptor
_LZ4_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_STORED = 0x8000_0000
_LZ4_PIECE_BYTES = 64 * 1024  # packed at a time: a block
_LZ4_HIGHEST_LEVEL = 12  # Kafka allows levels up to 17, the C library up to 12
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW_BYTES_MAX = 128 * 1024 * 1024
_INT32 = struct.Struct(">i")
_UINT32_LITTLE = struct.Struct("<I")


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed, in that codec's framing. `level`: as Kafka's `compression.<codec>.level`; None: default."""
    if codec == Compression.NONE:
        return bytes(data)
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    return _COMPRESSORS[codec](data, level)


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """The unpacked bytes, at most `limit` of them.

    CorruptBatchError when `data` is broken or the codec unknown; with MESSAGE_TOO_LARGE when there are more bytes.
    """
    if codec == Compression.NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return bytes(data)
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise CorruptBatchError(f"no compression codec has the id {codec}", ErrorCode.INVALID_RECORD)
    return decompressor(memoryview(data), limit)


def decompress_into(codec: int, data: Buffer, out: memoryview) -> int:
    """The same into a buffer, which is the limit; how many bytes it takes."""
    if codec == Compression.ZSTD:
        return _unzstd_into(memoryview(data), out)
    unpacked = decompress(codec, data, len(out))
    out[: len(unpacked)] = unpacked
    return len(unpacked)


def _too_large(limit: int) -> CorruptBatchError:
    return CorruptBatchError(f"records unpack to more than {limit} bytes", ErrorCode.MESSAGE_TOO_LARGE)


_GZIP_STEP_BYTES = 1 << 20


def _gzip(data: Buffer, level: int) -> bytes:
    import zlib

    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def _gunzip(data: memoryview, limit: int) -> bytes:
    import zlib

    out = BytesIO()
    rest: Buffer = data
    try:
        while len(rest):
            member = zlib.decompressobj(31)
            while not member.eof:
                step = min(_GZIP_STEP_BYTES, limit - out.tell() + 1)  # in one step zlib would hold twice the limit
                piece = member.decompress(rest, step)
                if out.write(piece) and out.tell() > limit:
                    raise _too_large(limit)
                rest = member.unconsumed_tail
                if not piece and not member.eof:
                    raise CorruptBatchError("gzip data ends too early")
            rest = member.unused_data
    except zlib.error as error:
        raise CorruptBatchError(f"broken gzip data: {error}") from None
    return out.getvalue()


def _snappy(data: Buffer, level: int) -> bytes:
    from cramjam import snappy

    out = bytearray(_SNAPPY_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(bytes(view[start : start + _SNAPPY_BLOCK_BYTES])))
        out += _INT32.pack(len(block))
        out += block
    return bytes(out)


def _unsnappy(data: memoryview, limit: int) -> bytes:
    if data[:8] != _SNAPPY_MAGIC:
        return _unsnappy_block(data, limit, limit)
    out = BytesIO()
    position = 16
    while position < len(data):
        if len(data) - position < 4:
            raise CorruptBatchError("a snappy stream ends within the size of a block")
        if data[position : position + 8] == _SNAPPY_MAGIC:  # streams may follow each other
            position += 16
            continue
        (size,) = _INT32.unpack_from(data, position)
        position += 4
        if size < 0 or size > len(data) - position:
            raise CorruptBatchError("a snappy block is longer than its stream")
        out.write(_unsnappy_block(data[position : position + size], limit - out.tell(), limit))
        position += size
    return out.getvalue()


def _unsnappy_block(block: memoryview, room: int, limit: int) -> bytes:
    import cramjam

    content = bytes(block)
    try:
        size = cramjam.snappy.decompress_raw_len(content)
        if size > room:
            raise _too_large(limit)
        out = BytesIO(bytes(size))
        with out.getbuffer() as buffer:
            cramjam.snappy.decompress_raw_into(content, buffer)
        return out.getvalue()
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"broken snappy data: {error}") from None


def _lz4(data: Buffer, level: int) -> bytes:
    """An LZ4 frame without checksums of blocks, as Kafka writes it. The library writes them, so they are removed."""
    from cramjam import lz4

    packer = lz4.Compressor(level=min(level, _LZ4_HIGHEST_LEVEL), content_checksum=False, block_linked=False)
    content = bytes(data)
    for start in range(0, len(content), _LZ4_PIECE_BYTES):  # the library lets no other thread run meanwhile
        packer.compress(content[start : start + _LZ4_PIECE_BYTES])
    frame = bytes(packer.finish())
    out = bytearray(_LZ4_HEADER)
    position = len(_LZ4_HEADER)
    while size := _UINT32_LITTLE.unpack_from(frame, position)[0] & ~_LZ4_STORED:
        out += frame[position : position + 4 + size]
        position += 4 + size + 4
    return bytes(out + bytes(4))


def _unlz4(data: memoryview, limit: int) -> bytes:
    """Unpack an LZ4 frame. As in Kafka, checksums of blocks are checked and the content's is not.

    Bytes behind the frame are ignored.
    """
    import cramjam

    if len(data) < 7 or data[:4] != _LZ4_MAGIC:
        raise CorruptBatchError("LZ4 data without its magic number")
    flags, block_descriptor = data[4], data[5]
    block_bytes = _LZ4_BLOCK_BYTES.get(block_descriptor >> 4)
    if flags >> 6 != 1 or not flags & 0x20 or flags & 0x03 or block_descriptor & 0x0F or block_bytes is None:
        raise CorruptBatchError("an LZ4 frame of a kind that Kafka does not know")
    position = 14 if flags & 0x08 else 6
    if len(data) <= position or _xxh32_short(bytes(data[4:position])) >> 8 & 0xFF != data[position]:
        raise CorruptBatchError("the descriptor of an LZ4 frame is broken")
    position += 1
    out = BytesIO()
    buffer = bytearray(block_bytes)
    unpacked = memoryview(buffer)
    try:
        while True:
            (size,) = _UINT32_LITTLE.unpack_from(data, position)
            position += 4
            if size == 0:
                if flags & 0x04:
                    _UINT32_LITTLE.unpack_from(data, position)  # the content's checksum
                return out.getvalue()
            stored, size = size & _LZ4_STORED, size & ~_LZ4_STORED
            if size > block_bytes or size > len(data) - position:
                raise CorruptBatchError("an LZ4 block is larger than its frame allows")
            block = bytes(data[position : position + size])
            position += size
            if flags & 0x10:
                out.write(_unlz4_checked(block_descriptor, data[position - size - 4 : position + 4]))
                position += 4
            elif stored:
                out.write(block)
            else:
                out.write(unpacked[: cramjam.lz4.decompress_block_into(block, buffer)])
            if out.tell() > limit:
                raise _too_large(limit)
    except struct.error:
        raise CorruptBatchError("an LZ4 frame ends too early") from None
    except (cramjam.DecompressionError, ValueError, OverflowError) as error:
        raise CorruptBatchError(f"broken LZ4 data: {error}") from None


def _unlz4_checked(block_descriptor: int, block: memoryview) -> bytes:
    """Unpack one block, given with its size and its checksum. The library checks the checksum of a frame made of it."""
    from cramjam import lz4

    descriptor = bytes((0x70, block_descriptor))
    checksum = _xxh32_short(descriptor) >> 8 & 0xFF
    return bytes(lz4.decompress(_LZ4_MAGIC + descriptor + bytes((checksum,)) + bytes(block) + bytes(4)))


def _xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0, for fewer than 16 bytes; the descriptor of an LZ4 frame needs no more."""
    mask = 0xFFFF_FFFF
    value = (374761393 + len(data)) & mask
    whole = len(data) & ~3
    for (word,) in _UINT32_LITTLE.iter_unpack(data[:whole]):
        value = (value + word * 3266489917) & mask
        value = (value << 17 | value >> 15) * 668265263 & mask
    for byte in data[whole:]:
        value = (value + byte * 374761393) & mask
        value = (value << 11 | value >> 21) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16


def _zstd(data: Buffer, level: int) -> bytes:
    from cramjam import zstd

    return bytes(zstd.compress(bytes(data), level=level))


def _unzstd(data: memoryview, limit: int) -> bytes:
    content_size, _ = _zstd_frame_sizes(data)
    if content_size is not None and content_size > limit:
        raise _too_large(limit)
    # The library unpacks into a buffer of fixed size. If the frame does not say its size, try larger and larger ones.
    size = min(limit, max(4 * len(data), 4096) if content_size is None else content_size)
    while True:
        out = BytesIO(bytes(size))
        try:
            with out.getbuffer() as buffer:
                unpacked = _unzstd_into(data, buffer)
            out.truncate(unpacked)
            return out.getvalue()
        except CorruptBatchError as error:
            if error.error != ErrorCode.MESSAGE_TOO_LARGE:
                raise
            if size == limit:
                raise _too_large(limit) from None
            size = min(limit, max(4 * size, 4096))


def _unzstd_into(data: memoryview, out: memoryview) -> int:
    import cramjam

    if _zstd_frame_sizes(data)[1] > _ZSTD_WINDOW_BYTES_MAX:
        raise CorruptBatchError("a zstd frame asks for too large a window")
    try:
        return int(cramjam.zstd.decompress_into(data, out))
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise _too_large(len(out)) from None
        raise CorruptBatchError(f"broken zstd data: {error}") from None


def _zstd_frame_sizes(data: memoryview) -> tuple[int | None, int]:
    """The sizes in the header of the first frame: of its content (None if not given) and of its window (RFC 8878)."""
    if len(data) < 6 or data[:4] != _ZSTD_MAGIC:
        raise CorruptBatchError("zstd data without its magic number")
    descriptor = data[4]
    position = 5
    window = 0
    single_segment = descriptor & 0x20
    if not single_segment:
        base = 1 << 10 + (data[5] >> 3)
        window = base + base // 8 * (data[5] & 7)
        position = 6
    position += (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    if not width:
        return None, window
    if len(data) < position + width:
        raise CorruptBatchError("a zstd frame ends within its header")
    return int.from_bytes(data[position : position + width], "little") + (256 if width == 2 else 0), window


_COMPRESSORS: dict[int, Callable[[Buffer, int], bytes]] = {
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
_DECOMPRESSORS: dict[int, Callable[[memoryview, int], bytes]] = {
    Compression.GZIP: _gunzip,
    Compression.SNAPPY: _unsnappy,
    Compression.LZ4: _unlz4,
    Compression.ZSTD: _unzstd,
}
