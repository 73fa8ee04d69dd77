"""A consumer without a group, which reads partitions from their start, again and again."""

from typing import TYPE_CHECKING, Any

from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record

from simulator.clients.client import Client, expect
from simulator.clients.requests import fetch_request
from simulator.ledger import TopicPartition
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

FETCH_LIMIT_MS = 4_000.0  # how much longer than the fetch's own wait an answer may take, with the slowest network
TEXT_HEADER = "text"  # this header holds the ledger's text of a record without a value


def text_of(record: Record) -> str:
    """The ledger's text of a record."""
    if record.value is not None:
        return record.value.decode()
    return next(((value or b"").decode() for name, value in record.headers if name == TEXT_HEADER), "")


class Reader(Client):
    """Asks for one partition in a request."""

    must_get_on = False  # there may be nothing to read
    not_known_yet = ()  # it is the only replica

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

    async def rest(self) -> None:
        key = self.rng.choice(list(self.positions))
        fetched = await self.fetch(key, self.positions[key], 30_000, 200_000)
        if fetched is None:
            await self.sleep(5_000, 20_000)
        else:
            self.positions[key] = fetched

    async def fetch(self, key: TopicPartition, position: int, max_wait_ms: int, max_bytes: int) -> int | None:
        """Read once, and note all records in the ledger. Returns the next position; None if it cannot be read now."""
        version = self.rng.randint(4, 18)
        request = fetch_request(key, position, max_wait_ms, max_bytes, topic_id=self.world.topic_ids[key[0]])
        response = await self.ask(ApiKey.FETCH, version, request, max_wait_ms + FETCH_LIMIT_MS)
        (partition,) = response.responses[0].partitions
        return await self.take(key, position, partition)

    async def take(self, key: TopicPartition, position: int, partition: Any) -> int | None:
        """Note a partition's answer in the ledger. Returns the next position; None if it cannot be read now."""
        error = expect(partition.error_code, f"Fetch {key} {position}", ErrorCode.OFFSET_OUT_OF_RANGE)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._out_of_range(key, position)
        if error:
            return None
        next_offset = position
        may_have_gaps = key[0] in self.world.compacted
        for header, batch in record_batch.batches(partition.records or b""):
            if not record_batch.crc_is_valid(batch):
                raise Violation("batches are whole", f"{key} {header.base_offset}")
            gap = header.base_offset > next_offset and not may_have_gaps
            if header.last_offset < next_offset or gap:
                raise Violation("no gap", f"{key}: {header.base_offset} where {next_offset} was next")
            if header.last_offset >= partition.high_watermark:
                raise Violation("nothing above the high watermark", f"{key} {header.last_offset}")
            for record in record_batch.records(batch):
                self.world.ledger.consume(key, record.offset, text_of(record))
            next_offset = header.next_offset
        self.progress += next_offset - position
        return next_offset

    async def _out_of_range(self, key: TopicPartition, position: int) -> int | None:
        """Where to go on if the log does not have the position any more.

        Retention may have removed it. But it is a Violation if the broker has less than it has shown before.
        """
        start = await self.list_offset(key, -2)
        end = await self.list_offset(key, -1)
        if start is None or end is None:
            return None
        if start <= position <= end:  # the answer was right when the broker gave it, just after a start
            if self.world.is_calm_for(5_000):
                raise Violation("answers make sense", f"{key}: {position} is out of range of {start}..{end}")
            return None
        if position > end and self.world.is_calm_for(5_000):
            raise Violation("what was read stays", f"{key}: {position} was read, the end is {end}")
        return start
