"""CreateTopics (key 19) versions 0-7, DeleteTopics (20) versions 0-6, CreatePartitions (37) versions 0-3.

Only the broker that is controller serves them; another answers NOT_CONTROLLER. Each request writes into the
coordination tree and waits, up to TimeoutMs, until the metadata cache shows the change: then clients see it too. If
TimeoutMs is zero or less, nothing is done, as in Kafka 4.3: all rows get REQUEST_TIMED_OUT, unless each is refused
without a look at what is there. The tree says whether a topic exists, because the cache may not yet have what was
written a moment ago. Left out: create.topic.policy.class.name (Java code).

A client above its controller_mutation_rate gets THROTTLING_QUOTA_EXCEEDED for what it may not do now (KIP-599). What is
only validated counts, too, as in Kafka 4.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from barnabas.broker.access import topics as topics_access
from barnabas.broker.requests import RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.metadata_cache import NO_TOPIC_ID
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC, topic_name_problem
from barnabas.cluster.tree import paths
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from barnabas.runtime.turns import ended

CreatedTopic = CreateTopicsResponse.CreatableTopicResult
DeletedTopic = DeleteTopicsResponse.DeletableTopicResult
GrownTopic = CreatePartitionsResponse.CreatePartitionsTopicResult

UNSET = -1  # a count that the client leaves to the broker
# Partitions that one request may create; each topic counts as one more. Kafka has this limit too.
CREATIONS_MAX = 10_000
DESCRIBED_SINCE = 5  # the version of CreateTopics from which on the answer has partitions and settings
TOO_MANY = "Excessively large number of partitions per request."
METADATA_TOPIC = "__cluster_metadata"  # the log of KRaft's quorum, which clients must not have


def twice(names: Iterable[object]) -> set[object]:
    """The names that are given more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


async def exists(services: Services, name: str, timeout_ms: int) -> bool:
    """Whether the topic exists. If it is in the tree only, wait until this broker knows it, up to `timeout_ms`."""
    cache = services.metadata_cache
    if cache.contains(name) or topic_name_problem(name) is not None:
        return cache.contains(name)
    tree = services.coordination
    # In this order, because a topic and the wish to delete it go together.
    if await tree.exists(paths.delete_topic(name)) is not None or await tree.exists(paths.topic(name)) is None:
        return False
    return await ended(cache.wait_for(lambda: cache.contains(name), timeout_ms))


# --- CreateTopics ---


def create_topics_failed(request: CreateTopicsRequest, error: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[refused(topic.name, error, None) for topic in request.topics])


def refused(name: str, error: ErrorCode, message: str | None) -> CreateTopicsResponse.CreatableTopicResult:
    return CreatedTopic(name=name, error_code=error, error_message=message)


@api(
    ApiKey.CREATE_TOPICS,
    versions=(0, 7),
    access=topics_access.create_topics,
    failure=create_topics_failed,
    is_wide=True,
)
async def create_topics(
    services: Services, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create each topic, or answer why not. From version 5 on, the answer has the topic's partitions and settings.

    -1 partitions or replicas mean the broker's defaults, in every version, as in Kafka 4.1. With ValidateOnly nothing
    is written; as in Kafka, the answer then has a topic id that no topic will have.
    """
    if not services.controller.active:
        return create_topics_failed(request, ErrorCode.NOT_CONTROLLER)
    duplicates = twice(topic.name for topic in request.topics)
    if request.timeout_ms <= 0 and any(topic.name not in duplicates for topic in request.topics):
        return create_topics_failed(request, ErrorCode.REQUEST_TIMED_OUT)
    pace = services.env.turns.pace()
    wanted = sum(1 + (len(t.assignments) or max(t.num_partitions, 1)) for t in request.topics[:CREATIONS_MAX])
    if wanted > CREATIONS_MAX:  # a topic counts as two at least
        too_many = []
        for topic in request.topics:
            await pace.rest()
            too_many.append(refused(topic.name, ErrorCode.POLICY_VIOLATION, TOO_MANY))
        await note_refusals(services, context, too_many)
        return CreateTopicsResponse(topics=too_many)
    mutations = services.throttles.mutations(context)
    results = {}
    for topic in request.topics:
        await pace.rest()
        if topic.name in duplicates:
            results[topic.name] = refused(topic.name, ErrorCode.INVALID_REQUEST, "The topic is named more than once.")
        else:
            results[topic.name] = await create_topic(
                *(services, topic, mutations.may),
                validate_only=request.validate_only,
                describes=context.api_version >= DESCRIBED_SINCE,
            )
    created = [result for result in results.values() if result.error_code == ErrorCode.NONE]
    if created and not request.validate_only:
        cache = services.metadata_cache
        counts = {result.name: result.num_partitions for result in created}
        await ended(
            cache.wait_for(
                lambda: all(cache.has_leaders(name, count) for name, count in counts.items()), request.timeout_ms
            )
        )
        for result in created:
            result.topic_id = cache.topic_id(result.name)
            if not cache.has_leaders(result.name, counts[result.name]):
                results[result.name] = refused(result.name, ErrorCode.REQUEST_TIMED_OUT, None)
                results[result.name].topic_id = result.topic_id
    await note_refusals(services, context, results.values())
    return CreateTopicsResponse(topics=list(results.values()), throttle_time_ms=mutations.throttle_ms())


async def note_refusals(
    services: Services,
    context: RequestContext,
    results: Iterable[
        CreateTopicsResponse.CreatableTopicResult
        | DeleteTopicsResponse.DeletableTopicResult
        | CreatePartitionsResponse.CreatePartitionsTopicResult
    ],
) -> None:
    pace = services.env.turns.pace()
    for result in results:
        if result.error_code:
            await pace.rest()
            why = result.error_message or "no details"
            services.refusals.note(context, ErrorCode(result.error_code), "topic %r: %s", result.name or "", why)


async def create_topic(
    services: Services,
    topic: CreateTopicsRequest.CreatableTopic,
    may_change: Callable[[int], bool],
    *,
    validate_only: bool,
    describes: bool,
) -> CreateTopicsResponse.CreatableTopicResult:
    """Write one topic into the tree. The result `describes` the topic as it will be when it exists."""
    if topic.name == METADATA_TOPIC:
        message = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
        return refused(topic.name, ErrorCode.INVALID_REQUEST, message)
    configs = {config.name: config.value for config in topic.configs}
    assignments = [(entry.partition_index, list(entry.broker_ids)) for entry in topic.assignments]
    if topic.name == JOURNAL_TOPIC:
        message = f"{JOURNAL_TOPIC} has the partitions of {OFFSETS_TOPIC}, so brokers make it (offsets.journal.enable)."
        return refused(topic.name, ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    error, problem = await services.topic_admin.create_topic(
        topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=configs,
        assignment=assignments or None,
        validate_only=validate_only,
        may_change=may_change,
    )
    if error is not ErrorCode.NONE:
        return refused(topic.name, error, problem)
    partitions, factor = topic.num_partitions, topic.replication_factor
    if assignments:
        partitions, factor = len(assignments), len(assignments[0][1])
    else:
        partitions = services.config.num_partitions if partitions == UNSET else partitions
        factor = services.config.default_replication_factor if factor == UNSET else factor
    return CreatedTopic(
        name=topic.name,
        topic_id=services.env.random_uuid() if validate_only else NO_TOPIC_ID,
        error_message=None,
        num_partitions=partitions,
        replication_factor=factor,
        configs=_described(services, topic) if describes else [],
    )


def _described(
    services: Services, topic: CreateTopicsRequest.CreatableTopic
) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    """All settings of a topic that has been created as the client wants it."""
    from barnabas.config.describe import topic_rows  # late: not needed to serve

    return [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=row.name,
            value=row.value,
            read_only=row.read_only,
            config_source=row.config_source,
            is_sensitive=row.is_sensitive,
        )
        for row in topic_rows({config.name: config.value or "" for config in topic.configs}, services.config)
    ]


# --- DeleteTopics ---


def delete_topics_failed(request: DeleteTopicsRequest, error: ErrorCode) -> DeleteTopicsResponse:
    by_name = [DeletedTopic(name=name, error_code=error) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=by_name
        + [DeletedTopic(name=topic.name, topic_id=topic.topic_id, error_code=error) for topic in request.topics]
    )


@api(
    ApiKey.DELETE_TOPICS,
    versions=(0, 6),
    access=topics_access.delete_topics,
    failure=delete_topics_failed,
    is_wide=True,
)
async def delete_topics(
    services: Services, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Delete topics by name, or in version 6 by id; the answer of version 6 has both."""
    if not services.controller.active:
        return delete_topics_failed(request, ErrorCode.NOT_CONTROLLER)
    if not services.config.delete_topic_enable:
        old = context.api_version < 3
        return delete_topics_failed(request, ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED)
    cache = services.metadata_cache
    asked: list[tuple[str | None, bytes]] = [(name, NO_TOPIC_ID) for name in request.topic_names]
    asked += [(topic.name, topic.topic_id) for topic in request.topics]
    duplicates = twice(name or topic_id for name, topic_id in asked)
    if request.timeout_ms <= 0 and not all(_misnamed(name, topic_id, duplicates) for name, topic_id in asked):
        return delete_topics_failed(request, ErrorCode.REQUEST_TIMED_OUT)
    by_name = {name for name, topic_id in asked if name is not None and topic_id == NO_TOPIC_ID} - duplicates
    by_id = {topic_id for name, topic_id in asked if name is None}
    results: dict[object, DeleteTopicsResponse.DeletableTopicResult] = {}
    mutations = services.throttles.mutations(context)
    pace = services.env.turns.pace()
    for name, topic_id in asked:
        await pace.rest()
        if name is None and cache.topic_name(topic_id) in by_name:
            continue  # the answer by the name says it
        result = results[name or topic_id] = DeletedTopic(name=name, topic_id=topic_id)
        misnamed = _misnamed(name, topic_id, duplicates)
        if misnamed is not None:
            refuse(result, ErrorCode.INVALID_REQUEST, misnamed)
        elif name is None and cache.topic_name(topic_id) is None:
            refuse(result, ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id.")
        elif name is not None and not await exists(services, name, request.timeout_ms):
            refuse(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such topic.")
        else:
            result.name = name if name is not None else cache.topic_name(topic_id)
            assert result.name is not None
            result.topic_id = cache.topic_id(result.name)
            if name is not None and result.topic_id in by_id:
                refuse(result, ErrorCode.INVALID_REQUEST, "The topic is named by its id, too.")
                continue
            wanted_id = topic_id if name is None else None
            if not mutations.may(cache.partition_count(result.name)):
                refuse(result, ErrorCode.THROTTLING_QUOTA_EXCEEDED, None)
                continue
            result.error_code, result.error_message = await services.topic_admin.delete_topic(result.name, wanted_id)
    going = [result for result in results.values() if result.error_code == ErrorCode.NONE]
    if going:
        names = [result.name for result in going if result.name is not None]
        await ended(cache.wait_for(lambda: not any(cache.contains(name) for name in names), request.timeout_ms))
    for result in going:
        if cache.contains(result.name or ""):
            refuse(result, ErrorCode.REQUEST_TIMED_OUT, None)
    await note_refusals(services, context, results.values())
    return DeleteTopicsResponse(responses=list(results.values()), throttle_time_ms=mutations.throttle_ms())


def _misnamed(name: str | None, topic_id: bytes, duplicates: set[object]) -> str | None:
    """Why a row names no topic, if it does not."""
    if name is not None and topic_id != NO_TOPIC_ID:
        return "You may not specify both topic name and topic id."
    if name is None and topic_id == NO_TOPIC_ID:
        return "Neither topic name nor id were specified."
    return "The topic is named more than once." if (name or topic_id) in duplicates else None


def refuse(result: DeleteTopicsResponse.DeletableTopicResult, error: ErrorCode, message: str | None) -> None:
    result.error_code, result.error_message = error, message


# --- CreatePartitions ---


def create_partitions_failed(request: CreatePartitionsRequest, error: ErrorCode) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(results=[GrownTopic(name=topic.name, error_code=error) for topic in request.topics])


@api(
    ApiKey.CREATE_PARTITIONS, versions=(0, 3), access=topics_access.create_partitions, failure=create_partitions_failed
)
async def create_partitions(
    services: Services, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Raise the number of partitions. Count is the new total."""
    if not services.controller.active:
        return create_partitions_failed(request, ErrorCode.NOT_CONTROLLER)
    duplicates = twice(topic.name for topic in request.topics)
    if request.timeout_ms <= 0 and any(topic.name not in duplicates for topic in request.topics):
        return create_partitions_failed(request, ErrorCode.REQUEST_TIMED_OUT)
    cache = services.metadata_cache
    results = {}
    counts: dict[str, tuple[int, int]] = {}  # by topic: how many there shall be, and how many there were
    mutations = services.throttles.mutations(context)
    pace = services.env.turns.pace()
    for topic in request.topics:
        await pace.rest()
        if topic.name in duplicates:
            error, message = ErrorCode.INVALID_REQUEST, "The topic is named more than once."
        elif not await exists(services, topic.name, request.timeout_ms):
            error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        elif topic.count - cache.partition_count(topic.name) > CREATIONS_MAX:
            error, message = ErrorCode.POLICY_VIOLATION, TOO_MANY
        else:
            counts[topic.name] = topic.count, cache.partition_count(topic.name)
            error, message = await services.topic_admin.create_partitions(
                topic.name,
                topic.count,
                None if topic.assignments is None else [list(entry.broker_ids) for entry in topic.assignments],
                validate_only=request.validate_only,
                may_change=mutations.may,
            )
        results[topic.name] = GrownTopic(name=topic.name, error_code=error, error_message=message)
    counts = {name: both for name, both in counts.items() if results[name].error_code == ErrorCode.NONE}
    if counts and not request.validate_only:
        await ended(
            cache.wait_for(
                lambda: all(cache.has_leaders(name, *both) for name, both in counts.items()), request.timeout_ms
            )
        )
        for name, both in counts.items():
            if not cache.has_leaders(name, *both):
                results[name].error_code = ErrorCode.REQUEST_TIMED_OUT
    await note_refusals(services, context, results.values())
    return CreatePartitionsResponse(results=list(results.values()), throttle_time_ms=mutations.throttle_ms())
