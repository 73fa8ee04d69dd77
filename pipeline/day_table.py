"""Tables that runs of a job add to, by day, so that they keep what the log has lost since.

    DIR/lag/day=2026-11-22/part-….parquet    the rows
    DIR/lag/_about.json                      of which cluster they are, and how they were made
    DIR/_making/lag.days/                    days that are being written; they come to their places by renames
    DIR/_making/lag.days.replaced/           the old ones, until all are there

A run writes only the days of which it knows something new. If it is killed between the renames, the next one finishes
them. With a name the same rows go to a table of a catalog (Delta, Iceberg), whose own log makes them one change.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from barnabas.pipeline.file_sink import SUCCESS, data_files
from barnabas.pipeline.files import AnyFiles, Files
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.source import Identity
from barnabas.pipeline.table_folder import ABOUT, About, put_in_place, read_about, read_rows
from pyspark import StorageLevel
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = "day"
_PROPERTY = "barnabas.about"

Merge = Callable[["DataFrame", "DataFrame"], "DataFrame"]
"""From what is there, and what a run says now, to the rows of the days of which it knows something new."""


@dataclass(frozen=True)
class Made:
    """Of which source a table is, and how it was made. Rows that were made in another way do not fit to it."""

    source: str
    identity: Identity
    settings: Mapping[str, int] = field(default_factory=dict)

    def about(self, columns: str) -> About:
        return About(self.source, datetime.now(UTC).isoformat(), columns, asdict(self.identity), dict(self.settings))

    def check(self, before: About, where: str) -> None:
        """OutError: a table that was made so cannot take these rows."""
        identity = Identity(**before.identity)
        if identity.differs(self.identity):
            raise OutError(f"{where} has the rows of {identity}, and --source is {self.identity}: name another --out")
        for name, value in self.settings.items():
            there = before.settings.get(name, value)
            if there != value:
                raise OutError(f"{where} was made with {name} {there}, and this is {value}: name another --out")


@dataclass(frozen=True)
class DayFolder:
    """The files of such a table."""

    files: AnyFiles
    folder: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    @property
    def making(self) -> str:
        """Where days are written that `put` adds."""
        return f"{self.folder}/_making/{self.name}.days"

    @property
    def making_all(self) -> str:
        """Where a whole table is written, for `put_all`."""
        return f"{self.folder}/_making/{self.name}"

    def begin(self, made: Made) -> About | None:
        """What the table says of itself; None: there is none. Days that a killed run has written come to their places.

        OutError: the place has something else, or rows to which these do not fit.
        """
        self.files.check_ours(self.path, f"the place of the table {self.name}", ABOUT)
        self._finish()
        before = read_about(self.files, self.folder, self.name)
        if before is not None:
            made.check(before, self.path)
        return before

    def put(self, about: About) -> None:
        """Put the days that are written, and `_SUCCESS`, into their places."""
        self.files.write(f"{self.making}/{ABOUT}", json.dumps(asdict(about)))
        self._finish()

    def put_all(self, about: About) -> None:
        """Put a whole table into the place of what is there."""
        put_in_place(self.files, self.making_all, self.path, about)
        self.files.remove_if_empty(f"{self.folder}/_making")

    def _finish(self) -> None:
        """Put the days that a run has written into their places. The description comes last."""
        files, replaced = self.files, f"{self.making}.replaced"
        # What is not there whole is not taken: without `_SUCCESS` a run was killed before it had written all days.
        if files.exists(f"{self.making}/{ABOUT}") and files.exists(f"{self.making}/{SUCCESS}"):
            for day in files.names(self.making):
                if day.startswith(f"{DAY}="):
                    if files.exists(f"{self.path}/{day}") and not files.exists(f"{replaced}/{day}"):
                        files.move(f"{self.path}/{day}", f"{replaced}/{day}")
                    files.move(f"{self.making}/{day}", f"{self.path}/{day}")
            files.write(f"{self.path}/{ABOUT}", files.read(f"{self.making}/{ABOUT}") or "")
        files.remove(self.making)
        files.remove(replaced)
        files.remove_if_empty(f"{self.folder}/_making")


@dataclass(frozen=True)
class DayTable:
    """One such table, as Spark writes it."""

    spark: "SparkSession"
    folder: str
    name: str
    table: str | None = None  # its name in a catalog; else the files are in `folder`
    format: str = "parquet"  # of the table in the catalog, if it has to be made

    @cached_property
    def _files(self) -> DayFolder:
        return DayFolder(Files(self.spark, self.folder), self.folder, self.name)

    def update(self, now: "DataFrame", merge: Merge, made: Made) -> "DataFrame":
        """Add what a run says now, and give out all rows. OutError: the place has something else."""
        now = now.withColumn(DAY, F.to_date("at"))
        if self.table is not None:
            return self._update_catalog(self.table, now, merge, made)
        before = self._files.begin(made)
        about = made.about(now.schema.json())
        old = None if before is None else read_rows(self.spark, self.folder, self.name, before)
        if old is None or DAY not in old.columns or old.isEmpty():  # an earlier version kept nothing
            self._stage(now, self._files.making_all)
            self._files.put_all(about)
        else:
            self._stage_merged(merge, old, now)
            self._files.put(about)
        return read_rows(self.spark, self.folder, self.name, about)

    def _stage_merged(self, merge: Merge, old: "DataFrame", now: "DataFrame") -> None:
        """Write what a merge makes. It looks at the rows of the run several times, and they are computed once."""
        once = now.persist(StorageLevel.DISK_ONLY)
        try:
            self._stage(merge(old, once).select(now.columns), self._files.making)
        finally:
            once.unpersist()

    def _stage(self, rows: "DataFrame", folder: str) -> None:
        writer = rows.repartition(DAY).write.mode("overwrite").partitionBy(DAY)
        writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "true").parquet(folder)

    def _update_catalog(self, table: str, now: "DataFrame", merge: Merge, made: Made) -> "DataFrame":
        old = self.spark.table(table) if self.spark.catalog.tableExists(table) else None
        if old is not None:
            found = {row[0]: row[1] for row in self.spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
            if _PROPERTY not in found:
                raise OutError(f"no run has written the table {table}: name another --table")
            made.check(About(**json.loads(found[_PROPERTY])), table)
        # A table cannot be read while it is written, in most formats: so the rows are beside it first.
        if old is None or old.isEmpty():
            self._stage(now, self._files.making)
        else:
            self._stage_merged(merge, old, now)
        rows = self.spark.read.schema(now.schema).parquet(self._files.making)
        if old is None:
            columns = ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in now.schema.fields)
            about = json.dumps(asdict(made.about("{}"))).replace("\\", "\\\\").replace("'", "\\'")
            self.spark.sql(
                f"CREATE TABLE {table} ({columns}) USING {self.format} PARTITIONED BY ({DAY}) "
                f"TBLPROPERTIES ('{_PROPERTY}' = '{about}')"
            )
        there = self.spark.table(table)
        if data_files(self._files.files, self._files.making):
            mode = "spark.sql.sources.partitionOverwriteMode"
            before = self.spark.conf.get(mode) or "static"
            self.spark.conf.set(mode, "dynamic")  # only the days that come are replaced
            try:
                rows.select(there.columns).write.insertInto(table, overwrite=True)
            finally:
                self.spark.conf.set(mode, before)
        self._files.files.remove(self._files.making)
        return self.spark.table(table)
