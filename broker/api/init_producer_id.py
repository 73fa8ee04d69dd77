"""InitProducerId (key 22), versions 0-5: producer ids for idempotent producers.

Transactional ids are checked and then refused with UNSUPPORTED_VERSION, because there is no transaction coordinator
yet. With this error most clients give up at once. Only librdkafka tries again until the time-out of its call, and then
tells it. It gives up at once only when it is told that its rights are missing, which would be wrong.
"""

from typing import TYPE_CHECKING

from barnabas.broker.context import RequestContext
from barnabas.broker.dispatch import api
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker

NONE = -1
WAIT_MS = 1_000.0  # for a block of ids


def refusal(request: InitProducerIdRequest, error: ErrorCode) -> InitProducerIdResponse:
    """The response with an error, and no producer id."""
    return InitProducerIdResponse(error_code=error, producer_id=NONE, producer_epoch=NONE)


@api(ApiKey.INIT_PRODUCER_ID, versions=(0, 5), failure=refusal)
def init_producer_id(
    broker: "Broker", request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
    """The next producer id with epoch 0. Waits if a block of ids is being taken.

    COORDINATOR_LOAD_IN_PROGRESS if that takes too long, and without the lease.
    """
    if (request.producer_id == NONE) != (request.producer_epoch == NONE) or request.transactional_id == "":
        return refusal(request, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        if not 0 < request.transaction_timeout_ms <= broker.config.transaction_max_timeout_ms:
            return refusal(request, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        what = "transactional.id %r: transactions are not built yet"
        broker.refusals.note(context, ErrorCode.UNSUPPORTED_VERSION, what, request.transactional_id)
        return refusal(request, ErrorCode.UNSUPPORTED_VERSION)

    def answer(producer_id: int | None) -> InitProducerIdResponse:
        if producer_id is None or not broker.lease.holds:
            return refusal(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    producer_id = broker.producer_ids.next()
    return answer(producer_id) if producer_id is not None else broker.producer_ids.next_within(WAIT_MS).map(answer)
