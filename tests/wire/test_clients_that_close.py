"""Clients that close right after their requests: every whole request that has arrived is handled, in order."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record

World = Any  # of conftest.py
Client = Any
ENDS: dict[str, Callable[[Client], None]] = {
    "closes": lambda client: client.transport.close(),
    "half-closes": lambda client: client.transport.write_eof(),
    "resets": lambda client: client.transport.abort(),
}
COUNT = 60


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World]) -> Iterator[World]:
    world = make_world(connections_max_idle_ms="-1")
    yield world
    world.env.run(world.env.clock.sleep(60_000))
    assert len(world.broker.server.connections) == 0, "clients that are gone are counted for ever"
    assert len(world.broker.request_gate.tasks) == 0
    world.end()


def send_and_end(world: World, end: str, *requests: tuple[ApiKey, int, Any], wait_ms: float = 60_000) -> None:
    """Have a client send and end, as soon as the requests have arrived; then wait."""

    async def run() -> None:
        client = await world.connect()
        for key, version, message in requests:
            client.send(key, version, message)
        await world.env.clock.sleep(0)  # they travel, and what is sent cannot be called back
        await world.env.clock.sleep(0)
        ENDS[end](client)
        await world.env.clock.sleep(wait_ms)
        client.transport.abort()

    world.env.run(run())


def topics(world: World, prefix: str) -> list[Any]:
    found = world.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None)).topics
    return [topic for topic in found if topic.name.startswith(prefix)]


def create(prefix: str, count: int = COUNT) -> tuple[ApiKey, int, Any]:
    request = messages.CreateTopicsRequest
    wanted = [
        request.CreatableTopic(name=f"{prefix}-{n}", num_partitions=1, replication_factor=1) for n in range(count)
    ]
    return ApiKey.CREATE_TOPICS, 5, request(topics=wanted, timeout_ms=10_000)


def produce(topic: str, value: bytes = b"v", acks: int = 0, partitions: int = 1) -> tuple[ApiKey, int, Any]:
    records = record_batch.build([Record(offset=0, timestamp=1, key=None, value=value, headers=[])])
    request = messages.ProduceRequest
    data = [request.PartitionProduceData(index=index, records=bytes(records)) for index in range(partitions)]
    return (
        ApiKey.PRODUCE,
        9,
        request(acks=acks, timeout_ms=5_000, topic_data=[request.TopicProduceData(name=topic, partition_data=data)]),
    )


def long_poll(topic: str, max_wait_ms: int = 5_000) -> tuple[ApiKey, int, Any]:
    request = messages.FetchRequest
    partition = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = [request.FetchTopic(topic=topic, partitions=[partition])]
    return ApiKey.FETCH, 12, request(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=asked)


def log_end(world: World, topic: str, partition: int = 0) -> int:
    end: int = world.broker.replica_manager.partitions[topic, partition].log_end_offset
    return end


def join(group: str, member: str) -> tuple[ApiKey, int, Any]:
    request = messages.JoinGroupRequest
    protocols = [request.JoinGroupRequestProtocol(name="range", metadata=b"")]
    return (
        ApiKey.JOIN_GROUP,
        5,
        request(
            group_id=group,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
            member_id=member,
            protocol_type="consumer",
            protocols=protocols,
        ),
    )


def leave(group: str, member: str) -> tuple[ApiKey, int, Any]:
    identity = messages.LeaveGroupRequest.MemberIdentity(member_id=member)
    return ApiKey.LEAVE_GROUP, 3, messages.LeaveGroupRequest(group_id=group, members=[identity])


def commit(group: str, topic: str, count: int = COUNT) -> tuple[ApiKey, int, Any]:
    request = messages.OffsetCommitRequest
    partitions = [
        request.OffsetCommitRequestPartition(partition_index=index, committed_offset=7) for index in range(count)
    ]
    asked = [request.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return ApiKey.OFFSET_COMMIT, 8, request(group_id=group, generation_id_or_member_epoch=-1, topics=asked)


def committed(world: World, group: str) -> int:
    """How many partitions the group has an offset of."""
    request = messages.OffsetFetchRequest(group_id=group, topics=None)
    return sum(len(topic.partitions) for topic in world.ask(ApiKey.OFFSET_FETCH, 7, request).topics)


def members(world: World, group: str) -> list[str]:
    described = world.ask(ApiKey.DESCRIBE_GROUPS, 5, messages.DescribeGroupsRequest(groups=[group])).groups[0]
    return [member.member_id for member in described.members]


def coordinated(world: World, group: str) -> None:
    """Wait until the group has a coordinator."""
    while world.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=group)).error_code:
        world.env.clock.advance(100)


# ---------------------------------------------------------------------- requests behind others


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("value_bytes", [1, 2_000], ids=["few bytes", "more than is read ahead"])
@pytest.mark.parametrize("front", ["nothing", "a long poll"])
def test_acks_0_are_all_appended(world: World, end: str, value_bytes: int, front: str) -> None:
    name = f"unacknowledged-{end}-{value_bytes}-{len(front)}"
    world.create_topic(name)
    world.create_topic(f"{name}-polled")
    polls = [long_poll(f"{name}-polled")] if front != "nothing" else []
    send_and_end(world, end, *polls, *[produce(name, bytes(value_bytes))] * 500)
    assert log_end(world, name) == 500


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("acks", [1, -1])
def test_acknowledged_ones_too_though_nobody_takes_the_answers(world: World, end: str, acks: int) -> None:
    name = f"acknowledged-{end}-{acks}"
    world.create_topic(name)
    send_and_end(world, end, *[produce(name, acks=acks)] * 300)
    assert log_end(world, name) == 300


@pytest.mark.parametrize("end", ENDS)
def test_half_a_request_is_none(world: World, end: str) -> None:
    name = f"half-{end}"
    world.create_topic(name)
    key, version, message = produce(name, bytes(5_000))
    frame = frames.encode_request(key, version, 1, "test", message)

    async def run(size: int) -> None:
        client = await world.connect()
        client.transport.write(frame + frame[:size])
        await world.env.clock.sleep(1)
        ENDS[end](client)
        await world.env.clock.sleep(100)
        assert client.closed or end == "resets"

    for number, size in enumerate((1, 4, 100, len(frame) - 1), 1):
        world.env.run(run(size))
        assert log_end(world, name) == number


def test_one_who_half_closes_gets_all_answers(world: World) -> None:
    world.create_topic("polled")

    async def run() -> tuple[list[bytes | None], float]:
        client = await world.connect()
        client.send(*long_poll("polled", 1_500))
        client.send(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[]))
        client.transport.write_eof()
        begun = world.env.clock.monotonic_ms()
        answers = [await client.answer() for _ in range(3)]
        return answers, world.env.clock.monotonic_ms() - begun

    answers, waited_ms = world.env.run(run())
    assert [answer is not None for answer in answers] == [True, True, False]  # and then the broker closes
    assert 1_500 <= waited_ms < 1_600


def test_a_long_poll_that_nobody_can_get_ends_at_once(world: World) -> None:
    world.create_topic("left")
    fetching = world.broker.replica_manager.fetching

    async def run() -> None:
        client = await world.connect()
        client.send(*long_poll("left", 30_000))
        client.send(*long_poll("left", 30_000))  # is looked at when the client is gone
        await world.env.clock.sleep(1)
        assert fetching.parked_count == 1
        client.transport.abort()
        await world.env.clock.sleep(1)
        assert fetching.parked_count == 0
        assert len(world.broker.server.connections) == 0

    world.env.run(run())


@pytest.mark.parametrize("end", ["closes", "half-closes"])
def test_a_long_poll_that_perhaps_nobody_waits_for_ends_when_its_connection_is_idle(
    make_world: type[World], end: str
) -> None:
    world = make_world(connections_max_idle_ms="60000")
    world.create_topic("patient")
    world.create_topic("behind")

    async def run() -> None:
        client, stays = await world.connect(), await world.connect()
        client.send(*long_poll("patient", 10_000_000))
        client.send(*produce("behind"))
        stays.send(*long_poll("patient", 10_000_000))
        await world.env.clock.sleep(1)
        ENDS[end](client)
        await world.env.clock.sleep(50_000)
        assert world.broker.replica_manager.fetching.parked_count == 2
        await world.env.clock.sleep(20_000)
        assert world.broker.replica_manager.fetching.parked_count == 1
        assert log_end(world, "behind") == 1
        assert len(world.broker.server.connections) == 1
        stays.transport.close()

    world.env.run(run())
    world.env.run(world.broker.stop())


@pytest.mark.parametrize("end", ENDS)
def test_a_member_that_leaves_behind_its_parked_join_is_no_ghost(world: World, end: str) -> None:
    group = f"rebalancing-{end}"
    coordinated(world, group)
    seen = []

    async def run() -> None:
        first, second = await world.connect(), await world.connect()
        ids = [(await client.ask(*join(group, ""))).member_id for client in (first, second)]
        await first.ask(*join(group, ids[0]))
        sync = messages.SyncGroupRequest(group_id=group, generation_id=1, member_id=ids[0])
        await first.ask(ApiKey.SYNC_GROUP, 3, sync)
        second.send(*join(group, ids[1]))
        second.send(*leave(group, ids[1]))
        await world.env.clock.sleep(1)
        ENDS[end](second)
        await world.env.clock.sleep(1)
        joined = await first.ask(*join(group, ids[0]))
        seen.append(joined.error_code)
        await world.env.clock.sleep(1)
        seen.append(ids[0])
        first.transport.close()
        second.transport.abort()

    world.env.run(run())
    assert seen[0] == 0
    assert members(world, group) == seen[1:]


# ---------------------------------------------------------------------- what takes a while


@pytest.mark.parametrize("end", ENDS)
def test_topics_are_created_grown_and_deleted(world: World, end: str) -> None:
    prefix = f"many-{end}"
    send_and_end(world, end, create(prefix))
    assert len(topics(world, prefix)) == COUNT
    request = messages.CreatePartitionsRequest
    grown = [request.CreatePartitionsTopic(name=f"{prefix}-{n}", count=3, assignments=None) for n in range(COUNT)]
    send_and_end(world, end, (ApiKey.CREATE_PARTITIONS, 2, request(topics=grown, timeout_ms=10_000)))
    assert [len(topic.partitions) for topic in topics(world, prefix)] == [3] * COUNT
    names = [f"{prefix}-{n}" for n in range(COUNT)]
    delete = messages.DeleteTopicsRequest(topic_names=names, timeout_ms=10_000)
    send_and_end(world, end, (ApiKey.DELETE_TOPICS, 5, delete))
    assert topics(world, prefix) == []


@pytest.mark.parametrize("end", ENDS)
def test_one_work_comes_after_the_other(world: World, end: str) -> None:
    prefix = f"ordered-{end}"
    delete = messages.DeleteTopicsRequest(topic_names=[f"{prefix}-{n}" for n in range(COUNT)], timeout_ms=10_000)
    send_and_end(world, end, create(prefix), (ApiKey.DELETE_TOPICS, 5, delete), create(f"{prefix}-again"))
    assert len(topics(world, prefix)) == COUNT


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("key", [ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS])
def test_settings_are_altered(world: World, end: str, key: ApiKey) -> None:
    prefix = f"settings-{end}-{key}"
    send_and_end(world, "half-closes", create(prefix))
    request = messages.AlterConfigsRequest if key == ApiKey.ALTER_CONFIGS else messages.IncrementalAlterConfigsRequest
    config = request.AlterableConfig(name="retention.ms", value="12345")
    resources = [
        request.AlterConfigsResource(resource_type=2, resource_name=f"{prefix}-{n}", configs=[config])
        for n in range(COUNT)
    ]
    send_and_end(world, end, (key, 1, request(resources=resources)))
    partitions = world.broker.replica_manager.partitions
    assert [partitions[f"{prefix}-{n}", 0].log.config.retention_ms for n in range(COUNT)] == [12_345] * COUNT


@pytest.mark.parametrize("end", ENDS)
def test_records_are_produced_and_deleted_in_many_partitions(world: World, end: str) -> None:
    name, count = f"wide-{end}", 450
    world.create_topic(name, count)
    send_and_end(world, end, produce(name, acks=0, partitions=count))
    assert [log_end(world, name, index) for index in range(count)] == [1] * count
    request = messages.DeleteRecordsRequest
    asked = [request.DeleteRecordsPartition(partition_index=index, offset=1) for index in range(count)]
    topic = request.DeleteRecordsTopic(name=name, partitions=asked)
    send_and_end(world, end, (ApiKey.DELETE_RECORDS, 1, request(topics=[topic], timeout_ms=10_000)))
    partitions = world.broker.replica_manager.partitions
    assert [partitions[name, index].log_start_offset for index in range(count)] == [1] * count


@pytest.mark.parametrize("end", ENDS)
def test_offsets_are_committed_and_forgotten(world: World, end: str) -> None:
    name = f"offsets-{end}"
    groups = [f"{name}-{n}" for n in range(COUNT)]
    coordinated(world, name)
    world.create_topic(name, COUNT)
    send_and_end(world, end, *[commit(group, name) for group in groups])
    assert [committed(world, group) for group in groups] == [COUNT] * COUNT
    request = messages.OffsetDeleteRequest
    asked = [request.OffsetDeleteRequestPartition(partition_index=index) for index in range(COUNT)]
    forget = request(group_id=groups[0], topics=[request.OffsetDeleteRequestTopic(name=name, partitions=asked)])
    send_and_end(world, end, (ApiKey.OFFSET_DELETE, 0, forget))
    assert committed(world, groups[0]) == 0
    send_and_end(world, end, (ApiKey.DELETE_GROUPS, 1, messages.DeleteGroupsRequest(groups_names=groups[1:])))
    assert [committed(world, group) for group in groups] == [0] * COUNT


# ---------------------------------------------------------------------- the broker's own beginning and end


def test_what_was_asked_just_before_a_stop_is_done(make_world: type[World]) -> None:
    world = make_world()

    async def ask_and_stop() -> None:
        client = await world.connect()
        client.send(*create("late"))
        while len(world.broker.request_gate.tasks) == 0:
            await world.env.clock.sleep(0)
        await world.broker.stop()

    world.env.run(ask_and_stop())
    again = restarted(make_world, world)
    assert len(topics(again, "late")) == COUNT
    again.env.run(again.broker.stop())


def test_a_work_that_has_no_end_does_not_keep_the_broker(make_world: type[World]) -> None:
    world = make_world()
    never = world.env.clock.loop.create_future()

    async def run() -> None:
        world.broker.topic_admin.create_topic = lambda *_, **__: never
        client = await world.connect()
        client.send(*create("endless", 1))
        while len(world.broker.request_gate.tasks) == 0:
            await world.env.clock.sleep(0)
        await world.broker.stop()

    world.env.run(run())
    assert never.cancelled()
    assert len(world.broker.request_gate.tasks) == 0


def restarted(make_world: type[World], world: World) -> World:
    """Another broker on the same disk."""
    return make_world(world.env)


@pytest.mark.parametrize("end", ENDS)
def test_one_who_waits_for_its_place_is_handled_when_it_has_one(make_world: type[World], end: str) -> None:
    world = make_world(max_connections="2")

    async def run() -> None:
        first, second = await world.connect(), await world.connect()
        third = await world.connect()
        third.send(*create("third"))
        await world.env.clock.sleep(1)
        ENDS[end](third)
        await world.env.clock.sleep(1_000)
        assert world.broker.metadata_cache.topics == {}
        first.transport.close()
        await world.env.clock.sleep(60_000)
        assert len(world.broker.metadata_cache.topics) == COUNT
        second.transport.close()
        await world.env.clock.sleep(10)
        assert len(world.broker.server.connections) == 0

    world.env.run(run())
    world.env.run(world.broker.stop())
