"""What the elected controller does: it takes over, and handles the events of its term.

The handler of an event reads the tree afresh, so a doubled or late event does no harm. Every write is fenced by the
controller's epoch. A fence that fails ends the term, and with it all that this module's objects know.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.registration import UNKNOWN_BROKER_EPOCH, LiveBroker
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.port import (
    Coordination,
    NoNodeError,
    Set,
    Stat,
    Watch,
    WatchEvent,
    get_if_there,
    make_if_missing,
)
from barnabas.config.broker import BrokerConfig
from barnabas.config.topic import TopicConfig
from barnabas.controller import election
from barnabas.controller.alter_partition import Alterations
from barnabas.controller.channels import BrokerChannels
from barnabas.controller.feature_levels import FeatureLevels
from barnabas.controller.leader_elections import ElectionType, LeaderElections
from barnabas.controller.requests import Answered, RequestBatch
from barnabas.controller.state import ControllerState, PartitionState, Replica, ReplicaState, TopicPartition
from barnabas.controller.state_machines import StateMachines
from barnabas.controller.topic_deletion import TopicDeletion
from barnabas.controller.tree import ControllerTree, say_unreadable
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from barnabas.runtime.counted import counted
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import chunks

logger = logging.getLogger("barnabas.controller")

REPLICAS_NAMED_MAX = 10  # a line of the log names no more replicas
NODES_PER_READ = 500

Handler = Callable[[], Awaitable[None]]


class Term:
    """One controllership. `enqueue(handler, term)` has the controller's queue handle an event of this term."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        node_id: int,
        coordination: Coordination,
        channels: BrokerChannels,
        epoch: int,
        epoch_version: int,
        enqueue: "Callable[[Handler, Term], None]",
        has_features: Callable[[], bool],
    ) -> None:
        self.state = ControllerState()
        self.tree = ControllerTree(coordination, env.clock, self.state, epoch, epoch_version)
        self._env = env
        self._config = config
        self._coordination = coordination
        self._channels = channels
        self._enqueue_event = enqueue
        self._has_features = has_features
        self._batch = RequestBatch(
            self.state,
            config,
            env.turns,
            channels,
            node_id,
            epoch,
            self._log_failures_answered,
            self._logs_answered,
            self._write_blocks_answered,
            self._deletions_answered,
        )
        self._machines = StateMachines(self.state, env.turns, self.tree, self._batch, self._unclean_topics)
        self._deletion = TopicDeletion(self.state, self.tree, self._batch, self._machines)
        self.alterations = Alterations(self.state, self.tree, self._batch, self._isrs_altered)
        self.feature_levels = FeatureLevels(self.state, self.tree, coordination, node_id)
        self.elections = LeaderElections(self.state, config, self._machines)
        self._watches: dict[str, Watch] = {}  # the last one left on each path
        self._changed_topics: dict[str, None] = {}  # topics whose nodes have changed

    # --- taking over ---

    async def take_over(self) -> None:
        """Leave watches, read everything, tell all brokers who lives, then elect and tell the rest.

        What must be written is written before any broker is told, so that each broker hears of a partition once.
        """
        state, batch = self.state, self._batch
        for folder, handler in ((paths.ISR_CHANGES, self._isr_changed), (paths.LOG_DIR_EVENTS, self._log_dir_failed)):
            names = await self._children(folder, handler)
            await self.tree.delete_all([f"{folder}/{name}" for name in names])
        state.brokers.update(await self._read_brokers(await self._children(paths.BROKER_IDS, self._brokers_changed)))
        await self._load_topics(await self._children(paths.TOPICS, self._topics_changed))
        if not self._has_features():
            await self.feature_levels.make(is_new=not state.assignments)
        await self.tree.read_states(list(state.all_partitions()))
        deleted = await self._children(paths.DELETE_TOPICS, self._deletions_changed)
        deletions, void = await self._sorted_deletions(deleted)
        state.topics_to_delete.update(dict.fromkeys(deletions))
        self._channels.set_live_brokers(state.brokers)
        batch.add_update_metadata(state.brokers, ())
        await batch.send()
        state.begin()
        online = [  # a replica that is to be deleted may be gone: a leader without records would cut the others' logs
            replica
            for replica, known in state.replica_states.items()
            if known is ReplicaState.ONLINE and not state.is_being_deleted(replica[0])
        ]
        offline = [r for r, known in state.replica_states.items() if known is ReplicaState.OFFLINE]
        batch.add_full_metadata(state.brokers)
        await self._machines.bring_online(state.in_states(PartitionState.NEW, PartitionState.OFFLINE))
        await self._machines.leave_isrs(offline)
        await self._machines.move_replicas([*online, *state.just_created()], ReplicaState.ONLINE)
        await self.tree.delete_all([paths.delete_topic(topic) for topic in void])
        await self._deletion.resume()
        await self._preferred_election_wanted()

    async def retry_offline_partitions(self) -> None:
        """Look again at partitions without a leader."""
        await self._machines.bring_online(self.state.in_states(PartitionState.NEW, PartitionState.OFFLINE))
        await self._batch.send()

    def _enqueue(self, handler: Handler) -> None:
        self._enqueue_event(handler, self)

    # --- reading the tree ---

    def _watch(self, path: str, handler: Handler) -> Watch:
        """A watch that queues `handler`. Of several watches on one path only the last counts: it sees every change."""

        def fired(event: WatchEvent) -> None:
            if self._watches.get(path) is fired:
                del self._watches[path]
                self._enqueue(handler)

        self._watches[path] = fired
        return fired

    async def _children(self, path: str, handler: Handler) -> list[str]:
        try:
            return await self._coordination.children(path, self._watch(path, handler))
        except NoNodeError:
            await make_if_missing(self._coordination, path)  # a controller before this one may make it just now
            return await self._coordination.children(path, self._watch(path, handler))

    async def _read_watched(
        self, nodes: Sequence[str], changed: Callable[[str], None]
    ) -> list[tuple[bytes, Stat] | None]:
        """Read many nodes, and leave a watch on each that is there. `changed` is called with the path of its event."""

        def fired(event: WatchEvent) -> None:
            if self._watches.get(event.path) is fired:
                del self._watches[event.path]
                changed(event.path)

        found: list[tuple[bytes, Stat] | None] = []
        for chunk in chunks(nodes, NODES_PER_READ):
            self._watches.update(dict.fromkeys(chunk, fired))
            read = await self._coordination.get_many(chunk, fired)
            for path, node in zip(chunk, read):
                if node is None and self._watches.get(path) is fired:
                    del self._watches[path]
            found += read
        return found

    async def _read_brokers(self, names: Iterable[str]) -> dict[int, LiveBroker]:
        """The registered brokers of these names, in the order of their ids; leaves watches."""

        def changed(path: str) -> None:
            async def handle() -> None:
                await self._broker_changed(int(path.rpartition("/")[2]))

            self._enqueue(handle)

        ids = sorted(int(name) for name in names if name.isdecimal())
        nodes = await self._read_watched([paths.broker(broker_id) for broker_id in ids], changed)
        found = (self.tree.broker_of(broker_id, node) for broker_id, node in zip(ids, nodes) if node is not None)
        return {broker.broker_id: broker for broker in found if broker is not None}

    async def _read_topics(self, topics: Sequence[str]) -> dict[str, tuple[payloads.TopicAssignment, Stat]]:
        """The assignments of topics; leaves watches. A topic whose node cannot be read is left out."""

        def changed(path: str) -> None:
            if not self._changed_topics:
                self._enqueue(self._topic_nodes_changed)
            self._changed_topics[path.rpartition("/")[2]] = None

        found = {}
        pace = self._env.turns.pace()
        nodes = await self._read_watched([paths.topic(topic) for topic in topics], changed)
        for topic, node in zip(topics, nodes):
            await pace.rest()
            if node is None:
                continue
            try:
                found[topic] = payloads.TopicAssignment.decode(node[0]), node[1]
            except ValueError:
                say_unreadable(paths.topic(topic), node[0], f"topic {topic} is not served until it is mended")
        return found

    async def _load_topics(self, topics: Sequence[str]) -> list[str]:
        """Take over the assignments of topics, and give ids to topics without. Returns the topics found."""
        found = await self._read_topics(topics)
        for topic, (node, stat) in found.items():
            topic_id = node.topic_id
            if topic_id is None:
                topic_id = self._env.random_uuid()
                await self.tree.write(
                    [Set(paths.topic(topic), node._replace(topic_id=topic_id).encode(), stat.version)]
                )
            self.state.assignments[topic] = dict(node.partitions)
            self.state.topic_ids[topic] = topic_id
        return list(found)

    async def _unclean_topics(self, topics: Collection[str]) -> set[str]:
        """The topics among these that allow a leader from outside the ISR, which may lack records."""
        names = sorted(topics)
        nodes = await self._coordination.get_many([paths.topic_config(topic) for topic in names])
        allowed = set()
        for topic, node in zip(names, nodes):
            overrides = {} if node is None else payloads.decode_config(node[0])
            if TopicConfig.of(overrides, self._config).unclean_leader_election_enable:
                allowed.add(topic)
        return allowed

    # --- brokers ---

    async def _brokers_changed(self) -> None:
        """`/brokers/ids` has other children: brokers came, went, or did both."""
        found = await self._read_brokers(await self._children(paths.BROKER_IDS, self._brokers_changed))
        state = self.state
        dead = [broker_id for broker_id in state.brokers if broker_id not in found]
        bounced = [b for b in found if b in state.brokers and found[b].epoch > state.brokers[b].epoch]
        new = [broker_id for broker_id in found if broker_id not in state.brokers]
        for broker_id in dead + bounced:
            state.forget_broker(broker_id)
        if dead or bounced:
            logger.info("brokers %s are gone", sorted(dead + bounced))
            self._channels.set_live_brokers(state.brokers)
            await self._brokers_failed(dead + bounced)
        started = new + bounced
        for broker_id in started:
            state.brokers[broker_id] = found[broker_id]
        if started:
            logger.info("brokers %s have started", sorted(started))
            self._channels.set_live_brokers(state.brokers)
            await self._brokers_started(started)

    async def _brokers_started(self, broker_ids: Sequence[int]) -> None:
        """Tell the started brokers everything, whether or not it has changed.

        A broker that lost its session leads on only when the controller has spoken to its new epoch.
        """
        state = self.state
        self._batch.add_update_metadata([b for b in state.brokers if b not in broker_ids], ())
        self._batch.add_update_metadata(broker_ids, ())
        await self._batch.send()
        self._batch.add_full_metadata(broker_ids)
        await self._replicas_came([r for r in state.replicas_on(broker_ids) if state.is_online(r[2], r[:2])])

    async def _replicas_came(self, replicas: Sequence[Replica]) -> None:
        """Replicas can be used: elect where they are missing, tell them what they are, delete what is to be deleted."""
        state = self.state
        await self._machines.bring_online(state.in_states(PartitionState.NEW, PartitionState.OFFLINE))
        existing = [r for r in replicas if r[:2] in state.states and not state.is_being_deleted(r[0])]
        await self._machines.move_replicas(dict.fromkeys([*existing, *state.just_created()]), ReplicaState.ONLINE)
        await self._deletion.retry({replica[0] for replica in replicas if state.is_being_deleted(replica[0])})

    async def _brokers_failed(self, broker_ids: Sequence[int]) -> None:
        self._batch.add_update_metadata(self.state.brokers, ())
        await self._replicas_failed(self.state.replicas_on(broker_ids))

    async def _replicas_failed(self, replicas: Sequence[Replica]) -> None:
        """Replicas went offline: elect where they led, take them out of the ISRs."""
        state = self.state
        deleting = [r for r in replicas if state.is_being_deleted(r[0])]
        remaining = [r for r in replicas if not state.is_being_deleted(r[0]) and r[:2] in state.states]
        await self._machines.bring_online(await self._become_leaderless(dict.fromkeys(r[:2] for r in remaining)))
        await self._machines.move_replicas(remaining, ReplicaState.OFFLINE)
        if deleting:
            await self._deletion.replicas_failed(deleting)

    async def _become_leaderless(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Move to OFFLINE those of the partitions whose leader cannot serve any more; returns them."""
        online, state = PartitionState.ONLINE, self.state
        gone = [p for p in partitions if state.partition_states.get(p) is online and not state.has_online_leader(p)]
        await self._machines.move_partitions(gone, PartitionState.OFFLINE)
        return gone

    async def _broker_changed(self, broker_id: int) -> None:
        """The node of a broker changed: endpoints or rack. `_brokers_changed` sees when it goes."""
        known = self.state.brokers.get(broker_id)
        broker = (await self._read_brokers([str(broker_id)])).get(broker_id)
        if known is None and broker is not None:  # its node could not be read before
            await self._brokers_changed()
        if known is None or broker is None or broker.epoch != known.epoch or broker == known:
            return
        self.state.brokers[broker_id] = broker
        self._channels.set_live_brokers(self.state.brokers)
        self._batch.add_update_metadata(self.state.brokers, ())
        await self._batch.send()

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """A broker wants to go. Other replicas lead what it leads, and it leaves the ISRs of what it follows.

        The answer names the partitions that it still leads because no other replica is in sync. From now on it is not
        elected, and not taken into an ISR, until it has been away.
        """
        state, broker_id = self.state, request.broker_id
        broker = state.brokers.get(broker_id)
        if broker is None:
            return ControlledShutdownResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        if request.broker_epoch != UNKNOWN_BROKER_EPOCH and request.broker_epoch < broker.epoch:
            return ControlledShutdownResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        if broker_id not in state.shutting_down:
            logger.info("controlled shutdown of broker %d", broker_id)
        state.shutting_down.add(broker_id)
        hosted = [
            (topic, index)
            for topic, index, _ in state.replicas_on([broker_id])
            if (topic, index) in state.states
            and len(state.replicas((topic, index))) > 1
            and not state.is_being_deleted(topic)
        ]

        def is_led(partition: TopicPartition) -> bool:
            known = state.states.get(partition)
            return known is not None and known.leader == broker_id

        led = [partition for partition in hosted if is_led(partition)]

        def decide(partition: TopicPartition, known: LeaderAndIsr) -> LeaderAndIsr | None:
            if known.leader != broker_id:
                return None
            live = state.online_replicas(partition)
            return election.elect_controlled_shutdown(state.candidates(partition), known, live, state.shutting_down)

        await self._machines.elect(led, decide)
        remaining = [partition for partition in hosted if is_led(partition)]
        followed = set(hosted).difference(led)
        await self._machines.move_replicas(
            [(*partition, broker_id) for partition in hosted if partition in followed], ReplicaState.OFFLINE
        )
        row = ControlledShutdownResponse.RemainingPartition
        rows = [row(topic_name=topic, partition_index=index) for topic, index in remaining]
        return ControlledShutdownResponse(remaining_partitions=rows)

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        """Give a broker the next block of producer ids. A block whose answer is lost is never used."""
        broker = self.state.brokers.get(request.broker_id)
        if broker is None:
            return AllocateProducerIdsResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
        if request.broker_epoch != broker.epoch:
            return AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        block = await self.tree.take_producer_ids(request.broker_id)
        if block is None:
            return AllocateProducerIdsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.last - block.first + 1)

    # --- topics ---

    async def _topics_changed(self) -> None:
        """`/brokers/topics` has other children."""
        names = await self._children(paths.TOPICS, self._topics_changed)
        state = self.state
        present = set(names)
        for topic in [topic for topic in state.assignments if topic not in present]:
            logger.warning("topic %s has vanished from the tree", topic)
            state.forget_topic(topic)
        loaded = await self._load_topics([topic for topic in names if topic not in state.assignments])
        await self._create_partitions([partition for topic in loaded for partition in state.partitions_of(topic)])

    async def _topic_nodes_changed(self) -> None:
        """The nodes of topics changed: new partitions are made, other changes are ignored."""
        changed, self._changed_topics = list(self._changed_topics), {}
        nodes = await self._read_topics(changed)
        if any(topic not in self.state.assignments for topic in nodes):  # their nodes could not be read before
            await self._topics_changed()
        added: list[TopicPartition] = []
        for topic, (node, _) in nodes.items():
            known = self.state.assignments.get(topic, {})
            new = sorted(set(node.partitions).difference(known))
            if new and self.state.is_being_deleted(topic):
                logger.warning("topic %s is being deleted: new partitions %s are refused", topic, new)
                restored = node._replace(partitions=dict(known))
                await self.tree.write([Set(paths.topic(topic), restored.encode())])
                continue
            known.update({index: node.partitions[index] for index in new})
            added += [(topic, index) for index in new]
        await self._create_partitions(added)

    async def _create_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        await self.tree.read_states(partitions)  # an earlier controller may have made these nodes already
        await self._machines.move_partitions(partitions, PartitionState.NEW)
        replicas = self.state.replicas_of(partitions)
        await self._machines.move_replicas(replicas, ReplicaState.NEW)
        await self._machines.bring_online(partitions)
        await self._machines.move_replicas(
            [replica for replica in replicas if replica[:2] in self.state.states], ReplicaState.ONLINE
        )

    async def _deletions_changed(self) -> None:
        """`/admin/delete_topics` has other children."""
        names = await self._children(paths.DELETE_TOPICS, self._deletions_changed)
        if any(topic not in self.state.assignments for topic in names):  # perhaps made a moment ago
            await self._topics_changed()
        known, void = await self._sorted_deletions(names)
        await self.tree.delete_all([paths.delete_topic(topic) for topic in void])
        await self._deletion.enqueue([topic for topic in known if topic not in self.state.topics_to_delete])

    async def _sorted_deletions(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """The topics to delete, and the names whose wish is void.

        Barnabas writes into the wish the id of the topic that the client meant. If a topic was made again under the
        name meanwhile, the wish is void: nobody wants to delete the new one. Kafka's wishes have no data.
        """
        known: list[str] = []
        void: list[str] = []
        for topic, node in zip(names, await self._coordination.get_many([paths.delete_topic(name) for name in names])):
            if node is None:
                continue
            meant = payloads.decode_topic_deletion(node[0])
            exists = topic in self.state.assignments and meant in (None, self.state.topic_ids.get(topic))
            (known if exists and self._config.delete_topic_enable else void).append(topic)
        return known, void

    # --- notices and answers ---

    async def _isr_changed(self) -> None:
        """Brokers wrote states: read them, and tell all brokers.

        Leaders of an old Kafka change the ISR. A broker that starts may have written a later leader epoch, or other
        replicas in sync: then the replicas hear of it, a leader is elected if there is none, and those that are dead
        leave the ISR, because they may wait for that.
        """
        names = await self._children(paths.ISR_CHANGES, self._isr_changed)
        if not names:
            return
        notices = [f"{paths.ISR_CHANGES}/{name}" for name in names]
        partitions: dict[TopicPartition, None] = {}
        for node in await self._coordination.get_many(notices):
            if node is not None:
                partitions.update(dict.fromkeys(payloads.decode_isr_change(node[0])))
        state = self.state
        await self.tree.read_states([partition for partition in partitions if partition in state.states])
        known = [partition for partition in partitions if partition in state.states]
        self._batch.add_update_metadata(state.brokers, known)
        kept = [partition for partition in known if not state.is_being_deleted(partition[0])]
        # Those without a later epoch, too: a write that came too late may have made this controller read it before.
        for partition in kept:
            self._batch.add_leader_and_isr(state.replicas(partition), partition)
        await self._become_leaderless(kept)
        await self._machines.bring_online(kept)
        await self._machines.leave_isrs(
            (*partition, member)
            for partition in kept
            if partition in state.states
            for member in state.states[partition].isr
            if member not in state.brokers
        )
        await self._batch.send()
        await self.tree.delete_all(notices)

    async def _log_dir_failed(self) -> None:
        """A broker lost logs, or has logs that it could not make before. LeaderAndIsr for all its partitions asks it
        which ones. What it could not delete, perhaps it can now.
        """
        names = await self._children(paths.LOG_DIR_EVENTS, self._log_dir_failed)
        if not names:
            return
        notices = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        nodes = await self._coordination.get_many(notices)
        broker_ids = {payloads.decode_log_dir_event(node[0]) for node in nodes if node is not None}
        deleting = set()
        for topic, index, broker_id in self.state.replicas_on(broker_ids):
            if self.state.is_being_deleted(topic):
                self.state.failed_logs.get(broker_id, set()).discard((topic, index))
                deleting.add(topic)
            else:
                self._batch.add_leader_and_isr([broker_id], (topic, index))
        await self._batch.send()
        await self.tree.delete_all(notices)
        await self._deletion.retry(deleting & self.state.topics_ineligible)

    async def _preferred_election_wanted(self) -> None:
        """An old tool wants preferred leaders: `/admin/preferred_replica_election` names partitions."""
        path = paths.PREFERRED_REPLICA_ELECTION
        if await self._coordination.exists(path, self._watch(path, self._preferred_election_wanted)) is None:
            return
        node = await get_if_there(self._coordination, path)
        if node is not None:
            try:
                wanted = payloads.decode_preferred_election(node[0])
                await self.elections.elect(ElectionType.PREFERRED, wanted)
            except ValueError as error:
                logger.error("%s cannot be read, removing it: %s", path, error)
            await self.tree.delete_all([path])

    def _is_present(self, answered: Answered, replica: Replica) -> bool:
        """Whether an answer is of the present life of its broker, and about the present topic of that name."""
        broker = self.state.brokers.get(answered.broker_id)
        return (
            broker is not None
            and broker.epoch == answered.broker_epoch
            and self.state.topic_ids.get(replica[0]) == answered.topic_ids[replica[0]]
        )

    def _log_failures_answered(self, answered: Answered, replicas: list[Replica]) -> None:
        async def handle() -> None:
            fresh = []
            for replica in replicas:
                failed = self.state.failed_logs.setdefault(replica[2], set())
                if self._is_present(answered, replica) and replica[:2] not in failed:
                    failed.add(replica[:2])
                    fresh.append(replica)
            if fresh:
                logger.warning(
                    "%s offline, because the log failed: %s",
                    counted(len(fresh), "replica is", "replicas are"),
                    fresh[:REPLICAS_NAMED_MAX],
                )
                await self._replicas_failed(fresh)

        self._enqueue(handle)

    def _logs_answered(self, answered: Answered, replicas: list[Replica]) -> None:
        """These have a log now. They could not make one before, because there was no room, say."""

        async def handle() -> None:
            failed = self.state.failed_logs.get(answered.broker_id, set())
            back = [replica for replica in replicas if self._is_present(answered, replica) and replica[:2] in failed]
            if back:
                failed.difference_update(replica[:2] for replica in back)
                logger.info(
                    "%s online again: %s", counted(len(back), "replica is", "replicas are"), back[:REPLICAS_NAMED_MAX]
                )
                await self._replicas_came(back)

        self._enqueue(handle)

    def _write_blocks_answered(self, answered: Answered, blocked: list[Replica], can_write: list[Replica]) -> None:
        """The disk of a broker refuses writes, or does not any more. This is kept at once: the last answer counts."""
        known = self.state.write_blocked_logs.setdefault(answered.broker_id, set())
        begun = [replica[:2] for replica in blocked if self._is_present(answered, replica)]
        over = [replica[:2] for replica in can_write if self._is_present(answered, replica)]
        known.update(begun)
        known.difference_update(over)
        if begun:
            count = counted(len(begun), "partition")
            logger.warning(
                "broker %d cannot write to %s: moving their leadership where others are in sync",
                answered.broker_id,
                count,
            )
        if over:
            logger.info("broker %d can write to %s again", answered.broker_id, counted(len(over), "partition"))
        self._enqueue(lambda: self._elect_able([*begun, *over]))

    def _isrs_altered(self, partitions: Sequence[TopicPartition]) -> None:
        """Perhaps one that can write has come into the ISR of a leader that cannot."""
        led = [each for each in partitions if not self.state.can_write(self.state.states[each].leader, each)]
        if led:
            self._enqueue(lambda: self._elect_able(led))

    async def _elect_able(self, partitions: Sequence[TopicPartition]) -> None:
        state = self.state

        def decide(partition: TopicPartition, known: LeaderAndIsr) -> LeaderAndIsr | None:
            return election.elect_able(known, state.candidates(partition), state.able_replicas(partition))

        present = [each for each in partitions if each in state.states and not state.is_being_deleted(each[0])]
        await self._machines.elect(present, decide)

    def _deletions_answered(self, answered: Answered, done: list[Replica], failed: list[Replica]) -> None:
        async def handle() -> None:
            await self._deletion.answered(
                [replica for replica in done if self._is_present(answered, replica)],
                [replica for replica in failed if self._is_present(answered, replica)],
            )

        self._enqueue(handle)
