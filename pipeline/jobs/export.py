"""`export`: the records of a topic as rows, as they are or read as JSON or Avro. Those that cannot be read are put
aside.

| column | type | meaning |
| --- | --- | --- |
| `topic`, `partition`, `offset` | string, int, bigint | the record's place |
| `timestamp` | timestamp | its time |
| `key` | binary | its key |
| `headers` | array of key (string) and value (binary) | its headers in their order |
| `value` | binary, or what the schema says | its value |
| `outcome` | string | `good`, or `bad`: the value could not be read |
| `reason` | string | why not: `no value`, `not UTF-8`, `not JSON`, `does not fit the schema` |
| `raw` | binary | the value of a bad record, to the last byte |
| `day` | date | the day of its time, in UTC |

JSON is one object and nothing behind it, whose names are there once. A number with more digits than its column can hold
does not fit; a name that the schema does not have is left out.

The files are partitioned by `outcome` and `day`, so bad records lie in folders of their own. The functions work for
streams, too: the command runs a streaming query that ends when it has read everything, so the next run goes on behind
it, and each record is there once, also if a run is killed.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from barnabas.pipeline.schemas import STRING
from pyspark.errors import ParseException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DecimalType, DoubleType, FloatType, MapType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

PLACE = ("topic", "partition", "offset", "timestamp", "key", "headers")
COLUMNS = (*PLACE, "value")  # that it needs of the records
PARTITIONED_BY = ("outcome", "day")
_WRAPPED, _CORRUPT = "value", "corrupt"
_STRICT = {"columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


def export(
    records: "DataFrame", json_schema: str | None = None, avro_schema: str | None = None, avro_skip_bytes: int = 0
) -> "DataFrame":
    """The rows. ValueError: the schema cannot be used.

    `json_schema`: columns and types of the values, such as `order bigint, amount double`. `avro_schema`: Avro's schema
    as JSON; `avro_skip_bytes` come before each value, five if a schema registry's client wrote it.
    """
    value: Column = F.col("value")
    reason: Column = F.lit(None).cast("string")
    if json_schema is not None:
        records, value, reason = _json(records, json_schema)
    elif avro_schema is not None:
        from barnabas.pipeline.avro import values_udf

        records = records.withColumn("read", values_udf(avro_schema, avro_skip_bytes)("value"))
        value, reason = F.col("read.value"), F.col("read.reason")
    rows = records.withColumn("reason", reason)
    is_good = F.col("reason").isNull()
    return rows.select(
        *PLACE,
        F.when(is_good, value).alias("value"),
        F.when(is_good, "good").otherwise("bad").alias("outcome"),
        "reason",
        F.when(~is_good, F.col("value")).alias("raw"),
        F.to_date("timestamp").alias("day"),
    )


def _json(records: "DataFrame", json_schema: str) -> "tuple[DataFrame, Column, Column]":
    """Rows with the values in them, the values, and why one cannot be read."""
    try:
        schema = StructType.fromDDL(json_schema)
    except ParseException as error:
        raise ValueError(
            f"the JSON schema {json_schema!r} cannot be read: {str(error).strip().splitlines()[0]}"
        ) from None
    if not isinstance(schema, StructType):
        raise ValueError(f"the JSON schema {json_schema!r} names no column: say NAME TYPE[, …], such as `id bigint`")
    # Spark's reader stops behind the first value and ignores the rest. So the text is read within brackets, which must
    # be where it ends: with "[" and "]" an array of one value, with "{" and "}" an object of one field. No text but a
    # single value is both.
    text = F.col("value").cast("string")
    in_object = F.concat(F.lit(f'{{"{_WRAPPED}":'), text, F.lit("}"))
    in_array = F.concat(F.lit("["), text, F.lit("]"))
    is_json = F.try_parse_json(in_object).isNotNull() & F.coalesce(F.json_array_length(in_array) == 1, F.lit(False))
    read, wide = F.from_json(in_object, _wrapped(schema), _STRICT), _without_rounding(schema)
    rows = records.withColumn("read", read)
    value = F.col(f"read.{_WRAPPED}")
    is_exact = ~_has_infinity(value, schema)
    if wide != schema:
        exact = F.from_json(in_object, _wrapped(wide), _STRICT)[_WRAPPED]
        is_exact &= value.cast(wide).eqNullSafe(exact)
    fits = F.col(f"read.{_CORRUPT}").isNull() & value.isNotNull() & is_exact
    reason = (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        .when(~is_json, "not JSON")
        .when(~fits, "does not fit the schema")
    )
    return rows, value, reason


def _wrapped(schema: StructType) -> StructType:
    return StructType().add(_WRAPPED, schema).add(_CORRUPT, STRING)


def _without_rounding(kind: "DataType") -> "DataType":
    """The type with as many digits behind the point as there can be: Spark rounds a decimal that has too many."""
    if isinstance(kind, DecimalType):
        return DecimalType(38, 38 - (kind.precision - kind.scale))
    if isinstance(kind, ArrayType):
        return ArrayType(_without_rounding(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _without_rounding(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(one.name, _without_rounding(one.dataType)) for one in kind.fields])
    return kind


def _has_infinity(value: "Column", kind: "DataType") -> "Column":
    """Whether a number in it was too large for its type: Spark reads 1e999 as infinity, which is no JSON."""
    found = F.lit(False)
    if isinstance(kind, FloatType | DoubleType):
        found = F.abs(value) == float("inf")
    elif isinstance(kind, ArrayType):
        found = F.exists(value, lambda one: _has_infinity(one, kind.elementType))
    elif isinstance(kind, MapType):
        found = F.exists(F.map_values(value), lambda one: _has_infinity(one, kind.valueType))
    elif isinstance(kind, StructType):
        found = reduce(or_, (_has_infinity(value[one.name], one.dataType) for one in kind.fields), found)
    return F.coalesce(found, F.lit(False))
