"""The gate with an authorizer: somebody without rights changes nothing, hears nothing, and gets Kafka's errors.

The test goes through the table of APIs, so that a new one cannot forget its row's `access`.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker import connection, requests
from barnabas.broker.access import rules as rules_access
from barnabas.broker.access import topics as topics_access
from barnabas.broker.http import routes
from barnabas.broker.requests import TABLE
from barnabas.cluster.security.acls import Acl, AclFilter, AclOperation, PatternType, Permission, Resource, ResourceType
from barnabas.cluster.security.authorizer import Rights
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Struct
from barnabas.protocol.schema import Structure
from simulator import clock

World = Any  # of conftest.py
ADMIN = "User:admin"
ROWS = 200
TOPIC, GROUP, TXN = "secret-topic", "secret-group", "secret-txn"
NOT_AUTHORISED = {
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,  # over a listener where nobody is known
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# What everybody may ask: the answers have no name and change nothing. SASL is asked for before there is a principal.
FOR_EVERYBODY = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
LISTS = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}  # in which everything is left out
WITHOUT_A_PLACE = {(ApiKey.DESCRIBE_LOG_DIRS, version) for version in range(3)}  # for an error of the request
REQUESTS = {
    (line["key"], line["version"]): bytes.fromhex(line["request"])
    for line in map(
        json.loads, (Path(__file__).parent.parent / "golden" / "wire" / "requests.jsonl").read_text().splitlines()
    )
}
EACH = [
    (key, version) for key, row in sorted(TABLE.items()) for version in range(row.first_version, row.last_version + 1)
]


def as_principal(world: World, principal: str) -> Any:
    """A connection of this principal."""
    client = world.env.run(world.connect())
    connection = max(world.broker.server.connections, key=lambda each: each.number)
    connection.principal = principal
    return client


def ask(world: World, principal: str, api: ApiKey, version: int, request: Any) -> Any:
    """The decoded answer to a request of this principal."""
    client = as_principal(world, principal)
    answer = world.env.run(client.ask(api, version, request))
    client.transport.close()
    return answer


@pytest.fixture(scope="module")
def guarded(make_world: type[World]) -> Iterator[World]:
    """A broker with an authorizer, and things in it that only the administrator knows."""
    world = make_world(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users=f"{ADMIN};User:other",
    )
    create = messages.CreateTopicsRequest
    topics = [create.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)]
    (result,) = ask(world, ADMIN, ApiKey.CREATE_TOPICS, 7, create(topics=topics, timeout_ms=10_000)).topics
    assert result.error_code == 0
    for key, type in ((GROUP, 0), (TXN, 1)):
        find = messages.FindCoordinatorRequest(key=key, key_type=type)
        assert ask(world, ADMIN, ApiKey.FIND_COORDINATOR, 3, find).error_code == 0
    commit = messages.OffsetCommitRequest
    partition = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    request = commit(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        topics=[commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    assert ask(world, ADMIN, ApiKey.OFFSET_COMMIT, 9, request).topics[0].partitions[0].error_code == 0
    init = messages.InitProducerIdRequest(transactional_id=TXN, transaction_timeout_ms=60_000)
    assert ask(world, ADMIN, ApiKey.INIT_PRODUCER_ID, 4, init).error_code == 0
    yield world
    world.env.run(world.broker.stop())
    assert world.broker.request_gate.handler_failures == 0
    assert world.escaped == []


def tree_of(world: World) -> dict[str, tuple[bytes, int]]:
    """Every node of the tree, with its data and version."""
    coordination = world.broker.coordination
    found = {}

    async def walk(path: str) -> None:
        data, stat = await coordination.get(path)
        found[path] = data, stat.version
        for name in await coordination.children(path):
            await walk(f"{path.rstrip('/')}/{name}")

    world.env.run(walk("/"))
    for path in list(found):
        if path.startswith("/barnabas/tree_marks"):  # the broker counts there now and then
            del found[path]
    return found


def logs_of(world: World) -> dict[tuple[str, int], tuple[int, int]]:
    """Where each log begins and ends."""
    partitions = world.broker.replica_manager.partitions
    return {key: (each.log.log_start_offset, each.log.log_end_offset) for key, each in partitions.items()}


def about_secrets(value: Any, topic_id: bytes) -> Any:
    """The same request, about the things that only the administrator knows."""
    kind = type(value).__name__
    for name in value._FIELDS:
        field = getattr(value, name)
        if not field:
            continue
        if name in ("topic", "topic_name") or (name == "name" and "Topic" in kind and "Config" not in kind):
            setattr(value, name, TOPIC if isinstance(field, str) else field)
        elif name == "topic_id" and any(field):
            value.topic_id = topic_id
        elif name == "group_id" or (name == "key" and getattr(value, "key_type", None) == 0):
            setattr(value, name, GROUP)
        elif name == "resource_name":
            value.resource_name = TOPIC
        elif name.endswith("transactional_id"):
            setattr(value, name, TXN)
        elif name in ("groups", "groups_names", "group_ids", "coordinator_keys") and all(
            isinstance(each, str) for each in field
        ):
            setattr(value, name, [GROUP])
        elif name in ("topic_names", "subscribed_topic_names"):
            setattr(value, name, [TOPIC])
        elif name == "transactional_ids":
            value.transactional_ids = [TXN]
        elif isinstance(field, list):
            for each in field:
                if isinstance(each, Struct):
                    about_secrets(each, topic_id)
    return value


def error_codes(value: Any, structure: Structure, version: int) -> set[int]:
    """Every error code that this version of a message has, at whatever depth."""
    found = set()
    for field in structure.fields:
        if not field.is_in(version):
            continue
        content = getattr(value, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.add(content)
        elif field.structure is not None and content is not None:
            for entry in content if field.array else [content]:
                found |= error_codes(entry, field.structure, version)
    return found


def request_of(world: World, key: int, version: int) -> Any:
    recorded = REQUESTS.get((key, version)) or REQUESTS.get((key, version - 1))
    if recorded is None:  # what brokers send each other was not recorded
        request: Any = messages.request_class(key)()
        if isinstance(request, messages.WriteTxnMarkersRequest):
            topic = request.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])
            request.markers = [request.WritableTxnMarker(topics=[topic])]
    else:
        _, request = frames.decode_request(memoryview(recorded))
    if key == ApiKey.METADATA:
        request.topics = [messages.MetadataRequest.MetadataRequestTopic(name=TOPIC)]
    return about_secrets(request, world.broker.metadata_cache.topic_id(TOPIC))


@pytest.mark.parametrize(("key", "version"), EACH)
def test_somebody_without_rights_changes_nothing_and_hears_nothing(guarded: World, key: int, version: int) -> None:
    request = request_of(guarded, key, version)
    if key == ApiKey.PRODUCE:
        request.acks = 1
    before, logs = tree_of(guarded), logs_of(guarded)
    client = as_principal(guarded, "User:nobody")

    async def exchange() -> bytes | None:
        client.transport.write(frames.encode_request(key, version, 1, "test", request))
        answered: bytes | None = await client.answer()
        client.transport.close()
        return answered

    answer = guarded.env.run(exchange())
    assert answer is not None, "closed"
    assert tree_of(guarded) == before
    assert logs_of(guarded) == logs
    _, response = frames.decode_response(key, version, memoryview(answer))
    codes = error_codes(response, response.SCHEMA.root, version) - {ErrorCode.NONE}
    if key in FOR_EVERYBODY:
        assert b"secret" not in answer
        return
    if key in LISTS or (key, version) in WITHOUT_A_PLACE:
        assert codes == set()
        assert b"secret" not in answer
        return
    assert codes, "no error"
    assert codes <= NOT_AUTHORISED, codes


def asks_for_all(key: int, version: int) -> Any:
    """A request for everything of a kind; None: this version cannot ask that."""
    request: Any = messages.request_class(key)()
    if key == ApiKey.METADATA:
        request.topics = None if version else []
        request.include_topic_authorized_operations = version >= 8
    elif key == ApiKey.OFFSET_FETCH and version >= 8:
        request.groups = [messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="own-group", topics=None)]
    elif key == ApiKey.OFFSET_FETCH and version >= 2:
        request.group_id, request.topics = "own-group", None
    elif key not in LISTS | {ApiKey.DESCRIBE_TOPIC_PARTITIONS}:
        return None
    return request


EVERYTHING = [(key, version) for key, version in EACH if asks_for_all(key, version) is not None]


@pytest.mark.parametrize(("key", "version"), EVERYTHING)
def test_a_list_of_all_leaves_out_what_may_not_be_known(guarded: World, key: int, version: int) -> None:
    answer = ask(guarded, "User:nobody", ApiKey(key), version, asks_for_all(key, version))
    assert "secret" not in repr(answer)
    full = ask(guarded, ADMIN, ApiKey(key), version, asks_for_all(key, version))
    assert "secret" in repr(full) or key == ApiKey.OFFSET_FETCH


def test_an_id_does_not_tell_the_name(guarded: World) -> None:
    topic_id = guarded.broker.metadata_cache.topic_id(TOPIC)
    asked = messages.MetadataRequest.MetadataRequestTopic(name=None, topic_id=topic_id)
    answer = ask(guarded, "User:nobody", ApiKey.METADATA, 12, messages.MetadataRequest(topics=[asked]))
    (topic,) = answer.topics
    assert (topic.name, topic.topic_id, topic.error_code) == (None, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    wanted = messages.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
    request = messages.DeleteTopicsRequest(topics=[wanted], timeout_ms=1_000)
    (result,) = ask(guarded, "User:nobody", ApiKey.DELETE_TOPICS, 6, request).responses
    assert (result.name, result.error_code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def rows_of_many(key: ApiKey) -> Any:
    """A request about many topics, every third of which everybody may see and change."""
    names = [f"{'open' if number % 3 == 0 else 'secret'}-{number}" for number in range(ROWS)]
    if key is ApiKey.METADATA:
        metadata = messages.MetadataRequest
        return metadata(
            topics=[metadata.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
    if key is ApiKey.LIST_OFFSETS:
        lists = messages.ListOffsetsRequest
        partitions = [lists.ListOffsetsPartition(partition_index=0, timestamp=-1)]
        return lists(topics=[lists.ListOffsetsTopic(name=name, partitions=partitions) for name in names])
    if key is ApiKey.DELETE_GROUPS:
        return messages.DeleteGroupsRequest(groups_names=names)
    commit = messages.OffsetCommitRequest
    row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return commit(
        group_id="open", topics=[commit.OffsetCommitRequestTopic(name=name, partitions=[row]) for name in names]
    )


@pytest.fixture(scope="module")
def partly_open(make_world: type[World]) -> Iterator[World]:
    """A broker at which everybody may do everything with what begins with "open"."""
    world = make_world(authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    resources = [Resource(type, "open", PatternType.PREFIXED) for type in (ResourceType.TOPIC, ResourceType.GROUP)]
    rules = [Acl(resource, "User:*", "*", AclOperation.ALL, Permission.ALLOW) for resource in resources]
    world.env.run(world.broker.request_gate.authorizer.add(rules))
    find = messages.FindCoordinatorRequest(key="open", key_type=0)
    assert ask(world, "User:mallory", ApiKey.FIND_COORDINATOR, 3, find).error_code == 0
    yield world
    world.env.run(world.broker.stop())
    assert world.broker.request_gate.handler_failures == 0
    assert world.escaped == []


MANY = [(ApiKey.METADATA, 9), (ApiKey.LIST_OFFSETS, 7), (ApiKey.DELETE_GROUPS, 2), (ApiKey.OFFSET_COMMIT, 8)]


@pytest.mark.parametrize(("key", "version"), MANY)
def test_a_request_with_very_many_rows_is_asked_for_rights_in_turns(
    partly_open: World, monkeypatch: pytest.MonkeyPatch, key: ApiKey, version: int
) -> None:
    """Nobody else waits until all rows have been looked at; and the answer is that to a short request."""
    monkeypatch.setattr(connection, "DECODED_AT_ONCE_BYTES_MAX", 1 << 30)
    short = ask(partly_open, "User:mallory", key, version, rows_of_many(key))
    monkeypatch.setattr(connection, "DECODED_AT_ONCE_BYTES_MAX", 400)
    monkeypatch.setattr(clock, "WORK_STEP_MS", 1.0)
    for part in (rules_access, topics_access):
        monkeypatch.setattr(part, "ROWS_PER_PIECE", 4)
    refused = 0
    note = requests.note_no_right

    def counted(*what: Any) -> bool:
        nonlocal refused
        refused += 1
        return note(*what)

    monkeypatch.setattr(requests, "note_no_right", counted)
    client = as_principal(partly_open, "User:mallory")

    async def run() -> tuple[Any, int]:
        client.send(key, version, rows_of_many(key))
        most = 0
        while not client.data:
            before = refused
            await asyncio.sleep(0)
            most = max(most, refused - before)
        return frames.decode_response(key, version, memoryview(await client.answer()))[1], most

    answer, most = partly_open.env.run(run())
    client.transport.close()
    assert answer == short
    assert refused == sum(number % 3 != 0 for number in range(ROWS))
    assert 0 < most < ROWS / 4


def test_the_log_names_the_rule_that_refuses(guarded: World, caplog: pytest.LogCaptureFixture) -> None:
    """Who, from where, what, and by which rule: once a minute for each principal, however it is asked."""
    denied = Acl(Resource(ResourceType.TOPIC, "audit"), "User:mallory", "*", AclOperation.WRITE, Permission.DENY)
    guarded.env.run(guarded.broker.request_gate.authorizer.add([denied]))
    produce = messages.ProduceRequest
    topic = produce.TopicProduceData(name="audit", partition_data=[produce.PartitionProduceData(index=0, records=b"")])
    with caplog.at_level(logging.INFO, "barnabas.broker.refusals"):
        for principal in ("User:mallory", "User:mallory", "User:trent"):
            ask(guarded, principal, ApiKey.PRODUCE, 9, produce(acks=1, topic_data=[topic]))
    guarded.env.run(guarded.broker.request_gate.authorizer.remove(AclFilter(name="audit")))
    assert [message.partition("TOPIC_AUTHORIZATION_FAILED: ")[2] for message in caplog.messages] == [
        "User:mallory has no right to write topic 'audit': a rule denies it: User:mallory may not write topic audit",
        "User:trent has no right to write topic 'audit': no rule allows it",
    ]


def test_the_log_tells_of_paths_that_are_for_super_users_only(guarded: World, caplog: pytest.LogCaptureFixture) -> None:
    routes.load()
    row = next(row for row in routes.TABLE.values() if row.access is None and not row.is_open)
    request = routes.HttpRequest(row.method, row.path, {}, {}, None, "/192.0.2.9", "curl")
    request.principal = "User:mallory"
    with caplog.at_level(logging.INFO, "barnabas.broker.refusals"), pytest.raises(routes.HttpError):
        guarded.broker.request_gate.handle_http(row, request, lambda error: None)
    [line] = caplog.messages
    assert line.startswith("another request of client 'curl' at 192.0.2.9: CLUSTER_AUTHORIZATION_FAILED: ")
    assert f"User:mallory is none of super.users, and {row.method} {row.path} is for these only" in line


@pytest.mark.parametrize("rule_host", ["2001:db8::7", "2001:db8:0:0:0:0:0:7", "2001:DB8::0007"])
def test_an_address_of_ipv6_is_shown_as_kafka_shows_it(
    guarded: World, rule_host: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And a rule is about it, however it is written there."""
    caplog.set_level(logging.INFO, "barnabas.broker.refusals")
    authorizer = guarded.broker.request_gate.authorizer
    resource = Resource(ResourceType.GROUP, "far-group")
    rules = [
        Acl(resource, "User:far", host, AclOperation.READ, permission)
        for host, permission in (("*", Permission.ALLOW), (rule_host, Permission.DENY))
    ]
    guarded.env.run(guarded.env.clock.sleep(61_000))  # what was told is told again
    guarded.env.run(authorizer.add(rules))
    beat = messages.HeartbeatRequest(group_id="far-group", generation_id=1, member_id="m")

    async def asked(source: str) -> int:
        client = await guarded.connect(source)
        max(guarded.broker.server.connections, key=lambda each: each.number).principal = "User:far"
        answer = await client.ask(ApiKey.HEARTBEAT, 4, beat)
        client.transport.close()
        return int(answer.error_code)

    assert guarded.env.run(asked("2001:db8::8")) != ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert guarded.env.run(asked("2001:db8::7")) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    guarded.env.run(authorizer.remove(AclFilter(name="far-group")))
    assert "at 2001:db8:0:0:0:0:0:7: GROUP_AUTHORIZATION_FAILED" in caplog.text
    assert f"a rule denies it: User:far from {rule_host} may not read group far-group" in caplog.text


def test_a_refusal_that_is_not_logged_looks_for_no_rule(
    guarded: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "barnabas.broker.refusals")
    looked = 0
    decision = Rights.decision

    def counted(self: Rights, *asked: Any) -> Any:
        nonlocal looked
        looked += 1
        return decision(self, *asked)

    monkeypatch.setattr(Rights, "decision", counted)
    request = messages.DeleteGroupsRequest(groups_names=["one"] * 20)
    ask(guarded, "User:carol", ApiKey.DELETE_GROUPS, 2, request)
    assert looked == 2, "one for the decision, which is remembered, and one for the line"


def test_every_row_says_what_it_asks_for() -> None:
    assert requests._nobody not in {row.access for row in TABLE.values()}
