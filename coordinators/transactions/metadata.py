"""What the coordinator knows of one transactional id: an immutable value, as its newest committed record says it."""

from barnabas.coordinators.transactions.states import EMPTY, TransactionState
from barnabas.protocol.named_tuple import NamedTuple

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 2**15 - 1
EXHAUSTED_EPOCH = PRODUCER_EPOCH_MAX - 1  # the last one that a producer is given; the one after it only fences
NOT_STARTED_MS = -1


class Transaction(NamedTuple):
    """One transactional id. Times are in ms since 1970.

    `last_producer_epoch` is the epoch before the last change of it, and `previous_producer_id` the id before the last
    change of that, so that a repeated request is known again. Records do not have the former.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    last_update_ms: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID  # takes over at the end of the transaction, because epochs are exhausted
    state: TransactionState = EMPTY
    partitions: frozenset[tuple[str, int]] = frozenset()
    start_ms: int = NOT_STARTED_MS
    client_version: int = 0  # the transaction version that its producer last used

    @property
    def is_exhausted(self) -> bool:
        """Whether its producer id has no epoch left for a producer."""
        return self.producer_epoch >= EXHAUSTED_EPOCH
