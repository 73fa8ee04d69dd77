"""Answers to Metadata with what was true some time ago."""

from collections.abc import Sequence

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import MetadataRequest, MetadataResponse

NO_ID = bytes(16)


def stale(
    kept: MetadataResponse, live: Sequence[MetadataResponse.MetadataResponseBroker], request: MetadataRequest
) -> MetadataResponse:
    """The answer to a request, from one that told of all topics. What was made since is not known.

    Brokers that are still there have the addresses by which this client may reach them (`live`).
    """
    addresses = {broker.node_id: broker for broker in live}
    brokers = [addresses.get(broker.node_id, broker) for broker in kept.brokers]
    answer = MetadataResponse(brokers=brokers, cluster_id=kept.cluster_id, controller_id=kept.controller_id)
    if request.topics is None:
        answer.topics = kept.topics
        return answer
    by_name = {topic.name: topic for topic in kept.topics}
    by_id = {topic.topic_id: topic for topic in kept.topics}
    for asked in request.topics:
        is_named = asked.name is not None
        found = by_name.get(asked.name) if is_named else by_id.get(asked.topic_id)
        if found is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_named else ErrorCode.UNKNOWN_TOPIC_ID
            found = MetadataResponse.MetadataResponseTopic(
                error_code=error, name=asked.name, topic_id=NO_ID if is_named else asked.topic_id
            )
        answer.topics.append(found)
    return answer
