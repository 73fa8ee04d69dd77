"""Parquet files that the tasks of a source write themselves (its option `files`), in place of the rows that they would
hand to Spark.

Spark takes Arrow's columns apart into rows, and makes Parquet's columns of these again, which costs several times what
it costs to find the records. So where a job keeps rows as they are, the tasks write them. Each file is one row of what
such a source gives out. Only these files count: a task that fails leaves others behind, so the folder is one that
nobody reads, and whose files the job moves to their place.

    day=2026-11-21/log_partition=7/part-….parquet     commits, without those that are aborted or open (`HistoryFolder`)
    outcome=good/day=2026-11-21/part-….parquet        records, as the job `export` writes them without a schema
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from barnabas.pipeline.history_state import OPEN, Hole
from barnabas.pipeline.schemas import COMMITS, INT, LONG, RECORDS, STRING, UNREADABLE, arrow_schema, struct
from pyspark import __version__ as spark_version

FILES = struct(file=STRING, row_count=LONG, hole=struct(partition=INT, low=LONG, high=LONG, reason=STRING))
"""What a source gives out that writes files: a row for each file, and one for each hole in the commits."""

CODECS = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}
ROW_GROUP_BYTES = 64 << 20
WRITERS_MAX = 64  # files that a task has open; what comes for another one closes them
_DAY_US = 86_400_000_000
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
_PLAIN = frozenset({"offset", "log_offset"})  # nearly all values differ, so a dictionary of them only costs
_FILES = arrow_schema(FILES)
# Spark then knows that the times in the file need no other calendar.
_METADATA = {"org.apache.spark.version": spark_version}

Places = Iterator[tuple[str, pa.RecordBatch]]


@dataclass(frozen=True)
class FileWriting:
    """Where the tasks of a query write their rows. `codec`: `snappy`, or with its level `zstd:1`."""

    table: str
    folder: str
    codec: str

    def written(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task; what was written."""
        places, holes_in = _LAYOUTS[self.table]
        files = _Files(self.folder, self.codec)
        found: list[dict[str, Any]] = []
        for batch in rows:
            found += [{"hole": hole._asdict()} for hole in holes_in(batch)]
            for place, some in places(batch):
                files.add(place, some)
        found += [{"file": name, "row_count": count} for name, count in files.close()]
        yield pa.RecordBatch.from_pylist(found, _FILES)


def write_by_day(rows: pa.Table, time: str, folder: str, codec: str) -> None:
    """Write rows that this process has made, those of each day to one file."""
    files = _Files(folder, codec)
    for batch in rows.combine_chunks().to_batches():
        for day, of_day in _by(batch, _days(batch[time])):
            files.add(f"day={day_text(day)}", of_day)
    files.close()


class _Files:
    """The files of one task: one in each place, unless there are very many places."""

    def __init__(self, folder: str, codec: str) -> None:
        self._folder = folder
        name, _, level = codec.partition(":")
        self._codec = CODECS[name.lower()]
        self._level = int(level) if level and self._codec == "zstd" else None
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._writers: dict[str, tuple[str, pq.ParquetWriter]] = {}
        self._counts: dict[str, int] = {}  # of rows, by file

    def add(self, place: str, rows: pa.RecordBatch) -> None:
        """Rows of the files in a place."""
        self._held.setdefault(place, []).append(rows)
        self._held_bytes += rows.get_total_buffer_size()
        if self._held_bytes > ROW_GROUP_BYTES:
            self._write()

    def close(self) -> list[tuple[str, int]]:
        """Write what is left; all files, with their numbers of rows."""
        self._write()
        self._close()
        return [*self._counts.items()]

    def _write(self) -> None:
        for place, held in self._held.items():
            table = pa.Table.from_batches(held)
            name, writer = self._writer(place, table.schema)
            writer.write_table(table, row_group_size=len(table))
            self._counts[name] += len(table)
        self._held, self._held_bytes = {}, 0

    def _writer(self, place: str, schema: pa.Schema) -> tuple[str, pq.ParquetWriter]:
        if place not in self._writers:
            if len(self._writers) >= WRITERS_MAX:
                self._close()
            suffix = "" if self._codec == "none" else f".{self._codec}"
            name = f"{place}/part-{uuid4()}{suffix}.parquet"
            os.makedirs(f"{self._folder}/{place}", exist_ok=True)
            writer = pq.ParquetWriter(
                f"{self._folder}/{name}",
                schema.with_metadata(_METADATA),
                compression=self._codec,
                compression_level=self._level,
                use_dictionary=[one.name for one in schema if one.name not in _PLAIN],
                store_schema=False,
            )
            self._writers[place], self._counts[name] = (name, writer), 0
        return self._writers[place]

    def _close(self) -> None:
        for _, writer in self._writers.values():
            writer.close()
        self._writers = {}


def _history(rows: pa.RecordBatch) -> Places:
    """Commits that count, by day and partition of the log."""
    state = rows["transaction"]
    if state.null_count < len(rows):
        rows = rows.filter(pc.fill_null(pc.equal(state, "committed"), True))
    for partition, some in _by(rows, rows["log_partition"].to_numpy()):
        for day, of_day in _by(some, _days(some["log_timestamp"])):
            yield f"day={day_text(day)}/log_partition={partition}", of_day.drop_columns(["log_partition"])


def _holes(rows: pa.RecordBatch) -> list[Hole]:
    """What is not in the history although it should be: what cannot be read, and open transactions."""
    state = rows["transaction"]
    if state.null_count == len(rows):
        return []
    found = rows.filter(pc.is_in(state, pa.array(["open", UNREADABLE])))
    names = ("transaction", "log_partition", "log_offset", "offset", "metadata", "group_id")
    return [
        Hole(partition, low, high, reason)
        if state == UNREADABLE
        else Hole(partition, low, low + 1, f"{OPEN} of group {group}")
        for state, partition, low, high, reason, group in zip(*(found[name].to_pylist() for name in names))
    ]


def _export(rows: pa.RecordBatch) -> Places:
    """Records by day. All are good."""
    for name, kind in (("reason", pa.string()), ("raw", pa.binary())):
        rows = rows.append_column(pa.field(name, kind), pa.nulls(len(rows), kind))
    for day, of_day in _by(rows, _days(rows["timestamp"])):
        yield f"outcome=good/day={day_text(day)}", of_day


_LAYOUTS: dict[str, tuple[Callable[[pa.RecordBatch], Places], Callable[[pa.RecordBatch], list[Hole]]]] = {
    COMMITS.name: (_history, _holes),
    RECORDS.name: (_export, lambda _: []),
}


def _by(rows: pa.RecordBatch, values: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each value. Nearly always there is one."""
    if not len(rows):
        return
    if values.min() == values.max():
        yield int(values[0]), rows
        return
    schema = pa.schema([one.with_type(pa.binary()) if one.type == pa.binary_view() else one for one in rows.schema])
    plain = rows.cast(schema)  # pyarrow (26) cannot choose among views
    for value in np.unique(values):
        yield int(value), plain.filter(pa.array(values == value)).cast(rows.schema)


_NONE = np.iinfo(np.int64).min


def _days(times: pa.Array) -> np.ndarray:
    """The days of times in UTC, from 1970 on; `_NONE` without a time."""
    microseconds = times.view(pa.int64())
    days = microseconds.fill_null(0).to_numpy() // _DAY_US
    return np.where(microseconds.is_null().to_numpy(zero_copy_only=False), _NONE, days) if times.null_count else days


def day_text(day: int) -> str:
    """The day as Spark names its folder."""
    if day == _NONE:
        return _NO_DAY
    date = np.datetime64(day, "D")
    year = int(date.astype("datetime64[Y]").astype(np.int64)) + 1970
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}{str(date)[-6:]}"
