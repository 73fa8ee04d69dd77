"""Numbers that clients remember go on after a restore, which has them as they were: leader epochs and producer ids.

A client ignores a leader whose epoch is less than the one that it knows. If a producer id were given out once more, a
producer that has it since before the restore and the new one would share one row of sequence numbers, so that records
of one would be taken for repeated ones of the other.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from barnabas.broker.later_numbers import last_producer_id
from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import ProducerIdBlock
from barnabas.cluster.tree.port import (
    BadVersionError,
    Coordination,
    CoordinationError,
    Create,
    MultiError,
    NodeExistsError,
    Operation,
    Set,
)
from barnabas.protocol.named_tuple import NamedTuple


class Numbers(NamedTuple):
    """The largest that clients may have been told. It goes from broker to broker as JSON."""

    producer_id: int = -1
    leader_epochs: list[tuple[str, int, int]] = []

    @classmethod
    def of_all(cls, told: Iterable[Self]) -> "Numbers":
        """The largest of what several brokers know."""
        producer_id, epochs = -1, dict[tuple[str, int], int]()
        for each in told:
            producer_id = max(producer_id, each[0])
            for topic, index, epoch in each[1]:
                epochs[topic, index] = max(epochs.get((topic, index), 0), epoch)
        return cls(producer_id, [(*partition, epoch) for partition, epoch in epochs.items()])


async def known(tree: Coordination, cache: MetadataCache) -> Numbers:
    """As this broker knows them, which is about to end."""
    producer_id = -1
    with suppress(CoordinationError):  # another broker may reach it
        producer_id = await last_producer_id(tree)
    epochs = [
        (topic, index, partition.leader_epoch)
        for topic, partitions in cache.topics.items()
        for index, partition in partitions.items()
        if partition.leader_epoch > 0  # less than the first
    ]
    return Numbers(producer_id, epochs)


async def go_on_from(tree: Coordination, numbers: Numbers, node_id: int) -> None:
    """Raise them in the tree. Each broker does it before it can be controller, and may do it twice.

    So no controller ever takes over what is raised later: it would lead partitions in an epoch that the tree has left.
    """
    block_path = paths.PRODUCER_ID_BLOCK
    state_paths = [paths.partition_state(topic, index) for topic, index, _ in numbers.leader_epochs]
    while True:
        node, *states = await tree.get_many([block_path, *state_paths])
        raised: list[Operation] = []
        block = None if node is None else ProducerIdBlock.decode(node[0])
        if numbers.producer_id > (-1 if block is None else block.last):
            data = ProducerIdBlock(node_id, numbers.producer_id, numbers.producer_id).encode()
            raised.append(Create(block_path, data) if node is None else Set(block_path, data, node[1].version))
        for path, (_, _, epoch), state_node in zip(state_paths, numbers.leader_epochs, states):
            state = LeaderAndIsr.of_node(state_node)
            if state is not None and state.leader_epoch < epoch:
                raised.append(Set(path, state._replace(leader_epoch=epoch + 1).encode(), state.partition_epoch))
        try:
            if raised:
                await tree.multi(raised)
            return
        except MultiError as error:
            if not isinstance(error.cause, BadVersionError | NodeExistsError):  # else another broker is doing it
                raise
