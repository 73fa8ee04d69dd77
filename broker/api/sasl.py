"""SaslHandshake (key 17), versions 0-1, and SaslAuthenticate (36), versions 0-2.

`broker/authentication.py` answers them while a client logs in. Here they come too late, or by a listener without SASL.
"""

from barnabas.broker.access import rules as access_rules
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

TOO_LATE = "SaslAuthenticate request received after successful authentication"


@api(ApiKey.SASL_HANDSHAKE, versions=(0, 1), access=access_rules.everybody)
def sasl_handshake(services: Services, request: SaslHandshakeRequest, context: RequestContext) -> Reply:
    """Refused: the client has logged in already, or the listener has no SASL."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


@api(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), access=access_rules.everybody)
def sasl_authenticate(services: Services, request: SaslAuthenticateRequest, context: RequestContext) -> Reply:
    """Refused, as SaslHandshake is."""
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=TOO_LATE)
