"""`python -m bench pipeline [ROW...]`: the data pipeline, in rows or megabytes a second, and in processor time.

    stages     segment files of commits in one process, without Spark, and where the time goes
    sources    the same with Spark, into nothing: all columns, five columns, one group of 2,000
    offsets    the job `offsets`: segment files to Parquet, end to end
    wire       the job `offsets` from a broker, and the source alone
    plain      a million commits from a broker: a consumer of kafka-python, record by record, and pandas; and the source
    export     the job `export` of records of 1 KB in zstd batches
    verify     the job `verify` of the same logs
    stream     `lag` and `health` as streaming queries while clients commit: how long each micro-batch takes
    replay     the same from segment files that grow, in processor time for each second of commits
    small      from command to prompt: small runs on the day of `python -m examples`, with and without prepared classes

Without a row: all but `stream`, `replay` and `small`. The sizes are small; `--full` takes those of the aims (50 million
commits, 10 GB, ten minutes), for which there should be 40 GB of disk and no other load. Processor time is what other
loads change least.
"""

import argparse
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.offsets.records import decode_key, decode_value
from barnabas.pipeline.directories import logs_of, pieces_of
from barnabas.pipeline.options import read_options
from barnabas.pipeline.records import take_apart
from barnabas.pipeline.run import Run
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.schemas import COMMITS
from barnabas.pipeline.segment_reading import READ_BYTES, read_piece
from barnabas.pipeline.session import start_session
from barnabas.pipeline.source import source_of
from barnabas.pipeline.sources import LogReader, register

from bench.pipeline_data import RECORDS_TOPIC, record_count, write_commits, write_records
from bench.pipeline_small import small
from bench.pipeline_stream import replay, stream
from bench.processors import processor_seconds
from bench.targets import Barnabas

PER_BATCH = 10
MB = 1_000_000


@dataclass(frozen=True)
class Sizes:
    """How much each row takes."""

    commits: int
    wire_commits: int
    plain_commits: int
    record_bytes: int
    stream_s: int


SMALL = Sizes(commits=1_000_000, wire_commits=400_000, plain_commits=100_000, record_bytes=100 * MB, stream_s=120)
FULL = Sizes(
    commits=50_000_000, wire_commits=5_000_000, plain_commits=1_000_000, record_bytes=10_000 * MB, stream_s=600
)


class Watch:
    """Prints what a stage took."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size

    def time(self, name: str, work: Callable[[], object], *, in_bytes: bool = False) -> tuple[float, float]:
        """Do the work once; the seconds that it took, by the clock and of processors."""
        began, used = time.monotonic(), processor_seconds()
        work()
        seconds, used = time.monotonic() - began, processor_seconds() - used
        unit, amount = ("MB/s", self.size / MB) if in_bytes else ("rows/s", self.count)
        rate = f"{amount / seconds:12,.0f} {unit:6} {seconds:7.1f} s"
        print(f"{name:34} {rate}   {used:7.1f} s of processors, {amount / used:12,.0f} {unit} of them", flush=True)
        return seconds, used


def stages(path: str, watch: Watch) -> None:
    """Without Spark, in one process."""
    pieces = [
        piece
        for log in logs_of(path, (OFFSETS_TOPIC,), with_internal=True, until_high_watermark=True)
        for piece in pieces_of(log, 0, 2**63 - 1, 64 << 20)
    ]
    spent = dict.fromkeys(("read", "find batches, checksums", "take records apart", "Arrow columns"), 0.0)
    reader = LogReader(COMMITS, COMMITS.spark, read_options({"path": path}))
    for piece in pieces:
        reads = read_piece(piece)
        while True:
            began = time.process_time()
            one = next(reads, None)
            spent["find batches, checksums"] += time.process_time() - began
            if one is None:
                break
            began = time.process_time()
            take_apart(one.batches)
            spent["take records apart"] += time.process_time() - began
            began = time.process_time()
            for _ in reader.reading.rows(one):
                pass
            spent["Arrow columns"] += time.process_time() - began
    with open(pieces[0].segment.path, "rb") as file:
        began = time.process_time()
        while file.read(READ_BYTES):
            pass
        spent["read"] = (time.process_time() - began) * watch.size / pieces[0].segment.size_bytes
    spent["Arrow columns"] -= spent["take records apart"]  # it takes them apart once more
    spent["find batches, checksums"] -= spent["read"]
    total = sum(spent.values())
    for name, seconds in spent.items():
        print(f"  {name:32} {seconds / watch.count * 1e9:8.0f} ns a row  {seconds / total:5.0%}")
    print(f"  {'one core':32} {watch.count / total:12,.0f} rows/s of processor time")


class Bench:
    """What the rows share: data directories, which are made once, and a Spark session."""

    def __init__(self, sizes: Sizes, folder: Path, work: Path, memory: str, rate: int) -> None:
        self.sizes = sizes
        self.rate = rate
        self.folder = folder
        self.work = work
        self.memory = memory
        self._spark: Any = None

    @property
    def spark(self) -> Any:
        """The session, warm: its Java has compiled, and its Python processes run."""
        if self._spark is None:
            settings = {"spark.driver.memory": self.memory, "spark.local.dir": str(self.work / "local")}
            self._spark = start_session("bench", settings)
            register(self._spark)
            some = self._spark.read.format(COMMITS.name).option("where", "log_offset < 20000").load(self.commits().path)
            some.write.format("noop").mode("overwrite").save()
        return self._spark

    def stop(self) -> None:
        """End Spark."""
        if self._spark is not None:
            self._spark.stop()

    def commits(self, count: int | None = None) -> "Data":
        """A data directory of commits."""
        count = count or self.sizes.commits
        path = self.folder / f"commits-{count}"
        if not path.exists():
            write_commits(path, count, PER_BATCH)
        return Data(str(path), record_count(count, PER_BATCH))

    def records(self) -> "Data":
        """A data directory of records."""
        path = self.folder / f"records-{self.sizes.record_bytes}"
        count = write_records(path, self.sizes.record_bytes)
        return Data(str(path), count)

    def run(self, job: str, source: str, **settings: Any) -> str:
        """Run a job; what it says."""
        out = self.work / f"out-{job}"
        shutil.rmtree(out, ignore_errors=True)
        said = run_job(job, Run(self.spark, source_of(source), str(out), settings)).sentence
        print(f"  {said.replace(str(self.work), '')}")
        return said


@dataclass(frozen=True)
class Data:
    """A data directory."""

    path: str
    count: int

    @property
    def size(self) -> int:
        """The bytes of its logs."""
        return sum(log.stat().st_size for log in Path(self.path).glob("*/*.log"))

    def watch(self) -> Watch:
        """A watch for its rows and bytes."""
        print(f"{self.count:,} records, {self.size / MB:,.0f} MB of log", flush=True)
        return Watch(self.count, self.size)


def row_stages(bench: Bench) -> None:
    """Without Spark."""
    data = bench.commits()
    stages(data.path, data.watch())


def row_sources(bench: Bench) -> None:
    """With Spark, into nothing."""
    data, spark = bench.commits(), bench.spark
    watch = data.watch()
    for name, options in (
        ("Spark, into nothing", {}),
        ("Spark, five columns, into nothing", {"columns": "group_id,topic,partition,offset,log_offset"}),
        ("Spark, one group of 2000", {"where": "group_id = 'group-0007'"}),
    ):
        rows = spark.read.format(COMMITS.name).options(**options).load(data.path)
        watch.time(name, rows.write.format("noop").mode("overwrite").save)


def row_offsets(bench: Bench) -> None:
    """From segment files to Parquet."""
    data, _ = bench.commits(), bench.spark
    watch = data.watch()
    watch.time("offsets, from segment files", lambda: bench.run("offsets", data.path))
    written = bench.spark.read.parquet(str(bench.work / "out-offsets/offsets")).count()
    assert written == data.count, written


@contextlib.contextmanager
def serving(data: Data) -> Iterator[Barnabas]:
    """A broker on the same data directory, which has loaded its offsets."""
    broker = Barnabas(data.path, ["log.cleaner.enable=false", "offsets.retention.check.interval.ms=1000000000"])
    try:
        used = -1.0
        while broker.cpu_seconds() - used > 0.1:
            used = broker.cpu_seconds()
            time.sleep(2)
        yield broker
    finally:
        broker.stop()


def row_wire(bench: Bench) -> None:
    """From a broker to Parquet."""
    data, spark = bench.commits(bench.sizes.wire_commits), bench.spark
    watch = data.watch()
    with serving(data) as broker:
        commits = spark.read.format(COMMITS.name).option("brokers", broker.address).load()
        watch.time("wire, Spark into nothing", commits.write.format("noop").mode("overwrite").save)
        used = broker.cpu_seconds()
        watch.time("offsets, over the wire", lambda: bench.run("offsets", broker.address))
        print(f"  of which the broker {broker.cpu_seconds() - used:.1f} s")


def row_plain(bench: Bench) -> None:
    """The same commits in the plain way."""
    data = bench.commits(bench.sizes.plain_commits)
    watch = data.watch()
    with serving(data) as broker:
        reader = LogReader(COMMITS, COMMITS.spark, read_options({"brokers": broker.address}))
        frames: list[Any] = []

        def source() -> None:
            import pyarrow as pa

            batches = [batch for task in reader.partitions() for batch in reader.read(task)]
            frames.append(pa.Table.from_batches(batches))

        next(iter(reader.read(reader.partitions()[0])))  # loads what it needs
        ours = watch.time("the source, one process, to Arrow", source)
        theirs = watch.time("kafka-python, decoded, to pandas", lambda: frames.append(plain(broker.address)))
        assert len(frames[0]) == len(frames[1]) == data.count
        print(f"  {theirs[0] / ours[0]:.1f} times by the clock, {theirs[1] / ours[1]:.1f} in processor time")


def plain(address: str) -> Any:
    """Every commit as a row of a pandas table, by a consumer of kafka-python."""
    import pandas as pd
    from kafka import KafkaConsumer, TopicPartition

    settings = {"enable_auto_commit": False, "exclude_internal_topics": False, "check_crcs": True}
    consumer = KafkaConsumer(bootstrap_servers=address, fetch_max_bytes=64 << 20, max_poll_records=10_000, **settings)
    partitions = [
        TopicPartition(OFFSETS_TOPIC, index) for index in sorted(consumer.partitions_for_topic(OFFSETS_TOPIC))
    ]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    rows = []
    while any(consumer.position(one) < ends[one] for one in partitions):
        for some in consumer.poll(1000).values():
            for record in some:
                if record.value is None or len(record.key) < 2 or record.key[1] > 1:
                    continue
                group, topic, partition = decode_key(record.key)
                one = decode_value(record.value)
                values = (one.offset, one.leader_epoch, one.metadata, one.commit_timestamp, one.expire_timestamp)
                rows.append((group, topic, partition, *values, record.partition, record.offset, record.timestamp))
    consumer.close()
    names = "group topic partition offset leader_epoch metadata committed expires log_partition log_offset time"
    return pd.DataFrame(rows, columns=names.split())


def row_export(bench: Bench) -> None:
    """Records to Parquet."""
    data, _ = bench.records(), bench.spark
    watch = data.watch()
    settings = {"topic": RECORDS_TOPIC, "json_schema": None}
    watch.time("export", lambda: bench.run("export", data.path, **settings), in_bytes=True)


def row_verify(bench: Bench) -> None:
    """All checks."""
    data, _ = bench.records(), bench.spark
    watch = data.watch()
    said: list[str] = []
    watch.time("verify", lambda: said.append(bench.run("verify", data.path, compacted=())), in_bytes=True)
    assert "nothing is wrong" in said[0]


def row_stream(bench: Bench) -> None:
    """Streaming queries under load."""
    stream(bench.spark, bench.work / "stream", bench.sizes.stream_s, bench.rate)


def row_replay(bench: Bench) -> None:
    """Streaming queries over files that grow."""
    replay(bench.spark, bench.work / "replay", bench.sizes.stream_s, bench.rate)


def row_small(bench: Bench) -> None:
    """Small runs, from command to prompt."""
    small(bench.work)


ROWS: dict[str, Callable[[Bench], None]] = {
    "stages": row_stages,
    "sources": row_sources,
    "offsets": row_offsets,
    "wire": row_wire,
    "plain": row_plain,
    "export": row_export,
    "verify": row_verify,
    "stream": row_stream,
    "replay": row_replay,
    "small": row_small,
}


def main(words: Sequence[str]) -> int:
    """Run it."""
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench pipeline", description=__doc__, formatter_class=about)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--full", action="store_true", help="the sizes of the aims")
    parser.add_argument("--commits", type=int, help="so many, whatever the other sizes are")
    parser.add_argument("--record-bytes", type=int, help="so many, whatever the other sizes are")
    parser.add_argument("--data", type=Path, help="a folder for the data directories; kept, and used again")
    parser.add_argument("--memory", default="2g", help="of Spark")
    parser.add_argument("--rate", type=int, default=20_000, help="of the row `stream`: commits a second")
    parser.add_argument("--seconds", type=int, help="of the rows `stream` and `replay`")
    said = parser.parse_args(words)
    unknown = [name for name in said.rows if name not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    work = Path(tempfile.mkdtemp(prefix="barnabas-bench-"))
    sizes = FULL if said.full else SMALL
    given = {"commits": said.commits, "record_bytes": said.record_bytes, "stream_s": said.seconds}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value})
    bench = Bench(sizes, said.data or work / "data", work, said.memory, said.rate)
    try:
        for name in said.rows or [name for name in ROWS if name not in ("stream", "replay", "small")]:
            print(f"\n{name}: {(ROWS[name].__doc__ or '').rstrip('.')}", flush=True)
            ROWS[name](bench)
    finally:
        bench.stop()
        shutil.rmtree(work, ignore_errors=True)
    return 0
