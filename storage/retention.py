"""What goes from the front of a log: which segments, by age, size and log start, and in which steps.

First the log start is raised. When that is written down, the segments below it go. A crash may bring back some of their
names. What comes back lies below the log start then, and not in front of a hole.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from barnabas.storage.log import Log

logger = logging.getLogger("barnabas.storage")

_SEGMENTS_REMOVED_AT_ONCE = 50


class SegmentFacts(NamedTuple):
    """What the decision needs of each segment. `next_base` is where the next one begins, or the log end."""

    next_base: int
    size: int


def expired_segments(
    segments: Sequence[SegmentFacts],
    largest_timestamp: Callable[[int], int],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    high_watermark: int,
    delete: bool,
) -> int:
    """How many segments from the oldest on may be deleted.

    Nothing above the high watermark goes. Without `delete` (in a compacted topic), only what lies below the log start
    goes. The last segment may go, too: the log rolls first then. An empty last segment stays. `largest_timestamp` is
    called with the place of a segment, and only if the answer matters, because it may cost a read.
    """
    count = 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    for slot, segment in enumerate(segments):
        is_last = slot == len(segments) - 1
        if segment.next_base > high_watermark or (is_last and segment.size == 0):
            break
        below_log_start = segment.next_base <= log_start_offset and not is_last
        too_much = delete and retention_bytes >= 0 and excess - segment.size >= 0
        if not (below_log_start or too_much):
            timed = delete and retention_ms >= 0
            if not timed or now_ms - largest_timestamp(slot) <= retention_ms:
                break
        excess -= segment.size
        count += 1
    return count


def raise_log_start(log: Log, now_ms: int) -> bool:
    """Raise the log start above what retention gives up; whether whole segments lie below it now."""
    if not log.health.is_writable or log.cleaning:
        return False
    segments, config = log.segments, log.config
    bases = segments.base_offsets
    delete = "delete" in config.cleanup_policy
    if not delete and log.log_start_offset == bases[0]:
        return False
    ends = [*bases[1:], log.log_end_offset]
    try:
        count = expired_segments(
            [SegmentFacts(end, segment.size) for segment, end in zip(segments, ends)],
            lambda slot: segments[slot].largest_timestamp,
            now_ms=now_ms,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            delete=delete,
        )
        if not count:
            return False
        if count == len(segments) and not log.begin_anew():
            count -= 1  # when the others are gone, there may be room to go on without the last one
        if not count:
            return False
        log.delete_records_before(bases[count])
        return True
    except OSError as error:
        log.health.hinder(error)
        return False


def remove_segments_below_start(log: Log) -> int:
    """Remove segments that have nothing at or above the log start; how many went.

    To be called again until none did, because only so many go at a time.
    """
    count = min(log.segments.slot_of(log.log_start_offset), _SEGMENTS_REMOVED_AT_ONCE)
    if not count or not log.health.is_writable or log.cleaning:
        return 0
    try:
        log.remove_segments(log.segments[:count])
    except OSError as error:
        log.health.hinder(error)
        return 0
    logger.info("%s: %d segments went by retention, log start %d", log.name, count, log.log_start_offset)
    return count
