"""The addresses that clients and other brokers are given: what is advertised, or else what the client dialled."""

from collections.abc import Mapping
from typing import Any, Protocol

from barnabas.cluster.metadata_cache import Endpoint as RegisteredEndpoint
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.registration import SECURITY_PROTOCOLS
from barnabas.config.broker import BrokerConfig
from barnabas.config.listeners import Endpoint
from barnabas.config.sasl import protocol_of
from barnabas.runtime.ports import Network

WILDCARD_HOSTS = ("", "0.0.0.0", "::")
LOOPBACK = "127.0.0.1"


class Dialled(Protocol):
    """The way by which a client has reached this broker."""

    listener_name: str
    dialled_host: str
    dialled_port: int


class Addresses:
    """The addresses of this broker and the others. `ports`: the ports in use, by name of the listener."""

    def __init__(self, config: BrokerConfig, ports: Mapping[str, int], metadata_cache: MetadataCache) -> None:
        self._config = config
        self._listeners = config.endpoints
        self._advertised = {endpoint.name: endpoint for endpoint in config.advertised_endpoints}
        self._node_id = config.node_id
        self._ports = ports
        self._metadata_cache = metadata_cache

    @property
    def bootstrap(self) -> str:
        """host:port of the first listener, for a client on this machine."""
        first = self._listeners[0]
        host = LOOPBACK if first.host in WILDCARD_HOSTS else first.host
        return f"[{host}]:{self._ports[first.name]}" if ":" in host else f"{host}:{self._ports[first.name]}"

    async def registered(self, network: Network) -> list[RegisteredEndpoint]:
        """The addresses that the tree is told, for other brokers and their clients.

        A listener that advertises nothing is told with its own address. If it listens at all addresses of the machine,
        that is the machine's name, as in Kafka; or, if that does not resolve here, what reaches it on this machine.
        """
        registered = []
        for listener in self._listeners:
            told = self._advertised.get(listener.name)
            host, port = (told.host, told.port) if told else (listener.host, self._ports[listener.name])
            if host in WILDCARD_HOSTS:
                host = await network.host_name() or LOOPBACK
            protocol = SECURITY_PROTOCOLS.index(protocol_of(self._config, listener.name))
            registered.append(RegisteredEndpoint(listener.name, host, port, protocol))
        return registered

    def of(self, node_id: int, context: Dialled) -> Endpoint | None:
        """The address of a live broker on the client's listener; None if that broker has no such listener.

        If this broker advertises nothing, its own address is the one that the client dialled.
        """
        name = context.listener_name
        if node_id == self._node_id:
            return self._advertised.get(name) or Endpoint(name, context.dialled_host, context.dialled_port)
        broker = self._metadata_cache.brokers.get(node_id)
        found = broker.endpoint(name) if broker is not None else None
        return Endpoint(name, found.host, found.port) if found is not None else None

    def tell_leader(self, response: Any, answer: Any, leader: tuple[int, int], context: Dialled) -> None:
        """Add to a partition's answer who leads it, and to the response where that broker is (KIP-951)."""
        leader_id, leader_epoch = leader
        answer.current_leader = response.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
        endpoint = self.of(leader_id, context)
        if endpoint is not None and all(known.node_id != leader_id for known in response.node_endpoints):
            rack = self._metadata_cache.brokers[leader_id].rack
            response.node_endpoints.append(
                response.NodeEndpoint(node_id=leader_id, host=endpoint.host, port=endpoint.port, rack=rack)
            )
