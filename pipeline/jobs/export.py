"""`export`: the records of a topic as rows, as they are or read as JSON; those that cannot be read are put aside.

| column | type | meaning |
| --- | --- | --- |
| `topic`, `partition`, `offset` | string, int, bigint | the record's place |
| `timestamp` | timestamp | its time |
| `key` | binary | its key |
| `headers` | array of key (string) and value (binary) | its headers in their order |
| `value` | binary, or the struct of the schema | its value |
| `outcome` | string | `good`, or `bad`: the value could not be read |
| `reason` | string | why not: `no value`, `not UTF-8`, `not JSON`, `does not fit the schema` |
| `raw` | binary | the value of a bad record |
| `day` | date | the day of its time, in UTC |

The files are partitioned by `outcome` and `day`, so bad records lie in folders of their own. The functions work for
streams, too: the command runs a streaming query that ends when it has read everything, so the next run goes on behind
it, and each record is there once, also if a run is killed.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONED_BY = ("outcome", "day")
_CORRUPT = "_corrupt_record"


def export(records: "DataFrame", json_schema: str | None = None) -> "DataFrame":
    """The rows. `json_schema`: columns and types of the values, such as `order bigint, amount double`."""
    place = ("topic", "partition", "offset", "timestamp", "key", "headers")
    day = F.to_date("timestamp").alias("day")
    if json_schema is None:
        nothing = F.lit(None)
        return records.select(
            *place,
            "value",
            F.lit("good").alias("outcome"),
            nothing.cast("string").alias("reason"),
            nothing.cast("binary").alias("raw"),
            day,
        )
    schema = StructType.fromDDL(json_schema)
    text = F.col("value").cast("string")
    with_corrupt = StructType([*schema.fields]).add(_CORRUPT, StringType())
    read = F.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT})
    rows = records.withColumn("read", read)
    reason = (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        .when(F.try_parse_json(text).isNull(), "not JSON")
        .when(F.col(f"read.{_CORRUPT}").isNotNull(), "does not fit the schema")
    )
    rows = rows.withColumn("reason", reason)
    is_good = F.col("reason").isNull()
    return rows.select(
        *place,
        F.when(is_good, F.struct(*(F.col(f"read.{name}") for name in schema.names))).alias("value"),
        F.when(is_good, "good").otherwise("bad").alias("outcome"),
        "reason",
        F.when(~is_good, F.col("value")).alias("raw"),
        day,
    )
