"""When a log begins a new segment, and what is not written then if there is no room."""

from collections.abc import Callable
from typing import TypeVar

from barnabas.config.topic import TopicConfig
from barnabas.runtime.ports import may_pass
from barnabas.storage.segment import Segment

T = TypeVar("T")


def must_roll(
    segment: Segment, config: TopicConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int, jitter_ms: int
) -> bool:
    """Whether records of `size` bytes go into a new segment, because the active one is full or too old.

    The age is that of the first record as against these (`max_timestamp`), as in Kafka; without timestamps, that of
    the file. `jitter_ms`: how much earlier it ends, so that not all logs roll at once.
    """
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
    return age_ms > age_max_ms - min(jitter_ms, age_max_ms)


def if_room(write: Callable[[], T], is_needed: bool) -> T | None:
    """What `write` returns. None if there was no room, and the file is not needed."""
    try:
        return write()
    except OSError as error:
        if is_needed or not may_pass(error):
            raise
        return None
