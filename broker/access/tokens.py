"""Rights on delegation tokens (KIP-48, KIP-373)."""

from typing import Any

from barnabas.broker.requests import Asked, Reply, RequestContext
from barnabas.cluster.security.acls import ANONYMOUS, AclOperation, ResourceType
from barnabas.cluster.security.mechanism import TokenPrincipal
from barnabas.cluster.tree.payloads import DelegationToken
from barnabas.config.broker import BrokerConfig
from barnabas.config.sasl import protocol_of
from barnabas.protocol.errors import ErrorCode

FIRST_VERSION_WITH_REQUESTER = 3


def may_ask(config: BrokerConfig, context: RequestContext) -> bool:
    """Whether tokens are spoken of with this client: it is known, and not by a token."""
    protocol = protocol_of(config, context.listener_name)
    is_unknown = protocol == "PLAINTEXT" or (protocol == "SSL" and context.principal == ANONYMOUS)
    return not is_unknown and not isinstance(context.principal, TokenPrincipal)


def owner_of(request: Any, context: RequestContext) -> str:
    """Whose a new token shall be."""
    name = request.owner_principal_name
    return f"{request.owner_principal_type or ''}:{name}" if name else str(context.principal)


def creates_tokens(asked: Asked) -> Reply:
    """Everybody may have tokens of their own; for others there is a right. The handler refuses who may not ask."""
    owner = owner_of(asked.request, asked.context)
    if (
        owner == asked.context.principal
        or not may_ask(asked.services.config, asked.context)
        or asked.may(AclOperation.CREATE_TOKENS, ResourceType.USER, owner)
    ):
        return asked.handle()
    return named(asked.refuse(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED), owner, asked.context)


def parted(principal: str) -> tuple[str, str]:
    """Type and name."""
    type, _, name = principal.partition(":")
    return type, name


def named(answer: Any, owner: str, context: RequestContext) -> Any:
    """The answer, which says whose token was asked for, and by whom."""
    answer.principal_type, answer.principal_name = parted(owner)
    if context.api_version >= FIRST_VERSION_WITH_REQUESTER:
        requester = parted(context.principal)
        answer.token_requester_principal_type, answer.token_requester_principal_name = requester
    return answer


def may_describe(context: RequestContext, token: DelegationToken) -> bool:
    """Whether a token is shown to a client."""
    rights = context.rights
    return (
        rights is None
        or token.concerns(context.principal)
        or rights.may(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or rights.may(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    )
