"""What a controller says over the wire: the versions of Kafka 2.6 to 3.9, and the epochs that must fit."""

from collections.abc import Iterator
from typing import Any

import pytest
from barnabas.broker import connection
from barnabas.broker.api import from_controller
from barnabas.cluster.tree import payloads
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    ApiVersionsRequest,
    LeaderAndIsrRequest,
    MetadataRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from barnabas.replication.partition import Partition
from barnabas.replication.replica_manager import ReplicaManager
from simulator import clock

World = Any  # of conftest.py
LATER_CONTROLLER_EPOCH = 1000


def epoch(world: World) -> int:
    broker_epoch: int = world.broker.replica_manager.broker_epoch
    return broker_epoch


def leader_and_isr(world: World, topic: str, topic_id: bytes, **changes: int) -> LeaderAndIsrRequest:
    state = LeaderAndIsrRequest.LeaderAndIsrPartitionState(
        partition_index=0, leader=0, leader_epoch=7, isr=[0], replicas=[0], is_new=True
    )
    values = {"controller_epoch": LATER_CONTROLLER_EPOCH, "broker_epoch": epoch(world)} | changes
    return LeaderAndIsrRequest(
        topic_states=[
            LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=[state])
        ],
        **values,
    )


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_a_partition_is_led_and_let_go(make_world: Any, version: int) -> None:
    world = make_world()
    topic_id = bytes(15) + bytes([9])
    request = leader_and_isr(world, "told", topic_id if version >= 5 else bytes(16))
    answer = world.ask(ApiKey.LEADER_AND_ISR, version, request)
    assert answer.error_code == ErrorCode.NONE
    if version == 4:
        assert [(p.topic_name, p.error_code) for p in answer.partition_errors] == [("told", 0)]
    else:
        assert [(t.topic_id, t.partition_errors[0].error_code) for t in answer.topics] == [(topic_id, 0)]
    assert world.broker.replica_manager.partitions["told", 0].is_leader

    stop = StopReplicaRequest(
        controller_epoch=LATER_CONTROLLER_EPOCH,
        broker_epoch=epoch(world),
        topic_states=[
            StopReplicaRequest.StopReplicaTopicState(
                topic_name="told",
                partition_states=[
                    StopReplicaRequest.StopReplicaPartitionState(
                        partition_index=0, leader_epoch=7, delete_partition=True
                    )
                ],
            )
        ],
    )
    answer = world.ask(ApiKey.STOP_REPLICA, 3 if version == 4 else 4, stop)
    assert [(p.topic_name, p.error_code) for p in answer.partition_errors] == [("told", 0)]
    assert ("told", 0) not in world.broker.replica_manager.partitions
    world.env.run(world.broker.stop())


@pytest.mark.parametrize("version", [6, 7, 8])
def test_metadata_is_taken_over(make_world: Any, version: int) -> None:
    world = make_world()
    topic_id = bytes(15) + bytes([9]) if version >= 7 else bytes(16)
    request = UpdateMetadataRequest(
        controller_id=5,
        controller_epoch=LATER_CONTROLLER_EPOCH,
        broker_epoch=epoch(world),
        topic_states=[
            UpdateMetadataRequest.UpdateMetadataTopicState(
                topic_name="elsewhere",
                topic_id=topic_id,
                partition_states=[
                    UpdateMetadataRequest.UpdateMetadataPartitionState(
                        partition_index=0, leader=5, leader_epoch=3, isr=[5], replicas=[5]
                    )
                ],
            )
        ],
        live_brokers=[
            UpdateMetadataRequest.UpdateMetadataBroker(
                id=5,
                rack="r",
                endpoints=[UpdateMetadataRequest.UpdateMetadataEndpoint(host="b5", port=9095, listener="PLAINTEXT")],
            )
        ],
    )
    assert world.ask(ApiKey.UPDATE_METADATA, version, request).error_code == ErrorCode.NONE
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="elsewhere")])
    told = world.ask(ApiKey.METADATA, 12, asked)
    assert (told.controller_id, [(b.node_id, b.host, b.port, b.rack) for b in told.brokers]) == (
        5,
        [(5, "b5", 9095, "r")],
    )
    assert (told.topics[0].topic_id, told.topics[0].partitions[0].leader_id) == (topic_id, 5)
    world.env.run(world.broker.stop())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"broker_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH),
        ({"controller_epoch": 0}, ErrorCode.STALE_CONTROLLER_EPOCH),
    ],
)
@pytest.mark.parametrize(
    ("key", "version", "request_class"),
    [
        (ApiKey.LEADER_AND_ISR, 7, LeaderAndIsrRequest),
        (ApiKey.STOP_REPLICA, 4, StopReplicaRequest),
        (ApiKey.UPDATE_METADATA, 8, UpdateMetadataRequest),
    ],
)
def test_what_was_said_to_a_former_life_or_by_a_former_controller_is_refused(
    world: World, key: ApiKey, version: int, request_class: Any, changes: dict[str, int], error: ErrorCode
) -> None:
    values = {"controller_epoch": LATER_CONTROLLER_EPOCH, "broker_epoch": epoch(world)} | changes
    assert world.ask(key, version, request_class(**values)).error_code == error


def test_what_only_a_controller_sends_is_not_announced(world: World) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = world.ask(ApiKey.API_VERSIONS, 4, request)
    assert {4, 5, 6, 7}.isdisjoint(entry.api_key for entry in answer.api_keys)


def test_a_new_topic_has_the_settings_that_it_was_made_with(make_world: Any) -> None:
    world = make_world()
    data = payloads.encode_config({"message.timestamp.type": "LogAppendTime"})
    world.env.run(world.broker.coordination.create("/config/topics/told", data))  # the notice comes later
    answer = world.ask(ApiKey.LEADER_AND_ISR, 7, leader_and_isr(world, "told", bytes(15) + bytes([9])))
    assert answer.topics[0].partition_errors[0].error_code == ErrorCode.NONE
    partition = world.broker.replica_manager.partitions["told", 0]
    assert partition.log.config.message_timestamp_type == "LogAppendTime"
    world.env.run(world.broker.stop())


# --- very many partitions in one request ---

MANY = 3 * from_controller.ROLES_PER_PART + 7


def roles(world: World, leader: int, leader_epoch: int, count: int = MANY, **changes: int) -> LeaderAndIsrRequest:
    """Roles in two topics, for `count` partitions each."""
    states = [
        LeaderAndIsrRequest.LeaderAndIsrPartitionState(
            partition_index=index,
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=leader_epoch,
            isr=[leader],
            replicas=[0, 1],
        )
        for index in range(count)
    ]
    topics = [
        LeaderAndIsrRequest.LeaderAndIsrTopicState(
            topic_name=name, topic_id=name.encode() * 16, partition_states=list(states)
        )
        for name in "xy"
    ]
    values = {"controller_epoch": LATER_CONTROLLER_EPOCH, "broker_epoch": epoch(world)} | changes
    return LeaderAndIsrRequest(topic_states=topics, **values)


@pytest.fixture
def told_much(make_world: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A broker for which few bytes are a long request, and a millisecond is a short while."""
    world = make_world()
    monkeypatch.setattr(connection, "DECODED_AT_ONCE_BYTES_MAX", 400)
    monkeypatch.setattr(clock, "WORK_STEP_MS", 1.0)
    yield world
    world.env.run(world.broker.stop())
    assert world.broker.request_gate.handler_failures == 0


def errors_of(answer: Any) -> list[list[int]]:
    return [[row.error_code for row in topic.partition_errors] for topic in answer.topics]


def most_in_a_pass(world: World, monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
    """Count the calls of a method of the replica manager in each pass of the loop."""
    calls = [0]
    original = getattr(ReplicaManager, method)

    def counted(self: Any, *args: Any) -> Any:
        calls[-1] += 1
        return original(self, *args)

    monkeypatch.setattr(ReplicaManager, method, counted)
    world.env.clock.loop.after_pass = lambda: calls.append(0)
    return calls


def test_very_many_roles_change_in_parts(told_much: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = told_much.broker.replica_manager
    calls = most_in_a_pass(told_much, monkeypatch, "_lead_or_follow")
    answer = told_much.ask(ApiKey.LEADER_AND_ISR, 7, roles(told_much, leader=0, leader_epoch=1))
    assert errors_of(answer) == [[0] * MANY] * 2
    assert max(calls) <= from_controller.FOLDERS_PER_PART
    calls.clear()
    calls.append(0)
    answer = told_much.ask(ApiKey.LEADER_AND_ISR, 4, roles(told_much, leader=1, leader_epoch=2))
    assert [(row.topic_name, row.error_code) for row in answer.partition_errors] == [("x", 0)] * MANY + [
        ("y", 0)
    ] * MANY
    assert from_controller.FOLDERS_PER_PART < max(calls) <= from_controller.ROLES_PER_PART
    assert not any(manager.partitions[name, index].is_leader for name in "xy" for index in range(MANY))

    calls = most_in_a_pass(told_much, monkeypatch, "_stop_one")
    stop = StopReplicaRequest(
        controller_epoch=LATER_CONTROLLER_EPOCH,
        broker_epoch=epoch(told_much),
        topic_states=[
            StopReplicaRequest.StopReplicaTopicState(
                topic_name=name,
                partition_states=[
                    StopReplicaRequest.StopReplicaPartitionState(
                        partition_index=index, leader_epoch=2, delete_partition=True
                    )
                    for index in range(MANY)
                ],
            )
            for name in "xy"
        ],
    )
    answer = told_much.ask(ApiKey.STOP_REPLICA, 4, stop)
    assert {row.error_code for row in answer.partition_errors} == {0}
    assert len(answer.partition_errors) == 2 * MANY
    assert max(calls) <= from_controller.FOLDERS_PER_PART
    assert ("x", 0) not in manager.partitions


def test_what_the_controller_says_next_is_done_next(told_much: World) -> None:
    async def run() -> list[Any]:
        client = await told_much.connect()
        for leader, leader_epoch in ((0, 1), (1, 2), (0, 3)):
            client.send(ApiKey.LEADER_AND_ISR, 7, roles(told_much, leader, leader_epoch))
        answers = [frames.decode_response(ApiKey.LEADER_AND_ISR, 7, await client.answer())[1] for _ in range(3)]
        client.transport.close()
        return answers

    assert [errors_of(answer) for answer in told_much.env.run(run())] == [[[0] * MANY] * 2] * 3
    partitions = told_much.broker.replica_manager.partitions
    assert {
        (partitions[name, i].is_leader, partitions[name, i].leader_epoch) for name in "xy" for i in range(MANY)
    } == {(True, 3)}


@pytest.mark.parametrize("controller_epoch", [LATER_CONTROLLER_EPOCH, LATER_CONTROLLER_EPOCH + 1])
def test_a_new_connection_of_the_controller_or_a_new_controller_ends_the_former_request(
    told_much: World, controller_epoch: int
) -> None:
    partitions = told_much.broker.replica_manager.partitions

    async def run() -> Any:
        former, newer = await told_much.connect(), await told_much.connect()
        former.send(ApiKey.LEADER_AND_ISR, 7, roles(told_much, leader=0, leader_epoch=1))
        while ("x", 20) not in partitions:
            await told_much.env.clock.sleep(0)
        update = UpdateMetadataRequest(controller_epoch=controller_epoch, broker_epoch=epoch(told_much))
        assert (await newer.ask(ApiKey.UPDATE_METADATA, 8, update)).error_code == 0
        answer = frames.decode_response(ApiKey.LEADER_AND_ISR, 7, await former.answer())[1]
        for client in (former, newer):
            client.transport.close()
        return answer

    assert told_much.env.run(run()).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert ("x", 20) in partitions
    assert ("y", MANY - 1) not in partitions


@pytest.mark.parametrize("is_long", [False, True])
def test_a_bug_in_one_role_leaves_the_others(told_much: World, monkeypatch: pytest.MonkeyPatch, is_long: bool) -> None:
    if not is_long:
        monkeypatch.setattr(connection, "DECODED_AT_ONCE_BYTES_MAX", 1 << 20)
    manager = told_much.broker.replica_manager
    followed: list[tuple[str, int]] = []
    monkeypatch.setattr(manager.fetchers, "follow", lambda them: followed.extend((p.topic, p.index) for p in them))
    make_follower = Partition.make_follower

    def fails_for_one(self: Partition, **said: Any) -> bool:
        if (self.topic, self.index) == ("x", 1):
            raise ValueError("a bug")
        return make_follower(self, **said)

    monkeypatch.setattr(Partition, "make_follower", fails_for_one)
    answer = told_much.ask(ApiKey.LEADER_AND_ISR, 7, roles(told_much, leader=1, leader_epoch=1, count=20))
    wrong = int(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert errors_of(answer) == [[0, wrong, *[0] * 18], [0] * 20]
    assert followed == [(name, index) for name in "xy" for index in range(20) if (name, index) != ("x", 1)]
    assert manager.role_failures == 1
