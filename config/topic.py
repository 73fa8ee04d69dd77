"""Topic settings, one line each, and TopicConfig: the values for one topic."""

# ruff: noqa: E501

from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from barnabas.config.broker import BrokerConfig
from barnabas.config.settings import ConfigError, Table, Value, read_table

# The notation is that of broker_settings.py. A default is what applies where the broker has no setting for it.
_TABLE = """
barnabas.retention.wait.for.groups | LIST | empty | - | - hidden | Groups (names, or patterns with * and ?) that must have read records before retention takes them.
barnabas.retention.wait.max.ms | LONG | 86400000 | >= 0 | - hidden | How long retention waits for these groups at most.
cleanup.policy | LIST | delete | compact, delete | - | What happens to old segments: deleted by age and size, compacted by key, or both.
compression.gzip.level | INT | -1 | 1..9 or -1 | - | Level when the broker compresses with gzip; -1: the codec's own.
compression.lz4.level | INT | 9 | 1..17 | - | Level when the broker compresses with lz4.
compression.type | STRING | producer | uncompressed, zstd, lz4, snappy, gzip, producer | - | Codec in which batches are stored; producer: as they come.
compression.zstd.level | INT | 3 | -131072..22 | - | Level when the broker compresses with zstd.
delete.retention.ms | LONG | 86400000 | >= 0 | - | How long tombstones stay in a compacted log.
file.delete.delay.ms | LONG | 60000 | >= 0 | - | Time between the removal of a file from the log and its deletion.
flush.messages | LONG | 9223372036854775807 | >= 1 | - | Sync the log after so many records.
flush.ms | LONG | 9223372036854775807 | >= 0 | - | Sync the log after so long.
follower.replication.throttled.replicas | LIST | empty | throttled replicas | - | -
index.interval.bytes | INT | 4096 | >= 0 | - | Bytes of log between two entries of the offset index.
internal.segment.bytes | INT | null | >= 1 | - hidden | Segment size without a lower bound, for tests; stronger than segment.bytes.
leader.replication.throttled.replicas | LIST | empty | throttled replicas | - | -
local.retention.bytes | LONG | -2 | >= -2 | - | -
local.retention.ms | LONG | -2 | >= -2 | - | -
max.compaction.lag.ms | LONG | 9223372036854775807 | >= 1 | - | Age above which a record must be compacted.
max.message.bytes | INT | 1048588 | >= 0 | - | Largest record batch.
max.message.records | INT | 1048576 | >= 1 | - hidden | Most records in one batch, if the broker reads the records.
max.message.unpacked.bytes | INT | 134217728 | >= 1 | - hidden | Most bytes of the records in one compressed batch.
message.timestamp.after.max.ms | LONG | 3600000 | >= 0 | - | How far a record's timestamp may lie ahead of the broker's clock.
message.timestamp.before.max.ms | LONG | 9223372036854775807 | >= 0 | - | How far a record's timestamp may lie behind the broker's clock.
message.timestamp.type | STRING | CreateTime | CreateTime, LogAppendTime | - | Whether a record carries its producer's time or the broker's.
min.cleanable.dirty.ratio | DOUBLE | 0.5 | 0..1 | - | Share of the log not compacted yet that starts a compaction.
min.compaction.lag.ms | LONG | 0 | >= 0 | - | Age below which a record is not compacted.
min.insync.replicas | INT | 1 | >= 1 | - | In-sync replicas that a write with acks=all needs.
preallocate | BOOLEAN | false | - | - | -
remote.log.copy.disable | BOOLEAN | false | - | - | -
remote.log.delete.on.disable | BOOLEAN | false | - | - | -
remote.storage.enable | BOOLEAN | false | - | - | -
retention.bytes | LONG | -1 | - | - | Size at which a partition's oldest segments go; -1: never.
retention.ms | LONG | 604800000 | >= -1 | - | Age at which records go; -1: never.
segment.bytes | INT | 1073741824 | >= 1048576 | - | Size at which a segment file is full.
segment.index.bytes | INT | 10485760 | >= 4 | - | Largest index file.
segment.jitter.ms | LONG | 0 | >= 0 | - | Random part taken off segment.ms, so that not all segments roll at once.
segment.ms | LONG | 604800000 | >= 1 | - | Age at which a segment is full.
unclean.leader.election.enable | BOOLEAN | false | - | - | Let a replica lead that may lack records, when no other is left.
"""

TOPIC_SETTINGS: Table = read_table(_TABLE)
WITH_EFFECT = [setting for setting in TOPIC_SETTINGS.values() if setting.has_effect]

# The broker settings that a topic setting's default comes from, strongest first. Those in hours and minutes are
# turned into milliseconds.
BROKER_NAMES: dict[str, tuple[str, ...]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.type": ("compression.type",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "local.retention.bytes": ("log.local.retention.bytes",),
    "local.retention.ms": ("log.local.retention.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "max.message.records": ("message.max.records",),
    "max.message.unpacked.bytes": ("message.max.unpacked.bytes",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}
_UNIT_MS = {"hours": 3_600_000, "minutes": 60_000}


class TopicConfig:
    """The settings of one topic that have an effect: its own, or else the broker's. Sizes in bytes, spans in ms."""

    __slots__ = (*(setting.attribute for setting in WITH_EFFECT), "overrides")

    barnabas_retention_wait_for_groups: tuple[str, ...]
    barnabas_retention_wait_max_ms: int
    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    internal_segment_bytes: int | None
    max_compaction_lag_ms: int
    max_message_bytes: int
    max_message_records: int
    max_message_unpacked_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    overrides: Mapping[str, str]

    @classmethod
    def of(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> "TopicConfig":
        """The config of a topic that has these settings of its own.

        Names and values that are not a topic's are left out, because another version may have written them into the
        tree. `validate` checks what a client sends.
        """
        config = cls()
        config.overrides = dict(overrides)
        for setting in WITH_EFFECT:
            value: Value = None
            if setting.name in overrides:
                with suppress(ConfigError):
                    value = setting.parse(overrides[setting.name])
            if value is None:
                value = broker_default(setting.name, broker)
            if setting.name == "cleanup.policy":
                assert isinstance(value, tuple)
                config.cleanup_policy = frozenset(value)
            else:
                setattr(config, setting.attribute, value)
        if config.internal_segment_bytes is not None:
            config.segment_bytes = config.internal_segment_bytes
        return config


def broker_default(name: str, broker: BrokerConfig) -> Value:
    """The value for a topic that does not have the setting itself: the broker's, or the table's."""
    for broker_name in BROKER_NAMES.get(name, ()):
        value: Value = getattr(broker, broker_name.replace(".", "_"))
        if value is None:
            continue
        unit = _UNIT_MS.get(broker_name.rpartition(".")[2])
        if unit is not None:
            assert isinstance(value, int)
            return value * unit if value >= 0 else -1
        if name == "retention.ms":
            assert isinstance(value, int)
            return max(value, -1)
        return value
    return _default(name)


@cache
def _default(name: str) -> Value:
    """The value of the table."""
    setting = TOPIC_SETTINGS[name]
    return None if setting.default is None else setting.parse(setting.default)


def validate(overrides: Mapping[str, str]) -> None:
    """Raise ConfigError unless a topic may have these settings of its own."""
    for name in overrides:
        if name not in TOPIC_SETTINGS:
            raise ConfigError(f"Unknown topic config name: {name}", key=name)
    values = {name: TOPIC_SETTINGS[name].parse(text) for name, text in overrides.items()}
    least, most = (values.get(name, _default(name)) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"))
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        message = f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        raise ConfigError(message, key="min.compaction.lag.ms")
    if values.get("remote.storage.enable"):
        message = "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
        raise ConfigError(message, key="remote.storage.enable")
