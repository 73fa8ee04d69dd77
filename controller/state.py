"""The memory of a controller: brokers, assignments, and the states of partitions and replicas.

Everything here is a copy of the tree, or follows from it, and is thrown away when the controllership is lost. The two
tables say which state may follow which, as in Kafka's PartitionStateMachine and ReplicaStateMachine.
"""

from collections.abc import Iterable, Iterator
from enum import Enum

from barnabas.cluster.leader_and_isr import NO_LEADER, LeaderAndIsr
from barnabas.cluster.registration import LiveBroker

TopicPartition = tuple[str, int]
Replica = tuple[str, int, int]  # topic, partition, broker


class PartitionState(Enum):
    """Life of a partition."""

    NON_EXISTENT = 0
    NEW = 1  # assigned, no state node yet
    ONLINE = 2  # has a leader
    OFFLINE = 3  # had one


class ReplicaState(Enum):
    """Life of a replica."""

    NON_EXISTENT = 0
    NEW = 1
    ONLINE = 2
    OFFLINE = 3  # its broker is gone, or it was stopped
    DELETION_STARTED = 4
    DELETION_SUCCESSFUL = 5
    DELETION_INELIGIBLE = 6  # its broker cannot delete it now


# The states from which each state can be entered.
PARTITION_TRANSITIONS: dict[PartitionState, frozenset[PartitionState]] = {
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
}
REPLICA_TRANSITIONS: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.ONLINE: frozenset(
        {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
    ),
    ReplicaState.OFFLINE: frozenset(
        {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
    ),
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
    ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
}


class ControllerState:
    """The controller's memory. Replicas of a topic being deleted stay until their files are gone."""

    def __init__(self) -> None:
        self.brokers: dict[int, LiveBroker] = {}
        self.shutting_down: set[int] = set()  # those of the live brokers that have asked to go
        self.topic_ids: dict[str, bytes] = {}
        self.assignments: dict[str, dict[int, tuple[int, ...]]] = {}
        self.states: dict[TopicPartition, LeaderAndIsr] = {}
        self.unreadable: set[TopicPartition] = set()  # those whose state node is there, and cannot be read
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[Replica, ReplicaState] = {}
        self.failed_logs: dict[int, set[TopicPartition]] = {}  # broker -> its failed partitions, until it has a log
        self.write_blocked_logs: dict[int, set[TopicPartition]] = {}  # broker -> those its disk refuses to write
        self.topics_to_delete: dict[str, None] = {}
        self.topics_ineligible: set[str] = set()  # not to be deleted until a broker starts or a replica answers

    # --- look-ups ---

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        """The assignment of a partition, first the preferred leader."""
        return self.assignments.get(partition[0], {}).get(partition[1], ())

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic, in order."""
        return [(topic, index) for index in sorted(self.assignments.get(topic, ()))]

    def all_partitions(self) -> Iterator[TopicPartition]:
        for topic, assignment in self.assignments.items():
            for index in assignment:
                yield topic, index

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[Replica]:
        return [(*partition, broker) for partition in partitions for broker in self.replicas(partition)]

    def replicas_on(self, broker_ids: Iterable[int]) -> list[Replica]:
        wanted = set(broker_ids)
        return [replica for replica in self.replicas_of(self.all_partitions()) if replica[2] in wanted]

    def is_online(self, broker_id: int, partition: TopicPartition) -> bool:
        """Whether a broker lives, stays, and can use its log of the partition."""
        return broker_id not in self.shutting_down and self._is_usable(broker_id, partition)

    def _is_usable(self, broker_id: int, partition: TopicPartition) -> bool:
        return broker_id in self.brokers and partition not in self.failed_logs.get(broker_id, ())

    def can_write(self, broker_id: int, partition: TopicPartition) -> bool:
        """Whether a broker has not said that its disk refuses writes to the partition."""
        return partition not in self.write_blocked_logs.get(broker_id, ())

    def candidates(self, partition: TopicPartition) -> list[int]:
        """All replicas in the order in which they are elected: as assigned, but those that cannot write come last."""
        return sorted(self.replicas(partition), key=lambda broker: not self.can_write(broker, partition))

    def online_replicas(self, partition: TopicPartition) -> list[int]:
        """Replicas that can serve, in assignment order."""
        return [broker for broker in self.replicas(partition) if self.is_online(broker, partition)]

    def able_replicas(self, partition: TopicPartition) -> list[int]:
        """Those of them whose disks do not refuse writes."""
        return [broker for broker in self.online_replicas(partition) if self.can_write(broker, partition)]

    def offline_replicas(self, partition: TopicPartition) -> list[int]:
        return [broker for broker in self.replicas(partition) if not self.is_online(broker, partition)]

    def has_online_leader(self, partition: TopicPartition) -> bool:
        """Whether the leader on record can serve. A broker that shuts down leads on if no other can."""
        state = self.states.get(partition)
        return state is not None and state.leader != NO_LEADER and self._is_usable(state.leader, partition)

    def is_being_deleted(self, topic: str) -> bool:
        return topic in self.topics_to_delete

    def in_states(self, *wanted: PartitionState) -> list[TopicPartition]:
        """Partitions in one of these states, without those of topics being deleted."""
        return [
            partition
            for partition, state in self.partition_states.items()
            if state in wanted and partition[0] not in self.topics_to_delete
        ]

    def just_created(self) -> list[Replica]:
        """Replicas still new although their partition has its state now."""
        return [
            replica
            for replica, known in self.replica_states.items()
            if known is ReplicaState.NEW and replica[:2] in self.states
        ]

    # --- changes ---

    def begin(self) -> None:
        """Give each partition and replica the state that follows from what was read of the tree."""
        assert not self.partition_states, "a term begins once"
        assert not self.replica_states, "a term begins once"
        for partition in self.all_partitions():
            topic = partition[0]
            being_deleted = self.is_being_deleted(topic)
            exists = partition in self.states
            if not being_deleted:
                if not exists:
                    self.partition_states[partition] = PartitionState.NEW
                elif self.has_online_leader(partition):
                    self.partition_states[partition] = PartitionState.ONLINE
                else:
                    self.partition_states[partition] = PartitionState.OFFLINE
            for broker_id in self.replicas(partition):
                if self.is_online(broker_id, partition):
                    begins = ReplicaState.ONLINE if exists or being_deleted else ReplicaState.NEW
                elif being_deleted:
                    begins = ReplicaState.DELETION_INELIGIBLE
                    self.topics_ineligible.add(topic)
                else:
                    begins = ReplicaState.OFFLINE if exists else ReplicaState.NEW
                self.replica_states[(*partition, broker_id)] = begins

    def enter_partition(self, partition: TopicPartition, target: PartitionState) -> None:
        """Move a partition. A move that the table forbids is a bug: AssertionError, and nothing changes."""
        current = self.partition_states.get(partition, PartitionState.NON_EXISTENT)
        assert current in PARTITION_TRANSITIONS[target], f"partition {partition} cannot go from {current} to {target}"
        self.partition_states[partition] = target
        if target is PartitionState.NON_EXISTENT:
            del self.partition_states[partition]

    def enter_replica(self, replica: Replica, target: ReplicaState) -> None:
        """Move a replica. A move that the table forbids is a bug: AssertionError, and nothing changes."""
        current = self.replica_states.get(replica, ReplicaState.NON_EXISTENT)
        assert current in REPLICA_TRANSITIONS[target], f"replica {replica} cannot go from {current} to {target}"
        self.replica_states[replica] = target
        if target is ReplicaState.NON_EXISTENT:
            del self.replica_states[replica]

    def forget_broker(self, broker_id: int) -> None:
        """Drop a broker that is gone; its replicas stay."""
        assert broker_id in self.brokers, "a broker goes once"
        del self.brokers[broker_id]
        self.shutting_down.discard(broker_id)
        self.failed_logs.pop(broker_id, None)
        self.write_blocked_logs.pop(broker_id, None)

    def forget_topic(self, topic: str) -> None:
        for partition in self.partitions_of(topic):
            self.states.pop(partition, None)
            self.unreadable.discard(partition)
            self.partition_states.pop(partition, None)
            for replica in self.replicas_of([partition]):
                self.replica_states.pop(replica, None)
            for logs in (*self.failed_logs.values(), *self.write_blocked_logs.values()):
                logs.discard(partition)
        self.assignments.pop(topic, None)
        self.topic_ids.pop(topic, None)
        self.topics_to_delete.pop(topic, None)
        self.topics_ineligible.discard(topic)
