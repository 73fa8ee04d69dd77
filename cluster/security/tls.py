"""TLS of a broker's listeners: keys and certificates from their files, read again when they change.

New connections get what was read last; those that are open stay as they are. Files that cannot be used change nothing,
and the log says why.
"""

import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial

from barnabas.cluster.security import key_stores
from barnabas.cluster.security.distinguished_names import subject_of
from barnabas.config.broker import BrokerConfig
from barnabas.config.principal_rules import read_rules, user_of
from barnabas.config.sasl import listeners_with_tls
from barnabas.config.settings import ConfigError
from barnabas.config.tls import TlsSettings, settings_of, zookeeper_settings
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.ports import Disk, Env
from barnabas.runtime.tls import TlsError
from barnabas.runtime.tls_context import Keys, client_context, server_context

logger = logging.getLogger("barnabas.cluster")

LOOKED_AT_EVERY_MS = 1_000.0
STORE_BYTES_MAX = 16 * 1024 * 1024

Stamps = tuple[tuple[tuple[int, int], int, int], ...]  # what tells whether files have changed


def keys_of(settings: TlsSettings, read: Callable[[str], bytes]) -> Keys:
    """What the settings name, as OpenSSL takes it. TlsError, which names the setting."""
    keys = Keys()
    try:
        name = "ssl.keystore.key"
        if settings.keystore_key is not None:
            chain = settings.keystore_certificate_chain or ""
            keys = key_stores.pem_keys(settings.keystore_key, chain, settings.key_password)
        elif settings.keystore_location is not None:
            name = f"ssl.keystore.location={settings.keystore_location}"
            data = read(settings.keystore_location)
            keys = key_stores.read_keys(data, settings.keystore_type, settings.keystore_password, settings.key_password)
        name = "ssl.truststore.certificates"
        if settings.truststore_certificates is not None:
            return keys._replace(trusted=key_stores.pem_certificates(settings.truststore_certificates))
        if settings.truststore_location is not None:
            name = f"ssl.truststore.location={settings.truststore_location}"
            data = read(settings.truststore_location)
            trusted = key_stores.read_trusted(data, settings.truststore_type, settings.truststore_password)
            keys = keys._replace(trusted=trusted)
    except TlsError as error:
        raise TlsError(f"{name}: {error}") from None
    except OSError as error:
        raise TlsError(f"{name} cannot be read: {error.strerror or error}") from error
    return keys


def client_context_of(settings: TlsSettings, read: Callable[[str], bytes]) -> ssl.SSLContext:
    """For a client with these settings. TlsError."""
    return client_context(
        keys_of(settings, read),
        settings.enabled_protocols,
        settings.cipher_suites,
        checks_host=settings.endpoint_identification_algorithm.lower() == "https",
    )


class ZooKeeperTls:
    """TLS of a broker as a client of ZooKeeper. The files are read for each connection."""

    def __init__(self, disk: Disk, config: BrokerConfig) -> None:
        """TlsError."""
        self._read = partial(_read, disk)
        self._settings = zookeeper_settings(config)
        self._last = client_context_of(self._settings, self._read)

    def context(self) -> ssl.SSLContext:
        """For the next connection; the last one, if the files cannot be used now."""
        try:
            self._last = client_context_of(self._settings, self._read)
        except TlsError as error:
            logger.error("TLS to ZooKeeper: %s. What was read before stays in use", error)
        return self._last


def _read(disk: Disk, path: str) -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.read(0, min(file.size(), STORE_BYTES_MAX))
    finally:
        file.close()


class ListenerTls:
    """TLS of one listener, and of this broker as the client of others that have the same listener."""

    def __init__(self, disk: Disk, config: BrokerConfig, listener: str) -> None:
        self.listener = listener
        self._disk = disk
        self._config = config
        self._settings: TlsSettings | None = None  # those in use
        self._stamps: Stamps = ()
        self._refused: tuple[TlsSettings, Stamps] | None = None  # what was tried last and cannot be used
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None

    def load(self) -> None:
        """Read the files. TlsError; then nothing has changed."""
        settings = settings_of(self._config, self.listener)
        try:
            stamps = self._stamps_of(settings)
        except OSError as error:
            raise TlsError(f"listener {self.listener}: {error.filename}: {error.strerror}") from error
        self._server, self._client = self.contexts_of(settings)
        self._settings, self._stamps = settings, stamps

    def contexts_of(self, settings: TlsSettings) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """As server and as client. TlsError."""
        try:
            keys = keys_of(settings, partial(_read, self._disk))
            server = server_context(keys, settings.client_auth, settings.enabled_protocols, settings.cipher_suites)
            checks_host = settings.endpoint_identification_algorithm.lower() == "https"
            client = client_context(keys, settings.enabled_protocols, settings.cipher_suites, checks_host=checks_host)
        except TlsError as error:
            raise TlsError(f"listener {self.listener}: {error}") from error.__cause__
        return server, client

    def refresh(self) -> None:
        """Read the files again if they, or the settings, have changed. What cannot be used is logged once."""
        settings = settings_of(self._config, self.listener)
        try:
            stamps = self._stamps_of(settings)
        except OSError:  # it is being replaced, perhaps
            stamps = ()
        if (settings, stamps) in ((self._settings, self._stamps), self._refused):
            return
        self._refused = settings, stamps
        try:
            self.load()
        except TlsError as error:
            logger.error("%s. The certificates that were read before stay in use", error)
            if isinstance(error.__cause__, OSError) and stamps:
                self._refused = None
            return
        self._refused = None
        logger.info("listener %s: keys and certificates were read again; new connections use them", self.listener)

    def _stamps_of(self, settings: TlsSettings) -> Stamps:
        disk = self._disk
        return tuple((disk.identity(path), disk.modified_ms(path), disk.file_size(path)) for path in settings.files)

    def server_context(self) -> ssl.SSLContext:
        """For the next connection of a client."""
        assert self._server is not None, "TLS is used before its files were read"
        return self._server

    def client_context(self) -> ssl.SSLContext:
        """For the next connection to another broker."""
        assert self._client is not None, "TLS is used before its files were read"
        return self._client

    @property
    def wants_certificates(self) -> bool:
        """Whether nobody without a certificate is let in."""
        return self._settings is not None and self._settings.client_auth == "required"

    def user_of(self, certificate: bytes) -> str | None:
        """The user whose certificate it is; None: no rule applies to its subject."""
        assert self._settings is not None
        return user_of(read_rules(self._settings.principal_mapping_rules), subject_of(certificate))


class Tls:
    """The listeners of a broker that have TLS."""

    def __init__(self, env: Env, config: BrokerConfig) -> None:
        self._env = env
        self._config = config
        names = listeners_with_tls(config)
        self.by_listener: Mapping[str, ListenerTls] = {name: ListenerTls(env.disk, config, name) for name in names}
        self.between_brokers = self.by_listener.get(config.inter_broker_listener) if names else None

    def load(self) -> None:
        """Read all files, before anything else has happened. TlsError."""
        for each in self.by_listener.values():
            each.load()

    def start(self) -> None:
        """Look at the files from now on."""
        if self.by_listener:
            self._env.upkeep.every(
                "certificates", lambda: LOOKED_AT_EVERY_MS, lambda: list(self.by_listener.values()), ListenerTls.refresh
            )

    def check_change(self, changed: BrokerConfig) -> None:
        """ConfigError if the settings, changed so, name files that cannot be used."""
        for name, tls in self.by_listener.items():
            settings = settings_of(changed, name)
            if settings != settings_of(self._config, name):
                try:
                    tls.contexts_of(settings)
                except TlsError as error:
                    message = f"Validation of dynamic config update failed: {error}"
                    raise ConfigError(message, error=ErrorCode.INVALID_REQUEST) from None
