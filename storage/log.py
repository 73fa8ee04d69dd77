"""One partition's log: an append-only sequence of record batches in segments.

All methods are plain functions that run to their end. What must not block the loop (to sync a segment after a roll, to
remove files after their delay) is handed to the disk and the clock.

If there was no room for a write, no free descriptor, or no right to write, the write has not happened: the file is cut
back to its last good batch, the append is refused, and the log is `write_blocked` until an append succeeds, or would.
After any other failed write, and after every failed sync, the log is `failed` and refuses all appends, because nobody
knows what is on disk behind the last sync.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from barnabas.config.topic import TopicConfig
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL, TRANSACTIONAL
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.record_batch import PlainBatch
from barnabas.protocol.transaction_marker import EndTransactionMarker, marker_of
from barnabas.runtime.ports import Buffer, Disk, Env, may_pass
from barnabas.storage import checkpoints
from barnabas.storage.batch_headers import WINDOW_BYTES
from barnabas.storage.durability import Durability, flush_together
from barnabas.storage.health import Health, if_room
from barnabas.storage.leader_epochs import LeaderEpochCache
from barnabas.storage.open_files import OpenFiles
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.segment import Segment
from barnabas.storage.segments import NEVER_BY_REFERENCE, FetchData, Segments, TimestampOffset, delete_later
from barnabas.storage.validation import (
    Appendable,
    AppendOrigin,
    AppendResult,
    Validated,
    validate_for_follower,
    validate_for_leader,
)

logger = logging.getLogger("barnabas.storage")

NONE: Final = ErrorCode.NONE
# Refusals that Kafka answers with log start -1, because it has not asked the log yet.
_BEFORE_THE_LOG: Final = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class Log:
    """See the module. Made by `recovery.open_log` (LogManager calls it).

    Its parts: `segments` hold the records, `producers` and `leader_epochs` what follows from them, `durability` knows
    what is synced, `health` whether a write is possible. The log itself has the offsets and decides what is written.
    """

    def __init__(
        self,
        env: Env,
        files: OpenFiles,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        segments: Segments,
        *,
        topic_id: bytes | None,
        log_start_offset: int,
        recovery_point: int,
        producers: ProducerStateManager,
        leader_epochs: LeaderEpochCache,
        unsynced_folders: Sequence[str] = (),
    ) -> None:
        assert log_start_offset <= segments.end_offset, "a log cannot start behind its end"
        self.env = env
        self._files = files
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = log_start_offset
        self.high_watermark = log_start_offset
        self.segments = segments
        self.producers = producers
        self.leader_epochs = leader_epochs
        self.health = Health()
        self.durability = Durability(
            env.disk,
            env.clock,
            self.health,
            directory,
            segments,
            leader_epochs,
            recovery_point=recovery_point,
            unsynced_folders=unsynced_folders,
        )
        self.missing_from: int | None = None  # from here on it lacks records that it had; None: not as far as is known
        self.cleaning = False  # a compaction is under way: no other may start, and a truncation cancels it
        self.finish_swap: Callable[[], None] | None = (
            None  # set while new files take the place of others: completes that
        )
        self.finish_truncation: Callable[[], None] | None = None  # set while a truncation is under way: does the rest
        self._checked_end_offset = segments.end_offset
        self._roll_jitter_ms = 0
        self.choose_roll_jitter()

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_start_offset}..{self.log_end_offset})"

    # -- offsets and state

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.segments.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided. Never above the high watermark.

        Never below the log start: DeleteRecords and retention may have taken the begin of an open transaction.
        """
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None:
            return self.high_watermark
        return max(min(first_unstable, self.high_watermark), self.log_start_offset)

    def set_high_watermark(self, offset: int) -> None:
        """Move it, within [log start, log end]."""
        start, end = self.log_start_offset, self.segments.end_offset
        self.high_watermark = start if offset < start else end if offset > end else offset
        if self.producers.unreplicated:
            self.producers.high_watermark_moved(self.high_watermark)

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def failed(self) -> OSError | None:
        """Why the log is not written any more until the next start, if that is so."""
        return self.health.failed

    @property
    def write_blocked(self) -> OSError | None:
        """Why the last write was not possible, if it was not. The next one may be."""
        return self.health.write_blocked

    @property
    def closed(self) -> bool:
        """Whether the broker has stopped using it."""
        return self.health.closed

    # -- read

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_bound: int,
        at_least_one: bool,
        by_reference_from: int = NEVER_BY_REFERENCE,
    ) -> FetchData:
        """Whole batches below `upper_bound` from the one that holds `offset`, in at most `max_bytes`.

        With `at_least_one`, the first batch may be bigger than that. OFFSET_OUT_OF_RANGE if the offset is outside
        [log start, log end]. At or behind the bound, nothing is read, and that is no error. Batches of at least
        `by_reference_from` bytes together are not read: the result is a range of the file.
        """
        end = self.segments.end_offset
        if offset < self.log_start_offset or offset > end:
            return FetchData(ErrorCode.OFFSET_OUT_OF_RANGE, b"", -1, -1)
        if upper_bound > end:
            upper_bound = end
        if offset >= upper_bound or (max_bytes <= 0 and not at_least_one):
            return FetchData(NONE, b"", offset, offset)
        try:
            return self.segments.read(
                offset, max(max_bytes, 0), upper_bound, at_least_one, by_reference_from, self.health.fail
            )
        except (OSError, CorruptBatchError) as error:
            return FetchData(self.unreadable(error), b"", -1, -1)

    def unreadable(self, error: OSError | CorruptBatchError) -> ErrorCode:
        """What to answer when reading raised. A disk that fails takes the log with it; damaged data does not."""
        if isinstance(error, CorruptBatchError):
            logger.error("%s: a read met damaged records: %s", self.name, error)
            return ErrorCode.CORRUPT_MESSAGE
        if not may_pass(error):
            self.health.fail(error)
        return ErrorCode.KAFKA_STORAGE_ERROR

    def bytes_between(self, offset: int, upper_bound: int) -> int:
        """About how many bytes a reader from `offset` has before it; exact near the log end. Reads no segment."""
        return self.segments.bytes_between(
            max(offset, self.log_start_offset), min(upper_bound, self.segments.end_offset)
        )

    def offset_for_timestamp(self, timestamp: int, upper_bound: int) -> TimestampOffset | None:
        """The first record with a timestamp ≥ `timestamp` in [log start, `upper_bound`), or None.

        CorruptBatchError, OSError.
        """
        return self.segments.offset_for_timestamp(timestamp, self.log_start_offset, upper_bound)

    # -- append

    def append_as_leader(
        self, records: Appendable | PlainBatch, *, leader_epoch: int, origin: AppendOrigin, now_ms: int
    ) -> AppendResult:
        """Validate the records unless that is done, give them offsets and the epoch, write.

        A writable buffer is changed. Every produced batch passes here, so the steps are not calls of their own.
        """
        health = self.health
        if health.failed is not None or health.closed:
            return self._refuse_failed()
        if type(records) is Validated or type(records) is AppendResult:
            validated: Validated | AppendResult = records
        else:
            validated = validate_for_leader(records, self.config, origin, now_ms, self.name)  # type: ignore[arg-type]
        if type(validated) is AppendResult:
            if validated.error not in _BEFORE_THE_LOG:
                validated.log_start_offset = self.log_start_offset
            return validated
        assert type(validated) is Validated
        view, headers, positions = validated.records, validated.headers, validated.positions
        size = len(view)
        if size > (most := self.config.segment_bytes):
            return AppendResult(ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes in one append, segment.bytes is {most}")
        markers: list[EndTransactionMarker | None] | None = None
        for slot, header in enumerate(headers):
            if header.producer_id >= 0:
                position = positions[slot]
                marker = None
                if header.attributes & CONTROL:
                    marker = marker_of(memoryview(view)[position : position + header.size_bytes])
                answer = self.producers.answer_to(header, marker, origin, self.log_start_offset, now_ms)
                if answer is not None:
                    return answer
                if markers is None:
                    markers = [None] * len(headers)
                markers[slot] = marker
        base_offset = next_offset = self.segments.end_offset
        max_timestamp = -1
        for header, position in zip(headers, positions):
            record_batch.patch(view, position, next_offset, leader_epoch)
            header.base_offset = next_offset
            if header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp
            next_offset += header.last_offset_delta + 1
        failure = self._write(validated, base_offset, next_offset, max_timestamp, now_ms)
        if failure is not None:
            if origin is AppendOrigin.CLIENT:
                self.producers.note_refused(validated, failure.error, now_ms)
            return failure
        if leader_epoch >= 0 and leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if markers is not None:
            for header, marker in zip(headers, markers):
                if header.producer_id >= 0:
                    last_offset = header.base_offset + header.last_offset_delta
                    self._update_producers(header, last_offset, marker, origin is AppendOrigin.COORDINATOR_OF_VERSION_2)
        return self._end_append(base_offset, next_offset, validated.log_append_time_ms)

    def append_as_follower(self, records: Buffer) -> AppendResult:
        """Write a leader's batches as they are. They begin at the log end; behind it if the leader has compacted there.

        OFFSET_OUT_OF_RANGE if they begin below it (`base_offset` says where), CORRUPT_MESSAGE if they are damaged.
        """
        if not self.health.is_writable:
            return self._refuse_failed()
        validated = validate_for_follower(records, self.segments.end_offset)
        if type(validated) is AppendResult:
            return validated
        assert type(validated) is Validated
        view, headers, positions = validated.records, validated.headers, validated.positions
        if not headers:
            return AppendResult(NONE, log_start_offset=self.log_start_offset)
        max_timestamp = max(-1, max(header.max_timestamp for header in headers))
        first_offset, next_offset = headers[0].base_offset, headers[-1].next_offset
        failure = self._write(validated, first_offset, next_offset, max_timestamp, self.env.clock.now_ms())
        if failure is not None:
            return failure
        for header, position in zip(headers, positions):
            epoch = header.partition_leader_epoch
            if epoch >= 0 and epoch != self.leader_epochs.latest:
                self.leader_epochs.assign(epoch, header.base_offset)
            if header.producer_id >= 0:
                marker = None
                if header.attributes & CONTROL:
                    marker = marker_of(view[position : position + header.size_bytes])
                self._update_producers(header, header.last_offset, marker)
        return self._end_append(first_offset, next_offset, -1)

    def _end_append(self, base_offset: int, next_offset: int, log_append_time_ms: int) -> AppendResult:
        """The batches are in the log, and their producers are known: flush if flush.messages asks for it."""
        assert next_offset == self.segments.end_offset, "the log ends behind its last batch"
        self.producers.map_end_offset = next_offset
        if next_offset - self.durability.recovery_point >= self.config.flush_messages:
            self.flush()
            if self.health.write_blocked is not None:  # the batch stays, but flush.messages has promised a sync
                return self._refuse(self.health.write_blocked)
        if self.health.failed is not None:
            return self._refuse_failed()
        return AppendResult(
            NONE,
            base_offset=base_offset,
            last_offset=next_offset - 1,
            log_append_time_ms=log_append_time_ms,
            log_start_offset=self.log_start_offset,
        )

    def _update_producers(
        self,
        header: record_batch.BatchHeader,
        last_offset: int,
        marker: EndTransactionMarker | None,
        raises_epochs: bool = False,
    ) -> None:
        if marker is not None:
            aborted = self.producers.update_marker(
                header.producer_id,
                header.producer_epoch,
                marker,
                last_offset,
                header.max_timestamp,
                raises_epochs=raises_epochs,
            )
            if aborted is not None:
                try:
                    self.segments.active.transaction_index.append(aborted)
                except OSError as error:
                    self.health.block_writes(error)  # the entry stays in memory, and is written with the other indexes
        elif not header.attributes & CONTROL:
            self.producers.update_data(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_offset,
                last_offset,
                header.max_timestamp,
                bool(header.attributes & TRANSACTIONAL),
            )

    def _write(
        self, batches: Validated, first_offset: int, next_offset: int, max_timestamp: int, now_ms: int
    ) -> AppendResult | None:
        segments = self.segments
        assert next_offset > segments.end_offset, "an append moves the log end offset forward"
        last_offset = next_offset - 1
        try:
            if segments.active.is_over(
                self.config, len(batches.records), last_offset, max_timestamp, now_ms, self._roll_jitter_ms
            ):
                base_offset = segments.end_offset
                if last_offset - base_offset >= 2**31:
                    # This makes a gap between two segments. It must not look like one that a crash made, so all
                    # before it is synced.
                    self.flush()
                    base_offset = first_offset
                self._roll_to(base_offset)
            segments.active.append(batches.records, batches.headers, batches.positions)
        except OSError as error:
            self.health.block_writes(error)
            return self._refuse(error)
        segments.end_offset = next_offset
        if self.health.write_blocked is not None:
            self.health.end_write_block()
        return None

    def choose_roll_jitter(self) -> None:
        """Draw anew how much earlier than segment.ms the active segment ends."""
        jitter_ms = self.config.segment_jitter_ms
        self._roll_jitter_ms = self.env.rng.randint(0, jitter_ms) if jitter_ms > 0 else 0

    def _refuse_failed(self) -> AppendResult:
        return self._refuse(self.health.failed or "the log is closed")

    def _refuse(self, reason: object) -> AppendResult:
        return AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {reason}")

    # -- rolling

    def roll(self) -> None:
        """Begin a new segment at the log end, unless the active one is empty."""
        if self.health.is_writable and self.segments.active.size:
            try:
                self._roll_to(self.log_end_offset)
            except OSError as error:
                self.health.block_writes(error)

    def begin_anew(self) -> bool:
        """Begin an empty segment, because all that there is will be deleted. False if there is no room for it now."""
        try:
            self._roll_to(self.log_end_offset, is_needed=False)
        except OSError as error:
            self.health.block_writes(error)
            return False
        return True

    def _roll_to(self, base_offset: int, *, is_needed: bool = True) -> None:
        """Begin a segment. After an OSError that `may_pass`, the old segment is still the active one.

        If the old one is not needed any more, files are left out for which there is no room.
        """
        old, durability = self.segments.active, self.durability
        already_flushed = durability.recovery_point >= self.log_end_offset
        old.close_time_index()
        indexes = if_room(old.write_indexes, is_needed)
        written = [if_room(self.producers.take_snapshot, is_needed)]
        if already_flushed:  # the recovery point will pass these indexes, and then they are trusted
            if_room(lambda: self.leader_epochs.flush(self.log_end_offset), is_needed)
            if indexes is not None:
                if_room(old.sync_indexes, is_needed)
        else:
            written.append(if_room(lambda: self.leader_epochs.write(self.log_end_offset), is_needed))
            durability.mark_unsynced(old)
        new = self.make_segment(base_offset)
        try:
            if already_flushed:
                self.env.disk.sync_directory(self.directory)
            else:
                new.mark_unsynced()  # now: the mark becomes durable with the segment's name
        except OSError:
            new.delete_files()
            raise
        self.segments.begin(new)
        self.choose_roll_jitter()
        if already_flushed:
            durability.raise_recovery_point(base_offset)
        else:
            paths = [old.path, *(indexes or ()), *(path for path in written if path is not None)]
            durability.sync_rolled(paths, base_offset)

    def make_segment(self, base_offset: int) -> Segment:
        """A new empty segment in the log's folder, which is no part of the log yet."""
        return Segment.create(self._files, self.directory, base_offset, self.config, self.env.clock.now_ms())

    # -- flush and close

    @property
    def flush_due_ms(self) -> float:
        """When flush.ms wants the next flush to begin, in monotonic time."""
        return self.durability.last_flush_ms + self.config.flush_ms

    @property
    def is_flush_due(self) -> bool:
        """Whether flush.ms asks for a flush, and none is under way."""
        if self.durability.unflushed_messages <= 0 or not self.health.is_writable:
            return False
        return self.env.clock.monotonic_ms() >= self.flush_due_ms and not self.durability.is_syncing

    def flush(self) -> None:
        """Make everything durable. Blocks until the sync is done."""
        self.durability.flush()

    def write_topic_id(self, topic_id: bytes) -> None:
        """Remember the topic's id, in memory and on disk; durable with the next flush.

        A crash that loses it does no harm, because the tree knows it (`recovery.open_log`).
        """
        assert self.topic_id is None, "a log keeps the topic id that it has"
        path = f"{self.directory}/{checkpoints.PARTITION_METADATA}"
        checkpoints.write_partition_metadata(self.env.disk, path, topic_id)
        self.durability.sync_with_next_flush([path], with_names=True)
        self.topic_id = topic_id

    def check_file(self) -> None:
        """If the log was written since the last check: the file that is open may have lost its name."""
        if self.log_end_offset == self._checked_end_offset or not self.health.is_writable:
            return
        self._checked_end_offset = self.log_end_offset
        path = self.segments.active.path
        try:
            self.env.disk.file_size(path)
        except FileNotFoundError:
            self.health.fail(FileNotFoundError(errno.ENOENT, "somebody has removed it", path))
        except OSError:
            pass  # no right to look for it now: it can be written even so, as it is open

    def give_back_indexes(self) -> None:
        """Free the memory of the indexes that nobody has used since the last call."""
        if not self.closed:
            self.segments.give_back_indexes()

    def seal(self) -> None:
        """Before the last flush: write the indexes and a producer snapshot, which that flush makes durable.

        What the next start makes again by one read is not written: for thousands of small logs, that would take most
        of the time that a stop has.
        """
        if not self.health.is_writable:
            return
        assert self.finish_truncation is None, "nothing is sealed while a truncation is under way"
        segments, durability = self.segments, self.durability
        try:
            for segment in segments[segments.slot_of(durability.recovery_point) :]:
                segment.close_time_index()
                segment.write_indexes(new_files=segment.is_indexed)
            # Also when all records are durable already. The next start trusts that where there is no index of aborted
            # transactions, there are none. It makes the other indexes again if they are missing.
            durability.sync_with_next_flush(
                segments.active.index_paths(), with_names=segments.active.transaction_index.is_written
            )
            is_small = len(segments) == 1 and segments.active.size <= WINDOW_BYTES  # one read gets all of it
            snapshot = None if is_small and not self.producers.entries else self.producers.take_snapshot()
            if snapshot is not None:
                durability.sync_with_next_flush([snapshot])
            self.health.write_blocked = None  # unless the flush finds another reason
        except OSError as error:
            self.health.fail(error)

    def abandon(self) -> None:
        """Close without writing anything."""
        self.health.closed = True
        for segment in self.segments:
            self._files.close(segment.path)

    # -- removing

    def delete_records_before(self, offset: int) -> None:
        """Raise the log start. Whole segments below it go at the next retention check."""
        assert offset <= self.log_end_offset
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
            if self.high_watermark < offset:
                self.set_high_watermark(offset)
        assert self.log_start_offset <= self.high_watermark, "what is deleted was committed"

    def remove_segments(self, gone: list[Segment]) -> None:
        """Take segments and their snapshots out of the log.

        Files are renamed now, and removed after file.delete.delay.ms.
        """
        doomed = {id(segment) for segment in gone}
        assert id(self.segments.active) not in doomed, "the segment that is appended to stays"
        self.segments.replace([segment for segment in self.segments if id(segment) not in doomed])
        for segment in gone:
            segment.rename(".deleted")
            if segment.base_offset not in self.segments.base_offsets:
                self.producers.remove_snapshot(segment.base_offset)
        delete_later(self.env.clock, gone, self.config.file_delete_delay_ms)

    def delete_directory_to(self, directory: str) -> None:
        """The partition is deleted: the folder gets another name, and nothing is written any more.

        OSError: nothing is changed. A folder that is not there any more is no error.
        """
        with suppress(FileNotFoundError):
            self.env.disk.rename(self.directory, directory)
        self.health.closed = True
        self.directory = directory
        for segment in self.segments:
            segment.moved_to(directory)  # this closes its file, too


def close_together(disk: Disk, logs: Iterable[Log]) -> None:
    """Stop logs cleanly: everything is durable, indexes and producer snapshots are complete."""
    logs = [log for log in logs if not log.closed]
    for log in logs:
        if log.finish_truncation is not None:
            log.finish_truncation()
        assert not log.health.is_held, "nothing is sealed while a truncation is under way"
        log.seal()
    flush_together(disk, [log.durability for log in logs])
    for log in logs:
        if log.failed is None and log.write_blocked is None:
            with suppress(OSError):  # a mark that stays does no harm while no other broker compacts the log
                log.segments.active.remove_mark()
        log.abandon()
