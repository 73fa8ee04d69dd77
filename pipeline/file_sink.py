"""Files that a streaming query writes: each micro-batch comes to the table once, and then any engine can read it.

    TABLE/outcome=good/day=2026-11-22/part-….parquet     the rows; no file is empty, or half written
    TABLE/_written/17                                    the newest micro-batch that is there whole
    CHECKPOINT/making/18/                                a micro-batch that is being written
    CHECKPOINT/making/files/                             where the tasks of a source write its files, if they do that

Spark's own file sink keeps a list of the files that count, with absolute paths, and leaves others beside them when it
is killed: only Spark can read that, and only where it was written. Here a micro-batch is written beside the table.
When it is whole (`_SUCCESS`), its files come to the table by renames. A run that was killed is repeated by Spark, and
moves what is left.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.pipeline.files import Files
from barnabas.pipeline.parquet_files import FILES
from pyspark.sql import Observation
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("parquet", "orc", "json", "csv", "text")
WRITTEN = "_written"  # no engine reads what begins with `_`
STAGED = "making/files"
_SUCCESS = "_SUCCESS"


@dataclass
class FileSink:
    """Adds micro-batches to a folder. `by_file`: all rows of a micro-batch with the same values go to one file."""

    path: str
    checkpoint: str
    format: str
    partitioned_by: tuple[str, ...]
    by_file: tuple[str, ...] = ()
    added: int = field(default=0)  # rows, by this object

    def add(self, rows: "DataFrame", number: int) -> None:
        """Add the rows of a micro-batch, unless they are there. They may be files that tasks write (`FILES`)."""
        files = Files(rows.sparkSession, self.path)
        making = f"{self.checkpoint}/making"
        staged = f"{making}/{number}"
        if newest(files.names(f"{self.path}/{WRITTEN}")) < number:
            if files.exists(f"{staged}/{_SUCCESS}"):  # a run was killed while it moved them
                left = [f"{staged}/{name}" for name in data_files(files, staged)]
                reader = rows.sparkSession.read.format(self.format).schema(rows.schema).option("basePath", staged)
                count = reader.load(left).count() if left else 0
            else:
                count = self._write(rows, staged)
            self.added += count
            for name in data_files(files, staged) if count else ():  # without rows Spark may write an empty file
                if files.exists(f"{self.path}/{name}"):  # not every system can rename: a killed run has copied it
                    files.remove(f"{staged}/{name}")
                else:
                    files.move(f"{staged}/{name}", f"{self.path}/{name}")
            files.write(f"{self.path}/{WRITTEN}/{number}", "")
        for name in files.names(f"{self.path}/{WRITTEN}"):
            if newest([name]) < number:
                files.remove(f"{self.path}/{WRITTEN}/{name}")
        files.remove(making)

    def _write(self, rows: "DataFrame", staged: str) -> int:
        if rows.columns == FILES.names:
            return self._take_files(rows, staged)
        if self.by_file:
            rows = rows.repartition(*self.by_file)
        counted = Observation()
        rows = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
        writer = rows.write.mode("overwrite").format(self.format).partitionBy(*self.partitioned_by)
        writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "true").save(staged)
        return int(counted.get["rows"])

    def _take_files(self, files: "DataFrame", staged: str) -> int:
        """Have the tasks write their files, and give these to the micro-batch."""
        system = Files(files.sparkSession, self.path)
        written = f"{self.checkpoint}/{STAGED}"
        system.remove(written)
        system.remove(staged)
        rows = files.collect()
        for row in rows:
            system.move(f"{written}/{row.file}", f"{staged}/{row.file}")
        system.write(f"{staged}/{_SUCCESS}", "")
        return sum(row.row_count for row in rows)


def data_files(files: Files, folder: str) -> list[str]:
    """The files below a folder that hold rows, in the order of their names."""
    return [name for name in files.names_below(folder) if not name.rpartition("/")[2].startswith(("_", "."))]


def newest(names: "Iterable[str]") -> int:
    """The number of the newest micro-batch; −1: there is none."""
    return max((int(name) for name in names if name.isdigit()), default=-1)
