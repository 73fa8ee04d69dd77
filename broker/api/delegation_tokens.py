"""CreateDelegationToken (key 38) and DescribeDelegationToken (41), versions 1-3, RenewDelegationToken (39) and
ExpireDelegationToken (40), versions 1-2.

Any broker answers. Nobody hears of tokens over a listener where clients are not known, or by a token.
"""

from typing import Any

from barnabas.broker.access import rules as access_rules
from barnabas.broker.access import tokens as token_access
from barnabas.broker.access.tokens import may_ask, may_describe, named, owner_of, parted
from barnabas.broker.requests import RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.security.acls import THIS_BROKER
from barnabas.cluster.tree.payloads import DelegationToken
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

Described = DescribeDelegationTokenResponse.DescribedDelegationToken
USER = "User"
NO_TIME = -1


def _problem(services: Services, context: RequestContext) -> ErrorCode | None:
    """Why tokens are not spoken of at all."""
    if not may_ask(services.config, context):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return None if services.delegation_tokens.is_enabled else ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def create_failed(request: Any, error: ErrorCode) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=error, issue_timestamp_ms=NO_TIME, expiry_timestamp_ms=NO_TIME, max_timestamp_ms=NO_TIME
    )


@api(ApiKey.CREATE_DELEGATION_TOKEN, versions=(1, 3), access=token_access.creates_tokens, failure=create_failed)
async def create_delegation_token(
    services: Services, request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    """Give out a token: its secret is told now, and to those who may describe it."""
    owner = owner_of(request, context)
    problem = _problem(services, context)
    is_foreign = owner == THIS_BROKER or any(renewer.principal_type != USER for renewer in request.renewers)
    if problem is None and is_foreign:
        problem = ErrorCode.INVALID_PRINCIPAL_TYPE
    if problem is not None:
        answer = create_failed(request, problem)
    else:
        renewers = tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in request.renewers)
        tokens = services.delegation_tokens
        token = await tokens.create(owner, str(context.principal), renewers, request.max_lifetime_ms)
        answer = CreateDelegationTokenResponse(
            issue_timestamp_ms=token.issued_ms,
            expiry_timestamp_ms=token.expires_ms,
            max_timestamp_ms=token.max_ms,
            token_id=token.token_id,
            hmac=tokens.hmac_of(token.token_id),
        )
    named(answer, owner, context)
    return answer


@api(ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2), access=access_rules.everybody)
async def renew_delegation_token(
    services: Services, request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    """Let a token count longer: its owner and its renewers may."""
    error, expires_ms = _problem(services, context), NO_TIME
    if error is None:
        asked = context.principal, bytes(request.hmac), request.renew_period_ms
        error, expires_ms = await services.delegation_tokens.renew(*asked)
    return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expires_ms)


@api(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2), access=access_rules.everybody)
async def expire_delegation_token(
    services: Services, request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    """Let a token end at another time, or now."""
    error, expires_ms = _problem(services, context), NO_TIME
    if error is None:
        asked = context.principal, bytes(request.hmac), request.expiry_time_period_ms
        error, expires_ms = await services.delegation_tokens.expire(*asked)
    return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expires_ms)


@api(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(1, 3), access=access_rules.everybody, is_wide=True)
async def describe_delegation_token(
    services: Services, request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    """The tokens that the client may see; `owners`: of these only. With their secrets, as in Kafka."""
    problem = _problem(services, context)
    if problem is not None:
        return DescribeDelegationTokenResponse(error_code=problem)
    wanted = request.owners
    owners = None if wanted is None else {f"{each.principal_type}:{each.principal_name}" for each in wanted}
    response = DescribeDelegationTokenResponse()
    pace = services.env.turns.pace()
    for token in services.delegation_tokens.all():
        await pace.rest()
        if (owners is None or any(token.concerns(owner) for owner in owners)) and may_describe(context, token):
            row = _described(token, services.delegation_tokens.hmac_of(token.token_id))
            if context.api_version >= token_access.FIRST_VERSION_WITH_REQUESTER:
                row.token_requester_principal_type, row.token_requester_principal_name = parted(token.requester)
            response.tokens.append(row)
    return response


def _described(token: DelegationToken, secret: bytes) -> Described:
    type, name = parted(token.owner)
    return Described(
        principal_type=type,
        principal_name=name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=secret,
        renewers=[
            DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer(principal_type=kind, principal_name=each)
            for kind, each in map(parted, token.renewers)
        ],
    )
