"""Members of the classic protocol in a consumer group (KIP-848, "online migration"): what JoinGroup, SyncGroup,
Heartbeat and LeaveGroup mean for them.

The broker assigns to them as to all others. A join takes such a member one step on, as a heartbeat does others; it is
told to join again when there is a step to take. Decisions only: as in heartbeats.py, they change the group by records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.coordinators.groups.consumer import heartbeats
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.heartbeats import Situation
from barnabas.coordinators.groups.consumer.member import (
    Assigned,
    ClassicProtocols,
    ConsumerMember,
    CurrentAssignment,
    Subscription,
)
from barnabas.coordinators.groups.consumer.reconciliation import Owned, merged
from barnabas.coordinators.groups.consumer.records import Kind
from barnabas.coordinators.groups.consumer.settings import GroupSettings
from barnabas.coordinators.groups.consumer.states import MemberState
from barnabas.coordinators.groups.consumer.topics import NO_TOPIC_ID, Topics
from barnabas.coordinators.groups.members import CONSUMER_PROTOCOL_TYPE
from barnabas.coordinators.groups.records import read_subscription
from barnabas.protocol import messages
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.protocol.messages import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse

ASSIGNMENT_VERSION_MAX = 3
NO_MIGRATION = "disabled"  # group.consumer.migration.policy: while it has members, a group is of one protocol


def assignment_bytes(assigned: Assigned, topics: Topics, metadata: bytes) -> bytes:
    """What a classic member is assigned, in the version in which it has sent its `metadata`."""
    make = stored.ConsumerProtocolAssignment
    rows = []
    for topic_id in sorted(assigned):
        name = topics.topic_name(topic_id)
        if name is not None and assigned[topic_id]:
            rows.append(make.TopicPartition(topic=name, partitions=sorted(assigned[topic_id])))
    version = min(max(int.from_bytes(metadata[:2], "big", signed=True), 0), ASSIGNMENT_VERSION_MAX)
    return stored.encode_versioned(make(assigned_partitions=rows), version)


def supports(group: ConsumerGroup, protocol_type: str, names: list[str]) -> bool:
    """Whether a classic member may join: it is a consumer, and all classic members support one of its protocols."""
    classic = [of.subscription.classic for of in group.members.values() if of.subscription.classic is not None]
    return protocol_type == CONSUMER_PROTOCOL_TYPE and any(
        all(name in dict(each.protocols) for each in classic) for name in names
    )


def check_join(group: ConsumerGroup, request: JoinGroupRequest, settings: GroupSettings) -> ErrorCode:
    """Whether the group has no place for such a member. A client hears this before it gets a member id."""
    if not may_join(settings):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if len(group.members) >= settings.size_max and request.member_id not in group.members:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not supports(group, request.protocol_type, [protocol.name for protocol in request.protocols]):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def may_join(settings: GroupSettings) -> bool:
    """Whether classic members may join a consumer group that has members."""
    return settings.migration_policy.lower() != NO_MIGRATION


def join(
    change: Change, request: JoinGroupRequest, member_id: str, client: tuple[str, str], situation: Situation
) -> JoinGroupResponse | ErrorCode:
    """A classic member joins, or joins again, which `check_join` allows. `member_id`: its own, or a new one."""
    group = change.group
    protocols = [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols]
    said = read_subscription(protocols[0][1])
    if said is None:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    error = _take_place(change, request, member_id)
    if error:
        return error
    known = group.members.get(member_id)
    before = None if known is None else known.subscription
    instance_id = request.group_instance_id
    subscription = Subscription(
        instance_id if instance_id is not None or before is None else before.instance_id,
        said.rack_id or (None if before is None else before.rack_id),
        *client,
        tuple(sorted(set(said.topics))),
        "",
        request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms,
        None if before is None else before.assignor,
        ClassicProtocols(request.session_timeout_ms, tuple(protocols)),
    )
    bumps = heartbeats.subscribe(change, member_id, before, subscription)
    heartbeats.advance(change, bumps, situation, subscription.assignor, member_id if known is None else None)
    has_changed = before is None or not subscription.reads_as(before)
    if known is None and group.is_fenced(situation.monotonic_ms):
        member = _begin_with_nothing(change, member_id)
    else:
        member = heartbeats.step(change, member_id, _owned(said, situation.topics), situation, has_changed=has_changed)
    timers, now_ms = group.timers, situation.monotonic_ms
    timers.joins.pop(member_id, None)
    timers.set(timers.sessions, member_id, now_ms, request.session_timeout_ms)
    timers.set(timers.syncs, member_id, now_ms, subscription.rebalance_timeout_ms, member.epoch)
    return messages.JoinGroupResponse(
        member_id=member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocols[0][0],
        leader="",
        members=[],
    )


def _begin_with_nothing(change: Change, member_id: str) -> ConsumerMember:
    """A client that a live reset has met in the middle of a join may keep what it had, under a new member id: it is
    given nothing, so that it gives that up, and is told to join once more (live_reset.py)."""
    group = change.group
    waiting = CurrentAssignment(group.assignment_epoch, state=MemberState.UNRELEASED_PARTITIONS)
    change.add(Kind.CURRENT_ASSIGNMENT, member_id, waiting)
    return group.members[member_id]


def _take_place(change: Change, request: JoinGroupRequest, member_id: str) -> ErrorCode:
    """A static member that is back under another id takes the place of the one before it."""
    instance_id = request.group_instance_id
    if instance_id is None:
        return ErrorCode.NONE
    if request.member_id != "":
        known = find_any(change.group, member_id, instance_id)
        return known if isinstance(known, ErrorCode) else ErrorCode.NONE
    found = change.group.static_member(instance_id)
    if found is not None:
        heartbeats.replace(change, found, member_id)
    return ErrorCode.NONE


def _owned(said: stored.ConsumerProtocolSubscription, topics: Topics) -> Owned:
    """What the member keeps over the join. With an eager assignor it keeps nothing, and says nothing."""
    rows = ((topics.topic_id(row.topic), row.partitions) for row in said.owned_partitions)
    return merged(row for row in rows if row[0] != NO_TOPIC_ID)


def find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember | ErrorCode:
    """The classic member of this id, or the error for who asks."""
    member = find_any(group, member_id, instance_id)
    return member if isinstance(member, ErrorCode) or member.is_classic else ErrorCode.UNKNOWN_MEMBER_ID


def find_any(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember | ErrorCode:
    """The member of this id, whichever protocol it speaks, or the error for who asks."""
    member = group.members.get(member_id)
    if instance_id is not None:
        member = group.static_member(instance_id)
        if member is not None and member.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.UNKNOWN_MEMBER_ID if member is None else member


def sync(group: ConsumerGroup, request: SyncGroupRequest, situation: Situation) -> SyncGroupResponse:
    """Tells a classic member what it has; or that it must join again, because there is a newer assignment."""
    member = find(group, request.member_id, request.group_instance_id)
    if isinstance(member, ErrorCode):
        return messages.SyncGroupResponse(error_code=member)
    classic = member.subscription.classic
    assert classic is not None
    if request.generation_id != member.epoch:
        return messages.SyncGroupResponse(error_code=ErrorCode.ILLEGAL_GENERATION)
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
        request.protocol_name is not None and request.protocol_name not in dict(classic.protocols)
    ):
        return messages.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if member.epoch < group.assignment_epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        _wait_for_join(group, member, situation.monotonic_ms)
        return messages.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    group.timers.syncs.pop(member.member_id, None)
    group.timers.set(group.timers.sessions, member.member_id, situation.monotonic_ms, classic.session_timeout_ms)
    return messages.SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=assignment_bytes(member.current.assigned, situation.topics, classic.protocols[0][1]),
    )


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, situation: Situation
) -> ErrorCode:
    """A classic member lives. REBALANCE_IN_PROGRESS: it must join again, because there is a step to take."""
    member = find(group, member_id, instance_id)
    if isinstance(member, ErrorCode):
        return member
    if generation != member.epoch:
        return ErrorCode.ILLEGAL_GENERATION
    classic = member.subscription.classic
    assert classic is not None
    timers, monotonic_ms = group.timers, situation.monotonic_ms
    timers.set(timers.sessions, member_id, monotonic_ms, classic.session_timeout_ms)
    if not _has_a_step(group, member) and not _is_to_assign(group, situation):
        return ErrorCode.NONE
    _wait_for_join(group, member, monotonic_ms)
    return ErrorCode.REBALANCE_IN_PROGRESS


def _wait_for_join(group: ConsumerGroup, member: ConsumerMember, monotonic_ms: float) -> None:
    joins, member_id = group.timers.joins, member.member_id
    if member_id not in joins:
        group.timers.set(joins, member_id, monotonic_ms, member.subscription.rebalance_timeout_ms, member.epoch)


def _is_to_assign(group: ConsumerGroup, situation: Situation) -> bool:
    """Whether a classic member must bring about the next assignment by joining again: nobody else is left to do it.

    Otherwise, and where it could not join again, it waits, as with Kafka, until a member of the consumer protocol has
    asked.
    """
    return (
        may_join(situation.settings)
        and group.epoch > group.assignment_epoch
        and group.question is None
        and heartbeats.may_assign(group, situation)
        and all(member.is_classic for member in group.members.values())
    )


def _has_a_step(group: ConsumerGroup, member: ConsumerMember) -> bool:
    state = member.current.state
    if member.epoch < group.assignment_epoch or state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return state is MemberState.UNRELEASED_PARTITIONS and not any(
        partition not in member.current.assigned.get(topic_id, ()) and group.is_owned(topic_id, partition)
        for topic_id, partitions in group.target_of(member.member_id).items()
        for partition in partitions
    )
