"""Which groups retention waits for, and how far they have read: `barnabas.retention.wait.for.groups` of topics.

The leader of a partition decides. What groups of its own have committed it looks up; what groups elsewhere have
committed it asks their coordinators for now and then (ListGroups, OffsetFetch), and remembers. What is not known counts
as not read. A remembered offset is too low, which only makes retention wait longer; unless the group was reset to an
older offset within the last minute.
"""

import re
from fnmatch import translate
from typing import TYPE_CHECKING

from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.coordinator import coordinator_of
from barnabas.coordinators.groups.shard import Shard
from barnabas.offsets.records import NO_TOPIC_ID
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.turns import Pieces
from barnabas.runtime.upkeep import Task, Work
from barnabas.storage.log import Log
from barnabas.storage.retention import Hold

if TYPE_CHECKING:
    from barnabas.broker.services import Services

PURPOSE = "waited-groups"
LIST_GROUPS_VERSION = 2
OFFSET_FETCH_VERSION = 8
ASKED_MS = 60_000
NOTHING = -1  # a group has committed nothing in a partition
_NAMES_PER_PIECE = 200
_PARTITIONS_PER_PIECE = 1_000

_Offsets = dict[tuple[str, int], int]


class WaitedGroups:
    """Answers `LogManager.hold_of`."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        self._of_pattern: dict[str, list[str]] = {}  # the groups that match it, of all brokers that have answered
        self._unheard: set[int] = set()  # brokers that have not said which groups they have
        self._elsewhere: dict[str, _Offsets] = {}  # group of another coordinator -> what it has committed
        self._task: Task[str] | None = None

    def start(self) -> None:
        config, every = self._services.config, self._services.env.upkeep.every
        self._task = every(
            "waited groups",
            lambda: min(config.log_retention_check_interval_ms, ASKED_MS),
            lambda: ["all"],
            lambda _: self._ask(),
        )

    def stop(self) -> None:
        if self._task is not None:
            self._task.stop()
            self._task = None

    def hold_of(self, log: Log) -> Pieces[Hold | None]:
        """From where on records of a log are held back, and for which groups.

        A group that is set back to an older offset while the others are looked at may come too late.
        """
        names = log.config.barnabas_retention_wait_for_groups
        if not names:
            return None
        partition = self._services.replica_manager.partitions.get((log.topic, log.partition))
        if partition is None or not partition.is_leader:
            return Hold(log.log_start_offset, None)
        end = log.log_end_offset
        lowest, waiting = end, {}
        for name in names:
            if not is_pattern(name):
                groups = [name]
            elif name in self._of_pattern and not self._unheard:
                groups = self._of_pattern[name]
            else:
                waiting[name] = lowest = log.log_start_offset  # which groups there are is not known yet
                continue
            for number, group in enumerate(groups, 1):
                if number % _NAMES_PER_PIECE == 0:
                    yield None
                committed = self._committed(group, log)
                if committed == NOTHING and is_pattern(name):
                    continue  # it does not read this partition
                offset = log.log_start_offset if committed is None else max(committed, log.log_start_offset)
                if offset < end:
                    waiting[group] = offset
                    lowest = min(lowest, offset)
        if not partition.is_leader:  # any more
            return Hold(log.log_start_offset, None)
        if not waiting:
            return None
        return Hold(lowest, tuple(sorted(group for group, offset in waiting.items() if offset == lowest)))

    def _committed(self, group: str, log: Log) -> int | None:
        """What a group has committed in a partition; None: it is not known."""
        shard = self._services.group_coordinator.shard_of(group)
        if isinstance(shard, Shard):
            found = shard.offsets.get(group, log.topic, log.partition)
            if found is None or (found.topic_id != NO_TOPIC_ID and found.topic_id != log.topic_id):
                return NOTHING
            return found.offset
        if shard is not ErrorCode.NOT_COORDINATOR or group not in self._elsewhere:
            return None
        return self._elsewhere[group].get((log.topic, log.partition), NOTHING)

    # ------------------------------------------------------------------ asking

    def _wanted(self) -> Pieces[dict[str, None]]:
        """The names and patterns of all topics that this broker leads."""
        wanted: dict[str, None] = {}
        for number, partition in enumerate(list(self._services.replica_manager.led_partitions())):
            if number % _PARTITIONS_PER_PIECE == 0:
                yield None
            names = partition.log.config.barnabas_retention_wait_for_groups
            if names:
                wanted.update(dict.fromkeys(names))
        return wanted

    def _ask(self) -> Work:
        wanted = yield from self._wanted()
        names = {name: None for name in wanted if not is_pattern(name)}
        patterns = {name: _expression(name) for name in wanted if is_pattern(name)}
        of_pattern: dict[str, list[str]] = {pattern: [] for pattern in patterns}
        if patterns:
            groups = yield from self._all_groups()
            for number, group in enumerate(groups):
                if number % _NAMES_PER_PIECE == 0:
                    yield None
                for pattern, expression in patterns.items():
                    if expression.match(group):
                        of_pattern[pattern].append(group)
                        names[group] = None
        self._of_pattern = of_pattern
        elsewhere: dict[int, list[str]] = {}
        for number, group in enumerate(names):
            if number % _NAMES_PER_PIECE == 0:
                yield None
            coordinator = self._coordinator(group)
            if coordinator is not None:
                elsewhere.setdefault(coordinator, []).append(group)
        self._elsewhere = {group: offsets for group, offsets in self._elsewhere.items() if group in names}
        for coordinator, its_groups in elsewhere.items():
            for at in range(0, len(its_groups), _NAMES_PER_PIECE):
                yield from self._fetch(coordinator, its_groups[at : at + _NAMES_PER_PIECE])

    def _coordinator(self, group: str) -> int | None:
        """The other broker that coordinates a group; None: this one, or nobody knows."""
        services = self._services
        leader = coordinator_of(services.metadata_cache, OFFSETS_TOPIC, group)
        return None if leader is None or leader.broker_id == services.node_id else leader.broker_id

    def _all_groups(self) -> Pieces[list[str]]:
        """The ids of all groups, of this broker and of those that answer; the others are `_unheard`."""
        services = self._services
        found = [group for shard in services.group_coordinator.loaded_shards() for group in shard.group_ids()]
        unheard = set()
        for broker_id in list(services.metadata_cache.brokers):
            if broker_id == services.node_id:
                continue
            client = services.broker_clients.to(broker_id, PURPOSE)
            answer = None
            if client is not None:
                answer = yield client.send(messages.ListGroupsRequest(), LIST_GROUPS_VERSION)
            if answer is None or answer.error_code:
                unheard.add(broker_id)
            else:
                found += [group.group_id for group in answer.groups]
        self._unheard = unheard
        return found

    def _fetch(self, coordinator: int, groups: list[str]) -> Pieces[None]:
        make = messages.OffsetFetchRequest
        request = make(groups=[make.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups])
        client = self._services.broker_clients.to(coordinator, PURPOSE)
        answer = None if client is None else (yield client.send(request, OFFSET_FETCH_VERSION))
        for group in answer.groups if answer is not None else ():
            if group.error_code != ErrorCode.NONE:
                continue  # what is remembered stays
            offsets: _Offsets = {}
            for topic in group.topics:
                yield None
                for row in topic.partitions:
                    if row.committed_offset >= 0:
                        offsets[topic.name, row.partition_index] = row.committed_offset
            self._elsewhere[group.group_id] = offsets


def _expression(pattern: str) -> re.Pattern[str]:
    """What a pattern matches. Only * and ? mean something in it: a group may have any name."""
    return re.compile(translate(pattern.replace("[", "[[]")))


def is_pattern(name: str) -> bool:
    """Whether a name stands for several groups."""
    return "*" in name or "?" in name
