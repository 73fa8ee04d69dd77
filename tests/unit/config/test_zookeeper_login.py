"""zookeeper.sasl.jaas.config: what it must be, and that nothing shows it. And what a refusal means."""

import sys
from typing import Any

import pytest
from barnabas.cluster.tree.port import CoordinationError
from barnabas.cluster.tree.zookeeper_login import NoLogin, ZooKeeperLogin
from barnabas.cluster.tree.zookeeper_settings import ZooKeeperSettings
from barnabas.config.broker import BrokerConfig, problems
from barnabas.config.sasl import zookeeper_login
from kazoo.exceptions import AuthFailedError, ConnectionDropped, SessionClosedRequireSaslError

NAME = "zookeeper.sasl.jaas.config"
MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
LINE = f'{MODULE} required username="u" password="planted";'


def test_who_logs_in_may_own_nodes() -> None:
    values = {"zookeeper.connect": "a:1", NAME: LINE, "zookeeper.set.acl": "true"}
    assert list(problems(values)) == []
    settings = ZooKeeperSettings.of(BrokerConfig.of(values))
    assert settings.login is not None
    assert settings.login.options == {"username": "u", "password": "planted"}
    assert "planted" not in repr(settings)
    assert zookeeper_login(BrokerConfig.of({"zookeeper.connect": "a:1"})) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("planted", "cannot be read: it is of the form"),
        (f"Client {{ {LINE} }};", "cannot be read"),
        ('com.sun.security.auth.module.Krb5LoginModule required keyTab="planted";', "(Kerberos is not built)"),
        ('org.apache.kafka.common.security.plain.PlainLoginModule required password="planted";', f"must name {MODULE}"),
        (f'{MODULE} required username="u";', 'lacks password="…"'),
        (f'{MODULE} required password="planted" username="";', 'lacks username="…"'),
        (f'{MODULE} required username="ü" password="planted";', "its username has characters that are not of ASCII"),
        (
            f'{MODULE} required username="u" password="planted…";',
            "its password has characters that are not of ISO 8859-1",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_and_not_shown(line: str, said: str) -> None:
    [problem] = problems({NAME: line})
    assert problem.key == NAME
    assert said in str(problem)
    assert "planted" not in str(problem)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    line = zookeeper_login(BrokerConfig.of({NAME: LINE}))
    assert line is not None
    monkeypatch.setitem(sys.modules, "puresasl.client", None)
    with pytest.raises(CoordinationError, match=r"pip install 'barnabas\[zookeeper-sasl\]'"):
        ZooKeeperLogin("a:1", line)


class Demanding:
    """A connection of kazoo to servers of which some demand logins."""

    def __init__(self) -> None:
        self.demands = True
        self.asked: list[str] = []

    def _invoke(self, timeout: float, request: Any, xid: int) -> None:
        assert timeout == 0.5  # of one attempt, and not of the whole session
        self.asked.append(type(request).__name__)
        if self.demands and xid == 1:
            raise SessionClosedRequireSaslError


def test_one_of_three_servers_does_not_speak_for_the_others() -> None:
    """kazoo goes on with the next one, in the same session. Once, it was given up, and nothing served for its time."""
    connection, told = Demanding(), []
    login = NoLogin("a:1,b:1,c:1", "u:planted")
    login.take_over(connection, 0.5, lambda: told.append("done"))
    log_in = connection._authenticate_with_sasl  # type: ignore[attr-defined]
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(ConnectionDropped):
                log_in("a", 1.0)
        connection.demands = False
        log_in("b", 1.0)
        connection.demands = True
    assert told == ["done"] * 2
    assert login.refusal == ""
    assert connection.asked == ["Auth", "Exists"] * 6  # the credentials come first: ZooKeeper may demand them
    for expected in (ConnectionDropped, ConnectionDropped, AuthFailedError):
        with pytest.raises(expected):
            log_in("a", 1.0)
    assert login.refusal == ("ZooKeeper at a:1,b:1,c:1 serves nobody without a login: set zookeeper.sasl.jaas.config")
