"""DescribeProducers (key 61), version 0: the idempotent producers of a partition (KIP-664).

Any replica answers, not only the leader. CoordinatorEpoch is the epoch in the producer's last transaction marker, -1
before the first marker. A producer is listed until the periodic expiry removes it.
"""

from barnabas.broker.access import records as records_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.topic_names import topic_name_problem
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DescribeProducersRequest, DescribeProducersResponse
from barnabas.runtime.turns import Pieces

PartitionResponse = DescribeProducersResponse.PartitionResponse


@api(
    ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    access=records_access.describe_producers,
    failure=each_row(value="partition_index", topics="topics", partition_indexes="partitions"),
    is_wide=True,
)
def describe_producers(services: Services, request: DescribeProducersRequest, context: RequestContext) -> Reply:
    """The active producers of each partition asked for."""
    return services.env.turns.run(_describe_all(services, request))


def _describe_all(services: Services, request: DescribeProducersRequest) -> Pieces[DescribeProducersResponse]:
    response = DescribeProducersResponse()
    for topic in request.topics:
        answer = DescribeProducersResponse.TopicResponse(name=topic.name)
        response.topics.append(answer)
        for index in topic.partition_indexes:
            yield
            answer.partitions.append(describe(services, topic.name, index))
    return response


def describe(services: Services, topic: str, index: int) -> DescribeProducersResponse.PartitionResponse:
    """The producers of one partition; an error if this broker has no replica of it."""
    result = PartitionResponse(partition_index=index)
    problem = topic_name_problem(topic)
    if problem is not None:
        result.error_code, result.error_message = ErrorCode.INVALID_TOPIC_EXCEPTION, problem
        return result
    partition = services.replica_manager.partition(topic, index)
    if isinstance(partition, ErrorCode):
        result.error_code = partition
        if not services.metadata_cache.contains(topic):
            result.error_message = "There is no such topic."
        return result
    for entry in partition.log.producers.entries.values():
        result.active_producers.append(
            DescribeProducersResponse.ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_transaction_first_offset,
            )
        )
    return result
