"""A broker's place in the tree: the persistent folders, the cluster id, `/brokers/ids/<id>` (zookeeper.md §1, §4)."""

import logging
from collections.abc import Sequence

from barnabas.coordination import paths, payloads
from barnabas.coordination.port import (
    Coordination,
    Create,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Set,
    Stat,
)
from barnabas.protocol import uuids
from barnabas.replication.controller_state import LiveBroker
from barnabas.replication.metadata_cache import Endpoint
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.replication")


class BrokerIdInUseError(Exception):
    """Another live broker has this id; str() is a sentence that says what to do."""


async def cluster_id(env: Env, coordination: Coordination, preferred: str | None = None) -> str:
    """The cluster's id: what the first broker wrote (`preferred`, or a fresh one)."""
    try:
        data = payloads.encode_cluster_id(preferred or uuids.to_text(env.random_uuid()))
        await coordination.create(paths.CLUSTER_ID, data, make_parents=True)
    except NodeExistsError:
        data, _ = await coordination.get(paths.CLUSTER_ID)
    return payloads.decode_cluster_id(data)


async def make_persistent_paths(coordination: Coordination) -> None:
    """Make the folders that everybody expects, where they are missing."""
    nodes = await coordination.get_many(paths.PERSISTENT)
    for path, node in zip(paths.PERSISTENT, nodes):
        if node is None:
            try:
                await coordination.create(path, make_parents=True)
            except NodeExistsError:
                continue


class Registration:
    """The node that says this broker lives, and its epoch: the number of the change that made it."""

    def __init__(
        self,
        env: Env,
        coordination: Coordination,
        node_id: int,
        endpoints: Sequence[Endpoint],
        rack: str | None = None,
    ) -> None:
        self.broker_epoch = -1
        self.endpoints = tuple(endpoints)
        self.rack = rack
        self._env = env
        self._coordination = coordination
        self._node_id = node_id
        self._session_id = 0

    async def register(self) -> int:
        """Make the node, for the first time or in a new session; returns the broker epoch. BrokerIdInUseError."""
        path = paths.broker(self._node_id)
        previous_session = self._session_id
        while True:
            self._session_id = self._coordination.session_id
            data = encode_broker(self.endpoints, self.rack, self._env.clock.now_ms())
            try:
                results = await self._coordination.multi([Create(path, data, ephemeral=True), Set(path, data, 0)])
            except MultiError as error:
                if not isinstance(error.cause, NodeExistsError):
                    raise
            else:
                stat = results[1]
                assert isinstance(stat, Stat)
                self.broker_epoch = stat.czxid
                logger.info("broker %d is registered, epoch %d", self._node_id, self.broker_epoch)
                return self.broker_epoch
            try:
                _, stat = await self._coordination.get(path)
            except NoNodeError:
                continue
            if stat.ephemeral_owner == self._session_id:
                self.broker_epoch = stat.czxid
                return self.broker_epoch
            if stat.ephemeral_owner != previous_session:
                raise BrokerIdInUseError(
                    f"A broker with id {self._node_id} is running already in this cluster. "
                    "Stop it, or give this one another node.id."
                )
            await self._coordination.delete(path, stat.version)

    async def update(self, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        """Say other endpoints; the controller passes them on."""
        self.endpoints = tuple(endpoints)
        self.rack = rack
        data = encode_broker(self.endpoints, self.rack, self._env.clock.now_ms())
        await self._coordination.set(paths.broker(self._node_id), data)


def encode_broker(endpoints: Sequence[Endpoint], rack: str | None, now_ms: int) -> bytes:
    """The node's data."""
    return b""


def decode_broker(broker_id: int, data: bytes, stat: Stat) -> LiveBroker:
    """A live broker from its node."""
    return LiveBroker(broker_id, stat.czxid, (), None)
