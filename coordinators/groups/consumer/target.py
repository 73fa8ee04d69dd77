"""The target assignment of a consumer group: who should have which partitions in the newest epoch."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.coordinators.groups.consumer.assignors import ASSIGNORS, Assignable, AssignableMember
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.group import ConsumerGroup, topics_meant
from barnabas.coordinators.groups.consumer.member import NOTHING, ConsumerMember, Partitions, Subscription
from barnabas.coordinators.groups.consumer.records import Encoded, Kind, Record, ResolvedRegex, TargetEpoch, encoded
from barnabas.coordinators.groups.consumer.topics import NO_TOPIC_ID, Topics
from barnabas.protocol.java_hash import in_java_order_by_pieces, java_hash_code, java_hash_of_uuid
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.turns import Pieces, at_once

AT_ONCE_MAX = 2_000  # members, topics that they read, and partitions: more are assigned in pieces


class Question(NamedTuple):
    """Who should have what in this epoch? All that the answer depends on, as it was when the question came up.

    `members` stand in the order in which they are assigned to.
    """

    epoch: int
    assignor: str
    members: list[ConsumerMember]
    targets: Mapping[str, Partitions]
    regexes: Mapping[str, ResolvedRegex]
    is_homogeneous: bool


def ask(group: ConsumerGroup, default_assignor: str, named: str | None, newcomer: str | None) -> Question:
    """The question of the group's epoch. `named`: the assignor that the member names that asks; `newcomer`: the
    member, if it joins with this request.
    """
    return Question(
        group.epoch,
        group.preferred_assignor(default_assignor, named),
        group.in_order(newcomer),
        dict(group.targets),
        dict(group.regexes),
        group.is_homogeneous,
    )


def is_long(group: ConsumerGroup, topics: Topics, at_once_max: int) -> bool:
    """Whether it takes long to assign to this group."""
    left = at_once_max - len(group.members) - group.subscription_count()
    if left < 0:
        return True
    return sum(map(topics.partition_count, group.subscribed_topics())) > left


def answer(question: Question, topics: Topics) -> Pieces[dict[str, Partitions]]:
    """What each member should have."""
    counts: dict[bytes, int] = {}
    known: dict[frozenset[str], tuple[bytes, ...]] = {}  # most members read the same
    members = []
    for member in question.members:
        names = topics_meant(member.subscription, question.regexes)
        topic_ids = known.get(names)
        if topic_ids is None:
            found = []
            for name in (yield from _in_order(member.subscription, question.regexes)):
                topic_id = topics.topic_id(name)
                if topic_id != NO_TOPIC_ID:
                    found.append(topic_id)
                    counts[topic_id] = topics.partition_count(name)
            topic_ids = known[names] = tuple(found)
        target = question.targets.get(member.member_id, NOTHING)
        if len(target) > 1:
            # The topics as Kafka's hash table has them: the first of them are kept by whom has too much.
            order = yield from in_java_order_by_pieces(target, java_hash_of_uuid)
            target = {topic_id: target[topic_id] for topic_id in order}
        members.append(AssignableMember(member.member_id, member.subscription.instance_id, topic_ids, target))
        yield
    return (yield from ASSIGNORS[question.assignor](Assignable(members, counts, question.is_homogeneous)))


def _in_order(subscription: Subscription, regexes: Mapping[str, ResolvedRegex]) -> Pieces[list[str]]:
    """The topics that a subscription means, as Kafka's sets have them, where that counts.

    Kafka makes the sets of names and of what an expression means from sorted lists. Of both, the larger one is first.
    """
    resolved = regexes.get(subscription.topic_regex) if subscription.topic_regex else None
    by_name = yield from in_java_order_by_pieces(subscription.topic_names, java_hash_code, is_copy=True)
    if resolved is None:
        return by_name
    by_regex = yield from in_java_order_by_pieces(sorted(resolved.topics), java_hash_code, is_copy=True)
    return list(dict.fromkeys(by_name + by_regex if len(by_name) > len(by_regex) else by_regex + by_name))


def update(change: Change, question: Question, topics: Topics, now_ms: int) -> None:
    """Write the target assignment of the group's epoch: the members whose target is another one, then the epoch."""
    group = change.group
    targets = at_once(answer(question, topics))
    for member in group.in_order():
        target = targets.get(member.member_id, {})
        if group.targets.get(member.member_id) != target:
            change.add(Kind.TARGET_MEMBER, member.member_id, target)
    change.add(Kind.TARGET_EPOCH, "", TargetEpoch(group.epoch, now_ms))


# ---- large groups ----


def answer_encoded(group_id: str, question: Question, topics: Topics) -> Pieces[list[tuple[Record, Encoded]]]:
    """The members whose target is another one now."""
    changed = []
    for member_id, target in (yield from answer(question, topics)).items():
        if question.targets.get(member_id) != target:
            record = Record(Kind.TARGET_MEMBER, member_id, target)
            changed.append((record, encoded(group_id, record)))
        yield
    return changed


def holds(group: ConsumerGroup, question: Question) -> bool:
    """Whether the answer still says something. What is older than the group's epoch does, as after an assignment.

    It does not when the group has an assignment of this epoch or a later one, or if a target went to another member
    meanwhile, one that is in the place of a static member.
    """
    return question.epoch > group.assignment_epoch and group.targets.keys() <= question.targets.keys()


def update_encoded(change: Change, question: Question, changed: list[tuple[Record, Encoded]], now_ms: int) -> None:
    """Write a target assignment that is ready: of the members that are still there."""
    members = change.group.members
    change.add_encoded([each for each in changed if each[0].name in members])
    change.add(Kind.TARGET_EPOCH, "", TargetEpoch(question.epoch, now_ms))
