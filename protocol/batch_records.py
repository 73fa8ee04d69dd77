"""The records inside a batch. A record is its length and these fields; lengths and deltas are zigzag varints:

    attributes int8 (0), timestamp delta, offset delta, key and value (length, −1 for null, and bytes), count of
    headers, and each header's key (length and UTF-8) and value (length, −1 for null, and bytes).

The loops run for every record that is loaded, compacted or checked. So varints of one or two bytes, which are nearly
all, are read without a call.
"""

from collections.abc import Iterator
from typing import Final

from barnabas.protocol.compression import Buffer
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.varint import encode_signed

SMALLEST_RECORD_BYTES: Final = 7
_TIMESTAMPS_END: Final = 1 << 63
_TWO_BYTES_END: Final = 1 << 14  # of varints


def broken(message: str) -> CorruptBatchError:
    """The error for records that are not what their batch says."""
    return CorruptBatchError(message, ErrorCode.INVALID_RECORD)


class Record:
    """One record. A null key or value is None; headers keep order and duplicates."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self,
        offset: int = -1,
        timestamp: int = -1,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = [] if headers is None else headers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.offset, self.timestamp, self.key, self.value, self.headers) == (
            other.offset,
            other.timestamp,
            other.key,
            other.value,
            other.headers,
        )

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


class RecordChecks(NamedTuple):
    """What `check_records` found."""

    min_timestamp: int
    max_timestamp: int
    max_timestamp_offset_delta: int
    first_keyless_index: int | None


def check(data: bytes, count: int, base_timestamp: int) -> RecordChecks:
    """Check every record of a client's batch: its structure, offset deltas 0, 1, 2, …, and that no bytes are left.

    CorruptBatchError with INVALID_RECORD, as Kafka answers, for the first record that is wrong.
    """
    size = len(data)
    lowest: int | None = None
    highest = highest_at = 0
    first_keyless: int | None = None
    position = 0
    try:
        for index in range(count):
            length = data[position]
            position += 1
            if length > 127:
                byte = data[position]
                if byte < 128:
                    length = length & 127 | byte << 7
                    position += 1
                else:
                    length, position = long_unsigned(data, position - 1)
            if length & 1:
                raise broken("a record of negative length")
            end = position + (length >> 1)
            if end > size:
                raise broken("a record is longer than its batch")
            delta = data[position + 1]
            position += 2
            if delta > 127:
                byte = data[position]
                if byte < 128:
                    delta = delta & 127 | byte << 7
                    position += 1
                else:
                    delta, position = long_unsigned(data, position - 1, 10)
            delta = delta >> 1 ^ -(delta & 1)
            if lowest is None:
                lowest = highest = delta
            elif delta > highest:
                highest, highest_at = delta, index
            elif delta < lowest:
                lowest = delta
            offset_delta = data[position]
            position += 1
            if offset_delta > 127:
                byte = data[position]
                if byte < 128:
                    offset_delta = offset_delta & 127 | byte << 7
                    position += 1
                else:
                    offset_delta, position = long_unsigned(data, position - 1)
            if offset_delta != index << 1:
                raise broken(f"record {index} has another offset delta")
            length = data[position]
            position += 1
            if length > 127:
                byte = data[position]
                if byte < 128:
                    length = length & 127 | byte << 7
                    position += 1
                else:
                    length, position = long_unsigned(data, position - 1)
            if not length & 1:
                position += length >> 1
            elif first_keyless is None:
                first_keyless = index
            length = data[position]
            position += 1
            if length > 127:
                byte = data[position]
                if byte < 128:
                    length = length & 127 | byte << 7
                    position += 1
                else:
                    length, position = long_unsigned(data, position - 1)
            if not length & 1:
                position += length >> 1
            if position >= end:
                raise broken(f"record {index} is not as long as it says")
            if data[position]:
                _, position = _headers(data, position, end)
            else:
                position += 1
            if position != end:
                raise broken(f"record {index} is not as long as it says")
    except IndexError:
        raise broken("the records of a batch end too early") from None
    if position != size:
        raise broken("bytes are left over behind the records of a batch")
    if lowest is None:
        return RecordChecks(-1, -1, -1, None)
    if base_timestamp + lowest < -_TIMESTAMPS_END or base_timestamp + highest >= _TIMESTAMPS_END:
        raise broken("a timestamp has more than 64 bits")
    return RecordChecks(base_timestamp + lowest, base_timestamp + highest, highest_at, first_keyless)


def iterate(
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[Record]:
    """The records of a batch as objects; `append_time`, unless None, is the timestamp of all. CorruptBatchError."""
    size = len(data)
    new = Record.__new__
    position = 0
    try:
        for _ in range(count):
            length = data[position]
            position += 1
            if length > 127:
                byte = data[position]
                if byte < 128:
                    length = length & 127 | byte << 7
                    position += 1
                else:
                    length, position = long_unsigned(data, position - 1)
            end = position + (length >> 1)
            if length & 1 or end > size:
                raise broken("a record is longer than its batch")
            record = new(Record)
            delta = data[position + 1]
            position += 2
            if delta > 127:
                byte = data[position]
                if byte < 128:
                    delta = delta & 127 | byte << 7
                    position += 1
                else:
                    delta, position = long_unsigned(data, position - 1, 10)
            timestamp = base_timestamp + (delta >> 1 ^ -(delta & 1)) if append_time is None else append_time
            if not -_TIMESTAMPS_END <= timestamp < _TIMESTAMPS_END:
                raise broken("a timestamp has more than 64 bits")
            record.timestamp = timestamp
            delta = data[position]
            position += 1
            if delta > 127:
                byte = data[position]
                if byte < 128:
                    delta = delta & 127 | byte << 7
                    position += 1
                else:
                    delta, position = long_unsigned(data, position - 1)
            record.offset = base_offset + (delta >> 1 ^ -(delta & 1))
            length = data[position]
            position += 1
            if length > 127:
                byte = data[position]
                if byte < 128:
                    length = length & 127 | byte << 7
                    position += 1
                else:
                    length, position = long_unsigned(data, position - 1)
            if length & 1:
                record.key = None
            else:
                start = position
                position += length >> 1
                record.key = data[start:position]
            length = data[position]
            position += 1
            if length > 127:
                byte = data[position]
                if byte < 128:
                    length = length & 127 | byte << 7
                    position += 1
                else:
                    length, position = long_unsigned(data, position - 1)
            if length & 1:
                record.value = None
            else:
                start = position
                position += length >> 1
                record.value = data[start:position]
            if position >= end:
                raise broken("a record is not as long as it says")
            if data[position]:
                record.headers, position = _headers(data, position, end)
            else:
                record.headers = []
                position += 1
            if position != end:
                raise broken("a record is not as long as it says")
            yield record
    except IndexError:
        raise broken("the records of a batch end too early") from None
    if position != size:
        raise broken("bytes are left over behind the records of a batch")


def long_unsigned(data: Buffer, position: int, maximum_bytes: int = 5) -> tuple[int, int]:
    """A varint of more than one byte. IndexError if the data end first, CorruptBatchError if it is too long."""
    value = shift = 0
    for at in range(position, position + maximum_bytes):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (0xFFFF_FFFF if maximum_bytes == 5 else 0xFFFF_FFFF_FFFF_FFFF), at + 1
        shift += 7
    raise broken("a variable-length integer is too long")


def _signed(data: bytes, position: int) -> tuple[int, int]:
    value, position = long_unsigned(data, position)
    return value >> 1 ^ -(value & 1), position


def _headers(data: bytes, position: int, end: int) -> tuple[list[tuple[str, bytes | None]], int]:
    """The headers of a record. In a key that is not UTF-8, the bytes become lone surrogates, which are written back."""
    count, position = _signed(data, position)
    if count < 0 or count * 2 > end - position:
        raise broken(f"a record with {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, position = _signed(data, position)
        if length < 0 or length > end - position:
            raise broken("the key of a record's header is longer than the record")
        key = data[position : position + length].decode("utf-8", "surrogateescape")
        position += length
        length, position = _signed(data, position)
        if length < 0:
            headers.append((key, None))
            continue
        if length > end - position:
            raise broken("a record's header is longer than the record")
        headers.append((key, data[position : position + length]))
        position += length
    return headers, position


def short_records(data: bytes, position: int, end: int, count: int) -> list[tuple[bytes | None, bytes | None]] | None:
    """Keys and values of the records between two positions, if they are as coordinators write them; else None.

    Such records have the timestamp of their batch, offset deltas 0, 1, 2, …, no headers, and lengths below 8192.
    """
    found: list[tuple[bytes | None, bytes | None]] = []
    try:
        for delta in range(count):
            length = data[position]
            position += 1
            if length > 127:
                length = length & 127 | data[position] << 7
                position += 1
            record_end = position + (length >> 1)
            if length & 1 or length >= _TWO_BYTES_END or data[position] or data[position + 1]:
                return None
            if delta < 64:
                if data[position + 2] != delta << 1:
                    return None
                position += 3
            elif data[position + 2] | data[position + 3] << 7 != delta << 1 | 128:
                return None
            else:
                position += 4
            length = data[position]
            position += 1
            if length > 127:
                length = length & 127 | data[position] << 7
                position += 1
            if length == 1:
                key = None
            elif length & 1 or length >= _TWO_BYTES_END:
                return None
            else:
                start, position = position, position + (length >> 1)
                key = data[start:position]
            length = data[position]
            position += 1
            if length > 127:
                length = length & 127 | data[position] << 7
                position += 1
            if length == 1:
                value = None
            elif length & 1 or length >= _TWO_BYTES_END:
                return None
            else:
                start, position = position, position + (length >> 1)
                value = data[start:position]
            if position != record_end - 1 or data[position]:
                return None
            position = record_end
            found.append((key, value))
    except IndexError:
        return None
    return found if position == end else None


def write(out: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    """Append one record to the (not yet compressed) content of a batch."""
    body = bytearray(1)
    body += encode_signed(timestamp_delta)
    body += encode_signed(offset_delta)
    for content in (record.key, record.value):
        if content is None:
            body.append(1)
        else:
            body += encode_signed(len(content))
            body += content
    body += encode_signed(len(record.headers))
    for key, value in record.headers:
        encoded = key.encode("utf-8", "surrogateescape")
        body += encode_signed(len(encoded))
        body += encoded
        if value is None:
            body.append(1)
        else:
            body += encode_signed(len(value))
            body += value
    out += encode_signed(len(body))
    out += body
