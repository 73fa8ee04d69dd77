"""A transactional producer that writes new records into the inputs of copiers, and sometimes aborts."""

from typing import TYPE_CHECKING

from simulator.clients.transactional import BATCHES_IN_FLIGHT_MAX, ProcessEndError, Transactional
from simulator.ledger import TopicPartition
from simulator.transaction_book import Attempt, value_of

if TYPE_CHECKING:
    from simulator.world import World

ABANDONS = 0.03  # how often it goes away for good in the middle of a transaction, where clocks are right


class Feeder(Transactional):
    """Each transaction has a few records in some of the partitions."""

    def __init__(
        self, world: "World", name: str, keys: list[TopicPartition], transactional_id: str | None = None
    ) -> None:
        super().__init__(world, name, transactional_id)
        self.keys = keys
        self._ids = 0

    def successor(self, name: str) -> "Feeder":
        """Another process with the same transactional id."""
        return type(self)(self.world, name, self.keys, self.transactional_id)

    async def transaction(self) -> None:
        await self.carry_out(self.begin())
        await self.sleep(100, 2_500)

    async def steps(self, attempt: Attempt) -> None:
        """Write to one partition after the other, or to all at once."""
        keys = self.rng.sample(self.keys, self.rng.randint(1, len(self.keys)))
        count = 0
        if self.rng.random() < 0.5:
            await self.add_partitions(keys)
        batches = []
        for _ in range(self.rng.randint(1, BATCHES_IN_FLIGHT_MAX)):
            key = self.rng.choice(keys)
            await self.add_partitions([key])
            values = []
            for _ in range(self.rng.randint(1, 3)):
                values.append(value_of(attempt, count, self.rng.choice((0, 10, 300))))
                count += 1
            batches.append((key, self.batch(attempt, key, values)))
            if self.rng.random() < 0.5:
                await self.at("between its writes")
                await self.produce(batches)
                batches = []
                self._abandon()
        await self.at("before its last write")
        await self.produce(batches)
        if self.rng.random() < 0.05:
            await self.sleep(0, 20_000)  # perhaps longer than its transaction may take

    def _abandon(self) -> None:
        """Never come back with this transactional id: nobody but the clock ends the transaction."""
        if self.part.abandons and not self.world.settling and self.rng.random() < ABANDONS:
            self._ids += 1
            self.world.note(f"{self.name} abandons {self.transactional_id}")
            self.transactional_id = f"{self.name}-{self._ids}"
            raise ProcessEndError(f"it goes on as {self.transactional_id}")
