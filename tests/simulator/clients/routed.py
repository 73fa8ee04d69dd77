"""Clients of a cluster: they find leaders, coordinators and the controller, and look again when these have moved."""

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FindCoordinatorRequest, MetadataRequest

from simulator.clients.client import Client
from simulator.clients.committer import Committer
from simulator.clients.connection import Connection, LostError, UnansweredError
from simulator.clients.member import Member
from simulator.ledger import TopicPartition
from simulator.observations import REMOVE_GROUP, Administer, Operation, Outcome
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld
    from simulator.world import World

MOVED = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
TO_CONTROLLER = (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS)
OF_LEADERS = frozenset(
    (
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.DELETE_RECORDS,
        ApiKey.END_TXN,
        ApiKey.HEARTBEAT,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.JOIN_GROUP,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.SYNC_GROUP,
        ApiKey.TXN_OFFSET_COMMIT,
    )
)
OF_TRANSACTION_COORDINATORS = (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN)
FIRST_VERSION_OF_FOLLOWERS = 11
CONTROLLER = "controller"
METADATA_LIMIT_MS = 10_000.0
REQUEST_LIMIT_MS = 15_000.0
BACKOFF_MS = (50.0, 300.0)

GROUP_COORDINATOR, TRANSACTION_COORDINATOR = 0, 1


class TransactionalId(NamedTuple):
    """A transactional id, which stands for its coordinator."""

    name: str


# A partition's leader, a group's coordinator (by the group), a transactional id's, or the controller
Target = TopicPartition | str | TransactionalId


def errors_in(response: Any) -> list[ErrorCode]:
    """All errors of an answer."""
    codes = [getattr(response, "error_code", 0)]
    for topic in getattr(response, "topics", None) or getattr(response, "responses", None) or ():
        codes.append(getattr(topic, "error_code", 0))
        parts = getattr(topic, "partitions", None) or getattr(topic, "partition_responses", None) or ()
        codes += [getattr(part, "error_code", 0) for part in parts]
    codes += [getattr(result, "error_code", 0) for result in getattr(response, "results", None) or ()]
    for topic in getattr(response, "results_by_topic_v3_and_below", None) or ():
        codes += [part.partition_error_code for part in topic.results_by_partition]
    return [ErrorCode(code) for code in codes if code]


class Routed(Client):
    """A client on a machine of its own, with a connection to each broker that it needs."""

    def __init__(self, world: "ClusterWorld", name: str, *details: Any) -> None:
        super().__init__(cast("World", world), name, *details)
        self.cluster = world
        self.machine = self.rng.choice(world.client_machines)
        self._connections: dict[int, Connection] = {}
        self._nodes: dict[Target, int] = {}

    # -- the history

    def began(self, operation: Operation) -> int:
        """An operation begins; returns its number in the history."""
        return self.cluster.history.invoke(self.name, operation)

    def ended(self, number: int, outcome: Outcome, operation: Operation) -> None:
        """It has ended."""
        self.cluster.history.end(self.name, number, outcome, operation)

    # -- connections

    async def connected_to(self, node: int) -> Connection:
        """The connection to a broker. LostError."""
        connection = self._connections.get(node)
        if connection is None or connection.closed:
            host = self.cluster.hosts[node].name
            address = (host, self.cluster.port)
            connection = await Connection.open(self.world.clock, self.world.network, self.name, address, self.machine)
            self._connections[node] = connection
        return connection

    def hang_up(self) -> None:
        """Close all connections, and forget who leads what."""
        for connection in self._connections.values():
            connection.abort()
        self._connections.clear()
        self._nodes.clear()

    async def ask_node(self, node: int, api: ApiKey, version: int, message: Any, limit_ms: float) -> Any:
        """Send one request to a broker; returns the answer. LostError."""
        connection = await self.connected_to(node)
        asked_ms = self.world.clock.monotonic_ms()
        lost_session = self.lost_session_of(node)
        try:
            answer = await connection.ask(api, version, message, limit_ms)
        except UnansweredError as error:
            self.world.note_unanswered(self.name, f"{error} by broker {node}", asked_ms)
            raise
        self.world.answers += 1
        if lost_session and is_of_leaders(api, version, message) and not errors_in(answer):
            self.check_session(node, lost_session, f"{api.name} of {self.name}")
        return answer

    def lost_session_of(self, node: int) -> int:
        """The session of a broker, if the tree has ended it and the broker has no other one; else 0.

        A request that is sent now is handled later. If this is still so when it is answered, it was so all the time.
        """
        life = self.cluster.hosts[node].life
        session_id = 0 if life is None else life.coordination.session_id
        return 0 if session_id in self.cluster.tree.sessions else session_id

    def check_session(self, node: int, lost_session: int, what: str) -> None:
        """A request was granted that was sent when the broker had lost its session. It must not have been (the lease).

        Another broker may lead since, and may have acknowledged more: a read would be stale, a write forgotten.
        """
        if self.lost_session_of(node) == lost_session:
            raise Violation("who has no session serves nothing as a leader", f"broker {node}: {what}")

    async def ask(self, api: ApiKey, version: int, message: Any, limit_ms: float = REQUEST_LIMIT_MS) -> Any:
        """Send one request to the broker that it is for; returns the answer. LostError."""
        target = target_of(api, message)
        node = self.rng.choice(list(self.cluster.hosts)) if target is None else await self.find(target)
        answer = await self.ask_node(node, api, version, message, limit_ms)
        if target is not None and not MOVED.isdisjoint(errors_in(answer)):
            self.forget(target)
        return answer

    # -- who leads

    async def leader(self, key: TopicPartition) -> Connection:
        """The connection to the leader of a partition. LostError."""
        return await self.connected_to(await self.find(key))

    def forget(self, target: Target) -> None:
        """It has moved."""
        self._nodes.pop(target, None)

    async def find(self, target: Target) -> int:
        """The broker for a partition, a group or the controller, as any broker says. LostError if none is known."""
        if target not in self._nodes:
            await self.sleep(0, BACKOFF_MS[0])
            if isinstance(target, TransactionalId):
                await self._find_coordinator(target, target.name, TRANSACTION_COORDINATOR)
            elif isinstance(target, str) and target != CONTROLLER:
                await self._find_coordinator(target, target, GROUP_COORDINATOR)
            else:
                await self._read_metadata()
            if target not in self._nodes:
                await self.sleep(*BACKOFF_MS)
                raise LostError(f"nobody is known for {target}")
        return self._nodes[target]

    async def _read_metadata(self) -> None:
        node = self.rng.choice(list(self.cluster.hosts))
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        response = await self.ask_node(node, ApiKey.METADATA, self.rng.randint(7, 12), request, METADATA_LIMIT_MS)
        if response.controller_id >= 0:
            self._nodes[CONTROLLER] = response.controller_id
        for topic in response.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                if partition.leader_id >= 0:
                    self._nodes[key] = partition.leader_id
                else:
                    self._nodes.pop(key, None)

    async def _find_coordinator(self, target: Target, name: str, kind: int) -> None:
        node = self.rng.choice(list(self.cluster.hosts))
        request = FindCoordinatorRequest(key=name, key_type=kind)
        response = await self.ask_node(node, ApiKey.FIND_COORDINATOR, 2, request, METADATA_LIMIT_MS)
        if not response.error_code:
            self._nodes[target] = response.node_id


def is_of_leaders(api: ApiKey, version: int, message: Any) -> bool:
    """Whether only a leader, or a coordinator, may grant a request. Followers answer newer consumers (KIP-392)."""
    if api is ApiKey.FETCH:
        return version < FIRST_VERSION_OF_FOLLOWERS
    return api in OF_LEADERS


def target_of(api: ApiKey, message: Any) -> Target | None:
    """Whom a request is for; None: any broker."""
    if api in TO_CONTROLLER:
        return CONTROLLER
    if api is ApiKey.ADD_PARTITIONS_TO_TXN:
        return TransactionalId(message.v3_and_below_transactional_id)
    if api in OF_TRANSACTION_COORDINATORS:
        return None if message.transactional_id is None else TransactionalId(message.transactional_id)
    if api is ApiKey.DELETE_GROUPS:
        return str(message.groups_names[0])
    group_id = getattr(message, "group_id", None)
    if group_id is not None and api is not ApiKey.FETCH:
        return str(group_id)
    if api is ApiKey.FETCH:
        return message.topics[0].topic, message.topics[0].partitions[0].partition
    if api is ApiKey.LIST_OFFSETS or api is ApiKey.DELETE_RECORDS:
        return message.topics[0].name, message.topics[0].partitions[0].partition_index
    if api is ApiKey.PRODUCE:
        return message.topic_data[0].name, message.topic_data[0].partition_data[0].index
    return None


class ClusterCommitter(Routed, Committer):
    """Commits to the group's coordinator, wherever it is. Its group is never deleted: offsets only expire."""

    async def _delete(self) -> None:
        await self.look()

    async def rest(self) -> None:
        if self.rng.random() < 0.1:
            await self.look()
        await self.sleep(20_000, 120_000)


class ClusterMember(Routed, Member):
    """A member whose coordinator may move."""

    def note_removal(self, generation: int, owner: str, owned: list[TopicPartition], asked_ms: float) -> None:
        """Note that the group was removed since, if the generation has gone back or has had another owner.

        It may have been, if it was empty and had no offsets.
        """
        ledger, now_ms = self.world.ledger, self.world.clock.monotonic_ms()
        known = ledger.owners.get(self.group_id, {})
        is_first = all(known.get((generation, partition), owner) == owner for partition in owned)
        if is_first and generation >= ledger.generations.get(self.group_id, -1):
            return
        if asked_ms <= ledger.gone_ms.get(self.group_id, -1.0):
            return
        for other in self.world.clients:
            if isinstance(other, Member) and other.group_id == self.group_id and other is not self:
                sign_ms = ledger.last_sign_ms.get((self.group_id, other.member_id), -float("inf"))
                if other.is_stable and now_ms < sign_ms + other.session_timeout_ms:
                    return
        if ledger.commits.may_have_none(self.group_id):
            ledger.group_is_gone(self.group_id, now_ms)
            ledger.assigned(self.group_id, generation, owner, owned, float("inf"))  # of the group that began again
            removal = Administer(REMOVE_GROUP, self.group_id)
            self.ended(self.began(removal), Outcome.OK, removal)
