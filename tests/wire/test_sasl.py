"""Logins on the wire: Kafka's own conversations, both SCRAMs, logins that end, and what must never be shown."""

import gc
import gzip
import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker import refusals
from barnabas.broker.authentication import REQUEST_BYTES_MAX
from barnabas.broker.connection import Connection
from barnabas.cluster.security import scram
from barnabas.cluster.security.plain import PLAIN
from barnabas.cluster.security.scram import ScramClient
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

World = Any  # of conftest.py
Client = Any
PLANTED = "planted-secret"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="admin" password="{PLANTED}" user_admin="admin-secret" user_alice="{PLANTED}";'
)
SALT = bytes(range(16))
GOLDEN = Path(__file__).parent.parent / "golden" / "wire" / "kafka-4.1.0.jsonl.gz"
PLAIN_LOGINS = tuple(f"sasl-plain-{version}" for version in range(3))
LOGINS = ("sasl-handshake-", "sasl-mechanism-", "sasl-none", *PLAIN_LOGINS, "sasl-wrong")


def settings(**more: str) -> dict[str, str]:
    return {
        "listeners": "SASL://127.0.0.1:9092",
        "listener_security_protocol_map": "SASL:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl.plain.sasl.jaas.config": JAAS,
    } | more


@pytest.fixture(scope="module")
def guarded(make_world: type[World]) -> Iterator[World]:
    world = make_world(**settings())
    yield world
    world.end()


def connected(world: World) -> Client:
    return world.env.run(world.connect())


def ask(world: World, client: Client, api: ApiKey, version: int, request: Any) -> Any:
    """The answer; None: the connection was closed."""

    async def run() -> Any:
        client.send(api, version, request)
        answer = await client.answer()
        return None if answer is None else frames.decode_response(api, version, memoryview(answer))[1]

    return world.env.run(run())


def shake(world: World, client: Client, mechanism: str, version: int = 1) -> Any:
    return ask(world, client, ApiKey.SASL_HANDSHAKE, version, messages.SaslHandshakeRequest(mechanism=mechanism))


def tell(world: World, client: Client, token: bytes, version: int = 2) -> Any:
    return ask(world, client, ApiKey.SASL_AUTHENTICATE, version, messages.SaslAuthenticateRequest(auth_bytes=token))


def plain(world: World, client: Client, user: str = "alice", password: str = PLANTED) -> Any:
    assert shake(world, client, PLAIN).error_code == 0
    return tell(world, client, f"\0{user}\0{password}".encode())


def principal(world: World) -> str:
    newest = max(world.broker.server.connections, key=lambda each: each.number)
    found: str = newest.principal
    return found


def topics(world: World, client: Client) -> Any:
    return ask(world, client, ApiKey.METADATA, 9, messages.MetadataRequest(topics=[]))


def recorded() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(GOLDEN, "rt") as lines:
        for line in map(json.loads, lines):
            if line["broker"] == "sasl" and str(line["connection"]).startswith(LOGINS):
                found.setdefault(line["connection"], []).append(line)
    return found


RECORDED = recorded()


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_kafkas_logins_get_kafkas_answers(guarded: World, name: str) -> None:
    """Byte for byte, but for the lists of APIs and brokers."""

    async def run() -> None:
        client = await guarded.connect()
        for line in RECORDED[name]:
            request = bytes.fromhex(line["request"])
            client.transport.write(struct.pack(">i", len(request)) + request)
            answer = await client.answer()
            if line["response"] is None:
                assert answer is None, line["case"]
            elif line["api"] in ("ApiVersions", "Metadata"):
                assert answer is not None
            else:
                assert answer is not None
                assert answer.hex() == line["response"], line["case"]
        client.transport.close()

    guarded.env.run(run())


def make_user(world: World, name: str, password: str, mechanism: int = 1) -> None:
    client = connected(world)
    assert plain(world, client, "admin", "admin-secret").error_code == 0
    salted = scram.salted(scram.NUMBERS[mechanism], password, SALT, 4096)
    request = messages.AlterUserScramCredentialsRequest
    upsertion = request.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=4096, salt=SALT, salted_password=salted
    )
    answer = ask(world, client, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request(upsertions=[upsertion]))
    assert [result.error_code for result in answer.results] == [0]
    client.transport.close()


def log_in_by_scram(world: World, client: Client, user: str, password: str) -> Any:
    shake(world, client, "SCRAM-SHA-256")
    side = ScramClient("SCRAM-SHA-256", user, password, b"c" * 20)
    answer = tell(world, client, side.first())
    following = side.step(bytes(answer.auth_bytes))
    assert following is not None
    answer = tell(world, client, following)
    if answer.error_code == 0:
        assert side.step(bytes(answer.auth_bytes)) is None
    return answer


def test_scram_users_log_in_as_soon_as_they_are_made(guarded: World) -> None:
    make_user(guarded, "carol", "carol-secret")
    client = connected(guarded)
    assert log_in_by_scram(guarded, client, "carol", "carol-secret").error_code == 0
    assert principal(guarded) == "User:carol"
    assert topics(guarded, client) is not None
    for user, password in (("carol", "wrong"), ("nobody", "carol-secret")):
        answer = log_in_by_scram(guarded, connected(guarded), user, password)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    make_user(guarded, "carol", "new-secret")
    assert log_in_by_scram(guarded, connected(guarded), "carol", "carol-secret").error_code != 0
    assert log_in_by_scram(guarded, connected(guarded), "carol", "new-secret").error_code == 0


def test_who_fails_is_answered_after_a_while_and_closed(guarded: World) -> None:
    client = connected(guarded)
    before = guarded.env.clock.monotonic_ms()
    answer = plain(guarded, client, "alice", "wrong")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert guarded.env.clock.monotonic_ms() - before >= 100
    assert topics(guarded, client) is None


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.SASL_AUTHENTICATE, ApiKey.LEADER_AND_ISR])
def test_nothing_is_handled_before_the_login(guarded: World, key: ApiKey) -> None:
    client = connected(guarded)
    before = list(guarded.broker.server.requests_of)
    assert ask(guarded, client, key, 4 if key == ApiKey.LEADER_AND_ISR else 2, _empty(key)) is None
    assert guarded.broker.server.requests_of == before


NO_VERSION = 99
IN_THE_MIDDLE = {  # as Kafka 4.3.1 answers; None: it closes
    (ApiKey.API_VERSIONS, 3): {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "api_keys": []},
    (ApiKey.SASL_HANDSHAKE, 1): {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []},
    (ApiKey.METADATA, 13): {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "brokers": [], "topics": []},
    (ApiKey.METADATA, 9): None,  # Kafka's answer does not say that something is wrong
    (ApiKey.FETCH, 12): {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "responses": []},
    (ApiKey.PRODUCE, 9): None,  # acks=0 has no answer
    (ApiKey.API_VERSIONS, NO_VERSION): None,
}


@pytest.mark.parametrize(("key", "version"), IN_THE_MIDDLE)
def test_a_request_in_the_middle_of_a_login_ends_it(guarded: World, key: ApiKey, version: int) -> None:
    before = list(guarded.broker.server.requests_of)
    client = connected(guarded)
    shake(guarded, client, PLAIN)

    async def run() -> Any:
        if version == NO_VERSION:
            client.transport.write(struct.pack(">ihhih", 10, key, version, 1, -1))
        else:
            client.send(key, version, _empty(key))
        answer = await client.answer()
        return None if answer is None else frames.decode_response(key, version, memoryview(answer))[1]

    answer, expected = guarded.env.run(run()), IN_THE_MIDDLE[key, version]
    if expected is None:
        assert answer is None
    else:
        assert {name: getattr(answer, name) for name in expected} == expected
    assert tell(guarded, client, f"\0alice\0{PLANTED}".encode()) is None
    assert guarded.broker.server.requests_of == before


def test_a_large_request_in_the_middle_of_a_login_is_not_read(guarded: World) -> None:
    client = connected(guarded)
    shake(guarded, client, PLAIN)
    many = [messages.MetadataRequest.MetadataRequestTopic(name=f"topic-{number}") for number in range(5_000)]
    assert ask(guarded, client, ApiKey.METADATA, 9, messages.MetadataRequest(topics=many)) is None


def _empty(key: ApiKey) -> Any:
    return messages.request_class(key)()


def log_in_alone(world: World, client: Client) -> bytes | None:
    """As clients of Kafka 0.10 do, with a message that has no request around it."""
    shake(world, client, PLAIN, version=0)

    async def run() -> bytes | None:
        token = f"\0alice\0{PLANTED}".encode()
        client.transport.write(struct.pack(">i", len(token)) + token)
        answer: bytes | None = await client.answer()
        return answer

    return world.env.run(run())  # type: ignore[no-any-return]


def test_clients_of_kafka_0_10_send_the_messages_alone(guarded: World) -> None:
    client = connected(guarded)
    assert log_in_alone(guarded, client) == b""
    assert principal(guarded) == "User:alice"
    assert topics(guarded, client) is not None


@pytest.mark.parametrize("size", [REQUEST_BYTES_MAX + 1, 524_288, 524_289])
def test_a_large_request_before_the_login_is_refused(
    guarded: World, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first bytes tell its size: of 10,000 strangers who send the rest slowly, nobody wants to keep much."""
    client = connected(guarded)

    async def run() -> bytes | None:
        client.transport.write(struct.pack(">ihhi", size, 17, 1, 1))
        answer: bytes | None = await client.answer()
        return answer

    guarded.env.run(guarded.env.clock.sleep(60_000))  # the log says it once a minute
    before_ms = guarded.env.clock.monotonic_ms()
    assert guarded.env.run(run()) is None
    assert guarded.env.clock.monotonic_ms() - before_ms < 1_000
    assert f"a frame of {size} bytes before it has logged in ({REQUEST_BYTES_MAX} at most)" in caplog.text


def test_a_login_with_too_many_messages_ends(guarded: World) -> None:
    client = connected(guarded)
    shake(guarded, client, "SCRAM-SHA-256")
    answer = tell(guarded, client, b"n,,n=alice,r=x")
    assert answer.error_code == 0
    assert tell(guarded, client, b"n,,n=alice,r=x").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert tell(guarded, client, b"n,,n=alice,r=x") is None


@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.SASL_HANDSHAKE, 2), (ApiKey.SASL_HANDSHAKE, -1), (ApiKey.SASL_AUTHENTICATE, 3)]
)
def test_a_version_that_is_not_there_is_no_error_of_the_broker(
    guarded: World, caplog: pytest.LogCaptureFixture, key: ApiKey, version: int
) -> None:
    client = connected(guarded)
    if key is ApiKey.SASL_AUTHENTICATE:
        shake(guarded, client, PLAIN)
    request = struct.pack(">hhih", key, version, 1, -1) + bytes(2)

    async def run() -> bytes | None:
        client.transport.write(struct.pack(">i", len(request)) + request)
        answer: bytes | None = await client.answer()
        return answer

    refused = guarded.broker.server.protocol_errors
    assert guarded.env.run(run()) is None
    assert guarded.broker.server.protocol_errors == refused + 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("logs_in", [None, PLAIN, "SCRAM-SHA-256"])
def test_a_connection_that_never_logged_in_leaves_nothing(guarded: World, logs_in: str | None) -> None:
    """Its memory is given back at once: what refers to itself waits for the collector."""
    client = connected(guarded)
    if logs_in is not None:
        shake(guarded, client, logs_in)
    newest = max(guarded.broker.server.connections, key=lambda each: each.number)
    transport = newest.transport
    del newest

    def is_there() -> bool:
        return any(
            type(each) is Connection and getattr(each, "transport", None) is transport for each in gc.get_objects()
        )

    gc.disable()
    try:
        assert is_there()
        client.transport.close()
        guarded.env.run(guarded.env.clock.sleep(1_000))
        transport._protocol = None  # as asyncio's transports do
        assert not is_there()
    finally:
        gc.enable()


class TestLoginsThatEnd:
    """connections.max.reauth.ms (KIP-368)."""

    @pytest.fixture
    def ending(self, make_world: type[World]) -> Iterator[World]:
        world = make_world(**settings(connections_max_reauth_ms="10000"))
        yield world
        world.env.run(world.broker.stop())
        assert world.broker.request_gate.handler_failures == 0

    def test_a_client_that_logs_in_again_goes_on(self, ending: World) -> None:
        client = connected(ending)
        assert plain(ending, client).session_lifetime_ms == 10_000
        for _ in range(5):
            ending.env.run(ending.env.clock.sleep(6_000))
            assert plain(ending, client).session_lifetime_ms == 10_000
            assert topics(ending, client) is not None

    def test_one_that_does_not_is_closed(self, ending: World, caplog: pytest.LogCaptureFixture) -> None:
        client = connected(ending)
        plain(ending, client)
        ending.env.run(ending.env.clock.sleep(9_999))
        assert topics(ending, client) is not None
        ending.env.run(ending.env.clock.sleep(1))
        server = ending.broker.server
        failed = server.failed_logins
        with caplog.at_level(logging.INFO, "barnabas.broker"):
            assert topics(ending, client) is None
        assert (server.failed_logins, server.ended_logins) == (failed, 1)  # nobody tries passwords
        assert "User:alice (PLAIN) has not logged in again in time" in caplog.text

    def test_so_is_one_that_cannot_hear_of_it(self, ending: World) -> None:
        """A client of Kafka 0.10, or one that says so, also when it logs in again."""
        for logs_in_before in (False, True):
            client = connected(ending)
            if logs_in_before:
                plain(ending, client)
            assert log_in_alone(ending, client) == b""
            ending.env.run(ending.env.clock.sleep(9_999))
            assert topics(ending, client) is not None
            ending.env.run(ending.env.clock.sleep(1))
            assert topics(ending, client) is None

    def test_a_late_login_is_taken(self, ending: World) -> None:
        client = connected(ending)
        plain(ending, client)
        ending.env.run(ending.env.clock.sleep(20_000))
        assert plain(ending, client).error_code == 0
        assert topics(ending, client) is not None

    def test_nobody_becomes_somebody_else(self, ending: World) -> None:
        client = connected(ending)
        plain(ending, client)
        answer = plain(ending, client, "admin", "admin-secret")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert topics(ending, client) is None
        client = connected(ending)
        plain(ending, client)
        assert shake(ending, client, "SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert topics(ending, client) is None


def test_secrets_are_shown_nowhere(make_world: type[World], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = make_world(**settings(http_token=PLANTED, ssl_keystore_password=PLANTED))
    for password in (PLANTED, f"{PLANTED}-wrong"):
        plain(world, connected(world), "alice", password)
    client = connected(world)
    plain(world, client)
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=None)
    asked = request(resources=[resource], include_synonyms=True, include_documentation=True)
    answer = ask(world, client, ApiKey.DESCRIBE_CONFIGS, 4, asked)
    names = {row.name for row in answer.results[0].configs}
    assert "listener.name.sasl.plain.sasl.jaas.config" in names
    assert PLANTED not in repr(answer)
    assert PLANTED not in caplog.text
    world.env.run(world.broker.stop())
    assert PLANTED not in caplog.text
    assert "a login from" in caplog.text


def test_a_start_that_is_open_to_other_hosts_says_so_once(
    make_world: type[World], caplog: pytest.LogCaptureFixture
) -> None:
    def warned(**more: str) -> int:
        caplog.clear()
        world = make_world(**more)
        world.env.run(world.broker.stop())
        return sum("may read, write and delete everything" in record.message for record in caplog.records)

    assert warned(listeners="PLAINTEXT://127.0.0.1:9092") == 0
    assert warned(listeners="PLAINTEXT://0.0.0.0:9092") == 1
    assert warned(**settings(listeners="SASL://0.0.0.0:9092")) == 0
    rules = {"listeners": "PLAINTEXT://:9092", "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer"}
    assert warned(**rules) == 0
    assert warned(**rules, super_users="User:ANONYMOUS") == 1
    assert warned(**rules, allow_everyone_if_no_acl_found="true") == 1


def test_failed_logins_are_counted(guarded: World) -> None:
    before = guarded.broker.server.failed_logins
    plain(guarded, connected(guarded), "alice", "wrong")
    topics(guarded, connected(guarded))
    assert guarded.broker.server.failed_logins == before + 2


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_wrong_token_is_told_of_once_whether_its_client_hears_the_refusal_or_not(
    make_world: type[World], caplog: pytest.LogCaptureFixture, goes_on: bool
) -> None:
    """The answer has no error yet: the login fails with the client's next message, which need not come."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    line = {"listener.name.sasl.oauthbearer.sasl.jaas.config": module}
    world = make_world(**settings(sasl_enabled_mechanisms="OAUTHBEARER") | line)
    client = connected(world)
    assert shake(world, client, "OAUTHBEARER").error_code == 0
    answer = tell(world, client, b"n,,\x01auth=Bearer a.b.c\x01\x01")
    assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
    if goes_on:
        assert tell(world, client, b"\x01").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    client.transport.close()
    world.env.run(world.env.clock.sleep(1_000))
    assert world.broker.server.failed_logins == 1
    assert caplog.text.count("a login from 127.0.0.1 has failed: OAUTHBEARER: the token is no JSON in Base64") == 1
    world.env.run(world.broker.stop())


def test_names_that_are_made_up_keep_nothing_else_out_of_the_log(
    guarded: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "KINDS_MAX", 5)
    guarded.env.run(guarded.env.clock.sleep(121_000))  # what was told is told again
    caplog.clear()
    for number in range(20):
        assert shake(guarded, connected(guarded), f"made-up-{number}").error_code == 33
    assert shake(guarded, connected(guarded), "GSSAPI").error_code == 33
    assert plain(guarded, connected(guarded), password="wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    lines = [each.partition("has failed: ")[2] for each in caplog.messages if "a login from" in each]
    assert lines == [
        "an unknown SASL mechanism is not enabled here",
        "the SASL mechanism GSSAPI is not enabled here",
        "PLAIN: Authentication failed: Invalid username or password",
    ]
