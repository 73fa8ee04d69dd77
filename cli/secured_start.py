"""`barnabas start --secured`: a broker with TLS, a login and rules that nobody has to prepare, for tests of clients.

Keys and passwords are made anew for each start, and are in no file; the ready line tells what a client needs.
"""

from typing import TYPE_CHECKING

from barnabas.cli.shared.exits import fail
from barnabas.config.jaas import PLAIN_MODULE

if TYPE_CHECKING:
    from barnabas.cluster.security.authority import Authority
    from barnabas.runtime.ports import Env

USER, MECHANISM, PROTOCOL = "app", "PLAIN", "SASL_SSL"
SECRET_BYTES = 18
HOSTS = ("localhost", "127.0.0.1", "::1")


def new_authority(env: "Env") -> "Authority":
    """An authority of its own. Where `cryptography` is missing, it ends the command."""
    try:
        from barnabas.cluster.security.authority import Authority
    except ImportError:
        fail("certificates are made by `cryptography`, which is missing: pip install 'barnabas[keystores]'.")
    return Authority("Barnabas", env.clock.now_ms())


def prepare(env: "Env") -> tuple[dict[str, str], dict[str, str]]:
    """The settings of the broker, and what its ready line says of security."""
    authority = new_authority(env)
    key, _, chain = authority.sign("broker", HOSTS).partition("-----BEGIN CERTIFICATE-----")
    password, token = (env.secret_bytes(SECRET_BYTES).hex() for _ in range(2))
    login = f'{PLAIN_MODULE} required username="{USER}" password="{password}" user_{USER}="{password}";'
    settings = {
        "listeners": f"{PROTOCOL}://127.0.0.1:9092",
        "security.inter.broker.protocol": PROTOCOL,
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.{PROTOCOL.lower()}.plain.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE-----{chain}",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.pem,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{USER}",
        "http.token": token,
    }
    told = {
        "protocol": PROTOCOL,
        "mechanism": MECHANISM,
        "user": USER,
        "password": password,
        "ca": authority.pem,
        "http_token": token,
    }
    return settings, told
