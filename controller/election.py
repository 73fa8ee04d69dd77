"""Which replica leads a partition: pure policies over values. The caller writes and tells."""

from collections.abc import Collection, Sequence

from barnabas.cluster.leader_and_isr import NO_LEADER, LeaderAndIsr


def first_state(replicas: Sequence[int], live: Collection[int]) -> LeaderAndIsr | None:
    """State of a new partition: the first live replica leads, all live ones are in sync. None: none is live."""
    isr = tuple(replica for replica in replicas if replica in live)
    return LeaderAndIsr(isr[0], 0, isr) if isr else None


def elect_offline(
    replicas: Sequence[int], state: LeaderAndIsr, live: Collection[int], *, unclean: bool
) -> LeaderAndIsr | None:
    """A leader for a partition that has none: first live in-sync replica in assignment order.

    `unclean`: when no in-sync replica lives, the first live one, alone in the ISR (committed records may be lost).
    """
    for replica in replicas:
        if replica in live and replica in state.isr:
            return state.changed(
                replica, [member for member in state.isr if member in live], recovering=state.recovering
            )
    if unclean:
        for replica in replicas:
            if replica in live:
                return state.changed(replica, [replica], recovering=True)
    return None


def elect_reassigned(target: Sequence[int], state: LeaderAndIsr, live: Collection[int]) -> LeaderAndIsr | None:
    """A leader out of the target replicas of a reassignment."""
    for replica in target:
        if replica in live and replica in state.isr:
            return state.changed(replica, state.isr, recovering=state.recovering)
    return None


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


def without_replica(state: LeaderAndIsr, replica: int) -> LeaderAndIsr | None:
    """The state once `replica` is gone. None: nothing changes.

    The last member stays in the ISR (it alone has everything that was acknowledged), only the leadership ends.
    """
    if replica not in state.isr:
        return state.changed(NO_LEADER, state.isr, recovering=state.recovering) if state.leader == replica else None
    leader = NO_LEADER if state.leader == replica else state.leader
    if len(state.isr) == 1:
        return state.changed(NO_LEADER, state.isr, recovering=state.recovering) if leader != state.leader else None
    return state.changed(leader, [member for member in state.isr if member != replica], recovering=state.recovering)


def imbalance(leaders: Sequence[tuple[int, int]]) -> dict[int, float]:
    """For each broker, the share of the partitions that prefer it and that it does not lead.

    `leaders` is (preferred replica, leader) of each partition.
    """
    preferred_count: dict[int, int] = {}
    elsewhere_count: dict[int, int] = {}
    for preferred, leader in leaders:
        preferred_count[preferred] = preferred_count.get(preferred, 0) + 1
        if leader != preferred:
            elsewhere_count[preferred] = elsewhere_count.get(preferred, 0) + 1
    return {broker: elsewhere_count.get(broker, 0) / count for broker, count in preferred_count.items()}
