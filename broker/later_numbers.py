"""Producer ids and leader epochs that were given since a copy of the tree was made are not given again.

A producer that gets the id of another one has its records taken for duplicates: acknowledged, and not written. A client
that has seen a later leader epoch waits for it for ever.

The logs do not have all that was given. A producer has its id and has not written yet, or retention has removed what it
wrote; an epoch may end without a record. So each broker keeps on its disks the last id of its blocks, before it uses
them, and the largest leader epoch of which it was told (`tree_mark.py`). When it finds the tree to be older, all goes
on beyond these, and beyond what its logs have. That covers what it has given out itself.

Others may have been given more, and come later or never. So the next number is a multiple of a large step, and between
is room for more than others can have been given since the last thing that this broker knows. Several brokers that know
about as much come to the same multiple, so that nothing changes again. Who knows more than fits goes on beyond that.

Who stopped just after the copy was made, and starts first, cannot know that the tree is older
(docs/coordination-tree.md). It gives up the producer ids that it has when it hears of it.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

from barnabas.broker import before_registering
from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import ProducerIdBlock
from barnabas.cluster.tree.port import BadVersionError, Coordination
from barnabas.controller.tree import PARTITIONS_PER_READ, say_unreadable
from barnabas.runtime.counted import counted
from barnabas.runtime.turns import chunks
from barnabas.storage.checkpoints import TreeKnowledge
from barnabas.storage.log import Log

logger = logging.getLogger("barnabas.broker")

LARGEST_GIVEN = 1 << 62  # a producer id behind it comes from a client that made it up, not from a cluster
PRODUCER_ID_STEP = 10**10  # ids stay exact in JSON through 900,000 restored trees
LEADER_EPOCH_STEP = 10_000  # enough for 200,000 restored trees
MARGIN = 10  # a step is left out if less than this part of it is left for what others were given

TopicPartition = tuple[str, int]


def beyond(known: int, step: int) -> int:
    """The first number of a step that is certainly beyond all that was given, if this is the last known."""
    return ((known + step // MARGIN) // step + 1) * step


async def give_no_number_again(
    coordination: Coordination, logs: Sequence[Log], known: TreeKnowledge, node_id: int
) -> None:
    """The tree is older than what this broker knows. Before it registers, and others: go on beyond that."""
    first_id = beyond(max(known.producer_id, _last_producer_id(logs)), PRODUCER_ID_STEP)
    epoch = beyond(max([known.leader_epoch, *(log.leader_epochs.latest for log in logs)]), LEADER_EPOCH_STEP)
    is_first = await _reserve_producer_ids(coordination, first_id - 1, node_id)
    raised = await _raise_leader_epochs(coordination, epoch)
    if is_first or raised:
        logger.warning(
            "The tree knows less than the disks of this broker: it is an older copy, or was made anew. So that clients "
            "see no number twice, leader epochs go on with %d (of %s), and producer ids with %d. Topics, settings, "
            "users, access rules and quotas are as that tree says: who was removed since may be back",
            *(epoch, counted(raised, "partition"), first_id),
        )


async def give_no_id_of_logs_again(coordination: Coordination, logs: Sequence[Log], node_id: int) -> None:
    """The tree is not known to be older. But it may be new, and these are the logs of another cluster.

    Others of the same block may have been given to producers that have not written yet: as many are left out.
    """
    last = _last_producer_id(logs)
    if last >= 0:
        following = ProducerIdBlock.after(ProducerIdBlock(node_id, last, last), node_id)
        await _reserve_producer_ids(coordination, following.last, node_id)


def _last_producer_id(logs: Sequence[Log]) -> int:
    """The largest in the logs. A client may write with an id that nobody has given it, and leave none for others."""
    ids = (producer_id for log in logs for producer_id in log.producers.entries)
    return max((each for each in ids if each <= LARGEST_GIVEN), default=-1)


async def readable_producer_id(
    coordination: Coordination, logs: Sequence[Log], known: TreeKnowledge, node_id: int
) -> int:
    """As `last_producer_id`. If nobody can read it, because somebody has written the node by hand, ids go on beyond."""
    data, stat = await coordination.get(paths.PRODUCER_ID_BLOCK)
    try:
        return _last_given(data)
    except ValueError:
        first = beyond(max(known.producer_id, _last_producer_id(logs)), PRODUCER_ID_STEP)
        say_unreadable(paths.PRODUCER_ID_BLOCK, data, f"producer ids continue from {first}")
        with suppress(BadVersionError):  # another broker has just done it
            mended = ProducerIdBlock(node_id, first - 1, first - 1).encode()
            await coordination.set(paths.PRODUCER_ID_BLOCK, mended, stat.version)
        return await last_producer_id(coordination)


async def last_producer_id(coordination: Coordination) -> int:
    """The last one that the tree says was given; -1: none."""
    return _last_given((await coordination.get(paths.PRODUCER_ID_BLOCK))[0])


def _last_given(data: bytes) -> int:
    given = ProducerIdBlock.decode(data)
    return -1 if given is None else given.last


async def _reserve_producer_ids(coordination: Coordination, last: int, node_id: int) -> bool:
    """Give out no id up to `last`. Returns whether any would have been given out."""
    while True:
        data, stat = await coordination.get(paths.PRODUCER_ID_BLOCK)
        given = ProducerIdBlock.decode(data)
        if given is not None and given.last >= last:
            return False
        block = ProducerIdBlock(node_id, last, last)
        try:
            await coordination.set(paths.PRODUCER_ID_BLOCK, block.encode(), stat.version)
        except BadVersionError:  # a controller has just given a block
            continue
        return True


async def _raise_leader_epochs(coordination: Coordination, epoch: int) -> int:
    """Have all partitions go on in this epoch that are in earlier ones. Returns how many."""
    raised: dict[TopicPartition, None] = {}
    while True:
        earlier: dict[TopicPartition, LeaderAndIsr] = {}
        for chunk in chunks(await _partitions(coordination), PARTITIONS_PER_READ):
            nodes = await coordination.get_many([paths.partition_state(*partition) for partition in chunk])
            states = zip(chunk, map(LeaderAndIsr.of_node, nodes))
            earlier.update({key: state for key, state in states if state is not None and state.leader_epoch < epoch})
        if not earlier:
            return len(raised)
        raised.update(dict.fromkeys(earlier))
        later = {key: state._replace(leader_epoch=epoch) for key, state in earlier.items()}
        await before_registering.write_and_tell(coordination, later)  # not what others have written meanwhile


async def _partitions(coordination: Coordination) -> list[TopicPartition]:
    topics = await coordination.children(paths.TOPICS)
    deleted = set(await coordination.children(paths.DELETE_TOPICS))
    kept = [topic for topic in topics if topic not in deleted]
    assigned = await before_registering.assignments(coordination, kept)
    return [(topic, index) for topic, of in assigned.items() for index in of]
