"""`/v1/topics`: the topics of the cluster, and one of them with its partitions, as the controller has said."""

from collections.abc import Generator
from typing import Any

from barnabas.broker.access.http import everybody, of_path
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, Parameter, route
from barnabas.broker.http.schemas import array, boolean, integer, record, text
from barnabas.broker.services import Services
from barnabas.cluster.metadata_cache import PartitionMetadata
from barnabas.cluster.security.acls import AclOperation, ResourceType
from barnabas.cluster.topic_names import INTERNAL_TOPICS
from barnabas.protocol import uuids
from barnabas.protocol.api_keys import ApiKey

SUMMARY: dict[str, Any] = {
    "topic": text("Its name."),
    "topic_id": text("Its id."),
    "internal": boolean("Whether it is one of the broker's own."),
    "partitions": integer("How many partitions it has."),
    "replicas": integer("How many replicas a partition has, at most."),
    "without_leader": integer("Partitions that nobody leads."),
    "out_of_sync": integer("Partitions whose replicas are not all in sync."),
}
TOPICS = record("The topics of the cluster.", topics=array(record("A topic.", **SUMMARY), "Ordered by name."))
PARTITION = record(
    "A partition.",
    partition=integer("Its number."),
    leader=integer("The broker that leads it.", nullable=True),
    leader_epoch=integer("The epoch of its leader."),
    replicas=array(integer("A broker."), "Where its replicas are."),
    in_sync=array(integer("A broker."), "Those that are in sync."),
    offline=array(integer("A broker."), "Those that are away."),
)
TOPIC = record(
    "One topic.", **{**SUMMARY, "partitions": array(PARTITION, "Its partitions."), "count": SUMMARY["partitions"]}
)


@route(
    "GET",
    "/v1/topics",
    summary="The topics of the cluster",
    query=[Parameter("internal", boolean("Whether to list those of the broker itself, too. Default: false."))],
    answer=TOPICS,
    access=everybody(ApiKey.METADATA),
)
def list_topics(services: Services, request: HttpRequest) -> HttpAnswer:
    """Every broker knows all topics. Offsets are not here: ask Kafka's protocol (ListOffsets), or /metrics."""
    return HttpAnswer.json({"topics": _rows(services, request)})


def _rows(services: Services, request: HttpRequest) -> Generator[dict[str, Any] | None, None, None]:
    for topic in sorted(services.metadata_cache.topics):
        partitions = services.metadata_cache.topics.get(topic)
        is_asked = bool(request.query["internal"]) or topic not in INTERNAL_TOPICS
        if partitions is None or not is_asked or not request.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic):
            yield None  # deleted meanwhile, not asked for, or not for the sender
        else:
            yield _summary(services, topic, partitions)


def _summary(services: Services, topic: str, partitions: dict[int, PartitionMetadata]) -> dict[str, Any]:
    return {
        "topic": topic,
        "topic_id": uuids.to_text(services.metadata_cache.topic_id(topic)),
        "internal": topic in INTERNAL_TOPICS,
        "partitions": len(partitions),
        "replicas": max((len(each.replicas) for each in partitions.values()), default=0),
        "without_leader": sum(each.leader_id < 0 for each in partitions.values()),
        "out_of_sync": sum(len(each.isr) < len(each.replicas) for each in partitions.values()),
    }


@route(
    "GET",
    "/v1/topics/{topic}",
    summary="One topic",
    answer=TOPIC,
    access=of_path(ApiKey.METADATA, AclOperation.DESCRIBE, ResourceType.TOPIC, "topic"),
)
def describe_topic(services: Services, request: HttpRequest) -> HttpAnswer:
    """Who leads each partition, where its replicas are, and which of them are in sync."""
    topic = request.path["topic"]
    partitions = services.metadata_cache.topics.get(topic)
    if partitions is None:
        message = f"there is no topic {topic!r}. GET /v1/topics lists what there is."
        raise HttpError(404, "UNKNOWN_TOPIC_OR_PARTITION", message)
    summary = _summary(services, topic, partitions)
    return HttpAnswer.json({**summary, "count": len(partitions), "partitions": _partition_rows(partitions)})


def _partition_rows(partitions: dict[int, PartitionMetadata]) -> Generator[dict[str, Any], None, None]:
    for index, partition in sorted(partitions.items()):
        yield {
            "partition": index,
            "leader": partition.leader_id if partition.leader_id >= 0 else None,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "in_sync": list(partition.isr),
            "offline": list(partition.offline_replicas),
        }
