"""Clients of the world of rights (access_world.py): who they are, what they ask, and whether an answer is a refusal."""

from collections.abc import Callable
from typing import Any, NamedTuple

from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record

from simulator.access_model import (
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    WRITE,
    Right,
)
from simulator.clients.connection import Connection, LostError
from simulator.clock import SimClock
from simulator.network import SimNetwork
from simulator.violation import Violation

PASSWORDS = {name: f"{name}-secret" for name in ("admin", "broker", "alice", "bob", "greedy", "careful", "free")}
LOGIN_PORT, OPEN_PORT = 9092, 9094
ANONYMOUS = "User:ANONYMOUS"
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: TOPIC,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: GROUP,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: CLUSTER,
}


async def log_in(connection: Connection, user: str, password: str) -> bool:
    """Whether the broker takes the password. LostError."""
    asked = await connection.ask(ApiKey.SASL_HANDSHAKE, 1, messages.SaslHandshakeRequest(mechanism="PLAIN"))
    if asked.error_code:
        raise Violation("who has the password may log in", f"{user}: {asked}")
    token = f"\0{user}\0{password}".encode()
    answer = await connection.ask(ApiKey.SASL_AUTHENTICATE, 2, messages.SaslAuthenticateRequest(auth_bytes=token))
    return not answer.error_code


async def connect(clock: SimClock, network: SimNetwork, broker: str, user: str, source: str) -> Connection:
    """A connection of a user, who is nobody if the name is empty. LostError."""
    address = (broker, LOGIN_PORT if user else OPEN_PORT)
    connection = await Connection.open(clock, network, f"client of {user or 'nobody'}", address, source)
    if user and not await log_in(connection, user, PASSWORDS[user]):
        raise Violation("who has the password may log in", user)
    return connection


async def try_without_a_login(connection: Connection, user: str, *, guesses: bool) -> None:
    """Violation if a wrong password is taken, or a request answered before a login."""
    try:
        if not guesses:
            answer = await connection.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))
            raise Violation("nobody is served before a login", f"{answer}")
        if await log_in(connection, user, "wrong"):
            raise Violation("a wrong password is refused", user)
    except LostError:
        pass
    finally:
        connection.abort()


class Question(NamedTuple):
    """A request, the rights that it needs (all of each row, in the order in which it asks), and what its answer has.

    `any_of`: alternatives; one of them is enough. `shows_absence`: the right that is enough to hear that there is no
    such topic.
    """

    what: str
    key: ApiKey
    version: int
    request: Any
    rights: tuple[Right, ...]
    any_of: tuple[Right, ...] = ()
    error_of: Callable[[Any], int] = lambda answer: int(answer.error_code)
    shows_absence: Right | None = None


def produce(topic: str, value: bytes) -> messages.ProduceRequest:
    """One record."""
    make = messages.ProduceRequest
    records = bytes(record_batch.build([Record(offset=0, timestamp=1, value=value)]))
    rows = [make.PartitionProduceData(index=0, records=records)]
    return make(acks=1, timeout_ms=5_000, topic_data=[make.TopicProduceData(name=topic, partition_data=rows)])


def fetch(topic: str, offset: int = 0, replica_id: int = -1, max_bytes: int = 40_000) -> messages.FetchRequest:
    """What is there from an offset on."""
    make = messages.FetchRequest
    rows = [make.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)]
    return make(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[make.FetchTopic(topic=topic, partitions=rows)],
    )


def of_produce(answer: Any) -> int:
    """The error of its only partition."""
    return int(answer.responses[0].partition_responses[0].error_code)


def of_fetch(answer: Any) -> int:
    """The error of its only partition, if there is one."""
    return int(answer.error_code or (answer.responses[0].partitions[0].error_code if answer.responses else 0))


def _of_rows(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _first_of(field: str) -> Callable[[Any], int]:
    return lambda answer: int(getattr(answer, field)[0].error_code)


def questions(topic: str, group: str, value: bytes) -> list[Question]:
    """All that a client may ask about a topic and a group."""
    offsets, epochs = messages.ListOffsetsRequest, messages.OffsetForLeaderEpochRequest
    commit, committed = messages.OffsetCommitRequest, messages.OffsetFetchRequest
    configs, metadata = messages.DescribeConfigsRequest, messages.MetadataRequest
    create, delete = messages.CreateTopicsRequest, messages.DeleteTopicsRequest
    scratch = f"{topic}-scratch"
    row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    describe, read = Right(DESCRIBE, TOPIC, topic), Right(READ, TOPIC, topic)
    acts = Right(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    at_end = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    epoch = epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    named = metadata(topics=[metadata.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    found = committed.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    new = create(topics=[create.CreatableTopic(name=scratch, num_partitions=1, replication_factor=1)], timeout_ms=9_000)
    commits = commit(group_id=group, topics=[commit.OffsetCommitRequestTopic(name=topic, partitions=[row])])
    resource = configs.DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
    by_group = messages.FindCoordinatorRequest(key=group, key_type=0)
    key = ApiKey
    return [
        Question("produce", key.PRODUCE, 8, produce(topic, value), (Right(WRITE, TOPIC, topic),), error_of=of_produce),
        Question("fetch", key.FETCH, 11, fetch(topic), (read,), error_of=of_fetch),
        Question("follow", key.FETCH, 11, fetch(topic, replica_id=7), (acts,), error_of=of_fetch),
        Question(
            *("list offsets", key.LIST_OFFSETS, 5),
            offsets(topics=[offsets.ListOffsetsTopic(name=topic, partitions=[at_end])]),
            (describe,),
            error_of=_of_rows,
        ),
        Question(
            *("epochs", key.OFFSET_FOR_LEADER_EPOCH, 3),
            epochs(replica_id=-2, topics=[epochs.OffsetForLeaderTopic(topic=topic, partitions=[epoch])]),
            (),
            (acts, describe),
            error_of=_of_rows,
        ),
        Question("metadata", key.METADATA, 8, named, (describe,), error_of=_first_of("topics")),
        Question("commit", key.OFFSET_COMMIT, 7, commits, (Right(READ, GROUP, group), read), error_of=_of_rows),
        Question(
            *("offsets", key.OFFSET_FETCH, 5),
            committed(group_id=group, topics=[found]),
            (Right(DESCRIBE, GROUP, group), describe),
            error_of=lambda answer: (_of_rows(answer) if answer.topics else 0) or int(answer.error_code),
        ),
        Question("find", key.FIND_COORDINATOR, 2, by_group, (Right(DESCRIBE, GROUP, group),)),
        Question(
            *("create", key.CREATE_TOPICS, 5, new, ()),
            (Right(CREATE, CLUSTER, CLUSTER_NAME), Right(CREATE, TOPIC, scratch)),
            error_of=_first_of("topics"),
        ),
        Question(
            *("delete", key.DELETE_TOPICS, 4, delete(topic_names=[scratch], timeout_ms=9_000), ()),
            (Right(DELETE, CLUSTER, CLUSTER_NAME), Right(DELETE, TOPIC, scratch)),
            error_of=_first_of("responses"),
            shows_absence=Right(DESCRIBE, TOPIC, scratch),
        ),
        Question(
            *("settings", key.DESCRIBE_CONFIGS, 3, configs(resources=[resource])),
            (Right(DESCRIBE_CONFIGS, TOPIC, topic),),
            error_of=_first_of("results"),
        ),
        Question(
            *("rules", key.DESCRIBE_ACLS, 2),
            messages.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1),
            (Right(DESCRIBE, CLUSTER, CLUSTER_NAME),),
        ),
    ]
