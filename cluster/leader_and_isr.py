"""What the controller has decided about one partition: its leader and its in-sync replicas, with their epochs."""

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.coordination.payloads import PartitionState

NO_LEADER = -1
LEADER_DURING_DELETE = -2  # only in messages: the partition is being deleted
EPOCH_DURING_DELETE = -2


class LeaderAndIsr(NamedTuple):
    """The content of a partition's state node. `partition_epoch` is the version of that node."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int = 0
    controller_epoch: int = 0
    recovering: bool = False  # LeaderRecoveryState, KIP-704: elected from outside the ISR, not confirmed yet

    def changed(self, leader: int, isr: Sequence[int], *, recovering: bool = False) -> "LeaderAndIsr":
        """The next state by the controller, one leader epoch later. Its node version is known when it is written."""
        return LeaderAndIsr(
            leader, self.leader_epoch + 1, tuple(isr), self.partition_epoch, self.controller_epoch, recovering
        )

    def encode(self) -> bytes:
        """The data of the state node."""
        return PartitionState(self.leader, self.leader_epoch, self.isr, self.controller_epoch, self.recovering).encode()

    @classmethod
    def decode(cls, data: bytes, version: int) -> "LeaderAndIsr":
        """Decode the data of the state node; `version` is the version of the node."""
        node = PartitionState.decode(data)
        return cls(node.leader, node.leader_epoch, node.isr, version, node.controller_epoch, node.recovering)

    def at_version(self, partition_epoch: int) -> "LeaderAndIsr":
        """The same, as the node says it at another version."""
        return self._replace(partition_epoch=partition_epoch)

    def by_controller(self, controller_epoch: int) -> "LeaderAndIsr":
        """The same, said by the controller of an epoch."""
        return self._replace(controller_epoch=controller_epoch)
