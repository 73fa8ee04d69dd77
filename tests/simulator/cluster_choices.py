"""What the sequences of troubles have in common: how they choose whom to strike, and how they wait for something."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import ControllerNode, PartitionState, TopicAssignment
from barnabas.replication.partition import Partition

from simulator.ledger import TopicPartition

if TYPE_CHECKING:
    from simulator.cluster_weather import ClusterWeather
    from simulator.cluster_world import ClusterWorld
    from simulator.host import Host

LOOK_MS = 5.0


class Choices:
    """The world, and its weather's random choices."""

    def __init__(self, world: "ClusterWorld", weather: "ClusterWeather") -> None:
        self._world = world
        self._weather = weather
        self._rng = weather.rng

    # -- who

    def _a_led_partition(
        self, topic: str | None = None, leads: "Callable[[TopicPartition, Host], bool]" = lambda key, host: True
    ) -> "tuple[TopicPartition, Host, list[Host]] | None":
        """A partition, its leader and its other replicas; None: there is none with a leader."""
        hosts = self._world.hosts
        led = [
            (key, state.leader)
            for key, state in sorted(self._world.states().items())
            if state.leader >= 0 and topic in (None, key[0]) and leads(key, hosts[state.leader])
        ]
        if not led:
            return None
        key, leader = self._rng.choice(led)
        return key, hosts[leader], [host for node, host in hosts.items() if node != leader]

    async def _a_led_partition_in_sync(self) -> "tuple[TopicPartition, Host, list[Host]] | None":
        """The same, at a time when a machine may lose its power."""
        return self._a_led_partition() if await self._weather.wait_until_in_sync() else None

    def _controller(self) -> "Host | None":
        node = self._world.tree.find(paths.CONTROLLER)
        return None if node is None else self._world.hosts[ControllerNode.decode(node.data).broker_id]

    def _node(self, host: "Host") -> int:
        return next(node for node, other in self._world.hosts.items() if other is host)

    def _state(self, key: TopicPartition) -> PartitionState | None:
        """What the tree says of a partition."""
        node = self._world.tree.find(paths.partition_state(*key))
        return None if node is None else PartitionState.decode(node.data)

    def _isr(self, key: TopicPartition) -> tuple[int, ...]:
        state = self._state(key)
        return () if state is None else state.isr

    def _replicas(self, key: TopicPartition) -> tuple[int, ...]:
        """Its assignment: the preferred leader first."""
        node = self._world.tree.find(paths.topic(key[0]))
        return () if node is None else tuple(TopicAssignment.decode(node.data).partitions.get(key[1], ()))

    @staticmethod
    def _replica(host: "Host", key: TopicPartition) -> Partition | None:
        """A broker's replica of a partition."""
        life = host.life
        return None if life is None else life.broker.replica_manager.partitions.get(key)

    # -- what is done

    async def _sleep(self, low_ms: float, high_ms: float) -> None:
        await self._world.clock.sleep(self._rng.uniform(low_ms, high_ms))

    async def _until(self, holds: Callable[[], Any], within_ms: float) -> bool:
        """Whether something has come true in time."""
        give_up_ms = self._world.clock.monotonic_ms() + within_ms
        while not holds():
            if self._world.clock.monotonic_ms() >= give_up_ms:
                return False
            await self._world.clock.sleep(LOOK_MS)
        return True

    def _kill(self, host: "Host") -> None:
        self._world.note(f"{host.name} is killed")
        host.kill()

    async def _bring_up(self, *hosts: "Host") -> None:
        for host in hosts:
            await self._world.bring_up(host)
