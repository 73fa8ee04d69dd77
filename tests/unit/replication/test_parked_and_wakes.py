"""Parked waiters and the wakes that serve them."""

import pytest
from barnabas.replication.parked import Parked
from barnabas.replication.wakes import Wakes
from simulator.env import sim_env


def release_all(parked, offset):
    released = []
    while (waiter := parked.release_first(offset)) is not None:
        waiter(released)
    return released


def parked_at(parked, *offsets):
    return {offset: parked.park(offset, lambda out, offset=offset: out.append(offset)) for offset in offsets}


def test_released_in_offset_order_however_they_came():
    parked = Parked()
    parked_at(parked, 5, 9, 7, 1)
    assert parked.count == 4
    assert release_all(parked, 6) == [1, 5]
    assert release_all(parked, 6) == []
    assert release_all(parked, 9) == [7, 9]
    assert parked.count == 0


@pytest.mark.parametrize(("offset", "released"), [(4, []), (5, [5]), (6, [5])])
def test_the_offset_itself_is_enough(offset, released):
    parked = Parked()
    parked_at(parked, 5)
    assert release_all(parked, offset) == released


def test_cancelled_waiters_are_never_called_and_are_swept():
    parked = Parked()
    tickets = parked_at(parked, *range(100))
    for offset in range(99):
        tickets[offset].cancel()
    assert parked.count == 1
    assert len(parked._tickets) <= 2, "swept"
    tickets[0].cancel()  # again: harmless
    assert release_all(parked, 1_000) == [99]
    tickets[99].cancel()  # after the release: harmless
    assert parked.count == 0


def test_take_all():
    parked = Parked()
    tickets = parked_at(parked, 1, 2)
    tickets[1].cancel()
    assert len(parked.take_all()) == 1
    assert parked.count == 0


class Sleeper:
    def __init__(self, on_wake=None):
        self.marked = False
        self.woken = 0
        self.on_wake = on_wake

    def wake(self):
        self.woken += 1
        if self.on_wake is not None:
            self.on_wake()


def test_marked_often_woken_once_and_not_inside_the_transition():
    env = sim_env()
    wakes = Wakes(env.clock)
    sleeper = Sleeper()
    wakes.mark(sleeper)
    wakes.mark(sleeper)
    assert sleeper.woken == 0
    env.clock.advance(0)
    assert sleeper.woken == 1
    wakes.mark(sleeper)
    env.clock.advance(0)
    assert sleeper.woken == 2


def test_what_a_waiter_marks_is_served_in_the_next_pass():
    env = sim_env()
    wakes = Wakes(env.clock)
    order = []
    late = Sleeper(lambda: order.append("late"))
    first = Sleeper(lambda: (order.append("first"), wakes.mark(late)))
    second = Sleeper(lambda: order.append("second"))
    wakes.mark(first)
    wakes.mark(second)
    env.clock.advance(0)
    assert order == ["first", "second", "late"]


def test_one_bug_does_not_cost_the_others_their_turn():
    env = sim_env()
    wakes = Wakes(env.clock)

    def bug():
        broken.on_wake = None
        raise ValueError("a bug")

    broken = Sleeper(bug)
    other = Sleeper()
    wakes.mark(broken)
    wakes.mark(other)
    with pytest.raises(ValueError, match="a bug"):
        wakes.flush()
    env.clock.advance(0)
    assert other.woken == 1
