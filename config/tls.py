"""The settings about TLS: of a listener, of what this broker says to others by it, and of a client. What is wrong.

A setting of one listener is written `listener.name.NAME.SETTING`, the name in small letters, as in Kafka.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from barnabas.config.listeners import HTTPS
from barnabas.config.principal_rules import read_rules
from barnabas.config.sasl import has_sasl, listeners_with_tls, of_listener, zookeeper_has_tls
from barnabas.config.settings import ConfigError, split_list
from barnabas.protocol.named_tuple import NamedTuple

if TYPE_CHECKING:
    from barnabas.config.broker import BrokerConfig

PROTOCOLS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
STORE_TYPES = ("JKS", "PKCS12", "PEM")
CLIENT_AUTH = ("none", "requested", "required")


class TlsSettings(NamedTuple):
    """What ssl.* says, as text. It has passwords: never log it."""

    keystore_type: str = "JKS"
    keystore_location: str | None = None
    keystore_password: str | None = None
    keystore_key: str | None = None
    keystore_certificate_chain: str | None = None
    key_password: str | None = None
    truststore_type: str = "JKS"
    truststore_location: str | None = None
    truststore_password: str | None = None
    truststore_certificates: str | None = None
    client_auth: str = "none"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    endpoint_identification_algorithm: str = "https"
    principal_mapping_rules: str = "DEFAULT"

    def __repr__(self) -> str:
        return "TlsSettings(…)"

    @classmethod
    def of(cls, text: Callable[[str], str | None]) -> "TlsSettings":
        """The settings as `text` knows them by their names."""
        values: dict[str, Any] = {}
        for name, default in cls._field_defaults.items():
            found = text("ssl." + name.replace("_", "."))
            if default is None:
                values[name] = found or None
            elif found is not None:
                values[name] = split_list(found) if isinstance(default, tuple) else found.strip()
        return cls(**values)

    @property
    def has_keys(self) -> bool:
        """Whether a private key is named."""
        return self.keystore_location is not None or self.keystore_key is not None

    @property
    def files(self) -> dict[str, str]:
        """The files that they name, by setting."""
        named = {"ssl.keystore.location": self.keystore_location, "ssl.truststore.location": self.truststore_location}
        return {name: path for name, path in named.items() if path is not None}

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong with them, without a look at the files: the setting, and a sentence about it."""
        for kind in ("keystore", "truststore"):
            name, value = f"ssl.{kind}.type", str(getattr(self, f"{kind}_type"))
            if value.upper() not in STORE_TYPES:
                yield name, f"{name}={value}: there are {', '.join(STORE_TYPES)} here"
        if self.keystore_location and self.keystore_key:
            yield "ssl.keystore.key", "both ssl.keystore.key and ssl.keystore.location are set: only one of them may be"
        if bool(self.keystore_key) != bool(self.keystore_certificate_chain):
            yield "ssl.keystore.key", "ssl.keystore.key and ssl.keystore.certificate.chain go together: one is missing"
        if self.keystore_key and self.keystore_type.upper() != "PEM":
            yield "ssl.keystore.type", "ssl.keystore.key is PEM: set ssl.keystore.type=PEM"
        if self.truststore_certificates and self.truststore_type.upper() != "PEM":
            yield "ssl.truststore.type", "ssl.truststore.certificates is PEM: set ssl.truststore.type=PEM"
        if self.truststore_certificates and self.truststore_location:
            message = "both ssl.truststore.certificates and ssl.truststore.location are set: only one of them may be"
            yield "ssl.truststore.certificates", message
        unknown = [each for each in self.enabled_protocols if each not in PROTOCOLS]
        if unknown or not self.enabled_protocols:
            name = "ssl.enabled.protocols"
            yield name, f"{name}={','.join(self.enabled_protocols)}: there are {', '.join(PROTOCOLS)} here"
        if self.client_auth not in CLIENT_AUTH:
            yield "ssl.client.auth", f"ssl.client.auth={self.client_auth}: it is one of {', '.join(CLIENT_AUTH)}"
        if self.client_auth != "none" and not (self.truststore_location or self.truststore_certificates):
            message = f"ssl.client.auth={self.client_auth} wants certificates of clients, and there are none to trust: "
            yield "ssl.client.auth", message + "set ssl.truststore.location"
        if self.endpoint_identification_algorithm.lower() not in ("", "https"):
            yield (
                "ssl.endpoint.identification.algorithm",
                "ssl.endpoint.identification.algorithm is https, or empty: then names of hosts are not checked",
            )
        try:
            read_rules(self.principal_mapping_rules)
        except ValueError as error:
            yield "ssl.principal.mapping.rules", f"ssl.principal.mapping.rules: {error}"


def settings_of(config: "BrokerConfig", listener: str) -> TlsSettings:
    """The settings of a listener. With SASL clients show certificates only where that is said for the listener itself,
    as in Kafka (KIP-684); so it is with HTTP."""
    settings = TlsSettings.of(lambda name: of_listener(config, listener, name))
    if has_sasl(config, listener) or listener == HTTPS:
        own = config.text(f"listener.name.{listener.lower()}.ssl.client.auth")
        settings = settings._replace(client_auth=own or "none")
    return settings


ZOOKEEPER_SETTINGS = frozenset(
    f"zookeeper.ssl.{name}"
    for name in (
        *("client.enable", "enabled.protocols", "cipher.suites", "endpoint.identification.algorithm"),
        *("keystore.location", "keystore.password", "keystore.type"),
        *("truststore.location", "truststore.password", "truststore.type"),
    )
)


def zookeeper_settings(config: "BrokerConfig") -> TlsSettings:
    """What zookeeper.ssl.* says. Without a type, a store whose name ends with .pem is PEM, as for ZooKeeper's own."""

    def text(name: str) -> str | None:
        found = config.text(f"zookeeper.{name}")
        if found is None and name.endswith("store.type"):
            location = config.text(f"zookeeper.{name.removesuffix('type')}location") or ""
            return "PEM" if location.endswith(".pem") else None
        return found

    return TlsSettings.of(text)


def check_zookeeper_tls(config: "BrokerConfig") -> Iterator[ConfigError]:
    """Everything wrong with zookeeper.ssl.*, without a look at the files."""
    if config.zookeeper_connect and zookeeper_has_tls(config):
        for name, message in zookeeper_settings(config).problems():
            yield ConfigError(f"zookeeper.{message}", key=f"zookeeper.{name}")


def check_tls(config: "BrokerConfig") -> Iterator[ConfigError]:
    """Everything wrong with the settings of listeners that have TLS, without a look at the files."""
    for listener in listeners_with_tls(config):
        what = f"listener {listener}:"
        if of_listener(config, listener, "ssl.engine.factory.class"):
            message = f"{what} ssl.engine.factory.class names Java code, which cannot run here: leave it out"
            yield ConfigError(message, key="ssl.engine.factory.class")
        settings = settings_of(config, listener)
        for name, message in settings.problems():
            own = f"listener.name.{listener.lower()}.{name}"
            yield ConfigError(f"{what} {message}", key=own if config.text(own) is not None else name)
        if not settings.has_keys:
            message = f"{what} it has TLS, and no certificate: set ssl.keystore.location, its type and its password"
            yield ConfigError(message, key="ssl.keystore.location")
