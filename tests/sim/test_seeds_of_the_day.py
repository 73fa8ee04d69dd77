"""Seeds that nobody has run before: the date (UTC) decides which, and in which world. A failure prints the line that
repeats it."""

import shlex
from datetime import UTC, datetime

import pytest
from simulator.__main__ import main

WORLDS = {
    "": 2,
    "--journal": 1,
    "--transactions": 1,
    "--live-resets": 5,
    "--retention": 5,
    "--rights": 1,
    "--tree-accidents": 1,
    "--old-disks": 1,
    "--brokers 3": 1,
    "--brokers 3 --overlap": 1,
    "--brokers 3 --transactions": 1,
}
TODAY = int(f"{datetime.now(UTC):%Y%m%d}")


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Run the simulation with these words; returns the line that repeats it, or nothing if it holds."""
    monkeypatch.setattr("sys.argv", ["sim", *words])
    return f"again: python -m simulator {shlex.join(words)}" if main() else ""


@pytest.mark.takes_turns("world")
@pytest.mark.parametrize("world", WORLDS)
def test_fresh_seeds_hold(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(WORLDS[world]):
        repeat = run(monkeypatch, "--seed", f"{TODAY}{number}", "--minutes", "0.5", *world.split())
        assert not repeat, repeat


def test_one_that_fails_gives_the_line_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "everybody gets the leader's assignment"
    repeat = run(monkeypatch, "--seed", "1", "--minutes", "0.5", "--fault", fault)
    assert repeat == f"again: python -m simulator --seed 1 --minutes 0.5 --fault {shlex.quote(fault)}"
