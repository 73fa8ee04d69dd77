"""Profiles: settings and start options under one name. A profile is stronger than the file, weaker than `--set`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError
from barnabas.config.topic import BROKER_NAMES


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
    # For tests: nothing waits for a clock, created topics are small, and no data is left behind. Records stay, however
    # old their timestamps are: tests write fixed ones, and retention looks each second.
    #
    # Shortened is what looks now and then whether something is due. Time-outs that judge whether somebody is alive are
    # not, because a busy machine would be taken for a dead one.
    "ci": Profile(
        "ci",
        {
            "control.enable": "true",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "log.retention.ms": "-1",
            "log.retention.bytes": "-1",
            "log.cleaner.backoff.ms": "100",
            "log.retention.check.interval.ms": "1000",
            "log.segment.delete.delay.ms": "0",
            "offsets.lag.check.interval.ms": "1000",
            "offsets.retention.check.interval.ms": "1000",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
            "producer.id.expiration.check.interval.ms": "1000",
            "leader.imbalance.check.interval.seconds": "1",
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


def beside(profile: Profile, given: Mapping[str, str]) -> Profile:
    """The profile without settings that are stronger than one of `given` and mean the same.

    `--set log.retention.hours=1` counts, although log.retention.ms is stronger in one file.
    """
    meant_otherwise = {
        stronger
        for names in BROKER_NAMES.values()
        for number, name in enumerate(names)
        if name in given
        for stronger in names[:number]
    }
    kept = {key: text for key, text in profile.settings.items() if key not in meant_otherwise}
    return replace(profile, settings=kept)


def changes(profile: Profile, values: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    """The settings that the profile changes in `values`: key, text before (None: not set), text after."""
    for key, text in profile.settings.items():
        before = values.get(key, BROKER_SETTINGS[key].default)
        if before != text:
            yield key, before, text
