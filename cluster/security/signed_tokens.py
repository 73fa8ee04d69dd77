"""Signed tokens (JWT): checked by the keys of whoever gives them out. Pure, but for PyJWT.

Only brokers that take such tokens import this: PyJWT is the extra `oauth`.
"""

import json
from typing import Any

from barnabas.cluster.security.mechanism import LoginError
from barnabas.cluster.security.oauth import Token, TokenError
from barnabas.cluster.security.unsecured_tokens import milliseconds, scopes, text_of
from barnabas.config.oauth import TokenRules
from barnabas.protocol.named_tuple import NamedTuple

EXTRA = "pip install 'barnabas[oauth]'"
try:
    import cryptography  # noqa: F401  (PyJWT can do without it, and then knows no public keys)
    import jwt
except ImportError:
    raise LoginError(f"tokens are checked by PyJWT and cryptography, which are not installed: {EXTRA}") from None

# By the kind of a key, so that nobody signs with a public key as if it were a password. There is no `none`.
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
    "oct": ("HS256", "HS384", "HS512"),
}
KEYS_MAX = 1_000
TRIED_MAX = 10  # for one token: who names no key may send very many
_CHECKER = jwt.PyJWS(options={"enforce_minimum_key_length": True})


class UnknownKeyError(TokenError):
    """The key is not among those that are known: perhaps it is a new one."""


class Key(NamedTuple):
    """A key of whoever gives out tokens."""

    key_id: str | None
    kind: str
    key: Any

    def __repr__(self) -> str:
        return f"Key({self.key_id!r}, {self.kind!r})"


def read_keys(data: bytes) -> list[Key]:
    """The keys of a JWKS that can be used. ValueError, which shows nothing of them: there are none."""
    try:
        listed = json.loads(data)["keys"]
        rows = [each for each in listed[:KEYS_MAX] if isinstance(each, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError('it is no JSON Web Key Set, {"keys": […]}') from None
    found = []
    for row in rows:
        if row.get("kty") not in [*ALGORITHMS] or row.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(row).key
        except Exception:  # PyJWT has no error of its own for all that may be wrong with a key
            continue
        key_id = row.get("kid")
        found.append(Key(key_id if isinstance(key_id, str) else None, row["kty"], key))
    if not found:
        raise ValueError("it has no key that can be used")
    return found


def check(token: str, keys: list[Key], rules: TokenRules, now_ms: int) -> Token:
    """What the token says. TokenError: it is refused; UnknownKeyError: with other keys it might not be."""
    claims = _claims(token, keys)
    issued_ms, expires_ms, before_ms = (milliseconds(claims, name) for name in ("iat", "exp", "nbf"))
    if expires_ms is None or issued_ms is None:
        raise TokenError("the token does not say when it was given out and when it ends (iat, exp)")
    if now_ms - rules.clock_skew_ms >= expires_ms:
        raise TokenError("the token has expired (exp)")
    if before_ms is not None and now_ms + rules.clock_skew_ms < before_ms:
        raise TokenError("the token counts later only (nbf)")
    if expires_ms < issued_ms or (before_ms is not None and expires_ms < before_ms) or expires_ms < 0 or issued_ms < 0:
        raise TokenError("the token ends before it begins")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenError("the token was given out by somebody else (iss)")
    _check_audience(claims.get("aud"), rules.audience)
    found = [word.strip() for word in scopes(claims, rules.scope_claim)]
    if not all(found) or len(set(found)) < len(found):
        raise TokenError(f"the claim {rules.scope_claim!r} has an empty word, or one twice")
    return Token(text_of(claims, rules.sub_claim).strip(), expires_ms)


def _check_audience(audience: Any, expected: frozenset[str]) -> None:
    named = audience if isinstance(audience, list) else [] if audience is None else [audience]
    if expected:
        if not expected.intersection(each for each in named if isinstance(each, str)):
            raise TokenError("the token is for somebody else (aud)")
    elif named:
        raise TokenError("the token is for somebody (aud), and sasl.oauthbearer.expected.audience is not set")


def _claims(token: str, keys: list[Key]) -> dict[str, Any]:
    """The claims of a token whose signature is right."""
    try:
        header = jwt.get_unverified_header(token)
        unreadable = not isinstance(header.get("alg"), str)
    except Exception:  # as for keys
        unreadable = True
    if unreadable:
        raise TokenError("the token cannot be read")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not any(algorithm in each for each in ALGORITHMS.values()):
        raise TokenError("the token has no signature that counts here (alg)")
    may_be = [each for each in keys if (key_id is None or each.key_id == key_id) and algorithm in ALGORITHMS[each.kind]]
    if not may_be:
        raise UnknownKeyError("none of the keys that are known has signed the token (kid)")
    for each in may_be[:TRIED_MAX]:
        try:
            claims = json.loads(_CHECKER.decode(token, each.key, algorithms=[str(algorithm)]))
        except Exception:  # a wrong signature, or no JSON
            continue
        if isinstance(claims, dict):
            return claims
    raise TokenError("the signature of the token is wrong")
