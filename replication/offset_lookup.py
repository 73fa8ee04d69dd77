"""ListOffsets and the ends of leader epochs: the offset of a time or an epoch (KIP-79, KIP-101)."""

from collections.abc import Sequence

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.replication.fetch_values import CONSUMER, READ_COMMITTED
from barnabas.replication.partition import Partition
from barnabas.runtime.ports import Disk
from barnabas.storage.log import Log

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

# Special timestamp -> the version that introduced it. Without tiered storage no segment is ever uploaded.
SPECIAL_VERSIONS = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

DEBUGGING_CONSUMER = -2  # a replica id: may ask any replica


class ListOffsetResult(NamedTuple):
    """Offset and timestamp, -1 if nothing matches. `leader_epoch` is that of the offset; -1: unknown."""

    error: ErrorCode
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


class EpochEndOffset(NamedTuple):
    """The largest epoch not above the requested one, and its end offset; (-1, -1): unknown."""

    error: ErrorCode
    leader_epoch: int = -1
    end_offset: int = -1


def has_timestamp(version: int, timestamp: int) -> bool:
    """Whether requests of this version may ask for a timestamp, which may be a special one."""
    return timestamp >= 0 or version >= SPECIAL_VERSIONS.get(timestamp, 1 << 15)


def list_offset(
    partition: Partition, timestamp: int, *, replica_id: int, isolation_level: int, version: int
) -> ListOffsetResult:
    """The offset for `timestamp`, among the records that this fetcher may see."""
    log = partition.log
    is_client = replica_id == CONSUMER
    if not is_client:
        bound = log.log_end_offset
    elif isolation_level == READ_COMMITTED:
        bound = log.last_stable_offset
    else:
        bound = log.high_watermark
    # A new leader may not know yet how far its predecessor had committed (KIP-207).
    is_lagging = is_client and log.high_watermark < partition.leader_epoch_start_offset
    not_available = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    if timestamp == LATEST:
        if is_lagging:
            return ListOffsetResult(not_available)
        return ListOffsetResult(ErrorCode.NONE, bound, -1, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
        return ListOffsetResult(ErrorCode.NONE, log.log_start_offset, -1, epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return ListOffsetResult(ErrorCode.NONE)
    if timestamp == MAX_TIMESTAMP:
        found = log.segments.max_timestamp_offset()
    else:
        found = log.offset_for_timestamp(timestamp, bound)
    if found is None or found[0] >= bound:
        return ListOffsetResult(not_available if is_lagging else ErrorCode.NONE)
    offset, record_timestamp, epoch = found
    return ListOffsetResult(ErrorCode.NONE, offset, record_timestamp, epoch)


def segment_times(log: Log, disk: Disk, now_ms: int) -> list[tuple[int, int]]:
    """(offset, time) pairs for ListOffsets v0: the base of each segment, and the end of a log that has records."""
    segments = [
        (max(segment.base_offset, log.log_start_offset), disk.modified_ms(segment.path)) for segment in log.segments
    ]
    if log.segments[-1].size:
        segments.append((log.log_end_offset, now_ms))
    return segments


def offsets_before(
    segments: Sequence[tuple[int, int]], timestamp: int, max_offsets: int, bound: int, is_client: bool
) -> list[int]:
    """Offsets of ListOffsets v0, newest first, from segments begun by `timestamp`. Clients see none above `bound`."""
    if timestamp == LATEST:
        first = len(segments) - 1
    elif timestamp == EARLIEST:
        first = 0
    else:
        first = -1
        for position, (_, modified_ms) in enumerate(segments):
            if modified_ms <= timestamp:
                first = position
    offsets = sorted({offset for offset, _ in segments[: first + 1]}, reverse=True)[: max(max_offsets, 0)]
    if is_client and any(offset > bound for offset in offsets):
        return [bound, *(offset for offset in offsets if offset < bound)]
    return offsets
