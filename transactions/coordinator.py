"""The transaction coordinator: checks each request, has it decided, and writes what was decided.

Transactional ids live in shards: one for each partition of `__transaction_state` that this broker leads (shard.py).
What a request does to an id is decided by pure functions (decisions.py); the value that they give is appended, replayed
when it is committed, and only then answered. A value that is prepared has its markers sent (markers.py), and is
completed when every partition has its marker. Methods return an answer or a `Pending` of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from barnabas.cluster.lease import LeaseView
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.groups.hashing import partition_for
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.coordinator_loading import LedPartition
from barnabas.replication.coordinator_shard import CoordinatorLog
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.transactions import decisions
from barnabas.transactions.decisions import NeedProducerId, Refuse, Repeat, Write
from barnabas.transactions.expiry import Expiry
from barnabas.transactions.markers import AskBroker, Ending, Markers
from barnabas.transactions.metadata import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Transaction
from barnabas.transactions.shard import TransactionLoader, TransactionShard
from barnabas.transactions.states import ONGOING, PREPARED

logger = logging.getLogger("barnabas.transactions")

T = TypeVar("T")

PRODUCER_ID_WAIT_MS = 1_000.0  # for a block of producer ids
COMPLETE_AGAIN_MS = 100.0  # after the last record of a transaction could not be written

_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class Given(NamedTuple):
    """The answer to InitProducerId and EndTxn: an error, or the id and epoch that the producer uses next."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class ProducerIdSource(Protocol):
    """Where fresh producer ids come from."""

    def next(self) -> int | None:
        """An id; None: none is ready."""

    def next_within(self, timeout_ms: float) -> Pending[int | None]:
        """The next id when there is one; None if there is none in time."""


class TransactionConfig(Protocol):
    """The settings of the coordinator. They are read each time, because they may change."""

    add_partitions_to_txn_retry_backoff_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_load_buffer_size: int
    transactional_id_expiration_ms: int


class TransactionCoordinator:
    """Owns the shards, and answers for the transactional ids in them."""

    def __init__(
        self,
        env: Env,
        config: TransactionConfig,
        log_of: Callable[[int], CoordinatorLog | ErrorCode],
        partition_count: Callable[[], int],
        metadata_cache: MetadataCache,
        lease: LeaseView,
        producer_ids: ProducerIdSource,
        ask_broker: AskBroker,
        transaction_version: Callable[[], int],
    ) -> None:
        self.env = env
        self.config = config
        self.shards: dict[int, TransactionShard] = {}
        self.is_active = False
        self.transaction_version = transaction_version
        self.markers = Markers(env.clock, metadata_cache, ask_broker, self._all_marked)
        self._log_of = log_of
        self._partition_count = partition_count
        self._lease = lease
        self._producer_ids = producer_ids
        self._loaders: dict[int, TransactionLoader] = {}
        self._epochs: dict[int, int] = {}  # highest leader epoch seen of each partition, also of those unloaded
        self._expiry = Expiry(self)

    # ---- life ----

    def start(self) -> None:
        """Answer requests from now on."""
        self.is_active = True
        self._expiry.start()

    def shutdown(self) -> None:
        """Stop answering. Clients are told to look for another coordinator."""
        self.is_active = False
        self._expiry.stop()
        for partition in list(self.shards):
            self._unload(partition)
        self.markers.stop()

    def on_leadership(self, became_leader: Iterable[LedPartition], became_follower: Iterable[LedPartition]) -> None:
        """Leaders changed: load the partitions that this broker leads now, unload the others."""
        for partition in became_follower:
            index, epoch = partition.index, partition.leader_epoch
            if partition.topic == TRANSACTIONS_TOPIC and epoch >= self._epochs.get(index, -1):
                self._epochs[index] = epoch
                self._unload(index)
        for partition in became_leader:
            if partition.topic == TRANSACTIONS_TOPIC:
                self._load(partition.index, partition.leader_epoch)

    def on_partitions_deleted(self, partitions: Iterable[tuple[str, int]]) -> None:
        """These partitions need no markers. A deleted partition of the topic itself begins with epoch 0 again."""
        gone = list(partitions)
        for topic, index in gone:
            if topic == TRANSACTIONS_TOPIC:
                self._unload(index)
                self._epochs.pop(index, None)
        self.markers.forget(gone)

    def _load(self, partition: int, leader_epoch: int) -> None:
        known = self._epochs.get(partition, -1)
        if leader_epoch < known or (leader_epoch == known and partition in self.shards):
            return
        log = self._log_of(partition)
        if isinstance(log, ErrorCode):
            logger.warning("transactions partition %d: not loaded: %s", partition, log.name)
            return
        self._unload(partition)
        self._epochs[partition] = leader_epoch
        shard = self.shards[partition] = TransactionShard(partition, leader_epoch, log, self.env)
        buffer_bytes = self.config.transaction_state_log_load_buffer_size
        self._loaders[partition] = TransactionLoader(
            shard, self.env.clock, self.env.turns, buffer_bytes, lambda: self._loaded(shard)
        )

    def _unload(self, partition: int) -> None:
        loader = self._loaders.pop(partition, None)
        if loader is not None:
            loader.cancel()
        shard = self.shards.pop(partition, None)
        if shard is not None:
            shard.close()

    def _loaded(self, shard: TransactionShard) -> None:
        """Serve it. Transactions that were being ended when it was written are ended now."""
        self._loaders.pop(shard.partition, None)
        shard.loading = False
        for entry in shard.entries.in_use():
            if entry.transaction.state in PREPARED:
                self.markers.end(shard, entry.transaction)

    # ---- the gate ----

    def shard_of(self, transactional_id: str) -> TransactionShard | ErrorCode:
        """The shard that owns an id, or the error for its client."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not self.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        count = self._partition_count()
        shard = self.shards.get(partition_for(transactional_id, count)) if count > 0 else None
        if shard is None or not self._lease.holds:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading else shard

    def owned_shards(self) -> list[TransactionShard]:
        """All shards that are loaded."""
        return [shard for shard in self.shards.values() if not shard.loading]

    # ---- requests ----

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, fresh: int | None = None
    ) -> Given | Pending[Given]:
        """InitProducerId of a transactional id. `expected`: the id and epoch that the producer has (KIP-360)."""
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return Given(shard)

        def again(producer_id: int) -> Given | Pending[Given]:
            return self.init_producer_id(transactional_id, timeout_ms, expected, producer_id)

        entry = shard.entries.get(transactional_id)
        now_ms = self.env.clock.now_ms()
        if entry is None:
            if fresh is None:
                return self._with_fresh_id(again)
            entry = decisions.begin(transactional_id, fresh, timeout_ms, now_ms)
            fresh = None
        found = decisions.init_producer_id(entry, timeout_ms, expected, self.transaction_version(), now_ms, fresh)
        if isinstance(found, NeedProducerId):
            return self._with_fresh_id(again)
        if isinstance(found, Write):
            shard.entries.add(entry)
        return self._carry_out(shard, found)

    def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,
        client_version: int,
        fresh: int | None = None,
        *,
        may_wait: bool = True,
    ) -> Given | Pending[Given]:
        """EndTxn. Answered when the decision is in the log; the markers follow.

        The end of the transaction before may still be under way. Then it is waited for: Kafka calls a producer fenced
        that aborts its next transaction so early.
        """
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return Given(shard)
        entry = shard.entries.get(transactional_id)
        raises_epochs = client_version >= decisions.EPOCH_BUMP_VERSION
        if may_wait and raises_epochs and entry and decisions.is_early(entry.transaction, producer_id, producer_epoch):
            return self._when_idle(
                shard,
                transactional_id,
                lambda: self.end_transaction(
                    transactional_id, producer_id, producer_epoch, is_commit, client_version, may_wait=False
                ),
            )
        found = decisions.end_transaction(
            entry,
            producer_id,
            producer_epoch,
            is_commit,
            client_version,
            self.env.clock.now_ms(),
            fresh,
        )
        if isinstance(found, NeedProducerId):
            return self._with_fresh_id(
                lambda fresh: self.end_transaction(
                    transactional_id, producer_id, producer_epoch, is_commit, client_version, fresh
                )
            )
        return self._carry_out(shard, found)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[tuple[str, int]],
        client_version: int,
        *,
        may_wait: bool = True,
    ) -> ErrorCode | Pending[ErrorCode]:
        """AddPartitionsToTxn, AddOffsetsToTxn: one error for all partitions.

        A client begins its next transaction at once, while the markers of the last one are on their way. Kafka tells it
        CONCURRENT_TRANSACTIONS, and it asks again after 20 ms. Here its request waits for the markers, for as long.
        """
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        found = decisions.add_partitions(
            shard.entries.get(transactional_id),
            producer_id,
            producer_epoch,
            partitions,
            client_version,
            self.env.clock.now_ms(),
        )
        if may_wait and isinstance(found, Refuse) and found.error is ErrorCode.CONCURRENT_TRANSACTIONS:
            return self._when_idle(
                shard,
                transactional_id,
                lambda: self.add_partitions(
                    transactional_id, producer_id, producer_epoch, partitions, client_version, may_wait=False
                ),
            )
        given = self._carry_out(shard, found)
        return given.map(lambda each: each.error) if isinstance(given, Pending) else given.error

    def verify_partition(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: tuple[str, int]
    ) -> ErrorCode:
        """AddPartitionsToTxn with VerifyOnly: NONE if the partition is in the open transaction (KIP-890)."""
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        return decisions.verify_partition(shard.entries.get(transactional_id), producer_id, producer_epoch, partition)

    def abort_if_late(self, shard: TransactionShard, transactional_id: str) -> None:
        """Abort a transaction that has been open for longer than its timeout."""
        entry = shard.entries.get(transactional_id)
        now_ms = self.env.clock.now_ms()
        if entry is None or shard.closed or not self._lease.holds or not decisions.is_timed_out(entry, now_ms):
            return
        held = entry.transaction
        logger.info("transaction of %s: open for longer than %d ms, aborted", transactional_id, held.timeout_ms)
        self._write(shard, decisions.abort_fenced(held, self.transaction_version(), now_ms), lambda error: None)

    def remove_if_idle(self, shard: TransactionShard, transactional_id: str) -> bool:
        """Remove an id that was not used for transactional.id.expiration.ms. Whether it is removed now."""
        entry = shard.entries.look(transactional_id)
        now_ms, expiration_ms = self.env.clock.now_ms(), self.config.transactional_id_expiration_ms
        if entry is None or shard.closed or not self._lease.holds:
            return False
        if not decisions.is_expired(entry, now_ms, expiration_ms):
            return False
        logger.debug("transactional id %s: not used for %d ms, removed", transactional_id, expiration_ms)
        shard.remove(transactional_id, lambda error: None)
        return True

    # ---- carrying out ----

    def _when_idle(
        self, shard: TransactionShard, transactional_id: str, again: Callable[[], T | Pending[T]]
    ) -> Pending[T]:
        """Ask again when the change of the id that is under way has ended."""
        idle: Pending[None] = Pending()
        longest_ms = self.config.add_partitions_to_txn_retry_backoff_ms
        shard.when_idle(transactional_id, longest_ms, lambda: idle.complete(None))
        return idle.and_then(lambda _: again())

    def _with_fresh_id(self, again: Callable[[int], Given | Pending[Given]]) -> Given | Pending[Given]:
        """Decide again with a fresh producer id. COORDINATOR_LOAD_IN_PROGRESS if there is none in time."""
        producer_id = self._producer_ids.next()
        if producer_id is not None:
            return again(producer_id)
        none = Given(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        coming = self._producer_ids.next_within(PRODUCER_ID_WAIT_MS)
        return coming.and_then(lambda producer_id: none if producer_id is None else again(producer_id))

    def _carry_out(self, shard: TransactionShard, found: Refuse | Repeat | Write) -> Given | Pending[Given]:
        if isinstance(found, Refuse):
            return Given(found.error)
        value = found.transaction
        next_id, next_epoch = decisions.next_identity(value)
        if isinstance(found, Repeat):
            return Given(ErrorCode.NONE, next_id, next_epoch)
        if value.client_version and not self.transaction_version() and not self._was_open(shard, value):
            return Given(ErrorCode.UNSUPPORTED_VERSION)  # records of version 0 have no room; Kafka answers the same
        answer: Pending[Given] = Pending()
        then = found.error

        def written(error: ErrorCode) -> None:
            error = error or then
            answer.complete(Given(error) if error else Given(ErrorCode.NONE, next_id, next_epoch))

        self._write(shard, value, written)
        return answer

    def _was_open(self, shard: TransactionShard, value: Transaction) -> bool:
        """Whether this ends a transaction of version 2 that was open when the cluster went back to version 0.

        It is ended as it was begun, so that nothing hangs. Kafka refuses it, and the id is then busy for good.
        """
        held = shard.entries[value.transactional_id].transaction
        return held.state is ONGOING and held.client_version > 0 and value.state in PREPARED

    def _write(self, shard: TransactionShard, value: Transaction, done: Callable[[ErrorCode], None]) -> None:
        """Write a value; if it is prepared, its markers follow. `done` gets the error for clients."""

        def written(error: ErrorCode) -> None:
            if not error and value.state in PREPARED and not shard.closed:
                self.markers.end(shard, value)
            done(_APPEND_ERRORS.get(error, error))

        shard.change(value, 1 if self.transaction_version() or value.client_version else 0, written)

    def _all_marked(self, ending: Ending) -> None:
        """Every partition has its marker: write that the transaction is complete, again if that fails."""
        shard = ending.shard
        entry = shard.entries.get(ending.value.transactional_id)
        if shard.closed or entry is None or entry.transaction is not ending.value:
            return
        entry.unmarked = ()

        def written(error: ErrorCode) -> None:
            if error and not shard.closed:
                self.env.clock.call_later(COMPLETE_AGAIN_MS, lambda: self._all_marked(ending))

        self._write(shard, decisions.completed(ending.value, self.env.clock.now_ms()), written)

    # ---- administration ----

    def describe(self, transactional_id: str) -> Transaction | ErrorCode:
        """What DescribeTransactions tells of an id. A prepared transaction has the partitions that lack a marker."""
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        entry = shard.entries.look(transactional_id)
        if entry is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        held = entry.transaction
        return held._replace(partitions=frozenset(entry.unmarked)) if held.state in PREPARED else held
