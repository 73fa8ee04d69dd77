"""A topic whose deletion ends while a client asks for it."""

from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker.api import topics
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.tree import paths
from simulator.env import sim_env

TIMEOUT_MS = 10_000


class Tree:
    """The nodes of one topic. They go when `reads` more reads have been answered."""

    def __init__(self, nodes: set[str], reads: int) -> None:
        self._nodes = nodes
        self._reads = reads

    async def exists(self, path: str) -> object | None:
        found = path in self._nodes
        self._reads -= 1
        if not self._reads:
            self._nodes.clear()
        return True if found else None


@pytest.mark.parametrize("reads", [1, 2])
def test_nobody_waits_for_a_topic_whose_deletion_has_ended(reads: int) -> None:
    env = sim_env()
    begin_ms = env.clock.monotonic_ms()
    nodes = {paths.topic("t"), paths.delete_topic("t")}
    broker: Any = SimpleNamespace(metadata_cache=MetadataCache(env.clock), coordination=Tree(nodes, reads))
    assert env.run(topics.exists(broker, "t", TIMEOUT_MS)) is False
    assert env.clock.monotonic_ms() == begin_ms
