"""A campaign goes on through seeds and through violations, and counts only hours that held."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from simulator import campaign
from simulator.__main__ import main

PLAN = campaign.Plan(0.1, 3, (), False, 0.0)
HELD = campaign.Result(1, "seed 1: holds", None, 2.0, 0.5, 1.0, 3, 1_000, 0.01)
VIOLATED = campaign.Result(2, "seed 2: VIOLATED no gap: at 7", "no gap: at 7", 1.5, 0.5, 0.5, 2, 900, 0.03)


def test_hours_of_a_seed_that_was_violated_do_not_count() -> None:
    totals = campaign.Totals().plus(HELD).plus(VIOLATED).plus(HELD._replace(seed=3))
    assert totals == campaign.Totals(2, 1, 4.0, 1.0, 2.0, 6, 2_000, pytest.approx(0.05))
    assert "80 cluster-hours per processor-hour" in str(totals)


def test_a_violation_is_written_and_the_next_seed_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def results(*arguments: Any) -> Iterator[campaign.Result]:
        yield from (VIOLATED, HELD)

    monkeypatch.setattr(campaign, "_results", results)
    path = tmp_path / "violations"
    totals = campaign.run((2, 1), PLAN, 60, 1, str(path))
    assert (totals.seeds, totals.violated) == (1, 1)
    assert "seed 2: VIOLATED no gap: at 7" in path.read_text()
    assert "after 1.5000 h" in path.read_text()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines[:2]] == ["seed 2: VIOLATED no gap: at 7", "seed 1: holds"]


def test_no_seed_begins_after_the_time() -> None:
    assert campaign.run(count(1), PLAN, 0.0, 1, None) == campaign.Totals()


@pytest.mark.timeout(900)  # two runs of a few seconds each, if nothing else runs
def test_the_command_runs_seeds_and_prints_their_hours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "NICENESS", 0)  # a campaign gives way to all others, and a test may not wait for ever
    command = "sim --campaign --brokers 3 --seeds 1-2 --minutes 0.02 --quiet-hours 0 --processes 2"
    monkeypatch.setattr("sys.argv", command.split())
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(";")[0] for line in lines[:2]) == ["seed 1: holds", "seed 2: holds"]
    assert lines[2].startswith("2 seeds held, 0 violated: ")
    assert "0.00 quiet" in lines[2]
