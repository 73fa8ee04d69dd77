"""One partition of a coordinator's topic in the coordinator's memory: decide -> append -> replay at commit -> reply.

The coordinators of groups and of transactions are made of such shards. A decision gives records to `write`, under the
key that they belong to (a group, a transactional id). All records of one pass of the loop are appended together. When
the high watermark passes them, each record is replayed, in order, and then its writer is called. So what replay
changes holds only what is committed, and loading after a restart is the same replay (coordinators/loading.py).

A decision from the age or the absence of a value needs that no write of the key is in flight. It takes the key with
`hold`: that waits for the writes in flight, and later requests of the key wait until `release`.

A write in a producer's transaction has a batch of its own. The marker that ends the transaction comes ready-made
(`write_marker`) and is replayed in its place among the writes, whatever its sender hears of it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from barnabas.coordinators.append_errors import TOO_LARGE
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.record_batch import PlainBatch, PlainRecords, build_plain
from barnabas.replication.partition import ALL_IN_SYNC, Partition
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer, Env, Timer
from barnabas.runtime.turns import Pieces
from barnabas.storage.validation import AppendOrigin, AppendResult

Done = Callable[[ErrorCode], None]
NONE: Final = ErrorCode.NONE
COORDINATOR: Final = AppendOrigin.COORDINATOR
AT_ONCE_MAX: Final = 100  # so many records are appended, or requests answered, at once; more are a task of `turns`
BATCH_RECORDS_MAX: Final = 500  # a batch with so many records takes no further write
MARKERS: Final = ""  # the key under which markers are written: they belong to a producer, in any number of keys
UNSTORABLE_MS: Final = 5_000.0  # how long a failed append counts


class Appendable(Protocol):
    """Records that are written together, in one batch."""

    @property
    def count(self) -> int:
        """How many they are."""

    def append_to(self, records: PlainRecords) -> None:
        """Append them to a batch."""


Records = TypeVar("Records", bound=Appendable)


class Producer(NamedTuple):
    """A producer in whose transaction something is written."""

    producer_id: int
    producer_epoch: int


class CoordinatorLog(Protocol):
    """The log of one partition of a coordinator's topic, which this broker leads."""

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """Offset the next record will get."""

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed yet."""

    @property
    def shortage(self) -> str:
        """Why nothing can be committed now: too few replicas are in sync. Empty: they are enough."""

    def append(self, batch: Buffer | PlainBatch, /, *, origin: AppendOrigin, required_acks: int) -> AppendResult:
        """Append; with -1 only if enough replicas are in sync. The error is in the result."""

    def park_until(self, offset: int, waiter: Callable[[ErrorCode], None], /) -> object:
        """Call `waiter(NONE)` when the high watermark has reached `offset`, or with the error why it will not."""

    def read(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from `offset` up to the log end, at least one; empty at the end. OSError when it fails."""


class PartitionLog:
    """A `CoordinatorLog` over the local replica."""

    __slots__ = ("append", "park_until", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.append = partition.append_as_leader
        self.park_until = partition.park_until

    @property
    def log_start_offset(self) -> int:
        return self.partition.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.partition.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.partition.log.high_watermark

    @property
    def shortage(self) -> str:
        return self.partition.shortage

    def read(self, offset: int, max_bytes: int) -> Buffer:
        log = self.partition.log
        data = log.read(offset, max_bytes, upper_bound=log.log_end_offset, at_least_one=True)
        if data.error:
            raise OSError(f"reading {log.topic}-{log.partition} at {offset}: {data.error.name}")
        return data.records


class Write(Generic[Records]):
    """Records that were decided together, and the callback for their outcome."""

    __slots__ = ("done", "key", "late", "patient", "producer", "records")

    def __init__(
        self,
        key: str,
        records: Records | None,
        done: Done,
        patient: bool,
        producer: Producer | None = None,
        late: Callable[[], None] | None = None,
    ) -> None:
        self.key = key
        self.records = records
        self.done: Done | None = done
        self.late = late
        self.patient = patient
        self.producer = producer


class _Batch(Generic[Records]):
    """Writes that were appended as one batch and are not committed yet."""

    __slots__ = ("base_offset", "deadline_ms", "end_offset", "writes")

    def __init__(self, writes: list[Write[Records]], base_offset: int, end_offset: int, deadline_ms: float) -> None:
        self.writes = writes
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.deadline_ms = deadline_ms


class CoordinatorShard(Generic[Records]):
    """One partition of a coordinator's topic, for the one leader epoch in which this broker owns it.

    `acks` says when a record counts as committed, `codec` how batches are compressed. After `write_timeout_ms` a writer
    that is not patient is told that its records are not committed yet. Subclasses say what replay does.
    """

    __slots__ = (
        "_acks",
        "_clock",
        "_codec",
        "_failed_ms",
        "_flush_is_due",
        "_has_transactional",
        "_held",
        "_in_flight",
        "_quiet_waiters",
        "_replayed_offset",
        "_timeout_timer",
        "_turns",
        "_unencodable_ms",
        "_unwritten",
        "_unwritten_count",
        "_write_timeout_ms",
        "_writing",
        "closed",
        "leader_epoch",
        "loading",
        "log",
        "partition",
    )
    kind = "coordinator"  # of partition, in the lines of the log
    logger = logging.getLogger("barnabas.replication")

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        log: CoordinatorLog,
        env: Env,
        *,
        acks: int,
        codec: int,
        write_timeout_ms: float,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.log = log
        self.loading = True
        self.closed = False
        self._acks = acks
        self._codec = codec
        self._write_timeout_ms = write_timeout_ms
        self._clock = env.clock
        self._turns = env.turns
        self._unwritten: deque[Write[Records]] = deque()
        self._unwritten_count = 0  # how many records they have
        self._has_transactional = False  # whether some of them may be parts of transactions
        self._flush_is_due = False
        self._in_flight: deque[_Batch[Records]] = deque()
        self._writing: dict[str, int] = {}  # key -> number of writes that are not committed yet
        self._quiet_waiters: dict[str, list[Callable[[], None]]] = {}
        self._held: dict[str, deque[Callable[[], None]]] = {}  # held key -> what waits for its release
        self._timeout_timer: Timer | None = None
        self._failed_ms = float("-inf")  # when the last append failed
        self._unencodable_ms = float("-inf")  # when a record could last not be encoded
        self._replayed_offset = 0  # the end of the last batch that was replayed

    @property
    def waits_for_replicas(self) -> bool:
        """Whether records count only when the high watermark has passed them."""
        return self._acks == ALL_IN_SYNC

    @property
    def is_unstorable(self) -> bool:
        """Whether an append failed within the last `UNSTORABLE_MS`."""
        return self._clock.monotonic_ms() - self._failed_ms < UNSTORABLE_MS

    # ---- what a coordinator says ----

    def replay(self, records: Records, record_offset: int) -> None:
        """Apply committed records."""
        raise NotImplementedError

    # ---- writing ----

    def write(
        self,
        key: str,
        records: Records | None,
        done: Done,
        *,
        patient: bool = False,
        producer: Producer | None = None,
        late: Callable[[], None] | None = None,
    ) -> None:
        """Append the records, together with the others of this pass of the loop. `done` is called when they are
        committed and replayed, or with the error of the append. Without records: when all earlier writes are committed.

        After `write_timeout_ms` `done` gets REQUEST_TIMED_OUT, though the records may still be committed. A
        `patient` writer waits for the real outcome instead; `late` tells it that the time is over. A writer that holds
        the key must be patient.

        `producer`: the records are part of its transaction. They count only when the high watermark has passed them,
        whatever the coordinator says of others.
        """
        if self.closed:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        self._writing[key] = self._writing.get(key, 0) + 1
        self._unwritten.append(Write(key, records, done, patient, producer, late))
        if producer is not None:
            self._has_transactional = True
        if records is not None:
            self._unwritten_count += records.count
        if not self._flush_is_due:
            self._flush_is_due = True
            self._clock.call_soon(self._flush)

    def has_writes(self, key: str) -> bool:
        """Whether writes of the key are not committed yet."""
        return key in self._writing

    def _flush(self) -> None:
        """Append the records of this pass: few records at once, many as a task of `turns`."""
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
        writes: list[Write[Records]] = []
        count = 0
        while unwritten and count < BATCH_RECORDS_MAX:
            write = unwritten.popleft()
            writes.append(write)
            count += 0 if write.records is None else write.records.count
        self._unwritten_count -= count
        if not writes:
            return
        if not self._has_transactional:
            self._append(writes)
            return
        if not unwritten:
            self._has_transactional = False
        plain: list[Write[Records]] = []
        for write in writes:
            if write.producer is None:
                plain.append(write)
                continue
            if plain:
                self._append(plain)
                plain = []
            self._append([write])
        if plain:
            self._append(plain)

    def write_marker(self, batch: Buffer, origin: AppendOrigin, records: Records, done: Done) -> None:
        """Append a control batch. `records` say what it does, and are replayed when it is committed."""
        if self.closed:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        result = self.log.append(batch, origin=origin, required_acks=ALL_IN_SYNC)
        if result.error:
            done(result.error)
            return
        write = Write(MARKERS, records, done, patient=False)
        self._writing[MARKERS] = self._writing.get(MARKERS, 0) + 1
        self._park([write], result.base_offset, result.last_offset + 1, ALL_IN_SYNC)

    def _append(self, writes: list[Write[Records]]) -> None:
        if self.closed:  # since an append before this one
            for write in writes:
                self._end(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        records = PlainRecords()
        try:
            for write in writes:
                if write.records is not None:
                    write.records.append_to(records)
        except Exception as error:
            self._end_unencodable(writes, error)
            return
        if not records.count:
            end_offset = self._in_flight[-1].end_offset if self._in_flight else self.log.high_watermark
            self._park(writes, end_offset, end_offset, self._acks)
            return
        codec = self._codec
        producer = writes[0].producer
        acks = self._acks if producer is None else ALL_IN_SYNC
        producer_id, epoch = (-1, -1) if producer is None else producer
        # Sequence 0, also without a producer id, as in the batches of Kafka 4.1's coordinators.
        batch = build_plain(
            records,
            self._clock.now_ms(),
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
        )
        result = self.log.append(batch, origin=COORDINATOR, required_acks=acks)
        if self.closed:  # the append failed, and this broker lost the leadership
            for write in writes:
                self._end(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if result.error:
            if len(writes) > 1 and result.error in TOO_LARGE:
                self._append_apart(writes)
                return
            # Once, because writers try again and again. The log itself has logged that it cannot be written.
            is_told = self.is_unstorable or result.error is ErrorCode.KAFKA_STORAGE_ERROR
            self._failed_ms = self._clock.monotonic_ms()
            level = logging.DEBUG if is_told else logging.WARNING
            why = f": {result.error_message}" if result.error_message else ""
            text = "%s partition %d: append failed: %s%s"
            self.logger.log(level, text, self.kind, self.partition, result.error.name, why)
            self._end_failed(writes, result.error)
            return
        assert result.last_offset - result.base_offset == records.count - 1
        self._park(writes, result.base_offset, result.last_offset + 1, acks)

    def _append_apart(self, writes: list[Write[Records]]) -> None:
        """Only the write that is the reason for a failure fails."""
        for write in writes:
            self._append([write])

    def _end_unencodable(self, writes: list[Write[Records]], error: Exception) -> None:
        """A write among these has a number that its record has no room for, after damage, say. Nothing of it counts."""
        if len(writes) > 1:
            self._append_apart(writes)
            return
        (write,) = writes
        is_told = self._clock.monotonic_ms() - self._unencodable_ms < UNSTORABLE_MS  # because writers try again
        self._unencodable_ms = self._clock.monotonic_ms()
        text = "%s partition %d: %s: its records cannot be written, and this change of it is refused: %r. %s"
        then = "If it is at its last epoch, as after damage: stop its members and delete it, and it begins anew"
        level = logging.DEBUG if is_told else logging.ERROR
        self.logger.log(level, text, self.kind, self.partition, write.key, error, then)
        self._end(write, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _end_failed(self, writes: list[Write[Records]], error: ErrorCode) -> None:
        """The log did not take these writes."""
        for write in writes:
            self._end(write, error)

    def _park(self, writes: list[Write[Records]], base_offset: int, end_offset: int, acks: int) -> None:
        """Wait until the high watermark has passed the end. If the append has moved it there, commit at once."""
        if not self._in_flight and (acks != ALL_IN_SYNC or self.log.high_watermark >= end_offset):
            self._commit(writes, base_offset, end_offset)
            return
        assert not self._in_flight or base_offset >= self._in_flight[-1].end_offset
        timeout_ms = self._write_timeout_ms
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

    def _commit(self, writes: list[Write[Records]], offset: int, end_offset: int) -> None:
        """Replay the records of a batch, in the order of the log, and tell their writers."""
        if end_offset > offset:
            assert offset >= self._replayed_offset
            assert self._acks != ALL_IN_SYNC or end_offset <= self.log.high_watermark
            self._replayed_offset = end_offset
        for write in writes:
            if write.records is not None:
                self.replay(write.records, offset)
                offset += write.records.count
        assert offset == end_offset
        for write in writes:
            self._end(write, NONE)

    def _end(self, write: Write[Records], error: ErrorCode) -> None:
        key = write.key
        left = self._writing[key] - 1
        assert left >= 0
        if left:
            self._writing[key] = left
        else:
            del self._writing[key]
        done, write.done = write.done, None
        if done is not None:
            done(error)
        if not left and key in self._quiet_waiters and key not in self._writing:
            for waiter in self._quiet_waiters.pop(key):
                waiter()

    def _time_out_writes(self) -> None:
        """Tell writers that their time has passed. Their records may still be committed later."""
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
                elif write.late is not None:
                    late, write.late = write.late, None
                    late()

    def _fail_in_flight(self, error: ErrorCode) -> None:
        batches = list(self._in_flight)
        self._in_flight.clear()
        for batch in batches:
            for write in batch.writes:
                self._end(write, error)

    def uncommitted_writes(self, key: str) -> Iterator[Write[Records]]:
        """The writes of a key that are not committed yet."""
        if key in self._writing:
            for batch in self._in_flight:
                yield from (write for write in batch.writes if write.key == key)
            yield from (write for write in self._unwritten if write.key == key)

    # ---- holding a key ----

    def is_quiet(self, key: str) -> bool:
        """Whether no write of the key is in flight, and the key is not held."""
        return key not in self._writing and key not in self._held

    def is_held(self, key: str) -> bool:
        """Whether the key is held. It is, from `hold` to `release`."""
        return key in self._held

    def hold(self, key: str, action: Callable[[], None]) -> None:
        """Hold the key, and run `action` when no write of it is in flight. `action` must lead to `release`."""
        waiting = self._held.get(key)
        if waiting is not None:
            waiting.append(lambda: self.hold(key, action))
            return
        self._held[key] = deque()
        if key in self._writing:
            self._quiet_waiters.setdefault(key, []).append(action)
        else:
            action()

    def after_hold(self, key: str, action: Callable[[], None]) -> None:
        """Run `action` when the held key is released."""
        self._held[key].append(action)

    def release(self, key: str) -> None:
        """Release the key, and run the waiting actions in order. If one holds the key again, the others wait."""
        waiting = self._held.pop(key, None)
        while waiting:
            action = waiting.popleft()
            action()
            held_again = self._held.get(key)
            if held_again is not None:
                held_again.extend(waiting)
                return

    # ---- the end ----

    def close(self) -> None:
        """This broker no longer owns the partition: all who wait are told so, and what was replayed is dropped."""
        if self.closed:
            return
        self.closed = True  # from now on nothing is appended
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
            self._timeout_timer = None
        unwritten, self._unwritten = self._unwritten, deque()
        replies = self._end_keys()
        self._fail_in_flight(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for write in unwritten:
            self._end(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for waiter, reply in replies:
            waiter.complete(reply)
        held, self._held = self._held, {}
        for waiting in held.values():
            for action in waiting:  # it finds the shard closed
                action()
        assert not self._in_flight
        self._drop()

    def _end_keys(self) -> Sequence[tuple[Pending[Any], Any]]:
        """End what the keys are in the middle of. The replies are sent after the writers are told."""
        return ()

    def _drop(self) -> None:
        """Drop what was replayed."""
        raise NotImplementedError
