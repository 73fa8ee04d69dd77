"""Loads one partition of a coordinator's topic after a start or a leader change, by replay of its log in pieces.

The coordinator answers COORDINATOR_LOAD_IN_PROGRESS until the log is replayed. If writes wait for replicas, only what
is below the high watermark is replayed. What lies between it and the log end is in doubt: the leader before this one
may have acknowledged it, or it may be lost with this broker. It is replayed when the high watermark has passed it,
which takes as many replicas as min.insync.replicas says. Until then a coordinator may serve from what is committed, if
it knows what is in doubt (`_note_doubt`). A batch that cannot be read is logged, and read again after `RETRY_MS`: until
then the partition is not served. The pieces are those of runtime/turns.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from barnabas.coordinators.shard import CoordinatorShard
from barnabas.protocol.errors import CorruptBatchError, ErrorCode, ProtocolError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.record_batch import BatchHeader, batches, crc_is_valid, unpacked
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer, Clock, Timer
from barnabas.runtime.turns import Pieces, Turns

NONE = ErrorCode.NONE
Shard = TypeVar("Shard", bound=CoordinatorShard[Any])

TELL_MS = 5_000.0  # how often the log says how far a partition is
RETRY_MS = 5_000  # after the log could not be read
WAIT_TOLD_AFTER_MS = 1_000.0  # replicas that copy at all have copied by then
SLICE_BYTES = 64 * 1024  # how much of the log is read at a time
BATCH_BYTES_MAX = 256 * 1024 * 1024


class LedPartition(Protocol):
    """A partition whose leader has changed, as far as a coordinator needs it."""

    topic: str
    index: int
    leader_epoch: int


class Progress(NamedTuple):
    """How far a partition is loaded. `end_offset`: where it ended when its loading began. `stopped_by`: why it does not
    get further now; empty if it does.
    """

    partition: int
    start_offset: int
    loaded_offset: int
    end_offset: int
    stopped_by: str

    @property
    def percent(self) -> int:
        """Of the offsets. Compaction leaves gaps, so it is no measure of time."""
        return 100 * (self.loaded_offset - self.start_offset) // max(1, self.end_offset - self.start_offset)


class CoordinatorLoader(Generic[Shard]):
    """One load of one shard. `done` is called once, when the partition can be served; never after `cancel`.

    Subclasses say how a batch is replayed, and what else has to be done before the partition can be served.
    """

    keys = "keys"  # what they are called that are loaded, in the lines of the log
    advice = ""  # how to go on without the log, if there is no other copy of it

    def __init__(self, shard: Shard, clock: Clock, turns: Turns, buffer_bytes: int, done: Callable[[], None]) -> None:
        self._shard = shard
        self._clock = clock
        self._slice_bytes = min(buffer_bytes, SLICE_BYTES)
        self._done = done
        self._start = self._position = shard.log.log_start_offset
        self._end = shard.log.log_end_offset
        self._record_count = 0
        self._started_ms = self._told_ms = clock.monotonic_ms()
        self._stopped_by = ""
        self._wait_timer: Timer | None = None  # while it waits for replicas
        self._wait_told = ""
        self._work = turns.begin(self._load())

    def cancel(self) -> None:
        """Stop loading: this broker does not lead the partition any more."""
        self._work.cancel()
        self._end_wait()

    @property
    def progress(self) -> Progress:
        position = min(self._position, self._end)
        stopped_by = self._stopped_by or ("" if self._wait_timer is None else self._shard.log.shortage)
        return Progress(self._shard.partition, self._start, position, self._end, stopped_by)

    def _load(self) -> Pieces[None]:
        while self._position < self._end:
            self._tell()
            try:
                if (yield from self._replay_slice()):
                    self._stopped_by = ""
                    continue
                yield from self._note_doubt()
                self._stopped_by = ""
            except (OSError, ProtocolError, ValueError) as error:
                self._log_failure(error)
                later: Pending[None] = Pending()
                self._clock.call_later(RETRY_MS, partial(later.complete, None))
                yield later
                continue
            if (yield from self._wait_for_replicas()) not in (NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
                return  # the leader is changing, and `cancel` will follow
        yield from self._restore()
        self._log_end()
        self._done()

    def _replay_slice(self) -> Pieces[bool]:
        """Replay some of what is committed. False: all of it is replayed."""
        position = self._position
        data = self._read(position)
        if not len(data):  # compaction has removed everything up to the end
            self._position = self._end
            return True
        if self._shard.waits_for_replicas and self._shard.log.high_watermark < self._end:
            data = data[: _bytes_below(data, self._shard.log.high_watermark)]
        if not len(data):
            return False
        yield from self._replay_batches(data, position)
        assert self._position > position
        return True

    def _read(self, position: int) -> memoryview:
        return memoryview(self._shard.log.read(position, self._slice_bytes))

    def _wait_for_replicas(self) -> Pieces[ErrorCode]:
        """Wait until the high watermark is at the end."""
        committed: Pending[ErrorCode] = Pending()
        self._shard.log.park_until(self._end, committed.complete)
        self._wait_timer = self._clock.call_later(WAIT_TOLD_AFTER_MS, self._tell_wait)
        outcome = yield committed
        self._end_wait()
        assert isinstance(outcome, ErrorCode)
        return outcome

    def _end_wait(self) -> None:
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None

    def _replay_batches(self, data: memoryview, before: int) -> Pieces[None]:
        """Replay whole batches, from the offset `before` on."""
        for header, batch in batches(data):
            yield
            records = self._unpacked(header, batch)
            if not self._store(records, header, before):
                yield from self._replay_records(records, header, before)
            self._position = header.next_offset

    def _unpacked(self, header: BatchHeader, batch: memoryview) -> bytes:
        if not crc_is_valid(batch):  # it may be possible to decode it all the same, to other offsets
            raise CorruptBatchError(
                "the batch there is damaged, its checksum is wrong. Let another replica lead this partition, or "
                "put its folder back from a backup. With neither, move the folder away while this broker is stopped; "
                f"then {self.advice}"
            )
        return unpacked(batch, header, BATCH_BYTES_MAX)

    # ---- what a coordinator says ----

    def _note_doubt(self) -> Pieces[None]:
        """What is committed is replayed. Note what is in doubt behind it, if something can be served meanwhile."""
        yield from ()

    def _store(self, records: bytes, header: BatchHeader, before: int) -> bool:
        """Replay a whole batch at once. False: its records have to be replayed one by one."""
        return False

    def _replay_records(self, records: bytes, header: BatchHeader, before: int) -> Pieces[None]:
        """Replay the records of a batch, from the offset `before` on, one by one."""
        raise NotImplementedError

    def _restore(self) -> Pieces[None]:
        """Make of what was replayed what can be served."""
        raise NotImplementedError

    def _key_count(self) -> int:
        """How many keys are loaded so far."""
        raise NotImplementedError

    # ---- lines of the log ----

    def _doubt(self) -> str:
        """What clients are told while the end of the log is in doubt."""
        return f"All its {self.keys} are told to wait"

    def _tell_wait(self) -> None:
        """Log why the rest is not committed, and again when the reason changes."""
        self._wait_timer = self._clock.call_later(TELL_MS, self._tell_wait)
        why = self._shard.log.shortage or "the replicas in sync have not copied it yet"
        if why != self._wait_told:
            self._wait_told = why
            self._shard.logger.warning(
                "%s partition %d: it is not known whether offsets %d to %d are committed: %s. %s until it is.",
                self._shard.kind,
                self._shard.partition,
                self._position,
                self._end - 1,
                why,
                self._doubt(),
            )

    def _tell(self) -> None:
        """Log now and then how far it is, unless it stands still."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= TELL_MS and not self._stopped_by:
            self._told_ms = now_ms
            self._shard.logger.info(
                "%s partition %d: loading, %d%% (offset %d of %d, %s, %s so far)",
                self._shard.kind,
                self._shard.partition,
                self.progress.percent,
                self._position,
                self._end,
                counted(self._record_count, "record"),
                counted(self._key_count(), self.keys.removesuffix("s"), self.keys),
            )

    def _log_failure(self, error: Exception) -> None:
        """Log an error once. The rest is not served, because clients would get older values, or none."""
        if str(error) != self._stopped_by:
            self._stopped_by = str(error)
            self._shard.logger.error(
                "%s partition %d cannot be loaded behind offset %d: %s. Its %s are told to wait until it can.",
                self._shard.kind,
                self._shard.partition,
                self._position,
                error,
                self.keys,
            )

    def _log_end(self) -> None:
        self._shard.logger.log(
            logging.INFO if self._record_count else logging.DEBUG,  # a new broker has fifty empty partitions
            "%s partition %d: loaded %s from %s in %.0f ms",
            self._shard.kind,
            self._shard.partition,
            counted(self._key_count(), self.keys.removesuffix("s"), self.keys),
            counted(self._record_count, "record"),
            self._clock.monotonic_ms() - self._started_ms,
        )


def _bytes_below(data: Buffer, offset: int) -> int:
    """How many bytes have the batches at the start that lie below an offset as a whole."""
    size = 0
    for header, batch in batches(data):
        if header.next_offset > offset:
            break
        size += len(batch)
    return size
