"""ConsumerGroupHeartbeat: one request creates or changes a member, moves the group's epoch if that changes what is to
be assigned, computes the target assignment if there is none of this epoch and the last one is old enough, and takes the
member one step towards it.

Functions here change the group by records (change.py) and answer, or refuse before they have changed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from barnabas.coordinators.groups.consumer import target
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.member import (
    NOTHING_ASSIGNED,
    ConsumerMember,
    CurrentAssignment,
    Subscription,
    same_partitions,
)
from barnabas.coordinators.groups.consumer.reconciliation import Owned, merged, reconcile
from barnabas.coordinators.groups.consumer.records import Encoded, GroupEpoch, Kind, Record, ResolvedRegex, TargetEpoch
from barnabas.coordinators.groups.consumer.requests import Refusal
from barnabas.coordinators.groups.consumer.settings import GroupSettings
from barnabas.coordinators.groups.consumer.states import JOIN_EPOCH, STATIC_LEAVE_EPOCH, MemberState
from barnabas.coordinators.groups.consumer.topics import (
    Topics,
    changed_hash,
    metadata_hash,
    metadata_hash_by_pieces,
)
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.coordinators.groups.consumer.group import ConsumerGroup
    from barnabas.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

EPOCH_MAX = 2**31 - 1
ABANDON = "The member must abandon all its partitions and rejoin."


class Situation(NamedTuple):
    """What a decision depends on beside the group."""

    settings: GroupSettings
    topics: Topics
    monotonic_ms: float
    now_ms: int
    at_once_max: int = target.AT_ONCE_MAX  # so much is assigned at once


def heartbeat(
    change: Change, request: ConsumerGroupHeartbeatRequest, client: tuple[str, str], situation: Situation
) -> ConsumerGroupHeartbeatResponse | Refusal:
    """A member joins, or says that it lives. `client`: its id and its host. Its regular expression is valid."""
    group = change.group
    member_id = request.member_id
    refusal = check_member(group, request, situation.settings.size_max)
    if refusal is not None:
        return refusal
    owned = _owned(request)
    before = _member(change, request)
    subscription = _updated(before.subscription, request, client)
    is_new = member_id not in group.members
    bumps = subscribe(change, member_id, None if is_new else before.subscription, subscription)
    advance(change, bumps, situation, subscription.assignor, member_id if is_new else None)
    has_changed = not subscription.reads_as(before.subscription)
    member = step(change, member_id, owned, situation, has_changed=has_changed)
    group.timers.joins.pop(member_id, None)  # of the classic member that it may have been
    group.timers.syncs.pop(member_id, None)
    beat = situation.settings.heartbeat_interval_ms, situation.settings.session_timeout_ms
    response = stay(group, member, beat, situation.monotonic_ms)
    is_full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and owned is not None
    )
    if (
        request.member_epoch == JOIN_EPOCH
        or is_full
        or not same_partitions(before.current.assigned, member.current.assigned)
    ):
        make = messages.ConsumerGroupHeartbeatResponse
        response.assignment = make.Assignment(
            topic_partitions=[
                make.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in sorted(member.current.assigned.items())
            ]
        )
    return response


def is_calm(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, client: tuple[str, str], changes: int
) -> bool:
    """Whether the member only says that it lives, and nothing waits for it, as with most heartbeats.

    `heartbeat` would come to the same: its epoch is the newest, it is all that it has said of itself, and the topics
    (`changes`: of them) are those that the group has seen.
    """
    member = group.members.get(request.member_id)
    if member is None or request.member_epoch <= JOIN_EPOCH:
        return False
    of, current, instance_id = member.subscription, member.current, request.instance_id
    return (
        request.member_epoch == current.epoch == group.of_group.epoch == group.of_targets.epoch
        and current.state is MemberState.STABLE
        and request.topic_partitions is None
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and request.rebalance_timeout_ms == -1
        and (instance_id is None or group.by_instance.get(instance_id) == request.member_id)
        and of.classic is None
        and (of.client_id, of.client_host) == client
        and not of.topic_regex
        and group.seen_topics == changes
        and group.exists
    )


def stay(
    group: ConsumerGroup, member: ConsumerMember, beat: tuple[int, int], monotonic_ms: float
) -> ConsumerGroupHeartbeatResponse:
    """The member lives: its session begins anew. `beat`: heartbeat interval and session timeout."""
    interval_ms, timeout_ms = beat
    member_id, timers = member.member_id, group.timers
    timers.set(timers.sessions, member_id, monotonic_ms, timeout_ms)
    return messages.ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=member.current.epoch, heartbeat_interval_ms=interval_ms
    )


# ---- who it is ----


def check_member(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, size_max: int) -> Refusal | None:
    """Whether the group has no place for a member, or does not know it as who it says it is. Changes nothing."""
    member_id, epoch = request.member_id, request.member_epoch
    member = group.members.get(member_id)
    if member is None and len(group.members) >= size_max:
        message = f"The consumer group has reached its maximum capacity of {size_max} members."
        return Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
    if request.instance_id is not None:
        return _check_static_member(group, request, request.instance_id)
    if member is None:
        return None if epoch == JOIN_EPOCH else unknown_member(member_id, group.group_id)
    return check_epoch(member, epoch, _owned(request))


def _check_static_member(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, instance_id: str
) -> Refusal | None:
    member_id, epoch = request.member_id, request.member_epoch
    if epoch != JOIN_EPOCH:
        member = find_static(group, member_id, instance_id)
        return member if isinstance(member, Refusal) else check_epoch(member, epoch, _owned(request))
    found = group.static_member(instance_id)
    if found is None or found.epoch == STATIC_LEAVE_EPOCH or found.is_classic:
        return None
    message = (
        f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
        f"is owned by {found.member_id} member."
    )
    return Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, message)


def _member(change: Change, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """The member as it was before this request, which `check_member` has passed. A new one is not in the group yet."""
    group, member_id, instance_id = change.group, request.member_id, request.instance_id
    if instance_id is not None and request.member_epoch == JOIN_EPOCH:
        found = group.static_member(instance_id)
        if found is not None:
            replace(change, found, member_id)
    return group.members.get(member_id) or ConsumerMember(member_id)


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned:
    if request.topic_partitions is None:
        return None
    return merged((row.topic_id, row.partitions) for row in request.topic_partitions)


def replace(change: Change, old: ConsumerMember, member_id: str) -> None:
    """A static member is back, perhaps under another member id: it takes over what was kept for it."""
    group = change.group
    targets = group.target_of(old.member_id)
    remove(change, old.member_id)
    change.add(Kind.MEMBER, member_id, old.subscription)
    change.add(Kind.TARGET_MEMBER, member_id, targets)
    change.add(Kind.CURRENT_ASSIGNMENT, member_id, old.current._replace(epoch=JOIN_EPOCH))


def unknown_member(member_id: str, group_id: str) -> Refusal:
    return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def find_static(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember | Refusal:
    """The member of an instance id, if it has this member id."""
    found = group.static_member(instance_id)
    if found is None:
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if found.member_id != member_id:
        message = f"Static member {member_id} with instance id {instance_id} was fenced by member {found.member_id}."
        return Refusal(ErrorCode.FENCED_INSTANCE_ID, message)
    return found


def check_epoch(member: ConsumerMember, epoch: int, owned: Owned) -> Refusal | None:
    """Whether a member may go on. Its last epoch will do, too, if the answer that told the new one may be lost; and a
    member may join again at any time: it owns nothing then, which `requests.py` has checked."""
    known = member.current
    if epoch == JOIN_EPOCH:
        return None
    if epoch > known.epoch:
        relation = "greater"
    elif epoch < known.epoch and not (epoch == known.previous_epoch and _has_all(known, owned)):
        relation = "smaller"
    else:
        return None
    message = (
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({known.epoch}). {ABANDON}"
    )
    return Refusal(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _has_all(current: CurrentAssignment, owned: Owned) -> bool:
    return owned is not None and all(
        partition in current.assigned.get(topic_id, ())
        for topic_id, partitions in owned.items()
        for partition in partitions
    )


# ---- what it says ----


def _updated(before: Subscription, request: ConsumerGroupHeartbeatRequest, client: tuple[str, str]) -> Subscription:
    """What the member says of itself now. What it leaves out is as it was."""
    names = request.subscribed_topic_names
    return Subscription(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        *client,
        before.topic_names if names is None else tuple(sorted(set(names))),
        before.topic_regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        before.assignor if request.server_assignor is None else request.server_assignor,
        None,
    )


def subscribe(change: Change, member_id: str, before: Subscription | None, after: Subscription) -> bool:
    """Store what a member says of itself. Whether other topics are read than before.

    A new expression means nothing until it is resolved, which changes the group's epoch then.
    """
    if after == before:
        return False
    group = change.group
    old_regex = "" if before is None else before.topic_regex
    is_known = group.regex_subscribers(after.topic_regex) > 0 and after.topic_regex in group.regexes
    change.add(Kind.MEMBER, member_id, after)
    changed = after.topic_names != (() if before is None else before.topic_names)
    if after.topic_regex != old_regex:
        changed = changed or is_known or (not after.topic_regex and old_regex in group.regexes)
        drop_unread(change, {old_regex})
    return changed


def drop_unread(change: Change, regexes: set[str]) -> None:
    """Remove what these expressions mean, if no member has them any more."""
    group = change.group
    for regex in sorted(regexes):
        if regex in group.regexes and not group.regex_subscribers(regex):
            change.add(Kind.REGEX, regex, None)


# ---- what follows ----


def advance(
    change: Change, bumps: bool, situation: Situation, assignor: str | None = None, newcomer: str | None = None
) -> None:
    """Move the epoch of the group if its members or topics have changed, and assign anew if its epoch is new.

    Those who join soon after an assignment wait for the next one, with nothing, in the epoch of the last (KIP-1263).
    So do those who come while a large group is assigned to.
    `assignor`: what the member names that asks. `newcomer`: the member, if it joins.
    """
    group, topics = change.group, situation.topics
    now = group.of_group.metadata_hash
    if bumps or group.seen_topics != topics.changes:
        now = _topics_hash(group, topics)
    bumps = bumps or now != group.of_group.metadata_hash
    if bumps or not group.exists:
        reset_epoch = group.of_group.reset_epoch if group.is_fenced(situation.monotonic_ms) else -1
        change.add(Kind.GROUP, "", GroupEpoch(group.epoch + bumps, now, reset_epoch))
    if group.epoch > group.assignment_epoch and group.question is None and may_assign(group, situation):
        question = target.ask(group, situation.settings.default_assignor, assignor, newcomer)
        if target.is_long(group, topics, situation.at_once_max):
            change.question = question
        else:
            target.update(change, question, topics, situation.now_ms)


def may_assign(group: ConsumerGroup, situation: Situation) -> bool:
    """Whether the last assignment is long enough ago. A clock that went back does not make the group wait for it."""
    age_ms = situation.now_ms - group.of_targets.timestamp
    return not 0 <= age_ms < situation.settings.assignment_interval_ms


def step(change: Change, member_id: str, owned: Owned, situation: Situation, *, has_changed: bool) -> ConsumerMember:
    """Take a member one step towards its target; returns it as it is then.

    `has_changed`: whether it says now that it reads other topics than before. Else most heartbeats have nothing to do.
    """
    group, topics, monotonic_ms = change.group, situation.topics, situation.monotonic_ms
    member = group.members[member_id]
    if not has_changed and member.current.is_at(group.assignment_epoch):
        return member
    names = group.topics_of(member.subscription)  # of an expression that is not resolved yet, none

    def reads(topic_id: bytes) -> bool:
        return topics.topic_name(topic_id) in names  # a topic that is deleted has no name

    current = reconcile(
        member.current,
        group.assignment_epoch,
        group.target_of(member_id),
        owned,
        group.is_owned,
        reads,
        has_changed=has_changed,
    )
    if current != member.current:
        change.add(Kind.CURRENT_ASSIGNMENT, member_id, current)
        if current.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
            timeout_ms = member.subscription.rebalance_timeout_ms
            group.timers.set(group.timers.revocations, member_id, monotonic_ms, timeout_ms, current.epoch)
        else:
            group.timers.revocations.pop(member_id, None)
    return group.members[member_id]


# ---- the end ----


def leave(
    change: Change, request: ConsumerGroupHeartbeatRequest, remove_members: Callable[[Change, list[str]], None]
) -> ConsumerGroupHeartbeatResponse | Refusal:
    """A member leaves for good (epoch -1), or a static one for a while (-2): then its partitions wait for it."""
    group, member_id = change.group, request.member_id
    if request.instance_id is None:
        member = group.members.get(member_id) or unknown_member(member_id, group.group_id)
    else:
        member = find_static(group, member_id, request.instance_id)
    if isinstance(member, Refusal):
        return member
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        gone = member.current._replace(epoch=STATIC_LEAVE_EPOCH, revoking=NOTHING_ASSIGNED)
        change.add(Kind.CURRENT_ASSIGNMENT, member_id, gone)
        group.timers.revocations.pop(member_id, None)
    else:
        remove_members(change, [member_id])
    return messages.ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)


def fence(change: Change, member_ids: list[str], topics: Topics, *, is_reset: bool = False) -> None:
    """Members are gone: what they have is free. The next heartbeat of another member assigns it anew.

    In the last epoch, which only damage brings, nothing can be assigned any more. But members can go, so that the group
    can be deleted.
    """
    group = change.group
    regexes = {group.members[member_id].subscription.topic_regex for member_id in member_ids}
    for member_id in member_ids:
        remove(change, member_id)
    drop_unread(change, regexes)
    if group.epoch < EPOCH_MAX or is_reset:
        _next_epoch(change, topics, is_reset=is_reset)


def _next_epoch(change: Change, topics: Topics, *, is_reset: bool = False) -> None:
    group = change.group
    reset_epoch = group.epoch if is_reset else group.of_group.reset_epoch
    change.add(Kind.GROUP, "", GroupEpoch(group.epoch + 1, _topics_hash(group, topics), reset_epoch))


def _topics_hash(group: ConsumerGroup, topics: Topics) -> int:
    """The hash of what the group reads. Unless topics have changed, only those that came or went are hashed.

    If many may have changed, it is the hash that is known, and the group has not seen them until `resolve`.
    """
    names, known = group.subscribed_topics(), group.last_hash
    if known is None or known[0] != topics.changes:
        if group.exists and group.reads_many:
            return group.of_group.metadata_hash
        known = topics.changes, names, metadata_hash(topics, names)
    elif known[1] is not names:
        known = topics.changes, names, changed_hash(topics, known[2], names - known[1], known[1] - names)
    group.last_hash = known
    group.seen_topics = topics.changes
    return known[2]


def reset(change: Change, topics: Topics) -> None:
    """Throw out all members, because their positions are of before a live reset (live_reset.py).

    Whoever joins from now on is in a later epoch than everybody was, also if it must wait for an assignment.
    """
    group = change.group
    fence(change, list(group.members), topics, is_reset=True)
    change.add(Kind.TARGET_EPOCH, "", TargetEpoch(group.epoch))


def remove(change: Change, member_id: str) -> None:
    """Remove all that is stored of a member."""
    change.add(Kind.CURRENT_ASSIGNMENT, member_id, None)
    change.add(Kind.TARGET_MEMBER, member_id, None)
    change.add(Kind.MEMBER, member_id, None)
    change.group.timers.forget(member_id)


class Foreseen(NamedTuple):
    """The topics of all members as soon as expressions are resolved, and their hash: both take long when they are many.

    It is right while nothing changes of what members read, nor of topics.
    """

    reading_changes: int
    topic_changes: int
    topics: frozenset[str]
    topics_hash: int


def foresee(group: ConsumerGroup, resolved: Mapping[str, ResolvedRegex], topics: Topics) -> Pieces[Foreseen]:
    """What all members are going to read."""
    changes = group.reading_changes, topics.changes
    after = yield from group.topics_when(resolved)
    return Foreseen(*changes, after, (yield from metadata_hash_by_pieces(topics, after)))


def resolve(
    change: Change, resolved: Mapping[str, tuple[ResolvedRegex, Encoded]], foreseen: Foreseen, topics: Topics
) -> None:
    """Expressions of the group mean these topics now. If others than before are read, or topics have changed, the group
    has a new epoch."""
    group = change.group
    is_as_foreseen = (group.reading_changes, topics.changes) == foreseen[:2]
    bumps = False
    for regex, (value, with_bytes) in sorted(resolved.items()):
        known = group.regexes.get(regex)
        if not group.regex_subscribers(regex) or (known is not None and known.topics == value.topics):
            continue
        change.add_encoded([(Record(Kind.REGEX, regex, value), with_bytes)])
        bumps = bumps or known is not None or bool(value.topics)
    if is_as_foreseen:
        group.know_topics(foreseen.topics, foreseen.topic_changes, foreseen.topics_hash)
    # An expression that a member has given up may have been the last to mean a topic.
    if bumps or _topics_hash(group, topics) != group.of_group.metadata_hash:
        _next_epoch(change, topics)


def delete(change: Change) -> None:
    """Remove a group that has no members."""
    group = change.group
    assert not group.members
    change.add(Kind.TARGET_EPOCH, "", None)
    for regex in sorted(group.regexes):
        change.add(Kind.REGEX, regex, None)
    change.add(Kind.PARTITION_METADATA, "", None)
    change.add(Kind.GROUP, "", None)
