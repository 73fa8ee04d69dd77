"""A broker's place in the tree: `/brokers/ids/<id>`."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from barnabas.cluster.metadata_cache import Endpoint
from barnabas.coordination import paths
from barnabas.coordination.payloads import (
    BrokerEndpoint,
    BrokerRegistration,
    decode_cluster_id,
    encode_cluster_id,
)
from barnabas.coordination.port import Coordination, Create, MultiError, NodeExistsError, NoNodeError, Set, Stat
from barnabas.protocol import uuids
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.cluster")

FORMER_LIFE_POLL_MS = 100.0
SESSION_TIMEOUTS = 1.5
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # by their number in UpdateMetadata


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
    try:
        data, _ = await coordination.get(paths.CLUSTER_ID)
    except NoNodeError:
        data = encode_cluster_id(preferred or uuids.to_text(env.random_uuid()))
        try:
            await coordination.create(paths.CLUSTER_ID, data, make_parents=True)
        except NodeExistsError:
            data, _ = await coordination.get(paths.CLUSTER_ID)
    return decode_cluster_id(data)


async def make_persistent_paths(coordination: Coordination) -> None:
    """Make the parent nodes that all brokers expect, where they are missing. In a new tree this is one change."""
    wanted = dict.fromkeys(
        path[:end] for path in paths.PERSISTENT for end in range(1, len(path) + 1) if path[end : end + 1] in ("/", "")
    )
    while True:
        missing = [path for path, node in zip(wanted, await coordination.get_many(list(wanted))) if node is None]
        if not missing:
            return
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
        """Make the node, for the first time or in a new session; returns the broker epoch.

        The node of a former life of this broker goes with its session, so it is waited for. BrokerIdInUseError if it
        stays, because then another broker has this id.
        """
        path = paths.broker(self._node_id)
        previous_session = self._session_id
        give_up_ms = 0.0
        while True:
            self._session_id = self._coordination.session_id
            data = self._encode()
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
            if stat.ephemeral_owner == previous_session:
                with suppress(NoNodeError):
                    await self._coordination.delete(path, stat.version)
                continue
            now_ms = self._env.clock.monotonic_ms()
            if not give_up_ms:
                give_up_ms = now_ms + longest_wait_ms(self._coordination)
                logger.info("broker %d is registered already: waiting until that session has ended", self._node_id)
            elif now_ms >= give_up_ms:
                raise BrokerIdInUseError(self._node_id)
            await self._env.clock.sleep(FORMER_LIFE_POLL_MS)

    def _encode(self) -> bytes:
        return BrokerRegistration(
            tuple(BrokerEndpoint(endpoint.listener, endpoint.host, endpoint.port) for endpoint in self.endpoints),
            self._env.clock.now_ms(),
            self.rack,
            {endpoint.listener: SECURITY_PROTOCOLS[endpoint.security_protocol] for endpoint in self.endpoints},
        ).encode()


def decode_broker(broker_id: int, data: bytes, stat: Stat) -> LiveBroker:
    """A live broker from its node."""
    node = BrokerRegistration.decode(data)
    endpoints = []
    for endpoint in node.endpoints:
        protocol = node.security_protocols.get(endpoint.listener_name, endpoint.listener_name)
        number = SECURITY_PROTOCOLS.index(protocol) if protocol in SECURITY_PROTOCOLS else 0
        endpoints.append(Endpoint(endpoint.listener_name, endpoint.host, endpoint.port, number))
    return LiveBroker(broker_id, stat.czxid, tuple(endpoints), node.rack)
