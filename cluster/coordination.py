"""The tree that a broker's settings name. Only the modules of the one that is used are imported."""

from barnabas.cluster.tree.port import Coordination
from barnabas.config.broker import BrokerConfig
from barnabas.config.sasl import zookeeper_has_tls
from barnabas.runtime.ports import Env


def coordination_of(env: Env, config: BrokerConfig, tree_path: str | None) -> Coordination:
    """The tree in a file, or in ZooKeeper if there is no path. CoordinationError, TlsError: the settings do not do."""
    if tree_path is not None:
        from barnabas.cluster.tree.embedded import EmbeddedCoordination  # late: brings SQLite

        return EmbeddedCoordination(env, tree_path, config.coordination_session_timeout_ms)
    from barnabas.cluster.tree.zookeeper import ZooKeeperCoordination  # late: brings kazoo
    from barnabas.cluster.tree.zookeeper_settings import ZooKeeperSettings

    if not zookeeper_has_tls(config):
        return ZooKeeperCoordination(env, ZooKeeperSettings.of(config))
    from barnabas.cluster.security.tls import ZooKeeperTls

    return ZooKeeperCoordination(env, ZooKeeperSettings.of(config, ZooKeeperTls(env.disk, config).context))
