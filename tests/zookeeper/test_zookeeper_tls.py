"""A broker that speaks TLS with a real ZooKeeper, which wants its certificate."""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zookeeper_server
from broker_process import Client
from certificates import PASSWORD, Authority
from old_offsets import GROUP, TOPIC, commit_in_tree, migrate
from ports import free_port
from waiting import until, until_said
from zookeeper_server import ZooKeeperServer

AUTHORITY = Authority()
JAAS = "zookeeper.sasl.jaas.config"
LOGIN = 'org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="planted-{}";'
SESSION_MS = 60_000  # Java takes long to make its first TLS connection on a busy machine


@pytest.fixture
def server(tmp_path: Path) -> Any:
    if zookeeper_server.class_path() is None:
        pytest.skip(zookeeper_server.why_not())
    server = ZooKeeperServer(tmp_path / "zookeeper")
    keys = AUTHORITY.sign("zookeeper").write_pkcs12(tmp_path / "zookeeper.p12")
    trusted = AUTHORITY.write_jks(tmp_path / "zookeeper.jks")
    server.secure_port = free_port()  # type: ignore[attr-defined]
    with (tmp_path / "zookeeper" / "zoo.cfg").open("a") as config:
        config.write(
            f"secureClientPort={server.secure_port}\n"  # type: ignore[attr-defined]
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"ssl.keyStore.location={keys}\nssl.keyStore.password={PASSWORD}\n"
            f"ssl.trustStore.location={trusted}\nssl.trustStore.password={PASSWORD}\n"
        )
    server.start()
    try:
        until(lambda: shakes_hands(server.secure_port))  # type: ignore[attr-defined]
        yield server
    finally:
        server.stop()


def shakes_hands(port: int) -> bool:
    """Have Java load all that its first TLS connection needs. False: the port, its second, is not open yet."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    try:
        with socket.create_connection(("127.0.0.1", port), 60) as plain, suppress(OSError):
            context.wrap_socket(plain, server_hostname="127.0.0.1").close()
    except ConnectionRefusedError:
        return False
    return True


def settings(server: Any, folder: Path, authority: Authority = AUTHORITY) -> dict[str, str]:
    return {
        "zookeeper.connect": f"127.0.0.1:{server.secure_port}/barnabas",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.keystore.location": AUTHORITY.sign("broker").write_pem(folder / "broker.pem"),
        "zookeeper.ssl.truststore.location": authority.write_jks(folder / "trusted.jks"),
        "zookeeper.ssl.truststore.password": PASSWORD,
        "zookeeper.ssl.truststore.type": "JKS",
    }


def test_the_tree_is_in_a_zookeeper_that_wants_certificates(
    server: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    process = start(session_ms=SESSION_MS, settings=settings(server, tmp_path))
    server.stop()
    server.start()
    assert PASSWORD not in until_said("reconnected to ZooKeeper in session", process.log)


def test_a_zookeeper_that_is_not_trusted_is_not_used(server: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    values = settings(server, tmp_path, Authority("other")) | {"zookeeper.connection.timeout.ms": "8000"}
    with pytest.raises(AssertionError, match="its certificate is refused"):
        start(session_ms=SESSION_MS, settings=values)


def test_a_login_over_tls(server: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("puresasl", reason="pure-sasl is not installed")
    server.stop()
    server.take_logins(kafka="planted-right")
    server.start()
    until(lambda: shakes_hands(server.secure_port))
    over_tls = settings(server, tmp_path) | {"zookeeper.set.acl": "true"}
    broker = start(session_ms=SESSION_MS, settings=over_tls | {JAAS: LOGIN.format("right")})
    until_said("ZooKeeper session", broker.log)
    broker.end()
    broker = start(session_ms=SESSION_MS, settings=over_tls | {JAAS: LOGIN.format("wrong")}, wait=False)
    assert broker.process.wait(200) == 1
    assert "planted" not in until_said("refuses the login of kafka", broker.log)


def test_offsets_are_migrated_from_a_zookeeper_that_demands_tls_and_a_login(
    server: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("puresasl", reason="pure-sasl is not installed")
    server.stop()
    server.take_logins("sessionRequireClientSASLAuth=true\n", kafka="planted-right")
    server.start()
    until(lambda: shakes_hands(server.secure_port))
    values = settings(server, tmp_path) | {JAAS: LOGIN.format("right")}
    broker = start(session_ms=SESSION_MS, settings=values)
    assert Client(broker.port).create_topic(TOPIC, 1) == 0
    assert commit_in_tree(broker.port, 7) == 0
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    without = migrate(broker.port, "--yes")
    assert without.returncode == 1
    assert "If it wants TLS or a login, name the server.properties of a broker with --config." in without.stderr
    properties.write_text(properties.read_text().replace("planted-right", "planted-wrong"))
    refused = migrate(broker.port, "--yes", "--config", str(properties))
    assert "refuses the login of kafka" in refused.stderr
    assert "and start again. If they are stopped for sure" in refused.stderr
    properties.write_text(properties.read_text().replace("planted-wrong", "planted-right"))
    done = migrate(broker.port, "--yes", "--config", str(properties))
    assert done.returncode == 0, done.stderr
    assert "1 committed, 0 kept; read again, 1 of 1 as they should be." in done.stderr
    assert "planted" not in without.stderr + refused.stderr + done.stderr
    assert Client(broker.port).committed(GROUP, TOPIC, 0) == (0, 7)
    (tmp_path / "broker.pem").unlink()
    lost = migrate(broker.port, "--yes", "--config", str(properties))
    assert lost.returncode == 1
    assert "broker.pem" in lost.stderr
