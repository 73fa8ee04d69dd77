"""The group coordinator: it checks each group request, and passes it to the shard and the group.

Groups live in shards: one shard for each partition of `__consumer_offsets` that this broker leads (shard.py). The
group decides what a member may do (classic.py). Requests about offsets have parts of their own: `commits`,
`transactional_commits`, `offset_fetches`, `removals`, `live_resets`. Methods that answer a request take its message and
its context, and return the response or a `Pending` of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import TYPE_CHECKING

from barnabas.cluster.lease import LeaseView
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC
from barnabas.cluster.tree.port import Coordination
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import group_error
from barnabas.coordinators.coordinator import Coordinator, partition_for
from barnabas.coordinators.groups.classic import ClassicGroup
from barnabas.coordinators.groups.commits import Commits
from barnabas.coordinators.groups.consumer.answers import ConsumerAnswers
from barnabas.coordinators.groups.consumer.classic_answers import ClassicAnswers, Leaver
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.records import make_encoders
from barnabas.coordinators.groups.consumer.topics import Topics
from barnabas.coordinators.groups.events import EventBook
from barnabas.coordinators.groups.live_reset import LiveResets
from barnabas.coordinators.groups.loading import Loader
from barnabas.coordinators.groups.members import CONSUMER_PROTOCOL_TYPE, join_error
from barnabas.coordinators.groups.offset_fetches import OffsetFetches
from barnabas.coordinators.groups.removals import Removals
from barnabas.coordinators.groups.requests import GROUP_OPERATIONS, Context, LogRefusal, Origins, Refusals
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.states import State
from barnabas.coordinators.groups.transactional_commits import TransactionalCommits
from barnabas.coordinators.groups.views import CLASSIC, CONSUMER
from barnabas.coordinators.loading import LedPartition
from barnabas.coordinators.shard import CoordinatorLog
from barnabas.offsets.dual import DualOffsetManager
from barnabas.offsets.kafka import GroupInShard, KafkaOffsetManager
from barnabas.offsets.manager import OffsetManager
from barnabas.offsets.offset_journal import OffsetJournal
from barnabas.offsets.records import TransactionEnd
from barnabas.offsets.zookeeper import ZooKeeperOffsetManager
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer, Env, Timer
from barnabas.runtime.turns import Pieces, chunks
from barnabas.runtime.upkeep import Task
from barnabas.storage.validation import AppendOrigin

if TYPE_CHECKING:
    from barnabas.protocol.messages import (
        DescribeGroupsRequest,
        DescribeGroupsResponse,
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        ListGroupsRequest,
        ListGroupsResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )

logger = logging.getLogger("barnabas.groups")

TIMER_CHECK_MS = 5_000.0  # how often lost timers of groups are looked for
PREFIX_BYTES_MAX = 32_000  # a member id is prefix and UUID, and must fit into a string of the protocol
LEAVERS_PER_PIECE = 100
ENCODERS_MADE_AFTER_MS = 1_000.0  # the start is over then, and it need not wait for what few groups use


def _left(leavers: list[Leaver], errors: list[ErrorCode], version: int) -> LeaveGroupResponse:
    if version < 3:
        return messages.LeaveGroupResponse(error_code=errors[0])
    make_row = messages.LeaveGroupResponse.MemberResponse
    return messages.LeaveGroupResponse(
        members=[
            make_row(member_id=member_id, group_instance_id=instance_id, error_code=error)
            for (member_id, instance_id, _), error in zip(leavers, errors, strict=True)
        ]
    )


def _recover_timer(item: GroupInShard[Shard]) -> None:
    item.shard.recover_timer(item.group_id, TIMER_CHECK_MS)


class GroupCoordinator(Coordinator[Shard]):
    """Answers for the groups whose partitions of `__consumer_offsets` this broker leads.

    `offsets` is the storage that `offsets.storage` names.
    """

    topic = OFFSETS_TOPIC
    kind = "offsets"
    logger = logger

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        log_of: Callable[[int], CoordinatorLog | ErrorCode],
        topics: Topics,
        coordination: Coordination,
        lease: LeaseView,
        log_refusal: LogRefusal,
        journal: OffsetJournal | None = None,
    ) -> None:
        super().__init__(log_of, topics, lease)
        self.journal = journal
        self._env = env
        self.clock = env.clock
        self._turns = env.turns
        self.config = config
        self.topics = topics
        self.events = EventBook()
        self._refusals = Refusals(log_refusal, self.events, env.clock)
        self.unloads = 0
        self._timers: Task[GroupInShard[Shard]] | None = None
        self._encoders_timer: Timer | None = None
        self.legacy_offsets = ZooKeeperOffsetManager(env, coordination)  # OffsetCommit and OffsetFetch v0, always
        self.kafka_offsets = KafkaOffsetManager(env, config, self.shards)
        self.offsets: OffsetManager = self.kafka_offsets
        if config.offsets_storage == "zookeeper":
            self.offsets = self.legacy_offsets
        elif config.dual_commit_enabled:
            self.offsets = DualOffsetManager(self.kafka_offsets, self.legacy_offsets)
        origins = Origins(journal is not None)
        self.consumer = ConsumerAnswers(env, config, self, topics, self._refusals)
        self._classic_members = ClassicAnswers(env, self.consumer.situation_of, self._refusals)
        self.commits = Commits(env, config, self, topics, self.legacy_offsets, self._refusals, origins)
        self.offset_fetches = OffsetFetches(env.turns, self, topics, self.offsets, self.legacy_offsets)
        self.removals = Removals(env.turns, self, topics, self.offsets, origins)
        self.transactional_commits = TransactionalCommits(env, config, self, topics, self._refusals, origins)
        self.live_resets = LiveResets(config, self, origins)

    # ---- life ----

    def start(self) -> None:
        """Answer requests from now on."""
        super().start()
        self.kafka_offsets.startup()
        if self.journal is not None:
            self.journal.start()
        self._timers = self._env.upkeep.every("group timers", lambda: TIMER_CHECK_MS, self._all_groups, _recover_timer)
        self._encoders_timer = self.clock.call_later(ENCODERS_MADE_AFTER_MS, self._make_encoders)

    def shutdown(self) -> None:
        """Stop answering. Waiting clients are told to look for another coordinator."""
        self.kafka_offsets.shutdown()
        self.legacy_offsets.shutdown()
        if self._timers is not None:
            self._timers.stop()
            self._timers = None
        if self._encoders_timer is not None:
            self._encoders_timer.cancel()
            self._encoders_timer = None
        super().shutdown()
        if self.journal is not None:
            self.journal.stop()

    def on_leadership(self, became_leader: Iterable[LedPartition], became_follower: Iterable[LedPartition]) -> None:
        """Leaders changed: load partitions of `__consumer_offsets` that this broker leads now, unload the others."""
        became_leader = list(became_leader)
        super().on_leadership(became_leader, became_follower)
        if self.journal is not None:
            self.journal.leader_changed([led.index for led in became_leader if led.topic == JOURNAL_TOPIC])

    def _open(self, partition: int, leader_epoch: int, log: CoordinatorLog) -> Shard:
        return Shard(partition, leader_epoch, log, self._env, self.config, self.consumer.situation_of, self.events)

    def _begin_loading(self, shard: Shard, loaded: Callable[[], None]) -> Loader:
        buffer_bytes = self.config.offsets_load_buffer_size
        return Loader(shard, self.clock, self._turns, self.config, buffer_bytes, loaded)

    def _make_encoders(self) -> None:
        self._turns.begin(make_encoders())

    def _before_close(self, shard: Shard) -> None:
        self.unloads += 1
        group_ids = [*shard.groups, *shard.consumer.by_id]
        if group_ids:
            logger.info("offsets partition %d: unloaded %s", shard.partition, counted(len(group_ids), "group"))
        for group_id in group_ids:
            self.events.forget(group_id)

    def _loaded(self, shard: Shard) -> None:
        if self.journal is not None:
            shard.journal = self.journal.open(shard.partition, shard.log, shard.offsets)
        if self.offsets is self.legacy_offsets and shard.offsets.has_offsets:
            logger.warning(
                "offsets partition %d: offsets.storage=zookeeper, so nobody is told the offsets that %s committed to "
                "it. Start with offsets.storage=kafka to use them",
                shard.partition,
                counted(shard.offsets.group_count, "group has", "groups have"),
            )
        shard.in_doubt = None
        for action in shard.after_loading:
            action()
        shard.after_loading.clear()
        self._turns.begin(self._start_sessions(shard))

    def _start_sessions(self, shard: Shard) -> Pieces[None]:
        for group in [each for each in shard.groups.values() if each.has_deadlines]:
            yield
            if shard.closed or group.state is State.DEAD:
                continue
            group.start_sessions(self.clock.monotonic_ms())
            each = shard.effects()
            if len(group.members) > self.config.group_max_size:
                group.rebalance.begin(f"more than {self.config.group_max_size} members", each)
            shard.run_effects(group, each)
        for consumer_group in list(shard.consumer.by_id.values()):
            yield
            if not shard.closed:
                shard.consumer.start_sessions(consumer_group)

    def _all_groups(self) -> Iterator[GroupInShard[Shard]]:
        for shard in self.loaded_shards():
            yield from [GroupInShard(shard, group_id) for group_id in (*shard.groups, *shard.consumer.by_id)]

    # ---- the gate ----

    def readable_shard_of(self, group_id: str) -> Shard | ErrorCode:
        """`shard_of` for who only reads offsets, also while replicas are missing that would commit the rest of the log.

        What `Shard.uncommitted_offsets` names must not be told then.
        """
        shard = self.shard_of(group_id)
        if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            loading = self.shards[partition_for(group_id, len(self.topics.topics[self.topic]))]
            return loading if loading.in_doubt is not None else shard
        return shard

    @property
    def ownership(self) -> tuple[int, bool]:
        """Changes when this broker may have lost a group."""
        return self.unloads, self.lease.holds

    @property
    def member_count(self) -> int:
        """How many members the groups have that this broker coordinates."""
        classic = sum(len(group.members) for shard in self.shards.values() for group in shard.groups.values())
        return classic + sum(
            len(group.members) for shard in self.shards.values() for group in shard.consumer.by_id.values()
        )

    def _gate(self, group_id: str | None) -> Shard | ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID if self.is_active else ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.shard_of(group_id)

    # ---- membership ----

    def join_group(self, request: JoinGroupRequest, context: Context) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        """JoinGroup: answered when the join phase ends."""
        version = context.api_version
        group_id = request.group_id
        if self.is_active and group_id:
            timeout_ms = request.session_timeout_ms
            if not self.config.group_min_session_timeout_ms <= timeout_ms <= self.config.group_max_session_timeout_ms:
                self._refusals.log(
                    context,
                    ErrorCode.INVALID_SESSION_TIMEOUT,
                    "group %r: session.timeout.ms=%d is not between group.min.session.timeout.ms=%d and "
                    "group.max.session.timeout.ms=%d",
                    *(group_id, timeout_ms),
                    *(self.config.group_min_session_timeout_ms, self.config.group_max_session_timeout_ms),
                )
                return join_error(version, request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT)
        shard = self._gate(group_id)
        if isinstance(shard, ErrorCode):
            return join_error(version, request.member_id, shard)
        if shard.is_held(group_id):
            late = join_error(version, request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return shard.until_released(group_id).and_then(
                lambda is_free: self.join_group(request, context) if is_free else late
            )
        consumer_group = shard.consumer.by_id.get(group_id)
        if consumer_group is not None and consumer_group.members:
            return self._classic_members.join(shard, consumer_group, request, context)
        if group_id in shard.foreign_groups:
            return join_error(version, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        effects = shard.effects()
        fenced_epoch = -1
        if consumer_group is not None and request.member_id == "":
            if consumer_group.is_fenced(effects.monotonic_ms):
                fenced_epoch = consumer_group.epoch
            shard.consumer.delete_for_classic(consumer_group)
        group = shard.groups.get(group_id)
        is_new = group is None
        if group is None:
            if request.member_id != "":
                return join_error(version, request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            group = shard.groups[group_id] = ClassicGroup(group_id, self.config, effects.now_ms)
            group.rebalance.is_unstorable = shard.is_unstorable
            if fenced_epoch >= 0:
                group.rebalance.take_over_fence(fenced_epoch, effects.monotonic_ms)
        before = group.rebalance.record() if is_new else None
        reply = group.join(request, version, context.client_id or "", context.client_host, self._member_id, effects)
        if not isinstance(reply, Pending) and reply.error_code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self._refusals.log(context, ErrorCode(reply.error_code), "group %r, member %r", group_id, request.member_id)
            self._refusals.note(context, ErrorCode(reply.error_code), group_id, "join", request.member_id)
        if before is not None and not effects.stores:
            # A new group is stored empty, so that the next coordinator knows of it before its first generation.
            shard.write(group_id, before, self._created(shard, group))
        shard.run_effects(group, effects)
        return reply

    def _created(self, shard: Shard, group: ClassicGroup) -> Callable[[ErrorCode], None]:
        def done(error: ErrorCode) -> None:
            if error is ErrorCode.REQUEST_TIMED_OUT:
                return  # the record is in the log, and will be committed unless the leader changes
            if error and group.generation == 0 and not shard.closed and shard.groups.get(group.group_id) is group:
                if not group.rebalance.is_unstorable:
                    logger.warning("group %s: could not be created: %s", group.group_id, error.name)
                del shard.groups[group.group_id]
                effects = shard.effects()
                group.rebalance.die(group_error(error), effects)
                shard.run_effects(group, effects)

        return done

    def sync_group(self, request: SyncGroupRequest, context: Context) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        """SyncGroup: gives the member its assignment. The leader sends the assignments of all members."""
        if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return messages.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        shard = self._gate(request.group_id)
        if isinstance(shard, ErrorCode):
            if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                shard = ErrorCode.REBALANCE_IN_PROGRESS  # old clients do not expect COORDINATOR_LOAD_IN_PROGRESS here
            return messages.SyncGroupResponse(error_code=shard)
        group = shard.groups.get(request.group_id)
        if group is None:
            consumer_group = shard.consumer.by_id.get(request.group_id)
            if consumer_group is not None:
                return self._classic_members.sync(shard, consumer_group, request)
            return messages.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        effects = shard.effects()
        reply = group.sync(request, effects)
        shard.run_effects(group, effects)
        return reply

    def heartbeat(self, request: HeartbeatRequest, context: Context) -> HeartbeatResponse:
        """Heartbeat: tells the member whether it must join again."""
        shard = self._gate(request.group_id)
        if isinstance(shard, ErrorCode):
            if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                shard = ErrorCode.NONE
            return messages.HeartbeatResponse(error_code=shard)
        group = shard.groups.get(request.group_id)
        if group is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
            consumer_group = shard.consumer.by_id.get(request.group_id)
            if consumer_group is not None:
                error = self._classic_members.heartbeat(shard, consumer_group, request)
            return messages.HeartbeatResponse(error_code=error)
        return messages.HeartbeatResponse(
            error_code=group.heartbeat(
                request.member_id, request.group_instance_id, request.generation_id, self.clock.monotonic_ms()
            )
        )

    def leave_group(
        self, request: LeaveGroupRequest, context: Context
    ) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
        """LeaveGroup: removes one member (v0-2) or several (v3+)."""
        if context.is_long and context.api_version >= 3:
            return self._turns.run(self._long_leave_group(request, context), to_the_end=True)
        return self._leave_group(request, context)

    def _long_leave_group(self, request: LeaveGroupRequest, context: Context) -> Pieces[LeaveGroupResponse]:
        """Remove very many members, some at a time, as if there were several requests."""
        response = messages.LeaveGroupResponse(members=[])
        for members in chunks(request.members, LEAVERS_PER_PIECE):
            yield
            part = copy(request)
            part.members = list(members)
            reply = self._leave_group(part, context)
            answer = (yield reply) if isinstance(reply, Pending) else reply
            if answer.error_code:
                return answer
            response.members += answer.members
        return response

    def _leave_group(
        self, request: LeaveGroupRequest, context: Context
    ) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
        shard = self._gate(request.group_id)
        if isinstance(shard, ErrorCode):
            return messages.LeaveGroupResponse(error_code=shard)
        leavers: list[Leaver]
        if context.api_version >= 3:
            leavers = [(member.member_id, member.group_instance_id, member.reason) for member in request.members]
        else:
            leavers = [(request.member_id, None, None)]
        group = shard.groups.get(request.group_id)
        consumer_group = shard.consumer.by_id.get(request.group_id)
        if consumer_group is not None:
            left = self._classic_members.leave(shard, consumer_group, leavers)
            if isinstance(left, Pending):
                return left.map(lambda errors: _left(leavers, errors, context.api_version))
            return _left(leavers, left, context.api_version)
        if group is None:
            return _left(leavers, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers), context.api_version)
        if group.state is State.DEAD:
            return messages.LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        effects = shard.effects()
        response = _left(leavers, group.leave(leavers, effects), context.api_version)
        has_stores = bool(effects.stores)
        shard.run_effects(group, effects)
        if not has_stores:
            return response
        pending: Pending[LeaveGroupResponse] = Pending()
        shard.write(request.group_id, None, lambda error: pending.complete(response))  # after the group is stored
        return pending

    # ---- administration ----

    def list_groups(
        self, request: ListGroupsRequest, context: Context
    ) -> ListGroupsResponse | Pending[ListGroupsResponse]:
        """ListGroups: the groups of the loaded shards, filtered by state and type."""
        if not self.is_active:
            return messages.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._turns.run(self._list_groups(request))

    def _list_groups(self, request: ListGroupsRequest) -> Pieces[ListGroupsResponse]:
        states = {state.strip().lower() for state in request.states_filter or ()}
        types = {kind.lower() for kind in request.types_filter or ()}
        loading = any(shard.loading for shard in self.shards.values())
        response = messages.ListGroupsResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE
        )
        for shard in self.loaded_shards():
            groups: list[ClassicGroup | ConsumerGroup] = [*shard.groups.values(), *shard.consumer.by_id.values()]
            for group in groups:
                yield
                kind, protocol_type, state = CONSUMER, CONSUMER_PROTOCOL_TYPE, group.state.value
                if isinstance(group, ClassicGroup):
                    kind, protocol_type = CLASSIC, group.rebalance.protocol_type or ""
                if (not states or state.lower() in states) and (not types or kind in types):
                    response.groups.append(
                        messages.ListGroupsResponse.ListedGroup(
                            group_id=group.group_id, protocol_type=protocol_type, group_state=state, group_type=kind
                        )
                    )
        return response

    def describe_groups(
        self, request: DescribeGroupsRequest, context: Context
    ) -> DescribeGroupsResponse | Pending[DescribeGroupsResponse]:
        """DescribeGroups: state and members. A group that does not exist is Dead."""
        return self._turns.run(self._describe_groups(request, context.api_version))

    def _describe_groups(self, request: DescribeGroupsRequest, version: int) -> Pieces[DescribeGroupsResponse]:
        response = messages.DescribeGroupsResponse()
        for group_id in request.groups:
            yield
            shard = self.shard_of(group_id)
            if isinstance(shard, ErrorCode):
                described = messages.DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=shard)
                response.groups.append(described)
                continue
            group = shard.groups.get(group_id)
            if group is not None:
                described = group.describe()
            else:
                described = messages.DescribeGroupsResponse.DescribedGroup(
                    group_id=group_id, group_state=State.DEAD.value
                )
                if version >= 6:
                    described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                    foreign = group_id in shard.foreign_groups or group_id in shard.consumer.by_id
                    described.error_message = (
                        f"Group {group_id} is not a classic group." if foreign else f"Group {group_id} not found."
                    )
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = GROUP_OPERATIONS
            response.groups.append(described)
        return response

    def on_partitions_deleted(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Remove the offsets of deleted topics (UpdateMetadata with leader -2) in every group of this broker."""
        gone = dict.fromkeys(partitions)
        if not gone:
            return
        super().on_partitions_deleted(gone)
        self.kafka_offsets.forget(gone)
        self.legacy_offsets.forget(gone)

    def on_partitions_missing(self, partitions: Iterable[tuple[str, int]]) -> None:
        """The same for topics that are gone, which the controller did not say when they went.

        The offsets topic is left to LeaderAndIsr, because a new one of that name may be loading already.
        """
        self.kafka_offsets.forget([each for each in partitions if each[0] != OFFSETS_TOPIC])

    # ---- transactions ----

    def write_marker(
        self, partition: int, batch: Buffer, origin: AppendOrigin, producer_id: int, is_commit: bool
    ) -> Pending[ErrorCode]:
        """Append a marker to an offsets partition; answered when the offsets of the transaction count, or are dropped.

        NOT_LEADER_OR_FOLLOWER: the partition is elsewhere, or not loaded yet, and the sender tries again. A marker that
        is in the log takes effect in any case, now or when the partition is loaded.
        """
        ended: Pending[ErrorCode] = Pending()
        shard = self.shards.get(partition)
        if shard is None or shard.loading or not self.lease.holds:
            ended.complete(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            shard.write_marker(batch, origin, TransactionEnd(producer_id, is_commit), ended.complete)
        return ended

    def _member_id(self, prefix: str) -> str:
        text = self._env.random_uuid().hex()
        if len(prefix) > PREFIX_BYTES_MAX // 4:
            prefix = prefix.encode()[:PREFIX_BYTES_MAX].decode("utf-8", "ignore")
        return f"{prefix}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
