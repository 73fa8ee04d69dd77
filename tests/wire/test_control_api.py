"""Faults by name, waits and the record of requests (`/v1/control`), as a client of the broker meets them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker.control import recorder
from barnabas.broker.requests import RequestGate
from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.clock import CLOCK_MS_MAX

sys.path.insert(0, str(Path(__file__).parent))
from http_client import ask
from http_examples import commit, join

World = Any  # of conftest.py
HEARTBEAT = messages.HeartbeatRequest(group_id="nobody", generation_id=1, member_id="m")


@pytest.fixture
def world(make_world: type[Any]) -> Iterator[World]:
    world = make_world(control_enable="true")
    world.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="billing"))
    world.create_topic("orders", partitions=2)
    yield world
    world.env.run(world.broker.stop())
    assert world.escaped == []


def command(world: World, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    """One command, and what it answers."""
    of_nothing = {"Content_Type": "application/json"} if body is None and method != "GET" else {}
    answer = world.env.run(ask(world.env, world.broker, method, f"/v1/control/{path}", body, **of_nothing))
    assert answer.status == status, answer.body
    return answer.json


def fault(world: World, **fields: Any) -> int:
    number: int = command(world, "POST", "rules", fields)["id"]
    return number


def heartbeat(world: World) -> ErrorCode:
    return ErrorCode(world.ask(ApiKey.HEARTBEAT, 4, HEARTBEAT).error_code)


def refused(world: World, **fields: Any) -> str:
    message: str = command(world, "POST", "rules", fields, status=400)["error"]["message"]
    return message


def commit_errors(world: World, group: str, topic: str = "orders") -> set[int]:
    row = messages.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=4)
    topics = [messages.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[row])]
    request = messages.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    answer = world.ask(ApiKey.OFFSET_COMMIT, 8, request)
    return {each.error_code for topic in answer.topics for each in topic.partitions}


def committed(world: World, group: str) -> list[int]:
    request = messages.OffsetFetchRequest(
        groups=[messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)]
    )
    (answer,) = world.ask(ApiKey.OFFSET_FETCH, 8, request).groups
    return [each.committed_offset for topic in answer.topics for each in topic.partitions]


# ---- who may command ----


def test_a_broker_without_control_takes_no_commands_and_has_the_plain_gate(make_world: type[Any]) -> None:
    plain = make_world()
    assert type(plain.broker.request_gate) is RequestGate
    for method, path, body in (
        ("GET", "rules", None),
        ("POST", "rules", {"effect": "cut"}),
        ("DELETE", "rules", None),
        ("DELETE", "rules/1", None),
        ("GET", "requests", None),
    ):
        error = command(plain, method, path, body, status=403)["error"]
        assert error["name"] == "CONTROL_IS_OFF"
        assert "control.enable" in error["message"]
    plain.env.run(plain.broker.stop())


# ---- faults ----


def test_an_error_comes_instead_of_the_answer_and_the_request_has_no_effect(world: World) -> None:
    fault(world, effect="error", api="OffsetCommit", error="REBALANCE_IN_PROGRESS", times=2, group="billing")
    assert commit_errors(world, "billing") == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert commit_errors(world, "other") == {0}
    assert commit_errors(world, "billing") == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert committed(world, "billing") == []
    assert commit_errors(world, "billing") == {0}
    assert committed(world, "billing") == [4]


def test_an_error_after_the_request_had_its_effect(world: World) -> None:
    fault(world, effect="error", api="OffsetCommit", error="COORDINATOR_NOT_AVAILABLE", when="after", times=1)
    assert commit_errors(world, "billing") == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert committed(world, "billing") == [4]


def test_an_error_that_kafka_never_answers_is_refused_unless_it_is_forced(world: World) -> None:
    wrong = {"effect": "error", "api": "Heartbeat", "error": "OFFSET_OUT_OF_RANGE"}
    assert "Kafka never answers Heartbeat with OFFSET_OUT_OF_RANGE" in refused(world, **wrong)
    number = fault(world, **wrong, forced=True, times=1)
    assert heartbeat(world) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert command(world, "DELETE", f"rules/{number}")["forced"]


def test_what_clients_could_do_better_is_said(world: World) -> None:
    assert command(world, "GET", "lint")["findings"] == []
    for _ in range(12):
        commit_errors(world, "billing")
    (found,) = command(world, "GET", "lint")["findings"]
    assert (found["rule"], found["about"], found["client_id"]) == ("commit of each record", "billing", "test")
    assert command(world, "GET", "lint?client=another")["findings"] == []


@pytest.mark.parametrize(
    ("fields", "fires"),
    [
        ({"nth": 3}, [3, 4, 5, 6]),
        ({"nth": 2, "every": 2}, [2, 4, 6]),
        ({"every": 3, "times": 1}, [1]),
        ({"times": 0}, []),
        ({"probability": 0.0}, []),
        ({"versions": [0, 3]}, []),
        ({"versions": [4, 4], "client": "test"}, [1, 2, 3, 4, 5, 6]),
        ({"client": "another"}, []),
        ({"api": "JoinGroup"}, []),
        ({"group": "nobody", "api": "HEARTBEAT"}, [1, 2, 3, 4, 5, 6]),
        ({"group": "nobody-else"}, []),
        ({"topic": "orders"}, []),
        ({"transactional_id": "t"}, []),
    ],
)
def test_which_requests_get_it(world: World, fields: dict[str, Any], fires: list[int]) -> None:
    number = fault(world, effect="error", error="NOT_COORDINATOR", **fields)
    got = [heartbeat(world) is ErrorCode.NOT_COORDINATOR for _ in range(6)]
    assert [position for position, is_fault in enumerate(got, 1) if is_fault] == fires
    removed = command(world, "DELETE", f"rules/{number}")
    assert removed["fired"] == len(fires)
    assert heartbeat(world) is not ErrorCode.NOT_COORDINATOR


def test_a_probability_is_drawn_under_its_seed(world: World) -> None:
    def draws(seed: int) -> list[bool]:
        number = fault(world, effect="error", error="NOT_COORDINATOR", probability=0.5, seed=seed)
        got = [heartbeat(world) is ErrorCode.NOT_COORDINATOR for _ in range(20)]
        command(world, "DELETE", f"rules/{number}")
        return got

    first = draws(1)
    assert first == draws(1)
    assert first != draws(2)
    assert True in first
    assert False in first


def test_a_partition_is_matched_in_its_topic(world: World) -> None:
    fault(world, effect="error", error="NOT_LEADER_OR_FOLLOWER", topic="orders", partition=1)
    assert commit_errors(world, "billing") == {0}
    fault(world, effect="error", error="NOT_COORDINATOR", topic="orders", partition=0)
    assert commit_errors(world, "billing") == {ErrorCode.NOT_COORDINATOR}


def commit_both(world: World, group: str, version: int = 8) -> dict[tuple[str, int], int]:
    """Commit offset 4 in three partitions of two topics; the errors."""
    commit = messages.OffsetCommitRequest

    def row(index: int) -> Any:
        return commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=4)

    topics = [
        commit.OffsetCommitRequestTopic(name=name, partitions=[row(index) for index in range(count)])
        for name, count in (("orders", 2), ("other", 1))
    ]
    answer = world.ask(ApiKey.OFFSET_COMMIT, version, commit(group_id=group, topics=topics))
    rows = [(topic.name, each) for topic in answer.topics for each in topic.partitions]
    assert len(rows) == 3, "each is answered once"
    return {(name, each.partition_index): each.error_code for name, each in rows}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_for_one_topic_or_partition_leaves_the_others_alone(world: World, when: str) -> None:
    world.create_topic("other")
    number = fault(world, effect="error", error="TOPIC_AUTHORIZATION_FAILED", topic="other", when=when)
    assert commit_both(world, "one") == {("orders", 0): 0, ("orders", 1): 0, ("other", 0): 29}
    assert committed(world, "one") == [4] * (2 if when == "before" else 3)
    command(world, "DELETE", f"rules/{number}")
    fault(world, effect="error", error="TOPIC_AUTHORIZATION_FAILED", topic="orders", partition=1, when=when)
    assert commit_both(world, "two") == {("orders", 0): 0, ("orders", 1): 29, ("other", 0): 0}
    assert committed(world, "two") == [4] * (2 if when == "before" else 3)


@pytest.mark.parametrize("when", ["before", "after"])
def test_two_faults_for_two_topics_of_a_request(world: World, when: str) -> None:
    """Until 2026-11 only the older one was seen."""
    world.create_topic("other")
    numbers = [
        fault(world, effect="error", error="TOPIC_AUTHORIZATION_FAILED", topic="other", when="before"),
        fault(world, effect="error", error="UNKNOWN_TOPIC_OR_PARTITION", topic="orders", partition=1, when=when),
    ]
    assert commit_both(world, "one") == {("orders", 0): 0, ("orders", 1): 3, ("other", 0): 29}
    assert committed(world, "one") == [4] * (1 if when == "before" else 2)
    command(world, "DELETE", f"rules/{numbers.pop()}")
    numbers.append(fault(world, effect="error", error="UNKNOWN_TOPIC_OR_PARTITION", topic="orders", when=when))
    assert commit_both(world, "two") == {("orders", 0): 3, ("orders", 1): 3, ("other", 0): 29}
    assert committed(world, "two") == [4] * (0 if when == "before" else 2)
    fired = {row["id"]: row["fired"] for row in command(world, "GET", "rules")["rules"]}
    assert [fired[number] for number in numbers] == [2, 1]
    make = messages.ListOffsetsRequest
    rows = [make.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    topics = [make.ListOffsetsTopic(name=name, partitions=rows) for name in ("orders", "other")]
    found = world.ask(ApiKey.LIST_OFFSETS, 5, make(replica_id=-1, topics=topics)).topics
    assert {topic.name: topic.partitions[0].error_code for topic in found} == {"orders": 3, "other": 29}


def test_a_fault_for_one_topic_of_a_produce_and_of_a_fetch(world: World) -> None:
    world.create_topic("other")
    fault(world, effect="error", error="NOT_LEADER_OR_FOLLOWER", topic="other")
    batch = record_batch.build([record_batch.Record(-1, 1, None, b"v")])
    produce = messages.ProduceRequest
    data = [
        produce.TopicProduceData(name=name, partition_data=[produce.PartitionProduceData(index=0, records=batch)])
        for name in ("orders", "other")
    ]
    answer = world.ask(ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=1000, topic_data=data))
    assert [(row.name, row.partition_responses[0].error_code) for row in answer.responses] == [
        ("orders", 0),
        ("other", 6),
    ]
    fetch = messages.FetchRequest
    for version in (12, 16):
        ids = {name: world.broker.metadata_cache.topic_id(name) for name in ("orders", "other")}
        topics = [
            fetch.FetchTopic(
                topic=name if version == 12 else "",
                topic_id=ids[name] if version == 16 else bytes(16),
                partitions=[fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)],
            )
            for name in ids
        ]
        answer = world.ask(ApiKey.FETCH, version, fetch(max_bytes=1000, topics=topics))
        rows = [
            (len(bytes(each.partitions[0].records or b"")) > 0, each.partitions[0].error_code)
            for each in answer.responses
        ]
        assert (answer.error_code, sorted(rows)) == (0, [(False, 6), (True, 0)])


def test_a_fault_for_a_topic_of_a_fetch_session_that_is_not_named_again(world: World) -> None:
    world.create_topic("other")
    fetch = messages.FetchRequest

    def ask_for(session_id: int, epoch: int, *names: str) -> Any:
        rows = [fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
        topics = [fetch.FetchTopic(topic=name, partitions=rows) for name in names]
        request = fetch(
            max_bytes=1000, max_wait_ms=3_000, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics
        )
        answer = world.ask(ApiKey.FETCH, 12, request)
        return answer, {row.topic: row.partitions[0].error_code for row in answer.responses}

    batch = record_batch.build([record_batch.Record(-1, 1, None, b"v")])
    produce = messages.ProduceRequest
    row = produce.PartitionProduceData(index=0, records=batch)
    for name in ("orders", "other"):
        data = [produce.TopicProduceData(name=name, partition_data=[row])]
        world.ask(ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=1000, topic_data=data))
    answer, errors = ask_for(0, 0, "orders", "other")
    assert errors == {"orders": 0, "other": 0}
    session = answer.session_id
    number = fault(world, effect="error", error="NOT_LEADER_OR_FOLLOWER", topic="other")
    began_ms = world.env.clock.monotonic_ms()
    answer, errors = ask_for(session, 1)
    assert (answer.error_code, errors["other"]) == (0, 6)
    assert world.env.clock.monotonic_ms() - began_ms < 1_000, "an error is not waited for"
    answer, errors = ask_for(session, 2, "orders")
    assert (answer.error_code, errors) == (0, {"orders": 0, "other": 6})
    command(world, "DELETE", f"rules/{number}")
    _, errors = ask_for(session, 3)
    assert errors == {"orders": 0, "other": 0}
    fault(world, effect="error", error="NOT_LEADER_OR_FOLLOWER", api="Fetch", topic="other")
    answer, errors = ask_for(0, 0, "other")
    assert (answer.error_code, errors) == (0, {"other": 6}), "as Kafka has it: not at the top level"


def test_a_fault_for_one_topic_of_one_group_of_an_offset_fetch(world: World) -> None:
    world.create_topic("other")
    for group in ("g", "h"):
        commit_both(world, group)
    fault(world, effect="error", error="UNSTABLE_OFFSET_COMMIT", api="OffsetFetch", topic="other", group="g")
    fetch = messages.OffsetFetchRequest
    topics = [fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in ("orders", "other")]
    groups = [fetch.OffsetFetchRequestGroup(group_id=group, topics=topics) for group in ("g", "h")]
    answer = world.ask(ApiKey.OFFSET_FETCH, 9, fetch(groups=groups))
    found = {
        (group.group_id, topic.name): (row.error_code, row.committed_offset)
        for group in answer.groups
        for topic in group.topics
        for row in topic.partitions
    }
    assert [group.error_code for group in answer.groups] == [0, 0]
    assert found == {("g", "orders"): (0, 4), ("g", "other"): (88, -1), ("h", "orders"): (0, 4), ("h", "other"): (0, 4)}


def test_topics_that_nobody_knows_keep_their_own_errors(world: World) -> None:
    world.create_topic("other")
    fault(world, effect="error", error="POLICY_VIOLATION", topic="other", when="after")
    ids = [world.broker.metadata_cache.topic_id(name) for name in ("orders", "other")]
    delete = messages.DeleteTopicsRequest
    states = [delete.DeleteTopicState(name=None, topic_id=topic_id) for topic_id in (*ids, b"u" * 16)]
    answer = world.ask(ApiKey.DELETE_TOPICS, 6, delete(topics=states, timeout_ms=1000))
    errors = {row.topic_id: row.error_code for row in answer.responses}
    assert len(answer.responses) == 3
    assert errors == {ids[0]: 0, ids[1]: 44, b"u" * 16: 100}


def test_a_fault_for_one_new_topic(world: World) -> None:
    create = messages.CreateTopicsRequest
    config = create.CreatableTopicConfig(name="retention.ms", value="1000")
    topics = [
        create.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[config])
        for name in ("good", "bad")
    ]
    fault(world, effect="error", error="POLICY_VIOLATION", topic="bad")
    answer = world.ask(ApiKey.CREATE_TOPICS, 7, create(topics=topics, timeout_ms=1000))
    assert {row.name: row.error_code for row in answer.topics} == {"good": 0, "bad": 44}
    delete = messages.DeleteTopicsRequest(topic_names=["good", "bad"], timeout_ms=1000)
    answer = world.ask(ApiKey.DELETE_TOPICS, 5, delete)
    assert {row.name: row.error_code for row in answer.responses} == {"good": 0, "bad": 44}


def test_a_topic_is_found_by_its_id(world: World) -> None:
    fault(world, effect="error", error="UNKNOWN_SERVER_ERROR", api="Fetch", topic="orders")
    fetch = messages.FetchRequest
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic_id = world.broker.metadata_cache.topic_id("orders")
    request = fetch(max_bytes=1000, topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[partition])])
    answer = world.ask(ApiKey.FETCH, 16, request)
    errors = {answer.error_code, *(row.error_code for each in answer.responses for row in each.partitions)}
    assert ErrorCode.UNKNOWN_SERVER_ERROR in errors


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_delay(world: World, when: str) -> None:
    fault(world, effect="delay", ms=800, when=when, times=1, api="OffsetCommit")
    began_ms = world.env.clock.monotonic_ms()
    assert commit_errors(world, "billing") == {0}
    assert 800 <= world.env.clock.monotonic_ms() - began_ms < 1_000
    assert committed(world, "billing") == [4]
    assert world.env.clock.monotonic_ms() - began_ms < 1_000


def test_records_of_a_delayed_produce_are_those_that_were_sent(world: World) -> None:
    fault(world, effect="delay", ms=500, api="Produce", times=1)
    produce = messages.ProduceRequest
    partition = produce.PartitionProduceData(
        index=0, records=record_batch.build([record_batch.Record(value=b"first", key=None)])
    )
    topics = [produce.TopicProduceData(name="orders", partition_data=[partition])]

    async def run() -> Any:
        client, other = await world.connect(), await world.connect()
        client.send(ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=5_000, topic_data=topics))
        for _ in range(20):  # they come into the buffer in which the records lay
            await other.ask(ApiKey.HEARTBEAT, 4, HEARTBEAT)
        return frames.decode_response(ApiKey.PRODUCE, 9, memoryview(await client.answer()))[1]

    (row,) = world.env.run(run()).responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (0, 0)


@pytest.mark.parametrize(("effect", "has_effect"), [("drop_request", False), ("drop_answer", True)])
def test_a_client_gets_no_answer(world: World, effect: str, has_effect: bool) -> None:
    fault(world, effect=effect, api="OffsetCommit")

    async def run() -> bytes | None:
        client = await world.connect()
        row = messages.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=4)
        topics = [messages.OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[row])]
        request = messages.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
        client.send(ApiKey.OFFSET_COMMIT, 8, request)
        await world.env.clock.sleep(60_000)
        assert not client.closed
        data: bytes = client.data
        client.transport.close()
        return data

    assert world.env.run(run()) == b""
    assert committed(world, "g") == ([4] if has_effect else [])
    assert world.broker.request_gate.handler_failures == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_is_cut(world: World, when: str) -> None:
    fault(world, effect="cut", when=when, times=1, client="test")

    async def run() -> bytes | None:
        client = await world.connect()
        client.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
        answer: bytes | None = await client.answer()
        return answer

    assert world.env.run(run()) is None
    assert heartbeat(world) is not ErrorCode.NONE


def test_a_throttle_time_is_in_the_answer(world: World) -> None:
    fault(world, effect="throttle", ms=250, api="Heartbeat", times=1)
    assert world.ask(ApiKey.HEARTBEAT, 4, HEARTBEAT).throttle_time_ms == 250
    assert world.ask(ApiKey.HEARTBEAT, 4, HEARTBEAT).throttle_time_ms == 0


def test_the_oldest_rule_that_fires_counts(world: World) -> None:
    fault(world, effect="error", error="NOT_COORDINATOR", api="Heartbeat", times=1)
    fault(world, effect="error", error="FENCED_INSTANCE_ID", api="Heartbeat")
    assert heartbeat(world) is ErrorCode.NOT_COORDINATOR
    assert heartbeat(world) is ErrorCode.FENCED_INSTANCE_ID
    assert [rule["fired"] for rule in command(world, "GET", "rules")["rules"]] == [1, 1]
    assert len(command(world, "DELETE", "rules")["rules"]) == 2
    assert command(world, "GET", "rules")["rules"] == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"effect": "error"}, "error is given for effect error"),
        ({"effect": "cut", "error": "NOT_COORDINATOR"}, "error is given for effect error"),
        ({"effect": "error", "error": "NO_SUCH"}, "Kafka has no error 'NO_SUCH'"),
        ({"effect": "error", "error": "NONE"}, "Kafka has no error 'NONE'"),
        ({"effect": "delay"}, "ms is given for effect delay"),
        ({"effect": "cut", "ms": 3}, "ms is given for effect delay"),
        ({"effect": "throttle", "ms": 2**31}, "ms is more than 2147483647"),
        ({"effect": "delay", "ms": 10**400}, "ms is more than 2147483647"),
        ({"effect": "cut", "api": "Nonsense"}, "there is no API 'Nonsense'"),
        ({"effect": "cut", "versions": [3]}, "versions are two numbers"),
        ({"effect": "cut", "versions": [3, 2]}, "versions are two numbers"),
        ({"effect": "cut", "probability": 1.5}, "probability is a number"),
        ({"effect": "cut", "partition": 1}, "partition is given together with topic"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(world: World, fields: dict[str, Any], says: str) -> None:
    assert says in refused(world, **fields)
    assert command(world, "GET", "rules")["rules"] == []


def test_there_is_no_such_rule(world: World) -> None:
    for number in ("7", "x", "-1", "9" * 5_000):
        assert command(world, "DELETE", f"rules/{number}", status=404)["error"]["name"] == "UNKNOWN_RULE"


# ---- time ----


def test_time_does_not_go_where_dates_cannot_be_told(world: World) -> None:
    """A snapshot from there could not be put back."""
    for advance_ms in (CLOCK_MS_MAX + 1, 10**30):
        assert "advance_ms is more than" in told_the_clock(world, advance_ms=advance_ms, stands=True, status=400)
    told_the_clock(world, advance_ms=CLOCK_MS_MAX)
    assert "dates could not be told" in told_the_clock(world, advance_ms=1, stands=True, status=400)
    clock = command(world, "GET", "clock")
    assert (clock["moved_ms"], clock["stands"]) == (CLOCK_MS_MAX, False), "what is refused has changed nothing"


def told_the_clock(world: World, status: int = 200, **body: Any) -> str:
    said = command(world, "POST", "clock", body, status=status)
    return str(said["error"]["message"]) if "error" in said else ""


# ---- what was asked ----


def test_requests_are_recorded_with_their_answers(world: World) -> None:
    commit(world, "billing", "orders")
    fault(world, effect="error", error="NOT_COORDINATOR", api="Heartbeat")
    heartbeat(world)
    found = command(world, "GET", "requests?group=billing")["requests"]
    assert [each["api"] for each in found] == ["FindCoordinator", "OffsetCommit"]
    found = found[1:]
    assert found[0]["topics"] == ["orders"]
    assert found[0]["fate"] == "answered"
    assert found[0]["request"]["topics"][0]["partitions"][0]["committed_offset"] == 5
    assert found[0]["answer"]["topics"][0]["partitions"][0]["error_code"] == 0
    (beat,) = command(world, "GET", "requests?api=Heartbeat&client=test")["requests"]
    assert beat["rule"] == 1
    assert beat["answer"]["error_code"] == ErrorCode.NOT_COORDINATOR
    assert command(world, "GET", "requests?client=another")["requests"] == []
    since = command(world, "GET", "requests")["next"]
    heartbeat(world)
    assert [each["number"] for each in command(world, "GET", f"requests?since={since}")["requests"]] == [since]


def test_what_is_recorded_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "EXCHANGES_MAX", 3)
    for _ in range(10):
        heartbeat(world)
    kept = command(world, "GET", "requests")
    assert [each["number"] for each in kept["requests"]] == [kept["next"] - 3, kept["next"] - 2, kept["next"] - 1]
    monkeypatch.setattr(recorder, "BYTES_MAX", 40)  # the answer to a heartbeat has 16
    heartbeat(world)
    assert 1 <= len(command(world, "GET", "requests")["requests"]) < 3


def test_what_a_test_leaves_is_told_in_one_answer(world: World) -> None:
    assert command(world, "GET", "leftovers") == {"rules": [], "groups": [], "transactional_ids": []}
    fault(world, effect="cut", api="Produce")
    fired = fault(world, effect="error", api="Heartbeat", error="REBALANCE_IN_PROGRESS", times=1)
    heartbeat(world)
    commit(world, "empty", "orders", partitions=1)
    join(world, "billing")
    left = command(world, "GET", "leftovers")
    assert [rule["effect"] for rule in left["rules"]] == ["cut"]
    assert fired not in [rule["id"] for rule in left["rules"]]
    assert left["groups"] == [{"group": "billing", "members": 1}]
    assert left["transactional_ids"] == []


# ---- waits and commands ----


def test_a_wait_for_a_state_of_a_group_of_the_consumer_protocol(world: World) -> None:
    commit(world, "billing", "orders", partitions=2)
    joins = {"subscribed_topic_names": ["orders"], "rebalance_timeout_ms": 10_000, "topic_partitions": []}
    for member_id in ("one", "two"):
        beat = messages.ConsumerGroupHeartbeatRequest(group_id="billing", member_id=member_id, **joins)
        assert world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat).error_code == 0
    row = command(world, "GET", "groups/billing/wait?state=Assigning&members=2&timeout_ms=0")
    assert (row["state"], row["members"]) == ("Assigning", ["one", "two"])


def test_a_wait_ends_when_the_group_is_as_wanted(world: World) -> None:
    commit(world, "billing", "orders", partitions=2)
    row = command(world, "GET", "groups/billing/wait?state=Empty&members=0&timeout_ms=0")
    assert (row["state"], row["members"], row["lag"]) == ("Empty", [], None)

    async def run() -> Any:
        waiting = world.env.clock.loop.create_task(
            ask(world.env, world.broker, "GET", "/v1/control/groups/billing/wait?members=1&timeout_ms=5000")
        )
        await world.env.clock.sleep(1_000)
        assert not waiting.done()
        client = await world.connect()
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        client.send(
            ApiKey.JOIN_GROUP,
            5,
            messages.JoinGroupRequest(
                group_id="billing",
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id="",
                group_instance_id="a",
                protocol_type="consumer",
                protocols=[protocol],
            ),
        )
        return (await waiting).json

    assert len(world.env.run(run())["members"]) == 1


def test_a_wait_for_a_group_begins_before_any_group_was_used(make_world: type[Any]) -> None:
    """A broker without __consumer_offsets answered 404 at once, so that a test that began to wait first had failed."""
    world = make_world(control_enable="true")
    wait = "groups/billing/wait?state=Empty&timeout_ms="
    error = command(world, "GET", f"{wait}200", status=408)["error"]
    assert error["message"].startswith("not so within 200 ms: no group was ever used here")

    async def run() -> Any:
        waiting = world.env.clock.loop.create_task(ask(world.env, world.broker, "GET", f"/v1/control/{wait}5000"))
        await world.env.clock.sleep(1_000)
        assert not waiting.done()
        client = await world.connect()
        client.send(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="billing"))
        await client.answer()
        await world.env.clock.sleep(1_000)
        row = messages.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        topics = [messages.OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[row])]
        request = messages.OffsetCommitRequest(group_id="billing", generation_id_or_member_epoch=-1, topics=topics)
        client.send(ApiKey.OFFSET_COMMIT, 8, request)
        return await waiting

    world.create_topic("orders")
    answer = world.env.run(run())
    assert (answer.status, answer.json["state"]) == (200, "Empty"), answer.json
    world.env.run(world.broker.stop())


def test_an_api_that_is_not_there_is_a_wrong_query_where_it_is_asked_for(world: World) -> None:
    """Until 2026-12-01 it was INVALID_RULE, of which there was none."""
    for path in ("requests?api=nosuch", "requests/wait?api=nosuch"):
        error = command(world, "GET", path, status=400)["error"]
        assert (error["name"], "there is no API 'nosuch' here" in error["message"]) == ("INVALID_QUERY", True)


def test_who_has_committed_behind_the_end_of_a_log_lags_by_nothing(world: World) -> None:
    """Until 2026-12-01 its lag was not known where this broker led the partition, and 0 where another did."""
    commit(world, "billing", "orders")
    assert command(world, "GET", "topics/orders/wait?records_at_most=0")["records"] == 0
    assert command(world, "GET", "groups/billing/wait?lag=0&timeout_ms=200")["lag"] == 0


def test_a_wait_that_is_over_says_what_was_seen_last(world: World) -> None:
    commit(world, "billing", "orders")
    error = command(world, "GET", "groups/billing/wait?members=2&timeout_ms=200", status=408)["error"]
    assert error["name"] == "WAIT_TIMED_OUT"
    assert error["message"] == (
        "not so within 200 ms: the group 'billing' was last seen Empty with 0 members, generation 0."
    )
    join(world, "empty")
    error = command(world, "GET", "groups/empty/wait?lag=0&timeout_ms=200", status=408)["error"]
    assert "; its lag is not known, because it has committed nothing, or a leader does not answer." in error["message"]
    error = command(world, "GET", "groups/nobody/wait?members=2&timeout_ms=200", status=408)["error"]
    assert "there is no group 'nobody'" in error["message"]
    assert command(world, "GET", "groups/billing/wait?timeout_ms=55001", status=400)["error"]["name"] == "INVALID_QUERY"


def test_waits_end_when_the_broker_is_put_back(world: World) -> None:
    """Until 2026-11 each restore took two seconds while somebody waited, or had waited and gone."""
    commit(world, "billing", "orders")
    rule = fault(world, effect="cut", client="nobody")
    paths = [
        "groups/billing/wait?members=1&",
        "topics/none/wait?",
        "transactions/none/wait?",
        "requests/wait?client=nobody&",
        f"rules/{rule}/wait?",
    ]

    async def run() -> list[Any]:
        waiting = [
            world.env.clock.loop.create_task(ask(world.env, world.broker, "GET", f"/v1/control/{path}timeout_ms=50000"))
            for path in paths
        ]
        await world.env.clock.sleep(1_000)
        assert not any(each.done() for each in waiting)
        world.broker.request_gate.lives = SimpleNamespace(is_ending=True)
        await world.env.clock.sleep(100)
        assert all(each.done() for each in waiting)
        return [await each for each in waiting]

    for answer in world.env.run(run()):
        assert (answer.status, answer.json["error"]["message"]) == (503, "this broker is being put back. Ask again.")
    world.broker.request_gate.lives = None


def test_a_member_is_taken_out(world: World) -> None:
    commit(world, "billing", "orders")
    join(world, "billing")
    (member_id,) = command(world, "GET", "groups/billing/wait?members=1")["members"]
    assert command(world, "POST", "groups/billing/members/nobody/expire", status=404)["error"]["name"] == (
        "UNKNOWN_MEMBER_ID"
    )
    assert command(world, "POST", f"groups/billing/members/{member_id}/expire")["member_id"] == member_id
    assert command(world, "GET", "groups/billing/wait?members=0&state=Empty&timeout_ms=0")["members"] == []
