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
| `raw` | binary | the value of a bad record |
| `day` | date | the day of its time, in UTC |

The files are partitioned by `outcome` and `day`, so bad records lie in folders of their own. The functions work for
streams, too: the command runs a streaming query that ends when it has read everything, so the next run goes on behind
it, and each record is there once, also if a run is killed.
"""

from typing import TYPE_CHECKING

from pyspark.errors import ParseException
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACE = ("topic", "partition", "offset", "timestamp", "key", "headers")
COLUMNS = (*PLACE, "value")  # that it needs of the records
PARTITIONED_BY = ("outcome", "day")
_CORRUPT = "_corrupt_record"


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
    text = F.col("value").cast("string")
    with_corrupt = StructType([*schema.fields]).add(_CORRUPT, StringType())
    rows = records.withColumn("read", F.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT}))
    reason = (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        .when(F.try_parse_json(text).isNull(), "not JSON")
        .when(F.col(f"read.{_CORRUPT}").isNotNull(), "does not fit the schema")
    )
    return rows, F.struct(*(F.col(f"read.{name}") for name in schema.names)), reason
