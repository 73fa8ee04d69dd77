"""The folder in which `offsets` keeps the history of commits: Parquet files by day and partition of the offsets topic.

    day=2026-11-21/log_partition=7/part-….parquet     the commits, each once
    _complete/NUMBER.json                             what is here of each log, and what is missing (`history_state.py`)
    _complete/writing                                 a run is adding, or was killed while it added
    _complete/files/                                  where its tasks write files, which come to the history
    _source.json                                      which cluster they are of
    _compacted/, _replaced/                           a compaction that is under way

Files are only added. A run reads what is not complete. If the run before it was killed, a part of that may be here
already, which is not added again. Late commits go to the folder of their own day.

A commit and its tombstone may both be compacted away between two runs. So a run that comes later than
`delete.retention.ms` compares what is here with the log, and adds a tombstone of its own for what the log does not
have.

Where many runs have left small files of one day and log partition, its files are put together: the new folder is made
beside the history, and takes the place of the old one by renames. If a run is killed between them, the next one
finishes them. Large files stay as they are, because putting them together costs more than reading them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.pipeline.files import Files
from barnabas.pipeline.history_state import (
    DELETE_RETENTION_MS,
    OPEN,
    HistoryState,
    Hole,
    LogEnds,
    LogHistory,
    Plan,
    read_state,
)
from barnabas.pipeline.jobs import offsets
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.parquet_files import FILES
from barnabas.pipeline.ranges import Ranges
from barnabas.pipeline.schemas import COMMITS, DATE, UNREADABLE
from barnabas.pipeline.source import SOURCE, Identity, note_whose
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA = StructType([*COMMITS.spark, StructField("day", DATE)])
PLACE = ("day", "log_partition")
CODEC = "zstd"  # of commits it makes half of what snappy makes, in the same time
SMALL_BYTES = 1 << 20
SMALL_FILES_MAX = 8  # if there are more small files of one day and log partition, its files become one
_ONE_COMMIT = ("log_partition", "log_offset", *offsets.GROUP_PARTITION)


@dataclass(frozen=True)
class Added:
    """What a run has added."""

    count: int
    gone: int  # of them tombstones for what the log does not have any more


class HistoryFolder:
    """The history in one folder. OutError: something else is in it, or the history of another cluster."""

    def __init__(self, spark: "SparkSession", path: str, identity: Identity | None = None) -> None:
        self._spark = spark
        self._path = path.rstrip("/")
        self._files = Files(spark, path)
        self._files.check_ours(self._path, "the place of the history", "_complete")
        self._files.make_folder(f"{self._path}/_complete")
        # Log offsets say what is here already, so they must be those of one log.
        note_whose(self._files, f"{self._path}/{SOURCE}", self._path, identity or Identity())
        self.state, self._number = self._load()
        self._writing = f"{self._path}/_complete/writing"
        self.staged = f"{self._path}/_complete/files"

    def _load(self) -> tuple[HistoryState, int]:
        """The newest state that is whole, and its number. 0: there is none, or an earlier version wrote it."""
        names = self._files.names(f"{self._path}/_complete")
        numbers = sorted((int(name.removesuffix(".json")) for name in names if name[0].isdigit()), reverse=True)
        for number in numbers:
            try:
                state = read_state(self._files.read(f"{self._path}/_complete/{number}.json") or "")
            except ValueError:  # a run was killed while it wrote this, or the disk was full
                continue
            if self._days() != state.days:  # someone has removed some, or put them back
                state = replace(state, count=None, said=None)
            return state, number
        partitions = [row[0] for row in self.read().select("log_partition").distinct().collect()] if names else []
        return HistoryState({one: LogHistory() for one in partitions}), max(numbers, default=0)

    def save(self, state: HistoryState) -> None:
        """Keep what is known, in place of what was."""
        self.state = replace(state, days=self._days())
        self._number += 1
        folder = f"{self._path}/_complete"
        self._files.write(f"{folder}/_new", self.state.text())
        self._files.move(f"{folder}/_new", f"{folder}/{self._number}.json")
        for name in self._files.names(folder):
            if name != f"{self._number}.json":  # also `writing`, and what an earlier version wrote
                self._files.remove(f"{folder}/{name}")

    def _days(self) -> tuple[str, ...]:
        return tuple(name for name in self._files.names(self._path) if name.startswith("day="))

    def read(self) -> "DataFrame":
        return self._spark.read.schema(SCHEMA).parquet(self._path)

    def plan(self, ends: Mapping[int, LogEnds], now_ms: int, delete_retention_ms: int = DELETE_RETENTION_MS) -> Plan:
        """What is to be added. OutError: a log has other commits now at offsets that are here."""
        self._finish_compaction()
        for partition, end in ends.items():
            known = self.state.logs.get(partition, LogHistory()).complete_offset
            if end.is_cut(known):
                raise OutError(
                    f"{self._path} has the commits of {OFFSETS_TOPIC}-{partition} up to {known}, and this log ends at "
                    f"{max(end[1:])}: it was cut or put back, or this is an older copy. Name another --out"
                )
        names = self._files.names(f"{self._path}/_complete")
        self._files.remove(self.staged)
        was_killed = "writing" in names or (not self._number and bool(self._days()))
        return self.state.plan(ends, now_ms, was_killed=was_killed, delete_retention_ms=delete_retention_ms)

    def append(
        self,
        commits: "DataFrame",
        plan: Plan,
        ends: Mapping[int, LogEnds],
        now_ms: int,
        in_logs: "DataFrame | None" = None,
    ) -> Added:
        """Add what was planned. `commits`: the rows of its ranges, with those of transactions that have not ended, and
        those that say what could not be read; or the files that tasks write into the folder `staged`. `in_logs`: all
        commits that there are now in the logs that are `late`.
        """
        self._files.write(self._writing, "")
        count, found = self._take_files(commits) if commits.columns == FILES.names else self._add(commits, plan)
        state = self.state.after(plan, found, ends, now_ms)
        whole = [one for one in plan.late if all(hole.is_open for hole in state.logs[one].holes)]
        gone = 0
        if whole and in_logs is not None:
            last = {one: ends[one].end_offset - 1 for one in whole}
            gone = self._add_tombstones(in_logs.where(F.col("log_partition").isin(whole)), last, now_ms)
        count += gone
        before = self.state.count
        if plan.again or before is None:
            before = self.read().count() - count
        self.save(replace(state, count=before + count, said=None if count else self.state.said))
        return Added(count, gone)

    def _take_files(self, files: "DataFrame") -> tuple[int, list[Hole]]:
        """Move the files that tasks have written to the history; how many rows they have, and the holes."""
        rows = files.collect()
        for row in rows:
            if row.file is not None:
                self._files.move(f"{self.staged}/{row.file}", f"{self._path}/{row.file}")
        self._files.write(f"{self._path}/_SUCCESS", "")  # as Spark does
        return sum(row.row_count or 0 for row in rows), [Hole(*row.hole) for row in rows if row.hole is not None]

    def _add(self, commits: "DataFrame", plan: Plan) -> tuple[int, list[Hole]]:
        """Write these commits; how many there are, and the holes."""
        holes, rows = Observation(), Observation()
        is_hole = F.col("transaction").isin("open", UNREADABLE)
        reason = F.when(F.col("transaction") == UNREADABLE, F.col("metadata")).otherwise(
            F.concat(F.lit(f"{OPEN} of group "), "group_id")
        )
        high = F.when(F.col("transaction") == UNREADABLE, F.col("offset")).otherwise(F.col("log_offset") + 1)
        hole = F.struct("log_partition", "log_offset", high, reason)
        new = offsets.history(commits).observe(holes, F.collect_list(F.when(is_hole, hole)).alias("holes"))
        new = new.where(F.coalesce(F.col("transaction") == "committed", F.lit(True)))
        if plan.again:
            new = new.join(self.read().where(_in_ranges(plan.again)), [*_ONE_COMMIT], "left_anti")
        self._write(new.observe(rows, F.count("*").alias("count")))
        return int(rows.get["count"]), [Hole(*one) for one in holes.get["holes"]]

    def _write(self, rows: "DataFrame") -> None:
        rows.select(SCHEMA.names).write.partitionBy(*PLACE).mode("append").parquet(self._path, compression=CODEC)

    def _add_tombstones(self, in_logs: "DataFrame", last_offsets: Mapping[int, int], now_ms: int) -> int:
        """Add a tombstone for each offset that is committed here, and of which the log has nothing; their number."""
        here = self.read().where(F.col("log_partition").isin([*last_offsets]))
        live = offsets.newest(here).where(~F.col("is_tombstone"))
        gone = live.join(in_logs, [*offsets.GROUP_PARTITION], "left_anti")
        known = {name: F.col(name) for name in (*offsets.GROUP_PARTITION, "log_partition")} | {
            "is_tombstone": F.lit(True),
            "log_offset": _by_partition(last_offsets),  # newer than all that was read, older than all that follows
            "log_timestamp": F.timestamp_millis(F.lit(now_ms)),
        }
        columns = [known.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name) for one in COMMITS.spark]
        counted = Observation()
        self._write(offsets.history(gone.select(columns)).observe(counted, F.count("*").alias("count")))
        return int(counted.get["count"])

    def compact(self, small_files_max: int = SMALL_FILES_MAX, small_bytes: int = SMALL_BYTES) -> int:
        """Make one file of each day and log partition that has more than so many small ones; how many had."""
        self._finish_compaction()
        folders = [
            f"{self._path}/{day}/{partition}"
            for day in self._days()
            for partition in self._files.names(f"{self._path}/{day}")
        ]
        many = [folder for folder in folders if self._small_files(folder, small_bytes) > small_files_max]
        if many:
            rows = self._spark.read.option("basePath", self._path).schema(SCHEMA).parquet(*many)
            rows = rows.repartition(*PLACE).sortWithinPartitions(*PLACE, "log_offset")
            rows.write.partitionBy(*PLACE).parquet(f"{self._path}/_compacted", compression=CODEC)
            self._finish_compaction()
        return len(many)

    def _small_files(self, folder: str, small_bytes: int) -> int:
        sizes = self._files.sizes(folder)
        return sum(size < small_bytes for name, size in sizes.items() if name.endswith(".parquet"))

    def _finish_compaction(self) -> None:
        """Put the compacted folders in place. Without `_SUCCESS` they are not whole, and none is in place yet."""
        compacted, replaced = f"{self._path}/_compacted", f"{self._path}/_replaced"
        if self._files.exists(f"{compacted}/_SUCCESS"):
            for day in self._files.names(compacted):
                for partition in self._files.names(f"{compacted}/{day}") if day.startswith("day=") else ():
                    place = f"{day}/{partition}"
                    if not self._files.exists(f"{replaced}/{place}"):
                        self._files.move(f"{self._path}/{place}", f"{replaced}/{place}")
                    self._files.move(f"{compacted}/{place}", f"{self._path}/{place}")
        self._files.remove(compacted)
        self._files.remove(replaced)


def _in_ranges(ranges: Mapping[int, Ranges]) -> "Column":
    conditions = [
        (F.col("log_partition") == partition) & (F.col("log_offset") >= low) & (F.col("log_offset") < high)
        for partition, some in ranges.items()
        for low, high in some
    ]
    return reduce(lambda one, other: one | other, conditions, F.lit(False))


def _by_partition(values: Mapping[int, int]) -> "Column":
    pairs = [F.lit(one) for pair in values.items() for one in pair]
    return F.create_map(*pairs)[F.col("log_partition")]
