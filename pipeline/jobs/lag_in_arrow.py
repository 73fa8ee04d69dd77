"""`lag` of tables that are small: the rows of `lag.py` and `kept.lag` without Spark, by a few sorts of whole columns.

Spark's start costs a small run ten times what its rows do. `lag.py` says what the rows mean. Steps have the names that
they have there, and tests hold the two against each other, row by row.

Numbers are int64, times in microseconds, and `NONE`, which sorts before all others, is null, as nulls do in Spark.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from barnabas.pipeline.as_of import CLOCKS_DIFFER_S
from barnabas.pipeline.batches import OFFSETS_END, Array
from barnabas.pipeline.jobs.events import NONE
from barnabas.pipeline.jobs.lag import COLUMNS, RATES
from barnabas.pipeline.jobs.offsets import GROUP_PARTITION
from barnabas.pipeline.schemas import arrow_schema

ROWS_MAX = 4_000_000
"""So many rows are made in memory, with about 200 bytes for each."""

_SECOND_US = 1_000_000


class TooManyRowsError(Exception):
    """What is small makes a table that is not, so Spark has to make it."""


def lag(commits: pa.Table, batches: pa.Table, every_s: int, now_us: int) -> pa.Table:
    """The lag at the end of every window, in the order of the groups. TooManyRowsError."""
    step = every_s * _SECOND_US
    latest_us = now_us + CLOCKS_DIFFER_S * _SECOND_US
    batches = batches.filter(pc.is_null(batches["error"]))
    commits = commits.filter(pc.is_valid(commits["log_timestamp"]))
    times, arrived = _numbers(commits, "log_timestamp"), _numbers(batches, "max_timestamp")
    last_end = _last_end(np.concatenate((times, arrived)), step, latest_us)
    place, log_of_commit, log = _places(commits, batches)

    commit, at = _at_each_end(commits, place, times, last_end, step)
    log_of_row, committed = log_of_commit[commit], _numbers(commits, "offset")[commit]

    last_offset = _numbers(batches, "last_offset")
    # What has no time that can be right was there in the end.
    known_at = np.where((arrived == NONE) | (arrived > latest_us), last_end, arrived + 1000)
    batch = _best(log, known_at, np.argsort(last_offset), log_of_row, at)
    log_end = np.where(batch < 0, NONE, last_offset[batch] + 1) if len(batches) else np.full(len(at), NONE)

    is_known = log_end != NONE
    # An offset may be any number that a client has sent.
    unread = log_end - np.maximum(committed, np.maximum(log_end, 0) - OFFSETS_END)
    seconds = _seconds_behind(batches, log, log_of_row, committed, at)
    names = {name: commits[name].take(pa.array(commit)) for name in GROUP_PARTITION}
    columns = {
        "at": at,
        "committed_offset": committed,
        "log_end_offset": log_end,
        "lag_records": np.where(is_known, np.maximum(0, unread), NONE),
    }
    table = pa.table({**names, **{name: _nullable(column) for name, column in columns.items()}})
    behind = pa.array(np.where(log_end > committed, seconds, 0.0), mask=~is_known)
    table = table.append_column("lag_seconds", behind)
    for rate in RATES:
        table = table.append_column(rate, pa.nulls(len(table), pa.float64()))
    return _with_rates(table, place[commit], np.ones(len(table), bool), every_s)


def merged(old: pa.Table, now: pa.Table, every_s: int) -> pa.Table:
    """As `kept.lag`: windows that have passed stay; from the last one on it is what the run says, and what only the old
    one did. `old` must have the last day that is there, and the window before it."""
    last = int(_numbers(old, "at").max())
    since = last // (86_400 * _SECOND_US) * 86_400 * _SECOND_US
    old = old.select(now.column_names).cast(now.schema)
    both = pa.concat_tables([now.filter(pa.array(_numbers(now, "at") >= since)), old])
    at = _numbers(both, "at")
    is_old = np.arange(len(both)) >= len(both) - len(old)
    place = _codes(*(both[name] for name in GROUP_PARTITION))
    order = np.lexsort((is_old == (at >= last), at, place))  # of the same place and time, the one that counts is first
    place, at = place[order], at[order]
    is_first = np.append(True, (place[1:] != place[:-1]) | (at[1:] != at[:-1]))
    both = both.take(pa.array(order[is_first]))
    place, at = place[is_first], at[is_first]
    rows = _with_rates(both, place, at >= last, every_s)
    return rows.filter(pa.array(at >= since))


def _last_end(times: Array, step: int, latest_us: int) -> int:
    """The end of the last window in which something happened."""
    right = times[(times != NONE) & (times <= latest_us)]
    return int(right.max()) // step * step + step if len(right) else NONE


def _places(commits: pa.Table, batches: pa.Table) -> tuple[Array, Array, Array]:
    """Numbers for the group and partition of each commit, and for the partitions of commits and batches."""
    both = pa.concat_tables([one.select(("topic", "partition")) for one in (commits, batches)])
    logs = _codes(both["topic"], both["partition"])
    of_commits = logs[: len(commits)]
    return _codes(commits["group_id"], commits["topic"], commits["partition"]), of_commits, logs[len(commits) :]


def _at_each_end(commits: pa.Table, place: Array, times: Array, last_end: int, step: int) -> tuple[Array, Array]:
    """The index of the newest commit of each place at the end of every window, without tombstones; and these ends."""
    ends = times // step * step + step
    if last_end != NONE:
        ends = np.minimum(ends, last_end)  # a broker's clock may have been ahead for a while
    order = np.lexsort((ends, place))
    own, at = place[order], ends[order]
    is_last = np.append((own[1:] != own[:-1]) | (at[1:] != at[:-1]), np.ones(min(1, len(own)), bool))
    own, at = own[is_last], at[is_last]
    offsets = _numbers(commits, "offset")
    newest = _best(place, ends, np.lexsort((offsets, _numbers(commits, "log_offset"))), own, at)
    until = np.full(len(at), last_end)
    until[:-1] = np.where(own[1:] == own[:-1], at[1:] - step, last_end)
    counts = np.where((until >= at) & (offsets[newest] != NONE), (until - at) // step + 1, 0)
    if counts.sum(dtype=float) > ROWS_MAX:
        raise TooManyRowsError
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(newest, counts), np.repeat(at, counts) + number * step


def _seconds_behind(batches: pa.Table, log: Array, log_of_row: Array, committed: Array, at: Array) -> Array:
    """The age of the first record that is not consumed, where there is one."""
    spans = [_numbers(batches, name) for name in ("last_offset", "base_offset", "base_timestamp", "max_timestamp")]
    first = np.lexsort(spans[::-1])[::-1]  # the first batch that does not end below the offset
    index = _best(log, ~spans[0], first, log_of_row, ~committed)
    if not len(batches):
        return np.zeros(len(at))
    last_offset, base_offset, base_us, last_us = (column[index] for column in spans)
    base_offset = np.where(base_offset == NONE, last_offset, base_offset)
    last_ms = last_us // 1000
    base_ms = np.where(base_us == NONE, last_ms, base_us // 1000)
    into, length = np.maximum(0, committed - base_offset), np.maximum(1, last_offset - base_offset)
    # As floats: a time may be microseconds in place of milliseconds, and no product of times is too large then.
    produced = base_ms + (last_ms - base_ms).astype(float) * into / length
    age = np.maximum(0.0, (at // 1000 - produced) / 1000)
    return np.where((index < 0) | (last_us == NONE), 0.0, age)


def _with_rates(table: pa.Table, place: Array, chosen: Array, every_s: int) -> pa.Table:
    """With the rates of the chosen rows that have none, where the window before is there, too. Rows are in order."""
    at = _numbers(table, "at")
    is_next = np.zeros(len(at), bool)
    is_next[1:] = (place[1:] == place[:-1]) & (at[1:] - at[:-1] == every_s * _SECOND_US)
    for rate, name in RATES.items():
        values = _numbers(table, name)
        grown = np.zeros(len(at))
        grown[1:] = (values[1:].astype(float) - values[:-1]) / every_s
        has = chosen & is_next & (values != NONE) & (np.roll(values, 1) != NONE)
        column = pc.coalesce(table[rate], pa.array(grown, mask=~has))
        table = table.set_column(table.column_names.index(rate), rate, column)
    return table.select(COLUMNS.names).cast(arrow_schema(COLUMNS))


def _best(on: Array, by: Array, order: Array, row_on: Array, row_by: Array) -> Array:
    """For each row the index of a fact: of those with the same `on` whose `by` is not larger, the last in `order`; −1:
    there is none. `on` is not negative."""
    count = len(on)
    rank = np.zeros(count + len(row_on), np.int64)
    rank[order] = np.arange(1, count + 1)
    every_on, every_by = np.concatenate((on, row_on)), np.concatenate((by, row_by))
    sort = np.lexsort((np.arange(len(rank)) >= count, every_by, every_on))  # facts before rows
    best = np.empty(len(rank), np.int64)
    # The ranks of one `on` are above all of those before it.
    best[sort] = np.maximum.accumulate(every_on[sort] * (count + 1) + rank[sort]) % (count + 1)
    return np.append(-1, order)[best[count:]]


def _codes(*columns: pa.ChunkedArray) -> Array:
    """A number for each combination of values, in their order."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        codes = np.unique(codes * len(order) + rank[encoded.indices.to_numpy()], return_inverse=True)[1]
    return codes


def _numbers(table: pa.Table, name: str) -> Array:
    column = table[name].combine_chunks()
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return column.cast(pa.int64()).fill_null(NONE).to_numpy()


def _nullable(column: Array) -> pa.Array:
    return pa.array(column, mask=column == NONE)
