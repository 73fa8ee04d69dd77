"""The clients of groups that go from the classic to the consumer protocol and back (consumer_groups.py).

A client knows what it owns only from what it was told, and says that it has given something up only when it has.
"""

import random
from typing import TYPE_CHECKING, Any

from barnabas.protocol import messages
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.grouped import grouped

from simulator.ledger import by_topic
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.consumer_groups import ConsumerGroups

GROUP = "readers"
BEAT_MS = 1_000
SESSION_MS = 6_000
REBALANCE_MS = 5_000
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
        rows = grouped(
            (topic, make.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset))
            for (topic, index), offset in offsets.items()
        )
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
            if self.world.is_in_epoch(member_id, epoch):
                self.world.moved_to.update(offsets.items())

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
                for topic, indexes in by_topic(owned).items()
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
            make.TopicPartition(topic=topic, partitions=sorted(each)) for topic, each in by_topic(self.owned).items()
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
        if not joined.skip_assignment:  # else it was assigned before, and topics may have changed since
            self.seen_topics = self.world.topics.changes
        gives_up = bool(self.owned - given)
        await self._take(given, slow=self.rng.random() < 0.2)
        self.must_join = gives_up  # it says by a join that it has given something up
        return gives_up
