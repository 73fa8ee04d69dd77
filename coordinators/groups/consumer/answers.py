"""Answers ConsumerGroupHeartbeat and ConsumerGroupDescribe: the way to the group, a decision, and its write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import consumer_error
from barnabas.coordinators.groups.consumer import conversion, heartbeats
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.group import NO_GROUP, ConsumerGroup
from barnabas.coordinators.groups.consumer.heartbeats import Situation
from barnabas.coordinators.groups.consumer.member import NOTHING_ASSIGNED, Assigned, ConsumerMember, Partitions
from barnabas.coordinators.groups.consumer.records import Encoded, Record, ResolvedRegex, encoded
from barnabas.coordinators.groups.consumer.records import Kind as RecordKind
from barnabas.coordinators.groups.consumer.requests import Refusal, check
from barnabas.coordinators.groups.consumer.runtime import ConsumerGroups
from barnabas.coordinators.groups.consumer.settings import assignors_of, beat_of, settings_of
from barnabas.coordinators.groups.consumer.states import JOIN_EPOCH, LEAVE_EPOCH
from barnabas.coordinators.groups.consumer.target import AT_ONCE_MAX
from barnabas.coordinators.groups.consumer.topics import Topics
from barnabas.coordinators.groups.events import OTHER_PROTOCOL, Kind, cut
from barnabas.coordinators.groups.log_lines import who
from barnabas.coordinators.groups.records import GroupRecord
from barnabas.coordinators.groups.requests import GROUP_OPERATIONS, Context, Gate, Refusals
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.states import State
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.re2 import Pattern, PatternError, compiled
from barnabas.protocol.uuids import to_text
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.protocol.messages import (
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponse,
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
    )

    HeartbeatReply = ConsumerGroupHeartbeatResponse | Pending[ConsumerGroupHeartbeatResponse]
    Described = ConsumerGroupDescribeResponse.DescribedGroup

MaySee = Callable[[str], bool]
logger = logging.getLogger("barnabas.groups")
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1  # as ConsumerGroupDescribe says
_PATTERNS_MAX = 1_000  # expressions that are kept ready
# Joins that are refused because of the group are noted among its events, as these.
_REFUSED_JOINS = {
    ErrorCode.GROUP_ID_NOT_FOUND: OTHER_PROTOCOL,
    ErrorCode.GROUP_MAX_SIZE_REACHED: "join",
    ErrorCode.UNRELEASED_INSTANCE_ID: "join",
}


class ConsumerAnswers:
    """Answers the requests of the consumer protocol (KIP-848)."""

    def __init__(self, env: Env, config: BrokerConfig, gate: Gate, topics: Topics, refusals: Refusals) -> None:
        self._env = env
        self._clock = env.clock
        self._turns = env.turns
        self._config = config
        self._gate = gate
        self._topics = topics
        self._refusals = refusals
        self._patterns: dict[str, Pattern] = {}
        self.at_once_max = AT_ONCE_MAX  # so large a group is assigned to at once
        self.overrides_of: Callable[[str], Mapping[str, str]] = lambda group_id: {}  # settings of a group itself

    def situation_of(self, group_id: str) -> Situation:
        """What decisions about a group depend on now."""
        settings = settings_of(self._config, self.overrides_of(group_id))
        now_ms = self._clock.now_ms()
        return Situation(settings, self._topics, self._clock.monotonic_ms(), now_ms, self.at_once_max)

    # ---- ConsumerGroupHeartbeat ----

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: Context, may_see: MaySee | None = None
    ) -> HeartbeatReply:
        """A member joins, lives or leaves. Answered when what the answer says is committed.

        `may_see(topic)`: whether an expression of the member may mean this topic; None: it may mean all.
        """
        group_id = request.group_id
        if not self._gate.is_active:
            return messages.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._gate.shard_of(group_id)
        if isinstance(shard, Shard) and (answer := self._calm(shard, request, context)) is not None:
            return answer
        refusal = check(request, context.api_version, assignors_of(self._config))
        if refusal is not None:
            return self._refuse(refusal, request, context)
        if isinstance(shard, ErrorCode):
            return messages.ConsumerGroupHeartbeatResponse(error_code=shard)
        if shard.is_held(group_id):
            late = messages.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return shard.until_released(group_id).and_then(
                lambda is_free: self.heartbeat(request, context, may_see) if is_free else late
            )
        regex = request.subscribed_topic_regex
        is_new = regex and regex not in self._patterns and self._is_new_regex(shard, group_id, regex)
        if regex and is_new and request.member_epoch >= JOIN_EPOCH:
            found = self._group(shard, request)  # as in Kafka, who it is comes before what it says
            size_max = self.situation_of(group_id).settings.size_max
            refusal = found if isinstance(found, Refusal) else heartbeats.check_member(found.group, request, size_max)
            if refusal is not None:
                return self._refuse(refusal, request, context)
            return self._turns.run(self._compile_first(regex, request, context, may_see))
        return self._heartbeat(shard, request, context, may_see)

    def _calm(
        self, shard: Shard, request: ConsumerGroupHeartbeatRequest, context: Context
    ) -> ConsumerGroupHeartbeatResponse | None:
        """The answer to a member that only lives, as most do; None: there is more to look at."""
        group_id = request.group_id
        group = shard.consumer.by_id.get(group_id)
        if group is None or group.has_regexes or shard.has_writes(group_id) or shard.is_held(group_id):
            return None
        client = (context.client_id or "", context.client_host)
        if not heartbeats.is_calm(group, request, client, self._topics.changes):
            return None
        beat = beat_of(self._config, self.overrides_of(group_id))
        answer = heartbeats.stay(group, group.members[request.member_id], beat, self._clock.monotonic_ms())
        shard.consumer.arm(group)
        return answer

    def _is_new_regex(self, shard: Shard, group_id: str, regex: str) -> bool:
        group = shard.consumer.by_id.get(group_id)
        return group is None or not group.regex_subscribers(regex)

    def _compile_first(
        self, regex: str, request: ConsumerGroupHeartbeatRequest, context: Context, may_see: MaySee | None
    ) -> Pieces[ConsumerGroupHeartbeatResponse]:
        try:
            yield from self._pattern(regex)
        except PatternError as error:
            message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
            return self._refuse(Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, message), request, context)
        reply = self.heartbeat(request, context, may_see)
        return (yield reply) if isinstance(reply, Pending) else reply

    def _pattern(self, regex: str) -> Pieces[Pattern]:
        """The expression, ready to be matched. PatternError."""
        pattern = self._patterns.get(regex)
        if pattern is None:
            pattern = yield from compiled(regex)
            if len(self._patterns) >= _PATTERNS_MAX:
                self._patterns.pop(next(iter(self._patterns)))
            self._patterns[regex] = pattern
        return pattern

    def _refuse(
        self, refusal: Refusal, request: ConsumerGroupHeartbeatRequest, context: Context
    ) -> ConsumerGroupHeartbeatResponse:
        self._refusals.log(
            context,
            refusal.error,
            "group %r, member %r, epoch %d",
            *(request.group_id, request.member_id, request.member_epoch),
        )
        what = _REFUSED_JOINS.get(refusal.error)
        if what is not None and request.member_epoch == JOIN_EPOCH:
            self._refusals.note(context, refusal.error, request.group_id, what, request.member_id)
        return refusal.response()

    def _heartbeat(
        self, shard: Shard, request: ConsumerGroupHeartbeatRequest, context: Context, may_see: MaySee | None
    ) -> HeartbeatReply:
        group_id = request.group_id
        found = self._group(shard, request)
        if isinstance(found, Refusal):
            return self._refuse(found, request, context)
        change, group = found, found.group
        situation = self.situation_of(group_id)
        outcome: ConsumerGroupHeartbeatResponse | Refusal
        if request.member_epoch < JOIN_EPOCH:
            leaver = group.members.get(request.member_id)
            outcome = heartbeats.leave(change, request, shard.consumer.remove_members)
            if leaver is not None and not isinstance(outcome, Refusal):
                kind = Kind.LEFT if request.member_epoch == LEAVE_EPOCH else Kind.AWAY
                logger.info("group %s: member %s %s", group_id, who(leaver), kind.value)
                shard.consumer.note(group_id, kind, leaver, reason="")
        else:
            if request.member_id == "":
                request.member_id = self._member_id()
            client = (context.client_id or "", context.client_host)
            before = group.known_as(request.member_id, request.instance_id)
            outcome = heartbeats.heartbeat(change, request, client, situation)
            if not isinstance(outcome, Refusal):
                self._note(shard.consumer, group_id, before, group.members[request.member_id])
        if isinstance(outcome, Refusal):
            return self._refuse(outcome, request, context)
        if change.records.count and group_id not in shard.consumer.by_id and request.member_epoch >= JOIN_EPOCH:
            shard.consumer.by_id[group_id] = group
            change.restore = shard.become_consumer(group_id)
            shard.consumer.start_sessions(group)
        reply = shard.consumer.carry_out(
            change,
            outcome,
            lambda error: messages.ConsumerGroupHeartbeatResponse(error_code=consumer_error(error)),
        )
        self._resolve_if_due(shard, group, may_see)
        return reply

    def _group(self, shard: Shard, request: ConsumerGroupHeartbeatRequest) -> Change | Refusal:
        """The group of a heartbeat, at the begin of a change. A new one is not among the shard's groups yet.

        A classic group becomes a consumer group: one without members, as one that only commits, always, another if the
        migration policy allows. Its offsets stay.
        """
        group_id = request.group_id
        group = shard.consumer.by_id.get(group_id)
        if group is not None:
            return Change(group)
        classic = shard.groups.get(group_id)
        if request.member_epoch == JOIN_EPOCH and group_id not in shard.foreign_groups:
            if classic is None:
                return Change(ConsumerGroup(group_id))
            settings = self.situation_of(group_id).settings
            if classic.state is State.EMPTY and not classic.members.pending:
                change = Change(ConsumerGroup(group_id))
                change.records.before = GroupRecord(group_id, None)
                if classic.rebalance.reset_generation >= 0:  # commits of before must be too old (live_reset.py)
                    epoch = max(classic.generation, NO_GROUP.epoch)
                    change.group.of_group = NO_GROUP._replace(
                        epoch=epoch, reset_epoch=classic.rebalance.reset_generation
                    )
                return change
            if any(member.is_stale for member in classic.members.by_id.values()):
                message = "Members still give up what they have read before a live reset. Try again."
                return Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
            refusal = conversion.check_upgrade(classic, settings.migration_policy, settings.size_max)
            if refusal is not None:
                return refusal
            upgraded = conversion.upgrade(classic, self._topics)
            if isinstance(upgraded, Refusal):
                logger.warning("group %s: member %s is refused: %s", group_id, cut(request.member_id), upgraded.message)
            return upgraded
        if classic is not None or group_id in shard.foreign_groups:
            return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        kind = "Consumer group" if request.member_epoch >= JOIN_EPOCH else "Group"
        return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} {group_id} not found.")

    def _note(
        self, groups: ConsumerGroups, group_id: str, before: ConsumerMember | None, member: ConsumerMember
    ) -> None:
        """Say that a member has joined, and note it, or that it reads other topics than before."""
        if before is None or before.member_id != member.member_id:
            logger.log(groups.log_level(), "group %s: member %s joined", group_id, who(member))
        groups.note_joined(group_id, before, member)

    def _member_id(self) -> str:
        """A member id for a client that makes none (version 0)."""
        return to_text(self._env.random_uuid())

    # ---- regular expressions ----

    def _resolve_if_due(self, shard: Shard, group: ConsumerGroup, may_see: MaySee | None) -> None:
        """Resolve the expressions of a group if one is new, or if there are other topics than before.

        Where members need rights, it is done now and then, too, because rights may change. What a heartbeat has left,
        because the group reads many topics and some may have changed, is done with it.
        """
        if group.is_resolving:
            return
        age_ms = self._clock.monotonic_ms() - group.resolved_ms
        is_fresh = may_see is None or age_ms < self._config.group_consumer_regex_refresh_interval_ms
        are_resolved = not group.has_regexes or (
            is_fresh
            and group.seen_names == self._topics.name_changes
            and all(regex in group.regexes for regex in group.subscribed_regexes)
        )
        if are_resolved and (group.seen_topics == self._topics.changes or not group.reads_many):
            return
        group.is_resolving = True
        group.resolved_ms = self._clock.monotonic_ms()
        self._turns.begin(self._resolve(shard, group, may_see))

    def _resolve(self, shard: Shard, group: ConsumerGroup, may_see: MaySee | None) -> Pieces[None]:
        try:
            seen = self._topics.name_changes
            regexes = list(group.subscribed_regexes)
            if may_see is None and group.seen_names == seen:  # what those mean that are known has not changed
                regexes = [regex for regex in regexes if regex not in group.regexes]
            names = list(self._topics.topic_names())
            resolved: dict[str, tuple[ResolvedRegex, Encoded]] = {}
            for regex in regexes:
                found = yield from self._topics_meant(group, regex, names, may_see)
                value = ResolvedRegex(found, max(self._topics.changes, 0), self._clock.now_ms())
                resolved[regex] = value, encoded(group.group_id, Record(RecordKind.REGEX, regex, value))
            foreseen = yield from heartbeats.foresee(
                group, {r: value for r, (value, _) in resolved.items()}, self._topics
            )
            if not (yield from shard.consumer.released(group.group_id)):
                return
        finally:
            group.is_resolving = False
        if shard.closed or shard.consumer.by_id.get(group.group_id) is not group:
            return
        group.seen_names = seen
        change = Change(group)
        heartbeats.resolve(change, resolved, foreseen, self._topics)
        if change.records.count:
            shard.consumer.write(change, lambda error: None)

    def _topics_meant(
        self, group: ConsumerGroup, regex: str, names: list[str], may_see: MaySee | None
    ) -> Pieces[frozenset[str]]:
        """The topics that an expression means now. One that cannot be read means what it meant before: another release,
        or Kafka, has taken it."""
        try:
            pattern = yield from self._pattern(regex)
        except PatternError as error:
            logger.warning("group %s: an expression cannot be resolved any more: %s", group.group_id, error)
            known = group.regexes.get(regex)
            return frozenset() if known is None else known.topics
        found = []
        for name in names:
            if (yield from pattern.matches(name)) and (may_see is None or may_see(name)):
                found.append(name)
                self._topics.topic_hash(name)  # so that the hash of all is ready soon
            yield
        return frozenset(found)

    # ---- ConsumerGroupDescribe ----

    def describe(
        self, request: ConsumerGroupDescribeRequest, context: Context
    ) -> ConsumerGroupDescribeResponse | Pending[ConsumerGroupDescribeResponse]:
        """ConsumerGroupDescribe: what groups are, and what each member has and should have."""
        return self._turns.run(self._describe(request))

    def _describe(self, request: ConsumerGroupDescribeRequest) -> Pieces[ConsumerGroupDescribeResponse]:
        response = messages.ConsumerGroupDescribeResponse()
        for group_id in request.group_ids:
            yield
            response.groups.append((yield from self._describe_group(group_id, request.include_authorized_operations)))
        return response

    def _describe_group(self, group_id: str, with_operations: bool) -> Pieces[Described]:
        make = messages.ConsumerGroupDescribeResponse.DescribedGroup
        shard = self._gate.shard_of(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        if isinstance(shard, ErrorCode):
            return make(group_id=group_id, error_code=shard)
        if group_id in shard.consumer.by_id and shard.has_writes(group_id):
            committed: Pending[ErrorCode] = Pending()  # nothing is told that can be lost
            shard.write(group_id, None, committed.complete)
            error = yield committed
            if error:
                return make(group_id=group_id, error_code=consumer_error(error))
        group = shard.consumer.by_id.get(group_id)
        if group is None:
            is_other = group_id in shard.groups or group_id in shard.foreign_groups
            message = f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found."
            return make(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
        described = make(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.preferred_assignor(self.situation_of(group_id).settings.default_assignor),
        )
        for row in self._members(group):
            described.members.append(row)
            yield
        if with_operations:
            described.authorized_operations = GROUP_OPERATIONS
        return described

    def _members(self, group: ConsumerGroup) -> Iterator[ConsumerGroupDescribeResponse.Member]:
        for member in group.in_order():
            of = member.subscription
            yield messages.ConsumerGroupDescribeResponse.Member(
                member_id=member.member_id,
                instance_id=of.instance_id,
                rack_id=of.rack_id,
                member_epoch=member.epoch,
                client_id=of.client_id,
                client_host=of.client_host,
                subscribed_topic_names=list(of.topic_names),
                subscribed_topic_regex=of.topic_regex,
                assignment=self._named(member.current.assigned, member.current.revoking),
                target_assignment=self._named(group.target_of(member.member_id)),
                member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
            )

    def _named(
        self, assigned: Assigned | Partitions, revoking: Assigned = NOTHING_ASSIGNED
    ) -> ConsumerGroupDescribeResponse.Assignment:
        """An assignment with the names of its topics, and what the member has not given up yet behind what it keeps.

        Topics that are gone have no name, and are left out.
        """
        make = messages.ConsumerGroupDescribeResponse
        rows = []
        for topic_id in sorted(assigned.keys() | revoking.keys()):
            name = self._topics.topic_name(topic_id)
            if name is not None:
                partitions = sorted(assigned.get(topic_id, ())) + sorted(revoking.get(topic_id, ()))
                rows.append(make.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=partitions))
        return make.Assignment(topic_partitions=rows)
