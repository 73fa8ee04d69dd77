"""How the commands log in: Kafka's own file of client settings, and a login that says at once what is wrong with it."""

import asyncio
import base64
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.config import jaas
from barnabas.config.oauth import OAUTHBEARER
from barnabas.config.sasl import MECHANISMS
from barnabas.protocol.named_tuple import NamedTuple

if TYPE_CHECKING:
    from ssl import SSLContext

    from barnabas.cluster.security.mechanism import ClientSide
    from barnabas.protocol.message import Message

# Settings of the file that the commands take; others of Kafka's clients have no meaning for them.
PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LOGS_IN_WITHIN_MS = 5_000.0
FIRST_NONCE_BYTES = 20


class Login(NamedTuple):
    """A user, by one mechanism. It has a password: never print it."""

    mechanism: str
    user: str
    password: str
    where: str  # the file that names them

    def __repr__(self) -> str:
        return f"Login({self.mechanism!r}, {self.user!r}, …)"

    @property
    def named(self) -> str:
        """What an error calls it."""
        return f"the login of {self.user}, whose password is in {self.where}"

    def side(self, nonce: bytes) -> "ClientSide":
        """A login of one connection."""
        from barnabas.cluster.security.plain import PLAIN, PlainClient
        from barnabas.cluster.security.scram import ScramClient

        if self.mechanism == PLAIN:
            return PlainClient(self.user, self.password)
        return ScramClient(self.mechanism, self.user, self.password, nonce)

    def of_http(self) -> str:
        """The header Authorization."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    def of_kafka_python(self) -> dict[str, Any]:
        """The settings of a client of kafka-python."""
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


class TokenLogin(NamedTuple):
    """A token (OAUTHBEARER). Never print it."""

    token: Callable[[], str]  # a new one, if the one before has ended. LoginError: there is none
    where: str  # the file that says where it comes from
    mechanism: str = OAUTHBEARER

    @property
    def named(self) -> str:
        return f"the token that {self.where} names"

    def side(self, nonce: bytes) -> "ClientSide":
        from barnabas.cluster.security.oauth import OAuthClient

        return OAuthClient(self.token())

    def of_http(self) -> str:
        return f"Bearer {self.token()}"

    def of_kafka_python(self) -> dict[str, Any]:
        from barnabas.cli.shared.kafka_python import token_provider

        return {"sasl_mechanism": self.mechanism, "sasl_oauth_token_provider": token_provider(self.token)}


class Access(NamedTuple):
    """How commands connect and log in to a broker."""

    protocol: str
    login: Login | TokenLogin | None
    tls: "SSLContext | None"

    def of_kafka_python(self) -> dict[str, Any]:
        """The settings of a client of kafka-python."""
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        if self.tls is not None:
            settings["ssl_context"] = self.tls
        return settings if self.login is None else settings | self.login.of_kafka_python()


OPEN = Access("PLAINTEXT", None, None)


@cache
def read(path: str | None) -> Access:
    """What a file like Kafka's client.properties says. Without a file nothing is needed."""
    if not path:
        return OPEN
    values = _values(path)
    protocol = values.get(PROTOCOL, "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        fail(f"{path}: {PROTOCOL}={protocol}: these commands have {', '.join(PROTOCOLS)}.", ExitCode.NOT_VALID)
    tls = _tls_of(path, values) if protocol.endswith("SSL") else None
    return Access(protocol, _login_of(path, values) if protocol.startswith("SASL_") else None, tls)


@cache
def tls_of_http(path: str | None) -> "SSLContext":
    """TLS with the HTTP API, by the file's trust and key stores, whether or not the listener has TLS, too."""
    return _tls_of(path or "", _values(path) if path else {})


def _values(path: str) -> dict[str, str]:
    from barnabas.config import properties  # late: it knows all settings of brokers; few commands have a file

    try:
        with open(path) as file:
            return properties.read(file.read()).values
    except (OSError, UnicodeDecodeError, properties.PropertiesError) as error:
        fail(f"the file of --command-config cannot be read: {error}", ExitCode.NOT_VALID)


def _tls_of(path: str, values: dict[str, str]) -> "SSLContext":
    from barnabas.cluster.security.tls import client_context_of  # late: most commands need no TLS
    from barnabas.config.tls import TlsSettings
    from barnabas.runtime.tls import TlsError

    settings = TlsSettings.of(values.get)
    for _, problem in settings.problems():
        fail(f"{path}: {problem}.", ExitCode.NOT_VALID)
    try:
        return client_context_of(settings, _content)
    except TlsError as error:
        fail(f"{path}: {error}.", ExitCode.NOT_VALID)


def _content(place: str) -> bytes:
    with open(place, "rb") as file:
        return file.read()


def _token_of(path: str, values: dict[str, str]) -> TokenLogin:
    from barnabas.cluster.security.mechanism import LoginError
    from barnabas.cluster.security.own_tokens import own_token
    from barnabas.runtime.env import real

    def token() -> str:
        return own_token(values.get, line.options, real().clock.now_ms(), _content)

    try:
        line = jaas.read(values.get(JAAS) or f"{jaas.OAUTH_MODULE} required;")
        token()
    except (ValueError, LoginError) as error:
        fail(f"{path}: {error}.", ExitCode.NOT_VALID)
    return TokenLogin(token, path)


def _login_of(path: str, values: dict[str, str]) -> Login | TokenLogin:
    mechanism = values.get(MECHANISM, "GSSAPI")
    if mechanism not in MECHANISMS:
        message = f"{path}: {MECHANISM}={mechanism}: these commands have {', '.join(MECHANISMS)}."
        fail(message, ExitCode.NOT_VALID)
    if mechanism == OAUTHBEARER:
        return _token_of(path, values)
    try:
        line = jaas.read(values.get(JAAS, ""))
        if line.options.get("tokenauth", "").lower() == "true":
            fail(f"{path} has a delegation token: these commands log in as a user.", ExitCode.NOT_VALID)
        return Login(mechanism, line.options["username"], line.options["password"], path)
    except (ValueError, KeyError):
        module = jaas.MODULES[mechanism]
        form = f'{JAAS}={module} required username="NAME" password="PASSWORD";'
        fail(f"{path} has no user and password. They are written as {form}", ExitCode.NOT_VALID)


def ask(address: tuple[str, int], access: Access, request: "Message", version: int) -> tuple[Any, str | None]:
    """What a broker answers on a connection of its own (None: nothing), and why it refuses the login, if it does."""
    from barnabas.cluster.broker_client import BrokerClient
    from barnabas.cluster.broker_login import BrokerLogin
    from barnabas.cluster.metadata_cache import Endpoint
    from barnabas.runtime.env import real
    from barnabas.runtime.turns import ended

    env = real()
    refusals: list[str] = []

    class _Trying(BrokerClient):
        def login(self) -> BrokerLogin | None:
            login = access.login
            if login is None:
                return None
            return BrokerLogin(login.side(env.secret_bytes(FIRST_NONCE_BYTES)), self.client_id)

        def tell_failed_login(self, error: Exception) -> None:
            refusals.append(str(error))

    async def ask() -> Any:
        tls = access.tls
        context = None if tls is None else lambda: tls
        client = _Trying(env, Endpoint("", *address), "barnabas-cli", LOGS_IN_WITHIN_MS, tls=context)
        answer = await ended(client.send(request, version))
        client.close()
        return answer

    answer = asyncio.run(ask())
    return answer, refusals[0] if refusals else None


def wanted_by(address: tuple[str, int], tls: "SSLContext | None") -> list[str]:
    """The mechanisms by which a broker wants clients to log in; none: it does not, or does not answer.

    For a process that ends: it may be asked inside a loop, which does not go on.
    """
    from barnabas.protocol.errors import ErrorCode
    from barnabas.protocol.messages import SaslHandshakeRequest

    asyncio._set_running_loop(None)
    answer, _ = ask(address, Access("", None, tls), SaslHandshakeRequest(mechanism=""), 1)
    wants = answer is not None and answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return list(answer.mechanisms) if wants else []
