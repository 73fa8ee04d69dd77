"""Fetch by followers and consumers: answered at once if there is data, else parked until there is, or time is up.

Both take the same path. A consumer reads up to the high watermark or the last stable offset, a follower up to the log
end. The fetch offset of a follower acknowledges the records below it.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from barnabas.cluster.lease import LeaseView
from barnabas.cluster.metadata_cache import NO_TOPIC_ID, MetadataCache
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.replication.fetch_values import (
    CONSUMER,
    FUTURE_REPLICA,
    READ_COMMITTED,
    FetchParams,
    FetchPartition,
    FetchResult,
    SharedResults,
)
from barnabas.replication.partition import Partition
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer, Clock, Timer
from barnabas.runtime.turns import Pieces, chunks
from barnabas.storage.log import Log
from barnabas.storage.open_files import FileRange

logger = logging.getLogger("barnabas.replication")

FOLLOWER_FETCH_VERSION: Final = 11  # from this version on a follower may serve consumers (KIP-392)
WHOLE_BATCH_VERSION: Final = 3  # from this version on the first batch is whole, even beyond all limits (KIP-74)
ZSTD_VERSION: Final = 10
STORAGE_ERROR_VERSION: Final = 6

# From this size on, the records of a partition are sent from the file. To read fewer bytes into memory costs less.
BY_REFERENCE_FROM: Final = 128 * 1024
UNCOUNTED_BYTES: Final = 1 << 62  # more than any fetch waits for
# When an answer has read so many bytes into memory, the rest is sent from files, and `min_bytes` ends the answer.
COPIED_BYTES_MAX: Final = 128 * 1024
PARTITIONS_PER_PIECE = 50  # read in a fraction of a millisecond


class ReplicaView(NamedTuple):
    """A replica that a consumer could read from, as the leader knows it."""

    replica_id: int
    rack: str | None
    log_end_offset: int


def select_rack_aware(client_rack: str, leader_id: int, candidates: Iterable[ReplicaView]) -> int:
    """The replica in the client's rack, first the leader, then the one that has most (KIP-392); else the leader."""
    best: ReplicaView | None = None
    for candidate in candidates:
        if candidate.rack != client_rack:
            continue
        if candidate.replica_id == leader_id:
            return leader_id
        if best is None or candidate.log_end_offset > best.log_end_offset:
            best = candidate
    return leader_id if best is None else best.replica_id


def diverging_epoch(
    partition: Partition, fetch_offset: int, last_fetched_epoch: int
) -> tuple[int, int] | ErrorCode | None:
    """Where the fetcher's log diverges from ours: (epoch, end offset). None: it does not. An error: unknown."""
    log = partition.log
    epoch, end_offset = log.leader_epochs.end_offset_for(last_fetched_epoch, log.log_end_offset)
    if end_offset < 0 or fetch_offset < log.log_start_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return epoch, end_offset
    return None


def bytes_max(requested: FetchPartition) -> int:
    """How many bytes of one partition count towards `min_bytes`: its limit, but at least 1."""
    return max(1, requested.max_bytes)


def bytes_between(partition: Partition, offset: int, bound: int) -> int:
    """About how many bytes lie between two offsets. If the log cannot tell, plenty: a read then tells the error."""
    try:
        return partition.log.bytes_between(offset, bound)
    except (OSError, CorruptBatchError):
        return UNCOUNTED_BYTES


class Fetching:
    """Serves fetches from the partitions of one broker."""

    def __init__(
        self,
        node_id: int,
        clock: Clock,
        config: BrokerConfig,
        metadata_cache: MetadataCache,
        lease: LeaseView,
        find: Callable[[str, int], Partition | ErrorCode],
    ) -> None:
        self._lease = lease
        self._node_id = node_id
        self.clock = clock
        self._config = config
        self._metadata_cache = metadata_cache
        self._find = find
        self._replica_epochs: dict[int, int] = {}  # the newest life of each follower that the controller confirmed
        self.parked_count = 0

    def fetch(
        self, params: FetchParams, partitions: Sequence[FetchPartition]
    ) -> list[FetchResult] | Pending[list[FetchResult]]:
        """Read now. Wait only without errors, and only if fewer than `min_bytes` are available.

        Available bytes count, not those in the answer, because size limits end an answer at a whole batch.
        """
        results, size, is_final = self.read(params, partitions, acknowledges=params.replica_id >= 0)
        if is_final or size >= params.min_bytes or params.max_wait_ms <= 0 or not partitions:
            return results
        enough_bytes = 1 if params.min_bytes <= 1 else self._enough_bytes(params, partitions)
        if size:
            available = [self._available(params, *pair) for pair in zip(partitions, results, strict=True)]
            if sum(available) >= enough_bytes:
                return results
        else:
            available = [0] * len(partitions)
        parked = ParkedFetch(self, params, partitions, enough_bytes)
        for available_bytes in available:
            parked.watch_next(available_bytes)
        return parked.pending

    def fetch_in_pieces(self, params: FetchParams, partitions: Sequence[FetchPartition]) -> Pieces[list[FetchResult]]:
        """The same for very many partitions of a consumer. Each is read as it is at its turn."""
        results, size, is_final = yield from self._read_in_pieces(params, partitions)
        if is_final or size >= params.min_bytes or params.max_wait_ms <= 0 or not partitions:
            return results
        enough_bytes = 1 if params.min_bytes <= 1 else self._enough_bytes(params, partitions)
        parked = LongParkedFetch(self, params, partitions, enough_bytes)
        for position in range(len(partitions)):
            yield
            if parked.pending.done:
                break
            parked.look(position)
        yield parked.pending
        return (yield from self._read_in_pieces(params, partitions))[0]

    def _read_in_pieces(
        self, params: FetchParams, partitions: Sequence[FetchPartition]
    ) -> Pieces[tuple[list[FetchResult], int, bool]]:
        results: list[FetchResult] = []
        size = 0
        is_final = False
        for piece in chunks(partitions, PARTITIONS_PER_PIECE):
            yield
            read, size, is_answered_at_once = self.read(params, piece, acknowledges=False, size=size)
            results += read
            is_final = is_final or is_answered_at_once
        return results, size, is_final

    def _enough_bytes(self, params: FetchParams, partitions: Sequence[FetchPartition]) -> int:
        """How many bytes end a wait: `min_bytes`, but no more than an answer can hold."""
        most = min(params.max_bytes, self._config.fetch_max_bytes, sum([bytes_max(each) for each in partitions]))
        return max(1, min(params.min_bytes, most))

    def _available(self, params: FetchParams, requested: FetchPartition, result: FetchResult) -> int:
        """The bytes read of a partition, and those behind them, up to the limit of the partition."""
        read_bytes = len(result.records)
        partition = self.find(params, requested)
        assert isinstance(partition, Partition), "an unreadable partition is answered at once"
        bound = self.upper_bound(params, partition)
        if result.next_offset >= bound:
            return read_bytes
        left_bytes = bytes_between(partition, result.next_offset, bound)
        return max(read_bytes, min(read_bytes + left_bytes, bytes_max(requested)))

    def read(
        self, params: FetchParams, partitions: Sequence[FetchPartition], *, acknowledges: bool, size: int = 0
    ) -> tuple[list[FetchResult], int, bool]:
        """Results, their bytes, and whether one must be answered at once (error, divergence, preferred replica).

        `size`: the bytes that were read of other partitions before, for the same answer.
        """
        if acknowledges and self._is_of_former_life(params):
            return [FetchResult(each, ErrorCode.NOT_LEADER_OR_FOLLOWER) for each in partitions], 0, True
        budget = min(params.max_bytes, self._config.fetch_max_bytes)
        at_least_one = params.version >= WHOLE_BATCH_VERSION and not size
        copied = size
        is_final = False
        results = []
        may_lead = params.replica_id != CONSUMER or self._lease.holds
        for requested in partitions:
            limit, by_reference_from = budget - size, BY_REFERENCE_FROM
            if copied >= COPIED_BYTES_MAX:
                by_reference_from = 1
                if size >= params.min_bytes:
                    limit = 0
            if may_lead or not self._is_led(requested):
                result = self._read_one(params, requested, limit, at_least_one, by_reference_from, acknowledges)
            else:
                result = self._refusal(requested, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            length = len(result.records)
            if length:
                size += length
                if not isinstance(result.records, FileRange):
                    copied += length
                at_least_one = False
            elif (
                result.error is not ErrorCode.NONE
                or result.diverging_epoch is not None
                or result.preferred_read_replica >= 0
            ):
                is_final = True
            results.append(result)
        return results, size, is_final

    def replica_confirmed(self, replica_id: int, broker_epoch: int) -> None:
        """The controller has let a follower into an ISR, and so confirmed that this is the epoch of its life."""
        if broker_epoch > self._replica_epochs.get(replica_id, -1):
            self._replica_epochs[replica_id] = broker_epoch

    def _is_of_former_life(self, params: FetchParams) -> bool:
        """Whether a follower has sent this before it started anew, and it came late (KIP-903).

        It acknowledges what that life had. The follower may have lost it since. Only the controller's word counts: if
        the epochs of fetches were believed, one wrong fetch could shut a follower out for ever.
        """
        epoch = params.replica_epoch
        if epoch < 0 or epoch >= self._replica_epochs.get(params.replica_id, -1):
            return False
        logger.info("refused a fetch of replica %d: it is of broker epoch %d", params.replica_id, epoch)
        return True

    def find(self, params: FetchParams, requested: FetchPartition) -> Partition | ErrorCode:
        """The partition if it may serve this fetcher, else an error (KIP-320: epochs are checked before leadership)."""
        if requested.topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = self._find(requested.topic, requested.index)
        if not isinstance(partition, Partition):
            if partition is ErrorCode.KAFKA_STORAGE_ERROR:
                is_known = params.version >= STORAGE_ERROR_VERSION
                return partition if is_known else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.UNKNOWN_TOPIC_ID if self._is_gone(requested) else partition
        if requested.topic_id != NO_TOPIC_ID and partition.topic_id not in (None, requested.topic_id):
            return ErrorCode.UNKNOWN_TOPIC_ID if self._is_gone(requested) else ErrorCode.INCONSISTENT_TOPIC_ID
        epoch = requested.current_leader_epoch
        if epoch >= 0 and epoch != partition.leader_epoch:
            return partition.epoch_error(epoch)
        if partition.is_leader:
            if params.replica_id >= 0 and params.replica_id not in partition.remote:
                return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif params.replica_id >= 0 or (
            params.replica_id == CONSUMER and (params.version < FOLLOWER_FETCH_VERSION or partition.is_suspended)
        ):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if params.version < ZSTD_VERSION and partition.log.config.compression_type == "zstd":
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return partition

    def _is_gone(self, requested: FetchPartition) -> bool:
        """Whether the topic was deleted since its id was resolved: in a session, or in a wait.

        Kafka answers UNKNOWN_TOPIC_ID only where it has just resolved the id. In a session it goes on with the name, so
        it says UNKNOWN_TOPIC_OR_PARTITION, or INCONSISTENT_TOPIC_ID when the topic was made again. Some clients ask for
        the new id only after UNKNOWN_TOPIC_ID.
        """
        topic_id = requested.topic_id
        return topic_id != NO_TOPIC_ID and self._metadata_cache.topic_name(topic_id) is None

    def _is_led(self, requested: FetchPartition) -> bool:
        partition = None if requested.topic is None else self._find(requested.topic, requested.index)
        return isinstance(partition, Partition) and partition.is_leader

    @staticmethod
    def upper_bound(params: FetchParams, partition: Partition) -> int:
        """The first offset that this fetcher must not see."""
        if params.replica_id >= 0 or params.replica_id == FUTURE_REPLICA:
            return partition.log.segments.end_offset
        if params.isolation_level == READ_COMMITTED:
            return partition.log.last_stable_offset
        return partition.log.high_watermark

    def _read_one(
        self,
        params: FetchParams,
        requested: FetchPartition,
        limit: int,
        at_least_one: bool,
        by_reference_from: int,
        acknowledges: bool,
    ) -> FetchResult:
        partition = self.find(params, requested)
        if not isinstance(partition, Partition):
            return self._refusal(requested, partition)
        log = partition.log
        offset = requested.fetch_offset
        log_end_offset = log.segments.end_offset
        if requested.last_fetched_epoch >= 0:
            divergence = diverging_epoch(partition, offset, requested.last_fetched_epoch)
            if isinstance(divergence, ErrorCode):
                return FetchResult(requested, divergence)
            if divergence is not None:
                result = FetchResult.of_log(requested, log)
                result.diverging_epoch = divergence
                return result
        if not log.log_start_offset <= offset <= log_end_offset:
            return FetchResult(requested, ErrorCode.OFFSET_OUT_OF_RANGE)
        if params.rack:
            preferred = self._preferred_read_replica(params, requested, partition)
            if preferred >= 0:
                result = FetchResult.of_log(requested, log)
                result.preferred_read_replica = preferred
                return result
        bound = self.upper_bound(params, partition)
        records: Buffer | FileRange = b""
        next_offset = offset
        if offset < bound and (limit > 0 or at_least_one):
            data = log.read(
                offset,
                min(requested.max_bytes, max(limit, 0)),
                upper_bound=bound,
                at_least_one=at_least_one,
                by_reference_from=by_reference_from,
            )
            if data.error is not ErrorCode.NONE:
                return FetchResult(requested, data.error)
            records, next_offset = data.file_range or data.records, data.next_offset
        if acknowledges:
            partition.follower_fetched(
                params.replica_id,
                offset,
                requested.log_start_offset,
                log_end_offset,
                self.clock.monotonic_ms(),
                params.replica_epoch,
            )
        result = FetchResult.of_log(requested, log)
        result.records, result.next_offset = records, next_offset
        if params.isolation_level == READ_COMMITTED and params.replica_id < 0:
            return self._with_aborted_transactions(requested, result, log)
        return result

    @staticmethod
    def _with_aborted_transactions(requested: FetchPartition, result: FetchResult, log: Log) -> FetchResult:
        offset, next_offset = requested.fetch_offset, result.next_offset
        try:
            aborted = log.segments.aborted_transactions(offset, next_offset) if next_offset > offset else []
        except (OSError, CorruptBatchError) as error:
            return FetchResult(requested, log.unreadable(error))
        result.aborted_transactions = aborted
        return result

    def _refusal(self, requested: FetchPartition, error: ErrorCode) -> FetchResult:
        result = FetchResult(requested, error)
        if requested.topic is not None and error in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            result.leader = self.leader_of(requested.topic, requested.index)
        return result

    def leader_of(self, topic: str, index: int) -> tuple[int, int] | None:
        """(leader id, leader epoch) as this broker knows it, for a client that asked the wrong broker (KIP-951)."""
        partition = self._find(topic, index)
        state = self._metadata_cache.partition(topic, index)
        if isinstance(partition, Partition) and (state is None or partition.leader_epoch >= state.leader_epoch):
            return partition.leader_id, partition.leader_epoch
        return None if state is None else (state.leader_id, state.leader_epoch)

    def _preferred_read_replica(self, params: FetchParams, requested: FetchPartition, partition: Partition) -> int:
        """The replica that this consumer should read from instead; -1: this one."""
        if (
            params.replica_id != CONSUMER
            or params.version < FOLLOWER_FETCH_VERSION
            or not partition.is_leader
            or not self._config.replica_selector_class
        ):
            return -1
        brokers = self._metadata_cache.brokers
        offset = requested.fetch_offset
        candidates = []
        leader = brokers.get(self._node_id)
        if leader is not None:
            candidates.append(ReplicaView(self._node_id, leader.rack, partition.log.log_end_offset))
        for replica_id, replica in partition.remote.items():
            broker = brokers.get(replica_id)
            if broker is None or replica_id not in partition.isr:
                continue
            if replica.log_start_offset <= offset <= replica.log_end_offset and (
                not params.listener or broker.endpoint(params.listener) is not None
            ):
                candidates.append(ReplicaView(replica_id, broker.rack, replica.log_end_offset))
        chosen = select_rack_aware(params.rack, self._node_id, candidates)
        return -1 if chosen == self._node_id else chosen


class ParkedFetch:
    """A fetch that waits for bytes or time. A wake looks only at the partition that moved; the end reads all again."""

    __slots__ = (
        "_available",
        "_enough_bytes",
        "_fetching",
        "_params",
        "_partitions",
        "_requested",
        "_timer",
        "_total",
        "pending",
    )

    def __init__(
        self,
        fetching: Fetching,
        params: FetchParams,
        requested: Sequence[FetchPartition],
        enough_bytes: int,
    ) -> None:
        self._fetching = fetching
        self._params = params
        self._requested = requested
        self._available: list[int] = []  # bytes of each watched partition that count
        self._enough_bytes = enough_bytes
        self._total = 0
        self.pending: Pending[list[FetchResult]] = Pending()
        self.pending.on_cancel = self._leave
        self._partitions: list[Partition] = []  # those that are watched
        self._timer: Timer = fetching.clock.call_later(params.max_wait_ms, self._time_is_up)
        fetching.parked_count += 1

    def watch_next(self, available_bytes: int) -> None:
        """Hear of the next one of the requested partitions, which has so many bytes that count now."""
        position = len(self._partitions)
        hosted = self._fetching.find(self._params, self._requested[position])
        assert isinstance(hosted, Partition), "an unreadable partition is answered at once"
        hosted.fetch_waiters[self] = position
        self._partitions.append(hosted)
        self._available.append(available_bytes)
        self._total += available_bytes

    def partition_moved(self, position: int, answers: dict[Any, SharedResults] | None) -> None:
        """Count the bytes available now. Enough bytes, or an error, end the wait.

        If an equal fetch was just answered, this one gets the same results without another look.
        """
        try:
            results = self._results_after(position, answers)
        except Exception as error:  # a bug. It ends this wait, because the next look would meet it again
            self._fail(error)
        else:
            if results is not None:
                self._end(results)

    def _results_after(
        self, position: int, answers: dict[Any, SharedResults] | None
    ) -> list[FetchResult] | SharedResults | None:
        """What ends the wait after a partition moved; None if nothing does."""
        if answers is None:
            return self._read() if self._count_available(position) else None
        asked = self._what_is_asked()
        shared = answers.get(asked)
        if shared is not None:
            return shared
        if not self._count_available(position):
            return None
        results = self._read()
        if all(result.may_be_shared for result in results):
            results = answers[asked] = SharedResults(results)
        return results

    def _what_is_asked(self) -> tuple[object, ...]:
        """Everything that the results depend on, except the state of the partitions."""
        params = self._params
        asked: list[object] = [
            params.replica_id,
            params.min_bytes,
            params.max_bytes,
            params.isolation_level,
            params.version,
            params.rack,
            params.listener,
        ]
        for requested in self._requested:
            asked += (
                requested.topic,
                requested.topic_id,
                requested.index,
                requested.fetch_offset,
                requested.max_bytes,
                requested.current_leader_epoch,
                requested.last_fetched_epoch,
            )
        return tuple(asked)

    def _count_available(self, position: int) -> bool:
        """Count the bytes available in a partition again. True: all are enough now, or the partition has an error."""
        requested = self._requested[position]
        partition = self._fetching.find(self._params, requested)
        if not isinstance(partition, Partition):
            return True
        log = partition.log
        offset = requested.fetch_offset
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return True
        if requested.last_fetched_epoch >= 0 and diverging_epoch(partition, offset, requested.last_fetched_epoch):
            return True
        bound = self._fetching.upper_bound(self._params, partition)
        left_bytes = bytes_between(partition, offset, bound) if bound > offset else 0
        if left_bytes == UNCOUNTED_BYTES:
            return True
        available = min(left_bytes, bytes_max(requested))
        self._total += available - self._available[position]
        self._available[position] = available
        return self._total >= self._enough_bytes

    def _read(self) -> list[FetchResult]:
        return self._fetching.read(self._params, self._requested, acknowledges=False)[0]

    def _time_is_up(self) -> None:
        try:
            results = self._read()
        except Exception as error:
            self._fail(error)
        else:
            self._end(results)

    def _leave(self) -> None:
        self._timer.cancel()
        self._fetching.parked_count -= 1
        for partition in self._partitions:
            partition.fetch_waiters.pop(self, None)

    def _fail(self, error: Exception) -> None:
        if not self.pending.done and not self.pending.cancelled:
            self._leave()
            self.pending.fail(error)

    def _end(self, results: list[FetchResult]) -> None:
        if not self.pending.done and not self.pending.cancelled:
            self._leave()
            self.pending.complete(results)


class LongParkedFetch(ParkedFetch):
    """A fetch of very many partitions that waits. At the end of the wait its owner reads them, in pieces."""

    __slots__ = ()

    def look(self, position: int) -> None:
        """Watch one more partition from now on, and count its bytes. It may have become unreadable meanwhile."""
        if isinstance(self._fetching.find(self._params, self._requested[position]), Partition):
            self.watch_next(0)
            self.partition_moved(position, None)
        else:
            self._end([])

    def _results_after(self, position: int, answers: dict[Any, SharedResults] | None) -> list[FetchResult] | None:
        return [] if self._count_available(position) else None

    def _read(self) -> list[FetchResult]:
        return []
