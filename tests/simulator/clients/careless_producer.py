"""A producer without idempotence: with acks=0 nothing is promised, with acks=1 a retry may write a record twice."""

from typing import TYPE_CHECKING

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import ProduceRequest

from simulator.clients.client import Client, expect
from simulator.clients.requests import batch_of, produce_request
from simulator.ledger import TopicPartition

if TYPE_CHECKING:
    from simulator.world import World


class CarelessProducer(Client):
    """Sends one record after the other. The ledger knows how often each was sent: so often the log may have it."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition], acks: int) -> None:
        super().__init__(world, name)
        self.keys = keys
        self.acks = acks
        self._count = 0
        self._unacknowledged: tuple[TopicPartition, str] | None = None

    async def turn(self) -> None:
        if self._unacknowledged is None:
            value = f"{self.name}:{self._count} {'x' * self.rng.choice((0, 10, 300))}"
            self._count += 1
            self.world.ledger.sent[value] = 0
            self._unacknowledged = (self.rng.choice(self.keys), value)
        key, value = self._unacknowledged
        request = self._request(key, value)
        version = self.rng.randint(3, 13)
        connection = await self.connected()
        self.world.ledger.sent[value] += 1
        if self.acks == 0:
            self._unacknowledged = None
            connection.send_unanswered(ApiKey.PRODUCE, version, request)
            self.progress += 1
        else:
            response = await self.ask(ApiKey.PRODUCE, version, request)
            (partition,) = response.responses[0].partition_responses
            if not expect(partition.error_code, f"Produce of {self.name}"):
                self.world.ledger.acknowledge(key, partition.base_offset, [value])
                self._unacknowledged = None
                self.progress += 1
        await self.sleep(100, 3_000)

    def _request(self, key: TopicPartition, value: str) -> ProduceRequest:
        data = batch_of(value, self.world.clock.now_ms())
        return produce_request(key, data, topic_id=self.world.topic_ids[key[0]], acks=self.acks)
