"""The writes of admin requests into the tree: topics, partitions, settings. The checks before are pure functions.

The checks and their messages are Kafka 4.1's, as recorded from it. Their order is Kafka's where clients can see it. The
caller waits for the effect with `MetadataCache.wait_for`.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, product, zip_longest

from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC, topic_name_problem
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import (
    TopicAssignment,
    decode_config,
    encode_config,
    encode_config_change,
    encode_topic_deletion,
)
from barnabas.cluster.tree.port import (
    BadVersionError,
    Check,
    Coordination,
    Create,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    get_if_there,
    make_if_missing,
    writing,
)
from barnabas.config import topic as topic_settings
from barnabas.config.broker import BrokerConfig
from barnabas.config.settings import ConfigError
from barnabas.controller.assignment import AssignmentError, assign, fixed_start
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.counted import counted
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.controller")

PARTITIONS_MAX = 100_000  # of one topic
NODE_BYTES_MAX = 900_000  # of a topic's node, because ZooKeeper takes a megabyte at once
SPELLINGS_MAX = 15  # of a topic's name; so many are looked up one by one, with more the names of all topics are read
UNSET = -1
DELETION_POLL_MS = 10
DELETION_WAIT_MS = 1_000

Outcome = tuple[ErrorCode, str | None]
DONE: Outcome = (ErrorCode.NONE, None)
THROTTLED: Outcome = (ErrorCode.THROTTLING_QUOTA_EXCEEDED, None)


# --- checks ---


def may_collide(name: str) -> bool:
    """Whether another name can equal this one when dots become underscores, as in metrics."""
    return "." in name or "_" in name


def spellings(name: str) -> list[str] | None:
    """The other names that equal this one when dots become underscores. None: they are more than `SPELLINGS_MAX`."""
    words = name.replace(".", "_").split("_")
    if 2 ** (len(words) - 1) - 1 > SPELLINGS_MAX:
        return None
    marked = (
        "".join(chain(*zip_longest(words, marks, fillvalue=""))) for marks in product("._", repeat=len(words) - 1)
    )
    return [other for other in marked if other != name]


def collide(name: str, other: str) -> bool:
    """Whether two names equal each other when dots become underscores."""
    return name != other and name.replace(".", "_") == other.replace(".", "_")


def assignment_problem(assignment: Mapping[int, Sequence[int]], live: Collection[int]) -> Outcome:
    """Why replicas cannot be placed by hand like this."""
    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if sorted(assignment) != list(range(len(assignment))):
        return refused, "partitions should be a consecutive 0-based integer sequence"
    return replicas_problem([assignment[index] for index in range(len(assignment))], live, None)


def replicas_problem(rows: Sequence[Sequence[int]], live: Collection[int], factor: int | None) -> Outcome:
    """Why these replica lists cannot be taken; each must have `factor` members (None: as many as the first)."""
    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    for replicas in rows:
        if not replicas:
            return refused, "The manual partition assignment includes an empty replica list."
        if len(set(replicas)) < len(replicas):
            twice = next(replica for replica in replicas if replicas.count(replica) > 1)
            message = f"The manual partition assignment includes the broker {twice} more than once."
            return refused, message
        unknown = sorted(replica for replica in replicas if replica not in live)
        if unknown:
            message = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
            return refused, message
        factor = len(replicas) if factor is None else factor
        if len(replicas) != factor:
            message = (
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {factor} replica(s)."
            )
            return refused, message
    return DONE


def size_problem(partition_count: int, replication_factor: int, live_count: int) -> Outcome:
    """Why a topic cannot have that many partitions or replicas."""
    if replication_factor <= 0:
        message = "Replication factor must be larger than 0, or -1 to use the default value."
        return ErrorCode.INVALID_REPLICATION_FACTOR, message
    if partition_count <= 0:
        message = "Number of partitions was set to an invalid non-positive value."
        return ErrorCode.INVALID_PARTITIONS, message
    if partition_count > PARTITIONS_MAX:
        return ErrorCode.INVALID_PARTITIONS, f"A topic can have at most {PARTITIONS_MAX} partitions here."
    if replication_factor > live_count:
        message = (
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {live_count} broker(s) are registered."
        )
        return ErrorCode.INVALID_REPLICATION_FACTOR, message
    return DONE


def growth_problem(name: str, current: int, wanted: int) -> Outcome:
    """Why a topic cannot go from `current` to `wanted` partitions."""
    if wanted == current:
        return ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s)."
    if wanted < current:
        message = f"The topic {name} currently has {current} partition(s); {wanted} would not be an increase."
        return ErrorCode.INVALID_PARTITIONS, message
    if wanted > PARTITIONS_MAX:
        return ErrorCode.INVALID_PARTITIONS, f"A topic can have at most {PARTITIONS_MAX} partitions here."
    return DONE


def node_problem(node: TopicAssignment) -> Outcome:
    """Why the tree cannot hold a topic with so many partitions and replicas."""
    size = len(node.encode())
    if size > NODE_BYTES_MAX:
        count = len(node.partitions)
        message = (
            f"{count} partitions with their replicas take {size} bytes in one node of the tree, of {NODE_BYTES_MAX}."
        )
        return ErrorCode.INVALID_PARTITIONS, f"{message} Make several topics."
    return DONE


# --- writes ---


class TopicAdmin:
    """Writes the wanted change if the checks allow it. Coordination errors pass through."""

    def __init__(
        self, env: Env, config: BrokerConfig, coordination: Coordination, metadata_cache: MetadataCache
    ) -> None:
        self._env = env
        self._config = config
        self._coordination = coordination
        self._metadata_cache = metadata_cache

    async def create_topic(
        self,
        name: str,
        *,
        partition_count: int = UNSET,
        replication_factor: int = UNSET,
        configs: Mapping[str, str | None] | None = None,
        assignment: Sequence[tuple[int, Sequence[int]]] | None = None,
        validate_only: bool = False,
        may_change: Callable[[int], bool] = lambda count: True,
    ) -> Outcome:
        """Create a topic with its settings, in one change. -1: the broker's default; or `assignment` by hand, as pairs.

        `may_change`: asked whether so many partitions may be made now (and counts them).
        TOPIC_ALREADY_EXISTS also while the topic is being deleted; but if only the last steps are left, this waits.
        """
        problem = topic_name_problem(name)
        if problem is not None:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
        if await self._exists(name):
            return ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
        fence, outcome = await self._check_collision(name)
        if outcome is not DONE:
            return outcome
        configs = configs or {}
        nothing = [key for key, value in configs.items() if value is None]
        if nothing:
            return ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nothing)}"
        settings = {key: value for key, value in configs.items() if value is not None}
        try:
            topic_settings.validate(settings)
        except ConfigError as error:
            return error.error, str(error)
        racks = {broker.broker_id: broker.rack for broker in self._metadata_cache.brokers.values()}
        placed, outcome = self._place(partition_count, replication_factor, assignment, racks)
        if placed is None:
            return outcome
        if not may_change(len(placed)):
            return THROTTLED
        if validate_only:
            return outcome
        node = TopicAssignment({i: tuple(r) for i, r in placed.items()}, self._env.random_uuid())
        outcome = node_problem(node)
        if outcome is not DONE:
            return outcome
        while not await self._write_topic(name, node, settings, fence):
            if await self._coordination.exists(paths.topic(name)) is not None:
                return ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
            fence, outcome = await self._check_collision(name)
            if outcome is not DONE:
                return outcome
        return DONE

    async def _check_collision(self, name: str) -> tuple[list[Operation], Outcome]:
        """The error if another topic's name collides, else DONE with the fence for the creation.

        Each creation of a topic whose name may collide also writes the node above all topics. The write fails if that
        node was written since this check, and then the check is repeated. Other names need no fence.
        """
        if not may_collide(name):
            return [], DONE
        data, stat = await self._coordination.get(paths.TOPICS)
        others = spellings(name)
        if others is None:
            others = [topic for topic in await self._coordination.children(paths.TOPICS) if collide(name, topic)]
        for other in others:
            if (
                await self._coordination.exists(paths.topic(other)) is not None
                and await self._coordination.exists(paths.delete_topic(other)) is None
            ):
                message = f"Topic '{name}' collides with existing topic: {other}"
                return [], (ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        return [Set(paths.TOPICS, data, stat.version)], DONE

    def _place(
        self,
        partition_count: int,
        replication_factor: int,
        assignment: Sequence[tuple[int, Sequence[int]]] | None,
        racks: Mapping[int, str | None],
    ) -> tuple[Mapping[int, Sequence[int]] | None, Outcome]:
        """The replicas of a new topic, or why it cannot have any."""
        config = self._config
        if assignment:
            if partition_count != UNSET or replication_factor != UNSET:
                message = "Replicas are assigned by hand, so the number of partitions and of replicas must be -1."
                return None, (ErrorCode.INVALID_REQUEST, message)
            replicas = dict(assignment)
            if len(replicas) < len(assignment):
                message = "One partition is assigned more than once."
                return None, (ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
            outcome = assignment_problem(replicas, racks)
            return (replicas if outcome is DONE else None), outcome
        count = config.num_partitions if partition_count == UNSET else partition_count
        factor = config.default_replication_factor if replication_factor == UNSET else replication_factor
        outcome = size_problem(count, factor, len(racks))
        if outcome is not DONE:
            return None, outcome
        start, shift = self._env.rng.randrange(len(racks)), self._env.rng.randrange(len(racks))
        try:
            return assign(racks, count, factor, start=start, shift=shift), DONE
        except AssignmentError as error:
            return None, (ErrorCode.UNKNOWN_SERVER_ERROR, str(error))

    async def _exists(self, name: str) -> bool:
        waited_ms = 0
        while await self._coordination.exists(paths.topic(name)) is not None:
            if waited_ms >= DELETION_WAIT_MS or await self._coordination.exists(paths.delete_topic(name)) is None:
                return await self._coordination.exists(paths.topic(name)) is not None
            await self._env.clock.sleep(DELETION_POLL_MS)
            waited_ms += DELETION_POLL_MS
        return False

    async def _write_topic(
        self, name: str, node: TopicAssignment, settings: Mapping[str, str], fence: Sequence[Operation]
    ) -> bool:
        """Make the topic with its settings. False: it exists already, or the fence failed."""
        config_path = paths.topic_config(name)
        data = encode_config(settings)
        write_topic = Create(paths.topic(name), node.encode())
        notice = Create(paths.CONFIG_CHANGE_PREFIX, encode_config_change(f"topics/{name}"), sequential=True)
        while True:
            left_over = await self._coordination.exists(config_path) is not None
            write_config: Operation = Set(config_path, data) if left_over else Create(config_path, data)
            # The notice before the topic: brokers have its settings when they are told to open its logs. Like Kafka's,
            # most topics have none, and then no broker need look.
            before = [write_config, notice] if settings or left_over else [write_config]
            try:
                await self._coordination.multi([*before, write_topic, *fence])
            except MultiError as error:
                if error.index == 0 and isinstance(error.cause, NoNodeError if left_over else NodeExistsError):
                    continue  # another client made or removed the node of the settings meanwhile
                if error.index == len(before) and isinstance(error.cause, NodeExistsError):
                    return False
                if error.index > len(before) and isinstance(error.cause, BadVersionError):
                    return False
                raise
            return True

    async def delete_topic(self, name: str, topic_id: bytes | None = None) -> Outcome:
        """Ask the controller to delete a topic; `topic_id`: only if it has this id. Asking twice is fine.

        The wish names the id of the topic that is there now. If the topic goes meanwhile and is made again, the wish
        is void.
        """
        if not self._config.delete_topic_enable:
            return ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled."
        node = await get_if_there(self._coordination, paths.topic(name))
        if node is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        try:
            found = TopicAssignment.decode(node[0]).topic_id
        except ValueError:  # somebody wrote it by hand; it can be deleted by its name
            found = None
        if topic_id not in (None, found):
            return ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."
        await make_if_missing(self._coordination, paths.delete_topic(name), encode_topic_deletion(found))
        return DONE

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
        may_change: Callable[[int], bool] = lambda count: True,
    ) -> Outcome:
        """Grow a topic to `count` partitions; `assignments`: the replicas of the added ones, by hand.
        `may_change`: asked whether so many may be added now (and counts them).

        The offsets topic cannot grow, although it can in Kafka. A group's coordinator is the leader of the partition
        that its name hashes to. With another number of partitions, most groups would lose sight of their offsets, and
        brokers that have learnt of the number at different times would both coordinate a group. Nor can its
        journal, which has as many partitions.
        """
        if name in (OFFSETS_TOPIC, JOURNAL_TOPIC):
            message = f"The number of partitions of {name} cannot change: groups would move away from their offsets."
            return ErrorCode.INVALID_TOPIC_EXCEPTION, message
        is_counted = False
        while True:
            try:
                data, stat = await self._coordination.get(paths.topic(name))
            except NoNodeError:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            node = TopicAssignment.decode(data)
            if await self._coordination.exists(paths.delete_topic(name)) is not None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            if node.adding or node.removing:
                return ErrorCode.REASSIGNMENT_IN_PROGRESS, "A partition reassignment is in progress for the topic."
            added, outcome = self._place_added(name, node, count, assignments)
            if added is None:
                return outcome
            if not is_counted and not may_change(len(added)):
                return THROTTLED
            is_counted = True
            if validate_only:
                return outcome
            grown = TopicAssignment(
                {**node.partitions, **{i: tuple(r) for i, r in added.items()}},
                node.topic_id,
                node.adding,
                node.removing,
            )
            outcome = node_problem(grown)
            if outcome is not DONE:
                return outcome
            try:
                # A conditional write, unlike Kafka's: two requests at the same time do not undo each other.
                await self._coordination.set(paths.topic(name), grown.encode(), stat.version)
            except (BadVersionError, NoNodeError):
                continue
            logger.info("topic %s: grows from %d to %s", name, len(node.partitions), counted(count, "partition"))
            return DONE

    def _place_added(
        self, name: str, node: TopicAssignment, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> tuple[Mapping[int, Sequence[int]] | None, Outcome]:
        current = len(node.partitions)
        outcome = growth_problem(name, current, count)
        if outcome is not DONE:
            return None, outcome
        racks = {broker.broker_id: broker.rack for broker in self._metadata_cache.brokers.values()}
        first_replicas = node.partitions[0]
        if assignments is not None:
            if len(assignments) != count - current:
                message = (
                    f"Attempted to add {count - current} additional partition(s), but only {len(assignments)} "
                    "assignment(s) were specified."
                )
                return None, (ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
            outcome = replicas_problem(assignments, racks, len(first_replicas))
            return (dict(enumerate(assignments, current)) if outcome is DONE else None), outcome
        outcome = size_problem(count, len(first_replicas), len(racks))
        if outcome is not DONE:
            return None, outcome
        start = fixed_start(sorted(racks), first_replicas[0])
        try:
            added = assign(
                racks, count - current, len(first_replicas), start=start, shift=start, first_partition=current
            )
        except AssignmentError as problem:
            return None, (ErrorCode.UNKNOWN_SERVER_ERROR, str(problem))
        return added, DONE

    # --- settings ---

    async def overrides(self, entity_path: str) -> dict[str, str]:
        """The settings of any entity (`topics/t`, `groups/g`) as the tree has them now; none without a node."""
        node = await get_if_there(self._coordination, paths.config(entity_path))
        return {} if node is None else decode_config(node[0])

    async def change_overrides(
        self,
        entity_path: str,
        change: Callable[[dict[str, str]], Mapping[str, str]],
        *,
        of: str | None = None,
    ) -> bool:
        """Give an entity the settings that `change` makes of its present ones, with the notice, as one change.

        If another request was faster, `change` is called again, so that neither undoes the other. What it raises passes
        through. `of`: the node whose settings these are. False, and nothing is written, when it is gone.
        """
        path = paths.config(entity_path)
        fence = [] if of is None else [Check(of)]
        notice = Create(paths.CONFIG_CHANGE_PREFIX, encode_config_change(entity_path), sequential=True)
        while True:
            node = await get_if_there(self._coordination, path)
            changed = encode_config(change({} if node is None else decode_config(node[0])))
            lost = NodeExistsError if node is None else BadVersionError | NoNodeError
            try:
                await self._coordination.multi([*fence, writing(path, changed, node), notice])
            except MultiError as error:
                if fence and error.index == 0:
                    return False
                if not isinstance(error.cause, lost):
                    raise
                continue
            return True
