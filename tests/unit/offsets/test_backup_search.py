"""Looking for batches in a log of a test: what is asked for, and that no more is."""

import random
from collections.abc import Generator, Iterable
from typing import Any

import pytest
from barnabas.offsets.backup import Batch, batches_in
from barnabas.offsets.backup_search import (
    FEW_BYTES,
    MANY_BYTES,
    Ask,
    AskTime,
    Wanted,
    around,
    hits_of,
    search,
)
from barnabas.protocol import record_batch
from barnabas.protocol.record_batch import Record


class FakeLog:
    """Answers as a leader does: whole batches, at most so many bytes, but none if the first one is larger."""

    def __init__(self, batches: Iterable[Batch], start: int = 0, end: int | None = None) -> None:
        self.batches = list(batches)
        self.start = start
        self.end = self.batches[-1].last_offset + 1 if end is None else end
        self.asked: list[Any] = []
        self.sent_bytes = 0

    def answer(self, ask: Ask | AskTime) -> list[Batch] | int | None:
        self.asked.append(ask)
        if isinstance(ask, AskTime):
            return next((one.base_offset for one in self.batches if one.timestamp >= ask.timestamp), None)
        assert self.start <= ask.offset < self.end
        sent: list[Batch] = []
        for one in self.batches:
            if one.last_offset >= ask.offset:
                if sum(each.size_bytes for each in sent) + one.size_bytes > ask.bytes_max:
                    break
                sent.append(one)
        self.sent_bytes += sum(one.size_bytes for one in sent)
        return sent

    def run(self, seeking: Generator[Any, Any, Any]) -> Any:
        answer: Any = None
        try:
            while True:
                assert len(self.asked) < 10_000
                answer = self.answer(seeking.send(answer))
        except StopIteration as end:
            return end.value


def log_of(
    count: int, size: int = 1000, *, gap: int = 0, records: int = 10, crcs: dict[int, int] | None = None
) -> list[Batch]:
    """Batches of ten offsets, with a gap behind each."""
    step = records + gap
    return [
        Batch(n * step, n * step + records - 1, (crcs or {}).get(n, n), 1000 * n, 0, 0, records, size)
        for n in range(count)
    ]


def expected_around(log: FakeLog, offset: int) -> tuple[Batch | None, Batch | None]:
    at = min(max(offset, log.start), log.end)
    batch = next((one for one in log.batches if one.last_offset >= at and at < log.end), None)
    before = [one for one in log.batches if one.last_offset < at and one.last_offset >= log.start]
    return batch, before[-1] if before else None


@pytest.mark.parametrize("seed", range(30))
def test_the_batches_around_offsets(seed: int) -> None:
    chance = random.Random(seed)
    batches = []
    offset = 0
    for number in range(chance.randrange(1, 200)):
        offset += chance.choice([0, 0, 0, 1, 50, 3000])  # compaction leaves gaps
        size = chance.choice([1000, 1000, FEW_BYTES + 1, MANY_BYTES * 3])
        batches.append(Batch(offset, offset + chance.randrange(20), number, number, 0, 0, 1, size))
        offset = batches[-1].last_offset + 1
    start = chance.choice([0, batches[len(batches) // 3].base_offset, batches[-1].last_offset])
    kept = [one for one in batches if one.last_offset >= start]
    log = FakeLog(kept, start)
    wanted = [chance.randrange(-5, offset + 5) for _ in range(chance.randrange(1, 60))] + [0, start, offset]
    found = log.run(around(wanted, log.start, log.end))
    assert found == {one: expected_around(log, one) for one in wanted}


def test_an_empty_log_is_not_asked() -> None:
    log = FakeLog([], 7, 7)
    assert log.run(around([0, 7, 9], 7, 7)) == dict.fromkeys([0, 7, 9], (None, None))
    assert log.asked == []


def test_near_offsets_share_an_answer() -> None:
    log = FakeLog(log_of(1000, size=500))
    log.run(around(range(10_000), 0, log.end))
    assert len(log.asked) < 10
    lonely = FakeLog(log_of(100_000, size=500))
    lonely.run(around([5, 500_000, 999_999], 0, lonely.end))
    assert lonely.sent_bytes < 8 * FEW_BYTES


def wanted(one: Batch, before: Batch | None = None) -> Wanted:
    return Wanted(one, before)


def test_a_batch_is_found_by_its_time() -> None:
    log = FakeLog(log_of(50_000))
    target = log.batches[30_000]
    found = log.run(search([wanted(target, log.batches[29_999])], 0, log.end, 4 * MANY_BYTES))
    (hit,) = hits_of(target, found)
    assert hit == (target, log.batches[29_999])
    assert log.sent_bytes <= 5 * MANY_BYTES
    assert found.limits[wanted(target, log.batches[29_999])] is not None  # there may be another one later


def test_a_numbered_batch_ends_the_search() -> None:
    log = FakeLog(log_of(50_000))
    target = log.batches[30_000] = log.batches[30_000]._replace(producer_id=5, base_sequence=3)
    found = log.run(search([wanted(target)], 0, log.end, 2**40))
    assert [hit.batch for hit in hits_of(target, found)] == [target]
    assert found.limits[wanted(target)] is None
    assert log.sent_bytes <= MANY_BYTES


def test_a_batch_that_is_not_there_is_searched_to_the_limit() -> None:
    log = FakeLog(log_of(50_000))
    missing = Batch(0, 9, 10**6, 20_000_000, 0, 0, 10, 1000)
    found = log.run(search([wanted(missing)], 0, log.end, 3 * MANY_BYTES))
    assert hits_of(missing, found) == []
    limit = found.limits[wanted(missing)]
    assert limit is not None
    assert 3 * MANY_BYTES <= log.sent_bytes <= 4 * MANY_BYTES
    assert limit == 200_000 - 10 + log.sent_bytes // 1000 * 10  # it begins with the batch before
    to_the_end = FakeLog(log_of(500))
    assert to_the_end.run(search([wanted(missing._replace(timestamp=400_000))], 0, 5000, 2**40)).limits == {
        wanted(missing._replace(timestamp=400_000)): None
    }


def test_nothing_is_read_when_all_records_are_older() -> None:
    log = FakeLog(log_of(100))
    late = Batch(0, 9, 5, 10**9, 0, 0, 10, 1000)
    found = log.run(search([wanted(late)], 0, log.end, 2**40))
    assert (hits_of(late, found), found.limits) == ([], {wanted(late): None})
    assert log.sent_bytes == 0


def test_many_positions_share_one_reading() -> None:
    log = FakeLog(log_of(5_000))
    some = [wanted(one) for one in log.batches[1_000:4_000]]
    found = log.run(search(some, 0, log.end, MANY_BYTES))
    assert all(len(hits_of(one.batch, found)) == 1 for one in some)
    assert log.sent_bytes <= 5_000 * 1000 + MANY_BYTES


def test_all_places_of_the_same_bytes_are_found() -> None:
    log = FakeLog(log_of(300))
    target = log.batches[100]
    copy = log.batches[200] = target._replace(base_offset=2000, last_offset=2009)
    found = log.run(search([wanted(target)], 0, log.end, 2**40))
    assert [(hit.batch, hit.before) for hit in hits_of(target, found)] == [
        (target, log.batches[99]),
        (copy, log.batches[199]),
    ]


def test_batches_without_a_time_are_looked_for_from_the_start() -> None:
    log = FakeLog([one._replace(timestamp=-1) for one in log_of(100)], 50, None)
    target = log.batches[60]
    log.batches = log.batches[5:]
    found = log.run(search([wanted(target)], 50, log.end, 2**40))
    assert [hit.batch for hit in hits_of(target, found)] == [target]


def test_headers_of_an_answer() -> None:
    first = bytes(record_batch.build([Record(timestamp=5, value=b"a"), Record(timestamp=9, value=b"b")]))
    second = bytes(
        record_batch.build(
            [Record(timestamp=7, value=b"c")], base_offset=2, producer_id=4, producer_epoch=1, base_sequence=6
        )
    )
    found = batches_in(first + second)
    assert found is not None
    assert [tuple(one) for one in found] == [
        (0, 1, record_batch.read_header(first).crc, 9, -1, 0, 2, len(first), -1, -1, -1),
        (2, 2, record_batch.read_header(second).crc, 7, -1, 0, 1, len(second), 4, 1, 6),
    ]
    assert batches_in((first + second)[:-1]) == found  # the header is enough
    assert batches_in(first + second[:60]) == found[:1]
    assert batches_in(b"") == []
    old = bytearray(first)
    old[16] = 1
    assert batches_in(bytes(old)) is None
