"""One offsets partition in the memory of its coordinator: the groups and their committed offsets.

`write` is in the base class (coordinators/shard.py): it appends records, and when they are committed it calls `replay`
here. The table of offsets is changed by replay alone, so it holds only committed offsets. The state of a group with
members is not made by replay: it changes before its record is written, and the record is what a restart will find
(rebalance.py).

`offsets.commit.required.acks` says when a record counts as committed. -1: when the high watermark has passed it. 1:
when it is in the log here; a leader change may lose it. 0: whether or not the log took it; what the log did not take is
gone after a restart. In each case the log decides what is loaded. Deletions and live resets always hear of a failure.

Deletion and expiry decide from the age or the absence of a value, so they take the group with `hold`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import MAY_PASS, TOO_LARGE
from barnabas.coordinators.groups.classic import ClassicGroup
from barnabas.coordinators.groups.consumer.heartbeats import Situation
from barnabas.coordinators.groups.consumer.records import ConsumerRecords
from barnabas.coordinators.groups.consumer.runtime import ConsumerGroups
from barnabas.coordinators.groups.effects import Effects
from barnabas.coordinators.groups.events import EventBook
from barnabas.coordinators.groups.members import CONSUMER_PROTOCOL_TYPE, Member, Supported
from barnabas.coordinators.groups.records import GroupRecord, ResetRecords
from barnabas.coordinators.groups.states import State
from barnabas.coordinators.shard import (
    AT_ONCE_MAX,
    CoordinatorLog,
    CoordinatorShard,
    Done,
    Write,
)
from barnabas.offsets.expiry import SIMPLE, GroupSituation
from barnabas.offsets.journal_writer import PartitionJournal
from barnabas.offsets.records import OffsetCommits, OffsetRemovals, PendingCommits, TopicPartition, TransactionEnd
from barnabas.offsets.table import OffsetTable, partitions_of
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import Pieces

logger = logging.getLogger("barnabas.groups")

StoredRecords: TypeAlias = (
    OffsetCommits | OffsetRemovals | GroupRecord | ResetRecords | PendingCommits | TransactionEnd | ConsumerRecords
)
NO_ACKS: Final = 0
# So late do members hear that their group could not be stored: some clients join again at once, thousands of times a
# second. Kafka 4.3 appends even so, and tells them after offsets.commit.timeout.ms.
TOLD_AFTER_MS: Final = 1_000.0
T = TypeVar("T")


class Shard(CoordinatorShard[StoredRecords]):
    """The groups and offsets of one offsets partition, for the one leader epoch in which this broker owns it."""

    __slots__ = (
        "_config",
        "_pending_origins",
        "after_loading",
        "consumer",
        "events",
        "foreign_groups",
        "groups",
        "in_doubt",
        "journal",
        "offsets",
    )
    kind = "offsets"
    logger = logger

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        log: CoordinatorLog,
        env: Env,
        config: BrokerConfig,
        consumer_situation: Callable[[str], Situation],
        events: EventBook | None = None,
    ) -> None:
        super().__init__(
            partition,
            leader_epoch,
            log,
            env,
            acks=config.offsets_commit_required_acks,
            codec=config.offsets_topic_compression_codec,
            write_timeout_ms=config.offsets_commit_timeout_ms,
        )
        self.events = EventBook() if events is None else events
        self.after_loading: list[Callable[[], object]] = []
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer = ConsumerGroups(env, self, consumer_situation)  # groups of KIP-848; no id is in both
        self.foreign_groups: dict[str, str] = {}  # group id -> type, for groups of later protocols: never changed here
        self.offsets = OffsetTable()
        # While it loads and waits for replicas: by group, which offsets what is not committed may change. The table has
        # what is committed. None: it cannot be read yet, or it is loaded.
        self.in_doubt: dict[str, set[TopicPartition]] | None = None
        self.journal: PartitionJournal | None = None  # once it is loaded
        # Who commits in open transactions, by producer id and group, for the journal. After a load nobody knows it.
        self._pending_origins: dict[int, dict[str, bytes]] = {}
        self._config = config

    # ---- writing ----

    def _end_failed(self, writes: list[Write[StoredRecords]], error: ErrorCode) -> None:
        """The log did not take these writes. With acks 0 they are in the table all the same."""
        kept = 0
        offset = self.log.log_end_offset - 1  # older than what will be written
        for write in writes:
            if self._acks == NO_ACKS and error not in TOO_LARGE and not write.patient and write.producer is None:
                if write.records is not None:
                    if type(write.records) is OffsetCommits:
                        # They follow one another, and these have one offset for all.
                        write.records.packed = write.records.columns = None
                    self.replay(write.records, offset)
                    if type(write.records) is OffsetCommits:
                        write.records.set_record_offset(offset)
                    kept += write.records.count
                self._end(write, ErrorCode.NONE)
            else:
                self._end(write, error)
        if kept:
            logger.warning(
                "offsets partition %d: %s in memory only, because offsets.commit.required.acks is 0",
                self.partition,
                counted(kept, "record is", "records are"),
            )

    def remove_group(self, group_id: str, done: Done) -> None:
        """Write the tombstones of a group that is empty and has no offsets."""
        group = self.consumer.by_id.get(group_id)
        if group is None:
            self.write(group_id, GroupRecord(group_id, None), done, patient=True)
        else:
            self.consumer.delete(group, done)

    def become_classic(self, record: GroupRecord, supported: Supported, reason: str | None) -> Callable[[], None]:
        """Take over a consumer group that is a classic one now. Returns what undoes that.

        `supported`: the protocols of each member. `reason`: of the rebalance that begins; None: there is none.
        """
        assert record.metadata is not None
        group = ClassicGroup.restore(record.group_id, self._config, record.metadata, supported)
        self.groups[record.group_id] = group
        group.start_sessions(self._clock.monotonic_ms())
        effects = self.effects()
        if reason is not None:
            group.rebalance.prepare(reason, effects)
        self.run_effects(group, effects)

        def undo() -> None:
            if self.groups.get(record.group_id) is group:
                self.end_classic(record.group_id)

        return undo

    def end_classic(self, group_id: str) -> None:
        """The record of a classic group is gone; or the end of the consumer group that it follows is not in the log."""
        group = self.groups.pop(group_id, None)
        if group is not None and group.state is not State.DEAD:
            stop_timer(group)
            effects = self.effects()
            group.rebalance.die(ErrorCode.COORDINATOR_NOT_AVAILABLE, effects)
            effects.send_replies()

    def become_consumer(self, group_id: str) -> Callable[[], None] | None:
        """A classic group is a consumer group now: its waiting members join again. Returns what undoes that."""
        group = self.groups.pop(group_id, None)
        if group is None:
            return None
        stop_timer(group)
        effects = self.effects()
        group.rebalance.answer_parked(ErrorCode.REBALANCE_IN_PROGRESS, effects)
        effects.send_replies()

        def undo() -> None:
            if self.groups.setdefault(group_id, group) is group:
                group.start_sessions(self._clock.monotonic_ms())
                self.run_effects(group, self.effects())

        return undo

    def withdraw(self, records: ConsumerRecords) -> None:
        """Do not append these records, if they are not appended yet. Their writer hears of it with the others."""
        if any(write.records is records for write in self._unwritten):
            self._unwritten_count -= records.count
        records.records = []
        records.before = records.after = records.commits = None

    def alone(self, group_id: str, late: T, closed: T, action: Callable[[Callable[[T], None]], None]) -> Pending[T]:
        """Hold the group for `action`, which gets a function to call at the end, with the outcome.

        After offsets.commit.timeout.ms the outcome is `late`. If it was so before the group could be held, or if this
        broker has lost the partition, nothing is done, and the outcome is `late` or `closed`.
        """
        outcome: Pending[T] = Pending()
        self.limit(outcome, late)

        def end(result: T) -> None:
            self.release(group_id)
            if not outcome.done:
                outcome.complete(result)

        def act() -> None:
            if self.closed or outcome.done:
                end(closed)
            else:
                action(end)

        self.hold(group_id, act)
        return outcome

    def until_released(self, group_id: str) -> Pending[bool]:
        """True when the held group is released. False: it was not in time, because replicas are missing, say."""
        released: Pending[bool] = Pending()

        def is_released() -> None:
            if not released.done:
                released.complete(True)

        self.after_hold(group_id, is_released)
        self.limit(released, False)
        return released

    def limit(self, outcome: Pending[T], late: T) -> None:
        """After offsets.commit.timeout.ms the outcome is `late`, if it is not there. Its owner must look at `done`."""

        def too_late() -> None:
            if not outcome.done:
                outcome.complete(late)

        self._clock.call_later(self._write_timeout_ms, too_late)

    # ---- the table ----

    def replay(self, records: StoredRecords, record_offset: int) -> None:
        """Apply committed records. Only this method changes the offsets table and removes groups.

        The state of a living group does not come from its records: it changed before they were written.
        """
        if type(records) is OffsetCommits:
            if records.group_id not in self.groups:
                self._make_group(records.group_id)
            if self.journal is not None:
                self.journal.note(records, record_offset)
            self.offsets.replay(records, record_offset)  # as `_change`, without a call
        elif isinstance(records, PendingCommits):
            self._replay_pending(records, record_offset)
        elif isinstance(records, TransactionEnd):
            self._end_transaction(records, record_offset)
        elif isinstance(records, ResetRecords):
            self._make_group(records.group_id)
            self._change(records.commits, record_offset)
        elif isinstance(records, ConsumerRecords):
            if records.commits is not None:
                self._change(records.commits, record_offset)
            self.consumer.replay(records)
            if records.group_id not in self.consumer.by_id and records.group_id not in self.groups:
                self.events.forget(records.group_id)
        elif not isinstance(records, GroupRecord):
            self._change(records, record_offset)
        elif records.metadata is None:
            self.events.forget(records.group_id)
            self.end_classic(records.group_id)

    def _make_group(self, group_id: str) -> None:
        """A group that commits without members exists by its offsets, committed or pending."""
        if group_id not in self.groups and group_id not in self.foreign_groups and group_id not in self.consumer.by_id:
            self.groups[group_id] = ClassicGroup(group_id, self._config, self._clock.now_ms())

    def _change(self, records: OffsetCommits | OffsetRemovals, record_offset: int) -> None:
        if self.journal is not None:
            self.journal.note(records, record_offset)
        self.offsets.replay(records, record_offset)

    def _replay_pending(self, records: PendingCommits, record_offset: int) -> None:
        commits, producer_id = records.commits, records.producer_id
        self._make_group(commits.group_id)
        if self.journal is not None:
            self._pending_origins.setdefault(producer_id, {})[commits.group_id] = commits.origin
        self.offsets.replay(commits, record_offset, producer_id)

    def _end_transaction(self, end: TransactionEnd, record_offset: int) -> None:
        """Commit or drop the pending offsets of a producer."""
        origins = self._pending_origins.pop(end.producer_id, {})
        if end.is_commit and self.journal is not None:
            self.journal.note_transaction(end.producer_id, record_offset, origins)
        self.offsets.replay_end_transaction(end.producer_id, end.is_commit, record_offset)

    def uncommitted_offsets(self, group_id: str) -> set[TopicPartition]:
        """The partitions of a group whose offset will change when all that is in the log is committed.

        The end of a transaction is left out: its offsets are pending.
        """
        if self.in_doubt is not None:
            return self.in_doubt.get(group_id, set())
        found: set[TopicPartition] = set()
        for write in self.uncommitted_writes(group_id):
            records = write.records
            if isinstance(records, OffsetRemovals):
                found.update(records.partitions)
            elif isinstance(records, OffsetCommits):
                found.update(partitions_of(records.offsets))
            elif isinstance(records, PendingCommits | ResetRecords | ConsumerRecords) and records.commits is not None:
                found.update(partitions_of(records.commits.offsets))
        return found

    def situation(self, group_id: str) -> GroupSituation | None:
        """What expiry needs to know of a group; None: its offsets must not be removed."""
        if group_id in self.foreign_groups:
            return None
        group = self.groups.get(group_id)
        if group is None:
            consumer = self.consumer.by_id.get(group_id)
            if consumer is None:
                return SIMPLE
            # Offsets of topics that members read stay, in each state; the others count from their commit.
            is_empty = not consumer.members
            topics = consumer.subscribed_topics()
            return GroupSituation(None if is_empty else CONSUMER_PROTOCOL_TYPE, is_empty, not is_empty, None, topics)
        if group.members.pending:
            return None  # a client was given a member id, and will join with it
        state = group.state
        return GroupSituation(
            group.rebalance.protocol_type,
            state is State.EMPTY,
            state is State.STABLE,
            group.rebalance.state_timestamp_ms,
            group.rebalance.subscribed_topics,
        )

    def group_ids(self) -> list[str]:
        """All groups with a state or offsets here."""
        return list(dict.fromkeys([*self.groups, *self.consumer.by_id, *self.offsets.group_ids()]))

    def effects(self) -> Effects:
        """What a transition asks for, begun now."""
        return Effects(self._clock.now_ms(), self._clock.monotonic_ms())

    def run_effects(self, group: ClassicGroup, effects: Effects) -> None:
        """Do what a transition has requested: first records, then the timer, then replies."""
        if effects.events:
            self.events.note(group.group_id, effects.events)
        for record, then in effects.stores:
            self.write(group.group_id, record, self._stored(group, then))
        if group.rebalance.wake_ms < group.timer_ms:
            self._arm(group)
        if len(effects.replies) > AT_ONCE_MAX:  # each is encoded and sent, which takes long for a large group
            self._turns.begin(_reply_to_all(effects.replies))
        else:
            effects.send_replies()

    def _stored(self, group: ClassicGroup, then: Callable[[ErrorCode, Effects], None] | None) -> Done:
        def done(error: ErrorCode) -> None:
            if then is None:
                if error and not group.rebalance.is_unstorable:
                    logger.warning("group %s: could not be stored: %s", group.group_id, error.name)
                group.rebalance.is_unstorable = self.is_unstorable
            elif error in MAY_PASS:
                self._clock.call_later(TOLD_AFTER_MS, lambda: tell(error))
            else:
                tell(error)

        def tell(error: ErrorCode) -> None:
            assert then is not None
            if group.state is State.DEAD or self.groups.get(group.group_id) is not group:
                return  # it is a consumer group by now, and all who waited have been answered
            effects = self.effects()
            then(error, effects)
            group.rebalance.is_unstorable = self.is_unstorable
            self.run_effects(group, effects)

        return done

    def _arm(self, group: ClassicGroup) -> None:
        stop_timer(group)
        group.timer_ms = group.rebalance.wake_ms
        delay_ms = max(group.rebalance.wake_ms - self._clock.monotonic_ms(), 0)
        group.timer = self._clock.call_later(delay_ms, lambda: self._on_time(group))

    def _on_time(self, group: ClassicGroup) -> None:
        group.timer = None
        group.timer_ms = float("inf")
        if self.closed or group.state is State.DEAD or self.groups.get(group.group_id) is not group:
            return
        effects = self.effects()
        group.rebalance.on_time(effects)
        self.run_effects(group, effects)

    def expire(self, group: ClassicGroup, member: Member) -> bool:
        """Take a member out as if it had been silent for too long. False: it waits for an answer, so it lives."""
        if member.awaiting_join is not None or member.awaiting_sync is not None:
            return False
        member.session_deadline_ms = self._clock.monotonic_ms()
        self._on_time(group)
        return True

    def recover_timer(self, group_id: str, late_ms: float) -> None:
        """Do what is due in a group that is `late_ms` late: its timer was lost, or its last attempt failed."""
        self.consumer.recover_timer(group_id, late_ms)
        group = self.groups.get(group_id)
        if group is not None and group.rebalance.wake_ms + late_ms < self._clock.monotonic_ms():
            stop_timer(group)
            self._on_time(group)

    # ---- the end ----

    def _end_keys(self) -> Sequence[tuple[Pending[Any], Message]]:
        """All groups die. Their parked requests are answered when no write of theirs is left."""
        effects = self.effects()
        for group in self.groups.values():
            if group.state is not State.DEAD:
                group.rebalance.die(ErrorCode.NOT_COORDINATOR, effects)
            stop_timer(group)
        assert not effects.stores
        return effects.replies

    def _drop(self) -> None:
        self.groups = {}
        self.consumer.close()
        self.offsets = OffsetTable()
        if self.journal is not None:
            self.journal.close()


def _reply_to_all(replies: list[tuple[Pending[Any], Message]]) -> Pieces[None]:
    for waiter, reply in replies:
        yield
        waiter.complete(reply)


def stop_timer(group: ClassicGroup) -> None:
    timer = group.timer
    if timer is not None:
        timer.cancel()
    group.timer = None
    group.timer_ms = float("inf")
