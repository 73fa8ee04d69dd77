"""The bad weather of a world: troubles of the broker, its machine, the network and the tree, one at a time."""

import errno
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import ANY_VERSION

from simulator.clients.recreator import RECREATED
from simulator.clients.transactional import STEPS, Transactional
from simulator.coordination import EMPTY_TREE, SimCoordination, TreeCopy
from simulator.disk import ALWAYS
from simulator.network import SimTransport

if TYPE_CHECKING:
    from simulator.world import World

Happening = Callable[[], Coroutine[Any, Any, None]]


class Weather:
    """Kinds of trouble and how often each comes. `change` brings one and waits until it is over.

    `chosen`: the kinds that may come; all, if it is empty.
    """

    def __init__(self, world: "World", rng: random.Random, chosen: tuple[str, ...] = ()) -> None:
        self._world = world
        self._rng = rng
        power = world.power_can_fail
        self._kinds: list[tuple[int, str, Happening]] = [
            (4, "kill", self._kill),
            (2, "clean restart", self._restart),
            (2, "cut", self._cut),
            (3, "resets", self._resets),
            (1, "half-open", self._half_open),
            (1, "clock step", self._step_clock),
            (2, "session expires", self._expire),
            (2, "tree trouble", self._trouble_the_tree),
            (2 if power else 1, "disk error", self._break_the_disk),
            (4 if power else 0, "power", self._lose_power),
            (3 if power else 0, "power in an operation", self._lose_power_in_an_operation),
            (2 if power else 0, "power in a start", self._lose_power_in_a_start),
            (1, "registration deleted", self._delete_the_registration),
            (1, "empty tree", self._empty_the_tree),
            (1, "no room for a topic", self._leave_no_room_for_a_topic),
        ]
        if world.transactions is not None:
            if not world.transactions.clocks_step:
                self._kinds = [kind for kind in self._kinds if kind[1] != "clock step"]
            self._kinds += [(5, "at a step", self._kill_at_a_step), (4, "in a decision", self._kill_in_a_decision)]
            self._kinds += [(1, "transaction version", self._change_version), (1, "at each step", self._kill_at_all)]
        if chosen:
            self._kinds = [kind for kind in self._kinds if kind[1] in chosen]

    async def change(self) -> None:
        """Bring one kind of trouble, and return when it is over."""
        (_, name, happen) = self._rng.choices(self._kinds, weights=[kind[0] for kind in self._kinds])[0]
        world = self._world
        world.note(f"weather: {name}")
        world.is_disturbing = True
        await happen()
        world.is_disturbing = False
        world.disturbed_ms = world.clock.monotonic_ms()

    async def _pause(self) -> None:
        await self._world.clock.sleep(self._rng.choice((1.0, 300.0, 8_000.0)))

    # -- the process

    async def _kill(self) -> None:
        self._world.host.kill()
        await self._pause()
        await self._world.start_host()

    async def _kill_at_all(self) -> None:
        """The broker dies between every two steps of a transaction, one after the other."""
        for step in STEPS:
            await self._kill_at_a_step(step)

    async def _kill_at_a_step(self, step: str | None = None) -> None:
        """The broker dies between two steps of a transaction."""
        world, part = self._world, self._world.transactions
        assert part is not None
        lose_power = world.power_can_fail and self._rng.random() < 0.4

        def strike(client: Transactional) -> None:
            if world.host.life is not None:
                world.machine_stops() if lose_power else world.host.kill()

        await part.strike_at_a_step(strike, 0 if step else self._rng.randint(0, 9), step)
        await self._pause()
        await world.start_host()

    async def _change_version(self) -> None:
        assert self._world.transactions is not None
        self._world.transactions.change_version()

    async def _kill_in_a_decision(self) -> None:
        """The broker dies at one of its next writes after a step: of a decision, of its markers, of its end."""
        world, disk, part = self._world, self._world.disk, self._world.transactions
        assert part is not None
        writes = self._rng.choice((0, 1, 2, 3, 4, 5, 7, 10))

        def strike(client: Transactional) -> None:
            disk.lose_power_at(disk.operations + writes)

        await part.strike_at_a_step(strike, self._rng.randint(0, 9))
        for _ in range(10):
            if world.host.life is None:
                break
            await world.clock.sleep(200)
        if world.host.life is not None:
            world.machine_stops()
        elif disk.life == 0 or disk.is_losing_power:
            disk.crash("kept")
        await self._pause()
        await world.start_host()

    async def _restart(self) -> None:
        await self._world.host.stop()
        await self._world.start_host()

    # -- the machine

    async def _lose_power(self) -> None:
        self._world.machine_stops()
        await self._pause()
        await self._world.start_host()

    async def _lose_power_in_an_operation(self) -> None:
        world, disk = self._world, self._world.disk
        disk.lose_power_at(disk.operations + self._rng.choice((0, 1, 2, 5, 12, 40)))
        if self._rng.random() < 0.4 and world.host.life is not None:  # at one of the many changes of a stop
            await world.host.stop()
        for _ in range(20):
            if world.host.life is None:
                break
            await world.clock.sleep(300)
        if world.host.life is not None:
            world.machine_stops()
        elif disk.life == 0 or disk.is_losing_power:
            disk.crash("torn")
        await self._pause()
        await world.start_host()

    async def _lose_power_in_a_start(self) -> None:
        world, disk = self._world, self._world.disk
        world.host.kill() if self._rng.random() < 0.5 else world.machine_stops()
        disk.lose_power_at(disk.operations + self._rng.randint(0, 30))
        await world.start_host()
        if disk.is_losing_power and world.host.life is not None:
            world.machine_stops()
            await world.start_host()

    async def _break_the_disk(self) -> None:
        """Let the disk fail once; after that only a restart helps."""
        world = self._world
        operation = self._rng.choice(("write", "sync", "write", "create", "rename", "sync_directory"))
        part = self._rng.choice((*world.topic_ids, "__consumer_offsets", ""))
        world.disk.fail(operation, part, times=1)
        await world.clock.sleep(self._rng.choice((500.0, 5_000.0)))
        world.disk.repair()
        world.host.kill()
        await world.start_host()

    async def _leave_no_room_for_a_topic(self) -> None:
        """For a while the disk has no room, or the process no descriptor, for a topic that is made."""
        world = self._world
        error = self._rng.choice((errno.ENOSPC, errno.EMFILE))
        operation = "make_directory" if error == errno.ENOSPC and self._rng.random() < 0.5 else "create"
        world.note(f"no topic can be made: {errno.errorcode[error]} of {operation}")
        world.disk.fail(operation, f"/{RECREATED}-", OSError(error, "simulated"), times=ALWAYS)
        await world.clock.sleep(self._rng.choice((3_000.0, 20_000.0)))
        world.disk.repair()

    async def _step_clock(self) -> None:
        step_ms = self._rng.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        self._world.host.step_wall_clock(step_ms)
        if self._world.journal is not None:
            self._world.journal.set_back_ms += max(0, -step_ms)

    # -- the network

    async def _cut(self) -> None:
        self._world.network.cut()
        await self._world.clock.sleep(self._rng.choice((100.0, 3_000.0, 20_000.0, 40_000.0)))
        self._world.network.heal()

    async def _resets(self) -> None:
        for transport in list(self._world.network.transports):
            if self._rng.random() < 0.5:
                self._world.network.reset(transport)

    async def _half_open(self) -> None:
        for client in self._world.clients:
            if self._rng.random() < 0.3 and client.connection is not None and not client.connection.closed:
                transport = client.connection.transport
                assert isinstance(transport, SimTransport)
                transport.vanish()
                client.connection.connection_lost(None)
                client.connection = None

    # -- the tree

    async def _expire(self) -> None:
        world = self._world
        if world.host.life is not None:
            world.tree.expire(world.host.life.coordination.session_id)
        await world.clock.sleep(self._rng.choice((0.0, 2_000.0)))

    async def _delete_the_registration(self) -> None:
        """Somebody deletes the broker's node."""
        world = self._world
        if world.host.life is not None and world.tree.has(path := paths.broker(world.host.life.broker.node_id)):
            world.tree.change(lambda zxid: world.tree.delete(path, ANY_VERSION, zxid))
        await world.clock.sleep(self._rng.choice((0.0, 2_000.0)))

    async def _empty_the_tree(self) -> None:
        """The service of the tree comes back without its data; later somebody finds the data."""
        world = self._world
        if world.offsets_in_tree:  # they would be gone, too
            return
        copy = world.tree.copy()
        self._put_back(EMPTY_TREE)
        await world.clock.sleep(self._rng.choice((100.0, 5_000.0, 30_000.0)))
        if self._rng.random() < 0.5:
            world.host.kill()
        self._put_back(copy)
        await world.start_host()
        await world.clock.sleep(2_000)

    def _put_back(self, copy: TreeCopy) -> None:
        world = self._world
        world.note(f"the tree is a copy with {len(copy.nodes)} nodes")
        world.tree.put_back(copy)
        if world.host.life is not None:
            coordination = world.host.life.coordination
            assert isinstance(coordination, SimCoordination)
            coordination.expired()

    async def _trouble_the_tree(self) -> None:
        world = self._world
        world.tree_loss_rate = self._rng.choice((0.05, 0.3))
        delay_ms = self._rng.choice((0.0, 20.0, 1_000.0))
        world.tree.watch_delay_ms = lambda: world.tree_rng.uniform(0, delay_ms)
        if self._rng.random() < 0.5:
            await self._kill()
        elif world.host.life is not None:
            world.tree.expire(world.host.life.coordination.session_id)
        await world.clock.sleep(2_000)
        world.tree_loss_rate = 0.0
        world.tree.watch_delay_ms = lambda: 0.0
        await world.clock.sleep(1_000)
