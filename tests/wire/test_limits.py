"""Every limit that a client can meet, one below, at, and one beyond it.

Frames and connections have theirs in test_connection.py, what a compressed batch may unpack to in test_hostile_*.py.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from barnabas.broker import auto_topics
from barnabas.broker.api.topics import CREATIONS_MAX
from barnabas.broker.connection import FRAMES_PER_TURN, READ_AHEAD_BYTES_MAX
from barnabas.cluster.topic_names import NAME_LENGTH_MAX
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build
from barnabas.runtime.pending import Pending

World = Any  # of conftest.py
NONE = ErrorCode.NONE
BATCH_BYTES = 3000
SEGMENT_BYTES = 1 << 20  # the smallest that may be set

SETTINGS = {
    "group_initial_rebalance_delay_ms": "1000",
    "group_max_size": "3",
    "group_min_session_timeout_ms": "7000",
    "group_max_session_timeout_ms": "70000",
    "offset_metadata_max_bytes": "10",
    "fetch_max_bytes": str(2 * BATCH_BYTES),
    "max_incremental_fetch_session_cache_slots": "3",
    "max_request_partition_size_limit": "5",
    "log_message_timestamp_after_max_ms": "5000",
    "message_max_bytes": str(2 * SEGMENT_BYTES),
    "auto_create_topics_enable": "true",
}


@pytest.fixture(scope="module")
def limited(world: World) -> Iterator[World]:
    limited = type(world)(**SETTINGS)
    while not limited.broker.metadata_cache.contains("__consumer_offsets"):
        limited.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="any"))
        limited.env.clock.advance(1000)
    yield limited
    limited.env.run(limited.broker.stop())


_numbers = iter(range(10**6))


def new_topic(world: World, partitions: int = 1, **configs: str) -> str:
    name = f"t{next(_numbers)}"
    world.create_topic(name, partitions, **configs)
    return name


def batch(size: int = 100, **more: Any) -> bytes:
    """A batch of exactly so many bytes."""
    more = {"timestamp": 0} | more
    empty = len(build([Record(value=b"", **more)], base_offset=0))
    for value in range(max(size - empty - 12, 0), size):
        made = bytes(build([Record(value=bytes(value), **more)], base_offset=0))
        if len(made) == size:
            return made
    raise AssertionError(f"no batch has {size} bytes")


def produce(world: World, topic: str, records: bytes, partition: int = 0) -> ErrorCode:
    row = messages.ProduceRequest.PartitionProduceData(index=partition, records=records)
    data = messages.ProduceRequest.TopicProduceData(name=topic, partition_data=[row])
    request = messages.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])
    response = world.ask(ApiKey.PRODUCE, 9, request)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def fetch(world: World, topic: str, partitions: int = 1, offset: int = 0, **more: Any) -> Any:
    sizes = {"partition_max_bytes": 1 << 30} | {k: v for k, v in more.items() if k == "partition_max_bytes"}
    rows = [messages.FetchRequest.FetchPartition(partition=i, fetch_offset=offset, **sizes) for i in range(partitions)]
    request = messages.FetchRequest(
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 30, "session_epoch": -1}
        | {k: v for k, v in more.items() if k != "partition_max_bytes"},
        topics=[messages.FetchRequest.FetchTopic(topic=topic, partitions=rows)],
    )
    return world.ask(ApiKey.FETCH, 11, request)


# --- what is asked, with a number that the limit is about; the outcome ---


def create_named(world: World, length: int) -> ErrorCode:
    topic = messages.CreateTopicsRequest.CreatableTopic(name="n" * length, num_partitions=1, replication_factor=1)
    request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=True)
    return ErrorCode(world.ask(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code)


def ask_for_topic_named(world: World, length: int) -> ErrorCode:
    topic = messages.MetadataRequest.MetadataRequestTopic(name="m" * length)
    request = messages.MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
    return ErrorCode(world.ask(ApiKey.METADATA, 5, request).topics[0].error_code)


def create_wide(world: World, partitions: int) -> ErrorCode:
    topic = messages.CreateTopicsRequest.CreatableTopic(name="wide", num_partitions=partitions, replication_factor=1)
    request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=True)
    return ErrorCode(world.ask(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code)


def grow_by(world: World, partitions: int) -> ErrorCode:
    row = messages.CreatePartitionsRequest.CreatePartitionsTopic(
        name=new_topic(world), count=1 + partitions, assignments=None
    )
    request = messages.CreatePartitionsRequest(topics=[row], timeout_ms=1000, validate_only=True)
    return ErrorCode(world.ask(ApiKey.CREATE_PARTITIONS, 3, request).results[0].error_code)


def produce_to_topic_of_small_batches(world: World, size: int) -> ErrorCode:
    return produce(world, new_topic(world, max_message_bytes=str(BATCH_BYTES)), batch(size))


def produce_to_small_segments(world: World, size: int) -> ErrorCode:
    return produce(world, new_topic(world, segment_bytes=str(SEGMENT_BYTES)), batch(size))


def produce_ahead_of_time(world: World, by_ms: int) -> ErrorCode:
    return produce(world, new_topic(world), batch(timestamp=world.env.clock.now_ms() + by_ms))


def fetch_together(world: World, size: int) -> bool:
    topic = new_topic(world, 2)
    for partition, bytes_ in enumerate((BATCH_BYTES, size - BATCH_BYTES)):
        assert produce(world, topic, batch(bytes_), partition) == NONE
    rows = fetch(world, topic, 2).responses[0].partitions
    assert len(rows[0].records) == BATCH_BYTES
    return len(rows[1].records) > 0


def fetch_within(world: World, size: int, **limit: int) -> bool:
    """A second batch in the answer, where the client sets the limit."""
    topic = new_topic(world)
    for bytes_ in (1000, size - 1000):
        assert produce(world, topic, batch(bytes_)) == NONE
    return len(fetch(world, topic, **limit).responses[0].partitions[0].records) > 1000


def fetch_from(world: World, offset: int) -> ErrorCode:
    topic = new_topic(world)
    for _ in range(4):
        produce(world, topic, batch())
    return ErrorCode(fetch(world, topic, offset=offset).responses[0].partitions[0].error_code)


def delete_records_before(world: World, offset: int) -> ErrorCode:
    topic = new_topic(world)
    for _ in range(4):
        produce(world, topic, batch())
    row = messages.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    asked = messages.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[row])
    response = world.ask(ApiKey.DELETE_RECORDS, 2, messages.DeleteRecordsRequest(topics=[asked], timeout_ms=1000))
    return ErrorCode(response.topics[0].partitions[0].error_code)


def open_fetch_sessions(world: World, count: int) -> bool:
    """Whether the last of so many clients gets a session."""
    topic = new_topic(world)
    sessions = [fetch(world, topic, session_epoch=0).session_id for _ in range(count)]
    for session_id in sessions:
        fetch(world, topic, session_id=session_id)  # epoch -1 closes it
    assert all(sessions[:-1])
    return sessions[-1] != 0


def describe_partitions(world: World, partitions: int, **limit: int) -> bool:
    """Whether all come on one page."""
    request = messages.DescribeTopicPartitionsRequest(
        topics=[messages.DescribeTopicPartitionsRequest.TopicRequest(name=new_topic(world, partitions))], **limit
    )
    return world.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request).next_cursor is None


def join(member_id: str = "", group: str = "g", session_timeout_ms: int = 10_000) -> messages.JoinGroupRequest:
    return messages.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def join_with_session(world: World, timeout_ms: int) -> ErrorCode:
    request = join(group=f"g{next(_numbers)}", session_timeout_ms=timeout_ms)
    return ErrorCode(world.ask(ApiKey.JOIN_GROUP, 3, request).error_code)


def join_as_one_of(world: World, count: int) -> ErrorCode:
    """What the last of so many members is told."""
    group = f"g{next(_numbers)}"

    async def run() -> ErrorCode:
        clients = [await world.connect() for _ in range(count)]
        for client in clients:
            client.send(ApiKey.JOIN_GROUP, 3, join(group=group))
            await world.env.clock.sleep(10)
        answer = await clients[-1].answer()
        assert answer is not None
        _, response = frames.decode_response(ApiKey.JOIN_GROUP, 3, memoryview(answer))
        for client in clients:
            client.transport.close()
        return ErrorCode(response.error_code)

    return world.env.run(run())


def commit_with_metadata(world: World, text: str) -> ErrorCode:
    row = messages.OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=text
    )
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic(name=new_topic(world), partitions=[row])
    response = world.ask(ApiKey.OFFSET_COMMIT, 8, messages.OffsetCommitRequest(group_id="m", topics=[topic]))
    return ErrorCode(response.topics[0].partitions[0].error_code)


class Limit(NamedTuple):
    """What happens up to `at`, and beyond."""

    ask: Callable[[World, int], Any]
    at: int
    within: Any = NONE
    beyond: Any = None


LIMITS = {
    "name of a new topic": Limit(create_named, NAME_LENGTH_MAX, beyond=ErrorCode.INVALID_TOPIC_EXCEPTION),
    "name of a topic asked for": Limit(
        ask_for_topic_named,
        NAME_LENGTH_MAX,
        within=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        beyond=ErrorCode.INVALID_TOPIC_EXCEPTION,
    ),
    "partitions of a new topic": Limit(create_wide, CREATIONS_MAX - 1, beyond=ErrorCode.POLICY_VIOLATION),
    "partitions added": Limit(grow_by, CREATIONS_MAX, beyond=ErrorCode.POLICY_VIOLATION),
    "max.message.bytes": Limit(produce_to_topic_of_small_batches, BATCH_BYTES, beyond=ErrorCode.MESSAGE_TOO_LARGE),
    "segment.bytes": Limit(produce_to_small_segments, SEGMENT_BYTES, beyond=ErrorCode.RECORD_LIST_TOO_LARGE),
    "message.timestamp.after.max.ms": Limit(produce_ahead_of_time, 5000, beyond=ErrorCode.INVALID_TIMESTAMP),
    "fetch.max.bytes": Limit(fetch_together, 2 * BATCH_BYTES, within=True, beyond=False),
    "max_bytes of a fetch": Limit(
        lambda world, size: fetch_within(world, size, max_bytes=2500), 2500, within=True, beyond=False
    ),
    "partition_max_bytes": Limit(
        lambda world, size: fetch_within(world, size, partition_max_bytes=2500), 2500, within=True, beyond=False
    ),
    "offset fetched from": Limit(fetch_from, 4, beyond=ErrorCode.OFFSET_OUT_OF_RANGE),
    "offset deleted up to": Limit(delete_records_before, 4, beyond=ErrorCode.OFFSET_OUT_OF_RANGE),
    "max.incremental.fetch.session.cache.slots": Limit(open_fetch_sessions, 3, within=True, beyond=False),
    "max.request.partition.size.limit": Limit(
        lambda world, count: describe_partitions(world, count, response_partition_limit=2000), 5, True, False
    ),
    "response_partition_limit": Limit(
        lambda world, count: describe_partitions(world, count, response_partition_limit=3), 3, True, False
    ),
    "group.min.session.timeout.ms": Limit(
        join_with_session, 6999, within=ErrorCode.INVALID_SESSION_TIMEOUT, beyond=NONE
    ),
    "group.max.session.timeout.ms": Limit(join_with_session, 70_000, beyond=ErrorCode.INVALID_SESSION_TIMEOUT),
    "group.max.size": Limit(join_as_one_of, 3, beyond=ErrorCode.GROUP_MAX_SIZE_REACHED),
    "offset.metadata.max.bytes": Limit(
        lambda world, length: commit_with_metadata(world, "m" * length),
        10,
        beyond=ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ),
    "offset.metadata.max.bytes, of Java's characters": Limit(
        lambda world, length: commit_with_metadata(world, "\u00fc" * (length - 2) + "\U0001f600"),
        10,
        beyond=ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ),
}


@pytest.mark.parametrize("excess", [-1, 0, 1])
@pytest.mark.parametrize("name", LIMITS)
def test_limit(limited: World, name: str, excess: int) -> None:
    limit = LIMITS[name]
    assert limit.ask(limited, limit.at + excess) == (limit.within if excess <= 0 else limit.beyond)
    assert limited.broker.request_gate.handler_failures == 0


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_topics_that_are_being_made_by_metadata_at_a_time(
    limited: World, excess: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_topics, "CREATIONS_MAX", 3)
    names = [f"auto-{excess}-{number}" for number in range(3 + excess)]
    topics = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = messages.MetadataRequest(topics=topics, allow_auto_topic_creation=True)
    answers = limited.ask(ApiKey.METADATA, 5, request).topics
    errors = sorted(topic.error_code for topic in answers)
    assert errors == [ErrorCode.NONE] * min(3 + excess, 3) + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * max(excess, 0)
    made = [name for name in names if limited.broker.metadata_cache.contains(name)]
    assert len(made) == min(3 + excess, 3)


# --- of a connection ---


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_frames_of_one_turn(make_harness: Any, handle: Callable[..., None], excess: int) -> None:
    handle(ApiKey.HEARTBEAT, lambda broker, request, context: messages.HeartbeatResponse())
    harness = make_harness()
    wire = harness.connect()
    message = messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    frame = frames.encode_request(ApiKey.HEARTBEAT, 4, 1, "test", message)
    wire.feed(frame * (FRAMES_PER_TURN + excess))
    assert len(wire.answers()) == FRAMES_PER_TURN + min(excess, 0)
    harness.run()
    assert len(wire.answers()) == FRAMES_PER_TURN + excess


@pytest.mark.parametrize(("excess", "is_read"), [(-1, True), (0, False), (1, False)])
def test_bytes_read_ahead_of_a_request_that_waits(
    make_harness: Any, handle: Callable[..., None], excess: int, is_read: bool
) -> None:
    handle(ApiKey.HEARTBEAT, lambda broker, request, context: Pending())
    wire = make_harness().connect()
    message = messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    wire.feed(frames.encode_request(ApiKey.HEARTBEAT, 4, 1, "test", message))
    wire.feed(struct.pack(">i", 10**6) + bytes(READ_AHEAD_BYTES_MAX + excess - 4))
    assert wire.reading is is_read
