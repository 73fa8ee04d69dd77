"""Storage loses power at every change of the disk, and whatever becomes of the unsynced bytes, it holds."""

import logging
from collections.abc import Iterator

import pytest
from barnabas.sim import storage
from barnabas.sim.disk import PowerLoss
from barnabas.sim.env import sim_env
from barnabas.storage.log_manager import LogManager


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_cut_at_every_change_of_a_short_life() -> None:
    assert storage.run(1, steps=20, fates=("lost", "torn")) > 200


@pytest.mark.parametrize("seed", range(2, 6))
def test_cuts_here_and_there_in_longer_lives(seed: int) -> None:
    assert storage.run(seed, steps=60, keep_every=23) > 50


@pytest.mark.parametrize(
    ("seed", "steps", "keep_every", "found"),
    [
        (2, 60, 7, "a snapshot of records that were cut came back"),
        (6, 60, 11, "new batches under the old indexes; a durable record gave way to one that was lost"),
        (8, 60, 7, "a producer whose batch straddles the log start was forgotten"),
        (9, 60, 7, "the time index of a flushed log was empty after a clean stop"),
        (10, 60, 7, "the name of the first segment was lost, that of the second was not"),
    ],
)
def test_seeds_that_once_failed(seed: int, steps: int, keep_every: int, found: str) -> None:
    storage.run(seed, steps, keep_every)


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
