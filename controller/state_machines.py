"""Moves partitions and replicas from state to state: checks the table, writes the tree, collects requests to brokers.

Order within a step: tree first, memory second, brokers last (`RequestBatch.send`).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from barnabas.cluster.leader_and_isr import NO_LEADER, LeaderAndIsr
from barnabas.controller import election
from barnabas.controller.requests import RequestBatch
from barnabas.controller.state import ControllerState, PartitionState, Replica, ReplicaState, TopicPartition
from barnabas.controller.tree import ControllerTree
from barnabas.runtime.counted import counted
from barnabas.runtime.turns import Turns

logger = logging.getLogger("barnabas.controller")

ELECTIONS_SAID_MAX = 20  # if one step has more, their lines are for debug only, and one line counts them

Elect = Callable[[TopicPartition, LeaderAndIsr], LeaderAndIsr | None]


class StateMachines:
    """Both machines over one controller's state.

    `elect` and `move_replicas` end a step: they send what was collected. Before them, other methods only collect.
    """

    def __init__(
        self,
        state: ControllerState,
        turns: Turns,
        tree: ControllerTree,
        batch: RequestBatch,
        unclean_topics: Callable[[Collection[str]], Awaitable[set[str]]],
    ) -> None:
        self._state = state
        self._turns = turns
        self._tree = tree
        self._batch = batch
        self._unclean_topics = unclean_topics  # which of these topics allow an unclean election

    # --- partitions ---

    async def bring_online(self, partitions: Sequence[TopicPartition]) -> None:
        """Create the state of new partitions, elect a leader for those without one."""
        state = self._state
        await self._tree.read_states([p for p in partitions if p in state.unreadable])  # mended meanwhile, perhaps
        readable = [p for p in partitions if p not in state.unreadable]
        new = [p for p in readable if state.partition_states.get(p) is PartitionState.NEW]
        await self._create(new)
        leaderless = [p for p in readable if state.partition_states.get(p) is PartitionState.OFFLINE]
        await self._elect_offline(leaderless)

    async def _create(self, partitions: Sequence[TopicPartition]) -> None:
        state = self._state
        pace = self._turns.pace()
        by_topic: dict[str, dict[int, LeaderAndIsr]] = {}
        for topic, index in partitions:
            first = election.first_state(state.replicas((topic, index)), state.online_replicas((topic, index)))
            if first is not None:  # otherwise it stays NEW until one of its brokers starts
                by_topic.setdefault(topic, {})[index] = first
        for topic, first_states in by_topic.items():
            has_states = any((topic, index) in state.states for index in state.assignments[topic])
            await self._tree.create_states(topic, first_states, topic_is_new=not has_states)
            logger.info("topic %s: %s created", topic, counted(len(first_states), "partition"))
            for index in first_states:
                await pace.rest()
                partition = (topic, index)
                if partition in state.unreadable:
                    continue
                is_online = state.has_online_leader(partition)  # a node made earlier may name a dead leader
                state.enter_partition(partition, PartitionState.ONLINE if is_online else PartitionState.OFFLINE)
                self._batch.add_leader_and_isr(state.replicas(partition), partition, is_new=True)

    async def _elect_offline(self, partitions: Sequence[TopicPartition]) -> None:
        state = self._state
        without_isr = {
            partition[0]
            for partition in partitions
            if (known := state.states.get(partition)) is not None
            and not any(state.is_online(member, partition) for member in known.isr)
        }
        unclean = await self._unclean_topics(without_isr) if without_isr else set()

        def decide(partition: TopicPartition, known: LeaderAndIsr) -> LeaderAndIsr | None:
            return election.elect_offline(
                state.candidates(partition), known, state.online_replicas(partition), unclean=partition[0] in unclean
            )

        await self._write_elected(partitions, decide)

    async def elect(self, partitions: Sequence[TopicPartition], decide: Elect) -> list[TopicPartition]:
        """Elect by the policy `decide`, and send; returns the partitions that changed."""
        elected = await self._write_elected(partitions, decide)
        await self._batch.send()
        return elected

    async def _write_elected(self, partitions: Sequence[TopicPartition], decide: Elect) -> list[TopicPartition]:
        elected = await self._tree.change_states(partitions, decide)
        for partition in elected:
            assert self._state.states[partition].leader != NO_LEADER, "an election elects"
            self._state.enter_partition(partition, PartitionState.ONLINE)
            self._batch.add_leader_and_isr(self._state.replicas(partition), partition)
        self._say_elected(elected)
        return elected

    def _say_elected(self, elected: Sequence[TopicPartition]) -> None:
        unclean_count = 0
        for count, partition in enumerate(elected, 1):
            state = self._state.states[partition]
            unclean_count += state.recovering
            level = logging.WARNING if state.recovering else logging.INFO
            logger.log(
                level if count <= ELECTIONS_SAID_MAX else logging.DEBUG,
                "%s-%d: broker %d leads in epoch %d, ISR %s%s",
                *partition,
                state.leader,
                state.leader_epoch,
                list(state.isr),
                " (unclean: records may be lost)" if state.recovering else "",
            )
        if len(elected) > ELECTIONS_SAID_MAX:
            logger.log(
                logging.WARNING if unclean_count else logging.INFO,
                "%s a new leader, %d of them unclean (each of the others is logged at DEBUG)",
                counted(len(elected), "partition has", "partitions have"),
                unclean_count,
            )

    async def move_partitions(self, partitions: Sequence[TopicPartition], target: PartitionState) -> None:
        """Memory only: NEW, OFFLINE, NON_EXISTENT."""
        pace = self._turns.pace()
        for partition in partitions:
            await pace.rest()
            self._state.enter_partition(partition, target)

    # --- replicas ---

    async def move_replicas(self, replicas: Iterable[Replica], target: ReplicaState) -> None:
        """Move replicas, and tell the brokers concerned. A move that the table forbids is a bug: AssertionError."""
        moved = list(replicas)
        pace = self._turns.pace()
        for replica in moved:
            await pace.rest()
            self._move_replica(replica, target)
        if target is ReplicaState.OFFLINE:
            await self.leave_isrs(moved)
        await self._batch.send()

    def _move_replica(self, replica: Replica, target: ReplicaState) -> None:
        self._state.enter_replica(replica, target)
        topic, index, broker_id = replica
        partition = (topic, index)
        if target in (ReplicaState.NEW, ReplicaState.ONLINE):
            if partition in self._state.states:
                self._batch.add_leader_and_isr([broker_id], partition, is_new=target is ReplicaState.NEW)
        elif target is ReplicaState.OFFLINE:
            self._batch.add_stop_replica(broker_id, partition, delete=False)
        elif target is ReplicaState.DELETION_STARTED:
            self._batch.add_stop_replica(broker_id, partition, delete=True)

    async def leave_isrs(self, replicas: Iterable[Replica]) -> None:
        """Take replicas that are offline out of the ISRs, and tell the others. Each partition is written once."""
        gone: dict[TopicPartition, set[int]] = {}
        for topic, index, broker_id in replicas:
            if not self._state.is_being_deleted(topic):
                gone.setdefault((topic, index), set()).add(broker_id)

        def decide(partition: TopicPartition, known: LeaderAndIsr) -> LeaderAndIsr | None:
            return election.without_replicas(known, gone[partition])

        for partition in await self._tree.change_states(gone, decide):
            others = [replica for replica in self._state.replicas(partition) if replica not in gone[partition]]
            self._batch.add_leader_and_isr(others, partition)
            if self._state.states[partition].leader == NO_LEADER:
                self._state.enter_partition(partition, PartitionState.OFFLINE)
