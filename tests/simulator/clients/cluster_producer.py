"""Producers of a cluster: idempotent with acks=all, and careless with acks=1. All that they do is in the history."""

from typing import TYPE_CHECKING

from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import InitProducerIdRequest
from barnabas.protocol.record_batch import Record

from simulator.clients.client import RETRIABLE, expect
from simulator.clients.connection import LostError
from simulator.clients.requests import batch_of, produce_request
from simulator.clients.routed import MOVED, Routed
from simulator.ledger import TopicPartition
from simulator.observations import Outcome, Produce
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld

IN_FLIGHT_MAX = 4  # of one partition; brokers know a producer's last five batches
PRODUCE_LIMIT_MS = 15_000.0
# Behind a batch that was refused so, none may be accepted. Other errors come from a wait: the batch may be in the log.
NOT_WRITTEN = (ErrorCode.NOT_ENOUGH_REPLICAS,)


class _Batch:
    """Records that have a sequence number and are not acknowledged yet."""

    __slots__ = ("data", "lives", "number", "operation")

    def __init__(self, operation: Produce, number: int, data: bytes, lives: int) -> None:
        self.lives = lives  # how many processes of brokers there had been when it was made
        self.operation = operation
        self.number = number
        self.data = data


class ClusterProducer(Routed):
    """Idempotent, acks=all, some batches in flight for each partition. A batch is sent until it is acknowledged."""

    def __init__(
        self,
        world: "ClusterWorld",
        name: str,
        keys: list[TopicPartition],
        pause_ms: tuple[float, float] = (20.0, 800.0),
    ) -> None:
        super().__init__(world, name)
        self.keys = keys
        self.pause_ms = pause_ms
        self.incarnation = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._batches: dict[TopicPartition, list[_Batch]] = {}  # in flight, in order
        self._count = 0

    async def turn(self) -> None:
        if self.producer_id < 0:
            await self._begin()
            return
        for _ in range(self.rng.randint(1, 4)):
            key = self.rng.choice(self.keys)
            batches = self._batches.setdefault(key, [])
            if len(batches) < IN_FLIGHT_MAX:
                batches.append(self._make_batch(key))
        for key in [key for key, batches in self._batches.items() if batches]:
            if key in self._batches and not await self._send(key):  # not: it was started anew, and forgot its batches
                await self.sleep(20, 200)
            if self.producer_id < 0:
                return  # it was started anew, with nothing in flight
        await self.sleep(*self.pause_ms)
        if self.rng.random() < 0.01:
            self._restart("is started anew")

    async def rest(self) -> None:
        await self.turn()
        await self.sleep(60_000, 240_000)

    async def _begin(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = await self.ask(ApiKey.INIT_PRODUCER_ID, self.rng.randint(0, 4), request)
        if expect(response.error_code, "InitProducerId"):
            await self.sleep(50, 200)
            return
        if response.producer_id in self.world.producer_ids:
            if self.world.ledger.commits.unaware_may_lead:
                await self.sleep(50, 200)
                return
            raise Violation("a producer id is given once", str(response.producer_id))
        self.world.producer_ids[response.producer_id] = None
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    def _restart(self, why: str) -> None:
        """Go on as another process. What is in flight may have been written, once."""
        self.world.note(f"{self.name} {why}")
        for batches in self._batches.values():
            for batch in batches:
                self.ended(batch.number, Outcome.INFO, batch.operation)
        self.incarnation += 1
        self.producer_id = -1
        self._batches.clear()
        self._sequences.clear()
        self._count = 0
        self.hang_up()

    def _make_batch(self, key: TopicPartition) -> _Batch:
        records = []
        for slot in range(self.rng.choice((1, 1, 1, 2, 5))):
            value = f"{self.name}.{self.incarnation}:{self._count} {'x' * self.rng.choice((0, 10, 300))}"
            self._count += 1
            now_ms = self.world.clock.now_ms()
            records.append(Record(offset=slot, timestamp=now_ms, key=None, value=value.encode(), headers=[]))
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(records)
        data = record_batch.build(
            records, producer_id=self.producer_id, producer_epoch=self.producer_epoch, base_sequence=sequence
        )
        values = tuple((record.value or b"").decode() for record in records)
        operation = Produce(key, values, -1, self.producer_id, sequence)
        return _Batch(operation, self.began(operation), bytes(data), self.cluster.lives_begun)

    async def _send(self, key: TopicPartition) -> bool:
        """Send a partition's batches in order, and take the answers. False if some must be sent again."""
        node = await self.find(key)
        connection = await self.connected_to(node)
        lost_session = self.lost_session_of(node)
        version = self.rng.randint(3, 13)
        batches = list(self._batches[key])
        requests = [produce_request(key, batch.data, topic_id=self.world.topic_ids[key[0]]) for batch in batches]
        answers = [connection.send(ApiKey.PRODUCE, version, request, PRODUCE_LIMIT_MS) for request in requests]
        failed: ErrorCode | None = None
        for batch, answer in zip(batches, answers):
            response = await answer
            self.world.answers += 1
            (partition,) = response.responses[0].partition_responses
            error = ErrorCode(partition.error_code)
            if error is ErrorCode.NONE:
                if failed in NOT_WRITTEN:
                    raise Violation("sequences leave no gap", f"{self.name} {key}: {failed.name} before")
                if lost_session:
                    self.check_session(node, lost_session, f"{self.name} {key}")
                self._batches[key].remove(batch)
                self.ended(batch.number, Outcome.OK, batch.operation._replace(base_offset=partition.base_offset))
                self.progress += 1
            elif failed is None:
                if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.lives != self.cluster.lives_begun:
                    # A replay of the log after a crash does not find batches that were deleted meanwhile.
                    self._restart("has lost its place")
                    return False
                if error not in RETRIABLE:
                    detail = f"{self.name} {key} sequence {batch.operation.base_sequence}: {error.name}"
                    raise Violation("a producer in order is accepted", detail)
                failed = error
        if failed in MOVED:
            self.forget(key)
        return failed is None


class CarelessClusterProducer(Routed):
    """With acks=1, not idempotent: each value is sent once, and nothing is promised."""

    def __init__(self, world: "ClusterWorld", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.keys = keys
        self._count = 0

    async def turn(self) -> None:
        key = self.rng.choice(self.keys)
        value = f"{self.name}:{self._count} {'x' * self.rng.choice((0, 10, 300))}"
        self._count += 1
        data = batch_of(value, self.world.clock.now_ms())
        operation = Produce(key, (value,), 1, -1, -1)
        number = self.began(operation)
        try:
            request = produce_request(key, data, topic_id=self.world.topic_ids[key[0]], acks=1)
            response = await self.ask(ApiKey.PRODUCE, self.rng.randint(3, 13), request)
        except LostError:
            self.ended(number, Outcome.INFO, operation)
            raise
        (partition,) = response.responses[0].partition_responses
        if expect(partition.error_code, f"Produce of {self.name}"):
            self.ended(number, Outcome.INFO, operation)
        else:
            self.ended(number, Outcome.OK, operation._replace(base_offset=partition.base_offset))
            self.progress += 1
        await self.sleep(100, 3_000)
