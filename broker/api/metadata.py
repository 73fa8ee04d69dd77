"""Metadata (key 3), versions 0-13: brokers, controller, topics with their partitions.

A topic that is asked for by name and does not exist is created, if the broker and the request allow it. The answer
waits up to half a second for the topic. Only if the topic takes longer, the client gets UNKNOWN_TOPIC_OR_PARTITION and
asks again; Kafka 4.1 gives this answer at once.
REBOOTSTRAP_REQUIRED (version 13) is never answered: only brokers that know another cluster need it.
"""

from collections.abc import Container, Mapping

from barnabas.broker.access import topics as topics_access
from barnabas.broker.access.rules import NOT_ASKED
from barnabas.broker.auto_topics import absence_error
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.metadata_cache import PartitionMetadata
from barnabas.cluster.topic_names import INTERNAL_TOPICS
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import MetadataRequest, MetadataResponse
from barnabas.runtime.turns import Pieces, chunks

NAMES_PER_PIECE = 500  # looked at
# All operations that a resource of the kind has, as bits. Without an authorizer every client may do them all.
TOPIC_OPERATIONS = 3576  # read, write, create, delete, alter, describe, describe configs, alter configs
CLUSTER_OPERATIONS = 8096  # create, alter, describe, cluster action, describe configs, alter configs, idempotent write

Topic = MetadataResponse.MetadataResponseTopic
Partition = MetadataResponse.MetadataResponsePartition


def metadata_failed(request: MetadataRequest, error: ErrorCode) -> MetadataResponse:
    """Every topic that was named, with the error; from version 13 on, the error at the top level as well."""
    return MetadataResponse(
        error_code=error,
        topics=[
            Topic(name=asked.name or "", topic_id=asked.topic_id, error_code=error) for asked in request.topics or ()
        ],
    )


@api(ApiKey.METADATA, versions=(0, 13), access=topics_access.metadata, failure=metadata_failed, is_wide=True)
def metadata(services: Services, request: MetadataRequest, context: RequestContext) -> Reply:
    """What the metadata cache knows of the topics that are asked for, with the addresses that this client can use."""
    if request.topics and request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        return services.env.turns.run(_after_creations(services, request, context))
    return services.env.turns.run(_metadata(services, request, context, {}))


def _after_creations(services: Services, request: MetadataRequest, context: RequestContext) -> Pieces[MetadataResponse]:
    """Begin to create what is absent, and answer when that is done."""
    refusals: dict[str, ErrorCode] = {}
    absent: dict[str, None] = {}
    is_by_id = False
    for topics in chunks(request.topics or (), NAMES_PER_PIECE):
        yield
        # One id is enough, as in Kafka, because its Java Admin leaves names empty.
        is_by_id = is_by_id or any(map(topics_access.has_id, topics))
        there = services.metadata_cache.topics
        absent.update({topic.name: None for topic in topics if topic.name is not None and topic.name not in there})
    if absent and not is_by_id:
        may_change = services.throttles.mutations(context).may
        for name in absent:
            yield
            refusals[name] = services.auto_topics.create(name, may_change)
        yield services.auto_topics.creations_ended(list(absent))
    return (yield from _metadata(services, request, context, refusals))


def _metadata(
    services: Services, request: MetadataRequest, context: RequestContext, refusals: Mapping[str, ErrorCode]
) -> Pieces[MetadataResponse]:
    """The answer. `refusals`: the errors of the topics that were to be created, by name."""
    version = context.api_version
    asked = request.topics
    names: dict[str, None] = {}
    ids: dict[bytes, None] = {}
    for entries in chunks(asked or (), NAMES_PER_PIECE):
        ids.update({entry.topic_id: None for entry in entries if topics_access.has_id(entry)})
        names.update({entry.name: None for entry in entries if entry.name is not None})
        yield
    if ids and 10 <= version < 12:
        return metadata_failed(request, ErrorCode.INVALID_REQUEST)  # the field is there; ids work from 12 on
    cache = services.metadata_cache
    brokers = live_brokers(services, context)
    known = {broker.node_id for broker in brokers}
    topics: list[MetadataResponse.MetadataResponseTopic] = []
    absent: list[MetadataResponse.MetadataResponseTopic] = []
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if asked is None or (version == 0 and not asked):
        names = dict.fromkeys(cache.topics)
    elif ids:
        names = {}
        for topic_id in ids:
            yield
            name = cache.topic_name(topic_id)
            if name is None:
                topics.append(Topic(name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                names[name] = None
    for name in names:
        yield
        if cache.contains(name):
            partitions: list[MetadataResponse.MetadataResponsePartition] = []
            topics.append(
                Topic(
                    name=name,
                    topic_id=cache.topic_id(name),
                    is_internal=name in INTERNAL_TOPICS,
                    partitions=partitions,
                    topic_authorized_operations=operations,
                )
            )
            for index, state in list(cache.topics[name].items()):
                partitions.append(_partition(services, index, state, context, known))
                yield
        elif asked:  # in a list of all topics, it was deleted between two turns
            error = refusals.get(name) or absence_error(name)
            absent.append(
                Topic(
                    name=name,
                    error_code=error,
                    is_internal=name in INTERNAL_TOPICS,
                    topic_authorized_operations=operations,
                )
            )
            services.refusals.note(context, error, "topic %r is not there", name)
    asked_cluster = 8 <= version <= 10 and request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=brokers,
        cluster_id=services.cluster_id,
        controller_id=cache.controller_id,
        topics=topics + absent,
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked_cluster else NOT_ASKED,
    )


def live_brokers(services: Services, context: RequestContext) -> list[MetadataResponse.MetadataResponseBroker]:
    """The live brokers that have the listener by which the client has come."""
    brokers = services.metadata_cache.brokers
    return [
        MetadataResponse.MetadataResponseBroker(
            node_id=node_id, host=endpoint.host, port=endpoint.port, rack=brokers[node_id].rack
        )
        for node_id in brokers
        if (endpoint := services.addresses.of(node_id, context)) is not None
    ]


def _partition(
    services: Services, index: int, state: PartitionMetadata, context: RequestContext, known: Container[int]
) -> MetadataResponse.MetadataResponsePartition:
    """Of one partition. Only brokers that the answer names lead, though others may live by now: clients rely on it."""
    cache = services.metadata_cache
    version = context.api_version
    error = ErrorCode.NONE
    leader_id = state.leader_id
    replicas, isr = list(state.replicas), list(state.isr)
    offline = [replica for replica in replicas if not cache.is_alive(replica) or replica in state.offline_replicas]
    if version == 0 and offline:
        error = ErrorCode.REPLICA_NOT_AVAILABLE
        replicas = [replica for replica in replicas if cache.is_alive(replica)]
        isr = [replica for replica in isr if cache.is_alive(replica)]
    if leader_id not in known:
        lacks_listener = cache.is_alive(leader_id) and services.addresses.of(leader_id, context) is None
        error = ErrorCode.LISTENER_NOT_FOUND if lacks_listener and version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        leader_id = -1
    return Partition(
        error_code=error,
        partition_index=index,
        leader_id=leader_id,
        leader_epoch=state.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=offline,
    )
