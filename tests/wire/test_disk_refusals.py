"""Logs that could not be made or deleted: tried again until the disk does it, without a start of the broker."""

import errno
from typing import Any

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DeleteTopicsRequest, MetadataRequest, ProduceRequest
from simulator.coordination import SimCoordination, SimTree
from simulator.env import sim_env

World = Any  # of conftest.py
FOR_EVER = 10**9
AGAIN_MS = 5_000  # log.dir.room.check.interval.ms
CAUSES = [errno.ENOSPC, errno.EMFILE, errno.EACCES]
READ_ONLY = [errno.EROFS, errno.EACCES, errno.EPERM]


@pytest.fixture
def world(own_world: World) -> World:
    return own_world


def leader(world: World, topic: str) -> tuple[int, int]:
    """What Metadata says of partition 0: an error, and the leader."""
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    answer = world.ask(ApiKey.METADATA, 9, request).topics[0]
    return answer.partitions[0].error_code, answer.partitions[0].leader_id


def produce(world: World, value: bytes) -> int:
    """The error of a produce to `t-0`."""
    records = record_batch.build([record_batch.Record(value=value)])
    rows = [ProduceRequest.PartitionProduceData(index=0, records=records)]
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=rows)]
    answer = world.ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics))
    error: int = answer.responses[0].partition_responses[0].error_code
    return error


def wait(world: World, ms: float) -> None:
    world.env.run(world.env.clock.sleep(ms))


@pytest.mark.parametrize("number", CAUSES)
@pytest.mark.parametrize("operation", ["make_directory", "open"])
def test_a_log_that_could_not_be_made_is_made_later(world: World, number: int, operation: str) -> None:
    world.env.disk.fail(operation, "/t-0", OSError(number, "simulated"), times=FOR_EVER)
    world.create_topic("t")
    wait(world, 30_000)
    assert leader(world, "t") == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert produce(world, b"v") != ErrorCode.NONE
    world.env.disk._failures.clear()
    wait(world, AGAIN_MS + 1_000)
    assert leader(world, "t") == (ErrorCode.NONE, world.broker.node_id)
    assert produce(world, b"v") == ErrorCode.NONE


def test_a_topic_that_could_not_be_made_can_be_deleted(world: World) -> None:
    world.env.disk.fail("make_directory", "/t-0", OSError(errno.ENOSPC, "simulated"), times=FOR_EVER)
    world.create_topic("t")
    wait(world, 1_000)
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
    world.ask(ApiKey.DELETE_TOPICS, 5, request)
    world.env.disk._failures.clear()
    wait(world, 3 * AGAIN_MS)
    world.create_topic("t")
    assert produce(world, b"v") == ErrorCode.NONE


def test_a_log_that_could_not_be_deleted_is_deleted_later(world: World) -> None:
    world.create_topic("t")
    assert produce(world, b"old") == ErrorCode.NONE
    world.env.disk.fail("rename", "/t-0", OSError(errno.ENOSPC, "simulated"), times=FOR_EVER)
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    world.ask(ApiKey.DELETE_TOPICS, 5, request)
    wait(world, 20_000)
    assert world.broker.log_manager.get("t", 0) is not None
    world.env.disk._failures.clear()
    wait(world, AGAIN_MS + 1_000)
    assert world.broker.log_manager.get("t", 0) is None
    world.create_topic("t")
    assert produce(world, b"new") == ErrorCode.NONE


@pytest.mark.parametrize("number", READ_ONLY)
@pytest.mark.parametrize("operations", [["create", "open"], ["create", "open", "write", "truncate"]])
def test_a_directory_that_was_read_only_is_written_again(world: World, number: int, operations: list[str]) -> None:
    """At first where a segment must be made; in the second case, nothing at all can be written."""
    world.create_topic("t", **{"segment.bytes": str(1 << 20)})
    value = bytes(400_000)
    assert produce(world, value) == ErrorCode.NONE
    for operation in operations:
        world.env.disk.fail(operation, "/t-0", OSError(number, "simulated"), times=FOR_EVER)
    errors = [produce(world, value) for _ in range(5)]
    assert errors[-2:] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    world.env.disk._failures.clear()
    wait(world, AGAIN_MS + 10_000)
    assert leader(world, "t") == (ErrorCode.NONE, world.broker.node_id)
    assert produce(world, b"v") == ErrorCode.NONE
    assert world.broker.log_manager.get("t", 0).log_end_offset == 2 + errors.count(ErrorCode.NONE)


def test_a_new_topic_goes_to_the_directory_that_can_be_written(make_world: Any) -> None:
    """Until 2026-11-30 it went to the one with fewer logs, and had no leader until that one could be written again."""
    env = sim_env(11)
    world = make_world(env, SimCoordination(env.clock, SimTree(env.clock)), ("/a", "/b"))
    world.create_topic("s")
    world.create_topic("t")
    place = world.broker.log_manager.directory_of(world.broker.log_manager.get("t", 0)).path
    for operation in ("create", "open", "write", "truncate"):
        env.disk.fail(operation, f"{place}/", OSError(errno.EROFS, "simulated"), times=FOR_EVER)
    assert produce(world, b"v") == ErrorCode.KAFKA_STORAGE_ERROR
    for topic in "uvw":
        world.create_topic(topic)
        assert leader(world, topic) == (ErrorCode.NONE, world.broker.node_id)
