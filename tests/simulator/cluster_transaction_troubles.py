"""Troubles of a cluster that strike in the middle of transactions, where their order matters.

A coordinator, or the leader of a partition, dies or stands still between two steps of a client, or while a coordinator
writes what it has decided, or while its markers are under way.
"""

from typing import TYPE_CHECKING

from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

from simulator.clients.transactional import STEPS
from simulator.cluster_choices import LOOK_MS, Choices

if TYPE_CHECKING:
    from simulator.clients.transactional import Transactional
    from simulator.cluster_weather import ClusterWeather, Happening
    from simulator.cluster_world import ClusterWorld
    from simulator.host import Host
    from simulator.ledger import TopicPartition
    from simulator.transactional_part import TransactionalPart

DECIDES_WITHIN_MS = 5_000.0


class TransactionTroubles(Choices):
    """The troubles, by name, with how often each comes."""

    def __init__(self, world: "ClusterWorld", weather: "ClusterWeather", part: "TransactionalPart") -> None:
        super().__init__(world, weather)
        self._part = part
        self.kinds: dict[str, tuple[int, Happening]] = {
            "kill at a step": (5, self._kill_at_a_step),
            "pause at a step": (3, self._pause_at_a_step),
            "kill in a decision": (4, self._kill_in_a_decision),
            "markers held up": (3, self._hold_up_markers),
            "coordinator goes on behind another": (3, self._resume_behind_another),
            "transaction version": (1, self._change_version),
            "kill at each step": (1, self._kill_at_all),
        }

    # -- whom

    def _host_of(self, key: "TopicPartition") -> "Host | None":
        """The leader of a partition, if it lives."""
        state = self._state(key)
        host = None if state is None or state.leader < 0 else self._world.hosts[state.leader]
        return host if host is not None and host.life is not None else None

    def _victim_of(self, client: "Transactional", luck: float) -> "Host | None":
        """The client's coordinator, or its group's, or the leader of a partition that it writes to."""
        if luck < 0.6:
            return self._host_of(self._part.coordinator_of(client))
        if luck < 0.8:
            return self._host_of((OFFSETS_TOPIC, self._rng.randint(0, 1)))
        return self._host_of(self._rng.choice(self._part.keys))

    async def _a_deciding_one(self) -> "Host | None":
        """A broker whose coordinator is writing, or waits for markers."""
        found: list[Host] = []

        def look() -> bool:
            lives = [host for host in self._world.hosts.values() if host.life is not None]
            found[:] = [host for host in lives if host.life is not None and self._part.is_deciding(host.life)]
            return bool(found)

        return found[0] if await self._until(look, DECIDES_WITHIN_MS) else None

    # -- what

    async def _kill_at_all(self) -> None:
        for step in STEPS:
            await self._kill_at_a_step(step)

    async def _kill_at_a_step(self, step: str | None = None) -> None:
        luck = self._rng.random()
        struck: list[Host | None] = []

        def strike(client: "Transactional") -> None:
            struck.append(self._victim_of(client, luck))
            if struck[0] is not None:
                self._kill(struck[0])

        skipped = 0 if step else self._rng.randint(0, 9)
        if await self._part.strike_at_a_step(strike, skipped, step) and struck[0] is not None:
            await self._sleep(0, 1.5 * self._world.tree.session_timeout_ms)
            await self._bring_up(struck[0])

    async def _pause_at_a_step(self) -> None:
        """A client of a broker that stands still goes on with another one."""
        luck = self._rng.random()
        struck: list[Host | None] = []

        def strike(client: "Transactional") -> None:
            struck.append(self._victim_of(client, luck))
            if struck[0] is not None:
                struck[0].pause()

        if await self._part.strike_at_a_step(strike, self._rng.randint(0, 9)) and struck[0] is not None:
            self._world.note(f"{struck[0].name} is paused")
            await self._sleep(0, 2.5 * self._world.tree.session_timeout_ms)
            struck[0].resume()
            self._world.note(f"{struck[0].name} goes on")

    async def _kill_in_a_decision(self) -> None:
        host = await self._a_deciding_one()
        if host is not None:
            await self._sleep(0, 10)
            self._kill(host)
            await self._sleep(0, 1.5 * self._world.tree.session_timeout_ms)
            await self._bring_up(host)

    async def _hold_up_markers(self) -> None:
        """Some brokers do not hear from a coordinator; it may die before they have its markers."""
        world, host = self._world, await self._a_deciding_one()
        if host is None:
            return
        others = [other for other in world.hosts.values() if other is not host]
        cut = others if self._rng.random() < 0.4 else [self._rng.choice(others)]
        for other in cut:
            world.network.block(host.name, other.name)
        world.note(f"nothing travels from {host.name} to {', '.join(other.name for other in cut)}")
        await self._sleep(0, 3_000)
        dies = self._rng.random() < 0.5
        if dies:
            self._kill(host)
        for other in cut:
            world.network.unblock(host.name, other.name, resets=self._rng.random() < 0.5)
        if dies:
            await self._sleep(0, 1.5 * world.tree.session_timeout_ms)
            await self._bring_up(host)

    async def _resume_behind_another(self) -> None:
        """A coordinator stands still with markers to send, and goes on when another one has ended the transaction."""
        world, host = self._world, await self._a_deciding_one()
        if host is None:
            return
        node = self._node(host)
        world.note(f"{host.name} is paused until another one coordinates")
        host.pause()
        give_up_ms = world.clock.monotonic_ms() + 3 * world.tree.session_timeout_ms
        while world.clock.monotonic_ms() < give_up_ms:
            leaders = [state.leader for key, state in world.states().items() if key[0] == TRANSACTIONS_TOPIC]
            if node not in leaders:
                break
            await world.clock.sleep(LOOK_MS)
        await self._sleep(0, 2_000)
        host.resume()
        world.note(f"{host.name} goes on")
        await self._sleep(0, 1_000)

    async def _change_version(self) -> None:
        self._part.change_version()
