"""`python -m bench pipeline stream`: `lag` and `health` as streaming queries, while clients commit (`--rate`).

A process of its own commits and produces: 200 groups, each of which reads the ten partitions of a topic. Every request
of a group commits ten offsets.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from barnabas.pipeline.jobs.health_stream import health_stream
from barnabas.pipeline.jobs.lag_stream import lag_stream
from barnabas.pipeline.runs import Run
from barnabas.pipeline.source import source_of
from barnabas.pipeline.streamed import TRIGGER_S
from barnabas.pipeline.wire import Cluster
from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record

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
