"""A member of a group: joins, syncs, beats, commits; sometimes pauses, leaves, dies, or comes back with old ids."""

from typing import TYPE_CHECKING, Any

from barnabas.protocol import records
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from simulator.clients.client import Client, expect
from simulator.clients.offsets import commit, fetch_offsets
from simulator.ledger import TopicPartition
from simulator.observations import Assigned, Outcome
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

SESSION_TIMEOUTS_MS = (6_000, 45_000)  # members with the shorter one leave in quiet times
REBALANCE_TIMEOUT_MS = 8_000
JOIN_LIMIT_MS = 40_000.0  # several rebalances may follow one another, each until a dead member's session expires


class Member(Client):
    """One member: one process after the other."""

    must_get_on = False  # it must only be a member

    def __init__(
        self, world: "World", name: str, group_id: str, keys: list[TopicPartition], instance_id: str | None
    ) -> None:
        super().__init__(world, name)
        self.group_id = group_id
        self.keys = keys
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: list[TopicPartition] = []
        self.positions: dict[TopicPartition, int] = {}
        self.is_stable = False
        self._version = 5
        self.session_timeout_ms = self.rng.choice(SESSION_TIMEOUTS_MS)
        world.ledger.commits.note_members(group_id)

    async def turn(self) -> None:
        if self.generation < 0:
            await self._join()
            return
        await self.sleep(500, 2_500)
        await self._misbehave()
        if self.generation < 0:
            return
        if self.owned and self.rng.random() < 0.6:
            offsets = {}
            for key in self.owned:
                self.positions[key] = offsets[key] = self.following(self.positions[key])
            self._sign()
            error = await commit(self, self.group_id, self.generation, self.member_id, self.instance_id, offsets)
        else:
            error = await self._beat()
        self._told(error, "a beat or a commit")
        if self.owned and self.generation >= 0 and self.rng.random() < 0.05:
            await self._commit_as_of_old()

    async def rest(self) -> None:
        if self.session_timeout_ms < SESSION_TIMEOUTS_MS[-1]:
            if self.generation >= 0:
                await self._leave()
            await self.sleep(5_000, 15_000)
            return
        if self.generation < 0:
            await self._join()
            return
        await self.sleep(self.session_timeout_ms / 3 - 100, self.session_timeout_ms / 3)
        self._told(await self._beat(), "a beat")

    async def fetch_positions(self, owned: list[TopicPartition]) -> dict[TopicPartition, int] | None:
        """Where it goes on; None: that is not known yet."""
        return await fetch_offsets(self, self.group_id, owned)

    def following(self, position: int) -> int:
        """Where it is when it has read on."""
        return position + self.rng.randint(0, 5)

    async def _beat(self) -> ErrorCode:
        self._sign()
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return ErrorCode((await self.ask(ApiKey.HEARTBEAT, self.rng.randint(3, 4), request)).error_code)

    async def _commit_as_of_old(self) -> None:
        """Commit as a member that missed a rebalance. The commit must be refused."""
        offsets = {key: self.positions[key] + 1_000_000 for key in self.owned}
        generation = self.generation - 1
        error = await commit(self, self.group_id, generation, self.member_id, self.instance_id, offsets)
        if error is ErrorCode.NONE:
            raise Violation("old generations are refused", f"{self.name} commits in {generation} of {self.generation}")

    def _sign(self) -> None:
        self.world.ledger.last_sign_ms[self.group_id, self.member_id] = self.world.clock.monotonic_ms()

    async def _misbehave(self) -> None:
        luck = self.rng.random()
        if self.world.settling or luck > 0.06:
            return
        if luck < 0.015:
            self.world.note(f"{self.name} pauses")
            await self.sleep(6_000, 24_000)
        elif luck < 0.03:
            self.world.note(f"{self.name} dies")
            self.hang_up()
            await self.sleep(100, 18_000)
            self._forget(keep_id=self.rng.random() < 0.3)
        elif luck < 0.045:
            self.world.note(f"{self.name} leaves")
            await self._leave()
            await self.sleep(0, 5_000)
        else:
            self.generation = -1  # joins again without a reason

    async def _leave(self) -> None:
        leaver = LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        request = LeaveGroupRequest(group_id=self.group_id, members=[leaver])
        await self.ask(ApiKey.LEAVE_GROUP, self.rng.randint(3, 5), request)
        self._forget(keep_id=self.rng.random() < 0.3)

    def _forget(self, *, keep_id: bool = False) -> None:
        self.generation = -1
        self.owned = []
        self.is_stable = False
        if not keep_id:
            self.member_id = ""

    def encoded(self, owned: list[TopicPartition]) -> bytes:
        """An assignment in the members' own words."""
        return ",".join(f"{topic}/{index}" for topic, index in owned).encode()

    def decoded(self, assignment: bytes) -> list[TopicPartition]:
        """The partitions of an assignment."""
        names = [name for name in assignment.decode().split(",") if name]
        return [(name.split("/")[0], int(name.split("/")[1])) for name in names]

    def note_assignment(self, generation: int, owned: list[TopicPartition], asked_ms: float) -> None:
        """It was assigned partitions, for which it had asked at `asked_ms`."""
        owner = self.instance_id or self.member_id
        self.note_removal(generation, owner, owned, asked_ms)
        self.world.ledger.assigned(self.group_id, generation, owner, owned, asked_ms)
        assigned = Assigned(self.group_id, generation, owner, tuple(owned))
        self.ended(self.began(assigned), Outcome.OK, assigned)

    def note_removal(self, generation: int, owner: str, owned: list[TopicPartition], asked_ms: float) -> None:
        """It has got partitions, for which it had asked at `asked_ms`, perhaps in a group that has begun again."""

    def _told(self, error: ErrorCode, what: str) -> None:
        if error is ErrorCode.NONE:
            return
        if error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            self._forget(keep_id=True)
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self._forget()
        else:
            expect(error, f"{what} of {self.name}")

    async def _join(self) -> None:
        self._version = self.rng.randint(5, 9)
        subscription = records.ConsumerProtocolSubscription(topics=sorted({topic for topic, _ in self.keys}))
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(
                    name="range", metadata=records.encode_versioned(subscription, 1)
                )
            ],
        )
        if self.member_id:
            self._sign()
        changes = self.world.broker_changes
        asked_ms = self.world.clock.monotonic_ms()
        response = await self.ask(ApiKey.JOIN_GROUP, self._version, request, JOIN_LIMIT_MS)
        error = ErrorCode(response.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return
        if error:
            self._told(error, "JoinGroup")
            await self.sleep(50, 500)
            return
        self.member_id = response.member_id
        self._sign()
        await self._sync(response, changes, asked_ms)

    async def _sync(self, joined: Any, changes: object, asked_ms: float) -> None:
        if self.rng.random() < 0.9 or self.world.settling:
            await self.sleep(0, 300)
        else:  # is late
            await self.sleep(1_000, 12_000)
        assignments = []
        if joined.leader == self.member_id and not getattr(joined, "skip_assignment", False):
            member_ids = sorted(member.member_id for member in joined.members)
            share: dict[str, list[TopicPartition]] = {member_id: [] for member_id in member_ids}
            for slot, key in enumerate(self.keys):
                share[member_ids[slot % len(member_ids)]].append(key)
            assignments = [
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=self.encoded(keys))
                for member_id, keys in share.items()
            ]
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        self._sign()
        if self.rng.random() < 0.05:
            request.generation_id -= 1
        response = await self.ask(ApiKey.SYNC_GROUP, self.rng.randint(3, 5), request, JOIN_LIMIT_MS)
        error = ErrorCode(response.error_code)
        if not error and request.generation_id != joined.generation_id:
            # A coordinator that has loaded the group since does not know a generation whose record was not written yet.
            if changes == self.world.broker_changes:
                raise Violation("old generations are refused", f"{self.name} syncs in {request.generation_id}")
            self._forget(keep_id=True)
            return
        if error:
            self._told(error, "SyncGroup")
            await self.sleep(50, 300)
            return
        owned = self.decoded(bytes(response.assignment))
        self.note_assignment(joined.generation_id, owned, asked_ms)
        found = await self.fetch_positions(owned) if owned else {}
        if found is None:
            return
        self.owned = owned
        self.positions = {key: max(offset, 0) for key, offset in found.items()}
        self.generation = joined.generation_id
        self.is_stable = True
        self.progress += 1
