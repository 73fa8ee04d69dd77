"""The transaction coordinator: checks each request, has it decided, and writes what was decided.

Transactional ids live in shards: one for each partition of `__transaction_state` that this broker leads (shard.py).
What a request does to an id is decided by pure functions (decisions.py); the value that they give is appended, replayed
when it is committed, and only then answered. A value that is prepared has its markers sent (markers.py), and is
completed when every partition has its marker. Methods return an answer or a `Pending` of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from barnabas.cluster.lease import LeaseView
from barnabas.cluster.metadata_cache import NO_TOPIC_ID, MetadataCache
from barnabas.cluster.producer_ids import ProducerIds
from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import transaction_error
from barnabas.coordinators.coordinator import Coordinator
from barnabas.coordinators.shard import CoordinatorLog
from barnabas.coordinators.transactions import decisions
from barnabas.coordinators.transactions.decisions import NeedProducerId, Refuse, Repeat, Write
from barnabas.coordinators.transactions.expiry import Expiry
from barnabas.coordinators.transactions.markers import AskBroker, Ending, Markers
from barnabas.coordinators.transactions.metadata import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Transaction
from barnabas.coordinators.transactions.shard import TransactionLoader, TransactionShard
from barnabas.coordinators.transactions.states import ONGOING, PREPARED
from barnabas.coordinators.transactions.topic_ages import TopicAges
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.transactions")

T = TypeVar("T")

PRODUCER_ID_WAIT_MS = 1_000.0  # for a block of producer ids
COMPLETE_AGAIN_MS = 100.0  # after the last record of a transaction could not be written


class ProducerIdAndEpoch(NamedTuple):
    """The answer to InitProducerId and EndTxn: an error, or the id and epoch that the producer uses next."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


Outcome = ProducerIdAndEpoch | Pending[ProducerIdAndEpoch]


class TransactionCoordinator(Coordinator[TransactionShard]):
    """Answers for the transactional ids whose partitions of `__transaction_state` this broker leads."""

    topic = TRANSACTIONS_TOPIC
    kind = "transactions"
    empty_key_error = ErrorCode.INVALID_REQUEST
    logger = logger

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        log_of: Callable[[int], CoordinatorLog | ErrorCode],
        metadata_cache: MetadataCache,
        ages: TopicAges,
        lease: LeaseView,
        producer_ids: ProducerIds,
        ask_broker: AskBroker,
        transaction_version: Callable[[], int],
    ) -> None:
        super().__init__(log_of, metadata_cache, lease)
        self.env = env
        self.config = config
        self.transaction_version = transaction_version
        self.markers = Markers(env.clock, metadata_cache, ages, ask_broker, self._all_marked)
        self._metadata_cache = metadata_cache
        self._producer_ids = producer_ids
        self._expiry = Expiry(self)

    # ---- life ----

    def start(self) -> None:
        """Answer requests from now on."""
        super().start()
        self._expiry.start()

    def shutdown(self) -> None:
        """Stop answering. Clients are told to look for another coordinator."""
        self._expiry.stop()
        super().shutdown()
        self.markers.stop()

    def on_partitions_deleted(self, partitions: Iterable[tuple[str, int]]) -> None:
        """These partitions need no markers. Those of the topic itself are unloaded."""
        gone = list(partitions)
        super().on_partitions_deleted(gone)
        self.markers.forget(gone)

    def _open(self, partition: int, leader_epoch: int, log: CoordinatorLog) -> TransactionShard:
        return TransactionShard(partition, leader_epoch, log, self.env)

    def _begin_loading(self, shard: TransactionShard, loaded: Callable[[], None]) -> TransactionLoader:
        buffer_bytes = self.config.transaction_state_log_load_buffer_size
        return TransactionLoader(shard, self.env.clock, self.env.turns, buffer_bytes, loaded)

    def _loaded(self, shard: TransactionShard) -> None:
        """Transactions that were being ended when it was written are ended now."""
        for entry in shard.entries.in_use():
            if entry.transaction.state in PREPARED:
                self.markers.end(shard, entry.transaction)

    # ---- requests ----

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, fresh: int | None = None
    ) -> Outcome:
        """InitProducerId of a transactional id. `expected`: the id and epoch that the producer has (KIP-360)."""
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return ProducerIdAndEpoch(shard)

        def again(producer_id: int) -> Outcome:
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
    ) -> Outcome:
        """EndTxn. Answered when the decision is in the log; the markers follow.

        The end of the transaction before may still be under way. Then it is waited for: Kafka calls a producer fenced
        that aborts its next transaction so early.
        """
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return ProducerIdAndEpoch(shard)
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
        topic_ids = self._topic_ids(partitions)

        def added(given: ProducerIdAndEpoch) -> ErrorCode:
            entry = None if given.error else shard.entries.get(transactional_id)
            if entry is not None and entry.transaction.state is ONGOING:
                entry.topic_ids.update(topic_ids)
            return given.error

        given = self._carry_out(shard, found)
        return given.map(added) if isinstance(given, Pending) else added(given)

    def _topic_ids(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
        """The topics that these partitions belong to now. One without an id is known by its name alone."""
        ids = {partition: self._metadata_cache.topic_id(partition[0]) for partition in partitions}
        return {partition: topic_id for partition, topic_id in ids.items() if topic_id != NO_TOPIC_ID}

    def verify_partition(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: tuple[str, int]
    ) -> ErrorCode:
        """AddPartitionsToTxn with VerifyOnly: NONE if the partition is in the open transaction (KIP-890).

        If its topic was made again, the producer goes on in the new one, as in Kafka: that is where the marker goes.
        """
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        entry = shard.entries.get(transactional_id)
        error = decisions.verify_partition(entry, producer_id, producer_epoch, partition)
        if entry is not None and not error:
            entry.topic_ids.update(self._topic_ids([partition]))
        return error

    def abort_if_late(self, shard: TransactionShard, transactional_id: str) -> None:
        """Abort a transaction that has been open for longer than its timeout."""
        entry = shard.entries.get(transactional_id)
        now_ms = self.env.clock.now_ms()
        if entry is None or shard.closed or not self.lease.holds or not decisions.is_timed_out(entry, now_ms):
            return
        held = entry.transaction
        logger.info("transaction of %s: open for longer than %d ms, aborted", transactional_id, held.timeout_ms)
        self._write(shard, decisions.abort_fenced(held, self.transaction_version(), now_ms), lambda error: None)

    def remove_if_idle(self, shard: TransactionShard, transactional_id: str) -> bool:
        """Remove an id that was not used for transactional.id.expiration.ms. Whether it is removed now."""
        entry = shard.entries.look(transactional_id)
        now_ms, expiration_ms = self.env.clock.now_ms(), self.config.transactional_id_expiration_ms
        if entry is None or shard.closed or not self.lease.holds:
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

    def _with_fresh_id(self, again: Callable[[int], Outcome]) -> Outcome:
        """Decide again with a fresh producer id. COORDINATOR_LOAD_IN_PROGRESS if there is none in time."""
        producer_id = self._producer_ids.next()
        if producer_id is not None:
            return again(producer_id)
        none = ProducerIdAndEpoch(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        coming = self._producer_ids.next_within(PRODUCER_ID_WAIT_MS)
        return coming.and_then(lambda producer_id: none if producer_id is None else again(producer_id))

    def _carry_out(self, shard: TransactionShard, found: Refuse | Repeat | Write) -> Outcome:
        if isinstance(found, Refuse):
            return ProducerIdAndEpoch(found.error)
        value = found.transaction
        next_id, next_epoch = decisions.next_identity(value)
        if isinstance(found, Repeat):
            return ProducerIdAndEpoch(ErrorCode.NONE, next_id, next_epoch)
        if value.client_version and not self.transaction_version() and not self._was_open(shard, value):
            # Records of version 0 have no room; Kafka answers the same.
            return ProducerIdAndEpoch(ErrorCode.UNSUPPORTED_VERSION)
        answer: Pending[ProducerIdAndEpoch] = Pending()
        then = found.error

        def written(error: ErrorCode) -> None:
            error = error or then
            if not answer.done:
                given = ProducerIdAndEpoch(ErrorCode.NONE, next_id, next_epoch)
                answer.complete(ProducerIdAndEpoch(error) if error else given)

        # The outcome is not known, so the id stays busy: the client hears CONCURRENT_TRANSACTIONS until it is.
        not_known = ProducerIdAndEpoch(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._write(shard, value, written, lambda: answer.complete(not_known))
        return answer

    def _was_open(self, shard: TransactionShard, value: Transaction) -> bool:
        """Whether this ends a transaction of version 2 that was open when the cluster went back to version 0.

        It is ended as it was begun, so that nothing hangs. Kafka refuses it, and the id is then busy for good.
        """
        held = shard.entries[value.transactional_id].transaction
        return held.state is ONGOING and held.client_version > 0 and value.state in PREPARED

    def _write(
        self,
        shard: TransactionShard,
        value: Transaction,
        done: Callable[[ErrorCode], None],
        late: Callable[[], None] | None = None,
    ) -> None:
        """Write a value; if it is prepared, its markers follow. `done` gets the error for clients. `late`: it takes
        long, because replicas are missing, say."""

        def written(error: ErrorCode) -> None:
            if not error and value.state in PREPARED and not shard.closed:
                self.markers.end(shard, value)
            done(transaction_error(error))

        shard.change(value, 1 if value.client_version or self.transaction_version() else 0, written, late)

    def _all_marked(self, ending: Ending) -> None:
        """Every partition has its marker: write that the transaction is complete, again if that fails."""
        shard = ending.shard
        entry = shard.entries.get(ending.value.transactional_id)
        if shard.closed or entry is None or entry.transaction is not ending.value:
            return
        entry.unmarked = ()
        entry.topic_ids = {}

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
