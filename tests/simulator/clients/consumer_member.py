"""A member of a group that migrates (KIP-848): each of its processes speaks the classic or the consumer protocol."""

from typing import TYPE_CHECKING, Any

from barnabas.protocol import records
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ConsumerGroupHeartbeatRequest

from simulator.clients.client import expect
from simulator.clients.member import REBALANCE_TIMEOUT_MS, Member
from simulator.clients.offsets import commit
from simulator.clients.routed import Routed
from simulator.ledger import TopicPartition, by_topic
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

SESSION_TIMEOUT_MS = 45_000  # of members of the consumer protocol: the broker's default
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
OUTSIDE = (
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


class GroupBook:
    """What the members of one group were told. Its methods raise Violation."""

    def __init__(self, group_id: str, classic_share: float) -> None:
        self.group_id = group_id
        self.classic_share = classic_share  # of the processes
        self.members: list[ConsumerMember] = []
        self.assignments = 0  # to members of the consumer protocol
        self._epoch, self._told_ms = 0, 0.0  # the highest
        self._owners: dict[tuple[int, TopicPartition], str] = {}

    def told(self, member: "ConsumerMember", epoch: int, asked_ms: float) -> None:
        """A member that asked at `asked_ms` is in an epoch, or a generation, of the group."""
        if epoch < self._epoch and asked_ms > self._told_ms and not self._lives_beside(member):
            self._epoch = 0  # the group was empty, and has begun again
            self._owners.clear()
        if epoch >= self._epoch:
            self._epoch, self._told_ms = epoch, member.world.clock.monotonic_ms()

    def took(self, member: "ConsumerMember", epoch: int, partitions: list[TopicPartition]) -> None:
        """A member begins to read partitions that it got in an epoch."""
        if member.world.ledger.groups_are_weak:
            return
        owner = member.instance_id or member.member_id
        for partition in partitions:
            other = self._owners.setdefault((epoch, partition), owner)
            if other != owner and not self._lives_beside(member):
                self._owners = {(epoch, partition): owner}  # the group was empty, and has begun again
            elif other != owner and epoch == self._epoch:
                detail = f"{partition} of {self.group_id} in epoch {epoch}: {other} and {owner}"
                raise Violation("one owner per generation", detail)
            for each in self.members:
                if each is not member and partition in each.owned and self._are_members(each, member):
                    detail = f"{partition} of {self.group_id} is owned by {each.name}, and {member.name} has it now"
                    raise Violation("a partition has one owner", detail)

    def _lives_beside(self, member: "ConsumerMember") -> bool:
        """Whether another member kept the group alive all the time."""
        now_ms, signs = member.world.clock.monotonic_ms(), member.world.ledger.last_sign_ms
        return any(
            each is not member
            and each.is_stable
            and now_ms < signs.get((self.group_id, each.member_id), 0.0) + each.session_timeout_ms
            for each in self.members
        )

    def _are_members(self, *members: "ConsumerMember") -> bool:
        """Whether a coordinator has these members in its consumer group, in the epochs that they know."""
        return any(
            (group := shard.consumer.by_id.get(self.group_id)) is not None
            and all(each.is_known_in(group) for each in members)
            for life in members[0].world.lives
            for shard in life.broker.group_coordinator.loaded_shards()
        )


class ConsumerMember(Member):
    """One process after the other. What it owns it says in each heartbeat."""

    def __init__(
        self, world: "World", name: str, book: GroupBook, keys: list[TopicPartition], instance_id: str | None
    ) -> None:
        super().__init__(world, name, book.group_id, keys, instance_id)
        self.book = book
        book.members.append(self)
        self._starts = 0
        self._knows_all = False  # whether it has heard the answer to its last heartbeat
        self._choose()

    def _choose(self) -> None:
        self._starts += 1
        self.is_classic = self.rng.random() < self.book.classic_share
        self.member_id = "" if self.is_classic else f"{self.name}-{self._starts}"

    def is_known_in(self, group: Any) -> bool:
        """Whether the coordinator has it in the epoch that it knows, or in the one before that it was told."""
        member = group.members.get(self.member_id)
        return member is not None and self.generation in (member.epoch, member.current.previous_epoch)

    # -- both protocols

    async def turn(self) -> None:
        if not self.is_classic and self.generation >= 0:
            await self.sleep(500, 2_000)
            await self._misbehave()
            if self.generation >= 0 and not self.is_classic:
                self._told(await self._beat(), "a heartbeat")
            if self.owned and self.generation > 0 and not self.is_classic and self.rng.random() < 0.6:
                await self._commit()
            return
        await super().turn()

    async def rest(self) -> None:
        if self.is_classic or self.generation < 0:
            await super().rest()
            return
        await self.sleep(4_000, 6_000)
        self._told(await self._beat(), "a heartbeat")

    def encoded(self, owned: list[TopicPartition]) -> bytes:
        make = records.ConsumerProtocolAssignment
        rows = [make.TopicPartition(topic=topic, partitions=each) for topic, each in by_topic(owned).items()]
        return records.encode_versioned(make(assigned_partitions=rows), 1)

    def decoded(self, assignment: bytes) -> list[TopicPartition]:
        if not assignment:
            return []
        _, found = records.decode_versioned(records.ConsumerProtocolAssignment, assignment)
        return [(topic.topic, index) for topic in found.assigned_partitions for index in topic.partitions]

    def note_assignment(self, generation: int, owned: list[TopicPartition], asked_ms: float) -> None:
        self.book.told(self, generation, asked_ms)
        self.generation = generation
        self.book.took(self, generation, owned)

    async def _sync(self, joined: Any, changes: object, asked_ms: float) -> None:
        before = self.progress
        try:
            await super()._sync(joined, changes, asked_ms)
        finally:
            if self.progress == before:  # it does not know where to go on, and joins again
                self.generation = -1

    async def _commit_as_of_old(self) -> None:
        """A member that has gone on owning a partition may commit for it in an older epoch (KIP-1251)."""

    def _forget(self, *, keep_id: bool = False) -> None:
        super()._forget()
        self._choose()

    def _told(self, error: ErrorCode, what: str) -> None:
        if self.is_classic and error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            member_id = self.member_id
            super()._forget()
            self.member_id = member_id
        elif error in OUTSIDE:
            self._forget()
        elif error is not ErrorCode.STALE_MEMBER_EPOCH or self.is_classic:
            expect(error, f"{what} of {self.name}", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    # -- the consumer protocol

    async def _commit(self) -> None:
        for key in self.owned:
            self.positions[key] = self.following(self.positions[key])
        offsets = {key: self.positions[key] for key in self.owned}
        epoch, is_late = self.generation, self.rng.random() < 0.05
        if is_late:  # as a member that never was in this epoch: of a later one, which is not there yet
            offsets, epoch = {key: offset + 1_000_000 for key, offset in offsets.items()}, epoch + 1_000
        self._sign()
        error = await commit(self, self.group_id, epoch, self.member_id, self.instance_id, offsets, first_version=9)
        if is_late and error is ErrorCode.NONE:
            raise Violation("who is fenced commits nothing", f"{self.name} commits in {epoch} of {self.generation}")
        self._told(error, "a commit")

    async def _leave(self) -> None:
        if self.is_classic:
            await super()._leave()
            return
        is_back_soon = self.instance_id is not None and self.rng.random() < 0.5
        await self._ask(STATIC_LEAVE_EPOCH if is_back_soon else LEAVE_EPOCH)
        self._forget()

    async def _join(self) -> None:
        if self.is_classic:
            await super()._join()
            return
        self.session_timeout_ms = SESSION_TIMEOUT_MS
        self.generation, self.owned, self._knows_all = JOIN_EPOCH, [], False
        try:
            error = await self._beat()
        finally:
            if self.generation == JOIN_EPOCH:
                self.generation = -1
        if error:
            self._told(error, "a first heartbeat")
            await self.sleep(50, 500)

    def subscription(self) -> dict[str, Any]:
        """What it wants to read, as fields of a heartbeat."""
        return {"subscribed_topic_names": sorted({topic for topic, _ in self.keys})}

    async def _ask(self, epoch: int) -> Any:
        make = ConsumerGroupHeartbeatRequest
        names = {topic: self.world.topic_ids[topic] for topic, _ in self.keys}
        rows = [
            make.TopicPartitions(topic_id=names[topic], partitions=each) for topic, each in by_topic(self.owned).items()
        ]
        everything = self.subscription() | {"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS}
        request = make(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            topic_partitions=rows,
            **({} if self._knows_all else everything),
        )
        self._sign()
        return await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)

    async def _beat(self) -> ErrorCode:
        if self.is_classic:
            return await super()._beat()
        asked_ms, knew_all = self.world.clock.monotonic_ms(), self._knows_all
        self._knows_all = False  # until it is answered
        response = await self._ask(self.generation)
        if response.error_code:
            self._knows_all = knew_all
            return ErrorCode(response.error_code)
        if response.member_epoch < self.generation and not self.world.ledger.groups_are_weak:
            detail = f"{self.name} was in {self.generation} and is in {response.member_epoch}"
            raise Violation("epochs only grow", detail)
        self.generation, self._knows_all = response.member_epoch, True
        self.book.told(self, self.generation, asked_ms)
        if response.assignment is not None:
            await self._take(response.assignment)
        self.is_stable = True
        self.progress += 1
        return ErrorCode.NONE

    async def _take(self, assignment: Any) -> None:
        """Give up what is not assigned any more, and read the rest from where the group is."""
        names = {topic_id: topic for topic, topic_id in self.world.topic_ids.items()}
        given = [(names[bytes(row.topic_id)], index) for row in assignment.topic_partitions for index in row.partitions]
        if not self.world.settling and not set(self.owned) <= set(given) and self.rng.random() < 0.3:
            await self.sleep(100, 2_500)  # in a callback of the application
        self.owned = [key for key in self.owned if key in given]
        more = [key for key in given if key not in self.owned]
        if not more:
            return
        self.book.took(self, self.generation, more)
        self._knows_all = False  # if it does not get so far, it asks for its assignment again
        found = await self.fetch_positions(more)
        if found is None:
            return
        self._knows_all = True
        self.positions |= {key: max(offset, 0) for key, offset in found.items()}
        self.owned = sorted(given)
        self.book.assignments += 1


class ClusterConsumerMember(Routed, ConsumerMember):
    """Such a member whose coordinator may move."""
