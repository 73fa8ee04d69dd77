"""A copier whose membership migrates between the protocols (KIP-848): its offsets are committed with member epochs."""

from typing import TYPE_CHECKING, Any

from simulator.clients.consumer_member import ConsumerMember
from simulator.clients.copier import Copier, CopierConsumer
from simulator.clients.routed import Routed
from simulator.ledger import TopicPartition

if TYPE_CHECKING:
    from simulator.consumer_members import ConsumerWorld


class MigratingConsumer(CopierConsumer, ConsumerMember):
    """The membership of such a copier."""

    def __init__(
        self, world: "ConsumerWorld", name: str, group_id: str, keys: list[TopicPartition], instance_id: str | None
    ) -> None:
        ConsumerMember.__init__(self, world, name, world.books[group_id], keys, instance_id)

    @property
    def wrong_generation(self) -> int:
        """An older one may do (KIP-1251)."""
        return self.generation + 1_000

    def was_refused(self) -> None:
        if self.is_classic:
            super().was_refused()  # else its next heartbeat tells it what is wrong

    async def _take(self, assignment: Any) -> None:
        try:
            await super()._take(assignment)
        finally:
            self.positions = {key: offset for key, offset in self.positions.items() if key in self.owned}


class MigratingCopier(Copier):
    """With one broker."""

    consumer_class = MigratingConsumer


class ClusterMigratingConsumer(Routed, MigratingConsumer):
    """Its coordinator may move."""


class ClusterMigratingCopier(Routed, Copier):
    """With several brokers."""

    consumer_class = ClusterMigratingConsumer
