"""The settings of a consumer group: the broker's, and those that the group has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from barnabas.protocol.named_tuple import NamedTuple

if TYPE_CHECKING:  # explanation.py, which commands use, needs a name alone
    from barnabas.config.broker import BrokerConfig


class GroupSettings(NamedTuple):
    """The settings that hold for one group."""

    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignment_interval_ms: int
    assignors: tuple[str, ...]
    size_max: int
    classic_size_max: int
    migration_policy: str

    @property
    def default_assignor(self) -> str:
        """The assignor of a group whose members name none."""
        return self.assignors[0]


_CLASS = "org.apache.kafka.coordinator.group.assignor."
_BY_CLASS = {f"{_CLASS}UniformAssignor": "uniform", f"{_CLASS}RangeAssignor": "range"}  # the default until Kafka 4.0

ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT = "consumer.session.timeout.ms"


def assignors_of(config: BrokerConfig) -> tuple[str, ...]:
    """The assignors that members may name; the first is the default. The setting may name them by Kafka's classes."""
    return tuple(_BY_CLASS.get(name, name) for name in config.group_consumer_assignors)


def beat_of(config: BrokerConfig, own: Mapping[str, str]) -> tuple[int, int]:
    """The heartbeat interval and the session timeout of a group, as `settings_of` has them: each heartbeat asks."""
    heartbeat_ms, session_ms = config.group_consumer_heartbeat_interval_ms, config.group_consumer_session_timeout_ms
    if not own:
        return heartbeat_ms, session_ms
    if HEARTBEAT_INTERVAL in own:
        least, most = config.group_consumer_min_heartbeat_interval_ms, config.group_consumer_max_heartbeat_interval_ms
        heartbeat_ms = min(max(int(own[HEARTBEAT_INTERVAL]), least), most)
    if SESSION_TIMEOUT in own:
        least, most = config.group_consumer_min_session_timeout_ms, config.group_consumer_max_session_timeout_ms
        session_ms = min(max(int(own[SESSION_TIMEOUT]), least), most)
    return heartbeat_ms, session_ms


def settings_of(config: BrokerConfig, own: Mapping[str, str]) -> GroupSettings:
    """The settings of a group. `own`: those that it has itself, which count within the bounds of the broker."""
    heartbeat_ms, session_ms = beat_of(config, own)
    interval_ms = config.group_consumer_assignment_interval_ms
    if ASSIGNMENT_INTERVAL in own:
        least, most = config.group_consumer_min_assignment_interval_ms, config.group_consumer_max_assignment_interval_ms
        interval_ms = min(max(int(own[ASSIGNMENT_INTERVAL]), least), most)
    return GroupSettings(
        heartbeat_ms,
        session_ms,
        interval_ms,
        assignors_of(config),
        config.group_consumer_max_size,
        config.group_max_size,
        config.group_consumer_migration_policy,
    )
