"""The day of each group's lag in bounded memory, and what is known from it: rates, and the time to catch up."""

from itertools import pairwise

import pytest
from barnabas.offsets.lag_history import NO_RATES, POINTS_MAX, SPAN_MS, LagHistories, Point, rates

START_MS = 1_700_000_000_000
STEP_MS = 30_000


def history(rows, step_ms=STEP_MS):
    """(records, position) rows as points, one every `step_ms`."""
    histories = LagHistories()
    for number, (records, position, *more) in enumerate(rows):
        point = Point(START_MS + number * step_ms, records, position, *(more or [1]))
        histories.add("g", point, step_ms)
    return histories.of_group("g")


def test_a_group_that_catches_up():
    points = history([(1_000 - 100 * step, 1_000 + 160 * step) for step in range(6)])
    found = rates(points, points[-1].time_ms)
    assert found.consumed == pytest.approx(160 / 30)
    assert found.produced == pytest.approx(60 / 30)
    assert found.catch_up_seconds == pytest.approx(500 / (100 / 30))


def test_a_group_that_falls_behind_never_catches_up():
    points = history([(100 * step, 1_000 + 10 * step) for step in range(1, 6)])
    assert rates(points, points[-1].time_ms).catch_up_seconds is None


def test_a_group_that_has_read_all_needs_no_time():
    points = history([(0, 1_000 + 10 * step) for step in range(5)])
    assert rates(points, points[-1].time_ms).catch_up_seconds == 0.0


def test_only_the_last_minutes_count():
    rows = [(0, 100_000 * step) for step in range(40)] + [(10 * step, 4_000_000 + step) for step in range(20)]
    points = history(rows)
    assert rates(points, points[-1].time_ms).consumed == pytest.approx(1 / 30, rel=0.1)


def test_a_point_holds_until_the_next_one():
    histories = LagHistories()
    histories.add("g", Point(START_MS, 100, 0, 1), STEP_MS)
    hour_later_ms = START_MS + 3_600_000
    histories.add("g", Point(hour_later_ms, 0, 100, 1), STEP_MS)
    points = histories.of_group("g")
    assert [point.records for point in points] == [100, 100, 0]
    assert points[1].time_ms == hour_later_ms - STEP_MS
    assert rates(points, hour_later_ms + 30_000, 60_000).consumed == pytest.approx(100 / 60)
    assert rates(points, hour_later_ms + 3_600_000).consumed == 0.0, "nothing was read since"


def test_a_reset_and_a_new_partition_begin_anew():
    reset = history([(0, 1_000_000), (900_000, 100_000), (899_000, 101_000)])
    assert rates(reset, reset[-1].time_ms).consumed == pytest.approx(1_000 / 30)
    grown = history([(0, 1_000, 1), (0, 9_000_000, 2), (0, 9_000_060, 2)])
    assert rates(grown, grown[-1].time_ms).consumed == pytest.approx(2.0)


def test_one_look_says_no_rate():
    assert rates([], START_MS) == NO_RATES
    points = history([(5, 10)])
    assert rates(points, points[0].time_ms) == NO_RATES
    assert rates(points, points[0].time_ms + 1_000) == NO_RATES


def test_a_clock_that_is_set_back_begins_anew():
    histories = LagHistories()
    histories.add("g", Point(START_MS, 1, 1, 1), STEP_MS)
    histories.add("g", Point(START_MS - 5_000, 2, 2, 1), STEP_MS)
    assert histories.of_group("g") == [Point(START_MS - 5_000, 2, 2, 1)]


def test_two_days_are_a_day_of_points_that_grow_apart_with_age():
    points = history([(step % 7, step) for step in range(2 * SPAN_MS // STEP_MS)])
    assert len(points) <= POINTS_MAX
    age_ms = [points[-1].time_ms - point.time_ms for point in points]
    assert SPAN_MS * 0.9 < age_ms[0] <= SPAN_MS + 4 * 3_600_000
    gaps = [older - younger for older, younger in pairwise(age_ms)]
    assert all(gap <= max(0.2 * age, 2 * STEP_MS) for gap, age in zip(gaps, age_ms)), "no hole at any age"
    assert all(left.time_ms < right.time_ms for left, right in pairwise(points))


@pytest.mark.parametrize("groups", [1, 2_000, 10_000, 30_000])
def test_all_groups_together_stay_within_their_memory(groups):
    histories = LagHistories(4 << 20)
    for step in range(60):
        for number in range(groups // 100 or 1):
            histories.add(f"g{step % 100}-{number}", Point(START_MS + step * STEP_MS, step, step, 1), STEP_MS)
    for number in range(groups):
        histories.add(f"g{number}", Point(START_MS + 3_600_000, 1, 1, 1), STEP_MS)
        assert histories.memory_bytes <= 4 << 20
    held = [histories.of_group(f"g{number}") for number in range(groups)]
    assert sum(len(points) * 32 for points in held) <= 4 << 20
    assert f"g{groups - 1}" in histories, "the group that changed last is kept"


def test_groups_that_are_gone_are_forgotten():
    histories = LagHistories()
    for name in "ab":
        histories.add(name, Point(START_MS, 1, 1, 1), STEP_MS)
    histories.keep_only({"b"})
    assert ("a" in histories, "b" in histories, len(histories)) == (False, True, 1)
