"""A copier: it reads inputs, writes an effect of each, and commits its offsets, all in one transaction (KIP-447).

Some copiers are members of their group. Others have their partitions by themselves, one copier for each group. Each
input's effect goes to every partition of the group's outputs.
"""

from typing import TYPE_CHECKING

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import AddOffsetsToTxnRequest, OffsetFetchRequest, TxnOffsetCommitRequest

from simulator.clients.client import Client, expect
from simulator.clients.committed_reader import fetch
from simulator.clients.connection import LostError
from simulator.clients.member import Member
from simulator.clients.requests import READ_COMMITTED
from simulator.clients.transactional import AbortError, Transactional
from simulator.ledger import TopicPartition
from simulator.transaction_book import Attempt, TransactionBook, effect_of
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

INPUTS_MAX = 5  # of one partition in a transaction
BEATS_WITHIN_MS = 2_000.0
FIRST_VERSION_WITH_MEMBERS = 3  # of TxnOffsetCommit
_NO_MEMBER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)

Offsets = dict[TopicPartition, int]


async def fetch_stable(
    client: Client, book: TransactionBook, group_id: str, keys: list[TopicPartition]
) -> Offsets | None:
    """The committed offsets, -1 for none; None if the broker cannot tell them, or a transaction may change them."""
    known = dict(book.committed.get(group_id, {}))
    request = OffsetFetchRequest(
        group_id=group_id,
        require_stable=True,
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=key[0], partition_indexes=[key[1]]) for key in keys],
    )
    response = await client.ask(ApiKey.OFFSET_FETCH, 7, request)
    if expect(response.error_code, f"OffsetFetch of {group_id}"):
        return None
    found: Offsets = {}
    for key, topic in zip(keys, response.topics, strict=True):
        (partition,) = topic.partitions
        if expect(partition.error_code, f"OffsetFetch of {group_id}", ErrorCode.UNSTABLE_OFFSET_COMMIT):
            return None
        book.told_stable(group_id, key, partition.committed_offset, known.get(key, -1))
        found[key] = partition.committed_offset
    return found


class CopierConsumer(Member):
    """The membership of a copier. The copier says when it does something."""

    async def fetch_positions(self, owned: list[TopicPartition]) -> Offsets | None:
        """Where it goes on: what is committed, and no open transaction can change."""
        assert self.world.transactions is not None
        return await fetch_stable(self, self.world.transactions.book, self.group_id, owned)

    async def be_member(self) -> bool:
        """Join, or beat, if it is time; whether it is a member, with positions. LostError."""
        try:
            if self.generation < 0:
                await self._join()
                await self.sleep(0, 200)
            elif self._last_sign_ms() + BEATS_WITHIN_MS < self.world.clock.monotonic_ms():
                self._told(await self._beat(), "a beat")
        except LostError:
            self.hang_up()
            raise
        return self.generation >= 0

    def _last_sign_ms(self) -> float:
        return self.world.ledger.last_sign_ms.get((self.group_id, self.member_id), 0.0)

    def start_anew(self) -> None:
        """Another process begins."""
        self._forget()
        self.hang_up()

    @property
    def wrong_generation(self) -> int:
        """One in which it may not commit."""
        return self.generation - 1

    def was_refused(self) -> None:
        """The coordinator does not know it any more, or not in this generation."""
        self._forget(keep_id=self.rng.random() < 0.5)


class Copier(Transactional):
    """`consumer_class`: it becomes a member of its group; None: it has all inputs."""

    consumer_class: type[CopierConsumer] = CopierConsumer

    def __init__(
        self,
        world: "World",
        name: str,
        group_id: str,
        inputs: list[TopicPartition],
        isolation: int,
        is_member: bool,
        transactional_id: str | None = None,
    ) -> None:
        super().__init__(world, name, transactional_id)
        self.group_id = group_id
        self.inputs = inputs
        self.isolation = isolation
        self.consumer: CopierConsumer | None = None
        if is_member:
            instance_id = self.transactional_id if self.rng.random() < 0.3 else None
            self.consumer = self.consumer_class(world, f"{name}-consumer", group_id, inputs, instance_id)
        self._positions: Offsets = {}
        self._taken: dict[TopicPartition, list[int]] = {}
        self._following: Offsets = {}

    @property
    def must_get_on(self) -> bool:  # type: ignore[override]
        """Until it has no whims any more, all of a short calm time may go by with them."""
        return self.world.settling

    @property
    def progress(self) -> int:
        """What the whole group has achieved: a member may have nothing to do."""
        return self.book.progress.get(self.group_id, 0)

    @progress.setter
    def progress(self, value: int) -> None:
        """The book counts."""

    def successor(self, name: str) -> "Copier":
        """Another process with the same transactional id."""
        return type(self)(
            self.world,
            name,
            self.group_id,
            self.inputs,
            self.isolation,
            self.consumer is not None,
            self.transactional_id,
        )

    def restart(self) -> None:
        super().restart()
        if self.consumer is not None:
            self.consumer.start_anew()

    async def started(self) -> bool:
        if self.consumer is None:
            for _ in range(200):
                found = await fetch_stable(self, self.book, self.group_id, self.inputs)
                if found is not None:
                    self._positions = {key: max(offset, 0) for key, offset in found.items()}
                    return True
                await self.sleep(50, 400)
            return False
        return True

    async def transaction(self) -> None:
        consumer = self.consumer
        if consumer is not None:
            if not await consumer.be_member():
                return
            self._positions = consumer.positions
        await self._read()
        if self._taken:
            if await self.carry_out(self.begin(self.group_id)):
                self._positions.update(self._following)
                self.book.progress[self.group_id] = self.book.progress.get(self.group_id, 0) + 1
            await self.sleep(50, 1_000)
        else:
            await self.sleep(100, 1_000)

    async def _read(self) -> None:
        self._taken, self._following = {}, {}
        for key, position in list(self._positions.items()):
            found = await fetch(self, key, position, 0, self.isolation)
            if found is None:
                self.forget(key)
                continue
            following, records = found
            if self.isolation == READ_COMMITTED:
                for offset, value in records:
                    self.book.read(key, offset, value)
            count = self.rng.randint(1, INPUTS_MAX)
            if records:
                self._taken[key] = [offset for offset, _ in records[:count]]
                self._following[key] = following if count >= len(records) else records[count - 1][0] + 1
            else:
                self._positions[key] = following  # there are only markers, and what is aborted

    async def steps(self, attempt: Attempt) -> None:
        """Write the effects and the offsets, in one order or in the other."""
        self.book.offsets(attempt, self._following)
        offsets_first = self.rng.random() < 0.2
        if offsets_first:
            await self._commit_offsets(attempt)
        outputs = list(self.book.outputs[self.group_id])
        effects = [(key, offset) for key, offsets in self._taken.items() for offset in offsets]
        place = self.rng.randint(0, len(effects)) if self.rng.random() < 0.5 else len(effects)
        await self.at("before it adds partitions")
        await self.add_partitions(outputs)
        await self.at("before its first write")
        batches = []
        for part in (effects[:place], effects[place:]):
            for output in outputs if part else ():
                padding = self.rng.choice((0, 10, 300))
                values = [effect_of(attempt, key, offset, padding) for key, offset in part]
                batches.append((output, self.batch(attempt, output, values)))
        if self.rng.random() < 0.5:
            half = len(batches) // 2
            await self.produce(batches[:half])
            await self.at("between its writes")
            await self.produce(batches[half:])
        else:
            await self.produce(batches)
        if not offsets_first:
            await self._commit_offsets(attempt)

    async def _commit_offsets(self, attempt: Attempt) -> None:
        await self.at("before it adds offsets")
        if not self.raises_epochs:
            self._added[self.group_id] = None
            adds = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                group_id=self.group_id,
            )
            _, error = await self.insist(ApiKey.ADD_OFFSETS_TO_TXN, self.rng.randint(0, 3), adds)
            self.check(error, "AddOffsetsToTxn")
        await self.at("before it commits offsets")
        lowest = 0 if self.consumer is None else FIRST_VERSION_WITH_MEMBERS
        version = 5 if self.raises_epochs else self.rng.randint(lowest, 4)
        is_old = self.consumer is not None and self.rng.random() < 0.02
        _, error = await self.insist(ApiKey.TXN_OFFSET_COMMIT, version, self._offsets_request(is_old=is_old))
        if is_old:
            if error is ErrorCode.NONE:
                raise Violation("old generations are refused", f"{self.name} commits offsets")
            raise AbortError(f"as of old: {error.name}")
        if self.consumer is not None and error in _NO_MEMBER:
            self.consumer.was_refused()
            raise AbortError(f"TxnOffsetCommit: {error.name}")
        self.check(error, "TxnOffsetCommit")

    def _offsets_request(self, *, is_old: bool) -> TxnOffsetCommitRequest:
        make = TxnOffsetCommitRequest
        request = make(
            transactional_id=self.transactional_id,
            group_id=self.group_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=[
                make.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[make.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset)],
                )
                for (topic, index), offset in self._following.items()
            ],
        )
        if self.consumer is not None:
            generation = self.consumer.wrong_generation if is_old else self.consumer.generation
            request.generation_id_or_member_epoch = generation
            request.member_id = self.consumer.member_id
            request.group_instance_id = self.consumer.instance_id
        return request
