"""The options of the sources, `spark.read.format("barnabas.commits").option(NAME, VALUE)`. Spark ignores their case.

A `load()` looks at the logs once, when the first query of its DataFrame is planned. All queries of this DataFrame read
up to there; what has been written since needs another `load()`, or a stream. On a Spark cluster the folders of
`directories` and `aside` must be the same for all workers.

| option | default | meaning |
| --- | --- | --- |
| `brokers` | | `HOST:PORT[,…]`: read over the wire |
| `directories`, or `load(PATH)` | | `FOLDER[,…]`: read the segment files of these data directories. One of the two is needed |
| `topics` | all but internal ones (`barnabas.batches`: all) | `NAME[,…]` of `barnabas.records` and `barnabas.batches`; `*` stands for any characters |
| `columns` | all | `NAME[,…]`: only these columns are made. Spark does not tell a Python source which columns a query needs, so say it: here, or by `spark.read.schema(…)` |
| `where` | | conditions that the source applies, so that it reads only what it must: `log_partition = 3 and group_id in ('a', 'b') and log_timestamp >= '2026-11-22 06:00'` (`condition_text.py`). Streams have it, too |
| `pushFilters` | `false` | `true`: Spark hands the query's own conditions to the source. **Only for a DataFrame that is used in one place of one query**: Spark 4.3 gives the rows that were chosen there to all other queries of the same `load()`. `where` has no such trap |
| `ranges` | | only these offsets of these partitions: `0:0-17,0:40-90,3:0-9` (up to before the second one). For one topic |
| `isolation` | `read_uncommitted` | `read_committed`: neither records of aborted transactions nor what lies above the last stable offset. Of `barnabas.commits` and `barnabas.groups`, as in a coordinator, only what is in an open transaction is held back |
| `holes` | `false` | `barnabas.commits` only. `true`: also a row for each place of the log that cannot be read. `transaction` is `unreadable`, the offsets from `log_offset` to before `offset` may be in it, and `metadata` says why |
| `aside` | | folder for corrupt batches: for each its bytes (`….batch`) and its place and reason (`….json`). Without it a corrupt batch fails the query, and the message names its place |
| `replicas` | `one` | directories only. `one`: of a partition in several directories the replica that reaches furthest is read; `all`: each |
| `until` | `high-watermark` | directories only. `log-end`: also what was never committed, e.g. to compare replicas |
| `files` | | folder on the disk of all workers: in place of rows the tasks write Parquet files there, and give out which (`parquet_files.py` says how; `barnabas.commits` with all columns, `barnabas.records` with those of the job `export`) |
| `codec` | `zstd:1` | of these files: `none`, `snappy`, `gzip` or `zstd`, perhaps with a level |
| `splitBytes` | 64 MiB | directories only: how much of a segment one task reads |
| `splitOffsets` | 1 000 000 | wire only: how many offsets of a partition one task reads |
| `startingOffsets` | `earliest` | streaming only: `earliest` or `latest`, for a query without a checkpoint |
| `maxRowsPerTrigger`, `maxBytesPerTrigger`, `maxFilesPerTrigger` | | streaming only: how much one micro-batch takes; one of them. A file is a segment (directories only). Over the wire bytes are estimated from a partition's average record |
| `failOnDataLoss` | `true` | what happens when records that should be read are gone (retention, a log that was truncated, a topic that was created again): `true` fails the query, `false` says it in the log and goes on behind the gap. A topic that is deleted is lost only if `topics` names it: a stream over a pattern, or over all topics, goes on |
| `lost` | | streaming only: folder, of the machine of the driver, for notes on what was lost (`losses.py`) |

Of the sink `barnabas.records` (`df.write` with `mode("append")`, `df.writeStream`):

| option | default | meaning |
| --- | --- | --- |
| `brokers` | | `HOST:PORT[,…]`: needed |
| `topic` | | the topic of all rows; without it the column `topic` says it. The topic must exist |
| `compression` | `none` | `none`, `gzip`, `snappy`, `lz4` or `zstd` |
| `batchBytes` | 256 KiB | how large a batch of records becomes before it is compressed |
| `once` | `false` | what is done again after a failure is not written again (`once.py` says how, and what it needs). `true` in a stream, also in its `foreachBatch`; else a name that is the same when the query is run again, and that no other query has |
"""  # noqa: E501

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from barnabas.protocol.compression import Compression

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True)
class ReadOptions:
    """The options of one query, checked."""

    brokers: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    where: str = ""
    push_filters: bool = False
    ranges: Mapping[int, tuple[tuple[int, int], ...]] | None = None
    isolation: str = READ_UNCOMMITTED
    holes: bool = False
    aside: str | None = None
    files: str | None = None
    codec: str = "zstd:1"
    replicas: str = "one"
    until: str = "high-watermark"
    split_bytes: int = 64 << 20
    split_offsets: int = 1_000_000
    starting_offsets: str = "earliest"
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_files_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    lost: str | None = None

    @property
    def is_read_committed(self) -> bool:
        """Whether only records of committed transactions are read, and those outside of any."""
        return self.isolation == READ_COMMITTED

    @property
    def tasks_fail_on_loss(self) -> bool:
        """A task cannot note what it loses, so its micro-batch is planned again, which notes it."""
        return self.fail_on_data_loss or self.lost is not None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a query. ValueError names the option that is wrong."""
    given = {name.lower(): value for name, value in options.items()}
    path = given.pop("path", "")
    result = ReadOptions(
        brokers=_names(given.pop("brokers", "")),
        directories=_names(given.pop("directories", path)),
        topics=_names(given.pop("topics", "")),
        columns=_names(given.pop("columns", "")),
        where=given.pop("where", ""),
        push_filters=_flag("pushFilters", given.pop("pushfilters", "false")),
        ranges=_ranges(given.pop("ranges", None)),
        holes=_flag("holes", given.pop("holes", "false")),
        isolation=_one_of("isolation", given.pop("isolation", READ_UNCOMMITTED), READ_UNCOMMITTED, READ_COMMITTED),
        aside=given.pop("aside", None),
        files=given.pop("files", None),
        codec=given.pop("codec", ReadOptions.codec),
        replicas=_one_of("replicas", given.pop("replicas", "one"), "one", "all"),
        until=_one_of("until", given.pop("until", "high-watermark"), "high-watermark", "log-end"),
        split_bytes=_number("splitBytes", given.pop("splitbytes", None)) or ReadOptions.split_bytes,
        split_offsets=_number("splitOffsets", given.pop("splitoffsets", None)) or ReadOptions.split_offsets,
        starting_offsets=_one_of("startingOffsets", given.pop("startingoffsets", "earliest"), "earliest", "latest"),
        max_rows_per_trigger=_number("maxRowsPerTrigger", given.pop("maxrowspertrigger", None)),
        max_bytes_per_trigger=_number("maxBytesPerTrigger", given.pop("maxbytespertrigger", None)),
        max_files_per_trigger=_number("maxFilesPerTrigger", given.pop("maxfilespertrigger", None)),
        fail_on_data_loss=_flag("failOnDataLoss", given.pop("failondataloss", "true")),
        lost=given.pop("lost", None),
    )
    if given:
        raise ValueError(f"unknown option {', '.join(sorted(given))}: see barnabas.pipeline.options")
    if bool(result.brokers) == bool(result.directories):
        raise ValueError("say either `brokers` (HOST:PORT[,…]) or `directories` (FOLDER[,…])")
    limits = (result.max_rows_per_trigger, result.max_bytes_per_trigger, result.max_files_per_trigger)
    if len(limits) - limits.count(None) > 1:
        raise ValueError("say one of maxRowsPerTrigger, maxBytesPerTrigger and maxFilesPerTrigger")
    return result


@dataclass(frozen=True)
class WriteOptions:
    """The options of the sink, checked."""

    brokers: tuple[str, ...]
    topic: str | None
    compression: Compression
    batch_bytes: int
    once: str | None  # `true`, or a name


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a query that writes. ValueError names the option that is wrong, and what it can be."""
    given = {name.lower(): value for name, value in options.items()}
    for name in ("checkpointlocation", "path", "queryname"):  # Spark's own
        given.pop(name, None)
    codecs = [one.name.lower() for one in Compression]
    once = given.pop("once", "false")
    result = WriteOptions(
        brokers=_names(given.pop("brokers", "")),
        topic=given.pop("topic", None),
        compression=Compression[_one_of("compression", given.pop("compression", "none").lower(), *codecs).upper()],
        batch_bytes=_number("batchBytes", given.pop("batchbytes", None)) or 256 << 10,
        once=None if once.lower() == "false" else once,
    )
    if given:
        raise ValueError(f"unknown option {', '.join(sorted(given))}: see barnabas.pipeline.options")
    if not result.brokers:
        raise ValueError("say `brokers` (HOST:PORT[,…])")
    if result.once is not None and result.topic is None:
        raise ValueError("once needs the option `topic`")
    return result


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _one_of(name: str, value: str, *allowed: str) -> str:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: it can be {' or '.join(allowed)}")
    return value


def _flag(name: str, value: str) -> bool:
    return _one_of(name, value.lower(), "true", "false") == "true"


def ranges_text(ranges: Mapping[int, Iterable[tuple[int, int]]]) -> str:
    """The value of the option `ranges`."""
    return ",".join(f"{partition}:{low}-{high}" for partition, some in ranges.items() for low, high in some)


def _ranges(value: str | None) -> dict[int, tuple[tuple[int, int], ...]] | None:
    if value is None:
        return None
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for part in _names(value):
        match = re.fullmatch(r"(\d+):(\d+)-(\d+)", part)
        if match is None:
            raise ValueError(f"ranges={value!r}: say PARTITION:FROM-TO[,…]")
        partition, low, high = (int(one) for one in match.groups())
        found[partition] = (*found.get(partition, ()), (low, high))
    return found


def _number(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or not int(value):
        raise ValueError(f"{name}={value!r} is not a positive number")
    return int(value)
