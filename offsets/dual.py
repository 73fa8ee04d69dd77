"""Both offset storages at a time (`dual.commit.enabled`), while consumers move from the tree to the topic.

A commit goes to the topic first, then to the tree. What is read is the larger of both offsets, as consumers of 0.8 did.
"""

from collections.abc import Sequence

from barnabas.offsets.manager import Done, OffsetManager, Offsets, OffsetShard, Partitions
from barnabas.offsets.records import GroupOffsets, TopicPartition
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending


class DualOffsetManager:
    """`OffsetManager` over the topic and the tree. Their owner starts them, and tells them of deleted topics."""

    def __init__(self, topic: OffsetManager, tree: OffsetManager) -> None:
        self._topic = topic
        self._tree = tree

    def get(
        self,
        shard: OffsetShard,
        group_id: str,
        partitions: Partitions | None,
        *,
        require_stable: bool = False,
    ) -> Offsets | Pending[Offsets]:
        found: list[Offsets] = []
        pending: Pending[Offsets] = Pending()

        def take(one: Offsets) -> None:
            found.append(one)
            if len(found) == 2:
                pending.complete(larger(*found))

        for reply in (
            self._topic.get(shard, group_id, partitions, require_stable=require_stable),
            self._tree.get(shard, group_id, partitions),
        ):
            if isinstance(reply, Pending):
                reply.then(take)
            else:
                take(reply)
        return pending

    def remove(
        self,
        shard: OffsetShard,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        done: Done,
        origin: bytes = b"",
    ) -> None:
        errors: list[ErrorCode] = []

        def removed(error: ErrorCode) -> None:
            errors.append(error)
            if len(errors) == 2:
                done(errors[0] or errors[1])

        self._topic.remove(shard, group_id, partitions, removed, origin)
        self._tree.remove(shard, group_id, partitions, removed)


def larger(one: Offsets, other: Offsets) -> Offsets:
    """The larger offset of each partition. Equal offsets: that of `one`, which has metadata. An error is of both."""
    error = one.error or other.error
    if error:
        return Offsets(error, {})
    committed: GroupOffsets = {topic: dict(offsets) for topic, offsets in one.committed.items()}
    for topic, offsets in other.committed.items():
        known = committed.setdefault(topic, {})
        for partition, offset in offsets.items():
            if partition not in known or offset.offset > known[partition].offset:
                known[partition] = offset
    return Offsets(error, committed, one.unstable)
