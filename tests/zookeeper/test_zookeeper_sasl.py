"""Brokers that log in at a real ZooKeeper (SASL, DIGEST-MD5)."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest
import zookeeper_server
from broker_process import Client, batch
from kazoo.client import KazooClient
from waiting import until, until_said
from zookeeper_server import ZooKeeperServer, plain
from zookeeper_tree import ZooKeeperTree

pytest.importorskip("puresasl", reason="pure-sasl is not installed")

Start = Callable[..., Any]
USER, PASSWORD, WRONG, TOPIC = "kafka", "planted-right", "planted-wrong", "t"
DEMAND = "sessionRequireClientSASLAuth=true\n"
DEMAND_DIGEST = "enforce.auth.enabled=true\nenforce.auth.schemes=digest\n"
SESSION_MS = 60_000  # longer than ZooKeeper takes to start again on a busy machine
SENSITIVE = ("/barnabas/config/users", "/barnabas/config/brokers", "/barnabas/delegation_token")


def login(password: str = PASSWORD, user: str = USER) -> dict[str, str]:
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    line = f'{module} required username="{user}" password="{password}";'
    return {"zookeeper.sasl.jaas.config": line, "zookeeper.set.acl": "true"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """It takes logins, and also those who do not log in."""
    if zookeeper_server.class_path() is None:
        pytest.skip(zookeeper_server.why_not())
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.take_logins(**{USER: PASSWORD, "other": "o"})
    server.start()
    yield server
    server.stop()


def restart(server: ZooKeeperServer, more: str = "", **logins: str) -> None:
    server.stop()
    server.take_logins(more, **logins)
    server.start()


def logged_in(server: ZooKeeperServer) -> AbstractContextManager[KazooClient]:
    return plain(server, "", {"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD})


def rights(client: KazooClient, path: str = "/barnabas") -> dict[str, set[tuple[str, int]]]:
    """Of each node, who may do what."""
    lists, _ = client.get_acls(path)
    found = {path: {(f"{one.id.scheme}:{one.id.id}", one.perms) for one in lists}}
    for name in client.get_children(path):
        found |= rights(client, f"{path}/{name}")
    return found


def produces(port: int) -> bool:
    with closing(Client(port)) as client:
        return bool(client.produce(TOPIC, 0, batch([b"x"])).error_code == 0)


def refused(start: Start, **options: Any) -> str:
    """What a broker says that ends at once. Its session would last long."""
    broker = start(session_ms=SESSION_MS, wait=False, **options)
    assert broker.process.wait(200) == 1
    text: str = broker.log.read_text()
    assert "planted" not in text
    return text


def test_three_brokers_log_in_again_when_zookeeper_is_back(
    start: Start, server: ZooKeeperServer, tmp_path: Path
) -> None:
    brokers = [
        start(
            data=tmp_path / f"data-{number}",
            session_ms=SESSION_MS,
            log_level="debug",
            settings={**login(), "node.id": str(number)},
        )
        for number in range(3)
    ]
    with closing(Client(brokers[0].port)) as client:
        until(lambda: client.create_topic(TOPIC, 1, 3) == 0)
    server.stop()
    server.start()
    for broker in brokers:
        until_said("reconnected to ZooKeeper in session", broker.log)
    until(lambda: any(produces(broker.port) for broker in brokers))
    with logged_in(server) as zookeeper:
        found = rights(zookeeper)
    assert {"/barnabas/brokers/ids/2", "/barnabas/controller", f"/barnabas/brokers/topics/{TOPIC}"} < set(found)
    for path, who in found.items():
        if path.startswith("/barnabas/consumers"):
            assert who == {("world:anyone", 31)}, path
        else:
            everybody = set() if path.startswith(SENSITIVE) else {("world:anyone", 1)}
            assert who == {(f"sasl:{USER}", 31)} | everybody, path
    for broker in brokers:
        assert "planted" not in broker.log.read_text()


def test_a_wrong_password_is_said_at_once(start: Start) -> None:
    said = refused(start, settings=login(WRONG))
    assert f"refuses the login of {USER}: set zookeeper.sasl.jaas.config to the username and password" in said


def test_a_user_that_is_not_there_is_said_at_once(start: Start) -> None:
    assert "refuses the login of nobody" in refused(start, settings=login(user="nobody"))


def test_a_zookeeper_without_logins_is_said_at_once(start: Start, tmp_path: Path) -> None:
    plain = ZooKeeperServer(tmp_path / "plain")
    plain.start()
    try:
        said = refused(start, settings={**login(), "zookeeper.connect": plain.address})
    finally:
        plain.stop()
    assert "has no logins, and zookeeper.sasl.jaas.config is set: ZooKeeper needs authProvider.1=" in said


def test_nodes_of_others_are_not_touched(start: Start) -> None:
    start(settings=login()).end()
    without = refused(start)
    assert "does not allow this" in without
    assert "or the zookeeper.sasl.jaas.config of those who made it" in without
    assert "does not allow this" in refused(start, settings=login("o", "other"))


def test_a_zookeeper_that_demands_logins(start: Start, server: ZooKeeperServer, tmp_path: Path) -> None:
    strict = ZooKeeperServer(tmp_path / "strict")
    strict.take_logins(DEMAND, **{USER: PASSWORD})
    strict.start()
    place = {"zookeeper.connect": f"{strict.address}/barnabas"}
    try:
        assert "serves nobody without a login: set zookeeper.sasl.jaas.config" in refused(start, settings=place)
        assert f"refuses the login of {USER}" in refused(start, settings=place | login(WRONG))
        start(settings=place | login()).end()
    finally:
        strict.stop()


def test_a_zookeeper_that_begins_to_demand_logins(start: Start, server: ZooKeeperServer) -> None:
    """The broker asks once a second, and seldom says that it is refused. Once, it wrote 50 lines a second."""
    broker = start(log_level="debug")
    with closing(Client(broker.port)) as client:
        assert client.create_topic(TOPIC, 1) == 0
    restart(server, DEMAND, **{USER: PASSWORD})
    before = len(until_said("serves nobody without a login: set zookeeper.sasl.jaas.config", broker.log).splitlines())
    time.sleep(5)
    assert len(broker.log.read_text().splitlines()) - before < 40
    restart(server, **{USER: PASSWORD})
    until_said("new ZooKeeper session", broker.log)
    until(lambda: produces(broker.port))


def test_a_zookeeper_that_demands_digest_credentials(start: Start, server: ZooKeeperServer, tmp_path: Path) -> None:
    """They are shown before anything is asked."""
    restart(server, DEMAND_DIGEST, **{USER: PASSWORD})
    broker = start(settings={"zookeeper.digest.credentials": "user:planted"})
    with closing(Client(broker.port)) as client:
        assert client.create_topic(TOPIC, 1) == 0
    assert "serves nobody without a login" in refused(start, data=tmp_path / "another")


def test_a_password_that_is_changed_under_a_broker(start: Start, server: ZooKeeperServer) -> None:
    broker = start(settings=login())
    with closing(Client(broker.port)) as client:
        assert client.create_topic(TOPIC, 1) == 0
    assert produces(broker.port)
    restart(server, **{USER: "planted-new"})
    until_said(f"refuses the login of {USER}", broker.log)
    files = Path(f"/proc/{broker.process.pid}/fd")
    if files.exists():  # it tries again once a second, and a try that is over has no file open
        before = len(os.listdir(files))
        time.sleep(6)
        until(lambda: len(os.listdir(files)) <= before)
    restart(server, **{USER: PASSWORD})
    until_said("new ZooKeeper session", broker.log)
    until(lambda: produces(broker.port))
    broker.end()
    restart(server, **{USER: "planted-new"})
    again = start(port=broker.port, settings=login("planted-new"))
    until(lambda: produces(again.port))
    assert "planted" not in again.log.read_text()


def test_both_kinds_of_credentials_count(start: Start, server: ZooKeeperServer) -> None:
    start(settings={**login(), "zookeeper.digest.credentials": "d:planted-digest"}).end()
    with logged_in(server) as zookeeper:
        assert {who.partition(":")[0] for who, _ in rights(zookeeper)["/barnabas/brokers"]} == {
            "sasl",
            "digest",
            "world",
        }


def test_characters_beyond_ascii(start: Start, server: ZooKeeperServer) -> None:
    """As Java's clients do it."""
    restart(server, kafka="pläntéd")
    start(settings=login("pläntéd"))


def test_a_connection_that_is_lost_in_the_login_keeps_the_session(server: ZooKeeperServer) -> None:
    """kazoo would have given it up."""
    from barnabas.config.broker import BrokerConfig
    from barnabas.config.sasl import zookeeper_login

    tree = ZooKeeperTree(server, "/lost")

    async def scenario() -> None:
        session = await tree.session(login=zookeeper_login(BrokerConfig.of(login())))
        before, client = session.session_id, session._client
        assert client is not None
        connection = client.kazoo._connection
        submit, lost = connection._submit, []

        def lose(request: Any, timeout: float, xid: int | None = None) -> None:
            if type(request).__name__ == "SASL" and len(lost) < 2:
                lost.append(request)
                tree.proxy_of(session).cut()
            submit(request, timeout, xid)

        connection._submit = lose
        tree.proxy_of(session).cut()
        while session._is_connected:
            await asyncio.sleep(0.01)
        await session.create("/a")
        assert len(lost) == 2
        assert session.session_id == before

    tree.run(scenario())
