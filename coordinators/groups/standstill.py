"""Partitions whose committed offset stands still while there are records to read, and since when. In bounded memory.

Of each group only a few partitions are watched. One that moves makes room for another, so one that does not move is
watched sooner or later, and stays.
"""

from array import array
from collections.abc import Sequence

from barnabas.protocol.named_tuple import NamedTuple

STALLED_MS = 600_000  # an offset that stands still for so long is a finding, unless another time is asked for
PARTITIONS_MAX = 80_000  # of all groups together; each takes 32 bytes, and each group about 300
OF_GROUP_MAX = 8
_TURN_MS = 30_000  # so often other partitions are taken, where there is room
_FIELDS = 4  # number of the topic, partition, offset, since when

Unread = tuple[str, int, int]  # topic, partition, committed offset


class Standing(NamedTuple):
    """At `offset` since `since_ms`, as far as it is known."""

    topic: str
    partition: int
    offset: int
    since_ms: int


class Standstills:
    """What the looks at the lag of all groups have seen. A group without unread records is not in it."""

    __slots__ = ("_groups", "_numbers", "_partitions_max", "_topics", "count")

    def __init__(self, partitions_max: int = PARTITIONS_MAX) -> None:
        # How many partitions have unread records, then the fields of those that are watched. An array, because the
        # garbage collector does not look at it.
        self._groups: dict[str, array[int]] = {}
        self._topics: list[str] = []
        self._numbers: dict[str, int] = {}  # of the topics, in that list
        self._partitions_max = partitions_max
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether of some groups nothing is known, because others have taken the room."""
        return self.count >= self._partitions_max

    def seen(self, group_id: str, unread: Sequence[Unread], now_ms: int) -> None:
        """The partitions in which a group has unread records now."""
        before = self._take(group_id)
        if not unread:
            return
        room = min(self._partitions_max - self.count, OF_GROUP_MAX)
        after = array("q", (len(unread),))
        known: set[tuple[str, int]] = set()
        if before is not None:
            offsets = {(topic, partition): offset for topic, partition, offset in unread}
            for at in range(1, len(before), _FIELDS):
                key = (self._topics[before[at]], before[at + 1])
                if len(known) < room and offsets.get(key) == before[at + 2]:
                    after.extend(before[at : at + _FIELDS])
                    known.add(key)
        left = room - len(known)
        if left > 0:
            first = now_ms // _TURN_MS * OF_GROUP_MAX % len(unread)
            for topic, partition, offset in (*unread[first:], *unread[:first]) if first else unread:
                if (topic, partition) not in known:
                    after.extend((self._number(topic), partition, offset, now_ms))
                    left -= 1
                    if not left:
                        break
        self._groups[group_id] = after
        self.count += len(after) // _FIELDS

    def _number(self, topic: str) -> int:
        number = self._numbers.get(topic)
        if number is None:
            number = self._numbers[topic] = len(self._topics)
            self._topics.append(topic)
        return number

    def _take(self, group_id: str) -> "array[int] | None":
        fields = self._groups.pop(group_id, None)
        if fields is not None:
            self.count -= len(fields) // _FIELDS
        return fields

    def of_group(self, group_id: str) -> list[Standing]:
        """The partitions of a group that are watched."""
        fields = self._groups.get(group_id, ())
        return [Standing(self._topics[fields[at]], *fields[at + 1 : at + 4]) for at in range(1, len(fields), _FIELDS)]

    def unread_partitions(self, group_id: str) -> int:
        """In how many partitions a group has unread records."""
        fields = self._groups.get(group_id)
        return 0 if fields is None else fields[0]

    def keep_only(self, group_ids: set[str]) -> None:
        """Forget all other groups."""
        for group_id in self._groups.keys() - group_ids:
            self._take(group_id)
        if not self._groups:
            self._topics.clear()
            self._numbers.clear()
