"""Which segments may go, by age, size and log start. The log does the deleting."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class SegmentFacts(NamedTuple):
    """What the decision needs of every segment. `next_base`: where the following one begins, or the log end."""

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

    Nothing above the high watermark goes. Without `delete` (a compacted topic) only what lies below the log start
    does. The last segment counts too: the log rolls first when that one must go; an empty last one stays.
    `largest_timestamp` is asked for a segment by its place, and only if the answer matters: it may cost a read.
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
