"""Nobody in sync by the tree can be trusted: the replicas' logs decide who leads, and no longer what the tree says.

Most often the tree is an older copy than the disks.

Somebody has put a backup of the tree back while no broker ran. It says who was in sync then. Others have been in sync
since, and have acknowledged records; a replica that was in sync then may lack them. If that one led, the others would
cut off what it does not have.

A broker that finds out (the copy says so, its mark does, or its logs have later leader epochs) writes where its logs
end into the states of its partitions before it registers, and ends the lead of those who lead already. From then on
nobody is in sync, so nobody leads, until all replicas have done the same (`LeaderAndIsr.with_log_end`). Those that do
not know of anything newer report when they start, or when the controller tells them. What they have written meanwhile,
on their own, goes: only what is of the time before can be compared.

A lead stays if so many replicas are in sync that nothing can have been acknowledged without one of them. Then a broker
that finds out has its log from them anew: leader epochs since the copy have the numbers of epochs that it has seen, so
nothing would tell its records of them from others.

All this is done once for each restored tree, also if the broker dies on the way: the mark in the tree says how far it
has come, and changes together with the states.

Or the disks are older copies than the tree, those of all that were in sync: one of these begins that the logs decide
(`before_registering.py`), and the others report. They cut nothing off before, because the tree's numbers go on.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from barnabas.broker.before_registering import hosted, writes_of
from barnabas.broker.later_numbers import give_no_id_of_logs_again, give_no_number_again, readable_producer_id
from barnabas.broker.old_settings import OldSettings
from barnabas.broker.tree_mark import OwnMark
from barnabas.cluster.leader_and_isr import NO_LEADER, NO_LOG_END, LeaderAndIsr, LogEnd
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import RestoredTree as RestoredTreeNode
from barnabas.cluster.tree.payloads import TreeMark, encode_isr_change
from barnabas.cluster.tree.port import (
    BadVersionError,
    Coordination,
    CoordinationError,
    Create,
    MultiError,
    NoNodeError,
    Operation,
    children_if_there,
    get_if_there,
)
from barnabas.controller.tree import PARTITIONS_PER_WRITE
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.counted import counted, names_in_a_line
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import chunks
from barnabas.runtime.upkeep import Task
from barnabas.storage import truncation
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

LOOK_MS = 1_000.0
SAID_AGAIN_MS = 60_000.0

NO_RECORDS = LogEnd(False, -1, 0)

TopicPartition = tuple[str, int]


def end_of(log: Log, *, is_newer: bool) -> LogEnd:
    """Where a log ends. An epoch without records says nothing. Of two with the same end, one with a hole has less."""
    end = log.log_end_offset
    epoch = log.leader_epochs.epoch_for_offset(end - 1) if end > log.log_start_offset else -1
    has_hole = log.missing_from is not None and log.missing_from < end
    return LogEnd(is_newer, epoch, end - has_hole)


def can_go_on(state: LeaderAndIsr, replicas: Sequence[int], min_isr: int, live: Mapping[int, int], since: int) -> bool:
    """Whether what the replicas in sync have is all that was acknowledged, whenever that was.

    `live` has the zxids of the registrations. One that is not later than the copy is of a broker that is dead.
    """
    is_led = live.get(state.leader, -1) > since
    return is_led and len(state.isr) > len(replicas) - min(min_isr, len(replicas))


class RestoredTree:
    """What this broker does about it: once before it registers, and then whenever the controller tells it."""

    def __init__(
        self,
        env: Env,
        coordination: Coordination,
        node_id: int,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        mark: OwnMark,
        old_settings: OldSettings,
        on_news: Callable[[], None],
    ) -> None:
        """`on_news`: called when a broker that did not know it hears that the tree is older."""
        self._clock = env.clock
        self._upkeep = env.upkeep
        self._coordination = coordination
        self._node_id = node_id
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._mark = mark
        self._old_settings = old_settings
        self._on_news = on_news
        self._is_known = False
        self._came_with: dict[TopicPartition, LogEnd] = {}
        self._waits_for: dict[TopicPartition, tuple[int, ...]] = {}
        self._said_ms = -math.inf
        self._said: list[int] = []
        self._anew: list[TopicPartition] = []  # whose logs are fetched as a whole
        self._looking: Task[RestoredTree] | None = None

    # --- before this broker registers ---

    async def report(self) -> None:
        """Find out whether the tree is older than the disks, and say where the logs end that are to decide."""
        logs = {(log.topic, log.partition): log for log in self._log_manager.all()}
        replicas_of = await hosted(self._coordination, self._node_id, sorted(logs))
        shared = {key: replicas for key, replicas in replicas_of.items() if len(replicas) > 1}
        states = await self._states(list(replicas_of))
        mark, zxid = await self._read_mark()
        restored_ms, copied_zxid = await self._copied()
        known = self._mark.known
        producer_id = await readable_producer_id(self._coordination, list(logs.values()), known, self._node_id)
        is_older = (
            mark.is_behind(known.mark, restored_ms)
            or known.producer_id > producer_id
            or any(logs[key].leader_epochs.latest > state.leader_epoch for key, state in states.items())
        )
        if mark.reports_since is not None or is_older:
            self._is_known = True
            if mark.reports_since is None:
                await self._old_settings.note()
                number, since = max(known.mark, mark.number) + 1, max(zxid, copied_zxid)
                mark = mark._replace(number=number, reports_since=since, restored_ms=restored_ms)
                await self._mark.write(mark)
            await give_no_number_again(self._coordination, list(logs.values()), known, self._node_id)
            await self._report_as_newer(mark, logs, shared)
            return
        self._log_manager.take_mark(mark.number, mark.durable)
        await give_no_id_of_logs_again(self._coordination, list(logs.values()), self._node_id)
        if not self._log_manager.was_clean:
            self._came_with = {key: end_of(logs[key], is_newer=False) for key in shared}
        undecided = [key for key, state in states.items() if state.log_ends and key in shared]
        for chunk in chunks(undecided, PARTITIONS_PER_WRITE):
            await self._write({key: end_of(logs[key], is_newer=False) for key in chunk}, shared, None)
        self._say_what_is_waited_for()

    async def _read_mark(self) -> tuple[TreeMark, int]:
        try:
            return await self._mark.in_tree()
        except ValueError as error:
            logger.error("%s cannot be read, and counts as none: %s", self._mark.path, error)
            return TreeMark(), 0

    async def _copied(self) -> tuple[int, int]:
        """When the copy was made that the tree is, and the zxid of that; (-1, 0): it does not say that it is one."""
        node = await get_if_there(self._coordination, paths.RESTORED)
        try:
            return (-1, 0) if node is None else (RestoredTreeNode.decode(node[0]).copied_ms, node[1].mzxid)
        except ValueError as error:
            logger.error("%s cannot be read, and counts as none: %s", paths.RESTORED, error)
            return -1, 0

    async def _report_as_newer(
        self, mark: TreeMark, logs: Mapping[TopicPartition, Log], shared: Mapping[TopicPartition, Sequence[int]]
    ) -> None:
        reported: list[TopicPartition] = []
        for chunk in chunks([key for key in shared if key > mark.reported_to], PARTITIONS_PER_WRITE):
            mark = mark._replace(reported_to=chunk[-1])
            reported += await self._write({key: end_of(logs[key], is_newer=True) for key in chunk}, shared, mark)
        await self._mark.write(TreeMark(mark.number, restored_ms=mark.restored_ms, durable=mark.durable))
        if reported:
            logger.warning(
                "The tree is a copy that was put back, and older than the logs. What it says of leaders and replicas "
                "in sync does not count for %s: the logs decide (%s). Topics and settings are as "
                "they were in that copy",
                counted(len(reported), "partition"),
                _in_a_line(reported),
            )
        if self._anew:
            logger.warning(
                "The tree is a copy that was put back, and older than the logs. Others lead %s already, and have all "
                "that was acknowledged: this broker has them from those anew (%s)",
                counted(len(self._anew), "partition"),
                _in_a_line(self._anew),
            )
        self._say_what_is_waited_for()

    async def _states(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        nodes = await self._coordination.get_many([paths.partition_state(*key) for key in keys])
        states = {key: LeaderAndIsr.of_node(node) for key, node in zip(keys, nodes)}
        return {key: state for key, state in states.items() if state is not None}

    async def _live(self) -> dict[int, int]:
        names = await children_if_there(self._coordination, paths.BROKER_IDS)
        nodes = await self._coordination.get_many([f"{paths.BROKER_IDS}/{name}" for name in names])
        return {int(name): node[1].czxid for name, node in zip(names, nodes) if node is not None}

    async def _write(
        self,
        ends: Mapping[TopicPartition, LogEnd],
        replicas: Mapping[TopicPartition, Sequence[int]],
        mark: TreeMark | None,
    ) -> list[TopicPartition]:
        """Write these ends, as one change; again, as long as others write first. Returns what was written.

        `mark`: written with them. Without one, only partitions whose logs are to decide already are concerned.
        """
        while True:
            states = await self._states(list(ends))
            live = {} if mark is None else await self._live()
            changes = {}
            for key, known in states.items():
                end = ends[key]
                if mark is None:
                    # Not the same end as before: its disk was replaced since.
                    is_due = bool(known.log_ends) and known.log_ends.get(self._node_id, NO_LOG_END)[1:] != end[1:]
                elif self._is_led_without(key, known, replicas[key], live, mark.reports_since or 0):
                    is_due = False
                    self._begin_anew(key)
                else:
                    is_due = known.log_ends.get(self._node_id) != end
                state = known
                if is_due:
                    state = changes[key] = known.with_log_end(self._node_id, end, replicas[key])
                self._waits_for.pop(key, None)
                if state.log_ends:
                    self._waits_for[key] = tuple(each for each in replicas[key] if each not in state.log_ends)
            if await self._changed(changes, mark):
                return list(changes)

    def _is_led_without(
        self, key: TopicPartition, state: LeaderAndIsr, replicas: Sequence[int], live: Mapping[int, int], since: int
    ) -> bool:
        min_isr = self._log_manager.configs.of(key[0]).min_insync_replicas
        return self._node_id not in state.isr and can_go_on(state, replicas, min_isr, live, since)

    def _begin_anew(self, key: TopicPartition) -> None:
        """Drop what the log has. All that was acknowledged is in the logs of those that are in sync."""
        log = self._log_manager.get(*key)
        if log is not None and log.log_end_offset > log.log_start_offset:
            truncation.truncate_fully_and_start_at(log, log.log_start_offset)
            self._anew.append(key)

    async def _changed(self, changes: Mapping[TopicPartition, LeaderAndIsr], mark: TreeMark | None) -> bool:
        """Write these states, which are of the controller of now, and have it read them. False: others wrote first."""
        operations: list[Operation] = [] if mark is None else [self._mark.setting(mark)]
        if changes:
            fence, writes = await writes_of(self._coordination, changes)
            notice = Create(paths.ISR_CHANGE_PREFIX, encode_isr_change(list(changes)), sequential=True)
            operations += [*fence, *writes, notice]
        if not operations:
            return True
        try:
            await self._coordination.multi(operations)
        except MultiError as error:
            if not isinstance(error.cause, BadVersionError | NoNodeError):
                raise
            return False
        return True

    # --- while it runs ---

    @property
    def waits_for(self) -> Mapping[TopicPartition, Sequence[int]]:
        """The partitions here of which log ends will decide, and whose are missing."""
        return self._waits_for

    def start(self) -> None:
        """Report from now on where the controller says that logs are to decide."""
        self._looking = self._upkeep.every(
            "undecided partitions",
            lambda: LOOK_MS,
            lambda: [self] if self._replica_manager.undecided else [],
            RestoredTree._look,
        )

    def stop(self) -> None:
        """Report no more."""
        if self._looking is not None:
            self._looking.stop()
            self._looking = None

    async def _look(self) -> None:
        """Those who do not know of anything newer say where their logs end, too."""
        try:
            await self._report_undecided()
        except CoordinationError as error:
            logger.info("the tree does not answer, trying again: %s", error)
        else:
            self._say_what_is_waited_for()

    async def _report_undecided(self) -> None:
        states = await self._states([(each.topic, each.index) for each in self._replica_manager.undecided])
        older = {key for key, state in states.items() if any(end.is_newer for end in state.log_ends.values())}
        if older and not self._is_known:
            self._is_known = True
            self._on_news()
        ends: dict[TopicPartition, LogEnd] = {}
        replicas: dict[TopicPartition, tuple[int, ...]] = {}
        for partition in self._replica_manager.undecided:
            if partition.leader_id == NO_LEADER and partition.log.health.is_writable:
                key = partition.topic, partition.index
                if key in older:
                    self._cut(partition.log, self._came_with.get(key))
                ends[key], replicas[key] = end_of(partition.log, is_newer=False), partition.replicas
        for key in [key for key in self._waits_for if key not in ends]:
            del self._waits_for[key]
        for chunk in chunks(list(ends), PARTITIONS_PER_WRITE):
            await self._write({key: ends[key] for key in chunk}, replicas, None)

    def _cut(self, log: Log, came_with: LogEnd | None) -> None:
        """Before this broker reports: what it has written since it began is of the time after the copy was put back.

        Epochs of that time may have the numbers of those that others have of before, so nobody could tell them apart.
        """
        if came_with is not None and log.log_end_offset > came_with.offset:
            logger.warning(
                "%s: records from offset %d on were written after an older copy of the tree was put back, by a leader "
                "that did not know of it, and no other replica counts on them: they go",
                log.name,
                came_with.offset,
            )
            truncation.truncate_to(log, came_with.offset)

    def _say_what_is_waited_for(self) -> None:
        now_ms = self._clock.monotonic_ms()
        missing = sorted({replica for them in self._waits_for.values() for replica in them})
        if not missing or (missing == self._said and now_ms < self._said_ms + SAID_AGAIN_MS):
            return
        self._said_ms, self._said = now_ms, missing
        logger.warning(
            "%s no leader until %s said where the logs end there, because the tree, or what those in sync have, is an "
            "older copy (%s). Start them. If the disk of one is lost, start it with an empty one and --give-up. To go "
            "on without them, and perhaps without records that only they have: set unclean.leader.election.enable=true "
            "for the topics, until they have leaders",
            counted(len(self._waits_for), "partition has", "partitions have"),
            f"broker {missing[0]} has" if len(missing) == 1 else f"brokers {', '.join(map(str, missing))} have",
            _in_a_line(self._waits_for),
        )


def _in_a_line(keys: Iterable[TopicPartition]) -> str:
    return names_in_a_line(["{}-{}".format(*key) for key in keys])
