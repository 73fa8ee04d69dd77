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
from barnabas.broker.api import acls as api_acls
from barnabas.broker.http import routes
from barnabas.broker.requests import TABLE
from barnabas.cluster.metadata_cache import NO_TOPIC_ID
from barnabas.cluster.security import acl_nodes
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
    world.end()


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


@pytest.mark.parametrize("version", range(2, 11))
def test_all_offsets_of_a_group_are_those_of_topics_that_may_be_known(guarded: World, version: int) -> None:
    """From version 10 on the answer names topics by their ids only."""
    group, topic = Resource(ResourceType.GROUP, GROUP), Resource(ResourceType.TOPIC, TOPIC)
    every = Resource(ResourceType.TOPIC, "*")
    describe, allow, deny = AclOperation.DESCRIBE, Permission.ALLOW, Permission.DENY
    rules = [
        *(Acl(group, f"User:{user}", "*", describe, allow) for user in ("knows", "knows-all", "knows-none")),
        Acl(topic, "User:knows", "*", describe, allow),
        Acl(every, "User:knows-all", "*", describe, allow),
        Acl(every, "User:knows-none", "*", describe, allow),
        Acl(topic, "User:knows-none", "*", describe, deny),
    ]
    guarded.env.run(guarded.broker.request_gate.authorizer.add(rules))
    fetch = messages.OffsetFetchRequest
    request = fetch(group_id=GROUP, topics=None)
    if version >= 8:
        request = fetch(groups=[fetch.OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    seen = {}
    for user in ("knows", "knows-all", "knows-none"):
        answer = ask(guarded, f"User:{user}", ApiKey.OFFSET_FETCH, version, request)
        topics = answer.topics if version < 8 else answer.groups[0].topics
        seen[user] = [each.name or guarded.broker.metadata_cache.topic_name(each.topic_id) for each in topics]
    assert seen == {"knows": [TOPIC], "knows-all": [TOPIC], "knows-none": []}
    for rule in rules:
        guarded.env.run(guarded.broker.request_gate.authorizer.remove(AclFilter(principal=rule.principal)))


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


def given(world: World, principal: str, *rights: tuple[AclOperation, ResourceType, str]) -> str:
    """The principal, which may do this and nothing else."""
    rules = [Acl(Resource(type, name), principal, "*", operation, Permission.ALLOW) for operation, type, name in rights]
    world.env.run(world.broker.request_gate.authorizer.add(rules))
    return principal


def deleted(world: World, principal: str, *topics: tuple[str | None, bytes], timeout_ms: int = 1_000) -> list[Any]:
    """DeleteTopics: name and error of each topic, in the order of errors."""
    state = messages.DeleteTopicsRequest.DeleteTopicState
    wanted = [state(name=name, topic_id=topic_id) for name, topic_id in topics]
    request = messages.DeleteTopicsRequest(topics=wanted, timeout_ms=timeout_ms)
    answer = ask(world, principal, ApiKey.DELETE_TOPICS, 6, request)
    return sorted(((row.name, row.error_code) for row in answer.responses), key=lambda row: row[1])


def test_who_may_delete_in_the_cluster_may_delete_every_topic(guarded: World) -> None:
    """As in Kafka 4.3.1: "all" on the cluster is more than it seems."""
    create = messages.CreateTopicsRequest
    topics = [create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("d-1", "d-2")]
    ask(guarded, ADMIN, ApiKey.CREATE_TOPICS, 7, create(topics=topics, timeout_ms=10_000))
    second = guarded.broker.metadata_cache.topic_id("d-2")
    sweeper = given(guarded, "User:sweeper", (AclOperation.ALL, ResourceType.CLUSTER, "kafka-cluster"))
    assert deleted(guarded, sweeper, ("d-1", NO_TOPIC_ID), (None, second)) == [("d-1", 0), ("d-2", 0)]
    guarded.env.run(guarded.broker.request_gate.authorizer.remove(AclFilter(principal=sweeper)))
    assert deleted(guarded, sweeper, (TOPIC, NO_TOPIC_ID)) == [(TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]


def test_who_may_describe_a_name_hears_that_there_is_no_such_topic(guarded: World) -> None:
    """Not who may not; and what names no topic is refused whoever asks. As Kafka 4.3.1."""
    viewer = given(
        guarded, "User:viewer", *((AclOperation.DESCRIBE, ResourceType.TOPIC, name) for name in ("no", TOPIC))
    )
    asked = [(name, NO_TOPIC_ID) for name in ("no", "not", TOPIC)]
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = deleted(guarded, viewer, *asked, ("both", b"1" * 16))
    assert found == [("no", 3), ("not", refused), (TOPIC, refused), ("both", 42)]
    request = messages.DeleteTopicsRequest(topic_names=["no", "not"], timeout_ms=1_000)
    answer = ask(guarded, viewer, ApiKey.DELETE_TOPICS, 5, request)
    assert {row.name: row.error_code for row in answer.responses} == {"no": 3, "not": refused}


def test_without_time_all_rows_say_so_and_nobody_is_asked_for_rights(guarded: World) -> None:
    """If a row is allowed at all, as Kafka 4.3.1."""
    late, refused = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert deleted(guarded, "User:nobody", (TOPIC, NO_TOPIC_ID), timeout_ms=0) == [(TOPIC, late)]
    rights = [(operation, ResourceType.TOPIC, "mine") for operation in (AclOperation.CREATE, AclOperation.ALTER)]
    maker = given(guarded, "User:maker", *rights)
    create, grow = messages.CreateTopicsRequest, messages.CreatePartitionsRequest
    for names, error in (([TOPIC, "mine"], late), ([TOPIC], refused)):
        topics = [create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        answer = ask(guarded, maker, ApiKey.CREATE_TOPICS, 7, create(topics=topics, timeout_ms=0))
        assert [row.error_code for row in answer.topics] == [error] * len(names)
        rows = [grow.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names]
        grown = ask(guarded, maker, ApiKey.CREATE_PARTITIONS, 3, grow(topics=rows, timeout_ms=0))
        assert [row.error_code for row in grown.results] == [error] * len(names)


def test_of_a_group_that_is_not_there_no_topic_is_said(guarded: World) -> None:
    """Neither those that may be read, nor the others."""
    forgetter = given(guarded, "User:forgetter", (AclOperation.DELETE, ResourceType.GROUP, "absent"))
    row = messages.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topics = [messages.OffsetDeleteRequest.OffsetDeleteRequestTopic(name=TOPIC, partitions=[row])]
    request = messages.OffsetDeleteRequest(group_id="absent", topics=topics)
    answer = ask(guarded, forgetter, ApiKey.OFFSET_DELETE, 0, request)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_partitions_of_a_transaction_beside_one_that_is_refused(guarded: World) -> None:
    """They are not added, and of one that is not there this is said. As Kafka 4.3.1."""
    write = AclOperation.WRITE
    rights = (write, ResourceType.TRANSACTIONAL_ID, "own"), (write, ResourceType.TOPIC, TOPIC)
    writer = given(guarded, "User:writer", *rights)
    make = messages.AddPartitionsToTxnRequest
    topics = [make.AddPartitionsToTxnTopic(name=name, partitions=[0, 7]) for name in (TOPIC, "other")]
    request = make(v3_and_below_transactional_id="own", v3_and_below_topics=topics)
    answer = ask(guarded, writer, ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
    found = {
        (topic.name, row.partition_index): row.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    }
    assert found == {(TOPIC, 0): 55, (TOPIC, 7): 3, ("other", 0): 29, ("other", 7): 29}


def test_refused_topics_are_on_their_page(guarded: World) -> None:
    """Not on every page, and a cursor at one of them is right. As Kafka 4.3.1."""
    reader = given(guarded, "User:pages", (AclOperation.DESCRIBE, ResourceType.TOPIC, TOPIC))
    make = messages.DescribeTopicPartitionsRequest
    before, after, refused = "a", "z", ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topics = [make.TopicRequest(name=name) for name in (before, TOPIC, after)]
    found = {}
    for at in (None, before, TOPIC, after, "elsewhere"):
        cursor = None if at is None else make.Cursor(topic_name=at, partition_index=0)
        request = make(topics=topics, response_partition_limit=10, cursor=cursor)
        answer = ask(guarded, reader, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        found[at] = {topic.name: topic.error_code for topic in answer.topics}
    every = {before: refused, TOPIC: 0, after: refused}
    assert found[None] == found[before] == every
    assert found[TOPIC] == {TOPIC: 0, after: refused}
    assert found[after] == {after: refused}
    assert found["elsewhere"] == dict.fromkeys(every, ErrorCode.INVALID_REQUEST)


def test_an_owner_whose_type_is_not_said_has_none(guarded: World) -> None:
    request = messages.CreateDelegationTokenRequest(owner_principal_type=None, owner_principal_name="alice")
    answer = ask(guarded, "User:nobody", ApiKey.CREATE_DELEGATION_TOKEN, 3, request)
    assert (answer.principal_type, answer.principal_name) == ("", "alice")


@pytest.mark.parametrize(("version", "error"), [(5, 42), (6, 31)])
def test_coordinators_of_share_groups_are_for_brokers(guarded: World, version: int, error: int) -> None:
    request = messages.FindCoordinatorRequest(key_type=2, coordinator_keys=["share"])
    (found,) = ask(guarded, "User:nobody", ApiKey.FIND_COORDINATOR, version, request).coordinators
    assert found.error_code == error
    (found,) = ask(guarded, ADMIN, ApiKey.FIND_COORDINATOR, version, request).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST
    request.coordinator_keys = []
    assert ask(guarded, "User:nobody", ApiKey.FIND_COORDINATOR, version, request).coordinators == []


@pytest.mark.parametrize("version", [4, 5])
def test_who_is_no_broker_adds_not_even_no_transaction(guarded: World, version: int) -> None:
    answer = ask(guarded, "User:nobody", ApiKey.ADD_PARTITIONS_TO_TXN, version, messages.AddPartitionsToTxnRequest())
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [10, 11])
def test_ids_that_a_version_does_not_know_are_refused_to_everybody_alike(guarded: World, version: int) -> None:
    """The answer of these versions must have a name in each row."""
    topic_id = guarded.broker.metadata_cache.topic_id(TOPIC)
    row = messages.MetadataRequest.MetadataRequestTopic
    for principal in ("User:nobody", ADMIN):
        request = messages.MetadataRequest(topics=[row(name=None, topic_id=topic_id), row(name="other")])
        answer = ask(guarded, principal, ApiKey.METADATA, version, request)
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [
            ("", ErrorCode.INVALID_REQUEST),
            ("other", ErrorCode.INVALID_REQUEST),
        ]
    assert guarded.broker.request_gate.handler_failures == 0


def test_a_quota_of_a_user_and_of_all_users_at_once_is_refused_as_any(guarded: World) -> None:
    """Its entity names the same kind twice, once with null."""
    alter = messages.AlterClientQuotasRequest
    parts = [alter.EntityData(entity_type="user", entity_name=name) for name in ("alice", None)]
    request = alter(entries=[alter.EntryData(entity=parts, ops=[])])
    (entry,) = ask(guarded, "User:nobody", ApiKey.ALTER_CLIENT_QUOTAS, 1, request).entries
    assert entry.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert [part.entity_name for part in entry.entity] == ["alice", None]


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
    world.end()


MANY = [(ApiKey.METADATA, 9), (ApiKey.LIST_OFFSETS, 7), (ApiKey.DELETE_GROUPS, 2), (ApiKey.OFFSET_COMMIT, 8)]


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("resource_type_filter", 9, "patternFilter"),
        ("pattern_type_filter", 5, "patternFilter"),
        ("operation", 99, "entryFilter"),
        ("permission_type", 9, "entryFilter"),
    ],
)
def test_a_filter_with_something_unknown_removes_nothing_and_says_so(
    guarded: World, field: str, value: int, what: str
) -> None:
    """As Kafka 4.3.1 answers: whoever removes rules must not believe that there are none."""
    delete = messages.DeleteAclsRequest
    asked = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "operation": 1}
    asked |= {"permission_type": 1, "principal_filter": None, "host_filter": None, field: value}
    [result] = ask(
        guarded, ADMIN, ApiKey.DELETE_ACLS, 3, delete(filters=[delete.DeleteAclsFilter(**asked)])
    ).filter_results
    assert (result.error_code, result.error_message) == (ErrorCode.INVALID_REQUEST, f"Unknown {what}.")


NO_COLON = "no colon is present separating the principal type from the principal name"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"permission_type": 99, "resource_name": ""}, "Invalid permissionType UNKNOWN"),
        ({"resource_name": "", "principal": "alice"}, "Invalid empty resource name"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "alice"}, f"Could not parse principal from `alice` ({NO_COLON})"),
        ({"principal": "User:"}, ""),
        ({"principal": ":alice"}, ""),
        ({"host": ""}, ""),
    ],
)
def test_a_rule_that_cannot_be_is_refused_as_by_kafka(guarded: World, fields: dict[str, Any], why: str) -> None:
    """As by Kafka 4.3.1, but for words that only a filter may have: it has no answer to them of its own."""
    create = messages.CreateAclsRequest
    rule = {"resource_type": 2, "resource_name": "x", "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
    rule |= {"operation": 3, "permission_type": 2, **fields}
    request = create(creations=[create.AclCreation(**rule)])
    [result] = ask(guarded, ADMIN, ApiKey.CREATE_ACLS, 3, request).results
    assert result.error_message == why
    assert result.error_code == (ErrorCode.INVALID_REQUEST if why else ErrorCode.NONE)


def test_a_user_without_a_name_is_not_there(guarded: World) -> None:
    describe = messages.DescribeUserScramCredentialsRequest
    request = describe(users=[describe.UserName(name="")])
    [result] = ask(guarded, ADMIN, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request).results
    assert result.error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert "/config" not in result.error_message


@pytest.mark.parametrize("key", [ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS])
def test_very_many_rules_are_listed_and_removed_in_turns(
    guarded: World, monkeypatch: pytest.MonkeyPatch, key: ApiKey
) -> None:
    """Nobody else waits until all have been looked at, and until the answer names them all."""
    topics = [Resource(ResourceType.TOPIC, f"many-{number}", PatternType.LITERAL) for number in range(400)]
    rules = [Acl(topic, "User:many", "*", AclOperation.READ, Permission.ALLOW) for topic in topics]
    guarded.env.run(guarded.broker.authorizer.add(rules))
    monkeypatch.setattr(clock, "WORK_STEP_MS", 1.0)
    monkeypatch.setattr(api_acls, "RULES_PER_PIECE", 10)
    done = {"looked at": 0, "named": 0}

    def counted(what: str, do: Any) -> Any:
        def doing(*arguments: Any, **fields: Any) -> Any:
            done[what] += 1
            return do(*arguments, **fields)

        return doing

    monkeypatch.setattr(AclFilter, "finds", counted("looked at", AclFilter.finds))
    for name in ("Described", "Removed"):
        monkeypatch.setattr(api_acls, name, counted("named", getattr(api_acls, name)))
    client = as_principal(guarded, "User:admin")
    asked = {"principal_filter": "User:many", "host_filter": None, "operation": 1, "permission_type": 1}
    asked |= {"resource_type_filter": 2, "resource_name_filter": None}
    delete = messages.DeleteAclsRequest
    request: Any = messages.DescribeAclsRequest(**asked, pattern_type_filter=1)
    if key == ApiKey.DELETE_ACLS:
        request = delete(filters=[delete.DeleteAclsFilter(**asked, pattern_type_filter=1)])

    async def run() -> dict[str, int]:
        client.send(key, 3, request)
        most = dict.fromkeys(done, 0)
        while not client.data:
            before = done.copy()
            await asyncio.sleep(0)
            most = {what: max(count, done[what] - before[what]) for what, count in most.items()}
        return most

    most = guarded.env.run(run())
    client.transport.close()
    assert done["named"] == len(rules)
    assert all(0 < count < len(rules) / 4 for count in most.values()), most
    guarded.env.run(guarded.broker.authorizer.remove(AclFilter(2, None, 1, "User:many", None, 1, 1)))


def test_very_many_notices_of_changed_rules_are_followed_in_turns(
    guarded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there at once when one request has changed the rules of very many resources."""
    monkeypatch.setattr(clock, "WORK_STEP_MS", 1.0)
    resources = [Resource(ResourceType.TOPIC, f"noticed-{number}", PatternType.LITERAL) for number in range(200)]
    followed, of_notice = [], acl_nodes.of_notice
    monkeypatch.setattr(acl_nodes, "of_notice", lambda data: followed.append(data) or of_notice(data))

    async def run() -> int:
        await guarded.env.clock.sleep(10_000)  # those of other tests have been followed
        followed.clear()
        await guarded.broker.coordination.multi([acl_nodes.notice(resource) for resource in resources])
        most = 0
        for _ in range(20 * len(resources)):
            before = len(followed)
            await asyncio.sleep(0)
            most = max(most, len(followed) - before)
        return most

    assert 0 < guarded.env.run(run()) < len(resources) / 4
    assert len(followed) == len(resources)


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


def test_what_tells_of_everything_is_for_who_may_know_everything(guarded: World) -> None:
    """A rule for all topics is not enough where another one denies some."""
    routes.load()
    describe = AclOperation.DESCRIBE
    resources = [Resource(ResourceType.CLUSTER, "kafka-cluster")]
    resources += [Resource(type, "*") for type in (ResourceType.TOPIC, ResourceType.GROUP)]
    rules = [Acl(each, "User:watcher", "*", describe, Permission.ALLOW) for each in resources]
    authorizer = guarded.broker.request_gate.authorizer
    row = routes.TABLE["GET", "/metrics"]

    def is_refused() -> bool:
        request = routes.HttpRequest("GET", "/metrics", {}, {}, None, "/192.0.2.9", "curl", "User:watcher")
        try:
            guarded.broker.request_gate._check_http(row, request, authorizer.rights_of("User:watcher", "/192.0.2.9"))
        except routes.HttpError as error:
            return error.name == "TOPIC_AUTHORIZATION_FAILED"
        return False

    guarded.env.run(authorizer.add(rules))
    assert not is_refused()
    secret = Resource(ResourceType.TOPIC, TOPIC[:3], PatternType.PREFIXED)
    guarded.env.run(authorizer.add([Acl(secret, "User:watcher", "*", describe, Permission.DENY)]))
    assert is_refused()
    guarded.env.run(authorizer.remove(AclFilter(principal="User:watcher")))


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


def test_the_session_of_a_follower_reads_for_nobody_else(guarded: World) -> None:
    """Its id is a number that somebody may find out, and by it a follower reads every topic."""
    fetch = messages.FetchRequest
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    topics = [fetch.FetchTopic(topic=TOPIC, partitions=[partition])]
    first = fetch(replica_id=7, session_epoch=0, topics=topics, max_wait_ms=0, min_bytes=0, max_bytes=1_000)
    session_id = ask(guarded, ADMIN, ApiKey.FETCH, 12, first).session_id
    assert session_id
    for epoch in (1, -1, 0):  # to read on, to close it, to put another in its place
        asked = fetch(session_id=session_id, session_epoch=epoch, max_wait_ms=0, min_bytes=0, max_bytes=1_000)
        answer = ask(guarded, "User:nobody", ApiKey.FETCH, 12, asked)
        assert answer.responses == []
        assert answer.error_code == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND if epoch == 1 else ErrorCode.NONE)
    following = fetch(replica_id=7, session_id=session_id, session_epoch=1, max_wait_ms=0, min_bytes=0, max_bytes=1_000)
    assert ask(guarded, ADMIN, ApiKey.FETCH, 12, following).error_code == ErrorCode.NONE


def test_who_only_claims_to_be_the_controller_does_not_make_it_late(guarded: World) -> None:
    """A request by an older connection than one of the same controller is ignored; only its own connections count."""
    stop = messages.StopReplicaRequest(controller_id=0, controller_epoch=guarded.broker.controller.controller_epoch)
    controller = as_principal(guarded, ADMIN)
    assert guarded.env.run(controller.ask(ApiKey.STOP_REPLICA, 3, stop)) is not None
    refused = ask(guarded, "User:nobody", ApiKey.STOP_REPLICA, 3, stop)
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert guarded.env.run(controller.ask(ApiKey.STOP_REPLICA, 3, stop)) is not None
    controller.transport.close()


def test_the_rules_of_one_resource_are_written_together(
    guarded: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One by one, a thousand would be written a thousand times, each with all before it."""
    caplog.set_level(logging.INFO, "barnabas.cluster")
    written: list[Any] = []
    multi = guarded.broker.coordination.multi

    async def counted(operations: Any) -> Any:
        written.append(operations)
        return await multi(operations)

    monkeypatch.setattr(guarded.broker.coordination, "multi", counted)
    create = messages.CreateAclsRequest
    creations = [
        create.AclCreation(
            resource_type=2,
            resource_name="many" if number % 10 else "few",
            resource_pattern_type=3,
            principal=f"User:user-{number}" if number % 7 else "nobody",
            host="*",
            operation=3,
            permission_type=3,
        )
        for number in range(200)
    ]
    answer = ask(guarded, ADMIN, ApiKey.CREATE_ACLS, 3, create(creations=creations))
    assert [result.error_code for result in answer.results] == [
        0 if number % 7 else ErrorCode.INVALID_REQUEST for number in range(200)
    ]
    assert len(written) == 2
    table = guarded.broker.request_gate.authorizer.table
    assert {len(table.of(Resource(ResourceType.TOPIC, name))) for name in ("many", "few")} == {154, 17}
    lines = [each for each in caplog.messages if "access rule" in each]
    assert len(lines) < 100
    assert "new access rules, 104 more" in lines
    guarded.env.run(guarded.broker.request_gate.authorizer.remove(AclFilter(name="many")))
    guarded.env.run(guarded.broker.request_gate.authorizer.remove(AclFilter(name="few")))


def test_every_row_says_what_it_asks_for() -> None:
    assert requests._nobody not in {row.access for row in TABLE.values()}


@pytest.mark.parametrize("version", range(1, 8))
def test_a_group_that_may_not_be_described_has_no_topics_in_the_answer(guarded: World, version: int) -> None:
    """As Kafka 4.3.1 answers; version 1 has no other place for the error than the rows."""
    fetch = messages.OffsetFetchRequest
    topics = [fetch.OffsetFetchRequestTopic(name="mine", partition_indexes=[0])]
    answer = ask(guarded, "User:nobody", ApiKey.OFFSET_FETCH, version, fetch(group_id=GROUP, topics=topics))
    assert answer.error_code == (ErrorCode.GROUP_AUTHORIZATION_FAILED if version > 1 else 0)
    rows = [row.error_code for topic in answer.topics for row in topic.partitions]
    assert rows == ([] if version > 1 else [ErrorCode.GROUP_AUTHORIZATION_FAILED])


@pytest.mark.parametrize("version", range(2))
def test_of_a_consumer_group_that_may_not_be_described_only_the_error_is_said(guarded: World, version: int) -> None:
    """As Kafka 4.3.1 answers."""
    describe = messages.ConsumerGroupDescribeRequest(group_ids=[GROUP])
    (group,) = ask(guarded, "User:nobody", ApiKey.CONSUMER_GROUP_DESCRIBE, version, describe).groups
    assert (group.error_code, group.error_message) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
