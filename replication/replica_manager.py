"""The partitions of one broker. The controller tells their roles; clients append, fetch, and look up offsets."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.controller_client import AskController
from barnabas.cluster.leader_and_isr import CANNOT_WRITE, EPOCH_DURING_DELETE, RECOVERING
from barnabas.cluster.lease import LeaseView
from barnabas.cluster.metadata_cache import NO_TOPIC_ID, MetadataCache
from barnabas.cluster.registration import UNKNOWN_BROKER_EPOCH
from barnabas.cluster.topic_names import INTERNAL_TOPICS, topic_name_problem
from barnabas.cluster.tree.port import Coordination
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from barnabas.replication import offset_lookup
from barnabas.replication.disk_refusals import DiskRefusals
from barnabas.replication.fetch_values import CONSUMER
from barnabas.replication.fetching import Fetching
from barnabas.replication.isr_changes import IsrChanges
from barnabas.replication.led_states import LedStates
from barnabas.replication.log_failure_notices import log_failure_notices
from barnabas.replication.offset_lookup import EpochEndOffset, ListOffsetResult
from barnabas.replication.partition import ALL_IN_SYNC, Partition
from barnabas.replication.replica_fetcher import ReplicaFetchers
from barnabas.replication.replica_wait import ReplicaWait
from barnabas.replication.wakes import Wakes
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Task
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import Appendable, AppendOrigin, AppendResult

logger = logging.getLogger("barnabas.replication")

NO_LEADER_EPOCH: Final = -1
_HAS_ROLE: Final = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)  # a new one, or the one that it had

TopicPartition = tuple[str, int]
LeadershipListener = Callable[[list[Partition], list[Partition]], None]


class ReplicaManager:
    """All partitions hosted here. Handlers are plain functions. One that must wait returns a Pending."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        node_id: int,
        log_manager: LogManager,
        metadata_cache: MetadataCache,
        coordination: Coordination,
        lease: LeaseView,
        clients: BrokerClients,
        ask_controller: AskController,
    ) -> None:
        self.node_id = node_id
        self.lease = lease
        self._env = env
        self.clock = env.clock
        self.wakes = Wakes(env.clock)
        self.config = config
        self.log_manager = log_manager
        self.metadata_cache = metadata_cache
        self.broker_epoch = -1  # set at registration
        self._lost_broker_epoch = UNKNOWN_BROKER_EPOCH  # of the registration that went with its session
        self.controller_epoch = 0  # largest seen
        self.role_failures = 0  # bugs met while roles changed
        self.partitions: dict[TopicPartition, Partition] = {}
        self.undecided: dict[Partition, None] = {}  # the logs of the replicas will decide who is in sync
        self.on_leadership: list[LeadershipListener] = []
        self.on_deleted: list[Callable[[list[TopicPartition]], None]] = []
        self.fetching = Fetching(node_id, env.clock, config, metadata_cache, lease, self.partition)
        self.fetchers = ReplicaFetchers(env, config, clients, lambda: self.broker_epoch)
        log_manager.on_failed.append(self._log_went_offline)
        metadata_cache.on_brokers.append(self._brokers_changed)
        log_manager.write_blocks.on_change.append(self._write_blocks_changed)
        self._isr_changes = IsrChanges(
            env, node_id, lambda: self.broker_epoch, ask_controller, self.fetching.replica_confirmed
        )
        self._log_failures = log_failure_notices(env, coordination, node_id)
        self.refusals = DiskRefusals(env, log_manager.troubles, log_manager.room_check_ms, self._log_failures.add)
        self._led_states = LedStates(
            env, coordination, self.led_partitions, lambda: self.config.replica_lag_time_max_ms, self._suspend
        )
        self._shrinking: Task[Partition] | None = None
        self._failed_logs: set[TopicPartition] = set()
        self._waiting: dict[ReplicaWait[AppendResult], None] = {}  # acks=all, parked
        self._topic_names: dict[bytes, str] = {}  # of the topics that are hosted here, by id

    # --- life ---

    def start(self) -> None:
        """Start the periodic work: ISR changes and notices of failed logs (checkpoints are LogManager's)."""
        self._isr_changes.start()
        self._log_failures.start()
        self.refusals.start()
        self.fetchers.start()
        self._led_states.start()
        self._shrinking = self._env.upkeep.every(
            "isr shrink",
            lambda: self.config.replica_lag_time_max_ms / 2,
            lambda: [partition for partition in self.partitions.values() if partition.remote],
            Partition.shrink_isr,
        )

    def shutdown(self) -> None:
        """Stop fetching and the periodic work, and answer all waiting requests with NOT_LEADER_OR_FOLLOWER."""
        self.fetchers.shutdown()
        if self._shrinking is not None:
            self._shrinking.stop()
        self._isr_changes.stop()
        self._log_failures.stop()
        self.refusals.stop()
        self._led_states.stop()
        for partition in self.partitions.values():
            partition.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.wakes.flush()

    def _write_blocks_changed(self) -> None:
        """A disk has no room, say, or has some again. The controller asks which replicas cannot be written.

        Kafka takes the whole directory offline. Here its replicas follow on, and are in sync again when there is room.
        """
        if any(len(partition.replicas) > 1 for partition in self.partitions.values()):
            self._log_failures.add()

    def _log_went_offline(self, log: Log) -> None:
        """Act in the next pass of the loop, because the log calls this in the middle of a write or sync."""

        def give_up() -> None:
            partition = self.partitions.get((log.topic, log.partition))
            if partition is not None and partition.log is log:
                self._log_failed(partition)

        self.clock.call_soon(give_up)

    def _log_failed(self, partition: Partition) -> None:
        """A log refuses writes, so this broker cannot lead the partition: tell the controller, once."""
        key = (partition.topic, partition.index)
        if key in self._failed_logs:
            return
        self._failed_logs.add(key)
        logger.debug("%s-%d: the log failed (%s), the replica is offline", *key, partition.log.failed)
        self.fetchers.stop((partition,))
        partition.stop(ErrorCode.KAFKA_STORAGE_ERROR)
        self._log_failures.add()
        for listener in self.on_leadership:
            listener([], [partition])

    # --- the session (cluster/lease.py) ---

    def suspend(self, *, is_registered: bool = False) -> None:
        """The session or the registration was lost: serve nothing that only a leader may, until the controller speaks.

        It says so to the next registration, which may be there already (`is_registered`). What it sent to the former
        one may be older than an election since.
        """
        if not is_registered:
            self._lost_broker_epoch = self.broker_epoch
        suspended = list(self.led_partitions())
        if suspended:
            waiting = counted(len(suspended), "led partition waits", "led partitions wait")
            logger.warning("the registration was lost: %s for LeaderAndIsr", waiting)
            self._suspend(suspended)

    def _suspend(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            partition.suspend()
        for listener in self.on_leadership:
            listener([], partitions)

    def lease_lapsed(self) -> None:
        """Tell producers that wait to look for the leader, which may be another broker soon. Their records stay."""
        for wait in list(self._waiting):
            wait.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def lease_regained(self) -> None:
        """Serve what was reached meanwhile."""
        for partition in self.led_partitions():
            partition.wake_later()

    # --- in-sync replicas ---

    def _brokers_changed(self) -> None:
        for partition in self.led_partitions():
            partition.brokers_changed()

    def propose_isr(self, partition: Partition) -> None:
        """Ask the controller for `pending_isr`; `isr_confirmed` or `isr_refused` is called later, never inside."""
        self._isr_changes.propose(partition)

    # --- look-ups ---

    def partition(self, topic: str, index: int) -> Partition | ErrorCode:
        """The partition hosted here, or why there is none."""
        partition = self.partitions.get((topic, index))
        if partition is not None:
            return partition if partition.log.failed is None else ErrorCode.KAFKA_STORAGE_ERROR
        if (topic, index) in self._failed_logs:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.metadata_cache.contains(topic, index):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def hosts_all(self) -> bool:
        """Whether the controller has told of every replica here that the metadata cache names."""
        return all(
            (topic, index) in self.partitions or (topic, index) in self._failed_logs
            for topic, partitions in self.metadata_cache.topics.items()
            for index, state in partitions.items()
            if self.node_id in state.replicas
        )

    def leader_partition(self, topic: str, index: int, current_leader_epoch: int = -1) -> Partition | ErrorCode:
        """The partition if this broker leads it in the epoch the client knows (-1: does not say)."""
        partition = self._in_epoch(topic, index, current_leader_epoch)
        if not isinstance(partition, Partition) or partition.is_leader:
            return partition
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _in_epoch(self, topic: str, index: int, current_leader_epoch: int) -> Partition | ErrorCode:
        """The partition if its leader epoch is the one the client knows (-1: does not say)."""
        partition = self.partition(topic, index)
        if not isinstance(partition, Partition):
            return partition
        error = partition.epoch_error(current_leader_epoch)
        return partition if error is ErrorCode.NONE else error

    def hosted_topic(self, topic_id: bytes) -> str | None:
        """The name of a topic that is hosted here. LeaderAndIsr may tell it before UpdateMetadata does."""
        return self._topic_names.get(topic_id)

    def led_partitions(self) -> Iterable[Partition]:
        return (partition for partition in self.partitions.values() if partition.is_leader)

    # --- produce ---

    def append(
        self,
        entries: Sequence[tuple[str, int, Appendable]],
        *,
        required_acks: int,
        timeout_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        internal_topics_allowed: bool = False,
    ) -> list[AppendResult] | Pending[list[AppendResult]]:
        """Append to each partition on its own; acks -1 waits, once for all, until the ISR has what was appended.

        Results are in the order of the entries. After `timeout_ms` those still waiting say REQUEST_TIMED_OUT (their
        records stay). Acks must be -1, 0 or 1, else INVALID_REQUIRED_ACKS.
        """
        if not -1 <= required_acks <= 1:
            return [AppendResult(ErrorCode.INVALID_REQUIRED_ACKS) for _ in entries]
        if required_acks == ALL_IN_SYNC and not self.lease.holds:
            return [AppendResult(self._without_lease(topic, index)) for topic, index, _ in entries]
        results: list[AppendResult] = []
        wait: ReplicaWait[AppendResult] | None = None
        partitions = self.partitions
        internal_refused = origin is AppendOrigin.CLIENT and not internal_topics_allowed
        for topic, index, records in entries:
            if internal_refused and topic in INTERNAL_TOPICS:
                results.append(AppendResult(ErrorCode.INVALID_TOPIC_EXCEPTION))
                continue
            partition = partitions.get((topic, index))
            if partition is None or partition.log.failed is not None:
                missing = self.partition(topic, index)
                assert not isinstance(missing, Partition)
                results.append(AppendResult(missing))
                continue
            result = partition.append_as_leader(records, origin=origin, required_acks=required_acks)
            committed = partition.log.high_watermark > result.last_offset  # at once, where the ISR is this broker alone
            if required_acks == ALL_IN_SYNC and result.error is ErrorCode.NONE and not committed:
                if wait is None:
                    wait = ReplicaWait(results, _append_ended)
                wait.park(len(results), partial(partition.park_until, result.last_offset + 1))
            results.append(result)
        if wait is None:
            return results
        self._waiting[wait] = None
        wait.on_end = self._waiting.pop
        wait.begin(self.clock, timeout_ms)
        return wait.pending

    def _without_lease(self, topic: str, index: int) -> ErrorCode:
        partition = self.partition(topic, index)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(partition, Partition) else partition

    # --- look-ups of offsets ---

    def list_offset(
        self,
        topic: str,
        index: int,
        timestamp: int,
        *,
        replica_id: int = -1,
        isolation_level: int = 0,
        current_leader_epoch: int = -1,
        version: int = 10,
    ) -> ListOffsetResult:
        """The offset for a timestamp or one of the special ones (KIP-79, KIP-734)."""
        if not offset_lookup.has_timestamp(version, timestamp):  # said first, as Kafka does: no other broker has it
            return ListOffsetResult(ErrorCode.UNSUPPORTED_VERSION)
        partition = self._for_lookup(topic, index, replica_id, current_leader_epoch)
        if not isinstance(partition, Partition):
            return ListOffsetResult(partition)
        try:
            return offset_lookup.list_offset(
                partition, timestamp, replica_id=replica_id, isolation_level=isolation_level, version=version
            )
        except (OSError, CorruptBatchError) as error:
            return ListOffsetResult(partition.log.unreadable(error))

    def list_offsets_version_0(
        self, topic: str, index: int, timestamp: int, max_offsets: int, *, replica_id: int = -1
    ) -> tuple[ErrorCode, list[int]]:
        """ListOffsets as it was: segment boundaries, newest first, no more than `max_offsets`."""
        partition = self._for_lookup(topic, index, replica_id, -1)
        if not isinstance(partition, Partition):
            return partition, []
        bound = partition.log_end_offset if replica_id >= 0 else partition.high_watermark
        try:
            segments = offset_lookup.segment_times(partition.log, self._env.disk, self.clock.now_ms())
        except OSError as error:
            return partition.log.unreadable(error), []
        return ErrorCode.NONE, offset_lookup.offsets_before(segments, timestamp, max_offsets, bound, replica_id < 0)

    def offset_for_leader_epoch(
        self, topic: str, index: int, leader_epoch: int, *, current_leader_epoch: int = -1
    ) -> EpochEndOffset:
        """The end offset of an epoch in the leader's log (KIP-101); (-1, -1) for an unknown epoch."""
        partition = self.leader_partition(topic, index, current_leader_epoch)
        if not isinstance(partition, Partition):
            return EpochEndOffset(partition)
        log = partition.log
        epoch, end_offset = log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)
        return EpochEndOffset(ErrorCode.NONE, epoch, end_offset)

    def _for_lookup(self, topic: str, index: int, replica_id: int, current_leader_epoch: int) -> Partition | ErrorCode:
        partition = self._in_epoch(topic, index, current_leader_epoch)
        if not isinstance(partition, Partition):
            return partition
        if not partition.is_leader and replica_id != offset_lookup.DEBUGGING_CONSUMER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if replica_id == CONSUMER and not self.lease.holds:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return partition

    # --- the controller's word ---

    def _refuse(self, broker_epoch: int, controller_epoch: int) -> ErrorCode:
        """Requests meant for an earlier life of this broker, or from an earlier controller."""
        if broker_epoch != UNKNOWN_BROKER_EPOCH and (
            broker_epoch < self.broker_epoch or broker_epoch == self._lost_broker_epoch
        ):
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch < self.controller_epoch:
            logger.info(
                "refused a request of a former controller: its epoch is %d, the present one %d",
                controller_epoch,
                self.controller_epoch,
            )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = controller_epoch
        return ErrorCode.NONE

    def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Lead and follow what the controller says."""
        error = self._refuse(request.broker_epoch, request.controller_epoch)
        if error is not ErrorCode.NONE:
            return LeaderAndIsrResponse(error_code=error)
        became_leader: list[Partition] = []
        became_follower: list[Partition] = []
        topics = []
        for topic_state in request.topic_states:
            errors = []
            for state in topic_state.partition_states:
                try:
                    error = self._lead_or_follow(
                        topic_state.topic_name, topic_state.topic_id, state, became_leader, became_follower
                    )
                except Exception:
                    error = self._role_failed(topic_state.topic_name, state.partition_index)
                if error in _HAS_ROLE and self._cannot_write(topic_state.topic_name, state.partition_index):
                    error = CANNOT_WRITE
                errors.append(
                    LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                        partition_index=state.partition_index, error_code=error
                    )
                )
            topics.append(
                LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic_state.topic_id, partition_errors=errors)
            )
        self.fetchers.follow(became_follower)
        if became_leader or became_follower:
            logger.info(
                "became leader of %s, follower of %d", counted(len(became_leader), "partition"), len(became_follower)
            )
            for listener in self.on_leadership:
                listener(became_leader, became_follower)
        return LeaderAndIsrResponse(topics=topics)

    def _cannot_write(self, topic: str, index: int) -> bool:
        partition = self.partitions.get((topic, index))
        return partition is not None and self.log_manager.write_blocks.is_write_blocked(partition.log)

    def _lead_or_follow(
        self,
        topic: str,
        topic_id: bytes,
        state: LeaderAndIsrRequest.LeaderAndIsrPartitionState,
        became_leader: list[Partition],
        became_follower: list[Partition],
    ) -> ErrorCode:
        index = state.partition_index
        key = (topic, index)
        partition = self.partitions.get(key)
        known_id = None if topic_id == NO_TOPIC_ID else topic_id
        if partition is not None:
            if partition.log.failed is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if None not in (known_id, partition.topic_id) and partition.topic_id != known_id:
                return ErrorCode.INCONSISTENT_TOPIC_ID
            if state.leader_epoch < partition.leader_epoch:
                return ErrorCode.STALE_CONTROLLER_EPOCH
            if state.leader_epoch == partition.leader_epoch and not partition.is_suspended:
                return self._learn_topic_id(partition, known_id)
        if state.leader_epoch < 0:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.node_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition is None:
            if index < 0 or topic_name_problem(topic) is not None:  # no folder can have this name
                return ErrorCode.INVALID_TOPIC_EXCEPTION
            log = self._open_log(topic, index, known_id, state.is_new)
            if isinstance(log, ErrorCode):
                return log
            partition = self.partitions[key] = Partition(topic, index, known_id, log, self)
        if known_id is not None:
            self._topic_names[known_id] = topic
        if state.partition_epoch >= partition.partition_epoch:
            self.fetchers.stop((partition,))  # what it still fetches is of an older epoch
        self.undecided.pop(partition, None)
        if not state.isr:
            self.undecided[partition] = None
        if state.leader == self.node_id:
            if partition.make_leader(
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                controller_epoch=state.controller_epoch,
                isr=state.isr,
                replicas=state.replicas,
                recovering=state.leader_recovery_state == RECOVERING,
            ):
                became_leader.append(partition)
        elif partition.make_follower(
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            controller_epoch=state.controller_epoch,
            replicas=state.replicas,
        ):
            became_follower.append(partition)
        return ErrorCode.NONE

    def _learn_topic_id(self, partition: Partition, topic_id: bytes | None) -> ErrorCode:
        """What a request of an epoch that is known already may still tell."""
        if partition.topic_id is not None or topic_id is None:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        partition.topic_id = topic_id
        self.log_manager.get_or_create(partition.topic, partition.index, topic_id)
        return ErrorCode.NONE

    def _role_failed(self, topic: str, index: int) -> ErrorCode:
        """A bug in the change of one role. The other roles of the request are changed all the same."""
        self.role_failures += 1
        logger.exception("%s-%d: LeaderAndIsr failed", topic, index)
        return ErrorCode.UNKNOWN_SERVER_ERROR

    def _open_log(self, topic: str, index: int, topic_id: bytes | None, is_new: bool) -> Log | ErrorCode:
        try:
            log = self.log_manager.get_or_create(topic, index, topic_id, is_new=is_new)
        except OSError as error:
            again = partial(self._make_log_again, topic, index, topic_id, is_new)
            self.refusals.note((topic, index), "made", error, again)
            self._failed_logs.add((topic, index))
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.refusals.forget((topic, index))
        self._failed_logs.discard((topic, index))
        if log.failed is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if log.topic_id is not None and topic_id is not None and log.topic_id != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return log

    def _make_log_again(self, topic: str, index: int, topic_id: bytes | None, is_new: bool) -> None:
        if self.metadata_cache.contains(topic, index):  # it was not deleted meanwhile
            self.log_manager.get_or_create(topic, index, topic_id, is_new=is_new)

    def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop hosting replicas, and delete their files where the controller says so."""
        error = self._refuse(request.broker_epoch, request.controller_epoch)
        if error is not ErrorCode.NONE:
            return StopReplicaResponse(error_code=error)
        stopped: list[Partition] = []
        errors, answered = [], StopReplicaResponse.StopReplicaPartitionError
        for topic_state in request.topic_states:
            for state in topic_state.partition_states:
                topic, index = topic_state.topic_name, state.partition_index
                try:
                    error = self._stop_one(topic, index, state.leader_epoch, state.delete_partition, stopped)
                except Exception:
                    error = self._role_failed(topic, index)
                errors.append(answered(topic_name=topic, partition_index=index, error_code=error))
        if stopped:
            logger.info("stopped %s", counted(len(stopped), "replica"))
            for listener in self.on_leadership:
                listener([], stopped)
        return StopReplicaResponse(partition_errors=errors)

    def _stop_one(self, topic: str, index: int, leader_epoch: int, delete: bool, stopped: list[Partition]) -> ErrorCode:
        key = (topic, index)
        partition = self.partitions.get(key)
        if delete:
            self.refusals.forget(key)
        if partition is None and key in self._failed_logs:
            if not delete or self.log_manager.failed_directories:  # its records may come back with their directory
                return ErrorCode.KAFKA_STORAGE_ERROR
            self._failed_logs.discard(key)
        if partition is not None:
            if partition.log.failed is not None and not delete:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if leader_epoch not in (EPOCH_DURING_DELETE, NO_LEADER_EPOCH) and leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            self.fetchers.stop((partition,))
            self.undecided.pop(partition, None)
            del self.partitions[key]
            if partition.topic_id is not None:  # to delete a replica, the controller stops it first
                self._topic_names.pop(partition.topic_id, None)
            self._failed_logs.discard(key)
            partition.stop(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if delete else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            stopped.append(partition)
        if delete and self.log_manager.get(topic, index) is not None:
            try:
                self.log_manager.delete(topic, index)
            except OSError as error:
                self.refusals.note(key, "deleted", error, partial(self.log_manager.delete, topic, index))
                return ErrorCode.KAFKA_STORAGE_ERROR
            logger.debug("%s-%d: deleted", topic, index)
        return ErrorCode.NONE

    def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Take over brokers and partition states; requests that wait for such a change look again."""
        error = self._refuse(request.broker_epoch, request.controller_epoch)
        if error is not ErrorCode.NONE:
            return UpdateMetadataResponse(error_code=error)
        deleted = self.metadata_cache.update(request)
        if deleted:
            for listener in self.on_deleted:
                listener(deleted)
        return UpdateMetadataResponse()


def _append_ended(result: AppendResult, error: ErrorCode) -> AppendResult:
    return AppendResult(error) if error else result
