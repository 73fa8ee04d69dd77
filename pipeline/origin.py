"""Where a query reads its logs: from data directories (`directory_origin.py`) or from brokers (`broker_origin.py`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from barnabas.pipeline.batches import OFFSETS_END
from barnabas.pipeline.place import Read
from pyspark.sql.datasource import InputPartition


class LogKey(NamedTuple):
    """A partition; with `replicas` = `all` also whose replica of it."""

    topic: str
    partition: int
    directory: str | None = None

    def __str__(self) -> str:
        """As in messages."""
        return f"{self.directory}/{self.topic}-{self.partition}" if self.directory else f"{self.topic}-{self.partition}"


class LogState(NamedTuple):
    """What there is of a log."""

    topic_id: str | None
    first_offset: int
    end_offset: int  # the high watermark or last stable offset: where a reader stops


class OffsetRange(NamedTuple):
    """Offsets of a log: from `low` to before `high`."""

    key: LogKey
    low: int
    high: int


@dataclass(frozen=True)
class Wanted:
    """What a query wants of the logs. None: no restriction."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = 0
    high: int = OFFSETS_END
    newer_than_ms: int | None = None
    groups: frozenset[str] | None = None  # whose records are wanted; each group has one partition

    def has(self, topic: str, partition: int) -> bool:
        """Whether any record of this partition is wanted."""
        in_topics = self.topics is None or topic in self.topics
        return in_topics and (self.partitions is None or partition in self.partitions)


class Origin(Protocol):
    """One way to read logs. Objects are sent to tasks, so they hold only options."""

    def states(self) -> dict[LogKey, LogState]:
        """What there is now of every log of the query."""
        raise NotImplementedError

    def tasks(self, wanted: Wanted) -> list[InputPartition]:
        """What the tasks of a batch query read."""
        raise NotImplementedError

    def tasks_of(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        """What the tasks of a micro-batch read."""
        raise NotImplementedError

    def within_bytes(self, starts: Mapping[LogKey, int], ends: Mapping[LogKey, int], size: int) -> dict[LogKey, int]:
        """For each log an end not above its one in `ends`, so that all together are about `size` bytes."""
        raise NotImplementedError

    def within_files(self, starts: Mapping[LogKey, int], ends: Mapping[LogKey, int], count: int) -> dict[LogKey, int]:
        """The same for a number of segment files."""
        raise NotImplementedError

    def read(self, task: InputPartition) -> Iterator[Read]:
        """Read what a task is to read."""
        raise NotImplementedError
