"""Retention that waits for groups, under a seed: one broker, one topic, groups that read on, fall behind and are reset.

The topic keeps records for a few seconds only, and names groups that retention waits for, one of them by a pattern. The
broker is stopped and killed meanwhile. What must hold: no record goes that such a group has not read, as long as the
longest wait is not over; and what all of them have read does go.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from barnabas.protocol import messages, record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record
from barnabas.runtime.pending import Pending

from simulator.coordination import SimTree
from simulator.host import Host
from simulator.simulation import Simulation, Verdict
from simulator.violation import Violation

TOPIC = "t"
NAMED = "billing"
OF_PATTERN = ("team-a", "team-b")
OTHER = "nobody-waits"
RETENTION_MS = 3_000
WAIT_MAX_MS = 40_000
LOOKS_EVERY_MS = 500
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "http.listeners": "none",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "log.retention.check.interval.ms": str(LOOKS_EVERY_MS),
    "log.segment.delete.delay.ms": "1000",
}
TOPIC_SETTINGS = {
    "retention.ms": str(RETENTION_MS),
    "segment.bytes": "1048576",
    "segment.ms": "1000",
    "barnabas.retention.wait.for.groups": f"{NAMED},team-*",
    "barnabas.retention.wait.max.ms": str(WAIT_MAX_MS),
}
SETTLE_MS = 30_000.0


class RetentionHolds(Simulation):
    """One run."""

    def __init__(self, seed: int, minutes: float = 1.0, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, minutes, trace)
        self.host = Host(seed, self.clock, self.disk, self.network, SimTree(self.clock), SETTINGS)
        self.end = 0  # records that were acknowledged
        self.written_ms: list[float] = []  # when each was
        # What each group may have committed: the last acknowledged offset, and those since then of which nobody knows.
        self.committed: dict[str, list[int]] = {NAMED: [0]}
        self.fresh: dict[str, float] = {}  # groups of the pattern that retention need not know yet, and until when
        self.settling = False
        self.waited = 0  # looks at which something stayed for a group
        self.went = 0  # records that went

    def summary(self) -> str:
        """The numbers of the run."""
        return (
            f"{self.end} records, {self.went} went, {self.waited} looks at which some waited, {self.host.lives} lives"
        )

    # -- what must hold

    def after_pass(self) -> None:
        """Look at where the log starts."""
        life = self.host.life
        if life is None or not self.host.is_up or self.violation is not None:
            return
        partition = life.broker.replica_manager.partitions.get((TOPIC, 0))
        if partition is None:
            return
        start = partition.log.log_start_offset
        now_ms = self.clock.monotonic_ms()
        lowest = min(max(offsets) for group, offsets in self.committed.items() if group not in self.fresh)
        self.went = max(self.went, start)
        for group in [group for group, until_ms in self.fresh.items() if now_ms >= until_ms]:
            del self.fresh[group]
            self.committed[group] = [max(offset, self.went) for offset in self.committed[group]]
        overdue_ms = RETENTION_MS + WAIT_MAX_MS  # who is so far behind is not waited for any longer
        old = sum(now_ms - at_ms >= overdue_ms for at_ms in self.written_ms[lowest:start])
        if start > lowest and old < start - lowest:
            behind = sorted(group for group, found in self.committed.items() if max(found) < start)
            self.fail(Violation("retention waits for groups", f"the log starts at {start}; {behind} are behind it"))
        if start <= lowest < self.end and now_ms - self.written_ms[lowest] > 2 * RETENTION_MS:
            self.waited += 1

    def kill_all(self) -> None:
        """End the broker."""
        self.host.kill()

    # -- requests

    async def ask(self, request: Any, version: int) -> Any:
        """A client asks; None: the broker has died meanwhile."""
        life = self.host.life
        if life is None or not self.host.is_up:
            return None
        arrived: asyncio.Future[Any] = self.clock.loop.create_future()
        reply: Pending[Any] = life.broker.request_gate.ask(request, version)
        reply.then(lambda answer: None if arrived.done() else arrived.set_result(answer))
        while not arrived.done():
            if not life.alive:
                return None
            await self.clock.sleep(5)
        return arrived.result()

    async def _create(self) -> None:
        make = messages.CreateTopicsRequest
        configs = [make.CreatableTopicConfig(name=name, value=value) for name, value in TOPIC_SETTINGS.items()]
        topic = make.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, configs=configs)
        answer = await self.ask(make(topics=[topic], timeout_ms=20_000), 5)
        if answer is None or answer.topics[0].error_code:
            raise Violation("the simulation itself", f"no topic: {answer}")
        while (await self.ask(messages.FindCoordinatorRequest(key=NAMED), 3)).error_code:
            await self.clock.sleep(100)

    async def _produce(self, count: int) -> None:
        records = [Record(offset, self.host.wall_ms(), None, b"x", []) for offset in range(count)]
        make = messages.ProduceRequest
        data = make.PartitionProduceData(index=0, records=bytes(record_batch.build(records)))
        answer = await self.ask(
            make(acks=1, timeout_ms=5_000, topic_data=[make.TopicProduceData(name=TOPIC, partition_data=[data])]), 8
        )
        if answer is not None and not answer.responses[0].partition_responses[0].error_code:
            base = answer.responses[0].partition_responses[0].base_offset
            now_ms = self.clock.monotonic_ms()
            self.written_ms += [now_ms] * (base + count - len(self.written_ms))
            self.end = len(self.written_ms)

    async def _commit(self, group: str, offset: int) -> None:
        self.asked_to_commit(group, offset)
        make = messages.OffsetCommitRequest
        row = make.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = make(group_id=group, topics=[make.OffsetCommitRequestTopic(name=TOPIC, partitions=[row])])
        answer = await self.ask(request, 8)
        if answer is None or answer.topics[0].partitions[0].error_code != ErrorCode.NONE:
            return
        self.has_committed(group, offset)

    def asked_to_commit(self, group: str, offset: int) -> None:
        """A group is about to commit."""
        self.note(f"{group} commits {offset}")
        if group in self.committed:
            self.committed[group].append(offset)

    def has_committed(self, group: str, offset: int) -> None:
        """The broker said that it has."""
        if group != OTHER:
            if group not in self.committed:
                self.fresh[group] = self.clock.monotonic_ms() + 2 * LOOKS_EVERY_MS
            self.committed[group] = [max(offset, self.went)]  # retention may have gone on until it was set back

    # -- the run

    async def story(self) -> None:
        """Write, read and fall behind; then all read everything, and everything that is old goes."""
        await self.host.start()
        await self._create()
        self.spawn(self._die_now_and_then())
        ends_ms = self.clock.monotonic_ms() + self.minutes * 60_000
        while self.clock.monotonic_ms() < ends_ms:
            await self.clock.sleep(self.rng.uniform(50, 1_500))
            await self._something()
        self.note("calm from here on")
        self.settling = True
        while not self.host.is_up:
            await self.clock.sleep(100)
        await self.clock.sleep(2_000)
        await self._produce(1)
        for group in (NAMED, *OF_PATTERN):
            await self._commit(group, self.end)
        await self.all_have_read()
        if any(offsets != [self.end] for offsets in self.committed.values()):
            raise Violation("the simulation itself", f"a commit was refused: {self.committed} of {self.end}")
        await self.clock.sleep(SETTLE_MS)
        if self.went < self.end:
            raise Violation("retention goes on when groups have read", f"{self.went} of {self.end} records went")
        self.finish()

    async def all_have_read(self) -> None:
        """Others have read everything, too."""

    async def _something(self) -> None:
        luck = self.rng.random()
        if luck < 0.5:
            await self._produce(self.rng.randint(1, 20))
            return
        group = self.rng.choice((NAMED, NAMED, *OF_PATTERN, OTHER))
        known = max(self.committed.get(group, [self.went]))
        if luck < 0.95:
            await self._commit(group, self.rng.randint(min(known, self.end), self.end))
        else:
            await self._commit(group, max(self.went, known - self.rng.randint(0, 20)))  # an operator sets it back

    async def _die_now_and_then(self) -> None:
        rng = random.Random(f"{self.seed} deaths")
        while not self.settling:
            await self.clock.sleep(rng.uniform(4_000, 25_000))
            if self.settling:
                return
            if rng.random() < 0.5:
                self.host.kill()
            else:
                await self.host.stop()
            await self.clock.sleep(rng.uniform(10, 3_000))
            await self.host.start()


def run(seed: int, minutes: float = 1.0, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run the world of a seed."""
    return RetentionHolds(seed, minutes, trace).run()
