"""Produce and Fetch over the wire, in virtual time: acks, waiting, sessions, limits. Kafka's answers are in replay."""

from collections.abc import Callable
from typing import Any

import pytest
from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    DeleteRecordsRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from barnabas.protocol.record_batch import Record
from simulator.disk import SimFile

World = Any  # of conftest.py


def batch(*values: bytes, **fields: Any) -> bytearray:
    return record_batch.build(
        [
            Record(offset=n, timestamp=1_700_000_000_000 + n, key=b"k", value=v, headers=[])
            for n, v in enumerate(values)
        ],
        **fields,
    )


def produce(topic: str, records: Any, *, acks: int = -1, partition: int = 0, timeout_ms: int = 5000) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )


def fetch(topic: str, *offsets: tuple[int, int], max_bytes: int = 1 << 20, **fields: Any) -> FetchRequest:
    partitions = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        for index, offset in offsets
    ]
    defaults = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 24}
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=partitions)] if partitions else []
    return FetchRequest(topics=topics, **(defaults | fields))


def partitions(response: Any) -> dict[int, Any]:
    return {partition.partition_index: partition for topic in response.responses for partition in topic.partitions}


def values(records: Any) -> list[bytes | None]:
    return [
        record.value
        for _, found in record_batch.batches(records)
        for record in record_batch.records(found, max_bytes=1 << 20)
    ]


@pytest.mark.parametrize("acks", [1, -1])
def test_what_was_produced_is_fetched(world: World, acks: int) -> None:
    topic = f"round-trip{acks}"
    world.create_topic(topic)
    for expected in (0, 2):
        response = world.ask(ApiKey.PRODUCE, 9, produce(topic, batch(b"a", b"b"), acks=acks))
        (answer,) = response.responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, expected)
    found = partitions(world.ask(ApiKey.FETCH, 12, fetch(topic, (0, 0))))[0]
    assert values(found.records) == [b"a", b"b", b"a", b"b"]
    assert found.high_watermark == 4


def test_acks_zero_is_not_answered_and_an_error_closes(world: World) -> None:
    world.create_topic("acks-zero")

    async def run() -> None:
        client = await world.connect()
        client.send(ApiKey.PRODUCE, 9, produce("acks-zero", batch(b"a"), acks=0))
        response = await client.ask(ApiKey.FETCH, 12, fetch("acks-zero", (0, 0)))
        assert values(partitions(response)[0].records) == [b"a"], "the next answer belongs to the next request"
        client.send(ApiKey.PRODUCE, 9, produce("acks-zero", batch(b"a"), acks=0, partition=7))
        assert await client.answer() is None

    world.env.run(run())


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (bytes(batch(b"a"))[:-1], ErrorCode.INVALID_RECORD),
        (bytes(batch(b"a")) * 2, ErrorCode.INVALID_RECORD),
        (bytes(batch(b"a"))[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (bytes(61), ErrorCode.CORRUPT_MESSAGE),
        (
            batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,  # the request names no transactional id
        ),
    ],
    ids=["null", "empty", "cut", "two", "crc", "zeros", "transactional"],
)
def test_records_that_cannot_be_taken(world: World, records: Any, error: ErrorCode) -> None:
    if not world.broker.metadata_cache.contains("corrupt"):
        world.create_topic("corrupt")
    (answer,) = world.ask(ApiKey.PRODUCE, 9, produce("corrupt", records)).responses[0].partition_responses
    assert answer.error_code == error
    assert answer.base_offset == -1
    if error == ErrorCode.INVALID_RECORD:  # Kafka looks at acks afterwards
        (answer,) = world.ask(ApiKey.PRODUCE, 9, produce("corrupt", records, acks=2)).responses[0].partition_responses
        assert answer.error_code == error


@pytest.mark.parametrize(
    ("records", "acks"), [(b"", 1), (bytes(batch(b"a")) * 2, -1), (bytes(batch(b"a")), 2)], ids=["empty", "two", "acks"]
)
def test_that_there_is_no_such_partition_is_said_before_what_else_is_wrong(
    world: World, records: bytes, acks: int
) -> None:
    """As in Kafka: the client asks for metadata then, and may find the partition elsewhere."""
    for name in ("anything", "corrupt"):
        request = produce(name, records, acks=acks, partition=7)
        (answer,) = world.ask(ApiKey.PRODUCE, 9, request).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_a_fetch_waits_for_what_is_produced(world: World) -> None:
    world.create_topic("long-poll", 2)

    async def run() -> None:
        waiting, producing = await world.connect(), await world.connect()
        begun = world.env.clock.monotonic_ms()
        waiting.send(ApiKey.FETCH, 12, fetch("long-poll", (0, 0), (1, 0), max_wait_ms=30_000))
        await world.env.clock.sleep(1000)
        assert waiting.data == b""
        await producing.ask(ApiKey.PRODUCE, 9, produce("long-poll", batch(b"a"), partition=1))
        assert await waiting.answer() is not None
        assert world.env.clock.monotonic_ms() - begun < 1100

    world.env.run(run())


def test_who_waits_for_the_same_is_answered_from_one_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create_topic("crowd", 2)
    same: dict[str, Any] = {"max_wait_ms": 30_000}
    requests = [
        *[(12, fetch("crowd", (0, 0), **same))] * 3,
        *[(12, fetch("crowd", (0, 0), (1, 0), **same))] * 2,
        *[(12, fetch("crowd", (0, 0), session_epoch=0, **same))] * 2,  # a session does not change what is read
        (11, fetch("crowd", (0, 0), **same)),
        (12, fetch("crowd", (0, 0), isolation_level=1, **same)),
        (12, fetch("crowd", (0, 0), max_bytes=10, **same)),
        (12, fetch("crowd", (1, 0), (0, 0), **same)),
    ]
    reads = []
    read = SimFile.read

    def counted(file: SimFile, position: int, length: int) -> bytes:
        reads.append(file.path)
        return read(file, position, length)

    async def run() -> None:
        clients = [await world.connect() for _ in requests]
        producer = await world.connect()
        for number, (version, request) in enumerate(requests):
            clients[number].transport.write(frames.encode_request(ApiKey.FETCH, version, number, "test", request))
        waiting = [await world.connect(), await world.connect()]
        for client in waiting:
            client.send(ApiKey.FETCH, 12, fetch("crowd", (0, 0), min_bytes=100_000, max_wait_ms=1000))
        await world.env.clock.sleep(10)
        assert world.broker.replica_manager.fetching.parked_count == len(requests) + 2
        monkeypatch.setattr(SimFile, "read", counted)
        await producer.ask(ApiKey.PRODUCE, 9, produce("crowd", batch(b"a")))
        for number, (version, request) in enumerate(requests):
            answer = memoryview(await clients[number].answer())
            correlation_id, found = frames.decode_response(ApiKey.FETCH, version, answer)
            assert correlation_id == number
            assert (found.session_id == 0) == (request.session_epoch == -1)
            row = partitions(found)[0]
            assert values(row.records) == [b"a"]
            assert (row.aborted_transactions == []) == (request.isolation_level == 1)
        assert len([path for path in reads if "crowd" in path]) == 6, "one for each kind of request"
        for client in waiting:
            found = frames.decode_response(ApiKey.FETCH, 12, memoryview(await client.answer()))[1]
            assert values(partitions(found)[0].records) == [b"a"], "when its time was up"

    world.env.run(run())


def test_a_fetch_with_nothing_to_read_waits_as_long_as_it_said(world: World) -> None:
    world.create_topic("nothing")
    begun = world.env.clock.monotonic_ms()
    response = world.ask(ApiKey.FETCH, 12, fetch("nothing", (0, 0), max_wait_ms=700))
    assert 700 <= world.env.clock.monotonic_ms() - begun < 800
    assert partitions(response)[0].records == b""


def test_a_client_that_goes_leaves_nothing_parked(world: World) -> None:
    world.create_topic("gone")

    async def run() -> None:
        client = await world.connect()
        client.send(ApiKey.FETCH, 12, fetch("gone", (0, 0), max_wait_ms=30_000))
        await world.env.clock.sleep(10)
        assert world.broker.replica_manager.fetching.parked_count == 1
        client.transport.abort()  # closing would not tell: who closes one half only wants the answer
        await world.env.clock.sleep(10)
        assert world.broker.replica_manager.fetching.parked_count == 0

    world.env.run(run())


def test_one_batch_comes_even_when_it_is_larger_than_every_limit(world: World) -> None:
    world.create_topic("large", 2)
    for partition in (0, 1):
        world.ask(ApiKey.PRODUCE, 9, produce("large", batch(bytes(5000)), partition=partition))
    found = partitions(world.ask(ApiKey.FETCH, 12, fetch("large", (0, 0), (1, 0), max_bytes=10)))
    assert [len(found[index].records) > 5000 for index in (0, 1)] == [True, False]


@pytest.mark.parametrize(("excess", "count"), [(-1, 1), (0, 2), (1, 2)])
def test_the_limit_of_a_partition_is_kept(world: World, excess: int, count: int) -> None:
    topic = f"limit{excess}"
    world.create_topic(topic)
    size = len(batch(b"a"))
    for _ in range(3):
        world.ask(ApiKey.PRODUCE, 9, produce(topic, batch(b"a")))
    found = partitions(world.ask(ApiKey.FETCH, 12, fetch(topic, (0, 0), max_bytes=2 * size + excess)))[0]
    assert len(found.records) == count * size


def test_an_incremental_session(world: World) -> None:
    world.create_topic("session", 2)

    async def run() -> None:
        client, producing = await world.connect(), await world.connect()

        async def ask(epoch: int, session: int, *offsets: tuple[int, int], **fields: Any) -> Any:
            request = fetch("session", *offsets, session_id=session, session_epoch=epoch, max_wait_ms=10, **fields)
            return await client.ask(ApiKey.FETCH, 12, request)

        first = await ask(0, 0, (0, 0), (1, 0))
        assert first.session_id > 0
        assert list(partitions(first)) == [0, 1]
        nothing = await ask(1, first.session_id)
        assert (nothing.session_id, nothing.responses) == (first.session_id, [])
        await producing.ask(ApiKey.PRODUCE, 9, produce("session", batch(b"a"), partition=1))
        assert list(partitions(await ask(2, first.session_id))) == [1]
        forgotten = [FetchRequest.ForgottenTopic(topic="session", partitions=[0])]
        assert (await ask(3, first.session_id, (1, 1), forgotten_topics_data=forgotten)).responses == []
        await producing.ask(ApiKey.PRODUCE, 9, produce("session", batch(b"a"), partition=0))
        assert (await ask(4, first.session_id)).responses == [], "forgotten"
        assert (await ask(9, first.session_id)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (await ask(-1, first.session_id, (1, 0))).session_id == 0
        assert (await ask(5, first.session_id)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    world.env.run(run())


def test_a_fetch_that_waits_is_refused_when_its_session_has_gone_on_without_it(world: World) -> None:
    """As in Kafka: of a client that gave up, connected again and forgot the partition in which records came then."""
    world.create_topic("gone-on", 2)

    async def run() -> None:
        waiting, other = await world.connect(), await world.connect()
        opened = await other.ask(ApiKey.FETCH, 12, fetch("gone-on", (0, 0), (1, 0), session_epoch=0, max_wait_ms=0))
        session = {"session_id": opened.session_id}
        waiting.send(ApiKey.FETCH, 12, fetch("gone-on", **session, session_epoch=1, max_wait_ms=60_000))
        await world.env.clock.sleep(100)
        forgotten = [FetchRequest.ForgottenTopic(topic="gone-on", partitions=[0])]
        later = fetch("gone-on", **session, session_epoch=2, max_wait_ms=0, forgotten_topics_data=forgotten)
        assert (await other.ask(ApiKey.FETCH, 12, later)).error_code == ErrorCode.NONE
        await other.ask(ApiKey.PRODUCE, 9, produce("gone-on", batch(b"a"), partition=0))
        await world.env.clock.sleep(1_000)
        assert waiting.data, "no answer"
        answer = await waiting.answer()
        assert answer is not None
        refused = frames.decode_response(ApiKey.FETCH, 12, memoryview(answer))[1]
        assert (refused.error_code, refused.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])

    world.env.run(run())


def wait_far_behind(world: World, meanwhile: Callable[[], object]) -> Any:
    """The answer to a fetch that waits for more than there is. While it waits, a record more is produced."""
    size = len(batch(b"x" * 4000))
    world.create_topic("far", 1, segment_bytes=str(1 << 20))

    async def run() -> Any:
        waiting, producing = await world.connect(), await world.connect()
        for _ in range(600):  # more than two segments
            await producing.ask(ApiKey.PRODUCE, 9, produce("far", batch(b"x" * 4000)))
        limit = 1000 * size
        request = fetch("far", (0, 5), max_bytes=limit, min_bytes=limit, max_wait_ms=600_000)
        waiting.send(ApiKey.FETCH, 12, request)
        await world.env.clock.sleep(10_000)  # meanwhile the indexes of older segments are given back
        assert not waiting.data
        meanwhile()
        await producing.ask(ApiKey.PRODUCE, 9, produce("far", batch(b"one more")))
        await world.env.clock.sleep(1_000)
        assert waiting.data, "no answer"
        answer = await waiting.answer()
        return frames.decode_response(ApiKey.FETCH, 12, memoryview(answer))[1]

    answer = world.env.run(run())
    assert world.escaped == []
    world.env.run(world.broker.stop())
    return answer


def test_a_fetch_that_waits_is_told_that_the_disk_cannot_be_read(make_world: type[World]) -> None:
    world = make_world(log_retention_check_interval_ms="1000")
    answer = wait_far_behind(world, lambda: world.env.disk.fail("open", "/far-0/", times=99))
    assert partitions(answer)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_bug_ends_one_fetch_that_waits(make_world: type[World]) -> None:
    world, planted = make_world(log_retention_check_interval_ms="1000"), RuntimeError("planted")
    answer = wait_far_behind(world, lambda: world.env.disk.fail("open", "/far-0/", planted))
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.broker.request_gate.handler_failures == 1


def test_by_topic_id(world: World) -> None:
    topic_id = world.create_topic("by-id")
    data = ProduceRequest.PartitionProduceData(index=0, records=batch(b"a"))
    known = ProduceRequest.TopicProduceData(topic_id=topic_id, partition_data=[data])
    unknown = ProduceRequest.TopicProduceData(topic_id=bytes(15) + b"?", partition_data=[data])
    response = world.ask(ApiKey.PRODUCE, 13, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[known, unknown]))
    errors = {topic.topic_id: topic.partition_responses[0].error_code for topic in response.responses}
    assert errors == {topic_id: ErrorCode.NONE, bytes(15) + b"?": ErrorCode.UNKNOWN_TOPIC_ID}
    asked = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=10,
        min_bytes=1,
        topics=[
            FetchRequest.FetchTopic(topic_id=bytes(15) + b"?", partitions=[asked]),
            FetchRequest.FetchTopic(topic_id=topic_id, partitions=[asked]),
        ],
    )
    first, second = world.ask(ApiKey.FETCH, 18, request).responses
    assert (first.topic_id, values(first.partitions[0].records)) == (topic_id, [b"a"])
    assert second.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_delete_records_and_list_offsets(world: World) -> None:
    world.create_topic("deleting")
    world.ask(ApiKey.PRODUCE, 9, produce("deleting", batch(b"a", b"b", b"c")))
    deleting = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="deleting", partitions=[deleting])], timeout_ms=1000
    )
    response = world.ask(ApiKey.DELETE_RECORDS, 2, request)
    assert response.topics[0].partitions[0].low_watermark == 2
    for timestamp, offset in ((-2, 2), (-1, 3), (1_700_000_000_002, 2)):
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name="deleting", partitions=[asked])
        response = world.ask(ApiKey.LIST_OFFSETS, 9, ListOffsetsRequest(replica_id=-1, topics=[topic]))
        assert response.topics[0].partitions[0].offset == offset


def test_of_a_partition_that_is_named_twice_the_last_offset_counts(world: World) -> None:
    """As in Kafka, which answers once."""
    world.create_topic("deleting-twice")
    world.ask(ApiKey.PRODUCE, 9, produce("deleting-twice", batch(b"a", b"b", b"c")))
    make = DeleteRecordsRequest
    offsets = [make.DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (3, 1)]
    topics = [make.DeleteRecordsTopic(name="deleting-twice", partitions=offsets)]
    (topic,) = world.ask(ApiKey.DELETE_RECORDS, 2, make(topics=topics, timeout_ms=1000)).topics
    assert [(row.low_watermark, row.error_code) for row in topic.partitions] == [(1, ErrorCode.NONE)]


@pytest.mark.parametrize("epoch", [-2, -(2**31)])
def test_only_minus_one_is_no_leader_epoch(world: World, epoch: int) -> None:
    """As in Kafka, but for Fetch, to which every negative epoch is none."""
    name = f"epoch{epoch}"
    world.create_topic(name)
    offsets, ends = ListOffsetsRequest, OffsetForLeaderEpochRequest
    asked = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
    request = offsets(replica_id=-1, topics=[offsets.ListOffsetsTopic(name=name, partitions=[asked])])
    answer = world.ask(ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
    end = ends.OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=0)
    request = ends(replica_id=-1, topics=[ends.OffsetForLeaderTopic(topic=name, partitions=[end])])
    answer = world.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_offsets_for_the_special_timestamps_of_records_without_timestamps(world: World) -> None:
    """The answers of Apache Kafka 4.1."""
    empty = {-1: (0, -1), -2: (0, -1), -3: (-1, -1), -4: (0, -1), -5: (-1, -1), 0: (-1, -1)}
    without = {-1: (2, -1), -2: (0, -1), -3: (0, -1), -4: (0, -1), -5: (-1, -1), 0: (-1, -1)}
    mixed = {-1: (4, -1), -2: (0, -1), -3: (2, 5), -4: (0, -1), -5: (-1, -1), 0: (2, 5)}
    world.create_topic("timeless")

    def check(expected: dict[int, tuple[int, int]]) -> None:
        for timestamp, found in expected.items():
            asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsetsRequest.ListOffsetsTopic(name="timeless", partitions=[asked])
            response = world.ask(ApiKey.LIST_OFFSETS, 9, ListOffsetsRequest(replica_id=-1, topics=[topic]))
            answer = response.topics[0].partitions[0]
            assert (answer.offset, answer.timestamp, answer.error_code) == (*found, ErrorCode.NONE), timestamp

    def append(timestamp: int) -> None:
        records = record_batch.build([Record(offset=n, timestamp=timestamp, key=b"k", value=b"v") for n in range(2)])
        response = world.ask(ApiKey.PRODUCE, 9, produce("timeless", records))
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    check(empty)
    append(-1)
    check(without)
    append(5)
    check(mixed)


def test_producer_ids_differ(world: World) -> None:
    none = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    first, second = (world.ask(ApiKey.INIT_PRODUCER_ID, 4, none) for _ in range(2))
    assert first.producer_id >= 0
    assert second.producer_id == first.producer_id + 1


def test_a_producer_whose_answers_a_clean_stop_took_sends_all_again(make_world: type[World]) -> None:
    """Apache Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER to all but the last; its Java client then writes them twice."""
    world = make_world()
    world.create_topic("in-flight")
    of_producer = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    producer_id = world.ask(ApiKey.INIT_PRODUCER_ID, 4, of_producer).producer_id
    requests = [
        produce("in-flight", batch(b"%d" % number, producer_id=producer_id, producer_epoch=0, base_sequence=number))
        for number in range(6)
    ]
    for request in requests[:5]:
        world.send_and_close(frames.encode_request(ApiKey.PRODUCE, 9, 1, "test", request)[4:])
    world.env.run(world.broker.stop())
    again = make_world(world.env)
    answers = [again.ask(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0] for request in requests]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, number) for number in range(6)]
    found = partitions(again.ask(ApiKey.FETCH, 11, fetch("in-flight", (0, 0))))[0]
    assert values(found.records) == [b"%d" % number for number in range(6)]
    again.env.run(again.broker.stop())


def test_metadata_creates_what_is_asked_for_and_answers_with_the_address_dialled(world: World) -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="made-by-asking")])
    answer = world.ask(ApiKey.METADATA, 9, request)
    assert [(broker.host, broker.port) for broker in answer.brokers] == [("127.0.0.1", 9092)]
    assert answer.topics[0].error_code == ErrorCode.NONE
    assert answer.topics[0].partitions[0].leader_id == world.broker.node_id


def test_metadata_by_topic_id(world: World) -> None:
    """Kafka's Java Admin leaves the name of what it asks by id empty, not null. One id makes it a request by ids."""
    topic_id = world.create_topic("asked-by-id")
    world.create_topic("asked-by-name")
    asked = [("", topic_id), ("", bytes(15) + b"?"), (None, bytes(15) + b"!"), ("asked-by-name", bytes(16))]
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=asked_id) for name, asked_id in asked]
    response = world.ask(ApiKey.METADATA, 13, MetadataRequest(topics=topics))
    assert {(topic.name, topic.topic_id, topic.error_code) for topic in response.topics} == {
        ("asked-by-id", topic_id, ErrorCode.NONE),
        (None, bytes(15) + b"?", ErrorCode.UNKNOWN_TOPIC_ID),
        (None, bytes(15) + b"!", ErrorCode.UNKNOWN_TOPIC_ID),
    }


@pytest.mark.parametrize(
    ("name", "may_create", "error"),
    [("not a name", True, 17), ("absent", False, 3), ("." * 3, False, 3), ("..", True, 17), ("x" * 250, True, 17)],
)
def test_metadata_of_what_cannot_be(world: World, name: str, may_create: bool, error: int) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=name)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=may_create)
    assert world.ask(ApiKey.METADATA, 9, request).topics[0].error_code == error


def test_metadata_says_what_the_client_may_do_with_a_topic_that_is_not_there(world: World) -> None:
    """As in Kafka: whoever may create it sees that."""
    topics = [MetadataRequest.MetadataRequestTopic(name="not-there")]
    asked = MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=True)
    assert world.ask(ApiKey.METADATA, 12, asked).topics[0].topic_authorized_operations == 3576
    asked.include_topic_authorized_operations = False
    assert world.ask(ApiKey.METADATA, 12, asked).topics[0].topic_authorized_operations == -(2**31)


def test_the_first_question_for_a_coordinator_is_answered_when_there_is_one(make_world: type[World]) -> None:
    world = make_world()
    find = messages.FindCoordinatorRequest(coordinator_keys=["a", "b"], key_type=0)
    answer = world.ask(ApiKey.FIND_COORDINATOR, 4, find)
    assert [(found.error_code, found.node_id) for found in answer.coordinators] == [(0, 0), (0, 0)]
    world.env.run(world.broker.stop())
