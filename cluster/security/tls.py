"""TLS of a broker's listeners: keys and certificates from their files, read again when they change.

New connections get what was read last; those that are open stay as they are. Files that cannot be used change nothing,
and the log says why.
"""

import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial

from barnabas.cluster.security import key_stores
from barnabas.cluster.security.distinguished_names import alternative_names_of, end_of, subject_of
from barnabas.config.broker import BrokerConfig
from barnabas.config.listeners import BETWEEN_BROKERS
from barnabas.config.principal_rules import read_rules, user_of
from barnabas.config.sasl import listeners_with_tls, of_listener
from barnabas.config.settings import ConfigError
from barnabas.config.tls import TlsSettings, settings_of, zookeeper_settings
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Disk, Env, read_file, stamp_of
from barnabas.runtime.tls import TlsError
from barnabas.runtime.tls_context import Keys, check_handshake, client_context, server_context

logger = logging.getLogger("barnabas.cluster")

LOOKED_AT_EVERY_MS = 1_000.0
STORE_BYTES_MAX = 16 * 1024 * 1024
IF_RIGHT = "a restart takes it, if that is right, and with ssl.allow.{}.changes=true none is needed"
PEM_END = "-----END CERTIFICATE-----"


class Names(NamedTuple):
    """For whom a certificate is, and until when."""

    subject: str
    others: frozenset[tuple[int, bytes]]
    ends_ms: int | None  # None: nobody can read it


class Loaded(NamedTuple):
    """What was made of the files."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    names: Names | None  # of the certificate


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


def _names_of(keys: Keys) -> Names | None:
    """What the certificate says; None: there is none."""
    if not keys.chain:
        return None
    try:
        first = ssl.PEM_cert_to_DER_cert(keys.chain.decode().partition(PEM_END)[0].strip() + PEM_END)
        return Names(subject_of(first), alternative_names_of(first), end_of(first))
    except ValueError as error:
        raise TlsError(f"the certificate cannot be read: {error}") from None


def client_context_of(settings: TlsSettings, read: Callable[[str], bytes]) -> ssl.SSLContext:
    """For a client with these settings. TlsError."""
    return _client_context(settings, keys_of(settings, read))


def _client_context(settings: TlsSettings, keys: Keys) -> ssl.SSLContext:
    checks_host = settings.endpoint_identification_algorithm.lower() == "https"
    return client_context(keys, settings.enabled_protocols, settings.cipher_suites, checks_host=checks_host)


class ZooKeeperTls:
    """TLS of a broker as a client of ZooKeeper. The files are read for each connection."""

    def __init__(self, disk: Disk, config: BrokerConfig) -> None:
        """TlsError."""
        self._read = partial(read_file, disk, bytes_max=STORE_BYTES_MAX)
        self._settings = zookeeper_settings(config)
        self._last = client_context_of(self._settings, self._read)

    def context(self) -> ssl.SSLContext:
        """For the next connection; the last one, if the files cannot be used now."""
        try:
            self._last = client_context_of(self._settings, self._read)
        except TlsError as error:
            logger.error("TLS to ZooKeeper: %s. What was read before stays in use", error)
        return self._last


class ListenerTls:
    """TLS of one listener, and of this broker as the client of others that have the same listener."""

    def __init__(
        self,
        disk: Disk,
        config: BrokerConfig,
        listener: str,
        *,
        is_between_brokers: bool = False,
        has_others: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_others`: whether other brokers live, who may know this one by its former certificate."""
        self.listener = listener
        self._has_others = has_others
        self._disk = disk
        self._config = config
        self._is_between_brokers = is_between_brokers
        self._settings: TlsSettings | None = None  # those in use
        self._stamps: Stamps = ()
        self._refused: tuple[TlsSettings, Stamps] | None = None  # what was tried last and cannot be used
        self._told: tuple[TlsSettings, Stamps] | None = None  # of what the log says so
        self._loaded: Loaded | None = None

    def load(self) -> None:
        """Read the files. TlsError; then nothing has changed."""
        settings = settings_of(self._config, self.listener)
        stamps = self._stamps_of(settings)
        self._loaded = self._read_all(settings)
        self._settings, self._stamps = settings, stamps

    def start(self) -> None:
        """Take what the tree says, which is known now. Nothing is compared: nobody has seen what the file says."""
        of_file, self._loaded = self._loaded, None
        self.refresh()
        self._loaded = self._loaded or of_file

    def check(self, settings: TlsSettings) -> None:
        """TlsError if they cannot be used in the place of those that are."""
        self._read_all(settings)

    def _read_all(self, settings: TlsSettings) -> Loaded:
        """What the files hold. TlsError: they cannot be used, or not in the place of those that are."""
        try:
            keys = keys_of(settings, partial(read_file, self._disk, bytes_max=STORE_BYTES_MAX))
            names = _names_of(keys)
            self._check_names(names)
            server = server_context(keys, settings.client_auth, settings.enabled_protocols, settings.cipher_suites)
            loaded = Loaded(server, _client_context(settings, keys), names)
            if self._is_between_brokers and keys.trusted is not None:
                self._check_between_brokers(loaded)
        except TlsError as error:
            raise TlsError(f"listener {self.listener}: {error}") from error.__cause__
        return loaded

    def _check_between_brokers(self, loaded: Loaded) -> None:
        """TlsError if brokers could not reach each other so: all that have what this one has now, and, as long as it
        is of use, those that still have what it had before."""
        try:
            check_handshake(loaded.server, loaded.client)
        except TlsError as error:
            what = f"brokers reach each other here, and ssl.truststore refuses the certificate of ssl.keystore: {error}"
            raise TlsError(f"{what}: one of the two must be replaced") from None
        if self._loaded is None or not self._has_others() or not _is_good(self._loaded):
            return
        try:
            check_handshake(self._loaded.server, loaded.client)
            check_handshake(loaded.server, self._loaded.client)
        except TlsError as error:
            what = f"brokers reach each other here, and those that are not changed yet would be cut off: {error}"
            raise TlsError(f"{what}: let ssl.truststore have the old and the new authority meanwhile") from None

    def _check_names(self, names: Names | None) -> None:
        """TlsError if another certificate is for somebody else, unless the settings allow it."""
        before = self.names
        if names is None or before is None:
            return
        if names.subject != before.subject and not self._allows("ssl.allow.dn.changes"):
            what = f"the certificate is of {names.subject}, and the one in use of {before.subject}"
            raise TlsError(f"{what}: {IF_RIGHT.format('dn')}")
        if not names.others >= before.others and not self._allows("ssl.allow.san.changes"):
            what = "the certificate lacks a subject alternative name that the one in use has"
            raise TlsError(f"{what}: {IF_RIGHT.format('san')}")

    def _allows(self, name: str) -> bool:
        return (of_listener(self._config, self.listener, name) or "").strip().lower() == "true"

    def refresh(self) -> None:
        """Read the files again if they, or the settings, have changed. What cannot be used is logged once."""
        settings = settings_of(self._config, self.listener)
        try:
            stamps = self._stamps_of(settings)
        except TlsError:  # it is being replaced, perhaps
            stamps = ()
        if (settings, stamps) in ((self._settings, self._stamps), self._refused):
            return
        self._refused = settings, stamps
        try:
            self.load()
        except TlsError as error:
            if self._refused != self._told:
                logger.error("%s. The certificates that were read before stay in use", error)
            self._told = self._refused
            if isinstance(error.__cause__, OSError) and stamps:
                self._refused = None  # it is tried again
            return
        self._refused = self._told = None
        logger.info("listener %s: keys and certificates were read again; new connections use them", self.listener)

    def _stamps_of(self, settings: TlsSettings) -> Stamps:
        found = []
        for name, path in settings.files.items():
            try:
                found.append(stamp_of(self._disk, path))
            except OSError as error:
                why = f"{name}={path} cannot be read: {error.strerror or error}"
                raise TlsError(f"listener {self.listener}: {why}") from error
        return tuple(found)

    def server_context(self) -> ssl.SSLContext:
        """For the next connection of a client."""
        assert self._loaded is not None, "TLS is used before its files were read"
        return self._loaded.server

    def client_context(self) -> ssl.SSLContext:
        """For the next connection to another broker."""
        assert self._loaded is not None, "TLS is used before its files were read"
        return self._loaded.client

    @property
    def names(self) -> Names | None:
        """What the certificate in use says; None: there is none."""
        return None if self._loaded is None else self._loaded.names

    @property
    def wants_certificates(self) -> bool:
        """Whether nobody without a certificate is let in."""
        return self._settings is not None and self._settings.client_auth == "required"

    def user_of(self, certificate: bytes) -> str | None:
        """The user whose certificate it is; None: no rule applies to its subject."""
        assert self._settings is not None
        return user_of(read_rules(self._settings.principal_mapping_rules), self.subject_of(certificate))

    @staticmethod
    def subject_of(certificate: bytes) -> str:
        """The name of whom a certificate is, as the rules see it."""
        return subject_of(certificate)


def _is_good(loaded: Loaded) -> bool:
    """Whether brokers that have this can reach each other: not when a certificate has ended."""
    try:
        check_handshake(loaded.server, loaded.client)
    except TlsError:
        return False
    return True


class Tls:
    """The listeners of a broker that have TLS."""

    def __init__(self, env: Env, config: BrokerConfig, has_others: Callable[[], bool]) -> None:
        self._env = env
        self._config = config
        names = listeners_with_tls(config)
        between_brokers = config.inter_broker_listener if names else ""
        # Whoever does not say which listener is that of brokers may have one broker, for clients of another authority.
        checked = between_brokers if config.inter_broker_listener_name or BETWEEN_BROKERS in config.file else None
        self.by_listener: Mapping[str, ListenerTls] = {
            name: ListenerTls(env.disk, config, name, is_between_brokers=name == checked, has_others=has_others)
            for name in names
        }
        self.between_brokers = self.by_listener.get(between_brokers)

    def load(self) -> None:
        """Read all files, before anything else has happened. TlsError."""
        for each in self.by_listener.values():
            each.load()

    def start(self) -> None:
        """Take the settings of the tree, and look at the files from now on."""
        for each in self.by_listener.values():
            each.start()
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
                    tls.check(settings)
                except TlsError as error:
                    message = f"Validation of dynamic config update failed: {error}"
                    raise ConfigError(message, error=ErrorCode.INVALID_REQUEST) from None
