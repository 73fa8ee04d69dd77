"""What a reader at an offset of a log has before it: records, bytes, and the time of the next record.

The headers of batches say it without the records: how many records a batch has, whether it is a control batch, and
whose transaction it belongs to. Only the batch that a reader begins in is unpacked, because its records before the
offset are read already. So the count is of records that a consumer is given: no control records, none that compaction
has taken, and for read_committed none of aborted transactions. Only so many headers are read; offsets bound the rest.
"""

from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.grouped import grouped
from barnabas.runtime.turns import Pieces
from barnabas.storage.batch_headers import StoredBatch
from barnabas.storage.log import Log
from barnabas.storage.segment import Segment

HEADERS_MAX = 10_000  # so many headers are read for one position
_HEADERS_PER_PIECE = 100
_UNPACKED_RECORDS_MAX = 1_000  # of the batch in which the reader begins; one with more records is not unpacked
_UNPACKED_BYTES_MAX = 1 << 20


class Unread(NamedTuple):
    """What lies between an offset and `end_offset`: from `records_min` to `records_max` records, in `bytes` of the log.

    `next_timestamp` is that of the first of the records. None if there is none, or if it is not known.
    """

    end_offset: int
    records_min: int
    records_max: int
    bytes: int
    next_timestamp: int | None


class BothIsolations(NamedTuple):
    """The same position for consumers of both isolation levels."""

    read_uncommitted: Unread
    read_committed: Unread
    headers_read: int


def count_unread(log: Log, offset: int, headers_max: int = HEADERS_MAX) -> Pieces[BothIsolations]:
    """Count from `offset`, or from the log start behind it, to the high watermark and to the last stable offset.

    OSError and CorruptBatchError if the log cannot be read.
    """
    position = offset = max(offset, log.log_start_offset)
    high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
    uncommitted, committed = _Tally(offset, high_watermark), _Tally(offset, last_stable_offset)
    # All transactions below the last stable offset are decided, so this does not change in a later piece.
    aborted = _aborted(log, offset, last_stable_offset)
    headers_read = 0
    while position < high_watermark and headers_read < headers_max:
        piece = min(headers_max - headers_read, _HEADERS_PER_PIECE)
        position = max(position, log.log_start_offset)
        for segment, batch in log.segments.batches_from(position):
            if batch.base_offset >= high_watermark:
                position = high_watermark
                break
            position = batch.last_offset + 1
            uncommitted.add(segment, batch)
            if not (batch.attributes & TRANSACTIONAL and _is_aborted(aborted, batch)):
                committed.add(segment, batch)
            elif batch.base_offset < committed.end_offset:
                committed.bytes += batch.size
            piece -= 1
            headers_read += 1
            if not piece:
                break
        else:
            position = high_watermark
        yield None
    return BothIsolations(uncommitted.result(log, position), committed.result(log, position), headers_read)


class _Tally:
    __slots__ = ("bytes", "end_offset", "next_timestamp", "offset", "records_max", "records_min")

    def __init__(self, offset: int, end_offset: int) -> None:
        self.offset = offset
        self.end_offset = end_offset
        self.records_min = self.records_max = self.bytes = 0
        self.next_timestamp: int | None = None

    def add(self, segment: Segment, batch: StoredBatch) -> None:
        if batch.base_offset >= self.end_offset:
            return
        self.bytes += batch.size
        if batch.attributes & CONTROL:
            return
        if self.next_timestamp is not None:
            self.records_min += batch.record_count
            self.records_max += batch.record_count
            return
        least, most, timestamp = _from_offset(segment, batch, self.offset)
        self.records_min += least
        self.records_max += most
        if most:
            self.next_timestamp = timestamp

    def result(self, log: Log, position: int) -> Unread:
        """All headers before `position` are counted. Between it and the end, there are no more records than offsets."""
        timestamp = None if self.next_timestamp is None or self.next_timestamp < 0 else self.next_timestamp
        if position >= self.end_offset:
            return Unread(self.end_offset, self.records_min, self.records_max, self.bytes, timestamp)
        size = self.bytes + log.bytes_between(position, self.end_offset)
        most = self.records_max + self.end_offset - position
        return Unread(self.end_offset, self.records_min, most, size, timestamp)


def _from_offset(segment: Segment, batch: StoredBatch, offset: int) -> tuple[int, int, int]:
    """The records of a batch from `offset` on: at least, at most, and the timestamp of the first of them."""
    count, skipped = batch.record_count, max(offset - batch.base_offset, 0)
    is_whole = count == batch.last_offset - batch.base_offset + 1
    most = min(count, batch.last_offset - batch.base_offset + 1 - skipped)
    least = most if is_whole or not skipped else max(count - skipped, 0)
    if not most:
        return 0, 0, -1
    timestamp = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else batch.base_timestamp
    if least == most and timestamp == batch.max_timestamp:  # then all its records have that time
        return least, most, timestamp
    if count <= _UNPACKED_RECORDS_MAX and batch.size <= _UNPACKED_BYTES_MAX:
        try:
            records = record_batch.records(segment.batch_bytes(batch), max_bytes=_UNPACKED_BYTES_MAX)
            timestamps = [record.timestamp for record in records if record.offset >= offset]
        except CorruptBatchError:  # or it is too large when it is unpacked
            pass
        else:
            return len(timestamps), len(timestamps), timestamps[0] if timestamps else -1
    return least, most, timestamp


def _aborted(log: Log, start: int, end: int) -> dict[int, list[tuple[int, int]]]:
    """The aborted transactions that overlap [start, end): their first and last offsets, by producer id."""
    entries = log.segments.aborted_between(start, end)
    return grouped((entry.producer_id, (entry.first_offset, entry.last_offset)) for entry in entries)


def _is_aborted(aborted: dict[int, list[tuple[int, int]]], batch: StoredBatch) -> bool:
    spans = aborted.get(batch.producer_id, ())
    return any(first <= batch.base_offset <= last for first, last in spans)
