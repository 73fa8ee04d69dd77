"""The consumer groups of one offsets partition: what a decision changes is written, or taken back; and their timers.

A decision is applied in memory at once (group.py), because the next heartbeat must see it. Its answer waits until its
records, and those of all decisions before it, are committed. If the log does not take the records of a decision, it is
taken back, with all decisions after it: they were made from what is not in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.coordinators.groups.consumer import conversion, heartbeats, target
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.heartbeats import Situation
from barnabas.coordinators.groups.consumer.member import ConsumerMember
from barnabas.coordinators.groups.consumer.records import ConsumerRecords, Record
from barnabas.coordinators.groups.consumer.records import Kind as RecordKind
from barnabas.coordinators.groups.consumer.settings import SESSION_TIMEOUT
from barnabas.coordinators.groups.consumer.states import STATIC_LEAVE_EPOCH, GroupState, MemberState
from barnabas.coordinators.groups.consumer.target import Question
from barnabas.coordinators.groups.consumer.timers import NEVER
from barnabas.coordinators.groups.events import MOVED_MAX, Event, Identity, Kind, Moved, cut, identity
from barnabas.coordinators.groups.log_lines import who
from barnabas.coordinators.groups.rebalance import FENCE_MS
from barnabas.coordinators.shard import UNSTORABLE_MS, Done
from barnabas.offsets.records import OffsetCommits
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.coordinators.groups.shard import Shard
    from barnabas.protocol.messages import JoinGroupResponse

logger = logging.getLogger("barnabas.groups")
R = TypeVar("R")
TOPICS_MAX = 100  # of a member, that its event names
MOVED_TOPICS_MAX = 1_000  # of an assignment in which more are to be looked at, its event does not say what has moved
REMOVAL_CHARACTERS_MAX = 2_000  # of the names of members that are removed by one write


class ConsumerGroups:
    """The consumer groups of one shard. `situation_of(group_id)`: what decisions depend on now."""

    def __init__(self, env: Env, shard: Shard, situation_of: Callable[[str], Situation]) -> None:
        self.by_id: dict[str, ConsumerGroup] = {}
        self.situation_of = situation_of
        self._clock = env.clock
        self._turns = env.turns
        self._shard = shard
        self._failed_ms = float("-inf")  # when the log last did not take a decision

    # ---- decisions ----

    def log_level(self, level: int = logging.INFO) -> int:
        """DEBUG while the log takes nothing, because members try again and again; else `level`."""
        is_told = self._clock.monotonic_ms() - self._failed_ms < UNSTORABLE_MS
        return logging.DEBUG if is_told else level

    def note(self, group_id: str, kind: Kind, member: ConsumerMember | None, **details: Any) -> None:
        """Note an event of a group: what a member did, or what was done to the group."""
        who = None if member is None else identity(member)
        event = Event(kind, self._clock.now_ms(), self._clock.monotonic_ms(), who, details)
        self._shard.events.note(group_id, (event,))

    def note_joined(
        self, group_id: str, before: ConsumerMember | None, member: ConsumerMember, reason: str = ""
    ) -> None:
        """Note that a member has joined, is back as a static one, or reads other topics than `before`."""
        if before is None:
            self._note_subscription(group_id, Kind.JOINED, member, reason)
            return
        if before.epoch == STATIC_LEAVE_EPOCH or before.member_id != member.member_id:
            self._note_subscription(group_id, Kind.JOINED, member, reason, replaces=cut(before.member_id))
        if not before.subscription.reads_as(member.subscription):
            self._note_subscription(group_id, Kind.SUBSCRIBED, member, "")

    def _assignment(self, change: Change) -> Event | None:
        """The event of a new target assignment, if a decision makes one."""
        group, from_epoch = change.group, change.assigned_before
        if from_epoch is None or not group.members:
            return None
        details = {
            "generation": from_epoch,
            "epoch": group.assignment_epoch,
            "members": len(group.members),
            "assignor": group.preferred_assignor(self.situation_of(group.group_id).settings.default_assignor),
            "moved": self._moved(change),
        }
        return Event(Kind.ASSIGNED, self._clock.now_ms(), self._clock.monotonic_ms(), None, details)

    def _moved(self, change: Change) -> list[Moved] | None:
        """The partitions that shall be another member's. None: they are too many to be kept, or it was another kind of
        group until now.
        """
        if change.records.before is not None:
            return None
        topic_name = self.situation_of(change.group.group_id).topics.topic_name
        members = change.group.members
        before: dict[tuple[bytes, int], str] = {}
        after: dict[tuple[bytes, int], str] = {}
        looked_at = 0
        for member_id, had, has in change.given():
            looked_at += len(had) + len(has)
            if looked_at > MOVED_TOPICS_MAX or max(len(before), len(after)) > MOVED_MAX:
                return None
            for owners, mine, others in ((before, had, has), (after, has, had)):
                for topic_id, partitions in mine.items():
                    gone = partitions - others.get(topic_id, frozenset())
                    owners.update(dict.fromkeys(((topic_id, partition) for partition in gone), member_id))

        def named(owner_id: str | None) -> Identity | None:
            member = None if owner_id is None else members.get(owner_id)
            return None if member is None else identity(member)

        return sorted(
            (name, partition, named(before.get((topic_id, partition))), named(after.get((topic_id, partition))))
            for topic_id, partition in {**before, **after}
            if (name := topic_name(topic_id)) is not None
        )

    def _note_subscription(self, group_id: str, kind: Kind, member: ConsumerMember, reason: str, **more: str) -> None:
        of = member.subscription
        protocols = [] if of.classic is None else [cut(name) for name, _ in of.classic.protocols[:10]]
        # What an expression means may not be known yet, and changes: such a member is compared with no other.
        topics = None if of.topic_regex else list(of.topic_names[:TOPICS_MAX])
        self.note(group_id, kind, member, reason=cut(reason), protocols=protocols, topics=topics, **more)

    def carry_out(self, change: Change, answer: R, failure: Callable[[ErrorCode], R]) -> R | Pending[R]:
        """Write what a decision has changed. The answer is given when nothing that it says can be lost any more."""
        group = change.group
        if self.by_id.get(group.group_id) is group:
            self.arm(group)
        if change.question is not None and group.question is None:
            group.question = change.question
            self._turns.begin(self._assign(group, change.question))
        if not change.records.count and not self._shard.has_writes(group.group_id):
            return answer
        pending: Pending[R] = Pending()

        def done(error: ErrorCode) -> None:
            error = change.failed or error
            pending.complete(failure(error) if error else answer)

        self.write(change, done)
        return pending

    def _assign(self, group: ConsumerGroup, question: Question) -> Pieces[None]:
        """Compute and write the target assignment of a large group. Members live on the one before it until then.

        What has changed in the group meanwhile has an epoch of its own, and an assignment after this one.
        """
        group_id = group.group_id
        try:
            topics = self.situation_of(group_id).topics
            changed = yield from target.answer_encoded(group_id, question, topics)
            if not (yield from self.released(group_id)):
                return
            if group.question is not question or self.by_id.get(group_id) is not group:  # taken back, or gone
                return
        finally:
            if group.question is question:
                group.question = None
        if target.holds(group, question):
            change = Change(group)
            target.update_encoded(change, question, changed, self._clock.now_ms())
            self.write(change, lambda error: None)

    def released(self, group_id: str) -> Pieces[bool]:
        """Wait in a task of `turns` until no other decision holds the group. False: it was not in time."""
        while self._shard.is_held(group_id):
            if not (yield self._shard.until_released(group_id)):
                return False
        return True

    def remove_members(self, change: Change, member_ids: list[str]) -> None:
        """Members are gone. If only classic ones are left, the group becomes a classic one, where that is allowed."""
        if not self._become_classic(change, set(member_ids), "the last member of the consumer protocol is gone"):
            heartbeats.fence(change, member_ids, self.situation_of(change.group.group_id).topics)

    def end_with_replacement(self, change: Change, answer: JoinGroupResponse, version: int) -> JoinGroupResponse:
        """A classic member is in the place of a static one of the consumer protocol. If that was the last one, the
        group becomes a classic one, where that is allowed. It goes on without a rebalance if nobody misses anything:
        then the member is told that it leads (KIP-814), because a leader looks for new partitions.
        """
        misses_nothing = change.group.state is GroupState.STABLE
        reason = None if misses_nothing else "a classic member is in the place of the last one of the consumer protocol"
        if not self._become_classic(change, set(), reason, answer.member_id):
            return answer
        classic = self._shard.groups[change.group.group_id]
        if misses_nothing:
            return classic.answer_returned(answer.member_id, version, "")
        answer.protocol_name = classic.rebalance.protocol_name
        return answer

    def _become_classic(self, change: Change, gone: set[str], reason: str | None, leader: str | None = None) -> bool:
        """If all members that are not gone are classic ones, the group becomes a classic one, where that is allowed."""
        group = change.group
        situation = self.situation_of(group.group_id)
        settings = situation.settings
        if not conversion.may_downgrade(group, gone, settings.migration_policy, settings.classic_size_max):
            return False
        group_id = group.group_id
        record, supported = conversion.downgrade(change, gone, situation.topics, self._clock.now_ms(), leader)
        self.forget(group_id)
        undo = self._shard.become_classic(record, supported, reason)

        def restore() -> None:
            undo()
            self.by_id.setdefault(group_id, group)

        change.restore = restore
        logger.info("group %s: is a classic group now, because only classic members are left", group_id)
        return True

    def live_reset(self, group: ConsumerGroup, commits: OffsetCommits) -> tuple[Change, tuple[Identity, ...]]:
        """Throw out all members: a decision that is written together with offsets. live_reset.py has the rules.

        Returns also who was a member.
        """
        change = Change(group)
        change.records.commits = commits
        thrown = tuple(map(identity, group.members.values()))
        if thrown:
            heartbeats.reset(change, self.situation_of(group.group_id).topics)
            group.fenced_until_ms = self._clock.monotonic_ms() + FENCE_MS
            details = {"generation": group.epoch, "partitions": commits.count, "members": len(thrown)}
            self.note(group.group_id, Kind.LIVE_RESET, None, **details)
            logger.info(
                "group %s: live reset of %s, %s must join again",
                *(group.group_id, counted(commits.count, "partition"), counted(len(thrown), "member")),
            )
        return change, thrown

    def write(self, change: Change, done: Done, *, patient: bool = False) -> None:
        """Write what a decision has changed. Who holds the group must be `patient` (coordinators/shard.py)."""
        group = change.group
        change.event = self._assignment(change)
        if change.records.count:
            group.unwritten.append(change)

        def ended(error: ErrorCode) -> None:
            if error is not ErrorCode.REQUEST_TIMED_OUT and change in group.unwritten:
                if error:
                    self._take_back(change, error)
                else:
                    self._committed(group.unwritten.pop(group.unwritten.index(change)))
            done(change.failed or error)

        self._shard.write(group.group_id, change.records if change.records.count else None, ended, patient=patient)

    def _committed(self, change: Change) -> None:
        if change.event is not None:
            self._shard.events.note(change.group.group_id, (change.event,))

    def _take_back(self, change: Change, error: ErrorCode) -> None:
        """The log did not take a decision: neither it nor those after it have happened."""
        group = change.group
        position = group.unwritten.index(change)
        gone = group.unwritten[position:]
        del group.unwritten[position:]
        group.seen_topics = group.seen_names = -1  # what followed from the topics has not happened
        group.question = None  # nor what raised it
        for each in reversed(gone):
            each.failed = error
            each.take_back()
            self._shard.withdraw(each.records)
        if self._shard.closed:
            return
        logger.log(self.log_level(logging.WARNING), "group %s: could not be stored: %s", group.group_id, error.name)
        self._failed_ms = self._clock.monotonic_ms()
        if not group.exists and not group.members:
            self.forget(group.group_id)
        else:
            self._start_missing_sessions(group)

    def delete(self, group: ConsumerGroup, done: Done) -> None:
        """Remove a group that has no members. The caller holds it."""
        change = Change(group)
        heartbeats.delete(change)
        self.write(change, done, patient=True)

    def delete_for_classic(self, group: ConsumerGroup) -> None:
        """A classic member joins a group that has no members: it becomes a classic group. Its offsets stay."""
        group_id = group.group_id
        change = Change(group)
        heartbeats.delete(change)
        self.forget(group_id)

        def restore() -> None:
            self._shard.end_classic(group_id)
            self.by_id.setdefault(group_id, group)

        change.restore = restore
        self.write(change, lambda error: None)

    # ---- records ----

    def replay(self, records: ConsumerRecords) -> None:
        """These records are committed. A living group was changed before; only its end is made here."""
        group = self.by_id.get(records.group_id)
        if group is None:
            return
        if group.unwritten and group.unwritten[0].records is records:
            self._committed(group.unwritten.pop(0))
        if not group.exists and not group.members and not group.unwritten:
            self.forget(records.group_id)

    def load(self, group_id: str, record: Record) -> None:
        """Apply a record that a load has read."""
        group = self.by_id.get(group_id)
        if group is None:
            if record.value is None:
                return
            group = self.by_id[group_id] = ConsumerGroup(group_id)
        group.apply((record,))
        if record.kind is RecordKind.GROUP and record.value is None:
            del self.by_id[group_id]

    def end_load(self) -> None:
        """Everything is read: what is left of groups that are gone is dropped.

        After damage, a group may be in an earlier epoch than its assignment, and would not be assigned to.
        """
        for group_id in [each for each, group in self.by_id.items() if not group.exists and not group.members]:
            del self.by_id[group_id]
        for group in self.by_id.values():
            if group.epoch < group.assignment_epoch:
                group.of_group = group.of_group._replace(epoch=group.assignment_epoch)

    def forget(self, group_id: str) -> None:
        """The group is gone."""
        group = self.by_id.pop(group_id, None)
        if group is not None:
            group.timers.stop()

    # ---- timers ----

    def start_sessions(self, group: ConsumerGroup) -> None:
        """Call after loading: every member has its full session timeout, and time to give up partitions."""
        now_ms = self._clock.monotonic_ms()
        group.fenced_until_ms = now_ms + FENCE_MS
        for member in group.members.values():
            if member.current.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
                timeout_ms = member.subscription.rebalance_timeout_ms
                group.timers.set(group.timers.revocations, member.member_id, now_ms, timeout_ms, member.epoch)
        self._start_missing_sessions(group)

    def _start_missing_sessions(self, group: ConsumerGroup) -> None:
        now_ms = self._clock.monotonic_ms()
        timeout_ms = self.situation_of(group.group_id).settings.session_timeout_ms
        for member_id, member in group.members.items():
            if member_id not in group.timers.sessions:
                classic = member.subscription.classic
                own_ms = timeout_ms if classic is None else classic.session_timeout_ms
                group.timers.set(group.timers.sessions, member_id, now_ms, own_ms)
        for member_id in [each for each in group.timers.sessions if each not in group.members]:
            group.timers.forget(member_id)
        self.arm(group)

    def arm(self, group: ConsumerGroup) -> None:
        """Set the timer of a group for its next deadline."""
        timers = group.timers
        if timers.wake_ms >= timers.armed_ms:
            return
        timers.stop()
        timers.armed_ms = timers.wake_ms
        delay_ms = max(timers.wake_ms - self._clock.monotonic_ms(), 0)
        timers.timer = self._clock.call_later(delay_ms, lambda: self._on_time(group))

    def recover_timer(self, group_id: str, late_ms: float) -> None:
        """Do what is due in a group that is `late_ms` late: its timer was lost, or its last attempt failed."""
        group = self.by_id.get(group_id)
        if group is not None and group.timers.wake_ms + late_ms < self._clock.monotonic_ms():
            group.timers.stop()
            self._on_time(group)

    def _on_time(self, group: ConsumerGroup) -> None:
        timers = group.timers
        timers.timer = None
        timers.armed_ms = NEVER
        if self._shard.closed or self.by_id.get(group.group_id) is not group:
            return
        now_ms = self._clock.monotonic_ms()
        gone: dict[str, None] = {}
        for member_id, deadline in timers.due(timers.sessions, now_ms):
            gone[member_id] = None
            member = group.members[member_id]
            setting = "session.timeout.ms" if member.is_classic else SESSION_TIMEOUT
            details = {"session_timeout_ms": deadline.timeout_ms, "setting": setting, "is_new": False}
            kind = Kind.NOT_BACK if member.epoch == STATIC_LEAVE_EPOCH else Kind.SILENT
            self.note(group.group_id, kind, member, **details)
            logger.info(
                "group %s: member %s was silent for %d ms, and is removed",
                *(group.group_id, who(group.members[member_id]), deadline.timeout_ms),
            )
        for kind, which in (
            (Kind.DID_NOT_REVOKE, timers.revocations),
            (Kind.DID_NOT_JOIN, timers.joins),
            (Kind.DID_NOT_SYNC, timers.syncs),
        ):
            for member_id, deadline in timers.due(which, now_ms):
                del which[member_id]
                member = group.members[member_id]
                if member.epoch == deadline.epoch and member_id not in gone:
                    gone[member_id] = None
                    self.note(group.group_id, kind, member, rebalance_timeout_ms=deadline.timeout_ms)
                    logger.info(
                        "group %s: member %s %s within its rebalance timeout of %d ms, and is removed",
                        *(group.group_id, who(member), kind.value, deadline.timeout_ms),
                    )
        timers.next_wake()
        self.expire(group, list(gone))

    def expire(self, group: ConsumerGroup, member_ids: list[str]) -> None:
        """Remove members. They hear of it when they ask next.

        A few at a time, because all together may not fit into a batch. Classic members go first, so that none of them
        comes into the classic group that the last of the others may leave behind.
        """
        for some in _pieces(group, sorted(member_ids, key=lambda each: not group.members[each].is_classic)):
            change = Change(group)
            self.remove_members(change, some)
            self.write(change, lambda error: None)
        if self.by_id.get(group.group_id) is group:
            self.arm(group)

    def close(self) -> None:
        """This broker does not lead the partition any more."""
        for group in self.by_id.values():
            group.timers.stop()
        self.by_id = {}


def _pieces(group: ConsumerGroup, member_ids: list[str]) -> Iterator[list[str]]:
    """Members whose removal is one write: as many as have short names, one that has a long one."""
    some: list[str] = []
    size = 0
    for member_id in member_ids:
        characters = len(group.group_id) + len(member_id)  # of each key
        if some and size + characters > REMOVAL_CHARACTERS_MAX:
            yield some
            some, size = [], 0
        some.append(member_id)
        size += characters
    if some:
        yield some
