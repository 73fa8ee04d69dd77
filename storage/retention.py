"""What goes from the front of a log: which segments, by age, size and log start, and in which steps.

A topic may make retention wait for groups (`barnabas.retention.wait.for.groups`). Then segments stay in which such a
group has not read everything, but not for ever, and not when the disk has no room left.

First the log start is raised. When that is written down, the segments below it go. A crash may bring back some of their
names. What comes back lies below the log start then, and not in front of a hole.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.counted import counted
from barnabas.runtime.turns import Pieces
from barnabas.storage.log import Log

logger = logging.getLogger("barnabas.storage")

_SEGMENTS_REMOVED_AT_ONCE = 50
_NAMES_TOLD_MAX = 5  # of groups, in a line of the log


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


class Hold(NamedTuple):
    """Records from `unread_from` on are held back from retention.

    `groups` have not read them. None: another broker leads, and this one removes what that one has removed.
    """

    unread_from: int
    groups: tuple[str, ...] | None

    @property
    def names(self) -> str:
        """The groups in words."""
        groups = self.groups or ()
        more = len(groups) - _NAMES_TOLD_MAX
        return ", ".join(groups[:_NAMES_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")


def no_hold(log: Log) -> Pieces[Hold | None]:
    """Nothing is held back."""
    return None
    yield


def released_segments(
    due: Sequence[tuple[int, int]],
    unread_from: int,
    held_since: Mapping[int, int],
    *,
    now_ms: int,
    wait_max_ms: int | None,
) -> int:
    """How many of the segments that retention would take may go, although a group has not read from an offset on.

    `due` are the offsets where these segments begin and end, the oldest first. `held_since`: when a segment, by its
    first offset, was held for the first time. None as the longest wait: for ever.
    """
    count = 0
    for base_offset, next_base in due:
        waited_ms = now_ms - held_since.get(base_offset, now_ms)
        if next_base > unread_from and (wait_max_ms is None or waited_ms < wait_max_ms):
            break
        count += 1
    return count


class Waits:
    """What retention holds back for groups in the logs of this broker, and since when."""

    def __init__(self, hold_of: Callable[[Log], Pieces[Hold | None]], has_room: Callable[[Log], bool]) -> None:
        self._hold_of = hold_of
        self._has_room = has_room  # whether the disk of a log can be written
        self._held_since: dict[Log, dict[int, int]] = {}  # log -> first offset of a held segment -> when that began

    def __bool__(self) -> bool:
        return bool(self._held_since)

    def held_until_ms(self, log: Log, offset: int) -> int | None:
        """Until when the segment with this offset stays at most; None: retention does not wait for it."""
        held = self._held_since.get(log)
        since_ms = held.get(log.segments[log.segments.slot_of(offset)].base_offset) if held else None
        return None if since_ms is None else since_ms + log.config.barnabas_retention_wait_max_ms

    def decide(self, log: Log, due: Sequence[tuple[int, int]], now_ms: int) -> Pieces[int]:
        """How many of the segments that retention would take go now; the log says why others stay, or do not."""
        hold = (yield from self._hold_of(log)) if due else None
        known = self._held_since.pop(log, {})
        if hold is None:
            return len(due)
        leads = hold.groups is not None
        wait_max_ms = log.config.barnabas_retention_wait_max_ms if leads else None
        count = released_segments(due, hold.unread_from, known, now_ms=now_ms, wait_max_ms=wait_max_ms)
        names = hold.names
        if count < len(due) and not self._has_room(log):
            if leads:
                text = "%s: the disk is full, so retention does not wait for %s, and deletes %s unread at most"
                unread = due[-1][1] - max(hold.unread_from, due[0][0])
                logger.warning(text, log.name, names, counted(unread, "record"))
            return len(due)
        if count and leads and due[count - 1][1] > hold.unread_from:
            text = "%s: retention has waited %d s for %s and goes on: it deletes %s unread at most"
            unread = due[count - 1][1] - max(hold.unread_from, due[0][0])
            logger.warning(text, log.name, (wait_max_ms or 0) // 1000, names, counted(unread, "record"))
        if count < len(due):
            self._held_since[log] = {base: known.get(base, now_ms) for base, _ in due[count:]}
            if leads and not known:
                text = "%s: retention waits for %s, which has not read from offset %d on: %s, at most %d s"
                stay = counted(len(due) - count, "segment stays", "segments stay")
                logger.warning(text, log.name, names, hold.unread_from, stay, (wait_max_ms or 0) // 1000)
        return count

    def forget(self, log: Log) -> None:
        self._held_since.pop(log, None)


def raise_log_start(log: Log, now_ms: int, waits: Waits | None = None) -> Pieces[bool]:
    """Raise the log start above what retention gives up; whether whole segments lie below it now.

    In pieces, because there may be ten thousand groups to look at.
    """
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
        if waits is not None and config.barnabas_retention_wait_for_groups:
            below = sum(end <= log.log_start_offset for end in ends[:count])  # is not retained any more
            due = list(zip(bases, ends))[below:count]
            count = below + (yield from waits.decide(log, due, now_ms))
            is_same = [base for base, _ in due] == list(bases[below : below + len(due)])
            if log.cleaning or not log.health.is_writable or not is_same:
                return False  # it has changed meanwhile; the next time
        if not count:
            return False
        if count == len(segments) and not log.begin_anew():
            count -= 1  # when the others are gone, there may be room to go on without the last one
        if not count:
            return False
        log.delete_records_before(bases[count])
        return True
    except OSError as error:
        log.health.block_writes(error)
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
        log.health.block_writes(error)
        return 0
    logger.info(
        "%s: retention deleted %s, log start offset %d", log.name, counted(count, "segment"), log.log_start_offset
    )
    return count


class Forecast(NamedTuple):
    """When a record may go: not before this time, by retention.ms; when so many more bytes are written, by its bytes.

    None: not by that. Where a group is waited for, it may stay longer.
    """

    after_ms: int | None
    after_bytes: int | None


def forecast(log: Log, offset: int) -> Forecast | None:
    """When retention may take the record at an offset. It goes with its segment. None: never. OSError."""
    config, segments = log.config, log.segments
    if "delete" not in config.cleanup_policy:
        return None
    slot = segments.slot_of(offset)
    after_ms = after_bytes = None
    if config.retention_ms >= 0:
        after_ms = segments[slot].largest_timestamp + config.retention_ms
    if config.retention_bytes >= 0:
        behind = sum(segment.size for segment in segments[slot + 1 :])
        after_bytes = max(config.retention_bytes - behind, 0)
    return None if after_ms is None and after_bytes is None else Forecast(after_ms, after_bytes)


def goes_below(log: Log, until_ms: int) -> tuple[int, int]:
    """Below which offset retention.ms will have taken all records at that time, and when it begins; -1, -1: none.

    OSError.
    """
    config, segments = log.config, log.segments
    end = begin_ms = -1
    if "delete" not in config.cleanup_policy or config.retention_ms < 0:
        return end, begin_ms
    for slot, segment in enumerate(segments):
        if not segment.size:
            break
        goes_ms = segment.largest_timestamp + config.retention_ms
        if goes_ms >= until_ms:
            break
        if begin_ms < 0:
            begin_ms = goes_ms
        end = segments[slot + 1].base_offset if slot + 1 < len(segments) else segments.end_offset
    return end, begin_ms
