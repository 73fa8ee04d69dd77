"""What a reader is told of a group, whichever protocol its members speak."""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.coordinators.groups.consumer.states import GroupState
from barnabas.coordinators.groups.members import CONSUMER_PROTOCOL_TYPE
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.states import State
from barnabas.protocol.named_tuple import NamedTuple

CLASSIC = "classic"
CONSUMER = "consumer"
STATES = list(dict.fromkeys([*(state.value for state in State), *(state.value for state in GroupState)]))


class GroupView(NamedTuple):
    """A group. `kind`: CLASSIC or CONSUMER. `generation`: of a consumer group its epoch."""

    group_id: str
    kind: str
    state: str
    protocol_type: str
    protocol: str | None
    generation: int
    leader: str | None
    member_count: int


class MemberView(NamedTuple):
    """A member. `epoch`: of a classic member the generation of the group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int
    session_timeout_ms: int
    rebalance_timeout_ms: int


def view(shard: Shard, group_id: str) -> GroupView | None:
    """What a group is; None: no member was ever there."""
    group = shard.groups.get(group_id)
    if group is not None:
        rebalance = group.rebalance
        return GroupView(
            *(group_id, CLASSIC, group.state.value, rebalance.protocol_type or "", rebalance.protocol_name),
            *(group.generation, group.members.leader, len(group.members)),
        )
    consumer = shard.consumer.by_id.get(group_id)
    if consumer is None:
        return None
    assignor = consumer.preferred_assignor(shard.consumer.situation_of(group_id).settings.default_assignor)
    return GroupView(
        *(group_id, CONSUMER, consumer.state.value, CONSUMER_PROTOCOL_TYPE, assignor),
        *(consumer.epoch, None, len(consumer.members)),
    )


def member_views(shard: Shard, group_id: str) -> Iterator[MemberView]:
    group = shard.groups.get(group_id)
    if group is not None:
        for member in list(group.members.by_id.values()):
            yield MemberView(
                *(member.member_id, member.group_instance_id, member.client_id, member.client_host.removeprefix("/")),
                *(group.generation, member.session_timeout_ms, member.rebalance_timeout_ms),
            )
    consumer = shard.consumer.by_id.get(group_id)
    if consumer is not None:
        session_timeout_ms = shard.consumer.situation_of(group_id).settings.session_timeout_ms
        for each in list(consumer.members.values()):
            classic = each.subscription.classic
            yield MemberView(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host.removeprefix("/"),
                each.epoch,
                session_timeout_ms if classic is None else classic.session_timeout_ms,
                each.subscription.rebalance_timeout_ms,
            )


def group_ids(shard: Shard) -> list[str]:
    """The groups of a shard, of both kinds."""
    return [*shard.groups, *shard.consumer.by_id]
