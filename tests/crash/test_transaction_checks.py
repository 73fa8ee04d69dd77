"""The checker of the kill rounds: what it takes for a fault of copied records, and what passes by itself."""

from typing import Any, cast

import pytest
import transaction_checks
from kill_load import Books
from transaction_checks import TransactionChecker

Rows = list[tuple[int, bytes]]
SOURCE, COPY = ("transacted", 0), ("copies", 0)
SOURCES: Rows = [(offset, b"v") for offset in range(5)]


def copies(*offsets: int) -> Rows:
    return [(place, b"%d" % offset) for place, offset in enumerate(offsets)]


class Looks(TransactionChecker):
    """A checker that sees these, look after look, and the last one for ever."""

    def __init__(self, *looks: tuple[Rows, Rows]) -> None:
        super().__init__(cast(Any, None), Books(), cast(Any, None), [SOURCE])
        self.copies = [COPY]
        self._looks = list(looks)

    def _committed_offsets(self) -> dict[tuple[str, int], int]:
        return {SOURCE: 0}

    def _visible(self, partitions: Any) -> dict[tuple[str, int], Rows]:
        source, copy = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        return {SOURCE: source, COPY: copy}

    def problems(self) -> list[str]:
        self._check_copies(self._committed_offsets(), self._copies_and_sources(), at_rest=False)
        return self.books.problems


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "ENDED_WITHIN_S", 0.2)
    monkeypatch.setattr(transaction_checks, "AGAIN_S", 0.01)


def test_a_new_leader_may_not_know_yet_how_far_its_records_are_committed() -> None:
    assert Looks((SOURCES[:2], copies(0, 1, 2)), (SOURCES, copies(0, 1, 2, 3))).problems() == []


def test_a_record_that_was_copied_and_is_gone_is_a_fault() -> None:
    (problem,) = Looks((SOURCES[:2], copies(0, 1, 2))).problems()
    assert "from place 2 on: [2], of []" in problem


@pytest.mark.parametrize("offsets", [(0, 2), (0, 1, 1), (1, 0)])
def test_copies_that_are_not_alike_are_a_fault(offsets: tuple[int, ...]) -> None:
    (problem,) = Looks((SOURCES, copies(*offsets))).problems()
    assert "differ from place" in problem
