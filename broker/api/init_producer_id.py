"""InitProducerId (key 22), versions 0-5: producer ids for idempotent producers, and epochs for transactional ids.

Without a transactional id any broker answers with a fresh id. With one its coordinator answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.broker.access import transactions as transactions_access
from barnabas.broker.api.transactions import for_version
from barnabas.broker.requests import RequestContext, api
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.coordinators.transactions.coordinator import ProducerIdAndEpoch

NONE = -1
KNOWS_FENCED_SINCE = 4  # the version that says PRODUCER_FENCED (KIP-588)
WAIT_MS = 1_000.0  # for a block of ids


def refusal(request: messages.InitProducerIdRequest, error: ErrorCode) -> messages.InitProducerIdResponse:
    return messages.InitProducerIdResponse(error_code=error, producer_id=NONE, producer_epoch=NONE)


@api(ApiKey.INIT_PRODUCER_ID, versions=(0, 5), access=transactions_access.init_producer_id, failure=refusal)
def init_producer_id(
    services: Services, request: messages.InitProducerIdRequest, context: RequestContext
) -> messages.InitProducerIdResponse | Pending[messages.InitProducerIdResponse]:
    """The next producer id with epoch 0. Waits if a block of ids is being taken.

    COORDINATOR_LOAD_IN_PROGRESS if that takes too long, and without the lease.
    """
    if (request.producer_id == NONE) != (request.producer_epoch == NONE) or request.transactional_id == "":
        return refusal(request, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        if not 0 < request.transaction_timeout_ms <= services.config.transaction_max_timeout_ms:
            what = "transactional.id %r: transaction.timeout.ms=%d is not between 1 and transaction.max.timeout.ms=%d"
            timeouts = (request.transaction_timeout_ms, services.config.transaction_max_timeout_ms)
            services.refusals.note(
                context, ErrorCode.INVALID_TRANSACTION_TIMEOUT, what, request.transactional_id, *timeouts
            )
            return refusal(request, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        expected = None if request.producer_id == NONE else (request.producer_id, request.producer_epoch)
        found = services.transactions.coordinator.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected
        )

        def given(answer: ProducerIdAndEpoch) -> messages.InitProducerIdResponse:
            error = for_version(answer.error, context.api_version, KNOWS_FENCED_SINCE)
            return messages.InitProducerIdResponse(
                error_code=error, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
            )

        return found.map(given) if isinstance(found, Pending) else given(found)

    def answer(producer_id: int | None) -> messages.InitProducerIdResponse:
        if producer_id is None or not services.lease.holds:
            return refusal(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    producer_id = services.producer_ids.next()
    return answer(producer_id) if producer_id is not None else services.producer_ids.next_within(WAIT_MS).map(answer)
