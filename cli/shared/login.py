"""How the commands log in: Kafka's own file of client settings, and a login that says at once what is wrong with it."""

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.config import jaas, properties
from barnabas.config.sasl import MECHANISMS

if TYPE_CHECKING:
    from ssl import SSLContext

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

    def of_kafka_python(self) -> dict[str, Any]:
        """The settings of a client of kafka-python."""
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


class Access(NamedTuple):
    """How the commands come to a broker."""

    protocol: str
    login: Login | None
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
    try:
        with open(path) as file:
            values = properties.read(file.read()).values
    except (OSError, UnicodeDecodeError, properties.PropertiesError) as error:
        fail(f"the file of --command-config cannot be read: {error}", ExitCode.NOT_VALID)
    protocol = values.get(PROTOCOL, "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        fail(f"{path}: {PROTOCOL}={protocol}: these commands have {', '.join(PROTOCOLS)}.", ExitCode.NOT_VALID)
    tls = _tls_of(path, values) if protocol.endswith("SSL") else None
    return Access(protocol, _login_of(path, values) if protocol.startswith("SASL_") else None, tls)


def _tls_of(path: str, values: dict[str, str]) -> "SSLContext":
    from barnabas.cluster.security.tls import client_context_of  # late: most commands need no TLS
    from barnabas.config.tls import TlsSettings
    from barnabas.runtime.tls import TlsError

    def content(place: str) -> bytes:
        with open(place, "rb") as file:
            return file.read()

    settings = TlsSettings.of(values.get)
    for _, problem in settings.problems():
        fail(f"{path}: {problem}.", ExitCode.NOT_VALID)
    try:
        return client_context_of(settings, content)
    except TlsError as error:
        fail(f"{path}: {error}.", ExitCode.NOT_VALID)


def _login_of(path: str, values: dict[str, str]) -> Login:
    mechanism = values.get(MECHANISM, "GSSAPI")
    if mechanism not in MECHANISMS:
        message = f"{path}: {MECHANISM}={mechanism}: these commands have {', '.join(MECHANISMS)}."
        fail(message, ExitCode.NOT_VALID)
    try:
        line = jaas.read(values.get(JAAS, ""))
        return Login(mechanism, line.options["username"], line.options["password"])
    except (ValueError, KeyError):
        module = jaas.MODULES[mechanism]
        form = f'{JAAS}={module} required username="NAME" password="PASSWORD";'
        fail(f"{path} has no user and password. They are written as {form}", ExitCode.NOT_VALID)


def try_login(address: tuple[str, int], login: Login, tls: "SSLContext | None") -> str | None:
    """Why a broker refuses the login; None: it does not, or does not answer."""
    from barnabas.cluster.broker_client import BrokerClient
    from barnabas.cluster.broker_login import BrokerLogin
    from barnabas.cluster.metadata_cache import Endpoint
    from barnabas.cluster.security.plain import PLAIN, PlainClient
    from barnabas.cluster.security.scram import ScramClient
    from barnabas.protocol.messages import ApiVersionsRequest
    from barnabas.runtime.env import real

    env = real()
    refusals: list[str] = []

    class _Trying(BrokerClient):
        def login(self) -> BrokerLogin:
            nonce = env.secret_bytes(FIRST_NONCE_BYTES)
            side = (
                PlainClient(login.user, login.password)
                if login.mechanism == PLAIN
                else ScramClient(login.mechanism, login.user, login.password, nonce)
            )
            return BrokerLogin(side, self.client_id)

        def tell_failed_login(self, error: Exception) -> None:
            refusals.append(str(error))

    async def ask() -> None:
        context = None if tls is None else lambda: tls
        client = _Trying(env, Endpoint("", *address), "barnabas-cli", LOGS_IN_WITHIN_MS, tls=context)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.send(ApiVersionsRequest(), 0).then(answered.set_result)
        await answered
        client.close()

    asyncio.run(ask())
    return refusals[0] if refusals else None


def wanted_by(address: tuple[str, int], tls: "SSLContext | None") -> list[str]:
    """The mechanisms by which a broker wants clients to log in; none: it does not, or does not answer.

    For a process that ends: it may be asked inside a loop, which does not go on.
    """
    from barnabas.cluster.broker_client import BrokerClient
    from barnabas.cluster.metadata_cache import Endpoint
    from barnabas.protocol.errors import ErrorCode
    from barnabas.protocol.messages import SaslHandshakeRequest
    from barnabas.runtime.env import real

    async def ask() -> list[str]:
        context = None if tls is None else lambda: tls
        client = BrokerClient(real(), Endpoint("", *address), "barnabas-cli", LOGS_IN_WITHIN_MS, tls=context)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.send(SaslHandshakeRequest(mechanism=""), 1).then(answered.set_result)
        answer = await answered
        client.close()
        wants = answer is not None and answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return list(answer.mechanisms) if wants else []

    asyncio._set_running_loop(None)
    return asyncio.run(ask())
