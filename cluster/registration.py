"""A broker's place in the tree: `/brokers/ids/<id>`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import MappingProxyType

from barnabas.cluster.features import SUPPORTED, LevelRange, Ranges
from barnabas.cluster.metadata_cache import Endpoint
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import (
    BrokerEndpoint,
    BrokerRegistration,
    decode_cluster_id,
    encode_cluster_id,
)
from barnabas.cluster.tree.port import (
    BadVersionError,
    Coordination,
    CoordinationError,
    Create,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Stat,
    Watch,
    WatchEvent,
    get_if_there,
)
from barnabas.protocol import uuids
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.cluster")

UNKNOWN_BROKER_EPOCH = -1  # in messages of a sender that does not know, or is older than KIP-380
FORMER_LIFE_POLL_MS = 100.0
SESSION_TIMEOUTS = 1.5
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # by their number in UpdateMetadata
RETRY_BACKOFF_MS = 100.0
RETRY_BACKOFF_MAX_MS = 2_000.0
SAID_AGAIN_MS = 10_000.0  # while this broker cannot register in the tree that is there


def longest_wait_ms(coordination: Coordination) -> float:
    """How long the session of a former life may last. A server looks for old sessions now and then only."""
    return coordination.session_timeout_ms * SESSION_TIMEOUTS


class BrokerIdInUseError(Exception):
    """Another live broker has this id. str() is a sentence that says what to do."""

    def __init__(self, node_id: int) -> None:
        super().__init__(
            f"A broker with id {node_id} is running already in this cluster. Stop it, or give this one another node.id."
        )


async def cluster_id(env: Env, coordination: Coordination, preferred: str | None = None) -> str:
    """The cluster's id: what the first broker wrote (`preferred`, or a fresh one)."""
    found = await cluster_id_in(coordination)
    if found is not None:
        return found
    chosen = preferred or uuids.to_text(env.random_uuid())
    try:
        await coordination.create(paths.CLUSTER_ID, encode_cluster_id(chosen), make_parents=True)
    except NodeExistsError:  # another broker was quicker
        return await cluster_id(env, coordination, preferred)
    return chosen


async def cluster_id_in(coordination: Coordination) -> str | None:
    """The cluster's id, as the tree says it; None: the tree does not say it, so it is new."""
    node = await get_if_there(coordination, paths.CLUSTER_ID)
    return None if node is None else decode_cluster_id(node[0])


async def make_persistent_paths(coordination: Coordination, node_id: int) -> int:
    """Make the nodes that this broker expects, where they are missing. In a new tree this is one change.

    Returns the epoch in which the broker registered last; -1: never.
    """
    epoch_path, mark_path = paths.broker_epoch(node_id), paths.tree_mark(node_id)
    wanted = dict.fromkeys(
        path[:end]
        for path in (*paths.PERSISTENT, epoch_path, mark_path)
        for end in range(1, len(path) + 1)
        if path[end : end + 1] in ("/", "")
    )
    while True:
        found = dict(zip(wanted, await coordination.get_many(list(wanted))))
        missing = [path for path, node in found.items() if node is None]
        if not missing:
            node = found[epoch_path]
            return -1 if node is None or node[1].version == 0 else node[1].mzxid
        try:
            await coordination.multi([Create(path) for path in missing])
        except MultiError as error:
            if not isinstance(error.cause, NodeExistsError):
                raise


class LiveBroker(NamedTuple):
    """A registered broker. `epoch` is the change that made its node: a new life has a larger one."""

    broker_id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    features: Ranges = MappingProxyType({})  # that it supports


class OtherTreeError(Exception):
    """The tree is not the one that this broker has used. str() is a sentence that says what to do."""


class Registration:
    """The node that says this broker lives, and its epoch: the number of the change that made it.

    `check_tree` raises OtherTreeError if this broker must not register in the tree that is there now. `on_deleted` is
    called when somebody has deleted the node in a session that lives. `counting` is written together with the node.
    """

    def __init__(
        self,
        env: Env,
        coordination: Coordination,
        node_id: int,
        endpoints: Sequence[Endpoint],
        rack: str | None = None,
        check_tree: Callable[[], Awaitable[None]] | None = None,
        on_deleted: Callable[[], None] = lambda: None,
        counting: Callable[[], Sequence[Operation]] = tuple,
    ) -> None:
        self.broker_epoch = -1
        self.why_not: str | None = None  # why this broker is not registered any more; None: it is, or soon will be
        self.endpoints = tuple(endpoints)
        self.rack = rack
        self._env = env
        self._coordination = coordination
        self._node_id = node_id
        self._check_tree = check_tree
        self._on_deleted = on_deleted
        self._counting = counting
        self._watch: Watch | None = None  # the last one left on the node
        self._looking: asyncio.Task[None] | None = None
        self._session_id = 0  # in which the node of `broker_epoch` was made
        self._own_sessions: set[int] = set()  # in which this process may have made the node

    @property
    def is_of_this_session(self) -> bool:
        """Whether the node was made in the session that is open now."""
        return self._coordination.session_id in self._own_sessions

    def is_present(self, broker_epoch: int) -> bool:
        """Whether this epoch is that of a registration in the session that is open now."""
        return broker_epoch == self.broker_epoch and self._session_id == self._coordination.session_id

    async def former_epoch(self) -> int:
        """The epoch of the node that is in the tree now; -1: there is none."""
        stat = await self._coordination.exists(paths.broker(self._node_id))
        return -1 if stat is None else stat.czxid

    async def register(self) -> int:
        """Make the node, for the first time or in a new session; returns the broker epoch.

        The node of a former life of this broker goes with its session, so it is waited for. BrokerIdInUseError if it
        stays, because then another broker has this id.
        """
        path = paths.broker(self._node_id)
        clock = self._env.clock
        stranger, give_up_ms = 0, 0.0
        while True:
            session_id = self._coordination.session_id
            self._own_sessions.add(session_id)
            data = self._encode()
            try:
                results = await self._coordination.multi(
                    [
                        Create(path, data, ephemeral=True),
                        Set(path, data, 0),
                        Set(paths.broker_epoch(self._node_id), b""),
                        *self._counting(),
                    ]
                )
            except MultiError as error:
                if isinstance(error.cause, NoNodeError):  # somebody has deleted nodes above it, or all of them
                    if self._check_tree is not None:
                        await self._check_tree()
                    await make_persistent_paths(self._coordination, self._node_id)
                    continue
                if not isinstance(error.cause, NodeExistsError):
                    raise
            else:
                stat = results[1]
                assert isinstance(stat, Stat)
                return await self._registered(stat)
            try:
                _, stat = await self._coordination.get(path)
                if stat.ephemeral_owner == session_id:
                    return await self._registered(stat)
                if stat.ephemeral_owner in self._own_sessions:
                    await self._coordination.delete(path, stat.version)
                    continue
            except (NoNodeError, BadVersionError):
                continue
            if not stranger:
                stranger = stat.ephemeral_owner
                give_up_ms = clock.monotonic_ms() + longest_wait_ms(self._coordination)
                logger.info("broker %d is registered by another session: waiting until that has ended", self._node_id)
            elif stranger != stat.ephemeral_owner or clock.monotonic_ms() >= give_up_ms:
                raise BrokerIdInUseError(self._node_id)
            await clock.sleep(FORMER_LIFE_POLL_MS)

    async def _registered(self, stat: Stat) -> int:
        self._own_sessions = {stat.ephemeral_owner}
        self._session_id = stat.ephemeral_owner
        self.broker_epoch = stat.czxid
        self.why_not = None
        logger.info("broker %d is registered, epoch %d", self._node_id, self.broker_epoch)
        await self._look(stat.ephemeral_owner)
        return self.broker_epoch

    async def _look(self, session_id: int) -> None:
        """Leave a watch on the node, which was made in this session. If it is gone, somebody has deleted it."""
        path = paths.broker(self._node_id)

        def fired(event: WatchEvent) -> None:
            if self._watch is fired:
                self._looking = asyncio.get_running_loop().create_task(self._look_again(session_id))

        self._watch = fired
        stat = await self._coordination.exists(path, fired)
        is_gone = stat is None or stat.ephemeral_owner != session_id
        if is_gone and session_id == self._coordination.session_id and self._watch is fired:
            self._watch = None
            logger.error(
                "%s was deleted while this broker runs, so the controller takes it for dead, and others lead what it "
                "led: serving nothing of that, and registering again",
                path,
            )
            self._on_deleted()

    async def _look_again(self, session_id: int) -> None:
        """Nobody else looks in this session, so a lost answer is asked for again. A new session registers anyhow."""
        while session_id == self._coordination.session_id:
            try:
                await self._look(session_id)
            except CoordinationError as error:
                logger.debug("the registration of broker %d could not be read: %s", self._node_id, error)
                await self._env.clock.sleep(RETRY_BACKOFF_MS)
            else:
                break

    def stop(self) -> None:
        """Watch the node no more."""
        self._watch = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def register_again(self) -> int:
        """Register in a new session, or after the node was deleted. As long as that fails, try again.

        Nobody else would.
        """
        backoff_ms = RETRY_BACKOFF_MS
        says_other_tree = NowAndThen(self._env.clock, SAID_AGAIN_MS)
        while True:
            try:
                if self._check_tree is not None:
                    await self._check_tree()
                return await self.register()
            except OtherTreeError as error:
                self.why_not = str(error)
                if says_other_tree.is_due():
                    logger.error(
                        "broker %d does not register in this tree, and serves nothing: %s", self._node_id, error
                    )
            except (BrokerIdInUseError, CoordinationError) as error:
                self.why_not = str(error)
                logger.error("broker %d cannot register, trying again: %s", self._node_id, error)
            await self._env.clock.sleep(backoff_ms)
            backoff_ms = min(backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def _encode(self) -> bytes:
        return BrokerRegistration(
            tuple(BrokerEndpoint(endpoint.listener, endpoint.host, endpoint.port) for endpoint in self.endpoints),
            self._env.clock.now_ms(),
            self.rack,
            {endpoint.listener: SECURITY_PROTOCOLS[endpoint.security_protocol] for endpoint in self.endpoints},
            {name: {"min_version": levels.first, "max_version": levels.last} for name, levels in SUPPORTED.items()},
        ).encode()


def decode_broker(broker_id: int, data: bytes, stat: Stat) -> LiveBroker:
    """A live broker from its node."""
    node = BrokerRegistration.decode(data)
    endpoints = []
    for endpoint in node.endpoints:
        protocol = node.security_protocols.get(endpoint.listener_name, endpoint.listener_name)
        number = SECURITY_PROTOCOLS.index(protocol) if protocol in SECURITY_PROTOCOLS else 0
        endpoints.append(Endpoint(endpoint.listener_name, endpoint.host, endpoint.port, number))
    features = {
        name: LevelRange(int(levels["min_version"]), int(levels["max_version"]))
        for name, levels in node.features.items()
    }
    return LiveBroker(broker_id, stat.czxid, tuple(endpoints), node.rack, features)
