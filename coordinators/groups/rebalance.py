"""How a group gets from one generation to the next: its states, the join phase, the sync phase, and its timeouts.

This module uses no clock, no log and no connection. A transition changes the group's memory at once, before its record
is written: members wait for each other and not for the disk, and a member that was lost in a restart joins again. The
other consequences go into `Effects`: records to append, calls when they are committed (only then are assignments sent),
and replies to parked requests. Times are deadlines in monotonic milliseconds. `on_time` must be called at `wake_ms`. A
heartbeat moves a deadline but not `wake_ms`, so `on_time` is often called too early; then it does nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.groups.effects import Effects
from barnabas.coordinators.groups.events import ASSIGNMENT_BYTES_MAX, ASSIGNMENTS_MAX, Kind, cut, identity
from barnabas.coordinators.groups.log_lines import listed, quoted, who
from barnabas.coordinators.groups.members import CONSUMER_PROTOCOL_TYPE, NEVER, Drain, Member, Members
from barnabas.coordinators.groups.records import (
    EMPTY_ASSIGNMENT,
    GroupRecord,
    claims_partitions,
    live_reset_of,
    live_reset_tag,
)
from barnabas.coordinators.groups.states import MOVES, State
from barnabas.protocol import messages, records
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.counted import counted

if TYPE_CHECKING:
    from barnabas.protocol.messages import JoinGroupResponse, SyncGroupResponse
    from barnabas.protocol.records import GroupMetadataValue

logger = logging.getLogger("barnabas.groups")

LINES_MAX = 100  # of members, in the log of one join phase
GENERATION_MAX = 2**31 - 1
FENCE_MS = 360_000.0  # a live reset: max.poll.interval.ms by default, and a minute for a JoinGroup that waits


def following(generation: int) -> int:
    """The generation after another. After the last one, which only damage brings, comes the first."""
    return generation + 1 if generation < GENERATION_MAX else 1


class Rebalance:
    """Takes the members of one group from generation to generation. Their requests are in classic.py."""

    __slots__ = (
        "_changes",
        "_config",
        "_entered_from_empty",
        "_initial_delay_ms",
        "_initial_remaining_ms",
        "began_ms",
        "fence_deadline_ms",
        "generation",
        "group_id",
        "is_unstorable",
        "join_deadline_ms",
        "members",
        "new_member_added",
        "newcomers_are_stale",
        "protocol_name",
        "protocol_type",
        "reset_generation",
        "state",
        "state_timestamp_ms",
        "subscribed_topics",
        "sync_deadline_ms",
        "wake_ms",
    )

    def __init__(self, group_id: str, members: Members, config: BrokerConfig, now_ms: int) -> None:
        self.group_id = group_id
        self.members = members
        self.protocol_type: str | None = None  # None: no member ever joined
        self.protocol_name: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self._config = config
        self.state = State.EMPTY
        self.state_timestamp_ms: int | None = now_ms
        self.generation = 0
        self.join_deadline_ms = NEVER
        self.sync_deadline_ms = NEVER
        self.wake_ms = NEVER
        self.began_ms = 0.0  # when the present phase of a rebalance began
        self.reset_generation = -1  # the generation that the last live reset has ended (live_reset.py); -1: none lately
        self.fence_deadline_ms = NEVER  # when the group forgets its last live reset
        self.newcomers_are_stale = False  # a client was in the middle of a join when the live reset came
        self.is_unstorable = False  # its log cannot be written; this was logged once, and not again for each attempt
        self._changes = 0  # what members did in this join phase
        self._entered_from_empty = False
        self.new_member_added = False
        self._initial_delay_ms = 0
        self._initial_remaining_ms = 0

    def restore(self, metadata: GroupMetadataValue) -> None:
        """Go on where a stored record says. The members are restored by the group."""
        timestamp = metadata.current_state_timestamp
        self.state_timestamp_ms = None if timestamp < 0 else timestamp
        self.generation = metadata.generation
        self.protocol_type = metadata.protocol_type or None
        self.protocol_name = metadata.protocol
        self.state = State.STABLE if metadata.members else State.EMPTY
        self.reset_generation = live_reset_of(metadata)
        self.newcomers_are_stale = self.reset_generation >= 0  # it is not known who is in the middle of a join

    def record(self, assignments: dict[str, bytes] | None = None) -> GroupRecord:
        """The record of the group as it is now. `assignments`, if given, replace those of the members.

        Stale members are not in it, so after a restart they are unknown, and join as stale members again.
        """
        members = [member for member in self.members.by_id.values() if not member.is_stale]
        leader = self.members.leader
        if len(members) < len(self.members) and (leader is None or self.members.by_id[leader].is_stale):
            leader = None
        return GroupRecord(
            self.group_id,
            records.GroupMetadataValue(
                protocol_type=self.protocol_type or "",
                generation=self.generation,
                protocol=self.protocol_name if members else None,
                leader=leader,
                current_state_timestamp=-1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
                members=[
                    records.GroupMetadataValue.MemberMetadata(
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        rebalance_timeout=member.rebalance_timeout_ms,
                        session_timeout=member.session_timeout_ms,
                        subscription=member.metadata(self.protocol_name),
                        assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
                    )
                    for member in members
                ],
                unknown_tagged_fields=live_reset_tag(self.reset_generation),
            ),
        )

    def subscribes(self, topic: str) -> bool:
        """Whether a consumer group reads this topic. True for all topics if its subscriptions cannot be decoded."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    def compute_subscribed_topics(self) -> None:
        """Set the topics that the members read in this generation. None: unknown, or not a consumer group."""
        if not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol_name is None:
            self.subscribed_topics = None
        else:
            self.subscribed_topics = self.members.subscribed_topics(self.protocol_name)

    # ---- the join phase ----

    def prepare_or_try_complete(self, reason: str, effects: Effects) -> None:
        """A member has joined: begin a rebalance, or end the join phase that is under way, if it was the last."""
        if State.PREPARING_REBALANCE in MOVES[self.state]:
            self.prepare(reason, effects)
        else:
            self._log_change(reason)
            self.try_complete_join(effects)

    def _log_change(self, what: str) -> None:
        """Log what a member did in a join phase. The members of a large group must not fill the log."""
        self._changes += 1
        if self._changes <= LINES_MAX:
            logger.log(self.log_level(), "group %s: %s", self.group_id, what)
        elif self._changes == LINES_MAX + 1:
            logger.log(self.log_level(), "group %s: more members follow, too many for the log", self.group_id)

    def log_level(self, level: int = logging.INFO) -> int:
        """`level`, or DEBUG while the group cannot be stored."""
        return logging.DEBUG if self.is_unstorable else level

    def prepare(self, reason: str, effects: Effects) -> None:
        """Begin a rebalance: the members must join again."""
        if self.state is State.COMPLETING_REBALANCE:
            self.propagate_sync_error(ErrorCode.REBALANCE_IN_PROGRESS, effects)
        self.sync_deadline_ms = NEVER
        initial = self.state is State.EMPTY
        effects.note(Kind.REBALANCE, generation=self.generation, cause=reason, members=len(self.members))
        self.began_ms = effects.monotonic_ms
        self.move_to(State.PREPARING_REBALANCE, effects)
        self._changes = 0
        self._entered_from_empty = initial
        logger.log(
            self.log_level(), "group %s: rebalance from generation %d: %s", self.group_id, self.generation, reason
        )
        if initial:
            delay = self._config.group_initial_rebalance_delay_ms
            self._initial_delay_ms = delay
            self._initial_remaining_ms = max(self.members.rebalance_timeout_ms - delay, 0)
            self._set_join_deadline(effects.monotonic_ms + delay)
        elif self.members.all_joined():
            self._complete_join(effects)
        else:
            self._set_join_deadline(effects.monotonic_ms + self.members.rebalance_timeout_ms)

    def try_complete_join(self, effects: Effects) -> None:
        """End the join phase if nobody is missing."""
        if self.state is State.PREPARING_REBALANCE and not self._entered_from_empty and self.members.all_joined():
            self._complete_join(effects)

    def _initial_delay_over(self, effects: Effects) -> None:
        if self.new_member_added and self._initial_remaining_ms:
            self.new_member_added = False
            delay = min(self._config.group_initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._initial_remaining_ms = max(self._initial_remaining_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay
            self._set_join_deadline(effects.monotonic_ms + delay)
        else:
            self._complete_join(effects)

    def _complete_join(self, effects: Effects) -> None:
        self.join_deadline_ms = NEVER
        absent = [member for member in self.members.by_id.values() if member.awaiting_join is None]
        for member in absent:
            if member.group_instance_id is None:
                logger.info(
                    "group %s: member %s did not join again within its rebalance timeout of %d ms",
                    *(self.group_id, who(member), member.rebalance_timeout_ms),
                )
                effects.note(Kind.DID_NOT_JOIN, member, rebalance_timeout_ms=member.rebalance_timeout_ms)
                self.members.remove(member.member_id, effects)
        if self.members and not self.members.elect_joined_leader():  # only absent static members are left
            self._entered_from_empty = False
            self._set_join_deadline(effects.monotonic_ms + self.members.rebalance_timeout_ms)
            return
        self.generation = following(self.generation)
        self._entered_from_empty = False
        self.members.pending_sync.clear()
        if not self.members:
            self.protocol_name = None
            self.compute_subscribed_topics()
            self.move_to(State.EMPTY, effects)
            effects.note(Kind.EMPTY, generation=self.generation)
            logger.info("group %s: empty with generation %d", self.group_id, self.generation)
            effects.store(self.record())
            return
        self.protocol_name = self.members.select_protocol()
        self.compute_subscribed_topics()
        self.move_to(State.COMPLETING_REBALANCE, effects)
        self._note_generation(effects)
        logger.log(
            self.log_level(),
            "group %s: generation %d with %s, led by %s, protocol %s",
            *(
                self.group_id,
                self.generation,
                counted(len(self.members), "member"),
                self.members.leader,
                quoted(self.protocol_name or ""),
            ),
        )
        for member in self.members.by_id.values():
            waiter = self.members.unpark_join(member)
            if waiter is not None:
                is_leader = member.member_id == self.members.leader
                effects.reply_join(waiter, self.join_response(member, member.join_version, with_members=is_leader))
            self.restart_session(member, effects.monotonic_ms)
            if member.drain is Drain.JOINED:  # only now, because commits of the last generation may still arrive
                member.is_stale = False
                member.drain = Drain.NOT_BEGUN
            member.is_new = False
            self.members.pending_sync.add(member.member_id)
        self.sync_deadline_ms = effects.monotonic_ms + self.members.rebalance_timeout_ms
        self.wake_at(self.sync_deadline_ms)

    def _note_generation(self, effects: Effects) -> None:
        last = max(self.members.by_id.values(), key=lambda member: member.joined_ms)
        leader = None if self.members.leader is None else self.members.by_id.get(self.members.leader)
        effects.note(
            Kind.GENERATION,
            generation=self.generation,
            members=len(self.members),
            protocol=self.protocol_name,
            leader=None if leader is None else identity(leader),
            took_ms=effects.monotonic_ms - self.began_ms,
            last=identity(last),
            last_after_ms=last.joined_ms - self.began_ms,
        )
        self.began_ms = effects.monotonic_ms

    def note_stable(self, effects: Effects) -> None:
        """Note that all have their assignments."""
        size = sum(len(member.assignment) for member in self.members.by_id.values())
        effects.note(
            Kind.STABLE,
            generation=self.generation,
            took_ms=effects.monotonic_ms - self.began_ms,
            protocol_type=self.protocol_type,
            assignments=[(identity(member), member.assignment) for member in self.members.by_id.values()]
            if size <= ASSIGNMENT_BYTES_MAX and len(self.members) <= ASSIGNMENTS_MAX
            else None,
        )

    # ---- live reset (live_reset.py has the rules) ----

    def fence(self, partitions: int, effects: Effects) -> list[Member]:
        """Throw out all members, because their positions are of before a live reset. Returns them."""
        thrown = list(self.members.by_id.values())
        if not thrown:
            return thrown
        in_a_join = self.state is not State.STABLE or bool(self.members.pending_sync)
        effects.note(Kind.LIVE_RESET, generation=self.generation, partitions=partitions, members=len(thrown))
        for member in thrown:
            self.members.remove(member.member_id, effects)
        self.members.pending_sync.clear()
        self.join_deadline_ms = self.sync_deadline_ms = NEVER
        self._entered_from_empty = False
        self.generation = following(self.generation)
        self.protocol_name = None
        self.compute_subscribed_topics()
        self.move_to(State.EMPTY, effects)
        self.reset_generation = self.generation
        self.newcomers_are_stale = self.newcomers_are_stale or in_a_join
        self.keep_fence(effects.monotonic_ms)
        logger.info(
            "group %s: live reset of %s, %s must join again",
            self.group_id,
            counted(partitions, "partition"),
            counted(len(thrown), "member"),
        )
        return thrown

    def take_over_fence(self, epoch: int, monotonic_ms: float) -> None:
        """A group of the consumer protocol without members, which had a live reset lately, has become this one."""
        self.reset_generation = self.generation = epoch
        self.newcomers_are_stale = True
        self.keep_fence(monotonic_ms)

    def keep_fence(self, monotonic_ms: float) -> None:
        """Remember the live reset for `FENCE_MS` from now on."""
        self.fence_deadline_ms = monotonic_ms + FENCE_MS
        self.wake_at(self.fence_deadline_ms)

    def note_unknown_joiner(self) -> None:
        """A client joins or syncs with the id that a live reset has taken from it: it is in the middle of a join."""
        if self.reset_generation >= 0:
            self.newcomers_are_stale = True

    def judge_positions(self, member: Member, *, is_new: bool) -> None:
        """Decide at a JoinGroup whether the member may read on where it was before a live reset."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return
        has_claims = any(claims_partitions(metadata) for _, metadata in member.protocols)
        if is_new:
            member.is_stale = has_claims or self.newcomers_are_stale
        has_lost_them = not is_new and not has_claims and (member.has_claims or member.drain >= Drain.HEARD)
        member.drain = Drain.JOINED if has_lost_them else Drain.NOT_BEGUN
        member.has_claims = has_claims

    def rebalance_behind_stale(self, effects: Effects) -> None:
        """Begin the next rebalance when all stale members have got their empty assignment."""
        stale = [member for member in self.members.by_id.values() if member.is_stale]
        if (
            stale
            and self.state is State.STABLE
            and not any(member.member_id in self.members.pending_sync for member in stale)
        ):
            self.prepare(f"{counted(len(stale), 'member')} gave up what there was before the live reset", effects)

    # ---- the sync phase ----

    def answer_parked_syncs(self, effects: Effects) -> None:
        """Answer all parked SyncGroups with their assignments."""
        for member in self.members.by_id.values():
            if member.awaiting_sync is not None:
                effects.reply_sync(member, self.sync_response(member))
                self.restart_session(member, effects.monotonic_ms)

    def propagate_sync_error(self, error: ErrorCode, effects: Effects) -> None:
        """Answer all parked SyncGroups with an error. No member has an assignment then."""
        for member in self.members.by_id.values():
            member.assignment = b""
            if member.awaiting_sync is not None:
                effects.reply_sync(member, messages.SyncGroupResponse(error_code=error))
                self.restart_session(member, effects.monotonic_ms)

    # ---- time, removal, end ----

    def on_time(self, effects: Effects) -> None:
        """Do what is due, in the order of the deadlines. Then set `wake_ms` to the next deadline."""
        now = effects.monotonic_ms
        due: list[tuple[float, int, str]] = [(at, 0, key) for key, at in self.members.pending.items() if at <= now]
        due += [
            (m.session_deadline_ms, 1, m.member_id) for m in self.members.by_id.values() if m.session_deadline_ms <= now
        ]
        due += [(at, kind, "") for at, kind in ((self.sync_deadline_ms, 2), (self.join_deadline_ms, 3)) if at <= now]
        for _, kind, member_id in sorted(due):
            if kind == 0:
                if self.members.pending.pop(member_id, NEVER) <= now:
                    logger.info("group %s: nobody joined with the member id %s in time", self.group_id, member_id)
                    effects.note(Kind.NEVER_JOINED, member_id=cut(member_id))
                    self.try_complete_join(effects)
            elif kind == 1:
                self._session_over(member_id, effects)
            elif kind == 2 and self.sync_deadline_ms <= now:
                self._sync_over(effects)
            elif kind == 3 and self.join_deadline_ms <= now:
                if self._entered_from_empty:
                    self._initial_delay_over(effects)
                else:
                    self._complete_join(effects)
        if self.fence_deadline_ms <= now:
            self._end_fence(now)
        self.wake_ms = min(
            min(self.members.pending.values(), default=NEVER),
            min((member.session_deadline_ms for member in self.members.by_id.values()), default=NEVER),
            self.sync_deadline_ms,
            self.join_deadline_ms,
            self.fence_deadline_ms,
        )

    def _end_fence(self, monotonic_ms: float) -> None:
        if any(member.is_stale for member in self.members.by_id.values()):
            self.fence_deadline_ms = monotonic_ms + self.members.rebalance_timeout_ms
            return
        self.fence_deadline_ms = NEVER
        self.reset_generation = -1
        self.newcomers_are_stale = False

    def _session_over(self, member_id: str, effects: Effects) -> None:
        member = self.members.by_id.get(member_id)
        if member is None or member.session_deadline_ms > effects.monotonic_ms:
            return
        if not member.is_new and (member.awaiting_join is not None or member.awaiting_sync is not None):
            member.session_deadline_ms = NEVER  # a waiting member lives; its session starts again with the answer
            return
        what = "has not finished its first join" if member.is_new else f"was silent for {member.session_timeout_ms} ms"
        effects.note(
            Kind.SILENT,
            member,
            session_timeout_ms=member.session_timeout_ms,
            setting="session.timeout.ms",
            is_new=member.is_new,
        )
        self.members.remove(member_id, effects)
        self.after_removal(f"member {who(member)} {what}", effects)

    def _sync_over(self, effects: Effects) -> None:
        self.sync_deadline_ms = NEVER
        if self.state not in (State.COMPLETING_REBALANCE, State.STABLE) or not self.members.pending_sync:
            return
        missing = [member_id for member_id in self.members.by_id if member_id in self.members.pending_sync]
        names = listed((who(self.members.by_id[member_id]) for member_id in missing), len(missing))
        logger.info("group %s: no sync within %d ms from %s", self.group_id, self.members.rebalance_timeout_ms, names)
        for member_id in missing:
            member = self.members.by_id[member_id]
            effects.note(Kind.DID_NOT_SYNC, member, rebalance_timeout_ms=self.members.rebalance_timeout_ms)
            self.members.remove(member_id, effects)
        self.prepare("members did not sync in time", effects)

    def after_removal(self, reason: str, effects: Effects) -> None:
        """A member has gone: begin a rebalance, or end the join phase if nobody else is missing."""
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self.prepare(reason, effects)
        else:
            self._log_change(reason)
            self.try_complete_join(effects)

    def begin(self, reason: str, effects: Effects) -> None:
        """Begin a rebalance: the members must join again. No effect in the join phase, or without members."""
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self.prepare(reason, effects)

    def answer_parked(self, error: ErrorCode, effects: Effects) -> None:
        """Answer all parked requests with an error."""
        for member in self.members.by_id.values():
            self.members.answer_parked(member, member.member_id, error, effects)

    def die(self, error: ErrorCode, effects: Effects) -> None:
        """Move to Dead, because the group leaves this broker. All parked requests are answered with `error`."""
        self.answer_parked(error, effects)
        self.move_to(State.DEAD, effects)
        self.join_deadline_ms = self.sync_deadline_ms = self.fence_deadline_ms = self.wake_ms = NEVER

    # ---- bookkeeping ----

    def join_response(self, member: Member, version: int, *, with_members: bool) -> JoinGroupResponse:
        """What a JoinGroup is answered in this generation."""
        return messages.JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name or (None if version >= 7 else ""),
            leader=self.members.leader or "",
            member_id=member.member_id,
            members=[
                messages.JoinGroupResponse.JoinGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    metadata=each.metadata(self.protocol_name),
                )
                for each in self.members.by_id.values()
            ]
            if with_members
            else [],
        )

    def sync_response(self, member: Member) -> SyncGroupResponse:
        """What a SyncGroup is answered in this generation."""
        if member.is_stale:
            member.drain = Drain.UNASSIGNED
        return messages.SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=EMPTY_ASSIGNMENT if member.is_stale else member.assignment,
        )

    def restart_session(self, member: Member, monotonic_ms: float) -> None:
        """The member has its full session timeout from now on."""
        member.session_deadline_ms = monotonic_ms + member.session_timeout_ms
        self.wake_at(member.session_deadline_ms)

    def _set_join_deadline(self, deadline_ms: float) -> None:
        self.join_deadline_ms = deadline_ms
        self.wake_at(deadline_ms)

    def wake_at(self, deadline_ms: float) -> None:
        """Ask for `on_time` at this time, if it is not asked for earlier."""
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def move_to(self, state: State, effects: Effects) -> None:
        """Go to another state, if MOVES allows it."""
        assert state in MOVES[self.state], f"{self.group_id}: {self.state} -> {state}"
        self.state = state
        self.state_timestamp_ms = effects.now_ms
