"""What a start waits for before its ready line."""

import asyncio
from types import SimpleNamespace
from typing import Any

from barnabas.cli import ready
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.protocol.messages import UpdateMetadataRequest
from simulator.env import sim_env

TOPIC, REPLICAS = "__consumer_offsets", 3


class Brokers:
    """A broker of a cluster whose topic needs three. The first try that finds so many makes it."""

    def __init__(self) -> None:
        self.env = sim_env(1)
        self.metadata_cache = MetadataCache(self.env.clock)
        self.auto_topics = self
        self.replica_manager = SimpleNamespace(refusals=SimpleNamespace(causes={}))

    def tell(self, *live: int, has_topic: bool = False) -> None:
        """UpdateMetadata with these brokers."""
        state = UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=0, leader=0)
        topic = UpdateMetadataRequest.UpdateMetadataTopicState(topic_name=TOPIC, partition_states=[state])
        brokers = [UpdateMetadataRequest.UpdateMetadataBroker(id=each, endpoints=[]) for each in live]
        topics = [topic] if has_topic else []
        self.metadata_cache.update(UpdateMetadataRequest(live_brokers=brokers, topic_states=topics))

    def missing_brokers(self, name: str) -> int:
        return max(REPLICAS - len(self.metadata_cache.brokers), 0)

    async def make(self, name: str) -> None:
        if not self.missing_brokers(name):
            self.tell(*range(REPLICAS), has_topic=True)

    def waited_ms(self) -> float:
        began_ms = self.env.clock.monotonic_ms()
        broker: Any = self

        async def wait() -> bool:
            return await ready.is_made_unless_stopped(broker, TOPIC, asyncio.Event())

        assert self.env.run(wait())
        return self.env.clock.monotonic_ms() - began_ms


def test_the_last_broker_that_registers_is_enough() -> None:
    world = Brokers()
    world.tell(0)
    world.env.clock.call_later(30, lambda: world.tell(0, 1))
    world.env.clock.call_later(40, lambda: world.tell(0, 1, 2))
    assert world.waited_ms() == 40


def test_another_broker_may_make_the_topic() -> None:
    world = Brokers()
    world.tell(0, 1)
    world.env.clock.call_later(30, lambda: world.tell(0, 1, has_topic=True))
    assert world.waited_ms() == 30
