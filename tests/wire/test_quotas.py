"""Quotas in virtual time: who is throttled and how long, what the tree has, and what is refused."""

import asyncio
import json
from typing import Any

import pytest
from barnabas.broker import connection
from barnabas.broker.requests import Api
from barnabas.cluster import quota_rates
from barnabas.protocol import frames, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddPartitionsToTxnRequest,
    AllocateProducerIdsRequest,
    AlterClientQuotasRequest,
    AlterPartitionRequest,
    AlterUserScramCredentialsRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClientQuotasRequest,
    FetchRequest,
    HeartbeatRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from barnabas.protocol.record_batch import Record
from barnabas.storage.open_files import FileRange

World = Any  # of conftest.py
Parts = list[tuple[str, str | None]]


def alter(world: World, entity: Parts, dry: bool = False, **changes: float | None) -> Any:
    """Set quotas; None removes one."""
    request = AlterClientQuotasRequest
    entry = request.EntryData(
        entity=[request.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            request.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in changes.items()
        ],
    )
    (answer,) = world.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, request(entries=[entry], validate_only=dry)).entries
    return answer


def described(world: World) -> dict[Any, dict[str, float]]:
    """All quotas."""
    answer = world.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, DescribeClientQuotasRequest(components=[], strict=False))
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def node(world: World, path: str) -> Any:
    """The settings that a node of the tree has."""
    data, _ = world.env.run(world.broker.coordination.get(path))
    return json.loads(data)["config"] if data else None


def produce(size: int, acks: int = 1) -> ProduceRequest:
    records = bytes(record_batch.build([Record(offset=0, timestamp=1, value=b"x" * size)]))
    partition = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[topic])


def fetch(session_id: int = 0, epoch: int = -1, topics: bool = True) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000_000)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50_000_000,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])] if topics else [],
    )


def read(answer: Any) -> int:
    """How many bytes of records an answer has."""
    return sum(len(partition.records or b"") for topic in answer.responses for partition in topic.partitions)


@pytest.fixture
def own(make_world: type[World]) -> Any:
    """A broker of this test, with the topic t."""
    world = make_world()
    world.create_topic("t")
    yield world
    world.end()


class Timed:
    """A connection, and when its answers come."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._client = world.env.run(world.connect())

    def ask(self, api: ApiKey, version: int, request: Any) -> tuple[Any, int]:
        """The answer, and after how many milliseconds it was there."""
        began_ms = self._world.env.clock.monotonic_ms()
        answer = self._world.env.run(self._client.ask(api, version, request))
        return answer, round(self._world.env.clock.monotonic_ms() - began_ms)

    def close(self) -> None:
        self._client.transport.close()


def test_a_producer_above_its_quota_is_answered_at_once_and_then_waits(own: World) -> None:
    """Kafka 4.3.1 has a producer wait that long, too: sizes of whole requests, over ten seconds at least."""
    alter(own, [("user", "ANONYMOUS")], producer_byte_rate=10_000.0)
    client = Timed(own)
    first, took_ms = client.ask(ApiKey.PRODUCE, 9, produce(50_000))
    assert (first.throttle_time_ms, took_ms < 10) == (0, True)
    second, took_ms = client.ask(ApiKey.PRODUCE, 9, produce(60_000))
    assert second.responses[0].partition_responses[0].error_code == 0
    assert took_ms < 10
    assert second.throttle_time_ms == pytest.approx(1021, abs=5)  # (110,210 - 100,000) / 10,000, less what has passed
    third, took_ms = client.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
    assert took_ms == pytest.approx(second.throttle_time_ms, abs=5)  # whatever it asks next
    assert third.throttle_time_ms == 0
    _, took_ms = client.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
    assert took_ms < 10
    assert own.broker.throttles.throttled["producer_byte_rate"] == 1
    client.close()


def test_a_neighbour_does_not_wait(own: World) -> None:
    alter(own, [("client-id", "greedy")], producer_byte_rate=10_000.0)
    client = Timed(own)
    assert client.ask(ApiKey.PRODUCE, 9, produce(200_000))[0].throttle_time_ms == 0
    client.close()


def test_acks_0_has_no_answer_and_the_connection_waits_all_the_same(own: World) -> None:
    alter(own, [("user", None)], producer_byte_rate=10_000.0)

    async def run() -> float:
        client = await own.connect()
        client.send(ApiKey.PRODUCE, 9, produce(120_000, acks=0))
        began_ms = own.env.clock.monotonic_ms()
        await client.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
        client.transport.close()
        return float(own.env.clock.monotonic_ms() - began_ms)

    assert own.env.run(run()) == pytest.approx(2000, abs=20)


@pytest.mark.parametrize("resets", [False, True], ids=["closes", "is gone"])
def test_what_a_client_has_sent_before_it_goes_is_handled_and_counts(own: World, resets: bool) -> None:
    """It has to wait when it goes. If it only sends no more, it still gets its answers, when the time is over."""
    alter(own, [("user", "ANONYMOUS")], producer_byte_rate=10_000.0)

    async def run() -> int:
        client, ends = await own.connect(), own.broker.replica_manager.partitions["t", 0].log
        assert (await client.ask(ApiKey.PRODUCE, 9, produce(120_000))).throttle_time_ms > 0
        end = ends.log_end_offset
        for _ in range(3):
            client.send(ApiKey.PRODUCE, 9, produce(20_000))
        await own.env.clock.sleep(10)
        assert ends.log_end_offset == end
        if resets:
            client.transport.abort()
        else:
            client.transport.close()
            await own.env.clock.sleep(10)
            assert ends.log_end_offset == end
            await own.env.clock.sleep(20_000)
        await own.env.clock.sleep(10)
        assert ends.log_end_offset == end + 3
        assert not own.broker.server.connections
        next_client = await own.connect()
        answer = await next_client.ask(ApiKey.PRODUCE, 9, produce(10))
        next_client.transport.close()
        return int(answer.throttle_time_ms)

    waits_ms = own.env.run(run())
    assert waits_ms > 8_000 or not resets  # 180 KB are used; after half a minute they do not count any more


def test_a_fetch_above_its_quota_gets_no_records_and_does_not_count(own: World) -> None:
    """As of Kafka 4.3.1: the session is not opened, or is as it was, and all comes when the time is over."""
    own.ask(ApiKey.PRODUCE, 9, produce(50_000))
    alter(own, [("user", "ANONYMOUS")], consumer_byte_rate=10_000.0)
    client = Timed(own)
    assert read(client.ask(ApiKey.FETCH, 12, fetch())[0]) > 50_000
    answer, took_ms = client.ask(ApiKey.FETCH, 12, fetch(epoch=0))
    assert (read(answer), answer.session_id, answer.error_code) == (0, 0, 0)
    assert took_ms < 10
    assert answer.throttle_time_ms == pytest.approx(40, abs=40)
    again, took_ms = client.ask(ApiKey.FETCH, 12, fetch(epoch=0))
    assert took_ms == pytest.approx(answer.throttle_time_ms, abs=5)
    assert again.session_id != 0
    assert read(again) > 50_000
    throttled, _ = client.ask(ApiKey.FETCH, 12, fetch(again.session_id, 1, topics=False))
    assert (read(throttled), throttled.session_id, throttled.error_code) == (0, again.session_id, 0)
    assert throttled.throttle_time_ms > 4_000
    # A rate covers ten seconds at least, so it stays as high until the first fetches count no more: after eleven.
    waited_ms = throttled.throttle_time_ms
    for epoch in range(2, 6):
        answer, took_ms = client.ask(ApiKey.FETCH, 12, fetch(again.session_id, epoch, topics=False))
        assert took_ms == pytest.approx(waited_ms, abs=5)
        waited_ms = answer.throttle_time_ms
        if read(answer):
            break
    assert (read(answer) > 50_000, epoch) == (True, 4)
    client.close()


def test_a_quota_that_goes_lets_the_next_answers_through(own: World) -> None:
    alter(own, [("user", "ANONYMOUS")], producer_byte_rate=1.0)
    alter(own, [("user", "ANONYMOUS")], producer_byte_rate=None)
    assert own.broker.server.throttles is None
    client = Timed(own)
    assert client.ask(ApiKey.PRODUCE, 9, produce(50_000))[0].throttle_time_ms == 0
    client.close()


def test_request_time_is_counted_in_percent(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that takes a fifth of a second: ten percent of a second are gone after the sixth, and nobody waits
    longer than a window."""
    alter(own, [("user", "ANONYMOUS")], request_percentage=10.0)
    monkeypatch.setattr(
        own.broker.server, "gate", _Through(own.broker.request_gate, slow(own.broker.request_gate.handle))
    )
    client = Timed(own)
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    waits = [client.ask(ApiKey.HEARTBEAT, 4, beat)[0].throttle_time_ms for _ in range(7)]
    assert waits[:5] == [0] * 5
    assert waits[5] > 0
    assert max(waits) <= 1000
    client.close()


@pytest.mark.parametrize("part", ["decoding", "encoding", "sending from a file"])
def test_all_time_that_the_broker_works_for_a_request_is_counted(
    own: World, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Kafka counts the time of its network threads, too, among them that of TLS."""
    own.ask(ApiKey.PRODUCE, 9, produce(200_000))
    alter(own, [("user", "ANONYMOUS")], request_percentage=10.0)
    match part:
        case "decoding":
            monkeypatch.setattr(Api, "decode", slow(Api.decode))
        case "encoding":
            monkeypatch.setattr(connection.frames, "encode_response", slow(frames.encode_response))
        case _:
            monkeypatch.setattr(FileRange, "send", slow(FileRange.send))
    client = Timed(own)
    asked = (ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
    if part == "sending from a file":
        asked = (ApiKey.FETCH, 12, fetch())
    waits = [client.ask(*asked)[0].throttle_time_ms for _ in range(8)]
    assert waits[:2] == [0, 0]
    assert max(waits) > 0
    client.close()


def slow(work: Any) -> Any:
    """The same work, which takes a fifth of a second."""

    def work_slowly(*arguments: Any) -> Any:
        asyncio.get_running_loop().now += 0.2  # type: ignore[attr-defined]
        return work(*arguments)

    return work_slowly


class _Through:
    """A gate whose `handle` is another."""

    def __init__(self, gate: Any, handle: Any) -> None:
        self._gate = gate
        self.handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)


OF_BROKERS: dict[ApiKey, tuple[int, Any, bool]] = {  # version, request, and whether brokers are counted, too
    ApiKey.FETCH: (12, FetchRequest(replica_id=1, max_wait_ms=0), False),
    ApiKey.LIST_OFFSETS: (7, ListOffsetsRequest(replica_id=1, topics=[]), True),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (4, OffsetForLeaderEpochRequest(replica_id=1, topics=[]), True),
    ApiKey.WRITE_TXN_MARKERS: (1, WriteTxnMarkersRequest(markers=[]), False),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        4,
        AddPartitionsToTxnRequest(
            transactions=[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(verify_only=True)]
        ),
        True,
    ),
    ApiKey.ALTER_PARTITION: (3, AlterPartitionRequest(broker_id=1, topics=[]), False),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, AllocateProducerIdsRequest(broker_id=1), False),
}


@pytest.fixture(scope="module")
def guarded(make_world: type[World]) -> Any:
    """A broker whose handlers take a fifth of a second, and with a quota of request time that is used up at once."""
    world = make_world(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS;User:broker",
    )
    alter(world, [("user", None)], request_percentage=0.001)
    gate = world.broker.request_gate
    world.broker.server.gate = _Through(gate, slow(gate.handle))
    yield world
    world.env.run(world.broker.stop())


@pytest.mark.parametrize("user", ["broker", "mallory"])
@pytest.mark.parametrize("key", OF_BROKERS)
def test_who_claims_to_be_a_broker_is_counted(guarded: World, key: ApiKey, user: str) -> None:
    """Whom the authorizer does not let act as a broker. Kafka 4.3.1 counts three of these of brokers, too."""
    version, request, counts_brokers = OF_BROKERS[key]

    async def run() -> None:
        client = await guarded.connect()
        connection = max(guarded.broker.server.connections, key=lambda each: each.number)
        connection.principal = f"User:{user}"
        await client.ask(key, version, request)
        client.transport.close()

    before = guarded.broker.throttles.throttled["request_percentage"]
    guarded.env.run(run())
    is_counted = guarded.broker.throttles.throttled["request_percentage"] > before
    assert is_counted == (user == "mallory" or counts_brokers)


def test_what_is_remembered_of_clients_that_name_themselves_anew_is_bounded(
    own: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_rates, "USED_MAX", 5)
    alter(own, [("client-id", None)], producer_byte_rate=1.0)

    async def run() -> int:
        throttled = 0
        for number in (*range(20), 19):
            client = await own.connect()
            name = f"{'n' * 30_000}{number}"
            client.transport.write(frames.encode_request(ApiKey.PRODUCE, 9, 1, name, produce(100)))
            answer = frames.decode_response(ApiKey.PRODUCE, 9, memoryview(await client.answer()))[1]
            throttled += answer.throttle_time_ms > 0
            client.transport.close()
        return throttled

    assert own.env.run(run()) == 21  # one quota for each name
    rates = own.broker.throttles.rates(100)
    assert len(rates) == len({sharing.client_id for sharing, _ in rates}) == 5
    assert max(len(sharing.client_id) for sharing, _ in rates) < 100


def create(name: str, partitions: int, dry: bool = False) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=dry)


def test_mutations_are_refused_while_the_bucket_is_empty(own: World) -> None:
    """The same requests as Kafka 4.3.1 was sent: it validates, refuses and waits the same way."""
    alter(own, [("user", "ANONYMOUS")], controller_mutation_rate=1.0)
    client = Timed(own)

    def ask(name: str, partitions: int, version: int = 7, dry: bool = False) -> tuple[int, int]:
        answer, _ = client.ask(ApiKey.CREATE_TOPICS, version, create(name, partitions, dry))
        return answer.topics[0].error_code, answer.throttle_time_ms

    exceeded = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    assert ask("m1", 5) == (0, 0)
    assert ask("m2", 5, dry=True) == (0, 0)  # it counts
    assert ask("m2", 5) == (0, 0)  # 1 is left, and 5 are taken
    error, wait_ms = ask("m3", 3, dry=True)
    assert error == exceeded
    assert wait_ms == pytest.approx(4000, abs=200)
    assert ask("m3", 3) == (0, 0)  # it has waited
    error, wait_ms = ask("m4", 3, version=5)  # a client that does not know the error is only kept waiting
    assert error == 0
    assert wait_ms == pytest.approx(6000, abs=300)
    assert ask("m5", 1) == (0, 0)
    client.close()
    client = Timed(own)
    delete = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="m1")], timeout_ms=5000)
    answer, _ = client.ask(ApiKey.DELETE_TOPICS, 6, delete)
    assert answer.responses[0].error_code == exceeded
    assert answer.throttle_time_ms > 0
    client.close()
    client = Timed(own)
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="m1", count=9, assignments=None)], timeout_ms=5000
    )
    answer, _ = client.ask(ApiKey.CREATE_PARTITIONS, 3, grow)
    assert answer.results[0].error_code == exceeded
    answer, waited_ms = client.ask(ApiKey.CREATE_PARTITIONS, 3, grow)
    assert (answer.results[0].error_code, waited_ms > 500) == (0, True)
    client.close()


@pytest.mark.parametrize("key", ["nope", "SCRAM-SHA-256", "connection_creation_rate"])
def test_a_quota_that_nobody_can_have_is_removed_without_an_error(own: World, key: str) -> None:
    """As by Kafka 4.3.1; what else is in the node stays."""
    own.env.run(own.broker.coordination.create("/config/users/u", b'{"version":1,"config":{"SCRAM-SHA-256":"x"}}'))
    assert alter(own, [("user", "u")], **{key: None}).error_code == 0
    assert node(own, "/config/users/u") == {"SCRAM-SHA-256": "x"}


def test_a_quota_without_bound_lets_one_of_many_through(own: World) -> None:
    alter(own, [("user", None)], controller_mutation_rate=0.1)
    alter(own, [("user", "ANONYMOUS")], controller_mutation_rate=float("inf"))
    assert node(own, "/config/users/ANONYMOUS") == {"controller_mutation_rate": "Infinity"}
    client = Timed(own)
    for name in ("u1", "u2", "u3"):
        answer, _ = client.ask(ApiKey.CREATE_TOPICS, 7, create(name, 50))
        assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)
    client.close()


def test_topics_that_are_made_by_asking_for_them_are_mutations(own: World) -> None:
    """With a tenth a second Kafka 4.3.1 made two of twenty, and none after; its answers tell of no throttle."""
    alter(own, [("user", "ANONYMOUS")], controller_mutation_rate=0.1)
    client = Timed(own)
    topics = [MetadataRequest.MetadataRequestTopic(name=f"asked-for-{number}") for number in range(20)]

    def ask() -> int:
        answer, _ = client.ask(ApiKey.METADATA, 9, MetadataRequest(topics=topics))
        assert answer.throttle_time_ms == 0
        codes = [topic.error_code for topic in answer.topics]
        assert set(codes) <= {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        return codes.count(ErrorCode.NONE)

    assert [ask(), ask()] == [2, 2]
    own.env.run(own.env.clock.sleep(10_000))
    assert ask() == 3
    client.close()


def test_where_the_tree_has_them(own: World) -> None:
    """Kafka 3.9 reads and writes the same nodes; credentials of the same user stay as they are."""
    coordination = own.broker.coordination
    own.env.run(coordination.create("/config/users/a%2Fb", b'{"version":1,"config":{"SCRAM-SHA-256":"x"}}'))
    assert alter(own, [("user", "a/b")], producer_byte_rate=1048576.0).error_code == 0
    assert node(own, "/config/users/a%2Fb") == {"SCRAM-SHA-256": "x", "producer_byte_rate": "1048576"}
    alter(own, [("user", "new"), ("client-id", None)], request_percentage=50.0)
    assert node(own, "/config/users/new/clients/<default>") == {"request_percentage": "50.0"}
    assert node(own, "/config/users/new") is None
    alter(own, [("client-id", "c")], consumer_byte_rate=5.0)
    alter(own, [("ip", "10.1.2.3")], connection_creation_rate=7.0)
    assert node(own, "/config/clients/c") == {"consumer_byte_rate": "5"}
    assert node(own, "/config/ips/10.1.2.3") == {"connection_creation_rate": "7"}
    alter(own, [("user", "a/b")], producer_byte_rate=None)
    assert node(own, "/config/users/a%2Fb") == {"SCRAM-SHA-256": "x"}
    assert described(own) == {
        (("client-id", None), ("user", "new")): {"request_percentage": 50.0},
        (("client-id", "c"),): {"consumer_byte_rate": 5.0},
        (("ip", "10.1.2.3"),): {"connection_creation_rate": 7.0},
    }


def test_what_another_broker_writes_is_heard(own: World) -> None:
    coordination = own.broker.coordination
    own.env.run(coordination.create("/config/clients/them", b'{"version":1,"config":{"producer_byte_rate":"12"}}'))
    notice = b'{"version":2,"entity_path":"clients/them"}'
    own.env.run(coordination.create("/config/changes/config_change_", notice, sequential=True))
    own.env.run(own.env.clock.sleep(1000))
    assert described(own) == {(("client-id", "them"),): {"producer_byte_rate": 12.0}}


def test_a_start_reads_what_is_there(make_world: type[World]) -> None:
    first = make_world()
    alter(first, [("user", "u"), ("client-id", "c")], producer_byte_rate=5.0)
    alter(first, [("ip", None)], connection_creation_rate=5.0)
    table = first.broker.client_quotas.table
    before = dict(table.all)
    table.all.clear()
    table._found.clear()
    first.env.run(first.broker.client_quotas.load())
    assert table.all == before
    first.env.run(first.broker.stop())


def test_what_is_refused_has_changed_nothing(own: World) -> None:
    answer = alter(own, [("user", "u")], producer_byte_rate=5.0, no_such_rate=1.0)
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Invalid configuration key no_such_rate",
    )
    assert alter(own, [("user", "u")], producer_byte_rate=1.5).error_code == ErrorCode.INVALID_REQUEST
    assert alter(own, [("user", "u")], dry=True, producer_byte_rate=5.0).error_code == 0
    assert described(own) == {}
    assert own.env.run(own.broker.coordination.exists("/config/users/u")) is None


def test_what_is_named_twice_counts_once_or_not_at_all(own: World) -> None:
    """As in Kafka: of an entity its first entry, and one answer; of an entry in which a quota stands twice, nothing."""
    make = AlterClientQuotasRequest
    entity = [make.EntityData(entity_type="user", entity_name="u")]
    five = make.OpData(key="producer_byte_rate", value=5.0, remove=False)
    six = make.OpData(key="producer_byte_rate", value=6.0, remove=False)
    other = make.OpData(key="consumer_byte_rate", value=7.0, remove=False)
    for entries, left in (
        ([[five, six]], {}),
        ([[five], [other]], {"producer_byte_rate": 5.0}),
        ([[six, other], [other], [five]], {"producer_byte_rate": 6.0, "consumer_byte_rate": 7.0}),
    ):
        request = make(entries=[make.EntryData(entity=entity, ops=ops) for ops in entries], validate_only=False)
        (answer,) = own.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, request).entries
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert described(own) == ({(("user", "u"),): left} if left else {})


def test_a_wait_longer_than_an_answer_can_say_is_cut(own: World) -> None:
    """The request was carried out, so it has to be answered: the client would send it again."""
    own.create_topic("p", 3)
    alter(own, [("user", "ANONYMOUS")], producer_byte_rate=1.0, controller_mutation_rate=1e-9)
    records = produce(900_000).topic_data[0].partition_data[0].records
    partitions = [ProduceRequest.PartitionProduceData(index=index, records=records) for index in range(3)]
    topic = ProduceRequest.TopicProduceData(name="p", partition_data=partitions)
    answer, _ = Timed(own).ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=1, timeout_ms=5000, topic_data=[topic]))
    assert answer.throttle_time_ms == 2**31 - 1
    assert [each.error_code for each in answer.responses[0].partition_responses] == [0, 0, 0]
    creation = CreateTopicsRequest.CreatableTopic(name="m", num_partitions=10, replication_factor=1)
    answer, _ = Timed(own).ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[creation], timeout_ms=1000))
    assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 2**31 - 1)


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[]", b'{"version":1,"config":[1]}'])
def test_a_node_that_cannot_be_read_stops_nothing_else(own: World, data: bytes) -> None:
    alter(own, [("user", "u")], producer_byte_rate=5.0)
    own.env.run(own.broker.coordination.set("/config/users/u", data))
    request = AlterClientQuotasRequest
    entries = [
        request.EntryData(
            entity=[request.EntityData(entity_type="user", entity_name=name)],
            ops=[request.OpData(key="producer_byte_rate", value=7.0, remove=False)],
        )
        for name in ("t", "u", "v")
    ]
    answer = own.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, request(entries=entries, validate_only=False))
    assert [each.error_code for each in answer.entries] == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0]
    assert "/config/users/u" in answer.entries[1].error_message
    scram = AlterUserScramCredentialsRequest
    upsertions = [
        scram.ScramCredentialUpsertion(
            name=name, mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p" * 32
        )
        for name in ("t", "u", "v")
    ]
    answer = own.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, scram(deletions=[], upsertions=upsertions))
    assert {each.user: each.error_code for each in answer.results} == {
        "t": 0,
        "u": ErrorCode.UNKNOWN_SERVER_ERROR,
        "v": 0,
    }
    assert own.env.run(own.broker.coordination.get("/config/users/u"))[0] == data


# --- connections ---


def test_connections_of_an_address_that_come_too_fast_are_closed(own: World) -> None:
    """One in ten seconds at first, because a rate covers ten at least: the eleventh is too much."""
    alter(own, [("ip", "127.0.0.1")], connection_creation_rate=1.0)

    async def run() -> list[bool]:
        clients = [await own.connect() for _ in range(12)]
        for client in clients:
            client.send(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        await own.env.clock.sleep(5)
        answered = [bool(client.data) for client in clients]
        assert not any(client.closed for client in clients)
        await own.env.clock.sleep(1100)
        assert [client.closed for client in clients] == [not each for each in answered]
        for client in clients:
            client.transport.close()
        return answered

    assert own.env.run(run()) == [True] * 10 + [False] * 2
    assert own.broker.server.arrivals.waiting == {}


def test_connections_of_all_wait_for_their_turn(make_world: type[World]) -> None:
    world = make_world(max_connection_creation_rate="1")

    async def run() -> list[float]:
        came = []
        clients = [await world.connect() for _ in range(12)]
        began_ms = world.env.clock.monotonic_ms()
        for client in clients:
            await client.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            came.append(world.env.clock.monotonic_ms() - began_ms)
        for client in clients:
            client.transport.close()
        return came

    came = world.env.run(run())
    assert came[9] < 50
    assert 900 < came[10] <= 1100
    assert came[11] > came[10] + 900
    assert world.broker.server.arrivals.waiting == {}
    world.env.run(world.broker.stop())
    assert world.escaped == []
