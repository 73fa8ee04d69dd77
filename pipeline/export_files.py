"""What is in the folder of an export: how many records of which outcome, and of which time.

The footers of the files say nearly all of it. So an export of many gigabytes, too, is summed up at once, and without
Spark. Only rows that were put aside are read, because each has its reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from barnabas.pipeline.file_sink import data_files
from barnabas.pipeline.files import LocalFiles
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.parquet_files import day_text

READ_AGAIN = "remove the table and its folder in _checkpoints, so that a run reads everything again"
_GOOD = "outcome=good/"
_KIND, _UNIT = "INT64", "timeUnit=microseconds"  # of times, unless Spark was told otherwise


class Part(NamedTuple):
    """Records with the same reason: how many, and their first and last time in microseconds."""

    reason: str | None
    record_count: int
    first: int | None
    last: int | None


def exported(folder: str, topic: str) -> list[tuple[Any, ...]]:
    """Topic, outcome, reason, count, first and last time: of good records first, then by reason. OutError."""
    found: dict[tuple[bool, str], list[Part]] = {}
    for name in data_files(LocalFiles(), folder):
        is_good = name.startswith(_GOOD)
        with whole(f"{folder}/{name}", READ_AGAIN):
            for part in _parts(f"{folder}/{name}", is_good=is_good):
                found.setdefault((not is_good, part.reason or ""), []).append(part)
    rows = []
    for (is_bad, _), parts in sorted(found.items()):
        first = min((one.first for one in parts if one.first is not None), default=None)
        last = max((one.last for one in parts if one.last is not None), default=None)
        count = sum(one.record_count for one in parts)
        rows.append((topic, "bad" if is_bad else "good", parts[0].reason, count, _time(first), _time(last)))
    return rows


@contextmanager
def whole(path: str, without_copy: str) -> Iterator[None]:
    """While a file of a table is read: OutError if it is none of Parquet, or only a part of one.

    `without_copy`: what to do if there is no copy of it.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        why = str(error).partition(".")[0]
        raise OutError(f"{path} is cut or damaged ({why}). Put it back, from a copy; or {without_copy}") from error


def _parts(path: str, *, is_good: bool) -> Iterator[Part]:
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        for number in range(file.num_row_groups):
            part = _from_footer(file.metadata.row_group(number)) if is_good else None
            if part is not None:
                yield part
                continue
            rows = file.read_row_group(number, columns=["reason", "timestamp"])
            at = pc.cast(pc.cast(rows["timestamp"], pa.timestamp("us", "UTC")), pa.int64())
            counts = pa.table({"reason": rows["reason"], "at": at}).group_by("reason")
            for row in counts.aggregate([([], "count_all"), ("at", "min"), ("at", "max")]).to_pylist():
                yield Part(row["reason"], row["count_all"], row["at_min"], row["at_max"])


def _from_footer(group: pq.RowGroupMetaData) -> Part | None:
    """A part of a file with good records; None: its footer does not say of which time they are."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "timestamp" and column.is_stats_set:
            said = column.statistics
            if said.has_null_count and said.null_count == group.num_rows:
                return Part(None, group.num_rows, None, None)
            if said.has_min_max and said.physical_type == _KIND and _UNIT in str(said.logical_type):
                return Part(None, group.num_rows, said.min_raw, said.max_raw)
    return None


def _time(microseconds: int | None) -> str | None:
    """As people write it."""
    if microseconds is None:
        return None
    day, of_day = divmod(microseconds // 1_000_000, 86_400)
    return f"{day_text(day)} {of_day // 3600:02}:{of_day // 60 % 60:02}:{of_day % 60:02}"
