"""Tests import other_broker.py from tests/unit/cluster/, and replication_world.py from tests/unit/replication/."""

import sys
from pathlib import Path

import pytest
from barnabas.sim.env import sim_env

for folder in ("cluster", "replication"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))


@pytest.fixture
def env():
    return sim_env(7)
