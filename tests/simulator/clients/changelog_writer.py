"""A producer of a compacted topic: values of a few keys, and now and then a key's deletion."""

from typing import TYPE_CHECKING

from barnabas.protocol.record_batch import Record

from simulator.clients.producer import Producer
from simulator.clients.reader import TEXT_HEADER
from simulator.ledger import TopicPartition

if TYPE_CHECKING:
    from simulator.world import World

KEYS = 4
RECORDS_OF_A_KEY = 8  # after so many records of its keys, it takes other keys, and these stay as they are


class ChangelogWriter(Producer):
    """Only this client writes its keys. It numbers all its values, so of two values the larger number is newer."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name, keys)
        self._number = 0

    def _make_record(self, slot: int) -> tuple[str, Record]:
        self._number += 1
        first_key = self._number // (KEYS * RECORDS_OF_A_KEY) * KEYS
        key = f"{self.name}-{first_key + self.rng.randint(1, KEYS)}"
        now_ms = self.world.clock.now_ms()
        if self.rng.random() < 0.2:
            text = f"{key}:{self._number} deleted"
            self.world.ledger.deletions_sent[key] = self._number
            headers: list[tuple[str, bytes | None]] = [(TEXT_HEADER, text.encode())]
            return text, Record(offset=slot, timestamp=now_ms, key=key.encode(), value=None, headers=headers)
        text = f"{key}:{self._number} {'x' * self.rng.choice((0, 50, 300))}"
        return text, Record(offset=slot, timestamp=now_ms, key=key.encode(), value=text.encode(), headers=[])
