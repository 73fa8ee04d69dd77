"""Loads one partition of a coordinator's topic after a start or a leader change, by replay of its log in pieces.

The coordinator answers COORDINATOR_LOAD_IN_PROGRESS until the log is replayed. If writes wait for replicas, the high
watermark must also have reached the log end at which the epoch began. A batch that cannot be read is logged, and read
again after `RETRY_MS`: until then the partition is not served. The pieces are those of runtime/turns.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from barnabas.protocol.errors import CorruptBatchError, ErrorCode, ProtocolError
from barnabas.protocol.record_batch import BatchHeader, batches, crc_is_valid, unpacked
from barnabas.replication.coordinator_shard import CoordinatorShard
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock
from barnabas.runtime.turns import Pieces, Turns

Shard = TypeVar("Shard", bound=CoordinatorShard[Any])

TELL_MS = 5_000.0  # how often the log says how far a partition is
RETRY_MS = 5_000  # after the log could not be read
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
        self._work = turns.begin(self._load())

    def cancel(self) -> None:
        """Stop loading: this broker does not lead the partition any more."""
        self._work.cancel()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        position = min(self._position, self._end)
        return Progress(self._shard.partition, self._start, position, self._end, self._stopped_by)

    def _load(self) -> Pieces[None]:
        while self._position < self._end:
            self._tell()
            try:
                yield from self._replay_slice()
                self._stopped_by = ""
            except (OSError, ProtocolError, ValueError) as error:
                self._log_failure(error)
                later: Pending[None] = Pending()
                self._clock.call_later(RETRY_MS, partial(later.complete, None))
                yield later
        yield from self._restore()
        outcome = ErrorCode.NONE
        if self._shard.waits_for_replicas:
            committed: Pending[ErrorCode] = Pending()
            self._shard.log.park_until(self._end, committed.complete)
            outcome = yield committed
        if outcome in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._log_end()
            self._done()
        # Otherwise the leader is changing, and `cancel` will follow.

    def _replay_slice(self) -> Pieces[None]:
        data = self._shard.log.read(self._position, self._slice_bytes)
        if not len(data):  # compaction has removed everything up to the end
            self._position = self._end
            return
        before = self._position
        yield from self._replay_batches(memoryview(data), before)
        assert self._position > before

    def _replay_batches(self, data: memoryview, before: int) -> Pieces[None]:
        """Replay whole batches, from the offset `before` on."""
        for header, batch in batches(data):
            yield
            if not crc_is_valid(batch):  # it may be possible to decode it all the same, to other offsets
                raise CorruptBatchError(
                    "the batch there is damaged, its checksum is wrong. Let another replica lead this partition, or "
                    "put its folder back from a backup"
                )
            records = unpacked(batch, header, BATCH_BYTES_MAX)
            if not self._store(records, header, before):
                yield from self._replay_records(records, header, before)
            self._position = header.next_offset

    # ---- what a coordinator says ----

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

    def _tell(self) -> None:
        """Log now and then how far it is, unless it stands still."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= TELL_MS and not self._stopped_by:
            self._told_ms = now_ms
            self._shard.logger.info(
                "%s partition %d: loading, %d%% (offset %d of %d, %d records, %d %s so far)",
                self._shard.kind,
                self._shard.partition,
                self.progress.percent,
                self._position,
                self._end,
                self._record_count,
                self._key_count(),
                self.keys,
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
            "%s partition %d: loaded %d %s from %d records in %.0f ms",
            self._shard.kind,
            self._shard.partition,
            self._key_count(),
            self.keys,
            self._record_count,
            self._clock.monotonic_ms() - self._started_ms,
        )
