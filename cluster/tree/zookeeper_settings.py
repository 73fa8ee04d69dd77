"""Where ZooKeeper is, and how to speak with it: what a broker's settings say."""

from typing import TYPE_CHECKING, NamedTuple

from barnabas.cluster.tree.operations import split
from barnabas.cluster.tree.port import CoordinationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from barnabas.config.broker import BrokerConfig


class ZooKeeperSettings(NamedTuple):
    """Where ZooKeeper is, and how to speak with it. The names are those of Kafka's settings."""

    connect: str  # host:port,host:port/chroot
    session_timeout_ms: float = 18_000.0
    connection_timeout_ms: float | None = None  # None: as long as the session
    max_in_flight_requests: int = 10
    set_acl: bool = False
    digest: str | None = None  # user:password
    tls: "Callable[[], SSLContext] | None" = None  # asked for each connection, in kazoo's thread; None: no TLS

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
            tls,
        )


def split_connect(connect: str) -> tuple[str, str]:
    """Hosts and chroot of a zookeeper.connect; no chroot is the empty text. ValueError if the chroot is no path."""
    hosts, slash, below = connect.strip().partition("/")
    chroot = f"/{below.rstrip('/')}" if slash and below.strip("/") else ""
    split(chroot or "/")
    return hosts, chroot
