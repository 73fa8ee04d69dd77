"""Well-formed hostile requests: names too long to be sent back, extreme numbers, too much at once."""

import logging
import struct
from typing import Any

import pytest
from barnabas.broker.connection import FRAMES_PER_TURN
from barnabas.cluster.tree.port import ConnectionLossError
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build

World = Any  # of conftest.py

LONGEST = "a" * 32767
NOT_UTF_8 = b"\xff" * 32767  # as text three times as long


@pytest.fixture(autouse=True)
def _nothing_fails(world: World) -> Any:
    """A handler that raised is a bug, whatever its client was told."""
    while not world.broker.metadata_cache.contains("__consumer_offsets"):
        world.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="any"))
        world.env.clock.advance(1000)
    before = world.broker.request_gate.handler_failures
    yield
    assert world.broker.request_gate.handler_failures == before


def test_the_longest_names_are_refused_in_words_that_can_be_sent(world: World) -> None:
    create = messages.CreateTopicsRequest
    topic = create.CreatableTopic(name=LONGEST, num_partitions=1, replication_factor=1)
    (result,) = world.ask(ApiKey.CREATE_TOPICS, 7, create(topics=[topic], timeout_ms=1000)).topics
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    world.create_topic("named-long")
    alter = messages.IncrementalAlterConfigsRequest
    for version in (0, 1):
        config = alter.AlterableConfig(name=LONGEST, config_operation=0, value="1")
        resource = alter.AlterConfigsResource(resource_type=2, resource_name="named-long", configs=[config])
        (answer,) = world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, alter(resources=[resource])).responses
        assert answer.error_code == ErrorCode.INVALID_CONFIG
    describe = messages.DescribeGroupsRequest(groups=[LONGEST])
    (group,) = world.ask(ApiKey.DESCRIBE_GROUPS, 6, describe).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", [1, 9])
def test_a_name_that_grows_when_it_is_read_as_text_closes_the_connection(world: World, version: int) -> None:
    name = struct.pack(">h", 32767) if version == 1 else b"\x80\x80\x02"
    begin = struct.pack(">hhih", ApiKey.METADATA, version, 1, -1)
    if version == 1:
        frame = begin + struct.pack(">i", 1) + name + NOT_UTF_8
    else:
        frame = begin + b"\0" + b"\2" + name + NOT_UTF_8 + b"\0" + b"\0\0\0" + b"\0"
    assert world.exchange(frame) == [None]


def test_a_client_id_that_grows_when_it_is_read_as_text_closes_the_connection(world: World) -> None:
    frame = struct.pack(">hhih", ApiKey.METADATA, 1, 1, 32767) + NOT_UTF_8 + struct.pack(">i", 0)
    assert world.exchange(frame) == [None]


@pytest.mark.parametrize("version", [0, 3, 4, 9])
def test_a_member_of_a_client_with_the_longest_id(world: World, version: int) -> None:
    join = messages.JoinGroupRequest
    request = join(
        group_id=f"long-client-{version}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[join.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    (answer,) = world.exchange(frames.encode_request(ApiKey.JOIN_GROUP, version, 1, LONGEST, request)[4:])
    assert answer is not None
    _, response = frames.decode_response(ApiKey.JOIN_GROUP, version, memoryview(answer))
    assert response.member_id


@pytest.mark.parametrize("group", ["a\0b", "a//b", ".", "a/..", "/", "\x7f", "\ufffd", "\U0001f600"])
def test_groups_that_name_no_node_of_the_tree(world: World, group: str) -> None:
    if not world.broker.metadata_cache.contains("in-the-tree"):
        world.create_topic("in-the-tree")
    commit = messages.OffsetCommitRequest
    row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = commit.OffsetCommitRequestTopic(name="in-the-tree", partitions=[row])
    response = world.ask(ApiKey.OFFSET_COMMIT, 0, commit(group_id=group, topics=[topic]))
    assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID
    fetch = messages.OffsetFetchRequest
    asked = fetch.OffsetFetchRequestTopic(name="in-the-tree", partition_indexes=[0])
    response = world.ask(ApiKey.OFFSET_FETCH, 0, fetch(group_id=group, topics=[asked]))
    assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(("counts", "error"), [((10_001,), 44), ((5_001, 5_000), 44), ((2**31 - 1,), 44), ((5,), 0)])
def test_partitions_that_one_request_may_create(world: World, counts: tuple[int, ...], error: int) -> None:
    create = messages.CreateTopicsRequest
    topics = [
        create.CreatableTopic(name=f"too-many-{count}-{index}", num_partitions=count, replication_factor=1)
        for index, count in enumerate(counts)
    ]
    response = world.ask(ApiKey.CREATE_TOPICS, 7, create(topics=topics, timeout_ms=1000, validate_only=True))
    assert {topic.error_code for topic in response.topics} == {error}


@pytest.mark.parametrize(("count", "error"), [(10_002, 44), (2**31 - 1, 44), (2, 0), (-1, 37), (-(2**31), 37)])
def test_partitions_that_one_request_may_add(world: World, count: int, error: int) -> None:
    if not world.broker.metadata_cache.contains("grows"):
        world.create_topic("grows")
    grow = messages.CreatePartitionsRequest
    topic = grow.CreatePartitionsTopic(name="grows", count=count, assignments=None)
    response = world.ask(ApiKey.CREATE_PARTITIONS, 3, grow(topics=[topic], timeout_ms=1000, validate_only=True))
    assert response.results[0].error_code == error


def test_thousands_of_requests_at_once_let_others_come_between(world: World) -> None:
    count = 20 * FRAMES_PER_TURN

    async def run() -> tuple[int, int]:
        many, other = await world.connect(), await world.connect()
        request = frames.encode_request(ApiKey.METADATA, 1, 1, "test", messages.MetadataRequest(topics=[]))
        many.transport.write(request * count)
        other.transport.write(request)
        await other.answer()
        before = sum(world.broker.server.requests_of)
        for _ in range(count):
            assert await many.answer() is not None
        after = sum(world.broker.server.requests_of)
        many.transport.close()
        other.transport.close()
        return before, after

    begin = sum(world.broker.server.requests_of)
    before, after = world.env.run(run())
    assert before - begin < count  # the other was answered before all of them were
    assert after - begin == count + 1


def test_a_tree_that_cannot_be_written_is_no_bug_of_the_broker(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(*_: Any) -> None:
        raise ConnectionLossError("", "the disk is full")

    monkeypatch.setattr(world.broker.coordination, "multi", full)
    create = messages.CreateTopicsRequest
    topic = create.CreatableTopic(name="no-room", num_partitions=1, replication_factor=1)
    caplog.set_level(logging.INFO, "barnabas")
    for _ in range(100):
        (result,) = world.ask(ApiKey.CREATE_TOPICS, 7, create(topics=[topic], timeout_ms=1000)).topics
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        world.env.clock.advance(100)
    monkeypatch.undo()
    world.create_topic("no-room")
    told = [record.levelname for record in caplog.records if "the disk is full" in record.message]
    assert told == ["WARNING", "INFO"], "and then nothing for a minute"


def test_a_lookup_by_time_meets_a_timestamp_that_cannot_be(world: World) -> None:
    """Uncompressed records are not looked into before they are written."""
    world.create_topic("times")
    batch = build([Record(timestamp=time, value=b"v") for time in (0, -1)])
    now_ms = world.env.clock.now_ms()
    batch[27:43] = (-(2**63)).to_bytes(8, "big", signed=True) + now_ms.to_bytes(8, "big")
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    produce = messages.ProduceRequest
    data = produce.PartitionProduceData(index=0, records=bytes(batch))
    topic = produce.TopicProduceData(name="times", partition_data=[data])
    answer = world.ask(ApiKey.PRODUCE, 9, produce(acks=1, timeout_ms=1000, topic_data=[topic]))
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    wanted = messages.ListOffsetsRequest
    partition = wanted.ListOffsetsPartition(partition_index=0, timestamp=now_ms)
    request = wanted(replica_id=-1, topics=[wanted.ListOffsetsTopic(name="times", partitions=[partition])])
    answer = world.ask(ApiKey.LIST_OFFSETS, 7, request)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("name", [".", "..", "a/b", "<default>"])
def test_a_group_may_have_any_name_where_settings_are_asked_and_set(world: World, name: str) -> None:
    alter, describe = messages.IncrementalAlterConfigsRequest, messages.DescribeConfigsRequest
    config = alter.AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value="50000")
    resource = alter.AlterConfigsResource(resource_type=32, resource_name=name, configs=[config])
    answer = world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, alter(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.NONE
    asked = describe.DescribeConfigsResource(resource_type=32, resource_name=name, configuration_keys=None)
    (result,) = world.ask(ApiKey.DESCRIBE_CONFIGS, 4, describe(resources=[asked])).results
    assert [row.value for row in result.configs if row.name == "consumer.session.timeout.ms"] == ["50000"]
