"""Troubles of a cluster in which a request arrives late: its sender has lost the connection, and has sent it again.

Meanwhile something else was decided, or another one decides, or the receiver has forgotten what the request says that
it has. The epochs in a request tell that it is out of date; these sequences make requests for which one of them alone
tells it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.cluster.tree import paths
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Message
from barnabas.protocol.messages import ElectLeadersRequest, LeaderAndIsrRequest, StopReplicaRequest

from simulator.clients.connection import LostError
from simulator.clients.phoenix import Phoenix
from simulator.clients.routed import Routed
from simulator.clients.visitor import Visitor
from simulator.cluster_choices import Choices
from simulator.history import OFFSETS_TOPIC
from simulator.ledger import TopicPartition
from simulator.tree_service import TREE

if TYPE_CHECKING:
    from simulator.cluster_weather import ClusterWeather, Happening
    from simulator.cluster_world import ClusterWorld
    from simulator.host import Host
    from simulator.network import SimTransport

SLOW_MS = 3_000.0  # of a way on which a request is to be met


class LateFrames(Choices):
    """The sequences, by name, with how often each comes."""

    def __init__(self, world: "ClusterWorld", weather: "ClusterWeather") -> None:
        super().__init__(world, weather)
        self.kinds: dict[str, tuple[int, Happening]] = {
            "late ISR change": (1, self._late_isr_change),
            "ISR change by a former controller": (1, self._former_controller),
            "late election": (1, self._late_election),
            "late word to a former session": (1, self._late_word),
            "late deletion": (1, self._late_deletion),
            "late fetch of a former life": (1, self._late_fetch),
        }

    def _requests(self, source: "Host", target: "Host") -> "list[SimTransport]":
        """The connections that one broker has made to another."""
        if source.life is None:
            return []
        address = (target.name, self._world.port)
        return [each for each in self._world.network.owned(source.life) if each.remote == address]

    def _part(self, transports: "list[SimTransport]") -> Callable[[], None]:
        """Lose these connections. What is under way on them arrives when the result is called."""
        arrivals = [transport.part() for transport in transports]

        def arrive() -> None:
            self._world.note(f"what was under way on {len(arrivals)} lost connections arrives")
            for each in arrivals:
                each()

        return arrive

    def _lag_ms(self) -> float:
        """A follower that has not fetched has left the ISR by then."""
        return 2.0 * int(next(iter(self._world.hosts.values())).settings["replica.lag.time.max.ms"])

    def _three_apart(self, topic: str | None = None) -> "tuple[TopicPartition, Host, Host, Host] | None":
        """A partition with all in sync; its leader and its follower, which are not the controller; the controller."""
        controller = self._controller()
        found = self._a_led_partition(
            topic, lambda key, leader: leader is not controller and len(self._isr(key)) == len(self._world.hosts)
        )
        if found is None or controller is None or not self._world.all_serve:
            return None
        key, leader, others = found
        return key, leader, next(host for host in others if host is not controller), controller

    async def _late_isr_change(self) -> None:
        """A leader has taken a follower into the ISR, and out again, when the first of these requests comes twice."""
        network, found = self._world.network, self._three_apart()
        if found is None:
            return
        key, leader, follower, controller = found
        node = self._node(follower)
        away, to_controller = (follower.name, leader.name), (leader.name, controller.name)
        if await self._proposes_again(key, leader, follower, controller):
            arrive = self._part(self._requests(leader, controller))
            network.unblock(*to_controller)
            await self._until(lambda: node in self._isr(key), 3_000)
            await self._sleep(0, 500)
            network.block(*away)
            await self._until(lambda: node not in self._isr(key), self._lag_ms())
            await self._sleep(0, 300)
            arrive()
            await self._sleep(1_000, 3_000)
        network.unblock(*away)
        network.unblock(*to_controller)

    async def _proposes_again(self, key: TopicPartition, leader: "Host", follower: "Host", controller: "Host") -> bool:
        """Whether a leader asks to take a follower into the ISR, which has been out of it, and does not get through."""
        network, node = self._world.network, self._node(follower)
        away = (follower.name, leader.name)
        self._world.note(f"{follower.name} does not reach {leader.name}, the leader of {key}")
        network.block(*away)
        has_left = await self._until(lambda: node not in self._isr(key), self._lag_ms())
        if has_left:
            network.block(leader.name, controller.name)
        network.unblock(*away)

        def is_proposed() -> bool:
            replica = self._replica(leader, key)
            return replica is not None and replica.pending_isr is not None and node in replica.pending_isr.isr

        if not has_left or not await self._until(is_proposed, 3_000):
            return False
        await self._sleep(10, 50)
        return True

    async def _former_controller(self) -> None:
        """Somebody has removed `/controller`. The former controller has not heard of it, and gets an ISR to write."""
        world, network, found = self._world, self._world.network, self._three_apart()
        if found is None:
            return
        key, leader, follower, controller = found
        if await self._proposes_again(key, leader, follower, controller):
            arrive = self._part(self._requests(leader, controller))
            network.block(TREE, controller.name)
            world.note(f"/controller, which says {controller.name}, is removed by hand")
            if leader.life is not None:
                await asyncio.wait([leader.life.spawn(leader.life.coordination.delete(paths.CONTROLLER))])
            await self._until(lambda: self._controller() not in (None, controller), world.tree.session_timeout_ms)
            await self._sleep(20, 200)
            arrive()
        network.unblock(leader.name, controller.name)
        await self._sleep(100, 1_000)
        network.unblock(TREE, controller.name)

    async def _late_election(self) -> None:
        """A broker has led while another one was away; it hears of that once more when the other one leads again."""
        world, network, controller = self._world, self._world.network, self._controller()

        def is_led_by_the_first(key: TopicPartition, leader: "Host") -> bool:
            replicas = self._replicas(key)
            return len(self._isr(key)) == len(replicas) == len(world.hosts) and (
                world.hosts[replicas[0]],
                world.hosts[replicas[2]],
            ) == (leader, controller)

        found = self._a_led_partition(None, is_led_by_the_first)
        if found is None or controller is None or not world.all_serve:
            return
        key, leader, _ = found
        other = world.hosts[self._replicas(key)[1]]
        world.note(f"{other.name} will lead {key}, and {controller.name}, the controller, does not reach it")
        way = (controller.name, other.name)
        network.extra_latency_ms[way] = SLOW_MS

        def elections() -> "list[SimTransport]":
            return [each for each in self._requests(controller, other) if _is_under_way(each, _leads(key))]

        self._kill(leader)
        arrive: Callable[[], None] | None = None
        if await self._until(elections, 2 * world.tree.session_timeout_ms):
            arrive = self._part(elections())
        network.extra_latency_ms.pop(way, None)
        await self._bring_up(leader)
        await self._until(world.are_all_in_sync, 20_000)
        operator = Routed(world, "operator")
        try:
            request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=5_000)
            await operator.ask(ApiKey.ELECT_LEADERS, 2, request, 10_000)
        except LostError as error:
            world.note(f"{operator.name} lost: {error}")
        operator.hang_up()
        await self._sleep(0, 1_000)
        if arrive is not None:
            arrive()
        await self._sleep(1_000, 3_000)

    async def _late_word(self) -> None:
        """A leader has lost its session, and another one leads, when it hears what the controller said before that."""
        world, network, found = self._world, self._world.network, self._three_apart(OFFSETS_TOPIC)
        if found is None:
            return
        key, leader, third, controller = found
        node, third_node = self._node(leader), self._node(third)
        timeout_ms = world.tree.session_timeout_ms
        world.note(f"{controller.name}, the controller, does not reach {leader.name} when {third.name} dies")
        deaf = (controller.name, leader.name)
        network.extra_latency_ms[deaf] = 100_000.0
        self._kill(third)
        await self._until(lambda: third_node not in self._isr(key), 2 * timeout_ms)
        await self._sleep(20, 100)
        arrive = self._part(self._requests(controller, leader))
        to_tree = ((leader.name, TREE), (TREE, leader.name))
        for pair in to_tree:
            network.block(*pair)
        world.spawn(world.bring_up(third))
        await self._until(lambda: (state := self._state(key)) and state.leader not in (node, -1), 3 * timeout_ms)
        await self._until(lambda: third_node in self._isr(key), 10_000)
        await self._sleep(1_000, 4_000)  # clients commit at the new leader
        session = None if leader.life is None else leader.life.coordination.session_id
        for pair in to_tree:
            network.unblock(*pair)

        def has_registered() -> bool:
            life, registered = leader.life, world.tree.find(paths.broker(node))
            return (
                life is not None
                and registered is not None
                and registered.owner == life.coordination.session_id != session
            )

        await self._until(has_registered, 2 * timeout_ms)
        await self._sleep(20, 100)
        arrive()
        visitor = Visitor(world, leader)
        await visitor.look_at_groups(5)
        visitor.hang_up()
        network.extra_latency_ms.pop(deaf, None)
        for transport in (*self._requests(controller, leader), *self._requests(leader, controller)):
            network.reset(transport)  # what is under way there, requests or answers, would take too long
        await self._bring_up(third)

    async def _late_deletion(self) -> None:
        """A topic is deleted and made again, and then a request of the first deletion comes, by a lost connection.

        The controller has sent it once more; or it has died, and another one has deleted the topic.
        """
        world, network, controller = self._world, self._world.network, self._controller()
        phoenix = Phoenix(world, "operator")
        if controller is None or not await phoenix.make():
            return
        await phoenix.write(3)
        controller = self._controller()
        if controller is None:
            return
        other = self._rng.choice([host for host in world.hosts.values() if host is not controller])
        way = (controller.name, other.name)
        network.extra_latency_ms[way] = 200.0

        def deletes() -> "list[SimTransport]":
            return [each for each in self._requests(controller, other) if _is_under_way(each, _deletes)]

        world.spawn(phoenix.delete())
        arrive: Callable[[], None] | None = None
        if await self._until(deletes, 5_000):
            arrive = self._part(deletes())
        network.extra_latency_ms.pop(way, None)
        if self._rng.random() < 0.5:
            self._kill(controller)
            await self._until(lambda: self._controller() not in (None, controller), 2 * world.tree.session_timeout_ms)
            await self._bring_up(controller)
            await phoenix.delete()
        if await phoenix.make_again():
            await phoenix.write(3)
        if arrive is not None:
            arrive()
        await self._sleep(500, 2_000)
        phoenix.hang_up()

    async def _late_fetch(self) -> None:
        """A follower that is not in sync loses its log. Its fetch of before comes when it is registered again."""
        world, network = self._world, self._world.network
        found = await self._a_led_partition_in_sync()
        if found is None or not world.all_serve:
            return
        key, leader, others = found
        follower = self._rng.choice(others)
        node = self._node(follower)
        from_leader, to_leader = (leader.name, follower.name), (follower.name, leader.name)
        world.note(f"{follower.name} hears nothing of {leader.name}, the leader of {key}")
        network.block(*from_leader)
        arrive: Callable[[], None] | None = None
        if await self._until(lambda: node not in self._isr(key), self._lag_ms()):
            network.extra_latency_ms[to_leader] = SLOW_MS
            network.unblock(*from_leader)

            def has_all() -> bool:
                mine, its = self._replica(follower, key), self._replica(leader, key)
                return mine is not None and its is not None and mine.log_end_offset >= its.high_watermark

            if await self._until(has_all, 20_000):
                await self._sleep(0, 500)
                arrive = self._part(self._requests(follower, leader))
        network.unblock(*from_leader)
        network.extra_latency_ms.pop(to_leader, None)
        network.block(*to_leader)
        world.lose_power(follower)
        world.spawn(world.bring_up(follower))
        epoch_path = paths.broker(node)
        before = world.tree.find(epoch_path)
        await self._until(
            lambda: (now := world.tree.find(epoch_path)) is not None and (before is None or now.owner != before.owner),
            3 * world.tree.session_timeout_ms,
        )
        await self._sleep(50, 500)
        if arrive is not None:
            arrive()
            await self._sleep(500, 1_000)
        network.unblock(*to_leader)
        await self._bring_up(follower)
        await self._weather.wait_until_in_sync()


def _is_under_way(transport: "SimTransport", is_it: Callable[[Message], bool]) -> bool:
    """Whether a request has been written, and has not arrived."""
    return any(is_it(frames.decode_request(memoryview(chunk)[4:])[1]) for chunk in transport.under_way)


def _deletes(request: Message) -> bool:
    return isinstance(request, StopReplicaRequest) and any(
        state.delete_partition for topic in request.topic_states for state in topic.partition_states
    )


def _leads(key: TopicPartition) -> Callable[[Message], bool]:
    def has_it(request: Message) -> bool:
        return isinstance(request, LeaderAndIsrRequest) and any(
            (topic.topic_name, state.partition_index) == key
            for topic in request.topic_states
            for state in topic.partition_states
        )

    return has_it
