"""What a leader checks of records before it appends them, and what it changes in them, as Kafka's LogValidator does.

The leader looks at the header of each batch, and at the checksum of those that it has not made itself. Because garbage
can have a fitting checksum, it also counts the records: there must be as many as the header says. It opens the records
where a client compressed them, and where a setting of the topic asks what no header tells: keys (compaction),
timestamps that may be out of bounds, another codec than the producer's. (Kafka opens every record. To open uncompressed
ones, too, would take us more time than everything else together.) A refusal is a value, not an exception.
"""

from enum import Enum
from typing import Final

from barnabas.config.topic import TopicConfig
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    INT32,
    LOG_APPEND_TIME,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
)
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.record_batch import BatchHeader, PlainBatch
from barnabas.runtime.ports import Buffer

_LONG_MAX: Final = 2**63 - 1
_CODECS: Final = {codec.name.lower(): codec for codec in Compression} | {"uncompressed": Compression.NONE}
# How the compressed part of a batch must begin. Snappy has no mark.
_CODEC_MARKS: Final = {1: b"\x1f\x8b", 3: b"\x04\x22\x4d\x18", 4: b"\x28\xb5\x2f\xfd"}


# What takes some milliseconds: records to open, records to count, bytes to unpack, bytes to pack in another codec.
OPENED_AT_ONCE_MAX: Final = 10_000
COUNTED_AT_ONCE_MAX: Final = 50_000
UNPACKED_AT_ONCE_BYTES_MAX: Final = 1 << 20
CONVERTED_AT_ONCE_BYTES_MAX: Final = 64 << 10


class AppendOrigin(Enum):
    """Who appends. That decides which checks apply."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    COORDINATOR_OF_VERSION_2 = "coordinator of transaction version 2"  # its markers raise the producer's epoch


_CLIENT: Final = AppendOrigin.CLIENT
_RESULT_FIELDS: Final = (
    "base_offset",
    "duplicate",
    "error",
    "error_message",
    "last_offset",
    "log_append_time_ms",
    "log_start_offset",
    "record_errors",
)


class AppendResult:
    """What became of an append. Offsets are -1 when nothing was appended.

    `log_append_time_ms` is -1 unless the topic says LogAppendTime; for a duplicate it is the timestamp of the stored
    batch. `record_errors` are (index in the batch, message). `log_start_offset` is -1 if Kafka answers -1.
    """

    __slots__ = _RESULT_FIELDS

    def __init__(
        self,
        error: ErrorCode,
        error_message: str | None = None,
        *,
        base_offset: int = -1,
        last_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        record_errors: list[tuple[int, str | None]] | None = None,
        duplicate: bool = False,
    ) -> None:
        self.error = error
        self.error_message = error_message
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.record_errors: list[tuple[int, str | None]] = [] if record_errors is None else record_errors
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"AppendResult({', '.join(f'{name}={getattr(self, name)!r}' for name in _RESULT_FIELDS)})"


class Validated:
    """Batches that may be appended: their bytes, and the header and position of each."""

    __slots__ = ("headers", "log_append_time_ms", "positions", "records")

    def __init__(
        self, records: bytearray | memoryview, headers: list[BatchHeader], positions: list[int], log_append_time_ms: int
    ) -> None:
        self.records = records
        self.headers = headers
        self.positions = positions
        self.log_append_time_ms = log_append_time_ms


# What a leader is asked to append: the bytes, or what `validate_for_leader` made of them before.
Appendable = Buffer | Validated | AppendResult


def validate_for_leader(
    records: Buffer | PlainBatch, config: TopicConfig, origin: AppendOrigin, now_ms: int, topic_partition: str
) -> Validated | AppendResult:
    """Check batches that a leader is to append, and rewrite them if the topic's settings want that."""
    if isinstance(records, PlainBatch):
        if (
            len(records.data) <= config.max_message_bytes
            and config.compression_type == "producer"
            and config.message_timestamp_type == "CreateTime"
        ):
            return Validated(records.data, [records.header], [0], -1)  # nearly always
        records = records.data
    size = len(records)
    if not size:
        return AppendResult(ErrorCode.INVALID_RECORD, "no records")
    view = memoryview(records)
    if view.readonly:
        view = memoryview(bytearray(records))
    headers: list[BatchHeader] = []
    positions: list[int] = []
    position = 0
    is_client = origin is _CLIENT
    while position < size:
        header = _check_header(view, position, config, is_client)
        if type(header) is AppendResult:
            return header
        assert type(header) is BatchHeader
        headers.append(header)
        positions.append(position)
        position += header.size_bytes
    return _apply_topic_settings(view, headers, positions, config, origin, now_ms, topic_partition)


def validate_for_follower(records: Buffer, log_end_offset: int) -> Validated | AppendResult:
    """Check batches that a leader has sent: they are whole, and their offsets rise from the log end on."""
    view = memoryview(records)
    size, position, expected = len(view), 0, log_end_offset
    headers, positions = [], []
    try:
        while position < size:
            if size - position < HEADER_BYTES:
                raise CorruptBatchError("the last batch is cut off")
            header = record_batch.read_header(view, position)
            end = position + header.size_bytes
            if end > size:
                raise CorruptBatchError("the last batch is cut off")
            if header.base_offset < expected:
                message = f"the batch begins at {header.base_offset}, expected {expected} or later"
                return AppendResult(ErrorCode.OFFSET_OUT_OF_RANGE, message, base_offset=header.base_offset)
            if not record_batch.crc_is_valid(view[position:end]):
                raise CorruptBatchError(f"the checksum of the batch at offset {header.base_offset} does not match")
            headers.append(header)
            positions.append(position)
            expected = header.base_offset + header.last_offset_delta + 1
            position = end
    except CorruptBatchError as error:
        return AppendResult(ErrorCode.CORRUPT_MESSAGE, str(error))
    return Validated(view, headers, positions, -1)


def takes_long(batch: Buffer, config: TopicConfig) -> bool:
    """Whether `validate_for_leader` of a client's batch may take more than some milliseconds.

    Then it is better done in a thread: it depends on its arguments alone. To open a record takes about 0.7 µs, to count
    it 0.12 µs, to pack it anew far more.
    """
    size, (count,) = len(batch), INT32.unpack_from(batch, RECORD_COUNT_AT)
    codec = batch[ATTRIBUTES_AT + 1] & CODEC_MASK
    if config.compression_type != "producer" and codec != _CODECS[config.compression_type]:
        return size > CONVERTED_AT_ONCE_BYTES_MAX or count > OPENED_AT_ONCE_MAX
    if codec:
        return size > UNPACKED_AT_ONCE_BYTES_MAX or count > OPENED_AT_ONCE_MAX
    return bool(count > (OPENED_AT_ONCE_MAX if "compact" in config.cleanup_policy else COUNTED_AT_ONCE_MAX))


def _check_header(view: memoryview, position: int, config: TopicConfig, is_client: bool) -> BatchHeader | AppendResult:
    try:
        header = record_batch.read_header(view, position)
    except CorruptBatchError as error:
        return AppendResult(error.error, str(error))
    size = header.size_bytes
    end = position + size
    if end > len(view):
        return AppendResult(ErrorCode.CORRUPT_MESSAGE, "the last batch is cut off")
    if is_client and header.base_offset != 0:
        message = f"the base offset of the batch should be 0, but it is {header.base_offset}"
        return AppendResult(ErrorCode.INVALID_RECORD, message)
    if size > config.max_message_bytes:
        message = f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}"
        return AppendResult(ErrorCode.MESSAGE_TOO_LARGE, message)
    if is_client and record_batch.checksum(view, position, end) != header.crc:  # others were made here, just now
        return AppendResult(ErrorCode.CORRUPT_MESSAGE, "the checksum does not match")
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        message = f"{header.record_count} records do not span {header.last_offset_delta + 1} offsets"
        return AppendResult(ErrorCode.INVALID_RECORD, message)
    attributes = header.attributes
    if attributes & CODEC_MASK > 4:
        return AppendResult(ErrorCode.INVALID_RECORD, f"codec {attributes & CODEC_MASK} is not known")
    if is_client:
        if attributes & CONTROL:
            return AppendResult(ErrorCode.INVALID_RECORD, "clients may not write control records")
        if header.producer_id >= 0 and header.base_sequence < 0:
            message = f"base sequence {header.base_sequence} with a producer id"
            return AppendResult(ErrorCode.INVALID_RECORD, message)
    if attributes & CODEC_MASK:
        mark = _CODEC_MARKS.get(attributes & CODEC_MASK)
        if mark is not None and view[position + HEADER_BYTES : position + HEADER_BYTES + len(mark)] != mark:
            return AppendResult(ErrorCode.UNKNOWN_SERVER_ERROR, "the records are not in the codec that the batch names")
    return header


def _apply_topic_settings(
    view: memoryview,
    headers: list[BatchHeader],
    positions: list[int],
    config: TopicConfig,
    origin: AppendOrigin,
    now_ms: int,
    topic_partition: str,
) -> Validated | AppendResult:
    log_append_time = config.message_timestamp_type == "LogAppendTime"
    compacted = "compact" in config.cleanup_policy
    target = None if config.compression_type == "producer" else _CODECS[config.compression_type]
    rebuilt = False
    for slot, header in enumerate(headers):
        attributes = header.attributes
        if attributes & CONTROL:  # control batches keep the coordinator's time and codec
            continue
        position = positions[slot]
        if origin is _CLIENT:
            lowest = now_ms - config.message_timestamp_before_max_ms
            highest = now_ms + config.message_timestamp_after_max_ms
            bounded_below = config.message_timestamp_before_max_ms != _LONG_MAX
            check_times = not log_append_time and (
                bounded_below or header.max_timestamp > highest or bool(attributes & LOG_APPEND_TIME)
            )
            batch = view[position : position + header.size_bytes]
            if compacted or check_times or attributes & CODEC_MASK or target:
                bounds = None if log_append_time else (lowest, highest)
                refused = _check_records(batch, header, compacted, bounds, config, topic_partition)
            else:
                refused = _check_lengths(batch, header)
            if refused is not None:
                return refused
        if target is not None and target != attributes & CODEC_MASK:
            rebuilt = True
        elif log_append_time:
            record_batch.patch_log_append_time(view, position, now_ms)
            header.attributes |= LOG_APPEND_TIME
            header.max_timestamp = now_ms
    append_time = now_ms if log_append_time else -1
    if rebuilt:
        assert target is not None
        return _rebuild(view, headers, positions, config, target, append_time)
    return Validated(view, headers, positions, append_time)


def _check_lengths(batch: memoryview, header: BatchHeader) -> AppendResult | None:
    try:
        record_batch.check_lengths(batch, header)
    except CorruptBatchError as error:
        return AppendResult(error.error, str(error))
    return None


def _check_records(
    batch: memoryview,
    header: BatchHeader,
    compacted: bool,
    bounds: tuple[int, int] | None,
    config: TopicConfig,
    topic_partition: str,
) -> AppendResult | None:
    """Check structure, keys and timestamps of every record, and correct the largest timestamp in the header."""
    # Any client can send a few bytes that unpack to gigabytes, or to millions of records. One batch after the other is
    # unpacked, so these two bound the memory and the time of all of them.
    if header.record_count > config.max_message_records:
        message = f"{header.record_count} records in one batch, max.message.records is {config.max_message_records}"
        return AppendResult(ErrorCode.MESSAGE_TOO_LARGE, message)
    unpacked_bytes_max = max(config.max_message_unpacked_bytes, config.max_message_bytes)
    errors: list[tuple[int, str | None]] = []
    bad_timestamp = False
    log_append_time = bool(header.attributes & LOG_APPEND_TIME)
    try:
        checks = record_batch.check_records(batch, header, max_bytes=unpacked_bytes_max)
        keys_are_fine = not compacted or checks.first_keyless_index is None
        times_are_fine = bounds is None or (
            not log_append_time and bounds[0] <= checks.min_timestamp and checks.max_timestamp <= bounds[1]
        )
        if keys_are_fine and times_are_fine:
            if bounds is not None and checks.max_timestamp != header.max_timestamp:
                record_batch.patch_max_timestamp(batch, 0, checks.max_timestamp)
                header.max_timestamp = checks.max_timestamp
            return None
        for index, record in enumerate(record_batch.records(batch, max_bytes=unpacked_bytes_max)):
            if compacted and record.key is None:
                message = f"Compacted topic cannot accept message without key in topic partition {topic_partition}"
                errors.append((index, message))
            elif bounds is not None:
                if log_append_time:
                    bad_timestamp = True
                    message = "Producers may not set the timestamp type LogAppendTime"
                    errors.append((index, message))
                elif record.timestamp != -1 and not bounds[0] <= record.timestamp <= bounds[1]:
                    bad_timestamp = True
                    message = (
                        f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range. "
                        f"The timestamp should be within [{bounds[0]}, {bounds[1]}]"
                    )
                    errors.append((index, message))
    except CorruptBatchError as error:
        if error.error is ErrorCode.CORRUPT_MESSAGE:  # the codec cannot unpack it: sending it again would not help
            return AppendResult(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        return AppendResult(error.error, str(error))
    if not errors:
        return None
    if bad_timestamp:
        message = "One or more records have been rejected due to invalid timestamp"
        return AppendResult(ErrorCode.INVALID_TIMESTAMP, message, record_errors=errors)
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in errors[:3])
    message = (
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )
    return AppendResult(ErrorCode.INVALID_RECORD, message, record_errors=errors)


def _level(config: TopicConfig, codec: Compression) -> int | None:
    if codec is Compression.GZIP:
        return config.compression_gzip_level
    if codec is Compression.LZ4:
        return config.compression_lz4_level
    if codec is Compression.ZSTD:
        return config.compression_zstd_level
    return None


def _rebuild(
    view: memoryview,
    headers: list[BatchHeader],
    positions: list[int],
    config: TopicConfig,
    codec: Compression,
    append_time_ms: int,
) -> Validated | AppendResult:
    """Pack every data batch in the topic's codec."""
    rebuilt = bytearray()
    new_positions = []
    for header, position in zip(headers, positions):
        batch = view[position : position + header.size_bytes]
        new_positions.append(len(rebuilt))
        if header.attributes & CONTROL or header.attributes & CODEC_MASK == codec:
            rebuilt += batch
            continue
        try:
            records = list(record_batch.records(batch))
        except CorruptBatchError as error:
            return AppendResult(error.error, str(error))
        new = record_batch.build(
            records,
            base_offset=header.base_offset,
            compression=codec,
            level=_level(config, codec),
            log_append_time_ms=None if append_time_ms < 0 else append_time_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=bool(header.attributes & TRANSACTIONAL),
        )
        if len(new) > config.max_message_bytes:
            message = (
                f"the batch has {len(new)} bytes in the topic's codec, max.message.bytes is {config.max_message_bytes}"
            )
            return AppendResult(ErrorCode.MESSAGE_TOO_LARGE, message)
        rebuilt += new
    new_headers = [record_batch.read_header(rebuilt, position) for position in new_positions]
    return Validated(rebuilt, new_headers, new_positions, append_time_ms)
