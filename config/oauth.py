"""The settings about OAUTHBEARER (KIP-255, KIP-768): how tokens of clients are checked, and where a token of one's own
comes from. Pure.

Kafka checks tokens without a signature unless a class is named that checks signed ones. Here the place of the keys says
it, too: who names keys never takes tokens without a signature.
"""

from collections.abc import Callable, Iterator, Mapping
from urllib.parse import unquote, urlsplit

from barnabas.config.settings import split_list
from barnabas.protocol.named_tuple import NamedTuple

OAUTHBEARER = "OAUTHBEARER"
PACKAGE = "org.apache.kafka.common.security.oauthbearer"
UNSECURED_VALIDATOR = f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
UNSECURED_LOGIN = f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
SIGNED_VALIDATORS = tuple(f"{PACKAGE}{part}.OAuthBearerValidatorCallbackHandler" for part in ("", ".secured"))
URL_LOGINS = tuple(f"{PACKAGE}{part}.OAuthBearerLoginCallbackHandler" for part in ("", ".secured"))
LOGIN_CLASSES = (f"{PACKAGE}.internals.OAuthBearerRefreshingLogin",)
KEYS_URL, TOKEN_URL = "sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.token.endpoint.url"
VALIDATOR_CLASS, LOGIN_CALLBACK_CLASS = "sasl.server.callback.handler.class", "sasl.login.callback.handler.class"
SCHEMES = ("http", "https", "file")
_PREFIX = "sasl.oauthbearer."

Text = Callable[[str], str | None]  # a setting by its name; None: not set


def problem_of_url(name: str, url: str) -> str | None:
    """What is wrong with the URL of a setting."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in SCHEMES and bool(parts.path if parts.scheme == "file" else parts.hostname)
        is_right = is_right and (parts.port is None or parts.port > 0)
    except ValueError:
        is_right = False
    return None if is_right else f"{name} must be an URL that begins with http://, https:// or file://"


def path_of(url: str) -> str | None:
    """The file that a URL names; None: it names none."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else None


class TokenRules(NamedTuple):
    """How a broker checks tokens that are signed."""

    keys_url: str
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    audience: frozenset[str]
    issuer: str | None
    clock_skew_ms: int
    scope_claim: str
    sub_claim: str

    @classmethod
    def of(cls, text: Text) -> "TokenRules":
        """ValueError says which setting is wrong. There must be a URL of keys."""

        def number(name: str, default: int) -> int:
            found = text(_PREFIX + name)
            try:
                value = default if found is None else int(found)
            except ValueError:
                raise ValueError(f"{_PREFIX}{name} must be a number") from None
            if value < 0:
                raise ValueError(f"{_PREFIX}{name} must not be negative")
            return value

        url = (text(KEYS_URL) or "").strip()
        problem = problem_of_url(KEYS_URL, url)
        if problem is not None:
            raise ValueError(problem)
        return cls(
            url,
            number("jwks.endpoint.refresh.ms", 3_600_000),
            number("jwks.endpoint.retry.backoff.ms", 100),
            number("jwks.endpoint.retry.backoff.max.ms", 10_000),
            frozenset(split_list(text(f"{_PREFIX}expected.audience") or "")),
            text(f"{_PREFIX}expected.issuer") or None,
            number("clock.skew.seconds", 30) * 1000,
            (text(f"{_PREFIX}scope.claim.name") or "scope").strip(),
            (text(f"{_PREFIX}sub.claim.name") or "sub").strip(),
        )


class UnsecuredRules(NamedTuple):
    """How a broker checks tokens without a signature: the options of the JAAS line, as in Kafka."""

    principal_claim: str
    scope_claim: str
    required_scope: tuple[str, ...]
    clock_skew_ms: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "UnsecuredRules":
        """ValueError says which option is wrong."""

        def option(name: str, default: str) -> str:
            return options.get(f"unsecuredValidator{name}", "").strip() or default

        skew = option("AllowableClockSkewMs", "0")
        if not skew.isascii() or not skew.isdigit():
            raise ValueError("unsecuredValidatorAllowableClockSkewMs must be a number that is not negative")
        scope = tuple(option("RequiredScope", "").split())
        return cls(option("PrincipalClaimName", "sub"), option("ScopeClaimName", "scope"), scope, int(skew))


def takes_signed(text: Text) -> bool:
    """Whether tokens of clients must be signed."""
    named = text(VALIDATOR_CLASS)
    return named in SIGNED_VALIDATORS or (not named and bool(text(KEYS_URL)))


def gets_token_by_url(text: Text) -> bool:
    """Whether a token of one's own comes from a file or a server, and is not made here without a signature."""
    named = text(LOGIN_CALLBACK_CLASS)
    return named in URL_LOGINS or (not named and bool(text(TOKEN_URL)))


class Credentials(NamedTuple):
    """What a token's server is told (client_credentials). It has a secret: never log it."""

    client_id: str
    secret: str
    scope: str

    def __repr__(self) -> str:
        return "Credentials(…)"

    @classmethod
    def of(cls, text: Text, options: Mapping[str, str]) -> "Credentials":
        """By the settings, or else the JAAS line. ValueError: there are none."""
        prefix = f"{_PREFIX}client.credentials."
        client_id = text(f"{prefix}client.id") or options.get("clientId", "")
        secret = text(f"{prefix}client.secret") or options.get("clientSecret", "")
        if not client_id or not secret:
            raise ValueError(f"{prefix}client.id and {prefix}client.secret are needed to ask for a token")
        return cls(client_id, secret, text(f"{_PREFIX}scope") or options.get("scope", ""))


def problems_of_validation(text: Text, options: Mapping[str, str] | None) -> Iterator[tuple[str, str]]:
    """What is wrong with how tokens are checked: the setting, and a sentence. `options`: of the JAAS line, if any."""
    if takes_signed(text):
        if not text(KEYS_URL):
            yield KEYS_URL, f"{KEYS_URL} names the keys by which tokens are checked: it is not set"
            return
        try:
            TokenRules.of(text)
        except ValueError as error:
            yield str(error).split(" ", 1)[0], str(error)
    elif options is None:
        message = f"set {KEYS_URL} to the place of the keys by which tokens are signed, or, to take tokens that nobody "
        yield (
            KEYS_URL,
            message + f"has signed, as in tests, a JAAS line with `{PACKAGE}.OAuthBearerLoginModule required;`",
        )
    else:
        try:
            UnsecuredRules.of(options)
        except ValueError as error:
            yield "sasl.jaas.config", str(error)
