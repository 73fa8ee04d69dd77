"""Tests import controller_world.py from here, and modules from tests/unit/cluster/ and tests/unit/replication/."""

import sys
from pathlib import Path

import pytest
from simulator.env import sim_env

for folder in ("cluster", "replication", "controller"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))


@pytest.fixture
def env():
    return sim_env(7)


@pytest.fixture
def cluster(env):
    """A controller with three brokers that are channels."""
    from controller_world import Cluster

    cluster = Cluster(env)
    env.run(cluster.start())
    yield cluster
    env.run(cluster.controller.stop())
    env.run(cluster.tree.close())
