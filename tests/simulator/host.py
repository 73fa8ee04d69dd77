"""A machine and the broker process on it: started, killed, cut from power, stopped, started again.

Each process (a `Life`) sees the world through ports of its own. When the process is dead, its ports do nothing. So
callbacks that it left in the loop cannot touch the machine, the tree or the network that its successor uses.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from barnabas.broker.broker import Broker
from barnabas.cluster.tree.port import Coordination
from barnabas.config.broker import BrokerConfig
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Disk, Env, File, Listener, Network, Timer
from barnabas.runtime.turns import BUDGET_MS

from simulator.clock import WORK_STEP_MS, Process, SimClock, in_a_while
from simulator.disk import PowerLoss, SimDisk
from simulator.network import LOCALHOST, SimListener, SimNetwork

T = TypeVar("T")


class Tree(Protocol):
    """What the machines have in common."""

    def connect(self, clock: Clock, life: "Life") -> Coordination:
        """The client of a process."""

    def kill(self, session_id: int) -> None:
        """The process of that session is dead."""


class _LifeClock:
    """The machine's clocks. Callbacks of a dead process are not called."""

    def __init__(self, clock: SimClock, host: "Host", life: "Life") -> None:
        self._clock = clock
        self._host = host
        self._life = life
        self.monotonic_ms: Callable[[], float] = clock.monotonic_ms
        self.elapsed_ms: Callable[[], float] = clock.elapsed_ms
        self.work_ms: Callable[[], float] = clock.work_ms
        self.moved_ms = 0

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._host.wall_clock_error_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._clock.loop.call_soon(self._life.doing(callback)).owner = self._life

    def in_thread(self, work: Callable[[], T], thread: str = "work") -> Pending[T]:
        return in_a_while(self, work)

    def call_later(self, delay_ms: float, callback: Callable[[], None], slack_ms: float = 0.0) -> Timer:
        timer = self._clock.loop.call_later(delay_ms / 1000.0, self._life.doing(callback))
        timer.owner = self._life
        return timer

    async def sleep(self, delay_ms: float) -> None:
        await self._clock.sleep(delay_ms)
        if not self._life.alive:
            raise asyncio.CancelledError
        self._life.touched = True


class _LifeDisk:
    """The machine's disk. A dead process cannot reach it."""

    def __init__(self, disk: SimDisk, life: "Life", clock: _LifeClock) -> None:
        self._disk = disk
        self._life = life
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        if not self._life.alive:
            raise PowerLoss(f"{name} by a dead process")
        return getattr(self._disk, name)

    def sync_in_background(
        self, files: Sequence[File], done: Callable[[OSError | None], None], directories: Sequence[str] = ()
    ) -> None:
        life = self._life
        if life.alive:

            def synced(error: OSError | None) -> None:
                if life.alive:
                    life.hand_over(lambda: done(error))

            self._disk.sync_in_background(files, synced, directories)


class _LifeNetwork:
    """The network. It remembers which listeners and connections belong to this process."""

    def __init__(self, network: SimNetwork, life: "Life") -> None:
        self._network = network
        self._life = life

    async def host_name(self) -> str | None:
        return self._life.host.name

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Listener:
        listener = await self._network.listen(host, port, factory, backlog)
        assert isinstance(listener, SimListener)
        listener.owner = self._life
        self._life.listeners.append(listener)
        return listener

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        return await self._network.connect(host, port, factory, self._life.host.name, self._life)

    def send_file(self, transport: asyncio.Transport, file: File, position: int, length: int) -> int:
        return self._network.send_file(transport, file, position, length)

    def unread(self, transport: asyncio.Transport) -> bytes:
        return self._network.unread(transport)


def speaker(clock: SimClock) -> str:
    """The broker whose callback runs, for the trace."""
    owner = clock.loop.owner
    return f"{owner.host.name}.{owner.number} " if isinstance(owner, Life) else ""


class Life(Process):
    """One process: its environment and its broker."""

    def __init__(self, host: "Host", number: int, settings: Mapping[str, str], data_directories: Sequence[str]) -> None:
        super().__init__()
        self.host = host
        self.alive = True
        self.serving = False
        self.start: asyncio.Task[None] | None = None
        self.touched = True  # its state may have changed since the last inspection
        self.number = number
        self.listeners: list[SimListener] = []
        clock = self.clock = _LifeClock(host.clock, host, self)
        self.env = Env(
            clock=clock,
            disk=cast(Disk, _LifeDisk(host.disk, self, clock)),
            network=cast(Network, _LifeNetwork(host.network, self)),
            rng=random.Random(f"{host.seed} broker {number}"),
        )
        self.coordination = host.tree.connect(clock, self)
        self.broker = Broker(self.env, BrokerConfig.of(settings), tuple(data_directories), self.coordination)

    def doing(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Wrap a callback of the process: it does nothing if the process is dead by then."""

        def act() -> None:
            if self.alive:
                self.touched = True
                callback()

        return act

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task of the process."""
        loop = self.host.clock.loop
        return loop.as_process(self, loop.create_task, work)

    def hand_over(self, callback: Callable[[], None]) -> None:
        """Call now, or when the process is not paused any more; never if it is dead by then."""
        self.host.clock.loop.hand_over(self, self.doing(callback))


class Host:
    """The machine of one broker. `name` is its address in the network."""

    def __init__(
        self,
        seed: int | str,
        clock: SimClock,
        disk: SimDisk,
        network: SimNetwork,
        tree: Tree,
        settings: dict[str, str],
        data_directories: Sequence[str] = ("/data",),
        name: str = LOCALHOST,
    ) -> None:
        self.name = name
        self.data_directories = list(data_directories)
        self.seed = seed
        self.clock = clock
        self.disk = disk
        self.network = network
        self.tree = tree
        self.settings = settings
        self.wall_clock_error_ms = 0
        self._pauses: dict[str, None] = {}  # why the process stands still
        self.stops = 0  # how often it was paused from outside
        self._stalls = 0
        self._wall_clock_errors: list[tuple[float, int]] = []  # earlier errors of the wall clock, and until when
        self.life: Life | None = None
        self.lives = 0

    @property
    def is_up(self) -> bool:
        """Whether a process runs and has finished its start."""
        return self.life is not None and self.life.serving

    @property
    def coordinator_lives(self) -> tuple[int, int]:
        """Changes when the group coordinator has begun anew: with its process, or because it let go of its groups."""
        return self.lives, 0 if self.life is None else self.life.broker.group_coordinator.unloads

    def step_wall_clock(self, delta_ms: int) -> None:
        """Set the machine's clock, as a person would."""
        self._wall_clock_errors.append((self.clock.monotonic_ms(), self.wall_clock_error_ms))
        self.wall_clock_error_ms += delta_ms

    def wall_ms(self) -> int:
        """The machine's wall clock."""
        return self.clock.now_ms() + self.wall_clock_error_ms

    def wall_peak_ms(self, since_ms: float) -> int:
        """The latest time that the machine's clock has shown since an instant of the monotonic clock."""
        peak_ms = self.wall_ms()
        true_ms = self.clock.now_ms() - int(self.clock.monotonic_ms())
        for until_ms, error_ms in self._wall_clock_errors:
            if until_ms >= since_ms:
                peak_ms = max(peak_ms, true_ms + int(until_ms) + error_ms)
        return peak_ms

    async def start(
        self, settings: Mapping[str, str] | None = None, data_directories: Sequence[str] | None = None
    ) -> bool:
        """Start a process; False if it was stopped, killed or lost power meanwhile.

        The host's settings and directories are used, unless others are given. What `Broker.start` raises passes
        through.
        """
        assert self.life is None, "one process at a time"
        self.lives += 1
        life = self.life = Life(
            self,
            self.lives,
            self.settings if settings is None else settings,
            self.data_directories if data_directories is None else data_directories,
        )
        self.network.power_on(self.name)
        task = life.start = life.spawn(life.broker.start())
        try:
            await asyncio.wait([task])
        finally:
            if not life.alive and not task.done():
                task.cancel()
        if not life.alive:
            task.cancelled() or task.exception()
            return False
        if task.cancelled():
            self._exit(life)
            return False
        error = task.exception()
        if error is not None:
            if isinstance(error, PowerLoss):
                return False
            self._exit(life)
            raise error
        life.serving = True
        return True

    async def stop(self) -> None:
        """Stop the process in a controlled way. Returns early if it is killed meanwhile.

        A start is broken off, as `barnabas start` does with a signal.
        """
        life = self.life
        if life is None:
            return
        if life.start is not None and not life.start.done():
            life.start.cancel()
            await asyncio.wait([life.start])
            return  # who has started it sees how that ended
        task = life.spawn(life.broker.stop())
        await asyncio.wait([task])
        if life.alive:
            if not task.cancelled() and isinstance(task.exception(), PowerLoss):
                return  # the code that cut the power does the rest
            self._exit(life)
            task.result()
        else:
            task.cancelled() or task.exception()

    def kill(self, late_ms: float | None = None) -> int:
        """Kill the process as SIGKILL does: the page cache stays, connections are reset.

        With `late_ms`, what it had written and what had not arrived, and the resets, arrive so much later. Returns the
        number of these bytes.
        """
        late_bytes = 0
        life = self.life
        if life is not None:
            transports = self.network.owned(life)
            self._end(life)
            self.disk.crash("kept")
            for transport in transports:
                if late_ms is None:
                    transport.die()
                else:
                    late_bytes += transport.die_late(late_ms)
        return late_bytes

    def lose_power(self, fate: str) -> None:
        """Cut the power: unsynced bytes meet their fate, and no connection is told."""
        life = self.life
        if life is not None:
            self.network.dark[self.name] = None
            for transport in self.network.owned(life):
                transport.vanish()
            self._end(life)
            self.disk.crash(fate)

    # -- pauses

    @property
    def is_stopped(self) -> bool:
        """Whether it is paused from outside."""
        return "stopped" in self._pauses

    def pause(self, reason: str = "stopped") -> None:
        """Stop the process as SIGSTOP does. Its connections stay open, and its clocks go on."""
        if self.life is not None:
            self._pauses[reason] = None
            self.life.is_paused = True
            self.stops += reason == "stopped"

    def resume(self, reason: str = "stopped") -> None:
        """Let it go on, unless there is another reason for a pause."""
        self._pauses.pop(reason, None)
        if self.life is not None and self.life.is_paused and not self._pauses:
            self.clock.loop.resume(self.life)
            self.network.resumed(self.life)

    def slow_the_disk(self, sync_ms: float) -> None:
        """Let each sync take so long from now on; a process that syncs on its loop stands still for so long."""
        self.disk.sync_ms = sync_ms
        self.disk.on_change = self._stall if sync_ms else None

    def _stall(self, operation: str, path: str) -> None:
        life = self.life
        if life is not None and operation.startswith("sync") and self.clock.loop.owner is life:
            self.pause("disk")
            self._stalls += 1
            stall = self._stalls
            self.clock.call_later(self.disk.sync_ms, lambda: self.resume("disk") if stall == self._stalls else None)

    def slow_the_processor(self, slowness: float) -> None:
        """Let long tasks of the process take time from now on: so many times what they cost; 0: none, as usual.

        A pass of the loop does fewer pieces of them, and then the process stands still for as long as they took.
        """
        life = self.life
        if life is None:
            return
        ahead_ms = life.clock.work_ms() - self.clock.work_ms()
        worked_ms = 0.0

        def work_ms() -> float:
            nonlocal ahead_ms, worked_ms
            ahead_ms += WORK_STEP_MS * slowness
            worked_ms += WORK_STEP_MS * slowness
            if worked_ms >= BUDGET_MS and self.life is life:
                self.pause("work")
                self.clock.call_later(worked_ms, lambda: self._worked(life))
                worked_ms = 0.0
            return self.clock.work_ms() + ahead_ms

        life.clock.work_ms = work_ms if slowness else lambda: self.clock.work_ms() + ahead_ms

    def _worked(self, life: Life) -> None:
        if self.life is life:
            self.resume("work")

    def _exit(self, life: Life) -> None:
        """The process has ended by itself; the system closes the connections that it has left open."""
        for transport in self.network.owned(life):
            if not transport.is_closing():
                transport.die()
        self._end(life)

    def _end(self, life: Life) -> None:
        life.alive = life.serving = False
        self.life = None
        for listener in life.listeners:
            listener.close()
        self.tree.kill(life.coordination.session_id)
        for task in self.clock.loop.tasks_of(life):
            task.cancel()
        self._pauses.clear()
        self.clock.loop.resume(life)  # what is left of it finds that it is dead
