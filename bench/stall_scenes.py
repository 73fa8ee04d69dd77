"""The scenes of `python -m bench stalls`: one function a scene; each work in it is measured."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.groups.shard import Shard
from barnabas.offsets.records import CommittedOffset, OffsetCommits
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import PlainRecords, Record, build, build_plain
from barnabas.replication.partition import Partition
from barnabas.runtime.upkeep import Task
from barnabas.storage.validation import AppendOrigin

from bench.consumer_groups import consumers, expressions
from bench.cpu import Client
from bench.loads import batch
from bench.long_requests import control, long_lists, long_requests
from bench.stalls import TIMEOUT_MS, Bench

GROUPS = 5_000
MEMBERS = 2_000
HTTP_GROUPS, HTTP_OFFSETS = 10_000, 50
LAG_BATCHES = 200  # in each partition
WIDE = "wide"  # the topic with very many partitions
RECORDS_MAX = 1_000  # in a batch of offsets


# --- topics and partitions


async def everything(bench: Bench) -> None:
    """Many topics and partitions: requests for all of them, and the broker's own upkeep of them."""
    count = bench.partitions
    create = messages.CreateTopicsRequest
    wide = create.CreatableTopic(name=WIDE, num_partitions=count - 1, replication_factor=1)
    await bench.timed("create-partitions", ApiKey.CREATE_TOPICS, 7, create(topics=[wide], timeout_ms=TIMEOUT_MS))
    many = [create.CreatableTopic(name=f"t{i}", num_partitions=1, replication_factor=1) for i in range(1000)]
    await bench.timed("create-topics", ApiKey.CREATE_TOPICS, 7, create(topics=many, timeout_ms=TIMEOUT_MS))
    grow = messages.CreatePartitionsRequest
    more = grow.CreatePartitionsTopic(name="t0", count=count // 2, assignments=None)
    await bench.timed("grow", ApiKey.CREATE_PARTITIONS, 3, grow(topics=[more], timeout_ms=TIMEOUT_MS))
    await ask_for_everything(bench)
    await upkeep(bench)
    delete = messages.DeleteTopicsRequest
    names = [f"t{i}" for i in range(1, 1000)]
    await bench.timed("delete-topics", ApiKey.DELETE_TOPICS, 4, delete(topic_names=names, timeout_ms=TIMEOUT_MS))
    await bench.timed("delete-wide", ApiKey.DELETE_TOPICS, 4, delete(topic_names=[WIDE], timeout_ms=TIMEOUT_MS))

    async def until_deleted() -> None:
        """Wait until the folders are gone; the answer came when clients did not see the topic any more."""
        while any(log.topic == WIDE for log in bench.broker.log_manager.all()):
            await asyncio.sleep(0.05)

    await bench.work("delete-folders", until_deleted)


async def ask_for_everything(bench: Bench) -> None:
    """Requests of all APIs that may name many partitions, for all partitions."""
    indexes = range(bench.partitions - 1)
    produce = messages.ProduceRequest
    rows: list[Any] = [produce.PartitionProduceData(index=i, records=batch([bytes(100)])) for i in indexes]
    topics: list[Any] = [produce.TopicProduceData(name=WIDE, partition_data=rows)]
    await bench.timed("produce-all", ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics))
    await bench.timed("produce-again", ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics))
    await bench.timed("metadata", ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))
    await bench.timed("metadata-12", ApiKey.METADATA, 12, messages.MetadataRequest(topics=None))
    describe = messages.DescribeConfigsRequest
    resources = [describe.DescribeConfigsResource(resource_type=2, resource_name=f"t{i}") for i in range(1000)]
    await bench.timed("describe-configs", ApiKey.DESCRIBE_CONFIGS, 4, describe(resources=resources))
    offsets = messages.ListOffsetsRequest
    for name, timestamp in (("list-offsets", -1), ("list-offsets-by-time", 1)):
        asked = [offsets.ListOffsetsPartition(partition_index=i, timestamp=timestamp) for i in indexes]
        topics = [offsets.ListOffsetsTopic(name=WIDE, partitions=asked)]
        await bench.timed(name, ApiKey.LIST_OFFSETS, 7, offsets(replica_id=-1, topics=topics))
    producers = messages.DescribeProducersRequest
    topics = [producers.TopicRequest(name=WIDE, partition_indexes=list(indexes))]
    await bench.timed("describe-producers", ApiKey.DESCRIBE_PRODUCERS, 0, producers(topics=topics))
    epochs = messages.OffsetForLeaderEpochRequest
    rows = [epochs.OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in indexes]
    topics = [epochs.OffsetForLeaderTopic(topic=WIDE, partitions=rows)]
    await bench.timed("leader-epochs", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epochs(replica_id=-2, topics=topics))
    fetch = messages.FetchRequest
    for name, offset, wait_ms in (("fetch-all", 0, 0), ("fetch-nothing", 2, 0), ("fetch-wait", 2, 300)):
        rows = [fetch.FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=1 << 20) for i in indexes]
        topics = [fetch.FetchTopic(topic=WIDE, partitions=rows)]
        fetched = fetch(max_wait_ms=wait_ms, min_bytes=1, max_bytes=50 << 20, topics=topics)
        await bench.timed(name, ApiKey.FETCH, 11, fetched)
    pages = messages.DescribeTopicPartitionsRequest
    topics = [pages.TopicRequest(name=name) for name in bench.broker.metadata_cache.topics]
    paged = pages(topics=topics, response_partition_limit=2000)
    await bench.timed("describe-partitions", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, paged)
    folders = messages.DescribeLogDirsRequest(topics=None)
    await bench.timed("describe-log-dirs", ApiKey.DESCRIBE_LOG_DIRS, 4, folders)
    delete = messages.DeleteRecordsRequest
    rows = [delete.DeleteRecordsPartition(partition_index=i, offset=1) for i in indexes]
    deleted = delete(topics=[delete.DeleteRecordsTopic(name=WIDE, partitions=rows)], timeout_ms=TIMEOUT_MS)
    await bench.timed("delete-records", ApiKey.DELETE_RECORDS, 2, deleted)


async def upkeep(bench: Bench) -> None:
    """What the broker does by itself from time to time, with many logs."""
    manager = bench.broker.log_manager

    def soon(function: Callable[[], object]) -> Callable[[], Awaitable[None]]:
        async def does() -> None:
            asyncio.get_running_loop().call_soon(function)
            await asyncio.sleep(0.3)

        return does

    tasks = {task.name: task for task in bench.broker.env.upkeep.tasks if isinstance(task, Task)}
    checkpoints = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")
    for name in ("retention", *checkpoints, "producers", "flush"):
        await bench.work(name, soon(tasks[name].run_soon))
    await bench.work("find-dirtiest", soon(manager.cleaner.dirtiest))
    await bench.work("isr-shrink", soon(tasks["isr shrink"].run_soon))


async def compaction(bench: Bench) -> None:
    """Compaction of segments of 16 MB that hold each key twice."""
    await bench.create_topics(
        ("compact", 1), cleanup_policy="compact", segment_bytes="16777216", min_cleanable_dirty_ratio="0.01"
    )
    produce = messages.ProduceRequest
    for turn in range(60):
        keys = range(turn % 30 * 3000, turn % 30 * 3000 + 3000)
        records = build([Record(key=b"key-%d" % key, value=bytes(200)) for key in keys], base_offset=0)
        await bench.ask(ApiKey.PRODUCE, 9, produce_one(produce, "compact", bytes(records)))
    cleaner = bench.broker.log_manager.cleaner

    async def until_clean() -> None:
        assert cleaner.task is not None
        cleaner.task.run_soon()
        await asyncio.sleep(0.05)
        while cleaner._work is not None:
            await asyncio.sleep(0.01)

    await bench.work("compaction", until_clean)


async def conversion(bench: Bench) -> None:
    """Produce to a topic with a codec of its own: batches in another codec are unpacked and compressed again."""
    produce = messages.ProduceRequest
    text = random.Random(1).randbytes(1 << 19).hex().encode()  # 1 MiB that compresses slowly, to half its size
    for codec in ("gzip", "zstd", "lz4", "snappy"):
        await bench.create_topics((codec, 1), compression_type=codec, max_message_bytes="20000000")
        for megabytes in (1, 9):
            records = bytes(build([Record(value=text) for _ in range(megabytes)], base_offset=0))
            request = produce_one(produce, codec, records)
            await bench.timed(f"convert-{codec}-{megabytes}", ApiKey.PRODUCE, 9, request)
    packed = bytes(build([Record(value=text) for _ in range(9)], base_offset=0, compression=Compression.GZIP))
    await bench.timed("convert-again-9", ApiKey.PRODUCE, 9, produce_one(produce, "gzip", packed))


def produce_one(produce: Any, topic: str, records: bytes) -> Any:
    """A request for one partition."""
    rows: list[Any] = [produce.PartitionProduceData(index=0, records=records)]
    topics = [produce.TopicProduceData(name=topic, partition_data=rows)]
    return produce(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics)


# --- groups and offsets


async def groups(bench: Bench) -> None:
    """Requests for very many offsets and groups."""
    await bench.create_topics((WIDE, bench.partitions - 1))  # with the topic itself, all that one request may create
    await bench.create_topics(("narrow", 1))
    await until_coordinated(bench)
    indexes = range(bench.partitions - 1)
    await bench.timed("commit-all", ApiKey.OFFSET_COMMIT, 8, commit_request("g", WIDE, len(indexes)))
    fetch = messages.OffsetFetchRequest
    asked = [fetch.OffsetFetchRequestGroup(group_id="g", topics=None)]
    await bench.timed("offset-fetch-all", ApiKey.OFFSET_FETCH, 8, fetch(groups=asked))
    offsets = {index: CommittedOffset(1, commit_timestamp=1) for index in range(1000)}
    await fill(bench, {f"w{number}": {WIDE: offsets} for number in range(350)})
    await reload(bench)
    named = fetch.OffsetFetchRequestTopics(name=WIDE, partition_indexes=list(range(1000)))
    asked = [fetch.OffsetFetchRequestGroup(group_id=f"w{number}", topics=[named]) for number in range(300)]
    await bench.timed("offset-fetch-300x1000", ApiKey.OFFSET_FETCH, 8, fetch(groups=asked))
    asked = [fetch.OffsetFetchRequestGroup(group_id=f"w{number}", topics=None) for number in range(300)]
    await bench.timed("offset-fetch-300xall", ApiKey.OFFSET_FETCH, 8, fetch(groups=asked))
    topics = [fetch.OffsetFetchRequestTopic(name=WIDE, partition_indexes=list(indexes))]
    await bench.timed("offset-fetch-old", ApiKey.OFFSET_FETCH, 7, fetch(group_id="g", topics=topics))
    delete = messages.DeleteGroupsRequest
    await bench.timed("delete-50x1000", ApiKey.DELETE_GROUPS, 2, delete(groups_names=[f"w{i}" for i in range(50)]))
    one = messages.OffsetDeleteRequest
    rows = [one.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
    request = one(group_id="g", topics=[one.OffsetDeleteRequestTopic(name=WIDE, partitions=rows)])
    await bench.timed("offset-delete-all", ApiKey.OFFSET_DELETE, 0, request)
    await fill(bench, {f"g{number}": {"narrow": {0: CommittedOffset(1)}} for number in range(GROUPS)})
    await reload(bench)
    names = [f"g{index}" for index in range(GROUPS)]
    await bench.timed("list-groups", ApiKey.LIST_GROUPS, 4, messages.ListGroupsRequest())
    await bench.timed("describe-groups", ApiKey.DESCRIBE_GROUPS, 5, messages.DescribeGroupsRequest(groups=names))
    asked = [fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    await bench.timed("offset-fetch-groups", ApiKey.OFFSET_FETCH, 8, fetch(groups=asked))
    finding = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=names)
    await bench.timed("find-coordinators", ApiKey.FIND_COORDINATOR, 4, finding)
    await bench.timed("delete-groups", ApiKey.DELETE_GROUPS, 2, delete(groups_names=names[: GROUPS // 2]))
    gone = messages.DeleteTopicsRequest(topic_names=["narrow"], timeout_ms=TIMEOUT_MS)
    await bench.timed("delete-topic-of-groups", ApiKey.DELETE_TOPICS, 4, gone)

    def remembered() -> bool:
        return any("narrow" in found for shard in shards_of(bench) for found in shard.offsets.committed.values())

    await bench.work("forget-offsets", lambda: until(lambda: not remembered()))
    await expiry(bench)


async def rebalance(bench: Bench) -> None:
    """A group of 2,000 members: all join again at once, and all sync."""
    await bench.create_topics(("large", 1))
    await until_coordinated(bench)
    clients = [Client(bench.broker) for _ in range(MEMBERS)]
    member_ids = [""] * MEMBERS
    make = messages.JoinGroupRequest
    generation = 0

    async def ask_all(api: ApiKey, version: int, frames_of_all: list[bytes]) -> list[Any]:
        loop = asyncio.get_running_loop()
        for client, frame in zip(clients, frames_of_all, strict=True):
            client.transport.sent.clear()
            loop.call_soon(client.feed, frame)
        await until(lambda: all(client.transport.sent for client in clients))
        return [frames.decode_response(api, version, b"".join(client.transport.sent)[4:])[1] for client in clients]

    def joins(round_number: int) -> list[bytes]:
        metadata = b"\0\0" + (1).to_bytes(4, "big") + b"\0\5large\0\0\0\4" + round_number.to_bytes(4, "big")
        protocols = [make.JoinGroupRequestProtocol(name="range", metadata=metadata)]
        times = {"session_timeout_ms": 600_000, "rebalance_timeout_ms": 60_000}
        of_all: dict[str, Any] = {"group_id": "large", "protocol_type": "consumer", "protocols": protocols, **times}
        requests = [make(member_id=member_id, **of_all) for member_id in member_ids]
        return [frames.encode_request(ApiKey.JOIN_GROUP, 3, 1, "bench", request) for request in requests]

    def syncs() -> list[bytes]:
        row = messages.SyncGroupRequest.SyncGroupRequestAssignment
        rows = [row(member_id=member_id, assignment=bytes(40)) for member_id in member_ids]
        of_all: dict[str, Any] = {"group_id": "large", "generation_id": generation}
        requests = [messages.SyncGroupRequest(member_id=one, **of_all) for one in member_ids]
        requests[leader].assignments = rows
        return [frames.encode_request(ApiKey.SYNC_GROUP, 2, 1, "bench", request) for request in requests]

    for round_number in range(4):
        asked = joins(round_number)
        answers: list[Any] = []

        async def join(asked: list[bytes] = asked, answers: list[Any] = answers) -> None:
            answers += await ask_all(ApiKey.JOIN_GROUP, 3, asked)

        if round_number:
            await bench.work("rebalance-join", join)
        else:
            await join()
        member_ids = [answer.member_id for answer in answers]
        generation = max(answer.generation_id for answer in answers)
        if min(answer.generation_id for answer in answers) < generation:
            continue  # the first join was answered before the others came
        leader = next(index for index, answer in enumerate(answers) if answer.members)
        asked = syncs()

        async def sync(asked: list[bytes] = asked) -> None:
            await ask_all(ApiKey.SYNC_GROUP, 2, asked)

        await bench.work("rebalance-sync", sync)


async def http(bench: Bench) -> None:
    """Long answers of the HTTP API: 10,000 groups with 50 offsets each."""
    await bench.create_topics(("read", HTTP_OFFSETS))
    await until_coordinated(bench)
    offsets = {index: CommittedOffset(1, commit_timestamp=1) for index in range(HTTP_OFFSETS)}
    await fill(bench, {f"g{number}": {"read": offsets} for number in range(HTTP_GROUPS)})
    await reload(bench)
    for path in ("/v1/status", "/metrics"):
        await bench.work(f"http-first{path.replace('/', '-')}", lambda path=path: http_get(bench, path))  # type: ignore[misc]
    for name, path in (("metrics", "/metrics"), ("list-groups", "/v1/groups"), ("one-group", "/v1/groups/g1")):
        for _ in range(3):
            await bench.work(f"http-{name}", lambda path=path: http_get(bench, path))  # type: ignore[misc]


async def lag(bench: Bench) -> None:
    """The lag of 10,000 groups with 50 offsets each, and 200 batches behind each of them."""
    await bench.create_topics(("read", HTTP_OFFSETS))
    await until_coordinated(bench)
    make = messages.ProduceRequest
    rows = [make.PartitionProduceData(index=index, records=batch([bytes(100)])) for index in range(HTTP_OFFSETS)]
    request = make(acks=1, timeout_ms=5_000, topic_data=[make.TopicProduceData(name="read", partition_data=rows)])
    for _ in range(LAG_BATCHES):
        await bench.ask(ApiKey.PRODUCE, 8, request)
    offsets = {index: CommittedOffset(0, commit_timestamp=1) for index in range(HTTP_OFFSETS)}
    await fill(bench, {f"g{number}": {"read": offsets} for number in range(HTTP_GROUPS)})
    await reload(bench)
    await http_get(bench, "/v1/status")
    while bench.broker.env.turns._works:  # the journal reads what it does not have
        await asyncio.sleep(1)
    sampling = bench.broker.lag_sampling
    (task,) = [task for task in bench.broker.env.upkeep.tasks if isinstance(task, Task) and task.name == "lag"]

    async def look() -> None:
        before = sampling._last_ms
        asyncio.get_running_loop().call_soon(task.run_soon)
        await until(lambda: sampling._last_ms > before)

    async def ask_many() -> None:
        await asyncio.gather(*(http_get(bench, f"/v1/groups/g{number}/lag") for number in range(100)))

    for name in ("first", "again"):
        await bench.work(f"lag-look-{name}", look)
    await bench.ask(ApiKey.PRODUCE, 8, request)
    await bench.work("lag-look-after-records", look)
    for _ in range(3):
        await bench.work("lag-one-group", lambda: http_get(bench, "/v1/groups/g1/lag"))
    await bench.work("lag-100-groups", ask_many)
    await bench.work("lag-metrics", lambda: http_get(bench, "/metrics"))


async def http_get(bench: Bench, path: str) -> None:
    """Read an answer of the HTTP API to its end."""
    host, _, port = (bench.broker.http.address or "").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    while await reader.read(1 << 20):
        pass
    writer.close()


async def deletion(bench: Bench) -> None:
    """Delete 1,990 topics of which 249 groups have offsets."""
    names = {f"t{number}": None for number in range(1990)}
    await bench.create_topics(*((name, 1) for name in names))
    await until_coordinated(bench)
    offsets = {name: {0: CommittedOffset(1)} for name in list(names)[:100]}
    await fill(bench, {f"g{number}": dict(offsets) for number in range(249)})
    await reload(bench)
    request = messages.DeleteTopicsRequest(topic_names=list(names), timeout_ms=TIMEOUT_MS)
    await bench.timed("delete-1990-topics", ApiKey.DELETE_TOPICS, 4, request)

    def remembered() -> bool:
        return any(shard.offsets.has_offsets for shard in shards_of(bench))

    def is_gone() -> bool:
        return not remembered() and not any(log.topic in names for log in bench.broker.log_manager.all())

    await bench.work("what-comes-after", lambda: until(is_gone))


async def loading(bench: Bench) -> None:
    """Load all partitions of `__consumer_offsets` at once, with `--offsets` offsets in them."""
    await until_coordinated(bench)
    per_group = 500
    offsets = {index: CommittedOffset(1, commit_timestamp=1) for index in range(per_group)}
    await fill(bench, {f"g{number}": {"t": offsets} for number in range(bench.offsets // per_group)})
    await bench.work("loading", lambda: reload(bench))
    records = sum(shard.log.log_end_offset for shard in shards_of(bench))
    print(f"  {records} records")
    await expiry(bench)


async def expiry(bench: Bench) -> None:
    """Let all offsets of all groups expire at once."""
    manager = bench.broker.group_coordinator.kafka_offsets
    manager._config = SimpleNamespace(  # type: ignore[assignment]
        offsets_retention_minutes=0, offsets_retention_check_interval_ms=10**9
    )
    await asyncio.sleep(0.01)
    task = manager.expiry
    assert task is not None

    async def expire() -> None:
        task.run_soon()
        await asyncio.sleep(1)
        await until(lambda: not any(shard.offsets.has_offsets for shard in shards_of(bench)))

    await bench.work("expiry", expire)


async def until(holds: Callable[[], bool]) -> None:
    """Return when `holds` does."""
    while not holds():
        await asyncio.sleep(0.05)


def shards_of(bench: Bench) -> list[Shard]:
    """The offsets partitions that are loaded."""
    return bench.broker.group_coordinator.loaded_shards()


async def until_coordinated(bench: Bench) -> None:
    """Return when every offsets partition is there and loaded."""
    coordinator = bench.broker.group_coordinator
    while (await bench.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="g"))).error_code:
        await asyncio.sleep(0.1)
    while len(coordinator.loaded_shards()) < bench.broker.metadata_cache.partition_count(OFFSETS_TOPIC):
        await asyncio.sleep(0.01)


async def fill(bench: Bench, committed: dict[str, dict[str, dict[int, CommittedOffset]]]) -> None:
    """Write offsets into the log, as if their groups had committed before the broker started."""
    for group_id, offsets in committed.items():
        index = partition_for(group_id, bench.broker.metadata_cache.partition_count(OFFSETS_TOPIC))
        partition = bench.broker.replica_manager.leader_partition(OFFSETS_TOPIC, index)
        assert isinstance(partition, Partition)
        for topic, of_topic in offsets.items():
            rows = list(of_topic.items())
            for start in range(0, len(rows), RECORDS_MAX):
                records = PlainRecords()
                OffsetCommits(group_id, {topic: dict(rows[start : start + RECORDS_MAX])}).append_to(records)
                result = partition.append_as_leader(
                    build_plain(records, 1, codec=0, base_sequence=0).data,
                    origin=AppendOrigin.COORDINATOR,
                    required_acks=-1,
                )
                assert not result.error, result
        await asyncio.sleep(0)


async def reload(bench: Bench) -> None:
    """Load all offsets partitions anew."""
    coordinator = bench.broker.group_coordinator
    for shard in list(coordinator.shards.values()):
        coordinator.load(shard.partition, shard.leader_epoch + 1)
    while any(shard.loading for shard in coordinator.shards.values()):
        await asyncio.sleep(0.01)


def commit_request(group_id: str, topic: str, count: int) -> Any:
    """A commit of the first `count` partitions of a topic."""
    commit = messages.OffsetCommitRequest
    rows = [commit.OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in range(count)]
    return commit(group_id=group_id, topics=[commit.OffsetCommitRequestTopic(name=topic, partitions=rows)])


SCENES: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "everything": everything,
    "compaction": compaction,
    "conversion": conversion,
    "groups": groups,
    "http": http,
    "lag": lag,
    "rebalance": rebalance,
    "consumers": consumers,
    "expressions": expressions,
    "deletion": deletion,
    "loading": loading,
    "long": long_requests,
    "long-lists": long_lists,
    "control": control,
}
