"""ISR changes of leaders, as AlterPartition requests to the controller (KIP-497).

One request is in flight; what is proposed meanwhile goes into the next one. The ISR in memory changes when the
controller has confirmed it. Until then the partition computes its high watermark with the larger of both ISRs, so that
either outcome is safe.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any

from barnabas.cluster.controller_client import AskController
from barnabas.cluster.leader_and_isr import RECOVERED, RECOVERING, LeaderAndIsr
from barnabas.cluster.metadata_cache import NO_TOPIC_ID
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from barnabas.replication.partition import Partition
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Pause, Task

logger = logging.getLogger("barnabas.replication")

VERSION = 3
RETRY_BACKOFF_MS = 50.0
LOOK_MS = 2_500.0  # how often to look for changes whose sending was forgotten

# The controller does not want the change: the leader may propose another one.
_REFUSED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
# The controller knows more than the leader, who waits for LeaderAndIsr with the change unconfirmed.
_OVERTAKEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)

_Proposals = Sequence[tuple[Partition, LeaderAndIsr]]


class IsrChanges:
    """The proposals of all partitions that this broker leads."""

    def __init__(
        self,
        env: Env,
        node_id: int,
        broker_epoch: Callable[[], int],
        ask: AskController,
        on_confirmed: Callable[[int, int], None],
    ) -> None:
        self._upkeep = env.upkeep
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._on_confirmed = on_confirmed  # called with the id and the broker epoch of each member
        # The followers in each proposal, with the lives in which the leader knew them when it made the proposal:
        # another life may have lost records (KIP-903). -1: unknown.
        self._proposing: dict[Partition, dict[int, int]] = {}
        self._sending: Task[IsrChanges] | None = None

    def start(self) -> None:
        self._sending = self._upkeep.every("isr changes", lambda: LOOK_MS, lambda: [self], IsrChanges._send_all)

    def stop(self) -> None:
        """Send no more. The controller may still confirm what was sent."""
        if self._sending is not None:
            self._sending.stop()
            self._sending = None

    def propose(self, partition: Partition) -> None:
        """Send `partition.pending_isr`, together with the other proposals of this pass of the loop."""
        proposal = partition.pending_isr
        assert proposal is not None
        self._proposing[partition] = {
            member: replica.broker_epoch for member, replica in partition.remote.items() if member in proposal.isr
        }
        if self._sending is not None:
            self._sending.run_soon()

    def _send_all(self) -> Generator[Pause, Any, None]:
        while proposals := self._proposals():
            request = self._request(proposals)
            response = yield self._ask(request, VERSION)
            if not self._take(proposals, request, response):
                yield RETRY_BACKOFF_MS

    def _proposals(self) -> _Proposals:
        """What is to be sent. A proposal is dropped if the controller has decided since."""
        proposals = []
        for partition in list(self._proposing):
            if partition.pending_isr is None:
                del self._proposing[partition]
            else:
                proposals.append((partition, partition.pending_isr))
        return proposals

    def _request(self, proposals: _Proposals) -> AlterPartitionRequest:
        topics: dict[bytes, list[AlterPartitionRequest.PartitionData]] = {}
        for partition, proposal in proposals:
            topics.setdefault(partition.topic_id or NO_TOPIC_ID, []).append(
                AlterPartitionRequest.PartitionData(
                    partition_index=partition.index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionRequest.BrokerState(
                            broker_id=member, broker_epoch=self._epoch_of(partition, member)
                        )
                        for member in proposal.isr
                    ],
                    leader_recovery_state=RECOVERING if proposal.recovering else RECOVERED,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=[
                AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )

    def _epoch_of(self, partition: Partition, member: int) -> int:
        return self._broker_epoch() if member == self._node_id else self._proposing[partition].get(member, -1)

    def _take(
        self, proposals: _Proposals, request: AlterPartitionRequest, response: AlterPartitionResponse | None
    ) -> bool:
        """Act on the answer. False: something must be sent again."""
        if response is None or response.error_code:
            if response is not None:
                logger.debug("AlterPartition failed, trying again: %s", ErrorCode.of(response.error_code).name)
            return False
        members = {
            (topic.topic_id, partition.partition_index): partition.new_isr_with_epochs
            for topic in request.topics
            for partition in topic.partitions
        }
        answers = {
            (topic.topic_id, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        is_done = True
        for partition, proposal in proposals:
            if partition.pending_isr is not proposal:
                continue  # overtaken by the controller's word; it may have proposed something else since
            key = (partition.topic_id or NO_TOPIC_ID, partition.index)
            answer = answers.get(key)
            error = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else ErrorCode.of(answer.error_code)
            if answer is not None and not error:
                for member in members[key]:
                    self._on_confirmed(member.broker_id, member.broker_epoch)
                partition.isr_confirmed(
                    LeaderAndIsr(answer.leader_id, answer.leader_epoch, tuple(answer.isr), answer.partition_epoch)
                )
            elif error in _REFUSED:
                # A replica that lives and cannot write is proposed again and again. The controller has said why.
                level = logging.DEBUG if error is ErrorCode.INELIGIBLE_REPLICA else logging.INFO
                logger.log(
                    level, "%r: the controller refused the ISR %s: %s", partition, list(proposal.isr), error.name
                )
                partition.isr_refused()
            elif error in _OVERTAKEN:
                logger.info(
                    "%r: the ISR %s is overtaken, waiting for LeaderAndIsr: %s",
                    partition,
                    list(proposal.isr),
                    error.name,
                )
            else:
                is_done = False
                continue
            self._proposing.pop(partition, None)
        return is_done
