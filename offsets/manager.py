"""The offset manager keeps committed offsets. Two storages implement it: `kafka.py` (the topic `__consumer_offsets`)
and `zookeeper.py` (the coordination tree, for clients of 0.8 and OffsetCommit v0). The setting `offsets.storage` names
the one that serves OffsetCommit and OffsetFetch from version 1 on.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from barnabas.offsets.records import GroupOffsets, TopicPartition
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending


@dataclass(slots=True)
class Offsets:
    """The committed offsets of a group, or an error. The caller must not change them.

    Partitions without an offset are missing. There may be more partitions than requested. `unstable`: partitions that
    an open transaction has an offset for.
    """

    error: ErrorCode
    committed: GroupOffsets
    unstable: Collection[TopicPartition] = ()


class OffsetManager(Protocol):
    """Stores and finds committed offsets. The caller has decided that the client may commit them.

    `shard` is the offsets partition of the group, which the caller has looked up. Only kafka.py uses it.
    """

    def startup(self) -> None:
        """Start the background work."""

    def get(
        self, shard: Any, group_id: str, partitions: Sequence[TopicPartition] | None, *, require_stable: bool = False
    ) -> Offsets | Pending[Offsets]:
        """The committed offsets of these partitions; None: of all partitions of the group."""

    def put(
        self, shard: Any, group_id: str, commits: GroupOffsets, done: Callable[[ErrorCode], None], origin: bytes = b""
    ) -> None:
        """Store offsets. `done` is called when every later `get` will see them, or with an error. `origin`: who wants
        it, for the journal (journal.py, `encode_origin`).
        """

    def remove(
        self,
        shard: Any,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        done: Callable[[ErrorCode], None],
        origin: bytes = b"",
    ) -> None:
        """Remove the offsets of these partitions; None: all of the group. No `put` of the group may be running."""

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the offsets of deleted topics in every group."""

    def cleanup(self) -> None:
        """Remove expired offsets."""

    def shutdown(self) -> None:
        """Stop the background work."""
