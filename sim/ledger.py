"""What clients asked for, were told and saw, and the invariants that must hold over it."""

from typing import Any, NamedTuple

from barnabas.broker.broker import Broker
from barnabas.groups.classic import State
from barnabas.offsets.table import partitions_of

TopicPartition = tuple[str, int]
Owned = tuple[str, str, int]  # group, topic, partition
LATE_MS = 2_000.0  # a timer that is later than this has been forgotten


class Violation(Exception):
    """An invariant does not hold. `invariant` is its name."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Seen(NamedTuple):
    """A partition's offsets as last looked at, in one leader epoch of one process."""

    life: int
    leader_epoch: int
    high_watermark: int
    log_start_offset: int


class Ledger:
    """One run's book. Its methods raise Violation."""

    def __init__(self) -> None:
        self.sent: dict[str, None] = {}  # every value any producer ever sent
        self.acknowledged: dict[TopicPartition, dict[int, str]] = {}  # offset -> value
        self.read: dict[TopicPartition, dict[int, str]] = {}  # what consumers were shown
        self.commits_asked: dict[Owned, dict[int, None]] = {}
        self.commits_acknowledged: dict[Owned, int] = {}  # the highest
        self.commits_fetched: dict[Owned, int] = {}  # the last that a client was told
        self.owners: dict[tuple[str, int, TopicPartition], str] = {}
        self.generations: dict[str, int] = {}  # the highest that a client got an assignment in
        self.last_sign_ms: dict[tuple[str, str], float] = {}  # of a member: when it last sent anything
        self.life_began_ms = 0.0
        self.acknowledgements = 0
        self.assignments = 0
        self._partitions: dict[TopicPartition, Seen] = {}
        self._table: dict[Owned, int] = {}
        self._group_generations: dict[tuple[int, str], tuple[int, int]] = {}

    # -- producers and consumers

    def acknowledge(self, key: TopicPartition, base_offset: int, values: list[str]) -> None:
        """The broker said that these values have offsets from `base_offset` on."""
        known = self.acknowledged.setdefault(key, {})
        for offset, value in enumerate(values, base_offset):
            if base_offset < 0 or known.setdefault(offset, value) != value:
                raise Violation("one record per offset", f"{key} {offset}: {value}, was {known.get(offset)}")
            if self.read.get(key, {}).get(offset, value) != value:
                raise Violation("acknowledged is what is read", f"{key} {offset}: {value} was not read")
        self.acknowledgements += 1

    def consume(self, key: TopicPartition, offset: int, value: str) -> None:
        """A consumer was shown a record."""
        if value not in self.sent:
            raise Violation("no invented record", f"{key} {offset}: {value}")
        if self.read.setdefault(key, {}).setdefault(offset, value) != value:
            raise Violation("what was read stays", f"{key} {offset}: {value}, was {self.read[key][offset]}")
        if self.acknowledged.get(key, {}).get(offset, value) != value:
            raise Violation("acknowledged is what is read", f"{key} {offset}: {value}")

    def check_partition(self, key: TopicPartition, log: dict[int, str], log_start_offset: int) -> None:
        """At the end: the whole partition, as a consumer reads it."""
        for name, book in (("acknowledged", self.acknowledged), ("read", self.read)):
            for offset, value in book.get(key, {}).items():
                if offset >= log_start_offset and log.get(offset) != value:
                    raise Violation(f"what was {name} is there", f"{key} {offset}: {value}, found {log.get(offset)}")
        last: dict[str, int] = {}
        for offset in sorted(log):
            value = log[offset]
            if value not in self.sent:
                raise Violation("no invented record", f"{key} {offset}: {value}")
            producer, _, number = value.split(" ")[0].rpartition(":")
            if int(number) <= last.get(producer, -1):
                raise Violation("once and in order", f"{key} {offset}: {value} behind number {last[producer]}")
            last[producer] = int(number)

    # -- groups

    def assigned(self, group_id: str, generation: int, owner: str, partitions: list[TopicPartition]) -> None:
        """A member got its assignment."""
        self.generations[group_id] = max(generation, self.generations.get(group_id, -1))
        self.assignments += 1
        for partition in partitions:
            other = self.owners.setdefault((group_id, generation, partition), owner)
            if other != owner:
                detail = f"{partition} of {group_id} in generation {generation}: {other} and {owner}"
                raise Violation("one owner per generation", detail)

    def ask_commit(self, owned: Owned, offset: int) -> None:
        """A client is about to commit."""
        self.commits_asked.setdefault(owned, {})[offset] = None

    def acknowledge_commit(self, owned: Owned, offset: int) -> None:
        """The broker said that the offset is committed."""
        self.commits_acknowledged[owned] = max(offset, self.commits_acknowledged.get(owned, -1))

    def ask_deletion(self, group_id: str) -> None:
        """A client is about to delete a group: what it committed may be gone from here on."""
        for book in (self.commits_acknowledged, self.commits_fetched, self._table):
            for owned in [owned for owned in book if owned[0] == group_id]:
                del book[owned]

    def acknowledge_deletion(self, group_id: str) -> None:
        """The broker said that the group is deleted: what it committed may not come back."""
        self.ask_deletion(group_id)
        for owned in [owned for owned in self.commits_asked if owned[0] == group_id]:
            del self.commits_asked[owned]

    def fetch_commit(self, owned: Owned, offset: int, acknowledged_before: int) -> None:
        """The broker told a client the committed offset (-1: none); what had been acknowledged when it was asked."""
        if offset >= 0 and offset not in self.commits_asked.get(owned, {}):
            raise Violation("no invented offset", f"{owned}: {offset}")
        if offset < acknowledged_before:
            raise Violation("no commit goes back", f"{owned}: told {offset}, acknowledged was {acknowledged_before}")
        self.commits_fetched[owned] = max(offset, self.commits_fetched.get(owned, -1))

    # -- the broker's own state, after every event

    def look(self, broker: Broker, life: int, now_ms: float) -> None:
        """Look at a serving broker."""
        for partition in broker.replica_manager.led_partitions():
            self._look_at_partition(partition, life)
        for shard in broker.group_coordinator.owned_shards():
            for group in shard.groups.values():
                self._look_at_group(group, life, now_ms)
            for group_id, offsets in shard.offsets.committed.items():
                for topic, index in partitions_of(offsets):
                    owned = (group_id, topic, index)
                    offset = offsets[topic][index].offset
                    if offset == self._table.get(owned):
                        continue
                    if offset < self._table.get(owned, -1):
                        raise Violation("no commit goes back", f"{owned}: {offset} after {self._table[owned]}")
                    if offset not in self.commits_asked.get(owned, {}):
                        raise Violation("no invented offset", f"{owned}: {offset}")
                    self._table[owned] = offset
        for owned, offset in self.commits_acknowledged.items():
            if self._table.get(owned, -1) < offset:
                raise Violation("acknowledged commits are there", f"{owned}: {self._table.get(owned)} below {offset}")

    def look_after_loading(self, broker: Broker, now_ms: float) -> None:
        """A broker has started and loaded its groups: what earlier ones acknowledged must be back."""
        self.life_began_ms = now_ms
        table: dict[Owned, int] = {}
        for shard in broker.group_coordinator.owned_shards():
            for group_id, offsets in shard.offsets.committed.items():
                for topic, index in partitions_of(offsets):
                    table[(group_id, topic, index)] = offsets[topic][index].offset
        for owned, offset in {**self.commits_fetched, **self.commits_acknowledged}.items():
            if table.get(owned, -1) < offset:
                raise Violation("commits outlive the broker", f"{owned}: {table.get(owned)} below {offset}")

    def _look_at_partition(self, partition: Any, life: int) -> None:
        key = (partition.topic, partition.index)
        seen = self._partitions.get(key)
        high_watermark, end = partition.high_watermark, partition.log_end_offset
        epoch, start = partition.leader_epoch, partition.log_start_offset
        if (
            seen is not None
            and seen.high_watermark == high_watermark
            and seen.leader_epoch == epoch
            and seen.life == life
            and seen.log_start_offset == start
        ):
            return
        if not start <= high_watermark <= end:
            raise Violation("the high watermark is in the log", f"{key}: {start} <= {high_watermark} <= {end}")
        if seen is not None:
            if epoch < seen.leader_epoch:
                raise Violation("leader epochs only grow", f"{key}: {epoch} after {seen.leader_epoch}")
            if seen.life == life and seen.leader_epoch == epoch and high_watermark < seen.high_watermark:
                raise Violation(
                    "the high watermark never goes back", f"{key}: {high_watermark}, was {seen.high_watermark}"
                )
        self._partitions[key] = Seen(life, epoch, high_watermark, start)

    def _look_at_group(self, group: Any, life: int, now_ms: float) -> None:
        group_id, generation = group.group_id, group.generation
        key = (life, group_id)
        known = self._group_generations.get(key)
        if known is None and generation < self.generations.get(group_id, -1):
            detail = f"{group_id}: {generation} after a restart, {self.generations[group_id]} was handed out"
            raise Violation("generations only grow", detail)
        if known is not None and known[1] == id(group) and generation < known[0]:
            raise Violation("generations only grow", f"{group_id}: {generation} after {known[0]}")
        self._group_generations[key] = (generation, id(group))
        late_ms = now_ms - LATE_MS
        state = group.state
        if state is State.DEAD:
            return
        if group.join_deadline_ms < late_ms or group.sync_deadline_ms < late_ms:
            raise Violation("timers fire", f"{group_id} is {state.value} behind its deadline")
        for member in group.members.values():
            if member.session_deadline_ms < late_ms:
                raise Violation("timers fire", f"{member.member_id} of {group_id} is behind its session deadline")
            last_ms = self.last_sign_ms.get((group_id, member.member_id))
            if last_ms is not None and member.awaiting_join is None and member.awaiting_sync is None:
                # its session may have begun as late as with the answer to its last request
                allowed_ms = member.session_timeout_ms + 3 * member.rebalance_timeout_ms + LATE_MS
                if max(last_ms, self.life_began_ms) < now_ms - allowed_ms:
                    raise Violation("the silent go", f"{member.member_id} of {group_id}, silent since {last_ms:.0f}")
