"""Live resets under a seed: one group whose members read on, commit late, and miss what happens around them.

The coordinator is the real one (coordinators/groups/coordinator.py), over an offsets log whose commits take a while.
It dies and starts again at any time, often in the middle of a live reset, and the end of the log that was not
committed may be lost. Or another broker becomes the coordinator, and this one lives on and is still asked for a while.
Requests and answers are slow, late and sometimes lost. Members behave as known clients do: some keep their partitions
and positions while they join (cooperative Java clients; kafka-python, which does not even say so), some commit as
nobody when they have lost their id (librdkafka, aiokafka), and commits arrive long after they were sent.

An offset tells from which live reset it counts: the n-th one resets to n million. What must hold, whatever happens:
no offset of before is committed once a live reset was acknowledged; who has joined since reads on from the new
offsets; and nothing between is skipped.
"""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from barnabas.coordinators.groups.live_reset import LiveReset
from barnabas.offsets.records import CommittedOffset, GroupOffsets
from barnabas.protocol import messages
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending

from simulator.coordinator_world import REFUSED_SHARE, SETTINGS, CoordinatorWorld, Topics
from simulator.simulation import Verdict
from simulator.violation import Violation

GROUP = "readers"
TOPIC = "t"
EPOCH = 1_000_000  # offsets of the n-th live reset begin at n times this
SETTLE_MS = 60_000.0
LOST_ID = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


class Reader:
    """A member. `keeps`: its positions outlive a join. `claims`: and it says so. `commits_as_nobody`: see above."""

    def __init__(self, world: "LiveResets", name: str, *, keeps: bool, claims: bool, static: bool) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.seed} {name}")
        self.keeps = keeps
        self.claims = claims
        self.instance_id = name if static else None
        self.commits_as_nobody = self.rng.random() < 0.5
        self.member_id = ""
        self.generation = -1
        self.positions: dict[int, int] = {}
        self.asked_ms = -1.0  # when it sent the JoinGroup that gave it its partitions
        self.must_join = True
        self.needs_prepare = True

    async def run(self) -> None:
        """Join, read, commit, until the world ends."""
        while not self.world.ending:
            if self.must_join:
                await self._join()
                continue
            await self.world.sleep(self.rng, 100, 900)
            self._misbehave()
            self._read()
            if self.positions and self.rng.random() < 0.6:
                self._send_commit(self.generation, self.member_id)
            if self.rng.random() < 0.5:
                self._told(await self._beat())

    def _misbehave(self) -> None:
        if self.world.settling:
            return
        luck = self.rng.random()
        if luck < 0.01:
            self.world.note(f"{self.name} starts again")
            self.positions = {}
            self.member_id, self.generation = "", -1
            self.must_join = self.needs_prepare = True
        elif luck < 0.03:
            self.must_join = True  # its metadata has changed

    def _read(self) -> None:
        for index, position in self.positions.items():
            following = position + self.rng.randint(0, 5)
            self.world.processed(self, index, position, following)
            self.positions[index] = following

    def _send_commit(self, generation: int, member_id: str) -> None:
        """Commit without waiting; the request may arrive much later."""
        late = self.rng.random() < 0.2 and not self.world.settling
        delay_ms = self.rng.uniform(1_000, 9_000) if late else self.rng.uniform(0, 20)
        self.world.spawn(self._commit(dict(self.positions), generation, member_id, delay_ms))

    async def _commit(self, offsets: dict[int, int], generation: int, member_id: str, delay_ms: float) -> None:
        make = messages.OffsetCommitRequest
        rows = [
            make.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            for index, offset in offsets.items()
        ]
        request = make(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=self.instance_id if member_id else None,
            topics=[make.OffsetCommitRequestTopic(name=TOPIC, partitions=rows)],
        )
        response = await self.world.ask("offset_commit", request, 8, delay_ms)
        if response is None or generation < 0:
            return
        error = ErrorCode(response.topics[0].partitions[0].error_code)
        if generation == self.generation and member_id == self.member_id:
            self._told(error)

    async def _beat(self) -> ErrorCode:
        generation, member_id = self.generation, self.member_id
        request = messages.HeartbeatRequest(
            group_id=GROUP, generation_id=generation, member_id=member_id, group_instance_id=self.instance_id
        )
        response = await self.world.ask("heartbeat", request, 4)
        if response is None or (generation, member_id) != (self.generation, self.member_id):
            return ErrorCode.NONE
        return ErrorCode(response.error_code)

    def _told(self, error: ErrorCode) -> None:
        """What a heartbeat or a commit has told it."""
        if self.must_join or error in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
            return
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.must_join = True
        elif error in LOST_ID or error is ErrorCode.ILLEGAL_GENERATION:
            self._lose_id(keep_id=error is ErrorCode.ILLEGAL_GENERATION)
            self.must_join = True

    def _lose_id(self, *, keep_id: bool = False) -> None:
        self.generation = -1
        if not keep_id:
            self.member_id = ""

    def _prepare(self) -> None:
        """As clients do once for each rebalance, however often they must join for it."""
        self.needs_prepare = False
        if self.generation < 0:  # it was thrown out
            if self.positions and self.commits_as_nobody:
                self._send_commit(-1, "")
            self.positions = {}
        elif not self.keeps:
            if self.positions:
                self._send_commit(self.generation, self.member_id)
            self.positions = {}

    async def _join(self) -> None:
        if self.needs_prepare:
            self._prepare()
        owned = stored.ConsumerProtocolSubscription.TopicPartition
        claims = [owned(topic=TOPIC, partitions=sorted(self.positions))] if self.claims and self.positions else []
        subscription = stored.ConsumerProtocolSubscription(topics=[TOPIC], owned_partitions=claims)
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol
        request = messages.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=4_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[protocol(name=self.world.assignor, metadata=stored.encode_versioned(subscription, 1))],
        )
        asked_ms = self.world.clock.monotonic_ms()
        response = await self.world.ask("join_group", request, 9)
        if self.keeps and self.claims:
            self._read()  # cooperative clients read on while they join
        error = None if response is None else ErrorCode(response.error_code)
        if response is not None and error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        if response is None or error:
            if error in LOST_ID:
                self._lose_id()
            if error is not ErrorCode.MEMBER_ID_REQUIRED:
                await self.world.sleep(self.rng, 20, 400)
            return
        self.member_id, self.generation = response.member_id, response.generation_id
        await self._sync(response, asked_ms)

    async def _sync(self, joined: Any, asked_ms: float) -> None:
        assignments = self.world.assign(joined.members) if joined.leader == self.member_id else {}
        row = messages.SyncGroupRequest.SyncGroupRequestAssignment
        request = messages.SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=self.world.assignor,
            assignments=[row(member_id=member_id, assignment=data) for member_id, data in assignments.items()],
        )
        if self.rng.random() < 0.1 and not self.world.settling:
            await self.world.sleep(self.rng, 200, 3_000)
        response = await self.world.ask("sync_group", request, 5)
        error = None if response is None else ErrorCode(response.error_code)
        if response is None or error:
            if error in LOST_ID:
                self._lose_id()
            elif error is ErrorCode.ILLEGAL_GENERATION:
                self._lose_id(keep_id=True)
            await self.world.sleep(self.rng, 20, 200)
            return
        _, found = stored.decode_versioned(stored.ConsumerProtocolAssignment, response.assignment)
        given = [index for topic in found.assigned_partitions for index in topic.partitions]
        revoked = [index for index in self.positions if index not in given]
        if revoked and self.rng.random() < 0.5:  # in a callback of the application
            self._send_commit(self.generation, self.member_id)
        self.positions = {index: position for index, position in self.positions.items() if index in given}
        added = [index for index in given if index not in self.positions]
        generation = self.generation
        self.asked_ms = asked_ms
        self.must_join, self.needs_prepare = bool(revoked and self.claims), True
        offsets = await self._fetch(added) if added else {}
        if generation == self.generation:
            self.positions |= offsets

    async def _fetch(self, indexes: list[int]) -> dict[int, int]:
        make = messages.OffsetFetchRequest
        topics = [make.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=indexes)]
        while not self.world.ending:
            response = await self.world.ask("offset_fetch", make(group_id=GROUP, topics=topics), 7)
            if response is not None and not response.error_code:
                return {row.partition_index: max(row.committed_offset, 0) for row in response.topics[0].partitions}
            if self.must_join:
                return {}
            await self.world.sleep(self.rng, 20, 200)
        return {}


class LiveResets(CoordinatorWorld):
    """One run."""

    def __init__(
        self,
        seed: int,
        minutes: float = 1.5,
        trace: Callable[[str], None] | None = None,
        refused_share: float = REFUSED_SHARE,
    ) -> None:
        super().__init__(seed, minutes, trace, SETTINGS)
        self.refused_share = refused_share
        rng = self.rng
        self.count = rng.randint(1, 5)  # partitions
        self.topics = Topics({TOPIC: self.count})
        self.resets = 0  # asked for
        self.done = 0  # acknowledged
        self.acknowledged: dict[int, tuple[int, float]] = {}  # partition -> the last live reset, and when
        self.read_up_to: dict[tuple[int, int], int] = {(index, 0): 0 for index in range(self.count)}
        self.seen: dict[int, int] = {}  # the table at the last look
        self.cooperative = rng.random() < 0.5
        self.assignor = "cooperative-sticky" if self.cooperative else "range"
        static = rng.random() < 0.3
        self.readers = [
            Reader(
                self,
                f"reader{number}",
                keeps=self.cooperative or rng.random() < 0.5,
                claims=self.cooperative,
                static=static,
            )
            for number in range(rng.randint(1, 4))
        ]

    def summary(self) -> str:
        """The numbers of the run."""
        what = f"{self.life} coordinators, {self.moves} of which moved"
        return f"{self.done} live resets of {self.resets}, {what}, {self.answers} answers"

    def assign(self, members: list[Any]) -> dict[str, bytes]:
        """What the leader gives to each member: who keeps partitions has them first, and nobody gets another's."""
        kept: dict[int, str] = {}
        for member in members:
            _, found = stored.decode_versioned(stored.ConsumerProtocolSubscription, member.metadata)
            for topic in found.owned_partitions:
                for index in topic.partitions:
                    kept.setdefault(index, member.member_id)
        share: dict[str, list[int]] = {member.member_id: [] for member in members}
        most = -(-self.count // len(members))
        for index in range(self.count):
            owner = kept.get(index)
            if owner is not None and len(share[owner]) < most:
                share[owner].append(index)
            elif owner is None:
                share[min(share, key=lambda member_id: (len(share[member_id]), member_id))].append(index)
        row = stored.ConsumerProtocolAssignment.TopicPartition
        return {
            member_id: stored.encode_versioned(
                stored.ConsumerProtocolAssignment(
                    assigned_partitions=[row(topic=TOPIC, partitions=indexes)] if indexes else []
                ),
                0,
            )
            for member_id, indexes in share.items()
        }

    # -- what must hold

    def processed(self, reader: Reader, index: int, position: int, following: int) -> None:
        """A member has processed the records from `position` up to `following`."""
        epoch = position // EPOCH
        number, at_ms = self.acknowledged.get(index, (0, -1.0))
        if reader.asked_ms > at_ms and epoch < number:
            raise Violation(
                "who joins after a live reset reads on from there",
                f"{reader.name} is at {position} of partition {index}",
            )
        known = self.read_up_to.get((index, epoch))
        if known is None or position > known:
            raise Violation(
                "nothing is skipped", f"{reader.name} is at {position} of partition {index}, behind {known}"
            )
        self.read_up_to[index, epoch] = max(known, following)

    def after_pass(self) -> None:
        """Look at the table of committed offsets."""
        if self.coordinator is None or self.violation is not None:
            return
        shard = self.coordinator.shards.get(0)
        if shard is None or shard.loading:
            return
        table = {index: found.offset for index, found in shard.offsets.of_group(GROUP).get(TOPIC, {}).items()}
        if table == self.seen:
            return
        for index, offset in table.items():
            number = self.acknowledged.get(index, (0, 0.0))[0]
            if offset // EPOCH < number:
                self.fail(Violation("nothing is committed over a live reset", f"partition {index}: {offset}"))
            if offset // EPOCH < self.seen.get(index, 0) // EPOCH:
                detail = f"partition {index}: {offset} after {self.seen[index]}"
                self.fail(Violation("nothing is committed over a live reset", detail))
            if offset > self.read_up_to.get((index, offset // EPOCH), -1):
                self.fail(Violation("nothing is skipped", f"partition {index}: {offset} is committed, and not read"))
        for index in self.seen:
            if index not in table:
                self.fail(Violation("commits outlive the broker", f"partition {index}"))
        self.seen = table

    # -- the run

    async def story(self) -> None:
        """Trouble, then calm, then the last look."""
        await self.start_coordinator()
        for reader in self.readers:
            self.spawn(reader.run())
        self.spawn(self.die_now_and_then())
        self.spawn(self._reset_now_and_then())
        await self.clock.sleep(self.minutes * 60_000)
        self.note("calm from here on")
        self.settling = True
        await self.clock.sleep(SETTLE_MS / 2)
        self.former = None
        await self.clock.sleep(SETTLE_MS / 2)
        await self._reset(list(range(self.count)))
        await self.clock.sleep(SETTLE_MS)
        self._last_look()
        self.ending = True
        await self.clock.sleep(15_000)
        self.finish()

    def _last_look(self) -> None:
        owned = sorted(index for reader in self.readers for index in reader.positions)
        if owned != list(range(self.count)):
            raise Violation("every partition has an owner", f"{owned}")
        for reader in self.readers:
            for index, position in reader.positions.items():
                if position // EPOCH != self.resets:
                    raise Violation("who joins after a live reset reads on from there", f"{index}: {position}")

    async def _reset_now_and_then(self) -> None:
        while not self.settling:
            await self.sleep(self.rng, 1_000, 15_000)
            for _ in range(self.rng.choice((1, 1, 1, 2, 3))):  # several at the same time
                self.spawn(self._reset(self.rng.sample(range(self.count), self.rng.randint(1, self.count))))
                if self.rng.random() < 0.4:
                    await self.sleep(self.rng, 0, 60)
                    await self.die()
                if self.rng.random() < 0.5:
                    await self.sleep(self.rng, 0, 3_000)

    async def _reset(self, indexes: list[int]) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return
        self.resets += 1
        number = self.resets
        offsets: GroupOffsets = {TOPIC: {}}
        for index in sorted(indexes):
            target = number * EPOCH + self.rng.randint(0, 9)
            self.read_up_to[index, number] = target
            offsets[TOPIC][index] = CommittedOffset(target, commit_timestamp=self.clock.now_ms())
        self.note(f"live reset {number} of {sorted(indexes)}")
        reply = coordinator.live_resets.begin(
            GROUP, offsets, SimpleNamespace(client_id="c", client_host="/h", principal="User:alice")
        )
        if not isinstance(reply, Pending):
            return
        arrived: asyncio.Future[LiveReset] = self.clock.loop.create_future()
        reply.then(arrived.set_result)
        outcome = await arrived
        if outcome.error or coordinator in self.dead:
            self.note(f"live reset {number}: {outcome.error.name}")
            return
        self.note(f"live reset {number} is done in generation {outcome.generation}")
        self.done += 1
        now_ms = self.clock.monotonic_ms()
        for index in indexes:
            if self.acknowledged.get(index, (0, 0.0))[0] < number:
                self.acknowledged[index] = (number, now_ms)
        self.after_pass()


def run(
    seed: int,
    minutes: float = 1.5,
    trace: Callable[[str], None] | None = None,
    refused_share: float = REFUSED_SHARE,
) -> Verdict:
    """Run the world of a seed. The log refuses this share of what is appended."""
    return LiveResets(seed, minutes, trace, refused_share).run()
