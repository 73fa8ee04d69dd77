"""Whether the partitions of a transactional Produce are in the producer's transaction (KIP-890).

Clients of transaction version 2 (Produce 12 and later) have them added by the partitions' leaders. Older clients have
added them before, so the leaders only ask; with `transaction.partition.verification.enable=false` they do not even
ask. Who is asked, and when, is in `coordinators/transactions/verification.py`. Here are the batches of a request and
the errors that clients know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from barnabas.protocol.batch_layout import ATTRIBUTES_AT, PRODUCER_ID_AT, TRANSACTIONAL
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ProduceRequest
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.coordinators.transactions.verification import Errors
    from barnabas.replication.partition import Partition

FIRST_VERSION_THAT_ADDS_PARTITIONS = 12  # of Produce: it adds them to the transaction (transaction version 2)
FIRST_VERSION_WITH_ABORTABLE = 11  # of Produce: its clients know TRANSACTION_ABORTABLE
_PRODUCER = Struct(">qhi")  # its id, its epoch and the base sequence in the header of a batch

_IDENTITY = Struct(">qh")  # the first two of them

# A producer tries again at these. Old ones do not know how, so they hear NOT_ENOUGH_REPLICAS, for which a producer does
# not even ask for metadata.
_TO_BE_TRIED_AGAIN = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Refusal(NamedTuple):
    """An entry that must not be appended."""

    slot: int
    error: ErrorCode
    message: str | None = None


def refused(
    services: Services, request: ProduceRequest, version: int, entries: Sequence[tuple[str, int, Buffer]]
) -> list[Refusal] | Pending[list[Refusal]]:
    """The entries that must not be appended, in order. Each entry is one whole batch."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        return [Refusal(slot, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) for slot in range(len(entries))]
    if _all_go_on(services.replica_manager.partitions, entries):
        return []
    producers = set()
    sequences: dict[tuple[str, int], int] = {}
    # Of partitions that there are not the append says so, whosever batch it is.
    there = [services.metadata_cache.partition(topic, index) is not None for topic, index, _ in entries]
    for (topic, index, records), is_there in zip(entries, there, strict=True):
        if is_there and records[ATTRIBUTES_AT + 1] & TRANSACTIONAL:
            producer_id, producer_epoch, sequence = _PRODUCER.unpack_from(records, PRODUCER_ID_AT)
            producers.add((producer_id, producer_epoch))
            sequences[topic, index] = min(sequence, sequences.get((topic, index), sequence))
    if len(producers) > 1:
        error, why = ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional batches of more than one producer"
        return [Refusal(slot, error, why) for slot, is_there in enumerate(there) if is_there]
    if not producers:
        return []
    ((producer_id, producer_epoch),) = producers
    if producer_id < 0:
        return []  # the log says what is wrong
    adds = version >= FIRST_VERSION_THAT_ADDS_PARTITIONS
    found = services.transactions.verification.verify(transactional_id, producer_id, producer_epoch, sequences, adds)
    if isinstance(found, Pending):
        places = [(topic, index) for topic, index, _ in entries]
        return found.map(lambda errors: _refusals(places, errors, version))
    return _refusals([(topic, index) for topic, index, _ in entries], found, version) if found else []


def _all_go_on(partitions: Mapping[tuple[str, int], Partition], entries: Sequence[tuple[str, int, Buffer]]) -> bool:
    """Whether all batches are of one producer, whose transaction is open in all their partitions.

    That is so for nearly all batches of a large transaction. Who leads the partitions is seen when they are appended.
    """
    if not entries:
        return True
    producer_id, producer_epoch = first = _IDENTITY.unpack_from(entries[0][2], PRODUCER_ID_AT)
    for topic, index, records in entries:
        partition = partitions.get((topic, index))
        if partition is None or _IDENTITY.unpack_from(records, PRODUCER_ID_AT) != first:
            return False
        producer = partition.log.producers.entries.get(producer_id)
        if producer is None or not producer.is_open_in(producer_epoch):
            return False
    return True


def _refusals(places: Sequence[tuple[str, int]], errors: Errors, version: int) -> list[Refusal]:
    return [Refusal(slot, *_for_client(errors[place], version)) for slot, place in enumerate(places) if place in errors]


def _for_client(error: ErrorCode, version: int) -> tuple[ErrorCode, str | None]:
    """The error that this version knows, with a message where Kafka has one."""
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        error = ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.INVALID_TXN_STATE:
        return error, "the partition is not in the transaction"
    if error in _TO_BE_TRIED_AGAIN or (
        error is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_THAT_ADDS_PARTITIONS
    ):
        return (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"it is not known whether the partition is in the transaction: {error.name}",
        )
    return error, None
