"""DescribeClientQuotas (key 48) and AlterClientQuotas (49), versions 0-1 (KIP-546, 612). Any broker answers."""

from operator import attrgetter

from barnabas.broker.access import admin as admin_access
from barnabas.broker.api.topics import twice
from barnabas.broker.requests import RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.quota_table import Match, Problem, check_filter, check_value, entity_of, has_key, is_matched
from barnabas.cluster.tree.port import CoordinationError
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

Described = DescribeClientQuotasResponse.EntryData
Altered = AlterClientQuotasResponse.EntryData


def describe_failed(
    request: DescribeClientQuotasRequest, error: ErrorCode, message: str | None = None
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error, error_message=message, entries=None)


@api(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    access=admin_access.describe_quotas,
    failure=describe_failed,
    is_wide=True,
)
async def describe_client_quotas(
    services: Services, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """The quotas of all entities that match."""
    matches = [Match(each.entity_type, each.match_type, each.match) for each in request.components]
    try:
        check_filter(matches)
    except Problem as problem:
        return describe_failed(request, ErrorCode.INVALID_REQUEST, str(problem))
    except NotImplementedError as problem:
        return describe_failed(request, ErrorCode.UNSUPPORTED_VERSION, str(problem))
    response = DescribeClientQuotasResponse(error_message="", entries=[])
    pace = services.env.turns.pace()
    for entity, values in list(services.client_quotas.table.all.items()):
        await pace.rest()
        if not is_matched(entity, matches, strict=request.strict):
            continue
        assert response.entries is not None
        response.entries.append(
            Described(
                entity=[
                    DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.parts()
                ],
                values=[
                    DescribeClientQuotasResponse.ValueData(key=key, value=value)
                    for key, value in sorted(values.items())
                ],
            )
        )
    return response


def alter_failed(request: AlterClientQuotasRequest, error: ErrorCode) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[_answer(entry, error, None) for entry in request.entries])


def _answer(entry: AlterClientQuotasRequest.EntryData, error: ErrorCode, message: str | None) -> Altered:
    parts = sorted(entry.entity, key=attrgetter("entity_type"))  # a name may be null
    return Altered(
        error_code=error,
        error_message=message,
        entity=[
            AlterClientQuotasResponse.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            for part in parts
        ],
    )


@api(
    ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    access=admin_access.alters_configs_of_cluster,
    failure=alter_failed,
    is_wide=True,
)
async def alter_client_quotas(
    services: Services, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Set and remove quotas: of one entity all that was asked, or nothing.

    As in Kafka, an entity that is named again is answered once, with an error, and only its first entry counts.
    """
    answers: dict[frozenset[tuple[str, str | None]], Altered] = {}
    pace = services.env.turns.pace()
    for entry in request.entries:
        await pace.rest()
        parts = frozenset((part.entity_type, part.entity_name) for part in entry.entity)
        try:
            if parts in answers:
                raise Problem("The entity is named more than once.")
            entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
            if again := twice(op.key for op in entry.ops):
                raise Problem(f"Named more than once: {', '.join(sorted(map(str, again)))}")
            changes: dict[str, float | None] = {}
            for op in entry.ops:
                if op.remove and not has_key(entity, op.key):
                    continue  # nobody has such a quota, and its node may have a password of that name
                changes[op.key] = None if op.remove else op.value
                check_value(entity, op.key, changes[op.key])
            if changes and not request.validate_only:
                await services.client_quotas.alter(entity, changes)
        except Problem as problem:
            answers[parts] = _answer(entry, ErrorCode.INVALID_REQUEST, str(problem))
            services.refusals.note(context, ErrorCode.INVALID_REQUEST, "%s", str(problem))
        except CoordinationError as error:
            answers[parts] = _answer(entry, ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        else:
            answers[parts] = _answer(entry, ErrorCode.NONE, None)
    return AlterClientQuotasResponse(entries=list(answers.values()))
