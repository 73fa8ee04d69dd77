"""What the history of commits has and what it asks for, as pure values."""

from itertools import pairwise
from random import Random

import pytest
from barnabas.pipeline.history_state import OPEN, HistoryState, Hole, LogEnds, read_state, sentences
from barnabas.pipeline.ranges import common, united, without

DAY_MS = 86_400_000


def test_ranges_are_sets() -> None:
    random = Random(1)
    for _ in range(300):
        some, others = (
            [(low, low + random.randrange(5)) for low in random.sample(range(30), random.randrange(6))]
            for _ in range(2)
        )

        def members(ranges: object) -> set[int]:
            return {one for low, high in ranges for one in range(low, high)}  # type: ignore[attr-defined]

        for found, expected in (
            (united(some, others), members(some) | members(others)),
            (without(some, others), members(some) - members(others)),
            (common(some, others), members(some) & members(others)),
        ):
            assert members(found) == expected
            assert all(low < high for low, high in found)
            assert all(one[1] < other[0] for one, other in pairwise(found)), "as few as possible"


def whole(*ends: int) -> dict[int, LogEnds]:
    return {partition: LogEnds(0, end, end) for partition, end in enumerate(ends)}


def test_only_what_is_new_is_read() -> None:
    state = HistoryState()
    plan = state.plan(whole(10, 0), 0)
    assert (plan.ranges, plan.again, plan.late) == ({0: ((0, 10),)}, {}, ())
    state = state.after(plan, (), whole(10, 0), 0)
    assert not state.plan(whole(10, 0), 0).ranges
    assert state.plan(whole(12, 3), 0).ranges == {0: ((10, 12),), 1: ((0, 3),)}
    assert state.plan(whole(12, 0), 0, was_killed=True).again == {0: ((10, 12),)}
    assert read_state(state.text()) == state


def test_holes_are_asked_for_until_they_are_filled() -> None:
    """What a transaction holds back, what cannot be read, and what is not there yet."""
    ends = {0: LogEnds(0, 20, 18)}
    state = HistoryState()
    plan = state.plan(ends, 5)
    holes = [Hole(0, 3, 4, f"{OPEN} of group a"), Hole(0, 8, 11, "no batch begins here")]
    state = state.after(plan, holes, ends, 5)
    assert state.logs[0].complete == ((0, 3), (4, 8), (11, 18))
    said = sentences(state.holes, plan)
    assert "1 commit is in an open transaction (of group a) and does not count yet" in said
    assert "__consumer_offsets-0 from 8 to before 11 (no batch begins here)" in said
    assert "from 18 to before 20 (the log ends at 18" in said
    plan = state.plan(whole(25), 6)
    assert plan.ranges == {0: ((3, 4), (8, 11), (18, 25))}
    assert plan.again == {0: ((3, 4), (8, 11), (18, 20))}, "more than the corrupt place itself may have been said"
    state = state.after(plan, holes[:1], whole(25), 6)
    assert state.logs[0].complete == ((0, 3), (4, 25))
    plan = state.plan(whole(25), 7)
    state = state.after(plan, (), whole(25), 7)
    assert (state.logs[0].complete, state.holes) == (((0, 25),), [])
    assert read_state(state.text()) == state


def test_what_was_removed_before_a_run_is_named_once() -> None:
    state = HistoryState()
    state = state.after(state.plan(whole(10), 0), [Hole(0, 4, 6, "the checksum is wrong")], whole(10), 0)
    ends = {0: LogEnds(15, 20, 20)}
    plan = state.plan(ends, 0)
    assert plan.removed == {0: ((4, 6), (10, 15))}
    assert plan.ranges == {0: ((15, 20),)}
    assert "from 10 to before 15" in sentences((), plan)
    state = state.after(plan, (), ends, 0)
    assert (state.holes, state.plan(ends, 0).removed) == ([], {})


@pytest.mark.parametrize("hours", [1, 24, 30])
def test_a_run_that_comes_late_compares_with_the_log(hours: int) -> None:
    """Unless nothing was written since: then no tombstone was, either."""
    state = HistoryState()
    state = state.after(state.plan(whole(10, 10), 0), (), whole(10, 10), 0)
    now_ms = hours * 3_600_000
    assert state.plan(whole(10, 11), now_ms).late == ((1,) if hours >= 24 else ())
    assert state.plan(whole(10, 11), now_ms, delete_retention_ms=1000).late == (1,)
    seen = state.after(state.plan(whole(10, 10), now_ms), (), whole(10, 10), now_ms)
    assert seen.plan(whole(10, 11), now_ms + DAY_MS - 1).late == ()


def test_behind_a_hole_a_tombstone_may_be_that_no_run_has_seen() -> None:
    state, hole = HistoryState(), Hole(0, 4, 6, "the checksum is wrong")
    state = state.after(state.plan(whole(10), 0), [hole], whole(10), 0)
    state = state.after(state.plan(whole(10), 1), [hole], whole(10), DAY_MS)
    assert state.plan(whole(10), DAY_MS + 1).late == (0,), "nothing is new, but the hole may be filled"
    held = Hole(0, 4, 6, f"{OPEN} of group a")
    state = state.after(state.plan(whole(10), 1), [held], whole(10), DAY_MS)
    assert state.plan(whole(10), DAY_MS + 1).late == (), "no transaction removes an offset"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"logs": {"0": {}}}', "null"])
def test_a_state_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError):
        read_state(text)
