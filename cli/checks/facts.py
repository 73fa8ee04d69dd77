"""What the doctor knows: values that the command has asked for (`cli/doctor.py`), and checks look at."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from barnabas.cli.open_transactions import Described, Open
from barnabas.cluster.security.acls import Acl
from barnabas.coordinators.groups.standstill import STALLED_MS
from barnabas.offsets.lag import PartitionLag
from barnabas.protocol.named_tuple import NamedTuple

TOPIC_SOURCE = 1  # of a value that a topic has of its own
STATIC_SOURCE = 4  # of a value that was set when the broker started
DEFAULT_SOURCE = 5  # of a value that nobody has set
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LONG_MAX = 2**63 - 1

Row = Mapping[str, Any]

# What /v1/health did not say in earlier releases, whose brokers may run beside these.
LATER_FIELDS: Row = {
    "tree_trouble": None,
    "tree_held_by": None,
    "why_not_registered": None,
    "is_told_by_controller": True,
    "unreadable": (),
    "undecided": (),
    "read_by_others": (),
    "certificates": (),
}


class Setting(NamedTuple):
    """The value of a setting, and where it comes from."""

    value: str | None
    source: int = DEFAULT_SOURCE

    @property
    def is_set(self) -> bool:
        """Whether somebody has set it."""
        return self.source != DEFAULT_SOURCE


class Settings:
    """The settings of a broker or a topic. What is not there is None, and a check that needs it finds nothing."""

    def __init__(self, values: Mapping[str, Setting]) -> None:
        self.values = values

    def text(self, name: str) -> str | None:
        found = self.values.get(name)
        return None if found is None else found.value

    def number(self, name: str) -> float | None:
        text = self.text(name)
        try:
            return None if text is None or text == "" else float(text)
        except ValueError:
            return None

    def is_true(self, name: str) -> bool | None:
        text = self.text(name)
        return None if text is None else text.lower() == "true"

    def is_set(self, name: str) -> bool:
        """Whether somebody has set it."""
        found = self.values.get(name)
        return found is not None and found.is_set

    def is_own(self, name: str) -> bool:
        """Whether a topic has it of its own, and not from the broker."""
        found = self.values.get(name)
        return found is not None and found.source == TOPIC_SOURCE

    @property
    def hides_static(self) -> bool:
        """Whether some of what was set when the broker started is not told."""
        return any(each.source == STATIC_SOURCE and each.value is None for each in self.values.values())

    @property
    def static(self) -> dict[str, str]:
        """What was set when the broker started, as far as it is told."""
        rows = self.values.items()
        return {name: each.value for name, each in rows if each.source == STATIC_SOURCE and each.value is not None}


NO_SETTINGS = Settings({})


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker: one that the cluster knows, or that replicas are assigned to.

    `settings` None: it does not answer. `untold`: why it does not tell them. `health`: its answer to /v1/health; None:
    `why_not` says why.
    """

    node_id: int
    is_registered: bool = True
    host: str = ""
    port: int = 0
    settings: Settings | None = None
    health: Row | None = None
    has_http: bool = True
    why_not: str | None = None
    untold: str | None = None

    @property
    def answers(self) -> bool:
        """Whether it answers Kafka's requests."""
        return self.settings is not None


class Partition(NamedTuple):
    """A partition as the metadata has it. `leader` None: it has none."""

    topic: str
    number: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def name(self) -> str:
        """`orders-0`."""
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with its settings; None: they are not known."""

    name: str
    partitions: Sequence[Partition]
    settings: Settings | None = None
    is_internal: bool = False

    @property
    def replication(self) -> int:
        """The least number of replicas of its partitions."""
        return min((len(each.replicas) for each in self.partitions), default=0)

    def number(self, name: str) -> float | None:
        return None if self.settings is None else self.settings.number(name)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known. `groups`: the state of each group by its name, as far as they are known; None: not at all.

    `lags`: of groups that seemed to have a problem, what their coordinator and the leaders said when they were asked.
    `not_confirmed`: groups that seemed to have one, and could not be asked. `transactions`: those that are open for
    long. `hanging`: those that no coordinator knows. `transactions_not_known`: why they are not known.
    `rules`: access rules, `scram_users`: who has a password of SCRAM; None: they are not known, or there are none.
    `missing_directories`: of brokers that are away, those that are certainly gone from this machine.
    `consumer_groups`: the groups of the consumer protocol (KIP-848). `group_version`: the level of `group.version`;
    None: it is not known.
    """

    now_ms: int
    brokers: Sequence[Broker] = ()
    controller: int | None = None
    topics: Sequence[Topic] = ()
    groups: Mapping[str, str] | None = None
    lags: Mapping[str, Sequence[PartitionLag]] = field(default_factory=dict)
    not_confirmed: Sequence[str] = ()
    stalled_ms: int = STALLED_MS
    transactions: Sequence[Described] = ()
    hanging: Sequence[Open] = ()
    transactions_not_known: str | None = None
    missing_directories: Collection[str] = ()
    rules: Sequence[Acl] | None = None
    scram_users: frozenset[str] | None = None
    consumer_groups: Collection[str] = ()
    group_version: int | None = None

    @property
    def living(self) -> list[Broker]:
        """The brokers that are registered."""
        return [broker for broker in self.brokers if broker.is_registered]

    @property
    def settings(self) -> list[tuple[Broker, Settings]]:
        """The brokers whose settings are known."""
        return [(broker, broker.settings) for broker in self.brokers if broker.settings is not None]

    @property
    def any_settings(self) -> Settings:
        """Those of the first broker that answers: for settings that should be the same everywhere."""
        return next((settings for _, settings in self.settings), NO_SETTINGS)

    @property
    def healths(self) -> list[tuple[Broker, Row]]:
        """The brokers whose health is known."""
        return [(broker, {**LATER_FIELDS, **broker.health}) for broker in self.brokers if broker.health is not None]

    @property
    def is_cluster(self) -> bool:
        """Whether there is more than one broker, or was."""
        return len(self.brokers) > 1

    def partitions(self) -> Iterator[tuple[Topic, Partition]]:
        for topic in self.topics:
            for partition in topic.partitions:
                yield topic, partition

    def group_rows(self) -> Iterator[tuple[Row, Row]]:
        """The groups that may have a problem, each with the health of its coordinator."""
        for _, health in self.healths:
            for row in health["groups"]:
                yield health, row

    def topic(self, name: str) -> Topic | None:
        return next((topic for topic in self.topics if topic.name == name), None)
