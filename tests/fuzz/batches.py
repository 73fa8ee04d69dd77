"""Damaged record batches, also damaged before compression, are appended to a log as a client's batches.

Either the append is refused with one of Kafka's errors, and the log is unchanged. Or the batch can be fetched, and our
reader and kafka-python's find the same records in it, as many as were acknowledged.
"""

import struct
from random import Random
from typing import Any

import cramjam
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import HEADER_BYTES
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import AppendOrigin
from kafka.record.default_records import DefaultRecordBatch
from mutations import INTEGERS, LONG_VARINTS, case, smallest, spoil
from simulator.env import sim_env

NOW_MS = 1_700_000_000_000
CODECS = tuple(range(5))
# Topics whose settings make the broker look into records, or not.
TOPICS: tuple[dict[str, str], ...] = (
    {},
    {"message.timestamp.type": "LogAppendTime"},
    {"cleanup.policy": "compact"},
    {"compression.type": "zstd"},
    {"compression.type": "uncompressed"},
    {"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "1000"},
)
_HEADER_FIELDS = tuple(zip((0, 8, 12, 16, 21, 23, 27, 35, 43, 51, 53, 57), "qiibhiqqqhii"))
_LZ4_FLAGS, _LZ4_BLOCK = 4, 5


def new_log(settings: dict[str, str]) -> Log:
    """The empty log of such a topic, in memory."""
    manager = LogManager(sim_env(1), "/data", BrokerConfig.of({}), lambda topic: settings)
    manager.start()
    return manager.get_or_create("topic", 0, None)


def check(seed: int, number: int) -> str | None:
    """One case; what is wrong, if anything."""
    random = case(seed, "batches", number)
    batch = hostile(random)
    topic = random.randrange(len(TOPICS))
    found = complaint(TOPICS[topic], batch)
    if found is None:
        return None
    small = smallest(batch, lambda shorter: complaint(TOPICS[topic], shorter) is not None, 60)
    return f"{found}\ntopic {TOPICS[topic]}, batch {small.hex()}"


def complaint(settings: dict[str, str], batch: bytes) -> str | None:
    """Append and read; what is wrong."""
    log = new_log(settings)
    end, size = log.log_end_offset, log.size_bytes
    try:
        result = log.append_as_leader(bytearray(batch), leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
    except Exception as error:
        return f"the append raised {error!r}"
    if result.error:
        if result.error is ErrorCode.UNKNOWN_SERVER_ERROR and not result.error_message:
            return "refused without a word"
        return None if (log.log_end_offset, log.size_bytes) == (end, size) else "refused, and yet the log has changed"
    if result.duplicate:
        return None
    if result.base_offset != end:
        return f"accepted at {result.base_offset}, the log ended at {end}"
    log.set_high_watermark(log.log_end_offset)
    data = log.read(end, 1 << 30, upper_bound=log.log_end_offset, at_least_one=True)
    if data.error:
        return f"accepted, and cannot be fetched: {data.error.name}"
    stored = bytes(data.records)
    if not _is_opened(log, batch):
        return None  # uncompressed and no setting asks: taken at its header's word, as Kafka takes it
    try:
        ours = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in record_batch.records(stored)]
    except Exception as error:
        return f"accepted, and our reader says {error!r}"
    try:
        theirs = kafka_python(stored)
    except Exception as error:
        return None if _is_taste(error, stored) else f"accepted, and kafka-python says {error!r}"
    if ours != theirs:
        return f"we read {ours[:5]}, kafka-python {theirs[:5]}"
    if len(ours) != log.log_end_offset - end:
        return f"{len(ours)} records took {log.log_end_offset - end} offsets"
    return None


def _is_opened(log: Log, batch: bytes) -> bool:
    """Whether this log opens the batch: it is compressed, or a setting needs it. Then the records must be readable."""
    config = log.config
    asks = "compact" in config.cleanup_policy or config.compression_type not in ("producer", "uncompressed")
    return bool(batch[22] & 7) or asks


def kafka_python(stored: bytes) -> list[tuple[Any, ...]]:
    """The records of a batch, as kafka-python reads them."""
    batch = DefaultRecordBatch(memoryview(stored))
    if not batch.validate_crc():
        raise ValueError("the checksum does not match")
    batch._maybe_uncompress()
    batch._buffer = bytearray(batch._buffer)
    _clear_attributes(batch._buffer, batch._pos)
    return [(r.offset, r.timestamp, r.key, r.value, [(k, v) for k, v in r.headers]) for r in batch]


def _clear_attributes(content: bytearray, position: int) -> None:
    """They are a byte, as which Kafka reads them; kafka-python reads a varint."""
    while position < len(content):
        length = shift = 0
        while True:
            byte = content[position]
            length |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                break
        content[position] = 0
        position += length >> 1


def _is_taste(error: Exception, stored: bytes) -> bool:
    """Whether kafka-python fails on a batch that Kafka 4.1 accepts, and so do we."""
    text = str(error)
    if "UnicodeDecodeError" in text:  # the key of a header
        return True
    if "contentChecksum" in text or "frameSize" in text:  # Kafka reads past both
        return stored[22] & 7 == Compression.LZ4
    streams = stored.count(b"\x82SNAPPY\0", HEADER_BYTES)  # snappy-java reads several streams
    return "snappy" in type(error).__module__ + text.lower() and streams > 1


# ---------------------------------------------------------------------- what is appended


def hostile(random: Random) -> bytes:
    """One batch."""
    kind = random.random()
    codec = random.choice(CODECS)
    content = records(random)
    count = 3
    if kind < 0.25:  # a whole batch, its fields at their extremes
        return _fields(random, assemble(random, codec, pack(random, codec, content), count))
    if kind < 0.45:  # what is in the records
        return assemble(random, codec, pack(random, codec, spoil(random, content)), count)
    if kind < 0.65:  # what is compressed
        return assemble(random, codec, spoil(random, pack(random, codec, content)), count)
    if kind < 0.8:  # how it is framed
        return assemble(random, codec, framed(random, codec, content), count)
    if kind < 0.9:  # how many there are
        counts = (0, 1, 2, 4, -1, 2**31 - 1)
        return assemble(random, codec, pack(random, codec, content), random.choice(counts))
    return spoil(random, assemble(random, codec, pack(random, codec, content), count))


def records(random: Random) -> bytes:
    """Three of them, as they stand in a batch before it is compressed."""
    made = [
        Record(
            timestamp=NOW_MS + random.choice((0, 1, -1, 5, 2**40, -(2**40))),
            key=random.choice((None, b"", b"k", b"k" * 200)),
            value=random.choice((None, b"", b"v", b"v" * random.choice((100, 5000)))),
            headers=random.choice(([], [], [("h", b"x")], [("", None), ("h", b"")])),
        )
        for _ in range(3)
    ]
    return bytes(build(made)[HEADER_BYTES:])


def pack(random: Random, codec: int, content: bytes) -> bytes:
    """Compressed as some client would."""
    if codec == Compression.SNAPPY and random.random() < 0.5:
        return bytes(cramjam.snappy.compress_raw(content))
    if codec == Compression.LZ4 and random.random() < 0.5:
        return lz4_frame(random, content)
    return compress(Compression(codec), content)


def lz4_frame(random: Random, content: bytes) -> bytes:
    """With what Kafka's writer leaves out: checksums, sizes, dependent blocks."""
    packer = cramjam.lz4.Compressor(level=1, content_checksum=random.random() < 0.5, block_linked=random.random() < 0.3)
    packer.compress(content)
    return bytes(packer.finish())


def framed(random: Random, codec: int, content: bytes) -> bytes:
    """Twice, in pieces, cut, with something behind it, with sizes that lie."""
    whole = pack(random, codec, content)
    half = len(content) // 2
    kind = random.randrange(7)
    if kind == 0:
        return pack(random, codec, content[:half]) + pack(random, codec, content[half:])
    if kind == 1:
        return pack(random, codec, whole)
    if kind == 2:
        return whole[: random.randrange(len(whole) + 1)]
    if kind == 3:
        return whole + random.choice((b"\0", bytes(100), b"garbage", whole, random.randbytes(30)))
    if kind == 4:
        return _lying_size(random, codec, bytearray(whole))
    if kind == 5:
        return pack(random, codec, b"") + whole + pack(random, codec, b"")
    return random.choice((b"", pack(random, codec, b""), pack(random, codec, content * 2), content))


def _lying_size(random: Random, codec: int, data: bytearray) -> bytes:
    """The place where a codec says how large something is, with another number."""
    size = random.choice(INTEGERS) & 0xFFFF_FFFF
    if codec == Compression.GZIP and len(data) > 8:  # length and checksum of the content at the end
        data[-4 - random.choice((0, 4)) :][:4] = struct.pack("<I", size)
        at = len(data) - random.choice((4, 8))
        data[at : at + 4] = struct.pack("<I", size)
    elif codec == Compression.SNAPPY:
        if bytes(data[:8]) == b"\x82SNAPPY\0":
            data[16:20] = struct.pack(">I", size)
        else:
            data[0:2] = random.choice(LONG_VARINTS)
    elif codec == Compression.LZ4:
        at = random.choice((4, 5, 6, 7))
        data[at] = random.randrange(256)
        if random.random() < 0.7:  # with a header checksum that fits
            from barnabas.protocol.compression import _xxh32_short

            end = 14 if data[4] & 8 else 6
            if len(data) > end:
                data[end] = _xxh32_short(bytes(data[4:end])) >> 8 & 0xFF
        if random.random() < 0.3:
            data[7:11] = struct.pack("<I", size)
    elif codec == Compression.ZSTD:
        data[4] = random.randrange(256)
        data[5:9] = struct.pack("<I", size)
    return bytes(data)


def assemble(random: Random, codec: int, packed: bytes, count: int) -> bytes:
    """A batch around it, with a checksum that fits."""
    log_append_time = 8 if random.random() < 0.05 else 0
    body = struct.pack(
        ">hiqqqhii",
        codec | log_append_time,
        max(-(2**31), count - 1),
        NOW_MS,
        NOW_MS,
        random.choice((-1, -1, -1, 7)),
        0,
        random.choice((-1, 0)),
        count,
    )
    body += packed
    return struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body


def _fields(random: Random, batch: bytes) -> bytes:
    """Some header fields at their extremes, mostly with a checksum that fits."""
    spoilt = bytearray(batch)
    for _ in range(random.choice((1, 1, 2, 4))):
        at, kind = random.choice(_HEADER_FIELDS)
        width = struct.calcsize(kind)
        value = random.choice((*INTEGERS, len(batch), 3, 2, random.getrandbits(16)))
        spoilt[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")
    if random.random() < 0.8:
        struct.pack_into(">I", spoilt, 17, crc32c(memoryview(spoilt)[21:]))
    return bytes(spoilt)
