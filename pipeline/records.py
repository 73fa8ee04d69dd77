"""Takes batches apart into columns: one entry a record, all batches at once.

The records of one batch form a chain, too (each begins with its length). So the first records of all batches are found
together, then all second ones, and so on. When all begins are known, every field is one operation over all records.
Keys and values stay where they are: a column says where each begins and how long it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from barnabas.pipeline.batches import PADDING_BYTES, Array, Batches, Corrupt
from barnabas.protocol.batch_layout import CODEC_MASK, CONTROL, HEADER_BYTES, LOG_APPEND_TIME
from barnabas.protocol.batch_records import SMALLEST_RECORD_BYTES
from barnabas.protocol.compression import decompress, decompress_into
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.record_batch import UNPACKED_BYTES_MAX

UNPACKED_AT_ONCE_BYTES = 64 << 20
"""About how many unpacked bytes are taken apart together."""

_LANES_MIN = 48  # with fewer batches left, a step for each record is faster than one operation for all of them


@dataclass
class Records:
    """Columns with one entry a record, in the order of the log."""

    data: Array  # the bytes that keys, values and headers lie in
    batches: Batches
    batch: Array  # int32: index of the record's batch
    offset: Array
    timestamp_ms: Array
    key_at: Array
    key_bytes: Array  # -1: null
    value_at: Array
    value_bytes: Array  # -1: null
    headers_at: Array  # behind the number of headers
    header_count: Array

    def __len__(self) -> int:
        return len(self.offset)

    def only(self, chosen: Array) -> "Records":
        """Those for which `chosen` is true."""
        return self if chosen.all() else self._at(chosen)

    def repeated(self, counts: Array) -> "Records":
        """Each record so many times, one behind the other; without those of 0."""
        return self._at(np.repeat(np.arange(len(self)), counts))

    def per_batch(self, column: Array) -> Array:
        """A column of the batches, with each entry once for every record."""
        return column[self.batch]

    def _at(self, which: Array) -> "Records":
        columns = (getattr(self, one.name) for one in fields(self)[2:])
        return Records(self.data, self.batches, *(column[which] for column in columns))


def take_apart(batches: Batches) -> tuple[list[Records], list[Corrupt]]:
    """The records of all batches but control batches, in several parts if they unpack to much.

    Also the batches that have a right checksum but broken records.
    """
    data = (batches.headers["attributes"] & CONTROL) == 0
    batches = Batches(batches.data, batches.starts[data], batches.headers[data])
    parts: list[Records] = []
    corrupt: list[Corrupt] = []
    begin = 0
    while begin < len(batches):
        end, unpacked = _unpack(batches, begin, corrupt)
        part = Batches(batches.data, batches.starts[begin:end], batches.headers[begin:end])
        records = _take_apart(part, *unpacked, corrupt)
        if len(records):
            parts.append(records)
        begin = end
    return parts, corrupt


def _unpack(batches: Batches, begin: int, corrupt: list[Corrupt]) -> tuple[int, tuple[Array, Array, Array]]:
    """Unpack from batch `begin` on.

    Returns the batch behind the last one that was unpacked; and a buffer, with where the records of each batch begin
    and end in it (a broken batch has none).
    """
    data, starts, sizes = batches.data, batches.starts, batches.sizes
    codecs = batches.of("attributes") & CODEC_MASK
    if not codecs[begin:].any():
        return len(batches), (data, starts[begin:] + HEADER_BYTES, starts[begin:] + sizes[begin:])
    view = memoryview(data)
    froms, tos = (starts + HEADER_BYTES).tolist(), (starts + sizes).tolist()
    room = memoryview(np.empty(UNPACKED_AT_ONCE_BYTES + PADDING_BYTES, np.uint8))  # what is not used costs nothing
    ends = [0]  # in the order of the log, so that what lies in the batches does, too
    end = begin
    for codec in codecs[begin:].tolist():
        packed = view[froms[end] : tos[end]]
        try:
            try:
                size = decompress_into(codec, packed, room[ends[-1] : -PADDING_BYTES])
            except CorruptBatchError as error:
                if error.error != ErrorCode.MESSAGE_TOO_LARGE:
                    raise
                if end > begin:
                    break  # the next part begins with it
                room = memoryview(bytearray(decompress(codec, packed, UNPACKED_BYTES_MAX) + bytes(PADDING_BYTES)))
                size = len(room) - PADDING_BYTES
        except CorruptBatchError as error:
            corrupt.append(batches.broken(end, str(error)))
            batches.headers["record_count"][end] = 0  # they are a copy
            size = 0
        ends.append(ends[-1] + size)
        end += 1
    borders = np.array(ends, np.int64)
    used = ends[-1] + PADDING_BYTES
    room[ends[-1] : used] = bytes(PADDING_BYTES)
    return end, (np.frombuffer(room[:used], np.uint8), borders[:-1], borders[1:])


def _take_apart(batches: Batches, data: Array, begins: Array, ends: Array, corrupt: list[Corrupt]) -> Records:
    counts = batches.of("record_count").astype(np.int64)
    broken = counts * SMALLEST_RECORD_BYTES > ends - begins
    counts[broken] = 0
    at, end, batch = _find_records(data, begins, ends, counts, broken)
    step = _Reader(data, at, end)
    step.skip(1)  # attributes, which have no meaning
    timestamp_delta = step.signed(10)
    offset_delta = step.signed(5)
    key_at, key_bytes = step.content()
    value_at, value_bytes = step.content()
    header_count = step.signed(5)
    headers_at = step.at
    step.bad |= (header_count < 0) | (header_count * 2 > end - headers_at)
    with_headers = np.flatnonzero((header_count > 0) & ~step.bad)
    if len(with_headers):
        walker = _Reader(data, headers_at[with_headers], end[with_headers])
        for _ in header_steps(walker, header_count[with_headers]):
            pass
        step.at = headers_at.copy()
        step.at[with_headers] = walker.at
        step.bad[with_headers] |= walker.bad
    step.bad |= step.at != end
    base_timestamp = batches.of("base_timestamp")[batch]
    timestamp = base_timestamp + timestamp_delta
    overflows = ((base_timestamp ^ timestamp) & (timestamp_delta ^ timestamp)) < 0
    appended = (batches.headers["attributes"] & LOG_APPEND_TIME) != 0
    if appended.any():
        overflows &= ~appended[batch]
        timestamp = np.where(appended[batch], batches.of("max_timestamp")[batch], timestamp)
    step.bad |= overflows
    broken[batch[step.bad]] = True
    records = Records(
        data,
        batches,
        batch,
        batches.of("base_offset")[batch] + offset_delta,
        timestamp,
        key_at,
        key_bytes,
        value_at,
        value_bytes,
        headers_at,
        header_count,
    )
    if broken.any():
        reason = "the records of a batch with a right checksum are broken"
        corrupt += [batches.broken(index, reason) for index in np.flatnonzero(broken).tolist()]
        return records.only(~broken[batch])
    return records


def _find_records(data: Array, begins: Array, ends: Array, counts: Array, broken: Array) -> tuple[Array, Array, Array]:
    """Where each record begins (behind its length) and ends, and its batch. Marks broken batches."""
    total = int(counts.sum())
    batch = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    begin_of, end_of = np.zeros(total, np.int64), np.zeros(total, np.int64)
    firsts = np.cumsum(counts) - counts
    lanes = np.argsort(-counts, kind="stable")
    remaining = counts[lanes]
    at, limit, first = begins[lanes], ends[lanes], firsts[lanes]
    bad = np.zeros(len(lanes), bool)
    largest = int(remaining[0]) if len(remaining) else 0
    live = np.searchsorted(-remaining, -np.arange(largest), side="left")  # how many batches have more than k records
    k = 0
    while k < largest and live[k] >= _LANES_MIN:
        n = int(live[k])
        reader = _Reader(data, at[:n], limit[:n])
        length = reader.signed(5)
        end = reader.at + length
        wrong = reader.bad | (length < 0) | (end > limit[:n])
        if wrong.any():
            bad[:n] |= wrong
            end = np.where(wrong, reader.at, end)
        slots = first[:n] + k
        begin_of[slots] = reader.at
        end_of[slots] = end
        at[:n] = end
        k += 1
    if k < largest:
        view = memoryview(data)
        for lane in range(int(live[k])):
            to = int(first[lane] + remaining[lane])
            where = _find_singly(view, int(at[lane]), int(limit[lane]), int(remaining[lane]) - k)
            if where is None:
                bad[lane] = True
            else:
                begin_of[to - len(where[0]) : to], end_of[to - len(where[0]) : to] = where[0], where[1]
                at[lane] = where[1][-1]
    bad |= (remaining > 0) & (at != limit)
    bad |= (remaining == 0) & (at != limit) & ~broken[lanes]
    broken[lanes[bad]] = True
    return begin_of, end_of, batch


def _find_singly(data: memoryview, position: int, limit: int, count: int) -> tuple[list[int], list[int]] | None:
    """As the steps for all batches, for one batch: `count` records from `position` on. None: they are broken."""
    begins: list[int] = []
    ends: list[int] = []
    for _ in range(count):
        if position >= limit:
            return None
        length = data[position]
        position += 1
        if length > 127:
            length &= 127
            shift = 7
            while True:
                byte = data[position] if position < limit else 128
                position += 1
                length |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
                if shift > 28:
                    return None
            length &= 0xFFFF_FFFF
        begins.append(position)
        position += length >> 1
        if length & 1 or position > limit:
            return None
        ends.append(position)
    return begins, ends


class _Reader:
    """Reads one field of many records at a time. A record that ends too early becomes `bad` and stays where it is."""

    def __init__(self, data: Array, at: Array, end: Array) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.bad = np.zeros(len(at), bool)

    def _check(self) -> None:
        beyond = self.at > self.end
        if beyond.any():
            self.bad |= beyond
            self.at = np.minimum(self.at, self.end)

    def skip(self, size: int | Array) -> None:
        self.at = self.at + size
        self._check()

    def unsigned(self, bytes_max: int) -> Array:
        """A variable-length integer."""
        byte = self.data[self.at]
        value = byte.astype(np.int64)
        self.at = self.at + 1
        more = byte > 127
        if more.any():
            indexes = np.flatnonzero(more)
            value[indexes] &= 127
            for shift in range(7, 7 * bytes_max, 7):
                at = self.at[indexes]
                byte = self.data[np.minimum(at, self.end[indexes])]
                value[indexes] |= (byte & 127).astype(np.int64) << shift
                self.at[indexes] = at + 1
                indexes = indexes[byte > 127]
                if not len(indexes):
                    break
            else:
                self.bad[indexes] = True
            if bytes_max == 5:
                value &= 0xFFFF_FFFF
        self._check()
        return value

    def signed(self, bytes_max: int) -> Array:
        """A zigzag integer."""
        value = self.unsigned(bytes_max).view(np.uint64)
        return (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)

    def content(self) -> tuple[Array, Array]:
        """Where a key or a value begins, and its length; −1 is null."""
        length = self.signed(5)
        length = np.maximum(length, -1)
        at = self.at
        self.skip(np.maximum(length, 0))
        return at, length


HeaderStep = tuple[Array, Array, Array, Array, Array]


def header_steps(reader: _Reader, counts: Array) -> Iterator[HeaderStep]:
    """The first headers of all records, then all second ones, …

    Each step: indexes of the records, and of their headers where key and value begin, and how long they are. The reader
    goes on behind them.
    """
    k = 0
    live = np.flatnonzero(counts > 0)
    while len(live):
        step = _Reader(reader.data, reader.at[live], reader.end[live])
        key_at, key_bytes = step.content()
        step.bad |= key_bytes < 0
        value_at, value_bytes = step.content()
        reader.at[live] = step.at
        reader.bad[live] |= step.bad
        yield live, key_at, key_bytes, value_at, value_bytes
        k += 1
        live = live[(counts[live] > k) & ~step.bad]


def headers_of(records: Records) -> Iterator[HeaderStep]:
    """As `header_steps`, for whole records; indexes are those of `records`."""
    reader = _Reader(records.data, records.headers_at.copy(), np.full(len(records), len(records.data) - PADDING_BYTES))
    yield from header_steps(reader, records.header_count)
