"""A producer: idempotent, acks=all, with several batches in flight."""

from typing import TYPE_CHECKING

from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import InitProducerIdRequest
from barnabas.protocol.record_batch import Record

from simulator.clients.client import RETRIABLE, Client, expect
from simulator.clients.connection import UnansweredError
from simulator.clients.requests import produce_request
from simulator.ledger import TopicPartition
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

BATCHES_IN_FLIGHT_MAX = 4


class Batch:
    """Records that have a sequence number and are not acknowledged yet."""

    __slots__ = ("data", "first_life", "key", "values")

    def __init__(self, key: TopicPartition, values: list[str], data: bytes, life: int) -> None:
        self.key = key
        self.values = values
        self.data = data
        self.first_life = life


class Producer(Client):
    """Idempotent, acks=all, with some batches in flight. A batch whose answer is lost is sent again."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.keys = keys
        self.incarnation = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._batches: list[Batch] = []  # in flight, in order
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
        if expect(response.error_code, "InitProducerId"):
            await self.sleep(50, 200)
            return
        if response.producer_id in self.world.producer_ids:
            raise Violation("a producer id is given once", str(response.producer_id))
        self.world.producer_ids[response.producer_id] = None
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    def _restart(self, why: str) -> None:
        """Go on as another process. The batches in flight may have been written, once, but this is not asked."""
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
        for slot in range(self.rng.choice((1, 1, 1, 2, 5))):
            value, record = self._make_record(slot)
            self._count += 1
            self.world.ledger.sent[value] = 1
            values.append(value)
            batch.append(record)
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

    def _make_record(self, slot: int) -> tuple[str, Record]:
        """A value for the ledger, and its record."""
        value = f"{self.name}.{self.incarnation}:{self._count} {'x' * self.rng.choice((0, 10, 300))}"
        now_ms = self.world.clock.now_ms()
        return value, Record(offset=slot, timestamp=now_ms, key=None, value=value.encode(), headers=[])

    async def _send_all(self) -> bool:
        """Send the batches in flight, in order, and take the answers. False if some must be sent again."""
        connection = await self.connected()
        version = self.rng.randint(3, 13)
        asked_ms = self.world.clock.monotonic_ms()
        answers = []
        for batch in self._batches:
            request = produce_request(batch.key, batch.data, topic_id=self.world.topic_ids[batch.key[0]])
            answers.append(connection.send(ApiKey.PRODUCE, version, request, 20_000))
        failed: dict[TopicPartition, ErrorCode] = {}
        for batch, answer in zip(list(self._batches), answers):
            try:
                response = await answer
            except UnansweredError as unanswered:
                self.world.note_unanswered(self.name, str(unanswered), asked_ms)
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
                pass  # refused, because the batch before it was
            elif error in RETRIABLE:
                failed[batch.key] = error
            elif error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.first_life != self.world.host.lives:
                # A replay of the log after a crash does not find batches that were deleted meanwhile.
                self._restart("has lost its place over a restart of the broker")
                return False
            else:
                detail = f"{self.name} {batch.key} sequence {record_batch.read_header(batch.data).base_sequence}"
                raise Violation("a producer in order is accepted", f"{detail}: {error.name}")
        return not failed
