"""A consumer that reads committed records only, as Kafka's clients do, and what it needs of an answer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

from simulator.clients.client import Client, expect
from simulator.clients.requests import READ_COMMITTED, READ_UNCOMMITTED, fetch_request
from simulator.ledger import TopicPartition
from simulator.storage_transactions import committed_records
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

FETCH_LIMIT_MS = 10_000.0
_REFUSED = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)

Read = tuple[int, list[tuple[int, str]]]  # the next position, and the records: offset and value


async def fetch(
    client: Client, key: TopicPartition, position: int, max_wait_ms: int, isolation: int, max_bytes: int = 20_000
) -> Read | None:
    """Read once; None if the partition cannot be read now."""
    topic_id = client.world.topic_ids[key[0]]
    request = fetch_request(key, position, max_wait_ms, max_bytes, topic_id=topic_id, isolation=isolation)
    response = await client.ask(ApiKey.FETCH, client.rng.randint(4, 17), request, max_wait_ms + FETCH_LIMIT_MS)
    (answer,) = response.responses[0].partitions
    error = expect(answer.error_code, f"Fetch {key} {position}", *_REFUSED)
    if error:
        return None
    return take(key, position, answer, isolation)


def take(key: TopicPartition, position: int, answer: Any, isolation: int) -> Read:
    """What a consumer makes of an answer."""
    if isolation == READ_COMMITTED and not 0 <= answer.last_stable_offset <= answer.high_watermark:
        detail = f"{key}: {answer.last_stable_offset} of {answer.high_watermark}"
        raise Violation("the last stable offset is below the high watermark", detail)
    following = position
    for header, batch in record_batch.batches(answer.records or b""):
        if not record_batch.crc_is_valid(batch):
            raise Violation("batches are whole", f"{key} {header.base_offset}")
        if header.base_offset > following or header.last_offset < following:
            raise Violation("no gap", f"{key}: {header.base_offset} where {following} was next")
        if isolation == READ_COMMITTED and header.last_offset >= answer.last_stable_offset:
            raise Violation("nothing above the last stable offset", f"{key} {header.last_offset}")
        following = header.next_offset
    aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
    found = _data(answer.records) if isolation == READ_UNCOMMITTED else committed_records(answer.records, aborted)
    return following, [(each.offset, (each.value or b"").decode()) for each in found if each.offset >= position]


def _data(records: Any) -> Iterator[record_batch.Record]:
    for header, batch in record_batch.batches(records or b""):
        if not header.is_control:
            yield from record_batch.records(batch)


class CommittedReader(Client):
    """Reads partitions from their start, again and again, and writes what it gets into the book."""

    must_get_on = False  # there may be nothing to read

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.positions = dict.fromkeys(keys, 0)

    async def turn(self) -> None:
        key = self.rng.choice(list(self.positions))
        if not await self.read(key, self.rng.choice((0, 100, 500))):
            await self.sleep(50, 300)
            return
        await self.sleep(100, 1_500)
        if self.rng.random() < 0.04:
            self.positions[key] = 0

    async def rest(self) -> None:
        await self.turn()
        await self.sleep(20_000, 120_000)

    async def read(self, key: TopicPartition, max_wait_ms: int) -> bool:
        """Read once; whether the partition could be read."""
        found = await fetch(self, key, self.positions[key], max_wait_ms, READ_COMMITTED)
        if found is None:
            return False
        following, records = found
        assert self.world.transactions is not None
        for offset, value in records:
            self.world.transactions.book.read(key, offset, value)
        self.progress += following - self.positions[key]
        self.positions[key] = following
        return True
