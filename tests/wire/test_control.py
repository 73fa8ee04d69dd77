"""What a controller says over the wire: the versions of Kafka 2.6 to 3.9, and the epochs that must fit."""

from typing import Any

import pytest
from barnabas.coordination import payloads
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    ApiVersionsRequest,
    LeaderAndIsrRequest,
    MetadataRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)

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
