"""Batches that were refused for a reason that passes, so that none of the same producer overtakes them.

An idempotent producer has some batches in flight for one partition. One that is known here comes back with the sequence
that is expected. Of one that is not known, Kafka takes any sequence. So where the first batch found no room on the
disk, or too few replicas, and the second one is taken, the first is out of order for ever.
"""

from collections.abc import Container

from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.record_batch import BatchHeader, read_header
from barnabas.storage.validation import Appendable, AppendResult, Validated

REFUSED_BATCHES_MAX = 1_000  # of all producers of a log; the oldest is forgotten
# Clients give a batch up after that (delivery.timeout.ms), and most go on with another epoch then.
REMEMBERED_MS = 120_000


class RefusedBatch(NamedTuple):
    """The first batch of an unknown producer, and why it was refused."""

    producer_epoch: int
    base_sequence: int
    error: ErrorCode
    refused_ms: int


class RefusedBatches:
    """Those of one log, by producer."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: dict[int, RefusedBatch] = {}

    def __bool__(self) -> bool:
        return bool(self._batches)

    def note(self, records: Appendable, error: ErrorCode, known_producers: Container[int], now_ms: int) -> None:
        """These records of a client were refused. That matters only of producers that are not known yet."""
        header = _header_of(records)
        if header is None or header.producer_id < 0 or header.producer_id in known_producers:
            return
        refused = self._batches.pop(header.producer_id, None)
        base_sequence = header.base_sequence
        if refused is not None and refused.producer_epoch == header.producer_epoch:
            base_sequence = min(base_sequence, refused.base_sequence)
        elif len(self._batches) >= REFUSED_BATCHES_MAX:
            del self._batches[next(iter(self._batches))]
        self._batches[header.producer_id] = RefusedBatch(header.producer_epoch, base_sequence, error, now_ms)

    def before(self, header: BatchHeader, now_ms: int) -> RefusedBatch | None:
        """The refused batch that the producer must send again before this one."""
        refused = self._batches.get(header.producer_id)
        if (
            refused is None
            or refused.producer_epoch != header.producer_epoch
            or refused.base_sequence >= header.base_sequence
            or now_ms - refused.refused_ms >= REMEMBERED_MS
        ):
            return None
        return refused

    def forget(self, producer_id: int) -> None:
        """A batch of the producer was appended: from now on its sequences are checked."""
        self._batches.pop(producer_id, None)


def _header_of(records: Appendable) -> BatchHeader | None:
    if isinstance(records, AppendResult):
        return None
    if isinstance(records, Validated):
        return records.headers[0] if records.headers else None
    try:
        return read_header(records)
    except CorruptBatchError:
        return None
