"""A cluster of three brokers under one seed: it holds, and the same seed gives the same trace."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from simulator import cluster_world
from simulator.clients.cluster_producer import ClusterProducer
from simulator.cluster_weather import ClusterWeather
from simulator.cluster_world import ClusterWorld
from simulator.ledger import TopicPartition

SEEDS = range(1, 5)
TESTS = Path(__file__).parents[1]
QUIET_SEED = 4


@cache
def run(seed: int) -> cluster_world.ClusterVerdict:
    return cluster_world.run(seed, minutes=0.3)


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_in_bad_weather_keeps_its_promises(seed: int) -> None:
    verdict = run(seed)
    assert verdict.violation is None, str(verdict)
    assert verdict.answers > 500  # the clients have asked for much, and were answered
    assert len(verdict.history.events) > 1_000
    assert sum(verdict.troubles.values()) > 0


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", [1, 3])
def test_a_cluster_whose_disks_are_full_for_a_while_keeps_its_promises(seed: int) -> None:
    lines: list[str] = []
    verdict = cluster_world.run(seed, 0.3, lines.append, kinds=("full disk",))
    assert verdict.violation is None, str(verdict)
    for what in ("is full", "moving their leadership", "can be written again"):
        assert any(what in line for line in lines), what


def test_in_quiet_times_things_happen_by_the_clock() -> None:
    lines: list[str] = []
    verdict = cluster_world.run(QUIET_SEED, 0.05, lines.append, quiet_hours=0.6)
    assert verdict.violation is None, str(verdict)
    assert verdict.quiet_ms == pytest.approx(2_160_000)
    assert 0 < verdict.bad_ms < verdict.virtual_ms - verdict.quiet_ms
    for what in ("retention deleted", "compacted up to", "offsets expired"):
        assert any(what in line for line in lines), what
    assert sum(line.count("weather: ") - line.count("calm") for line in lines) > 1  # there was trouble too


@pytest.mark.parametrize("seed", [3247532])  # an empty tree, and a broker that another trouble cuts off from it
def test_two_troubles_that_came_together_and_failed_hold(seed: int) -> None:
    verdict = cluster_world.run(seed, minutes=1, overlaps=True)
    assert verdict.violation is None, str(verdict)


def test_the_same_seed_gives_the_same_trace_byte_for_byte(tmp_path: Path) -> None:
    words = ["--seed", "3", "--brokers", "3", "--transactions", "--minutes", "0.1"]
    traces = []
    for hash_seed in ("1", "77"):
        path = tmp_path / hash_seed
        command = [sys.executable, "-m", "simulator", *words, "--trace", str(path)]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, check=True, env=environment, capture_output=True, cwd=TESTS)
        assert b"cluster-hours per processor-hour" in done.stdout
        traces.append(path.read_bytes())
    assert len(traces[0]) > 10_000
    assert traces[0] == traces[1]


def test_the_kinds_of_trouble_can_be_chosen() -> None:
    world = ClusterWorld(1, kinds=("kill", "cut"))
    assert world.weather.names == ("kill", "cut")
    with pytest.raises(ValueError, match="no such kind of trouble: earthquake; there are: kill, "):
        ClusterWeather(world, world.rng, ("earthquake",))


def test_unsynced_power_cuts_wait_until_all_replicas_are_in_sync() -> None:
    seed = next(seed for seed in range(1, 50) if not ClusterWorld(seed).is_synced)
    world = ClusterWorld(seed, minutes=0.5, kinds=("power", "kill"))
    in_sync: list[bool] = []
    lose_power = world.lose_power

    def note_and_lose(host: object) -> None:
        in_sync.append(world.are_all_in_sync())
        lose_power(host)  # type: ignore[arg-type]

    world.lose_power = note_and_lose  # type: ignore[method-assign, assignment]
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    assert in_sync
    assert all(in_sync)


def test_a_producer_that_is_started_anew_has_nothing_more_to_send() -> None:
    world = ClusterWorld(1)
    producer = ClusterProducer(world, "producer", [("t", 0), ("t", 1)])
    producer.producer_id = 7
    producer._batches = {key: [producer._make_batch(key)] for key in producer.keys}
    sent: list[TopicPartition] = []

    async def lose_place(key: TopicPartition) -> bool:
        sent.append(key)
        producer._restart("has lost its place")
        return False

    producer._send = lose_place  # type: ignore[method-assign]
    world.clock.loop.run_until_complete(producer.turn())
    assert sent == [("t", 0)]


@pytest.mark.takes_turns("acks")
@pytest.mark.parametrize(("acks", "seed"), [(1, 1), (0, 3)])
def test_a_cluster_whose_commits_do_not_wait_for_replicas_keeps_its_weaker_promise(acks: int, seed: int) -> None:
    """A leader change may take commits. No offset is invented, and what is committed in the calm at the end stays."""
    verdict = cluster_world.run(seed, minutes=0.3, acks=acks)
    assert verdict.violation is None, str(verdict)
    assert verdict.answers > 500
    assert sum(verdict.troubles.values()) > 0
