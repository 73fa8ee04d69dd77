"""`python -m bench pipeline`: commits from segment files and over the wire, in rows a second, and where the time goes.

It writes a data directory of `__consumer_offsets` (batches of ten commits, of 2000 groups) and reads it

- in one process, without Spark: finding batches and checksums, taking records apart, making Arrow columns;
- with Spark into nothing (`noop`), and into Parquet;
- in the plain way (a sample): kafka-python's decoder of batches and the broker's decoder of commits, record by record.

Processor time is what the machine's other loads change least.
"""

import argparse
import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from barnabas.offsets.records import CommittedOffset, OffsetCommits, decode_key, decode_value
from barnabas.pipeline.batches import walk
from barnabas.pipeline.directories import logs_of, pieces_of
from barnabas.pipeline.options import read_options
from barnabas.pipeline.records import take_apart
from barnabas.pipeline.schemas import COMMITS
from barnabas.pipeline.segment_reading import READ_BYTES, read_piece
from barnabas.pipeline.session import start_session
from barnabas.pipeline.sources import OFFSETS_TOPIC, LogReader, register
from barnabas.protocol import record_batch, uuids
from barnabas.protocol.batch_layout import INT64
from barnabas.protocol.batch_records import PlainRecords

from bench.targets import TICKS_PER_SECOND, Barnabas

PARTITIONS = 8
SEGMENT_BYTES = 256 << 20
INDEX_INTERVAL_BYTES = 4096
GROUPS = 2000
TOPIC_ID = bytes(range(16))
START_MS = 1_700_000_000_000


def write_commits(folder: Path, count: int, per_batch: int) -> None:
    """A data directory with so many commits, in all partitions alike, with offset indexes."""
    rng = random.Random(1)
    templates = []
    for number in range(GROUPS):
        records = PlainRecords()
        offsets = {
            partition: CommittedOffset(rng.randrange(1 << 40), 3, "", START_MS + number, -1, TOPIC_ID)
            for partition in range(per_batch)
        }
        OffsetCommits(f"group-{number:04d}", {f"topic-of-orders-{number % 50:02d}": offsets}).append_to(records)
        templates.append(record_batch.build_plain(records, START_MS + number))
    ends = {}
    for partition in range(PARTITIONS):
        log = folder / f"{OFFSETS_TOPIC}-{partition}"
        log.mkdir(parents=True)
        offset, end = 0, count // PARTITIONS
        while offset < end:
            offset = _write_segment(log, offset, end, per_batch, templates, rng)
        ends[partition] = offset
        (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuids.to_text(TOPIC_ID)}")
    lines = "".join(f"{OFFSETS_TOPIC} {partition} {end}\n" for partition, end in ends.items())
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (folder / name).write_text(f"0\n{len(ends)}\n{lines}")
    (folder / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    ids = ("cluster.id=AAAAAAAAAAAAAAAAAAAAAQ", "directory.id=AAAAAAAAAAAAAAAAAAAAAg")
    (folder / "meta.properties").write_text("\n".join(("version=1", "node.id=1", *ids, "")))


def _write_segment(
    log: Path, base: int, end: int, per_batch: int, templates: Sequence[bytearray], rng: random.Random
) -> int:
    offset, position, indexed = base, 0, 0
    entries = bytearray()
    with (log / f"{base:020d}.log").open("wb", buffering=1 << 20) as file:
        while offset < end and position < SEGMENT_BYTES:
            batch = templates[int(rng.random() * GROUPS)]
            INT64.pack_into(batch, 0, offset)  # the checksum does not cover it
            file.write(batch)
            if position - indexed > INDEX_INTERVAL_BYTES:
                entries += (offset + per_batch - 1 - base).to_bytes(4, "big") + position.to_bytes(4, "big")
                indexed = position
            position += len(batch)
            offset += per_batch
    (log / f"{base:020d}.index").write_bytes(entries)
    return offset


class Watch:
    """Prints what a stage took."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size

    def time(self, name: str, work: Callable[[], object]) -> None:
        """Do the work once."""
        began, used = time.monotonic(), processor_seconds()
        work()
        seconds, used = time.monotonic() - began, processor_seconds() - used
        rate = f"{self.count / seconds:12,.0f} rows/s  {seconds:7.1f} s"
        print(f"{name:34} {rate}   {used:7.1f} s of processors, {self.count / used:12,.0f} rows/s of them", flush=True)


def processor_seconds() -> float:
    """What this process has used, with all that it has started: Spark's Java and its Python processes."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = stat.read_text().partition(" (")
            fields = rest.rpartition(") ")[2].split()
            parents[int(pid)] = int(fields[1])
            used[int(pid)] = sum(map(int, fields[11:15]))  # its own, and of children that have ended
    total = 0
    for pid, ticks in used.items():
        ancestor = pid
        while ancestor > 1 and ancestor != os.getpid():
            ancestor = parents.get(ancestor, 0)
        total += ticks if ancestor == os.getpid() else 0
    return total / TICKS_PER_SECOND


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
            for _ in reader.reading.rows(*one):
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


def plain(path: str, rows_max: int) -> int:
    """Record by record, with kafka-python's decoder of batches. Returns how many."""
    from kafka.record import MemoryRecords

    rows: list[tuple[object, ...]] = []
    for log in Path(path).glob(f"{OFFSETS_TOPIC}-*/*.log"):
        with log.open("rb") as file:
            content = file.read(64 << 20)
        batches = walk(content, following_bytes=1 << 30)
        records = MemoryRecords(content[: batches.consumed])
        while (batch := records.next_batch()) is not None:
            for record in batch:
                if record.value is not None:
                    group, topic, partition = decode_key(record.key)
                    one = decode_value(record.value)
                    rows.append((group, topic, partition, one.offset, one.leader_epoch, one.metadata, record.timestamp))
            if len(rows) >= rows_max:
                return len(rows)
    return len(rows)


def main(words: Sequence[str]) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench pipeline", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--commits", type=int, default=5_000_000)
    parser.add_argument("--per-batch", type=int, default=10)
    parser.add_argument("--data", help="a folder for the data; kept, and used again if it is there")
    parser.add_argument("--wire", action="store_true", help="from a broker, instead of Spark")
    said = parser.parse_args(words)
    work = Path(tempfile.mkdtemp(prefix="barnabas-bench-"))
    folder = Path(said.data) if said.data else work / "data"
    try:
        if not folder.exists():
            write_commits(folder, said.commits, said.per_batch)
        size = sum(path.stat().st_size for path in folder.glob("*/*.log"))
        count = PARTITIONS * (-(-(said.commits // PARTITIONS) // said.per_batch)) * said.per_batch
        print(f"{count:,} commits in batches of {said.per_batch}, {size / 1e6:,.0f} MB", flush=True)
        watch = Watch(count, size)
        stages(str(folder), watch)
        if said.wire:
            over_the_wire(str(folder), watch)
            return 0
        _spark(str(folder), work, watch)
        began, processor = time.monotonic(), time.process_time()
        found = plain(str(folder), 100_000)
        seconds, processor = time.monotonic() - began, time.process_time() - processor
        print(f"{'the plain way':34} {found / seconds:12,.0f} rows/s; {found / processor:,.0f} of processor time")
    finally:
        shutil.rmtree(work)
    return 0


def over_the_wire(path: str, watch: Watch) -> None:
    """A broker on the same data directory, and one task after the other."""
    broker = Barnabas(path, ["log.cleaner.enable=false", "offsets.retention.check.interval.ms=1000000000"])
    try:
        reader = LogReader(COMMITS, COMMITS.spark, read_options({"brokers": broker.address}))
        tasks = reader.partitions()
        used = -1.0
        while broker.cpu_seconds() - used > 0.1:  # its coordinator loads the same log first
            used = broker.cpu_seconds()
            time.sleep(2)
        used, own = broker.cpu_seconds(), time.process_time()
        watch.time("one process, over the wire", lambda: [None for task in tasks for _ in reader.read(task)])
        used, own = broker.cpu_seconds() - used, time.process_time() - own
        print(f"  of which the broker {used:.1f} s, the reader {own:.1f} s")
    finally:
        broker.stop()


def _spark(path: str, work: Path, watch: Watch) -> None:
    spark = start_session("bench", {"spark.driver.memory": "2g", "spark.local.dir": str(work / "local")})
    register(spark)
    commits = spark.read.format(COMMITS.name).load(path)
    first = spark.read.format(COMMITS.name).option("where", "log_offset < 100000").load(path)
    first.write.format("noop").mode("overwrite").save()  # compiles, and starts Python processes
    watch.time("Spark, into nothing", lambda: commits.write.format("noop").mode("overwrite").save())
    some = spark.read.format(COMMITS.name).option("columns", "group_id,topic,partition,offset,log_offset").load(path)
    watch.time("Spark, five columns, into nothing", lambda: some.write.format("noop").mode("overwrite").save())
    one = spark.read.format(COMMITS.name).option("where", "group_id = 'group-0007'").load(path)
    watch.time("Spark, one group of 2000", lambda: one.write.format("noop").mode("overwrite").save())
    parquet = str(work / "parquet")
    watch.time("Spark, into Parquet", lambda: commits.write.mode("overwrite").parquet(parquet))
    assert spark.read.parquet(parquet).count() == watch.count
    spark.stop()
