"""How long tasks share a pass of the loop. In virtual time a pass has room for PIECES_PER_PASS pieces."""

from itertools import pairwise

import pytest
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import BUDGET_MS, FIRST_MS, ended
from simulator.clock import PIECES_PER_PASS, WORK_STEP_MS
from simulator.env import sim_env

AT_ONCE = int(FIRST_MS / WORK_STEP_MS)


@pytest.fixture
def env():
    return sim_env(1)


def counting(log, name, pieces):
    for number in range(pieces):
        log.append((name, number))
        yield
    return name


def watch(env, log, marks=1000):
    """Write a mark into the log once in each pass of the loop: this is when others are served."""

    def look():
        log.append("others")
        if log.count("others") < marks:
            env.clock.call_soon(look)

    env.clock.call_soon(look)


def passes_of(log):
    """What was done in each pass."""
    passes = [[]]
    for entry in log:
        if entry == "others":
            passes.append([])
        else:
            passes[-1].append(entry)
    return passes


@pytest.mark.parametrize(("pieces", "is_at_once"), [(0, True), (1, True), (AT_ONCE - 1, True), (AT_ONCE, False)])
def test_little_is_done_at_once_and_much_in_turns(env, pieces, is_at_once):
    log = []

    async def story():
        result = env.turns.run(counting(log, "a", pieces))
        assert (result == "a") is is_at_once
        if not is_at_once:
            assert await ended(result) == "a"

    env.run(story())
    assert len(log) == pieces


@pytest.mark.parametrize("works", [1, 2, 50, 3 * PIECES_PER_PASS])
def test_a_pass_has_one_budget_however_many_works_there_are(env, works):
    log, ended = [], []
    for name in range(works):
        env.turns.begin(counting(log, name, 20), ended.append)
    watch(env, log)
    env.clock.advance(1)
    assert sorted(ended) == list(range(works))
    assert max(map(len, passes_of(log))) <= PIECES_PER_PASS
    assert [entry for entry in log if entry[0] == 0] == [(0, number) for number in range(20)]


def test_requests_of_the_same_pass_share_its_budget(env):
    log = []

    async def story():
        watch(env, log)
        much = [env.turns.run(counting(log, name, 1000)) for name in range(20)]
        assert [await ended(each) for each in much] == list(range(20))

    env.run(story())
    assert max(map(len, passes_of(log))) <= PIECES_PER_PASS + 20  # the look after the last piece costs as well


def test_a_short_work_is_not_held_up_by_long_ones(env):
    log = []
    for name in range(10):
        env.turns.begin(counting(log, name, 10_000))
    env.turns.begin(counting(log, "short", 10), lambda _: log.append("short has ended"))
    watch(env, log)
    env.clock.advance(1)
    before = log[: log.index("short has ended")]
    assert before.count("others") <= 2


def test_a_piece_that_takes_longer_than_the_budget_is_alone_in_its_pass(env):
    log = []

    def heavy(name):
        for number in range(5):
            for _ in range(2 * PIECES_PER_PASS):
                env.clock.work_ms()
            log.append((name, number))
            yield

    env.turns.begin(heavy("a"))
    env.turns.begin(heavy("b"))
    watch(env, log)
    env.clock.advance(1)
    assert [len(work) for work in passes_of(log) if work] == [1] * 10
    assert [name for work in passes_of(log) for name, _ in work] == ["a", "b"] * 5


def test_a_coroutine_rests_when_it_has_worked_for_long(env):
    log = []

    async def much(name):
        await env.turns.take()
        pace = env.turns.pace()
        for number in range(200):
            await pace.rest()
            log.append((name, number))
        return name

    async def story():
        watch(env, log)
        tasks = [env.clock.loop.create_task(much(name)) for name in "abcdef"]
        assert [await task for task in tasks] == [*"abcdef"]

    env.run(story())
    runs = passes_of(log)
    assert max(map(len, runs)) <= PIECES_PER_PASS
    assert len([work for work in runs if work]) >= 1_200 // PIECES_PER_PASS


def test_a_work_whose_client_went_away_is_left(env):
    log = []

    async def story():
        gone, stays = (env.turns.run(counting(log, name, 5 * PIECES_PER_PASS)) for name in "ab")
        gone.cancel()
        assert await ended(stays) == "b"

    env.run(story())
    assert 0 < len([entry for entry in log if entry[0] == "a"]) <= PIECES_PER_PASS


def test_a_work_may_be_cancelled_from_its_own_piece(env):
    log, ended = [], []

    def pieces():
        for number in range(10):
            log.append(number)
            if number == 3:
                work.cancel()
            yield

    work = env.turns.begin(pieces(), ended.append)
    env.clock.advance(1)
    assert log == [0, 1, 2, 3]
    assert ended == []


def broken(pieces):
    for _ in range(pieces):
        yield
    raise ZeroDivisionError


@pytest.mark.parametrize("pieces", [AT_ONCE - 1, 10 * PIECES_PER_PASS])
def test_an_error_reaches_the_one_who_waits(env, pieces):
    async def story():
        await ended(env.turns.run(broken(pieces)))

    with pytest.raises(ZeroDivisionError):
        env.run(story())


def test_an_error_ends_one_work_and_no_other(env):
    said, failed, log, ended = [], [], [], []
    env.clock.loop.set_exception_handler(lambda loop, context: said.append(context["exception"]))
    env.turns.begin(counting(log, "a", 500), ended.append)
    env.turns.begin(broken(5))
    env.turns.begin(broken(5), failed=failed.append)
    env.turns.begin(counting(log, "b", 5), ended.append)
    env.clock.advance(1)
    assert ended == ["b", "a"]
    assert [type(error) for error in (*said, *failed)] == [ZeroDivisionError] * 2


def test_what_is_done_at_the_end_may_begin_another_work(env):
    log = []
    env.turns.begin(counting(log, "a", 2), lambda _: env.turns.begin(counting(log, "b", 2)))
    env.clock.advance(1)
    assert log == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_the_same_works_are_done_in_the_same_order(env):
    def story(env):
        log = []
        for name in range(7):
            env.turns.begin(counting(log, name, 100 * name))
        watch(env, log)
        env.clock.advance(1)
        return log

    assert story(env) == story(sim_env(2))
    assert any(earlier == "others" != later for earlier, later in pairwise(story(sim_env(3))))


def test_a_real_pass_is_a_few_milliseconds():
    assert 0 < FIRST_MS < BUDGET_MS <= 5


def test_a_work_that_waits_is_sent_what_it_waited_for(env):
    log = []
    later, already, cancelled = Pending(), Pending(), Pending()
    already.complete("at once")

    def waiting():
        log.append((yield later))
        log.append((yield already))
        yield
        return "end"

    def given_up():
        yield cancelled
        log.append("never")

    async def story():
        result = env.turns.run(waiting())
        env.clock.call_later(1000, lambda: later.complete("later"))
        work = env.turns.begin(given_up())
        await env.clock.sleep(1)
        work.cancel()
        cancelled.complete(None)
        log.append(await ended(result))

    before = env.clock.work_ms()
    env.run(story())
    assert log == ["later", "at once", "end"]
    assert env.clock.work_ms() - before < 20 * WORK_STEP_MS, "it was looked at only when it could go on"


def test_who_waits_for_a_work_learns_that_what_the_work_waits_for_failed(env):
    later = Pending()

    def waiting():
        yield later

    heard = []
    result = env.turns.run(waiting())
    result.on_failure = heard.append
    result.then(heard.append)
    error = ValueError("planted")
    later.fail(error)
    env.clock.advance(1)
    assert heard == [error]
