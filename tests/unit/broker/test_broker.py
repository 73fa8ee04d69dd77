"""A whole broker in virtual time: start, stop, start again, and starts that must fail."""

import asyncio

import pytest
from barnabas.broker.addresses import Addresses
from barnabas.broker.broker import Broker
from barnabas.broker.requests import RequestContext
from barnabas.cluster.metadata_cache import BrokerMetadata, Endpoint, MetadataCache
from barnabas.cluster.tree.port import CoordinationError
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record
from barnabas.replication.partition import Partition
from barnabas.runtime.pending import Pending
from barnabas.storage.directory_contents import DataDirectoryError
from simulator.env import SimEnv, sim_env


def config(**settings: str) -> BrokerConfig:
    values = {"listeners": "PLAINTEXT://127.0.0.1:9092", "coordination.path": ":memory:"}
    return BrokerConfig.of(values | {name.replace("_", "."): value for name, value in settings.items()})


@pytest.fixture
def env() -> SimEnv:
    return sim_env(3)


def started(env: SimEnv, **settings: str) -> Broker:
    broker = Broker(env, config(**settings), "/data")
    env.run(broker.start())
    return broker


def create_topic(env: SimEnv, broker: Broker, name: str) -> Partition:
    async def create() -> None:
        assert broker.auto_topics.create(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.auto_topics.create(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "once at a time"

    env.run(create())
    env.clock.advance(100)
    partition = broker.replica_manager.partition(name, 0)
    assert isinstance(partition, Partition)
    return partition


def test_it_says_where_it_is(env: SimEnv) -> None:
    broker = started(
        env,
        listeners="PLAINTEXT://:0,INSIDE://[::1]:9093,OUTSIDE://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        advertised_listeners="OUTSIDE://kafka.example:19092",
    )
    port = broker.server.ports["PLAINTEXT"]
    assert port > 0
    assert broker.addresses.bootstrap == f"127.0.0.1:{port}"
    assert len(broker.cluster_id) == 22

    def told(node_id: int, listener: str) -> tuple[str, int] | None:
        context = RequestContext(3, 9, 1, None, "/192.0.2.1", listener, "192.0.2.9", 7777)
        endpoint = broker.addresses.of(node_id, context)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    assert told(0, "PLAINTEXT") == ("192.0.2.9", 7777), "nothing is advertised: the address dialled"
    assert told(0, "OUTSIDE") == ("kafka.example", 19092)
    assert told(1, "PLAINTEXT") is None
    broker.metadata_cache.brokers[1] = BrokerMetadata(1, (Endpoint("PLAINTEXT", "other", 9092),))
    assert told(1, "PLAINTEXT") == ("other", 9092)
    assert told(1, "OUTSIDE") is None, "it has no such listener"
    env.run(broker.stop())


class Named:
    """A network in which this machine has a name, or none."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    async def host_name(self) -> str | None:
        return self._name


@pytest.mark.parametrize(("name", "told"), [("k1.example", "k1.example"), (None, "127.0.0.1")])
def test_other_brokers_are_told_where_they_reach_it(env: SimEnv, name: str | None, told: str) -> None:
    settings = config(
        listeners="ALL://0.0.0.0:1,ALSO://[::]:2,EMPTY://:3,HERE://127.0.0.1:4,INSIDE://10.0.0.7:5,OUTSIDE://:6",
        listener_security_protocol_map=",".join(
            f"{listener}:PLAINTEXT" for listener in ("ALL", "ALSO", "EMPTY", "HERE", "INSIDE", "OUTSIDE")
        ),
        advertised_listeners="OUTSIDE://kafka.example:19092",
    )
    ports = {endpoint.name: endpoint.port for endpoint in settings.endpoints}
    addresses = Addresses(settings, ports, MetadataCache(env.clock))
    registered = env.run(addresses.registered(Named(name)))  # type: ignore[arg-type]
    assert [tuple(endpoint) for endpoint in registered] == [
        ("ALL", told, 1, 0),
        ("ALSO", told, 2, 0),
        ("EMPTY", told, 3, 0),
        ("HERE", "127.0.0.1", 4, 0),
        ("INSIDE", "10.0.0.7", 5, 0),
        ("OUTSIDE", "kafka.example", 19092, 0),
    ]


def test_what_was_written_is_there_after_a_restart(env: SimEnv) -> None:
    broker = started(env)
    coordination = broker.coordination
    partition = create_topic(env, broker, "kept")
    records = record_batch.build([Record(offset=0, timestamp=1, key=None, value=b"v", headers=[])])
    broker.replica_manager.append([("kept", 0, records)], required_acks=-1, timeout_ms=1000)
    assert partition.high_watermark == 1
    topic_id = broker.metadata_cache.topic_id("kept")
    cluster_id = broker.cluster_id
    coordination.close = nothing  # type: ignore[method-assign]  # the tree in memory would be gone
    env.run(broker.stop())
    assert env.disk.exists("/data/.kafka_cleanshutdown")
    env.run(coordination.delete("/brokers/ids/0"))
    env.run(coordination.delete("/controller"))
    again = Broker(env, config(), "/data", coordination)
    again.coordination.start = nothing  # type: ignore[method-assign]
    env.run(again.start())
    assert again.cluster_id == cluster_id
    assert again.metadata_cache.topic_id("kept") == topic_id
    restarted = again.replica_manager.partition("kept", 0)
    assert isinstance(restarted, Partition)
    assert restarted.is_leader
    assert (restarted.high_watermark, restarted.leader_epoch) == (1, partition.leader_epoch)


async def nothing() -> None:
    """In place of closing and starting a tree that lives in memory."""


@pytest.mark.parametrize("failing", ["address", "directory"])
def test_a_start_that_fails_leaves_nothing_open(env: SimEnv, failing: str) -> None:
    first = started(env)
    before = list(env.network.listeners)
    if failing == "address":
        second = Broker(env, config(), "/elsewhere")
        with pytest.raises(OSError, match="in use"):
            env.run(second.start())
    else:
        second = Broker(env, config(listeners="PLAINTEXT://127.0.0.1:9093"), "/data")
        with pytest.raises(DataDirectoryError):
            env.run(second.start())
    assert list(env.network.listeners) == before
    third = Broker(env, config(listeners="PLAINTEXT://127.0.0.1:9093"), "/elsewhere")
    env.run(third.start())
    env.run(third.stop())
    env.run(first.stop())
    assert not env.network.listeners


def test_a_directory_of_another_node_is_refused(env: SimEnv) -> None:
    broker = started(env)
    env.run(broker.stop())
    with pytest.raises(DataDirectoryError, match="node"):
        started(env, node_id="5")


def test_connections_before_it_serves_are_heard_afterwards(env: SimEnv) -> None:
    broker = Broker(env, config(), "/data")
    answers: list[bytes] = []

    class Client(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            answers.append(data)

    async def story() -> None:
        listening = broker.server.listen

        async def listen() -> None:
            await listening()
            transport, _ = await env.network.connect("127.0.0.1", 9092, Client)
            assert isinstance(transport, asyncio.Transport)
            transport.write(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
            await env.clock.sleep(50)
            assert answers == []

        broker.server.listen = listen  # type: ignore[method-assign]
        await broker.start()
        await env.clock.sleep(10)
        assert len(answers) == 1
        await broker.stop()

    env.run(story())


def test_who_waits_when_it_stops_is_let_go(env: SimEnv) -> None:
    broker = started(env)
    create_topic(env, broker, "waited-for")
    from barnabas.replication.fetch_values import FetchParams, FetchPartition

    parked = broker.replica_manager.fetching.fetch(
        FetchParams(max_wait_ms=30_000, min_bytes=1), [FetchPartition("waited-for", 0, 0, 1000)]
    )
    assert isinstance(parked, Pending)
    env.run(broker.stop())
    assert not broker.server.connections
    assert broker.request_gate.handler_failures == 0


def test_a_step_of_the_stop_that_fails_keeps_no_log_from_its_clean_end(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = started(env)

    async def fails() -> None:
        raise CoordinationError("/controller", "the tree is busy")

    monkeypatch.setattr(broker.controller, "stop", fails)
    monkeypatch.setattr(broker.group_coordinator, "shutdown", lambda: 1 / 0)
    env.run(broker.stop())
    assert env.disk.exists("/data/.kafka_cleanshutdown")
    assert caplog.text.count("a step of the stop has failed") == 2


def test_too_few_brokers_for_the_replicas_of_a_new_topic(env: SimEnv) -> None:
    broker = started(env, default_replication_factor="2")
    assert broker.auto_topics.create("wanted") == ErrorCode.INVALID_REPLICATION_FACTOR
    assert broker.auto_topics.create("no/name") == ErrorCode.INVALID_TOPIC_EXCEPTION
    env.run(broker.stop())
