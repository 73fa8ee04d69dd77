"""OAUTHBEARER (RFC 7628, KIP-255): a token that somebody else has given out. Both sides of a login. Pure.

A token that is refused is answered with a JSON that says so, to which the client says one byte 1; then the login fails.
"""

import json
import re
from collections.abc import Callable

from barnabas.cluster.security.mechanism import MESSAGE_BYTES_MAX, AuthenticationError, ServerSide
from barnabas.config.oauth import OAUTHBEARER
from barnabas.protocol.named_tuple import NamedTuple

_FIRST = re.compile(rb"n,(?:a=([^\x00,]+))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")
_AUTH = re.compile(r"(\w+) +([-_.a-zA-Z0-9]+)", re.ASCII)
HEARD = b"\x01"  # what a client says to a refusal
FAILED = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {OAUTHBEARER}"


class Token(NamedTuple):
    """What a token says that was found to be right."""

    user: str
    expires_ms: int


class TokenError(Exception):
    """A token is refused: str() is for the log, and shows nothing of the token. `scope` is what it lacks."""

    def __init__(self, why: str, scope: str | None = None) -> None:
        super().__init__(why)
        self.scope = scope

    @property
    def told(self) -> str:
        """What the client is told, as Kafka writes it."""
        if self.scope is None:
            return '{"status":"invalid_token"}'
        return f'{{"status":"insufficient_scope", "scope":{json.dumps(self.scope, ensure_ascii=False)}}}'


Validate = Callable[[str], Token]  # TokenError


class OAuthServer(ServerSide):
    """The broker's side of one login."""

    mechanism = OAUTHBEARER

    def __init__(self, validate: Validate) -> None:
        self._validate = validate

    def step(self, token: bytes) -> bytes:
        """Take the token, or the client's answer to a refusal. AuthenticationError: the login has failed."""
        if self.refusal is not None:
            raise self.refusal
        authorization_id, value = _read_first(token)
        try:
            found = self._validate(value)
        except TokenError as error:
            self.refusal = AuthenticationError(error.told, str(error))
            return error.told.encode()
        if authorization_id and authorization_id != found.user:
            raise AuthenticationError(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({found.user})",
                "the client asked for another authorization id than the name of its token",
            )
        self.user, self.expires_ms = found
        return b""


def _read_first(message: bytes) -> tuple[str, str]:
    """Authorization id and token of a client's first message. AuthenticationError: it is none."""
    if len(message) > MESSAGE_BYTES_MAX:
        why = f"its first message has {len(message):,} bytes, and a token may have {MESSAGE_BYTES_MAX:,} at most"
        raise AuthenticationError(FAILED, why)
    found = _FIRST.fullmatch(message)
    if found is None:
        raise AuthenticationError(FAILED, "its first message cannot be read")
    pairs = dict(pair.split("=", 1) for pair in found[2].decode().split("\x01") if pair)
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth[1].lower() != "bearer":
        raise AuthenticationError(FAILED, "its first message has no bearer token")
    authorization_id = (found[1] or b"").decode("utf-8", "replace").replace("=2C", ",").replace("=3D", "=")
    return authorization_id, auth[2]


class OAuthClient:
    """The other side of one login."""

    mechanism = OAUTHBEARER

    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        return b"n,,\x01auth=Bearer " + self._token.encode() + b"\x01\x01"

    def step(self, token: bytes) -> bytes | None:
        """None: the broker takes the token. Else it says why it does not; its next answer is an error."""
        return HEARD if token else None
