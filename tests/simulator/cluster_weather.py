"""The bad weather of a cluster: each trouble has a name, and is over before the next one. Two may come together.

Where logs are not synced, a machine that loses its power loses what its page cache held. Acknowledged records survive
that because the other replicas have them. But Kafka does not survive that two replicas of a partition lose records
before the first of them has fetched them again. So there the power goes only when all replicas are in sync, at one
machine at a time, and the next trouble waits until that machine's replicas are in sync again.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from simulator.cluster_late_frames import LateFrames
from simulator.cluster_sequences import Sequences
from simulator.cluster_transaction_troubles import TransactionTroubles
from simulator.cluster_tree_troubles import TreeTroubles
from simulator.coordination import Fate
from simulator.tree_service import TREE

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld
    from simulator.host import Host

Happening = Callable[[], Coroutine[Any, Any, None]]
IN_SYNC_WITHIN_MS = 120_000.0
TAKES_RECORDS = (  # where appends are not synced
    "power",
    "power in an operation",
    "power of a follower and then the leader",
    "power of a leader after all sessions",
    "restart beside the former session",
    "late fetch of a former life",
)


class ClusterWeather:
    """Kinds of trouble, by name, and how often each comes. `change` brings one and waits until it is over."""

    def __init__(self, world: "ClusterWorld", rng: random.Random, chosen: tuple[str, ...] = ()) -> None:
        self._world = world
        self.rng = self._rng = rng
        self._kinds: dict[str, tuple[int, Happening]] = {
            "kill": (4, self._kill),
            "late frames": (3, self._kill_with_late_frames),
            "clean restart": (2, self._restart),
            "short pause": (2, self._pause_briefly),
            "pause past the session": (3, self._pause_long),
            "cut": (3, self._cut_brokers),
            "cut one way": (3, self._cut_brokers_one_way),
            "cut from all": (2, self._cut_from_all),
            "cut clients": (1, self._cut_clients),
            "cut from the tree": (3, self._cut_from_tree),
            "all sessions": (2, self._expire_all),
            "lost answers": (3, self._lose_answers),
            "resets": (2, self._reset_connections),
            "latency": (1, self._slow_a_pair),
            "power": (3, self._lose_power),
            "power in an operation": (2, self._lose_power_in_an_operation),
            "clock step": (1, self._step_clock),
            "slow disk": (2, self._slow_disk),
            **Sequences(world, self).kinds,
            **LateFrames(world, self).kinds,
            **TreeTroubles(world, self).kinds,
        }
        if world.transactions is not None:
            self._kinds |= TransactionTroubles(world, self, world.transactions).kinds
            if not world.transactions.clocks_step:
                del self._kinds["clock step"]
        unknown = [name for name in chosen if name not in self._kinds]
        if unknown:
            raise ValueError(f"no such kind of trouble: {', '.join(unknown)}; there are: {', '.join(self._kinds)}")
        self.names = tuple(name for name in self._kinds if not chosen or name in chosen)
        self.counts = dict.fromkeys(self._kinds, 0)

    async def change(self) -> None:
        """Bring one kind of trouble, or two where they may overlap, and return when all is over."""
        world = self._world
        names = self._choose()
        world.note(f"weather: {' and '.join(names)}")
        world.is_disturbing = True
        others = [asyncio.Event() for _ in names[1:]]
        for name, is_over in zip(names[1:], others):
            world.spawn(self._bring(name, is_over))
        await self._bring(names[0], asyncio.Event())
        for is_over in others:
            await is_over.wait()
        world.is_disturbing = False
        world.disturbed_ms = world.clock.monotonic_ms()
        world.note(f"weather: {' and '.join(names)} is over")

    def _choose(self) -> list[str]:
        weights = [self._kinds[name][0] for name in self.names]
        names = self._rng.choices(self.names, weights=weights)
        if self._world.overlaps and self._rng.random() < 0.6:
            second = self._rng.choices(self.names, weights=weights)[0]
            alone = () if self._world.is_synced else TAKES_RECORDS
            if second != names[0] and names[0] not in alone and second not in alone:
                names.append(second)
        return names

    async def _bring(self, name: str, is_over: asyncio.Event) -> None:
        self.counts[name] += 1
        await self._kinds[name][1]()
        is_over.set()

    # -- choices

    def _host(self) -> "Host":
        return self._rng.choice(list(self._world.hosts.values()))

    def _two(self) -> tuple[str, str]:
        one, two = self._rng.sample([host.name for host in self._world.hosts.values()], 2)
        return one, two

    async def _sleep(self, low_ms: float, high_ms: float) -> None:
        await self._world.clock.sleep(self._rng.uniform(low_ms, high_ms))

    async def _some_time(self) -> None:
        """From an instant to several session time-outs."""
        timeout_ms = self._world.tree.session_timeout_ms
        await self._world.clock.sleep(self._rng.choice((1.0, 300.0, 2_000.0, timeout_ms * 0.9, timeout_ms * 2.5)))

    # -- processes

    async def _kill(self) -> None:
        world = self._world
        hosts = list(world.hosts.values())
        luck = self._rng.random()
        struck = hosts if luck < 0.1 else self._rng.sample(hosts, 2) if luck < 0.25 else [self._host()]
        for host in struck:
            world.note(f"{host.name} is killed")
            host.kill()
        for host in struck:
            await self._some_time()
            await world.bring_up(host)

    async def _kill_with_late_frames(self) -> None:
        """What a process wrote last arrives when its next life has connected already."""
        world, host = self._world, self._host()
        others = [other.name for other in world.hosts.values() if other is not host]
        struck = others if self._rng.random() < 0.5 else [self._rng.choice(others)]
        for other in struck:
            world.network.block(host.name, other)
        await self._sleep(1, 1_500)
        late_bytes = host.kill(late_ms=self._rng.choice((500.0, 3_000.0, 10_000.0, 20_000.0)))
        world.note(f"{host.name} is killed; {late_bytes} bytes of it are under way to {', '.join(struck)}")
        for other in struck:
            world.network.unblock(host.name, other)
        if self._rng.random() < 0.3:
            await self._some_time()
        await world.bring_up(host)
        await self._sleep(0, 20_000)

    async def _restart(self) -> None:
        world, host = self._world, self._host()
        world.note(f"{host.name} is stopped")
        # Another trouble at the same time may kill it meanwhile, or keep it from the controller.
        is_cluster_whole = world.is_whole()
        await world.stop(host)
        if is_cluster_whole:
            world.inspector.note_stopped(next(node for node, other in world.hosts.items() if other is host))
        if self._rng.random() < 0.5:
            await self._some_time()
        await world.bring_up(host)

    async def _pause(self, host: "Host", pause_ms: float) -> None:
        world = self._world
        world.note(f"{host.name} is paused for {pause_ms:.0f} ms")
        host.pause()
        await world.clock.sleep(pause_ms)
        host.resume()
        world.note(f"{host.name} goes on")
        await self._sleep(0, 1_000)

    async def _pause_briefly(self) -> None:
        await self._pause(self._host(), self._world.tree.session_timeout_ms * self._rng.uniform(0.05, 0.6))

    async def _pause_long(self) -> None:
        await self._pause(self._host(), self._world.tree.session_timeout_ms * self._rng.uniform(1.02, 3))

    # -- the network

    async def _block(self, pairs: list[tuple[str, str]], span_ms: float) -> None:
        world = self._world
        for pair in pairs:
            world.network.block(*pair)
        world.note(f"for {span_ms:.0f} ms nothing travels {', '.join(f'{a} -> {b}' for a, b in pairs)}")
        await world.clock.sleep(span_ms)
        resets = self._rng.random() < 0.5
        for pair in pairs:
            world.network.unblock(*pair, resets=resets)

    def _span_ms(self) -> float:
        timeout_ms = self._world.tree.session_timeout_ms
        return self._rng.choice((100.0, 1_000.0, timeout_ms * 0.5, timeout_ms * 1.5, 20_000.0))

    async def _cut_brokers(self) -> None:
        one, two = self._two()
        await self._block([(one, two), (two, one)], self._span_ms())

    async def _cut_brokers_one_way(self) -> None:
        await self._block([self._two()], self._span_ms())

    async def _cut_from_all(self) -> None:
        """One broker is alone, with the tree or without it."""
        world, host = self._world, self._host()
        others = [name for name in (*(h.name for h in world.hosts.values()), TREE) if name != host.name]
        if self._rng.random() < 0.5:
            others.remove(TREE)
        await self._block([pair for name in others for pair in ((host.name, name), (name, host.name))], self._span_ms())

    async def _cut_clients(self) -> None:
        broker, machine = self._host().name, self._rng.choice(self._world.client_machines)
        both = [(broker, machine), (machine, broker)]
        await self._block(both if self._rng.random() < 0.5 else [self._rng.choice(both)], self._span_ms())

    async def _reset_connections(self) -> None:
        network = self._world.network
        for transport in list(network.transports):
            if self._rng.random() < 0.5:
                network.reset(transport)
        await self._sleep(0, 500)

    async def _slow_a_pair(self) -> None:
        network, pair = self._world.network, self._two()
        network.extra_latency_ms[pair] = self._rng.choice((50.0, 300.0, 2_000.0))
        self._world.note(f"{pair[0]} -> {pair[1]}: {network.extra_latency_ms[pair]:.0f} ms longer")
        await self._sleep(2_000, 15_000)
        network.extra_latency_ms.pop(pair, None)  # a sequence of deeds may have had the same pair, and ended first

    # -- the tree

    async def _cut_from_tree(self) -> None:
        host = self._host()
        both = [(host.name, TREE), (TREE, host.name)]
        await self._block(both if self._rng.random() < 0.6 else [self._rng.choice(both)], self._span_ms())

    async def _expire_all(self) -> None:
        """The tree hears of nobody for longer than a session."""
        names = [host.name for host in self._world.hosts.values()]
        span_ms = self._world.tree.session_timeout_ms * self._rng.uniform(1.1, 2)
        await self._block([pair for name in names for pair in ((name, TREE), (TREE, name))], span_ms)

    async def _lose_answers(self) -> None:
        world, rng = self._world, self._world.tree_rng
        rate = self._rng.choice((0.05, 0.3))
        struck = [host.name for host in world.hosts.values()]
        if self._rng.random() < 0.5:
            struck = [self._rng.choice(struck)]
        delay_ms = self._rng.choice((0.0, 20.0, 1_000.0))

        def fate(machine: str, name: str) -> Fate:
            if machine not in struck or rng.random() >= rate:
                return Fate.DONE
            lost = rng.choice((Fate.LOST_BEFORE, Fate.LOST_AFTER))
            world.note(f"the tree: {name} of {machine} {lost.value}")
            return lost

        world.tree.fate = fate
        world.tree.watch_delay_ms = lambda: rng.uniform(0, delay_ms)
        await self._sleep(500, 3_000)
        if self._rng.random() < 0.6:
            host = self._host()
            world.note(f"{host.name} is killed")
            host.kill()
            await self._sleep(0, 4_000)
            world.tree.fate = lambda machine, name: Fate.DONE
            await world.bring_up(host)
        await self._sleep(500, 3_000)
        world.tree.fate = lambda machine, name: Fate.DONE
        world.tree.watch_delay_ms = lambda: 0.0

    # -- the machines

    async def _lose_power(self) -> None:
        world, host = self._world, self._host()
        if not await self.wait_until_in_sync():
            return
        world.lose_power(host)
        await self._some_time()
        await world.bring_up(host)
        await self.wait_until_in_sync()

    async def _lose_power_in_an_operation(self) -> None:
        world, host = self._world, self._host()
        if not await self.wait_until_in_sync():
            return
        host.disk.lose_power_at(host.disk.operations + self._rng.choice((0, 1, 2, 5, 12, 40)))
        if self._rng.random() < 0.3:
            await world.stop(host)
        for _ in range(20):
            if host.life is None:
                break
            await world.clock.sleep(300)
        if host.life is not None:
            world.lose_power(host)
        elif host.disk.is_losing_power:
            host.disk.crash("lost")
        await self._some_time()
        await world.bring_up(host)
        await self.wait_until_in_sync()

    async def wait_until_in_sync(self) -> bool:
        """Whether all replicas have come into sync in time. Where appends are synced, nobody needs to wait for that."""
        world = self._world
        if world.is_synced:
            return True
        give_up_ms = world.clock.monotonic_ms() + IN_SYNC_WITHIN_MS
        while not world.are_all_in_sync():
            if world.clock.monotonic_ms() > give_up_ms:
                world.note("not all replicas are in sync")
                return False
            await world.clock.sleep(500)
        return True

    async def _step_clock(self) -> None:
        host = self._host()
        step_ms = self._rng.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        self._world.note(f"the clock of {host.name} is set {step_ms} ms on")
        host.step_wall_clock(step_ms)

    async def _slow_disk(self) -> None:
        host = self._host()
        host.slow_the_disk(self._rng.choice((5.0, 50.0, 400.0)))
        self._world.note(f"a sync of {host.name} takes {host.disk.sync_ms:.0f} ms")
        await self._sleep(3_000, 20_000)
        host.slow_the_disk(0)
