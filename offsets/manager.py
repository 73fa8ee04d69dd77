"""The offset manager: where committed offsets are kept. Two storages implement it: `kafka.py` (the topic
`__consumer_offsets`) and `zookeeper.py` (the coordination tree, as 0.8 clients and OffsetCommit v0 want it); the
setting `offsets.storage` says which one serves OffsetCommit and OffsetFetch from version 1 on.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from barnabas.offsets.records import GroupOffsets, TopicPartition
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending


@dataclass(slots=True)
class Offsets:
    """What a group has committed, not to be changed. Partitions without an offset are missing, others than those that
    were asked for may be there; `unstable` ones have one on its way."""

    error: ErrorCode
    committed: GroupOffsets
    unstable: Collection[TopicPartition] = ()


class OffsetManager(Protocol):
    """Keeps committed offsets. Who may commit what is decided before; here it is only stored and found.

    `shard` is the offsets partition of the group, which the caller has looked up; only one storage lives in it.
    """

    def startup(self) -> None:
        """Begin the background work."""

    def get(
        self, shard: Any, group_id: str, partitions: Sequence[TopicPartition] | None, *, require_stable: bool = False
    ) -> Offsets | Pending[Offsets]:
        """Offsets of these partitions, or of all the group has. Only what is committed is ever seen."""

    def put(self, shard: Any, group_id: str, commits: GroupOffsets, done: Callable[[ErrorCode], None]) -> None:
        """Store offsets, all or none, and keep them; `done` is told when a later `get` by anybody will see them."""

    def remove(
        self,
        shard: Any,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Forget the offsets of these partitions, or all of the group. `put`s of the group must be over."""

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Topics are gone: their offsets go too, in every group."""

    def cleanup(self) -> None:
        """Let go of what has expired."""

    def shutdown(self) -> None:
        """End the background work."""
