"""How long does one thing hold the loop? `python -m bench stalls [NAME...]`

Everybody waits while one callback runs. A whole broker in this process on asyncio's own loop, each of whose callbacks
is timed: what asks for everything at once, and the broker's own upkeep with many of everything. The longest callback
of each work in processor time (what a busy machine adds is not in it) and in wall time (blocking calls are in it).
`--partitions` says how many of them there are.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import tempfile
import time
from asyncio import events
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from barnabas.broker.broker import Broker
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record, build
from barnabas.runtime.env import real
from barnabas.runtime.upkeep import Task

from bench.cpu import Client
from bench.loads import batch

GROUPS = 5_000
WIDE = "wide"  # the topic with very many partitions
TIMEOUT_MS = 300_000


class Meter:
    """Times every callback of the running loop while a work is measured."""

    def __init__(self, profiles: bool) -> None:
        self.profiles = profiles
        self.callbacks: list[tuple[float, float, str]] = []  # processor seconds, wall seconds, what
        self._run = events.Handle._run  # type: ignore[attr-defined]

    @asynccontextmanager
    async def measuring(self, name: str) -> AsyncIterator[None]:
        """Print what held the loop longest in the body of the `with`."""
        run, callbacks = self._run, self.callbacks
        callbacks.clear()

        def timed(handle: Any) -> None:
            what = repr(handle._callback)
            cpu, wall = time.thread_time(), time.perf_counter()
            run(handle)
            callbacks.append((time.thread_time() - cpu, time.perf_counter() - wall, what))

        await asyncio.sleep(0.05)
        profiler = cProfile.Profile()
        if self.profiles:
            profiler.enable()
        began = time.perf_counter()
        events.Handle._run = timed  # type: ignore[attr-defined]
        try:
            yield
        finally:
            events.Handle._run = self._run  # type: ignore[attr-defined]
            profiler.disable()
        span = time.perf_counter() - began
        ordered = sorted(callbacks, reverse=True) or [(0.0, 0.0, "")]
        wall = max(row[1] for row in callbacks) if callbacks else 0.0
        over = sum(1 for row in callbacks if row[0] > 0.02)
        print(
            f"{name:28} longest {ordered[0][0] * 1000:8.1f} ms CPU {wall * 1000:8.1f} ms wall; {over:4} over 20 ms; "
            f"{span:6.2f} s in all; {ordered[0][2][:110]}",
            flush=True,
        )
        if self.profiles:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(32)


class Bench:
    """The broker with much of everything in it, and what is asked of it."""

    def __init__(self, broker: Broker, names: Sequence[str], partitions: int, profile: bool) -> None:
        self.broker = broker
        self.meter = Meter(profile)
        self.client = Client(broker)
        self.names = names
        self.partitions = partitions

    async def timed(self, name: str, api: ApiKey, version: int, request: Any) -> None:
        """One request, from its arrival to its answer."""
        frame = frames.encode_request(api, version, 1, "bench", request)
        if self.names and name not in self.names:
            await self.exchange(frame)
            return
        async with self.meter.measuring(name):
            await self.exchange(frame)

    async def exchange(self, frame: bytes) -> None:
        sent = self.client.transport.sent
        sent.clear()
        asyncio.get_running_loop().call_soon(self.feed, frame)
        while not sent:
            await asyncio.sleep(0.001)

    def feed(self, frame: bytes) -> None:
        position = 0
        while position < len(frame):
            buffer = memoryview(self.client.connection.get_buffer(-1))
            size = min(len(buffer), len(frame) - position)
            buffer[:size] = frame[position : position + size]
            self.client.connection.buffer_updated(size)
            position += size

    async def work(self, name: str, does: Callable[[], Awaitable[None]]) -> None:
        """Anything else."""
        if self.names and name not in self.names:
            await does()
            return
        async with self.meter.measuring(name):
            await does()

    # --- asking for everything ---

    async def run(self) -> None:
        """All works, in an order in which each finds what it needs."""
        count = self.partitions
        create = messages.CreateTopicsRequest
        wide = create.CreatableTopic(name=WIDE, num_partitions=count - 1, replication_factor=1)
        await self.timed("create-partitions", ApiKey.CREATE_TOPICS, 7, create(topics=[wide], timeout_ms=TIMEOUT_MS))
        many = [create.CreatableTopic(name=f"t{i}", num_partitions=1, replication_factor=1) for i in range(1000)]
        await self.timed("create-topics", ApiKey.CREATE_TOPICS, 7, create(topics=many, timeout_ms=TIMEOUT_MS))
        grow = messages.CreatePartitionsRequest
        more = grow.CreatePartitionsTopic(name="t0", count=count // 2, assignments=None)
        request = grow(topics=[more], timeout_ms=TIMEOUT_MS)
        await self.timed("grow", ApiKey.CREATE_PARTITIONS, 3, request)
        await self.ask_for_everything()
        await self.groups()
        await self.upkeep()
        delete = messages.DeleteTopicsRequest
        names = [f"t{i}" for i in range(1, 1000)]
        request = delete(topic_names=names, timeout_ms=TIMEOUT_MS)
        await self.timed("delete-topics", ApiKey.DELETE_TOPICS, 4, request)
        request = delete(topic_names=[WIDE], timeout_ms=TIMEOUT_MS)
        await self.timed("delete-wide", ApiKey.DELETE_TOPICS, 4, request)
        await self.work("delete-folders", self.until_deleted)

    async def until_deleted(self) -> None:
        """The answer comes when clients see no topic any more; the folders go after it."""
        while any(log.topic == WIDE for log in self.broker.log_manager.all()):
            await asyncio.sleep(0.05)

    async def ask_for_everything(self) -> None:
        indexes = range(self.partitions - 1)
        produce = messages.ProduceRequest
        rows = [produce.PartitionProduceData(index=i, records=batch([bytes(100)])) for i in indexes]
        topics = [produce.TopicProduceData(name=WIDE, partition_data=rows)]
        await self.timed("produce-all", ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics))
        await self.timed("produce-again", ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics))
        await self.timed("metadata", ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))
        await self.timed("metadata-12", ApiKey.METADATA, 12, messages.MetadataRequest(topics=None))
        describe = messages.DescribeConfigsRequest
        resources = [describe.DescribeConfigsResource(resource_type=2, resource_name=f"t{i}") for i in range(1000)]
        await self.timed("describe-configs", ApiKey.DESCRIBE_CONFIGS, 4, describe(resources=resources))
        offsets = messages.ListOffsetsRequest
        asked = [offsets.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in indexes]
        topics = [offsets.ListOffsetsTopic(name=WIDE, partitions=asked)]
        await self.timed("list-offsets", ApiKey.LIST_OFFSETS, 7, offsets(replica_id=-1, topics=topics))
        asked = [offsets.ListOffsetsPartition(partition_index=i, timestamp=1) for i in indexes]
        topics = [offsets.ListOffsetsTopic(name=WIDE, partitions=asked)]
        await self.timed("list-offsets-by-time", ApiKey.LIST_OFFSETS, 7, offsets(replica_id=-1, topics=topics))
        producers = messages.DescribeProducersRequest
        topics = [producers.TopicRequest(name=WIDE, partition_indexes=list(indexes))]
        await self.timed("describe-producers", ApiKey.DESCRIBE_PRODUCERS, 0, producers(topics=topics))
        epochs = messages.OffsetForLeaderEpochRequest
        rows = [epochs.OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in indexes]
        topics = [epochs.OffsetForLeaderTopic(topic=WIDE, partitions=rows)]
        await self.timed("leader-epochs", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epochs(replica_id=-2, topics=topics))
        fetch = messages.FetchRequest
        for name, offset, wait_ms in (("fetch-all", 0, 0), ("fetch-nothing", 2, 0), ("fetch-wait", 2, 300)):
            rows = [
                fetch.FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=1 << 20) for i in indexes
            ]
            topics = [fetch.FetchTopic(topic=WIDE, partitions=rows)]
            request = fetch(max_wait_ms=wait_ms, min_bytes=1, max_bytes=50 << 20, topics=topics)
            await self.timed(name, ApiKey.FETCH, 11, request)
        pages = messages.DescribeTopicPartitionsRequest
        topics = [pages.TopicRequest(name=name) for name in self.broker.metadata_cache.topics]
        request = pages(topics=topics, response_partition_limit=2000)
        await self.timed("describe-partitions", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        folders = messages.DescribeLogDirsRequest(topics=None)
        await self.timed("describe-log-dirs", ApiKey.DESCRIBE_LOG_DIRS, 4, folders)
        delete = messages.DeleteRecordsRequest
        rows = [delete.DeleteRecordsPartition(partition_index=i, offset=1) for i in indexes]
        request = delete(topics=[delete.DeleteRecordsTopic(name=WIDE, partitions=rows)], timeout_ms=TIMEOUT_MS)
        await self.timed("delete-records", ApiKey.DELETE_RECORDS, 2, request)

    async def groups(self) -> None:
        find = frames.encode_request(ApiKey.FIND_COORDINATOR, 3, 1, "bench", messages.FindCoordinatorRequest(key="g"))
        await self.exchange(find)
        await asyncio.sleep(1)
        commit = messages.OffsetCommitRequest
        rows = [
            commit.OffsetCommitRequestPartition(partition_index=i, committed_offset=1)
            for i in range(self.partitions - 1)
        ]
        topics = [commit.OffsetCommitRequestTopic(name=WIDE, partitions=rows)]
        await self.timed("commit-all", ApiKey.OFFSET_COMMIT, 8, commit(group_id="g", topics=topics))
        fetch = messages.OffsetFetchRequest
        asked = [fetch.OffsetFetchRequestGroup(group_id="g", topics=None)]
        await self.timed("offset-fetch-all", ApiKey.OFFSET_FETCH, 8, fetch(groups=asked))
        for index in range(GROUPS):
            row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
            request = commit(
                group_id=f"g{index}", topics=[commit.OffsetCommitRequestTopic(name=WIDE, partitions=[row])]
            )
            await self.exchange(frames.encode_request(ApiKey.OFFSET_COMMIT, 8, 1, "bench", request))
        names = [f"g{index}" for index in range(GROUPS)]
        await self.timed("list-groups", ApiKey.LIST_GROUPS, 4, messages.ListGroupsRequest())
        request = messages.DescribeGroupsRequest(groups=names)
        await self.timed("describe-groups", ApiKey.DESCRIBE_GROUPS, 5, request)
        asked = [fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        await self.timed("offset-fetch-groups", ApiKey.OFFSET_FETCH, 8, fetch(groups=asked))
        finding = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=names)
        await self.timed("find-coordinators", ApiKey.FIND_COORDINATOR, 4, finding)
        request = messages.DeleteGroupsRequest(groups_names=names[: GROUPS // 2])
        await self.timed("delete-groups", ApiKey.DELETE_GROUPS, 2, request)

    # --- upkeep ---

    async def upkeep(self) -> None:
        manager = self.broker.log_manager

        def soon(function: Callable[[], object]) -> Callable[[], Awaitable[None]]:
            async def does() -> None:
                asyncio.get_running_loop().call_soon(function)
                await asyncio.sleep(0.3)

            return does

        tasks = {task.name: task for task in self.broker.env.upkeep.tasks if isinstance(task, Task)}
        await self.work("retention", soon(tasks["retention"].run_soon))
        for name in (
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
            "log-start-offset-checkpoint",
        ):
            await self.work(name, soon(tasks[name].run_soon))
        await self.work("expire-producers", soon(tasks["producers"].run_soon))
        await self.work("find-dirtiest", soon(manager.cleaner.dirtiest))
        await self.work("flush-due", soon(tasks["flush"].run_soon))
        await self.work("isr-shrink", soon(tasks["isr shrink"].run_soon))
        await self.compaction()
        await self.loading()
        await self.expiry()

    async def compaction(self) -> None:
        """Segments of 16 MB, each key twice."""
        create = messages.CreateTopicsRequest
        settings = {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.01"}
        configs = [create.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
        topic = create.CreatableTopic(name="compact", num_partitions=1, replication_factor=1, configs=configs)
        request = create(topics=[topic], timeout_ms=TIMEOUT_MS)
        await self.exchange(frames.encode_request(ApiKey.CREATE_TOPICS, 7, 1, "bench", request))
        produce = messages.ProduceRequest
        for turn in range(60):
            keys = range(turn % 30 * 3000, turn % 30 * 3000 + 3000)
            records = build([Record(key=b"key-%d" % key, value=bytes(200)) for key in keys], base_offset=0)
            rows = [produce.PartitionProduceData(index=0, records=bytes(records))]
            request = produce(
                acks=-1, timeout_ms=1, topic_data=[produce.TopicProduceData(name="compact", partition_data=rows)]
            )
            await self.exchange(frames.encode_request(ApiKey.PRODUCE, 9, 1, "bench", request))
        cleaner = self.broker.log_manager.cleaner

        async def until_clean() -> None:
            assert cleaner.task is not None
            cleaner.task.run_soon()
            await asyncio.sleep(0.05)
            while cleaner._work is not None:
                await asyncio.sleep(0.01)

        await self.work("compaction", until_clean)

    async def loading(self) -> None:
        """Each offsets partition anew: groups of several partitions in all."""
        coordinator = self.broker.group_coordinator
        shard = max(coordinator.owned_shards(), key=lambda shard: shard.log.log_end_offset)

        async def load() -> None:
            asyncio.get_running_loop().call_soon(coordinator.load, shard.partition, shard.leader_epoch + 1)
            await asyncio.sleep(0.01)
            while coordinator.shards[shard.partition].loading:
                await asyncio.sleep(0.01)

        print(f"  loading {shard.log.log_end_offset} records")
        await self.work("loading", load)

    async def expiry(self) -> None:
        """All offsets of all groups at once."""
        manager = self.broker.group_coordinator.kafka_offsets
        manager._config = SimpleNamespace(  # type: ignore[assignment]
            offsets_retention_minutes=0, offsets_retention_check_interval_ms=10**9
        )
        await asyncio.sleep(0.01)

        async def expire() -> None:
            manager.cleanup()
            await asyncio.sleep(1)

        await self.work("expiry", expire)


async def run(names: Sequence[str], partitions: int, profile: bool) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as folder:
        config = BrokerConfig.of(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "group.initial.rebalance.delay.ms": "0",
                "offsets.topic.num.partitions": "5",
                "log.cleaner.backoff.ms": "1000000",
            }
        )
        broker = Broker(real(), config, folder)
        await broker.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 10, 100)
        bench = Bench(broker, names, partitions, profile)
        try:
            await bench.run()
        finally:
            await bench.work("stop", broker.stop)


def main(words: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench stalls", description=__doc__)
    parser.add_argument("names", nargs="*", help="works to print; the others are done all the same")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--profile", action="store_true", help="and where the time goes")
    said = parser.parse_args(words)
    asyncio.run(run(said.names, said.partitions, said.profile))
    return 0
