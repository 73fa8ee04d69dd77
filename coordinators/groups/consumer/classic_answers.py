"""Answers members of the classic protocol in consumer groups. The decisions are those of classic_members.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from barnabas.coordinators.append_errors import consumer_error
from barnabas.coordinators.groups.consumer import classic_members
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.heartbeats import Situation
from barnabas.coordinators.groups.events import OTHER_PROTOCOL, Kind, cut
from barnabas.coordinators.groups.log_lines import who
from barnabas.coordinators.groups.members import join_error
from barnabas.coordinators.groups.requests import Context, Refusals
from barnabas.coordinators.groups.shard import Shard
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.uuids import to_text
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env

if TYPE_CHECKING:
    from barnabas.protocol.messages import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger("barnabas.groups")
FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4

# Member id, instance id and reason of who leaves.
Leaver = tuple[str, str | None, str | None]


class ClassicAnswers:
    """Answers JoinGroup, SyncGroup, Heartbeat and LeaveGroup where the group is a consumer group."""

    def __init__(self, env: Env, situation_of: Callable[[str], Situation], refusals: Refusals) -> None:
        self._env = env
        self._situation_of = situation_of
        self._refusals = refusals

    def join(
        self, shard: Shard, group: ConsumerGroup, request: JoinGroupRequest, context: Context
    ) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        """JoinGroup: answered when what the answer says is committed; nobody waits for the other members."""
        version, member_id = context.api_version, request.member_id
        situation = self._situation_of(group.group_id)
        error = classic_members.check_join(group, request, situation.settings)
        if error:
            return self._refuse_join(error, request, context)
        if member_id == "":
            member_id = to_text(self._env.random_uuid())
            if request.group_instance_id is None and version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
                return join_error(version, member_id, ErrorCode.MEMBER_ID_REQUIRED)
        change = Change(group)
        before = group.known_as(member_id, request.group_instance_id)
        replaced = None if request.group_instance_id is None else group.static_member(request.group_instance_id)
        client = (context.client_id or "", context.client_host)
        outcome = classic_members.join(change, request, member_id, client, situation)
        if isinstance(outcome, ErrorCode):
            return self._refuse_join(outcome, request, context)
        member = group.members[member_id]
        if before is None or before.member_id != member_id:
            text = "group %s: member %s joined, by the classic protocol"
            logger.log(shard.consumer.log_level(), text, group.group_id, who(member))
        shard.consumer.note_joined(group.group_id, before, member, request.reason or "")
        if replaced is not None and not replaced.is_classic:
            outcome = shard.consumer.end_with_replacement(change, outcome, version)
        return shard.consumer.carry_out(
            change, outcome, lambda error: join_error(version, request.member_id, consumer_error(error))
        )

    def _refuse_join(self, error: ErrorCode, request: JoinGroupRequest, context: Context) -> JoinGroupResponse:
        self._refusals.log(context, error, "group %r, member %r", request.group_id, request.member_id)
        what = "join" if classic_members.may_join(self._situation_of(request.group_id).settings) else OTHER_PROTOCOL
        self._refusals.note(context, error, request.group_id, what, request.member_id)
        return join_error(context.api_version, "", error)

    def sync(
        self, shard: Shard, group: ConsumerGroup, request: SyncGroupRequest
    ) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        """SyncGroup: what the member has."""
        response = classic_members.sync(group, request, self._situation_of(group.group_id))
        return shard.consumer.carry_out(
            Change(group), response, lambda error: messages.SyncGroupResponse(error_code=consumer_error(error))
        )

    def heartbeat(self, shard: Shard, group: ConsumerGroup, request: messages.HeartbeatRequest) -> ErrorCode:
        """Heartbeat: whether the member must join again."""
        error = classic_members.heartbeat(
            group,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            self._situation_of(group.group_id),
        )
        shard.consumer.arm(group)
        return error

    def leave(
        self, shard: Shard, group: ConsumerGroup, leavers: Sequence[Leaver]
    ) -> list[ErrorCode] | Pending[list[ErrorCode]]:
        """LeaveGroup: the error of each. A static member may be named by its instance id alone.

        An administrator removes members of the consumer protocol in this way, too.
        """
        errors = []
        gone: dict[str, None] = {}
        for member_id, instance_id, reason in leavers:
            if member_id == "" and instance_id is not None:
                known = group.static_member(instance_id)
                member_id = "" if known is None else known.member_id
            member = classic_members.find_any(group, member_id, instance_id)
            errors.append(member if isinstance(member, ErrorCode) else ErrorCode.NONE)
            if isinstance(member, ErrorCode) or member.member_id in gone:
                continue
            logger.info("group %s: member %s left", group.group_id, who(member))
            shard.consumer.note(group.group_id, Kind.LEFT, member, reason=cut(reason or ""))
            gone[member.member_id] = None
        change = Change(group)
        if gone:
            shard.consumer.remove_members(change, list(gone))
        return shard.consumer.carry_out(change, errors, lambda error: [consumer_error(error)] * len(leavers))
