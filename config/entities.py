"""Settings of groups (resource type 32) and of client metrics subscriptions (type 16)."""

# ruff: noqa: E501

import re
from collections.abc import Mapping

from barnabas.config.broker import BrokerConfig
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError, Table, Value, invalid, read_table
from barnabas.protocol.errors import ErrorCode

GROUP_SETTINGS: Table = read_table("""
consumer.assignment.interval.ms | INT | 1000 | >= 0 | - | Least time between two assignments.
consumer.heartbeat.interval.ms | INT | 5000 | >= 1 | - | Time between heartbeats of the group's members.
consumer.session.timeout.ms | INT | 45000 | >= 1 | - | Silence after which a member is removed.
share.assignment.interval.ms | INT | 1000 | >= 0 | - | Least time between two assignments.
share.auto.offset.reset | STRING | latest | - | - | Where a share group begins to read.
share.delivery.count.limit | INT | 5 | >= 2 | - | How often a record is delivered at most.
share.heartbeat.interval.ms | INT | 5000 | >= 1 | - | Time between heartbeats of the share group's members.
share.isolation.level | STRING | read_uncommitted | read_committed, read_uncommitted | - | Whether a share group sees open transactions.
share.partition.max.record.locks | INT | 2000 | >= 100 | - | Records of a partition that are held at a time.
share.record.lock.duration.ms | INT | 30000 | >= 1000 | - | How long a member may hold a record.
share.renew.acknowledge.enable | BOOLEAN | true | - | - | Whether a member may hold a record for longer.
share.session.timeout.ms | INT | 45000 | >= 1 | - | Silence after which a share group's member is removed.
streams.assignment.interval.ms | INT | 1000 | >= 0 | - | Least time between two assignments.
streams.heartbeat.interval.ms | INT | 5000 | >= 1 | - | Time between heartbeats of the streams group's members.
streams.initial.rebalance.delay.ms | INT | 3000 | >= 0 | - | How long a new group waits for more members.
streams.num.standby.replicas | INT | 0 | >= 0 | - | Standby copies of each task.
streams.session.timeout.ms | INT | 45000 | >= 1 | - | Silence after which a streams group's member is removed.
""")

# Which broker settings give a group setting its default and its bounds.
_BOUNDED = {
    f"{kind}.{what}": (f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
    for kind in ("consumer", "share", "streams")
    for what in ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
}
for _what in ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms"):
    _BOUNDED[f"share.{_what}"] = f"group.share.min.{_what}", f"group.share.max.{_what}"
_DURATION = re.compile(
    r"[-+]?P(?=[-+\dT])([-+]?\d+D)?(T(?=[-+\d])([-+]?\d+H)?([-+]?\d+M)?([-+]?\d+([.,]\d*)?S)?)?", re.I
)

CLIENT_METRICS_SETTINGS: Table = read_table("""
interval.ms | INT | 300000 | - | - | Time between a client's reports.
match | LIST | empty | - | - | Which clients report: name=expression, comma separated; empty: all.
metrics | LIST | empty | - | - | Prefixes of the metrics wanted; empty: none, *: all.
""")

_INTERVAL_BOUNDS_MS = (100, 3_600_000)
_MATCH_NAMES = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def broker_name(name: str) -> str | None:
    """The broker setting that a setting of a group has its default from; None: there is none."""
    return f"group.{name}" if f"group.{name}" in BROKER_SETTINGS else None


def group_default(name: str, broker: BrokerConfig) -> Value:
    """The value for a group that does not have the setting itself."""
    of_broker = broker_name(name)
    if of_broker is not None:
        value: Value = getattr(broker, BROKER_SETTINGS[of_broker].attribute)
        return value
    default = GROUP_SETTINGS[name].default
    return None if default is None else GROUP_SETTINGS[name].parse(default)


def validate_group(values: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise ConfigError unless a group may have these settings of its own."""
    for name in values:
        if name not in GROUP_SETTINGS:
            raise ConfigError(f"Unknown group config name: {name}", key=name)
    parsed = {name: GROUP_SETTINGS[name].parse(text) for name, text in values.items()}
    for name, value in parsed.items():
        if name == "share.auto.offset.reset":
            _check_reset(name, str(value))
        if name in _BOUNDED:
            low, high = _BOUNDED[name]
            assert isinstance(value, int)
            if value < getattr(broker, low.replace(".", "_")):
                raise ConfigError(f"{name} must be greater than or equal to {low}", key=name)
            if value > getattr(broker, high.replace(".", "_")):
                raise ConfigError(f"{name} must be less than or equal to {high}", key=name)
    standby = parsed.get("streams.num.standby.replicas")
    if isinstance(standby, int) and standby > broker.group_streams_max_standby_replicas:
        message = "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas"
        raise ConfigError(message, key="streams.num.standby.replicas")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        lengths = [parsed.get(name, group_default(name, broker)) for name in (session, heartbeat)]
        assert isinstance(lengths[0], int)
        assert isinstance(lengths[1], int)
        if lengths[0] <= lengths[1]:
            raise ConfigError(f"{session} must be greater than {heartbeat}", key=session)


def _check_reset(name: str, text: str) -> None:
    kind, colon, duration = text.partition(":")
    if text in ("latest", "earliest") or (kind == "by_duration" and colon and _DURATION.fullmatch(duration)):
        return
    choice = "either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'"
    raise invalid(name, text, f"Invalid value `{text}` for configuration {name}. The value must be {choice}.")


def validate_client_metrics(values: Mapping[str, str]) -> None:
    """Raise ConfigError unless a client metrics subscription may have these settings."""
    for name, text in values.items():
        if name not in CLIENT_METRICS_SETTINGS:
            message = f"Unknown client metrics configuration: {name}"
            raise ConfigError(message, key=name, error=ErrorCode.INVALID_REQUEST)
        value = CLIENT_METRICS_SETTINGS[name].parse(text)
        if name == "interval.ms":
            low, high = _INTERVAL_BOUNDS_MS
            assert isinstance(value, int)
            if not low <= value <= high:
                message = f"Invalid value {value} for {name}, interval must be between {low} and {high} (1 hour)"
                raise ConfigError(message, key=name, error=ErrorCode.INVALID_REQUEST)
        if name == "match":
            assert isinstance(value, tuple)
            for pattern in value:
                _check_match(pattern)


def _check_match(pattern: str) -> None:
    name, equals, expression = pattern.partition("=")
    try:
        good = equals and name.strip() in _MATCH_NAMES and re.compile(expression.strip())
    except re.error:
        good = None
    if not good:
        raise ConfigError(f"Illegal client matching pattern: {pattern}", key="match")
