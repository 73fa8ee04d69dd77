"""How the commands log in: Kafka's own file of client settings, and a login that says at once what is wrong with it."""

import asyncio
from typing import Any, NamedTuple

from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.config import jaas, properties
from barnabas.config.sasl import MECHANISMS

# Settings of the file that the commands take; others of Kafka's clients have no meaning for them.
PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT")
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
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


def read(path: str | None) -> Login | None:
    """The login of a file like Kafka's client.properties; None: there is no file, or it wants none."""
    if not path:
        return None
    try:
        with open(path) as file:
            values = properties.read(file.read()).values
    except (OSError, UnicodeDecodeError, properties.PropertiesError) as error:
        fail(f"the file of --command-config cannot be read: {error}", ExitCode.NOT_VALID)
    protocol = values.get(PROTOCOL, "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        message = f"{path}: {PROTOCOL}={protocol}: these commands have {' and '.join(PROTOCOLS)} (no TLS yet)."
        fail(message, ExitCode.NOT_VALID)
    if protocol == "PLAINTEXT":
        return None
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


def try_login(address: tuple[str, int], login: Login) -> str | None:
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
        client = _Trying(env, Endpoint("", *address), "barnabas-cli", LOGS_IN_WITHIN_MS)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.send(ApiVersionsRequest(), 0).then(answered.set_result)
        await answered
        client.close()

    asyncio.run(ask())
    return refusals[0] if refusals else None


def wanted_by(address: tuple[str, int]) -> list[str]:
    """The mechanisms by which a broker wants clients to log in; none: it does not, or does not answer.

    For a process that ends: it may be asked inside a loop, which does not go on.
    """
    from barnabas.cluster.broker_client import BrokerClient
    from barnabas.cluster.metadata_cache import Endpoint
    from barnabas.protocol.errors import ErrorCode
    from barnabas.protocol.messages import SaslHandshakeRequest
    from barnabas.runtime.env import real

    async def ask() -> list[str]:
        client = BrokerClient(real(), Endpoint("", *address), "barnabas-cli", LOGS_IN_WITHIN_MS)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.send(SaslHandshakeRequest(mechanism=""), 1).then(answered.set_result)
        answer = await answered
        client.close()
        wants = answer is not None and answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return list(answer.mechanisms) if wants else []

    asyncio._set_running_loop(None)
    return asyncio.run(ask())
