"""One run of a job: the tables that it reads, each once, and where it writes what it finds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from barnabas.pipeline import losses
from barnabas.pipeline.day_table import DAY, DayTable, Made, Merge
from barnabas.pipeline.held_back import HeldBack, open_groups
from barnabas.pipeline.history_state import held_back
from barnabas.pipeline.jobs import changes
from barnabas.pipeline.local_files import local_path
from barnabas.pipeline.once import GROUP_PREFIX
from barnabas.pipeline.options import READ_COMMITTED
from barnabas.pipeline.parquet_files import CODECS
from barnabas.pipeline.source import Source
from barnabas.pipeline.streamed import STARTS_MAX, TRIGGER_S, LiveTable, ToTopic
from barnabas.pipeline.table_folder import write_table
from pyspark import StorageLevel
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMIT_COLUMNS = (
    *("group_id", "topic", "partition", "offset", "is_tombstone", "commit_timestamp", "expire_timestamp"),
    *("log_partition", "log_offset", "log_timestamp"),
)
JOURNAL_COLUMNS = (
    *("is_gap", "at", "group_id", "topic", "partition", "old_offset", "new_offset", *changes.WHO),
    *("change_offset", "end_offset", "log_partition", "log_offset"),
)
BATCH_COLUMNS = (
    *("directory", "segment", "position", "topic", "partition", "base_offset", "last_offset", "size_bytes"),
    *("base_timestamp", "max_timestamp", "record_count", "is_control", "crc", "error"),
    *("leader_epoch", "producer_id", "producer_epoch", "is_transactional", "control_type"),
)
GROWTH_COLUMNS = ("topic", "partition", "base_offset", "last_offset", "base_timestamp", "max_timestamp", "error")


@dataclass(frozen=True)
class Summary:
    """What is said at the end: a sentence and a short table. Columns that begin with `#` hold numbers."""

    sentence: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    is_empty: bool = False  # nothing was there to work on
    has_failed: bool = False  # `verify` found damage
    has_lost: bool = False  # records were gone before they were read, and the run went on
    added: int | None = None  # rows that are new; None: the job makes its table anew


SILENT = Summary("")


@dataclass
class Run:
    spark: "SparkSession"
    source: Source
    out: str
    settings: dict[str, Any] = field(default_factory=dict)
    is_silent: bool = False  # nobody asks for the summary, so nothing is computed for it
    job: str = "notebook"
    kept: dict[tuple[Any, ...], "DataFrame"] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)  # of what is kept: jobs of a report run side by side
    small_tables: Path | None = None  # where tables of a small source are kept while it runs
    streams_commits: bool = False

    @property
    def aside(self) -> str | None:
        """Where corrupt batches are put, by tasks: on a cluster all machines must share it. None: nowhere."""
        named = self.spark.conf.get("spark.barnabas.aside", None)
        local = local_path(self.out)
        return named or (None if local is None else f"{local}/aside")

    @property
    def _aside(self) -> dict[str, str]:
        return {} if self.aside is None else {"aside": self.aside}

    @property
    def lost(self) -> str:
        """Where streams note what was gone before they read it: on this machine, also if the tables are elsewhere."""
        return losses.lost_in(self.out, self.job)

    @property
    def goes_on(self) -> bool:
        """Whether it goes on behind records that are gone."""
        return bool(self.settings.get("on_loss") == "continue")

    def table(self, name: str, **options: str) -> "DataFrame":
        return self.source.table(self.spark, name, self.small_tables, **self._aside, **options)

    def local(self, folder: str) -> Path | None:
        """A folder that this process sees as Spark's tasks do; None: it is elsewhere, or they run elsewhere."""
        return local_path(folder) if self.spark.sparkContext.master.startswith("local") else None

    def files(self, folder: str, codec: str) -> dict[str, str] | None:
        """The options of a source whose tasks are to write files into this folder; None: Spark has to write them."""
        local = self.local(folder)
        if local is None or codec not in CODECS:
            return None
        level = self.spark.sparkContext.getConf().get("spark.hadoop.parquet.compression.codec.zstd.level", "3")
        return {"files": str(local.absolute()), "codec": f"{codec}:{level}"}

    def commits(self) -> "DataFrame":
        """What the jobs need of the commits."""
        rows = of_readers(self._all_commits())
        return rows.where(F.coalesce(F.col("transaction") == "committed", F.lit(True))).drop("transaction")

    def held(self) -> str:
        """What open transactions hold back of the commits that the job has read; empty: nothing, or it has read none.

        A stream has not read them: what may be in open transactions is read for this. Who follows was told meanwhile.
        """
        if self.streams_commits and not self.settings.get("follow"):
            groups = open_groups(self.source, self.source.undecided(), self._aside)
            return held_back(len(groups), groups)
        if not any(name == "commits" for name, *_ in self.kept):
            return ""
        open_ones = of_readers(self._all_commits()).where("transaction = 'open'").groupBy("group_id").count().collect()
        return held_back(sum(row["count"] for row in open_ones), [row.group_id for row in open_ones])

    def _all_commits(self) -> "DataFrame":
        return self._kept("commits", columns=",".join((*COMMIT_COLUMNS, "transaction")))

    def batches(self, **options: str) -> "DataFrame":
        """What the jobs need of the batches of all topics."""
        return self._kept("batches", topics="*", columns=",".join(BATCH_COLUMNS), **options)

    def journal(self) -> "DataFrame | None":
        """Who has changed which offset; None: the source has no offset journal."""
        journal = self._kept("journal", columns=",".join(JOURNAL_COLUMNS))
        return None if journal.isEmpty() else journal.where("is_gap").union(of_readers(journal))

    def groups(self) -> "DataFrame":
        return self._kept("groups")

    def _kept(self, name: str, **options: str) -> "DataFrame":
        """A table that is read once, and then kept on disks, also for the next job."""
        key = (name, *sorted(options.items()))
        with self.lock:
            if key not in self.kept:
                table = self.table(name, **options)
                self.kept[key] = table if self.small_tables else computed_once(table)
            return self.kept[key]

    def write(self, name: str, rows: "DataFrame") -> "DataFrame":
        """Write a table in place of what an earlier run has written there, and read it back."""
        return write_table(rows, self.out, name, str(self.source))

    def keep(self, name: str, rows: "DataFrame", merge: Merge, **settings: int) -> "DataFrame":
        """Add rows by day to what earlier runs have written, and read all of it. `settings`: how they were made."""
        table = self.settings.get("table")
        if table is not None and name != self.job:  # a second table of the job
            table = f"{table}_{name}"
        made = Made(str(self.source), self.source.identity(), settings)
        days = DayTable(self.spark, self.out, name, table, self.settings.get("format", "parquet"))
        return days.update(rows, merge, made).drop(DAY)

    def stream(self, name: str, **options: str) -> "DataFrame":
        """A table of the source as it grows."""
        self.streams_commits |= name == "commits"
        on_loss = {"failOnDataLoss": str(not self.goes_on).lower(), "lost": self.lost}
        return self.source.stream(self.spark, name, **self._aside, **on_loss, **options)

    def streams(self) -> "tuple[DataFrame, DataFrame, DataFrame]":
        """Commits, groups and batches as they grow."""
        commits = of_readers(self.stream("commits", isolation=READ_COMMITTED, columns=",".join(COMMIT_COLUMNS)))
        batches = self.stream("batches", topics="*", columns=",".join(GROWTH_COLUMNS))
        return commits, self.stream("groups"), batches

    @property
    def is_streaming(self) -> bool:
        """Whether the job goes on behind what its last run has read."""
        return bool(self.settings.get("stream") or self.settings.get("follow"))

    @property
    def following(self) -> dict[str, Any]:
        """Whether a query goes on until Ctrl-C, how often it looks for what is new, and how often it is started."""
        settings = self.settings
        return {
            "follow": bool(settings.get("follow")),
            "trigger_s": settings.get("trigger_s", TRIGGER_S),
            "starts_max": STARTS_MAX if self.goes_on else 1,
            "look": HeldBack(self.source, self._aside).look if self.streams_commits else None,
        }

    def live(self, name: str, partitioned_by: tuple[str, ...] = (DAY,), by_file: tuple[str, ...] = (DAY,)) -> LiveTable:
        """A table that streams add to."""
        settings = self.settings
        of_table = settings.get("format", "parquet"), partitioned_by, settings.get("table"), by_file
        return LiveTable(self.spark, f"{self.out}/{name}", *of_table, self.source)

    def add(self, name: str, rows: "DataFrame", to_topic: ToTopic | None = None) -> "tuple[int, DataFrame, str]":
        """Add by day what the streams have: how many rows came, all rows, and where they are."""
        table = self.live(f"live/{name}")
        rows = rows.withColumn(DAY, F.to_date("at"))
        added = table.add(rows, to_topic=to_topic, **self.following)
        return added, table.read(rows).drop(DAY), table.where


def computed_once(rows: "DataFrame") -> "DataFrame":
    """Rows that are computed once, and then kept on the disks of Spark until the run ends."""
    return rows.persist(StorageLevel.DISK_ONLY)


def of_readers(commits: "DataFrame") -> "DataFrame":
    """Without the groups by which the sink remembers where its epochs begin (`once.py`): nobody reads with them."""
    return commits.where(~F.col("group_id").startswith(GROUP_PREFIX))
