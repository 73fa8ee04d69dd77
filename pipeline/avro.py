"""Values in Avro's binary form as columns, with a given schema.

| Avro | Spark |
| --- | --- |
| null, boolean, int, long, float, double, bytes, string, array, map, record | the same (record: struct) |
| enum, fixed | string, binary |
| date, decimal, timestamp-millis, timestamp-micros | date, decimal, timestamp |
| local-timestamp-millis, local-timestamp-micros | timestamp_ntz |
| other logical types (time, uuid, …) | what they are made of |
| a union of null and one other type | that type, which may be null |
| another union | long for int and long, double for float and double; else a struct with `member0`, `member1`, …, all but one null |
"""  # noqa: E501

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import pyarrow as pa
from barnabas.pipeline.schemas import BINARY, BOOLEAN, DATE, DOUBLE, INT, LONG, STRING, TIME, arrow_schema
from fastavro import parse_schema, schemaless_reader
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    FloatType,
    MapType,
    NullType,
    StructField,
    StructType,
    TimestampNTZType,
)

DOES_NOT_FIT = "does not fit the schema"

Convert = Callable[[Any], Any]  # what fastavro makes of a value, to what Arrow takes

_SIMPLE: dict[str, DataType] = {
    "null": NullType(),
    "boolean": BOOLEAN,
    "int": INT,
    "long": LONG,
    "float": FloatType(),
    "double": DOUBLE,
    "bytes": BINARY,
    "fixed": BINARY,
    "string": STRING,
    "enum": STRING,
}
_LOGICAL: dict[str, DataType] = {
    "date": DATE,
    "timestamp-millis": TIME,
    "timestamp-micros": TIME,
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}
_WIDER = ((("int", "long"), LONG), (("float", "double"), DOUBLE))
# What a value of a union is like in Python: from that its member is known.
_PYTHON = {"boolean": "bool", "int": "int", "long": "int", "float": "float", "double": "float"}
_PYTHON |= {"bytes": "bytes", "string": "str", "array": "list", "map": "dict"}


def values_udf(schema: str, skip_bytes: int = 0) -> Any:
    """A function from a column of bytes to a struct of `value` and `reason` (null: it could be read).

    `skip_bytes`: so many come before each value; five if a schema registry's client wrote it. ValueError: the schema
    cannot be used.
    """
    try:
        avro = Avro.of(json.loads(schema))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the Avro schema cannot be used: {error}") from error
    result = StructType([StructField("value", avro.type), StructField("reason", STRING)])

    @arrow_udf(result)
    def read(values: pa.Array) -> pa.Array:
        rows = [avro.read(value, skip_bytes) for value in values.to_pylist()]
        kind = pa.struct(arrow_schema(result))
        try:
            return pa.array(rows, kind)
        except (pa.ArrowException, OverflowError):  # a number that is too large for its type
            return pa.concat_arrays([_one(row, kind) for row in rows])

    return read


def _one(row: dict[str, Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([row], kind)
    except (pa.ArrowException, OverflowError):
        return pa.array([{"value": None, "reason": DOES_NOT_FIT}], kind)


@dataclass
class Avro:
    """A schema, and its columns."""

    parsed: Any
    type: DataType
    convert: Convert | None

    @classmethod
    def of(cls, schema: Any) -> "Avro":
        """ValueError: it has no columns."""
        parsed = parse_schema(_known(schema))
        kind, convert = _Columns().of(parsed)
        return cls(parsed, kind, convert)

    def read(self, value: bytes | None, skip_bytes: int = 0) -> dict[str, Any]:
        """The value, or the reason why there is none."""
        if value is None:
            return {"value": None, "reason": "no value"}
        file = BytesIO(value)
        file.seek(skip_bytes)
        try:
            found = schemaless_reader(file, self.parsed, None, return_named_type=True)
            if file.tell() != len(value):
                return {"value": None, "reason": DOES_NOT_FIT}
            return {"value": found if self.convert is None else self.convert(found), "reason": None}
        except Exception:  # fastavro raises many kinds, and any of them means the same
            return {"value": None, "reason": DOES_NOT_FIT}


def _items(convert: Convert, values: list[Any]) -> list[Any]:
    return [convert(one) for one in values]


def _entries(convert: Convert | None, values: dict[str, Any]) -> list[Any]:
    return [(key, one if convert is None else convert(one)) for key, one in values.items()]


def _known(schema: Any) -> Any:
    """The schema without the logical types that have no type of their own in Spark."""
    if isinstance(schema, list):
        return [_known(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    known = schema.get("logicalType") in (*_LOGICAL, "decimal")
    return {name: _known(value) for name, value in schema.items() if known or name != "logicalType"}


class _Columns:
    """Finds the type of each part of a schema."""

    def __init__(self) -> None:
        self.named: dict[str, tuple[DataType, Convert | None] | None] = {}  # None: not known yet

    def of(self, schema: Any) -> tuple[DataType, Convert | None]:
        """The type in Spark, and how to convert values; None: they can stay as they are."""
        if isinstance(schema, list):
            return self.of_union(schema)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.of(kind)
        if schema.get("logicalType") == "decimal":
            return DecimalType(schema["precision"], schema.get("scale", 0)), None
        if kind == "record":
            self.named[schema["name"]] = None
            self.named[schema["name"]] = found = self.of_record(schema["fields"])
            return found
        if kind == "array":
            inner, convert = self.of(schema["items"])
            return ArrayType(inner), None if convert is None else partial(_items, convert)
        if kind == "map":
            inner, convert = self.of(schema["values"])
            return MapType(STRING, inner), partial(_entries, convert)
        if kind in self.named:
            known = self.named[kind]
            if known is None:
                raise ValueError(f"{kind} contains itself, and columns cannot")
            return known
        found = _LOGICAL.get(schema.get("logicalType", ""), _SIMPLE[kind]), None
        if "name" in schema:  # enum and fixed
            self.named[schema["name"]] = found
        return found

    def of_record(self, fields: Any) -> tuple[DataType, Convert | None]:
        found = [(one["name"], *self.of(one["type"])) for one in fields]
        converts = [(name, convert) for name, _, convert in found if convert is not None]

        def convert(values: Any) -> Any:
            for name, of_field in converts:
                values[name] = of_field(values[name])
            return values

        return StructType([StructField(name, kind) for name, kind, _ in found]), convert if converts else None

    def of_union(self, members: list[Any]) -> tuple[DataType, Convert | None]:
        """Most often null and something else."""
        rest = [one for one in members if one != "null"]
        for names, wider in _WIDER:
            if rest and all(one in names for one in rest) and len(rest) > 1:
                return wider, None
        found = [self.of(one) for one in rest]
        keys = [self.key(one) for one in rest]
        if len(set(keys)) < len(keys):
            raise ValueError(f"the members of a union cannot be told apart: {', '.join(keys)}")
        converts = {key: (number, convert) for number, (key, (_, convert)) in enumerate(zip(keys, found))}
        is_struct = len(rest) > 1

        def convert(value: Any) -> Any:
            if value is None:
                return None
            key = type(value).__name__
            if key == "tuple":  # the name of the type, and the value
                key, value = value
            number, of_member = converts[key]
            value = value if of_member is None else of_member(value)
            return {f"member{number}": value} if is_struct else value

        if not is_struct:
            kind, of_member = found[0] if found else (NullType(), None)
            is_named = bool(rest) and keys[0] not in _PYTHON.values()
            return kind, convert if is_named or of_member is not None else None
        return StructType([StructField(f"member{number}", kind) for number, (kind, _) in enumerate(found)]), convert

    def key(self, member: Any) -> str:
        """What type a value of this member has in Python; of named types the name, which comes with the value."""
        schema = {"type": member} if isinstance(member, str) else member
        if "name" in schema or schema["type"] in self.named:
            return str(schema.get("name", schema["type"]))
        if schema.get("logicalType") == "decimal":
            return "Decimal"
        if "logicalType" in schema:
            return "date" if schema["logicalType"] == "date" else "datetime"
        return _PYTHON[schema["type"]]
