"""Every background loop of a broker, by the table of its upkeep: none dies of an exception or of a lost wake-up."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.broker import Broker
from barnabas.config.broker import BrokerConfig
from barnabas.runtime.upkeep import LATE_MS, LOOK_MS, Task
from simulator.env import SimEnv, sim_env

SHORT_MS = 5_000
LOOPS = {
    *("retention", "indexes", "flush", "files", "room", "disk space", "producers", "troubles", "cleaner"),
    *("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"),
    *(
        "cleaner-offset-checkpoint",
        "idle connections",
        "disk refusals",
        "isr shrink",
        "led states",
        "replica fetchers",
        "isr changes",
        "log failure notices",
        "controller",
    ),
    *(
        "controller",
        "leader balance",
        "config changes",
        "features",
        "coordination",
        "group timers",
        "offset expiry",
        "offset journal",
        "lease",
        "lapse of the lease",
        "lag",
        "waited groups",
        "late transactions",
        "idle transactional ids",
        "tree mark",
        "undecided partitions",
        "open files",
    ),
}


@pytest.fixture
def env() -> SimEnv:
    return sim_env(3)


@pytest.fixture
def broker(env: SimEnv, tmp_path: Path) -> Broker:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:9092", "coordination.path": str(tmp_path / "tree.sqlite")}
    broker = Broker(env, BrokerConfig.of(settings), "/data")
    env.run(broker.start())
    assert broker.transactions.coordinator.is_active, "it is made when it is asked for"
    return broker


def looked_at(env: SimEnv, broker: Broker, name: str) -> Task[Any]:
    """The task of that name, which runs often from now on: hours of everything else would say nothing of it."""
    task = next(task for task in env.upkeep.tasks if task.name == name)
    interval_ms = min(task.interval_ms(), SHORT_MS)
    task.interval_ms = lambda: interval_ms
    task.run_soon()
    env.clock.advance(100)
    return task


def works(env: SimEnv, broker: Broker, topic: str) -> bool:
    """Whether a topic can be made: the controller, the tree and the storage have to take part."""

    async def create() -> None:
        broker.auto_topics.create(topic)

    env.run(create())
    env.clock.advance(1_000)
    return broker.log_manager.get(topic, 0) is not None


def test_the_table_has_every_loop(env: SimEnv, broker: Broker) -> None:
    names = [task.name for task in env.upkeep.tasks]
    assert sorted(names) == sorted(LOOPS)
    env.run(broker.stop())
    assert env.upkeep.tasks == []
    assert env.upkeep.timer is None


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_an_exception_of_one_item_ends_no_loop(
    env: SimEnv, broker: Broker, name: str, is_awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    task = looked_at(env, broker, name)
    planted = 0
    acted: list[str] = []
    before = task.rounds

    def fail(original: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*given: Any) -> Any:
            nonlocal planted
            if planted < 3:
                planted += 1
                raise ValueError("planted")
            return original(*given)

        return failing

    broken = fail(lambda: None)
    items, act = task.items, task.act

    async def awaited(item: str) -> None:
        await env.clock.sleep(1.0)
        broken() if item == "broken" else acted.append(item)

    task.items = lambda: ["broken", "whole"]
    task.act = awaited if is_awaited else lambda item: broken() if item == "broken" else acted.append(item)
    with caplog.at_level(logging.INFO, "barnabas.upkeep"):
        env.clock.advance(5 * SHORT_MS)
    assert (planted, task.failures) == (3, 3)
    assert "planted" in caplog.text
    assert caplog.text.count("ValueError: planted") == 1, "said once"
    assert task.rounds - before >= 3
    assert 0 <= len(acted) - (task.rounds - before) <= is_awaited, "the other item has its turn in each round"
    assert "broken: recovered" in caplog.text
    task.items, task.act = items, act
    assert works(env, broker, "new")
    env.run(broker.stop())


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_a_lost_wake_up_ends_no_loop(env: SimEnv, broker: Broker, name: str, caplog: pytest.LogCaptureFixture) -> None:
    task = looked_at(env, broker, name)
    before = task.rounds
    assert task.timer is not None
    task.timer.cancel()
    env.clock.advance(task.interval_ms() + LATE_MS + 2 * LOOK_MS)
    assert task.rounds > before
    assert task.restarts == (name != "controller"), "that has events meanwhile, and each begins a round"
    assert (f"{name} did not run in time" in caplog.text) is (name != "controller")
    assert works(env, broker, "new")
    env.run(broker.stop())


@pytest.mark.parametrize("name", ["controller", "log failure notices", "config changes"])
def test_an_event_that_never_ends_ends_no_loop(env: SimEnv, broker: Broker, name: str) -> None:
    task = next(task for task in env.upkeep.tasks if task.name == name)

    async def hang(*_: Any, **__: Any) -> None:
        await env.clock.sleep(1e12)

    if name == "controller":
        broker.controller._enqueue(hang)
    elif name == "log failure notices":
        original = broker.coordination.create
        broker.coordination.create = hang  # type: ignore[assignment]
        broker.replica_manager._log_failures.add()
    else:
        read = broker.config_changes._notices._read
        broker.config_changes._notices._read = hang  # type: ignore[method-assign]
        broker.config_changes._notices._changes.add()
    env.clock.advance(1_000)
    if name == "log failure notices":
        broker.coordination.create = original  # type: ignore[method-assign]
    elif name == "config changes":
        broker.config_changes._notices._read = read  # type: ignore[method-assign]
    assert task.restarts == 0
    env.clock.advance(task.wait_max_ms + LATE_MS + 3 * LOOK_MS)
    assert task.restarts == 1
    assert list(task.items()) == [], "what it was behind with is done"
    assert works(env, broker, "new")
    env.run(broker.stop())


def test_the_timer_of_the_supervisor_is_not_needed_either(env: SimEnv, broker: Broker) -> None:
    assert env.upkeep.timer is not None
    env.upkeep.timer.cancel()
    task = next(task for task in env.upkeep.tasks if task.name == "retention")
    assert task.timer is not None
    task.timer.cancel()
    env.clock.advance(task.interval_ms() + LATE_MS + 2 * LOOK_MS)
    assert task.restarts == 1
    env.run(broker.stop())


def test_a_process_that_stood_still_starts_nothing_again(env: SimEnv, broker: Broker) -> None:
    env.clock.loop.now += 3_600
    env.clock.advance(60_000)
    assert [task.restarts for task in env.upkeep.tasks] == [0] * len(LOOPS)
    env.run(broker.stop())


def test_work_that_waits_is_told_when_and_a_completion_that_never_comes_holds_it_up_no_longer(env: SimEnv) -> None:
    from barnabas.runtime.pending import Pending

    waits: list[Pending[str]] = []
    told: list[str] = []

    def act(item: str) -> Any:
        try:
            waits.append(Pending())
            told.append((yield waits[-1]))
            yield 2_000.0
            told.append("later")
        finally:
            told.append("ended")

    task = env.upkeep.every("waiting", lambda: 1_000.0, lambda: ["item"], act)
    env.clock.advance(1_100)
    waits[0].complete("value")
    env.clock.advance(1_000)
    assert told == ["value"]
    env.clock.advance(1_500)
    assert told == ["value", "later", "ended"]
    env.clock.advance(400_000)
    assert task.restarts == 1
    assert told[3:] == ["ended"]
    assert len(waits) == 3
    waits[1].complete("too late")
    waits[2].complete("in time")
    env.clock.advance(10)
    assert told[4:] == ["in time"]
    task.stop()
    assert told[5:] == ["ended"]


def test_a_coroutine_is_awaited_before_the_next_item_and_ends_with_its_task(env: SimEnv) -> None:
    told: list[str] = []

    async def act(item: str) -> None:
        told.append(f"{item} begins")
        try:
            await env.clock.sleep(1e12 if item == "hangs" and len(told) > 3 else 1_000.0)
            told.append(f"{item} is done")
        finally:
            told.append(f"{item} ends")

    task = env.upkeep.every("awaiting", lambda: 1_000.0, lambda: ["hangs", "other"], act)
    env.clock.advance(2_500)
    assert told == ["hangs begins", "hangs is done", "hangs ends", "other begins"]
    task.run_soon()
    env.clock.advance(1_600)
    assert told[4:] == ["other is done", "other ends", "hangs begins"], "rounds do not overlap"
    env.clock.advance(task.wait_max_ms + LATE_MS + 2 * LOOK_MS)
    assert task.restarts == 1
    assert told[7:] == ["hangs ends", "hangs begins"], "the supervisor cancels what takes too long"
    task.stop()
    env.clock.advance(0)
    assert told[9:] == ["hangs ends"]
    assert env.upkeep.timer is None


@pytest.mark.parametrize(("interval_ms", "slack_ms"), [(25, 0), (100, 28), (1_000, 250), (60_000, 250)])
def test_a_round_may_begin_a_little_later_with_those_of_others(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch, interval_ms: float, slack_ms: float
) -> None:
    asked = []

    def call_later(delay_ms: float, callback: Callable[[], None], slack_ms: float = 0.0) -> Any:
        asked.append((delay_ms, slack_ms))
        return real(delay_ms, callback)

    real = env.clock.call_later
    monkeypatch.setattr(env.clock, "call_later", call_later)
    task = env.upkeep.every("task", lambda: interval_ms, list, lambda item: None)
    assert asked[-1] == (interval_ms, pytest.approx(slack_ms))
    task.run_soon()
    assert asked[-1] == (0.0, 0.0), "who has work does not wait"
    task.stop()
