"""What the controller has decided about one partition: its leader and its in-sync replicas, with their epochs."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from barnabas.cluster.tree.payloads import PartitionState
from barnabas.cluster.tree.port import Stat
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple

NO_LEADER = -1
LEADER_DURING_DELETE = -2  # only in messages: the partition is being deleted
EPOCH_DURING_DELETE = -2
RECOVERED, RECOVERING = 0, 1  # LeaderRecoveryState (KIP-704) in messages
# What a broker answers to LeaderAndIsr for a replica whose disk refuses writes. Kafka's controller ignores it.
CANNOT_WRITE = ErrorCode.LEADER_NOT_AVAILABLE


class LogEnd(NamedTuple):
    """Where a replica's log ends. The largest has the most, when nobody in sync has all (KIP-966 recovers so, too)."""

    is_newer: bool  # its broker knows that it has run since the copy was made that the tree is
    leader_epoch: int  # of the last records; -1: there are none
    offset: int


_NONE: Mapping[int, LogEnd] = MappingProxyType({})
NO_LOG_END = LogEnd(False, -1, -1)  # less than that of any log


class LeaderAndIsr(NamedTuple):
    """The content of a partition's state node. `partition_epoch` is the version of that node."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int = 0
    controller_epoch: int = 0
    recovering: bool = False  # LeaderRecoveryState, KIP-704: elected from outside the ISR, not confirmed yet
    eligible: tuple[int, ...] = ()  # who was in the ISR before only one was left in it; see `remembering`
    log_ends: Mapping[int, LogEnd] = _NONE  # not empty: they will decide; see `with_log_end`

    def changed(self, leader: int, isr: Sequence[int], *, recovering: bool = False) -> "LeaderAndIsr":
        """The next state by the controller, one leader epoch later. Its node version is known when it is written."""
        return LeaderAndIsr(
            leader, self.leader_epoch + 1, tuple(isr), self.partition_epoch, self.controller_epoch, recovering
        )

    def remembering(self, before: "LeaderAndIsr") -> "LeaderAndIsr":
        """This state, which follows on `before`, with its eligible replicas (KIP-966 has the same idea).

        While one replica alone is in sync, and min.insync.replicas is 2 or more, nothing is acknowledged with acks=all.
        So those that left the ISR last have everything that was, should the only member lose its disk. If that setting
        is lowered meanwhile, to go on with one replica, they have everything of before, and all else has one copy only.
        So no change of the setting touches them: they count when the disk is lost, and an empty disk has less.
        """
        if len(self.isr) > 1:
            eligible: tuple[int, ...] = ()
        elif len(before.isr) > 1 and set(self.isr) < set(before.isr):
            eligible = tuple(member for member in before.isr if member not in self.isr)
        else:
            eligible = before.eligible if self.isr == before.isr else ()
        return self._replace(eligible=eligible)

    def without_records_of(self, member: int) -> "LeaderAndIsr":
        """This state when an eligible replica has lost records, or may have (unclean shutdowns in KIP-966).

        A leader hears of it in a new leader epoch, because its proposals name the version of the node.
        """
        return self._replace(
            leader_epoch=self.leader_epoch if self.leader == NO_LEADER else self.leader_epoch + 1,
            eligible=tuple(each for each in self.eligible if each != member),
        )

    def with_log_end(self, member: int, end: LogEnd, replicas: Sequence[int]) -> "LeaderAndIsr":
        """This state when nobody who is in sync by the tree can be trusted, and a replica says where its log ends.

        The tree is an older copy than a replica's disk: what it says of leader and ISR was true once, and others may
        have been in sync since. Or those that were in sync, and those that could take their place, have lost records.
        So nobody is, until all replicas have said where their logs end. Those with the most are in sync then.
        """
        log_ends = {**self.log_ends, member: end}
        state = LeaderAndIsr(
            NO_LEADER,
            max(self.leader_epoch, *(each.leader_epoch for each in log_ends.values())) + 1,
            (),
            self.partition_epoch,
            self.controller_epoch,
            log_ends=log_ends,
        )
        if not log_ends.keys() >= set(replicas):
            return state
        most = max(log_ends[replica] for replica in replicas)
        return state._replace(isr=tuple(each for each in replicas if log_ends[each] == most), log_ends={})

    def encode(self) -> bytes:
        """The data of the state node."""
        return PartitionState(
            *(self.leader, self.leader_epoch, self.isr, self.controller_epoch, self.recovering),
            *(self.eligible, self.log_ends),
        ).encode()

    @classmethod
    def decode(cls, data: bytes, version: int) -> "LeaderAndIsr":
        """Decode the data of the state node; `version` is the version of the node."""
        node = PartitionState.decode(data)
        return cls(
            *(node.leader, node.leader_epoch, node.isr, version, node.controller_epoch, node.recovering),
            node.eligible,
            log_ends={member: LogEnd(*end) for member, end in node.log_ends.items()} if node.log_ends else _NONE,
        )

    @classmethod
    def of_node(cls, node: tuple[bytes, Stat] | None) -> "LeaderAndIsr | None":
        """What a state node says. None: there is none, or it cannot be read, and the controller says so in its log."""
        try:
            return None if node is None else cls.decode(node[0], node[1].version)
        except ValueError:
            return None

    def at_version(self, partition_epoch: int) -> "LeaderAndIsr":
        """The same, as the node says it at another version."""
        return self._replace(partition_epoch=partition_epoch)

    def by_controller(self, controller_epoch: int) -> "LeaderAndIsr":
        """The same, said by the controller of an epoch."""
        return self._replace(controller_epoch=controller_epoch)
