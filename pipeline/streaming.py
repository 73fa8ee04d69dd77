"""The tables as streams: which offsets a micro-batch takes. Spark keeps them, so every row is given out once.

The offset of a stream is, for each log, the next offset to read and the id of its topic:
`{"orders-0": {"offset": 17, "topic_id": "…"}}`. A log that is not in it is new and read from its begin.

Commits (with `isolation` = `read_committed`) are read up to the high watermark, but those in transactions only up to
the last stable offset: where an open transaction holds that back, it is there as `stable_offset`. So a micro-batch has
two ranges of such a log, one of commits outside of transactions and one of those in them, and which rows are in it
depends on nothing but the two offsets between which it lies.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from barnabas.pipeline.losses import Loss, Losses
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

DELETED = "the topic was deleted"
CREATED_AGAIN = "the topic was deleted and created again"
REMOVED = "removed before they were read"

StreamOffset = dict[str, dict[str, Any]]
Offsets = dict[LogKey, int]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table as its logs grow."""

    def __init__(self, origin: Origin, reading: TableReading, options: ReadOptions) -> None:
        self.origin = origin
        self.reading = reading
        self.options = options
        self.losses = Losses(options.fail_on_data_loss, options.lost)
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
        if self.options.max_rows_per_trigger is not None:
            return ReadMaxRows(self.options.max_rows_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_files_per_trigger is not None:
            return ReadMaxFiles(self.options.max_files_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = {key: one.end_offset for key, one in self.origin.states().items()}

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Where the next micro-batch ends."""
        states = self.origin.states()
        self.newest = _stream_offset({key: one.end_offset for key, one in states.items()}, states)
        for name in sorted(start.keys() - {str(key) for key in states}):
            self._add(name, DELETED, int(start[name]["offset"]), comes_and_goes=True)
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
        ends = self._within(limit, starts, ends)
        assert all(end >= starts[key] for key, end in ends.items()), "a micro-batch ends before it begins"
        return _stream_offset(ends, states, start)

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
        offset = int(known["offset"])
        if known["topic_id"] != state.topic_id:
            self._add(str(key), CREATED_AGAIN, offset, comes_and_goes=True)
            return state.first_offset
        if offset > state.end_offset and offset > self.origin.log_ends().get(key, 0):
            self._add(str(key), f"it was read up to {offset}, and ends at {state.end_offset} now", state.end_offset)
            return state.end_offset
        return offset

    def _add(self, name: str, why: str, low: int, below: int | None = None, *, comes_and_goes: bool = False) -> None:
        """LostRecordsError: the query is not to go on. `comes_and_goes`: that is no loss where all topics are read."""
        topic = name.rpartition("/")[2].rpartition("-")[0]
        is_news = comes_and_goes and topic not in self.origin.topics
        self.losses.add(Loss(name, why, low, below, is_news))

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """The tasks of the micro-batch between two offsets."""
        moved = {name for name, one in end.items() if one != start.get(name)}
        if not moved:
            return []
        states = {str(key): (key, one) for key, one in self.origin.states().items()}
        ranges: list[OffsetRange] = []
        for name in sorted(moved):
            high = int(end[name]["offset"])
            known = _of_same_topic(start, name, end[name]["topic_id"])
            low = -1 if known is None else int(known["offset"])
            if name not in states or states[name][1].topic_id != end[name]["topic_id"]:
                why = CREATED_AGAIN if name in states else DELETED
                self._add(name, why, max(low, 0), high, comes_and_goes=True)
                continue
            key, state = states[name]
            below = min(state.first_offset, high)
            if 0 <= low < below:
                self._add(name, REMOVED, low, below)
            if self.losses.folder is not None and not self.losses.fails and state.end_offset < high:
                below, high = high, max(state.end_offset, low)  # an unclean election has cut it meanwhile
                self._add(name, "the log ends before them now", high, below)
            low = max(low, state.first_offset)
            stable_low = low if known is None else _stable(known)
            ranges += ranges_of(key, low, high, max(stable_low, state.first_offset), min(high, _stable(end[name])))
        return self.origin.tasks_of(ranges) if ranges else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.reading.of_task(self.origin.read(partition))


def _stream_offset(
    offsets: Mapping[LogKey, int], states: Mapping[LogKey, LogState], start: StreamOffset | None = None
) -> StreamOffset:
    """In a fixed order, because Spark compares the texts."""
    found: StreamOffset = {}
    for key in sorted(offsets, key=str):
        name, state, offset = str(key), states[key], offsets[key]
        found[name] = {"offset": offset, "topic_id": state.topic_id}
        if state.stable_offset is not None and state.stable_offset < offset:
            before = _of_same_topic(start or {}, name, state.topic_id)
            found[name]["stable_offset"] = max(state.stable_offset, 0 if before is None else _stable(before))
    return found


def _of_same_topic(start: StreamOffset, name: str, topic_id: str | None) -> dict[str, Any] | None:
    """What a stream knows of a log; None: it is new, or it was one of another topic of this name."""
    known = start.get(name)
    return known if known is not None and known["topic_id"] == topic_id else None


def _stable(one: Mapping[str, Any]) -> int:
    """Up to where what is in transactions was read."""
    return int(one.get("stable_offset", one["offset"]))


def ranges_of(key: LogKey, low: int, high: int, stable_low: int, stable_high: int) -> list[OffsetRange]:
    """What a micro-batch reads of a log: what is in no transaction between two offsets, and what is between others."""
    if (low, high) == (stable_low, stable_high):
        return [OffsetRange(key, low, high)] if low < high else []
    plain = OffsetRange(key, low, high, only=False)
    transactional = OffsetRange(key, stable_low, stable_high, only=True)
    return [one for one in (plain, transactional) if one.low < one.high]


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
