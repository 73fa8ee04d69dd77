"""AlterPartition (KIP-497): leaders ask for other ISRs, and the controller decides, writes and tells.

`judge` is the decision, a pure function. Memory changes after the write, so that a write whose answer was lost is found
in the tree. A leader whose answer was lost asks again, and gets the present state.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from barnabas.cluster.leader_and_isr import RECOVERED, RECOVERING, LeaderAndIsr
from barnabas.cluster.registration import UNKNOWN_BROKER_EPOCH
from barnabas.controller.requests import RequestBatch
from barnabas.controller.state import ControllerState, TopicPartition
from barnabas.controller.tree import ControllerTree
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from barnabas.protocol.named_tuple import NamedTuple

logger = logging.getLogger("barnabas.controller")

REPEATED = ErrorCode.NONE


class Proposal(NamedTuple):
    """What a leader wants. `isr` maps each member to the broker epoch in which the leader knows it.

    In version 2 that is UNKNOWN_BROKER_EPOCH.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]
    recovering: bool


def judge(
    proposal: Proposal, known: LeaderAndIsr, replicas: tuple[int, ...], eligible: Mapping[int, int]
) -> LeaderAndIsr | ErrorCode:
    """The state to write, or what is answered without a write; REPEATED: it is so already.

    `eligible` has the brokers that may be in the ISR, with their epochs. The leader itself stays in it even while it
    shuts down: perhaps a replica must become in sync before it can go.
    """
    if proposal.leader_epoch > known.leader_epoch or proposal.partition_epoch > known.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader knows what a later controller has decided
    if proposal.leader_epoch < known.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if proposal.leader != known.leader or proposal.leader not in proposal.isr or not set(replicas) >= set(proposal.isr):
        return ErrorCode.INVALID_REQUEST
    if set(proposal.isr) == set(known.isr) and proposal.recovering == known.recovering:
        return REPEATED
    if proposal.partition_epoch < known.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if proposal.recovering and (len(proposal.isr) > 1 or not known.recovering):
        return ErrorCode.INVALID_REQUEST
    for member, broker_epoch in proposal.isr.items():
        if member != proposal.leader and (
            member not in eligible or broker_epoch not in (UNKNOWN_BROKER_EPOCH, eligible[member])
        ):
            return ErrorCode.INELIGIBLE_REPLICA
    return known._replace(isr=tuple(proposal.isr), recovering=proposal.recovering)


class Alterations:
    """The ISR changes of one term of the controller."""

    def __init__(
        self,
        state: ControllerState,
        tree: ControllerTree,
        batch: RequestBatch,
        on_altered: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        self._state = state
        self._tree = tree
        self._batch = batch
        self._on_altered = on_altered

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Write what is allowed, as few changes of the tree as possible, and tell all brokers."""
        state = self._state
        broker = state.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        names = {topic_id: topic for topic, topic_id in state.topic_ids.items()}
        proposals: dict[TopicPartition, Proposal] = {}
        for topic in request.topics:
            name = names.get(topic.topic_id)
            if name is not None:
                for partition in topic.partitions:
                    proposals[name, partition.partition_index] = _proposal(request.broker_id, partition)
        verdicts: dict[TopicPartition, ErrorCode] = {}

        def decide(partition: TopicPartition, known: LeaderAndIsr) -> LeaderAndIsr | None:
            # Nobody waits for a replica that cannot write, unless the leader cannot, either.
            leader_can_write = state.can_write(known.leader, partition)
            replicas = state.able_replicas(partition) if leader_can_write else state.online_replicas(partition)
            eligible = {broker_id: state.brokers[broker_id].epoch for broker_id in replicas}
            verdict = judge(proposals[partition], known, state.replicas(partition), eligible)
            if isinstance(verdict, ErrorCode):
                verdicts[partition] = verdict
                return None
            verdicts[partition] = ErrorCode.NONE
            return verdict

        changed = await self._tree.change_states(proposals, decide)
        for altered in changed:
            logger.debug("%s-%d: the ISR is now %s", *altered, list(state.states[altered].isr))
        if changed:
            self._batch.add_update_metadata(state.brokers, changed)
            await self._batch.send()
            self._on_altered(changed)
        return AlterPartitionResponse(
            topics=[
                AlterPartitionResponse.TopicData(
                    topic_id=topic.topic_id,
                    partitions=[
                        self._answer(names.get(topic.topic_id), partition.partition_index, verdicts)
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _answer(
        self, topic: str | None, index: int, verdicts: Mapping[TopicPartition, ErrorCode]
    ) -> AlterPartitionResponse.PartitionData:
        if topic is None:
            return AlterPartitionResponse.PartitionData(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        state = self._state.states.get((topic, index))
        error = verdicts.get((topic, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if state is None:  # there is no such partition, or its state has gone or became unreadable before the write
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if error or state is None:
            return AlterPartitionResponse.PartitionData(partition_index=index, error_code=error)
        return AlterPartitionResponse.PartitionData(
            partition_index=index,
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            isr=list(state.isr),
            leader_recovery_state=RECOVERING if state.recovering else RECOVERED,
            partition_epoch=state.partition_epoch,
        )


def _proposal(leader: int, partition: AlterPartitionRequest.PartitionData) -> Proposal:
    members = {member.broker_id: member.broker_epoch for member in partition.new_isr_with_epochs}
    return Proposal(
        leader,
        partition.leader_epoch,
        partition.partition_epoch,
        members or dict.fromkeys(partition.new_isr, UNKNOWN_BROKER_EPOCH),
        partition.leader_recovery_state == RECOVERING,
    )
