"""Every conversation in groups/*.txt goes as written there. After a wanted change: pytest tests/scenarios --update,
then read the diff."""

from pathlib import Path
from typing import Any

import pytest
from barnabas.coordinators.groups.consumer import heartbeats
from barnabas.coordinators.groups.consumer.reconciliation import reconcile
from barnabas.coordinators.groups.consumer.states import MOVES, MemberState
from group_runner import play, scenario_files


@pytest.mark.parametrize("path", scenario_files(), ids=lambda path: path.stem)
def test_conversation(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text()
    played = play(text)
    if pytestconfig.getoption("--update", default=False):
        path.write_text(played)
    else:
        assert played.splitlines() == text.splitlines()


def test_there_are_conversations_and_they_expect_something() -> None:
    assert len(scenario_files()) >= 10
    for path in scenario_files():
        assert any(line.startswith("> ") for line in path.read_text().splitlines()), path


def test_members_of_the_consumer_protocol_take_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[MemberState, set[MemberState]] = {state: set() for state in MemberState}

    def watched(current: Any, *rest: Any, **options: Any) -> Any:
        step = reconcile(current, *rest, **options)
        if step.state is not current.state:
            seen[current.state].add(step.state)
        return step

    monkeypatch.setattr(heartbeats, "reconcile", watched)
    for path in scenario_files():
        play(path.read_text())
    later = MemberState.UNKNOWN  # only in the logs of a later release
    assert {state: seen[state] for state in MOVES if state is not later} == {
        state: steps for state, steps in MOVES.items() if state is not later
    }
