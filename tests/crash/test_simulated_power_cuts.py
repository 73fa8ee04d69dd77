"""The power is cut at every change of the disk: storage keeps its promises, whatever happens to unsynced bytes.

tests/sim/test_planted_faults.py plants the bugs that these cuts once found, each under a seed that still finds it.
"""

import logging
from collections.abc import Iterator

import pytest
from barnabas.storage.log_manager import LogManager
from simulator import storage
from simulator.disk import PowerLoss
from simulator.env import sim_env


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_cut_at_every_change_of_a_short_life() -> None:
    assert storage.run(1, steps=20, fates=("lost", "torn")) > 200


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", range(2, 7))
def test_cuts_here_and_there_in_longer_lives(seed: int) -> None:
    assert storage.run(seed, steps=60, keep_every=23) > 50


def test_a_data_directory_is_durable_once_it_is_used() -> None:
    env = sim_env()
    manager = LogManager(env, "/a/b/data", storage.BrokerConfig.of({}), lambda topic: {"flush.messages": "1"})
    manager.start()
    log = manager.get_or_create("t", 0, storage.TOPIC_ID)
    storage.append_one(log)
    env.disk.crash("lost")
    again = LogManager(env, "/a/b/data", storage.BrokerConfig.of({}), lambda topic: {"flush.messages": "1"})
    again.start()
    found = again.get("t", 0)
    assert found is not None
    assert found.log_end_offset == 1


@pytest.mark.parametrize(
    ("operation", "step"),
    [
        ("write", "append"),
        ("sync", "flush"),
        ("rename", "compaction"),
        ("truncate", "truncate followed"),
        ("rename", "checkpoint"),
        ("rename", "delete a topic"),
        ("rename", "retention"),
        ("write", "transaction"),
        ("remove", "clean restart"),
        ("sync", "shutdown"),
    ],
)
def test_the_workload_uses_everything(operation: str, step: str) -> None:
    points = (point for seed in range(1, 13) for point in storage.Workload(seed).crash_points(focus=step))
    assert any(point.operation.startswith(f"{operation} ") for point in points)


def test_power_is_lost_where_it_was_said() -> None:
    env = sim_env()
    env.disk.make_directory("/d")
    env.disk.lose_power_at(env.disk.operations + 1)
    env.disk.open("/d/a", create=True)
    with pytest.raises(PowerLoss):
        env.disk.open("/d/b", create=True)
