"""Three broker processes on one coordination file, and on a real ZooKeeper (tests/zookeeper/).

Processes and their blocking client are those of tests/crash/.

What is about sessions and elections runs on both each day, and the other tests take turns (tests/turns.py).
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.cli.shared.kafka_python import take_up_every_assignment

take_up_every_assignment()
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))
sys.path.insert(0, str(Path(__file__).parent.parent / "zookeeper"))


ON_BOTH_EACH_DAY = ("test_controller", "test_pauses", "test_three_brokers", "test_two_dead")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the tests take turns."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.stem not in ON_BOTH_EACH_DAY:
            item.add_marker(pytest.mark.takes_turns("make_cluster", "trees", "kafka"))


@pytest.fixture
def zookeeper_or_skip() -> Callable[[], None]:
    """Skips a test that wants a ZooKeeper of its own where there is none."""

    def check() -> None:
        import zookeeper_server

        if zookeeper_server.class_path() is None:
            pytest.skip(zookeeper_server.why_not())
        pytest.importorskip("kazoo", reason="kazoo is not installed")

    return check


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running ZooKeeper."""
    import zookeeper_server

    if zookeeper_server.class_path() is None:
        pytest.skip(zookeeper_server.why_not())
    pytest.importorskip("kazoo", reason="kazoo is not installed")
    server = zookeeper_server.ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts supervisors (`barnabas start --brokers`). Nothing of them may be left behind."""
    from supervised import Supervised

    made: list[Supervised] = []

    def start_one(*words: str) -> Supervised:
        made.append(Supervised(tmp_path, *words))
        return made[-1]

    yield start_one
    for one in made:
        if one.process.poll() is None:
            one.end()
        assert "Traceback" not in one.log.read_text()


@pytest.fixture(params=["embedded", "zookeeper"])
def make_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts clusters. None of their brokers may log a traceback."""
    from cluster import Cluster

    made: list[Cluster] = []
    server = request.getfixturevalue("zookeeper") if request.param == "zookeeper" else None

    def make(own_data: dict[int, Path] | None = None, **settings: str) -> Cluster:
        """`own_data`: where a broker has its logs, if not beside the others."""
        place = None if server is None else f"{server.address}/{tmp_path.name}"
        cluster = Cluster(tmp_path, {name.replace("_", "."): text for name, text in settings.items()}, place)
        for node_id, folder in (own_data or {}).items():
            cluster.own[node_id] = {"log.dirs": str(folder)}
        made.append(cluster)
        cluster.start_all()
        return cluster

    yield make
    for cluster in made:
        cluster.end()
    for cluster in made:
        for log in cluster.logs():
            assert "Traceback" not in log, log[-6000:]
