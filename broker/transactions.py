"""What a broker has for transactions: their coordinator, and the verification of transactional batches (KIP-890).

Each is made, and its modules are imported, on first use. So a broker without transactions does not pay for them, at its
start or in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from barnabas.cluster.controller_client import AskController, answer_now
from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.coordinators.shard import CoordinatorLog, PartitionLog
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.replication.partition import Partition
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.coordinators.transactions.coordinator import TransactionCoordinator
    from barnabas.coordinators.transactions.verification import TransactionVerification


class Transactions:
    """The coordinator and the verification of one broker. `ask_here` has the broker's own handlers answer."""

    def __init__(self, services: Services, ask_here: AskController) -> None:
        self._services = services
        self._ask_here = ask_here
        self._has_started = False

    @cached_property
    def coordinator(self) -> TransactionCoordinator:
        """Made when this broker has a partition of its topic, or is asked for a transaction."""
        from barnabas.coordinators.transactions.coordinator import TransactionCoordinator
        from barnabas.coordinators.transactions.topic_ages import TopicAges

        services = self._services
        coordinator = TransactionCoordinator(
            services.env,
            services.config,
            partial(log_of_coordinator, services.replica_manager, TRANSACTIONS_TOPIC),
            services.metadata_cache,
            TopicAges(services.coordination),
            services.lease,
            services.producer_ids,
            partial(self.ask_broker, "markers"),
            lambda: services.features.transaction_version,
        )
        if self._has_started:
            coordinator.start()
        return coordinator

    @cached_property
    def verification(self) -> TransactionVerification:
        """Made for the first transactional batch."""
        from barnabas.coordinators.transactions.verification import TransactionVerification

        services = self._services
        return TransactionVerification(
            services.env.clock,
            services.config,
            services.metadata_cache,
            services.replica_manager.leader_partition,
            partial(self.ask_broker, "verification"),
        )

    @property
    def has_coordinator(self) -> bool:
        """Whether the coordinator is made already."""
        return "coordinator" in vars(self)

    def start(self) -> None:
        """The coordinator, if there is one, begins to load its partitions."""
        self._has_started = True
        if self.has_coordinator:
            self.coordinator.start()

    def stop(self) -> None:
        """Answer what waits, and coordinate nothing any more."""
        self._has_started = False
        if "verification" in vars(self):
            self.verification.stop()
        if self.has_coordinator:
            self.coordinator.shutdown()

    def on_leadership(self, became_leader: Sequence[Partition], became_follower: Sequence[Partition]) -> None:
        changed = (*became_leader, *became_follower)
        if self.has_coordinator or any(partition.topic == TRANSACTIONS_TOPIC for partition in changed):
            self.coordinator.on_leadership(became_leader, became_follower)

    def on_partitions_deleted(self, partitions: Sequence[tuple[str, int]]) -> None:
        if self.has_coordinator:
            self.coordinator.on_partitions_deleted(partitions)

    def ask_broker(
        self, purpose: str, broker_id: int, request: Message, version: int, within_ms: float | None = None
    ) -> Pending[Any]:
        """The answer of a broker, which may be this one; None if there is none. `purpose` names the connection."""
        services = self._services
        if broker_id == services.node_id:
            return answer_now(self._ask_here, request, version)
        client = services.broker_clients.to(broker_id, purpose, within_ms or services.config.request_timeout_ms)
        return Pending.of(None) if client is None else client.send(request, version)


def log_of_coordinator(replica_manager: ReplicaManager, topic: str, index: int) -> CoordinatorLog | ErrorCode:
    """The log of a coordinator's partition, if this broker leads it."""
    partition = replica_manager.leader_partition(topic, index)
    return PartitionLog(partition) if isinstance(partition, Partition) else partition
