"""Bugs in the middle of what holds a secret: the log has the traceback, and at no level has it the secret."""

import base64
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.logins import Logins
from barnabas.cluster.security import oauth, plain, scram
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey

sys.path.insert(0, str(Path(__file__).parent))
from http_client import ask

World = Any  # of conftest.py
PASSWORD, SALTED, HMAC = "planted-password", b"planted-salted", b"planted-hmac"
PLANTED = "planted"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";'

ZOOKEEPER = f'org.apache.zookeeper.server.auth.DigestLoginModule required username="u" password="{PASSWORD}";'


@pytest.fixture(scope="module")
def broken(make_world: type[World]) -> Iterator[World]:
    """A broker with two listeners, one of which asks for a login."""
    world = make_world(
        **{
            "listeners": "PLAINTEXT://127.0.0.1:9092,SASL://127.0.0.1:9093",
            "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "inter_broker_listener_name": "PLAINTEXT",
            "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            "listener.name.sasl.plain.sasl.jaas.config": JAAS,
            "listener.name.sasl.oauthbearer.sasl.jaas.config": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
            ),
            "delegation_token_secret_key": "planted-key",
            "zookeeper_sasl_jaas_config": ZOOKEEPER,
            "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super_users": "User:ANONYMOUS",
        }
    )
    yield world
    world.env.run(world.broker.stop())


def fail(*arguments: Any, **settings: Any) -> Any:
    """What a function with a bug does."""
    held = (arguments, settings)
    raise RuntimeError(f"forced, with {len(held)} things at hand")


def assert_told_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    assert "RuntimeError: forced" in caplog.text
    forms = [PLANTED, *(base64.b64encode(each).decode().rstrip("=") for each in (SALTED, HMAC, PASSWORD.encode()))]
    assert [form for form in forms if form in caplog.text] == []


FIRST = {
    "PLAIN": f"\0alice\0{PASSWORD}".encode(),
    "SCRAM-SHA-256": b"n,,n=alice,r=planted-nonce",
    "OAUTHBEARER": b"n,,\x01auth=Bearer planted.token.\x01\x01",
}
STEPS = {"PLAIN": plain.PlainServer, "SCRAM-SHA-256": scram.ScramServer, "OAUTHBEARER": oauth.OAuthServer}


@pytest.mark.parametrize("mechanism", STEPS)
def test_a_bug_in_a_login(
    broken: World, mechanism: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(STEPS[mechanism], "step", fail)

    async def run() -> None:
        _, client = await broken.env.network.connect("127.0.0.1", 9093, type(await broken.connect()))
        shake = messages.SaslHandshakeRequest(mechanism=mechanism)
        assert (await client.ask(ApiKey.SASL_HANDSHAKE, 1, shake)).error_code == 0
        client.send(ApiKey.SASL_AUTHENTICATE, 2, messages.SaslAuthenticateRequest(auth_bytes=FIRST[mechanism]))
        assert await client.answer() is None

    with caplog.at_level(logging.DEBUG):
        broken.env.run(run())
    assert_told_without_secrets(caplog)


def _altered() -> messages.IncrementalAlterConfigsRequest:
    make = messages.IncrementalAlterConfigsRequest
    row = make.AlterableConfig(name="ssl.key.password", config_operation=0, value=PASSWORD)
    return make(resources=[make.AlterConfigsResource(resource_type=4, resource_name="0", configs=[row])])


def _upserted() -> messages.AlterUserScramCredentialsRequest:
    make = messages.AlterUserScramCredentialsRequest
    row = make.ScramCredentialUpsertion(name="u", mechanism=1, iterations=4096, salt=SALTED, salted_password=SALTED)
    return make(deletions=[], upsertions=[row])


REQUESTS: dict[ApiKey, tuple[int, Any]] = {
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, _altered()),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, _upserted()),
    ApiKey.RENEW_DELEGATION_TOKEN: (2, messages.RenewDelegationTokenRequest(hmac=HMAC)),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (2, messages.ExpireDelegationTokenRequest(hmac=HMAC)),
}


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name)
@pytest.mark.parametrize("is_late", [False, True], ids=["in the handler", "in its answer"])
def test_a_bug_in_a_handler(
    broken: World, key: ApiKey, is_late: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version, request = REQUESTS[key]

    async def fail_late(*arguments: Any) -> None:
        await broken.env.clock.sleep(1)
        fail(*arguments)

    monkeypatch.setitem(broken.broker.request_gate.methods, key, fail_late if is_late else fail)
    with caplog.at_level(logging.DEBUG):
        assert PLANTED not in repr(broken.ask(key, version, request))
    assert_told_without_secrets(caplog)


def test_a_bug_in_a_login_of_the_http_api(
    broken: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Logins, "by_password", fail)
    login = "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
    with caplog.at_level(logging.DEBUG):
        answer = broken.env.run(ask(broken.env, broken.broker, "GET", "/v1/status", Authorization=login))
    assert answer.status == 500
    assert PLANTED not in repr(answer.body)
    assert_told_without_secrets(caplog)


@pytest.mark.parametrize(
    "data",
    [
        b'{"version":1,"config":{"ssl.key.password":"planted\xff"}}',
        b'{"version":1,"config":{"ssl.key.password":"planted',
        b'{"version":1,"config":["planted"]}',
        b'"planted"',
    ],
)
@pytest.mark.parametrize("path", ["brokers/0", "brokers/<default>", "users/planned", "clients/planned"])
def test_a_node_that_cannot_be_read(broken: World, path: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody has written it by hand. The log says which one it is."""
    coordination = broken.broker.coordination
    exists = broken.env.run(coordination.exists(f"/config/{path}"))
    broken.env.run((coordination.create if exists is None else coordination.set)(f"/config/{path}", data))
    notice = json.dumps({"version": 2, "entity_path": path}).encode()
    with caplog.at_level(logging.DEBUG):
        broken.env.run(coordination.create("/config/changes/config_change_", notice, sequential=True))
        broken.env.run(broken.env.clock.sleep(2_000))
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert PLANTED not in caplog.text
