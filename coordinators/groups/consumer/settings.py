"""The settings of a consumer group: the broker's, and those that the group has of its own."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class ConsumerConfig(Protocol):
    """The broker settings of consumer groups. They are read each time, because they may change."""

    group_consumer_assignors: tuple[str, ...]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_session_timeout_ms: int


class GroupSettings(NamedTuple):
    """The settings that hold for one group."""

    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignors: tuple[str, ...]
    size_max: int

    @property
    def default_assignor(self) -> str:
        """The assignor of a group whose members name none."""
        return self.assignors[0]
