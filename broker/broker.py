"""One broker: its parts, how they are wired (`__init__`), and in which order they start and stop (`start`, `stop`)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.broker import adoption, before_registering
from barnabas.broker import api as _handlers  # noqa: F401  (importing it fills the table of APIs)
from barnabas.broker.addresses import Addresses
from barnabas.broker.auto_topics import AutoTopics
from barnabas.broker.fetch_sessions import FetchSessionCache
from barnabas.broker.http.server import HttpServer
from barnabas.broker.log_ranges import KnownLogRanges
from barnabas.broker.offset_journal import JournalOfBroker
from barnabas.broker.refusals import Refusals
from barnabas.broker.request_gate import RequestGate
from barnabas.broker.restored_tree import RestoredTree
from barnabas.broker.server import Server
from barnabas.broker.tree_mark import OwnMark
from barnabas.broker.waited_groups import WaitedGroups
from barnabas.cluster import controlled_shutdown, registration
from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.config_changes import ConfigChanges
from barnabas.cluster.controller_client import ControllerClient, answer_now
from barnabas.cluster.features import NOT_READ, Features
from barnabas.cluster.lease import Lease
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.producer_ids import ProducerIds
from barnabas.cluster.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import ConnectionLossError, Coordination, CoordinationError, SessionExpiredError
from barnabas.config.broker import BrokerConfig
from barnabas.controller.channels import BrokerChannels
from barnabas.controller.controller import Controller
from barnabas.controller.topic_admin import TopicAdmin
from barnabas.coordinators.groups.coordinator import GroupCoordinator
from barnabas.coordinators.groups.lag_sampling import LagSampling
from barnabas.coordinators.shard import CoordinatorLog, PartitionLog
from barnabas.offsets.offset_journal import OffsetJournal
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.replication.partition import Partition
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.storage import log_end
from barnabas.storage.directory_contents import number_of_directories, place_of_tree
from barnabas.storage.directory_plan import NO_CHOICE, StartChoice
from barnabas.storage.log_manager import LogManager

if TYPE_CHECKING:
    from barnabas.coordinators.transactions.coordinator import TransactionCoordinator
    from barnabas.coordinators.transactions.verification import TransactionVerification

logger = logging.getLogger("barnabas.broker")

T = TypeVar("T")

TREE_ANSWERS_WITHIN_MS = 5_000  # a start fails when the tree does not answer for so long
TREE_RETRY_BACKOFF_MS = 100
TASKS_END_WITHIN_MS = 1_000  # how long a stop waits for tasks that clients asked for
MEMBERS_ARE_TOLD_WITHIN_MS = 1_000  # how long it still answers members of groups that it has handed over
TOLD_WITHIN_MS = 10_000  # how long a start waits until the controller has told this broker of its partitions


def _gate_class(config: BrokerConfig) -> type[RequestGate]:
    if not config.control_enable:
        return RequestGate
    from barnabas.broker.control.gate import ControlledGate  # late: for tests only

    return ControlledGate


class Broker:
    """All parts of one broker. Handlers reach what they need through its attributes.

    `data_directories` is one absolute path or several. If `coordination.path` is not set, the tree is in the directory
    that has one already, or else in the first. `choice` answers what a start would ask the operator.
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
        self.request_gate = _gate_class(config)(env.clock, self, self.refusals)
        self.turns = env.turns
        if not config.is_numbered:
            config.take_number(number_of_directories(env.disk, data_directories))
        self.node_id: int = config.node_id
        self.cluster_id = ""
        if coordination is None and config.zookeeper_connect:
            coordination = _zookeeper(env, config)
        elif coordination is None:
            from barnabas.cluster.tree.embedded import EmbeddedCoordination  # late: brings SQLite

            self.tree_path = config.coordination_path or place_of_tree(env.disk, data_directories)
            coordination = EmbeddedCoordination(env, self.tree_path, config.coordination_session_timeout_ms)
        self.coordination = coordination
        self.lease = Lease(env, coordination)
        self.metadata_cache = MetadataCache(env.clock)
        self.broker_clients = BrokerClients(env, config, self.metadata_cache)
        self.controller_client = ControllerClient(
            env.clock,
            self.node_id,
            self.metadata_cache,
            self.broker_clients,
            self.request_gate.ask,
        )
        self.config_changes = ConfigChanges(env, config, self.node_id, coordination)
        self.features = Features(env, coordination)
        self.log_manager = LogManager(env, data_directories, config, self.config_changes.topic_overrides)
        self.config_changes.on_topic_change = self._topic_settings_changed
        self.replica_manager = ReplicaManager(
            env,
            config,
            self.node_id,
            self.log_manager,
            self.metadata_cache,
            coordination,
            self.lease,
            self.broker_clients,
            self.controller_client.send,
        )
        self.lease.on_lost.append(self._session_lost)
        self.lease.on_lapsed.append(self.replica_manager.lease_lapsed)
        self.lease.on_regained.append(self.replica_manager.lease_regained)
        self.tree_mark = OwnMark(
            env,
            coordination,
            self.node_id,
            self.log_manager,
            self._is_marked,
            lambda: self.metadata_cache.largest_leader_epoch,
        )
        self._registration: registration.Registration | None = None
        self.metadata_cache.on_update.append(self.tree_mark.note_news)
        self.restored_tree = RestoredTree(
            *(env, coordination, self.node_id, self.log_manager, self.replica_manager, self.tree_mark),
            lambda: self.producer_ids.give_up(),
        )
        self.controller = Controller(
            env,
            config,
            self.node_id,
            coordination,
            BrokerChannels(env, config, self.replica_manager),
            lambda: self.features.finalised.epoch != NOT_READ,
            lambda: self.replica_manager.controller_epoch,
        )
        self.topic_admin = TopicAdmin(env, config, coordination, self.metadata_cache)
        self.producer_ids = ProducerIds(
            env.clock,
            self.node_id,
            lambda: self.replica_manager.broker_epoch,
            self.controller_client.send,
            self.tree_mark.given,
        )
        self.group_coordinator = GroupCoordinator(
            env,
            config,
            self._offsets_log,
            partial(self.metadata_cache.partition_count, OFFSETS_TOPIC),
            self.metadata_cache,
            coordination,
            self.lease,
            self.refusals.note,
            OffsetJournal(env, JournalOfBroker(self)) if config.offsets_journal_enable else None,
        )
        self._coordinates_transactions = False
        self.log_ranges = KnownLogRanges(self)
        self.lag_sampling = LagSampling(
            env, self.group_coordinator.loaded_shards, self.log_ranges, lambda: config.offsets_lag_check_interval_ms
        )
        self.waited_groups = WaitedGroups(self)
        self.log_manager.hold_of = self.waited_groups.hold_of
        self.replica_manager.on_leadership.append(self.group_coordinator.on_leadership)
        self.replica_manager.on_deleted.append(self.group_coordinator.on_partitions_deleted)
        self.replica_manager.on_leadership.append(self._transactions_led)
        self.replica_manager.on_deleted.append(self._transactions_deleted)
        self.metadata_cache.on_missing.append(self.group_coordinator.on_partitions_missing)
        self.replica_manager.on_deleted.append(self.config_changes.forget_topics)
        self.auto_topics = AutoTopics(self)
        self.fetch_sessions = FetchSessionCache(env.rng, config.max_incremental_fetch_session_cache_slots)
        self.server = Server(env, config, self.request_gate)
        self.http = HttpServer(env, config, self)
        self.addresses = Addresses(config, self.server.ports, self.metadata_cache)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Look, decide, then act: recover, register, hear from the controller, serve.

        DataDirectoryError, BrokerIdInUseError and OSError (an address that is taken) refuse the start and say what to
        do. They are raised before any byte or name is changed, and leave nothing open.
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
        await self.http.reserve()
        # From here on the start changes files and the tree.
        self.log_manager.take()
        await tree.start()
        self.lease.start()  # hears of a lost session before all others
        registered_epoch = await in_tree(lambda: registration.make_persistent_paths(tree, node_id))
        await in_tree(self.config_changes.start)
        self.log_manager.leave_out(plan.strays)
        await self.log_manager.load()
        self.log_manager.take_epoch(registered_epoch)
        adoption.say_strays(plan.strays, self.log_manager.contents)
        self.log_manager.set_aside(plan.strays)  # after the recovery, which a signal may interrupt
        await in_tree(lambda: adoption.say_what_is_missing(tree, self.log_manager, node_id))
        await in_tree(lambda: adoption.adopt(env, self.config, tree, self.log_manager, node_id, plan.adopted))
        await in_tree(self.restored_tree.report)
        self.cluster_id = await in_tree(lambda: registration.cluster_id(env, tree, self.log_manager.meta.cluster_id))
        tree_path = adoption.tree_outside(self.log_manager.contents, self.tree_path)
        self.log_manager.initialise(node_id, self.cluster_id, tree_path)
        await self.server.listen()
        await self.http.listen()
        self.group_coordinator.start()
        self._start_transactions()
        self.lag_sampling.start()
        self.waited_groups.start()
        self.replica_manager.start()
        await self._register()
        self.tree_mark.start()
        self.restored_tree.start()
        self.server.read()  # the controller's word may come by a connection
        await self._hear_from_the_controller()
        await in_tree(self.features.start)  # the controller may have made them just now
        self.producer_ids.start()
        self.server.serve()
        logger.info("broker %d of cluster %s serves at %s", self.node_id, self.cluster_id, self.addresses.bootstrap)

    async def _decide(self) -> adoption.Plan:
        """Look at the directories and the tree, and decide what the start does with them."""
        log_manager, tree = self.log_manager, self.coordination
        log_manager.open(self.node_id, self.choice)
        if self.tree_path is not None:
            disk = self.env.disk
            adoption.check_place_of_tree(log_manager.contents, self.tree_path, disk.exists, disk.identity)
        await tree.look()
        view = await self._look_at_tree()
        lost = adoption.lost_directories(log_manager)
        zookeeper = self.config.zookeeper_connect or None
        end_of = partial(log_end.end_of_log, self.env.disk)
        return adoption.decide(view, log_manager.contents, lost, self.choice, self.node_id, zookeeper, end_of)

    async def _look_at_tree(self) -> adoption.TreeView:
        """Read what the start needs to know. Where a session outlives its process, wait for that of a former life."""
        tree, clock = self.coordination, self.env.clock
        give_up_ms = clock.monotonic_ms() + registration.longest_wait_ms(tree)
        is_said = False
        while True:
            view = await self._in_tree(lambda: adoption.look_at_tree(tree, self.log_manager.contents, self.node_id))
            self.features.take(view.features)
            if (
                not view.is_node_alive
                or view.others
                or tree.session_ends_with_process
                or clock.monotonic_ms() >= give_up_ms
            ):
                return view
            if not is_said:
                is_said = True
                logger.info("broker %d is registered already: waiting until that session has ended", self.node_id)
            await clock.sleep(registration.FORMER_LIFE_POLL_MS)

    async def _in_tree(self, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step of the start; again, if the connection to the tree or the session is lost.

        Every step may be done twice. Slow disks may take the time of a session, and then another one begins.
        """
        give_up_ms = self.env.clock.monotonic_ms() + TREE_ANSWERS_WITHIN_MS
        while True:
            try:
                return await step()
            except (ConnectionLossError, SessionExpiredError) as error:
                if self.env.clock.monotonic_ms() >= give_up_ms:
                    raise
                logger.warning("the coordination tree does not answer, trying again: %s", error)
                await self.env.clock.sleep(TREE_RETRY_BACKOFF_MS)

    async def _register(self) -> None:
        """Register this broker in the tree, now and with every new session, before the election.

        After an unclean stop it may have lost records of which the tree says that it has them. Then it first waits
        until the controller has taken it out. If there is none, it becomes controller itself and does that.
        """
        endpoints = await self.addresses.registered(self.env.network)
        place = registration.Registration(
            *(self.env, self.coordination, self.node_id, endpoints, self.config.broker_rack),
            self._check_tree,
            self._registration_deleted,
            self.tree_mark.counting,
        )
        self._registration = place
        if self.log_manager.may_lack_records:
            # What is sent to a former life is refused; that life may still be registered, and this broker controller.
            self.replica_manager.broker_epoch = await self._in_tree(place.former_epoch) + 1
            await self.controller.start()
            await before_registering.until_taken_out(self.env, self.coordination, self.node_id, self._loss_of)
        self.log_manager.write_boot_ids()

        async def register() -> None:
            self.log_manager.broker_epoch = self.replica_manager.broker_epoch = await place.register()
            await self.tree_mark.registered()

        async def register_again() -> None:
            self.log_manager.broker_epoch = self.replica_manager.broker_epoch = await place.register_again()
            await self.tree_mark.registered()

        while True:
            await self._in_tree(register)
            self.controller.register_again = register_again
            if place.is_of_this_session:
                return

    @property
    def why_not_registered(self) -> str | None:
        """Why this broker, which was registered, is not any more and serves nothing; None: it is."""
        return None if self._registration is None else self._registration.why_not

    def _is_marked(self) -> bool:
        """Whether the mark is counted: there are other replicas, and the tree is the one in which this broker is."""
        if self._registration is None or not self._registration.is_of_this_session or self.why_not_registered:
            return False
        return any(len(partition.replicas) > 1 for partition in self.replica_manager.partitions.values())

    async def _check_tree(self) -> None:
        """OtherTreeError if this broker must not register in the tree that is there now: it has used another one."""
        found = await registration.cluster_id_in(self.coordination)
        place = f"ZooKeeper at {self.config.zookeeper_connect}" if self.config.zookeeper_connect else "the tree"
        if found is None:
            raise registration.OtherTreeError(
                f"{place} is empty, and had the cluster {self.cluster_id}. Stop all brokers, put its data back, and "
                "start them. If the data are lost for good, start them one after the other with --adopt"
            )
        if found != self.cluster_id:
            raise registration.OtherTreeError(
                f"{place} has the cluster {found} now, and this broker is of {self.cluster_id}. Stop all brokers, and "
                "put the right data back"
            )
        mark, _ = await self.tree_mark.in_tree()
        if mark.number < self.tree_mark.on_disk:
            raise registration.OtherTreeError(
                f"{place} is an older copy than it was: it was put back while this broker ran. Stop all brokers, and "
                "start them again: their logs decide then who leads"
            )

    def _session_lost(self) -> None:
        """This is heard a moment after the next session begins, and this broker may have registered in it by then."""
        place = self._registration
        self.replica_manager.suspend(
            is_registered=place is not None and place.is_present(self.replica_manager.broker_epoch)
        )

    def _registration_deleted(self) -> None:
        """Others lead what this broker led, so it serves nothing of that until the controller knows it again."""
        self.replica_manager.suspend()
        self.controller.begin_again()

    def _loss_of(self, topic: str, index: int) -> before_registering.Loss:
        """What of a log may be lost here that those who were in sync before this broker was alone still have.

        Nobody has less than an empty disk. An old copy, and a log without its end, may hold what was acknowledged by
        this broker alone, if min.insync.replicas is 1.
        """
        manager = self.log_manager
        if manager.has_lost(topic, index):
            if manager.get(topic, index) is None or manager.configs.of(topic).min_insync_replicas >= 2:
                return before_registering.Loss.ALL
        elif manager.may_lack_end(topic, index) and manager.configs.of(topic).min_insync_replicas >= 2:
            return before_registering.Loss.END
        return before_registering.Loss.NOTHING

    async def _hear_from_the_controller(self) -> None:
        """Take part in the election of the controller, and wait until it has told this broker of its partitions."""
        deleted = await self._in_tree(lambda: self.coordination.children(paths.DELETE_TOPICS))
        topics = set(await self._in_tree(lambda: self.coordination.children(paths.TOPICS))).difference(deleted)
        await self.controller.start()
        cache = self.metadata_cache
        told = asyncio.Event()

        def is_told() -> bool:
            return self.node_id in cache.brokers and topics <= cache.topics.keys() and self.replica_manager.hosts_all()

        cache.wait_for(is_told, TOLD_WITHIN_MS).then(lambda in_time: self._told(told, in_time))
        await told.wait()

    @staticmethod
    def _told(told: asyncio.Event, in_time: bool) -> None:
        if not in_time:
            logger.warning("the controller has not told of all partitions within %d ms", TOLD_WITHIN_MS)
        told.set()

    async def stop(self) -> None:
        """A controlled stop: answer what can be answered, write checkpoints and the clean marker, end the session.

        What clients have asked is done before the controller lets this broker go: a topic that is created later gets
        no replicas here. Members of groups that other brokers coordinate now are told so for a while, as Kafka 4.1 does
        (for its heartbeat, up to two seconds): KafkaJS looks for another coordinator at once if it hears
        NOT_COORDINATOR, but only half a minute later if its coordinator is just gone.
        """
        logger.info("broker %d stops", self.node_id)
        await self._end(
            partial(self.request_gate.tasks.settle, TASKS_END_WITHIN_MS),
            self.replica_manager.fetchers.begin_shutdown,
            self._hand_over,
            self._count_for_the_last_time,
            self.server.stop_accepting,
            self.http.stop_accepting,
            self.auto_topics.stop,
            partial(self.request_gate.tasks.end, TASKS_END_WITHIN_MS),
            partial(self.http.settle, TASKS_END_WITHIN_MS),
            self._stop_transactions,
            self.group_coordinator.shutdown,
            partial(self.env.clock.sleep, 0),  # so that the answers given just now are sent
        )
        await self._close()
        logger.info("broker %d has stopped", self.node_id)

    async def _hand_over(self) -> None:
        members = self.group_coordinator.member_count
        await controlled_shutdown.hand_over(
            self.config,
            self.node_id,
            lambda: self.replica_manager.broker_epoch,
            self.metadata_cache,
            self.controller_client,
            self.lease,
        )
        if self.group_coordinator.member_count < members:
            await self.env.clock.sleep(MEMBERS_ARE_TOLD_WITHIN_MS)

    async def _count_for_the_last_time(self) -> None:
        """A tree that has this mark knows who was in sync when this broker stopped."""
        if self.lease.holds:
            with suppress(CoordinationError):  # a full disk, say: then an older number stays in the tree and here
                await self.tree_mark.count()

    async def _close(self) -> None:
        await self._end(
            self.tree_mark.stop,
            self.restored_tree.stop,
            self.http.close,
            self.lag_sampling.stop,
            self.waited_groups.stop,
            self.server.close,
            self.broker_clients.close,
            self.producer_ids.stop,
            self.controller.stop,
            self.config_changes.stop,
            self.features.stop,
            self.replica_manager.shutdown,
            self.log_manager.shutdown,
            self.lease.stop,
            self.coordination.close,
        )

    async def _end(self, *steps: Callable[[], Awaitable[object] | object]) -> None:
        """Do steps of the end in order. One that fails keeps no other from its turn: the logs are closed cleanly."""
        for step in steps:
            try:
                ended = step()
                if isawaitable(ended):
                    await ended
            except Exception:
                logger.exception("a step of the stop has failed: %s", step)

    # ------------------------------------------------------------------ settings

    def _topic_settings_changed(self, topic: str) -> None:
        self.log_manager.update_topic_config(topic)
        self.controller.retry_offline_partitions()  # the new settings may allow an unclean election

    # ------------------------------------------------------------------ internal topics

    def is_internal(self, topic: str) -> bool:
        """Whether the topic belongs to a coordinator."""
        return topic in INTERNAL_TOPICS

    def _offsets_log(self, index: int) -> CoordinatorLog | ErrorCode:
        partition = self.replica_manager.leader_partition(OFFSETS_TOPIC, index)
        return PartitionLog(partition) if isinstance(partition, Partition) else partition

    def _transactions_log(self, index: int) -> CoordinatorLog | ErrorCode:
        partition = self.replica_manager.leader_partition(TRANSACTIONS_TOPIC, index)
        return PartitionLog(partition) if isinstance(partition, Partition) else partition

    @cached_property
    def transaction_coordinator(self) -> "TransactionCoordinator":
        """It is made, and its modules are imported, when this broker has a partition of its topic, or is asked.

        So the start of a broker without transactions, and its memory, do not pay for it.
        """
        from barnabas.coordinators.transactions.coordinator import TransactionCoordinator
        from barnabas.coordinators.transactions.topic_ages import TopicAges

        coordinator = TransactionCoordinator(
            self.env,
            self.config,
            self._transactions_log,
            self.transactions_partition_count,
            self.metadata_cache,
            TopicAges(self.coordination),
            self.lease,
            self.producer_ids,
            partial(self.ask_broker, "markers"),
            lambda: self.features.transaction_version,
        )
        if self._coordinates_transactions:
            coordinator.start()
        return coordinator

    @cached_property
    def transaction_verification(self) -> "TransactionVerification":
        """Made for the first transactional batch."""
        from barnabas.coordinators.transactions.verification import TransactionVerification

        return TransactionVerification(
            self.env.clock,
            self.config,
            self.metadata_cache,
            self.replica_manager.leader_partition,
            partial(self.ask_broker, "verification"),
        )

    @property
    def has_transactions(self) -> bool:
        """Whether there is a transaction coordinator here already."""
        return "transaction_coordinator" in vars(self)

    def _start_transactions(self) -> None:
        self._coordinates_transactions = True
        if self.has_transactions:
            self.transaction_coordinator.start()

    def _stop_transactions(self) -> None:
        self._coordinates_transactions = False
        if "transaction_verification" in vars(self):
            self.transaction_verification.stop()
        if self.has_transactions:
            self.transaction_coordinator.shutdown()

    def _transactions_led(self, became_leader: Sequence[Partition], became_follower: Sequence[Partition]) -> None:
        changed = (*became_leader, *became_follower)
        if self.has_transactions or any(partition.topic == TRANSACTIONS_TOPIC for partition in changed):
            self.transaction_coordinator.on_leadership(became_leader, became_follower)

    def _transactions_deleted(self, partitions: Sequence[tuple[str, int]]) -> None:
        if self.has_transactions:
            self.transaction_coordinator.on_partitions_deleted(partitions)

    def transactions_partition_count(self) -> int:
        """How many partitions the topic of the transaction coordinator has; 0: there is no such topic."""
        return self.metadata_cache.partition_count(TRANSACTIONS_TOPIC)

    def ask_broker(
        self, purpose: str, broker_id: int, request: Message, version: int, within_ms: float | None = None
    ) -> Pending[Any]:
        """Ask a broker, or this one, for the sake of a transaction. None: no answer."""
        if broker_id == self.node_id:
            return answer_now(self.request_gate.ask, request, version)
        client = self.broker_clients.to(broker_id, purpose, within_ms or self.config.request_timeout_ms)
        if client is not None:
            return client.send(request, version)
        return Pending.of(None)

    def offsets_partition_count(self) -> int:
        """How many partitions the offsets topic has; 0: there is no such topic.

        All brokers must agree on it, so it is the topic's number, and no partitions can be added (topic_admin.py).
        """
        return self.metadata_cache.partition_count(OFFSETS_TOPIC)


def _zookeeper(env: Env, config: BrokerConfig) -> Coordination:
    """The coordination tree in ZooKeeper."""
    from barnabas.cluster.tree.zookeeper import ZooKeeperCoordination  # late: brings kazoo
    from barnabas.cluster.tree.zookeeper_settings import ZooKeeperSettings

    return ZooKeeperCoordination(env, ZooKeeperSettings.of(config))
