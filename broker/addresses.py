"""Under which address a client or another broker finds a broker: what is advertised, or else what was dialled."""

from collections.abc import Mapping

from barnabas.broker.context import RequestContext
from barnabas.config.broker import BrokerConfig
from barnabas.config.listeners import Endpoint
from barnabas.replication.metadata_cache import Endpoint as RegisteredEndpoint
from barnabas.replication.metadata_cache import MetadataCache

WILDCARD_HOSTS = ("", "0.0.0.0", "::")
LOOPBACK = "127.0.0.1"


class Addresses:
    """Of this broker and the others. `ports` says which ports its listeners have got, by name."""

    def __init__(self, config: BrokerConfig, ports: Mapping[str, int], metadata_cache: MetadataCache) -> None:
        self._listeners = config.endpoints
        self._advertised = {endpoint.name: endpoint for endpoint in config.advertised_endpoints}
        self._node_id = config.node_id
        self._ports = ports
        self._metadata_cache = metadata_cache

    @property
    def bootstrap(self) -> str:
        """host:port of the first listener, for a client on this machine."""
        first = self._listeners[0]
        host = _reachable(first.host)
        return f"[{host}]:{self._ports[first.name]}" if ":" in host else f"{host}:{self._ports[first.name]}"

    def registered(self) -> list[RegisteredEndpoint]:
        """What the tree is told, for other brokers and their clients: as advertised, or how this machine reaches it."""
        registered = []
        for listener in self._listeners:
            told = self._advertised.get(listener.name)
            host, port = (told.host, told.port) if told else (_reachable(listener.host), self._ports[listener.name])
            registered.append(RegisteredEndpoint(listener.name, host, port))
        return registered

    def of(self, node_id: int, context: RequestContext) -> Endpoint | None:
        """Where this client finds a live broker on its own listener; None where that broker has none.

        A broker that advertises nothing answers with the address that the client dialled.
        """
        name = context.listener_name
        if node_id == self._node_id:
            return self._advertised.get(name) or Endpoint(name, context.dialled_host, context.dialled_port)
        broker = self._metadata_cache.brokers.get(node_id)
        found = broker.endpoint(name) if broker is not None else None
        return Endpoint(name, found.host, found.port) if found is not None else None


def _reachable(host: str) -> str:
    return LOOPBACK if host in WILDCARD_HOSTS else host
