"""DescribeConfigs (key 32) versions 0-4, AlterConfigs (33) 0-2, IncrementalAlterConfigs (44) 0-1 and
ListConfigResources (74) 0-1.

Resources: topics (2), brokers (4; the empty name: all of them), broker loggers (8), client metrics subscriptions (16)
and groups (32). What is changed goes into the coordination tree and comes back to every broker by a change notice; the
answer waits until this broker has applied it. Settings of groups and client metrics are kept and told; the groups of
the consumer protocol that read them come later. Left out: authorization, alter.config.policy.class.name (Java code).
"""

import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.broker import loggers
from barnabas.broker.api.topics import twice
from barnabas.broker.context import RequestContext
from barnabas.broker.dispatch import api
from barnabas.config import describe, entities, topic
from barnabas.config.alter import altered, replaced
from barnabas.config.broker import check_dynamic
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError, Table
from barnabas.coordination import paths
from barnabas.coordination.port import NodeExistsError, NoNodeError
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from barnabas.replication.topic_admin import topic_name_problem

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker

logger = logging.getLogger("barnabas.broker")

Operation = tuple[str, int, str | None]  # name, ConfigOperation, value
Overrides = Mapping[str, str]


class Resource(IntEnum):
    """Resource types by their number on the wire, in the order in which Kafka lists them."""

    GROUP = 32
    CLIENT_METRICS = 16
    BROKER_LOGGER = 8
    BROKER = 4
    TOPIC = 2


# The type in the coordination tree (`/config/<type>/<name>`) and the settings there are.
ENTITY_TYPES = {
    Resource.TOPIC: "topics",
    Resource.BROKER: "brokers",
    Resource.GROUP: "groups",
    Resource.CLIENT_METRICS: "client-metrics",
}
SETTINGS: dict[Resource, Table] = {
    Resource.TOPIC: topic.TOPIC_SETTINGS,
    Resource.BROKER: BROKER_SETTINGS,
    Resource.GROUP: entities.GROUP_SETTINGS,
    Resource.CLIENT_METRICS: entities.CLIENT_METRICS_SETTINGS,
}


def refusal(message: str, error: ErrorCode = ErrorCode.INVALID_REQUEST) -> ConfigError:
    """What is wrong with a resource itself."""
    return ConfigError(message, error=error)


# --- DescribeConfigs ---


def describe_configs_failed(request: DescribeConfigsRequest, error: ErrorCode) -> DescribeConfigsResponse:
    """Every resource with the error."""
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResponse.DescribeConfigsResult(
                error_code=error, resource_type=asked.resource_type, resource_name=asked.resource_name
            )
            for asked in request.resources
        ]
    )


@api(ApiKey.DESCRIBE_CONFIGS, versions=(0, 4), failure=describe_configs_failed)
async def describe_configs(
    broker: "Broker", request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """The settings in force of each resource; with synonyms and texts where they are asked for."""
    results = []
    for asked in request.resources:
        result = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        try:
            rows = await rows_of(broker, asked.resource_type, asked.resource_name, asked.configuration_keys)
        except ConfigError as error:
            result.error_code, result.error_message = error.error, str(error)
        else:
            result.configs = [_entry(row, request, context.api_version) for row in rows]
        results.append(result)
    return DescribeConfigsResponse(results=results)


async def rows_of(broker: "Broker", resource_type: int, name: str, keys: list[str] | None) -> list[describe.ConfigRow]:
    """The settings of one resource, those in `keys` where there are any. ConfigError when there is no such resource."""
    if resource_type == Resource.TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise refusal(problem, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not broker.metadata_cache.contains(name):
            raise refusal("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe.topic_rows(broker.config_changes.topic_overrides(name), broker.config, keys)
    if resource_type == Resource.BROKER and not name:
        return describe.cluster_rows(broker.config, keys)
    if resource_type == Resource.BROKER:
        check_broker(broker, name, " or empty string")
        return describe.broker_rows(broker.config, keys)
    if resource_type == Resource.BROKER_LOGGER:
        check_broker(broker, name, "")
        return loggers.rows(keys)
    if resource_type == Resource.GROUP:
        if not name:
            raise refusal("Group name must not be empty")
        own = await broker.topic_admin.overrides(entity_path(Resource.GROUP, name))
        return describe.group_rows(own, broker.config, keys)
    if resource_type == Resource.CLIENT_METRICS:
        if not name:
            raise refusal("Client metrics subscription name must not be empty")
        own = await broker.topic_admin.overrides(entity_path(Resource.CLIENT_METRICS, name))
        return describe.client_metrics_rows(own, keys)
    raise refusal(f"Unknown resource type {resource_type}")


def check_broker(broker: "Broker", name: str, also: str) -> None:
    """Raise ConfigError unless `name` is this broker's number: others have to be asked themselves."""
    try:
        number = int(name)
    except ValueError:
        raise refusal(f"Broker id must be an integer, but it is: {name}") from None
    if number != broker.node_id:
        raise refusal(f"Unexpected broker id, expected {broker.node_id}{also}, but received {name}")


def _entry(
    row: describe.ConfigRow, request: DescribeConfigsRequest, version: int
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    synonyms = row.synonyms if request.include_synonyms else ()
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.read_only,
        is_default=version == 0 and row.config_source == describe.ConfigSource.DEFAULT,  # 1 and up have the source
        config_source=row.config_source,
        is_sensitive=row.is_sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in synonyms
        ],
        config_type=row.config_type,
        documentation=row.documentation if request.include_documentation else None,
    )


# --- AlterConfigs, IncrementalAlterConfigs ---


def alter_configs_failed(request: AlterConfigsRequest, error: ErrorCode) -> AlterConfigsResponse:
    """Every resource with the error."""
    return AlterConfigsResponse(responses=[_altered(AlterConfigsResponse, a, (error, None)) for a in request.resources])


@api(ApiKey.ALTER_CONFIGS, versions=(0, 2), failure=alter_configs_failed)
async def alter_configs(
    broker: "Broker", request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace all settings of each resource. Loggers cannot be altered this way."""
    duplicates = twice((asked.resource_type, asked.resource_name) for asked in request.resources)
    response = AlterConfigsResponse()
    for asked in request.resources:
        outcome = TWICE
        if (asked.resource_type, asked.resource_name) not in duplicates:
            entries = [(entry.name, entry.value) for entry in asked.configs]
            outcome = await alter(
                broker,
                asked.resource_type,
                asked.resource_name,
                partial(_replaced, entries),
                validate_only=request.validate_only,
            )
        response.responses.append(_altered(AlterConfigsResponse, asked, outcome))
    return response


def incremental_alter_configs_failed(
    request: IncrementalAlterConfigsRequest, error: ErrorCode
) -> IncrementalAlterConfigsResponse:
    """Every resource with the error."""
    return IncrementalAlterConfigsResponse(
        responses=[_altered(IncrementalAlterConfigsResponse, asked, (error, None)) for asked in request.resources]
    )


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), failure=incremental_alter_configs_failed)
async def incremental_alter_configs(
    broker: "Broker", request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from single settings of each resource."""
    duplicates = twice((asked.resource_type, asked.resource_name) for asked in request.resources)
    response = IncrementalAlterConfigsResponse()
    for asked in request.resources:
        operations = [(entry.name, entry.config_operation, entry.value) for entry in asked.configs]
        if (asked.resource_type, asked.resource_name) in duplicates:
            outcome = TWICE
        elif asked.resource_type == Resource.BROKER_LOGGER:
            outcome = _alter_loggers(broker, asked.resource_name, operations, validate_only=request.validate_only)
        else:
            outcome = await alter(
                broker,
                asked.resource_type,
                asked.resource_name,
                partial(_changed, operations),
                validate_only=request.validate_only,
            )
        response.responses.append(_altered(IncrementalAlterConfigsResponse, asked, outcome))
    return response


def _replaced(entries: list[tuple[str, str | None]], settings: Table, current: Overrides) -> dict[str, str]:
    return replaced(entries)


def _changed(operations: list[Operation], settings: Table, current: Overrides) -> dict[str, str]:
    return altered(settings, current, operations)


Outcome = tuple[ErrorCode, str | None]
DONE: Outcome = (ErrorCode.NONE, None)
TWICE: Outcome = (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def _altered(response: Any, asked: Any, outcome: Outcome) -> Any:
    """One resource's result, in the class that this response has for it."""
    return response.AlterConfigsResourceResponse(
        error_code=outcome[0],
        error_message=outcome[1],
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


async def alter(
    broker: "Broker",
    resource_type: int,
    name: str,
    change: Callable[[Table, Overrides], dict[str, str]],
    *,
    validate_only: bool,
) -> Outcome:
    """Give one resource the settings that `change` makes of its present ones, once they are found valid."""
    try:
        if resource_type not in ENTITY_TYPES:
            raise refusal(f"Unknown resource type {resource_type}")
        resource = Resource(resource_type)
        _check_resource(broker, resource, name)
        values = change(SETTINGS[resource], await broker.topic_admin.overrides(entity_path(resource, name)))
        if resource is Resource.TOPIC and not broker.metadata_cache.contains(name):
            raise refusal(f"The topic '{name}' does not exist.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        _validate(broker, resource, name, values)
    except ConfigError as error:
        return error.error, str(error) or None
    if not validate_only:
        path = entity_path(resource, name)
        await _make_parent(broker, resource)
        await broker.topic_admin.write_overrides(path, values)
        await broker.config_changes.entity_changed(*path.split("/"))  # the notice comes too, but the answer waits
    return DONE


def entity_path(resource: Resource, name: str) -> str:
    """Where a resource's own settings are, below `/config`. Names of groups and subscriptions may be any text."""
    if resource in (Resource.GROUP, Resource.CLIENT_METRICS):
        name = paths.encode_name(name)
    return f"{ENTITY_TYPES[resource]}/{name or paths.DEFAULT_ENTITY}"


async def _make_parent(broker: "Broker", resource: Resource) -> None:
    """Kafka's ZooKeeper tree has no groups and client metrics, so their folder is made when it is first needed."""
    path = paths.config(ENTITY_TYPES[resource])
    if await broker.coordination.exists(path) is None:
        try:
            await broker.coordination.create(path)
        except NodeExistsError:
            return


def _check_resource(broker: "Broker", resource: Resource, name: str) -> None:
    """Raise ConfigError when the name cannot be one of that type's."""
    if resource is Resource.BROKER:
        if name:
            check_broker(broker, name, "")
    elif not name:
        raise refusal(f"Default {ENTITY_TYPES[resource]} resources are not allowed.")


def _validate(broker: "Broker", resource: Resource, name: str, values: Overrides) -> None:
    """Raise ConfigError unless the resource may have exactly these settings."""
    if resource is Resource.TOPIC:
        topic.validate(values)
    elif resource is Resource.BROKER:
        check_dynamic(broker.config, values, cluster=not name)
    elif resource is Resource.GROUP:
        entities.validate_group(values, broker.config)
    else:
        entities.validate_client_metrics(values)


def _alter_loggers(broker: "Broker", name: str, operations: list[Operation], *, validate_only: bool) -> Outcome:
    """Change levels of this process's loggers; nothing is stored."""
    try:
        check_broker(broker, name, "")
        loggers.check(operations)
    except ConfigError as error:
        return error.error, str(error)
    if not validate_only:
        loggers.apply(operations)
        for changed, _, value in operations:
            logger.info("logger %s now writes from level %s", changed, value or "of its parent")
    return DONE


# --- ListConfigResources ---


@api(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1))
async def list_config_resources(
    broker: "Broker", request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """Names of the resources of the types asked for (none: all). Version 0 only knows client metrics (KIP-1142)."""
    wanted = set(request.resource_types) if context.api_version > 0 else {int(Resource.CLIENT_METRICS)}
    if wanted - set(Resource):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    response = ListConfigResourcesResponse()
    for resource in Resource:
        if not wanted or resource in wanted:
            response.config_resources += [
                ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=resource)
                for name in await _names(broker, resource)
            ]
    return response


async def _names(broker: "Broker", resource: Resource) -> list[str]:
    if resource is Resource.TOPIC:
        return list(broker.metadata_cache.topics)
    if resource in (Resource.BROKER, Resource.BROKER_LOGGER):
        return [str(broker_id) for broker_id in sorted(broker.metadata_cache.brokers)]
    try:
        children = await broker.coordination.children(paths.config(ENTITY_TYPES[resource]))
    except NoNodeError:
        return []
    names = [paths.decode_name(child) for child in children]
    return [name for name in names if name and await broker.topic_admin.overrides(entity_path(resource, name))]
