"""How single records are recognised where the batches of a copy are other ones, as MirrorMaker makes them. No IO.

`marks_at` reads the records at positions for a backup. `search_records` looks for such records in another log, and
`place_by_records` decides what was found. As in backup_search.py, generators yield what to ask and are sent the answer.
"""

from bisect import bisect_right
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from barnabas.offsets.backup import Batch, Mark, Position, mark_of
from barnabas.offsets.backup_places import HITS_MAX, How, Placement, There, hint, places, refused
from barnabas.offsets.backup_search import FEW_BYTES, MOST_BYTES, Around, Ask, AskTime, scan
from barnabas.protocol import record_batch
from barnabas.protocol.batch_records import Record
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.named_tuple import NamedTuple

CONTROL_BATCHES_MAX = 16  # that follow each other; then there is no mark


class AskBatches(NamedTuple):
    """The whole batches from this offset on, as bytes. Answer: list[tuple[Batch, bytes]]."""

    offset: int
    bytes_max: int


class Marks(NamedTuple):
    """The record at a position, and the one before it."""

    record: Mark | None
    before: Mark | None


NO_MARKS = Marks(None, None)


class MarkHit(NamedTuple):
    """A record that was looked for, and the one before it (None: it was not read)."""

    offset: int
    before: Mark | None


class SearchedRecords(NamedTuple):
    """The places of each mark, and for each that was wanted up to which offset was searched (None: all)."""

    hits: dict[Mark, list[MarkHit]]
    limits: dict[Marks, int | None]


def _records(content: bytes) -> list[Record]:
    """The records of a batch; none, if they cannot be read."""
    try:
        return list(record_batch.records(content))
    except CorruptBatchError:
        return []


def marks_at(around: Mapping[int, Around], start: int, end: int) -> Generator[Ask | AskBatches, Any, dict[int, Marks]]:
    """The marks at these offsets of a log from `start` to `end`, of which the batches are known.

    Behind each transaction is a control batch, so the record may be in a batch further on, or further back.
    """
    found: dict[int, Marks] = {}
    known: dict[int, list[Record]] = {}  # of the last batches, by their offsets

    def of_records(batch: Batch | None, *, forward: bool) -> Generator[Ask, Any, Batch | None]:
        """The batch, or the nearest one with records for consumers."""
        for _ in range(CONTROL_BATCHES_MAX):
            if batch is None or not batch.is_control:
                return batch
            at = batch.last_offset + 1 if forward else batch.base_offset - 1
            seen: list[Batch] = []
            bytes_max = FEW_BYTES
            while start <= at < end and not seen and bytes_max <= MOST_BYTES:
                seen = yield Ask(at, bytes_max)
                bytes_max *= 8
            is_next = bool(seen) and (forward or seen[0].base_offset < batch.base_offset)
            batch = seen[0] if is_next else None
        return None

    def records_of(batch: Batch | None) -> Generator[AskBatches, Any, list[Record]]:
        if batch is None or batch.size_bytes > MOST_BYTES:
            return []
        if batch.base_offset not in known:
            seen = yield AskBatches(batch.base_offset, batch.size_bytes)
            while len(known) > 1:
                del known[next(iter(known))]
            known[batch.base_offset] = _records(seen[0][1]) if seen and seen[0][0] == batch else []
        return known[batch.base_offset]

    for offset in sorted(around):
        place = around[offset]
        before = None
        earlier = yield from of_records(place.before, forward=False)
        later = yield from of_records(place.batch, forward=True)
        records = yield from records_of(later)
        first = bisect_right(records, offset - 1, key=_offset)
        record = records[first] if first < len(records) else None
        if first:
            before = records[first - 1]
        elif records := (yield from records_of(earlier)):
            before = records[-1]
        found[offset] = Marks(_mark(record), _mark(before))
    return found


def _mark(record: Record | None) -> Mark | None:
    return None if record is None else mark_of(record)


def _offset(record: Record) -> int:
    return record.offset


def search_records(
    wanted: Collection[Marks], start: int, end: int, bytes_each: int
) -> Generator[AskBatches | AskTime, Any, SearchedRecords]:
    """Look for records, at most `bytes_each` behind the time of each."""
    hits: dict[Mark, list[MarkHit]] = {mark: [] for one in wanted for mark in one if mark is not None}
    times = {mark.timestamp for mark in hits}

    def see(batches: list[tuple[Batch, bytes]], last: Record | None) -> Record | None:
        for batch, content in batches:
            for record in () if batch.is_control else _records(content):
                if record.timestamp in times:
                    mark = mark_of(record)
                    if mark in hits and len(hits[mark]) < HITS_MAX:
                        hits[mark].append(MarkHit(record.offset, _mark(last)))
                last = record
        return last

    limits = yield from scan(wanted, start, end, bytes_each, AskBatches, see, lambda _one: False)
    return SearchedRecords(hits, limits)


def place_by_records(position: Position, there: There, searched: SearchedRecords, limit: str) -> Placement:
    """The place by the records around it. `limit`: why not all of the log behind their time was searched, or ``."""
    record, before = position.record, position.record_before
    hits = searched.hits.get(record, ()) if record is not None else ()
    if hits:
        pairs = [hit for hit in hits if before is not None and hit.before == before]
        if len(pairs) == 1 and len(hits) < HITS_MAX:
            return _at(pairs[0].offset, there)
        if len(hits) > 1 or pairs:
            return _several(hits, "what is before it does not decide")
        (hit,) = hits
        if limit:
            return refused(f"a record like its own is at {hit.offset}, but there may be more: {limit}")
        if before is not None and hit.before is not None:
            return refused(f"a record like its own is at {hit.offset}, behind another one than it was")
        return _at(hit.offset, there)
    befores = searched.hits.get(before, ()) if before is not None else ()
    if len(befores) > 1:
        return _several(befores, "its own record is not there")
    if befores and limit:
        return refused(f"a record like the one before it is at {befores[0].offset}, but there may be more: {limit}")
    if befores:
        note = "" if record is None else "behind the record before it: its own is not there"
        return _at(befores[0].offset + 1, there, note)
    return refused(f"neither its batch nor its record is there{': ' + limit if limit else ''}{hint(position, there)}")


def _at(offset: int, there: There, note: str = "") -> Placement:
    return Placement(How.BY_RECORDS, max(offset, there.log_start), note)


def _several(hits: Sequence[MarkHit], why: str) -> Placement:
    return refused(f"the same record is at {places([hit.offset for hit in hits])}, and {why}")
