"""What goes from the end of a log: everything behind an offset, or everything.

What was cut must not come back behind what is appended later. So each step is durable before the next one, and the
recovery point is lowered on disk before anything goes.

Between two steps the log waits for a sync. It is consistent then and can be read, but nothing else writes it
(`Health.is_held`). A follower does the steps in turns with other tasks, so that no sync holds up the loop. A replica
that becomes leader meanwhile, or a broker that stops, does the rest at once (`Truncation.finish`).
"""

import errno
import logging
from collections.abc import Generator, Sequence
from functools import partial

from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces
from barnabas.storage.durability import RecoveryPointCheckpoint, sync_later
from barnabas.storage.health import if_room
from barnabas.storage.log import Log
from barnabas.storage.producer_state import ProducerStateManager

logger = logging.getLogger("barnabas.storage")


class _Sync(NamedTuple):
    """What must be durable before the next step: contents, then names; or a checkpoint, which must be written."""

    files: Sequence[str] = ()
    folders: Sequence[str] = ()
    checkpoint: RecoveryPointCheckpoint | None = None


_Steps = Generator[_Sync | None, None, None]  # None: other tasks may run


def truncate_to(log: Log, offset: int) -> None:
    """Drop everything from `offset` on. The whole batch goes that holds the offset. Blocks until that is durable."""
    truncation = begin_truncation(log, offset)
    if truncation is not None:
        truncation.finish()


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """Drop everything and go on at `offset`. Blocks until that is durable."""
    truncation = begin_full_truncation(log, offset)
    if truncation is not None:
        truncation.finish()


def begin_truncation(log: Log, offset: int) -> "Truncation | None":
    """As `truncate_to`; the steps are still to be done. None if nothing has to be cut.

    Epochs that began at the log end or later go in any case. Such an epoch has no records. If its leader is not the
    one that is followed now, that one never heard of it, and would say for ever that the logs diverge there.
    """
    if not log.health.is_writable:
        return None
    if offset >= log.log_end_offset:
        log.leader_epochs.truncate_from_end(log.log_end_offset)
        return None
    if offset <= log.segments[0].base_offset:
        return begin_full_truncation(log, offset)
    logger.info("%s: truncating from offset %d to %d", log.name, log.log_end_offset, offset)
    return Truncation(log, _truncate(log, offset))


def begin_full_truncation(log: Log, offset: int) -> "Truncation | None":
    """As `truncate_fully_and_start_at`; the steps are still to be done. None if the log cannot be written."""
    if not log.health.is_writable:
        return None
    logger.info("%s: truncating fully, the log goes on at offset %d", log.name, offset)
    return Truncation(log, _truncate_fully(log, offset))


class Truncation:
    """A truncation that has begun. `log.finish_truncation` is set until its last step is durable."""

    __slots__ = ("_is_over", "_log", "_steps", "_sync", "has_succeeded")

    def __init__(self, log: Log, steps: _Steps) -> None:
        assert not log.health.is_held, "another truncation is under way"
        self._log = log
        self._steps = steps
        self._sync: _Sync | None = None  # what is waited for
        self._is_over = False
        self.has_succeeded = False
        log.health.is_held = True
        log.finish_truncation = self.finish

    def finish(self) -> None:
        """Do the rest at once. Blocks for the syncs."""
        disk = self._log.env.disk
        while not self._is_over:
            sync = self._sync
            error: OSError | None = None
            if sync is not None:
                if sync.checkpoint is not None:
                    error = sync.checkpoint.write()
                else:
                    error = next(iter(disk.sync_all(sync.files, sync.folders).values()), None)
            self._go_on(error)

    def in_turns(self) -> Pieces[None]:
        """Do it piece by piece, with syncs in the background."""
        while not self._is_over:
            sync = self._sync
            error: OSError | None = None
            if sync is not None:
                error = yield self._begin_sync(sync)
                if self._sync is not sync:  # somebody has finished it meanwhile
                    continue
            else:
                yield None
            if not self._is_over:
                self._go_on(error)

    def _begin_sync(self, sync: _Sync) -> Pending[OSError | None]:
        if sync.checkpoint is not None:
            return sync.checkpoint.write_later()
        return sync_later(self._log.env.disk, sync.files, sync.folders)

    def _go_on(self, error: OSError | None) -> None:
        """The step before is durable, or failed: do the next one."""
        log = self._log
        assert not self._is_over, "a truncation that is over goes on"
        if log.closed or log.failed is not None:
            self._end()
            return
        if error is not None:
            if self._sync is not None and self._sync.checkpoint is not None:
                log.health.block_writes(error)  # nothing was cut yet
            else:
                log.health.fail(error)
            self._end()
            return
        try:
            self._sync = next(self._steps)
        except StopIteration:
            self.has_succeeded = True
            self._end()
        except OSError as failure:
            log.health.fail(failure)
            self._end()
        except CorruptBatchError as damage:
            log.health.fail(OSError(errno.EIO, str(damage), log.directory))
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._sync = None
        self._steps.close()
        self._log.health.is_held = False
        self._log.finish_truncation = None


def _truncate(log: Log, offset: int) -> _Steps:
    segments = log.segments
    _end_cleaning(log)
    keep = segments.slot_of(offset)
    if segments[keep].base_offset == offset and keep > 0:
        keep -= 1
    batch = segments[keep].find(offset)
    if batch is None or batch.base_offset > offset:  # compaction left a gap there: the log ends before the gap
        yield from _lower_recovery_point(log, segments[keep].base_offset)
    else:
        yield from _lower_recovery_point(log, batch.base_offset)
    yield from _delete_from(log, keep + 1)
    segments.active.truncate(offset)
    yield from _end_at(log, max(segments.active.next_offset(), segments.active.base_offset))


def _truncate_fully(log: Log, offset: int) -> _Steps:
    segments = log.segments
    _end_cleaning(log)
    yield from _lower_recovery_point(log, min(offset, segments[0].base_offset))
    yield from _delete_from(log, 1)
    (first,) = segments
    log.log_start_offset = offset
    _set_end(log, offset)
    segments.replace([first.without_files(offset)])  # nobody reads it, because the log is empty
    first.empty_files()
    yield _Sync(files=(first.path,))
    for snapshot in list(log.producers.snapshots):
        log.producers.remove_snapshot(snapshot)
    first.hand_file_on(offset)
    segments.replace([log.make_segment(offset)])
    log.leader_epochs.clear()
    yield from _end_at(log, offset)


def _delete_from(log: Log, slot: int) -> _Steps:
    """Delete the segments from that place on, the newest first and each for good: never a gap."""
    segments = log.segments
    assert slot >= 1, "a log keeps its first segment"
    while len(segments) > slot:
        last = segments.active
        segments.replace(segments[:-1])
        _set_end(log, last.base_offset)
        last.delete_files()
        yield _Sync(folders=(log.directory,))


def _lower_recovery_point(log: Log, offset: int) -> _Steps:
    checkpoint = log.durability.lower_recovery_point(offset)
    if checkpoint is not None:
        yield _Sync(checkpoint=checkpoint)


def _end_cleaning(log: Log) -> None:
    """No compaction may go on with segments that are about to be cut."""
    if log.finish_swap is not None:
        log.finish_swap()
    log.cleaning = False


def _set_end(log: Log, log_end_offset: int) -> None:
    """The segments end there now: so do the offsets."""
    assert log.health.is_held, "only a truncation sets the end of a log"
    log.segments.end_offset = log_end_offset
    log.durability.end_was_cut()
    log.log_start_offset = min(log.log_start_offset, log_end_offset)
    log.high_watermark = max(min(log.high_watermark, log_end_offset), log.log_start_offset)
    assert log.log_start_offset <= log.high_watermark <= log_end_offset, "a log keeps its order of offsets"


def _end_at(log: Log, log_end_offset: int) -> _Steps:
    """The last step: offsets, epochs and producers end there, too, and all of it becomes durable."""
    _set_end(log, log_end_offset)
    log.leader_epochs.truncate_from_end(log_end_offset)
    # Without room, the next flush writes them, before the recovery point rises.
    epochs = if_room(partial(log.leader_epochs.write, log_end_offset), is_needed=False)
    producers = ProducerStateManager(log.env.disk, log.directory, log.producers.snapshots)
    for _ in producers.rebuild(log.segments, log.log_start_offset):  # this removes snapshots of what was cut
        yield None
    log.producers = producers
    files = [log.segments.active.path]
    if epochs is not None:
        files.append(epochs)
    yield _Sync(files=files)
    log.leader_epochs.rename()
    yield _Sync(folders=(log.directory,))
    log.set_high_watermark(log.high_watermark)
    log.choose_roll_jitter()
