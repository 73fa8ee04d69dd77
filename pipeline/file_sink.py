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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from barnabas.pipeline.files import AnyFiles, Files
from barnabas.pipeline.parquet_files import FILES
from pyspark.sql import Observation
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("parquet", "orc", "json", "csv", "text")
WRITTEN = "_written"  # no engine reads what begins with `_`
STAGED = "making/files"
SUCCESS = "_SUCCESS"


@dataclass
class FileSink:
    """Adds micro-batches to a folder. `by_file`: all rows of a micro-batch with the same values go to one file."""

    path: str
    checkpoint: str
    format: str
    partitioned_by: tuple[str, ...]
    by_file: tuple[str, ...] = ()
    added: int = 0  # rows, by this object

    def add(self, rows: "DataFrame", number: int) -> None:
        """Add the rows of a micro-batch, unless they are there. They may be files that tasks write (`FILES`)."""
        files = Files(rows.sparkSession, self.path)
        self.added += bring(
            files, self.path, self.checkpoint, number, partial(self._write, rows), partial(self._count, rows)
        )

    def _count(self, rows: "DataFrame", staged: str, names: "Sequence[str]") -> int:
        reader = rows.sparkSession.read.format(self.format).schema(rows.schema).option("basePath", staged)
        return reader.load([f"{staged}/{name}" for name in names]).count()

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
            assert row.file is not None, "only commits have holes, and a micro-batch has none"
            system.move(f"{written}/{row.file}", f"{staged}/{row.file}")
        system.write(f"{staged}/{SUCCESS}", "")
        return sum(row.row_count for row in rows)


def bring(
    files: AnyFiles,
    path: str,
    checkpoint: str,
    number: int,
    write: Callable[[str], int],
    count: Callable[[str, Sequence[str]], int],
) -> int:
    """Bring a micro-batch to a table, unless it is there; how many rows came.

    `write` writes it whole to a folder, and then `_SUCCESS`; `count` counts the rows of files in that folder.
    """
    making, added = f"{checkpoint}/making", 0
    staged = f"{making}/{number}"
    if newest(files.names(f"{path}/{WRITTEN}")) < number:
        if files.exists(f"{staged}/{SUCCESS}"):  # a run was killed while it moved them
            left = data_files(files, staged)
            added = count(staged, left) if left else 0
        else:
            files.remove(staged)
            added = write(staged)
        for name in data_files(files, staged) if added else ():  # without rows Spark may write an empty file
            if files.exists(f"{path}/{name}"):  # not every system can rename: a killed run has copied it
                files.remove(f"{staged}/{name}")
            else:
                files.move(f"{staged}/{name}", f"{path}/{name}")
        files.write(f"{path}/{WRITTEN}/{number}", "")
    for name in files.names(f"{path}/{WRITTEN}"):
        if newest([name]) < number:
            files.remove(f"{path}/{WRITTEN}/{name}")
    files.remove(making)
    return added


def data_files(files: AnyFiles, folder: str) -> list[str]:
    """The files below a folder that hold rows, in the order of their names."""
    names = files.names_below(folder)
    return [name for name in names if not any(part.startswith(("_", ".")) for part in name.split("/"))]


def newest(names: "Iterable[str]") -> int:
    """The number of the newest micro-batch; −1: there is none."""
    return max((int(name) for name in names if name.isdigit()), default=-1)
