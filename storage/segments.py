"""The segments of a log in order of their offsets, and how records are found in them."""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, overload

from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Buffer, Clock
from barnabas.storage.batch_headers import StoredBatch
from barnabas.storage.index import AbortedTransaction
from barnabas.storage.open_files import FileRange
from barnabas.storage.segment import Segment

logger = logging.getLogger("barnabas.storage")

NEVER_BY_REFERENCE: Final = 1 << 62


class FetchData:
    """What a read gave: whole batches, or nothing. No record in them has an offset ≥ `next_offset`.

    The batches are in `records`, or `file_range` says where they are in the file.
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


class Segments(Sequence[Segment]):
    """One segment or more, the last of which is `active`: appended to. `end_offset` is the offset of the next record.

    What reads raises OSError and CorruptBatchError.
    """

    __slots__ = ("_bases", "_segments", "active", "end_offset")

    def __init__(self, segments: Sequence[Segment], end_offset: int) -> None:
        self.end_offset = end_offset
        self.replace(segments)

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, slot: int) -> Segment: ...

    @overload
    def __getitem__(self, slot: slice) -> list[Segment]: ...

    def __getitem__(self, slot: int | slice) -> Segment | list[Segment]:
        return self._segments[slot]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def base_offsets(self) -> Sequence[int]:
        return self._bases

    def slot_of(self, offset: int) -> int:
        """The place of the segment that holds the offset, or of the first if the offset lies before it."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    # -- changing them

    def replace(self, segments: Sequence[Segment]) -> None:
        """The log consists of these segments from now on. Who reads the others can finish."""
        assert segments
        assert all(left.base_offset < right.base_offset for left, right in pairwise(segments))
        self._segments = list(segments)
        self.active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]

    def begin(self, segment: Segment) -> None:
        """This segment is appended to from now on. The log ends where it begins, also behind a gap without records."""
        assert segment.base_offset > self._bases[-1]
        assert segment.base_offset >= self.end_offset, "a new segment may not overlap the one before"
        self.end_offset = segment.base_offset
        self._segments.append(segment)
        self.active = segment
        self._bases.append(segment.base_offset)

    def give_back_indexes(self) -> None:
        """Free the memory of the indexes that nobody has used since the last call."""
        for segment in self._segments[:-1]:
            if segment.touched:
                segment.touched = False
            else:
                segment.unload()

    # -- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper_bound: int,
        at_least_one: bool,
        by_reference_from: int,
        on_error: Callable[[OSError], None],
    ) -> FetchData:
        """As `Log.read`, with an offset and a bound that are in the log. `on_error` hears if a range is unreadable."""
        segments = self._segments
        for slot in range(self.slot_of(offset), len(segments)):
            segment = segments[slot]
            found = segment.locate(offset, max_bytes, upper_bound, at_least_one)
            if found is None:
                continue
            if found.size < by_reference_from:
                return FetchData(ErrorCode.NONE, segment.take(found), found.first_offset, found.next_offset)
            file_range = segment.reference(found, on_error)
            if file_range is None:  # answers refer to too many files already
                max_bytes = min(max_bytes, by_reference_from)
                return self.read(offset, max_bytes, upper_bound, at_least_one, NEVER_BY_REFERENCE, on_error)
            return FetchData(ErrorCode.NONE, b"", found.first_offset, found.next_offset, file_range)
        return FetchData(ErrorCode.NONE, b"", offset, offset)

    def bytes_between(self, offset: int, upper_bound: int) -> int:
        """About how many bytes a reader from `offset` has before it; exact near the log end. Reads no segment."""
        if offset >= upper_bound:
            return 0
        first, last = self.slot_of(offset), self.slot_of(upper_bound)
        start = self._segments[first].position_for(offset)
        end = self._segments[last]
        stop = end.size if upper_bound >= self.end_offset else end.position_for(upper_bound)
        if first == last:
            return max(stop - start, 1)
        between = sum(segment.size for segment in self._segments[first + 1 : last])
        return max(self._segments[first].size - start + between + stop, 1)

    def batches_from(self, offset: int) -> Iterator[tuple[Segment, StoredBatch]]:
        """Headers of all batches from the one that holds `offset` on."""
        for slot in range(self.slot_of(offset), len(self._segments)):
            segment = self._segments[slot]
            segment.load()
            position = segment.checked_position_for(offset) if offset > segment.base_offset else 0
            for batch in segment.batches(position):
                if batch.last_offset >= offset:
                    yield segment, batch

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that overlap [start, end), as they ended."""
        found: list[tuple[int, int]] = []
        for slot in range(self.slot_of(start), len(self._segments)):
            if self._segments[slot].transaction_index.entries.collect(start, end, found):
                break
        return found

    def aborted_between(self, start: int, end: int) -> Iterator[AbortedTransaction]:
        """The aborted transactions that overlap [start, end)."""
        for slot in range(self.slot_of(start), len(self._segments)):
            entries = self._segments[slot].transaction_index.entries
            # There may be millions: a fetch looks only at those whose marker is behind its beginning.
            for entry in entries.from_slot(entries.slot_of(start)):
                if entry.first_offset < end:
                    yield entry
                if entry.last_stable_offset >= end:
                    return

    def offset_for_timestamp(self, timestamp: int, start: int, end: int) -> TimestampOffset | None:
        """The first record in [start, end) whose timestamp is ≥ `timestamp`, or None."""
        for segment in self._segments:
            if segment.base_offset >= end:
                return None
            if not segment.size or segment.max_timestamp < timestamp:
                continue
            for batch in segment.batches(segment.position_for_timestamp(timestamp)):
                if batch.base_offset >= end:
                    return None
                if batch.max_timestamp < timestamp or batch.last_offset < start:
                    continue
                for record in record_batch.records(segment.batch_bytes(batch)):
                    if record.timestamp >= timestamp and record.offset >= start:
                        if record.offset >= end:
                            return None
                        return TimestampOffset(record.offset, record.timestamp, batch.partition_leader_epoch)
        return None

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record with the largest timestamp, which is -1 if no record has one. None if there is no record."""
        newest: Segment | None = None
        for segment in self._segments:
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


def delete_later(clock: Clock, gone: Sequence[Segment], delay_ms: float) -> None:
    """Remove the files of segments after the delay, so that clients who read them can finish."""
    waiting = list(reversed(gone))

    def delete() -> None:
        """Remove one segment, and the next in another pass of the loop: to remove a large file takes long."""
        segment = waiting.pop()
        try:
            segment.delete_files()
        except OSError as error:
            logger.warning("could not remove the files of the old segment %s: %s", segment.path, error)
        if waiting:
            clock.call_soon(delete)

    if waiting:
        clock.call_later(delay_ms, delete)
