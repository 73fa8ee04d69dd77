"""Where ZooKeeper is, and how to speak with it: what a broker's settings say."""

from typing import TYPE_CHECKING

from barnabas.cluster.tree.operations import split
from barnabas.cluster.tree.port import CoordinationError
from barnabas.config.sasl import zookeeper_login
from barnabas.protocol.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from barnabas.config.broker import BrokerConfig
    from barnabas.config.jaas import JaasLine


class ZooKeeperSettings(NamedTuple):
    """Where ZooKeeper is, and how to speak with it. The names are those of Kafka's settings."""

    connect: str  # host:port,host:port/chroot
    session_timeout_ms: float = 18_000.0
    connection_timeout_ms: float | None = None  # None: as long as the session
    max_in_flight_requests: int = 10
    set_acl: bool = False
    digest: str | None = None  # user:password
    login: "JaasLine | None" = None  # by SASL (DIGEST-MD5)
    tls: "Callable[[], SSLContext] | None" = None  # asked for each connection, in kazoo's thread; None: no TLS

    def __repr__(self) -> str:
        return f"ZooKeeperSettings({self.connect!r}, …)"

    @classmethod
    def of(cls, config: "BrokerConfig", tls: "Callable[[], SSLContext] | None" = None) -> "ZooKeeperSettings":
        """The settings of a broker. CoordinationError, with a sentence, if they name no place."""
        connect = config.zookeeper_connect or ""
        try:
            hosts, _ = split_connect(connect)
            ports = [int(host.rpartition(":")[2]) for host in hosts.split(",") if ":" in host]
            if not all(host.strip() for host in hosts.split(",")) or not all(0 < port < 1 << 16 for port in ports):
                raise ValueError
        except ValueError:
            message = f"zookeeper.connect={connect} is not of the form host:port,host:port/chroot"
            raise CoordinationError("", message) from None
        return cls(
            connect,
            config.zookeeper_session_timeout_ms,
            config.zookeeper_connection_timeout_ms,
            config.zookeeper_max_in_flight_requests,
            config.zookeeper_set_acl,
            config.zookeeper_digest_credentials,
            zookeeper_login(config),
            tls,
        )


def split_connect(connect: str) -> tuple[str, str]:
    """Hosts and chroot of a zookeeper.connect; no chroot is the empty text. ValueError if the chroot is no path."""
    hosts, slash, below = connect.strip().partition("/")
    chroot = f"/{below.rstrip('/')}" if slash and below.strip("/") else ""
    split(chroot or "/")
    return hosts, chroot
