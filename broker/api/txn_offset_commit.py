"""TxnOffsetCommit (key 28), versions 0-5: offsets that count when the producer's transaction is committed.

Before the group is asked, the partition of `__consumer_offsets` is verified, as that of a Produce is
(transactional_writes.py): its first batch of a transaction is taken only if the transaction's coordinator knows the
partition. Clients up to version 4 have sent AddOffsetsToTxn. From version 5 on (transaction version 2) this request
adds the partition itself. Left out: version 6 (topic ids), which Kafka 4.3 does not announce.
"""

from __future__ import annotations

from barnabas.broker.access import transactions as transactions_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.requests import RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.append_errors import commit_error
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending

FIRST_VERSION_THAT_ADDS_PARTITIONS = 5
NO_SEQUENCE = -1  # a coordinator's batch has none


@api(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    access=transactions_access.txn_offset_commit,
    failure=each_row(topics="topics", partitions="partitions"),
)
def txn_offset_commit(
    services: Services, request: messages.TxnOffsetCommitRequest, context: RequestContext
) -> messages.TxnOffsetCommitResponse | Pending[messages.TxnOffsetCommitResponse]:
    """Verify the partition of the group, then commit."""
    version = context.api_version
    return services.group_coordinator.transactional_commits.txn_offset_commit(
        request, context, lambda index: _verify(services, request, version, index)
    )


def _verify(
    services: Services, request: messages.TxnOffsetCommitRequest, version: int, index: int
) -> ErrorCode | Pending[ErrorCode]:
    """NONE when the partition of `__consumer_offsets` takes the batch."""
    place = (OFFSETS_TOPIC, index)
    refused = services.transactions.verification.verify(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        {place: NO_SEQUENCE},
        adds=version >= FIRST_VERSION_THAT_ADDS_PARTITIONS,
    )
    if isinstance(refused, Pending):
        return refused.map(lambda errors: commit_error(errors.get(place, ErrorCode.NONE)))
    return commit_error(refused.get(place, ErrorCode.NONE))
