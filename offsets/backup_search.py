"""How batches are looked for in a log, as generators that yield what to ask and are sent the answer. No IO.

`around` finds the batches at known offsets, `search` those with known CRCs behind a time. Both read headers only, and
never more of the log than they need or are allowed.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any, TypeVar

from barnabas.offsets.backup import Batch, Mark
from barnabas.offsets.backup_places import HITS_MAX, Hit
from barnabas.protocol.named_tuple import NamedTuple

FEW_BYTES, MANY_BYTES = 16 * 1024, 1024 * 1024
MOST_BYTES = 90 * 2**20  # as much as the client takes in one answer, nearly; the limits of batches are far below
NEAR_OFFSETS = 1_000  # a next offset so near is worth more bytes in one answer
KEPT_BATCHES = 4_096


class Ask(NamedTuple):
    """The batches from this offset on, as Fetch gives them: the first has it or is behind it. Answer: list[Batch]."""

    offset: int
    bytes_max: int


class AskTime(NamedTuple):
    """The first offset whose record is not older. Answer: int, or None if all are older."""

    timestamp: int


class Around(NamedTuple):
    """The batch that has an offset, or the next one, and the one before."""

    batch: Batch | None
    before: Batch | None


class _Run:
    """Batches that follow each other, as far as they were read."""

    def __init__(self, end: int) -> None:
        self.begin = 0
        self.batches: list[Batch] = []
        self._end = end

    @property
    def next_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.begin

    def read(self, begin: int, offset: int, bytes_max: int) -> Generator[Ask, list[Batch], list[Batch]]:
        """The batches from `begin` on, as far as one has `offset` or is behind it, or the log ends."""
        if len(self.batches) > KEPT_BATCHES:
            del self.batches[:-KEPT_BATCHES]
            self.begin = self.batches[0].base_offset
        if not self.begin <= begin <= self.next_offset:
            self.begin, self.batches = begin, []
        while self.next_offset <= offset and self.next_offset < self._end:
            seen = yield Ask(self.next_offset, bytes_max)
            if not seen:  # the first batch is larger
                if bytes_max == MOST_BYTES:
                    break
                bytes_max = min(bytes_max * 8, MOST_BYTES)
            self.batches += seen
        first = bisect_right(self.batches, begin - 1, key=lambda batch: batch.last_offset)
        return self.batches[first:]


def around(offsets: Iterable[int], start: int, end: int) -> Generator[Ask, list[Batch], dict[int, Around]]:
    """What is at these offsets of a log from `start` to `end`. An offset outside is taken as the nearest end."""
    found: dict[int, Around] = {}
    run = _Run(end)
    ordered = sorted(set(offsets))
    for index, offset in enumerate(ordered):
        at = min(max(offset, start), end)
        is_dense = index + 1 < len(ordered) and ordered[index + 1] - offset < NEAR_OFFSETS
        bytes_max = MANY_BYTES if is_dense else FEW_BYTES
        begin, step = max(start, at - 1), 1
        while True:
            seen = yield from run.read(begin, at, bytes_max)
            cut = bisect_right(seen, at - 1, key=lambda batch: batch.last_offset)
            batch = seen[cut] if cut < len(seen) else None
            if cut or begin == start:
                found[offset] = Around(batch, seen[cut - 1] if cut else None)
                break
            # Compaction has left a gap there, or `batch` begins before `begin`.
            begin = max(start, min(begin, at if batch is None else batch.base_offset) - step)
            step *= 4
    return found


class Wanted(NamedTuple):
    """What to look for: these batches (any of them), behind the oldest of their times."""

    batch: Batch | None
    before: Batch | None


class Searched(NamedTuple):
    """The hits by CRC, and for each that was wanted up to which offset was searched (None: all that could be)."""

    hits: dict[int, list[Hit]]
    limits: dict[Wanted, int | None]


def search(
    wanted: Collection[Wanted], start: int, end: int, bytes_each: int
) -> Generator[Ask | AskTime, Any, Searched]:
    """Look for batches, at most `bytes_each` behind the time of each."""
    hits: dict[int, list[Hit]] = {batch.crc: [] for one in wanted for batch in one if batch is not None}

    def see(batches: list[Batch], last: Batch | None) -> Batch | None:
        for batch in batches:
            if batch.crc in hits and len(hits[batch.crc]) < HITS_MAX:
                hits[batch.crc].append(Hit(batch, last))
            last = batch
        return last

    limits = yield from scan(wanted, start, end, bytes_each, Ask, see, lambda one: _is_settled(one, hits))
    return Searched(hits, limits)


Sought = Batch | Mark | None
W = TypeVar("W", bound=Iterable[Sought])
L = TypeVar("L")


def _time_of(one: Iterable[Sought]) -> int:
    """The time from which on it can be in a log; negative: it is not known."""
    return min(each.timestamp for each in one if each is not None)


def scan(
    wanted: Iterable[W],
    start: int,
    end: int,
    bytes_each: int,
    ask: Callable[[int, int], Any],
    see: Callable[[list[Any], L | None], L | None],
    is_settled: Callable[[W], bool],
) -> Generator[Any, Any, dict[W, int | None]]:
    """Read the log from the time of each on, at most `bytes_each`, and a stretch of it once for all.

    `see` gets what was read, and what it has returned for the piece before (None: what is before was not read). The
    result says up to which offset each was looked for, or None: as far as it can be.
    """
    limits: dict[W, int | None] = {}
    offsets, totals = [start], [0]  # how many bytes were read up to an offset
    at = start
    last: L | None = None
    for one in sorted(set(wanted), key=_time_of):
        limits[one] = None
        if is_settled(one):
            continue
        begin = start
        if (timestamp := _time_of(one)) >= 0:
            first = yield AskTime(timestamp)
            if first is None:
                continue
            begin = max(start, first)
        if begin - 1 > at:
            at, last = begin - 1, None  # with what is before it
            offsets.append(at)
            totals.append(totals[-1])
        allowed = totals[bisect_right(offsets, begin) - 1] + bytes_each
        bytes_max = MANY_BYTES
        while at < end and not is_settled(one):
            if totals[-1] >= allowed or bytes_max > MOST_BYTES:
                limits[one] = at
                break
            seen = yield ask(at, bytes_max)
            if not seen:  # the first batch is larger
                bytes_max *= 8
                continue
            last = see(seen, last)
            headers = [each if isinstance(each, Batch) else each[0] for each in seen]
            at = headers[-1].last_offset + 1
            offsets.append(at)
            totals.append(totals[-1] + sum(header.size_bytes for header in headers))
    return limits


def _is_settled(one: Wanted, hits: dict[int, list[Hit]]) -> bool:
    """Whether it was found and cannot be anywhere else."""
    batch = one.batch or one.before
    return batch is not None and batch.has_sequence and any(batch.is_same(hit.batch) for hit in hits[batch.crc])


def hits_of(batch: Batch | None, searched: Searched) -> Sequence[Hit]:
    """The places of a batch."""
    return [] if batch is None else [hit for hit in searched.hits.get(batch.crc, ()) if batch.is_same(hit.batch)]
