"""Fixtures over replication_world.py, which tests import from this folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from barnabas.cluster.tree.embedded import EmbeddedCoordination
from replication_world import Host
from simulator.env import sim_env


@pytest.fixture
def env():
    return sim_env(7)


@pytest.fixture
def host(env):
    """Bare: no tree, told by hand."""
    host = Host(env, EmbeddedCoordination(env, ":memory:"))
    host.start_bare()
    return host


@pytest.fixture
def alone(env):
    """A cluster of one, started."""
    host = Host(env, EmbeddedCoordination(env, ":memory:"))
    env.run(host.start_alone())
    yield host
    env.run(host.stop())
