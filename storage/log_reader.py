"""What a log holds and how it is read: segments in order of their offsets, looked up through their indexes."""

import logging
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from typing import NamedTuple

from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL, TRANSACTIONAL
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.runtime.ports import Buffer, may_pass
from barnabas.storage.open_files import FileRange
from barnabas.storage.producer_state import EndTransactionMarker, ProducerStateManager
from barnabas.storage.segment import Segment, StoredBatch

logger = logging.getLogger("barnabas.storage")

NEVER_BY_REFERENCE = 1 << 62
_BYTES_PER_PIECE = 4 << 20  # of batches whose headers are read


class FetchData:
    """What a read gave: whole batches, perhaps none. No record in them has an offset ≥ `next_offset`.

    They are in `records`, or where they are in the file is in `file_range`.
    """

    __slots__ = ("error", "file_range", "first_offset", "next_offset", "records")

    def __init__(
        self,
        error: ErrorCode,
        records: Buffer,
        first_offset: int,
        next_offset: int,
        file_range: FileRange | None = None,
    ) -> None:
        self.error = error
        self.records = records
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.file_range = file_range


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


class LogReader:
    """The reading half of a Log."""

    def __init__(
        self,
        topic: str,
        partition: int,
        segments: list[Segment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        producers: ProducerStateManager,
    ) -> None:
        assert segments
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.producers = producers
        self.failed: OSError | None = None
        self.hindered: OSError | None = None  # why the last write or look was not possible; the next one may be
        self.on_failed: Callable[[], None] | None = None
        self.on_hindered: Callable[[], None] | None = None  # also when it is over

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def active_segment(self) -> Segment:
        """The one that is appended to."""
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size for segment in self.segments)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided; never above the high watermark."""
        first_unstable = self.producers.first_unstable_offset
        return self.high_watermark if first_unstable is None else min(first_unstable, self.high_watermark)

    def set_high_watermark(self, offset: int) -> None:
        """Move it, within [log start, log end]."""
        self.high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.producers.high_watermark_moved(self.high_watermark)

    def fail(self, error: OSError) -> None:
        """Never write again in this process."""
        if self.failed is None:
            self.failed = error
            self.hindered = None
            if self.on_failed is not None:
                self.on_failed()

    def hinder(self, error: OSError) -> None:
        """Something could not be done, and everything is as before: it is tried again, if the error `may_pass`.

        With any other error the log fails.
        """
        if not may_pass(error):
            self.fail(error)
        elif self.hindered is None and self.failed is None:
            self.hindered = error
            if self.on_hindered is not None:
                self.on_hindered()

    def end_hindrance(self) -> None:
        """It could be written again."""
        if self.hindered is not None:
            self.hindered = None
            if self.on_hindered is not None:
                self.on_hindered()

    def replace_segments(self, segments: list[Segment]) -> None:
        """The log consists of these from now on."""
        assert segments
        assert all(left.base_offset < right.base_offset for left, right in pairwise(segments))
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]

    def _slot(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_bound: int,
        at_least_one: bool,
        by_reference_from: int = NEVER_BY_REFERENCE,
    ) -> FetchData:
        """Whole batches below `upper_bound` from the one that holds `offset`, in at most `max_bytes`.

        A first batch bigger than that comes only with `at_least_one`. OFFSET_OUT_OF_RANGE outside
        [log start, log end]; nothing at or behind the bound is an empty success. Batches of together at least
        `by_reference_from` bytes are not read, but come as a range of the file.
        """
        end = self.log_end_offset
        if offset < self.log_start_offset or offset > end:
            return FetchData(ErrorCode.OFFSET_OUT_OF_RANGE, b"", -1, -1)
        if upper_bound > end:
            upper_bound = end
        if offset >= upper_bound or (max_bytes <= 0 and not at_least_one):
            return FetchData(ErrorCode.NONE, b"", offset, offset)
        try:
            for slot in range(self._slot(offset), len(self.segments)):
                segment = self.segments[slot]
                found = segment.locate(offset, max(max_bytes, 0), upper_bound, at_least_one)
                if found is None:
                    continue
                if found.size < by_reference_from:
                    return FetchData(ErrorCode.NONE, segment.take(found), found.first_offset, found.next_offset)
                file_range = segment.reference(found, self.fail)
                if file_range is None:  # too many files are referred to
                    return self.read(
                        offset, min(max_bytes, by_reference_from), upper_bound=upper_bound, at_least_one=at_least_one
                    )
                return FetchData(ErrorCode.NONE, b"", found.first_offset, found.next_offset, file_range)
        except (OSError, CorruptBatchError) as error:
            return FetchData(self.unreadable(error), b"", -1, -1)
        return FetchData(ErrorCode.NONE, b"", offset, offset)

    def unreadable(self, error: OSError | CorruptBatchError) -> ErrorCode:
        """What to answer when reading raised: a disk that fails takes the log with it, damaged data does not."""
        if isinstance(error, CorruptBatchError):
            logger.error("%s: damaged data: %s", self.name, error)
            return ErrorCode.CORRUPT_MESSAGE
        if not may_pass(error):
            self.fail(error)
        return ErrorCode.KAFKA_STORAGE_ERROR

    def bytes_between(self, offset: int, upper_bound: int) -> int:
        """About how many bytes a reader from `offset` has before it; exact near the log end. Reads no segment."""
        offset = max(offset, self.log_start_offset)
        upper_bound = min(upper_bound, self.log_end_offset)
        if offset >= upper_bound:
            return 0
        first, last = self._slot(offset), self._slot(upper_bound)
        start = self.segments[first].position_for(offset)
        end = self.segments[last]
        stop = end.size if upper_bound >= self.log_end_offset else end.position_for(upper_bound)
        if first == last:
            return max(stop - start, 1)
        between = sum(segment.size for segment in self.segments[first + 1 : last])
        return max(self.segments[first].size - start + between + stop, 1)

    def batches_from(self, offset: int) -> Iterator[tuple[Segment, StoredBatch]]:
        """Headers of all batches from the one that holds `offset` on. CorruptBatchError, OSError."""
        for slot in range(self._slot(offset), len(self.segments)):
            segment = self.segments[slot]
            segment.load()
            position = segment.checked_position_for(offset) if offset > segment.base_offset else 0
            for batch in segment.batches(position):
                if batch.last_offset >= offset:
                    yield segment, batch

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that overlap [start, end), by first offset."""
        found = []
        for slot in range(self._slot(start), len(self.segments)):
            for entry in self.segments[slot].transaction_index.entries:
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append((entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end:
                    return sorted(found, key=lambda pair: pair[1])
        return sorted(found, key=lambda pair: pair[1])

    def offset_for_timestamp(self, timestamp: int, upper_bound: int) -> TimestampOffset | None:
        """The first record with a timestamp ≥ `timestamp` in [log start, `upper_bound`), or None.

        CorruptBatchError, OSError.
        """
        for segment in self.segments:
            if segment.base_offset >= upper_bound:
                return None
            if not segment.size or segment.max_timestamp < timestamp:
                continue
            for batch in segment.batches(segment.position_for_timestamp(timestamp)):
                if batch.base_offset >= upper_bound:
                    return None
                if batch.max_timestamp < timestamp or batch.last_offset < self.log_start_offset:
                    continue
                for record in record_batch.records(segment.batch_bytes(batch)):
                    if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                        if record.offset >= upper_bound:
                            return None
                        return TimestampOffset(record.offset, record.timestamp, batch.partition_leader_epoch)
        return None

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp of the log, which is -1 where none has one.

        None when the log is empty.

        CorruptBatchError, OSError.
        """
        newest: Segment | None = None
        for segment in self.segments:
            if segment.size and (newest is None or segment.max_timestamp > newest.max_timestamp):
                newest = segment
        if newest is None:
            return None
        batch = newest.find(newest.offset_of_max_timestamp)
        if batch is None:
            return None
        for record in record_batch.records(newest.batch_bytes(batch)):
            if record.timestamp == newest.max_timestamp:
                return TimestampOffset(record.offset, record.timestamp, batch.partition_leader_epoch)
        return None


def marker_of(batch: Buffer) -> EndTransactionMarker | None:
    """What a control batch says about a transaction; None for control batches of other kinds."""
    for record in record_batch.records(batch):
        key, value = record.key, record.value
        if key is None or len(key) < 4:
            return None
        kind = int.from_bytes(key[2:4], "big", signed=True)
        if kind not in (0, 1) or value is None or len(value) < 6:
            return None
        return EndTransactionMarker(kind == 1, int.from_bytes(value[2:6], "big", signed=True))
    return None


def rebuild_producers(log: LogReader) -> Generator[int, None, None]:
    """Producer state from the newest snapshot and the batches behind it, piece by piece. CorruptBatchError, OSError.

    Yields how many bytes of batches it has passed.
    """
    start = log.producers.load_snapshot(log.log_start_offset, log.log_end_offset)
    yield from replay_producers(log, start)


def replay_producers(log: LogReader, start: int) -> Generator[int, None, None]:
    """Let the producer state see the batches from `start` to the log end. Yields as `rebuild_producers` does."""
    producers = log.producers
    passed = piece = 0
    for segment, batch in log.batches_from(start) if start < log.log_end_offset else ():
        passed += batch.size
        if passed - piece >= _BYTES_PER_PIECE:
            yield passed
            piece = passed
        if batch.producer_id < 0:  # the first batch may begin below: a log start can lie inside of one
            continue
        if batch.attributes & CONTROL:
            marker = marker_of(segment.batch_bytes(batch))
            if marker is None:
                continue
            aborted = producers.update_marker(
                batch.producer_id, batch.producer_epoch, marker, batch.last_offset, batch.max_timestamp
            )
            if aborted is not None:
                known = segment.transaction_index.entries
                if not known or known[-1].last_offset < aborted.last_offset:
                    segment.transaction_index.append(aborted)
        elif batch.record_count or batch.base_sequence >= 0:
            producers.update_data(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.base_offset,
                batch.last_offset,
                batch.max_timestamp,
                bool(batch.attributes & TRANSACTIONAL),
            )
    producers.map_end_offset = log.log_end_offset
