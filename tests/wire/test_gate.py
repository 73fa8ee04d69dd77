"""Before the broker serves, and beyond max.connections, only requests of brokers are handled."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker import requests
from barnabas.broker.requests import TABLE, Api
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    ApiVersionsRequest,
    FetchRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaderAndIsrRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    StopReplicaRequest,
    SyncGroupRequest,
    SyncGroupResponse,
    UpdateMetadataRequest,
)
from barnabas.runtime.pending import Pending

Harness = Any  # of conftest.py
Handle = Callable[..., None]


def answer_sync(broker: Any, request: Any, context: Any) -> SyncGroupResponse:
    return SyncGroupResponse()


def answer_heartbeat(broker: Any, request: Any, context: Any) -> HeartbeatResponse:
    return HeartbeatResponse()


@pytest.fixture(autouse=True)
def two_apis(monkeypatch: pytest.MonkeyPatch) -> None:
    """SyncGroup plays a request of brokers, Heartbeat one of clients."""
    everybody = {"access": lambda asked: asked.handle()}
    of_brokers = Api(ApiKey.SYNC_GROUP, (0, 4), (0, 4), answer_sync, None, is_of_brokers=True, **everybody)
    monkeypatch.setitem(requests.TABLE, ApiKey.SYNC_GROUP, of_brokers)
    monkeypatch.setitem(requests.TABLE, ApiKey.HEARTBEAT, Api(ApiKey.HEARTBEAT, (0, 4), (0, 4), answer_heartbeat, None))


def broker_asks(wire: Any, number: int) -> None:
    wire.request(ApiKey.SYNC_GROUP, 4, SyncGroupRequest(), number)


def client_asks(wire: Any, number: int) -> None:
    wire.request(ApiKey.HEARTBEAT, 4, HeartbeatRequest(), number)


@pytest.mark.parametrize("read_size", [3, 1 << 20])
def test_before_the_broker_serves_requests_of_brokers_are_handled_up_to_the_first_other(
    harness: Harness, read_size: int
) -> None:
    harness.server.is_reading = harness.server.serving = False
    wire = harness.connect(read_size=read_size)
    broker_asks(wire, 1)
    harness.run()
    assert wire.correlation_ids() == []  # not registered yet
    harness.server.read()
    broker_asks(wire, 2)
    client_asks(wire, 3)
    broker_asks(wire, 4)
    client_asks(wire, 5)
    harness.run()
    assert wire.correlation_ids() == [1, 2]
    harness.server.serve()
    harness.run()
    assert wire.correlation_ids() == [1, 2, 3, 4, 5]
    client_asks(wire, 6)
    assert wire.correlation_ids()[-1] == 6


def test_versions_are_told_before_the_broker_serves(harness: Harness) -> None:
    harness.server.serving = False
    wire = harness.connect()
    wire.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), 1)
    client_asks(wire, 2)
    assert wire.correlation_ids() == [1]


def test_a_held_request_that_parks_is_answered_after_all(harness: Harness, handle: Handle) -> None:
    parked: list[Pending[HeartbeatResponse]] = []

    def park(broker: Any, request: Any, context: Any) -> Pending[HeartbeatResponse]:
        parked.append(Pending())
        return parked[-1]

    handle(ApiKey.HEARTBEAT, park)
    harness.server.serving = False
    wire = harness.connect()
    client_asks(wire, 1)
    broker_asks(wire, 2)
    assert parked == []
    harness.server.serve()
    harness.run()
    assert wire.correlation_ids() == []
    parked[0].complete(HeartbeatResponse())
    harness.run()
    assert wire.correlation_ids() == [1, 2]


def test_a_client_that_goes_while_it_is_held_is_handled_when_the_broker_serves(
    harness: Harness, handle: Handle
) -> None:
    seen: list[str] = []

    def note(broker: Any, request: Any, context: Any) -> HeartbeatResponse:
        seen.append(request.member_id)
        return HeartbeatResponse()

    handle(ApiKey.HEARTBEAT, note)
    harness.server.serving = False
    wire = harness.connect()
    wire.request(ApiKey.HEARTBEAT, 4, HeartbeatRequest(member_id="gone"))
    wire.lose()
    harness.run()
    assert seen == []
    assert len(harness.server.connections) == 1
    harness.server.serve()
    harness.run()
    assert seen == ["gone"]
    assert len(harness.server.connections) == 0


def test_a_broker_gets_a_place_beyond_max_connections(make_harness: type[Harness]) -> None:
    harness = make_harness({"max.connections": "1", "max.connections.per.ip": "1"})
    served = harness.connect()
    client_asks(served, 1)
    waiting = harness.connect("192.0.2.8")
    client_asks(waiting, 1)
    asking = harness.connect("192.0.2.9")
    asking.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), 1)
    broker = harness.connect()
    broker_asks(broker, 1)
    client_asks(broker, 2)
    assert [wire.correlation_ids() for wire in (served, waiting, asking, broker)] == [[1], [], [], [1, 2]]
    served.lose()  # one is open, as many as may
    assert waiting.correlation_ids() == []
    broker.lose()
    assert waiting.correlation_ids() == [1]
    harness.run()
    assert asking.correlation_ids() == []


@pytest.mark.parametrize("principal", ["User:broker", "User:mallory"])
def test_beyond_max_connections_it_is_not_enough_to_claim_to_be_a_broker(
    make_harness: type[Harness], principal: str
) -> None:
    harness = make_harness({"max.connections": "1"})

    def rights_of(principal: str, client_host: str) -> Any:
        return SimpleNamespace(may=lambda operation, type, name: principal == "User:broker")

    harness.server.gate.authorizer = SimpleNamespace(rights_of=rights_of)
    harness.connect()
    waiting = harness.connect("192.0.2.8")
    waiting.connection.principal = principal
    broker_asks(waiting, 1)
    is_let_in = principal == "User:broker"
    assert (waiting.correlation_ids() == [1], len(harness.server.connections)) == (is_let_in, 1 + is_let_in)


@pytest.mark.parametrize(("listener", "waits"), [("INSIDE", False), ("OUTSIDE", True)])
def test_a_listener_for_brokers_alone_is_not_limited(make_harness: type[Harness], listener: str, waits: bool) -> None:
    harness = make_harness(
        {
            "max.connections": "1",
            "listeners": "OUTSIDE://:9092,INSIDE://:9093",
            "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        }
    )
    harness.connect()
    wire = harness.connect(listener=listener)
    client_asks(wire, 1)
    assert wire.correlation_ids() == ([] if waits else [1])


REPLICA = FetchRequest.ReplicaState(replica_id=2)


@pytest.mark.parametrize(
    ("key", "request_", "is_of_broker"),
    [
        (ApiKey.FETCH, FetchRequest(), False),
        (ApiKey.FETCH, FetchRequest(replica_id=0), True),
        (ApiKey.FETCH, FetchRequest(replica_state=REPLICA), True),
        (ApiKey.LIST_OFFSETS, ListOffsetsRequest(replica_id=-1), False),
        (ApiKey.LIST_OFFSETS, ListOffsetsRequest(replica_id=0), True),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest(), False),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest(replica_id=0), True),
        (ApiKey.LEADER_AND_ISR, LeaderAndIsrRequest(), True),
        (ApiKey.UPDATE_METADATA, UpdateMetadataRequest(), True),
        (ApiKey.API_VERSIONS, ApiVersionsRequest(), False),
    ],
)
def test_which_requests_are_of_brokers(key: ApiKey, request_: Any, is_of_broker: bool) -> None:
    assert TABLE[key].is_of_broker(request_) is is_of_broker


def test_a_frame_of_a_connection_that_the_controller_has_given_up_is_not_handled(make_world: Any) -> None:
    """Since then the topic was deleted, and made again under its name: it must not be deleted once more."""
    world = make_world()
    world.create_topic("t")
    broker = world.broker
    former, newer = world.env.run(world.connect()), world.env.run(world.connect())
    epochs = {
        "controller_id": broker.node_id,
        "controller_epoch": broker.controller.controller_epoch,
        "broker_epoch": broker.replica_manager.broker_epoch,
    }
    State, Topic = StopReplicaRequest.StopReplicaPartitionState, StopReplicaRequest.StopReplicaTopicState
    state = State(partition_index=0, leader_epoch=-2, delete_partition=True)
    stop = StopReplicaRequest(**epochs, topic_states=[Topic(topic_name="t", partition_states=[state])])
    nothing = StopReplicaRequest(**epochs, topic_states=[])

    def send(connection: Any, request: StopReplicaRequest) -> None:
        connection.send(ApiKey.STOP_REPLICA, 4, request)
        world.env.clock.advance(10)

    send(former, nothing)
    send(newer, nothing)
    send(former, stop)
    assert broker.replica_manager.partition("t", 0).is_leader
    assert former.closed
    send(newer, stop)
    assert broker.replica_manager.partition("t", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.env.run(broker.stop())


def test_what_a_given_up_connection_has_told_is_not_done_after_a_wait(make_world: Any) -> None:
    """LeaderAndIsr for a new topic waits for the tree. Meanwhile the controller has told, and taken back, the same."""
    world = make_world()
    broker = world.broker
    former, newer = world.env.run(world.connect()), world.env.run(world.connect())
    epochs = {
        "controller_id": broker.node_id,
        "controller_epoch": broker.controller.controller_epoch,
        "broker_epoch": broker.replica_manager.broker_epoch,
    }
    released = asyncio.Event()
    read_topics = broker.config_changes.read_topics

    async def read_later(names: Any) -> None:
        await released.wait()
        await read_topics(names)

    def told(topic: str) -> LeaderAndIsrRequest:
        state = LeaderAndIsrRequest.LeaderAndIsrPartitionState(
            partition_index=0, leader=broker.node_id, isr=[broker.node_id], replicas=[broker.node_id], is_new=True
        )
        Topic = LeaderAndIsrRequest.LeaderAndIsrTopicState
        states = [Topic(topic_name=topic, topic_id=bytes([7] * 16), partition_states=[state])]
        return LeaderAndIsrRequest(**epochs, topic_states=states)

    broker.config_changes.read_topics = read_later
    former.send(ApiKey.LEADER_AND_ISR, 7, told("deleted"))
    world.env.clock.advance(10)
    newer.send(ApiKey.STOP_REPLICA, 4, StopReplicaRequest(**epochs, topic_states=[]))
    world.env.clock.advance(10)
    newer.send(ApiKey.LEADER_AND_ISR, 7, told("present"))
    released.set()
    world.env.clock.advance(100)
    assert ("present", 0) in broker.replica_manager.partitions
    assert ("deleted", 0) not in broker.replica_manager.partitions
    world.env.run(broker.stop())
