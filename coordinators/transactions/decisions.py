"""What each request does to a transactional id: pure functions from its entry and the request to an outcome.

The rules are KIP-98's, with KIP-360 (a producer that continues with its epoch), KIP-588 (PRODUCER_FENCED) and KIP-890
(transaction version 2: the epoch grows with each end, and an abort of nothing is allowed). Errors are those of new
versions; the handlers (`broker/api/transactions.py`) give old versions the error that they know. What Apache Kafka 4.1
writes is held by tests/unit/transactions, what it answers by tests/wire/test_transaction_coordinator.py.

An epoch is never raised in memory before it is in the log. So a failed write leaves nothing behind: the next attempt
decides from the same value, and raises the epoch to the same number.
"""

from collections.abc import Collection

from barnabas.coordinators.transactions.metadata import (
    EXHAUSTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NOT_STARTED_MS,
    PRODUCER_EPOCH_MAX,
    Transaction,
)
from barnabas.coordinators.transactions.states import (
    COMPLETE,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    IDLE,
    ONGOING,
    PREDECESSORS,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionState,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple

EPOCH_BUMP_VERSION = 2  # from this transaction version on the epoch grows with each end (KIP-890)


class Entry:
    """A transactional id in the coordinator's memory.

    `pending` is the state that is being written: one change at a time. `unmarked` are the partitions of a prepared
    transaction that have no marker yet; markers.py takes them out. `topic_ids` says which topics the partitions of an
    open transaction belong to, because another one may be made under the same name. Records have only names: what was
    loaded from the log has no ids.
    """

    __slots__ = ("pending", "topic_ids", "transaction", "unmarked")

    def __init__(self, transaction: Transaction, pending: TransactionState | None = None) -> None:
        self.transaction = transaction
        self.pending = pending
        self.unmarked: Collection[tuple[str, int]] = ()
        self.topic_ids: dict[tuple[str, int], bytes] = {}


class Refuse(NamedTuple):
    """Answer with an error; nothing changes."""

    error: ErrorCode


class Repeat(NamedTuple):
    """Answer success without writing: the request was done before, or there is nothing to do."""

    transaction: Transaction


class Write(NamedTuple):
    """Append this value; when it is committed, answer with `error`. If it is prepared, its markers follow."""

    transaction: Transaction
    error: ErrorCode = ErrorCode.NONE


class NeedProducerId(NamedTuple):
    """Get a fresh producer id, and decide again."""


Outcome = Refuse | Repeat | Write
NEED_PRODUCER_ID = NeedProducerId()


def begin(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Entry:
    """The entry of an id that was not known: no epoch was given out yet."""
    return Entry(
        Transaction(
            transactional_id=transactional_id, producer_id=producer_id, timeout_ms=timeout_ms, last_update_ms=now_ms
        )
    )


def init_producer_id(
    entry: Entry,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    transaction_version: int,
    now_ms: int,
    fresh_producer_id: int | None = None,
) -> Outcome | NeedProducerId:
    """InitProducerId: a new epoch for a producer that begins, or goes on with its `expected` id and epoch (KIP-360).

    If a transaction is open, it is aborted, and the client has to ask again.
    """
    held = entry.transaction
    if is_busy(entry):
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _is_known(held, *expected):
        return Refuse(ErrorCode.PRODUCER_FENCED)
    if held.state is ONGOING:
        return Write(abort_fenced(held, transaction_version, now_ms), ErrorCode.CONCURRENT_TRANSACTIONS)
    assert held.state in IDLE
    fresh = held._replace(
        state=EMPTY,
        partitions=frozenset(),
        start_ms=NOT_STARTED_MS,
        last_update_ms=now_ms,
        timeout_ms=timeout_ms,
        next_producer_id=NO_PRODUCER_ID,
        # If the cluster went back to version 0, a producer begins so. Kafka refuses it as long as the level is 0.
        client_version=held.client_version if transaction_version else 0,
    )
    expected_epoch = None if expected is None else expected[1]
    is_repeat = expected_epoch is not None and expected_epoch == held.last_producer_epoch != held.producer_epoch
    # The epoch that only fences is given to nobody, also if its producer asks again.
    if held.is_exhausted and (
        expected_epoch in (None, held.producer_epoch) or (is_repeat and held.producer_epoch == PRODUCER_EPOCH_MAX)
    ):
        if fresh_producer_id is None:
            return NEED_PRODUCER_ID
        return Write(
            fresh._replace(
                producer_id=fresh_producer_id,
                producer_epoch=0,
                previous_producer_id=held.producer_id,
                last_producer_epoch=NO_PRODUCER_EPOCH if expected_epoch is None else expected_epoch,
            )
        )
    if expected_epoch in (None, held.producer_epoch) or held.producer_epoch == NO_PRODUCER_EPOCH:
        last = NO_PRODUCER_EPOCH if expected_epoch is None else held.producer_epoch
        epoch = held.producer_epoch + 1
        return Write(
            fresh._replace(producer_epoch=epoch, last_producer_epoch=last, previous_producer_id=NO_PRODUCER_ID)
        )
    return Write(fresh) if is_repeat else Refuse(ErrorCode.PRODUCER_FENCED)


def _is_known(held: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether a producer that says it has this id and epoch can be the one of the entry."""
    return (
        held.producer_epoch == NO_PRODUCER_EPOCH
        or producer_id == held.producer_id
        or (producer_id == held.previous_producer_id and producer_epoch >= EXHAUSTED_EPOCH)
    )


def add_partitions(
    entry: Entry | None,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[tuple[str, int]],
    client_version: int,
    now_ms: int,
) -> Outcome:
    """AddPartitionsToTxn and AddOffsetsToTxn: what the transaction will write to."""
    if entry is None:
        return Refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if is_busy(entry):  # first of all: the change may be one of the producer id
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    held = entry.transaction
    error = _identity_error(held, producer_id, producer_epoch)
    if error:
        return Refuse(error)
    if held.state is ONGOING and partitions <= held.partitions:
        return Repeat(held)
    return Write(
        held._replace(
            state=ONGOING,
            partitions=held.partitions | partitions,
            start_ms=held.start_ms if held.state is ONGOING else now_ms,
            last_update_ms=now_ms,
            previous_producer_id=NO_PRODUCER_ID,
            client_version=client_version,
        )
    )


def verify_partition(
    entry: Entry | None, producer_id: int, producer_epoch: int, partition: tuple[str, int]
) -> ErrorCode:
    """AddPartitionsToTxn with VerifyOnly (KIP-890): whether the partition is in the open transaction."""
    if entry is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    held = entry.transaction
    if is_early(held, producer_id, producer_epoch):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    error = _identity_error(held, producer_id, producer_epoch)
    if error:
        return error
    return ErrorCode.NONE if partition in held.partitions else ErrorCode.TRANSACTION_ABORTABLE


def _identity_error(held: Transaction, producer_id: int, producer_epoch: int) -> ErrorCode:
    if producer_id != held.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_current = producer_epoch == held.producer_epoch and producer_epoch != PRODUCER_EPOCH_MAX
    return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED


def end_transaction(
    entry: Entry | None,
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
    client_version: int,
    now_ms: int,
    fresh_producer_id: int | None = None,
) -> Outcome | NeedProducerId:
    """EndTxn of a producer: Prepare* is written, or an earlier end is recognised."""
    if entry is None:
        return Refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if client_version < EPOCH_BUMP_VERSION:
        return _end_first_version(entry, producer_id, producer_epoch, is_commit, client_version, now_ms)
    return _end_with_epoch_bump(
        entry, producer_id, producer_epoch, is_commit, client_version, now_ms, fresh_producer_id
    )


def _end_first_version(
    entry: Entry, producer_id: int, producer_epoch: int, is_commit: bool, client_version: int, now_ms: int
) -> Outcome:
    held = entry.transaction
    error = _identity_error(held, producer_id, producer_epoch)
    if error:
        return Refuse(error)
    if is_busy(entry):
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if held.state is ONGOING:
        return Write(_prepared(held, is_commit, client_version, NO_PRODUCER_ID, now_ms))
    return _repeated_end(held, is_commit)


def _end_with_epoch_bump(
    entry: Entry,
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
    client_version: int,
    now_ms: int,
    fresh_producer_id: int | None,
) -> Outcome | NeedProducerId:
    if is_busy(entry):
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    held = entry.transaction
    repeats_overflow = (
        held.previous_producer_id == producer_id and producer_epoch == EXHAUSTED_EPOCH and held.producer_epoch == 0
    )
    # A repeat must not tell a producer the epoch that only fences.
    is_told = held.producer_epoch != PRODUCER_EPOCH_MAX
    repeats = repeats_overflow or (0 <= producer_epoch == held.producer_epoch - 1 and is_told)
    if producer_id != held.producer_id and not repeats_overflow:
        return Refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_valid = producer_epoch == held.producer_epoch or (repeats and held.state in COMPLETE)
    if not is_valid or producer_epoch == PRODUCER_EPOCH_MAX:
        return Refuse(ErrorCode.PRODUCER_FENCED)
    begins_anew = held.state in IDLE and not is_commit and not repeats  # an abort of nothing moves the epoch
    if held.state is not ONGOING and not begins_anew:
        if held.state in COMPLETE and not repeats:
            return Refuse(ErrorCode.INVALID_TXN_STATE)  # a commit of nothing
        return _repeated_end(held, is_commit)
    if held.is_exhausted and fresh_producer_id is None:
        return NEED_PRODUCER_ID
    next_producer_id = fresh_producer_id if held.is_exhausted and fresh_producer_id is not None else NO_PRODUCER_ID
    return Write(_prepared(held, is_commit, client_version, next_producer_id, now_ms))


def _repeated_end(held: Transaction, is_commit: bool) -> Outcome:
    """An end of nothing: it succeeds if the same end was done before."""
    done = COMPLETE_COMMIT if is_commit else COMPLETE_ABORT
    return Repeat(held) if held.state is done else Refuse(ErrorCode.INVALID_TXN_STATE)


def abort_fenced(held: Transaction, transaction_version: int, now_ms: int) -> Transaction:
    """The abort that the coordinator itself begins, in the next epoch, which fences the producer out.

    It does so when another producer takes the id, or the transaction has been open for too long. From transaction
    version 2 on the producer that was fenced by the clock may go on with InitProducerId, as after an end of its own.
    """
    assert held.state is ONGOING
    if held.producer_epoch == PRODUCER_EPOCH_MAX:  # Kafka has written it, and ends it never: no epoch is left
        return _prepared(held, False, 0, NO_PRODUCER_ID, now_ms)
    aborted = _prepared(held, False, transaction_version, NO_PRODUCER_ID, now_ms)
    if transaction_version >= EPOCH_BUMP_VERSION:
        return aborted
    return aborted._replace(producer_epoch=held.producer_epoch + 1, last_producer_epoch=NO_PRODUCER_EPOCH)


def _prepared(
    held: Transaction, is_commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> Transaction:
    bumps = client_version >= EPOCH_BUMP_VERSION
    return held._replace(
        state=PREPARE_COMMIT if is_commit else PREPARE_ABORT,
        producer_epoch=held.producer_epoch + 1 if bumps else held.producer_epoch,
        last_producer_epoch=held.producer_epoch if bumps else held.last_producer_epoch,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=next_producer_id,
        start_ms=held.start_ms if held.state is ONGOING else now_ms,
        last_update_ms=now_ms,
        client_version=client_version,
    )


def completed(held: Transaction, now_ms: int) -> Transaction:
    """The value after all markers are written: Complete*, with the next producer id if epochs were exhausted."""
    assert held.state in PREPARED
    rotates = held.next_producer_id != NO_PRODUCER_ID
    return held._replace(
        state=COMPLETE_COMMIT if held.state is PREPARE_COMMIT else COMPLETE_ABORT,
        partitions=frozenset(),
        producer_id=held.next_producer_id if rotates else held.producer_id,
        producer_epoch=0 if rotates else held.producer_epoch,
        previous_producer_id=held.producer_id if rotates else NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        last_update_ms=now_ms,
    )


def next_identity(value: Transaction) -> tuple[int, int]:
    """The producer id and epoch that a producer uses after this value. An exhausted id is replaced at the end."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return value.next_producer_id, 0
    return value.producer_id, value.producer_epoch


def is_early(held: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether a producer begins its next transaction while the last one is still being ended.

    It was told what it uses next when the end was decided. Apache Kafka knows a new producer id only when the end is
    complete. Until then it calls that producer unknown, which ends it, if epochs were exhausted.
    """
    is_next = (producer_id, producer_epoch) == next_identity(held)
    return held.state in PREPARED and is_next and producer_epoch != PRODUCER_EPOCH_MAX


def is_busy(entry: Entry) -> bool:
    """Whether a change of the id is under way: it is being written, or the markers of its end are."""
    return entry.pending is not None or entry.transaction.state in PREPARED


def is_timed_out(entry: Entry, now_ms: int) -> bool:
    """Whether the coordinator has to abort the open transaction."""
    held = entry.transaction
    return held.state is ONGOING and entry.pending is None and held.start_ms + held.timeout_ms < now_ms


def is_expired(entry: Entry, now_ms: int, expiration_ms: int) -> bool:
    """Whether the id was idle for so long that it is removed (transactional.id.expiration.ms)."""
    held = entry.transaction
    return held.state in IDLE and entry.pending is None and held.last_update_ms + expiration_ms <= now_ms


def begin_write(entry: Entry, value: Transaction | None) -> None:
    """Mark what is being written; None: the id is removed. AssertionError if that state may not follow."""
    state = DEAD if value is None else value.state
    assert entry.pending is None
    assert entry.transaction.state in PREDECESSORS[state]
    entry.pending = state
