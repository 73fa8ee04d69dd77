"""Arrow columns from positions in a buffer: numbers, texts and times, each with one operation for all rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from barnabas.pipeline.batches import Array, Batches, Corrupt
from barnabas.pipeline.records import Records

_TIME = pa.timestamp("us", tz="UTC")
_MILLISECONDS_MAX = (2**63 - 1) // 1000
# Of a view that has its bytes itself: which of the twelve are used, by their number.
_BYTES_OF_VIEW = np.where(np.arange(12) < np.arange(13)[:, None], 255, 0).astype(np.uint8).view("<i4")

Columns = dict[str, Callable[[], pa.Array]]
"""What makes each column of a table. Only the columns that are asked for are made."""


@dataclass
class Rows:
    """Rows of a table: what they come from (one entry a row), and how their columns are made."""

    source: Records | Batches
    columns: Columns
    corrupt: list[Corrupt] = field(default_factory=list)
    is_made: bool = False  # every record is decoded already, so making the rows again for some of them saves nothing

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """These columns of the rows."""
        arrays = [self.columns[name]() for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def number_at(data: Array, at: Array, type_: str) -> Array:
    """Big-endian numbers at any positions: `>i2`, `>u2`, `>i4`, `>i8`."""
    size = np.dtype(type_).itemsize
    everywhere = np.ndarray((len(data) - size + 1,), type_, data, strides=(1,))
    found = everywhere[at]
    return found.astype(found.dtype.newbyteorder("="))


def content_of(data: Array, at: int, size: int) -> bytes | None:
    """The bytes of one key or value; None: it is null."""
    return None if size < 0 else data[int(at) : int(at + size)].tobytes()


def numbers(values: Array, type_: pa.DataType, none: int | None = None) -> pa.Array:
    """A column of numbers; `none` becomes null."""
    values = values.astype(type_.to_pandas_dtype(), copy=False)
    if none is None:
        return pa.array(values, type_)
    return pa.array(values, type_, mask=values == none)


def nulls_where(column: pa.Array, absent: Array) -> pa.Array:
    """The column with null where `absent` is true."""
    return pc.if_else(pa.array(absent), pa.scalar(None, column.type), column) if absent.any() else column


def times(milliseconds: Array) -> pa.Array:
    """A column of times; −1 and what Spark cannot hold become null."""
    absent = (milliseconds == -1) | (milliseconds > _MILLISECONDS_MAX) | (milliseconds < -_MILLISECONDS_MAX)
    microseconds = np.where(absent, 0, milliseconds) * 1000
    return pa.array(microseconds, pa.int64(), mask=absent).view(_TIME)


def binaries(data: Array, at: Array, size: Array) -> pa.Array:
    """The bytes at these positions; a negative size is null.

    Arrow gets one array over the whole buffer, in which every second element is a wanted one and the others are the
    gaps between them. It then copies the wanted ones.
    """
    absent = size < 0
    has_absent = bool(absent.any())
    ends = at + np.maximum(size, 0)
    if has_absent:
        before = np.maximum.accumulate(np.where(absent, 0, ends))
        at, ends = (np.where(absent, before, one) for one in (at, ends))
    wanted = np.arange(0, 2 * len(at), 2)
    if (at[1:] < ends[:-1]).any():  # not in the order of the buffer
        order = np.lexsort((ends, at))
        wanted[order] = np.arange(0, 2 * len(at), 2)
        at, ends = at[order], ends[order]
    borders = np.empty(2 * len(at) + 1, np.int32 if len(data) < 2**31 else np.int64)
    borders[:-1:2], borders[1::2] = at, ends
    borders[-1] = ends[-1] if len(at) else 0
    kind = pa.binary() if borders.dtype == np.int32 else pa.large_binary()
    everything = pa.Array.from_buffers(kind, 2 * len(at), [None, pa.py_buffer(borders), pa.py_buffer(data)])
    found = everything.take(pa.array(wanted, mask=absent if has_absent else None))
    return found if kind == pa.binary() else found.cast(pa.binary())


def views(data: Array, at: Array, size: Array) -> pa.Array:
    """The same without a copy, as views. Parquet's writer knows them, and Spark does not."""
    if len(data) >= 2**31:
        return binaries(data, at, size).cast(pa.binary_view())
    fields = np.empty((len(at), 4), np.int32)  # size; the first bytes, buffer, place; or up to twelve bytes
    fields[:, 0] = np.maximum(size, 0)
    fields[:, 1] = number_at(data, at, "<i4")
    fields[:, 2] = 0
    fields[:, 3] = at
    short = np.flatnonzero(size < len(_BYTES_OF_VIEW))
    for column in (1, 2, 3):
        content = number_at(data, at[short] + 4 * (column - 1), "<i4")
        fields[short, column] = content & _BYTES_OF_VIEW[fields[short, 0], column - 1]
    absent = size < 0
    valid = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent.any() else None
    return pa.Array.from_buffers(pa.binary_view(), len(at), [valid, pa.py_buffer(fields), pa.py_buffer(data)])


def texts(data: Array, at: Array, size: Array) -> pa.Array:
    """As `binaries`, as text. Bytes that are not UTF-8 are replaced."""
    found = binaries(data, at, size)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = (None if one is None else one.decode("utf-8", "replace") for one in found.to_pylist())
        return pa.array(list(decoded), pa.string())


def is_text(content: bytes | None) -> bool:
    """Whether these bytes are UTF-8."""
    try:
        (content or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def same(text: str | None, count: int) -> pa.Array:
    """A column with one text in all rows."""
    return pa.nulls(count, pa.string()) if text is None else pa.repeat(pa.scalar(text), count)


def one_of(codes: Array, names: Sequence[str]) -> pa.Array:
    """A column of texts, from an index into `names` for each row; −1 is null."""
    if len(codes) and codes.max() < 0:
        return pa.nulls(len(codes), pa.string())
    return pa.array(list(names), pa.string()).take(pa.array(codes, pa.int32(), mask=codes < 0))
