"""Every fault and every wait, commanded by `barnabas.testing` and by plain HTTP, of one broker and of three.

What a client sees is what a blocking client of Kafka's protocol gets.
"""

import ast
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.control.rules import Effect, Role
from barnabas.broker.http import routes
from barnabas.broker.http.control import RULE_FIELDS
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import Client, batch
from commanded import REFUSED, Brokers, Fields, started

DAY_MS = 86_400_000
DELAY_MS = 30
WITHIN_S = 200.0


class World:
    """Brokers, and clients of theirs that this test alone has."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.open = ExitStack()
        any_client = self.client(0, "any")
        self.controller: int = any_client.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[])).controller_id
        self.make_topic(self.name)

    def client(self, node_id: int, client_id: str = "") -> Client:
        """A connection to this broker."""
        return self.open.enter_context(closing(Client(self.brokers.ports[node_id], client_id=client_id or self.name)))

    def make_topic(self, name: str, **configs: str) -> int:
        """Two partitions on all brokers. Returns the error code."""
        with closing(Client(self.brokers.ports[self.controller], client_id="admin")) as admin:
            return admin.create_topic(name, 2, len(self.brokers.ports), **configs)

    @property
    def coordinator(self) -> int:
        """Who coordinates the test's group."""
        return self.coordinator_of(self.name)

    def coordinator_of(self, key: str, key_type: int = 0) -> int:
        """Who coordinates a group; key_type 1: a transactional id."""
        request = messages.FindCoordinatorRequest(key=key, key_type=key_type)

        def found() -> int:
            with closing(Client(self.brokers.ports[0], client_id="admin")) as admin:
                return int(admin.ask(ApiKey.FIND_COORDINATOR, 3, request).node_id)

        return self.until(found, lambda node: node >= 0)

    def leader(self, topic: str = "") -> int:
        """Who leads partition 0 of this topic, or that of the test; -1: nobody."""
        row = self._first_partition(topic or self.name)
        return -1 if row is None else int(row.leader_id)

    def settled_leader(self) -> int:
        """Who leads partition 0, when all are in sync; -1: they are not."""
        row = self._first_partition(self.name)
        are_in_sync = row is not None and len(row.isr_nodes) == len(self.brokers.ports)
        return row.leader_id if are_in_sync else -1

    def _first_partition(self, topic: str) -> Any:
        named = messages.MetadataRequest.MetadataRequestTopic(name=topic)
        with closing(Client(self.brokers.ports[0], client_id="admin")) as admin:
            (found,) = admin.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[named])).topics
        return next((row for row in found.partitions if row.partition_index == 0), None)

    def commit(self, client: Client, offset: int, *, group: str = "", partition: int = 0, version: int = 7) -> Any:
        """The answer to a commit."""
        client.send(ApiKey.OFFSET_COMMIT, version, self.commit_request(offset, group=group, partition=partition))
        return client.answer(ApiKey.OFFSET_COMMIT, version)

    def commit_request(self, offset: int, *, group: str = "", partition: int = 0) -> Any:
        """A commit for a group without members."""
        make = messages.OffsetCommitRequest
        row = make.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topics = [make.OffsetCommitRequestTopic(name=self.name, partitions=[row])]
        return make(group_id=group or self.name, generation_id_or_member_epoch=-1, topics=topics)

    def committed(self) -> int:
        """The committed offset of this test's group; -1: none."""
        with closing(Client(self.brokers.ports[self.coordinator], client_id="admin")) as admin:
            offset: int = admin.committed(self.name, self.name, 0)[1]
        return offset

    def produce(self, topic: str = "") -> ErrorCode:
        """What a producer with acks=all is told by the leader of partition 0."""
        node_id = self.until(lambda: self.leader(topic), lambda leader: leader >= 0)
        with closing(Client(self.brokers.ports[node_id], client_id=self.name)) as producer:
            return ErrorCode(producer.produce(topic or self.name, 0, batch([b"a"])).error_code)

    def until(self, look: Callable[[], Any], is_wanted: Callable[[Any], bool]) -> Any:
        """Look again until it is as wanted; returns what was seen."""
        deadline = time.monotonic() + WITHIN_S
        while not is_wanted(seen := look()):
            assert time.monotonic() < deadline, f"last seen: {seen}"
            time.sleep(0.02)
        return seen


@pytest.fixture(
    scope="module",
    params=[(way, count) for count in (1, 3) for way in ("python", "http")],
    ids=lambda given: f"{given[0]}-{given[1]}",
)
def brokers(request: pytest.FixtureRequest) -> Iterator[Brokers]:
    with started(*request.param) as found:
        yield found


@pytest.fixture
def world(brokers: Brokers) -> Iterator[World]:
    world = World(brokers)
    with world.open:
        world.until(world.settled_leader, lambda leader: leader >= 0)
        world.until(lambda: world.commit(world.client(world.coordinator), 1), lambda answer: _error(answer) == 0)
        yield world


def _error(answer: Any) -> int:
    error: int = answer.topics[0].partitions[0].error_code
    return error


# ------------------------------------------------------------------ faults of requests

# A fault for a commit: its fields; what its client sees; whether the commit has its effect; its fate in the record.
FAULTS: list[tuple[Fields, str, bool, str]] = [
    ({"effect": "error", "error": "REBALANCE_IN_PROGRESS"}, "REBALANCE_IN_PROGRESS", False, "answered"),
    ({"effect": "error", "error": "NOT_COORDINATOR", "when": "after"}, "NOT_COORDINATOR", True, "answered"),
    ({"effect": "delay", "ms": DELAY_MS}, f"late by {DELAY_MS} ms", True, "answered"),
    ({"effect": "delay", "ms": DELAY_MS, "when": "after"}, f"late by {DELAY_MS} ms", True, "answered"),
    ({"effect": "drop_request"}, "nothing", False, "no answer"),
    ({"effect": "drop_answer"}, "nothing", True, "no answer"),
    ({"effect": "cut"}, "closed", False, "cut"),
    ({"effect": "cut", "when": "after"}, "closed", True, "cut"),
    ({"effect": "throttle", "ms": 7}, "quiet for 7 ms", True, "answered"),
    ({"effect": "half_answer"}, "half", True, "answered"),
]


def _seen(world: World, client: Client, offset: int) -> str:
    """What the client of a commit gets."""
    before = len(world.brokers.requests(world.name))
    client.send(ApiKey.OFFSET_COMMIT, 7, world.commit_request(offset))
    is_over = lambda rows: len(rows) > before and rows[-1]["fate"] != "waits"  # noqa: E731
    row = world.until(lambda: world.brokers.requests(world.name), is_over)[-1]
    if row["fate"] == "no answer":
        client.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.socket.recv(1)
        return "nothing"
    try:
        size = int.from_bytes(client.read(4), "big")
    except ConnectionError:
        return "closed"
    try:
        _, answer = frames.decode_response(ApiKey.OFFSET_COMMIT, 7, memoryview(client.read(size)))
    except ConnectionError:
        return "half"
    if _error(answer):
        return ErrorCode(_error(answer)).name
    if answer.throttle_time_ms:
        return f"quiet for {answer.throttle_time_ms} ms"
    took_ms = row["answered_ms"] - row["time_ms"]
    return "as ever" if row["rule"] is None else f"late by {DELAY_MS} ms" if took_ms >= DELAY_MS - 1 else "too early"


@pytest.mark.parametrize(("fields", "seen", "has_effect", "fate"), FAULTS, ids=lambda given: str(given)[:60])
def test_a_fault_for_a_commit(world: World, fields: Fields, seen: str, has_effect: bool, fate: str) -> None:
    offset_before = world.until(world.committed, lambda offset: offset == 1)
    said = {key: value for key, value in fields.items() if key != "effect"}
    with world.brokers.fault(fields["effect"], api="OffsetCommit", client=world.name, times=1, **said) as fault:
        assert _seen(world, world.client(world.coordinator), 5) == seen
        row = world.brokers.requests(world.name)[-1]
        assert (row["api"], row["fate"], row["rule"] is not None) == ("OffsetCommit", fate, True)
        assert fault.fired == 1
        assert world.until(world.committed, lambda offset: offset == 5 or not has_effect) == (
            5 if has_effect else offset_before
        )
        assert _seen(world, world.client(world.coordinator), 6) == "as ever", "times=1"
    assert world.committed() == 6


def test_an_error_for_one_partition(world: World) -> None:
    make = messages.OffsetCommitRequest
    rows = [make.OffsetCommitRequestPartition(partition_index=index, committed_offset=3) for index in (0, 1)]
    topics = [make.OffsetCommitRequestTopic(name=world.name, partitions=rows)]
    request = make(group_id=world.name, generation_id_or_member_epoch=-1, topics=topics)
    which = {"topic": world.name, "partition": 1, "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    with world.brokers.fault("error", api="OffsetCommit", **which) as fault:
        answer = world.client(world.coordinator).ask(ApiKey.OFFSET_COMMIT, 7, request)
        assert [row.error_code for row in answer.topics[0].partitions] == [0, 3]
        assert fault.fired == 1
    assert world.committed() == 3


def test_metadata_that_is_stale(world: World) -> None:
    def topics(client_id: str) -> set[str]:
        answer = world.client(0, client_id).ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))
        return {topic.name for topic in answer.topics}

    later = f"{world.name}-later"
    with world.brokers.fault("stale_metadata", client=world.name) as fault:
        assert world.make_topic(later) == 0
        world.until(lambda: topics("other"), lambda names: later in names)
        assert world.name in topics(world.name)
        assert later not in topics(world.name)
        assert fault.fired == 2
    assert later in topics(world.name)


# ------------------------------------------------------------------ which requests


def _list_offsets(topic: str) -> Any:
    make = messages.ListOffsetsRequest
    rows = [make.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return make(replica_id=-1, topics=[make.ListOffsetsTopic(name=topic, partitions=rows)])


Ask = Callable[[World], Any]


def _commit(**fields: Any) -> Ask:
    return lambda world: world.commit(world.client(world.coordinator), 2, **fields)


def _metadata(world: World) -> Any:
    return world.client(0).ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[]))


def _producer_id(suffix: str, node_id: int = 0) -> Ask:
    def asked(world: World) -> Any:
        request = messages.InitProducerIdRequest(transactional_id=world.name + suffix, transaction_timeout_ms=9_000)
        return world.client(node_id).ask(ApiKey.INIT_PRODUCER_ID, 4, request)

    return asked


def _of_other_client(world: World) -> Any:
    return world.commit(world.client(world.coordinator, "other"), 2)


def _of_leader(world: World) -> Any:
    return world.client(world.leader()).ask(ApiKey.LIST_OFFSETS, 5, _list_offsets(world.name))


def _of_nobody(world: World) -> Any:
    """A topic that nobody leads; of three brokers, one that does not lead."""
    others = [node for node in world.brokers.ports if node != world.leader()]
    if not others:
        return world.client(0).ask(ApiKey.LIST_OFFSETS, 5, _list_offsets(f"{world.name}-none"))
    return world.client(others[0]).ask(ApiKey.LIST_OFFSETS, 5, _list_offsets(world.name))


def _not_at_coordinator(world: World) -> Any:
    others = [node for node in world.brokers.ports if node != world.coordinator]
    return world.commit(world.client(others[0]), 2) if others else _metadata(world)


def _at_coordinator_of_transaction(world: World) -> Any:
    return _producer_id("", world.coordinator_of(world.name, 1))(world)


def _not_at_coordinator_of_transaction(world: World) -> Any:
    _transaction(world, "other")
    others = [node for node in world.brokers.ports if node != world.coordinator_of(world.name, 1)]
    return _producer_id("", others[0])(world) if others else _metadata(world)


def _at_controller(world: World) -> Any:
    return world.client(world.controller).ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[]))


def _not_at_controller(world: World) -> Any:
    others = [node for node in world.brokers.ports if node != world.controller]
    for node in others:
        world.client(node).ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[]))


# A filter (NAME: that of the test's topic and group), a request that it lets through, and one that it does not.
FILTERS: list[tuple[Fields, Ask, Ask]] = [
    ({"api": "OffsetCommit"}, _commit(), _metadata),
    ({"versions": [6, 6], "client": "NAME"}, _commit(version=6), _commit(version=7)),
    ({"client": "NAME"}, _commit(), _of_other_client),
    ({"group": "NAME", "client": "NAME"}, _commit(), _commit(group="another")),
    ({"topic": "NAME", "api": "OffsetCommit"}, _commit(), _metadata),
    ({"topic": "NAME", "partition": 1}, _commit(partition=1), _commit(partition=0)),
    ({"transactional_id": "NAME"}, _producer_id(""), _producer_id("-other")),
    ({"role": "leader", "client": "NAME"}, _of_leader, _of_nobody),
    ({"role": "coordinator", "client": "NAME"}, _commit(), _not_at_coordinator),
    (
        {"role": "coordinator", "transactional_id": "NAME", "client": "NAME"},
        *(_at_coordinator_of_transaction, _not_at_coordinator_of_transaction),
    ),
    ({"role": "controller", "client": "NAME"}, _at_controller, _not_at_controller),
]


@pytest.mark.parametrize(("fields", "asks", "asks_other"), FILTERS, ids=[f"{row[0]}"[:50] for row in FILTERS])
def test_which_requests_get_it(world: World, fields: Fields, asks: Ask, asks_other: Ask) -> None:
    named = {key: world.name if value == "NAME" else value for key, value in fields.items()}
    with world.brokers.fault("throttle", ms=7, **named) as fault:
        asks_other(world)
        assert fault.fired == 0
        answer = asks(world)
        assert answer.throttle_time_ms == 7
        assert fault.fired == 1


HOW_OFTEN: list[tuple[Fields, list[int]]] = [
    ({"nth": 3}, [0, 0, 7, 7, 7, 7]),
    ({"every": 2}, [7, 0, 7, 0, 7, 0]),
    ({"times": 2}, [7, 7, 0, 0, 0, 0]),
    ({"nth": 2, "every": 3, "times": 1}, [0, 7, 0, 0, 0, 0]),
    ({"probability": 0.0}, [0, 0, 0, 0, 0, 0]),
]


def _throttles(world: World, count: int = 6, **fields: Any) -> list[int]:
    client = world.client(0)
    with world.brokers.fault("throttle", ms=7, api="Metadata", client=world.name, **fields) as fault:
        asked = [client.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[])) for _ in range(count)]
        found = [answer.throttle_time_ms for answer in asked]
        assert fault.fired == found.count(7)
    return found


@pytest.mark.parametrize(("fields", "throttles"), HOW_OFTEN, ids=str)
def test_how_often_it_fires(world: World, fields: Fields, throttles: list[int]) -> None:
    assert _throttles(world, **fields) == throttles


def test_a_probability_has_a_seed(world: World) -> None:
    first, again = (_throttles(world, 20, probability=0.5, seed=4) for _ in range(2))
    assert first == again
    assert set(first) == {0, 7}


def test_what_kafka_never_answers_is_refused_unless_it_is_forced(world: World) -> None:
    which = {"api": "Heartbeat", "error": "TOPIC_ALREADY_EXISTS", "client": world.name}
    refused = pytest.raises(REFUSED, match="Kafka never answers Heartbeat with TOPIC_ALREADY_EXISTS")
    with refused, world.brokers.fault("error", **which):
        pass
    request = messages.HeartbeatRequest(group_id=world.name, generation_id=1, member_id="m")
    with world.brokers.fault("error", **which, forced=True) as fault:
        assert world.client(0).ask(ApiKey.HEARTBEAT, 3, request).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert fault.fired == 1


# ------------------------------------------------------------------ faults of the machine


def test_a_disk_that_is_full_for_a_topic(world: World) -> None:
    assert world.until(world.produce, lambda error: not error) is ErrorCode.NONE
    with world.brokers.fault("disk_full", topic=world.name) as fault:
        assert world.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert fault.fired >= 1
    world.until(world.produce, lambda error: not error)


def test_a_disk_that_is_full(world: World) -> None:
    world.until(world.produce, lambda error: not error)
    leader = world.until(world.settled_leader, lambda found: found >= 0)
    with world.brokers.fault("disk_full", node_id=leader) as fault:
        assert world.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert fault.fired >= 1
    world.until(world.produce, lambda error: not error)


def test_one_write_that_finds_no_room(world: World) -> None:
    world.until(world.produce, lambda error: not error)
    leader = world.until(world.settled_leader, lambda found: found >= 0)
    which = {"node_id": leader, "topic": world.name, "partition": 0, "times": 1}
    with world.brokers.fault("disk_full", **which) as fault:
        assert world.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        world.until(world.produce, lambda error: not error)
        assert fault.fired == 1


def test_a_log_that_fails(world: World) -> None:
    while True:
        world.until(world.produce, lambda error: not error)
        leader = world.until(world.settled_leader, lambda found: found >= 0)
        with world.brokers.fault("log_failed", node_id=leader, topic=world.name) as fault:
            error = world.produce()
            fired = fault.fired
        if error is ErrorCode.KAFKA_STORAGE_ERROR:
            break
        # Another had come to lead just then. The log may have failed as that of a follower.
        assert error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE)
        if fired:
            world.name += "-again"
            world.make_topic(world.name)
    assert fired >= 1
    if len(world.brokers.ports) == 1:
        assert world.until(world.leader, lambda found: found < 0) < 0, "nobody has another copy"
    else:
        assert world.until(world.leader, lambda found: found not in (-1, leader)) >= 0
        world.until(world.produce, lambda error: not error)


@pytest.mark.parametrize("effect", ["tree_unreachable", "isolated"])
def test_a_broker_that_does_not_reach_the_tree(world: World, effect: str) -> None:
    later = f"{world.name}-later"
    with world.brokers.fault(effect, node_id=world.controller) as fault:
        assert world.make_topic(later) != 0, "the controller cannot write it down"
        assert fault.fired >= 1
        world.client(world.controller).ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[]))  # clients reach it
    world.until(lambda: _made(world, later), bool)
    world.until(world.produce, lambda error: not error)


def _made(world: World, name: str) -> bool:
    world.controller = world.client(0, "any").ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[])).controller_id
    made = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    return world.controller >= 0 and world.make_topic(name) in made


# ------------------------------------------------------------------ waits


class Member:
    """The only member of the test's group."""

    def __init__(self, world: World) -> None:
        self.client = world.client(world.coordinator)
        join = messages.JoinGroupRequest
        request = join(
            group_id=world.name,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[join.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        answer = self.client.ask(ApiKey.JOIN_GROUP, 3, request)
        assert answer.error_code == 0
        self.member_id, self.generation = answer.member_id, answer.generation_id
        sync = messages.SyncGroupRequest
        assigned = [sync.SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"")]
        self.request = sync(
            group_id=world.name, generation_id=self.generation, member_id=self.member_id, assignments=assigned
        )

    def sync(self) -> None:
        """Take the assignment, so that the group is stable."""
        assert self.client.ask(ApiKey.SYNC_GROUP, 2, self.request).error_code == 0


def _transaction(world: World, client_id: str = "") -> None:
    """One begins, and does nothing."""
    request = messages.InitProducerIdRequest(transactional_id=world.name, transaction_timeout_ms=9_000)

    def begun() -> int:
        node = world.coordinator_of(world.name, 1)
        return int(world.client(node, client_id).ask(ApiKey.INIT_PRODUCER_ID, 4, request).error_code)

    world.until(begun, lambda error: error == 0)


def _delete(world: World) -> None:
    make = messages.DeleteRecordsRequest
    rows = [make.DeleteRecordsPartition(partition_index=0, offset=-1)]
    request = make(topics=[make.DeleteRecordsTopic(name=world.name, partitions=rows)], timeout_ms=20_000)

    def deleted() -> int:
        answer = world.client(world.leader()).ask(ApiKey.DELETE_RECORDS, 1, request)
        return int(answer.topics[0].partitions[0].error_code)

    world.until(deleted, lambda error: error == 0)


def _delete_topic(world: World) -> None:
    request = messages.DeleteTopicsRequest(topic_names=[world.name], timeout_ms=20_000)
    world.client(world.controller).ask(ApiKey.DELETE_TOPICS, 4, request)


def _make_topic(world: World) -> None:
    """The one of this test, again."""
    world.until(lambda: _made(world, world.name), bool)


def _produce(world: World) -> None:
    world.until(world.produce, lambda error: not error)


def _nothing(world: World) -> None:
    """It is so already."""


# What is waited for, of the topic, group or transaction of this test; what makes it so; what is seen then; before it,
# what there is to be done; and what the error says where it does not become so.
WAITS: list[tuple[str, Fields, Callable[[World], None], Fields, Callable[[World], None], str]] = [
    ("groups", {"state": "Stable"}, lambda world: Member(world).sync(), {"state": "Stable"}, _nothing, "seen Empty"),
    ("groups", {"members": 1}, lambda world: Member(world).sync(), {}, _nothing, "with 0 members"),
    ("groups", {"lag": 0}, lambda world: world.commit(world.client(world.coordinator), 2), {"lag": 0},
     lambda world: [_produce(world), _produce(world)], "1 record behind"),
    ("topics", {"exists": False}, _delete_topic, {"exists": False}, _nothing, "seen with 2 partitions"),
    ("topics", {"exists": True}, _make_topic, {"partitions": 2}, _delete_topic, "there is no topic"),
    ("topics", {"records": 1}, _produce, {"records": 1}, _nothing, "and 0 records"),
    ("topics", {"records_at_most": 0}, _delete, {"records": 0}, _produce, "and 1 record"),
    ("transactions", {"state": "Empty"}, _transaction, {"state": "Empty"}, _nothing, "no coordinator knows"),
    ("transactions", {}, _transaction, {"state": "Empty"}, _nothing, "no coordinator knows"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "query", "deed", "seen", "before", "says"), WAITS, ids=[f"{row[0]}-{row[1]}" for row in WAITS]
)
def test_a_wait(
    world: World,
    kind: str,
    query: Fields,
    deed: Callable[[World], None],
    seen: Fields,
    before: Callable[[World], None],
    says: str,
) -> None:
    before(world)
    if kind == "groups" and "lag" in query:
        world.commit(world.client(world.coordinator), 1)

    def refused() -> str:
        with pytest.raises(REFUSED) as caught:
            world.brokers.wait(kind, world.name, timeout_ms=50, **query)
        return str(caught.value)

    # After the faults of the tests before, a group may be on its way to another broker: then that is said first.
    world.until(refused, lambda text: says in text)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(world.brokers.wait, kind, world.name, **query)
        deed(world)
        found = waiting.result()
    assert seen.items() <= found.items()


def test_a_wait_for_replicas_in_sync(world: World) -> None:
    count = len(world.brokers.ports)
    assert world.brokers.wait("topics", world.name, in_sync=count)["in_sync"] == count
    with pytest.raises(REFUSED, match=f"{count} replicas? in sync where they are fewest"):
        world.brokers.wait("topics", world.name, timeout_ms=50, in_sync=count + 1)
    with pytest.raises(REFUSED, match="there is no topic"):
        world.brokers.wait("topics", f"{world.name}-none", timeout_ms=50)


def test_a_wait_that_is_over_says_why_a_group_has_rebalanced(world: World) -> None:
    Member(world)
    with pytest.raises(REFUSED, match=r"last seen CompletingRebalance with 1 member,.* Its last rebalance: "):
        world.brokers.wait("groups", world.name, timeout_ms=50, state="Stable")


def test_a_wait_for_requests_and_for_a_fault(world: World) -> None:
    with pytest.raises(REFUSED, match=r"waited for 1 request: 0 came|0 of 1 such requests were answered"):
        world.brokers.wait_requests("nobody", timeout_ms=50)
    client, asked = world.client(0, f"{world.name}-asks"), messages.MetadataRequest(topics=[])
    holds = world.brokers.fault("throttle", node_id=0, ms=7, client=client.client_id)
    with holds as fault, ThreadPoolExecutor() as threads:
        waiting = threads.submit(world.brokers.wait_requests, client.client_id, api="Metadata", count=2)
        fires = threads.submit(fault.wait_fired, 2)
        for _ in range(2):
            client.ask(ApiKey.METADATA, 9, asked)
        rows = waiting.result()
        assert [row["answer"]["throttle_time_ms"] for row in rows] == [7, 7]
        fires.result()
    later = rows[-1]["number"] + 1
    with pytest.raises(REFUSED):
        world.brokers.wait_requests(client.client_id, timeout_ms=50, since=later)
    assert client.ask(ApiKey.METADATA, 9, asked).throttle_time_ms == 0
    assert len(world.brokers.wait_requests(client.client_id, since=later)) == 1


SOME_REQUESTS: list[Fields] = [{"api": "OffsetCommit"}, {"group": "NAME"}, {"topic": "NAME"}]


@pytest.mark.parametrize("which", SOME_REQUESTS, ids=str)
def test_a_wait_for_some_requests(world: World, which: Fields) -> None:
    named = {key: world.name if value == "NAME" else value for key, value in which.items()}
    client = world.client(0, f"{world.name}-asks")
    client.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[]))
    with pytest.raises(REFUSED):
        world.brokers.wait_requests(client.client_id, timeout_ms=50, **named)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(world.brokers.wait_requests, client.client_id, **named)
        world.commit(client, 2)
        assert [row["api"] for row in waiting.result()] == ["OffsetCommit"]


# ------------------------------------------------------------------ members and time


def test_a_member_is_taken_out(world: World) -> None:
    member = Member(world)
    member.sync()
    assert world.brokers.expire_member(world.name, member.member_id) == member.member_id
    beat = messages.HeartbeatRequest(group_id=world.name, generation_id=member.generation, member_id=member.member_id)
    assert member.client.ask(ApiKey.HEARTBEAT, 3, beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.brokers.wait("groups", world.name, members=0)["state"] == "Empty"


def test_eight_days_pass(world: World) -> None:
    old = f"{world.name}-old"
    assert world.make_topic(old, retention_ms=str(DAY_MS)) == 0
    world.brokers.wait("topics", old, in_sync=len(world.brokers.ports))
    name = world.name
    for topic in (old, name):
        world.until(lambda topic=topic: world.produce(topic), lambda error: not error)  # type: ignore[misc]
    Member(world).sync()
    quiet = f"{name}-quiet"
    world.until(
        lambda: world.commit(world.client(world.coordinator_of(quiet)), 1, group=quiet), lambda found: not _error(found)
    )
    before_ms = world.brokers.advance(0)
    assert world.brokers.advance(8 * DAY_MS) >= before_ms + 8 * DAY_MS
    assert world.brokers.wait("topics", old, records_at_most=0)["records"] == 0
    assert world.brokers.wait("topics", name, records=1)["records"] == 1
    assert world.brokers.wait("groups", name, members=1)["state"] == "Stable", "who lives stays"
    with pytest.raises(REFUSED, match="there is no group"):
        world.brokers.wait("groups", quiet, timeout_ms=50)
    world.brokers.advance(0, sessions="expire")
    assert world.brokers.wait("groups", name, members=0)["state"] == "Empty"


def test_time_stands_still(world: World) -> None:
    world.brokers.stand(True)
    try:
        stood_ms = world.brokers.advance(0)
        assert world.brokers.advance(DAY_MS) == stood_ms + DAY_MS
        assert world.brokers.advance(0) == stood_ms + DAY_MS
    finally:
        world.brokers.stand(False)
    world.until(lambda: world.brokers.advance(0), lambda now_ms: now_ms > stood_ms + DAY_MS)


# ------------------------------------------------------------------ what this file has to have

NOT_WAITED_FOR = {"timeout_ms", "client"}  # of all waits, and of all for requests


def _commanded_here() -> tuple[set[str], set[str], set[str]]:
    """Effects, fields of rules, and parameters of waits, as the tables and the calls in this file have them."""
    rows = [*(row[0] for row in FAULTS), *(row[0] for row in FILTERS), *(row[0] for row in HOW_OFTEN)]
    effects = {row["effect"] for row in rows if "effect" in row}
    fields, waits = {name for row in rows for name in row}, {name for row in WAITS for name in row[1]}
    waits |= {name for row in SOME_REQUESTS for name in row}
    for call in ast.walk(ast.parse(Path(__file__).read_text())):
        if not isinstance(call, ast.Call):
            continue
        is_submitted = isinstance(call.func, ast.Attribute) and call.func.attr == "submit"
        function = call.args[0] if is_submitted else call.func
        called = getattr(function, "attr", getattr(function, "id", ""))
        names = {each.arg for each in call.keywords if each.arg}
        if called == "fault":
            effects |= {each.value for each in call.args if isinstance(each, ast.Constant)}
            fields |= names
        elif called == "_throttles":
            fields |= names
        elif called in ("wait", "wait_requests"):
            waits |= names
        elif called == "wait_fired":  # its parameter is positional
            waits.add("fired")
        elif called == "parametrize" and isinstance(call.args[0], ast.Constant) and call.args[0].value == "effect":
            effects |= set(ast.literal_eval(call.args[1]))
    return effects, fields, waits


def test_every_fault_filter_and_wait_is_tested_here() -> None:
    """What the code has anew belongs into the tables of this file: on one and three brokers, and over HTTP."""
    effects, fields, waits = _commanded_here()
    assert {each.value for each in Effect} - effects == set()
    assert RULE_FIELDS.keys() - fields - {"effect"} == set()
    assert {each.value for each in Role} == {row[0]["role"] for row in FILTERS if "role" in row[0]}
    routes.load()
    asked = {each.name for (_, path), row in routes.TABLE.items() if path.endswith("/wait") for each in row.query}
    assert asked - waits - NOT_WAITED_FOR == set()
