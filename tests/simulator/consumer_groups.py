"""Groups that go from the classic to the consumer protocol (KIP-848) and back, under a seed, while their members read.

Members of both protocols come and go, are silent for too long, give partitions up slowly, and commit late; the
coordinator dies and moves (`coordinator_world.py`), and topics get partitions. A client knows what it owns only from
what it was told, and says that it has given something up only when it has. At any time:

- a partition has one owner that has acknowledged it, of those that are in the group;
- epochs only grow;
- who is not in the group any more, or whose partition another one has, commits nothing for it. An offset tells whose
  it is: the n-th owner of a partition begins at n million.

And once it is calm: assignments converge within two heartbeats of each member (classic members need more), after a
member has come, and after one has gone.

In some worlds the group is as a large one: its assignments take a while (`is_large`).
"""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.states import GroupState
from barnabas.coordinators.groups.live_reset import LiveReset
from barnabas.coordinators.groups.states import State
from barnabas.offsets.records import CommittedOffset, GroupOffsets
from barnabas.protocol import messages
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, Turns

from simulator.coordinator_world import SETTINGS, CoordinatorWorld, Topics
from simulator.simulation import Verdict
from simulator.violation import Violation

GROUP = "readers"
OWNER = 1_000_000
BEAT_MS = 1_000
SESSION_MS = 6_000
REBALANCE_MS = 5_000
INTERVAL_MS = 1_000  # group.consumer.assignment.interval.ms, where there is one
SLACK_MS = 1_500.0  # answers that are slow, and commits of the log
WORK_MS = 1_500.0  # an assignment to a large group takes at most so long
GONE = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)

Partition = tuple[str, int]


class Client:
    """A process that reads. Its kind of member changes when it starts again: that is how groups migrate."""

    def __init__(self, world: "ConsumerGroups", name: str) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.seed} {name}")
        self.instance_id = name if self.rng.random() < 0.25 else None
        self.is_classic = world.is_classic_at_first
        self.cooperates = world.is_hasty or self.rng.random() < 0.5
        self.is_off = False
        self.starts = 0
        self.read: dict[Partition, int] = {}  # positions
        self.start()

    def start(self) -> None:
        """A process begins."""
        self.starts += 1
        self.member_id = "" if self.is_classic else f"{self.name}-{self.starts}"
        self.epoch = 0  # of a classic member: its generation
        self.owned: set[Partition] = set()
        self.told: set[Partition] | None = None  # what the coordinator was told that it owns; None: tell everything
        self.must_join = True
        self.leads = False  # of a classic group: then it looks for new partitions
        self.seen_topics = 0
        self.world.forget(self)

    async def run(self) -> None:
        """Live until the world ends."""
        while not self.world.ending:
            if self.is_off:
                await self.world.sleep(self.rng, 200, 800)
                continue
            if self.is_classic:
                await self._classic_beat()
            else:
                await self._beat()
            await self._rest()

    async def _rest(self) -> None:
        world, rng = self.world, self.rng
        luck = rng.random()
        if world.settling or luck > (0.2 if world.is_hasty else 0.08):
            await world.sleep(rng, BEAT_MS * 0.8, BEAT_MS)
        elif luck < 0.02:
            world.note(f"{self.name} is silent")
            await world.sleep(rng, 2_000, 2 * SESSION_MS)
        elif luck < 0.06 or world.is_hasty:
            await self.stop(leaves=rng.random() < 0.6)
            self.is_classic = world.next_is_classic(rng)
            await world.sleep(rng, 50, 1_500 if world.is_hasty or rng.random() < 0.7 else 9_000)
            self.start()
        self.process()

    async def stop(self, *, leaves: bool, for_good: bool = False) -> None:
        """The process ends, and may say so."""
        self.world.note(f"{self.name} stops{' and leaves' if leaves else ''}")
        for partition in sorted(self.owned):
            self.world.released(self, partition)
        self.owned = set()
        if leaves and self.member_id and self.is_classic:
            member = messages.LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
            await self.world.ask("leave_group", messages.LeaveGroupRequest(group_id=GROUP, members=[member]), 5)
        elif leaves and self.member_id:
            epoch = -1 if for_good or self.instance_id is None or self.rng.random() < 0.5 else -2
            await self.world.ask("heartbeat_consumer", self._request(epoch), 1)

    def process(self) -> None:
        """Read on in what it owns, and commit."""
        for partition in sorted(self.owned):
            self.read[partition] = max(self.read.get(partition, 0), self.world.begins_at(partition))
            self.read[partition] += self.rng.randint(0, 5)
        if self.owned and self.rng.random() < 0.5:
            late = self.rng.random() < 0.2 and not self.world.settling
            delay_ms = self.rng.uniform(500, 9_000) if late else self.rng.uniform(0, 20)
            offsets = {partition: self.read[partition] for partition in sorted(self.owned)}
            self.world.spawn(self._commit(offsets, self.epoch, self.member_id, self.starts, delay_ms))

    async def _commit(
        self, offsets: dict[Partition, int], epoch: int, member_id: str, start: int, delay_ms: float
    ) -> None:
        make = messages.OffsetCommitRequest
        rows: dict[str, list[Any]] = {}
        for (topic, index), offset in offsets.items():
            row = make.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            rows.setdefault(topic, []).append(row)
        request = make(
            group_id=GROUP,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[make.OffsetCommitRequestTopic(name=topic, partitions=each) for topic, each in rows.items()],
        )
        refused: set[Partition] = set()
        resets = self.world.resets

        def look() -> None:
            if resets != self.world.resets:
                refused.update(offsets)  # positions from before a live reset
            refused.update(each for each in offsets if self.world.must_refuse(self, start, member_id, epoch, each))

        response = await self.world.ask("offset_commit", request, 9, delay_ms, look)
        for topic in () if response is None else response.topics:
            for row in topic.partitions:
                partition = topic.name, row.partition_index
                self.world.commits += not row.error_code
                if not row.error_code and partition in refused:
                    detail = f"{self.name} ({member_id}, epoch {epoch}) has committed {partition}"
                    raise Violation("who is fenced commits nothing", detail)

    # ---- the consumer protocol ----

    def _request(self, epoch: int, owned: set[Partition] | None = None, **fields: Any) -> Any:
        make = messages.ConsumerGroupHeartbeatRequest
        rows = None
        if owned is not None:
            rows = [
                make.TopicPartitions(topic_id=self.world.topics.topic_id(topic), partitions=sorted(indexes))
                for topic, indexes in _by_topic(owned).items()
            ]
        return make(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            topic_partitions=rows,
            **fields,
        )

    async def _beat(self) -> None:
        """One heartbeat. What is taken away is given up, which may take a while, and told at once."""
        for _ in range(2):
            if not await self._one_beat():
                return

    async def _one_beat(self) -> bool:
        """Whether there is something to tell at once."""
        everything = {"subscribed_topic_names": self.world.topics.topic_names(), "rebalance_timeout_ms": REBALANCE_MS}
        if self.epoch == 0:
            request = self._request(0, set(), **everything)
        elif self.told is None:
            request = self._request(self.epoch, self.owned, **everything)
        else:
            request = self._request(self.epoch, self.owned if self.told != self.owned else None)
        start, sent, telling = self.starts, self.epoch, set(self.owned)
        response = await self.world.ask("heartbeat_consumer", request, 1)
        if response is None or self.starts != start:
            self.told = None
            return False
        error = ErrorCode(response.error_code)
        if error in GONE:
            self._lose_all()
            return False
        if error:
            self.told = None
            return False
        self.told = telling
        self.world.epoch_is(self, sent, response.member_epoch)
        self.epoch = response.member_epoch
        if response.assignment is None:
            return False
        given = {
            (self.world.topics.topic_name(row.topic_id) or "", index)
            for row in response.assignment.topic_partitions
            for index in row.partitions
        }
        await self._take(given, slow=self.rng.random() < 0.3)
        return self.owned != self.told

    async def _take(self, given: set[Partition], *, slow: bool) -> None:
        if slow and self.owned - given and not self.world.settling:
            await self.world.sleep(self.rng, 100, 2_500)  # in a callback of the application
        for partition in sorted(self.owned - given):
            self.world.released(self, partition)
        for partition in sorted(given - self.owned):
            self.world.acquired(self, partition)
        self.owned = given

    def _lose_all(self) -> None:
        self.world.note(f"{self.name} is not in the group any more")
        for partition in sorted(self.owned):
            self.world.released(self, partition)
        self.owned, self.epoch, self.told = set(), 0, None
        self.must_join = True
        if self.is_classic:
            self.member_id = ""

    # ---- the classic protocol ----

    async def _classic_beat(self) -> None:
        self.must_join = self.must_join or (self.leads and self.seen_topics != self.world.topics.changes)
        if not self.must_join:
            request = messages.HeartbeatRequest(
                group_id=GROUP, generation_id=self.epoch, member_id=self.member_id, group_instance_id=self.instance_id
            )
            response = await self.world.ask("heartbeat", request, 4)
            error = ErrorCode.NONE if response is None else ErrorCode(response.error_code)
            if error in GONE:
                self._lose_all()
            self.must_join = self.must_join or error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
            if error is ErrorCode.ILLEGAL_GENERATION:
                await self._take(set(), slow=False)
        for _ in range(8):
            if not self.must_join or self.is_off or not await self._join():
                return

    async def _join(self) -> bool:
        """Whether it is to be tried again at once."""
        if not self.cooperates:
            await self._take(set(), slow=self.rng.random() < 0.2)
        make = stored.ConsumerProtocolSubscription
        owned = [
            make.TopicPartition(topic=topic, partitions=sorted(each)) for topic, each in _by_topic(self.owned).items()
        ]
        said = make(topics=self.world.topics.topic_names(), owned_partitions=owned)
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol
        request = messages.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[protocol(name="range", metadata=stored.encode_versioned(said, 1))],
        )
        start = self.starts
        response = await self.world.ask("join_group", request, 9)
        error = None if response is None else ErrorCode(response.error_code)
        if response is None or error or start != self.starts:
            if error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
                return True
            if error in GONE:
                self._lose_all()
            return False
        self.member_id = response.member_id
        return await self._sync(response)

    async def _sync(self, joined: Any) -> bool:
        shares = self.world.assign(joined.members) if joined.leader == self.member_id else {}
        row = messages.SyncGroupRequest.SyncGroupRequestAssignment
        request = messages.SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[row(member_id=member_id, assignment=data) for member_id, data in shares.items()],
        )
        start = self.starts
        response = await self.world.ask("sync_group", request, 5)
        error = None if response is None else ErrorCode(response.error_code)
        if response is None or error or start != self.starts:
            if error in GONE:
                self._lose_all()
            return error is ErrorCode.REBALANCE_IN_PROGRESS
        _, found = stored.decode_versioned(stored.ConsumerProtocolAssignment, response.assignment)
        given = {(topic.topic, index) for topic in found.assigned_partitions for index in topic.partitions}
        self.world.epoch_is(self, self.epoch, joined.generation_id)  # a generation is stored when its members sync
        self.epoch, self.leads = joined.generation_id, joined.leader == self.member_id
        self.seen_topics = self.world.topics.changes
        gives_up = bool(self.owned - given)
        await self._take(given, slow=self.rng.random() < 0.2)
        self.must_join = gives_up  # it says by a join that it has given something up
        return gives_up


def _by_topic(partitions: set[Partition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found


class SlowTurns:
    """The works of consumer groups: they begin late, as those that have much else beside them."""

    def __init__(self, world: "ConsumerGroups", turns: Turns) -> None:
        self.world = world
        self.turns = turns
        self.rng = random.Random(f"{world.seed} works {world.life}")

    def begin(self, pieces: Pieces[None]) -> None:
        """Do the pieces, later."""
        self.world.works += 1

        def begin_now() -> None:
            self.turns.begin(pieces)

        self.world.clock.call_later(self.rng.uniform(0, WORK_MS), begin_now)


class ConsumerGroups(CoordinatorWorld):
    """One run."""

    topics: Topics

    def __init__(
        self,
        seed: int,
        minutes: float = 1.5,
        trace: Callable[[str], None] | None = None,
        *,
        with_resets: bool = False,
    ) -> None:
        self.with_resets = with_resets
        self.resets = 0  # that are done
        self.moved_to: set[tuple[Partition, int]] = set()  # offsets of live resets
        self.shape_rng = random.Random(f"{seed} shape")
        rng = self.shape_rng
        self.interval_ms = rng.choice((0, INTERVAL_MS))
        super().__init__(
            seed,
            minutes,
            trace,
            {
                **SETTINGS,
                "group_initial_rebalance_delay_ms": 200,
                "group_consumer_assignment_interval_ms": self.interval_ms,
                "group_consumer_assignors": rng.choice((("uniform", "range"), ("range", "uniform"))),
                "group_consumer_heartbeat_interval_ms": BEAT_MS,
                "group_consumer_max_size": 1_000,
                "group_consumer_migration_policy": "bidirectional",
                "group_consumer_session_timeout_ms": SESSION_MS,
            },
        )
        self.topics = Topics({"t": rng.randint(1, 5), "u": rng.randint(1, 3)})
        self.phase = rng.choice(("up", "down", "mixed", "consumer"))
        self.is_hasty = rng.random() < 0.3  # rebalances come in the midst of others
        self.is_large = random.Random(f"{seed} size").random() < 0.25
        self.works = 0  # assignments to a large group
        self.is_classic_at_first = self.phase in ("up", "mixed")
        self.committed: dict[Partition, int] = {}
        self.last_owner: dict[Partition, tuple[Client, int]] = {}
        self.owners_so_far: dict[Partition, int] = {}
        self.owners: dict[Partition, dict[Client, None]] = {}
        self.epoch_told = 0  # the highest
        self.commits = self.conversions = 0
        self._was_consumer: bool | None = None
        self._members_before = 0
        self.clients: list[Client] = []
        self.clients = [Client(self, f"client{number}") for number in range(rng.randint(2, 5))]

    async def start_coordinator(self) -> None:
        """A new coordinator, for which this group may be a large one."""
        await super().start_coordinator()
        if self.is_large and self.coordinator is not None:
            self.coordinator.consumer.at_once_max = -1
            for shard in self.coordinator.shards.values():
                shard.consumer._turns = SlowTurns(self, self._env.turns)  # type: ignore[assignment]

    def summary(self) -> str:
        """The numbers of the run."""
        what = f"{self.life} coordinators, {self.moves} of which moved"
        return f"{self.conversions} conversions, {self.commits} commits, {what}, {self.answers} answers"

    def next_is_classic(self, rng: random.Random) -> bool:
        """What a client is when it starts again."""
        share = {"up": 0.15, "down": 0.85, "mixed": 0.5, "consumer": 0.0}[self.phase]
        return rng.random() < share

    def assign(self, members: list[Any]) -> dict[str, bytes]:
        """What the leader of a classic group gives to each member: who keeps a partition has it first."""
        kept: dict[Partition, str] = {}
        for member in members:
            _, found = stored.decode_versioned(stored.ConsumerProtocolSubscription, member.metadata)
            for topic in found.owned_partitions:
                for index in topic.partitions:
                    kept.setdefault((topic.topic, index), member.member_id)
        shares: dict[str, set[Partition]] = {member.member_id: set() for member in members}
        every = [(topic, index) for topic, count in self.topics.counts.items() for index in range(count)]
        most = -(-len(every) // len(members))
        for partition in every:
            owner = kept.get(partition)
            if owner is not None and len(shares[owner]) < most:
                shares[owner].add(partition)
            elif owner is None:
                shares[min(shares, key=lambda each: (len(shares[each]), each))].add(partition)
        make = stored.ConsumerProtocolAssignment
        return {
            member_id: stored.encode_versioned(
                make(
                    assigned_partitions=[
                        make.TopicPartition(topic=topic, partitions=each) for topic, each in _by_topic(share).items()
                    ]
                ),
                0,
            )
            for member_id, share in shares.items()
        }

    # -- what must hold

    def _shard(self) -> Any:
        if self.coordinator is None:
            return None
        shard = self.coordinator.shards.get(0)
        return None if shard is None or shard.loading else shard

    def _is_member(self, client: Client) -> bool:
        """Whether the coordinator has it in the group: nobody may have its partitions then."""
        shard = self._shard()
        if shard is None or not client.member_id:
            return False
        group = shard.consumer.by_id.get(GROUP)
        if group is not None:
            member = group.members.get(client.member_id)
            return member is not None and client.epoch in (member.epoch, member.current.previous_epoch)
        classic = shard.groups.get(GROUP)
        return classic is not None and client.member_id in classic.members.by_id and classic.generation == client.epoch

    def _has(self, client: Client, partition: Partition) -> bool:
        """Whether the coordinator knows that it has a partition, if the group is a consumer group."""
        shard = self._shard()
        group = None if shard is None else shard.consumer.by_id.get(GROUP)
        return group is None or group.owner_of(self.topics.topic_id(partition[0]), partition[1]) == client.member_id

    def acquired(self, client: Client, partition: Partition) -> None:
        """A client owns a partition from now on, as far as it knows."""
        owners = self.owners.setdefault(partition, {})
        for other in owners:
            if other is client or (self.with_resets and not self._has(other, partition)):
                continue  # a live reset has taken it from a classic member, which joins again without having heard so
            if self._is_member(other) and self._is_member(client):
                detail = f"{partition} is owned by {other.name}, and {client.name} has it now"
                raise Violation("a partition has one owner", detail)
        owners[client] = None
        if self.last_owner.get(partition) != (client, client.starts):
            self.last_owner[partition] = client, client.starts
            self.owners_so_far[partition] = self.owners_so_far.get(partition, 0) + 1

    def begins_at(self, partition: Partition) -> int:
        """The first offset of the newest owner."""
        return self.owners_so_far[partition] * OWNER

    def must_refuse(self, client: Client, start: int, member_id: str, epoch: int, partition: Partition) -> bool:
        """Whether a commit of this member for the partition may not count, if the coordinator decides about it now.

        As in Kafka, a member may commit everything in its present epoch, also late what it has given up since.
        """
        shard = self._shard()
        if shard is None:
            return False
        group, classic = shard.consumer.by_id.get(GROUP), shard.groups.get(GROUP)
        members = group.members if group is not None else {} if classic is None else classic.members.by_id
        if members and member_id not in members:
            return True
        if group is not None and member_id in members and members[member_id].epoch == epoch:
            return False
        owners = self.owners.get(partition, {})
        if client.starts == start and client in owners:
            return False
        return any(self._is_member(other) for other in owners)

    def released(self, client: Client, partition: Partition) -> None:
        """A client has given a partition up, or knows that it lost it."""
        self.owners.get(partition, {}).pop(client, None)

    def forget(self, client: Client) -> None:
        """A client has started again, with nothing."""
        for owners in self.owners.values():
            owners.pop(client, None)

    def epoch_is(self, client: Client, before: int, epoch: int) -> None:
        """A client was told its epoch."""
        if 0 <= epoch < before <= self.epoch_told:
            raise Violation("epochs only grow", f"{client.name} was in {before} and is in {epoch}")
        self.epoch_told = max(self.epoch_told, epoch)

    def after_pass(self) -> None:
        """Look at the group and at the committed offsets."""
        shard = self._shard()
        if shard is None or self.violation is not None:
            return
        group = shard.consumer.by_id.get(GROUP)
        classic = shard.groups.get(GROUP)
        if group is not None or classic is not None:
            self._look_at_epoch(group, classic)
        if group is not None:
            self._look_at_owners(group)
        table = {
            (topic, index): found.offset
            for topic, each in shard.offsets.of_group(GROUP).items()
            for index, found in each.items()
        }
        for partition, offset in self.committed.items():
            now = table.get(partition, -1)
            if now // OWNER < offset // OWNER and (partition, now) not in self.moved_to:
                detail = f"{partition}: {now} after {offset}"
                self.fail(Violation("who is fenced commits nothing", detail))
        self.committed = table

    def _look_at_epoch(self, group: ConsumerGroup | None, classic: Any) -> None:
        """An upgrade and a downgrade go on with the epoch. A group that has lost its members may begin anew."""
        epoch = classic.generation if group is None else group.epoch
        count = len(classic.members.by_id if group is None else group.members)
        has_changed = self._was_consumer is not (group is not None)
        if has_changed:
            self.conversions += self._was_consumer is not None and self._members_before > 1
            if self._members_before <= 1:
                self.epoch_told = 0
        if epoch < self.epoch_told:
            self.fail(Violation("epochs only grow", f"{self.epoch_told} was told, and the group is in {epoch}"))
        self._was_consumer, self._members_before = group is not None, count

    def _look_at_owners(self, group: ConsumerGroup) -> None:
        seen: dict[tuple[bytes, int], str] = {}
        for member_id, member in group.members.items():
            for assigned in (member.current.assigned, member.current.revoking):
                for topic_id, partitions in assigned.items():
                    for index in partitions:
                        other = seen.setdefault((topic_id, index), member_id)
                        if other != member_id:
                            detail = f"{index} is with {other} and {member_id} in the coordinator"
                            self.fail(Violation("a partition has one owner", detail))

    # -- the run

    async def story(self) -> None:
        """Trouble, then calm, then the last look."""
        await self.start_coordinator()
        for client in self.clients:
            self.spawn(client.run())
        self.spawn(self.die_now_and_then())
        self.spawn(self._change_topics())
        if self.with_resets:
            self.spawn(self._reset_now_and_then())
        await self.clock.sleep(self.minutes * 60_000)
        self.note("calm from here on")
        self.settling = True
        await self.clock.sleep(12_000)
        self.former = None
        await self.clock.sleep(3 * SESSION_MS + 2 * REBALANCE_MS)
        self._look_at_convergence("calm")
        await self._converges("a member has gone", stop=True)
        await self._converges("a member has come", stop=False)
        self.ending = True
        await self.clock.sleep(12_000)
        self.finish()

    async def _reset_now_and_then(self) -> None:
        """Somebody moves the group while its members read: to where the newest owner of each partition began."""
        rng = random.Random(f"{self.seed} resets")
        asker = SimpleNamespace(client_id="c", client_host="/h", principal="User:alice")
        while not self.settling:
            await self.sleep(rng, 3_000, 20_000)
            coordinator = self.coordinator
            offsets: GroupOffsets = {}
            for (topic, index), number in sorted(self.owners_so_far.items()):
                offsets.setdefault(topic, {})[index] = CommittedOffset(number * OWNER)
                self.moved_to.add(((topic, index), number * OWNER))
            if coordinator is None or self.settling:
                continue
            reply = coordinator.live_resets.begin(GROUP, offsets, asker)
            if isinstance(reply, Pending):
                arrived: asyncio.Future[LiveReset] = self.clock.loop.create_future()
                reply.then(arrived.set_result)
                outcome = await arrived
                self.note(f"live reset: {outcome.error.name}, {len(outcome.members)} members")
                self.resets += not outcome.error

    async def _converges(self, what: str, *, stop: bool) -> None:
        client = self.clients[0]
        is_mixed = any(each.is_classic for each in self.clients)
        if stop:
            client.is_off = True
            await self.clock.sleep(2 * BEAT_MS)  # what it has under way arrives
            await client.stop(leaves=True, for_good=True)
        else:
            client.start()
            client.is_off = False
        beats = 7 if is_mixed else 3  # two, and one in which a client that is asked begins to hear
        if self.is_large:
            beats += 2  # those in which the question comes up, and in which it may come up again
            await self.clock.sleep(2 * WORK_MS)
        if self.with_resets and is_mixed:
            beats += 7  # classic members join twice
        await self.clock.sleep(self.interval_ms + beats * BEAT_MS + SLACK_MS)
        if is_mixed and stop:
            await self.clock.sleep(SESSION_MS)
        self._look_at_convergence(what)
        await self.clock.sleep(2 * SESSION_MS)

    def _look_at_convergence(self, what: str) -> None:
        shard = self._shard()
        if shard is None:
            raise Violation("assignments converge", f"{what}: there is no coordinator")
        group = shard.consumer.by_id.get(GROUP)
        if group is not None and group.state is not GroupState.STABLE:
            raise Violation("assignments converge", f"{what}: the group is {group.state.value}")
        if group is None and shard.groups[GROUP].state is not State.STABLE:
            raise Violation("assignments converge", f"{what}: the group is {shard.groups[GROUP].state}")
        every = sorted((topic, index) for topic, count in self.topics.counts.items() for index in range(count))
        owned = sorted(partition for client in self.clients for partition in client.owned)
        if owned != every:
            raise Violation("assignments converge", f"{what}: {owned} are owned, of {every}")

    async def _change_topics(self) -> None:
        while not self.settling:
            await self.sleep(self.rng, 5_000, 40_000)
            topic = self.rng.choice(("t", "u"))
            if not self.settling and self.topics.counts[topic] < 8:
                self.note(f"{topic} gets a partition")
                self.topics.add(topic)


def run(seed: int, minutes: float = 1.5, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run the world of a seed."""
    return ConsumerGroups(seed, minutes, trace).run()
