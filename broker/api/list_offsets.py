"""ListOffsets (key 2), versions 0-11: the earliest, the latest, by time, by largest timestamp.

Version 0 answers with a list of offsets. There is no tiered storage, so "latest tiered" and "earliest pending upload"
find nothing.
"""

from collections import Counter

from barnabas.broker.access import records as records_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from barnabas.runtime.turns import Pieces, chunks

FIRST_VERSION_WITH_LEADER_EPOCH = 4
COUNTED_PER_PIECE = 1000

Answer = ListOffsetsResponse.ListOffsetsPartitionResponse


@api(
    ApiKey.LIST_OFFSETS,
    versions=(0, 11),
    access=records_access.list_offsets,
    failure=each_row(topics="topics", partitions="partitions"),
    is_wide=True,
    is_of_brokers=lambda request: request.replica_id >= 0,
)
def list_offsets(services: Services, request: ListOffsetsRequest, context: RequestContext) -> Reply:
    """Look each partition up. From version 1 on, one that is named twice is answered once, with INVALID_REQUEST."""
    return services.env.turns.run(_list_offsets(services, request, context))


def _list_offsets(
    services: Services, request: ListOffsetsRequest, context: RequestContext
) -> Pieces[ListOffsetsResponse]:
    version = context.api_version
    asked: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        for partitions in chunks(topic.partitions, COUNTED_PER_PIECE):
            asked.update((topic.name, partition.partition_index) for partition in partitions)
            yield
    refused: set[tuple[str, int]] = set()
    manager = services.replica_manager
    topics = []
    for topic in request.topics:
        answers: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = []
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        for partition in topic.partitions:
            yield
            key = (topic.name, partition.partition_index)
            answer = Answer(partition_index=partition.partition_index)
            if version == 0:
                answer.error_code, answer.old_style_offsets = (
                    (ErrorCode.UNSUPPORTED_VERSION, [])
                    if partition.timestamp < -2
                    else manager.list_offsets_version_0(
                        *key, partition.timestamp, partition.max_num_offsets, replica_id=request.replica_id
                    )
                )
            elif asked[key] > 1:
                if key in refused:
                    continue
                refused.add(key)
                answer.error_code = ErrorCode.INVALID_REQUEST
            else:
                result = manager.list_offset(
                    *key,
                    partition.timestamp,
                    replica_id=request.replica_id,
                    isolation_level=request.isolation_level,
                    current_leader_epoch=partition.current_leader_epoch,
                    version=version,
                )
                answer.error_code = result.error
                answer.timestamp = result.timestamp
                answer.offset = result.offset
                if version >= FIRST_VERSION_WITH_LEADER_EPOCH:
                    answer.leader_epoch = result.leader_epoch
            answers.append(answer)
    return ListOffsetsResponse(topics=topics)
