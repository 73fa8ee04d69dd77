"""A coordinator's log says a number that is the last of its kind: what would raise it fails, and nothing beside it.

Only damage, or a client that calls itself `__admin_client`, brings such a record into a log.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.groups.consumer.records import ConsumerRecords, GroupEpoch, Kind, TargetEpoch
from barnabas.coordinators.groups.consumer.records import Record as Part
from barnabas.coordinators.groups.records import GroupRecord
from barnabas.coordinators.transactions.metadata import Transaction
from barnabas.coordinators.transactions.records import TransactionRecord
from barnabas.protocol import frames, messages
from barnabas.protocol import records as stored
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import PlainRecords, build_plain

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import Lasting, init, sleep

World = Any  # of conftest.py
LAST_EPOCH = 2**31 - 1
DAMAGED = "damaged"
NEIGHBOURS = [f"g{number}" for number in range(50) if partition_for(f"g{number}", 3) == partition_for(DAMAGED, 3)]
UNKNOWN = int(ErrorCode.UNKNOWN_SERVER_ERROR)


def write_records(world: World, topic: str, index: int, *records: Any) -> None:
    """Write records into the log of a coordinator, as no coordinator would."""
    found = PlainRecords()
    for record in records:
        record.append_to(found)
    make = messages.ProduceRequest
    row = make.PartitionProduceData(index=index, records=build_plain(found, world.env.clock.now_ms()).data)
    request = make(acks=-1, timeout_ms=5_000, topic_data=[make.TopicProduceData(name=topic, partition_data=[row])])
    (answer,) = world.exchange(frames.encode_request(ApiKey.PRODUCE, 9, 1, "__admin_client", request)[4:])
    response = frames.decode_response(ApiKey.PRODUCE, 9, memoryview(answer))[1]
    assert response.responses[0].partition_responses[0].error_code == 0


@pytest.fixture
def lasting(make_world: type[World]) -> Any:
    lasting = Lasting(make_world)
    world = lasting.world
    world.ask(ApiKey.FIND_COORDINATOR, 2, messages.FindCoordinatorRequest(key=DAMAGED))
    sleep(world, 100)
    yield lasting
    lasting.world.end()


def beat(group: str, member_id: str = "m", epoch: int = 0) -> messages.ConsumerGroupHeartbeatRequest:
    request = messages.ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch)
    if epoch == 0:
        request.rebalance_timeout_ms = 10_000
        request.subscribed_topic_names, request.topic_partitions = ["t"], []
    return request


def commit(group: str, offset: int) -> messages.OffsetCommitRequest:
    make = messages.OffsetCommitRequest
    row = make.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return make(group_id=group, topics=[make.OffsetCommitRequestTopic(name="t", partitions=[row])])


def all_at_once(world: World, *asked: tuple[ApiKey, int, Any]) -> list[Any]:
    """The answers to requests that arrive in one pass of the loop."""
    clients = [world.env.run(world.connect()) for _ in asked]

    async def run() -> list[Any]:
        for client, each in zip(clients, asked, strict=True):
            client.send(*each)
        answers = []
        for client, (api, version, _) in zip(clients, asked, strict=True):
            data = await client.answer()
            assert data is not None, "the connection was closed"
            answers.append(frames.decode_response(api, version, memoryview(data))[1])
        return answers

    return world.env.run(run())  # type: ignore[no-any-return]


def described(world: World, group: str) -> tuple[str, int, list[str]]:
    """State, epoch and members."""
    request = messages.ConsumerGroupDescribeRequest(group_ids=[group])
    (found,) = world.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request).groups
    assert found.error_code == 0, found
    return found.group_state, found.group_epoch, sorted(member.member_id for member in found.members)


@pytest.mark.parametrize("neighbours", [3, 150], ids=["few at once", "a task of turns"])
def test_a_consumer_group_in_its_last_epoch(lasting: Any, neighbours: int, caplog: pytest.LogCaptureFixture) -> None:
    world = lasting.world
    records = ConsumerRecords(
        DAMAGED,
        [
            Part(Kind.GROUP, "", GroupEpoch(LAST_EPOCH, 0)),
            Part(Kind.TARGET_EPOCH, "", TargetEpoch(LAST_EPOCH)),
        ],
    )
    write_records(world, OFFSETS_TOPIC, partition_for(DAMAGED, 3), records)
    world = lasting.restart()
    before = described(world, DAMAGED)
    assert before == ("Empty", LAST_EPOCH, [])
    groups = [NEIGHBOURS[number % len(NEIGHBOURS)] for number in range(neighbours)]
    half = neighbours // 2
    asked = [(ApiKey.OFFSET_COMMIT, 8, commit(group, number)) for number, group in enumerate(groups)]
    joins = (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat(DAMAGED))
    with caplog.at_level(logging.WARNING, "barnabas"):
        answers = all_at_once(world, *asked[:half], joins, *asked[half:])
    refused = answers.pop(half)
    assert {row.error_code for answer in answers for topic in answer.topics for row in topic.partitions} == {0}
    assert refused.error_code == UNKNOWN
    told = [record.getMessage() for record in caplog.records]
    assert any(f"{DAMAGED}: its records cannot be written" in line for line in told), told
    assert described(world, DAMAGED) == before
    (again,) = all_at_once(world, (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat(DAMAGED, "other")))
    assert again.error_code == UNKNOWN
    (joined,) = all_at_once(world, (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat(NEIGHBOURS[0] + "-of-members")))
    assert joined.error_code == 0
    world = lasting.restart()
    assert described(world, DAMAGED) == before
    removed = world.ask(ApiKey.DELETE_GROUPS, 2, messages.DeleteGroupsRequest(groups_names=[DAMAGED]))
    assert removed.results[0].error_code == 0, "it holds no write"
    (joined,) = all_at_once(world, (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat(DAMAGED)))
    assert (joined.error_code, described(world, DAMAGED)[0]) == (0, "Stable")


@pytest.mark.parametrize("end", ["they leave", "they are silent"])
def test_members_of_the_last_epoch_can_go(lasting: Any, end: str) -> None:
    world = lasting.world
    record = ConsumerRecords(DAMAGED, [Part(Kind.GROUP, "", GroupEpoch(LAST_EPOCH - 2, 0))])
    write_records(world, OFFSETS_TOPIC, partition_for(DAMAGED, 3), record)
    world = lasting.restart()

    def told(member_id: str, epoch: int) -> tuple[int, int]:
        answer = world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat(DAMAGED, member_id, epoch))
        return answer.error_code, answer.member_epoch

    assert told("a", 0) == (0, LAST_EPOCH - 1)
    sleep(world, 1_000)  # group.consumer.assignment.interval.ms
    assert told("b", 0) == (0, LAST_EPOCH)
    assert told("a", LAST_EPOCH - 1)[0] == 0
    before = described(world, DAMAGED)
    assert before[1:] == (LAST_EPOCH, ["a", "b"])
    assert told("c", 0) == (UNKNOWN, 0)
    assert described(world, DAMAGED) == before
    assert told("b", LAST_EPOCH)[0] == 0, "who is there goes on"
    if end == "they leave":
        assert told("a", -1) == told("b", -1) == (0, -1)
    else:
        sleep(world, 46_000)
    assert described(world, DAMAGED) == ("Empty", LAST_EPOCH, [])
    world = lasting.restart()
    assert described(world, DAMAGED) == ("Empty", LAST_EPOCH, [])
    removed = world.ask(ApiKey.DELETE_GROUPS, 2, messages.DeleteGroupsRequest(groups_names=[DAMAGED]))
    assert removed.results[0].error_code == 0
    assert told("c", 0)[0] == 0


def join(world: World, member_id: str = "") -> Any:
    make = messages.JoinGroupRequest
    said = stored.encode_versioned(stored.ConsumerProtocolSubscription(topics=["t"]), 1)
    request = make(
        group_id=DAMAGED,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[make.JoinGroupRequestProtocol(name="range", metadata=said)],
    )
    return world.ask(ApiKey.JOIN_GROUP, 9, request)


def test_a_classic_group_in_its_last_generation(lasting: Any) -> None:
    """After the last generation comes the first."""
    world = lasting.world
    value = stored.GroupMetadataValue(protocol_type="consumer", generation=LAST_EPOCH, current_state_timestamp=1)
    write_records(world, OFFSETS_TOPIC, partition_for(DAMAGED, 3), GroupRecord(DAMAGED, value))
    world = lasting.restart()
    member_id = join(world).member_id
    joined = join(world, member_id)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    row = messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")
    request = messages.SyncGroupRequest(
        group_id=DAMAGED, generation_id=1, member_id=member_id, protocol_name="range", assignments=[row]
    )
    synced = world.ask(ApiKey.SYNC_GROUP, 4, request)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    world = lasting.restart()
    alive = messages.HeartbeatRequest(group_id=DAMAGED, generation_id=1, member_id=member_id)
    assert world.ask(ApiKey.HEARTBEAT, 4, alive).error_code == 0


def test_a_producer_in_its_last_epoch(lasting: Any, caplog: pytest.LogCaptureFixture) -> None:
    world = lasting.world
    assert init(world, "near")[0] == 0
    now_ms = world.env.clock.now_ms()
    damaged = next(f"d{number}" for number in range(50) if partition_for(f"d{number}", 2) == partition_for("near", 2))
    record = TransactionRecord(damaged, Transaction(damaged, 5, 60_000, now_ms, 2**15 - 1), 1)
    write_records(world, TRANSACTIONS_TOPIC, partition_for(damaged, 2), record)
    world = lasting.restart()
    given = [init(world, each) for each in (damaged, "near", damaged, "near")]
    assert given[1][0] == given[3][0] == 0
    assert given[3][2] == given[1][2] + 1
