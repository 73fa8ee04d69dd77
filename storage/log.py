"""One partition's log: an append-only sequence of record batches in segments.

All methods are plain and run to completion; what must not block (syncing a rolled segment, removing files after
their delay) goes through the clock and the disk.

A write for which there was no room, or no free descriptor, has not happened: the file is cut back to its last good
batch, the append refused, and the log is `hindered` until one succeeds. After any other failed write, and after every
failed sync, it is `failed` and refuses all further appends: what is on disk behind the last sync is unknown from then
on.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

from barnabas.config.topic import TopicConfig
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL, HEADER_BYTES, TRANSACTIONAL
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.runtime.ports import Buffer, Env, may_pass
from barnabas.runtime.turns import at_once
from barnabas.storage import retention
from barnabas.storage.durable_log import DurableLog
from barnabas.storage.leader_epochs import LeaderEpochCache
from barnabas.storage.log_reader import marker_of, rebuild_producers
from barnabas.storage.open_files import OpenFiles
from barnabas.storage.producer_state import (
    EndTransactionMarker,
    ProducerStateManager,
    check_data,
    check_marker,
    last_sequence_of,
)
from barnabas.storage.segment import AppendedBatch, Segment
from barnabas.storage.validation import (
    Appendable,
    AppendOrigin,
    AppendResult,
    Validated,
    validate_for_leader,
)

logger = logging.getLogger("barnabas.storage")

T = TypeVar("T")

_SEGMENTS_REMOVED_AT_ONCE = 50
# Refusals that Kafka answers with log start -1: it never got as far as the log.
_BEFORE_THE_LOG = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class Log(DurableLog):
    """See the module. Made by `recovery.open_log` (LogManager calls it)."""

    def __init__(
        self,
        env: Env,
        files: OpenFiles,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        segments: list[Segment],
        *,
        topic_id: bytes | None,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        producers: ProducerStateManager,
        leader_epochs: LeaderEpochCache,
        unsynced_folders: Sequence[str] = (),
    ) -> None:
        super().__init__(
            env,
            files,
            directory,
            topic,
            partition,
            config,
            segments,
            topic_id=topic_id,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=recovery_point,
            producers=producers,
            leader_epochs=leader_epochs,
            unsynced_folders=unsynced_folders,
        )
        self.cleaning = False  # a compaction is between its slices: no other may start, truncation cancels it
        self.finish_swap: Callable[[], None] | None = None  # while its files take the place of others: must be ended
        self.on_recovery_point_lowered: Callable[[], None] | None = None
        self._roll_jitter_ms = 0
        self._choose_jitter()

    # -- append

    def append_as_leader(
        self, records: Appendable, *, leader_epoch: int, origin: AppendOrigin, now_ms: int
    ) -> AppendResult:
        """Validate unless that is done, give offsets and epoch, write. A writable buffer is patched in place."""
        if self.failed is not None or self.closed:
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
        if size > self.config.segment_bytes:
            message = f"{size} bytes in one append, segment.bytes is {self.config.segment_bytes}"
            return AppendResult(ErrorCode.RECORD_LIST_TOO_LARGE, message)
        markers: list[EndTransactionMarker | None] | None = None
        for slot, header in enumerate(headers):
            if header.producer_id >= 0:
                position = positions[slot]
                marker = None
                if header.attributes & CONTROL:
                    marker = marker_of(memoryview(view)[position : position + header.size_bytes])
                refused = self._check_producer(header, marker, origin)
                if refused is not None:
                    return refused
                if markers is None:
                    markers = [None] * len(headers)
                markers[slot] = marker
        base_offset = next_offset = self.log_end_offset
        batches = []
        max_timestamp = -1
        for header, position in zip(headers, positions):
            record_batch.patch(view, position, next_offset, leader_epoch)
            header.base_offset = next_offset
            last_offset = next_offset + header.last_offset_delta
            batches.append(AppendedBatch(position, header.base_offset, last_offset, header.max_timestamp))
            max_timestamp = max(max_timestamp, header.max_timestamp)
            next_offset = last_offset + 1
        error = self._write(view, batches, base_offset, next_offset, max_timestamp, now_ms)
        if error is not None:
            return error
        if leader_epoch >= 0 and leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if markers is not None:
            for header, marker in zip(headers, markers):
                if header.producer_id >= 0:
                    self._update_producers(header, header.base_offset + header.last_offset_delta, marker)
        self.producers.map_end_offset = next_offset
        error = self._maybe_flush()
        if error is not None:
            return error
        return AppendResult(
            ErrorCode.NONE,
            base_offset=base_offset,
            last_offset=next_offset - 1,
            log_append_time_ms=validated.log_append_time_ms,
            log_start_offset=self.log_start_offset,
        )

    def append_as_follower(self, records: Buffer) -> AppendResult:
        """Write a leader's batches as they are. They must begin at the log end or, after compaction there, behind it.

        OFFSET_OUT_OF_RANGE when they begin below it (`base_offset` says where), CORRUPT_MESSAGE when they are damaged.
        """
        if self.failed is not None or self.closed:
            return self._refuse_failed()
        view = memoryview(records)
        size = len(view)
        position = 0
        expected = self.log_end_offset
        headers, batches = [], []
        max_timestamp = -1
        try:
            while position < size:
                if size - position < HEADER_BYTES:
                    raise CorruptBatchError("the last batch is cut off")
                header = record_batch.read_header(view, position)
                end = position + header.size_bytes
                if end > size:
                    raise CorruptBatchError("the last batch is cut off")
                if header.base_offset < expected:
                    message = f"the batch begins at {header.base_offset}, expected {expected} or later"
                    return AppendResult(ErrorCode.OFFSET_OUT_OF_RANGE, message, base_offset=header.base_offset)
                if not record_batch.crc_is_valid(view[position:end]):
                    raise CorruptBatchError(f"the checksum of the batch at offset {header.base_offset} does not match")
                headers.append(header)
                last_offset = header.base_offset + header.last_offset_delta
                batches.append(AppendedBatch(position, header.base_offset, last_offset, header.max_timestamp))
                max_timestamp = max(max_timestamp, header.max_timestamp)
                expected = last_offset + 1
                position = end
        except CorruptBatchError as error:
            return AppendResult(ErrorCode.CORRUPT_MESSAGE, str(error))
        if not headers:
            return AppendResult(ErrorCode.NONE, log_start_offset=self.log_start_offset)
        first_offset = headers[0].base_offset
        failure = self._write(view, batches, first_offset, expected, max_timestamp, self._env.clock.now_ms())
        if failure is not None:
            return failure
        for header, batch in zip(headers, batches):
            epoch = header.partition_leader_epoch
            if epoch >= 0 and epoch != self.leader_epochs.latest:
                self.leader_epochs.assign(epoch, header.base_offset)
            if header.producer_id >= 0:
                marker = None
                if header.attributes & CONTROL:
                    marker = marker_of(view[batch.position : batch.position + header.size_bytes])
                self._update_producers(header, batch.last_offset, marker)
        self.producers.map_end_offset = expected
        failure = self._maybe_flush()
        if failure is not None:
            return failure
        return AppendResult(
            ErrorCode.NONE,
            base_offset=first_offset,
            last_offset=expected - 1,
            log_start_offset=self.log_start_offset,
        )

    def _check_producer(
        self, header: record_batch.BatchHeader, marker: EndTransactionMarker | None, origin: AppendOrigin
    ) -> AppendResult | None:
        entry = self.producers.entries.get(header.producer_id)
        if marker is not None:
            error = check_marker(
                entry, producer_epoch=header.producer_epoch, coordinator_epoch=marker.coordinator_epoch
            )
        else:
            is_client = origin is AppendOrigin.CLIENT
            if entry is not None and is_client:
                last_sequence = last_sequence_of(header.base_sequence, header.last_offset_delta)
                stored = entry.duplicate_of(header.producer_epoch, header.base_sequence, last_sequence)
                if stored is not None:
                    return AppendResult(
                        ErrorCode.NONE,
                        base_offset=stored.first_offset,
                        last_offset=stored.last_offset,
                        log_append_time_ms=stored.timestamp,
                        log_start_offset=self.log_start_offset,
                        duplicate=True,
                    )
            error = check_data(
                entry,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                is_transactional=bool(header.attributes & TRANSACTIONAL),
                check_sequence=is_client,
            )
        if error is ErrorCode.NONE:
            return None
        return AppendResult(error, log_start_offset=self.log_start_offset)

    def _update_producers(
        self, header: record_batch.BatchHeader, last_offset: int, marker: EndTransactionMarker | None
    ) -> None:
        if marker is not None:
            aborted = self.producers.update_marker(
                header.producer_id, header.producer_epoch, marker, last_offset, header.max_timestamp
            )
            if aborted is not None:
                try:
                    self.active_segment.transaction_index.append(aborted)
                except OSError as error:
                    self.hinder(error)  # the entry is in memory, and written with the other indexes
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
        self,
        view: Buffer,
        batches: list[AppendedBatch],
        first_offset: int,
        next_offset: int,
        max_timestamp: int,
        now_ms: int,
    ) -> AppendResult | None:
        segment = self.segments[-1]
        try:
            if self._must_roll(segment, len(view), next_offset - 1, max_timestamp, now_ms):
                base_offset = self.log_end_offset
                if next_offset - 1 - base_offset >= 2**31:
                    # This needs a gap between two segments, which must not look like what a crash lost.
                    self.flush()
                    base_offset = first_offset
                segment = self._roll_to(base_offset)
            segment.append(view, batches)
        except OSError as error:
            self.hinder(error)
            return self._refuse(error)
        self.log_end_offset = next_offset
        if self.hindered is not None:
            self.end_hindrance()
        return None

    def _must_roll(self, segment: Segment, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        config = self.config
        if not segment.can_hold(last_offset):
            return True
        if not segment.size:
            return False
        if segment.size + size > config.segment_bytes or segment.is_index_full(config.segment_index_bytes):
            return True
        first_timestamp = segment.first_timestamp
        if first_timestamp >= 0 and max_timestamp >= 0:
            age_ms = max_timestamp - first_timestamp
        else:
            age_ms = now_ms - segment.created_ms
        age_max_ms = config.segment_ms
        if "compact" in config.cleanup_policy:  # the active segment is not compacted, so it must not grow too old
            age_max_ms = min(age_max_ms, config.max_compaction_lag_ms)
        return age_ms > age_max_ms - min(self._roll_jitter_ms, age_max_ms)

    def _choose_jitter(self) -> None:
        jitter_ms = self.config.segment_jitter_ms
        self._roll_jitter_ms = self._env.rng.randint(0, jitter_ms) if jitter_ms > 0 else 0

    def _refuse_failed(self) -> AppendResult:
        return self._refuse(self.failed or "the log is closed")

    def _refuse(self, reason: object) -> AppendResult:
        return AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {reason}")

    # -- rolling

    def _maybe_flush(self) -> AppendResult | None:
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            self.flush()
            if self.hindered is not None:  # the batch stays, but who asks for flush.messages was promised a sync
                return self._refuse(self.hindered)
        return None if self.failed is None else self._refuse_failed()

    def roll(self) -> None:
        """Begin a new segment at the log end, unless the active one is empty."""
        if self.failed is None and not self.closed and self.active_segment.size:
            try:
                self._roll_to(self.log_end_offset)
            except OSError as error:
                self.hinder(error)

    def _roll_to(self, base_offset: int, *, is_needed: bool = True) -> Segment:
        """Begin a segment. After an OSError that `may_pass` the old one is still the active one.

        If the old one `is_needed` no more, it is done without what there is no room to write.
        """
        old = self.active_segment
        assert base_offset > old.base_offset
        already_flushed = self.recovery_point >= self.log_end_offset
        old.close_time_index()
        indexes = self._write_if_room(old.write_indexes, is_needed)
        written = [self._write_if_room(self.producers.take_snapshot, is_needed)]
        if already_flushed:  # the recovery point has passed these indexes: with the next segment they are trusted
            self._write_if_room(lambda: self.leader_epochs.flush(self.log_end_offset), is_needed)
            if indexes is not None:
                self._write_if_room(lambda: self._sync_indexes(old), is_needed)
        else:
            written.append(self._write_if_room(lambda: self.leader_epochs.write(self.log_end_offset), is_needed))
            if not old.is_marked_unsynced:
                old.mark_unsynced()
                self._names_changed()
            if self.directory in self._unsynced_folders:  # a crash must not keep the new name and lose the older ones
                self._env.disk.sync_directory(self.directory)
        new = Segment.create(
            self._files,
            self.directory,
            base_offset,
            now_ms=self._env.clock.now_ms(),
            index_interval_bytes=self.config.index_interval_bytes,
        )
        try:
            if already_flushed:
                self._env.disk.sync_directory(self.directory)
            else:
                new.mark_unsynced()  # now: with its name, it is durable by the time that the next segment begins
        except OSError:
            new.delete_files()
            raise
        self.segments.append(new)
        self._bases.append(base_offset)
        self._choose_jitter()
        if already_flushed:
            self._raise_recovery_point(base_offset)
            return new
        self._names_changed()
        paths = [old.path, *(indexes or ()), *(path for path in written if path is not None)]
        self._sync_in_background(paths, base_offset)
        return new

    def _write_if_room(self, write: Callable[[], T], is_needed: bool) -> T | None:
        """What `write` returns; None if there was no room and it is not needed."""
        try:
            return write()
        except OSError as error:
            if is_needed or not may_pass(error):
                raise
            return None

    # -- removing

    def delete_records_before(self, offset: int) -> None:
        """Raise the log start. Whole segments below it go at the next retention check."""
        assert offset <= self.log_end_offset
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
            if self.high_watermark < offset:
                self.set_high_watermark(offset)

    def raise_start_by_retention(self, now_ms: int) -> bool:
        """Raise the log start above what retention gives up; whether whole segments lie below it now.

        They go with `remove_segments_below_start`, once that start is written down: a crash may bring back any of
        their names, and what comes back then lies below the log start and not in front of a hole.
        """
        if self.failed is not None or self.closed or self.cleaning:
            return False
        delete = "delete" in self.config.cleanup_policy
        if not delete and self.log_start_offset == self._bases[0]:
            return False
        ends = [*self._bases[1:], self.log_end_offset]
        try:
            count = retention.expired_segments(
                [retention.SegmentFacts(end, segment.size) for segment, end in zip(self.segments, ends)],
                lambda slot: self.segments[slot].largest_timestamp,
                now_ms=now_ms,
                retention_ms=self.config.retention_ms,
                retention_bytes=self.config.retention_bytes,
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
                delete=delete,
            )
            if not count:
                return False
            if count == len(self.segments) and not self._begin_anew():
                count -= 1  # the others make room for what the last one needs
            if not count:
                return False
            self.delete_records_before(self._bases[count])
            return True
        except OSError as error:
            self.hinder(error)
            return False

    def _begin_anew(self) -> bool:
        """Begin an empty segment because all that there is will be deleted; False if there is no room for it now."""
        try:
            self._roll_to(self.log_end_offset, is_needed=False)
        except OSError as error:
            self.hinder(error)
            return False
        return True

    def remove_segments_below_start(self) -> int:
        """Remove segments that have nothing at or above the log start; how many went. Again, until none did: only so
        many go at a time."""
        count = min(bisect_right(self._bases, self.log_start_offset) - 1, _SEGMENTS_REMOVED_AT_ONCE)
        if count <= 0 or self.failed is not None or self.closed or self.cleaning:
            return 0
        try:
            self.remove_segments(self.segments[:count])
        except OSError as error:
            self.hinder(error)
            return 0
        logger.info("%s: %d segments went by retention, log start %d", self.name, count, self.log_start_offset)
        return count

    def give_back_indexes(self) -> None:
        """Of segments that nobody has read since the last call."""
        for segment in () if self.closed else self.segments[:-1]:
            if segment.touched:
                segment.touched = False
            else:
                segment.unload()

    def remove_segments(self, gone: list[Segment]) -> None:
        """Take segments out of the log: renamed now, removed after file.delete.delay.ms, their snapshots too."""
        doomed = {id(segment) for segment in gone}
        self.replace_segments([segment for segment in self.segments if id(segment) not in doomed])
        for segment in gone:
            segment.rename(".deleted")
            if segment.base_offset not in self._bases:
                self.producers.remove_snapshot(segment.base_offset)
        self.delete_later(gone)

    def delete_later(self, gone: list[Segment]) -> None:
        """Remove files after the delay, so that whoever reads them can finish."""

        waiting = list(reversed(gone))

        def delete() -> None:
            """One in each pass of the loop: to remove a large file takes long."""
            segment = waiting.pop()
            try:
                segment.delete_files()
            except OSError as error:
                logger.warning("%s: could not remove old files: %s", self.name, error)
            if waiting:
                self._env.clock.call_soon(delete)

        if waiting:
            self._env.clock.call_later(self.config.file_delete_delay_ms, delete)

    def truncate_to(self, offset: int) -> None:
        """Drop everything from `offset` on (from the begin of the batch that holds it)."""
        if self.failed is not None or self.closed or offset >= self.log_end_offset:
            return
        if offset <= self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        logger.info("%s: truncating from %d to %d", self.name, self.log_end_offset, offset)
        self._end_cleaning()
        try:
            keep = self._slot(offset)
            if self._bases[keep] == offset and keep > 0:
                keep -= 1
            # The whole batch goes that holds the offset, or compaction has left a gap there: the log may end before it.
            batch = self.segments[keep].find(offset)
            if batch is None or batch.base_offset > offset:
                self._lower_recovery_point(self._bases[keep])
            else:
                self._lower_recovery_point(batch.base_offset)
            for segment in reversed(self.segments[keep + 1 :]):  # newest first and each for good: never a gap
                segment.delete_files()
                self._env.disk.sync_directory(self.directory)
            self.replace_segments(self.segments[: keep + 1])
            self.active_segment.truncate(offset)
            self._after_truncation(max(self.active_segment.next_offset(), self.active_segment.base_offset))
        except OSError as error:
            self.fail(error)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and go on at `offset`."""
        if self.failed is not None or self.closed:
            return
        logger.info("%s: dropping all records, starting at %d", self.name, offset)
        self._end_cleaning()
        try:
            self._lower_recovery_point(offset)
            for segment in reversed(self.segments):
                segment.delete_files()
                self._env.disk.sync_directory(self.directory)
            for snapshot in list(self.producers.snapshots):
                self.producers.remove_snapshot(snapshot)
            new = Segment.create(
                self._files,
                self.directory,
                offset,
                now_ms=self._env.clock.now_ms(),
                index_interval_bytes=self.config.index_interval_bytes,
            )
            self.replace_segments([new])
            self.log_start_offset = offset
            self.leader_epochs.clear()
            self._after_truncation(offset)
        except OSError as error:
            self.fail(error)

    def _end_cleaning(self) -> None:
        """No compaction may go on with segments that are about to be cut."""
        if self.finish_swap is not None:
            self.finish_swap()
        self.cleaning = False

    def _lower_recovery_point(self, offset: int) -> None:
        """Before anything is cut, the checkpoint must not claim more than will be left."""
        self._syncing.clear()
        if self.recovery_point > offset:
            self.recovery_point = offset
            if self.on_recovery_point_lowered is not None:
                self.on_recovery_point_lowered()

    def _after_truncation(self, log_end_offset: int) -> None:
        self.log_end_offset = log_end_offset
        self.recovery_point = min(self.recovery_point, log_end_offset)
        self.log_start_offset = min(self.log_start_offset, log_end_offset)
        self.leader_epochs.truncate_from_end(log_end_offset)
        self.leader_epochs.flush(log_end_offset)
        at_once(rebuild_producers(self))  # also removes the snapshots of what was cut
        # What was cut must not come back behind what is appended from here on.
        self.active_segment.sync()
        self._env.disk.sync_directory(self.directory)
        self.high_watermark = max(min(self.high_watermark, log_end_offset), self.log_start_offset)
        self._choose_jitter()

    def delete_directory_to(self, directory: str) -> None:
        """The partition is deleted: no more writes; its folder gets another name."""
        self.closed = True
        self._env.disk.rename(self.directory, directory)
        self.directory = directory
        for segment in self.segments:
            segment.moved_to(directory)  # and closed
