"""When a disk will be full, by what was free at each look."""

import pytest
from barnabas.storage.disk_space import ENOUGH_MS, LOOK_MS, SPAN_MS, FreeSpace, filling

MINUTE = 60_000
GIB = 1 << 30


def looks(*free: float) -> list[tuple[int, int]]:
    """One look each minute, in GiB."""
    return [(minute * MINUTE, int(each * GIB)) for minute, each in enumerate(free)]


@pytest.mark.parametrize("minutes", [0, 1, 9])
def test_too_little_is_known(minutes: int) -> None:
    points = looks(*range(20, 20 - minutes - 1, -1))
    assert filling(points, minutes * MINUTE) == (None, None, minutes * 60)
    assert filling([], 0) == (None, None, 0)


def test_a_disk_that_fills() -> None:
    found = filling(looks(*range(20, 9, -1)), 10 * MINUTE)
    assert found.bytes_per_second == pytest.approx(GIB / 60)
    assert found.full_in_seconds == pytest.approx(600)
    assert found.known_seconds * 1000 == ENOUGH_MS


@pytest.mark.parametrize(
    "free",
    [
        [20.0] * 15,  # nothing happens
        [20, 20, 18, 14, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10],  # a copy that has ended
        [10, 11, 12, 13, 14, 15, 16, 17, 16, 15, 14, 13, 12, 11, 10],  # retention has taken more than was written
        [20, 19, 18, 17, 16, 15, 14, 13, 14, 15, 16, 17, 18, 19, 20],  # and now it does
    ],
)
def test_a_disk_that_does_not_fill(free: list[float]) -> None:
    assert filling(looks(*free), 14 * MINUTE).full_in_seconds is None


def test_the_slower_rate_counts() -> None:
    faster = filling(looks(20, 20, 20, 20, 20, 20, 19, 18, 17, 16, 15), 10 * MINUTE)
    assert faster.full_in_seconds == pytest.approx(15 / (5 / 600))


def test_what_is_old_does_not_count_and_memory_is_bounded() -> None:
    space = FreeSpace()
    for number in range(3 * SPAN_MS // int(LOOK_MS)):
        space.add(number * int(LOOK_MS), number)
    points = space.points
    assert len(points) <= 2 * SPAN_MS // int(LOOK_MS) + 1
    found = filling(points, points[-1][0])
    assert found.known_seconds * 1000 == SPAN_MS


def test_a_clock_that_is_set_back_begins_anew() -> None:
    space = FreeSpace()
    space.add(2_000, 7)
    space.add(1_000, 6)
    assert list(space.points) == [(1_000, 6)]
