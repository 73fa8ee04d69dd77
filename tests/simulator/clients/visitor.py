"""A client that asks one broker for committed offsets, as if it led, whoever leads: its metadata may be out of date."""

from typing import TYPE_CHECKING, Any

from barnabas.protocol.api_keys import ApiKey

from simulator.clients.connection import LostError
from simulator.clients.member import Member
from simulator.clients.offsets import fetch_offsets
from simulator.clients.routed import REQUEST_LIMIT_MS, ClusterCommitter, Routed
from simulator.ledger import TopicPartition

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld
    from simulator.host import Host

BETWEEN_LOOKS_MS = 10.0


class Visitor(Routed):
    """What the broker answers must be right, or an error."""

    def __init__(self, world: "ClusterWorld", host: "Host") -> None:
        super().__init__(world, f"visitor of {host.name}")
        self._node = next(node for node, other in world.hosts.items() if other is host)

    async def ask(self, api: ApiKey, version: int, message: Any, limit_ms: float = REQUEST_LIMIT_MS) -> Any:
        """Ask the broker. LostError."""
        return await self.ask_node(self._node, api, version, message, limit_ms)

    async def look_at_groups(self, times: int) -> None:
        """Ask for the offsets of all groups, again and again."""
        groups: dict[str, list[TopicPartition]] = {}
        for client in self.world.clients:
            if isinstance(client, ClusterCommitter | Member):
                groups[client.group_id] = client.keys
        for _ in range(times):
            for group_id, keys in groups.items():
                try:
                    await fetch_offsets(self, group_id, keys)
                except LostError:
                    self.hang_up()
            await self.sleep(BETWEEN_LOOKS_MS, BETWEEN_LOOKS_MS)
