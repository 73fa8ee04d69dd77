"""The states of a transactional id, and which state may follow which, as one table."""

from enum import IntEnum


class TransactionState(IntEnum):
    """Number in the records of `__transaction_state`. DEAD is in memory only: an idle id is being removed.

    PREPARE_EPOCH_FENCE is a name that clients of ListTransactions know. Here nothing is in it: the epoch that fences a
    producer is in the value whose state is PREPARE_ABORT.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """Name in DescribeTransactions and ListTransactions: `CompleteCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD, PREPARE_EPOCH_FENCE = (
    TransactionState
)
COMPLETE = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})
PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
IDLE = COMPLETE | {EMPTY}  # no transaction is open, and none is being ended

# state: the states it can come from. PrepareAbort from an idle state is an abort of nothing, which moves the epoch
# (transaction version 2).
PREDECESSORS = {
    EMPTY: IDLE,
    ONGOING: IDLE | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: IDLE | {ONGOING},
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
    DEAD: IDLE,
    PREPARE_EPOCH_FENCE: frozenset(),
}
