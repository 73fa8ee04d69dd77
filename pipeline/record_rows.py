"""The table `barnabas.records`: the records of any topic, with raw keys and values."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from barnabas.pipeline.batches import Array
from barnabas.pipeline.columns import Rows, binaries, numbers, one_of, texts, times
from barnabas.pipeline.place import Place
from barnabas.pipeline.records import Records, headers_of
from barnabas.pipeline.shared_columns import partition_columns, producer_columns
from barnabas.protocol.batch_layout import LOG_APPEND_TIME

Contents = Callable[[Array, Array, Array], pa.Array]
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_SEQUENCES = 1 << 31


def record_rows(records: Records, place: Place, contents: Contents = binaries) -> Rows:
    """A row for each record. `contents` makes the columns of keys and values."""
    data, batches = records.data, records.batches
    columns = {
        "offset": lambda: pa.array(records.offset, pa.int64()),
        "timestamp": lambda: times(records.timestamp_ms),
        "timestamp_type": lambda: one_of(
            records.per_batch((batches.headers["attributes"] & LOG_APPEND_TIME) != 0).astype(np.int32), TIMESTAMP_TYPES
        ),
        "key": lambda: contents(data, records.key_at, records.key_bytes),
        "value": lambda: contents(data, records.value_at, records.value_bytes),
        "headers": lambda: _headers(records),
        "leader_epoch": lambda: numbers(records.per_batch(batches.of("leader_epoch")), pa.int32(), -1),
        "sequence": lambda: numbers(_sequences(records), pa.int32(), -1),
    }
    return Rows(records, columns | partition_columns(records, place) | producer_columns(records, place))


def _sequences(records: Records) -> Array:
    """Sequence numbers wrap from 2³¹−1 to 0."""
    base = records.per_batch(records.batches.of("base_sequence")).astype(np.int64)
    delta = records.offset - records.per_batch(records.batches.of("base_offset"))
    return np.where(base < 0, -1, (base + delta) % _SEQUENCES)


_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def _headers(records: Records) -> pa.Array:
    """A list of headers for each record; most are empty."""
    counts = np.maximum(records.header_count, 0)
    ends = np.zeros(len(records) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    total = int(ends[-1])
    where = np.zeros((4, total), np.int64)
    for k, (indexes, *fields) in enumerate(headers_of(records)):
        where[:, ends[indexes] + k] = fields
    keys = texts(records.data, where[0], where[1])
    values = binaries(records.data, where[2], where[3])
    headers = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array(ends), headers)
