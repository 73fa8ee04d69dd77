"""Groups that go from the classic to the consumer protocol (KIP-848) and back, under a seed, while their members read.

Members of both protocols come and go, are silent for too long, give partitions up slowly, and commit late; the
coordinator dies and moves (`coordinator_world.py`), and topics get partitions. At any time:

- a partition has one owner that has acknowledged it, of those that have been in the group since;
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
from barnabas.protocol import records as stored
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, Turns

from simulator.consumer_group_clients import BEAT_MS, GROUP, REBALANCE_MS, SESSION_MS, Client, Partition
from simulator.coordinator_world import SETTINGS, CoordinatorWorld, Topics
from simulator.ledger import by_topic
from simulator.simulation import Verdict
from simulator.violation import Violation

OWNER = 1_000_000
INTERVAL_MS = 1_000  # group.consumer.assignment.interval.ms, where there is one
SLACK_MS = 1_500.0  # answers that are slow, and commits of the log
WORK_MS = 1_500.0  # an assignment to a large group takes at most so long


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
        self.moved_to: set[tuple[Partition, int]] = set()  # offsets of live resets, and those that may come late
        self.shape_rng = random.Random(f"{seed} shape")
        rng = self.shape_rng
        self.interval_ms = rng.choice((0, INTERVAL_MS))
        self.assignors = rng.choice((("uniform", "range"), ("range", "uniform")))
        super().__init__(
            seed,
            minutes,
            trace,
            {
                **SETTINGS,
                "group_initial_rebalance_delay_ms": 200,
                "group_consumer_assignment_interval_ms": self.interval_ms,
                "group_consumer_assignors": self.assignors,
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
        self._member_ids: set[str] = set()
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
                        make.TopicPartition(topic=topic, partitions=each) for topic, each in by_topic(share).items()
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
        if self.is_in_epoch(member_id, epoch):
            return False
        owners = self.owners.get(partition, {})
        if client.starts == start and client in owners:
            return False
        return any(self._is_member(other) for other in owners)

    def is_in_epoch(self, member_id: str, epoch: int) -> bool:
        """Whether this is the present epoch of a member of the consumer group."""
        shard = self._shard()
        group = None if shard is None else shard.consumer.by_id.get(GROUP)
        return group is not None and member_id in group.members and group.members[member_id].epoch == epoch

    def released(self, client: Client, partition: Partition) -> None:
        """A client has given a partition up, or knows that it lost it."""
        self.owners.get(partition, {}).pop(client, None)

    def forget(self, client: Client) -> None:
        """A client has started again, with nothing; or was thrown out, and may not know it yet when it is back."""
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
            self._look_at_members(set(classic.members.by_id if group is None else group.members))
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

    def _look_at_members(self, member_ids: set[str]) -> None:
        gone = self._member_ids - member_ids
        for client in self.clients:
            if client.member_id in gone:
                self.forget(client)
        self._member_ids = member_ids

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
        if self.is_large:
            await self._is_back_at_once()
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
        await self._wait_and_look(what, is_mixed=is_mixed, stop=stop)

    async def _is_back_at_once(self) -> None:
        """A member goes, and comes back while the others' new assignment is under way, which knows nothing of it."""
        client = self.clients[0]
        is_mixed = any(each.is_classic for each in self.clients)
        for share in (0.5, 1.0, 1.5):
            client.is_off = True
            await self.clock.sleep(2 * BEAT_MS)
            await client.stop(leaves=True, for_good=True)
            await self.clock.sleep(share * BEAT_MS)
            client.start()
            client.is_off = False
            await self._wait_and_look("a member is back at once", is_mixed=is_mixed, stop=is_mixed)

    async def _wait_and_look(self, what: str, *, is_mixed: bool, stop: bool) -> None:
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
        if group is not None and self.assignors[0] == "uniform":
            counts = [len(client.owned) for client in self.clients if not client.is_off]
            if max(counts) > min(counts) + 1:
                raise Violation("assignments converge", f"{what}: members own {counts} partitions")

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
