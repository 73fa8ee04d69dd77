"""The history checker: for each anomaly a small history that has it, and near misses that do not have it."""

from collections.abc import Sequence
from typing import Any

import pytest
from simulator.history import check, operations
from simulator.observations import (
    EXPIRE_OFFSETS,
    REMOVE_GROUP,
    Administer,
    Assigned,
    Commit,
    Event,
    Fetch,
    FetchOffsets,
    Operation,
    Outcome,
    Produce,
)

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO
P = ("t", 0)
Line = tuple[int, Outcome, Operation]


def history(*lines: Line) -> list[Event]:
    """Events, one a millisecond. The client of an operation has its number."""
    return [Event(float(at), f"c{number}", number, outcome, what) for at, (number, outcome, what) in enumerate(lines)]


def begin(number: int, what: Operation) -> Line:
    return number, Outcome.INVOKE, what


def names(events: Sequence[Event], **options: Any) -> list[str]:
    return [anomaly.name for anomaly in check(events, **options)]


def produce(*values: str, at: int = -1, producer: int = -1, sequence: int = 0, acks: int = -1) -> Produce:
    return Produce(P, values, acks, producer, sequence, at)


def fetch(position: int, *values: str, end: int | None = None, first: int | None = None) -> Fetch:
    base = position if first is None else first
    records = tuple(enumerate(values, base))
    return Fetch(P, position, records, base + len(values) if end is None else end, 0)


def done(number: int, what: Operation, outcome: Outcome = OK) -> list[Line]:
    """An operation with nothing between its beginning and its end."""
    return [begin(number, what), (number, outcome, what)]


# -- records


def test_a_quiet_history() -> None:
    lines = done(1, produce("a", at=0)) + done(2, produce("b", "c", at=1)) + done(3, fetch(0, "a", "b", "c"))
    assert names(history(*lines), settled_ms=0.0) == []


@pytest.mark.parametrize(
    ("outcome", "found"), [(OK, []), (INFO, []), (FAIL, ["aborted read"])], ids=["ok", "unknown", "failed"]
)
def test_aborted_read(outcome: Outcome, found: list[str]) -> None:
    at = 0 if outcome is OK else -1
    assert names(history(*done(1, produce("a", at=at), outcome), *done(2, fetch(0, "a")))) == found


def test_what_failed_once_and_was_sent_again_may_be_read() -> None:
    lines = [*done(1, produce("a"), FAIL), begin(2, produce("a")), *done(3, fetch(0, "a"))]
    assert names(history(*lines)) == []


def test_invented_read() -> None:
    assert names(history(*done(1, fetch(0, "a")))) == ["invented read"]


@pytest.mark.parametrize("acks", [-1, 1])
def test_inconsistent_offsets(acks: int) -> None:
    """Only acks=-1 promises that the record stays where it is."""
    lines = [
        *done(1, produce("a", at=0, acks=acks)),
        *done(2, produce("b", at=0)),
        *done(3, fetch(0, "b")),
    ]
    found = names(history(*lines))
    assert found == (["inconsistent offsets", "inconsistent offsets"] if acks == -1 else [])


def test_two_readers_see_different_records() -> None:
    lines = [begin(1, produce("a")), begin(2, produce("b")), *done(3, fetch(0, "a")), *done(4, fetch(0, "b"))]
    assert names(history(*lines)) == ["inconsistent offsets"]


def test_duplicate() -> None:
    lines = [begin(1, produce("a", producer=7)), *done(2, fetch(0, "a", "a"))]
    assert names(history(*lines)) == ["duplicate"]


def test_without_idempotence_a_value_is_there_as_often_as_it_was_sent() -> None:
    twice = [begin(1, produce("a")), begin(2, produce("a"))]
    assert names(history(*twice, *done(3, fetch(0, "a", "a")))) == []
    assert names(history(*twice, *done(3, fetch(0, "a", "a", "a")))) == ["duplicate"]


def test_records_of_a_producer_in_another_order() -> None:
    sends = [begin(1, produce("a", producer=7, sequence=0)), begin(2, produce("b", producer=7, sequence=1))]
    assert names(history(*sends, *done(3, fetch(0, "b", "a")))) == ["reordered"]
    assert names(history(*sends, *done(3, fetch(0, "a", "b")))) == []
    others = [begin(1, produce("a", producer=7, sequence=0)), begin(2, produce("b", producer=8, sequence=1))]
    assert names(history(*others, *done(3, fetch(0, "b", "a")))) == []


def test_a_record_before_one_that_was_acknowledged_before_it_was_sent() -> None:
    assert names(history(*done(1, produce("a", at=5)), *done(2, produce("b", at=4)))) == ["reordered"]
    at_once = [begin(1, produce("a")), begin(2, produce("b")), (1, OK, produce("a", at=5)), (2, OK, produce("b", at=4))]
    assert names(history(*at_once)) == []


def test_lost_write() -> None:
    write = done(1, produce("a", "b", at=3))
    assert names(history(*write, *done(2, fetch(0, end=4)))) == ["lost write"]
    assert names(history(*write, *done(2, fetch(0, end=5)))) == []
    assert names(history(*done(1, produce("a", "b", at=3, acks=1)), *done(2, fetch(0, end=4)))) == []
    assert names(history(*done(1, produce("a", "b"), INFO), *done(2, fetch(0, end=0)))) == []


def test_a_read_that_began_before_the_acknowledgement_shows_nothing_lost() -> None:
    lines = [begin(1, produce("a")), begin(2, fetch(0)), (1, OK, produce("a", at=0)), (2, OK, fetch(0, end=0))]
    assert names(history(*lines)) == []


def test_a_later_read_shows_that_nothing_was_lost() -> None:
    """A new leader may know less for a while."""
    lines = [*done(1, produce("a", at=0)), *done(2, fetch(0, end=0)), *done(3, fetch(0, "a"))]
    assert names(history(*lines)) == []


def test_lost_read() -> None:
    lines = [begin(1, produce("a")), *done(2, fetch(0, "a"))]
    assert names(history(*lines, *done(3, fetch(0, end=0)))) == ["lost read"]
    assert names(history(*lines, *done(3, fetch(0, end=1)))) == []


def test_stale_read_in_calm() -> None:
    lines = [*done(1, produce("a", at=0)), *done(2, fetch(0, end=0)), *done(3, fetch(0, "a"))]
    assert names(history(*lines), settled_ms=2.0) == ["stale read"]
    assert names(history(*lines), settled_ms=3.0) == []


def test_a_stale_read_after_another_read_in_calm() -> None:
    lines = [begin(1, produce("a")), *done(2, fetch(0, "a")), *done(3, fetch(0, end=0)), *done(4, fetch(0, "a"))]
    assert names(history(*lines), settled_ms=0.0) == ["stale read"]


def test_gap() -> None:
    lines = [begin(1, produce("a", "b", "c")), (2, Outcome.INVOKE, fetch(0))]
    hole = Fetch(P, 0, ((0, "a"), (2, "c")), 3)
    assert names(history(*lines, (2, OK, hole))) == ["gap"]
    assert names(history(*lines, (2, OK, hole)), compacted=("t",)) == []
    late = Fetch(P, 0, ((1, "b"),), 2)
    assert names(history(*lines, (2, OK, late))) == ["gap"]


def test_a_batch_that_begins_below_the_position_is_no_gap() -> None:
    lines = [begin(1, produce("a", "b", "c")), *done(2, Fetch(P, 2, ((0, "a"), (1, "b"), (2, "c")), 3))]
    assert names(history(*lines)) == []


def test_an_excused_partition_may_lose_but_not_invent() -> None:
    lines = [*done(1, produce("a", at=0)), *done(2, fetch(0, end=0)), *done(3, fetch(0, "x", end=1))]
    assert names(history(*lines[:4]), excused=(P,)) == []
    assert names(history(*lines), excused=(P,)) == ["invented read"]


def test_a_deleted_topic_is_left_out() -> None:
    lines = [*done(1, produce("a", at=0)), begin(9, Administer("delete topic", "t")), *done(2, fetch(0, end=0))]
    assert names(history(*lines)) == []


# -- groups


def commit(offset: int) -> Commit:
    return Commit("g", ((P, offset),))


def told(offset: int) -> FetchOffsets:
    return FetchOffsets("g", ((P, offset),))


def test_offsets_that_rise() -> None:
    lines = [*done(1, told(-1)), *done(2, commit(5)), *done(3, told(5)), *done(4, commit(7)), *done(5, told(7))]
    assert names(history(*lines)) == []


def test_a_committed_offset_goes_back() -> None:
    lines = [*done(1, commit(5)), *done(2, commit(7))]
    assert names(history(*lines, *done(3, told(5)))) == ["committed offset goes back"]


def test_commits_that_do_not_wait_for_replicas_may_be_taken_by_a_leader_change_but_not_in_the_calm() -> None:
    lines = history(*done(1, commit(5)), *done(2, commit(7)), *done(3, told(5)))
    assert names(lines, commits_are_weak=True) == []
    assert names(lines, commits_are_weak=True, settled_ms=3.0) == []  # the commit began before
    assert names(lines, commits_are_weak=True, settled_ms=2.0) == ["committed offset goes back"]
    assert names(history(*done(1, commit(5)), *done(2, told(6))), commits_are_weak=True) == ["invented offset"]


def test_an_offset_may_be_either_while_a_commit_is_under_way() -> None:
    lines = [*done(1, commit(5)), begin(2, commit(7))]
    assert names(history(*lines, *done(3, told(5)), *done(4, told(7)), (2, OK, commit(7)))) == []
    assert names(history(*lines, begin(3, told(-1)), (2, OK, commit(7)), (3, OK, told(5)))) == []


def test_a_commit_without_an_answer_that_was_seen_must_stay() -> None:
    lines = [*done(1, commit(5)), *done(2, commit(7), INFO), *done(3, told(7))]
    assert names(history(*lines, *done(4, told(7)))) == []
    assert names(history(*lines, *done(4, told(5)))) == ["committed offset goes back"]


def test_a_commit_without_an_answer_may_take_effect_late() -> None:
    lines = [*done(1, commit(5), INFO), *done(2, commit(7)), *done(3, told(7)), *done(4, told(5))]
    assert names(history(*lines)) == []


def test_a_committed_offset_is_lost() -> None:
    assert names(history(*done(1, commit(5)), *done(2, told(-1)))) == ["committed offset lost"]
    assert names(history(*done(1, commit(5), INFO), *done(2, told(-1)))) == []
    seen = [*done(1, commit(5), INFO), *done(2, told(5)), *done(3, told(-1))]
    assert names(history(*seen)) == ["committed offset lost"]


def test_an_offset_that_nobody_committed() -> None:
    assert names(history(*done(1, commit(5)), *done(2, told(6)))) == ["invented offset"]
    assert names(history(*done(1, told(6)), *done(2, commit(6)))) == ["invented offset"]


def test_an_offset_whose_commit_failed() -> None:
    assert names(history(*done(1, commit(5), FAIL), *done(2, told(5)))) == ["aborted commit"]


def test_the_same_offset_committed_twice_is_not_old() -> None:
    lines = [*done(1, commit(5)), *done(2, commit(7)), *done(3, commit(5)), *done(4, told(5))]
    assert names(history(*lines)) == []


GONE = Administer("delete group", "g")


def test_a_group_that_was_deleted_has_no_offsets() -> None:
    assert names(history(*done(1, commit(5)), *done(2, GONE), *done(3, told(-1)))) == []
    assert names(history(*done(1, commit(5)), begin(2, GONE), *done(3, told(-1)))) == []
    assert names(history(*done(1, commit(5)), *done(2, GONE, FAIL), *done(3, told(-1)))) == ["committed offset lost"]


def test_offsets_whose_time_is_over_may_be_gone() -> None:
    expiry = Administer(EXPIRE_OFFSETS, "g")
    assert names(history(*done(1, commit(5)), *done(2, expiry, INFO), *done(3, told(-1)))) == []
    assert names(history(*done(1, commit(5)), *done(2, told(-1)), *done(3, expiry, INFO))) == ["committed offset lost"]


def test_offsets_of_a_deleted_group_come_back() -> None:
    lines = [*done(1, commit(5)), *done(2, GONE)]
    assert names(history(*lines, *done(3, told(5)))) == ["committed offset goes back"]
    assert names(history(*lines, *done(3, commit(5)), *done(4, told(5)))) == []
    assert names(history(*lines, *done(3, commit(6)), *done(4, told(-1)))) == ["committed offset lost"]


def test_groups_are_excused_with_the_offsets_topic() -> None:
    lines = [*done(1, commit(5)), *done(2, told(-1))]
    assert names(history(*lines), excused=(P,)) == ["committed offset lost"]
    assert names(history(*lines), excused=(("__consumer_offsets", 1),)) == []


def test_two_owners() -> None:
    first, other = Assigned("g", 3, "m1", (P,)), Assigned("g", 3, "m2", (P,))
    assert names(history((1, OK, first), (2, OK, other))) == ["two owners"]
    assert names(history((1, OK, first), (2, OK, other._replace(generation=4)))) == []
    assert names(history((1, OK, first), (2, OK, first))) == []


def test_a_group_that_was_removed_begins_with_new_owners() -> None:
    first, other = Assigned("g", 1, "m1", (P,)), Assigned("g", 1, "m2", (P,))
    removal, of_another = Administer(REMOVE_GROUP, "g"), Administer(REMOVE_GROUP, "h")
    assert names(history((1, OK, first), *done(2, removal), (3, OK, other))) == []
    assert names(history((1, OK, first), *done(2, of_another), (3, OK, other))) == ["two owners"]
    assert names(history((1, OK, first), *done(2, removal), (3, OK, first), (4, OK, other))) == ["two owners"]


# -- the history itself


def test_a_history_that_contradicts_itself_is_an_error() -> None:
    with pytest.raises(ValueError, match="ends twice"):
        operations(history(*done(1, commit(5)), (1, OK, commit(5))))
    with pytest.raises(ValueError, match="was not invoked"):
        operations(history((1, OK, commit(5))))
    with pytest.raises(ValueError, match="invoked twice"):
        operations(history(begin(1, commit(5)), begin(1, commit(5))))
