"""`lag` of a small source without Spark, whose start is most of what a small run costs.

It makes the table that a run with Spark makes (`jobs/lag_in_arrow.py`), in the same folder (`day_table.py`), so the two
follow one another in any order, and what a killed run has begun the next one ends.

Tables of a catalog, other formats, runs that follow, and a small source that makes a large table need Spark.
"""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from barnabas.pipeline.day_table import DAY, DayFolder, Made
from barnabas.pipeline.export_files import whole
from barnabas.pipeline.file_sink import SUCCESS, data_files
from barnabas.pipeline.files import LocalFiles
from barnabas.pipeline.history_state import held_back
from barnabas.pipeline.jobs import lag_in_arrow
from barnabas.pipeline.jobs.lag import COLUMNS
from barnabas.pipeline.jobs.lag_in_arrow import ROWS_MAX, TooManyRowsError
from barnabas.pipeline.local_files import local_path
from barnabas.pipeline.losses import lost_in
from barnabas.pipeline.once import GROUP_PREFIX
from barnabas.pipeline.parquet_files import day_text, write_by_day
from barnabas.pipeline.run import GROWTH_COLUMNS, Summary
from barnabas.pipeline.runs import GroupLag, is_small, lag_summary, with_losses
from barnabas.pipeline.schemas import BATCHES, COMMITS, DATE, arrow_schema
from barnabas.pipeline.small_tables import rows_of
from barnabas.pipeline.source import Source
from pyspark.sql.types import StructField, StructType

CODEC = "snappy"  # Spark's default
NEEDS_SPARK = ("stream", "follow", "table")
_COMMIT_COLUMNS = ("group_id", "topic", "partition", "offset", "log_offset", "log_timestamp", "transaction")
_OF_GROUP = ["group_id", "topic"]
_SAID = [*_OF_GROUP, "partition", "at", "lag_records", "lag_seconds"]
_DAY = re.compile(rf"{DAY}=\d{{4}}-\d\d-\d\d/")


def small_lag(source: Source, out: str, settings: Mapping[str, Any]) -> Summary | None:
    """Write the lag of every group, and say it; None: it needs Spark. LostRecordsError, OutError."""
    folder, every_s = local_path(out), settings["every_s"]
    if folder is None or any(settings.get(name) for name in NEEDS_SPARK):
        return None
    if settings.get("format", "parquet") != "parquet" or not is_small("lag", source, out, settings):
        return None
    table, aside = DayFolder(LocalFiles(), str(folder), "lag"), f"{folder}/aside"
    made = Made(str(source), source.identity(), {"every_s": every_s})
    before = table.begin(made)
    there = data_files(table.files, table.path)
    if not all(map(_DAY.match, there)):  # of an earlier version, which kept nothing, or of years beyond 9999
        return None
    if sum(_file(table, name).metadata.num_rows for name in there) > ROWS_MAX:
        return None
    options = source.where() | {"aside": aside}
    commits = _table(COMMITS.name, options | {"columns": ",".join(_COMMIT_COLUMNS)})
    batches = _table(BATCHES.name, options | {"topics": "*", "columns": ",".join(GROWTH_COLUMNS)})
    commits = commits.filter(pc.invert(pc.starts_with(commits["group_id"], GROUP_PREFIX)))
    state = commits["transaction"]
    held = commits.filter(pc.fill_null(pc.equal(state, "open"), False))["group_id"].to_pylist()
    commits = commits.filter(pc.fill_null(pc.equal(state, "committed"), True))
    try:
        rows = lag_in_arrow.lag(commits, batches, every_s, time.time_ns() // 1000)
    except TooManyRowsError:
        return None
    about = made.about(StructType([*COLUMNS.fields, StructField(DAY, DATE)]).json())
    if before is None or not there:
        _write(rows, table.making_all)
        table.put_all(about)
    else:
        _write(lag_in_arrow.merged(_last_days(table, there, every_s), rows, every_s), table.making)
        table.put(about)
    said = lag_summary(_groups(table), f"{out}/lag")
    return with_losses(said, lost_in(out, "lag"), aside, held_back(len(held), held))


def _table(name: str, options: Mapping[str, str]) -> pa.Table:
    schema, rows = rows_of(name, options)
    return pa.Table.from_batches(rows, arrow_schema(schema))


def _write(rows: pa.Table, folder: str) -> None:
    files = LocalFiles()
    files.remove(folder)
    write_by_day(rows, "at", folder, CODEC)
    files.write(f"{folder}/{SUCCESS}", "")


def _last_days(table: DayFolder, there: list[str], every_s: int) -> pa.Table:
    """The rows of the last day, and of the one in which the window before its first one is."""
    day = max(there).split("/")[0]
    since = datetime.fromisoformat(day.partition("=")[2]).replace(tzinfo=UTC).timestamp() - every_s
    days = {day, f"{DAY}={day_text(int(since // 86_400))}"}
    names = [name for name in there if name.split("/")[0] in days]
    return pa.concat_tables(_file(table, name).read() for name in names)


def _file(table: DayFolder, name: str) -> pq.ParquetFile:
    """A file of the table. OutError: it is cut."""
    with whole(f"{table.path}/{name}", "remove the table, so that a run says anew what the logs still have"):
        return pq.ParquetFile(f"{table.path}/{name}")


def _groups(table: DayFolder) -> list[GroupLag]:
    """What the whole table says of each group in a topic."""
    schema = pa.schema([arrow_schema(COLUMNS).field(name) for name in _SAID])
    names = data_files(table.files, table.path)
    parts = (_file(table, name).read(_SAID).select(_SAID).cast(schema) for name in names)
    rows = pa.concat_tables([schema.empty_table(), *parts])
    windows = rows.group_by([*_OF_GROUP, "at"]).aggregate(
        [("lag_records", "sum"), ("lag_seconds", "max"), ("partition", "count")]
    )
    windows = windows.rename_columns([*_OF_GROUP, "at", "records", "seconds", "rows"])
    windows = windows.append_column("known", windows["records"].fill_null(-1))

    def last(order: Sequence[str], *columns: str) -> list[list[Any]]:
        """Of each group the last window in an order."""
        nulls = pc.ScalarAggregateOptions(skip_nulls=False)
        in_order = windows.sort_by([(name, "ascending") for name in order])
        found = in_order.group_by(_OF_GROUP, use_threads=False).aggregate(
            [*((name, "last", nulls) for name in columns), ("rows", "sum")]
        )
        return list(found.sort_by([(name, "ascending") for name in _OF_GROUP]).to_pydict().values())

    *of, end, records, seconds, counts = last(("at",), "at", "records", "seconds")
    *_, largest, largest_at, _ = last(("known", "at"), "records", "at")
    ends = [int(at.timestamp()) for at in end]
    texts = ([f"{at:%Y-%m-%d %H:%M:%S}" for at in times] for times in (end, largest_at))
    return list(map(GroupLag, *of, ends, next(texts), records, seconds, largest, next(texts), counts))
