"""Logs from data directories."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from barnabas.pipeline.batches import OFFSETS_END
from barnabas.pipeline.directories import Log, Piece, offsets_at, pieces_of, read_logs
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.options import ReadOptions
from barnabas.pipeline.origin import TASKS_AT_LEAST, LogKey, LogState, OffsetRange, Wanted
from barnabas.pipeline.place import Read
from barnabas.pipeline.segment_reading import check_reached, ended_transactions, log_end, read_piece
from pyspark.sql.datasource import InputPartition

_TASK_BYTES_MIN = 1 << 20


@dataclass
class DirectoryTask(InputPartition):
    """What one task reads."""

    pieces: Sequence[Piece]
    must_reach: bool  # what is not there yet will not be asked for again


@dataclass(frozen=True)
class DirectoryOrigin:
    """The logs of these topics in the data directories that the options name."""

    options: ReadOptions
    topics: tuple[str, ...]
    with_internal: bool
    decides: bool = False  # of commits only those are held back whose transaction is open, not all that follow

    def _logs(self) -> list[Log]:
        return read_logs(self.options, self.topics, with_internal=self.with_internal)

    def _key(self, log: Log) -> LogKey:
        return LogKey(log.topic, log.partition, log.directory if self.options.replicas == "all" else None)

    def states(self) -> dict[LogKey, LogState]:
        found = {}
        for log in self._logs():
            end = log_end(log) if log.end_offset == OFFSETS_END else log.end_offset
            stable = None
            if self.options.is_read_committed:
                stable = ended_transactions(log, end).last_stable_offset
            if not self.decides and stable is not None:
                end, stable = stable, None
            found[self._key(log)] = LogState(log.topic_id, min(log.first_offset, end), end, stable)
        return found

    def log_ends(self) -> dict[LogKey, int]:
        """Below the high watermark: copied while their broker ran, or cut. Above it: its checkpoint is not so new."""
        return {self._key(log): log_end(log) for log in self._logs() if log.end_offset != OFFSETS_END}

    def tasks(self, wanted: Wanted) -> list[InputPartition]:
        """The segments in pieces of about `splitBytes`; small logs share a task."""
        logs = [log for log in self._logs() if wanted.has(log.topic, log.partition)]
        split_bytes = self._task_bytes(sum(segment.size_bytes for log in logs for segment in log.segments))
        pieces: list[Piece] = []
        for log in logs:
            for low, high in wanted.of(log.partition):
                pieces += pieces_of(log, low, high, split_bytes, newer_than_ms=wanted.newer_than_ms)
        return _packed(pieces, split_bytes, must_reach=False)

    def tasks_of(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        """The same for ranges of offsets."""
        logs = {self._key(log): log for log in self._logs()}
        pieces: list[Piece] = []
        for one in ranges:
            if one.key not in logs:
                raise LostRecordsError(f"{one.key}: deleted while it was to be read")
            log = logs[one.key]
            pieces += pieces_of(log, one.low, one.high, self.options.split_bytes, only=one.only)
            if log.segments and not log.segments[-1].size_bytes:
                check_reached(log, log.segments[-1].base_offset, one.high, fails=self.options.fail_on_data_loss)
        return _packed(pieces, self._task_bytes(sum(piece.size_bytes for piece in pieces)), must_reach=True)

    def _task_bytes(self, total: int) -> int:
        return max(_TASK_BYTES_MIN, min(self.options.split_bytes, total // TASKS_AT_LEAST))

    def within_bytes(self, starts: Mapping[LogKey, int], ends: Mapping[LogKey, int], size: int) -> dict[LogKey, int]:
        """Each log's share is its share of the bytes that are there. The offset indexes say which offsets these are."""
        logs = {self._key(log): log for log in self._logs() if self._key(log) in ends}
        there = {
            key: sum(piece.size_bytes for piece in pieces_of(log, starts[key], ends[key], OFFSETS_END))
            for key, log in logs.items()
        }
        total = sum(there.values())
        if total <= size:
            return dict(ends)
        found = dict(starts)  # a log that is gone since a moment is not new if it comes back
        for key, log in logs.items():
            found[key] = _end_within(log, starts[key], ends[key], size * there[key] // total)
        return found

    def within_files(self, starts: Mapping[LogKey, int], ends: Mapping[LogKey, int], count: int) -> dict[LogKey, int]:
        """Segments one after the other, the logs in turns, so that none waits for all others."""
        logs = {self._key(log): log for log in self._logs() if self._key(log) in ends}
        found = dict(starts)
        left = count
        while left:
            before = left
            for key, log in logs.items():
                end = next((one.base_offset for one in log.segments if one.base_offset > found[key]), OFFSETS_END)
                if left and found[key] < ends[key]:
                    found[key] = min(end, ends[key])
                    left -= 1
            if left == before:
                break
        return found

    def read(self, task: InputPartition) -> Iterator[Read]:
        assert isinstance(task, DirectoryTask)
        for piece in task.pieces:
            must_reach = task.must_reach and self.options.fail_on_data_loss
            yield from read_piece(piece, fail_on_data_loss=self.options.tasks_fail_on_loss, must_reach=must_reach)


def _packed(pieces: Sequence[Piece], task_bytes: int, *, must_reach: bool) -> list[InputPartition]:
    """Tasks of about so many bytes. Pieces that follow one another stay together."""
    tasks: list[InputPartition] = []
    some: list[Piece] = []
    size = 0
    for piece in pieces:
        if some and size + piece.size_bytes > task_bytes * 5 // 4:
            tasks.append(DirectoryTask(some, must_reach))
            some, size = [], 0
        some.append(piece)
        size += piece.size_bytes
    return [*tasks, DirectoryTask(some, must_reach)]


def _end_within(log: Log, low: int, high: int, size: int) -> int:
    """The end of the batches from `low` on that are about `size` bytes; of at least one batch."""
    for piece in pieces_of(log, low, high, OFFSETS_END):
        if piece.size_bytes > size:
            positions, offsets = offsets_at(piece.segment)
            at = int(np.searchsorted(positions, piece.start + size, side="right")) - 1
            ends = [int(end) + 1 for end in offsets[max(at, 0) : at + 2] if end >= low]  # no entry: nothing is known
            return min(high, ends[0] if ends else piece.offsets_below)
        size -= piece.size_bytes
    return high
