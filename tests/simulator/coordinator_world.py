"""The real coordinator of groups over an offsets log whose commits take a while: what runs of groups have in common.

The coordinator dies and starts again at any time, and the end of the log that was not committed may be lost. Or another
broker becomes the coordinator, and this one lives on and is still asked for a while. Requests and answers are slow,
late and sometimes lost.
"""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from barnabas.cluster.metadata_cache import hash_of_topic
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.groups.coordinator import GroupCoordinator
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer, Env
from barnabas.storage.validation import AppendOrigin, AppendResult

from simulator.coordination import SimCoordination, SimTree
from simulator.env import sim_env
from simulator.simulation import Simulation

PARTS = {  # of the coordinator: which one answers
    "offset_commit": "commits",
    "offset_fetch": "offset_fetches",
    "heartbeat_consumer": "consumer",
}
METHODS = {"heartbeat_consumer": "heartbeat"}
REFUSED_SHARE = 0.01  # of appends, for want of replicas
SETTINGS = {
    "group_initial_rebalance_delay_ms": 500,
    "group_max_session_timeout_ms": 1_800_000,
    "group_max_size": 1_000,
    "group_min_session_timeout_ms": 1_000,
    "offset_metadata_max_bytes": 4096,
    "offsets_commit_required_acks": -1,
    "offsets_commit_timeout_ms": 5_000,
    "offsets_load_buffer_size": 5 * 1024 * 1024,
    "offsets_retention_check_interval_ms": 600_000,
    "offsets_retention_minutes": 10_080,
    "offsets_storage": "kafka",
    "dual_commit_enabled": False,
    "offsets_topic_compression_codec": 0,
}


class SlowLog:
    """The offsets partition: appends are committed after a while; a crash may take what is not."""

    def __init__(self, world: "CoordinatorWorld") -> None:
        self._world = world
        self.leader_epoch = 0
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self._batches: list[tuple[int, bytes]] = []
        self._waiters: list[tuple[int, Callable[[ErrorCode], None]]] = []

    def append(
        self,
        batch: Buffer | record_batch.PlainBatch,
        required_acks: int,
        origin: AppendOrigin = AppendOrigin.COORDINATOR,
    ) -> AppendResult:
        """Append; the high watermark follows later."""
        world = self._world
        if not world.settling and world.rng.random() < world.refused_share:
            return AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS)
        data = bytearray(batch.data if isinstance(batch, record_batch.PlainBatch) else batch)
        header = record_batch.read_header(data)
        record_batch.patch(data, 0, self.log_end_offset, self.leader_epoch)
        base = self.log_end_offset
        self._batches.append((base, bytes(data)))
        self.log_end_offset += header.record_count
        end, epoch = self.log_end_offset, self.leader_epoch
        slow = world.rng.random() < 0.05 and not world.settling
        delay_ms = world.rng.uniform(500, 3_000) if slow else world.rng.uniform(0, 30)
        world.clock.call_later(delay_ms, lambda: self._commit(end, epoch))
        return AppendResult(ErrorCode.NONE, base_offset=base, last_offset=end - 1)

    @property
    def shortage(self) -> str:
        """Its replicas are slow, but they are there."""
        return ""

    def park_until(self, offset: int, waiter: Callable[[ErrorCode], None]) -> object:
        """Call `waiter` when the high watermark is there."""
        if self.high_watermark >= offset:
            self._world.clock.call_soon(lambda: waiter(ErrorCode.NONE))
        else:
            self._waiters.append((offset, waiter))
        return None

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from `offset` on."""
        found = b""
        for _, batch in self._batches:
            if record_batch.read_header(batch).next_offset > offset:
                if found and len(found) + len(batch) > max_bytes:
                    break
                found += batch
        return found

    def crash(self) -> None:
        """Lose some of the end that is not committed; what remains is committed by the next leader."""
        at_risk = [base for base, _ in self._batches if base >= self.high_watermark]
        cut = self._world.rng.choice([*at_risk, self.log_end_offset])
        self._batches = [(base, batch) for base, batch in self._batches if base < cut]
        self.log_end_offset = self.high_watermark = cut
        self.leader_epoch += 1
        self._waiters = []

    def _commit(self, offset: int, leader_epoch: int) -> None:
        if leader_epoch != self.leader_epoch:
            return
        self.high_watermark = max(self.high_watermark, offset)
        due = [waiter for at, waiter in self._waiters if at <= self.high_watermark]
        self._waiters = [entry for entry in self._waiters if entry[0] > self.high_watermark]
        for waiter in due:
            waiter(ErrorCode.NONE)


class Topics:
    """The metadata cache: topics that get partitions."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.changes = self.name_changes = 0

    def add(self, topic: str) -> None:
        """One more partition."""
        self.counts[topic] += 1
        self.changes += 1

    def contains(self, topic: str, index: int | None = None) -> bool:
        """Whether it exists."""
        return topic in self.counts and (index is None or 0 <= index < self.counts[topic])

    @property
    def topics(self) -> dict[str, range]:
        """The partitions of each topic."""
        return {OFFSETS_TOPIC: range(1), **{topic: range(count) for topic, count in self.counts.items()}}

    def topic_names(self) -> list[str]:
        """All topics."""
        return list(self.counts)

    def partition_count(self, topic: str) -> int:
        """How many partitions it has."""
        return self.counts.get(topic, 0)

    def topic_hash(self, topic: str) -> int:
        """It tells its partitions."""
        return hash_of_topic(self.topic_id(topic), [[]] * self.counts[topic]) if topic in self.counts else 0

    def topic_id(self, topic: str) -> bytes:
        """Its id."""
        return topic.encode().rjust(16, b"\x01") if topic in self.counts else bytes(16)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Its name."""
        return next((topic for topic in self.counts if self.topic_id(topic) == topic_id), None)


class CoordinatorWorld(Simulation):
    """One run of a coordinator. A kind of run has `topics`, the clients, and what must hold."""

    topics: Topics
    refused_share = REFUSED_SHARE

    def __init__(
        self, seed: int, minutes: float, trace: Callable[[str], None] | None, settings: dict[str, Any]
    ) -> None:
        super().__init__(seed, minutes, trace)
        self.config: Any = SimpleNamespace(**settings)
        self.log = SlowLog(self)
        self.life = 0
        self.coordinator: GroupCoordinator | None = None
        self.former: GroupCoordinator | None = None  # it has lost the group to another broker, and some ask it still
        self.moves = 0
        self.moves_rng = random.Random(f"{seed} moves")
        self.dead: list[GroupCoordinator] = []  # what they still answer does not arrive
        self.settling = False
        self.ending = False

    async def sleep(self, rng: random.Random, low_ms: float, high_ms: float) -> None:
        """Sleep for a random time."""
        await self.clock.sleep(rng.uniform(low_ms, high_ms))

    def prepare(self) -> None:
        """Make the world that the coordinator lives in."""
        env = sim_env(self.seed)
        self._env = Env(clock=self.clock, disk=self.disk, network=self.network, rng=env.rng)

    def kill_all(self) -> None:
        """End the coordinator."""
        for each in (self.coordinator, self.former):
            if each is not None:
                each.shutdown()

    async def die_now_and_then(self) -> None:
        """The coordinator dies or moves, until it is calm."""
        while not self.settling:
            await self.sleep(self.rng, 3_000, 30_000)
            await self.die()

    async def die(self) -> None:
        """It dies or moves now, and starts again."""
        if self.coordinator is None or self.settling:
            return
        if self.moves_rng.random() < 0.3:
            self.lose_leadership()
        else:
            self.kill_coordinator()
        await self.sleep(self.rng, 10, 1_500)
        await self.start_coordinator()

    async def start_coordinator(self) -> None:
        """A new coordinator loads the log."""
        env = self._env
        coordination = SimCoordination(self.clock, SimTree(self.clock))
        await coordination.start()
        coordinator = GroupCoordinator(
            env,
            self.config,
            lambda index: self.log,
            self.topics,
            coordination,
            SimpleNamespace(holds=True),
            lambda *_: None,
        )
        coordinator.start()
        self.life += 1
        self.coordinator = coordinator
        led = SimpleNamespace(topic=OFFSETS_TOPIC, index=0, leader_epoch=self.log.leader_epoch)
        coordinator.on_leadership([led], [])

    def kill_coordinator(self) -> None:
        """It is killed."""
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            self.note("the coordinator dies")
            self.dead.append(coordinator)
            self.log.crash()
            coordinator.shutdown()

    def lose_leadership(self) -> None:
        """Another broker is to coordinate the group."""
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            self.note("the coordinator moves")
            self.moves += 1
            self.former = coordinator
            self.log.crash()
            led = SimpleNamespace(topic=OFFSETS_TOPIC, index=0, leader_epoch=self.log.leader_epoch)
            coordinator.on_leadership([], [led])

    async def ask(
        self, method: str, request: Any, version: int, delay_ms: float = -1.0, look: Callable[[], None] | None = None
    ) -> Any:
        """A client asks; None: the connection is lost. `look` is called just before the coordinator decides."""
        rng = self.network_rng
        await self.clock.sleep(self.latency_ms() if delay_ms < 0 else delay_ms)
        coordinator = self.coordinator
        if self.former is not None and self.moves_rng.random() < 0.3:
            coordinator = self.former
        is_bad = not self.settling and rng.random() < 0.02
        if coordinator is None or (is_bad and rng.random() < 0.5):
            await self.clock.sleep(rng.uniform(10, 100))
            return None
        context = SimpleNamespace(
            api_version=version, client_id="c", client_host="/h", principal="User:alice", is_long=False
        )
        part = PARTS.get(method)
        if look is not None:
            look()
        answers = getattr(coordinator, part) if part else coordinator
        reply = getattr(answers, METHODS.get(method, method))(request, context)
        if isinstance(reply, Pending):
            arrived: asyncio.Future[Any] = self.clock.loop.create_future()
            reply.then(arrived.set_result)
            reply = await arrived
        await self.clock.sleep(self.latency_ms())
        if is_bad or coordinator in self.dead:
            return None
        self.answers += 1
        return reply
