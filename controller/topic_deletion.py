"""The deletion of topics, step by step: every replica's files first, the nodes last."""

import logging
from collections.abc import Collection, Iterable, Sequence

from barnabas.cluster.tree import paths
from barnabas.controller.requests import RequestBatch
from barnabas.controller.state import ControllerState, PartitionState, Replica, ReplicaState
from barnabas.controller.state_machines import StateMachines
from barnabas.controller.tree import ControllerTree

logger = logging.getLogger("barnabas.controller")


class TopicDeletion:
    """Deletes the topics in `state.topics_to_delete`. A dead replica's broker must return before its topic can go."""

    def __init__(
        self, state: ControllerState, tree: ControllerTree, batch: RequestBatch, machines: StateMachines
    ) -> None:
        self._state = state
        self._tree = tree
        self._batch = batch
        self._machines = machines

    async def enqueue(self, topics: Iterable[str]) -> None:
        """Begin to delete these topics. Topics with offline replicas wait for `retry`."""
        wanted = dict.fromkeys(topics)
        self._state.topics_to_delete.update(wanted)
        await self.resume(wanted)

    async def retry(self, topics: Collection[str]) -> None:
        """Try again: a broker came back, or a move ended, so these topics may be deleted now."""
        self._state.topics_ineligible.difference_update(topics)
        await self.resume(topics)

    async def resume(self, topics: Iterable[str] | None = None) -> None:
        """Take these topics (None: all that are to be deleted) one step further, where a step is possible."""
        for topic in list(self._state.topics_to_delete if topics is None else topics):
            if topic not in self._state.topics_to_delete:
                continue
            replicas = self._state.replicas_of(self._state.partitions_of(topic))
            states = {self._state.replica_states.get(replica, ReplicaState.NON_EXISTENT) for replica in replicas}
            if states <= {ReplicaState.DELETION_SUCCESSFUL}:
                await self._complete(topic, replicas)
            elif ReplicaState.DELETION_STARTED not in states and topic not in self._state.topics_ineligible:
                await self._begin(topic, replicas)

    async def _begin(self, topic: str, replicas: list[Replica]) -> None:
        state = self._state
        logger.info("topic %s: deleting", topic)
        partitions = state.partitions_of(topic)
        known = [partition for partition in partitions if partition in state.partition_states]
        await self._machines.move_partitions(known, PartitionState.OFFLINE)
        await self._machines.move_partitions(known, PartitionState.NON_EXISTENT)
        self._batch.add_update_metadata(state.brokers, partitions)
        await self._batch.send()
        remaining = [r for r in replicas if state.replica_states.get(r) is not ReplicaState.DELETION_SUCCESSFUL]
        live = [r for r in remaining if state.is_online(r[2], r[:2])]
        dead = [r for r in remaining if not state.is_online(r[2], r[:2])]
        await self._machines.move_replicas(
            [r for r in remaining if state.replica_states.get(r) is not ReplicaState.OFFLINE], ReplicaState.OFFLINE
        )
        if dead:
            logger.info("topic %s: waits for brokers %s to delete it", topic, sorted({r[2] for r in dead}))
            await self._machines.move_replicas(dead, ReplicaState.DELETION_INELIGIBLE)
            state.topics_ineligible.add(topic)
        await self._machines.move_replicas(live, ReplicaState.DELETION_STARTED)

    async def answered(self, done: Sequence[Replica], failed: Sequence[Replica]) -> None:
        """Brokers said which files are gone and which they could not delete."""
        state = self._state
        started = ReplicaState.DELETION_STARTED
        await self._machines.move_replicas(
            [r for r in done if state.replica_states.get(r) is started], ReplicaState.DELETION_SUCCESSFUL
        )
        await self._failed(failed)
        await self.resume(dict.fromkeys(replica[0] for replica in (*done, *failed)))

    async def replicas_failed(self, replicas: Sequence[Replica]) -> None:
        """Replicas of topics being deleted cannot be deleted now."""
        await self._failed(replicas)
        await self.resume(dict.fromkeys(replica[0] for replica in replicas))

    async def _failed(self, replicas: Sequence[Replica]) -> None:
        state = self._state
        failed = [
            r for r in replicas if state.replica_states.get(r) in (ReplicaState.DELETION_STARTED, ReplicaState.OFFLINE)
        ]
        await self._machines.move_replicas(failed, ReplicaState.DELETION_INELIGIBLE)
        state.topics_ineligible.update(replica[0] for replica in failed)

    async def _complete(self, topic: str, replicas: list[Replica]) -> None:
        assert self._state.is_being_deleted(topic), "only a topic that is to be deleted goes"
        await self._machines.move_replicas(replicas, ReplicaState.NON_EXISTENT)
        states = []
        for partition in self._state.partitions_of(topic):
            states += [paths.partition_state(*partition), paths.partition(*partition)]
        await self._tree.delete_all([*states, paths.partitions(topic)])
        # One change: if the wish stayed after the topic, it would end a topic that is made again under this name.
        await self._tree.delete_together([paths.topic(topic), paths.topic_config(topic), paths.delete_topic(topic)])
        self._state.forget_topic(topic)
        logger.info("topic %s: deleted", topic)
