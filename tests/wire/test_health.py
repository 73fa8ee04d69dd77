"""What a broker says of its own troubles in /v1/health, in virtual time."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import ConsumerGroupHeartbeatRequest, FindCoordinatorRequest, ProduceRequest
from barnabas.protocol.record_batch import Record

sys.path.insert(0, str(Path(__file__).parent))
from http_client import ask
from http_examples import commit, join

World = Any  # of conftest.py
MINUTE = 60_000


@pytest.fixture
def world(make_world: type[Any]) -> Iterator[World]:
    world = make_world()
    world.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
    world.create_topic("orders", 2)
    yield world
    world.env.run(world.broker.stop())
    assert world.broker.http.handler_failures == 0


def health(world: World, query: str = "") -> dict[str, Any]:
    answer = world.env.run(ask(world.env, world.broker, "GET", f"/v1/health{query}"))
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def group(world: World, query: str = "") -> dict[str, Any] | None:
    rows: list[dict[str, Any]] = health(world, query)["groups"]
    assert len(rows) <= 1
    return rows[0] if rows else None


def write(world: World, records: int) -> int:
    """Append to orders-0; the last error."""
    error = 0
    for _ in range(records):
        record = Record(offset=0, timestamp=world.env.clock.now_ms(), key=b"k", value=bytes(100), headers=[])
        batch = record_batch.build([record])
        data = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topic = ProduceRequest.TopicProduceData(name="orders", partition_data=[data])
        answer = world.ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]))
        error = answer.responses[0].partition_responses[0].error_code
    return error


def test_a_group_that_has_read_all_is_not_told(world: World) -> None:
    commit(world, "g", "orders", partitions=2, offset=0)
    world.env.clock.advance(60 * MINUTE)
    assert group(world) is None
    found = health(world)
    assert (found["groups_looked_at"], found["groups_left_out"], found["stopped_groups"]) == (1, 0, 0)


def test_an_offset_that_stands_still_is_told_after_a_while(world: World) -> None:
    commit(world, "g", "orders", partitions=1, offset=0)
    join(world, "g")
    write(world, 3)
    world.env.clock.advance(9 * MINUTE)
    assert group(world) is None
    found = group(world, "?stalled_ms=300000")
    assert found is not None
    assert (found["unread_partitions"], found["standing_partitions"], found["is_moving"]) == (1, 1, False)
    world.env.clock.advance(2 * MINUTE)
    found = group(world)
    assert found is not None
    assert [(row["partition"], row["offset"]) for row in found["standing"]] == [(0, 0)]
    commit(world, "g", "orders", partitions=1, offset=2)
    world.env.clock.advance(1 * MINUTE)
    assert group(world) is None


def test_a_live_group_of_the_consumer_protocol_has_members(world: World) -> None:
    commit(world, "g", "orders", partitions=1, offset=0)
    join = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        subscribed_topic_names=["orders"],
        rebalance_timeout_ms=MINUTE,
        topic_partitions=[],
    )
    answer = world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, join)
    assert answer.error_code == 0, answer
    write(world, 3)
    for _ in range(70):
        world.env.clock.advance(10_000)
        beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=answer.member_epoch)
        assert world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat).error_code == 0
    found = group(world)
    assert found is not None
    assert (found["type"], found["members"], found["standing_partitions"]) == ("consumer", 1, 1)
    assert found["clients"][0]["member_id"] == "m"


def test_a_member_of_the_consumer_protocol_that_gives_nothing_up_is_waited_for(world: World) -> None:
    def beat(member_id: str, epoch: int, **fields: Any) -> int:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)
        answer = world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        assert answer.error_code == 0, answer
        return int(answer.member_epoch)

    joins = {"subscribed_topic_names": ["orders"], "rebalance_timeout_ms": 5 * MINUTE, "topic_partitions": []}
    old = beat("old", 0, **joins)
    world.env.clock.advance(10_000)
    new = beat("new", 0, **joins)
    beat("old", old)
    for _ in range(5):
        world.env.clock.advance(10_000)
        assert beat("old", old) == old
        new = beat("new", new)
    found = group(world)
    assert found is not None
    assert (found["state"], found["waits_ms"] // 1000, found["waited_for_members"]) == ("Reconciling", 50, 1)
    assert [each["member_id"] for each in found["waited_for"]] == ["old"]
    beat("old", old, topic_partitions=[])
    assert group(world) is None


def test_more_is_committed_than_there_is(world: World) -> None:
    write(world, 3)
    commit(world, "g", "orders", partitions=1, offset=100)
    world.env.clock.advance(MINUTE)
    found = group(world)
    assert found is not None
    assert found["past_end_partitions"] == 1
    commit(world, "g", "orders", partitions=1, offset=3)
    world.env.clock.advance(MINUTE)
    assert group(world) is None


def test_offsets_expire_soon(make_world: type[Any]) -> None:
    world = make_world(offsets_retention_minutes="420")
    world.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
    world.create_topic("orders", 2)
    commit(world, "g", "orders", partitions=1, offset=0)
    hour = 60 * MINUTE
    world.env.clock.advance(5 * hour)
    assert group(world) is None
    world.env.clock.advance(1 * hour + MINUTE)
    found = health(world)
    assert found["expiring_groups"] == 1
    assert found["groups"][0]["expires_ms"] - found["time_ms"] == pytest.approx(hour, abs=2 * MINUTE)
    world.env.run(world.broker.stop())


def test_a_disk_that_fills_is_told_when_enough_is_known(world: World) -> None:
    disk = world.env.disk
    (directory,) = health(world)["directories"]
    assert (directory["filling_bytes_per_second"], directory["known_seconds"]) == (None, 0)
    disk.capacity_bytes = 40_000
    for _ in range(13):
        write(world, 5)
        world.env.clock.advance(MINUTE)
    (directory,) = health(world)["directories"]
    assert directory["known_seconds"] == 12 * 60
    assert directory["filling_bytes_per_second"] > 0
    assert directory["full_in_seconds"] == pytest.approx(
        directory["free_bytes"] / directory["filling_bytes_per_second"], rel=0.2
    )
    assert directory["largest"][0]["topic"] == "orders"


def test_a_log_that_cannot_be_written_is_told_until_it_can(world: World) -> None:
    write(world, 1)
    world.env.disk.capacity_bytes = 0
    write(world, 1)
    found = health(world)
    assert (found["write_blocked_logs"], found["failed_logs"]) == (1, 0)
    assert (found["write_blocked"][0]["topic"], found["write_blocked"][0]["partition"]) == ("orders", 0)
    world.env.disk.capacity_bytes = 1 << 40
    write(world, 1)
    assert health(world)["write_blocked_logs"] == 0


def test_what_cannot_be_read_of_users_quotas_and_rules_is_told_until_it_is_set_anew(make_world: type[Any]) -> None:
    world = make_world(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
        http_token="planted",
    )
    tree = world.broker.coordination
    bob = b'{"version":1,"config":{"SCRAM-SHA-256":"broken","producer_byte_rate":"many"}}'
    world.env.run(tree.create("/config/users/bob", bob))
    world.env.run(tree.create("/kafka-acl/Topic/t", b"broken"))
    notices = (
        ("/config/changes/config_change_", json.dumps({"version": 2, "entity_path": "users/bob"}).encode()),
        ("/kafka-acl-changes/acl_changes_", b"Topic:t"),
    )

    def told() -> list[tuple[str, str]]:
        for path, notice in notices:
            world.env.run(tree.create(path, notice, sequential=True))
        world.env.run(world.env.clock.sleep(2_000))
        answer = world.env.run(ask(world.env, world.broker, "GET", "/v1/health", Authorization="Bearer planted"))
        assert answer.status == 200, answer.body
        return [(row["of"], row["name"]) for row in answer.json["unreadable"]]

    assert told() == [("users", "'bob'"), ("quotas", "user 'bob'"), ("acls", "topic 't'")]
    world.env.run(tree.set("/config/users/bob", b'{"version":1,"config":{}}'))
    world.env.run(tree.delete("/kafka-acl/Topic/t"))
    assert told() == []
    world.env.run(world.broker.stop())
