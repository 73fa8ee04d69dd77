"""The tables as streams: which offsets a micro-batch takes. Spark keeps them, so every row is given out once.

The offset of a stream is, for each log, the next offset to read and the id of its topic:
`{"orders-0": {"offset": 17, "topic_id": "…"}}`. A log that is not in it is new and read from its begin.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.options import ReadOptions
from barnabas.pipeline.origin import LogKey, LogState, OffsetRange, Origin
from barnabas.pipeline.table_reading import TableReading
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

logger = logging.getLogger("barnabas.pipeline")

StreamOffset = dict[str, dict[str, Any]]
Offsets = dict[LogKey, int]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table as its logs grow."""

    def __init__(self, origin: Origin, reading: TableReading, options: ReadOptions) -> None:
        self.origin = origin
        self.reading = reading
        self.options = options
        self.target: Offsets | None = None  # where a query ends that takes only what is there at its start
        self.newest: StreamOffset | None = None

    def initialOffset(self) -> StreamOffset:
        """Where a query without a checkpoint begins."""
        states = self.origin.states()
        is_latest = self.options.starting_offsets == "latest"
        return _stream_offset(
            {key: one.end_offset if is_latest else one.first_offset for key, one in states.items()}, states
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say."""
        if self.options.max_rows_per_trigger is not None:
            return ReadMaxRows(self.options.max_rows_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_files_per_trigger is not None:
            return ReadMaxFiles(self.options.max_files_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now."""
        self.target = {key: one.end_offset for key, one in self.origin.states().items()}

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Where the next micro-batch ends."""
        states = self.origin.states()
        self.newest = _stream_offset({key: one.end_offset for key, one in states.items()}, states)
        self._check_gone(start, states)
        starts: Offsets = {}
        ends: Offsets = {}
        for key, state in states.items():
            end = state.end_offset
            if self.target is not None:
                if key not in self.target:
                    continue
                end = min(end, self.target[key])
            starts[key] = self._start(start, key, state)
            ends[key] = max(end, starts[key])
        if isinstance(limit, ReadMinRows) and self.target is None and _rows(starts, ends) < limit.min_rows:
            ends = starts
        return _stream_offset(self._within(limit, starts, ends), states)

    def reportLatestOffset(self) -> StreamOffset | None:
        """The ends of the logs when they were last looked at."""
        return self.newest

    def _within(self, limit: ReadLimit, starts: Offsets, ends: Offsets) -> Offsets:
        if isinstance(limit, ReadMaxRows):
            return within_rows(starts, ends, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return self.origin.within_bytes(starts, ends, limit.max_bytes)
        if isinstance(limit, ReadMaxFiles):
            return self.origin.within_files(starts, ends, limit.max_files)
        return ends

    def _start(self, start: StreamOffset, key: LogKey, state: LogState) -> int:
        """Where to go on in a log."""
        known = start.get(str(key))
        if known is None:
            return state.first_offset
        if known["topic_id"] != state.topic_id:
            self._lost(f"{key}: the topic was deleted and made anew; what was not read of the old one is gone")
            return state.first_offset
        offset = int(known["offset"])
        if offset > state.end_offset and self.target is None:
            self._lost(f"{key}: it was read up to {offset}, and ends at {state.end_offset} now")
            return state.end_offset
        return offset

    def _check_gone(self, start: StreamOffset, states: Mapping[LogKey, LogState]) -> None:
        gone = start.keys() - {str(key) for key in states}
        if gone:
            self._lost(f"{', '.join(sorted(gone))}: not there any more; what was not read is gone")

    def _lost(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise LostRecordsError(f"{text}. With failOnDataLoss=false the query goes on")
        logger.warning("%s", text)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """The tasks of the micro-batch between two offsets."""
        moved = {name for name, one in end.items() if one["offset"] != start.get(name, {"offset": 0})["offset"]}
        moved |= {name for name in end.keys() & start.keys() if end[name]["topic_id"] != start[name]["topic_id"]}
        if not moved:
            return []
        states = {str(key): (key, one) for key, one in self.origin.states().items()}
        ranges = []
        for name in sorted(moved):
            if name not in states:
                self._lost(f"{name}: not there any more; what was not read is gone")
                continue
            key, state = states[name]
            if state.topic_id != end[name]["topic_id"]:
                self._lost(f"{name}: the topic was deleted and made anew; what was not read of the old one is gone")
                continue
            known = start.get(name)
            low = int(known["offset"]) if known is not None and known["topic_id"] == state.topic_id else -1
            high = int(end[name]["offset"])
            if 0 <= low < min(state.first_offset, high):
                below = min(state.first_offset, high)
                self._lost(f"{name}: the offsets from {low} to below {below} are gone")
            low = max(low, state.first_offset)
            if low < high:
                ranges.append(OffsetRange(key, low, high))
        return self.origin.tasks_of(ranges) if ranges else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        for place, batches, low, high in self.origin.read(partition):
            yield from self.reading.rows(place, batches, low, high)


def _stream_offset(offsets: Mapping[LogKey, int], states: Mapping[LogKey, LogState]) -> StreamOffset:
    """In a fixed order, because Spark compares the texts."""
    return {str(key): {"offset": offsets[key], "topic_id": states[key].topic_id} for key in sorted(offsets, key=str)}


def _rows(starts: Offsets, ends: Offsets) -> int:
    """At most so many rows are there; fewer, if compaction has removed some."""
    return sum(end - starts[key] for key, end in ends.items())


def within_rows(starts: Offsets, ends: Offsets, rows_max: int) -> Offsets:
    """Ends for at most so many rows. Each log's share is its share of what is there; the rest goes to the largest."""
    total = _rows(starts, ends)
    if total <= rows_max:
        return ends
    shares = {key: (end - starts[key]) * rows_max // total for key, end in ends.items()}
    rest = rows_max - sum(shares.values())
    for key in sorted(ends, key=lambda key: (-((ends[key] - starts[key]) * rows_max % total), str(key)))[:rest]:
        shares[key] += 1
    return {key: starts[key] + share for key, share in shares.items()}
