"""What the last run of a job has said, for a run that would read, write and say the same again: that needs no Spark.

    DIR/lag/_said.json    what that run has said, and a digest of all that this depends on

Into the digest goes what there is of each log (of data directories each segment file with its size and time), what the
run was asked for, each file that it has written, and the day. Whatever has changed, a run computes again.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from barnabas.pipeline.as_of import CLOCKS_DIFFER_S
from barnabas.pipeline.directories import logs_of
from barnabas.pipeline.local_files import local_path, write_file
from barnabas.pipeline.source import Source
from barnabas.pipeline.wire import EARLIEST, LATEST, Cluster, UnreachableError

JOBS = ("lag",)  # they depend on nothing else
SAID = "_said.json"
_ELSEWHERE = ("table", "stream", "follow")  # settings with which a run goes on, or writes what is not here


@dataclass(frozen=True)
class LastRun:
    """The last run of a job in a folder, and what one now would depend on."""

    out: Path
    job: str
    depends_on: str
    began_at: datetime

    @property
    def _path(self) -> Path:
        return self.out / self.job / SAID

    def said(self) -> dict[str, Any] | None:
        """What it has said; None: something has changed since, or there was none."""
        try:
            found = json.loads(self._path.read_text())
            said: dict[str, Any] = found["said"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return said if found["digest"] == self._digest() else None

    def keep(self, said: Mapping[str, Any], tables: Path) -> None:
        """Keep what this run says, unless it has read a time in the future: that counts at another time of the day."""
        latest_us = int((self.began_at.timestamp() + CLOCKS_DIFFER_S) * 1_000_000)
        if all(time_us <= latest_us for time_us in _latest_times_us(tables)):
            write_file(self._path, json.dumps({"digest": self._digest(), "said": said}).encode())

    def _digest(self) -> str:
        written = [sorted(_files(self.out / name)) for name in (self.job, "aside", "_making")]
        return blake2b(json.dumps([self.depends_on, written]).encode()).hexdigest()


def last_run(job: str, source: Source, out: str, settings: Mapping[str, Any]) -> LastRun | None:
    """None: it is not known whether anything has changed."""
    folder = local_path(out)
    if folder is None or job not in JOBS or any(settings.get(name) for name in _ELSEWHERE):
        return None
    now = datetime.now(UTC)
    with suppress(OSError, UnreachableError):
        logs = _logs_of_brokers(source.brokers) if source.brokers else _logs_in(source.directories)
        if logs is not None:
            asked = [version("barnabas"), job, sorted(settings.items()), str(now.date())]
            return LastRun(folder, job, json.dumps([asked, logs], default=str), now)
    return None


def _logs_in(directories: Iterable[str]) -> list[Any]:
    """What there is in data directories. A segment that is written in its place has another time, or size."""
    found = []
    for one in directories:
        for log in logs_of(one, (), with_internal=True, until_high_watermark=True):
            segments = [(segment, os.stat(segment.path).st_mtime_ns) for segment in log.segments]
            found.append((log.folder, log.topic_id, log.start_offset, log.end_offset, segments))
    return found


def _logs_of_brokers(brokers: tuple[str, ...]) -> list[Any] | None:
    """What there is in brokers; None: one does not say it all. What compaction removes only the sizes show, and what an
    unclean election replaces the leader epochs.
    """
    with Cluster(brokers) as cluster:
        cluster.refresh()
        logs = sorted(cluster.partitions.items())
        places = [place for place, _ in logs]
        sizes = cluster.log_bytes(places)
        if len(sizes) < len(places) or any(one.leader_epoch < 0 for _, one in logs):
            return None
        firsts, ends = cluster.offsets(places, EARLIEST), cluster.offsets(places, LATEST)
        return [
            cluster.cluster_id,
            [(place, one.topic_id, one.leader_epoch, firsts[place], ends[place], sizes[place]) for place, one in logs],
        ]


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    for place, _, names in os.walk(folder):
        for name in names:
            if name != SAID:
                status = os.stat(f"{place}/{name}")
                yield os.path.relpath(f"{place}/{name}", folder), status.st_size, status.st_mtime_ns


def _latest_times_us(tables: Path) -> Iterator[int]:
    """The latest times that are in files of Parquet, in each column of each part."""
    for path in tables.glob("*.parquet"):
        file = pq.read_metadata(path)
        for part in range(file.num_row_groups):
            for number in range(file.num_columns):
                column = file.row_group(part).column(number)
                if column.path_in_schema in ("log_timestamp", "max_timestamp") and column.statistics.has_min_max:
                    yield column.statistics.max_raw
