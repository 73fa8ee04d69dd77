"""A client that commits once and then does nothing: its offset must stay until it expires, and then go."""

from typing import TYPE_CHECKING

from simulator.clients.client import Client, expect
from simulator.clients.offsets import commit, fetch_offsets
from simulator.ledger import TopicPartition
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World


class Idler(Client):
    """This checks that the offset goes. That it stays is checked in the ledger, as for all clients."""

    must_get_on = False

    def __init__(self, world: "World", name: str, key: TopicPartition) -> None:
        super().__init__(world, name)
        self.group_id = f"group-of-{name}"
        self.key = key
        self._position = 0
        self._committed_wall_ms = -1  # the latest time of the commit, by the broker's clock; -1: nothing is committed

    async def turn(self) -> None:
        if self._committed_wall_ms < 0:
            self._position += 1
            try:
                error = await commit(self, self.group_id, -1, "", None, {self.key: self._position})
            finally:
                self._committed_wall_ms = self.world.host.wall_ms()
            if expect(error, f"OffsetCommit of {self.name}"):
                self._committed_wall_ms = -1
        await self._look()
        await self.sleep(3_000, 15_000)

    async def rest(self) -> None:
        await self._look()
        await self.sleep(20_000, 90_000)

    async def _look(self) -> None:
        world = self.world
        found = await fetch_offsets(self, self.group_id, [self.key])
        if found is None or self._committed_wall_ms < 0:
            return
        if found[self.key] < 0:
            self._committed_wall_ms = -1
            return
        age_ms = world.host.wall_ms() - self._committed_wall_ms
        if age_ms > world.expires_within_ms and world.is_calm_for(world.expires_within_ms - world.retention_ms):
            raise Violation("offsets expire", f"{self.group_id}: {found[self.key]} is {age_ms} ms old")
