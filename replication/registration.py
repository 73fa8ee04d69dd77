"""A broker's place in the tree: `/brokers/ids/<id>`, and leaving ISRs after an unclean stop."""

import logging
from collections.abc import Mapping, Sequence

from barnabas.coordination import paths
from barnabas.coordination.payloads import (
    BrokerEndpoint,
    BrokerRegistration,
    TopicAssignment,
    decode_cluster_id,
    encode_cluster_id,
    encode_isr_change,
)
from barnabas.coordination.port import Coordination, Create, MultiError, NodeExistsError, NoNodeError, Set, Stat
from barnabas.protocol import uuids
from barnabas.replication.controller_state import LiveBroker
from barnabas.replication.controller_tree import PARTITIONS_PER_WRITE
from barnabas.replication.election import LeaderAndIsr, without_replica
from barnabas.replication.metadata_cache import Endpoint
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import chunks

logger = logging.getLogger("barnabas.replication")

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # by their number in UpdateMetadata


class BrokerIdInUseError(Exception):
    """Another live broker has this id. str() is a sentence that says what to do."""


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
            if stat.ephemeral_owner != previous_session:
                raise BrokerIdInUseError(
                    f"A broker with id {self._node_id} is running already in this cluster. "
                    "Stop it, or give this one another node.id."
                )
            await self._coordination.delete(path, stat.version)

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


async def leave_isrs(coordination: Coordination, node_id: int, left: list[tuple[str, int]]) -> None:
    """After an unclean stop, before registering: leave every ISR this broker is in, and every lead.

    `left`: partitions whose ISRs an earlier attempt may have left, if its answer was lost. New ones are added to it.

    The tree may still say that this broker has records which its disk has lost. The last member of an ISR stays in it,
    because no broker has more records. But its lead ends too, so that it leads again in a new epoch: a follower that
    had fetched lost records then sees where the logs part (KIP-101). If the controller writes at the same time, its
    write wins, because the controller has seen the death itself.
    """
    topics = await coordination.children(paths.TOPICS)
    hosted: list[tuple[str, int]] = []
    for topic, node in zip(topics, await coordination.get_many([paths.topic(topic) for topic in topics])):
        if node is not None:
            assignment = TopicAssignment.decode(node[0])
            hosted += [(topic, index) for index, replicas in assignment.partitions.items() if node_id in replicas]
    changes: dict[tuple[str, int], LeaderAndIsr] = {}
    states = await coordination.get_many([paths.partition_state(*partition) for partition in hosted])
    for partition, state in zip(hosted, states):
        if state is not None:
            changed = without_replica(LeaderAndIsr.decode(state[0], state[1].version), node_id)
            if changed is not None:
                changes[partition] = changed
    for chunk in chunks(list(changes), PARTITIONS_PER_WRITE):
        left += chunk
        await _write_all(coordination, {partition: changes[partition] for partition in chunk})
    left[:] = dict.fromkeys(left)
    if left:
        logger.warning("broker %d stopped uncleanly: it has left the ISRs of %d partitions", node_id, len(left))
        await coordination.create(paths.ISR_CHANGE_PREFIX, encode_isr_change(left), sequential=True, make_parents=True)


async def raise_leader_epochs(
    coordination: Coordination, latest: Mapping[tuple[str, int], int]
) -> list[tuple[str, int]]:
    """Before registering: partitions whose logs have records of later leader epochs than the tree says get a new one.

    `latest` is the latest epoch in each log. Returns those partitions.
    """
    changes: dict[tuple[str, int], LeaderAndIsr] = {}
    states = await coordination.get_many([paths.partition_state(*partition) for partition in latest])
    for (partition, epoch), state in zip(latest.items(), states):
        if state is not None:
            said = LeaderAndIsr.decode(state[0], state[1].version)
            if said.leader_epoch < epoch:
                changes[partition] = said._replace(leader_epoch=epoch + 1)
    for chunk in chunks(list(changes), PARTITIONS_PER_WRITE):
        await _write_all(coordination, {partition: changes[partition] for partition in chunk})
    if changes:
        notice = encode_isr_change(list(changes))
        await coordination.create(paths.ISR_CHANGE_PREFIX, notice, sequential=True, make_parents=True)
    return list(changes)


async def _write_all(coordination: Coordination, changes: dict[tuple[str, int], LeaderAndIsr]) -> None:
    """Write these states as one change, without those that another broker has written meanwhile."""
    while changes:
        operations = [
            Set(paths.partition_state(*partition), state.encode(), state.partition_epoch)
            for partition, state in changes.items()
        ]
        try:
            await coordination.multi(operations)
        except MultiError as error:
            del changes[list(changes)[error.index]]
        else:
            break
