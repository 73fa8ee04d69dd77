"""Clients of the simulated world, each a loop that does what a client of its kind does, and writes into the ledger.

They are well behaved (they retry what may be retried, and only that), unlucky (pauses, lost answers, restarts come
from their own random stream), and strict: an answer that a correct broker cannot give is a Violation.
"""

import random
from typing import TYPE_CHECKING, Any

from barnabas.protocol import record_batch, records
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    DeleteGroupsRequest,
    FetchRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    SyncGroupRequest,
)
from barnabas.protocol.record_batch import Record
from barnabas.sim.client import Connection, LostError, UnansweredError
from barnabas.sim.ledger import TopicPartition, Violation

if TYPE_CHECKING:
    from barnabas.sim.world import World

RETRIABLE = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)
BATCHES_IN_FLIGHT_MAX = 4
SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 8_000
FETCH_LIMIT_MS = 4_000.0  # the longest wait asked for, and the slowest network
JOIN_LIMIT_MS = 40_000.0  # several rebalances may follow on one another


class Client:
    """What all kinds have: a name, a random stream, a connection that is made again when it is gone."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.seed} {name}")
        self.connection: Connection | None = None
        self.progress = 0  # counts what it got done

    async def sleep(self, low_ms: float, high_ms: float) -> None:
        """Do nothing for a while."""
        await self.world.clock.sleep(self.rng.uniform(low_ms, high_ms))

    async def connected(self) -> Connection:
        """The connection, made when there is none. LostError."""
        if self.connection is None or self.connection.closed:
            self.connection = None
            self.connection = await Connection.open(self.world.clock, self.world.network, self.name)
        return self.connection

    def hang_up(self) -> None:
        """Give the connection up."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    async def ask(self, api: ApiKey, version: int, message: Any, limit_ms: float = 30_000) -> Any:
        """One request on the client's connection. LostError."""
        connection = await self.connected()
        asked_ms = self.world.clock.monotonic_ms()
        try:
            return await connection.ask(api, version, message, limit_ms)
        except UnansweredError as error:
            self.world.unanswered(self.name, str(error), asked_ms)
            raise

    async def run(self) -> None:
        """Go on until the world ends the clients."""
        while not self.world.ending:
            try:
                await self.turn()
            except LostError as error:
                self.world.note(f"{self.name} lost: {error}")
                self.hang_up()
                await self.sleep(50, 500)
        self.hang_up()

    async def turn(self) -> None:
        """One step."""
        raise NotImplementedError


class Batch:
    """Records that were given a sequence and are not acknowledged yet."""

    __slots__ = ("data", "first_life", "key", "values")

    def __init__(self, key: TopicPartition, values: list[str], data: bytes, life: int) -> None:
        self.key = key
        self.values = values
        self.data = data
        self.first_life = life


class Producer(Client):
    """Idempotent, acks=all, some batches under way at once. Every answer lost is asked for again."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.keys = keys
        self.incarnation = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._batches: list[Batch] = []  # under way, in order
        self._count = 0

    async def turn(self) -> None:
        if self.producer_id < 0:
            await self._begin()
            return
        while len(self._batches) < self.rng.randint(1, BATCHES_IN_FLIGHT_MAX):
            self._batches.append(self._make_batch())
        if await self._send_all():
            await self.sleep(50, 1500)
        else:
            self.hang_up()
            await self.sleep(100, 300)
        if self.rng.random() < 0.01:
            self._restart("is started anew")

    async def _begin(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = await self.ask(ApiKey.INIT_PRODUCER_ID, self.rng.randint(0, 4), request)
        if response.error_code:
            if response.error_code not in RETRIABLE:
                raise Violation("answers make sense", f"InitProducerId: {ErrorCode(response.error_code).name}")
            await self.sleep(50, 200)
            return
        if response.producer_id in self.world.producer_ids:
            raise Violation("a producer id is given once", str(response.producer_id))
        self.world.producer_ids[response.producer_id] = None
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    def _restart(self, why: str) -> None:
        """As another process: what is under way may have been written, once; nobody will know."""
        self.world.note(f"{self.name} {why}")
        self.incarnation += 1
        self.producer_id = -1
        self._batches.clear()
        self._sequences.clear()
        self._count = 0
        self.hang_up()

    def _make_batch(self) -> Batch:
        key = self.rng.choice(self.keys)
        values = []
        batch = []
        now_ms = self.world.clock.now_ms()
        for slot in range(self.rng.choice((1, 1, 1, 2, 5))):
            value = f"{self.name}.{self.incarnation}:{self._count} {'x' * self.rng.choice((0, 10, 300))}"
            self._count += 1
            self.world.ledger.sent[value] = None
            values.append(value)
            batch.append(Record(offset=slot, timestamp=now_ms, key=None, value=value.encode(), headers=[]))
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(values)
        data = record_batch.build(
            batch,
            compression=self.rng.choice((Compression.NONE, Compression.NONE, Compression.GZIP)),
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
        )
        return Batch(key, values, bytes(data), self.world.host.lives)

    async def _send_all(self) -> bool:
        """Send what is under way, in order, and take the answers; False when some must be sent again."""
        connection = await self.connected()
        version = self.rng.randint(3, 12)
        asked_ms = self.world.clock.monotonic_ms()
        answers = []
        for batch in self._batches:
            topic, index = batch.key
            data = ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[ProduceRequest.PartitionProduceData(index=index, records=batch.data)],
            )
            request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[data])
            answers.append(connection.send(ApiKey.PRODUCE, version, request, 20_000))
        failed: dict[TopicPartition, ErrorCode] = {}
        for batch, answer in zip(list(self._batches), answers):
            try:
                response = await answer
            except UnansweredError as unanswered:
                self.world.unanswered(self.name, str(unanswered), asked_ms)
                raise
            (partition,) = response.responses[0].partition_responses
            error = ErrorCode(partition.error_code)
            if error is ErrorCode.NONE:
                if batch.key in failed:
                    raise Violation(
                        "sequences leave no gap", f"{self.name} {batch.key}: {failed[batch.key].name} before"
                    )
                self.world.ledger.acknowledge(batch.key, partition.base_offset, batch.values)
                self._batches.remove(batch)
                self.progress += 1
            elif batch.key in failed:
                pass  # refused because of the one before it
            elif error in RETRIABLE:
                failed[batch.key] = error
            elif error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.first_life != self.world.host.lives:
                # A snapshot remembers one batch of each producer, as Kafka's does: older ones are not recognised.
                self._restart("has lost its place over a restart of the broker")
                return False
            else:
                detail = f"{self.name} {batch.key} sequence {record_batch.read_header(batch.data).base_sequence}"
                raise Violation("a producer in order is accepted", f"{detail}: {error.name}")
        return not failed


class Reader(Client):
    """Reads partitions from their start on, again and again."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.positions = dict.fromkeys(keys, 0)

    async def turn(self) -> None:
        key = self.rng.choice(list(self.positions))
        fetched = await self.fetch(key, self.positions[key], self.rng.choice((0, 100, 500)), 40_000)
        if fetched is None:
            await self.sleep(100, 500)
            return
        self.positions[key] = fetched
        await self.sleep(100, 2_000)
        if self.rng.random() < 0.05:
            self.positions[key] = 0

    async def fetch(self, key: TopicPartition, position: int, max_wait_ms: int, max_bytes: int) -> int | None:
        """Read once; the next position, or None when it could not be read now. All goes into the ledger."""
        topic, index = key
        version = self.rng.randint(4, 12)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=index, fetch_offset=position, partition_max_bytes=max_bytes
                        )
                    ],
                )
            ],
        )
        response = await self.ask(ApiKey.FETCH, version, request, FETCH_LIMIT_MS)
        (partition,) = response.responses[0].partitions
        error = ErrorCode(partition.error_code)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._out_of_range(key, position)
        if error:
            if error not in RETRIABLE:
                raise Violation("answers make sense", f"Fetch {key} {position}: {error.name}")
            return None
        next_offset = position
        for header, batch in record_batch.batches(partition.records or b""):
            if not record_batch.crc_is_valid(batch):
                raise Violation("batches are whole", f"{key} {header.base_offset}")
            if header.last_offset < position or header.base_offset > next_offset:
                raise Violation("no gap", f"{key}: {header.base_offset} where {next_offset} was next")
            if header.last_offset >= partition.high_watermark:
                raise Violation("nothing above the high watermark", f"{key} {header.last_offset}")
            for record in record_batch.records(batch):
                self.world.ledger.consume(key, record.offset, (record.value or b"").decode())
            next_offset = header.next_offset
        self.progress += next_offset - position
        return next_offset

    async def _out_of_range(self, key: TopicPartition, position: int) -> int | None:
        """Where to go on when the log no longer has the position: retention took it, or the broker has less than it
        once showed, which it may not."""
        start = await self.list_offset(key, -2)
        end = await self.list_offset(key, -1)
        if start is None or end is None:
            return None
        if start <= position <= end:  # it was so when the broker answered: it had just started
            if self.world.is_calm_for(5_000):
                raise Violation("answers make sense", f"{key}: {position} is out of range of {start}..{end}")
            return None
        if position > end and self.world.is_calm_for(5_000):
            raise Violation("what was read stays", f"{key}: {position} was read, the end is {end}")
        return start

    async def list_offset(self, key: TopicPartition, timestamp: int) -> int | None:
        """Where the log starts (-2) or ends (-1); None when that cannot be said now."""
        partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=key[1], timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=key[0], partitions=[partition])
        response = await self.ask(ApiKey.LIST_OFFSETS, 5, ListOffsetsRequest(replica_id=-1, topics=[topic]))
        answer = response.topics[0].partitions[0]
        if answer.error_code and answer.error_code not in RETRIABLE:
            raise Violation("answers make sense", f"ListOffsets {key}: {ErrorCode(answer.error_code).name}")
        return None if answer.error_code else int(answer.offset)


class Committer(Client):
    """Commits rising offsets for a group that has no members."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.group_id = f"group-of-{name}"
        self.keys = keys
        self.positions: dict[TopicPartition, int] = {}

    async def turn(self) -> None:
        luck = self.rng.random()
        if luck < 0.3:
            await self.look()
        elif luck < 0.36 and not self.world.settling:
            await self._delete()
        else:
            key = self.rng.choice(self.keys)
            self.positions[key] = self.positions.get(key, 0) + self.rng.randint(1, 9)
            error = await commit(self, self.group_id, -1, "", None, {key: self.positions[key]})
            if error and error not in RETRIABLE:
                raise Violation("answers make sense", f"OffsetCommit of {self.name}: {error.name}")
        await self.sleep(100, 1_500)

    async def _delete(self) -> None:
        """Delete the group; what it committed before may not come back."""
        self.world.ledger.ask_deletion(self.group_id)
        response = await self.ask(ApiKey.DELETE_GROUPS, 1, DeleteGroupsRequest(groups_names=[self.group_id]))
        error = ErrorCode(response.results[0].error_code)
        if error is ErrorCode.NONE:
            self.world.ledger.acknowledge_deletion(self.group_id)
        elif error is not ErrorCode.GROUP_ID_NOT_FOUND and error not in RETRIABLE:
            raise Violation("answers make sense", f"DeleteGroups of {self.name}: {error.name}")

    async def look(self) -> None:
        """Ask what is committed."""
        await fetch_offsets(self, self.group_id, self.keys)


async def commit(
    client: Client,
    group_id: str,
    generation: int,
    member_id: str,
    instance_id: str | None,
    offsets: dict[TopicPartition, int],
) -> ErrorCode:
    """One OffsetCommit, into the ledger; the first error."""
    ledger = client.world.ledger
    version = client.rng.randint(7 if instance_id is not None else 2, 9)
    for (topic, index), offset in offsets.items():
        ledger.ask_commit((group_id, topic, index), offset)
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=client.name
                    )
                ],
            )
            for (topic, index), offset in offsets.items()
        ],
    )
    response = await client.ask(ApiKey.OFFSET_COMMIT, version, request)
    first = ErrorCode.NONE
    for (key, offset), topic in zip(offsets.items(), response.topics, strict=True):
        error = ErrorCode(topic.partitions[0].error_code)
        if error is ErrorCode.NONE:
            ledger.acknowledge_commit((group_id, *key), offset)
            client.progress += 1
        first = first or error
    return first


async def fetch_offsets(client: Client, group_id: str, keys: list[TopicPartition]) -> dict[TopicPartition, int] | None:
    """One OffsetFetch, into the ledger; None when it cannot be said now."""
    ledger = client.world.ledger
    before = {key: ledger.commits_acknowledged.get((group_id, *key), -1) for key in keys}
    told = {key: ledger.commits_fetched.get((group_id, *key), -1) for key in keys}
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=key[0], partition_indexes=[key[1]]) for key in keys],
    )
    response = await client.ask(ApiKey.OFFSET_FETCH, client.rng.randint(2, 7), request)
    error = ErrorCode(response.error_code)
    if error:
        if error not in RETRIABLE:
            raise Violation("answers make sense", f"OffsetFetch of {group_id}: {error.name}")
        return None
    found = {}
    for key, topic in zip(keys, response.topics, strict=True):
        offset = topic.partitions[0].committed_offset
        ledger.fetch_commit((group_id, *key), offset, max(before[key], told[key]))
        found[key] = offset
    return found


class Member(Client):
    """A member of a group: joins, syncs, beats, commits; sometimes pauses, leaves, dies, or comes back with old ids."""

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
                self.positions[key] += self.rng.randint(0, 5)
                offsets[key] = self.positions[key]
            self._sign()
            error = await commit(self, self.group_id, self.generation, self.member_id, self.instance_id, offsets)
        else:
            self._sign()
            request = HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
            error = ErrorCode((await self.ask(ApiKey.HEARTBEAT, self.rng.randint(3, 4), request)).error_code)
        self._told(error, "a beat or a commit")
        if self.owned and self.generation >= 0 and self.rng.random() < 0.05:
            await self._commit_as_of_old()

    async def _commit_as_of_old(self) -> None:
        """As a member that missed a rebalance: it must be refused."""
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
            await self.sleep(SESSION_TIMEOUT_MS, 4 * SESSION_TIMEOUT_MS)
        elif luck < 0.03:
            self.world.note(f"{self.name} dies")
            self.hang_up()
            await self.sleep(100, 3 * SESSION_TIMEOUT_MS)
            self._forget(keep_id=self.rng.random() < 0.3)
        elif luck < 0.045:
            self.world.note(f"{self.name} leaves")
            leaver = LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
            await self.ask(
                ApiKey.LEAVE_GROUP,
                self.rng.randint(3, 5),
                LeaveGroupRequest(group_id=self.group_id, members=[leaver]),
            )
            self._forget(keep_id=self.rng.random() < 0.3)
            await self.sleep(0, 5_000)
        else:
            self.generation = -1  # joins again for no reason

    def _forget(self, *, keep_id: bool = False) -> None:
        self.generation = -1
        self.owned = []
        self.is_stable = False
        if not keep_id:
            self.member_id = ""

    def _told(self, error: ErrorCode, what: str) -> None:
        if error is ErrorCode.NONE:
            return
        if error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            self._forget(keep_id=True)
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._forget()
        elif error not in RETRIABLE:
            raise Violation("answers make sense", f"{what} of {self.name}: {error.name}")

    async def _join(self) -> None:
        self._version = self.rng.randint(5, 9)
        subscription = records.ConsumerProtocolSubscription(topics=sorted({topic for topic, _ in self.keys}))
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
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
        life = self.world.host.lives
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
        await self._sync(response, life)

    async def _sync(self, joined: Any, life: int) -> None:
        if self.rng.random() < 0.9 or self.world.settling:
            await self.sleep(0, 300)
        else:  # lags behind
            await self.sleep(1_000, 12_000)
        assignments = []
        if joined.leader == self.member_id and not getattr(joined, "skip_assignment", False):
            member_ids = sorted(member.member_id for member in joined.members)
            share: dict[str, list[str]] = {member_id: [] for member_id in member_ids}
            for slot, (topic, index) in enumerate(self.keys):
                share[member_ids[slot % len(member_ids)]].append(f"{topic}/{index}")
            assignments = [
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=",".join(names).encode())
                for member_id, names in share.items()
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
        # A broker that was started since has never heard of a generation that was not stored yet.
        if not error and request.generation_id != joined.generation_id and life == self.world.host.lives:
            raise Violation("old generations are refused", f"{self.name} syncs in {request.generation_id}")
        if error:
            self._told(error, "SyncGroup")
            await self.sleep(50, 300)
            return
        names = [name for name in bytes(response.assignment).decode().split(",") if name]
        owned = [(name.split("/")[0], int(name.split("/")[1])) for name in names]
        owner = self.instance_id or self.member_id
        self.world.ledger.assigned(self.group_id, joined.generation_id, owner, owned)
        found = await fetch_offsets(self, self.group_id, owned) if owned else {}
        if found is None:
            return
        self.owned = owned
        self.positions = {key: max(offset, 0) for key, offset in found.items()}
        self.generation = joined.generation_id
        self.is_stable = True
        self.progress += 1
