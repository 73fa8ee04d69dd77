"""Brokers on a real ZooKeeper. Without Java or ZooKeeper's jars these tests are skipped, and say so."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "crash")]

import zookeeper_server  # noqa: E402
from zookeeper_server import ZooKeeperServer  # noqa: E402


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper that the test may stop, pause and start again."""
    if zookeeper_server.class_path() is None:
        pytest.skip(zookeeper_server.why_not())
    pytest.importorskip("kazoo", reason="kazoo is not installed")
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path, server: ZooKeeperServer) -> Iterator[Callable[..., Any]]:
    """Starts brokers whose tree is in the server. None of them may log a traceback."""
    from broker_process import Process

    started: list[Process] = []

    def start(data: Path = tmp_path / "data", session_ms: int = 2_000, **options: Any) -> Process:
        settings = {
            "zookeeper.connect": f"{server.address}/barnabas",
            "zookeeper.session.timeout.ms": str(session_ms),
            **options.pop("settings", {}),
        }
        started.append(Process(data, settings=settings, **{"log_level": "info", **options}))
        return started[-1]

    yield start
    for process in started:
        process.end()
    for log in {process.log for process in started}:
        text = log.read_text()
        print(text[-6000:])  # pytest shows it when the test has failed
        assert "Traceback" not in text
