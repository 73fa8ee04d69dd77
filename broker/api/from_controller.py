"""What the controller sends: LeaderAndIsr (key 4, versions 4-7), StopReplica (5, 3-4), UpdateMetadata (6, 6-8).

These are the versions of Kafka 2.6 to 3.9. The replica manager compares the epochs of controller and broker, and
carries the request out. Older versions are left out: they lack fields that are needed here. A long LeaderAndIsr or
StopReplica is handled in parts. Each part is a step that does not suspend, and compares the epochs anew.
"""

import logging
from collections.abc import Container, Iterator, Sequence
from copy import copy
from typing import TypeVar

from barnabas.broker.access import admin as admin_access
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.registration import UNKNOWN_BROKER_EPOCH
from barnabas.cluster.tree.port import CoordinationError
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

logger = logging.getLogger("barnabas.broker")

LAST_VERSION_WITH_TOPIC_NAMES = 4
# Of a long request, in a part that takes about a millisecond: roles that change, or folders that are made or renamed.
ROLES_PER_PART = 50
FOLDERS_PER_PART = 10
ROLES_FOR_A_FOLDER = ROLES_PER_PART // FOLDERS_PER_PART

TopicT = TypeVar("TopicT", LeaderAndIsrRequest.LeaderAndIsrTopicState, StopReplicaRequest.StopReplicaTopicState)


@api(
    ApiKey.LEADER_AND_ISR,
    versions=(4, 7),
    access=admin_access.of_brokers,
    is_wide=True,
    is_announced=False,
    is_of_brokers=True,
)
def leader_and_isr(services: Services, request: LeaderAndIsrRequest, context: RequestContext) -> Reply:
    """Lead and follow partitions; new topics with the settings that they were made with."""
    if request.broker_epoch == UNKNOWN_BROKER_EPOCH:
        return LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    new = [topic.topic_name for topic in request.topic_states if any(state.is_new for state in topic.partition_states)]
    if new or context.is_long:
        return _lead_or_follow_in_steps(services, request, context, new)
    return _as_of_version(request, services.replica_manager.leader_and_isr(request), context)


async def _lead_or_follow_in_steps(
    services: Services, request: LeaderAndIsrRequest, context: RequestContext, new: list[str]
) -> LeaderAndIsrResponse:
    """Read the settings of new topics, then handle the request in parts, as if the controller had sent several."""
    told_by = services.server.last_told
    if new:
        try:
            await services.config_changes.read_topics(new)
        except (CoordinationError, ValueError) as error:
            logger.warning("failed to read the settings of new topics; change notices may still bring them: %s", error)
    topics = [
        LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=[])
        for topic in request.topic_states
    ]
    pace = services.env.turns.pace()
    parts = _parts(request.topic_states, services.replica_manager.partitions)
    for places, states in parts if context.is_long else _whole(request.topic_states):
        await pace.rest()
        if (
            services.server.last_told != told_by
        ):  # the controller has told it again since, and perhaps to delete the topic
            return LeaderAndIsrResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        part = copy(request)
        part.topic_states = states
        answer = services.replica_manager.leader_and_isr(part)
        if answer.error_code:
            return answer
        for place, answered in zip(places, answer.topics, strict=True):
            topics[place].partition_errors += answered.partition_errors
    return _as_of_version(request, LeaderAndIsrResponse(topics=topics), context)


def _as_of_version(
    request: LeaderAndIsrRequest, response: LeaderAndIsrResponse, context: RequestContext
) -> LeaderAndIsrResponse:
    if context.api_version <= LAST_VERSION_WITH_TOPIC_NAMES:
        for topic, answered in zip(request.topic_states, response.topics):
            for partition in answered.partition_errors:
                partition.topic_name = topic.topic_name
            response.partition_errors += answered.partition_errors
        response.topics = []
    return response


@api(
    ApiKey.STOP_REPLICA,
    versions=(3, 4),
    access=admin_access.of_brokers,
    is_wide=True,
    is_announced=False,
    is_of_brokers=True,
)
def stop_replica(services: Services, request: StopReplicaRequest, context: RequestContext) -> Reply:
    """Stop replicas, and delete those that the controller names."""
    if request.broker_epoch == UNKNOWN_BROKER_EPOCH:
        return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    return _stop_in_steps(services, request) if context.is_long else services.replica_manager.stop_replica(request)


async def _stop_in_steps(services: Services, request: StopReplicaRequest) -> StopReplicaResponse:
    """Handle the request in parts, as if the controller had sent several."""
    told_by = services.server.last_told
    response = StopReplicaResponse(partition_errors=[])
    pace = services.env.turns.pace()
    for _, states in _parts(request.topic_states, ()):
        await pace.rest()
        if services.server.last_told != told_by:
            return StopReplicaResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        part = copy(request)
        part.topic_states = states
        answer = services.replica_manager.stop_replica(part)
        if answer.error_code:
            return answer
        response.partition_errors += answer.partition_errors
    return response


def _parts(topics: Sequence[TopicT], hosted: Container[tuple[str, int]]) -> Iterator[tuple[list[int], list[TopicT]]]:
    """Some partitions of some topics, and the places of these topics. Few partitions, if they have no folder yet."""
    places: list[int] = []
    part: list[TopicT] = []
    weight = 0
    for place, topic in enumerate(topics):
        for state in topic.partition_states:
            if weight >= ROLES_PER_PART:
                yield places, part
                places, part, weight = [], [], 0
            if not places or places[-1] != place:
                places.append(place)
                part.append(copy(topic))
                part[-1].partition_states = []
            part[-1].partition_states.append(state)
            weight += 1 if (topic.topic_name, state.partition_index) in hosted else ROLES_FOR_A_FOLDER
    if part:
        yield places, part


def _whole(topics: list[TopicT]) -> Iterator[tuple[Sequence[int], list[TopicT]]]:
    yield range(len(topics)), topics


@api(ApiKey.UPDATE_METADATA, versions=(6, 8), access=admin_access.of_brokers, is_announced=False, is_of_brokers=True)
def update_metadata(
    services: Services, request: UpdateMetadataRequest, context: RequestContext
) -> UpdateMetadataResponse:
    """Update the live brokers, and the state of partitions."""
    if request.broker_epoch == UNKNOWN_BROKER_EPOCH:
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    return services.replica_manager.update_metadata(request)
