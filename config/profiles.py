"""Profiles: groups of settings with a name. A profile is stronger than the file and weaker than `--set`."""

from collections.abc import Iterator, Mapping

from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError

PROFILES: dict[str, dict[str, str]] = {
    # For tests: nobody waits for a second member, and what is created is small.
    "ci": {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "log.cleaner.backoff.ms": "100",
        "log.retention.check.interval.ms": "1000",
        "log.segment.delete.delay.ms": "0",
        "offsets.retention.check.interval.ms": "1000",
    },
}


def settings(name: str) -> Mapping[str, str]:
    """The settings of a profile. ConfigError when there is no such profile."""
    if name not in PROFILES:
        raise ConfigError(f"there is no profile {name}; there is {', '.join(PROFILES)}")
    return PROFILES[name]


def changes(name: str, values: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    """What the profile changes in these values: key, text before (None: not set), text after."""
    for key, text in settings(name).items():
        before = values.get(key, BROKER_SETTINGS[key].default)
        if before != text:
            yield key, before, text
