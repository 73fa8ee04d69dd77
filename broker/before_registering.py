"""What a broker writes into the states of its partitions before it registers, because of what its disk holds."""

import logging
from collections.abc import Mapping

from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.controller.election import without_replicas
from barnabas.controller.tree import PARTITIONS_PER_WRITE
from barnabas.coordination import paths
from barnabas.coordination.payloads import TopicAssignment, encode_isr_change
from barnabas.coordination.port import Coordination, MultiError, Set
from barnabas.runtime.turns import chunks

logger = logging.getLogger("barnabas.broker")


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
            changed = without_replicas(LeaderAndIsr.decode(state[0], state[1].version), {node_id})
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
