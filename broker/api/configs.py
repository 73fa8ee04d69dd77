"""DescribeConfigs (key 32) versions 0-4, AlterConfigs (33) 0-2, IncrementalAlterConfigs (44) 0-1 and
ListConfigResources (74) 0-1.

Resources: topics (2), brokers (4; the empty name means all brokers), broker loggers (8), client metrics subscriptions
(16) and groups (32). broker/config_resources.py reads and changes them. Left out:
alter.config.policy.class.name, which names Java code.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.broker.access import admin as admin_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.api.topics import twice
from barnabas.broker.requests import RequestContext, api
from barnabas.config.settings import ConfigError
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

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.config.describe import ConfigRow

BUILT_IN = 5  # the source of a value that nobody has set
Outcome = tuple[ErrorCode, str | None]
ResponseT = TypeVar("ResponseT", AlterConfigsResponse, IncrementalAlterConfigsResponse)
describe_failed = each_row(resources="results")
alter_failed = each_row(also={"error_message": None}, resources="responses")
TWICE: Outcome = (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


@api(
    ApiKey.DESCRIBE_CONFIGS,
    versions=(0, 4),
    access=admin_access.describe_configs,
    failure=describe_failed,
    is_wide=True,
)
async def describe_configs(
    services: "Services", request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """The settings in force of each resource, with synonyms and documentation if the client asks for them.

    As in Kafka, a resource of a type that is not known makes the whole request invalid.
    """
    from barnabas.broker.config_resources import Resource, rows_of

    pace = services.env.turns.pace()
    known = frozenset(Resource)
    for asked in request.resources:
        await pace.rest()
        if asked.resource_type not in known:
            unknown = f"Unknown resource type {asked.resource_type}"
            refused: DescribeConfigsResponse = describe_failed(request, ErrorCode.INVALID_REQUEST)
            for result in refused.results:
                result.error_message = unknown
            return refused

    response = DescribeConfigsResponse(results=[])
    for asked in request.resources:
        await pace.rest()
        result = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        response.results.append(result)
        try:
            rows = await rows_of(services, asked.resource_type, asked.resource_name, asked.configuration_keys)
        except ConfigError as error:
            result.error_code, result.error_message = error.error, str(error)
        else:
            result.configs = [_entry(row, request, context.api_version) for row in rows]
    return response


def _entry(
    row: "ConfigRow", request: DescribeConfigsRequest, version: int
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    synonyms = row.synonyms if request.include_synonyms else ()
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.read_only,
        is_default=version == 0 and row.config_source == BUILT_IN,  # later versions have the source instead
        config_source=row.config_source,
        is_sensitive=row.is_sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in synonyms
        ],
        config_type=row.config_type,
        # Loggers have no documentation: Kafka answers the empty text for them, whether the client asks or not.
        documentation=row.documentation if request.include_documentation or not row.documentation else None,
    )


@api(ApiKey.ALTER_CONFIGS, versions=(0, 2), access=admin_access.alter_configs, failure=alter_failed)
async def alter_configs(
    services: "Services", request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace all settings of each resource."""
    from barnabas.broker.config_resources import alter

    async def change(asked: AlterConfigsRequest.AlterConfigsResource) -> Outcome:
        entries = [(entry.name, entry.value) for entry in asked.configs]
        kind, name = asked.resource_type, asked.resource_name
        return await alter(services, kind, name, entries, validate_only=request.validate_only)

    return await _alter_each(services, AlterConfigsResponse(), request.resources, change)


@api(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    access=admin_access.alter_configs,
    failure=alter_failed,
)
async def incremental_alter_configs(
    services: "Services", request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from single settings of each resource."""
    from barnabas.broker.config_resources import alter_incrementally

    async def change(asked: IncrementalAlterConfigsRequest.AlterConfigsResource) -> Outcome:
        operations = [(entry.name, entry.config_operation, entry.value) for entry in asked.configs]
        kind, name = asked.resource_type, asked.resource_name
        return await alter_incrementally(services, kind, name, operations, validate_only=request.validate_only)

    return await _alter_each(services, IncrementalAlterConfigsResponse(), request.resources, change)


async def _alter_each(
    services: "Services", response: ResponseT, resources: Sequence[Any], change: Callable[[Any], Awaitable[Outcome]]
) -> ResponseT:
    """Change one resource after the other. One that is named twice is not changed."""
    duplicates = twice((asked.resource_type, asked.resource_name) for asked in resources)
    pace = services.env.turns.pace()
    for asked in resources:
        await pace.rest()
        is_twice = (asked.resource_type, asked.resource_name) in duplicates
        response.responses.append(_altered(type(response), asked, TWICE if is_twice else await change(asked)))
    return response


def _altered(response: Any, asked: Any, outcome: Outcome) -> Any:
    """One resource's result, as an object of the class that this response wants."""
    return response.AlterConfigsResourceResponse(
        error_code=outcome[0],
        error_message=outcome[1],
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


@api(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), access=admin_access.lists_configs)
async def list_config_resources(
    services: "Services", request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """Names of the resources of these types; of all types if none is named. Version 0: client metrics (KIP-1142)."""
    from barnabas.broker.config_resources import Resource, names_of

    wanted = set(request.resource_types) if context.api_version > 0 else {int(Resource.CLIENT_METRICS)}
    if wanted - set(Resource):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    response = ListConfigResourcesResponse()
    for resource in Resource:
        if not wanted or resource in wanted:
            response.config_resources += [
                ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=resource)
                for name in await names_of(services, resource)
            ]
    return response
