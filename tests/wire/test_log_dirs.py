"""A broker with several directories in log.dirs, as its clients see it."""

from typing import Any

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
    StopReplicaRequest,
)
from barnabas.protocol.record_batch import Record
from barnabas.storage.directory_contents import DataDirectoryError
from simulator.coordination import SimCoordination, SimTree
from simulator.env import SimEnv, sim_env

DIRECTORIES = ("/a", "/b")


class Machine:
    """Two disks and a tree that outlive their brokers."""

    def __init__(self, make_world: Any) -> None:
        self.env: SimEnv = sim_env(11)
        self.tree = SimTree(self.env.clock)
        self.make_world = make_world

    def start(self) -> Any:
        return self.make_world(self.env, SimCoordination(self.env.clock, self.tree), DIRECTORIES)


@pytest.fixture
def machine(make_world: Any) -> Machine:
    return Machine(make_world)


def stop(world: Any) -> None:
    world.env.run(world.broker.stop())
    assert world.broker.request_gate.handler_failures == 0


def produce(world: Any, topic: str, index: int, value: bytes) -> int:
    batch = record_batch.build([Record(timestamp=1, value=value)])
    data = ProduceRequest.PartitionProduceData(index=index, records=batch)
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    (answer,) = world.ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics)).responses
    error: int = answer.partition_responses[0].error_code
    return error


def fetch(world: Any, topic: str, index: int) -> list[bytes | None] | int:
    """The values in a partition, or the error."""
    wanted = FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    (answer,) = world.ask(ApiKey.FETCH, 12, request).responses[0].partitions
    if answer.error_code:
        return int(answer.error_code)
    batches = record_batch.batches(answer.records or b"")
    return [record.value for _, batch in batches for record in record_batch.records(batch, max_bytes=1 << 20)]


def log_dirs(world: Any) -> dict[str, list[tuple[str, int]] | int]:
    """By directory: the partitions in it, or the error."""
    results = world.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None)).results
    return {
        result.log_dir: result.error_code
        or sorted((topic.name, p.partition_index) for topic in result.topics for p in topic.partitions)
        for result in results
    }


def stop_replica(world: Any, topic: str, index: int) -> int:
    """The answer to a controller that wants a partition deleted."""
    state = StopReplicaRequest.StopReplicaPartitionState(partition_index=index, delete_partition=True)
    topics = [StopReplicaRequest.StopReplicaTopicState(topic_name=topic, partition_states=[state])]
    replica_manager = world.broker.replica_manager
    request = StopReplicaRequest(controller_epoch=replica_manager.controller_epoch, topic_states=topics)
    (answer,) = replica_manager.stop_replica(request).partition_errors
    error: int = answer.error_code
    return error


def test_topics_over_two_directories_are_there_after_a_restart(machine: Machine) -> None:
    world = machine.start()
    world.create_topic("spread", 4)
    for index in range(4):
        assert produce(world, "spread", index, b"record %d" % index) == ErrorCode.NONE
    rows = log_dirs(world)
    assert [len(rows[path]) for path in DIRECTORIES] == [2, 2]
    stop(world)
    again = machine.start()
    assert log_dirs(again) == rows
    assert [fetch(again, "spread", index) for index in range(4)] == [[b"record %d" % index] for index in range(4)]
    stop(again)


@pytest.mark.parametrize("lost", DIRECTORIES)
def test_the_partitions_of_a_lost_directory_are_offline_and_come_back(machine: Machine, lost: str) -> None:
    world = machine.start()
    topic_id = world.create_topic("spread", 4)
    for index in range(4):
        produce(world, "spread", index, b"before")
    gone = {index for _, index in log_dirs(world)[lost]}
    stop(world)
    machine.env.disk.fail("list", lost, times=1000)

    world = machine.start()
    assert log_dirs(world)[lost] == ErrorCode.KAFKA_STORAGE_ERROR
    (topic,) = world.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None)).topics
    assert {p.partition_index for p in topic.partitions if p.offline_replicas} == gone
    for index in range(4):
        expected = ErrorCode.KAFKA_STORAGE_ERROR if index in gone else ErrorCode.NONE
        assert produce(world, "spread", index, b"meanwhile") == expected
        assert fetch(world, "spread", index) == (expected or [b"before", b"meanwhile"])
    world.create_topic("new", 2)
    assert produce(world, "new", 1, b"goes on") == ErrorCode.NONE
    stop(world)
    machine.env.disk.repair()

    world = machine.start()
    topics = world.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None)).topics
    assert {topic.name: topic.topic_id for topic in topics}["spread"] == topic_id
    for index in range(4):
        assert produce(world, "spread", index, b"after") == ErrorCode.NONE
        meanwhile = [] if index in gone else [b"meanwhile"]
        assert fetch(world, "spread", index) == [b"before", *meanwhile, b"after"]
    assert fetch(world, "new", 1) == [b"goes on"]
    stop(world)


def test_a_topic_grows_while_some_of_its_partitions_are_offline(machine: Machine) -> None:
    world = machine.start()
    world.create_topic("spread", 2)
    stop(world)
    machine.env.disk.fail("list", "/b", times=1000)
    world = machine.start()
    grown = CreatePartitionsRequest.CreatePartitionsTopic(name="spread", count=4, assignments=None)
    answer = world.ask(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=[grown], timeout_ms=1000))
    assert answer.results[0].error_code == ErrorCode.NONE, "those that are offline are not those that were asked for"
    assert [produce(world, "spread", index, b"x") for index in range(4)] == [
        ErrorCode.NONE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    stop(world)


def test_a_topic_with_partitions_that_are_offline_is_deleted_when_they_are_back(machine: Machine) -> None:
    world = machine.start()
    world.create_topic("spread", 2)
    stop(world)
    machine.env.disk.fail("list", "/b", times=1000)
    world = machine.start()
    assert stop_replica(world, "spread", 1) == ErrorCode.KAFKA_STORAGE_ERROR
    world.ask(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["spread"], timeout_ms=1000))
    machine.env.clock.advance(10_000)
    stop(world)
    machine.env.disk.repair()
    world = machine.start()
    machine.env.clock.advance(10_000)
    assert log_dirs(world) == {"/a": [], "/b": []}
    names = [name for path in DIRECTORIES for name in machine.env.disk.list_directory(path)]
    assert not [name for name in names if name.endswith("-stray")], "deleted, not forgotten"
    assert world.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None)).topics == []
    stop(world)


def test_nothing_is_adopted_while_a_directory_is_offline(machine: Machine) -> None:
    world = machine.start()
    world.create_topic("spread", 2)
    stop(world)
    machine.tree = SimTree(machine.env.clock)
    machine.env.disk.fail("list", "/b", times=1000)
    with pytest.raises(DataDirectoryError, match="The coordination is new, and the data directory /b cannot be read"):
        machine.start()
    machine.env.disk.repair()
    world = machine.start()
    assert log_dirs(world) == {"/a": [("spread", 0)], "/b": [("spread", 1)]}
    stop(world)
