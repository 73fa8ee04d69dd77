"""One partition of `__transaction_state` in the coordinator's memory, and how it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable

from barnabas.coordinators.loading import CoordinatorLoader
from barnabas.coordinators.shard import CoordinatorLog, CoordinatorShard
from barnabas.coordinators.transactions.decisions import Entry, begin_write, is_busy
from barnabas.coordinators.transactions.entries import Entries
from barnabas.coordinators.transactions.metadata import NO_PRODUCER_EPOCH, Transaction
from barnabas.coordinators.transactions.records import PLAIN_KEY, TransactionRecord, decode, decode_key, is_plain
from barnabas.protocol.batch_layout import ATTRIBUTES_AT, HEADER, HEADER_BYTES, MAGIC, PREFIX_BYTES
from barnabas.protocol.batch_records import short_records
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.errors import ErrorCode, ProtocolError
from barnabas.protocol.record_batch import BatchHeader, records_in
from barnabas.replication.partition import ALL_IN_SYNC
from barnabas.runtime.ports import Env, Timer
from barnabas.runtime.turns import Pieces

NO_COMPRESSION = 0  # as in Kafka: this topic is not compressed
BATCHES_PER_PIECE = 20
ANSWER_WITHIN_MS = 10_000.0  # the client asks again then. It would give up after 30 s


class TransactionShard(CoordinatorShard[TransactionRecord]):
    """The transactional ids of one partition, for the one leader epoch in which this broker owns it."""

    __slots__ = ("_waiting", "entries")
    kind = "transactions"
    logger = logging.getLogger("barnabas.transactions")

    def __init__(self, partition: int, leader_epoch: int, log: CoordinatorLog, env: Env) -> None:
        # The client is told to ask again. The write itself is patient: the next change of the id waits for it.
        super().__init__(
            partition,
            leader_epoch,
            log,
            env,
            acks=ALL_IN_SYNC,
            codec=NO_COMPRESSION,
            write_timeout_ms=ANSWER_WITHIN_MS,
        )
        self.entries = Entries()
        self._waiting: dict[str, dict[Timer, Callable[[], None]]] = {}  # by id: what waits for the end of its change

    def replay(self, records: TransactionRecord, record_offset: int) -> None:
        """Take over a committed value. Only this method changes values and removes entries that have a record."""
        if records.transaction is None:
            self.entries.remove(records.transactional_id)
            return
        entry = self.entries.get(records.transactional_id)
        if entry is None:
            self.entries.add(Entry(records.transaction))
        else:
            entry.transaction = records.transaction

    def change(
        self,
        value: Transaction,
        value_version: int,
        done: Callable[[ErrorCode], None],
        late: Callable[[], None] | None = None,
    ) -> None:
        """Write a value. Until its outcome is known, no other change of the id can begin. `late`: that takes long."""
        entry = self.entries[value.transactional_id]
        begin_write(entry, value)
        self._write(entry, TransactionRecord(value.transactional_id, value, value_version), done, late)

    def remove(self, transactional_id: str, done: Callable[[ErrorCode], None]) -> None:
        """Write the tombstone of an idle id."""
        entry = self.entries[transactional_id]
        begin_write(entry, None)
        self._write(entry, TransactionRecord(transactional_id, None), done)

    def _write(
        self,
        entry: Entry,
        record: TransactionRecord,
        done: Callable[[ErrorCode], None],
        late: Callable[[], None] | None = None,
    ) -> None:
        def ended(error: ErrorCode) -> None:
            entry.pending = None
            if entry.transaction.producer_epoch == NO_PRODUCER_EPOCH and error:
                self.entries.remove(record.transactional_id)  # it has no record: nobody was told of it
            done(error)
            if self._waiting and not is_busy(entry):
                self._go_on(record.transactional_id)
            if not error and record.value is not None and not self.closed:
                self._set_aside(entry, record.value)

        self.write(record.transactional_id, record, ended, patient=True, late=late)

    def _set_aside(self, entry: Entry, value: bytes) -> None:
        """Keep an idle id as its record has it, if its record says all that is known."""
        held = entry.transaction
        if entry.pending is None and held.last_producer_epoch == NO_PRODUCER_EPOCH and is_plain(value):
            self.entries.store(held.transactional_id, value)

    def when_idle(self, transactional_id: str, timeout_ms: float, action: Callable[[], None]) -> None:
        """Run `action` once: when the id's change that is under way has ended, with its markers, or after so long."""
        waiting = self._waiting.setdefault(transactional_id, {})

        def late() -> None:
            del waiting[timer]
            if not waiting:
                del self._waiting[transactional_id]
            action()

        timer = self._clock.call_later(timeout_ms, late)
        waiting[timer] = action

    def _go_on(self, transactional_id: str) -> None:
        for timer, action in self._waiting.pop(transactional_id, {}).items():
            timer.cancel()
            action()

    def _drop(self) -> None:
        for transactional_id in list(self._waiting):
            self._go_on(transactional_id)
        self.entries = Entries()


class TransactionLoader(CoordinatorLoader[TransactionShard]):
    """One load of one shard. A record that cannot be decoded is logged and skipped."""

    keys = "transactional ids"
    advice = "end the transactions that stay open (barnabas transactions find-hanging)"

    def _key_count(self) -> int:
        return len(self._shard.entries)

    def _replay_batches(self, data: memoryview, before: int) -> Pieces[None]:
        """Those of the usual form without objects for batches and records: a quarter of a million a second."""
        content = bytes(data)
        position, end, seen = 0, len(content), 0
        while end - position >= HEADER_BYTES:
            offset, length, _, magic, crc, attributes, last_delta, *_, count = HEADER.unpack_from(content, position)
            stop = position + PREFIX_BYTES + length
            if magic != MAGIC or length < HEADER_BYTES - PREFIX_BYTES or stop > end:
                break
            found = None
            if (
                not attributes
                and offset >= before
                and count == last_delta + 1
                and crc32c(data[position + ATTRIBUTES_AT : stop]) == crc
            ):
                found = short_records(content, position + HEADER_BYTES, stop, count)
            if found is None:
                yield from super()._replay_batches(data[position:stop], before)
            else:
                for key, value in found:
                    self._replay(key, value, offset)
                    offset += 1
                self._record_count += count
                self._position = offset
            position = stop
            seen += 1
            if not seen % BATCHES_PER_PIECE:
                yield
        if position < end:  # it says what is wrong
            yield from super()._replay_batches(data[position:], before)

    def _replay_records(self, records: bytes, header: BatchHeader, before: int) -> Pieces[None]:
        for record in records_in(records, header):
            yield
            if record.offset >= before and not header.is_control:
                self._record_count += 1
                self._replay(record.key, record.value, record.offset)

    def _replay(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        shard = self._shard
        try:
            if key is None:
                raise ValueError("a record without a key")
            if value is not None and is_plain(value) and key[:2] == PLAIN_KEY:
                shard.entries.store(decode_key(key), value)
                return
            found = decode(key, value)
        except (ProtocolError, ValueError) as error:
            text = "transactions partition %d: record at %d is ignored: %s"
            shard.logger.warning(text, shard.partition, offset, error)
            return
        if found is not None:
            shard.replay(found, offset)

    def _restore(self) -> Pieces[None]:
        yield from ()
