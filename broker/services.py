"""`Services`: what handlers of requests may use of a broker, and the types of its parts.

`Broker` has all of these attributes. Handlers are given it as `Services`, so they import the parts that they use, and
not the wiring of the whole. This module imports no handler, and nothing that imports handlers.
"""

from collections.abc import MutableSet, Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.broker.addresses import Addresses
from barnabas.broker.arrivals import Arrivals
from barnabas.broker.auto_topics import AutoTopics
from barnabas.broker.fetch_sessions import FetchSessionCache
from barnabas.broker.log_ranges import KnownLogRanges
from barnabas.broker.logins import Logins
from barnabas.broker.own_registration import OwnRegistration
from barnabas.broker.refusals import Refusals
from barnabas.broker.restored_tree import RestoredTree
from barnabas.broker.throttles import Throttles
from barnabas.broker.transactions import Transactions
from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.client_quotas import ClientQuotas
from barnabas.cluster.config_changes import ConfigChanges
from barnabas.cluster.features import Features
from barnabas.cluster.lease import Lease
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.producer_ids import ProducerIds
from barnabas.cluster.security.authorizer import Authorizer
from barnabas.cluster.security.credentials import Credentials
from barnabas.cluster.security.delegation_tokens import DelegationTokens
from barnabas.cluster.tree.port import Coordination
from barnabas.config.broker import BrokerConfig
from barnabas.controller.controller import Controller
from barnabas.controller.topic_admin import TopicAdmin
from barnabas.coordinators.groups.coordinator import GroupCoordinator
from barnabas.coordinators.groups.lag_sampling import LagSampling
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.ports import Env
from barnabas.storage.log_manager import LogManager

if TYPE_CHECKING:
    from barnabas.cluster.security.tls import Tls


class ServerState(Protocol):
    """The server of Kafka's protocol, as handlers see it."""

    accepted: int
    refused_connections: int
    protocol_errors: int
    failed_logins: int
    ended_logins: int
    arrivals: Arrivals
    serving: bool
    last_told: tuple[int, int]
    throttles: Throttles | None  # None: there are no quotas

    @property
    def connections(self) -> Sized:
        """Those that are open."""

    @property
    def requests_of(self) -> Sequence[int]:
        """How many requests there were, by API key."""


class HttpState(Protocol):
    """The server of the HTTP API, as handlers see it."""

    requests: int
    handler_failures: int
    connection_class: Any  # None: it is not imported
    newest: Any  # returns that of the broker's newest life in this process
    is_closing: bool

    @property
    def address(self) -> str | None:
        """host:port; None: there is no HTTP API."""

    @property
    def connections(self) -> Sized:
        """Those that are open."""

    @property
    def scrapes(self) -> MutableSet[Any]:
        """The answers of /metrics that are being made or sent."""


class GateState(Protocol):
    """The gate that requests pass, as handlers see it."""

    handler_failures: int


class Services(Protocol):
    """The parts of one broker."""

    env: Env
    config: BrokerConfig
    tls: "Tls | None"
    node_id: int
    cluster_id: str  # empty while the broker starts
    tree_path: str | None  # None: the tree is not in a file
    coordination: Coordination
    lease: Lease
    features: Features
    metadata_cache: MetadataCache
    config_changes: ConfigChanges
    broker_clients: BrokerClients
    producer_ids: ProducerIds
    own_registration: OwnRegistration
    log_manager: LogManager
    replica_manager: ReplicaManager
    restored_tree: RestoredTree
    controller: Controller
    topic_admin: TopicAdmin
    auto_topics: AutoTopics
    group_coordinator: GroupCoordinator
    lag_sampling: LagSampling
    log_ranges: KnownLogRanges
    transactions: Transactions
    fetch_sessions: FetchSessionCache
    addresses: Addresses
    refusals: Refusals
    credentials: Credentials
    logins: Logins
    delegation_tokens: DelegationTokens
    client_quotas: ClientQuotas
    throttles: Throttles
    authorizer: Authorizer | None  # None: everybody may do everything

    @property
    def server(self) -> ServerState:
        """The listeners of Kafka's protocol, and what is counted of their connections."""

    @property
    def http(self) -> HttpState:
        """The listeners of the HTTP API, and what is counted of their connections."""

    @property
    def request_gate(self) -> GateState:
        """What is counted of all requests."""
