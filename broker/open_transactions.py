"""Ends the transactions that are open in adopted logs, because nobody else can end them.

In Kafka the transaction coordinator ends them. Here there is none, and read_committed consumers would wait for ever
at the first record of the transaction. If Kafka's coordinator had decided to commit (`__transaction_state` says so)
and this partition does not have its marker yet, the marker is a commit. All other transactions are aborted as Kafka
aborts one whose time is up: in the next epoch of the producer, so the producer that began it cannot go on with it.
"""

import logging
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from barnabas.protocol import record_batch
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.record_batch import CONTROL_ABORT, CONTROL_COMMIT
from barnabas.storage.log import Log
from barnabas.storage.producer_state import ProducerEntry
from barnabas.storage.validation import AppendOrigin

logger = logging.getLogger("barnabas.broker")

TRANSACTION_STATE_TOPIC = "__transaction_state"
_STATE = Struct(">hqhib")  # version, producer id, its epoch, time-out, state: the same in versions 0 and 1
_PREPARE_COMMIT = 2
_EPOCH_MAX = 2**15 - 1


class _Decided(NamedTuple):
    """What Kafka's coordinator last wrote for a transactional id."""

    producer_id: int
    producer_epoch: int
    state: int


def end_open_transactions(logs: Sequence[Log], now_ms: int) -> None:
    """Append a marker for each open transaction of these logs, and log it."""
    with_open = [log for log in logs if log.producers.has_open_transactions]
    if not with_open:
        return
    committed = _decided_to_commit(log for log in logs if log.topic == TRANSACTION_STATE_TOPIC)
    for log in with_open:
        open_entries = [
            entry for entry in log.producers.entries.values() if entry.current_transaction_first_offset >= 0
        ]
        first_offset = min(entry.current_transaction_first_offset for entry in open_entries)
        ids = ", ".join(str(entry.producer_id) for entry in open_entries)
        logger.warning(
            "%s: transactions of the producers %s are open from offset %d on, and nobody is left who could end them. "
            "They are aborted, except where their coordinator had decided to commit",
            log.name,
            ids,
            first_offset,
        )
        for entry in open_entries:
            _end(log, entry, committed.get(entry.producer_id), now_ms)


def _end(log: Log, entry: ProducerEntry, decided_epoch: int | None, now_ms: int) -> None:
    is_commit = decided_epoch is not None
    epoch = min(entry.producer_epoch + 1, _EPOCH_MAX)
    if decided_epoch is not None:
        epoch = max(entry.producer_epoch, decided_epoch)
    marker = record_batch.build_marker(
        CONTROL_COMMIT if is_commit else CONTROL_ABORT,
        base_offset=0,
        partition_leader_epoch=-1,
        producer_id=entry.producer_id,
        producer_epoch=epoch,
        coordinator_epoch=max(entry.coordinator_epoch, 0),
        timestamp=now_ms,
    )
    leader_epoch = max(log.leader_epochs.latest, 0)
    result = log.append_as_leader(marker, leader_epoch=leader_epoch, origin=AppendOrigin.COORDINATOR, now_ms=now_ms)
    end = "committed" if is_commit else "aborted"
    if result.error:
        text = "%s: the transaction of producer %d could not be %s: %s"
        logger.error(text, log.name, entry.producer_id, end, result.error_message or result.error.name)
    else:
        logger.info("%s: the transaction of producer %d is %s", log.name, entry.producer_id, end)


def _decided_to_commit(logs: Iterable[Log]) -> dict[int, int]:
    """The producer ids whose transactions must be committed, each with the epoch that Kafka's coordinator wrote."""
    latest: dict[bytes, _Decided] = {}
    for log in logs:
        try:
            for segment, batch in log.segments.batches_from(log.log_start_offset):
                if batch.attributes & record_batch.CONTROL:
                    continue
                for record in record_batch.records(segment.batch_bytes(batch)):
                    if record.key is None:
                        continue
                    latest.pop(record.key, None)
                    if record.value is not None and len(record.value) >= _STATE.size:
                        _, producer_id, producer_epoch, _, state = _STATE.unpack_from(record.value)
                        latest[record.key] = _Decided(producer_id, producer_epoch, state)
        except (CorruptBatchError, OSError) as error:
            logger.error("%s: what its transaction coordinator decided cannot be read: %s", log.name, error)
    return {
        decided.producer_id: decided.producer_epoch for decided in latest.values() if decided.state == _PREPARE_COMMIT
    }
