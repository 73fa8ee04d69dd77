"""`lag` and `health` as streaming queries, at an even rate of commits (`--rate`).

`python -m bench pipeline stream`: while clients commit. A process of its own commits and produces: 200 groups, each of
which reads the ten partitions of a topic. Every request of a group commits ten offsets.

`python -m bench pipeline replay`: the same from segment files that were written before, of which a micro-batch sees
ten seconds more each time. So its processor time can be compared, whatever else this machine has to do.
"""

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.coordinator import partition_for
from barnabas.offsets.records import CommittedOffset, OffsetCommits
from barnabas.pipeline.jobs.health_stream import health_stream
from barnabas.pipeline.jobs.lag_stream import lag_stream
from barnabas.pipeline.run import Run
from barnabas.pipeline.source import source_of
from barnabas.pipeline.streamed import TRIGGER_S, LiveTable
from barnabas.pipeline.wire import Cluster
from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_layout import ATTRIBUTES_AT, CRC_AT, INT64, MAX_TIMESTAMP_AT, UINT32
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.record_batch import PlainRecords, Record
from barnabas.storage import checkpoints

from bench.pipeline_data import PARTITIONS, TOPIC_ID, write_logs
from bench.processors import processor_seconds
from bench.targets import Barnabas

GROUPS = 200
TOPICS = 20
TOPIC_PARTITIONS = 10
RECORDS_PER_S = 2_000  # in all partitions together
TICK_S = 0.5
SETTINGS = [f"num.partitions={TOPIC_PARTITIONS}", "offsets.topic.num.partitions=8"]


def load(address: str, seconds: float, rate: int) -> None:
    """Commit and produce at an even rate; says how many commits there were."""
    with Cluster([address]) as cluster:
        topics = [f"orders-{number:02d}" for number in range(TOPICS)]
        for topic in topics:
            cluster.create_topic(topic)
        for number in range(GROUPS):
            cluster.commit(
                f"group-{number:03d}", topics[number % TOPICS], dict.fromkeys(range(TOPIC_PARTITIONS), 0), ""
            )
        cluster.refresh(topics)
        broker_id = cluster.leader_of(topics[0], 0)
        assert broker_id is not None
        begun, commits, group, tick = time.monotonic(), 0, 0, 0
        per_partition = max(1, round(RECORDS_PER_S * TICK_S / TOPICS / TOPIC_PARTITIONS))
        while (now := time.monotonic()) < begun + seconds:
            if now < begun + tick * TICK_S:
                time.sleep(begun + tick * TICK_S - now)
            tick += 1
            for topic in topics:
                cluster.send(broker_id, ApiKey.PRODUCE, produce(topic, per_partition)).receive()
            while commits < rate * TICK_S * tick:
                request = commit(
                    f"group-{group % GROUPS:03d}", topics[group % TOPICS], tick * per_partition - group % 3
                )
                cluster.send(broker_id, ApiKey.OFFSET_COMMIT, request).receive()
                group += 1
                commits += TOPIC_PARTITIONS
        print(f"{commits} commits in {time.monotonic() - begun:.1f} s", flush=True)


@dataclass
class Written:
    """A log that grows, and where it ended at the end of each step."""

    content: bytearray = field(default_factory=bytearray)
    end_offset: int = 0
    ends: list[int] = field(default_factory=list)

    def append(self, batch: bytearray, count: int, at_ms: int) -> None:
        """One batch, with this time."""
        INT64.pack_into(batch, 0, self.end_offset)
        INT64.pack_into(batch, MAX_TIMESTAMP_AT - 8, at_ms)
        INT64.pack_into(batch, MAX_TIMESTAMP_AT, at_ms)
        UINT32.pack_into(batch, CRC_AT, crc32c(batch[ATTRIBUTES_AT:]))
        self.content += batch
        self.end_offset += count


@dataclass(frozen=True)
class GrowingDirectory:
    """A data directory whose high watermarks say how much of it can be seen."""

    folder: Path
    logs: dict[str, Written]

    def show(self, step: int) -> None:
        """What was there at the end of a step."""
        ends = {name: log.ends[step] for name, log in self.logs.items()}
        lines = "".join("{} {} {}\n".format(*name.rsplit("-", 1), end) for name, end in ends.items())
        for name in (checkpoints.HIGH_WATERMARKS, checkpoints.RECOVERY_POINTS):
            part = self.folder / f"{name}.tmp"
            part.write_text(f"0\n{len(ends)}\n{lines}")
            part.replace(self.folder / name)


def write_steps(folder: Path, steps: int, rate: int) -> GrowingDirectory:
    """The load of `steps` triggers, which ends now."""
    begun_ms = time.time_ns() // 1_000_000 - steps * TRIGGER_S * 1000
    logs: dict[str, Written] = defaultdict(Written)
    per_partition = max(1, round(RECORDS_PER_S * TICK_S / TOPICS / TOPIC_PARTITIONS))
    records = record_batch.build([Record(-1, 0, None, b"x" * 100) for _ in range(per_partition)])
    commits, group, ticks = 0, 0, round(TRIGGER_S / TICK_S)
    for tick in range(1, steps * ticks + 1):
        at_ms = begun_ms + round(tick * TICK_S * 1000)
        for topic in range(TOPICS):
            for partition in range(TOPIC_PARTITIONS):
                logs[f"orders-{topic:02d}-{partition}"].append(records, per_partition, at_ms)
        if tick % ticks == 1:
            batches = [commit_batch(number, tick * per_partition - number % 3) for number in range(GROUPS)]
        while commits < rate * TICK_S * tick:
            group_id = f"group-{group % GROUPS:03d}"
            log = logs[f"{OFFSETS_TOPIC}-{partition_for(group_id, PARTITIONS)}"]
            log.append(batches[group % GROUPS], TOPIC_PARTITIONS, at_ms)
            group += 1
            commits += TOPIC_PARTITIONS
        if tick % ticks == 0:
            for log in logs.values():
                log.ends.append(log.end_offset)
    write_logs(folder, {name: bytes(log.content) for name, log in logs.items()})
    return GrowingDirectory(folder, dict(logs))


def commit_batch(group: int, offset: int) -> bytearray:
    """What a broker writes of a request."""
    records = PlainRecords()
    offsets = {
        partition: CommittedOffset(max(0, offset), -1, "", 0, -1, TOPIC_ID) for partition in range(TOPIC_PARTITIONS)
    }
    OffsetCommits(f"group-{group:03d}", {f"orders-{group % TOPICS:02d}": offsets}).append_to(records)
    return record_batch.build_plain(records, 0).data


def replay(spark: Any, work: Path, seconds: int, rate: int) -> None:
    """Run both queries, one after the other, over so many seconds of commits."""
    steps = seconds // TRIGGER_S
    directory = write_steps(work / "data", steps, rate)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    for name in ("lag", "health"):
        directory.show(0)
        run = Run(spark, source_of(str(directory.folder)), str(work), {"follow": True})
        commits, groups, batches = run.streams()
        rows = lag_stream(commits, batches) if name == "lag" else health_stream(commits, groups, batches)
        table = LiveTable(spark, str(work / name))
        query = table.start(rows, follow=True, trigger_s=0)
        used: list[float] = []
        try:
            for step in range(steps):
                directory.show(step)
                before = processor_seconds()
                query.processAllAvailable()
                used.append(processor_seconds() - before)
        finally:
            query.stop()
        used = used[2:]  # Java has compiled
        said = f"{name}: {sum(used) / len(used) / TRIGGER_S:.2f} s of processors for a second of commits"
        print(f"{said}; a micro-batch {statistics.median(used):.1f} s, the largest {max(used):.1f} s")
        print(f"  {table.read(rows).count():,} rows", flush=True)


def produce(topic: str, count: int) -> Any:
    """Some records for each partition."""
    now_ms = time.time_ns() // 1_000_000
    batch = record_batch.build([Record(-1, now_ms, None, b"x" * 100) for _ in range(count)])
    make = messages.ProduceRequest
    rows = [make.PartitionProduceData(index=index, records=batch) for index in range(TOPIC_PARTITIONS)]
    return make(acks=1, timeout_ms=10_000, topic_data=[make.TopicProduceData(name=topic, partition_data=rows)])


def commit(group: str, topic: str, offset: int) -> Any:
    """Offsets of a group."""
    make = messages.OffsetCommitRequest
    offsets = [
        make.OffsetCommitRequestPartition(partition_index=index, committed_offset=max(0, offset), committed_metadata="")
        for index in range(TOPIC_PARTITIONS)
    ]
    return make(group_id=group, topics=[make.OffsetCommitRequestTopic(name=topic, partitions=offsets)])


def stream(spark: Any, work: Path, seconds: int, rate: int) -> None:
    """Run both queries for so long beside the load."""
    broker = Barnabas(settings=SETTINGS)
    line = [sys.executable, "-m", "bench.pipeline_stream", broker.address, str(seconds), str(rate)]
    loading = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    queries = {}
    try:
        time.sleep(5)  # topics and groups are there
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        run = Run(spark, source_of(broker.address), str(work), {"follow": True})
        commits, groups, batches = run.streams()
        for name, rows in (("lag", lag_stream(commits, batches)), ("health", health_stream(commits, groups, batches))):
            writer = rows.writeStream.format("parquet").option("path", str(work / name))
            writer = writer.option("checkpointLocation", str(work / f"{name}.checkpoint"))
            queries[name] = writer.trigger(processingTime=f"{TRIGGER_S} seconds").start()
        used = processor_seconds()
        said, _ = loading.communicate(timeout=2 * seconds + 60)
        used = processor_seconds() - used
        print(f"  {said.strip()}")
        print(f"  {used:.1f} s of processors, of which the broker {broker.cpu_seconds():.1f}")
        for name, query in queries.items():
            print(f"  {name:7} {_triggers(query)}", flush=True)
    finally:
        loading.kill()
        spark.sparkContext.setLogLevel("OFF")  # a micro-batch that is stopped half-way says so at length
        for query in queries.values():
            query.stop()
        broker.stop()


def _triggers(query: Any) -> str:
    """How long the micro-batches took: the first half of the time, and the second."""
    progress = [one for one in query.recentProgress if one.numInputRows]
    if len(progress) < 4:
        return f"only {len(progress)} micro-batches"
    seconds = [one.batchDuration / 1000 for one in progress]
    rows = [one.numInputRows for one in progress]
    half = len(seconds) // 2
    parts = [
        f"median {statistics.median(some):.1f} s, longest {max(some):.1f} s"
        for some in (seconds[:half], seconds[half:])
    ]
    return f"{sum(rows):,} rows in {len(rows)} micro-batches: {parts[0]}; then {parts[1]}"


if __name__ == "__main__":
    load(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
