"""The states of a consumer group and of its members, and the epochs with a meaning of their own (KIP-848)."""

from enum import Enum, IntEnum

JOIN_EPOCH = 0  # a member that joins, or joins again
LEAVE_EPOCH = -1  # it leaves
STATIC_LEAVE_EPOCH = -2  # a static member leaves for a while: its partitions wait for it


class GroupState(Enum):
    """The state of a consumer group, by Kafka's names. It follows from the epochs (`ConsumerGroup.state`)."""

    EMPTY = "Empty"  # no member
    ASSIGNING = "Assigning"  # the target assignment is of an older epoch than the group
    RECONCILING = "Reconciling"  # some member is not where its target is
    STABLE = "Stable"


class MemberState(IntEnum):
    """How far a member is on its way to its target, by Kafka's numbers."""

    STABLE = 0  # it has what the epoch it has reached gives it
    UNREVOKED_PARTITIONS = 1  # it must say that it has given up partitions; until then it keeps its epoch
    UNRELEASED_PARTITIONS = 2  # it is in its new epoch, and waits for partitions that others still own
    UNKNOWN = 127  # written by a later release


# Where a heartbeat may take a member from each state (reconciliation.py).
MOVES = {
    MemberState.STABLE: {MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS},
    MemberState.UNREVOKED_PARTITIONS: {MemberState.STABLE, MemberState.UNRELEASED_PARTITIONS},
    MemberState.UNRELEASED_PARTITIONS: {MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS},
    MemberState.UNKNOWN: {
        MemberState.STABLE,
        MemberState.UNREVOKED_PARTITIONS,
        MemberState.UNRELEASED_PARTITIONS,
    },
}
