"""A client that closes its connection right after its last request: all its requests must be handled."""

from typing import TYPE_CHECKING, Any

from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import FetchRequest, MetadataRequest, ProduceRequest

from simulator.clients.client import Client
from simulator.clients.requests import batch_of, produce_request
from simulator.ledger import TopicPartition
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

ARRIVAL_MS = 3_000.0  # by then all bytes have arrived, and a long poll in front of them has ended
WAIT_MS = 1_000
LIMIT_MS = 30_000.0


class Leaver(Client):
    """Each turn makes one connection, sends records with acks=0, perhaps with a long poll among them, and closes it.

    The ledger checks at the end of the run that the records are there once and in order. This client looks into the
    broker's log and checks that all are there, if nothing was done to the world while they travelled.
    """

    must_get_on = False

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.keys = keys
        self._count = 0

    async def turn(self) -> None:
        await self.sleep(500, 5_000)
        world, key = self.world, self.rng.choice(self.keys)
        connection = await self.connected()
        await connection.ask(ApiKey.METADATA, 9, MetadataRequest(topics=[]))  # so it is accepted by the broker
        began_ms, partition = world.clock.monotonic_ms(), self._partition(key)
        base_offset = 0 if partition is None else partition.log_end_offset
        count = self.rng.choice((1, 5, 80, 200))
        parked_before = self.rng.randrange(2 * count)  # a long poll goes before this record, if it exists
        for number in range(count):
            if number == parked_before:
                answer = connection.send(ApiKey.FETCH, 11, self._long_poll(key), LIMIT_MS)
                answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody waits for it
            value = f"{self.name}:{self._count} {'x' * self.rng.choice((0, 10, 300, 2_000))}"
            self._count += 1
            world.ledger.sent[value] = 1
            connection.send_unanswered(ApiKey.PRODUCE, 7, self._record(key, value))
        self.connection = None
        if self.rng.random() < 0.3:
            connection.transport.write_eof()
        else:
            connection.transport.close()
        await world.clock.sleep(ARRIVAL_MS)
        is_same = partition is not None and partition is self._partition(key)
        if is_same and world.is_reliable and world.is_calm_for(world.clock.monotonic_ms() - began_ms):
            found = self._found(partition, base_offset)
            if found < count and partition.log_start_offset <= base_offset:
                raise Violation("what has arrived is done", f"{key}: {found} records of {count}")
            self.progress += 1

    def _partition(self, key: TopicPartition) -> Any:
        """The broker's partition, or None if it cannot be written to."""
        life = self.world.host.life
        partition = None if life is None else life.broker.replica_manager.partitions.get(key)
        is_fine = partition is not None and partition.is_leader and partition.log.failed is None
        return partition if is_fine else None

    def _found(self, partition: Any, base_offset: int) -> int:
        """How many records of this client the log has from `base_offset` on, as far as they are still there."""
        log, found = partition.log, 0
        offset = max(base_offset, log.log_start_offset)
        mine = f"{self.name}:".encode()
        while offset < log.log_end_offset:
            data = log.read(offset, 1 << 20, upper_bound=log.log_end_offset, at_least_one=True)
            for _, batch in record_batch.batches(data.records):
                found += sum((record.value or b"").startswith(mine) for record in record_batch.records(batch))
            offset = data.next_offset
        return found

    def _record(self, key: TopicPartition, value: str) -> ProduceRequest:
        return produce_request(key, batch_of(value, self.world.clock.now_ms()), acks=0)

    def _long_poll(self, key: TopicPartition) -> FetchRequest:
        """A fetch that waits, because it asks for more bytes than there are."""
        partition = FetchRequest.FetchPartition(partition=key[1], fetch_offset=0, partition_max_bytes=1 << 30)
        topic = FetchRequest.FetchTopic(topic=key[0], partitions=[partition])
        return FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1 << 30, max_bytes=1 << 30, session_epoch=-1, topics=[topic])
