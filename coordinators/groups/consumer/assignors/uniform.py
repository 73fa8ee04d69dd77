"""The `uniform` assignor: all members get equally many partitions, and keep as many as they can of what they had."""

from barnabas.coordinators.groups.consumer.assignors.assignable import Assignable, Partitions
from barnabas.coordinators.groups.consumer.assignors.heterogeneous import assign_heterogeneous
from barnabas.protocol.java_hash import in_java_order_by_pieces, java_hash_of_uuid
from barnabas.runtime.turns import Pieces


def assign_uniformly(group: Assignable) -> Pieces[dict[str, Partitions]]:
    """Equal subscriptions: counts differ by one at most. Others: as equal as the subscriptions allow."""
    return _assign_homogeneous(group) if group.is_homogeneous else assign_heterogeneous(group)


def _assign_homogeneous(group: Assignable) -> Pieces[dict[str, Partitions]]:
    """Each member keeps what it had up to its quota. The rest goes to those below theirs, in order.

    Free are first the partitions that nobody had, topic by topic, then those that were above a quota.
    """
    members = group.members
    topics = (yield from in_java_order_by_pieces(members[0].topics, java_hash_of_uuid, is_copy=True)) if members else []
    if not topics:
        return {member.member_id: {} for member in members}
    quota, with_one_more = divmod(sum(group.partition_counts[topic_id] for topic_id in topics), len(members))
    had = {topic_id: set[int]() for topic_id in topics}
    for member in members:
        for topic_id, partitions in member.target.items():
            if topic_id in had:
                had[topic_id] |= partitions
        yield
    free: list[tuple[bytes, int]] = []
    for topic_id in topics:
        of_topic = had[topic_id]
        every = range(group.partition_counts[topic_id])
        free += [(topic_id, partition) for partition in every if partition not in of_topic]
        yield
    targets: dict[str, dict[bytes, frozenset[int]]] = {}
    wanting: list[tuple[str, int]] = []
    for member in members:
        left = quota + (with_one_more > 0)
        kept: dict[bytes, frozenset[int]] = {}
        for topic_id, partitions in member.target.items():
            count = group.partition_counts.get(topic_id, 0) if topic_id in had else 0
            there = partitions if not partitions or max(partitions) < count else frozenset(range(count)) & partitions
            if len(there) > left:
                in_order = sorted(there)
                free += [(topic_id, partition) for partition in in_order[left:]]
                there = frozenset(in_order[:left])
            if there:
                kept[topic_id] = there
            left -= len(there)
        if left == 0 and with_one_more > 0:
            with_one_more -= 1
        else:
            wanting.append((member.member_id, quota - _count(kept)))
        targets[member.member_id] = kept
        yield
    yield from _give(free, wanting, with_one_more, targets)
    return dict(targets)


def _give(
    free: list[tuple[bytes, int]],
    wanting: list[tuple[str, int]],
    with_one_more: int,
    targets: dict[str, dict[bytes, frozenset[int]]],
) -> Pieces[None]:
    position = 0
    for number, (member_id, left) in enumerate(wanting):
        left += len(wanting) - number <= with_one_more
        given: dict[bytes, set[int]] = {}
        for topic_id, partition in free[position : position + left]:
            given.setdefault(topic_id, set()).add(partition)
        position += left
        kept = targets[member_id]
        # In Kafka's hash table a new topic comes before others in its bucket, which counts in the next assignment.
        target = {topic_id: frozenset(given[topic_id]) for topic_id in reversed(given) if topic_id not in kept}
        for topic_id, partitions in kept.items():
            target[topic_id] = partitions | given.get(topic_id, frozenset())
        targets[member_id] = target
        yield


def _count(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))
