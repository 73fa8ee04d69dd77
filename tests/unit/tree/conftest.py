"""The trees that the contract suite runs on: one fixture parameter per implementation of the Coordination port."""

import asyncio
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.port import Coordination
from barnabas.runtime.broken_machine import BreakableDisk
from barnabas.runtime.ports import Env
from simulator.clock import SimClock
from simulator.coordination import SimCoordination, SimTree
from simulator.env import sim_env

sys.path[:0] = [str(Path(__file__).parents[2] / "zookeeper")]

import zookeeper_server  # noqa: E402
from zookeeper_server import ZooKeeperServer  # noqa: E402


class _InVirtualTime:
    """What the trees have in common whose sessions run on a simulated clock."""

    tells_before_it_answers = False  # whether a watch may be told before the operation that fires it returns
    late_ms = 0.0  # how long a request may be on its way to the clock that notes when it was sent

    def __init__(self) -> None:
        self.clock = SimClock()
        self.sessions: list[Coordination] = []

    def unstarted(self) -> Coordination:
        """One that has no session yet."""
        raise NotImplementedError

    async def session(self) -> Coordination:
        """A new started session with the same tree."""
        session = self.unstarted()
        await session.start()
        self.sessions.append(session)
        return session

    async def settle(self) -> None:
        """Let every event reach every session."""
        await self.clock.sleep(1000)

    def run(self, scenario: Any) -> None:
        self.clock.loop.run_until_complete(scenario)
        self.clock.loop.run_until_complete(self.close())

    async def close(self) -> None:
        for session in self.sessions:
            await session.close()


class EmbeddedTree(_InVirtualTime):
    """A tree in one SQLite file, in virtual time (the file and the locks are real)."""

    def __init__(self, folder: Path, *, syncs: bool = True) -> None:
        super().__init__()
        simulated = sim_env()
        self.env = Env(clock=self.clock, disk=BreakableDisk(syncs=syncs), network=simulated.network, rng=simulated.rng)
        self.path = str(folder / "tree" / "coordination.sqlite")

    def unstarted(self) -> Coordination:
        return EmbeddedCoordination(self.env, self.path)

    async def kill(self, session: Coordination) -> None:
        """The session's process dies: nothing is said, the operating system drops its lock."""
        assert isinstance(session, EmbeddedCoordination)
        assert session._lock is not None
        assert session._polling is not None
        session._lock.release()
        session._polling.stop()

    async def expire(self, session: Coordination, other: Coordination) -> None:
        """Let `other` take a living session for dead, as if its lock file was deleted."""
        assert isinstance(session, EmbeddedCoordination)
        Path(session._files.path(session.session_id)).unlink()
        await self.settle()


class SimulatedTree(_InVirtualTime):
    """The tree in memory, with watches that come late."""

    def __init__(self) -> None:
        super().__init__()
        self.server = SimTree(self.clock)
        self.server.latency_ms = 2.0
        self.server.watch_delay_ms = lambda: 30.0

    def unstarted(self) -> Coordination:
        return SimCoordination(self.clock, self.server)

    async def kill(self, session: Coordination) -> None:
        """The session's process dies."""
        self.server.kill(session.session_id)

    async def expire(self, session: Coordination, other: Coordination) -> None:
        """The server ends a living session."""
        self.server.expire(session.session_id)
        await self.settle()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A running ZooKeeper."""
    if zookeeper_server.class_path() is None:
        pytest.skip(zookeeper_server.why_not())
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


NUMBERS = itertools.count()


@pytest.fixture(params=["embedded", "unsynced", "simulated", "zookeeper", "cut"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty tree; sessions of it are closed at the end of the test.

    "unsynced": on a disk that does not sync. "cut": a ZooKeeper whose connections break.
    """
    if request.param in ("embedded", "unsynced"):
        return EmbeddedTree(tmp_path, syncs=request.param == "embedded")
    if request.param == "simulated":
        return SimulatedTree()
    pytest.importorskip("kazoo", reason="kazoo is not installed")
    from zookeeper_tree import ZooKeeperTree

    server = request.getfixturevalue("zookeeper")
    return ZooKeeperTree(server, f"/tests/{next(NUMBERS)}", is_cut=request.param == "cut")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests: on the tree's own loop where they use one."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters}
    scenario = pyfuncitem.function(**arguments)
    if "tree" in arguments:
        arguments["tree"].run(scenario)
    else:
        asyncio.run(scenario)
    return True
