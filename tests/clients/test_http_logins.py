"""Principals of the HTTP API: who logs in how, what they may see and do, and the commands that use it."""

import base64
import http.client
import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import forked
import pytest
from barnabas.broker.http import routes
from kafka import KafkaConsumer
from tokens import Issuer

pytestmark = pytest.mark.timeout(300)  # the broker is made by twenty commands

BrokerProcess: TypeAlias = Any  # of conftest.py
PACKAGE = "org.apache.kafka.common.security"
ISSUER, FOREIGN = Issuer(), Issuer()
TOKEN = "planted-token"


@pytest.fixture(scope="module")
def guarded(make_broker: Callable[..., BrokerProcess], tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """A broker with an authorizer; `carol` logs in by SCRAM, `dave` by a token."""
    folder = tmp_path_factory.mktemp("http-logins")
    users = 'user_admin="admin-secret" user_alice="alice-secret" user_bob="bob-secret"'
    broker = make_broker(
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        f"listener.name.plaintext.plain.sasl.jaas.config={PACKAGE}.plain.PlainLoginModule required {users};",
        f"sasl.oauthbearer.jwks.endpoint.url={ISSUER.write_keys(folder / 'keys.json')}",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:admin",
        f"http.token={TOKEN}",
    )
    broker.folder = folder
    for topic in ("seen", "hidden"):
        ran(broker, "admin", "topics", "create", topic)
        ran(broker, "admin", "produce", topic, stdin="x\n")
        for group in ("seen", "hidden"):
            ran(broker, "admin", "offsets", "set", group, "--topic", topic, "--to", "earliest", "--yes")
    ran(broker, "admin", "users", "add", "carol", stdin="carol-secret\n")
    for user in ("alice", "carol", "dave"):
        for kind in ("topic", "group"):
            ran(broker, "admin", "acls", "add", f"User:{user}", "read", kind, "seen")
    ran(broker, "admin", "acls", "add", "User:alice", "describe-configs", "cluster")
    (found,) = json.loads(ran(broker, "admin", "configs", "describe", "broker", "0", "http.address", "--json").stdout)
    broker.http = found["value"]
    return broker


def ran(broker: BrokerProcess, user: str, *words: str, code: int = 0, stdin: str = "") -> Any:
    config = broker.folder / f"{user}.properties"
    login = f'{PACKAGE}.plain.PlainLoginModule required username="{user}" password="{user}-secret";'
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    command = [
        sys.executable,
        "-m",
        "barnabas",
        *words,
        "--bootstrap",
        broker.bootstrap,
        "--command-config",
        str(config),
    ]
    result = forked.run(command, input=stdin, capture_output=True, text=True, timeout=200)
    assert result.returncode == code, result
    assert "Traceback" not in result.stderr
    assert "-secret" not in result.stdout + result.stderr
    return result


def basic(user: str, password: str = "") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password or f'{user}-secret'}".encode()).decode()


def ask(
    broker: BrokerProcess, login: str | None, target: str, method: str = "GET", body: Any = None
) -> tuple[int, Any]:
    host, _, port = broker.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=200)
    headers = {"Content-Type": "application/json"} | ({} if login is None else {"Authorization": login})
    connection.request(method, target, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(content) if is_json else content.decode()


LOGINS = {
    "PLAIN": lambda: basic("alice"),
    "SCRAM": lambda: basic("carol"),
    "OAUTHBEARER": lambda: f"Bearer {ISSUER.token('dave')}",
}


@pytest.mark.parametrize("how", sorted(LOGINS))
def test_who_logs_in_sees_what_the_rules_allow(guarded: BrokerProcess, how: str) -> None:
    login = LOGINS[how]()
    for _ in range(2):  # a password of SCRAM is known the second time
        assert [row["topic"] for row in ask(guarded, login, "/v1/topics")[1]["topics"]] == ["seen"]
    assert [row["group"] for row in ask(guarded, login, "/v1/groups")[1]["groups"]] == ["seen"]
    for path in ("/v1/topics/seen", "/v1/groups/seen", "/v1/groups/seen/lag", "/v1/groups/seen/events"):
        status, answer = ask(guarded, login, path)
        assert status == 200, answer
        assert "hidden" not in json.dumps(answer)
    for path in (
        "/v1/topics/hidden",
        "/v1/groups/hidden",
        "/v1/groups/hidden/lag",
        "/v1/health",
        "/metrics",
        "/v1/status",
    ):
        status, answer = ask(guarded, login, path)
        assert (status, answer["error"]["name"].endswith("AUTHORIZATION_FAILED")) == (403, True), path
    assert ask(guarded, login, "/v1/topics/nothing")[0] == 403  # no other answer than for one that is there


def test_the_story_of_a_group_names_no_topic_that_may_not_be_known(guarded: BrokerProcess) -> None:
    """Neither what has moved, nor the advice that its members subscribe to different topics."""

    def consumer(*topics: str) -> KafkaConsumer:
        return KafkaConsumer(
            *topics,
            bootstrap_servers=guarded.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="admin",
            sasl_plain_password="admin-secret",
            group_id="seen",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    for _ in range(2):  # what the first assignment has moved is not known, and whether it is of both members is luck
        with closing(consumer("hidden")) as first, closing(consumer("seen")) as second:
            while not (first.assignment() and second.assignment()):
                first.poll(200)
                second.poll(200)
            full, part = (ask(guarded, basic(user), "/v1/groups/seen/events")[1] for user in ("admin", "alice"))
    moved = [{row["topic"] for one in story["rebalances"] for row in one["moved"] or ()} for story in (full, part)]
    assert moved == [{"seen", "hidden"}, {"seen"}]
    assert "hidden" in json.dumps(full["advice"])
    assert "hidden" not in json.dumps(part)


def test_what_changes_something_needs_the_rights_of_the_request_it_stands_for(guarded: BrokerProcess) -> None:
    def reset(group: str, topic: str) -> Any:
        body = {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]}
        return ask(guarded, basic("alice"), f"/v1/groups/{group}/live-reset", "POST", body)

    assert reset("seen", "seen")[0] == 200
    for group, topic in (("seen", "hidden"), ("hidden", "seen")):
        status, answer = reset(group, topic)
        assert status == 403
        assert "barnabas acls add User:alice read" in answer["error"]["message"]
    row = {"topic": "seen", "partition": 0, "offset": 1}
    assert ask(guarded, basic("alice"), "/v1/groups/seen/offsets-cleanup", "POST", {"offsets": [row]})[0] == 403
    journal = json.loads(ran(guarded, "admin", "offsets", "log", "seen", "--json").stdout)
    assert "User:alice" in json.dumps(journal)


@pytest.mark.parametrize(
    "login",
    [
        None,
        basic("alice", "wrong"),
        basic("nobody"),
        basic("carol", "wrong"),
        "Basic !",
        "Basic " + base64.b64encode(b"alice").decode(),
        f"Bearer {FOREIGN.token('admin')}",
        "Bearer x",
        "Digest x",
    ],
    ids=range(9),
)
def test_who_is_not_let_in(guarded: BrokerProcess, login: str | None) -> None:
    status, answer = ask(guarded, login, "/v1/topics")
    assert status == 401, answer
    assert ask(guarded, login, "/health")[0] == 200
    if login is not None and len(login) > 20:
        assert login.partition(" ")[2] not in guarded.log.read_text()


def test_nobody_without_rights_hears_anything(guarded: BrokerProcess) -> None:
    """All paths there are: a new one that says nothing about rights is for super users only."""
    routes.load()
    bodies = {
        "/v1/positions": {"positions": [{"topic": "hidden", "partition": 0, "offset": 0}]},
        "/v1/groups/{group}/live-reset": {"offsets": [{"topic": "hidden", "partition": 0, "offset": 0}]},
        "/v1/groups/{group}/offsets-cleanup": {"offsets": [{"topic": "hidden", "partition": 0, "offset": 0}]},
    }
    for (method, path), row in routes.TABLE.items():
        if row.is_open or path == "/v1/openapi.json":
            continue
        target = path
        for name in row.names:
            target = target.replace(f"{{{name}}}", "hidden")
        status, answer = ask(guarded, basic("bob"), target, method, bodies.get(path, {} if row.body else None))
        if path in ("/v1/topics", "/v1/groups"):
            assert answer[path.rpartition("/")[2]] == []
        else:
            assert status in (400, 403), (method, path, status, answer)  # 400: a body that is not right
        assert "hidden" not in json.dumps(answer).replace("group hidden", "").replace("topic hidden", "")


def test_super_users_and_the_token_may_do_all(guarded: BrokerProcess) -> None:
    for login in (basic("admin"), f"Bearer {TOKEN}"):
        for path in ("/v1/topics/hidden", "/v1/groups/hidden/lag", "/v1/health", "/metrics", "/v1/control/rules"):
            assert ask(guarded, login, path)[0] == 200
        assert {"seen", "hidden"} <= {row["topic"] for row in ask(guarded, login, "/v1/topics")[1]["topics"]}


def test_commands_log_in_by_themselves(guarded: BrokerProcess) -> None:
    assert '"seen"' in ran(guarded, "alice", "groups", "lag", "seen", "--json").stdout
    told = ran(guarded, "alice", "groups", "lag", "hidden", code=1).stderr
    assert "AUTHORIZATION_FAILED" in told


def test_without_an_authorizer_a_login_opens_the_api_to_other_hosts_only(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = make_broker()
    broker.folder = tmp_path
    words = ("configs", "describe", "broker", "0", "http.address", "--json", "--bootstrap", broker.bootstrap)
    found = forked.barnabas(*words, code=0)
    broker.http = json.loads(found.stdout)[0]["value"]
    for login in (None, basic("alice"), "Bearer x"):  # loopback needs nothing, and nothing is looked at
        assert ask(broker, login, "/v1/topics")[0] == 200
