"""Tokens without a signature (RFC 7515, `alg` none), as Kafka has them for tests: checked, and made. Pure."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from barnabas.cluster.security.oauth import Token, TokenError
from barnabas.config.oauth import UnsecuredRules

_PREFIX = "unsecuredLogin"
LIFETIME_S_DEFAULT = 3600


def _part(text: str) -> dict[str, Any]:
    try:
        raw = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise TokenError("the token is no JSON in Base64") from None
    if not isinstance(found, dict):
        raise TokenError("the token is no JSON object")
    return found


def milliseconds(claims: Mapping[str, Any], name: str) -> int | None:
    """A time in a token; None: it has none. TokenError: it is no number.

    Rounded, as in Kafka: else a token that a client beside the broker has just made would be one of the future.
    """
    found = claims.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 1e15:
        raise TokenError(f"the claim {name} is no number")
    return round(found * 1000)


def text_of(claims: Mapping[str, Any], name: str) -> str:
    """A claim that must be there, as text. TokenError."""
    found = claims.get(name)
    if not isinstance(found, str) or not found.strip():
        raise TokenError(f"the token has no claim {name!r} with a name")
    return found


def scopes(claims: Mapping[str, Any], name: str) -> list[str]:
    """The scopes of a token, which are one text or a list. TokenError."""
    found = claims.get(name)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    if not all(isinstance(each, str) for each in listed):
        raise TokenError(f"the claim {name!r} has something else than words")
    return listed


def check(token: str, rules: UnsecuredRules, now_ms: int) -> Token:
    """What the token says. TokenError: it is refused."""
    parts = token.split(".")
    if len(parts) != 3 or not parts[0] or not parts[1]:
        raise TokenError("a token has three parts with points between them")
    if _part(parts[0]).get("alg") != "none" or parts[2]:
        raise TokenError("the token is signed, and this listener takes tokens without a signature only")
    claims = _part(parts[1])
    user = text_of(claims, rules.principal_claim)
    issued_ms, expires_ms, skew_ms = milliseconds(claims, "iat"), milliseconds(claims, "exp"), rules.clock_skew_ms
    if issued_ms is not None and issued_ms > now_ms + skew_ms:
        raise TokenError("the token is of the future (iat)")
    if expires_ms is None:
        raise TokenError("the token has no end (exp)")
    if now_ms - skew_ms >= expires_ms:
        raise TokenError("the token has expired (exp)")
    if issued_ms is not None and expires_ms <= issued_ms:
        raise TokenError("the token ends before it was given out (exp, iat)")
    has = {word.strip() for word in scopes(claims, rules.scope_claim)}
    if not has.issuperset(rules.required_scope):
        raise TokenError("the token lacks a scope", f"[{', '.join(rules.required_scope)}]")
    return Token(user, expires_ms)


def made(options: Mapping[str, str], now_ms: float) -> str:
    """A token by the options of a JAAS line. ValueError says which is wrong."""
    principal_claim = options.get(f"{_PREFIX}PrincipalClaimName", "").strip() or "sub"
    claims: dict[str, Any] = {}
    for kind, read in (("StringClaim_", str), ("NumberClaim_", float), ("ListClaim_", _listed)):
        for name, text in options.items():
            claim = name.removeprefix(_PREFIX + kind)
            if claim in (name, ""):
                continue
            if claim in ("iat", "exp"):
                raise ValueError(f"{name}: the claim {claim} cannot be set")
            try:
                claims[claim] = read(text)
            except ValueError:
                raise ValueError(f"{name} must be a number") from None
    if not str(claims.get(principal_claim, "")).strip():
        raise ValueError(f"{_PREFIX}StringClaim_{principal_claim} must say the name of the user")
    try:
        lifetime_s = int(options.get(f"{_PREFIX}LifetimeSeconds", LIFETIME_S_DEFAULT))
    except ValueError:
        raise ValueError(f"{_PREFIX}LifetimeSeconds must be a number") from None
    claims |= {"exp": now_ms / 1000 + lifetime_s, "iat": now_ms / 1000}
    return ".".join((*(_encoded(each) for each in ({"alg": "none"}, claims)), ""))


def _listed(text: str) -> Sequence[str]:
    """A list: its first character is what stands between the words."""
    return text[1:].split(text[0]) if len(text) > 1 else []


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")
