"""Checks what brokers know of transactions: coordinators, open transactions, indexes, offsets of copiers' groups.

A transaction is open in a log only while its coordinator knows that the partition is in it. In calm it ends within its
time, and what is decided has its markers soon. A loaded coordinator has what its log says, and no more. What replicas
know of producers and of aborted transactions is a function of their log, so it is the same on all of them.
"""

from collections.abc import Sequence
from typing import Any

from barnabas.broker.broker import Broker
from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.coordinators.transactions.metadata import Transaction
from barnabas.coordinators.transactions.records import encode_key, encode_value
from barnabas.coordinators.transactions.shard import TransactionShard
from barnabas.coordinators.transactions.states import IDLE, ONGOING, PREPARED
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL, TRANSACTIONAL
from barnabas.protocol.records import version_of
from barnabas.protocol.transaction_marker import marker_of
from barnabas.storage.log import Log

from simulator.host import Life
from simulator.ledger import TopicPartition
from simulator.transaction_book import TransactionBook
from simulator.violation import Violation

CALM_LOOKS_EVERY_MS = 1_000.0
TOLD_WITHIN_MS = 10_000.0  # calm after which every broker knows who leads what, and has loaded it
MARKED_WITHIN_MS = 15_000.0  # calm after which what is decided has its markers, and is complete
READ_BYTES = 1 << 20


class TransactionInspector:
    """Its methods raise Violation. `ends_within_ms`: of an open transaction; infinite if clocks are set meanwhile."""

    def __init__(self, book: TransactionBook, partitions: int, ends_within_ms: float) -> None:
        self.reloads = 0
        self._book = book
        self._partitions = partitions  # of __transaction_state
        self._ends_within_ms = ends_within_ms
        self._offsets: dict[tuple[int, int, str], tuple[object, list[tuple[TopicPartition, int]]]] = {}
        self._checked: dict[TransactionShard, None] = {}  # shards that are compared with their log
        self._since_ms: dict[tuple[Any, ...], float] = {}  # when something was first seen in this calm
        self._next_look_ms = 0.0

    def look(self, lives: Sequence[Life], now_ms: float, calm_ms: float) -> None:
        """Look at brokers that may have changed."""
        for life in lives:
            if life.touched and life.serving:
                self._look_at_offsets(life.broker)
                self._look_at_loaded(life.broker)
        if calm_ms < TOLD_WITHIN_MS:
            self._since_ms.clear()
        elif now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + CALM_LOOKS_EVERY_MS
            self._look_in_calm(lives, now_ms)

    def _look_at_offsets(self, broker: Broker) -> None:
        """The table of committed offsets has only offsets of transactions that may be committed."""
        for shard in broker.group_coordinator.loaded_shards():
            for group_id in self._book.outputs:
                positions = shard.offsets.positions(group_id)
                now = [((topic, index), offset) for topic, rows in positions for index, offset, _ in rows]
                place = (broker.node_id, shard.partition, group_id)
                if self._offsets.get(place) != (shard, now):
                    self._offsets[place] = (shard, now)
                    for key, offset in now:
                        self._book.look_at_offset(group_id, key, offset)

    # -- coordinators

    def _look_at_loaded(self, broker: Broker) -> None:
        for shard in broker.transactions.coordinator.loaded_shards():
            if shard not in self._checked and not shard.closed:
                led = broker.replica_manager.partitions.get((TRANSACTIONS_TOPIC, shard.partition))
                is_quiet = all(entry.pending is None for entry in shard.entries.in_use())
                if led is not None and led.is_leader and is_quiet and led.log.failed is None:
                    self._checked[shard] = None
                    self.check_shard(shard, led.log)
                    self.reloads += 1

    def check_shard(self, shard: TransactionShard, log: Log) -> None:
        """The coordinator has what its log says: of each transactional id the last record."""
        values: dict[bytes, bytes] = {}
        offset = log.log_start_offset
        while offset < log.high_watermark:
            data = log.read(offset, READ_BYTES, upper_bound=log.high_watermark, at_least_one=True)
            if data.error or not len(data.records):
                return  # the weather does not let it be read now
            for header, batch in record_batch.batches(data.records):
                for record in record_batch.records(batch):
                    assert record.key is not None
                    if record.value is None:
                        values.pop(bytes(record.key), None)
                    else:
                        values[bytes(record.key)] = bytes(record.value)
                offset = header.next_offset
        known = {encode_key(held.transactional_id): held for held in _all_of(shard)}
        for key in sorted({**known, **values}):
            value, held = values.get(key), known.get(key)
            if value is None or held is None or encode_value(held, version_of(value)) != value:
                detail = f"{log.name} of epoch {shard.leader_epoch}, {key!r}: {held}, the log says {value!r}"
                raise Violation("a coordinator knows what its log says", detail)

    # -- calm

    def _look_in_calm(self, lives: Sequence[Life], now_ms: float) -> None:
        coordinators = self._transactions(lives)
        if coordinators is None:
            return
        present: dict[tuple[Any, ...], None] = {}
        led = {
            (partition.topic, partition.index)
            for life in lives
            for partition in life.broker.replica_manager.partitions.values()
            if partition.is_leader
        }
        for held in coordinators.values():
            if not held.partitions <= led:
                continue  # one of them is offline: an operator has left out its directory
            limit_ms = MARKED_WITHIN_MS if held.state in PREPARED else self._ends_within_ms
            if held.state in PREPARED or held.state is ONGOING:
                key = (held.transactional_id, held.producer_id, held.producer_epoch, held.state, held.start_ms)
                present[key] = None
                if now_ms - self._since_ms.setdefault(key, now_ms) > limit_ms:
                    what = "what is decided is soon marked" if held.state in PREPARED else "a transaction ends in time"
                    raise Violation(what, f"{held} for {now_ms - self._since_ms[key]:.0f} ms of calm")
        self._since_ms = {key: since_ms for key, since_ms in self._since_ms.items() if key in present}
        for life in lives:
            for partition in life.broker.replica_manager.partitions.values():
                if partition.is_leader and partition.log.producers.has_open_transactions:
                    self._look_at_open(partition.log, (partition.topic, partition.index), coordinators)

    def _transactions(self, lives: Sequence[Life]) -> dict[int, Transaction] | None:
        """By producer id, what the coordinators know; None while not all of them have loaded."""
        shards = [shard for life in lives for shard in life.broker.transactions.coordinator.loaded_shards()]
        if len(shards) != self._partitions:
            return None
        return {held.producer_id: held for shard in shards for held in _all_of(shard)}

    @staticmethod
    def _look_at_open(log: Log, key: TopicPartition, coordinators: dict[int, Transaction]) -> None:
        """What is open in a leader's log will get a marker: its coordinator knows the partition."""
        for producer_id, entry in log.producers.entries.items():
            first = entry.current_transaction_first_offset
            if first >= 0:
                held = coordinators.get(producer_id)
                if held is None or held.state in IDLE or key not in held.partitions:
                    detail = f"{key}: producer {producer_id}, epoch {entry.producer_epoch}, from {first} on; {held}"
                    raise Violation("no transaction hangs", detail)

    # -- the end

    def look_at_the_end(self, lives: Sequence[Life], keys: Sequence[TopicPartition]) -> None:
        """Nobody has written for longer than a transaction may last: everything is decided, and equal everywhere."""
        coordinators = self._transactions(lives)
        if coordinators is None:
            raise Violation("coordinators load", "not all partitions of __transaction_state are loaded")
        for held in coordinators.values():
            if held.state not in IDLE:
                raise Violation("everything is decided in the end", f"{held}")
        for life in lives:
            for shard in life.broker.transactions.coordinator.loaded_shards():
                log = life.broker.log_manager.get(TRANSACTIONS_TOPIC, shard.partition)
                assert log is not None
                self.check_shard(shard, log)
        first: dict[TopicPartition, object] = {}
        for life in lives:
            for group_shard in life.broker.group_coordinator.loaded_shards():
                if group_shard.offsets.pending:
                    detail = f"pending offsets in partition {group_shard.partition}: {group_shard.offsets.pending}"
                    raise Violation("everything is decided in the end", detail)
            for key in keys:
                log = life.broker.log_manager.get(*key)
                if log is None:
                    continue
                where = f"{key[0]}-{key[1]} on {life.broker.node_id}"
                if log.last_stable_offset != log.high_watermark:
                    detail = f"{where}: last stable offset {log.last_stable_offset} of {log.high_watermark}"
                    raise Violation("everything is decided in the end", detail)
                if key[0] != OFFSETS_TOPIC:
                    self._check_index(log, where)
                producers = _producers(log)
                if first.setdefault(key, producers) != producers:
                    raise Violation("replicas know the same producers", f"{where}: {producers}, not {first[key]}")

    @staticmethod
    def _check_index(log: Log, where: str) -> None:
        """The index of aborted transactions says what the batches say."""
        begun: dict[int, int] = {}
        told: list[tuple[int, int, int]] = []
        for segment, batch in log.segments.batches_from(log.log_start_offset):
            if batch.attributes & CONTROL:
                marker = marker_of(segment.batch_bytes(batch))
                first = begun.pop(batch.producer_id, None)
                if first is not None and marker is not None and not marker.commit:
                    told.append((batch.producer_id, first, batch.last_offset))
            elif batch.attributes & TRANSACTIONAL:
                begun.setdefault(batch.producer_id, batch.base_offset)
        found = [
            (row.producer_id, row.first_offset, row.last_offset)
            for row in log.segments.aborted_between(log.log_start_offset, log.log_end_offset)
            if row.first_offset >= log.log_start_offset
        ]
        if found != told:
            detail = f"{where}: {[row for row in told if row not in found]} missing, of {len(told)}; {len(found)} found"
            raise Violation("the index has every aborted transaction", detail)


def _all_of(shard: TransactionShard) -> list[Transaction]:
    """What a coordinator knows of each id, without a change of what it has in use."""
    found = [shard.entries.look(transactional_id) for transactional_id in shard.entries.ids()]
    return [entry.transaction for entry in found if entry is not None]


def _producers(log: Log) -> dict[int, tuple[int, int, int, int]]:
    """What a log knows of producers, as far as it survives a restart."""
    return {
        producer_id: (
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.last_sequence,
            entry.current_transaction_first_offset,
        )
        for producer_id, entry in sorted(log.producers.entries.items())
    }
