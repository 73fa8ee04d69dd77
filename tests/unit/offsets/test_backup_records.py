"""Records as evidence: what marks are, how they are looked for, and what is decided; nothing is guessed."""

import random
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from barnabas.offsets.backup import Batch, Mark, Position, batches_in, mark_of
from barnabas.offsets.backup_places import HITS_MAX, How, There
from barnabas.offsets.backup_records import (
    AskBatches,
    MarkHit,
    Marks,
    SearchedRecords,
    marks_at,
    place_by_records,
    search_records,
)
from barnabas.offsets.backup_search import Around, AskTime
from barnabas.protocol import record_batch
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import Record
from barnabas.protocol.transaction_marker import CONTROL_COMMIT, build_marker

BY_RECORDS, REFUSED = How.BY_RECORDS, How.REFUSED


class FakeLog:
    """A log of real batches that answers as a leader does."""

    def __init__(self, batches: Sequence[bytes]) -> None:
        self.batches: list[tuple[Batch, bytes]] = []
        for content in batches:
            (header,) = batches_in(content) or ()
            self.batches.append((header, content))
        self.end = self.batches[-1][0].last_offset + 1
        self.sent_bytes = 0

    def answer(self, ask: Any) -> Any:
        if isinstance(ask, AskTime):
            records = [record for _, content in self.batches for record in record_batch.records(content)]
            return next((record.offset for record in records if record.timestamp >= ask.timestamp), None)
        assert 0 <= ask.offset < self.end
        sent: list[tuple[Batch, bytes]] = []
        for header, content in self.batches:
            if header.last_offset >= ask.offset:
                if sum(len(one) for _, one in sent) + len(content) > ask.bytes_max:
                    break
                sent.append((header, content))
        self.sent_bytes += sum(len(one) for _, one in sent)
        return sent if isinstance(ask, AskBatches) else [header for header, _ in sent]

    def run(self, seeking: Generator[Any, Any, Any]) -> Any:
        answer: Any = None
        try:
            while True:
                answer = self.answer(seeking.send(answer))
        except StopIteration as end:
            return end.value

    def around(self, offset: int) -> Around:
        headers = [header for header, _ in self.batches]
        batch = next((one for one in headers if one.last_offset >= offset), None)
        before = [one for one in headers if one.last_offset < offset]
        return Around(batch, before[-1] if before else None)


def record(number: int, value: bytes | None = None) -> Record:
    return Record(timestamp=1000 + number, key=b"k", value=b"%d" % number if value is None else value)


def log_of(
    records: Sequence[Record], sizes: Sequence[int], *, codec: Compression = Compression.NONE, begin: int = 0
) -> FakeLog:
    batches = []
    at = 0
    for size in sizes:
        batches.append(bytes(record_batch.build(records[at : at + size], base_offset=begin + at, compression=codec)))
        at += size
    assert at == len(records)
    return FakeLog(batches)


def test_a_mark_tells_records_apart() -> None:
    one = Record(timestamp=5, key=b"a", value=b"b", headers=[("h", b"x")])
    assert mark_of(one) == mark_of(Record(offset=99, timestamp=5, key=b"a", value=b"b", headers=[("h", b"x")]))
    others = [
        Record(timestamp=6, key=b"a", value=b"b", headers=[("h", b"x")]),
        Record(timestamp=5, key=b"ab", value=b"", headers=[("h", b"x")]),
        Record(timestamp=5, key=b"a", value=None, headers=[("h", b"x")]),
        Record(timestamp=5, key=None, value=b"b", headers=[("h", b"x")]),
        Record(timestamp=5, key=b"a", value=b"b"),
        Record(timestamp=5, key=b"a", value=b"b", headers=[("h", None)]),
        Record(timestamp=5, key=b"a", value=b"b", headers=[("h", b"")]),
        Record(timestamp=5, key=b"a", value=b"b", headers=[("h", b"x"), ("h", b"x")]),
        Record(timestamp=5, key=b"a", value=b"b", headers=[("\udcff", b"x")]),
    ]
    assert len({mark_of(each) for each in [one, *others]}) == 1 + len(others)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_the_marks_at_every_offset(codec: Compression) -> None:
    records = [record(number) for number in range(30)]
    log = log_of(records, [5, 1, 10, 14], codec=codec)
    found = log.run(marks_at({offset: log.around(offset) for offset in range(31)}, 0, log.end))
    marks = [mark_of(one) for one in records]
    assert found == {
        offset: Marks(marks[offset] if offset < 30 else None, marks[offset - 1] if offset else None)
        for offset in range(31)
    }


def marker(offset: int) -> bytes:
    return bytes(
        build_marker(
            CONTROL_COMMIT,
            base_offset=offset,
            partition_leader_epoch=0,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=5,
        )
    )


def test_control_records_do_not_count() -> None:
    """Consumers stand at the marker or behind it; what counts are the records around it."""
    zero, one, two = (mark_of(record(number)) for number in range(3))
    plain = bytes(record_batch.build([record(0), record(1)]))
    last = bytes(record_batch.build([record(2)], base_offset=5))
    log = FakeLog([plain, marker(2), marker(3), marker(4), last, marker(6)])
    found = log.run(marks_at({offset: log.around(offset) for offset in range(8)}, 0, log.end))
    assert found == {
        0: Marks(zero, None),
        1: Marks(one, zero),
        **dict.fromkeys(range(2, 6), Marks(two, one)),
        **dict.fromkeys(range(6, 8), Marks(None, two)),
    }
    only = FakeLog([marker(0), marker(1)])
    assert only.run(marks_at({1: only.around(1)}, 0, 2)) == {1: Marks(None, None)}
    many = FakeLog([plain, *map(marker, range(2, 30))])
    assert many.run(marks_at({30: many.around(30)}, 0, 30)) == {30: Marks(None, None)}


def test_compacted_records_have_no_marks() -> None:
    plain = bytes(record_batch.build([record(0), record(1)]))
    kept = [each for each in record_batch.records(plain) if each.offset == 0]
    compacted = FakeLog([bytes(record_batch.rebuild(record_batch.read_header(plain), kept))])
    assert compacted.run(marks_at({1: compacted.around(1)}, 0, 2)) == {1: Marks(None, mark_of(record(0)))}


@pytest.mark.parametrize("seed", range(20))
def test_every_position_is_found_in_other_batches(seed: int) -> None:
    chance = random.Random(seed)
    records = [
        Record(timestamp=1000 + number - chance.choice([0, 0, 5]), value=b"%d" % chance.randrange(5))
        for number in range(200)
    ]
    source = log_of(records, [10] * 20)
    sizes = []
    while sum(sizes) < 200:
        sizes.append(min(chance.randrange(1, 40), 200 - sum(sizes)))
    target = log_of(records, sizes, codec=chance.choice([Compression.NONE, Compression.GZIP]), begin=1000)
    marks = source.run(marks_at({offset: source.around(offset) for offset in range(201)}, 0, 200))
    searched = target.run(search_records(marks.values(), 1000, target.end, 2**20))
    wrong = 0
    for offset, one in marks.items():
        position = Position("g", "t", None, 0, offset, 0, "", 0, 200, None, None, one.record, one.before)
        placed = place_by_records(position, There(False, 1000, 1200, None, None), searched, "")
        wrong += placed.how is REFUSED  # records that are alike, at the same time
        assert placed.offset in (None, 1000 + offset)
    assert wrong < 40


def test_a_search_has_its_limit() -> None:
    records = [record(number, bytes(100_000)) for number in range(100)]
    log = log_of(records, [1] * 100)
    late = Marks(Mark(1050, 7), None)
    found = log.run(search_records([late], 0, log.end, 2**20))
    assert found.hits == {Mark(1050, 7): []}
    assert 60 <= found.limits[late] <= 75
    assert log.sent_bytes < 3 * 2**20
    newer = Marks(Mark(5000, 7), None)
    assert log.run(search_records([newer], 0, log.end, 2**20)).limits == {newer: None}


def test_the_record_before_is_known_where_the_search_begins() -> None:
    records = [record(number) for number in range(100)]
    log = log_of(records, [1] * 100)
    mark = mark_of(records[50])
    found = log.run(search_records([Marks(mark, None)], 0, log.end, 2**20))
    assert found.hits[mark] == [MarkHit(50, mark_of(records[49]))]


ONE, TWO, THREE = Mark(1, 1), Mark(2, 2), Mark(3, 3)
LIMIT = "64 MB were searched"
Hits = dict[Mark, list[MarkHit]]

PLACES: dict[str, tuple[Marks, Hits, str, tuple[How, int | None]]] = {
    "both are there": (Marks(TWO, ONE), {TWO: [MarkHit(50, ONE)], ONE: [MarkHit(49, None)]}, "", (BY_RECORDS, 50)),
    "both, and the search was limited": (Marks(TWO, ONE), {TWO: [MarkHit(50, ONE)]}, LIMIT, (BY_RECORDS, 50)),
    "twice, once with its neighbour": (
        Marks(TWO, ONE),
        {TWO: [MarkHit(50, THREE), MarkHit(90, ONE)]},
        "",
        (BY_RECORDS, 90),
    ),
    "twice with its neighbour": (Marks(TWO, ONE), {TWO: [MarkHit(50, ONE), MarkHit(90, ONE)]}, "", (REFUSED, None)),
    "twice with others": (Marks(TWO, ONE), {TWO: [MarkHit(50, THREE), MarkHit(90, None)]}, "", (REFUSED, None)),
    "behind another record": (Marks(TWO, ONE), {TWO: [MarkHit(50, THREE)]}, "", (REFUSED, None)),
    "the first of the log": (Marks(TWO, ONE), {TWO: [MarkHit(50, None)]}, "", (BY_RECORDS, 50)),
    "the first that was read, limited": (Marks(TWO, ONE), {TWO: [MarkHit(50, None)]}, LIMIT, (REFUSED, None)),
    "it was the first, and is": (Marks(TWO, None), {TWO: [MarkHit(50, THREE)]}, "", (BY_RECORDS, 50)),
    "it was the first, and is there twice": (
        Marks(TWO, None),
        {TWO: [MarkHit(50, THREE), MarkHit(60, None)]},
        "",
        (REFUSED, None),
    ),
    "the end": (Marks(None, ONE), {ONE: [MarkHit(49, None)]}, "", (BY_RECORDS, 50)),
    "the end, twice": (Marks(None, ONE), {ONE: [MarkHit(49, None), MarkHit(90, None)]}, "", (REFUSED, None)),
    "the end, limited": (Marks(None, ONE), {ONE: [MarkHit(49, None)]}, LIMIT, (REFUSED, None)),
    "its own is not there": (Marks(TWO, ONE), {TWO: [], ONE: [MarkHit(49, None)]}, "", (BY_RECORDS, 50)),
    "nothing is there": (Marks(TWO, ONE), {}, "", (REFUSED, None)),
    "before the start of the log": (Marks(None, ONE), {ONE: [MarkHit(5, None)]}, "", (BY_RECORDS, 10)),
}


def test_a_record_that_is_everywhere_is_nowhere() -> None:
    records = [Record(timestamp=1000, value=b"alike") for _ in range(3 * HITS_MAX)]
    log = log_of([record(-500), *records, record(500)], [1, 3 * HITS_MAX, 1])
    marks = Marks(mark_of(records[0]), mark_of(record(-500)))
    searched = log.run(search_records([marks], 0, log.end, 2**30))
    assert len(searched.hits[mark_of(records[0])]) == HITS_MAX
    position = Position("g", "t", None, 0, 1, 0, "", 0, 30, None, None, *marks)
    assert place_by_records(position, There(False, 0, log.end, None, None), searched, "").how is REFUSED


@pytest.mark.parametrize("case", PLACES)
def test_what_records_decide(case: str) -> None:
    marks, hits, limit, expected = PLACES[case]
    position = Position("g", "t", None, 0, 7, 0, "", 0, 30, None, None, *marks)
    placed = place_by_records(position, There(False, 10, 100, None, None), SearchedRecords(hits, {marks: None}), limit)
    assert placed[:2] == expected, placed
    assert placed.note or placed.how is not REFUSED
