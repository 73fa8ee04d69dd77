"""Profiles: settings and start options under one name. A profile is stronger than the file, weaker than `--set`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of a profile, and what else `barnabas start` does."""

    name: str
    settings: Mapping[str, str]
    exit_with_parent: bool = False
    temporary_data: bool = False  # if no directory is named
    offsets_topic_first: bool = False  # make `__consumer_offsets` before the ready line is printed


NO_PROFILE = Profile("none", {})
PROFILES: dict[str, Profile] = {
    # For tests: a group does not wait for a second member, created topics are small, and no data is left behind.
    "ci": Profile(
        "ci",
        {
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "log.cleaner.backoff.ms": "100",
            "log.retention.check.interval.ms": "1000",
            "log.segment.delete.delay.ms": "0",
            "offsets.retention.check.interval.ms": "1000",
        },
        exit_with_parent=True,
        temporary_data=True,
        offsets_topic_first=True,
    ),
}


def profile(name: str) -> Profile:
    """The profile of that name. ConfigError when there is none."""
    if name not in PROFILES:
        raise ConfigError(f"there is no profile {name}; there is {', '.join(PROFILES)}")
    return PROFILES[name]


def changes(profile: Profile, values: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    """The settings that the profile changes in `values`: key, text before (None: not set), text after."""
    for key, text in profile.settings.items():
        before = values.get(key, BROKER_SETTINGS[key].default)
        if before != text:
            yield key, before, text
