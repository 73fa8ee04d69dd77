"""Secrets are planted, used rightly and wrongly, and then looked for in all that a broker tells."""

import base64
import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import forked
import pytest
from barnabas.cli.shared.login import ask, read
from barnabas.protocol.messages import (
    AlterConfigsRequest,
    IncrementalAlterConfigsRequest,
    SaslAuthenticateRequest,
)
from confluent_kafka import Consumer, TopicPartition
from tokens import Issuer

pytestmark = pytest.mark.timeout(300)

BrokerProcess: TypeAlias = Any  # of conftest.py
PACKAGE = "org.apache.kafka.common.security"
AT_DEBUG = ("-c", "import sys; sys.argv += ['--log-level', 'debug']; from barnabas.cli.main import main; main()")
SECRETS = {
    "PLAIN": "planted-plain",
    "SCRAM": "planted-scram",
    "wrong password": "planted-wrong",
    "key of tokens": "planted-key-of-tokens",
    "HTTP token": "planted-http-token",
    "OAuth client": "planted-client-secret",
    "key store": "planted-key-store",
    "key": "planted-key-password",
    "trust store": "planted-trust-store",
    "ZooKeeper": "planted-zookeeper",
    "of a listener": "planted-of-a-listener",
    "of no setting": "planted-of-no-setting",
}
ISSUER, FOREIGN = Issuer(), Issuer()


class Seen:
    """All that was told."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.told: dict[str, str] = {}

    def run(self, *words: str, user: str = "admin", password: str = SECRETS["PLAIN"], stdin: str = "") -> str:
        """What a command prints; it may fail."""
        login = f'{PACKAGE}.plain.PlainLoginModule required username="{user}" password="{password}";'
        config = self.folder / "client.properties"
        config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
        where = ("--bootstrap", self.broker.bootstrap, "--command-config", str(config))
        done = forked.barnabas(*words, *where, given=stdin)
        self.told[f"{words} of {user}"] = done.stderr if "create" in words and "tokens" in words else done.stdout
        self.told[f"{words} of {user}, errors"] = done.stderr
        return done.stdout

    def send(self, request: Any, version: int) -> None:
        """A request of the administrator, by the protocol itself."""
        access = read(str(self.folder / "client.properties"))
        answer = ask(("127.0.0.1", self.broker.port), access, request, version)
        self.told[f"answer to {type(request).__name__}"] = repr(answer)

    def get(self, address: str, path: str, login: str) -> None:
        """What the HTTP API tells."""
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=200)
        connection.request("GET", path, None, {"Authorization": login})
        answer = connection.getresponse()
        self.told[f"{path} by {login[:12]}"] = f"{answer.status} {answer.headers} {answer.read().decode()}"
        connection.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def commit(broker: BrokerProcess) -> None:
    """Users who have logged in commit offsets."""
    for user, mechanism, password in (
        ("admin", "PLAIN", SECRETS["PLAIN"]),
        ("carol", "SCRAM-SHA-512", SECRETS["SCRAM"]),
    ):
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password,
                "group.id": f"of-{user}",
            }
        )
        offsets = [TopicPartition("t", 0, 0, metadata=f"committed by {user}")]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()


def test_nothing_that_is_told_has_a_secret(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = make_broker(
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        f"listener.name.plaintext.plain.sasl.jaas.config={PACKAGE}.plain.PlainLoginModule required "
        f'user_admin="{SECRETS["PLAIN"]}" user_bob="{SECRETS["PLAIN"]}";',
        f"sasl.oauthbearer.jwks.endpoint.url={ISSUER.write_keys(tmp_path / 'keys.json')}",
        f"sasl.oauthbearer.client.credentials.client.secret={SECRETS['OAuth client']}",
        f"ssl.keystore.password={SECRETS['key store']}",
        "zookeeper.sasl.jaas.config=org.apache.zookeeper.server.auth.DigestLoginModule required "
        f'username="barnabas" password="{SECRETS["ZooKeeper"]}";',
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:admin",
        f"delegation.token.secret.key={SECRETS['key of tokens']}",
        f"http.token={SECRETS['HTTP token']}",
        program=AT_DEBUG,
    )
    seen = Seen(broker, tmp_path)
    good, foreign = ISSUER.token("carol"), FOREIGN.token("carol")
    seen.run("topics", "create", "t")
    seen.run("topics", "list", user="bob", password=SECRETS["wrong password"])
    seen.run("users", "add", "carol", stdin=f"{SECRETS['SCRAM']}\n")
    token = json.loads(seen.run("tokens", "create", "--json"))
    seen.run("tokens", "list", "--hmac", "--json")
    del seen.told["('tokens', 'list', '--hmac', '--json') of admin"]  # it was asked for the secret
    for kind, name in (("topic", "t"), ("group", "of-carol")):
        seen.run("acls", "add", "User:carol", "read", kind, name)
    commit(broker)
    seen.run("tokens", "renew", token["hmac"])
    seen.run("tokens", "renew", base64.b64encode(b"planted-wrong-hmac").decode(), user="bob")
    settings = {
        "ssl.key.password": SECRETS["key"],
        "ssl.truststore.password": SECRETS["trust store"],
        "listener.name.plaintext.ssl.keystore.password": SECRETS["of a listener"],
        "planted": SECRETS["of no setting"],
    }
    seen.run("topics", "list")  # its file is the administrator's again
    for name, value in settings.items():
        change = IncrementalAlterConfigsRequest
        row = change.AlterableConfig(name=name, config_operation=0, value=value)
        for broker_id in ("", "0"):
            resource = change.AlterConfigsResource(resource_type=4, resource_name=broker_id, configs=[row])
            seen.send(change(resources=[resource]), 1)
    older = AlterConfigsRequest
    rows = [older.AlterableConfig(name=name, value=value) for name, value in settings.items()]
    resource = older.AlterConfigsResource(resource_type=4, resource_name="0", configs=rows)
    seen.send(older(resources=[resource], validate_only=True), 2)
    seen.send(SaslAuthenticateRequest(auth_bytes=f"\0admin\0{SECRETS['PLAIN']}".encode()), 2)
    described = seen.run("configs", "describe", "broker", "0", "--all", "--json")
    seen.run("configs", "describe", "broker", "default", "--json")
    address = next(row["value"] for row in json.loads(described) if row["name"] == "http.address")
    logins = [basic("admin", SECRETS["PLAIN"]), basic("carol", SECRETS["SCRAM"]), f"Bearer {SECRETS['HTTP token']}"]
    logins += [basic("bob", SECRETS["wrong password"]), f"Bearer {good}", f"Bearer {foreign}", f"Digest {good}"]
    paths = ["/metrics", "/health", "/v1/status", "/v1/health", "/v1/topics", "/v1/groups", "/v1/control/rules"]
    paths += ["/v1/control/requests", "/v1/control/lint"]
    for path in paths:
        for login in logins:
            seen.get(address, path, login)
    seen.get(address, "/v1/control/requests?frames=true", logins[0])
    for words in (("doctor",), ("doctor", "--json"), ("trace", "--kept", "--json", "--frames"), ("users", "list")):
        seen.run(*words)
    record = next(text for what, text in seen.told.items() if what.startswith("('trace'"))
    for api in ("AlterUserScramCredentials", "CreateDelegationToken", "IncrementalAlterConfigs"):
        assert f'"{api}"' in record, "the record has what had secrets"
    seen.told["frames"] = "".join(
        base64.b64decode(json.loads(line).get("frame") or "").decode("latin-1") for line in record.splitlines()
    )
    assert broker.stop() == 0
    seen.told["log"] = broker.log.read_text()
    files = [path for path in broker.data.rglob("*") if path.is_file()]
    assert {"__offset_journal", "__consumer_offsets"} < {path.parent.name.rpartition("-")[0] for path in files}
    for path in files:
        if path.name.startswith("coordination.sqlite"):
            continue  # settings are kept there as they were given, as in the metadata log of Kafka
        seen.told[f"file {path.relative_to(broker.data)}"] = path.read_bytes().decode("latin-1")
    written = "".join(text for what, text in seen.told.items() if what.startswith("file __offset_journal"))
    for user in ("admin", "carol"):
        assert f"committed by {user}" in written
        assert f"User:{user}" in written
    assert "DEBUG" in seen.told["log"]
    hmac = base64.b64decode(token["hmac"])
    forms = {**SECRETS, "hmac": token["hmac"], "hmac in hex": hmac.hex(), "good": good, "foreign": foreign}
    forms |= {"hmac as bytes": repr(hmac)[2:40], "hmac as latin-1": hmac.decode("latin-1")}
    forms |= {"hmac as a text": json.dumps(hmac.decode(errors="replace"))[1:40], "wrong hmac": "planted-wrong-hmac"}
    forms |= {f"login {number}": login.partition(" ")[2] for number, login in enumerate(logins)}
    found = sorted((what, name) for what, text in seen.told.items() for name, form in forms.items() if form in text)
    assert found == []
