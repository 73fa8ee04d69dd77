"""A coordinator with a tree, for tests of offsets in it."""

from pathlib import Path
from typing import Any

from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.protocol import messages
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.ports import Env
from group_world import GroupWorld, answer_of


class TreeWorld(GroupWorld):
    """A coordinator with a tree."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(**settings)
        env = Env(clock=self.clock, disk=RealDisk(), network=self.env.network, rng=self.env.rng)
        self.tree = EmbeddedCoordination(env, str(path / "tree.sqlite"))
        self.env.run(self.tree.start())
        self.coordination = self.tree
        self.coordinator = self.make_coordinator()
        self.coordinator.start()
        self.lead_all()

    def node(self, path: str) -> bytes | None:
        (found,) = self.env.run(self.tree.get_many([path]))
        return found[0] if found is not None else None

    def ask_tree(self, name: str, request: Any, version: int) -> Any:
        reply = self.call(name, request, version)

        async def wait() -> None:
            for _ in range(50):
                if getattr(reply, "done", True):
                    return
                await self.clock.sleep(1)

        self.env.run(wait())
        return answer_of(reply)

    def commit_tree(
        self, offsets: dict[int, int], version: int = 0, topic: str = "t", metadata: str = "n", group: str = "g"
    ) -> list[int]:
        make = messages.OffsetCommitRequest
        rows = [
            make.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=metadata
            )
            for index, offset in offsets.items()
        ]
        request = make(group_id=group, topics=[make.OffsetCommitRequestTopic(name=topic, partitions=rows)])
        response = self.ask_tree("offset_commit", request, version)
        return [partition.error_code for partition in response.topics[0].partitions]

    def fetch_tree(self, indexes: list[int], version: int = 0, topic: str = "t") -> list[tuple[int, str, int]]:
        make = messages.OffsetFetchRequest
        request = make(group_id="g", topics=[make.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)])
        response = self.ask_tree("offset_fetch", request, version)
        return [(row.committed_offset, row.metadata, row.error_code) for row in response.topics[0].partitions]
