"""How a member gets from what it has to what it should have (KIP-848): one pure step, taken at each heartbeat.

A member first gives up what it must not have any more, and says so. Only then does it take the epoch of the target
assignment, with those partitions of its target that nobody else owns. It gets the others as they become free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from barnabas.coordinators.groups.consumer.member import Assigned, CurrentAssignment, Partitions
from barnabas.coordinators.groups.consumer.states import MOVES, MemberState

# What the member says that it owns, by topic id; None: it says nothing about that now.
Owned = Mapping[bytes, Iterable[int]] | None
IsOwned = Callable[[bytes, int], bool]
Reads = Callable[[bytes], bool]  # whether the member reads a topic, by its id


def merged(rows: Iterable[tuple[bytes, Iterable[int]]]) -> dict[bytes, set[int]]:
    """Partitions by topic id, of rows that a client made: a topic may be in several, and all of them count."""
    partitions_of: dict[bytes, set[int]] = {}
    for topic_id, partitions in rows:
        partitions_of.setdefault(topic_id, set()).update(partitions)
    return partitions_of


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Partitions,
    owned: Owned,
    is_owned: IsOwned,
    reads: Reads,
) -> CurrentAssignment:
    """The next assignment of a member, or `current` itself if it cannot go on.

    `is_owned(topic_id, partition)`: whether some member has the partition, or is still giving it up. What a member
    does not read any more, it gives up at once: its target may be an older one for a while.
    """
    if current.state is MemberState.UNREVOKED_PARTITIONS or current.is_at(target_epoch):
        current = _without_unread(current, reads)
    if current.is_at(target_epoch):
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(owned, current.revoking):
        return current
    # A member that has given up what it had to is one epoch on, also if it has to give up more then.
    epoch = min(current.epoch + (current.state is MemberState.UNREVOKED_PARTITIONS), target_epoch)
    target = {topic_id: partitions for topic_id, partitions in target.items() if reads(topic_id)}
    step = _next(current, epoch, target_epoch, target, owned, is_owned)
    assert step.state is current.state or step.state in MOVES[current.state]
    return step


def _without_unread(current: CurrentAssignment, reads: Reads) -> CurrentAssignment:
    unread = [topic_id for topic_id in current.assigned if not reads(topic_id)]
    if not unread:
        return current
    kept = {topic_id: partitions for topic_id, partitions in current.assigned.items() if topic_id not in unread}
    revoking = dict(current.revoking)
    for topic_id in unread:
        revoking[topic_id] = {**revoking.get(topic_id, {}), **current.assigned[topic_id]}
    return current._replace(state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)


def _next(
    current: CurrentAssignment,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Owned,
    is_owned: IsOwned,
) -> CurrentAssignment:
    kept: dict[bytes, Mapping[int, int]] = {}
    revoked: dict[bytes, Mapping[int, int]] = {}
    for topic_id, partitions in current.assigned.items():
        wanted = target.get(topic_id, frozenset())
        if partitions.keys() <= wanted:
            kept[topic_id] = partitions
            continue
        of_topic = {partition: epoch for partition, epoch in partitions.items() if partition in wanted}
        if of_topic:
            kept[topic_id] = of_topic
        revoked[topic_id] = {partition: epoch for partition, epoch in partitions.items() if partition not in wanted}
    if revoked and _still_owns(owned, revoked):
        return CurrentAssignment(
            epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoked
        )
    state = MemberState.STABLE
    for topic_id, wanted in target.items():
        has = kept.get(topic_id, {})
        if len(has) == len(wanted):
            continue
        free = {}
        for partition in sorted(wanted):
            if partition in has:
                continue
            if is_owned(topic_id, partition):
                state = MemberState.UNRELEASED_PARTITIONS
            else:
                free[partition] = target_epoch
        if free:
            kept[topic_id] = {**has, **free}
    step = CurrentAssignment(target_epoch, current.epoch, state, assigned=kept)
    return current if step == current else step


def _still_owns(owned: Owned, revoked: Assigned) -> bool:
    """Whether the member may still own some of these partitions. If it does not say, it may."""
    if owned is None:
        return True
    return any(
        partition in revoked.get(topic_id, ()) for topic_id, partitions in owned.items() for partition in partitions
    )
