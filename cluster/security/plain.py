"""PLAIN (RFC 4616): a user's name and password, as they are. Pure."""

import hmac
from collections.abc import Mapping

from barnabas.cluster.security.mechanism import AuthenticationError, ServerSide

PLAIN = "PLAIN"


class PlainServer(ServerSide):
    """The broker's side of one login."""

    mechanism = PLAIN

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def step(self, token: bytes) -> bytes:
        words = token.decode(errors="replace").split("\0", 3)
        if len(words) != 3:
            raise AuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(words)}")
        authorization_id, user, password = words
        if not user or not password:
            what = "password" if user else "username"
            raise AuthenticationError(f"Authentication failed: {what} not specified")
        expected = self._passwords.get(user)
        # Compared in any case, and in constant time: how long it takes tells neither a name nor a password.
        is_right = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not is_right:
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = user
        return b""


class PlainClient:
    """The other side."""

    mechanism = PLAIN

    def __init__(self, user: str, password: str) -> None:
        self._token = b"\0".join((b"", user.encode(), password.encode()))

    def first(self) -> bytes:
        return self._token

    def step(self, token: bytes) -> None:
        """The broker has accepted it."""
