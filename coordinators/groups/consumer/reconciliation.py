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
    *,
    has_changed: bool,
) -> CurrentAssignment:
    """The next assignment of a member, or `current` itself if it cannot go on.

    `is_owned(topic_id, partition)`: whether some member has the partition, or is still giving it up. `has_changed`: the
    member has just said that it reads other topics. What it does not read any more it gives up at once, because its
    target may be an older one for a while.
    """
    if current.is_at(target_epoch) or (
        current.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(owned, current.revoking)
    ):
        return _without_unread(current, owned, reads) if has_changed else current
    target = {topic_id: partitions for topic_id, partitions in target.items() if reads(topic_id)}
    step = _next(current, target_epoch, target, owned, is_owned)
    assert step.state is current.state or step.state in MOVES[current.state]
    return step


def _without_unread(current: CurrentAssignment, owned: Owned, reads: Reads) -> CurrentAssignment:
    unread = [topic_id for topic_id in current.assigned if not reads(topic_id)]
    if not unread:
        return current
    kept = {topic_id: partitions for topic_id, partitions in current.assigned.items() if topic_id not in unread}
    revoking = dict(current.revoking)
    for topic_id in unread:
        revoking[topic_id] = {**revoking.get(topic_id, {}), **current.assigned[topic_id]}
    if not _still_owns(owned, revoking):  # it has given them up, and says so with the same request
        return current._replace(previous_epoch=current.epoch, assigned=kept)
    return CurrentAssignment(current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)


def _next(
    current: CurrentAssignment,
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
        return CurrentAssignment(current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    state = MemberState.STABLE
    for topic_id, wanted in target.items():
        has = kept.get(topic_id, {})
        if len(has) == len(wanted):
            continue
        free = {}
        own = current.revoking.get(topic_id, ())  # given up by now, or it would not be here
        for partition in sorted(wanted):
            if partition in has:
                continue
            if partition not in own and is_owned(topic_id, partition):
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
