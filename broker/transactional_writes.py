"""Whether the partitions of a transactional Produce are in the producer's transaction (KIP-890).

A partition takes the first batch of a transaction only if the transaction's coordinator confirms that it knows of the
partition. Else a batch that comes late, after the end of its transaction, would begin another one, which nobody ends.
There is no coordinator here yet, so nothing is confirmed. With `transaction.partition.verification.enable=false`
nobody is asked, as in Kafka: the producer answers for it, and its transaction is ended by WriteTxnMarkers. Clients of
transaction version 2 are not verified: their Produce adds the partition, which only a coordinator can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

from barnabas.protocol.batch_layout import ATTRIBUTES_AT, PRODUCER_ID_AT, TRANSACTIONAL
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ProduceRequest
from barnabas.replication.partition import Partition
from barnabas.runtime.ports import Buffer

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker

FIRST_VERSION_THAT_ADDS_PARTITIONS = 12  # of Produce: it adds them to the transaction (transaction version 2)
_PRODUCER = Struct(">qhi")  # its id, its epoch and the base sequence in the header of a batch


def refused(
    broker: Broker, request: ProduceRequest, version: int, entries: Sequence[tuple[str, int, Buffer]]
) -> list[tuple[int, ErrorCode]]:
    """The entries that must not be appended, by their place, in order. Each entry is one whole batch."""
    if request.transactional_id is None:
        return [(slot, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) for slot in range(len(entries))]
    producers = {
        slot: _PRODUCER.unpack_from(records, PRODUCER_ID_AT)
        for slot, (_, _, records) in enumerate(entries)
        if records[ATTRIBUTES_AT + 1] & TRANSACTIONAL
    }
    if len({producer_id for producer_id, _, _ in producers.values()}) > 1:
        return [(slot, ErrorCode.INVALID_PRODUCER_ID_MAPPING) for slot in range(len(entries))]
    raises_epochs = version >= FIRST_VERSION_THAT_ADDS_PARTITIONS
    is_asked = raises_epochs or broker.config.transaction_partition_verification_enable
    found = []
    for slot, (producer_id, producer_epoch, sequence) in producers.items():
        topic, index, _ = entries[slot]
        partition = broker.replica_manager.leader_partition(topic, index)
        if producer_id < 0 or not isinstance(partition, Partition):
            continue  # the log, or nobody here, says what is wrong
        asked = partition.begin_verification(producer_id, producer_epoch, sequence, raises_epochs=raises_epochs)
        if asked is not None and (is_asked or not partition.confirm_verification(asked)):
            found.append((slot, ErrorCode.INVALID_TXN_STATE))
    return found
