"""One producer's state in a log, and what it may append (KIP-98, KIP-360, KIP-890). Nothing here changes a log.

`check_data` and `check_marker` are what Kafka checks before an append.
"""

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple

BATCHES_REMEMBERED = 5  # a producer may have so many requests in flight, and may send each of them again
SEQUENCE_MAX = 2**31 - 1
_NONE = -1


class ProducerBatch(NamedTuple):
    """One remembered batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return _sequence_minus(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


NO_BATCH = ProducerBatch(_NONE, _NONE, 0, _NONE)


class ProducerEntry:
    """One producer's state in one log. An epoch of -1 means that none is known."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_transaction_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = _NONE,
        last_timestamp: int = _NONE,
        current_transaction_first_offset: int = _NONE,
        batches: list[ProducerBatch] | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_transaction_first_offset = current_transaction_first_offset
        self.batches = [] if batches is None else batches

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 when unknown."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    @property
    def last_offset(self) -> int:
        """Offset of the last data record that is remembered, -1 when unknown."""
        return self.batches[-1].last_offset if self.batches else _NONE

    def is_open_in(self, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here, in this epoch."""
        return self.current_transaction_first_offset != _NONE and self.producer_epoch == producer_epoch

    def duplicate_of(self, producer_epoch: int, first_sequence: int, last_sequence: int) -> ProducerBatch | None:
        """The remembered batch with the same sequences."""
        if producer_epoch != self.producer_epoch:
            return None
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None


class Verification:
    """The question to a transaction coordinator whether this partition is in a producer's transaction (KIP-890).

    It is asked before the first batch of a transaction is appended. A marker takes the question away, so an answer that
    comes late says nothing about the next transaction. When the coordinator has said yes, it will write a marker here.
    So the producer's batches are taken until then. In transaction version 2 the marker of the transaction before has
    the epoch of the question, and takes nothing away.

    There is one for each producer. A higher epoch that is asked for takes no question away, because anybody can send
    one; but it bounds the sequences, as in Kafka.
    """

    __slots__ = (
        "confirmed_epoch",
        "lowest_sequence",
        "producer_epoch",
        "producer_id",
        "raises_epochs",
        "started_ms",
    )

    def __init__(
        self, producer_id: int, producer_epoch: int, lowest_sequence: int, started_ms: int, raises_epochs: bool
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch  # the highest one that is asked for
        self.lowest_sequence = lowest_sequence  # of all batches of that epoch that wait for the answer
        self.started_ms = started_ms
        self.raises_epochs = raises_epochs  # each end of a transaction raises the epoch (transaction version 2)
        self.confirmed_epoch: int | None = None  # the highest one to which the coordinator has said yes


def _sequence_minus(sequence: int, delta: int) -> int:
    return sequence - delta if sequence >= delta else SEQUENCE_MAX - (delta - sequence) + 1


def last_sequence_of(base_sequence: int, last_offset_delta: int) -> int:
    """Sequence of a batch's last record; sequences go on at 0 after 2³¹-1."""
    if base_sequence == _NONE:
        return _NONE
    return (base_sequence + last_offset_delta) & SEQUENCE_MAX


def check_data(
    entry: ProducerEntry | None,
    *,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
    check_sequence: bool,
    verification: Verification | None = None,
) -> ErrorCode:
    """Whether a producer may append this batch now, which is no duplicate.

    `verification`: of a transaction that the producer is about to begin here. Of several requests in flight, the one
    with the lowest sequence must come first. As in Kafka, that holds for all its batches, in whatever epoch.
    """
    if verification is not None and check_sequence and (entry is None or producer_epoch >= entry.producer_epoch):
        is_unknown = entry is None or not entry.batches
        if base_sequence > verification.lowest_sequence or (
            base_sequence != 0 and is_unknown and verification.raises_epochs
        ):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if entry is None:
        return ErrorCode.NONE
    if producer_epoch < entry.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if check_sequence:
        if producer_epoch != entry.producer_epoch:
            if base_sequence != 0 and entry.producer_epoch != _NONE:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif entry.producer_epoch != _NONE:
            last = entry.last_sequence
            if base_sequence != last + 1 and not (base_sequence == 0 and last == SEQUENCE_MAX):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if entry.current_transaction_first_offset != _NONE and not is_transactional:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def check_marker(
    entry: ProducerEntry | None, *, producer_epoch: int, coordinator_epoch: int, raises_epochs: bool = False
) -> ErrorCode:
    """Whether a coordinator may write this marker now.

    `raises_epochs`: a marker has a higher epoch than its transaction (transaction version 2). So one with the epoch of
    an open transaction is late: it belongs to the transaction before.
    """
    if entry is None:
        return ErrorCode.NONE
    if producer_epoch < entry.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if raises_epochs and producer_epoch == entry.producer_epoch and entry.current_transaction_first_offset != _NONE:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if coordinator_epoch < entry.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    return ErrorCode.NONE
