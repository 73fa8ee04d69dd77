"""Where a job reads from: what `--source` says."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.pipeline.history_state import DELETE_RETENTION_MS, LogEnds
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.options import READ_COMMITTED, read_options
from barnabas.pipeline.wire import Cluster, UnreachableError, why_silent
from barnabas.storage.checkpoints import META_PROPERTIES

if TYPE_CHECKING:
    from barnabas.pipeline.files import AnyFiles
    from barnabas.pipeline.origin import Origin
    from pyspark.sql import DataFrame, SparkSession

SOURCE = "_source.json"  # whose rows are in a folder
NOT_THERE = "is neither a directory that exists nor HOST:PORT"


@dataclass(frozen=True)
class Identity:
    """Which cluster, and which of the topics `__consumer_offsets` that it may have had. None: nothing says it."""

    cluster_id: str | None = None
    offsets_topic_id: str | None = None

    def differs(self, other: "Identity") -> bool:
        """Whether the two cannot be the same."""
        pairs = ((self.cluster_id, other.cluster_id), (self.offsets_topic_id, other.offsets_topic_id))
        return any(one is not None and another is not None and one != another for one, another in pairs)

    def __str__(self) -> str:
        cluster = f"cluster {self.cluster_id}" if self.cluster_id else "a cluster without an id"
        return f"{cluster}, topic __consumer_offsets {self.offsets_topic_id}" if self.offsets_topic_id else cluster


def note_whose(files: "AnyFiles", path: str, where: str, identity: Identity) -> None:
    """Note in a file whose rows are there, as far as it says nothing yet. OutError: they are of another cluster."""
    text = files.read(path)
    try:
        before = Identity() if text is None else Identity(**json.loads(text))
    except (ValueError, TypeError):  # a run was killed while it wrote this, or the disk was full
        before = Identity()
    if before.differs(identity):
        raise OutError(f"{where} is of {before}, and --source is {identity}: name another --out")
    both = Identity(before.cluster_id or identity.cluster_id, before.offsets_topic_id or identity.offsets_topic_id)
    if both != before:
        files.write(path, json.dumps(asdict(both)))


@dataclass(frozen=True)
class Source:
    """Brokers, or data directories."""

    brokers: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    said: str = field(default="", compare=False)  # as a person says it: one folder may hold many directories

    def __bool__(self) -> bool:
        """Whether there is anything to read from."""
        return bool(self.brokers or self.directories)

    def __str__(self) -> str:
        """What `--source` says."""
        return self.said or ",".join(self.brokers or self.directories)

    def refused(self) -> str | None:
        """Why none of the brokers answers; None: one does. Tasks of Spark would try for minutes."""
        reasons = []
        for address in self.brokers:
            reason = why_silent(address)
            if reason is None:
                return None
            reasons.append(reason.lower())
        return "; ".join(reasons) or None

    def identity(self) -> Identity:
        """Whose commits these are."""
        from barnabas.pipeline.directories import logs_of  # numpy is of the extra `spark`

        if self.brokers:
            with Cluster(self.brokers) as cluster:
                cluster.refresh([OFFSETS_TOPIC])
                ids = [one.topic_id for (topic, _), one in cluster.partitions.items() if topic == OFFSETS_TOPIC]
                return Identity(cluster.cluster_id, next(iter(ids), None))
        logs = (
            log
            for one in self.directories
            for log in logs_of(one, (OFFSETS_TOPIC,), with_internal=True, until_high_watermark=False)
        )
        return Identity(self.cluster_id(), next((log.topic_id for log in logs if log.topic_id), None))

    def cluster_id(self) -> str | None:
        """Of which cluster it is; None: nothing says it."""
        if self.brokers:
            with Cluster(self.brokers) as cluster:
                cluster.refresh([])
                return cluster.cluster_id
        return next((found for one in self.directories if (found := _cluster_id(Path(one)))), None)

    def size_bytes(self, topics: Sequence[str] = ()) -> int | None:
        """How large the logs of these topics (none: of all) are, each partition once; None: the brokers do not say."""
        from barnabas.pipeline.directories import logs_of

        if self.brokers:
            try:
                with Cluster(self.brokers, retry_timeout_s=0) as cluster:  # a guess is not worth waiting
                    cluster.refresh()
                    partitions = [one for one in cluster.partitions if not topics or one[0] in topics]
                    sizes = cluster.log_bytes(partitions)
                    return sum(sizes.values()) if len(sizes) == len(partitions) else None
            except UnreachableError:
                return None
        largest: dict[tuple[str, int], int] = {}
        for one in self.directories:
            for log in logs_of(one, topics, with_internal=True, until_high_watermark=False):
                size = sum(segment.size_bytes for segment in log.segments)
                largest[log.topic, log.partition] = max(size, largest.get((log.topic, log.partition), 0))
        return sum(largest.values())

    def table(self, spark: "SparkSession", name: str, small_tables: Path | None = None, **options: str) -> "DataFrame":
        """`commits`, `groups`, `journal`, `records` or `batches`. `small_tables`: folder for it, if it is small."""
        from barnabas.pipeline.small_tables import as_small, rows_of
        from barnabas.pipeline.sources import register

        options = self.where() | options
        if small_tables is not None:
            return as_small(spark, small_tables, *rows_of(f"barnabas.{name}", options))
        register(spark)
        return spark.read.format(f"barnabas.{name}").options(**options).load()

    def partition_counts(self) -> dict[str, int]:
        """How many partitions each topic has."""
        counts: dict[str, int] = {}
        for key in self._origin("batches").states():
            counts[key.topic] = max(key.partition + 1, counts.get(key.topic, 0))
        return counts

    def commit_logs(self) -> dict[int, LogEnds]:
        """What there is now of each partition of `__consumer_offsets`."""
        origin = self._origin("commits")
        reached = origin.log_ends()
        return {
            key.partition: LogEnds(one.first_offset, one.end_offset, reached.get(key, one.end_offset))
            for key, one in origin.states().items()
        }

    def undecided(self) -> dict[int, tuple[tuple[int, int]]]:
        """From where to where `__consumer_offsets` may have commits in open transactions, by partition."""
        states = self._origin("commits", isolation=READ_COMMITTED).states()
        return {
            key.partition: ((one.stable_offset, one.end_offset),)
            for key, one in states.items()
            if one.stable_offset is not None and one.stable_offset < one.end_offset
        }

    def _origin(self, name: str, **options: str) -> "Origin":
        """Where the logs of a table are read."""
        from barnabas.pipeline.schemas import TABLES
        from barnabas.pipeline.sources import origin_of

        return origin_of(TABLES[f"barnabas.{name}"], read_options(self.where() | options))

    def delete_retention_ms(self) -> int:
        """How long the brokers keep tombstones of `__consumer_offsets`; Kafka's default where this is not known."""
        if not self.brokers:
            return DELETE_RETENTION_MS
        with Cluster(self.brokers) as cluster:
            said = cluster.topic_setting(OFFSETS_TOPIC, "delete.retention.ms")
            return DELETE_RETENTION_MS if said is None else int(said)

    def stream(self, spark: "SparkSession", name: str, **options: str) -> "DataFrame":
        """The same as a stream."""
        from barnabas.pipeline.sources import register

        register(spark)
        return spark.readStream.format(f"barnabas.{name}").options(**self.where(), **options).load()

    def where(self) -> dict[str, str]:
        """The options that say it to a table."""
        if self.brokers:
            return {"brokers": ",".join(self.brokers)}
        return {"directories": ",".join(self.directories)}


def source_of(text: str) -> Source:
    """`HOST:PORT[,…]`, a data directory or several with commas, or a directory that holds those of several brokers.

    ValueError says what is wrong with it.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError("names nothing: say HOST:PORT or a data directory")
    if all(_is_address(part) and not Path(part).exists() for part in parts):
        return Source(brokers=tuple(parts))
    found: list[Path] = []
    for part in parts:
        path = Path(part)
        inside = sorted(file.parent for file in path.glob(f"*/{META_PROPERTIES}"))
        if (path / META_PROPERTIES).is_file():
            found.append(path)
        elif inside:
            found += inside
        else:
            what = f"is no data directory: it has no {META_PROPERTIES}" if path.exists() else NOT_THERE
            raise ValueError(f"{part} {what}")
    clusters = {cluster_id: path for path in reversed(found) if (cluster_id := _cluster_id(path))}
    if len(clusters) > 1:
        whose = ", ".join(f"{path} of cluster {cluster_id}" for cluster_id, path in reversed(clusters.items()))
        raise ValueError(f"{text} is of several clusters: {whose}")
    said = ",".join(str(Path(part).resolve()) for part in parts)
    return Source(directories=tuple(str(path.resolve()) for path in found), said=said)


def _cluster_id(directory: Path) -> str | None:
    """The cluster that a data directory belongs to, if it says that."""
    try:
        lines = (directory / META_PROPERTIES).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    values = dict(line.partition("=")[::2] for line in lines)
    return values.get("cluster.id") or None


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isascii() and port.isdecimal()) and "/" not in host
