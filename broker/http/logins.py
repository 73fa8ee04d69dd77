"""Who sends a request of the HTTP API: by a password (Basic), as for PLAIN and SCRAM, or by a token (Bearer), as for
OAUTHBEARER. They count as at any listener with a login."""

import base64

from barnabas.broker.http.routes import HttpError
from barnabas.broker.logins import REFUSED as REFUSED
from barnabas.broker.logins import Logins
from barnabas.cluster.security.mechanism import AuthenticationError
from barnabas.runtime.pending import Pending

BASIC, BEARER = "basic", "bearer"
CHALLENGES = [("WWW-Authenticate", 'Basic realm="barnabas"'), ("WWW-Authenticate", "Bearer")]

MISSING_TOKEN = (
    "requests from other hosts than loopback need the token of http.token: send it as `Authorization: Bearer TOKEN`."
)
MISSING_TOKEN_OF_AUTHORIZER = (
    "this broker has an authorizer, so all requests need the token of http.token: send it as `Authorization: Bearer "
    "TOKEN`. Who has it may do everything."
)
MISSING_LOGIN = (
    "this broker has an authorizer: log in (Basic or Bearer), or send the token of http.token as a bearer token."
)
MISSING_HTTP_TOKEN = (
    "this broker has an authorizer, and no http.token, so all requests of its HTTP API are refused: set one."
)
NO_TOKEN = "requests from other hosts than loopback are refused, because this broker has no http.token: set one."


WRONG_TOKEN = "HTTP: it is not the token of http.token, and no other login counts here"


def refusal(logins: Logins, *, has_token: bool, has_authorizer: bool) -> HttpError:
    """What somebody is told who shows no login, or one of a kind that there is not. `has_token`: there is a
    http.token."""
    challenge = [("WWW-Authenticate", "Bearer")]
    message = MISSING_TOKEN if has_token else NO_TOKEN
    if has_authorizer:
        message = MISSING_TOKEN_OF_AUTHORIZER if has_token else MISSING_HTTP_TOKEN
        if logins.has_passwords or logins.has_signed_tokens:
            challenge, message = CHALLENGES, MISSING_LOGIN
    return HttpError(401, "TOKEN_NEEDED", message, challenge)


def shows_login(logins: Logins, authorization: str) -> bool:
    """Whether the header of a request has something that may be a login here."""
    scheme = authorization.partition(" ")[0].lower()
    return (scheme == BASIC and logins.has_passwords) or (scheme == BEARER and logins.has_signed_tokens)


def principal_of(logins: Logins, authorization: str) -> Pending[str]:
    """Who it is. Raises AuthenticationError, or fails with it: nobody."""
    scheme, _, shown = authorization.partition(" ")
    if scheme.lower() == BEARER:
        return Pending.of(logins.by_token(shown.strip()))
    try:
        user, _, password = base64.b64decode(shown.strip(), validate=True).decode().partition(":")
    except ValueError:
        user = password = ""
    if not user or not password:
        raise AuthenticationError(REFUSED, "Basic: there is no user and password")
    return logins.by_password(user, password)
