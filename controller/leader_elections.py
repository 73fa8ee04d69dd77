"""Elections that nobody's death made necessary: what ElectLeaders asks for, and leaders that return to balance."""

from collections.abc import Sequence
from enum import IntEnum

from barnabas.cluster.leader_and_isr import NO_LEADER, LeaderAndIsr
from barnabas.config.broker import BrokerConfig
from barnabas.controller import election
from barnabas.controller.state import ControllerState, TopicPartition
from barnabas.controller.state_machines import StateMachines
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple


class ElectionType(IntEnum):
    """The kinds of election that a client can ask for, by their number on the wire (KIP-460)."""

    PREFERRED = 0  # the first replica of the assignment shall lead
    UNCLEAN = 1  # any live replica may lead a partition that has no leader, whatever the topic's settings say


class ElectionResult(NamedTuple):
    """What an election of one partition came to."""

    error: ErrorCode
    message: str | None = None
    leader: int = NO_LEADER


# What is answered when no leader could be elected.
FAILURES = {
    ElectionType.PREFERRED: (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
    ElectionType.UNCLEAN: (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "Eligible topic partition leaders are not available.",
    ),
}


class LeaderElections:
    """Elections in one term of the controller."""

    def __init__(self, state: ControllerState, config: BrokerConfig, machines: StateMachines) -> None:
        self._state = state
        self._config = config
        self._machines = machines

    async def elect(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ElectionResult]:
        """Elect as a client asked. Each partition has its own result."""
        results = {partition: self._needless(election_type, partition) for partition in partitions}
        wanted = [partition for partition, result in results.items() if result is None]
        elected = set(await self._elect(election_type, wanted))
        return {
            partition: result
            or (
                ElectionResult(ErrorCode.NONE, None, self._state.states[partition].leader)
                if partition in elected
                else ElectionResult(*FAILURES[election_type])
            )
            for partition, result in results.items()
        }

    def _needless(self, election_type: ElectionType, partition: TopicPartition) -> ElectionResult | None:
        """Why there is nothing to elect. None: there is."""
        state = self._state
        if not state.replicas(partition):
            topic, index = partition
            missing = f"partition as {topic}-{index}" if topic in state.assignments else f"topic as {topic}"
            return ElectionResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {missing}")
        if state.is_being_deleted(partition[0]):
            return ElectionResult(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
        known = state.states.get(partition)
        if known is None:  # it never had a leader, because none of its replicas has lived yet
            return ElectionResult(*FAILURES[election_type])
        if election_type is ElectionType.PREFERRED:
            is_needed = known.leader != state.replicas(partition)[0]
        else:
            is_needed = not state.has_online_leader(partition)
        if is_needed:
            return None
        return ElectionResult(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")

    async def _elect(self, election_type: ElectionType, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        state = self._state

        def decide(partition: TopicPartition, known: LeaderAndIsr) -> LeaderAndIsr | None:
            if election_type is ElectionType.PREFERRED:
                return election.elect_preferred(state.replicas(partition), known, state.able_replicas(partition))
            return election.elect_offline(
                state.candidates(partition), known, state.online_replicas(partition), unclean=True
            )

        return await self._machines.elect(partitions, decide)

    async def balance(self) -> None:
        """Elect preferred replicas again, on brokers that lead too few of the partitions that prefer them."""
        if not self._config.auto_leader_rebalance_enable:
            return
        state = self._state
        leaders = {
            partition: state.states[partition].leader if partition in state.states else None
            for partition in state.all_partitions()
            if not state.is_being_deleted(partition[0]) and state.replicas(partition)
        }
        limit = self._config.leader_imbalance_per_broker_percentage / 100
        preferred = [(p, state.replicas(p)[0], leader) for p, leader in leaders.items()]
        await self._elect(ElectionType.PREFERRED, election.imbalanced_partitions(preferred, limit))
