from itertools import pairwise

import pytest
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import ITEMS_PER_TURN, Turns
from barnabas.sim.env import sim_env


@pytest.fixture
def env():
    return sim_env(1)


def counting(log, name, pieces):
    for number in range(pieces):
        log.append((name, number))
        yield
    return name


@pytest.mark.parametrize(("items", "is_at_once"), [(-1, True), (0, True), (1, False)])
def test_little_is_done_at_once_and_much_in_turns(env, items, is_at_once):
    log = []
    result = Turns(env.clock).run(counting(log, "a", 3), ITEMS_PER_TURN + items)
    assert (result == "a") is is_at_once
    assert len(log) == (3 if is_at_once else 0)
    if not is_at_once:
        assert env.run(result) == "a"
        assert len(log) == 3


def test_works_take_turns_and_others_come_between(env):
    turns = Turns(env.clock)
    log = []

    def look():
        log.append("others")
        if len(log) < 30:
            env.clock.call_soon(look)

    async def story():
        works = [env.clock.loop.create_task(turns.run(counting(log, name, 3), 10**6)) for name in "ab"]
        env.clock.call_soon(look)
        assert [await work for work in works] == ["a", "b"]

    env.run(story())
    assert [entry for entry in log if entry != "others"] == [(n, i) for i in range(3) for n in "ab"]
    assert all(earlier == "others" or later == "others" for earlier, later in pairwise(log))


def test_a_work_whose_client_went_away_is_left(env):
    turns = Turns(env.clock)
    log = []

    async def story():
        gone, stays = (env.clock.loop.create_task(turns.run(counting(log, name, 5), 10**6)) for name in "ab")
        while ("a", 1) not in log:
            await env.clock.sleep(0)
        gone.cancel()
        assert await stays == "b"

    env.run(story())
    assert [entry for entry in log if entry[0] == "a"] == [("a", 0), ("a", 1)]


def test_an_error_reaches_whoever_waits(env):
    def broken():
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        env.run(Turns(env.clock).run(broken(), 10**6))


def test_pieces_that_must_wait_wait_together(env):
    begun = []

    def act(piece):
        pending = Pending()
        begun.append(pending)
        env.clock.call_later(1000, lambda: pending.complete([10 * item for item in piece]))
        return pending

    items = list(range(2 * ITEMS_PER_TURN + 1))
    before = env.clock.monotonic_ms()
    assert env.run(Turns(env.clock).collect(items, act)) == [10 * item for item in items]
    assert len(begun) == 3
    assert env.clock.monotonic_ms() - before == 1000
