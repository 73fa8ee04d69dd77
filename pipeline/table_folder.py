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

from barnabas.pipeline.files import AnyFiles, Files
from barnabas.pipeline.local_files import OutError
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ABOUT = "_about.json"


class NoTableError(OutError):
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


def write_table(rows: "DataFrame", folder: str, name: str, source: str) -> "DataFrame":
    """Write a table in place of the one that an earlier run has written, and read it back. OutError: it is no such."""
    files = Files(rows.sparkSession, folder)
    making, place = f"{folder}/_making/{name.replace('/', '.')}", f"{folder}/{name}"
    files.check_ours(place, f"the place of the table {name}", ABOUT)
    rows.write.mode("overwrite").parquet(making)
    put_in_place(files, making, place, About(source, datetime.now(UTC).isoformat(), rows.schema.json()))
    files.remove_if_empty(f"{folder}/_making")
    return read_table(rows.sparkSession, folder, name)[0]


def put_in_place(files: AnyFiles, making: str, place: str, about: About) -> None:
    """Put a table that is written into the place of the one that is there."""
    files.write(f"{making}/{ABOUT}", json.dumps(asdict(about)))
    replaced = f"{making}.replaced"
    files.remove(replaced)
    if files.exists(place):
        files.move(place, replaced)
    files.move(making, place)
    files.remove(replaced)


def read_table(spark: "SparkSession", folder: str, name: str) -> "tuple[DataFrame, About]":
    """The table, and where it comes from; NoTableError says why there is none."""
    about = read_about(Files(spark, folder), folder, name)
    if about is None:
        raise NoTableError(f"{folder} has no table {name!r}")
    return read_rows(spark, folder, name, about), about


def read_rows(spark: "SparkSession", folder: str, name: str, about: About) -> "DataFrame":
    """The rows of a table that says this of itself."""
    return spark.read.schema(StructType.fromJson(json.loads(about.columns))).parquet(f"{folder}/{name}")


def read_about(files: AnyFiles, folder: str, name: str) -> About | None:
    """What a table says of itself; None: there is no such table. NoTableError: it cannot be read."""
    path = f"{folder}/{name}/{ABOUT}"
    text = files.read(path)
    if text is None:
        return None
    try:
        return About(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise NoTableError(f"{path} cannot be read: {error}") from None
