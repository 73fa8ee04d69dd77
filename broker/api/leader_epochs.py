"""OffsetForLeaderEpoch (key 23), versions 0-4: the end offset of a leader epoch, for a replica that must truncate.

Consumers ask as well, to notice that the log was truncated.
"""

from barnabas.broker.access import records as records_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from barnabas.runtime.turns import Pieces

TopicResult = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
Answer = OffsetForLeaderEpochResponse.EpochEndOffset


@api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(0, 4),
    access=records_access.offset_for_leader_epoch,
    failure=each_row(topics="topics", partitions="partitions"),
    is_wide=True,
    is_of_brokers=lambda request: request.replica_id >= 0,
)
def offset_for_leader_epoch(services: Services, request: OffsetForLeaderEpochRequest, context: RequestContext) -> Reply:
    """Only the leader of a partition answers; epoch -1 and offset -1 for an epoch that its log does not know."""
    return services.env.turns.run(_end_offsets(services, request))


def _end_offsets(services: Services, request: OffsetForLeaderEpochRequest) -> Pieces[OffsetForLeaderEpochResponse]:
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            yield
            result = services.replica_manager.offset_for_leader_epoch(
                topic.topic, asked.partition, asked.leader_epoch, current_leader_epoch=asked.current_leader_epoch
            )
            answers.append(
                Answer(
                    error_code=result.error,
                    partition=asked.partition,
                    leader_epoch=result.leader_epoch,
                    end_offset=result.end_offset,
                )
            )
        topics.append(TopicResult(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)
