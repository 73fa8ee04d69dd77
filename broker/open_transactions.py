"""Ends the transactions that are open in adopted logs, if nobody else can end them.

The transaction coordinator ends those that `__transaction_state` has: one that is prepared when it has loaded, one that
is ongoing when its producer says so, or when its time is up. All others would keep read_committed consumers waiting for
ever at their first record. They are aborted as Kafka aborts one whose time is up: in the next epoch of the producer, so
the producer that began it cannot go on with it.
"""

import logging
from collections.abc import Iterable, Sequence

from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.coordinators.transactions.metadata import PRODUCER_EPOCH_MAX, Transaction
from barnabas.coordinators.transactions.records import decode
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL
from barnabas.protocol.errors import CorruptBatchError, ProtocolError
from barnabas.protocol.transaction_marker import CONTROL_ABORT, build_marker
from barnabas.runtime.counted import counted
from barnabas.storage.log import Log
from barnabas.storage.producer_entry import ProducerEntry
from barnabas.storage.validation import AppendOrigin

logger = logging.getLogger("barnabas.broker")


def end_open_transactions(adopted: Sequence[Log], all_logs: Iterable[Log], now_ms: int) -> None:
    """Append a marker for each open transaction of these logs that no coordinator ends, and log it."""
    with_open = [log for log in adopted if log.producers.has_open_transactions]
    ending = _ended_by_coordinator(log for log in all_logs if log.topic == TRANSACTIONS_TOPIC)
    for log in with_open:
        open_entries = [
            entry for entry in log.producers.entries.values() if entry.current_transaction_first_offset >= 0
        ]
        abandoned = [entry for entry in open_entries if (entry.producer_id, log.topic, log.partition) not in ending]
        if len(abandoned) < len(open_entries):
            text = "%s: %s that a coordinator knows, and ends"
            logger.info(text, log.name, counted(len(open_entries) - len(abandoned), "open transaction"))
        if not abandoned:
            continue
        logger.warning(
            "%s: transactions of the producers %s are open from offset %d on, and nobody is left who could end them. "
            "They are aborted",
            log.name,
            ", ".join(str(entry.producer_id) for entry in abandoned),
            min(entry.current_transaction_first_offset for entry in abandoned),
        )
        for entry in abandoned:
            _abort(log, entry, now_ms)


def _abort(log: Log, entry: ProducerEntry, now_ms: int) -> None:
    marker = build_marker(
        CONTROL_ABORT,
        base_offset=0,
        partition_leader_epoch=-1,
        producer_id=entry.producer_id,
        producer_epoch=min(entry.producer_epoch + 1, PRODUCER_EPOCH_MAX),
        coordinator_epoch=max(entry.coordinator_epoch, 0),
        timestamp=now_ms,
    )
    leader_epoch = max(log.leader_epochs.latest, 0)
    result = log.append_as_leader(marker, leader_epoch=leader_epoch, origin=AppendOrigin.COORDINATOR, now_ms=now_ms)
    if result.error:
        text = "%s: the transaction of producer %d could not be aborted: %s"
        logger.error(text, log.name, entry.producer_id, result.error_message or result.error.name)
    else:
        logger.info("%s: the transaction of producer %d is aborted", log.name, entry.producer_id)


def _ended_by_coordinator(logs: Iterable[Log]) -> set[tuple[int, str, int]]:
    """Producer id, topic and partition of each open transaction in `__transaction_state`."""
    found: set[tuple[int, str, int]] = set()
    for log in logs:
        latest: dict[str, Transaction | None] = {}
        try:
            for segment, batch in log.segments.batches_from(log.log_start_offset):
                if batch.attributes & CONTROL:
                    continue
                for record in record_batch.records(segment.batch_bytes(batch)):
                    if record.key is None:
                        continue
                    try:
                        change = decode(bytes(record.key), None if record.value is None else bytes(record.value))
                    except (ProtocolError, ValueError):
                        continue  # the coordinator ignores it, too, and says so
                    if change is not None:
                        latest[change.transactional_id] = change.transaction
        except (CorruptBatchError, OSError) as error:
            logger.error("%s: failed to read the state of its transaction coordinator: %s", log.name, error)
        for held in latest.values():
            if held is not None:  # one that is complete has no partitions
                found.update((held.producer_id, topic, index) for topic, index in held.partitions)
    return found
