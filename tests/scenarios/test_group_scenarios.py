"""Every conversation in groups/*.txt goes as written there. After a wanted change: pytest tests/scenarios --update,
then read the diff."""

from pathlib import Path

import pytest
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
