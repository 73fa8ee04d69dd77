"""DescribeAcls (key 29), CreateAcls (30) and DeleteAcls (31), versions 0-3: the access rules of the cluster.

Any broker answers, as in Kafka 3.9 on ZooKeeper. Without an authorizer (`authorizer.class.name`) the answer is
SECURITY_DISABLED.
"""

from enum import IntEnum
from typing import Any, TypeVar

from barnabas.broker.access import admin as admin_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.security.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from barnabas.cluster.tree.port import CoordinationError
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from barnabas.runtime.turns import Pieces

RULES_PER_PIECE = 100
NO_AUTHORIZER = "No Authorizer is configured."
FIRST_VERSION_WITH_PATTERNS = 1

Created = CreateAclsResponse.AclCreationResult
Described = DescribeAclsResponse.AclDescription
Filtered = DeleteAclsResponse.DeleteAclsFilterResult
Removed = DeleteAclsResponse.DeleteAclsMatchingAcl
WordT = TypeVar("WordT", bound=IntEnum)


class InvalidRuleError(Exception):
    """A rule that cannot be created: str() says why."""


def _read(kind: type[WordT], number: int) -> WordT:
    """The enum member of a code; UNKNOWN for a code without one."""
    return kind(number) if number in kind._value2member_map_ else kind(0)


def _filter(asked: Any, version: int) -> AclFilter:
    pattern = asked.pattern_type_filter if version >= FIRST_VERSION_WITH_PATTERNS else PatternType.LITERAL
    return AclFilter(
        _read(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _read(PatternType, pattern),
        asked.principal_filter,
        asked.host_filter,
        _read(AclOperation, asked.operation),
        _read(Permission, asked.permission_type),
    )


# ------------------------------------------------------------------ DescribeAcls


@api(ApiKey.DESCRIBE_ACLS, versions=(0, 3), access=admin_access.describes_cluster, is_wide=True)
def describe_acls(services: Services, request: DescribeAclsRequest, context: RequestContext) -> Reply:
    """The rules that match the filter, by resource. No rule matches an unknown resource type."""
    if services.authorizer is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    wanted = _filter(request, context.api_version)
    return services.env.turns.run(_described(list(services.authorizer.table), wanted))


def _described(rules: list[Acl], wanted: AclFilter) -> Pieces[DescribeAclsResponse]:
    resources: dict[Resource, list[Described]] = {}
    for number, rule in enumerate(rules):
        if number % RULES_PER_PIECE == 0:
            yield
        if wanted.finds(rule):
            resources.setdefault(rule.resource, []).append(
                Described(
                    principal=rule.principal,
                    host=rule.host,
                    operation=rule.operation,
                    permission_type=rule.permission,
                )
            )
    return DescribeAclsResponse(
        error_message="",
        resources=[
            DescribeAclsResponse.DescribeAclsResource(
                resource_type=resource.type, resource_name=resource.name, pattern_type=resource.pattern, acls=rows
            )
            for resource, rows in resources.items()
        ],
    )


# ------------------------------------------------------------------ CreateAcls


create_acls_failed = each_row(creations="results")


@api(ApiKey.CREATE_ACLS, versions=(0, 3), access=admin_access.alters_cluster, failure=create_acls_failed)
async def create_acls(services: Services, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Create rules independently of each other. Creating a rule that exists already succeeds."""
    if services.authorizer is None:
        answer: CreateAclsResponse = create_acls_failed(request, ErrorCode.SECURITY_DISABLED)
        for result in answer.results:
            result.error_message = NO_AUTHORIZER
        return answer
    results = [Created(error_message="") for _ in request.creations]
    rows: dict[Resource, list[tuple[Acl, Created]]] = {}  # those of one resource are written together
    pace = services.env.turns.pace()
    for asked, result in zip(request.creations, results, strict=True):
        await pace.rest()
        try:
            rule = _rule(asked, context.api_version)
            rows.setdefault(rule.resource, []).append((rule, result))
        except InvalidRuleError as error:
            result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(error)
            services.refusals.note(context, ErrorCode.INVALID_REQUEST, "%s", str(error))
    for together in rows.values():
        await pace.rest()
        try:
            await services.authorizer.add([rule for rule, _ in together])
        except CoordinationError as error:
            for _, result in together:
                result.error_code, result.error_message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return CreateAclsResponse(results=results)


def _rule(asked: CreateAclsRequest.AclCreation, version: int) -> Acl:
    """The requested rule; InvalidRuleError with Kafka's message."""
    type = _read(ResourceType, asked.resource_type)
    pattern = PatternType.LITERAL
    if version >= FIRST_VERSION_WITH_PATTERNS:
        pattern = _read(PatternType, asked.resource_pattern_type)
    operation, permission = _read(AclOperation, asked.operation), _read(Permission, asked.permission_type)
    if type not in OPERATIONS_OF:
        raise InvalidRuleError(f"Invalid resourceType {type.name}")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRuleError(f"Invalid patternType {pattern.name}")
    if operation <= AclOperation.ANY:
        raise InvalidRuleError(f"Invalid operation {operation.name}")
    if permission not in (Permission.DENY, Permission.ALLOW):
        raise InvalidRuleError(f"Invalid permissionType {permission.name}")
    name = asked.resource_name
    if type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidRuleError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        raise InvalidRuleError("Invalid empty resource name")
    if ":" not in asked.principal:
        why = "no colon is present separating the principal type from the principal name"
        raise InvalidRuleError(f"Could not parse principal from `{asked.principal}` ({why})")
    return Acl(Resource(type, name, pattern), asked.principal, asked.host, operation, permission)


# ------------------------------------------------------------------ DeleteAcls


delete_acls_failed = each_row(filters="filter_results")


def _unknown(wanted: AclFilter) -> str | None:
    """What of a filter is not known here, in Kafka's words: whoever sent it may mean more than is found."""
    if wanted.type is ResourceType.UNKNOWN or wanted.pattern is PatternType.UNKNOWN:
        return "Unknown patternFilter."
    if wanted.operation is AclOperation.UNKNOWN or wanted.permission is Permission.UNKNOWN:
        return "Unknown entryFilter."
    return None


@api(
    ApiKey.DELETE_ACLS,
    versions=(0, 3),
    access=admin_access.alters_cluster,
    failure=delete_acls_failed,
    is_wide=True,
)
async def delete_acls(services: Services, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Remove the rules that match each filter, and list them."""
    if services.authorizer is None:
        answer: DeleteAclsResponse = delete_acls_failed(request, ErrorCode.SECURITY_DISABLED)
        for result in answer.filter_results:
            result.error_message = NO_AUTHORIZER
        return answer
    results = []
    pace = services.env.turns.pace()
    for asked in request.filters:
        await pace.rest()
        wanted = _filter(asked, context.api_version)
        result = Filtered(error_message=None)
        results.append(result)
        if (unknown := _unknown(wanted)) is not None:
            result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, unknown
            continue
        try:
            removed = await services.authorizer.remove(wanted)
        except CoordinationError as error:
            result.error_code, result.error_message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
            continue
        for rule in removed:
            await pace.rest()
            row = Removed(
                error_message=None,
                resource_type=rule.resource.type,
                resource_name=rule.resource.name,
                pattern_type=rule.resource.pattern,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            result.matching_acls.append(row)
    return DeleteAclsResponse(filter_results=results)
