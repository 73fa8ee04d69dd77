"""The controller's writes into the tree, each fenced by its epoch, and its reads."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.registration import LiveBroker, decode_broker
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import ProducerIdBlock
from barnabas.cluster.tree.port import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Coordination,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    OperationResult,
    Set,
    Stat,
    children_if_there,
    get_if_there,
    writing,
)
from barnabas.controller.state import ControllerState, TopicPartition
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.ports import Clock
from barnabas.runtime.turns import chunks

logger = logging.getLogger("barnabas.controller")

CONNECTION_BACKOFF_MS = 100
# ZooKeeper refuses transactions of a megabyte, and during one of the embedded tree no other broker can change it.
PARTITIONS_PER_WRITE = 100
PARTITIONS_PER_READ = 500
SETS_PER_WRITE = 1_000  # of one node
SHOWN_BYTES_MAX = 60  # of a node that cannot be read
SAID_AGAIN_MS = 60_000.0  # that nobody can read which producer ids were given: brokers ask all the time
LARGEST_PRODUCER_ID = (1 << 63) - 1


def say_unreadable(path: str, data: bytes, what_follows: str) -> None:
    """Say which node somebody has written by hand, what it says, and what follows and helps."""
    logger.error("%s cannot be read: %s. The node says %r", path, what_follows, data[:SHOWN_BYTES_MAX])


class ControllerMovedError(Exception):
    """Another controller was elected: nothing was written, and nothing more may be."""


class ControllerTree:
    """The tree as the controller of one epoch may write it. Every write may raise ControllerMovedError."""

    def __init__(
        self, coordination: Coordination, clock: Clock, state: ControllerState, epoch: int, epoch_version: int
    ) -> None:
        self.epoch = epoch
        self._coordination = coordination
        self._clock = clock
        self._state = state
        self._says_no_ids = NowAndThen(clock, SAID_AGAIN_MS)
        self._fence = Check(paths.CONTROLLER_EPOCH, epoch_version)

    async def write(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Do all if this is still the controller. MultiError counts positions in `operations`."""
        while True:
            try:
                return (await self._coordination.multi([self._fence, *operations]))[1:]
            except MultiError as error:
                if error.index == 0:
                    raise ControllerMovedError from error
                raise MultiError(error.index - 1, error.cause) from error
            except ConnectionLossError:
                await self._clock.sleep(CONNECTION_BACKOFF_MS)

    async def delete_all(self, nodes: Sequence[str]) -> None:
        """Delete these nodes, in order, in as few changes as their number allows."""
        for chunk in chunks(nodes, 2 * PARTITIONS_PER_WRITE):
            await self.delete_together(chunk)

    async def delete_together(self, nodes: Sequence[str]) -> None:
        """Delete these nodes, in order, as one change. Nodes that are gone do not matter."""
        remaining = list(nodes)
        while remaining:
            try:
                await self.write([Delete(path) for path in remaining])
                break
            except MultiError as error:
                if isinstance(error.cause, NotEmptyError):  # somebody has made nodes below it by hand
                    path = remaining[error.index]
                    below = [f"{path}/{name}" for name in await children_if_there(self._coordination, path)]
                    remaining[error.index : error.index] = [node for node in below if node not in remaining]
                    continue
                if not isinstance(error.cause, NoNodeError):
                    raise
                found = await self._coordination.get_many(remaining)
                remaining = [path for path, node in zip(remaining, found) if node is not None]

    async def take_producer_ids(self, broker_id: int) -> ProducerIdBlock | None:
        """Reserve the next block of producer ids for a broker. A block is never reserved twice.

        None: nobody can read which ids were given.
        """
        while True:
            node = await get_if_there(self._coordination, paths.PRODUCER_ID_BLOCK)
            try:
                given = None if node is None else ProducerIdBlock.decode(node[0])
            except ValueError:
                if node is not None and self._says_no_ids.is_due():
                    what_follows = "producers get no more ids until a broker starts, which mends it"
                    say_unreadable(paths.PRODUCER_ID_BLOCK, node[0], what_follows)
                return None
            block = ProducerIdBlock.after(given, broker_id)
            assert block.last <= LARGEST_PRODUCER_ID, "the producer ids of this cluster are used up"
            assert block.first <= block.last, "a block has producer ids"
            try:
                await self.write([writing(paths.PRODUCER_ID_BLOCK, block.encode(), node)])
            except MultiError as error:  # written meanwhile, perhaps by this controller, whose answer was lost
                if not isinstance(error.cause, BadVersionError | NodeExistsError):
                    raise
            else:
                return block

    def broker_of(self, broker_id: int, node: tuple[bytes, Stat]) -> LiveBroker | None:
        """A broker as its node says. If that cannot be read, it is what was known of this life of the broker."""
        try:
            return decode_broker(broker_id, *node)
        except (ValueError, LookupError, TypeError, AttributeError):
            known = self._state.brokers.get(broker_id)
            is_known = known is not None and known.epoch == node[1].czxid
            counts = "what it said before counts" if is_known else f"broker {broker_id} counts as dead"
            what_follows = f"{counts} until it is mended, or deleted: then broker {broker_id} makes it anew"
            say_unreadable(paths.broker(broker_id), node[0], what_follows)
            return known if is_known else None

    # --- partition states ---

    async def read_states(self, partitions: Sequence[TopicPartition]) -> None:
        """Take over what the state nodes say now."""
        for chunk in chunks(partitions, PARTITIONS_PER_READ):
            nodes = await self._coordination.get_many([paths.partition_state(*partition) for partition in chunk])
            for partition, node in zip(chunk, nodes):
                if node is not None or not await self._put_back(partition):
                    self._take_over(partition, node)

    async def put_back_lost_states(self) -> None:
        """Look for state nodes that somebody has deleted by hand, and write them again."""
        for chunk in chunks(list(self._state.states), PARTITIONS_PER_READ):
            nodes = await self._coordination.get_many([paths.partition_state(*partition) for partition in chunk])
            for partition, node in zip(chunk, nodes):
                if node is None:
                    await self._put_back(partition)

    async def _put_back(self, partition: TopicPartition) -> bool:
        """Write a state that is missing as it was, and whether it is there then. No: it is not known, or no partition.

        Its version is as it was, too: brokers take a smaller one for an older state.
        """
        known = self._state.states.get(partition)
        if known is None or self._state.is_being_deleted(partition[0]):
            return False
        path, data = paths.partition_state(*partition), known.encode()
        version = -1
        while version < known.partition_epoch:
            again: list[Operation] = [Create(path, data)] if version < 0 else []
            again += [Set(path, data, each) for each in range(max(version, 0), known.partition_epoch)]
            try:
                await self.write(again[:SETS_PER_WRITE])
            except MultiError as error:
                if not isinstance(error.cause, BadVersionError | NodeExistsError | NoNodeError):
                    raise
            node = await get_if_there(self._coordination, path)
            if node is None or node[0] != data:
                return node is not None
            version = node[1].version
        logger.warning("%s was deleted, but not its topic: %s-%d gets it again as it was", path, *partition)
        return True

    def _take_over(self, partition: TopicPartition, node: tuple[bytes, Stat] | None) -> None:
        """Take over what a state node says. If a later controller wrote it, this one ends.

        A node that cannot be read, because somebody wrote it by hand, counts as none, as in Kafka. Nobody writes over
        it: only a person can know what it should say.
        """
        state = self._state
        found = LeaderAndIsr.of_node(node)
        if node is None or found is not None:
            state.unreadable.discard(partition)
        elif partition not in state.unreadable:
            state.unreadable.add(partition)
            what_follows = "{}-{} gets no leader until it is mended".format(*partition)
            say_unreadable(paths.partition_state(*partition), node[0], what_follows)
        if found is None:
            state.states.pop(partition, None)
        elif found.controller_epoch > self.epoch:
            raise ControllerMovedError
        else:
            state.states[partition] = found

    def _found(self, proposals: Sequence[tuple[TopicPartition, LeaderAndIsr]]) -> list[TopicPartition]:
        """The proposals that the tree has: they were written, and the answer was lost."""
        states = self._state.states
        return [
            partition
            for partition, proposal in proposals
            if states.get(partition) == proposal.at_version(proposal.partition_epoch + 1)
        ]

    async def create_states(self, topic: str, states: Mapping[int, LeaderAndIsr], *, topic_is_new: bool) -> None:
        """Make the nodes of new partitions, all of a topic as one change. States that exist already are taken over."""
        for chunk in chunks(sorted(states), PARTITIONS_PER_WRITE):
            nodes: dict[str, tuple[int, LeaderAndIsr] | None] = {}
            if topic_is_new:
                nodes[paths.partitions(topic)] = None
            for index in chunk:
                nodes[paths.partition(topic, index)] = None
                nodes[paths.partition_state(topic, index)] = (index, states[index].by_controller(self.epoch))
            while nodes:
                try:
                    await self.write(
                        [Create(path, b"" if state is None else state[1].encode()) for path, state in nodes.items()]
                    )
                except MultiError as error:
                    if not isinstance(error.cause, NodeExistsError):
                        raise
                    await self._take_over_existing(topic, nodes)
                    continue
                for entry in nodes.values():
                    if entry is not None:
                        self._state.states[topic, entry[0]] = entry[1]
                break
            topic_is_new = False

    async def _take_over_existing(self, topic: str, nodes: dict[str, tuple[int, LeaderAndIsr] | None]) -> None:
        """Remove from `nodes` those that an earlier controller made, and take their states over."""
        found = await self._coordination.get_many(list(nodes))
        for path, node in zip(list(nodes), found):
            if node is None:
                continue
            entry = nodes.pop(path)
            if entry is not None:
                self._take_over((topic, entry[0]), node)

    async def change_states(
        self,
        partitions: Iterable[TopicPartition],
        decide: Callable[[TopicPartition, LeaderAndIsr], LeaderAndIsr | None],
    ) -> list[TopicPartition]:
        """Write what `decide` makes of each state (None: no change). If another broker wrote first, decide again.

        Returns the partitions whose state was written, also by a write whose answer was lost.
        """
        changed: list[TopicPartition] = []
        for some in chunks(list(partitions), PARTITIONS_PER_WRITE):
            chunk = list(some)
            while True:
                proposals = []
                for partition in chunk:
                    state = self._state.states.get(partition)
                    proposal = None if state is None else decide(partition, state)
                    if state is not None and proposal is not None:
                        assert proposal.partition_epoch == state.partition_epoch, "a write follows on what was read"
                        assert proposal.leader_epoch - state.leader_epoch in (0, 1), "leader epochs rise one by one"
                        assert proposal.isr, "some replica is always in sync"
                        proposals.append((partition, proposal.by_controller(self.epoch).remembering(state)))
                if not proposals:
                    break
                try:
                    stats = await self.write(
                        [
                            Set(paths.partition_state(*partition), proposal.encode(), proposal.partition_epoch)
                            for partition, proposal in proposals
                        ]
                    )
                except MultiError as error:
                    if not isinstance(error.cause, BadVersionError | NoNodeError):
                        raise
                    await self.read_states([partition for partition, _ in proposals])
                    written = self._found(proposals)
                    changed += written
                    chunk = [partition for partition in chunk if partition not in written]
                    continue
                for (partition, proposal), stat in zip(proposals, stats):
                    assert isinstance(stat, Stat)
                    self._state.states[partition] = proposal.at_version(stat.version)
                    changed.append(partition)
                break
        return changed
