"""Which replica leads a partition: pure policies over values. The caller writes and tells."""

from collections.abc import Collection, Sequence
from typing import TypeVar

from barnabas.cluster.leader_and_isr import NO_LEADER, NO_LOG_END, LeaderAndIsr

Partition = TypeVar("Partition")


def first_state(replicas: Sequence[int], live: Collection[int]) -> LeaderAndIsr | None:
    """State of a new partition: the first live replica leads, all live ones are in sync. None: none is live."""
    isr = tuple(replica for replica in replicas if replica in live)
    return LeaderAndIsr(isr[0], 0, isr) if isr else None


def elect_offline(
    replicas: Sequence[int], state: LeaderAndIsr, live: Collection[int], *, unclean: bool
) -> LeaderAndIsr | None:
    """A leader for a partition that has none: first live in-sync replica in assignment order.

    `unclean`: when no in-sync replica lives, the first live one, alone in the ISR (committed records may be lost).
    Those that were in sync last have lost the least; if log ends are to decide, those with the most.
    """
    for replica in replicas:
        if replica in live and replica in state.isr:
            return state.changed(
                replica, [member for member in state.isr if member in live], recovering=state.recovering
            )
    if unclean:
        ends = state.log_ends
        for replica in sorted(
            replicas, key=lambda replica: (ends.get(replica, NO_LOG_END), replica in state.eligible), reverse=True
        ):
            if replica in live:
                return state.changed(replica, [replica], recovering=True)
    return None


def elect_able(state: LeaderAndIsr, candidates: Sequence[int], able: Collection[int]) -> LeaderAndIsr | None:
    """Where one that is in sync can write, those that cannot do not lead, and leave the ISR: nobody waits for them.

    `able` has the live replicas that can write. None: all can, or nobody, and then nothing is gained.
    """
    isr = [member for member in state.isr if member in able]
    if not isr or len(isr) == len(state.isr):
        return None
    leader = state.leader if state.leader in isr else next(each for each in candidates if each in isr)
    return state.changed(leader, isr, recovering=state.recovering)


def elect_preferred(replicas: Sequence[int], state: LeaderAndIsr, live: Collection[int]) -> LeaderAndIsr | None:
    """Back to the first replica of the assignment, if it lives and is in sync."""
    preferred = replicas[0]
    if preferred in live and preferred in state.isr:
        return state.changed(preferred, state.isr, recovering=state.recovering)
    return None


def elect_controlled_shutdown(
    replicas: Sequence[int], state: LeaderAndIsr, live: Collection[int], shutting_down: Collection[int]
) -> LeaderAndIsr | None:
    """A leader among the replicas that stay; those that shut down leave the ISR."""
    for replica in replicas:
        if replica in live and replica in state.isr and replica not in shutting_down:
            isr = [member for member in state.isr if member not in shutting_down]
            return state.changed(replica, isr, recovering=state.recovering)
    return None


def without_replicas(state: LeaderAndIsr, gone: Collection[int]) -> LeaderAndIsr | None:
    """The state once the replicas `gone` are away. None: nothing changes.

    The ISR never becomes empty, because each of its members has everything that was acknowledged, and no other replica
    has. If all are gone, the leader stays in it (or, if it had left, the first member): it has the most records.
    """
    if not state.isr:  # log ends will decide
        return None
    leader = NO_LEADER if state.leader in gone else state.leader
    isr = [member for member in state.isr if member not in gone]
    if not isr:
        isr = [state.leader if state.leader in state.isr else state.isr[0]]
    if leader == state.leader and len(isr) == len(state.isr):
        return None
    return state.changed(leader, isr, recovering=state.recovering)


def imbalanced_partitions(leaders: Sequence[tuple[Partition, int, int | None]], limit: float) -> list[Partition]:
    """Partitions that their preferred replica does not lead, of brokers for which their share is above the limit.

    `leaders` is (partition, preferred replica, leader) of each partition; None: it never had a leader.
    """
    preferred_count: dict[int, int] = {}
    elsewhere: dict[int, list[Partition]] = {}
    for partition, preferred, leader in leaders:
        preferred_count[preferred] = preferred_count.get(preferred, 0) + 1
        if leader not in (preferred, None):
            elsewhere.setdefault(preferred, []).append(partition)
    return [
        partition
        for broker, partitions in elsewhere.items()
        if len(partitions) / preferred_count[broker] > limit
        for partition in partitions
    ]
