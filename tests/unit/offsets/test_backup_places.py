"""Where a position of a backup is in another log: each case as a row; nothing is guessed."""

from collections.abc import Sequence

import pytest
from barnabas.offsets.backup import Batch, Position
from barnabas.offsets.backup_places import Found, Hit, How, Placement, There, place, prove
from barnabas.protocol.batch_layout import CONTROL, DELETE_HORIZON

PROVED, FOUND, _, KEPT, REFUSED = How


def batch(base: int, crc: int, count: int = 10, *, sequence: int = -1, timestamp: int | None = None) -> Batch:
    """A batch of `count` offsets. With a sequence an idempotent producer has written it."""
    time = 1000 * crc if timestamp is None else timestamp
    producer = (7, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    return Batch(base, base + count - 1, crc, time, 0, 0, count, 100, *producer)


A, B, C = batch(0, 1), batch(10, 2), batch(20, 3)
NUMBERED = batch(10, 2, sequence=10)


def at(offset: int, seen: Batch | None, before: Batch | None, log: tuple[int, int] = (0, 30)) -> Position:
    """A position as it was in a log of A, B and C, if nothing else is said."""
    return Position("g", "t", "id", 0, offset, 0, "", *log, seen, before)


def there(seen: Batch | None, before: Batch | None, log: tuple[int, int] = (0, 30), *, same: bool = False) -> There:
    return There(same, *log, seen, before)


PROOFS: dict[str, tuple[Position, There, tuple[How, int | None] | None]] = {
    "inside of a batch": (at(14, B, A), there(B, A), (PROVED, 14)),
    "at the begin of a batch": (at(10, B, A), there(B, A), (PROVED, 10)),
    "the very same log needs no neighbour": (at(14, B, A), there(B, None, same=True), (PROVED, 14)),
    "a numbered batch needs no neighbour": (at(14, NUMBERED, A), there(NUMBERED, None), (PROVED, 14)),
    "without a neighbour it may be elsewhere, too": (at(14, B, A), there(B, None), None),
    "with another neighbour, too": (at(14, B, A), there(B, batch(0, 99)), None),
    "the first batch of a log has no neighbour": (at(3, A, None), there(A, None), None),
    "neighbours that are alike do not decide": (at(10, batch(10, 1), A), there(batch(10, 1, timestamp=1000), A), None),
    "the same bytes at another offset": (at(14, B, A), there(batch(11, 2), batch(1, 1)), None),
    "other bytes": (at(14, B, A), there(batch(10, 9), A), None),
    "another CRC, also in the same log": (at(14, B, A), there(batch(10, 9), A, same=True), None),
    "another time under the same CRC": (at(14, B, A), there(batch(10, 2, timestamp=5), A), None),
    "the end of the log": (at(30, None, C), there(None, C, same=True), (PROVED, 30)),
    "the end, where the log has grown": (at(30, None, C), there(batch(30, 4), C, (0, 40), same=True), (PROVED, 30)),
    "the end of another log": (at(30, None, C), there(None, C), None),
    "the end behind a numbered batch": (at(20, None, NUMBERED, (0, 20)), there(C, NUMBERED), (PROVED, 20)),
    "the log start has moved": (at(14, B, A), there(C, None, (20, 30), same=True), (KEPT, 20)),
    "the log start has moved into the batch": (at(12, B, A), there(B, None, (15, 30), same=True), (PROVED, 15)),
    "the log start has moved to the end": (at(30, None, C), there(None, None, (30, 30), same=True), (KEPT, 30)),
    "the log start of another log": (at(14, B, A), there(C, None, (20, 30)), None),
    "compaction took records of the batch": (
        at(14, B, A),
        there(B._replace(crc=77, record_count=3), A, same=True),
        (PROVED, 14),
    ),
    "compaction in a copy of the log, numbered": (
        at(14, NUMBERED, A),
        there(NUMBERED._replace(crc=77, record_count=3), A),
        None,  # producers' numbers begin anew in each cluster, so this may be any other batch
    ),
    "compaction has set a delete horizon": (
        at(14, B, A),
        there(B._replace(crc=77, attributes=DELETE_HORIZON), A, same=True),
        (PROVED, 14),
    ),
    "a copy of the cluster went its own way": (
        at(14, B, A),
        there(B._replace(crc=77, timestamp=B.timestamp - 1), A, same=True),
        None,
    ),
    "compaction in a copy of the log, not numbered": (
        at(14, B, A),
        there(B._replace(crc=77, record_count=3), A),
        None,
    ),
    "more records than before is no compaction": (
        at(14, B, A),
        there(B._replace(crc=77, record_count=11), A, same=True),
        None,
    ),
    "another leader's records at the same offsets": (
        at(14, B, A),
        there(B._replace(crc=77, leader_epoch=5), A, same=True),
        None,
    ),
    "compaction took the batch": (at(14, B, A), there(C, A, same=True), (KEPT, 14)),
    "compaction took the batch of a copy": (at(14, B, A), there(C, A), None),
    "the same log has lost its end": (at(14, B, A), there(None, A, (0, 10), same=True), None),
    "before the log start already": (at(3, B, None, (10, 30)), there(B, None, (10, 30), same=True), (PROVED, 10)),
    "before the log start, and the copy has more": (at(3, NUMBERED, None, (10, 30)), there(NUMBERED, A), (PROVED, 3)),
    "past the end already": (at(31, None, C), there(None, C, same=True), (REFUSED, None)),
    "the topic was gone": (
        Position("g", "t", None, 0, 5, 0, "", None, None, None, None),
        there(B, A, same=True),
        (REFUSED, None),
    ),
    "an old format": (at(14, None, None), there(B, A, same=True), (REFUSED, None)),
    "an old format at the end": (at(30, None, None), there(None, C, same=True), (REFUSED, None)),
    "an empty log": (at(0, None, None, (0, 0)), there(None, None, (0, 0)), (FOUND, 0)),
    "an empty log, and the other has records": (at(0, None, None, (0, 0)), there(A, None), (FOUND, 0)),
    "an empty log, and the other begins later": (at(0, None, None, (0, 0)), there(C, None, (20, 30)), (FOUND, 20)),
    "an empty log, the same": (at(0, None, None, (0, 0)), there(A, None, same=True), (KEPT, 0)),
    "an emptied log": (at(30, None, None, (30, 30)), there(None, None, (30, 30)), (REFUSED, None)),
    "an emptied log, the same": (at(30, None, None, (30, 30)), there(None, None, (30, 35), same=True), (KEPT, 30)),
    "before an emptied log": (at(0, None, None, (30, 30)), there(None, None, (30, 30)), (REFUSED, None)),
    "an emptied log that has lost its end": (
        at(30, None, None, (30, 30)),
        there(None, None, (0, 20), same=True),
        (REFUSED, None),
    ),
}


@pytest.mark.parametrize("case", PROOFS)
def test_what_the_same_offset_proves(case: str) -> None:
    position, seen, expected = PROOFS[case]
    found = prove(position, seen)
    assert (found and found[:2]) == expected, found
    if found is not None and found.how is REFUSED:
        assert found.note


def hits(*pairs: tuple[Batch, Batch | None]) -> Sequence[Hit]:
    return [Hit(*pair) for pair in pairs]


AT_110, AT_210 = batch(110, 2), batch(210, 2)
BEFORE_110 = batch(100, 1)
LIMIT = "64 MB were searched"

PLACES: dict[str, tuple[Position, Found, tuple[How, int | None]]] = {
    "once": (at(14, B, A), Found(hits((AT_110, BEFORE_110))), (FOUND, 114)),
    "once, behind something else": (at(14, B, A), Found(hits((AT_110, batch(100, 9)))), (FOUND, 114)),
    "once at the same offset": (at(14, B, A), Found(hits((B, None))), (PROVED, 14)),
    "once, but the search was limited": (at(14, B, A), Found(hits((AT_110, None)), (), LIMIT), (REFUSED, None)),
    "limited, with its neighbour": (at(14, B, A), Found(hits((AT_110, BEFORE_110)), (), LIMIT), (FOUND, 114)),
    "limited, and numbered": (
        at(14, NUMBERED, A),
        Found(hits((batch(110, 2, sequence=10), None)), (), LIMIT),
        (FOUND, 114),
    ),
    "twice": (at(14, B, A), Found(hits((AT_110, None), (AT_210, None))), (REFUSED, None)),
    "twice, and the neighbour decides": (
        at(14, B, A),
        Found(hits((AT_110, batch(100, 9)), (AT_210, batch(200, 1)))),
        (FOUND, 214),
    ),
    "twice with the same neighbour": (
        at(14, B, A),
        Found(hits((AT_110, BEFORE_110), (AT_210, batch(200, 1)))),
        (REFUSED, None),
    ),
    "once, and it was behind its like": (
        at(14, B, batch(0, 2)),
        Found(hits((AT_110, None))),
        (REFUSED, None),
    ),
    "twice behind each other, and it was the second one": (
        at(14, B, batch(0, 2)),
        Found(hits((AT_110, BEFORE_110), (batch(120, 2), AT_110))),
        (REFUSED, None),
    ),
    "an end of a transaction has nothing of its own": (
        at(14, B._replace(attributes=CONTROL), A),
        Found(hits((AT_110._replace(attributes=CONTROL), batch(100, 9)))),
        (REFUSED, None),
    ),
    "an end of a transaction behind the same batch": (
        at(10, B._replace(attributes=CONTROL), A),
        Found(hits((AT_110._replace(attributes=CONTROL), BEFORE_110))),
        (FOUND, 110),
    ),
    "only the end of a transaction before it": (
        at(10, B, A._replace(attributes=CONTROL)),
        Found((), hits((BEFORE_110._replace(attributes=CONTROL), None))),
        (REFUSED, None),
    ),
    "nowhere": (at(14, B, A), Found(), (REFUSED, None)),
    "only the one before it, and nothing of its own was read": (
        at(10, B, A),
        Found((), hits((BEFORE_110, None))),
        (FOUND, 110),
    ),
    "only the one before it, but some of its own was read": (
        at(14, B, A),
        Found((), hits((BEFORE_110, None))),
        (REFUSED, None),
    ),
    "only the one before it, twice": (
        at(10, B, A),
        Found((), hits((BEFORE_110, None), (batch(200, 1), None))),
        (REFUSED, None),
    ),
    "only the one before it, and the search was limited": (
        at(10, B, A),
        Found((), hits((BEFORE_110, None)), LIMIT),
        (REFUSED, None),
    ),
    "the end": (at(30, None, C), Found((), hits((batch(120, 3), None))), (FOUND, 130)),
    "the end, twice": (at(30, None, C), Found((), hits((batch(120, 3), None), (batch(220, 3), None))), (REFUSED, None)),
    "in a gap before the batch": (at(5, B, A), Found(hits((AT_110, BEFORE_110))), (FOUND, 110)),
}


@pytest.mark.parametrize("case", PLACES)
def test_what_a_search_decides(case: str) -> None:
    position, found, expected = PLACES[case]
    placed = place(position, there(None, None, (0, 300)), found)
    assert placed[:2] == expected, placed
    assert placed.note or placed.how is not REFUSED


def test_a_found_place_is_never_before_the_log() -> None:
    placed = place(at(12, B, A), there(None, None, (115, 300)), Found(hits((AT_110, None))))
    assert placed == Placement(FOUND, 115, "the records up to the start of the log are deleted")


def test_a_refusal_says_what_may_help() -> None:
    limited = place(at(14, B, A), there(None, None, (0, 300)), Found((), (), "64 MB were searched (see --search-mb)"))
    assert "--search-mb" in limited.note
    lost = place(at(14, B, A), there(None, A, (0, 10), same=True), Found())
    assert "it has lost records" in lost.note
    twice = place(
        at(14, B, A), there(None, None), Found(hits(*[(batch(base, 2), None) for base in range(0, 600, 100)]))
    )
    assert "0, 100, 200, 300 and 2 more places" in twice.note
