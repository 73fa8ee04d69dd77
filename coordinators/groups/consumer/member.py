"""A member of a consumer group: what it has said of itself, and what it has been given. Values, never changed."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.coordinators.groups.consumer.states import LEAVE_EPOCH, MemberState
from barnabas.protocol.named_tuple import NamedTuple

# By topic id: the partitions.
Partitions = Mapping[bytes, frozenset[int]]
# By topic id and partition: the member epoch in which the partition was assigned to the member (KIP-1251).
Assigned = Mapping[bytes, Mapping[int, int]]

NOTHING: Partitions = {}
NOTHING_ASSIGNED: Assigned = {}


class ClassicProtocols(NamedTuple):
    """What a member of the classic protocol in a consumer group supports: name and metadata of each protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Subscription(NamedTuple):
    """What a member has said of itself. `topic_names` are sorted; `topic_regex` is empty if it has none."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None  # None: it speaks the consumer protocol

    def reads_as(self, other: Subscription) -> bool:
        """Whether both mean the same topics in the same words."""
        return (self.topic_names, self.topic_regex) == (other.topic_names, other.topic_regex)


class CurrentAssignment(NamedTuple):
    """What a member has been given, and what it must give up."""

    epoch: int = 0
    previous_epoch: int = LEAVE_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Assigned = NOTHING_ASSIGNED
    revoking: Assigned = NOTHING_ASSIGNED

    def is_at(self, target_epoch: int) -> bool:
        """Whether the member has reached the target assignment of this epoch."""
        return self.epoch == target_epoch and self.state is MemberState.STABLE


class ConsumerMember(NamedTuple):
    member_id: str
    subscription: Subscription = Subscription()
    current: CurrentAssignment = CurrentAssignment()

    @property
    def epoch(self) -> int:
        """The epoch that the member has reached; -2: a static member that has left for a while."""
        return self.current.epoch

    @property
    def group_instance_id(self) -> str | None:
        """Its group.instance.id, if it is static."""
        return self.subscription.instance_id

    @property
    def client_id(self) -> str:
        return self.subscription.client_id

    @property
    def client_host(self) -> str:
        """The address of its client, with a slash before it."""
        return self.subscription.client_host

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.subscription.classic is not None


def same_partitions(one: Assigned, other: Assigned) -> bool:
    """Whether these are the same partitions, whenever they were assigned."""
    return one.keys() == other.keys() and all(one[topic_id].keys() == other[topic_id].keys() for topic_id in one)


def count(assigned: Assigned | Partitions) -> int:
    """How many partitions these are."""
    return sum(map(len, assigned.values()))
