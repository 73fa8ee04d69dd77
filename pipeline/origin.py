"""Where a query reads its logs: from data directories (`directory_origin.py`) or from brokers (`broker_origin.py`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from barnabas.pipeline.batches import OFFSETS_END
from barnabas.pipeline.place import Read
from pyspark.sql.datasource import InputPartition

TASKS_AT_LEAST = 16
"""A query is cut into about so many tasks, even if `splitBytes` or `splitOffsets` would make fewer."""


class LogKey(NamedTuple):
    """A partition; with `replicas` = `all` also whose replica of it."""

    topic: str
    partition: int
    directory: str | None = None

    def __str__(self) -> str:
        return f"{self.directory}/{self.topic}-{self.partition}" if self.directory else f"{self.topic}-{self.partition}"


class LogState(NamedTuple):
    """What there is of a log."""

    topic_id: str | None
    first_offset: int
    end_offset: int  # the high watermark or last stable offset: where a reader stops
    stable_offset: int | None = None  # what is in transactions is read up to here; None: up to the end


class OffsetRange(NamedTuple):
    """Offsets of a log: from `low` to before `high`."""

    key: LogKey
    low: int
    high: int
    until: int = -1  # the end of the log, as the query knows it: what is open there counts as open; −1: `high`
    only: bool | None = None  # of these offsets: those in transactions (True), or those outside of any (False)


@dataclass(frozen=True)
class Wanted:
    """What a query wants of the logs. None: no restriction."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = 0
    high: int = OFFSETS_END
    newer_than_ms: int | None = None
    groups: frozenset[str] | None = None  # whose records are wanted; each group has one partition
    ranges: Mapping[int, tuple[tuple[int, int], ...]] | None = None  # of each partition; no other one is wanted

    def has(self, topic: str, partition: int) -> bool:
        """Whether any record of this partition is wanted."""
        in_topics = self.topics is None or topic in self.topics
        in_ranges = self.ranges is None or partition in self.ranges
        return in_topics and in_ranges and (self.partitions is None or partition in self.partitions)

    def of(self, partition: int) -> list[tuple[int, int]]:
        """The offsets that are wanted of a partition: each from one to before another."""
        ranges = ((0, OFFSETS_END),) if self.ranges is None else self.ranges[partition]
        return [(max(low, self.low), min(high, self.high)) for low, high in ranges]


class Origin(Protocol):
    """One way to read logs. Objects are sent to tasks, so they hold only options."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Names and patterns; none: all topics."""

    def states(self) -> dict[LogKey, LogState]:
        """What there is now of every log of the query."""

    def log_ends(self) -> dict[LogKey, int]:
        """Where the files of logs end, above or below their high watermarks; of those that are not here it is these."""

    def tasks(self, wanted: Wanted) -> list[InputPartition]:
        """What the tasks of a batch query read."""

    def tasks_of(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        """What the tasks of a micro-batch read."""

    def within_bytes(self, starts: Mapping[LogKey, int], ends: Mapping[LogKey, int], size: int) -> dict[LogKey, int]:
        """For each log an end not above its one in `ends`, so that all together are about `size` bytes."""

    def within_files(self, starts: Mapping[LogKey, int], ends: Mapping[LogKey, int], count: int) -> dict[LogKey, int]:
        """The same for a number of segment files."""

    def read(self, task: InputPartition) -> Iterator[Read]:
        """Read what a task is to read."""
