"""What a broker waits for, and what it writes, before it registers, because of what its disk holds."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum

from barnabas.cluster.leader_and_isr import NO_LEADER, LeaderAndIsr, LogEnd
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import TopicAssignment, decode_number, encode_isr_change
from barnabas.cluster.tree.port import (
    Check,
    ConnectionLossError,
    Coordination,
    MultiError,
    Operation,
    SessionExpiredError,
    Set,
    children_if_there,
    get_if_there,
)
from barnabas.controller.tree import PARTITIONS_PER_WRITE
from barnabas.runtime.counted import counted, names_in_a_line
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import chunks
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

LOOK_MS = 20.0  # how often the tree is read while the broker waits

TopicPartition = tuple[str, int]
Assignments = dict[str, Mapping[int, Sequence[int]]]  # topic -> partition -> replicas
Replicas = dict[TopicPartition, Sequence[int]]


class Loss(IntEnum):
    """What of a log may be lost here that other replicas have."""

    NOTHING = 0
    END = 1  # what was not synced: its machine lost its power
    SOME = 2  # an old copy, removed segments; and this broker alone may have acknowledged what is left
    ALL = 3  # an empty disk; or as SOME, and it has acknowledged nothing alone


async def until_taken_out(
    env: Env,
    coordination: Coordination,
    node_id: int,
    loss_of: Callable[[str, int], Loss],
    end_of: Callable[[str, int], LogEnd],
) -> None:
    """After an unclean stop: return when the tree shows that this broker leads nothing, and is in no ISR with others.

    The tree may still say that this broker has records which its disk has lost. Only the controller takes it out, so
    that the leaders hear of it. The last member of an ISR stays in it, because no broker has more records; its lead has
    ended too, so that it leads again in a new epoch, and a follower that had fetched lost records sees where the logs
    part (KIP-101).

    If its log is lost, it must not stay: the eligible replicas, which have more, are in sync in its place. If the end
    may be lost, it waits as long as a session for one of them to register. All brokers may just have lost their
    sessions, and register again soon. Who is eligible and has lost records is no longer, before it registers.

    If nobody is eligible, all that were in sync have lost records: somebody has put old copies of their disks back.
    Then the logs of all replicas decide who has the most. `end_of` says where a log ends here.
    """
    give_up_ms = env.clock.monotonic_ms() + coordination.session_timeout_ms
    remaining: Replicas | None = None  # None: all that is assigned to this broker
    has_said_so = False
    while True:
        try:
            # While the node of the former life is there, the controller does nothing.
            if await coordination.exists(paths.broker(node_id)) is None:
                is_all = remaining is None
                concerned = await all_hosted(coordination, node_id) if remaining is None else remaining
                deleted = set(await coordination.children(paths.DELETE_TOPICS))  # the controller lets those be
                concerned = {partition: them for partition, them in concerned.items() if partition[0] not in deleted}
                waits = env.clock.monotonic_ms() < give_up_ms
                remaining = await _counted_on(coordination, node_id, concerned, loss_of, end_of, waits=waits)
                if not remaining:
                    if is_all:
                        return
                    remaining = None  # meanwhile a leader may have asked for it again, as it was before
                    continue
                if not has_said_so:
                    has_said_so = True
                    logger.warning(
                        "broker %d stopped uncleanly, or its logs lack records: it waits until the controller has "
                        "taken it out of the ISRs of %d partitions, and where its machine lost its power while it "
                        "alone was in sync, %.0f s at most for a broker that was in sync before",
                        *(node_id, len(remaining), coordination.session_timeout_ms / 1000),
                    )
        except (ConnectionLossError, SessionExpiredError):
            remaining = None
        await env.clock.sleep(LOOK_MS)


async def assignments(coordination: Coordination, topics: Sequence[str]) -> Assignments:
    """The replicas of the partitions of these topics, without those that are not there."""
    found: Assignments = {}
    for topic, node in zip(topics, await coordination.get_many([paths.topic(topic) for topic in topics])):
        if node is not None:
            with suppress(ValueError):  # somebody wrote it by hand: the controller has no such topic
                found[topic] = TopicAssignment.decode(node[0]).partitions
    return found


async def hosted(coordination: Coordination, node_id: int, partitions: Sequence[TopicPartition]) -> Replicas:
    """The replicas of those of the partitions that this broker has by the tree, and whose topics are not deleted."""
    deleted = set(await children_if_there(coordination, paths.DELETE_TOPICS))
    assigned = await assignments(coordination, sorted({topic for topic, _ in partitions} - deleted))
    replicas = {(topic, index): assigned.get(topic, {}).get(index, ()) for topic, index in partitions}
    return {partition: them for partition, them in replicas.items() if node_id in them}


async def all_hosted(coordination: Coordination, node_id: int) -> Replicas:
    """The replicas of the partitions assigned to this broker."""
    assigned = await assignments(coordination, await coordination.children(paths.TOPICS))
    return {(topic, index): them for topic, of in assigned.items() for index, them in of.items() if node_id in them}


async def say_what_is_missing(coordination: Coordination, log_manager: LogManager, node_id: int) -> None:
    """Log which folders somebody removed or exchanged while no broker ran: their partitions begin empty."""
    gone = list(await hosted(coordination, node_id, log_manager.missing)) if log_manager.missing else []
    if gone:
        logger.error(
            "%s had records, and the folders are gone or of other topics: they begin empty (%s)",
            counted(len(gone), "partition"),
            _in_a_line(gone),
        )
    if log_manager.was_clean or log_manager.failed_directories or log_manager.gives_up:
        return  # the checkpoints tell of all logs, or nobody knows what there was
    absent = [each for each in await all_hosted(coordination, node_id) if log_manager.get(*each) is None]
    states = await coordination.get_many([paths.partition_state(*partition) for partition in absent])
    new = [each for each, state in zip(absent, states) if state is not None and each not in gone]
    if new:
        logger.warning(
            "%s without a folder: made shortly before the last stop, which was not clean, they begin empty, and what "
            "was written to them here is lost (%s)",
            counted(len(new), "partition"),
            _in_a_line(new),
        )


async def _counted_on(
    coordination: Coordination,
    node_id: int,
    partitions: Replicas,
    loss_of: Callable[[str, int], Loss],
    end_of: Callable[[str, int], LogEnd],
    *,
    waits: bool,
) -> Replicas:
    """Those of the partitions whose state says that this broker leads, is in sync with others, or has what it has lost.

    `waits`: also those for which it waits for eligible replicas.
    """
    registered = set(await coordination.children(paths.BROKER_IDS))
    states = await coordination.get_many([paths.partition_state(*partition) for partition in partitions])
    counted_on: Replicas = {}
    corrected: dict[TopicPartition, LeaderAndIsr] = {}
    given, undecided = [], []
    for (partition, replicas), node in zip(partitions.items(), states):
        state = LeaderAndIsr.of_node(node)
        if state is None:  # or it cannot be read: then nobody leads
            continue
        loss = loss_of(*partition)
        is_alone = state.leader == NO_LEADER and state.isr == (node_id,)
        if node_id in state.eligible and loss:
            corrected[partition] = state.without_records_of(node_id)
        elif is_alone and _gives_way(state, loss, registered):
            corrected[partition] = state._replace(isr=state.eligible, eligible=())
            given.append(partition)
        elif is_alone and len(replicas) > 1 and loss >= Loss.SOME:
            corrected[partition] = state.with_log_end(node_id, end_of(*partition), replicas)
            undecided.append(partition)
        elif not (
            state.leader == node_id
            or (node_id in state.isr and len(state.isr) > 1)
            or (is_alone and state.eligible and loss is Loss.END and waits)
        ):
            continue
        counted_on[partition] = replicas  # and what is corrected: look once more
    if given:
        logger.warning(
            "broker %d alone was in sync with %s, and records of that are lost here, or may be: one of "
            "those that were in sync before leads when it is there. They have all that was acknowledged with acks=all "
            "while min.insync.replicas was 2 or more (%s)",
            *(node_id, counted(len(given), "partition"), _in_a_line(given)),
        )
    if undecided:
        logger.warning(
            "broker %d alone was in sync with %s, records of that are lost here, and no other broker is known to have "
            "them all: where the logs of all replicas end decides who leads, and what none of them has is lost (%s)",
            *(node_id, counted(len(undecided), "partition"), _in_a_line(undecided)),
        )
    if corrected:
        await write_and_tell(coordination, corrected)
    return counted_on


def _gives_way(state: LeaderAndIsr, loss: Loss, registered: Collection[str]) -> bool:
    """Whether this broker, alone in sync, leaves that to those that are eligible, who have more."""
    if loss is Loss.END:  # they may be away for long, and this broker has nearly all
        return any(str(each) in registered for each in state.eligible)
    return loss is Loss.ALL and bool(state.eligible)


def _in_a_line(partitions: Sequence[TopicPartition]) -> str:
    return names_in_a_line(["{}-{}".format(*partition) for partition in partitions])


async def write_and_tell(coordination: Coordination, changes: dict[TopicPartition, LeaderAndIsr]) -> None:
    """Write states, and have the controller read them. Those that another broker has written meanwhile stay so."""
    for chunk in chunks(list(changes), PARTITIONS_PER_WRITE):
        await _write_all(coordination, {partition: changes[partition] for partition in chunk})
    notice = encode_isr_change(list(changes))
    await coordination.create(paths.ISR_CHANGE_PREFIX, notice, sequential=True, make_parents=True)


async def writes_of(
    coordination: Coordination, states: Mapping[TopicPartition, LeaderAndIsr]
) -> tuple[list[Operation], list[Operation]]:
    """A fence (empty: there was no controller yet), and what writes each of these states, in order.

    They are of the controller of now, not of the one who wrote the states before, and of no later one.
    """
    fence: list[Operation] = []
    node = await get_if_there(coordination, paths.CONTROLLER_EPOCH)
    if node is not None:
        fence = [Check(paths.CONTROLLER_EPOCH, node[1].version)]
        epoch = decode_number(node[0])
        states = {partition: state.by_controller(epoch) for partition, state in states.items()}
    return fence, [
        Set(paths.partition_state(*partition), state.encode(), state.partition_epoch)
        for partition, state in states.items()
    ]


async def _write_all(coordination: Coordination, changes: dict[TopicPartition, LeaderAndIsr]) -> None:
    """Write these states as one change, without those that another broker has written meanwhile."""
    while changes:
        fence, operations = await writes_of(coordination, changes)
        try:
            await coordination.multi([*fence, *operations])
        except MultiError as error:
            if error.index >= len(fence):
                del changes[list(changes)[error.index - len(fence)]]
        else:
            break
