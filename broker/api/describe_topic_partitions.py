"""DescribeTopicPartitions (key 75), version 0: the partitions of topics in pages (KIP-966).

Topics come in the order of their names. A page holds at most ResponsePartitionLimit partitions (at least one, at most
max.request.partition.size.limit); NextCursor says where the next page begins. Left out: eligible leader
replicas, which only a KRaft controller has, so both lists are always empty.
"""

from barnabas.broker.access import topics as topics_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.api.metadata import TOPIC_OPERATIONS
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.metadata_cache import MetadataCache, PartitionMetadata
from barnabas.cluster.security.acls import AclOperation, ResourceType
from barnabas.cluster.topic_names import INTERNAL_TOPICS, topic_name_problem
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from barnabas.runtime.turns import Pieces

TopicResponse = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Cursor = DescribeTopicPartitionsResponse.Cursor
PartitionResponse = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


@api(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    access=topics_access.describe_topic_partitions,
    failure=each_row(topics="topics"),
    is_wide=True,
)
def describe_topic_partitions(
    services: Services, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Reply:
    """One page of partitions, from the cursor on."""
    cursor = request.cursor
    asked = {topic.name for topic in request.topics}
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        names = sorted(asked)
        topics = [TopicResponse(error_code=ErrorCode.INVALID_REQUEST, name=name) for name in names]
        return DescribeTopicPartitionsResponse(topics=topics)
    limit = max(1, min(services.config.max_request_partition_size_limit, request.response_partition_limit))
    names = sorted(asked or set(services.metadata_cache.topics))
    rights = context.rights
    if not asked and rights is not None:
        names = [name for name in names if rights.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name)]
    page = describe_page(
        services,
        names,
        cursor_topic="" if cursor is None else cursor.topic_name,
        cursor_partition=0 if cursor is None else cursor.partition_index,
        limit=limit,
    )
    return services.env.turns.run(page)


def describe_page(
    services: Services, names: list[str], *, cursor_topic: str, cursor_partition: int, limit: int
) -> Pieces[DescribeTopicPartitionsResponse]:
    """At most `limit` partitions of the sorted `names`, from the cursor on. A topic with an error counts as none."""
    response = DescribeTopicPartitionsResponse()
    metadata_cache = services.metadata_cache
    for name in names:
        yield
        if name < cursor_topic:
            continue
        if limit == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        partitions = metadata_cache.topics.get(name)
        if partitions is None:
            error = (
                ErrorCode.INVALID_TOPIC_EXCEPTION if topic_name_problem(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            response.topics.append(
                TopicResponse(error_code=error, name=name, topic_authorized_operations=TOPIC_OPERATIONS)
            )
            continue
        first = cursor_partition if name == cursor_topic else 0
        wanted = [(index, partitions[index]) for index in sorted(partitions) if index >= first]
        topic = TopicResponse(
            name=name,
            topic_id=metadata_cache.topic_id(name),
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=TOPIC_OPERATIONS,
        )
        response.topics.append(topic)
        for index, state in wanted[:limit]:
            topic.partitions.append(describe_partition(metadata_cache, index, state))
            yield
        if len(wanted) > limit:
            response.next_cursor = Cursor(topic_name=name, partition_index=wanted[limit][0])
            break
        limit -= len(wanted)
    return response


def describe_partition(metadata_cache: MetadataCache, index: int, state: PartitionMetadata) -> PartitionResponse:
    """One partition as the metadata cache knows it. A dead broker's replica is offline; no leader is not an error."""
    offline = [replica for replica in state.replicas if not metadata_cache.is_alive(replica)]
    offline += [replica for replica in state.offline_replicas if replica not in offline]
    return PartitionResponse(
        partition_index=index,
        leader_id=state.leader_id,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=offline,
    )
