"""Troubles that somebody makes by hand: in the tree of a cluster, and on disks that have no room.

A backup of the tree that is put back while no broker runs says who was in sync then. Others have been in sync since. So
only the logs can say who has all that was acknowledged. A broker cannot know this before one comes that has run since
the backup. So what members of an ISR must have, and leader epochs, are looked at again when all brokers serve. Until
then a producer asks again for its id if that was given before.
"""

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import TopicAssignment, TreeMark
from barnabas.storage.checkpoints import TREE_MARK, read_tree_knowledge

from simulator.clients.phoenix import PHOENIX, Phoenix
from simulator.cluster_choices import Choices
from simulator.coordination import EMPTY_TREE, TreeCopy
from simulator.disk import ALWAYS, UNBOUNDED
from simulator.observations import Event, Outcome, Produce
from simulator.tree_service import TREE
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.cluster_weather import ClusterWeather, Happening
    from simulator.cluster_world import ClusterWorld
    from simulator.host import Host

SERVE_WITHIN_MS = 60_000.0
GIVEN_UP_WITHIN_MS = 5_000.0  # who could not know that the tree is older uses none of the producer ids it had then


class TreeTroubles(Choices):
    """`kinds`: name, and how often each comes, as in `ClusterWeather`."""

    def __init__(self, world: "ClusterWorld", weather: "ClusterWeather") -> None:
        super().__init__(world, weather)
        self.kinds: dict[str, tuple[int, Happening]] = {
            "older tree": (2, self._put_an_older_tree_back),
            "empty tree": (1, self._empty_the_tree),
            "registration deleted": (1, self._delete_a_registration),
            "no room for a topic": (1, self._leave_no_room_for_a_topic),
            "full disk": (1, self._fill_disks),
        }

    # -- the tree

    async def _put_an_older_tree_back(self) -> None:
        """A backup is made; the ISRs change, and clients are told of more; all stop; the backup is put back."""
        world, rng = self._world, self._rng
        found = await self._a_led_partition_in_sync()
        if found is None or not await self._until(world.are_all_in_sync, SERVE_WITHIN_MS):
            return
        (_, leader, others), copy, topics = found, world.tree.copy(), self._topics()
        world.note("a backup of the tree is made")
        behind = rng.choice([leader, *others])
        if rng.random() < 0.8:
            await self._end(behind)
            await self._until(lambda: self._is_in_no_isr(behind), 3 * world.tree.session_timeout_ms + 10_000)
        await self._sleep(0, rng.choice((500.0, 5_000.0)))
        if rng.random() < 0.3:  # it comes back, and another one has less
            await self._bring_up(behind)
            await self._sleep(0, 5_000)
            behind = rng.choice([leader, *others])
            await self._end(behind)
            await self._sleep(0, 5_000)
        hosts = [leader, *others]
        rng.shuffle(hosts)
        for host in hosts:
            await self._end(host)
            await self._sleep(0, rng.choice((0.0, 100.0, 2_000.0)))
        is_stopped = all(host.life is None for host in hosts)  # another trouble may have started one of them meanwhile
        if is_stopped and self._topics() == topics:
            self._put_back(copy, "an older copy of the tree is put back")
        first = behind if rng.random() < 0.7 else rng.choice(hosts)
        for host in [first, *(host for host in hosts if host is not first)]:
            world.spawn(world.bring_up(host))
            await self._sleep(0, rng.choice((0.0, 500.0, 3_000.0)))
        await self._serve_again()

    async def _empty_the_tree(self) -> None:
        """The service of the tree comes back without its data, under running brokers; later somebody finds the data."""
        world, rng = self._world, self._rng
        hosts = list(world.hosts.values())
        await self._end_the_service()
        copy = world.tree.copy()
        self._put_back(EMPTY_TREE, "the tree is empty")
        self._begin_the_service()
        stops, may_notice = sum(host.stops for host in hosts), not any(host.is_stopped for host in hosts)
        await self._sleep(world.tree.session_timeout_ms, 2 * world.tree.session_timeout_ms)  # until they notice it
        before, may_notice = len(world.history.events), may_notice and self._do_all_reach_the_tree()
        await self._sleep(0, 4 * world.tree.session_timeout_ms)
        may_notice = may_notice and self._do_all_reach_the_tree()  # another trouble may have closed a way
        if may_notice and stops == sum(host.stops for host in hosts):  # else one has gone on, and not looked yet
            self._check_nothing_is_taken(world.history.events[before:])
        if rng.random() < 0.5:
            rng.shuffle(hosts)
            for host in hosts:
                self._kill(host)
        await self._end_the_service()
        self._put_back(copy, "the tree is as it was", is_newest=True)
        self._begin_the_service()
        for host in hosts:
            world.spawn(world.bring_up(host))
        await self._serve_again()

    def _check_nothing_is_taken(self, events: Sequence[Event]) -> None:
        """Who finds no tree leads nothing: not even a record with acks=1 is taken."""
        asked: dict[int, None] = {}
        for event in events:
            if event.outcome is Outcome.INVOKE:
                asked[event.number] = None
            elif event.outcome is Outcome.OK and event.number in asked and isinstance(event.operation, Produce):
                detail = f"{event.client}: {event.operation.partition} with acks={event.operation.acks}"
                raise Violation("nobody leads by an empty tree", detail)

    async def _delete_a_registration(self) -> None:
        """Somebody deletes the node of a broker that lives."""
        world, node = self._world, self._rng.choice(list(self._world.hosts))
        path = paths.broker(node)
        if world.tree.has(path):
            world.note(f"somebody deletes {path}")
            world.tree.change(lambda zxid: world.tree.delete(path, -1, zxid))
        await self._sleep(0, 2 * world.tree.session_timeout_ms)

    async def _end(self, host: "Host") -> None:
        if self._rng.random() < 0.5:
            self._kill(host)
        elif host.life is not None:
            self._world.note(f"{host.name} is stopped")
            await self._world.stop(host)

    async def _end_the_service(self) -> None:
        """Nobody reaches the tree for longer than a session."""
        world = self._world
        world.note("nobody reaches the tree")
        is_away = False
        while not is_away:
            for pair in self._ways_to_the_tree():
                world.network.block(*pair)
            await self._sleep(1.1 * world.tree.session_timeout_ms, 2 * world.tree.session_timeout_ms)
            # The end of another trouble may have opened a way meanwhile, and then a session has gone on.
            is_away = all(world.network.is_blocked(*pair) for pair in self._ways_to_the_tree())

    def _begin_the_service(self) -> None:
        for pair in self._ways_to_the_tree():
            self._world.network.unblock(*pair)

    def _do_all_reach_the_tree(self) -> bool:
        return not any(self._world.network.is_blocked(*pair) for pair in self._ways_to_the_tree())

    def _ways_to_the_tree(self) -> list[tuple[str, str]]:
        names = [host.name for host in self._world.hosts.values()]
        return [pair for name in names for pair in ((name, TREE), (TREE, name))]

    def _put_back(self, copy: TreeCopy, what: str, *, is_newest: bool = False) -> None:
        world = self._world
        world.note(what)
        world.tree.put_back(copy)
        is_known = [is_newest or self._can_know(node, host) for node, host in world.hosts.items()]
        if not all(is_known):
            world.ledger.commits.unaware_may_lead = True
        world.inspector.note_tree_put_back(world.tree, is_known=any(is_known))

    def _can_know(self, node: int, host: "Host") -> bool:
        """Whether the broker's disk knows more than the tree: one that died soon after the copy was made does not."""
        found = self._world.tree.find(paths.tree_mark(node))
        mark = TreeMark.decode(found.data) if found is not None else TreeMark()
        paths_known = [f"{directory}/{TREE_MARK}" for directory in host.data_directories]
        return any(read_tree_knowledge(host.disk, path).mark > mark.number for path in paths_known)

    async def _serve_again(self) -> None:
        """Wait until all brokers have said what they know: then members of ISRs must have what is committed."""
        world = self._world
        await self._bring_up(*world.hosts.values())
        if await self._until(self._are_all_registered, SERVE_WITHIN_MS):
            world.inspector.note_all_registered()
            await self._sleep(GIVEN_UP_WITHIN_MS, GIVEN_UP_WITHIN_MS)
            world.ledger.commits.unaware_may_lead = False

    def _are_all_registered(self) -> bool:
        world = self._world
        return world.all_serve and all(world.tree.has(paths.broker(node)) for node in world.hosts)

    def _is_in_no_isr(self, host: "Host") -> bool:
        return all(self._node(host) not in state.isr for state in self._world.states().values() if len(state.isr) > 1)

    def _topics(self) -> dict[str, TopicAssignment]:
        """Only a backup with all topics and partitions is put back: what was made since would be gone."""
        below = self._world.tree.below(f"{paths.TOPICS}/")
        return {path: TopicAssignment.decode(data) for path, data in below if path.count("/") == 3}

    # -- disks

    async def _leave_no_room_for_a_topic(self) -> None:
        """A topic is made while some disks have no room for its folder, or no free descriptor. Then they have."""
        world, rng = self._world, self._rng
        phoenix = Phoenix(world, "operator")
        await phoenix.delete()
        await self._until(lambda: not world.tree.has(paths.topic(PHOENIX)), 20_000)
        hosts = list(world.hosts.values())
        struck = hosts if rng.random() < 0.3 else rng.sample(hosts, rng.randint(1, len(hosts)))
        error = rng.choice((errno.ENOSPC, errno.EMFILE))
        operation = "make_directory" if error == errno.ENOSPC and rng.random() < 0.5 else "create"
        for host in struck:
            world.note(f"{host.name} cannot {operation} for a topic: {errno.errorcode[error]}")
            host.disk.fail(operation, f"/{PHOENIX}-", OSError(error, "simulated"), times=ALWAYS)
        await phoenix.make()
        await self._sleep(0, rng.choice((500.0, 10_000.0)))
        for host in struck:
            host.disk.repair()
        world.note("there is room again")
        await phoenix.write(3)
        phoenix.hang_up()

    async def _fill_disks(self) -> None:
        """Some disks, or all, have no room for records. Perhaps another broker dies meanwhile. Then they have room."""
        world, rng = self._world, self._rng
        hosts = list(world.hosts.values())
        struck = hosts if rng.random() < 0.2 else rng.sample(hosts, rng.randint(1, len(hosts) - 1))
        for host in struck:
            total, free = host.disk.total_and_free_bytes("/")
            host.disk.capacity_bytes = total - free + rng.choice((0, 2_000, 50_000))
            world.note(f"the disk of {host.name} is full")
        await self._sleep(0, rng.choice((3_000.0, 30_000.0)))
        others = [host for host in hosts if host not in struck]
        if others and rng.random() < 0.4:
            died = rng.choice(others)
            self._kill(died)
            await self._sleep(0, 10_000)
            await self._bring_up(died)
            await self._sleep(0, 10_000)
        for host in rng.sample(struck, len(struck)):
            host.disk.capacity_bytes = UNBOUNDED
            world.note(f"the disk of {host.name} has room again")
            await self._sleep(0, rng.choice((100.0, 15_000.0)))
