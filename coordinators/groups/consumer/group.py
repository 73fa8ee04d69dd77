"""`ConsumerGroup`: one group of the consumer protocol (KIP-848) in memory. Its state is what its records say.

Decisions (heartbeats.py, removals.py) make records and change nothing. `apply` is the only method that changes the
state, at once when the records are decided, because the next heartbeat must see them; replies wait until the records
are committed. `apply` returns the opposite records, which take the change back if the log did not take it. Loading is
the same `apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from barnabas.coordinators.groups.consumer.assignors import ASSIGNORS
from barnabas.coordinators.groups.consumer.member import (
    NOTHING,
    Assigned,
    ConsumerMember,
    CurrentAssignment,
    Partitions,
    Subscription,
)
from barnabas.coordinators.groups.consumer.records import GroupEpoch, Kind, Record, ResolvedRegex, TargetEpoch
from barnabas.coordinators.groups.consumer.states import GroupState
from barnabas.coordinators.groups.consumer.timers import Timers
from barnabas.protocol.java_hash import in_java_order, in_timeline_order, java_hash_code
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.coordinators.groups.consumer.change import Change
    from barnabas.coordinators.groups.consumer.target import Question

LOOKED_AT_AT_ONCE_MAX = 1_000  # topics that members read: when there are more, changes of them are looked at in pieces

# Of a group that has no records of its own yet: nothing is assigned in its first epoch, as in Kafka since 4.3.
NO_GROUP = GroupEpoch(1, 0)
NO_TARGETS = TargetEpoch(1)


class ConsumerGroup:
    """One group. `exists`: its record is written, so it has to be removed by a tombstone."""

    __slots__ = (
        "_hash_codes",
        "_owners",
        "_peak",
        "_peak_before",
        "_regex_subscribers",
        "_subscribed",
        "_topic_subscribers",
        "by_instance",
        "exists",
        "fenced_until_ms",
        "group_id",
        "is_resolving",
        "last_hash",
        "members",
        "of_group",
        "of_targets",
        "question",
        "reading_changes",
        "regexes",
        "resolved_ms",
        "seen_names",
        "seen_topics",
        "targets",
        "timers",
        "unwritten",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.of_group = NO_GROUP
        self.exists = False
        self.of_targets = NO_TARGETS
        self.members: dict[str, ConsumerMember] = {}
        self.by_instance: dict[str, str] = {}  # group.instance.id -> member id
        self.targets: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.timers = Timers()
        self.unwritten: list[Change] = []  # decisions that are applied here and not committed yet, in order
        # Not stored. What was seen of the cluster's topics when the metadata hash was computed last, and when the
        # expressions were resolved last; whether they are being resolved now.
        self.seen_topics = -1
        self.seen_names = -1
        self.last_hash: tuple[int, frozenset[str], int] | None = None  # changes of the topics, names, their hash
        self.is_resolving = False
        self.question: Question | None = None  # of a target assignment, to which the answer takes long
        self.fenced_until_ms = float("inf")  # until when the last live reset counts, if there was one
        self.resolved_ms = float("-inf")
        self._hash_codes: dict[str, int] = {}  # of each member id, which may be long: Java's
        self._peak = self._peak_before = 0  # the most members that it has had, now and before the last one came
        self._owners: dict[bytes, dict[int, str]] = {}  # topic id -> partition -> member id, also while it gives it up
        self._topic_subscribers: dict[str, int] = {}
        self._regex_subscribers: dict[str, int] = {}
        self._subscribed: frozenset[str] | None = None  # the topics of all; None: they are looked for when asked
        self.reading_changes = 0  # grows whenever the topics of all may have changed

    # ---- questions ----

    @property
    def epoch(self) -> int:
        """The epoch of the group: it grows with each change of members, subscriptions or topics."""
        return self.of_group.epoch

    @property
    def assignment_epoch(self) -> int:
        """The epoch of the group for which its target assignment was computed."""
        return self.of_targets.epoch

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(member.current.is_at(self.assignment_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def is_fenced(self, monotonic_ms: float) -> bool:
        """Whether a live reset was lately: then there may be clients that have not heard of it (live_reset.py)."""
        return self.of_group.reset_epoch >= 0 and monotonic_ms < self.fenced_until_ms

    def is_owned(self, topic_id: bytes, partition: int) -> bool:
        """Whether some member has the partition, or is still giving it up."""
        return partition in self._owners.get(topic_id, ())

    def owner_of(self, topic_id: bytes, partition: int) -> str | None:
        """The member that has the partition, or is still giving it up."""
        return self._owners.get(topic_id, {}).get(partition)

    def target_of(self, member_id: str) -> Partitions:
        """What a member should have."""
        return self.targets.get(member_id, NOTHING)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.by_instance.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def known_as(self, member_id: str, instance_id: str | None) -> ConsumerMember | None:
        """The member in whose place this one is, or itself."""
        found = None if instance_id is None else self.static_member(instance_id)
        return found or self.members.get(member_id)

    def regex_subscribers(self, regex: str) -> int:
        """How many members read what this expression means."""
        return self._regex_subscribers.get(regex, 0)

    @property
    def has_regexes(self) -> bool:
        return bool(self._regex_subscribers)

    @property
    def subscribed_regexes(self) -> Iterable[str]:
        return self._regex_subscribers.keys()

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """The topics that a subscription means, by name and by expression. An expression may not be resolved yet."""
        return topics_meant(subscription, self.regexes)

    def subscribed_topics(self) -> frozenset[str]:
        """The topics of all members."""
        if self._subscribed is None:
            topics = set(self._topic_subscribers)
            for regex in self._regex_subscribers:
                resolved = self.regexes.get(regex)
                if resolved is not None:
                    topics |= resolved.topics
            self._subscribed = frozenset(topics)
        return self._subscribed

    @property
    def reads_many(self) -> bool:
        """Whether the members read so many topics that changes of them are looked at in pieces."""
        return len(self.subscribed_topics()) > LOOKED_AT_AT_ONCE_MAX

    def topics_when(self, resolved: Mapping[str, ResolvedRegex]) -> Pieces[frozenset[str]]:
        """The topics of all members as soon as these expressions mean this, and the others what they mean now."""
        topics = set(self._topic_subscribers)
        for regex in list(self._regex_subscribers):
            value = resolved.get(regex) or self.regexes.get(regex)
            if value is not None:
                topics |= value.topics
            yield
        return frozenset(topics)

    def know_topics(self, topics: frozenset[str], changes: int, topics_hash: int) -> None:
        """These are the topics of all members now, and their hash as of these changes: somebody has looked already."""
        self._subscribed = topics
        self.last_hash = changes, topics, topics_hash

    def subscription_count(self) -> int:
        """How many topics the members read, each counted once for each of its readers."""
        return sum(self._topic_subscribers.values()) + sum(
            count * len(self.regexes[regex].topics)
            for regex, count in self._regex_subscribers.items()
            if regex in self.regexes
        )

    def subscribes(self, topic: str) -> bool:
        return topic in self._topic_subscribers or any(
            regex in self.regexes and topic in self.regexes[regex].topics for regex in self._regex_subscribers
        )

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members have the same subscription, by Kafka's rule: it counts names and expressions."""
        everyone = len(self.members)
        counts = (*self._topic_subscribers.values(), *self._regex_subscribers.values())
        return len(self._regex_subscribers) <= 1 and all(count == everyone for count in counts)

    def preferred_assignor(self, default: str, asker: str | None = None) -> str:
        """The assignor that most members name; of several, the first of Kafka's hash table.

        That is the one of who asks, if nobody else names it. One that is not here does not count: it was a class that a
        Kafka had, which has led the group before.
        """
        votes: dict[str, int] = {}
        for member in self.members.values():
            named = member.subscription.assignor
            if named is not None and named in ASSIGNORS:
                votes[named] = votes.get(named, 0) + 1
        most = max(votes.values(), default=0)
        if asker is not None and votes.get(asker) == most == 1:
            return asker
        return next((name for name in in_java_order(votes, java_hash_code) if votes[name] == most), default)

    def in_stored_order(self, newcomer: str | None = None) -> list[str]:
        """The member ids in the order of the table in which Kafka keeps a group. `newcomer` is not in it yet."""
        peak = self._peak if newcomer is None else self._peak_before
        ids = in_timeline_order(self.members, self._hash_codes.__getitem__, peak)
        if newcomer is not None:
            ids.remove(newcomer)
            ids.append(newcomer)
        return ids

    def begin_upgraded(self) -> None:
        """It was a classic group until now. Until the request ends that has changed it, Kafka has put its members into
        the table once, and all others twice, which is what `in_timeline_order` reckons with.
        """
        self._peak = self._peak_before = max(len(self.members) - 1, 0)

    def in_order(self, newcomer: str | None = None) -> list[ConsumerMember]:
        """The members in the order in which Kafka's coordinator assigns to them: that of a hash table of their ids.

        `newcomer`: the member that joins with this request.
        """
        members = self.members
        ids = self.in_stored_order(newcomer)
        return [members[member_id] for member_id in in_java_order(ids, self._hash_codes.__getitem__)]

    # ---- changes ----

    def apply(self, records: Iterable[Record]) -> list[Record]:
        """Change the state. Returns the records that change it back."""
        opposite = [self._apply(record) for record in records]
        opposite.reverse()
        return opposite

    def _apply(self, record: Record) -> Record:
        """Make one change; returns its opposite."""
        kind, name, value = record
        before: Any
        if kind is Kind.CURRENT_ASSIGNMENT:
            assert value is None or isinstance(value, CurrentAssignment)
            before = self._set_current(name, value)
        elif kind is Kind.MEMBER:
            assert value is None or isinstance(value, Subscription)
            before = self._set_subscription(name, value)
        elif kind is Kind.TARGET_MEMBER:
            before = _set(self.targets, name, value)
        elif kind is Kind.TARGET_EPOCH:
            assert value is None or isinstance(value, TargetEpoch)
            before, self.of_targets = self.of_targets, value or NO_TARGETS
        elif kind is Kind.GROUP:
            assert value is None or isinstance(value, GroupEpoch)
            before = self.of_group if self.exists else None
            self.of_group = value or NO_GROUP
            self.exists = value is not None
        elif kind is Kind.REGEX:
            self._reading_changed()
            before = _set(self.regexes, name, value)
        else:
            before = None  # PARTITION_METADATA says nothing here
        return Record(kind, name, before)

    def _set_subscription(self, member_id: str, subscription: Subscription | None) -> Subscription | None:
        member = self.members.get(member_id)
        before = None if member is None else member.subscription
        if member is not None:
            self._count(member.subscription, -1)
            if self.by_instance.get(member.subscription.instance_id or "") == member_id:
                del self.by_instance[member.subscription.instance_id or ""]
        if subscription is None:
            if member is not None:
                self._own(member_id, member.current, ())
                del self.members[member_id]
                del self._hash_codes[member_id]
            return before
        self._count(subscription, 1)
        if subscription.instance_id is not None:
            self.by_instance[subscription.instance_id] = member_id
        if member is None:
            self.members[member_id] = ConsumerMember(member_id, subscription)
            self._hash_codes[member_id] = java_hash_code(member_id)
            self._peak_before, self._peak = self._peak, max(self._peak, len(self.members))
        else:
            self.members[member_id] = member._replace(subscription=subscription)
        return before

    def _count(self, subscription: Subscription, change: int) -> None:
        kinds = len(self._topic_subscribers), len(self._regex_subscribers)
        for name in subscription.topic_names:
            _add(self._topic_subscribers, name, change)
        if subscription.topic_regex:
            _add(self._regex_subscribers, subscription.topic_regex, change)
        if kinds != (len(self._topic_subscribers), len(self._regex_subscribers)):
            self._reading_changed()

    def _reading_changed(self) -> None:
        self._subscribed = None
        self.reading_changes += 1

    def _set_current(self, member_id: str, current: CurrentAssignment | None) -> CurrentAssignment | None:
        member = self.members.get(member_id)
        if member is None:
            if current is None:
                return None
            # A load: compaction has taken the member's first record, and a newer one follows.
            member = ConsumerMember(member_id)
            self._hash_codes[member_id] = java_hash_code(member_id)
            self._peak_before, self._peak = self._peak, max(self._peak, len(self.members))
        new = CurrentAssignment() if current is None else current
        self._own(member_id, member.current, (new.assigned, new.revoking))
        self.members[member_id] = member._replace(current=new)
        return member.current

    def _own(self, member_id: str, before: CurrentAssignment, after: Iterable[Assigned]) -> None:
        """Note which partitions a member has now."""
        for assigned in (before.assigned, before.revoking):
            for topic_id, partitions in assigned.items():
                owners = self._owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    del self._owners[topic_id]
        for assigned in after:
            for topic_id, partitions in assigned.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))


def topics_meant(subscription: Subscription, regexes: Mapping[str, ResolvedRegex]) -> frozenset[str]:
    """The topics that a subscription means, by name and by expression. An expression may not be resolved yet."""
    resolved = regexes.get(subscription.topic_regex) if subscription.topic_regex else None
    names = frozenset(subscription.topic_names)
    return names if resolved is None else names | resolved.topics


def _set(table: dict[str, Any], name: str, value: object) -> Any:
    """Set or remove an entry; returns the former one."""
    before = table.get(name)
    if value is not None:
        table[name] = value
    elif before is not None:
        del table[name]
    return before


def _add(table: dict[str, int], name: str, change: int) -> None:
    left = table.get(name, 0) + change
    if left:
        table[name] = left
    else:
        table.pop(name, None)
