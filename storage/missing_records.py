"""Whether a log lacks records that it had when its broker ran last: somebody has removed or damaged its files since.

Such a replica does not count as in sync where others have the records (`broker/before_registering.py`). What is read
for that is little: the first bytes of each segment, and the end of each one behind which there is another.
"""

import logging
from contextlib import suppress

from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.storage import checkpoints
from barnabas.storage.batch_headers import WINDOW_BYTES
from barnabas.storage.log import Log
from barnabas.storage.segment import Segment, file_name

logger = logging.getLogger("barnabas.storage")

_OFFSET_BYTES = 8  # a batch begins with its base offset


class _Hole(NamedTuple):
    """Offsets from `first` on, below `end`, that have no records or not theirs."""

    first: int
    end: int
    why: str
    renamed: Segment | None = None  # has what should be behind `end`, and another name than that


def note(log: Log, *, synced_to: int, committed_to: int, began_at: int | None, may_have_gaps: bool) -> None:
    """Note it in `log.missing_from`, and say it. `log` has just been opened.

    The checkpoints say that all records below `synced_to` were durable, and that all below `committed_to` were in the
    logs of all replicas that were in sync. `began_at`: where the log began at a clean stop, if it had records.
    `may_have_gaps`: offsets are missing in compacted logs, and that is no loss.
    """
    hole = _find_hole(log, began_at, may_have_gaps)
    if hole is not None:
        log.missing_from = hole.first
        # The next stop writes down where the log starts now, and what is below that is not served.
        start = f", and write {hole.first} for it in {checkpoints.LOG_START_OFFSETS}"
        last_words = (
            f"while the broker is stopped{start if hole.first < log.log_start_offset else ''}. Where other replicas "
            "were in sync, this one copies all from there on again"
        )
        if hole.renamed is None:
            logger.error(
                "%s: no records from offset %d to %d, because %s since the broker stopped: consumers pass over them. "
                "Put the right files back %s",
                *(log.name, hole.first, hole.end - 1, hole.why, last_words),
            )
        else:
            logger.error(
                "%s: %s begins with offset %d, so somebody has renamed it since the broker stopped, and not all of it "
                "may be served. Give it the name %s again %s",
                *(log.name, hole.renamed.path, hole.end, file_name(hole.end, "log"), last_words),
            )
    end = log.log_end_offset
    if end < max(synced_to, committed_to):
        log.missing_from = end if hole is None else hole.first
        logger.error(
            "%s: the log ends at offset %d, though all up to %d was %s: records were removed or damaged since. Where "
            "other replicas were in sync before, one of them leads",
            *(log.name, end, max(synced_to, committed_to), "synced" if end < synced_to else "committed"),
        )


def _find_hole(log: Log, began_at: int | None, may_have_gaps: bool) -> _Hole | None:
    """The first one. Gaps within a segment are not looked for."""
    segments = log.segments
    if began_at is not None and began_at < segments[0].base_offset and not may_have_gaps:
        if _begins(segments[0]) == began_at:
            return _Hole(began_at, began_at, "", segments[0])
        return _Hole(began_at, segments[0].base_offset, "the first segment was removed")
    for slot, segment in enumerate(segments):
        base, behind = segment.base_offset, log.log_end_offset
        is_last = slot == len(segments) - 1
        if not is_last:
            behind = segments[slot + 1].base_offset
        begins = _begins(segment)
        if begins is not None and (begins < base or (begins > base and not may_have_gaps)):
            return _Hole(base, max(behind, base + 1), f"{segment.path} has got another content, from {begins} on,")
        if is_last:
            break
        if not segment.size and not may_have_gaps:
            return _Hole(base, behind, f"{segment.path} was emptied")
        try:
            end = _end_of(segment)
        except CorruptBatchError as error:
            return _Hole(base, behind, f"there is damage ({error})")
        if end != behind and _begins(segments[slot + 1]) == end:
            return _Hole(min(end, behind), end, "", segments[slot + 1])
        if end > behind:
            return _Hole(base, behind, f"{segment.path} has got another content, which ends at {end},")
        if end < behind and not may_have_gaps:
            return _Hole(end, behind, "a segment was removed or cut")
    return None


def _begins(segment: Segment) -> int | None:
    """The offset of its first batch; None: it has none."""
    if segment.size < _OFFSET_BYTES:
        return None
    return int.from_bytes(segment.bytes_at(0, _OFFSET_BYTES), "big", signed=True)


def _end_of(segment: Segment) -> int:
    """As `Segment.next_offset`, without loading a large index for it."""
    last = segment.offset_index.read_last(segment.size) if segment.size > WINDOW_BYTES else None
    if last is not None:
        offset, position = last
        with suppress(CorruptBatchError):  # the index is damaged: it is made again
            found = list(segment.batches(position))
            if found and found[0].last_offset == offset:
                return found[-1].last_offset + 1
    return segment.next_offset()
