"""Listeners: how `NAME://host:port` lists are read, and the rules between the settings about listeners."""

from collections.abc import Collection, Iterator
from functools import lru_cache

from barnabas.config.broker_attributes import BrokerAttributes
from barnabas.config.settings import ConfigError, split_list
from barnabas.protocol.named_tuple import NamedTuple

HTTPS = "HTTPS"  # a listener of the HTTP API with TLS; listener.name.https.ssl.… are its settings
BETWEEN_BROKERS = "security.inter.broker.protocol"
_SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Endpoint(NamedTuple):
    """One listener. An empty `host` means all addresses of the machine, or the machine's own name."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine only."""
    if host in ("localhost", "::1"):
        return True
    parts = host.removeprefix("::ffff:").split(".")  # 127.0.0.1.example.org is a name
    return len(parts) == 4 and parts[0] == "127" and all(part.isascii() and part.isdigit() for part in parts)


@lru_cache(maxsize=64)
def read_endpoints(text: str) -> tuple[Endpoint, ...]:
    """The endpoints of a comma separated list. ConfigError naming the one that cannot be read."""
    return tuple(_read_endpoint(word) for word in split_list(text))


def _read_endpoint(word: str) -> Endpoint:
    name, scheme, address = word.partition("://")
    host, colon, port = address.rpartition(":")
    if not scheme or not name:
        raise ConfigError(f"Unable to parse a listener name from {word}")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"Unable to parse {word} to a broker endpoint: NAME://host:port with a port up to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"Unable to parse {word} to a broker endpoint: an IPv6 address must be in brackets")
    return Endpoint(name.upper(), host, int(port))


@lru_cache(maxsize=64)
def own_endpoints(text: str, controller_names: str | None) -> tuple[Endpoint, ...]:
    """The endpoints of a list that a broker serves: without those named as KRaft's controllers'."""
    controllers = {name.upper() for name in split_list(controller_names or "")}
    return tuple(endpoint for endpoint in read_endpoints(text) if endpoint.name not in controllers)


def security_protocols(text: str) -> dict[str, str]:
    """Listener name to security protocol. ConfigError for what is neither."""
    protocols = {}
    for word in split_list(text):
        name, colon, protocol = word.partition(":")
        if not colon or not name:
            raise ConfigError(f"Error parsing configuration property 'listener.security.protocol.map': {word}")
        if protocol.upper() not in _SECURITY_PROTOCOLS:
            raise ConfigError(f"Invalid security protocol `{protocol}` defined in listener.security.protocol.map")
        protocols[name.upper()] = protocol.upper()
    return protocols


def http_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Where the HTTP API listens, by the setting http.listeners. ConfigError for a word that is no HTTP address."""
    if text.strip().lower() == "none":
        return ()
    endpoints = read_endpoints(text)
    for endpoint in endpoints:
        if endpoint.name not in ("HTTP", HTTPS):
            raise ConfigError(f"http.listeners are of the form http(s)://host:port, or none: not {endpoint}")
    return endpoints


def url_of(http_address: str) -> str:
    """What http.address means: host:port, with https:// before it where the API has TLS."""
    return http_address if "://" in http_address else f"http://{http_address}"


def check_http(config: BrokerAttributes) -> Iterator[ConfigError]:
    """Everything wrong with the settings of the HTTP API."""
    try:
        endpoints = http_endpoints(config.http_listeners)
    except ConfigError as error:
        yield ConfigError(str(error), key="http.listeners")
        return
    if not endpoints and config.http_listeners.strip().lower() != "none":
        yield ConfigError("http.listeners names no address: none turns the HTTP API off", key="http.listeners")
    token = config.http_token
    if token is not None and (not token or not all("!" <= each <= "~" for each in token)):
        message = "http.token is sent in a header: it must be one or more printable ASCII characters without blanks"
        yield ConfigError(message, key="http.token")


def check_listeners(config: BrokerAttributes, said: Collection[str]) -> Iterator[ConfigError]:
    """Everything wrong with listeners, advertised.listeners and what goes with them. `said`: which settings are set."""
    key = "listener.security.protocol.map"
    try:
        protocols = security_protocols(config.listener_security_protocol_map)
        key = "listeners"
        listeners = own_endpoints(config.listeners, config.controller_listener_names)
        key = "advertised.listeners"
        advertised = own_endpoints(config.advertised_listeners or "", config.controller_listener_names)
    except ConfigError as error:
        yield ConfigError(str(error), key=key)
        return
    for key, text, endpoints in (
        ("listeners", config.listeners, listeners),
        ("advertised.listeners", config.advertised_listeners, advertised),
    ):
        for name in dict.fromkeys(endpoint.name for endpoint in endpoints):
            protocol = protocols.get(name)
            if protocol is None:
                message = f"Error creating broker listeners from '{text}': No security protocol defined for listener "
                yield ConfigError(message + name, key=key)
        if len({endpoint.name for endpoint in endpoints}) < len(endpoints):
            yield ConfigError(f"Each listener must have a different name, {key}: {text}", key=key)
    if not listeners:
        yield ConfigError(
            "There must be at least one listener that is not in controller.listener.names", key="listeners"
        )
    places = [(e.host, e.port) for e in listeners if e.port != 0]
    if len(set(places)) < len(places):
        yield ConfigError(f"Each listener must have a different port, listeners: {config.listeners}", key="listeners")
    for endpoint in advertised:
        if endpoint.host == "0.0.0.0":
            message = "cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address."
            yield ConfigError(f"advertised.listeners {message}", key="advertised.listeners")
        if endpoint.name not in {listener.name for listener in listeners}:
            message = f"advertised.listeners names {endpoint.name}, which listeners does not have"
            yield ConfigError(message, key="advertised.listeners")
    names = [endpoint.name for endpoint in advertised or listeners]
    yield from _check_between_brokers(config, BETWEEN_BROKERS in said, protocols, names)


def _check_between_brokers(
    config: BrokerAttributes, has_protocol: bool, protocols: Collection[str], listeners: list[str]
) -> Iterator[ConfigError]:
    """What is wrong with the listener at which brokers reach each other.

    Whoever names none, and no protocol, gets the first one; Kafka wants PLAINTEXT then.
    """
    key, name = "inter.broker.listener.name", config.inter_broker_listener_name
    if name is not None and has_protocol:
        yield ConfigError(f"Only one of {key} and {BETWEEN_BROKERS} should be set.", key=BETWEEN_BROKERS)
    elif name is not None and name.upper() not in protocols:
        message = f"Listener with name {name} defined in {key} not found in listener.security.protocol.map."
        yield ConfigError(message, key=key)
    elif has_protocol:
        name, key = config.security_inter_broker_protocol, BETWEEN_BROKERS
    if name is not None and name.upper() in protocols and name.upper() not in listeners:
        message = "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
        message += f"options based on currently configured listeners are {','.join(listeners)}"
        yield ConfigError(message, key=key)
