"""Histories as pure values in the columns of the sources: small random ones, and the generated day.

The tests fold these same rows in plain Python, and compare with what a job says.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from barnabas.coordinators.coordinator import partition_for
from barnabas.pipeline.schemas import BATCHES, COMMITS, GROUPS, RECORDS, Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.day import Commit, Day, Generation, Record

MINUTE_MS = 60_000
START_MS = 1_763_769_600_000  # 2025-11-22T00:00:00Z
OFFSETS_PARTITIONS = 3

Row = dict[str, Any]


@dataclass
class History:
    """Rows of three tables. Times are milliseconds here, and timestamps in the tables."""

    commits: list[Row] = field(default_factory=list)
    groups: list[Row] = field(default_factory=list)
    batches: list[Row] = field(default_factory=list)
    records: list[Row] = field(default_factory=list)
    truth: Row = field(default_factory=dict)  # of the day: what it says of itself
    _log_ends: Counter[int] = field(default_factory=Counter)  # of the partitions of __consumer_offsets

    def commit(
        self,
        at_ms: int,
        group: str,
        topic: str,
        partition: int,
        offset: int | None,
        expire_ms: int | None = None,
        **more: Any,
    ) -> None:
        """A commit, or a tombstone if `offset` is None."""
        is_tombstone = offset is None
        self.commits.append(
            {
                "group_id": group,
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "metadata": None if is_tombstone else "",
                "commit_timestamp": None if is_tombstone else at_ms,
                "expire_timestamp": expire_ms,
                "is_tombstone": is_tombstone,
                **self._place(at_ms, group),
                **more,
            }
        )

    def generation(self, at_ms: int, group: str, generation: int, assignment: dict[str, list[tuple[str, int]]]) -> None:
        """A group's record: which partitions each member got."""
        members = []
        for member, partitions in assignment.items():
            topics = sorted({topic for topic, _ in partitions})
            assigned = [
                {"topic": topic, "partitions": [number for name, number in partitions if name == topic]}
                for topic in topics
            ]
            members.append({"member_id": member, "client_id": group, "subscribed_topics": topics, "assigned": assigned})
        self.groups.append(
            {
                "group_id": group,
                "record_type": "GroupMetadata",
                "is_tombstone": False,
                "protocol_type": "consumer",
                "generation": generation,
                "protocol": "range" if members else None,
                "state_timestamp": at_ms,
                "members": members,
                **self._place(at_ms, group),
            }
        )

    def epoch(self, at_ms: int, group: str, epoch: int) -> None:
        """The record of a group of KIP-848."""
        self._of_new_protocol(at_ms, group, "ConsumerGroupMetadata", epoch, None, is_tombstone=False)

    def member(self, at_ms: int, group: str, member: str, *, is_there: bool = True) -> None:
        """A record of a member of such a group, or its tombstone."""
        members = [{"member_id": member}]
        self._of_new_protocol(at_ms, group, "ConsumerGroupMemberMetadata", None, members, is_tombstone=not is_there)

    def _of_new_protocol(
        self, at_ms: int, group: str, kind: str, epoch: int | None, members: list[Row] | None, *, is_tombstone: bool
    ) -> None:
        row = {"group_id": group, "record_type": kind, "is_tombstone": is_tombstone, "generation": epoch}
        self.groups.append(row | {"members": members, **self._place(at_ms, group)})

    def produce(
        self, at_ms: int, topic: str, partition: int, base_offset: int, count: int = 1, span_ms: int = 0
    ) -> None:
        """A batch of records, the first one at `at_ms`, the last one `span_ms` later."""
        self.batches.append(
            {
                "topic": topic,
                "partition": partition,
                "base_offset": base_offset,
                "last_offset": base_offset + count - 1,
                "size_bytes": 70 + 100 * count,
                "base_timestamp": at_ms,
                "max_timestamp": at_ms + span_ms,
                "record_count": count,
                "crc_holds": True,
                "is_control": False,
            }
        )

    def _place(self, at_ms: int, group: str) -> Row:
        partition = partition_for(group, OFFSETS_PARTITIONS)
        self._log_ends[partition] += 1
        return {"log_partition": partition, "log_offset": self._log_ends[partition] - 1, "log_timestamp": at_ms}


def random_histories(seeds: Iterable[int], *, late: bool = True) -> History:
    """A small history for each seed, with groups and topics of its own; some commits have times that are past."""
    history = History()
    for seed in seeds:
        _add_random(history, seed, 70_000 if late else 0)
    return history


def _add_random(history: History, seed: int, late_ms: int, steps: int = 150) -> None:
    """Few groups and partitions, and everything that can happen to an offset: late and equal times, jumps back and
    forward, tombstones, expiry times, commits past the end, generations with and without members."""
    random, repeats = Random(seed), Random(~seed)
    places = [(f"orders-{seed}", 0), (f"orders-{seed}", 1), (f"clicks-{seed}", 0)]
    groups = [f"{letter}-{seed}" for letter in "abc"]
    ends, offsets = Counter[tuple[str, int]](), Counter[tuple[str, str, int]]()
    generations = Counter[str]()
    now_ms = START_MS + random.randrange(10 * MINUTE_MS)
    for _ in range(steps):
        now_ms += random.choice((0, 1, 500, 20_000, 90_000, 400_000))
        topic, partition = random.choice(places)
        group = random.choice(groups)
        what = random.random()
        if what < 0.35:
            count = random.choice((1, 1, 3, 20))
            span_ms = 0 if count == 1 else random.randrange(3) * 1_000
            history.produce(now_ms, topic, partition, ends[topic, partition], count, span_ms)
            ends[topic, partition] += count
        elif what < 0.9:
            end, before = ends[topic, partition], offsets[group, topic, partition]
            offset = random.choice((end, end, before, random.randrange(end + 1), min(end, before + 2), end + 5))
            offsets[group, topic, partition] = offset
            at_ms = now_ms - random.choice((0, 0, 0, late_ms))
            expire_ms = random.choice((None, None, now_ms + 600_000))
            history.commit(at_ms, group, topic, partition, offset, expire_ms)
        elif what < 0.95:
            history.commit(now_ms, group, topic, partition, None)
        else:
            generations[group] += repeats.random() < 0.8  # else it is written again; a group may begin with 0
            members = random.randrange(3)
            shared = random.sample(places, random.choice((1, 2, 3, 3)))
            shares = {f"{group}-{number}": shared[number::members] for number in range(members)}
            history.generation(now_ms, group, generations[group], shares)


def day_history(day: Day) -> History:
    """What the sources would say of brokers that hold this day, each record a batch of its own."""
    history, ends = History(truth=day.truth), Counter[tuple[str, int]]()
    for event in day.events:
        if isinstance(event, Record):
            offset = ends[event.topic, event.partition]
            history.produce(event.at_ms, event.topic, event.partition, offset)
            ends[event.topic, event.partition] += 1
            history.records.append(
                {
                    "topic": event.topic,
                    "partition": event.partition,
                    "offset": offset,
                    "timestamp": event.at_ms,
                    "timestamp_type": "CreateTime",
                    "key": event.key,
                    "value": event.value,
                    "headers": [{"key": key, "value": value} for key, value in event.headers],
                }
            )
        elif isinstance(event, Commit):
            expire_ms = None if event.expire_ms < 0 else event.expire_ms
            history.commit(event.at_ms, event.group, event.topic, event.partition, event.offset, expire_ms)
        elif isinstance(event, Generation):
            assignment = {
                member: [(event.topic, partition) for partition in partitions]
                for member, partitions in event.assignment.items()
            }
            history.generation(event.at_ms, event.group, event.generation, assignment)
    return history


class Tables:
    """A history as Spark tables, kept in Parquet files."""

    def __init__(self, spark: SparkSession, folder: Path, history: History) -> None:
        self.commits = table(spark, folder, COMMITS, history.commits)
        self.groups = table(spark, folder, GROUPS, history.groups)
        self.batches = table(spark, folder, BATCHES, history.batches)
        self.records = table(spark, folder, RECORDS, history.records)


def table(spark: SparkSession, folder: Path, of: Table, rows: Sequence[Row], name: str | None = None) -> DataFrame:
    """The rows as a table of that source."""
    times = {column.name for column in of.columns if pa.types.is_timestamp(of.arrow.field(column.name).type)}
    with_times = [{key: _time(value) if key in times else value for key, value in row.items()} for row in rows]
    path = str(folder / f"{name or of.name}.parquet")
    pq.write_table(pa.Table.from_pylist(with_times, of.arrow), path)
    return spark.read.schema(of.spark).parquet(path)


def rows(frame: DataFrame) -> list[Row]:
    """The rows of a table, with times as milliseconds."""
    times = [name for name, kind in frame.dtypes if kind == "timestamp"]
    frame = frame.withColumns({name: F.unix_millis(name) for name in times})
    return [row.asDict(recursive=True) for row in frame.collect()]


def _time(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms * 1000  # as Arrow keeps it; a datetime ends in the year 9999
