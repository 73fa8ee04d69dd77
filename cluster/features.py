"""Features: protocols of the whole cluster that have levels, and the levels on which it has agreed (KIP-584).

A broker supports a range of levels of each feature. The level that holds is *finalised*: it is in the tree, in the node
`/feature`, whose version is the epoch of all of them. A level of 0 means that the feature is off; then the node does
not name it. Clients hear of both from ApiVersions, and UpdateFeatures changes levels.

* `transaction.version`: 0 is the protocol as it was, in 1 the records of transactions have room for more, and from 2 on
  the epoch of a producer grows with each transaction (KIP-890). `Features.transaction_version` is asked by all parts.
* `group.version`: from 1 on, members may use the consumer protocol (KIP-848). `Features.group_version` is asked.
* `metadata.version`: how brokers tell each other what is in the cluster. They have one way here, so its levels change
  nothing. A new cluster has that of Kafka 4.3, for clients must take this broker for a 4.3, by its APIs and by this:
  their tools show it as the release of the cluster. An earlier Barnabas knows that of Kafka 4.1 only, so a cluster that
  has it keeps it until it is raised. The messages themselves are those of Kafka 3.9, which no client can see.

**Which levels a cluster gets.** A new one gets the newest, as with Kafka. A cluster that has topics already keeps the
old behaviour, level 0, until an operator raises it (`barnabas features upgrade`). Others of its brokers may still run
an older release, and what it wrote may be read by that again.
"""

import logging
from collections.abc import Iterable, Mapping

from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.port import (
    ConnectionLossError,
    Coordination,
    CoordinationError,
    SessionExpiredError,
    Stat,
    WatchEvent,
    get_if_there,
    must_be_readable,
)
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.backlog import Backlog
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.cluster")

GROUP_VERSION = "group.version"
METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"

NOT_READ = -1  # the epoch before the node was read, or where there is none

Levels = Mapping[str, int]


class LevelRange(NamedTuple):
    """The levels of a feature that a broker supports, both included."""

    first: int
    last: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.first <= level <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


NOT_SUPPORTED = LevelRange(0, 0)

Ranges = Mapping[str, LevelRange]

SUPPORTED: Ranges = {
    GROUP_VERSION: LevelRange(0, 1),
    METADATA_VERSION: LevelRange(27, 30),  # 4.1-IV1 to 4.3-IV0
    TRANSACTION_VERSION: LevelRange(0, 2),
}
NEWEST: Levels = {name: levels.last for name, levels in SUPPORTED.items() if levels.last}


class Finalised(NamedTuple):
    """The levels that hold, by feature, without those that are 0; and their epoch."""

    levels: Levels
    epoch: int

    @classmethod
    def of_node(cls, node: tuple[bytes, Stat] | None) -> "Finalised":
        """What the node says. UnreadableNodeError."""
        if node is None:
            return cls({}, NOT_READ)
        with must_be_readable(paths.FEATURE):
            return cls(payloads.decode_feature(node[0]), node[1].version)


class UnsupportedFeatureError(CoordinationError):
    """The cluster has finalised a level that this broker does not support. str() says what to do."""


# --- decisions ---


def unsupported(levels: Levels) -> str | None:
    """Why a broker cannot take part in a cluster of these levels; None if it can."""
    for name, level in sorted(levels.items()):
        known = SUPPORTED.get(name, NOT_SUPPORTED)
        if level in known:
            continue
        has = f"supports {name} {known.first} to {known.last}" if known.last else f"does not know {name}"
        lower = f"--feature {name}={known.last}" if known.last else f"--feature {name}=0"
        return (
            f"The cluster has finalised {name}={level}, and this broker {has}. Start a release that supports it. Or "
            f"let a running broker lower it first: barnabas features downgrade {lower}"
        )
    return None


class Update(NamedTuple):
    """A change of one level that UpdateFeatures asks for."""

    feature: str
    level: int
    upgrade_type: int


UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
ALL_FAILED = "The update failed for all features since the following feature had an error: "


def decide(levels: Levels, updates: Iterable[Update], node_id: int, brokers: Mapping[int, Ranges]) -> Levels | str:
    """The levels after the updates, one for each feature; or what is wrong with the first of them that is wrong.

    `brokers`: what each registered broker supports. The words are those of Kafka 4's controller.
    """
    changed = dict(levels)
    for update in updates:
        reason = _refusal(levels.get(update.feature, 0), update, node_id, brokers)
        if reason is not None:
            return f"{ALL_FAILED}Invalid update version {update.level} for feature {update.feature}. {reason}"
        changed[update.feature] = update.level
    return {name: level for name, level in sorted(changed.items()) if level}


def _refusal(current: int, update: Update, node_id: int, brokers: Mapping[int, Ranges]) -> str | None:
    name, level, upgrade_type = update
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    # Kafka 3.9 refuses a tree that has finalised metadata.version, so it can be taken out. Brokers here do without it.
    is_removal = level == 0 and upgrade_type == UNSAFE_DOWNGRADE and name in SUPPORTED
    for who, ranges in ((f"Local controller {node_id}", SUPPORTED), *((f"Broker {i}", brokers[i]) for i in brokers)):
        known = ranges.get(name, NOT_SUPPORTED)
        if level not in known and not is_removal:
            return f"{who} only supports versions {known}" if known.last else f"{who} does not support this feature."
    if level < current and upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > current and upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None if name in SUPPORTED else f"Feature {name} not found."


# --- what holds ---


class Features:
    """The finalised levels, as this broker has read them last, and as far as it supports them."""

    def __init__(self, env: Env, coordination: Coordination) -> None:
        self.finalised = Finalised({}, NOT_READ)
        self.group_version = 0
        self.transaction_version = 0
        self._coordination = coordination
        self._changes = Backlog(env.upkeep, "features", self._read_again)
        self._is_started = False

    def take(self, node: tuple[bytes, Stat] | None) -> None:
        """Let the levels of this node hold. UnreadableNodeError.

        UnsupportedFeatureError if this broker does not support one of them.
        """
        found = Finalised.of_node(node)
        problem = unsupported(found.levels)
        if problem is not None:
            raise UnsupportedFeatureError(paths.FEATURE, problem)
        if found.epoch <= self.finalised.epoch:
            return
        if self.finalised.epoch != NOT_READ:
            logger.info("features of the cluster are now %s, epoch %d", dict(found.levels) or "all off", found.epoch)
        self.finalised = found
        self.group_version = found.levels.get(GROUP_VERSION, 0)
        self.transaction_version = found.levels.get(TRANSACTION_VERSION, 0)

    async def start(self) -> None:
        """Read the levels, and follow their changes from now on. See `take` for what it raises."""
        await self.read()
        if not self._is_started:
            self._is_started = True
            self._coordination.on_session_expired(self._changes.add)
            self._changes.start()

    async def stop(self) -> None:
        self._changes.stop()

    async def read(self) -> None:
        """Read the levels that hold now, and leave a watch for the next change."""
        node = None
        while node is None:
            node = await get_if_there(self._coordination, paths.FEATURE, self._notified)
            if node is None and await self._coordination.exists(paths.FEATURE, self._notified) is None:
                break
        self.take(node)

    def _notified(self, event: WatchEvent) -> None:
        self._changes.add()

    async def _read_again(self) -> bool:
        try:
            await self.read()
        except (ConnectionLossError, SessionExpiredError) as error:
            logger.warning("cannot read the features of the cluster, trying again: %s", error)
            return False
        except CoordinationError as error:  # somebody wrote it by hand: the former levels still hold here
            logger.error("%s", error)
        return True
