"""The `range` assignor: each member gets a run of partitions of each topic, the same run where counts are equal.

So records of topics with equal keys and equal counts of partitions meet at one member (co-partitioning).
"""

from barnabas.coordinators.groups.consumer.assignors.assignable import Assignable, AssignableMember, Partitions
from barnabas.runtime.turns import Pieces


def assign_ranges(group: Assignable) -> Pieces[dict[str, Partitions]]:
    """The first `count % members` members of a topic get one partition more. Static members come first."""
    members = sorted(group.members, key=_order)
    targets: dict[str, dict[bytes, frozenset[int]]] = {member.member_id: {} for member in group.members}
    readers: dict[bytes, list[str]] = {}
    for member in members:
        for topic_id in member.topics:
            readers.setdefault(topic_id, []).append(member.member_id)
        yield
    for topic_id, member_ids in readers.items():
        each, more = divmod(group.partition_counts[topic_id], len(member_ids))
        start = 0
        for number, member_id in enumerate(member_ids):
            end = start + each + (number < more)
            if end > start:
                targets[member_id][topic_id] = frozenset(range(start, end))
            start = end
        yield
    return dict(targets)


def _order(member: AssignableMember) -> tuple[bool, str]:
    return (True, member.member_id) if member.instance_id is None else (False, member.instance_id)
