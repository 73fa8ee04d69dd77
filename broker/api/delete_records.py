"""DeleteRecords (key 21), versions 0-2: raise the log start offset on all live replicas."""

from collections.abc import Iterable

from barnabas.broker.access import records as records_access
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from barnabas.replication import record_deletion
from barnabas.replication.record_deletion import DeleteRecordsResult
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, chunks

PARTITIONS_PER_PIECE = 20

Topics = dict[str, DeleteRecordsResponse.DeleteRecordsTopicResult]


def delete_records_failed(request: DeleteRecordsRequest, error: ErrorCode) -> DeleteRecordsResponse:
    topics: Topics = {}
    for topic in request.topics:
        add_results(topics, [DeleteRecordsResult(topic.name, each.partition_index, error) for each in topic.partitions])
    return DeleteRecordsResponse(topics=list(topics.values()))


@api(ApiKey.DELETE_RECORDS, versions=(0, 2), access=records_access.delete_records, failure=delete_records_failed)
def delete_records(services: Services, request: DeleteRecordsRequest, context: RequestContext) -> Reply:
    """Raise the log start; the answer comes when all live replicas have raised theirs, or after TimeoutMs.

    Of a partition that is named twice the last offset counts, as in Kafka.
    """
    return services.env.turns.run(_delete(services, request), to_the_end=True)


def _delete(services: Services, request: DeleteRecordsRequest) -> Pieces[DeleteRecordsResponse]:
    offsets: dict[tuple[str, int], int] = {}
    for topic in request.topics:
        for partitions in chunks(topic.partitions, PARTITIONS_PER_PIECE):
            yield
            offsets.update(((topic.name, partition.partition_index), partition.offset) for partition in partitions)
    outcomes = []
    for piece in chunks(list(offsets.items()), PARTITIONS_PER_PIECE):
        yield
        entries = [(name, index, offset) for (name, index), offset in piece]
        outcomes.append(record_deletion.delete(services.replica_manager, entries, request.timeout_ms))
    topics: Topics = {}
    for outcome in outcomes:
        yield
        add_results(topics, (yield outcome) if isinstance(outcome, Pending) else outcome)
    return DeleteRecordsResponse(topics=list(topics.values()))


def add_results(topics: Topics, results: Iterable[DeleteRecordsResult]) -> None:
    for result in results:
        topic = topics.get(result.topic)
        if topic is None:
            topic = topics[result.topic] = DeleteRecordsResponse.DeleteRecordsTopicResult(name=result.topic)
        topic.partitions.append(
            DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=result.partition_index, low_watermark=result.low_watermark, error_code=result.error
            )
        )
