"""One broker: its parts, how they are wired (`__init__`), and in which order they start and stop (`start`, `stop`)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING

from barnabas.broker import adoption, before_registering, clock_doubt
from barnabas.broker import api as _handlers  # noqa: F401  (importing it fills the table of APIs)
from barnabas.broker.addresses import Addresses
from barnabas.broker.auto_topics import AutoTopics
from barnabas.broker.fetch_sessions import FetchSessionCache
from barnabas.broker.http.server import HttpServer
from barnabas.broker.log_ranges import KnownLogRanges
from barnabas.broker.logins import Logins
from barnabas.broker.offset_journal import JournalOfBroker
from barnabas.broker.old_settings import OldSettings
from barnabas.broker.own_registration import OwnRegistration, until_answered
from barnabas.broker.refusals import Refusals
from barnabas.broker.requests import RequestGate
from barnabas.broker.restored_tree import RestoredTree
from barnabas.broker.server import Server
from barnabas.broker.throttles import Throttles
from barnabas.broker.transactions import Transactions, log_of_coordinator
from barnabas.broker.tree_mark import OwnMark
from barnabas.broker.waited_groups import WaitedGroups
from barnabas.cluster import controlled_shutdown, registration
from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.client_quotas import ClientQuotas
from barnabas.cluster.config_changes import ConfigChanges
from barnabas.cluster.controller_client import ControllerClient
from barnabas.cluster.coordination import coordination_of
from barnabas.cluster.features import NOT_READ, Features
from barnabas.cluster.lease import Lease
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.producer_ids import ProducerIds
from barnabas.cluster.quota_table import OF_CLIENTS
from barnabas.cluster.security.acls import ANONYMOUS
from barnabas.cluster.security.authorizer import Authorizer
from barnabas.cluster.security.credentials import Credentials
from barnabas.cluster.security.delegation_tokens import DelegationTokens
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import Coordination, CoordinationError
from barnabas.config.broker import BrokerConfig
from barnabas.config.listeners import is_loopback
from barnabas.config.sasl import listeners_with_tls
from barnabas.controller.channels import BrokerChannels
from barnabas.controller.controller import Controller
from barnabas.controller.topic_admin import TopicAdmin
from barnabas.coordinators.groups.coordinator import GroupCoordinator
from barnabas.coordinators.groups.lag_sampling import LagSampling
from barnabas.offsets.offset_journal import OffsetJournal
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import ended
from barnabas.storage import log_end
from barnabas.storage.directory_contents import number_of_directories, place_of_tree
from barnabas.storage.directory_plan import NO_CHOICE, StartChoice
from barnabas.storage.log_manager import LogManager

if TYPE_CHECKING:
    from barnabas.cluster.security.tls import Tls

logger = logging.getLogger("barnabas.broker")

TASKS_END_WITHIN_MS = 1_000  # how long a stop waits for tasks that clients asked for
MEMBERS_ARE_TOLD_WITHIN_MS = 1_000  # how long it still answers members of groups that it has handed over
TOLD_WITHIN_MS = 10_000  # how long a start waits until the controller has told this broker of its partitions


def _gate_class(config: BrokerConfig) -> type[RequestGate]:
    if not config.control_enable:
        return RequestGate
    from barnabas.broker.control.gate import ControlledGate  # late: for tests only

    return ControlledGate


def _tls(env: Env, config: BrokerConfig, metadata_cache: MetadataCache) -> "Tls | None":
    if not listeners_with_tls(config):
        return None
    from barnabas.cluster.security.tls import Tls  # late: most brokers have none

    return Tls(env, config, lambda: len(metadata_cache.brokers) > 1)


class Broker:
    """All parts of one broker: they are made here, in layers, and then wired to each other.

    Handlers of requests are given the broker as `Services`. `data_directories` is one absolute path or several. If
    `coordination.path` is not set, the tree is in the directory that has one already, or else in the first. `choice`
    answers what a start would ask the operator.
    """

    own_registration: OwnRegistration  # made later than the mark, which asks it
    before_elections: Callable[[], Awaitable[None]] | None = None  # a step of a start before this one can be controller
    when_registered: Callable[[], Awaitable[None]] | None = None  # and one before it takes part in elections
    looks_first = True  # before it changes anything; else this process has put there what it finds

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        data_directories: str | Sequence[str],
        coordination: Coordination | None = None,
        choice: StartChoice = NO_CHOICE,
    ) -> None:
        self.env = env
        self.config = config
        self.choice = choice
        if not config.is_numbered:
            config.take_number(number_of_directories(env.disk, data_directories))
        self.node_id: int = config.node_id
        self.cluster_id = ""
        self.tree_path: str | None = None  # None: the tree is not in a file
        if coordination is None and not config.zookeeper_connect:
            self.tree_path = config.coordination_path or place_of_tree(env.disk, data_directories)
        self.coordination = coordination or coordination_of(env, config, self.tree_path)
        self.refusals = Refusals(env.clock)
        self.authorizer = (
            Authorizer(env, config, self.coordination, self._is_registered) if config.authorizer_class_name else None
        )
        self.request_gate = _gate_class(config)(env.clock, self, self.refusals)
        self.request_gate.authorizer = self.authorizer
        self._make_cluster_parts()
        self._make_replicas(data_directories)
        self._make_controller()
        self._make_coordinators()
        self._make_servers()
        self._wire()

    def _make_cluster_parts(self) -> None:
        """What this broker knows of the others and of the tree, and how it reaches them."""
        env, config, coordination = self.env, self.config, self.coordination
        self.lease = Lease(env, coordination)
        self.metadata_cache = MetadataCache(env.clock)
        self.tls = _tls(env, config, self.metadata_cache)
        self.between_brokers = None if self.tls is None else self.tls.between_brokers
        self.broker_clients = BrokerClients(env, config, self.metadata_cache, self.between_brokers)
        self.controller_client = ControllerClient(
            env.clock,
            self.node_id,
            self.metadata_cache,
            self.broker_clients,
            self.request_gate.ask,
        )
        self.config_changes = ConfigChanges(env, config, self.node_id, coordination, self._is_registered)
        self.credentials = Credentials(coordination)
        self.delegation_tokens = DelegationTokens(env, config, coordination, self._is_registered)
        self.client_quotas = ClientQuotas(coordination)
        self.features = Features(env, coordination)

    def _make_replicas(self, data_directories: str | Sequence[str]) -> None:
        """The logs on the disks, the replicas in them, and what is done if the disks or the tree are older copies."""
        env, config, node_id, coordination = self.env, self.config, self.node_id, self.coordination
        self.log_manager = LogManager(env, data_directories, config, self.config_changes.topic_overrides)
        self.replica_manager = ReplicaManager(
            env,
            config,
            node_id,
            self.log_manager,
            self.metadata_cache,
            coordination,
            self.lease,
            self.broker_clients,
            self.controller_client.send,
        )
        self.tree_mark = OwnMark(
            env,
            coordination,
            node_id,
            self.log_manager,
            lambda: self.own_registration.is_in_its_tree(),
            lambda: self.own_registration.is_mark_counted(),
            lambda: self.metadata_cache.largest_leader_epoch,
        )
        self.producer_ids = ProducerIds(
            env.clock,
            node_id,
            lambda: self.replica_manager.broker_epoch,
            self.controller_client.send,
            self.tree_mark.given,
        )
        self.old_settings = OldSettings(env.clock, coordination)
        self.restored_tree = RestoredTree(
            *(env, coordination, node_id, self.log_manager, self.replica_manager, self.tree_mark, self.old_settings),
            self.producer_ids.give_up,
        )

    def _make_controller(self) -> None:
        """The controller that this broker may become, and how it registers for the election."""
        env, config, coordination = self.env, self.config, self.coordination
        self.controller = Controller(
            env,
            config,
            self.node_id,
            coordination,
            BrokerChannels(env, config, self.replica_manager, self.between_brokers),
            lambda: self.features.finalised.epoch != NOT_READ,
            lambda: self.replica_manager.controller_epoch,
        )
        self.own_registration = OwnRegistration(
            env, config, coordination, self.log_manager, self.replica_manager, self.tree_mark, self.controller
        )
        self.topic_admin = TopicAdmin(env, config, coordination, self.metadata_cache)
        self.auto_topics = AutoTopics(env.clock, config, self.metadata_cache, self.topic_admin)

    def _make_coordinators(self) -> None:
        """The coordinators of groups and transactions, and what is known of the logs that groups read."""
        env, config = self.env, self.config
        self.group_coordinator = GroupCoordinator(
            env,
            config,
            partial(log_of_coordinator, self.replica_manager, OFFSETS_TOPIC),
            self.metadata_cache,
            self.coordination,
            self.lease,
            self.refusals.note,
            OffsetJournal(env, JournalOfBroker(self)) if config.offsets_journal_enable else None,
        )
        self.transactions = Transactions(self, self.request_gate.ask)
        self.log_ranges = KnownLogRanges(env.clock, self.replica_manager, self.metadata_cache, self.broker_clients)
        self.lag_sampling = LagSampling(
            env, self.group_coordinator.loaded_shards, self.log_ranges, lambda: config.offsets_lag_check_interval_ms
        )
        self.waited_groups = WaitedGroups(self)

    def _is_registered(self) -> bool:
        return self.own_registration.is_registered()

    def _make_servers(self) -> None:
        """The listeners, and what they need for clients."""
        self.fetch_sessions = FetchSessionCache(self.env.rng, self.config.max_incremental_fetch_session_cache_slots)
        self.throttles = Throttles(self.env.clock, self.config, self.client_quotas.table, self.fetch_sessions)
        self.logins = Logins(self.env, self.config, self.credentials, self.delegation_tokens)
        tls = {} if self.tls is None else self.tls.by_listener
        rate_of = self.client_quotas.table.connection_rate
        self.server = Server(self.env, self.config, self.request_gate, self.logins.by_listener, tls, rate_of)
        self.http = HttpServer(self, self.request_gate, self.server)
        self.addresses = Addresses(self.config, self.server.ports, self.metadata_cache)

    def _wire(self) -> None:
        """Who hears of what. The order in a list is the order in which they hear."""
        replica_manager, groups, transactions = self.replica_manager, self.group_coordinator, self.transactions
        self.config_changes.on_topic_change = self._topic_settings_changed
        self.config_changes.on_client_change += [self.credentials.changed, self.client_quotas.changed]
        self.config_changes.on_load += [self.credentials.load, self.client_quotas.load]
        self.client_quotas.on_change = self._quotas_changed
        self.lease.on_lost.append(self.own_registration.session_lost)
        self.lease.on_lapsed.append(replica_manager.lease_lapsed)
        self.lease.on_regained.append(replica_manager.lease_regained)
        self.metadata_cache.on_update.append(self.tree_mark.note_news)
        self.metadata_cache.on_missing.append(groups.on_partitions_missing)
        groups.consumer.overrides_of = self.config_changes.group_overrides
        self.log_manager.hold_of = self.waited_groups.hold_of
        self.log_manager.rests = self.old_settings.rests
        replica_manager.on_leadership += [groups.on_leadership, transactions.on_leadership]
        replica_manager.on_deleted += [groups.on_partitions_deleted, transactions.on_partitions_deleted]
        replica_manager.on_deleted.append(self.config_changes.forget_topics)

    def _quotas_changed(self) -> None:
        self.server.throttles = self.throttles if self.client_quotas.table.has(OF_CLIENTS) else None

    def _topic_settings_changed(self, topic: str) -> None:
        self.old_settings.set_anew(topic)
        self.log_manager.update_topic_config(topic)
        self.controller.retry_offline_partitions()  # the new settings may allow an unclean election

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Look, decide, then act: recover, register, hear from the controller, serve.

        DataDirectoryError, BrokerIdInUseError, TlsError, LoginError and OSError (an address that is taken) refuse the
        start and say what to do. They are raised before any byte or name is changed, and leave nothing open.
        """
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        env, tree, node_id, in_tree = self.env, self.coordination, self.node_id, partial(until_answered, self.env.clock)
        if self.tls is not None:
            self.tls.load()
        self.logins.load()
        plan = await self._decide()
        await self.server.reserve(self.config.endpoints)
        await self.http.reserve()
        # From here on the start changes files and the tree.
        self.log_manager.take()
        await tree.start()
        self.lease.start()  # hears of a lost session before all others
        registered_epoch = await in_tree(lambda: registration.make_persistent_paths(tree, node_id))
        await in_tree(self.config_changes.start)
        if self.authorizer is not None:
            await in_tree(self.authorizer.start)
        await in_tree(self.delegation_tokens.start)
        self.log_manager.leave_out(plan.strays)
        await self.log_manager.load()
        self.log_manager.take_epoch(registered_epoch)
        offsets = self.group_coordinator.kafka_offsets
        offsets.keep_doubt = partial(clock_doubt.keep, env, self.log_manager)
        doubt_ms = clock_doubt.at_start(env.clock, self.config, self.log_manager.contents)
        if doubt_ms:
            offsets.doubt_the_clock(doubt_ms)
        adoption.say_strays(plan.strays)
        self.log_manager.set_aside(plan.strays)  # after the recovery, which a signal may interrupt
        await in_tree(lambda: before_registering.say_what_is_missing(tree, self.log_manager, node_id))
        await in_tree(lambda: adoption.adopt(env, self.config, tree, self.log_manager, node_id, plan.adopted))
        await in_tree(self.restored_tree.report)
        await in_tree(self.old_settings.read)
        preferred = self.log_manager.meta.cluster_id or self.choice.cluster_id
        self.cluster_id = await in_tree(lambda: registration.cluster_id(env, tree, preferred))
        if self.choice.cluster_id not in (None, self.cluster_id):
            logger.warning(
                "the cluster keeps its id %s: %s is for a new one (CLUSTER_ID)", self.cluster_id, self.choice.cluster_id
            )
        tree_path = adoption.tree_outside(self.log_manager.contents, self.tree_path)
        self.log_manager.initialise(node_id, self.cluster_id, tree_path)
        if self.tls is not None:
            self.tls.start()
        # From here on there are connections, whose requests wait until they are read.
        await self.server.listen()
        await self.http.listen()
        self.group_coordinator.start()
        self.transactions.start()
        self.lag_sampling.start()
        self.waited_groups.start()
        self.replica_manager.start()
        if self.before_elections is not None:
            await self.before_elections()
        await self.own_registration.register(self.cluster_id, await self.addresses.registered(env.network))
        self.tree_mark.start()
        self.restored_tree.start()
        self.server.read()  # the controller's word may come by a connection
        if self.when_registered is not None:
            await self.when_registered()
        await self._hear_from_the_controller()
        await in_tree(self.features.start)  # the controller may have made them just now
        await self.logins.start()
        self.server.serve()
        logger.info("broker %d of cluster %s serves at %s", self.node_id, self.cluster_id, self.addresses.bootstrap)
        self._warn_of_open_listeners()

    def _warn_of_open_listeners(self) -> None:
        """Say it once if other hosts reach a listener without logins, and everybody may do everything."""
        listeners = self.config.endpoints
        guarded = {name for name, tls in self.server.tls.items() if tls.wants_certificates} | set(self.server.logins)
        is_open = [e for e in listeners if not is_loopback(e.host) and e.name not in guarded]
        if is_open and (why := self._why_rules_keep_nobody_out()) is not None:
            logger.warning(
                "whoever reaches %s may read, write and delete everything%s: listen at 127.0.0.1 only "
                "(barnabas start --listeners PLAINTEXT://127.0.0.1:%d), or see docs/security.md for logins and rights",
                ", ".join(map(str, is_open)),
                why,
                self.server.ports[is_open[0].name],
            )

    def _why_rules_keep_nobody_out(self) -> str | None:
        """Why somebody without a name may do everything, "" if there are no rules at all; None: that is not so."""
        if self.authorizer is None:
            return ""
        if self.authorizer.is_super(ANONYMOUS):
            return f" (super.users has {ANONYMOUS})"
        if self.config.allow_everyone_if_no_acl_found:
            return " that has no access rules (allow.everyone.if.no.acl.found=true)"
        return None

    async def _decide(self) -> adoption.Plan:
        """Look at the directories and the tree, and decide what the start does with them."""
        log_manager, tree = self.log_manager, self.coordination
        log_manager.open(self.node_id, self.choice)
        if self.tree_path is not None:
            disk = self.env.disk
            adoption.check_place_of_tree(log_manager.contents, self.tree_path, disk.exists, disk.identity)
        await (tree.look() if self.looks_first else tree.start())
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
            view = await until_answered(
                clock, lambda: adoption.look_at_tree(tree, self.log_manager.contents, self.node_id)
            )
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

    async def _hear_from_the_controller(self) -> None:
        """Take part in the election of the controller, and wait until it has told this broker of its partitions."""
        in_tree = partial(until_answered, self.env.clock)
        deleted = await in_tree(lambda: self.coordination.children(paths.DELETE_TOPICS))
        topics = set(await in_tree(lambda: self.coordination.children(paths.TOPICS))).difference(deleted)
        await self.controller.start()
        cache = self.metadata_cache

        def is_told() -> bool:
            return self.node_id in cache.brokers and topics <= cache.topics.keys() and self.replica_manager.hosts_all()

        if not await ended(cache.wait_for(is_told, TOLD_WITHIN_MS)):
            logger.warning(
                "not all partitions were sent by the controller within %d ms: serving the others", TOLD_WITHIN_MS
            )

    async def stop(self, *, hands_over: bool = True, keeps_data: bool = True) -> None:
        """A controlled stop: answer what can be answered, write checkpoints and the clean marker, end the session.

        What clients have asked is done before the controller lets this broker go: a topic that is created later gets
        no replicas here. Members of groups that other brokers coordinate now are told so for a while, as Kafka 4.1 does
        (for its heartbeat, up to two seconds): KafkaJS looks for another coordinator at once if it hears
        NOT_COORDINATOR, but only half a minute later if its coordinator is just gone. Without `hands_over`, the others
        are not asked to take over, because there are none, and it will be back in a moment. Without `keeps_data`, other
        data takes the place of this: the logs are left as by SIGKILL.
        """
        logger.info("broker %d stops", self.node_id)
        await self._end(
            partial(self.request_gate.tasks.settle, TASKS_END_WITHIN_MS),
            *((self.replica_manager.fetchers.begin_shutdown, self._hand_over) if hands_over else ()),
            *((self._count_for_the_last_time,) if keeps_data else ()),
            self.server.stop_accepting,
            self.http.stop_accepting,
            self.auto_topics.stop,
            partial(self.request_gate.tasks.end, TASKS_END_WITHIN_MS),
            partial(self.http.settle, TASKS_END_WITHIN_MS),
            self.transactions.stop,
            self.group_coordinator.shutdown,
            partial(self.env.clock.sleep, 0),  # so that the answers given just now are sent
        )
        await self._close(keeps_data=keeps_data)
        logger.info("broker %d has stopped", self.node_id)

    async def _hand_over(self) -> None:
        members = self.group_coordinator.member_count
        await controlled_shutdown.hand_over(
            self.env.clock,
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
        if not self.lease.holds:
            return
        counting = asyncio.ensure_future(self.tree_mark.count())

        def give_up() -> None:
            counting.cancel()

        late = self.env.clock.call_later(TASKS_END_WITHIN_MS, give_up)  # the tree may be away since a moment
        with suppress(CoordinationError, asyncio.CancelledError):  # then an older number stays in the tree and here
            await counting
        late.cancel()

    async def _close(self, *, keeps_data: bool = True) -> None:
        is_clean = keeps_data and not self.own_registration.is_loss_unsettled
        await self._end(
            self.tree_mark.stop,
            self.restored_tree.stop,
            self.http.close,
            self.lag_sampling.stop,
            self.waited_groups.stop,
            self.server.close,
            self.logins.stop,
            self.broker_clients.close,
            self.producer_ids.stop,
            self.controller.stop,
            self.own_registration.stop,
            self.config_changes.stop,
            *(() if self.authorizer is None else (self.authorizer.stop,)),
            self.delegation_tokens.stop,
            self.features.stop,
            self.replica_manager.shutdown,
            self.log_manager.shutdown if is_clean else self.log_manager.abandon,
            self.lease.stop,
            partial(self.coordination.close, keeps_tree=keeps_data),
        )

    async def _end(self, *steps: Callable[[], Awaitable[object] | object]) -> None:
        """Do steps of the end in order. One that fails keeps no other from its turn: the logs are closed cleanly."""
        for step in steps:
            try:
                end = step()
                if end is not None and isawaitable(end):
                    await end
            except Exception:
                logger.exception("a step of the stop has failed: %s", step)
