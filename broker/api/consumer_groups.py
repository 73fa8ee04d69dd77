"""ConsumerGroupHeartbeat (key 68), versions 0-1: refused, because the consumer protocol (KIP-848) is not built.

It is announced all the same, as by a broker of Apache Kafka where this protocol is off. A client that finds it missing
asks for the coordinator again and again, and says nothing (librdkafka). One that is refused tells its user.
ConsumerGroupDescribe is not announced, so that Kafka's tools describe every group as a classic one at once.
"""

from typing import TYPE_CHECKING

from barnabas.broker.access import groups as groups_access
from barnabas.broker.requests import RequestContext, api
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

if TYPE_CHECKING:
    from barnabas.broker.services import Services

WHAT_TO_SET = "set group.protocol=classic in this client: the consumer protocol (KIP-848) is not built yet"


@api(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), access=groups_access.consumer_group_heartbeat)
def consumer_group_heartbeat(
    services: "Services", request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """UNSUPPORTED_VERSION, with what the client's user must set."""
    error = ErrorCode.UNSUPPORTED_VERSION
    services.refusals.note(
        context, error, "it wants to join group %r with group.protocol=consumer; %s", request.group_id, WHAT_TO_SET
    )
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=f"{WHAT_TO_SET}.")
