"""What the controller says: LeaderAndIsr (key 4, versions 4-7), StopReplica (5, 3-4), UpdateMetadata (6, 6-8).

These are the versions of Kafka 2.6 to 3.9. The replica manager compares the epochs of controller and broker, and does
what is said. Older versions are left out: their controllers do not know all that is needed here.
"""

import logging
from typing import TYPE_CHECKING

from barnabas.broker.context import Reply, RequestContext
from barnabas.broker.dispatch import api
from barnabas.cluster.registration import UNKNOWN_BROKER_EPOCH
from barnabas.coordination.port import CoordinationError
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker

logger = logging.getLogger("barnabas.broker")

LAST_VERSION_WITH_TOPIC_NAMES = 4


@api(ApiKey.LEADER_AND_ISR, versions=(4, 7), is_wide=True, is_announced=False, is_of_brokers=True)
def leader_and_isr(broker: "Broker", request: LeaderAndIsrRequest, context: RequestContext) -> Reply:
    """Lead and follow partitions; new topics with the settings that they were made with."""
    if request.broker_epoch == UNKNOWN_BROKER_EPOCH:
        return LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    new = [topic.topic_name for topic in request.topic_states if any(state.is_new for state in topic.partition_states)]
    return _with_settings(broker, request, context, new) if new else _lead_or_follow(broker, request, context)


async def _with_settings(
    broker: "Broker", request: LeaderAndIsrRequest, context: RequestContext, new: list[str]
) -> LeaderAndIsrResponse:
    told_by = broker.server.last_told
    try:
        await broker.config_changes.read_topics(new)
    except (CoordinationError, ValueError) as error:
        logger.warning("the settings of new topics cannot be read, their notices may still come: %s", error)
    if broker.server.last_told != told_by:  # the controller has told it again since, and perhaps to delete the topic
        return LeaderAndIsrResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    return _lead_or_follow(broker, request, context)


def _lead_or_follow(broker: "Broker", request: LeaderAndIsrRequest, context: RequestContext) -> LeaderAndIsrResponse:
    response = broker.replica_manager.leader_and_isr(request)
    if context.api_version <= LAST_VERSION_WITH_TOPIC_NAMES:
        for topic, answered in zip(request.topic_states, response.topics):
            for partition in answered.partition_errors:
                partition.topic_name = topic.topic_name
            response.partition_errors += answered.partition_errors
        response.topics = []
    return response


@api(ApiKey.STOP_REPLICA, versions=(3, 4), is_wide=True, is_announced=False, is_of_brokers=True)
def stop_replica(broker: "Broker", request: StopReplicaRequest, context: RequestContext) -> StopReplicaResponse:
    """Let go of replicas, and perhaps delete them."""
    if request.broker_epoch == UNKNOWN_BROKER_EPOCH:
        return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    return broker.replica_manager.stop_replica(request)


@api(ApiKey.UPDATE_METADATA, versions=(6, 8), is_announced=False, is_of_brokers=True)
def update_metadata(
    broker: "Broker", request: UpdateMetadataRequest, context: RequestContext
) -> UpdateMetadataResponse:
    """Know which brokers live, and the state of partitions."""
    if request.broker_epoch == UNKNOWN_BROKER_EPOCH:
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    return broker.replica_manager.update_metadata(request)
