"""Export and import against logs that were mirrored, cut, doubled and compacted at random: no place is a wrong one."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from barnabas.cli.backup import _Committed, _place, _positions, _rows
from barnabas.cli.log_headers import Log, LogHeaders
from barnabas.cli.shared.client import Key
from barnabas.offsets import backup_search
from barnabas.offsets.backup import batches_in
from barnabas.offsets.backup_records import marks_at
from barnabas.offsets.backup_search import AskTime
from barnabas.protocol import record_batch
from barnabas.protocol.record_batch import Record
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker

KEY: Key = ("orders", 0)


@dataclass(slots=True, eq=False)
class Piece:
    """A batch, and what each of its records is in truth: its place in the source; None: it is another record."""

    content: bytearray
    truth: Sequence[int | None]
    is_gone: bool = False  # compaction has taken it, and its offsets stay

    def copy(self) -> "Piece":
        return Piece(bytearray(self.content), self.truth, self.is_gone)


class OneLog(LogHeaders):
    """The log of one partition, which answers as its leader does."""

    def __init__(self, pieces: Iterable[Piece], topic_id: str, begin: int = 0) -> None:
        class Renewed:
            def renew(self) -> None:
                """Nothing has a time limit here."""

        super().__init__(None, Renewed())  # type: ignore[arg-type]
        self.truth: list[tuple[int, int | None]] = []  # offset, place in the source
        self.pieces: list[bytes] = []
        end = begin
        for piece in pieces:
            record_batch.patch(piece.content, 0, end, 0)
            header = record_batch.read_header(piece.content)
            end = header.last_offset + 1
            if piece.is_gone:
                continue
            self.pieces.append(bytes(piece.content))
            if not header.is_control:
                for record, place in zip(record_batch.records(piece.content), piece.truth, strict=True):
                    self.truth.append((record.offset, place))
        self.topic_ids = {KEY[0]: topic_id}
        self.partition_counts = {KEY[0]: 1}
        self.logs = {KEY: Log(begin, end)}

    def _answers(self, asks: Mapping[Key, Any]) -> dict[Key, Any]:
        (ask,) = asks.values()
        if isinstance(ask, AskTime):
            for content in self.pieces:
                for record in record_batch.records(content):
                    if record.timestamp >= ask.timestamp:
                        return {KEY: record.offset}
            return {KEY: None}
        found = []
        size = 0
        for content in self.pieces:
            (header,) = batches_in(content) or ()
            if header.last_offset < ask.offset:
                continue
            size += len(content)
            if size > ask.bytes_max:
                break
            found.append((header, content))
        return {KEY: found if type(ask).__name__ == "AskBatches" else [header for header, _ in found]}


class World:
    """A source and a copy of it, both made by one seed."""

    def __init__(self, seed: int, *, are_alike: bool) -> None:
        self.random = random.Random(seed)
        self.are_alike = are_alike
        self.number = 0
        self.time = 1_000_000
        self.has_sequence = self.random.random() < 0.3
        self.sequence = 0
        self.source = self.pieces_of_source()
        kind = self.random.randrange(4)
        pieces = [piece.copy() for piece in self.source]
        if self.random.random() < 0.3:
            for piece in self.source[:-1]:
                piece.is_gone = self.random.random() < 0.3
        if kind == 1:
            pieces = self.rebatched(pieces)
        if self.random.random() < 0.5:
            pieces = pieces[self.random.randint(0, len(pieces)) :]
        if self.random.random() < 0.4:
            pieces = pieces[: self.random.randint(0, len(pieces))]
        if self.random.random() < 0.4:
            pieces = [self.compacted(piece) for piece in pieces]
            for piece in pieces[:-1]:
                piece.is_gone = piece.is_gone or self.random.random() < 0.2
        if self.random.random() < 0.5:
            for _ in range(self.random.randint(1, 4)):
                pieces.insert(self.random.randint(0, len(pieces)), self.piece(False))
        self.copy = pieces
        self.begin = self.random.choice([0, 0, self.random.randint(0, 30)])

    def go_own_way(self) -> None:
        """Make the copy one of the data directory: it has the first batches where they are, and others behind."""
        kept = self.random.randint(0, len(self.source))
        self.copy, self.begin = [piece.copy() for piece in self.source[:kept]], 0
        if self.random.random() < 0.5:
            self.copy = [self.compacted(piece) for piece in self.copy]
            for piece in self.copy[:-1]:
                piece.is_gone = piece.is_gone or self.random.random() < 0.2
        if self.random.random() < 0.5:  # the copy is older
            self.time = 1_000_000
        self.copy += [self.piece(False) for _ in range(self.random.randint(0, 6))]

    def pieces_of_source(self) -> list[Piece]:
        """Some batches, perhaps with the markers of transactions between them."""
        has_markers = self.random.random() < 0.3
        pieces = []
        for _ in range(self.random.randint(1, 12)):
            pieces.append(self.piece(True))
            if has_markers and self.random.random() < 0.4:
                pieces.append(self.marker())
        return pieces

    def marker(self) -> Piece:
        self.time += 1
        kind = self.random.choice([CONTROL_COMMIT, CONTROL_ABORT])
        return Piece(
            build_marker(
                kind,
                base_offset=0,
                partition_leader_epoch=0,
                producer_id=1000,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=self.time,
            ),
            (),
        )

    def record(self) -> Record:
        rolled = self.random
        if self.are_alike:
            self.time += rolled.choice([0, 0, 1])
            return Record(timestamp=self.time, key=None, value=rolled.choice([b"tick", b"tock"]))
        self.number += 1
        self.time += rolled.choice([-50, 0, 1, 1, 5])
        return Record(timestamp=self.time, key=b"k", value=b"%d" % self.number)

    def build(self, records: Sequence[Record]) -> bytearray:
        if not self.has_sequence:
            return record_batch.build(records)
        first = self.sequence
        self.sequence += len(records)
        return record_batch.build(records, producer_id=1000, producer_epoch=0, base_sequence=first)

    def piece(self, is_of_source: bool) -> Piece:
        records = [self.record() for _ in range(self.random.choice([1, 1, 2, 5]))]
        sequence = self.sequence
        if not is_of_source:  # by another producer, in another cluster: the numbers of producers begin anew there
            self.sequence = self.random.choice([0, sequence])
        truth = self.random_truth(is_of_source, len(records))
        made = Piece(self.build(records), truth)
        if not is_of_source:
            self.sequence = sequence
        return made

    def random_truth(self, is_of_source: bool, count: int) -> list[int | None]:
        if not is_of_source:
            return [None] * count
        first = getattr(self, "_places", 0)
        self._places = first + count
        return list(range(first, first + count))

    def rebatched(self, pieces: Sequence[Piece]) -> list[Piece]:
        rows = [
            (record, place)
            for piece in pieces
            if piece.truth and not piece.is_gone
            for record, place in zip(record_batch.records(piece.content), piece.truth, strict=True)
        ]
        made = []
        self.sequence = 0
        while rows:
            count = self.random.randint(1, 4)
            some, rows = rows[:count], rows[count:]
            made.append(Piece(self.build([record for record, _ in some]), [place for _, place in some]))
        return made

    def compacted(self, piece: Piece) -> Piece:
        if self.random.random() < 0.6 or not piece.truth:
            return piece
        rows = list(zip(record_batch.records(piece.content), piece.truth, strict=True))
        kept = {record.offset for record, _ in rows if self.random.random() < 0.6}
        if not kept:
            return piece
        header = record_batch.read_header(piece.content)
        content = record_batch.rebuild(header, [record for record, _ in rows if record.offset in kept])
        return Piece(content, [place for record, place in rows if record.offset in kept])


def wrong_places(seed: int, *, are_alike: bool, same: bool) -> list[str]:
    """What import would commit, and should not."""
    world = World(seed, are_alike=are_alike)
    if same:
        world.go_own_way()
    source = OneLog(world.source, "one")
    copy = OneLog(world.copy, "one" if same else "two", world.begin)
    committed = {f"g{offset}": {KEY: _Committed(offset, "", -1)} for offset in range(source.logs[KEY].end + 1)}
    around = source.each({KEY: range(source.logs[KEY].end + 1)}, backup_search.around, lambda _: None)
    known = {key: seen for key, seen in around.items() if not isinstance(seen, str)}
    marks = source.each(known, marks_at, lambda _: None)
    rows = _rows(list(_positions(committed, source, around, marks, {}, lambda _: None)), {})
    _place(copy._target, rows, copy, same, 64)
    found = []
    living = {place for _, place in source.truth}  # what compaction has taken may be read there, or passed over
    for row in rows:
        if row.placement.offset is None:
            continue
        next_place = next((place for at, place in source.truth if at >= row.position.offset), 10**9)
        assert next_place is not None
        for at, place in copy.truth:
            if place in living and place is not None and (at < row.placement.offset) != (place < next_place):
                word = "repeats" if place < next_place else "skips"
                found.append(f"{row.position.offset}: {row.placement}: {word} {place} at {at}")
                break
    return found


# The single seeds had wrong places once: another producer's batch with the same numbers at the same offsets, and two
# ends of transactions that were alike.
@pytest.mark.parametrize("seeds", [range(100), range(100, 200), [1054, 2391, 2823, 3024, 3112]], ids=str)
def test_no_place_is_wrong(seeds: Sequence[int]) -> None:
    wrong = {seed: found for seed in seeds if (found := wrong_places(seed, are_alike=False, same=False))}
    assert not wrong


@pytest.mark.parametrize("seeds", [range(100), range(100, 200), [1413]], ids=str)
def test_no_place_is_wrong_in_a_copy_of_the_cluster_that_went_its_own_way(seeds: Sequence[int]) -> None:
    wrong = {seed: found for seed in seeds if (found := wrong_places(seed, are_alike=False, same=True))}
    assert not wrong
