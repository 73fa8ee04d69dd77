"""The target assignment of a consumer group: who should have which partitions in the newest epoch."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.coordinators.groups.consumer.assignors import ASSIGNORS, Assignable, AssignableMember
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.member import Partitions
from barnabas.coordinators.groups.consumer.records import Kind, TargetEpoch
from barnabas.coordinators.groups.consumer.topics import NO_TOPIC_ID, Topics
from barnabas.protocol.java_hash import in_java_order, java_hash_code, java_hash_of_uuid


def assign(
    group: ConsumerGroup, assignor: str, topics: Topics, newcomer: str | None = None
) -> Mapping[str, Partitions]:
    """What each member should have now."""
    counts: dict[bytes, int] = {}
    known: dict[frozenset[str], tuple[bytes, ...]] = {}  # most members read the same
    members = []
    for member in group.in_order(newcomer):
        names = group.topics_of(member.subscription)
        topic_ids = known.get(names)
        if topic_ids is None:
            found = []
            for name in in_java_order(names, java_hash_code):  # Kafka's order, where it counts
                topic_id = topics.topic_id(name)
                if topic_id != NO_TOPIC_ID:
                    found.append(topic_id)
                    counts[topic_id] = topics.partition_count(name)
            topic_ids = known[names] = tuple(found)
        members.append(
            AssignableMember(
                member.member_id,
                member.subscription.instance_id,
                topic_ids,
                _in_order(group.target_of(member.member_id)),
            )
        )
    return ASSIGNORS[assignor](Assignable(members, counts, group.is_homogeneous))


def _in_order(target: Partitions) -> Partitions:
    """A target with its topics as Kafka's hash table has them: the first of them are kept by whom has too much."""
    if len(target) < 2:
        return target
    return {topic_id: target[topic_id] for topic_id in in_java_order(target, java_hash_of_uuid)}


def update(change: Change, assignor: str, topics: Topics, now_ms: int, newcomer: str | None = None) -> None:
    """Write the target assignment of the group's epoch: the members whose target is another one, then the epoch."""
    group = change.group
    targets = assign(group, assignor, topics, newcomer)
    for member in group.in_order():
        target = targets.get(member.member_id, {})
        if group.targets.get(member.member_id) != target:
            change.add(Kind.TARGET_MEMBER, member.member_id, target)
    change.add(Kind.TARGET_EPOCH, "", TargetEpoch(group.epoch, now_ms))
