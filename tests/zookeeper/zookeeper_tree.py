"""The tree in a real ZooKeeper, for the contract suite: each session has a proxy of its own in front of the server."""

import asyncio
import math
import random
from typing import Any

from barnabas.cluster.tree.zookeeper import ZooKeeperCoordination
from barnabas.cluster.tree.zookeeper_settings import ZooKeeperSettings
from barnabas.runtime.clock import RealClock
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.network import RealNetwork
from barnabas.runtime.ports import Env
from cutting_proxy import Proxy
from kazoo.client import KazooClient
from zookeeper_server import ZooKeeperServer

SESSION_TIMEOUT_MS = 2_000.0


class LoopClock(RealClock):
    """The real clock, and the loop that it is used on."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        return asyncio.get_running_loop()


class ZooKeeperTree:
    """A chroot of its own in a running ZooKeeper, in real time.

    `is_cut`: connections are cut before operations, and reads and their answers are lost, as long as the session has
    left no watch (a watch is told of a cut, and most tests count what it is told).
    """

    tells_before_it_answers = True  # as ZooKeeper promises
    late_ms = math.inf  # the clock runs on

    def __init__(self, server: ZooKeeperServer, chroot: str, *, is_cut: bool = False) -> None:
        self.clock = LoopClock()
        self.env = Env(clock=self.clock, disk=RealDisk(), network=RealNetwork(), rng=random.Random(1))
        self.server = server
        self.chroot = chroot
        self.cuts = 0
        self._is_cut = is_cut
        self._sessions: list[tuple[ZooKeeperCoordination, Proxy]] = []
        self._unstarted: list[ZooKeeperCoordination] = []
        self._dead: list[ZooKeeperCoordination] = []

    def settings(self, address: str, **others: Any) -> ZooKeeperSettings:
        """Settings of a session with this tree, by this address."""
        return ZooKeeperSettings(f"{address}{self.chroot}", **{"session_timeout_ms": SESSION_TIMEOUT_MS, **others})

    async def session(self, **settings: Any) -> ZooKeeperCoordination:
        """A new started session with the same tree."""
        proxy = Proxy(self.server.port)
        await proxy.start()
        session = ZooKeeperCoordination(self.env, self.settings(proxy.address, **settings))
        self._sessions.append((session, proxy))
        await session.start()
        if self._is_cut:
            self._break(session, proxy)
        return session

    def proxy_of(self, session: Any) -> Proxy:
        """The proxy in front of a session."""
        return next(proxy for one, proxy in self._sessions if one is session)

    def _break(self, session: ZooKeeperCoordination, proxy: Proxy) -> None:
        """Break the connection again and again."""
        ask: Any = session._ask
        number = 0

        async def broken(request: Any, path: str, *, is_read: bool = False) -> Any:
            nonlocal number
            number += 1
            if session._watches_left == 0 and session._is_started:
                if number % 3 == 0:
                    self.cuts += 1
                    proxy.cut()
                    while session._is_connected:
                        await asyncio.sleep(0.001)
                elif is_read:
                    self.cuts += 1
                    proxy.lose_requests, proxy.lose_answers = (1, 0) if number % 2 else (0, 1)
            return await ask(request, path, is_read=is_read)

        session._ask = broken  # type: ignore[method-assign]

    def unstarted(self) -> ZooKeeperCoordination:
        """One that has no session yet."""
        session = ZooKeeperCoordination(self.env, self.settings(self.server.address))
        self._unstarted.append(session)
        return session

    async def settle(self) -> None:
        """Let every event reach every session: an answer comes after the events that were sent before it."""
        for _ in range(3):
            for session, _proxy in self._sessions:
                if session not in self._dead and session._is_started:
                    await session.confirm()
            await asyncio.sleep(0)

    async def kill(self, session: Any) -> None:
        """The session's process dies, and its session expires."""
        self._dead.append(session)
        proxy = self.proxy_of(session)
        proxy.accepts = False
        proxy.cut()
        while self.server.has_session(session.session_id):
            await asyncio.sleep(0.02)

    async def expire(self, session: Any, other: Any) -> None:
        """End a living session: another client takes it over and closes it."""
        before = session.session_id
        assert session._client is not None
        thief = KazooClient(self.server.address, client_id=session._client.kazoo.client_id)
        await asyncio.to_thread(thief.start)
        await asyncio.to_thread(thief.stop)
        while session.session_id == before:
            await asyncio.sleep(0.01)
        await self.settle()

    def run(self, scenario: Any) -> None:
        """Run a test on a loop of its own."""

        async def whole() -> None:
            try:
                await scenario
            finally:
                await self.close()

        asyncio.run(whole())

    async def close(self) -> None:
        """End all sessions."""
        for session in (*(session for session, _ in self._sessions), *self._unstarted):
            await session.close()
        for _, proxy in self._sessions:
            await proxy.close()
