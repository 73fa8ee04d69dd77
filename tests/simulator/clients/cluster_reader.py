"""A consumer of a cluster without a group: it reads partitions from their leaders, again and again."""

from typing import TYPE_CHECKING

from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

from simulator.clients.client import expect
from simulator.clients.connection import LostError
from simulator.clients.requests import fetch_request
from simulator.clients.routed import Routed
from simulator.ledger import TopicPartition
from simulator.observations import Fetch, Outcome
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld

FETCH_LIMIT_MS = 10_000.0
_REFUSED = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)


class ClusterReader(Routed):
    """Asks for one partition in a request."""

    must_get_on = False  # there may be nothing to read

    def __init__(self, world: "ClusterWorld", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.positions = dict.fromkeys(keys, 0)

    async def turn(self) -> None:
        key = self.rng.choice(list(self.positions))
        following = await self.fetch(key, self.positions[key], self.rng.choice((0, 100, 500)))
        if following is None:
            await self.sleep(50, 300)
            return
        self.positions[key] = following
        await self.sleep(50, 1_000)
        if self.rng.random() < 0.05:
            self.positions[key] = 0

    async def rest(self) -> None:
        if self.rng.random() < 0.2:
            await self.turn()
        await self.sleep(20_000, 120_000)

    async def fetch(self, key: TopicPartition, position: int, max_wait_ms: int) -> int | None:
        """Read once; returns the next position, or None if the partition cannot be read now."""
        request = fetch_request(key, position, max_wait_ms, 40_000, topic_id=self.world.topic_ids[key[0]])
        operation = Fetch(key, position)
        number = self.began(operation)
        try:
            response = await self.ask(ApiKey.FETCH, self.rng.randint(4, 17), request, max_wait_ms + FETCH_LIMIT_MS)
        except LostError:
            self.ended(number, Outcome.FAIL, operation)
            raise
        (answer,) = response.responses[0].partitions
        error = expect(answer.error_code, f"Fetch {key} {position}", *_REFUSED)
        if error:
            self.ended(number, Outcome.FAIL, operation)
            if error is ErrorCode.OFFSET_OUT_OF_RANGE:
                return await self.list_offset(key, -2)
            return None
        following = position
        records: list[tuple[int, str]] = []
        for header, batch in record_batch.batches(answer.records or b""):
            if not record_batch.crc_is_valid(batch):
                raise Violation("batches are whole", f"{key} {header.base_offset}")
            records += [(record.offset, (record.value or b"").decode()) for record in record_batch.records(batch)]
            following = header.next_offset
        read = tuple((offset, value) for offset, value in records if offset >= position)
        self.ended(number, Outcome.OK, Fetch(key, position, read, answer.high_watermark, answer.log_start_offset))
        self.progress += following - position
        return following
