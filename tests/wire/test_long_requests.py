"""Requests with very many rows: they are decoded, handled and answered in pieces, in order, and others are served."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from barnabas.broker import connection
from barnabas.broker.api import fetch as fetch_api
from barnabas.broker.api import list_offsets as list_offsets_api
from barnabas.broker.api import metadata as metadata_api
from barnabas.broker.api import produce as produce_api
from barnabas.coordinators.groups import commits, coordinator, offset_fetches, removals, transactional_commits
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build
from barnabas.replication import fetching
from barnabas.runtime.pending import CarriedOut
from barnabas.runtime.turns import BUDGET_MS
from barnabas.storage.validation import AppendOrigin
from simulator import clock
from simulator.clock import PIECES_PER_PASS

World = Any  # of conftest.py
Harness = Any
Handle = Callable[..., None]
ROWS = 20 * PIECES_PER_PASS

lists = messages.ListOffsetsRequest


@pytest.fixture(autouse=True)
def _long_begins_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every piece of a long work took a millisecond, and as if few bytes and partitions were many."""
    monkeypatch.setattr(clock, "WORK_STEP_MS", 1.0)
    monkeypatch.setattr(connection, "DECODED_AT_ONCE_BYTES_MAX", 400)
    monkeypatch.setattr(fetch_api, "AT_ONCE_MAX", 10)
    monkeypatch.setattr(fetch_api, "PARTITIONS_PER_PIECE", 4)
    monkeypatch.setattr(fetching, "PARTITIONS_PER_PIECE", 4)
    monkeypatch.setattr(produce_api, "APPENDS_PER_PIECE", 4)
    monkeypatch.setattr(list_offsets_api, "COUNTED_PER_PIECE", 4)
    monkeypatch.setattr(metadata_api, "NAMES_PER_PIECE", 4)
    for part in (commits, offset_fetches, removals, transactional_commits):
        monkeypatch.setattr(part, "ROWS_PER_PIECE", 4)
    monkeypatch.setattr(coordinator, "LEAVERS_PER_PIECE", 4)


# --- the connection ---


def long_request(correlation_id: int, rows: int = ROWS) -> bytes:
    topic = lists.ListOffsetsTopic(
        name="t", partitions=[lists.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(rows)]
    )
    return frames.encode_request(ApiKey.LIST_OFFSETS, 7, correlation_id, "test", lists(topics=[topic]))


def heartbeat(correlation_id: int) -> bytes:
    return frames.encode_request(ApiKey.HEARTBEAT, 4, correlation_id, "test", messages.HeartbeatRequest())


class Handled:
    """Handlers that note what they were given."""

    def __init__(self, handle: Handle) -> None:
        self.rows: list[int] = []  # of each long request
        self.order: list[str] = []
        handle(ApiKey.LIST_OFFSETS, self.long, (0, 11))
        handle(ApiKey.HEARTBEAT, self.short)

    def long(self, broker: Any, request: Any, context: Any) -> Any:
        assert context.is_long
        self.rows.append(len(request.topics[0].partitions))
        self.order.append("long")
        answer = messages.ListOffsetsResponse
        rows = [answer.ListOffsetsPartitionResponse() for _ in request.topics[0].partitions]
        return answer(topics=[answer.ListOffsetsTopicResponse(name="t", partitions=rows)])

    def short(self, broker: Any, request: Any, context: Any) -> Any:
        assert not context.is_long
        self.order.append("short")
        return messages.HeartbeatResponse()


@pytest.fixture
def handled(handle: Handle) -> Handled:
    return Handled(handle)


@pytest.mark.parametrize("read_size", [100, 1 << 30])
def test_while_one_is_decoded_others_are_served_and_those_behind_it_wait(
    harness: Harness, handled: Handled, read_size: int
) -> None:
    much, little = harness.connect(read_size=read_size), harness.connect()
    much.feed(long_request(1) + heartbeat(2) + long_request(3) + heartbeat(4))
    assert handled.order == []
    little.feed(heartbeat(9))
    assert little.correlation_ids() == [9]
    harness.run()
    assert handled.order == ["short", "long", "short", "long", "short"]
    assert handled.rows == [ROWS, ROWS]
    assert much.correlation_ids() == [1, 2, 3, 4]
    answers = [frames.decode_response(ApiKey.LIST_OFFSETS, 7, answer)[1] for answer in much.answers()[::2]]
    assert [len(answer.topics[0].partitions) for answer in answers] == [ROWS, ROWS]  # type: ignore[attr-defined]


def test_few_rows_are_decoded_in_one_pass_of_the_loop(harness: Harness, handled: Handled) -> None:
    passes = []
    harness.env.clock.loop.after_pass = lambda: passes.append(len(handled.rows))
    harness.connect().feed(long_request(1))
    harness.run()
    assert handled.rows == [ROWS]
    assert passes.count(0) >= ROWS // (BUDGET_MS + 1)


def test_a_client_that_goes_has_asked_for_what_arrived(harness: Harness, handled: Handled) -> None:
    wire = harness.connect()
    wire.feed(long_request(1) + heartbeat(2))
    wire.lose()
    assert handled.order == []
    harness.run()
    assert handled.order == ["long", "short"]
    assert harness.server.connections == {}


def test_when_the_broker_has_closed_the_connection_nothing_more_is_handled(harness: Harness, handled: Handled) -> None:
    wire = harness.connect()
    wire.feed(long_request(1) + heartbeat(2))
    wire.connection.close()
    harness.run()
    assert handled.order == []


def test_its_memory_is_not_read_into_before_it_is_decoded(harness: Harness, handled: Handled) -> None:
    first, second = harness.connect(), harness.connect()
    first.feed(long_request(1))
    second.feed(b"\x7f" * 100_000)  # nonsense
    harness.run()
    assert handled.rows == [ROWS]


@pytest.mark.parametrize("cut", [1, 1000])
def test_one_that_cannot_be_read_costs_its_own_connection(harness: Harness, handled: Handled, cut: int) -> None:
    wire, other = harness.connect(), harness.connect()
    wrong = long_request(1)[4:-cut]
    wire.feed(len(wrong).to_bytes(4, "big") + wrong + heartbeat(2))
    other.feed(heartbeat(3))
    harness.run()
    assert wire.closed
    assert (handled.order, other.correlation_ids(), harness.server.gate.handler_failures) == (["short"], [3], 0)


def test_a_long_one_waits_at_the_gate(harness: Harness, handled: Handled) -> None:
    harness.server.serving = False
    wire = harness.connect()
    wire.feed(long_request(1) + heartbeat(2))
    harness.run()
    assert handled.order == []
    harness.server.serve()
    harness.run()
    assert handled.order == ["long", "short"]


def test_long_produces_are_answered_in_the_order_of_all_produces(harness: Harness, handle: Handle) -> None:
    """The second is refused as a whole, at once: its answer is long, and waits for the replicas of the first."""
    waiting: dict[int, CarriedOut[Any]] = {}
    produce, response = messages.ProduceRequest, messages.ProduceResponse

    def carry_out(broker: Any, request: Any, context: Any) -> Any:
        number = request.timeout_ms
        if number != 2:
            waiting[number] = CarriedOut()
            return waiting[number]
        rows = [response.PartitionProduceResponse(index=i) for i in range(ROWS)]
        return response(responses=[response.TopicProduceResponse(name="t", partition_responses=rows)])

    def request(number: int, rows: int) -> bytes:
        data = [produce.PartitionProduceData(index=i, records=b"") for i in range(rows)]
        message = produce(timeout_ms=number, topic_data=[produce.TopicProduceData(name="t", partition_data=data)])
        return frames.encode_request(ApiKey.PRODUCE, 9, number, "test", message)

    handle(ApiKey.PRODUCE, carry_out, (3, 13))
    wire = harness.connect()
    wire.feed(request(1, 1) + request(2, ROWS) + request(3, ROWS) + request(4, 1))
    harness.run()
    assert (list(waiting), wire.correlation_ids()) == ([1, 3, 4], [])
    waiting[1].complete(response())
    harness.run()
    assert wire.correlation_ids() == [1, 2]
    waiting[4].complete(response())
    waiting[3].fail(ValueError("a bug"))
    harness.run()
    assert wire.correlation_ids()[2:] in ([3, 4], [])  # a Produce without a failure of its own closes the connection


# --- Fetch ---


@pytest.fixture(scope="module")
def wide(world: World) -> World:
    world.create_topic("wide", ROWS)
    return world


@pytest.fixture(autouse=True)
def _nothing_fails(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "wide" in request.fixturenames:
        assert request.getfixturevalue("world").broker.request_gate.handler_failures == 0


def append(world: World, index: int, text: bytes = b"value", topic: str = "wide") -> None:
    produce = messages.ProduceRequest
    records = bytes(build([Record(value=text)], base_offset=0))
    data = produce.TopicProduceData(
        name=topic, partition_data=[produce.PartitionProduceData(index=index, records=records)]
    )
    answer = world.ask(ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=1000, topic_data=[data]))
    assert answer.responses[0].partition_responses[0].error_code == 0


def append_now(world: World, index: int) -> None:
    """The same between two pieces of a work."""
    records = bytes(build([Record(value=b"news")], base_offset=0))
    partition = world.broker.replica_manager.partitions["wide", index]
    partition.append_as_leader(records, origin=AppendOrigin.CLIENT, required_acks=1)


def end_of(world: World, index: int) -> int:
    end: int = world.broker.replica_manager.partitions["wide", index].log_end_offset
    return end


def fetch(
    world: World,
    indexes: "range | list[int]",
    topic: str = "wide",
    *,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    back: int = 0,
    **more: Any,
) -> Any:
    """A fetch from the ends of the partitions, or so many records before."""
    request = messages.FetchRequest
    rows = [
        request.FetchPartition(
            partition=index,
            fetch_offset=max(end_of(world, index) - back, 0) if topic == "wide" else 0,
            partition_max_bytes=1 << 20,
        )
        for index in indexes
    ]
    topics = [request.FetchTopic(topic=topic, partitions=rows)] if rows else []
    options = {"session_epoch": -1} | more
    return request(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=topics, **options)


def rows_of(answer: Any) -> dict[int, Any]:
    return {row.partition_index: row for topic in answer.responses for row in topic.partitions}


def test_a_fetch_of_very_many_partitions_reads_all_of_them(wide: World) -> None:
    for index in (3, ROWS - 1):
        append(wide, index, b"%d" % index)
    answer = wide.ask(ApiKey.FETCH, 11, fetch(wide, range(ROWS), back=1))
    found = rows_of(answer)
    assert list(found) == list(range(ROWS))
    assert {index for index, row in found.items() if len(row.records)} >= {3, ROWS - 1}
    assert {row.error_code for row in found.values()} == {0}


def test_what_is_asked_twice_is_answered_once(wide: World) -> None:
    answer = wide.ask(ApiKey.FETCH, 11, fetch(wide, [*range(ROWS), *range(ROWS)]))
    assert len(answer.responses) == 1
    assert [row.partition_index for row in answer.responses[0].partitions] == list(range(ROWS))


def test_partitions_that_do_not_exist_have_errors_of_their_own(wide: World) -> None:
    answer = wide.ask(ApiKey.FETCH, 11, fetch(wide, range(ROWS), topic="nowhere", max_wait_ms=10_000))
    assert {row.error_code for row in rows_of(answer).values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(rows_of(answer)) == ROWS


@pytest.mark.parametrize("limit", [1, 1000])
def test_the_limit_of_bytes_holds_for_all_pieces_together(wide: World, limit: int) -> None:
    for index in range(0, ROWS, 10):
        append(wide, index, bytes(300))
    found = rows_of(wide.ask(ApiKey.FETCH, 11, fetch(wide, range(ROWS), back=1, max_bytes=limit)))
    sizes = [len(row.records) for row in found.values() if len(row.records)]
    assert len(sizes) == 1 if limit == 1 else limit - 370 < sum(sizes) <= limit


@pytest.mark.parametrize("at", [0, ROWS // 2, ROWS - 1])
def test_one_that_waits_hears_of_every_partition(wide: World, at: int) -> None:
    async def run() -> Any:
        client = await wide.connect()
        began = wide.env.clock.monotonic_ms()
        client.send(ApiKey.FETCH, 11, fetch(wide, range(ROWS), max_wait_ms=30_000))
        await wide.env.clock.sleep(1000)
        assert wide.broker.replica_manager.fetching.parked_count == 1
        other = await wide.connect()
        produce = messages.ProduceRequest
        records = bytes(build([Record(value=b"news")], base_offset=0))
        rows = [produce.PartitionProduceData(index=at, records=records)]
        data = [produce.TopicProduceData(name="wide", partition_data=rows)]
        await other.ask(ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=1000, topic_data=data))
        answer = frames.decode_response(ApiKey.FETCH, 11, memoryview(await client.answer()))[1]
        for one in (client, other):
            one.transport.close()
        assert wide.env.clock.monotonic_ms() - began < 2000
        return answer

    found = rows_of(wide.env.run(run()))
    assert [index for index, row in found.items() if len(row.records)] == [at]
    assert wide.broker.replica_manager.fetching.parked_count == 0


def test_records_that_come_while_it_begins_to_wait_are_not_missed(wide: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records for the first partition come when only the last ones are still to be watched."""
    watched = []
    look = fetching.LongParkedFetch.look

    def looks(self: Any, position: int) -> None:
        watched.append(position)
        if position == ROWS - 2:
            append_now(wide, 0)
        look(self, position)

    monkeypatch.setattr(fetching.LongParkedFetch, "look", looks)
    found = rows_of(wide.ask(ApiKey.FETCH, 11, fetch(wide, range(ROWS), max_wait_ms=30_000)))
    assert watched
    assert [index for index, row in found.items() if len(row.records)] == [0]


def test_its_time_is_up_and_nothing_has_come(wide: World) -> None:
    began = wide.env.clock.monotonic_ms()
    found = rows_of(wide.ask(ApiKey.FETCH, 11, fetch(wide, range(ROWS), max_wait_ms=500)))
    assert 500 <= wide.env.clock.monotonic_ms() - began < 700
    assert (len(found), {len(row.records) for row in found.values()}) == (ROWS, {0})


def test_a_client_that_goes_leaves_nothing_parked(wide: World) -> None:
    async def run() -> None:
        client = await wide.connect()
        client.send(ApiKey.FETCH, 11, fetch(wide, range(ROWS), max_wait_ms=30_000))
        await wide.env.clock.sleep(1000)
        assert wide.broker.replica_manager.fetching.parked_count == 1
        client.transport.abort()
        await wide.env.clock.sleep(10)

    wide.env.run(run())
    assert wide.broker.replica_manager.fetching.parked_count == 0
    assert not any(partition.fetch_waiters for partition in wide.broker.replica_manager.partitions.values())


def test_a_long_session_goes_on_with_short_requests(wide: World) -> None:
    """The first request names all partitions, later ones only what changed; each is about all of them."""

    async def run() -> None:
        client = await wide.connect()
        first = await client.ask(ApiKey.FETCH, 11, fetch(wide, range(ROWS), session_epoch=0))
        assert len(rows_of(first)) == ROWS
        nothing = fetch(wide, [], session_id=first.session_id, session_epoch=1)
        assert rows_of(await client.ask(ApiKey.FETCH, 11, nothing)) == {}
        append_now(wide, 7)
        news = fetch(wide, [], session_id=first.session_id, session_epoch=2)
        assert list(rows_of(await client.ask(ApiKey.FETCH, 11, news))) == [7]
        request = fetch(wide, [], session_id=first.session_id, session_epoch=3)
        gone = messages.FetchRequest.ForgottenTopic(topic="wide", partitions=list(range(ROWS)))
        request.forgotten_topics_data = [gone]
        answer = await client.ask(ApiKey.FETCH, 11, request)
        assert (rows_of(answer), answer.session_id) == ({}, 0)
        client.transport.close()

    wide.env.run(run())
    assert len(wide.broker.fetch_sessions) == 0


# --- the other APIs ---


def requests_for(topic: str, indexes: list[int]) -> "dict[str, tuple[ApiKey, int, Any]]":
    """Requests that name partitions, by name: API, version, message."""
    produce, commit, offsets = messages.ProduceRequest, messages.OffsetCommitRequest, messages.OffsetFetchRequest
    delete, epochs = messages.DeleteRecordsRequest, messages.OffsetForLeaderEpochRequest
    records = bytes(build([Record(value=b"value")], base_offset=0))
    produced = [produce.PartitionProduceData(index=i, records=records if i % 3 else b"wrong") for i in indexes]
    listed = [lists.ListOffsetsPartition(partition_index=i, timestamp=-2) for i in indexes]
    row = commit.OffsetCommitRequestPartition
    committed = [
        row(partition_index=i, committed_offset=i, committed_metadata="m" * 5000 if i % 7 == 0 else "") for i in indexes
    ]
    pending = messages.TxnOffsetCommitRequest
    pended = [
        pending.TxnOffsetCommitRequestPartition(partition_index=i, committed_offset=i, committed_metadata="")
        for i in indexes
    ]
    deleted = [delete.DeleteRecordsPartition(partition_index=i, offset=0) for i in indexes]
    looked_up = [epochs.OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in indexes]
    of_group = [offsets.OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)]
    forget, leave, configs = messages.OffsetDeleteRequest, messages.LeaveGroupRequest, messages.DescribeConfigsRequest
    forgotten = [forget.OffsetDeleteRequestPartition(partition_index=i) for i in indexes]
    described = [
        configs.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=["retention.ms"])
        for name in [topic, *(f"absent{i}" for i in indexes)]
    ]
    metadata = messages.MetadataRequest
    names = [topic, *(f"absent{i}" for i in indexes), topic]

    def producing(acks: int) -> Any:
        data = [produce.TopicProduceData(name=topic, partition_data=produced)]
        return produce(acks=acks, timeout_ms=1000, topic_data=data)

    return {
        "produce": (ApiKey.PRODUCE, 9, producing(-1)),
        "produce-1": (ApiKey.PRODUCE, 9, producing(1)),
        "list-offsets": (ApiKey.LIST_OFFSETS, 7, lists(topics=[lists.ListOffsetsTopic(name=topic, partitions=listed)])),
        "commit": (
            ApiKey.OFFSET_COMMIT,
            8,
            commit(group_id="g", topics=[commit.OffsetCommitRequestTopic(name=topic, partitions=committed)]),
        ),
        "commit-in-a-transaction": (
            ApiKey.TXN_OFFSET_COMMIT,
            3,
            pending(
                transactional_id="a",
                group_id="g",
                producer_id=7,
                topics=[pending.TxnOffsetCommitRequestTopic(name=topic, partitions=pended)],
            ),
        ),
        "offset-fetch": (
            ApiKey.OFFSET_FETCH,
            8,
            offsets(groups=[offsets.OffsetFetchRequestGroup(group_id="g", topics=of_group)]),
        ),
        "offset-delete": (
            ApiKey.OFFSET_DELETE,
            0,
            forget(group_id="g", topics=[forget.OffsetDeleteRequestTopic(name=topic, partitions=forgotten)]),
        ),
        "leave-group": (
            ApiKey.LEAVE_GROUP,
            5,
            leave(group_id="g", members=[leave.MemberIdentity(member_id=f"m{i}") for i in indexes]),
        ),
        "delete-topics": (
            ApiKey.DELETE_TOPICS,
            4,
            messages.DeleteTopicsRequest(topic_names=[f"absent{i}" for i in indexes], timeout_ms=1000),
        ),
        "describe-configs": (ApiKey.DESCRIBE_CONFIGS, 4, configs(resources=described)),
        "metadata": (
            ApiKey.METADATA,
            9,
            metadata(
                topics=[metadata.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
            ),
        ),
        "delete-records": (
            ApiKey.DELETE_RECORDS,
            2,
            delete(topics=[delete.DeleteRecordsTopic(name=topic, partitions=deleted)], timeout_ms=1000),
        ),
        "leader-epochs": (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            epochs(replica_id=-2, topics=[epochs.OffsetForLeaderTopic(topic=topic, partitions=looked_up)]),
        ),
    }


NAMES = list(requests_for("", []))
ANSWERED = ("topics", "responses", "groups", "members", "results")


@pytest.mark.parametrize("topic", ["wide", "nowhere"])
@pytest.mark.parametrize("name", NAMES)
def test_a_long_request_gets_the_answer_of_a_short_one(
    wide: World, monkeypatch: pytest.MonkeyPatch, name: str, topic: str
) -> None:
    wide.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="g"))
    indexes = [*range(ROWS + 3), 5, 5, -1, 2**31 - 1]
    key, version, request = requests_for(topic, indexes)[name]
    if key is ApiKey.OFFSET_DELETE:  # the group is there
        wide.ask(*next(each for each in requests_for("wide", [1]).values() if each[0] is ApiKey.OFFSET_COMMIT))

    def answer() -> Any:
        found = wide.ask(key, version, request)
        if key is ApiKey.PRODUCE:
            for row in found.responses[0].partition_responses:
                row.base_offset = min(row.base_offset, 0)  # the second time it is another one
        return found

    monkeypatch.setattr(connection, "DECODED_AT_ONCE_BYTES_MAX", 1 << 30)
    short = answer()
    monkeypatch.setattr(connection, "DECODED_AT_ONCE_BYTES_MAX", 400)
    assert answer() == short
    (rows,) = (getattr(short, field) for field in ANSWERED if getattr(short, field, None))
    assert rows


@pytest.mark.parametrize("has_wrong", [False, True])
def test_a_long_produce_without_an_answer(wide: World, has_wrong: bool) -> None:
    """Its records are appended. If some are refused, the connection is closed."""
    before = end_of(wide, 1)
    produce = messages.ProduceRequest
    records = bytes(build([Record(value=b"value")], base_offset=0))
    rows = [produce.PartitionProduceData(index=i, records=records) for i in range(ROWS)]
    if has_wrong:
        rows[3].records = b"wrong"
    data = [produce.TopicProduceData(name="wide", partition_data=rows)]

    async def run() -> bool:
        client = await wide.connect()
        client.send(ApiKey.PRODUCE, 9, produce(acks=0, timeout_ms=1000, topic_data=data))
        await wide.env.clock.sleep(1000)
        closed = client.closed
        client.transport.close()
        return closed

    assert wide.env.run(run()) == has_wrong
    assert end_of(wide, 1) == before + 1


# --- what changes meanwhile ---


def told_brokers(world: World, brokers: list[int], partitions: int = 0) -> messages.UpdateMetadataRequest:
    """A controller's word: these brokers live, and broker 5 leads the partitions of a topic."""
    update = messages.UpdateMetadataRequest
    states = [
        update.UpdateMetadataPartitionState(partition_index=index, leader=5, isr=[5], replicas=[5])
        for index in range(partitions)
    ]
    topic = update.UpdateMetadataTopicState(topic_name="elsewhere", topic_id=bytes(15) + b"\1", partition_states=states)
    return update(
        controller_id=0,
        controller_epoch=1000,
        broker_epoch=world.broker.replica_manager.broker_epoch,
        topic_states=[topic] if states else [],
        live_brokers=[
            update.UpdateMetadataBroker(
                id=each,
                endpoints=[update.UpdateMetadataEndpoint(host=f"b{each}", port=9095, listener="PLAINTEXT")],
            )
            for each in brokers
        ],
    )


@pytest.mark.parametrize("passes", [3, 100, ROWS - 3])
@pytest.mark.parametrize(("before", "then"), [([0, 5], [0]), ([0], [0, 5])])
def test_metadata_name_no_leader_that_is_not_among_their_brokers(
    make_world: Callable[..., World], before: list[int], then: list[int], passes: int
) -> None:
    """A producer of kafka-python 3.0 that was told such a leader spun for ever, and sent nothing any more."""
    world = make_world()
    cache, loop = world.broker.metadata_cache, world.env.clock.loop
    left = passes

    def change() -> None:
        nonlocal left
        left -= 1
        if not left:
            cache.update(told_brokers(world, then))

    async def ask() -> Any:
        client = await world.connect()
        cache.update(told_brokers(world, before, ROWS))
        loop.after_pass = change
        return await client.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))

    answer = world.env.run(ask())
    assert left < 0, "the brokers changed before the answer was complete"
    (topic,) = answer.topics
    assert len(topic.partitions) == ROWS
    assert {row.leader_id for row in topic.partitions} <= {-1, *(broker.node_id for broker in answer.brokers)}
    assert all((row.error_code == ErrorCode.LEADER_NOT_AVAILABLE) == (row.leader_id == -1) for row in topic.partitions)
