"""The folder on the path: its tests and its command share `broker_process.py` and `kill_load.py`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts processes, all on one directory. None of them may log a traceback."""
    from broker_process import Process

    started: list[Process] = []

    def start(data: Path = tmp_path / "data", **options: Any) -> Process:
        started.append(Process(data, **options))
        return started[-1]

    yield start
    for process in started:
        process.end()
    for log in {process.log for process in started}:
        assert "Traceback" not in log.read_text()
