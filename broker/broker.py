"""One broker: its parts, how they are wired, and in which order they start and stop.

Nothing is decided here; whoever wants to know how a broker hangs together reads `__init__` and `start`.
"""

import logging

from barnabas.broker import api as _handlers  # noqa: F401  (importing it fills the table of APIs)
from barnabas.broker.auto_topics import OFFSETS_TOPIC, AutoTopics
from barnabas.broker.context import RequestContext
from barnabas.broker.fetch_sessions import FetchSessionCache
from barnabas.broker.server import Server
from barnabas.config.broker import BrokerConfig
from barnabas.config.listeners import Endpoint
from barnabas.coordination import paths, payloads
from barnabas.coordination.port import Coordination, NodeExistsError, NoNodeError
from barnabas.groups.coordinator import GroupCoordinator
from barnabas.groups.runtime import CoordinatorLog, PartitionLog
from barnabas.protocol import uuids
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.broker_channel import LocalChannel
from barnabas.replication.config_changes import ConfigChanges
from barnabas.replication.controller import Controller
from barnabas.replication.metadata_cache import MetadataCache
from barnabas.replication.partition import Partition
from barnabas.replication.producer_ids import ProducerIds
from barnabas.replication.registration import Registration
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.replication.topic_admin import TopicAdmin
from barnabas.runtime.ports import Env
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

WILDCARD_HOSTS = ("", "0.0.0.0", "::")
LOOPBACK = "127.0.0.1"
TOLD_WITHIN_MS = 10_000  # how long a starting broker waits for the controller's word about its partitions


class Broker:
    """All parts of one broker. Handlers reach what they need through its attributes."""

    def __init__(
        self, env: Env, config: BrokerConfig, data_directory: str, coordination: Coordination | None = None
    ) -> None:
        self.env = env
        self.config = config
        self.data_directory = data_directory
        self.node_id: int = config.node_id
        self.cluster_id = ""
        if coordination is None:
            from barnabas.coordination.embedded import EmbeddedCoordination  # late: brings SQLite

            path = config.coordination_path or f"{data_directory}/coordination.sqlite"
            coordination = EmbeddedCoordination(env, path)
        self.coordination = coordination
        self.metadata_cache = MetadataCache(env.clock)
        self.config_changes = ConfigChanges(env, config, self.node_id, coordination)
        self.log_manager = LogManager(env, data_directory, config, self.config_changes.topic_overrides)
        self.replica_manager = ReplicaManager(
            env, config, self.node_id, self.log_manager, self.metadata_cache, coordination
        )
        self.controller = Controller(
            env, config, self.node_id, coordination, LocalChannel(env.clock, self.replica_manager)
        )
        self.registration = Registration(env, config, self.node_id, coordination)
        self.topic_admin = TopicAdmin(env, config, coordination, self.metadata_cache)
        self.producer_ids = ProducerIds(env, self.node_id, coordination)
        self.group_coordinator = GroupCoordinator(
            env, config, self._offsets_log, self._offsets_partition_count, coordination
        )
        self.replica_manager.on_leadership.append(self.group_coordinator.on_leadership)
        self.auto_topics = AutoTopics(self)
        self.fetch_sessions = FetchSessionCache(env.rng, config.max_incremental_fetch_session_cache_slots)
        self.server = Server(env, config, self)
        self._advertised: dict[str, Endpoint] = {}

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Recover, register, hear from the controller, serve.

        DataDirectoryError and OSError (an address that is taken) say what to do; nothing is left open then.
        """
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        self.env.disk.make_directory(self.data_directory)
        await self.coordination.start()
        await self._make_paths()
        self.cluster_id = await self._cluster_id()
        await self.config_changes.start()
        self.log_manager.start()
        self.log_manager.initialise(self.node_id, self.cluster_id)
        self._advertised = {endpoint.name: endpoint for endpoint in self.config.advertised_endpoints}
        await self.server.listen(self.config.endpoints)
        self.group_coordinator.start()
        self.replica_manager.start()
        self.replica_manager.broker_epoch = await self.registration.register(self._registered_endpoints())
        topics = await self._topics_in_the_tree()
        await self.controller.start()
        told = self.metadata_cache.wait_for(
            lambda: self.node_id in self.metadata_cache.brokers and topics <= self.metadata_cache.topics.keys(),
            TOLD_WITHIN_MS,
        )
        if not await told_in_time(told):
            logger.warning("the controller has not told of all partitions within %d ms", TOLD_WITHIN_MS)
        await self.producer_ids.start()
        self.server.serve()
        logger.info("broker %d of cluster %s serves at %s", self.node_id, self.cluster_id, self.bootstrap)

    async def stop(self) -> None:
        """Controlled: answer what can be answered, checkpoint, leave the clean-shutdown marker, end the session."""
        logger.info("broker %d stops", self.node_id)
        self.server.stop_accepting()
        self.auto_topics.stop()
        self.group_coordinator.shutdown()
        await self.env.clock.sleep(0)  # whoever was told something just now gets it sent
        await self._close()
        logger.info("broker %d has stopped", self.node_id)

    async def _close(self) -> None:
        self.server.close()
        self.producer_ids.stop()
        await self.controller.stop()
        self.config_changes.stop()
        self.replica_manager.shutdown()
        self.log_manager.shutdown()
        await self.coordination.close()

    async def _make_paths(self) -> None:
        for path in paths.PERSISTENT:
            try:
                await self.coordination.create(path, make_parents=True)
            except NodeExistsError:
                continue

    async def _cluster_id(self) -> str:
        try:
            data, _ = await self.coordination.get(paths.CLUSTER_ID)
        except NoNodeError:
            data = payloads.encode_cluster_id(uuids.to_text(self.env.random_uuid()))
            try:
                await self.coordination.create(paths.CLUSTER_ID, data, make_parents=True)
            except NodeExistsError:
                data, _ = await self.coordination.get(paths.CLUSTER_ID)
        return payloads.decode_cluster_id(data)

    async def _topics_in_the_tree(self) -> set[str]:
        topics = await self.coordination.children(paths.TOPICS)
        return set(topics) - set(await self.coordination.children(paths.DELETE_TOPICS))

    # ------------------------------------------------------------------ addresses

    @property
    def bootstrap(self) -> str:
        """host:port of the first listener, for a client on this machine."""
        first = self.config.endpoints[0]
        host = LOOPBACK if first.host in WILDCARD_HOSTS else first.host
        return f"[{host}]:{self.server.ports[first.name]}" if ":" in host else f"{host}:{self.server.ports[first.name]}"

    def _registered_endpoints(self) -> list[Endpoint]:
        """What the tree says, for other brokers and their clients: advertised, or how this machine reaches it."""
        return [
            self._advertised.get(endpoint.name)
            or Endpoint(
                endpoint.name,
                LOOPBACK if endpoint.host in WILDCARD_HOSTS else endpoint.host,
                self.server.ports[endpoint.name],
            )
            for endpoint in self.config.endpoints
        ]

    def endpoint(self, node_id: int, context: RequestContext) -> Endpoint | None:
        """Where this client finds a live broker on its own listener; None where that broker has none.

        A broker that advertises nothing answers with the address that the client dialled.
        """
        name = context.listener_name
        if node_id == self.node_id:
            return self._advertised.get(name) or Endpoint(name, context.dialled_host, context.dialled_port)
        broker = self.metadata_cache.brokers.get(node_id)
        found = broker.endpoint(name) if broker is not None else None
        return Endpoint(name, found.host, found.port) if found is not None else None

    # ------------------------------------------------------------------ the coordinator's topic

    def _offsets_log(self, index: int) -> CoordinatorLog | ErrorCode:
        partition = self.replica_manager.leader_partition(OFFSETS_TOPIC, index)
        return PartitionLog(partition) if isinstance(partition, Partition) else partition

    def _offsets_partition_count(self) -> int:
        return self.metadata_cache.partition_count(OFFSETS_TOPIC) or self.config.offsets_topic_num_partitions
