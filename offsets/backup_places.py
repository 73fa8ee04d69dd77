"""Where a position of a backup is in another log, or why it cannot be said. Pure decisions; nothing is guessed.

First the place of the same offset is looked at (`prove`). Logs that have the same offsets are the same topic, a topic
that was restored from its files, or an exact copy. If that proves nothing, the batches are looked for by time and CRC
(backup_search.py), and `place` decides with what was found.

A batch with a producer's sequence number is in a log once. Any other batch may be there several times; then the batch
before it decides, or nothing.
"""

from collections.abc import Sequence
from enum import StrEnum

from barnabas.offsets.backup import Batch, Position
from barnabas.protocol.batch_layout import DELETE_HORIZON
from barnabas.protocol.named_tuple import NamedTuple

HITS_MAX = 1_000
"""How many places of one batch or record are remembered. If there are so many, none is the right one for sure."""


class How(StrEnum):
    """How a position was placed."""

    PROVED = "proved"  # its batch is at the same offset
    FOUND = "found"  # its batch is at another offset
    BY_RECORDS = "found by records"  # other batches have its record (backup_records.py)
    KEPT = "kept"  # this is the very same log, in which offsets do not move
    REFUSED = "not placed"


class Placement(NamedTuple):
    """The offset to commit, or None, and why."""

    how: How
    offset: int | None
    note: str = ""


class There(NamedTuple):
    """What is at the same offset of a log: the batch that has it (or the next one), and the one before that."""

    is_same_log: bool  # the same cluster and the same topic id
    log_start: int
    log_end: int
    batch: Batch | None
    before: Batch | None


class Hit(NamedTuple):
    """A batch with a CRC that was looked for, and the one before it if that was seen."""

    batch: Batch
    before: Batch | None


class Found(NamedTuple):
    """What a search has found."""

    batches: Sequence[Hit] = ()  # like position.batch
    befores: Sequence[Hit] = ()  # like position.before
    limit: str = ""  # why not all of the log behind the time was searched


def refused(note: str) -> Placement:
    """No offset, and why."""
    return Placement(How.REFUSED, None, note)


def refuse_early(position: Position) -> Placement | None:
    """What no log can mend."""
    if position.log_start is None or position.log_end is None:
        return refused("the backup does not describe its place: the topic was gone, or its log could not be read")
    if position.offset > position.log_end:
        return refused(f"it was past the end of its log ({position.log_end}) already when it was exported")
    if position.log_start == position.log_end:
        return None
    if position.batch is None and (position.offset < position.log_end or position.before is None):
        return refused("the backup does not describe its place: the batches there had an old format")
    return None


def prove(position: Position, there: There) -> Placement | None:
    """The place if it can be said without a search. None: search."""
    if early := refuse_early(position):
        return early
    wanted = position.batch or position.before
    if wanted is None:
        return _of_empty_log(position, there)
    seen = there.batch if position.batch else there.before
    if seen is not None and seen.base_offset == wanted.base_offset and wanted.is_same(seen):
        if there.is_same_log or wanted.has_sequence or _is_distinct(position, there):
            return _at_same_offset(How.PROVED, position, there)
        return None
    if there.is_same_log:
        if seen is not None and _is_rewritten(wanted, seen):
            return _at_same_offset(How.PROVED, position, there, "compaction has taken records of its batch")
        if there.log_start > wanted.last_offset:
            return _at_same_offset(How.KEPT, position, there)
        if _is_gap(wanted, there):
            return _at_same_offset(How.KEPT, position, there, "compaction has taken its batch")
    return None


def _is_distinct(position: Position, there: There) -> bool:
    """Whether two neighbours are the same in both logs, and differ from each other."""
    batch, before = position.batch, position.before
    if batch is None or before is None or there.before is None:
        return False
    return before.is_same(there.before) and before.base_offset == there.before.base_offset and not before.is_same(batch)


def _is_rewritten(wanted: Batch, seen: Batch) -> bool:
    """Whether compaction has made `seen` of `wanted`: it takes records, and keeps offsets, epochs and the producer.

    It says nothing of another cluster's log: there, producers' numbers and sequences begin anew. And a copy of this
    cluster that went its own way has the same topic ids, so a batch that lacks no record is another one.
    """
    lacks_records = seen.record_count < wanted.record_count
    has_horizon_now = seen.attributes == wanted.attributes | DELETE_HORIZON != wanted.attributes
    return (
        (seen.base_offset, seen.last_offset, seen.leader_epoch, *seen[8:])
        == (wanted.base_offset, wanted.last_offset, wanted.leader_epoch, *wanted[8:])
        and (lacks_records or (has_horizon_now and seen.record_count == wanted.record_count))
        and seen.timestamp <= wanted.timestamp
    )


def _is_gap(wanted: Batch, there: There) -> bool:
    """Whether no batch has any offset of `wanted`. In the middle of a log, only compaction makes a gap."""
    if there.log_end <= wanted.last_offset:
        return False
    is_before_free = there.before is None or there.before.last_offset < wanted.base_offset
    is_behind_free = there.batch is None or there.batch.base_offset > wanted.last_offset
    return is_before_free and is_behind_free


def _at_same_offset(how: How, position: Position, there: There, note: str = "") -> Placement:
    if position.offset < there.log_start:
        return Placement(how, there.log_start, "the records up to the start of the log are deleted")
    return Placement(how, min(position.offset, there.log_end), note)


def _of_empty_log(position: Position, there: There) -> Placement:
    if there.is_same_log and position.offset <= there.log_end:
        return _at_same_offset(How.KEPT, position, there, "its log was empty")
    if position.offset == 0 == position.log_end:
        return Placement(How.FOUND, there.log_start, "nothing had been written yet: the start of the log")
    return refused("its log was empty, so there is no batch to recognise it by")


def place(position: Position, there: There, found: Found) -> Placement:
    """The place after a search."""
    batch, before = position.batch, position.before
    if batch is not None and found.batches:
        hits = found.batches
        if not batch.has_sequence and batch.is_same(before):
            return refused("the batch before it is the same, so no log says which one of them it is")
        if 1 < len(hits) < HITS_MAX:
            hits = [hit for hit in hits if hit.before is not None and before is not None and before.is_same(hit.before)]
        if len(hits) != 1:
            return _several(found.batches)
        (hit,) = hits
        is_behind_it = before is not None and before.is_same(hit.before)
        if batch.is_control and not is_behind_it:
            return refused(f"only an end of a transaction like the one there is at {hit.batch.base_offset}")
        is_sure = batch.has_sequence or is_behind_it or not found.limit
        if not is_sure:
            return refused(f"a batch like its own is at {hit.batch.base_offset}, but there may be more: {found.limit}")
        shift = hit.batch.base_offset - batch.base_offset
        return _found(max(position.offset, batch.base_offset) + shift, position, there)
    is_at_its_begin = batch is None or position.offset <= batch.base_offset
    if before is not None and is_at_its_begin and found.befores:
        if len(found.befores) > 1:
            return _several(found.befores)
        if before.is_control:
            at = found.befores[0].batch.base_offset
            return refused(f"only an end of a transaction like the one before it is at {at}")
        if not before.has_sequence and found.limit:
            at = found.befores[0].batch.base_offset
            return refused(f"a batch like the one before it is at {at}, but there may be more: {found.limit}")
        note = "" if batch is None else "behind the batch before it: its own is not there"
        return _found(found.befores[0].batch.last_offset + 1, position, there, note)
    return refused(f"its batch is not there{': ' + found.limit if found.limit else ''}{hint(position, there)}")


def _found(offset: int, position: Position, there: There, note: str = "") -> Placement:
    if offset < there.log_start:
        return Placement(How.FOUND, there.log_start, "the records up to the start of the log are deleted")
    return Placement(How.PROVED if offset == position.offset else How.FOUND, offset, note)


def _several(hits: Sequence[Hit]) -> Placement:
    offsets = places([hit.batch.base_offset for hit in hits])
    return refused(f"the same batch is at {offsets}, and what is before it does not decide")


def places(offsets: Sequence[int]) -> str:
    """Offsets in words, the first four of them."""
    more = f" and {len(offsets) - 4} more places" if len(offsets) > 4 else ""
    return f"{', '.join(map(str, offsets[:4]))}{more}"


def hint(position: Position, there: There) -> str:
    """What may be the reason that something is not there."""
    if there.log_start == there.log_end:
        return " (the log is empty)"
    if there.is_same_log and there.log_end < position.offset:
        return f" (the log ends at {there.log_end}: it has lost records)"
    if there.is_same_log:
        return " (other records have these offsets now: the log had lost some)"
    return ""
