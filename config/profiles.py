"""Profiles: settings and start options under one name. A profile is stronger than the file, weaker than `--set`."""

from collections.abc import Mapping

from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError
from barnabas.config.topic import BROKER_NAMES
from barnabas.protocol.named_tuple import NamedTuple


class Profile(NamedTuple):
    """The settings of a profile, and what else `barnabas start` does."""

    name: str
    settings: Mapping[str, str]
    exit_with_parent: bool = False
    temporary_data: bool = False  # if no directory is named
    offsets_topic_first: bool = False  # make `__consumer_offsets` before the ready line is printed
    is_one_broker: bool = False
    takes_environment: bool = False  # KAFKA_NUM_PARTITIONS is num.partitions


NO_PROFILE = Profile("none", {})
PROFILES: dict[str, Profile] = {
    # For tests: nothing waits for a clock, created topics are small, and no data is left behind. Records stay, however
    # old their timestamps are: tests write fixed ones, and retention looks each second. Nothing waits for a disk that
    # syncs, because no test cuts the power.
    #
    # Shortened is what looks now and then whether something is due. Time-outs that judge whether somebody is alive are
    # not, because a busy machine would be taken for a dead one.
    "ci": Profile(
        "ci",
        {
            "control.enable": "true",
            "control.sync.enable": "false",
            "group.consumer.assignment.interval.ms": "0",
            "group.consumer.heartbeat.interval.ms": "200",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.min.session.timeout.ms": "100",
            "group.consumer.regex.refresh.interval.ms": "10000",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "log.retention.ms": "-1",
            "log.retention.bytes": "-1",
            "log.cleaner.backoff.ms": "100",
            "log.dir.room.check.interval.ms": "100",
            "log.retention.check.interval.ms": "1000",
            "log.segment.delete.delay.ms": "0",
            "offsets.lag.check.interval.ms": "1000",
            "offsets.retention.check.interval.ms": "1000",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
            "producer.id.expiration.check.interval.ms": "1000",
            "delegation.token.expiry.check.interval.ms": "1000",
            "leader.imbalance.check.interval.seconds": "1",
        },
        exit_with_parent=True,
        temporary_data=True,
        offsets_topic_first=True,
    ),
    # What suites and compose files for the images of Apache Kafka expect of a broker without settings.
    "docker": Profile(
        "docker",
        {
            "node.id": "1",
            "listeners": "PLAINTEXT://:9092",
            "advertised.listeners": "PLAINTEXT://localhost:9092",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        },
        is_one_broker=True,
        takes_environment=True,
    ),
}
REPLICAS_MAX = 3  # of each partition in a cluster that says nothing of it


def of_cluster(brokers: int) -> dict[str, str]:
    """The defaults of a cluster of so many brokers, where they are not those of a single one."""
    replicas, in_sync = str(min(REPLICAS_MAX, brokers)), str(min(2, brokers))
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "min.insync.replicas": in_sync,
    }


# A setting of a profile, and the one that it gives way to beside itself.
GIVES_WAY_TO = {"advertised.listeners": "listeners", "node.id": "broker.id"}
# Variables of these images that begin as settings do.
NOT_SETTINGS = frozenset(
    f"KAFKA_{name}"
    for name in """
    VERSION HOME HEAP_OPTS OPTS JMX_OPTS JMX_PORT JVM_PERFORMANCE_OPTS GC_LOG_OPTS LOG4J_OPTS LOG4J_ROOT_LOGLEVEL
    LOG4J_LOGGERS TOOLS_LOG4J_LOGLEVEL DEBUG
    """.split()  # noqa: SIM905
)


def of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of variables like KAFKA_NUM_PARTITIONS, by Kafka's names, as Kafka's images read them.

    An underscore is a dot, two are an underscore, three are a dash.
    """
    found = {}
    for variable, text in environment.items():
        if variable.startswith("KAFKA_") and variable not in NOT_SETTINGS:
            name = variable.removeprefix("KAFKA_").lower()
            found[name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")] = text
    return found


def variable_of(name: str) -> str:
    """The variable that `of_environment` reads this setting from."""
    return "KAFKA_" + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def profile(name: str) -> Profile:
    """The profile of that name. ConfigError when there is none."""
    if name not in PROFILES:
        raise ConfigError(f"unknown profile {name}: the profiles are {', '.join(PROFILES)}")
    return PROFILES[name]


def beside(profile: Profile, given: Mapping[str, str], port: int | None = None) -> Profile:
    """The profile without settings that are stronger than one of `given` and mean the same.

    `--set log.retention.hours=1` counts, although log.retention.ms is stronger in one file. `port` is that of --port,
    which clients are told, too; 0 is one that is not known yet.
    """
    meant_otherwise = {
        stronger
        for names in BROKER_NAMES.values()
        for number, name in enumerate(names)
        if name in given
        for stronger in names[:number]
    }
    meant_otherwise |= {weaker for weaker, name in GIVES_WAY_TO.items() if name in given}
    kept = {key: text for key, text in profile.settings.items() if key not in meant_otherwise}
    advertised = kept.get("advertised.listeners")
    if port is not None and advertised is not None and "advertised.listeners" not in given:
        kept["advertised.listeners"] = f"{advertised.rpartition(':')[0]}:{port}" if port else ""
    return profile._replace(settings=kept)


def changes(profile: Profile, values: Mapping[str, str]) -> dict[str, str]:
    """The settings that the profile changes in `values`."""
    settings = profile.settings.items()
    return {key: text for key, text in settings if values.get(key, BROKER_SETTINGS[key].default) != text}
