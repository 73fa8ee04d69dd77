"""Rows of DescribeConfigs: the value of each setting, its source, and the values that it hides."""

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from functools import cache

from barnabas.config.broker import BrokerConfig
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.entities import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS, broker_name, group_default
from barnabas.config.settings import UNUSED, ConfigError, Dynamic, Setting, Type, Value, render
from barnabas.config.topic import BROKER_NAMES, TOPIC_SETTINGS, broker_default
from barnabas.protocol.named_tuple import NamedTuple


class ConfigSource(IntEnum):
    """Where a value comes from, by its number in DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_CLUSTER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


Synonym = tuple[str, str | None, ConfigSource]


class ConfigRow(NamedTuple):
    """One setting of one resource, with the names of the response's fields."""

    name: str
    value: str | None  # None when not set or sensitive
    read_only: bool
    config_source: ConfigSource
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]  # name, value, source; strongest first
    config_type: int
    documentation: str


UNKNOWN_TYPE = 0
# Kafka's broker hands these to its authorizer, and answers for them as for names that it does not know.
OF_AUTHORIZER = frozenset(("allow.everyone.if.no.acl.found", "super.users"))

# The names under which Kafka's broker answers for a setting. The flush interval has its family one way only.
_FAMILIES = {
    name: names
    for names in (BROKER_NAMES["retention.ms"], BROKER_NAMES["segment.ms"], BROKER_NAMES["segment.jitter.ms"])
    for name in names
}
_FAMILIES["log.flush.interval.ms"] = BROKER_NAMES["flush.ms"]


def topic_rows(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigRow]:
    """The rows of every topic setting (or of those named) for a topic that has these settings of its own."""
    rows = []
    listed = (setting for setting in TOPIC_SETTINGS.values() if not setting.hidden or setting.name in overrides)
    for setting in _wanted(listed, names):
        value: Value = None
        own = overrides.get(setting.name)
        if own is not None:
            try:
                value = setting.parse(own)
            except ConfigError:  # another version wrote it: TopicConfig takes the broker's value, and so does this row
                own = None
        synonyms: list[Synonym] = []
        if own is not None:
            synonyms.append((setting.name, render(value), ConfigSource.TOPIC))
        else:
            value = broker_default(setting.name, broker)
        if setting.name in BROKER_NAMES:
            synonyms += _broker_synonyms(BROKER_NAMES[setting.name][0], broker)
        rows.append(_row(setting, render(value), synonyms, read_only=False))
    return rows


def broker_rows(broker: BrokerConfig, names: Collection[str] | None = None) -> list[ConfigRow]:
    """Every broker setting (or those named) as it is for this broker."""
    given = {name for level in _levels(broker) for name in level}
    known = BROKER_SETTINGS.keys() - OF_AUTHORIZER
    listed = (
        setting
        for setting in BROKER_SETTINGS.values()
        if setting.name in known and (not setting.hidden or setting.name in given)
    )
    rows = []
    for setting in _wanted(listed, names):
        value = render(getattr(broker, setting.attribute))
        synonyms = _broker_synonyms(setting.name, broker)
        rows.append(_row(setting, value, synonyms, read_only=setting.hidden or setting.dynamic is Dynamic.NEVER))
    unlisted = (name for name in sorted(given - known) if not names or name in names)
    return rows + [_unlisted_row(name, broker) for name in unlisted]


def _base_of(name: str) -> Setting | None:
    """The setting of which a name is that of one listener (listener.name.NAME[.MECHANISM].SETTING)."""
    tail = name.split(".")[3:] if name.startswith("listener.name.") else []
    bases = (BROKER_SETTINGS.get(".".join(tail[start:])) for start in range(len(tail)))
    return next((setting for setting in bases if setting is not None), None)


def is_sensitive(name: str) -> bool:
    """Whether the value of a setting may be a password. Nobody knows what an unknown one is."""
    base = BROKER_SETTINGS.get(name) or _base_of(name)
    return base is None or base.sensitive


def _unlisted_row(name: str, broker: BrokerConfig) -> ConfigRow:
    """The row of a name that is not in the table: a setting of another release, a plug-in, or one listener."""
    base = _base_of(name)
    sensitive = base is None or base.sensitive  # also super.users, which Kafka does not list
    synonyms = [
        (one, None if sensitive else level[one], source)
        for level, source in zip(_levels(broker), _LEVEL_SOURCES, strict=True)
        for one in (name, *([] if base is None else [base.name]))
        if one in level
    ]
    if base is not None and base.default is not None:
        synonyms.append((base.name, None if sensitive else base.default, ConfigSource.DEFAULT))
    assert synonyms, "a name that is set nowhere"
    _, value, source = synonyms[0]
    type_number = UNKNOWN_TYPE if base is None else base.type
    return ConfigRow(name, value, True, source, sensitive, tuple(synonyms), type_number, UNUSED)


def cluster_rows(broker: BrokerConfig, names: Collection[str] | None = None) -> list[ConfigRow]:
    """The dynamic settings of all brokers (resource broker, name empty): only those that are set."""
    rows = []
    for name, text in sorted(broker.dynamic_cluster.items()):
        if names and name not in names:
            continue
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            rows.append(_unlisted_row(name, broker))
            continue
        synonym = (name, None if setting.sensitive else text, ConfigSource.DYNAMIC_CLUSTER)
        rows.append(_row(setting, text, [synonym], read_only=False))
    return rows


def group_rows(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigRow]:
    """The rows of every group setting (or of those named) for a group that has these settings of its own."""
    rows = []
    for setting in _wanted(GROUP_SETTINGS.values(), names):
        own, of_broker = overrides.get(setting.name), broker_name(setting.name)
        synonyms: list[Synonym] = [] if own is None else [(setting.name, own, ConfigSource.GROUP)]
        if of_broker is not None:
            synonyms += _broker_synonyms(of_broker, broker)
        else:
            synonyms.append((setting.name, setting.default, ConfigSource.DEFAULT))
        value = render(group_default(setting.name, broker)) if own is None else own
        rows.append(_row(setting, value, synonyms, read_only=False))
    return rows


def client_metrics_rows(overrides: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigRow]:
    """Every setting of a client metrics subscription (or those named)."""
    rows = []
    for setting in _wanted(CLIENT_METRICS_SETTINGS.values(), names):
        own = overrides.get(setting.name)
        synonyms: list[Synonym] = [] if own is None else [(setting.name, own, ConfigSource.CLIENT_METRICS)]
        rows.append(_row(setting, setting.default if own is None else own, synonyms, read_only=False))
    return rows


_LEVEL_SOURCES = (ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_CLUSTER, ConfigSource.STATIC_BROKER)


def _levels(broker: BrokerConfig) -> tuple[Mapping[str, str], ...]:
    return broker.dynamic_broker, broker.dynamic_cluster, broker.file


def _broker_synonyms(name: str, broker: BrokerConfig) -> list[Synonym]:
    """Every level at which the setting, or one behind it, has a value.

    Names that are stronger than the setting itself are left out, as Kafka leaves them out: where only
    log.retention.hours is set, log.retention.ms is not named.
    """
    synonyms: list[Synonym] = []
    family = _FAMILIES.get(name, (name,))
    for level, source in zip(_levels(broker), _LEVEL_SOURCES, strict=True):
        if level:
            synonyms += [(one, level[one], source) for one in family if one in level]
    synonyms += _defaults(family)
    while synonyms and synonyms[0][0] != name:
        del synonyms[0]
    if BROKER_SETTINGS[name].type is Type.PASSWORD:
        synonyms = [(one, None, source) for one, _, source in synonyms]
    return synonyms


@cache
def _defaults(family: tuple[str, ...]) -> list[Synonym]:
    """The defaults that the settings of a family have."""
    defaults = [(one, BROKER_SETTINGS[one].default) for one in family]
    return [(one, default, ConfigSource.DEFAULT) for one, default in defaults if default is not None]


# Kafka says that these are lists. Here each is one text, which `listeners.py` or the start takes apart.
_LISTS_OF_KAFKA = frozenset(
    ("advertised.listeners", "controller.listener.names", "early.start.listeners", "listeners", "log.dir", "log.dirs")
)


def _row(setting: Setting, value: str | None, synonyms: list[Synonym], *, read_only: bool) -> ConfigRow:
    return ConfigRow(
        setting.name,
        None if setting.sensitive else value,
        read_only,
        synonyms[0][2] if synonyms else ConfigSource.DEFAULT,
        setting.sensitive,
        tuple(synonyms),
        Type.LIST if setting.name in _LISTS_OF_KAFKA else setting.type,
        setting.doc,
    )


def _wanted(settings: Iterable[Setting], names: Collection[str] | None) -> Iterable[Setting]:
    """The settings of these names; None: all."""
    return (setting for setting in settings if not names or setting.name in names)
