"""What goes from the end of a log: everything behind an offset, or everything.

What was cut must not come back behind what is appended later. So each step is durable before the next one, and the
recovery point is lowered on disk before anything goes.
"""

import logging

from barnabas.runtime.turns import at_once
from barnabas.storage.log import Log

logger = logging.getLogger("barnabas.storage")


def truncate_to(log: Log, offset: int) -> None:
    """Drop everything from `offset` on. The whole batch goes that holds the offset."""
    segments, durability = log.segments, log.durability
    if not log.health.is_writable or offset >= log.log_end_offset:
        return
    if offset <= segments[0].base_offset:
        truncate_fully_and_start_at(log, offset)
        return
    logger.info("%s: truncating from %d to %d", log.name, log.log_end_offset, offset)
    _end_cleaning(log)
    try:
        keep = segments.slot_of(offset)
        if segments[keep].base_offset == offset and keep > 0:
            keep -= 1
        batch = segments[keep].find(offset)
        if batch is None or batch.base_offset > offset:  # compaction left a gap there: the log ends before the gap
            durability.lower_recovery_point(segments[keep].base_offset)
        else:
            durability.lower_recovery_point(batch.base_offset)
        for segment in reversed(segments[keep + 1 :]):  # newest first and each for good: never a gap
            segment.delete_files()
            log.env.disk.sync_directory(log.directory)
        segments.replace(segments[: keep + 1])
        segments.active.truncate(offset)
        _end_at(log, max(segments.active.next_offset(), segments.active.base_offset))
    except OSError as error:
        log.health.fail(error)


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """Drop everything and go on at `offset`."""
    if not log.health.is_writable:
        return
    logger.info("%s: dropping all records, starting at %d", log.name, offset)
    _end_cleaning(log)
    try:
        log.durability.lower_recovery_point(offset)
        for segment in reversed(log.segments):
            segment.delete_files()
            log.env.disk.sync_directory(log.directory)
        for snapshot in list(log.producers.snapshots):
            log.producers.remove_snapshot(snapshot)
        log.segments.replace([log.make_segment(offset)])
        log.log_start_offset = offset
        log.leader_epochs.clear()
        _end_at(log, offset)
    except OSError as error:
        log.health.fail(error)


def _end_cleaning(log: Log) -> None:
    """No compaction may go on with segments that are about to be cut."""
    if log.finish_swap is not None:
        log.finish_swap()
    log.cleaning = False


def _end_at(log: Log, log_end_offset: int) -> None:
    """The segments end there now: so do the offsets, the epochs and the producers."""
    log.segments.end_offset = log_end_offset
    log.durability.end_was_cut()
    log.log_start_offset = min(log.log_start_offset, log_end_offset)
    log.leader_epochs.truncate_from_end(log_end_offset)
    log.leader_epochs.flush(log_end_offset)
    at_once(log.producers.rebuild(log.segments, log.log_start_offset))  # this removes snapshots of what was cut
    log.segments.active.sync()
    log.env.disk.sync_directory(log.directory)
    log.high_watermark = max(min(log.high_watermark, log_end_offset), log.log_start_offset)
    log.choose_roll_jitter()
