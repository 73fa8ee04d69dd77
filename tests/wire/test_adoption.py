"""Data directories whose topics the tree does not know: of Apache Kafka, of a lost tree, of topics that are gone."""

import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.transactions.metadata import Transaction
from barnabas.coordinators.transactions.records import encode_key, encode_value
from barnabas.coordinators.transactions.states import COMPLETE_COMMIT, ONGOING, PREPARE_COMMIT, TransactionState
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import (
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from barnabas.protocol.record_batch import Record
from barnabas.protocol.transaction_marker import marker_of
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import AppendOrigin
from simulator.env import SimEnv, sim_env
from simulator.storage_transactions import take_part

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import describe, end

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.1.0"
META_OF_3_9 = "version=0\nbroker.id=4\ncluster.id=_Q9nVnKJQCGGWlmvRK6gKg\n"


def write(env: SimEnv, path: str, data: bytes) -> None:
    env.disk.make_directory(path.rpartition("/")[0])
    file = env.disk.open(path, create=True)
    file.truncate(0)
    file.write(0, data)


@pytest.fixture
def kafka() -> SimEnv:
    """A machine with the data directory of Apache Kafka 4.1.0 at /data."""
    env = sim_env(5)
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                write(env, f"/{member.name}", content.read())
    return env


def dumped(topic: str) -> dict[int, tuple[int, list[int]]]:
    """By partition: where the dump begins, and the offsets of the records it prints (markers left out)."""
    found: dict[int, tuple[int, list[int]]] = {}
    for path in sorted((GOLDEN / "dump").glob(f"{topic}-[0-9].txt")):
        lines = path.read_text().splitlines()
        start = next(int(line.split()[-1]) for line in lines if line.startswith("Log starting offset"))
        records = [line for line in lines if line.startswith("| offset: ") and "endTxnMarker" not in line]
        found[int(path.stem.rpartition("-")[2])] = (start, [int(line.split()[2]) for line in records])
    return found


def fetch_all(world: Any, topic: str, topic_id: bytes, index: int) -> list[int]:
    """Offsets of all records of a partition, as a consumer reads them (read_uncommitted)."""
    offsets: list[int] = []
    position = 0
    while True:
        wanted = FetchRequest.FetchTopic(
            topic_id=topic_id,
            partitions=[
                FetchRequest.FetchPartition(partition=index, fetch_offset=position, partition_max_bytes=1 << 20)
            ],
        )
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=[wanted])
        (partition,) = world.ask(ApiKey.FETCH, 13, request).responses[0].partitions
        assert partition.error_code == 0, (topic, index)
        got = list(record_batch.batches(partition.records or b""))
        if not got:
            assert position == partition.high_watermark
            return offsets
        for header, batch in got:
            position = header.next_offset
            if not header.is_control:
                offsets += [record.offset for record in record_batch.records(batch, max_bytes=1 << 20)]


def topics_of(world: Any) -> dict[str, Any]:
    return {topic.name: topic for topic in world.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None)).topics}


def committed(world: Any, group: str) -> dict[tuple[str, int], int]:
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    (answer,) = world.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[asked])).groups
    assert answer.error_code == 0
    return {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}


def contents(env: SimEnv, folder: str) -> dict[str, bytes]:
    return {
        name: env.disk.open(f"{folder}/{name}").read(0, 1 << 30)
        for name in env.disk.list_directory(folder)
        if name.endswith((".log", ".metadata"))
    }


def test_a_data_directory_of_kafka_is_served_at_once(make_world: Any, kafka: SimEnv, caplog: Any) -> None:
    before = {
        name: contents(kafka, f"/data/{name}")
        for name in kafka.disk.list_directory("/data")
        if kafka.disk.is_directory(f"/data/{name}")
    }
    with caplog.at_level("INFO", "barnabas.broker"):
        world = make_world(kafka)
    broker = world.broker
    assert (broker.node_id, broker.cluster_id) == (1, "AAAAAAAAAAAAAAAAAAAAAQ")
    adopted = [record.getMessage() for record in caplog.records if "adopted the topic" in record.getMessage()]
    assert len(adopted) == len({line.split()[3] for line in adopted}) == 12
    topics = topics_of(world)
    assert len(topics) == 12
    assert len(topics["__consumer_offsets"].partitions) == 5
    assert topics["__consumer_offsets"].is_internal
    assert "__cluster_metadata" not in topics
    total = 0
    for name, topic in topics.items():
        expected = dumped(name)
        for partition in topic.partitions:
            got = fetch_all(world, name, topic.topic_id, partition.partition_index)
            start, printed = expected.get(partition.partition_index, (0, []))
            assert [offset for offset in got if offset >= start] == printed, name
            assert len(got) - len(printed) <= start, "the dump is of the last segment"
            total += len(got)
    assert total == 1225
    assert committed(world, "billing") == {("events", 0): 5, ("events", 1): 6, ("events", 2): 7}
    assert committed(world, "shipping") == {("orders-none", 0): 33, ("orders-none", 1): 44}
    assert committed(world, "gone") == {}
    assert broker.features.finalised.levels == {"group.version": 1, "metadata.version": 27, "transaction.version": 2}
    kafka.clock.advance(3 * 3_600_000)  # retention, the cleaner: nothing goes
    assert broker.log_manager.configs.of("prices").retention_ms == -1
    assert broker.log_manager.configs.of("__consumer_offsets").cleanup_policy == frozenset(("compact",))
    for name, files in before.items():
        after = contents(kafka, f"/data/{name}")
        for file, data in files.items():
            assert after[file].startswith(data), (name, file)
    world.env.run(broker.stop())


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([], {"group.version": 1, "metadata.version": 27, "transaction.version": 2}),
        (
            [("group.version", 0), ("transaction.version", 9), ("share.version", 1)],
            {"metadata.version": 27, "transaction.version": 2},
        ),
        ([("metadata.version", 21)], {"group.version": 1, "transaction.version": 2}),
    ],
    ids=["as it was", "lowered, and newer than known", "an older Kafka"],
)
def test_levels_of_features_are_those_of_kafka(
    make_world: Any, kafka: SimEnv, after: list[tuple[str, int]], expected: dict[str, int]
) -> None:
    """They are in a snapshot of the log of metadata, or in the log behind it."""
    folder = "/data/__cluster_metadata-0"
    log = kafka.disk.open(f"{folder}/00000000000000000000.log")
    end = max(header.next_offset for header, _ in record_batch.batches(memoryview(log.read(0, log.size()))))
    records = [
        Record(timestamp=0, value=b"\x01\x0c\x00" + bytes([len(name) + 1]) + name.encode() + bytes([0, level, 0]))
        for name, level in after
    ]
    if records:
        log.write(log.size(), bytes(record_batch.build(records, base_offset=end)))
    old = record_batch.build([Record(timestamp=0, value=b"\x01\x0c\x00\x0egroup.version\x00\x01\x00")])
    write(kafka, f"{folder}/{0:020}-{0:010}.checkpoint", bytes(old))
    world = make_world(kafka)
    assert world.broker.features.finalised.levels == expected
    world.env.run(world.broker.stop())


def test_a_log_of_metadata_that_cannot_be_read_leaves_all_features_off(
    make_world: Any, kafka: SimEnv, caplog: Any
) -> None:
    log = kafka.disk.open("/data/__cluster_metadata-0/00000000000000000000.log")
    log.write(16, b"\x07")
    with caplog.at_level("WARNING", "barnabas.broker"):
        world = make_world(kafka)
    assert world.broker.features.finalised.levels == {}
    assert "cannot read the levels of Kafka's features in /data/__cluster_metadata-0" in caplog.text
    world.env.run(world.broker.stop())


def test_an_adopted_topic_can_be_written_to(make_world: Any, kafka: SimEnv) -> None:
    world = make_world(kafka)
    producer = world.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None))
    assert producer.producer_id >= 1000, "the first thousand may be in these logs"
    batch = record_batch.build(
        [Record(timestamp=kafka.clock.now_ms(), value=b"more")],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
    )
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[ProduceRequest.TopicProduceData(name="orders-none", partition_data=[data])],
    )
    (result,) = world.ask(ApiKey.PRODUCE, 9, request).responses[0].partition_responses
    log = world.broker.log_manager.get("orders-none", 0)
    assert (result.error_code, result.base_offset) == (0, log.log_end_offset - 1)
    assert log.leader_epochs.entries == [(0, 0), (1, result.base_offset)], "an epoch later than any of Kafka's"
    world.env.run(world.broker.stop())
    again = make_world(kafka)  # the tree in memory is gone: adopted once more
    assert again.broker.log_manager.get("orders-none", 0).log_end_offset == result.base_offset + 1
    latest = ListOffsetsRequest.ListOffsetsTopic(
        name="orders-none", partitions=[ListOffsetsRequest.ListOffsetsPartition(timestamp=-1)]
    )
    (answer,) = again.ask(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(topics=[latest])).topics[0].partitions
    assert answer.offset == result.base_offset + 1
    again.env.run(again.broker.stop())


def begin_transaction(log: Log, producer_id: int, now_ms: int) -> None:
    batch = record_batch.build(
        [Record(timestamp=now_ms, value=b"pending")],
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    take_part(log, producer_id, 3)
    result = log.append_as_leader(batch, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=now_ms)
    assert result.error == 0


def write_state(
    log: Log, transactional_id: str, producer_id: int, state: TransactionState, now_ms: int, *partitions: int
) -> None:
    """As Kafka's transaction coordinator does."""
    value = Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=3,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset(("orders-none", index) for index in partitions),
        start_ms=now_ms,
        last_update_ms=now_ms,
    )
    record = Record(timestamp=now_ms, key=encode_key(transactional_id), value=encode_value(value, 0))
    batch = record_batch.build([record])
    result = log.append_as_leader(batch, leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=now_ms)
    assert result.error == 0


def read_committed(world: Any, offset: int) -> Any:
    """What a consumer of the first partition is given."""
    wanted = FetchRequest.FetchTopic(
        topic="orders-none",
        partitions=[FetchRequest.FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)],
    )
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=1, topics=[wanted])
    (partition,) = world.ask(ApiKey.FETCH, 11, request).responses[0].partitions
    return partition


def test_open_transactions_are_ended_by_their_coordinator_or_else_aborted(
    make_world: Any, kafka: SimEnv, caplog: Any
) -> None:
    manager = LogManager(kafka, "/data", BrokerConfig.of({}), lambda topic: {})
    manager.start()
    now_ms = kafka.clock.now_ms()
    log = manager.get("orders-none", 0)
    assert log is not None
    count = sum(each.topic == "__transaction_state" for each in manager.all())

    def state(transactional_id: str, producer_id: int, state: TransactionState, *partitions: int) -> None:
        states = manager.get("__transaction_state", partition_for(transactional_id, count))
        assert states is not None
        write_state(states, transactional_id, producer_id, state, now_ms, *partitions)

    first = log.log_end_offset
    for producer_id in (701, 702, 703, 704):
        begin_transaction(log, producer_id, now_ms)
    state("holiday", 701, ONGOING, 0)
    state("holiday", 701, COMPLETE_COMMIT)  # this partition has lost its marker
    state("decided", 702, PREPARE_COMMIT, 0)  # this partition has not heard of it
    state("slow", 703, ONGOING, 0, 1)  # its producer may still come back
    state("elsewhere", 704, ONGOING, 1)
    manager.shutdown()

    world = make_world(kafka)
    assert f"orders-none-0: transactions of the producers 701, 704 are open from offset {first} on" in caplog.text
    assert world.broker.log_manager.configs.of("__transaction_state").cleanup_policy == frozenset(("compact",))
    world.env.run(kafka.clock.sleep(500))
    partition = read_committed(world, first)
    assert partition.last_stable_offset == first + 2, "the one that may go on"
    assert partition.high_watermark == first + 4 + 3
    entry = world.broker.log_manager.get("orders-none", 0).producers.get(701)
    assert entry.producer_epoch == 4, "the producer that began it is fenced, should it come back"

    world.env.run(kafka.clock.sleep(80_000))
    partition = read_committed(world, first)
    assert partition.last_stable_offset == partition.high_watermark == first + 4 + 4
    aborted = [(row.producer_id, row.first_offset) for row in partition.aborted_transactions]
    assert aborted == [(701, first), (704, first + 3), (703, first + 2)], "as they ended"
    ended = {
        header.producer_id: marker.commit
        for header, batch in record_batch.batches(partition.records)
        if header.is_control and (marker := marker_of(batch)) is not None
    }
    assert ended == {701: False, 702: True, 703: False, 704: False}
    states = [describe(world, each).transaction_state for each in ("holiday", "decided", "slow", "teller-1")]
    assert states == ["CompleteCommit", "CompleteCommit", "CompleteAbort", "CompleteAbort"]
    world.env.run(world.broker.stop())


def test_a_producer_goes_on_in_the_transaction_that_it_has_begun_in_kafka(make_world: Any, kafka: SimEnv) -> None:
    """`teller-2` of the golden directory was killed in the middle of one."""
    world = make_world(kafka)
    held = describe(world, "teller-2")
    assert held.transaction_state == "Ongoing"
    error, *_ = end(world, "teller-2", (held.producer_id, held.producer_epoch), True)
    assert error == 0
    world.env.run(kafka.clock.sleep(500))
    assert describe(world, "teller-2").transaction_state == "CompleteCommit"
    for topic in held.topics:
        for index in topic.partitions:
            log = world.broker.log_manager.get(topic.topic, index)
            assert not log.producers.has_open_transactions
            assert log.last_stable_offset == log.log_end_offset
    world.env.run(world.broker.stop())


def test_a_directory_of_kafka_with_zookeeper_gives_number_and_cluster(make_world: Any) -> None:
    env = sim_env(5)
    write(env, "/data/meta.properties", META_OF_3_9.encode())
    world = make_world(env)
    assert (world.broker.node_id, world.broker.cluster_id) == (4, "_Q9nVnKJQCGGWlmvRK6gKg")
    world.env.run(world.broker.stop())


def test_a_number_that_was_said_is_not_replaced(make_world: Any) -> None:
    env = sim_env(5)
    write(env, "/data/meta.properties", META_OF_3_9.encode())
    with pytest.raises(Exception, match="belongs to node 4, this is node 0"):
        make_world(env, node_id="0")


def test_a_partition_without_a_folder_begins_empty(make_world: Any, kafka: SimEnv, caplog: Any) -> None:
    kafka.disk.remove_tree("/data/events-1")
    world = make_world(kafka)
    assert [partition.error_code for partition in topics_of(world)["events"].partitions] == [0, 0, 0]
    assert world.broker.log_manager.get("events", 1).log_end_offset == 0
    assert "topic events: 1 of its partitions has no folder" in caplog.text
    world.env.run(world.broker.stop())


def stop_without_losing_the_tree(world: Any) -> Any:
    """Stop the broker; returns its tree, which is in memory."""

    async def nothing() -> None:
        pass

    coordination = world.broker.coordination
    coordination.close = coordination.start = nothing
    world.env.run(world.broker.stop())
    world.env.run(coordination.delete("/brokers/ids/0"))
    world.env.run(coordination.delete("/controller"))
    return coordination


def test_folders_of_topics_that_are_gone_are_set_aside(make_world: Any, caplog: Any) -> None:
    world = make_world()
    world.create_topic("gone", 2)
    world.create_topic("kept", 1)
    env = world.env
    coordination = stop_without_losing_the_tree(world)
    env.run(coordination.delete_recursive("/brokers/topics/gone"))
    again = make_world(env, coordination=coordination)
    assert list(topics_of(again)) == ["kept"]
    names = [name for name in env.disk.list_directory("/data") if name.startswith("gone")]
    assert len(names) == 2
    assert all(name.endswith("-stray") for name in names)
    assert "2 log folders in /data of topics that the tree does not have here" in caplog.text
    env.clock.advance(3 * 3_600_000)
    assert set(names) <= set(env.disk.list_directory("/data")), "kept for whoever wants them back"
    again.create_topic("gone", 1)
    assert again.broker.log_manager.get("gone", 0).log_end_offset == 0
    stop_without_losing_the_tree(again)
    third = make_world(env, coordination=coordination)
    assert sorted(topics_of(third)) == ["gone", "kept"]
    assert set(names) <= set(env.disk.list_directory("/data"))
    env.run(third.broker.stop())


@pytest.mark.parametrize("clean", [True, False])
def test_an_old_folder_of_a_topic_that_was_made_again_is_not_served(make_world: Any, clean: bool) -> None:
    world = make_world()
    world.create_topic("twice")
    batch = record_batch.build([Record(timestamp=1, value=b"of the first")])
    world.broker.replica_manager.append([("twice", 0, batch)], required_acks=-1, timeout_ms=1000)
    env = world.env
    coordination = stop_without_losing_the_tree(world)
    if not clean:
        env.disk.remove("/data/.kafka_cleanshutdown")
    node, _ = env.run(coordination.get("/brokers/topics/twice"))
    env.run(
        coordination.set("/brokers/topics/twice", node.replace(node.split(b'"topic_id":"')[1][:22], b"A" * 21 + b"Q"))
    )
    again = make_world(env, coordination=coordination)
    topic = topics_of(again)["twice"]
    assert topic.topic_id == bytes(15) + b"\x01"
    assert fetch_all(again, "twice", topic.topic_id, 0) == []
    (stray,) = [name for name in env.disk.list_directory("/data") if name.endswith("-stray")]
    assert contents(env, f"/data/{stray}")["00000000000000000000.log"].endswith(b"of the first\x00")
    env.run(again.broker.stop())
