"""Partitions whose committed offset stands still while there are records to read, and since when. In bounded memory."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

PARTITIONS_MAX = 50_000  # of all groups together
OF_GROUP_MAX = 500

Key = tuple[str, int]


class Standing(NamedTuple):
    """At `offset` since `since_ms`, as far as it is known."""

    topic: str
    partition: int
    offset: int
    since_ms: int


class Standstills:
    """What the looks at the lag of all groups have seen. A partition without unread records is not in it."""

    __slots__ = ("_groups", "_offsets_max", "count")

    def __init__(self, partitions_max: int = PARTITIONS_MAX) -> None:
        self._groups: dict[str, dict[Key, tuple[int, int]]] = {}
        self._offsets_max = partitions_max
        self.count = 0

    def seen(self, group_id: str, unread: Iterable[tuple[Key, int]], now_ms: int) -> None:
        """The partitions in which a group has unread records now, each with the committed offset."""
        before = self._groups.pop(group_id, {})
        self.count -= len(before)
        room = min(self._offsets_max - self.count, OF_GROUP_MAX)
        after: dict[Key, tuple[int, int]] = {}
        for key, offset in unread:
            if len(after) >= room:
                break
            known = before.get(key)
            after[key] = known if known is not None and known[0] == offset else (offset, now_ms)
        if after:
            self._groups[group_id] = after
            self.count += len(after)

    def of_group(self, group_id: str) -> Iterator[Standing]:
        """The partitions of a group, in the order in which they were seen."""
        for (topic, partition), (offset, since_ms) in self._groups.get(group_id, {}).items():
            yield Standing(topic, partition, offset, since_ms)

    def keep_only(self, group_ids: set[str]) -> None:
        """Forget all other groups."""
        for group_id in self._groups.keys() - group_ids:
            self.count -= len(self._groups.pop(group_id))
