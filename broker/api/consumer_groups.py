"""The APIs of the consumer protocol (KIP-848): ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69).

Both are always announced, and refused while `group.version` is 0 or `group.coordinator.rebalance.protocols` has no
`consumer`: librdkafka, if ConsumerGroupHeartbeat is not announced, looks for the coordinator for ever without an error;
if it is refused, it reports the error to its user.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.access import groups as groups_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.cluster.security.acls import AclOperation, ResourceType
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest

PROTOCOL = "consumer"
WHAT_TO_DO = "set group.protocol=classic in this client, or let an operator turn the consumer protocol on: {}"
RAISE_FEATURE = "barnabas features upgrade --feature group.version=1"
SET_PROTOCOLS = "group.coordinator.rebalance.protocols=classic,consumer"


def _is_off(services: Services) -> str:
    """What an operator must do to turn the protocol on; empty if it is on."""
    if PROTOCOL not in services.config.group_coordinator_rebalance_protocols:
        return SET_PROTOCOLS
    return "" if services.features.group_version else RAISE_FEATURE


@api(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), access=groups_access.consumer_group_heartbeat)
def consumer_group_heartbeat(
    services: Services, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> Reply:
    """ConsumerGroupHeartbeat (key 68), versions 0-1: join, stay, leave. UNSUPPORTED_VERSION if the protocol is off."""
    remedy = _is_off(services)
    if not remedy:
        rights = context.rights
        if rights is None:
            return services.group_coordinator.consumer.heartbeat(request, context)
        may_see = partial(rights.may, AclOperation.DESCRIBE, ResourceType.TOPIC)
        return services.group_coordinator.consumer.heartbeat(request, context, may_see)
    error, message = ErrorCode.UNSUPPORTED_VERSION, WHAT_TO_DO.format(remedy)
    what = f"cannot join group %r with group.protocol=consumer: {message}"
    services.refusals.note(context, error, what, request.group_id)
    return messages.ConsumerGroupHeartbeatResponse(error_code=error, error_message=f"{message}.")


consumer_group_describe_failed = each_row(value="group_id", group_ids="groups")


@api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    access=groups_access.consumer_group_describe,
    failure=consumer_group_describe_failed,
    is_wide=True,
)
def consumer_group_describe(
    services: Services, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Reply:
    """ConsumerGroupDescribe (key 69), versions 0-1. UNSUPPORTED_VERSION for each group if the protocol is off."""
    if _is_off(services):
        return consumer_group_describe_failed(request, ErrorCode.UNSUPPORTED_VERSION)
    return services.group_coordinator.consumer.describe(request, context)
