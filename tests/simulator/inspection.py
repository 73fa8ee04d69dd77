"""Checks the broker's own state after every event that may have changed it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from barnabas.broker.broker import Broker
from barnabas.cluster.tree import payloads
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.states import State
from barnabas.offsets.table import OffsetTable, partitions_of
from barnabas.replication.partition import Partition

from simulator.commits import Owned
from simulator.coordination import SimTree
from simulator.ledger import Ledger, TopicPartition
from simulator.storage_transactions import check_bounds
from simulator.violation import Violation

LATE_MS = 2_000.0  # a timer that is so late counts as forgotten
TIMERS_EVERY_MS = 2_000.0  # how often a group that did not change is checked
OFFSETS_PARTITIONS = 2
CONSUMERS = "/consumers/"


class Seen(NamedTuple):
    """A partition's offsets at the last look, in one leader epoch of one process."""

    high_watermark: int
    leader_epoch: int
    log_start_offset: int
    life: int


class _SeenGroup(NamedTuple):
    group: Any
    partition: int
    state: State
    generation: int
    look_again_ms: float
    since_ms: float  # when it was loaded or made: then the sessions of its members begin


def contents(table: OffsetTable) -> list[object]:
    """All that a table of offsets holds, to compare with later. Nothing is decoded: no run is ever changed."""
    found: list[object] = []
    for group_id, topics in table.decoded.items():
        found.append(group_id)
        for topic, offsets in topics.items():
            found.append(topic)
            found += offsets
            found += offsets.values()
    for group_id, runs in table.stored.items():
        found.append(group_id)
        found += runs
    return found


class Inspector:
    """Compares the state with the last look and with the ledger. Its methods raise Violation."""

    def __init__(self, ledger: Ledger, tree: SimTree, *, offsets_in_tree: bool) -> None:
        self._ledger = ledger
        self._tree = tree
        self._offsets_in_tree = offsets_in_tree
        self._partitions: dict[tuple[TopicPartition, bytes | None], Seen] = {}
        self._led: dict[Partition, tuple[object, int, int, int]] = {}  # what of it was seen last in this life
        self._groups: dict[str, _SeenGroup] = {}
        self._tables: dict[int, tuple[object, int, list[object]]] = {}  # what each shard held at the last look
        self._tree_zxid = -1
        self._life = 0

    def look(self, broker: Broker, life: int, now_ms: float) -> None:
        """Look at a serving broker."""
        if life != self._life:
            self._life = life
            self._groups.clear()
            self._led.clear()
        led = self._led
        for partition in broker.replica_manager.partitions.values():
            if not partition.is_leader:
                continue
            log = partition.log
            now = (log, log.high_watermark, partition.leader_epoch, log.log_start_offset)
            if led.get(partition) != now:
                led[partition] = now
                key = ((partition.topic, partition.index), log.topic_id)
                self._partitions[key] = self._look_at_partition(partition, key[0], self._partitions.get(key), life)
        table_changed = False
        for shard in broker.group_coordinator.loaded_shards():
            groups = self._groups
            for group_id, group in shard.groups.items():
                known = groups.get(group_id)
                if (
                    known is None
                    or known[0] is not group
                    or known[2] is not group.state
                    or known[3] != group.generation
                    or known[4] <= now_ms
                ):
                    groups[group_id] = self._look_at_group(group, shard.partition, known, now_ms)
            table = contents(shard.offsets)
            if self._tables.get(shard.partition) != (shard, len(shard.groups), table):
                self._tables[shard.partition] = (shard, len(shard.groups), table)
                table_changed = True
        if self._offsets_in_tree and self._tree.zxid != self._tree_zxid:
            self._tree_zxid = self._tree.zxid
            table_changed = True
        if table_changed:
            self._look_at_offsets(broker, now_ms)

    def look_after_loading(self, broker: Broker) -> None:
        """A broker has started and loaded its groups: all offsets promised before must be back."""
        table = {(group_id, *key): o for group_id, of in self._offsets(broker).items() for key, o in of.items()}
        self._ledger.commits.look_after_loading(table)

    def look_at_everything(self, broker: Broker, life: int, now_ms: float) -> None:
        """As `look`, but also at parts that seem unchanged."""
        self._tables.clear()
        self._tree_zxid = -1
        self._groups = {group_id: seen._replace(look_again_ms=0.0) for group_id, seen in self._groups.items()}
        self.look(broker, life, now_ms)

    def _offsets(self, broker: Broker) -> dict[str, dict[TopicPartition, int]]:
        offsets: dict[str, dict[TopicPartition, int]] = {}
        if self._offsets_in_tree:
            for path, data in self._tree.below(CONSUMERS):
                parts = path.split("/")
                if len(parts) == 6 and parts[3] == "offsets":
                    offsets.setdefault(parts[2], {})[parts[4], int(parts[5])] = payloads.decode_number(data)
            return offsets
        for shard in broker.group_coordinator.loaded_shards():
            for group_id, committed in shard.offsets.committed.items():
                offsets[group_id] = {key: committed[key[0]][key[1]].offset for key in partitions_of(committed)}
        return offsets

    def _look_at_offsets(self, broker: Broker, now_ms: float) -> None:
        commits = self._ledger.commits
        present: dict[Owned, None] = {}
        for group_id, offsets in self._offsets(broker).items():
            commits.look(group_id, offsets)
            for key in offsets:
                present[group_id, *key] = None
        served = {shard.partition: shard for shard in broker.group_coordinator.loaded_shards()}
        if self._offsets_in_tree:
            commits.look_for_missing(present)
        else:
            commits.look_for_missing(present, lambda group_id: partition_for(group_id, OFFSETS_PARTITIONS) in served)
        self._look_for_gone(served, now_ms)
        commits.look_for_promised()

    def _look_for_gone(self, served: Mapping[int, Shard], now_ms: float) -> None:
        """Take down which groups the partitions that are loaded have no longer.

        With a directory left out for one life, only some partitions are. Groups of these expire all the same.
        """
        for group_id, seen in list(self._groups.items()):
            if seen.partition not in served or group_id in served[seen.partition].groups:
                continue
            if group_id in served[seen.partition].consumer.by_id:
                del self._groups[group_id]  # it goes on as a group of the consumer protocol
                continue
            state = self._groups.pop(group_id).state
            if state is not State.EMPTY and state is not State.DEAD:
                raise Violation("a living group stays", f"{group_id} was {state.value} and is gone")
            self._ledger.group_is_gone(group_id, now_ms)

    def _look_at_partition(self, partition: Any, key: TopicPartition, seen: Seen | None, life: int) -> Seen:
        high_watermark, end = partition.high_watermark, partition.log_end_offset
        epoch, start = partition.leader_epoch, partition.log_start_offset
        if not start <= high_watermark <= end:
            raise Violation("the high watermark is in the log", f"{key}: {start} <= {high_watermark} <= {end}")
        check_bounds(partition.log, f"{key}")
        if start > self._ledger.log_start_allowed(key):
            raise Violation("the log starts where it may", f"{key}: {start}, nobody deleted so much")
        if seen is not None:
            if epoch < seen.leader_epoch:
                raise Violation("leader epochs only grow", f"{key}: {epoch} after {seen.leader_epoch}")
            if seen.life == life and seen.leader_epoch == epoch:
                if high_watermark < seen.high_watermark:
                    detail = f"{key}: {high_watermark}, was {seen.high_watermark}"
                    raise Violation("the high watermark never goes back", detail)
                if start < seen.log_start_offset:
                    detail = f"{key}: {start}, was {seen.log_start_offset}"
                    raise Violation("the log start never goes back", detail)
        return Seen(high_watermark, epoch, start, life)

    def _look_at_group(self, group: Any, partition: int, known: _SeenGroup | None, now_ms: float) -> _SeenGroup:
        group_id, generation, state = group.group_id, group.generation, group.state
        ledger = self._ledger
        if known is None and generation < ledger.generations.get(group_id, -1):
            detail = f"{group_id}: {generation} after a restart, {ledger.generations[group_id]} was handed out"
            raise Violation("generations only grow", detail)
        if known is not None and known.group is group and generation < known.generation:
            raise Violation("generations only grow", f"{group_id}: {generation} after {known.generation}")
        is_empty = state is State.EMPTY or state is State.DEAD
        ledger.commits.look_at_group(group_id, is_empty, state is State.STABLE)
        since_ms = known.since_ms if known is not None and known.group is group else now_ms
        seen = _SeenGroup(group, partition, state, generation, now_ms + TIMERS_EVERY_MS, since_ms)
        if state is State.DEAD:
            return seen
        late_ms = now_ms - LATE_MS
        if min(group.rebalance.join_deadline_ms, group.rebalance.sync_deadline_ms) < late_ms:
            raise Violation("timers fire", f"{group_id} is {state.value} behind its deadline")
        for member in group.members.by_id.values():
            if member.session_deadline_ms < late_ms:
                raise Violation("timers fire", f"{member.member_id} of {group_id} is behind its session deadline")
            last_ms = ledger.last_sign_ms.get((group_id, member.member_id))
            if last_ms is not None and member.awaiting_join is None and member.awaiting_sync is None:
                # its session may have begun with the answer to its last request
                # The session of a static member begins anew with each generation, also if it is silent.
                sessions = 1 if member.group_instance_id is None else 3
                allowed_ms = sessions * member.session_timeout_ms + 3 * member.rebalance_timeout_ms + LATE_MS
                if max(last_ms, since_ms) < now_ms - allowed_ms:
                    raise Violation("the silent go", f"{member.member_id} of {group_id}, silent since {last_ms:.0f}")
        return seen
