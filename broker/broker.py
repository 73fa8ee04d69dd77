"""One broker: its parts, how they are wired (`__init__`), and in which order they start and stop (`start`, `stop`)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from barnabas.broker import adoption
from barnabas.broker import api as _handlers  # noqa: F401  (importing it fills the table of APIs)
from barnabas.broker.addresses import Addresses
from barnabas.broker.auto_topics import AutoTopics
from barnabas.broker.fetch_sessions import FetchSessionCache
from barnabas.broker.refusals import Refusals
from barnabas.broker.server import Server
from barnabas.config.broker import BrokerConfig
from barnabas.coordination import paths
from barnabas.coordination.port import ConnectionLossError, Coordination
from barnabas.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator
from barnabas.groups.runtime import CoordinatorLog, PartitionLog
from barnabas.protocol.errors import ErrorCode
from barnabas.replication import registration
from barnabas.replication.broker_channel import LocalChannel
from barnabas.replication.config_changes import ConfigChanges
from barnabas.replication.controller import Controller
from barnabas.replication.metadata_cache import MetadataCache
from barnabas.replication.partition import Partition
from barnabas.replication.producer_ids import ProducerIds
from barnabas.replication.replica_manager import INTERNAL_TOPICS, ReplicaManager
from barnabas.replication.topic_admin import TopicAdmin
from barnabas.runtime.ports import Env
from barnabas.storage.directory_contents import number_of_directories, place_of_tree
from barnabas.storage.directory_plan import NO_CHOICE, StartChoice
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

T = TypeVar("T")

TREE_ANSWERS_WITHIN_MS = 5_000  # at the start
TREE_RETRY_BACKOFF_MS = 100
WORKS_END_WITHIN_MS = 1_000  # what clients asked for just before a stop is done, if that is soon
TOLD_WITHIN_MS = 10_000  # how long a starting broker waits for the controller's word about its partitions


class Broker:
    """All parts of one broker. Handlers reach what they need through its attributes.

    `data_directories` is one absolute path or several; where no other place is set, coordination is in the one that
    has it, and in the first when it is new. `choice` answers what a start would ask the operator.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        data_directories: str | Sequence[str],
        coordination: Coordination | None = None,
        choice: StartChoice = NO_CHOICE,
    ) -> None:
        self.env = env
        self.choice = choice
        self.tree_path: str | None = None  # None: the tree is not in a file
        self.config = config
        self.refusals = Refusals(env.clock)
        self.turns = env.turns
        if not config.is_numbered:
            config.take_number(number_of_directories(env.disk, data_directories))
        self.node_id: int = config.node_id
        self.cluster_id = ""
        if coordination is None:
            from barnabas.coordination.embedded import EmbeddedCoordination  # late: brings SQLite

            self.tree_path = config.coordination_path or place_of_tree(env.disk, data_directories)
            coordination = EmbeddedCoordination(env, self.tree_path)
        self.coordination = coordination
        self.metadata_cache = MetadataCache(env.clock)
        self.config_changes = ConfigChanges(env, config, self.node_id, coordination)
        self.log_manager = LogManager(env, data_directories, config, self.config_changes.topic_overrides)
        self.config_changes.on_topic_change = self._topic_settings_changed
        self.replica_manager = ReplicaManager(
            env, config, self.node_id, self.log_manager, self.metadata_cache, coordination
        )
        self.controller = Controller(
            env, config, self.node_id, coordination, LocalChannel(env.clock, self.replica_manager)
        )
        self.topic_admin = TopicAdmin(env, config, coordination, self.metadata_cache)
        self.producer_ids = ProducerIds(env.clock, coordination, self.node_id)
        self.group_coordinator = GroupCoordinator(
            env,
            config,
            self._offsets_log,
            self.offsets_partition_count,
            self.metadata_cache,
            coordination,
            self.refusals.note,
        )
        self.replica_manager.on_leadership.append(self.group_coordinator.on_leadership)
        self.replica_manager.on_deleted.append(self.group_coordinator.on_partitions_deleted)
        self.replica_manager.on_deleted.append(self.config_changes.forget_topics)
        self.auto_topics = AutoTopics(self)
        self.fetch_sessions = FetchSessionCache(env.rng, config.max_incremental_fetch_session_cache_slots)
        self.server = Server(env, config, self, self.refusals)
        self.addresses = Addresses(config, self.server.ports, self.metadata_cache)
        self._offsets_partitions = 0

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Look, decide, then act: recover, register, hear from the controller, serve.

        DataDirectoryError, BrokerIdInUseError and OSError (an address that is taken) say what to do. What is refused is
        refused before any byte or name is changed; nothing is left open then.
        """
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        env, tree, node_id, in_tree = self.env, self.coordination, self.node_id, self._in_tree
        plan = await self._decide()
        await self.server.reserve(self.config.endpoints)
        # From here on things are changed.
        self.log_manager.take()
        await tree.start()
        await in_tree(lambda: registration.make_persistent_paths(tree))
        await in_tree(self.config_changes.start)
        self.log_manager.leave_out(plan.strays)
        await self.log_manager.load()
        adoption.say_strays(plan.strays, self.log_manager.contents)
        self.log_manager.set_aside(plan.strays)  # behind the recovery, which may be given up
        await in_tree(lambda: adoption.say_what_is_missing(tree, self.log_manager, node_id))
        await in_tree(lambda: adoption.adopt(env, self.config, tree, self.log_manager, node_id, plan.adopted))
        self.cluster_id = await in_tree(lambda: registration.cluster_id(env, tree, self.log_manager.meta.cluster_id))
        self.log_manager.initialise(node_id, self.cluster_id)
        await self.server.listen()
        self.group_coordinator.start()
        self.replica_manager.start()
        if not self.log_manager.was_clean:  # it may have lost records that the tree still says it has
            left: list[tuple[str, int]] = []
            await in_tree(lambda: registration.leave_isrs(tree, node_id, left))
        await in_tree(self._register)
        await self._hear_from_the_controller()
        self.producer_ids.start()
        self.server.serve()
        logger.info("broker %d of cluster %s serves at %s", self.node_id, self.cluster_id, self.addresses.bootstrap)

    async def _decide(self) -> adoption.Plan:
        """What the start is to do, from the directories and the tree as they are."""
        log_manager, tree = self.log_manager, self.coordination
        log_manager.open(self.node_id, self.choice)
        if self.tree_path is not None:
            adoption.check_place_of_tree(log_manager.contents, self.tree_path)
        await tree.look()
        view = await self._in_tree(lambda: adoption.look_at_tree(tree, log_manager.contents, self.node_id))
        lost = adoption.lost_directories(log_manager)
        return adoption.decide(view, log_manager.contents, lost, self.choice, self.node_id)

    async def _in_tree(self, step: Callable[[], Awaitable[T]]) -> T:
        """A step of the start, taken again when an answer of the tree is lost: none minds if it had taken effect."""
        give_up_ms = self.env.clock.monotonic_ms() + TREE_ANSWERS_WITHIN_MS
        while True:
            try:
                return await step()
            except ConnectionLossError as error:
                if self.env.clock.monotonic_ms() >= give_up_ms:
                    raise
                logger.warning("the coordination tree does not answer, trying again: %s", error)
                await self.env.clock.sleep(TREE_RETRY_BACKOFF_MS)

    async def _register(self) -> None:
        """Say in the tree that this broker lives; again with every new session, before the election."""
        place = registration.Registration(
            self.env, self.coordination, self.node_id, self.addresses.registered(), self.config.broker_rack
        )

        async def register() -> None:
            self.replica_manager.broker_epoch = await place.register()

        self.controller.register_again = register
        await register()

    async def _hear_from_the_controller(self) -> None:
        """Take part in the election, and wait until this broker has been told what the tree says of its partitions."""
        deleted = await self._in_tree(lambda: self.coordination.children(paths.DELETE_TOPICS))
        topics = set(await self._in_tree(lambda: self.coordination.children(paths.TOPICS))).difference(deleted)
        await self.controller.start()
        cache = self.metadata_cache
        told = asyncio.Event()
        cache.wait_for(lambda: self.node_id in cache.brokers and topics <= cache.topics.keys(), TOLD_WITHIN_MS).then(
            lambda in_time: self._told(told, in_time)
        )
        await told.wait()

    @staticmethod
    def _told(told: asyncio.Event, in_time: bool) -> None:
        if not in_time:
            logger.warning("the controller has not told of all partitions within %d ms", TOLD_WITHIN_MS)
        told.set()

    async def stop(self) -> None:
        """Controlled: answer what can be answered, checkpoint, leave the clean-shutdown marker, end the session."""
        logger.info("broker %d stops", self.node_id)
        self.server.stop_accepting()
        self.auto_topics.stop()
        await self.server.works.end(WORKS_END_WITHIN_MS)
        self.group_coordinator.shutdown()
        await self.env.clock.sleep(0)  # whoever was told something just now gets it sent
        await self._close()
        logger.info("broker %d has stopped", self.node_id)

    async def _close(self) -> None:
        self.server.close()
        self.producer_ids.stop()
        await self.controller.stop()
        await self.config_changes.stop()
        self.replica_manager.shutdown()
        self.log_manager.shutdown()
        await self.coordination.close()

    # ------------------------------------------------------------------ settings

    def _topic_settings_changed(self, topic: str) -> None:
        self.log_manager.update_topic_config(topic)
        self.controller.retry_offline_partitions()  # they may allow an unclean election now

    # ------------------------------------------------------------------ internal topics

    def is_internal(self, topic: str) -> bool:
        """Whether the topic belongs to a coordinator."""
        return topic in INTERNAL_TOPICS

    def _offsets_log(self, index: int) -> CoordinatorLog | ErrorCode:
        partition = self.replica_manager.leader_partition(OFFSETS_TOPIC, index)
        return PartitionLog(partition) if isinstance(partition, Partition) else partition

    def offsets_partition_count(self) -> int:
        """As many as there were when this broker first knew of them.

        Added ones count from its next start on, as in Kafka: they would move groups away from their offsets.
        """
        if not self._offsets_partitions:
            self._offsets_partitions = self.metadata_cache.partition_count(OFFSETS_TOPIC)
        return self._offsets_partitions or self.config.offsets_topic_num_partitions
