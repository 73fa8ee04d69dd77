"""A whole broker with its clients under one seed: it holds, and the same seed gives the same trace."""

import os
import subprocess
import sys
import zlib
from functools import cache, reduce
from pathlib import Path

import pytest
from barnabas.broker import crowds
from simulator import last_look, world
from simulator.violation import Violation

TESTS = Path(__file__).parents[1]
SEEDS = (4, 13, 22, 32, 33)  # in these the operator does everything


@cache
def run(seed: int) -> world.Verdict:
    return world.run(seed, minutes=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_in_bad_weather_keeps_its_promises(seed: int) -> None:
    verdict = run(seed)
    assert verdict.violation is None, str(verdict)
    assert verdict.answers > 300  # the clients have asked for much, and were answered
    assert verdict.acknowledgements > 100
    assert verdict.commits > 50
    assert verdict.assignments > 0


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", [1, 4])
def test_so_it_does_when_every_join_and_sync_waits_for_its_turn(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "AT_ONCE_MAX", 0)
    verdict = world.run(seed, minutes=1)
    assert verdict.violation is None, str(verdict)
    assert verdict.assignments > 0


def test_the_operator_does_everything_in_these_runs() -> None:
    done = {deed: sum(run(seed).deeds[deed] for seed in SEEDS) for deed in run(SEEDS[0]).deeds}
    assert len(done) >= 9
    assert [deed for deed, times in done.items() if not times] == []


def test_the_same_seed_gives_the_same_trace_byte_for_byte(tmp_path: Path) -> None:
    """In another process, whose sets of texts have another order."""
    words = ["--seed", "4", "--minutes", "1", "--trace", str(tmp_path / "trace")]
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    command = [sys.executable, "-m", "simulator", *words]
    subprocess.run(command, check=True, env=environment, capture_output=True, cwd=TESTS)
    lines = (tmp_path / "trace").read_text().splitlines()
    assert len(lines) > 1_000
    assert reduce(lambda digest, line: zlib.crc32(line.encode(), digest), lines, 0) == run(4).digest


def test_a_violation_is_told_with_its_seed_and_the_last_events(monkeypatch: pytest.MonkeyPatch) -> None:
    async def give_up(*what: object) -> None:
        raise Violation("planted", "at the end")

    monkeypatch.setattr(last_look, "check_groups", give_up)
    verdict = world.run(1, minutes=0.1)
    assert str(verdict).startswith("seed 1: VIOLATED planted: at the end\n  last events:\n")
    assert verdict.events[-1].endswith("VIOLATED planted: at the end")
    assert [float(event.split()[0]) for event in verdict.events] == sorted(
        float(event.split()[0]) for event in verdict.events
    )
