"""TLS on the wire, in virtual time: who is let in, what ends a connection, and that nobody else is kept waiting."""

import asyncio
import errno
import logging
import ssl
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.connection import Connection
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.tls import HANDSHAKE_WITHIN_MS, HandshakeError, TlsError, TlsSide, TlsTransport
from barnabas.runtime.tls_context import Keys, client_context
from certificates import Authority, Certificate

World = Any  # of conftest.py
Client = Any
AUTHORITY = Authority()
BROKER = AUTHORITY.sign("broker")
PROTOCOLS = ("TLSv1.2", "TLSv1.3")
KEYS, TRUSTED = "/keys.pem", "/trusted.pem"


def put(env: Any, path: str, text: str) -> None:
    file = env.disk.open(path, create=True)
    file.truncate(0)
    file.write(0, text.encode())
    file.close()


def secured(make_world: Any, sim_env: Any, **more: str) -> World:
    env = sim_env(7)
    put(env, KEYS, BROKER.key_pem() + BROKER.chain_pem)
    put(env, TRUSTED, AUTHORITY.pem)
    values = {
        "listeners": "SSL://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": KEYS,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": TRUSTED,
        "ssl_client_auth": "requested",
        "super_users": "User:CN=alice,O=Acme",
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    return make_world(env, **(values | more))


@pytest.fixture(scope="module")
def sim_env() -> Any:
    from simulator.env import sim_env

    return sim_env


@pytest.fixture(scope="module")
def world(make_world: Any, sim_env: Any) -> Iterator[World]:
    world = secured(make_world, sim_env)
    yield world
    world.end()


def context_of(own: Certificate | None = None, authority: Authority = AUTHORITY, protocols: Any = PROTOCOLS) -> Any:
    keys = Keys(trusted=authority.pem)
    if own is not None:
        keys = keys._replace(key=own.key_pem().encode(), chain=own.chain_pem.encode())
    return client_context(keys, protocols, ())


def plain_client(world: World, port: int = 9092) -> Client:
    return world.env.run(world.env.network.connect("127.0.0.1", port, client_class(world)))[1]


def client_class(world: World) -> type[Client]:
    """Of conftest.py."""
    found: type[Client] = sys.modules[type(world).__module__].Client
    return found


class TlsClient:
    """A client that speaks TLS."""

    def __init__(self, world: World, context: ssl.SSLContext, host: str = "127.0.0.1") -> None:
        self.world = world
        self.failed: list[str] = []
        self.client = client_class(world)()
        env = world.env
        side = TlsSide(env.clock, env.turns, lambda: context, on_failure=self._fail, server_hostname=host)
        self.transport = TlsTransport(side, self.client)
        self.client.transport = self.transport
        env.run(env.network.connect("127.0.0.1", 9092, lambda: self.transport))

    def _fail(self, _transport: TlsTransport, error: HandshakeError) -> None:
        self.failed.append(str(error))

    def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        async def run() -> Any:
            return await asyncio.shield(self.client.ask(api, version, request))

        return self.world.env.run(run())

    def versions(self) -> Any:
        return self.ask(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())

    def closed(self) -> bool:
        """Whether the broker closes it soon."""

        async def run() -> None:
            while not self.client.closed:
                await self.world.env.clock.sleep(1)

        self.world.env.run(run())
        return True


def connection_of(world: World) -> Connection:
    """The newest."""
    newest: Connection = list(world.broker.server.connections)[-1]
    return newest


def advance(world: World, delay_ms: float) -> None:
    world.env.run(world.env.clock.sleep(delay_ms))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_certificate_says_who_it_is(world: World, protocol: str) -> None:
    own = AUTHORITY.sign("alice", organization="Acme")
    client = TlsClient(world, context_of(own, protocols=(protocol,)))
    assert client.versions().error_code == 0
    assert connection_of(world).principal == "User:CN=alice,O=Acme"
    client.transport.close()


def test_without_a_certificate_somebody_is_nobody(world: World) -> None:
    client = TlsClient(world, context_of())
    assert client.versions().error_code == 0
    assert connection_of(world).principal == "User:ANONYMOUS"
    client.transport.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("own", "told", "heard"),
    [
        (
            AUTHORITY.sign("alice", days=-1),
            "its certificate is refused: certificate has expired",
            "not valid at this time",
        ),
        (
            Authority("foreign").sign("alice"),
            "its certificate is refused: unable to get local issuer",
            "does not trust",
        ),
    ],
    ids=["expired", "foreign"],
)
def test_a_certificate_that_is_not_accepted_gets_its_alert(
    world: World, own: Certificate, told: str, heard: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed_before = world.broker.server.failed_logins
    advance(world, 61_000)  # the log has each kind once a minute
    client = TlsClient(world, context_of(own, protocols=(protocol,)))
    assert client.closed()
    assert world.broker.server.failed_logins == failed_before + 1
    assert "a TLS handshake with 127.0.0.1 (listener SSL) has failed: " + told in caplog.text
    assert heard in client.failed[0]


class Resuming:
    """A context whose connections go on with a session of before."""

    def __init__(self, context: ssl.SSLContext, before: TlsClient) -> None:
        self._context = context
        self._session = before.transport._object.session  # type: ignore[union-attr]

    def wrap_bio(self, *words: Any, **options: Any) -> ssl.SSLObject:
        return self._context.wrap_bio(*words, session=self._session, **options)


def test_a_session_does_not_outlive_its_certificate(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """OpenSSL looks at the certificate when a session of TLS 1.2 begins, and not when a client goes on with it."""
    own = AUTHORITY.sign("alice")
    context = context_of(own, protocols=("TLSv1.2",))
    first = TlsClient(world, context)
    first.versions()
    resuming: Any = Resuming(context, first)
    second = TlsClient(world, resuming)
    assert second.versions().error_code == 0
    assert second.transport._object.session_reused  # type: ignore[union-attr]
    assert connection_of(world).principal == "User:CN=alice"
    advance(world, 61_000)  # the log has each kind once a minute
    clock = world.env.clock
    too_late_ms = int(own.certificate.not_valid_after_utc.timestamp() * 1000) + 1 - clock.now_ms()
    clock.step_wall_clock(too_late_ms)
    late = TlsClient(world, resuming)
    assert late.closed()
    clock.step_wall_clock(-too_late_ms)
    assert "(listener SSL) has failed: its certificate is refused: certificate has expired" in caplog.text
    for client in (first, second):
        client.transport.close()


def test_a_client_that_does_not_trust_the_broker_goes_away(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = TlsClient(world, context_of(authority=Authority("other")))
    assert client.closed()
    assert "its certificate is refused" in client.failed[0]
    assert "it does not trust the authority of this side's certificate" in caplog.text


def test_a_client_that_knows_the_broker_by_another_name_goes_away(world: World) -> None:
    client = TlsClient(world, context_of(), host="other.example.com")
    assert client.closed()
    assert "its certificate is refused: Hostname mismatch" in client.failed[0]


@pytest.mark.parametrize(
    ("data", "spoken"),
    [
        (bytes.fromhex("0000000a00120000000000010000ffff"), "Kafka's protocol or another one"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
    ],
)
def test_a_client_without_tls_is_closed_and_told_of(
    world: World, data: bytes, spoken: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = plain_client(world)
    client.transport.write(data)
    assert world.env.run(client.answer()) is None
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"closing the connection of 127.0.0.1: it speaks {spoken} without TLS, and this port has TLS: set "
        "security.protocol=SSL in the client"
    ]


def test_a_client_with_tls_at_a_plain_port_is_closed_and_told_of(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    client = plain_client(world, 9093)
    client.transport.write(bytes.fromhex("16030100c8010000c4"))
    assert world.env.run(client.answer()) is None
    assert "it speaks TLS, and this port has Kafka's protocol without it: " in caplog.text
    assert "or ask port 9092" in caplog.text


@pytest.mark.parametrize("start", [b"", bytes.fromhex("16030100c8"), bytes.fromhex("16030100c8010000c4") + bytes(50)])
def test_a_handshake_that_does_not_go_on_ends_after_its_time(world: World, start: bytes) -> None:
    """The silent one counts as a connection meanwhile."""
    before = len(world.broker.server.connections)
    client = plain_client(world)
    if start:
        client.transport.write(start)
    advance(world, HANDSHAKE_WITHIN_MS - 100)
    assert not client.closed
    assert len(world.broker.server.connections) == before + 1
    advance(world, 200)
    assert client.closed
    assert len(world.broker.server.connections) == before


def test_bytes_that_are_no_handshake_end_it_at_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = plain_client(world)
    client.transport.write(bytes.fromhex("160301000400000000"))
    advance(world, 100)
    assert client.closed
    assert "a TLS handshake with 127.0.0.1 (listener SSL) has failed: " in caplog.text


def test_who_only_connects_and_goes_is_not_told_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A probe of a load balancer, say."""
    plain_client(world).transport.close()
    advance(world, 100)
    assert "127.0.0.1" not in caplog.text


def test_limits_of_connections_count_from_the_first_byte(make_world: Any, sim_env: Any) -> None:
    world = secured(make_world, sim_env, max_connections_per_ip="3")
    silent = [plain_client(world) for _ in range(4)]
    advance(world, 10)
    assert [client.closed for client in silent] == [False, False, False, True]
    world.env.run(world.broker.stop())


def test_a_client_that_sends_no_more_still_gets_its_answers(world: World) -> None:
    client = TlsClient(world, context_of())
    client.versions()
    request = messages.ApiVersionsRequest()
    for _ in range(3):
        client.client.send(ApiKey.API_VERSIONS, 0, request)
    with suppress(ssl.SSLError):
        client.transport.get_extra_info("ssl_object").unwrap()
    client.transport.write(b"")  # sends that nothing more follows

    async def answers() -> list[bytes | None]:
        return [await client.client.answer() for _ in range(4)]

    assert [answer is not None for answer in world.env.run(answers())] == [True, True, True, False]


def test_what_had_arrived_when_the_client_vanished_is_handled(world: World) -> None:
    client = TlsClient(world, context_of(AUTHORITY.sign("alice", organization="Acme")))
    client.versions()
    topic = messages.CreateTopicsRequest.CreatableTopic(name="last-word", num_partitions=1, replication_factor=1)
    client.client.send(ApiKey.CREATE_TOPICS, 7, messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000))

    async def vanish() -> None:
        client.transport.below.part()()

    world.env.run(vanish())
    advance(world, 1_000)
    assert world.broker.metadata_cache.contains("last-word")


def test_large_frames_go_both_ways_in_any_pieces(make_world: Any, sim_env: Any) -> None:
    world = secured(make_world, sim_env)

    def in_pieces(chunk: bytes) -> Iterator[bytes]:
        return (chunk[start : start + 777] for start in range(0, len(chunk), 777))

    world.env.network.fragment = in_pieces
    client = TlsClient(world, context_of(AUTHORITY.sign("alice", organization="Acme")))
    names = [f"topic-{number:05}" for number in range(12_000)]
    rows = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = messages.MetadataRequest(topics=rows, allow_auto_topic_creation=False)
    found = client.ask(ApiKey.METADATA, 4, request)
    assert [topic.name for topic in found.topics] == names
    world.env.run(world.broker.stop())


def test_many_handshakes_at_once_take_turns_with_others(world: World) -> None:
    """Each pass of the loop has a few milliseconds for all of them."""
    clients = [TlsClient(world, context_of()) for _ in range(30)]
    neighbour = plain_client(world, 9093)
    answer = world.env.run(neighbour.ask(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest()))
    assert answer.error_code == 0
    for client in clients:
        assert client.versions().error_code == 0
        client.transport.close()


def test_files_that_change_are_read_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    old = TlsClient(world, context_of())
    old.versions()
    other = Authority("the next")
    renewed = other.sign("broker")
    put(world.env, KEYS, renewed.key_pem() + renewed.chain_pem)
    advance(world, 2_000)
    assert "keys and certificates were read again" in caplog.text
    assert TlsClient(world, context_of(authority=other)).versions().error_code == 0
    assert TlsClient(world, context_of()).closed()
    assert old.versions().error_code == 0  # what is open stays
    caplog.clear()
    put(world.env, KEYS, renewed.key_pem())
    advance(world, 5_000)
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line == (
        "listener SSL: ssl.keystore.location=/keys.pem: it has no PEM block with a certificate. The certificates that "
        "were read before stay in use"
    )
    assert TlsClient(world, context_of(authority=other)).versions().error_code == 0
    put(world.env, KEYS, BROKER.key_pem() + BROKER.chain_pem)
    advance(world, 2_000)
    assert TlsClient(world, context_of()).versions().error_code == 0


@pytest.mark.parametrize("step_ms", [-86_400_000, 86_400_000])
def test_a_step_of_the_wall_clock_reads_nothing_and_hides_nothing(
    world: World, step_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was written since then may have an earlier time than the one before."""
    caplog.set_level(logging.INFO)
    advance(world, 2_000)
    caplog.clear()
    world.env.clock.step_wall_clock(step_ms)
    advance(world, 5_000)
    assert "were read again" not in caplog.text
    other = Authority("of another day")
    renewed = other.sign("broker")
    put(world.env, KEYS, renewed.key_pem() + renewed.chain_pem)
    advance(world, 2_000)
    assert TlsClient(world, context_of(authority=other)).versions().error_code == 0
    put(world.env, KEYS, BROKER.key_pem() + BROKER.chain_pem)
    advance(world, 2_000)
    assert TlsClient(world, context_of()).versions().error_code == 0


def altered(client: TlsClient, path: str, kind: str = "keystore") -> Any:
    """What is answered to a change of a file's name."""
    row = messages.IncrementalAlterConfigsRequest.AlterableConfig(
        name=f"listener.name.ssl.ssl.{kind}.location", config_operation=0, value=path
    )
    resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=4, resource_name="0", configs=[row]
    )
    request = messages.IncrementalAlterConfigsRequest(resources=[resource])
    return client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0]


def test_another_file_by_alter_configs(world: World) -> None:
    renewed, another = AUTHORITY.sign("broker"), AUTHORITY.sign("another")
    put(world.env, "/next.pem", renewed.key_pem() + renewed.chain_pem)
    put(world.env, "/another.pem", another.key_pem() + another.chain_pem)
    client = TlsClient(world, context_of(AUTHORITY.sign("alice", organization="Acme")))

    alter = partial(altered, client)
    refused = alter("/no-such.pem")
    assert refused.error_code == 42
    assert "ssl.keystore.location=/no-such.pem cannot be read" in refused.error_message
    refused = alter("/another.pem")
    assert refused.error_code == 42
    assert "ssl.allow.dn.changes=true" in refused.error_message
    assert alter("/next.pem").error_code == 0
    advance(world, 2_000)
    shown = TlsClient(world, context_of())
    shown.versions()
    assert shown.transport.peer_certificate() == renewed.der


def test_rules_make_users_of_names(make_world: Any, sim_env: Any, caplog: pytest.LogCaptureFixture) -> None:
    rules = r"RULE:^CN=([^,]*),O=Acme$/$1/U"
    world = secured(make_world, sim_env, ssl_principal_mapping_rules=rules, ssl_client_auth="required")
    client = TlsClient(world, context_of(AUTHORITY.sign("alice", organization="Acme")))
    client.versions()
    assert connection_of(world).principal == "User:ALICE"
    assert TlsClient(world, context_of(AUTHORITY.sign("alice"))).closed()
    told = "no rule of ssl.principal.mapping.rules applies to the subject of its certificate, 'CN=alice'"
    assert told in caplog.text
    for protocol in PROTOCOLS:
        nobody = TlsClient(world, context_of(protocols=(protocol,)))
        assert nobody.closed()
    assert "it has shown no certificate (ssl.client.auth=required)" in caplog.text
    assert "it wants a certificate of this side" in nobody.failed[0]
    world.env.run(world.broker.stop())


def test_who_is_refused_while_it_waits_its_turn_takes_no_place(make_world: Any, sim_env: Any) -> None:
    rules = r"RULE:^CN=([^,]*),O=Acme$/$1/U"
    world = secured(make_world, sim_env, ssl_principal_mapping_rules=rules, max_connection_creation_rate="1")
    for _ in range(12):
        assert TlsClient(world, context_of(AUTHORITY.sign("alice"))).closed()
    advance(world, 15_000)
    assert list(world.broker.server.connections) == []
    assert world.broker.server.arrivals.waiting == {}
    assert world.broker.server._connections_of == {}
    world.env.run(world.broker.stop())
    assert world.escaped == []


def test_a_login_follows_the_handshake(make_world: Any, sim_env: Any) -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="bob-secret";'
    world = secured(
        make_world,
        sim_env,
        listeners="USERS://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093",
        listener_security_protocol_map="USERS:SASL_SSL,PLAINTEXT:PLAINTEXT",
        sasl_enabled_mechanisms="PLAIN",
        inter_broker_listener_name="PLAINTEXT",
        **{"listener.name.users.plain.sasl.jaas.config": jaas},
    )
    client = TlsClient(world, context_of(AUTHORITY.sign("alice", organization="Acme")))
    shaken = client.ask(ApiKey.SASL_HANDSHAKE, 1, messages.SaslHandshakeRequest(mechanism="PLAIN"))
    assert shaken.error_code == 0
    token = messages.SaslAuthenticateRequest(auth_bytes=b"\0bob\0bob-secret")
    assert client.ask(ApiKey.SASL_AUTHENTICATE, 2, token).error_code == 0
    assert connection_of(world).principal == "User:bob"
    world.env.run(world.broker.stop())


def test_a_frame_size_of_a_plain_client_is_never_read_as_tls() -> None:
    """Kafka's frames are below 100 MB unless somebody has set more, so the first byte is no handshake's (22)."""
    assert struct.pack(">i", 100 * 1024 * 1024)[0] < 22


def test_no_cycle_keeps_the_memory_of_a_connection_that_is_over(world: World) -> None:
    client = TlsClient(world, context_of())
    client.versions()
    connection = connection_of(world)
    assert connection.transport.above is connection
    client.transport.close()
    advance(world, 100)
    assert connection.transport.above is not connection
    assert connection.transport.get_extra_info("ssl_object") is None


def test_a_broker_without_tls_settings_makes_no_contexts(make_world: Any) -> None:
    world = make_world()
    assert world.broker.tls is None
    assert isinstance(world.broker.server._factory("PLAINTEXT"), partial)
    world.env.run(world.broker.stop())


def between_brokers(make_world: Any, sim_env: Any, **more: str) -> World:
    return secured(make_world, sim_env, **({"inter_broker_listener_name": "SSL"} | more))


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_brokers_are_not_cut_off_by_a_certificate_that_they_refuse(
    make_world: Any, sim_env: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka: at the listener between brokers a new certificate must be good for the trust store, and both for
    brokers that have the former ones."""
    world = between_brokers(make_world, sim_env)
    cache = world.broker.metadata_cache
    monkeypatch.setattr(cache, "brokers", {**cache.brokers, 9: None})  # another one, which is not asked
    other = Authority("the next")
    foreign, ended = other.sign("broker"), AUTHORITY.sign("broker", days=-1)
    for certificate, why in ((foreign, "unable to get local issuer certificate"), (ended, "certificate has expired")):
        advance(world, 1_000)
        put(world.env, KEYS, certificate.key_pem() + certificate.chain_pem)
        advance(world, 3_000)
        [line] = errors_of(caplog)
        assert f"ssl.truststore refuses the certificate of ssl.keystore: {why}" in line
        assert TlsClient(world, context_of()).versions().error_code == 0
        caplog.clear()
    put(world.env, KEYS, foreign.key_pem() + foreign.chain_pem)
    put(world.env, TRUSTED, other.pem)
    advance(world, 2_000)
    assert "those that are not changed yet would be cut off" in errors_of(caplog)[-1]
    monkeypatch.undo()  # alone it may go to another authority at once
    put(world.env, TRUSTED, other.pem + "\n")
    advance(world, 2_000)
    assert TlsClient(world, context_of(authority=other)).versions().error_code == 0
    world.env.run(world.broker.stop())


def test_a_start_with_a_certificate_that_brokers_refuse_is_refused(make_world: Any, sim_env: Any) -> None:
    env = sim_env(7)
    put(env, "/ended.pem", (ended := AUTHORITY.sign("broker", days=-1)).key_pem() + ended.chain_pem)
    with pytest.raises(TlsError, match=r"listener SSL: brokers reach each other here, and .*: certificate has expired"):
        between_brokers(make_world, lambda seed: env, ssl_keystore_location="/ended.pem")
    for listeners in ("SSL://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093", "SSL://127.0.0.1:9092"):
        world = secured(make_world, lambda seed: env, ssl_keystore_location="/ended.pem", listeners=listeners)
        world.env.run(world.broker.stop())  # clients may take it, and nobody has said that brokers must


def test_a_file_that_cannot_be_read_for_a_while_is_told_of_once(
    make_world: Any, sim_env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again each second: there were too few descriptors, perhaps."""
    world = secured(make_world, sim_env)
    advance(world, 1_000)
    put(world.env, KEYS, BROKER.key_pem() + BROKER.chain_pem + "\n")
    world.env.disk.fail("open", KEYS, OSError(errno.EMFILE, "too many open files"), times=5)
    advance(world, 4_000)
    [line] = errors_of(caplog)
    assert "ssl.keystore.location=/keys.pem cannot be read: too many open files" in line
    caplog.set_level(logging.INFO)
    advance(world, 4_000)
    assert "keys and certificates were read again" in caplog.text
    world.env.run(world.broker.stop())


def test_a_restart_takes_what_alter_configs_has_said_whatever_the_file_says(
    make_world: Any, sim_env: Any, tmp_path: Path
) -> None:
    """The authority was replaced step by step. What the file still names would not be taken by anybody now."""
    tree = str(tmp_path / "tree")
    world = between_brokers(make_world, sim_env, coordination_path=tree)
    other = Authority("the next")
    renewed = other.sign("broker")
    put(world.env, "/both.pem", AUTHORITY.pem + other.pem)
    put(world.env, "/next.pem", renewed.key_pem() + renewed.chain_pem)
    put(world.env, "/next-trusted.pem", other.pem)
    client = TlsClient(world, context_of(AUTHORITY.sign("alice", organization="Acme")))
    for path, kind in (("/both.pem", "truststore"), ("/next.pem", "keystore"), ("/next-trusted.pem", "truststore")):
        assert altered(client, path, kind).error_code == 0
        advance(world, 2_000)
    world.env.run(world.broker.stop())
    again = between_brokers(make_world, lambda seed: world.env, coordination_path=tree)
    for _ in range(2):
        assert TlsClient(again, context_of(authority=other)).versions().error_code == 0
        advance(again, 2_000)
    again.env.run(again.broker.stop())
