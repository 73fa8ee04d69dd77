"""Finds what the offset journal lacks: where its last record ends, and what `__consumer_offsets` has behind that."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from barnabas.coordinators.shard import CoordinatorLog
from barnabas.offsets import journal as form
from barnabas.offsets.journal import Cause, Row
from barnabas.offsets.records import OFFSET_KEY_VERSIONS, OffsetRemovals, decode_change, key_version
from barnabas.offsets.table import OffsetTable
from barnabas.protocol.errors import ProtocolError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.record_batch import Record, batches
from barnabas.protocol.record_batch import records as records_of
from barnabas.protocol.transaction_marker import CONTROL_COMMIT
from barnabas.runtime.ports import Buffer

logger = logging.getLogger("barnabas.offsets")

READ_BYTES = 64 * 1024
BATCH_BYTES_MAX = 256 * 1024 * 1024


Found = tuple[str, Cause, list[Row]]  # group, cause and rows of a record of the journal


class End(NamedTuple):
    """What batches at the end of the journal say."""

    offset: int  # of the first of them, in the journal
    end_position: int | None  # where their changes end in the log of offsets; None: no record can be understood


def end_of(data: Buffer) -> End | None:
    """Understand the last batches of the journal; None: there are none.

    Another client may write to the journal, too (as `__admin_client`). Records that cannot be understood are passed
    over.
    """
    offset = end_position = None
    for header, batch in batches(data):
        if offset is None:
            offset = header.base_offset
        try:
            for record in records_of(batch, max_bytes=BATCH_BYTES_MAX):
                with suppress(ValueError):
                    end_position = form.decode(record.key, record.value).end_position
        except ProtocolError as error:
            logger.warning("a batch of the journal cannot be read: %s", error)
    return None if offset is None else End(offset, end_position)


class Recovery:
    """Reads the changes between two offsets of the log of offsets.

    A marker changes what its transaction has written before: at most `longest_transaction` records before it.
    """

    def __init__(
        self,
        log: CoordinatorLog,
        begin: int,
        end: int,
        topic_id_of: Callable[[str], bytes],
        longest_transaction: int = 0,
    ) -> None:
        self.position = max(log.log_start_offset, begin - longest_transaction)
        self._begin = begin
        self.time_ms = 0  # when the last change was decided, as far as it is known
        self._log = log
        self._end = end
        self._topic_id_of = topic_id_of
        self._table = OffsetTable()  # of these changes only

    def changes(self) -> Iterator[tuple[str, int, Cause, list[Row]]]:
        """Group, position, cause and rows of each record. Compaction may have taken those that later ones replace."""
        while self.position < self._end:
            data = self._log.read(self.position, READ_BYTES)
            if not len(data):
                return
            before = self.position
            for header, batch in batches(data):
                for record in records_of(batch, max_bytes=BATCH_BYTES_MAX):
                    if before <= record.offset < self._end:
                        self.time_ms = record.timestamp
                        if header.is_control:
                            found = self._end_transaction(header.producer_id, record)
                        else:
                            found = self._change(record, header.producer_id if header.is_transactional else -1)
                        for group_id, cause, rows in found:
                            if record.offset >= self._begin:
                                yield group_id, record.offset, cause, rows
                self.position = header.next_offset
            if self.position <= before:
                return

    def _change(self, record: Record, producer_id: int) -> list[Found]:
        key = record.key
        if key is None or key_version(key) not in OFFSET_KEY_VERSIONS:
            return []
        found: list[Found] = []
        change = decode_change(key, record.value)
        if producer_id < 0:
            known = self._table.of_group(change.group_id)
            if isinstance(change, OffsetRemovals):
                rows = form.rows_of_removal(known, change.partitions, self._topic_id_of, are_known=False)
            else:
                rows = form.rows_of_commit(known, change.offsets, self._topic_id_of, are_known=False)
            found.append((change.group_id, Cause.RECOVERED, rows))
        self._table.replay(change, record.offset, producer_id)
        return found

    def _end_transaction(self, producer_id: int, record: Record) -> list[Found]:
        key = record.key or b""
        found: list[Found] = []
        committed = len(key) >= 4 and int.from_bytes(key[2:4], "big") == CONTROL_COMMIT
        if committed:
            for group_id, offsets in self._table.pending.get(producer_id, {}).items():
                known = self._table.of_group(group_id)
                newer = self._table.newer_than_committed(group_id, offsets)
                rows = form.rows_of_commit(known, newer, self._topic_id_of, are_known=False)
                if rows:
                    found.append((group_id, Cause.TRANSACTION, rows))
        self._table.replay_end_transaction(producer_id, committed)
        return found
