"""What a person finds in the log: who joined, left and got what, and what was refused, to which client, and why."""

import logging
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from barnabas.protocol import messages, record_batch, records
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record

GROUP = "billing"


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def own_world(make_world: Any) -> Iterator[Any]:
    """Its coordinator is loaded, and nothing was refused yet."""
    world = make_world(offsets_topic_num_partitions="1", group_min_session_timeout_ms="100", message_max_bytes="1000")
    world.create_topic("orders", 4)
    world.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=GROUP, key_type=0))
    world.env.clock.advance(1_000)
    yield world
    world.env.run(world.broker.stop())


def lines(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if about in record.getMessage()]


async def join(client: Any, member_id: str = "") -> messages.JoinGroupResponse:
    request = messages.JoinGroupRequest
    joined = await client.ask(
        ApiKey.JOIN_GROUP,
        8,
        request(
            group_id=GROUP,
            session_timeout_ms=500,
            rebalance_timeout_ms=700,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[request.JoinGroupRequestProtocol(name="range", metadata=b"")],
            reason="the first poll",
        ),
    )
    if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return await join(client, joined.member_id)
    assert isinstance(joined, messages.JoinGroupResponse)
    return joined


async def sync(client: Any, joined: messages.JoinGroupResponse, partitions: list[int]) -> None:
    assignment = records.ConsumerProtocolAssignment
    mine = assignment(assigned_partitions=[assignment.TopicPartition(topic="orders", partitions=partitions)])
    request = messages.SyncGroupRequest
    await client.ask(
        ApiKey.SYNC_GROUP,
        4,
        request(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                request.SyncGroupRequestAssignment(
                    member_id=joined.member_id, assignment=records.encode_versioned(mine, 1)
                )
            ],
        ),
    )


def test_the_life_of_a_member(own_world: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> str:
        client = await own_world.connect()
        joined = await join(client)
        await sync(client, joined, [3, 0, 1])
        leaver = messages.LeaveGroupRequest.MemberIdentity(member_id=joined.member_id, reason="closed")
        await client.ask(ApiKey.LEAVE_GROUP, 5, messages.LeaveGroupRequest(group_id=GROUP, members=[leaver]))
        return joined.member_id

    member_id = own_world.env.run(live())
    member = f"{member_id} (client 'test' at 127.0.0.1)"
    assert lines(caplog, "group billing") == [
        f"group billing: rebalance from generation 0: member {member} joined ('the first poll')",
        f"group billing: generation 1 with 1 member, led by {member_id}, protocol 'range'",
        f"group billing: stable in generation 1: {member} has orders: 0-1, 3",
        f"group billing: rebalance from generation 1: member {member} left ('closed')",
        "group billing: empty with generation 2",
    ]


def test_members_that_fall_silent(own_world: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> str:
        client = await own_world.connect()
        joined = await join(client)
        await sync(client, joined, [])
        await own_world.env.clock.sleep(600)
        return joined.member_id

    member_id = own_world.env.run(live())
    member = f"{member_id} (client 'test' at 127.0.0.1)"
    assert lines(caplog, "silent") == [
        f"group billing: rebalance from generation 1: member {member} was silent for 500 ms"
    ]
    assert "has nothing" in lines(caplog, "stable")[0]


def test_a_member_that_does_not_bring_what_it_got(own_world: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> None:
        client = await own_world.connect()
        joined = await join(client)
        beat = messages.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=joined.member_id)
        for _ in range(4):
            await own_world.env.clock.sleep(200)
            await client.ask(ApiKey.HEARTBEAT, 4, beat)

    own_world.env.run(live())
    (line,) = lines(caplog, "no sync")
    assert line.startswith("group billing: no sync within 700 ms from test-")
    assert line.endswith("(client 'test' at 127.0.0.1)")


def produce(topic: str, value: bytes, **batch: int) -> messages.ProduceRequest:
    data = record_batch.build([Record(0, 1, None, value, [])], **batch)
    request = messages.ProduceRequest
    rows = [request.PartitionProduceData(index=0, records=data)]
    return request(acks=-1, timeout_ms=1_000, topic_data=[request.TopicProduceData(name=topic, partition_data=rows)])


def commit(topic: str, **fields: object) -> messages.OffsetCommitRequest:
    request = messages.OffsetCommitRequest
    rows = [request.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    topics = [request.OffsetCommitRequestTopic(name=topic, partitions=rows)]
    return request(group_id=GROUP, topics=topics, **fields)


def test_refusals(own_world: Any, caplog: pytest.LogCaptureFixture) -> None:
    create = messages.CreateTopicsRequest
    spaced = create(
        topics=[create.CreatableTopic(name="a b", num_partitions=1, replication_factor=1)], timeout_ms=1_000
    )
    folded = messages.MetadataRequest(topics=[messages.MetadataRequest.MetadataRequestTopic(name="a\nb")])
    ask = own_world.ask
    for _ in range(2):  # the second time nothing new is said
        ask(ApiKey.PRODUCE, 9, produce("orders", b"x" * 2_000))
        ask(ApiKey.PRODUCE, 9, produce("absent", b"x"))
        ask(ApiKey.OFFSET_COMMIT, 8, commit("absent"))
        ask(ApiKey.OFFSET_COMMIT, 8, commit("orders", generation_id_or_member_epoch=7, member_id="me"))
        ask(ApiKey.CREATE_TOPICS, 7, spaced)
        ask(ApiKey.METADATA, 9, folded)
        ask(ApiKey.INIT_PRODUCER_ID, 4, messages.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=0))
        ask(ApiKey.JOIN_GROUP, 5, messages.JoinGroupRequest(group_id=GROUP, session_timeout_ms=99))
    refused = [record.getMessage() for record in caplog.records if record.name == "barnabas.broker.refusals"]
    client = "of client 'test' at 127.0.0.1"
    assert [line.split(": ", 1)[0] for line in refused] == [
        f"{api} {client}"
        for api in (
            *("Produce", "Produce", "OffsetCommit", "OffsetCommit"),
            *("CreateTopics", "Metadata", "InitProducerId", "JoinGroup"),
        )
    ]
    words = [line.split(": ", 1)[1] for line in refused]
    assert words[0].startswith("MESSAGE_TOO_LARGE: records for 'orders', partition 0: ")
    assert words[1].startswith("UNKNOWN_TOPIC_OR_PARTITION: records for 'absent', partition 0")
    assert words[2] == "UNKNOWN_TOPIC_OR_PARTITION: an offset of group 'billing' for 'absent', partition 0"
    assert words[3] == "ILLEGAL_GENERATION: offsets of group 'billing', member 'me', generation 7"
    assert words[4].startswith("INVALID_TOPIC_EXCEPTION: topic 'a b': Topic name is invalid: ")
    assert words[5] == r"INVALID_TOPIC_EXCEPTION: topic 'a\nb' is not there"
    assert words[6].startswith("INVALID_TRANSACTION_TIMEOUT: transactional.id 't': transaction.timeout.ms=0 is not ")
    assert words[7].startswith("INVALID_SESSION_TIMEOUT: group 'billing': session.timeout.ms=99 is not between ")


def test_a_topic_that_a_commit_names_by_its_id_is_named(own_world: Any, caplog: pytest.LogCaptureFixture) -> None:
    topic_id = own_world.broker.metadata_cache.topic_id("orders")
    request = messages.OffsetCommitRequest
    row = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m" * 5_000)
    topic = request.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[row])
    own_world.ask(ApiKey.OFFSET_COMMIT, 10, request(group_id=GROUP, topics=[topic]))
    (line,) = lines(caplog, "OFFSET_METADATA_TOO_LARGE")
    assert line.endswith("OFFSET_METADATA_TOO_LARGE: an offset of group 'billing' for 'orders', partition 0")


def test_an_api_that_is_not_offered(own_world: Any, caplog: pytest.LogCaptureFixture) -> None:
    frame = struct.pack(">hhih4sB", ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 4, b"test", 0) + b"\5body"
    old_fetch = struct.pack(">hhih4s", ApiKey.FETCH, 0, 1, 4, b"test")
    for request in (frame, frame, old_fetch):
        assert own_world.exchange(request) == [None]
    assert lines(caplog, "UNSUPPORTED_VERSION") == [
        "ShareGroupHeartbeat of client 'test' at 127.0.0.1: UNSUPPORTED_VERSION: version 1; its connection is "
        "closed: not built yet: share groups",
        "Fetch of client 'test' at 127.0.0.1: UNSUPPORTED_VERSION: version 0; its connection is closed: "
        "versions 4 to 18 are served",
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_a_client_that_wants_the_consumer_protocol_while_it_is_off(
    own_world: Any, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    own_world.broker.features.group_version = 0
    request = messages.ConsumerGroupHeartbeatRequest(group_id=GROUP, subscribed_topic_names=["t"])
    for _ in range(3):  # it tries again and again
        answer = own_world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert answer.error_message.startswith("set group.protocol=classic ")
    assert lines(caplog, "UNSUPPORTED_VERSION") == [
        "ConsumerGroupHeartbeat of client 'test' at 127.0.0.1: UNSUPPORTED_VERSION: cannot join group 'billing' "
        "with group.protocol=consumer: set group.protocol=classic in this client, or let an operator turn the "
        "consumer protocol on: barnabas features upgrade --feature group.version=1",
    ]
