"""The tables that jobs write anew each time: a table is there whole, or it is not there.

DIR/NAME/part-….parquet    the rows
DIR/NAME/_about.json       which source they come from, when they were made, and their columns
DIR/_making/NAME/          the same while it is written; it comes to its place by a rename
DIR/_making/NAME.replaced/ the one that was there before, until it is removed
"""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from barnabas.pipeline.files import Files
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ABOUT = "_about.json"


class NoTableError(Exception):
    """There is no such table, and why."""


@dataclass(frozen=True)
class About:
    """Where a table comes from."""

    source: str
    made_at: str  # ISO 8601, UTC
    columns: str  # Spark's JSON of the schema
    identity: dict[str, str | None] = field(default_factory=dict)  # of the cluster; of tables that keep old rows
    settings: dict[str, int] = field(default_factory=dict)

    def when(self) -> str:
        """When it was made, as people write it."""
        return f"{datetime.fromisoformat(self.made_at).astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def write_table(
    rows: "DataFrame", folder: str, name: str, source: "str | About", partitioned_by: tuple[str, ...] = ()
) -> "DataFrame":
    """Write a table in place of the one that an earlier run has written, and read it back. OutError: it is no such.

    `source`: where the rows come from, or all that the table says of itself.
    """
    files = Files(rows.sparkSession, folder)
    making, place = f"{folder}/_making/{name.replace('/', '.')}", f"{folder}/{name}"
    files.check_ours(place, f"the place of the table {name}", ABOUT)
    if partitioned_by:
        rows = rows.repartition(*partitioned_by)
    rows.write.mode("overwrite").partitionBy(*partitioned_by).parquet(making)
    if isinstance(source, str):
        source = About(source, datetime.now(UTC).isoformat(), rows.schema.json())
    files.write(f"{making}/{ABOUT}", json.dumps(asdict(source)))
    replaced = f"{making}.replaced"
    files.remove(replaced)
    if files.exists(place):
        files.move(place, replaced)
    files.move(making, place)
    files.remove(replaced)
    files.remove_if_empty(f"{folder}/_making")
    return read_table(rows.sparkSession, folder, name)[0]


def read_table(spark: "SparkSession", folder: str, name: str) -> "tuple[DataFrame, About]":
    """The table, and where it comes from; NoTableError says why there is none."""
    about = read_about(spark, folder, name)
    if about is None:
        raise NoTableError(f"{folder} has no table {name!r}")
    return read_rows(spark, folder, name, about), about


def read_rows(spark: "SparkSession", folder: str, name: str, about: About) -> "DataFrame":
    """The rows of a table that says this of itself."""
    return spark.read.schema(StructType.fromJson(json.loads(about.columns))).parquet(f"{folder}/{name}")


def read_about(spark: "SparkSession", folder: str, name: str) -> About | None:
    """What a table says of itself; None: there is no such table. NoTableError: it cannot be read."""
    path = f"{folder}/{name}/{ABOUT}"
    text = Files(spark, folder).read(path)
    if text is None:
        return None
    try:
        return About(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise NoTableError(f"{path} cannot be read: {error}") from None
