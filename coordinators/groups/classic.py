"""The classic group protocol: answers to JoinGroup, SyncGroup, Heartbeat, LeaveGroup and commits.

This module only decides, over the states of rebalance.py. A request that must wait is answered by a `Pending`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import group_error
from barnabas.coordinators.groups import log_lines
from barnabas.coordinators.groups.effects import Effects
from barnabas.coordinators.groups.events import Kind, cut
from barnabas.coordinators.groups.log_lines import listed, who
from barnabas.coordinators.groups.members import NEVER, Drain, Member, Members, Supported, join_error
from barnabas.coordinators.groups.rebalance import Rebalance
from barnabas.coordinators.groups.records import subscribed_topics
from barnabas.coordinators.groups.states import State
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Timer

if TYPE_CHECKING:
    from barnabas.protocol.messages import (
        DescribeGroupsResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )
    from barnabas.protocol.records import GroupMetadataValue

logger = logging.getLogger("barnabas.groups")

NONE: Final = ErrorCode.NONE
COMPLETING_REBALANCE: Final = State.COMPLETING_REBALANCE
DEAD: Final = State.DEAD
EMPTY: Final = State.EMPTY
PREPARING_REBALANCE: Final = State.PREPARING_REBALANCE
STABLE: Final = State.STABLE
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000  # until its first join ends, the member has no id for heartbeats


class ClassicGroup:
    """One group of the classic protocol: its table of members, and the rebalance that takes them on."""

    __slots__ = ("_config", "group_id", "members", "rebalance", "timer", "timer_ms")

    def __init__(self, group_id: str, config: BrokerConfig, now_ms: int) -> None:
        self.group_id = group_id
        self.members = Members()
        self.rebalance = Rebalance(group_id, self.members, config, now_ms)
        self.timer: Timer | None = None  # the shard's timer for this group, and when it goes off
        self.timer_ms = NEVER
        self._config = config

    @property
    def state(self) -> State:
        return self.rebalance.state

    @property
    def generation(self) -> int:
        """How many join phases have ended."""
        return self.rebalance.generation

    # ---- storing and describing ----

    @classmethod
    def restore(
        cls, group_id: str, config: BrokerConfig, metadata: GroupMetadataValue, supported: Supported | None = None
    ) -> ClassicGroup:
        """The group of a stored record. `start_sessions` starts its session timers later.

        `supported`: the protocols of each member, where they are known. The record has one.
        """
        timestamp = metadata.current_state_timestamp
        group = cls(group_id, config, timestamp)
        group.rebalance.restore(metadata)
        for stored in metadata.members:
            protocols = [(metadata.protocol or "", stored.subscription)]
            if supported is not None:
                protocols = list(supported[stored.member_id])
            timeout = stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                timeout,
                stored.session_timeout,
                protocols,
                stored.assignment,
            )
            group.members.add(member)
        group.members.leader = metadata.leader if metadata.leader is not None else group.members.leader
        group.rebalance.compute_subscribed_topics()
        return group

    @property
    def has_deadlines(self) -> bool:
        """Whether `start_sessions` has something to do. Most groups that are loaded have only committed."""
        return len(self.members) > 0 or self.rebalance.reset_generation >= 0

    def start_sessions(self, monotonic_ms: float) -> None:
        """Call after loading: every member has its full session timeout to send a request."""
        for member in self.members.by_id.values():
            self.rebalance.restart_session(member, monotonic_ms)
        if self.rebalance.reset_generation >= 0:
            self.rebalance.keep_fence(monotonic_ms)

    def describe(self) -> DescribeGroupsResponse.DescribedGroup:
        """The answer of DescribeGroups. The protocol and the members' metadata are shown only while Stable."""
        stable = self.rebalance.state is STABLE
        protocol_name = self.rebalance.protocol_name
        return messages.DescribeGroupsResponse.DescribedGroup(
            group_id=self.group_id,
            group_state=self.rebalance.state.value,
            protocol_type=self.rebalance.protocol_type or "",
            protocol_data=(protocol_name or "") if stable else "",
            members=[
                messages.DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(protocol_name) if stable else b"",
                    member_assignment=member.assignment,
                )
                for member in self.members.by_id.values()
            ],
        )

    # ---- JoinGroup ----

    def join(
        self,
        request: JoinGroupRequest,
        version: int,
        client_id: str,
        client_host: str,
        make_id: Callable[[str], str],
        effects: Effects,
    ) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        """Answer a JoinGroup at once, or park it until the join phase ends. `make_id(prefix)` makes a member id."""
        member_id = request.member_id
        if not self._has_room_for(member_id):
            self.members.remove(member_id, effects)
            return join_error(version, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        if self.rebalance.state is DEAD:
            return join_error(version, member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        protocols = [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols]
        if not self._supports(request.protocol_type, protocols):
            return join_error(version, member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        instance_id = request.group_instance_id
        rebalance_timeout_ms = request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
        if member_id == "":
            new_id = make_id(client_id if instance_id is None else instance_id)
            if instance_id is not None and instance_id in self.members.by_instance:
                return self._replace_static(
                    request, version, instance_id, new_id, protocols, rebalance_timeout_ms, effects
                )
            if instance_id is None and version >= 4:  # KIP-394: a lost answer leaves no dead member
                deadline = effects.monotonic_ms + request.session_timeout_ms
                self.members.pending[new_id] = deadline
                self.rebalance.wake_at(deadline)
                return join_error(version, new_id, ErrorCode.MEMBER_ID_REQUIRED)
            member_id = new_id
        elif member_id in self.members.pending:
            if instance_id is not None:  # ids are given out to dynamic members only (KIP-394); Kafka's error for it
                return join_error(version, member_id, ErrorCode.UNKNOWN_SERVER_ERROR)
            del self.members.pending[member_id]
        else:
            error = self.members.check(member_id, instance_id)
            if error:
                self.rebalance.note_unknown_joiner()
                return join_error(version, member_id, error)
            return self._rejoin(request, version, protocols, rebalance_timeout_ms, effects)
        member = Member(
            member_id, instance_id, client_id, client_host, rebalance_timeout_ms, request.session_timeout_ms, protocols
        )
        member.is_new = True
        if self.rebalance.state is PREPARING_REBALANCE and self.rebalance.generation == 0:
            self.rebalance.new_member_added = True
        if not self.members:
            self.rebalance.protocol_type = request.protocol_type
        if self.rebalance.reset_generation >= 0:
            self.rebalance.judge_positions(member, is_new=True)
        self.members.add(member)
        effects.note(Kind.JOINED, member, **_sent(member, request))
        waiter = self.members.park_join(member, version, effects)
        member.session_deadline_ms = effects.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS
        self.rebalance.wake_at(member.session_deadline_ms)
        self.rebalance.prepare_or_try_complete(_why(f"member {who(member)} joined", request.reason), effects)
        return waiter

    def _rejoin(
        self,
        request: JoinGroupRequest,
        version: int,
        protocols: list[tuple[str, bytes]],
        rebalance_timeout_ms: int,
        effects: Effects,
    ) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        member = self.members.by_id[request.member_id]
        if member.is_stale:
            return self._rejoin_stale(member, request, version, protocols, rebalance_timeout_ms, effects)
        is_leader = member.member_id == self.members.leader
        same = member.protocols == protocols
        if self.rebalance.state is COMPLETING_REBALANCE and same:
            return self.rebalance.join_response(member, version, with_members=is_leader)  # the first answer was lost
        if self.rebalance.state is STABLE and same and not is_leader:
            return self.rebalance.join_response(member, version, with_members=False)
        if self.rebalance.state is EMPTY:
            return join_error(version, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self.members.update(member, protocols, rebalance_timeout_ms, request.session_timeout_ms)
        waiter = self.members.park_join(member, version, effects)
        if self.rebalance.state is not PREPARING_REBALANCE:
            effects.note(Kind.REJOINED, member, is_leader=is_leader, changed=not same, **_sent(member, request))
        reason = f"{'the leader' if is_leader else 'member'} {who(member)} rejoined"
        self.rebalance.prepare_or_try_complete(_why(reason, request.reason), effects)
        return waiter

    def _rejoin_stale(
        self,
        member: Member,
        request: JoinGroupRequest,
        version: int,
        protocols: list[tuple[str, bytes]],
        rebalance_timeout_ms: int,
        effects: Effects,
    ) -> Pending[JoinGroupResponse]:
        """A member that a live reset has not reached yet joins again: never with the answer of the last join."""
        self.members.update(member, protocols, rebalance_timeout_ms, request.session_timeout_ms)
        self.rebalance.judge_positions(member, is_new=False)
        waiter = self.members.park_join(member, version, effects)
        self.rebalance.prepare_or_try_complete(
            _why(f"member {who(member)} rejoined after the live reset", request.reason), effects
        )
        return waiter

    def _replace_static(
        self,
        request: JoinGroupRequest,
        version: int,
        instance_id: str,
        new_id: str,
        protocols: list[tuple[str, bytes]],
        rebalance_timeout_ms: int,
        effects: Effects,
    ) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        """A static member came back under its instance id (KIP-345), and replaces its predecessor."""
        old_id = self.members.by_instance[instance_id]
        leader_before = self.members.leader
        member = self.members.rename(old_id, new_id, instance_id, effects)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self.members.update(member, protocols, rebalance_timeout_ms, request.session_timeout_ms)
        if self.rebalance.reset_generation >= 0:
            self.rebalance.judge_positions(member, is_new=True)
        waiter = self.members.park_join(member, version, effects)
        effects.note(Kind.JOINED, member, replaces=cut(old_id), **_sent(member, request))
        self.rebalance.restart_session(member, effects.monotonic_ms)
        if (
            self.rebalance.state is STABLE
            and not member.is_stale
            and self.rebalance.protocol_name == self.members.select_protocol()
        ):

            def stored(error: ErrorCode, effects: Effects) -> None:
                if member.awaiting_join is not waiter or self.members.by_id.get(new_id) is not member:
                    return  # already answered: the member joined again or was replaced, or the join phase ended
                self.members.unpark_join(member)
                if error:
                    text = "group %s: static member %s could not be stored: %s"
                    logger.log(self.rebalance.log_level(logging.WARNING), text, self.group_id, new_id, error.name)
                    self.members.update(member, *before)
                    self.members.rename(new_id, old_id, instance_id, effects)
                    response = self.rebalance.join_response(member, version, with_members=False)
                    response.error_code = group_error(error)
                    response.member_id = ""
                    response.leader = leader_before or ""
                    if error is ErrorCode.REQUEST_TIMED_OUT:
                        # The record that timed out may still be committed, so this one must follow it.
                        effects.store(self.rebalance.record())
                else:
                    response = self.answer_returned(new_id, version, leader_before or "")
                self.rebalance.restart_session(member, effects.monotonic_ms)
                effects.reply_join(waiter, response)

            effects.store(self.rebalance.record(), stored)
        elif self.rebalance.state is PREPARING_REBALANCE:
            self.rebalance.try_complete_join(effects)
        else:
            self.rebalance.prepare(f"static member {who(member)} came back", effects)
        return waiter

    def answer_returned(self, member_id: str, version: int, leader_before: str) -> JoinGroupResponse:
        """What a static member is told that goes on in this generation. Who leads does not assign (KIP-814)."""
        is_leader = version >= 9 and self.members.leader == member_id
        response = self.rebalance.join_response(self.members.by_id[member_id], version, with_members=is_leader)
        response.skip_assignment = is_leader
        if version < 9:  # an old client that is told of another leader does not assign
            response.leader = leader_before
        return response

    def _has_room_for(self, member_id: str) -> bool:
        limit = self._config.group_max_size
        if self.rebalance.state is PREPARING_REBALANCE:
            member = self.members.by_id.get(member_id)
            return (member is not None and member.awaiting_join is not None) or self.members.joined_count < limit
        if self.rebalance.state in (COMPLETING_REBALANCE, STABLE):
            return member_id in self.members.by_id or len(self.members) < limit
        return True

    def _supports(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> bool:
        if self.rebalance.state is EMPTY:
            return protocol_type != "" and bool(protocols)
        return protocol_type == self.rebalance.protocol_type and self.members.supports(protocols)

    # ---- SyncGroup ----

    def sync(self, request: SyncGroupRequest, effects: Effects) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        """Answer a SyncGroup at once, or park it until the leader's assignment is committed."""
        error = self._check_sync(request)
        if error:
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.rebalance.note_unknown_joiner()
            return messages.SyncGroupResponse(error_code=error)
        member = self.members.by_id[request.member_id]
        self.members.pending_sync.discard(member.member_id)
        if not self.members.pending_sync:
            self.rebalance.sync_deadline_ms = NEVER
        if self.rebalance.state is STABLE:
            self.rebalance.restart_session(member, effects.monotonic_ms)
            answer = self.rebalance.sync_response(member)
            if member.is_stale:
                self.rebalance.rebalance_behind_stale(effects)
            return answer
        if member.awaiting_sync is not None:  # sent again over another connection: the first request gets an answer too
            effects.reply_sync(member, messages.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        waiter: Pending[SyncGroupResponse] = Pending()
        member.awaiting_sync = waiter
        if member.member_id == self.members.leader:
            given = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
            assignments = {member_id: given.get(member_id, b"") for member_id in self.members.by_id}
            generation = self.rebalance.generation

            def stored(error: ErrorCode, effects: Effects) -> None:
                if self.rebalance.state is not COMPLETING_REBALANCE or self.rebalance.generation != generation:
                    return  # a member joined or left meanwhile, so the parked requests are answered already
                if error:
                    level = self.rebalance.log_level(logging.WARNING)
                    logger.log(level, "group %s: assignment could not be stored: %s", self.group_id, error.name)
                    self.rebalance.propagate_sync_error(group_error(error), effects)
                    self.rebalance.prepare_or_try_complete("the assignment could not be stored", effects)
                    return
                for member_id, assignment in assignments.items():
                    if member_id in self.members.by_id:
                        self.members.by_id[member_id].assignment = assignment
                self.rebalance.move_to(STABLE, effects)
                self.rebalance.note_stable(effects)
                if logger.isEnabledFor(logging.INFO):
                    got = log_lines.assignments(
                        self.members.by_id.values(), len(self.members), self.rebalance.protocol_type
                    )
                    logger.info("group %s: stable in generation %d: %s", self.group_id, generation, got)
                self.rebalance.answer_parked_syncs(effects)
                if self.rebalance.reset_generation >= 0:
                    self.rebalance.rebalance_behind_stale(effects)

            effects.store(self.rebalance.record(assignments), stored)
        return waiter

    def _check_sync(self, request: SyncGroupRequest) -> ErrorCode:
        if self.rebalance.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(request.member_id, request.group_instance_id)
        if error:
            return error
        if request.generation_id != self.rebalance.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if (request.protocol_type is not None and request.protocol_type != self.rebalance.protocol_type) or (
            request.protocol_name is not None
            and self.rebalance.protocol_name is not None
            and request.protocol_name != self.rebalance.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.rebalance.state is EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if self.rebalance.state is PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return NONE

    # ---- Heartbeat, LeaveGroup, commits ----

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, monotonic_ms: float) -> ErrorCode:
        """Move the session deadline of a member. Returns REBALANCE_IN_PROGRESS when the member must join again."""
        if self.rebalance.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member = self.members.by_id.get(member_id)
        if member is None or instance_id is not None:
            error = self.members.check(member_id, instance_id)
            if error:
                return error
        if generation != self.rebalance.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.rebalance.state is EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        assert member is not None
        member.session_deadline_ms = monotonic_ms + member.session_timeout_ms
        if self.rebalance.state is not PREPARING_REBALANCE:
            return NONE
        if member.drain is Drain.UNASSIGNED:
            member.drain = Drain.HEARD
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(self, leavers: Iterable[tuple[str, str | None, str | None]], effects: Effects) -> list[ErrorCode]:
        """Remove members, each named by (member id or "", instance id, reason). Returns an error for each."""
        errors = []
        left: list[str] = []
        for member_id, instance_id, reason in leavers:
            if member_id == "":
                known = None if instance_id is None else self.members.by_instance.get(instance_id)
                error = ErrorCode.UNKNOWN_MEMBER_ID if known is None else NONE
                member_id = known or ""
            elif member_id in self.members.pending:
                error = NONE
            else:
                error = self.members.check(member_id, instance_id)
            if not error:
                member = self.members.by_id.get(member_id)
                left.append(_why(f"member {member_id if member is None else who(member)} left", reason))
                if member is not None:
                    effects.note(Kind.LEFT, member, reason=cut(reason or ""))
                self.members.remove(member_id, effects)
            errors.append(error)
        if left:
            self.rebalance.after_removal(listed(left, len(left)), effects)
        return errors

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """NONE when such a commit is allowed, else the reason why not. Changes nothing."""
        state = self.rebalance.state
        if state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and state is EMPTY:
            # Just after a live reset, some clients that were members commit as if they had never been any.
            return NONE if self.rebalance.reset_generation < 0 else ErrorCode.UNKNOWN_MEMBER_ID
        if generation >= 0 or member_id != "" or instance_id is not None:
            error = self.members.check(member_id, instance_id)
            if error:
                return error
            if generation != self.rebalance.generation:
                return ErrorCode.ILLEGAL_GENERATION
            if self.rebalance.reset_generation >= 0 and self.members.by_id[member_id].is_stale:
                return ErrorCode.ILLEGAL_GENERATION
        elif not transactional and state is not EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if transactional:
            return NONE
        if state is COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return NONE

    def extend_session(self, member_id: str, monotonic_ms: float) -> None:
        """Move the session deadline after another request than a heartbeat. No effect when there is no such member."""
        member = self.members.by_id.get(member_id)
        if member is not None:
            member.session_deadline_ms = monotonic_ms + member.session_timeout_ms


def _sent(member: Member, request: JoinGroupRequest) -> dict[str, Any]:
    """What a JoinGroup says, for its event."""
    topics = subscribed_topics(member.protocols[0][1]) if request.protocol_type == "consumer" else None
    return {
        "reason": cut(request.reason or ""),
        "protocols": [cut(name) for name, _ in member.protocols[:10]],
        "topics": None if topics is None else sorted(topics)[:100],
    }


def _why(what: str, reason: str | None) -> str:
    """For the log: what happened, and the reason that the client sent (JoinGroup v8+), which may be any text."""
    return f"{what} ({reason[:255]!r})" if reason else what
