"""BrokerConfig: what this broker is set to now, one typed attribute per setting of config.broker_settings.

All parts of a broker share one BrokerConfig. A part reads an attribute at the moment when it needs it, because dynamic
settings change in place. The strongest value counts: dynamic for this broker, dynamic for all, the file, the default.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy

from barnabas.config.broker_attributes import BrokerAttributes
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.listeners import (
    HTTPS,
    Endpoint,
    check_http,
    check_listeners,
    http_endpoints,
    own_endpoints,
    read_endpoints,
)
from barnabas.config.sasl import (
    MECHANISMS,
    check_sasl,
    check_zookeeper_login,
    listeners_with_tls,
    zookeeper_has_tls,
)
from barnabas.config.settings import ConfigError, Dynamic, Setting, Value
from barnabas.protocol.errors import ErrorCode

logger = logging.getLogger("barnabas.config")

# Kafka's settings outside the table: of ZooKeeper mode and older releases, and families with names made by users.
_OTHER_KAFKA_SETTINGS = frozenset(
    """
    advertised.host.name advertised.port auto.include.jmx.reporter
    broker.id.generation.enable control.plane.listener.name
    controller.message.queue.size controller.performance.always.log.threshold.ms
    controller.performance.sample.period.ms eligible.leader.replicas.enable
    enable.zookeeper.failover group.coordinator.new.enable group.share.enable
    group.share.persister.class.name inter.broker.protocol.version log.cleaner.hash.algorithm
    log.message.downconversion.enable log.message.format.version log.message.timestamp.difference.max.ms
    password.encoder.cipher.algorithm password.encoder.iterations
    password.encoder.key.length password.encoder.keyfactory.algorithm password.encoder.old.secret
    password.encoder.secret quota.consumer.default quota.producer.default replica.lag.max.messages
    reserved.broker.max.id server.max.startup.time.ms share.coordinator.cold.partition.snapshot.interval.ms
    share.coordinator.state.topic.prune.interval.ms unstable.api.versions.enable
    unstable.feature.versions.enable
    """.split()  # noqa: SIM905
)
_OTHER_KAFKA_FAMILIES = (
    "client.quota.callback.",
    "internal.",
    "kafka.csv.",
    "listener.name.",
    "metric.reporters.",
    "metrics.",
    "plain.",
    "principal.builder.",
    "remote.log.",
    "rlmm.config.",
    "rsm.config.",
    "sasl.",
    "ssl.",
    "zookeeper.",
)
# The authorizers of Kafka's releases, which have the same rules; empty: none.
AUTHORIZERS = (
    "",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
# What may be set for one listener, or for a mechanism there (config/sasl.py).
JAAS_LINE = "sasl.jaas.config"  # counts for one mechanism of a listener only, as in Kafka
PER_LISTENER = frozenset(
    (
        *("connections.max.reauth.ms", "max.connection.creation.rate", "sasl.enabled.mechanisms", JAAS_LINE),
        *("sasl.login.callback.handler.class", "sasl.server.callback.handler.class"),
        *(
            name
            for name, setting in BROKER_SETTINGS.items()
            if name.startswith(("ssl.", "sasl.oauthbearer.")) and setting.has_effect
        ),
    )
)
# Listeners are opened at a start. By what the tree says of them, a broker would look for others where they are not.
_AT_START = ("listeners", "listener.security.protocol.map")
_ENCODED = ("passwordLength:", "encryptedPassword:", "cipherAlgorithm:")  # a password, as Kafka 3.9 keeps it
_MECHANISM_PREFIXES = tuple(mechanism.lower() for mechanism in MECHANISMS)
# Names of Kafka 0.8: if they were ignored, the broker would listen somewhere else.
_REPLACED = {"port": "listeners", "host.name": "listeners"}
# Names of Kafka 0.8 and 0.9, and what they are called since. The newer name counts if both are set.
_RENAMED = {
    "offsets.topic.retention.minutes": "offsets.retention.minutes",
    "delegation.token.master.key": "delegation.token.secret.key",
}


class BrokerConfig(BrokerAttributes):
    """Values of all broker settings. Make one with `of`."""

    def __init__(self, file: Mapping[str, str]) -> None:
        self.file: dict[str, str] = dict(file)  # what was set at start, as text; includes names outside the table
        self.dynamic_cluster: dict[str, str] = {}
        self.dynamic_broker: dict[str, str] = {}
        self.is_numbered = True  # whether node.id was said
        self.on_change: list[Callable[[frozenset[str]], None]] = []  # called with the names whose values changed
        for name, setting in BROKER_SETTINGS.items():
            text = self.file.get(name, setting.default)
            self.__dict__[setting.attribute] = None if text is None else setting.parse(text)

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "BrokerConfig":
        """The config for these values, everything else at its default. Raises the first of `problems`."""
        for problem in problems(values):
            raise problem
        config = cls(_with_identity(values))
        config.is_numbered = any(values.get(name, "-1").strip() not in ("", "-1") for name in ("node.id", "broker.id"))
        return config

    def twin(self) -> "BrokerConfig":
        """Another one as this was made, before anything in it has changed."""
        assert not self.on_change, "a broker uses it already"
        made = copy(self)
        made.file, made.dynamic_cluster, made.dynamic_broker, made.on_change = dict(self.file), {}, {}, []
        return made

    def take_number(self, node_id: int | None) -> None:
        """Take the node id that the data directories name, if the settings name none. None: they name none either."""
        if node_id is not None:
            self.file["node.id"] = self.file["broker.id"] = str(node_id)
            self.node_id = self.broker_id = node_id

    def take_http_address(self, address: str) -> None:
        """The HTTP API is served at this address: DescribeConfigs tells it from now on."""
        self.file["http.address"] = self.http_address = address

    @property
    def http_endpoints(self) -> tuple[Endpoint, ...]:
        """Where the HTTP API listens; nothing if it is turned off."""
        return http_endpoints(self.http_listeners)

    @property
    def data_directories(self) -> tuple[str, ...]:
        """log.dirs, or log.dir if log.dirs is not set. An empty log.dirs counts as set: it names no directory."""
        names = self.log_dir if self.log_dirs is None else self.log_dirs
        return tuple(d for d in map(str.strip, names.split(",")) if d)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where to listen, without the listeners that KRaft's controllers use."""
        return own_endpoints(self.listeners, self.controller_listener_names)

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """The addresses that clients are told. Empty: each client is told the address that it dialled."""
        return own_endpoints(self.advertised_listeners or "", self.controller_listener_names)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener at which brokers reach each other: inter.broker.listener.name.

        If that is not set, it is the listener that is called like the security protocol, as in Kafka. If there is none
        of that name, Kafka refuses to start; here it is the first.
        """
        names = [endpoint.name for endpoint in self.endpoints]
        name = (self.inter_broker_listener_name or self.security_inter_broker_protocol).upper()
        return name if name in names else names[0]

    def text(self, name: str) -> str | None:
        """The text in force for a setting, None where it is not set."""
        for level in (self.dynamic_broker, self.dynamic_cluster, self.file):
            if name in level:
                return level[name]
        return BROKER_SETTINGS[name].default if name in BROKER_SETTINGS else None

    def without_effect(self) -> list[str]:
        """Names set at start that have no effect here: the author of the file should be told."""
        return sorted(name for name in self.file if not _has_effect(name) or self.lacks_listener(name))

    def lacks_listener(self, name: str) -> bool:
        """Whether it is a setting of a listener that is not there. Names are in small letters in it, as in Kafka."""
        listener = name.removeprefix("listener.name.").partition(".")[0]
        known = {endpoint.name.lower() for endpoint in read_endpoints(self.listeners)} | {HTTPS.lower()}
        return name.startswith("listener.name.") and listener not in known

    def set_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> None:
        """Take these as all dynamic settings there are: of all brokers, and of this one.

        Values that are not valid (written by another version, say) are logged and ignored, also where they contradict
        each other or the file.
        """
        before = (self.dynamic_cluster, self.dynamic_broker)
        cluster, broker = _valid(cluster, Dynamic.CLUSTER), _valid(broker, Dynamic.BROKER)
        ignored = _contradictory(self.file, cluster, broker)
        self.dynamic_cluster = {name: text for name, text in cluster.items() if name not in ignored}
        self.dynamic_broker = {name: text for name, text in broker.items() if name not in ignored}
        changed = set()
        for name in sorted({n for level in (*before, self.dynamic_cluster, self.dynamic_broker) for n in level}):
            setting = BROKER_SETTINGS.get(name)
            if setting is None:
                continue
            text = self.text(name)
            value = None if text is None else setting.parse(text)
            if value != getattr(self, setting.attribute):
                setattr(self, setting.attribute, value)
                logger.info("dynamic config %s changed to %s", name, "(hidden)" if setting.sensitive else text)
                changed.add(name)
        if changed:
            for callback in self.on_change:
                callback(frozenset(changed))


def problems(values: Mapping[str, str]) -> Iterator[ConfigError]:
    """Everything wrong with these settings of a broker: each key by itself, then the rules between keys."""
    found = False
    for name, text in values.items():
        problem = _problem(name, text)
        if problem is not None:
            found = True
            yield problem
    if not found:
        try:
            config = BrokerConfig(_with_identity(values))
        except ConfigError as error:  # Kafka says it of broker.id, whichever of the two names was set
            yield ConfigError(str(error), key="broker.id")
        else:
            yield from _combined_problems(config)


def check_dynamic(config: BrokerConfig, changed: Mapping[str, str], *, cluster: bool) -> BrokerConfig:
    """Raise ConfigError unless `changed` may be all dynamic settings of this broker (or, `cluster`, of all).

    Returns how the broker would be set then.

    Kafka answers INVALID_REQUEST here, whatever is wrong, and prints its sets of names; clients show that to people.
    """
    fixed = sorted(n for n in changed if not _may_change(n, cluster=False))
    if fixed:
        raise _invalid_request(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    of_listeners = ", ".join(sorted(n for n in changed if n in _OF_LISTENERS))
    if of_listeners:
        message = "These security configs can be dynamically updated only per-listener using the listener prefix"
        raise _invalid_request(f"{message}: [{of_listeners}]")
    of_brokers = ", ".join(sorted(n for n in changed if not _may_change(n, cluster=cluster)))
    if of_brokers:
        message = "Cannot update these configs at default cluster level, broker id must be specified"
        raise _invalid_request(f"{message}: [{of_brokers}]")
    for name, text in changed.items():
        if name in _AT_START and text != getattr(config, name.replace(".", "_")):
            message = f"{name} counts at a start here: set it in the broker's file of settings, and start it again"
            raise _invalid_request(f"Validation of dynamic config update failed: {message}", name)
        setting = BROKER_SETTINGS.get(name)
        if setting is not None:
            try:
                value = setting.parse(text)
            except ConfigError as error:
                raise _invalid_request(str(error), name) from error
            if name in _THREAD_COUNTS:
                _check_thread_count(name, value, getattr(config, setting.attribute))
    levels = (changed, config.dynamic_broker) if cluster else (config.dynamic_cluster, changed)
    result = BrokerConfig({**config.file, **levels[0], **levels[1]})
    for problem in _combined_problems(result):
        raise _invalid_request(f"requirement failed: {problem}", problem.key)
    return result


_OF_LISTENERS = frozenset(
    f"ssl.{name}"
    for name in (
        *("keystore.type", "keystore.location", "keystore.password", "key.password", "keystore.key"),
        *("keystore.certificate.chain", "truststore.type", "truststore.location", "truststore.password"),
        "truststore.certificates",
    )
)
_THREAD_COUNTS = frozenset(
    """
    num.io.threads num.network.threads num.replica.fetchers num.recovery.threads.per.data.dir background.threads
    log.cleaner.threads
    """.split()  # noqa: SIM905
)


def _check_thread_count(name: str, value: Value, current: int) -> None:
    """Kafka lets the number of threads grow or shrink twofold at a time."""
    assert isinstance(value, int)
    if value == current:
        return
    message = f"Dynamic thread count update validation failed for {name}={value}, value should "
    if value < 1:
        raise _invalid_request(message + "be at least 1", name)
    if value < current // 2:
        raise _invalid_request(message + f"be at least half the current value {current}", name)
    if value > current * 2:
        raise _invalid_request(message + f"not be greater than double the current value {current}", name)


def _invalid_request(message: str, key: str | None = None) -> ConfigError:
    return ConfigError(message, key=key, error=ErrorCode.INVALID_REQUEST)


def _may_change(name: str, *, cluster: bool) -> bool:
    setting = BROKER_SETTINGS.get(name)
    if setting is None:  # a setting of a plug-in, or of one listener: Kafka stores it without a check
        return True
    return setting.dynamic is Dynamic.CLUSTER or (setting.dynamic is Dynamic.BROKER and not cluster)


def _valid(values: Mapping[str, str], level: Dynamic) -> dict[str, str]:
    kept = {}
    for name, text in values.items():
        setting = BROKER_SETTINGS.get(name)
        if not _may_change(name, cluster=level is Dynamic.CLUSTER):
            logger.warning("ignored dynamic config %s: it cannot be changed while the broker runs", name)
            continue
        if name in _AT_START:
            logger.warning("ignored dynamic config %s: it counts at a start here, as the broker's file says it", name)
            continue
        if all(word in text for word in _ENCODED):
            logger.error(
                "ignored dynamic config %s: Kafka has encoded it with password.encoder.secret, which is not read here. "
                "Set it anew: barnabas configs set broker …",
                name,
            )
            continue
        if setting is not None:
            try:
                setting.parse(text)
            except ConfigError as error:
                logger.warning("ignored dynamic config %s: %s", name, error)
                continue
        kept[name] = text
    return kept


def _contradictory(file: Mapping[str, str], cluster: Mapping[str, str], broker: Mapping[str, str]) -> Collection[str]:
    """The dynamic settings without which no rule between settings is broken: one if that is enough, else all."""
    dynamic = {**cluster, **broker}

    def problem_without(names: Collection[str]) -> ConfigError | None:
        left = {name: text for name, text in dynamic.items() if name not in names}
        return next(_combined_problems(BrokerConfig({**file, **left})), None)

    problem = problem_without(()) if dynamic else None
    if problem is None or problem_without(dynamic):  # of the file alone a start has said it
        return ()
    ignored = next(({name} for name in sorted(dynamic) if problem_without({name}) is None), set(dynamic))
    logger.error("ignored dynamic configs %s: %s", ", ".join(sorted(ignored)), problem)
    return ignored


def _has_effect(name: str) -> bool:
    """Whether anything here reads the setting, perhaps for one listener."""
    if name.startswith("listener.name."):
        tail = ".".join(name.split(".")[3:])
        mechanism, _, of_mechanism = tail.partition(".")
        if mechanism in _MECHANISM_PREFIXES:
            return of_mechanism in PER_LISTENER
        return tail in PER_LISTENER and tail != JAAS_LINE
    if name.startswith("zookeeper.ssl."):
        from barnabas.config.tls import ZOOKEEPER_SETTINGS

        return name in ZOOKEEPER_SETTINGS
    return name in BROKER_SETTINGS and BROKER_SETTINGS[name].has_effect and name != JAAS_LINE


def is_known(name: str) -> bool:
    """Whether it is the name of a setting, of Barnabas or of a Kafka."""
    return name in BROKER_SETTINGS or name in _RENAMED or _is_of_kafka(name)


def _is_of_kafka(name: str) -> bool:
    return name in _OTHER_KAFKA_SETTINGS or name.startswith(_OTHER_KAFKA_FAMILIES)


def _problem(name: str, text: str) -> ConfigError | None:
    if name == "http.address":
        return ConfigError("http.address is set by the broker itself: set http.listeners instead", key=name)
    setting: Setting | None = BROKER_SETTINGS.get(_RENAMED.get(name, name))
    if setting is not None:
        try:
            setting.parse(text)
        except ConfigError as error:
            return ConfigError(str(error), key=name)
        return None
    if name in _REPLACED:
        return ConfigError(f"{name} is no longer supported: set {_REPLACED[name]} instead", key=name)
    if _is_of_kafka(name):
        return None
    from difflib import get_close_matches  # late: hardly ever needed

    alike = get_close_matches(name, BROKER_SETTINGS, 1, 0.85)
    return ConfigError(f"Unknown configuration {name}" + (f": did you mean {alike[0]}?" if alike else ""), key=name)


def _with_identity(values: Mapping[str, str]) -> dict[str, str]:
    """Settings by their present names. node.id and broker.id are one setting; a broker alone is number 0."""
    known = {name: text for name, text in values.items() if name not in _RENAMED}
    for older, name in _RENAMED.items():
        if older in values:
            known.setdefault(name, values[older])
    number = known.get("node.id", known.get("broker.id", "").strip())
    if number in ("", "-1"):
        number = "0"
    known["node.id"] = number
    known["broker.id"] = number if known.get("broker.id", "-1").strip() == "-1" else known["broker.id"]
    return known


# The rules between settings: what holds, the setting to blame, and what to tell.
_RULES: tuple[tuple[Callable[[BrokerConfig], Value], str, str], ...] = (
    (lambda c: c.node_id == c.broker_id, "broker.id", "You must set `node.id` to the same value as `broker.id`."),
    (
        lambda c: c.process_roles is None or "broker" in c.process_roles,
        "process.roles",
        "process.roles does not name broker: this file is of a KRaft controller, and there is nothing to start",
    ),
    (
        lambda c: c.authorizer_class_name in AUTHORIZERS,
        "authorizer.class.name",
        "authorizer.class.name={0.authorizer_class_name} names Java code, which cannot run here: set "
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer for Kafka's own rules",
    ),
    (
        lambda c: all(":" in each for each in (c.super_users or "").split(";") if each.strip()),
        "super.users",
        "super.users={0.super_users} must name principals like User:admin, with semicolons between them",
    ),
    (
        lambda c: c.data_directories,
        "log.dirs",
        "At least one log directory must be defined via log.dirs or log.dir.",
    ),
    (
        lambda c: not (c.zookeeper_connect and c.coordination_path),
        "coordination.path",
        "zookeeper.connect and coordination.path name two coordination trees: set one of them",
    ),
    (
        lambda c: not c.zookeeper_set_acl or c.zookeeper_sasl_jaas_config or c.zookeeper_digest_credentials,
        "zookeeper.set.acl",
        "zookeeper.set.acl needs a user: set zookeeper.sasl.jaas.config to `org.apache.zookeeper.server.auth."
        'DigestLoginModule required username="…" password="…";`, or zookeeper.digest.credentials to user:password',
    ),
    (
        lambda c: ":" in (c.zookeeper_digest_credentials or ":"),
        "zookeeper.digest.credentials",
        "zookeeper.digest.credentials is not of the form user:password",
    ),
    (
        lambda c: _retention(c) != 0,
        "log.retention.ms",
        "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
    ),
    (
        lambda c: c.log_roll_ms is None or c.log_roll_ms >= 1,
        "log.roll.ms",
        "log.roll.ms must be greater than or equal to 1",
    ),
    (
        lambda c: c.log_roll_jitter_ms is None or c.log_roll_jitter_ms >= 0,
        "log.roll.jitter.ms",
        "log.roll.jitter.ms must be greater than or equal to 0",
    ),
    (
        lambda c: c.log_cleaner_dedupe_buffer_size >= c.log_cleaner_threads << 20,
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
    ),
    (
        lambda c: c.replica_fetch_wait_max_ms <= c.replica_socket_timeout_ms,
        "replica.fetch.wait.max.ms",
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary "
        "socket timeouts",
    ),
    (
        lambda c: c.replica_fetch_wait_max_ms <= c.replica_lag_time_max_ms,
        "replica.fetch.wait.max.ms",
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent "
        "frequent changes in ISR",
    ),
    (
        lambda c: c.max_connections_per_ip != 0 or c.max_connections_per_ip_overrides,
        "max.connections.per.ip",
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
    ),
    (
        lambda c: 0 <= c.offsets_topic_compression_codec <= 4,
        "offsets.topic.compression.codec",
        "Unknown compression type id: {0.offsets_topic_compression_codec}",
    ),
    (
        lambda c: "classic" in c.group_coordinator_rebalance_protocols,
        "group.coordinator.rebalance.protocols",
        "Disabling the 'classic' protocol is not supported.",
    ),
    (
        lambda c: bool(c.group_consumer_assignors),
        "group.consumer.assignors",
        "group.consumer.assignors must not be empty",
    ),
)


def _combined_problems(config: BrokerConfig) -> Iterator[ConfigError]:
    """Which rules between settings are broken."""
    for holds, key, message in _RULES:
        if not holds(config):
            yield ConfigError(message.format(config), key=key)
    for low, value, high in _ORDERED:
        least, middle, most = (getattr(config, name.replace(".", "_")) for name in (low, value, high))
        if least > most:
            yield ConfigError(f"{high} must be greater than or equal to {low}", key=high)
        if least > middle:
            yield ConfigError(f"{value} must be greater than or equal to {low}", key=value)
        if middle > most:
            yield ConfigError(f"{value} must be less than or equal to {high}", key=value)
    listener_problems = list(check_listeners(config, config.file))
    yield from listener_problems
    http_problems = list(check_http(config))
    yield from http_problems
    yield from check_zookeeper_login(config)
    if not listener_problems:
        yield from check_sasl(config)
    if listener_problems or http_problems or not (listeners_with_tls(config) or zookeeper_has_tls(config)):
        return
    from barnabas.config.tls import check_tls, check_zookeeper_tls  # late: most brokers have none

    yield from check_tls(config)
    yield from check_zookeeper_tls(config)


_ORDERED = [
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms", "group.max.session.timeout.ms"),
    *(
        (f"group.{kind}.min.{what}", f"group.{kind}.{what}", f"group.{kind}.max.{what}")
        for kind in ("consumer", "share", "streams")
        for what in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
    ),
]


def _retention(config: BrokerConfig) -> int:
    if config.log_retention_ms is not None:
        return config.log_retention_ms
    return config.log_retention_hours if config.log_retention_minutes is None else config.log_retention_minutes
