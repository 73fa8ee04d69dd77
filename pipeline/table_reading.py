"""From batches of a log to rows of a table: what every task does, whichever way the batches came."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from barnabas.pipeline.aside import put_aside
from barnabas.pipeline.batch_rows import batch_rows, corrupt_rows
from barnabas.pipeline.batches import OFFSETS_END, Array, Batches, Corrupt
from barnabas.pipeline.columns import Rows, views
from barnabas.pipeline.commit_rows import commit_rows
from barnabas.pipeline.filters import Conditions
from barnabas.pipeline.group_rows import group_rows
from barnabas.pipeline.journal_rows import journal_rows
from barnabas.pipeline.parquet_files import FileWriting
from barnabas.pipeline.place import Place, Read
from barnabas.pipeline.record_rows import record_rows
from barnabas.pipeline.records import Records, take_apart
from barnabas.pipeline.schemas import BATCHES, COMMITS, GROUPS, JOURNAL, RECORDS, TABLES, UNREADABLE
from barnabas.protocol.batch_layout import TRANSACTIONAL

ROWS_BYTES_MAX = 128 << 20
"""About how many bytes of keys and values one Arrow batch takes to Spark."""

OF_COORDINATORS = (COMMITS.name, GROUPS.name, JOURNAL.name)
"""Tables of what a coordinator knows: what follows an open transaction counts there, too."""

_NOTHING = {pa.string(): "", pa.int32(): -1, pa.int64(): -1, pa.bool_(): False}

_ROWS: dict[str, Callable[[Records, Place], Rows]] = {
    COMMITS.name: commit_rows,
    GROUPS.name: group_rows,
    JOURNAL.name: journal_rows,
    RECORDS.name: record_rows,
}


@dataclass(frozen=True)
class TableReading:
    """Which rows and columns of a table a query wants."""

    table: str
    schema: pa.Schema  # of the columns that it wants
    conditions: Conditions
    aside: str | None  # the folder for corrupt places
    is_read_committed: bool
    with_holes: bool = False
    files: FileWriting | None = None  # to which the rows go, in place of Spark
    is_stable: bool = False  # whether all that is asked for lies below what is undecided, as a stream's ranges do

    def of_task(self, reads: Iterable[Read]) -> Iterator[pa.RecordBatch]:
        """What a task that reads this hands to Spark."""
        rows = (some for read in reads for some in self.rows(read))
        return rows if self.files is None else self.files.written(rows)

    def rows(self, read: Read) -> Iterator[pa.RecordBatch]:
        """The rows of what was read, without those whose offsets are not wanted."""
        place, batches, low, high, only = read
        corrupt = [one for one in batches.corrupt if _may_touch(one, batches, low, high)]
        if self.with_holes and corrupt:
            yield self._holes(batches, corrupt, place, low, high)
        batches = batches.only((batches.last_offsets >= low) & (batches.of("base_offset") < high))
        if self.table == BATCHES.name:
            if corrupt:
                yield from self._chosen(corrupt_rows(batches, corrupt, place))
            yield from self._chosen(batch_rows(batches, place), lambda chosen: batch_rows(batches.only(chosen), place))
            return
        if only is not None:
            batches = batches.only(((batches.of("attributes") & TRANSACTIONAL) != 0) == only)
        if self.is_read_committed and len(batches):
            readable = place.transactions.readable(batches)
            is_all = self.is_stable or self.table in OF_COORDINATORS
            batches = batches.only(readable if is_all else readable & place.transactions.stable(batches))
        parts, broken = take_apart(batches)
        put_aside(self.aside, place, batches.data, [*corrupt, *broken])
        make = partial(record_rows, contents=views) if pa.binary_view() in self.schema.types else _ROWS[self.table]
        for part in parts:
            wanted = part.only((part.offset >= low) & (part.offset < high))
            for piece in _not_too_large(wanted):
                rows = make(piece, place)
                put_aside(self.aside, place, batches.data, rows.corrupt)
                source = rows.source
                assert isinstance(source, Records)
                again = None if rows.is_made else (lambda chosen, source=source: make(source.only(chosen), place))
                yield from self._chosen(rows, again)

    def _holes(self, batches: Batches, corrupt: list[Corrupt], place: Place, low: int, high: int) -> pa.RecordBatch:
        """A row for each corrupt place: which offsets may be in it, and what is wrong."""
        rows = []
        for one in corrupt:
            first, below = _offsets_around(one, batches)
            row = {field.name: None if field.nullable else _NOTHING[field.type] for field in self.schema}
            row |= {"log_partition": place.partition, "log_offset": max(first, low), "offset": min(below, high)}
            rows.append(row | {"transaction": UNREADABLE, "metadata": one.reason})
        return pa.RecordBatch.from_pylist(rows, self.schema)

    def _chosen(self, rows: Rows, again: Callable[[Array], Rows] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows for which the conditions hold. `again` makes only the chosen ones."""
        if not len(rows.source):
            return
        if not self.conditions.filters:
            yield rows.batch(self.schema)
            return
        chosen = self.conditions.mask(rows, TABLES[self.table].arrow)
        if chosen.all():
            yield rows.batch(self.schema)
        elif chosen.any():
            yield (
                rows.batch(self.schema).filter(pa.array(chosen)) if again is None else again(chosen).batch(self.schema)
            )


def _may_touch(corrupt: Corrupt, batches: Batches, low: int, high: int) -> bool:
    """Whether a corrupt place may hold wanted offsets."""
    first, below = _offsets_around(corrupt, batches)
    return first < high and below > low


def _offsets_around(corrupt: Corrupt, batches: Batches) -> tuple[int, int]:
    """The offsets that may be in a corrupt place. The good batches around it say that: its own may be damaged."""
    behind = int(np.searchsorted(batches.starts, corrupt.position))
    first = int(batches.last_offsets[behind - 1]) + 1 if behind else 0
    below = int(batches.of("base_offset")[behind]) if behind < len(batches) else OFFSETS_END
    return first, below


def _not_too_large(records: Records) -> Iterator[Records]:
    """The records in pieces whose keys and values fit into one Arrow batch."""
    if not len(records):
        return
    sizes = np.maximum(records.key_bytes, 0) + np.maximum(records.value_bytes, 0)
    total = np.cumsum(sizes)
    if total[-1] <= ROWS_BYTES_MAX:
        yield records
        return
    part = total // ROWS_BYTES_MAX
    for number in np.unique(part):
        yield records.only(part == number)
