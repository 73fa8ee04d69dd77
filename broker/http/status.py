"""`/v1/status`: what this broker is, and how far it is."""

from barnabas.broker.access.http import of_cluster
from barnabas.broker.http.routes import HttpAnswer, HttpRequest, route
from barnabas.broker.http.schemas import array, integer, record, text
from barnabas.broker.services import Services
from barnabas.cluster.security.acls import AclOperation
from barnabas.protocol.api_keys import ApiKey

STATUS = record(
    "A broker.",
    node_id=integer("Its number."),
    cluster_id=text("The id of its cluster; empty while it starts."),
    state=text("Whether it serves clients.", one_of=("starting", "serving", "stopping")),
    bootstrap=text("host:port at which Kafka's clients reach it."),
    http_address=text("host:port of this API, with https:// before it where it has TLS.", nullable=True),
    controller_id=integer("The broker that is the controller; -1: it is not known."),
    brokers=array(integer("A number."), "The brokers of the cluster that live."),
    groups=integer("How many groups it coordinates."),
    loading_partitions=array(
        integer("A partition of __consumer_offsets."), "Partitions whose groups are being loaded; others may be asked."
    ),
)


@route(
    "GET",
    "/v1/status",
    summary="What this broker is",
    answer=STATUS,
    while_starting=True,
    access=of_cluster(ApiKey.DESCRIBE_CLUSTER, AclOperation.DESCRIBE),
)
def status(services: Services, request: HttpRequest) -> HttpAnswer:
    """Number, cluster, state and addresses. Answered also while the broker starts."""
    state = "starting"
    if services.http.is_closing:
        state = "stopping"
    elif services.server.serving:
        state = "serving"
    cache, shards = services.metadata_cache, services.group_coordinator.shards
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "cluster_id": services.cluster_id,
            "state": state,
            "bootstrap": services.addresses.bootstrap,
            "http_address": services.http.address,
            "controller_id": cache.controller_id,
            "brokers": sorted(cache.brokers),
            "groups": sum(len(shard.groups) + len(shard.consumer.by_id) for shard in shards.values()),
            "loading_partitions": sorted(partition for partition, shard in shards.items() if shard.loading),
        }
    )
