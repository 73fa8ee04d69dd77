"""Record batches (magic 2). Producers send them, logs hold them and consumers read them, always as the same bytes.

A batch is a header of 61 bytes and its records, compressed as one piece when a codec is set:

    base_offset int64, batch_length int32 (what follows it), partition_leader_epoch int32, magic int8, crc uint32,
    attributes int16, last_offset_delta int32, base_timestamp int64, max_timestamp int64, producer_id int64,
    producer_epoch int16, base_sequence int32, record_count int32

The CRC-32C covers everything from the attributes on, so a leader can set base offset and leader epoch in place. Batches
follow one another without a count. The older message sets (magic 0 and 1) are recognised but not read.

Produce and Fetch need the header and the checksum only. `check_records` checks the rules about single records, and
`records` makes objects of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from barnabas.protocol import batch_records
from barnabas.protocol.batch_layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    INT16,
    INT32,
    INT64,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PREFIX,
    PREFIX_BYTES,
    TRANSACTIONAL,
    UINT32,
)
from barnabas.protocol.batch_records import SMALLEST_RECORD_BYTES, RecordChecks, broken, long_unsigned
from barnabas.protocol.batch_records import Record as Record
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.codec import native_codec
from barnabas.protocol.compression import Buffer, Compression, compress, decompress
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.varint import encode_signed

UNPACKED_BYTES_MAX: Final = 2**31 - 1  # for batches in a log: their leader has applied max.message.unpacked.bytes
"""Where no caller says otherwise, what one batch may unpack to."""


_HEADER_FIELDS: Final = (
    "attributes",
    "base_offset",
    "base_sequence",
    "base_timestamp",
    "batch_length",
    "crc",
    "last_offset_delta",
    "magic",
    "max_timestamp",
    "partition_leader_epoch",
    "producer_epoch",
    "producer_id",
    "record_count",
)


class BatchHeader:
    """The fields of a batch's header, under Kafka's names."""

    __slots__ = _HEADER_FIELDS

    def __init__(
        self,
        base_offset: int,
        batch_length: int,
        partition_leader_epoch: int,
        magic: int,
        crc: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
    ) -> None:
        self.base_offset = base_offset
        self.batch_length = batch_length
        self.partition_leader_epoch = partition_leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.record_count = record_count

    def __repr__(self) -> str:
        return f"BatchHeader({', '.join(f'{name}={getattr(self, name)}' for name in _HEADER_FIELDS)})"

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch."""
        return self.batch_length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch ever had. Compaction does not change it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset behind the last one, where the next batch may begin."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the time `max_timestamp`, which the leader has set."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction: records, or its end marker (if `is_control`)."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether a broker has written the batch for brokers: a transaction marker or a leader change."""
        return bool(self.attributes & CONTROL)

    def pack(self) -> bytes:
        """The 61 bytes of the header, with `crc` as it is."""
        return HEADER.pack(
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        )


# Reading


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, after a check of its length, format and counts. The batch itself may be cut off.

    CorruptBatchError: INVALID_RECORD for the older formats, CORRUPT_MESSAGE for anything else.
    """
    if len(buffer) - position < HEADER_BYTES:
        if len(buffer) - position > MAGIC_AT and buffer[position + MAGIC_AT] < MAGIC:
            raise _old_format(buffer[position + MAGIC_AT])
        raise CorruptBatchError("a batch ends within its header")
    # One by one: a compiled call of a constructor with *arguments goes the way of Python.
    (
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = HEADER.unpack_from(buffer, position)
    header = BatchHeader(
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    if header.magic != MAGIC:
        if header.magic in (0, 1):
            raise _old_format(header.magic)
        raise CorruptBatchError(f"no batch has the format {header.magic}")
    if header.batch_length < HEADER_BYTES - PREFIX_BYTES:
        raise CorruptBatchError(f"a batch of length {header.batch_length} is shorter than its header")
    if header.record_count < 0 or header.last_offset_delta < 0 or header.record_count > header.last_offset_delta + 1:
        raise CorruptBatchError(
            f"{header.record_count} records do not fit a last offset delta of {header.last_offset_delta}",
            ErrorCode.INVALID_RECORD,
        )
    return header


def _old_format(number: int) -> CorruptBatchError:
    return CorruptBatchError(f"message format {number} is not supported", ErrorCode.INVALID_RECORD)


def batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each batch with its header. CorruptBatchError if the last one is cut off."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        header = read_header(view, position)
        end = position + header.batch_length + PREFIX_BYTES
        if end > len(view):
            raise CorruptBatchError(f"a batch of {header.size_bytes} bytes is cut off at {len(view) - position}")
        yield header, view[position:end]
        position = end


def checksum(buffer: memoryview, position: int, end: int) -> int:
    """The CRC that the batch from `position` to `end` must have."""
    return crc32c(buffer[position + ATTRIBUTES_AT : end])


def crc_is_valid(batch: Buffer) -> bool:
    """Whether the CRC of a whole batch is right."""
    crc: int = UINT32.unpack_from(batch, CRC_AT)[0]
    return checksum(memoryview(batch), 0, len(batch)) == crc


def check_records(batch: Buffer, header: BatchHeader, *, max_bytes: int = UNPACKED_BYTES_MAX) -> RecordChecks:
    """Check every record of a client's batch: its structure, offsets 0, 1, 2, …, and that no bytes are left over.

    CorruptBatchError; its code is INVALID_RECORD for wrong offsets. Timestamps in the result are those of the records,
    whatever the batch's timestamp type; −1 if there are none.
    """
    return batch_records.check(unpacked(batch, header, max_bytes), header.record_count, header.base_timestamp)


_count_records: Final = None if native_codec is None else native_codec.count_records  # None: the pure build


def check_lengths(batch: Buffer, header: BatchHeader) -> None:
    """Check that the records of an uncompressed batch are as many as its header says, and fill it exactly.

    Their content is not checked, so this takes a tenth of the time of `check_records`. CorruptBatchError with
    INVALID_RECORD. native/batch.c finds nearly all that are right.
    """
    data = memoryview(batch)[: header.size_bytes]
    if _count_records is not None and 0 < header.record_count == _count_records(data, HEADER_BYTES):
        return
    size, position, found = len(data), HEADER_BYTES, 0
    try:
        while position < size:
            length = data[position]
            if length < 128:
                position += 1 + (length >> 1)
            else:
                byte = data[position + 1]
                if byte < 128:
                    position += 2 + ((length & 127 | byte << 7) >> 1)
                else:
                    length, position = long_unsigned(data, position)
                    position += length >> 1
            if length & 1:
                raise broken("a record of negative length")
            found += 1
    except IndexError:
        raise broken("the records of a batch end too early") from None
    if position != size:
        raise broken("a record is longer than its batch")
    if found != header.record_count:
        raise broken(f"{found} records in a batch of {header.record_count}")


def records(batch: Buffer, *, max_bytes: int = UNPACKED_BYTES_MAX) -> Iterator[Record]:
    """The records of one whole batch, unpacked to at most `max_bytes`. CorruptBatchError when anything is broken."""
    header = read_header(batch)
    return records_in(unpacked(batch, header, max_bytes), header)


def records_in(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records of a batch whose unpacked records are `data`. CorruptBatchError when anything is broken."""
    return batch_records.iterate(
        data,
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.is_log_append_time else None,
    )


def unpacked(batch: Buffer, header: BatchHeader, max_bytes: int) -> bytes:
    """The unpacked records as bytes, which are faster to read than a view, and of which keys and values are slices."""
    packed = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    codec = header.attributes & CODEC_MASK
    data = decompress(codec, packed, max_bytes) if codec else bytes(packed)
    if header.record_count * SMALLEST_RECORD_BYTES > len(data):
        raise broken(f"{header.record_count} records cannot be in {len(data)} bytes")
    return data


# Writing


def build(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    log_append_time_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """A new batch of at least one record. Offsets count from `base_offset`; the records' own offsets are ignored."""
    if not records:
        raise ValueError("a new batch needs a record")
    base_timestamp = records[0].timestamp
    payload = bytearray()
    for delta, item in enumerate(records):
        batch_records.write(payload, item, item.timestamp - base_timestamp, delta)
    attributes = int(compression)
    max_timestamp = max(item.timestamp for item in records)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time_ms
    if transactional:
        attributes |= TRANSACTIONAL
    if control:
        attributes |= CONTROL
    header = BatchHeader(
        base_offset,
        0,
        partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        len(records) - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return _assemble(header, payload, level)


class PlainRecords:
    """Writes records of one timestamp and without headers, as coordinators append them.

    `parts` are their bytes. Code that writes a record into `parts` itself begins it with `start_of_record` and raises
    `count`.
    """

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        self.count = 0
        self.parts: list[bytes] = []

    def add(self, key: bytes, value: bytes | None) -> None:
        if native_codec is not None:
            self.parts.append(native_codec.plain_record(self.count, key, value))
            self.count += 1
            return
        offset_delta = SHORT_SIGNED[self.count]
        key_length = SHORT_SIGNED[len(key)]
        value_length = SHORT_SIGNED[-1 if value is None else len(value)]
        content = value or b""
        size = len(offset_delta) + len(key_length) + len(key) + len(value_length) + len(content) + len(NO_HEADERS)
        self.parts += (start_of_record(size), offset_delta, key_length, key, value_length, content, NO_HEADERS)
        self.count += 1


def start_of_record(size: int) -> bytes:
    """The bytes before the offset delta of a plain record: length, attributes 0, timestamp delta 0.

    `size`: how many bytes of the record follow.
    """
    return SHORT_SIGNED[2 + size] + b"\0\0"


class _ShortSigned(dict[int, bytes]):
    """The encodings of small numbers, kept from their first use on."""

    __slots__ = ()

    def __missing__(self, value: int) -> bytes:
        encoded = encode_signed(value)
        if -1 <= value < 2048:
            self[value] = encoded
        return encoded


SHORT_SIGNED: Final = _ShortSigned()
NO_HEADERS: Final = b"\0"


class PlainBatch:
    """A batch that was made here just now, and its header (without the checksum)."""

    __slots__ = ("data", "header")

    def __init__(self, data: bytearray, header: BatchHeader) -> None:
        self.data = data
        self.header = header


def build_plain(
    records: PlainRecords,
    timestamp: int,
    *,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> PlainBatch:
    """A new batch of records without headers that have one timestamp, as coordinators write them.

    `producer_id`: the batch is part of that producer's transaction.
    """
    count = records.count
    if not count:
        raise ValueError("a new batch needs a record")
    parts = records.parts
    if codec:
        parts = [compress(Compression(codec), b"".join(parts))]
    attributes = codec if producer_id < 0 else codec | TRANSACTIONAL
    data = _assemble_plain(parts, count, timestamp, attributes, producer_id, producer_epoch, base_sequence)
    length, last = len(data) - PREFIX_BYTES, count - 1
    # One by one: a compiled call of a constructor with *arguments goes the way of Python.
    header = BatchHeader(
        0,
        length,
        -1,
        MAGIC,
        0,
        attributes,
        last,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return PlainBatch(data, header)


def assemble_plain(
    parts: list[bytes],
    count: int,
    timestamp: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    /,
) -> bytearray:
    """The batch of these bytes. Its twin in C: native/batch.c."""
    batch = bytearray().join((bytes(HEADER_BYTES), *parts))
    length = len(batch) - PREFIX_BYTES
    HEADER.pack_into(
        batch,
        0,
        0,
        length,
        -1,
        MAGIC,
        0,
        attributes,
        count - 1,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    _set_crc(batch, 0, len(batch))
    return batch


_assemble_plain: Final = assemble_plain if native_codec is None else native_codec.assemble_plain


def rebuild(header: BatchHeader, records: Iterable[Record], *, delete_horizon_ms: int | None = None) -> bytearray:
    """The batch with these of its records (perhaps none), at their own offsets. Compaction writes such batches.

    The batch's offsets, producer, sequence and codec stay. `delete_horizon_ms`: the time from which tombstones in it
    may be removed; None keeps what is there. It is in the field of the base timestamp, and the timestamp deltas are
    relative to it (KIP-534).
    """
    kept = list(records)
    attributes = header.attributes
    if not kept:
        attributes &= ~CODEC_MASK
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    elif attributes & DELETE_HORIZON:
        base_timestamp = header.base_timestamp
    else:
        base_timestamp = kept[0].timestamp if kept else -1
    payload = bytearray()
    for item in kept:
        batch_records.write(payload, item, item.timestamp - base_timestamp, item.offset - header.base_offset)
    if attributes & LOG_APPEND_TIME or not kept:
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = max(item.timestamp for item in kept)
    new = BatchHeader(
        header.base_offset,
        0,
        header.partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(kept),
    )
    return _assemble(new, payload, None)


def _assemble(header: BatchHeader, payload: bytearray, level: int | None) -> bytearray:
    codec = header.attributes & CODEC_MASK
    packed: Buffer = compress(Compression(codec), payload, level) if codec else payload
    header.batch_length = HEADER_BYTES - PREFIX_BYTES + len(packed)
    batch = bytearray(header.pack())
    batch += packed
    _set_crc(batch, 0, len(batch))
    return batch


def _set_crc(buffer: bytearray | memoryview, position: int, size: int) -> None:
    crc = checksum(memoryview(buffer), position, position + size)
    UINT32.pack_into(buffer, position + CRC_AT, crc)


_native_patch: Final = None if native_codec is None else native_codec.patch


def patch(buffer: bytearray | memoryview, position: int, base_offset: int, partition_leader_epoch: int) -> None:
    """Give the batch at `position` its place in the log. The CRC covers neither field."""
    assert base_offset >= 0, "a batch before the first offset"
    if _native_patch is not None:
        _native_patch(buffer, position, base_offset, partition_leader_epoch)
        return
    INT64.pack_into(buffer, position, base_offset)
    INT32.pack_into(buffer, position + LEADER_EPOCH_AT, partition_leader_epoch)


def patch_log_append_time(buffer: bytearray | memoryview, position: int, log_append_time_ms: int) -> None:
    """Stamp the whole batch at `position` with the leader's time and compute its CRC again."""
    _, length = PREFIX.unpack_from(buffer, position)
    (attributes,) = INT16.unpack_from(buffer, position + ATTRIBUTES_AT)
    INT16.pack_into(buffer, position + ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    INT64.pack_into(buffer, position + MAX_TIMESTAMP_AT, log_append_time_ms)
    _set_crc(buffer, position, length + PREFIX_BYTES)


def patch_max_timestamp(buffer: bytearray | memoryview, position: int, max_timestamp: int) -> None:
    """Correct the maximum timestamp that a producer has set, and compute the CRC again."""
    _, length = PREFIX.unpack_from(buffer, position)
    INT64.pack_into(buffer, position + MAX_TIMESTAMP_AT, max_timestamp)
    _set_crc(buffer, position, length + PREFIX_BYTES)
