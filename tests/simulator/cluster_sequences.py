"""Troubles of a cluster that belong together: the second one strikes where the first one has left its mark.

Each trouble by itself is harmless to most mistakes. A follower that was away is dangerous when its leader dies before
it has caught up; a leader that was paused, when it goes on while another one leads already. By chance this hardly ever
comes together, so each of these sequences has a name.
"""

from typing import TYPE_CHECKING

from barnabas.coordinators.coordinator import partition_for

from simulator.clients.phoenix import Phoenix
from simulator.clients.visitor import Visitor
from simulator.cluster_choices import LOOK_MS, Choices
from simulator.coordination import Fate
from simulator.history import OFFSETS_TOPIC
from simulator.ledger import TopicPartition
from simulator.tree_service import TREE

if TYPE_CHECKING:
    from simulator.cluster_weather import ClusterWeather, Happening
    from simulator.cluster_world import ClusterWorld
    from simulator.host import Host


class Sequences(Choices):
    """The sequences, by name, with how often each comes."""

    def __init__(self, world: "ClusterWorld", weather: "ClusterWeather") -> None:
        super().__init__(world, weather)
        self.kinds: dict[str, tuple[int, Happening]] = {
            "leader dies before a follower is back": (2, self._kill_follower_then_leader),
            "leader goes on behind another": (2, self._resume_behind_another),
            "controller is struck in its writes": (2, self._strike_the_controller_in_its_writes),
            "restart beside the former session": (2, self._restart_beside_the_former_session),
            "power of a follower and then the leader": (2, self._lose_follower_then_leader),
            "power of a leader after all sessions": (2, self._lose_leader_after_all_sessions),
            "stop with a slow follower": (1, self._stop_with_a_slow_follower),
            "topic made again": (1, self._make_a_topic_again),
            "slow coordinator": (2, self._slow_the_coordinator),
            "leaders come and go": (2, self._change_leaders_without_followers),
            "leaders with unlike followers": (1, self._change_leaders_with_unlike_followers),
        }

    # -- followers and leaders

    async def _kill_follower_then_leader(self) -> None:
        """A follower that was away is there again, but perhaps not in the ISR yet, when the leader dies."""
        found = self._a_led_partition()
        if found is None:
            return
        world, (key, leader, others) = self._world, found
        follower, third = self._rng.sample(others, 2) if len(others) > 1 else (others[0], others[0])
        node = next(node for node, host in world.hosts.items() if host is follower)
        self._kill(follower)
        if self._rng.random() < 0.5:
            # What waits for the follower is committed when it has left the ISR. The third broker hears of that later.
            for _ in range(2_000):
                state = world.states().get(key)
                if state is None or node not in state.isr:
                    break
                await world.clock.sleep(LOOK_MS)
            await self._sleep(0, 300)
            self._kill(leader)
            await self._bring_up(follower, leader)
            return
        await self._sleep(0, 2 * world.tree.session_timeout_ms)
        world.spawn(world.bring_up(follower))
        for _ in range(self._rng.randint(0, 400)):
            if follower.is_up:
                break
            await world.clock.sleep(LOOK_MS)
        if self._rng.random() < 0.5:  # what the leader has appended last is nowhere else
            world.network.block(leader.name, third.name)
            await self._sleep(0, 1_000)
        self._kill(leader)
        world.network.unblock(leader.name, third.name)
        await self._sleep(0, 2 * world.tree.session_timeout_ms)
        await self._bring_up(leader, follower)

    async def _change_leaders_without_followers(self) -> None:
        """Each leader has records that its followers do not have when it dies; leaders follow each other quickly."""
        world = self._world
        for _ in range(self._rng.randint(2, 4)):
            found = self._a_led_partition()
            if found is None or not found[1].is_up:
                await self._sleep(100, 1_000)
                continue
            _, leader, others = found
            for other in others:  # nobody fetches from it; clients still write
                world.network.block(leader.name, other.name)
            await self._sleep(100, 1_500)
            self._kill(leader)
            for other in others:
                world.network.unblock(leader.name, other.name)
            await self._sleep(0, 1.5 * world.tree.session_timeout_ms)
            await self._bring_up(leader)
            await self._sleep(0, 1_000)

    async def _change_leaders_with_unlike_followers(self) -> None:
        """The second leader lacks the last epoch of the first one, which the third leader has.

        So the second and the third one each have an epoch that the other one does not know (KIP-279).
        """
        world, network = self._world, self._world.network

        def is_led_by_the_first(key: TopicPartition, leader: "Host") -> bool:
            replicas = self._replicas(key)
            return len(self._isr(key)) == len(replicas) == len(world.hosts) and world.hosts[replicas[0]] is leader

        found = self._a_led_partition(None, is_led_by_the_first)
        if found is None or not world.all_serve:
            return
        key, first, _ = found
        second, third = (world.hosts[node] for node in self._replicas(key)[1:])
        begun_ms = 2 * world.tree.session_timeout_ms
        self._kill(third)  # which begins an epoch
        await self._until(lambda: self._node(third) not in self._isr(key), begun_ms)
        world.note(f"of the new epoch of {first.name}, the leader of {key}, {second.name} gets nothing")
        network.block(first.name, second.name)
        await self._bring_up(third)
        await self._until(lambda: self._node(third) in self._isr(key), 2_000)
        await self._sleep(200, 800)
        network.block(second.name, third.name)
        self._kill(first)
        network.unblock(first.name, second.name)
        await self._until(lambda: self._is_led_by(key, second), begun_ms)
        await self._sleep(300, 1_500)
        self._kill(second)
        network.unblock(second.name, third.name)
        await self._until(lambda: self._is_led_by(key, third), begun_ms)
        await self._sleep(0, 500)
        await self._bring_up(first, second)
        await self._sleep(0, 2_000)

    def _is_led_by(self, key: TopicPartition, host: "Host") -> bool:
        state = self._state(key)
        return state is not None and state.leader == self._node(host)

    async def _resume_behind_another(self) -> None:
        """A leader stands still until another one is elected, and goes on at once: requests wait in its sockets."""
        found = self._a_led_partition()
        if found is None:
            return
        world, (key, leader, others) = self._world, found
        controller = self._controller()
        if controller is not None and self._rng.random() < 0.4:  # it goes on behind another controller, too
            led = [(k, s) for k, s in sorted(world.states().items()) if world.hosts.get(s.leader) is controller]
            if led:
                key, leader = self._rng.choice(led)[0], controller
                others = [host for host in world.hosts.values() if host is not controller]
        node = next(node for node, host in world.hosts.items() if host is leader)
        isolated = self._rng.random() < 0.5  # from the tree: it does not hear at once that its session is over
        world.note(f"{leader.name}, the leader of {key}, is paused until another one leads")
        leader.pause()
        give_up_ms = world.clock.monotonic_ms() + 3 * world.tree.session_timeout_ms
        while world.clock.monotonic_ms() < give_up_ms:
            state = world.states().get(key)
            if state is not None and state.leader not in (node, -1):
                break
            await world.clock.sleep(LOOK_MS)
        await self._sleep(0, 300)  # the other one may have acknowledged something already
        pairs = [(leader.name, TREE), (TREE, leader.name)]
        if isolated:
            pairs += [pair for other in others for pair in ((leader.name, other.name), (other.name, leader.name))]
            for pair in pairs:
                world.network.block(*pair)
        leader.resume()
        world.note(f"{leader.name} goes on")
        await self._sleep(0, 2_000)
        if isolated:
            for pair in pairs:
                world.network.unblock(*pair)
        await self._sleep(0, 2_000)

    async def _lose_follower_then_leader(self) -> None:
        """A follower loses what it had not synced; then the leader dies, which loses nothing, perhaps by power, too."""
        world, found = self._world, await self._a_led_partition_in_sync()
        if found is None:
            return
        _, leader, others = found
        follower = self._rng.choice(others)
        world.lose_power(follower)
        if self._rng.random() < 0.5:
            world.spawn(world.bring_up(follower))
        await self._sleep(0, self._rng.choice((50.0, 1_000.0, 2 * world.tree.session_timeout_ms)))
        if world.is_synced and self._rng.random() < 0.5:
            world.lose_power(leader)
        else:
            self._kill(leader)
        await self._sleep(0, 2 * world.tree.session_timeout_ms)
        if self._rng.random() < 0.5:
            leader, follower = follower, leader
        world.spawn(world.bring_up(leader))
        await self._bring_up(follower)
        await self._weather.wait_until_in_sync()

    async def _lose_leader_after_all_sessions(self) -> None:
        """The tree counts nobody as alive; a leader that lost what it had not synced is the first to come back."""
        world, found = self._world, await self._a_led_partition_in_sync()
        if found is None:
            return
        (_, leader, others), timeout_ms = found, world.tree.session_timeout_ms
        pairs = {host: ((host.name, TREE), (TREE, host.name)) for host in (leader, *others)}
        world.note("all are cut off from the tree")
        for both in pairs.values():
            for pair in both:
                world.network.block(*pair)
        await self._sleep(0, 1.1 * timeout_ms)  # for a part of it, leaders still acknowledge
        world.lose_power(leader)
        await self._sleep(1.1 * timeout_ms, 2 * timeout_ms)
        for pair in pairs[leader]:
            world.network.unblock(*pair)
        world.spawn(world.bring_up(leader))
        for host in others:
            await self._sleep(0, self._rng.choice((100.0, 0.5 * timeout_ms)))
            for pair in pairs[host]:
                world.network.unblock(*pair)
        await self._bring_up(leader)
        await self._weather.wait_until_in_sync()

    async def _stop_with_a_slow_follower(self) -> None:
        """A leader stops in order under load, and a follower is far away."""
        found = self._a_led_partition()
        if found is None:
            return
        world, (_, leader, others) = self._world, found
        slow = self._rng.choice(others)
        pair = (leader.name, slow.name) if self._rng.random() < 0.5 else (slow.name, leader.name)
        if self._rng.random() < 0.5:  # it is the far one that stops: what it has fetched is told late
            leader = slow
        is_whole = world.is_whole()
        world.network.extra_latency_ms[pair] = self._rng.choice((100.0, 500.0, 2_000.0))
        await self._sleep(0, 3_000)
        world.note(f"{leader.name} is stopped; {pair[0]} -> {pair[1]} takes {world.network.extra_latency_ms[pair]} ms")
        await world.stop(leader)
        if is_whole:
            world.inspector.note_stopped(next(node for node, host in world.hosts.items() if host is leader))
        await self._sleep(0, 3_000)
        await self._bring_up(leader)
        world.network.extra_latency_ms.pop(pair, None)

    # -- the controller

    async def _strike_the_controller_in_its_writes(self) -> None:
        """One of the writes that a broker's death makes necessary is the last that the controller does for a while.

        It dies; or it stands still until another controller is elected; or it is cut off from the tree for so long.
        """
        world, controller = self._world, self._controller()
        if controller is None:
            return
        victim = self._rng.choice([host for host in world.hosts.values() if host is not controller])
        strike = self._rng.choice(("kill", "pause", "cut"))
        writes_left = self._rng.randint(0, 4)
        takes_effect = self._rng.random() < 0.7
        has_struck = False
        before = world.tree.fate
        both = ((controller.name, TREE), (TREE, controller.name))

        def act() -> None:
            world.note(f"{controller.name}, the controller, meets a {strike} in its writes")
            if strike == "kill":
                controller.kill()
            elif strike == "pause":
                controller.pause()
            else:
                for pair in both:
                    world.network.block(*pair)

        def fate(machine: str, name: str) -> Fate:
            nonlocal writes_left, has_struck
            if machine == controller.name and name == "multi" and not has_struck:
                writes_left -= 1
                if writes_left < 0:
                    has_struck = True
                    act()
                    return before(machine, name) if takes_effect else Fate.LOST_BEFORE
            return before(machine, name)

        world.tree.fate = fate
        self._kill(victim)
        if self._rng.random() < 0.5:
            await self._sleep(0, 500)
            world.spawn(world.bring_up(victim))
        for _ in range(40):
            if has_struck:
                break
            await world.clock.sleep(world.tree.session_timeout_ms / 20)
        world.tree.fate = before
        if has_struck and strike != "kill":
            for _ in range(1_000):
                if self._controller() not in (None, controller):
                    break
                await world.clock.sleep(world.tree.session_timeout_ms / 200)
            await self._sleep(0, 1_000)
        controller.resume()
        for pair in both:
            world.network.unblock(*pair)
        if self._rng.random() < 0.5:
            await self._sleep(0, 2 * world.tree.session_timeout_ms)
        await self._bring_up(victim, controller)

    async def _restart_beside_the_former_session(self) -> None:
        """A broker stops uncleanly, and is there again before its session is over; perhaps the controller is away."""
        world, rng = self._world, self._rng
        found, controller = self._a_led_partition(), self._controller()
        if found is None or not await self._weather.wait_until_in_sync():
            return
        host = rng.choice([found[1], *found[2]])
        is_away = controller is not None and controller is not host and rng.random() < 0.6
        if is_away:
            assert controller is not None
            world.note(f"{controller.name}, the controller, is paused")
            controller.pause()
        if rng.random() < 0.6:
            world.lose_power(host)
        else:
            self._kill(host)
        await self._sleep(0, 200)
        world.spawn(world.bring_up(host))
        await self._sleep(0, 2.5 * world.tree.session_timeout_ms)
        if is_away:
            assert controller is not None
            controller.resume()
            world.note(f"{controller.name} goes on")
        await self._bring_up(host)
        await self._weather.wait_until_in_sync()

    # -- topics

    async def _make_a_topic_again(self) -> None:
        """A topic is deleted while a replica's broker is down, and made again as soon as that is possible."""
        world, rng = self._world, self._rng
        phoenix = Phoenix(world, "operator")
        if not await phoenix.make():
            return
        await phoenix.write(3)
        host = rng.choice(list(world.hosts.values()))
        if rng.random() < 0.7:
            self._kill(host)
            await self._sleep(0, 2 * world.tree.session_timeout_ms)
        await phoenix.delete()
        world.spawn(world.bring_up(host))
        if await phoenix.make_again():
            await phoenix.write(3)
        await self._bring_up(host)
        await self._sleep(0, 3_000)
        phoenix.hang_up()

    # -- coordinators

    async def _slow_the_coordinator(self) -> None:
        """The brokers become slow, and a coordinator dies that has just said of an offset that it is committed.

        The next coordinator needs time to load, while clients ask it.
        """
        found = self._a_led_partition(OFFSETS_TOPIC)
        if found is None:
            return
        world, (key, leader, others) = self._world, found
        count = sum(key[0] == OFFSETS_TOPIC for key in world.states())  # now: another trouble may empty the tree
        slowness = self._rng.choice((40.0, 200.0, 1000.0))
        world.note(f"processors take {slowness:.0f} times as long")
        visitors = [Visitor(world, host) for host in others]
        for host, visitor in zip(others, visitors):
            host.slow_the_processor(slowness)
            await visitor.look_at_groups(1)
        before = self._committed(key[1], count)
        await self._until(lambda: self._committed(key[1], count) != before, 5_000)
        self._kill(leader)
        for visitor in visitors:
            world.spawn(visitor.look_at_groups(100))
        await self._sleep(0, 3 * world.tree.session_timeout_ms)
        for host in others:
            host.slow_the_processor(0)
        await self._bring_up(leader)
        for visitor in visitors:
            visitor.hang_up()

    def _committed(self, partition: int, count: int) -> int:
        """What has been committed by the groups of one of the partitions: another number after each commit."""
        acknowledged = self._world.ledger.commits.acknowledged
        return sum(offset for owned, offset in acknowledged.items() if partition_for(owned[0], count) == partition)
