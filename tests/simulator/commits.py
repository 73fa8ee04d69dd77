"""The book of committed offsets: what clients asked for, what the broker promised, and when a promise may end.

An acknowledged offset is a promise. It ends when a client asks to delete the offset, or when the time of
`offsets.retention.minutes` has passed by the broker's clock; for a group with members it does not end by time.
"""

from collections.abc import Callable
from typing import NamedTuple

from simulator.violation import Violation

Owned = tuple[str, str, int]  # group, topic, partition
DELETION_ENDS_MS = 10_000.0  # a deletion whose answer was lost has been done by then, or never will be


class _Asked(NamedTuple):
    at_ms: float
    wall_ms: int


class Commits:
    """Methods raise Violation.

    `now_ms` is the monotonic clock, `wall_ms` the broker's wall clock, `wall_peak_ms(since)` the latest time that the
    wall clock has shown since an instant of the monotonic clock.
    """

    def __init__(
        self, now_ms: Callable[[], float], wall_ms: Callable[[], int], wall_peak_ms: Callable[[float], int]
    ) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.wall_peak_ms = wall_peak_ms
        self.retention_ms = float("inf")
        self.are_weak = False  # a leader change may take commits (offsets.commit.required.acks)
        # A broker that cannot know that its tree is an older copy may lead: it tells older offsets, gives ids again.
        self.unaware_may_lead = False
        self.asked: dict[Owned, dict[int, _Asked]] = {}  # by offset: when it was last asked for
        self.acknowledged: dict[Owned, int] = {}  # the highest offset
        self.fetched: dict[Owned, int] = {}  # the offset that a client was last told
        self.table: dict[Owned, int] = {}  # the offset that was last seen in the broker's table
        self.count = 0
        self.expired = 0
        self._not_seen: dict[Owned, int] = {}  # acknowledged since the last look at the broker's table
        self._under_way: dict[str, int] = {}  # group -> commits that were sent and not answered
        self._deletions: dict[str, int] = {}  # group -> deletions that were sent and not answered
        self._deletion_ends_ms: dict[str, float] = {}  # group -> when its last deletion must have ended
        self._with_members: dict[str, None] = {}
        self._empty_since: dict[str, _Asked] = {}  # of groups that have had members
        self._was_empty_since: dict[str, _Asked] = {}  # before a rebalance that has not ended

    # -- what clients ask and are told

    def ask(self, owned: Owned, offset: int) -> None:
        """A client is about to commit; `ended` follows."""
        self.asked.setdefault(owned, {})[offset] = _Asked(self.now_ms(), self.wall_ms())
        self._under_way[owned[0]] = self._under_way.get(owned[0], 0) + 1

    def ended(self, owned: Owned) -> None:
        """A commit was answered, or its connection is gone."""
        self._under_way[owned[0]] -= 1

    def acknowledge(self, owned: Owned, offset: int) -> None:
        """The broker said that the offset is committed."""
        self.count += 1
        asked = self.asked.get(owned, {}).get(offset)
        group_id = owned[0]
        if asked is None or self._deletions.get(group_id) or asked.at_ms <= self._deletion_ends_ms.get(group_id, -1.0):
            return  # it may have been deleted in the meantime
        if offset >= self.acknowledged.get(owned, -1):
            self.acknowledged[owned] = offset
            self._not_seen[owned] = offset

    def told(self, owned: Owned, offset: int, acknowledged_before: int, asked_ms: float) -> bool:
        """The broker told a client the committed offset (-1: none). Returns whether the promised one has expired.

        `asked_ms`: when the client asked. `acknowledged_before`: what was promised then.
        """
        if self.is_being_deleted(owned[0]) or asked_ms <= self._deletion_ends_ms.get(owned[0], -1.0):
            return False  # the answer may be older than the deletion
        if offset >= 0 and offset not in self.asked.get(owned, {}):
            raise Violation("no invented offset", f"{owned}: {offset}")
        has_expired = offset < min(acknowledged_before, self.promised(owned))
        if has_expired and not self._runs_out(owned):
            if self.are_weak or self.unaware_may_lead:
                return False
            raise Violation("no commit goes back", f"{owned}: told {offset}, acknowledged was {acknowledged_before}")
        self.fetched[owned] = max(offset, self.fetched.get(owned, -1))
        return has_expired

    def promised(self, owned: Owned) -> int:
        """The offset that the broker must have at least; -1 for none."""
        return max(self.acknowledged.get(owned, -1), self.fetched.get(owned, -1))

    def may_have_none(self, group_id: str) -> bool:
        """Whether the group may have no offset at all: nothing was promised, or all has expired."""
        promised = [owned for owned in {**self.acknowledged, **self.fetched} if owned[0] == group_id]
        return all(self._runs_out(owned) for owned in promised if self.promised(owned) >= 0)

    # -- deletions

    def ask_deletion(self, group_id: str, topics: tuple[str, ...] = ()) -> float:
        """A client is about to delete a group, or its offsets of some topics: from now on they may be gone.

        Returns the time for `acknowledge_deletion`, or -1 if commits of the group are in flight.
        """
        self._deletions[group_id] = self._deletions.get(group_id, 0) + 1
        self._forget(group_id, topics)
        return -1.0 if self._under_way.get(group_id) else self.now_ms()

    def acknowledge_deletion(self, group_id: str, asked_ms: float, topics: tuple[str, ...] = ()) -> None:
        """The broker said that the deletion is done: offsets committed before must not come back."""
        self._forget(group_id, topics)
        for owned, offsets in self.asked.items():
            if owned[0] == group_id and (not topics or owned[1] in topics):
                for offset in [offset for offset, asked in offsets.items() if asked.at_ms < asked_ms]:
                    del offsets[offset]

    def end_deletion(self, group_id: str, *, answered: bool) -> None:
        """A deletion was answered, or its connection is gone."""
        self._deletions[group_id] -= 1
        end_ms = self.now_ms() + (0.0 if answered else DELETION_ENDS_MS)
        self._deletion_ends_ms[group_id] = max(end_ms, self._deletion_ends_ms.get(group_id, -1.0))

    def is_being_deleted(self, group_id: str) -> bool:
        """Whether a deletion of the group may be in flight."""
        return self._deletions.get(group_id, 0) > 0 or self.now_ms() <= self._deletion_ends_ms.get(group_id, -1.0)

    def _forget(self, group_id: str, topics: tuple[str, ...]) -> None:
        for book in (self.acknowledged, self.fetched, self.table, self._not_seen):
            for owned in [o for o in book if o[0] == group_id and (not topics or o[1] in topics)]:
                del book[owned]

    # -- the broker's own table

    def look(self, group_id: str, offsets: dict[tuple[str, int], int]) -> None:
        """Take down all offsets that the broker's table has of a group."""
        if self.is_being_deleted(group_id):
            return
        for key, offset in offsets.items():
            owned = (group_id, *key)
            known = self.table.get(owned, -1)
            if offset < known and self.unaware_may_lead:
                continue
            if offset != known:
                if offset < known:
                    raise Violation("no commit goes back", f"{owned}: {offset} after {known}")
                if offset not in self.asked.get(owned, {}):
                    raise Violation("no invented offset", f"{owned}: {offset}")
                self.table[owned] = offset

    def look_for_missing(
        self, present: dict[Owned, None], is_served: Callable[[str], bool] = lambda group: True
    ) -> None:
        """`present`: all offsets in the broker's table. An offset that has gone since must have expired.

        `is_served`: whether the broker has loaded the partition of a group; of others nothing is known now.
        """
        for owned in [owned for owned in self.table if owned not in present]:
            if self.is_being_deleted(owned[0]) or not is_served(owned[0]):
                continue
            if not self._runs_out(owned):
                raise Violation("offsets stay for their time", f"{owned}: {self.table[owned]} is gone")
            self.expired += 1
            self._forget_one(owned)

    def look_for_promised(self) -> None:
        """Check that offsets acknowledged since the last look are in the table."""
        for owned, offset in self._not_seen.items():
            if self.table.get(owned, -1) < offset:
                raise Violation("acknowledged commits are there", f"{owned}: {self.table.get(owned)} below {offset}")
        self._not_seen.clear()

    def look_after_loading(self, table: dict[Owned, int]) -> None:
        """A broker has loaded its groups: all offsets promised before must be back."""
        for owned in list({**self.fetched, **self.acknowledged}):
            offset = self.promised(owned)
            if table.get(owned, -1) < offset and not self.is_being_deleted(owned[0]):
                if owned in table or not self._runs_out(owned):
                    raise Violation("commits outlive the broker", f"{owned}: {table.get(owned)} below {offset}")
                self._forget_one(owned)

    def _forget_one(self, owned: Owned) -> None:
        for book in (self.acknowledged, self.fetched, self.table, self._not_seen):
            book.pop(owned, None)

    # -- time

    def note_members(self, group_id: str) -> None:
        """Note that the group has members: its offsets expire a while after it became empty."""
        self._with_members[group_id] = None
        self._empty_since.setdefault(group_id, _Asked(self.now_ms(), self.wall_ms()))

    def look_at_group(self, group_id: str, is_empty: bool, is_stable: bool) -> None:
        """Take down whether the group is empty now.

        Until it is stable, no record says that it has members. So after a restart it may count as empty since before.
        """
        if is_stable:
            self._was_empty_since.pop(group_id, None)
        if not is_empty:
            begin = self._empty_since.pop(group_id, None)
            if begin is not None and not is_stable:
                self._was_empty_since[group_id] = begin
        elif group_id not in self._empty_since:
            now = _Asked(self.now_ms(), self.wall_ms())
            self._empty_since[group_id] = self._was_empty_since.pop(group_id, now)

    def _runs_out(self, owned: Owned) -> bool:
        """Whether the offset may have expired."""
        if owned[0] in self._with_members:
            begin = self._empty_since.get(owned[0])
        else:
            offsets = self.asked.get(owned, {})
            begin = offsets.get(max(self.promised(owned), self.table.get(owned, -1)))
        if begin is None:
            return False
        return self.wall_peak_ms(begin.at_ms) - begin.wall_ms >= self.retention_ms
