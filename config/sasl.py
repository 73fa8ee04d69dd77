"""The settings about SASL: which mechanisms a listener has, whose passwords its JAAS lines name, and what is wrong.
The login at ZooKeeper stands here, too, and which listeners have TLS: only a broker with one imports `tls.py`.

A setting of one listener is written `listener.name.NAME.SETTING`, one of a mechanism there
`listener.name.NAME.MECHANISM.SETTING`, both names in small letters, as in Kafka.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from barnabas.config import jaas, oauth
from barnabas.config.jaas import JaasLine
from barnabas.config.listeners import HTTPS, security_protocols
from barnabas.config.settings import ConfigError, split_list

if TYPE_CHECKING:
    from barnabas.config.broker import BrokerConfig

MECHANISMS = tuple(jaas.MODULES)
ZOOKEEPER_LOGIN = "zookeeper.sasl.jaas.config"
_PACKAGE = "org.apache.kafka.common.security"
# Classes that may be named, because what they do is built here, too.
_CLASSES = {
    "sasl.server.callback.handler.class": (
        f"{_PACKAGE}.plain.internals.PlainServerCallbackHandler",
        f"{_PACKAGE}.scram.internals.ScramServerCallbackHandler",
    ),
    "sasl.login.callback.handler.class": (f"{_PACKAGE}.authenticator.AbstractLogin$DefaultLoginCallbackHandler",),
    "sasl.login.class": (f"{_PACKAGE}.authenticator.DefaultLogin",),
}
_CLASSES_OF_OAUTH = {
    "sasl.server.callback.handler.class": (*oauth.SIGNED_VALIDATORS, oauth.UNSECURED_VALIDATOR),
    "sasl.login.callback.handler.class": (*oauth.URL_LOGINS, oauth.UNSECURED_LOGIN),
    "sasl.login.class": oauth.LOGIN_CLASSES,
}


def protocol_of(config: "BrokerConfig", listener: str) -> str:
    return security_protocols(config.listener_security_protocol_map).get(listener, "PLAINTEXT")


def has_sasl(config: "BrokerConfig", listener: str) -> bool:
    """Whether clients of the listener log in."""
    return protocol_of(config, listener).startswith("SASL_")


def has_tls(config: "BrokerConfig", listener: str) -> bool:
    """Whether clients of the listener speak TLS."""
    return protocol_of(config, listener) in ("SSL", "SASL_SSL")


def listeners_with_tls(config: "BrokerConfig") -> list[str]:
    """Their names; HTTPS if the HTTP API has TLS."""
    names = [endpoint.name for endpoint in config.endpoints if has_tls(config, endpoint.name)]
    return [*names, HTTPS] if any(endpoint.name == HTTPS for endpoint in config.http_endpoints) else names


def zookeeper_has_tls(config: "BrokerConfig") -> bool:
    """Whether ZooKeeper is spoken to over TLS."""
    return (config.text("zookeeper.ssl.client.enable") or "").strip().lower() == "true"


def _line(config: "BrokerConfig", key: str) -> JaasLine | None:
    text = config.text(key)
    try:
        return None if text is None else jaas.read(text)
    except ValueError as error:
        raise ConfigError(f"{key} cannot be read: {error}", key=key) from None


def zookeeper_login(config: "BrokerConfig") -> JaasLine | None:
    """The login at ZooKeeper; None: there is none. ConfigError, which shows nothing of it, if it is wrong."""
    line = _line(config, ZOOKEEPER_LOGIN)
    if line is None:
        return None
    if line.module != jaas.ZOOKEEPER_MODULE:
        note = " (Kerberos is not built)" if "Krb5" in line.module else ""
        raise ConfigError(f"{ZOOKEEPER_LOGIN} must name {jaas.ZOOKEEPER_MODULE}{note}", key=ZOOKEEPER_LOGIN)
    for option, charset in (("username", "ASCII"), ("password", "ISO 8859-1")):
        value = line.options.get(option, "")
        if not value:
            raise ConfigError(f'{ZOOKEEPER_LOGIN} lacks {option}="…"', key=ZOOKEEPER_LOGIN)
        try:
            value.encode(charset)
        except UnicodeEncodeError:
            message = f"{ZOOKEEPER_LOGIN}: its {option} has characters that are not of {charset}"
            raise ConfigError(message, key=ZOOKEEPER_LOGIN) from None
    return line


def check_zookeeper_login(config: "BrokerConfig") -> Iterator[ConfigError]:
    try:
        zookeeper_login(config)
    except ConfigError as error:
        yield error


def of_listener(config: "BrokerConfig", listener: str, setting: str, mechanism: str | None = None) -> str | None:
    """The text of a setting for a listener (and a mechanism there): its own, or else the one for all."""
    prefix = f"listener.name.{listener.lower()}"
    names = [f"{prefix}.{setting}", setting]
    if mechanism is not None:
        names.insert(0, f"{prefix}.{mechanism.lower()}.{setting}")
    return next((text for name in names if (text := config.text(name)) is not None), None)


def mechanisms(config: "BrokerConfig", listener: str) -> tuple[str, ...]:
    """The mechanisms by which clients of the listener may log in."""
    return split_list(of_listener(config, listener, "sasl.enabled.mechanisms") or "")


def session_lifetime_ms(config: "BrokerConfig", listener: str, mechanism: str) -> int:
    """After how long a client must log in again (KIP-368); 0: never."""
    return int(of_listener(config, listener, "connections.max.reauth.ms", mechanism) or 0)


def jaas_key(listener: str, mechanism: str) -> str:
    """The name of the setting that has the JAAS line of a mechanism. There is none for all listeners, as in Kafka."""
    return f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"


def jaas_line(config: "BrokerConfig", listener: str, mechanism: str) -> JaasLine | None:
    """The JAAS line of a mechanism; None: there is none. ConfigError, which shows nothing of it, if it is wrong."""
    key = jaas_key(listener, mechanism)
    line = _line(config, key)
    if line is None:
        return None
    if line.module != jaas.MODULES[mechanism]:
        raise ConfigError(f"{key} must name {jaas.MODULES[mechanism]}", key=key)
    return line


def of_oauth(config: "BrokerConfig", listener: str) -> oauth.Text:
    """The settings of OAUTHBEARER at a listener."""
    return partial(of_listener, config, listener, mechanism=oauth.OAUTHBEARER)


def oauth_options(config: "BrokerConfig", listener: str) -> dict[str, str]:
    """The options of OAUTHBEARER's JAAS line; empty: there is none. ConfigError if it cannot be read."""
    line = jaas_line(config, listener, oauth.OAUTHBEARER)
    return {} if line is None else line.options


def check_sasl(config: "BrokerConfig") -> Iterator[ConfigError]:
    """Everything wrong with the settings of listeners whose clients log in."""
    for endpoint in config.endpoints:
        if not has_sasl(config, endpoint.name):
            continue
        enabled = mechanisms(config, endpoint.name)
        key = "sasl.enabled.mechanisms"
        if not enabled:
            message = f"listener {endpoint.name} has logins, and no mechanism for them: set {key} to one or more of "
            yield ConfigError(message + ", ".join(MECHANISMS), key=key)
        for mechanism in enabled:
            if mechanism in MECHANISMS:
                yield from _check_mechanism(config, endpoint.name, mechanism)
                continue
            note = " (the default of Kafka)" if mechanism == "GSSAPI" else ""
            message = f"listener {endpoint.name}: the SASL mechanism {mechanism}{note} is not built: set {key} to "
            yield ConfigError(message + f"one or more of {', '.join(MECHANISMS)}", key=key)
    yield from _check_between_brokers(config)


def _check_between_brokers(config: "BrokerConfig") -> Iterator[ConfigError]:
    """What is wrong with how brokers log in to each other. A broker that is alone need not say it."""
    key, listener = "sasl.mechanism.inter.broker.protocol", config.inter_broker_listener
    mechanism, enabled = config.sasl_mechanism_inter_broker_protocol, mechanisms(config, listener)
    if key not in config.file or not has_sasl(config, listener) or mechanism in enabled:
        return
    is_built = mechanism in MECHANISMS
    why = f"listener {listener}, that of the brokers, does not have {mechanism}" if is_built else "it is not built"
    yield ConfigError(f"{key}={mechanism}: {why}: set it to one of {', '.join(enabled)}", key=key)


def _check_mechanism(config: "BrokerConfig", listener: str, mechanism: str) -> Iterator[ConfigError]:
    """Everything wrong with one mechanism of a listener."""
    for name, classes in (_CLASSES_OF_OAUTH if mechanism == oauth.OAUTHBEARER else _CLASSES).items():
        named = of_listener(config, listener, name, mechanism)
        if named and named not in classes:
            message = f"listener {listener}: {name} names Java code, which cannot run here: leave it out"
            yield ConfigError(message, key=name)
    try:
        line = jaas_line(config, listener, mechanism)
    except ConfigError as error:
        yield error
        return
    if mechanism == "PLAIN" and (line is None or not line.passwords):
        name = jaas_key(listener, mechanism)
        message = f"listener {listener} has PLAIN, and no users: set {name} to `{jaas.PLAIN_MODULE} required "
        yield ConfigError(message + 'user_NAME="PASSWORD";`', key=name)
    if mechanism == oauth.OAUTHBEARER:
        options = None if line is None else line.options
        for name, message in oauth.problems_of_validation(of_oauth(config, listener), options):
            yield ConfigError(f"listener {listener} has OAUTHBEARER: {message}", key=name)
        own = of_oauth(config, listener)(oauth.TOKEN_URL)
        if own and oauth.path_of(own) is None and listener == config.inter_broker_listener:
            message = "between brokers a token comes from a file:// here, which somebody else keeps new"
            yield ConfigError(f"{oauth.TOKEN_URL}: {message}", key=oauth.TOKEN_URL)
