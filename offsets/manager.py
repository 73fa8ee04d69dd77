"""The offset manager keeps committed offsets. Two storages implement it: `kafka.py` (the topic `__consumer_offsets`)
and `zookeeper.py` (the coordination tree, for clients of 0.8 and OffsetCommit v0). The setting `offsets.storage` names
the one that serves OffsetCommit and OffsetFetch from version 1 on.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from barnabas.coordinators.shard import CoordinatorLog
from barnabas.offsets.expiry import GroupSituation
from barnabas.offsets.records import GroupOffsets, OffsetCommits, OffsetRemovals, TopicPartition
from barnabas.offsets.stored import StoredRun
from barnabas.offsets.table import OffsetTable
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending

Done = Callable[[ErrorCode], None]
Partitions = Sequence[tuple[str, Sequence[int]]]  # some of each topic, as a request names them


class OffsetShard(Protocol):
    """One offsets partition that this broker owns."""

    @property
    def offsets(self) -> OffsetTable:
        """The committed offsets of the partition."""

    @property
    def loading(self) -> bool:
        """Whether the partition cannot be served yet."""

    @property
    def after_loading(self) -> list[Callable[[], object]]:
        """What is to be done as soon as it is loaded."""

    @property
    def closed(self) -> bool:
        """Whether this broker does not own the partition any more."""

    @property
    def log(self) -> CoordinatorLog:
        """Its log."""

    def uncommitted_offsets(self, group_id: str) -> set[TopicPartition]:
        """The partitions of a group whose offset will change when all that is in the log is committed."""

    def write(
        self, group_id: str, records: OffsetCommits | OffsetRemovals | None, done: Done, *, patient: bool = False
    ) -> None:
        """Append the records, and replay them when they are committed; then call `done`, or with an error. Without
        records: call `done` when all earlier writes are committed.

        `done` is called with REQUEST_TIMED_OUT after a time, unless the writer is `patient`. A writer that holds the
        group must be patient.
        """

    def group_ids(self) -> list[str]:
        """All groups with a state or offsets here."""

    def situation(self, group_id: str) -> GroupSituation | None:
        """What expiry needs to know of a group; None: its offsets must not be removed."""

    def is_quiet(self, group_id: str) -> bool:
        """Whether no write of the group is in flight, and the group is not held."""

    def hold(self, group_id: str, action: Callable[[], None]) -> None:
        """Hold the group, and run `action` when no write of it is in flight. `action` must lead to `release`."""

    def release(self, group_id: str) -> None:
        """Release the group, and run the actions that wait for it."""

    def remove_group(self, group_id: str, done: Done) -> None:
        """Write the tombstone of a group that is empty and has no offsets."""


class Offsets:
    """The committed offsets of a group, or an error. The caller must not change them.

    Partitions without an offset are missing. There may be more partitions than requested. `unstable`: partitions that
    an open transaction has an offset for.
    """

    __slots__ = ("committed", "error", "unstable")

    def __init__(self, error: ErrorCode, committed: GroupOffsets, unstable: Collection[TopicPartition] = ()) -> None:
        self.error = error
        self.committed = committed
        self.unstable = unstable

    def only_run(self, topic: str) -> StoredRun | None:
        """All offsets for a topic, if they are at hand as one run."""
        return None


class OffsetsOfTable(Offsets):
    """Those of a group in a table, which decodes them only for who asks."""

    __slots__ = ("_group_id", "_table")

    def __init__(self, table: OffsetTable, group_id: str, unstable: Collection[TopicPartition] = ()) -> None:
        self.error = ErrorCode.NONE
        self.unstable = unstable
        self._table = table
        self._group_id = group_id

    @property
    def committed(self) -> GroupOffsets:  # type: ignore[override]
        """All of them."""
        return self._table.asked_for(self._group_id)

    def only_run(self, topic: str) -> StoredRun | None:
        """All offsets for a topic, if they are at hand as one run."""
        return self._table.only_run(self._group_id, topic)


class OffsetManager(Protocol):
    """Finds and removes committed offsets. A commit is a write of its group's shard (coordinators/groups/commits.py).

    `shard` is the offsets partition of the group, which the caller has looked up. Only kafka.py uses it.
    """

    def get(
        self,
        shard: OffsetShard,
        group_id: str,
        partitions: Partitions | None,
        *,
        require_stable: bool = False,
    ) -> Offsets | Pending[Offsets]:
        """The committed offsets of these partitions; None: of all partitions of the group."""

    def remove(
        self,
        shard: OffsetShard,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        done: Done,
        origin: bytes = b"",
    ) -> None:
        """Remove the offsets of these partitions; None: all of the group. No commit of the group may be under way.

        `done` is called when no later `get` will see them, or with an error. `origin`: who wants it, for the journal
        (journal.py, `encode_origin`).
        """
