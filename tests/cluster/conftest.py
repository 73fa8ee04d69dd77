"""Three broker processes on one coordination file. Processes and their blocking client are those of tests/crash/."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts clusters. None of their brokers may log a traceback."""
    from cluster import Cluster

    made: list[Cluster] = []

    def make(**settings: str) -> Cluster:
        cluster = Cluster(tmp_path, {name.replace("_", "."): text for name, text in settings.items()})
        made.append(cluster)
        cluster.start_all()
        return cluster

    yield make
    for cluster in made:
        cluster.end()
    for cluster in made:
        for log in cluster.logs():
            assert "Traceback" not in log, log[-6000:]
