"""ElectLeaders (key 43), versions 0-2 (KIP-460): preferred leaders, or any live replica where there is no leader.

Version 0 knows preferred elections only. Null partitions mean all; then those that need no election are left out of the
answer.
"""

from collections.abc import Mapping

from barnabas.broker.access import admin as admin_access
from barnabas.broker.requests import RequestContext, api
from barnabas.broker.services import Services
from barnabas.controller.leader_elections import ElectionResult, ElectionType
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ElectLeadersRequest, ElectLeadersResponse
from barnabas.runtime.turns import ended

TopicPartition = tuple[str, int]
TopicResult = ElectLeadersResponse.ReplicaElectionResult


def elect_leaders_failed(
    request: ElectLeadersRequest, error: ErrorCode, message: str | None = None
) -> ElectLeadersResponse:
    """The error for the request and for each partition that it names: version 0 has no other place for it."""
    response = answer({partition: ElectionResult(error, message) for partition in named(request)})
    response.error_code = error
    return response


def named(request: ElectLeadersRequest) -> list[TopicPartition]:
    """The partitions that the request names, each once."""
    return list(dict.fromkeys((topic.topic, i) for topic in request.topic_partitions or () for i in topic.partitions))


@api(
    ApiKey.ELECT_LEADERS,
    versions=(0, 2),
    access=admin_access.alters_cluster,
    failure=elect_leaders_failed,
    is_wide=True,
)
async def elect_leaders(
    services: Services, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Have the controller elect, and wait until this broker's clients see the new leaders, up to TimeoutMs.

    As in Kafka 3.9, a broker that is not the controller says so for each partition.
    """
    if request.timeout_ms <= 0 and request.topic_partitions != []:  # nothing is done in no time, as in Kafka
        return elect_leaders_failed(request, ErrorCode.REQUEST_TIMED_OUT)
    if request.election_type not in tuple(ElectionType):
        unknown = f"Unknown election type {request.election_type}"
        return elect_leaders_failed(request, ErrorCode.INVALID_REQUEST, unknown)
    cache = services.metadata_cache
    partitions = named(request)
    if request.topic_partitions is None:
        partitions = [(topic, index) for topic, indexes in cache.topics.items() for index in indexes]
    began_ms = services.env.clock.monotonic_ms()
    results = await ended(services.controller.elect_leaders(ElectionType(request.election_type), partitions))
    elected = {p: result.leader for p, result in results.items() if result.error is ErrorCode.NONE}

    def is_seen(partition: TopicPartition) -> bool:
        state = cache.partition(*partition)
        return state is not None and state.leader_id == elected[partition]

    left_ms = max(request.timeout_ms - (services.env.clock.monotonic_ms() - began_ms), 0)
    if not await ended(cache.wait_for(lambda: all(map(is_seen, elected)), left_ms)):
        unseen = [partition for partition in elected if not is_seen(partition)]
        results.update(dict.fromkeys(unseen, ElectionResult(ErrorCode.REQUEST_TIMED_OUT)))
    return answer(results, needless=request.topic_partitions is not None)


def answer(results: Mapping[TopicPartition, ElectionResult], *, needless: bool = True) -> ElectLeadersResponse:
    """The response with these results, and with those of partitions that needed no election or without them."""
    topics: dict[str, ElectLeadersResponse.ReplicaElectionResult] = {}
    for (topic, index), result in results.items():
        found = topics.get(topic)
        if found is None:
            found = topics[topic] = TopicResult(topic=topic, partition_result=[])
        if needless or result.error is not ErrorCode.ELECTION_NOT_NEEDED:
            found.partition_result.append(
                ElectLeadersResponse.PartitionResult(
                    partition_id=index, error_code=result.error, error_message=result.message
                )
            )
    return ElectLeadersResponse(replica_election_results=list(topics.values()))
