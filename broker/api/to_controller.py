"""What brokers ask of the controller: ControlledShutdown (key 7, versions 0-3), AlterPartition (56, 2-3) and
AllocateProducerIds (67, version 0).

A broker that is not the controller answers NOT_CONTROLLER, and the asker looks for the controller again. Left out:
AlterPartition 0 and 1, which no broker since Kafka 3.3 sends.
"""

from barnabas.broker.access import admin as admin_access
from barnabas.broker.requests import RequestContext, api
from barnabas.broker.services import Services
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from barnabas.runtime.pending import Pending


@api(
    ApiKey.CONTROLLED_SHUTDOWN, versions=(0, 3), access=admin_access.of_brokers, is_announced=False, is_of_brokers=True
)
def controlled_shutdown(
    services: Services, request: ControlledShutdownRequest, context: RequestContext
) -> Pending[ControlledShutdownResponse]:
    """Move leadership away from a broker that stops: the answer lists the partitions that it still leads."""
    return services.controller.controlled_shutdown(request)


@api(ApiKey.ALTER_PARTITION, versions=(2, 3), access=admin_access.of_brokers, is_of_brokers=True)
def alter_partition(
    services: Services, request: AlterPartitionRequest, context: RequestContext
) -> Pending[AlterPartitionResponse]:
    """Change ISRs as the partitions' leader asks, where that is allowed."""
    return services.controller.alter_partition(request)


@api(ApiKey.ALLOCATE_PRODUCER_IDS, versions=(0, 0), access=admin_access.of_brokers, is_of_brokers=True)
def allocate_producer_ids(
    services: Services, request: AllocateProducerIdsRequest, context: RequestContext
) -> Pending[AllocateProducerIdsResponse]:
    """The next block of producer ids."""
    return services.controller.allocate_producer_ids(request)
