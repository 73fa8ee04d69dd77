"""One offsets partition in the memory of its coordinator: decide -> append -> replay at commit -> reply.

A decision gives records to `write`. All records of one pass of the loop are appended together. When the high watermark
passes them, each record is replayed into the table, in order, and then its writer is called. So the table holds only
committed offsets, and loading after a restart is the same replay. The state of a group with members is not made by
replay: it changes before its record is written, and the record is what a restart will find (rebalance.py).

`offsets.commit.required.acks` says when a record counts as committed. -1: when the high watermark has passed it. 1:
when it is in the log here; a leader change may lose it. 0: whether or not the log took it; what the log did not take is
gone after a restart. In each case the log decides what is loaded. Deletions and live resets always hear of a failure.

Deletion and expiry decide from the age or the absence of a value, so no write of the group may be in flight. They take
the group with `hold`: it waits for the writes in flight, and later requests of the group wait until `release`.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from barnabas.groups.classic import ClassicGroup, State
from barnabas.groups.events import EventBook
from barnabas.groups.member import Effects
from barnabas.groups.records import GroupRecord, ResetRecords
from barnabas.offsets.expiry import SIMPLE, GroupSituation
from barnabas.offsets.journal_writer import PartitionJournal
from barnabas.offsets.records import OffsetCommits, OffsetRemovals
from barnabas.offsets.table import OffsetTable
from barnabas.protocol.batch_records import PlainRecords
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.protocol.record_batch import build_plain
from barnabas.replication.partition import ALL_IN_SYNC, Partition
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer, Env, Timer
from barnabas.runtime.turns import Pieces
from barnabas.storage.validation import AppendOrigin, AppendResult

logger = logging.getLogger("barnabas.groups")

StoredRecords = OffsetCommits | OffsetRemovals | GroupRecord | ResetRecords
Done = Callable[[ErrorCode], None]
AT_ONCE_MAX = 100  # so many records are appended, or requests answered, at once; more are a work of `turns`
BATCH_RECORDS_MAX = 500  # a batch with so many records takes no further write
NO_ACKS = 0
UNSTORABLE_MS = 5_000.0  # how long a failed append counts

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)


class CoordinatorLog(Protocol):
    """The log of one partition of `__consumer_offsets`, which this broker leads."""

    @property
    def leader_epoch(self) -> int:
        """Epoch in which this broker leads."""

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """Offset the next record will get."""

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed yet."""

    def append(self, batch: Buffer, required_acks: int) -> AppendResult:
        """Append; with -1 only if enough replicas are in sync. The error is in the result."""

    def park_until(self, offset: int, waiter: Callable[[ErrorCode], None]) -> object:
        """Call `waiter(NONE)` when the high watermark has reached `offset`, or with the error why it will not."""

    def read(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from `offset` up to the log end, at least one; empty at the end. OSError when it fails."""


class PartitionLog:
    """A `CoordinatorLog` over the local replica."""

    __slots__ = ("partition",)

    def __init__(self, partition: Partition) -> None:
        self.partition = partition

    @property
    def leader_epoch(self) -> int:
        """Epoch in which this broker leads."""
        return self.partition.leader_epoch

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self.partition.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset the next record will get."""
        return self.partition.log_end_offset

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed yet."""
        return self.partition.log.high_watermark

    def append(self, batch: Buffer, required_acks: int) -> AppendResult:
        """Append; with -1 only if enough replicas are in sync."""
        return self.partition.append_as_leader(batch, origin=AppendOrigin.COORDINATOR, required_acks=required_acks)

    def park_until(self, offset: int, waiter: Callable[[ErrorCode], None]) -> object:
        """Wait for the high watermark."""
        return self.partition.park_until(offset, waiter)

    def read(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from `offset`. OSError when they cannot be read."""
        log = self.partition.log
        data = log.read(offset, max_bytes, upper_bound=log.log_end_offset, at_least_one=True)
        if data.error:
            raise OSError(f"reading {log.topic}-{log.partition} at {offset}: {data.error.name}")
        return data.records


class ShardConfig(Protocol):
    """The settings of a shard."""

    group_initial_rebalance_delay_ms: int
    group_max_size: int
    offsets_commit_required_acks: int
    offsets_commit_timeout_ms: int
    offsets_topic_compression_codec: int


class _Write:
    """Records that were decided together, and the callback for their outcome."""

    __slots__ = ("done", "group_id", "patient", "records")

    def __init__(self, group_id: str, records: StoredRecords | None, done: Done, patient: bool) -> None:
        self.group_id = group_id
        self.records = records
        self.done: Done | None = done
        self.patient = patient


class _Batch:
    """Writes that were appended as one batch and are not committed yet."""

    __slots__ = ("base_offset", "deadline_ms", "end_offset", "writes")

    def __init__(self, writes: list[_Write], base_offset: int, end_offset: int, deadline_ms: float) -> None:
        self.writes = writes
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.deadline_ms = deadline_ms


class Shard:
    """The groups and offsets of one offsets partition, for the one leader epoch in which this broker owns it."""

    __slots__ = (
        "_acks",
        "_clock",
        "_config",
        "_failed_ms",
        "_flush_is_due",
        "_held_groups",
        "_in_flight",
        "_quiet_waiters",
        "_timeout_timer",
        "_turns",
        "_unwritten",
        "_unwritten_count",
        "_writing",
        "after_loading",
        "closed",
        "events",
        "foreign_groups",
        "groups",
        "journal",
        "leader_epoch",
        "loading",
        "log",
        "offsets",
        "partition",
    )

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        log: CoordinatorLog,
        env: Env,
        config: ShardConfig,
        events: EventBook | None = None,
    ) -> None:
        self.events = EventBook() if events is None else events
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.log = log
        self.loading = True
        self.after_loading: list[Callable[[], object]] = []
        self.closed = False
        self.groups: dict[str, ClassicGroup] = {}
        self.foreign_groups: dict[str, str] = {}  # group id -> type, for groups of later protocols: never changed here
        self.offsets = OffsetTable()
        self.journal: PartitionJournal | None = None  # once it is loaded
        self._acks = config.offsets_commit_required_acks
        self._clock = env.clock
        self._turns = env.turns
        self._config = config
        self._unwritten: deque[_Write] = deque()
        self._unwritten_count = 0  # how many records they have
        self._flush_is_due = False
        self._in_flight: deque[_Batch] = deque()
        self._writing: dict[str, int] = {}  # group -> number of writes that are not committed yet
        self._quiet_waiters: dict[str, list[Callable[[], None]]] = {}
        self._held_groups: dict[str, deque[Callable[[], None]]] = {}  # held group -> what waits for its release
        self._timeout_timer: Timer | None = None
        self._failed_ms = float("-inf")  # when the last append failed

    @property
    def log_end_offset(self) -> int:
        """Offset the next record will get."""
        return self.log.log_end_offset

    @property
    def waits_for_replicas(self) -> bool:
        """Whether records count only when the high watermark has passed them."""
        return self._acks == ALL_IN_SYNC

    # ---- writing ----

    def write(self, group_id: str, records: StoredRecords | None, done: Done, *, patient: bool = False) -> None:
        """Append the records, together with the others of this pass of the loop. `done` is called when they are
        committed and replayed, or with the error of the append. Without records: when all earlier writes are committed.

        After offsets.commit.timeout.ms `done` gets REQUEST_TIMED_OUT, though the records may still be committed. A
        `patient` writer waits for the real outcome instead. A writer that holds the group must be patient.
        """
        if self.closed:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        self._writing[group_id] = self._writing.get(group_id, 0) + 1
        self._unwritten.append(_Write(group_id, records, done, patient))
        if records is not None:
            self._unwritten_count += records.count
        if not self._flush_is_due:
            self._flush_is_due = True
            self._clock.call_soon(self._flush)

    def _flush(self) -> None:
        """Append the records of this pass: few records at once, many as a work of `turns`."""
        if self._unwritten_count <= AT_ONCE_MAX:
            self._flush_is_due = False
            self._append_some()
        else:
            self._turns.run(self._append_all())

    def _append_all(self) -> Pieces[None]:
        while self._unwritten:
            self._append_some()
            yield
        self._flush_is_due = False

    def _append_some(self) -> None:
        unwritten = self._unwritten
        writes: list[_Write] = []
        count = 0
        while unwritten and count < BATCH_RECORDS_MAX:
            write = unwritten.popleft()
            writes.append(write)
            count += 0 if write.records is None else write.records.count
        self._unwritten_count -= count
        if writes:
            self._append(writes)

    def _append(self, writes: list[_Write]) -> None:
        records = PlainRecords()
        for write in writes:
            if write.records is not None:
                write.records.append_to(records)
        if not records.count:
            end_offset = self._in_flight[-1].end_offset if self._in_flight else self.log.high_watermark
            self._park(writes, end_offset, end_offset)
            return
        codec = self._config.offsets_topic_compression_codec
        # Sequence 0 without a producer id, as in the batches of Kafka 4.1's coordinators.
        batch = build_plain(records, self._clock.now_ms(), codec=codec, base_sequence=0)
        result = self.log.append(batch, self._acks)
        if self.closed:  # the append failed, and this broker lost the leadership
            for write in writes:
                self._end(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if result.error:
            if len(writes) > 1 and result.error in _TOO_LARGE:
                for write in writes:  # only the write that is too large fails
                    self._append([write])
                return
            # The log itself has logged that it cannot be written. Here it would be a line for each commit.
            self._failed_ms = self._clock.monotonic_ms()
            level = logging.DEBUG if result.error is ErrorCode.KAFKA_STORAGE_ERROR else logging.WARNING
            logger.log(level, "offsets partition %d: append failed: %s", self.partition, result.error.name)
            self._end_failed(writes, result.error)
            return
        assert result.last_offset - result.base_offset == records.count - 1
        self._park(writes, result.base_offset, result.last_offset + 1)

    def _end_failed(self, writes: list[_Write], error: ErrorCode) -> None:
        """The log did not take these writes. With acks 0 they are in the table all the same."""
        kept = 0
        offset = self.log.log_end_offset - 1  # older than what will be written
        for write in writes:
            if self._acks == NO_ACKS and error not in _TOO_LARGE and not write.patient:
                if write.records is not None:
                    self.replay(write.records, offset)
                    if type(write.records) is OffsetCommits:
                        write.records.set_record_offset(offset)
                    kept += write.records.count
                self._end(write, ErrorCode.NONE)
            else:
                self._end(write, error)
        if kept:
            logger.warning(
                "offsets partition %d: %d records are in memory only, because offsets.commit.required.acks is 0",
                self.partition,
                kept,
            )

    def _park(self, writes: list[_Write], base_offset: int, end_offset: int) -> None:
        """Wait until the high watermark has passed the end. If the append has moved it there, commit at once."""
        if not self._in_flight and (self._acks != ALL_IN_SYNC or self.log.high_watermark >= end_offset):
            self._commit(writes, base_offset, end_offset)
            return
        timeout_ms = self._config.offsets_commit_timeout_ms
        self._in_flight.append(_Batch(writes, base_offset, end_offset, self._clock.monotonic_ms() + timeout_ms))
        self.log.park_until(end_offset, self._high_watermark_moved)
        if self._timeout_timer is None:
            self._timeout_timer = self._clock.call_later(timeout_ms, self._time_out_writes)

    def _high_watermark_moved(self, error: ErrorCode) -> None:
        if self.closed:
            return
        if error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._fail_in_flight(error)
            return
        # Records below the high watermark are committed, even if the ISR shrank since.
        self._commit_up_to(self.log.high_watermark)

    def _commit_up_to(self, high_watermark: int) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0].end_offset <= high_watermark and not self.closed:
            batch = in_flight.popleft()
            self._commit(batch.writes, batch.base_offset, batch.end_offset)

    def _commit(self, writes: list[_Write], offset: int, end_offset: int) -> None:
        for write in writes:
            if write.records is not None:
                self.replay(write.records, offset)
                offset += write.records.count
        assert offset == end_offset
        for write in writes:
            self._end(write, ErrorCode.NONE)

    def _end(self, write: _Write, error: ErrorCode) -> None:
        group_id = write.group_id
        left = self._writing[group_id] - 1
        if left:
            self._writing[group_id] = left
        else:
            del self._writing[group_id]
        done, write.done = write.done, None
        if done is not None:
            done(error)
        if not left and group_id in self._quiet_waiters and group_id not in self._writing:
            for waiter in self._quiet_waiters.pop(group_id):
                waiter()

    def _time_out_writes(self) -> None:
        """Tell writers that offsets.commit.timeout.ms has passed. Their records may still be committed later."""
        self._timeout_timer = None
        now = self._clock.monotonic_ms()
        for batch in list(self._in_flight):
            if batch.deadline_ms > now:
                self._timeout_timer = self._clock.call_later(batch.deadline_ms - now, self._time_out_writes)
                return
            for write in batch.writes:
                if not write.patient and write.done is not None:
                    done, write.done = write.done, None
                    done(ErrorCode.REQUEST_TIMED_OUT)

    def _fail_in_flight(self, error: ErrorCode) -> None:
        batches = list(self._in_flight)
        self._in_flight.clear()
        for batch in batches:
            for write in batch.writes:
                self._end(write, error)

    # ---- holding a group ----

    def is_quiet(self, group_id: str) -> bool:
        """Whether no write of the group is in flight, and the group is not held."""
        return group_id not in self._writing and group_id not in self._held_groups

    def is_held(self, group_id: str) -> bool:
        """Whether the group is held. It is, from `hold` to `release`."""
        return group_id in self._held_groups

    def hold(self, group_id: str, action: Callable[[], None]) -> None:
        """Hold the group, and run `action` when no write of it is in flight. `action` must lead to `release`."""
        waiting = self._held_groups.get(group_id)
        if waiting is not None:
            waiting.append(lambda: self.hold(group_id, action))
            return
        self._held_groups[group_id] = deque()
        if group_id in self._writing:
            self._quiet_waiters.setdefault(group_id, []).append(action)
        else:
            action()

    def after_hold(self, group_id: str, action: Callable[[], None]) -> None:
        """Run `action` when the held group is released."""
        self._held_groups[group_id].append(action)

    def release(self, group_id: str) -> None:
        """Release the group, and run the waiting actions in order. If one holds the group again, the others wait."""
        waiting = self._held_groups.pop(group_id, None)
        while waiting:
            action = waiting.popleft()
            action()
            held_again = self._held_groups.get(group_id)
            if held_again is not None:
                held_again.extend(waiting)
                return

    def remove_group(self, group_id: str, done: Done) -> None:
        """Write the tombstone of a group that is empty and has no offsets."""
        self.write(group_id, GroupRecord(group_id, None), done, patient=True)

    # ---- the table ----

    def replay(self, records: StoredRecords, record_offset: int) -> None:
        """Apply committed records. Only this method changes the offsets table and removes groups.

        The state of a living group does not come from its records: it changed before they were written.
        """
        group_id = records.group_id
        if isinstance(records, ResetRecords):
            records = records.commits
        if type(records) is OffsetCommits and group_id not in self.groups and group_id not in self.foreign_groups:
            self.groups[group_id] = ClassicGroup(group_id, self._config, self._clock.now_ms())
        if not isinstance(records, GroupRecord):
            if self.journal is not None:
                self.journal.note(records, record_offset, self.offsets)
            self.offsets.replay(records, record_offset)
        elif records.metadata is None:
            group = self.groups.pop(group_id, None)
            self.events.forget(group_id)
            if group is not None and group.state is not State.DEAD:
                effects = Effects(self._clock.now_ms(), self._clock.monotonic_ms())
                group.die(ErrorCode.COORDINATOR_NOT_AVAILABLE, effects)
                stop_timer(group)
                for waiter, reply in effects.replies:
                    waiter.complete(reply)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Commit or drop the pending offsets of a producer, whose control record is committed."""
        if committed and self.journal is not None:
            self.journal.note_transaction(producer_id, self.offsets)
        self.offsets.replay_end_transaction(producer_id, committed)

    def situation(self, group_id: str) -> GroupSituation | None:
        """What expiry needs to know of a group; None: its offsets must not be removed."""
        if group_id in self.foreign_groups:
            return None
        group = self.groups.get(group_id)
        if group is None:
            return SIMPLE
        if group.pending_members:
            return None  # a client was given a member id, and will join with it
        state = group.state
        return GroupSituation(
            group.protocol_type,
            state is State.EMPTY,
            state is State.STABLE,
            group.state_timestamp_ms,
            group.subscribed_topics,
        )

    def group_ids(self) -> list[str]:
        """All groups with a state or offsets here."""
        return list(dict.fromkeys([*self.groups, *self.offsets.group_ids()]))

    def run_effects(self, group: ClassicGroup, effects: Effects) -> None:
        """Do what a transition has requested: first records, then the timer, then replies."""
        if effects.events:
            self.events.note(group.group_id, effects.events)
        for record, then in effects.stores:
            self.write(group.group_id, record, self._stored(group, then))
        if group.wake_ms < group.timer_ms:
            self._arm(group)
        if len(effects.replies) > AT_ONCE_MAX:  # each is encoded and sent, which takes long for a large group
            self._turns.begin(_reply_to_all(effects.replies))
        else:
            for waiter, reply in effects.replies:
                waiter.complete(reply)

    def _stored(self, group: ClassicGroup, then: Callable[[ErrorCode, Effects], None] | None) -> Done:
        def done(error: ErrorCode) -> None:
            if then is None:
                if error and not group.is_unstorable:
                    logger.warning("group %s: could not be stored: %s", group.group_id, error.name)
                group.is_unstorable = self.is_unstorable
                return
            if group.state is State.DEAD:
                return
            effects = Effects(self._clock.now_ms(), self._clock.monotonic_ms())
            then(error, effects)
            group.is_unstorable = self.is_unstorable
            self.run_effects(group, effects)

        return done

    def _arm(self, group: ClassicGroup) -> None:
        stop_timer(group)
        group.timer_ms = group.wake_ms
        delay_ms = max(group.wake_ms - self._clock.monotonic_ms(), 0)
        group.timer = self._clock.call_later(delay_ms, lambda: self._on_time(group))

    def _on_time(self, group: ClassicGroup) -> None:
        group.timer = None
        group.timer_ms = float("inf")
        if self.closed or group.state is State.DEAD:
            return
        effects = Effects(self._clock.now_ms(), self._clock.monotonic_ms())
        group.on_time(effects)
        self.run_effects(group, effects)

    @property
    def is_unstorable(self) -> bool:
        """Whether an append failed within the last `UNSTORABLE_MS`."""
        return self._clock.monotonic_ms() - self._failed_ms < UNSTORABLE_MS

    def recover_timer(self, group_id: str, late_ms: float) -> None:
        """Do what is due in a group that is `late_ms` late: its timer was lost, or its last attempt failed."""
        group = self.groups.get(group_id)
        if group is not None and group.wake_ms + late_ms < self._clock.monotonic_ms():
            stop_timer(group)
            self._on_time(group)

    # ---- the end ----

    def close(self) -> None:
        """This broker no longer owns the partition: answer all waiting requests, and drop the table."""
        if self.closed:
            return
        self.closed = True
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
            self._timeout_timer = None
        unwritten, self._unwritten = self._unwritten, deque()
        effects = Effects(self._clock.now_ms(), self._clock.monotonic_ms())
        for group in self.groups.values():
            if group.state is not State.DEAD:
                group.die(ErrorCode.NOT_COORDINATOR, effects)
            stop_timer(group)
        self._fail_in_flight(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for write in unwritten:
            self._end(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for waiter, reply in effects.replies:
            waiter.complete(reply)
        held_groups, self._held_groups = self._held_groups, {}
        for waiting in held_groups.values():
            for action in waiting:
                action()
        self.groups = {}
        self.offsets = OffsetTable()
        if self.journal is not None:
            self.journal.close()


def _reply_to_all(replies: list[tuple[Pending[Any], Message]]) -> Pieces[None]:
    for waiter, reply in replies:
        yield
        waiter.complete(reply)


def stop_timer(group: ClassicGroup) -> None:
    """Cancel the timer of a group, if it has one."""
    timer = group.timer
    if timer is not None:
        timer.cancel()
    group.timer = None
    group.timer_ms = float("inf")
