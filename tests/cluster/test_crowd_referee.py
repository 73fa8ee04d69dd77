"""The referee of the crowd (consumer_crowd.py) can find a fault of each kind, and finds none where there is none."""

from typing import Any

import pytest
from crowd_referee import Referee

GOOD: list[list[Any]] = [
    [1, "one", "assigned", ["t-0"]],
    [2, "one", "read", "t-0", 0],
    [3, "one", "committed", 2.5, [["t-0", 1]]],
    [4, "one", "revoked", ["t-0"]],
    [5, "two", "assigned", ["t-0"]],
    [6, "two", "read", "t-0", 1],
    [7, "two", "left"],
]


def judged(*events: list[Any]) -> Referee:
    referee = Referee()
    for event in events:
        referee.hear(event)
    referee.judge()
    return referee


def test_a_partition_that_goes_from_one_to_another_is_no_fault() -> None:
    assert judged(*GOOD).faults == []


@pytest.mark.parametrize(("how", "faults"), [("revoked", 1), ("left", 1), ("killed", 0), ("lost", 0)])
def test_a_partition_with_two_owners(how: str, faults: int) -> None:
    """Who was killed or thrown out hears too late that it owns nothing: that is no fault."""
    end = [8, "one", how, ["t-0"]] if how in ("revoked", "lost") else [8, "one", how]
    found = judged(*GOOD[:3], *GOOD[4:], end).faults
    assert len(found) == faults, found
    assert all("t-0 was one's until" in each for each in found)


def test_an_owner_that_never_ends_beside_another() -> None:
    assert len(judged(*GOOD[:3], *GOOD[4:]).faults) == 1


def test_a_commit_that_goes_back() -> None:
    found = judged(*GOOD[:6], [8, "two", "committed", 7, [["t-0", 0]]]).faults
    assert found == ["two committed 0 of t-0, after 1 was committed"]


def test_a_reader_that_begins_behind_what_is_committed() -> None:
    found = judged(*GOOD[:5], [6, "two", "read", "t-0", 0]).faults
    assert found == ["two began to read t-0 at 0, though 1 was committed"]


def test_what_the_coordinator_says_goes_back() -> None:
    referee = Referee()
    for offset in (1, 3, 2):
        referee.see("t-0", offset)
    assert referee.faults == ["the committed offset of t-0 was 3 and is 2"]
