"""DeleteRecords (key 21), versions 0-2: raise the log start offset on all live replicas."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.broker.context import Reply, RequestContext
from barnabas.broker.dispatch import api
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from barnabas.replication.replica_manager import DeleteRecordsResult
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, chunks

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker


PARTITIONS_PER_PIECE = 20


def delete_records_failed(request: DeleteRecordsRequest, error: ErrorCode) -> DeleteRecordsResponse:
    """Every partition with the error."""
    return respond(
        DeleteRecordsResult(topic.name, partition.partition_index, error)
        for topic in request.topics
        for partition in topic.partitions
    )


@api(ApiKey.DELETE_RECORDS, versions=(0, 2), failure=delete_records_failed)
def delete_records(broker: "Broker", request: DeleteRecordsRequest, context: RequestContext) -> Reply:
    """Raise the log start; the answer comes when all live replicas have raised theirs, or after TimeoutMs."""
    entries = [
        (topic.name, partition.partition_index, partition.offset)
        for topic in request.topics
        for partition in topic.partitions
    ]
    return broker.turns.run(_delete(broker, entries, request.timeout_ms), to_the_end=True)


def _delete(broker: "Broker", entries: list[tuple[str, int, int]], timeout_ms: int) -> Pieces[DeleteRecordsResponse]:
    outcomes = []
    for piece in chunks(entries, PARTITIONS_PER_PIECE):
        yield
        outcomes.append(broker.replica_manager.delete_records(piece, timeout_ms))
    results: list[DeleteRecordsResult] = []
    for outcome in outcomes:
        results += (yield outcome) if isinstance(outcome, Pending) else outcome
    return respond(results)


def respond(results: Iterable[DeleteRecordsResult]) -> DeleteRecordsResponse:
    """The response, with the results grouped by topic."""
    topics: dict[str, DeleteRecordsResponse.DeleteRecordsTopicResult] = {}
    for result in results:
        topic = topics.get(result.topic)
        if topic is None:
            topic = topics[result.topic] = DeleteRecordsResponse.DeleteRecordsTopicResult(name=result.topic)
        topic.partitions.append(
            DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=result.index, low_watermark=result.low_watermark, error_code=result.error
            )
        )
    return DeleteRecordsResponse(topics=list(topics.values()))
