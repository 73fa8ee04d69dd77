"""Several machines in one simulated world: processes, pauses, cuts and late bytes, and sessions with the tree."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest
from barnabas.cluster.tree.port import ConnectionLossError, NoNodeError, SessionExpiredError, WatchEvent
from simulator.coordination import Fate
from simulator.disk import SimDisk
from simulator.env import SimEnv, sim_env
from simulator.host import Host, Life
from simulator.tree_service import TREE, TreeService

TIMEOUT_MS = 3_000.0


class Recorder(asyncio.Protocol):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.got = b""
        self.lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


class Machines:
    """Two machines, whose brokers are made and not started, and a tree."""

    def __init__(self, lingers: bool = True) -> None:
        self.env: SimEnv = sim_env(1)
        env = self.env
        self.tree = TreeService(env.clock, env.network, TIMEOUT_MS, lingers=lingers)
        self.hosts = [
            Host(f"1 {n}", env.clock, disk, env.network, self.tree, {"node.id": str(n)}, name=f"broker{n}")
            for n, disk in enumerate(SimDisk(env.clock, Random(n)) for n in (0, 1))
        ]
        self.lives = [self.begin(host) for host in self.hosts]

    def begin(self, host: Host) -> Life:
        host.lives += 1
        host.life = Life(host, host.lives, host.settings, host.data_directories)
        return host.life

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.env.run(story)

    async def sleep(self, delay_ms: float) -> None:
        await self.env.clock.sleep(delay_ms)

    async def connect(self, source: Life, target: Life, port: int = 9092) -> tuple[Recorder, Recorder]:
        """A connection: its near and its far end."""
        ends: list[Recorder] = []
        name = target.host.name

        def accept() -> Recorder:
            ends.append(Recorder())
            return ends[-1]

        if (name, port) not in self.env.network.listeners:
            listener = await target.env.network.listen(name, port, accept, 10)
            await listener.accept()
        self.env.network.listeners[name, port].factory = accept
        _, near = await source.env.network.connect(name, port, Recorder)
        assert isinstance(near, Recorder)
        return near, ends[0]


@pytest.fixture
def machines() -> Machines:
    return Machines()


def test_a_kill_ends_the_tasks_of_its_process_only(machines: Machines) -> None:
    async def story() -> None:
        ticks = [0, 0]

        async def work(n: int) -> None:
            async def inner() -> None:
                while True:
                    await machines.lives[n].env.clock.sleep(100)
                    ticks[n] += 1

            await asyncio.ensure_future(inner())

        tasks = [life.spawn(work(n)) for n, life in enumerate(machines.lives)]
        await machines.sleep(1_050)
        machines.hosts[0].kill()
        await machines.sleep(1_000)
        assert tasks[0].cancelled()
        assert not tasks[1].done()
        assert ticks == [10, 20]

    machines.run(story())


def test_what_a_paused_process_missed_comes_when_it_goes_on(machines: Machines) -> None:
    async def story() -> None:
        clock, host = machines.env.clock, machines.hosts[0]
        life, other = machines.lives
        near, far = await machines.connect(other, life)
        rang: list[float] = []
        life.env.clock.call_later(1_000, lambda: rang.append(clock.monotonic_ms()))
        began_ms = clock.monotonic_ms()
        host.pause()
        near.transport.write(b"hello")
        await machines.sleep(5_000)
        assert (rang, far.got, far.lost) == ([], b"", 0)
        host.resume()
        await machines.sleep(1)
        assert rang == [began_ms + 5_000]
        assert far.got == b"hello"

    machines.run(story())


def test_a_process_that_is_killed_while_paused_does_nothing_more(machines: Machines) -> None:
    async def story() -> None:
        rang: list[int] = []
        machines.lives[0].env.clock.call_later(10, lambda: rang.append(1))
        machines.hosts[0].pause()
        await machines.sleep(100)
        machines.hosts[0].kill()
        await machines.sleep(100)
        assert not rang

    machines.run(story())


@pytest.mark.parametrize("resets", [False, True])
def test_a_cut_in_one_direction(machines: Machines, resets: bool) -> None:
    async def story() -> None:
        network = machines.env.network
        near, far = await machines.connect(*machines.lives)
        network.block("broker0", "broker1")
        near.transport.write(b"there")
        far.transport.write(b"back")
        await machines.sleep(10_000)
        assert (far.got, near.got) == (b"", b"back")
        with pytest.raises(TimeoutError):
            await machines.lives[0].env.network.connect("broker1", 9092, Recorder)
        network.unblock("broker0", "broker1", resets=resets)
        await machines.sleep(10)
        assert (far.got, near.lost, far.lost) == ((b"", 1, 1) if resets else (b"there", 0, 0))

    machines.run(story())


def test_bytes_of_a_former_life_arrive_after_its_successor_has_connected(machines: Machines) -> None:
    async def story() -> None:
        network, host = machines.env.network, machines.hosts[0]
        near, far = await machines.connect(*machines.lives)
        network.block("broker0", "broker1")
        near.transport.write(b"of the former life")
        assert host.kill(late_ms=5_000) == len(b"of the former life")
        network.unblock("broker0", "broker1")
        new_near, new_far = await machines.connect(machines.begin(host), machines.lives[1])
        new_near.transport.write(b"of the new life")
        await machines.sleep(100)
        assert (new_far.got, far.got, far.lost) == (b"of the new life", b"", 0)
        await machines.sleep(5_000)
        assert (far.got, far.lost) == (b"of the former life", 1)

    machines.run(story())


def test_bytes_of_a_connection_that_was_given_up_arrive_when_the_test_says_so(machines: Machines) -> None:
    async def story() -> None:
        network = machines.env.network
        near, far = await machines.connect(*machines.lives)
        network.block("broker0", "broker1")
        near.transport.write(b"given up")
        arrive = near.transport.part()  # type: ignore[attr-defined]
        network.unblock("broker0", "broker1")
        near.transport.write(b"never sent")
        again, far_again = await machines.connect(*machines.lives)
        again.transport.write(b"sent again")
        machines.hosts[0].kill()  # which resets only the connections that it has
        await machines.sleep(10_000)
        assert (near.lost, far.got, far.lost) == (1, b"", 0)
        assert (far_again.got, far_again.lost) == (b"", 1)
        arrive()
        await machines.sleep(10)
        assert (near.lost, far.got, far.lost) == (1, b"given up", 1)

    machines.run(story())


@pytest.mark.parametrize("trouble", ["kill", "pause", "cut", "deaf"])
def test_a_session_lives_on_for_its_time_and_not_longer(machines: Machines, trouble: str) -> None:
    async def story() -> None:
        host, life, tree = machines.hosts[0], machines.lives[0], machines.tree
        await life.spawn(life.coordination.start())
        await life.spawn(life.coordination.create("/here", ephemeral=True))
        await machines.sleep(20_000)
        assert tree.find("/here")
        match trouble:
            case "kill":
                host.kill()
            case "pause":
                host.pause()
            case "cut":
                machines.env.network.block("broker0", TREE)
            case _:
                machines.env.network.block(TREE, "broker0")
        await machines.sleep(TIMEOUT_MS * 2 / 3 - 10)
        assert tree.find("/here")
        await machines.sleep(TIMEOUT_MS)
        assert bool(tree.find("/here")) == (trouble == "deaf")  # the server hears it, although no answer arrives

    machines.run(story())


def test_where_a_lock_tells_of_a_death_the_session_ends_at_once() -> None:
    machines = Machines(lingers=False)

    async def story() -> None:
        life = machines.lives[0]
        await life.spawn(life.coordination.start())
        machines.hosts[0].kill()
        await machines.sleep(TIMEOUT_MS / 10)
        assert not machines.tree.sessions

    machines.run(story())


def test_a_paused_process_learns_of_its_expiry_when_it_goes_on_and_has_a_new_session_then(machines: Machines) -> None:
    async def story() -> None:
        host, life = machines.hosts[0], machines.lives[0]
        coordination = life.coordination
        await life.spawn(coordination.start())
        told: list[int] = []
        coordination.on_session_expired(lambda: told.append(coordination.session_id))
        first = coordination.session_id
        host.pause()
        await machines.sleep(3 * TIMEOUT_MS)
        host.resume()
        with pytest.raises(SessionExpiredError):
            await life.spawn(coordination.create("/late"))
        await machines.sleep(1_000)
        assert told == [coordination.session_id]
        assert coordination.session_id != first
        with pytest.raises(NoNodeError):
            await life.spawn(coordination.get("/late"))

    machines.run(story())


def test_watches_that_a_cut_has_swallowed_are_told(machines: Machines) -> None:
    async def story() -> None:
        life, other = machines.lives
        await life.spawn(life.coordination.start())
        await other.spawn(other.coordination.start())
        await life.spawn(life.coordination.create("/a"))
        told: list[WatchEvent] = []
        await life.spawn(life.coordination.get("/a", told.append))
        await life.spawn(life.coordination.children("/", told.append))
        machines.env.network.block(TREE, "broker0")
        await other.spawn(other.coordination.set("/a", b"new"))
        await machines.sleep(TIMEOUT_MS * 0.9)
        assert not told
        machines.env.network.unblock(TREE, "broker0")
        await machines.sleep(TIMEOUT_MS)
        assert [event.path for event in told] == ["/a", "/"]

    machines.run(story())


@pytest.mark.parametrize(("fate", "is_there"), [(Fate.LOST_BEFORE, False), (Fate.LOST_AFTER, True)])
def test_an_answer_is_lost_before_or_after_the_effect(machines: Machines, fate: Fate, is_there: bool) -> None:
    async def story() -> None:
        life, tree = machines.lives[0], machines.tree
        await life.spawn(life.coordination.start())
        tree.fate = lambda machine, name: fate if (machine, name) == ("broker0", "create") else Fate.DONE
        with pytest.raises(ConnectionLossError):
            await life.spawn(life.coordination.create("/a"))
        assert bool(tree.find("/a")) == is_there

    machines.run(story())


def test_an_answer_of_the_tree_waits_for_a_paused_process(machines: Machines) -> None:
    async def story() -> None:
        host, life = machines.hosts[0], machines.lives[0]
        await life.spawn(life.coordination.start())
        create = life.spawn(life.coordination.create("/a"))
        await machines.sleep(0.75)  # it has taken effect, and the answer is under way
        assert machines.tree.find("/a")
        host.pause()
        await machines.sleep(500)
        assert not create.done()
        host.resume()
        assert (await create)[0] == "/a"

    machines.run(story())


def test_a_sync_on_the_loop_of_a_slow_disk_stops_its_process(machines: Machines) -> None:
    async def story() -> None:
        host, life = machines.hosts[0], machines.lives[0]
        clock = machines.env.clock
        host.slow_the_disk(400)
        host.disk.make_directory("/data")
        began_ms, ends = clock.monotonic_ms(), []

        async def work() -> None:
            life.env.disk.sync_directory("/data")
            await life.env.clock.sleep(1)
            ends.append(clock.monotonic_ms())

        await life.spawn(work())
        assert ends == [began_ms + 400]

    machines.run(story())


def test_a_start_that_takes_longer_than_a_session_begins_another_one(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host, _), (life, _) = machines.hosts, machines.lives
    broker = life.broker
    load = broker.log_manager.load

    async def load_slowly() -> None:
        host.pause("disk")
        machines.env.clock.call_later(TIMEOUT_MS * 2, lambda: host.resume("disk"))
        await load()

    monkeypatch.setattr(broker.log_manager, "load", load_slowly)

    async def story() -> None:
        began_in = []
        broker.coordination.on_session_expired(lambda: began_in.append(broker.coordination.session_id))
        starting = life.spawn(broker.start())
        await asyncio.wait([starting])
        assert starting.exception() is None
        assert began_in == [broker.coordination.session_id]
        assert broker.lease.holds
        assert machines.tree.find("/brokers/ids/0")
        await life.spawn(broker.stop())

    machines.run(story())
