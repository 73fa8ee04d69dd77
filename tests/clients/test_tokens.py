"""`barnabas tokens`, and who logs in by a token."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import forked
import pytest
from barnabas.cli.shared.login import Access, ask
from barnabas.cluster.security.scram import ScramClient
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import CreateDelegationTokenRequest, MetadataRequest

BrokerProcess: TypeAlias = Any  # of conftest.py
PACKAGE = "org.apache.kafka.common.security"
USERS = 'user_admin="admin-secret" user_alice="alice-secret" user_bob="bob-secret"'
KEY = "planted-key-of-tokens"


@pytest.fixture(scope="module")
def guarded(make_broker: Callable[..., BrokerProcess], tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    broker = make_broker(
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
        f"listener.name.plaintext.plain.sasl.jaas.config={PACKAGE}.plain.PlainLoginModule required {USERS};",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:admin",
        f"delegation.token.secret.key={KEY}",
    )
    broker.folder = tmp_path_factory.mktemp("tokens")
    return broker


def ran(broker: BrokerProcess, user: str, *words: str, code: int = 0) -> Any:
    config = broker.folder / f"{user}.properties"
    login = f'{PACKAGE}.plain.PlainLoginModule required username="{user}" password="{user}-secret";'
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    return run(broker, config, *words, code=code)


def run(broker: BrokerProcess, config: Path, *words: str, code: int = 0) -> Any:
    return forked.barnabas(*words, code=code, BARNABAS_BOOTSTRAP=broker.bootstrap, BARNABAS_CONFIG=str(config))


class TokenLogin:
    """A login by a token, as Java's clients do it."""

    named = "a token"

    def __init__(self, token: Any) -> None:
        self.token = token

    def side(self, nonce: bytes) -> ScramClient:
        side = ScramClient("SCRAM-SHA-512", self.token["token_id"], self.token["hmac"], nonce)
        side._first += b",tokenauth=true"
        return side


def asked(broker: BrokerProcess, token: Any, request: Any, version: int) -> tuple[Any, str | None]:
    access: Any = Access("SASL_PLAINTEXT", TokenLogin(token), None)  # type: ignore[arg-type]
    return ask(("127.0.0.1", broker.port), access, request, version)


def topics_of(broker: BrokerProcess, token: Any) -> set[str] | None:
    answer, _ = asked(broker, token, MetadataRequest(topics=None), 9)
    return None if answer is None else {topic.name for topic in answer.topics}


def test_a_token_is_its_owner_until_it_ends(guarded: BrokerProcess) -> None:
    for name in ("of-alice", "of-others"):
        ran(guarded, "admin", "topics", "create", name)
    ran(guarded, "admin", "acls", "add", "User:alice", "describe", "topic", "of-alice")
    token = json.loads(
        ran(guarded, "alice", "tokens", "create", "--days", "0.5", "--renewer", "User:bob", "--json").stdout
    )
    assert (token["owner"], token["requester"]) == ("User:alice", "User:alice")
    assert 'tokenauth="true"' in token["jaas"]
    assert topics_of(guarded, token) == {"of-alice"}
    answer, _ = asked(guarded, token, CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert "counts until" in ran(guarded, "bob", "tokens", "renew", token["hmac"], "--days", "0.1").stdout
    (row,) = json.loads(ran(guarded, "bob", "tokens", "list", "--hmac", "--json").stdout)
    assert (row["token_id"], row["hmac"]) == (token["token_id"], token["hmac"])
    assert token["hmac"] not in ran(guarded, "bob", "tokens", "list").stdout
    ran(guarded, "bob", "tokens", "expire", token["hmac"])
    assert topics_of(guarded, token) is None
    ran(guarded, "bob", "tokens", "expire", token["hmac"], code=3)
    ran(guarded, "bob", "tokens", "list", code=3)


def test_for_somebody_else_there_is_a_right(guarded: BrokerProcess) -> None:
    assert "AUTHORIZATION" in ran(guarded, "bob", "tokens", "create", "--owner", "User:alice", code=1).stderr.upper()
    ran(guarded, "admin", "acls", "add", "User:bob", "create-tokens", "user", "User:alice")
    token = json.loads(ran(guarded, "bob", "tokens", "create", "--owner", "User:alice", "--json").stdout)
    assert (token["owner"], token["requester"]) == ("User:alice", "User:bob")
    other = json.loads(ran(guarded, "admin", "tokens", "create", "--json").stdout)
    assert [row["owner"] for row in json.loads(ran(guarded, "bob", "tokens", "list", "--json").stdout)] == [
        "User:alice"
    ]
    ran(guarded, "admin", "acls", "add", "User:bob", "describe-tokens", "user", "User:admin")
    assert len(json.loads(ran(guarded, "bob", "tokens", "list", "--json").stdout)) == 2
    for each in (token, other):
        ran(guarded, "alice" if each is token else "admin", "tokens", "expire", each["hmac"])


def test_nobody_gets_a_token_of_the_broker_itself(guarded: BrokerProcess) -> None:
    """That is what a broker asks itself as, and it may do everything, whoever is a super user."""
    ran(guarded, "admin", "acls", "add", "User:bob", "create-tokens", "user", "*")
    told = ran(guarded, "bob", "tokens", "create", "--owner", "Broker:itself", code=1).stderr
    assert "INVALID_PRINCIPAL_TYPE" in told
    ran(guarded, "admin", "acls", "remove", "User:bob", "create-tokens", "user", "*", "--yes")


def test_nothing_shows_the_secrets(guarded: BrokerProcess) -> None:
    token = json.loads(ran(guarded, "admin", "tokens", "create", "--json").stdout)
    wrong = {**token, "hmac": base64.b64encode(b"wrong").decode()}
    assert topics_of(guarded, wrong) is None
    settings = ran(guarded, "admin", "configs", "describe", "broker", "0", "--json").stdout
    doctor = ran(guarded, "admin", "doctor").stdout
    for secret in (KEY, token["hmac"], base64.b64decode(token["hmac"]).hex()):
        assert secret not in guarded.log.read_text() + settings + doctor
    config = guarded.folder / "token.properties"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={token['jaas']}\n"
    )
    told = run(guarded, config, "topics", "list", code=2).stderr
    assert "delegation token" in told
    assert token["hmac"] not in told
    ran(guarded, "admin", "tokens", "expire", token["hmac"])


def test_what_commands_say(guarded: BrokerProcess, broker: BrokerProcess, tmp_path: Path) -> None:
    assert "Base64" in ran(guarded, "alice", "tokens", "renew", "!", code=2).stderr
    assert "User:NAME" in ran(guarded, "alice", "tokens", "create", "--owner", "alice", code=2).stderr
    config = tmp_path / "none.properties"
    config.write_text("")
    assert "--command-config" in run(broker, config, "tokens", "list", code=1).stderr
