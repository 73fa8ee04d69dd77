"""What a query asks of rows: conditions that Spark hands to a source, so that other rows are never made.

Every comparison of a column with a constant is taken over. Those on topic, partition, offset and time also say which
logs, segments and batches need not be read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from barnabas.pipeline.batches import OFFSETS_END, Array
from barnabas.pipeline.columns import Rows
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

_COMPARISONS: dict[type, Callable[[pa.Array, Any], pa.Array]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_TEXTS: dict[type, Callable[[pa.Array, str], pa.Array]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}


@dataclass(frozen=True)
class Conditions:
    """The conditions of a query, all of which hold for its rows."""

    filters: tuple[Filter, ...] = ()

    def mask(self, rows: Rows, schema: pa.Schema) -> Array:
        """Whether each row is asked for. `schema`: that of the whole table."""
        result = np.ones(len(rows.source), bool)
        made: dict[str, pa.Array] = {}
        for one in self.filters:
            name = column_of(one)
            if name not in made:
                made[name] = rows.columns[name]().cast(schema.field(name).type)
            holds = _holds(one, made[name])
            result &= pc.fill_null(holds, False).to_numpy(zero_copy_only=False)
        return result

    def values(self, name: str) -> frozenset[Any] | None:
        """The only values that a column may have; None if there is no such condition."""
        found: frozenset[Any] | None = None
        for one in self._of(name):
            if isinstance(one, EqualTo | In):
                values = frozenset(one.value if isinstance(one, In) else (one.value,))
                found = values if found is None else found & values
        return found

    def bounds(self, name: str) -> tuple[int, int]:
        """The smallest value that a column of whole numbers may have, and the one before which they end."""
        low, high = 0, OFFSETS_END
        for one in self._of(name):
            if isinstance(one, EqualTo | GreaterThanOrEqual):
                low = max(low, one.value)
            if isinstance(one, GreaterThan):
                low = max(low, one.value + 1)
            if isinstance(one, EqualTo | LessThanOrEqual):
                high = min(high, one.value + 1)
            if isinstance(one, LessThan):
                high = min(high, one.value)
        return low, high

    def newer_than_ms(self, name: str) -> int | None:
        """The smallest time that a column may have, rounded down to a millisecond; None: any."""
        times = [
            _microseconds(one.value) // 1000
            for one in self._of(name)
            if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual)
        ]
        return max(times, default=None)

    def _of(self, name: str) -> Iterable[Any]:
        return [one for one in self.filters if not isinstance(one, Not) and column_of(one) == name]


def accept(filters: Sequence[Filter], schema: pa.Schema) -> tuple[Conditions, list[Filter]]:
    """The conditions that a source takes over, and those that Spark has to apply itself."""
    taken: list[Filter] = []
    rest: list[Filter] = []
    for one in filters:
        (taken if _is_known(one, schema) else rest).append(one)
    return Conditions(tuple(taken)), rest


def column_of(one: Any) -> str:
    """The column that a condition is about."""
    while isinstance(one, Not):
        one = one.child
    return str(one.attribute[0])


def _is_known(one: Any, schema: pa.Schema) -> bool:
    while isinstance(one, Not):
        one = one.child
    if not hasattr(one, "attribute") or len(one.attribute) != 1 or one.attribute[0] not in schema.names:
        return False
    type_ = schema.field(one.attribute[0]).type
    if pa.types.is_nested(type_):
        return isinstance(one, IsNull | IsNotNull)
    if type(one) in _TEXTS:
        return pa.types.is_string(type_)
    if isinstance(one, In):
        return all(_fits(value, type_) for value in one.value if value is not None)
    if type(one) in _COMPARISONS or isinstance(one, EqualNullSafe):
        return (one.value is None and isinstance(one, EqualNullSafe)) or _fits(one.value, type_)
    return isinstance(one, IsNull | IsNotNull)


def _fits(value: Any, type_: pa.DataType) -> bool:
    """Whether Arrow compares such a column with the value as Spark does."""
    if pa.types.is_boolean(type_):
        return isinstance(value, bool)
    if pa.types.is_integer(type_):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if pa.types.is_string(type_):
        return isinstance(value, str)
    if pa.types.is_timestamp(type_):
        return isinstance(value, datetime)
    return pa.types.is_binary(type_) and isinstance(value, bytes | bytearray)


def _holds(one: Any, column: pa.Array) -> pa.Array:
    """Whether a condition holds for each row; null where SQL says so."""
    if isinstance(one, Not):
        return pc.invert(_holds(one.child, column))
    if pa.types.is_integer(column.type):
        column = column.cast(pa.int64())  # the constant may be larger than the column's type
    if isinstance(one, IsNull):
        return pc.is_null(column)
    if isinstance(one, IsNotNull):
        return pc.is_valid(column)
    if type(one) in _TEXTS:
        return _TEXTS[type(one)](column, one.value)
    if isinstance(one, In):
        known = [value for value in one.value if value is not None]
        found = pc.is_in(column, pa.array([_constant(value) for value in known], column.type))
        unknown = pc.is_null(column) if len(known) == len(one.value) else pc.invert(found)
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)
    if isinstance(one, EqualNullSafe):
        if one.value is None:
            return pc.is_null(column)
        return pc.fill_null(pc.equal(column, pa.scalar(_constant(one.value), column.type)), False)
    return _COMPARISONS[type(one)](column, pa.scalar(_constant(one.value), column.type))


def _constant(value: Any) -> Any:
    return _microseconds(value) if isinstance(value, datetime) else value


def _microseconds(value: datetime) -> int:
    """Since 1970. Spark hands over times with their zone, or in UTC without one."""
    known = value if value.tzinfo else value.replace(tzinfo=UTC)
    since = known - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
