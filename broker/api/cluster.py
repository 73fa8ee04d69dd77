"""DescribeCluster (key 60), versions 0-2: the brokers, the controller and the cluster's id (KIP-700).

EndpointType 2 asks for controllers, which only a KRaft controller answers: MISMATCHED_ENDPOINT_TYPE here. Fenced
brokers do not exist without KRaft: a broker that is not alive is not listed.
"""

from barnabas.broker.access import admin as admin_access
from barnabas.broker.access.rules import NOT_ASKED
from barnabas.broker.api.metadata import CLUSTER_OPERATIONS
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DescribeClusterRequest, DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2


@api(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2), access=admin_access.describe_cluster)
def describe_cluster(services: Services, request: DescribeClusterRequest, context: RequestContext) -> Reply:
    """The live brokers, each with its address on the listener that the request came by."""
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="This is a broker's endpoint; controllers are not to be asked for here.",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"There is no endpoint type {request.endpoint_type}.",
        )
    cache = services.metadata_cache
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
    return DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=cache.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker_id, host=endpoint.host, port=endpoint.port, rack=cache.brokers[broker_id].rack
            )
            for broker_id in sorted(cache.brokers)
            if (endpoint := services.addresses.of(broker_id, context)) is not None
        ],
        cluster_authorized_operations=operations,
    )
