"""Compaction: of each key the last record stays (KIP-58, KIP-354, KIP-534).

A compaction is a generator. It yields after each bounded piece of work, and where something must be durable before it
goes on. Between two pieces, the loop serves clients and threads sync. A compaction writes to `.cleaned` files, which
nobody reads. At the end of each group of segments the new files take the place of the old ones: this swap is synced and
renamed in such steps that recovery either completes it or drops it. A swap that has begun is always completed, and at
once if somebody cannot wait for it (`_settle`).
"""

import logging
from collections.abc import Container, Generator, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.record_batch import Record
from barnabas.protocol.transaction_marker import marker_of
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env, may_pass
from barnabas.runtime.upkeep import Task
from barnabas.storage import checkpoints
from barnabas.storage.batch_headers import StoredBatch
from barnabas.storage.durability import sync_later
from barnabas.storage.index import AbortedTransaction
from barnabas.storage.log import Log
from barnabas.storage.open_files import OpenFiles
from barnabas.storage.segment import Segment
from barnabas.storage.segments import delete_later

if TYPE_CHECKING:
    from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.storage")

_SLICE_BYTES = 128 * 1024
_KEY_BYTES = 200  # how much memory one key takes in the map: dict slot, digest, offset
_LONG_KEY = 16
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_SYNC_AGAIN_MS = 1_000.0
_FLUSH_POLL_MS = 20.0
_FLUSH_AGAIN_EVERY, _FLUSH_POLLS_MAX = 50, 500

T = TypeVar("T")


class _Sync(NamedTuple):
    """What must be durable before a compaction goes on: files, then folders."""

    files: list[str]
    folders: list[str]


class _Flush(NamedTuple):
    """The offset below which the log must be durable before its compaction goes on."""

    offset: int


_Pause = int | _Sync | _Flush  # bytes handled, or what to wait for
_Steps = Generator[_Pause, None, T]


class _Cancelled(Exception):
    """The log was truncated, deleted or failed under the compaction."""


def _map_key(key: bytes) -> bytes:
    """A short key stands for itself, a long one is its digest. A digest is longer than any short key."""
    if len(key) <= _LONG_KEY:
        return key
    from hashlib import blake2b

    return b"#" + blake2b(key, digest_size=16).digest()


class DirtyRange(NamedTuple):
    """The part of a log that could be compacted now, and its share."""

    first_dirty: int
    first_uncleanable: int
    ratio: float
    must: bool  # max.compaction.lag.ms wants it done now
    is_unfinished: bool  # the last compaction had no room for more keys, and ended inside of a segment

    def deserves(self, min_ratio: float) -> bool:
        """Whether it is worth a compaction."""
        return self.ratio > 0 and (self.must or self.is_unfinished or self.ratio > min_ratio)


def dirty_range(log: Log, checkpoint: int | None, now_ms: int) -> DirtyRange:
    """Where the dirty part begins and ends, its share, and whether its compaction is urgent.

    As in Kafka, a segment in which the dirty part begins counts as dirty and as clean.
    """
    first_dirty = log.log_start_offset if checkpoint is None else checkpoint
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    first_uncleanable = min(log.segments.active.base_offset, log.last_stable_offset)
    clean = dirty = 0
    must = is_unfinished = False
    for segment, following in pairwise(log.segments):
        if segment.base_offset >= first_uncleanable:
            break
        if segment.base_offset < first_dirty:
            clean += segment.size
        if following.base_offset <= first_dirty:
            continue
        lag_ms = log.config.min_compaction_lag_ms
        if lag_ms > 0 and segment.largest_timestamp > now_ms - lag_ms:
            first_uncleanable = segment.base_offset
            break
        dirty += segment.size
        is_begun = max(segment.base_offset, log.log_start_offset) < first_dirty
        is_unfinished = is_unfinished or (is_begun and following.base_offset <= first_uncleanable)
        first_timestamp = segment.first_timestamp
        if not must and segment.size:
            age_ms = now_ms - (first_timestamp if first_timestamp >= 0 else segment.largest_timestamp)
            must = age_ms > log.config.max_compaction_lag_ms
    first_uncleanable = max(first_uncleanable, first_dirty)
    ratio = dirty / (clean + dirty) if dirty and first_uncleanable > first_dirty else 0.0
    return DirtyRange(first_dirty, first_uncleanable, ratio, must, is_unfinished)


class _Transactions:
    """Which transactions are aborted or committed, as the batches pass by in order of their offsets."""

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_seen: dict[int, bool] = {}
        self._committed: set[int] = set()
        self.still_present: list[AbortedTransaction] = []

    def _consume(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborted.setdefault(entry.producer_id, entry)

    def pass_data(self, batch: StoredBatch) -> bool:
        """A transactional data batch passes. Whether its transaction was aborted."""
        self._consume(batch.last_offset)
        if batch.producer_id in self._aborted:
            self._aborted_seen[batch.producer_id] = True
            return True
        self._committed.add(batch.producer_id)
        return False

    def pass_marker(self, batch: StoredBatch, commit: bool) -> bool:
        """A marker passes. Whether it is needless, because no batch of its transaction came before it."""
        self._consume(batch.last_offset)
        if commit:
            needless = batch.producer_id not in self._committed
            self._committed.discard(batch.producer_id)
            return needless
        entry = self._aborted.pop(batch.producer_id, None)
        if entry is not None and self._aborted_seen.pop(batch.producer_id, False):
            self.still_present.append(entry)
            return False
        return True


class Cleaner:
    """Picks the dirtiest log, compacts it in slices, looks again."""

    def __init__(self, env: Env, files: OpenFiles, manager: "LogManager") -> None:
        self._env = env
        self._files = files
        self._manager = manager
        self._work: _Steps[None] | None = None
        self._log: Log | None = None
        self._awaited: _Pause = 0  # what the work waits for
        self._asked_for: Log | None = None
        self.task: Task[Log] | None = None  # of the upkeep, while that goes on

    # -- scheduling

    def stop(self) -> None:
        """Stop between two slices. The next start removes what is unfinished."""
        self._settle()
        self._drop_work()

    def forget(self, log: Log) -> None:
        if self._log is log:
            self._drop_work()

    def _drop_work(self) -> None:
        if self._log is not None:
            self._log.cleaning = False
            self._log.finish_swap = None
        self._work = self._log = None

    def begin(self, log: Log) -> None:
        """Compact one log, in pieces, from now on."""
        assert self.task is not None
        self.stop()
        self._asked_for = log
        self.task.run_soon()

    def choose(self) -> Iterator[Log]:
        """The logs to compact, one after the other, until none deserves it.

        A log whose compaction came to nothing waits for the next round, so that it cannot keep the others waiting.
        """
        came_to_nothing: list[Log] = []
        while True:
            log, self._asked_for = self._asked_for, None
            if log is None and self._manager.config.log_cleaner_enable:
                log = self.dirtiest(came_to_nothing)
            if log is None:
                return
            before = self._compacted_up_to(log)
            yield log
            if self._compacted_up_to(log) == before:
                came_to_nothing.append(log)

    def _compacted_up_to(self, log: Log) -> int | None:
        directory = self._manager.directory_of(log)
        return None if directory is None else directory.cleaner_offsets.get((log.topic, log.partition))

    def compact(self, log: Log) -> Generator[float | Pending[OSError | None] | None, Any, None]:
        """Compact one log in pieces. Yields after each how long to wait, or for what."""
        self._begin(log)
        work, error = self._work, None
        try:
            while self._work is work:
                awaited = self._slice(error)
                error = None
                if isinstance(awaited, _Sync):
                    failure = yield sync_later(self._env.disk, awaited.files, awaited.folders)
                    while failure is not None and may_pass(failure) and log.finish_swap is not None:
                        yield _SYNC_AGAIN_MS  # no descriptor was free, and a swap must be completed
                        if self._awaited is not awaited:
                            break
                        failure = yield sync_later(self._env.disk, awaited.files, awaited.folders)
                    if self._awaited is awaited:  # if not, somebody could not wait, and `_settle` has gone on
                        error = failure
                elif isinstance(awaited, _Flush):
                    yield from self._flush_in_background(log, awaited)
                else:
                    rate = self._manager.config.log_cleaner_io_max_bytes_per_second
                    delay_ms = min(awaited * 1000.0 / rate, 60_000.0) if rate > 0 else 0.0
                    yield delay_ms if delay_ms >= 1.0 else None
        finally:
            if self._work is work:
                self.stop()

    def _begin(self, log: Log) -> None:
        self.stop()
        assert self._work is None, "one compaction at a time"
        self._log = log
        self._work = self._compact(log)

    def _slice(self, error: OSError | None) -> _Pause:
        """Do one piece of the work. `error`: the sync that it waited for has failed. Forget the work when it ends."""
        assert self._work is not None
        assert self._log is not None
        try:
            self._awaited = next(self._work) if error is None else self._work.throw(error)
            return self._awaited
        except StopIteration:
            self._drop_work()
        except _Cancelled:
            logger.info("%s: compaction cancelled, the log was truncated, deleted or failed", self._log.name)
            self._drop_work()
        except BaseException:
            self._drop_work()
            raise
        return 0

    def _flush_in_background(self, log: Log, wanted: _Flush) -> Iterator[float]:
        for polls in range(_FLUSH_POLLS_MAX):
            is_over = self._awaited is not wanted or not log.cleaning or log.failed is not None or log.closed
            if is_over or log.durability.recovery_point >= wanted.offset:
                return
            if polls % _FLUSH_AGAIN_EVERY == 0:
                log.durability.flush_in_background()
            yield _FLUSH_POLL_MS

    def run(self, log: Log) -> None:
        """Compact one log now, in one go."""
        self._begin(log)
        error = None
        while self._work is not None:
            self._slice(error)
            error = self._do_now()

    def _settle(self) -> None:
        """Complete a swap that has begun now, because the log is to be truncated or closed."""
        while self._log is not None and self._log.finish_swap is not None:
            try:
                self._slice(self._do_now())
            except OSError as error:
                logger.error("%s: could not complete a compaction: %s", self._log.name if self._log else "", error)

    def _do_now(self) -> OSError | None:
        """Do what the work waits for, without threads; how it failed."""
        awaited, disk = self._awaited, self._env.disk
        self._awaited = 0
        if self._work is None or self._log is None:
            return None
        if isinstance(awaited, _Flush):
            self._log.flush()
        elif isinstance(awaited, _Sync):
            failures = disk.sync_all(awaited.files, awaited.folders)
            return next(iter(failures.values()), None)
        return None

    # -- choosing

    def dirtiest(self, but_not: Container[Log] = ()) -> Log | None:
        """The log that deserves compaction most, or None when none does."""
        now_ms, task = self._env.clock.now_ms(), self.task
        best: tuple[bool, float] | None = None
        chosen: Log | None = None
        logs = ((directory, *item) for directory in self._manager.directories for item in directory.logs.items())
        for directory, key, log in logs:
            if "compact" not in log.config.cleanup_policy or log.failed is not None or log.closed:
                continue
            if self._manager.rests(log.topic):
                continue
            if len(log.segments) == 1 or log in but_not or (task is not None and task.is_set_aside(log)):
                continue
            try:
                found = dirty_range(log, directory.cleaner_offsets.get(key), now_ms)
            except Exception as error:
                if task is None:
                    raise
                task.set_aside(log, error)
                continue
            if not found.deserves(log.config.min_cleanable_dirty_ratio):
                continue
            rank = (found.must, found.ratio)
            if best is None or rank > best:
                best, chosen = rank, log
        return chosen

    # -- one compaction

    def _compact(self, log: Log) -> _Steps[None]:
        now_ms = self._env.clock.now_ms()
        key = (log.topic, log.partition)
        directory = self._manager.directory_of(log)
        if directory is None or not log.health.is_writable:
            return
        found = dirty_range(log, directory.cleaner_offsets.get(key), now_ms)
        if found.first_uncleanable <= found.first_dirty:
            return
        log.cleaning = True
        # A record may only give way to one that a crash cannot lose. How a transaction ended may be written behind it.
        decided_end = log.log_end_offset
        if log.durability.recovery_point < decided_end:
            yield _Flush(decided_end)
            self._check(log)
            if decided_end > log.durability.recovery_point:
                return  # the disk is full, for example: another time
        latest: dict[bytes, int] = {}
        map_end = yield from self._build_map(log, found, latest)
        assert map_end >= found.first_dirty, "the cleaner offset never goes back"
        segments = [segment for segment in log.segments[:-1] if segment.base_offset < map_end]
        cleaned_end = log.segments[len(segments)].base_offset  # all markers before it keep their index entries
        before = sum(segment.size for segment in segments)
        for segment in segments:
            segment.load()
            yield 0
            self._check(log)
        transactions = _Transactions(_aborted_in(log, log.segments[0].base_offset, cleaned_end))
        after = 0
        for group in group_segments(segments, log.config.segment_bytes, log.config.segment_index_bytes):
            cleaned = yield from self._clean_group(log, group, latest, map_end, transactions, now_ms)
            after += cleaned.size
        directory.cleaner_offsets[key] = map_end
        directory.write_later(checkpoints.CLEANER_OFFSETS)
        log.cleaning = False
        logger.info("%s: compacted up to offset %d, from %d to %d bytes", log.name, map_end, before, after)

    def _check(self, log: Log) -> None:
        if not log.cleaning or log.failed is not None or log.closed:
            raise _Cancelled

    def _build_map(self, log: Log, found: DirtyRange, latest: dict[bytes, int]) -> _Steps[int]:
        """Fill `latest` from the dirty part; returns the offset before which everything was seen."""
        config = self._manager.config
        keys_bytes = int(config.log_cleaner_dedupe_buffer_size * config.log_cleaner_io_buffer_load_factor)
        keys_max = max(keys_bytes // _KEY_BYTES, 1)
        transactions = _Transactions(_aborted_in(log, found.first_dirty, found.first_uncleanable))
        handled = 0
        map_end = found.first_dirty
        for segment, batch in log.segments.batches_from(found.first_dirty):
            if batch.base_offset >= found.first_uncleanable:
                break
            if batch.attributes & CONTROL:
                marker = marker_of(segment.batch_bytes(batch))
                if marker is not None:
                    transactions.pass_marker(batch, marker.commit)
            elif not (batch.attributes & TRANSACTIONAL and transactions.pass_data(batch)) and batch.record_count:
                for record in record_batch.records(_intact_bytes(segment, batch)):
                    if record.key is not None and record.offset >= found.first_dirty:
                        if len(latest) >= keys_max and _map_key(record.key) not in latest:
                            return map_end
                        latest[_map_key(record.key)] = record.offset
                    map_end = record.offset + 1
            map_end = batch.last_offset + 1
            handled += batch.size
            if handled >= _SLICE_BYTES:
                yield handled
                handled = 0
                self._check(log)
        # The last offsets may have no batch: an earlier compaction has taken it, and its checkpoint was lost.
        return max(map_end, found.first_uncleanable)

    def _clean_group(
        self,
        log: Log,
        group: list[Segment],
        latest: dict[bytes, int],
        map_end: int,
        transactions: _Transactions,
        now_ms: int,
    ) -> _Steps[Segment]:
        """Write what stays of the group to one segment, and put that in the group's place; returns it."""
        disk = self._env.disk
        cleaned = Segment.create(
            self._files, log.directory, group[0].base_offset, log.config, now_ms, suffix=".cleaned"
        )
        cleaned.transaction_index.reset()
        try:
            modified_ms = 0
            handled = 0
            for segment in group:
                modified_ms = max(modified_ms, disk.modified_ms(segment.path))
                for batch in segment.batches():
                    kept = self._kept_batch(log, segment, batch, latest, map_end, transactions, now_ms)
                    if kept is not None:
                        header = record_batch.read_header(kept)
                        if not header.record_count:
                            header.max_timestamp = -1
                        cleaned.append(kept, [header], [0])
                    for entry in transactions.still_present:
                        cleaned.transaction_index.append(entry)
                    transactions.still_present.clear()
                    handled += batch.size
                    if handled >= _SLICE_BYTES:
                        yield handled
                        handled = 0
                        self._check(log)
            cleaned.close_time_index()
            cleaned.write_indexes()
            disk.set_modified_ms(cleaned.path, modified_ms)
            yield _Sync([cleaned.path, *cleaned.index_paths()], [log.directory])
            self._check(log)
        except BaseException:
            if not log.closed:
                cleaned.delete_files()
            raise
        log.finish_swap = self._settle
        yield from self._swap(log, group, cleaned)
        log.finish_swap = None
        return cleaned

    def _swap(self, log: Log, group: list[Segment], cleaned: Segment) -> _Steps[None]:
        """Before the name `.swap`, nothing has changed; from then on, recovery completes what a crash leaves."""
        assert cleaned.base_offset == group[0].base_offset, "the new segment takes the place of the first old one"
        doomed = {id(segment) for segment in group}
        folder = _Sync([], [log.directory])
        try:
            cleaned.rename(".swap")
            yield folder
            for segment in group:
                segment.rename(".deleted")
                if segment.base_offset != cleaned.base_offset:
                    log.producers.remove_snapshot(segment.base_offset)
            yield folder._replace()  # never the new batches under the old indexes
            cleaned.rename("")
            yield folder._replace()
        except OSError as error:
            log.health.fail(error)
            raise
        rest = [segment for segment in log.segments if id(segment) not in doomed]
        log.segments.replace(sorted([*rest, cleaned], key=lambda segment: segment.base_offset))
        delete_later(log.env.clock, group, log.config.file_delete_delay_ms)

    def _kept_batch(
        self,
        log: Log,
        segment: Segment,
        batch: StoredBatch,
        latest: dict[bytes, int],
        map_end: int,
        transactions: _Transactions,
        now_ms: int,
    ) -> bytes | bytearray | None:
        """What stays of a batch: all, some, an empty one, or nothing. From the end of the map on, everything stays."""
        whole = _intact_bytes(segment, batch)
        has_horizon = bool(batch.attributes & DELETE_HORIZON)
        expired = has_horizon and batch.base_timestamp <= now_ms
        horizon_ms = None if has_horizon else min(now_ms + log.config.delete_retention_ms, _INT64_MAX)
        needed_empty = _is_last_of_producer(log, batch)
        if batch.attributes & CONTROL:
            marker = marker_of(whole)
            needless = marker is not None and transactions.pass_marker(batch, marker.commit)
            if batch.base_offset >= map_end:
                return whole
            if not needless or batch.record_count == 0:
                return whole if batch.record_count or needed_empty else None
            if expired:
                return _emptied(whole) if needed_empty else None
            if horizon_ms is None:
                return whole
            return record_batch.rebuild(
                record_batch.read_header(whole), record_batch.records(whole), delete_horizon_ms=horizon_ms
            )
        aborted = bool(batch.attributes & TRANSACTIONAL) and transactions.pass_data(batch)
        if batch.base_offset >= map_end:
            return whole
        if aborted or not batch.record_count:
            return _emptied(whole) if needed_empty else None
        records = list(record_batch.records(whole))
        kept: list[Record] = []
        tombstone = False
        for record in records:
            if record.offset >= map_end:
                kept.append(record)
            elif record.key is not None and record.offset >= latest.get(_map_key(record.key), -1):
                if record.value is not None:
                    kept.append(record)
                elif not expired:
                    kept.append(record)
                    tombstone = True
        if not kept:
            return _emptied(whole) if needed_empty else None
        new_horizon_ms = horizon_ms if tombstone else None
        if len(kept) == len(records) and new_horizon_ms is None:
            return whole
        return record_batch.rebuild(record_batch.read_header(whole), kept, delete_horizon_ms=new_horizon_ms)


def _intact_bytes(segment: Segment, batch: StoredBatch) -> bytes:
    """The whole batch. CorruptBatchError if its checksum is wrong: that of a batch made from it would be right."""
    whole = segment.batch_bytes(batch)
    if not record_batch.crc_is_valid(whole):
        raise CorruptBatchError(f"the checksum of the batch at offset {batch.base_offset} is wrong")
    return whole


def _emptied(batch: bytes) -> bytearray:
    """The batch without its records. It only says which offsets and sequences were used."""
    header = record_batch.read_header(batch)
    header.attributes &= ~DELETE_HORIZON
    return record_batch.rebuild(header, ())


def _is_last_of_producer(log: Log, batch: StoredBatch) -> bool:
    """Whether this batch is the last one of an active producer, whose state must be found again from it."""
    if batch.producer_id < 0:
        return False
    entry = log.producers.get(batch.producer_id)
    if entry is None or entry.last_offset >= 0:
        return entry is not None and batch.last_offset == entry.last_offset
    return bool(batch.attributes & CONTROL) and batch.producer_epoch == entry.producer_epoch


def _aborted_in(log: Log, start: int, end: int) -> list[AbortedTransaction]:
    return [
        entry
        for segment in log.segments
        for entry in segment.transaction_index.entries
        if entry.last_offset >= start and entry.first_offset < end
    ]


def group_segments(segments: list[Segment], segment_bytes: int, index_bytes: int) -> list[list[Segment]]:
    """Group neighbours that fit into one segment by their bytes, index entries and 32-bit offsets."""
    groups: list[list[Segment]] = []
    size = offsets = times = 0
    for slot, segment in enumerate(segments):
        segment.load()
        following = segments[slot + 1].base_offset if slot + 1 < len(segments) else segment.next_offset()
        next_offsets, next_times = len(segment.offset_index) * 8, len(segment.time_index) * 12
        if (
            groups
            and size + segment.size <= segment_bytes
            and offsets + next_offsets <= index_bytes
            and times + next_times <= index_bytes
            and following - groups[-1][0].base_offset <= _INT32_MAX
        ):
            groups[-1].append(segment)
            size, offsets, times = size + segment.size, offsets + next_offsets, times + next_times
        else:
            groups.append([segment])
            size, offsets, times = segment.size, next_offsets, next_times
    return groups
